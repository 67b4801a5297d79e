//! Entry points for fuzzing, also run by tests so that they stay green.
//!
//! [`connection`] plays a host that obeys no rules against an admin connection and an I/O
//! connection over memory namespaces. A host's receiver reads all that the target answers, so that
//! a PDU which breaks the protocol is found too.
//!
//! [`admin`] plays hosts that keep the rules of the transport, so that what is known of each command
//! can be checked: it is answered once, with no more data than it announced. [`config`] reads
//! configurations.

mod admin;
mod config;
mod object;

pub use admin::admin;
pub use config::config;

use crate::config::{NamespaceConfig, NamespaceSource};
use crate::connection::{Connection, Endpoints};
use crate::executor::{Executor, FileOperation};
use crate::hosts::{HostLimits, Hosts};
use crate::limits::MAX_TRANSFER_BYTES;
use crate::loader::Load;
use crate::namespace::{Backing, Namespace};
use crate::places::Served;
use crate::reactor::core::Core;
use crate::reactor::{Io, Message, Shut};
use crate::target::Target;
use bpfof_chain::{Function, Limits};
use bpfof_device::Outgoing;
use bpfof_function::{NativeFunction, Program};
use bpfof_nvme::fabrics::{ConnectData, ControllerConfig, FabricsCommand, offset};
use bpfof_nvme::tcp::{
    CapsuleCmd, Digests, H2cData, IcReq, Pdu, PduEvent, PduReceiver, R2t, data_digest,
};
use bpfof_nvme::vendor::{Extent, FileMapObject, FileVersion, PushdownParts, PushdownShort};
use bpfof_nvme::{AdminCommand, DsmRange, Installation, Rw, Sgl, Sqe, Upload, opcode};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};

/// The subsystem of a [`Rig`].
pub(crate) const NQN: &str = "nqn.2026-01.io.bpf-of:rig";
/// Most bytes that a connection may have to send: the high-water mark, what was being read when it
/// was reached, and an answer for each entry of the queue.
const TX_MAX_BYTES: usize = 16 << 20;
/// Bytes of each namespace.
const NAMESPACE_BYTES: u64 = 1 << 20;

/// A target without threads, sockets and devices: one reactor's core over two memory namespaces, the
/// first with logical blocks of 512 bytes, the second of 4096.
pub(crate) struct Rig {
    pub(crate) core: Core<RigIo>,
    /// By line, its connection's index.
    lines: Vec<u32>,
}

/// The world of a [`Rig`]: nothing happens until it is told to.
#[derive(Default)]
pub(crate) struct RigIo {
    pub(crate) now_ns: u64,
    wires: Vec<Wire>,
    loads: Vec<Load>,
    messages: VecDeque<Message>,
    /// They stay where they are.
    pub(crate) holds_messages: bool,
}

/// The socket of one connection.
#[derive(Default)]
struct Wire {
    /// What the host has sent and the target has not received.
    inbox: Vec<u8>,
    /// Where the target waits for more.
    rx: Option<(Vec<u8>, usize)>,
    /// What the target is sending, until the host takes it.
    tx: Option<Box<Outgoing>>,
    /// What was sent when the connection ended.
    last_words: Vec<u8>,
    /// Nothing is received any more.
    is_shut: bool,
    is_closed: bool,
}

impl RigIo {
    fn wire(&mut self, connection: u32) -> &mut Wire {
        &mut self.wires[connection as usize]
    }
}

impl Io for RigIo {
    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }

    fn receive(&mut self, connection: u32, buffer: Vec<u8>, filled: usize) {
        let before = self.wire(connection).rx.replace((buffer, filled));
        assert!(before.is_none(), "it receives already");
    }

    fn send(&mut self, connection: u32, outgoing: Box<Outgoing>) {
        let before = self.wire(connection).tx.replace(outgoing);
        assert!(before.is_none(), "it sends already");
    }

    fn file(&mut self, _x: &mut Executor, operation: FileOperation) {
        unreachable!("there are no files: {operation:?}")
    }

    fn shut(&mut self, connection: u32, _half: Shut) {
        self.wire(connection).is_shut = true;
    }

    fn close(&mut self, connection: u32) {
        let wire = self.wire(connection);
        assert!(wire.rx.is_none() && wire.tx.is_none(), "the kernel still has a buffer");
        wire.is_closed = true;
    }

    fn has_hung_up(&mut self, _connection: u32) -> bool {
        false
    }

    fn taken_bytes(&mut self, _connection: u32) -> u64 {
        0
    }

    fn load(&mut self, load: Load) {
        self.loads.push(load);
    }

    fn cancel_loads(&mut self, serial: u64) {
        self.loads.retain(|load| load.serial != serial);
    }

    fn tell_all(&mut self, message: &dyn Fn() -> Message) {
        self.messages.push_back(message());
    }
}

impl Rig {
    pub(crate) fn new(limits: Limits) -> Rig {
        Rig::with(limits, HostLimits::default(), 1 << 30)
    }

    /// The same with limits of hosts, and with so many bytes of memory for them.
    pub(crate) fn with(limits: Limits, hosts: HostLimits, memory_bytes: usize) -> Rig {
        let open = |nsid, lba_bytes| {
            let source =
                NamespaceSource::Memory { size_bytes: NAMESPACE_BYTES, latency_us: 0, iops: 0 };
            let config = NamespaceConfig { source, lba_bytes, subsystem: None, nsid: None };
            (NQN.to_owned(), Namespace::open(nsid, &config, NQN).expect("a small mapping"))
        };
        let namespaces = vec![open(1, 512), open(2, 4096)];
        let listeners = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 4420))];
        let hosts = Hosts::new(hosts, memory_bytes);
        let target = Arc::new(Target::new(limits, hosts, 0, namespaces, listeners));
        let core = Core::new(RigIo::default(), Executor::new(target), 0);
        Rig { core, lines: Vec::new() }
    }

    /// Opens a connection and returns its number.
    pub(crate) fn open(&mut self) -> usize {
        self.open_at(false)
    }

    /// The same at the listener for discovery, or at the other.
    fn open_at(&mut self, discovery_only: bool) -> usize {
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let ends = Endpoints { peer, local: peer, discovery_only };
        self.core.begin_turn();
        let index = self.core.adopt(ends, None).expect("there is room");
        let wires = &mut self.core.io.wires;
        // Indices of connections that have gone are used again, lines are not.
        self.lines.iter_mut().filter(|line| **line == index).for_each(|line| *line = u32::MAX);
        wires.resize_with(wires.len().max(index as usize + 1), Wire::default);
        wires[index as usize] = Wire::default();
        self.core.begin(index);
        self.lines.push(index);
        self.lines.len() - 1
    }

    /// How many lines were opened.
    #[cfg(test)]
    pub(crate) fn line_count(&self) -> usize {
        self.lines.len()
    }

    /// The connection of a line, if it is there.
    pub(crate) fn entry(&self, line: usize) -> Option<&Connection> {
        self.core.connection(self.lines[line])
    }

    /// The connection of a line.
    pub(crate) fn connection(&self, line: usize) -> &Connection {
        self.entry(line).expect("it is there")
    }

    /// The same to be changed.
    pub(crate) fn connection_mut(&mut self, line: usize) -> &mut Connection {
        self.core.connection_mut(self.lines[line]).expect("it is there")
    }

    /// Whether a line's connection takes commands.
    pub(crate) fn is_open(&self, line: usize) -> bool {
        self.entry(line).is_some_and(|connection| !connection.abandoned)
    }

    /// The index of a line's connection in the reactor.
    #[cfg(test)]
    pub(crate) fn index(&self, line: usize) -> u32 {
        self.lines[line]
    }

    /// Writes to a namespace behind the protocol's back.
    pub(crate) fn store(&self, namespace: usize, offset: u64, bytes: &[u8]) {
        if let Backing::Memory(memory) = &self.core.x.namespace(namespace).backing {
            memory.write(offset, bytes);
        }
    }

    /// Takes namespace 2 away, and gives another of `blocks` blocks the same id if that is not 0:
    /// as a server does it, but with one reactor.
    pub(crate) fn replace_namespace(&mut self, blocks: u64) {
        let target = Arc::clone(&self.core.x.target);
        let mut named: Vec<_> = target.served().into_iter().map(|(_, of)| of).collect();
        named.retain(|namespace| namespace.nsid == 1);
        let number = target.number(NQN);
        let served = |named: &[Arc<Namespace>]| -> Arc<[Served]> {
            named.iter().map(|namespace| (number, Arc::clone(namespace))).collect()
        };
        let done = || std::sync::mpsc::channel().0;
        self.core.message(Message::Serve(served(&named), done()));
        target.retain(&served(&named));
        if blocks > 0 {
            let source =
                NamespaceSource::Memory { size_bytes: blocks * 4096, latency_us: 0, iops: 0 };
            let config =
                NamespaceConfig { source, lba_bytes: 4096, subsystem: None, nsid: Some(2) };
            let namespace = Namespace::open(2, &config, NQN).expect("a small mapping");
            named.push(Arc::new(namespace.renewed(NQN)));
            self.core.message(Message::Serve(served(&named), done()));
        }
        let named: Vec<_> = named.into_iter().map(|of| (NQN.to_owned(), of)).collect();
        target.replace(&named);
        self.core.message(Message::NamespacesChanged);
        self.pump();
    }

    /// Bytes arrive on a connection. What they ask for begins; operations wait for [`work`](Self::work).
    pub(crate) fn feed(&mut self, line: usize, bytes: &[u8]) {
        if self.is_open(line) {
            let index = self.lines[line];
            self.core.io.wire(index).inbox.extend_from_slice(bytes);
            self.pump();
        }
    }

    /// Delivers what is on its way, without performing an operation.
    fn pump(&mut self) {
        loop {
            self.core.begin_turn();
            let mut is_idle = !self.deliver();
            while !self.core.io.holds_messages
                && let Some(message) = self.core.io.messages.pop_front()
            {
                self.core.message(message);
                is_idle = false;
            }
            for index in 0..self.core.io.wires.len() as u32 {
                self.core.take_input(index);
            }
            self.core.end_turn();
            self.check();
            if is_idle && !self.core.has_dirty() {
                return;
            }
        }
    }

    /// Gives received bytes to connections that wait for them; whether there were any.
    fn deliver(&mut self) -> bool {
        let mut has_delivered = false;
        for index in 0..self.core.io.wires.len() as u32 {
            let wire = self.core.io.wire(index);
            if wire.is_closed || wire.inbox.is_empty() && !wire.is_shut {
                continue;
            }
            let Some((mut buffer, filled)) = wire.rx.take() else { continue };
            let inbox = if wire.is_shut { Vec::new() } else { std::mem::take(&mut wire.inbox) };
            let (now, later) = inbox.split_at(inbox.len().min(buffer.len() - filled));
            buffer[filled..filled + now.len()].copy_from_slice(now);
            wire.inbox = later.to_vec();
            self.core.received(index, buffer, now.len() as i32);
            has_delivered = true;
        }
        has_delivered
    }

    fn check(&self) {
        for line in 0..self.lines.len() {
            let tx_bytes = self.entry(line).map_or(0, |connection| connection.tx.len());
            assert!(tx_bytes < TX_MAX_BYTES, "{tx_bytes} bytes wait to be sent");
        }
    }

    /// Closes a connection as a reactor does.
    pub(crate) fn close(&mut self, line: usize) {
        if self.is_open(line) {
            self.core.close(self.lines[line], "the test closes it");
            self.pump();
        }
    }

    /// Performs operations and compilations until there are none.
    pub(crate) fn work(&mut self) {
        loop {
            self.core.begin_turn();
            self.core.work();
            self.core.end_turn();
            let loads = std::mem::take(&mut self.core.io.loads);
            let is_idle = loads.is_empty() && !self.core.has_work();
            for load in loads {
                let Load { command, serial, installation, .. } = load;
                let outcome = Box::new(load.run());
                let loaded = Message::Loaded { command, serial, installation, outcome };
                self.core.message(loaded);
            }
            self.pump();
            if is_idle && !self.core.has_work() {
                return;
            }
        }
    }

    /// Performs one operation; false if there is none.
    #[cfg(test)]
    pub(crate) fn step(&mut self) -> bool {
        self.core.begin_turn();
        self.deliver();
        let has_stepped = self.core.step();
        self.core.x.schedule.give_back();
        self.core.end_turn();
        has_stepped
    }

    /// A turn as a reactor's: what was being sent has been taken, these bytes have arrived, and all that
    /// they ask for is done.
    #[cfg(test)]
    pub(crate) fn turn(&mut self, line: usize, bytes: &[u8]) {
        let index = self.lines[line];
        self.core.begin_turn();
        let wire = self.core.io.wire(index);
        wire.inbox.extend_from_slice(bytes);
        if let Some(sent) = wire.tx.take() {
            let length = sent.len() as i32;
            self.core.sent(index, sent, length);
        }
        self.deliver();
        self.core.work();
        self.core.end_turn();
        while self.core.has_work() {
            self.core.begin_turn();
            self.core.work();
            self.core.end_turn();
        }
    }

    /// What a connection is sending.
    #[cfg(test)]
    pub(crate) fn being_sent(&self, line: usize) -> Vec<u8> {
        let wire = &self.core.io.wires[self.lines[line] as usize];
        wire.tx.as_ref().map_or_else(Vec::new, |sent| sent.to_bytes())
    }

    /// Takes what a connection has to send.
    pub(crate) fn output(&mut self, line: usize) -> Vec<u8> {
        let index = self.lines[line];
        if index == u32::MAX {
            return Vec::new();
        }
        let mut bytes = std::mem::take(&mut self.core.io.wire(index).last_words);
        while let Some(sent) = self.core.io.wire(index).tx.take() {
            bytes.extend(sent.to_bytes());
            let length = sent.len() as i32;
            self.core.begin_turn();
            self.core.sent(index, sent, length);
            self.pump();
        }
        bytes
    }

    /// Closes all connections and checks that nothing is left behind.
    pub(crate) fn finish(&mut self) {
        for line in 0..self.lines.len() {
            self.close(line);
        }
        self.work();
        for line in 0..self.lines.len() {
            self.output(line);
            assert!(self.entry(line).is_none(), "a connection is left");
        }
        assert_eq!(self.core.x.engine().running(), 0, "a chain is lost");
        // Until the reactor looks around again.
        self.core.io.now_ns = self.core.next_ns();
        self.pump();
        let subsystem = self.core.x.target.subsystem(NQN).expect("it is served");
        subsystem.kept_functions().into_iter().for_each(|id| subsystem.drop_function(id));
        assert!(!self.core.x.places().has_leaving(), "a namespace is kept for no command");
        let hosts = &self.core.x.target.hosts;
        let (used, own) = (hosts.memory.used_bytes(), hosts.own.used_bytes());
        assert_eq!(used, own, "memory is taken for nobody");
    }
}

/// A capsule on the wire.
pub(crate) fn capsule(sqe: Sqe, data: &[u8], digests: Digests) -> Vec<u8> {
    let mut bytes = Vec::new();
    CapsuleCmd { sqe, data }.encode_into(&mut bytes, digests, 0);
    bytes
}

/// A whole H2CData PDU on the wire.
pub(crate) fn h2c_data(pdu: H2cData, data: &[u8], digests: Digests) -> Vec<u8> {
    let mut bytes = Vec::new();
    pdu.encode_header_into(&mut bytes, digests, 0);
    bytes.extend_from_slice(data);
    if digests.data {
        bytes.extend_from_slice(&data_digest(data));
    }
    bytes
}

/// Connect for queue `qid` with `sqsize` + 1 entries; queue 0 makes a controller, others join it.
pub(crate) fn connect_command(qid: u16, sqsize: u16, kato_ms: u32) -> (Sqe, Vec<u8>) {
    let command = FabricsCommand::Connect { recfmt: 0, qid, sqsize, cattr: 0, kato_ms };
    let data = ConnectData {
        hostid: [3; 16],
        cntlid: if qid == 0 { u16::MAX } else { 1 },
        subnqn: NQN.to_owned(),
        hostnqn: "nqn.2026-01.io.bpf-of:peer".to_owned(),
    };
    (command.to_sqe(), data.to_bytes().to_vec())
}

/// Property Set that enables the controller.
pub(crate) fn enable_command() -> Sqe {
    let value = u32::from(ControllerConfig::ENABLED).into();
    FabricsCommand::PropertySet { offset: offset::CC, size8: false, value }.to_sqe()
}

/// Id of the function that structured input can call: it follows the pointer at the start of each
/// block, and ends at a null pointer with 8 bytes of scratch as its answer.
pub(crate) const FOLLOW: u32 = 7;

/// The function's instructions.
fn follow_code() -> Vec<u8> {
    const CODE: [(u8, u8, i16, i32); 16] = [
        (0x79, 0x12, 0, 0),   // r2 = ctx->data
        (0x79, 0x23, 0, 0),   // r3 = *(u64 *)r2
        (0x15, 0x03, 7, 0),   // if r3 == 0 goto done
        (0x7b, 0x31, 64, 0),  // ctx->next_offset[0] = r3
        (0xb7, 0x04, 0, 512), // r4 = 512
        (0x63, 0x41, 192, 0), // ctx->next_size[0] = r4
        (0xb7, 0x04, 0, 1),   // r4 = 1
        (0x63, 0x41, 48, 0),  // ctx->reads = r4
        (0xb7, 0x00, 0, 0),   // r0 = 0
        (0x95, 0x00, 0, 0),   // exit
        (0xb7, 0x04, 0, 8),   // done: r4 = 8
        (0x63, 0x41, 56, 0),  // ctx->out_len = r4
        (0xb7, 0x04, 0, 1),   // r4 = 1
        (0x63, 0x41, 52, 0),  // ctx->done = r4
        (0xb7, 0x00, 0, 0),   // r0 = 0
        (0x95, 0x00, 0, 0),   // exit
    ];
    assemble(&CODE)
}

/// Machine code of instructions, each (opcode, registers, offset, immediate) as RFC 9669 §3 lays
/// them out.
pub(crate) fn assemble(code: &[(u8, u8, i16, i32)]) -> Vec<u8> {
    let slot = |&(opcode, registers, offset, immediate): &(u8, u8, i16, i32)| {
        let ([a, b], [c, d, e, f]) = (offset.to_le_bytes(), immediate.to_le_bytes());
        [opcode, registers, a, b, c, d, e, f]
    };
    code.iter().flat_map(slot).collect()
}

pub(crate) fn follow() -> Arc<Function> {
    static FUNCTION: OnceLock<Arc<Function>> = OnceLock::new();
    let function = FUNCTION.get_or_init(|| {
        let program = Program::parse(&follow_code()).expect("a valid program");
        let native = NativeFunction::compile(&program).expect("it can be translated");
        let (name, instructions) = ("follow".to_owned(), program.instructions().len() as u32);
        Arc::new(Function {
            id: FOLLOW,
            name,
            instructions,
            native,
            trace: Default::default(),
            peers: None,
            maps: Default::default(),
            memory: None,
        })
    });
    Arc::clone(function)
}

/// Structure out of bytes; zeroes when they are used up.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        head
    }

    fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    fn number(&mut self) -> u64 {
        let mut bytes = [0; 8];
        for (to, from) in bytes.iter_mut().zip(self.bytes(8)) {
            *to = *from;
        }
        u64::from_le_bytes(bytes)
    }

    /// A number at or near a limit, a small one, or any.
    fn edge(&mut self) -> u64 {
        match self.byte() % 12 {
            0 => 0,
            1 => 512,
            2 => 4096,
            3 => 8192,
            4 => u64::from(MAX_TRANSFER_BYTES),
            5 => NAMESPACE_BYTES,
            6 => u64::MAX,
            7 => u64::MAX - 511,
            8 => u64::from(u32::MAX),
            9 => self.number(),
            _ => u64::from(self.byte()),
        }
    }
}

/// What the host at the other end of a line has heard.
struct Ear {
    receiver: PduReceiver,
    inbox: Vec<u8>,
    r2ts: Vec<R2t>,
    next_cid: u16,
}

/// A host whose every choice is made by the input.
struct Host<'a> {
    rig: Rig,
    input: Input<'a>,
    ears: Vec<Ear>,
    digests: Digests,
}

/// Plays `data` as a host: random bytes on a new connection, random bytes after the handshake, or
/// a sequence of commands, transfers and uploads with fields from `data`, all split at random.
/// Nothing may panic, what the target says must be valid, what it keeps to send is bounded, and
/// when the host is gone nothing of it is left.
pub fn connection(data: &[u8]) {
    let mut input = Input(data);
    let mode = input.byte();
    let digests = Digests { header: mode & 4 != 0, data: mode & 8 != 0 };
    let limits = Limits { hops: 64, chains: 8, instructions_per_call: 10_000, ..Limits::default() };
    let mut host = Host { rig: Rig::new(limits), input, ears: Vec::new(), digests };
    let admin = host.open();
    match mode & 3 {
        0 => {}
        1 => host.handshake(admin, 0),
        _ => {
            host.handshake(admin, 0);
            host.furnish();
            let io = host.open();
            host.handshake(io, 1);
            while !host.input.0.is_empty() {
                host.act();
            }
        }
    }
    let rest = host.input.bytes(data.len());
    host.say(admin, rest.to_vec());
    host.listen();
    host.rig.finish();
}

impl Host<'_> {
    fn open(&mut self) -> usize {
        self.ears.push(Ear {
            receiver: PduReceiver::for_host(),
            inbox: Vec::new(),
            r2ts: Vec::new(),
            next_cid: 0,
        });
        self.rig.open()
    }

    fn handshake(&mut self, line: usize, qid: u16) {
        let mut request = Vec::new();
        let hpda = self.input.byte() % 32;
        IcReq { hpda, digests: self.digests, ..IcReq::default() }.encode_into(&mut request);
        self.rig.feed(line, &request);
        let (connect, data) = connect_command(qid, 15, 0);
        self.rig.feed(line, &capsule(connect, &data, self.digests));
        if qid == 0 {
            self.rig.feed(line, &capsule(enable_command(), &[], self.digests));
        }
        self.listen();
        assert!(self.rig.connection(line).controller.is_some(), "the handshake works");
    }

    /// Installs a function, and stores a list of eight blocks, a block that points to itself and
    /// one that points nowhere.
    fn furnish(&mut self) {
        let controller = self.rig.connection(0).controller.clone().expect("connected");
        controller.update(|tables| tables.with_function(follow()));
        for namespace in 0..2 {
            for block in 0..7 {
                self.rig.store(namespace, block * 512, &((block + 1) * 512).to_le_bytes());
            }
            self.rig.store(namespace, 8 * 512, &(8u64 * 512).to_le_bytes());
            self.rig.store(namespace, 9 * 512, &(u64::MAX - 8).to_le_bytes());
        }
    }

    /// Sends bytes in two pieces, with one of them damaged now and then.
    fn say(&mut self, line: usize, mut bytes: Vec<u8>) {
        let (at, chance) = (self.input.number() as usize, self.input.byte());
        if chance & 31 == 31 && !bytes.is_empty() {
            let index = at % bytes.len();
            bytes[index] ^= 1 << (chance >> 5);
        }
        let (head, tail) = bytes.split_at(at % (bytes.len() + 1));
        self.rig.feed(line, head);
        self.rig.feed(line, tail);
    }

    /// Lets the target work, and reads what it says.
    fn listen(&mut self) {
        self.rig.work();
        for (line, ear) in self.ears.iter_mut().enumerate() {
            ear.inbox.extend(self.rig.output(line));
            let mut used = 0;
            loop {
                let next = ear.receiver.next(&ear.inbox[used..]);
                let next = next.unwrap_or_else(|error| panic!("the target broke a rule: {error}"));
                let Some((length, event)) = next else { break };
                used += length;
                match event {
                    PduEvent::Header(Pdu::IcResp(response)) => {
                        ear.receiver.set_digests(response.digests);
                    }
                    PduEvent::Header(Pdu::R2t(r2t)) => ear.r2ts.push(r2t),
                    PduEvent::Data { digest_ok: false, last_fragment: true, .. } => {
                        panic!("a wrong data digest");
                    }
                    _ => {}
                }
            }
            ear.inbox.drain(..used);
        }
    }

    fn act(&mut self) {
        match self.input.byte() % 14 {
            13 => {
                let blocks = u64::from(self.input.byte() % 4) * 64;
                self.rig.replace_namespace(blocks);
            }
            0..=2 => self.read_or_write(),
            12 => self.dataset_management(),
            3 | 4 => self.pushdown(),
            5 => self.pushdown_short(),
            6 | 7 => self.transfer(),
            8 => self.admin(),
            9 => self.upload(),
            10 => {
                let line = usize::from(self.input.byte() & 1);
                let mut sqe = [0; Sqe::BYTES];
                let fields = self.input.bytes(Sqe::BYTES);
                sqe[..fields.len()].copy_from_slice(fields);
                self.command(line, Sqe::from_bytes(&sqe), &[]);
            }
            _ => self.listen(),
        }
    }

    fn command(&mut self, line: usize, mut sqe: Sqe, data: &[u8]) {
        let next_cid = &mut self.ears[line].next_cid;
        (sqe.cid, *next_cid) = (*next_cid, next_cid.wrapping_add(1));
        let bytes = capsule(sqe, data, self.digests);
        self.say(line, bytes);
    }

    fn read_or_write(&mut self) {
        let nsid = u32::from(self.input.byte() % 4);
        use opcode::nvm::{COMPARE, FLUSH, READ, VERIFY, WRITE, WRITE_ZEROES};
        let opcodes = [READ, WRITE, WRITE_ZEROES, FLUSH, VERIFY, COMPARE];
        let opcode = opcodes[usize::from(self.input.byte()) % opcodes.len()];
        let blocks = (self.input.edge() as u32 % 300).max(1);
        let rw = Rw { slba: self.input.edge(), blocks, fua: self.input.byte() & 1 != 0 };
        let mut sqe = rw.to_sqe(opcode, nsid);
        let block_bytes = if nsid == 2 { 4096 } else { 512 };
        let right = blocks * block_bytes;
        let choice = self.input.byte();
        let length_bytes = if choice & 7 == 7 { self.input.edge() as u32 } else { right };
        let in_capsule = choice & 8 != 0 && matches!(opcode, WRITE | COMPARE) && right <= 8192;
        sqe.sgl =
            if in_capsule { Sgl::in_capsule(length_bytes) } else { Sgl::transport(length_bytes) };
        if choice & 0x70 == 0x70 {
            sqe.sgl.kind = self.input.byte();
        }
        let data = vec![choice; if in_capsule { right as usize } else { 0 }];
        self.command(1, sqe, &data);
    }

    fn dataset_management(&mut self) {
        let choice = self.input.byte();
        let count = usize::from(self.input.byte() % 4);
        let mut data = Vec::new();
        for _ in 0..count {
            let (slba, blocks) = (self.input.edge(), self.input.edge() as u32);
            data.extend(DsmRange { attributes: 0, blocks, slba }.to_bytes());
        }
        let length_bytes =
            if choice & 7 == 7 { self.input.edge() as u32 } else { data.len() as u32 };
        let in_capsule = choice & 8 != 0;
        let sgl =
            if in_capsule { Sgl::in_capsule(length_bytes) } else { Sgl::transport(length_bytes) };
        // One range more or less than there are, now and then.
        let ranges = count as u32 + u32::from(choice >> 6 & 1);
        let sqe = Sqe {
            cdw10: ranges.wrapping_sub(1),
            cdw11: u32::from(choice >> 4),
            sgl,
            ..Sqe::new(opcode::nvm::DATASET_MANAGEMENT, u32::from(choice >> 5 & 3))
        };
        self.command(1, sqe, if in_capsule { &data } else { &[] });
    }

    fn pushdown(&mut self) {
        let choice = self.input.byte();
        let count = usize::from(self.input.byte()) % 19;
        let file = |input: &mut Input<'_>| FileVersion {
            id: u32::from(input.byte() % 3),
            version: u64::from(input.byte() % 3),
        };
        let mut files: Vec<FileVersion> = (0..count).map(|_| file(&mut self.input)).collect();
        if choice & 1 == 0 {
            files = vec![FileVersion { id: 0, version: 1 }];
        }
        let scratch = vec![choice; self.input.edge() as usize % 8000];
        let parts = PushdownParts {
            function: if choice & 2 == 0 { FOLLOW } else { self.input.edge() as u32 },
            files: &files,
            first_file: if choice & 4 == 0 { 0 } else { u16::from(self.input.byte()) },
            first_offset_bytes: if choice & 8 == 0 {
                u64::from(self.input.byte() % 12) * 512
            } else {
                self.input.edge()
            },
            first_size_bytes: if choice & 16 == 0 { 512 } else { self.input.edge() as u32 },
            scratch: &scratch,
            answer_max_bytes: if choice & 32 == 0 { 64 } else { self.input.edge() as u32 },
            scratch_size_bytes: if choice & 128 == 0 { 0 } else { self.input.edge() as u32 },
        };
        let mut data = Vec::new();
        parts.encode_into(&mut data);
        if choice & 64 != 0 {
            let at = self.input.number() as usize % data.len();
            data[at] = self.input.byte();
        }
        let mut sqe = Sqe::new(opcode::nvm::PUSHDOWN, u32::from(self.input.byte() % 3));
        sqe.sgl = Sgl::in_capsule(data.len() as u32);
        self.command(1, sqe, &data);
    }

    fn pushdown_short(&mut self) {
        let mut argument = [0; 24];
        let given = self.input.bytes(24);
        argument[..given.len()].copy_from_slice(given);
        let short = PushdownShort {
            function: if self.input.byte() & 3 == 0 { self.input.edge() as u32 } else { FOLLOW },
            file: u16::from(self.input.byte() % 3),
            first_blocks: u16::from(self.input.byte() % 4),
            argument,
        };
        let length = self.input.edge() as u32;
        let sqe = short.to_sqe(u32::from(self.input.byte() % 3), length);
        self.command(1, sqe, &[]);
    }

    /// Data for an R2T, or for none.
    fn transfer(&mut self) {
        self.listen();
        let line = usize::from(self.input.byte() & 1);
        let choice = self.input.byte();
        let ear = &mut self.ears[line];
        let mut r2t = R2t { length_bytes: 512, ..R2t::default() };
        if !ear.r2ts.is_empty() {
            let index = usize::from(choice) % ear.r2ts.len();
            r2t = ear.r2ts[index];
            if choice & 1 == 0 {
                ear.r2ts.remove(index);
            }
        }
        let mut pdu = H2cData {
            cccid: r2t.cccid,
            ttag: r2t.ttag,
            data_offset_bytes: 0,
            data_length_bytes: r2t.length_bytes,
            last: true,
        };
        match self.input.byte() % 16 {
            0 => pdu.ttag = self.input.number() as u16,
            1 => pdu.cccid = self.input.number() as u16,
            2 => pdu.data_offset_bytes = self.input.edge() as u32,
            3 => pdu.data_length_bytes = self.input.edge() as u32 % 300_000 + 1,
            4 => pdu.data_length_bytes = pdu.data_length_bytes / 2 + 1,
            5 => {
                // Two pieces, as they should be.
                let half = pdu.data_length_bytes / 2;
                if half > 0 {
                    let first = H2cData { data_length_bytes: half, last: false, ..pdu };
                    self.say(line, h2c_data(first, &vec![choice; half as usize], self.digests));
                    pdu.data_offset_bytes = half;
                    pdu.data_length_bytes -= half;
                }
            }
            _ => {}
        }
        let data = vec![choice; pdu.data_length_bytes as usize];
        self.say(line, h2c_data(pdu, &data, self.digests));
    }

    fn admin(&mut self) {
        let (a, b, choice) = (self.input.edge(), self.input.edge(), self.input.byte());
        let sqe = match choice % 12 {
            0 => AdminCommand::identify(a as u8, b as u32),
            1 => AdminCommand::get_log_page(a as u8 % 16, 0, self.input.edge(), b as u32),
            2 => AdminCommand::get_features(a as u8),
            3 => AdminCommand::set_features(a as u8, b as u32),
            4 if choice >= 128 => AdminCommand::trace(a as u32, b as u32),
            4 => AdminCommand::function_report(a as u32, b as u32),
            5 => AdminCommand::function_unload(a as u32),
            6 => AdminCommand::pushdown_identify(b as u32),
            7 => Sqe::new(opcode::admin::ASYNC_EVENT_REQUEST, 0),
            8 => Sqe::new(opcode::admin::ABORT, 0),
            9 => FabricsCommand::PropertyGet { offset: a as u32, size8: b & 1 != 0 }.to_sqe(),
            10 => {
                FabricsCommand::PropertySet { offset: offset::CC, size8: false, value: a }.to_sqe()
            }
            _ => Sqe::new(a as u8, b as u32),
        };
        self.command(0, sqe, &[]);
    }

    /// A chunk of a function or of a file map, in its capsule or to be asked for.
    fn upload(&mut self) {
        let choice = self.input.byte();
        let mut object = self.input.bytes(usize::from(choice)).to_vec();
        if choice & 1 == 0 {
            object.clear();
            let extent = |input: &mut Input<'_>| Extent {
                file_offset: u64::from(input.byte()) * 512,
                device_offset: u64::from(input.byte()) * 512,
                length_bytes: u64::from(input.byte()) * 512,
            };
            let (file, version) = (u32::from(self.input.byte() % 3), u64::from(choice & 2) / 2);
            let count = usize::from(self.input.byte() % 5);
            let extents = (0..count).map(|_| extent(&mut self.input)).collect();
            let length_bytes = self.input.edge();
            let nsid = u32::from(self.input.byte() % 3);
            FileMapObject { file, nsid, version, length_bytes, extents }.encode_into(&mut object);
        }
        let whole = object.len() as u32;
        let total_bytes = if choice & 4 == 0 { whole } else { self.input.edge() as u32 };
        let offset_bytes = if choice & 8 == 0 { 0 } else { self.input.edge() as u32 };
        let upload = Upload { total_bytes, offset_bytes };
        let installation = Installation { entry: u32::from(choice >> 6), kept: choice & 16 != 0 };
        let mut sqe = match choice & 1 {
            0 => AdminCommand::file_map_set(upload),
            _ => AdminCommand::function_load(upload, installation),
        };
        if choice & 32 == 0 {
            sqe.sgl = Sgl::in_capsule(whole);
            self.command(0, sqe, &object);
        } else {
            let length = self.input.edge() as u32;
            sqe.sgl = Sgl::transport(if length.is_multiple_of(2) { whole } else { length });
            self.command(0, sqe, &[]);
        }
    }
}
