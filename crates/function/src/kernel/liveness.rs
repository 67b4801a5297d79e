//! Live registers: those that are read later before they are written. All others are free for an
//! access.

use super::contract::KFUNCS;
use crate::helper::Helper;
use crate::instruction::{AluOp, AtomicOp, Instruction, Operand, Register};
use crate::program::Program;
use std::ops::Range;

/// A set of r0 to r9, by bits.
pub(super) type Set = u16;

/// Argument registers; a call does not preserve them.
pub(super) const ARGUMENTS: Set = 0b11_1110;
/// Registers that a function preserves for its caller.
pub(super) const KEPT: Set = 0b11_1100_0000;

pub(super) fn bit(register: u8) -> Set {
    if register < 10 { 1 << register } else { 0 }
}

fn of(register: Register) -> Set {
    bit(register.index() as u8)
}

fn operand(operand: Operand) -> Set {
    match operand {
        Operand::Register(register) => of(register),
        Operand::Immediate(_) => 0,
    }
}

/// The live registers of a program.
#[derive(Debug)]
pub(super) struct Liveness {
    /// By slot: the registers that are live before it.
    before: Vec<Set>,
    /// By slot: the registers that are live after it.
    after: Vec<Set>,
}

impl Liveness {
    pub(super) fn of(program: &Program) -> Liveness {
        let len = program.instructions().len();
        let functions = program.functions();
        let mut liveness = Liveness { before: vec![0; len], after: vec![0; len] };
        while functions.iter().any(|range| liveness.pass(program, range)) {}
        liveness
    }

    pub(super) fn before(&self, pc: u32) -> Set {
        self.before[pc as usize]
    }

    pub(super) fn after(&self, pc: u32) -> Set {
        self.after[pc as usize]
    }

    /// One backwards pass over a function; returns whether anything has changed.
    fn pass(&mut self, program: &Program, function: &Range<u32>) -> bool {
        let mut changed = false;
        for pc in function.clone().rev() {
            let instruction = program.instructions()[pc as usize];
            let mut after = 0;
            if let Some(target) = instruction.jump_target() {
                after |= self.before(target);
            }
            if instruction.runs_on() && pc + 1 < function.end {
                after |= self.before(pc + 1);
            }
            let before = self.reads(&instruction) | (after & !writes(&instruction));
            let known = (&mut self.before[pc as usize], &mut self.after[pc as usize]);
            changed |= (before, after) != (*known.0, *known.1);
            (*known.0, *known.1) = (before, after);
        }
        changed
    }

    fn reads(&self, instruction: &Instruction) -> Set {
        match *instruction {
            Instruction::Alu { op: AluOp::Mov, src, .. } => operand(src),
            Instruction::Alu { dst, src, .. } | Instruction::Branch { dst, src, .. } => {
                of(dst) | operand(src)
            }
            Instruction::Negate { dst, .. } | Instruction::Endian { dst, .. } => of(dst),
            Instruction::SignExtend { src, .. } => of(src),
            Instruction::Load { base, .. } => of(base),
            Instruction::Store { base, src, .. } => of(base) | operand(src),
            Instruction::Atomic { op, base, src, .. } => {
                let compared = if op == AtomicOp::CompareExchange { bit(0) } else { 0 };
                of(base) | of(src) | compared
            }
            Instruction::CallHelper { helper } if is_kfunc(helper) => 0b1110,
            // In the callee r0 and r6 to r9 begin as 0, whatever they are here.
            Instruction::CallLocal { target } => self.before(target) & ARGUMENTS,
            Instruction::Exit => bit(0),
            _ => 0,
        }
    }
}

/// The registers that these instructions may change.
pub(super) fn written(program: &Program, slots: Range<u32>) -> Set {
    let instructions = &program.instructions()[slots.start as usize..slots.end as usize];
    instructions.iter().map(writes).fold(0, |all, one| all | one)
}

/// The registers whose values are lost.
fn writes(instruction: &Instruction) -> Set {
    match *instruction {
        Instruction::Alu { dst, .. }
        | Instruction::Negate { dst, .. }
        | Instruction::SignExtend { dst, .. }
        | Instruction::Endian { dst, .. }
        | Instruction::LoadConstant { dst, .. }
        | Instruction::Load { dst, .. } => of(dst),
        Instruction::Atomic { op: AtomicOp::CompareExchange, .. } => bit(0),
        Instruction::Atomic { fetch: true, src, .. } => of(src),
        Instruction::CallHelper { .. } | Instruction::CallLocal { .. } => ARGUMENTS | bit(0),
        _ => 0,
    }
}

/// Whether the module has this helper.
pub(super) fn is_kfunc(helper: Helper) -> bool {
    KFUNCS.iter().any(|(known, _)| *known == helper)
}

/// The function that begins at a slot.
pub(super) fn index_of(program: &Program, start: u32) -> Option<usize> {
    program.functions().binary_search_by_key(&start, |function| function.start).ok()
}
