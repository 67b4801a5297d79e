//! Static data of a program: constants and variables. Each chain has its own copy.

use crate::abi::STATICS;
use crate::arena::Arena;
use crate::fault_kind::FaultKind;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The initial static data of a program, as the first call of a chain finds it.
#[derive(Clone, Debug, Default)]
pub struct Statics {
    /// The bytes at [`STATICS`].
    image: Arc<[u8]>,
    /// The first bytes of the image, this many, are constants.
    constant_bytes: usize,
    /// Serial number: unique for programs with static data; 0 for programs without.
    serial: u64,
}

impl Statics {
    /// Makes an image for [`STATICS`], at most [`STATICS_BYTES`](crate::abi::STATICS_BYTES) long,
    /// whose first `constant_bytes` must not be written.
    pub(crate) fn new(image: Vec<u8>, constant_bytes: usize) -> Statics {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let serial = if image.is_empty() { 0 } else { NEXT.fetch_add(1, Ordering::Relaxed) };
        Statics { image: image.into(), constant_bytes, serial }
    }

    /// Bytes of the image.
    pub(crate) fn bytes(&self) -> usize {
        self.image.len()
    }

    /// The serial number; 0 if there is no static data.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// The image for [`STATICS`].
    pub(crate) fn image(&self) -> &[u8] {
        &self.image
    }

    /// Guest addresses of the constants.
    pub fn constants(&self) -> Range<u64> {
        STATICS..STATICS + self.constant_bytes as u64
    }

    /// Guest addresses of the variables.
    pub fn variables(&self) -> Range<u64> {
        self.constants().end..STATICS + self.image.len() as u64
    }

    /// Places the image unless this program was the last that ran on the arena in this chain. Later
    /// calls find the variables as earlier calls left them.
    #[inline]
    pub(crate) fn begin_call(&self, arena: &mut Arena) {
        if arena.statics_of() != self.serial {
            arena.place_statics(&self.image, self.serial);
        }
    }

    /// Refuses a write of `len` bytes that touches the constants.
    pub(crate) fn check_write(&self, address: u64, len: u64) -> Result<(), FaultKind> {
        let constants = self.constants();
        let past = address.saturating_add(len);
        if !constants.is_empty() && address < constants.end && past > constants.start {
            return Err(FaultKind::ReadOnly { address });
        }
        Ok(())
    }
}
