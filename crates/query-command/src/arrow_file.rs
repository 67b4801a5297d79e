//! The file that an Arrow answer is written to.

use bpfof_terminal::folder::{folder_of, sync_folder};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::{Builder, NamedTempFile};

/// Maximum symbolic links to follow, as in the kernel.
const LINKS_MAX: usize = 40;

/// How often to check whether a pipe has a reader.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The destination of an Arrow answer.
#[derive(Debug)]
pub(crate) enum ArrowFile {
    /// A temporary file in the folder of this path, which replaces the path in the end.
    Beside(NamedTempFile, PathBuf),
    /// A pipe or a device, which is written to directly.
    Direct(File),
}

impl ArrowFile {
    /// Opens the file of this path, following symbolic links. A regular file keeps its contents until
    /// [`finish`](Self::finish). It keeps its mode, and its owner if root writes it. For a pipe, waits until it has a
    /// reader or `stop` is set.
    pub(crate) fn open(path: &Path, stop: &AtomicBool) -> io::Result<Self> {
        let (path, known) = match fs::metadata(path) {
            Ok(known) if known.is_file() => (fs::canonicalize(path)?, Some(known)),
            Ok(known) if known.file_type().is_fifo() => {
                return pipe(path, stop).map(Self::Direct);
            }
            Ok(_) => return File::options().write(true).open(path).map(Self::Direct),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (behind_links(path)?, None),
            Err(error) => return Err(error),
        };
        let folder = folder_of(&path);
        // Never more rights than the file had, not even for a moment. The kernel applies the umask.
        let first = known.as_ref().map_or(0o666, |known| mode(known) & 0o600);
        let file = Builder::new().permissions(Permissions::from_mode(first)).tempfile_in(folder)?;
        if let Some(known) = known {
            // Only root can change the owner.
            let _ = fchown(&file, Some(known.uid()), Some(known.gid()));
            // A different group gets no rights.
            let of_group =
                if file.as_file().metadata()?.gid() == known.gid() { 0o777 } else { 0o707 };
            let kept = Permissions::from_mode(mode(&known) & of_group);
            file.as_file().set_permissions(kept)?;
        }
        Ok(Self::Beside(file, path))
    }

    pub(crate) fn as_file(&self) -> &File {
        match self {
            Self::Beside(file, _) => file.as_file(),
            Self::Direct(file) => file,
        }
    }

    /// Completes the answer. A file is then in place durably, even after a power failure.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self {
            Self::Beside(file, path) => {
                // Otherwise the name may be durable before the contents.
                file.as_file().sync_all()?;
                file.persist(&path).map_err(|failed| failed.error)?;
                sync_folder(&path)
            }
            Self::Direct(_) => Ok(()),
        }
    }
}

/// Opens a pipe once it has a reader.
fn pipe(path: &Path, stop: &AtomicBool) -> io::Result<File> {
    let mut how = File::options();
    how.write(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
    let mut opened = None;
    wait_until(stop, || match how.open(path) {
        Ok(file) => {
            opened = Some(file);
            Ok(true)
        }
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => {
            std::thread::sleep(LOOK_AGAIN);
            Ok(false)
        }
        Err(error) => Err(error),
    })?;
    let file = opened.ok_or_else(interrupted)?;
    rustix::fs::fcntl_setfl(&file, rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

fn interrupted() -> io::Error {
    // Not the kind `Interrupted`, after which writers retry.
    io::Error::other("interrupted")
}

/// Checks repeatedly until the condition holds, or `stop` is set, which is an error.
pub(crate) fn wait_until(
    stop: &AtomicBool,
    mut is_so: impl FnMut() -> io::Result<bool>,
) -> io::Result<()> {
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(interrupted());
        }
        if is_so()? {
            return Ok(());
        }
    }
}

/// The mode without the set-user-id, set-group-id and sticky bits.
fn mode(of: &Metadata) -> u32 {
    of.permissions().mode() & 0o777
}

/// The path that a path leads to through symbolic links; it need not exist.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&path) {
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}
