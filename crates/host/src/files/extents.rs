//! Turns FIEMAP's result into the extents of a file map.

use super::error::MapRefusal;
use super::placement::Placement;
use super::sys::{self, RawExtent};
use crate::Extent;
use std::fs::File;

/// Flags of `struct fiemap_extent` (Linux, Documentation/filesystems/fiemap.rst).
mod flag {
    pub(super) const LAST: u32 = 0x1;
    pub(super) const UNKNOWN: u32 = 0x2;
    pub(super) const DELALLOC: u32 = 0x4;
    pub(super) const ENCODED: u32 = 0x8;
    pub(super) const ENCRYPTED: u32 = 0x80;
    pub(super) const NOT_ALIGNED: u32 = 0x100;
    pub(super) const INLINE: u32 = 0x200;
    pub(super) const TAIL: u32 = 0x400;
    pub(super) const UNWRITTEN: u32 = 0x800;
}

/// Extents that lead to a refusal, and why. SHARED and MERGED are fine: the bytes are there.
const REFUSED: [(u32, &str); 7] = [
    // DELALLOC comes with UNKNOWN: it gives the better reason, so it comes first.
    (flag::DELALLOC, "the file system has not written it to the device yet"),
    (flag::INLINE, "it is stored inside the inode; larger files are not"),
    (flag::TAIL, "it shares a block with other files"),
    (flag::ENCRYPTED, "it is encrypted on the device"),
    (flag::ENCODED, "it is compressed or otherwise encoded on the device"),
    (flag::NOT_ALIGNED, "it is not a whole number of blocks"),
    (flag::UNKNOWN, "the file system does not report where it is"),
];

/// The bounds to which a file's extents are fitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    /// Length of the file in bytes.
    pub(crate) length_bytes: u64,
    /// Where the file system's device lies in the namespace.
    pub(crate) placement: &'a Placement,
    /// Logical block of the namespace in bytes.
    pub(crate) block_bytes: u32,
    /// Size of the namespace in bytes.
    pub(crate) namespace_bytes: u64,
}

/// All extents of `file` within its length, from as many FIEMAP calls as they need; refuses more
/// than `max`.
pub(crate) fn read(
    file: &File,
    length_bytes: u64,
    max: usize,
) -> Result<Vec<RawExtent>, MapRefusal> {
    let (mut extents, mut start) = (Vec::new(), 0);
    while start < length_bytes {
        let count = sys::fiemap(file, start, &mut |extent| extents.push(*extent))
            .map_err(MapRefusal::io("cannot read the extents (FIEMAP)"))?;
        if extents.len() > max {
            return Err(MapRefusal::TooManyExtents { extents: extents.len(), max });
        }
        let Some(last) = extents.last().filter(|_| count > 0) else { break };
        let next = last.logical.saturating_add(last.length);
        if last.flags & flag::LAST != 0 || next <= start {
            break;
        }
        start = next;
    }
    Ok(extents)
}

/// The map of a file with these extents. Holes and unwritten extents become gaps: to a chain they
/// are outside the file, and only plain reads can read them.
pub(crate) fn fit(raw: &[RawExtent], frame: &Frame<'_>) -> Result<Vec<Extent>, MapRefusal> {
    let block = u64::from(frame.block_bytes);
    // The last block is mapped whole; bytes beyond the end of the file are never returned.
    let end = frame.length_bytes.next_multiple_of(block);
    let mut extents: Vec<Extent> = Vec::new();
    for extent in raw {
        if extent.logical >= frame.length_bytes {
            break;
        }
        let passing = extent.flags & (flag::DELALLOC | flag::UNKNOWN) != 0;
        let offset_bytes = extent.logical;
        let refuse = |why| MapRefusal::Extent { offset_bytes, why, passing };
        if let Some((_, why)) = REFUSED.iter().find(|(flag, _)| extent.flags & flag != 0) {
            return Err(refuse(why));
        }
        let length_bytes = extent.length.min(end - extent.logical);
        let is_written = extent.flags & flag::UNWRITTEN == 0;
        let (mut file_offset, mut refused) = (extent.logical, None);
        let placed = frame.placement.each(
            extent.physical,
            length_bytes,
            &mut |device_offset, length_bytes| {
                let piece = Extent { file_offset, device_offset, length_bytes };
                file_offset += length_bytes;
                match check(&piece, frame) {
                    Ok(()) if is_written && length_bytes > 0 => push(&mut extents, piece),
                    Ok(()) => {}
                    Err(why) => refused = Some(why),
                }
            },
        );
        placed.map_err(|why| MapRefusal::OtherPart { offset_bytes, why })?;
        match refused {
            Some(Misfit::Behind) => return Err(MapRefusal::BehindNamespace { offset_bytes }),
            Some(Misfit::NotAligned) => {
                return Err(refuse("it is not a whole number of logical blocks of the namespace"));
            }
            None => {}
        }
    }
    Ok(extents)
}

/// Why a piece of an extent cannot be mapped.
enum Misfit {
    Behind,
    NotAligned,
}

fn check(piece: &Extent, frame: &Frame<'_>) -> Result<(), Misfit> {
    let end = piece.device_offset.checked_add(piece.length_bytes);
    if end.is_none_or(|end| end > frame.namespace_bytes) {
        return Err(Misfit::Behind);
    }
    let block = u64::from(frame.block_bytes);
    let numbers = [piece.file_offset, piece.device_offset, piece.length_bytes];
    let aligned = numbers.iter().all(|value| value % block == 0);
    if aligned { Ok(()) } else { Err(Misfit::NotAligned) }
}

/// Appends a piece, or extends the last one.
fn push(extents: &mut Vec<Extent>, piece: Extent) {
    match extents.last_mut() {
        Some(last)
            if last.file_offset + last.length_bytes == piece.file_offset
                && last.device_offset + last.length_bytes == piece.device_offset =>
        {
            last.length_bytes += piece.length_bytes;
        }
        _ => extents.push(piece),
    }
}

/// Whether all bytes of `file` that `mapped` contains are still in their places; the file system's device begins at
/// `base_bytes` of the namespace. The file may have grown, and its holes may have been filled.
pub(crate) fn has_kept(file: &File, mapped: &[Extent], base_bytes: u64) -> std::io::Result<bool> {
    let Some(last) = mapped.last() else { return Ok(true) };
    let end = last.file_offset + last.length_bytes;
    let mut kept = Kept { mapped, base_bytes, bytes: 0 };
    let mut start = 0;
    while start < end {
        let mut next = start;
        let count = sys::fiemap(file, start, &mut |extent| {
            kept.count(extent);
            next = extent.logical.saturating_add(extent.length);
        })?;
        if count == 0 || next <= start {
            break;
        }
        start = next;
    }
    Ok(kept.bytes == mapped.iter().map(|extent| extent.length_bytes).sum::<u64>())
}

/// Counts the bytes of a map that are still in their places, extent by extent.
struct Kept<'a> {
    /// The rest of the map, still to be compared.
    mapped: &'a [Extent],
    base_bytes: u64,
    bytes: u64,
}

impl Kept<'_> {
    fn count(&mut self, found: &RawExtent) {
        let refused = REFUSED.iter().any(|(flag, _)| found.flags & flag != 0);
        if refused || found.flags & flag::UNWRITTEN != 0 {
            return;
        }
        let end = found.logical.saturating_add(found.length);
        while let Some((extent, rest)) = self.mapped.split_first() {
            let (begin, length) = (extent.file_offset, extent.length_bytes);
            let (from, to) = (begin.max(found.logical), (begin + length).min(end));
            let device_now =
                found.physical.wrapping_sub(found.logical).wrapping_add(self.base_bytes);
            if from < to && device_now == extent.device_offset.wrapping_sub(begin) {
                self.bytes += to - from;
            }
            if begin + length > end {
                break;
            }
            self.mapped = rest;
        }
    }
}

/// Whether some bytes of the file are in no extent.
pub(crate) fn has_gaps(extents: &[Extent], length_bytes: u64) -> bool {
    let mut covered = 0;
    for extent in extents {
        if extent.file_offset != covered {
            return true;
        }
        covered += extent.length_bytes;
    }
    covered < length_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 1 << 20;
    const FRAME: Frame<'_> = Frame {
        length_bytes: 10_000,
        placement: &Placement::At(BASE),
        block_bytes: 512,
        namespace_bytes: 2 << 20,
    };

    fn raw(logical: u64, physical: u64, length: u64, flags: u32) -> RawExtent {
        RawExtent { logical, physical, length, flags, ..RawExtent::default() }
    }

    fn extent(file_offset: u64, device_offset: u64, length_bytes: u64) -> Extent {
        Extent { file_offset, device_offset, length_bytes }
    }

    #[test]
    fn extents_are_moved_merged_and_cut_at_the_end() {
        let found = [
            raw(0, 0, 4096, 0),
            raw(4096, 4096, 4096, 0x2000),
            raw(8192, 65_536, 65_536, flag::LAST),
            raw(1 << 20, 0, 4096, flag::DELALLOC),
        ];
        let base = BASE;
        let fitted = fit(&found, &FRAME).expect("good");
        // 10,000 bytes end in block 19.
        assert_eq!(fitted, [extent(0, base, 8192), extent(8192, base + 65_536, 2048)]);
        assert!(!has_gaps(&fitted, 10_000));
        assert!(has_gaps(&fitted, 10_241) && has_gaps(&fitted[1..], 10_000));
    }

    #[test]
    fn a_map_holds_as_long_as_its_bytes_are_in_their_places() {
        let base = BASE;
        let mapped = [extent(0, base, 8192), extent(16_384, base + 65_536, 4096)];
        let kept = |found: &[RawExtent]| {
            let mut kept = Kept { mapped: &mapped, base_bytes: base, bytes: 0 };
            found.iter().for_each(|extent| kept.count(extent));
            kept.bytes
        };
        assert_eq!(kept(&[raw(0, 0, 8192, 0), raw(16_384, 65_536, 4096, flag::LAST)]), 12_288);
        // In pieces, with the hole filled, and longer than before.
        let grown = [
            raw(0, 0, 4096, 0),
            raw(4096, 4096, 4096, 0),
            raw(8192, 1 << 19, 8192, 0),
            raw(16_384, 65_536, 1 << 20, flag::LAST),
        ];
        assert_eq!(kept(&grown), 12_288);
        // One extent over the hole and both sides: only the first part is in its place.
        assert_eq!(kept(&[raw(0, 0, 1 << 20, flag::LAST)]), 8192);
        // Moved, missing, and unwritten extents.
        assert_eq!(kept(&[raw(0, 4096, 8192, 0), raw(16_384, 65_536, 4096, 0)]), 4096);
        assert_eq!(kept(&[raw(4096, 4096, 4096, 0)]), 4096);
        assert_eq!(kept(&[raw(0, 0, 8192, flag::UNWRITTEN)]), 0);
        assert_eq!(kept(&[raw(0, 0, 8192, flag::DELALLOC)]), 0);
        assert_eq!(kept(&[]), 0);
    }

    #[test]
    fn unwritten_extents_are_gaps() {
        let found = [raw(0, 0, 4096, flag::UNWRITTEN), raw(8192, 8192, 4096, 0)];
        let fitted = fit(&found, &FRAME).expect("good");
        assert_eq!(fitted, [extent(8192, BASE + 8192, 2048)]);
        assert!(has_gaps(&fitted, 10_000) && has_gaps(&[], 1) && !has_gaps(&[], 0));
    }

    #[test]
    fn only_refusals_of_unwritten_extents_are_passing() {
        let passes = |extent: RawExtent| fit(&[extent], &FRAME).expect_err("refused").is_passing();
        assert!(passes(raw(0, 0, 4096, flag::DELALLOC | flag::UNKNOWN)));
        assert!(passes(raw(0, 0, 4096, flag::UNKNOWN)));
        assert!(!passes(raw(0, 0, 4096, flag::INLINE)));
        assert!(!passes(raw(0, 1 << 20, 4096, 0)) && !passes(raw(0, 100, 4096, 0)));
    }

    #[test]
    fn every_reason_to_refuse() {
        let why = |extent: RawExtent| match fit(&[extent], &FRAME) {
            Err(MapRefusal::Extent { why, .. }) => why,
            other => panic!("{other:?}"),
        };
        for (flags, reason) in REFUSED {
            assert_eq!(why(raw(0, 0, 4096, flags | flag::LAST)), reason);
        }
        assert_eq!(why(raw(0, 0, 4096, flag::DELALLOC | flag::UNKNOWN)), REFUSED[0].1);
        for behind in [1 << 20, u64::MAX] {
            let refused = fit(&[raw(0, behind, 4096, 0)], &FRAME);
            assert!(matches!(refused, Err(MapRefusal::BehindNamespace { offset_bytes: 0 })));
        }
        assert!(why(raw(100, 512, 4096, 0)).contains("a whole number of logical blocks"));
        assert!(why(raw(0, 100, 4096, 0)).contains("a whole number of logical blocks"));
    }
}
