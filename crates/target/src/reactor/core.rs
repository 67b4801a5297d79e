//! What a reactor does, without threads, sockets and a ring: these are behind [`Io`], which the real
//! ring, the simulation and the fuzzer's rig each implement.
//!
//! A turn: what others have completed comes in ([`Core::received`], [`Core::sent`], …), then
//! [`Core::work`] serves connections in the order of their shares until the turn's time is over, then
//! [`Core::end_turn`] sends what each has to say, with one send, and receives again.

use super::entry::{Entry, Parties, Room};
use super::{Io, Message, Shut};
use crate::chain_admission::Party;
use crate::connection::{Close, Connection};
use crate::controller::Controller;
use crate::executor::{CommandId, Executor, Operation, Resting};
use crate::limits::{
    BYTES_PER_TURN, BYTES_PER_UNIT, CLOCK_UNITS, CLOSES_PER_TURN, COMPLETIONS_PER_CLOCK,
    COMPLETIONS_PER_TURN, HOPS_PER_CLOCK, HOPS_PER_COMMAND, HOPS_PER_TURN, RESPONSE_UNITS,
    SEND_UNITS, SLICE_NS, SLICE_UNITS, STOP_TIMEOUT_NS, TURN_US,
};
use crate::schedule::HostIndex;
use bpfof_chain::{ChainId, Progress};
use bpfof_device::{IoBuffer, Outgoing};
use bpfof_function::cost::UNIT_PS;
use bpfof_nvme::Status;
use std::collections::VecDeque;
use std::sync::Arc;

/// What has been done in this turn.
#[derive(Debug, Default)]
struct Turn {
    begun_ns: u64,
    hops: usize,
    /// Bytes that have been added to what is to be sent.
    bytes: usize,
    /// What the last command added.
    last_bytes: usize,
    /// Connections that will be sent to at its end.
    sends: u64,
    /// Units since the clock was last looked at.
    units: u64,
    clock_ns: u64,
    is_over: bool,
}

/// See the module.
pub(crate) struct Core<I> {
    pub(crate) io: I,
    pub(crate) x: Executor,
    pub(super) entries: Vec<Option<Entry>>,
    /// Connections that have something to send, or may receive again.
    dirty: Vec<u32>,
    /// Connections that have ended and are to be closed: their number, and why.
    ended: VecDeque<(u32, u64, String)>,
    turn: Turn,
    /// Sends of memory that commands may change, which have not ended.
    lent: usize,
    pub(super) next_serial: u64,
    pub(super) next_tick_ns: u64,
    /// When connections are looked at, which is not at every tick.
    pub(super) next_slow_tick_ns: u64,
    /// Those in a row without chains.
    pub(super) quiet_ticks: u32,
    pub(super) stop_at_ns: Option<u64>,
    pub(super) parties: Parties,
    /// The share of connections that have not got through Connect.
    pub(super) pending: HostIndex,
    pub(crate) room: Room,
}

impl<I: Io> Core<I> {
    /// `index` is that of the reactor among those of its target.
    pub(crate) fn new(io: I, mut x: Executor, index: usize) -> Core<I> {
        let pending = x.schedule.lasting_host();
        Core {
            io,
            x,
            entries: Vec::new(),
            dirty: Vec::new(),
            ended: VecDeque::new(),
            turn: Turn::default(),
            lent: 0,
            // Serials of all reactors differ.
            next_serial: (index as u64) << 48 | 1,
            next_tick_ns: 0,
            next_slow_tick_ns: 0,
            quiet_ticks: 0,
            stop_at_ns: None,
            parties: Parties::default(),
            pending,
            room: Room::default(),
        }
    }

    /// Whether it was told to stop and all is done, or has taken too long.
    pub(crate) fn is_finished(&self) -> bool {
        self.stop_at_ns
            .is_some_and(|at| self.x.now_ns >= at || self.entries.iter().all(Option::is_none))
    }

    /// Whether there is work that needs no further event.
    pub(crate) fn has_work(&self) -> bool {
        !self.dirty.is_empty() || !self.ended.is_empty() || self.x.schedule.has_work()
    }

    /// Whether connections have something to send, or may receive again.
    pub(crate) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// The connection with this index.
    pub(crate) fn connection(&self, index: u32) -> Option<&Connection> {
        self.entries.get(index as usize)?.as_ref().map(|entry| &entry.connection)
    }

    /// The same to be changed.
    pub(crate) fn connection_mut(&mut self, index: u32) -> Option<&mut Connection> {
        self.entries.get_mut(index as usize)?.as_mut().map(|entry| &mut entry.connection)
    }

    /// When something is to be done at the latest, if nothing happens before.
    pub(crate) fn next_ns(&self) -> u64 {
        self.x.next_due_ns().map_or(self.next_tick_ns, |due_ns| due_ns.min(self.next_tick_ns))
    }

    /// A turn begins.
    pub(crate) fn begin_turn(&mut self) {
        let now_ns = self.io.now_ns();
        self.x.now_ns = now_ns;
        self.turn = Turn { begun_ns: now_ns, clock_ns: now_ns, ..Turn::default() };
    }

    /// Whether memory is being sent that commands may change.
    pub(crate) fn lends(&self) -> bool {
        self.lent > 0
    }

    /// Whether this turn takes another completion after it has taken so many. The end of a send that
    /// lends memory comes before commands in any case: what was not sent must be copied before they
    /// change it.
    pub(crate) fn takes_more(&mut self, taken: usize) -> bool {
        if self.lent > 0 {
            return true;
        }
        if taken.is_multiple_of(COMPLETIONS_PER_CLOCK) {
            self.look_at_clock();
        }
        taken < COMPLETIONS_PER_TURN && !self.turn.is_over
    }

    /// Returns the time since the last look, in ns.
    fn look_at_clock(&mut self) -> u64 {
        let now_ns = self.io.now_ns();
        let passed_ns = now_ns.saturating_sub(self.turn.clock_ns);
        self.turn.clock_ns = now_ns;
        self.turn.units = 0;
        let sends_ns = self.turn.sends * SEND_UNITS * UNIT_PS / 1000;
        let turn_ns = now_ns.saturating_sub(self.turn.begun_ns) + sends_ns;
        self.turn.is_over |= turn_ns >= TURN_US * 1000;
        passed_ns
    }

    /// Something has been done for a connection. What takes long is counted as the clock says, not as
    /// its price: that is made for the worst code.
    #[inline]
    fn spend(&mut self, units: u64) -> u64 {
        self.io.spend(units);
        self.turn.units += units;
        if self.turn.units < CLOCK_UNITS {
            return units;
        }
        self.spend_by_clock(units)
    }

    #[inline(never)]
    fn spend_by_clock(&mut self, units: u64) -> u64 {
        let before = self.turn.units.saturating_sub(units);
        let passed = self.look_at_clock() * 1000 / UNIT_PS;
        // Not for time in which the machine did something else.
        passed.saturating_sub(before).clamp(units / 16, 4 * units)
    }

    /// Serves connections until the turn is over or nothing is left to do.
    pub(crate) fn work(&mut self) {
        self.x.release_due();
        while !self.turn.is_over && self.turn.hops < HOPS_PER_TURN {
            // The next is likely to be as long as the last.
            let bytes = self.turn.bytes;
            if bytes > 0 && bytes + self.turn.last_bytes > BYTES_PER_TURN || !self.step() {
                break;
            }
        }
        self.x.schedule.give_back();
    }

    /// Performs the next operation; false if there is none.
    #[inline]
    pub(crate) fn step(&mut self) -> bool {
        let Some(connection) = self.x.schedule.next().or_else(|| self.next_round()) else {
            return false;
        };
        self.perform(connection);
        let spent = self.x.take_spent();
        let cost = self.spend(spent);
        self.x.schedule.told(cost);
        if self.x.is_modelled() && self.turn.hops.is_multiple_of(HOPS_PER_CLOCK) {
            self.x.now_ns = self.io.now_ns();
            self.x.release_due();
        }
        true
    }

    /// Begins a round: takes the input of those whose turn it is, and their operations.
    #[inline(never)]
    fn next_round(&mut self) -> Option<u32> {
        self.x.schedule.end_round();
        while self.x.schedule.has_room() && !self.turn.is_over {
            let Some(connection) = self.x.schedule.pick() else { break };
            self.take_input(connection);
            self.x.schedule.take(connection);
        }
        self.x.prefetch_round();
        self.x.schedule.next()
    }

    /// Performs the operation whose turn it is, of this connection.
    #[inline]
    fn perform(&mut self, index: u32) {
        let Some(entry) = &mut self.entries[index as usize] else { return };
        // Fields are taken one by one: a copy of the whole would be waited for.
        match *self.x.schedule.operation() {
            Operation::Command { command, .. } => {
                let before = entry.connection.tx.len();
                entry.connection.memory_done(command.slot, &mut self.x);
                let bytes = entry.connection.tx.len() - before;
                self.turn.last_bytes = bytes;
                self.turn.bytes += bytes;
                self.turn.hops += HOPS_PER_COMMAND;
                self.x.spend(RESPONSE_UNITS + bytes as u64 / BYTES_PER_UNIT);
                self.mark_dirty(index);
            }
            Operation::Zero { namespace, command, offset, length } => {
                let zeroes = ((offset, length), !entry.cuts_chains);
                entry.connection.zero_memory(namespace as usize, command, zeroes, &mut self.x);
                self.mark_dirty(index);
            }
            Operation::ChainRead { namespace, read } => {
                self.turn.hops += 1;
                entry.connection.refresh_tables();
                let (wanted, tables) = (!entry.cuts_chains, &entry.connection.tables);
                let progress = self.x.read_for_chain(namespace as usize, read, wanted, tables);
                if progress != Progress::Reads {
                    self.progressed(index, read.chain, progress);
                }
            }
            Operation::ChainReadDone { chain, ok } => {
                self.go_on_with_chain(index, chain, Some(ok));
            }
            Operation::ChainCalls { chain } => self.go_on_with_chain(index, chain, None),
        }
    }

    /// A read from a file has ended, well or not, or a hop has calls left.
    fn go_on_with_chain(&mut self, index: u32, chain: ChainId, read: Option<bool>) {
        let Some(entry) = &mut self.entries[index as usize] else { return };
        self.turn.hops += 1;
        entry.connection.refresh_tables();
        let (wanted, tables) = (!entry.cuts_chains, &entry.connection.tables);
        let progress = self.x.go_on_with_chain(chain, read, wanted, tables);
        self.progressed(index, chain, progress);
    }

    /// A step of a chain has led to more than reads.
    #[inline]
    fn progressed(&mut self, index: u32, chain: ChainId, progress: Progress) {
        let Some(entry) = &mut self.entries[index as usize] else { return };
        match progress {
            Progress::Reads => {}
            Progress::Calls => self.go_on(chain, Operation::ChainCalls { chain }),
            Progress::Done(outcome) => {
                let owner = self.x.owner(chain);
                let before = entry.connection.tx.len();
                entry.connection.chain_done(owner.command.slot, chain, outcome, &mut self.x);
                let bytes = entry.connection.tx.len() - before;
                self.x.admission.ended(index, owner.gives_way);
                self.x.spend(RESPONSE_UNITS + bytes as u64 / BYTES_PER_UNIT);
                self.mark_dirty(index);
            }
            Progress::Rest => self.rest(index, chain),
        }
    }

    /// A chain gives its arena to somebody else, and waits for another.
    #[cold]
    fn rest(&mut self, index: u32, chain: ChainId) {
        let Some(entry) = &mut self.entries[index as usize] else { return };
        let owner = self.x.owner(chain);
        let slot = owner.command.slot;
        let suspended = self.x.engine().suspend(chain);
        self.x.admission.ended(index, owner.gives_way);
        match entry.connection.charge(suspended.bytes()) {
            Ok(memory) => {
                let since_ns = self.x.now_ns;
                let resting = Resting { slot, chain: suspended, since_ns, _memory: memory };
                entry.connection.resting.push_back(resting);
                self.x.admission.wait(index);
            }
            Err(full) => {
                let what = format_args!("a chain that gives way is ended: {full}");
                entry.connection.note(log::Level::Warn, self.x.now_ns, what);
                entry.connection.end_resting(slot, Status::COMMAND_INTERRUPTED, &mut self.x);
                self.mark_dirty(index);
            }
        }
    }

    /// A connection has been granted an arena: for a chain that rests, or for its next command.
    fn granted(&mut self, index: u32) {
        let Some(entry) = &mut self.entries[index as usize] else { return };
        let connection = &mut entry.connection;
        if entry.closing {
            return self.x.admission.stop_waiting(index);
        }
        let waits_since_ns = connection.waits_for_chain_since_ns;
        let is_resting_first = connection
            .resting
            .front()
            .is_some_and(|resting| waits_since_ns.is_none_or(|ns| resting.since_ns <= ns));
        if !is_resting_first {
            connection.waits_for_chain_since_ns = None;
            self.x.schedule.wake(index);
            if !connection.resting.is_empty() {
                self.x.admission.wait(index);
            }
            return;
        }
        if let Some(resting) = connection.resting.pop_front() {
            connection.refresh_tables();
            connection.resume(&resting, &mut self.x);
            self.mark_dirty(index);
        }
        let connection = self.entries[index as usize].as_ref().map(|entry| &entry.connection);
        if connection.is_some_and(Connection::wants_chain) {
            self.x.admission.wait(index);
        }
    }

    /// Gives what has been received to the connection, as much as it may do now. More is received after
    /// what it has to say is sent: the kernel does both in that order, and arming a receive takes longer
    /// than many answers.
    pub(crate) fn take_input(&mut self, index: u32) {
        let Some(Some(entry)) = self.entries.get_mut(index as usize) else { return };
        if entry.closing || !entry.has_input || entry.connection.is_full() {
            return;
        }
        let Some(rx) = &mut entry.rx else { return };
        let (until, begun_ns) = (self.x.spent() + SLICE_UNITS, self.io.now_ns());
        let (mut used, mut takes_long) = (0, false);
        let outcome = loop {
            let input = &rx[used..entry.rx_filled];
            match entry.connection.receive(input, until, &mut self.x) {
                Ok(bytes) => used += bytes,
                Err(close) => break Err(close),
            }
            let connection = &entry.connection;
            let goes_on = connection.has_more() && !connection.is_paused();
            if !goes_on || connection.admin.is_some() || self.x.spent() >= until {
                break Ok(used);
            }
            takes_long = self.io.now_ns().saturating_sub(begun_ns) >= SLICE_NS;
            if takes_long {
                break Ok(used);
            }
        };
        match outcome {
            Ok(used) => {
                rx.copy_within(used..entry.rx_filled, 0);
                entry.rx_filled -= used;
                // What is left is a part of a PDU, or waits until the connection goes on.
                entry.has_input = entry.connection.has_more();
                let goes_on = entry.has_input && !entry.connection.is_paused();
                let has_changed = used > 0 || !entry.has_input;
                if !entry.connection.wants_chain() {
                    self.x.admission.let_go(index);
                }
                if goes_on {
                    self.x.schedule.wake(index);
                }
                self.after_commands(index);
                if has_changed {
                    self.mark_dirty(index);
                }
            }
            Err(close) => {
                if let Close::Protocol(error) = &close {
                    log::warn!("{}: {error}", entry.connection.name());
                }
                self.after_commands(index);
                self.flush(index);
                self.close(index, &close.to_string());
                self.mark_dirty(index);
            }
        }
        let spent = self.x.take_spent();
        let cost = if takes_long { self.spend_by_clock(spent) } else { self.spend(spent) };
        self.x.schedule.charge(index, cost as i64);
    }

    /// What commands asked for beyond the executor: compilations, another host, the end of queues.
    fn after_commands(&mut self, index: u32) {
        for load in self.x.loads.drain(..) {
            self.io.load(load);
        }
        let Some(entry) = &mut self.entries[index as usize] else { return };
        if std::mem::take(&mut entry.connection.has_connected) {
            self.connected(index);
        }
        let Some(entry) = &mut self.entries[index as usize] else { return };
        if std::mem::take(&mut entry.connection.reset_queues)
            && let Some(controller) = entry.connection.controller.clone()
        {
            self.io.tell_all(&|| Message::EndQueues(Arc::clone(&controller), false));
        }
        for controller in std::mem::take(&mut self.x.evicted) {
            self.io.tell_all(&|| Message::EndQueues(Arc::clone(&controller), true));
        }
    }

    /// A connection has got through Connect: it has shares from now on.
    fn connected(&mut self, index: u32) {
        let Some(entry) = &mut self.entries[index as usize] else { return };
        let connection = &entry.connection;
        let (Some(host), Some(controller)) = (connection.host(), &connection.controller) else {
            return;
        };
        let party = self.parties.join(host, controller, &mut self.x.schedule);
        entry.party = Some(party);
        self.x.schedule.join(index, party.host);
        let party = Party { host: party.host.number(), association: party.association };
        self.x.admission.join(index, party);
        entry.grow_rx();
        self.make_room_for_pending();
    }

    /// Something was received into this buffer, or, with a `result` of 0 or below, nothing will be.
    pub(crate) fn received(&mut self, index: u32, buffer: Vec<u8>, result: i32) {
        let Some(entry) = &mut self.entries[index as usize] else { return };
        entry.rx = Some(buffer);
        if entry.closing {
            return self.remove_if_done(index);
        }
        match result {
            0 => self.has_ended(index, "the host closed the connection".to_owned()),
            error if error < 0 => {
                let cause = std::io::Error::from_raw_os_error(-error);
                self.has_ended(index, format!("receive failed: {cause}"));
            }
            length => {
                entry.rx_filled += length as usize;
                entry.has_input = true;
                self.x.schedule.wake(index);
            }
        }
    }

    /// A send has ended.
    pub(crate) fn sent(&mut self, index: u32, mut sent: Box<Outgoing>, result: i32) {
        self.lent -= usize::from(!sent.is_own());
        let Some(entry) = &mut self.entries[index as usize] else { return };
        let complete = result == sent.len() as i32;
        let takes_nothing = result == -rustix::io::Errno::AGAIN.raw_os_error();
        let accepted = if takes_nothing { 0 } else { result };
        if !complete && accepted >= 0 && !sent.is_own() {
            // No command has been looked at since the kernel read the first part: no block is torn.
            sent.copy_rest(accepted as usize, |buffer| self.x.recycle(buffer));
            entry.connection.sending_bytes = sent.len();
            return self.io.send(index, sent);
        }
        sent.clear(crate::limits::RX_BYTES, |buffer| self.x.recycle(buffer));
        entry.spare_tx = Some(sent);
        entry.connection.sending_bytes = 0;
        entry.sends += 1;
        if entry.closing {
            self.flush(index);
            return self.remove_if_done(index);
        }
        if !complete {
            let cause = std::io::Error::from_raw_os_error(-result.min(0));
            return self.has_ended(index, format!("send failed: {cause}"));
        }
        self.mark_dirty(index);
    }

    /// A connection is to be closed soon. Many may end at once, and closing one takes longer than most
    /// commands.
    fn has_ended(&mut self, index: u32, reason: String) {
        if let Some(entry) = &mut self.entries[index as usize] {
            entry.cuts_chains = true;
            self.ended.push_back((index, entry.connection.serial, reason));
        }
    }

    fn close_ended(&mut self) {
        for _ in 0..CLOSES_PER_TURN {
            let Some((index, serial, reason)) = self.ended.pop_front() else { return };
            if self.connection(index).is_some_and(|connection| connection.serial == serial) {
                self.close(index, &reason);
            }
        }
    }

    /// A command's operation on a file has completed.
    pub(crate) fn file_done(&mut self, command: CommandId, result: i32, buffer: Option<IoBuffer>) {
        let Some(entry) = &mut self.entries[command.connection as usize] else { return };
        let before = entry.connection.tx.len();
        entry.connection.file_done(command.slot, result, buffer, &mut self.x);
        let bytes = entry.connection.tx.len() - before;
        let units = RESPONSE_UNITS + bytes as u64 / BYTES_PER_UNIT + self.x.take_spent();
        let cost = self.spend(units);
        self.x.schedule.charge(command.connection, cost as i64);
        self.mark_dirty(command.connection);
    }

    /// A chain's read from a file has completed; its data is in place if `result` is `length`.
    pub(crate) fn chain_read_done(&mut self, chain: ChainId, length: u32, result: i32) {
        let index = self.x.owner(chain).command.connection;
        if result < 0
            && let Some(entry) = &mut self.entries[index as usize]
        {
            let cause = std::io::Error::from_raw_os_error(-result);
            let what = format_args!("read for a chain failed: {cause}");
            entry.connection.note(log::Level::Error, self.x.now_ns, what);
        }
        let ok = result == length as i32;
        self.go_on(chain, Operation::ChainReadDone { chain, ok });
    }

    /// Queues what a chain goes on with: before all others of its connection if it gives way.
    #[inline]
    fn go_on(&mut self, chain: ChainId, operation: Operation) {
        let owner = self.x.owner(chain);
        match owner.gives_way {
            true => self.x.schedule.push_first(owner.command.connection, operation),
            false => self.x.schedule.push_active(owner.command.connection, operation),
        }
    }

    /// What others ask for.
    pub(crate) fn message(&mut self, message: Message) {
        match message {
            Message::Adopt(..) => unreachable!("who knows sockets takes it"),
            Message::EndQueues(controller, and_admin) => self.end_queues(&controller, and_admin),
            Message::Serve(served, _done) => {
                self.x.serve(&served);
                self.let_namespaces_go();
            }
            Message::NamespacesChanged => {
                for index in 0..self.entries.len() {
                    if let Some(entry) = &mut self.entries[index]
                        && !entry.closing
                    {
                        entry.connection.notify();
                        self.mark_dirty(index as u32);
                    }
                }
            }
            Message::Loaded { command, serial, installation, outcome } => {
                let entry = self.entries.get_mut(command.connection as usize);
                if let Some(Some(entry)) = entry
                    && entry.connection.serial == serial
                {
                    entry.connection.loaded(command.slot, installation, *outcome, &mut self.x);
                    self.mark_dirty(command.connection);
                }
            }
            Message::Stop => {
                self.stop_at_ns = Some(self.x.now_ns + STOP_TIMEOUT_NS);
                for index in 0..self.entries.len() {
                    if self.entries[index].is_some() {
                        self.close(index as u32, "the target stops");
                    }
                }
            }
        }
    }

    fn end_queues(&mut self, controller: &Arc<Controller>, and_admin: bool) {
        for index in 0..self.entries.len() {
            let Some(entry) = &self.entries[index] else { continue };
            if entry.connection.ends_with(controller, and_admin) {
                self.close(index as u32, "the controller was reset or is gone");
            }
        }
    }

    #[inline]
    pub(super) fn mark_dirty(&mut self, index: u32) {
        if let Some(entry) = &mut self.entries[index as usize]
            && !entry.dirty
        {
            entry.dirty = true;
            self.dirty.push(index);
            self.turn.sends += 1;
            self.turn.units += SEND_UNITS;
            self.x.schedule.charge(index, SEND_UNITS as i64);
        }
    }

    /// Hands file operations to the ring, sends, and receives again.
    pub(crate) fn end_turn(&mut self) {
        self.close_ended();
        self.submit_file_operations();
        let mut granted = Vec::new();
        self.x.grant_arenas(|index| granted.push(index));
        for index in granted {
            self.granted(index);
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        // All sends come before all receives, so that they also complete before: what a socket did not
        // take of data that is borrowed is copied before commands change it.
        for &index in &dirty {
            let Some(entry) = &mut self.entries[index as usize] else { continue };
            entry.dirty = false;
            entry.connection.publish_counters();
            self.flush(index);
        }
        for index in dirty.drain(..) {
            self.resume(index);
            self.remove_if_done(index);
        }
        // Resuming may have marked connections again: they come with the next turn.
        if self.dirty.is_empty() {
            self.dirty = dirty;
        }
        self.submit_file_operations();
        if self.x.now_ns >= self.next_tick_ns {
            self.tick();
        }
    }

    fn submit_file_operations(&mut self) {
        let mut operations = std::mem::take(&mut self.x.file_operations);
        for operation in operations.drain(..) {
            self.io.file(&mut self.x, operation);
        }
        self.x.file_operations = operations;
    }

    /// Sends what a connection has to say, if nothing is on its way already.
    pub(super) fn flush(&mut self, index: u32) {
        let Some(entry) = &mut self.entries[index as usize] else { return };
        if entry.connection.tx.is_empty() {
            return;
        }
        if let Some(spare) = entry.spare_tx.take() {
            let full = std::mem::replace(&mut entry.connection.tx, spare);
            entry.connection.sending_bytes = full.len();
            self.lent += usize::from(!full.is_own());
            self.io.send(index, full);
        }
    }

    /// A connection that was paused with received bytes left goes on with them, others receive.
    pub(super) fn resume(&mut self, index: u32) {
        let Some(entry) = &mut self.entries[index as usize] else { return };
        if entry.closing || entry.connection.is_paused() {
            return;
        }
        if entry.has_input {
            self.x.schedule.wake(index);
        } else if let Some(buffer) = entry.rx.take() {
            let filled = entry.rx_filled;
            self.io.receive(index, buffer, filled);
        }
    }

    /// Begins to close a connection: no more commands; what is in flight comes back first.
    pub(crate) fn close(&mut self, index: u32, reason: &str) {
        let Some(entry) = &mut self.entries[index as usize] else { return };
        if entry.closing {
            return;
        }
        entry.closing = true;
        entry.closed_ns = self.x.now_ns;
        entry.cuts_chains |= self.stop_at_ns.is_none();
        log::info!("{}: closed: {reason}", entry.connection.name());
        entry.connection.abandon(&mut self.x);
        self.io.cancel_loads(entry.connection.serial);
        // Ends the receive; what is being sent still goes out.
        self.io.shut(index, Shut::Receive);
        let connection = &entry.connection;
        if let (Some(controller), Some(queue)) = (&connection.controller, &connection.queue) {
            controller.remove_queue(queue.id, queue.resets);
            if connection.admin.is_some() {
                controller.subsystem.remove_controller(controller.id);
                let controller = Arc::clone(controller);
                self.io.tell_all(&|| Message::EndQueues(Arc::clone(&controller), true));
            }
        }
        self.mark_dirty(index);
        self.remove_if_done(index);
    }

    fn remove_if_done(&mut self, index: u32) {
        let Some(entry) = &self.entries[index as usize] else { return };
        let idle = entry.rx.is_some() && entry.spare_tx.is_some() && !entry.connection.is_busy();
        let told = entry.connection.tx.is_empty();
        if !(entry.closing && idle && told && !entry.dirty) {
            return;
        }
        if let Some(party) = entry.party {
            self.parties.leave(party);
        }
        self.x.admission.leave(index);
        self.x.schedule.leave(index);
        self.entries[index as usize] = None;
        self.io.close(index);
    }

    /// Lets namespaces go that were removed and that no command works on any more.
    pub(super) fn let_namespaces_go(&mut self) {
        let entries = self.entries.iter().flatten();
        self.x.places().release_unused(entries.map(|entry| &entry.connection));
        // Else it would come only after the sleep that is being prepared now.
        let soon_ns = self.x.now_ns + self.tick_interval_ns();
        self.next_tick_ns = self.next_tick_ns.min(soon_ns);
    }
}
