//! A target without threads, sockets and devices, for tests and fuzzing.

use crate::authenticator::Authentication;
use crate::config::{NamespaceConfig, NamespaceSource};
use crate::connection::{Connection, Endpoints};
use crate::executor::Executor;
use crate::hosts::{HostLimits, Hosts};
use crate::limits::LAST_CONTROLLER_ID;
use crate::listener::Listener;
use crate::loader::Load;
use crate::namespace::Namespace;
use crate::namespace_table::Served;
use crate::operation::{Fenced, FileOperation};
use crate::reactor::state::Core;
use crate::reactor::{Fence, Io, Message, Shut, closing, completions, serve, turn, upkeep};
use crate::registry::Registry;
use crate::transport::Port;
#[cfg(test)]
use crate::transport::message::MessagePort;
use crate::transport::tcp::TcpPort;
use bpfof_chain::{Function, Limits};
use bpfof_device::Outgoing;
#[cfg(test)]
use bpfof_device::fabric::Event;
use bpfof_device::fabric::Work;
#[cfg(test)]
use bpfof_device::rdma::Shape;
use bpfof_function::{NativeFunction, Program};
use bpfof_nvme::Sqe;
use bpfof_nvme::fabrics::{ConnectData, ControllerConfig, FabricsCommand, offset};
use bpfof_nvme::tcp::{CapsuleCmd, Digests, H2cData, data_digest};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock};

/// The subsystem of a [`Rig`].
pub(crate) const NQN: &str = "nqn.2026-01.io.bpf-of:rig";
/// The host of a [`Rig`].
pub(crate) const PEER_NQN: &str = "nqn.2026-01.io.bpf-of:peer";
/// Most unsent bytes of a connection: the high-water mark, reads in flight when it was reached, and an answer for each
/// entry of the queue.
const TX_MAX_BYTES: usize = 16 << 20;
/// The address of hosts.
const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Bytes of each namespace.
pub(crate) const NAMESPACE_BYTES: u64 = 1 << 20;

/// A target without threads, sockets and devices: one reactor's core over two memory namespaces, the
/// first with logical blocks of 512 bytes, the second of 4096.
pub(crate) struct Rig {
    pub(crate) core: Core<RigIo>,
    /// Index of the connection of each line.
    lines: Vec<u32>,
}

/// The environment of a [`Rig`]: it does nothing by itself.
#[derive(Default)]
pub(crate) struct RigIo {
    pub(crate) now_ns: u64,
    /// Time of a unit of work, in ps.
    pub(crate) unit_ps: u64,
    /// How often the clock has been read.
    pub(crate) looks: u64,
    wires: Vec<Wire>,
    loads: Vec<Load>,
    authentications: Vec<Authentication>,
    messages: VecDeque<Message>,
    /// Commands whose fence the reactor has dropped.
    fenced: Arc<Mutex<Vec<Vec<Fenced>>>>,
    /// Messages are not delivered.
    pub(crate) holds_messages: bool,
    /// Operations on files, which do not end by themselves.
    pub(crate) files: Vec<FileOperation>,
}

/// The socket of one connection.
#[derive(Default)]
struct Wire {
    /// Bytes that the host has sent and the target has not received.
    inbox: Vec<u8>,
    /// The buffer of the target's pending receive, and how much of it is filled.
    rx: Option<(Vec<u8>, usize)>,
    /// Data that the target is sending, until the host takes it.
    tx: Option<Box<Outgoing>>,
    /// Works that the card has not ended.
    posted: VecDeque<Work>,
    /// The host has closed its end.
    has_hung_up: bool,
    /// The direction or directions that are shut down.
    shut: Option<Shut>,
    is_closed: bool,
}

impl RigIo {
    fn wire(&mut self, connection: u32) -> &mut Wire {
        &mut self.wires[connection as usize]
    }
}

impl Io for RigIo {
    fn now_ns(&mut self) -> u64 {
        self.looks += 1;
        self.now_ns
    }

    fn spend(&mut self, units: u64) {
        self.now_ns += units * self.unit_ps / 1000;
    }

    fn has_news(&mut self) -> bool {
        self.wires.iter().any(|wire| wire.rx.is_some() && !wire.inbox.is_empty())
    }

    fn receive(&mut self, connection: u32, buffer: Vec<u8>, filled: usize) {
        let before = self.wire(connection).rx.replace((buffer, filled));
        assert!(before.is_none(), "it receives already");
    }

    fn send(&mut self, connection: u32, outgoing: Box<Outgoing>, _in_parts: bool) {
        let before = self.wire(connection).tx.replace(outgoing);
        assert!(before.is_none(), "it sends already");
    }

    fn post(&mut self, connection: u32, works: Vec<Work>) {
        self.wire(connection).posted.extend(works);
    }

    fn file(&mut self, _executor: &mut Executor, operation: FileOperation) {
        self.files.push(operation);
    }

    fn shut(&mut self, connection: u32, half: Shut) {
        let wire = self.wire(connection);
        if wire.shut != Some(Shut::Both) {
            wire.shut = Some(half);
        }
    }

    fn close(&mut self, connection: u32) {
        let wire = self.wire(connection);
        assert!(wire.rx.is_none() && wire.tx.is_none(), "the kernel still has a buffer");
        assert!(wire.posted.is_empty(), "the card still has works");
        wire.is_closed = true;
    }

    fn has_hung_up(&mut self, connection: u32) -> bool {
        // A socket that the target has shut down looks the same.
        let wire = self.wire(connection);
        wire.has_hung_up || wire.shut.is_some()
    }

    fn taken_bytes(&mut self, _connection: u32) -> u64 {
        0
    }

    fn load(&mut self, load: Load) {
        self.loads.push(load);
    }

    fn authenticate(&mut self, work: Authentication) {
        self.authentications.push(work);
    }

    fn cancel(&mut self, serial: u64) {
        self.loads.retain(|load| load.serial != serial);
        self.authentications.retain(|work| work.serial != serial);
    }

    fn fence(&mut self, fenced: Vec<Fenced>) {
        let all = Arc::clone(&self.fenced);
        let fence = Fence::new(move || all.lock().expect("no panic while held").push(fenced));
        self.messages.push_back(Message::Fence(fence));
    }

    fn tell_all(&mut self, message: &dyn Fn() -> Message) {
        self.messages.push_back(message());
    }
}

impl Rig {
    pub(crate) fn new(limits: Limits) -> Rig {
        Rig::with(limits, HostLimits::default(), 1 << 30)
    }

    /// The same with limits of hosts, and with this much memory for them.
    pub(crate) fn with(limits: Limits, hosts: HostLimits, memory_bytes: usize) -> Rig {
        let open = |nsid, lba_bytes| {
            let source =
                NamespaceSource::Memory { size_bytes: NAMESPACE_BYTES, latency_us: 0, iops: 0 };
            let config = NamespaceConfig::new(source, lba_bytes);
            (NQN.to_owned(), Namespace::open(nsid, &config, NQN).expect("a small mapping"))
        };
        Rig::over(vec![open(1, 512), open(2, 4096)], limits, hosts, memory_bytes)
    }

    /// One over a file.
    #[cfg(test)]
    pub(crate) fn over_file(path: &std::path::Path) -> Rig {
        Rig::over_files(&[path])
    }

    /// The same with a namespace for each of these files.
    #[cfg(test)]
    pub(crate) fn over_files(paths: &[&std::path::Path]) -> Rig {
        let open = |(nsid, path): (u32, &&std::path::Path)| {
            let source = NamespaceSource::File { path: path.to_path_buf(), size_bytes: None };
            let config = NamespaceConfig::new(source, 512);
            (NQN.to_owned(), Namespace::open(nsid, &config, NQN).expect("a file"))
        };
        let namespaces = (1..).zip(paths).map(open).collect();
        Rig::over(namespaces, Limits::default(), HostLimits::default(), 1 << 30)
    }

    fn over(
        namespaces: Vec<(String, Namespace)>,
        limits: Limits,
        hosts: HostLimits,
        memory_bytes: usize,
    ) -> Rig {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 4420));
        let listeners = vec![Arc::new(Listener::new(1, at, &at.into()))];
        let hosts = Hosts::new(hosts, memory_bytes);
        let registry = Arc::new(Registry::new(
            limits,
            hosts,
            (1..=LAST_CONTROLLER_ID, 0),
            namespaces,
            listeners,
        ));
        let core = Core::new(RigIo::default(), Executor::new(registry), 0);
        Rig { core, lines: Vec::new() }
    }

    /// Opens a connection and returns its number.
    pub(crate) fn open(&mut self) -> usize {
        self.open_at(false)
    }

    /// The same at the discovery listener, or at the other one.
    pub(crate) fn open_at(&mut self, discovery_only: bool) -> usize {
        self.open_with((HERE, discovery_only), Port::Tcp(TcpPort::default()))
    }

    /// The same from another address.
    #[cfg(test)]
    pub(crate) fn open_from(&mut self, address: Ipv4Addr) -> usize {
        self.open_with((address, false), Port::Tcp(TcpPort::default()))
    }

    /// The same by an RDMA card.
    #[cfg(test)]
    pub(crate) fn open_by_card(&mut self, shape: &Shape, qid: u16) -> usize {
        self.open_with((HERE, false), Port::Message(MessagePort::rdma(shape, qid)))
    }

    fn open_with(&mut self, (address, discovery_only): (Ipv4Addr, bool), port: Port) -> usize {
        let peer = SocketAddr::from((address, 1));
        let ends = Endpoints { peer, local: peer, discovery_only, listener: 0 };
        turn::begin(&mut self.core);
        let index = upkeep::adopt(&mut self.core, ends, port, None).expect("there is room");
        let wires = &mut self.core.io.wires;
        // Indices of closed connections are reused, lines are not.
        self.lines.iter_mut().filter(|line| **line == index).for_each(|line| *line = u32::MAX);
        wires.resize_with(wires.len().max(index as usize + 1), Wire::default);
        wires[index as usize] = Wire::default();
        upkeep::begin(&mut self.core, index);
        self.lines.push(index);
        self.lines.len() - 1
    }

    /// How many lines were opened.
    #[cfg(test)]
    pub(crate) fn line_count(&self) -> usize {
        self.lines.len()
    }

    /// The connection of a line, if it exists.
    pub(crate) fn entry(&self, line: usize) -> Option<&Connection> {
        self.core.connection(self.lines[line])
    }

    /// The connection of a line.
    pub(crate) fn connection(&self, line: usize) -> &Connection {
        self.entry(line).expect("it is there")
    }

    /// The connection of a line, mutable.
    pub(crate) fn connection_mut(&mut self, line: usize) -> &mut Connection {
        self.core.context(self.lines[line]).expect("it is there").connection
    }

    /// Whether a line's connection exists and is not closing.
    pub(crate) fn is_open(&self, line: usize) -> bool {
        self.core.table.get(self.lines[line]).is_some_and(|entry| !entry.closing)
    }

    /// The index of a line's connection in the reactor.
    #[cfg(test)]
    pub(crate) fn index(&self, line: usize) -> u32 {
        self.lines[line]
    }

    /// Writes to a namespace directly, without a command.
    pub(crate) fn store(&self, namespace: usize, offset: u64, bytes: &[u8]) {
        if let Some(memory) = self.core.executor.namespace(namespace).backend.memory() {
            memory.write(offset, bytes);
        }
    }

    /// Removes namespace 2, and, if `blocks` is not 0, adds another one of this size with the same id: as a server does
    /// it, but with one reactor.
    pub(crate) fn replace_namespace(&mut self, blocks: u64) {
        let registry = Arc::clone(&self.core.executor.registry);
        let mut named: Vec<_> = registry.served().into_iter().map(|(_, of)| of).collect();
        named.retain(|namespace| namespace.nsid == 1);
        let number = registry.number(NQN);
        let served = |named: &[Arc<Namespace>]| -> Arc<[Served]> {
            named.iter().map(|namespace| (number, Arc::clone(namespace))).collect()
        };
        let done = || std::sync::mpsc::channel().0;
        completions::message(&mut self.core, Message::Serve(served(&named), done()));
        registry.retain(&served(&named));
        if blocks > 0 {
            let source =
                NamespaceSource::Memory { size_bytes: blocks * 4096, latency_us: 0, iops: 0 };
            let config = NamespaceConfig::new(source, 4096);
            let namespace = Namespace::open(2, &config, NQN).expect("a small mapping");
            named.push(Arc::new(namespace.renewed(NQN)));
            completions::message(&mut self.core, Message::Serve(served(&named), done()));
        }
        let named: Vec<_> = named.into_iter().map(|of| (NQN.to_owned(), of)).collect();
        registry.replace(&named);
        completions::message(&mut self.core, Message::NamespacesChanged);
        self.pump();
    }

    /// Bytes arrive on a connection. Their commands begin; operations wait for [`work`](Self::work).
    pub(crate) fn feed(&mut self, line: usize, bytes: &[u8]) {
        if self.is_open(line) {
            let index = self.lines[line];
            self.core.io.wire(index).inbox.extend_from_slice(bytes);
            self.pump();
        }
    }

    /// The same, with the process stopped for `stopped_ns` between the receipt and the processing.
    #[cfg(test)]
    pub(crate) fn feed_across_stop(&mut self, line: usize, bytes: &[u8], stopped_ns: u64) {
        let index = self.lines[line];
        self.core.io.wire(index).inbox.extend_from_slice(bytes);
        turn::begin(&mut self.core);
        self.deliver();
        self.core.io.now_ns += stopped_ns;
        serve::take_input(&mut self.core, index);
        turn::end(&mut self.core);
        self.pump();
    }

    /// Delivers bytes and messages, without performing operations.
    fn pump(&mut self) {
        loop {
            turn::begin(&mut self.core);
            let mut is_idle = !self.deliver();
            while !self.core.io.holds_messages
                && let Some(message) = self.core.io.messages.pop_front()
            {
                completions::message(&mut self.core, message);
                is_idle = false;
                let fenced = std::mem::take(&mut *self.core.io.fenced.lock().expect("no panic"));
                let messages = fenced.into_iter().map(Message::Fenced);
                self.core.io.messages.extend(messages);
            }
            for index in 0..self.core.io.wires.len() as u32 {
                serve::take_input(&mut self.core, index);
            }
            turn::end(&mut self.core);
            self.check();
            let io = &self.core.io;
            let is_told = io.holds_messages || io.messages.is_empty();
            if is_idle && is_told && !self.core.has_dirty() {
                return;
            }
        }
    }

    /// Gives received bytes to connections that wait for them; returns whether there were any.
    fn deliver(&mut self) -> bool {
        let mut has_delivered = false;
        for index in 0..self.core.io.wires.len() as u32 {
            let wire = self.core.io.wire(index);
            if wire.is_closed || wire.inbox.is_empty() && wire.shut.is_none() {
                continue;
            }
            let Some((mut buffer, filled)) = wire.rx.take() else { continue };
            let inbox =
                if wire.shut.is_some() { Vec::new() } else { std::mem::take(&mut wire.inbox) };
            let (now, later) = inbox.split_at(inbox.len().min(buffer.len() - filled));
            buffer[filled..filled + now.len()].copy_from_slice(now);
            wire.inbox = later.to_vec();
            completions::received(&mut self.core, index, buffer, now.len() as i32);
            has_delivered = true;
        }
        has_delivered
    }

    fn check(&self) {
        for line in 0..self.lines.len() {
            let tx_bytes = self.entry(line).map_or(0, |connection| connection.port.unsent_bytes());
            assert!(tx_bytes < TX_MAX_BYTES, "{tx_bytes} bytes wait to be sent");
        }
    }

    /// Closes a connection as a reactor does.
    pub(crate) fn close(&mut self, line: usize) {
        if self.is_open(line) {
            closing::close(&mut self.core, self.lines[line], "the test closes it");
            self.pump();
        }
    }

    /// The same for a connection that an operator has closed: its host waits for answers.
    #[cfg(test)]
    pub(crate) fn close_for_operator(&mut self, line: usize) {
        closing::end_soon(&mut self.core, self.lines[line], "an operator closes it", false);
        self.work();
    }

    /// Performs operations and compilations until there are none.
    pub(crate) fn work(&mut self) {
        loop {
            turn::begin(&mut self.core);
            serve::work(&mut self.core);
            turn::end(&mut self.core);
            let loads = std::mem::take(&mut self.core.io.loads);
            let authentications = std::mem::take(&mut self.core.io.authentications);
            let is_idle = loads.is_empty() && authentications.is_empty() && !self.core.has_work();
            for work in authentications {
                let authenticated = Message::Authenticated(Box::new(work.run()));
                completions::message(&mut self.core, authenticated);
            }
            for load in loads {
                let outcome = load.run();
                let loaded = Message::Loaded(Box::new(load.ended(outcome)));
                completions::message(&mut self.core, loaded);
            }
            self.pump();
            if is_idle && !self.core.has_work() {
                let granted = self.core.executor.admission.granted();
                assert_eq!(granted, 0, "an arena is kept for nothing");
                return;
            }
        }
    }

    /// Performs one operation; false if there is none.
    #[cfg(test)]
    pub(crate) fn step(&mut self) -> bool {
        turn::begin(&mut self.core);
        self.deliver();
        let has_stepped = serve::step(&mut self.core);
        self.core.executor.schedule.give_back();
        turn::end(&mut self.core);
        has_stepped
    }

    /// A turn like a reactor's: data being sent is taken, these bytes arrive, and all resulting work is done.
    #[cfg(test)]
    pub(crate) fn turn(&mut self, line: usize, bytes: &[u8]) {
        let index = self.lines[line];
        turn::begin(&mut self.core);
        let wire = self.core.io.wire(index);
        wire.inbox.extend_from_slice(bytes);
        if let Some(sent) = wire.tx.take() {
            let length = sent.len() as i32;
            completions::sent(&mut self.core, index, sent, length);
        }
        self.deliver();
        serve::work(&mut self.core);
        turn::end(&mut self.core);
        while self.core.has_work() {
            turn::begin(&mut self.core);
            serve::work(&mut self.core);
            turn::end(&mut self.core);
        }
    }

    /// These bytes arrive and are not taken yet.
    #[cfg(test)]
    pub(crate) fn arrives(&mut self, line: usize, bytes: &[u8]) {
        let index = self.lines[line];
        self.core.io.wire(index).inbox.extend_from_slice(bytes);
    }

    /// The host closes its end of a connection.
    #[cfg(test)]
    pub(crate) fn hang_up(&mut self, line: usize) {
        let index = self.lines[line];
        self.core.io.wire(index).has_hung_up = true;
    }

    /// How many messages to the reactor have not been taken.
    #[cfg(test)]
    pub(crate) fn messages(&self) -> usize {
        self.core.io.messages.len()
    }

    /// One turn that takes no arrived bytes.
    #[cfg(test)]
    pub(crate) fn turn_without_input(&mut self) {
        turn::begin(&mut self.core);
        serve::work(&mut self.core);
        turn::end(&mut self.core);
    }

    /// The bytes that a connection is sending.
    #[cfg(test)]
    pub(crate) fn being_sent(&self, line: usize) -> Vec<u8> {
        let wire = &self.core.io.wires[self.lines[line] as usize];
        wire.tx.as_ref().map_or_else(Vec::new, |sent| sent.to_bytes())
    }

    /// The works that a connection's card has not ended.
    #[cfg(test)]
    pub(crate) fn posted(&mut self, line: usize) -> Option<&mut VecDeque<Work>> {
        let index = self.lines[line];
        Some(&mut self.core.io.wires.get_mut(index as usize)?.posted)
    }

    /// Whether the connection's card is to end all its works.
    #[cfg(test)]
    pub(crate) fn is_cut(&self, line: usize) -> bool {
        let wire = self.core.io.wires.get(self.lines[line] as usize);
        wire.is_some_and(|wire| wire.shut == Some(Shut::Both))
    }

    /// An event of a card.
    #[cfg(test)]
    pub(crate) fn happens(&mut self, line: usize, event: Event) {
        turn::begin(&mut self.core);
        completions::happened(&mut self.core, self.lines[line], event);
        turn::end(&mut self.core);
        self.pump();
    }

    /// Takes the bytes that a connection sends.
    pub(crate) fn output(&mut self, line: usize) -> Vec<u8> {
        let index = self.lines[line];
        if index == u32::MAX {
            return Vec::new();
        }
        let mut bytes = Vec::new();
        while let Some(sent) = self.core.io.wire(index).tx.take() {
            bytes.extend(sent.to_bytes());
            let length = sent.len() as i32;
            turn::begin(&mut self.core);
            completions::sent(&mut self.core, index, sent, length);
            self.pump();
        }
        bytes
    }

    /// Closes all connections and checks that no state is left.
    pub(crate) fn finish(&mut self) {
        for line in 0..self.lines.len() {
            self.close(line);
        }
        self.work();
        for line in 0..self.lines.len() {
            self.output(line);
            assert!(self.entry(line).is_none(), "a connection is left");
        }
        assert_eq!(self.core.executor.arenas.engine.running(), 0, "a chain is lost");
        // Lets the reactor do its periodic checks.
        self.core.io.now_ns = self.core.next_ns();
        self.pump();
        let subsystem = self.core.executor.registry.subsystem(NQN).expect("it is served");
        subsystem.kept_functions().into_iter().for_each(|id| subsystem.drop_function(id));
        assert!(
            !self.core.executor.namespaces.has_leaving(),
            "a removed namespace is kept without commands"
        );
        let hosts = &self.core.executor.registry.hosts;
        let (used, own) = (hosts.memory.used_bytes(), hosts.own.used_bytes());
        assert_eq!(used, own, "memory is charged to a host that is gone");
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

/// Connect for queue `qid` with `sqsize` + 1 entries; queue 0 makes a controller, other queues join it.
pub(crate) fn connect_command(qid: u16, sqsize: u16, kato_ms: u32) -> (Sqe, Vec<u8>) {
    let command = FabricsCommand::Connect { recfmt: 0, qid, sqsize, cattr: 0, kato_ms };
    let data = ConnectData {
        hostid: [3; 16],
        cntlid: if qid == 0 { u16::MAX } else { 1 },
        subnqn: NQN.to_owned(),
        hostnqn: PEER_NQN.to_owned(),
    };
    (command.to_sqe(), data.to_bytes().to_vec())
}

/// Property Set that enables the controller.
pub(crate) fn enable_command() -> Sqe {
    let value = u32::from(ControllerConfig::ENABLED).into();
    FabricsCommand::PropertySet { offset: offset::CC, size8: false, value }.to_sqe()
}

/// Id of the function that structured fuzzing input can call: it follows the pointer at the start of each block, and
/// ends at a null pointer with 8 bytes of scratch as its answer.
pub(crate) const FOLLOW: u32 = 7;

/// The function's instructions.
pub(crate) fn follow_code() -> Vec<u8> {
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

/// eBPF code of instructions, each (opcode, registers, offset, immediate) as in RFC 9669 §3.
pub(crate) fn assemble(code: &[(u8, u8, i16, i32)]) -> Vec<u8> {
    let slot = |&(opcode, registers, offset, immediate): &(u8, u8, i16, i32)| {
        let ([a, b], [c, d, e, f]) = (offset.to_le_bytes(), immediate.to_le_bytes());
        [opcode, registers, a, b, c, d, e, f]
    };
    code.iter().flat_map(slot).collect()
}

pub(crate) fn follow() -> Arc<Function> {
    static FUNCTION: OnceLock<Arc<Function>> = OnceLock::new();
    Arc::clone(FUNCTION.get_or_init(|| function(FOLLOW, "follow", &follow_code())))
}

/// A function of this eBPF code.
pub(crate) fn function(id: u32, name: &str, code: &[u8]) -> Arc<Function> {
    let program = Program::parse(code).expect("a valid program");
    Arc::new(Function {
        id,
        name: name.to_owned(),
        instructions: program.instructions().len() as u32,
        native: NativeFunction::compile(&program).expect("it can be translated"),
        trace: Default::default(),
        peers: None,
        maps: Default::default(),
        memory: None,
    })
}
