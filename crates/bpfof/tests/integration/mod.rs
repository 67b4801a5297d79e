//! Builds the integration with RocksDB, by CMake and with the machine's RocksDB, or with that of ROCKSDB_VERSION, whose
//! place ROCKSDB_CMAKE gives as lines of arguments.
#![allow(dead_code)] // Each test uses a part.

use crate::disk::skip::skip;
use crate::disk::{BPFOF, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Whether this machine lacks something for the build; the log of the tests then says what.
pub(crate) fn cannot_build() -> bool {
    let source = b"#include <rocksdb/db.h>\n#include <lz4.h>\n#include <xxhash.h>\n";
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("probe.cc");
    std::fs::write(&file, source).expect("written");
    let compiles = Command::new("c++").arg("-fsyntax-only").arg(&file).output();
    let has_cmake = Command::new("cmake").arg("--version").output().is_ok();
    let can = has_cmake && compiles.is_ok_and(|output| output.status.success());
    if !can {
        skip("cmake or RocksDB's headers are missing; scripts/setup.sh rocksdb installs them");
    }
    !can
}

/// Whether it is built with another RocksDB than the machine's.
pub(crate) fn is_other_version() -> bool {
    std::env::var_os("ROCKSDB_VERSION").is_some()
}

/// Builds everything, once, and returns the folder with the tests.
pub(crate) fn build() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build_only("all"))
}

/// Builds a target of CMake, and returns the folder with its output.
pub(crate) fn build_only(target: &str) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integrations/rocksdb");
    let version = std::env::var("ROCKSDB_VERSION").map(|name| format!("rocksdb-{name}"));
    let name = version.unwrap_or_else(|_| "rocksdb".to_owned());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let library = Path::new(BPFOF).with_file_name("deps");
    let (sources, to) = (sources.display().to_string(), folder.display().to_string());
    let library = format!("-DBPFOF_LIBRARY_DIR={}", library.display());
    let others = std::env::var("ROCKSDB_CMAKE").unwrap_or_default();
    let mut arguments = vec!["-S", &sources, "-B", &to, &library, "-DBPFOF_TESTS=ON"];
    // This compiles a third faster than the default for users: debug information, and -O2.
    arguments.extend(["-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1"]);
    arguments.extend(others.lines());
    run("cmake", &arguments);
    run("cmake", &["--build", &to, "--parallel", "2", "--target", target]);
    folder
}
