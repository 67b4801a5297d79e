//! Where a descriptor is, without asking its file system, which may never answer: what /proc says of the
//! descriptor and of the mounts.

use rustix::fs::{OFlags, makedev};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd};

/// What of fdinfo is read, in bytes: the lines that are the same for all files come first.
const INFO_MAX_BYTES: u64 = 4096;

/// What the kernel says of an open descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// How it was opened.
    pub(crate) flags: OFlags,
    /// Number of the mount that it is on.
    pub(crate) mount: u64,
}

impl Descriptor {
    /// # Errors
    /// The kernel's; `InvalidInput` if it is of no file.
    pub(crate) fn of(descriptor: BorrowedFd<'_>) -> io::Result<Self> {
        let number = descriptor.as_raw_fd();
        // What has no path, as an epoll descriptor, may have fdinfo that takes a lock which a client holds for good.
        let path = fs::read_link(format!("/proc/self/fd/{number}"))?;
        if !path.is_absolute() {
            let why = format!("it is no file: {}", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let mut text = String::new();
        let info = File::open(format!("/proc/self/fdinfo/{number}"))?;
        info.take(INFO_MAX_BYTES).read_to_string(&mut text)?;
        Self::parse(&text).ok_or_else(|| io::Error::other("fdinfo is not as expected"))
    }

    fn parse(text: &str) -> Option<Self> {
        let field = |name| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let flags = u32::from_str_radix(field("flags:")?, 8).ok()?;
        let mount = field("mnt_id:")?.parse().ok()?;
        Some(Self { flags: OFlags::from_bits_retain(flags), mount })
    }

    /// Whether it can be read: not of a path only, nor for writing only.
    pub(crate) fn is_readable(&self) -> bool {
        !self.flags.contains(OFlags::PATH) && self.flags & OFlags::RWMODE != OFlags::WRONLY
    }
}

/// The file systems that are mounted in the daemon's mount namespace, by the numbers of their mounts.
#[derive(Debug)]
pub(crate) struct Mounts(HashMap<u64, u64>);

impl Mounts {
    pub(crate) fn read() -> io::Result<Self> {
        Ok(Self::parse(&fs::read_to_string("/proc/self/mountinfo")?))
    }

    /// Lines are "ID PARENT MAJOR:MINOR …".
    fn parse(text: &str) -> Self {
        let mount = |line: &str| {
            let mut fields = line.split(' ');
            let id = fields.next()?.parse().ok()?;
            let (major, minor) = fields.nth(1)?.split_once(':')?;
            Some((id, makedev(major.parse().ok()?, minor.parse().ok()?)))
        };
        Self(text.lines().filter_map(mount).collect())
    }

    /// Device number of the file system of a mount; None if this namespace does not have it.
    pub(crate) fn device(&self, mount: u64) -> Option<u64> {
        self.0.get(&mount).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs::OpenOptions;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

    #[test]
    fn descriptors_are_described_as_they_were_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let written = File::create(&path).expect("made");
        let read = File::open(&path).expect("opened");
        let both = OpenOptions::new().read(true).write(true).open(&path).expect("opened");
        let bits = OFlags::PATH.bits().cast_signed();
        let path_only = OpenOptions::new().read(true).custom_flags(bits).open(&path);
        let readable = |file: &File| Descriptor::of(file.as_fd()).expect("described").is_readable();
        assert!(readable(&read) && readable(&both));
        assert!(!readable(&written) && !readable(&path_only.expect("opened")));
    }

    /// Of some of them fdinfo waits for locks.
    #[test]
    fn what_has_no_path_is_not_described() {
        let (pipe, _write) = std::io::pipe().expect("a pipe");
        let flags = rustix::event::EventfdFlags::empty();
        let event = rustix::event::eventfd(0, flags).expect("a descriptor");
        for descriptor in [pipe.as_fd(), event.as_fd()] {
            let error = Descriptor::of(descriptor).expect_err("it is no file");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn the_mount_of_a_file_leads_to_its_device() {
        let file = File::open("/proc/self/status").expect("opened");
        let mount = Descriptor::of(file.as_fd()).expect("described").mount;
        let device = file.metadata().expect("examined").dev();
        assert_eq!(Mounts::read().expect("read").device(mount), Some(device));
        assert_eq!(Mounts::read().expect("read").device(u64::MAX), None);
    }

    #[test]
    fn lines_are_read_as_the_kernel_documents_them() {
        let text = "36 35 98:7 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw\n\
                    37 36 0:40 / /a\\040b rw - fuse.x y rw\nnonsense\n38\n";
        let mounts = Mounts::parse(text);
        assert_eq!(mounts.device(36), Some(makedev(98, 7)));
        assert_eq!(mounts.device(37), Some(makedev(0, 40)));
        assert_eq!(mounts.0.len(), 2);
        let found = Descriptor::parse("pos:\t0\nflags:\t012100000\nmnt_id:\t29\nino:\t7\n");
        assert_eq!(found.map(|found| (found.mount, found.is_readable())), Some((29, false)));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,200}") {
            let _ = Mounts::parse(&text);
            let _ = Descriptor::parse(&text);
        }
    }
}
