//! Signals to the target, which must be able to end it while its main thread waits for a file that cannot be opened.

use crate::log_writer;
use bpfof_controller::Paths;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The signal for changes that operators have requested. It is not SIGHUP, because pending signals of the same kind are
/// delivered as one.
pub(crate) const OPERATORS: i32 = SIGUSR1;

/// How long a target that stops waits for hosts to use other paths.
pub(crate) const FAREWELL: Duration = Duration::from_secs(2);

/// How long the main thread may take to see that the target is to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two checks whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The signals that this process receives, in their order.
pub(crate) struct Received {
    signals: Receiver<i32>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The main thread ends the target.
    is_ending: AtomicBool,
    /// The paths of hosts, once there are any.
    paths: OnceLock<Paths>,
}

impl Received {
    /// Receives SIGTERM, SIGINT, SIGHUP and [`OPERATORS`] from now on.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(crate) fn begin() -> io::Result<Received> {
        let mut received = Signals::new([SIGTERM, SIGINT, SIGHUP, OPERATORS])?;
        let (to, signals) = channel();
        let shared = Arc::<Shared>::default();
        let here = Arc::clone(&shared);
        let forward = move || {
            for signal in received.forever() {
                let is_heard = to.send(signal).is_ok();
                if !is_heard || is_end(signal) {
                    return here.end_if_stuck(signal);
                }
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(forward)?;
        Ok(Received { signals, shared })
    }

    /// Hosts are served by these paths.
    pub(crate) fn serve(&self, paths: Paths) {
        let _ = self.shared.paths.set(paths);
    }

    /// Waits for signals. Returns whether there is a SIGHUP among those that have come; none if the target is to end.
    pub(crate) fn next(&self) -> Option<bool> {
        let first = self.signals.recv().unwrap_or(SIGTERM);
        let mut asks_reload = false;
        for signal in std::iter::once(first).chain(self.signals.try_iter()) {
            if is_end(signal) {
                self.shared.is_ending.store(true, Ordering::Relaxed);
                log::info!("signal {signal}: stopping");
                return None;
            }
            asks_reload |= signal == SIGHUP;
        }
        Some(asks_reload)
    }
}

fn is_end(signal: i32) -> bool {
    ![SIGHUP, OPERATORS].contains(&signal)
}

impl Shared {
    /// Ends the process if the main thread does not begin to end the target.
    fn end_if_stuck(&self, signal: i32) {
        if self.begins_to_end(PATIENCE) {
            return;
        }
        log::error!(
            "signal {signal}: stopping, although the main thread is still busy: it opens a file, or \
             carries out a change of the configuration"
        );
        if let Some(paths) = self.paths.get()
            && paths.drain(&[]).is_ok()
            && self.begins_to_end(FAREWELL)
        {
            return;
        }
        log_writer::flush();
        std::process::exit(1);
    }

    /// Whether the main thread begins to end the target within this time.
    fn begins_to_end(&self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        loop {
            if self.is_ending.load(Ordering::Relaxed) {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}
