//! The cost of a call: checked native code, the interpreter, and the same C compiled natively, in turn.

use super::arena::{SCRATCH_AT, prepare, succeeded};
use super::c_process::{Compiler, Reference};
use super::cases::Case;
use crate::measurement::{median, tenths};
use bpfof_function::{
    Alone, Arena, Exit, Fault, Limit, NativeFunction, Object, Program, abi, interpret,
};
use serde::Serialize;
use std::time::Instant;

/// The interpreter makes one call for each INTERPRETED_PART calls of the others.
const INTERPRETED_PART: usize = 20;
/// The instruction budget of a call, similar to a target's own limit.
const BUDGET: i64 = 1_000_000;
/// ns for each call, medians of the rounds.
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
    /// The median of the ratios of consecutive rounds, and the tenth and ninetieth percentile.
    pub(super) checked_over_c: Option<f64>,
    pub(super) checked_over_c_range: Option<[f64; 2]>,
    pub(super) goal: f64,
}

/// The side that runs in this process.
struct Side {
    arena: Arena,
    limit: Limit,
}

impl Side {
    fn new(case: &Case) -> Side {
        let (arena, limit) = prepare(&case.block);
        Side { arena, limit }
    }

    /// ns for each call in a round.
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

    /// The text that the C process prints at its end.
    fn outcome(&self) -> String {
        let scratch = self.arena.scratch().iter();
        let hash =
            scratch.fold(0u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        format!("{hash} {}", self.arena.context_u64(abi::context::NEXT_OFFSET))
    }
}

/// Measures a case. The C process and this one take turns, so that both see the same machine.
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
        eprintln!("{why}; continuing without it");
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
            return Err(format!("{}: bpf-of leaves {ours}, the same C {theirs}", case.name).into());
        }
    }
    let ratios: Vec<f64> = checked_ns.iter().zip(&c_ns).map(|(checked, c)| checked / c).collect();
    Ok(Cost {
        name: case.name,
        about: case.about,
        instructions: program.instructions().len(),
        native_bytes: native.code_bytes(),
        interpreter_ns: median(&interpreter_ns),
        checked_ns: median(&checked_ns),
        c_ns: (!c_ns.is_empty()).then(|| median(&c_ns)),
        checked_over_c: (!ratios.is_empty()).then(|| median(&ratios)),
        checked_over_c_range: tenths(&ratios),
        goal: case.goal,
    })
}
