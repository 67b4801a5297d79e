//! Compiles the storage functions of these structures into the crate.

include!("../../functions/compile.rs");

fn main() {
    compile_functions(
        &["block_get", "filter_reduce", "hash_get", "log_walk"],
        &[
            "block_get.h",
            "damage.h",
            "filter_reduce.h",
            "hash_get.h",
            "include/bpfof.h",
            "include/bpfof/blocks.h",
            "log_walk.h",
            "prefix_block.h",
        ],
    );
}
