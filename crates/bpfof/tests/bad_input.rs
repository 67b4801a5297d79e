//! Invalid options are refused with an error that names option and value; interrupted commands leave nothing half done.

mod command;
mod wait;

use command::{BPFOF, Target, bad, bpfof, good, json};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use wait::until;

/// The command fails, and its error contains these words.
fn refused(arguments: &[&str], named: &[&str]) {
    let errors = bad(arguments);
    for name in named {
        assert!(errors.contains(name), "{arguments:?} does not say {name}: {errors}");
    }
}

#[test]
fn options_that_make_no_sense_are_named_with_their_value() {
    for bench in ["kv", "net"] {
        refused(&["bench", bench, "--depths", "0"], &["'0'", "--depths"]);
        refused(&["bench", bench, "--depths", "1,2000"], &["'2000'", "--depths"]);
        refused(&["bench", bench, "--repetitions", "0"], &["'0'", "--repetitions"]);
    }
    refused(&["bench", "kv", "--levels", "3", "--cached", "5"], &["--cached 5", "3 levels"]);
    refused(&["bench", "kv", "--ranges", "0"], &["'0'", "--ranges"]);
    refused(&["bench", "net", "--milliseconds", "0"], &["'0'", "--milliseconds"]);
    let wiredtiger = ["bench", "wiredtiger", "--workloads", "uniform,other"];
    refused(&wiredtiger, &["--workloads other", "uniform, zipf"]);
    let memory = ["target", "--listen", "127.0.0.1:0", "--namespace", "mem:size=900TiB"];
    refused(&memory, &["make them smaller, serve files, or give --overcommit-memory"]);
    let source = "../../functions/bpfkv_get.bpf.c";
    refused(&["function", "check", source], &["is C source", "clang -O2 -g -target bpf"]);
}

#[test]
fn options_without_effect_are_refused() {
    let target = "nvme-tcp://127.0.0.1:1/nqn.2026-01.io.bpf-of:target";
    for option in ["--latency-us", "--iops"] {
        refused(
            &["bench", "kv", "--target", target, option, "7"],
            &["cannot be used with", option],
        );
    }
    let parts = ["bench", "function", "--only", "node", "--parts", "loading"];
    refused(&parts, &["--only", "--parts"]);
}

#[test]
fn long_words_are_not_repeated_in_full() {
    let long = "x".repeat(10_000);
    let errors = bad(&["kv", "get", "--target", &long, "1"]);
    assert!(errors.len() < 1000 && errors.contains("xxx…"), "{errors}");
}

#[test]
fn the_doctor_tells_why_it_cannot_listen() {
    let says = |address: &str| {
        let output = bpfof(&["doctor", "--listen", address]);
        assert!(!output.status.success());
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let taken = Target::start(&["mem:size=1MiB"]);
    let (taken, foreign) = (says(&taken.address), says("203.0.113.1:4420"));
    let line = |text: &str| text.lines().find(|line| line.contains("port")).map(str::to_owned);
    assert_ne!(line(&taken), line(&foreign));
    assert!(foreign.contains("this machine has no such address"), "{foreign}");
}

#[test]
fn the_target_comes_from_the_environment() {
    let target = Target::start(&["mem:size=1MiB"]);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(BPFOF);
        let output = command.args(arguments).env("BPFOF_TARGET", &target.url).output();
        let output = output.expect("bpfof starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    run(&["kv", "create", "--levels", "2"]);
    assert_eq!(run(&["kv", "get", "7"]), "7 7\n");
    assert!(run(&["kv", "range", "1", "3"]).contains("2 2"));
    assert!(run(&["kv", "aggregate", "sum", "0", "100"]).contains("4950"));
    assert!(run(&["function", "list"]).contains("no function is installed"));
}

/// A database of one subtree: all other keys look damaged.
#[test]
fn a_failed_lookup_does_not_hide_other_keys() {
    let target = Target::start(&["mem:size=16MiB"]);
    good(&["kv", "create", "--levels", "3", "--subtrees", "1", "--target", &target.url]);
    for plain in [&[][..], &["--plain"]] {
        let arguments = [&["kv", "get", "--json", "--target", &target.url], plain, &["-"]].concat();
        let mut get = Command::new(BPFOF);
        get.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut get = get.spawn().expect("bpfof starts");
        let mut keys = get.stdin.take().expect("piped");
        keys.write_all(b"1\n20000\n2\nx\n3\n").expect("it reads");
        drop(keys);
        let output = get.wait_with_output().expect("it ends");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains("key 20000: "), "{errors}");
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let pair = |key: u64| serde_json::json!({ "key": key, "value": key.to_string() });
        assert_eq!(found, serde_json::json!([pair(1), pair(2)]));
    }
}

#[test]
fn an_interrupted_creation_says_what_is_left_of_the_namespace() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("namespace");
    File::create(&path).and_then(|file| file.set_len(3 << 30)).expect("a sparse file");
    let target = Target::start(&[&format!("file:path={}", path.display())]);
    let mut create = Command::new(BPFOF);
    create.args(["kv", "create", "--levels", "5", "--target", &target.url]).stderr(Stdio::piped());
    let child = interrupt_once(&mut create, Signal::INT, || {
        std::fs::metadata(&path).expect("it is there").blocks() >= 4096
    });
    let output = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{errors}");
    assert!(errors.contains("interrupted: namespace 1 has no usable database now"), "{errors}");
}

/// No machine has the address; the libraries are those of this machine, or a file that cannot be loaded.
#[test]
fn a_target_that_cannot_do_rdma_says_what_it_needs() {
    let start = |libraries: Option<&Path>| {
        let mut target = Command::new(BPFOF);
        target.args(["target", "--listen", "127.0.0.1:0", "--listen-rdma", "203.0.113.1:4421"]);
        target.args(["--allow-any-host", "--namespace", "mem:size=1MiB"]);
        if let Some(folder) = libraries {
            target.env("LD_LIBRARY_PATH", folder);
        }
        let output = target.output().expect("bpfof starts");
        assert!(!output.status.success());
        let errors = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(errors.contains("cannot listen on 203.0.113.1:4421 for RDMA"), "{errors}");
        assert!(!errors.contains("panicked"), "{errors}");
        errors
    };
    let errors = start(None);
    assert!(errors.contains("modprobe rdma_ucm") || errors.contains("RDMA needs "), "{errors}");
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join(library), "no library").expect("written");
        let errors = start(Some(folder.path()));
        let advice = "; RDMA needs librdmacm.so.1 and libibverbs.so.1 of rdma-core";
        let (cause, _) = errors.split_once(advice).expect(&errors);
        assert!(cause.contains(library), "{library}: {errors}");
    }
    // The same for a host.
    refused(
        &[
            "kv",
            "get",
            "--target",
            "nvme-rdma://203.0.113.1:4421/nqn.2026-01.org.example:disk",
            "1",
        ],
        &["cannot connect to 203.0.113.1:4421 over RDMA"],
    );
    // The transport cannot be another one.
    refused(
        &[
            "target",
            "--listen-rdma",
            "203.0.113.1:4421,transport=tcp",
            "--namespace",
            "mem:size=1MiB",
        ],
        &["leave transport=tcp out, or use --listen"],
    );
    // TLS cannot be required for RDMA.
    refused(
        &[
            "target",
            "--listen-rdma",
            "203.0.113.1:4421",
            "--tls",
            "required",
            "--namespace",
            "mem:size=1MiB",
        ],
        &["203.0.113.1:4421 listens for RDMA, which has no TLS"],
    );
}

/// Sends a signal to a command once `has_begun`.
fn interrupt_once(
    command: &mut Command,
    signal: Signal,
    mut has_begun: impl FnMut() -> bool,
) -> Child {
    let mut child = command.stdout(Stdio::null()).spawn().expect("it starts");
    until("it begins", || {
        assert!(child.try_wait().expect("waits").is_none(), "it has ended");
        has_begun()
    });
    kill_process(Pid::from_child(&child), signal).expect("it runs");
    child
}

#[test]
fn an_interrupted_database_is_not_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, partial) = (folder.path().join("db"), folder.path().join("db.partial"));
    let mut create = Command::new(BPFOF);
    create.args(["kv", "create", "--levels", "6", "--file"]).arg(&file).stderr(Stdio::null());
    for (signal, leaves_partial) in [(Signal::INT, false), (Signal::KILL, true)] {
        let mut child = interrupt_once(&mut create, signal, || {
            std::fs::metadata(&partial).is_ok_and(|file| file.len() > 0)
        });
        let interrupted = (signal == Signal::INT).then_some(130);
        assert_eq!(child.wait().expect("ended").code(), interrupted);
        assert!(!file.exists(), "{signal:?}");
        assert_eq!(partial.exists(), leaves_partial, "{signal:?}");
    }
    // The partial file of a killed creation does not hinder the next one.
    let path = file.to_str().expect("UTF-8");
    let made = json(&["kv", "create", "--levels", "2", "--json", "--file", path]);
    assert_eq!(made["keys"], 961);
    assert!(file.exists() && !partial.exists());
}

#[test]
fn an_interrupted_benchmark_leaves_no_empty_results() {
    let folder = tempfile::tempdir().expect("a folder");
    let results = folder.path().join("net.json");
    let mut bench = Command::new(BPFOF);
    bench.args(["bench", "net", "--json"]).arg(&results).stderr(Stdio::null());
    let mut child = bench.stdout(Stdio::null()).spawn().expect("it starts");
    std::thread::sleep(Duration::from_secs(2));
    assert!(child.try_wait().expect("waits").is_none(), "it measures for longer");
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    assert!(!child.wait().expect("ended").success());
    assert!(!results.exists());
}

/// The benchmark makes a file with a key for TLS.
#[test]
fn an_interrupted_benchmark_leaves_no_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let is_empty = || std::fs::read_dir(folder.path()).expect("it is there").next().is_none();
    let mut bench = Command::new(BPFOF);
    bench.args(["bench", "net", "--tls"]).env("TMPDIR", folder.path()).stderr(Stdio::null());
    let mut child = interrupt_once(&mut bench, Signal::INT, || !is_empty());
    assert!(!child.wait().expect("ended").success());
    assert!(is_empty());
}

/// There is no target at the socket.
#[test]
fn a_trace_that_does_not_begin_keeps_its_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let (socket, file) = (folder.path().join("none"), folder.path().join("trace.json"));
    std::fs::write(&file, "[]").expect("written");
    let [socket, path] = [&socket, &file].map(|path| path.to_str().expect("UTF-8"));
    bad(&["trace", "--socket", socket, "--chrome", path]);
    assert_eq!(std::fs::read_to_string(&file).expect("it is there"), "[]");
}

#[test]
fn the_commands_have_completions_and_manual_pages() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(good(&["completions", shell]).contains("aggregate"), "{shell}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    good(&["manual", folder.path().to_str().expect("UTF-8")]);
    for page in ["bpfof.1", "bpfof-target.1", "bpfof-kv-get.1", "bpfof-function-run.1"] {
        let text = std::fs::read_to_string(folder.path().join(page)).expect(page);
        assert!(text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"), "{page}");
    }
    // The short help has one line for each option; only the long help has the grammar.
    let (short, long) = (good(&["target", "-h"]), good(&["target", "--help"]));
    let (_, options) = short.split_once("Options:\n").expect("options");
    let is_option = |line: &str| line.trim_start().starts_with('-');
    assert!(
        options.lines().all(is_option) && short.lines().count() < long.lines().count(),
        "{short}"
    );
    assert!(!short.contains("latency_us") && long.contains("latency_us"), "{short}");
}
