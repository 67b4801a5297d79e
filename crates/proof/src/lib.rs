//! Proofs that no access of a storage function can fault, for its author.
//!
//! ```text
//! Program ──model──▶ the verifier's program and entry state
//!                       │ fixpoint: invariants at each instruction
//!                       ▼
//!          proved  /  not proved, with the first obstacle  /  gave up
//! ```
//!
//! The work is done by PREVAIL, an abstract interpreter (Gershuni et al., "Simple and precise static analysis of
//! untrusted Linux kernel extensions", PLDI 2019). For each instruction it finds ranges and differences of registers
//! that hold in every run. `model` describes the memory that a call may access; `fixpoint` drives PREVAIL, and in the
//! end checks its result step by step.
//!
//! # What this crate does not do
//!
//! Nothing depends on a proof. Targets do not ask for one, and check every access of every function at run time; a
//! function without a proof is confined as well. A proof tells the author of a function that it cannot fault. If a
//! function with a proof faults, there is a bug in the verifier or in this crate. Only accesses are proved: not that
//! loops end, for which there is the budget, and not the results of a function.
//!
//! The verifier may need much time and memory for a small function. It checks the deadline of [`prove`] only between
//! instructions, so a caller that must get an answer runs it in a process of its own with limits, as `bpfof function
//! check` does.

mod fixpoint;
mod model;
mod obstacle;
mod order;
mod words;

pub use obstacle::{GaveUp, MAX_INSTRUCTIONS, Obstacle};

use bpfof_function::Program;
use bpfof_function::instruction::Instruction;
use fixpoint::Analysis;

use prevail::crab::ebpf_domain::{DomainContext, EbpfDomain};
use prevail::crab::var_registry::VariableRegistry;
use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// Result of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No access can fault, whatever the contents of blocks and scratch.
    Proved,
    /// An access may fault as far as the verifier can tell.
    NotProved(Obstacle),
    /// No result.
    GaveUp(GaveUp),
}

/// Tries to prove that no access of `program` faults when each block that it is called on has at least `data_min_bytes`
/// bytes. Gives up soon after `deadline`.
pub fn prove(program: &Program, data_min_bytes: usize, deadline: Instant) -> Outcome {
    let used = match used_functions(program) {
        Ok(used) => used,
        Err(reason) => return Outcome::GaveUp(reason),
    };
    if let Some(helper) = model::unknown_helper(program, &used) {
        return Outcome::GaveUp(GaveUp::Helper(helper.name()));
    }
    // The verifier panics if it finds its own states contradictory.
    let attempt = || attempt(program, &used, data_min_bytes, deadline);
    match catch_unwind(AssertUnwindSafe(attempt)) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(reason)) => Outcome::GaveUp(reason),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
            let first = text.lines().next().unwrap_or_default();
            Outcome::GaveUp(GaveUp::Verifier(first.to_owned()))
        }
    }
}

fn attempt(
    program: &Program,
    used: &BTreeSet<u32>,
    data_min_bytes: usize,
    deadline: Instant,
) -> Result<Outcome, GaveUp> {
    let platform = model::Platform::new(program.statics());
    let mut info = model::program_info(&platform);
    let options = model::options();
    let code = model::instructions(program, used);
    let modelled =
        prevail::ir::program::Program::from_sequence(&code, &mut info, &platform, &options)
            .map_err(|error| GaveUp::Verifier(error.to_string()))?;
    let context = DomainContext::new(&info, &modelled, &options, &platform);
    let mut registry = VariableRegistry::new();
    let entry = EbpfDomain::from_constraints(
        &model::entry_state(data_min_bytes),
        false,
        &context,
        &mut registry,
    );
    // With an unsatisfiable entry state nothing would be reachable, and everything proved.
    if entry.is_bottom() {
        return Err(GaveUp::Unstable);
    }
    let has_constants = !program.statics().constants().is_empty();
    let checks = model::checks(&options.runtime);
    let mut analysis = Analysis::run(&context, &checks, registry, entry, has_constants, deadline)?;
    let obstacles = analysis.obstacles();
    if let Some(first) = obstacles.into_iter().min_by_key(|obstacle| obstacle.pc) {
        return Ok(Outcome::NotProved(first));
    }
    if analysis.is_inductive()? { Ok(Outcome::Proved) } else { Err(GaveUp::Unstable) }
}

/// The functions that the entry calls, and the entry itself, by their first instruction. Refuses a program that would
/// be too large with a copy of a function for each call.
fn used_functions(program: &Program) -> Result<BTreeSet<u32>, GaveUp> {
    let mut sizes = HashMap::new();
    let size = expanded(program, 0, &mut sizes)?;
    if size > MAX_INSTRUCTIONS { Err(GaveUp::Size(size)) } else { Ok(sizes.into_keys().collect()) }
}

/// Instructions of the function that begins at `start`, including the functions that it calls. `sizes` has the known
/// sizes, and None for functions that are being counted.
fn expanded(
    program: &Program,
    start: u32,
    sizes: &mut HashMap<u32, Option<u64>>,
) -> Result<u64, GaveUp> {
    match sizes.get(&start) {
        Some(Some(size)) => return Ok(*size),
        Some(None) => return Err(GaveUp::Recursion),
        None => sizes.insert(start, None),
    };
    let mut size = 0u64;
    let functions = program.functions();
    let range = functions.iter().find(|function| function.start == start);
    for instruction in range
        .map_or(&[][..], |range| &program.instructions()[range.start as usize..range.end as usize])
    {
        size = size.saturating_add(match *instruction {
            Instruction::ConstantTail => 0,
            Instruction::CallLocal { target } => 1 + expanded(program, target, sizes)?,
            _ => 1,
        });
    }
    sizes.insert(start, Some(size));
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];
    /// r6 = r1; call the function behind the exit.
    const CALL: [[u8; 8]; 3] =
        [[0xbf, 0x16, 0, 0, 0, 0, 0, 0], [0x85, 0x10, 0, 0, 1, 0, 0, 0], EXIT];

    fn outcome(slots: &[&[[u8; 8]]]) -> Outcome {
        let program = Program::parse(slots.concat().as_flattened()).expect("valid");
        prove(&program, 0, Instant::now() + Duration::from_secs(60))
    }

    #[test]
    fn local_functions_find_their_arguments_and_nothing_else() {
        // r0 = *(u32 *)(r1 + 36), and the same by r6.
        let [by_r1, by_r6] = [0x10, 0x60].map(|base| [[0x61, base, 36, 0, 0, 0, 0, 0], EXIT]);
        assert_eq!(outcome(&[&CALL, &by_r1]), Outcome::Proved);
        let Outcome::NotProved(obstacle) = outcome(&[&CALL, &by_r6]) else { panic!("proved") };
        assert_eq!(obstacle.pc, 3);
        // The caller has its own registers again: r0 = *(u32 *)(r6 + 36).
        let after = [CALL[0], CALL[1], by_r6[0], EXIT];
        let zero = [[0xb7, 6, 0, 0, 0, 0, 0, 0], EXIT];
        let nested = [[0x85, 0x10, 0, 0, 2, 0, 0, 0]];
        assert_eq!(outcome(&[&after[..1], &nested, &after[2..], &zero]), Outcome::Proved);
    }

    #[test]
    fn programs_beyond_the_limits_are_not_tried() {
        // Each function calls the next one twice: 2^10 copies.
        let mut slots = Vec::new();
        for _ in 0..10 {
            slots.extend([[0x85, 0x10, 0, 0, 2, 0, 0, 0], [0x85, 0x10, 0, 0, 1, 0, 0, 0], EXIT]);
        }
        slots.push(EXIT);
        let Outcome::GaveUp(GaveUp::Size(size)) = outcome(&[&slots]) else { panic!("tried") };
        assert_eq!(size, 4 * 1024 - 3);
        let itself = [[0x85, 0x10, 0, 0, 0xff, 0xff, 0xff, 0xff], EXIT];
        assert_eq!(outcome(&[&itself]), Outcome::GaveUp(GaveUp::Recursion));
        let program = Program::parse(&EXIT).expect("valid");
        assert_eq!(prove(&program, 0, Instant::now()), Outcome::GaveUp(GaveUp::Time));
    }
}
