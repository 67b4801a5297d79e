//! Consecutive fields, decoded as in `bpfof/blocks.h`.

/// The rest of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    /// The bytes from `offset` on.
    pub(crate) fn at(block: &'a [u8], offset: usize) -> Option<Self> {
        block.get(offset..).map(Bytes)
    }

    pub(crate) fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number of at most `bits` bits in groups of seven, the lowest first.
    pub(crate) fn varint(&mut self, bits: u32) -> Option<u64> {
        let mut value = 0;
        for shift in (0..bits).step_by(7) {
            let byte = u64::from(self.u8()?);
            if shift + 7 > bits && byte >> (bits - shift) != 0 {
                return None;
            }
            value |= (byte & 127) << shift;
            if byte < 128 {
                return Some(value);
            }
        }
        None
    }
}

pub(crate) fn push_varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 128 {
        to.push(value as u8 | 128);
        value >>= 7;
    }
    to.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_of_all_lengths() {
        for shift in 0..64 {
            for value in [1_u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut bytes = Vec::new();
                push_varint(&mut bytes, value);
                assert_eq!(Bytes(&bytes).varint(64), Some(value));
                let fits = u32::try_from(value).is_ok();
                assert_eq!(Bytes(&bytes).varint(32), fits.then_some(value));
                bytes.pop();
                assert_eq!(Bytes(&bytes).varint(64), None);
            }
        }
        assert_eq!(Bytes(&[255; 10]).varint(64), None);
        assert_eq!(Bytes(&[128; 11]).varint(64), None);
    }
}
