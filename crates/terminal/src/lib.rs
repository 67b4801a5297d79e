//! Common parts of the commands of `bpfof`, including the benchmarks: their outcome, messages to the user, progress
//! bars, stopping on a signal, running tools, addresses of targets with their keys, durable file names, and keeping
//! keys out of core dumps.

pub mod folder;
pub mod progress;

use bpfof_host::{HostsFile, KeyFiles, TargetUrl};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::{OsStr, c_int};
use std::fmt::Display;
use std::io::{self, Write};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The outcome of a command; errors are texts for the user.
pub type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Prints a message for the user on standard error. Ignores errors: `eprintln!` would panic if standard error is
/// closed.
pub fn tell(what: impl Display) {
    let _ = writeln!(io::stderr(), "bpfof: {what}");
}

/// Standard output, whose errors say that they are its.
#[derive(Debug)]
pub struct Output(io::StdoutLock<'static>);

/// Locks standard output.
pub fn output() -> Output {
    Output(io::stdout().lock())
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(of_output)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(of_output)
    }
}

fn of_output(error: io::Error) -> io::Error {
    match error.kind() {
        // Callers try again.
        io::ErrorKind::Interrupted => error,
        kind => io::Error::new(kind, format!("cannot write to standard output: {error}")),
    }
}

/// The signals that end a command: Ctrl-C, SIGTERM and the loss of the terminal (SIGHUP, unless nohup has it ignored).
pub fn end_signals() -> impl Iterator<Item = c_int> {
    [SIGINT, SIGTERM].into_iter().chain((!ignores_hang_up()).then_some(SIGHUP))
}

/// A flag that [these signals](end_signals) set, so that a command can undo unfinished work.
///
/// # Errors
/// A signal handler cannot be installed.
pub fn stop_on_signal() -> io::Result<Arc<AtomicBool>> {
    flag_of_signals(false)
}

/// The same for a command that leaves at most a temporary file behind: a second signal ends it at once, whatever it
/// waits for.
///
/// # Errors
/// Those of [`stop_on_signal`].
pub fn stop_or_end_on_signal() -> io::Result<Arc<AtomicBool>> {
    flag_of_signals(true)
}

fn flag_of_signals(second_ends: bool) -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in end_signals() {
        if second_ends {
            // Registered before the handler that sets the flag, so that the first signal does not end the process.
            let status = 128 + signal;
            signal_hook::flag::register_conditional_shutdown(signal, status, Arc::clone(&stop))?;
        }
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// Whether this process was started to outlive its terminal (nohup).
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    ignored.is_some_and(|set| set & 1 << (SIGHUP - 1) != 0)
}

/// Runs a program that must succeed.
///
/// # Errors
/// A text for the user: the program cannot be started, or what it has written on standard error.
pub fn run_tool(command: &mut Command) -> Result<(), String> {
    let output = command.output();
    let program = command.get_program().display();
    let output = output.map_err(|error| format!("cannot run {program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let arguments: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} {}: {}", arguments.join(" "), errors.trim()))
}

/// Reads the address of a target from a command line. If it names neither this host's NQN nor keys, they come from the
/// user's file ([`HostsFile`]). With keys, [this process dumps no core](forbid_core_dumps) from now on.
///
/// # Errors
/// A text for the user: an invalid address, or a file that cannot be used.
pub fn target_url(text: &str) -> Result<TargetUrl, String> {
    let mut url: TargetUrl = text.parse().map_err(|error| format!("{error}"))?;
    complete_url(&mut url)?;
    Ok(url)
}

/// The same for a parsed address.
///
/// # Errors
/// A text for the user: a file that cannot be used.
pub fn complete_url(url: &mut TargetUrl) -> Result<(), String> {
    if let Some(file) = HostsFile::of_user().map_err(|error| error.to_string())? {
        file.complete(url).map_err(|error| error.to_string())?;
    }
    if url.keys != KeyFiles::default() {
        forbid_core_dumps().map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// The target that the environment names (`BPFOF_TARGET`), with the user's keys.
///
/// # Errors
/// A text that says what is wrong with the address.
pub fn default_target() -> Result<Option<TargetUrl>, String> {
    match std::env::var("BPFOF_TARGET") {
        Ok(text) if !text.is_empty() => {
            target_url(&text).map(Some).map_err(|error| format!("BPFOF_TARGET: {error}"))
        }
        _ => Ok(None),
    }
}

/// Keeps keys that this process is about to read out of core dumps, and away from debuggers of the same user.
/// Afterwards only administrators can trace it.
///
/// # Errors
/// The kernel refuses, which it never does.
pub fn forbid_core_dumps() -> io::Result<()> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| io::Error::other(format!("cannot forbid core dumps: {error}")))
}
