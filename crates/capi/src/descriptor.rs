//! Identifies the file of a caller's descriptor, and opens it again.
#![allow(unsafe_code)]

use crate::failure::Failure;
use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::FromRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Device and inode: identify a file as long as it is open.
pub(crate) type Identity = (u64, u64);

/// The identity of the regular file behind `fd`.
pub(crate) fn identity(fd: c_int) -> Result<Identity, Failure> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel checks whether the descriptor is open; it writes a struct stat, for which
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
            Err(Failure::new(libc::EISDIR, format!("descriptor {fd} refers to a directory")))
        }
        _ => {
            let why = "chains read only regular files";
            Err(Failure::new(
                libc::EINVAL,
                format!("descriptor {fd} does not refer to a regular file: {why}"),
            ))
        }
    }
}

/// A file that was opened again.
pub(crate) struct Reopened {
    pub(crate) file: File,
    /// Its path.
    pub(crate) path: PathBuf,
    /// Whether it shares the caller's open file description.
    pub(crate) is_duplicate: bool,
}

/// Opens the file of `fd` again, for reading only.
///
/// The new open file description can be leased even if the caller later opens the file for writing,
/// and its reads are not restricted by the caller's O_DIRECT.
pub(crate) fn reopen(fd: c_int, identity: Identity) -> Result<Reopened, Failure> {
    // SAFETY: takes no memory of ours; the kernel checks whether the descriptor is open.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    let writes_only = flags & libc::O_ACCMODE == libc::O_WRONLY || flags & libc::O_PATH != 0;
    if flags < 0 || writes_only {
        let why = format!("descriptor {fd} is not open for reading");
        return Err(Failure::new(libc::EBADF, why));
    }
    let link = format!("/proc/self/fd/{fd}");
    let path = std::fs::read_link(&link).unwrap_or_else(|_| PathBuf::from(&link));
    // Without /proc, or if the process may not open the file itself, duplicate the descriptor: it
    // shares the caller's open file description, but stays open as long as it is needed.
    let opened = File::open(&link).map(|file| (file, false));
    let opened = opened.or_else(|_| duplicate(fd).map(|file| (file, true)));
    let (file, is_duplicate) = opened.map_err(|error| {
        Failure::io(&format!("cannot reopen {} (descriptor {fd})", path.display()), &error)
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
    // SAFETY: takes no memory of ours; the kernel checks whether the descriptor is open.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created it for this call, so no other code owns it.
    Ok(unsafe { File::from_raw_fd(copy) })
}
