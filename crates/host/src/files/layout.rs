//! The layout of a file, with the data to tell whether it still holds.

use super::device::NamespaceDevice;
use super::error::MapRefusal;
use super::extents::{self, Frame};
use super::placement::Placement;
use super::sys::{self, RawExtent};
use crate::{Extent, NamespaceInfo};
use rustix::fs::{AtFlags, StatxAttributes, StatxFlags, fstatfs, major, makedev, minor, statx};
use rustix::time::{ClockId, clock_gettime};
use std::fs::{self, File};
use std::io;
use std::time::Duration;

const EXT4_MAGIC: u64 = 0xEF53;
const XFS_MAGIC: u64 = 0x5846_5342;
/// `FS_JOURNAL_DATA_FL`: data is written to the journal first, and to its place some time later.
const INODE_JOURNAL_DATA: u32 = 0x4000;
/// `FS_VERITY_FL`: the kernel compares what is read with the file's Merkle tree.
const INODE_VERITY: u32 = 0x0010_0000;
/// `FS_XFLAG_REALTIME`: data is on a second device.
const XFLAG_REALTIME: u32 = 0x1;

/// How often a changing file is examined at most.
const ATTEMPTS: u32 = 8;
/// Pause between reads of the clock: less than a tick.
const TICK_PAUSE: Duration = Duration::from_millis(1);
/// A change time is in the future if the clock has not passed it after this many pauses. A tick is
/// at most 10 ms.
const TICK_PAUSES: u32 = 50;

/// The fields of an inode that change whenever its data or blocks change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChangeMark {
    /// Length in bytes.
    pub(crate) length_bytes: u64,
    /// Change time, seconds and ns.
    ctime: (i64, u32),
    device: u64,
    attributes: StatxAttributes,
}

/// The kind of a file system that can be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// ext4: under a lease its blocks stay the file's, unless the file is truncated by an open with `O_RDONLY` and
    /// `O_TRUNC`, through an overlay, or by the kernel's NFS server.
    Ext4,
    /// XFS: deduplication moves a file's data in spite of a lease, unless the file is immutable.
    Xfs,
}

/// The namespace: its device on this machine, and its data from the target.
struct Place<'a> {
    namespace: &'a NamespaceDevice,
    info: &'a NamespaceInfo,
}

/// The place of a file in a namespace at one moment.
#[derive(Clone, Debug)]
pub struct FileLayout {
    pub(crate) mark: ChangeMark,
    pub(crate) file_system: FileSystem,
    placement: Placement,
    raw: Vec<RawExtent>,
    extents: Vec<Extent>,
    /// The extents by their places on the file system's device, if that is a volume; otherwise empty.
    on_volume: Vec<Extent>,
}

impl FileLayout {
    /// Length of the file in bytes.
    #[must_use]
    pub const fn length_bytes(&self) -> u64 {
        self.mark.length_bytes
    }

    /// The extents, by file offset. Bytes in no extent are holes, or allocated and never written.
    #[must_use]
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Whether some bytes of the file are in no extent. Plain reads see zeroes there; chains at a
    /// target cannot read them.
    #[must_use]
    pub fn has_gaps(&self) -> bool {
        extents::has_gaps(&self.extents, self.mark.length_bytes)
    }

    /// The file system that the file is on.
    #[must_use]
    pub const fn file_system(&self) -> FileSystem {
        self.file_system
    }

    /// Whether change time, length and extents of `file` are unchanged, and its volume has not moved.
    pub(crate) fn holds(&self, file: &File) -> bool {
        // Compare the extents before the change mark: if the extents were changed and changed back,
        // the mark has changed too.
        let same = extents::read(file, self.mark.length_bytes, usize::MAX)
            .is_ok_and(|raw| raw == self.raw);
        same && mark(file).is_ok_and(|mark| mark == self.mark) && self.is_in_place()
    }

    /// Whether all bytes of `file` that this layout maps are still in their places. The file may have grown.
    pub(crate) fn has_kept(&self, file: &File) -> bool {
        let (extents, base_bytes) = match self.placement.base() {
            Some(base_bytes) => (&self.extents, base_bytes),
            None => (&self.on_volume, 0),
        };
        let is_whole = sys::length_bytes(file).is_ok_and(|now| now >= self.length_bytes());
        is_whole
            && extents::has_kept(file, extents, base_bytes).is_ok_and(|kept| kept)
            && self.is_in_place()
    }

    /// Whether the file system's device has not moved: volumes can be moved while they are in use.
    pub(crate) fn is_in_place(&self) -> bool {
        self.placement.holds()
    }

    /// The layout from the change mark and FIEMAP extents of a file.
    fn new(
        mark: ChangeMark,
        file_system: FileSystem,
        raw: Vec<RawExtent>,
        place: &Place<'_>,
    ) -> Result<Self, MapRefusal> {
        let placement = place.namespace.placement_of(mark.device)?;
        let frame = Frame {
            length_bytes: mark.length_bytes,
            placement: &placement,
            block_bytes: place.info.block_bytes,
            namespace_bytes: place.info.size_bytes(),
        };
        let extents = extents::fit(&raw, &frame)?;
        let on_volume = match placement.base() {
            Some(_) => Vec::new(),
            None => {
                let device = &Placement::At(0);
                extents::fit(
                    &raw,
                    &Frame { placement: device, namespace_bytes: u64::MAX, ..frame },
                )?
            }
        };
        Ok(Self { mark, file_system, placement, raw, extents, on_volume })
    }

    /// Whether `file` is longer than in this layout, or a gap has been filled.
    pub(crate) fn has_grown(&self, file: &File) -> bool {
        let is_longer = || sys::length_bytes(file).is_ok_and(|now| now > self.length_bytes());
        let is_fuller = || {
            extents::read(file, self.length_bytes(), usize::MAX).is_ok_and(|raw| raw != self.raw)
        };
        is_longer() || self.has_gaps() && is_fuller()
    }
}

/// Finds where `file` lies in the namespace `info`, which is `namespace` on this machine. Dirty
/// pages are written back first.
///
/// # Errors
/// [`MapRefusal`] says what cannot be mapped and why.
pub fn file_layout(
    file: &File,
    namespace: &NamespaceDevice,
    info: &NamespaceInfo,
) -> Result<FileLayout, MapRefusal> {
    file_layout_within(file, namespace, info, usize::MAX)
}

/// The same, for files whose owner is not trusted: refuses a file with more than `extents_max` extents, without reading
/// all of them.
///
/// # Errors
/// Those of [`file_layout`].
pub fn file_layout_within(
    file: &File,
    namespace: &NamespaceDevice,
    info: &NamespaceInfo,
    extents_max: usize,
) -> Result<FileLayout, MapRefusal> {
    let file_system = admissible(file)?;
    let mut refusal = MapRefusal::Changing;
    for _ in 0..ATTEMPTS {
        let before = mark(file)?;
        wait_for_tick(&before)?;
        sys::write_back(file).map_err(MapRefusal::NotWritten)?;
        let raw = extents::read(file, before.length_bytes, extents_max)?;
        if mark(file)? != before {
            continue;
        }
        match FileLayout::new(before, file_system, raw, &Place { namespace, info }) {
            // The file was written between the write-back and FIEMAP.
            Err(error) if error.is_passing() => refusal = error,
            found => return found,
        }
    }
    Err(refusal)
}

/// Finds where `file` lies, for a file that only this process writes, past the page cache. The change time is ignored,
/// because each write changes it.
///
/// # Errors
/// Those of [`file_layout`].
pub(crate) fn own_file_layout(
    file: &File,
    namespace: &NamespaceDevice,
    info: &NamespaceInfo,
) -> Result<FileLayout, MapRefusal> {
    let file_system = admissible(file)?;
    // The page cache may have dirty pages from before the caller began to bypass it.
    sys::write_back(file).map_err(MapRefusal::NotWritten)?;
    let mark = mark(file)?;
    let raw = extents::read(file, mark.length_bytes, usize::MAX)?;
    FileLayout::new(mark, file_system, raw, &Place { namespace, info })
}

/// The change mark of `file` now.
pub(crate) fn mark(file: &File) -> Result<ChangeMark, MapRefusal> {
    let wanted = StatxFlags::CTIME | StatxFlags::SIZE;
    let found = statx(file, "", AtFlags::EMPTY_PATH, wanted)
        .map_err(|error| MapRefusal::io("cannot examine the file")(error.into()))?;
    Ok(ChangeMark {
        length_bytes: found.stx_size,
        ctime: (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec),
        device: makedev(found.stx_dev_major, found.stx_dev_minor),
        attributes: found.stx_attributes,
    })
}

/// Waits until the kernel's coarse clock, which stamps changes, has passed the change time, so that
/// a later change gets another one. Returns an error rather than wait for the rest of a second.
fn wait_for_tick(mark: &ChangeMark) -> Result<(), MapRefusal> {
    for _ in 0..TICK_PAUSES {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        match is_past((now.tv_sec, now.tv_nsec as u32), mark.ctime) {
            Some(true) => return Ok(()),
            Some(false) => std::thread::sleep(TICK_PAUSE),
            None => return Err(MapRefusal::JustChanged),
        }
    }
    Err(MapRefusal::FutureChangeTime)
}

/// Whether a change at `now` gets another change time than `ctime`. None if changes may get the same time for the rest
/// of the second: 128-byte inodes of ext4 keep whole seconds, and there is no way to ask for the resolution.
fn is_past(now: (i64, u32), ctime: (i64, u32)) -> Option<bool> {
    let (second, nanosecond) = ctime;
    if nanosecond == 0 && now.0 == second {
        return None;
    }
    Some(now > ctime)
}

/// Refuses files whose bytes are not always at the places that FIEMAP reports.
pub(crate) fn admissible(file: &File) -> Result<FileSystem, MapRefusal> {
    let metadata = file.metadata().map_err(MapRefusal::io("cannot examine the file"))?;
    if !metadata.is_file() {
        return Err(MapRefusal::NotRegular);
    }
    let system = fstatfs(file)
        .map_err(|error| MapRefusal::io("cannot determine the file system")(error.into()))?;
    let file_system = match system.f_type as u64 {
        EXT4_MAGIC => FileSystem::Ext4,
        XFS_MAGIC => FileSystem::Xfs,
        other => return Err(MapRefusal::FileSystem(other)),
    };
    let mark = mark(file)?;
    let flags = sys::inode_flags(file).map_err(MapRefusal::io("cannot read the inode's flags"))?;
    check_inode(mark.attributes, flags)?;
    match file_system {
        FileSystem::Ext4 => ext4_keeps_data_in_place(mark.device)?,
        FileSystem::Xfs => {
            let flags = sys::extended_flags(file)
                .map_err(MapRefusal::io("cannot read the file's attributes"))?;
            if flags & XFLAG_REALTIME != 0 {
                return Err(MapRefusal::Inode("the file's data is on XFS's realtime device"));
            }
        }
    }
    Ok(file_system)
}

/// Refuses an inode by its attributes (statx) and flags (`FS_IOC_GETFLAGS`), if the kernel does
/// more to read it than fetch the bytes where FIEMAP says.
fn check_inode(attributes: StatxAttributes, flags: u32) -> Result<(), MapRefusal> {
    if attributes.contains(StatxAttributes::ENCRYPTED) {
        return Err(MapRefusal::Inode("the file is encrypted"));
    }
    if attributes.contains(StatxAttributes::DAX) {
        return Err(MapRefusal::Inode("the file is accessed directly in memory (DAX)"));
    }
    // Not every file system reports it in both ways.
    if attributes.contains(StatxAttributes::VERITY) || flags & INODE_VERITY != 0 {
        let why = "the file has fs-verity, and only plain reads verify the data";
        return Err(MapRefusal::Inode(why));
    }
    if flags & INODE_JOURNAL_DATA != 0 {
        return Err(MapRefusal::Inode("the file's data is journalled; chattr -j it"));
    }
    Ok(())
}

/// Refuses data journalling: with it the newest data may be only in the journal, even after fsync.
fn ext4_keeps_data_in_place(device: u64) -> Result<(), MapRefusal> {
    let options = mount_options(device).map_err(MapRefusal::io(
        "cannot determine the journal mode of the file system (/proc/fs/ext4)",
    ))?;
    if options.lines().any(|option| option == "data=journal") {
        return Err(MapRefusal::Inode("the file system journals data; mount it data=ordered"));
    }
    Ok(())
}

/// The options of a mounted ext4, one per line.
fn mount_options(device: u64) -> io::Result<String> {
    let device = fs::canonicalize(format!("/sys/dev/block/{}:{}", major(device), minor(device)))?;
    let name = device.file_name().ok_or(io::ErrorKind::NotFound)?;
    fs::read_to_string(std::path::Path::new("/proc/fs/ext4").join(name).join("options"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inodes_that_need_the_kernel_to_be_read_are_refused() {
        let why = |attributes, flags| match check_inode(attributes, flags) {
            Err(MapRefusal::Inode(why)) => why,
            other => panic!("{other:?}"),
        };
        let none = StatxAttributes::empty();
        // fs-verity reported by statx, by the inode's flags, and by both.
        assert!(why(StatxAttributes::VERITY, 0).contains("fs-verity"));
        assert!(why(none, 0x0010_0000).contains("fs-verity"));
        assert!(why(StatxAttributes::VERITY, 0x0010_0000).contains("fs-verity"));
        assert!(why(StatxAttributes::ENCRYPTED, 0).contains("encrypted"));
        assert!(why(StatxAttributes::DAX, 0).contains("DAX"));
        assert!(why(none, 0x4000).contains("journalled"));
    }

    #[test]
    fn ordinary_inodes_are_not() {
        let attributes = StatxAttributes::APPEND | StatxAttributes::IMMUTABLE;
        assert!(check_inode(StatxAttributes::empty(), 0).is_ok());
        // All these flags are harmless: immutable, append-only, no dump, no access time, hashed directory, extents.
        assert!(check_inode(attributes, 0x0008_10F0).is_ok());
    }

    #[test]
    fn a_change_time_of_a_whole_second_is_past_with_that_second() {
        assert_eq!(is_past((5, 0), (5, 0)), None);
        assert_eq!(is_past((5, 999_999_999), (5, 0)), None);
        assert_eq!(is_past((6, 0), (5, 0)), Some(true));
        assert_eq!(is_past((4, 999_999_999), (5, 0)), Some(false));
        assert_eq!(is_past((5, 7), (5, 7)), Some(false));
        assert_eq!(is_past((5, 8), (5, 7)), Some(true));
    }

    #[test]
    fn a_file_that_gets_fs_verity_has_another_mark() {
        let mark =
            |attributes| ChangeMark { length_bytes: 1, ctime: (2, 3), device: 4, attributes };
        assert_ne!(mark(StatxAttributes::empty()), mark(StatxAttributes::VERITY));
    }
}
