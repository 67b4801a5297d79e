//! The location of a command's data: its SGL descriptor, read once (NVMe Base 2.0 §4.1.2).

use crate::sqe::Sgl;

/// Location of the data that a command sends or receives. Lengths are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataPointer {
    /// There is no data: a transport or keyed descriptor of length 0.
    #[default]
    None,
    /// In the capsule, behind the command (NVMe Base 2.0 §4.1.2: data block with an offset).
    InCapsule {
        /// Offset of the data in the capsule.
        offset_bytes: u64,
        /// Its length.
        length_bytes: u32,
    },
    /// The transport moves it, in PDUs of its own (NVMe/TCP 1.0 §3.6.2.6: transport data block).
    Transport {
        /// Length of the host's data or buffer.
        length_bytes: u32,
    },
    /// In memory of the host that the controller reads and writes itself (NVMe Base 2.0 §4.1.2: keyed
    /// data block).
    Keyed {
        /// Start address.
        address: u64,
        /// Length of the host's data or buffer.
        length_bytes: u32,
        /// Key of the memory.
        key: u32,
        /// The key is to be invalidated with the response.
        invalidate: bool,
    },
    /// Any other kind of descriptor.
    Unknown(u8),
}

impl DataPointer {
    /// Reads a descriptor.
    #[must_use]
    #[inline]
    pub fn of(sgl: &Sgl) -> DataPointer {
        match sgl.kind {
            Sgl::IN_CAPSULE_OFFSET => {
                DataPointer::InCapsule { offset_bytes: sgl.address, length_bytes: sgl.length_bytes }
            }
            Sgl::TRANSPORT if sgl.length_bytes == 0 => DataPointer::None,
            Sgl::TRANSPORT => DataPointer::Transport { length_bytes: sgl.length_bytes },
            Sgl::KEYED | Sgl::KEYED_INVALIDATE => keyed(sgl),
            kind => DataPointer::Unknown(kind),
        }
    }

    /// Length of the data, or of the buffer for it.
    #[must_use]
    #[inline]
    pub fn length_bytes(self) -> u32 {
        match self {
            DataPointer::None | DataPointer::Unknown(_) => 0,
            DataPointer::InCapsule { length_bytes, .. }
            | DataPointer::Transport { length_bytes }
            | DataPointer::Keyed { length_bytes, .. } => length_bytes,
        }
    }

    /// Whether the data is sent from or to the host outside the capsule.
    #[must_use]
    #[inline]
    pub fn is_remote(self) -> bool {
        matches!(self, DataPointer::Transport { .. } | DataPointer::Keyed { .. })
    }
}

/// The length of a keyed descriptor has three bytes; its key begins where the length of others has its fourth.
fn keyed(sgl: &Sgl) -> DataPointer {
    let [a, b, c, key] = sgl.length_bytes.to_le_bytes();
    let length_bytes = u32::from_le_bytes([a, b, c, 0]);
    if length_bytes == 0 {
        return DataPointer::None;
    }
    let [d, e, f] = sgl.reserved;
    DataPointer::Keyed {
        address: sgl.address,
        length_bytes,
        key: u32::from_le_bytes([key, d, e, f]),
        invalidate: sgl.kind == Sgl::KEYED_INVALIDATE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_read_as_they_are_written() {
        let offset_bytes = 0;
        let cases = [
            (Sgl::in_capsule(5), DataPointer::InCapsule { offset_bytes, length_bytes: 5 }),
            (Sgl::in_capsule(0), DataPointer::InCapsule { offset_bytes, length_bytes: 0 }),
            (Sgl::transport(512), DataPointer::Transport { length_bytes: 512 }),
            (Sgl::transport(0), DataPointer::None),
            (Sgl::keyed(0, 0, 0), DataPointer::None),
            (Sgl { kind: 0x20, ..Sgl::transport(7) }, DataPointer::Unknown(0x20)),
        ];
        for (sgl, pointer) in cases {
            assert_eq!(DataPointer::of(&sgl), pointer);
        }
        let keyed = Sgl::keyed(0x1122_3344_5566_7788, 0xff_fffe, 0xa1b2_c3d4);
        let expected = DataPointer::Keyed {
            address: 0x1122_3344_5566_7788,
            length_bytes: 0xff_fffe,
            key: 0xa1b2_c3d4,
            invalidate: false,
        };
        assert_eq!(DataPointer::of(&keyed), expected);
        assert!(expected.is_remote() && expected.length_bytes() == 0xff_fffe);
        let invalidated = DataPointer::of(&Sgl { kind: Sgl::KEYED_INVALIDATE, ..keyed });
        assert!(matches!(invalidated, DataPointer::Keyed { invalidate: true, .. }));
    }
}
