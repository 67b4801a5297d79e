//! Compiles the stages into the crate.

include!("../../functions/compile.rs");

fn main() {
    compile_functions(
        &[
            "query/columns",
            "query/csv",
            "query/filter",
            "query/fixed",
            "query/fold",
            "query/group",
            "query/histogram",
            "query/rows",
            "query/top",
        ],
        &[
            "include/bpfof.h",
            "include/bpfof/batch.h",
            "include/bpfof/blocks.h",
            "query/columns.h",
            "query/filter.h",
            "query/group.h",
            "query/histogram.h",
            "query/measures.h",
            "query/numbers.h",
            "query/rows.h",
            "query/top.h",
        ],
    );
}
