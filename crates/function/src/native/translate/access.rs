//! Accesses to the arena: their checks, and atomics.

use super::{FLAGS, NEAR_END_BYTES, Translator};
use crate::abi::GUEST_BASE;
use crate::instruction::{AtomicOp, Register, Width};
use crate::native::{FAULT_MEMORY, FAULT_READ_ONLY};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{BlockArg, InstBuilder, Value, types};

/// The address that a fault is about.
pub(super) enum Fault {
    /// This value and offset.
    At(Value, i64),
    Nowhere,
}

impl Translator<'_> {
    /// The host address of `base + offset`, after a check unless one is proved already.
    pub(super) fn checked_address(
        &mut self,
        pc: u32,
        base: Register,
        offset: i16,
        width: Width,
    ) -> Value {
        let value = self.get(base);
        self.checked_range(pc, value, i64::from(offset), width.bytes() as i64)
    }

    /// The host address of the `len` bytes (at most a few hundred) at guest address
    /// `value + offset`, after a check unless one is proved already.
    pub(super) fn checked_range(&mut self, pc: u32, value: Value, offset: i64, len: i64) -> Value {
        let distance = self.builder.ins().iadd_imm_s(value, offset - GUEST_BASE as i64);
        let range = offset..offset + len;
        let known = self.proved.get(&value).cloned();
        let proved = known.as_ref().is_some_and(|k| k.start <= range.start && range.end <= k.end);
        if !proved {
            self.check(pc, distance, len, Fault::At(value, offset));
            // Both ends in the arena, little further apart than an i16: so is all between.
            let hull =
                known.map_or(range.clone(), |k| k.start.min(range.start)..k.end.max(range.end));
            self.proved.insert(value, hull);
        }
        self.builder.ins().iadd(self.base, distance)
    }

    /// Ends the call with a fault unless the `len` bytes at this distance from the arena's start
    /// are accessible.
    fn check(&mut self, pc: u32, distance: Value, len: i64, place: Fault) {
        let above = IntCC::UnsignedGreaterThan;
        if len >= NEAR_END_BYTES {
            // Every call may access more than `len` bytes, so this does not wrap.
            let last = self.builder.ins().iadd_imm_s(self.near_end, NEAR_END_BYTES - len);
            let outside = self.builder.ins().icmp(above, distance, last);
            return self.fault_if(outside, FAULT_MEMORY, pc, place);
        }
        let (close, next) = (self.builder.create_block(), self.builder.create_block());
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

    /// Refuses a write of `len` bytes at `value + offset`, which the call may access, if it touches
    /// constants. Functions without constants, and writes to the stack, need no check.
    pub(super) fn check_write(&mut self, pc: u32, value: Value, offset: i64, len: i64) {
        let constants = self.program.statics().constants();
        let is_stack = value == self.frame && offset < 0;
        if constants.is_empty() || is_stack {
            return;
        }
        // Touched if the distance from len - 1 bytes before them is less than their size and that.
        let first = constants.start as i64 - len + 1;
        let size = constants.end as i64 - first;
        let distance = self.builder.ins().iadd_imm_s(value, offset - first);
        let touched = self.builder.ins().icmp_imm_u(IntCC::UnsignedLessThan, distance, size);
        self.fault_if(touched, FAULT_READ_ONLY, pc, Fault::At(value, offset));
    }

    /// Ends the call with a fault if the condition holds. What the fault is about is put together
    /// in a block of its own, out of the way of those that do not fault.
    pub(super) fn fault_if(&mut self, condition: Value, kind: u32, pc: u32, address: Fault) {
        let (cold, next) = (self.builder.create_block(), self.builder.create_block());
        self.builder.set_cold_block(cold);
        self.builder.ins().brif(condition, cold, &[], next, &[]);
        self.builder.seal_block(cold);
        self.builder.switch_to_block(cold);
        let kind = self.builder.ins().iconst(types::I32, i64::from(kind));
        let pc = self.builder.ins().iconst(types::I32, i64::from(pc));
        let address = match address {
            Fault::At(value, offset) => self.builder.ins().iadd_imm_s(value, offset),
            Fault::Nowhere => self.builder.ins().iconst(types::I64, 0),
        };
        let arguments = [kind, pc, address].map(BlockArg::Value);
        self.builder.ins().jump(self.fault, &arguments);
        self.builder.switch_to_block(next);
        self.builder.seal_block(next);
    }

    pub(super) fn atomic(
        &mut self,
        pc: u32,
        op: AtomicOp,
        fetch: bool,
        wide: bool,
        (base, offset): (Register, i16),
        src: Register,
    ) {
        // The arena is private to the chain, so a plain read-modify-write is atomic enough.
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
