//! An NVMe namespace of this machine, accessed through its character device.

use super::error::MapRefusal;
use crate::NamespaceInfo;
use bpfof_device::NvmeDevice;
use bpfof_nvme::identify::IdentifyNamespace;
use rustix::fs::{FileType, fstat};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

/// A namespace that chains read by NVMe commands from user space
/// ([`FileMaps::passthrough`](super::FileMaps::passthrough)).
#[derive(Debug)]
pub struct NvmeNamespace {
    pub(crate) device: Arc<NvmeDevice>,
    pub(crate) info: NamespaceInfo,
}

impl NvmeNamespace {
    /// The namespace with this character device, `/dev/ngXnY`. Read access to this device is read
    /// access to the whole namespace.
    ///
    /// # Errors
    /// The device cannot be opened, is no NVMe namespace, or has blocks with metadata.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, MapRefusal> {
        let path = path.into();
        let action = || format!("cannot use {} as an NVMe namespace", path.display());
        let device = NvmeDevice::open(&path).map_err(MapRefusal::io(action()))?;
        let identify = device.identify().map_err(MapRefusal::io(action()))?;
        let identify = IdentifyNamespace::from_bytes(&identify);
        let info = NamespaceInfo::from_identify(device.nsid(), &identify)
            .ok_or(MapRefusal::Inode("the namespace has no block format without metadata"))?;
        Ok(Self { device: Arc::new(device), info })
    }

    /// The namespace's data from Identify Namespace.
    #[must_use]
    pub const fn info(&self) -> NamespaceInfo {
        self.info
    }

    /// Whether `file` is this device, and so stands for the whole namespace.
    pub(crate) fn is(&self, file: &File) -> bool {
        number(file).is_some_and(|found| self.number() == Some(found))
    }

    /// Number of the character device.
    pub(crate) fn number(&self) -> Option<u64> {
        number(self.device.file())
    }
}

/// Number of a character device.
fn number(file: &File) -> Option<u64> {
    let found = fstat(file).ok()?;
    let kind = FileType::from_raw_mode(found.st_mode);
    (kind == FileType::CharacterDevice).then_some(found.st_rdev)
}
