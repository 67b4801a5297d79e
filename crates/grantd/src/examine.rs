//! Looking at the descriptors that clients send: where they are, whether they may be granted, a lease and
//! the places of their files' bytes.
//!
//! The order is that of trust. /proc tells how a descriptor was opened and on which mount, without asking
//! the file system; only one on a namespace that is served is asked more. The file is then opened once more,
//! because a lease on the description that was sent could be taken away by its sender.

use crate::LEASE_BREAK_TIME_MIN;
use crate::foreign::Foreign;
use crate::mounts::{Descriptor, Mounts};
use bpfof_host::NamespaceInfo;
use bpfof_host::files::{
    BreakSignal, FileLayout, FileSystem, LeasedFile, MapRefusal, NamespaceDevice,
    file_layout_within, lease_break_time, write_back,
};
use bpfof_host::grant::protocol::{Cause, Refusal};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, StatxAttributes, StatxFlags, fstat, open, statx,
};
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// A map has as many extents as a target takes; a file system tells longer ones in so many pieces each. What
/// has more is not read to its end.
const PIECES_OF_EXTENT: usize = 4;

/// What is looked at.
#[derive(Debug)]
pub(crate) enum Subject {
    /// A descriptor that a client has sent.
    Sent(Foreign),
    /// A file that was opened here before.
    Opened(Arc<File>),
    /// Neither: it stays refused.
    Refused(Refusal),
}

/// A file that may be granted, as long as its lease is held.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) lease: LeasedFile,
    pub(crate) layout: FileLayout,
}

/// What has come out.
#[derive(Debug)]
pub(crate) struct Examined {
    pub(crate) id: u32,
    /// The file as it was opened here, if it was.
    pub(crate) file: Option<Arc<File>>,
    pub(crate) result: Result<Found, Refusal>,
}

/// What a file is examined for.
#[derive(Clone, Debug)]
pub(crate) struct Examiner {
    pub(crate) device: NamespaceDevice,
    pub(crate) info: NamespaceInfo,
    pub(crate) extents_max: usize,
    /// Files of ext4 are granted whoever can truncate them.
    pub(crate) trusts_owners: bool,
    /// Of the thread that answers breaks.
    pub(crate) signal: BreakSignal,
}

/// What /proc says of a descriptor of a client.
fn described(descriptor: BorrowedFd<'_>) -> Result<Descriptor, Refusal> {
    Descriptor::of(descriptor).map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => Refusal::new(Cause::OtherPlace, error.to_string()),
        _ => Refusal::new(Cause::Unavailable, format!("fdinfo: {error}")),
    })
}

/// Where a descriptor of a client is, as far as /proc knows: the device number of its file system.
pub(crate) fn device_of(descriptor: BorrowedFd<'_>, mounts: &Mounts) -> Result<u64, Refusal> {
    let found = described(descriptor)?;
    mounts.device(found.mount).ok_or_else(|| {
        let why = "the file is on a mount that the grant daemon does not see";
        Refusal::new(Cause::OtherPlace, why)
    })
}

impl Examiner {
    /// Examines files one after the other, and sends each as soon as it is known, so that its lease is
    /// watched. `wake` is called after each.
    pub(crate) fn run(
        &self,
        subjects: Vec<(u32, Subject)>,
        to: &Sender<Examined>,
        wake: &dyn Fn(),
    ) {
        let mounts = Mounts::read();
        for (id, subject) in subjects {
            let opened = match (subject, &mounts) {
                (Subject::Opened(file), _) => Ok(file),
                (Subject::Refused(refusal), _) => Err(refusal),
                (Subject::Sent(sent), Ok(mounts)) => match sent.get() {
                    Ok(descriptor) => self.open(descriptor, mounts),
                    Err(error) => Err(Refusal::new(Cause::Unavailable, error)),
                },
                (Subject::Sent(_), Err(error)) => {
                    Err(Refusal::new(Cause::Unavailable, format!("mountinfo: {error}")))
                }
            };
            let examined = match opened {
                Ok(file) => {
                    let result = self.find(&file);
                    Examined { id, file: Some(file), result }
                }
                Err(refusal) => Examined { id, file: None, result: Err(refusal) },
            };
            // Of a client that has gone the lease is released here.
            let gone = to.send(examined).is_err();
            wake();
            if gone {
                return;
            }
        }
    }

    /// Opens the file of a descriptor once more.
    fn open(&self, sent: BorrowedFd<'_>, mounts: &Mounts) -> Result<Arc<File>, Refusal> {
        let descriptor = described(sent)?;
        if !descriptor.is_readable() {
            let why = "the descriptor is not open for reading";
            return Err(Refusal::new(Cause::NotReadable, why));
        }
        let device = device_of(sent, mounts)?;
        self.device.offset_of(device).map_err(|why| Refusal::new(Cause::OtherPlace, why))?;
        // From here on only file systems of the namespace are asked.
        let unknown = |e| Refusal::new(Cause::Unavailable, format!("cannot examine the file: {e}"));
        let found = fstat(sent).map_err(unknown)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(Refusal::new(Cause::NotRegular, "it is no regular file"));
        }
        if found.st_dev != device {
            return Err(Refusal::new(Cause::OtherPlace, "its file system is on several devices"));
        }
        // Not blocking: it would wait for somebody's write lease.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let own = open(format!("/proc/self/fd/{}", sent.as_raw_fd()), flags, Mode::empty());
        let own = own.map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => {
                Refusal::new(Cause::BeingWritten, "somebody has a lease on the file, to write it")
            }
            _ => Refusal::new(Cause::NotReadable, format!("it cannot be opened again: {error}")),
        })?;
        Ok(Arc::new(File::from(own)))
    }

    /// Leases a file and finds the places of its bytes.
    fn find(&self, file: &Arc<File>) -> Result<Found, Refusal> {
        check_break_time()?;
        // What is written under the lease is little then, and nobody waits long for its release.
        write_back(file).map_err(|e| Refusal::new(Cause::Unavailable, format!("writing: {e}")))?;
        let lease =
            LeasedFile::take(Arc::clone(file), &self.signal).map_err(|error| {
                match error.kind() {
                    ErrorKind::WouldBlock => {
                        Refusal::new(Cause::BeingWritten, "somebody has the file open for writing")
                    }
                    _ => Refusal::new(Cause::NoLease, format!("no lease: {error}")),
                }
            })?;
        let pieces_max = self.extents_max.saturating_mul(PIECES_OF_EXTENT);
        let layout = file_layout_within(file, &self.device, &self.info, pieces_max);
        let layout = layout.map_err(|refusal| refused(&refusal))?;
        let (extents, max) = (layout.extents().len(), self.extents_max);
        if extents > max {
            return Err(refused(&MapRefusal::TooManyExtents { extents, max }));
        }
        if !is_settled(file, layout.file_system(), self.trusts_owners) {
            let why = match layout.file_system() {
                FileSystem::Xfs => {
                    "on XFS the owner of a file can give its blocks away by deduplication, in spite of a \
                     lease; make it immutable (chattr +i)"
                }
                FileSystem::Ext4 => {
                    "the owner of a file can truncate it in spite of a lease (O_RDONLY with O_TRUNC); make it \
                     immutable (chattr +i), or give it to root and let nobody else write it, or trust owners \
                     (bpfof grantd --trust-owners)"
                }
            };
            return Err(Refusal::new(Cause::NotImmutable, why));
        }
        Ok(Found { lease, layout })
    }
}

/// Whether a file keeps its blocks as long as its lease is held: nobody without privileges can give them away in
/// spite of that. No lease is broken by an open with `O_RDONLY` and `O_TRUNC`, by a truncation through an overlay
/// or the kernel's NFS server, or on XFS by deduplication.
pub(crate) fn is_settled(file: &File, file_system: FileSystem, trusts_owners: bool) -> bool {
    let is_ext4 = file_system == FileSystem::Ext4;
    if trusts_owners && is_ext4 {
        return true;
    }
    let found = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MODE | StatxFlags::UID);
    found.is_ok_and(|found| {
        let is_immutable = found.stx_attributes.contains(StatxAttributes::IMMUTABLE);
        // With access control lists the group's bits are the most that any entry of theirs gives.
        is_immutable || is_ext4 && found.stx_uid == 0 && found.stx_mode & 0o022 == 0
    })
}

fn refused(refusal: &MapRefusal) -> Refusal {
    let cause = match refusal {
        refusal if refusal.is_passing() => Cause::BeingWritten,
        MapRefusal::OtherDevice { .. } => Cause::OtherPlace,
        MapRefusal::NotRegular => Cause::NotRegular,
        _ => Cause::NotMappable,
    };
    Refusal::new(cause, refusal)
}

/// Refuses to grant anything while leases are too short for the daemon to give them back in time.
pub(crate) fn check_break_time() -> Result<(), Refusal> {
    if lease_break_time().is_some_and(|time| time >= LEASE_BREAK_TIME_MIN) {
        return Ok(());
    }
    let least = LEASE_BREAK_TIME_MIN.as_secs();
    let why =
        format!("leases are too short here: set sysctl fs.lease-break-time to {least} or more");
    Err(Refusal::new(Cause::NoLease, why))
}
