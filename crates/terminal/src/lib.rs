//! What the commands of `bpfof` share, the benchmarks included: how they end, what they tell beside their answers, bars that show progress,
//! stopping by a signal, addresses of targets with the keys for them, names of files that last, and keeping keys out of
//! core dumps.

pub mod folder;
pub mod progress;

use bpfof_host::{HostsFile, KeyFiles, TargetUrl};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What a command ends with: an error in words for the user.
pub type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Tells the user something on standard error. Nobody may read it any more: `eprintln!` would panic then.
pub fn tell(what: impl Display) {
    let _ = writeln!(io::stderr(), "bpfof: {what}");
}

/// A flag that Ctrl-C, SIGTERM and the loss of the terminal (SIGHUP, unless [it is ignored](ignores_hang_up)) set, so
/// that a command can undo what is half done.
///
/// # Errors
/// A signal handler cannot be installed.
pub fn stop_on_signal() -> io::Result<Arc<AtomicBool>> {
    flag_of_signals(false)
}

/// The same for a command that leaves a temporary file behind at most: one more signal ends it at once, whatever it
/// waits for.
///
/// # Errors
/// As of [`stop_on_signal`].
pub fn stop_or_end_on_signal() -> io::Result<Arc<AtomicBool>> {
    flag_of_signals(true)
}

fn flag_of_signals(second_ends: bool) -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM].into_iter().chain((!ignores_hang_up()).then_some(SIGHUP)) {
        if second_ends {
            // Before the flag is set: the first signal is none that ends it.
            let status = 128 + signal;
            signal_hook::flag::register_conditional_shutdown(signal, status, Arc::clone(&stop))?;
        }
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// Whether who has started this process wants it to outlive its terminal (nohup).
#[must_use]
pub fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    ignored.is_some_and(|set| set & 1 << (SIGHUP - 1) != 0)
}

/// Reads the address of a target from a command line. What it does not say of who this host is and which
/// keys it has, the user's file says ([`HostsFile`]). With keys, [this process dumps no
/// core](forbid_core_dumps) from here on.
///
/// # Errors
/// Words for the user: no address, or a file that cannot be used.
pub fn target_url(text: &str) -> Result<TargetUrl, String> {
    let mut url: TargetUrl = text.parse().map_err(|error| format!("{error}"))?;
    complete_url(&mut url)?;
    Ok(url)
}

/// The same for an address that was read from elsewhere.
///
/// # Errors
/// Words for the user: a file that cannot be used.
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
/// What is wrong with the address, in words.
pub fn default_target() -> Result<Option<TargetUrl>, String> {
    match std::env::var("BPFOF_TARGET") {
        Ok(text) if !text.is_empty() => {
            target_url(&text).map(Some).map_err(|error| format!("BPFOF_TARGET: {error}"))
        }
        _ => Ok(None),
    }
}

/// Keeps keys that this process is about to read out of core dumps, and from debuggers of the same user.
/// It cannot be traced any more but by administrators.
///
/// # Errors
/// The kernel refuses, which it never does.
pub fn forbid_core_dumps() -> io::Result<()> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| io::Error::other(format!("cannot forbid core dumps: {error}")))
}
