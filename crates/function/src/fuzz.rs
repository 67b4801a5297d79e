//! Entry points for fuzzing, also run by unit tests so that they stay green.

mod guarded;
mod structured;

use crate::abi;
use crate::cost;
use crate::helper::{Call, EINVAL, Helper};
use crate::interpreter::interpret_counting;
use crate::statics::Statics;
use crate::{Arena, Environment, Exit, Fault, Limit, NativeFunction, Object, Program};
use crate::{Map, MapDefinition, MapKind};

/// Units that a call of a fuzzed program may take.
const BUDGET: i64 = 50_000;

/// Any bytes are an object or an error, never a panic.
pub fn object(data: &[u8]) {
    if let Ok(object) = Object::parse(data) {
        assert!(!object.entries().is_empty());
    }
}

/// Any instruction stream that passes the checks runs on both engines, which agree on the result,
/// the fault, the budget and every byte of memory, and touch nothing beyond the limit of the call.
///
/// The first byte selects how much of the data area the call may see; the rest is code.
pub fn differential(data: &[u8]) {
    let Some((&visible, code)) = data.split_first() else { return };
    for code in programs(visible, code) {
        if let Ok(program) = Program::parse(&code) {
            // Every other program has constants and variables.
            let image = vec![0x5a; if visible & 1 == 0 { 0 } else { 300 }];
            let constant_bytes = image.len() / 2;
            let program = program.with_statics(Statics::new(image, constant_bytes));
            compare(visible, &program);
        }
    }
}

/// Whatever an instruction stream that passes the checks does in native code, it reads and writes
/// nothing but what the call may access: all around it are pages that end the process, and behind
/// those the arenas of others.
///
/// The first byte selects how many pages of data the call may see; the rest is code.
pub fn hostile(data: &[u8]) {
    let Some((&first, code)) = data.split_first() else { return };
    for code in programs(first, code) {
        let Ok(program) = Program::parse(&code) else { continue };
        let native =
            NativeFunction::compile(&program).expect("a checked program can be translated");
        let pages = usize::from(first) % (abi::MAX_HOP_BYTES / 4096 + 1);
        guarded::with_arena(program.lowest_address(), pages, |arena, limit| {
            let mut budget = BUDGET;
            let outcome = native.call(arena, limit, &mut budget, &mut Surroundings::new());
            let is_possible = (0..=BUDGET).contains(&budget);
            assert!(is_possible, "{outcome:?} with {budget} units left of {BUDGET}: {program:?}");
        });
    }
}

/// Any bytes are decompressed, or not; nothing is written but the room for the result.
///
/// The first byte selects the format, the next two the room; the rest is the block.
pub fn decompress(data: &[u8]) {
    const GUARD: [u8; 64] = [0xa5; 64];
    let Some((&[format, low, high], block)) = data.split_first_chunk() else { return };
    let block = &block[..block.len().min(abi::MAX_HOP_BYTES)];
    let room = usize::from(u16::from_le_bytes([low, high]));
    let mut memory = [&GUARD[..], &vec![0; room], &GUARD, block].concat();
    let (to, behind) = (GUARD.len(), GUARD.len() + room);
    let from = behind + GUARD.len();
    let format = [1, 4, 7][usize::from(format) % 3];
    let mut budget = i64::MAX;
    let mut call = Call {
        memory: &mut memory,
        lowest: 0,
        statics: &Statics::default(),
        budget: &mut budget,
        environment: &mut Surroundings::new(),
    };
    let arguments = [format, to as u64, room as u64, from as u64, block.len() as u64];
    let Ok(result) = Helper::Decompress.run(&mut call, arguments) else {
        panic!("nothing is outside, and the budget is enough")
    };
    assert!(result as i64 == EINVAL || result <= room as u64, "{result} bytes in a room of {room}");
    let is_whole = memory[..to] == GUARD && memory[behind..from] == GUARD;
    assert!(is_whole && memory[from..] == *block, "bytes beside the room were written");
}

/// What is made of a stream of bytes: as it is, it is hardly ever a program, and a program is hardly
/// ever a scan or a nest of loops.
fn programs(first: u8, code: &[u8]) -> [Vec<u8>; 4] {
    [code.to_vec(), repair(code), scan(first, code), structured::program(code)]
}

fn compare(visible: u8, program: &Program) {
    let native = NativeFunction::compile(program).expect("a checked program can be translated");
    let (mut oracle, mut surroundings) = (Surroundings::new(), Surroundings::new());
    let expected = run(visible.into(), |arena, limit, budget| {
        let before = *budget;
        let (outcome, executed) = interpret_counting(program, arena, limit, budget, &mut oracle);
        let slack = if outcome.is_err() { cost::scan_slack(limit) } else { 0 };
        let paid = before - *budget;
        assert!(executed <= paid + slack, "{executed} units for {paid}: {program:?}");
        outcome
    });
    let actual = run(visible.into(), |arena, limit, budget| {
        native.call(arena, limit, budget, &mut surroundings)
    });
    assert_eq!(oracle.said, surroundings.said, "the engines disagree on the trace: {program:?}");
    assert_eq!(oracle.entries(), surroundings.entries(), "the engines disagree on maps");
    assert_eq!(expected.0, actual.0, "the engines disagree on the outcome: {program:?}");
    let differs = expected.1.bytes().iter().zip(actual.1.bytes()).position(|(a, b)| a != b);
    assert_eq!(differs, None, "the engines disagree on memory: {program:?}");
    let differs = expected.1.workspace() != actual.1.workspace();
    assert!(!differs, "the engines disagree on the workspace: {program:?}");
    if program.lowest_address() == abi::GUEST_BASE {
        let touched = actual.1.workspace().iter().any(|byte| *byte != 0);
        assert!(!touched, "a workspace was written to that nobody asked for: {program:?}");
    }
}

/// Every other function is installed, and there is a map of each kind. Keeps the trace.
struct Surroundings {
    said: Vec<(Vec<u8>, u64)>,
    maps: [Map; 2],
}

impl Surroundings {
    fn new() -> Surroundings {
        let map = |kind, sizes, entries| {
            Map::new(MapDefinition::new("fuzzed", kind, sizes, entries).expect("within the limits"))
        };
        let maps = [map(MapKind::Array, (4, 12), 3), map(MapKind::Hash, (2, 16), 3)];
        Surroundings { said: Vec::new(), maps }
    }

    fn entries(&self) -> [Vec<u8>; 2] {
        self.maps.each_ref().map(|map| {
            let mut entries = Vec::new();
            map.page(0, usize::MAX, &mut entries);
            entries
        })
    }
}

impl Environment for Surroundings {
    fn map(&self, index: usize) -> Option<&Map> {
        self.maps.get(index)
    }

    fn tail_call(&mut self, function: u32) -> bool {
        function & 1 == 0
    }

    fn trace(&mut self, text: &[u8], value: u64) {
        self.said.push((text.to_owned(), value));
    }
}

/// How a call ended, and what was left of the budget.
type Outcome = (Result<Exit, Fault>, i64);

fn run(
    visible: usize,
    call: impl FnOnce(&mut Arena, Limit, &mut i64) -> Result<Exit, Fault>,
) -> (Outcome, Arena) {
    let mut arena = Arena::new();
    let canary = |index: usize| (index as u8).wrapping_mul(31) ^ 0x5a;
    let data = arena.data_mut(0..abi::MAX_HOP_BYTES);
    for (index, byte) in data.iter_mut().enumerate() {
        *byte = canary(index);
    }
    arena.begin_hop(0);
    let limit = arena.begin_call(0..visible, 0, 0, 0);
    let mut budget = BUDGET;
    let outcome = (call(&mut arena, limit, &mut budget), budget);
    assert!((0..=BUDGET).contains(&budget), "{budget} units are left of {BUDGET}");
    let beyond = arena.data_mut(visible..abi::MAX_HOP_BYTES);
    let touched = beyond.iter().enumerate().any(|(at, byte)| *byte != canary(visible + at));
    assert!(!touched, "bytes beyond the limit of the call were written");
    (outcome, arena)
}

/// Bends random bytes towards programs that pass the checks: opcodes to ones that exist, fields to
/// what they allow, jumps to instructions, and an exit at the end. Every instruction of RFC 9669 is
/// within its reach.
fn repair(code: &[u8]) -> Vec<u8> {
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

const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];

/// A repaired stream as what a loop does in each turn, in which r9 walks through the data.
fn scan(visible: u8, code: &[u8]) -> Vec<u8> {
    let body = repair(&code[..code.len().min(24 * 8)]);
    let (slots, _) = body.as_chunks::<8>();
    let body = &slots[..slots.len() - 1];
    let start = abi::DATA as u32 + u32::from(visible) / 2;
    let [s0, s1, s2, s3] = start.to_le_bytes();
    let mut scan = vec![[0xb7, 9, 0, 0, s0, s1, s2, s3]];
    for (pc, &slot) in body.iter().enumerate() {
        let is_tail = pc > 0 && body[pc - 1][0] == 0x18;
        let [opcode, registers, rest @ ..] = slot;
        // What would write r9 writes r8.
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

/// Everything but the target of a jump.
fn repair_slot(slot: &mut [u8; 8], constant_fits: bool) {
    let [opcode, registers, o0, o1, i0, i1, i2, i3] = *slot;
    let (dst, src) = (registers & 0x0f, registers >> 4);
    // Reading may name r10, writing may not.
    let (read_dst, dst, src) = (dst % 11, dst % 10, src % 11);
    let immediate = [i0, i1, i2, i3];
    // Most accesses near their base, or hardly any would be inside.
    let offset = if i0 < 0xc0 { [o0, if o0 < 0x80 { 0 } else { 0xff }] } else { [o0, o1] };
    let make = |opcode: u8, dst: u8, src: u8, offset: [u8; 2], i: [u8; 4]| {
        [opcode, src << 4 | dst, offset[0], offset[1], i[0], i[1], i[2], i[3]]
    };
    const NONE: [u8; 4] = [0; 4];
    *slot = match opcode & 0x07 {
        0 if i3 & 0x0f == 0 => {
            // The handle of a map, or the one behind the last.
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

fn repair_arithmetic(slot: &[u8; 8], dst: u8, src: u8) -> [u8; 8] {
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

/// Jumps and local calls go to an instruction, whatever their distance was.
fn repair_target(slot: &mut [u8; 8], pc: usize, is_tail: &[bool]) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instruction::Instruction;

    /// Blocks with a few bytes of damage.
    #[test]
    fn damaged_blocks_stay_in_their_room() {
        let records: Vec<u8> = (0..4000u32).flat_map(|i| (i * i / 7).to_le_bytes()).collect();
        let mut frame = vec![0; zstd_safe::compress_bound(records.len())];
        let length = zstd_safe::compress(&mut frame[..], &records, 3).expect("compresses");
        frame.truncate(length);
        let blocks = [
            snap::raw::Encoder::new().compress_vec(&records).expect("compresses"),
            lz4_flex::block::compress(&records),
            frame,
        ];
        let mut state = 1u64;
        let mut random = move |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        for (format, block) in (0..).zip(&blocks) {
            for round in 0..600 {
                let room = (records.len() - round % 3) as u16;
                let mut data = [&[format][..], &room.to_le_bytes(), block].concat();
                for _ in 0..round % 4 {
                    let at = random(data.len() - 3) + 3;
                    data[at] = random(256) as u8;
                }
                decompress(&data);
            }
        }
    }

    /// A stream of bytes that repeats itself, for all that matters, never.
    fn random_bytes(state: &mut u64, len: usize) -> Vec<u8> {
        (0..len)
            .map(|_| {
                *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (*state >> 33) as u8
            })
            .collect()
    }

    #[test]
    fn scans_around_random_streams_are_scans() {
        let (mut state, mut scans) = (2u64, 0);
        for visible in (0..=255).cycle().take(500) {
            let code = random_bytes(&mut state, 48);
            let Ok(program) = Program::parse(&scan(visible, &code)) else { continue };
            let entered = |pc| {
                program.crossing(pc, pc + 1).is_some_and(|crossing| crossing.entered.is_some())
            };
            scans += u32::from((0..program.instructions().len() as u32 - 1).any(entered));
            let data = [&[visible], &code[..]].concat();
            differential(&data);
            hostile(&data);
        }
        assert!(scans > 100, "{scans} of 500");
    }

    /// What the generator is there for: each of these is found among a few thousand programs.
    #[test]
    fn structured_programs_begin_with_scans_of_both_signs() {
        let mut state = 3u64;
        let (mut parsed, mut up, mut down, mut in_calls, mut loops) = (0, 0, 0, 0, 0);
        for round in 0..3000u32 {
            let code = random_bytes(&mut state, 200);
            let Ok(program) = Program::parse(&structured::program(&code)) else { continue };
            parsed += 1;
            for function in program.functions() {
                let Some(scan) = program.scan_at_start(function.start) else { continue };
                *(if scan.step > 0 { &mut up } else { &mut down }) += 1;
                in_calls += u32::from(function.start > 0);
            }
            let back = |pc: u32| {
                let target = program.instructions()[pc as usize].jump_target();
                target.is_some_and(|target| target <= pc)
            };
            loops += u32::from(
                (0..program.instructions().len() as u32).filter(|pc| back(*pc)).count() > 2,
            );
            if round % 8 == 0 {
                let data = [&[round as u8], &code[..]].concat();
                differential(&data);
                hostile(&data);
            }
        }
        println!(
            "{parsed} programs, {up} up, {down} down, {in_calls} in calls, {loops} with loops"
        );
        assert!(parsed > 2000 && up > 50 && down > 50 && in_calls > 20 && loops > 300);
    }

    #[test]
    fn repaired_streams_are_programs_of_all_instructions() {
        let mut state = 1u64;
        let mut seen = std::collections::BTreeSet::new();
        let (mut tried, mut parsed) = (0, 0);
        for _ in 0..4000 {
            let code = random_bytes(&mut state, 96);
            tried += 1;
            let Ok(program) = Program::parse(&repair(&code)) else { continue };
            parsed += 1;
            for instruction in program.instructions() {
                let text = format!("{instruction:?}");
                let kind = match *instruction {
                    Instruction::Alu { wide, op, .. } => format!("{op:?} {wide}"),
                    Instruction::Branch { wide, condition, .. } => format!("{condition:?} {wide}"),
                    Instruction::Atomic { op, fetch, wide, .. } => format!("{op:?} {fetch} {wide}"),
                    Instruction::Load { width, signed, .. } => format!("load {width:?} {signed}"),
                    Instruction::Endian { swap, width, .. } => format!("end {width:?} {swap}"),
                    Instruction::SignExtend { wide, width, .. } => format!("movs {width:?} {wide}"),
                    Instruction::CallHelper { helper } => format!("{helper:?}"),
                    _ => text.split(' ').next().unwrap_or_default().to_owned(),
                };
                seen.insert(kind);
            }
        }
        // Local calls split programs, and jumps across the split are refused.
        assert!(parsed * 2 > tried, "{parsed} of {tried} are programs");
        // Arithmetic 28, conditions 22, atomics 20, loads 7, byte order 6, sign extension 5,
        // and: negate, constant and its tail, store, jump, local call, exit.
        assert_eq!(seen.len(), 95 + Helper::ALL.len(), "{seen:?}");
    }
}
