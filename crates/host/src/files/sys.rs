//! System calls that no safe crate offers: FIEMAP, inode flags, sizes, write-back, read leases and the signals of their
//! breaks, and the signal masks of this library's threads.
#![allow(unsafe_code)]

use std::collections::HashSet;
use std::ffi::{c_int, c_long};
use std::fs::File;
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Extents that one FIEMAP call returns: 14 KiB of stack.
const PAGE_EXTENTS: usize = 256;

/// Bytes that are written back at a time: a third of a second for a disk of 100 MB/s.
const WRITE_BACK_BYTES: u64 = 32 << 20;
/// Most parts of a file, besides a rest.
const WRITE_BACK_PARTS: u64 = 4096;

/// `_IOWR('f', 11, struct fiemap)`
const FS_IOC_FIEMAP: u64 = 0xC020_660B;
/// `_IOR('f', 1, long)`
const FS_IOC_GETFLAGS: u64 = 0x8008_6601;
/// `_IOR('X', 31, struct fsxattr)`
const FS_IOC_FSGETXATTR: u64 = 0x801C_581F;

/// `_IOR(0x12, 114, size_t)`
const BLKGETSIZE64: u64 = 0x8008_1272;

/// `LOOP_GET_STATUS64`
const LOOP_GET_STATUS64: u64 = 0x4C05;

const F_SETSIG: i32 = 10;
const F_SETOWN_EX: i32 = 15;
const F_OWNER_TID: i32 = 0;

/// `struct fiemap_extent`. All in bytes; `physical` counts from the start of the file system's
/// device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawExtent {
    pub(crate) logical: u64,
    pub(crate) physical: u64,
    pub(crate) length: u64,
    pub(crate) reserved64: [u64; 2],
    pub(crate) flags: u32,
    pub(crate) reserved: [u32; 3],
}

/// `struct fiemap` with room for extents.
#[repr(C)]
struct FiemapPage {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [RawExtent; PAGE_EXTENTS],
}

/// Passes the extents of `file` from byte `start` on to `take`, as many as one ioctl returns. Returns their number.
pub(crate) fn fiemap(
    file: &File,
    start: u64,
    take: &mut dyn FnMut(&RawExtent),
) -> io::Result<usize> {
    let mut page = FiemapPage {
        start,
        length: u64::MAX - start,
        flags: 0,
        mapped: 0,
        count: PAGE_EXTENTS as u32,
        reserved: 0,
        extents: [RawExtent::default(); PAGE_EXTENTS],
    };
    // SAFETY: the descriptor is open, and the kernel writes at most `count` extents behind the
    // header, for which the structure, laid out as the kernel's, has room.
    check(unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP as _, &raw mut page) })?;
    let mapped = (page.mapped as usize).min(PAGE_EXTENTS);
    page.extents.iter().take(mapped).for_each(take);
    Ok(mapped)
}

/// The inode flags of `file` (`FS_IOC_GETFLAGS`).
pub(crate) fn inode_flags(file: &File) -> io::Result<u32> {
    // The kernel writes an int; the ioctl's number says long, so there is room for that.
    let mut flags: c_long = 0;
    // SAFETY: the descriptor is open; the kernel writes at most a long.
    check(unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_GETFLAGS as _, &raw mut flags) })?;
    Ok(flags as u32)
}

/// `fsx_xflags` of `file` (`FS_IOC_FSGETXATTR`).
pub(crate) fn extended_flags(file: &File) -> io::Result<u32> {
    let mut attributes = [0_u32; 7];
    // SAFETY: the descriptor is open; the kernel writes the 28 bytes of a struct fsxattr, whose
    // first word is fsx_xflags.
    check(unsafe {
        libc::ioctl(file.as_raw_fd(), FS_IOC_FSGETXATTR as _, attributes.as_mut_ptr())
    })?;
    Ok(attributes[0])
}

/// The length of a file or block device in bytes.
pub(crate) fn length_bytes(file: &File) -> io::Result<u64> {
    let found = file.metadata()?;
    if !found.file_type().is_block_device() {
        return Ok(found.len());
    }
    let mut bytes = 0_u64;
    // SAFETY: the descriptor is open; the kernel writes a u64.
    check(unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64 as _, &raw mut bytes) })?;
    Ok(bytes)
}

/// The backing file or device of a loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoopFile {
    /// A device, by its number.
    Device(u64),
    /// A file, by the number of its file system's device and its inode.
    Inode { device: u64, inode: u64 },
}

/// The backing file or device of the loop device `node`.
pub(crate) fn loop_file(node: &File) -> io::Result<LoopFile> {
    // `struct loop_info64`, of which lo_device, lo_inode and lo_rdevice come first.
    let mut info = [0_u64; 29];
    // SAFETY: the descriptor is open; the kernel writes a loop_info64, which has the same size.
    check(unsafe { libc::ioctl(node.as_raw_fd(), LOOP_GET_STATUS64 as _, info.as_mut_ptr()) })?;
    // The kernel encodes the device numbers as in stat().
    let [device, inode, number, ..] = info;
    Ok(if number != 0 { LoopFile::Device(number) } else { LoopFile::Inode { device, inode } })
}

/// Writes all dirty pages of `file` to its device and waits until they are there. Costs little on
/// a clean file: no metadata, no flush of the device's cache, which a reader of the same device
/// does not need.
///
/// # Errors
/// The kernel's.
pub fn write_back(file: &File) -> io::Result<()> {
    write_back_part(file, 0, 0)
}

/// The same in parts; calls `meanwhile` after each, because a slow disk may take minutes for a file. What is written
/// meanwhile to earlier parts may be left.
///
/// # Errors
/// The kernel's.
pub(crate) fn write_back_while(file: &File, meanwhile: &mut dyn FnMut()) -> io::Result<()> {
    let length_bytes = file.metadata()?.len();
    // Huge files are sparse, or take long anyway.
    let part_bytes = WRITE_BACK_BYTES.max(length_bytes / WRITE_BACK_PARTS);
    for part in (0..length_bytes).step_by(part_bytes as usize) {
        write_back_part(file, part as i64, part_bytes as i64)?;
        meanwhile();
    }
    Ok(())
}

/// Writes the dirty pages of a range; a length of 0 means up to the end.
fn write_back_part(file: &File, offset: i64, length_bytes: i64) -> io::Result<()> {
    let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: takes no memory of ours.
    check(unsafe { libc::sync_file_range(file.as_raw_fd(), offset, length_bytes, all) })
}

/// The state of a lease, asked through its file descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseState {
    /// It is held and not being broken.
    Held,
    /// It is being broken, or is gone.
    Broken,
}

/// Takes a read lease on `file`. A break sends `signal` to the thread that made it.
pub(crate) fn take_lease(file: &File, signal: &BreakSignal) -> io::Result<()> {
    let owner = [F_OWNER_TID, signal.thread];
    let fd = file.as_raw_fd();
    // SAFETY: the descriptor is open; the kernel reads a struct f_owner_ex, which is two ints.
    check(unsafe { libc::fcntl(fd, F_SETOWN_EX, owner.as_ptr()) })?;
    // Releasing a lease resets its signal, so it is set each time. Without it the signal would be
    // SIGIO.
    // SAFETY: takes an int.
    check(unsafe { libc::fcntl(fd, F_SETSIG, signal.number) })?;
    // SAFETY: takes an int.
    check(unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK) })
}

/// Releases the lease on `file`; blocked writers continue.
pub(crate) fn release_lease(file: &File) -> io::Result<()> {
    // SAFETY: takes an int.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) })
}

/// The state of the lease on `file`.
pub(crate) fn lease_state(file: &File) -> LeaseState {
    // SAFETY: takes no argument.
    let state = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) };
    if state == libc::F_RDLCK { LeaseState::Held } else { LeaseState::Broken }
}

/// A siginfo_t as the kernel fills it for file events, on 64-bit machines.
#[repr(C)]
struct SignalInfo {
    signal: c_int,
    errno: c_int,
    code: c_int,
    pad: c_int,
    band: c_long,
    descriptor: c_int,
    rest: [c_int; 25],
}

const _: () = assert!(size_of::<SignalInfo>() >= size_of::<libc::siginfo_t>());

/// Leases that are being broken.
#[derive(Debug, Default)]
pub(crate) struct Breaks {
    /// Any lease may be: the kernel's signal queue has overflowed.
    all: bool,
    /// The numbers of the descriptors by which they were taken.
    numbers: HashSet<RawFd>,
}

impl Breaks {
    /// Whether the lease that was taken by this descriptor number may be among them.
    pub(crate) fn may_have(&self, number: RawFd) -> bool {
        self.all || self.numbers.contains(&number)
    }
}

/// The signal by which the kernel notifies one thread of lease breaks, and by which other threads
/// wake it. It is directed at that thread and blocked there, so no handler of the process sees it.
#[derive(Clone, Copy, Debug)]
pub struct BreakSignal {
    number: i32,
    thread: i32,
}

impl BreakSignal {
    /// Blocks the signal in the calling thread and directs it there. From now on the thread must wait for it, for
    /// example by its [`descriptor`](Self::descriptor).
    ///
    /// # Errors
    /// The kernel's.
    pub fn of_this_thread() -> io::Result<Self> {
        let number = libc::SIGRTMAX() - 1;
        let set = Self::set(number);
        // SAFETY: the set is initialised; no old set is asked for.
        let error =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        Ok(Self { number, thread: rustix::thread::gettid().as_raw_nonzero().get() })
    }

    /// The signal, and SIGIO, which the kernel sends when too many signals are queued.
    fn set(number: i32) -> libc::sigset_t {
        // SAFETY: a sigset_t is plain integers, for which zero is a value.
        let mut set: libc::sigset_t = unsafe { mem::zeroed() };
        // SAFETY: the set is ours, the signals exist.
        unsafe {
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, number);
            libc::sigaddset(&raw mut set, libc::SIGIO);
        }
        set
    }

    /// A descriptor that is readable, for the thread to which the signal is directed, while a
    /// signal is pending that was not [taken](Self::take).
    ///
    /// # Errors
    /// The kernel's.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        let set = Self::set(self.number);
        // SAFETY: the set is initialised, and no descriptor is replaced.
        let made =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        check(made)?;
        // SAFETY: the kernel has just created it for this call, so no other code owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(made) })
    }

    /// Takes the pending signals. Must be called on the thread to which they are directed.
    pub fn take(&self) {
        let set = Self::set(self.number);
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: set and time are initialised; no siginfo is asked for.
        while unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const now) }
            > 0
        {}
    }

    /// Sleeps until the signal comes or `timeout` is over. Adds the break that it reports to `breaks`.
    pub(crate) fn wait(&self, timeout: Duration, breaks: &mut Breaks) {
        self.receive(timeout, breaks);
    }

    /// Takes the pending signals and adds the breaks that they report. Must be called on the thread to which they are
    /// directed.
    pub(crate) fn receive_all(&self, breaks: &mut Breaks) {
        while self.receive(Duration::ZERO, breaks) {}
    }

    /// Waits for a signal and adds the break that it reports. Whether a signal came.
    fn receive(&self, timeout: Duration, breaks: &mut Breaks) -> bool {
        let set = Self::set(self.number);
        let timeout =
            libc::timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };
        let mut info = MaybeUninit::<SignalInfo>::zeroed();
        let place = info.as_mut_ptr().cast();
        // SAFETY: set and timeout are initialised, and there is room for a siginfo_t. On an error (interrupted, timed
        // out) the caller simply wakes.
        let signal = unsafe { libc::sigtimedwait(&raw const set, place, &raw const timeout) };
        // SAFETY: it is plain integers, for which zero is a value.
        let info = unsafe { info.assume_init() };
        if signal == libc::SIGIO {
            breaks.all = true;
        } else if signal == self.number && info.code > 0 {
            // Sent by the kernel: signals from other threads have a code of 0 or less.
            breaks.numbers.insert(info.descriptor);
        }
        signal > 0
    }

    /// Wakes the thread, which must not have ended.
    pub fn wake(&self) {
        let process = std::process::id().cast_signed();
        // SAFETY: takes no memory of ours.
        unsafe { libc::syscall(libc::SYS_tgkill, process, self.thread, self.number) };
    }
}

/// Signals by which the kernel reports a fault to the thread that caused it.
const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Starts a thread that blocks all signals but faults. Signals to the process belong to the program, which may have
/// blocked them in its own threads to wait for them.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // SAFETY: a sigset_t is plain integers, for which zero is a value.
    let (mut set, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { mem::zeroed() };
    // SAFETY: the set is ours, the signals exist.
    unsafe {
        libc::sigfillset(&raw mut set);
        FAULTS.iter().for_each(|fault| _ = libc::sigdelset(&raw mut set, *fault));
    }
    // SAFETY: both sets are initialised. The thread inherits the mask.
    let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    let thread = Builder::new().name(name.to_owned()).spawn(run);
    // SAFETY: the kernel has filled the set; no old set is asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    thread
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signals that the calling thread has blocked: bit n - 1 is signal n.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("it is there");
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        u64::from_str_radix(mask.expect("a mask").trim(), 16).expect("hexadecimal")
    }

    #[test]
    fn threads_leave_signals_to_the_program() {
        let before = blocked();
        let there = spawn("test", blocked).expect("it starts").join().expect("it ends");
        assert_eq!(blocked(), before);
        let bit = |signal: c_int| 1 << (signal - 1);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGCHLD, libc::SIGUSR1, libc::SIGRTMAX()]
        {
            assert_ne!(there & bit(signal), 0, "signal {signal}");
        }
        assert!(FAULTS.iter().all(|fault| there & bit(*fault) == before & bit(*fault)));
    }
}
