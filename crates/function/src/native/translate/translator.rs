//! Translates one function of a program to one native function.

use crate::abi::{self, FRAME_BYTES, GUEST_BASE, STACK_TOP};
use crate::helper::Helper;
use crate::instruction::{AluOp, Condition, Instruction, Operand, Register, Width};
use crate::native::machine::{self, FAULT_BUDGET, FAULT_STACK, Machine};
use crate::program::Program;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, FuncRef, InstBuilder, MemFlagsData, Type, Value, types};
use cranelift_frontend::{FunctionBuilder, Variable};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::offset_of;
use std::ops::Range;

/// A negative budget: the callee has recorded a fault.
const FAULTED: i64 = i64::MIN;

/// The address of a fault.
pub(super) enum Fault {
    /// This value and offset.
    At(Value, i64),
    Nowhere,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Form {
    Entry,
    Local,
}

/// Functions that one native function may call.
pub(super) struct Callees {
    /// Functions of the host for bulk helpers.
    pub(super) bulk: BTreeMap<Helper, FuncRef>,
    /// The function of the host for all other helpers.
    pub(super) call_helper: FuncRef,
    /// Functions of the program, by their first instruction.
    pub(super) locals: BTreeMap<u32, FuncRef>,
}

// 21 fields and more than 25 methods: a method for each class of instructions and of checks, all of which need the
// builder, the state of registers and the blocks of the function.
pub(super) struct Translator<'a> {
    pub(super) builder: FunctionBuilder<'a>,
    pub(super) program: &'a Program,
    pub(super) range: Range<u32>,
    pub(super) form: Form,
    pub(super) callees: Callees,
    pub(super) registers: [Variable; 11],
    pub(super) budget: Variable,
    /// Value of a scan's register when the scan began.
    pub(super) scanned_from: Variable,
    pub(super) machine: Value,
    /// r10 of this function.
    pub(super) frame: Value,
    pub(super) base: Value,
    /// [`NEAR_END_BYTES`] before the end of the accessible memory, in bytes from `base`: one value that accesses of all
    /// widths are compared with. It is loaded from memory, because Cranelift would otherwise recompute it each time
    /// rather than keep it.
    pub(super) near_end: Value,
    pub(super) blocks: BTreeMap<u32, Block>,
    /// Number of edges into each block that are not translated yet; at 0 the block is sealed, and the values of
    /// registers are known in it.
    pub(super) open_edges: BTreeMap<u32, usize>,
    /// Parameters: kind, pc, address.
    pub(super) fault: Block,
    /// The block that passes on a fault that a callee or helper has recorded.
    pub(super) unwind: Block,
    /// By base value: the range of offsets that earlier instructions of this block have proved to be accessible.
    pub(super) proved: HashMap<Value, Range<i64>>,
    /// Ranges that are accessible on every path: around the context and the frame.
    pub(super) always: HashMap<Value, Range<i64>>,
    /// Whether straight-line code is being translated a second time (see `check_group`).
    pub(super) is_cold: bool,
    /// Slots that may still be translated a second time. Bounds code size and compile time.
    pub(super) second_translations: usize,
    /// Branches over one arithmetic instruction, which become selects: functions use them to search without
    /// mispredicted branches.
    pub(super) selects: BTreeSet<u32>,
}

/// `NEAR_END_BYTES` as a distance.
pub(super) const NEAR_END_BYTES: i64 = machine::NEAR_END_BYTES as i64;

pub(super) const FLAGS: MemFlagsData = MemFlagsData::new().with_notrap();

impl<'a> Translator<'a> {
    pub(super) fn new(
        mut builder: FunctionBuilder<'a>,
        program: &'a Program,
        range: Range<u32>,
        form: Form,
        callees: Callees,
    ) -> Translator<'a> {
        let entry = builder.create_block();
        builder.append_block_params_for_function_params(entry);
        builder.switch_to_block(entry);
        builder.seal_block(entry);
        let registers = std::array::from_fn(|_| builder.declare_var(types::I64));
        let budget = builder.declare_var(types::I64);
        let scanned_from = builder.declare_var(types::I64);
        let (fault, unwind) = (builder.create_block(), builder.create_block());
        for ty in [types::I32, types::I32, types::I64] {
            builder.append_block_param(fault, ty);
        }
        builder.set_cold_block(fault);
        builder.set_cold_block(unwind);
        let machine = builder.block_params(entry)[0];
        let base =
            builder.ins().load(types::I64, FLAGS, machine, offset_of!(Machine<'_>, base) as i32);
        let near_end = builder.ins().load(
            types::I64,
            FLAGS,
            machine,
            offset_of!(Machine<'_>, near_end) as i32,
        );
        let second_translations = range.len();
        let mut translator = Translator {
            builder,
            program,
            range,
            form,
            callees,
            registers,
            budget,
            scanned_from,
            machine,
            frame: machine,
            base,
            near_end,
            blocks: BTreeMap::new(),
            open_edges: BTreeMap::new(),
            fault,
            unwind,
            proved: HashMap::new(),
            always: HashMap::new(),
            is_cold: false,
            second_translations,
            selects: BTreeSet::new(),
        };
        translator.set_up_registers(entry);
        translator.find_blocks();
        translator
    }

    pub(super) fn set_up_registers(&mut self, entry: Block) {
        let zero = self.builder.ins().iconst(types::I64, 0);
        for register in self.registers.into_iter().chain([self.scanned_from]) {
            self.builder.def_var(register, zero);
        }
        let parameters = self.builder.block_params(entry).to_vec();
        let budget = match self.form {
            Form::Entry => {
                let context = self.builder.ins().iconst(types::I64, abi::CONTEXT as i64);
                self.builder.def_var(self.registers[1], context);
                let frame = self.builder.ins().iconst(types::I64, STACK_TOP as i64);
                self.builder.def_var(self.registers[10], frame);
                self.frame = frame;
                // Every call may access all memory below the data.
                for (value, address) in [(context, abi::CONTEXT), (frame, STACK_TOP)] {
                    let below = |end: u64| end as i64 - address as i64;
                    self.always.insert(value, below(GUEST_BASE)..below(abi::DATA));
                }
                self.load_machine(types::I64, offset_of!(Machine<'_>, budget))
            }
            Form::Local => {
                self.builder.def_var(self.registers[10], parameters[1]);
                self.frame = parameters[1];
                // The caller has checked the depth, so the frame lies in the stack.
                self.always.insert(parameters[1], -(FRAME_BYTES as i64)..0);
                for (register, value) in self.registers[1..6].iter().zip(&parameters[3..]) {
                    self.builder.def_var(*register, *value);
                }
                parameters[2]
            }
        };
        self.builder.def_var(self.budget, budget);
        self.proved.clone_from(&self.always);
        if self.form == Form::Entry {
            self.charge(self.program.call_cost(self.range.start), self.range.start);
        }
        if let Some(scan) = self.program.scan_at_start(self.range.start) {
            let from = self.get(scan.register);
            self.builder.def_var(self.scanned_from, from);
        }
    }

    /// Finds the instructions that jumps lead to and counts the edges into each.
    pub(super) fn find_blocks(&mut self) {
        let instructions = &self.program.instructions()[..self.range.end as usize];
        let jumps: Vec<(u32, u32, bool)> = self
            .range
            .clone()
            .filter_map(|pc| match instructions[pc as usize] {
                Instruction::Jump { target } => Some((pc, target, false)),
                Instruction::Branch { target, .. } => Some((pc, target, true)),
                _ => None,
            })
            .collect();
        let landings: BTreeSet<u32> = jumps.iter().map(|(_, target, _)| *target).collect();
        for (pc, target, is_branch) in jumps {
            let skips_one = is_branch
                && target == pc + 2
                && !landings.contains(&(pc + 1))
                && self.program.crossing(pc, pc + 1).is_none()
                && is_cheap(&instructions[pc as usize + 1]);
            if skips_one {
                self.selects.insert(pc);
            } else {
                self.add_edge(target);
            }
        }
        let starts: Vec<u32> = self.blocks.keys().copied().collect();
        for start in starts {
            if start == self.range.start || self.falls_into(start) {
                self.add_edge(start);
            }
        }
    }

    pub(super) fn add_edge(&mut self, target: u32) {
        let builder = &mut self.builder;
        self.blocks.entry(target).or_insert_with(|| builder.create_block());
        *self.open_edges.entry(target).or_insert(0) += 1;
    }

    /// Whether control may continue from the instruction before `pc` to `pc`.
    pub(super) fn falls_into(&self, pc: u32) -> bool {
        self.program.instructions()[pc as usize - 1].runs_on()
    }

    pub(super) fn close_edge(&mut self, target: u32) {
        let Some(open) = self.open_edges.get_mut(&target) else { return };
        *open -= 1;
        if *open == 0 {
            self.builder.seal_block(self.blocks[&target]);
        }
    }

    pub(super) fn run(mut self) -> FunctionBuilder<'a> {
        let mut reachable = true;
        let mut pcs = self.range.clone();
        while let Some(pc) = pcs.next() {
            if let Some(&block) = self.blocks.get(&pc) {
                if reachable {
                    self.builder.ins().jump(block, &[]);
                    self.close_edge(pc);
                }
                self.builder.switch_to_block(block);
                // Ranges checked on one path may not be checked on another.
                self.proved.clone_from(&self.always);
                reachable = true;
            }
            let instruction = self.program.instructions()[pc as usize];
            if !reachable {
                self.skip_edges(&instruction, pc);
                continue;
            }
            let mut last = pc;
            if self.selects.contains(&pc) {
                self.select(&instruction, pc);
                last = pcs.next().unwrap_or(pc);
            } else {
                reachable = self.instruction(pc, &instruction);
            }
            if reachable && last + 1 < self.range.end {
                self.cross(last, last + 1);
            }
        }
        self.finish_cold_blocks();
        self.builder.seal_all_blocks();
        self.builder
    }

    /// Unreachable instructions are not translated; their edges must still be discounted.
    pub(super) fn skip_edges(&mut self, instruction: &Instruction, pc: u32) {
        match *instruction {
            Instruction::Branch { .. } if self.selects.contains(&pc) => {}
            Instruction::Jump { target } | Instruction::Branch { target, .. } => {
                self.close_edge(target);
            }
            _ => {}
        }
        let next = pc + 1;
        if self.blocks.contains_key(&next) && self.falls_into(next) {
            self.close_edge(next);
        }
    }

    pub(super) fn finish_cold_blocks(&mut self) {
        self.builder.switch_to_block(self.fault);
        let parameters = self.builder.block_params(self.fault).to_vec();
        for (value, at) in parameters.into_iter().zip([
            offset_of!(Machine<'_>, fault),
            offset_of!(Machine<'_>, fault_pc),
            offset_of!(Machine<'_>, fault_address),
        ]) {
            self.builder.ins().store(FLAGS, value, self.machine, at as i32);
        }
        self.store_budget();
        self.builder.ins().jump(self.unwind, &[]);
        self.builder.switch_to_block(self.unwind);
        let zero = self.builder.ins().iconst(types::I64, 0);
        match self.form {
            Form::Entry => self.builder.ins().return_(&[zero]),
            Form::Local => {
                let faulted = self.builder.ins().iconst(types::I64, FAULTED);
                self.builder.ins().return_(&[zero, faulted])
            }
        };
    }

    /// Translates one instruction; returns false if control does not reach the next.
    pub(super) fn instruction(&mut self, pc: u32, instruction: &Instruction) -> bool {
        match *instruction {
            Instruction::Alu { wide, op, dst, src } => self.alu(wide, op, dst, src),
            Instruction::Negate { wide, dst } => {
                let value = self.get_sized(dst, wide);
                let value = self.builder.ins().ineg(value);
                self.set_sized(dst, value);
            }
            Instruction::SignExtend { wide, width, dst, src } => {
                let value = self.get(src);
                let value = self.narrow(value, width);
                let ty = if wide { types::I64 } else { types::I32 };
                let value = self.builder.ins().sextend(ty, value);
                self.set_sized(dst, value);
            }
            Instruction::Endian { swap, width, dst } => self.endian(swap, width, dst),
            Instruction::LoadConstant { dst, value } => {
                let value = self.builder.ins().iconst(types::I64, value as i64);
                self.set(dst, value);
            }
            Instruction::ConstantTail => {}
            Instruction::Load { width, signed, dst, base, offset } => {
                let address = self.checked_address(pc, base, offset, width);
                let value = self.builder.ins().load(int_type(width), FLAGS, address, 0);
                let value =
                    if signed { self.builder.ins().sextend(types::I64, value) } else { value };
                self.set_sized(dst, value);
            }
            Instruction::Store { width, base, offset, src } => {
                let address = self.checked_address(pc, base, offset, width);
                let place = self.get(base);
                self.check_write(pc, place, offset.into(), width.bytes() as i64);
                let value = self.operand(src, true);
                let value = self.narrow(value, width);
                self.builder.ins().store(FLAGS, value, address, 0);
            }
            Instruction::Atomic { op, fetch, wide, base, offset, src } => {
                self.atomic(pc, (op, fetch, wide), (base, offset), src);
            }
            Instruction::Jump { target } => {
                self.jump(pc, target);
                return false;
            }
            Instruction::Branch { wide, condition, dst, src, target } => {
                self.branch(pc, wide, condition, (dst, src), target);
            }
            Instruction::CallHelper { helper } => self.call_helper(pc, helper),
            Instruction::CallLocal { target } => self.call_local(pc, target),
            Instruction::Exit => {
                self.exit();
                return false;
            }
        }
        true
    }

    pub(super) fn get(&mut self, register: Register) -> Value {
        self.builder.use_var(self.registers[register.index()])
    }

    pub(super) fn set(&mut self, register: Register, value: Value) {
        self.builder.def_var(self.registers[register.index()], value);
    }

    /// A register's 64-bit value, or its lower 32 bits.
    pub(super) fn get_sized(&mut self, register: Register, wide: bool) -> Value {
        let value = self.get(register);
        if wide { value } else { self.builder.ins().ireduce(types::I32, value) }
    }

    /// Zero-extends a narrower value into a register.
    pub(super) fn set_sized(&mut self, register: Register, value: Value) {
        let wide = self.builder.func.dfg.value_type(value) == types::I64;
        let value = if wide { value } else { self.builder.ins().uextend(types::I64, value) };
        self.set(register, value);
    }

    pub(super) fn operand(&mut self, operand: Operand, wide: bool) -> Value {
        match operand {
            Operand::Register(register) => self.get_sized(register, wide),
            Operand::Immediate(value) if wide => {
                self.builder.ins().iconst(types::I64, i64::from(value))
            }
            Operand::Immediate(value) => {
                self.builder.ins().iconst(types::I32, i64::from(value as u32))
            }
        }
    }

    pub(super) fn narrow(&mut self, value: Value, width: Width) -> Value {
        match width {
            Width::Bits64 => value,
            _ => self.builder.ins().ireduce(int_type(width), value),
        }
    }

    pub(super) fn alu(&mut self, wide: bool, op: AluOp, dst: Register, src: Operand) {
        if let (AluOp::Mov, Operand::Immediate(value)) = (op, src) {
            // A single constant, so that `constant` finds it.
            let value = if wide { i64::from(value) } else { i64::from(value as u32) };
            let value = self.builder.ins().iconst(types::I64, value);
            return self.set(dst, value);
        }
        let b = self.operand(src, wide);
        if op == AluOp::Mov {
            return self.set_sized(dst, b);
        }
        let a = self.get_sized(dst, wide);
        let ins = self.builder.ins();
        let value = match op {
            AluOp::Add => ins.iadd(a, b),
            AluOp::Sub => ins.isub(a, b),
            AluOp::Mul => ins.imul(a, b),
            AluOp::Or => ins.bor(a, b),
            AluOp::And => ins.band(a, b),
            AluOp::Xor => ins.bxor(a, b),
            AluOp::Lsh => ins.ishl(a, b),
            AluOp::Rsh => ins.ushr(a, b),
            AluOp::Arsh => ins.sshr(a, b),
            AluOp::Div | AluOp::Mod => self.divide(op == AluOp::Div, a, b),
            AluOp::SignedDiv | AluOp::SignedMod => self.divide_signed(op == AluOp::SignedDiv, a, b),
            AluOp::Mov => b,
        };
        self.set_sized(dst, value);
    }

    /// Division by zero gives 0, modulo by zero the dividend (RFC 9669 §4.1).
    pub(super) fn divide(&mut self, quotient: bool, a: Value, b: Value) -> Value {
        let ty = self.builder.func.dfg.value_type(a);
        let zero = self.builder.ins().iconst(ty, 0);
        let one = self.builder.ins().iconst(ty, 1);
        let by_zero = self.builder.ins().icmp(IntCC::Equal, b, zero);
        let divisor = self.builder.ins().select(by_zero, one, b);
        if quotient {
            let quotient = self.builder.ins().udiv(a, divisor);
            self.builder.ins().select(by_zero, zero, quotient)
        } else {
            let remainder = self.builder.ins().urem(a, divisor);
            self.builder.ins().select(by_zero, a, remainder)
        }
    }

    /// As `divide`. The minimum divided by -1, which traps on some machines, gives itself and the remainder 0: the
    /// negated dividend.
    pub(super) fn divide_signed(&mut self, quotient: bool, a: Value, b: Value) -> Value {
        let ty = self.builder.func.dfg.value_type(a);
        let zero = self.builder.ins().iconst(ty, 0);
        let one = self.builder.ins().iconst(ty, 1);
        let by_zero = self.builder.ins().icmp(IntCC::Equal, b, zero);
        let by_minus_one = self.builder.ins().icmp_imm_s(IntCC::Equal, b, -1);
        let special = self.builder.ins().bor(by_zero, by_minus_one);
        let divisor = self.builder.ins().select(special, one, b);
        if quotient {
            let quotient = self.builder.ins().sdiv(a, divisor);
            let negated = self.builder.ins().ineg(a);
            let quotient = self.builder.ins().select(by_minus_one, negated, quotient);
            self.builder.ins().select(by_zero, zero, quotient)
        } else {
            let remainder = self.builder.ins().srem(a, divisor);
            self.builder.ins().select(by_zero, a, remainder)
        }
    }

    pub(super) fn endian(&mut self, swap: bool, width: Width, dst: Register) {
        let value = self.get(dst);
        let value = self.narrow(value, width);
        let value = if swap { self.builder.ins().bswap(value) } else { value };
        self.set_sized(dst, value);
    }

    pub(super) fn charge(&mut self, cost: i64, pc: u32) {
        let cost = self.builder.ins().iconst(types::I64, cost);
        self.charge_value(cost, pc);
    }

    /// Neither budget nor cost is negative.
    pub(super) fn charge_value(&mut self, cost: Value, pc: u32) {
        let budget = self.builder.use_var(self.budget);
        // Compares before subtracting: a comparison with 0 afterwards would be one more instruction.
        let spent = self.builder.ins().icmp(IntCC::UnsignedLessThan, budget, cost);
        self.fault_if(spent, FAULT_BUDGET, pc, Fault::Nowhere);
        let left = self.builder.ins().isub(budget, cost);
        self.builder.def_var(self.budget, left);
    }

    /// Pays for a scan that is left, and records the start of a scan that is entered.
    pub(super) fn cross(&mut self, pc: u32, next: u32) {
        let Some(crossing) = self.program.crossing(pc, next) else { return };
        if let Some(scan) = crossing.left {
            let (from, to) = (self.builder.use_var(self.scanned_from), self.get(scan.register));
            let (less, more) = if scan.step > 0 { (from, to) } else { (to, from) };
            let way = self.builder.ins().isub(more, less);
            let turns = self.builder.ins().udiv_imm_u(way, i64::from(scan.step.unsigned_abs()));
            let paid_turns = self.builder.ins().iadd_imm_s(turns, 1);
            let cost = self.builder.ins().imul_imm_s(paid_turns, scan.turn);
            let cost = self.builder.ins().iadd_imm_s(cost, scan.toll);
            self.charge_value(cost, pc);
        }
        if let Some(scan) = crossing.entered {
            let from = self.get(scan.register);
            self.builder.def_var(self.scanned_from, from);
        }
    }

    pub(super) fn jump(&mut self, pc: u32, target: u32) {
        if let Some(cost) = self.program.jump_cost(pc, target) {
            self.charge(cost, pc);
        }
        self.cross(pc, target);
        self.builder.ins().jump(self.blocks[&target], &[]);
        self.close_edge(target);
    }

    pub(super) fn condition(
        &mut self,
        wide: bool,
        condition: Condition,
        (dst, src): (Register, Operand),
    ) -> Value {
        let a = self.get_sized(dst, wide);
        let b = self.operand(src, wide);
        match int_condition(condition) {
            Some(code) => self.builder.ins().icmp(code, a, b),
            None => self.builder.ins().band(a, b),
        }
    }

    /// Translates a branch over one arithmetic instruction, and that instruction, to a select.
    pub(super) fn select(&mut self, branch: &Instruction, pc: u32) {
        let skipped = self.program.instructions()[pc as usize + 1];
        let (
            Instruction::Branch { wide, condition, dst, src, .. },
            Instruction::Alu { dst: changed, .. },
        ) = (*branch, skipped)
        else {
            unreachable!("`selects` holds only such pairs");
        };
        let skips = self.condition(wide, condition, (dst, src));
        let old = self.get(changed);
        self.instruction(pc + 1, &skipped);
        let new = self.get(changed);
        let value = self.builder.ins().select(skips, old, new);
        self.set(changed, value);
    }

    pub(super) fn branch(
        &mut self,
        pc: u32,
        wide: bool,
        condition: Condition,
        (dst, src): (Register, Operand),
        target: u32,
    ) {
        let holds = self.condition(wide, condition, (dst, src));
        let next = self.builder.create_block();
        let is_free = self.program.jump_cost(pc, target).is_none()
            && self.program.crossing(pc, target).is_none();
        if !is_free {
            let edge = self.builder.create_block();
            self.builder.ins().brif(holds, edge, &[], next, &[]);
            self.builder.switch_to_block(edge);
            self.builder.seal_block(edge);
            self.jump(pc, target);
            self.builder.switch_to_block(next);
            self.builder.seal_block(next);
        } else {
            self.builder.ins().brif(holds, self.blocks[&target], &[], next, &[]);
            self.close_edge(target);
            self.builder.switch_to_block(next);
            self.builder.seal_block(next);
        }
    }

    pub(super) fn load_machine(&mut self, ty: Type, at: usize) -> Value {
        self.builder.ins().load(ty, FLAGS, self.machine, at as i32)
    }

    pub(super) fn store_budget(&mut self) {
        let budget = self.builder.use_var(self.budget);
        let at = offset_of!(Machine<'_>, budget) as i32;
        self.builder.ins().store(FLAGS, budget, self.machine, at);
    }

    pub(super) fn unwind_if(&mut self, condition: Value) {
        let next = self.builder.create_block();
        self.builder.ins().brif(condition, self.unwind, &[], next, &[]);
        self.builder.switch_to_block(next);
        self.builder.seal_block(next);
    }

    pub(super) fn clear_argument_registers(&mut self) {
        let zero = self.builder.ins().iconst(types::I64, 0);
        for register in &self.registers[1..6] {
            self.builder.def_var(*register, zero);
        }
    }

    pub(super) fn call_local(&mut self, pc: u32, target: u32) {
        self.charge(self.program.call_cost(target), pc);
        let frame = self.get(Register::FRAME);
        let frame = self.builder.ins().iadd_imm_s(frame, -(FRAME_BYTES as i64));
        let base = GUEST_BASE as i64;
        let overflow = self.builder.ins().icmp_imm_s(IntCC::Equal, frame, base);
        self.fault_if(overflow, FAULT_STACK, pc, Fault::At(frame, 0));
        let budget = self.builder.use_var(self.budget);
        let mut arguments = vec![self.machine, frame, budget];
        arguments.extend((1..6).map(|index| self.builder.use_var(self.registers[index])));
        let call = self.builder.ins().call(self.callees.locals[&target], &arguments);
        let [result, budget] = *self.builder.inst_results(call) else {
            unreachable!("local functions return two values");
        };
        let faulted = self.builder.ins().icmp_imm_s(IntCC::SignedLessThan, budget, 0);
        self.unwind_if(faulted);
        self.builder.def_var(self.budget, budget);
        self.set(Register::R0, result);
        self.clear_argument_registers();
    }

    pub(super) fn exit(&mut self) {
        let result = self.get(Register::R0);
        match self.form {
            Form::Entry => {
                self.store_budget();
                self.builder.ins().return_(&[result]);
            }
            Form::Local => {
                let budget = self.builder.use_var(self.budget);
                self.builder.ins().return_(&[result, budget]);
            }
        }
    }
}

/// Arithmetic that costs less to do in vain than a mispredicted branch.
fn is_cheap(instruction: &Instruction) -> bool {
    use AluOp::{Div, Mod, SignedDiv, SignedMod};
    matches!(
        instruction,
        Instruction::Alu { op, .. } if !matches!(op, Div | Mod | SignedDiv | SignedMod)
    )
}

fn int_type(width: Width) -> Type {
    match width {
        Width::Bits8 => types::I8,
        Width::Bits16 => types::I16,
        Width::Bits32 => types::I32,
        Width::Bits64 => types::I64,
    }
}

/// None for the bit test, which is not a comparison.
fn int_condition(condition: Condition) -> Option<IntCC> {
    Some(match condition {
        Condition::Eq => IntCC::Equal,
        Condition::Ne => IntCC::NotEqual,
        Condition::Set => return None,
        Condition::Gt => IntCC::UnsignedGreaterThan,
        Condition::Ge => IntCC::UnsignedGreaterThanOrEqual,
        Condition::Lt => IntCC::UnsignedLessThan,
        Condition::Le => IntCC::UnsignedLessThanOrEqual,
        Condition::Sgt => IntCC::SignedGreaterThan,
        Condition::Sge => IntCC::SignedGreaterThanOrEqual,
        Condition::Slt => IntCC::SignedLessThan,
        Condition::Sle => IntCC::SignedLessThanOrEqual,
    })
}
