//! One connection's protocol, without its socket: bytes in, commands to the executor, bytes out.

use crate::admin::AdminState;
use crate::controller::{Controller, Counters};
use crate::executor::{CommandId, Executor, Resting};
use crate::health::Traffic;
use crate::hosts::{Host, HostFull, Member};
use crate::limits::{
    ADMIN_UNITS, BUFFER_BYTES, BYTES_PER_UNIT, COMMAND_UNITS, CONNECT_TIMEOUT_NS, DATA_TIMEOUT_NS,
    IDLE_TX_BYTES, IN_CAPSULE_BYTES, MAX_H2C_DATA_BYTES, MAX_IN_FLIGHT_BYTES, MAX_KATO_NS,
    MAX_QUEUE_ENTRIES, MAX_TRANSFER_BYTES, MEMORY_STEP_BYTES, PDU_TIMEOUT_NS, PDUS_PER_CLOCK,
    RX_BYTES, SMALL_RX_BYTES, TX_HIGH_WATER_BYTES,
};
use crate::refusals::LogBudget;
use crate::subsystem::is_kept;
use bpfof_chain::Tables;
use bpfof_device::{IoBuffer, Outgoing};
use bpfof_function::memory::{Charge, MemoryFull};
use bpfof_nvme::fabrics::{
    CATTR_DISABLE_SQ_FLOW_CONTROL, CNTLID_DYNAMIC, ConnectData, SQHD_NO_FLOW_CONTROL,
};
use bpfof_nvme::tcp::{
    C2hData, CapsuleResp, DataPdu, Digests, Fes, H2cData, IcReq, IcResp, Pdu, PduError, PduEvent,
    PduReceiver, R2t, Sender, TermReq, data_digest,
};
use bpfof_nvme::{AdminCommand, Cqe, FabricsCommand, Sgl, Sqe, Status};
use log::Level;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Close {
    /// The peer broke the protocol; it has been told.
    #[error("protocol error: {0}")]
    Protocol(#[from] PduError),
    /// The peer says that we broke it.
    #[error("the host ended the connection: {0}")]
    Peer(String),
    /// A Disconnect command, answered.
    #[error("the host disconnected")]
    Disconnect,
}

/// What a command waits for.
#[derive(Debug)]
pub(crate) enum State {
    Free,
    Read {
        namespace: usize,
        offset: u64,
        length: u32,
    },
    Write {
        namespace: usize,
        offset: u64,
        fua: bool,
        data: Incoming,
    },
    /// Compare: what the host expects, once it is here, while the device is read.
    Compare {
        namespace: usize,
        offset: u64,
        data: Incoming,
        expected: Option<IoBuffer>,
    },
    /// Verify.
    Verify {
        namespace: usize,
        offset: u64,
        length: u32,
    },
    /// Dataset Management whose ranges arrive by H2CData.
    Ranges {
        namespace: usize,
        ranges: u16,
        deallocate: bool,
        data: Incoming,
    },
    /// Dataset Management: offsets and lengths in bytes; those before `next` are done or with the
    /// file.
    Deallocate {
        namespace: usize,
        ranges: Vec<(u64, u64)>,
        next: usize,
    },
    /// Flush or Write Zeroes: nothing left to do but to answer.
    Plain {
        namespace: usize,
    },
    /// Write Zeroes with Force Unit Access: the file must be flushed before the answer.
    ZeroesThenSync {
        namespace: usize,
    },
    Chain {
        namespace: usize,
        answer_max_bytes: u32,
    },
    /// An admin command whose data arrives by H2CData.
    AdminData {
        sqe: Sqe,
        data: Incoming,
    },
    /// A function being compiled.
    Load,
}

impl State {
    /// The data that the command brings, if it brings any.
    fn incoming(&mut self) -> Option<&mut Incoming> {
        match self {
            State::Write { data, .. }
            | State::Compare { data, .. }
            | State::Ranges { data, .. }
            | State::AdminData { data, .. } => Some(data),
            _ => None,
        }
    }
}

/// Data that a command brings.
#[derive(Debug)]
pub(crate) struct Incoming {
    length: u32,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Not asked for: other commands hold as much data as the connection may.
    Unasked,
    /// On its way by R2T and H2CData.
    Arriving { buffer: IoBuffer, received: u32, intact: bool },
    /// Here, and with whoever works on it.
    Here,
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) cid: u16,
    pub(crate) state: State,
}

/// The queue a connection carries.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) id: u16,
    /// How often the controller's queues had been ended when this one came.
    pub(crate) resets: u32,
    entries: u16,
    head: u16,
    flow_control: bool,
}

/// A completion's variable parts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: Status,
    pub(crate) dw0: u32,
    pub(crate) dw1: u32,
}

impl From<Status> for Reply {
    fn from(status: Status) -> Self {
        Reply { status, dw0: 0, dw1: 0 }
    }
}

/// The two ends of a TCP connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoints {
    pub(crate) peer: SocketAddr,
    /// The address that the host reached.
    pub(crate) local: SocketAddr,
    /// It came to the listener for discovery, where no other subsystem is served.
    pub(crate) discovery_only: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Index in the reactor's table.
    pub(crate) index: u32,
    /// Never used again, unlike the index.
    pub(crate) serial: u64,
    pub(crate) ends: Endpoints,
    /// Bytes to send.
    pub(crate) tx: Box<Outgoing>,
    opened_ns: u64,
    /// When the last command came, for the keep-alive timer.
    last_command_ns: u64,
    /// Since when a PDU has been arriving that is not here entirely.
    unfinished_since_ns: Option<u64>,
    /// When data came, or was asked for, that was asked for.
    last_data_ns: u64,
    pub(crate) queue: Option<Queue>,
    pub(crate) controller: Option<Arc<Controller>>,
    pub(crate) tables: Arc<Tables>,
    pub(crate) admin: Option<Box<AdminState>>,
    pub(crate) slots: Vec<Slot>,
    /// The host reset or shut down the controller: its I/O queues must go.
    pub(crate) reset_queues: bool,
    /// It is closing: chains are cut short.
    pub(crate) abandoned: bool,
    /// Chains that have given way, in that order.
    pub(crate) resting: VecDeque<Resting>,
    /// Since when the next command needs a chain, where there is none for this connection.
    pub(crate) waits_for_chain_since_ns: Option<u64>,
    /// It has just got through Connect.
    pub(crate) has_connected: bool,
    /// Bytes of `tx` that are being sent.
    pub(crate) sending_bytes: usize,
    /// What it may hold, of its host's memory.
    memory: Charge,
    /// What it always holds of that.
    base_bytes: usize,
    /// Its place among the connections of its host, once that is known.
    member: Option<Member>,
    /// It has not looked at all that was received, because it is paused or others come first.
    stopped_early: bool,
    free: Vec<u16>,
    generation: u64,
    receiver: PduReceiver,
    digests: Digests,
    hpda: u8,
    /// Bytes that devices work on.
    in_flight_bytes: usize,
    /// Bytes that the host has been asked for.
    awaited_bytes: usize,
    /// Commands whose data the host has not been asked for, in order.
    unasked: VecDeque<u16>,
    counted: Vec<(u32, Counters)>,
    /// Since the end of the last turn.
    pub(crate) traffic: Traffic,
    pub(crate) log_budget: LogBudget,
}

impl Connection {
    /// What a connection takes before Connect, in bytes.
    pub(crate) const PENDING_BYTES: usize = SMALL_RX_BYTES + (8 << 10);

    /// `memory` is [`PENDING_BYTES`](Self::PENDING_BYTES).
    pub(crate) fn new(
        index: u32,
        serial: u64,
        ends: Endpoints,
        memory: Charge,
        now_ns: u64,
    ) -> Connection {
        Connection {
            index,
            serial,
            ends,
            tx: Box::default(),
            opened_ns: now_ns,
            last_command_ns: now_ns,
            unfinished_since_ns: None,
            last_data_ns: 0,
            queue: None,
            controller: None,
            tables: Arc::default(),
            admin: None,
            slots: Vec::new(),
            reset_queues: false,
            abandoned: false,
            resting: VecDeque::new(),
            waits_for_chain_since_ns: None,
            has_connected: false,
            sending_bytes: 0,
            base_bytes: memory.bytes(),
            memory,
            member: None,
            stopped_early: false,
            free: Vec::new(),
            generation: 0,
            // The longest capsule: header, header digest, padding, data, data digest.
            receiver: PduReceiver::for_target(72 + 4 + 128 + IN_CAPSULE_BYTES + 4),
            digests: Digests::default(),
            hpda: 0,
            in_flight_bytes: 0,
            awaited_bytes: 0,
            unasked: VecDeque::new(),
            counted: Vec::new(),
            traffic: Traffic::default(),
            log_budget: LogBudget::default(),
        }
    }

    /// For logs: who is at the other end.
    pub(crate) fn name(&self) -> String {
        let queue =
            self.queue.as_ref().map_or(String::new(), |queue| format!(" queue {}", queue.id));
        match &self.controller {
            Some(controller) => format!("{} ({}{queue})", controller.host_nqn(), self.ends.peer),
            None => format!("{} (not connected)", self.ends.peer),
        }
    }

    /// Whether a command is being worked on, so that the slots must stay.
    pub(crate) fn is_busy(&self) -> bool {
        self.free.len() < self.slots.len()
    }

    /// Whether there is nothing to be done or sent.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_busy() && self.tx.is_empty()
    }

    /// Whether it takes no commands until some are answered or sent.
    pub(crate) fn is_paused(&self) -> bool {
        self.is_full() || self.is_short_of_memory()
    }

    /// The same but for memory, of which there may be more meanwhile.
    pub(crate) fn is_full(&self) -> bool {
        self.tx.len() >= TX_HIGH_WATER_BYTES
            || self.in_flight_bytes >= MAX_IN_FLIGHT_BYTES
            || self.waits_for_chain_since_ns.is_some()
    }

    /// Whether whole PDUs may be left of what was received last.
    pub(crate) fn has_more(&self) -> bool {
        self.stopped_early
    }

    /// Bytes of data held for commands: with a device, or asked of the host.
    pub(crate) fn held_bytes(&self) -> usize {
        self.in_flight_bytes + self.awaited_bytes
    }

    /// Whose it is, once that is known.
    pub(crate) fn host(&self) -> Option<&Arc<Host>> {
        self.member.as_ref().map(|member| &member.host)
    }

    /// When its last command came.
    pub(crate) fn last_command_ns(&self) -> u64 {
        self.last_command_ns
    }

    /// Takes memory of its host for something that outlives a command.
    pub(crate) fn charge(&self, bytes: usize) -> Result<Charge, MemoryFull> {
        self.memory.account().charge(bytes)
    }

    /// Whether one more command could take more memory than it has. With nothing held it always has
    /// enough for one.
    #[inline]
    fn is_short_of_memory(&self) -> bool {
        let held = self.held_bytes() + self.tx.len() + self.sending_bytes;
        held > 0 && self.base_bytes + held + MAX_TRANSFER_BYTES as usize > self.memory.bytes()
    }

    /// Takes more memory of its host's share; false if there is none.
    #[cold]
    fn take_memory(&mut self, now_ns: u64) -> bool {
        let taken = self.memory.resize(self.memory.bytes() + MEMORY_STEP_BYTES);
        if let Err(full) = &taken {
            self.note(Level::Warn, now_ns, format_args!("it has to wait for memory: {full}"));
        }
        taken.is_ok()
    }

    /// Gives back memory that it has not needed lately.
    pub(crate) fn give_memory_back(&mut self) {
        let held = self.held_bytes() + self.tx.len() + self.sending_bytes;
        let wanted = self.base_bytes
            + MAX_TRANSFER_BYTES as usize
            + held.next_multiple_of(MEMORY_STEP_BYTES);
        if self.member.is_some() && wanted < self.memory.bytes() {
            // Less is never refused.
            let _ = self.memory.resize(wanted);
        }
    }

    /// Why the peer is to be given up for its silence, if it is. An association without a keep-alive
    /// timer may be silent for `idle_timeout_s`.
    pub(crate) fn overdue(&self, now_ns: u64, idle_timeout_s: u32) -> Option<&'static str> {
        let Some(controller) = &self.controller else {
            let late = now_ns.saturating_sub(self.opened_ns) > CONNECT_TIMEOUT_NS;
            return late.then_some("no Connect within 10 seconds");
        };
        let begun_ns = self.unfinished_since_ns.filter(|_| !self.is_paused());
        if begun_ns.is_some_and(|begun_ns| now_ns.saturating_sub(begun_ns) > PDU_TIMEOUT_NS) {
            return Some("a PDU that did not arrive within 30 seconds");
        }
        let without_data_ns = now_ns.saturating_sub(self.last_data_ns);
        if self.awaited_bytes > 0 && without_data_ns > DATA_TIMEOUT_NS && !self.is_paused() {
            return Some("data that it was asked for did not arrive within 30 seconds");
        }
        self.admin.as_ref()?;
        let kato_ns = u64::from(controller.kato_ms.load(Ordering::Relaxed)) * 1_000_000;
        let kato_ns = kato_ns.min(MAX_KATO_NS);
        let last_ns = self.last_command_ns.max(controller.last_traffic_ns.load(Ordering::Relaxed));
        let silent_ns = now_ns.saturating_sub(last_ns);
        match kato_ns {
            0 if silent_ns > u64::from(idle_timeout_s) * 1_000_000_000 => {
                Some("it has no keep-alive timer and was silent for longer than idle-timeout")
            }
            1.. if silent_ns > kato_ns => Some("keep-alive timeout"),
            _ => None,
        }
    }

    /// Takes newer tables of the association if there are any. Not before they are needed: an old table
    /// keeps functions that are unloaded.
    #[inline]
    pub(crate) fn refresh_tables(&mut self) {
        if let Some(controller) = &self.controller {
            controller.refresh(&mut self.generation, &mut self.tables);
        }
    }

    /// Works on received bytes; returns how many it used. The rest must come again, with more
    /// behind it or once the connection is no longer paused. On an error `tx` holds what to tell
    /// the peer before closing.
    ///
    /// It stops after a few PDUs, so that the clock can be looked at, and when `until` units are spent.
    pub(crate) fn receive(
        &mut self,
        input: &[u8],
        until: u64,
        x: &mut Executor,
    ) -> Result<usize, Close> {
        let (mut used, mut length, mut ended) = (0, 0, false);
        let mut left = if self.admin.is_some() { 1 } else { PDUS_PER_CLOCK };
        self.stopped_early = false;
        loop {
            let is_short = self.is_short_of_memory() && !self.take_memory(x.now_ns);
            if is_short || self.is_paused() || x.spent() >= until || left == 0 {
                self.stopped_early = true;
                break;
            }
            left -= 1;
            let rest = &input[used..];
            let outcome = match self.receiver.next(rest) {
                Ok(None) => break,
                Ok(Some((bytes, event))) => {
                    length = bytes;
                    used += length;
                    ended |= !matches!(event, PduEvent::Data { last_fragment: false, .. });
                    self.event(event, x)
                }
                Err(error) => Err(error.into()),
            };
            if let Err(close) = outcome {
                if let Close::Protocol(error) = &close {
                    TermReq::for_error(error, Sender::Controller, rest).encode_into(self.tx.own());
                }
                return Err(close);
            }
        }
        if self.waits_for_chain_since_ns.is_some() {
            used -= length;
        }
        // A connection that has stopped does not let the peer finish.
        let unfinished =
            !self.stopped_early && (used < input.len() || self.receiver.is_within_data());
        let begun_ns = self.unfinished_since_ns.filter(|_| !ended).unwrap_or(x.now_ns);
        self.unfinished_since_ns = unfinished.then_some(begun_ns);
        Ok(used)
    }

    fn event(&mut self, event: PduEvent<'_>, x: &mut Executor) -> Result<(), Close> {
        match event {
            PduEvent::Header(Pdu::CapsuleCmd { sqe, data, digest_ok }) => {
                let units = if self.admin.is_some() { ADMIN_UNITS } else { COMMAND_UNITS };
                x.spend(units + data.len() as u64 / BYTES_PER_UNIT);
                self.last_command_ns = x.now_ns;
                self.command(&sqe, data, digest_ok, x)
            }
            PduEvent::Data {
                pdu: DataPdu::H2c(pdu),
                offset_bytes,
                bytes,
                last_fragment,
                digest_ok,
            } => {
                x.spend(bytes.len() as u64 / BYTES_PER_UNIT);
                self.last_data_ns = x.now_ns;
                self.incoming(&pdu, offset_bytes, bytes, (last_fragment, digest_ok), x)
            }
            PduEvent::Header(Pdu::IcReq(request)) => {
                self.initialize(&request);
                Ok(())
            }
            PduEvent::Header(Pdu::TermReq(request)) => {
                Err(Close::Peer(format!("{} (information {:#x})", request.fes, request.fei)))
            }
            _ => Err(PduError::sequence("a PDU that only controllers send").into()),
        }
    }

    /// NVMe/TCP 1.0 §3.6.2.2: the host's digests are granted.
    fn initialize(&mut self, request: &IcReq) {
        self.digests = request.digests;
        self.hpda = request.hpda;
        IcResp { pfv: 0, cpda: 0, digests: request.digests, maxh2cdata_bytes: MAX_H2C_DATA_BYTES }
            .encode_into(self.tx.own());
        self.receiver.set_digests(self.digests);
    }

    fn command(
        &mut self,
        sqe: &Sqe,
        data: &[u8],
        digest_ok: bool,
        x: &mut Executor,
    ) -> Result<(), Close> {
        if self.wait_for_chain(sqe, x) {
            return Ok(());
        }
        let Some(queue) = &mut self.queue else {
            self.before_connect(sqe, data, digest_ok, x);
            return Ok(());
        };
        queue.head = (queue.head + 1) % queue.entries;
        let is_admin = queue.id == 0;
        if self.free.is_empty() {
            let reason = "more commands outstanding than the queue has entries";
            return Err(PduError::new(Fes::LimitExceeded, 0, reason).into());
        }
        if let Err(status) = check_common(sqe, data, digest_ok) {
            self.refuse(sqe, status, x.now_ns);
        } else if is_admin {
            return self.admin_command(sqe, data, x);
        } else {
            return self.io_command(sqe, data, x);
        }
        Ok(())
    }

    /// Until Connect succeeds nothing else is allowed (NVMe Base 2.0 §3.3.2.2).
    fn before_connect(&mut self, sqe: &Sqe, data: &[u8], digest_ok: bool, x: &mut Executor) {
        let parsed = AdminCommand::parse(sqe);
        let Ok(AdminCommand::Fabrics(connect @ FabricsCommand::Connect { .. })) = parsed else {
            return self.refuse(sqe, Status::COMMAND_SEQUENCE_ERROR.with_dnr(), x.now_ns);
        };
        let checked = check_common(sqe, data, digest_ok).map_err(Reply::from);
        match checked.and_then(|()| self.connect(connect, data, x)) {
            Ok(id) => {
                log::info!("{}: connected to controller {id}", self.name());
                let reply = Reply { dw0: u32::from(id), ..Reply::default() };
                self.complete(sqe.cid, reply);
            }
            Err(reply) => {
                self.note(Level::Warn, x.now_ns, format_args!("Connect refused: {}", reply.status));
                self.complete(sqe.cid, reply);
            }
        }
    }

    /// NVMe Base 2.0 §6.3. Returns the controller id.
    fn connect(
        &mut self,
        connect: FabricsCommand,
        data: &[u8],
        x: &mut Executor,
    ) -> Result<u16, Reply> {
        let FabricsCommand::Connect { recfmt, qid, sqsize, cattr, kato_ms } = connect else {
            return Err(Status::INVALID_FIELD.into());
        };
        if recfmt != 0 {
            return Err(Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr().into());
        }
        let invalid = |at: u32, in_data: u32| Reply {
            status: Status::CONNECT_INVALID_PARAMETERS.with_dnr(),
            dw0: at | in_data << 16,
            dw1: 0,
        };
        let bytes = data.first_chunk().ok_or(Reply::from(Status::DATA_SGL_LENGTH_INVALID))?;
        let data = ConnectData::from_bytes(bytes)
            .map_err(|error| invalid(u32::from(error.offset()), 1))?;
        let subsystem = x.target.subsystem(&data.subnqn);
        let subsystem = subsystem.filter(|s| s.is_discovery() || !self.ends.discovery_only);
        let Some(subsystem) = subsystem else { return Err(invalid(256, 1)) };
        // The name goes into logs.
        if data.hostnqn.contains(char::is_control) {
            return Err(invalid(512, 1));
        }
        if sqsize == 0 || sqsize >= MAX_QUEUE_ENTRIES {
            return Err(invalid(44, 0));
        }
        let entries = sqsize + 1;
        let host = x.target.hosts.host(self.ends.peer.ip(), &data.hostnqn);
        let limits = &x.target.hosts.limits;
        let base_bytes = queue_bytes(qid, entries);
        let room = || -> Result<_, HostFull> {
            let member = host.connection(limits)?;
            let bytes = base_bytes + MAX_TRANSFER_BYTES as usize;
            Ok((member, host.memory.charge(bytes)?))
        };
        let (member, memory) = room().map_err(|full| self.no_room(&full, &data.hostnqn, x))?;
        let (controller, resets) = if qid == 0 {
            if data.cntlid != CNTLID_DYNAMIC {
                return Err(invalid(16, 1));
            }
            if kato_ms == 0 && limits.idle_timeout_s == 0 {
                let what = format_args!(
                    "{}: Connect refused: it asks for no keep-alive timer, and idle-timeout is 0",
                    data.hostnqn
                );
                self.note(Level::Warn, x.now_ns, what);
                return Err(invalid(48, 0));
            }
            let hosts = &x.target.hosts;
            let made = subsystem.add_controller(&host, hosts, data.hostid, (kato_ms, x.now_ns));
            let (controller, evicted) =
                made.map_err(|full| self.no_room(&full, &data.hostnqn, x))?;
            x.evicted.extend(evicted);
            self.admin = Some(Box::default());
            (controller, 0)
        } else {
            let controller = subsystem.controller(data.cntlid).ok_or(invalid(16, 1))?;
            if controller.host_nqn() != data.hostnqn || controller.host_id != data.hostid {
                return Err(Status::CONNECT_INVALID_HOST.with_dnr().into());
            }
            if !controller.is_ready() {
                return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr().into());
            }
            // A discovery controller has no I/O queues.
            let added = if subsystem.is_discovery() { None } else { controller.add_queue(qid) };
            (controller, added.ok_or(invalid(42, 0))?)
        };
        let flow_control = cattr & CATTR_DISABLE_SQ_FLOW_CONTROL == 0;
        self.queue = Some(Queue { id: qid, resets, entries, head: 1, flow_control });
        self.slots = (0..entries).map(|_| Slot { cid: 0, state: State::Free }).collect();
        self.free = (0..entries).rev().collect();
        let id = controller.id;
        self.controller = Some(controller);
        (self.memory, self.base_bytes, self.member) = (memory, base_bytes, Some(member));
        self.has_connected = true;
        Ok(id)
    }

    /// A host cannot be served further now: the log says why.
    fn no_room(&mut self, why: &HostFull, host_nqn: &str, x: &Executor) -> Reply {
        let what = format_args!("{host_nqn}: Connect refused: {why}");
        self.note(Level::Warn, x.now_ns, what);
        Status::CONNECT_CONTROLLER_BUSY.into()
    }

    /// Whether the queue goes without submission queue flow control, which allows the SUCCESS flag.
    fn is_unthrottled(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| !queue.flow_control)
    }

    /// Takes a slot. There is one: `command` has looked.
    pub(crate) fn occupy(&mut self, cid: u16, state: State) -> CommandId {
        let slot = self.free.pop().expect("checked before the command was taken");
        let (in_flight, awaited) = held_bytes(&state);
        self.in_flight_bytes += in_flight;
        self.awaited_bytes += awaited;
        self.slots[usize::from(slot)] = Slot { cid, state };
        CommandId { connection: self.index, slot }
    }

    /// Gives a slot back and returns what it held.
    pub(crate) fn vacate(&mut self, slot: u16) -> (u16, State) {
        let Slot { cid, state } = &mut self.slots[usize::from(slot)];
        let state = std::mem::replace(state, State::Free);
        let (in_flight, awaited) = held_bytes(&state);
        self.in_flight_bytes -= in_flight;
        self.awaited_bytes -= awaited;
        self.free.push(slot);
        (*cid, state)
    }

    /// Sends a completion.
    #[inline]
    pub(crate) fn complete(&mut self, cid: u16, reply: Reply) {
        let (sqid, sqhd) = match &self.queue {
            Some(queue) if queue.flow_control => (queue.id, queue.head),
            Some(queue) => (queue.id, SQHD_NO_FLOW_CONTROL),
            None => (0, 0),
        };
        let Reply { status, dw0, dw1 } = reply;
        let cqe = Cqe { dw0, dw1, sqhd, sqid, cid, status };
        CapsuleResp { cqe }.encode_into(self.tx.own(), self.digests);
    }

    /// Whether data may be sent from where it is: at the end of this turn, before anything else is
    /// written there. A digest is that of the bytes that are sent, so these must not change any more.
    pub(crate) fn lends(&self) -> bool {
        !self.digests.data && self.sending_bytes == 0
    }

    /// Sends data of `length` bytes, which `append` adds to what is to be sent, and the completion.
    #[inline]
    pub(crate) fn send_data(
        &mut self,
        cid: u16,
        reply: Reply,
        length: usize,
        append: impl FnOnce(&mut Outgoing),
    ) {
        let bare = reply.status.is_success() && reply.dw0 == 0 && reply.dw1 == 0;
        let success = bare && self.is_unthrottled();
        if length > 0 {
            C2hData {
                cccid: cid,
                data_offset_bytes: 0,
                data_length_bytes: length as u32,
                last: true,
                success,
            }
            .encode_header_into(self.tx.own(), self.digests, self.hpda);
            let (start, before) = (self.tx.own().len(), self.tx.len());
            append(&mut self.tx);
            debug_assert_eq!(self.tx.len(), before + length);
            if self.digests.data {
                let own = self.tx.own();
                let digest = data_digest(&own[start..]);
                own.extend_from_slice(&digest);
            }
        }
        if !success || length == 0 {
            self.complete(cid, reply);
        }
    }

    /// Asks the host for a command's data, at once or when there is room for it.
    pub(crate) fn request_data(
        &mut self,
        cid: u16,
        length: u32,
        x: &mut Executor,
        state: impl FnOnce(Incoming) -> State,
    ) {
        let id = self.occupy(cid, state(Incoming { length, stage: Stage::Unasked }));
        self.unasked.push_back(id.slot);
        self.ask(x);
    }

    /// Asks for data that has not been asked for, as far as there is room for it. The host may
    /// send commands ahead of that data, so the connection must not wait for it with its ears
    /// closed.
    pub(crate) fn ask(&mut self, x: &mut Executor) {
        while let Some(&slot) = self.unasked.front() {
            let Slot { cid, state } = &mut self.slots[usize::from(slot)];
            let Some(data) = state.incoming() else {
                self.unasked.pop_front();
                continue;
            };
            let held = self.in_flight_bytes + self.awaited_bytes;
            if held > 0 && held + buffer_bytes(data.length) > MAX_IN_FLIGHT_BYTES {
                return;
            }
            self.unasked.pop_front();
            let buffer = x.buffer(data.length as usize);
            if self.awaited_bytes == 0 {
                self.last_data_ns = x.now_ns;
            }
            self.awaited_bytes += buffer_bytes(data.length);
            data.stage = Stage::Arriving { buffer, received: 0, intact: true };
            R2t { cccid: *cid, ttag: slot, offset_bytes: 0, length_bytes: data.length }
                .encode_into(self.tx.own(), self.digests);
        }
    }

    /// A piece of a command's data (NVMe/TCP 1.0 §3.3.2).
    fn incoming(
        &mut self,
        pdu: &H2cData,
        offset: u32,
        bytes: &[u8],
        (last_fragment, digest_ok): (bool, bool),
        x: &mut Executor,
    ) -> Result<(), Close> {
        let out_of_range = |reason| PduError::new(Fes::DataTransferOutOfRange, 0, reason);
        let slot = self.slots.get_mut(usize::from(pdu.ttag)).filter(|slot| slot.cid == pdu.cccid);
        let Some(data) = slot.and_then(|slot| slot.state.incoming()) else {
            return Err(PduError::invalid_field(8, "data for a command that waits for none").into());
        };
        let Stage::Arriving { buffer, received, intact } = &mut data.stage else {
            return Err(PduError::invalid_field(8, "data that was not asked for").into());
        };
        if pdu.data_length_bytes > MAX_H2C_DATA_BYTES {
            return Err(PduError::new(Fes::LimitExceeded, 16, "H2CData above MAXH2CDATA").into());
        }
        if offset != *received || bytes.len() as u32 > data.length - *received {
            return Err(out_of_range("data out of order or beyond what was asked for").into());
        }
        buffer[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
        *received += bytes.len() as u32;
        *intact &= digest_ok;
        if !last_fragment || *received < data.length {
            if last_fragment && pdu.last {
                return Err(out_of_range("the last H2CData ends before the data").into());
            }
            return Ok(());
        }
        self.data_complete(pdu.ttag, x)
    }

    fn data_complete(&mut self, slot: u16, x: &mut Executor) -> Result<(), Close> {
        let state = &mut self.slots[usize::from(slot)].state;
        let Some(data) = state.incoming() else { return Ok(()) };
        let stage = std::mem::replace(&mut data.stage, Stage::Here);
        let Stage::Arriving { buffer, intact, .. } = stage else { return Ok(()) };
        self.awaited_bytes -= buffer_bytes(data.length);
        self.in_flight_bytes += held_bytes(state).0;
        if !intact {
            x.recycle(buffer);
            let (cid, _) = self.vacate(slot);
            self.complete(cid, Status::TRANSIENT_TRANSPORT_ERROR.into());
            self.ask(x);
            return Ok(());
        }
        let command = CommandId { connection: self.index, slot };
        match *state {
            State::Write { namespace, offset, fua, .. } => {
                self.write(command, (namespace, offset, fua), buffer, x);
                return Ok(());
            }
            State::Compare { namespace, offset, .. } => {
                self.compare(command, (namespace, offset), buffer, x);
                return Ok(());
            }
            _ => {}
        }
        let outcome = match self.vacate(slot) {
            (_, State::AdminData { sqe, .. }) => self.admin_command(&sqe, &buffer, x),
            (cid, State::Ranges { namespace, ranges, deallocate, .. }) => {
                let begun = self.deallocate(cid, (ranges, deallocate), namespace, &buffer, x);
                if let Err(reply) = begun {
                    self.complete(cid, reply);
                }
                Ok(())
            }
            _ => Ok(()),
        };
        x.recycle(buffer);
        self.ask(x);
        outcome
    }

    /// The connection is closing: forgets the commands that wait for the peer's data. What is left
    /// is with a device, a chain or a compiler and must come back.
    pub(crate) fn abandon(&mut self, x: &mut Executor) {
        self.abandoned = true;
        self.waits_for_chain_since_ns = None;
        x.admission.stop_waiting(self.index);
        for resting in std::mem::take(&mut self.resting) {
            self.vacate(resting.slot);
        }
        for slot in 0..self.slots.len() as u16 {
            if matches!(self.slots[usize::from(slot)].state, State::Load) {
                self.vacate(slot);
                continue;
            }
            let data = self.slots[usize::from(slot)].state.incoming();
            if data.is_none_or(|data| matches!(data.stage, Stage::Here)) {
                continue;
            }
            let (_, mut state) = self.vacate(slot);
            let Some(data) = state.incoming() else { continue };
            if let Stage::Arriving { buffer, .. } = std::mem::replace(&mut data.stage, Stage::Here)
            {
                x.recycle(buffer);
            }
        }
        self.unasked.clear();
    }

    /// Adds to what a function is known to have done; published at the end of the turn.
    pub(crate) fn count(&mut self, function: u32) -> &mut Counters {
        let index = self.counted.iter().position(|(id, _)| *id == function).unwrap_or_else(|| {
            self.counted.push((function, Counters::default()));
            self.counted.len() - 1
        });
        &mut self.counted[index].1
    }

    /// Publishes the counters of this turn, and that the host is alive.
    pub(crate) fn publish_counters(&mut self) {
        let Some(controller) = &self.controller else { return };
        let subsystem = &controller.subsystem;
        subsystem.health.add(&mut self.traffic);
        controller.last_traffic_ns.fetch_max(self.last_command_ns, Ordering::Relaxed);
        for (function, counters) in self.counted.drain(..) {
            controller.counters.add(function, &counters);
            if is_kept(function) {
                subsystem.kept_counters.add(function, &counters);
            }
        }
    }
}

/// What a connection always takes once it has this queue, in bytes: buffers, slots.
fn queue_bytes(qid: u16, entries: u16) -> usize {
    let rx = if qid == 0 { SMALL_RX_BYTES } else { RX_BYTES };
    let slot = size_of::<Slot>() + size_of::<u16>();
    Connection::PENDING_BYTES + rx + 2 * IDLE_TX_BYTES + usize::from(entries) * slot
}

/// Bytes that a device or a chain works on for a command, and bytes that the host has been asked for.
fn held_bytes(state: &State) -> (usize, usize) {
    match state {
        State::Read { length, .. } | State::Verify { length, .. } => {
            ((*length as usize).next_multiple_of(BUFFER_BYTES), 0)
        }
        State::Chain { answer_max_bytes, .. } => (*answer_max_bytes as usize, 0),
        State::Deallocate { ranges, .. } => (size_of_val(ranges.as_slice()), 0),
        State::Write { data, .. }
        | State::Compare { data, .. }
        | State::Ranges { data, .. }
        | State::AdminData { data, .. } => match data.stage {
            Stage::Unasked => (0, 0),
            Stage::Arriving { .. } => (0, buffer_bytes(data.length)),
            // What is compared is held twice.
            Stage::Here if matches!(state, State::Compare { .. }) => {
                (2 * buffer_bytes(data.length), 0)
            }
            Stage::Here => (buffer_bytes(data.length), 0),
        },
        _ => (0, 0),
    }
}

/// What a buffer for `length` bytes takes.
fn buffer_bytes(length: u32) -> usize {
    (length as usize).next_multiple_of(BUFFER_BYTES) + BUFFER_BYTES
}

impl Incoming {
    /// Data of `length` bytes that came in the capsule: nothing to wait for.
    pub(crate) fn here(length: u32) -> Incoming {
        Incoming { length, stage: Stage::Here }
    }
}

/// What holds for every command: no fused operations, SGLs, data that matches its descriptor.
fn check_common(sqe: &Sqe, data: &[u8], digest_ok: bool) -> Result<(), Status> {
    if !digest_ok {
        return Err(Status::TRANSIENT_TRANSPORT_ERROR);
    }
    // FUSE in bits 1:0, PSDT in bits 7:6 (NVMe Base 2.0 §3.3.3.1).
    if sqe.flags & 0x03 != 0 || sqe.flags & 0xc0 == 0 {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    let fits = match sqe.sgl.kind {
        Sgl::IN_CAPSULE_OFFSET => {
            sqe.sgl.address == 0 && sqe.sgl.length_bytes as usize == data.len()
        }
        _ => data.is_empty(),
    };
    if fits { Ok(()) } else { Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr()) }
}
