//! What the associations of several paths must have in common.

/// What associations must have in common, so that requests can go by any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// Block size and NGUID of the namespace that the address names; none if there is no such.
    pub(super) namespace: Option<(u32, [u8; 16])>,
    pub(super) max_transfer_bytes: u32,
    pub(super) in_capsule_bytes: u32,
    pub(super) is_discovery: bool,
}

impl Terms {
    /// What another association lacks that this one has.
    pub(super) fn missing_in(&self, other: &Self) -> Option<&'static str> {
        match () {
            () if other.is_discovery != self.is_discovery => {
                Some("one of the two is a discovery subsystem")
            }
            () if other.namespace.map(|(_, nguid)| nguid)
                != self.namespace.map(|(_, nguid)| nguid) =>
            {
                Some(
                    "its namespace is not that of the other path (NGUID); a target of the same file takes \
                     it from uuid=",
                )
            }
            () if other.namespace != self.namespace => Some("its namespace has other blocks"),
            () if other.max_transfer_bytes < self.max_transfer_bytes => {
                Some("its target takes less data in a command (MDTS)")
            }
            () if other.in_capsule_bytes < self.in_capsule_bytes => {
                Some("its target takes less data in a capsule (IOCCSZ)")
            }
            () => None,
        }
    }
}
