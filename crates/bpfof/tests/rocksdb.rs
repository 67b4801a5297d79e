//! The integration with RocksDB: built by CMake with the machine's RocksDB, and tested without a
//! target and with one.

mod disk;

use disk::{BPFOF, Disk, cannot_mount, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Whether something is missing here; then the log of the tests says what.
fn cannot_build() -> bool {
    let source = b"#include <rocksdb/db.h>\n#include <lz4.h>\n#include <xxhash.h>\n";
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("probe.cc");
    std::fs::write(&file, source).expect("written");
    let compiles = Command::new("c++").arg("-fsyntax-only").arg(&file).output();
    let has_cmake = Command::new("cmake").arg("--version").output().is_ok();
    let can = has_cmake && compiles.is_ok_and(|output| output.status.success());
    if !can {
        eprintln!(
            "SKIPPED: cmake or RocksDB's headers are missing; scripts/setup.sh rocksdb installs them"
        );
    }
    !can
}

/// Builds all of it, and gives the folder with the tests.
fn build() -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integrations/rocksdb");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rocksdb");
    let library = Path::new(BPFOF).with_file_name("deps");
    let (sources, to) = (sources.display().to_string(), folder.display().to_string());
    let library = format!("-DBPFOF_LIBRARY_DIR={}", library.display());
    run("cmake", &["-S", &sources, "-B", &to, &library]);
    run("cmake", &["--build", &to, "--parallel", "2"]);
    folder
}

/// The program of docs/rocksdb.md, compiled as the page says, but with what was built.
fn compile_example(folder: &Path) -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(repository.join("docs/rocksdb.md")).expect("the page");
    let (_, source) = page.split_once("```cpp\n").expect("a program");
    let (source, rest) = source.split_once("```\n").expect("its end");
    std::fs::write(folder.join("lookup.cc"), source).expect("written");
    let command = rest.lines().find(|line| line.starts_with("c++ ")).expect("a command");
    let words = command.replace(" -o lookup lookup.cc", "");
    let mut arguments: Vec<String> = words.split_whitespace().skip(1).map(str::to_owned).collect();
    let program = folder.join("lookup");
    let show = |path: &Path| path.display().to_string();
    let include = repository.join("integrations/rocksdb/include");
    arguments.splice(
        0..0,
        ["-o".into(), show(&program), show(&program.with_extension("cc")), "-I".into()]
            .into_iter()
            .chain([show(&include), format!("-L{}", show(folder))])
            .chain([format!("-L{}", show(&Path::new(BPFOF).with_file_name("deps")))])
            .chain([format!("-Wl,-rpath,{}", show(folder))]),
    );
    run("c++", &arguments);
    program
}

/// Its chains go on here.
fn the_target_may_die(folder: &Path, disk: &Disk) {
    let mut reading = Command::new(folder.join("concurrent_test"))
        .arg(disk.mount())
        .args([disk.url.to_string(), disk.image().display().to_string()])
        .env("READS", "60000")
        .spawn()
        .expect("it starts");
    std::thread::sleep(std::time::Duration::from_secs(1));
    disk.stop_target();
    assert!(reading.wait().expect("it ends").success());
}

#[test]
fn point_reads_are_those_of_the_plain_library() {
    if cannot_build() {
        return;
    }
    let folder = build();
    let without_target = run(
        "ctest",
        &["--test-dir", &folder.display().to_string(), "--output-on-failure", "--verbose"],
    );
    eprintln!("{without_target}");
    if cannot_mount().is_some() {
        return;
    }
    let disk = Disk::new("ext4", 1 << 30);
    let (url, mount) = (disk.url.to_string(), disk.mount().display().to_string());
    let image = disk.image().display().to_string();
    for test in ["answers_test", "concurrent_test"] {
        let program = folder.join(test).display().to_string();
        eprintln!("{}", run(&program, &[&mount, &url, &image]));
    }
    let example = compile_example(&folder).display().to_string();
    let printed = run(&example, &[&format!("{mount}/example"), &url, &image]);
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines.contains(&"OK: value4711") && lines.contains(&"target: 1"), "{printed}");
    the_target_may_die(&folder, &disk);
}
