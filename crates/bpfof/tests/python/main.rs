//! The Python package: its own tests, by pytest, over the library that cargo has built.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const BPFOF: &str = env!("CARGO_BIN_EXE_bpfof");

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("a checkout")
}

/// A folder for PYTHONPATH with the package, laid out as in a wheel.
fn package() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let package = folder.path().join("bpfof");
    std::fs::create_dir(&package).expect("made");
    let sources = std::fs::read_dir(repository().join("crates/python/bpfof")).expect("sources");
    for source in sources.map(|entry| entry.expect("an entry")) {
        if source.file_type().expect("known").is_file() {
            symlink(source.path(), package.join(source.file_name())).expect("linked");
        }
    }
    let library = Path::new(BPFOF).with_file_name("deps").join("lib_bpfof.so");
    assert!(library.exists(), "first: cargo build -p bpfof-python");
    symlink(library, package.join("_bpfof.abi3.so")).expect("linked");
    folder
}

#[test]
fn pytest() {
    let python = repository().join(".tools/python/bin/python");
    assert!(python.exists(), "first: scripts/setup.sh python");
    let package = package();
    let beside = Path::new(BPFOF).parent().expect("a folder");
    let path = std::env::var("PATH").expect("a path");
    let status = Command::new(python)
        .args(["-m", "pytest", "-q", "--durations=5", "crates/python/tests"])
        .current_dir(repository())
        .env("PYTHONPATH", package.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PATH", format!("{}:{path}", beside.display()))
        .env("BPFOF", BPFOF)
        .status()
        .expect("pytest starts");
    assert!(status.success(), "pytest has failed; see above");
}
