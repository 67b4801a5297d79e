//! The cost of a tail call: the same work alone, and as the successor of a function that ended in a tail call (section
//! 6.2.3 of the thesis).

use super::arena::{prepare, succeeded};
use crate::assembly::{call, finish, move_immediate, program};
use crate::measurement::median;
use bpfof_function::helper::Helper;
use bpfof_function::{Arena, Environment, Exit, Limit, NativeFunction, Program};
use serde::Serialize;
use std::time::Instant;

/// Instructions of the work.
const INSTRUCTIONS: usize = 64;
/// Calls in one round.
const ROUND: usize = 5_000;
const BUDGET: i64 = 1_000_000;
const BLOCK: [u8; 512] = [0; 512];

/// Medians of the rounds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TailCallCost {
    /// ns for the work alone.
    pub(super) alone_ns: f64,
    /// ns for a function that ends in a tail call, and the work.
    pub(super) after_tail_call_ns: f64,
    pub(super) tail_call_ns: f64,
}

/// The work is installed: every tail call succeeds.
struct Installed;

impl Environment for Installed {
    fn tail_call(&mut self, _function: u32) -> bool {
        true
    }

    fn trace(&mut self, _text: &[u8], _value: u64) {}
}

/// Calls a function, and its successors by tail calls, as the engine of chains does.
fn run<'a>(
    mut function: &'a NativeFunction,
    work: &'a NativeFunction,
    arena: &mut Arena,
    limit: Limit,
) -> Result<(), String> {
    let mut budget = BUDGET;
    loop {
        match function.call(arena, limit, &mut budget, &mut Installed) {
            Ok(Exit::TailCall(_)) => function = work,
            outcome => return succeeded(outcome, "a generated function", function.program()),
        }
    }
}

/// Measures both in turn.
pub(super) fn measure(rounds: usize) -> Result<TailCallCost, Box<dyn std::error::Error>> {
    let compile = |code: &[u8]| -> Result<_, Box<dyn std::error::Error>> {
        Ok(NativeFunction::compile(&Program::parse(code)?)?)
    };
    let work = compile(&program(INSTRUCTIONS))?;
    // If the tail call fails, the function returns the call's result, -1.
    let [_, exit] = finish();
    let caller = compile(&[move_immediate(1, 2), call(Helper::TailCall), exit].concat())?;
    let (mut arena, limit) = prepare(&BLOCK);
    let mut round = |first: &NativeFunction| -> Result<f64, String> {
        let started = Instant::now();
        for _ in 0..ROUND {
            run(first, &work, &mut arena, limit)?;
        }
        Ok(started.elapsed().as_nanos() as f64 / ROUND as f64)
    };
    let (mut alone_ns, mut after_ns, mut difference_ns) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (alone, after) = (round(&work)?, round(&caller)?);
        alone_ns.push(alone);
        after_ns.push(after);
        difference_ns.push(after - alone);
    }
    Ok(TailCallCost {
        alone_ns: median(&alone_ns),
        after_tail_call_ns: median(&after_ns),
        tail_call_ns: median(&difference_ns),
    })
}
