//! One end of a connection.

use super::connector::{self, ConnectError};
use super::listener::Request;
use super::memory::{Piece, Pieces};
use super::sys;
use super::verbs::{BATCH, Channel, Does, Ended, Happened, Posting, QueuePair, Size};
use super::words::words;
use crate::buffer::IoBuffer;
use crate::fabric::{Event, Work};
use rustix::event::epoll;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// How large an endpoint is. It registers `receives × receive_bytes + work_bytes + shared_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Messages that the peer may send before this end has sent one.
    pub receives: u16,
    /// Bytes of the longest.
    pub receive_bytes: usize,
    /// Memory of what is being sent, written and read, in bytes: no less than the longest work. Works for
    /// which there is no room wait.
    pub work_bytes: usize,
    /// Memory that the peer reads and writes by its key, in bytes; 0 is none.
    pub shared_bytes: usize,
}

impl Shape {
    /// Memory that an endpoint of this shape registers, in bytes.
    pub fn registered_bytes(&self) -> usize {
        usize::from(self.receives) * self.receive_bytes + self.work_bytes + self.shared_bytes
    }

    fn size(self) -> Size {
        Size {
            receives: self.receives.into(),
            receive_bytes: self.receive_bytes,
            works: works_of(self) as u32,
            work_bytes: self.work_bytes,
            shared_bytes: self.shared_bytes,
        }
    }
}

/// What [`Endpoint::signal`] has become readable for.
const ENDED: u64 = 0;
const HAPPENED: u64 = 1;

/// A work that is posted.
#[derive(Debug)]
struct Posted {
    number: u64,
    bytes: usize,
    piece: Piece,
    /// Of a read: its id, and where to.
    read: Option<(u64, IoBuffer)>,
}

/// Why a connection is over; see [`Event::Closed`].
struct Over {
    reason: String,
    by_peer: bool,
}

/// One end of a connection. Dropping it closes the connection.
///
/// Receives are posted again one for each message that is sent, so a peer that sends more than it gets
/// answers for waits at its own card.
#[derive(Debug)]
pub struct Endpoint {
    /// None if the connection could not be accepted.
    queue: Option<Queue>,
    shape: Shape,
    memory: Pieces,
    /// Works that are not posted, in order.
    waiting: VecDeque<Work>,
    posted: VecDeque<Posted>,
    last_number: u64,
    /// Receives whose messages were taken, to be posted again.
    free_receives: VecDeque<u32>,
    events: VecDeque<Event>,
    postings: Vec<Posting>,
    /// What is turned into events; empty at other times.
    ended: Vec<Ended>,
    /// Whether the next end of something makes the signal readable.
    is_armed: bool,
    is_closed: bool,
    taken_bytes: u64,
}

#[derive(Debug)]
struct Queue {
    pair: QueuePair,
    /// Readable when one of the pair's descriptors is.
    signal: OwnedFd,
}

impl Endpoint {
    /// Accepts a connection, with `accepted` as private data. If that fails, the connection is refused with
    /// `refused`, and the endpoint is closed from the start.
    pub fn accept(request: Request, shape: Shape, accepted: &[u8], refused: &[u8]) -> Endpoint {
        let mut endpoint = Endpoint::of(None, shape);
        match Queue::accept(request, shape, accepted, refused) {
            Ok(queue) => endpoint.queue = Some(queue),
            Err(error) => {
                endpoint.is_closed = true;
                let reason = format!("it cannot be accepted: {}", words(&error));
                endpoint.events.push_back(Event::Closed { reason, by_peer: false });
            }
        }
        endpoint
    }

    /// Connects to `address` within `timeout`, with at most 56 bytes of private data. Returns what the peer says
    /// with its acceptance, too.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(
        address: SocketAddr,
        shape: Shape,
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<(Endpoint, Vec<u8>), ConnectError> {
        let (pair, accepted) = connector::connect(address, shape.size(), private_data, timeout)?;
        let signal = Queue::signal_of(&pair)?;
        Ok((Endpoint::of(Some(Queue { pair, signal }), shape), accepted))
    }

    fn of(queue: Option<Queue>, shape: Shape) -> Endpoint {
        Endpoint {
            queue,
            shape,
            memory: Pieces::new(shape.work_bytes),
            waiting: VecDeque::new(),
            posted: VecDeque::new(),
            last_number: 0,
            free_receives: VecDeque::new(),
            events: VecDeque::new(),
            postings: Vec::new(),
            ended: Vec::with_capacity(BATCH),
            is_armed: false,
            is_closed: false,
            taken_bytes: 0,
        }
    }

    /// Readable when something may have happened; none of an endpoint that was closed from the start.
    pub fn signal(&self) -> Option<BorrowedFd<'_>> {
        self.queue.as_ref().map(|queue| queue.signal.as_fd())
    }

    /// Looks what has made the signal readable, which it is not any more.
    pub fn look(&mut self) {
        let Some(queue) = &mut self.queue else { return };
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 2];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok(count) = epoll::wait(&queue.signal, &mut events[..], Some(&now)) else { return };
        let mut over = None;
        for event in &events[..count] {
            match event.data.u64() {
                ENDED => {
                    queue.pair.clear_notifications();
                    self.is_armed = false;
                }
                _ => over = queue.what_happened(),
            }
        }
        if let Some(Over { reason, by_peer }) = over {
            // What has come before the end counts, and may say why. It ends: no receive is posted meanwhile.
            while self.take_ended() > 0 {}
            self.end(reason, by_peer);
        }
    }

    /// Does works, in this order. Their ends come as events.
    pub fn post(&mut self, works: impl IntoIterator<Item = Work>) {
        self.waiting.extend(works);
        self.submit();
    }

    /// What has happened next. If nothing has, the signal becomes readable when something does.
    pub fn poll(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            if self.take_ended() > 0 {
                self.submit();
                continue;
            }
            if self.is_closed && self.posted.is_empty() {
                // Nothing of it is ever done.
                let bytes = self.waiting.pop_front()?.bytes();
                return Some(Event::Done { bytes });
            }
            if std::mem::replace(&mut self.is_armed, true) {
                return None;
            }
            // What ends before this is seen by the next look, what ends later is told.
            if let Some(Err(error)) = self.queue.as_mut().map(|queue| queue.pair.notify()) {
                self.fail(format!("its completion queue does not work: {error}"));
            }
        }
    }

    /// Whether the connection is over.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Where the memory is that the peer reads and writes, for it, and its key; none of an endpoint without such
    /// memory, or whose queue pair is gone.
    pub fn shared(&self) -> Option<(u64, u32)> {
        let queue = self.queue.as_ref().filter(|_| self.shape.shared_bytes > 0)?;
        Some(queue.pair.shared_address())
    }

    /// Writes to it at `offset` bytes.
    ///
    /// # Panics
    /// If the range leaves it.
    pub fn write_shared(&mut self, offset: usize, bytes: &[u8]) {
        if let Some(queue) = &mut self.queue {
            queue.pair.write_shared(offset, bytes);
        }
    }

    /// Copies what is in it from `offset` bytes on.
    ///
    /// # Panics
    /// If the range leaves it.
    pub fn read_shared(&self, offset: usize, to: &mut [u8]) {
        if let Some(queue) = &self.queue {
            queue.pair.read_shared(offset, to);
        }
    }

    /// Bytes of works that have ended well.
    pub fn taken_bytes(&self) -> u64 {
        self.taken_bytes
    }

    /// Ends the connection: what is posted and what waits ends without having been done. Of a connection that is
    /// over, and whose card has not ended all that is posted, the rest is given up, and there is no signal any
    /// more.
    pub fn close(&mut self) {
        if self.is_closed && !self.posted.is_empty() {
            // Without its queue pair the card does no work, and touches no memory.
            self.queue = None;
            self.abandon(0);
        }
        self.fail("closed from here".to_owned());
    }

    /// The connection is over: something has failed at this end.
    fn fail(&mut self, reason: String) {
        self.end(reason, false);
    }

    /// The connection is over.
    fn end(&mut self, reason: String, by_peer: bool) {
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        self.events.push_back(Event::Closed { reason, by_peer });
        if let Some(queue) = &mut self.queue {
            queue.pair.disconnect();
        }
    }

    /// Posts what there is room for, with one call.
    fn submit(&mut self) {
        let Some(queue) = &mut self.queue else { return };
        if self.is_closed {
            return;
        }
        let mut outcome = Ok(());
        while let Some(work) = self.waiting.front()
            && self.posted.len() < works_of(self.shape)
            && let Some(piece) = self.memory.take(work.bytes())
            && let Some(work) = self.waiting.pop_front()
        {
            self.last_number += 1;
            let (number, bytes) = (self.last_number, work.bytes());
            let (does, read) = match work {
                Work::Send(message) => {
                    queue.pair.write(piece.offset, &message);
                    // The peer may send its next message once it has this one.
                    if let Some(slot) = self.free_receives.pop_front() {
                        outcome = outcome.and(queue.pair.post_receive(slot));
                    }
                    (Does::Send, None)
                }
                Work::Write { key, address, bytes } => {
                    queue.pair.write(piece.offset, &bytes);
                    (Does::Write { address, key }, None)
                }
                Work::Read { id, key, address, buffer } => {
                    (Does::Read { address, key }, Some((id, buffer)))
                }
            };
            self.posted.push_back(Posted { number, bytes, piece, read });
            // The end of a message tells that of what was written before it.
            let is_signaled = !matches!(does, Does::Write { .. });
            let offset = piece.offset;
            self.postings.push(Posting { number, does, offset, length: bytes, is_signaled });
        }
        if let Some(last) = self.postings.last_mut() {
            last.is_signaled = true;
        }
        outcome = outcome.and(queue.pair.post(&self.postings));
        if let Err(error) = outcome {
            // What was not posted never ends.
            let first = self.postings.first().map_or(u64::MAX, |posting| posting.number);
            self.postings.clear();
            self.fail(format!("works cannot be posted: {error}"));
            self.abandon(first);
        }
        self.postings.clear();
    }

    /// The works from this number on end without having been done.
    fn abandon(&mut self, first: u64) {
        let kept = self.posted.partition_point(|posted| posted.number < first);
        let ends = self.posted.drain(kept..).map(|Posted { bytes, .. }| Event::Done { bytes });
        self.events.extend(ends);
    }

    /// Turns what has ended into events; returns how much that was.
    fn take_ended(&mut self) -> usize {
        let Some(queue) = &mut self.queue else { return 0 };
        let mut ended = std::mem::take(&mut self.ended);
        let count = queue.pair.poll(|one| ended.push(one));
        for one in ended.drain(..) {
            match one {
                Ended::Receive(slot, Ok(bytes)) => self.received(slot, bytes),
                Ended::Work(number, Ok(())) => self.work_ended(number, true),
                Ended::Receive(_, Err(words)) => self.fail(format!("receive failed: {words}")),
                Ended::Work(number, Err(words)) => {
                    self.fail(format!("send failed: {words}"));
                    self.work_ended(number, false);
                }
            }
        }
        self.ended = ended;
        count
    }

    fn received(&mut self, slot: u32, bytes: usize) {
        let Some(queue) = &self.queue else { return };
        let mut message = vec![0; bytes.min(self.shape.receive_bytes)];
        queue.pair.received(slot, &mut message);
        self.free_receives.push_back(slot);
        if !self.is_closed {
            self.events.push_back(Event::Message(message));
        }
    }

    /// The works up to this number have ended, well or not.
    fn work_ended(&mut self, number: u64, is_done: bool) {
        while self.posted.front().is_some_and(|posted| posted.number <= number)
            && let Some(Posted { bytes, piece, read, .. }) = self.posted.pop_front()
        {
            let next = self.posted.front().map(|posted| posted.piece);
            let event = match (read, &self.queue) {
                // What was not read must not be taken for data.
                (Some((id, mut buffer)), Some(queue)) if is_done => {
                    queue.pair.read(piece.offset, &mut buffer);
                    Event::Read { id, buffer }
                }
                _ => Event::Done { bytes },
            };
            self.memory.give_back(piece, next);
            self.taken_bytes += if is_done { bytes as u64 } else { 0 };
            self.events.push_back(event);
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // The peer hears of it at once, and not only when it misses answers.
        self.close();
    }
}

impl Queue {
    fn accept(
        request: Request,
        shape: Shape,
        accepted: &[u8],
        refused: &[u8],
    ) -> io::Result<Queue> {
        let channel = match Channel::new() {
            Ok(channel) => channel,
            Err(error) => {
                request.reject(refused);
                return Err(error);
            }
        };
        let Request { id, .. } = request;
        let mut pair = QueuePair::new(id, channel, shape.size(), refused)?;
        let ready = Queue::signal_of(&pair).and_then(|signal| {
            pair.accept(accepted)?;
            Ok(signal)
        });
        match ready {
            Ok(signal) => Ok(Queue { pair, signal }),
            Err(error) => {
                pair.reject(refused);
                Err(error)
            }
        }
    }

    fn signal_of(pair: &QueuePair) -> io::Result<OwnedFd> {
        let signal = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (fd, data) in [(pair.completions(), ENDED), (pair.channel().as_fd(), HAPPENED)] {
            epoll::add(&signal, fd, epoll::EventData::new_u64(data), epoll::EventFlags::IN)?;
        }
        Ok(signal)
    }

    /// Why the connection is over, if it is.
    fn what_happened(&self) -> Option<Over> {
        let failed = |reason| Some(Over { reason, by_peer: false });
        loop {
            match self.pair.channel().next() {
                Ok(None) => return None,
                Ok(Some(Happened::Other { kind, status, .. })) => match kind {
                    sys::ESTABLISHED | sys::TIMEWAIT_EXIT => {}
                    sys::DISCONNECTED => {
                        let reason = "the other end closed the connection".to_owned();
                        return Some(Over { reason, by_peer: true });
                    }
                    sys::DEVICE_REMOVAL => return failed("the network card is gone".to_owned()),
                    kind => {
                        return failed(format!(
                            "the connection failed (connection manager's event {kind}, status {status})"
                        ));
                    }
                },
                // Nobody asks here: the request is refused by being dropped.
                Ok(Some(Happened::Request(..))) => {}
                Err(error) => return failed(format!("the connection manager fails: {error}")),
            }
        }
    }
}

/// Works that are posted at a time at most: for each message an answer, and data that is read or written.
fn works_of(shape: Shape) -> usize {
    2 * usize::from(shape.receives)
}
