//! The reactor on io_uring: one thread, sockets and files on one ring.
//!
//! It waits before each turn: spinning for a while before it sleeps, unless no completion is expected
//! soon.
#![allow(unsafe_code)]

mod links;
mod token;

use self::links::{Links, Signal};
use super::io::{Asked, Fence, Io, Link, Message, Shut, no_resources};
use super::mailbox::{Comer, Inbox, Mailbox, Waiting};
use super::state::Core;
use super::{closing, completions, serve, turn, upkeep};
use crate::authenticator::{Authentication, Authenticator};
use crate::backend::Backend;
use crate::executor::Executor;
use crate::limits::{ADOPTS_PER_TURN, MESSAGES_PER_TURN, SPARE_BYTES};
use crate::loader::{Load, Loader};
use crate::observe::SLOWEST_BYTES;
use crate::operation::{CommandId, Fenced, FileOperation, drive_result};
use crate::registry::Registry;
use crate::transport::Port;
use crate::transport::message::MessagePort;
use crate::transport::tcp::TcpPort;
use bpfof_chain::{ChainId, DeviceRead};
use bpfof_device::fabric::Work;
use bpfof_device::rdma;
use bpfof_device::{
    Buffer, Completion, NvmeDrive, NvmeRing, Outgoing, Part, Ring, RingError, Volume,
};
use bpfof_function::memory::Charge;
use bpfof_nvme::rdma::ConnectAccept;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Events of one endpoint that are taken before other endpoints get their turn: the queue of a usual host has no more
/// in flight.
const EVENTS_PER_TURN: usize = 256;
/// Submission queue entries of a ring.
const RING_ENTRIES: u32 = 1024;
/// Polls for completions for each clock read: while it waits for a device of a few µs, the time between two polls adds
/// to the latency of each hop.
const LOOKS_PER_CLOCK: u32 = 4;
/// The longest sleep and spin.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Parameters of a new reactor.
pub(crate) struct Setup {
    pub(crate) index: usize,
    pub(crate) registry: Arc<Registry>,
    pub(crate) inbox: Inbox,
    /// Mailboxes of all reactors, in order.
    pub(crate) mailboxes: Arc<Mutex<Vec<Mailbox>>>,
    pub(crate) loader: Loader,
    pub(crate) authenticator: Authenticator,
    /// Start of the reactors' clock: the same for all, because latency models are shared.
    pub(crate) clock: Instant,
    pub(crate) spin: Duration,
    pub(crate) poll: bool,
}

fn command_token(command: CommandId) -> u64 {
    token::COMMAND | u64::from(command.connection) << 16 | u64::from(command.slot)
}

fn chain_token(read: &DeviceRead) -> u64 {
    token::CHAIN | (read.chain.index() as u64) << 32 | u64::from(read.length)
}

/// The rings, and the links of the connections.
struct Uring {
    ring: Ring,
    /// Created for the first operation on a drive.
    drives: Option<DriveRing>,
    /// Operations on drives that could not begin.
    failed: Vec<Completion>,
    links: Links,
    /// Parts of the file operation that is being submitted.
    parts: Vec<Part>,
    setup: Setup,
}

/// The ring for NVMe commands, whose entries are larger. The main ring waits for its event.
struct DriveRing {
    ring: NvmeRing,
    event: OwnedFd,
}

/// One reactor.
pub(crate) struct Reactor {
    core: Core<Uring>,
    /// Whether the last wait was short enough for spinning.
    spin_pays: bool,
    /// Whether new connections may wait to be adopted.
    has_comers: bool,
    /// Buffers for reuse, and the slowest commands.
    _memory: Charge,
}

impl Reactor {
    /// Makes the reactor of the calling thread.
    pub(crate) fn new(setup: Setup) -> Result<Reactor, RingError> {
        let mut ring = Ring::new(RING_ENTRIES)?;
        ring.read_event(setup.inbox.event(), token::WAKE);
        let executor = Executor::new(Arc::clone(&setup.registry));
        let memory = setup.registry.hosts.own.charge_anyway(SPARE_BYTES + SLOWEST_BYTES);
        let index = setup.index;
        let io = Uring {
            ring,
            drives: None,
            failed: Vec::new(),
            links: Links::default(),
            parts: Vec::new(),
            setup,
        };
        let core = Core::new(io, executor, index);
        Ok(Reactor { core, spin_pays: true, has_comers: false, _memory: memory })
    }

    /// Serves until told to stop.
    pub(crate) fn run(&mut self) -> std::io::Result<()> {
        while !self.core.is_finished() {
            self.wait()?;
            turn::begin(&mut self.core);
            self.take_completions()?;
            self.take_comers();
            serve::work(&mut self.core);
            turn::end(&mut self.core);
        }
        Ok(())
    }

    /// Submits, and waits for completions unless there is work.
    fn wait(&mut self) -> std::io::Result<()> {
        let Core { io, .. } = &mut self.core;
        io.submit()?;
        if self.core.has_work() || self.has_comers {
            return Ok(());
        }
        let io = &mut self.core.io;
        if io.has_completions() {
            return io.submit();
        }
        let setup = &io.setup;
        let begun = Instant::now();
        let now_ns = setup.clock.elapsed().as_nanos() as u64;
        let next_ns = self.core.next_ns();
        if next_ns <= now_ns {
            return Ok(());
        }
        self.core.idle.since_ns = Some(now_ns);
        let io = &mut self.core.io;
        let setup = &io.setup;
        let sleep = MAX_WAIT.min(Duration::from_nanos(next_ns - now_ns));
        let (polls, setup_spin) = (setup.poll, setup.spin);
        let spin = match (polls, self.spin_pays) {
            (true, _) => MAX_WAIT,
            (_, true) => setup_spin,
            _ => Duration::ZERO,
        };
        while begun.elapsed() < spin.min(sleep) {
            for _ in 0..LOOKS_PER_CLOCK {
                if io.has_completions() {
                    self.spin_pays = true;
                    return io.submit();
                }
                std::hint::spin_loop();
            }
        }
        match sleep.checked_sub(begun.elapsed()) {
            Some(rest) if !polls => io.ring.submit(Some(rest))?,
            _ => return Ok(()),
        }
        // A sleep that was hardly longer than a spin should have been a spin.
        self.spin_pays = begun.elapsed() <= 2 * setup_spin;
        Ok(())
    }

    /// Takes completions, as many as a turn has time for.
    fn take_completions(&mut self) -> std::io::Result<()> {
        let mut taken = 0;
        let mut over = std::mem::take(&mut self.core.io.links.over).into_iter();
        for index in over.by_ref() {
            self.take_events(index);
            taken += 1;
            if !self.core.takes_more(taken) {
                break;
            }
        }
        self.core.io.links.over.splice(0..0, over);
        while let Some(completion) = self.next_completion()? {
            self.completed(completion);
            taken += 1;
            if !self.core.takes_more(taken) {
                break;
            }
        }
        Ok(())
    }

    fn next_completion(&mut self) -> std::io::Result<Option<Completion>> {
        let completion = self.core.io.completion();
        if completion.is_some() || !self.core.lends() {
            return Ok(completion);
        }
        // Fetches completions for which the completion queue had no room.
        self.core.io.ring.submit(None)?;
        Ok(self.core.io.ring.completion())
    }

    fn completed(&mut self, completion: Completion) {
        let Completion { token, result, buffer } = completion;
        let index = token as u32;
        match (token & token::KIND, buffer) {
            (token::WAKE, _) => self.take_messages(),
            (token::RECV, Some(Buffer::Bytes(bytes))) => {
                completions::received(&mut self.core, index, bytes, result)
            }
            (token::SEND, Some(Buffer::Outgoing(sent))) => {
                completions::sent(&mut self.core, index, sent, result)
            }
            (token::COMMAND, buffer) => {
                let command = CommandId { connection: (token >> 16) as u32, slot: token as u16 };
                let buffer = match buffer {
                    Some(Buffer::Aligned(buffer)) => Some(buffer),
                    _ => None,
                };
                completions::file_done(&mut self.core, command, result, buffer);
            }
            (token::CHAIN, _) => {
                let chain = ChainId::from_index((token >> 32 & 0xff_ffff) as usize);
                completions::chain_read_done(&mut self.core, chain, index, result);
            }
            (token::DRIVES, _) => self.core.io.arm_drives(),
            (token::FABRIC, _) => self.happened(index, token >> 32 & 0xff_ffff, Signal::Ends),
            (token::RDMA_CONNECTION, _) => {
                self.happened(index, token >> 32 & 0xff_ffff, Signal::Connection);
            }
            _ => unreachable!("every token is made by this module"),
        }
    }

    /// Handles a signal of a fabric's endpoint.
    fn happened(&mut self, index: u32, number: u64, signal: Signal) {
        if self.core.io.links.number(index) != Some(number) {
            return;
        }
        self.core.io.links.look(index, signal);
        self.take_events(index);
        let Uring { ring, links, .. } = &mut self.core.io;
        links.arm(ring, index, signal);
    }

    /// Takes events of an endpoint, while it exists, and as many as a turn has time for.
    fn take_events(&mut self, index: u32) {
        let number = self.core.io.links.number(index);
        for taken in 1..=EVENTS_PER_TURN {
            if self.core.io.links.number(index) != number {
                return;
            }
            let Some(event) = self.core.io.links.poll(index) else { return };
            completions::happened(&mut self.core, index, event);
            if !self.core.takes_more(taken) {
                break;
            }
        }
        self.core.io.links.over.push(index);
    }

    /// Takes a few messages; wakes the reactor itself if more may be left.
    fn take_messages(&mut self) {
        let Uring { ring, setup, .. } = &mut self.core.io;
        ring.read_event(setup.inbox.event(), token::WAKE);
        self.has_comers = true;
        let begun_ns = self.core.io.now_ns();
        for _ in 0..MESSAGES_PER_TURN {
            let Some(message) = self.core.io.setup.inbox.message() else { return };
            completions::message(&mut self.core, message);
            if self.core.is_turn_over() || self.core.keeps_waiting_since(begun_ns) {
                break;
            }
        }
        self.core.io.setup.inbox.wake();
    }

    /// Adopts some of the new connections. Before each, one of those that are to be closed is closed, so that these do
    /// not wait for ever.
    fn take_comers(&mut self) {
        for _ in 0..ADOPTS_PER_TURN {
            if !self.has_comers || !self.core.has_time_for_turnover() {
                return;
            }
            closing::close_next(&mut self.core);
            let begun = self.core.begin_turnover();
            match self.core.io.setup.inbox.comer() {
                Waiting::One(comer) => self.adopt(*comer),
                Waiting::None => self.has_comers = false,
                Waiting::Unknown => return,
            }
            self.core.end_turnover(begun);
        }
    }

    /// Adopts a connection.
    fn adopt(&mut self, comer: Comer) {
        let Comer { mut link, ends, slot } = comer;
        let port = match &mut link {
            Link::Socket(_, secure) => Port::Tcp(match secure.take() {
                Some(secure) => TcpPort::secured(*secure),
                None => TcpPort::default(),
            }),
            Link::Fabric(_) | Link::Rdma(_) => Port::Message(MessagePort::default()),
            Link::Asked(asked) => Port::Message(MessagePort::rdma(&asked.shape, asked.qid)),
        };
        let core = &mut self.core;
        let Some(index) = upkeep::adopt(core, ends, port, Some(slot)) else {
            return link.refuse();
        };
        // Memory is registered only after it has been charged.
        let link = match link {
            Link::Asked(asked) => Link::Rdma(Box::new(accept(*asked))),
            link => link,
        };
        let number = core.io.links.set(index, link);
        upkeep::begin(core, index);
        let Uring { ring, links, .. } = &mut self.core.io;
        links.arm(ring, index, Signal::Connection);
        self.happened(index, number, Signal::Ends);
    }
}

impl Setup {
    /// Calls `use_it` with the reactor's own mailbox.
    fn mailbox<T>(&self, use_it: impl FnOnce(&Mailbox) -> T) -> T {
        use_it(&self.mailboxes.lock().expect("no panic while held")[self.index])
    }
}

impl Uring {
    /// Submits what is queued.
    fn submit(&mut self) -> std::io::Result<()> {
        if let Some(drives) = &mut self.drives {
            drives.ring.submit(None)?;
        }
        self.ring.submit(None)
    }

    /// Whether a completion can be taken now.
    #[inline]
    fn has_completions(&mut self) -> bool {
        self.ring.has_completions()
            || !self.failed.is_empty()
            || !self.links.over.is_empty()
            || self.drives.as_mut().is_some_and(|drives| drives.ring.has_completions())
    }

    /// The next completion of either ring.
    #[inline]
    fn completion(&mut self) -> Option<Completion> {
        self.ring.completion().or_else(|| self.drive_completion())
    }

    /// The next completion of a drive, with a result in the form of file operations: the bytes that were read or
    /// written, or below 0 a [`Failure`](crate::operation::Failure).
    fn drive_completion(&mut self) -> Option<Completion> {
        if let Some(failed) = self.failed.pop() {
            return Some(failed);
        }
        let mut completion = self.drives.as_mut()?.ring.completion()?;
        completion.result = match (completion.result, &completion.buffer) {
            (0, Some(Buffer::Aligned(buffer))) => buffer.len() as i32,
            (0, _) if completion.token & token::KIND == token::CHAIN => completion.token as i32,
            (result, _) => drive_result(result),
        };
        Some(completion)
    }

    /// Waits for the next completion of a drive.
    fn arm_drives(&mut self) {
        if let Some(drives) = &self.drives {
            self.ring.read_event(&drives.event, token::DRIVES);
        }
    }

    /// The ring for drives.
    fn drive_ring(&mut self) -> std::io::Result<&mut NvmeRing> {
        if self.drives.is_none() {
            let ring = NvmeRing::movable(RING_ENTRIES).map_err(std::io::Error::other)?;
            let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
            ring.signal(&event)?;
            self.drives = Some(DriveRing { ring, event });
            self.arm_drives();
        }
        let drives = self.drives.as_mut();
        drives.map(|drives| &mut drives.ring).ok_or_else(|| std::io::ErrorKind::Other.into())
    }

    /// Begins an operation on a drive.
    fn drive_operation(
        &mut self,
        executor: &mut Executor,
        drive: &NvmeDrive,
        operation: FileOperation,
    ) {
        let mut parts = std::mem::take(&mut self.parts);
        let ring = match self.drive_ring() {
            Ok(ring) => ring,
            Err(error) => {
                log::error!(
                    "cannot make a ring for commands to {}: {error}",
                    drive.path().display()
                );
                self.failed.push(failed(operation));
                self.parts = parts;
                return;
            }
        };
        let blocks = drive.blocks();
        match operation {
            FileOperation::Read { buffer, offset, command, .. } => {
                drive.transfers(offset, buffer.len() as u64, &mut parts);
                ring.read_drive(blocks, &parts, buffer, command_token(command));
            }
            FileOperation::ChainRead { read, .. } => {
                drive.transfers(read.device_offset, read.length.into(), &mut parts);
                let to = executor.arenas.engine.data_ptr(&read);
                // SAFETY: as for files, below.
                unsafe { ring.read_drive_into(blocks, &parts, to, chain_token(&read)) }
            }
            FileOperation::Write { buffer, offset, fua, command, .. } => {
                drive.transfers(offset, buffer.len() as u64, &mut parts);
                ring.write_drive(blocks, &parts, (buffer, fua), command_token(command));
            }
            FileOperation::Sync { command, .. } => {
                ring.flush_drive(blocks, drive.fd(), command_token(command));
            }
            FileOperation::Zero { offset, length, deallocate, command, .. } => {
                drive.ranges(offset, length, &mut parts);
                ring.zero_drive(blocks, &parts, deallocate, command_token(command));
            }
        }
        self.parts = parts;
    }
}

impl Io for Uring {
    #[inline]
    fn now_ns(&mut self) -> u64 {
        self.setup.clock.elapsed().as_nanos() as u64
    }

    #[inline]
    fn has_news(&mut self) -> bool {
        self.has_completions()
    }

    fn receive(&mut self, connection: u32, buffer: Vec<u8>, filled: usize) {
        let fd = self.links.fd(connection);
        self.ring.recv(fd, buffer, filled, token::RECV | u64::from(connection));
    }

    fn send(&mut self, connection: u32, outgoing: Box<Outgoing>, in_parts: bool) {
        let fd = self.links.fd(connection);
        self.ring.send(fd, outgoing, in_parts, token::SEND | u64::from(connection));
    }

    fn file(&mut self, executor: &mut Executor, operation: FileOperation) {
        if let Backend::Drive(drive) = &executor.namespace(operation.namespace()).backend {
            let drive = Arc::clone(drive);
            return self.drive_operation(executor, &drive, operation);
        }
        let Uring { ring, parts, .. } = self;
        match operation {
            FileOperation::Read { namespace, buffer, offset, command } => {
                volume(executor, namespace).parts(offset, buffer.len() as u64, parts);
                ring.read_parts(parts, buffer, command_token(command));
            }
            FileOperation::ChainRead { namespace, read } => {
                let token = chain_token(&read);
                volume(executor, namespace).parts(read.device_offset, read.length.into(), parts);
                let to = executor.arenas.engine.data_ptr(&read);
                // SAFETY: the arena stays where it is and belongs to this read until it is
                // reported (the engine asserts that on release), and it is dropped after
                // the ring, which waits for the kernel: `Core` has `io` before `executor`.
                unsafe { ring.read_parts_into(parts, to, token) }
            }
            FileOperation::Write { namespace, buffer, offset, fua, command } => {
                volume(executor, namespace).parts(offset, buffer.len() as u64, parts);
                ring.write_parts(parts, buffer, fua, command_token(command));
            }
            FileOperation::Sync { namespace, command } => {
                volume(executor, namespace).whole(parts);
                ring.sync_parts(parts, command_token(command));
            }
            FileOperation::Zero { namespace, offset, length, deallocate, command } => {
                let volume = volume(executor, namespace);
                volume.extents(offset, length, parts);
                let deallocate = deallocate || !volume.keeps_blocks();
                ring.zero_parts(parts, deallocate, command_token(command));
            }
        }
    }

    fn post(&mut self, connection: u32, works: Vec<Work>) {
        match self.links.get_mut(connection) {
            Link::Fabric(endpoint) => endpoint.post(works),
            Link::Rdma(endpoint) => {
                endpoint.post(works);
                if endpoint.is_closed() || endpoint.has_events() {
                    self.links.over.push(connection);
                }
            }
            Link::Socket(..) | Link::Asked(_) => {
                unreachable!("sockets take bytes, not work requests")
            }
        }
    }

    fn tell_next(&mut self, connection: u32) {
        if let Link::Rdma(endpoint) = self.links.get_mut(connection) {
            endpoint.tell_next();
            if endpoint.has_events() {
                self.links.over.push(connection);
            }
        }
    }

    fn shut(&mut self, connection: u32, half: Shut) {
        match (self.links.get_mut(connection), half) {
            // It fails if the other end is gone already.
            (Link::Socket(socket, _), Shut::Receive) => {
                let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Read);
            }
            (Link::Socket(socket, _), Shut::Both) => {
                let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
            }
            (Link::Fabric(endpoint), Shut::Both) => endpoint.close(),
            (Link::Rdma(_), Shut::Both) => self.links.shut_rdma(&mut self.ring, connection),
            (Link::Rdma(endpoint), Shut::Receive) => {
                endpoint.tell_all();
                self.links.over.push(connection);
            }
            (Link::Fabric(_) | Link::Asked(_), _) => {}
        }
    }

    fn close(&mut self, connection: u32) {
        if let Some(Link::Rdma(endpoint)) = self.links.take(connection) {
            links::disarm(&mut self.ring, &endpoint);
        }
    }

    fn has_hung_up(&mut self, connection: u32) -> bool {
        match self.links.get_mut(connection) {
            Link::Socket(socket, _) => {
                let mut wanted = [PollFd::new(socket, PollFlags::RDHUP)];
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                poll(&mut wanted, Some(&now)).is_ok_and(|ready| ready > 0)
            }
            Link::Fabric(endpoint) => endpoint.is_closed(),
            Link::Rdma(endpoint) => {
                endpoint.look_at_connection();
                let is_closed = endpoint.is_closed();
                if endpoint.has_events() {
                    self.links.over.push(connection);
                }
                is_closed
            }
            Link::Asked(_) => false,
        }
    }

    fn taken_bytes(&mut self, connection: u32) -> u64 {
        match self.links.get(connection) {
            Link::Socket(socket, _) => acked_bytes(socket.as_raw_fd()),
            Link::Fabric(endpoint) => endpoint.taken_bytes(),
            Link::Rdma(_) => self.links.taken_by_rdma(connection),
            Link::Asked(_) => 0,
        }
    }

    fn load(&mut self, load: Load) {
        let mailbox = self.setup.mailbox(Mailbox::clone);
        self.setup.loader.load(load, move |loaded| {
            mailbox.send(Message::Loaded(Box::new(loaded)));
        });
    }

    fn authenticate(&mut self, work: Authentication) {
        let mailbox = self.setup.mailbox(Mailbox::clone);
        self.setup.authenticator.run(work, move |authenticated| {
            mailbox.send(Message::Authenticated(Box::new(authenticated)));
        });
    }

    fn cancel(&mut self, serial: u64) {
        self.setup.loader.cancel(serial);
        self.setup.authenticator.cancel(serial);
    }

    fn fence(&mut self, fenced: Vec<Fenced>) {
        let mailbox = self.setup.mailbox(Mailbox::clone);
        let fence = Fence::new(move || mailbox.send(Message::Fenced(fenced)));
        self.tell_all(&|| Message::Fence(Arc::clone(&fence)));
    }

    fn tell_all(&mut self, message: &dyn Fn() -> Message) {
        for mailbox in self.setup.mailboxes.lock().expect("no panic while held").iter() {
            mailbox.send(message());
        }
    }
}

/// Accepts a connection by RDMA, or refuses it for lack of resources.
fn accept(asked: Asked) -> rdma::Endpoint {
    let Asked { request, shape, .. } = asked;
    let accepted = ConnectAccept { controller_receives: shape.receives }.to_bytes();
    rdma::Endpoint::accept(request, shape, &accepted, &no_resources())
}

/// Bytes that the other end's kernel has acknowledged; 0 if unknown.
fn acked_bytes(socket: RawFd) -> u64 {
    /// Offset of `tcpi_bytes_acked` in `struct tcp_info` (linux/tcp.h), since Linux 4.1.
    const ACKED_AT: usize = 120;
    let mut info = [0u8; ACKED_AT + 8];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`.
    let got = unsafe {
        let to = info.as_mut_ptr().cast();
        libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut length)
    };
    let acked = info.last_chunk::<8>().filter(|_| got == 0 && length as usize == info.len());
    acked.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The completion of an operation that cannot begin.
fn failed(operation: FileOperation) -> Completion {
    let (token, buffer) = match operation {
        FileOperation::Read { buffer, command, .. }
        | FileOperation::Write { buffer, command, .. } => {
            (command_token(command), Some(Buffer::Aligned(buffer)))
        }
        FileOperation::Sync { command, .. } | FileOperation::Zero { command, .. } => {
            (command_token(command), None)
        }
        FileOperation::ChainRead { read, .. } => (chain_token(&read), None),
    };
    Completion { token, result: -libc::EIO, buffer }
}

/// The volume of a namespace in files.
fn volume(executor: &Executor, namespace: usize) -> &Volume {
    let volume = executor.namespace(namespace).backend.volume();
    volume.expect("the namespace is a volume of files")
}
