//! What the associations of several paths must have in common.

use crate::association::DataLimits;

/// What associations must have in common, so that requests can go by any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// Block size and NGUID of the namespace that the address names; none if there is no such.
    pub(super) namespace: Option<(u32, [u8; 16])>,
    /// What lanes use, by whichever path.
    pub(super) limits: DataLimits,
    pub(super) is_discovery: bool,
}

impl Terms {
    pub(super) const NO_NAMESPACE: &'static str =
        "its target does not have the namespace that the address names";

    /// What another association lacks that this one has.
    pub(super) fn missing_in(&self, other: &Self) -> Option<&'static str> {
        let nguid = |terms: &Self| terms.namespace.map(|(_, nguid)| nguid);
        // Without one here there is nothing to compare.
        let has_namespace = self.namespace.is_some();
        match () {
            () if other.is_discovery != self.is_discovery => {
                Some("one of the two is a discovery subsystem")
            }
            () if has_namespace && other.namespace.is_none() => Some(Self::NO_NAMESPACE),
            () if has_namespace && nguid(other) != nguid(self) => Some(
                "its namespace is not that of the other path (NGUID); a target of the same file takes \
                 it from uuid=",
            ),
            () if has_namespace && other.namespace != self.namespace => {
                Some("its namespace has other blocks")
            }
            () if other.limits.transfer_bytes < self.limits.transfer_bytes => {
                Some("its target takes less data in a command (MDTS)")
            }
            () if other.limits.in_capsule_bytes < self.limits.in_capsule_bytes => {
                Some("its target takes less data in a capsule (IOCCSZ)")
            }
            () => None,
        }
    }
}
