//! The connections of a reactor, and the parties that they belong to.

use crate::chain_admission::Party;
use crate::connection::{Connection, Endpoints};
use crate::controller::Controller;
use crate::hosts::{AddressSlot, Host};
use crate::limits::{
    MANY_OF_ADDRESS, MAX_CLOSING, MAX_CONNECTIONS, MAX_GROUPS_AHEAD, MAX_PENDING,
    MAX_PENDING_OF_ADDRESS,
};
use crate::room::CountsFor;
use crate::schedule::{GroupIndex, HostIndex, Schedule};
use crate::transport::Port;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{self, Display, Formatter};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

/// How many connections a reactor takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) connections: usize,
    /// Of these, connections of strangers, which have not completed Connect, or not authenticated as their rule
    /// requires.
    pub(crate) pending: usize,
    /// Of these, connections of one address.
    pub(crate) pending_of_address: usize,
    /// Connections that are closing, in addition.
    pub(crate) closing: usize,
}

impl Default for Room {
    fn default() -> Room {
        Room {
            connections: MAX_CONNECTIONS,
            pending: MAX_PENDING,
            pending_of_address: MAX_PENDING_OF_ADDRESS,
            closing: MAX_CLOSING,
        }
    }
}

/// A connection, and the reactor's state for it.
pub(crate) struct Entry {
    pub(crate) connection: Connection,
    /// Sends that have ended.
    pub(super) sends: u64,
    /// An unfinished send as seen at an earlier tick: its number, how many bytes the peer had taken, and since when
    /// neither has changed.
    stuck: Option<(u64, u64, u64)>,
    pub(super) dirty: bool,
    pub(crate) closing: bool,
    /// It takes no more input, and is queued to be closed.
    pub(super) is_over: bool,
    /// No host waits for answers: chains end at their next hop, and operations on files that wait do not begin.
    pub(super) cuts_chains: bool,
    /// It is in the list of connections of which operations on files that wait are given up.
    pub(super) drops_waiting: bool,
    pub(super) closed_ns: u64,
    pub(super) party: Option<PartyIndex>,
    _address: Option<AddressSlot>,
}

impl Entry {
    /// Whether something is being sent.
    pub(super) fn is_sending(&self) -> bool {
        match &self.connection.port {
            Port::Tcp(port) => port.is_sending(),
            Port::Message(port) => port.is_sending(),
        }
    }

    /// For how many seconds a send has been waiting for the peer, which has taken `taken_bytes` in all.
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

/// The party of a connection that belongs to its host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartyIndex {
    pub(super) group: GroupIndex,
    pub(super) host: HostIndex,
    pub(super) association: u32,
    counts_for: CountsFor,
    /// Serial numbers of the group and of the host, as [`Parties`] has them.
    serials: [u64; 2],
}

/// The groups, hosts and associations that have connections at a reactor.
#[derive(Debug, Default)]
pub(crate) struct Parties {
    /// By serial number: its index and how many hosts it has.
    groups: HashMap<u64, (GroupIndex, u32)>,
    /// By serial number: its index and how many connections it has.
    hosts: HashMap<u64, (HostIndex, u32)>,
    /// By association index, in use or not: the memory address of its controller, and its number of connections.
    associations: Vec<(usize, u32)>,
    /// By serial number, the virtual time of gone groups that had had more than others, so that they do not reset it by
    /// coming back.
    ahead: HashMap<u64, u64>,
}

impl Parties {
    fn join(
        &mut self,
        host: &Arc<Host>,
        controller: &Arc<Controller>,
        address: IpAddr,
        schedule: &mut Schedule,
    ) -> PartyIndex {
        let counts_for = CountsFor::of(host, address);
        // All unidentified hosts that ask for the discovery log have one share together, wherever they are: 0, which is
        // no serial number.
        let serials = if host.is_anybody() { [0, 0] } else { [host.group.serial, host.serial] };
        let Parties { groups, ahead, .. } = self;
        let (group, hosts) = groups.entry(serials[0]).or_insert_with(|| {
            let time = ahead.remove(&serials[0]).unwrap_or(0);
            (schedule.new_group(time), 0)
        });
        let (host, members) = self.hosts.entry(serials[1]).or_insert_with(|| {
            *hosts += 1;
            (schedule.new_host(*group), 0)
        });
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
        let association = association as u32;
        PartyIndex { group: *group, host: *host, association, counts_for, serials }
    }

    fn leave(&mut self, party: PartyIndex, schedule: &Schedule) {
        self.associations[party.association as usize].1 -= 1;
        let [group, host] = party.serials;
        if !part(&mut self.hosts, host) || !part(&mut self.groups, group) {
            return;
        }
        let Some(time) = schedule.ahead(party.group) else { return };
        if self.ahead.len() >= MAX_GROUPS_AHEAD {
            self.ahead.retain(|_, time| *time > schedule.now());
        }
        if self.ahead.len() < MAX_GROUPS_AHEAD {
            self.ahead.insert(group, time);
        }
    }
}

/// Removes a member, and its entry after the last one; returns whether it was the last.
fn part<K: Eq + Hash, I>(all: &mut HashMap<K, (I, u32)>, key: K) -> bool {
    let Some((_, members)) = all.get_mut(&key) else { return false };
    *members -= 1;
    let is_last = *members == 0;
    if is_last {
        all.remove(&key);
    }
    is_last
}

/// The strangers' connections that are not closing: they have not completed Connect, or not authenticated as their rule
/// requires. Sorted, so that frequent new connections do not cause searches of all.
#[derive(Debug, Default)]
struct Strangers {
    /// The index, by serial number and so by age.
    all: BTreeMap<u64, u32>,
    /// The same by address and serial number.
    by_address: BTreeMap<(IpAddr, u64), u32>,
    /// How many each address has.
    counts: HashMap<IpAddr, usize>,
    /// The same, sorted by number.
    by_count: BTreeSet<(usize, IpAddr)>,
    /// The share of each address, and its number of connections, with those that are closing.
    shares: HashMap<IpAddr, (HostIndex, u32)>,
}

impl Strangers {
    fn insert(&mut self, connection: &Connection) {
        let (address, serial) = (connection.ends.counted_address(), connection.serial);
        self.all.insert(serial, connection.index);
        self.by_address.insert((address, serial), connection.index);
        self.count(address, self.count_of(address) + 1);
    }

    fn count(&mut self, address: IpAddr, count: usize) {
        let before = match count {
            0 => self.counts.remove(&address),
            _ => self.counts.insert(address, count),
        };
        if let Some(before) = before {
            self.by_count.remove(&(before, address));
        }
        if count > 0 {
            self.by_count.insert((count, address));
        }
    }

    /// Removes a connection that has joined its host, closes, or is gone. It may have been removed before.
    fn remove(&mut self, connection: &Connection) {
        let (address, serial) = (connection.ends.counted_address(), connection.serial);
        if self.all.remove(&serial).is_none() {
            return;
        }
        self.by_address.remove(&(address, serial));
        self.count(address, self.count_of(address).saturating_sub(1));
    }

    /// The address with most connections, if it has many.
    fn fullest(&self) -> Option<IpAddr> {
        let (count, address) = self.by_count.last()?;
        (*count > MANY_OF_ADDRESS).then_some(*address)
    }

    /// A connection gets a part of the share of its address.
    fn join(&mut self, address: IpAddr, schedule: &mut Schedule, group: GroupIndex) -> HostIndex {
        let (host, members) =
            self.shares.entry(address).or_insert_with(|| (schedule.new_host(group), 0));
        *members += 1;
        *host
    }

    /// A connection that has joined leaves the share of its address.
    fn leave(&mut self, address: IpAddr) {
        part(&mut self.shares, address);
    }

    /// How many connections of strangers an address has.
    fn count_of(&self, address: IpAddr) -> usize {
        self.counts.get(&address).copied().unwrap_or(0)
    }

    /// The connections of an address, the oldest first.
    fn of(&self, address: IpAddr) -> impl Iterator<Item = u32> {
        self.by_address.range((address, 0)..=(address, u64::MAX)).map(|(_, index)| *index)
    }
}

/// See the module. Connections are named by their index.
pub(crate) struct Table {
    entries: Vec<Option<Entry>>,
    /// Free indices.
    free: Vec<u32>,
    strangers: Strangers,
    /// How many connections are closing, and, by time, those that have not been [given up](Self::longest_closing).
    closing: usize,
    lingering: BTreeSet<(u64, u32)>,
    /// The connections of each association that has some at this reactor, by its serial number.
    associations: HashMap<u64, Vec<u32>>,
    next_serial: u64,
    parties: Parties,
    /// The share of strangers.
    pending: GroupIndex,
    pub(crate) room: Room,
}

impl Table {
    /// A table without connections; the first one gets this serial number.
    pub(super) fn new(pending: GroupIndex, next_serial: u64) -> Table {
        Table {
            entries: Vec::new(),
            free: Vec::new(),
            strangers: Strangers::default(),
            closing: 0,
            lingering: BTreeSet::new(),
            associations: HashMap::new(),
            next_serial,
            parties: Parties::default(),
            pending,
            room: Room::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.entries.len()
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Entry> {
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

    /// How many connections there are that are not closing.
    fn open(&self) -> usize {
        self.entries.len() - self.free.len() - self.closing
    }

    /// A free index; none if the reactor has as many connections as it takes. It stays free until a connection
    /// [takes](Self::insert) it.
    pub(super) fn free_index(&mut self) -> Option<u32> {
        if self.open() >= self.room.connections {
            return None;
        }
        if self.free.is_empty() && self.entries.len() < self.room.connections + self.room.closing {
            self.free.push(self.entries.len() as u32);
            self.entries.push(None);
        }
        self.free.last().copied()
    }

    /// A serial number that is unique among all connections.
    pub(super) fn take_serial(&mut self) -> u64 {
        self.next_serial += 1;
        self.next_serial - 1
    }

    /// A connection takes the [free index](Self::free_index). Returns the share that it belongs to: of strangers, that
    /// of its address.
    pub(super) fn insert(
        &mut self,
        connection: Connection,
        address: Option<AddressSlot>,
        schedule: &mut Schedule,
    ) -> HostIndex {
        let index = connection.index as usize;
        // The last free index, unless another became free meanwhile.
        let free = self.free.iter().rposition(|free| *free == connection.index);
        self.free.swap_remove(free.expect("the index is free"));
        self.strangers.insert(&connection);
        let at = connection.ends.counted_address();
        let share = self.strangers.join(at, schedule, self.pending);
        self.entries[index] = Some(Entry {
            connection,
            sends: 0,
            stuck: None,
            dirty: false,
            closing: false,
            is_over: false,
            drops_waiting: false,
            cuts_chains: false,
            closed_ns: 0,
            party: None,
            _address: address,
        });
        share
    }

    /// Removes a connection.
    pub(super) fn remove(&mut self, index: u32, schedule: &Schedule) {
        let Some(entry) = self.entries[index as usize].take() else { return };
        self.free.push(index);
        self.strangers.remove(&entry.connection);
        if entry.closing {
            self.closing -= 1;
            self.lingering.remove(&(entry.closed_ns, index));
        }
        if let Some(controller) = entry.connection.controller()
            && let Some(its) = self.associations.get_mut(&controller.serial)
        {
            its.retain(|known| *known != index);
            if its.is_empty() {
                self.associations.remove(&controller.serial);
            }
        }
        match entry.party {
            Some(party) => self.parties.leave(party, schedule),
            None => self.strangers.leave(entry.connection.ends.counted_address()),
        }
    }

    /// A connection begins to close; none if it does not exist or is closing already.
    pub(super) fn begin_to_close(&mut self, index: u32, now_ns: u64) -> Option<&mut Entry> {
        let entry =
            self.entries.get_mut(index as usize)?.as_mut().filter(|entry| !entry.closing)?;
        self.strangers.remove(&entry.connection);
        self.closing += 1;
        self.lingering.insert((now_ns, index));
        (entry.closing, entry.closed_ns) = (true, now_ns);
        Some(entry)
    }

    /// The connection that has been closing longest, if hardly any place is left: it is to be given up, and is not
    /// returned again.
    pub(super) fn longest_closing(&mut self) -> Option<u32> {
        let Room { connections, closing, .. } = self.room;
        let is_tight = self.open() + self.closing + closing / 16 >= connections + closing;
        is_tight.then(|| self.lingering.pop_first()).flatten().map(|(_, index)| index)
    }

    /// Notes that a connection has completed Connect and belongs to an association.
    pub(super) fn associate(&mut self, index: u32) {
        let entry = self.entries.get(index as usize).and_then(Option::as_ref);
        if let Some(controller) = entry.and_then(|entry| entry.connection.controller()) {
            self.associations.entry(controller.serial).or_default().push(index);
        }
    }

    /// The connections of an association.
    pub(super) fn of(&self, controller: &Controller) -> Vec<u32> {
        self.associations.get(&controller.serial).cloned().unwrap_or_default()
    }

    /// A connection has completed Connect, and authentication if required: returns the host and the party that it
    /// belongs to.
    pub(super) fn join(
        &mut self,
        index: u32,
        schedule: &mut Schedule,
    ) -> Option<(HostIndex, Party)> {
        let Table { entries, parties, strangers, .. } = self;
        let entry = entries.get_mut(index as usize)?.as_mut()?;
        let association = entry.connection.phase.association()?;
        strangers.remove(&entry.connection);
        let address = entry.connection.ends.counted_address();
        if entry.party.is_none() {
            strangers.leave(address);
        }
        let controller = &association.controller;
        let party = parties.join(association.host(), controller, address, schedule);
        entry.party = Some(party);
        let PartyIndex { group, host, association, .. } = party;
        Some((host, Party { group: group.number(), host: host.number(), association }))
    }

    /// The connection to close for one more at these ends, if there are too many connections of strangers, or too many
    /// of the same address: the oldest of the address, of the one with the most, or, if none has many, of all.
    pub(super) fn oldest_pending(&self, ends: &Endpoints) -> Option<u32> {
        let address = ends.counted_address();
        match () {
            () if self.strangers.count_of(address) >= self.room.pending_of_address => {
                self.strangers.of(address).next()
            }
            () if self.strangers.all.len() >= self.room.pending => {
                let oldest = || self.strangers.all.values().next().copied();
                let of_fullest = self.strangers.fullest();
                of_fullest.map_or_else(oldest, |fullest| self.strangers.of(fullest).next())
            }
            () => None,
        }
    }

    /// The stranger's connection to close when there is no memory for one more at these ends and by the same transport:
    /// the oldest of the same address, of the one with the most, or of all.
    pub(super) fn oldest_stranger(&self, ends: &Endpoints, port: &Port) -> Option<u32> {
        let is_message = |port: &Port| port.asked_qid().is_some();
        let is_alike = |index: &u32| {
            let known = self.get(*index).map(|entry| is_message(&entry.connection.port));
            known == Some(is_message(port))
        };
        let fullest = self.strangers.fullest();
        let mut addresses = [Some(ends.counted_address()), fullest].into_iter().flatten();
        let of_address = addresses.find_map(|address| self.strangers.of(address).find(is_alike));
        of_address.or_else(|| self.strangers.all.values().copied().find(is_alike))
    }

    /// Whether there are so many connections that new ones may find no room: then all are searched.
    pub(super) fn is_crowded(&self) -> bool {
        self.open() > self.room.connections - self.room.pending
    }

    /// The connection that has been idle longest, of the identified host with the most connections, or of the host with the
    /// most at the address with the most, if there are so many that new ones would find no room.
    pub(super) fn idlest_of_greediest(&self) -> Option<u32> {
        if !self.is_crowded() {
            return None;
        }
        let served = || self.entries().filter(|entry| !entry.closing && entry.party.is_some());
        if served().count() <= self.room.connections - self.room.pending {
            return None;
        }
        let parties = || served().filter_map(|entry| Some((entry, entry.party?)));
        let (greediest, members) = most(parties().map(|(_, party)| party.counts_for))?;
        if members < 2 {
            return None;
        }
        let there = || parties().filter(|(_, party)| party.counts_for == greediest);
        let (host, _) = most(there().map(|(_, party)| party.host.number()))?;
        let its = there().filter(|(_, party)| party.host.number() == host).map(|(entry, _)| entry);
        let idle = its.min_by_key(|entry| entry.connection.arrivals.command_ns);
        idle.map(|entry| entry.connection.index)
    }
}

/// How many connections there are.
impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} connections", self.open())?;
        if self.closing > 0 {
            write!(f, ", and {} that are closing", self.closing)?;
        }
        Ok(())
    }
}

/// The most frequent value, and how often it occurs.
fn most<T: Eq + Hash>(all: impl Iterator<Item = T>) -> Option<(T, u32)> {
    let mut counts = HashMap::new();
    for one in all {
        *counts.entry(one).or_insert(0) += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpfof_function::memory::Memory;
    use std::net::{Ipv4Addr, SocketAddr};

    fn ends(last: u8) -> Endpoints {
        let peer = SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 1));
        Endpoints { peer, local: peer, discovery_only: false, listener: 0 }
    }

    /// A table for eight connections; four may be of strangers, three of these of one address.
    struct Scene {
        table: Table,
        schedule: Schedule,
    }

    impl Scene {
        fn new() -> Scene {
            let mut schedule = Schedule::default();
            let mut table = Table::new(schedule.lasting_group(), 1);
            table.room = Room { connections: 8, pending: 4, pending_of_address: 3, closing: 0 };
            Scene { table, schedule }
        }

        fn come(&mut self, last: u8) -> Option<u32> {
            let Scene { table, schedule } = self;
            let index = table.free_index()?;
            let account = Memory::new(1 << 30).account();
            let charge = account.charge(1).expect("there is room");
            let name = (index, table.take_serial());
            let port = Port::Tcp(crate::transport::tcp::TcpPort::default());
            let connection = Connection::new(name, ends(last), port, charge, 0);
            let share = table.insert(connection, None, schedule);
            schedule.join(index, share);
            Some(index)
        }

        fn go(&mut self, index: u32) {
            self.schedule.leave(index);
            self.table.remove(index, &self.schedule);
        }
    }

    #[test]
    fn the_oldest_stranger_of_the_fullest_address_is_closed() {
        let mut scene = Scene::new();
        let [first, _, _, other] = [1, 1, 1, 2].map(|last| scene.come(last).expect("room"));
        let table = &mut scene.table;
        assert_eq!(table.oldest_pending(&ends(1)), Some(first));
        assert_eq!(table.oldest_pending(&ends(3)), Some(first), "four are too many");
        table.begin_to_close(first, 0);
        assert_eq!(table.oldest_pending(&ends(1)), None);
        let port = Port::Tcp(crate::transport::tcp::TcpPort::default());
        assert_eq!(table.oldest_stranger(&ends(2), &port), Some(other));
        assert_eq!(table.oldest_stranger(&ends(3), &port), Some(1));
        // Removing a connection that was closing before leaves no trace.
        scene.go(first);
        assert_eq!(scene.come(4), Some(first));
        assert_eq!(scene.table.oldest_pending(&ends(4)), Some(1), "the oldest of four");
    }

    /// A stranger does not have to go for others that come from a few addresses all the time.
    #[test]
    fn who_comes_from_few_addresses_has_to_go() {
        let mut scene = Scene::new();
        scene.table.room =
            Room { connections: 100, pending: 41, pending_of_address: 30, closing: 0 };
        let honest = scene.come(9).expect("room");
        for _ in 0..1000 {
            for last in [1, 2] {
                if let Some(goes) = scene.table.oldest_pending(&ends(last)) {
                    scene.table.begin_to_close(goes, 0);
                    scene.go(goes);
                    assert_ne!(goes, honest);
                }
                scene.come(last).expect("room");
            }
        }
        let goes = scene.table.oldest_pending(&ends(3)).expect("there are too many");
        assert_ne!(goes, honest);
        // Where no address has many, the oldest goes.
        let mut scene = Scene::new();
        let all: Vec<u32> = (1..=4).map(|last| scene.come(last).expect("room")).collect();
        assert_eq!(scene.table.oldest_pending(&ends(5)), Some(all[0]));
    }

    #[test]
    fn indices_are_used_again_and_bounded() {
        let mut scene = Scene::new();
        let all: Vec<u32> = (0..8).map(|last| scene.come(last).expect("room")).collect();
        assert_eq!(all, (0..8).collect::<Vec<_>>());
        assert_eq!(scene.come(9), None);
        scene.go(5);
        // An index that becomes free between `free_index` and `insert` does no harm.
        assert_eq!(scene.table.free_index(), Some(5));
        scene.go(2);
        assert_eq!([scene.come(9), scene.come(9), scene.come(9)], [Some(2), Some(5), None]);
        (0..8).for_each(|index| scene.go(index));
        assert!(scene.table.is_empty() && scene.table.strangers.shares.is_empty());
    }

    /// Connections that close have places of their own; if these are taken, those that linger longest must go.
    #[test]
    fn closing_connections_leave_room_for_others() {
        let mut scene = Scene::new();
        scene.table.room = Room { connections: 8, closing: 32, ..scene.table.room };
        for _ in 0..7 {
            scene.come(2).expect("room");
        }
        let mut come_and_close = |now_ns| {
            let index = scene.come(1).expect("room");
            assert_eq!(scene.come(3), None, "eight are open");
            scene.table.begin_to_close(index, now_ns).expect("it is open");
            assert!(scene.table.begin_to_close(index, now_ns).is_none());
            (index, scene.table.longest_closing())
        };
        let [(first, none), (second, _)] = [1, 2].map(&mut come_and_close);
        assert_eq!(none, None);
        for now_ns in 3..31 {
            assert_eq!(come_and_close(now_ns).1, None);
        }
        let last = come_and_close(31);
        assert_eq!(last.1, Some(first));
        assert_eq!(come_and_close(32).1, Some(second));
        assert!(scene.table.is_crowded());
        scene.come(2).expect("one more may be open");
        assert_eq!(scene.come(2), None);
        // A place of a closing connection is none for an open one.
        scene.go(first);
        scene.go(last.0);
        assert_eq!(scene.come(2), None);
        assert_eq!((scene.table.open(), scene.table.closing), (8, 30));
    }

    /// However many connections come and go at one address, another address is served next.
    #[test]
    fn each_address_has_its_part_of_the_strangers_time() {
        let mut scene = Scene::new();
        let [busy, also_busy] = [1, 1].map(|last| scene.come(last).expect("room"));
        for index in [busy, also_busy].repeat(1000) {
            scene.schedule.charge_unscheduled(index, 100_000);
            scene.schedule.wake(index);
        }
        let other = scene.come(2).expect("room");
        scene.schedule.wake(other);
        assert_eq!(scene.schedule.pick(), Some(other));
    }
}
