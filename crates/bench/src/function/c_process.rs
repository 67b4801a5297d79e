//! The same C as a native program: compiled on this machine, and run as a separate process.

use super::cases::Case;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use tempfile::TempDir;

/// The main program, in place of a target: calls the function, and makes a round on request.
const HARNESS: &str = include_str!("c/native.c");
/// All headers of `functions/`, by the names with which they are included.
const HEADERS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/headers.rs"));

/// A C compiler of this machine, and a directory with the sources.
pub(super) struct Compiler {
    command: String,
    folder: TempDir,
    /// The compiler's name and version.
    pub(super) version: String,
}

impl Compiler {
    /// Finds `$CC` or `cc`. The error says what is missing.
    pub(super) fn find() -> Result<Compiler, String> {
        let command = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let missing = |error: &dyn std::fmt::Display| {
            format!("no C compiler: `{command}` does not start ({error}); install gcc, or set CC")
        };
        let output = Command::new(&command).arg("--version").output();
        let output = output.map_err(|error| missing(&error))?;
        if !output.status.success() {
            return Err(missing(&output.status));
        }
        let version = String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned);
        let folder = sources().map_err(|error| format!("cannot write the C sources: {error}"))?;
        Ok(Compiler { command, folder, version: version.unwrap_or_default() })
    }

    /// Compiles a case with -O2 and starts it; it makes `rounds` rounds of `calls` calls.
    pub(super) fn start(
        &self,
        case: &Case,
        rounds: usize,
        calls: usize,
    ) -> Result<Reference, String> {
        let folder = self.folder.path();
        let failed = |error: std::io::Error| format!("the C of {}: {error}", case.name);
        std::fs::write(folder.join("source.c"), case.source).map_err(failed)?;
        std::fs::write(folder.join("block"), &case.block).map_err(failed)?;
        std::fs::write(folder.join("arguments"), case.arguments.concat()).map_err(failed)?;
        let compiled = Command::new(&self.command)
            .current_dir(folder)
            .args(["-O2", "-w", "-I.", "native.c", "-o", "native"])
            .arg("-DSOURCE=\"source.c\"")
            .arg(format!("-DFUNCTION={}", case.symbol))
            .arg(format!("-DARGUMENT_BYTES={}", case.arguments[0].len()))
            .output()
            .map_err(failed)?;
        if !compiled.status.success() {
            let words = String::from_utf8_lossy(&compiled.stderr);
            return Err(format!("{} cannot compile {}: {words}", self.command, case.name));
        }
        let mut child = Command::new(folder.join("native"))
            .current_dir(folder)
            .args(["block", "arguments", &rounds.to_string(), &calls.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => {
                Ok(Reference { child, input, output: BufReader::new(output) })
            }
            _ => unreachable!("both are piped"),
        }
    }
}

fn sources() -> std::io::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    for (name, text) in HEADERS.iter().chain([&("native.c", HARNESS)]) {
        let path = folder.path().join(name);
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        std::fs::write(path, text)?;
    }
    Ok(folder)
}

/// A running process; dropping this stops it.
pub(super) struct Reference {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Reference {
    /// ns for each call of the current round; the process then waits.
    pub(super) fn round(&mut self) -> Result<f64, String> {
        let line = self.line()?;
        line.parse().map_err(|_| format!("the C process printed {line:?} instead of a time"))
    }

    /// Begins the next round.
    pub(super) fn go_on(&mut self) -> Result<(), String> {
        let sent = self.input.write_all(b"\n").and_then(|()| self.input.flush());
        sent.map_err(|error| format!("cannot write to the C process: {error}"))
    }

    /// After the last round: the hash of scratch, and the offset of the next read.
    pub(super) fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(1..) => Ok(line.trim().to_owned()),
            Ok(0) => Err("the C process ended early: its function aborts".to_owned()),
            Err(error) => Err(format!("cannot read from the C process: {error}")),
        }
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
