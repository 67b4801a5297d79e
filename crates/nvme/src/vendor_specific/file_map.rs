//! The file map object of File Map Set (protocol.md, "Uploads").

use super::{Malformed, malformed};
use crate::bytes::{get, put};

/// File id of the whole namespace, which needs no map (protocol.md).
pub const FILE_ID_NAMESPACE: u32 = 0;
/// The one file id above the range a host may choose (protocol.md).
const FILE_ID_RESERVED: u32 = u32::MAX;

/// A contiguous run of a file in the namespace (protocol.md). All in bytes, multiples of the
/// logical block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the file, in bytes.
    pub file_offset: u64,
    /// Offset in the namespace, in bytes.
    pub device_offset: u64,
    /// Length in bytes, not 0.
    pub length_bytes: u64,
}

/// The location of a file in a namespace (protocol.md).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileMapObject {
    /// File id, 1 to FFFFFFFEh (offset 0).
    pub file: u32,
    /// Namespace id (offset 4).
    pub nsid: u32,
    /// Version; 0 removes the map (offset 8).
    pub version: u64,
    /// Length of the file in bytes (offset 16).
    pub length_bytes: u64,
    /// The extents, sorted by file offset, not overlapping (offset 32 on).
    pub extents: Vec<Extent>,
}

impl FileMapObject {
    /// Size of the fixed part, in bytes.
    pub const HEADER_BYTES: usize = 32;
    /// Size of an extent, in bytes.
    pub const EXTENT_BYTES: usize = 24;

    /// The object that removes the map of `file`.
    #[must_use]
    pub fn removal(nsid: u32, file: u32) -> Self {
        Self { file, nsid, ..Self::default() }
    }

    /// Parses an object. The target checks block alignment and the namespace's size.
    ///
    /// # Errors
    /// [`Malformed`] for an object whose length does not fit its count, a file id that cannot be
    /// set, a removal with contents, a reserved field that is set, and extents that are empty,
    /// unsorted, overlapping, or reach past 2^64 − 1.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let Some((fixed, rest)) = bytes.split_first_chunk::<{ Self::HEADER_BYTES }>() else {
            return malformed(bytes.len());
        };
        let file: u32 = get(fixed, 0);
        let version: u64 = get(fixed, 8);
        let length_bytes: u64 = get(fixed, 16);
        let count: u32 = get(fixed, 24);
        if file == FILE_ID_NAMESPACE || file == FILE_ID_RESERVED {
            return malformed(0);
        }
        if version == 0 && length_bytes != 0 {
            return malformed(16);
        }
        if version == 0 && count != 0 {
            return malformed(24);
        }
        if get::<u32>(fixed, 28) != 0 {
            return malformed(28);
        }
        let (entries, tail) = rest.as_chunks::<{ Self::EXTENT_BYTES }>();
        if entries.len() != count as usize || !tail.is_empty() {
            return malformed(24);
        }
        let extents: Vec<Extent> = entries
            .iter()
            .map(|entry| Extent {
                file_offset: get(entry, 0),
                device_offset: get(entry, 8),
                length_bytes: get(entry, 16),
            })
            .collect();
        check_order(&extents)?;
        Ok(Self { file, nsid: get(fixed, 4), version, length_bytes, extents })
    }

    /// Appends the object to `out`.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let mut fixed = [0; Self::HEADER_BYTES];
        put(&mut fixed, 0, self.file);
        put(&mut fixed, 4, self.nsid);
        put(&mut fixed, 8, self.version);
        put(&mut fixed, 16, self.length_bytes);
        put(&mut fixed, 24, u32::try_from(self.extents.len()).unwrap_or(u32::MAX));
        out.extend_from_slice(&fixed);
        for extent in &self.extents {
            let mut entry = [0; Self::EXTENT_BYTES];
            put(&mut entry, 0, extent.file_offset);
            put(&mut entry, 8, extent.device_offset);
            put(&mut entry, 16, extent.length_bytes);
            out.extend_from_slice(&entry);
        }
    }
}

fn check_order(extents: &[Extent]) -> Result<(), Malformed> {
    let mut file_end = 0;
    for (index, extent) in extents.iter().enumerate() {
        let at = FileMapObject::HEADER_BYTES + index * FileMapObject::EXTENT_BYTES;
        if extent.file_offset < file_end {
            return malformed(at);
        }
        if extent.device_offset.checked_add(extent.length_bytes).is_none() {
            return malformed(at + 8);
        }
        match extent.file_offset.checked_add(extent.length_bytes) {
            Some(end) if extent.length_bytes != 0 => file_end = end,
            _ => return malformed(at + 16),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> FileMapObject {
        let extent = |file_offset, device_offset, length_bytes| Extent {
            file_offset,
            device_offset,
            length_bytes,
        };
        FileMapObject {
            file: 7,
            nsid: 1,
            version: 3,
            length_bytes: 20_000,
            extents: vec![extent(0, 4096, 8192), extent(12_288, 65_536, 8192)],
        }
    }

    #[test]
    fn round_trip_and_every_rule() {
        let mut bytes = Vec::new();
        object().encode_into(&mut bytes);
        assert_eq!(bytes.len(), 32 + 2 * 24);
        assert_eq!(FileMapObject::parse(&bytes), Ok(object()));
        for cut in 0..bytes.len() {
            assert!(FileMapObject::parse(&bytes[..cut]).is_err());
        }
        let at = |change: &dyn Fn(&mut FileMapObject)| {
            let (mut object, mut bytes) = (object(), Vec::new());
            change(&mut object);
            object.encode_into(&mut bytes);
            FileMapObject::parse(&bytes).map_err(|error| error.at)
        };
        assert_eq!(at(&|o| o.file = 0), Err(0));
        assert_eq!(at(&|o| o.file = u32::MAX), Err(0));
        assert_eq!(at(&|o| o.version = 0), Err(16));
        assert_eq!(at(&|o| (o.version, o.length_bytes) = (0, 0)), Err(24));
        assert_eq!(at(&|o| o.extents[1].file_offset = 8191), Err(56));
        assert_eq!(at(&|o| o.extents[1].device_offset = u64::MAX), Err(64));
        assert_eq!(at(&|o| o.extents[0].length_bytes = 0), Err(48));
        let mut removal = Vec::new();
        FileMapObject::removal(1, 7).encode_into(&mut removal);
        assert_eq!(FileMapObject::parse(&removal), Ok(FileMapObject::removal(1, 7)));
    }
}
