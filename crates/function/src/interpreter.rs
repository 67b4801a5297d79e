//! The oracle: runs a program instruction by instruction, as RFC 9669 describes it, with the confinement and the prices
//! of native code. Deliberately slow and simple.

use crate::abi::{self, FRAME_BYTES, GUEST_BASE, STACK_TOP};
use crate::arena::{Arena, Limit};
use crate::environment::{Environment, Exit};
use crate::fault::Fault;
use crate::fault_kind::FaultKind;
use crate::helper::{self, Call, Stop};
use crate::instruction::{AluOp, AtomicOp, Condition, Instruction, Operand, Register, Width};
use crate::program::Program;
use crate::statics::Statics;

/// Runs `program` on `arena` up to `limit`. `budget` is in [units](crate::cost) and is charged as in native code.
/// Helpers use `environment`.
pub fn interpret(
    program: &Program,
    arena: &mut Arena,
    limit: Limit,
    budget: &mut i64,
    environment: &mut dyn Environment,
) -> Result<Exit, Fault> {
    observe(program, arena, limit, budget, environment).outcome
}

/// Observations of the oracle about a call.
#[derive(Debug)]
pub struct Observed {
    /// The end of the call.
    pub outcome: Result<Exit, Fault>,
    /// Units executed, paid or not; see [units](crate::cost). Without helpers, which pay before they work.
    pub executed: i64,
    /// The first instruction that divided by zero, or took a remainder by zero. RFC 9669 §4.1 defines the result as 0,
    /// or as the dividend.
    pub division_by_zero: Option<u32>,
}

/// Runs a call as [`interpret`] does, and observes more.
pub fn observe(
    program: &Program,
    arena: &mut Arena,
    limit: Limit,
    budget: &mut i64,
    environment: &mut dyn Environment,
) -> Observed {
    program.statics().begin_call(arena);
    let lowest = program.lowest_address();
    let memory = arena.accessible_mut(lowest, limit);
    let data_end = GUEST_BASE + limit.bytes() as u64;
    let mut machine = Machine {
        memory,
        lowest,
        statics: program.statics(),
        budget,
        environment,
        registers: [0; 11],
        frames: Vec::new(),
        pc: 0,
        scanned_from: 0,
        executed: 0,
        division_by_zero: None,
    };
    machine.registers[Register::R1.index()] = abi::CONTEXT;
    machine.registers[Register::FRAME.index()] = STACK_TOP;
    let mut step = machine.charge(program.call_cost(0) as u64).map_err(Stop::Fault);
    machine.begin(program, 0);
    loop {
        let pc = machine.pc;
        let outcome = match step.and_then(|()| machine.step(program)) {
            Ok(None) => {
                step = Ok(());
                continue;
            }
            Ok(Some(result)) => Ok(Exit::Return(result)),
            Err(Stop::TailCall(function)) => Ok(Exit::TailCall(function)),
            Err(Stop::Fault(kind)) => Err(Fault { kind, pc, data_end }),
        };
        let Machine { executed, division_by_zero, .. } = machine;
        return Observed { outcome, executed, division_by_zero };
    }
}

struct Frame {
    return_to: u32,
    saved: [u64; 4],
}

struct Machine<'a> {
    memory: &'a mut [u8],
    /// Guest address of the start of `memory`.
    lowest: u64,
    statics: &'a Statics,
    budget: &'a mut i64,
    environment: &'a mut dyn Environment,
    registers: [u64; 11],
    frames: Vec<Frame>,
    pc: u32,
    /// Value of a scan's register when the scan began.
    scanned_from: u64,
    /// Price of the instructions executed so far.
    executed: i64,
    division_by_zero: Option<u32>,
}

impl Machine<'_> {
    fn step(&mut self, program: &Program) -> Result<Option<u64>, Stop> {
        let pc = self.pc;
        self.pc += 1;
        self.executed += program.cost(pc);
        match program.instructions()[pc as usize] {
            Instruction::Alu { wide, op, dst, src } => {
                let (a, b) = (self.get(dst), self.operand(src));
                let is_zero = if wide { b == 0 } else { b as u32 == 0 };
                if is_zero && op.divides() {
                    self.division_by_zero.get_or_insert(pc);
                }
                self.set(dst, alu(wide, op, a, b));
            }
            Instruction::Negate { wide: true, dst } => {
                self.set(dst, self.get(dst).wrapping_neg());
            }
            Instruction::Negate { wide: false, dst } => {
                self.set(dst, u64::from((self.get(dst) as u32).wrapping_neg()));
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
                self.pc += 1;
            }
            Instruction::ConstantTail => unreachable!("no jump lands on a constant's second slot"),
            Instruction::Load { width, signed, dst, base, offset } => {
                let value = self.load(self.address(base, offset), width)?;
                self.set(dst, if signed { sign_extend(value, width) } else { value });
            }
            Instruction::Store { width, base, offset, src } => {
                self.store(self.address(base, offset), width, self.operand(src))?;
            }
            Instruction::Atomic { .. } => self.atomic(program.instructions()[pc as usize])?,
            Instruction::Jump { target } => self.jump(program, target)?,
            Instruction::Branch { wide, condition, dst, src, target } => {
                if holds(wide, condition, self.get(dst), self.operand(src)) {
                    self.jump(program, target)?;
                }
            }
            Instruction::CallHelper { helper } => {
                let arguments = self.registers[1..6].try_into().expect("5 registers");
                let mut call = Call {
                    memory: self.memory,
                    lowest: self.lowest,
                    statics: self.statics,
                    budget: self.budget,
                    environment: self.environment,
                };
                self.registers[0] = helper.run(&mut call, arguments)?;
                self.registers[1..6].fill(0);
            }
            Instruction::CallLocal { target } => {
                self.call(program, target)?;
                return Ok(None);
            }
            Instruction::Exit => {
                let result = self.exit();
                if result.is_none() {
                    self.cross(program, self.pc - 1)?;
                }
                return Ok(result);
            }
        }
        self.cross(program, pc)?;
        Ok(None)
    }

    fn get(&self, register: Register) -> u64 {
        self.registers[register.index()]
    }

    fn set(&mut self, register: Register, value: u64) {
        self.registers[register.index()] = value;
    }

    fn operand(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Register(register) => self.get(register),
            Operand::Immediate(value) => i64::from(value) as u64,
        }
    }

    fn address(&self, base: Register, offset: i16) -> u64 {
        self.get(base).wrapping_add(i64::from(offset) as u64)
    }

    fn charge(&mut self, cost: u64) -> Result<(), FaultKind> {
        helper::charge(self.budget, cost)
    }

    /// Records the start of a scan if the function begins with one.
    fn begin(&mut self, program: &Program, function: u32) {
        if let Some(scan) = program.scan_at_start(function) {
            self.scanned_from = self.get(scan.register);
        }
    }

    fn jump(&mut self, program: &Program, target: u32) -> Result<(), FaultKind> {
        let pc = self.pc - 1;
        self.pc = target;
        program.jump_cost(pc, target).map_or(Ok(()), |cost| self.charge(cost as u64))
    }

    /// Pays for a scan that is left, and records the start of a scan that is entered.
    #[inline]
    fn cross(&mut self, program: &Program, pc: u32) -> Result<(), FaultKind> {
        let Some(crossing) = program.crossing(pc, self.pc) else { return Ok(()) };
        if let Some(scan) = crossing.left {
            self.charge(scan.cost(self.scanned_from, self.get(scan.register)))?;
        }
        if let Some(scan) = crossing.entered {
            self.scanned_from = self.get(scan.register);
        }
        Ok(())
    }

    fn call(&mut self, program: &Program, target: u32) -> Result<(), FaultKind> {
        self.charge(program.call_cost(target) as u64)?;
        let frame = self.registers[10] - FRAME_BYTES;
        if frame == GUEST_BASE {
            return Err(FaultKind::StackOverflow);
        }
        let saved = self.registers[6..10].try_into().expect("4 registers");
        self.frames.push(Frame { return_to: self.pc, saved });
        self.registers[0] = 0;
        self.registers[6..10].fill(0);
        self.registers[10] = frame;
        self.begin(program, target);
        self.pc = target;
        Ok(())
    }

    fn exit(&mut self) -> Option<u64> {
        let Some(frame) = self.frames.pop() else { return Some(self.registers[0]) };
        self.registers[1..6].fill(0);
        self.registers[6..10].copy_from_slice(&frame.saved);
        self.registers[10] += FRAME_BYTES;
        self.pc = frame.return_to;
        None
    }

    fn load(&self, address: u64, width: Width) -> Result<u64, FaultKind> {
        let bytes =
            &self.memory[helper::range(self.lowest, self.memory.len(), address, width.bytes())?];
        let mut value = [0; 8];
        value[..bytes.len()].copy_from_slice(bytes);
        Ok(u64::from_le_bytes(value))
    }

    fn store(&mut self, address: u64, width: Width, value: u64) -> Result<(), FaultKind> {
        let range = helper::range(self.lowest, self.memory.len(), address, width.bytes())?;
        self.statics.check_write(address, width.bytes())?;
        let bytes = &mut self.memory[range];
        bytes.copy_from_slice(&value.to_le_bytes()[..bytes.len()]);
        Ok(())
    }

    fn atomic(&mut self, instruction: Instruction) -> Result<(), FaultKind> {
        let Instruction::Atomic { op, fetch, wide, base, offset, src } = instruction else {
            unreachable!("called for atomics only");
        };
        let width = if wide { Width::Bits64 } else { Width::Bits32 };
        let address = self.address(base, offset);
        let old = self.load(address, width)?;
        let operand = self.get(src);
        let r0 = if wide { self.registers[0] } else { u64::from(self.registers[0] as u32) };
        let new = match op {
            AtomicOp::Add => old.wrapping_add(operand),
            AtomicOp::Or => old | operand,
            AtomicOp::And => old & operand,
            AtomicOp::Xor => old ^ operand,
            AtomicOp::Exchange => operand,
            AtomicOp::CompareExchange if old == r0 => operand,
            AtomicOp::CompareExchange => old,
        };
        self.store(address, width, new)?;
        match op {
            AtomicOp::CompareExchange => self.registers[0] = old,
            _ if fetch => self.set(src, old),
            _ => {}
        }
        Ok(())
    }
}

pub(crate) fn alu(wide: bool, op: AluOp, a: u64, b: u64) -> u64 {
    if wide { alu64(op, a, b) } else { u64::from(alu32(op, a as u32, b as u32)) }
}

fn alu64(op: AluOp, a: u64, b: u64) -> u64 {
    match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::Div => a.checked_div(b).unwrap_or(0),
        AluOp::SignedDiv if b == 0 => 0,
        AluOp::SignedDiv => (a as i64).wrapping_div(b as i64) as u64,
        AluOp::Or => a | b,
        AluOp::And => a & b,
        AluOp::Lsh => a.wrapping_shl(b as u32),
        AluOp::Rsh => a.wrapping_shr(b as u32),
        AluOp::Mod => a.checked_rem(b).unwrap_or(a),
        AluOp::SignedMod if b == 0 => a,
        AluOp::SignedMod => (a as i64).wrapping_rem(b as i64) as u64,
        AluOp::Xor => a ^ b,
        AluOp::Mov => b,
        AluOp::Arsh => (a as i64).wrapping_shr(b as u32) as u64,
    }
}

fn alu32(op: AluOp, a: u32, b: u32) -> u32 {
    match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::Div => a.checked_div(b).unwrap_or(0),
        AluOp::SignedDiv if b == 0 => 0,
        AluOp::SignedDiv => (a as i32).wrapping_div(b as i32) as u32,
        AluOp::Or => a | b,
        AluOp::And => a & b,
        AluOp::Lsh => a.wrapping_shl(b),
        AluOp::Rsh => a.wrapping_shr(b),
        AluOp::Mod => a.checked_rem(b).unwrap_or(a),
        AluOp::SignedMod if b == 0 => a,
        AluOp::SignedMod => (a as i32).wrapping_rem(b as i32) as u32,
        AluOp::Xor => a ^ b,
        AluOp::Mov => b,
        AluOp::Arsh => (a as i32).wrapping_shr(b) as u32,
    }
}

pub(crate) fn sign_extend(value: u64, width: Width) -> u64 {
    let extended = match width {
        Width::Bits8 => i64::from(value as i8),
        Width::Bits16 => i64::from(value as i16),
        Width::Bits32 => i64::from(value as i32),
        Width::Bits64 => value as i64,
    };
    extended as u64
}

pub(crate) fn endian(swap: bool, width: Width, value: u64) -> u64 {
    match (width, swap) {
        (Width::Bits16, false) => u64::from(value as u16),
        (Width::Bits16, true) => u64::from((value as u16).swap_bytes()),
        (Width::Bits32, false) => u64::from(value as u32),
        (Width::Bits32, true) => u64::from((value as u32).swap_bytes()),
        (_, false) => value,
        (_, true) => value.swap_bytes(),
    }
}

pub(crate) fn holds(wide: bool, condition: Condition, a: u64, b: u64) -> bool {
    let (a, b) = if wide { (a, b) } else { (u64::from(a as u32), u64::from(b as u32)) };
    let (sa, sb) = if wide {
        (a as i64, b as i64)
    } else {
        (i64::from(a as u32 as i32), i64::from(b as u32 as i32))
    };
    match condition {
        Condition::Eq => a == b,
        Condition::Ne => a != b,
        Condition::Set => a & b != 0,
        Condition::Gt => a > b,
        Condition::Ge => a >= b,
        Condition::Lt => a < b,
        Condition::Le => a <= b,
        Condition::Sgt => sa > sb,
        Condition::Sge => sa >= sb,
        Condition::Slt => sa < sb,
        Condition::Sle => sa <= sb,
    }
}
