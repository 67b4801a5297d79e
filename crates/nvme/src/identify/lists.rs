//! Lists that Identify returns: active namespaces and namespace descriptors.

use super::IDENTIFY_BYTES;
use crate::bytes::{get, put};
use thiserror::Error;

/// Most namespace identifiers of one list (NVMe Base 2.0 §5.17.2.2).
const LIST_ENTRIES: usize = IDENTIFY_BYTES / 4;

/// Active namespace list (NVMe Base 2.0 §5.17.2.2): the first 1024 of `active` (ascending, none 0)
/// that are greater than `after`.
#[must_use]
pub fn namespace_list(active: impl IntoIterator<Item = u32>, after: u32) -> [u8; IDENTIFY_BYTES] {
    let mut bytes = [0; IDENTIFY_BYTES];
    let wanted = active.into_iter().filter(|&nsid| nsid > after).take(LIST_ENTRIES);
    for (index, nsid) in wanted.enumerate() {
        put(&mut bytes, index * 4, nsid);
    }
    bytes
}

/// The identifiers of an active namespace list, up to the first zero (NVMe Base 2.0 §5.17.2.2).
pub fn parse_namespace_list(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.as_chunks::<4>().0.iter().map(|nsid| u32::from_le_bytes(*nsid)).take_while(|&n| n != 0)
}

/// One namespace identification descriptor (NVMe Base 2.0 §5.17.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceDescriptor {
    /// NIDT 1h: IEEE extended unique identifier.
    Eui64([u8; 8]),
    /// NIDT 2h: namespace globally unique identifier.
    Nguid([u8; 16]),
    /// NIDT 3h: UUID.
    Uuid([u8; 16]),
    /// NIDT 4h: command set identifier; 0 is NVM.
    CommandSet(u8),
    /// Another type: its number.
    Unknown(u8),
}

/// The list of `descriptors` as CNS 03h returns it (NVMe Base 2.0 §5.17.2.3). Unknown descriptors
/// are left out.
#[must_use]
pub fn namespace_descriptors(descriptors: &[NamespaceDescriptor]) -> [u8; IDENTIFY_BYTES] {
    let mut bytes = [0; IDENTIFY_BYTES];
    let mut at = 0;
    for descriptor in descriptors {
        let (kind, value): (u8, &[u8]) = match descriptor {
            NamespaceDescriptor::Eui64(id) => (1, id),
            NamespaceDescriptor::Nguid(id) => (2, id),
            NamespaceDescriptor::Uuid(id) => (3, id),
            NamespaceDescriptor::CommandSet(csi) => (4, std::slice::from_ref(csi)),
            NamespaceDescriptor::Unknown(_) => continue,
        };
        let Some(place) = bytes.get_mut(at..at + 4 + value.len()) else { break };
        put(place, 0, kind);
        put(place, 1, value.len() as u8);
        place[4..].copy_from_slice(value);
        at += 4 + value.len();
    }
    bytes
}

/// A descriptor list that contradicts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("namespace descriptor at byte {at} has length {length_bytes}, which is wrong for its type")]
pub struct NamespaceDescriptorError {
    /// Offset of the descriptor in bytes.
    pub at: usize,
    /// The length it gives (NIDL).
    pub length_bytes: u8,
}

/// Parses a descriptor list (NVMe Base 2.0 §5.17.2.3).
///
/// # Errors
/// A descriptor that reaches past the end, or whose length is not that of its type.
pub fn parse_namespace_descriptors(
    bytes: &[u8; IDENTIFY_BYTES],
) -> Result<Vec<NamespaceDescriptor>, NamespaceDescriptorError> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(&[kind, length_bytes]) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        if length_bytes == 0 {
            break;
        }
        let value = at + 4;
        let descriptor = match (kind, length_bytes) {
            (1, 8) => NamespaceDescriptor::Eui64(get(bytes, value)),
            (2, 16) => NamespaceDescriptor::Nguid(get(bytes, value)),
            (3, 16) => NamespaceDescriptor::Uuid(get(bytes, value)),
            (4, 1) => NamespaceDescriptor::CommandSet(get(bytes, value)),
            (1..=4, _) => return Err(NamespaceDescriptorError { at, length_bytes }),
            _ => NamespaceDescriptor::Unknown(kind),
        };
        if value + usize::from(length_bytes) > bytes.len() {
            return Err(NamespaceDescriptorError { at, length_bytes });
        }
        found.push(descriptor);
        at = value + usize::from(length_bytes);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_round_trip() {
        let bytes = namespace_list([1, 2, 7, 9], 1);
        assert_eq!(parse_namespace_list(&bytes).collect::<Vec<_>>(), [2, 7, 9]);
        let all = namespace_list(1..=5000, 0);
        assert_eq!(parse_namespace_list(&all).count(), 1024);
    }

    #[test]
    fn descriptors_round_trip_and_bad_lengths() {
        let descriptors = [
            NamespaceDescriptor::Nguid([9; 16]),
            NamespaceDescriptor::Uuid([3; 16]),
            NamespaceDescriptor::CommandSet(0),
        ];
        let mut bytes = namespace_descriptors(&descriptors);
        assert_eq!(bytes[..4], [2, 16, 0, 0]);
        assert_eq!(parse_namespace_descriptors(&bytes).unwrap(), descriptors);
        bytes[1] = 15;
        let error = NamespaceDescriptorError { at: 0, length_bytes: 15 };
        assert_eq!(parse_namespace_descriptors(&bytes), Err(error));
        let full = [0xFF; IDENTIFY_BYTES];
        assert!(parse_namespace_descriptors(&full).is_err());
    }
}
