//! One association: the state that its admin queue and its I/O queues share.

use crate::access::{Access, Rights};
use crate::command_log::Topic;
use crate::health::ErrorLog;
use crate::hosts::{AddressSlot, Host, HostFull, Member};
use crate::limits::{ANSWER_TIMEOUT_NS, MAX_IO_QUEUES, MAX_KATO_NS};
use crate::listener::Listener;
use crate::lost_writes::{HostName, Told};
use crate::namespace::Traits;
use bpfof_chain::Tables;
use bpfof_function::Fault;
use bpfof_function::memory::{Account, Charge, MemoryFull};
use bpfof_nvme::fabrics::{ControllerConfig, Csts, Shutdown};
use log::Level;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How often [`Controller::update_slowly`] makes a change without the lock.
const SLOW_TRIES: usize = 3;

/// Counters of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) chains: u64,
    pub(crate) hops: u64,
    pub(crate) read_bytes: u64,
    pub(crate) faults: u64,
    pub(crate) aborts: u64,
    pub(crate) last_fault: Option<Fault>,
}

impl Counters {
    fn add(&mut self, other: &Counters) {
        self.chains += other.chains;
        self.hops += other.hops;
        self.read_bytes += other.read_bytes;
        self.faults += other.faults;
        self.aborts += other.aborts;
        self.last_fault = other.last_fault.or(self.last_fault);
    }
}

/// Counters of functions, by id.
#[derive(Debug, Default)]
pub(crate) struct CounterTable(Mutex<BTreeMap<u32, Counters>>);

impl CounterTable {
    /// Begins to count for this function.
    pub(crate) fn begin(&self, function: u32) {
        lock(&self.0).insert(function, Counters::default());
    }

    /// Adds to a function's counters, unless the function is gone: its last chains may end after it.
    pub(crate) fn add(&self, function: u32, counters: &Counters) {
        if let Some(known) = lock(&self.0).get_mut(&function) {
            known.add(counters);
        }
    }

    pub(crate) fn get(&self, function: u32) -> Counters {
        lock(&self.0).get(&function).copied().unwrap_or_default()
    }

    pub(crate) fn remove(&self, function: u32) {
        lock(&self.0).remove(&function);
    }
}

#[derive(Debug, Default)]
struct Registers {
    config: ControllerConfig,
    /// The registered I/O queues by id, each with how often the host had ended all queues before it.
    queues: BTreeMap<u16, u32>,
    /// Number of I/O queues that were registered and may have commands in progress, also those that have been removed.
    active_queues: u32,
    /// How often the host has ended all I/O queues.
    resets: u32,
    /// Number of I/O queues that were granted to the host, if it has asked for some.
    granted: Option<u16>,
    /// An I/O queue has been registered at some time.
    has_had_queues: bool,
    /// A connection has come for an I/O queue, even one whose host had yet to authenticate itself.
    has_been_joined: bool,
    /// The association has ended, and no connection joins it any more.
    is_over: bool,
    is_restricted: bool,
}

impl Registers {
    /// Whether the host has enabled the controller and not shut it down.
    fn takes_queues(&self) -> bool {
        self.config.enable && self.config.shutdown == Shutdown::None
    }

    /// How often all queues have been ended before a new one with this id; none if the id is taken or beyond the
    /// granted number, or if no queues are taken.
    fn place_of(&mut self, qid: u16) -> Option<u32> {
        self.has_been_joined |= !self.is_over;
        let is_free = !self.queues.contains_key(&qid) && !self.is_over;
        (self.takes_queues() && self.grants(qid) && is_free).then_some(self.resets)
    }

    fn grants(&self, qid: u16) -> bool {
        qid <= self.granted.unwrap_or(MAX_IO_QUEUES)
    }
}

/// The shared state of an association. Only its admin connection changes the tables.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) id: u16,
    /// Unique among all associations, including later ones.
    pub(crate) serial: u64,
    member: Member,
    host_nqn: String,
    address: AddressSlot,
    /// Charge for its memory besides its queues. Its tables are charged to the same account: the strangers' account
    /// until the host has proved its identity.
    memory: Mutex<Charge>,
    pub(crate) host_id: [u8; 16],
    /// Rights of the host as of its Connect.
    pub(crate) access: Arc<Access>,
    /// The listener that its admin queue has come to, and that all other queues must come to.
    pub(crate) listener: Arc<Listener>,
    /// Features that are announced to the host.
    pub(crate) traits: Traits,
    /// The host has not proved its identity yet.
    is_stranger: AtomicBool,
    /// Keep-alive timeout in ms, 0 for none.
    pub(crate) kato_ms: AtomicU32,
    /// When the last command came on any queue, on the reactors' clock, as of the end of a turn.
    pub(crate) last_traffic_ns: AtomicU64,
    pub(crate) errors: ErrorLog,
    /// The host has read the ANA log page, so it knows what Inaccessible means.
    knows_ana: AtomicBool,
    /// Namespaces that have changed since the host last read the Changed Namespace List.
    changed: Mutex<BTreeSet<u32>>,
    /// How often namespaces that exist for the host have come or gone, counting those at its Connect as one change.
    namespace_changes: AtomicU64,
    /// How often namespaces that exist for the host have changed their ANA groups.
    group_changes: AtomicU64,
    registers: Mutex<Registers>,
    tables: Mutex<Arc<Tables>>,
    /// Counts the changes of `tables`, so that readers need not lock to see that there is none.
    generation: AtomicU64,
    /// Counters of the association's own functions.
    pub(crate) counters: CounterTable,
    /// The lost writes that the host has been told of.
    pub(crate) told: Told,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The host of a new association, counted against its limits.
#[derive(Debug)]
pub(crate) struct Party {
    pub(crate) member: Member,
    /// The name that the host has given.
    pub(crate) host_nqn: String,
    pub(crate) address: AddressSlot,
    /// Charge for the association's memory besides its queues.
    pub(crate) memory: Charge,
    pub(crate) host_id: [u8; 16],
    pub(crate) access: Arc<Access>,
    pub(crate) listener: Arc<Listener>,
    pub(crate) is_stranger: bool,
    pub(crate) told: Told,
    pub(crate) traits: Traits,
}

impl Controller {
    /// A controller that was connected to at `now_ns`.
    pub(crate) fn new(
        id: u16,
        party: Party,
        (kato_ms, now_ns): (u32, u64),
        tables: Tables,
    ) -> Controller {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let Party { member, host_nqn, address, memory, host_id, access, listener, .. } = party;
        let Party { is_stranger, told, traits, .. } = party;
        Controller {
            id,
            serial: NEXT.fetch_add(1, Ordering::Relaxed),
            member,
            host_nqn,
            address,
            memory: Mutex::new(memory),
            host_id,
            access,
            listener,
            traits,
            is_stranger: AtomicBool::new(is_stranger),
            kato_ms: AtomicU32::new(kato_ms),
            last_traffic_ns: AtomicU64::new(now_ns),
            errors: ErrorLog::default(),
            knows_ana: AtomicBool::default(),
            changed: Mutex::default(),
            namespace_changes: AtomicU64::new(1),
            group_changes: AtomicU64::default(),
            registers: Mutex::default(),
            tables: Mutex::new(Arc::new(tables)),
            generation: AtomicU64::new(1),
            counters: CounterTable::default(),
            told,
        }
    }

    /// The host that it belongs to.
    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.member.host
    }

    /// The name that its host has given.
    pub(crate) fn host_nqn(&self) -> &str {
        &self.host_nqn
    }

    /// The host that it belongs to, as far as that matters for lost writes.
    pub(crate) fn name(&self) -> HostName {
        HostName::new(&self.access, self.host(), (&self.host_nqn, self.host_id))
    }

    /// The lost writes that the host certainly knows of. Later answers may have been in a send buffer when the path
    /// broke, which either side notices after a while.
    pub(crate) fn certainly_told(&self, now_ns: u64) -> Told {
        let kato_ns = match self.kato_ms.load(Ordering::Relaxed) {
            0 => MAX_KATO_NS,
            kato_ms => u64::from(kato_ms) * 1_000_000,
        };
        self.told.copied(now_ns, kato_ns + ANSWER_TIMEOUT_NS)
    }

    /// Logs that it is removed for another association because of this limit. For strangers this is logged when their
    /// connections close, within a rate limit of their own.
    pub(crate) fn note_eviction(&self, full: &HostFull, now_ns: u64) {
        if !self.is_stranger() {
            let what =
                format_args!("association {} is ended to make room for another: {full}", self.id);
            self.host().log.note(Topic::Coming, (Level::Warn, now_ns), &self.host_nqn, what);
        }
    }

    /// Whether this association may see functions and maps of `other`: if it is the same, or belongs to the same host,
    /// by its name and an identifier that is not zero.
    pub(crate) fn may_look_at(&self, other: &Controller) -> bool {
        let is_same_host = self.host_id != [0; 16]
            && self.host_id == other.host_id
            && self.host_nqn() == other.host_nqn();
        let may_look = self.access.rights.intersects(Rights::MAPS);
        self.serial == other.serial || may_look && is_same_host
    }

    /// The address that its admin queue comes from.
    pub(crate) const fn address(&self) -> IpAddr {
        self.address.address()
    }

    /// Whether the host has yet to prove its identity.
    pub(crate) fn is_stranger(&self) -> bool {
        self.is_stranger.load(Ordering::Relaxed)
    }

    /// The host has proved its identity on the admin queue: from now on it is charged for the association's memory, if
    /// its share is large enough.
    pub(crate) fn recognize(&self) -> Result<(), MemoryFull> {
        let mut memory = lock(&self.memory);
        *memory = self.host().memory.charge(memory.bytes())?;
        self.is_stranger.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// The account that is charged for the association's memory.
    fn account(&self) -> Arc<Account> {
        Arc::clone(lock(&self.memory).account())
    }

    /// The host has read the ANA log page.
    pub(crate) fn learn_ana(&self) {
        self.knows_ana.store(true, Ordering::Relaxed);
    }

    /// Whether the host has read the ANA log page.
    pub(crate) fn knows_ana(&self) -> bool {
        self.knows_ana.load(Ordering::Relaxed)
    }

    /// Whether the host has opened I/O queues.
    pub(crate) fn has_queues(&self) -> bool {
        !lock(&self.registers).queues.is_empty()
    }

    /// Takes newer tables if there are any.
    #[inline]
    pub(crate) fn refresh(&self, generation: &mut u64, tables: &mut Arc<Tables>) {
        let current = self.generation.load(Ordering::Acquire);
        if current != *generation {
            *tables = self.tables();
            *generation = current;
        }
    }

    /// The newest tables.
    pub(crate) fn tables(&self) -> Arc<Tables> {
        Arc::clone(&lock(&self.tables))
    }

    /// Changes the tables, even beyond the host's share of the memory. A reader that sees the new generation finds the
    /// new tables, or yet newer ones.
    pub(crate) fn update(&self, change: impl FnOnce(&Tables) -> Tables) {
        // Freed only after the lock has been released.
        let _before;
        let mut tables = lock(&self.tables);
        let changed = change(&tables);
        let memory = self.account().charge_anyway(changed.memory_bytes());
        _before = std::mem::replace(&mut *tables, Arc::new(changed.counted(memory)));
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// The same for a change that may take milliseconds, because an association may have many file maps: reactors must
    /// not wait for the lock so long. Where others change the tables again and again meanwhile, they wait in the end.
    pub(crate) fn update_slowly(&self, change: impl Fn(&Tables) -> Tables) {
        for _ in 0..SLOW_TRIES {
            let before = self.tables();
            let changed = change(&before);
            let memory = self.account().charge_anyway(changed.memory_bytes());
            let changed = Arc::new(changed.counted(memory));
            let mut tables = lock(&self.tables);
            if Arc::ptr_eq(&tables, &before) {
                *tables = changed;
                self.generation.fetch_add(1, Ordering::Release);
                return;
            }
        }
        self.update(change);
    }

    /// The same for changes that the host asks for, if its share of the memory is large enough. Connections that have
    /// not taken the new tables still hold old ones.
    pub(crate) fn try_update(
        &self,
        change: impl FnOnce(&Tables) -> Tables,
    ) -> Result<(), MemoryFull> {
        let _before;
        let mut tables = lock(&self.tables);
        let changed = change(&tables);
        let memory = self.account().charge(changed.memory_bytes())?;
        _before = std::mem::replace(&mut *tables, Arc::new(changed.counted(memory)));
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Namespaces that exist for the host have come or gone.
    pub(crate) fn namespaces_changed(&self) {
        self.namespace_changes.fetch_add(1, Ordering::Relaxed);
    }

    /// How often they have, counting the namespaces at the association's begin as one change.
    pub(crate) fn namespace_changes(&self) -> u64 {
        self.namespace_changes.load(Ordering::Relaxed)
    }

    /// A namespace that exists for the host has changed its ANA group.
    pub(crate) fn group_changed(&self) {
        self.group_changes.fetch_add(1, Ordering::Release);
    }

    /// How often that has happened. A reader that sees the new count finds the new groups.
    pub(crate) fn group_changes(&self) -> u64 {
        self.group_changes.load(Ordering::Acquire)
    }

    /// The count of ANA changes that events report: of states at its listener, and of groups of namespaces.
    pub(crate) fn ana_changes(&self) -> u64 {
        self.listener.changes() + self.group_changes()
    }

    pub(crate) fn namespace_changed(&self, nsid: u32) {
        lock(&self.changed).insert(nsid);
    }

    /// Ids of changed namespaces, in ascending order.
    pub(crate) fn changed_namespaces(&self) -> BTreeSet<u32> {
        lock(&self.changed).clone()
    }

    /// Forgets changes that the host has read.
    pub(crate) fn forget_changes(&self, read: &BTreeSet<u32>) {
        lock(&self.changed).retain(|nsid| !read.contains(nsid));
    }

    pub(crate) fn config(&self) -> ControllerConfig {
        lock(&self.registers).config
    }

    /// CSTS (NVMe Base 2.0 §3.1.3.6). A host that reads that the controller is not ready, or that its shutdown is
    /// complete, may write by another path: by then no device has a write of this controller any more.
    pub(crate) fn status(&self) -> Csts {
        let registers = lock(&self.registers);
        let is_active = registers.active_queues > 0;
        let shutdown = match registers.config.shutdown {
            Shutdown::None => 0,
            _ if is_active => Csts::SHUTDOWN_IN_PROGRESS,
            _ => Csts::SHUTDOWN_COMPLETE,
        };
        Csts { ready: registers.config.enable || is_active, fatal: false, shutdown }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.config().enable
    }

    /// Whether I/O queues may connect: the host has enabled it and not shut it down.
    pub(crate) fn takes_queues(&self) -> bool {
        lock(&self.registers).takes_queues()
    }

    /// Whether the host has shut it down: then the association is over for the host as well.
    pub(crate) fn is_shut_down(&self) -> bool {
        self.config().shutdown != Shutdown::None
    }

    /// Property Set of CC (NVMe Base 2.0 §3.1.3.5). True if the I/O queues must go: the host
    /// disables the controller or shuts it down.
    pub(crate) fn configure(&self, config: ControllerConfig) -> bool {
        let mut registers = lock(&self.registers);
        let was_enabled = registers.config.enable;
        registers.config = config;
        let shut_down = config.shutdown != Shutdown::None;
        let ends = shut_down || was_enabled && !config.enable;
        registers.resets = registers.resets.wrapping_add(u32::from(ends));
        // A reset of a controller without queues concerns no other connection.
        ends && !std::mem::take(&mut registers.queues).is_empty()
    }

    /// Registers an I/O queue; none if the id is taken or more than was granted, or if the controller takes no queues.
    /// Returns how often all queues have been ended before it. It is active until [`queue_ended`](Self::queue_ended).
    pub(crate) fn add_queue(&self, qid: u16) -> Option<u32> {
        let mut registers = lock(&self.registers);
        let resets = registers.place_of(qid)?;
        registers.queues.insert(qid, resets);
        registers.active_queues += 1;
        registers.has_had_queues = true;
        Some(resets)
    }

    /// The result that [`add_queue`](Self::add_queue) would have now: an unproved host takes no queue id.
    pub(crate) fn place_of_queue(&self, qid: u16) -> Option<u32> {
        lock(&self.registers).place_of(qid)
    }

    /// Whether this id is that of one of the queues that the host has been granted.
    pub(crate) fn may_have_queue(&self, qid: u16) -> bool {
        lock(&self.registers).grants(qid)
    }

    /// From now on I/O queues take chains over mapped files and nothing else; false if there has been an I/O queue
    /// already. The restriction lasts as long as the association: a reset ends queues, but only after each reactor has
    /// heard of it.
    pub(crate) fn restrict(&self) -> bool {
        let mut registers = lock(&self.registers);
        if registers.has_had_queues {
            return false;
        }
        registers.is_restricted = true;
        // Before the first queue can join.
        self.update(Tables::without_whole_namespaces);
        true
    }

    /// Whether I/O queues take chains over mapped files and nothing else.
    pub(crate) fn is_restricted(&self) -> bool {
        lock(&self.registers).is_restricted
    }

    /// How often the host has ended all I/O queues, by a reset or a shutdown.
    pub(crate) fn resets(&self) -> u32 {
        lock(&self.registers).resets
    }

    /// Grants the host `queues` I/O queues; false if it has some already.
    pub(crate) fn grant_queues(&self, queues: u16) -> bool {
        let mut registers = lock(&self.registers);
        let is_first = registers.queues.is_empty();
        if is_first {
            registers.granted = Some(queues);
        }
        is_first
    }

    /// How many I/O queues the host may have.
    pub(crate) fn granted_queues(&self) -> u16 {
        lock(&self.registers).granted.unwrap_or(MAX_IO_QUEUES)
    }

    /// Ends the association, so that no connection joins it any more. Returns whether connections may have come for I/O
    /// queues: then the reactors must hear of the end.
    pub(crate) fn end(&self) -> bool {
        let mut registers = lock(&self.registers);
        registers.is_over = true;
        registers.has_been_joined
    }

    /// All commands of an I/O queue that was registered have ended, and no more can begin.
    pub(crate) fn queue_ended(&self) {
        lock(&self.registers).active_queues -= 1;
    }

    /// Removes an I/O queue that was registered when all queues had been ended `resets` times.
    pub(crate) fn remove_queue(&self, qid: u16, resets: u32) {
        let mut registers = lock(&self.registers);
        if registers.queues.get(&qid) == Some(&resets) {
            registers.queues.remove(&qid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_counts_leave_no_entries() {
        let table = CounterTable::default();
        let counters = Counters { chains: 2, ..Counters::default() };
        table.begin(7);
        table.add(7, &counters);
        table.add(7, &counters);
        assert_eq!(table.get(7).chains, 4);
        table.remove(7);
        table.add(7, &counters);
        assert_eq!(table.get(7), Counters::default());
        assert!(lock(&table.0).is_empty());
    }
}
