//! The price of execution: processor time, in units.
//!
//! One unit is [`UNIT_PS`] picoseconds on the reference machine, a server core of about 3.5 GHz (AMD
//! Zen 3). Each instruction and helper has a fixed price, or a price by its bytes. A price is at least half of the
//! worst-case time there: data in the second-level cache, each result needed by the next instruction, branches that
//! cannot be predicted. Most code takes less time than it pays. `bpfof bench function --parts charges` compares every
//! price with the clock.
//!
//! When an execution pays:
//!
//! - a call of a function pays for its most expensive path forward before it begins;
//! - a jump backwards pays, before it is taken, for the most expensive path from its target to itself;
//! - a strided loop (`scan`) pays for its iterations when it is left, and for the path past it, if it was entered
//!   behind the point where it is left;
//! - helpers pay for their work before they do it.
//!
//! So a function never executes more than it has paid, except for one strided loop that has not been left yet, which
//! the size of the arena bounds (`SCAN_UNITS_PER_BYTE`). A call that faults in such a loop has not paid for it: the
//! code that runs chains adds the difference ([`unpaid_after_fault`](crate::NativeFunction::unpaid_after_fault)).
//! Prices are positive: units are never given back.

use crate::abi;
use crate::arena::Limit;
use crate::instruction::{AluOp, Instruction, Register, Width};
use std::ops::Range;

/// Time that a unit stands for, in picoseconds.
pub const UNIT_PS: u64 = 200;

/// Units for a time in microseconds.
pub const fn units_of_us(us: u64) -> u64 {
    us * 1_000_000 / UNIT_PS
}

/// Maximum units that an iteration of a strided loop may cost for each byte of its step: enough for a loop over bytes
/// (a load, an operation on it, the step, a branch or two). Such a loop executes at most this times the bytes of an
/// arena before it pays: 2.4 million units over all the data of a hop, 0.5 ms, and 1.7 times that with a workspace.
pub(crate) const SCAN_UNITS_PER_BYTE: i64 = 26;

/// The offsets of a strided loop's accesses from its register may differ by at most this many bytes.
pub(crate) const SCAN_OFFSETS_BYTES: u16 = 512;

/// Maximum units that a strided loop executes before it pays, for a call that may access memory from `lowest` up to
/// `limit`. The loop's register stays within that range, but for the offset of an access.
pub(crate) fn scan_slack(lowest: u64, limit: Limit) -> i64 {
    let before = (abi::GUEST_BASE - lowest) as usize;
    let reach = (before + limit.bytes()) as i64 + i64::from(SCAN_OFFSETS_BYTES);
    // One more iteration, with any step.
    reach * SCAN_UNITS_PER_BYTE + 64 * (ATOMIC + STORE_ACROSS)
}

/// An unpredictable branch costs 6 ns every other time.
const BRANCH: i64 = 6;
/// The latency of the second-level cache, which the arena fits into: each address may depend on the previous load.
const LOAD: i64 = 12;
/// A store that does not cross a page boundary.
const STORE: i64 = 2;
/// Added for a store that crosses a page boundary: 9 ns each time.
const STORE_ACROSS: i64 = 22;
const ATOMIC: i64 = 10;
const MULTIPLY: i64 = 3;
/// Microcoded on many processors.
const DIVIDE: i64 = 12;
/// Frame, registers, the check of the depth, the return.
const CALL: i64 = 8;
/// Two instructions, of which the second depends on the first.
const SWAP_16: i64 = 2;

impl Instruction {
    /// Price of executing it once, without the function or helper that it calls.
    fn cost(&self) -> i64 {
        use AluOp::{Div, Mod, Mul, SignedDiv, SignedMod};
        match *self {
            Instruction::ConstantTail => 0,
            Instruction::Alu { op: Mul, .. } => MULTIPLY,
            Instruction::Alu { op: Div | SignedDiv | Mod | SignedMod, .. } => DIVIDE,
            Instruction::Load { .. } => LOAD,
            Instruction::Endian { swap: true, width: Width::Bits16, .. } => SWAP_16,
            Instruction::Store { width, base, offset, .. } => {
                STORE + across(width.bytes(), base, offset)
            }
            Instruction::Atomic { wide, base, offset, .. } => {
                ATOMIC + across(if wide { 8 } else { 4 }, base, offset)
            }
            Instruction::Branch { .. } => BRANCH,
            Instruction::CallLocal { .. } => CALL,
            _ => 1,
        }
    }
}

/// The surcharge for a write that may cross a page boundary. Writes of a byte, and aligned writes to a frame, cannot
/// cross one.
fn across(bytes: u64, base: Register, offset: i16) -> i64 {
    let in_place = base == Register::FRAME && i64::from(offset) % bytes as i64 == 0;
    if in_place || bytes == 1 { 0 } else { STORE_ACROSS }
}

/// Prices of the most expensive paths forward to each instruction of a program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Costs {
    /// By slot: price of executing it once, without the function or helper that it calls.
    own: Vec<u8>,
    /// By slot: price of the most expensive path from the start of its function to the slot, without jumps backwards
    /// and without the slot itself.
    before: Vec<i64>,
    /// By function, in the order of the program's functions: the most expensive path through it.
    whole: Vec<i64>,
}

impl Costs {
    /// Computes the prices of checked instructions.
    pub(crate) fn of(instructions: &[Instruction], functions: &[Range<u32>]) -> Costs {
        let mut costs = Costs {
            own: own(instructions),
            before: vec![0; instructions.len()],
            whole: Vec::new(),
        };
        // A slot that no forward path reaches is treated as if the slot before continued into it: so the body of a loop
        // that is entered at its end does not become more expensive.
        for function in functions {
            let mut reached = vec![None; function.len()];
            let (mut whole, mut last) = (0, 0);
            for pc in function.clone() {
                let at = (pc - function.start) as usize;
                let before = reached[at].unwrap_or(last);
                costs.before[pc as usize] = before;
                let instruction = &instructions[pc as usize];
                let after = before + costs.own(pc);
                let mut reach = |target: u32| {
                    let slot = &mut reached[(target - function.start) as usize];
                    *slot = (*slot).max(Some(after));
                };
                if let Some(target) = instruction.jump_target().filter(|target| *target > pc) {
                    reach(target);
                }
                if instruction.runs_on() && pc + 1 < function.end {
                    reach(pc + 1);
                }
                (whole, last) = (whole.max(after), after);
            }
            costs.whole.push(whole);
        }
        costs
    }

    /// Price of executing a slot once, without the function or helper that it calls.
    pub(crate) fn own(&self, pc: u32) -> i64 {
        self.own[pc as usize].into()
    }

    /// Price of the most expensive path forward to a slot, without the slot itself.
    pub(crate) fn before(&self, pc: u32) -> i64 {
        self.before[pc as usize]
    }

    /// Price that a call of function number `index` pays before it begins.
    pub(crate) fn call(&self, index: usize) -> i64 {
        self.whole[index]
    }

    /// Price that a jump backwards from `pc` to `target` pays.
    pub(crate) fn jump(&self, pc: u32, target: u32) -> i64 {
        let way = self.before[pc as usize] - self.before[target as usize];
        (way + self.own(pc)).max(1)
    }
}

/// Prices of executing each slot once.
fn own(instructions: &[Instruction]) -> Vec<u8> {
    let costs = instructions.iter().map(Instruction::cost);
    costs.map(|cost| u8::try_from(cost).expect("prices are small")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Program;

    const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];

    fn program(slots: &[[u8; 8]]) -> Program {
        Program::parse(slots.as_flattened()).expect("valid")
    }

    /// Price of an access with this opcode, registers and offset.
    fn cost(opcode: u8, registers: u8, offset: i16) -> i64 {
        let [low, high] = offset.to_le_bytes();
        program(&[[opcode, registers, low, high, 0, 0, 0, 0], EXIT]).cost(0)
    }

    #[test]
    fn writes_that_may_cross_a_page_pay_for_it() {
        let (frame, pointer) = (0x0a, 0x01);
        for (store, bytes) in [(0x6b, 2), (0x63, 4), (0x7b, 8)] {
            assert_eq!(cost(store, frame, -8 * bytes), STORE);
            assert_eq!(cost(store, frame, 1 - 8 * bytes), STORE + STORE_ACROSS);
            assert_eq!(cost(store, pointer, 0), STORE + STORE_ACROSS);
        }
        assert_eq!(cost(0x73, pointer, 1), STORE);
        assert_eq!(cost(0xdb, frame, -8), ATOMIC);
        assert_eq!(cost(0xc3, frame, -4), ATOMIC);
        assert_eq!(cost(0xdb, frame, -4), ATOMIC + STORE_ACROSS);
        assert_eq!(cost(0xc3, pointer, 0), ATOMIC + STORE_ACROSS);
    }
}
