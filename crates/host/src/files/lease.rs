//! A read lease on a file: while it is held, the file cannot be opened for writing or truncated.
//!
//! An open for writing or a truncation breaks the lease: it waits in the kernel until the lease is released, for at
//! most the break time. So a chain has read unchanged files if the lease was not released before the chain ended, and
//! if no break that began before the chain started could have timed out meanwhile. The kernel signals the start of a
//! break to the keeper, which publishes the time up to which it has seen all breaks. So chains check both conditions
//! without a system call.

use super::sys;
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// The kernel's lease break time in seconds. 0 means that a breaker waits for ever.
const BREAK_TIME_FILE: &str = "/proc/sys/fs/lease-break-time";
/// The kernel's default.
const BREAK_TIME: Duration = Duration::from_secs(45);
/// With shorter break times no leases are used.
const BREAK_TIME_MIN: Duration = Duration::from_secs(8);

/// Time since the first call, in ns. The coarse clock advances by kernel ticks of some ms, which is exact enough for
/// leases, and is cheap enough to be read for each chain.
pub(crate) fn now_ns() -> u64 {
    static EPOCH: OnceLock<u64> = OnceLock::new();
    let now = clock_gettime(ClockId::MonotonicCoarse);
    let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    now_ns.saturating_sub(*EPOCH.get_or_init(|| now_ns))
}

/// How long the kernel lets a breaker wait for the release of a lease; None if that is too short to rely on.
pub(crate) fn break_time() -> Option<Duration> {
    let text = std::fs::read_to_string(BREAK_TIME_FILE).ok()?;
    match Duration::from_secs(text.trim().parse().ok()?) {
        Duration::ZERO => Some(BREAK_TIME),
        short if short < BREAK_TIME_MIN => None,
        time => Some(time.min(BREAK_TIME)),
    }
}

/// A counter that each chain changes, on a cache line of its own, because other threads read the neighbouring fields.
#[derive(Debug)]
#[repr(align(64))]
struct InFlight(AtomicU32);

/// The state of a lease from when it is taken until it is released.
#[derive(Debug)]
pub(crate) struct Lease {
    /// No new chain may start.
    breaking: AtomicBool,
    released: AtomicBool,
    in_flight: InFlight,
    /// Number of the descriptor by which it was taken. The signal of a break carries it.
    number: RawFd,
    break_time: Duration,
}

/// Why no chain may start under a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// The lease is being broken.
    Breaking,
    /// The keeper has not checked for breaks for too long.
    Unknown,
}

impl Lease {
    /// A lease that has just been found held.
    pub(crate) fn held(break_time: Duration, number: RawFd) -> Self {
        Self {
            breaking: AtomicBool::new(false),
            released: AtomicBool::new(false),
            in_flight: InFlight(AtomicU32::new(0)),
            number,
            break_time,
        }
    }

    /// The descriptor number that the signal of a break carries.
    pub(crate) const fn number(&self) -> RawFd {
        self.number
    }

    /// Called before a chain starts; all breaks that began before `seen_ns` must be known. Returns the time by which
    /// the chain must have ended, in ns. [`end`](Self::end) must follow.
    ///
    /// # Errors
    /// Why the chain must not start.
    pub(crate) fn begin(&self, seen_ns: u64) -> Result<u64, Doubt> {
        let quarter_ns = self.break_time.as_nanos() as u64 / 4;
        self.in_flight.0.fetch_add(1, SeqCst);
        let doubt = match self.breaking.load(SeqCst) {
            true => Doubt::Breaking,
            false if now_ns() > seen_ns + quarter_ns => Doubt::Unknown,
            // Half of the break time: the rest is a margin for clock differences.
            false => return Ok(seen_ns + 2 * quarter_ns),
        };
        self.in_flight.0.fetch_sub(1, SeqCst);
        Err(doubt)
    }

    /// Called after the chain: whether the lease held all the time, so that the file did not change.
    pub(crate) fn has_held(&self, valid_until_ns: u64) -> bool {
        !self.released.load(SeqCst) && now_ns() < valid_until_ns
    }

    /// The chain has ended, and no longer relies on the lease.
    pub(crate) fn end(&self) {
        self.in_flight.0.fetch_sub(1, SeqCst);
    }

    /// From now on no chain may start.
    pub(crate) fn start_break(&self) {
        self.breaking.store(true, SeqCst);
    }

    /// Whether [`start_break`](Self::start_break) was called.
    pub(crate) fn is_breaking(&self) -> bool {
        self.breaking.load(SeqCst)
    }

    /// Whether all chains have ended, after [`start_break`](Self::start_break).
    pub(crate) fn is_drained(&self) -> bool {
        self.in_flight.0.load(SeqCst) == 0
    }

    /// How long to wait for the chains to end before the lease is released all the same.
    pub(crate) fn drain_time(&self) -> Duration {
        self.break_time / 4
    }

    /// Marks the lease as about to be released; chains that have not ended are stale.
    pub(crate) fn released(&self) {
        self.released.store(true, SeqCst);
    }

    /// Releases the lease on `file`.
    pub(crate) fn release(&self, file: &File) {
        self.released();
        if let Err(error) = sys::release_lease(file) {
            log::warn!("cannot release a lease: {error}; writers of the file wait until it ends");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that was stopped for long finds its lease gone without having seen the signal.
    #[test]
    fn a_lease_ends_by_itself() {
        let lease = Lease::held(Duration::from_secs(8), 7);
        let until = lease.begin(now_ns()).expect("it is held");
        assert!((1..=4_000_000_000).contains(&until.saturating_sub(now_ns())));
        assert!(lease.has_held(until) && !lease.has_held(now_ns()));
        lease.end();
        assert!(lease.is_drained());
        // A lease that the keeper has not checked for a quarter of the break time.
        let (short, seen_ns) = (Lease::held(Duration::from_millis(4), 8), now_ns());
        while short.begin(seen_ns).is_ok() {
            short.end();
        }
        assert_eq!(short.begin(seen_ns), Err(Doubt::Unknown));
        assert!(short.is_drained());
        lease.start_break();
        assert_eq!(lease.begin(now_ns()), Err(Doubt::Breaking));
        assert!(lease.is_drained() && lease.has_held(until));
    }
}
