//! Compiles the integration against the RocksDB of librocksdb-sys, and its storage function.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let integration = Path::new("..");
    let repository = integration.join("../..");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let bundled = env::var_os("DEP_ROCKSDB_CARGO_MANIFEST_DIR").expect("librocksdb-sys tells it");
    let headers = Path::new(&bundled).join("rocksdb/include");

    let function = out.join("sst_get.bpf.o");
    let functions = repository.join("functions");
    let compiled = Command::new(env::var("CLANG").unwrap_or_else(|_| "clang".to_owned()))
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-I"])
        .arg(functions.join("include"))
        .arg("-c")
        .arg(functions.join("sst_get.bpf.c"))
        .arg("-o")
        .arg(&function)
        .status();
    assert!(compiled.is_ok_and(|status| status.success()), "clang cannot compile sst_get.bpf.c");

    let mut sources: Vec<PathBuf> = std::fs::read_dir(integration.join("src"))
        .expect("the integration's sources")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "cc"))
        // The preloaded library is only for a RocksDB that is a shared library.
        .filter(|path| !path.ends_with("preload.cc"))
        .collect();
    sources.sort();
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .warnings(false)
        .flag("-isystem")
        .flag(headers)
        .include(integration.join("include"))
        .include(repository.join("crates/capi/include"))
        .include(functions)
        .define("BPFOF_SST_GET_OBJECT", &*format!("\"{}\"", function.display()))
        .files(sources)
        .compile("bpfof-rocksdb");
    for path in ["../src", "../include", "../../../functions", "../../../crates/capi/include"] {
        println!("cargo:rerun-if-changed={path}");
    }
}
