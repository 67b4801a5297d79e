//! Programs that are not made for pushdown: Debian's `db_bench` and Python, which use the machine's librocksdb.

use crate::disk::Disk;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const READS: u64 = 10_000;

/// The library that is preloaded.
fn preload(folder: &Path) -> PathBuf {
    folder.join("libbpfof-rocksdb-preload.so")
}

/// Sets the path on which a program finds that library and libbpfof.
fn with_library(command: &mut Command, folder: &Path) {
    command.env("LD_LIBRARY_PATH", folder);
}

fn settings(disk: &Disk, report: &Path) -> String {
    let (image, report) = (disk.image().display().to_string(), report.display());
    format!("url={};device={image};sample_rate=0;report={report}", disk.url)
}

/// Output of a program that must succeed.
fn printed(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}{errors}");
    assert!(!errors.contains("without pushdown"), "{errors}");
    text
}

/// One benchmark of an existing database, always with the same random keys.
fn db_bench(database: &Path, benchmark: &str) -> Command {
    let mut command = Command::new("db_bench");
    command.args(["--use_existing_db", "--num=60000", "--seed=4711", "--cache_size=0"]);
    command.args(["--batch_size=16", "--seek_nexts=10", &format!("--benchmarks={benchmark}")]);
    command.args([format!("--reads={READS}"), format!("--db={}", database.display())]);
    command
}

/// The number of keys that it has found, and of keys it has looked up: "(12713 of 20000 found)".
fn found(printed: &str) -> (u64, u64) {
    let (_, rest) = printed.rsplit_once('(').unwrap_or_else(|| panic!("{printed}"));
    let words: Vec<&str> = rest.split_whitespace().collect();
    let number = |word: &str| word.parse().unwrap_or_else(|_| panic!("{printed}"));
    (number(words[0]), number(words[2]))
}

/// The counters that a database wrote when it was closed.
fn reported(report: &Path) -> Value {
    let text = std::fs::read_to_string(report).expect("a report");
    std::fs::remove_file(report).expect("removed");
    serde_json::from_str(text.lines().last().expect("a line")).expect("JSON")
}

/// The reads of db_bench run at the target, and find the same as without pushdown.
pub(crate) fn a_stock_db_bench_is_pushed_down(folder: &Path, disk: &Disk) {
    let database = disk.mount().join("stock");
    if !crate::make_by_db_bench(&database, 0) {
        return;
    }
    let report = folder.join("report");
    for benchmark in ["readrandom", "multireadrandom", "seekrandom"] {
        let plain = found(&printed(&mut db_bench(&database, benchmark)));
        assert!(plain.0 > READS / 2 && plain.0 < plain.1, "{benchmark}: {plain:?}");
        let mut by_option = db_bench(&database, benchmark);
        by_option.arg(format!("--fs_uri=id=bpfof;{}", settings(disk, &report)));
        let mut by_variable = db_bench(&database, benchmark);
        by_variable.arg("--multiread_batched").env("BPFOF_ROCKSDB", settings(disk, &report));
        let mut for_reading = db_bench(&database, benchmark);
        for_reading.arg("--readonly").env("BPFOF_ROCKSDB", settings(disk, &report));
        for command in [&mut by_option, &mut by_variable, &mut for_reading] {
            with_library(command, folder);
            let pushed = found(&printed(command.env("LD_PRELOAD", preload(folder))));
            let counts = reported(&report);
            let count = |name: &str| counts[name].as_u64().expect("a number");
            assert_eq!(pushed, plain, "{benchmark}: {counts}");
            assert_eq!(count("gets.failed"), 0, "{counts}");
            let (at_target, least) = match benchmark {
                "seekrandom" => (count("seeks"), READS),
                _ => (count("gets.target"), READS),
            };
            // The first may come before the target knows the tables, on a busy machine a tenth of them.
            assert!(at_target > least * 3 / 4, "{benchmark}: {counts}");
            assert!(count("received-bytes") > READS, "{counts}");
        }
    }
    transactions_are_as_without(folder, disk);
    unreachable_targets_are_told(folder, &database);
    std::fs::remove_dir_all(database).expect("removed");
}

/// Databases with optimistic transactions need RocksDB's own class underneath.
fn transactions_are_as_without(folder: &Path, disk: &Disk) {
    let database = disk.mount().join("transactions");
    std::fs::create_dir(&database).expect("made");
    let mut command = Command::new(folder.join("stock_transactions"));
    command.arg(&database).env("BPFOF_ROCKSDB", settings(disk, &folder.join("report")));
    with_library(&mut command, folder);
    printed(command.env("LD_PRELOAD", preload(folder)));
    std::fs::remove_dir_all(&database).expect("removed");
}

/// A program that requests pushdown by an option gets an error; with the variable only, it prints a warning.
fn unreachable_targets_are_told(folder: &Path, database: &Path) {
    let nowhere = "url=nvme-tcp://127.0.0.1:1/nqn.2026-01.io.bpf-of:none;device=/dev/loop0";
    let mut by_option = db_bench(database, "readrandom");
    by_option.arg(format!("--fs_uri=id=bpfof;{nowhere}"));
    let mut by_variable = db_bench(database, "readrandom");
    by_variable.env("BPFOF_ROCKSDB", nowhere);
    for (command, opens) in [(&mut by_option, false), (&mut by_variable, true)] {
        with_library(command, folder);
        let output = command.env("LD_PRELOAD", preload(folder)).output().expect("it starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), opens, "{errors}");
        assert!(errors.contains("nqn.2026-01.io.bpf-of:none"), "{errors}");
        assert_eq!(
            errors.matches("opened without pushdown").count(),
            usize::from(opens),
            "{errors}"
        );
    }
}

/// Once with one changed line in the program, once with none.
pub(crate) fn a_python_program_is_pushed_down(folder: &Path, disk: &Disk) {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/rocksdb_lookup.py");
    let (database, report) = (disk.mount().join("python"), folder.join("report"));
    let python = || {
        let mut command = Command::new("/usr/bin/python3");
        command.arg(program).arg(&database);
        with_library(&mut command, folder);
        command
    };
    let mut changed = python();
    changed.arg(settings(disk, &report));
    let mut unchanged = python();
    unchanged.env("BPFOF_ROCKSDB", settings(disk, &report)).env("LD_PRELOAD", preload(folder));
    for command in [&mut changed, &mut unchanged] {
        let text = printed(command);
        let shown: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
        let counts = reported(&report);
        let at_target = counts["gets.target"].as_u64().expect("a number");
        assert_eq!(&shown["gets.target"], &counts["gets.target"]);
        assert!(at_target > 4000 && counts["gets.failed"] == 0, "{counts}");
        std::fs::remove_dir_all(&database).expect("removed");
    }
    assert_eq!(printed(&mut python()), "RocksDB alone\n");
    std::fs::remove_dir_all(&database).expect("removed");
}

/// The example of the crate for users of the crate `rocksdb`.
pub(crate) fn a_program_is_pushed_down(program: &str, disk: &Disk) {
    let database = disk.mount().join("rust").display().to_string();
    let report = disk.mount().join("report");
    let text = printed(Command::new(program).args([&database, &settings(disk, &report)]));
    let counts: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
    eprintln!("{counts}");
    let at_target = counts["gets.target"].as_u64().expect("a number");
    assert!(at_target > 10_000 && counts["gets.failed"] == 0, "{counts}");
    assert_eq!(counts["gets.here"].as_u64().map(|here| here < 100), Some(true), "{counts}");
    assert!(counts["seeks"].as_u64() > Some(0), "{counts}");
}
