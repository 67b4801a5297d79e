//! Typed eBPF instructions, parsed once from their 8-byte form (RFC 9669 §3).

use crate::helper::Helper;

/// A register, r0 to r10.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(u8);

impl Register {
    /// r0: results.
    pub const R0: Register = Register(0);
    /// r1: first argument.
    pub const R1: Register = Register(1);
    /// r10: the frame pointer, read-only.
    pub const FRAME: Register = Register(10);

    /// The register with this number, if there is one.
    pub fn new(number: u8) -> Option<Register> {
        (number <= 10).then_some(Register(number))
    }

    /// Its number, 0 to 10.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The second operand: a register or an immediate, sign-extended where it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A register's value.
    Register(Register),
    /// A constant.
    Immediate(i32),
}

/// Arithmetic with two operands (RFC 9669 §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the RFC's")]
pub enum AluOp {
    Add,
    Sub,
    Mul,
    /// Unsigned; by zero gives 0.
    Div,
    /// Signed, towards zero; by zero gives 0, the minimum by -1 gives the minimum.
    SignedDiv,
    Or,
    And,
    /// The amount is masked to the operand width.
    Lsh,
    /// Logical; the amount is masked.
    Rsh,
    /// Unsigned; by zero leaves the destination unchanged.
    Mod,
    /// Signed, with the sign of the dividend; by zero leaves the destination unchanged.
    SignedMod,
    Xor,
    Mov,
    /// Arithmetic; the amount is masked.
    Arsh,
}

impl AluOp {
    /// Whether it is a division or a remainder.
    pub const fn divides(self) -> bool {
        matches!(self, AluOp::Div | AluOp::SignedDiv | AluOp::Mod | AluOp::SignedMod)
    }
}

/// Conditions of a branch (RFC 9669 §4.3): `dst cond src`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the RFC's")]
pub enum Condition {
    Eq,
    Ne,
    /// `dst & src` is not zero.
    Set,
    Gt,
    Ge,
    Lt,
    Le,
    Sgt,
    Sge,
    Slt,
    Sle,
}

/// Atomic read-modify-write operations (RFC 9669 §5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the RFC's")]
pub enum AtomicOp {
    Add,
    Or,
    And,
    Xor,
    Exchange,
    /// Compares with r0, which receives the old value.
    CompareExchange,
}

/// Width of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the widths")]
pub enum Width {
    Bits8 = 1,
    Bits16 = 2,
    Bits32 = 4,
    Bits64 = 8,
}

impl Width {
    /// Size in bytes.
    pub fn bytes(self) -> u64 {
        self as u64
    }
}

/// One checked instruction. Jump and call targets are absolute, in 8-byte slots, and exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the RFC's operands")]
pub enum Instruction {
    /// `dst = dst op src`; `wide` selects 64 bits, else 32 with the upper half zeroed.
    Alu { wide: bool, op: AluOp, dst: Register, src: Operand },
    /// `dst = -dst`.
    Negate { wide: bool, dst: Register },
    /// `dst` = the lower `width` of `src`, sign-extended to 64 bits, or to 32 with the upper half
    /// zeroed.
    SignExtend { wide: bool, width: Width, dst: Register, src: Register },
    /// Truncates to `width` and, for `swap`, reverses the bytes (little-endian machines).
    Endian { swap: bool, width: Width, dst: Register },
    /// `dst` = a 64-bit constant; takes two slots.
    LoadConstant { dst: Register, value: u64 },
    /// The second slot of [`Instruction::LoadConstant`]; never executed.
    ConstantTail,
    /// `dst = *(base + offset)`, extended to 64 bits: with the sign for `signed`, else with zeros.
    Load { width: Width, signed: bool, dst: Register, base: Register, offset: i16 },
    /// `*(base + offset) = src`.
    Store { width: Width, base: Register, offset: i16, src: Operand },
    /// Read-modify-write of `*(base + offset)`; `fetch` puts the old value into `src`.
    Atomic { op: AtomicOp, fetch: bool, wide: bool, base: Register, offset: i16, src: Register },
    /// Unconditional jump.
    Jump { target: u32 },
    /// Conditional jump; otherwise the next instruction follows.
    Branch { wide: bool, condition: Condition, dst: Register, src: Operand, target: u32 },
    /// Calls a helper with r1–r5; the result is in r0.
    CallHelper { helper: Helper },
    /// Calls a function of the program in a new frame.
    CallLocal { target: u32 },
    /// Returns r0.
    Exit,
}

impl Instruction {
    /// Target of a jump or branch.
    pub(crate) fn jump_target(&self) -> Option<u32> {
        match *self {
            Instruction::Jump { target } | Instruction::Branch { target, .. } => Some(target),
            _ => None,
        }
    }

    /// Whether it calls a helper or a function.
    pub(crate) fn is_call(&self) -> bool {
        matches!(self, Instruction::CallHelper { .. } | Instruction::CallLocal { .. })
    }

    /// Whether control may continue to the next slot.
    pub(crate) fn runs_on(&self) -> bool {
        !matches!(self, Instruction::Exit | Instruction::Jump { .. })
    }

    /// Whether it may change a register. A call does not change the registers that the callee
    /// preserves.
    pub(crate) fn may_write(&self, register: Register) -> bool {
        match *self {
            Instruction::Alu { dst, .. }
            | Instruction::Negate { dst, .. }
            | Instruction::SignExtend { dst, .. }
            | Instruction::Endian { dst, .. }
            | Instruction::LoadConstant { dst, .. }
            | Instruction::Load { dst, .. } => dst == register,
            Instruction::Atomic { src, .. } => src == register || register == Register::R0,
            Instruction::CallHelper { .. } | Instruction::CallLocal { .. } => register.index() <= 5,
            _ => false,
        }
    }
}
