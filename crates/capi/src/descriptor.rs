//! What a descriptor of the caller's stands for, and opening the same file again.
#![allow(unsafe_code)]

use crate::failure::Failure;
use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::FromRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Device and inode: tells files apart as long as one of them is open.
pub(crate) type Identity = (u64, u64);

/// The regular file that `fd` stands for.
pub(crate) fn identity(fd: c_int) -> Result<Identity, Failure> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel looks whether the descriptor is open; it writes a struct stat, for which
    // there is room.
    if unsafe { libc::fstat(fd, found.as_mut_ptr()) } < 0 {
        let error = io::Error::last_os_error();
        return Err(Failure::io(&format!("cannot examine descriptor {fd}"), &error));
    }
    // SAFETY: the call succeeded, so the kernel has written it.
    let found = unsafe { found.assume_init() };
    match found.st_mode & libc::S_IFMT {
        libc::S_IFREG => Ok((found.st_dev, found.st_ino)),
        libc::S_IFDIR => {
            Err(Failure::new(libc::EISDIR, format!("descriptor {fd} is of a directory")))
        }
        _ => {
            let why = "chains read regular files";
            Err(Failure::new(libc::EINVAL, format!("descriptor {fd} is of no file: {why}")))
        }
    }
}

/// A file that was opened again.
pub(crate) struct Reopened {
    pub(crate) file: File,
    /// What it is called.
    pub(crate) path: PathBuf,
    /// Whether the caller has the same open file.
    pub(crate) is_duplicate: bool,
}

/// The file of `fd`, opened again for reading only.
///
/// An open file of its own, so that a lease is possible although the caller may have it open for
/// writing later, and that reads are not bound by the caller's O_DIRECT.
pub(crate) fn reopen(fd: c_int, identity: Identity) -> Result<Reopened, Failure> {
    // SAFETY: takes no memory of ours; the kernel looks whether the descriptor is open.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    let writes_only = flags & libc::O_ACCMODE == libc::O_WRONLY || flags & libc::O_PATH != 0;
    if flags < 0 || writes_only {
        let why = format!("descriptor {fd} is not open for reading");
        return Err(Failure::new(libc::EBADF, why));
    }
    let link = format!("/proc/self/fd/{fd}");
    let path = std::fs::read_link(&link).unwrap_or_else(|_| PathBuf::from(&link));
    // Without /proc, or where the caller was given a descriptor of a file that it may not open:
    // shared with the caller then, but open for as long as we need it.
    let opened = File::open(&link).map(|file| (file, false));
    let opened = opened.or_else(|_| duplicate(fd).map(|file| (file, true)));
    let (file, is_duplicate) = opened.map_err(|error| {
        Failure::io(&format!("cannot open {} (descriptor {fd}) again", path.display()), &error)
    })?;
    let found = file.metadata().map_err(|error| {
        Failure::io(&format!("cannot examine {} (descriptor {fd})", path.display()), &error)
    })?;
    if (found.dev(), found.ino()) != identity {
        let why = format!("descriptor {fd} became another file during the call");
        return Err(Failure::new(libc::EBADF, why));
    }
    Ok(Reopened { file, path, is_duplicate })
}

fn duplicate(fd: c_int) -> io::Result<File> {
    // SAFETY: takes no memory of ours; the kernel looks whether the descriptor is open.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it, for us alone.
    Ok(unsafe { File::from_raw_fd(copy) })
}
