//! Traces: operators watch chains, and select those that they want.

use super::observed::Observed;
use super::record::CommandRecord;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};

/// Traces at a time.
pub(crate) const MAX_TRACES: usize = 4;
/// Chains that a trace reports in a second, by all reactors together.
pub(crate) const MAX_PER_SECOND: u32 = 1000;
/// Reports of a trace that may wait in its channel.
pub(crate) const RING: usize = 256;

/// Selects chains. All conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TraceRequest {
    /// Selects one in this many of the chains for which the other conditions hold; 0 and 1 select all.
    pub every: u32,
    /// Chains that take longer than this, in µs.
    pub slower_us: Option<u64>,
    /// Chains of the host with this name.
    pub host: Option<String>,
    /// Chains of the function with this name.
    pub function: Option<String>,
}

/// A report of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traced {
    /// Selected chains before this one that were dropped, for lack of room or because of the rate limit.
    pub skipped: u64,
    /// The chain.
    #[serde(flatten)]
    pub chain: CommandRecord,
}

/// The time of all reactors, in ns.
pub(crate) type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// A trace, as given to each reactor.
#[derive(Clone)]
pub(crate) struct Trace {
    pub(crate) id: u64,
    pub(crate) request: TraceRequest,
    /// Chains a second of this reactor.
    pub(crate) per_second: u32,
    pub(crate) to: SyncSender<Traced>,
    /// Chains that all reactors have dropped so far.
    pub(crate) skipped: Arc<AtomicU64>,
    pub(crate) clock: Clock,
}

impl Trace {
    /// Whether only the end of a chain decides if it is selected.
    fn is_decided_late(&self) -> bool {
        let TraceRequest { slower_us, host, function, .. } = &self.request;
        slower_us.is_some() || host.is_some() || function.is_some()
    }
}

/// A trace and its progress.
struct Running {
    trace: Trace,
    /// Its bit in the logs of chains that it may want.
    bit: u8,
    /// Chains counted for `every`.
    seen: u64,
    skipped: u64,
    /// The current second, and how many chains were reported in it.
    second: u64,
    told: u32,
}

/// All traces of a reactor.
#[derive(Default)]
pub(crate) struct Tracer(Vec<Running>);

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tracer({} traces)", self.0.len())
    }
}

impl Tracer {
    /// Begins another trace.
    pub(super) fn begin(&mut self, trace: Trace) {
        let taken = self.0.iter().fold(0, |bits, running| bits | running.bit);
        let bit = 1 << u8::trailing_ones(taken).min(7);
        self.0.push(Running { trace, bit, seen: 0, skipped: 0, second: 0, told: 0 });
    }

    /// Ends one.
    pub(super) fn end(&mut self, id: u64) {
        self.0.retain(|running| running.trace.id != id);
    }

    /// Whether a trace runs.
    pub(super) fn is_on(&self) -> bool {
        !self.0.is_empty()
    }

    /// The current time, if a trace runs.
    pub(super) fn now_ns(&self) -> Option<u64> {
        self.0.first().map(|running| (running.trace.clock)())
    }

    /// A chain begins: returns the bits of the traces that may want it.
    pub(super) fn begun(&mut self) -> u8 {
        let wanting = self.0.iter_mut().filter_map(|running| {
            let may_want = running.trace.is_decided_late() || running.is_next();
            may_want.then_some(running.bit)
        });
        wanting.fold(0, |bits, bit| bits | bit)
    }

    /// A chain has ended that traces with these bits may want: reports it to those that do. Removes traces whose
    /// receiver is gone.
    pub(super) fn ended(&mut self, reactor: usize, bits: u8, chain: &Observed) {
        self.0.retain_mut(|running| {
            if running.bit & bits == 0 || !running.wants(chain) {
                return true;
            }
            let second = chain.ended_ns / 1_000_000_000;
            if running.second != second {
                (running.second, running.told) = (second, 0);
            }
            if running.told >= running.trace.per_second {
                running.skip();
                return true;
            }
            // Counts also if the channel is full, because making the text takes time.
            running.told += 1;
            let skipped = running.skipped;
            let traced = Traced { skipped, chain: chain.record(reactor, chain.ended_ns) };
            match running.trace.to.try_send(traced) {
                Ok(()) => running.skipped = 0,
                Err(TrySendError::Full(_)) => running.skip(),
                Err(TrySendError::Disconnected(_)) => return false,
            }
            true
        });
    }
}

impl Running {
    fn skip(&mut self) {
        self.skipped += 1;
        self.trace.skipped.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a chain; returns whether it is the next to be selected by `every`.
    fn is_next(&mut self) -> bool {
        self.seen += 1;
        self.seen.is_multiple_of(self.trace.request.every.max(1).into())
    }

    fn wants(&mut self, chain: &Observed) -> bool {
        let TraceRequest { slower_us, host, function, .. } = &self.trace.request;
        let is_slow = slower_us.is_none_or(|us| chain.duration_ns() > us.saturating_mul(1000));
        let is_wanted = is_slow
            && host.as_ref().is_none_or(|host| *host == chain.host)
            && function.as_ref().is_none_or(|name| *name == chain.chain.function_name);
        is_wanted && (!self.trace.is_decided_late() || self.is_next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, sync_channel};

    fn begin(tracer: &mut Tracer, id: u64, request: TraceRequest) -> Receiver<Traced> {
        let (to, told) = sync_channel(RING);
        let (skipped, clock) = (Arc::default(), Arc::new(|| 42));
        tracer.begin(Trace { id, request, per_second: 10, to, skipped, clock });
        told
    }

    fn run(tracer: &mut Tracer, host: &str, duration_ns: u64) {
        let mut chain = Observed::new();
        (chain.ended_ns, chain.host) = (duration_ns, host.to_owned());
        let bits = tracer.begun();
        if bits != 0 {
            tracer.ended(3, bits, &chain);
        }
    }

    /// Each trace gets what it has asked for, whatever others ask for.
    #[test]
    fn traces_get_the_chains_that_they_request() {
        let mut tracer = Tracer::default();
        assert!(!tracer.is_on() && tracer.now_ns().is_none());
        let tenth = begin(&mut tracer, 1, TraceRequest { every: 10, ..Default::default() });
        let slow = TraceRequest { slower_us: Some(5), ..Default::default() };
        let slow = begin(&mut tracer, 2, slow);
        let of_host = TraceRequest { every: 2, host: Some("b".to_owned()), ..Default::default() };
        let of_host = begin(&mut tracer, 3, of_host);
        assert_eq!(tracer.now_ns(), Some(42));
        for number in 0..40u64 {
            run(&mut tracer, if number % 4 == 0 { "b" } else { "a" }, number * 1000);
        }
        let count = |told: &Receiver<Traced>| told.try_iter().count();
        assert_eq!([count(&tenth), count(&of_host)], [4, 5]);
        let first: Vec<_> = slow.try_iter().map(|told| told.chain.duration_ns).collect();
        assert_eq!(first[..2], [6000, 7000]);
        assert_eq!(first.len(), 10, "no more in a second");
        run(&mut tracer, "a", 1_000_000_000);
        assert_eq!(slow.try_recv().expect("another second").skipped, 24);
        drop(tenth);
        (0..10).for_each(|_| run(&mut tracer, "a", 1));
        tracer.end(2);
        assert_eq!(tracer.0.len(), 1, "one does not listen, one was ended");
    }
}
