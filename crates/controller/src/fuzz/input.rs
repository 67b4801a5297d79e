//! Turns bytes into structured choices.

use crate::limits::MAX_TRANSFER_BYTES;
use crate::rig::NAMESPACE_BYTES;

/// Structured choices from bytes; zeroes when the bytes are used up.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        head
    }

    pub(super) fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    pub(super) fn number(&mut self) -> u64 {
        let mut bytes = [0; 8];
        for (to, from) in bytes.iter_mut().zip(self.bytes(8)) {
            *to = *from;
        }
        u64::from_le_bytes(bytes)
    }

    /// A number at or near a limit, a small one, or any number.
    pub(super) fn edge(&mut self) -> u64 {
        match self.byte() % 12 {
            0 => 0,
            1 => 512,
            2 => 4096,
            3 => 8192,
            4 => u64::from(MAX_TRANSFER_BYTES),
            5 => NAMESPACE_BYTES,
            6 => u64::MAX,
            7 => u64::MAX - 511,
            8 => u64::from(u32::MAX),
            9 => self.number(),
            _ => u64::from(self.byte()),
        }
    }
}
