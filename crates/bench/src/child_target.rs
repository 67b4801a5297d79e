//! A target started by the benchmark, as a process on a processor of its own.

use crate::machine;
use bpfof_host::TargetUrl;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time that a target gets to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// A running `bpfof target`; dropping it stops it.
pub(crate) struct ChildTarget {
    child: Child,
    pub(crate) url: TargetUrl,
}

impl ChildTarget {
    /// Starts this program as a target on a port that the kernel chooses, with one namespace.
    pub(crate) fn start(namespace: &str, poll: bool) -> Result<ChildTarget, String> {
        ChildTarget::start_with(namespace, poll, &[])
    }

    /// The same with further options.
    pub(crate) fn start_with(
        namespace: &str,
        poll: bool,
        options: &[&str],
    ) -> Result<ChildTarget, String> {
        let options = [&["--listen", "127.0.0.1:0"], options].concat();
        ChildTarget::start_by(&[], namespace, poll, &options)
    }

    /// The same through a command prefix that executes the program; the options say where to listen.
    pub(crate) fn start_by(
        prefix: &[String],
        namespace: &str,
        poll: bool,
        options: &[&str],
    ) -> Result<ChildTarget, String> {
        let failed = |error: std::io::Error| format!("cannot start a target: {error}");
        let mut command = command_by(prefix, &std::env::current_exe().map_err(failed)?);
        command.args(["target", "--json", "--quiet"]);
        command.args(["--exit-with-parent", "--namespace", namespace]);
        // Only a part of a large database is written.
        command.arg("--overcommit-memory");
        if let Some(processor) = machine::processors().1 {
            command.args(["--cores", &processor.to_string()]);
        }
        if poll {
            command.arg("--poll");
        }
        command.args(options);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(failed)?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line).map_err(failed)?;
        }
        let announced: Option<serde_json::Value> = serde_json::from_str(&line).ok();
        let url = announced.as_ref().and_then(|value| value["url"].as_str()?.parse().ok());
        match url {
            Some(url) => Ok(ChildTarget { child, url }),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                Err("the target did not start; its own message is above".to_owned())
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The target's resident memory, in bytes.
    pub(crate) fn resident_bytes(&self) -> Result<u64, String> {
        let path = format!("/proc/{}/statm", self.pid());
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        let bytes = pages.map(|pages| pages * rustix::param::page_size() as u64);
        bytes.ok_or_else(|| format!("{path}: no number of pages in {text:?}"))
    }

    /// Asks the target to stop, and returns how long it took.
    ///
    /// # Errors
    /// The target did not end in time, and was killed; or it had ended before.
    pub(crate) fn stop(mut self) -> Result<Duration, String> {
        if let Some(status) = self.child.try_wait().map_err(failed)? {
            return Err(format!("the target ended unexpectedly ({status})"));
        }
        self.end()
    }

    /// The same for a target that may have ended.
    fn end(&mut self) -> Result<Duration, String> {
        let begun = Instant::now();
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        while self.child.try_wait().map_err(failed)?.is_none() {
            if begun.elapsed() > STOP_PATIENCE {
                self.child.kill().map_err(failed)?;
                self.child.wait().map_err(failed)?;
                return Err(format!("the target still runs {STOP_PATIENCE:?} after SIGTERM"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(begun.elapsed())
    }

    /// Processor time the target has used so far, in ns.
    pub(crate) fn cpu_ns(&self) -> Option<u64> {
        machine::process_cpu_ns(self.child.id())
    }
}

fn failed(error: std::io::Error) -> String {
    format!("the target: {error}")
}

/// A program, started through a command prefix that executes it.
pub(crate) fn command_by(prefix: &[String], program: &Path) -> Command {
    match prefix {
        [] => Command::new(program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
    }
}

impl Drop for ChildTarget {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None))
            && let Err(error) = self.end()
        {
            eprintln!("{error}");
        }
    }
}
