//! Examines the descriptors that clients send: their device, whether they may be granted, a lease, and the layout of
//! their files.
//!
//! The steps are ordered by trust. The kernel reports how a descriptor was opened (`F_GETFL`), and the device of its
//! file system, without calling the file system, which may be FUSE and never answer: `statx` requests no fields of the
//! file, and with `AT_STATX_DONT_SYNC` network and user-space file systems (FUSE, NFS, CIFS, Ceph, overlays of these)
//! answer from their caches. Mount tables would be less useful: client and daemon may be in different mount namespaces.
//! Further calls go only to a file system on a served namespace. The file is then opened once more, because the client
//! could remove a lease from the open file description that it sent.

use crate::LEASE_BREAK_TIME_MIN;
use crate::foreign::Foreign;
use crate::quota::Share;
use bpfof_host::NamespaceInfo;
use bpfof_host::files::{
    BreakSignal, FileLayout, FileSystem, LeasedFile, MapRefusal, NamespaceDevice,
    file_layout_within, lease_break_time, write_back,
};
use bpfof_host::grant::protocol::{Cause, Refusal};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, StatxAttributes, StatxFlags, fcntl_getfl, fstat, makedev,
    open, statx,
};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

/// Pieces in which a file system may report one extent of a map. A layout with more pieces than a target's limit of
/// extents times this is not read to its end.
const PIECES_OF_EXTENT: usize = 4;

/// The subject of an examination.
#[derive(Debug)]
pub(crate) enum Subject {
    /// A descriptor that a client has sent.
    Sent(Foreign),
    /// A file that the daemon has opened before.
    Opened(Arc<File>),
    /// Neither: the file stays refused.
    Refused(Refusal),
}

/// A file that may be granted, as long as its lease is held.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) lease: LeasedFile,
    pub(crate) layout: FileLayout,
}

/// Why a file is not granted.
#[derive(Debug, PartialEq, Eq)]
enum Unfit {
    /// Because of its present state.
    Now(Refusal),
    /// For good. If the daemon has the file open, written data did not reach the disk, which the kernel reports only
    /// once.
    Ever(Refusal),
}

impl From<Refusal> for Unfit {
    fn from(refusal: Refusal) -> Self {
        Self::Now(refusal)
    }
}

impl From<MapRefusal> for Unfit {
    fn from(refusal: MapRefusal) -> Self {
        match refusal {
            MapRefusal::NotWritten(_) => Self::Ever(Refusal::new(Cause::Unavailable, refusal)),
            refusal => Self::Now(refused(&refusal)),
        }
    }
}

/// The outcome of opening the file of a descriptor.
#[derive(Debug)]
pub(crate) enum Opened {
    /// The daemon has the file open.
    Here(Arc<File>),
    /// It is not open, for a temporary reason. Nothing is kept: a client that sends it again may get a grant.
    NotNow,
    /// It is not open, and asking again is of no use.
    Never,
}

/// The result of an examination.
#[derive(Debug)]
pub(crate) struct Examined {
    pub(crate) id: u32,
    pub(crate) opened: Opened,
    pub(crate) result: Result<Found, Refusal>,
}

/// The parameters of examinations.
#[derive(Clone, Debug)]
pub(crate) struct Examiner {
    pub(crate) device: NamespaceDevice,
    pub(crate) info: NamespaceInfo,
    /// The subsystem of the namespace.
    pub(crate) nqn: String,
    pub(crate) extents_max: usize,
    /// Whether files on ext4 are granted even if their owners can truncate them.
    pub(crate) trusts_owners: bool,
    /// The signal of the thread that handles lease breaks.
    pub(crate) signal: BreakSignal,
}

/// Whether a descriptor is open for reading: not with O_PATH, nor for writing only, nor for `ioctl` only (access mode
/// 3).
fn is_readable(descriptor: BorrowedFd<'_>) -> io::Result<bool> {
    let flags = fcntl_getfl(descriptor)?;
    let mode = flags & OFlags::RWMODE;
    Ok(!flags.contains(OFlags::PATH) && (mode == OFlags::RDONLY || mode == OFlags::RDWR))
}

fn unknown(error: impl Into<io::Error>) -> Refusal {
    Refusal::new(Cause::Unavailable, format!("cannot examine the file: {}", error.into()))
}

/// The device number of the file system of a client's descriptor, as far as the kernel knows it without calling the
/// file system. An overlay may report the device of a lower file system; the file is refused later, as all files are
/// that are on neither ext4 nor XFS.
pub(crate) fn device_of(descriptor: BorrowedFd<'_>) -> Result<u64, Refusal> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(descriptor, "", flags, StatxFlags::empty()).map_err(unknown)?;
    Ok(makedev(found.stx_dev_major, found.stx_dev_minor))
}

impl Examiner {
    /// Examines files on another thread, because their file system may be slow. Without a thread they are refused, and
    /// only files that are already open are kept. Calls `wake` after each file and after the last. The client counts
    /// in its user's quota until then, by its `share`.
    pub(crate) fn start(
        self,
        thread: Builder,
        subjects: Vec<(u32, Subject)>,
        share: Arc<Share>,
        wake: impl Fn() + Clone + Send + 'static,
    ) -> Receiver<Examined> {
        let (sender, examined) = channel();
        let unexamined = subjects.iter().map(|(id, subject)| match subject {
            Subject::Opened(file) => (*id, Opened::Here(Arc::clone(file))),
            Subject::Sent(_) | Subject::Refused(_) => (*id, Opened::NotNow),
        });
        let unexamined: Vec<(u32, Opened)> = unexamined.collect();
        let (to, woken) = (sender.clone(), wake.clone());
        let run = move || {
            self.run(subjects, &to, &woken);
            drop((to, share));
            woken();
        };
        if let Err(error) = thread.name("examine".into()).spawn(run) {
            let why = format!("the daemon has no thread to examine the file: {error}");
            let refusal = Refusal::new(Cause::Unavailable, why);
            for (id, opened) in unexamined {
                // Cannot fail: the receiver is returned below.
                let _ = sender.send(Examined { id, opened, result: Err(refusal.clone()) });
            }
            wake();
        }
        examined
    }

    /// Examines files one after the other, and sends each result at once, so that the session watches its lease. Calls
    /// `wake` after each.
    fn run(&self, subjects: Vec<(u32, Subject)>, to: &Sender<Examined>, wake: &dyn Fn()) {
        for (id, subject) in subjects {
            let (opened, result) = self.examine(subject);
            // If the client has gone, the failed send drops the result, which releases the lease.
            let gone = to.send(Examined { id, opened, result }).is_err();
            wake();
            if gone {
                return;
            }
        }
    }

    fn examine(&self, subject: Subject) -> (Opened, Result<Found, Refusal>) {
        let file = match subject {
            Subject::Opened(file) => Ok(file),
            Subject::Refused(refusal) => Err(Unfit::Ever(refusal)),
            Subject::Sent(sent) => {
                sent.get().map_err(|error| unknown(error).into()).and_then(|sent| self.open(sent))
            }
        };
        match file {
            Ok(file) => match self.find(&file) {
                Ok(found) => (Opened::Here(file), Ok(found)),
                Err(Unfit::Now(refusal)) => (Opened::Here(file), Err(refusal)),
                Err(Unfit::Ever(refusal)) => (Opened::Never, Err(refusal)),
            },
            Err(Unfit::Now(refusal)) => (Opened::NotNow, Err(refusal)),
            Err(Unfit::Ever(refusal)) => (Opened::Never, Err(refusal)),
        }
    }

    /// Opens the file of a descriptor once more.
    fn open(&self, sent: BorrowedFd<'_>) -> Result<Arc<File>, Unfit> {
        let never = |cause, why: &str| Unfit::Ever(Refusal::new(cause, why));
        if !is_readable(sent).map_err(unknown)? {
            return Err(never(Cause::NotReadable, "the descriptor is not open for reading"));
        }
        let device = device_of(sent)?;
        let offset = self.device.offset_of(device);
        offset.map_err(|why| Unfit::Ever(Refusal::new(Cause::OtherPlace, why)))?;
        // From here on, only file systems of the namespace are called.
        let found = fstat(sent).map_err(unknown)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(never(Cause::NotRegular, "it is not a regular file"));
        }
        // Non-blocking: otherwise it would wait for another process's write lease to break.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let own = open(format!("/proc/self/fd/{}", sent.as_raw_fd()), flags, Mode::empty());
        Ok(Arc::new(File::from(own.map_err(not_opened)?)))
    }

    /// Leases a file and finds its layout.
    fn find(&self, file: &Arc<File>) -> Result<Found, Unfit> {
        // Another disk may have the name or the number of the device by now. While the file is open, its file system
        // keeps its device.
        self.device.check(&self.info, &self.nqn)?;
        check_break_time()?;
        // Write dirty data back now, so that little is left to write under the lease, and a writer does not wait long
        // for its release.
        write_back(file).map_err(MapRefusal::NotWritten)?;
        let lease =
            LeasedFile::take(Arc::clone(file), &self.signal).map_err(|error| {
                match error.kind() {
                    ErrorKind::WouldBlock => {
                        Refusal::new(Cause::BeingWritten, "the file is open for writing")
                    }
                    _ => Refusal::new(Cause::NoLease, format!("cannot take a lease: {error}")),
                }
            })?;
        let pieces_max = self.extents_max.saturating_mul(PIECES_OF_EXTENT);
        let layout = file_layout_within(file, &self.device, &self.info, pieces_max)?;
        let (extents, max) = (layout.extents().len(), self.extents_max);
        if extents > max {
            return Err(MapRefusal::TooManyExtents { extents, max }.into());
        }
        if !is_settled(file, layout.file_system(), self.trusts_owners) {
            let why = match layout.file_system() {
                FileSystem::Xfs => {
                    "on XFS the owner of a file can free its blocks by deduplication in spite of \
                     a lease; make the file immutable (chattr +i)"
                }
                FileSystem::Ext4 => {
                    "the owner of a file can truncate it in spite of a lease (O_RDONLY with \
                     O_TRUNC); make the file immutable (chattr +i), make root its owner and only \
                     writer, or trust owners (bpfof grantd --trust-owners)"
                }
            };
            return Err(Refusal::new(Cause::NotImmutable, why).into());
        }
        Ok(Found { lease, layout })
    }
}

/// The refusal for a file that cannot be opened once more.
fn not_opened(error: Errno) -> Unfit {
    let refused = |cause| Refusal::new(cause, format!("the file cannot be reopened: {error}"));
    match error {
        Errno::WOULDBLOCK => {
            let why = "another process has a write lease on the file";
            Unfit::Now(Refusal::new(Cause::BeingWritten, why))
        }
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR => {
            Unfit::Now(refused(Cause::Unavailable))
        }
        _ => Unfit::Ever(refused(Cause::NotReadable)),
    }
}

/// Whether a file keeps its blocks as long as its lease is held: no process without privileges can free them in spite
/// of the lease. A lease is not broken by an open with `O_RDONLY` and `O_TRUNC`, by a truncation through an overlay or
/// the kernel's NFS server, or by deduplication on XFS.
pub(crate) fn is_settled(file: &File, file_system: FileSystem, trusts_owners: bool) -> bool {
    let is_ext4 = file_system == FileSystem::Ext4;
    if trusts_owners && is_ext4 {
        return true;
    }
    let found = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MODE | StatxFlags::UID);
    found.is_ok_and(|found| {
        let is_immutable = found.stx_attributes.contains(StatxAttributes::IMMUTABLE);
        // With access control lists, the group bits are the mask, the most that any of their entries grants.
        is_immutable || is_ext4 && found.stx_uid == 0 && found.stx_mode & 0o022 == 0
    })
}

fn refused(refusal: &MapRefusal) -> Refusal {
    let cause = match refusal {
        refusal if refusal.is_passing() => Cause::BeingWritten,
        MapRefusal::OtherDevice { .. } | MapRefusal::OtherNamespace(_) => Cause::OtherPlace,
        MapRefusal::NotRegular => Cause::NotRegular,
        _ => Cause::NotMappable,
    };
    Refusal::new(cause, refusal)
}

/// Refuses all grants while the lease-break time is too short for the daemon to give files back in time.
pub(crate) fn check_break_time() -> Result<(), Refusal> {
    if lease_break_time().is_some_and(|time| time >= LEASE_BREAK_TIME_MIN) {
        return Ok(());
    }
    let least = LEASE_BREAK_TIME_MIN.as_secs();
    let why = format!(
        "leases are too short on this machine: set sysctl fs.lease-break-time to {least} or more"
    );
    Err(Refusal::new(Cause::NoLease, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Limits;
    use crate::quota::{Kind, Quotas};
    use std::fs::OpenOptions;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// An examiner of files on a namespace whose image is `image`.
    fn examiner(image: &Path) -> Examiner {
        std::fs::write(image, [0; 4096]).expect("written");
        Examiner {
            device: NamespaceDevice::new(image).expect("an image"),
            info: NamespaceInfo { nsid: 1, blocks: 8, block_bytes: 512, nguid: [0; 16] },
            nqn: "nqn.x".to_owned(),
            extents_max: 1,
            trusts_owners: false,
            signal: BreakSignal::of_this_thread().expect("a signal"),
        }
    }

    #[test]
    fn without_a_thread_files_are_refused_until_they_are_sent_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("image");
        let examiner = examiner(&image);
        let share = Quotas::new(Limits::default()).take(7, Kind::Clients, 1).expect("the first");
        let wakes = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&wakes);
        let wake = move || {
            counted.fetch_add(1, Ordering::SeqCst);
        };
        let file = Arc::new(File::open(&image).expect("opened"));
        let before = Refusal::new(Cause::NotReadable, "for a reason");
        let subjects = vec![(3, Subject::Opened(file)), (5, Subject::Refused(before))];
        // Starting the thread must fail: no machine has memory for such a stack.
        let thread = Builder::new().stack_size(1 << 60);
        let examined = examiner.start(thread, subjects, Arc::new(share), wake);
        let found: Vec<Examined> = examined.iter().collect();
        assert!(matches!(found[0], Examined { id: 3, opened: Opened::Here(_), .. }), "{found:?}");
        assert!(matches!(found[1], Examined { id: 5, opened: Opened::NotNow, .. }), "{found:?}");
        for Examined { result, .. } in found {
            let refusal = result.expect_err("it was not looked at");
            assert_eq!(refusal.cause, Cause::Unavailable, "{refusal}");
        }
        assert_eq!(wakes.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn only_descriptors_opened_for_reading_are_readable() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let written = File::create(&path).expect("made");
        let opened = |options: &mut OpenOptions| options.open(&path).expect("opened");
        let path_only = OFlags::PATH.bits().cast_signed();
        let read = opened(OpenOptions::new().read(true));
        let both = opened(OpenOptions::new().read(true).write(true));
        let path_only = opened(OpenOptions::new().read(true).custom_flags(path_only));
        let ioctl_only = open(&path, OFlags::RWMODE, Mode::empty()).expect("opened");
        let readable = |descriptor: BorrowedFd<'_>| is_readable(descriptor).expect("told");
        assert!(readable(read.as_fd()) && readable(both.as_fd()));
        assert!(!readable(written.as_fd()) && !readable(path_only.as_fd()));
        assert!(!readable(ioctl_only.as_fd()));
    }

    #[test]
    fn temporary_refusals_are_told_from_permanent_ones() {
        let passes = |error| match not_opened(error) {
            Unfit::Now(refusal) => Ok(refusal.cause),
            Unfit::Ever(refusal) => Err(refusal.cause),
        };
        assert_eq!(passes(Errno::WOULDBLOCK), Ok(Cause::BeingWritten));
        for error in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            assert_eq!(passes(error), Ok(Cause::Unavailable));
        }
        assert_eq!(passes(Errno::ACCESS), Err(Cause::NotReadable));
    }

    #[test]
    fn nothing_is_granted_after_the_device_has_changed() {
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("image");
        let examiner = examiner(&image);
        let file = Arc::new(File::open(&image).expect("opened"));
        let refusal = || {
            let (opened, result) = examiner.examine(Subject::Opened(Arc::clone(&file)));
            assert!(matches!(opened, Opened::Here(_)), "{opened:?}");
            result.map(|_| ()).expect_err("there is no map of it")
        };
        let before = refusal();
        assert!(!before.why.contains("check that the right device is named"), "{before}");
        std::fs::rename(&image, folder.path().join("moved")).expect("renamed");
        std::fs::write(&image, [0; 4096]).expect("written");
        let after = refusal();
        assert!(after.why.contains("check that the right device is named"), "{after}");
        assert_eq!(after.cause, Cause::OtherPlace);
    }

    #[test]
    fn the_device_is_found_for_any_kind_of_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let (folder, status) = (File::open(folder.path()), File::open("/proc/self/status"));
        for file in [folder.expect("opened"), status.expect("opened")] {
            let device = file.metadata().expect("examined").dev();
            assert_eq!(device_of(file.as_fd()), Ok(device));
        }
        let (pipe, _write) = io::pipe().expect("a pipe");
        assert!(device_of(pipe.as_fd()).is_ok());
    }
}
