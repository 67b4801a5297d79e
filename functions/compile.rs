// Included by build scripts of crates that embed compiled storage functions.
// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Compiles `functions/NAME.bpf.c` to `NAME.bpf.o` in the crate's output directory. A name may contain a path: only its
/// last part is kept.
fn compile_functions(functions: &[&str], headers: &[&str]) {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let output = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let sources = manifest.join("../../functions");
    let sources = fs::canonicalize(&sources).unwrap_or(sources);
    println!("cargo::rerun-if-env-changed=CLANG");
    println!("cargo::rerun-if-changed={}", sources.join("compile.rs").display());
    for header in headers {
        println!("cargo::rerun-if-changed={}", sources.join(header).display());
    }
    for function in functions {
        let source = format!("{function}.bpf.c");
        println!("cargo::rerun-if-changed={}", sources.join(&source).display());
        let name = function.rsplit('/').next().unwrap_or(function);
        if let Err(problem) = compile(&sources, &source, &output.join(format!("{name}.bpf.o"))) {
            println!("cargo::error={problem}");
        }
    }
}

/// Runs clang as functions/Makefile does, with a path prefix map that keeps this machine's paths out of the object.
fn compile(directory: &Path, source: &str, object: &Path) -> Result<(), String> {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let status = Command::new(&clang)
        .current_dir(directory)
        .args("-O2 -g -Wall -Wextra -Werror -target bpf -mcpu=v3 -Iinclude".split(' '))
        .arg(format!("-ffile-prefix-map={}=functions", directory.display()))
        .args(["-c", source, "-o"])
        .arg(object)
        .status()
        .map_err(|error| {
            format!(
                "storage functions are compiled with clang, and `{clang}` does not start \
                 ({error}): run `make setup`, or name a clang in the variable CLANG"
            )
        })?;
    if status.success() { Ok(()) } else { Err(format!("`{clang}` failed on functions/{source}")) }
}
