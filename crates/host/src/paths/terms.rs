//! The properties that the associations of several paths must have in common.

use crate::association::DataLimits;
use bpfof_nvme::SpacePadded;
use bpfof_nvme::identify::{IdentifyController, IdentifyNamespace};

/// The properties that associations must have in common, so that requests can use any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// The namespace that the address names; None if it does not exist.
    pub(super) namespace: Option<NamespaceTerms>,
    /// The data limits that lanes use on all paths.
    pub(super) limits: DataLimits,
    pub(super) is_discovery: bool,
}

/// Identifies a namespace, to tell whether two paths lead to the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NamespaceTerms {
    block_bytes: u32,
    nguid: [u8; 16],
    eui64: [u8; 8],
    /// For a namespace without these identifiers: its size in blocks, and the subsystem's serial number.
    unnamed: Option<(u64, SpacePadded<20>)>,
}

impl NamespaceTerms {
    /// None for a namespace without a usable block format.
    pub(super) fn of(
        controller: &IdentifyController,
        namespace: &IdentifyNamespace,
    ) -> Option<Self> {
        let IdentifyNamespace { nguid, eui64, nsze, .. } = *namespace;
        let is_unnamed = nguid == [0; 16] && eui64 == [0; 8];
        Some(Self {
            block_bytes: namespace.format().block_bytes()?,
            nguid,
            eui64,
            unnamed: is_unnamed.then_some((nsze, controller.serial)),
        })
    }

    /// How `other` differs.
    fn difference(&self, other: &Self) -> Option<&'static str> {
        let size = |terms: &Self| terms.unnamed.map(|(blocks, _)| blocks);
        match () {
            () if other.nguid != self.nguid => Some(
                "its namespace differs from that of the other path (NGUID); targets that serve the \
                 same file need the same uuid=",
            ),
            () if self.nguid == [0; 16] && other.eui64 != self.eui64 => {
                Some("its namespace differs from that of the other path (EUI-64)")
            }
            () if size(other) != size(self) => Some(
                "its namespace has neither NGUID nor EUI-64, and its size differs from that on the \
                 other path; give it an identifier (uuid=)",
            ),
            () if other.unnamed != self.unnamed => Some(
                "its namespace has neither NGUID nor EUI-64, and the serial number of its \
                 subsystem differs from that on the other path; give it an identifier (uuid=)",
            ),
            () if other.block_bytes != self.block_bytes => {
                Some("its namespace has another logical block size")
            }
            () => None,
        }
    }
}

impl Terms {
    pub(super) const NO_NAMESPACE: &'static str =
        "its target does not have the namespace that the address names";

    /// These terms, with size and serial number of a namespace without an identifier taken from `newer`: they may have
    /// changed while there was no path.
    pub(super) fn renewed(mut self, newer: &Self) -> Self {
        if let (Some(own), Some(newer)) = (&mut self.namespace, newer.namespace) {
            own.unnamed = own.unnamed.and(newer.unnamed);
        }
        self
    }

    /// Names a property that `other` lacks compared with these terms, if any.
    pub(super) fn missing_in(&self, other: &Self) -> Option<&'static str> {
        if other.is_discovery != self.is_discovery {
            return Some("one of the two is a discovery subsystem");
        }
        let of_namespace = match (&self.namespace, &other.namespace) {
            // There is nothing to compare.
            (None, _) => None,
            (Some(_), None) => Some(Self::NO_NAMESPACE),
            (Some(mine), Some(others)) => mine.difference(others),
        };
        if of_namespace.is_some() {
            return of_namespace;
        }
        match () {
            () if other.limits.transfer_bytes < self.limits.transfer_bytes => {
                Some("its target accepts less data in a command (MDTS)")
            }
            () if other.limits.in_capsule_bytes < self.limits.in_capsule_bytes => {
                Some("its target accepts less data in a capsule (IOCCSZ)")
            }
            () => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(set: impl FnOnce(&mut IdentifyNamespace)) -> IdentifyNamespace {
        let mut identify = IdentifyNamespace { nsze: 100, ..Default::default() };
        identify.lbaf[0].lbads = 9;
        set(&mut identify);
        identify
    }

    fn controller(serial: &str) -> IdentifyController {
        IdentifyController { serial: serial.into(), ..Default::default() }
    }

    #[test]
    fn namespaces_without_identifiers_are_told_apart_by_size_and_serial_number() {
        let (one, other) = (controller("1"), controller("2"));
        let of = |controller, namespace: &IdentifyNamespace| {
            NamespaceTerms::of(controller, namespace).expect("blocks of 512 bytes")
        };
        let plain = namespace(|_| {});
        let same = |a: NamespaceTerms, b: NamespaceTerms| a.difference(&b);
        assert_eq!(same(of(&one, &plain), of(&one, &plain)), None);
        let serial = same(of(&one, &plain), of(&other, &plain)).expect("told");
        assert!(serial.contains("serial number"), "{serial}");
        let longer = namespace(|namespace| namespace.nsze = 101);
        // While there is no path, it may have grown, or its target may have moved to another machine.
        let terms = |namespace| Terms {
            is_discovery: false,
            limits: DataLimits { transfer_bytes: 1, in_capsule_bytes: 0 },
            namespace: Some(namespace),
        };
        let (known, newer) = (terms(of(&one, &plain)), terms(of(&other, &longer)));
        assert!(known.missing_in(&newer).is_some());
        assert_eq!(known.renewed(&newer).missing_in(&newer), None);
        let size = same(of(&one, &plain), of(&one, &longer)).expect("told");
        assert!(size.contains("its size differs"), "{size}");
        // With an identifier, size and serial number do not matter: a namespace may grow, and two targets may share a
        // disk.
        for set in
            [(|namespace| namespace.nguid = [7; 16]) as fn(&mut IdentifyNamespace), |namespace| {
                namespace.eui64 = [7; 8]
            }]
        {
            let named = namespace(set);
            let grown = namespace(|namespace| {
                set(namespace);
                namespace.nsze = 101;
            });
            assert_eq!(same(of(&one, &named), of(&other, &grown)), None);
            assert!(same(of(&one, &named), of(&one, &plain)).is_some());
            assert!(same(of(&one, &plain), of(&one, &named)).is_some());
        }
    }
}
