//! Hand-written eBPF instructions, functions of them, and their chains.

use bpfof_chain::{FileVersion, Function, Start};
use bpfof_function::{NativeFunction, Program};

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

pub(crate) const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];

/// An instruction (RFC 9669 §3.1).
pub(crate) fn slot(opcode: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> [u8; 8] {
    let [o0, o1] = offset.to_le_bytes();
    let [i0, i1, i2, i3] = immediate.to_le_bytes();
    [opcode, src << 4 | dst, o0, o1, i0, i1, i2, i3]
}

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
