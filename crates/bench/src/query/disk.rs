//! The queried files, on a file system whose blocks a target serves from its memory.

use super::private::tool;
use crate::machine::free_memory_bytes;
use std::fs::File;
use std::path::PathBuf;

type Failure = Box<dyn std::error::Error>;

/// Space that the file system needs itself, in bytes.
const OVERHEAD_BYTES: u64 = 64 << 20;
/// A file system in an image in memory; it disappears with this process's mounts.
pub(super) struct Disk {
    folder: tempfile::TempDir,
}

impl Disk {
    /// Makes a file system with room for files of this many bytes.
    pub(super) fn new(bytes: u64) -> Result<Disk, Failure> {
        let size = (bytes + bytes / 64 + OVERHEAD_BYTES).next_multiple_of(1 << 20);
        let free = free_memory_bytes().unwrap_or(u64::MAX);
        if free < size {
            let why = format!(
                "the files take {size} bytes of memory, and {free} are free: give a smaller --size-mib"
            );
            return Err(why.into());
        }
        let folder = tempfile::Builder::new().prefix("bpfof-bench-").tempdir()?;
        let disk = Disk { folder };
        let path = disk.folder.path().display().to_string();
        // The mount is private to this process: it is not left behind, whatever happens.
        tool("mount", &["-t", "tmpfs", "-o", "size=100%", "tmpfs", &path])?;
        File::create_new(disk.image())?.set_len(size)?;
        let (image, mount) =
            (disk.image().display().to_string(), disk.mount().display().to_string());
        tool("mkfs.ext4", &["-q", "-F", "-b", "4096", "-m", "0", "-J", "size=4", &image])?;
        std::fs::create_dir(disk.mount())?;
        tool("mount", &["-o", "loop,noatime", &image, &mount])?;
        Ok(disk)
    }

    /// The image, which is the target's namespace on this machine.
    pub(super) fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    pub(super) fn mount(&self) -> PathBuf {
        self.folder.path().join("mount")
    }

    pub(super) fn pipe(&self) -> PathBuf {
        self.folder.path().join("pipe")
    }

    /// Makes the files read-only from now on.
    pub(super) fn freeze(&self) -> Result<(), Failure> {
        let mount = self.mount().display().to_string();
        tool("sync", &["--file-system", &mount])?;
        tool("mount", &["-o", "remount,ro", &mount])?;
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let folder = self.folder.path().display().to_string();
        let _ = tool("umount", &[&self.mount().display().to_string()]);
        let _ = tool("umount", &["--lazy", &folder]);
    }
}
