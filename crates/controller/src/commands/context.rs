//! The environment in which commands are executed.

use super::observed;
use crate::access::{Reason, Rights};
use crate::association::{AdminState, Association};
use crate::connection::{Connection, Phase};
use crate::controller::Controller;
use crate::executor::Executor;
use crate::limits::MAX_TRANSFER_BYTES;
use crate::listener::ana_bit;
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

/// A command that has been received.
#[derive(Clone, Copy)]
pub(crate) struct Command<'a> {
    pub(crate) sqe: &'a Sqe,
    /// The location of its data.
    pub(crate) pointer: DataPointer,
    /// Its data, if it has arrived: in the capsule, or by a fetch.
    pub(crate) data: &'a [u8],
}

impl Command<'_> {
    /// Checks that the data pointer refers to data at the host, or to none.
    pub(crate) fn check_remote(&self) -> Result<(), Refusal> {
        match self.pointer {
            DataPointer::None => Ok(()),
            pointer if pointer.is_remote() => Ok(()),
            _ => Err(wrong_pointer("the answer needs a descriptor of memory at the host")),
        }
    }

    /// Checks that the data is in the capsule. The descriptor may refer to that data, or to room for the answer.
    #[inline]
    pub(crate) fn check_in_capsule(&self, cause: &'static str) -> Result<(), Refusal> {
        match self.pointer {
            DataPointer::InCapsule { .. } => Ok(()),
            DataPointer::Keyed { .. } if !self.data.is_empty() => Ok(()),
            _ => Err(wrong_pointer(cause)),
        }
    }

    /// Checks that the host has room for an answer of up to this many bytes, unless the answer goes into the response.
    #[inline]
    pub(crate) fn check_answer_room(&self, most_bytes: u32) -> Result<(), Refusal> {
        if self.pointer.is_remote() { self.check_room(most_bytes as usize) } else { Ok(()) }
    }

    /// Checks that the host has room for this many bytes outside the capsule.
    pub(crate) fn check_room(&self, length: usize) -> Result<(), Refusal> {
        let room = self.pointer.length_bytes() as usize;
        if length > 0 {
            self.check_remote()?;
        }
        if room >= length || length == 0 {
            return Ok(());
        }
        let cause = format!("room for {room} bytes, but the answer has {length}");
        Err(Refusal::new(Status::DATA_SGL_LENGTH_INVALID.with_dnr(), cause).of_field("SGL1"))
    }
}

/// The refusal of a data pointer of a kind that the command does not take.
pub(crate) fn wrong_pointer(cause: &'static str) -> Refusal {
    Refusal::new(Status::INVALID_SGL_DESCRIPTOR_TYPE.with_dnr(), cause).of_field("SGL1")
}

/// The refusal of a data pointer whose length differs from that of the command's data.
pub(crate) fn wrong_length(has: u32, needs: u32) -> Refusal {
    let cause = format!("{has} bytes, but the command needs {needs}");
    Refusal::new(Status::DATA_SGL_LENGTH_INVALID.with_dnr(), cause).of_field("SGL1")
}

/// The refusal of a command on a queue that is not authenticated yet.
#[cold]
pub(crate) fn not_authenticated() -> Refusal {
    let status = Status::AUTHENTICATION_REQUIRED.with_dnr();
    Refusal::new(status, "the queue is not authenticated")
}

/// The outcome of a command.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The command has been executed.
    Reply(Reply),
    /// It has been executed and has data for the host, which has [room](Command::check_room) for it.
    Data(Reply, Vec<u8>),
    /// The host must send this many bytes; the command is executed again once they have arrived.
    NeedData(u32),
    /// The command is still being executed.
    Pending,
}

impl Outcome {
    /// Success without data.
    pub(crate) const DONE: Outcome =
        Outcome::Reply(Reply { status: Status::SUCCESS, dw0: 0, dw1: 0 });

    /// Success with this command-specific dword.
    pub(crate) fn dword(dw0: u32) -> Outcome {
        Outcome::Reply(Reply::dword(dw0))
    }
}

/// An outcome or a refusal.
pub(crate) type Answered = Result<Outcome, Refusal>;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Close {
    /// The peer broke the rules of the transport, and has been told.
    #[error("protocol error: {0}")]
    Violation(#[from] Violation),
    /// The peer reports that the target broke them.
    #[error("the host ended the connection: {0}")]
    Peer(String),
    /// A Disconnect command, which has been answered.
    #[error("the host disconnected")]
    Disconnect,
}

/// The connection and the executor of a command.
pub(crate) struct Context<'a> {
    pub(crate) connection: &'a mut Connection,
    pub(crate) executor: &'a mut Executor,
}

impl Context<'_> {
    /// Whether a namespace is inaccessible through the listener that the host uses.
    pub(crate) fn is_inaccessible(&self, namespace: usize) -> bool {
        let group = self.executor.namespace(namespace).ana_group();
        self.connection.inaccessible & ana_bit(group) != 0
    }

    fn association(&self) -> &Association {
        self.connection.phase.association().expect("all commands except Connect have one")
    }

    /// The controller of a connected queue.
    pub(crate) fn controller(&self) -> Arc<Controller> {
        Arc::clone(&self.association().controller)
    }

    /// The subsystem of a connected queue.
    pub(crate) fn subsystem(&self) -> Arc<Subsystem> {
        Arc::clone(&self.association().subsystem)
    }

    /// Whether the host has not authenticated itself yet on this queue.
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

    /// The refusal of a command that needs a right which the host lacks.
    #[cold]
    fn denied(&self, needed: Rights) -> Refusal {
        if self.association().awaits_authentication() {
            return not_authenticated();
        }
        self.executor.registry.denials.count(Reason::NoRight);
        let status = match needed == Rights::WRITE {
            // This status makes Linux set the disk read-only.
            true => Status::NAMESPACE_WRITE_PROTECTED,
            false => Status::OPERATION_DENIED,
        };
        let origin = self.association().controller.access.origin();
        let cause = format!("the command needs the right {needed}, but {origin}");
        let refusal = Refusal::new(status.with_dnr(), cause);
        if needed.intersects(Rights::RUN) { refusal } else { self.not_carried_out(refusal) }
    }

    /// The refusal of a command that is not a chain: `otherwise`, unless the queue is restricted to chains.
    #[cold]
    pub(crate) fn not_carried_out(&self, otherwise: impl Into<Refusal>) -> Refusal {
        if !self.association().is_restricted {
            return otherwise.into();
        }
        let cause = "the association is restricted to chains over mapped files (feature C0h)";
        Refusal::new(Status::OPERATION_DENIED.with_dnr(), cause)
    }

    /// The state that an admin queue keeps between commands.
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

    /// Takes a slot for a command that must wait.
    #[inline]
    pub(crate) fn occupy(&mut self, command: &Command<'_>, state: State) -> CommandId {
        let came = (command.sqe.cid, self.executor.now_ns);
        let slot = self.connection.occupy(came, command.pointer, state);
        self.command(slot)
    }

    /// Takes a slot for a command with `length` bytes of data. Returns its id and the data if that came in the capsule;
    /// otherwise starts to fetch the data.
    pub(crate) fn take_data(
        &mut self,
        command: &Command<'_>,
        length: u32,
        state: State,
    ) -> Result<Option<(CommandId, IoBuffer)>, Refusal> {
        let pointer = command.pointer;
        if matches!(pointer, DataPointer::Unknown(_)) {
            return Err(wrong_pointer("this transport does not have descriptors of this type"));
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

    /// Fetches `length` bytes of a command's data, now or once there is room for them.
    pub(crate) fn fetch(&mut self, command: &Command<'_>, length: u32, state: State) {
        let transfer = Transfer { stage: Stage::Waits, ..Transfer::here(length) };
        let Command { pointer, sqe, .. } = *command;
        let (cid, begun_ns) = (sqe.cid, self.executor.now_ns);
        self.connection.queue.occupy(Slot { cid, begun_ns, pointer, transfer, state });
        self.fetch_more();
    }

    /// Fetches waiting data from the host, as far as there is room for it. The connection must keep receiving
    /// meanwhile: the host may send commands ahead of that data.
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

    /// Answers a command whose slot has been vacated, counts it, and fetches data that has room now.
    #[inline]
    pub(crate) fn respond(&mut self, slot: &Slot, reply: Reply, payload: Payload<'_>) {
        // A Compare that finds a difference counts as successful.
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

    /// Sends the outcome of a command, unless it is pending.
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
                let refusal = wrong_pointer(
                    "the descriptor points neither into the capsule nor to memory at the host",
                );
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
        // Any peer can cause these refusals, so their log lines are limited.
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

    /// The refusal for a lack of memory, which it logs: of the host's share or of the whole target.
    pub(crate) fn no_memory(&mut self, what: &str, full: &MemoryFull) -> Refusal {
        let now_ns = self.executor.now_ns;
        self.connection.note(Level::Warn, now_ns, format_args!("no memory for {what}: {full}"));
        Refusal::new(Status::RESOURCE_LIMIT, format!("{what}: {full}"))
    }
}
