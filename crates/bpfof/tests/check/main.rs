//! `bpfof function check` on C as people write it.

#[path = "../clang/mod.rs"]
mod clang;

use bpfof_function::abi;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const BPFOF: &str = env!("CARGO_BIN_EXE_bpfof");

/// Compiles a function of `tests/check` or of `functions`.
fn compile(source: &str, folder: &Path) -> String {
    let object = folder.join("function.o");
    clang::compile(source, &object);
    path(object)
}

fn path(path: PathBuf) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

fn check(arguments: &[&str]) -> Output {
    let output = Command::new(BPFOF).args(["function", "check"]).args(arguments).output();
    output.expect("bpfof starts")
}

fn reports(arguments: &[&str]) -> Vec<Value> {
    let output = check(&[&["--json"], arguments].concat());
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn report(arguments: &[&str], entry: &str) -> Value {
    let reports = reports(&[&["--entry", entry], arguments].concat());
    reports.into_iter().next().expect("one")
}

#[test]
fn what_can_be_proved_is_proved_and_the_rest_names_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let object = compile("tests/check/functions.bpf.c", folder.path());
    let found = reports(&[&object]);
    let outcome = |name: &str| {
        let report = found.iter().find(|report| report["name"] == name);
        report.unwrap_or_else(|| panic!("{name} is missing"))["proof"].clone()
    };
    for name in ["sum", "records", "copy", "table", "count", "switch", "endless"] {
        assert_eq!(outcome(name)["outcome"], "proved", "{name}: {}", outcome(name));
    }
    let not = |name: &str, source: &str, reason: &str| {
        let proof = outcome(name);
        assert_eq!(proof["outcome"], "not_proved", "{name}: {proof}");
        assert_eq!(proof["source"], source, "{name}: {proof}");
        assert!(proof["reason"].as_str().is_some_and(|text| text.contains(reason)), "{proof}");
        assert!(proof["file"].as_str().is_some_and(|file| file.ends_with("functions.bpf.c")));
    };
    not(
        "unchecked",
        "return ctx->data[3];",
        "reads 1 byte at ctx->data + 3, which may be past ctx->data_end",
    );
    not("before", "return ctx->scratch[-100000];", "which may be before ctx->scratch");
    not("constant", "*(volatile __u32 *)&primes[2] = ctx->hop;", "tell variables from constants");
    not("loaded", "return **(__u8 **)ctx->scratch;", "a pointer to unknown memory");
    // Reasons name neither registers nor the verifier's internal terms.
    for report in &found {
        let reason = report["proof"]["reason"].as_str().unwrap_or_default();
        let is_register = |word: &str| matches!(word.as_bytes(), [b'r', b'0'..=b'9', ..]);
        let mut words = reason.split(|c: char| !c.is_alphanumeric());
        assert!(!words.any(is_register) && !reason.contains("svalue"), "{reason}");
    }
    let recursive = outcome("recursive");
    assert_eq!(recursive["outcome"], "gave_up");
    assert_eq!(recursive["reason"], "recursive functions cannot be proved");
    let text = String::from_utf8(check(&[&object, "--entry", "unchecked"]).stdout).expect("UTF-8");
    let words = "proof: not proved; checks at run time confine it all the same\n";
    assert!(text.contains(words) && text.contains("functions.bpf.c:"), "{text}");
    // With the block size that the function assumes.
    let enough = report(&[&object, "--block-min", "4"], "unchecked");
    assert_eq!(enough["proof"]["outcome"], "proved");
    assert!(report(&[&object, "--no-proof"], "sum").get("proof").is_none());
}

#[test]
fn shipped_functions_are_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let get = compile("../../functions/bpfkv_get.bpf.c", folder.path());
    let found = report(&[&get, "--block-min", "512"], "get");
    assert_eq!(found["proof"]["outcome"], "proved", "{found}");
    assert_eq!(report(&[&get, "--block-min", "511"], "get")["proof"]["outcome"], "not_proved");
    let cost = &found["cost"];
    let steps = found["worst_instructions"].as_f64().expect("a number");
    let estimate = steps * cost["ns_per_instruction"].as_f64().expect("a number");
    assert_eq!(cost["from"], "instructions");
    assert!((cost["hop_ns"].as_f64().expect("a number") - estimate).abs() < 1e-6, "{found}");
    assert!(steps < found["instructions"].as_f64().expect("a number"), "{found}");
    let sorted = compile("../../functions/sorted_get.bpf.c", folder.path());
    let found = report(&[&sorted], "sorted_get");
    assert_eq!(found["proof"]["outcome"], "not_proved", "{found}");
    assert_eq!((&found["cost"]["from"], &found["cost"]["hop_ns"]), (&"data".into(), &Value::Null));
}

#[test]
fn a_fault_names_line_register_and_bounds() {
    let folder = tempfile::tempdir().expect("a folder");
    let object = compile("tests/check/functions.bpf.c", folder.path());
    let block = path(folder.path().join("block"));
    std::fs::write(&block, [7; 100]).expect("writes");
    // The function adds up whole words, of which the last runs past the end of 100 bytes.
    let arguments = [&object, "--entry", "words", "--run", &block];
    let output = check(&arguments);
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    let (data, scratch) = (abi::DATA, abi::SCRATCH);
    // The fault is at the word at 96, in whatever register.
    let (at, end) = (data + 96, data + 100);
    for part in [
        "functions.bpf.c:".to_owned(),
        "in `sum += *at;`".to_owned(),
        format!(
            " = {at:#x}, access outside its memory at {at:#x}, which runs past the end of the data"
        ),
        format!("scratch {scratch:#x}..{data:#x}, data {data:#x}..{end:#x}"),
    ] {
        assert!(text.contains(&part), "{part}: {text}");
    }
    assert!(!text.contains("proved not to fault"), "{text}");
    let run = report(&[&object, "--run", &block], "words")["run"].clone();
    assert!(run["fault"].as_str().is_some_and(|fault| text.contains(fault)), "{run}");
    assert_eq!((&run["verifier_alarm"], &run["answer_hex"]), (&false.into(), &"".into()));
    let good = report(&[&object, "--run", &block], "copy");
    assert_eq!((&good["cost"]["from"], &good["run"]["done"]), (&"run".into(), &true.into()));
}

#[test]
fn a_dry_run_tells_its_result_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let object = compile("tests/check/functions.bpf.c", folder.path());
    let block = path(folder.path().join("block"));
    std::fs::write(&block, [0; 64]).expect("writes");
    let run = |entry: &str| {
        let output = check(&[&object, "--no-proof", "--entry", entry, "--run", &block]);
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    let (is_good, out, _) = run("ratio");
    assert!(is_good && out.starts_with("ratio: returned 0, "), "{out}");
    let answer = "done; the answer has 8 bytes: 0000000000000000";
    assert!(out.lines().nth(1).is_some_and(|line| line.trim() == answer), "{out}");
    assert!(out.contains("functions.bpf.c:") && out.contains(" divides by zero"), "{out}");
    assert!(!run("copy").1.contains("divides by zero"));
    // As at a target: a call with neither an answer nor a read is an error.
    let (is_good, out, error) = run("idle");
    assert!(!is_good && out.is_empty(), "{out}");
    let words =
        "neither ended the chain nor asked for a read; at a target the chain ends with Invalid";
    assert!(error.contains(words), "{error}");
    let json = report(&[&object, "--run", &block], "idle")["run"].clone();
    assert!(json["invalid_output"].as_str().is_some_and(|text| error.contains(text)), "{json}");
}

#[test]
fn source_is_told_from_objects() {
    let source = "tests/check/functions.bpf.c";
    let output = check(&[source]);
    let error = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(!output.status.success());
    for part in ["is C source", "clang -O2 -g -target bpf", "-o tests/check/functions.bpf.o"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn a_verifier_that_runs_away_is_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let object = compile("tests/check/hard.bpf.c", folder.path());
    let started = Instant::now();
    let found = report(&[&object], "hard");
    assert_eq!(found["proof"]["outcome"], "gave_up", "{found}");
    let reason = found["proof"]["reason"].as_str().expect("words");
    assert!(reason.starts_with("it took "), "{reason}");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());

    // A signal to the command also ends the verifier. (Background processes of shells ignore
    // SIGINT.)
    let mut command = Command::new(BPFOF);
    let command = command.args(["function", "check", &object]).stdout(Stdio::null());
    let mut parent = command.spawn().expect("bpfof starts");
    let children = format!("/proc/{0}/task/{0}/children", parent.id());
    let child = loop {
        assert!(parent.try_wait().expect("waits").is_none(), "it ended too early");
        let list = std::fs::read_to_string(&children).expect("a list");
        if let Some(child) = list.split_whitespace().next() {
            break format!("/proc/{child}/stat");
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let pid = rustix::process::Pid::from_child(&parent);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signals");
    assert!(!parent.wait().expect("waits").success());
    let is_alive = || {
        // "pid (name) state": a zombie counts as dead.
        let stat = std::fs::read_to_string(&child).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
    };
    let started = Instant::now();
    while is_alive() {
        assert!(started.elapsed() < Duration::from_secs(4), "the child goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
}
