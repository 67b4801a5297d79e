//! The integration with WiredTiger: built by CMake with the machine's WiredTiger, or with the one in WIREDTIGER_DIR.

mod disk;

use disk::skip::skip;
use disk::{BPFOF, Disk, KINDS, cannot_mount, run};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// The bugs planted in libraries, which the stress test must find.
const PLANTED: [&str; 3] =
    ["the chain runs after the search", "truncations are not seen", "time windows are not seen"];
const IMAGE_BYTES: u64 = 1 << 30;

/// The WiredTiger to use instead of the machine's.
fn other() -> Option<PathBuf> {
    std::env::var_os("WIREDTIGER_DIR").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Whether this machine lacks something for the build; the log of the tests then says what.
fn cannot_build() -> bool {
    let has_cmake = Command::new("cmake").arg("--version").output().is_ok();
    let has_header = other().is_some() || Path::new("/usr/include/wiredtiger.h").exists();
    if !(has_cmake && has_header) {
        skip(
            "cmake or WiredTiger's headers are missing; scripts/setup.sh wiredtiger installs them",
        );
    }
    !(has_cmake && has_header)
}

/// Builds everything, once, and returns the folder.
fn build() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integrations/wiredtiger");
        let name = if other().is_some() { "wiredtiger-other" } else { "wiredtiger" };
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let library = Path::new(BPFOF).with_file_name("deps");
        let (sources, to) = (sources.display().to_string(), folder.display().to_string());
        let library = format!("-DBPFOF_LIBRARY_DIR={}", library.display());
        let dir = format!("-DWIREDTIGER_DIR={}", other().unwrap_or_default().display());
        let mut arguments = vec!["-S", &sources, "-B", &to, &library, &dir, "-DBPFOF_TESTS=ON"];
        // This compiles faster than the default for users: debug information, and -O2.
        arguments.extend(["-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1"]);
        run("cmake", &arguments);
        run("cmake", &["--build", &to, "--parallel", "2"]);
        folder
    })
}

/// None if this machine can build no program for it, or cannot mount it.
fn disk_of(kind: &str) -> Option<Disk> {
    if cannot_build() { None } else { Disk::new(kind, IMAGE_BYTES) }
}

fn stress(disk: &Disk, library: &str, seconds: u64) -> Command {
    let mut command = Command::new(build().join("bpfof-wiredtiger-stress"));
    command.arg(build().join(format!("lib{library}.so"))).arg(disk.mount().join("database"));
    command.args([disk.url.to_string(), disk.image().display().to_string(), seconds.to_string()]);
    command
}

fn text(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    format!("{}{errors}", String::from_utf8_lossy(&output.stdout))
}

#[test]
fn the_function_reads_what_wiredtiger_writes() {
    if cannot_build() {
        return;
    }
    let folder = build().display().to_string();
    eprintln!("{}", run("ctest", &["--test-dir", &folder, "--output-on-failure"]));
}

/// A program of the tests that opens databases on the disk.
fn on_disk(disk: &Disk, program: &str) -> Command {
    let mut command = Command::new(build().join(program));
    command.arg(build().join("libbpfof_wiredtiger.so")).arg(disk.mount());
    command.args([disk.url.to_string(), disk.image().display().to_string()]);
    command
}

fn run_on_disk(program: &str) {
    let Some(disk) = disk_of("ext4") else { return };
    let output = on_disk(&disk, program).output().expect("it starts");
    eprintln!("{}", text(&output));
    assert!(output.status.success());
}

#[test]
fn answers_stay_right_around_truncations_and_rollbacks() {
    run_on_disk("answers_test");
}

#[test]
fn cursors_are_as_without_chains() {
    run_on_disk("cursors_test");
}

#[test]
fn files_are_durable_and_whole() {
    run_on_disk("files_test");
}

#[test]
fn a_full_disk_loses_nothing_that_was_written() {
    if cannot_build() {
        return;
    }
    let test = build().join("table_test").display().to_string();
    for (kind, disk) in Disk::of_each_kind() {
        eprintln!("{kind}: {}", run(&test, &[disk.mount()]));
    }
}

#[test]
fn no_answer_is_wrong_and_each_omission_is_noticed() {
    let Some(disk) = disk_of("ext4") else { return };
    let right = stress(&disk, "bpfof_wiredtiger", 8).output().expect("it starts");
    eprintln!("{}", text(&right));
    assert!(right.status.success());
    for (number, what) in PLANTED.iter().enumerate() {
        let library = format!("bpfof_wiredtiger_planted_{}", number + 1);
        // The stress test ends with the first wrong answer; an idle machine needs some seconds for it.
        let wrong = stress(&disk, &library, 60).output().expect("it starts");
        assert_eq!(wrong.status.code(), Some(1), "{what}: {}", text(&wrong));
        assert!(text(&wrong).contains("WRONG: "), "{what}: {}", text(&wrong));
    }
}

#[test]
fn a_target_that_dies_is_no_error_and_is_used_again() {
    let Some(mut disk) = disk_of("xfs") else { return };
    let mut command = stress(&disk, "bpfof_wiredtiger", 300);
    let mut running = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(running.stdout.take().expect("piped")).lines();
    let mut wait_for = |wanted: &str| {
        let line = lines.by_ref().map(|line| line.expect("text")).find(|line| line == wanted);
        assert!(line.is_some(), "it ends before it says: {wanted}");
    };
    wait_for("chains answer");
    disk.stop_target();
    wait_for("the target is lost");
    disk.restart_target();
    wait_for("there is another session");
    wait_for("chains answer");
    kill_process(Pid::from_child(&running), Signal::TERM).expect("it runs");
    wait_for("no answer was wrong");
    assert!(running.wait().expect("it ends").success());
}

/// Runs a part of `answers_test`, which says when to `stop` and to `start` the target.
fn runs_beside_a_target(part: &str, stop: fn(&Disk), start: fn(&mut Disk)) {
    let Some(mut disk) = disk_of("ext4") else { return };
    let mut command = on_disk(&disk, "answers_test");
    let mut running = command.arg(part).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut told = Vec::new();
    for line in BufReader::new(running.stdout.take().expect("piped")).lines() {
        let line = line.expect("text");
        match line.as_str() {
            "stop" => stop(&disk),
            "start" => start(&mut disk),
            other => eprintln!("{other}"),
        }
        told.push(line);
    }
    assert!(running.wait().expect("it ends").success());
    assert_eq!(told[..told.len() - 1], ["stop", "start"], "{told:?}");
}

#[test]
fn idle_threads_have_no_files_of_a_lost_target() {
    runs_beside_a_target("idle", Disk::stop_target, Disk::restart_target);
}

#[test]
fn a_target_that_hangs_is_waited_for_no_longer_than_told() {
    let hang = |disk: &Disk| disk.signal(0, Signal::STOP);
    for part in ["silent", "silent-scan"] {
        runs_beside_a_target(part, hang, |disk| disk.signal(0, Signal::CONT));
    }
}

/// A new folder for a database, the file for the extension's counters, and a configuration that loads the extension.
fn database(disk: &Disk, name: &str) -> (PathBuf, PathBuf, String) {
    let (home, counters) = (disk.mount().join(name), disk.mount().join("counters.json"));
    std::fs::create_dir(&home).expect("made");
    let config = format!(
        "cache_size=1MB,extensions=[{}={{early_load=true,config={{url=\"{}\",device=\"{}\",counters=\"{}\"}}}}]",
        build().join("libbpfof_wiredtiger.so").display(),
        disk.url,
        disk.image().display(),
        counters.display()
    );
    (home, counters, config)
}

/// A program in Python uses the extension only by an environment variable. WIREDTIGER_PYTHON is a Python with
/// WiredTiger's module, of the version for which the extension is built.
#[test]
#[ignore = "make wiredtiger-11 makes a Python with WiredTiger's module"]
fn a_python_program_is_pushed_down() {
    let python = std::env::var("WIREDTIGER_PYTHON").expect("make wiredtiger-11 sets it");
    let disk = disk_of("ext4").expect("this needs root and WiredTiger");
    let (home, counters, config) = database(&disk, "python");
    let program = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = program.join("../../docs/examples/wiredtiger_lookup.py");
    let run = |more: &[&str], config: &str| {
        let mut command = Command::new(&python);
        command.arg(&program).arg(&home).args(more).env("WIREDTIGER_CONFIG", config);
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{more:?}: {}", text(&output));
        text(&output)
    };
    run(&["write"], &config);
    let read = run(&[], &config);
    assert!(read.contains("2000 found, 100 scanned, missing True, changed True"), "{read}");
    let counted = std::fs::read_to_string(counters).expect("counters");
    let counted: serde_json::Value = serde_json::from_str(&counted).expect("JSON");
    let chains = counted["values"].as_u64().unwrap_or(0) + counted["staged"].as_u64().unwrap_or(0);
    assert!(chains > 1000 && counted["failed"] == 0, "{counted}");
    // Its data can be read without the extension.
    let plain = run(&[], "cache_size=1MB");
    assert!(plain.contains("2000 found, 100 scanned, missing True, changed True"), "{plain}");
}

/// The stock tool uses the extension only by an environment variable.
#[test]
fn a_program_that_knows_nothing_of_it_uses_it() {
    if other().is_some() {
        return;
    }
    let Some(disk) = disk_of("ext4") else { return };
    let Ok(found) = Command::new("wt").arg("-V").output() else {
        return skip("WiredTiger's tool wt is missing");
    };
    assert!(found.status.success());
    let (home, counters, config) = database(&disk, "stock");
    let wt = |arguments: &[&str]| {
        let output = Command::new("wt")
            .args(["-h", home.to_str().expect("UTF-8")])
            .args(arguments)
            .env("WIREDTIGER_CONFIG", &config)
            .output()
            .expect("it starts");
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        text(&output)
    };
    let options = "key_format=S,value_format=S,allocation_size=512B,internal_page_max=512B,leaf_page_max=512B";
    wt(&["create", "-c", options, "table:stock"]);
    let pairs: Vec<String> =
        (0..6000).map(|i| format!("{}{i:06}", if i % 2 == 0 { "key" } else { "value" })).collect();
    let words: Vec<&str> = pairs.iter().map(String::as_str).collect();
    wt(&[&["write", "table:stock"], &words[..]].concat());
    let keys: Vec<String> = (0..3000).map(|i| format!("key{:06}", i * 2)).collect();
    let asked: Vec<&str> = keys.iter().map(String::as_str).collect();
    let read = wt(&[&["read", "table:stock"], &asked[..]].concat());
    let values: Vec<String> = (0..3000).map(|i| format!("value{:06}", i * 2 + 1)).collect();
    assert_eq!(read.lines().collect::<Vec<_>>(), values);
    let counted = std::fs::read_to_string(counters).expect("counters");
    let counted: serde_json::Value = serde_json::from_str(&counted).expect("JSON");
    let chains = counted["values"].as_u64().unwrap_or(0) + counted["staged"].as_u64().unwrap_or(0);
    assert!(chains > 0 && counted["failed"] == 0, "{counted}");
}

/// `make soak-wiredtiger`: for SOAK_SECONDS, half of it on each file system.
#[test]
#[ignore = "runs as long as SOAK_SECONDS says: make soak-wiredtiger"]
fn soak() {
    assert!(!cannot_build() && !cannot_mount(), "this needs root and WiredTiger");
    let seconds = std::env::var("SOAK_SECONDS").ok().filter(|text| !text.is_empty());
    let seconds: u64 = seconds.map_or(1800, |text| text.parse().expect("SOAK_SECONDS is a number"));
    for (kind, _) in KINDS {
        let disk = Disk::new(kind, IMAGE_BYTES * 2).expect("it can be mounted");
        let status = stress(&disk, "bpfof_wiredtiger", (seconds / 2).max(1)).status();
        assert!(status.expect("it starts").success(), "{kind}");
    }
}
