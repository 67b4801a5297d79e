//! What commands are carried out with.

use super::observed;
use crate::access::{Reason, Rights};
use crate::association::{AdminState, Association};
use crate::connection::{Connection, Phase};
use crate::controller::Controller;
use crate::executor::Executor;
use crate::limits::MAX_TRANSFER_BYTES;
use crate::metrics::Ended;
use crate::operation::CommandId;
use crate::queue::{Slot, Stage, State, Transfer};
use crate::refusal::{Refusal, Reply};
use crate::subsystem::Subsystem;
use crate::transport::{Payload, Violation};
use bpfof_device::IoBuffer;
use bpfof_function::memory::MemoryFull;
use bpfof_nvme::{DataPointer, Sqe, Status};
use log::Level;
use std::sync::Arc;

/// A command that has been taken.
#[derive(Clone, Copy)]
pub(crate) struct Command<'a> {
    pub(crate) sqe: &'a Sqe,
    /// Where its data is.
    pub(crate) pointer: DataPointer,
    /// Its data, if that is here: it came in the capsule, or was fetched.
    pub(crate) data: &'a [u8],
}

impl Command<'_> {
    /// Checks that the data pointer is not one of data in the capsule, or of an unknown kind.
    pub(crate) fn check_remote(&self) -> Result<(), Refusal> {
        match self.pointer {
            DataPointer::None => Ok(()),
            pointer if pointer.is_remote() => Ok(()),
            _ => Err(wrong_pointer("the answer needs a descriptor of room at the host")),
        }
    }

    /// Checks that the data is in the capsule, whether the descriptor is of it or of room for the answer.
    #[inline]
    pub(crate) fn check_in_capsule(&self, cause: &'static str) -> Result<(), Refusal> {
        match self.pointer {
            DataPointer::InCapsule { .. } => Ok(()),
            DataPointer::Keyed { .. } if !self.data.is_empty() => Ok(()),
            _ => Err(wrong_pointer(cause)),
        }
    }

    /// Checks that an answer of up to so many bytes has room, unless it goes into the response.
    #[inline]
    pub(crate) fn check_answer_room(&self, most_bytes: u32) -> Result<(), Refusal> {
        if self.pointer.is_remote() { self.check_room(most_bytes as usize) } else { Ok(()) }
    }

    /// Checks that the host has room for so many bytes outside the capsule.
    pub(crate) fn check_room(&self, length: usize) -> Result<(), Refusal> {
        let room = self.pointer.length_bytes() as usize;
        if length > 0 {
            self.check_remote()?;
        }
        if room >= length || length == 0 {
            return Ok(());
        }
        let cause = format!("room for {room} bytes, where the answer has {length}");
        Err(Refusal::new(Status::DATA_SGL_LENGTH_INVALID.with_dnr(), cause).of_field("SGL1"))
    }
}

/// The data pointer is of a kind that the command does not take.
pub(crate) fn wrong_pointer(cause: &'static str) -> Refusal {
    Refusal::new(Status::INVALID_SGL_DESCRIPTOR_TYPE.with_dnr(), cause).of_field("SGL1")
}

/// The data pointer has another length than the command's data.
pub(crate) fn wrong_length(has: u32, needs: u32) -> Refusal {
    let cause = format!("{has} bytes, where the command has {needs}");
    Refusal::new(Status::DATA_SGL_LENGTH_INVALID.with_dnr(), cause).of_field("SGL1")
}

/// A command on a queue that has yet to be authenticated.
#[cold]
pub(crate) fn not_authenticated() -> Refusal {
    let status = Status::AUTHENTICATION_REQUIRED.with_dnr();
    Refusal::new(status, "the queue is not authenticated")
}

/// What has become of a command.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It has been carried out.
    Reply(Reply),
    /// The same, with data for the host, which has [room](Command::check_room) for it.
    Data(Reply, Vec<u8>),
    /// The host is to send so many bytes; then the command comes again with them.
    NeedData(u32),
    /// It is being carried out.
    Pending,
}

impl Outcome {
    /// Success and no more.
    pub(crate) const DONE: Outcome =
        Outcome::Reply(Reply { status: Status::SUCCESS, dw0: 0, dw1: 0 });

    /// Success with this command-specific dword.
    pub(crate) fn dword(dw0: u32) -> Outcome {
        Outcome::Reply(Reply::dword(dw0))
    }
}

/// An outcome, or why there is none.
pub(crate) type Answered = Result<Outcome, Refusal>;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Close {
    /// The peer broke the rules of the transport; it has been told.
    #[error("protocol error: {0}")]
    Violation(#[from] Violation),
    /// The peer says that we broke them.
    #[error("the host ended the connection: {0}")]
    Peer(String),
    /// A Disconnect command, answered.
    #[error("the host disconnected")]
    Disconnect,
}

/// Where a command is carried out.
pub(crate) struct Context<'a> {
    pub(crate) connection: &'a mut Connection,
    pub(crate) executor: &'a mut Executor,
}

impl Context<'_> {
    fn association(&self) -> &Association {
        self.connection.phase.association().expect("commands but Connect have one")
    }

    /// The controller of a connected queue.
    pub(crate) fn controller(&self) -> Arc<Controller> {
        Arc::clone(&self.association().controller)
    }

    /// The subsystem of a connected queue.
    pub(crate) fn subsystem(&self) -> Arc<Subsystem> {
        Arc::clone(&self.association().subsystem)
    }

    /// Whether the host has yet to authenticate itself on this queue.
    pub(crate) fn awaits_authentication(&self) -> bool {
        self.association().awaits_authentication()
    }

    /// Refuses a command unless the host has one of these rights.
    #[inline]
    pub(crate) fn check_rights(&self, needed: Rights) -> Result<(), Refusal> {
        match self.association().rights.intersects(needed) {
            true => Ok(()),
            false => Err(self.denied(needed)),
        }
    }

    /// The host does not have the right that its command needs.
    #[cold]
    fn denied(&self, needed: Rights) -> Refusal {
        if self.association().awaits_authentication() {
            return not_authenticated();
        }
        self.executor.registry.denials.count(Reason::NoRight);
        let status = match needed == Rights::WRITE {
            // With which Linux makes the disk read-only.
            true => Status::NAMESPACE_WRITE_PROTECTED,
            false => Status::OPERATION_DENIED,
        };
        let origin = self.association().controller.access.origin();
        let cause = format!("it needs the right {needed}, and {origin}");
        let refusal = Refusal::new(status.with_dnr(), cause);
        if needed.intersects(Rights::RUN) { refusal } else { self.not_carried_out(refusal) }
    }

    /// Why a command that is no chain is not carried out: for this reason, unless the queue takes nothing
    /// but chains.
    #[cold]
    pub(crate) fn not_carried_out(&self, otherwise: impl Into<Refusal>) -> Refusal {
        if !self.association().is_restricted {
            return otherwise.into();
        }
        let cause = "the association is restricted to chains over mapped files (feature C0h)";
        Refusal::new(Status::OPERATION_DENIED.with_dnr(), cause)
    }

    /// What an admin queue keeps between commands.
    pub(crate) fn admin(&mut self) -> &mut AdminState {
        match &mut self.connection.phase {
            Phase::Admin(_, admin) => admin,
            _ => unreachable!("it is an admin queue"),
        }
    }

    /// The id of the command in a slot.
    #[inline]
    pub(crate) fn command(&self, slot: u16) -> CommandId {
        CommandId { connection: self.connection.index, slot }
    }

    /// Takes a slot for a command that waits for something.
    #[inline]
    pub(crate) fn occupy(&mut self, command: &Command<'_>, state: State) -> CommandId {
        let came = (command.sqe.cid, self.executor.now_ns);
        let slot = self.connection.occupy(came, command.pointer, state);
        self.command(slot)
    }

    /// Takes a command that brings `length` bytes of data, and gives it with the data if that came in
    /// the capsule; else it is fetched.
    pub(crate) fn take_data(
        &mut self,
        command: &Command<'_>,
        length: u32,
        state: State,
    ) -> Result<Option<(CommandId, IoBuffer)>, Refusal> {
        let pointer = command.pointer;
        if matches!(pointer, DataPointer::Unknown(_)) {
            return Err(wrong_pointer("a kind of descriptor that this transport does not have"));
        }
        if pointer.length_bytes() != length {
            return Err(wrong_length(pointer.length_bytes(), length));
        }
        if pointer.is_remote() {
            self.fetch(command, length, state);
            return Ok(None);
        }
        let transfer = Transfer::here(length);
        let (cid, begun_ns) = (command.sqe.cid, self.executor.now_ns);
        let slot = Slot { cid, begun_ns, pointer, transfer, state };
        let slot = self.connection.queue.occupy(slot);
        let mut buffer = self.executor.buffers.take(length as usize);
        buffer.copy_from_slice(command.data);
        Ok(Some((self.command(slot), buffer)))
    }

    /// Fetches `length` bytes of a command's data, at once or when there is room for them.
    pub(crate) fn fetch(&mut self, command: &Command<'_>, length: u32, state: State) {
        let transfer = Transfer { stage: Stage::Waits, ..Transfer::here(length) };
        let Command { pointer, sqe, .. } = *command;
        let (cid, begun_ns) = (sqe.cid, self.executor.now_ns);
        self.connection.queue.occupy(Slot { cid, begun_ns, pointer, transfer, state });
        self.fetch_more();
    }

    /// Fetches data that waits at the host, as far as there is room for it. The connection must keep
    /// receiving meanwhile: the host may send commands ahead of that data.
    #[inline]
    pub(crate) fn fetch_more(&mut self) {
        if self.connection.queue.has_waiting() {
            self.fetch_waiting();
        }
    }

    fn fetch_waiting(&mut self) {
        let Context { connection, executor } = self;
        let was_fetching = connection.queue.is_fetching();
        let mut has_begun = false;
        while let Some(fetch) = connection.next_fetch() {
            let buffer = executor.buffers.take(fetch.length_bytes as usize);
            connection.port.fetch(fetch, buffer);
            has_begun = true;
        }
        if has_begun && !was_fetching {
            connection.arrivals.data_ns = executor.now_ns;
        }
    }

    /// Answers a command whose slot has been given back, counts it, and fetches what had no room until now.
    #[inline]
    pub(crate) fn respond(&mut self, slot: &Slot, reply: Reply, payload: Payload<'_>) {
        // A Compare that finds a difference has done what it was asked for.
        let is_ok =
            reply.status == Status::SUCCESS || reply.status.same_code(Status::COMPARE_FAILURE);
        let bytes = match slot.state {
            State::Read { length, .. } | State::Verify { length, .. } => length,
            _ => slot.transfer.length_bytes,
        };
        let bytes = if is_ok { bytes.into() } else { 0 };
        let Context { connection, executor } = self;
        let ended = Ended { is_ok, bytes, hops: 0 };
        if let Some(counted) = executor.count(slot, &mut connection.tally.latencies, ended)
            && executor.observer.watches(counted.latency_ns)
        {
            observed::command_ended(connection, executor, slot, (counted, bytes, reply.status));
        }
        let copied = self.connection.send_data(slot.cid, slot.pointer, reply, payload);
        if let Some(buffer) = copied {
            self.executor.buffers.recycle(buffer);
        }
        self.fetch_more();
    }

    /// Sends what has become of a command, if that is known.
    #[inline]
    pub(crate) fn answer(&mut self, command: &Command<'_>, outcome: Answered) {
        if !matches!(outcome, Ok(Outcome::Pending)) {
            self.answer_now(command, outcome);
        }
    }

    fn answer_now(&mut self, command: &Command<'_>, outcome: Answered) {
        match outcome {
            Ok(Outcome::Reply(reply)) => self.connection.complete(command.sqe.cid, reply),
            Ok(Outcome::Data(reply, data)) => {
                let payload = Payload::Bytes(&data);
                self.connection.send_data(command.sqe.cid, command.pointer, reply, payload);
            }
            Ok(Outcome::NeedData(length)) if command.pointer.is_remote() => {
                debug_assert!(length <= MAX_TRANSFER_BYTES);
                let sqe = Box::new(*command.sqe);
                self.fetch(command, length, State::AdminData { sqe });
            }
            Ok(Outcome::NeedData(_)) => {
                let refusal = wrong_pointer("the data is neither in the capsule nor at the host");
                self.refuse(command.sqe, &refusal);
            }
            Ok(Outcome::Pending) => {}
            Err(refusal) => self.refuse(command.sqe, &refusal),
        }
    }

    /// Answers a command with a refusal.
    pub(crate) fn refuse(&mut self, sqe: &Sqe, refusal: &Refusal) {
        let Context { connection, executor } = self;
        let now_ns = executor.now_ns;
        // Anybody can cause these.
        let is_strangers = connection.is_of_stranger();
        match is_strangers.then(|| executor.strangers.admit(Level::Info, now_ns)) {
            None | Some(Some(None)) => connection.refuse(sqe, refusal, now_ns),
            Some(Some(Some(words))) => {
                log::info!("{connection}: {words}");
                connection.complete(sqe.cid, refusal.reply);
            }
            Some(None) => connection.complete(sqe.cid, refusal.reply),
        }
    }

    /// The host's share of the memory, or all of it, is used up: the log says which.
    pub(crate) fn no_memory(&mut self, what: &str, full: &MemoryFull) -> Refusal {
        let now_ns = self.executor.now_ns;
        self.connection.note(Level::Warn, now_ns, format_args!("no memory for {what}: {full}"));
        Refusal::new(Status::RESOURCE_LIMIT, format!("{what}: {full}"))
    }
}
