//! Tail calls between functions.

mod assembly;

use assembly::{CHAIN, EXIT, function, slot};
use bpfof_chain::engine::MAX_TAIL_CALLS;
use bpfof_chain::{
    Answer, ChainError, DeviceRead, Engine, FileMap, Function, Limits, Outcome, Progress, Start,
    Tables,
};
use std::sync::Arc;

const TAIL_CALL_COST: u64 = 500;

/// Counts its calls in scratch[0] and tail-calls the function named in scratch[1]; returns 77 if that fails.
fn caller(id: u32) -> Function {
    function(
        id,
        &[
            slot(0x79, 6, 1, 16, 0), // r6 = scratch
            slot(0x71, 2, 6, 0, 0),
            slot(0x07, 2, 0, 0, 1),
            slot(0x73, 6, 2, 0, 0), // scratch[0] += 1
            slot(0x71, 1, 6, 1, 0),
            slot(0x85, 0, 0, 0, 6), // bpfof_tail_call(scratch[1])
            slot(0xb7, 0, 0, 0, 77),
            EXIT,
        ],
    )
}

/// The cost of one call of it without the tail call: three loads, a store, four others.
const CALLER_COST: u64 = 3 * 12 + 2 + 4;

/// Adds 16 to scratch[0]; ends the chain in hop 2, requests another read in earlier hops.
fn callee(id: u32) -> Function {
    function(
        id,
        &[
            slot(0x79, 6, 1, 16, 0),
            slot(0x71, 2, 6, 0, 0),
            slot(0x07, 2, 0, 0, 16),
            slot(0x73, 6, 2, 0, 0),
            slot(0xb7, 0, 0, 0, 0),
            slot(0x61, 2, 1, 36, 0), // r2 = hop
            slot(0x55, 2, 0, 3, 2),  // if r2 != 2 goto on
            slot(0x62, 1, 0, 52, 1), // done = 1
            slot(0x62, 1, 0, 56, 1), // out_len = 1
            EXIT,
            slot(0x62, 1, 0, 48, 1), // reads = 1
            slot(0x62, 1, 0, 192, 512),
            EXIT,
        ],
    )
}

fn faulting(id: u32) -> Function {
    function(id, &[slot(0xb7, 1, 0, 0, 0), slot(0x71, 0, 1, 0, 0), EXIT])
}

fn tables(functions: Vec<Function>) -> Tables {
    let tables = Tables::new(vec![FileMap::whole_namespace(1, 4096)]);
    functions.into_iter().fold(tables, |tables, function| tables.with_function(function))
}

/// Traces scratch[0..2] with the number 5, scratch[1] times, and aborts with 1.
fn tracing(id: u32) -> Function {
    function(
        id,
        &[
            slot(0x79, 6, 1, 16, 0),
            slot(0x71, 7, 6, 1, 0),
            slot(0xbf, 1, 6, 0, 0),
            slot(0xb7, 2, 0, 0, 2),
            slot(0xb7, 3, 0, 0, 5),
            slot(0x85, 0, 0, 0, 13), // bpfof_trace(scratch, 2, 5)
            slot(0x17, 7, 0, 0, 1),
            slot(0x55, 7, 0, -6, 0),
            slot(0xb7, 0, 0, 0, 1),
            EXIT,
        ],
    )
}

/// Runs function 1 with this argument; between hops, `change` replaces the tables.
fn run(
    mut tables: Tables,
    argument: &[u8],
    limits: Limits,
    change: impl Fn(&Tables) -> Option<Tables>,
) -> (Outcome, u8, u32) {
    let mut engine = Engine::new(limits);
    let mut reads: Vec<DeviceRead> = Vec::new();
    let start = Start { argument, ..CHAIN };
    let chain = engine.start(&start, &tables, |read| reads.push(read)).expect("it starts");
    loop {
        assert_eq!(reads.pop().map(|read| read.length), Some(512));
        let progress = engine.completed(chain, true, &tables, |read| reads.push(read));
        if let Progress::Done(outcome) = progress {
            let last = engine.usage(chain).last_function;
            return (outcome, engine.scratch(chain)[0], last);
        }
        tables = change(&tables).unwrap_or(tables);
    }
}

fn keep(_: &Tables) -> Option<Tables> {
    None
}

#[test]
fn every_hop_calls_the_requests_function_first() {
    let (outcome, count, last) =
        run(tables(vec![caller(1), callee(9)]), &[0, 9], Limits::default(), keep);
    assert_eq!(outcome, Ok(Answer { hops: 3, length_bytes: 1 }));
    assert_eq!((count, last), (3 * 17, 9));
}

#[test]
fn a_tail_call_to_a_missing_function_fails() {
    let (outcome, count, last) = run(tables(vec![caller(1)]), &[0, 9], Limits::default(), keep);
    assert_eq!(outcome, Err((ChainError::Abort(77), 1)));
    assert_eq!((count, last), (1, 1));
}

#[test]
fn a_cycle_of_tail_calls_ends() {
    let round = || tables(vec![caller(1), caller(2)]);
    let (outcome, count, last) = run(round(), &[0, 1], Limits::default(), keep);
    assert_eq!(outcome, Err((ChainError::Abort(77), 1)));
    assert_eq!((u32::from(count), last), (MAX_TAIL_CALLS + 1, 1));
    // All functions pay from one budget.
    let limits = 3 * (CALLER_COST + TAIL_CALL_COST) + CALLER_COST;
    let limits = Limits { instructions: limits, ..Limits::default() };
    let (outcome, count, _) = run(round(), &[0, 1], limits, keep);
    let Err((error, 1)) = outcome else { panic!("{outcome:?}") };
    assert!(error.is_instruction_budget());
    assert_eq!(count, 4);
}

#[test]
fn a_fault_names_the_function_that_ran() {
    let (outcome, _, last) =
        run(tables(vec![caller(1), faulting(3)]), &[0, 3], Limits::default(), keep);
    let Err((ChainError::Fault(fault), 1)) = outcome else { panic!("{outcome:?}") };
    assert_eq!((fault.pc, last), (1, 3));
}

#[test]
fn a_function_may_be_unloaded_or_loaded_between_hops() {
    let unload = |tables: &Tables| Some(tables.without_function(9));
    let both = || tables(vec![caller(1), callee(9)]);
    let (outcome, count, last) = run(both(), &[0, 9], Limits::default(), unload);
    assert_eq!(outcome, Err((ChainError::Abort(77), 2)));
    assert_eq!((count, last), (17 + 1, 1));
    let replace = |tables: &Tables| Some(tables.with_function(faulting(9)));
    let (outcome, _, last) = run(both(), &[0, 9], Limits::default(), replace);
    assert!(matches!(outcome, Err((ChainError::Fault(_), 2))), "{outcome:?}");
    assert_eq!(last, 9);
}

#[test]
fn traces_belong_to_the_function_that_wrote_them() {
    let [silent, talking] = [caller(1), tracing(33)].map(Arc::new);
    let whole = Tables::new(vec![FileMap::whole_namespace(1, 4096)]);
    let tables = whole.with_function(Arc::clone(&silent)).with_function(Arc::clone(&talking));
    let (outcome, _, _) = run(tables, b"@!", Limits::default(), keep);
    assert_eq!(outcome, Err((ChainError::Abort(1), 1)));
    // 8 of the call's 33 lines are kept.
    let expected = format!("(25 more lines were not kept)\n{}", "A! 5\n".repeat(8));
    assert_eq!((silent.trace.report(), talking.trace.report()), (String::new(), expected));
}

/// A strided loop pays when it exits. If it faults instead, its work is charged all the same.
#[test]
fn a_scan_that_faults_is_counted() {
    let scanning = function(
        1,
        &[
            slot(0xbf, 2, 1, 0, 0),
            slot(0x71, 3, 2, 0, 0), // r3 = *(u8 *)r2
            slot(0x07, 2, 0, 0, 1), // r2 += 1
            slot(0x05, 0, 0, -3, 0),
            EXIT,
        ],
    );
    let tables = tables(vec![scanning]);
    let mut engine = Engine::new(Limits::default());
    let mut reads = Vec::new();
    let start = Start { first_size_bytes: 4096, ..CHAIN };
    let chain = engine.start(&start, &tables, |read| reads.push(read)).expect("it starts");
    let before = engine.take_spent();
    let progress = engine.completed(chain, true, &tables, |read| reads.push(read));
    let Progress::Done(Err((ChainError::Fault(fault), 1))) = progress else {
        panic!("{progress:?}")
    };
    assert_eq!(fault.pc, 1);
    // Each byte of the data costs a load and two other instructions.
    let executed = 4096 * (12 + 2);
    let spent = engine.take_spent();
    assert!(spent >= executed, "{spent} of {executed} units, after {before}");
}
