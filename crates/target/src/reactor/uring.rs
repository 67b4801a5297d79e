//! The reactor on io_uring: one thread, sockets and files on one ring.
//!
//! It waits before each turn: spinning for a while before it sleeps, unless no completion is expected
//! soon.
#![allow(unsafe_code)]

use super::core::Core;
use super::{Io, Message, Shut};
use crate::executor::{CommandId, Executor, FileOperation};
use crate::limits::{MESSAGES_PER_TURN, SPARE_BYTES};
use crate::loader::{Load, Loader};
use crate::namespace::Backing;
use crate::target::Target;
use bpfof_chain::ChainId;
use bpfof_device::{Buffer, Completion, Outgoing, Part, Ring, RingError, Volume};
use bpfof_function::memory::Charge;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Submissions one ring takes at a time.
const RING_ENTRIES: u32 = 1024;
/// How often to look for completions before looking at the clock: while it waits for a device of a few
/// µs, the time between two looks comes on top of each hop.
const LOOKS_PER_CLOCK: u32 = 4;
/// The longest sleep and spin.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Where to send messages to a reactor.
#[derive(Clone)]
pub(crate) struct Mailbox {
    sender: Sender<Message>,
    event: Arc<OwnedFd>,
    /// Connections that it has not taken.
    untaken: Arc<AtomicUsize>,
}

impl Mailbox {
    pub(crate) fn new(sender: Sender<Message>, event: Arc<OwnedFd>) -> Mailbox {
        Mailbox { sender, event, untaken: Arc::default() }
    }

    pub(crate) fn send(&self, message: Message) {
        let is_connection = usize::from(matches!(message, Message::Adopt(..)));
        self.untaken.fetch_add(is_connection, Ordering::Relaxed);
        // A reactor that has ended needs no messages.
        match self.sender.send(message) {
            Ok(()) => self.wake(),
            Err(_) => _ = self.untaken.fetch_sub(is_connection, Ordering::Relaxed),
        }
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.event, &1u64.to_le_bytes());
    }

    /// How many connections wait to be taken.
    pub(crate) fn untaken(&self) -> usize {
        self.untaken.load(Ordering::Relaxed)
    }
}

/// What a reactor is made with.
pub(crate) struct Setup {
    pub(crate) index: usize,
    pub(crate) target: Arc<Target>,
    pub(crate) messages: Receiver<Message>,
    pub(crate) event: Arc<OwnedFd>,
    /// Of all reactors, in order.
    pub(crate) mailboxes: Arc<Mutex<Vec<Mailbox>>>,
    pub(crate) loader: Loader,
    /// Where time starts: the same for all, because latency models are shared.
    pub(crate) clock: Instant,
    pub(crate) spin: Duration,
    pub(crate) poll: bool,
}

/// Kinds of operations, in the top byte of a token.
mod token {
    pub(super) const WAKE: u64 = 1 << 56;
    pub(super) const RECV: u64 = 2 << 56;
    pub(super) const SEND: u64 = 3 << 56;
    pub(super) const COMMAND: u64 = 4 << 56;
    /// Bits 55:32 chain, 31:0 length.
    pub(super) const CHAIN: u64 = 5 << 56;
    pub(super) const KIND: u64 = 0xff << 56;
}

fn command_token(command: CommandId) -> u64 {
    token::COMMAND | u64::from(command.connection) << 16 | u64::from(command.slot)
}

/// The ring and the sockets.
struct Uring {
    ring: Ring,
    sockets: Vec<Option<OwnedFd>>,
    /// Of the file operation that is being submitted.
    parts: Vec<Part>,
    setup: Setup,
}

/// One reactor.
pub(crate) struct Reactor {
    core: Core<Uring>,
    /// Whether the last wait was short enough for spinning.
    spin_pays: bool,
    /// Buffers for reuse.
    _memory: Charge,
}

impl Reactor {
    /// Makes the reactor of the calling thread.
    pub(crate) fn new(setup: Setup) -> Result<Reactor, RingError> {
        let mut ring = Ring::new(RING_ENTRIES)?;
        ring.read_event(&setup.event, token::WAKE);
        let x = Executor::new(Arc::clone(&setup.target));
        let memory = setup.target.hosts.own.charge_anyway(SPARE_BYTES);
        let index = setup.index;
        let io = Uring { ring, sockets: Vec::new(), parts: Vec::new(), setup };
        Ok(Reactor { core: Core::new(io, x, index), spin_pays: true, _memory: memory })
    }

    /// Serves until told to stop.
    pub(crate) fn run(&mut self) -> std::io::Result<()> {
        while !self.core.is_finished() {
            self.wait()?;
            self.core.begin_turn();
            self.take_completions()?;
            self.core.work();
            self.core.end_turn();
        }
        Ok(())
    }

    /// Submits, and waits for completions unless there is work.
    fn wait(&mut self) -> std::io::Result<()> {
        let Core { io, .. } = &mut self.core;
        io.ring.submit(None)?;
        if self.core.has_work() {
            return Ok(());
        }
        let Uring { ring, setup, .. } = &mut self.core.io;
        if ring.has_completions() {
            return ring.submit(None);
        }
        let begun = Instant::now();
        let now_ns = setup.clock.elapsed().as_nanos() as u64;
        let next_ns = self.core.next_ns();
        if next_ns <= now_ns {
            return Ok(());
        }
        let Uring { ring, setup, .. } = &mut self.core.io;
        let sleep = MAX_WAIT.min(Duration::from_nanos(next_ns - now_ns));
        let spin = match (setup.poll, self.spin_pays) {
            (true, _) => MAX_WAIT,
            (_, true) => setup.spin,
            _ => Duration::ZERO,
        };
        while begun.elapsed() < spin.min(sleep) {
            for _ in 0..LOOKS_PER_CLOCK {
                if ring.has_completions() {
                    self.spin_pays = true;
                    return ring.submit(None);
                }
                std::hint::spin_loop();
            }
        }
        match sleep.checked_sub(begun.elapsed()) {
            Some(rest) if !setup.poll => ring.submit(Some(rest))?,
            _ => return Ok(()),
        }
        // A sleep that was hardly longer than a spin would have been better spun through.
        self.spin_pays = begun.elapsed() <= 2 * setup.spin;
        Ok(())
    }

    /// Takes what the ring has completed, as much as a turn has time for.
    fn take_completions(&mut self) -> std::io::Result<()> {
        let mut taken = 0;
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
        let completion = self.core.io.ring.completion();
        if completion.is_some() || !self.core.lends() {
            return Ok(completion);
        }
        // What the queue of completions had no room for.
        self.core.io.ring.submit(None)?;
        Ok(self.core.io.ring.completion())
    }

    fn completed(&mut self, completion: Completion) {
        let Completion { token, result, buffer } = completion;
        let index = token as u32;
        match (token & token::KIND, buffer) {
            (token::WAKE, _) => self.take_messages(),
            (token::RECV, Some(Buffer::Bytes(bytes))) => self.core.received(index, bytes, result),
            (token::SEND, Some(Buffer::Outgoing(sent))) => self.core.sent(index, sent, result),
            (token::COMMAND, buffer) => {
                let command = CommandId { connection: (token >> 16) as u32, slot: token as u16 };
                let buffer = match buffer {
                    Some(Buffer::Aligned(buffer)) => Some(buffer),
                    _ => None,
                };
                self.core.file_done(command, result, buffer);
            }
            (token::CHAIN, _) => {
                let chain = ChainId::from_index((token >> 32 & 0xff_ffff) as usize);
                self.core.chain_read_done(chain, index, result);
            }
            _ => unreachable!("operations come back with what they were begun with"),
        }
    }

    /// Takes a few messages; for what is left it wakes itself.
    fn take_messages(&mut self) {
        let Uring { ring, setup, .. } = &mut self.core.io;
        ring.read_event(&setup.event, token::WAKE);
        for _ in 0..MESSAGES_PER_TURN {
            let Uring { setup, .. } = &self.core.io;
            let Ok(message) = setup.messages.try_recv() else { return };
            match message {
                Message::Adopt(socket, ends, address) => {
                    setup.mailbox(|mailbox| mailbox.untaken.fetch_sub(1, Ordering::Relaxed));
                    let Some(index) = self.core.adopt(ends, Some(address)) else { continue };
                    self.core.io.set_socket(index, socket);
                    self.core.begin(index);
                }
                message => self.core.message(message),
            }
        }
        self.core.io.setup.mailbox(Mailbox::wake);
    }
}

impl Setup {
    /// Gives the reactor's own mailbox.
    fn mailbox<T>(&self, use_it: impl FnOnce(&Mailbox) -> T) -> T {
        use_it(&self.mailboxes.lock().expect("no panic while held")[self.index])
    }
}

impl Uring {
    fn set_socket(&mut self, index: u32, socket: OwnedFd) {
        if self.sockets.len() <= index as usize {
            self.sockets.resize_with(index as usize + 1, || None);
        }
        self.sockets[index as usize] = Some(socket);
    }

    fn socket(&self, index: u32) -> &OwnedFd {
        self.sockets[index as usize].as_ref().expect("it stays open while its connection lives")
    }

    fn fd(&self, index: u32) -> RawFd {
        self.socket(index).as_raw_fd()
    }
}

impl Io for Uring {
    #[inline]
    fn now_ns(&mut self) -> u64 {
        self.setup.clock.elapsed().as_nanos() as u64
    }

    fn receive(&mut self, connection: u32, buffer: Vec<u8>, filled: usize) {
        let fd = self.fd(connection);
        self.ring.recv(fd, buffer, filled, token::RECV | u64::from(connection));
    }

    fn send(&mut self, connection: u32, outgoing: Box<Outgoing>) {
        let fd = self.fd(connection);
        self.ring.send(fd, outgoing, token::SEND | u64::from(connection));
    }

    fn file(&mut self, x: &mut Executor, operation: FileOperation) {
        let Uring { ring, parts, .. } = self;
        match operation {
            FileOperation::Read { namespace, buffer, offset, command } => {
                volume(x, namespace).parts(offset, buffer.len() as u64, parts);
                ring.read_parts(parts, buffer, command_token(command));
            }
            FileOperation::ChainRead { namespace, read } => {
                let chain = (read.chain.index() as u64) << 32;
                let token = token::CHAIN | chain | u64::from(read.length);
                volume(x, namespace).parts(read.device_offset, read.length.into(), parts);
                let to = x.engine().data_ptr(&read);
                // SAFETY: the arena stays where it is and belongs to this read until it is
                // reported (the engine asserts that on release), and it is dropped after
                // the ring, which waits for the kernel: `Core` has `io` before `x`.
                unsafe { ring.read_parts_into(parts, to, token) }
            }
            FileOperation::Write { namespace, buffer, offset, fua, command } => {
                volume(x, namespace).parts(offset, buffer.len() as u64, parts);
                ring.write_parts(parts, buffer, fua, command_token(command));
            }
            FileOperation::Sync { namespace, command } => {
                volume(x, namespace).whole(parts);
                ring.sync_parts(parts, command_token(command));
            }
            FileOperation::Zero { namespace, offset, length, command } => {
                volume(x, namespace).extents(offset, length, parts);
                ring.zero_parts(parts, command_token(command));
            }
        }
    }

    fn shut(&mut self, connection: u32, half: Shut) {
        let how = match half {
            Shut::Receive => rustix::net::Shutdown::Read,
            Shut::Both => rustix::net::Shutdown::Both,
        };
        // It fails where the other end has gone already.
        let _ = rustix::net::shutdown(self.socket(connection), how);
    }

    fn close(&mut self, connection: u32) {
        self.sockets[connection as usize] = None;
    }

    fn has_hung_up(&mut self, connection: u32) -> bool {
        let mut wanted = [PollFd::new(self.socket(connection), PollFlags::RDHUP)];
        poll(&mut wanted, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    fn taken_bytes(&mut self, connection: u32) -> u64 {
        acked_bytes(self.fd(connection))
    }

    fn load(&mut self, load: Load) {
        let mailbox = self.setup.mailbox(Mailbox::clone);
        self.setup.loader.load(load, mailbox);
    }

    fn cancel_loads(&mut self, serial: u64) {
        self.setup.loader.cancel(serial);
    }

    fn tell_all(&mut self, message: &dyn Fn() -> Message) {
        for mailbox in self.setup.mailboxes.lock().expect("no panic while held").iter() {
            mailbox.send(message());
        }
    }
}

/// Bytes that the other end's kernel has acknowledged; 0 if they cannot be had.
fn acked_bytes(socket: RawFd) -> u64 {
    /// Where `tcpi_bytes_acked` is in `struct tcp_info` (linux/tcp.h), since Linux 4.1.
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

/// The files of a namespace that has some.
fn volume(x: &Executor, namespace: usize) -> &Volume {
    match &x.namespace(namespace).backing {
        Backing::File(volume) => volume,
        Backing::Memory(_) => unreachable!("memory operations do not come here"),
    }
}
