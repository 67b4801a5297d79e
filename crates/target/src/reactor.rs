//! One thread's loop: sockets and files on one ring, connections and chains on one core.
//!
//! A turn: take what the ring has completed, run memory operations that are due, hand new file
//! operations to the ring, send what each connection has to say with one send, then wait. Waiting
//! spins for a while before it sleeps, unless there is nothing to hope for.
#![allow(unsafe_code)]

use crate::compiler::Compiler;
use crate::connection::{Close, Connection, Ends};
use crate::controller::Controller;
use crate::executor::{CommandId, Executor, FileOperation, MemoryOperation};
use crate::namespace::Backing;
use crate::places::Served;
use crate::target::Target;
use bpfof_chain::{ChainId, Function, Outcome, Tables};
use bpfof_device::{Buffer, Completion, Outgoing, Part, Ring, RingError, Volume};
use bpfof_nvme::Installation;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Submissions one ring takes at a time.
const RING_ENTRIES: u32 = 1024;
/// Bytes one receive can bring in; also the longest PDU that must be whole.
const RX_BYTES: usize = 128 << 10;
/// Hops on memory namespaces of one turn: a caravan of lookups (i10 §3.2). Then what became ready
/// leaves, and the host works on it meanwhile; and new commands come in.
const HOPS_PER_TURN: usize = 128;
/// A command counts as so many hops, because it ends with an answer: 64 of them make the turn.
const HOPS_PER_COMMAND: usize = 2;
/// A part of what a command zeroes takes longer: four of them make the turn.
const HOPS_PER_ZEROES: usize = 32;
/// Hops after which the clock is read again where devices are modelled, so that a read which follows
/// another does not seem to have begun with the turn.
const HOPS_PER_CLOCK: usize = 16;
/// Bytes to be sent that end a turn, because they are a send's worth. They fill two segments as TCP
/// gives them to a network device (64 KiB with headers, 45 packets of Ethernet): a little more would
/// cost a third one for the rest.
const MEMORY_BYTES_PER_TURN: usize = 2 * 45 * 1448;
/// Bytes that a connection keeps room for to be sent, in each of two buffers, while it is idle.
const IDLE_TX_BYTES: usize = 16 << 10;
/// Connections of one reactor. An idle one takes about 160 KiB, and a busy one up to 9 MiB of data in
/// flight and unsent more.
const MAX_CONNECTIONS: usize = 4096;
/// Of these, connections that have not got through Connect yet. One more costs the oldest its
/// place, so that peers which only open connections keep nobody out.
const MAX_STRANGERS: usize = 1024;
/// How often to look for news before looking at the clock: while it waits for a device of a few µs, the
/// time between two looks comes on top of each hop.
const LOOKS_PER_CLOCK: u32 = 4;
/// How often timers are looked at, and the longest sleep.
const TICK: Duration = Duration::from_secs(1);
/// The same while removed namespaces wait for the last of their commands.
const LEAVING_TICK: Duration = Duration::from_millis(10);
/// Time that a peer gets to take what is left to say to it when its connection closes.
const LINGER_NS: u64 = 5_000_000_000;
/// Time that commands in flight get when the target stops.
const STOP_TIMEOUT_NS: u64 = 5_000_000_000;

/// What others ask of a reactor.
pub(crate) enum Message {
    /// Serve this connection.
    Adopt(OwnedFd, Ends),
    /// End the I/O queues of this controller; with `true` also its admin queue.
    EndQueues(Arc<Controller>, bool),
    /// Serve these namespaces from now on and no others; then drop the sender.
    Serve(Arc<[Served]>, Sender<()>),
    /// Namespaces or the discovery log have changed: tell the hosts.
    NamespacesChanged,
    /// A function has been compiled, or not.
    Loaded {
        command: CommandId,
        serial: u64,
        installation: Installation,
        outcome: Box<Result<Function, String>>,
    },
    /// Finish what is in flight and end.
    Stop,
}

/// Where to send messages to a reactor.
#[derive(Clone)]
pub(crate) struct Mailbox {
    sender: Sender<Message>,
    event: Arc<OwnedFd>,
}

impl Mailbox {
    pub(crate) fn new(sender: Sender<Message>, event: Arc<OwnedFd>) -> Mailbox {
        Mailbox { sender, event }
    }

    pub(crate) fn send(&self, message: Message) {
        // A reactor that has ended needs no messages.
        if self.sender.send(message).is_ok() {
            let _ = rustix::io::write(&self.event, &1u64.to_le_bytes());
        }
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
    pub(crate) compiler: Compiler,
    /// Where time starts: the same for all, because latency models are shared.
    pub(crate) clock: Instant,
    pub(crate) spin: Duration,
    pub(crate) poll: bool,
}

/// A connection with its socket and buffers.
struct Entry {
    connection: Connection,
    socket: OwnedFd,
    /// None while the kernel receives into it.
    rx: Option<Vec<u8>>,
    rx_filled: usize,
    /// Whole PDUs may be left in `rx`, because there is much to be sent first.
    rx_stalled: bool,
    /// The buffer that is not being filled; None while the kernel sends from it.
    spare_tx: Option<Box<Outgoing>>,
    dirty: bool,
    closing: bool,
    /// Chains end at their next hop, zeroes at their next part: nobody waits for them.
    cuts_chains: bool,
    closed_ns: u64,
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

pub(crate) struct Reactor {
    // Dropped first: it waits for operations that write into the executor's memory.
    ring: Ring,
    x: Executor,
    entries: Vec<Option<Entry>>,
    dirty: Vec<u32>,
    /// Of the file operation that is being submitted.
    parts: Vec<Part>,
    setup: Setup,
    clock: Instant,
    next_serial: u64,
    next_tick_ns: u64,
    stop_at_ns: Option<u64>,
    /// Whether the last wait was short enough for spinning.
    spin_pays: bool,
}

impl Reactor {
    /// Makes the reactor of the calling thread.
    pub(crate) fn new(setup: Setup) -> Result<Reactor, RingError> {
        let mut ring = Ring::new(RING_ENTRIES)?;
        ring.read_event(&setup.event, token::WAKE);
        Ok(Reactor {
            ring,
            x: Executor::new(Arc::clone(&setup.target)),
            entries: Vec::new(),
            dirty: Vec::new(),
            parts: Vec::new(),
            // Serials of all reactors differ.
            next_serial: (setup.index as u64) << 48 | 1,
            clock: setup.clock,
            setup,
            next_tick_ns: 0,
            stop_at_ns: None,
            spin_pays: true,
        })
    }

    /// Serves until told to stop.
    pub(crate) fn run(&mut self) -> std::io::Result<()> {
        while !self.is_finished() {
            self.wait()?;
            self.x.now_ns = self.clock.elapsed().as_nanos() as u64;
            while let Some(completion) = self.ring.completion() {
                self.completed(completion);
            }
            self.run_memory();
            self.end_turn();
            if self.x.now_ns >= self.next_tick_ns {
                self.tick();
            }
        }
        Ok(())
    }

    fn is_finished(&self) -> bool {
        self.stop_at_ns
            .is_some_and(|at| self.x.now_ns >= at || self.entries.iter().all(Option::is_none))
    }

    /// Submits, and waits for news unless memory operations are due.
    fn wait(&mut self) -> std::io::Result<()> {
        self.ring.submit(None)?;
        let mut sleep = self.tick_interval();
        if let Some(due_ns) = self.x.next_due_ns() {
            let now_ns = self.clock.elapsed().as_nanos() as u64;
            if due_ns <= now_ns {
                return Ok(());
            }
            sleep = sleep.min(Duration::from_nanos(due_ns - now_ns));
        }
        if self.ring.has_news() {
            return self.ring.submit(None);
        }
        // Left over from the end of the last turn.
        if !self.dirty.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        let spin = match (self.setup.poll, self.spin_pays) {
            (true, _) => TICK,
            (_, true) => self.setup.spin,
            _ => Duration::ZERO,
        };
        while begun.elapsed() < spin.min(sleep) {
            for _ in 0..LOOKS_PER_CLOCK {
                if self.ring.has_news() {
                    self.spin_pays = true;
                    return self.ring.submit(None);
                }
                std::hint::spin_loop();
            }
        }
        match sleep.checked_sub(begun.elapsed()) {
            Some(rest) if !self.setup.poll => self.ring.submit(Some(rest))?,
            _ => return Ok(()),
        }
        // A sleep that was hardly longer than a spin would have been better spun through.
        self.spin_pays = begun.elapsed() <= 2 * self.setup.spin;
        Ok(())
    }

    fn completed(&mut self, completion: Completion) {
        let index = completion.token as u32;
        match completion.token & token::KIND {
            token::WAKE => {
                self.ring.read_event(&self.setup.event, token::WAKE);
                while let Ok(message) = self.setup.messages.try_recv() {
                    self.message(message);
                }
            }
            token::RECV => self.received(index, completion),
            token::SEND => self.sent(index, completion),
            token::COMMAND => {
                let (connection, slot) = ((completion.token >> 16) as u32, completion.token as u16);
                let buffer = match completion.buffer {
                    Some(Buffer::Aligned(buffer)) => Some(buffer),
                    _ => None,
                };
                if let Some(entry) = &mut self.entries[connection as usize] {
                    entry.connection.file_done(slot, completion.result, buffer, &mut self.x);
                    self.mark_dirty(connection);
                }
            }
            _ => {
                let chain = ChainId::from_index((completion.token >> 32 & 0xff_ffff) as usize);
                let ok = completion.result == index as i32;
                let owner = self.x.chain_owner(chain).connection;
                if completion.result < 0
                    && let Some(entry) = &mut self.entries[owner as usize]
                {
                    let cause = std::io::Error::from_raw_os_error(-completion.result);
                    let what = format_args!("read for a chain failed: {cause}");
                    entry.connection.note(log::Level::Error, self.x.now_ns, what);
                }
                self.chain_goes_on(chain, |x, wanted, tables| {
                    x.chain_read_done(chain, ok && wanted, tables)
                });
            }
        }
    }

    fn message(&mut self, message: Message) {
        match message {
            Message::Adopt(socket, ends) => self.adopt(socket, ends),
            Message::EndQueues(controller, and_admin) => {
                for index in 0..self.entries.len() {
                    let Some(entry) = &self.entries[index] else { continue };
                    if entry.connection.ends_with(&controller, and_admin) {
                        self.close(index as u32, "the controller was reset or is gone");
                    }
                }
            }
            Message::Serve(served, _done) => {
                self.x.serve(&served);
                self.let_namespaces_go();
            }
            Message::NamespacesChanged => {
                for index in 0..self.entries.len() {
                    if let Some(entry) = &mut self.entries[index]
                        && !entry.closing
                    {
                        entry.connection.notify();
                        self.mark_dirty(index as u32);
                    }
                }
            }
            Message::Loaded { command, serial, installation, outcome } => {
                let entry = self.entries.get_mut(command.connection as usize);
                if let Some(Some(entry)) = entry
                    && entry.connection.serial == serial
                {
                    entry.connection.loaded(command.slot, installation, *outcome, &self.x);
                    self.mark_dirty(command.connection);
                }
            }
            Message::Stop => {
                self.stop_at_ns = Some(self.x.now_ns + STOP_TIMEOUT_NS);
                for index in 0..self.entries.len() {
                    if self.entries[index].is_some() {
                        self.close(index as u32, "the target stops");
                    }
                }
            }
        }
    }

    /// Makes room for one more connection without a controller.
    fn crowd_out_strangers(&mut self) {
        let strangers = self.entries.iter().flatten();
        let strangers = strangers.filter(|e| !e.closing && e.connection.controller.is_none());
        let (count, oldest) = strangers.fold((0, None::<&Connection>), |(count, oldest), entry| {
            let older = oldest.filter(|oldest| oldest.serial < entry.connection.serial);
            (count + 1, Some(older.unwrap_or(&entry.connection)))
        });
        if let Some(index) = oldest.filter(|_| count >= MAX_STRANGERS).map(|oldest| oldest.index) {
            self.close(index, "others came and it had not connected yet");
        }
    }

    fn adopt(&mut self, socket: OwnedFd, ends: Ends) {
        self.crowd_out_strangers();
        let index = match self.entries.iter().position(Option::is_none) {
            Some(free) => free,
            None if self.entries.len() < MAX_CONNECTIONS => {
                self.entries.push(None);
                self.entries.len() - 1
            }
            None => {
                let peer = ends.peer;
                log::warn!("{peer}: refused, {MAX_CONNECTIONS} connections are open");
                return;
            }
        };
        if self.stop_at_ns.is_some() {
            return;
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let connection = Connection::new(index as u32, serial, ends, self.x.now_ns);
        self.entries[index] = Some(Entry {
            connection,
            socket,
            rx: Some(vec![0; RX_BYTES]),
            rx_filled: 0,
            rx_stalled: false,
            spare_tx: Some(Box::default()),
            dirty: false,
            closing: false,
            cuts_chains: false,
            closed_ns: 0,
        });
        self.receive_more(index as u32);
    }

    fn fd(&self, index: u32) -> Option<RawFd> {
        self.entries[index as usize].as_ref().map(|entry| entry.socket.as_raw_fd())
    }

    /// Arms a receive unless one is armed or the connection is paused or closing.
    fn receive_more(&mut self, index: u32) {
        let Some(fd) = self.fd(index) else { return };
        let Some(entry) = &mut self.entries[index as usize] else { return };
        if entry.closing || entry.connection.is_paused() {
            return;
        }
        if let Some(buffer) = entry.rx.take() {
            self.ring.recv(fd, buffer, entry.rx_filled, token::RECV | u64::from(index));
        }
    }

    fn received(&mut self, index: u32, completion: Completion) {
        let Some(entry) = &mut self.entries[index as usize] else { return };
        if let Some(Buffer::Bytes(buffer)) = completion.buffer {
            entry.rx = Some(buffer);
        }
        if entry.closing {
            return self.remove_if_done(index);
        }
        match completion.result {
            0 => self.close(index, "the host closed the connection"),
            error if error < 0 => {
                let cause = std::io::Error::from_raw_os_error(-error);
                self.close(index, &format!("receive failed: {cause}"));
            }
            length => {
                entry.rx_filled += length as usize;
                self.process(index);
            }
        }
    }

    /// Gives what has been received to the connection. More is received after what it has to say is
    /// sent: the kernel does both in that order, and arming a receive takes longer than many answers.
    fn process(&mut self, index: u32) {
        self.mark_dirty(index);
        let Some(entry) = &mut self.entries[index as usize] else { return };
        let Some(rx) = &mut entry.rx else { return };
        match entry.connection.receive(&rx[..entry.rx_filled], &mut self.x) {
            Ok(used) => {
                rx.copy_within(used..entry.rx_filled, 0);
                entry.rx_filled -= used;
                entry.rx_stalled = entry.connection.is_paused();
                self.after_commands(index);
            }
            Err(close) => {
                if let Close::Protocol(error) = &close {
                    log::warn!("{}: {error}", entry.connection.name());
                }
                self.after_commands(index);
                self.flush(index);
                self.close(index, &close.to_string());
            }
        }
    }

    /// What commands asked for beyond the executor: compilations and the end of queues.
    fn after_commands(&mut self, index: u32) {
        for load in self.x.loads.drain(..) {
            let mailboxes = self.setup.mailboxes.lock().expect("no panic while held");
            self.setup.compiler.compile(load, mailboxes[self.setup.index].clone());
        }
        let Some(entry) = &mut self.entries[index as usize] else { return };
        if std::mem::take(&mut entry.connection.reset_queues)
            && let Some(controller) = &entry.connection.controller
        {
            let controller = Arc::clone(controller);
            self.broadcast(&controller, false);
        }
    }

    fn broadcast(&self, controller: &Arc<Controller>, and_admin: bool) {
        for mailbox in self.setup.mailboxes.lock().expect("no panic while held").iter() {
            mailbox.send(Message::EndQueues(Arc::clone(controller), and_admin));
        }
    }

    fn run_memory(&mut self) {
        let (mut hops, mut bytes, mut last) = (0, 0, 0);
        while hops < HOPS_PER_TURN {
            if self.x.is_modelled() && hops % HOPS_PER_CLOCK == 0 {
                self.x.now_ns = self.clock.elapsed().as_nanos() as u64;
            }
            // The next is likely to be as long as the last.
            if bytes > 0 && bytes + last > MEMORY_BYTES_PER_TURN {
                return;
            }
            let Some((namespace, operation)) = self.x.pop_memory() else { return };
            match operation {
                MemoryOperation::Chain(read) => {
                    hops += 1;
                    self.chain_goes_on(read.chain, |x, wanted, tables| {
                        x.memory_read_done(namespace, &read, wanted, tables)
                    });
                }
                MemoryOperation::Command { command, .. } => {
                    hops += HOPS_PER_COMMAND;
                    if let Some(entry) = &mut self.entries[command.connection as usize] {
                        let before = entry.connection.tx.len();
                        entry.connection.memory_done(command.slot, &mut self.x);
                        last = entry.connection.tx.len() - before;
                        bytes += last;
                        self.mark_dirty(command.connection);
                    }
                }
                MemoryOperation::Zero { command, offset, length } => {
                    hops += HOPS_PER_ZEROES;
                    if let Some(entry) = &mut self.entries[command.connection as usize] {
                        let zeroes = ((offset, length), !entry.cuts_chains);
                        entry.connection.zero_memory(namespace, command, zeroes, &mut self.x);
                        self.mark_dirty(command.connection);
                    }
                }
            }
        }
    }

    /// A read of a chain has ended. `done` reports it to the engine, given whether the chain is still
    /// wanted and the newest tables.
    #[inline]
    fn chain_goes_on(
        &mut self,
        chain: ChainId,
        done: impl FnOnce(&mut Executor, bool, &Tables) -> Option<Outcome>,
    ) {
        let owner = self.x.chain_owner(chain);
        let Some(entry) = &mut self.entries[owner.connection as usize] else { return };
        let connection = &mut entry.connection;
        connection.refresh_tables();
        if let Some(outcome) = done(&mut self.x, !entry.cuts_chains, &connection.tables) {
            connection.chain_done(owner.slot, chain, outcome, &mut self.x);
            self.mark_dirty(owner.connection);
        }
    }

    #[inline]
    fn mark_dirty(&mut self, index: u32) {
        if let Some(entry) = &mut self.entries[index as usize]
            && !entry.dirty
        {
            entry.dirty = true;
            self.dirty.push(index);
        }
    }

    fn end_turn(&mut self) {
        self.submit_file_operations();
        let Reactor { x, entries, dirty, .. } = self;
        x.feed_starved(|x, index| {
            let Some(entry) = &mut entries[index as usize] else { return true };
            let goes_on = !entry.connection.still_waits(x);
            if goes_on && !std::mem::replace(&mut entry.dirty, true) {
                dirty.push(index);
            }
            goes_on
        });
        let mut dirty = std::mem::take(&mut self.dirty);
        // All sends come before all receives, so that they also complete before: what a socket did not
        // take of data that is lent is copied before commands change it.
        for &index in &dirty {
            let Some(entry) = &mut self.entries[index as usize] else { continue };
            entry.dirty = false;
            entry.connection.publish_counters();
            self.flush(index);
        }
        for index in dirty.drain(..) {
            self.resume(index);
            self.remove_if_done(index);
        }
        // Resuming may have marked connections again: they come with the next turn.
        if self.dirty.is_empty() {
            self.dirty = dirty;
        }
        self.submit_file_operations();
    }

    /// A connection that was paused with received bytes left goes on with them, others receive.
    fn resume(&mut self, index: u32) {
        let Some(entry) = &self.entries[index as usize] else { return };
        if entry.rx_stalled && !entry.closing && !entry.connection.is_paused() {
            self.process(index);
        } else {
            self.receive_more(index);
        }
    }

    fn submit_file_operations(&mut self) {
        let Reactor { x, ring, parts, .. } = self;
        let mut operations = std::mem::take(&mut x.file_operations);
        for operation in operations.drain(..) {
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
                    // the ring, which waits for the kernel.
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
        self.x.file_operations = operations;
    }

    /// Sends what a connection has to say, if nothing is on its way already.
    fn flush(&mut self, index: u32) {
        let Some(fd) = self.fd(index) else { return };
        let Some(entry) = &mut self.entries[index as usize] else { return };
        if entry.connection.tx.is_empty() {
            return;
        }
        if let Some(spare) = entry.spare_tx.take() {
            entry.connection.is_sending = true;
            let full = std::mem::replace(&mut entry.connection.tx, spare);
            self.ring.send(fd, full, token::SEND | u64::from(index));
        }
    }

    fn sent(&mut self, index: u32, completion: Completion) {
        let Some(entry) = &mut self.entries[index as usize] else { return };
        let Some(Buffer::Outgoing(mut sent)) = completion.buffer else { return };
        let complete = completion.result == sent.len() as i32;
        let takes_nothing = completion.result == -rustix::io::Errno::AGAIN.raw_os_error();
        let accepted = if takes_nothing { 0 } else { completion.result };
        if !complete && accepted >= 0 && !sent.is_own() {
            // No command has been looked at since the kernel read the first part: no block is torn.
            sent.copy_rest(accepted as usize, |buffer| self.x.recycle(buffer));
            return self.ring.send(entry.socket.as_raw_fd(), sent, completion.token);
        }
        sent.clear(2 * RX_BYTES, |buffer| self.x.recycle(buffer));
        entry.spare_tx = Some(sent);
        entry.connection.is_sending = false;
        if entry.closing {
            self.flush(index);
            return self.remove_if_done(index);
        }
        if !complete {
            let cause = std::io::Error::from_raw_os_error(-completion.result.min(0));
            return self.close(index, &format!("send failed: {cause}"));
        }
        self.mark_dirty(index);
    }

    /// Begins to close a connection: no more commands; what is in flight comes back first.
    fn close(&mut self, index: u32, reason: &str) {
        let Some(entry) = &mut self.entries[index as usize] else { return };
        if entry.closing {
            return;
        }
        entry.closing = true;
        entry.closed_ns = self.x.now_ns;
        entry.cuts_chains = self.stop_at_ns.is_none();
        log::info!("{}: closed: {reason}", entry.connection.name());
        entry.connection.abandon(&mut self.x);
        // Ends the receive; what is being sent still goes out.
        let _ = rustix::net::shutdown(&entry.socket, rustix::net::Shutdown::Read);
        let connection = &entry.connection;
        if let (Some(controller), Some(queue)) = (&connection.controller, &connection.queue) {
            controller.remove_queue(queue.id);
            if connection.admin.is_some() {
                controller.subsystem.remove_controller(controller.id);
                let controller = Arc::clone(controller);
                self.broadcast(&controller, true);
            }
        }
        self.mark_dirty(index);
        self.remove_if_done(index);
    }

    fn remove_if_done(&mut self, index: u32) {
        let Some(entry) = &self.entries[index as usize] else { return };
        let idle = entry.rx.is_some() && entry.spare_tx.is_some() && !entry.connection.is_busy();
        let told = entry.connection.tx.is_empty();
        if entry.closing && idle && told && !entry.dirty {
            self.entries[index as usize] = None;
        }
    }

    fn tick_interval(&mut self) -> Duration {
        if self.x.places().has_leaving() { LEAVING_TICK } else { TICK }
    }

    /// Drops removed namespaces that no command works on any more.
    fn let_namespaces_go(&mut self) {
        let entries = self.entries.iter().flatten();
        self.x.places().release_unused(entries.map(|entry| &entry.connection));
        // Else it would come only after the sleep that is being prepared now.
        let soon_ns = self.x.now_ns + self.tick_interval().as_nanos() as u64;
        self.next_tick_ns = self.next_tick_ns.min(soon_ns);
    }

    /// Once a second: peers that are silent, or do not take what is sent to them.
    fn tick(&mut self) {
        let now_ns = self.x.now_ns;
        if self.x.places().has_leaving() {
            self.let_namespaces_go();
        }
        self.next_tick_ns = now_ns + self.tick_interval().as_nanos() as u64;
        for index in 0..self.entries.len() {
            let Some(entry) = &mut self.entries[index] else { continue };
            if entry.closing {
                if now_ns - entry.closed_ns > LINGER_NS {
                    let _ = rustix::net::shutdown(&entry.socket, rustix::net::Shutdown::Both);
                }
                continue;
            }
            if let Some(reason) = entry.connection.overdue(now_ns) {
                self.close(index as u32, reason);
                continue;
            }
            // While nothing is received, nobody else hears that the host is gone.
            if entry.connection.is_paused() && has_hung_up(&entry.socket) {
                self.close(index as u32, "the host closed the connection");
                continue;
            }
            // What an idle connection keeps, nobody has any use for: tables that are out of date, with
            // what has been unloaded, and room for answers.
            entry.connection.refresh_tables();
            if let Some(spare) = entry.spare_tx.as_mut().filter(|_| entry.connection.is_idle()) {
                spare.clear(IDLE_TX_BYTES, |_| ());
                entry.connection.tx.clear(IDLE_TX_BYTES, |_| ());
            }
        }
    }
}

/// Whether the other end of a connection has closed it, or it is broken.
fn has_hung_up(socket: &OwnedFd) -> bool {
    let mut wanted = [PollFd::new(socket, PollFlags::RDHUP)];
    poll(&mut wanted, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// The files of a namespace that has some.
fn volume(x: &Executor, namespace: usize) -> &Volume {
    match &x.namespace(namespace).backing {
        Backing::File(volume) => volume,
        Backing::Memory(_) => unreachable!("memory operations do not come here"),
    }
}
