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

    /// At most `length` bytes.
    pub(super) fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A kind of lie from 1 to `kinds`; mostly 0, none.
    pub(super) fn lie(&mut self, kinds: u8) -> u8 {
        self.byte().checked_sub(176).map_or(0, |lie| lie % kinds + 1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sometimes changes a byte of a message, cuts it, or adds to it.
    pub(super) fn damage(&mut self, message: &mut Vec<u8>) {
        match self.lie(4) {
            1 if !message.is_empty() => {
                let at = usize::from(self.number16()) % message.len();
                message[at] ^= self.byte();
            }
            // In the range of the fields.
            2 if !message.is_empty() => {
                let at = usize::from(self.byte()) % message.len().min(16);
                message[at] = self.byte();
            }
            3 => message.truncate(usize::from(self.number16()) % (message.len() + 1)),
            4 => {
                let length = usize::from(self.byte());
                message.extend_from_slice(self.bytes(length));
            }
            _ => {}
        }
    }
}
