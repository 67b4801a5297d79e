//! Compiles the storage functions of this store into the crate.

include!("../../functions/compile.rs");

fn main() {
    compile_functions(&["sorted_get"], &["sorted.h", "include/bpfof.h", "include/bpfof/blocks.h"]);
}
