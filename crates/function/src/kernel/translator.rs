//! Translates checked instructions to those of the kernel.

use super::assembler::{
    ADD, AND, ARSH, Assembler, DIV, END, JEQ, JGE, JGT, JLE, JLT, JNE, JSET, JSGE, JSGT, JSLE,
    JSLT, LSH, Label, MOD, MOV, MUL, NEG, OR, RSH, Reg, SUB, Source, XOR,
};
use super::contract::{
    CALL, Ended, KFUNCS, MAX_SLOTS, PSEUDO_KFUNC, PSEUDO_MAP, TranslateError, context,
};
use super::liveness::{ARGUMENTS, Liveness, Set, bit, is_kfunc, written};
use super::shared::{Calls, Key};
use crate::abi::{self, FRAME_BYTES, STACK_TOP};
use crate::helper::Helper;
use crate::instruction::{AluOp, Condition, Instruction, Operand, Register, Width};
use crate::program::Program;
use crate::strided_loop::Scan;

/// The kernel's frame pointer.
pub(super) const FP: Reg = 10;
/// Size field of loads and stores: BPF_DW.
pub(super) const DW: u8 = 0x18;
const W: u8 = 0x00;
/// Programs of at most this many slots have so few paths that the verifier can follow each.
const LARGE: usize = 256;

/// Layout of the kernel's stack, from its top.
pub(super) mod stack {
    /// Pointer to the context.
    pub(in super::super) const CONTEXT: i16 = -8;
    /// Position in the arena of the lowest address that functions may access.
    pub(in super::super) const LOWEST: i16 = -16;
    /// The rest of the budget.
    pub(in super::super) const BUDGET: i16 = -24;
    /// Value of a scan's register when the scan began.
    pub(in super::super) const SCANNED_FROM: i16 = -32;
    /// Maximum distance from the lowest address at which an access of 1, 2, 4 or 8 bytes may begin.
    pub(in super::super) const LIMITS: [i16; 4] = [-40, -48, -56, -64];
    /// Spilled registers.
    pub(in super::super) const SPILLS: [i16; 3] = [-72, -80, -88];
    /// 0, as a value that the verifier does not know.
    pub(in super::super) const ZERO: i16 = -96;
    /// r6 to r9 of callers, 32 bytes for each depth of calls.
    pub(in super::super) const CALLERS: i16 = -128;
    /// Number of the label that a shared function returns to, 8 bytes for each depth of calls.
    pub(in super::super) const RETURNS: i16 = -360;
}

/// One copy of a function.
pub(super) struct Place {
    pub(super) depth: u64,
    /// The first slot of the function: that of the first label.
    start: u32,
    labels: Vec<Label>,
    /// The label that it returns to; None for the entry.
    pub(super) back: Option<Label>,
}

impl Place {
    fn label(&self, pc: u32) -> Label {
        self.labels[(pc - self.start) as usize]
    }

    /// The function's r10.
    pub(super) fn frame(&self) -> i32 {
        (STACK_TOP - self.depth * FRAME_BYTES) as i32
    }
}

/// Registers taken for a moment, with those that had to be spilled.
pub(super) struct Taken<const N: usize> {
    pub(super) registers: [Reg; N],
    spilled: Vec<(Reg, i16)>,
}

pub(super) struct Translator<'a> {
    pub(super) program: &'a Program,
    pub(super) code: Assembler,
    pub(super) liveness: Liveness,
    /// The program has so many paths that the verifier must not distinguish them.
    is_large: bool,
    pub(super) calls: Calls,
    /// Ends with a fault: r2 is its address, r3 its cause and instruction.
    faulted: Label,
    /// The same, with the distance from the lowest address in r2.
    faulted_at: Label,
    /// Ends after a fault in a kfunc; r3 is the instruction.
    helper_faulted: Label,
    /// Faults to be emitted behind the code.
    stubs: Vec<Stub>,
}

struct Stub {
    label: Label,
    ended: Ended,
    pc: u32,
    /// Distance of the address from the lowest address.
    at: Option<Source>,
}

impl<'a> Translator<'a> {
    pub(super) fn new(program: &'a Program) -> Translator<'a> {
        let mut code = Assembler::default();
        let [faulted, faulted_at, helper_faulted] = [(); 3].map(|()| code.label());
        let liveness = Liveness::of(program);
        Translator {
            program,
            code,
            liveness,
            is_large: program.instructions().len() > LARGE,
            calls: Calls::of(program),
            faulted,
            faulted_at,
            helper_faulted,
            stubs: Vec::new(),
        }
    }

    pub(super) fn translate(mut self) -> Result<Vec<[u8; 8]>, TranslateError> {
        self.enter();
        self.function((0, 0), None)?;
        self.shared_functions()?;
        self.end();
        self.code.finish()
    }

    /// The lowest accessible guest address.
    pub(super) fn lowest(&self) -> i32 {
        self.program.lowest_address() as i32
    }

    /// Binds the arena, and sets up the kernel's stack.
    fn enter(&mut self) {
        let code = &mut self.code;
        code.constant(0, PSEUDO_MAP, 0);
        // The first argument of the struct_ops member.
        code.load(DW, 1, 1, 0);
        code.store(DW, FP, stack::CONTEXT, Source::Reg(1));
        code.load(DW, 2, 1, context::SLOT);
        code.add(2, Source::Imm(self.program.lowest_address() as i32));
        code.store(DW, FP, stack::LOWEST, Source::Reg(2));
        code.load(DW, 2, 1, context::BUDGET);
        code.store(DW, FP, stack::BUDGET, Source::Reg(2));
        code.load(DW, 2, 1, context::RESULT);
        code.store(DW, FP, stack::ZERO, Source::Reg(2));
        code.load(DW, 2, 1, context::LIMIT);
        let mut less = self.program.lowest_address() as i32;
        for (at, width) in stack::LIMITS.into_iter().zip([1, 2, 4, 8]) {
            code.add(2, Source::Imm(-(less + width)));
            less = -width;
            code.store(DW, FP, at, Source::Reg(2));
            if self.is_large {
                // The limit is below 2^32. The verifier does not track a value that is stored in two parts, so it does
                // not distinguish paths by what accesses tell about the limit.
                code.store(W, FP, at + 4, Source::Imm(0));
            }
        }
        code.store(DW, FP, stack::SCANNED_FROM, Source::Imm(0));
        let live = self.liveness.before(0);
        for register in (0..10).filter(|register| live & bit(*register) != 0) {
            let value = if register == 1 { abi::CONTEXT as i32 } else { 0 };
            self.code.mov(register, Source::Imm(value));
        }
        self.charge(0, Source::Imm(self.program.call_cost(0) as i32), live);
    }

    /// Emits the exits with faults.
    fn end(&mut self) {
        let lowest = self.lowest();
        for Stub { label, ended, pc, at } in std::mem::take(&mut self.stubs) {
            self.code.bind(label);
            let to = match at {
                Some(at) => {
                    self.code.mov(2, at);
                    self.faulted_at
                }
                None => {
                    if ended == Ended::Budget {
                        self.code.store(DW, FP, stack::BUDGET, Source::Imm(0));
                    }
                    self.code.mov(2, Source::Imm(0));
                    self.faulted
                }
            };
            self.code.mov(3, Source::Imm(i32::from(ended as u8) << 16 | pc as i32));
            self.code.jump(to);
        }
        let code = &mut self.code;
        code.bind(self.faulted_at);
        code.add(2, Source::Imm(lowest));
        code.bind(self.faulted);
        code.load(DW, 1, FP, stack::CONTEXT);
        code.store(DW, 1, context::ADDRESS, Source::Reg(2));
        code.store(W, 1, context::FAULT, Source::Reg(3));
        code.load(DW, 2, FP, stack::BUDGET);
        code.store(DW, 1, context::BUDGET, Source::Reg(2));
        code.mov(0, Source::Imm(0));
        code.exit();
        code.bind(self.helper_faulted);
        code.load(DW, 1, FP, stack::CONTEXT);
        code.load(W, 2, 1, context::FAULT);
        code.alu(true, OR, 2, Source::Reg(3), 0);
        code.store(W, 1, context::FAULT, Source::Reg(2));
        code.mov(0, Source::Imm(0));
        code.exit();
    }

    /// The label of an exit with a fault.
    pub(super) fn stub(&mut self, ended: Ended, pc: u32, at: Option<Source>) -> Label {
        let label = self.code.label();
        self.stubs.push(Stub { label, ended, pc, at });
        label
    }

    /// Emits a function here.
    pub(super) fn function(
        &mut self,
        (depth, index): Key,
        back: Option<Label>,
    ) -> Result<(), TranslateError> {
        let range = self.program.functions()[index].clone();
        let labels = range.clone().map(|_| self.code.label()).collect();
        let place = Place { depth, start: range.start, labels, back };
        if let Some(scan) = self.program.scan_at_start(range.start) {
            self.begin_scan(scan);
        }
        for pc in range.clone() {
            if self.code.len() > 4 * MAX_SLOTS {
                return Err(TranslateError::TooLong);
            }
            let instruction = self.program.instructions()[pc as usize];
            if instruction == Instruction::ConstantTail {
                continue;
            }
            self.code.bind(place.label(pc));
            self.instruction(pc, &instruction, &place)?;
            let next = match instruction {
                Instruction::LoadConstant { .. } => pc + 2,
                _ => pc + 1,
            };
            if instruction.runs_on() && !matches!(instruction, Instruction::CallLocal { .. }) {
                self.cross(pc, pc, next, self.liveness.after(pc));
            }
        }
        Ok(())
    }

    fn instruction(
        &mut self,
        pc: u32,
        instruction: &Instruction,
        place: &Place,
    ) -> Result<(), TranslateError> {
        let live = self.liveness.after(pc);
        match *instruction {
            Instruction::Alu { wide, op, dst, src } => {
                self.alu(wide, op, reg(dst), source(src, place));
            }
            Instruction::Negate { wide, dst } => {
                self.code.alu(wide, NEG, reg(dst), Source::Imm(0), 0);
            }
            Instruction::SignExtend { wide, width, dst, src } => {
                if src == Register::FRAME {
                    self.code.mov(reg(dst), Source::Imm(place.frame()));
                    self.sign_extend(wide, width, reg(dst), reg(dst));
                } else {
                    self.sign_extend(wide, width, reg(dst), reg(src));
                }
            }
            Instruction::Endian { swap, width, dst } => self.endian(swap, width, reg(dst)),
            Instruction::LoadConstant { dst, value } => self.constant(reg(dst), value),
            Instruction::ConstantTail => {}
            Instruction::Load { .. } | Instruction::Store { .. } | Instruction::Atomic { .. } => {
                self.access(pc, instruction, place, live);
            }
            Instruction::Jump { target } => self.jump(pc, target, place),
            Instruction::Branch { .. } => self.branch(pc, instruction, place),
            Instruction::CallHelper { helper } => self.helper(pc, helper, live),
            Instruction::CallLocal { target } => self.call(pc, target, place, live)?,
            Instruction::Exit => self.leave(place),
        }
        Ok(())
    }

    fn constant(&mut self, dst: Reg, value: u64) {
        match i32::try_from(value as i64) {
            Ok(value) => self.code.mov(dst, Source::Imm(value)),
            Err(_) => self.code.constant(dst, 0, value),
        }
    }

    fn alu(&mut self, wide: bool, op: AluOp, dst: Reg, src: Source) {
        // The verifier refuses these, but RFC 9669 §4.1 defines their results.
        let src = match (op, src) {
            (AluOp::Div | AluOp::SignedDiv, Source::Imm(0)) => {
                return self.code.mov(dst, Source::Imm(0));
            }
            (AluOp::Mod | AluOp::SignedMod, Source::Imm(0)) => {
                if !wide {
                    self.code.alu(false, MOV, dst, Source::Reg(dst), 0);
                }
                return;
            }
            (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, Source::Imm(amount)) => {
                Source::Imm(amount & if wide { 63 } else { 31 })
            }
            _ => src,
        };
        let offset = i16::from(matches!(op, AluOp::SignedDiv | AluOp::SignedMod));
        self.code.alu(wide, opcode(op), dst, src, offset);
    }

    pub(super) fn sign_extend(&mut self, wide: bool, width: Width, dst: Reg, src: Reg) {
        let bits = 8 * width.bytes() as i16;
        self.code.alu(wide, MOV, dst, Source::Reg(src), bits);
    }

    fn endian(&mut self, swap: bool, width: Width, dst: Reg) {
        let bits = 8 * width.bytes() as i32;
        // To-big-endian on a little-endian machine swaps; the other form truncates.
        let class = if swap { 0x0c } else { 0x04 };
        self.code.raw(END | class, dst, 0, 0, bits);
    }

    /// Takes registers whose values are dead after this instruction and that it does not use itself. If there are none,
    /// spills others than `needed`.
    pub(super) fn take<const N: usize>(&mut self, live: Set, needed: Set) -> Taken<N> {
        let (mut used, mut taken) = (live | needed, 0);
        let mut spilled = Vec::new();
        let registers = std::array::from_fn(|_| {
            let free = (0..10).find(|register| used & bit(*register) == 0);
            let register = free.unwrap_or_else(|| {
                // No instruction needs so many registers that none is left.
                let victim =
                    (0..10).find(|victim| (needed | taken) & bit(*victim) == 0).unwrap_or(0);
                let at = stack::SPILLS[spilled.len()];
                self.code.store(DW, FP, at, Source::Reg(victim));
                spilled.push((victim, at));
                victim
            });
            used |= bit(register);
            taken |= bit(register);
            register
        });
        Taken { registers, spilled }
    }

    pub(super) fn give_back<const N: usize>(&mut self, taken: Taken<N>) {
        for (register, at) in taken.spilled {
            self.code.load(DW, register, FP, at);
        }
    }

    /// Pays, or ends the call.
    pub(super) fn charge(&mut self, pc: u32, units: Source, live: Set) {
        let stub = self.stub(Ended::Budget, pc, None);
        let needed = if let Source::Reg(register) = units { bit(register) } else { 0 };
        let taken = self.take::<1>(live, needed);
        let [left] = taken.registers;
        self.code.load(DW, left, FP, stack::BUDGET);
        self.code.branch_out(JLT, left, units, stub);
        self.code.alu(true, SUB, left, units, 0);
        self.code.store(DW, FP, stack::BUDGET, Source::Reg(left));
        self.give_back(taken);
    }

    fn begin_scan(&mut self, scan: Scan) {
        self.code.store(DW, FP, stack::SCANNED_FROM, Source::Reg(reg(scan.register)));
    }

    /// If control leaves a scan from one slot to another, pays for it; if it enters one, records the start. A fault is
    /// attributed to the instruction at `pc`.
    pub(super) fn cross(&mut self, pc: u32, from: u32, to: u32, live: Set) {
        let Some(crossing) = self.program.crossing(from, to) else { return };
        if let Some(scan) = crossing.left {
            let register = reg(scan.register);
            let taken = self.take::<2>(live, bit(register));
            let [way, other] = taken.registers;
            self.code.load(DW, other, FP, stack::SCANNED_FROM);
            self.code.mov(way, Source::Reg(register));
            let (from, to) = if scan.step > 0 { (other, way) } else { (way, other) };
            self.code.alu(true, SUB, to, Source::Reg(from), 0);
            self.code.mov(way, Source::Reg(to));
            let step = scan.step.unsigned_abs();
            match i32::try_from(step) {
                Ok(1) => {}
                Ok(step) => self.code.alu(true, DIV, way, Source::Imm(step), 0),
                Err(_) => {
                    self.constant(other, step.into());
                    self.code.alu(true, DIV, way, Source::Reg(other), 0);
                }
            }
            self.code.add(way, Source::Imm(1));
            self.code.alu(true, MUL, way, Source::Imm(scan.turn as i32), 0);
            if scan.toll > 0 {
                self.code.add(way, Source::Imm(scan.toll as i32));
            }
            self.pay_way(pc, way, other);
            self.give_back(taken);
        }
        if let Some(scan) = crossing.entered {
            self.begin_scan(scan);
        }
    }

    fn pay_way(&mut self, pc: u32, units: Reg, left: Reg) {
        let stub = self.stub(Ended::Budget, pc, None);
        self.code.load(DW, left, FP, stack::BUDGET);
        self.code.branch_out(JGT, units, Source::Reg(left), stub);
        self.code.alu(true, SUB, left, Source::Reg(units), 0);
        self.code.store(DW, FP, stack::BUDGET, Source::Reg(left));
    }

    /// Whether the jump needs no code but the jump itself.
    fn is_plain(&self, pc: u32, target: u32) -> bool {
        target > pc && self.program.crossing(pc, target).is_none()
    }

    /// A jump, once it is taken.
    fn jump(&mut self, pc: u32, target: u32, place: &Place) {
        let live = self.liveness.before(target);
        if let Some(cost) = self.program.jump_cost(pc, target) {
            let left = self.program.crossing(pc, target).and_then(|crossing| crossing.left);
            // The price of the scan that is left here depends on its register.
            let scanned = left.map_or(0, |scan| bit(reg(scan.register)));
            self.charge(pc, Source::Imm(cost as i32), live | scanned);
        }
        self.cross(pc, pc, target, live);
        if target <= pc {
            if self.is_large {
                // A number that the verifier knows changes in every iteration, and it would follow each value.
                self.forget(live & written(self.program, target..pc + 1), live);
            }
            let stub = self.stub(Ended::Budget, pc, None);
            self.code.may_goto(stub);
        }
        self.code.jump(place.label(target));
    }

    /// Makes the values of these registers unknown to the verifier.
    pub(super) fn forget(&mut self, registers: Set, live: Set) {
        if registers == 0 {
            return;
        }
        let taken = self.take::<1>(live, registers);
        let [zero] = taken.registers;
        self.code.load(DW, zero, FP, stack::ZERO);
        for register in (0..10).filter(|register| registers & bit(*register) != 0) {
            self.code.alu(true, ADD, register, Source::Reg(zero), 0);
        }
        self.give_back(taken);
    }

    fn branch(&mut self, pc: u32, instruction: &Instruction, place: &Place) {
        let Instruction::Branch { wide, condition, dst, src, target } = *instruction else {
            return;
        };
        let src = source(src, place);
        let live = self.liveness.after(pc);
        let condition = jump_opcode(condition);
        let aside = (dst == Register::FRAME).then(|| {
            let needed = if let Source::Reg(register) = src { bit(register) } else { 0 };
            let taken = self.take::<1>(live, needed);
            self.code.mov(taken.registers[0], Source::Imm(place.frame()));
            taken
        });
        let dst = aside.as_ref().map_or(reg(dst), |taken| taken.registers[0]);
        let is_aside = aside.as_ref().is_some_and(|taken| !taken.spilled.is_empty());
        if self.is_plain(pc, target) && !is_aside {
            return self.code.branch(wide, condition, dst, src, place.label(target));
        }
        let (taken_way, next) = (self.code.label(), self.code.label());
        match inverse(condition) {
            Some(inverse) => self.code.branch(wide, inverse, dst, src, next),
            None => {
                self.code.branch(wide, condition, dst, src, taken_way);
                self.code.jump(next);
            }
        }
        self.code.bind(taken_way);
        let spilled = aside.as_ref().map(|taken| taken.spilled.clone()).unwrap_or_default();
        for (register, at) in &spilled {
            self.code.load(DW, *register, FP, *at);
        }
        self.jump(pc, target, place);
        self.code.bind(next);
        if let Some(taken) = aside {
            self.give_back(taken);
        }
    }

    fn helper(&mut self, pc: u32, helper: Helper, live: Set) {
        if helper == Helper::Workspace {
            let units = helper.fixed_cost().unwrap_or(0) as i32;
            self.charge(pc, Source::Imm(units), live & !(ARGUMENTS | 1));
            self.code.mov(0, Source::Imm(abi::WORKSPACE as i32));
        } else if is_kfunc(helper) {
            self.kfunc(pc, helper);
        } else {
            let stub = self.stub(Ended::Helper, pc, None);
            return self.code.jump(stub);
        }
        self.zero(live & ARGUMENTS);
    }

    fn kfunc(&mut self, pc: u32, helper: Helper) {
        let number = KFUNCS.iter().position(|(known, _)| *known == helper).unwrap_or(0);
        let code = &mut self.code;
        for to in [4, 3, 2] {
            code.mov(to, Source::Reg(to - 1));
        }
        code.load(DW, 1, FP, stack::CONTEXT);
        code.load(DW, 5, FP, stack::BUDGET);
        code.store(DW, 1, context::BUDGET, Source::Reg(5));
        code.raw(CALL, 0, PSEUDO_KFUNC, 0, number as i32);
        code.load(DW, 1, FP, stack::CONTEXT);
        code.load(DW, 2, 1, context::BUDGET);
        code.store(DW, FP, stack::BUDGET, Source::Reg(2));
        code.load(W, 1, 1, context::FAULT);
        code.mov(3, Source::Imm(pc as i32));
        code.branch(true, JNE, 1, Source::Imm(0), self.helper_faulted);
    }

    pub(super) fn zero(&mut self, registers: Set) {
        for register in (0..10).filter(|register| registers & bit(*register) != 0) {
            self.code.mov(register, Source::Imm(0));
        }
    }
}

pub(super) fn reg(register: Register) -> Reg {
    register.index() as Reg
}

/// The source operand; the frame pointer becomes a constant.
pub(super) fn source(operand: Operand, place: &Place) -> Source {
    match operand {
        Operand::Register(Register::FRAME) => Source::Imm(place.frame()),
        Operand::Register(register) => Source::Reg(reg(register)),
        Operand::Immediate(value) => Source::Imm(value),
    }
}

fn opcode(op: AluOp) -> u8 {
    match op {
        AluOp::Add => ADD,
        AluOp::Sub => SUB,
        AluOp::Mul => MUL,
        AluOp::Div | AluOp::SignedDiv => DIV,
        AluOp::Or => OR,
        AluOp::And => AND,
        AluOp::Lsh => LSH,
        AluOp::Rsh => RSH,
        AluOp::Mod | AluOp::SignedMod => MOD,
        AluOp::Xor => XOR,
        AluOp::Mov => MOV,
        AluOp::Arsh => ARSH,
    }
}

fn jump_opcode(condition: Condition) -> u8 {
    match condition {
        Condition::Eq => JEQ,
        Condition::Ne => JNE,
        Condition::Set => JSET,
        Condition::Gt => JGT,
        Condition::Ge => JGE,
        Condition::Lt => JLT,
        Condition::Le => JLE,
        Condition::Sgt => JSGT,
        Condition::Sge => JSGE,
        Condition::Slt => JSLT,
        Condition::Sle => JSLE,
    }
}

fn inverse(condition: u8) -> Option<u8> {
    Some(match condition {
        JEQ => JNE,
        JNE => JEQ,
        JGT => JLE,
        JLE => JGT,
        JGE => JLT,
        JLT => JGE,
        JSGT => JSLE,
        JSLE => JSGT,
        JSGE => JSLT,
        JSLT => JSGE,
        _ => return None,
    })
}
