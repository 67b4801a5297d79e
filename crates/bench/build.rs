//! Compiles the functions of `bench function` and `bench fair`, and packs the headers that are needed to compile their
//! C natively where `bpfof` runs.

include!("../../functions/compile.rs");

fn main() {
    let own = [
        "../crates/bench/src/function/c/filter",
        "../crates/bench/src/function/c/block",
        "../crates/bench/src/function/c/charges",
        "../crates/bench/src/fair/c/aggressor",
        "../crates/bench/src/xrp/c/follow",
    ];
    compile_functions(&own, &["include/bpfof.h", "include/bpfof/blocks.h"]);
    if let Err(problem) = pack_headers() {
        println!("cargo::error=cannot pack the headers of functions/: {problem}");
    }
}

/// Writes `headers.rs`: an array of pairs of a name, as it is included, and the contents.
fn pack_headers() -> std::io::Result<()> {
    let functions = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../../functions")
        .canonicalize()?;
    let mut packed = Vec::new();
    for folder in ["", "include", "include/bpfof"] {
        let prefix = folder.strip_prefix("include").unwrap_or(folder).trim_start_matches('/');
        for entry in fs::read_dir(functions.join(folder))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "h") {
                println!("cargo::rerun-if-changed={}", path.display());
                let name = Path::new(prefix).join(path.file_name().unwrap_or_default());
                packed.push(format!("({name:?}, include_str!({path:?}))"));
            }
        }
    }
    packed.sort();
    let output = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(output.join("headers.rs"), format!("&[{}]", packed.join(", ")))
}
