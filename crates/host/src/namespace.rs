//! What a lane must know about a namespace.

use bpfof_nvme::identify::IdentifyNamespace;

/// A namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Namespace id.
    pub nsid: u32,
    /// Size in logical blocks.
    pub blocks: u64,
    /// Size of a logical block in bytes, a power of two from 512 on.
    pub block_bytes: u32,
    /// Globally unique identifier, zero if none (NVM Command Set 1.0 §4.1.5.1, NGUID).
    pub nguid: [u8; 16],
}

impl NamespaceInfo {
    /// From the answer to Identify; `None` if its block size is invalid, or it carries metadata,
    /// which no lane can transfer.
    pub(crate) fn from_identify(nsid: u32, identify: &IdentifyNamespace) -> Option<Self> {
        let format = identify.format();
        let block_bytes = format.block_bytes().filter(|_| format.metadata_bytes == 0)?;
        Some(Self { nsid, blocks: identify.nsze, block_bytes, nguid: identify.nguid })
    }

    /// Size in bytes; saturates where a target claims more than 2^64.
    #[must_use]
    pub const fn size_bytes(&self) -> u64 {
        self.blocks.saturating_mul(self.block_bytes as u64)
    }
}
