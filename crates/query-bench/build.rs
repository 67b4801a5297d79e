//! Compiles the combined stages, which serve for comparison, into the crate.

include!("../../functions/compile.rs");

fn main() {
    compile_functions(
        &[
            "../crates/query-bench/src/c/fused",
            "../crates/query-bench/src/c/selected",
            "../crates/query-bench/src/c/read",
        ],
        &[
            "include/bpfof.h",
            "include/bpfof/batch.h",
            "include/bpfof/blocks.h",
            "query/filter.bpf.c",
            "query/filter.h",
            "query/fixed.bpf.c",
            "query/fold.bpf.c",
            "query/measures.h",
            "query/numbers.h",
            "../crates/query-bench/src/c/inlined.h",
        ],
    );
}
