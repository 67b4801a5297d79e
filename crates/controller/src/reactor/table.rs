//! The connections of a reactor, and whose they are.

use crate::chain_admission::Party;
use crate::connection::{Connection, Endpoints};
use crate::controller::Controller;
use crate::hosts::{AddressSlot, Host};
use crate::limits::{MAX_CONNECTIONS, MAX_PENDING, MAX_PENDING_OF_ADDRESS};
use crate::schedule::{HostIndex, Schedule};
use crate::transport::Port;
use std::collections::HashMap;
use std::sync::Arc;

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

/// A connection, and what the reactor knows of it.
pub(crate) struct Entry {
    pub(crate) connection: Connection,
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
    fn is_pending(&self) -> bool {
        !self.closing && self.connection.phase.association().is_none()
    }

    /// Whether something is being sent.
    pub(super) fn is_sending(&self) -> bool {
        match &self.connection.port {
            Port::Tcp(port) => port.is_sending(),
            Port::Message(port) => port.is_sending(),
        }
    }

    /// For how many seconds a send has been waiting for the peer, of whom it is known how many bytes it
    /// has taken in all.
    pub(super) fn stuck_s(&mut self, taken_bytes: u64, now_ns: u64) -> u64 {
        if !self.is_sending() {
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
    fn join(
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

    fn leave(&mut self, party: PartyIndex) {
        self.associations[party.association as usize].1 -= 1;
        self.hosts.retain(|_, (index, members)| {
            *members -= u32::from(*index == party.host);
            *members > 0
        });
    }
}

/// See the module. Connections are named by their index.
pub(crate) struct Table {
    entries: Vec<Option<Entry>>,
    next_serial: u64,
    parties: Parties,
    /// The share of connections that have not got through Connect.
    pub(super) pending: HostIndex,
    pub(crate) room: Room,
}

impl Table {
    /// No connections; the first gets this serial.
    pub(super) fn new(pending: HostIndex, next_serial: u64) -> Table {
        let (entries, parties) = (Vec::new(), Parties::default());
        Table { entries, next_serial, parties, pending, room: Room::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.iter().all(Option::is_none)
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&Entry> {
        self.entries.get(index as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Entry> {
        self.entries.get_mut(index as usize)?.as_mut()
    }

    /// All indices, free ones too.
    pub(super) fn indices(&self) -> std::ops::Range<u32> {
        0..self.entries.len() as u32
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().flatten()
    }

    /// A free index; none if the reactor has as many connections as it takes.
    pub(super) fn free_index(&mut self) -> Option<u32> {
        let free = self.entries.iter().position(Option::is_none);
        let free = free.or_else(|| {
            let is_new = self.entries.len() < self.room.connections;
            is_new.then(|| {
                self.entries.push(None);
                self.entries.len() - 1
            })
        });
        free.map(|free| free as u32)
    }

    /// A serial number that no other connection has or gets.
    pub(super) fn take_serial(&mut self) -> u64 {
        self.next_serial += 1;
        self.next_serial - 1
    }

    /// A connection takes its place.
    pub(super) fn insert(&mut self, connection: Connection, address: Option<AddressSlot>) {
        let index = connection.index as usize;
        self.entries[index] = Some(Entry {
            connection,
            sends: 0,
            stuck: None,
            dirty: false,
            closing: false,
            cuts_chains: false,
            closed_ns: 0,
            party: None,
            _address: address,
        });
    }

    /// A connection is gone.
    pub(super) fn remove(&mut self, index: u32) {
        let entry = self.entries[index as usize].take();
        if let Some(party) = entry.and_then(|entry| entry.party) {
            self.parties.leave(party);
        }
    }

    /// A connection has got through Connect: whose it is.
    pub(super) fn join(
        &mut self,
        index: u32,
        schedule: &mut Schedule,
    ) -> Option<(HostIndex, Party)> {
        let Table { entries, parties, .. } = self;
        let entry = entries.get_mut(index as usize)?.as_mut()?;
        let association = entry.connection.phase.association()?;
        let party = parties.join(association.host(), &association.controller, schedule);
        entry.party = Some(party);
        let PartyIndex { host, association } = party;
        Some((host, Party { host: host.number(), association }))
    }

    /// The connection that has to go for one more at these ends, if there are too many that have not got
    /// through Connect, or too many of the same address: the oldest of these.
    pub(super) fn oldest_pending(&self, ends: &Endpoints) -> Option<u32> {
        let pending = || self.entries().filter(|entry| entry.is_pending());
        let is_here = |entry: &&Entry| entry.connection.ends.peer.ip() == ends.peer.ip();
        let serial = |entry: &&Entry| entry.connection.serial;
        let oldest = match () {
            () if pending().filter(is_here).count() >= self.room.pending_of_address => {
                pending().filter(is_here).min_by_key(serial)
            }
            () if pending().count() >= self.room.pending => pending().min_by_key(serial),
            () => None,
        };
        oldest.map(|entry| entry.connection.index)
    }

    /// The connection that goes when there is no memory for one more that has not got through Connect, at
    /// these ends and by the same transport: the oldest of the same address, or of all.
    pub(super) fn oldest_stranger(&self, ends: &Endpoints, port: &Port) -> Option<u32> {
        let is_alike = |entry: &&Entry| {
            entry.connection.port.asked_qid().is_some() == port.asked_qid().is_some()
        };
        let strangers = || self.entries().filter(|entry| entry.is_pending()).filter(is_alike);
        let is_here = |entry: &&Entry| entry.connection.ends.peer.ip() == ends.peer.ip();
        let serial = |entry: &&Entry| entry.connection.serial;
        let here = strangers().filter(is_here).min_by_key(serial);
        here.or_else(|| strangers().min_by_key(serial)).map(|entry| entry.connection.index)
    }

    /// The connection that has been idle longest of the host with most of them, if there are so many
    /// that those who want to connect would find no room.
    pub(super) fn idlest_of_greediest(&self) -> Option<u32> {
        let served = || self.entries().filter(|entry| !entry.closing && entry.party.is_some());
        if served().count() <= self.room.connections - self.room.pending {
            return None;
        }
        let greediest = self.parties.greediest()?;
        let of_host = |entry: &&Entry| entry.party.is_some_and(|party| party.host == greediest);
        let idle =
            served().filter(of_host).min_by_key(|entry| entry.connection.arrivals.command_ns);
        idle.map(|entry| entry.connection.index)
    }
}
