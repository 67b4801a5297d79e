//! Static data of a program: constants and variables, each chain with its own.

use crate::abi::STATICS;
use crate::arena::Arena;
use crate::fault_kind::FaultKind;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a program's static data is when its first call of a chain begins.
#[derive(Clone, Debug, Default)]
pub struct Statics {
    /// From [`STATICS`] on.
    image: Arc<[u8]>,
    /// How many bytes of it, from the start, are constants.
    constant_bytes: usize,
    /// Whose it is: differs for all programs that have any; 0 for those that have none.
    serial: u64,
}

impl Statics {
    /// An image for [`STATICS`] on, at most [`STATICS_BYTES`](crate::abi::STATICS_BYTES) long, of
    /// which the first `constant_bytes` must not be written.
    pub(crate) fn new(image: Vec<u8>, constant_bytes: usize) -> Statics {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let serial = if image.is_empty() { 0 } else { NEXT.fetch_add(1, Ordering::Relaxed) };
        Statics { image: image.into(), constant_bytes, serial }
    }

    /// Bytes of the image.
    pub(crate) fn bytes(&self) -> usize {
        self.image.len()
    }

    /// Whose it is: 0 if there is none.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// The image, from [`STATICS`] on.
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

    /// Places the image if this program was not the last that ran on the arena, in this chain.
    /// Later calls find what the earlier ones made of it.
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
