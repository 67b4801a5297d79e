//! Compiles the storage functions of this store into the crate.

include!("../../functions/compile.rs");

fn main() {
    compile_functions(
        &["bpfkv_get", "bpfkv_range"],
        &["bpfkv.h", "include/bpfof.h", "include/bpfof/blocks.h"],
    );
}
