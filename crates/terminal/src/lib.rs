//! What the commands of `bpfof` share, the benchmarks included: how they end, bars that show progress,
//! and stopping by a signal.

pub mod progress;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What a command ends with: an error in words for the user.
pub type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A flag that Ctrl-C and SIGTERM set, so that a command can undo what is half done.
///
/// # Errors
/// A signal handler cannot be installed.
pub fn stop_on_signal() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}
