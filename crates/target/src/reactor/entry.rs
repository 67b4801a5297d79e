//! The connections of a reactor: how they come, how long they stay, who goes when room is needed.

use super::core::Core;
use super::{Io, Shut};
use crate::connection::{Connection, Endpoints};
use crate::controller::Controller;
use crate::hosts::{AddressSlot, Host};
use crate::limits::{
    IDLE_TX_BYTES, KEPT_ARENAS, LINGER_NS, MAX_CONNECTIONS, MAX_PENDING, MAX_PENDING_OF_ADDRESS,
    RX_BYTES, SMALL_RX_BYTES,
};
use crate::schedule::{HostIndex, Schedule};
use bpfof_device::Outgoing;
use std::collections::HashMap;
use std::sync::Arc;

/// How often timers are looked at.
pub(super) const TICK_NS: u64 = 1_000_000_000;
/// The same while removed namespaces wait for the last of their commands, or connections for an arena.
const SHORT_TICK_NS: u64 = 10_000_000;
/// Ticks without a busy moment after which arenas that nobody uses are dropped.
const QUIET_TICKS: u32 = 10;

/// How many connections a reactor takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) connections: usize,
    /// Of these, those that have not got through Connect.
    pub(crate) pending: usize,
    /// Of these, those of one address.
    pub(crate) pending_of_address: usize,
}

impl Default for Room {
    fn default() -> Room {
        Room {
            connections: MAX_CONNECTIONS,
            pending: MAX_PENDING,
            pending_of_address: MAX_PENDING_OF_ADDRESS,
        }
    }
}

/// A connection with its buffers.
pub(crate) struct Entry {
    pub(crate) connection: Connection,
    /// None while something is received into it.
    pub(super) rx: Option<Vec<u8>>,
    pub(super) rx_filled: usize,
    /// Whole PDUs may be left in `rx`.
    pub(super) has_input: bool,
    /// The buffer that is not being filled; None while it is sent.
    pub(super) spare_tx: Option<Box<Outgoing>>,
    /// Sends that have ended.
    pub(super) sends: u64,
    /// What was known at an earlier tick of a send that has not ended: its number, how much the peer
    /// had taken, since when that is so.
    stuck: Option<(u64, u64, u64)>,
    pub(super) dirty: bool,
    pub(super) closing: bool,
    /// Chains end at their next hop, zeroes at their next part: nobody waits for them.
    pub(super) cuts_chains: bool,
    pub(super) closed_ns: u64,
    pub(super) party: Option<PartyIndex>,
    _address: Option<AddressSlot>,
}

impl Entry {
    /// Makes room for the data of an I/O queue.
    pub(super) fn grow_rx(&mut self) {
        let is_io = self.connection.queue.as_ref().is_some_and(|queue| queue.id != 0);
        if let Some(rx) = self.rx.as_mut().filter(|_| is_io) {
            rx.resize(RX_BYTES, 0);
        }
    }

    fn is_pending(&self) -> bool {
        !self.closing && self.connection.controller.is_none()
    }

    /// For how many seconds a send has been waiting for the peer, of whom it is known how many bytes it
    /// has taken in all.
    fn is_stuck(&mut self, taken_bytes: u64, now_ns: u64) -> u64 {
        if self.spare_tx.is_some() {
            self.stuck = None;
            return 0;
        }
        let same =
            self.stuck.filter(|(sends, taken, _)| (*sends, *taken) == (self.sends, taken_bytes));
        let (.., since_ns) = *self.stuck.insert(same.unwrap_or((self.sends, taken_bytes, now_ns)));
        now_ns.saturating_sub(since_ns) / 1_000_000_000
    }
}

/// The shares of a connection that has got through Connect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartyIndex {
    pub(super) host: HostIndex,
    pub(super) association: u32,
}

/// The hosts and associations that have connections at a reactor.
#[derive(Debug, Default)]
pub(crate) struct Parties {
    /// By the host's serial number: its index and how many connections it has.
    hosts: HashMap<u64, (HostIndex, u32)>,
    /// By association, in use or not: the address of its controller, and its connections.
    associations: Vec<(usize, u32)>,
}

impl Parties {
    pub(super) fn join(
        &mut self,
        host: &Arc<Host>,
        controller: &Arc<Controller>,
        schedule: &mut Schedule,
    ) -> PartyIndex {
        let known = self.hosts.entry(host.serial);
        let (host, members) = known.or_insert_with(|| (schedule.new_host(), 0));
        *members += 1;
        let id = Arc::as_ptr(controller).addr();
        let same = self.associations.iter().position(|(known, count)| *known == id && *count > 0);
        let free = || self.associations.iter().position(|(_, count)| *count == 0);
        let association = same.or_else(free).unwrap_or(self.associations.len());
        match self.associations.get_mut(association) {
            Some((known, count)) => {
                *known = id;
                *count += 1;
            }
            None => self.associations.push((id, 1)),
        }
        PartyIndex { host: *host, association: association as u32 }
    }

    /// The host with most connections, if it has more than one.
    fn greediest(&self) -> Option<HostIndex> {
        let (host, members) = self.hosts.values().max_by_key(|(_, members)| *members)?;
        (*members > 1).then_some(*host)
    }

    pub(super) fn leave(&mut self, party: PartyIndex) {
        self.associations[party.association as usize].1 -= 1;
        self.hosts.retain(|_, (index, members)| {
            *members -= u32::from(*index == party.host);
            *members > 0
        });
    }
}

impl<I: Io> Core<I> {
    /// Takes a connection on; none if it is refused. Its index is that of its socket; when the
    /// reactor's [`Io`] knows that, it [begins](Self::begin) to be served.
    pub(crate) fn adopt(&mut self, ends: Endpoints, address: Option<AddressSlot>) -> Option<u32> {
        if self.stop_at_ns.is_some() {
            return None;
        }
        self.make_room(&ends);
        let index = match self.entries.iter().position(Option::is_none) {
            Some(free) => free,
            None if self.entries.len() < self.room.connections => {
                self.entries.push(None);
                self.entries.len() - 1
            }
            None => {
                let (peer, count) = (ends.peer, self.room.connections);
                log::warn!("{peer}: refused: the reactor has {count} connections, its limit");
                return None;
            }
        };
        let memory = match self.x.target.hosts.pending.charge(Connection::PENDING_BYTES) {
            Ok(memory) => memory,
            Err(full) => {
                log::warn!("{}: refused: {full}", ends.peer);
                return None;
            }
        };
        let serial = self.next_serial;
        self.next_serial += 1;
        let connection = Connection::new(index as u32, serial, ends, memory, self.x.now_ns);
        self.entries[index] = Some(Entry {
            connection,
            rx: Some(vec![0; SMALL_RX_BYTES]),
            rx_filled: 0,
            has_input: false,
            spare_tx: Some(Box::default()),
            sends: 0,
            stuck: None,
            dirty: false,
            closing: false,
            cuts_chains: false,
            closed_ns: 0,
            party: None,
            _address: address,
        });
        self.x.schedule.join(index as u32, self.pending);
        Some(index as u32)
    }

    /// Begins to receive from a connection that was taken on.
    pub(crate) fn begin(&mut self, index: u32) {
        self.resume(index);
    }

    /// Makes room for one more connection without a controller: the oldest of these goes if there are
    /// too many of them, or too many of the same address.
    fn make_room(&mut self, ends: &Endpoints) {
        let (mut count, mut oldest) = (0, None::<&Connection>);
        let (mut count_here, mut oldest_here) = (0, None::<&Connection>);
        for entry in self.entries.iter().flatten().filter(|entry| entry.is_pending()) {
            let connection = &entry.connection;
            let older = |known: Option<&Connection>| {
                known.is_none_or(|known| connection.serial < known.serial)
            };
            count += 1;
            oldest = if older(oldest) { Some(connection) } else { oldest };
            if connection.ends.peer.ip() == ends.peer.ip() {
                count_here += 1;
                oldest_here = if older(oldest_here) { Some(connection) } else { oldest_here };
            }
        }
        let goes = match () {
            () if count_here >= self.room.pending_of_address => oldest_here,
            () if count >= self.room.pending => oldest,
            () => None,
        };
        if let Some(index) = goes.map(|goes| goes.index) {
            self.close(index, "others came and it had not connected yet");
        }
    }

    /// Closes the connection that has been idle longest of the host with most of them, if there are so
    /// many that those who want to connect would find no room.
    pub(super) fn make_room_for_pending(&mut self) {
        let served = |entry: &&Entry| !entry.closing && entry.party.is_some();
        let entries = || self.entries.iter().flatten().filter(served);
        if entries().count() <= self.room.connections - self.room.pending {
            return;
        }
        let Some(greediest) = self.parties.greediest() else { return };
        let of_host = |entry: &&Entry| entry.party.is_some_and(|party| party.host == greediest);
        let idle = entries().filter(of_host).min_by_key(|entry| entry.connection.last_command_ns());
        if let Some(index) = idle.map(|entry| entry.connection.index) {
            self.close(index, "the reactor's connections are all taken, and its host has most");
        }
    }

    pub(super) fn tick_interval_ns(&mut self) -> u64 {
        let is_short = self.x.places().has_leaving() || !self.x.admission.waiting().is_empty();
        if is_short { SHORT_TICK_NS } else { TICK_NS }
    }

    /// Once a second: peers that are silent, or do not take what is sent to them, and what idle
    /// connections keep.
    pub(super) fn tick(&mut self) {
        let now_ns = self.x.now_ns;
        if self.x.places().has_leaving() {
            self.let_namespaces_go();
        }
        self.next_tick_ns = now_ns + self.tick_interval_ns();
        if now_ns < self.next_slow_tick_ns {
            return;
        }
        self.next_slow_tick_ns = now_ns + TICK_NS;
        for index in 0..self.entries.len() as u32 {
            self.look_at(index, now_ns);
        }
        let is_quiet = self.x.free_chains() == self.x.target.limits.chains;
        self.quiet_ticks = if is_quiet { self.quiet_ticks + 1 } else { 0 };
        if self.quiet_ticks == QUIET_TICKS {
            self.x.trim(KEPT_ARENAS);
        }
    }

    fn look_at(&mut self, index: u32, now_ns: u64) {
        let Some(entry) = &mut self.entries[index as usize] else { return };
        if entry.closing {
            if now_ns.saturating_sub(entry.closed_ns) > LINGER_NS {
                self.io.shut(index, Shut::Both);
            }
            return;
        }
        let limits = self.x.target.hosts.limits;
        if let Some(reason) = entry.connection.overdue(now_ns, limits.idle_timeout_s) {
            return self.close(index, reason);
        }
        let taken_bytes = if entry.spare_tx.is_none() { self.io.taken_bytes(index) } else { 0 };
        if entry.is_stuck(taken_bytes, now_ns) >= u64::from(limits.send_timeout_s) {
            return self.close(index, "it takes nothing of what is sent to it (send-timeout)");
        }
        // While nothing is received, nobody else hears that the host is gone.
        if entry.connection.is_paused() && self.io.has_hung_up(index) {
            return self.close(index, "the host closed the connection");
        }
        // What an idle connection keeps, nobody has any use for: tables that are out of date, with
        // what has been unloaded, and room for answers.
        entry.connection.refresh_tables();
        entry.connection.give_memory_back();
        if let Some(spare) = entry.spare_tx.as_mut().filter(|_| entry.connection.is_idle()) {
            spare.clear(IDLE_TX_BYTES, |_| ());
            entry.connection.tx.clear(IDLE_TX_BYTES, |_| ());
            self.x.schedule.shrink(index);
        }
    }
}
