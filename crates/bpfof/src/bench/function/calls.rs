//! What a call costs: checked native code, the interpreter, and the same C compiled natively, in turn.

use super::c_process::{Compiler, Reference};
use crate::bench::median;
use bpfof_function::{
    Alone, Arena, Exit, Fault, Limit, NativeFunction, Object, Program, abi, interpret,
};
use serde::Serialize;
use std::time::Instant;

/// The interpreter does one call where the others do as many.
const INTERPRETED_PART: usize = 20;
/// Instructions that a call may take: a target's own limit is of this order.
const BUDGET: i64 = 1_000_000;
/// Where scratch is in an arena.
pub(super) const SCRATCH_AT: usize = (abi::SCRATCH - abi::GUEST_BASE) as usize;

/// A function with a block, and arguments that it is called with in turn.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// What the function does with what.
    about: &'static str,
    object: &'static [u8],
    /// The object's C, and the name of the function in it.
    pub(super) source: &'static str,
    pub(super) symbol: &'static str,
    pub(super) block: Vec<u8>,
    pub(super) arguments: Vec<Vec<u8>>,
    /// Calls of a round.
    calls: usize,
    /// The ratio to C that we hold ourselves to.
    goal: f64,
}

/// ns a call, medians of the rounds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Cost {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) instructions: usize,
    pub(super) native_bytes: usize,
    pub(super) interpreter_ns: f64,
    pub(super) checked_ns: f64,
    /// The same C, if there is a compiler.
    pub(super) c_ns: Option<f64>,
    /// The median of the ratios of rounds that followed each other, and the tenth and ninetieth
    /// percentile.
    pub(super) checked_over_c: Option<f64>,
    pub(super) checked_over_c_range: Option<[f64; 2]>,
    pub(super) goal: f64,
}

/// All cases.
pub(super) fn cases() -> Vec<Case> {
    vec![node(), filter(), block()]
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// An inner node of BPF-KV: 31 keys, and random keys to look for.
fn node() -> Case {
    let mut block = vec![0; 16];
    block.extend((0..31u64).flat_map(|index| (index * 1000).to_le_bytes()));
    block.extend((0..31u64).flat_map(|index| ((1 << 63) | ((index + 1) * 512)).to_le_bytes()));
    let mut state = 1;
    // More than branch prediction can learn.
    let keys = (0..20_000).map(|_| (random(&mut state) % 31000).to_le_bytes());
    Case {
        name: "node",
        about: "bpfkv_get in a node of 31 keys, random keys",
        object: bpfkv::GET_OBJECT,
        source: include_str!("../../../../../functions/bpfkv_get.bpf.c"),
        symbol: "bpfkv_get",
        block,
        arguments: keys.map(|key| [&key[..], &[0; 8]].concat()).collect(),
        calls: 20_000,
        goal: 1.5,
    }
}

/// 256 records of 16 bytes, of which a filter takes every eighth or so.
fn filter() -> Case {
    let mut state = 2;
    let block = (0..256).flat_map(|_| {
        let key = random(&mut state).to_le_bytes();
        let kind = (random(&mut state) as u32 % 4).to_le_bytes();
        let amount = (random(&mut state) as u32 % 1000).to_le_bytes();
        [&key[..], &kind, &amount].concat()
    });
    let block = block.collect();
    let arguments = (0..4u32).map(|kind| [kind.to_le_bytes(), 500u32.to_le_bytes()].concat());
    Case {
        name: "filter",
        about: "count, sum and maximum of the records of 4 KiB that pass a filter",
        object: include_bytes!(concat!(env!("OUT_DIR"), "/filter.bpf.o")),
        source: include_str!("c/filter.bpf.c"),
        symbol: "filter",
        block,
        arguments: arguments.collect(),
        calls: 2_000,
        goal: 1.6,
    }
}

/// 4 KiB of sorted keys of 16 to 20 bytes with values of 20, restart points every 16 entries.
fn block() -> Case {
    let keys: Vec<String> =
        (0..120).map(|index| format!("user{:012}{}", index * 37, "x".repeat(index % 5))).collect();
    let (mut block, mut restarts, mut before) = (Vec::new(), Vec::new(), String::new());
    for (index, key) in keys.iter().enumerate() {
        let mut shared = before.bytes().zip(key.bytes()).take_while(|(a, b)| a == b).count();
        if index % 16 == 0 {
            restarts.push(block.len() as u32);
            shared = 0;
        }
        let value = format!("value of number {index:04}");
        block.extend([shared as u8, (key.len() - shared) as u8, value.len() as u8]);
        block.extend(&key.as_bytes()[shared..]);
        block.extend(value.as_bytes());
        before.clone_from(key);
    }
    block.resize(block.len().next_multiple_of(4), 0);
    let count = restarts.len() as u32;
    block.extend(restarts.into_iter().chain([count]).flat_map(u32::to_le_bytes));
    let mut state = 3;
    let arguments = (0..256).map(|_| {
        let key = keys[random(&mut state) as usize % keys.len()].as_bytes();
        let mut argument = (key.len() as u32).to_le_bytes().to_vec();
        argument.extend([0; 4]);
        argument.extend(key);
        argument.resize(72, 0);
        argument
    });
    Case {
        name: "block",
        about: "a key in a sorted block of 4 KiB with prefix compression",
        object: include_bytes!(concat!(env!("OUT_DIR"), "/block.bpf.o")),
        source: include_str!("c/block.bpf.c"),
        symbol: "block",
        block,
        arguments: arguments.collect(),
        calls: 3_000,
        goal: 2.2,
    }
}

/// An arena in which a call on a block is prepared.
pub(super) fn prepare(block: &[u8]) -> (Arena, Limit) {
    let mut arena = Arena::new();
    arena.begin_chain(&[], abi::DEFAULT_SCRATCH_BYTES);
    arena.data_mut(0..block.len()).copy_from_slice(block);
    arena.begin_hop(0);
    let limit = arena.begin_call(0..block.len(), 0, 0, 0);
    (arena, limit)
}

/// What a call returned: anything but 0 means that the block or the argument is not what the
/// function wants.
pub(super) fn succeeded(
    outcome: Result<Exit, Fault>,
    name: &str,
    program: &Program,
) -> Result<(), String> {
    match outcome {
        Ok(Exit::Return(0)) => Ok(()),
        Ok(exit) => Err(format!("{name} ended with {exit:?}, not Return(0)")),
        Err(fault) => Err(format!("{name}: {}", fault.explain(program))),
    }
}

/// The side that runs here.
struct Side {
    arena: Arena,
    limit: Limit,
}

impl Side {
    fn new(case: &Case) -> Side {
        let (arena, limit) = prepare(&case.block);
        Side { arena, limit }
    }

    /// ns a call of a round of calls.
    fn round(
        &mut self,
        case: &Case,
        program: &Program,
        calls: usize,
        mut engine: impl FnMut(&mut Arena, Limit, &mut i64) -> Result<Exit, Fault>,
    ) -> Result<f64, String> {
        let started = Instant::now();
        for call in 0..calls {
            let argument = &case.arguments[call % case.arguments.len()];
            self.arena.bytes_mut()[SCRATCH_AT..][..argument.len()].copy_from_slice(argument);
            let outcome = engine(&mut self.arena, self.limit, &mut { BUDGET });
            succeeded(outcome, case.name, program)?;
        }
        Ok(started.elapsed().as_nanos() as f64 / calls as f64)
    }

    /// What the C process says at its end.
    fn outcome(&self) -> String {
        let scratch = self.arena.scratch().iter();
        let hash =
            scratch.fold(0u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        format!("{hash} {}", self.arena.context_u64(abi::context::NEXT_OFFSET))
    }
}

/// Measures a case. The C process and we wait for each other, so that both see the same machine.
pub(super) fn measure(
    case: &Case,
    compiler: Option<&Compiler>,
    rounds: usize,
) -> Result<Cost, Box<dyn std::error::Error>> {
    let entry = Object::parse(case.object)?.into_entry(0)?;
    let program = &entry.program;
    let native = NativeFunction::compile(program)?;
    let (mut checked, mut interpreted) = (Side::new(case), Side::new(case));
    let started = compiler.map(|compiler| compiler.start(case, rounds, case.calls)).transpose();
    let mut reference = started.unwrap_or_else(|why| {
        eprintln!("{why}; going on without it");
        None
    });
    let (mut checked_ns, mut interpreter_ns, mut c_ns) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        if let Some(reference) = &mut reference {
            c_ns.push(reference.round()?);
        }
        checked_ns.push(checked.round(case, program, case.calls, |arena, limit, budget| {
            native.call(arena, limit, budget, &mut Alone)
        })?);
        let calls = case.calls / INTERPRETED_PART;
        interpreter_ns.push(interpreted.round(case, program, calls, |arena, limit, budget| {
            interpret(program, arena, limit, budget, &mut Alone)
        })?);
        reference.as_mut().map_or(Ok(()), Reference::go_on)?;
    }
    if let Some(reference) = &mut reference {
        let (ours, theirs) = (checked.outcome(), reference.line()?);
        if ours != theirs {
            return Err(format!("{}: we leave {ours}, the same C {theirs}", case.name).into());
        }
    }
    let mut ratios: Vec<f64> =
        checked_ns.iter().zip(&c_ns).map(|(checked, c)| checked / c).collect();
    ratios.sort_by(f64::total_cmp);
    let at = |part: usize| ratios.get(ratios.len() * part / 10).copied();
    Ok(Cost {
        name: case.name,
        about: case.about,
        instructions: program.instructions().len(),
        native_bytes: native.code_bytes(),
        interpreter_ns: median(&interpreter_ns),
        checked_ns: median(&checked_ns),
        c_ns: (!c_ns.is_empty()).then(|| median(&c_ns)),
        checked_over_c: (!ratios.is_empty()).then(|| median(&ratios)),
        checked_over_c_range: at(1).zip(at(9)).map(|(low, high)| [low, high]),
        goal: case.goal,
    })
}
