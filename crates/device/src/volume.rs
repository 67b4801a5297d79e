//! Files or block devices as one namespace: a single one, several concatenated, or several striped.

use crate::file::{FileError, FileNamespace, Lock};
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// How the blocks of a namespace are distributed over several files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// First all of the first file, then all of the second, and so on.
    Concatenated,
    /// Round-robin in chunks of `chunk_bytes`, a multiple of the logical block: RAID 0.
    Striped {
        /// Size of a chunk.
        chunk_bytes: u64,
    },
}

/// Consecutive bytes of an operation that lie in one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The file, for the ring.
    pub fd: RawFd,
    /// Where the bytes begin in the file.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

/// Open files or block devices that form one namespace.
#[derive(Debug)]
pub struct Volume {
    pieces: Vec<FileNamespace>,
    map: PieceMap,
    disks: Vec<u64>,
    /// Held while a thread looks for lost writes.
    looking: Mutex<()>,
}

/// Maps bytes of the namespace to its files.
#[derive(Debug)]
enum PieceMap {
    /// The start of each piece. The last piece has no end, because it may grow.
    Concatenated(Vec<u64>),
    Striped {
        chunk_bytes: u64,
        count: u64,
    },
}

impl PieceMap {
    /// Calls `part` with (piece, offset in the piece, length) for each run of the range, in order.
    fn parts(&self, mut offset: u64, mut length: u64, mut part: impl FnMut(usize, u64, u64)) {
        while length > 0 {
            let (piece, at, contiguous) = match self {
                PieceMap::Concatenated(starts) => {
                    let piece = starts.partition_point(|start| *start <= offset) - 1;
                    let end = starts.get(piece + 1).copied().unwrap_or(u64::MAX);
                    (piece, offset - starts[piece], end - offset)
                }
                PieceMap::Striped { chunk_bytes, count } => {
                    let (chunk, within) = (offset / chunk_bytes, offset % chunk_bytes);
                    let at = chunk / count * chunk_bytes + within;
                    ((chunk % count) as usize, at, chunk_bytes - within)
                }
            };
            let run = contiguous.min(length);
            part(piece, at, run);
            offset += run;
            length -= run;
        }
    }

    /// The same with at most one run for each piece: the bytes of a range that are in one piece are contiguous there.
    fn extents(&self, offset: u64, length: u64, mut part: impl FnMut(usize, u64, u64)) {
        let PieceMap::Striped { chunk_bytes, count } = *self else {
            return self.parts(offset, length, part);
        };
        // How many bytes of a piece precede an offset of the namespace.
        let before = |piece: u64, place: u64| {
            let (row, rest) = (place / (chunk_bytes * count), place % (chunk_bytes * count));
            row * chunk_bytes + rest.saturating_sub(piece * chunk_bytes).min(chunk_bytes)
        };
        for piece in 0..count {
            let (from, to) = (before(piece, offset), before(piece, offset + length));
            if to > from {
                part(piece as usize, from, to - from);
            }
        }
    }

    /// The size of the namespace if the pieces have these sizes.
    fn size_bytes(&self, sizes: &[u64]) -> u64 {
        match self {
            PieceMap::Concatenated(starts) => {
                starts.last().unwrap_or(&0) + sizes.last().unwrap_or(&0)
            }
            PieceMap::Striped { chunk_bytes, count } => {
                let least = sizes.iter().min().unwrap_or(&0);
                least / chunk_bytes * chunk_bytes * count
            }
        }
    }
}

impl Volume {
    fn of(pieces: Vec<FileNamespace>, map: PieceMap) -> Volume {
        let mut disks: Vec<u64> = pieces.iter().map(FileNamespace::disk).collect();
        disks.sort_unstable();
        disks.dedup();
        Volume { pieces, map, disks, looking: Mutex::default() }
    }

    /// Device numbers of the file systems and block devices with its files, each once, in ascending order.
    pub fn disks(&self) -> &[u64] {
        &self.disks
    }

    /// A volume of one file.
    pub fn single(file: FileNamespace) -> Volume {
        Volume::of(vec![file], PieceMap::Concatenated(vec![0]))
    }

    /// Changes the lock of all files.
    ///
    /// # Errors
    /// As [`FileNamespace::lock`].
    pub fn lock(&self, how: Lock) -> Result<(), FileError> {
        self.pieces.iter().try_for_each(|piece| piece.lock(how))
    }

    /// Opens several files, each of `size_bytes`. A striped volume leaves everything beyond whole chunks and beyond the
    /// size of the smallest file unused.
    ///
    /// # Errors
    /// As [`FileNamespace::open`]; a striped file that is smaller than a chunk is too small.
    pub fn open(
        paths: &[PathBuf],
        size_bytes: Option<u64>,
        block_bytes: u32,
        layout: Layout,
    ) -> Result<Volume, FileError> {
        Volume::open_as(paths, size_bytes, block_bytes, layout, Lock::Alone)
    }

    /// The same with the given lock.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_as(
        paths: &[PathBuf],
        size_bytes: Option<u64>,
        block_bytes: u32,
        layout: Layout,
        how: Lock,
    ) -> Result<Volume, FileError> {
        let open = |path: &PathBuf| FileNamespace::open_as(path, size_bytes, block_bytes, how);
        let pieces = paths.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let map = match layout {
            Layout::Concatenated => {
                let ends = pieces.iter().scan(0, |end, piece| {
                    *end += piece.size_bytes();
                    Some(*end)
                });
                PieceMap::Concatenated([0].into_iter().chain(ends).take(pieces.len()).collect())
            }
            Layout::Striped { chunk_bytes } => {
                let count = pieces.len() as u64;
                PieceMap::Striped { chunk_bytes, count }
            }
        };
        let volume = Volume::of(pieces, map);
        volume.check_chunks(|piece| Ok(piece.size_bytes()))?;
        Ok(volume)
    }

    /// Rejects files of a striped volume that are smaller than a chunk. Returns the sizes.
    fn check_chunks(
        &self,
        size: impl Fn(&FileNamespace) -> Result<u64, FileError>,
    ) -> Result<Vec<u64>, FileError> {
        let want = match self.map {
            PieceMap::Concatenated(_) => 0,
            PieceMap::Striped { chunk_bytes, .. } => chunk_bytes,
        };
        let checked = self.pieces.iter().map(|piece| match size(piece)? {
            have if have < want => {
                Err(FileError::TooSmall { path: piece.path().to_owned(), have, want })
            }
            have => Ok(have),
        });
        checked.collect()
    }

    /// Where each file of a concatenation begins in the namespace, in bytes; empty for a striped volume.
    pub fn starts(&self) -> &[u64] {
        match &self.map {
            PieceMap::Concatenated(starts) => starts,
            PieceMap::Striped { .. } => &[],
        }
    }

    /// Its size in bytes when it was opened, whole blocks.
    pub fn size_bytes(&self) -> u64 {
        let sizes: Vec<u64> = self.pieces.iter().map(FileNamespace::size_bytes).collect();
        self.map.size_bytes(&sizes)
    }

    /// Bytes of its files that are not part of it, because a striped volume takes from each file only as many whole
    /// chunks as the smallest has.
    pub fn unused_bytes(&self) -> u64 {
        let all: u64 = self.pieces.iter().map(FileNamespace::size_bytes).sum();
        all.saturating_sub(self.size_bytes())
    }

    /// The size it would have if `size_bytes` were passed for each file (see [`FileNamespace::settle_size`]).
    ///
    /// # Errors
    /// As [`open`](Self::open), and if blocks would move.
    pub fn settle_size(&self, size_bytes: Option<u64>) -> Result<u64, FileError> {
        let before_last = match self.map {
            PieceMap::Concatenated(_) => self.pieces.len() - 1,
            PieceMap::Striped { .. } => 0,
        };
        for piece in &self.pieces[..before_last] {
            let wanted = match size_bytes {
                Some(bytes) => piece.whole_blocks(bytes),
                None => piece.settle_size(None)?,
            };
            if wanted != piece.size_bytes() {
                return Err(FileError::BlocksMove { path: piece.path().to_owned() });
            }
        }
        let sizes = self.check_chunks(|piece| piece.settle_size(size_bytes))?;
        Ok(self.map.size_bytes(&sizes))
    }

    /// Whether I/O bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.pieces.iter().all(FileNamespace::is_direct)
    }

    /// Calls `lost` if the kernel has lost writes in the page cache since the last call. When this returns after a sync
    /// has ended, on any thread, `lost` has been called for all writes that were lost before the sync ended.
    pub fn look_for_lost_writes(&self, lost: impl FnOnce()) {
        if self.is_direct() {
            return;
        }
        let _looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        // Query every piece: one that is skipped now would report the same loss later.
        if self.pieces.iter().filter(|piece| piece.has_lost_writes()).count() > 0 {
            lost();
        }
    }

    /// Whether [`Ring::zero_parts`](crate::Ring::zero_parts) works on this volume.
    pub fn punches_holes(&self) -> bool {
        self.pieces.iter().all(FileNamespace::punches_holes)
    }

    /// Whether zeroing can deallocate blocks (see [`FileNamespace::gives_back`]).
    pub fn gives_back(&self) -> bool {
        self.pieces.iter().all(FileNamespace::gives_back)
    }

    /// Whether zeroing can keep blocks allocated (see [`FileNamespace::keeps_blocks`]).
    pub fn keeps_blocks(&self) -> bool {
        self.pieces.iter().all(FileNamespace::keeps_blocks)
    }

    /// Sets `parts` to the parts of a range, in the order of its bytes.
    pub fn parts(&self, offset: u64, length: u64, parts: &mut Vec<Part>) {
        parts.clear();
        self.map.parts(offset, length, |piece, offset, length| {
            parts.push(Part { fd: self.pieces[piece].fd(), offset, length });
        });
    }

    /// Number of files.
    pub fn pieces(&self) -> u64 {
        self.pieces.len() as u64
    }

    /// Number of [parts](Self::parts) of a range; at least the number of its [extents](Self::extents).
    #[inline]
    pub fn count(&self, offset: u64, length: u64) -> u64 {
        match (&self.map, self.pieces.len()) {
            (_, 1) => 1,
            (PieceMap::Striped { chunk_bytes, .. }, _) => {
                (offset % chunk_bytes + length).div_ceil(*chunk_bytes).max(1)
            }
            (map, _) => {
                let mut count = 0;
                map.parts(offset, length, |_, _, _| count += 1);
                count.max(1)
            }
        }
    }

    /// Sets `parts` to the extent of a range in each piece, not in the order of its bytes.
    pub fn extents(&self, offset: u64, length: u64, parts: &mut Vec<Part>) {
        parts.clear();
        self.map.extents(offset, length, |piece, offset, length| {
            parts.push(Part { fd: self.pieces[piece].fd(), offset, length });
        });
    }

    /// Sets `parts` to all files, without ranges.
    pub fn whole(&self, parts: &mut Vec<Part>) {
        parts.clear();
        parts.extend(self.pieces.iter().map(|piece| Part { fd: piece.fd(), offset: 0, length: 0 }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each byte of the namespace is in one place, and no two bytes share a place; parts and extents cover the same
    /// bytes.
    #[test]
    fn every_byte_has_its_place() {
        // Sizes of a few bytes, so that all ranges can be tried.
        let concatenated = PieceMap::Concatenated(vec![0, 5, 6]);
        let striped = PieceMap::Striped { chunk_bytes: 3, count: 4 };
        for (map, sizes, size) in
            [(concatenated, vec![5u64, 1, 7], 13), (striped, vec![9, 6, 8, 7], 24)]
        {
            assert_eq!(map.size_bytes(&sizes), size);
            let place = |at| {
                let mut places = Vec::new();
                map.parts(at, 1, |piece, offset, length| places.push((piece, offset, length)));
                let [(piece, offset, 1)] = places[..] else { panic!("{places:?}") };
                assert!(offset < sizes[piece]);
                (piece, offset)
            };
            let places: Vec<(usize, u64)> = (0..size).map(place).collect();
            let unique: std::collections::BTreeSet<_> = places.iter().collect();
            assert_eq!(unique.len(), places.len());
            for from in 0..size {
                for to in from..=size {
                    let mut bytes = Vec::new();
                    let mut add = |piece, offset: u64, length: u64| {
                        assert!(length > 0);
                        bytes.extend((offset..offset + length).map(|at| (piece, at)));
                    };
                    map.parts(from, to - from, &mut add);
                    assert_eq!(bytes, places[from as usize..to as usize]);
                    let mut covered = Vec::new();
                    let mut pieces = Vec::new();
                    map.extents(from, to - from, |piece, offset, length| {
                        pieces.push(piece);
                        covered.extend((offset..offset + length).map(|at| (piece, at)));
                    });
                    bytes.sort_unstable();
                    covered.sort_unstable();
                    assert_eq!(bytes, covered);
                    pieces.dedup();
                    assert!(pieces.is_sorted() && pieces.len() <= sizes.len());
                }
            }
        }
    }

    #[test]
    fn sizes_are_whole_chunks_and_blocks_do_not_move() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        let grow = |name: &str, bytes| {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path(name));
            file.and_then(|file| file.set_len(bytes)).expect("it grows");
        };
        let paths = ["a", "b", "c"].map(path);
        grow("a", 40_000);
        grow("b", 20_000);
        grow("c", 33_333);
        let striped = Layout::Striped { chunk_bytes: 16384 };
        let volume = Volume::open(&paths, None, 512, striped).expect("it opens");
        assert_eq!((volume.size_bytes(), volume.unused_bytes()), (3 * 16384, 93184 - 49152));
        grow("b", 50_000);
        assert_eq!(volume.settle_size(None).expect("files"), 6 * 16384);
        assert_eq!(volume.settle_size(Some(65536)).expect("files"), 12 * 16384);
        let small = volume.settle_size(Some(8192)).expect_err("no whole chunk");
        assert!(matches!(small, FileError::TooSmall { want: 16384, .. }), "{small}");
        drop(volume);
        let huge = Layout::Striped { chunk_bytes: 1 << 20 };
        let error = Volume::open(&paths, None, 512, huge).expect_err("no whole chunk");
        assert!(matches!(error, FileError::TooSmall { have: 65536, .. }), "{error}");

        let volume = Volume::open(&paths, None, 4096, Layout::Concatenated).expect("it opens");
        assert_eq!((volume.size_bytes(), volume.unused_bytes()), (3 * 65536, 0));
        assert_eq!(volume.starts(), [0, 65536, 2 * 65536]);
        grow("c", 70_000);
        assert_eq!(volume.settle_size(None).expect("files"), 3 * 65536 + 4096);
        grow("a", 100_000);
        let moves = volume.settle_size(None).expect_err("the next start would move blocks");
        assert!(matches!(moves, FileError::BlocksMove { .. }), "{moves}");
        let moves = volume.settle_size(Some(1 << 20)).expect_err("blocks would move");
        assert!(matches!(moves, FileError::BlocksMove { .. }), "{moves}");
        assert_eq!(std::fs::metadata(path("a")).expect("a file").len(), 100_000, "untouched");
    }
}
