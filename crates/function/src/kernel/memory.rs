//! Accesses: a comparison with the limit of the call, then the access to the arena.

use super::assembler::{ADD, AND, JGT, JLT, JNE, OR, Reg, SUB, Source, XOR};
use super::contract::Ended;
use super::liveness::{Set, bit};
use super::translator::{DW, FP, Place, Translator, reg, source, stack};
use crate::abi;
use crate::instruction::{AtomicOp, Instruction, Operand, Register, Width};

/// An access that is being translated.
struct Access {
    pc: u32,
    base: Register,
    offset: i16,
    width: Width,
    writes: bool,
}

fn size(width: Width) -> u8 {
    match width {
        Width::Bits8 => 0x10,
        Width::Bits16 => 0x08,
        Width::Bits32 => 0x00,
        Width::Bits64 => 0x18,
    }
}

impl Translator<'_> {
    pub(super) fn access(&mut self, pc: u32, instruction: &Instruction, place: &Place, live: Set) {
        match *instruction {
            Instruction::Load { width, signed, dst, base, offset } => {
                let access = Access { pc, base, offset, width, writes: false };
                let dst = reg(dst);
                let taken = self.take::<1>(live & !bit(dst), bit(dst));
                let [pointer] = taken.registers;
                self.address(&access, place, dst, pointer);
                self.code.load(size(width), dst, pointer, 0);
                if signed {
                    // The arena has no sign-extending loads.
                    self.sign_extend(true, width, dst, dst);
                }
                self.give_back(taken);
            }
            Instruction::Store { width, base, offset, src } => {
                let access = Access { pc, base, offset, width, writes: true };
                let src = source(src, place);
                let needed = if let Source::Reg(register) = src { bit(register) } else { 0 };
                let taken = self.take::<2>(live, needed | bit(reg(base)));
                let [distance, pointer] = taken.registers;
                self.address(&access, place, distance, pointer);
                self.code.store(size(width), pointer, 0, src);
                self.give_back(taken);
            }
            _ => self.atomic(pc, instruction, place, live),
        }
    }

    /// Sets `pointer` to the place of `base + offset` in the arena, if the whole access is inside. `distance`, which
    /// may be the base register, is overwritten.
    fn address(&mut self, access: &Access, place: &Place, distance: Reg, pointer: Reg) {
        let lowest = self.lowest();
        let offset = i32::from(access.offset) - lowest;
        if access.base == Register::FRAME {
            return self.frame_address(access, place.frame() + offset, distance, pointer);
        }
        self.code.mov(distance, Source::Reg(reg(access.base)));
        self.code.add(distance, Source::Imm(offset));
        self.check(access, distance, pointer);
        self.code.load(DW, pointer, FP, stack::LOWEST);
        self.code.add(pointer, Source::Reg(distance));
        self.code.cast(pointer);
    }

    /// The same for an address on the function's stack, which is known.
    fn frame_address(&mut self, access: &Access, at: i32, distance: Reg, pointer: Reg) {
        let address = i64::from(at + self.lowest());
        let is_inside = at >= 0 && address + 8 <= abi::DATA as i64;
        let is_constant =
            access.writes && self.program.statics().check_write(address as u64, 8).is_err();
        if !is_inside || is_constant {
            self.code.mov(distance, Source::Imm(at));
            self.check(access, distance, pointer);
        }
        self.code.load(DW, pointer, FP, stack::LOWEST);
        self.code.add(pointer, Source::Imm(at));
        self.code.cast(pointer);
    }

    /// Compares an access with the limit, and a write with the constants.
    fn check(&mut self, access: &Access, distance: Reg, other: Reg) {
        let Access { pc, width, writes, .. } = *access;
        let at = Some(Source::Reg(distance));
        let limit = stack::LIMITS[width.bytes().trailing_zeros() as usize];
        let outside = self.stub(Ended::Memory, pc, at);
        self.code.load(DW, other, FP, limit);
        self.code.branch_out(JGT, distance, Source::Reg(other), outside);
        let constants = self.program.statics().constants();
        if !writes || constants.is_empty() {
            return;
        }
        let refused = self.stub(Ended::ReadOnly, pc, at);
        let before = width.bytes() as i32 - 1;
        let start = constants.start as i32 - before - self.lowest();
        let len = (constants.end - constants.start) as i32 + before;
        self.code.mov(other, Source::Reg(distance));
        self.code.alu(true, SUB, other, Source::Imm(start), 0);
        self.code.branch_out(JLT, other, Source::Imm(len), refused);
    }

    /// No other thread accesses the slot while the function runs, so a plain read-modify-write is sufficient. An
    /// unaligned atomic operation would also fault on some processors.
    fn atomic(&mut self, pc: u32, instruction: &Instruction, place: &Place, live: Set) {
        let Instruction::Atomic { op, fetch, wide, base, offset, src } = *instruction else {
            return;
        };
        let width = if wide { Width::Bits64 } else { Width::Bits32 };
        let access = Access { pc, base, offset, width, writes: true };
        let size = size(width);
        let operand = source(Operand::Register(src), place);
        let needed = bit(reg(src)) | bit(reg(base)) | bit(0);
        let taken = self.take::<2>(live, needed);
        let [old, pointer] = taken.registers;
        self.address(&access, place, old, pointer);
        let code = &mut self.code;
        code.load(size, old, pointer, 0);
        let src = reg(src);
        match (op, fetch) {
            (AtomicOp::CompareExchange, _) => {
                let differs = code.label();
                code.branch(wide, JNE, old, Source::Reg(0), differs);
                code.store(size, pointer, 0, operand);
                code.bind(differs);
                code.mov(0, Source::Reg(old));
            }
            (AtomicOp::Exchange, _) => {
                code.store(size, pointer, 0, operand);
                code.mov(src, Source::Reg(old));
            }
            (_, true) => {
                code.alu(true, arithmetic(op), src, Source::Reg(old), 0);
                code.store(size, pointer, 0, Source::Reg(src));
                code.mov(src, Source::Reg(old));
            }
            (_, false) => {
                code.alu(true, arithmetic(op), old, operand, 0);
                code.store(size, pointer, 0, Source::Reg(old));
            }
        }
        self.give_back(taken);
    }
}

fn arithmetic(op: AtomicOp) -> u8 {
    match op {
        AtomicOp::Or => OR,
        AtomicOp::And => AND,
        AtomicOp::Xor => XOR,
        _ => ADD,
    }
}
