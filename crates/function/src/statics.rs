//! Static data of a program: constants and variables, each chain with its own.

use crate::abi::{STATICS, context};
use crate::arena::Arena;
use crate::fault::FaultKind;
use std::ops::Range;
use std::sync::Arc;

/// What a program's static data is when a chain begins.
#[derive(Clone, Debug, Default)]
pub struct Statics {
    /// From [`STATICS`] on.
    image: Arc<[u8]>,
    /// How many bytes of it, from the start, are constants.
    constant_bytes: usize,
}

impl Statics {
    /// An image for [`STATICS`] on, at most [`STATICS_BYTES`](crate::abi::STATICS_BYTES) long, of
    /// which the first `constant_bytes` must not be written.
    pub(crate) fn new(image: Vec<u8>, constant_bytes: usize) -> Statics {
        Statics { image: image.into(), constant_bytes }
    }

    /// Guest addresses of the constants.
    pub fn constants(&self) -> Range<u64> {
        STATICS..STATICS + self.constant_bytes as u64
    }

    /// Guest addresses of the variables.
    pub fn variables(&self) -> Range<u64> {
        self.constants().end..STATICS + self.image.len() as u64
    }

    /// Puts the image into the arena, as the first call of a chain does by itself.
    pub fn place(&self, arena: &mut Arena) {
        arena.place_statics(&self.image);
    }

    /// Places the image if this is the first call of a chain. Later calls find what the earlier
    /// ones made of it.
    #[inline]
    pub(crate) fn begin_call(&self, arena: &mut Arena) {
        // Hop 0 has one read, and so one call.
        if !self.image.is_empty() && arena.context_u32(context::HOP) == 0 {
            self.place(arena);
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
