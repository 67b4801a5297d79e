//! Writes databases, to files and to the namespaces of targets.

use crate::error::WriteError;
use crate::session::connect;
use bpfkv::create::{Extent, Progress, write_database};
use bpfof_host::{Error, Options, TargetUrl};
use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::cell::Cell;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Largest logical block of a target that is written to: some are held in memory.
const BLOCK_MAX_BYTES: u32 = 128 << 10;

/// Writes a database to a file that does not exist yet. It is called PATH.partial until it is complete; if this process
/// ends before that, another attempt replaces the partial file. After an error there is no file, unless it is the name
/// that could not be made durable.
///
/// # Errors
/// [`WriteError`].
pub fn create_file(path: &Path, extent: &Extent, progress: Progress<'_>) -> Result<(), WriteError> {
    let named = |source| WriteError::File { path: path.to_owned(), source };
    // A dangling symbolic link counts as well: the complete file gets its name by a rename that replaces nothing.
    if path.symlink_metadata().is_ok() {
        return Err(named(ErrorKind::AlreadyExists.into()));
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let file = open_partial(&partial).map_err(named)?;
    let written = write_file(&file, extent, progress, &named);
    let whole = written.and_then(|()| publish(&partial, path).map_err(named));
    if whole.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    whole
}

/// Creates and locks an empty file under the partial name. An existing file of that name is replaced, unless another
/// process is writing it. It is never overwritten in place: it may be a complete database with another name as well.
fn open_partial(partial: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // The open must not block on a FIFO, nor follow a symbolic link.
    options.write(true).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    loop {
        let left = match options.open(partial) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
                let why = format!("{} is a symbolic link", partial.display());
                return Err(io::Error::new(error.kind(), why));
            }
            Err(error) => return Err(error),
        };
        if let Some(left) = left {
            lock(&left, partial)?;
            if is_at(&left, partial)? {
                std::fs::remove_file(partial)?;
            }
        }
        let file = match options.clone().create_new(true).open(partial) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(error),
        };
        lock(&file, partial)?;
        if is_at(&file, partial)? {
            return Ok(file);
        }
    }
}

/// Locks a partial file. The lock is free if the creation that wrote the file was killed.
fn lock(file: &File, partial: &Path) -> io::Result<()> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => {
            let why = format!("another process is writing {}", partial.display());
            io::Error::new(ErrorKind::ResourceBusy, why)
        }
        TryLockError::Error(error) => error,
    })
}

/// Whether `path` names this file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match std::fs::symlink_metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Gives a complete file its name. Fails if a file of that name has been created meanwhile.
fn publish(partial: &Path, path: &Path) -> io::Result<()> {
    match renameat_with(CWD, partial, CWD, path, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        // Not every file system supports this flag.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            std::fs::hard_link(partial, path)?;
            std::fs::remove_file(partial)?;
        }
        Err(error) => return Err(error.into()),
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // The directory is not readable, or its file system does not sync directories.
        Err(error)
            if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::InvalidInput) =>
        {
            Ok(())
        }
        synced => synced,
    }
}

fn write_file(
    file: &File,
    extent: &Extent,
    progress: Progress<'_>,
    named: &dyn Fn(io::Error) -> WriteError,
) -> Result<(), WriteError> {
    file.set_len(extent.layout().file_bytes()).map_err(named)?;
    write_database(extent, &mut |offset, bytes| file.write_all_at(bytes, offset), progress)
        .map_err(|error| WriteError::of(error, || "no database was created".to_owned()))?;
    file.sync_all().map_err(named)
}

/// Writes a database over a target's namespace. The root is written last, so that an unfinished creation leaves no
/// database.
///
/// # Errors
/// [`WriteError`].
pub fn create_on_target(
    url: &TargetUrl,
    extent: &Extent,
    progress: Progress<'_>,
) -> Result<(), WriteError> {
    let (mut controller, mut lane) = connect(url, Options::default())?;
    let nsid = url.nsid;
    let info = controller.identify_namespace(nsid)?;
    if info.block_bytes > BLOCK_MAX_BYTES {
        return Err(Error::BadAnswer("logical blocks above 128 KiB").into());
    }
    let (have_bytes, need_bytes) = (info.size_bytes(), extent.layout().file_bytes());
    if have_bytes < need_bytes {
        let levels = extent.layout().levels();
        return Err(WriteError::TooSmall { nsid, have_bytes, levels, need_bytes });
    }
    let mut blocks = WholeBlocks { block: info.block_bytes as usize, offset: 0, data: Vec::new() };
    let mut root = Vec::new();
    let is_erased = Cell::new(false);
    let mut send = |offset, bytes: &[u8]| match offset {
        0 => {
            is_erased.set(true);
            let (first, rest) = bytes.split_at(info.block_bytes as usize);
            root = first.to_vec();
            // Erase the root of a former database durably before overwriting its other nodes.
            lane.write(nsid, 0, &vec![0; root.len()])
                .and_then(|()| lane.flush(nsid))
                .and_then(|()| match rest {
                    [] => Ok(()),
                    rest => lane.write(nsid, root.len() as u64, rest),
                })
                .map_err(io::Error::other)
        }
        _ => lane.write(nsid, offset, bytes).map_err(io::Error::other),
    };
    write_database(extent, &mut |offset, bytes| blocks.write(offset, bytes, &mut send), progress)
        .map_err(|error| {
        WriteError::of(error, || match is_erased.get() {
            true => format!("namespace {nsid} has no usable database now; create it again"),
            false => format!("namespace {nsid} is unchanged"),
        })
    })?;
    blocks.finish(&mut send).map_err(WriteError::End)?;
    lane.flush(nsid)?;
    lane.write(nsid, 0, &root)?;
    lane.flush(nsid)?;
    controller.disconnect()?;
    Ok(())
}

/// Makes writes of whole logical blocks out of writes of 512-byte blocks at ascending offsets. Gaps
/// between the writes become zero, as far as they share a logical block with a write.
struct WholeBlocks {
    block: usize,
    /// Offset of `data` in the namespace: a multiple of the block.
    offset: u64,
    data: Vec<u8>,
}

type Send<'a> = &'a mut dyn FnMut(u64, &[u8]) -> io::Result<()>;

impl WholeBlocks {
    fn write(&mut self, offset: u64, bytes: &[u8], send: Send<'_>) -> io::Result<()> {
        let end = self.offset + self.data.len() as u64;
        if offset >= end.next_multiple_of(self.block as u64) && offset != end {
            self.finish(send)?;
            self.offset = offset / self.block as u64 * self.block as u64;
        }
        self.data.resize((offset - self.offset) as usize, 0);
        self.data.extend_from_slice(bytes);
        let whole = self.data.len() / self.block * self.block;
        if whole > 0 {
            send(self.offset, &self.data[..whole])?;
            self.data.drain(..whole);
            self.offset += whole as u64;
        }
        Ok(())
    }

    fn finish(&mut self, send: Send<'_>) -> io::Result<()> {
        if self.data.is_empty() {
            return Ok(());
        }
        self.data.resize(self.data.len().next_multiple_of(self.block), 0);
        send(self.offset, &self.data)?;
        self.data.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::ops::ControlFlow;

    /// A directory of its own, with the paths of a database and of its partial file.
    fn place() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let [path, partial] = ["db", "db.partial"].map(|name| folder.path().join(name));
        (folder, path, partial)
    }

    fn create(path: &Path) -> Result<(), WriteError> {
        let extent = Extent::full(2).expect("two levels");
        create_file(path, &extent, &mut |_, _| ControlFlow::Continue(()))
    }

    #[test]
    fn a_file_left_under_the_partial_name_is_not_written() {
        let (folder, path, partial) = place();
        let published = folder.path().join("published");
        fs::write(&published, "whole").expect("written");
        fs::hard_link(&published, &partial).expect("linked");
        create(&path).expect("created");
        assert_eq!(fs::read(&published).expect("read"), b"whole");
        assert_eq!(fs::metadata(&path).expect("there").nlink(), 1);
        assert!(!partial.exists());

        let second = folder.path().join("second");
        std::os::unix::fs::symlink(&published, folder.path().join("second.partial")).expect("made");
        let refused = create(&second).expect_err("it is a link").to_string();
        assert!(refused.contains("second.partial is a symbolic link"), "{refused}");
        assert_eq!(fs::read(&published).expect("read"), b"whole");
        assert!(!second.exists());
    }

    #[test]
    fn a_link_that_leads_nowhere_is_refused_before_anything_is_written() {
        let (folder, path, partial) = place();
        std::os::unix::fs::symlink(folder.path().join("none"), &path).expect("made");
        let extent = Extent::full(2).expect("two levels");
        let refused = create_file(&path, &extent, &mut |_, _| panic!("it writes"));
        assert!(refused.expect_err("it is a link").to_string().contains("exists"));
        assert!(path.is_symlink() && !partial.exists());
    }

    #[test]
    fn a_creation_that_is_stopped_leaves_nothing() {
        let (_folder, path, partial) = place();
        let extent = Extent::full(2).expect("two levels");
        let stopped = create_file(&path, &extent, &mut |_, _| ControlFlow::Break(()));
        let stopped = stopped.expect_err("it was stopped");
        assert!(matches!(stopped, WriteError::Interrupted(_)));
        assert_eq!(stopped.to_string(), "interrupted: no database was created");
        assert!(!path.exists() && !partial.exists());
    }

    #[test]
    fn a_concurrent_creation_is_reported() {
        let (_folder, path, partial) = place();
        let running = File::create(&partial).expect("made");
        running.lock().expect("it is not locked");
        let refused = create(&path).expect_err("it is being written").to_string();
        assert!(refused.contains("another process is writing"), "{refused}");
        assert!(!path.exists() && partial.exists());
    }

    /// A file that another process creates meanwhile is kept.
    #[test]
    fn no_file_is_replaced() {
        let (_folder, path, partial) = place();
        let extent = Extent::full(2).expect("two levels");
        let failed = create_file(&path, &extent, &mut |_, _| {
            fs::write(&path, "other").expect("written");
            ControlFlow::Continue(())
        });
        assert!(failed.expect_err("there is another").to_string().contains("exists"));
        assert_eq!(fs::read(&path).expect("read"), b"other");
        assert!(!partial.exists());
        fs::remove_file(&path).expect("removed");
        create(&path).expect("created");
    }

    #[test]
    fn unaligned_writes_become_whole_blocks() {
        let mut disk = vec![0xff; 65536];
        let mut send = |offset: u64, bytes: &[u8]| {
            assert!(offset.is_multiple_of(4096) && bytes.len().is_multiple_of(4096));
            disk[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
            Ok(())
        };
        let mut blocks = WholeBlocks { block: 4096, offset: 0, data: Vec::new() };
        for (offset, length, byte) in
            [(0, 512, 1), (512, 8192, 2), (9216, 512, 3), (33280, 4096, 4), (61440, 4096, 5)]
        {
            blocks.write(offset, &vec![byte; length], &mut send).expect("sends");
        }
        blocks.finish(&mut send).expect("sends");
        let expected = |at: usize| match at {
            0..512 => 1,
            512..8704 => 2,
            8704..9216 => 0,
            9216..9728 => 3,
            9728..12288 => 0,
            12288..32768 => 0xff,
            32768..33280 => 0,
            33280..37376 => 4,
            37376..40960 => 0,
            61440.. => 5,
            _ => 0xff,
        };
        let wrong = disk.iter().enumerate().position(|(at, byte)| *byte != expected(at));
        assert_eq!(wrong, None);
    }
}
