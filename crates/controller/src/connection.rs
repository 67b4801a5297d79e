//! One connection: a queue pair, the port that carries it, and the association that it belongs to.

use crate::association::{AdminState, Association};
use crate::command_log::CommandLog;
use crate::controller::{Controller, Counters};
use crate::health::Traffic;
use crate::hosts::{Host, HostFull, HostLimits, Member, counted_address};
use crate::kept::is_kept;
use crate::limits::{
    CONNECT_TIMEOUT_NS, DATA_TIMEOUT_NS, IDLE_TX_BYTES, MAX_TRANSFER_BYTES, MEMORY_STEP_BYTES,
    PDU_TIMEOUT_NS, RX_BYTES, SMALL_RX_BYTES, STRANGER_UNSENT_BYTES, TX_HIGH_WATER_BYTES,
};
use crate::metrics::ClassLatencies;
use crate::observe::HopLog;
use crate::queue::{Fetch, QueuePair, Slot, State, Transfer};
use crate::refusal::{Refusal, Reply};
use crate::report::Totals;
use crate::transport::{Payload, Port};
use crate::vectors::Vectors;
use bpfof_chain::Suspended;
use bpfof_device::IoBuffer;
use bpfof_function::memory::{Charge, MemoryFull};
use bpfof_nvme::{DataPointer, Sqe, Status, opcode};
use log::Level;
use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The two ends of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoints {
    pub(crate) peer: SocketAddr,
    /// The address that the host reached.
    pub(crate) local: SocketAddr,
    /// The connection came to the discovery listener, where no other subsystem is served.
    pub(crate) discovery_only: bool,
    /// Index of the listener that it came to otherwise.
    pub(crate) listener: u16,
}

impl Endpoints {
    /// The address by which limits per address count the peer, and which identifies its host together with its name.
    pub(crate) fn counted_address(&self) -> IpAddr {
        counted_address(self.peer.ip())
    }
}

/// How far a connection has come.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Only Connect is allowed (NVMe Base 2.0 §3.3.2.2).
    Connecting,
    /// It carries an admin queue.
    Admin(Association, Box<AdminState>),
    /// It carries an I/O queue.
    Io(Association),
}

impl Phase {
    /// The association, once Connect has succeeded.
    #[inline]
    pub(crate) fn association(&self) -> Option<&Association> {
        match self {
            Phase::Connecting => None,
            Phase::Admin(association, _) | Phase::Io(association) => Some(association),
        }
    }

    /// The association, mutable.
    #[inline]
    pub(crate) fn association_mut(&mut self) -> Option<&mut Association> {
        match self {
            Phase::Connecting => None,
            Phase::Admin(association, _) | Phase::Io(association) => Some(association),
        }
    }

    #[inline]
    pub(crate) fn is_admin(&self) -> bool {
        matches!(self, Phase::Admin(..))
    }

    #[inline]
    pub(crate) fn is_io(&self) -> bool {
        matches!(self, Phase::Io(_))
    }
}

/// A chain of a command that waits outside an arena.
#[derive(Debug)]
pub(crate) struct Resting {
    pub(crate) slot: u16,
    /// The chain's index, if the command is a vector.
    pub(crate) entry: Option<u16>,
    pub(crate) chain: Suspended,
    /// When it began to rest.
    pub(crate) since_ns: u64,
    /// Log of its hops.
    pub(crate) log: HopLog,
    /// Charge for its memory.
    pub(crate) _memory: Charge,
}

/// Chains that wait for an arena.
#[derive(Debug, Default)]
pub(crate) struct ChainWaiters {
    /// Chains that have given way, in the order in which they did.
    pub(crate) resting: VecDeque<Resting>,
    /// Since when the next command waits because there is no arena for its chain.
    pub(crate) command_since_ns: Option<u64>,
    /// The same for the next chain of a vector.
    pub(crate) vector_since_ns: Option<u64>,
    /// The same for the next command that begins a chain, if an arena has been granted for it.
    pub(crate) waited_since_ns: Option<u64>,
}

impl ChainWaiters {
    /// Whether a chain of the connection waits for an arena.
    pub(crate) fn want_arena(&self) -> bool {
        self.command_since_ns.is_some()
            || self.vector_since_ns.is_some()
            || !self.resting.is_empty()
    }
}

/// Memory of its host that a connection has taken.
#[derive(Debug)]
pub(crate) struct ConnectionMemory {
    charge: Charge,
    /// The part that the connection always holds, in bytes.
    base_bytes: usize,
}

impl ConnectionMemory {
    /// `base_bytes` of the charge are always held.
    pub(crate) fn new(charge: Charge, base_bytes: usize) -> ConnectionMemory {
        ConnectionMemory { charge, base_bytes }
    }

    /// Takes memory of the same host for something that outlives a command.
    pub(crate) fn charge(&self, bytes: usize) -> Result<Charge, MemoryFull> {
        self.charge.account().charge(bytes)
    }

    /// Whether the charge may be too small for one more command besides `held` bytes. With nothing held it is always
    /// large enough for one.
    #[inline]
    fn is_short(&self, held: usize) -> bool {
        held > 0 && self.base_bytes + held + MAX_TRANSFER_BYTES as usize > self.charge.bytes()
    }

    /// The charge that one more command needs besides `held` bytes, in steps.
    fn wanted(&self, held: usize) -> usize {
        self.base_bytes + MAX_TRANSFER_BYTES as usize + held.next_multiple_of(MEMORY_STEP_BYTES)
    }

    /// Charges the host for the memory that one more command needs besides `held` bytes.
    #[cold]
    fn take_more(&mut self, held: usize) -> Result<(), MemoryFull> {
        self.charge.resize(self.wanted(held))
    }

    /// Gives back the whole charge: the connection is closing, which takes the kernel a moment.
    pub(crate) fn let_go(&mut self) {
        // Shrinking is never refused.
        let _ = self.charge.resize(0);
    }

    /// Gives back memory that is not needed besides `held` bytes.
    fn give_back(&mut self, held: usize) {
        let wanted = self.wanted(held);
        if wanted < self.charge.bytes() {
            // Shrinking is never refused.
            let _ = self.charge.resize(wanted);
        }
    }
}

/// When the host last sent something.
#[derive(Debug)]
pub(crate) struct Arrivals {
    opened_ns: u64,
    /// The last command, for the keep-alive timer.
    pub(crate) command_ns: u64,
    /// Since when a PDU has been arriving that is not complete.
    pub(crate) unfinished_since_ns: Option<u64>,
    /// When requested data last came, or when data was last requested.
    pub(crate) data_ns: u64,
}

impl Arrivals {
    /// When the reactor took the connection.
    pub(crate) const fn opened_ns(&self) -> u64 {
        self.opened_ns
    }
}

/// Counters since the end of the last turn.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) traffic: Traffic,
    functions: Vec<(u32, Counters)>,
    /// Since Connect.
    pub(crate) totals: Totals,
    /// Likewise.
    pub(crate) latencies: ClassLatencies,
}

impl Tally {
    /// The counters of a function.
    pub(crate) fn function(&mut self, id: u32) -> &mut Counters {
        let index = self.functions.iter().position(|(known, _)| *known == id);
        let index = index.unwrap_or_else(|| {
            self.functions.push((id, Counters::default()));
            self.functions.len() - 1
        });
        &mut self.functions[index].1
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Index in the reactor's table.
    pub(crate) index: u32,
    /// Serial number, which is never reused, unlike the index.
    pub(crate) serial: u64,
    pub(crate) ends: Endpoints,
    pub(crate) port: Port,
    pub(crate) queue: QueuePair,
    pub(crate) phase: Phase,
    pub(crate) vectors: Vectors,
    pub(crate) waiters: ChainWaiters,
    pub(crate) memory: ConnectionMemory,
    pub(crate) arrivals: Arrivals,
    pub(crate) tally: Tally,
    pub(crate) log: CommandLog,
    /// Received input is left, because the connection is paused or others come first.
    pub(crate) has_more: bool,
    /// It has been paused since it last took input.
    pub(crate) was_paused: bool,
    /// It is closing, or is to be closed: commands that are carried out in parts go no further.
    pub(crate) is_abandoned: bool,
    /// Requests of its commands to the reactor.
    pub(crate) asks: Asks,
    /// ANA groups that are inaccessible on this path ([`ana_bit`](crate::listener::ana_bit)).
    pub(crate) inaccessible: u32,
}

/// Requests of commands to the reactor, which it handles after them.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    /// The connection has just completed Connect and belongs to an association.
    pub(crate) is_associated: bool,
    /// The connection has just completed Connect, and authentication if required: it counts as its host's.
    pub(crate) connected: bool,
    /// The host reset or shut down the controller: its I/O queues must go.
    pub(crate) resets_queues: bool,
    /// The connection is to be closed, for this reason, once its answers have been sent.
    pub(crate) close: Option<&'static str>,
}

impl Connection {
    /// Memory of a connection before Connect and authentication, in bytes.
    pub(crate) const PENDING_BYTES: usize = SMALL_RX_BYTES + 2 * STRANGER_UNSENT_BYTES;

    /// Memory that a connection always takes once it has this queue, in bytes: buffers, slots.
    pub(crate) fn queue_bytes(qid: u16, entries: u16) -> usize {
        let rx = if qid == 0 { SMALL_RX_BYTES } else { RX_BYTES };
        Connection::PENDING_BYTES + rx + 2 * IDLE_TX_BYTES + QueuePair::memory_bytes(entries)
    }

    /// Counts a connection as its host's, and charges the host for the memory that it takes.
    pub(crate) fn place(
        host: &Arc<Host>,
        limits: &HostLimits,
        base_bytes: usize,
    ) -> Result<(Member, ConnectionMemory), HostFull> {
        let member = host.connection(limits)?;
        let charge = host.memory.charge(base_bytes + MAX_TRANSFER_BYTES as usize)?;
        Ok((member, ConnectionMemory::new(charge, base_bytes)))
    }

    /// The host has proved its identity: from now on the connection counts as its own, if there is room.
    pub(crate) fn join_host(&mut self, limits: &HostLimits, now_ns: u64) -> Result<(), HostFull> {
        let own_bytes = self.port.own_bytes();
        let base_bytes = Connection::queue_bytes(self.queue.id(), self.queue.entries()) + own_bytes;
        let is_admin = self.phase.is_admin();
        let Some(association) = self.phase.association_mut().filter(|of| of.is_pending()) else {
            return Ok(());
        };
        let (member, memory) = Connection::place(association.host(), limits, base_bytes)?;
        if is_admin {
            association.subsystem.recognize(&association.controller, now_ns)?;
        }
        association.join(member);
        self.memory = memory;
        self.queue.open();
        self.asks.connected = true;
        Ok(())
    }

    /// `charge` is for [`PENDING_BYTES`](Self::PENDING_BYTES) and the memory that is registered for the port.
    pub(crate) fn new(
        (index, serial): (u32, u64),
        ends: Endpoints,
        port: Port,
        charge: Charge,
        now_ns: u64,
    ) -> Connection {
        let base_bytes = Connection::PENDING_BYTES + port.own_bytes();
        let memory = ConnectionMemory::new(charge, base_bytes);
        Connection {
            index,
            serial,
            ends,
            port,
            queue: QueuePair::connecting(),
            phase: Phase::Connecting,
            vectors: Vectors::default(),
            waiters: ChainWaiters::default(),
            memory,
            arrivals: Arrivals {
                opened_ns: now_ns,
                command_ns: now_ns,
                unfinished_since_ns: None,
                data_ns: 0,
            },
            tally: Tally::default(),
            log: CommandLog::default(),
            has_more: false,
            was_paused: false,
            is_abandoned: false,
            asks: Asks::default(),
            inaccessible: 0,
        }
    }

    /// Whether nothing is left to be done or sent.
    pub(crate) fn is_idle(&self) -> bool {
        !self.queue.is_busy() && self.port.unsent_bytes() == 0
    }

    /// Whether it takes no commands until some are answered or sent.
    pub(crate) fn is_paused(&self) -> bool {
        self.is_full() || self.waits_for_memory()
    }

    #[inline]
    fn waits_for_memory(&self) -> bool {
        self.memory.is_short(self.held_bytes())
            && match self.is_pending() {
                true => self.port.held_bytes() > STRANGER_UNSENT_BYTES,
                false => self.ends_by_itself(),
            }
    }

    /// Whether it belongs to no host yet and has only its first memory: it has not completed Connect, or its host has
    /// not proved its identity.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.phase.association().is_none_or(Association::is_pending)
    }

    /// Whether memory is held by something that ends without more input from the host. Data that is being fetched does
    /// not: a connection that waited for its memory would never receive it.
    fn ends_by_itself(&self) -> bool {
        self.queue.in_flight_bytes() + self.port.held_bytes() > 0
    }

    /// Like [`is_paused`](Self::is_paused), but regardless of memory, of which more may have become free.
    pub(crate) fn is_full(&self) -> bool {
        self.port.backlog_bytes() >= TX_HIGH_WATER_BYTES
            || self.queue.is_full()
            || self.waiters.command_since_ns.is_some()
    }

    /// Whether the host's memory has no room for one more command, after an attempt to charge it. While only data that
    /// is being fetched holds memory, one more command is taken even without room.
    #[inline]
    pub(crate) fn lacks_memory(&mut self, now_ns: u64) -> bool {
        let held = self.held_bytes();
        if !self.memory.is_short(held) {
            return false;
        }
        if !self.is_pending()
            && let Err(full) = self.memory.take_more(held)
        {
            self.note(Level::Warn, now_ns, format_args!("the connection waits for memory: {full}"));
        }
        self.waits_for_memory()
    }

    /// The next data to be fetched, if any waits and there is memory for it. If nothing is held, it is fetched in any
    /// case.
    pub(crate) fn next_fetch(&mut self) -> Option<Fetch> {
        let (held, is_pending) = (self.held_bytes(), self.is_pending());
        let Connection { queue, memory, .. } = self;
        queue.next_fetch(|bytes| {
            let held = held + bytes;
            !memory.is_short(held) || !is_pending && memory.take_more(held).is_ok()
        })
    }

    fn held_bytes(&self) -> usize {
        self.queue.held_bytes() + self.port.held_bytes()
    }

    /// Gives back memory that is not needed now.
    pub(crate) fn give_memory_back(&mut self) {
        if !self.is_pending() {
            self.memory.give_back(self.held_bytes());
        }
    }

    /// The controller, once Connect has succeeded.
    pub(crate) fn controller(&self) -> Option<&Arc<Controller>> {
        self.phase.association().map(|association| &association.controller)
    }

    /// Whether this connection ends when the queues of a controller do, or, with `and_admin`, the controller itself.
    /// Queues that the host has opened since it reset the controller stay: a reactor hears of the reset later.
    pub(crate) fn ends_with(&self, controller: &Arc<Controller>, and_admin: bool) -> bool {
        let Some(association) = self.phase.association() else { return false };
        let is_its = Arc::ptr_eq(&association.controller, controller);
        is_its && (and_admin || self.phase.is_io() && association.resets != controller.resets())
    }

    /// Why the connection is to be closed because the peer is silent or too slow, if it is. An association without a
    /// keep-alive timer may be silent for `idle_timeout_s`.
    pub(crate) fn overdue(&self, now_ns: u64, idle_timeout_s: u32) -> Option<&'static str> {
        let since = |ns: u64| now_ns.saturating_sub(ns);
        let Some(controller) = self.controller() else {
            let is_late = since(self.arrivals.opened_ns) > CONNECT_TIMEOUT_NS;
            return is_late.then_some("no Connect within 10 seconds");
        };
        if !self.is_paused() {
            let begun_ns = self.arrivals.unfinished_since_ns;
            if begun_ns.is_some_and(|begun_ns| since(begun_ns) > PDU_TIMEOUT_NS) {
                return Some("a PDU that did not arrive within 30 seconds");
            }
            if self.queue.is_fetching() && since(self.arrivals.data_ns) > DATA_TIMEOUT_NS {
                return Some("data that it was asked for did not arrive within 30 seconds");
            }
        }
        let kato_ms = controller.kato_ms.load(Ordering::Relaxed);
        let auth = self.phase.association().and_then(|association| association.auth.as_ref());
        let deadline_us = auth.and_then(|auth| auth.deadline_us(kato_ms));
        if deadline_us.is_some_and(|deadline_us| now_ns / 1000 > deadline_us) {
            return Some("authentication did not complete in time");
        }
        if !self.phase.is_admin() {
            return None;
        }
        let last_ns =
            self.arrivals.command_ns.max(controller.last_traffic_ns.load(Ordering::Relaxed));
        match patience_ns(kato_ms, controller.is_restricted()) {
            0 if since(last_ns) > u64::from(idle_timeout_s) * 1_000_000_000 => {
                Some("it has no keep-alive timer and was silent for longer than idle-timeout")
            }
            patience_ns @ 1.. if since(last_ns) > patience_ns => Some("keep-alive timeout"),
            _ => None,
        }
    }

    /// Whether the host may still take answers for true: not once the connection closes, or once the host may have given
    /// it up.
    pub(crate) fn is_heard(&self, now_ns: u64) -> bool {
        !self.is_abandoned && !self.has_expired(now_ns)
    }

    /// Whether the host has been silent for longer than its keep-alive timer, so that it may have given its
    /// commands to another controller: none of them may have an effect any more (NVMe Base 2.0 §3.9).
    #[inline]
    pub(crate) fn has_expired(&self, now_ns: u64) -> bool {
        let Some(association) = self.phase.association() else { return false };
        let controller = &association.controller;
        let kato_ms = controller.kato_ms.load(Ordering::Relaxed);
        let is_restricted =
            association.is_restricted || self.phase.is_admin() && controller.is_restricted();
        let patience_ns = patience_ns(kato_ms, is_restricted);
        if patience_ns == 0 {
            return false;
        }
        let here_ns = if association.is_restricted { 0 } else { self.arrivals.command_ns };
        let last_ns = here_ns.max(controller.last_traffic_ns.load(Ordering::Relaxed));
        now_ns.saturating_sub(last_ns) > patience_ns
    }

    /// Takes a slot for a command that waits for something. There is one: it was checked before the command was taken.
    #[inline]
    pub(crate) fn occupy(
        &mut self,
        (cid, begun_ns): (u16, u64),
        pointer: DataPointer,
        state: State,
    ) -> u16 {
        self.queue.occupy(Slot { cid, begun_ns, pointer, transfer: Transfer::default(), state })
    }

    /// Sends a completion without data.
    #[inline]
    pub(crate) fn complete(&mut self, cid: u16, reply: Reply) {
        self.send_data(cid, DataPointer::None, reply, Payload::None);
    }

    /// Sends a command's data to the place that its pointer names, and the completion. Returns a buffer whose data was
    /// copied.
    #[inline]
    pub(crate) fn send_data(
        &mut self,
        cid: u16,
        pointer: DataPointer,
        reply: Reply,
        payload: Payload<'_>,
    ) -> Option<IoBuffer> {
        self.port.respond(pointer, self.queue.completion(cid, reply), payload)
    }

    /// Answers a command with a refusal, and logs it.
    pub(crate) fn refuse(&mut self, sqe: &Sqe, refusal: &Refusal, now_ns: u64) {
        self.waiters.waited_since_ns = None;
        self.note_refusal((sqe.opcode, sqe.nsid as u8), refusal, now_ns);
        let lba = u64::from(sqe.cdw10) | u64::from(sqe.cdw11) << 32;
        let lba = if self.phase.is_io() { lba } else { 0 };
        self.remember_error(sqe.cid, refusal.status(), sqe.nsid, lba);
        self.complete(sqe.cid, refusal.reply);
    }

    /// Adds to the controller's error log.
    pub(crate) fn remember_error(&self, cid: u16, status: Status, nsid: u32, lba: u64) {
        // Not errors of a stranger, who may only claim to be the host.
        if let Some(controller) = self.controller().filter(|_| !self.is_of_stranger()) {
            controller.errors.add((self.queue.id(), cid), status, nsid, lba);
        }
    }

    /// Logs that a command was refused or has failed, by its name.
    pub(crate) fn note_refusal(
        &mut self,
        (opcode, fctype): (u8, u8),
        refusal: &Refusal,
        now_ns: u64,
    ) {
        let name = opcode::command_name(!self.phase.is_io(), opcode, fctype);
        match name {
            Some(name) => self.note(Level::Info, now_ns, format_args!("{name}: {refusal}")),
            None => {
                self.note(Level::Info, now_ns, format_args!("command {opcode:02X}h: {refusal}"))
            }
        }
    }

    /// Whether it has not completed Connect, or its host has not authenticated although its rule requires it.
    pub(crate) fn is_of_stranger(&self) -> bool {
        self.phase.association().is_none_or(Association::awaits_authentication)
    }

    /// Logs a line about a command, unless there were too many this second.
    pub(crate) fn note(&mut self, level: Level, now_ns: u64, what: fmt::Arguments<'_>) {
        let Connection { phase, log, .. } = self;
        let association = phase.association().filter(|of| !of.awaits_authentication());
        let admitted = match association {
            None => log.admit(level, now_ns),
            Some(association) => log.admit_of_host(&association.host().log, level, now_ns),
        };
        if let Some(words) = admitted {
            log::log!(level, "{self}: {}", words.unwrap_or(what));
        }
    }

    /// Publishes the counters of this turn, and that the host is alive.
    pub(crate) fn publish_tally(&mut self) {
        let Some(association) = self.phase.association() else { return };
        let Association { controller, subsystem, .. } = association;
        self.tally.totals.add_traffic(&self.tally.traffic);
        subsystem.health.add(&mut self.tally.traffic);
        // Neither chains of a process that was handed a queue nor commands of an unproved host show that the
        // association's owner is alive.
        if !association.is_restricted && !association.awaits_authentication() {
            controller.last_traffic_ns.fetch_max(self.arrivals.command_ns, Ordering::Relaxed);
        }
        for (function, counters) in self.tally.functions.drain(..) {
            let Counters { chains, hops, read_bytes, .. } = counters;
            self.tally.totals.add_chains(chains, hops, read_bytes);
            controller.counters.add(function, &counters);
            if is_kept(function) {
                subsystem.kept_counters.add(function, &counters);
            }
        }
    }
}

impl fmt::Display for Connection {
    /// The host, its address and the queue.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.phase.association() {
            Some(association) => {
                let (nqn, peer) = (association.controller.host_nqn(), self.ends.peer);
                write!(f, "{nqn} ({peer} queue {})", self.queue.id())
            }
            None => write!(f, "{} (not connected)", self.ends.peer),
        }
    }
}

/// How long the host of an association may send no command, in ns; 0 if it has no keep-alive timer. Hosts send a Keep
/// Alive at the end of their timer's time, and those with the traffic-based timer count answers where the target counts
/// commands: an eighth of the time is for what lies between. Restricted associations have none, because their owners
/// count on the timer.
fn patience_ns(kato_ms: u32, is_restricted: bool) -> u64 {
    let kato_ns = u64::from(kato_ms) * 1_000_000;
    if is_restricted { kato_ns } else { kato_ns + kato_ns / 8 }
}
