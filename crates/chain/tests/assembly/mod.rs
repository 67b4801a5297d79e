//! Hand-written eBPF instructions.

pub(crate) const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];

/// An instruction (RFC 9669 §3.1).
pub(crate) fn slot(opcode: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> [u8; 8] {
    let [o0, o1] = offset.to_le_bytes();
    let [i0, i1, i2, i3] = immediate.to_le_bytes();
    [opcode, src << 4 | dst, o0, o1, i0, i1, i2, i3]
}
