//! Translates checked instructions to Cranelift's intermediate form.
//!
//! Each eBPF function becomes one native function. Registers and the budget are SSA variables. The entry takes only the
//! machine; local functions take (machine, frame, budget, r1–r5) and return (r0, budget), where a negative budget means
//! that a fault has been recorded.

mod access;
mod helpers;
mod translator;

use super::machine::{CALL_HELPER, CompileError};
use crate::helper::Helper;
use crate::instruction::Instruction;
use crate::program::Program;
use cranelift_codegen::Context;
use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{AbiParam, Signature, Type, types};
use cranelift_codegen::isa::TargetIsa;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_jit::JITModule;
use cranelift_module::{FuncId, Linkage, Module};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use translator::{Callees, Form, Translator};

fn failed(error: impl std::fmt::Display) -> CompileError {
    CompileError(error.to_string())
}

/// Translates a program into `module`. Returns the entry.
pub(super) fn translate(module: &mut JITModule, program: &Program) -> Result<FuncId, CompileError> {
    let signatures = Signatures::new(module);
    let mut imports = BTreeMap::new();
    for helper in Helper::ALL.iter().copied().filter(|helper| helper.is_bulk()) {
        let id = module
            .declare_function(helper.name(), Linkage::Import, &signatures.bulk)
            .map_err(failed)?;
        imports.insert(helper, id);
    }
    let call_helper = module
        .declare_function(CALL_HELPER, Linkage::Import, &signatures.call_helper)
        .map_err(failed)?;
    let entry =
        module.declare_function("entry", Linkage::Local, &signatures.entry).map_err(failed)?;
    let mut locals = BTreeMap::new();
    for function in called_functions(program) {
        let name = format!("f{}", function.start);
        let id =
            module.declare_function(&name, Linkage::Local, &signatures.local).map_err(failed)?;
        locals.insert(function.start, (id, function));
    }
    let first = program.functions()[0].clone();
    let mut search = 0;
    let mut define = |id: FuncId, range: Range<u32>, form: Form| -> Result<(), CompileError> {
        let mut context = module.make_context();
        context.func.signature = match form {
            Form::Entry => signatures.entry.clone(),
            Form::Local => signatures.local.clone(),
        };
        let mut refer = |id: FuncId| module.declare_func_in_func(id, &mut context.func);
        let called = callees(&program.instructions()[range.start as usize..range.end as usize]);
        let callees = Callees {
            bulk: imports.iter().map(|(helper, id)| (*helper, refer(*id))).collect(),
            call_helper: refer(call_helper),
            locals: called.into_iter().map(|start| (start, refer(locals[&start].0))).collect(),
        };
        let mut scratch = FunctionBuilderContext::new();
        let builder = FunctionBuilder::new(&mut context.func, &mut scratch);
        Translator::new(builder, program, range, form, callees)
            .run()
            .finalize(module.target_config());
        search += check_loops(&mut context, module.isa())?;
        if search > MAX_SEARCH {
            let why = "it jumps back into the middle of loops too often for a program of its size";
            return Err(CompileError(why.to_owned()));
        }
        module.define_function(id, &mut context).map_err(failed)?;
        let frame = context.compiled_code().and_then(|code| code.buffer.frame_layout());
        let frame_bytes = frame.map_or(u32::MAX, |frame| frame.frame_to_fp_offset);
        if frame_bytes > MAX_FRAME_BYTES {
            return Err(CompileError(format!(
                "one of its functions would take {frame_bytes} bytes of stack, more than \
                 {MAX_FRAME_BYTES}: too many values are computed before branches and used after them"
            )));
        }
        Ok(())
    };
    define(entry, first, Form::Entry)?;
    for (id, range) in locals.values() {
        define(*id, range.clone(), Form::Local)?;
    }
    module.finalize_definitions().map_err(failed)?;
    Ok(entry)
}

/// Maximum bytes of the host's stack that a function takes. Calls are at most [`MAX_FRAMES`](crate::abi::MAX_FRAMES)
/// deep, so together they take half a megabyte.
const MAX_FRAME_BYTES: u32 = 64 << 10;

/// Maximum nesting of loops. The time of register allocation grows at least with its square: it is less than 0.1 s at
/// this limit, and up to 8 s for 2000.
const MAX_NESTED_LOOPS: usize = 64;

/// Maximum of the number of jumps back into the middle of a loop, that is into a block through which not all paths go,
/// times the square of the number of blocks, for all functions of a program together. The register allocator's search
/// for dominators takes a pass over the blocks for each of these jumps, and a pass may take a time that grows with the
/// square of their number: together some 0.2 s at this limit, and 4 s for 256 such jumps in a program of 4096 slots.
/// Compilers make hardly any.
const MAX_SEARCH: u64 = 1 << 30;

/// Checks the nesting of loops. Returns the function's part of [`MAX_SEARCH`].
fn check_loops(context: &mut Context, isa: &dyn TargetIsa) -> Result<u64, CompileError> {
    context.flowgraph();
    // The loop analysis walks backwards from the end of a loop to its head, and assumes that every path into the loop
    // passes the head. Unreachable code may jump in elsewhere: then two loops can become each other's outer loop, and
    // the analysis never ends.
    context
        .eliminate_unreachable_code(isa)
        .map_err(|error| CompileError(format!("it cannot be translated: {error}")))?;
    context.compute_loop_analysis();
    let loops = &context.loop_analysis;
    let level = |block| loops.loop_level(block).level();
    let deepest = context.func.layout.blocks().map(level).max().unwrap_or(0);
    if deepest > MAX_NESTED_LOOPS {
        return Err(CompileError(format!("it nests loops more than {MAX_NESTED_LOOPS} deep")));
    }
    // The register allocator walks through the blocks in the same order.
    let mut place = SecondaryMap::new();
    context.domtree.cfg_rpo().zip(0_u32..).for_each(|(block, at)| place[*block] = at);
    let is_into_loop =
        |from, to| place[to] <= place[from] && !context.domtree.block_dominates(to, from);
    let into_loops =
        |from| context.func.block_successors(from).filter(|to| is_into_loop(from, *to)).count();
    let (jumps, blocks) =
        context.func.layout.blocks().fold((0, 0_u64), |(jumps, blocks), block| {
            (jumps + into_loops(block) as u64, blocks + 1)
        });
    Ok(jumps * blocks * blocks)
}

/// The first instructions of the functions that these instructions call.
fn callees(instructions: &[Instruction]) -> BTreeSet<u32> {
    let target = |instruction: &Instruction| match *instruction {
        Instruction::CallLocal { target } => Some(target),
        _ => None,
    };
    instructions.iter().filter_map(target).collect()
}

/// The functions that an instruction calls; includes the entry only if it recurses.
fn called_functions(program: &Program) -> impl Iterator<Item = Range<u32>> {
    let targets = callees(program.instructions());
    program.functions().iter().filter(move |f| targets.contains(&f.start)).cloned()
}

struct Signatures {
    entry: Signature,
    local: Signature,
    bulk: Signature,
    call_helper: Signature,
}

impl Signatures {
    fn new(module: &JITModule) -> Signatures {
        let pointer = module.target_config().pointer_type();
        let make = |parameters: &[Type], results: usize| {
            let mut signature = module.make_signature();
            signature.params.extend(parameters.iter().map(|&ty| AbiParam::new(ty)));
            signature.returns.extend(vec![AbiParam::new(types::I64); results]);
            signature
        };
        let wide = types::I64;
        Signatures {
            entry: make(&[pointer], 1),
            local: make(&[pointer, wide, wide, wide, wide, wide, wide, wide], 2),
            bulk: make(&[pointer, wide, wide], 1),
            call_helper: make(&[pointer, wide, wide, wide, wide, wide, wide], 1),
        }
    }
}
