//! Structure out of bytes.

/// Reads structured values from the input bytes; zeroes after their end, which stand for honest
/// behaviour.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    pub(super) fn number16(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// An index into a list of this length; 0 if it is empty.
    pub(super) fn index(&mut self, length: usize) -> usize {
        usize::from(self.number16()) % length.max(1)
    }

    /// At most `length` bytes.
    pub(super) fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
