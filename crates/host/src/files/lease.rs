//! A read lease on a file: while it is held, nobody can open the file for writing or truncate it.
//!
//! Who wants to, waits in the kernel until the lease is released, for at most the break time. So a
//! chain read unchanged files if the lease was not released before its end, and no break that
//! began before its start could have been forced meanwhile. The kernel signals the begin of a break to
//! the keeper, which says until when it has seen all. So both are looked at without a system call.

use super::sys;
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// Where the kernel tells how long who breaks a lease waits, in seconds. 0 is for ever.
const BREAK_TIME_FILE: &str = "/proc/sys/fs/lease-break-time";
/// What it says unless somebody changed it.
const BREAK_TIME: Duration = Duration::from_secs(45);
/// Shorter ones are not worth the risk.
const BREAK_TIME_MIN: Duration = Duration::from_secs(8);

/// Time since the first call, in ns. It goes on by ticks of the kernel, some ms, which is exact enough for
/// leases, and is asked for with each chain.
pub(crate) fn now_ns() -> u64 {
    static EPOCH: OnceLock<u64> = OnceLock::new();
    let now = clock_gettime(ClockId::MonotonicCoarse);
    let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    now_ns.saturating_sub(*EPOCH.get_or_init(|| now_ns))
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

/// A number that each chain changes, on a cache line of its own: the others read what is beside it.
#[derive(Debug)]
#[repr(align(64))]
struct InFlight(AtomicU32);

/// A lease that is held, until it is released.
#[derive(Debug)]
pub(crate) struct Lease {
    /// No chain starts any more.
    breaking: AtomicBool,
    released: AtomicBool,
    in_flight: InFlight,
    /// That of the descriptor by which it was taken, which its break's signal has.
    number: RawFd,
    break_time: Duration,
}

/// Why no chain starts under a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// Somebody waits for it.
    Breaking,
    /// The keeper has not looked for long.
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

    /// The number by which its break is signalled.
    pub(crate) const fn number(&self) -> RawFd {
        self.number
    }

    /// Before a chain starts. All breaks that began before `seen_ns` are known. Until when it must have
    /// ended, in ns. Then [`end`](Self::end) must follow.
    ///
    /// # Errors
    /// Why it must not start.
    pub(crate) fn begin(&self, seen_ns: u64) -> Result<u64, Doubt> {
        let quarter_ns = self.break_time.as_nanos() as u64 / 4;
        self.in_flight.0.fetch_add(1, SeqCst);
        let doubt = match self.breaking.load(SeqCst) {
            true => Doubt::Breaking,
            false if now_ns() > seen_ns + quarter_ns => Doubt::Unknown,
            // Half of it: what remains is for clocks that tick differently.
            false => return Ok(seen_ns + 2 * quarter_ns),
        };
        self.in_flight.0.fetch_sub(1, SeqCst);
        Err(doubt)
    }

    /// After the chain: whether the file was the same all the time.
    pub(crate) fn has_held(&self, valid_until_ns: u64) -> bool {
        !self.released.load(SeqCst) && now_ns() < valid_until_ns
    }

    /// The chain has ended, and nothing relies on the lease for it any more.
    pub(crate) fn end(&self) {
        self.in_flight.0.fetch_sub(1, SeqCst);
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
        self.in_flight.0.load(SeqCst) == 0
    }

    /// Longest wait for the chains to end before the lease is released in spite of them.
    pub(crate) fn drain_time(&self) -> Duration {
        self.break_time / 4
    }

    /// It is about to be released; chains that have not ended are stale.
    pub(crate) fn released(&self) {
        self.released.store(true, SeqCst);
    }

    /// Releases the lease that `file` has.
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

    /// A process that is stopped for long finds its lease gone without having been told.
    #[test]
    fn a_lease_ends_by_itself() {
        let lease = Lease::held(Duration::from_secs(8), 7);
        let until = lease.begin(now_ns()).expect("it is held");
        assert!((1..=4_000_000_000).contains(&until.saturating_sub(now_ns())));
        assert!(lease.has_held(until) && !lease.has_held(now_ns()));
        lease.end();
        assert!(lease.is_drained());
        // Of which nobody has looked for a quarter of its time.
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
