//! The grant daemon as a process, and processes without privileges.

use super::disk::BPFOF;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Nobody in particular.
pub(crate) const UID: u32 = 65_534;

/// A daemon, ended when dropped.
pub(crate) struct Grantd {
    pub(crate) socket: PathBuf,
    process: Child,
}

impl Grantd {
    /// Serves `image`, which the target at `url` serves, to everybody.
    pub(crate) fn start(url: &str, image: &Path, arguments: &[&str]) -> Grantd {
        Grantd::start_in(url, image, arguments, &[])
    }

    /// The same with these variables.
    pub(crate) fn start_in(
        url: &str,
        image: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Grantd {
        let socket = image.with_file_name("grantd.sock");
        let mut process = Command::new(BPFOF)
            .args(["grantd", "--json", "--quiet", "--exit-with-parent", "--mode", "0666"])
            .arg("--socket")
            .arg(&socket)
            .args(["--target", url, "--device"])
            .arg(image)
            .args(arguments)
            .env_remove("NOTIFY_SOCKET")
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bpfof starts");
        let mut line = String::new();
        let output = process.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        assert!(line.contains("socket"), "the daemon has not started: {line}");
        Grantd { socket, process }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it runs");
    }

    /// Ends it in order, or waits for its end.
    pub(crate) fn stop(mut self) {
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let status = self.process.wait().expect("it ends");
        assert!(status.success(), "the daemon has ended with {status}");
    }
}

impl Drop for Grantd {
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            // In order: or who holds its leases would hold them for a while.
            self.signal(Signal::CONT);
            self.signal(Signal::TERM);
            let _ = self.process.wait();
        }
    }
}

/// Runs an ignored test of this program as a process of [`UID`], with these variables.
pub(crate) fn as_nobody(test: &str, variables: &[(&str, &str)]) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", "--nocapture", test])
        .envs(variables.iter().copied())
        .uid(UID)
        .gid(UID)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts")
}

/// What it has printed, once it has ended well.
pub(crate) fn outcome(child: Child) -> String {
    let output = child.wait_with_output().expect("it ends");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}: {printed}", output.status);
    printed
}

/// A number that such a process has printed as "NAME=NUMBER".
pub(crate) fn number(printed: &str, name: &str) -> u64 {
    let text =
        printed.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    text.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no {name} in: {printed}"))
}

/// A variable that the parent has set.
pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}
