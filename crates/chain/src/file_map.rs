//! File maps (XRP's metadata digest, §4.1.3): a file's extents and their version.

use crate::bucket_index::Directory;
use std::sync::atomic::{AtomicU64, Ordering};

/// A run of a file that is contiguous in the namespace. All three are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it starts in the file.
    pub file_offset: u64,
    /// Where it starts in the namespace.
    pub device_offset: u64,
    /// Its length, not 0.
    pub length: u64,
}

/// Why a file map was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Offsets or length not a multiple of the logical block, or length 0.
    #[error("extent {0}: not a whole number of logical blocks")]
    Alignment(usize),
    /// An extent begins before its predecessor ends, or its end overflows 64 bits.
    #[error("extent {0}: overlaps its predecessor or is out of order")]
    Order(usize),
    /// A file length that no file system has (above 2^63 - 1).
    #[error("a file length of {0} bytes is impossible")]
    Length(u64),
    /// Blocks outside the namespace.
    #[error("extent {0}: outside the namespace")]
    OutsideNamespace(usize),
}

/// One file's extents, sorted by file offset, with the version the host gave them.
#[derive(Clone, Debug)]
pub struct FileMap {
    serial: u64,
    namespace: u32,
    version: u64,
    length_bytes: u64,
    extents: Box<[Extent]>,
    directory: Directory,
}

impl FileMap {
    /// Checks the extents and makes a map for a file of `length_bytes` in a namespace of
    /// `namespace_bytes` with logical blocks of `block_bytes`. Merges extents that are adjacent
    /// both in the file and in the namespace.
    pub fn new(
        namespace: u32,
        version: u64,
        length_bytes: u64,
        mut extents: Vec<Extent>,
        namespace_bytes: u64,
        block_bytes: u32,
    ) -> Result<FileMap, MapError> {
        if length_bytes > i64::MAX as u64 {
            return Err(MapError::Length(length_bytes));
        }
        let mut free_from = 0;
        for (index, extent) in extents.iter().enumerate() {
            let fields = [extent.file_offset, extent.device_offset, extent.length];
            let aligned = fields.iter().all(|field| field % u64::from(block_bytes) == 0);
            if !aligned || extent.length == 0 {
                return Err(MapError::Alignment(index));
            }
            let end = extent.file_offset.checked_add(extent.length);
            match end {
                Some(end) if extent.file_offset >= free_from => free_from = end,
                _ => return Err(MapError::Order(index)),
            }
            let device_end = extent.device_offset.checked_add(extent.length);
            if device_end.is_none_or(|end| end > namespace_bytes) {
                return Err(MapError::OutsideNamespace(index));
            }
        }
        extents.dedup_by(|next, last| {
            let follows = last.file_offset + last.length == next.file_offset
                && last.device_offset + last.length == next.device_offset;
            if follows {
                last.length += next.length;
            }
            follows
        });
        Ok(FileMap::of(namespace, version, length_bytes, extents))
    }

    /// The same map in place of a former one, with which it agrees wherever both map the file.
    pub(crate) fn in_place_of(self, former: &FileMap) -> FileMap {
        FileMap { serial: former.serial, ..self }
    }

    /// Bytes of memory that the map takes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<FileMap>() + size_of_val(&*self.extents) + self.directory.memory_bytes()
    }

    fn of(namespace: u32, version: u64, length_bytes: u64, extents: Vec<Extent>) -> FileMap {
        let end = extents.last().map_or(0, |last| last.file_offset + last.length);
        let directory = Directory::new(&extents, end, |extent| extent.file_offset);
        let serial = FileMap::next_serial();
        FileMap { serial, namespace, version, length_bytes, extents: extents.into(), directory }
    }

    fn next_serial() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// A number that only this map and its clones have, and no later map of the same file with the same version; never 0.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// The whole of a namespace as one file, version 1.
    pub fn whole_namespace(namespace: u32, namespace_bytes: u64) -> FileMap {
        let extent = Extent { file_offset: 0, device_offset: 0, length: namespace_bytes };
        let extents = if namespace_bytes == 0 { vec![] } else { vec![extent] };
        FileMap::of(namespace, 1, namespace_bytes, extents)
    }

    /// Its extents, in the order of the file.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The namespace the file lies in.
    pub fn namespace(&self) -> u32 {
        self.namespace
    }

    /// The version the host gave this map.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The file's length in bytes.
    pub fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// How many extents it has.
    pub fn extent_count(&self) -> usize {
        self.extents.len()
    }

    /// Where its last extent in the namespace ends, in bytes from the namespace's start.
    pub fn device_end(&self) -> u64 {
        self.extents.iter().map(|e| e.device_offset + e.length).max().unwrap_or(0)
    }

    /// The namespace offset of the byte at `offset`, and the number of contiguous bytes from there
    /// on; `None` if the byte is not mapped.
    #[inline]
    pub fn find(&self, offset: u64) -> Option<(u64, u64)> {
        let index = match self.extents.len() {
            1 => 0,
            _ => self.directory.find(&self.extents, offset, |extent| extent.file_offset)?,
        };
        let extent = self.extents.get(index)?;
        let inside = offset.checked_sub(extent.file_offset)?;
        let left = extent.length.checked_sub(inside).filter(|left| *left > 0)?;
        Some((extent.device_offset + inside, left))
    }

    /// Translates `length` bytes at `offset`: calls `piece` with
    /// (namespace offset, length in bytes) for each contiguous run, in file order. False, perhaps
    /// after some calls, if a byte is not mapped.
    pub fn translate(
        &self,
        mut offset: u64,
        mut length: u64,
        mut piece: impl FnMut(u64, u64),
    ) -> bool {
        while length > 0 {
            let Some((device_offset, left)) = self.find(offset) else { return false };
            let run = left.min(length);
            piece(device_offset, run);
            offset += run;
            length -= run;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(file_offset: u64, device_offset: u64, length: u64) -> Extent {
        Extent { file_offset, device_offset, length }
    }

    fn pieces(map: &FileMap, offset: u64, length: u64) -> Option<Vec<(u64, u64)>> {
        let mut pieces = Vec::new();
        map.translate(offset, length, |at, run| pieces.push((at, run))).then_some(pieces)
    }

    #[test]
    fn reads_cross_extents_but_not_holes() {
        let extents = vec![extent(0, 8192, 512), extent(512, 1024, 1024), extent(2048, 0, 512)];
        let map = FileMap::new(1, 3, 2560, extents, 16384, 512).expect("valid");
        assert_eq!(pieces(&map, 0, 1536), Some(vec![(8192, 512), (1024, 1024)]));
        assert_eq!(pieces(&map, 1024, 512), Some(vec![(1536, 512)]));
        assert_eq!(pieces(&map, 2048, 512), Some(vec![(0, 512)]));
        assert_eq!(pieces(&map, 1536, 512), None);
        assert_eq!(pieces(&map, 1024, 1024), None);
        assert_eq!(pieces(&map, 2560, 512), None);
        assert_eq!(pieces(&map, u64::MAX - 511, 512), None);
        assert!(FileMap::new(1, 1, 1 << 63, vec![], 4096, 512).is_err());
        let whole = FileMap::whole_namespace(1, 4096);
        assert_eq!(pieces(&whole, 512, 1024), Some(vec![(512, 1024)]));
        assert_eq!(pieces(&whole, 4096, 512), None);
        assert_eq!(pieces(&FileMap::whole_namespace(1, 0), 0, 512), None);
    }

    #[test]
    fn neighbours_in_the_file_and_in_the_namespace_are_one_extent() {
        let extents = vec![
            extent(0, 4096, 512),
            extent(512, 4608, 1024),
            extent(1536, 5632, 512),
            // A hole, then a jump backwards, then an adjacent extent.
            extent(2560, 6144, 512),
            extent(3072, 0, 512),
            extent(3584, 512, 512),
        ];
        let map = FileMap::new(1, 1, 4096, extents, 16384, 512).expect("valid");
        let joined = [extent(0, 4096, 2048), extent(2560, 6144, 512), extent(3072, 0, 1024)];
        assert_eq!(map.extents(), joined);
        assert_eq!(pieces(&map, 512, 1536), Some(vec![(4608, 1536)]));
        assert_eq!(pieces(&map, 1536, 1024), None);
        assert_eq!(pieces(&map, 2560, 1536), Some(vec![(6144, 512), (0, 1024)]));
    }

    #[test]
    fn bad_maps_are_refused() {
        let refuse = |extents| FileMap::new(1, 1, 0, extents, 4096, 512).expect_err("bad");
        assert_eq!(refuse(vec![extent(0, 0, 0)]), MapError::Alignment(0));
        assert_eq!(refuse(vec![extent(0, 0, 512), extent(100, 512, 512)]), MapError::Alignment(1));
        assert_eq!(refuse(vec![extent(512, 0, 512), extent(0, 512, 512)]), MapError::Order(1));
        assert_eq!(refuse(vec![extent(0, 0, 1024), extent(512, 0, 512)]), MapError::Order(1));
        assert_eq!(refuse(vec![extent(0, 4096, 512)]), MapError::OutsideNamespace(0));
        assert_eq!(refuse(vec![extent(u64::MAX - 511, 0, 512)]), MapError::Order(0));
        assert_eq!(refuse(vec![extent(0, u64::MAX - 511, 512)]), MapError::OutsideNamespace(0));
    }
}
