//! Accesses to the arena: their checks, and atomics.

use super::{FLAGS, Translator};
use crate::abi::GUEST_BASE;
use crate::instruction::{AtomicOp, Register, Width};
use crate::native::{FAULT_MEMORY, FAULT_READ_ONLY};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{BlockArg, InstBuilder, Value, types};

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
            // Every call may access more than `len` bytes, so this does not wrap.
            let last = self.builder.ins().iadd_imm_s(self.limit, -len);
            let outside = self.builder.ins().icmp(IntCC::UnsignedGreaterThan, distance, last);
            let address = self.builder.ins().iadd_imm_s(value, offset);
            self.fault_if(outside, FAULT_MEMORY, pc, address);
            // Both ends in the arena, little further apart than an i16: so is all between.
            let hull =
                known.map_or(range.clone(), |k| k.start.min(range.start)..k.end.max(range.end));
            self.proved.insert(value, hull);
        }
        self.builder.ins().iadd(self.base, distance)
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
        let address = self.builder.ins().iadd_imm_s(value, offset);
        self.fault_if(touched, FAULT_READ_ONLY, pc, address);
    }

    pub(super) fn fault_if(&mut self, condition: Value, kind: u32, pc: u32, address: Value) {
        let kind = self.builder.ins().iconst(types::I32, i64::from(kind));
        let pc = self.builder.ins().iconst(types::I32, i64::from(pc));
        let arguments = [kind, pc, address].map(BlockArg::Value);
        let next = self.builder.create_block();
        self.builder.ins().brif(condition, self.fault, &arguments, next, &[]);
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
