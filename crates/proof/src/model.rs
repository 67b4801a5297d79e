//! The model of a storage function for the verifier.
//!
//! The verifier knows the programs that Linux attaches to network packets, and has a region for "packet and metadata":
//! a pointer to the start of the data, one to its end, and one to metadata right before the data. The memory of a call
//! from scratch on is such a region, because scratch and the data area are adjacent in the arena:
//!
//! ```text
//! ctx->scratch           ctx->data        ctx->data_end
//! │ 16 KiB of scratch, blocks of the hop before this one │ the block │
//! ```
//!
//! So the distance from data back to scratch is between known bounds, and everything between scratch and the end of the
//! block is accessible, whatever size of scratch the request declares. Static data is modelled as two "maps", of
//! constants and of variables.

use bpfof_function::abi::{self, context};
use bpfof_function::helper::Helper;
use bpfof_function::instruction::{
    AluOp, AtomicOp, Condition, Instruction, Operand, Register, Width,
};
use bpfof_function::{Program, Statics};
use prevail::cfg::label::Label;
use prevail::elf_loader::UnmarshalError;
use prevail::ir::syntax;
use prevail::linux::spec_prototypes::HelperPrototype;
use prevail::platform::EbpfPlatform;
use prevail::spec::config::{EbpfRuntimeConfig, EbpfVerifierOptions};
use prevail::spec::ebpf_base::EbpfCtxDescriptor;
use prevail::spec::type_descriptors::{
    EbpfMapDescriptor, EbpfMapType, EbpfMapValueType, EbpfProgramType, ProgramInfo,
};
use prevail::spec::vm_isa::AccessSize;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

/// "File descriptors" of the maps that stand for static data.
const CONSTANTS: i32 = 1;
const VARIABLES: i32 = 2;

static CONTEXT: EbpfCtxDescriptor = EbpfCtxDescriptor {
    size: context::BYTES as i32,
    data: context::DATA as i32,
    end: context::DATA_END as i32,
    meta: context::SCRATCH as i32,
};

/// Answers the verifier's questions about the platform on which programs run.
pub(crate) struct Platform {
    maps: [EbpfMapDescriptor; 2],
}

impl Platform {
    pub(crate) fn new(statics: &Statics) -> Platform {
        let map = |original_fd, range: Range<u64>| EbpfMapDescriptor {
            original_fd,
            value_size: (range.end - range.start) as u32,
            max_entries: 1,
            ..EbpfMapDescriptor::default()
        };
        let (constants, variables) = (statics.constants(), statics.variables());
        Platform { maps: [map(CONSTANTS, constants), map(VARIABLES, variables)] }
    }
}

/// Only the maps are used: the program is passed already translated, with its helpers resolved.
impl EbpfPlatform for Platform {
    fn get_program_type(&self, _section: &str, _path: &str) -> EbpfProgramType {
        program_type()
    }

    fn get_helper_prototype(&self, number: i32) -> &HelperPrototype {
        panic!("helper {number} is looked up by its number")
    }

    fn is_helper_usable(&self, _number: i32) -> bool {
        false
    }

    fn map_record_size(&self) -> usize {
        0
    }

    fn parse_maps_section(
        &mut self,
        _descriptors: &mut Vec<EbpfMapDescriptor>,
        _data: &[u8],
        _record_size: usize,
        _count: usize,
        _options: &EbpfVerifierOptions,
    ) {
    }

    fn resolve_inner_map_references(
        &self,
        _descriptors: &mut Vec<EbpfMapDescriptor>,
    ) -> Result<(), UnmarshalError> {
        Ok(())
    }

    fn get_map_descriptor(&self, fd: i32) -> Option<&EbpfMapDescriptor> {
        self.maps.iter().find(|map| map.original_fd == fd)
    }

    fn get_map_type(&self, number: u32) -> EbpfMapType {
        EbpfMapType {
            platform_specific_type: number,
            name: "static data".to_owned(),
            is_array: true,
            value_type: EbpfMapValueType::Any,
        }
    }

    fn supported_conformance_groups(&self) -> u32 {
        u32::MAX
    }
}

fn program_type() -> EbpfProgramType {
    EbpfProgramType {
        name: "bpfof".to_owned(),
        ctx_descriptor: Some(&CONTEXT),
        ..EbpfProgramType::default()
    }
}

pub(crate) fn program_info(platform: &Platform) -> ProgramInfo {
    ProgramInfo {
        map_descriptors: platform.maps.to_vec(),
        program_type: program_type(),
        ..ProgramInfo::default()
    }
}

pub(crate) fn options() -> EbpfVerifierOptions {
    EbpfVerifierOptions {
        runtime: EbpfRuntimeConfig {
            subprogram_stack_size: abi::FRAME_BYTES as i32,
            max_call_stack_frames: abi::MAX_FRAMES as i32,
            // The verifier requires packets to be smaller than this.
            max_packet_size: abi::MAX_HOP_BYTES as i32 + 1,
            // `entry_state` has all constraints.
            setup_constraints: false,
            ..EbpfRuntimeConfig::default()
        },
        ..EbpfVerifierOptions::default()
    }
}

/// The configuration for assertions. The verifier permits comparisons of pointers only up to the largest packet, so
/// that no sum wraps around. A loop over records may compute a pointer that is almost a record beyond the end.
/// Addresses here are small, so a megabyte more cannot wrap either.
pub(crate) fn checks(runtime: &EbpfRuntimeConfig) -> EbpfRuntimeConfig {
    EbpfRuntimeConfig { max_packet_size: 1 << 20, ..*runtime }
}

/// Constraints at the start of a call: r1 and r10, the distance from the data back to scratch, and the length of the
/// block, which is at least `data_min_bytes`.
pub(crate) fn entry_state(data_min_bytes: usize) -> BTreeSet<String> {
    let nearest = abi::DATA - abi::SCRATCH;
    let farthest = nearest + abi::MAX_HOP_BYTES as u64;
    let (context, top) = (abi::CONTEXT, abi::STACK_TOP);
    [
        "r1.type=ctx".to_owned(),
        "r1.ctx_offset=0".to_owned(),
        format!("r1.svalue={context}"),
        format!("r1.uvalue={context}"),
        "r10.type=stack".to_owned(),
        format!("r10.stack_offset={}", abi::MAX_FRAMES * abi::FRAME_BYTES),
        format!("r10.svalue={top}"),
        format!("r10.uvalue={top}"),
        format!("meta_offset=[-{farthest}, -{nearest}]"),
        format!("packet_size=[{data_min_bytes}, {}]", abi::MAX_HOP_BYTES),
    ]
    .into()
}

/// The instructions of the function that begins at `start`.
pub(crate) fn function(program: &Program, start: u32) -> &[Instruction] {
    let range = program.functions().iter().find(|function| function.start == start);
    range.map_or(&[], |range| &program.instructions()[range.start as usize..range.end as usize])
}

/// Registers that are zero when a local function begins. On Linux they have the caller's values.
const CLEARED: [u8; 5] = [0, 6, 7, 8, 9];
/// Distance of the labels of adjacent instructions: room for the instructions that clear registers.
const LABELS: u32 = 8;

/// The instructions of some functions, labelled.
pub(crate) fn instructions(program: &Program, used: &BTreeSet<u32>) -> syntax::InstructionSeq {
    let mut sequence = Vec::new();
    for start in used {
        if *start != 0 {
            let labels = (0..).map(|place| Label::new(begin(*start).from + place));
            sequence.extend(labels.zip(CLEARED.map(clear)).map(|(label, one)| (label, one, None)));
        }
        for (pc, instruction) in (*start..).zip(function(program, *start)) {
            let translated = translate(instruction, program.statics());
            sequence.extend(translated.map(|one| (label(pc), one, None)));
        }
    }
    sequence
}

fn clear(register: u8) -> syntax::Instruction {
    let (dst, v) = (syntax::Reg { v: register }, syntax::Value::Imm(syntax::Imm { v: 0 }));
    syntax::Instruction::Bin(syntax::Bin {
        op: syntax::BinOp::MOV,
        dst,
        v,
        is64: true,
        lddw: false,
    })
}

fn label(pc: u32) -> Label {
    Label::new((pc * LABELS) as i32)
}

/// Label of the start of a local function, before its registers are cleared.
fn begin(start: u32) -> Label {
    Label::new((start * LABELS) as i32 - CLEARED.len() as i32)
}

/// The instruction that a label, or a label of an edge from it, belongs to.
pub(crate) fn instruction(label: &Label) -> u32 {
    u32::try_from(label.from).unwrap_or_default() / LABELS
}

/// A called helper without a contract for the verifier.
pub(crate) fn unknown_helper(program: &Program, used: &BTreeSet<u32>) -> Option<Helper> {
    let code = used.iter().flat_map(|start| function(program, *start));
    code.filter_map(|instruction| match instruction {
        Instruction::CallHelper { helper } => Some(*helper),
        _ => None,
    })
    .find(|helper| contract(*helper).is_none())
}

fn register(register: Register) -> syntax::Reg {
    syntax::Reg { v: register.index() as u8 }
}

fn operand(operand: Operand) -> syntax::Value {
    match operand {
        Operand::Register(number) => syntax::Value::Reg(register(number)),
        Operand::Immediate(value) => syntax::Value::Imm(syntax::Imm { v: i64::from(value) as u64 }),
    }
}

fn access(width: Width, base: Register, offset: i16) -> syntax::Deref {
    let width = match width {
        Width::Bits8 => AccessSize::Byte,
        Width::Bits16 => AccessSize::Half,
        Width::Bits32 => AccessSize::Word,
        Width::Bits64 => AccessSize::DWord,
    };
    syntax::Deref { width, basereg: register(base), offset: offset.into() }
}

/// None for instructions that are never executed.
fn translate(instruction: &Instruction, statics: &Statics) -> Option<syntax::Instruction> {
    Some(match *instruction {
        Instruction::Alu { wide, op, dst, src } => arithmetic(alu(op), wide, dst, operand(src)),
        Instruction::SignExtend { wide, width, dst, src } => {
            let op = match width {
                Width::Bits8 => syntax::BinOp::MOVSX8,
                Width::Bits16 => syntax::BinOp::MOVSX16,
                Width::Bits32 | Width::Bits64 => syntax::BinOp::MOVSX32,
            };
            arithmetic(op, wide, dst, syntax::Value::Reg(register(src)))
        }
        Instruction::Negate { wide, dst } => unary(syntax::UnOp::NEG, wide, dst),
        Instruction::Endian { swap, width, dst } => unary(endian(swap, width), false, dst),
        Instruction::LoadConstant { dst, value } => constant(dst, value, statics),
        Instruction::ConstantTail => return None,
        Instruction::Load { width, signed, dst, base, offset } => {
            syntax::Instruction::Mem(syntax::Mem {
                access: access(width, base, offset),
                value: syntax::Value::Reg(register(dst)),
                is_load: true,
                is_signed: signed,
            })
        }
        Instruction::Store { width, base, offset, src } => syntax::Instruction::Mem(syntax::Mem {
            access: access(width, base, offset),
            value: operand(src),
            is_load: false,
            is_signed: false,
        }),
        Instruction::Atomic { op, fetch, wide, base, offset, src } => {
            let width = if wide { Width::Bits64 } else { Width::Bits32 };
            syntax::Instruction::Atomic(syntax::Atomic {
                op: atomic(op),
                fetch,
                access: access(width, base, offset),
                valreg: register(src),
            })
        }
        Instruction::Jump { target } => {
            syntax::Instruction::Jmp(syntax::Jmp { cond: None, target: label(target) })
        }
        Instruction::Branch { wide, condition: op, dst, src, target } => {
            let (left, right) = (register(dst), operand(src));
            let cond = syntax::Condition { op: condition(op), left, right, is64: wide };
            syntax::Instruction::Jmp(syntax::Jmp { cond: Some(cond), target: label(target) })
        }
        Instruction::CallHelper { helper } => syntax::Instruction::Call(call(helper)),
        Instruction::CallLocal { target } => syntax::Instruction::CallLocal(syntax::CallLocal {
            target: begin(target),
            stack_frame_prefix: Rc::from(""),
        }),
        Instruction::Exit => {
            syntax::Instruction::Exit(syntax::Exit { stack_frame_prefix: Rc::from("") })
        }
    })
}

fn arithmetic(
    op: syntax::BinOp,
    is64: bool,
    dst: Register,
    v: syntax::Value,
) -> syntax::Instruction {
    syntax::Instruction::Bin(syntax::Bin { op, dst: register(dst), v, is64, lddw: false })
}

fn unary(op: syntax::UnOp, is64: bool, dst: Register) -> syntax::Instruction {
    syntax::Instruction::Un(syntax::Un { op, dst: register(dst), is64 })
}

fn alu(op: AluOp) -> syntax::BinOp {
    match op {
        AluOp::Add => syntax::BinOp::ADD,
        AluOp::Sub => syntax::BinOp::SUB,
        AluOp::Mul => syntax::BinOp::MUL,
        AluOp::Div => syntax::BinOp::UDIV,
        AluOp::SignedDiv => syntax::BinOp::SDIV,
        AluOp::Or => syntax::BinOp::OR,
        AluOp::And => syntax::BinOp::AND,
        AluOp::Lsh => syntax::BinOp::LSH,
        AluOp::Rsh => syntax::BinOp::RSH,
        AluOp::Mod => syntax::BinOp::UMOD,
        AluOp::SignedMod => syntax::BinOp::SMOD,
        AluOp::Xor => syntax::BinOp::XOR,
        AluOp::Mov => syntax::BinOp::MOV,
        AluOp::Arsh => syntax::BinOp::ARSH,
    }
}

fn atomic(op: AtomicOp) -> syntax::AtomicOp {
    match op {
        AtomicOp::Add => syntax::AtomicOp::ADD,
        AtomicOp::Or => syntax::AtomicOp::OR,
        AtomicOp::And => syntax::AtomicOp::AND,
        AtomicOp::Xor => syntax::AtomicOp::XOR,
        AtomicOp::Exchange => syntax::AtomicOp::XCHG,
        AtomicOp::CompareExchange => syntax::AtomicOp::CMPXCHG,
    }
}

fn condition(condition: Condition) -> syntax::ConditionOp {
    match condition {
        Condition::Eq => syntax::ConditionOp::EQ,
        Condition::Ne => syntax::ConditionOp::NE,
        Condition::Set => syntax::ConditionOp::SET,
        Condition::Gt => syntax::ConditionOp::GT,
        Condition::Ge => syntax::ConditionOp::GE,
        Condition::Lt => syntax::ConditionOp::LT,
        Condition::Le => syntax::ConditionOp::LE,
        Condition::Sgt => syntax::ConditionOp::SGT,
        Condition::Sge => syntax::ConditionOp::SGE,
        Condition::Slt => syntax::ConditionOp::SLT,
        Condition::Sle => syntax::ConditionOp::SLE,
    }
}

/// Arenas are little-endian: to "little-endian" truncates, to "big-endian" also swaps.
fn endian(swap: bool, width: Width) -> syntax::UnOp {
    match (swap, width) {
        (false, Width::Bits8 | Width::Bits16) => syntax::UnOp::LE16,
        (false, Width::Bits32) => syntax::UnOp::LE32,
        (false, Width::Bits64) => syntax::UnOp::LE64,
        (true, Width::Bits8 | Width::Bits16) => syntax::UnOp::BE16,
        (true, Width::Bits32) => syntax::UnOp::BE32,
        (true, Width::Bits64) => syntax::UnOp::BE64,
    }
}

/// A 64-bit constant, or the address of static data. A number that happens to equal such an address is treated as the
/// address as well; that is equally valid.
fn constant(dst: Register, value: u64, statics: &Statics) -> syntax::Instruction {
    for (mapfd, range) in [(CONSTANTS, statics.constants()), (VARIABLES, statics.variables())] {
        if range.contains(&value) {
            return syntax::Instruction::LoadMapAddress(syntax::LoadMapAddress {
                dst: register(dst),
                mapfd,
                offset: (value - range.start) as i32,
            });
        }
    }
    syntax::Instruction::Bin(syntax::Bin {
        op: syntax::BinOp::MOV,
        dst: register(dst),
        v: syntax::Value::Imm(syntax::Imm { v: value }),
        is64: true,
        lddw: true,
    })
}

/// The number of bytes that a helper accesses at a pointer.
enum Length {
    /// The value of this register.
    Register(u8),
    /// 8.
    Word,
}

/// A register that a helper uses as a pointer.
struct Pointer {
    register: u8,
    length: Length,
    writes: bool,
}

const fn reads(register: u8, length: Length) -> Pointer {
    Pointer { register, length, writes: false }
}

const fn writes(register: u8, length: Length) -> Pointer {
    Pointer { register, length, writes: true }
}

/// The helpers with a contract for the verifier.
const HELPERS: &[(Helper, &[Pointer])] = &[
    (Helper::Memcmp, &[reads(1, Length::Register(3)), reads(2, Length::Register(3))]),
    (Helper::Memmove, &[writes(1, Length::Register(3)), reads(2, Length::Register(3))]),
    (Helper::Memset, &[writes(1, Length::Register(3))]),
    (Helper::Crc32c, &[reads(1, Length::Register(3))]),
    (Helper::Find, &[reads(1, Length::Register(3))]),
    (Helper::FindAny, &[reads(1, Length::Register(3))]),
    // Each position takes two bytes of the list, which the verifier cannot express: functions that call find_all are
    // not proved.
    (Helper::TailCall, &[]),
    (Helper::ParseInt, &[reads(1, Length::Register(2)), writes(4, Length::Word)]),
    (Helper::Xxh3, &[reads(1, Length::Register(3))]),
    (Helper::ParseDouble, &[reads(1, Length::Register(2)), writes(3, Length::Word)]),
    (Helper::Double, &[]),
    (Helper::Decompress, &[writes(2, Length::Register(3)), reads(4, Length::Register(5))]),
    (Helper::Trace, &[reads(1, Length::Register(2))]),
    // For the verifier its result is a number, and accesses through it are not proved.
    (Helper::Workspace, &[]),
];

fn contract(helper: Helper) -> Option<syntax::CallContract> {
    let (_, pointers) = HELPERS.iter().find(|(known, _)| *known == helper)?;
    let mut contract = syntax::CallContract::default();
    for Pointer { register, length, writes } in *pointers {
        let mem = syntax::Reg { v: *register };
        match length {
            Length::Register(size) => contract.pairs.push(syntax::ArgPair {
                kind: match writes {
                    true => syntax::ArgPairKind::PtrToWritableMem,
                    false => syntax::ArgPairKind::PtrToReadableMem,
                },
                or_null: false,
                mem,
                size: syntax::Reg { v: *size },
                can_be_zero: true,
            }),
            // The verifier cannot express a single word that is only read; the requirement for a write is no weaker.
            Length::Word => contract.singles.push(syntax::ArgSingle {
                kind: syntax::ArgSingleKind::PtrToWritableLong,
                or_null: false,
                reg: mem,
            }),
        }
    }
    Some(contract)
}

/// A call. Calls of helpers without a contract have been refused (see `unknown_helper`).
fn call(helper: Helper) -> syntax::Call {
    let contract = contract(helper);
    syntax::Call {
        func: helper as i32,
        kind: syntax::CallKind::Builtin,
        module: 0,
        name: Rc::from(helper.name()),
        is_supported: contract.is_some(),
        unsupported_reason: Rc::from(""),
        contract: contract.unwrap_or_default(),
        stack_frame_prefix: Rc::from(""),
    }
}

/// The registers that point to memory that a helper writes.
pub(crate) fn written(call: &syntax::Call) -> impl Iterator<Item = syntax::Reg> {
    let pairs = call.contract.pairs.iter();
    let pairs = pairs.filter(|pair| pair.kind == syntax::ArgPairKind::PtrToWritableMem);
    pairs.map(|pair| pair.mem).chain(call.contract.singles.iter().map(|single| single.reg))
}
