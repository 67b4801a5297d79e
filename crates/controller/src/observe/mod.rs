//! Records why commands were slow: what they waited for, and chains hop by hop.
//!
//! Hops of chains over files and drives are always logged ([`hop_log`]), with the time that the reactor has read last.
//! Hops of chains over memory are logged only during a trace ([`tracer`]). For traced chains the clock is read at each
//! step. The slowest commands are kept ([`slowest`]). The end of a command costs one comparison here, unless it is
//! among the slowest or traced; then it becomes an [`observed::Observed`], and as text a [`record::CommandRecord`].

mod hop_log;
pub(crate) mod observed;
pub(crate) mod record;
mod slowest;
pub(crate) mod tracer;

use crate::connection::Connection;
use bpfof_chain::{ChainId, Engine, Progress};
pub(crate) use hop_log::HopLog;
use observed::Observed;
use record::CommandRecord;
use slowest::Slowest;
use tracer::{Trace, Tracer};

/// Memory of the slowest commands of a reactor, in bytes.
pub(crate) const SLOWEST_BYTES: usize =
    slowest::KEPT * (size_of::<Observed>() + HopLog::BYTES + 1024);

/// Observes the commands of a reactor.
#[derive(Debug)]
pub(crate) struct Observer {
    pub(crate) reactor: usize,
    /// Least duration of a command that is examined, in ns.
    watch_ns: u64,
    /// Least duration of a command that is among the slowest, in ns.
    slow_ns: u64,
    /// By chain index.
    logs: Vec<HopLog>,
    pub(crate) slowest: Slowest,
    tracer: Tracer,
    /// The chain that is reported to traces; its memory is reused.
    traced: Observed,
}

impl Default for Observer {
    fn default() -> Self {
        Observer {
            reactor: 0,
            watch_ns: 0,
            slow_ns: 0,
            logs: Vec::new(),
            slowest: Slowest::default(),
            tracer: Tracer::default(),
            traced: Observed::new(),
        }
    }
}

impl Observer {
    /// Whether a command that has taken this long is to be examined.
    #[inline]
    pub(crate) fn watches(&self, duration_ns: u64) -> bool {
        duration_ns >= self.watch_ns
    }

    /// Whether a trace runs.
    pub(crate) fn is_tracing(&self) -> bool {
        self.tracer.is_on()
    }

    /// Begins a trace.
    pub(crate) fn begin_trace(&mut self, trace: Trace) {
        self.tracer.begin(trace);
        self.watch();
    }

    /// Ends a trace.
    pub(crate) fn end_trace(&mut self, id: u64) {
        self.tracer.end(id);
        self.watch();
    }

    fn watch(&mut self) {
        self.slow_ns = self.slowest.threshold_ns().map_or(0, |ns| ns.saturating_add(1));
        self.watch_ns = if self.tracer.is_on() { 0 } else { self.slow_ns };
    }

    /// The slowest commands.
    pub(crate) fn slowest(&self, now_ns: u64) -> Vec<CommandRecord> {
        self.slowest.all().map(|observed| observed.record(self.reactor, now_ns)).collect()
    }

    /// Drops slow commands that ended long ago; called periodically.
    pub(crate) fn expire(&mut self, now_ns: u64) {
        self.slowest.expire(now_ns);
        self.watch();
    }

    /// Keeps the logs of this many arenas.
    pub(crate) fn trim(&mut self, arenas: usize) {
        self.logs.truncate(arenas);
    }

    /// Keeps a command that has ended after this duration, if it is one of the slowest. `fill` describes it.
    pub(crate) fn ended(
        &mut self,
        connection: &Connection,
        duration_ns: u64,
        fill: impl FnOnce(&mut Observed),
    ) {
        if duration_ns < self.slow_ns {
            return;
        }
        let observed = self.slowest.take_place(connection.index);
        observed.set_connection(connection);
        fill(observed);
        self.watch();
    }

    /// The same for a chain, which is also reported to traces that want it. `is_logged` says whether its hops were
    /// logged.
    pub(crate) fn chain_ended(
        &mut self,
        connection: &Connection,
        (chain, is_logged): (ChainId, bool),
        duration_ns: u64,
        fill: impl Fn(&mut Observed),
    ) {
        let mut log = match self.logs.get_mut(chain.index()) {
            Some(log) if is_logged => std::mem::take(log),
            _ => HopLog::default(),
        };
        log.end();
        let fill_all = |observed: &mut Observed| {
            observed.set_connection(connection);
            fill(observed);
            if log.has_rested {
                observed.arena_ns = log.arena_ns;
            }
            observed.chain.is_logged = is_logged;
            observed.chain.log.copy(&log);
        };
        if duration_ns >= self.slow_ns {
            fill_all(self.slowest.take_place(connection.index));
            self.watch();
        }
        if log.traces != 0 {
            fill_all(&mut self.traced);
            self.traced.ended_ns = self.tracer.now_ns().unwrap_or(self.traced.ended_ns);
            self.tracer.ended(self.reactor, log.traces, &self.traced);
        }
        if is_logged {
            self.logs[chain.index()] = log;
        }
    }
}

/// Chains whose hops are logged.
impl Observer {
    /// The time for an event of a chain: read from the clock if the chain is traced, otherwise `now_ns`.
    fn now_ns(&self, chain: ChainId, now_ns: u64) -> u64 {
        let is_exact = self.logs.get(chain.index()).is_some_and(HopLog::is_exact);
        if is_exact { self.tracer.now_ns().unwrap_or(now_ns) } else { now_ns }
    }

    /// A chain has begun and asked for its first reads.
    pub(crate) fn chain_begun(&mut self, engine: &Engine, chain: ChainId, now_ns: u64) {
        let traces = if self.tracer.is_on() { self.tracer.begun() } else { 0 };
        if self.logs.len() <= chain.index() {
            self.logs.resize_with(chain.index() + 1, HopLog::default);
        }
        self.logs[chain.index()].begin(traces);
        self.chain_asked(engine, chain, now_ns);
    }

    /// A chain has asked for the reads of its next hop.
    pub(crate) fn chain_asked(&mut self, engine: &Engine, chain: ChainId, now_ns: u64) {
        let now_ns = self.now_ns(chain, now_ns);
        if let Some(log) = self.logs.get_mut(chain.index()) {
            log.ask(now_ns, engine.reads(chain));
        }
    }

    /// A read of a chain has arrived.
    pub(crate) fn read_came(&mut self, chain: ChainId, now_ns: u64) {
        let now_ns = self.now_ns(chain, now_ns);
        if let Some(log) = self.logs.get_mut(chain.index()) {
            log.came(now_ns);
        }
    }

    /// A chain is about to go on: returns the state that [`chain_went_on`](Self::chain_went_on) needs.
    pub(crate) fn chain_goes_on(&self, engine: &Engine, chain: ChainId, now_ns: u64) -> (u64, u32) {
        (self.now_ns(chain, now_ns), engine.usage(chain).hops)
    }

    /// A chain has gone on, perhaps by calls; with `is_call`, by remaining calls of an interrupted hop.
    pub(crate) fn chain_went_on(
        &mut self,
        engine: &Engine,
        chain: ChainId,
        ((begun_ns, hops), is_call): ((u64, u32), bool),
        (progress, now_ns): (Progress, u64),
    ) {
        let usage = engine.usage(chain);
        if usage.hops == hops && !is_call {
            return;
        }
        let now_ns = self.now_ns(chain, now_ns);
        let Some(log) = self.logs.get_mut(chain.index()) else { return };
        log.called((begun_ns, now_ns), usage.units);
        if progress == Progress::Reads {
            log.ask(now_ns, engine.reads(chain));
        }
    }

    /// Takes the log of a chain that gives up its arena, and that had waited `before_ns` for it before it began.
    pub(crate) fn chain_rests(
        &mut self,
        chain: ChainId,
        (is_logged, before_ns): (bool, u64),
    ) -> HopLog {
        let mut log = match self.logs.get_mut(chain.index()) {
            Some(log) if is_logged => std::mem::take(log),
            _ => HopLog::default(),
        };
        if !log.has_rested {
            (log.has_rested, log.arena_ns) = (true, before_ns);
        }
        log
    }

    /// A chain goes on in an arena, after it had none for `arena_ns`.
    pub(crate) fn chain_resumed(&mut self, chain: ChainId, mut log: HopLog, arena_ns: u64) {
        log.arena_ns += arena_ns;
        if self.logs.len() <= chain.index() {
            self.logs.resize_with(chain.index() + 1, HopLog::default);
        }
        self.logs[chain.index()] = log;
    }
}
