//! Runs rewritten programs on user-space arenas as the kernel would: with the instructions of the project's
//! interpreter, and those that only the kernel has. Refuses what the kernel's verifier refuses, as far as that depends
//! on the run: registers that were not set, pointers to anything but the context, the stack, and the arena after a
//! cast. For tests.

use super::KernelProgram;
use super::assembler::MAY_GOTO;
use super::contract::{CALL, CONSTANT, Ended, KFUNCS, PSEUDO_KFUNC, PSEUDO_MAP, context};
use crate::abi::GUEST_BASE;
use crate::arena::{Arena, Limit};
use crate::environment::{Alone, Exit};
use crate::fault::Fault;
use crate::fault_kind::FaultKind;
use crate::helper::{Call, Stop};
use crate::instruction::{Instruction, Operand, Register};
use crate::interpreter::{alu, endian, holds, sign_extend};
use crate::program::{Program, decode};
use crate::statics::Statics;

/// Offset of the chain's slot in the arena.
const SLOT: u64 = 0x5_0000;
/// Iterations that `may_goto` permits, as in Linux.
const ROUNDS: u64 = 8 << 20;
const STACK_BYTES: usize = 512;

/// A register of the kernel's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Unset,
    Number(u64),
    /// The arguments of the call.
    Arguments,
    Context,
    /// A pointer into the arena: its offset.
    Arena(u64),
}

/// How a call in the kernel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelEnd {
    /// The same end as in user space.
    Same(Result<Exit, Fault>),
    /// A call of a helper that the kernel does not have.
    Helper,
}

/// Runs a rewritten program.
///
/// # Panics
/// If the program does something that the kernel would refuse, or leaves the memory that it may access.
pub fn run(
    program: &Program,
    kernel: &KernelProgram,
    arena: &mut Arena,
    limit: Limit,
    budget: &mut i64,
) -> KernelEnd {
    program.statics().begin_call(arena);
    let lowest = program.lowest_address();
    let data_end = GUEST_BASE + limit.bytes() as u64;
    let mut hop = Hop { limit: data_end, budget: *budget as u64, result: 0, address: 0, fault: 0 };
    let mut machine = Machine {
        slots: kernel.slots(),
        memory: arena.accessible_mut(lowest, limit),
        lowest,
        statics: program.statics(),
        hop: &mut hop,
        stack: [Value::Unset; STACK_BYTES / 8],
        registers: [Value::Unset; 10],
        rounds: ROUNDS,
    };
    machine.registers[1] = Value::Arguments;
    machine.run();
    *budget = hop.budget as i64;
    let pc = hop.fault & 0xffff;
    let Hop { address, result, .. } = hop;
    let kind = match hop.fault >> 16 {
        0 => return KernelEnd::Same(Ok(Exit::Return(result))),
        found if found == Ended::Memory as u32 => FaultKind::Memory { address },
        found if found == Ended::ReadOnly as u32 => FaultKind::ReadOnly { address },
        found if found == Ended::Budget as u32 => FaultKind::Budget,
        found if found == Ended::StackOverflow as u32 => FaultKind::StackOverflow,
        found if found == Ended::Helper as u32 => return KernelEnd::Helper,
        unknown => panic!("unknown end reason {unknown}"),
    };
    KernelEnd::Same(Err(Fault { kind, pc, data_end }))
}

/// `struct bpfof_xrp_hop`.
struct Hop {
    limit: u64,
    budget: u64,
    result: u64,
    address: u64,
    fault: u32,
}

struct Machine<'a> {
    slots: &'a [[u8; 8]],
    memory: &'a mut [u8],
    lowest: u64,
    statics: &'a Statics,
    hop: &'a mut Hop,
    stack: [Value; STACK_BYTES / 8],
    registers: [Value; 10],
    rounds: u64,
}

impl Machine<'_> {
    fn run(&mut self) {
        let mut pc = 0;
        while let Some(next) = self.step(pc) {
            pc = next;
        }
    }

    fn step(&mut self, pc: usize) -> Option<usize> {
        let [opcode, registers, o0, o1, number, ..] = self.slots[pc];
        let (dst, src) = (usize::from(registers & 0xf), registers >> 4);
        let offset = i16::from_le_bytes([o0, o1]);
        let target = (pc as i64 + 1 + i64::from(offset)) as usize;
        match (opcode, src) {
            (CONSTANT, PSEUDO_MAP) => {
                // A pointer to the map, which is not used.
                self.registers[dst] = Value::Unset;
                Some(pc + 2)
            }
            (0xbf, _) if (offset, number) == (1, 1) => {
                let Value::Number(address) = self.registers[dst] else {
                    panic!("a cast of a pointer")
                };
                self.registers[dst] = Value::Arena(u64::from(address as u32));
                Some(pc + 1)
            }
            (0xbf, 0..10) if offset == 0 => {
                self.registers[dst] = self.registers[usize::from(src)];
                Some(pc + 1)
            }
            (MAY_GOTO, _) => {
                self.rounds = self.rounds.saturating_sub(1);
                Some(if self.rounds == 0 { target } else { pc + 1 })
            }
            (CALL, PSEUDO_KFUNC) => {
                self.kfunc(usize::from(number));
                Some(pc + 1)
            }
            _ => self.ordinary(pc),
        }
    }

    fn ordinary(&mut self, pc: usize) -> Option<usize> {
        let instruction = decode(self.slots, pc).expect("an instruction of RFC 9669");
        match instruction {
            Instruction::Alu { wide, op, dst, src } => {
                // A move overwrites its destination, which need not have been set.
                let a = if op == crate::instruction::AluOp::Mov { 0 } else { self.get(dst) };
                self.set(dst, alu(wide, op, a, self.operand(src)));
            }
            Instruction::Negate { wide, dst } => {
                let value = self.get(dst);
                let narrow = u64::from((value as u32).wrapping_neg());
                self.set(dst, if wide { value.wrapping_neg() } else { narrow });
            }
            Instruction::SignExtend { wide, width, dst, src } => {
                let value = sign_extend(self.get(src), width);
                self.set(dst, if wide { value } else { u64::from(value as u32) });
            }
            Instruction::Endian { swap, width, dst } => {
                self.set(dst, endian(swap, width, self.get(dst)));
            }
            Instruction::LoadConstant { dst, value } => {
                self.set(dst, value);
                return Some(pc + 2);
            }
            Instruction::Load { width, signed: false, dst, base, offset } => {
                self.registers[dst.index()] = self.load(base, offset, width.bytes());
            }
            Instruction::Store { width, base, offset, src } => {
                let value = match src {
                    Operand::Register(register) => self.registers[register.index()],
                    Operand::Immediate(value) => Value::Number(i64::from(value) as u64),
                };
                assert!(value != Value::Unset, "a store of an unset register");
                self.store(base, offset, width.bytes(), value);
            }
            Instruction::Jump { target } => return Some(target as usize),
            Instruction::Branch { wide, condition, dst, src, target } => {
                if holds(wide, condition, self.get(dst), self.operand(src)) {
                    return Some(target as usize);
                }
            }
            Instruction::Exit => {
                self.get(Register::R0);
                return None;
            }
            other => panic!("{other:?} is not supported by the kernel"),
        }
        Some(pc + 1)
    }

    fn get(&self, register: Register) -> u64 {
        match self.registers[register.index()] {
            Value::Number(value) => value,
            other => panic!("{other:?} in {register:?} is used as a number"),
        }
    }

    fn operand(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Register(register) => self.get(register),
            Operand::Immediate(value) => i64::from(value) as u64,
        }
    }

    fn set(&mut self, register: Register, value: u64) {
        self.registers[register.index()] = Value::Number(value);
    }

    fn stack_at(offset: i16, bytes: u64) -> usize {
        assert!(offset % 8 == 0 && bytes == 8, "the stack is used by whole words");
        (STACK_BYTES as i64 + i64::from(offset)) as usize / 8
    }

    /// The range of the arena at `pointer + offset`, which must lie inside the checked memory.
    fn place(&self, pointer: u64, offset: i16, bytes: u64) -> std::ops::Range<usize> {
        let guest = pointer.wrapping_add(i64::from(offset) as u64).wrapping_sub(SLOT);
        let start = guest.wrapping_sub(self.lowest);
        let end = start.checked_add(bytes).filter(|end| *end <= self.memory.len() as u64);
        let end = end.unwrap_or_else(|| panic!("unchecked access at {guest:#x}"));
        start as usize..end as usize
    }

    fn load(&self, base: Register, offset: i16, bytes: u64) -> Value {
        if base == Register::FRAME {
            let value = self.stack[Machine::stack_at(offset, bytes)];
            assert!(value != Value::Unset, "a load of uninitialized stack");
            return value;
        }
        match self.registers[base.index()] {
            Value::Arguments if (offset, bytes) == (0, 8) => Value::Context,
            Value::Context => Value::Number(match (offset, bytes) {
                (context::SLOT, 8) => SLOT,
                (context::LIMIT, 8) => self.hop.limit,
                (context::BUDGET, 8) => self.hop.budget,
                (context::FAULT, 4) => self.hop.fault.into(),
                (context::RESULT, 8) => self.hop.result,
                other => panic!("a load of {other:?} from the context"),
            }),
            Value::Arena(pointer) => {
                let mut value = [0; 8];
                let bytes = &self.memory[self.place(pointer, offset, bytes)];
                value[..bytes.len()].copy_from_slice(bytes);
                Value::Number(u64::from_le_bytes(value))
            }
            other => panic!("a load through {other:?}"),
        }
    }

    fn store(&mut self, base: Register, offset: i16, bytes: u64, value: Value) {
        if base == Register::FRAME && bytes == 8 {
            self.stack[Machine::stack_at(offset, bytes)] = value;
            return;
        }
        let Value::Number(number) = value else { panic!("a pointer would leave the machine") };
        if base == Register::FRAME {
            assert_eq!(bytes, 4, "half of a word");
            return self.store_above(offset, number as u32);
        }
        match self.registers[base.index()] {
            Value::Context => match (offset, bytes) {
                (context::BUDGET, 8) => self.hop.budget = number,
                (context::RESULT, 8) => self.hop.result = number,
                (context::ADDRESS, 8) => self.hop.address = number,
                (context::FAULT, 4) => self.hop.fault = number as u32,
                other => panic!("a store of {other:?} to the context"),
            },
            Value::Arena(pointer) => {
                let place = self.place(pointer, offset, bytes);
                let guest = place.start as u64 + self.lowest;
                let is_constant = self.statics.check_write(guest, bytes).is_err();
                assert!(!is_constant, "unchecked write to constants at {guest:#x}");
                self.memory[place].copy_from_slice(&number.to_le_bytes()[..bytes as usize]);
            }
            other => panic!("a store through {other:?}"),
        }
    }

    /// Stores the upper half of a word of the stack whose lower half is already set.
    fn store_above(&mut self, offset: i16, above: u32) {
        match &mut self.stack[Machine::stack_at(offset - 4, 8)] {
            Value::Number(word) => *word = *word & u64::from(u32::MAX) | u64::from(above) << 32,
            other => panic!("half of {other:?}"),
        }
    }

    /// As the module's kfuncs: pays from the context's budget, and stores faults in the context.
    fn kfunc(&mut self, number: usize) {
        let (helper, _) = KFUNCS[number];
        assert_eq!(self.registers[1], Value::Context);
        let [a, b, c] = [2, 3, 4].map(|index| match self.registers[index] {
            Value::Number(value) => value,
            other => panic!("{other:?} as an argument"),
        });
        let mut budget = self.hop.budget as i64;
        let mut call = Call {
            memory: self.memory,
            lowest: self.lowest,
            statics: self.statics,
            budget: &mut budget,
            environment: &mut Alone,
        };
        let outcome = helper.run(&mut call, [a, b, c, 0, 0]);
        self.hop.budget = budget as u64;
        self.registers[..6].fill(Value::Unset);
        self.registers[0] = Value::Number(0);
        let (ended, address) = match outcome {
            Ok(result) => {
                self.registers[0] = Value::Number(result);
                return;
            }
            Err(Stop::Fault(FaultKind::Memory { address })) => (Ended::Memory, address),
            Err(Stop::Fault(FaultKind::ReadOnly { address })) => (Ended::ReadOnly, address),
            Err(Stop::Fault(FaultKind::Budget)) => (Ended::Budget, 0),
            Err(_) => panic!("a bulk helper returned something else"),
        };
        self.hop.fault = u32::from(ended as u8) << 16;
        self.hop.address = address;
    }
}
