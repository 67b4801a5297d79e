//! Loop devices for tests.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A loop device with blocks of 4096 bytes, detached on drop.
pub(crate) struct LoopDevice(pub(crate) PathBuf);

impl LoopDevice {
    /// `None` if no loop device can be made here.
    pub(crate) fn of(image: &Path) -> Option<LoopDevice> {
        let arguments = ["--find", "--show", "--sector-size", "4096"];
        let made = Command::new("losetup").args(arguments).arg(image).output().ok()?;
        let path = String::from_utf8(made.stdout).ok().filter(|_| made.status.success())?;
        Some(LoopDevice(path.trim().into()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}
