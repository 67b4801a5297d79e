//! The target's process without threads and a kernel: the real reactors ([`crate::reactor::state`]) over simulated
//! sockets, disks and clocks.

use super::Plant;
use super::network::{MILLISECOND, Time};
use super::random::Random;
use crate::authenticator::Authentication;
use crate::config::{NamespaceConfig, NamespaceSource};
use crate::connection::Endpoints;
use crate::executor::Executor;
use crate::hosts::{HostLimits, Hosts};
use crate::limits::LAST_CONTROLLER_ID;
use crate::listener::Listener;
use crate::loader::Load;
use crate::namespace::Namespace;
use crate::operation::{CommandId, Fenced, FileOperation};
use crate::reactor::state::Core;
use crate::reactor::table::Room;
use crate::reactor::{Fence, Io, Message, Shut, completions, serve, turn, upkeep};
use crate::registry::Registry;
use crate::transport::Port;
use crate::transport::tcp::TcpPort;
use bpfof_chain::{DeviceRead, Function, Limits};
use bpfof_device::fabric::Work;
use bpfof_device::{IoBuffer, Outgoing};
use bpfof_function::cost::UNIT_PS;
use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// The subsystem.
pub(super) const NQN: &str = "nqn.2026-01.io.bpf-of:simulation";
/// Chains of one core: fewer than its hosts have queue entries, so that chains must wait.
const CHAINS: usize = 6;
/// Maximum unsent bytes of a connection: everything that one queue of a host can request.
const TX_MAX_BYTES: usize = 1 << 20;
/// Maximum connections: those of all hosts, and some dead ones that have not been noticed.
const CONNECTIONS_MAX: usize = 96;
/// Smaller than a real reactor's, so that intruders reach the limits.
const ROOM: Room =
    Room { connections: CONNECTIONS_MAX, pending: 40, pending_of_address: 10, closing: 16 };

/// How long a planted bug delays completions.
const HELD_FOR: Time = 20 * MILLISECOND;

const EAGAIN: i32 = 11;
const EPIPE: i32 = 32;

/// The storage of a namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) block_bytes: u32,
    pub(super) blocks: u64,
    /// Latency if it is in the target's memory; otherwise it is on a simulated disk.
    pub(super) memory_latency_us: Option<u64>,
}

/// The speed of a process, and its planted bug.
#[derive(Clone, Copy, Debug)]
pub(super) struct Build {
    pub(super) cores: usize,
    /// Factor by which everything takes longer than on the machine where costs were measured.
    pub(super) slowness: u64,
    /// Size of a socket's send buffer in bytes.
    pub(super) send_buffer_bytes: usize,
    /// Memory of all hosts in bytes.
    pub(super) memory_bytes: usize,
    pub(super) plant: Option<Plant>,
    pub(super) seed: u64,
}

/// A request of the machine to the world.
pub(super) enum Effect {
    /// Send these bytes.
    Send {
        link: usize,
        bytes: Vec<u8>,
    },
    /// The kernel has taken all that a connection was sending; [`Machine::sent`] is due.
    Taken {
        core: usize,
        link: usize,
    },
    /// The socket is closed; bytes sent earlier still arrive.
    Close {
        link: usize,
    },
    File {
        core: usize,
        operation: FileOperation,
    },
    Load {
        core: usize,
        load: Load,
    },
    /// A message to a core.
    Message {
        core: usize,
        message: Message,
    },
}

/// A completion that the core has not been given yet.
enum Completion {
    Accepted { link: usize },
    Received { link: usize },
    Sent { index: u32, outgoing: Box<Outgoing>, result: i32 },
    File { command: CommandId, result: i32, buffer: Option<IoBuffer> },
    ChainRead { read: DeviceRead, data: Option<Vec<u8>> },
    Message(Message),
}

/// The target's end of a connection.
#[derive(Default)]
struct Socket {
    /// Its index in the core's table, once it is there.
    index: Option<u32>,
    address: u8,
    /// Bytes that have arrived and have not been received.
    inbox: Vec<u8>,
    /// No more bytes arrive.
    has_ended: bool,
    /// A pending receive.
    receiving: Option<(Vec<u8>, usize)>,
    /// A pending send, and its bytes that are not in transit yet.
    sending: Option<(Box<Outgoing>, Vec<u8>)>,
    /// Bytes in transit that the host has not received.
    unacked: usize,
    taken_bytes: u64,
    no_receive: bool,
    no_send: bool,
    /// A send submitted in this turn.
    submitted: Option<Box<Outgoing>>,
}

/// The simulated environment of one core.
struct SimulatedIo {
    core: usize,
    build: Build,
    turn_begun: Time,
    /// Work of this turn, in picoseconds.
    worked_ps: u64,
    sockets: BTreeMap<usize, Socket>,
    /// The link of each connection.
    links: Vec<Option<usize>>,
    completions: VecDeque<Completion>,
    /// Completions that a planted bug delays until a time.
    held: Vec<(Time, Completion)>,
    effects: Vec<Effect>,
    /// Commands for which all cores have passed a turn.
    fenced: Arc<Mutex<Vec<Vec<Fenced>>>>,
    random: Random,
}

impl SimulatedIo {
    fn ended(&self) -> Time {
        self.turn_begun + self.worked_ps / 1000
    }

    fn link(&self, connection: u32) -> usize {
        self.links[connection as usize].expect("its socket is open")
    }

    fn socket(&mut self, connection: u32) -> &mut Socket {
        let link = self.link(connection);
        self.sockets.get_mut(&link).expect("it is open")
    }

    /// Lets the kernel process what was submitted in a turn.
    fn submit(&mut self) {
        let submitted: Vec<usize> = self
            .sockets
            .iter()
            .filter(|(_, socket)| socket.submitted.is_some())
            .map(|(link, _)| *link)
            .collect();
        for link in submitted {
            self.submit_send(link);
        }
    }

    fn submit_send(&mut self, link: usize) {
        let Some(socket) = self.sockets.get_mut(&link) else { return };
        let (Some(index), Some(outgoing)) = (socket.index, socket.submitted.take()) else { return };
        let mut bytes = outgoing.to_bytes();
        if socket.no_send || socket.has_ended && self.random.one_in(2) {
            let ended = Completion::Sent { index, outgoing, result: -EPIPE };
            return self.completions.push_back(ended);
        }
        if outgoing.is_own() {
            socket.sending = Some((outgoing, bytes));
            return self.push(link);
        }
        // Lent memory is taken at once, as far as there is room.
        let mut room = bytes.len().min(self.build.send_buffer_bytes.saturating_sub(socket.unacked));
        if self.random.one_in(4) {
            room = self.random.index(room + 1);
        }
        let all = bytes.len();
        bytes.truncate(room);
        socket.unacked += room;
        let result = match room {
            0 => -EAGAIN,
            _ if self.build.plant == Some(Plant::ForgetsRest) => all as i32,
            room => room as i32,
        };
        if room > 0 {
            self.effects.push(Effect::Send { link, bytes });
        }
        self.completions.push_back(Completion::Sent { index, outgoing, result });
    }

    /// Continues a send, as far as there is room.
    fn push(&mut self, link: usize) {
        let Some(socket) = self.sockets.get_mut(&link) else { return };
        let Some((_, bytes)) = &mut socket.sending else { return };
        let room = self.build.send_buffer_bytes.saturating_sub(socket.unacked).min(bytes.len());
        let rest = bytes.split_off(room);
        let now = std::mem::replace(bytes, rest);
        let is_all = bytes.is_empty();
        socket.unacked += now.len();
        if !now.is_empty() {
            self.effects.push(Effect::Send { link, bytes: now });
        }
        if is_all {
            self.effects.push(Effect::Taken { core: self.core, link });
        }
    }

    /// Completes a pending receive if bytes have arrived, or never will.
    fn notify(&mut self, link: usize) {
        let Some(socket) = self.sockets.get(&link) else { return };
        let is_ready = socket.no_receive || socket.has_ended || !socket.inbox.is_empty();
        if is_ready && socket.receiving.is_some() {
            self.completions.push_back(Completion::Received { link });
        }
    }
}

impl Io for SimulatedIo {
    fn now_ns(&mut self) -> u64 {
        match self.build.plant {
            Some(Plant::ClockStandsStill) => self.turn_begun,
            _ => self.ended(),
        }
    }

    fn spend(&mut self, units: u64) {
        self.worked_ps += units * UNIT_PS * self.build.slowness;
    }

    fn has_news(&mut self) -> bool {
        !self.completions.is_empty()
    }

    fn receive(&mut self, connection: u32, buffer: Vec<u8>, filled: usize) {
        assert!(filled < buffer.len(), "a receive without room");
        let link = self.link(connection);
        let before = self.socket(connection).receiving.replace((buffer, filled));
        assert!(before.is_none(), "it receives already");
        self.notify(link);
    }

    fn send(&mut self, connection: u32, outgoing: Box<Outgoing>, _in_parts: bool) {
        let socket = self.socket(connection);
        assert!(socket.sending.is_none() && socket.submitted.is_none(), "it sends already");
        socket.submitted = Some(outgoing);
    }

    fn post(&mut self, _connection: u32, works: Vec<Work>) {
        unreachable!("its ports have bytes: {works:?}")
    }

    fn file(&mut self, _executor: &mut Executor, operation: FileOperation) {
        self.effects.push(Effect::File { core: self.core, operation });
    }

    fn shut(&mut self, connection: u32, half: Shut) {
        let link = self.link(connection);
        let lingers = self.build.plant == Some(Plant::LingersForEver);
        let socket = self.socket(connection);
        socket.no_receive = true;
        if half == Shut::Both && !lingers {
            socket.no_send = true;
            if let Some((outgoing, _)) = socket.sending.take_if(|(_, rest)| !rest.is_empty()) {
                let sent = Completion::Sent { index: connection, outgoing, result: -EPIPE };
                self.completions.push_back(sent);
            }
        }
        self.notify(link);
    }

    fn close(&mut self, connection: u32) {
        let link = self.links[connection as usize].take().expect("its socket is open");
        let socket = self.sockets.remove(&link).expect("it is open");
        assert!(socket.receiving.is_none(), "it is closed while the kernel receives");
        let sends = socket.sending.is_some() || socket.submitted.is_some();
        assert!(!sends, "it is closed while the kernel sends");
        self.effects.push(Effect::Close { link });
    }

    fn has_hung_up(&mut self, connection: u32) -> bool {
        self.socket(connection).has_ended
    }

    fn taken_bytes(&mut self, connection: u32) -> u64 {
        self.socket(connection).taken_bytes
    }

    fn load(&mut self, load: Load) {
        self.effects.push(Effect::Load { core: self.core, load });
    }

    fn authenticate(&mut self, work: Authentication) {
        unreachable!("no host has a secret: {:?}", work.command)
    }

    fn cancel(&mut self, _serial: u64) {
        // Compilations continue, but their results are dropped.
    }

    fn fence(&mut self, fenced: Vec<Fenced>) {
        let all = Arc::clone(&self.fenced);
        let fence = Fence::new(move || all.lock().expect("no panic while held").push(fenced));
        self.tell_all(&|| Message::Fence(Arc::clone(&fence)));
    }

    fn tell_all(&mut self, message: &dyn Fn() -> Message) {
        if self.build.plant == Some(Plant::LosesMessages) && self.random.one_in(2) {
            return;
        }
        for core in 0..self.build.cores {
            self.effects.push(Effect::Message { core, message: message() });
        }
    }
}

/// The target's process.
pub(super) struct Machine {
    cores: Vec<Core<SimulatedIo>>,
    registry: Arc<Registry>,
    functions: Vec<Arc<Function>>,
    /// Associations that have been given the functions.
    furnished: Vec<u16>,
    build: Build,
    /// The effects of the last turn.
    pub(super) effects: Vec<Effect>,
}

/// When a core must take its next turn, and when its last one ended.
pub(super) struct Turned {
    pub(super) due: Time,
    pub(super) ended: Time,
}

thread_local! {
    /// The files of namespaces, which a target opens but which are never read or written.
    static FILES: TempDir = tempfile::tempdir().expect("a directory for temporary files");
}

fn open(nsid: u32, shape: &Shape) -> (String, Namespace) {
    let size_bytes = shape.blocks * u64::from(shape.block_bytes);
    let source = match shape.memory_latency_us {
        Some(latency_us) => NamespaceSource::Memory { size_bytes, latency_us, iops: 0 },
        None => FILES.with(|directory| NamespaceSource::File {
            path: directory.path().join(nsid.to_string()),
            size_bytes: Some(size_bytes),
        }),
    };
    let config = NamespaceConfig::new(source, shape.block_bytes);
    let namespace = Namespace::open(nsid, &config, NQN).expect("a small file or mapping");
    assert!(namespace.deallocates(), "temporary files must be able to have holes");
    (NQN.to_owned(), namespace)
}

impl Machine {
    /// Starts a process. Every core accepts connections.
    pub(super) fn start(build: Build, shapes: &[Shape], functions: Vec<Arc<Function>>) -> Machine {
        let namespaces = (1..).zip(shapes).map(|(nsid, shape)| open(nsid, shape)).collect();
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 4420));
        let listeners = vec![Arc::new(Listener::new(1, at, &at.into()))];
        let limits = Limits { hops: 64, chains: CHAINS, ..Limits::default() };
        let hosts = Hosts::new(HostLimits::default(), build.memory_bytes);
        let registry = Arc::new(Registry::new(
            limits,
            hosts,
            (1..=LAST_CONTROLLER_ID, 0),
            namespaces,
            listeners,
        ));
        let mut random = Random::new(build.seed);
        let core = |index: usize| {
            let io = SimulatedIo {
                core: index,
                build,
                turn_begun: 0,
                worked_ps: 0,
                sockets: BTreeMap::new(),
                links: Vec::new(),
                completions: VecDeque::new(),
                held: Vec::new(),
                effects: Vec::new(),
                fenced: Arc::default(),
                random: Random::new(random.next()),
            };
            let mut core = Core::new(io, Executor::new(Arc::clone(&registry)), index);
            core.table.room = ROOM;
            // Few, so that operations wait for each other.
            core.executor.limit_file_reads([2, 8, 64][build.seed as usize % 3]);
            core
        };
        let cores = (0..build.cores).map(core).collect();
        let (furnished, effects) = (Vec::new(), Vec::new());
        Machine { cores, registry, functions, furnished, build, effects }
    }

    /// The links of all connections.
    pub(super) fn links(&self) -> Vec<usize> {
        self.cores.iter().flat_map(|core| core.io.sockets.keys().copied()).collect()
    }

    /// Establishes a connection from an address.
    pub(super) fn accept(&mut self, core: usize, link: usize, address: u8) {
        let io = &mut self.cores[core].io;
        io.sockets.insert(link, Socket { address, ..Socket::default() });
        io.completions.push_back(Completion::Accepted { link });
    }

    fn socket(&mut self, core: usize, link: usize) -> Option<&mut Socket> {
        self.cores[core].io.sockets.get_mut(&link)
    }

    /// How many bytes a socket can take.
    pub(super) fn room(&mut self, core: usize, link: usize) -> usize {
        const RECEIVE_BUFFER_BYTES: usize = 64 << 10;
        let waiting = self.socket(core, link).map_or(0, |socket| socket.inbox.len());
        RECEIVE_BUFFER_BYTES.saturating_sub(waiting)
    }

    /// Delivers bytes, perhaps the last ones.
    pub(super) fn arrived(&mut self, core: usize, link: usize, bytes: &[u8], ends: bool) {
        let Some(socket) = self.socket(core, link) else { return };
        socket.inbox.extend_from_slice(bytes);
        socket.has_ended |= ends;
        self.cores[core].io.notify(link);
    }

    /// The host has received bytes.
    pub(super) fn acked(&mut self, core: usize, link: usize, bytes: usize) {
        let Some(socket) = self.socket(core, link) else { return };
        socket.unacked = socket.unacked.saturating_sub(bytes);
        socket.taken_bytes += bytes as u64;
        let is_stuck = socket.sending.as_ref().is_some_and(|(_, rest)| !rest.is_empty());
        if is_stuck {
            self.cores[core].io.push(link);
            self.effects.append(&mut self.cores[core].io.effects);
        }
    }

    /// The kernel has taken everything that it was given to send.
    pub(super) fn sent(&mut self, core: usize, link: usize) {
        let Some(socket) = self.socket(core, link) else { return };
        let (Some(index), Some((outgoing, _))) = (socket.index, socket.sending.take()) else {
            return;
        };
        let result = outgoing.len() as i32;
        let sent = Completion::Sent { index, outgoing, result };
        self.cores[core].io.completions.push_back(sent);
    }

    /// A message to a core.
    pub(super) fn message(&mut self, core: usize, message: Message) {
        self.cores[core].io.completions.push_back(Completion::Message(message));
    }

    /// Completes the load of a function; none of the simulation's objects is valid.
    pub(super) fn loaded(&mut self, core: usize, load: Load) {
        let outcome = load.run();
        self.message(core, Message::Loaded(Box::new(load.ended(outcome))));
    }

    /// Completes a command's operation on a disk.
    pub(super) fn file_done(
        &mut self,
        core: usize,
        command: CommandId,
        result: i32,
        buffer: Option<IoBuffer>,
    ) {
        let done = Completion::File { command, result, buffer };
        self.cores[core].io.completions.push_back(done);
    }

    /// Completes a chain's read from a disk, with its data if it succeeded.
    pub(super) fn chain_read(&mut self, core: usize, read: DeviceRead, data: Option<Vec<u8>>) {
        self.cores[core].io.completions.push_back(Completion::ChainRead { read, data });
    }

    /// Takes one turn of a core.
    pub(super) fn turn(&mut self, core: usize, now: Time) -> Turned {
        let io = &mut self.cores[core].io;
        (io.turn_begun, io.worked_ps) = (now, 0);
        turn::begin(&mut self.cores[core]);
        self.take_completions(core);
        if self.build.plant == Some(Plant::ForgetsWaiters) {
            self.forget_waiters(core);
        }
        let core = &mut self.cores[core];
        serve::work(core);
        turn::end(core);
        core.io.submit();
        if self.build.cores > 1 && self.build.plant != Some(Plant::LentIsSentLate) {
            copy_rests(core);
        }
        let ended = core.io.ended();
        if !core.executor.schedule.has_work() {
            let granted = core.executor.admission.granted();
            assert_eq!(granted, 0, "an arena is kept for nothing");
        }
        let is_busy = core.has_work() || !core.io.completions.is_empty();
        let due = if is_busy { ended } else { core.next_ns() };
        let due = core.io.held.iter().map(|(until, _)| *until).fold(due, Time::min);
        self.effects.append(&mut core.io.effects);
        for connection in (0..core.io.links.len() as u32).filter_map(|index| core.connection(index))
        {
            let waiting = connection.port.unsent_bytes();
            assert!(waiting <= TX_MAX_BYTES, "{waiting} bytes wait to be sent");
        }
        for (core, of) in self.cores.iter().enumerate() {
            for fenced in of.io.fenced.lock().expect("no panic while held").drain(..) {
                self.effects.push(Effect::Message { core, message: Message::Fenced(fenced) });
            }
        }
        self.furnish();
        assert!(self.links().len() <= 2 * CONNECTIONS_MAX, "connections are kept for ever");
        Turned { due: due.max(now + 1), ended }
    }

    fn take_completions(&mut self, core: usize) {
        if self.build.plant == Some(Plant::LentIsSentLate) {
            self.hold_lent(core);
        }
        let core = &mut self.cores[core];
        let mut taken = 0;
        while let Some(completion) = core.io.completions.pop_front() {
            complete(core, completion);
            taken += 1;
            if !core.takes_more(taken) {
                break;
            }
        }
    }

    /// A planted bug: commands are processed before the completion of a send of lent memory.
    fn hold_lent(&mut self, core: usize) {
        let io = &mut self.cores[core].io;
        let now = io.turn_begun;
        let (due, held): (Vec<_>, Vec<_>) =
            std::mem::take(&mut io.held).into_iter().partition(|(until, _)| *until <= now);
        io.held = held;
        for completion in std::mem::take(&mut io.completions) {
            let is_lent = |sent: &Outgoing| !sent.is_own();
            match &completion {
                Completion::Sent { outgoing, .. } if is_lent(outgoing) => {
                    io.held.push((now + HELD_FOR, completion));
                }
                _ => io.completions.push_back(completion),
            }
        }
        io.completions.extend(due.into_iter().map(|(_, completion)| completion));
    }

    /// A planted bug: forgets connections that wait for an arena.
    fn forget_waiters(&mut self, core: usize) {
        let core = &mut self.cores[core];
        for index in 0..core.io.links.len() as u32 {
            if core.connection(index).is_some() {
                core.executor.admission.stop_waiting(index);
            }
        }
    }

    /// Installs the chains' functions in new associations.
    fn furnish(&mut self) {
        for core in &self.cores {
            let connections = (0..core.io.links.len() as u32).filter_map(|at| core.connection(at));
            for connection in connections {
                let Some(controller) = connection.controller() else { continue };
                if !connection.phase.is_admin() || self.furnished.contains(&controller.id) {
                    continue;
                }
                self.furnished.push(controller.id);
                for function in &self.functions {
                    controller.update(|tables| tables.with_function(Arc::clone(function)));
                }
            }
        }
    }

    /// Checks that nothing is left after all hosts are gone.
    pub(super) fn check_empty(&mut self) -> Result<(), String> {
        for core in &mut self.cores {
            let running = core.executor.arenas.engine.running();
            if running != 0 {
                return Err(format!("{running} chains are left when all hosts are gone"));
            }
        }
        for subsystem in self.registry.subsystems() {
            if let Some(id) = (1..64).find(|id| subsystem.controller(*id).is_some()) {
                return Err(format!("controller {id} is left when all hosts are gone"));
            }
        }
        let hosts = &self.registry.hosts;
        let left = hosts.memory.used_bytes() - hosts.own.used_bytes();
        match left {
            0 => Ok(()),
            left => Err(format!("{left} bytes are taken for hosts that are gone")),
        }
    }
}

/// Copies the rest of lent memory that a socket has not taken before another core takes its turn. Otherwise that core
/// could change a partly sent block: concurrent access by reactors may tear a block, which is not what the simulation
/// looks for.
fn copy_rests(core: &mut Core<SimulatedIo>) {
    for completion in std::mem::take(&mut core.io.completions) {
        match &completion {
            Completion::Sent { outgoing, result, .. }
                if !outgoing.is_own() && *result != outgoing.len() as i32 =>
            {
                complete(core, completion);
            }
            _ => core.io.completions.push_back(completion),
        }
    }
    core.io.submit();
}

/// Passes a completion to a core.
fn complete(core: &mut Core<SimulatedIo>, completion: Completion) {
    match completion {
        Completion::Accepted { link } => {
            let Some(socket) = core.io.sockets.get(&link) else { return };
            let last = if core.io.build.plant == Some(Plant::TakesHostsForOne) {
                1
            } else {
                socket.address
            };
            let peer = SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 1));
            let ends = Endpoints { peer, local: peer, discovery_only: false, listener: 0 };
            let Some(index) = upkeep::adopt(core, ends, Port::Tcp(TcpPort::default()), None) else {
                core.io.sockets.remove(&link);
                return core.io.effects.push(Effect::Close { link });
            };
            let links = &mut core.io.links;
            links.resize(links.len().max(index as usize + 1), None);
            links[index as usize] = Some(link);
            core.io.socket(index).index = Some(index);
            upkeep::begin(core, index);
        }
        Completion::Received { link } => received(core, link),
        Completion::Sent { index, outgoing, result } => {
            completions::sent(core, index, outgoing, result)
        }
        Completion::File { command, result, buffer } => {
            completions::file_done(core, command, result, buffer)
        }
        Completion::ChainRead { read, data } => {
            let length = read.length;
            let result = data.as_ref().map_or(-5, |_| length as i32);
            if let Some(data) = data {
                core.executor.arenas.engine.data_mut(&read).copy_from_slice(&data);
            }
            completions::chain_read_done(core, read.chain, length, result);
        }
        Completion::Message(message) => completions::message(core, message),
    }
}

/// Completes a receive.
fn received(core: &mut Core<SimulatedIo>, link: usize) {
    let Some(socket) = core.io.sockets.get_mut(&link) else { return };
    let Some(index) = socket.index else { return };
    // Several notifications may concern the same receive.
    let Some((mut buffer, filled)) = socket.receiving.take() else { return };
    let bytes = if socket.no_receive { &[][..] } else { &socket.inbox };
    if bytes.is_empty() && !socket.has_ended && !socket.no_receive {
        socket.receiving = Some((buffer, filled));
        return;
    }
    let length = bytes.len().min(buffer.len() - filled);
    buffer[filled..filled + length].copy_from_slice(&bytes[..length]);
    if !socket.no_receive {
        socket.inbox.drain(..length);
    }
    completions::received(core, index, buffer, length as i32);
}
