//! The state of a reactor.

use super::io::Io;
use super::prices::Prices;
use super::table::{Entry, Table};
use super::turnover::{Begun, Turnover};
use crate::commands::Context;
use crate::connection::Connection;
use crate::executor::{Executor, Outbox};
use crate::limits::{
    ANSWERED_UNITS, CLOCK_UNITS, COMPLETIONS_PER_CLOCK, COMPLETIONS_PER_TURN, FEWEST_ANSWERS,
    FILE_OPERATION_UNITS, LEFT_UNITS, MESSAGES_NS, SEND_UNITS, TURN_US,
};
use bpfof_function::cost::UNIT_PS;
use std::collections::VecDeque;

/// The work of this turn so far.
#[derive(Debug, Default)]
pub(super) struct Turn {
    pub(super) begun_ns: u64,
    pub(super) hops: usize,
    /// Cost of its operations, in units.
    pub(super) cost: u64,
    /// Bytes that have been added to send buffers.
    pub(super) bytes: usize,
    /// Bytes that the last command added.
    pub(super) last_bytes: usize,
    /// Connections that will send at its end.
    sends: u64,
    /// Units since the clock was last read.
    units: u64,
    clock_ns: u64,
    pub(super) is_over: bool,
    /// Ends the turn: there are answers for a host, which can work on them while the rest of its commands are carried
    /// out.
    pub(super) answers_leave: bool,
    /// Operations on files that have waited and were given up.
    pub(super) given_up: usize,
}

impl Turn {
    /// A turn that begins now.
    pub(super) fn new(now_ns: u64) -> Turn {
        Turn { begun_ns: now_ns, clock_ns: now_ns, ..Turn::default() }
    }

    /// Units that may be spent before the clock is read.
    #[inline]
    pub(super) fn units_to_clock(&self) -> u64 {
        CLOCK_UNITS.saturating_sub(self.units)
    }

    /// Returns the time since the last reading, in ns. `file_operations` are handed to the ring at the turn's end.
    fn look_at_clock(&mut self, now_ns: u64, file_operations: u64) -> u64 {
        let passed_ns = now_ns.saturating_sub(self.clock_ns);
        self.clock_ns = now_ns;
        self.units = 0;
        let end_units = self.sends * SEND_UNITS + file_operations * FILE_OPERATION_UNITS;
        let turn_ns = now_ns.saturating_sub(self.begun_ns) + end_units * UNIT_PS / 1000;
        self.is_over |= turn_ns >= TURN_US * 1000;
        passed_ns
    }
}

/// Idle time.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    /// Since when the reactor has been waiting, if it waits.
    pub(crate) since_ns: Option<u64>,
    pub(super) total_ns: u64,
}

/// Times of periodic checks.
#[derive(Debug, Default)]
pub(super) struct Ticks {
    pub(super) next_ns: u64,
    /// When connections are checked next, which is not at every tick.
    pub(super) next_slow_ns: u64,
    /// The connection that is checked next, while the check is not complete.
    pub(super) looking: Option<u32>,
    /// The search for commands of removed namespaces, while it is under way.
    pub(super) search: Option<Search>,
    /// Consecutive ticks without chains.
    pub(super) quiet: u32,
}

/// A pass over the slots of all connections, for commands of removed namespaces.
#[derive(Debug)]
pub(super) struct Search {
    /// The connection that is searched next.
    pub(super) next: u32,
    /// For each place of a namespace, whether the namespace was removed before the pass, and no command of it has been
    /// found.
    pub(super) unused: Vec<bool>,
    /// Time that the pass has taken so far.
    pub(super) spent_ns: u64,
}

/// A connection that is to be closed.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) index: u32,
    pub(super) serial: u64,
    pub(super) reason: String,
    /// Its chains are cut short.
    pub(super) cuts_chains: bool,
}

/// A reactor without its thread.
pub(crate) struct Core<I> {
    pub(crate) io: I,
    /// Its index among the target's reactors.
    pub(super) index: usize,
    pub(crate) idle: Idle,
    pub(crate) executor: Executor,
    pub(crate) table: Table,
    /// Connections that have something to send, or may receive again.
    pub(super) dirty: Vec<u32>,
    /// Connections that have ended and are to be closed.
    pub(super) ended: VecDeque<Ended>,
    /// Closing connections of which operations on files may wait for others.
    pub(super) dropping: VecDeque<u32>,
    pub(super) turn: Turn,
    pub(super) prices: Prices,
    pub(super) turnover: Turnover,
    /// Whether a fence is under way.
    pub(super) awaits_fence: bool,
    /// Unfinished sends of memory that commands may change.
    pub(super) lent: usize,
    pub(super) ticks: Ticks,
    pub(super) stop_at_ns: Option<u64>,
}

impl<I: Io> Core<I> {
    /// `index` is the reactor's index among those of its target.
    pub(crate) fn new(io: I, mut executor: Executor, index: usize) -> Core<I> {
        let pending = executor.schedule.lasting_group();
        executor.observer.reactor = index;
        Core {
            io,
            index,
            idle: Idle::default(),
            executor,
            // Serials of all reactors differ.
            table: Table::new(pending, (index as u64) << 48 | 1),
            dirty: Vec::new(),
            ended: VecDeque::new(),
            dropping: VecDeque::new(),
            turn: Turn::default(),
            prices: Prices::default(),
            turnover: Turnover::default(),
            awaits_fence: false,
            lent: 0,
            ticks: Ticks::default(),
            stop_at_ns: None,
        }
    }

    /// Whether it was told to stop and all work is done, or the time for that is over.
    pub(crate) fn is_finished(&self) -> bool {
        self.stop_at_ns.is_some_and(|at| self.executor.now_ns >= at || self.table.is_empty())
    }

    /// Whether there is work that needs no further event.
    pub(crate) fn has_work(&self) -> bool {
        !self.dirty.is_empty()
            || !self.ended.is_empty()
            || self.ticks.looking.is_some()
            || self.ticks.search.is_some()
            || !self.dropping.is_empty()
            || !self.executor.outbox.resumed.is_empty()
            || self.executor.schedule.has_work()
            || self.executor.grants_wait
    }

    /// Whether connections have something to send, or may receive again.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// The connection with this index.
    pub(crate) fn connection(&self, index: u32) -> Option<&Connection> {
        self.table.get(index).map(|entry| &entry.connection)
    }

    /// The same, with the executor that its commands use.
    #[inline]
    pub(crate) fn context(&mut self, index: u32) -> Option<Context<'_>> {
        let entry = self.table.get_mut(index)?;
        Some(Context { connection: &mut entry.connection, executor: &mut self.executor })
    }

    /// Whether the host has given a connection up, as far as the target knows.
    pub(super) fn is_given_up(&mut self, index: u32) -> bool {
        let Some(Entry { connection, closing, .. }) = self.table.get(index) else { return true };
        // A paused connection does not receive, so it does not notice the end. One that the target closes looks as if
        // the host had.
        let may_be_gone = (connection.is_paused() || connection.was_paused) && !closing;
        connection.has_expired(self.executor.now_ns) || may_be_gone && self.io.has_hung_up(index)
    }

    /// The latest time of the next turn, if no event comes before.
    pub(crate) fn next_ns(&self) -> u64 {
        let due_ns = self.executor.next_due_ns();
        due_ns.map_or(self.ticks.next_ns, |due_ns| due_ns.min(self.ticks.next_ns))
    }

    /// Whether memory is being sent that commands may change.
    pub(crate) fn lends(&self) -> bool {
        self.lent > 0
    }

    /// Whether this turn takes another completion after `taken`. Ends of sends that lend memory are always taken before
    /// commands are performed: data that was not sent must be copied before commands change it.
    pub(crate) fn takes_more(&mut self, taken: usize) -> bool {
        if self.lent > 0 {
            return true;
        }
        if taken.is_multiple_of(COMPLETIONS_PER_CLOCK) {
            self.look_at_clock();
        }
        taken < COMPLETIONS_PER_TURN && !self.turn.is_over
    }

    /// Reads the clock; returns whether the turn's time is over.
    pub(crate) fn is_turn_over(&mut self) -> bool {
        self.look_at_clock();
        self.turn.is_over
    }

    /// Whether messages have been taken since `begun_ns` for so long that operations or received data should not wait
    /// any more. The clock has just been read.
    pub(crate) fn keeps_waiting_since(&mut self, begun_ns: u64) -> bool {
        let taken_ns = self.executor.now_ns.saturating_sub(begun_ns);
        taken_ns >= MESSAGES_NS && (self.executor.schedule.has_work() || self.io.has_news())
    }

    /// Whether a connection may be adopted or closed now: its work does not delay other work, or there is time for it
    /// all the same.
    pub(super) fn has_time_for_turnover(&mut self) -> bool {
        let waits = self.executor.schedule.has_work() || !self.dirty.is_empty();
        self.turnover.has_time() || !waits && !self.io.has_news()
    }

    /// Work for connections that come and go begins.
    pub(super) fn begin_turnover(&mut self) -> Begun {
        self.turnover.begin(self.io.now_ns())
    }

    /// Counts this work.
    pub(super) fn end_turnover(&mut self, begun: Begun) {
        let now_ns = self.io.now_ns();
        self.turnover.end(begun, now_ns);
    }

    /// Operations begin. If the turn's time is over already, it starts anew: otherwise a peer that causes much work
    /// before operations could keep them from being performed at all.
    pub(super) fn begin_work(&mut self) {
        if self.turn.is_over {
            self.turn = Turn::new(self.io.now_ns());
        }
        self.prices.restart();
    }

    /// Operations of the turn end.
    pub(super) fn end_work(&mut self) {
        self.executor.schedule.give_back();
        if self.prices.is_worth_a_look() {
            let now_ns = self.io.now_ns();
            self.correct_prices(now_ns);
        }
    }

    /// Charges work whose price was too low. The clock has just been read.
    #[inline]
    pub(super) fn correct_prices(&mut self, now_ns: u64) {
        let Core { prices, executor, .. } = self;
        prices.look(now_ns, |connection, units| executor.schedule.charge(connection, units as i64));
    }

    /// Charges a connection for work besides operations.
    #[inline]
    pub(super) fn charge(&mut self, index: u32, units: u64) {
        self.prices.add(index, units);
        self.executor.schedule.charge(index, units as i64);
    }

    /// Reads the clock; returns the time since the last reading, in ns.
    fn look_at_clock(&mut self) -> u64 {
        let now_ns = self.io.now_ns();
        self.executor.now_ns = now_ns;
        let Outbox { file_operations, resumed, more_operations, .. } = &self.executor.outbox;
        let operations = file_operations.len() + resumed.len();
        self.turn.look_at_clock(now_ns, operations as u64 + more_operations)
    }

    /// Notes work for a connection; returns its cost. Long work costs its time by the clock and not its price, which is
    /// set for the worst code.
    #[inline]
    pub(super) fn spend(&mut self, units: u64) -> u64 {
        self.io.spend(units);
        self.turn.units += units;
        if self.turn.units < CLOCK_UNITS {
            return units;
        }
        self.spend_by_clock(units)
    }

    /// Notes work that takes less than [`Turn::units_to_clock`].
    #[inline]
    pub(super) fn spend_before_clock(&mut self, units: u64) {
        self.io.spend(units);
        self.turn.units += units;
        self.turn.cost += units;
    }

    #[inline(never)]
    pub(super) fn spend_by_clock(&mut self, units: u64) -> u64 {
        let before = self.turn.units.saturating_sub(units);
        let passed = self.look_at_clock() * 1000 / UNIT_PS;
        // Limited, because time in which the machine did something else must not count.
        passed.saturating_sub(before).clamp(units / 16, 4 * units)
    }

    /// A connection has more answers to send.
    #[inline]
    pub(super) fn answered(&mut self, index: u32) {
        self.mark_dirty(index);
        let cost = self.turn.cost;
        if cost >= ANSWERED_UNITS
            && let Some(Entry { connection, .. }) = self.table.get(index)
        {
            let (ended, left) = (connection.queue.ended(), connection.queue.in_flight());
            // What is left takes as long for each command as this turn's work so far.
            let is_little_left = cost * left as u64 <= LEFT_UNITS * ended as u64;
            self.turn.answers_leave |= is_little_left && ended >= FEWEST_ANSWERS;
        }
    }

    /// A connection has something to send, or may receive again.
    #[inline]
    pub(crate) fn mark_dirty(&mut self, index: u32) {
        if let Some(entry) = self.table.get_mut(index)
            && !entry.dirty
        {
            entry.dirty = true;
            self.dirty.push(index);
            self.turn.sends += 1;
            self.turn.units += SEND_UNITS;
            match entry.closing {
                true => self.executor.schedule.charge_unscheduled(index, SEND_UNITS),
                false => self.executor.schedule.charge(index, SEND_UNITS as i64),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{CommandId, FileOperation};
    use crate::reactor::closing::{close_ended, end_soon};
    use crate::rig::Rig;
    use bpfof_chain::Limits;

    /// However long the work before operations takes, operations have time of their own.
    #[test]
    fn operations_are_performed_in_each_turn() {
        let mut core = Rig::new(Limits::default()).core;
        core.turn = Turn::new(0);
        core.spend(TURN_US * 1_000_000 / UNIT_PS);
        core.io.now_ns = TURN_US * 1000;
        assert!(core.is_turn_over());
        core.begin_work();
        assert!(!core.is_turn_over());
        core.io.now_ns += TURN_US * 1000;
        assert!(core.is_turn_over());
    }

    /// Connections come and go in time that nobody else needs, or in a part of it.
    #[test]
    fn closing_waits_while_others_wait() {
        let mut rig = Rig::new(Limits::default());
        let [goes, busy] = [rig.open(), rig.open()].map(|line| rig.index(line));
        let core = &mut rig.core;
        core.dirty.clear();
        let spend = |core: &mut Core<_>| {
            let begun = core.turnover.begin(0);
            core.turnover.end(begun, 1_000_000);
        };
        spend(core);
        let end = |core: &mut Core<_>| {
            end_soon(core, goes, "the test ends it", true);
            close_ended(core);
            core.ended.len()
        };
        core.executor.schedule.wake(busy);
        assert_eq!(end(core), 1, "there is work, and no time besides");
        assert!(core.has_work());
        core.turnover.add(8_000_000);
        close_ended(core);
        assert!(core.ended.is_empty() && core.table.get(goes).is_some_and(|entry| entry.closing));
        spend(core);
        core.executor.schedule.pick();
        core.dirty.clear();
        assert!(core.has_time_for_turnover(), "nothing else waits");
        core.dirty.push(busy);
        assert!(!core.has_time_for_turnover());
    }

    #[test]
    fn operations_for_the_ring_are_time_of_the_turn() {
        let mut core = Rig::new(Limits::default()).core;
        core.turn = Turn::new(0);
        let most = TURN_US * 1_000_000 / UNIT_PS / FILE_OPERATION_UNITS;
        let command = CommandId { connection: 0, slot: 0 };
        let sync = || FileOperation::Sync { namespace: 0, command };
        let operations = |count| (0..count).map(|_| sync()).collect();
        for (count, is_over) in [(most - 1, false), (most, true)] {
            core.executor.outbox.file_operations = operations(count);
            core.spend(CLOCK_UNITS);
            assert_eq!(core.turn.is_over, is_over, "{count} operations");
        }
    }
}
