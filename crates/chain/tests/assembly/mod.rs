//! Hand-written eBPF instructions, functions of them, and their chains.

#[path = "../../../function/tests/assembly/mod.rs"]
mod instructions;

use bpfof_chain::{FileVersion, Function, Start};
use bpfof_function::{NativeFunction, Program};
pub(crate) use instructions::{EXIT, slot};

/// A chain of function 1 over namespace 1, from its first block on.
pub(crate) const CHAIN: Start<'_> = Start {
    owner: 1,
    namespace: 1,
    unit_bytes: 512,
    function: 1,
    files: &[FileVersion { id: 0, version: 1 }],
    first_file: 0,
    first_offset_bytes: 0,
    first_size_bytes: 512,
    argument: &[],
    scratch_bytes: 64,
    answer_max_bytes: 64,
};

pub(crate) fn function(id: u32, code: &[[u8; 8]]) -> Function {
    let program = Program::parse(code.as_flattened()).expect("valid");
    Function {
        id,
        name: format!("f{id}"),
        instructions: code.len() as u32,
        native: NativeFunction::compile(&program).expect("translates"),
        trace: Default::default(),
        peers: None,
        maps: Default::default(),
        memory: None,
    }
}
