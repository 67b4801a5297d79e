//! A queue over messages and registered memory: NVMe/RDMA, or the same within this process
//! ([`bpfof_device::fabric`]).
//!
//! A request with data that does not go in a capsule has a *room*, a range of the queue's memory where the target puts
//! read data and fetches data to write. A room is reused after the response of its request. Requests wait while no room
//! is free. A request that times out ends the queue, and with it its memory, so that late data cannot get into another
//! request's room. Short answers of chains come in the response.

use super::connector::Connector;
use super::endpoint::{ANSWER_IN_RESPONSE_BYTES, Endpoint, QueueName, room_bytes};
use super::rooms::Rooms;
use crate::requests::{DataOut, InitiatorConfig, OnCompletion, Plan, Requests, Returns};
use crate::{Error, LostReason, Options, Request, SubmitError, TargetUrl, Violation};
use bpfof_device::fabric::{Event, Work};
use bpfof_nvme::{Cqe, Sgl, Sqe};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Most data that a target accepts in a capsule of an admin queue, in bytes (docs/rdma.md).
const ADMIN_IN_CAPSULE_BYTES: usize = 1024;

/// A queue over an endpoint.
#[derive(Debug)]
pub(crate) struct FabricPort {
    /// `None` once the connection is over.
    endpoint: Option<Endpoint>,
    requests: Requests,
    rooms: Rooms,
    /// The rooms of requests in flight, indexed by slot.
    taken: Vec<Room>,
    /// Requests that wait for a room, in the order of submission.
    waiting: VecDeque<Waiting>,
    unposted: Vec<Work>,
    is_rung: bool,
}

/// The state of a request's room.
#[derive(Clone, Debug, Default)]
enum Room {
    /// The request needs no room.
    #[default]
    None,
    /// The request waits for a room, and is not sent before.
    Awaited,
    Has(Range<usize>),
}

/// A command that needs a room.
#[derive(Debug)]
struct Command {
    index: u16,
    sqe: Sqe,
    /// Space for the encoded command, followed by its in-capsule data.
    message: Vec<u8>,
    room_bytes: usize,
    /// Whether the room must be zeroed before, because the completion does not say how much of it the target wrote.
    is_cleared: bool,
}

/// A command that waits for a room, and the data that the target will fetch from there.
#[derive(Debug)]
struct Waiting {
    command: Command,
    by_key: Vec<u8>,
}

impl FabricPort {
    /// Connects to a target in this process.
    pub(super) fn within(
        connector: &Connector,
        config: InitiatorConfig,
    ) -> Result<FabricPort, Error> {
        let requests = Requests::new(config);
        let endpoint = Endpoint::within(connector, requests.config())?;
        Ok(FabricPort::over(endpoint, requests))
    }

    /// Connects over RDMA.
    pub(super) fn connect(
        url: &TargetUrl,
        options: &Options,
        config: InitiatorConfig,
        queue: QueueName,
    ) -> Result<FabricPort, Error> {
        let requests = Requests::new(config);
        let endpoint = Endpoint::connect(url, options, requests.config(), queue)?;
        Ok(FabricPort::over(endpoint, requests))
    }

    fn over(endpoint: Endpoint, mut requests: Requests) -> FabricPort {
        // There is no handshake.
        requests.open();
        FabricPort {
            endpoint: Some(endpoint),
            rooms: Rooms::new(room_bytes(requests.config())),
            taken: vec![Room::None; requests.config().depth.into()],
            requests,
            waiting: VecDeque::new(),
            unposted: Vec::new(),
            is_rung: false,
        }
    }

    pub(super) const fn requests(&self) -> &Requests {
        &self.requests
    }

    /// The address of the peer; `None` within this process.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.endpoint.as_ref().and_then(Endpoint::peer)
    }

    pub(super) const fn is_connected(&self) -> bool {
        self.endpoint.is_some()
    }

    pub(super) fn submit(&mut self, tag: u64, request: &Request<'_>) -> Result<(), SubmitError> {
        let Plan { mut sqe, data_out, returns, expected_bytes } = self.requests.plan(request)?;
        let Some(index) = self.requests.next_slot() else { return Err(SubmitError::QueueFull) };
        let in_capsule = in_capsule(self.requests.config(), &data_out, expected_bytes)?;
        let mut message = Vec::with_capacity(Sqe::BYTES + in_capsule);
        message.resize(Sqe::BYTES, 0);
        let mut by_key: &[u8] = &[];
        match data_out {
            DataOut::None => {}
            DataOut::Bytes(data) if data.len() > in_capsule => by_key = data,
            DataOut::Bytes(data) => message.extend_from_slice(data),
            DataOut::Pushdown(parts) => parts.encode_into(&mut message),
            DataOut::PushdownVector(call) => call.parts().encode_into(&mut message),
        }
        sqe.sgl = match message.len() - Sqe::BYTES {
            0 => Sgl::keyed(0, 0, 0),
            in_capsule => Sgl::in_capsule(in_capsule as u32),
        };
        let room_bytes = match returns {
            Returns::Answer if expected_bytes as usize <= ANSWER_IN_RESPONSE_BYTES => 0,
            _ => by_key.len().max(expected_bytes as usize),
        };
        self.requests.take(tag, &mut sqe, returns, expected_bytes)?;
        if room_bytes == 0 {
            message[..Sqe::BYTES].copy_from_slice(&sqe.to_bytes());
            self.unposted.push(Work::Send(message));
            return Ok(());
        }
        let is_cleared = returns == Returns::AtMost && expected_bytes > 0;
        let command = Command { index, sqe, message, room_bytes, is_cleared };
        // Waiting requests come first.
        if self.waiting.is_empty()
            && let Some(room) = self.rooms.take(room_bytes)
        {
            self.move_in(command, by_key, room);
        } else {
            self.set_room(index, Room::Awaited);
            self.requests.hold_back();
            self.waiting.push_back(Waiting { command, by_key: by_key.to_vec() });
        }
        Ok(())
    }

    /// Queues waiting requests as long as there are rooms for them; returns whether there were any.
    fn find_rooms(&mut self) -> bool {
        let before = self.waiting.len();
        while let Some(waiting) = self.waiting.front()
            && let Some(room) = self.rooms.take(waiting.command.room_bytes)
            && let Some(Waiting { command, by_key }) = self.waiting.pop_front()
        {
            self.requests.let_go(command.index);
            self.move_in(command, &by_key, room);
        }
        self.waiting.len() < before
    }

    /// Queues a command, whose data uses this room.
    fn move_in(&mut self, command: Command, by_key: &[u8], room: Range<usize>) {
        let Command { index, mut sqe, mut message, room_bytes, is_cleared } = command;
        // There is an endpoint: without one, no request is accepted.
        let Some(endpoint) = &mut self.endpoint else { return };
        if is_cleared {
            endpoint.write(room.start, &vec![0; room_bytes]);
        }
        endpoint.write(room.start, by_key);
        sqe.sgl = endpoint.name(room.start, room_bytes as u32);
        message[..Sqe::BYTES].copy_from_slice(&sqe.to_bytes());
        self.unposted.push(Work::Send(message));
        self.set_room(index, Room::Has(room));
    }

    fn set_room(&mut self, index: u16, room: Room) {
        if let Some(taken) = self.taken.get_mut(usize::from(index)) {
            *taken = room;
        }
    }

    pub(super) const fn ring(&mut self) {
        self.is_rung = true;
    }

    pub(super) fn queued_bytes(&self) -> usize {
        self.unposted.iter().map(Work::bytes).sum()
    }

    pub(super) const fn is_urgent(&self) -> bool {
        self.is_rung && !self.unposted.is_empty()
    }

    pub(super) fn send(&mut self, now_us: u64) -> usize {
        let bytes = self.queued_bytes();
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.post(self.unposted.drain(..));
            self.requests.sent(now_us);
        }
        self.is_rung = false;
        bytes
    }

    pub(super) fn receive(
        &mut self,
        on_completion: &mut OnCompletion<'_>,
    ) -> Result<usize, LostReason> {
        let Some(endpoint) = &mut self.endpoint else {
            return Err(self.requests.failure().unwrap_or(LostReason::HungUp));
        };
        endpoint.look();
        let mut received = 0;
        while let Some(event) = endpoint.poll() {
            match event {
                Event::Message(bytes) => {
                    received += bytes.len();
                    let rooms = (&mut self.rooms, &mut *self.taken);
                    respond(&mut self.requests, endpoint, rooms, &bytes, on_completion).map_err(
                        |reason| {
                            let kind = "Protocol Error";
                            LostReason::Protocol(Violation { kind, reason, information: 0 })
                        },
                    )?;
                }
                Event::Done { .. } | Event::Read { .. } => {}
                Event::Closed { reason, by_peer: true } => {
                    log::debug!("the target closed the connection: {reason}");
                    return Err(LostReason::Closed);
                }
                Event::Closed { reason, .. } => {
                    log::warn!("the connection to the target has failed: {reason}");
                    return Err(LostReason::Io(ErrorKind::ConnectionAborted));
                }
            }
        }
        // Requests that got a room leave with the next send, which is now due.
        self.is_rung |= received > 0 && self.find_rooms();
        Ok(received)
    }

    pub(super) fn wait_ready(&self, timeout: Duration) -> Result<bool, LostReason> {
        self.endpoint.as_ref().map_or(Ok(true), |endpoint| endpoint.wait_ready(timeout))
    }

    pub(super) fn descriptor(&self) -> Result<OwnedFd, Error> {
        let endpoint = self.endpoint.as_ref().ok_or(SubmitError::NotConnected)?;
        Ok(endpoint.descriptor().map_err(|error| LostReason::Io(error.kind()))?)
    }

    pub(super) fn close(&mut self, reason: LostReason) {
        self.requests.fail(reason);
        self.unposted.clear();
        self.waiting.clear();
        self.endpoint = None;
    }

    pub(super) fn lost(&mut self, on_completion: &mut OnCompletion<'_>) {
        self.requests.lost(on_completion);
    }
}

/// Length of a command's in-capsule data, in bytes. The capsule of an admin command carries no data (NVMe RDMA
/// Transport 1.0 §3.1), unless there is no other place for it.
///
/// # Errors
/// The data must go in the capsule, and is too long.
fn in_capsule(
    config: &InitiatorConfig,
    data_out: &DataOut<'_>,
    expected_bytes: u32,
) -> Result<usize, SubmitError> {
    let room = config.in_capsule_bytes as usize;
    match data_out {
        DataOut::None => Ok(0),
        // A command with data in both directions can have a room for only one of them.
        DataOut::Bytes(data) if expected_bytes > 0 => {
            let most = if config.admin { ADMIN_IN_CAPSULE_BYTES } else { room };
            let (bytes, max_bytes) = (data.len() as u64, most as u64);
            if bytes > max_bytes {
                return Err(SubmitError::TooLong { bytes, max_bytes });
            }
            Ok(data.len())
        }
        DataOut::Bytes(data) if !config.admin && data.len() <= room => Ok(data.len()),
        DataOut::Bytes(_) => Ok(0),
        DataOut::Pushdown(parts) => Ok(parts.encoded_bytes()),
        DataOut::PushdownVector(call) => Ok(call.encoded_bytes()),
    }
}

/// Handles a response: a completion, followed by the answer if the command has no room for it.
fn respond(
    requests: &mut Requests,
    endpoint: &Endpoint,
    (rooms, taken): (&mut Rooms, &mut [Room]),
    message: &[u8],
    on_completion: &mut OnCompletion<'_>,
) -> Result<(), &'static str> {
    let (cqe, answer) = message.split_first_chunk().ok_or("the response is too short")?;
    let cqe = Cqe::from_bytes(cqe);
    let (index, slot) = requests.find(cqe.cid).ok_or("the command identifier is not in flight")?;
    let room = taken.get_mut(usize::from(index)).map(std::mem::take).unwrap_or_default();
    if slot.sent_us.is_none() || matches!(room, Room::Awaited) {
        return Err("an answer to a command that was not sent");
    }
    let room = match room {
        Room::Has(room) => Some(room),
        Room::None | Room::Awaited => None,
    };
    let expected = slot.expected_bytes as usize;
    if cqe.status.is_success() && !answer.is_empty() {
        if answer.len() > expected || room.is_some() {
            return Err("data that was not requested");
        }
        slot.keep(answer);
    } else if let Some(room) = room.as_ref().filter(|_| cqe.status.is_success() && expected > 0) {
        let written = match slot.returns {
            Returns::Answer if cqe.dw1 > slot.expected_bytes => {
                return Err("more data than was requested");
            }
            Returns::Answer => cqe.dw1 as usize,
            Returns::Exactly | Returns::AtMost => expected,
        };
        slot.keep_with(written, |place| endpoint.read(room.start, place));
    }
    room.into_iter().for_each(|room| rooms.give_back(room));
    match requests.respond(index, &cqe, on_completion) {
        true => Ok(()),
        false => Err("success before all data was transferred"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Queue;
    use crate::transport::Port;
    use crate::{FileVersion, NamespaceInfo, PushdownCall, RequestError};
    use bpfof_device::{IoBuffer, fabric};
    use bpfof_nvme::opcode::nvm;
    use bpfof_nvme::tcp::Digests;
    use bpfof_nvme::{DataPointer, Status};
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::io;
    use std::sync::Mutex;

    const BLOCK_BYTES: u32 = 512;
    const DEPTH: u16 = 8;
    const TRANSFER_BYTES: u32 = 128 << 10;

    /// A step of a test.
    #[derive(Clone, Debug)]
    enum Step {
        /// Submits a request of this kind and number of blocks.
        Submit(u8, u32),
        /// Sends and receives.
        Exchange,
        /// The target answers one of its commands.
        Answer(prop::sample::Index, How),
        /// The target answers a command that still waits for a room.
        Guess(prop::sample::Index),
        /// The target sends these bytes.
        Garbage(Vec<u8>),
        /// The connection ends.
        End,
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum How {
        Well,
        Badly,
        /// With an identifier that no command has.
        Strangely,
        /// Claims a longer answer than the request allows.
        TooLong,
        /// Twice.
        Again,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let how = prop_oneof![
            20 => Just(How::Well),
            3 => Just(How::Badly),
            1 => Just(How::Strangely),
            1 => Just(How::TooLong),
            1 => Just(How::Again),
        ];
        let step = prop_oneof![
            30 => (0u8..5, 1u32..256).prop_map(|(kind, blocks)| Step::Submit(kind, blocks)),
            20 => Just(Step::Exchange),
            20 => (any::<prop::sample::Index>(), how).prop_map(|(index, how)| Step::Answer(index, how)),
            1 => any::<prop::sample::Index>().prop_map(Step::Guess),
            1 => prop::collection::vec(any::<u8>(), 0..40).prop_map(Step::Garbage),
            1 => Just(Step::End),
        ];
        prop::collection::vec(step, 1..120)
    }

    /// An answer without data.
    fn success(cid: u16) -> Vec<u8> {
        Cqe { cid, status: Status::SUCCESS, ..Cqe::default() }.to_bytes().to_vec()
    }

    /// The data of the request with this number.
    fn contents(number: u64, length: usize) -> Vec<u8> {
        (0..length as u64).map(|at| (number * 31 + at * 7 + at / 256) as u8).collect()
    }

    /// The target, with its unanswered commands.
    struct Target {
        end: fabric::Endpoint,
        commands: Vec<(Sqe, usize)>,
    }

    impl Target {
        fn look(&mut self) {
            while let Some(event) = self.end.poll() {
                if let Event::Message(bytes) = event {
                    let (sqe, capsule) = bytes.split_first_chunk().expect("a command");
                    let sqe = Sqe::from_bytes(sqe);
                    if sqe.opcode == nvm::WRITE {
                        self.check_written(&sqe, capsule);
                    }
                    self.commands.push((sqe, capsule.len()));
                }
            }
        }

        /// Checks that a write brings its own data. Its number is its first block.
        fn check_written(&self, sqe: &Sqe, capsule: &[u8]) {
            let number = u64::from(sqe.cdw10);
            if let DataPointer::Keyed { address, length_bytes, key, .. } = DataPointer::of(&sqe.sgl)
            {
                let buffer = IoBuffer::new(length_bytes as usize);
                self.end.post([Work::Read { id: 0, key, address, buffer }]);
                let read = std::iter::from_fn(|| self.end.poll()).find_map(|event| match event {
                    Event::Read { buffer, .. } => Some(buffer),
                    _ => None,
                });
                let buffer = read.expect("the memory is there");
                assert_eq!(&*buffer, contents(number, length_bytes as usize));
            } else {
                assert_eq!(capsule, contents(number, capsule.len()));
            }
        }

        fn answer(&mut self, index: prop::sample::Index, how: How) {
            if self.commands.is_empty() {
                return;
            }
            let at = index.index(self.commands.len());
            let (sqe, _) = self.commands.remove(at);
            let is_chain = sqe.opcode == nvm::PUSHDOWN;
            let status = if how == How::Badly { Status::INTERNAL_ERROR } else { Status::SUCCESS };
            let cid = if how == How::Strangely { sqe.cid ^ 0x8000 } else { sqe.cid };
            let mut cqe = Cqe { cid, status, ..Cqe::default() };
            let number = u64::from(sqe.cdw10);
            let mut response = Vec::new();
            match DataPointer::of(&sqe.sgl) {
                DataPointer::Keyed { address, length_bytes, key, .. }
                    if sqe.opcode != nvm::WRITE =>
                {
                    let length = if is_chain { length_bytes / 3 } else { length_bytes };
                    cqe.dw1 = if how == How::TooLong { length_bytes + 1 } else { length };
                    let bytes = contents(number, length as usize);
                    self.end.post([Work::Write { key, address, bytes }]);
                }
                _ if is_chain && how != How::Badly => {
                    cqe.dw1 = 20;
                    response = contents(number, if how == How::TooLong { 2000 } else { 20 });
                }
                _ => {}
            }
            let message = [&cqe.to_bytes()[..], &response].concat();
            let times = if how == How::Again { 2 } else { 1 };
            self.end.post((0..times).map(|_| Work::Send(message.clone())));
        }
    }

    /// The port, and its open requests: by number, their kind and length.
    struct Host {
        port: FabricPort,
        open: BTreeMap<u64, (u8, u32)>,
        next: u64,
    }

    impl Host {
        fn submit(&mut self, kind: u8, blocks: u32) {
            let (number, length) = (self.next, blocks * BLOCK_BYTES);
            let length_bytes = length.min(TRANSFER_BYTES);
            let offset_bytes = number * u64::from(BLOCK_BYTES);
            let data = contents(number, length_bytes as usize);
            let call = PushdownCall {
                nsid: 1,
                function: 1,
                files: &[FileVersion { id: 1, version: 1 }],
                first_file: 0,
                first_offset_bytes: 0,
                first_size_bytes: BLOCK_BYTES,
                scratch: b"argument",
                scratch_size_bytes: 0,
                answer_max_bytes: if kind == 3 { 64 } else { length_bytes },
            };
            let request = match kind {
                0 => Request::Read { nsid: 1, offset_bytes, length_bytes },
                1 => Request::Write { nsid: 1, offset_bytes, data: &data, fua: false },
                2 => Request::Flush { nsid: 1 },
                _ => Request::Pushdown(call),
            };
            match self.port.submit(number, &request) {
                Ok(()) => {
                    self.open.insert(number, (kind, length_bytes));
                    self.next += 1;
                }
                Err(SubmitError::QueueFull) => assert_eq!(self.open.len(), usize::from(DEPTH)),
                Err(error) => assert_eq!(error, SubmitError::NotConnected),
            }
        }

        /// Requests that wait for a room.
        fn waits(&self) -> usize {
            self.port.waiting.len()
        }

        /// A response to one of the waiting requests.
        fn guess(&self, at: usize) -> Vec<u8> {
            success(self.port.waiting[at].command.sqe.cid)
        }

        /// Sends and receives. Returns whether the connection is still open.
        fn exchange(&mut self) -> bool {
            let Host { port, open, .. } = self;
            port.ring();
            port.send(0);
            let mut ended = |completion: crate::Completion<'_>| {
                let (kind, length) = open.remove(&completion.tag).expect("it ends once");
                match completion.result {
                    Ok(done) if kind == 0 => {
                        assert_eq!(done.data, contents(completion.tag, length as usize));
                    }
                    // Chains do not carry their numbers.
                    Ok(done) if kind > 2 => assert_eq!(done.data, contents(0, done.dw1 as usize)),
                    Ok(done) => assert!(done.data.is_empty()),
                    Err(error) => assert!(matches!(error, RequestError::Command(_))),
                }
            };
            let outcome = port.receive(&mut ended);
            if let Err(reason) = outcome {
                port.close(reason);
                let mut lost = |completion: crate::Completion<'_>| {
                    assert!(matches!(completion.result, Err(RequestError::Lost(_))));
                    open.remove(&completion.tag).expect("it ends once");
                };
                port.lost(&mut lost);
                assert!(open.is_empty(), "all have ended");
            }
            outcome.is_ok()
        }
    }

    fn connected(admin: bool) -> (Host, Target) {
        let [host, target] = fabric::Endpoint::pair().expect("event counters");
        let host = Mutex::new(Some(host));
        let connector = Connector::new(move || {
            host.lock().expect("no panic").take().ok_or(io::ErrorKind::NotConnected.into())
        });
        let namespace =
            NamespaceInfo { nsid: 1, blocks: 1 << 40, block_bytes: BLOCK_BYTES, nguid: [0; 16] };
        let config = InitiatorConfig {
            admin,
            digests: Digests::default(),
            depth: DEPTH,
            in_capsule_bytes: 1024,
            max_transfer_bytes: TRANSFER_BYTES,
            namespaces: [namespace].into(),
        };
        let port = FabricPort::within(&connector, config).expect("connected");
        let host = Host { port, open: BTreeMap::new(), next: 0 };
        (host, Target { end: target, commands: Vec::new() })
    }

    /// The protocol error that the port reports for an answer.
    fn protocol_error(port: &mut FabricPort) -> Option<&'static str> {
        match port.receive(&mut |completion| panic!("{completion:?}")) {
            Err(LostReason::Protocol(violation)) => Some(violation.reason),
            _ => None,
        }
    }

    #[test]
    fn answers_to_commands_that_were_not_sent() {
        const NOT_SENT: Option<&str> = Some("an answer to a command that was not sent");
        // The doorbell was not rung.
        let (mut host, target) = connected(false);
        host.submit(2, 0);
        // The first use of the first slot.
        target.end.post([Work::Send(success(1 << 12))]);
        assert_eq!(protocol_error(&mut host.port), NOT_SENT);
        // The memory has room for four.
        let (mut host, target) = connected(false);
        (0..5).for_each(|_| host.submit(1, TRANSFER_BYTES / BLOCK_BYTES));
        assert_eq!(host.waits(), 1);
        host.port.ring();
        host.port.send(0);
        target.end.post([Work::Send(host.guess(0))]);
        assert_eq!(protocol_error(&mut host.port), NOT_SENT);
    }

    /// The time that a command waits for memory of this side is not the target's.
    #[test]
    fn the_timeout_of_a_command_starts_when_it_is_sent() {
        let (mut host, target) = connected(false);
        // The memory has room for four.
        (0..5).for_each(|_| host.submit(1, TRANSFER_BYTES / BLOCK_BYTES));
        host.port.ring();
        host.port.send(0);
        let answers = std::iter::from_fn(|| target.end.poll()).filter_map(|event| match event {
            Event::Message(bytes) => {
                let sqe = bytes.first_chunk().expect("a command");
                Some(Work::Send(success(Sqe::from_bytes(sqe).cid)))
            }
            _ => None,
        });
        target.end.post(answers.collect::<Vec<Work>>());
        host.port.receive(&mut |_| {}).expect("connected");
        assert_eq!(host.port.requests().expired(1000, 50), None);
        host.port.send(1000);
        assert_eq!(host.port.requests().expired(1050, 50), None);
        assert!(host.port.requests().expired(1051, 50).is_some());
    }

    #[test]
    fn an_answer_that_arrives_with_the_end_counts() {
        let (host, target) = connected(true);
        // The first use of the first slot.
        target.end.post([Work::Send(success(1 << 12))]);
        target.end.close();
        let port = Port::Fabric(Box::new(host.port));
        let mut queue = Queue::over(port, &Options::default(), Duration::from_secs(9));
        let answer = queue.call("Flush", Sqe::new(nvm::FLUSH, 1), &[], 0);
        assert_eq!(answer.expect("an answer").0.status, Status::SUCCESS);
        assert!(!queue.is_connected());
    }

    #[test]
    fn data_larger_than_a_capsule_both_ways() {
        // Both kinds of queue have the same limit here.
        for admin in [false, true] {
            let (mut host, mut target) = connected(admin);
            let raw = |data_out| Request::Raw {
                sqe: Sqe::new(0xc3, 0),
                data_out,
                data_in_max_bytes: BLOCK_BYTES,
            };
            let too_long = Err(SubmitError::TooLong { bytes: 1025, max_bytes: 1024 });
            assert_eq!(host.port.submit(0, &raw(&[1; 1025])), too_long);
            assert_eq!(host.port.requests().in_flight(), 0);
            assert_eq!(host.port.submit(0, &raw(&[1; 1024])), Ok(()));
            host.port.ring();
            host.port.send(0);
            target.look();
            assert_eq!(target.commands[0].1, 1024);
        }
    }

    proptest! {
        /// With a target that answers in any order, wrongly or not at all, and a connection that ends at any time, each
        /// request ends once, with its own data or none.
        #[test]
        fn any_behaviour_of_a_target_ends_each_request_once(steps in steps()) {
            let (mut host, mut target) = connected(false);
            let mut goes_on = true;
            for step in steps {
                match step {
                    Step::Submit(kind, blocks) => host.submit(kind, blocks),
                    Step::Exchange => goes_on = host.exchange(),
                    Step::Answer(index, how) => {
                        target.look();
                        target.answer(index, how);
                    }
                    Step::Guess(index) if host.waits() > 0 => {
                        target.end.post([Work::Send(host.guess(index.index(host.waits())))]);
                        goes_on = host.exchange();
                        prop_assert!(!goes_on, "it was not sent");
                    }
                    Step::Guess(_) => {}
                    Step::Garbage(bytes) => target.end.post([Work::Send(bytes)]),
                    Step::End => target.end.close(),
                }
                if !goes_on {
                    break;
                }
            }
            target.end.close();
            while goes_on {
                goes_on = host.exchange();
            }
            prop_assert!(host.open.is_empty());
        }
    }
}
