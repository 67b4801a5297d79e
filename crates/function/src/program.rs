//! Checked programs: properties that both engines may rely on.
//!
//! The checks are structural (RFC 9669 §3–5): known opcodes, existing registers, zero reserved fields, jumps to
//! instructions of the same function, calls to functions and helpers that exist, no path past the end. Memory accesses
//! are checked at run time.

use crate::abi::{self, CALL_EFFORT, MAX_CALLS, MAX_EFFORT, MAX_INSTRUCTIONS, MAX_JUMPS_BACK};
use crate::cost::Costs;
use crate::helper::Helper;
use crate::instruction::{AluOp, AtomicOp, Condition, Instruction, Operand, Register, Width};
use crate::map::MapDefinition;
use crate::source::SourceMap;
use crate::statics::Statics;
use crate::strided_loop::{Scan, Scans};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Prefix of the input of digests. Must change if the same code gets another meaning.
const DIGEST_OF: &[u8] = b"bpfof program 1\0";

/// The reason why a program was refused, and its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("instruction {pc}: {problem}")]
pub struct ProgramError {
    /// Index of the instruction, in 8-byte slots.
    pub pc: u32,
    /// The defect.
    pub problem: Problem,
}

/// Said of limits on compile time.
const TWICE: &str = " (those of an entry that is also called count twice)";

/// Defects of an instruction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The program has no instructions or is not a whole number of slots.
    #[error("the program is empty or not a multiple of 8 bytes")]
    Length,
    /// More than [`MAX_INSTRUCTIONS`].
    #[error("the program has more than {MAX_INSTRUCTIONS} instructions")]
    TooLong,
    /// More than [`MAX_CALLS`]; those of an entry that is also called count twice.
    #[error("the program has more than {MAX_CALLS} calls of functions and helpers{TWICE}")]
    TooManyCalls,
    /// More than [`MAX_JUMPS_BACK`]; those of an entry that is also called count twice.
    #[error("the program has more than {MAX_JUMPS_BACK} jumps backwards{TWICE}")]
    TooManyLoops,
    /// More than [`MAX_EFFORT`]; an entry that is also called counts twice.
    #[error(
        "the program's instructions and {CALL_EFFORT} times its calls are more than {MAX_EFFORT}\
         {TWICE}"
    )]
    TooMuch,
    /// Not an instruction of RFC 9669 (the deprecated packet access is not supported).
    #[error("opcode {0:#04x} is not an instruction this target runs (compile with -mcpu=v3 or v4)")]
    UnknownOpcode(u8),
    /// r11 to r15, or a write to r10.
    #[error("register r{0} cannot be used here")]
    Register(u8),
    /// A field that must be zero is not, or one that selects an instruction has no meaning.
    #[error("a field of the instruction has a value that RFC 9669 does not define")]
    Reserved,
    /// A jump or call leaves its function or hits the middle of a 16-byte instruction.
    #[error("jump or call to {0}, which is not an instruction of this function")]
    Target(i64),
    /// A helper that does not exist.
    #[error("helper {0} does not exist (see functions/include/bpfof.h)")]
    UnknownHelper(i32),
    /// A function's last instruction lets execution run past its end.
    #[error("execution can run past the end of the function")]
    FallsThrough,
    /// A 64-bit constant that refers to a map or data section.
    #[error("reference to a map or data section; pass constants in code or in scratch")]
    DataReference,
}

/// A checked program: the entry function at slot 0, followed by the functions it calls.
#[derive(Clone, Debug)]
pub struct Program {
    instructions: Vec<Instruction>,
    functions: Vec<Range<u32>>,
    sources: SourceMap,
    statics: Statics,
    lowest: u64,
    maps: Arc<[MapDefinition]>,
    costs: Costs,
    scans: Scans,
    digest: [u8; 32],
}

impl Program {
    /// Checks a program: `code` is 8-byte slots in the encoding of RFC 9669 §3, little-endian,
    /// local call targets relative to the next slot.
    pub fn parse(code: &[u8]) -> Result<Program, ProgramError> {
        let (slots, rest) = code.as_chunks::<8>();
        if slots.is_empty() || !rest.is_empty() {
            return Err(ProgramError { pc: 0, problem: Problem::Length });
        }
        if slots.len() > MAX_INSTRUCTIONS {
            let pc = MAX_INSTRUCTIONS as u32;
            return Err(ProgramError { pc, problem: Problem::TooLong });
        }
        let mut instructions = Vec::with_capacity(slots.len());
        while instructions.len() < slots.len() {
            let pc = instructions.len();
            let decoded =
                decode(slots, pc).map_err(|problem| ProgramError { pc: pc as u32, problem })?;
            instructions.push(decoded);
            if matches!(decoded, Instruction::LoadConstant { .. }) {
                instructions.push(Instruction::ConstantTail);
            }
        }
        let functions = split_functions(&instructions);
        let workspace = Instruction::CallHelper { helper: Helper::Workspace };
        let uses_workspace = instructions.contains(&workspace);
        let lowest = if uses_workspace { abi::WORKSPACE } else { abi::GUEST_BASE };
        let mut program = Program {
            instructions,
            functions,
            sources: SourceMap::default(),
            statics: Statics::default(),
            lowest,
            maps: Arc::default(),
            costs: Costs::default(),
            scans: Scans::default(),
            digest: Sha256::new().chain_update(DIGEST_OF).chain_update(code).finalize().into(),
        };
        program.check_flow()?;
        program.costs = Costs::of(&program.instructions, &program.functions);
        program.scans = Scans::find(&program.instructions, &program.functions, &program.costs);
        Ok(program)
    }

    /// The instructions, one per 8-byte slot.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Sets the source lines.
    pub fn set_sources(&mut self, sources: SourceMap) {
        self.sources = sources;
    }

    /// The program with these source lines.
    pub fn with_sources(self, sources: SourceMap) -> Program {
        Program { sources, ..self }
    }

    /// The program with its static data, whose addresses its instructions already have.
    pub(crate) fn with_statics(self, statics: Statics) -> Program {
        let constant_bytes = statics.constants().end - statics.constants().start;
        let digest = Sha256::new()
            .chain_update(self.digest)
            .chain_update(constant_bytes.to_le_bytes())
            .chain_update(statics.image());
        Program { statics, digest: digest.finalize().into(), ..self }
    }

    /// The lowest guest address that it may access: [`abi::WORKSPACE`] if it calls `bpfof_workspace` somewhere, else
    /// [`abi::GUEST_BASE`].
    pub fn lowest_address(&self) -> u64 {
        self.lowest
    }

    /// The program with the maps that it refers to, in the order of their handles.
    pub(crate) fn with_maps(self, maps: Vec<MapDefinition>) -> Program {
        let mut digest = Sha256::new().chain_update(self.digest);
        for map in &maps {
            let sizes = [map.key_bytes() as u32, map.value_bytes() as u32, map.max_entries()];
            digest.update((map.kind() as u32).to_le_bytes());
            digest.update(sizes.map(u32::to_le_bytes).as_flattened());
            digest.update((map.name().len() as u32).to_le_bytes());
            digest.update(map.name());
        }
        Program { maps: maps.into(), digest: digest.finalize().into(), ..self }
    }

    /// SHA-256 of everything that determines what the program does: instructions, static data, maps. Name, source lines
    /// and symbols are not included, so a program that was compiled with other paths has the same digest.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// The maps it uses, in the order of their handles (see [`MAPS`](crate::abi::MAPS)).
    pub fn maps(&self) -> &[MapDefinition] {
        &self.maps
    }

    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        let slots =
            self.instructions.capacity() * (size_of::<Instruction>() + 2 * size_of::<u64>() + 1);
        let functions = self.functions.len() * 2 * size_of::<Range<u32>>();
        let maps = self.maps.len() * size_of::<MapDefinition>();
        slots + functions + maps + self.statics.bytes() + self.sources.memory_bytes()
    }

    /// Its static data.
    pub fn statics(&self) -> &Statics {
        &self.statics
    }

    /// The source lines of its instructions, as far as the object has them.
    pub fn sources(&self) -> &SourceMap {
        &self.sources
    }

    /// The functions as ranges of slots, the entry first, in order and without gaps.
    pub fn functions(&self) -> &[Range<u32>] {
        &self.functions
    }

    /// Price that a call of the function at `target` pays before it runs, in [units](crate::cost): the most expensive
    /// path forward through it. The price of the entry function is paid when the program is called.
    pub fn call_cost(&self, target: u32) -> i64 {
        self.functions
            .binary_search_by_key(&target, |function| function.start)
            .map_or(0, |index| self.costs.call(index))
    }

    /// Price of executing a slot once, in [units](crate::cost), without the function or helper that it calls.
    pub(crate) fn cost(&self, pc: u32) -> i64 {
        self.costs.own(pc)
    }

    /// Price of a jump from `pc` to `target`, in [units](crate::cost), if it goes backwards: the most expensive path
    /// from `target` to `pc`. Any cycle goes back as far as it goes forward, so the sum bounds what is executed. None
    /// within a scan, which is paid for when it is left.
    pub fn jump_cost(&self, pc: u32, target: u32) -> Option<i64> {
        let in_scan = self.scans.at(pc).is_some_and(|scan| self.scans.at(target) == Some(scan));
        (target <= pc && !in_scan).then(|| self.costs.jump(pc, target))
    }

    /// The scan that a function begins in, if its first instruction belongs to one.
    #[inline]
    pub(crate) fn scan_at_start(&self, function: u32) -> Option<Scan> {
        self.scans.at(function).map(|index| self.scans.get(index))
    }

    /// Whether it has strided loops.
    pub(crate) fn has_scans(&self) -> bool {
        self.scans.any()
    }

    /// Whether an instruction belongs to a strided loop.
    #[cfg(feature = "fuzz")]
    pub(crate) fn is_in_scan(&self, pc: u32) -> bool {
        self.scans.at(pc).is_some()
    }

    /// The scans that are left and entered when control goes from `pc` to `next`, if any.
    #[inline]
    pub(crate) fn crossing(&self, pc: u32, next: u32) -> Option<Crossing> {
        let [from, to] = [pc, next].map(|pc| self.scans.at(pc));
        if from == to {
            return None;
        }
        let scan = |index: Option<usize>| index.map(|index| self.scans.get(index));
        Some(Crossing { left: scan(from), entered: scan(to) })
    }

    fn check_flow(&self) -> Result<(), ProgramError> {
        for function in &self.functions {
            for pc in function.clone() {
                let instruction = self.instructions[pc as usize];
                if let Some(target) = instruction.jump_target() {
                    self.check_target(pc, target, function)?;
                }
            }
            let last = function.end - 1;
            let ends = matches!(
                self.instructions[last as usize],
                Instruction::Exit | Instruction::Jump { .. }
            );
            if !ends {
                return Err(ProgramError { pc: last, problem: Problem::FallsThrough });
            }
        }
        self.check_effort()
    }

    fn check_target(
        &self,
        pc: u32,
        target: u32,
        function: &Range<u32>,
    ) -> Result<(), ProgramError> {
        let lands = function.contains(&target)
            && self.instructions[target as usize] != Instruction::ConstantTail;
        if lands {
            return Ok(());
        }
        Err(ProgramError { pc, problem: Problem::Target(i64::from(target)) })
    }

    fn check_effort(&self) -> Result<(), ProgramError> {
        let calls_entry = |i: &Instruction| matches!(i, Instruction::CallLocal { target: 0 });
        // An entry that is also called is compiled in both forms.
        let entry = match self.instructions.iter().any(calls_entry) {
            true => self.functions[0].len(),
            false => 0,
        };
        let slots = self.instructions.len() + entry;
        let (mut calls, mut jumps_back) = (0, 0);
        for (pc, instruction) in self.instructions.iter().enumerate() {
            let times = if pc < entry { 2 } else { 1 };
            let is_back = |target: u32| target as usize <= pc;
            jumps_back += times * usize::from(instruction.jump_target().is_some_and(is_back));
            if jumps_back > MAX_JUMPS_BACK {
                return Err(ProgramError { pc: pc as u32, problem: Problem::TooManyLoops });
            }
            calls += times * usize::from(instruction.is_call());
            if calls > MAX_CALLS {
                return Err(ProgramError { pc: pc as u32, problem: Problem::TooManyCalls });
            }
            if slots + CALL_EFFORT * calls > MAX_EFFORT {
                return Err(ProgramError { pc: pc as u32, problem: Problem::TooMuch });
            }
            let Instruction::CallLocal { target } = *instruction else { continue };
            if self.instructions[target as usize] == Instruction::ConstantTail {
                let problem = Problem::Target(i64::from(target));
                return Err(ProgramError { pc: pc as u32, problem });
            }
        }
        Ok(())
    }
}

/// See [`Program::crossing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crossing {
    pub(crate) left: Option<Scan>,
    pub(crate) entered: Option<Scan>,
}

/// Splits a program into functions: each goes from its first slot, a call's target, to the next function.
fn split_functions(instructions: &[Instruction]) -> Vec<Range<u32>> {
    let mut starts = BTreeSet::from([0]);
    starts.extend(instructions.iter().filter_map(|instruction| match *instruction {
        Instruction::CallLocal { target } => Some(target),
        _ => None,
    }));
    let ends = starts.iter().skip(1).copied().chain([instructions.len() as u32]);
    starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
}

/// The fields of one slot (RFC 9669 §3.1).
struct Slot {
    opcode: u8,
    dst: u8,
    src: u8,
    offset: i16,
    immediate: i32,
}

impl Slot {
    fn new(bytes: &[u8; 8]) -> Slot {
        let [opcode, registers, o0, o1, i0, i1, i2, i3] = *bytes;
        Slot {
            opcode,
            dst: registers & 0xf,
            src: registers >> 4,
            offset: i16::from_le_bytes([o0, o1]),
            immediate: i32::from_le_bytes([i0, i1, i2, i3]),
        }
    }

    fn readable(number: u8) -> Result<Register, Problem> {
        Register::new(number).ok_or(Problem::Register(number))
    }

    fn writable(number: u8) -> Result<Register, Problem> {
        match Register::new(number) {
            Some(Register::FRAME) | None => Err(Problem::Register(number)),
            Some(register) => Ok(register),
        }
    }

    fn require(condition: bool) -> Result<(), Problem> {
        if condition { Ok(()) } else { Err(Problem::Reserved) }
    }

    /// The source operand of arithmetic and branches (RFC 9669 §3.3: bit 3 of the opcode).
    fn operand(&self) -> Result<Operand, Problem> {
        if self.opcode & 0x08 == 0 {
            Slot::require(self.src == 0)?;
            return Ok(Operand::Immediate(self.immediate));
        }
        Ok(Operand::Register(self.source_register()?))
    }

    fn source_register(&self) -> Result<Register, Problem> {
        Slot::require(self.immediate == 0)?;
        Slot::readable(self.src)
    }

    fn width(&self) -> Width {
        match self.opcode & 0x18 {
            0x00 => Width::Bits32,
            0x08 => Width::Bits16,
            0x10 => Width::Bits8,
            _ => Width::Bits64,
        }
    }
}

/// The instruction at a slot.
pub(crate) fn decode(slots: &[[u8; 8]], pc: usize) -> Result<Instruction, Problem> {
    let slot = Slot::new(&slots[pc]);
    match slot.opcode & 0x07 {
        0x00 => decode_constant(&slot, slots.get(pc + 1)),
        0x01..=0x03 => decode_memory(&slot),
        0x04 | 0x07 => decode_alu(&slot),
        _ => decode_jump(&slot, pc as i64, slots.len() as i64),
    }
}

/// RFC 9669 §5.4: the only instruction of two slots.
fn decode_constant(slot: &Slot, tail: Option<&[u8; 8]>) -> Result<Instruction, Problem> {
    if slot.opcode != 0x18 {
        return Err(Problem::UnknownOpcode(slot.opcode));
    }
    let tail = Slot::new(tail.ok_or(Problem::FallsThrough)?);
    if slot.src != 0 {
        return Err(Problem::DataReference);
    }
    let clean = (tail.opcode, tail.dst, tail.src, tail.offset, slot.offset) == (0, 0, 0, 0, 0);
    Slot::require(clean)?;
    let value = u64::from(slot.immediate as u32) | u64::from(tail.immediate as u32) << 32;
    Ok(Instruction::LoadConstant { dst: Slot::writable(slot.dst)?, value })
}

/// RFC 9669 §5.1–5.3.
fn decode_memory(slot: &Slot) -> Result<Instruction, Problem> {
    let (width, offset) = (slot.width(), slot.offset);
    match slot.opcode & !0x18 {
        0x61 => {
            Slot::require(slot.immediate == 0)?;
            let (dst, base) = (Slot::writable(slot.dst)?, Slot::readable(slot.src)?);
            Ok(Instruction::Load { width, signed: false, dst, base, offset })
        }
        0x81 if width != Width::Bits64 => {
            Slot::require(slot.immediate == 0)?;
            let (dst, base) = (Slot::writable(slot.dst)?, Slot::readable(slot.src)?);
            Ok(Instruction::Load { width, signed: true, dst, base, offset })
        }
        0x62 => {
            Slot::require(slot.src == 0)?;
            let (base, src) = (Slot::readable(slot.dst)?, Operand::Immediate(slot.immediate));
            Ok(Instruction::Store { width, base, offset, src })
        }
        0x63 => {
            Slot::require(slot.immediate == 0)?;
            let src = Operand::Register(Slot::readable(slot.src)?);
            Ok(Instruction::Store { width, base: Slot::readable(slot.dst)?, offset, src })
        }
        0xc3 => decode_atomic(slot, width),
        _ => Err(Problem::UnknownOpcode(slot.opcode)),
    }
}

fn decode_atomic(slot: &Slot, width: Width) -> Result<Instruction, Problem> {
    let wide = match width {
        Width::Bits32 => false,
        Width::Bits64 => true,
        _ => return Err(Problem::UnknownOpcode(slot.opcode)),
    };
    let fetch = slot.immediate & 1 != 0;
    let op = match slot.immediate & !1 {
        0x00 => AtomicOp::Add,
        0x40 => AtomicOp::Or,
        0x50 => AtomicOp::And,
        0xa0 => AtomicOp::Xor,
        0xe0 if fetch => AtomicOp::Exchange,
        0xf0 if fetch => AtomicOp::CompareExchange,
        _ => return Err(Problem::Reserved),
    };
    let writes_source = fetch && op != AtomicOp::CompareExchange;
    let src = if writes_source { Slot::writable(slot.src) } else { Slot::readable(slot.src) }?;
    let base = Slot::readable(slot.dst)?;
    Ok(Instruction::Atomic { op, fetch, wide, base, offset: slot.offset, src })
}

/// RFC 9669 §4.1–4.2.
fn decode_alu(slot: &Slot) -> Result<Instruction, Problem> {
    let wide = slot.opcode & 0x07 == 0x07;
    let dst = Slot::writable(slot.dst)?;
    // The offset selects signed division and sign extension, and is zero otherwise.
    let op = match (slot.opcode >> 4, slot.offset) {
        (0x0, 0) => AluOp::Add,
        (0x1, 0) => AluOp::Sub,
        (0x2, 0) => AluOp::Mul,
        (0x3, 0) => AluOp::Div,
        (0x3, 1) => AluOp::SignedDiv,
        (0x4, 0) => AluOp::Or,
        (0x5, 0) => AluOp::And,
        (0x6, 0) => AluOp::Lsh,
        (0x7, 0) => AluOp::Rsh,
        (0x8, 0) => {
            Slot::require(slot.src == 0 && slot.immediate == 0 && slot.opcode & 0x08 == 0)?;
            return Ok(Instruction::Negate { wide, dst });
        }
        (0x9, 0) => AluOp::Mod,
        (0x9, 1) => AluOp::SignedMod,
        (0xa, 0) => AluOp::Xor,
        (0xb, 0) => AluOp::Mov,
        (0xb, bits) => return decode_sign_extend(slot, wide, dst, bits),
        (0xc, 0) => AluOp::Arsh,
        (0xd, 0) => return decode_endian(slot, wide, dst),
        (0x0..=0xd, _) => return Err(Problem::Reserved),
        _ => return Err(Problem::UnknownOpcode(slot.opcode)),
    };
    Ok(Instruction::Alu { wide, op, dst, src: slot.operand()? })
}

/// RFC 9669 §4.1: MOVSX, from a register only, to more bits than it comes from.
fn decode_sign_extend(
    slot: &Slot,
    wide: bool,
    dst: Register,
    bits: i16,
) -> Result<Instruction, Problem> {
    let width = match bits {
        8 => Width::Bits8,
        16 => Width::Bits16,
        32 if wide => Width::Bits32,
        _ => return Err(Problem::Reserved),
    };
    Slot::require(slot.opcode & 0x08 != 0)?;
    Ok(Instruction::SignExtend { wide, width, dst, src: slot.source_register()? })
}

/// RFC 9669 §4.2: the source bit selects big-endian; the wide class swaps on any machine.
fn decode_endian(slot: &Slot, wide: bool, dst: Register) -> Result<Instruction, Problem> {
    let big_endian = slot.opcode & 0x08 != 0;
    Slot::require(slot.src == 0 && !(wide && big_endian))?;
    let width = match slot.immediate {
        16 => Width::Bits16,
        32 => Width::Bits32,
        64 => Width::Bits64,
        _ => return Err(Problem::Reserved),
    };
    Ok(Instruction::Endian { swap: wide || big_endian, width, dst })
}

/// RFC 9669 §4.3.
fn decode_jump(slot: &Slot, pc: i64, len: i64) -> Result<Instruction, Problem> {
    let wide = slot.opcode & 0x07 == 0x05;
    let target = |distance: i64| {
        let target = pc + 1 + distance;
        if (0..len).contains(&target) { Ok(target as u32) } else { Err(Problem::Target(target)) }
    };
    let condition = match slot.opcode >> 4 {
        0x0 if slot.opcode == 0x05 => {
            Slot::require(slot.dst == 0 && slot.src == 0 && slot.immediate == 0)?;
            return Ok(Instruction::Jump { target: target(i64::from(slot.offset))? });
        }
        // The long jump: its distance is in the immediate.
        0x0 if slot.opcode == 0x06 => {
            Slot::require(slot.dst == 0 && slot.src == 0 && slot.offset == 0)?;
            return Ok(Instruction::Jump { target: target(i64::from(slot.immediate))? });
        }
        0x8 if slot.opcode == 0x85 => {
            Slot::require(slot.dst == 0 && slot.offset == 0)?;
            return match slot.src {
                0 => Helper::from_number(slot.immediate)
                    .map(|helper| Instruction::CallHelper { helper })
                    .ok_or(Problem::UnknownHelper(slot.immediate)),
                1 => Ok(Instruction::CallLocal { target: target(i64::from(slot.immediate))? }),
                _ => Err(Problem::Reserved),
            };
        }
        0x9 if slot.opcode == 0x95 => {
            let clean = (slot.dst, slot.src, slot.offset, slot.immediate) == (0, 0, 0, 0);
            Slot::require(clean)?;
            return Ok(Instruction::Exit);
        }
        0x1 => Condition::Eq,
        0x2 => Condition::Gt,
        0x3 => Condition::Ge,
        0x4 => Condition::Set,
        0x5 => Condition::Ne,
        0x6 => Condition::Sgt,
        0x7 => Condition::Sge,
        0xa => Condition::Lt,
        0xb => Condition::Le,
        0xc => Condition::Slt,
        0xd => Condition::Sle,
        _ => return Err(Problem::UnknownOpcode(slot.opcode)),
    };
    let dst = Slot::readable(slot.dst)?;
    let target = target(i64::from(slot.offset))?;
    Ok(Instruction::Branch { wide, condition, dst, src: slot.operand()?, target })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::MapKind;

    const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];

    fn problem(slots: &[[u8; 8]]) -> Problem {
        Program::parse(slots.as_flattened()).expect_err("must be refused").problem
    }

    #[test]
    fn the_digest_covers_code_statics_and_maps() {
        let parse = |constant| {
            let load = [0xb7, 0, 0, 0, constant, 0, 0, 0];
            Program::parse([load, EXIT].as_flattened()).expect("valid")
        };
        let map_of = |name, kind, value_bytes, entries| {
            MapDefinition::new(name, kind, (4, value_bytes), entries).expect("a map")
        };
        let map = |entries| map_of("counts", MapKind::Array, 8, entries);
        let finish = |program: Program, image: &[u8], constants, maps| {
            program.with_statics(Statics::new(image.to_vec(), constants)).with_maps(maps).digest()
        };
        let all = [
            finish(parse(0), &[], 0, vec![]),
            finish(parse(1), &[], 0, vec![]),
            finish(parse(0), &[0; 8], 0, vec![]),
            finish(parse(0), &[0; 8], 8, vec![]),
            finish(parse(0), &[1; 8], 8, vec![]),
            finish(parse(0), &[], 0, vec![map(1)]),
            finish(parse(0), &[], 0, vec![map(2)]),
            finish(parse(0), &[], 0, vec![map(1), map(2)]),
            finish(parse(0), &[], 0, vec![map(2), map(1)]),
            finish(parse(0), &[], 0, vec![map_of("other", MapKind::Array, 8, 1)]),
            finish(parse(0), &[], 0, vec![map_of("counts", MapKind::Hash, 8, 1)]),
            finish(parse(0), &[], 0, vec![map_of("counts", MapKind::Array, 16, 1)]),
        ];
        assert_eq!(BTreeSet::from(all).len(), all.len());
        let again = parse(0).with_sources(SourceMap::default());
        assert_eq!(finish(again, &[], 0, vec![]), all[0]);
    }

    #[test]
    fn hostile_shapes_are_refused_with_their_reason() {
        assert_eq!(problem(&[]), Problem::Length);
        assert_eq!(problem(&[[0xb7, 0, 0, 0, 1, 0, 0, 0]]), Problem::FallsThrough);
        assert_eq!(problem(&[[0xb7, 10, 0, 0, 1, 0, 0, 0], EXIT]), Problem::Register(10));
        assert_eq!(problem(&[[0xb7, 11, 0, 0, 1, 0, 0, 0], EXIT]), Problem::Register(11));
        assert_eq!(problem(&[[0x05, 0, 5, 0, 0, 0, 0, 0], EXIT]), Problem::Target(6));
        assert_eq!(problem(&[[0x05, 0, 0xf0, 0xff, 0, 0, 0, 0], EXIT]), Problem::Target(-15));
        assert_eq!(problem(&[[0x85, 0, 0, 0, 99, 0, 0, 0], EXIT]), Problem::UnknownHelper(99));
        assert_eq!(problem(&[[0xff; 8], EXIT]), Problem::Register(15));
        assert_eq!(problem(&[[0x18, 0, 0, 0, 0, 0, 0, 0]]), Problem::FallsThrough);
        assert_eq!(
            problem(&[[0x18, 0x10, 0, 0, 0, 0, 0, 0], [0; 8], EXIT]),
            Problem::DataReference
        );
        // Into the middle of a 64-bit constant, by jump and by call.
        let constant = [[0x18, 0, 0, 0, 1, 0, 0, 0], [0; 8]];
        let jump = [0x05, 0, 0xfe, 0xff, 0, 0, 0, 0];
        assert_eq!(problem(&[constant[0], constant[1], jump]), Problem::Target(1));
        let call = [0x85, 0x10, 0, 0, 0xfe, 0xff, 0xff, 0xff];
        assert!(Program::parse([constant[0], constant[1], call, EXIT].as_flattened()).is_err());
    }

    #[test]
    fn fields_without_a_meaning_are_refused() {
        let undefined = [
            // Only signed division has an offset, which is 1.
            [0x37, 0, 2, 0, 2, 0, 0, 0],
            [0x07, 0, 1, 0, 2, 0, 0, 0],
            // Sign extension: from an immediate, from 24 bits, from 32 to 32.
            [0xb7, 0, 8, 0, 2, 0, 0, 0],
            [0xbf, 0, 24, 0, 0, 0, 0, 0],
            [0xbc, 0, 32, 0, 0, 0, 0, 0],
            // Byte swaps: of 24 bits, with a source bit in the wide class.
            [0xd4, 0, 0, 0, 24, 0, 0, 0],
            [0xdf, 0, 0, 0, 16, 0, 0, 0],
            // Jumps with their distance in the wrong field.
            [0x05, 0, 0, 0, 1, 0, 0, 0],
            [0x06, 0, 1, 0, 0, 0, 0, 0],
            // Calls by BTF id; an atomic operation that does not exist, and one without fetch.
            [0x85, 0x20, 0, 0, 1, 0, 0, 0],
            [0xdb, 0, 0, 0, 0x10, 0, 0, 0],
            [0xdb, 0, 0, 0, 0xe0, 0, 0, 0],
        ];
        for slot in undefined {
            assert_eq!(problem(&[slot, EXIT]), Problem::Reserved, "{slot:02x?}");
        }
    }

    #[test]
    fn opcodes_without_an_instruction_are_refused() {
        // Packet access, a sign-extending load of 64 bits, byte-wide atomics, an indirect call.
        for opcode in [0x20, 0x28, 0x40, 0x50, 0x99, 0xd3, 0xcb, 0x8d, 0xe5, 0xe7] {
            let refused = problem(&[[opcode, 0, 0, 0, 0, 0, 0, 0], EXIT]);
            assert_eq!(refused, Problem::UnknownOpcode(opcode));
        }
    }

    #[test]
    fn functions_are_split_at_call_targets() {
        let call = [0x85, 0x10, 0, 0, 1, 0, 0, 0];
        let program = Program::parse([call, EXIT, EXIT].as_flattened()).expect("valid");
        assert_eq!(program.functions(), [0..2, 2..3]);
        assert_eq!(program.call_cost(2), 1);
        assert_eq!(program.call_cost(0), 8 + 1);
        assert_eq!(program.jump_cost(2, 2), Some(1));
        assert_eq!(program.jump_cost(0, 2), None);
    }

    #[test]
    fn calls_are_counted() {
        let calls = |count| [vec![[0x85, 0, 0, 0, 12, 0, 0, 0]; count], vec![EXIT]].concat();
        assert!(Program::parse(calls(MAX_CALLS).as_flattened()).is_ok());
        assert_eq!(problem(&calls(MAX_CALLS + 1)), Problem::TooManyCalls);
    }

    #[test]
    fn calls_take_the_place_of_other_instructions() {
        let program = |slots: usize, calls: usize| {
            let mut code = vec![[0xb7, 0, 0, 0, 0, 0, 0, 0]; slots - calls - 1];
            code.extend(vec![[0x85, 0, 0, 0, 12, 0, 0, 0]; calls]);
            [code, vec![EXIT]].concat()
        };
        let most = (MAX_EFFORT - MAX_INSTRUCTIONS) / CALL_EFFORT;
        let longest = program(MAX_INSTRUCTIONS, most);
        assert!(Program::parse(longest.as_flattened()).is_ok());
        assert_eq!(problem(&program(MAX_INSTRUCTIONS, most + 1)), Problem::TooMuch);
        let other = MAX_EFFORT - CALL_EFFORT * MAX_CALLS;
        assert!(Program::parse(program(other, MAX_CALLS).as_flattened()).is_ok());
        assert_eq!(problem(&program(other + 1, MAX_CALLS)), Problem::TooMuch);
    }

    /// It is compiled as the entry and as a function that is called.
    #[test]
    fn an_entry_that_is_called_counts_twice() {
        let program = |slots: usize| {
            let mut code = vec![[0xb7, 0, 0, 0, 0, 0, 0, 0]; slots - 2];
            let [o0, o1, o2, o3] = (1 - slots as i32).to_le_bytes();
            code.extend([[0x85, 0x10, 0, 0, o0, o1, o2, o3], EXIT]);
            code
        };
        // Its call counts twice as well.
        let most = MAX_EFFORT / 2 - CALL_EFFORT;
        assert!(Program::parse(program(most).as_flattened()).is_ok());
        assert_eq!(problem(&program(most + 1)), Problem::TooMuch);
    }

    #[test]
    fn jumps_backwards_have_a_limit() {
        // if r0 > 5 goto the start
        let back = |pc: usize| {
            let [o0, o1] = (-(pc as i16) - 1).to_le_bytes();
            [0x25, 0, o0, o1, 5, 0, 0, 0]
        };
        let program = |jumps: usize| {
            let start = vec![[0xb7, 0, 0, 0, 0, 0, 0, 0]];
            [start, (1..=jumps).map(back).collect(), vec![EXIT]].concat()
        };
        assert!(Program::parse(program(MAX_JUMPS_BACK).as_flattened()).is_ok());
        assert_eq!(problem(&program(MAX_JUMPS_BACK + 1)), Problem::TooManyLoops);
    }

    #[test]
    fn a_jump_may_not_cross_into_another_function() {
        let call = [0x85, 0x10, 0, 0, 1, 0, 0, 0];
        let jump = [0x05, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(problem(&[call, jump, EXIT]), Problem::Target(2));
    }
}
