//! Entry points for fuzzing. Unit tests run them as well, so that they stay green.

mod guarded;
mod repair;
mod structured;

use crate::abi;
use crate::cost;
use crate::helper::{Call, EINVAL, Helper};
use crate::interpreter::{Observed, observe};
use crate::kernel::machine::KernelEnd;
use crate::kernel::{self, KernelProgram};
use crate::statics::Statics;
use crate::{Arena, Environment, Exit, Fault, Limit, NativeFunction, Object, Program};
use crate::{Map, MapDefinition, MapKind};
use repair::{repair, scan};

/// Budget of a call of a fuzzed program, in units.
const BUDGET: i64 = 50_000;

/// Adds static data to a program; the first `constant_bytes` of it are constants.
#[must_use]
pub fn with_statics(program: Program, image: Vec<u8>, constant_bytes: usize) -> Program {
    program.with_statics(Statics::new(image, constant_bytes))
}

/// Any bytes are an object, whose functions run alike on both engines, or an error; never a panic.
pub fn object(data: &[u8]) {
    if let Ok(object) = Object::parse(data) {
        assert!(!object.entries().is_empty());
        for entry in object.entries() {
            compare(data.len(), &entry.program);
        }
    }
}

/// Any instruction stream that passes the checks runs on both engines. They agree on the result, the fault, the budget
/// and every byte of memory, and access nothing beyond the limit of the call.
///
/// The first byte selects how much of the data area the call may see; the rest is code.
pub fn differential(data: &[u8]) {
    let Some((&visible, code)) = data.split_first() else { return };
    for code in programs(visible, code) {
        if let Ok(program) = Program::parse(&code) {
            compare(visible_bytes(visible), &program.with_statics(statics(visible)));
        }
    }
}

/// Any instruction stream that passes the checks runs as kernel eBPF as it does in the interpreter: same result, fault,
/// budget and memory. Code that the kernel would refuse panics.
///
/// The first byte selects how much of the data area the call may see; the rest is code. Returns how many programs were
/// compared.
pub fn kernel(data: &[u8]) -> u32 {
    let Some((&visible, code)) = data.split_first() else { return 0 };
    let mut compared = 0;
    for code in programs(visible, code) {
        let Ok(program) = Program::parse(&code) else { continue };
        let program = program.with_statics(statics(visible));
        compared += u32::from(compare_kernel(visible_bytes(visible), &program));
    }
    compared
}

/// Compares one program; returns whether it could be rewritten.
fn compare_kernel(visible: usize, program: &Program) -> bool {
    let Ok(translated) = KernelProgram::translate(program) else { return false };
    let mut end = KernelEnd::Helper;
    let actual = run((visible, 1), |arena, limit, budget| {
        end = kernel::machine::run(program, &translated, arena, limit, budget);
        Ok(Exit::Return(0))
    });
    // The effects of this run do not matter: the chain is run again.
    let KernelEnd::Same(outcome) = end else { return true };
    let expected = run((visible, 1), |arena, limit, budget| {
        observe(program, arena, limit, budget, &mut Surroundings::new()).outcome
    });
    assert_eq!(expected.0.0, outcome, "the kernel has a different outcome: {program:?}");
    assert_eq!(expected.0.1, actual.0.1, "the kernel has a different budget: {program:?}");
    let differs = expected.1.bytes().iter().zip(actual.1.bytes()).position(|(a, b)| a != b);
    assert_eq!(differs, None, "the kernel has different memory: {program:?}");
    assert!(expected.1.workspace() == actual.1.workspace(), "another workspace: {program:?}");
    true
}

/// An instruction stream that passes the checks accesses, in native code, only the memory that the call may access.
/// That memory is surrounded by pages that end the process when accessed, and behind these by other arenas.
///
/// The first byte selects how many pages of data the call may see; the rest is code.
pub fn hostile(data: &[u8]) {
    let Some((&first, code)) = data.split_first() else { return };
    for code in programs(first, code) {
        let Ok(program) = Program::parse(&code) else { continue };
        let program = program.with_statics(statics(first));
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

/// Any bytes are decompressed or refused; nothing outside of the room for the result is written.
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
    assert!(is_whole && memory[from..] == *block, "bytes outside the room were written");
}

/// Static data for a program, of which the first bytes are constants: none in every other one.
fn statics(first: u8) -> Statics {
    const ALL: usize = abi::STATICS_BYTES;
    let (bytes, constant_bytes) = match first % 16 {
        1 => (300, 150),
        3 => (1, 1),
        5 => (300, 0),
        7 => (300, 7),
        9 => (300, 300),
        11 => (ALL, 3),
        13 => (ALL, ALL - 1),
        15 => (ALL, ALL),
        _ => (0, 0),
    };
    Statics::new(vec![0x5a; bytes], constant_bytes)
}

/// Number of data bytes that a call sees: any few bytes, or up to a whole block.
fn visible_bytes(first: u8) -> usize {
    let first = usize::from(first);
    if first < 128 { first } else { (first - 127) * (abi::MAX_HOP_BYTES / 128) }
}

/// Programs made from a stream of bytes. The stream as it is is rarely a program, and a program is rarely a scan or a
/// nest of loops.
fn programs(first: u8, code: &[u8]) -> [Vec<u8>; 4] {
    [code.to_vec(), repair(code), scan(first, code), structured::program(code)]
}

fn compare(visible: usize, program: &Program) {
    let native = NativeFunction::compile(program).expect("a checked program can be translated");
    let (mut oracle, mut surroundings) = (Surroundings::new(), Surroundings::new());
    let expected = run((visible, 2), |arena, limit, budget| {
        let before = *budget;
        let Observed { outcome, executed, .. } =
            observe(program, arena, limit, budget, &mut oracle);
        // A strided loop pays when it is left.
        let in_scan = outcome.as_ref().is_err_and(|fault| program.is_in_scan(fault.pc));
        let slack = if in_scan { cost::scan_slack(program.lowest_address(), limit) } else { 0 };
        let paid = before - *budget;
        assert!(executed <= paid + slack, "{executed} units for {paid}: {program:?}");
        outcome
    });
    let actual = run((visible, 2), |arena, limit, budget| {
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
        assert!(!touched, "a workspace was written that the function did not declare: {program:?}");
    }
}

/// An environment in which every other function is installed, with a map of each kind. Keeps the trace.
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

/// The end of the last call, and the rest of its budget.
type Outcome = (Result<Exit, Fault>, i64);

/// Makes this number of calls, for blocks that begin at different places, as long as they return.
fn run(
    (visible, calls): (usize, u32),
    mut call: impl FnMut(&mut Arena, Limit, &mut i64) -> Result<Exit, Fault>,
) -> (Outcome, Arena) {
    let visible = visible.min(abi::MAX_HOP_BYTES);
    let mut arena = Arena::new();
    let canary = |index: usize| (index as u8).wrapping_mul(31) ^ 0x5a;
    let data = arena.data_mut(0..abi::MAX_HOP_BYTES);
    for (index, byte) in data.iter_mut().enumerate() {
        *byte = canary(index);
    }
    let mut budget = BUDGET;
    let mut outcome = (Ok(Exit::Return(0)), budget);
    for hop in 0..calls {
        arena.begin_hop(hop);
        let limit = arena.begin_call(visible / 3 * hop as usize..visible, 0, 0, 0);
        outcome = (call(&mut arena, limit, &mut budget), budget);
        assert!((0..=BUDGET).contains(&budget), "{budget} units are left of {BUDGET}");
        if !matches!(outcome.0, Ok(Exit::Return(_))) {
            break;
        }
    }
    let beyond = arena.data_mut(visible..abi::MAX_HOP_BYTES);
    let touched = beyond.iter().enumerate().any(|(at, byte)| *byte != canary(visible + at));
    assert!(!touched, "bytes beyond the limit of the call were written");
    (outcome, arena)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instruction::Instruction;

    #[test]
    fn random_streams_do_the_same_in_the_kernel() {
        let (mut state, mut same) = (5u64, 0);
        for visible in (0..=255).cycle().take(250) {
            let code = random_bytes(&mut state, 160);
            same += kernel(&[&[visible], &code[..]].concat());
        }
        assert!(same > 600, "{same} were compared");
    }

    /// Blocks with a few damaged bytes.
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

    /// A pseudo-random stream of bytes with a period too long to matter.
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

    /// The purpose of the generator: each of these occurs among a few thousand programs.
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
