//! Measures the time of an instruction on this machine, for estimates of the cost of functions.

use bpfof_function::{Alone, Arena, NativeFunction, Program};
use std::error::Error;
use std::time::Instant;

/// Adds up the words of a block: `for (; at < end; at++) sum += *at`.
#[rustfmt::skip]
const LOOP: [[u8; 8]; 9] = [
    [0x79, 0x12, 0, 0, 0, 0, 0, 0],       // r2 = ctx->data
    [0x79, 0x13, 8, 0, 0, 0, 0, 0],       // r3 = ctx->data_end
    [0xb7, 0x00, 0, 0, 0, 0, 0, 0],       // r0 = 0
    [0x79, 0x24, 0, 0, 0, 0, 0, 0],       // again: r4 = *(u64 *)r2
    [0x0f, 0x40, 0, 0, 0, 0, 0, 0],       // r0 += r4
    [0x07, 0x02, 0, 0, 8, 0, 0, 0],       // r2 += 8
    [0xad, 0x32, 0xfc, 0xff, 0, 0, 0, 0], // if r2 < r3 goto again
    [0xb7, 0x00, 0, 0, 0, 0, 0, 0],       // r0 = 0
    [0x95, 0x00, 0, 0, 0, 0, 0, 0],       // exit
];
const LOOP_INSTRUCTIONS: usize = 4;
/// Fits the first-level cache, as a block that was just read does.
const BLOCK_BYTES: usize = 16384;
/// Rounds of which the fastest counts; all of them take a millisecond.
const ROUNDS: usize = 200;

/// ns an instruction, its checks and budget included, in a loop of loads and additions.
pub(super) fn measure() -> Result<f64, Box<dyn Error>> {
    let native = NativeFunction::compile(&Program::parse(LOOP.as_flattened())?)?;
    let mut arena = Arena::new();
    arena.begin_chain(&[], 0);
    arena.begin_hop(0);
    let limit = arena.begin_call(0..BLOCK_BYTES, 0, 0, 0);
    let mut best_ns = u128::MAX;
    for _ in 0..ROUNDS {
        let mut budget = i64::MAX;
        let started = Instant::now();
        let called = native.call(&mut arena, limit, &mut budget, &mut Alone);
        called.map_err(|fault| fault.to_string())?;
        best_ns = best_ns.min(started.elapsed().as_nanos());
    }
    Ok(best_ns as f64 / (BLOCK_BYTES / 8 * LOOP_INSTRUCTIONS) as f64)
}
