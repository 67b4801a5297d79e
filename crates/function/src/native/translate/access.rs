//! Accesses to the arena: their checks, and atomics.

use super::translator::{FLAGS, Fault, NEAR_END_BYTES, Translator};
use crate::instruction::{AtomicOp, Instruction, Register, Width};
use crate::native::machine::{FAULT_BUDGET, FAULT_MEMORY, FAULT_READ_ONLY};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, BlockArg, InstBuilder, Value, types};
use std::ops::Range;

/// Maximum slots and offsets that the accesses of a group, which are checked together, may be
/// apart.
const GROUP_SLOTS: u32 = 64;
const GROUP_BYTES: i64 = 2048;

/// Accesses through one register in straight-line code.
struct Group {
    /// Offsets from the first accessed byte to the last.
    accesses: Range<i64>,
    /// The last instruction of the group.
    last: u32,
}

fn leaves_straight_code(instruction: &Instruction) -> bool {
    matches!(
        instruction,
        Instruction::Jump { .. }
            | Instruction::Branch { .. }
            | Instruction::CallHelper { .. }
            | Instruction::CallLocal { .. }
            | Instruction::Exit
    )
}

impl Translator<'_> {
    /// The host address of `base + offset`, after a check unless the range is already proved.
    pub(super) fn checked_address(
        &mut self,
        pc: u32,
        base: Register,
        offset: i16,
        width: Width,
    ) -> Value {
        let value = self.get(base);
        let (offset, len) = (i64::from(offset), width.bytes() as i64);
        if !self.is_proved(value, &(offset..offset + len)) {
            self.check_group(pc, base, value);
        }
        self.checked_range(pc, value, offset, len)
    }

    /// The guest address at `base`.
    pub(super) fn lowest(&self) -> i64 {
        self.program.lowest_address() as i64
    }

    fn is_proved(&self, value: Value, range: &Range<i64>) -> bool {
        let known = self.proved.get(&value);
        known.is_some_and(|known| known.start <= range.start && range.end <= known.end)
    }

    /// Records that a range of offsets from a value is accessible, and so is everything between it
    /// and the range known before: both are in the arena, and not much further apart than an i16.
    fn prove(&mut self, value: Value, range: Range<i64>) {
        let hull = match self.proved.get(&value) {
            Some(known) => known.start.min(range.start)..known.end.max(range.end),
            None => range,
        };
        self.proved.insert(value, hull);
    }

    /// Checks at once all accesses through a register of the straight-line code from `pc` on, if
    /// there is more than one. If the check fails, one of them will fault. They are therefore
    /// translated a second time, in cold blocks and with a check for each, so that everything
    /// before the fault is executed and the right fault is reported.
    fn check_group(&mut self, pc: u32, base: Register, value: Value) {
        let Some(Group { accesses, last }) = self.group(pc, base) else { return };
        let slots = (last - pc + 1) as usize;
        if self.is_cold || slots > self.second_translations {
            return;
        }
        self.second_translations -= slots;
        let lowest = self.lowest();
        let distance = self.builder.ins().iadd_imm_s(value, accesses.start - lowest);
        let len = accesses.end - accesses.start;
        // Every call may access more than GROUP_BYTES, so this does not wrap.
        let limit = self.builder.ins().iadd_imm_s(self.near_end, NEAR_END_BYTES - len);
        let outside = self.builder.ins().icmp(IntCC::UnsignedGreaterThan, distance, limit);
        let (cold, next) = (self.builder.create_block(), self.builder.create_block());
        self.builder.set_cold_block(cold);
        self.builder.ins().brif(outside, cold, &[], next, &[]);
        self.builder.seal_block(cold);
        self.builder.switch_to_block(cold);
        let proved = self.proved.clone();
        self.is_cold = true;
        for pc in pc..=last {
            let instruction = self.program.instructions()[pc as usize];
            self.instruction(pc, &instruction);
        }
        self.is_cold = false;
        self.proved = proved;
        // Unreachable: one of them has faulted.
        self.fault(FAULT_MEMORY, last, Fault::At(value, accesses.start));
        self.builder.switch_to_block(next);
        self.builder.seal_block(next);
        self.prove(value, accesses);
    }

    /// The accesses of the straight-line code from `pc` on through a register, until that changes,
    /// if there are more than the one at `pc`.
    fn group(&self, pc: u32, base: Register) -> Option<Group> {
        let mut group: Option<Group> = None;
        let end = self.range.end.min(pc + GROUP_SLOTS);
        for pc in pc..end {
            let is_landing = group.is_some() && self.blocks.contains_key(&pc);
            if is_landing || self.selects.contains(&pc) {
                break;
            }
            let instruction = &self.program.instructions()[pc as usize];
            let access = match *instruction {
                Instruction::Load { width, base, offset, .. }
                | Instruction::Store { width, base, offset, .. } => Some((base, offset, width)),
                Instruction::Atomic { wide, base, offset, .. } => {
                    Some((base, offset, if wide { Width::Bits64 } else { Width::Bits32 }))
                }
                _ => None,
            };
            if let Some((_, offset, width)) = access.filter(|(register, ..)| *register == base) {
                let offset = i64::from(offset);
                let range = offset..offset + width.bytes() as i64;
                let before = group.as_ref().map_or(&range, |group| &group.accesses);
                let accesses = before.start.min(range.start)..before.end.max(range.end);
                if accesses.end - accesses.start > GROUP_BYTES {
                    break;
                }
                group = Some(Group { accesses, last: pc });
            }
            if leaves_straight_code(instruction) || instruction.may_write(base) {
                break;
            }
        }
        group.filter(|group| group.last > pc)
    }

    /// The host address of the `len` bytes (at most a few hundred) at guest address `value +
    /// offset`, after a check unless the range is already proved.
    pub(super) fn checked_range(&mut self, pc: u32, value: Value, offset: i64, len: i64) -> Value {
        let lowest = self.lowest();
        let distance = self.builder.ins().iadd_imm_s(value, offset - lowest);
        let range = offset..offset + len;
        if !self.is_proved(value, &range) {
            self.check(pc, distance, len, Fault::At(value, offset));
            self.prove(value, range);
        }
        self.builder.ins().iadd(self.base, distance)
    }

    /// Ends the call with a fault unless the `len` bytes at this distance from the lowest address
    /// are accessible.
    fn check(&mut self, pc: u32, distance: Value, len: i64, place: Fault) {
        let above = IntCC::UnsignedGreaterThan;
        if len >= NEAR_END_BYTES {
            // Every call may access more than `len` bytes, so this does not wrap.
            let last = self.builder.ins().iadd_imm_s(self.near_end, NEAR_END_BYTES - len);
            let outside = self.builder.ins().icmp(above, distance, last);
            return self.fault_if(outside, FAULT_MEMORY, pc, place);
        }
        let (close, next) = (self.builder.create_block(), self.next_block());
        self.builder.set_cold_block(close);
        let near_end = self.builder.ins().icmp(above, distance, self.near_end);
        self.builder.ins().brif(near_end, close, &[], next, &[]);
        self.builder.seal_block(close);
        self.builder.switch_to_block(close);
        let last = self.builder.ins().iadd_imm_s(self.near_end, NEAR_END_BYTES - len);
        let outside = self.builder.ins().icmp(above, distance, last);
        self.fault_if(outside, FAULT_MEMORY, pc, place);
        self.builder.ins().jump(next, &[]);
        self.builder.seal_block(next);
        self.builder.switch_to_block(next);
    }

    /// Refuses a write of `len` bytes at `value + offset`, which must be accessible, if it touches
    /// constants. Functions without constants, and writes to the stack, need no check.
    pub(super) fn check_write(&mut self, pc: u32, value: Value, offset: i64, len: i64) {
        let constants = self.program.statics().constants();
        let is_stack = value == self.frame && offset < 0;
        if constants.is_empty() || is_stack {
            return;
        }
        // Touches constants if the distance from `first`, len - 1 bytes before them, is less than
        // `size`.
        let first = constants.start as i64 - len + 1;
        let size = constants.end as i64 - first;
        let distance = self.builder.ins().iadd_imm_s(value, offset - first);
        let touched = self.builder.ins().icmp_imm_u(IntCC::UnsignedLessThan, distance, size);
        self.fault_if(touched, FAULT_READ_ONLY, pc, Fault::At(value, offset));
    }

    /// Ends the call with a fault if the condition holds. The data of the fault is assembled in a
    /// cold block of its own.
    pub(super) fn fault_if(&mut self, condition: Value, kind: u32, pc: u32, address: Fault) {
        let (cold, next) = (self.builder.create_block(), self.next_block());
        self.builder.set_cold_block(cold);
        self.builder.ins().brif(condition, cold, &[], next, &[]);
        self.builder.seal_block(cold);
        self.builder.switch_to_block(cold);
        self.fault(kind, pc, address);
        self.builder.switch_to_block(next);
        self.builder.seal_block(next);
    }

    /// A block to continue in: cold if the current one is.
    fn next_block(&mut self) -> Block {
        let next = self.builder.create_block();
        if self.is_cold {
            self.builder.set_cold_block(next);
        }
        next
    }

    /// Ends the call with a fault.
    fn fault(&mut self, kind: u32, pc: u32, address: Fault) {
        if kind == FAULT_BUDGET {
            let nothing = self.builder.ins().iconst(types::I64, 0);
            self.builder.def_var(self.budget, nothing);
        }
        let kind = self.builder.ins().iconst(types::I32, i64::from(kind));
        let pc = self.builder.ins().iconst(types::I32, i64::from(pc));
        let address = match address {
            Fault::At(value, offset) => self.builder.ins().iadd_imm_s(value, offset),
            Fault::Nowhere => self.builder.ins().iconst(types::I64, 0),
        };
        let arguments = [kind, pc, address].map(BlockArg::Value);
        self.builder.ins().jump(self.fault, &arguments);
    }

    pub(super) fn atomic(
        &mut self,
        pc: u32,
        (op, fetch, wide): (AtomicOp, bool, bool),
        (base, offset): (Register, i16),
        src: Register,
    ) {
        // The arena is private to the chain, so a plain read-modify-write is sufficient.
        let (width, ty) =
            if wide { (Width::Bits64, types::I64) } else { (Width::Bits32, types::I32) };
        let address = self.checked_address(pc, base, offset, width);
        let place = self.get(base);
        self.check_write(pc, place, offset.into(), width.bytes() as i64);
        let operand = self.get_sized(src, wide);
        let old = self.builder.ins().load(ty, FLAGS, address, 0);
        let new = match op {
            AtomicOp::Add => self.builder.ins().iadd(old, operand),
            AtomicOp::Or => self.builder.ins().bor(old, operand),
            AtomicOp::And => self.builder.ins().band(old, operand),
            AtomicOp::Xor => self.builder.ins().bxor(old, operand),
            AtomicOp::Exchange => operand,
            AtomicOp::CompareExchange => {
                let expected = self.get_sized(Register::R0, wide);
                let equal = self.builder.ins().icmp(IntCC::Equal, old, expected);
                self.builder.ins().select(equal, operand, old)
            }
        };
        self.builder.ins().store(FLAGS, new, address, 0);
        match op {
            AtomicOp::CompareExchange => self.set_sized(Register::R0, old),
            _ if fetch => self.set_sized(src, old),
            _ => {}
        }
    }
}
