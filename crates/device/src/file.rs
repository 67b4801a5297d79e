//! Namespaces in a file or on a block device, and files on tmpfs whose memory is a namespace.

use crate::lost_writes::LossWatch;
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Mode, OFlags, StatxFlags, fallocate, fstat, fstatfs,
    ioctl_getflags, open, statx,
};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Why a file cannot be a namespace, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file does not exist and no size was given.
    #[error("{path} does not exist; give size=… to create it")]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// The attempted action.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Neither a regular file nor a block device.
    #[error("{path} is neither a regular file nor a block device")]
    Kind {
        /// The file.
        path: PathBuf,
    },
    /// The file is smaller than the requested size, or than one block.
    #[error("{path} has {have} bytes, which is less than {want}")]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        have: u64,
        /// The size needed in bytes.
        want: u64,
    },
    /// One of several concatenated files would change its size, which would move the blocks of the files behind it.
    #[error("the size of {path} cannot change, because the blocks behind it would move")]
    BlocksMove {
        /// The file.
        path: PathBuf,
    },
    /// The file is not in memory, so it cannot be served as memory.
    #[error(
        "{path} is not a regular file on tmpfs; write file:path={path} to serve it from where it is"
    )]
    NotInMemory {
        /// The file.
        path: PathBuf,
    },
    /// A file to be served as memory is empty, or ends within a block.
    #[error(
        "{path} has {have} bytes, which is not a whole number of blocks of {block_bytes}; set its \
         size first, for example with truncate --size=1G {path}"
    )]
    PartOfBlock {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        have: u64,
        /// Size of a logical block in bytes.
        block_bytes: u32,
    },
    /// The holes of a file to be served as memory cannot be filled.
    #[error(
        "cannot allocate all {size_bytes} bytes of {path} on tmpfs: {source}; free space there, or \
         make the file smaller"
    )]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        size_bytes: u64,
        /// The kernel's error.
        source: io::Error,
    },
    /// A namespace of a drive that cannot be served by NVMe commands.
    #[error("{path} {why}; an nvme: namespace is the character device /dev/ngXnY of a drive")]
    Drive {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// Another target serves the file.
    #[error(
        "{path} is in use by another target, or by another namespace of this one; stop that one first, or give the namespace a uuid= at both (docs/paths.md)"
    )]
    Locked {
        /// The file.
        path: PathBuf,
    },
}

/// How a file is locked against other targets on this machine (flock(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lock {
    /// Exclusive: no other target may have it open.
    #[default]
    Alone,
    /// Shared: other targets may have it open if they lock it as shared.
    Shared,
}

/// An open file or block device.
#[derive(Debug)]
pub struct FileNamespace {
    file: File,
    path: PathBuf,
    kind: FileType,
    disk: u64,
    /// Size when it was opened.
    size_bytes: u64,
    block_bytes: u32,
    direct: bool,
    /// Watches for lost writes if I/O goes through the page cache.
    watch: Option<LossWatch>,
    zeroes: Zeroes,
}

/// How ranges of a file can be zeroed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Zeroes {
    /// Ranges can be zeroed without sending data.
    can_punch: bool,
    /// Zeroing may deallocate the blocks, so it takes less time than writing them.
    gives_back: bool,
    /// Zeroing may also keep the blocks allocated.
    keeps_blocks: bool,
}

impl FileNamespace {
    /// Opens `path` for a namespace of `size_bytes` (default: all of it, in whole blocks of `block_bytes`). If a size
    /// is given, creates a missing regular file, sparse, and grows a smaller one. Uses direct I/O where the file system
    /// allows it for this block size. Locks the file against other targets.
    pub fn open(
        path: &Path,
        size_bytes: Option<u64>,
        block_bytes: u32,
    ) -> Result<FileNamespace, FileError> {
        FileNamespace::open_as(path, size_bytes, block_bytes, Lock::Alone)
    }

    /// The same with the given lock.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_as(
        path: &Path,
        size_bytes: Option<u64>,
        block_bytes: u32,
        how: Lock,
    ) -> Result<FileNamespace, FileError> {
        let failed = |action| {
            let path = path.to_owned();
            move |error: rustix::io::Errno| FileError::Io { action, path, source: error.into() }
        };
        let create = if size_bytes.is_some() { OFlags::CREATE } else { OFlags::empty() };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | create;
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = open(path, flags, mode).map_err(|error| match error {
            // If a size was given, ENOENT means that the directory is missing.
            rustix::io::Errno::NOENT if size_bytes.is_none() => {
                FileError::Missing { path: path.to_owned() }
            }
            error => failed(if size_bytes.is_some() { "open or create" } else { "open" })(error),
        })?;
        let stat = fstat(&fd).map_err(failed("examine"))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let disk = match kind {
            FileType::RegularFile => stat.st_dev,
            FileType::BlockDevice => stat.st_rdev,
            _ => return Err(FileError::Kind { path: path.to_owned() }),
        };
        lock(&fd, how).map_err(not_locked(path))?;
        let file = File::from(fd);
        let size = settle_size(&file, path, kind, size_bytes, block_bytes)?;
        let direct = allows_direct(&file, block_bytes);
        if direct {
            let flags = rustix::fs::fcntl_getfl(&file).map_err(failed("examine"))?;
            rustix::fs::fcntl_setfl(&file, flags | OFlags::DIRECT)
                .map_err(failed("use direct I/O on"))?;
        }
        let watch = match direct {
            true => None,
            false => Some(LossWatch::of(file.as_raw_fd()).map_err(|source| FileError::Io {
                action: "open once more",
                path: path.to_owned(),
                source,
            })?),
        };
        let zeroes = Zeroes::of(&file, kind, block_bytes);
        let path = path.to_owned();
        let size_bytes = size;
        Ok(FileNamespace { file, path, kind, disk, size_bytes, block_bytes, direct, watch, zeroes })
    }

    /// Changes the lock.
    ///
    /// # Errors
    /// [`FileError::Locked`], or the kernel's error.
    pub fn lock(&self, how: Lock) -> Result<(), FileError> {
        relock(&self.file, how).map_err(not_locked(&self.path))
    }

    /// Its size in bytes when it was opened, whole blocks.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The size it would have, in bytes and whole blocks, if `size_bytes` (or all of the file) had been passed to
    /// [`open`](Self::open). Grows a smaller regular file.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn settle_size(&self, size_bytes: Option<u64>) -> Result<u64, FileError> {
        settle_size(&self.file, &self.path, self.kind, size_bytes, self.block_bytes)
    }

    /// A size rounded down to logical blocks.
    pub(crate) fn whole_blocks(&self, bytes: u64) -> u64 {
        bytes - bytes % u64::from(self.block_bytes)
    }

    /// Device number of its file system, or of the block device that it is.
    pub(crate) fn disk(&self) -> u64 {
        self.disk
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether I/O bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Whether the kernel has lost writes in the page cache since the last call.
    pub(crate) fn has_lost_writes(&self) -> bool {
        self.watch.as_ref().is_some_and(LossWatch::has_lost)
    }

    /// Whether [`Ring::zero_parts`](crate::Ring::zero_parts) works on this file.
    pub fn punches_holes(&self) -> bool {
        self.zeroes.can_punch
    }

    /// Whether zeroing can deallocate blocks. A disk without discard may write all the zeroes instead.
    pub fn gives_back(&self) -> bool {
        self.zeroes.gives_back
    }

    /// Whether zeroing can keep blocks allocated, so that later writes need no room.
    pub fn keeps_blocks(&self) -> bool {
        self.zeroes.keeps_blocks
    }

    /// The descriptor, for the ring.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// Opens a file on tmpfs to serve its memory as a namespace with blocks of `block_bytes`, locks it against other
/// targets and fills its holes. Also returns its size in bytes.
pub(crate) fn open_in_memory(
    path: &Path,
    block_bytes: u32,
    how: Lock,
) -> Result<(File, u64), FileError> {
    let failed = |action| {
        let path = path.to_owned();
        move |error: rustix::io::Errno| FileError::Io { action, path, source: error.into() }
    };
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let fd = open(path, flags, Mode::empty()).map_err(failed("open"))?;
    let stat = fstat(&fd).map_err(failed("examine"))?;
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let is_on_tmpfs = fstatfs(&fd).map_err(failed("examine"))?.f_type == libc::TMPFS_MAGIC;
    if !is_regular || !is_on_tmpfs {
        return Err(FileError::NotInMemory { path: path.to_owned() });
    }
    lock(&fd, how).map_err(not_locked(path))?;
    let have = stat.st_size as u64;
    if have == 0 || !have.is_multiple_of(u64::from(block_bytes)) {
        return Err(FileError::PartOfBlock { path: path.to_owned(), have, block_bytes });
    }
    fallocate(&fd, FallocateFlags::empty(), 0, have).map_err(|error| FileError::NoRoom {
        path: path.to_owned(),
        size_bytes: have,
        source: error.into(),
    })?;
    Ok((File::from(fd), have))
}

/// How long to wait for a lock that may belong to a dead process.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// Locks a file against other targets. After a target is killed, the kernel tears down its ring asynchronously, and
/// only then closes the file and releases the lock: so the next target waits a little.
pub(crate) fn lock(fd: impl AsFd + Copy, how: Lock) -> rustix::io::Result<()> {
    let operation = match how {
        Lock::Alone => rustix::fs::FlockOperation::NonBlockingLockExclusive,
        Lock::Shared => rustix::fs::FlockOperation::NonBlockingLockShared,
    };
    let begun = Instant::now();
    loop {
        match rustix::fs::flock(fd, operation) {
            Err(rustix::io::Errno::WOULDBLOCK) if begun.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            outcome => return outcome,
        }
    }
}

/// The error for a file that cannot be locked.
pub(crate) fn not_locked(path: &Path) -> impl FnOnce(rustix::io::Errno) -> FileError {
    let path = path.to_owned();
    move |error| match error {
        rustix::io::Errno::WOULDBLOCK => FileError::Locked { path },
        error => FileError::Io { action: "lock", path, source: error.into() },
    }
}

/// Changes the lock of a locked file. If another target has it open as well, the file stays locked as shared: a failed
/// conversion releases the old lock (flock(2)), which is retaken at once.
pub(crate) fn relock(fd: impl AsFd + Copy, how: Lock) -> rustix::io::Result<()> {
    if how == Lock::Shared {
        return lock(fd, how);
    }
    let begun = Instant::now();
    loop {
        match rustix::fs::flock(fd, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                rustix::fs::flock(fd, rustix::fs::FlockOperation::NonBlockingLockShared)?;
            }
            outcome => return outcome,
        }
        if begun.elapsed() >= LOCK_PATIENCE {
            return Err(rustix::io::Errno::WOULDBLOCK);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn settle_size(
    file: &File,
    path: &Path,
    kind: FileType,
    wanted: Option<u64>,
    block_bytes: u32,
) -> Result<u64, FileError> {
    use std::io::{Seek, SeekFrom};
    let failed = |action| {
        let path = path.to_owned();
        move |source| FileError::Io { action, path, source }
    };
    let mut handle = file;
    let mut have = handle.seek(SeekFrom::End(0)).map_err(failed("measure"))?;
    if let Some(wanted) = wanted.filter(|wanted| *wanted > have && kind == FileType::RegularFile) {
        file.set_len(wanted).map_err(failed("grow"))?;
        have = wanted;
    }
    let block = u64::from(block_bytes);
    let want = wanted.unwrap_or(have) / block * block;
    if want == 0 || want > have {
        let want = wanted.unwrap_or(block).max(block);
        return Err(FileError::TooSmall { path: path.to_owned(), have, want });
    }
    Ok(want)
}

impl Zeroes {
    /// The way to zero whole blocks of `block_bytes`. For a file, tries to punch a hole far behind the end, which
    /// changes nothing since no data is written there meanwhile; for a block device, reads its queue's limits.
    fn of(file: &File, kind: FileType, block_bytes: u32) -> Zeroes {
        let Ok(stat) = fstat(file) else { return Zeroes::default() };
        if kind == FileType::BlockDevice {
            let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
            let device = format!("/sys/dev/block/{major}:{minor}");
            // A partition uses the queue of its disk.
            let queues =
                ["queue", "../queue"].map(|queue| PathBuf::from(format!("{device}/{queue}")));
            return queues
                .iter()
                .find(|queue| queue.exists())
                .map_or(Zeroes::default(), |queue| Zeroes::of_queue(queue, block_bytes));
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let end = (stat.st_size as u64).next_multiple_of(4096);
        // The maximum file size depends on the file system: try 1 TiB, then 1 GiB beyond the end.
        let can_punch =
            [1 << 40, 1 << 30].iter().any(|far| fallocate(file, flags, end + far, 4096).is_ok());
        let keeps_blocks = can_punch && zeroes_in_place(file);
        Zeroes { can_punch, gives_back: can_punch, keeps_blocks }
    }

    /// The same for a block device, whose queue directory in sysfs is `queue`.
    fn of_queue(queue: &Path, block_bytes: u32) -> Zeroes {
        let limit = |name| {
            let text = std::fs::read_to_string(queue.join(name)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let is_some = |name| limit(name).is_some_and(|bytes| bytes > 0);
        // A device refuses to zero parts of its blocks.
        let fits = limit("logical_block_size").is_some_and(|bytes| bytes <= block_bytes.into());
        let can_punch = fits && is_some("write_zeroes_max_bytes");
        let gives_back = can_punch && is_some("discard_max_bytes");
        // Where the device only zeroes blocks that it deallocates, the kernel writes zeroes.
        Zeroes { can_punch, gives_back, keeps_blocks: can_punch }
    }
}

/// Whether a regular file takes `FALLOC_FL_ZERO_RANGE`, by its file system: an attempt would allocate blocks.
fn zeroes_in_place(file: &File) -> bool {
    /// `FS_EXTENT_FL`: without it, ext4 refuses.
    const EXTENTS: u32 = 0x8_0000;
    match fstatfs(file).map(|system| system.f_type) {
        Ok(libc::XFS_SUPER_MAGIC | libc::BTRFS_SUPER_MAGIC) => true,
        Ok(libc::EXT4_SUPER_MAGIC) => {
            ioctl_getflags(file).is_ok_and(|flags| flags.bits() & EXTENTS != 0)
        }
        _ => false,
    }
}

/// Alignment of the memory of chains.
const MEMORY_ALIGNMENT_BYTES: u32 = 512;

/// The alignment in bytes, a power of two, of offsets and lengths of direct reads of this file. `None` if its file
/// system has no direct I/O for it, or requires memory aligned to more than 512 bytes, which the memory of chains is
/// not.
pub fn direct_block_bytes(file: &File) -> Option<u32> {
    /// `STATX_DIOALIGN`
    const DIRECT_ALIGNMENT: u32 = 0x2000;
    let mask = StatxFlags::from_bits_retain(DIRECT_ALIGNMENT);
    let found = statx(file, "", AtFlags::EMPTY_PATH, mask).ok()?;
    let alignment = found.stx_dio_offset_align;
    let is_good = alignment.is_power_of_two() && found.stx_dio_mem_align <= MEMORY_ALIGNMENT_BYTES;
    is_good.then_some(alignment)
}

/// Direct I/O requires offsets aligned as the file system says; a namespace's I/O is in whole blocks.
fn allows_direct(file: &File, block_bytes: u32) -> bool {
    direct_block_bytes(file).is_some_and(|alignment| alignment <= block_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loop_device::LoopDevice;
    use crate::skip::skip;

    /// Waits for a lock that is released a moment later, as after a kill; reports a lock that stays.
    #[test]
    fn a_lock_that_outlives_its_process() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("disk");
        let holder = FileNamespace::open(&path, Some(1 << 20), 512).expect("it opens");
        let open = || FileNamespace::open(&path, None, 512);
        assert!(matches!(open(), Err(FileError::Locked { .. })));
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(holder);
        });
        open().expect("the lock is gone after a moment");
        late.join().expect("no panic");
    }

    /// A device can only zero whole blocks of its own, which may be larger than those of the namespace.
    #[test]
    fn holes_are_whole_blocks_of_the_device() {
        let image = tempfile::NamedTempFile::new().expect("a file");
        image.as_file().set_len(1 << 20).expect("room");
        let Some(device) = LoopDevice::of(image.path()) else {
            return skip("no loop device can be made here");
        };
        let punches = |block_bytes| {
            let opened = FileNamespace::open(&device.0, None, block_bytes);
            opened.expect("it opens").punches_holes()
        };
        assert_eq!([punches(512), punches(4096)], [false, true]);
    }

    /// Only EWOULDBLOCK means that the file is in use.
    #[test]
    fn a_failed_lock_does_not_always_mean_in_use() {
        // A descriptor opened with O_PATH cannot be locked.
        let fd = open("/dev/null", OFlags::PATH, Mode::empty()).expect("it opens");
        let error = lock(&fd, Lock::Alone).map_err(not_locked(Path::new("/dev/null")));
        assert!(matches!(error, Err(FileError::Io { action: "lock", .. })), "{error:?}");
    }

    /// A disk that writes zeroes itself need not deallocate blocks.
    #[test]
    fn the_block_queue_shows_how_a_disk_writes_zeroes() {
        let queue = tempfile::tempdir().expect("a folder");
        let mut found = Vec::new();
        for (zeroes, discard, block) in [
            ("4096", "4096", "512"),
            ("4096", "0", "512"),
            ("0", "4096", "512"),
            ("4096", "4096", "4096"),
        ] {
            for (name, text) in [
                ("write_zeroes_max_bytes", zeroes),
                ("discard_max_bytes", discard),
                ("logical_block_size", block),
            ] {
                std::fs::write(queue.path().join(name), format!("{text}\n")).expect("written");
            }
            let Zeroes { can_punch, gives_back, keeps_blocks } =
                Zeroes::of_queue(queue.path(), 512);
            assert_eq!(keeps_blocks, can_punch);
            found.push((can_punch, gives_back));
        }
        assert_eq!(found, [(true, true), (true, false), (false, false), (false, false)]);
    }
}
