//! Hand-written eBPF instructions.
#![allow(dead_code)] // Each test uses a part.

/// One 8-byte slot (RFC 9669 §3.1).
pub(crate) type Slot = [u8; 8];

pub(crate) const EXIT: Slot = [0x95, 0, 0, 0, 0, 0, 0, 0];

/// One slot from its fields.
pub(crate) fn slot(opcode: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> Slot {
    let [o0, o1] = offset.to_le_bytes();
    let [i0, i1, i2, i3] = immediate.to_le_bytes();
    [opcode, src << 4 | dst, o0, o1, i0, i1, i2, i3]
}

/// Sets a register to a value of 64 bits.
pub(crate) fn constant(dst: u8, value: u64) -> [Slot; 2] {
    [slot(0x18, dst, 0, 0, value as i32), slot(0, 0, 0, 0, (value >> 32) as i32)]
}
