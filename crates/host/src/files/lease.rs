//! A read lease on a file: while it is held, nobody can open the file for writing or truncate it.
//!
//! Who wants to, waits in the kernel until the lease is released, for at most the break time. So a
//! chain read unchanged files if the lease was not released before its end, and no break that
//! began before its start could have been forced meanwhile. Both are looked at without a system
//! call.

use super::sys::{self, LeaseState};
use std::fs::File;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How long the kernel's word that nobody waits is taken for it.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Where the kernel tells how long who breaks a lease waits, in seconds. 0 is for ever.
const BREAK_TIME_FILE: &str = "/proc/sys/fs/lease-break-time";
/// What it says unless somebody changed it.
const BREAK_TIME: Duration = Duration::from_secs(45);
/// Shorter ones are not worth the risk.
const BREAK_TIME_MIN: Duration = Duration::from_secs(8);

/// Time since the first call, in ns.
fn now_ns() -> u64 {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    EPOCH.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// How long who breaks a lease waits for its release; None if it is too short to rely on.
pub(crate) fn break_time() -> Option<Duration> {
    let text = std::fs::read_to_string(BREAK_TIME_FILE).ok()?;
    match Duration::from_secs(text.trim().parse().ok()?) {
        Duration::ZERO => Some(BREAK_TIME),
        short if short < BREAK_TIME_MIN => None,
        time => Some(time.min(BREAK_TIME)),
    }
}

/// A lease that is held, until it is released.
#[derive(Debug)]
pub(crate) struct Lease {
    /// No chain starts any more.
    breaking: AtomicBool,
    released: AtomicBool,
    in_flight: AtomicU32,
    /// When the kernel last said that nobody waited, in ns.
    checked_ns: AtomicU64,
    break_time: Duration,
}

impl Lease {
    /// A lease that has just been found held.
    pub(crate) fn held(break_time: Duration) -> Self {
        Self {
            breaking: AtomicBool::new(false),
            released: AtomicBool::new(false),
            in_flight: AtomicU32::new(0),
            checked_ns: AtomicU64::new(0),
            break_time,
        }
    }

    /// Before a chain starts. Until when it must have ended, in ns; None if somebody waits for the
    /// lease. Otherwise [`end`](Self::end) must follow.
    pub(crate) fn begin(&self, file: &File) -> Option<u64> {
        self.in_flight.fetch_add(1, SeqCst);
        let begun = self.valid_until(file);
        if begun.is_none() {
            self.in_flight.fetch_sub(1, SeqCst);
        }
        begun
    }

    fn valid_until(&self, file: &File) -> Option<u64> {
        if self.breaking.load(SeqCst) {
            return None;
        }
        let now = now_ns();
        let mut checked = self.checked_ns.load(SeqCst);
        if checked == 0 || now - checked.min(now) > CHECK_EVERY.as_nanos() as u64 {
            if sys::lease_state(file) == LeaseState::Broken {
                return None;
            }
            checked = now;
            self.checked_ns.store(now, SeqCst);
        }
        // Half of it: what remains is for clocks that tick differently.
        Some(checked + self.break_time.as_nanos() as u64 / 2)
    }

    /// After the chain: whether the file was the same all the time.
    pub(crate) fn has_held(&self, valid_until_ns: u64) -> bool {
        !self.released.load(SeqCst) && now_ns() < valid_until_ns
    }

    /// The chain has ended, and nothing relies on the lease for it any more.
    pub(crate) fn end(&self) {
        self.in_flight.fetch_sub(1, SeqCst);
    }

    /// Lets no chain start from now on.
    pub(crate) fn start_break(&self) {
        self.breaking.store(true, SeqCst);
    }

    /// Whether [`start_break`](Self::start_break) was called.
    pub(crate) fn is_breaking(&self) -> bool {
        self.breaking.load(SeqCst)
    }

    /// After [`start_break`](Self::start_break): whether all chains have ended.
    pub(crate) fn is_drained(&self) -> bool {
        self.in_flight.load(SeqCst) == 0
    }

    /// Longest wait for the chains to end before the lease is released in spite of them.
    pub(crate) fn drain_time(&self) -> Duration {
        self.break_time / 4
    }

    /// Releases the lease; chains that have not ended are stale.
    pub(crate) fn release(&self, file: &File) {
        self.released.store(true, SeqCst);
        if let Err(error) = sys::release_lease(file) {
            log::warn!("cannot release a lease: {error}; writers of the file wait until it ends");
        }
    }
}
