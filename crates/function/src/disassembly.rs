//! Instructions in the syntax of the LLVM disassembler; targets of jumps and calls are absolute.

use crate::instruction::{AluOp, AtomicOp, Condition, Instruction, Operand, Register, Width};
use std::fmt::{self, Display, Formatter};

impl Display for Register {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.index())
    }
}

impl Display for Operand {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Register(register) => register.fmt(f),
            Operand::Immediate(value) => value.fmt(f),
        }
    }
}

/// A register as `r1`, or `w1` for its lower half.
struct Sized<T>(bool, T);

impl Display for Sized<Register> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.0 { 'r' } else { 'w' }, self.1.index())
    }
}

impl Display for Sized<Operand> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.1 {
            Operand::Register(register) => Sized(self.0, register).fmt(f),
            Operand::Immediate(value) => value.fmt(f),
        }
    }
}

/// `*(u32 *)(r1 + 8)`
struct Place(char, Width, Register, i16);

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Place(kind, width, base, offset) = *self;
        let (sign, distance) =
            if offset < 0 { ('-', -i32::from(offset)) } else { ('+', offset.into()) };
        write!(f, "*({kind}{} *)({base} {sign} {distance})", 8 * width.bytes())
    }
}

fn symbol(op: AluOp) -> &'static str {
    match op {
        AluOp::Add => "+=",
        AluOp::Sub => "-=",
        AluOp::Mul => "*=",
        AluOp::Div => "/=",
        AluOp::SignedDiv => "s/=",
        AluOp::Or => "|=",
        AluOp::And => "&=",
        AluOp::Lsh => "<<=",
        AluOp::Rsh => ">>=",
        AluOp::Mod => "%=",
        AluOp::SignedMod => "s%=",
        AluOp::Xor => "^=",
        AluOp::Mov => "=",
        AluOp::Arsh => "s>>=",
    }
}

fn comparison(condition: Condition) -> &'static str {
    match condition {
        Condition::Eq => "==",
        Condition::Ne => "!=",
        Condition::Set => "&",
        Condition::Gt => ">",
        Condition::Ge => ">=",
        Condition::Lt => "<",
        Condition::Le => "<=",
        Condition::Sgt => "s>",
        Condition::Sge => "s>=",
        Condition::Slt => "s<",
        Condition::Sle => "s<=",
    }
}

fn atomic_name(op: AtomicOp) -> &'static str {
    match op {
        AtomicOp::Add => "add",
        AtomicOp::Or => "or",
        AtomicOp::And => "and",
        AtomicOp::Xor => "xor",
        AtomicOp::Exchange => "xchg",
        AtomicOp::CompareExchange => "cmpxchg",
    }
}

impl Display for Instruction {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Instruction::Alu { wide, op, dst, src } => {
                write!(f, "{} {} {}", Sized(wide, dst), symbol(op), Sized(wide, src))
            }
            Instruction::Negate { wide, dst } => {
                write!(f, "{} = -{}", Sized(wide, dst), Sized(wide, dst))
            }
            Instruction::SignExtend { wide, width, dst, src } => {
                write!(f, "{} = (s{}){}", Sized(wide, dst), 8 * width.bytes(), Sized(wide, src))
            }
            Instruction::Endian { swap, width, dst } => {
                let name = if swap { "bswap" } else { "le" };
                write!(f, "{dst} = {name}{} {dst}", 8 * width.bytes())
            }
            Instruction::LoadConstant { dst, value } => write!(f, "{dst} = {value:#x} ll"),
            Instruction::ConstantTail => Ok(()),
            Instruction::Load { width, signed, dst, base, offset } => {
                write!(f, "{dst} = {}", Place(if signed { 's' } else { 'u' }, width, base, offset))
            }
            Instruction::Store { width, base, offset, src } => {
                write!(f, "{} = {src}", Place('u', width, base, offset))
            }
            Instruction::Atomic { op, fetch, wide, base, offset, src } => {
                let width = if wide { Width::Bits64 } else { Width::Bits32 };
                let (place, name) = (Place('u', width, base, offset), atomic_name(op));
                let result = match op {
                    AtomicOp::CompareExchange => "r0 = ".to_owned(),
                    _ if fetch => format!("{src} = "),
                    _ => String::new(),
                };
                write!(f, "{result}atomic_{name}({place}, {src})")
            }
            Instruction::Jump { target } => write!(f, "goto {target}"),
            Instruction::Branch { wide, condition, dst, src, target } => write!(
                f,
                "if {} {} {} goto {target}",
                Sized(wide, dst),
                comparison(condition),
                Sized(wide, src)
            ),
            Instruction::CallHelper { helper } => write!(f, "call {}", helper.name()),
            Instruction::CallLocal { target } => write!(f, "call {target}"),
            Instruction::Exit => f.write_str("exit"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::program::Program;

    #[test]
    fn instructions_read_as_llvm_writes_them() {
        let code = [
            ([0xb7, 1, 0, 0, 0xff, 0xff, 0xff, 0xff], "r1 = -1"),
            ([0x3c, 0x21, 1, 0, 0, 0, 0, 0], "w1 s/= w2"),
            ([0xbf, 0x21, 16, 0, 0, 0, 0, 0], "r1 = (s16)r2"),
            ([0x84, 3, 0, 0, 0, 0, 0, 0], "w3 = -w3"),
            ([0xdc, 3, 0, 0, 32, 0, 0, 0], "r3 = bswap32 r3"),
            ([0x91, 0x13, 0xfc, 0xff, 0, 0, 0, 0], "r3 = *(s8 *)(r1 - 4)"),
            ([0x7b, 0x2a, 0xf8, 0xff, 0, 0, 0, 0], "*(u64 *)(r10 - 8) = r2"),
            ([0xdb, 0x21, 8, 0, 1, 0, 0, 0], "r2 = atomic_add(*(u64 *)(r1 + 8), r2)"),
            ([0xc3, 0x21, 8, 0, 0xf1, 0, 0, 0], "r0 = atomic_cmpxchg(*(u32 *)(r1 + 8), r2)"),
            ([0x66, 1, 1, 0, 5, 0, 0, 0], "if w1 s> 5 goto 11"),
            ([0x85, 0, 0, 0, 2, 0, 0, 0], "call bpfof_memmove"),
            ([0x95, 0, 0, 0, 0, 0, 0, 0], "exit"),
        ];
        let slots: Vec<[u8; 8]> = code.iter().map(|(slot, _)| *slot).collect();
        let program = Program::parse(slots.as_flattened()).expect("valid");
        for (instruction, (_, text)) in program.instructions().iter().zip(code) {
            assert_eq!(instruction.to_string(), text);
        }
    }
}
