//! A file system in an image, mounted on this machine, so that a target can serve the same image.

use bpfof_terminal::{Outcome, run_tool};
use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file system type in `statfs` of a tmpfs.
const TMPFS: i64 = 0x0102_1994;

/// A mounted image; dropping it unmounts it, and removes it unless it is to be kept.
pub(crate) struct Image {
    path: PathBuf,
    keep: bool,
    /// The folder on which it is mounted.
    mount: tempfile::TempDir,
}

impl Image {
    /// Mounts the image `database`, which is created if it does not exist, and kept; without one an image in `folder`
    /// that is removed later.
    pub(crate) fn open(
        database: Option<&Path>,
        folder: &Path,
        size_bytes: u64,
    ) -> Result<Image, Box<dyn Error>> {
        if !rustix::process::geteuid().is_root() {
            return Err("the benchmark mounts an image with a file system, which needs root".into());
        }
        let keep = database.is_some();
        let own = || folder.join(format!("bpfof-rocksdb-{}.img", std::process::id()));
        // Absolute, because the target may have another working directory.
        let path = std::path::absolute(database.map_or_else(own, Path::to_owned))?;
        check_is_memory(path.parent().unwrap_or(Path::new("/")))?;
        if !path.exists()
            && let Err(error) = make(&path, size_bytes)
        {
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        let mount = tempfile::Builder::new().prefix("bpfof-rocksdb-").tempdir()?;
        let mut command = Command::new("mount");
        let mounted = run_tool(command.args(["-o", "loop,noatime"]).arg(&path).arg(mount.path()));
        if mounted.is_err() && !keep {
            let _ = std::fs::remove_file(&path);
        }
        mounted?;
        Ok(Image { path, keep, mount })
    }

    /// The image, which a target serves.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of RocksDB's files.
    pub(crate) fn database(&self) -> PathBuf {
        self.mount.path().join("database")
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // A killed process may still be running: then the file system is unmounted when it ends.
        let folder = self.mount.path();
        if run_tool(Command::new("umount").arg(folder)).is_err() {
            let _ = run_tool(Command::new("umount").arg("--lazy").arg(folder));
        }
        if !self.keep {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The target models the latency of a drive, so the image itself must have none.
fn check_is_memory(folder: &Path) -> Outcome {
    let system = rustix::fs::statfs(folder)
        .map_err(|error| format!("cannot examine {}: {error}", folder.display()))?;
    if system.f_type == TMPFS {
        return Ok(());
    }
    let folder = folder.display();
    Err(format!("{folder} is not in memory: the image must be on a tmpfs, such as /dev/shm").into())
}

/// Makes a sparse image.
fn make(path: &Path, size_bytes: u64) -> Outcome {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let named = |error: std::io::Error| format!("cannot make {}: {error}", path.display());
    let system = rustix::fs::statvfs(folder).map_err(|error| named(error.into()))?;
    let free = system.f_bavail * system.f_frsize;
    if free < size_bytes {
        let folder = folder.display();
        return Err(format!(
            "{folder} has room for {free} bytes, and the image may take {size_bytes}: give fewer \
             --keys or another --folder"
        )
        .into());
    }
    let file = File::create_new(path).map_err(named)?;
    file.set_len(size_bytes).map_err(named)?;
    let mut command = Command::new("mkfs.ext4");
    Ok(run_tool(command.args(["-q", "-F", "-b", "4096", "-m", "0"]).arg(path))?)
}
