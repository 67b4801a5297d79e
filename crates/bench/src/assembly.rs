//! Programs generated instruction by instruction (RFC 9669), to measure their costs.

use bpfof_function::abi::context;
use bpfof_function::helper::Helper;

/// One instruction: opcode, destination and source register, offset, immediate.
pub(crate) fn slot(opcode: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> [u8; 8] {
    let [low, high] = offset.to_le_bytes();
    let [a, b, c, d] = immediate.to_le_bytes();
    [opcode, dst | src << 4, low, high, a, b, c, d]
}

pub(crate) fn move_register(dst: u8, src: u8) -> [u8; 8] {
    slot(0xbf, dst, src, 0, 0)
}

pub(crate) fn move_immediate(dst: u8, value: i32) -> [u8; 8] {
    slot(0xb7, dst, 0, 0, value)
}

pub(crate) fn add_immediate(dst: u8, value: i32) -> [u8; 8] {
    slot(0x07, dst, 0, 0, value)
}

pub(crate) fn call(helper: Helper) -> [u8; 8] {
    slot(0x85, 0, 0, 0, helper as i32)
}

/// `dst = the data pointer of the context in r1`.
pub(crate) fn load_data_pointer(dst: u8) -> [u8; 8] {
    slot(0x79, dst, 1, context::DATA as i16, 0)
}

/// `dst = the scratch pointer of the context in r1`.
pub(crate) fn load_scratch_pointer(dst: u8) -> [u8; 8] {
    slot(0x79, dst, 1, context::SCRATCH as i16, 0)
}

/// Returns 0.
pub(crate) fn finish() -> [[u8; 8]; 2] {
    [move_immediate(0, 0), slot(0x95, 0, 0, 0, 0)]
}

/// A program of exactly `slots` instructions, at least 8, that resembles real ones: it loads from the block, computes,
/// branches over a few instructions, and stores to scratch, all in a loop.
pub(crate) fn program(slots: usize) -> Vec<u8> {
    let mut code = vec![load_data_pointer(6), load_scratch_pointer(7), move_immediate(0, 0)];
    // The end of the loop and the instructions after it.
    let tail = 2 + finish().len();
    let body = slots.saturating_sub(code.len() + tail);
    let begin = code.len();
    for unit in 0..body / 7 {
        let at = (unit * 8 % 504) as i16;
        code.extend([
            slot(0x61, 3, 6, at, 0),     // r3 = *(u32 *)(r6 + at)
            slot(0x0f, 0, 3, 0, 0),      // r0 += r3
            slot(0xa7, 0, 0, 0, 0x5bd1), // r0 ^= 0x5bd1
            slot(0x25, 3, 0, 2, 1000),   // if r3 > 1000 skip 2
            slot(0x67, 0, 0, 0, 3),      // r0 <<= 3
            slot(0x7b, 7, 0, at, 0),     // *(u64 *)(r7 + at) = r0
            slot(0x1f, 0, 3, 0, 0),      // r0 -= r3
        ]);
    }
    code.resize(begin + body, add_immediate(0, 1));
    let back = begin as i64 - (code.len() as i64 + 2);
    // The loop runs once, which the translator cannot know.
    code.push(move_immediate(8, 0));
    code.push(slot(0x55, 8, 0, back as i16, 0)); // if r8 != 0 goto the begin
    code.extend(finish());
    code.concat()
}

/// An ELF object (ELF-64, `EM_BPF`) with this code as its only entry point.
pub(crate) fn object(code: &[u8]) -> Vec<u8> {
    const HEADER_BYTES: u64 = 64;
    const NAMES: &[u8] = b"\0.strtab\0bpfof/generated\0";
    let names_at = HEADER_BYTES + code.len() as u64;
    let sections_at = (names_at + NAMES.len() as u64).next_multiple_of(8);
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let half = |elf: &mut Vec<u8>, values: &[u16]| {
        elf.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    };
    // Relocatable, for eBPF, version 1.
    half(&mut elf, &[1, 247, 1, 0]);
    elf.extend([0, 0, sections_at].map(u64::to_le_bytes).concat());
    // No flags; sizes of the headers; three sections, with the names in number 1.
    half(&mut elf, &[0, 0, HEADER_BYTES as u16, 0, 0, 64, 3, 1]);
    elf.extend(code);
    elf.extend(NAMES);
    elf.resize(sections_at as usize, 0);
    // Name, type, flags, address, offset, size, link and info, alignment, entry size.
    let mut section = |name: u32, kind: u32, flags: u64, offset: u64, size: u64| {
        elf.extend([name, kind].map(u32::to_le_bytes).concat());
        elf.extend([flags, 0, offset, size, 0, 8, 0].map(u64::to_le_bytes).concat());
    };
    section(0, 0, 0, 0, 0);
    section(1, 3, 0, names_at, NAMES.len() as u64);
    // Allocated and executable.
    section(9, 1, 6, HEADER_BYTES, code.len() as u64);
    elf
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpfof_function::{Object, Program};

    #[test]
    fn programs_have_the_requested_size_and_objects_hold_them() {
        for slots in [8, 16, 17, 100, 4096] {
            let code = program(slots);
            assert_eq!(code.len(), 8 * slots);
            let direct = Program::parse(&code).expect("valid");
            let object = Object::parse(&object(&code)).expect("valid");
            let entry = object.into_entry(0).expect("one entry");
            assert_eq!(entry.name, "generated");
            assert_eq!(entry.program.instructions(), direct.instructions());
        }
    }
}
