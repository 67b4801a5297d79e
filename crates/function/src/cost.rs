//! What a function pays for: processor time, in units.
//!
//! One unit is [`UNIT_PS`] picoseconds on the reference machine, a server core of about 3.5 GHz (AMD
//! Zen 3). Each instruction and helper has a fixed price, or a price by its bytes, which is at least
//! half of what it takes there at its worst: data in the second-level cache, each result needed by
//! the next instruction, branches that cannot be predicted. Most code takes less than it pays.
//! `bpfof bench function --parts charges` compares every price with the clock.
//!
//! How the sum over an execution is formed:
//!
//! - a call of a function pays for its dearest way forward before it begins;
//! - a jump backwards pays for the dearest way from its target to itself, before it is taken;
//! - a strided loop (`scan`) pays for its turns when it is left, and for the way past it, if it was entered
//!   behind where it is left;
//! - helpers pay for their work before they do it.
//!
//! So what has been executed is never more than what has been paid, but for one strided loop that is
//! not left yet, which the size of the arena bounds (`SCAN_UNITS_PER_BYTE`). A call that faults in one
//! has not paid for it: who runs chains adds that
//! ([`unpaid_after_fault`](crate::NativeFunction::unpaid_after_fault)). Prices are positive: nothing
//! gives units back.

use crate::abi;
use crate::arena::Limit;
use crate::instruction::{AluOp, Instruction};
use std::ops::Range;

/// Time that a unit stands for, in picoseconds.
pub const UNIT_PS: u64 = 200;

/// Units for a time in microseconds.
pub const fn units_of_us(us: u64) -> u64 {
    us * 1_000_000 / UNIT_PS
}

/// Most units that a turn of a strided loop may cost for each byte of its step: what a loop over bytes
/// needs (a load, something done with it, the step, a branch or two). This times the bytes of an arena
/// is what such a loop executes before it pays: two million units over all the data of a hop, 0.4 ms,
/// and 1.7 times that with a workspace.
pub(crate) const SCAN_UNITS_PER_BYTE: i64 = 26;

/// The most that a strided loop has executed of a call up to `limit` before it pays: its register is
/// within the reach of an access's offset around what may be accessed.
pub(crate) fn scan_slack(limit: Limit) -> i64 {
    let reach = (abi::WORKSPACE_BYTES + limit.bytes() + 2 * (1 << 15)) as i64;
    // One turn more, whatever its step.
    reach * SCAN_UNITS_PER_BYTE + 64 * DIVIDE
}

/// If it cannot be predicted, every other one costs 6 ns.
const BRANCH: i64 = 6;
/// The latency of the second-level cache, which the arena fits: each address may depend on the load
/// before.
const LOAD: i64 = 12;
const STORE: i64 = 2;
const ATOMIC: i64 = 10;
const MULTIPLY: i64 = 3;
/// Microcoded on many processors.
const DIVIDE: i64 = 12;
/// Frame, registers, the check of the depth, the return.
const CALL: i64 = 8;

impl Instruction {
    /// What executing it once costs, without what a function or helper that it calls costs.
    pub(crate) fn cost(&self) -> i64 {
        use AluOp::{Div, Mod, Mul, SignedDiv, SignedMod};
        match self {
            Instruction::ConstantTail => 0,
            Instruction::Alu { op: Mul, .. } => MULTIPLY,
            Instruction::Alu { op: Div | SignedDiv | Mod | SignedMod, .. } => DIVIDE,
            Instruction::Load { .. } => LOAD,
            Instruction::Store { .. } => STORE,
            Instruction::Atomic { .. } => ATOMIC,
            Instruction::Branch { .. } => BRANCH,
            Instruction::CallLocal { .. } => CALL,
            _ => 1,
        }
    }
}

/// The dearest way forward to each instruction of a program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Costs {
    /// By slot: what the dearest way from the start of its function costs, without jumps backwards
    /// and without the slot itself.
    before: Vec<i64>,
    /// By function, in the order of the program's: the dearest way through it.
    whole: Vec<i64>,
}

impl Costs {
    /// Those of checked instructions.
    pub(crate) fn of(instructions: &[Instruction], functions: &[Range<u32>]) -> Costs {
        let mut costs = Costs { before: vec![0; instructions.len()], whole: Vec::new() };
        // What no jump forward leads to counts as if the slot before ran on into it: that keeps the
        // body of a loop that is entered at its end as cheap as it is.
        for function in functions {
            let mut reached = vec![None; function.len()];
            let (mut whole, mut last) = (0, 0);
            for pc in function.clone() {
                let at = (pc - function.start) as usize;
                let before = reached[at].unwrap_or(last);
                costs.before[pc as usize] = before;
                let instruction = &instructions[pc as usize];
                let after = before + instruction.cost();
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

    /// What the dearest way forward to a slot costs, without the slot itself.
    pub(crate) fn before(&self, pc: u32) -> i64 {
        self.before[pc as usize]
    }

    /// What a call of function number `index` pays before it begins.
    pub(crate) fn call(&self, index: usize) -> i64 {
        self.whole[index]
    }

    /// What a jump backwards from `pc` to `target` pays.
    pub(crate) fn jump(&self, pc: u32, target: u32, instruction: &Instruction) -> i64 {
        let way = self.before[pc as usize] - self.before[target as usize];
        (way + instruction.cost()).max(1)
    }
}
