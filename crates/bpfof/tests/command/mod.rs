//! Runs `bpfof`: commands that end, and targets.
#![allow(dead_code)] // Each test uses a part.

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub(crate) const BPFOF: &str = env!("CARGO_BIN_EXE_bpfof");

pub(crate) fn bpfof(arguments: &[&str]) -> Output {
    Command::new(BPFOF).args(arguments).output().expect("bpfof starts")
}

/// Standard output of a command that must succeed.
pub(crate) fn good(arguments: &[&str]) -> String {
    let output = bpfof(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

pub(crate) fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&good(arguments)).expect("JSON")
}

/// Standard error of a command that must fail, without a panic.
pub(crate) fn bad(arguments: &[&str]) -> String {
    let output = bpfof(arguments);
    let errors = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(!output.status.success(), "{arguments:?} succeeded");
    assert!(!errors.contains("panicked"), "{errors}");
    errors
}

/// A target process, killed when dropped.
pub(crate) struct Target {
    pub(crate) child: Child,
    pub(crate) address: String,
    pub(crate) url: String,
}

impl Target {
    pub(crate) fn start(namespaces: &[&str]) -> Target {
        let mut command = Target::command();
        for namespace in namespaces {
            command.args(["--namespace", namespace]);
        }
        Target::run(command)
    }

    pub(crate) fn command() -> Command {
        let mut command = Command::new(BPFOF);
        command.args(["target", "--listen", "127.0.0.1:0", "--json", "--quiet"]);
        command
    }

    pub(crate) fn run(command: Command) -> Target {
        Target::announced(command).0
    }

    /// The same; also returns what the target prints.
    pub(crate) fn announced(mut command: Command) -> (Target, Value) {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("bpfof starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let announced: Value = serde_json::from_str(&line).expect("JSON");
        let text = |key: &str| announced[key].as_str().expect("a string").to_owned();
        (Target { child, address: text("listening"), url: text("url") }, announced)
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it runs");
    }

    /// The exit code, within ten seconds.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        self.wait_for(Duration::from_secs(10))
    }

    /// The exit code, within this time.
    pub(crate) fn wait_for(&mut self, patience: Duration) -> Option<i32> {
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().expect("waits") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("the target does not end");
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
