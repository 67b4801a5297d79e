//! The grant daemon as a process.

use super::disk::BPFOF;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The user `nobody`.
pub(crate) const UID: u32 = 65_534;

/// A daemon, ended when dropped.
pub(crate) struct Grantd {
    pub(crate) socket: PathBuf,
    process: Child,
}

impl Grantd {
    /// Starts a daemon that grants files of `image`, which the target at `url` serves, to all
    /// users, and trusts owners of files.
    pub(crate) fn start(url: &str, image: &Path, arguments: &[&str]) -> Grantd {
        Grantd::start_by(&[], url, image, &[arguments, &["--trust-owners"]].concat(), &[])
    }

    /// Starts a daemon through a launcher, with these environment variables.
    pub(crate) fn start_by(
        launcher: &[&str],
        url: &str,
        image: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Grantd {
        let socket = image.with_file_name("grantd.sock");
        let words = [launcher, &[BPFOF]].concat();
        let (program, first) = words.split_first().expect("a program");
        let mut process = Command::new(program)
            .args(first)
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

    /// Ends the daemon in order.
    pub(crate) fn stop(mut self) {
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let status = self.process.wait().expect("it ends");
        assert!(status.success(), "the daemon has ended with {status}");
    }
}

impl Drop for Grantd {
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            // In order: after a crash the process that holds its leases would keep them for a
            // while.
            self.signal(Signal::CONT);
            self.signal(Signal::TERM);
            let _ = self.process.wait();
        }
    }
}
