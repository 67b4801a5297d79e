//! Turns random bytes into programs.

use crate::abi;
use crate::helper::Helper;

/// Changes random bytes into code that is likely to pass the checks: opcodes that exist, fields
/// with permitted values, jumps to instructions, and an exit at the end. Can produce every
/// instruction of RFC 9669.
pub(super) fn repair(code: &[u8]) -> Vec<u8> {
    let mut slots: Vec<[u8; 8]> = code.as_chunks::<8>().0.iter().take(64).copied().collect();
    slots.push(EXIT);
    let len = slots.len();
    let mut is_tail = vec![false; len];
    for pc in 0..len - 1 {
        if is_tail[pc] {
            let [.., i0, i1, i2, i3] = slots[pc];
            slots[pc] = [0, 0, 0, 0, i0, i1, i2, i3];
            continue;
        }
        repair_slot(&mut slots[pc], pc + 2 < len);
        is_tail[pc + 1] = slots[pc][0] == 0x18;
    }
    for pc in 0..len - 1 {
        if !is_tail[pc] {
            repair_target(&mut slots[pc], pc, &is_tail);
        }
    }
    slots.concat()
}

pub(super) const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];

/// Makes the repaired stream the body of a loop in which r9 walks through the data.
pub(super) fn scan(visible: u8, code: &[u8]) -> Vec<u8> {
    let body = repair(&code[..code.len().min(24 * 8)]);
    let (slots, _) = body.as_chunks::<8>();
    let body = &slots[..slots.len() - 1];
    let start = abi::DATA as u32 + u32::from(visible) / 2;
    let [s0, s1, s2, s3] = start.to_le_bytes();
    let mut scan = vec![[0xb7, 9, 0, 0, s0, s1, s2, s3]];
    for (pc, &slot) in body.iter().enumerate() {
        let is_tail = pc > 0 && body[pc - 1][0] == 0x18;
        let [opcode, registers, rest @ ..] = slot;
        // An instruction that would write r9 writes r8 instead.
        let dst = if !is_tail && registers & 0x0f == 9 { 8 } else { registers & 0x0f };
        let [r0, r1, r2, r3, r4, r5] = rest;
        scan.push([opcode, registers & 0xf0 | dst, r0, r1, r2, r3, r4, r5]);
    }
    let step = [7, 8, 16, 64, -8, -64i32][usize::from(visible) % 6].to_le_bytes();
    let back = -(body.len() as i16 + 3);
    let [b0, b1] = back.to_le_bytes();
    scan.push([0x71, 0x90, 0, 0, 0, 0, 0, 0]);
    scan.push([0x07, 9, 0, 0, step[0], step[1], step[2], step[3]]);
    scan.push([0x55, 0, b0, b1, 0, 0, 0, 0]);
    scan.push(EXIT);
    scan.concat()
}

/// Repairs a slot, except for the target of a jump.
pub(super) fn repair_slot(slot: &mut [u8; 8], constant_fits: bool) {
    let [opcode, registers, o0, o1, i0, i1, i2, i3] = *slot;
    let (dst, src) = (registers & 0x0f, registers >> 4);
    // r10 may be read, but not written.
    let (read_dst, dst, src) = (dst % 11, dst % 10, src % 11);
    let immediate = [i0, i1, i2, i3];
    // Keeps most accesses near their base: otherwise hardly any would be inside.
    let offset = if i0 < 0xc0 { [o0, if o0 < 0x80 { 0 } else { 0xff }] } else { [o0, o1] };
    let make = |opcode: u8, dst: u8, src: u8, offset: [u8; 2], i: [u8; 4]| {
        [opcode, src << 4 | dst, offset[0], offset[1], i[0], i[1], i[2], i[3]]
    };
    const NONE: [u8; 4] = [0; 4];
    *slot = match opcode & 0x07 {
        0 if i3 & 0x0f == 0 => {
            // The handle of a map, or the handle behind the last one.
            make(0xb7, dst, 0, [0; 2], (abi::MAPS as u32 + u32::from(i0 % 3)).to_le_bytes())
        }
        0 if constant_fits => make(0x18, dst, 0, [0; 2], immediate),
        0 => make(0xb7, dst, 0, [0; 2], immediate),
        1 if opcode & 0xe0 == 0x80 && opcode & 0x18 != 0x18 => make(opcode, dst, src, offset, NONE),
        1 => make(0x61 | opcode & 0x18, dst, src, offset, NONE),
        2 => make(0x62 | opcode & 0x18, read_dst, 0, offset, immediate),
        3 if opcode & 0x80 == 0 => make(0x63 | opcode & 0x18, read_dst, src, offset, NONE),
        3 => {
            let operations = [0x00, 0x01, 0x40, 0x41, 0x50, 0x51, 0xa0, 0xa1, 0xe1, 0xf1];
            let operation = operations[usize::from(i0) % operations.len()];
            make(
                0xc3 | opcode & 0x10 | (opcode & 0x10) >> 1,
                read_dst,
                src % 10,
                offset,
                [operation, 0, 0, 0],
            )
        }
        4 | 7 => repair_arithmetic(slot, dst, src),
        class if opcode & 0xf0 == 0x80 || opcode & 0xf0 >= 0xe0 => {
            let is_local = class == 5 && i0 & 1 != 0;
            let helper = Helper::ALL[usize::from(i1) % Helper::ALL.len()];
            let immediate = if is_local { immediate } else { [helper as u8, 0, 0, 0] };
            make(0x85, 0, u8::from(is_local), [0; 2], immediate)
        }
        class if opcode & 0xf0 == 0x90 || opcode & 0xf0 == 0 => match (class, opcode & 0x90) {
            (5, 0x80..) => EXIT,
            (5, _) => make(0x05, 0, 0, [o0, o1], NONE),
            _ => make(0x06, 0, 0, [0; 2], immediate),
        },
        _ if opcode & 0x08 != 0 => make(opcode, read_dst, src, [o0, o1], NONE),
        _ => make(opcode, read_dst, 0, [o0, o1], immediate),
    };
}

pub(super) fn repair_arithmetic(slot: &[u8; 8], dst: u8, src: u8) -> [u8; 8] {
    let [opcode, _, o0, _, i0, i1, i2, i3] = *slot;
    let wide = opcode & 0x07 == 0x07;
    let opcode = if opcode >= 0xe0 { opcode & 0x3f | 0x80 } else { opcode };
    let from_register = opcode & 0x08 != 0;
    match (opcode & 0xf0, from_register) {
        (0x80, _) => [opcode & !0x08, dst, 0, 0, 0, 0, 0, 0],
        (0xd0, _) => {
            let opcode = if wide { opcode & !0x08 } else { opcode };
            [opcode, dst, 0, 0, [16, 32, 64][usize::from(i0) % 3], 0, 0, 0]
        }
        (0xb0, true) => {
            let bits = [0, 8, 16, if wide { 32 } else { 0 }][usize::from(o0) % 4];
            [opcode, src << 4 | dst, bits, 0, 0, 0, 0, 0]
        }
        (0x30 | 0x90, true) => [opcode, src << 4 | dst, o0 & 1, 0, 0, 0, 0, 0],
        (0x30 | 0x90, false) => [opcode, dst, o0 & 1, 0, i0, i1, i2, i3],
        (_, true) => [opcode, src << 4 | dst, 0, 0, 0, 0, 0, 0],
        (_, false) => [opcode, dst, 0, 0, i0, i1, i2, i3],
    }
}

/// Makes jumps and local calls go to an instruction, whatever their distance was.
pub(super) fn repair_target(slot: &mut [u8; 8], pc: usize, is_tail: &[bool]) {
    let [opcode, registers, o0, o1, i0, i1, i2, i3] = *slot;
    let is_call = opcode == 0x85 && registers == 0x10;
    let is_long = is_call || opcode == 0x06;
    let is_jump = matches!(opcode & 0x07, 5 | 6) && !matches!(opcode, 0x85 | 0x95);
    if !is_call && !is_jump {
        return;
    }
    let distance = if is_long {
        i64::from(i32::from_le_bytes([i0, i1, i2, i3]))
    } else {
        i64::from(i16::from_le_bytes([o0, o1]))
    };
    let mut target = distance.rem_euclid(is_tail.len() as i64) as usize;
    if is_tail[target] {
        target -= 1;
    }
    let distance = target as i64 - pc as i64 - 1;
    if is_long {
        slot[4..].copy_from_slice(&(distance as i32).to_le_bytes());
    } else {
        slot[2..4].copy_from_slice(&(distance as i16).to_le_bytes());
    }
}
