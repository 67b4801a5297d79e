//! Helpers. Charges and checks of the bulk helpers are translated like those of instructions; comparing, copying and
//! filling short constant lengths needs no call at all. All other helpers are called in the host.

use super::translator::{FLAGS, Fault, NEAR_END_BYTES, Translator};
use crate::helper::Helper;
use crate::instruction::Register;
use crate::native::machine::{FAULT_MEMORY, FAULT_READ_ONLY, Machine};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    BlockArg, InstBuilder, InstructionData, Opcode, Type, Value, ValueDef, types,
};
use std::mem::offset_of;

/// Constant lengths up to this are translated without a call: 8 registers of 16 bytes.
const INLINE_BYTES: i64 = 128;

impl Translator<'_> {
    /// Faults, their order and the charge are the same as in [`Helper::run`].
    pub(super) fn call_helper(&mut self, pc: u32, helper: Helper) {
        let arguments: [Value; 5] =
            std::array::from_fn(|index| self.builder.use_var(self.registers[index + 1]));
        let [a, b, len, ..] = arguments;
        let result = match self.constant(len) {
            _ if !helper.is_bulk() => self.leave_to_host(pc, helper, arguments),
            Some(len) if is_inline(helper, len) => self.inline(pc, helper, a, b, len),
            _ => self.call_host(pc, helper, a, b, len),
        };
        self.set(Register::R0, result);
        self.clear_argument_registers();
    }

    /// The host charges and checks, using the machine's copy of the budget, and records a fault there.
    fn leave_to_host(&mut self, pc: u32, helper: Helper, arguments: [Value; 5]) -> Value {
        self.store_budget();
        let pc = self.builder.ins().iconst(types::I32, i64::from(pc));
        let at = offset_of!(Machine<'_>, fault_pc) as i32;
        self.builder.ins().store(FLAGS, pc, self.machine, at);
        let number = self.builder.ins().iconst(types::I64, helper as i64);
        let mut all = vec![self.machine, number];
        all.extend(arguments);
        let call = self.builder.ins().call(self.callees.call_helper, &all);
        let result = self.builder.inst_results(call)[0];
        let fault = self.load_machine(types::I32, offset_of!(Machine<'_>, fault));
        self.unwind_if(fault);
        let budget = self.load_machine(types::I64, offset_of!(Machine<'_>, budget));
        self.builder.def_var(self.budget, budget);
        result
    }

    /// The value, if it is a 64-bit constant.
    fn constant(&self, value: Value) -> Option<i64> {
        let dfg = &self.builder.func.dfg;
        let ValueDef::Result(instruction, _) = dfg.value_def(dfg.resolve_aliases(value)) else {
            return None;
        };
        match dfg.insts[instruction] {
            InstructionData::UnaryImm { opcode: Opcode::Iconst, imm } => Some(imm.bits()),
            _ => None,
        }
    }

    fn inline(&mut self, pc: u32, helper: Helper, a: Value, b: Value, len: i64) -> Value {
        self.charge(helper.bulk_cost(len as u64) as i64, pc);
        let first = self.checked_range(pc, a, 0, len);
        if helper.writes() {
            self.check_write(pc, a, 0, len);
        }
        if helper == Helper::Memset {
            self.fill(first, b, len);
            return self.builder.ins().iconst(types::I64, 0);
        }
        let second = self.checked_range(pc, b, 0, len);
        if helper == Helper::Memcmp {
            return self.compare(first, second, len);
        }
        // The ranges may overlap: all loads come before the first store.
        let loaded: Vec<(Value, i32)> = pieces(len, 16)
            .into_iter()
            .map(|(at, width)| (self.builder.ins().load(piece_type(width), FLAGS, second, at), at))
            .collect();
        for (value, at) in loaded {
            self.builder.ins().store(FLAGS, value, first, at);
        }
        self.builder.ins().iconst(types::I64, 0)
    }

    fn fill(&mut self, to: Value, value: Value, len: i64) {
        let byte = self.builder.ins().ireduce(types::I8, value);
        let wide = (len >= 16).then(|| self.builder.ins().splat(types::I8X16, byte));
        let byte = self.builder.ins().uextend(types::I64, byte);
        let eight = self.builder.ins().imul_imm_s(byte, 0x0101_0101_0101_0101);
        for (at, width) in pieces(len, 16) {
            let value = match (width, wide) {
                (16, Some(wide)) => wide,
                (8, _) => eight,
                _ => self.builder.ins().ireduce(piece_type(width), eight),
            };
            self.builder.ins().store(FLAGS, value, to, at);
        }
    }

    /// Returns -1, 0 or 1, as the first differing bytes compare.
    fn compare(&mut self, a: Value, b: Value, len: i64) -> Value {
        let pieces = pieces(len, 8);
        let Some((&(last_at, last_width), earlier)) = pieces.split_last() else {
            return self.builder.ins().iconst(types::I64, 0);
        };
        let differ = self.builder.create_block();
        let [x, y] = [0, 1].map(|_| self.builder.append_block_param(differ, types::I64));
        for &(at, width) in earlier {
            let [x, y] = [a, b].map(|from| self.load_piece(from, at, width));
            let unequal = self.builder.ins().icmp(IntCC::NotEqual, x, y);
            let next = self.builder.create_block();
            let arguments = [x, y].map(BlockArg::Value);
            self.builder.ins().brif(unequal, differ, &arguments, next, &[]);
            self.builder.switch_to_block(next);
            self.builder.seal_block(next);
        }
        let last = [a, b].map(|from| BlockArg::Value(self.load_piece(from, last_at, last_width)));
        self.builder.ins().jump(differ, &last);
        self.builder.switch_to_block(differ);
        self.builder.seal_block(differ);
        // The first differing byte decides, so it must become the most significant.
        let [x, y] = [x, y].map(|value| self.builder.ins().bswap(value));
        let above = self.builder.ins().icmp(IntCC::UnsignedGreaterThan, x, y);
        let below = self.builder.ins().icmp(IntCC::UnsignedLessThan, x, y);
        let order = self.builder.ins().isub(above, below);
        self.builder.ins().sextend(types::I64, order)
    }

    fn load_piece(&mut self, from: Value, at: i32, width: i64) -> Value {
        let value = self.builder.ins().load(piece_type(width), FLAGS, from, at);
        if width == 8 { value } else { self.builder.ins().uextend(types::I64, value) }
    }

    fn call_host(&mut self, pc: u32, helper: Helper, a: Value, b: Value, len: Value) -> Value {
        let (fixed, shift) = helper.bulk_price();
        let of_bytes = self.builder.ins().ushr_imm_u(len, i64::from(shift));
        // The part by length is smaller than the length: this does not wrap.
        let cost = self.builder.ins().iadd_imm_s(of_bytes, fixed as i64);
        self.charge_value(cost, pc);
        let limit = self.builder.ins().iadd_imm_s(self.near_end, NEAR_END_BYTES);
        let too_long = self.builder.ins().icmp(IntCC::UnsignedGreaterThan, len, limit);
        self.fault_if(too_long, FAULT_MEMORY, pc, Fault::At(a, 0));
        let last = self.builder.ins().isub(limit, len);
        let first = self.checked_before(pc, a, last);
        if helper.writes() {
            self.check_long_write(pc, a, len);
        }
        let second = if helper.reads_second() { self.checked_before(pc, b, last) } else { b };
        let call = self.builder.ins().call(self.callees.bulk[&helper], &[first, second, len]);
        self.builder.inst_results(call)[0]
    }

    /// As `check_write`, for a length that is not known at translation.
    fn check_long_write(&mut self, pc: u32, value: Value, len: Value) {
        let constants = self.program.statics().constants();
        if constants.is_empty() {
            return;
        }
        let (start, end) = (constants.start as i64, constants.end as i64);
        let past = self.builder.ins().iadd(value, len);
        let below = self.builder.ins().icmp_imm_u(IntCC::UnsignedLessThan, value, end);
        let above = self.builder.ins().icmp_imm_u(IntCC::UnsignedGreaterThan, past, start);
        let touched = self.builder.ins().band(below, above);
        self.fault_if(touched, FAULT_READ_ONLY, pc, Fault::At(value, 0));
    }

    /// The host address of a guest address that is at most `last` bytes into the accessible memory.
    fn checked_before(&mut self, pc: u32, value: Value, last: Value) -> Value {
        let lowest = self.lowest();
        let distance = self.builder.ins().iadd_imm_s(value, -lowest);
        let outside = self.builder.ins().icmp(IntCC::UnsignedGreaterThan, distance, last);
        self.fault_if(outside, FAULT_MEMORY, pc, Fault::At(value, 0));
        self.builder.ins().iadd(self.base, distance)
    }
}

/// Whether a call with a constant length is translated to loads and stores.
fn is_inline(helper: Helper, len: i64) -> bool {
    let is_simple = matches!(helper, Helper::Memcmp | Helper::Memmove | Helper::Memset);
    is_simple && (0..=INLINE_BYTES).contains(&len)
}

/// Cuts `len` bytes into (offset, width) pieces of power-of-two widths up to `widest`. The last piece overlaps the one
/// before if that saves pieces.
fn pieces(len: i64, widest: i64) -> Vec<(i32, i64)> {
    if len == 0 {
        return Vec::new();
    }
    let width = widest.min(1 << len.ilog2());
    let mut pieces: Vec<(i32, i64)> =
        (0..len / width).map(|index| ((index * width) as i32, width)).collect();
    if len % width != 0 {
        pieces.push(((len - width) as i32, width));
    }
    pieces
}

fn piece_type(width: i64) -> Type {
    match width {
        1 => types::I8,
        2 => types::I16,
        4 => types::I32,
        8 => types::I64,
        _ => types::I8X16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_byte_and_no_other() {
        for widest in [8, 16] {
            for len in 0..=INLINE_BYTES {
                let mut covered = vec![false; len as usize];
                for (at, width) in pieces(len, widest) {
                    covered[at as usize..][..width as usize].fill(true);
                }
                assert!(covered.iter().all(|covered| *covered), "{len} bytes by {widest}");
            }
        }
    }
}
