//! Why commands were slow: what they waited for, and chains hop by hop.
//!
//! Chains over files and drives note their hops as they happen ([`hop_log`]), on the clock of the reactor's
//! turns. Those over memory do so only while somebody traces ([`tracer`]), and then the clock is read for each
//! step. The slowest commands are remembered ([`slowest`]). A command that ends costs one comparison here,
//! unless it is among these or traced; what is made of it then is an [`observed::Observed`], and in words a
//! [`record::CommandRecord`].

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

/// What the slowest commands of a reactor take of its memory, in bytes.
pub(crate) const SLOWEST_BYTES: usize =
    slowest::KEPT * (size_of::<Observed>() + HopLog::BYTES + 1024);

/// How a reactor observes its commands.
#[derive(Debug)]
pub(crate) struct Observer {
    pub(crate) reactor: usize,
    /// A command is looked at that takes so long, in ns.
    watch_ns: u64,
    /// One is among the slowest that takes so long.
    slow_ns: u64,
    /// By chain index.
    logs: Vec<HopLog>,
    pub(crate) slowest: Slowest,
    tracer: Tracer,
    /// What is told to traces, in memory that is used again.
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
    /// Whether there is something to note of a command that has taken so long.
    #[inline]
    pub(crate) fn watches(&self, duration_ns: u64) -> bool {
        duration_ns >= self.watch_ns
    }

    /// Whether anybody traces.
    pub(crate) fn is_tracing(&self) -> bool {
        self.tracer.is_on()
    }

    /// Somebody traces from now on.
    pub(crate) fn begin_trace(&mut self, trace: Trace) {
        self.tracer.begin(trace);
        self.watch();
    }

    /// Somebody does not trace any more.
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

    /// Forgets what was slow long ago; called now and then.
    pub(crate) fn expire(&mut self, now_ns: u64) {
        self.slowest.expire(now_ns);
        self.watch();
    }

    /// There are so many arenas left.
    pub(crate) fn trim(&mut self, arenas: usize) {
        self.logs.truncate(arenas);
    }

    /// Notes a command that has ended after so long, if it is one of the slowest. `fill` tells what it was.
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

    /// Notes a chain that has ended likewise, and tells it to those who trace it. `is_logged` tells whether its
    /// hops were noted.
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

/// Chains whose hops are noted.
impl Observer {
    /// A time of a chain: exact, if somebody traces it.
    fn now_ns(&self, chain: ChainId, now_ns: u64) -> u64 {
        let is_exact = self.logs.get(chain.index()).is_some_and(HopLog::is_exact);
        if is_exact { self.tracer.now_ns().unwrap_or(now_ns) } else { now_ns }
    }

    /// A chain begins, and asks for its first reads.
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

    /// A read of a chain is here.
    pub(crate) fn read_came(&mut self, chain: ChainId, now_ns: u64) {
        let now_ns = self.now_ns(chain, now_ns);
        if let Some(log) = self.logs.get_mut(chain.index()) {
            log.came(now_ns);
        }
    }

    /// A chain is about to go on: what [`chain_went_on`](Self::chain_went_on) needs.
    pub(crate) fn chain_goes_on(&self, engine: &Engine, chain: ChainId, now_ns: u64) -> (u64, u32) {
        (self.now_ns(chain, now_ns), engine.usage(chain).hops)
    }

    /// A chain has gone on, perhaps by calls: with those of a hop that was interrupted if `is_call`.
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

    /// Takes the log of a chain that gives its arena up, and had none for `before_ns` until it began.
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

    /// A chain goes on in an arena, after it had none for so long.
    pub(crate) fn chain_resumed(&mut self, chain: ChainId, mut log: HopLog, arena_ns: u64) {
        log.arena_ns += arena_ns;
        if self.logs.len() <= chain.index() {
            self.logs.resize_with(chain.index() + 1, HopLog::default);
        }
        self.logs[chain.index()] = log;
    }
}
