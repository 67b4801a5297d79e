//! Programs that use a database, and the output of RocksDB's program.

use bpfof_terminal::{Outcome, stop_on_signal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

/// How often Ctrl-C is checked.
const LOOK: Duration = Duration::from_millis(100);

/// How the tables are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Mode {
    /// RocksDB, at the target, one block after the other.
    Plain,
    /// Chains at the target.
    Chains,
    /// All blocks at once, at the target; RocksDB searches them.
    Blocks,
    /// Chains at the target, with a separate command for each key of a MultiGet.
    Single,
    /// RocksDB, on the loop device of this machine, which has no modelled latency.
    Local,
}

impl Mode {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Mode::Plain => "plain",
            Mode::Chains => "chains",
            Mode::Blocks => "blocks",
            Mode::Single => "single",
            Mode::Local => "local",
        }
    }
}

/// A line of the program's output: one repetition of a workload in a mode.
#[derive(Deserialize)]
pub(super) struct Measurement {
    pub(super) workload: String,
    pub(super) mode: Mode,
    pub(super) threads: u32,
    pub(super) operations: u64,
    pub(super) seconds: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    /// Share of all processors' time that a hypervisor gave to others meanwhile, of 1.
    pub(super) stolen: f64,
    pub(super) host_cpu_s: f64,
    pub(super) target_cpu_s: Option<f64>,
    pub(super) energy_j: Option<f64>,
    pub(super) rocksdb_blocks: u64,
    /// The following fields are missing in `Mode::Local`.
    #[serde(default)]
    pub(super) chain_blocks: u64,
    pub(super) sent_bytes: Option<u64>,
    pub(super) received_bytes: Option<u64>,
    /// Counts of Gets by the way they were served.
    #[serde(default)]
    pub(super) gets: BTreeMap<String, u64>,
}

/// The name of a program, and the integration that builds it.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) integration: &'static str,
}

/// The path of the program, and whether the user has interrupted it.
pub(crate) struct Driver {
    name: &'static str,
    program: PathBuf,
    stop: Arc<AtomicBool>,
}

impl Driver {
    /// Looks for the program where the build puts it, unless the user gave its path.
    pub(crate) fn find(what: &Program, named: Option<&Path>) -> Result<Driver, Box<dyn Error>> {
        let Program { name, integration } = *what;
        let stop = stop_on_signal()?;
        let own = std::env::current_exe()?;
        let beside = own.with_file_name(name);
        // target/release/bpfof and target/rocksdb
        let built = own.ancestors().nth(2).unwrap_or(Path::new("")).join(integration).join(name);
        let places = match named {
            Some(path) => vec![path.to_owned()],
            None => vec![beside, built, Path::new("target").join(integration).join(name)],
        };
        if let Some(program) = places.iter().find(|path| path.is_file()) {
            return Ok(Driver { name, program: program.clone(), stop });
        }
        let places: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
        Err(format!(
            "there is no {name} at {}: `make bench-{integration}` builds it, or `cmake -S \
             integrations/{integration} -B target/{integration} -DBPFOF_TESTS=ON && cmake --build \
             target/{integration}`; name another place by --driver",
            places.join(", ")
        )
        .into())
    }

    /// The program's path.
    pub(crate) fn path(&self) -> &Path {
        &self.program
    }

    /// Runs the program, and passes each line of its output to `take`. Ends it on Ctrl-C.
    pub(crate) fn run(
        &self,
        arguments: &[OsString],
        take: &mut dyn FnMut(&str) -> Outcome,
    ) -> Outcome {
        let mut command = Command::new(&self.program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        let failed = |error: std::io::Error| format!("{}: {error}", self.program.display());
        let mut running = Running(command.spawn().map_err(failed)?);
        let lines = lines_of(running.0.stdout.take());
        loop {
            let line = lines.recv_timeout(LOOK);
            if self.stop.load(Ordering::Relaxed) {
                return Err("interrupted".into());
            }
            match line {
                Ok(line) => take(&line.map_err(failed)?)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = running.0.wait().map_err(failed)?;
        if !status.success() {
            return Err(format!("{} failed ({status}); its own message is above", self.name).into());
        }
        Ok(())
    }
}

/// A process that is stopped when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads lines in a separate thread.
fn lines_of(output: Option<ChildStdout>) -> Receiver<std::io::Result<String>> {
    let (sender, receiver) = mpsc::channel();
    if let Some(output) = output {
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
    }
    receiver
}
