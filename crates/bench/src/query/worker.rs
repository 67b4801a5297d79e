//! The processes that run queries: `bpfof-query` as the host's side, and Python with DuckDB and pyarrow. Each reads
//! lines of JSON and answers with lines of JSON.

use super::private::tool;
use crate::child_target::command_by;
use bpfof_host::TargetUrl;
use bpfof_query_bench::{Ask, Cost, Told};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

type Failure = Box<dyn std::error::Error>;

/// The program of the host's side.
const PROGRAM: &str = "bpfof-query";
const BASELINE: &str = include_str!("baseline.py");

/// A process that answers lines; dropping this ends it.
pub(super) struct Lines {
    name: &'static str,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Lines {
    fn start(name: &'static str, command: &mut Command) -> Result<Lines, Failure> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {name}: {error}"))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or("its output is piped")?);
        Ok(Lines { name, child, input, output })
    }

    fn send(&mut self, ask: &impl Serialize) -> Result<(), Failure> {
        let line = serde_json::to_string(ask)? + "\n";
        let input = self.input.as_mut().ok_or("its input is piped")?;
        let sent = input.write_all(line.as_bytes()).and_then(|()| input.flush());
        Ok(sent.map_err(|error| format!("{} does not listen: {error}", self.name))?)
    }

    fn receive<T: for<'a> Deserialize<'a>>(&mut self) -> Result<T, Failure> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(format!("{} has ended; its own message is above", self.name).into());
        }
        Ok(serde_json::from_str(&line)?)
    }
}

/// Ends a process that has not been waited for.
pub(super) fn kill(pid: Pid) {
    let _ = kill_process(pid, Signal::KILL);
}

impl Drop for Lines {
    fn drop(&mut self) {
        // The process ends with its input; if it is busy, it is killed.
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The cost of a query.
#[derive(Clone, Debug, Default)]
pub(super) struct Took {
    pub(super) wall_s: f64,
    pub(super) cpu_s: f64,
    pub(super) cost: Cost,
}

/// A host that queries the target.
pub(super) struct Worker(Lines);

impl Worker {
    /// Starts the program, through a command prefix if there is one.
    pub(super) fn start(
        prefix: &[String],
        url: &TargetUrl,
        device: &Path,
    ) -> Result<Worker, Failure> {
        let beside = std::env::current_exe()?.with_file_name(PROGRAM);
        let program = if beside.exists() { beside } else { PathBuf::from(PROGRAM) };
        let mut command = command_by(prefix, &program);
        command.args(["--bench-worker", "--target", &url.to_string(), "--device"]).arg(device);
        let mut lines = Lines::start(PROGRAM, &mut command)?;
        match lines.receive()? {
            Told::Ready => Ok(Worker(lines)),
            _ => Err(format!("{PROGRAM} has another version than this program").into()),
        }
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.0.child)
    }

    pub(super) fn send(&mut self, ask: &Ask) -> Result<(), Failure> {
        self.0.send(ask)
    }

    pub(super) fn receive(&mut self) -> Result<Took, Failure> {
        match self.0.receive()? {
            Told::Done { wall_ns, cpu_ns, cost } => {
                Ok(Took { wall_s: wall_ns as f64 * 1e-9, cpu_s: cpu_ns as f64 * 1e-9, cost })
            }
            Told::Failed(why) => Err(why.into()),
            Told::Ready => Err("an answer without a query".into()),
        }
    }

    pub(super) fn ask(&mut self, ask: &Ask) -> Result<Took, Failure> {
        self.send(ask)?;
        self.receive()
    }
}

/// Python with other engines, for comparison.
pub(super) struct Engines {
    lines: Lines,
    /// The engines' names and versions.
    pub(super) versions: String,
}

/// A query for an engine, which reads the file's bytes from a pipe.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct EngineAsk<'a> {
    pub(super) engine: &'a str,
    pub(super) format: &'a str,
    pub(super) pipe: &'a Path,
    /// The query, with `FROM rows`.
    pub(super) sql: &'a str,
    /// The bound of `amount < below` in the same query, for pyarrow, which has no SQL.
    pub(super) below: i32,
}

#[derive(Deserialize)]
struct EngineTold {
    #[serde(default)]
    wall_s: f64,
    #[serde(default)]
    cpu_s: f64,
    #[serde(default)]
    answer: Vec<f64>,
    failed: Option<String>,
}

impl Engines {
    pub(super) fn start(prefix: &[String], python: &Path) -> Result<Engines, Failure> {
        let mut command = command_by(prefix, python);
        command.args(["-c", BASELINE]);
        let mut lines = Lines::start("python3", &mut command)?;
        #[derive(Deserialize)]
        struct Hello {
            versions: Option<String>,
            failed: Option<String>,
        }
        let hello: Hello = lines.receive()?;
        match (hello.versions, hello.failed) {
            (Some(versions), None) => Ok(Engines { lines, versions }),
            (_, why) => Err(why.unwrap_or_default().into()),
        }
    }

    /// Pins all its threads, and those that they start, to these processors.
    pub(super) fn pin(&self, processors: &str) -> bpfof_terminal::Outcome {
        let pid = self.lines.child.id().to_string();
        tool("taskset", &["--all-tasks", "--pid", "--cpu-list", processors, &pid])
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.lines.child)
    }

    pub(super) fn send(&mut self, ask: &EngineAsk<'_>) -> Result<(), Failure> {
        self.lines.send(ask)
    }

    /// Writes the records of a file as an Arrow file.
    pub(super) fn write_arrow(&mut self, records: &Path, arrow: &Path) -> Result<(), Failure> {
        #[derive(Serialize)]
        struct Write<'a> {
            engine: &'a str,
            records: &'a Path,
            arrow: &'a Path,
        }
        self.lines.send(&Write { engine: "write", records, arrow })?;
        self.receive().map(|_| ())
    }

    /// The cost, and the numbers of the answer's only row.
    pub(super) fn receive(&mut self) -> Result<(Took, Vec<f64>), Failure> {
        let told: EngineTold = self.lines.receive()?;
        if let Some(why) = told.failed {
            return Err(why.into());
        }
        let took = Took { wall_s: told.wall_s, cpu_s: told.cpu_s, cost: Cost::default() };
        Ok((took, told.answer))
    }
}
