//! The cost of a helper call, by the number of bytes that it processes.

use super::arena::{SCRATCH_AT, prepare, succeeded};
use crate::assembly::{
    add_immediate, call, finish, load_data_pointer, load_scratch_pointer, move_immediate,
    move_register, slot,
};
use crate::measurement::{median, spread_percent, tenths};
use bpfof_function::helper::Helper;
use bpfof_function::{Alone, NativeFunction, Program};
use serde::Serialize;
use std::time::Instant;

/// Bytes of one call.
pub(super) const LENGTHS: [usize; 5] = [8, 64, 256, 1024, 4096];
/// Digits of a number: one, as many as e2BPF's strtoul takes, as many as always fit 64 bits.
const DIGITS: [usize; 3] = [1, 8, 18];
/// Calls of a helper in one call of the function, each on different bytes.
const CALLS: usize = 64;
/// Calls of the function in a round.
const ROUND: usize = 200;
/// Distance between the bytes of two calls: enough that short ones share no cache line.
const STRIDE_BYTES: usize = 256;
/// For helpers with two ranges the second ones begin here, after the first ranges.
const SECOND_AT: usize = 24 << 10;
const BLOCK_BYTES: usize = 2 * SECOND_AT;
const BUDGET: i64 = 1_000_000;

/// ns for each call of one helper, medians of the rounds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct HelperCost {
    pub(super) helper: &'static str,
    pub(super) bytes: usize,
    /// With the length as a constant of the program: short ones are translated without a call.
    pub(super) constant_ns: f64,
    /// With the length in a variable.
    pub(super) variable_ns: f64,
    /// Deviation of the tenth and the ninetieth percentile of the rounds from the medians, in percent.
    pub(super) spread_percent: f64,
}

/// The arguments after r1, which points to the bytes.
#[derive(Clone, Copy)]
enum Arguments {
    /// r2 points to the same number of bytes, r3 is the length.
    Ranges,
    /// r2 is this value, r3 the length.
    Value(i32),
    /// r2 is the length, r3 the base 10, r4 the place of the result.
    Number,
}

impl Arguments {
    fn lengths(self) -> &'static [usize] {
        if matches!(self, Arguments::Number) { &DIGITS } else { &LENGTHS }
    }

    /// The value of the bytes.
    fn filling(self) -> u8 {
        if matches!(self, Arguments::Number) { b'7' } else { 0 }
    }
}

/// The helpers, with arguments that make them process all their bytes: ranges of zeroes are equal, and contain no 1.
const HELPERS: [(Helper, Arguments); 8] = [
    (Helper::Memcmp, Arguments::Ranges),
    (Helper::Memmove, Arguments::Ranges),
    (Helper::Memset, Arguments::Value(0)),
    (Helper::Crc32c, Arguments::Value(0)),
    (Helper::Find, Arguments::Value(1)),
    (Helper::FindAny, Arguments::Value(0x0403_0201)),
    (Helper::Xxh3, Arguments::Value(0)),
    (Helper::ParseInt, Arguments::Number),
];

/// A function that calls a helper [`CALLS`] times. r9 sums up the results, so that no call is superfluous.
fn program(helper: Helper, arguments: Arguments, bytes: usize, is_constant: bool) -> Vec<u8> {
    let mut code = vec![
        load_data_pointer(7),
        load_scratch_pointer(8),
        // The length, as a number that the translator does not know.
        slot(0x61, 6, 8, 0, 0),
        move_immediate(9, 0),
    ];
    for index in 0..CALLS {
        code.extend([move_register(1, 7), add_immediate(1, (index * STRIDE_BYTES) as i32)]);
        let length = |register| match is_constant {
            true => move_immediate(register, bytes as i32),
            false => move_register(register, 6),
        };
        match arguments {
            Arguments::Ranges => {
                code.extend([move_register(2, 1), add_immediate(2, SECOND_AT as i32), length(3)]);
            }
            Arguments::Value(value) => code.extend([move_immediate(2, value), length(3)]),
            Arguments::Number => {
                code.extend([length(2), move_immediate(3, 10)]);
                code.extend([move_register(4, 8), add_immediate(4, 16)]);
            }
        }
        code.extend([call(helper), slot(0x0f, 9, 0, 0, 0)]);
    }
    // *(u64 *)(r8 + 8) = r9
    code.push(slot(0x7b, 8, 9, 8, 0));
    code.extend(finish());
    code.concat()
}

/// A function to call, with its data.
struct Subject {
    name: &'static str,
    native: NativeFunction,
    argument: [u8; 8],
    filling: u8,
}

impl Subject {
    fn new(
        name: &'static str,
        code: &[u8],
        bytes: usize,
        filling: u8,
    ) -> Result<Subject, Box<dyn std::error::Error>> {
        let native = NativeFunction::compile(&Program::parse(code)?)?;
        Ok(Subject { name, native, argument: (bytes as u64).to_le_bytes(), filling })
    }

    /// ns for each call of the function.
    fn round(&self) -> Result<f64, String> {
        let (mut arena, limit) = prepare(&[self.filling; BLOCK_BYTES]);
        arena.bytes_mut()[SCRATCH_AT..][..8].copy_from_slice(&self.argument);
        let started = Instant::now();
        for _ in 0..ROUND {
            let outcome = self.native.call(&mut arena, limit, &mut { BUDGET }, &mut Alone);
            succeeded(outcome, self.name, self.native.program())?;
        }
        Ok(started.elapsed().as_nanos() as f64 / ROUND as f64)
    }
}

/// Measures all helpers at all lengths.
pub(super) fn measure(rounds: usize) -> Result<Vec<HelperCost>, Box<dyn std::error::Error>> {
    let nothing = Subject::new("an empty function", &finish().concat(), 0, 0)?;
    let mut costs = Vec::new();
    for (helper, arguments) in HELPERS {
        let name = helper.name();
        for &bytes in arguments.lengths() {
            let subject = |is_constant| {
                let code = program(helper, arguments, bytes, is_constant);
                Subject::new(name, &code, bytes, arguments.filling())
            };
            let (constant, variable) = (subject(true)?, subject(false)?);
            let (mut constant_ns, mut variable_ns) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                let empty = nothing.round()?;
                constant_ns.push((constant.round()? - empty) / CALLS as f64);
                variable_ns.push((variable.round()? - empty) / CALLS as f64);
            }
            let spread =
                |ns: &[f64]| tenths(ns).map_or(0.0, |range| spread_percent(median(ns), range));
            costs.push(HelperCost {
                helper: name,
                bytes,
                spread_percent: spread(&constant_ns).max(spread(&variable_ns)),
                constant_ns: median(&constant_ns),
                variable_ns: median(&variable_ns),
            });
        }
    }
    Ok(costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_helper_goes_through_all_its_bytes() {
        for (helper, arguments) in HELPERS {
            let bytes = *arguments.lengths().last().expect("some");
            for is_constant in [false, true] {
                let code = program(helper, arguments, bytes, is_constant);
                let filling = arguments.filling();
                let subject = Subject::new(helper.name(), &code, bytes, filling).expect("valid");
                let (mut arena, limit) = prepare(&[filling; BLOCK_BYTES]);
                arena.bytes_mut()[SCRATCH_AT..][..8].copy_from_slice(&subject.argument);
                let mut budget = BUDGET;
                let outcome = subject.native.call(&mut arena, limit, &mut budget, &mut Alone);
                succeeded(outcome, subject.name, subject.native.program()).expect("it runs");
                // 8 bytes are charged at least one instruction of the budget.
                assert!(BUDGET - budget >= (CALLS * bytes / 8) as i64, "{helper:?}: {budget}");
                let gathered = &arena.scratch()[8..16];
                let sum = u64::from_le_bytes(gathered.try_into().expect("8 bytes"));
                let counts = matches!(helper, Helper::Find | Helper::FindAny | Helper::ParseInt);
                let expected = if counts { CALLS * bytes } else { 0 };
                if !matches!(helper, Helper::Crc32c | Helper::Xxh3) {
                    assert_eq!(sum, expected as u64, "{helper:?}");
                }
            }
        }
    }
}
