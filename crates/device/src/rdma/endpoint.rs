//! One end of a connection.

use super::connector::{self, ConnectError};
use super::listener::Request;
use super::memory::{Piece, Pieces};
use super::sys;
use super::verbs::{BATCH, Channel, Does, Ended, Happened, Of, Posting, QueuePair, Size};
use super::words::words;
use crate::buffer::IoBuffer;
use crate::fabric::{Event, Work};
use rustix::event::{Timespec, epoll};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// The size of an endpoint. It registers `receives × receive_bytes + work_bytes + shared_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Messages that the peer may send before this end has sent one.
    pub receives: u16,
    /// Maximum bytes of a message.
    pub receive_bytes: usize,
    /// Memory for data being sent, written and read, in bytes: at least the size of the longest work. Works wait until
    /// there is room.
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

/// What has made a signal readable: bits.
const ENDED: u8 = 1;
const HAPPENED: u8 = 2;
/// From this many bytes of posted works on, completions of works make the signal readable: a caller with so much in
/// flight may need them to continue.
const QUIET_BYTES: usize = 32 << 10;
/// How many times in a row `look` may skip reading the signal because works have just been posted.
const SKIPS: u8 = 16;

/// A work that is posted.
#[derive(Debug)]
struct Posted {
    number: u64,
    bytes: usize,
    piece: Piece,
    /// For a read: its id and destination.
    read: Option<(u64, IoBuffer)>,
}

/// Why a connection is over; see [`Event::Closed`].
struct Over {
    reason: String,
    by_peer: bool,
}

/// One end of a connection. Dropping it closes the connection.
///
/// A receive is reposted only when a message is sent, so a peer that sends more messages than it gets answers waits at
/// its own card.
///
/// Completions of sends and writes do not make the signal readable, unless much is in flight (32 KiB), works wait, or a
/// caller asked for [all](Self::tell_all) or [the next](Self::tell_next). They are taken with other completions, or by
/// [`take_done`](Self::take_done).
#[derive(Debug)]
pub struct Endpoint {
    /// `None` if the connection could not be accepted.
    queue: Option<Queue>,
    shape: Shape,
    memory: Pieces,
    /// Works that are not posted yet, in order.
    waiting: VecDeque<Work>,
    posted: VecDeque<Posted>,
    /// Total bytes of the posted works, and how many are reads.
    posted_bytes: usize,
    reads: usize,
    last_number: u64,
    /// Receives whose messages were taken, to be reposted.
    free_receives: VecDeque<u32>,
    events: VecDeque<Event>,
    postings: Vec<Posting>,
    /// Completions being turned into events; empty at other times.
    ended: Vec<Ended>,
    /// Whether the next completion of a receive, and of a work, makes the signal readable.
    is_armed: [bool; 2],
    tells_all: bool,
    /// Whether the next work's completion makes the signal readable, whatever its kind.
    tells_next: bool,
    is_closed: bool,
    /// Whether the connection is ending, and the last messages are being taken.
    is_ending: bool,
    taken_bytes: u64,
}

#[derive(Debug)]
struct Queue {
    pair: QueuePair,
    /// Readable when one of the pair's descriptors is; only on the connecting end.
    signal: Option<OwnedFd>,
    /// Bits that `wait` has read from the signal, and `look` has not handled yet.
    told: AtomicU8,
    /// Whether works were posted since the last look.
    has_posted: bool,
    /// How many looks in a row were skipped for that reason.
    skipped: u8,
}

impl Endpoint {
    /// Accepts a connection, with `accepted` as private data. If that fails, rejects the connection with `refused`, and
    /// the endpoint is closed from the start.
    pub fn accept(request: Request, shape: Shape, accepted: &[u8], refused: &[u8]) -> Endpoint {
        let mut endpoint = Endpoint::of(None, shape);
        match Queue::accept(request, shape, accepted, refused) {
            Ok(queue) => endpoint.queue = Some(queue),
            Err(error) => {
                endpoint.is_closed = true;
                let reason = format!("the connection cannot be accepted: {}", words(&error));
                endpoint.events.push_back(Event::Closed { reason, by_peer: false });
            }
        }
        endpoint
    }

    /// Connects to `address` within `timeout`, with at most 56 bytes of private data. Also returns the private data of
    /// the peer's acceptance.
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
        let queue = Queue::of(pair, Some(signal));
        Ok((Endpoint::of(Some(queue), shape), accepted))
    }

    fn of(queue: Option<Queue>, shape: Shape) -> Endpoint {
        Endpoint {
            queue,
            shape,
            memory: Pieces::new(shape.work_bytes),
            waiting: VecDeque::new(),
            posted: VecDeque::new(),
            posted_bytes: 0,
            reads: 0,
            last_number: 0,
            free_receives: VecDeque::new(),
            events: VecDeque::new(),
            postings: Vec::new(),
            ended: Vec::with_capacity(BATCH),
            is_armed: [false; 2],
            tells_all: false,
            tells_next: false,
            is_closed: false,
            is_ending: false,
            taken_bytes: 0,
        }
    }

    /// Readable when there may be events; `None` for an endpoint that was accepted, which has [two](Self::signals), or
    /// whose queue pair is gone.
    pub fn signal(&self) -> Option<BorrowedFd<'_>> {
        self.queue.as_ref()?.signal.as_ref().map(OwnedFd::as_fd)
    }

    /// The first is readable when there are completions, the second when the connection has events; `None` for an
    /// endpoint that was closed from the start, or whose queue pair is gone.
    pub fn signals(&self) -> Option<[BorrowedFd<'_>; 2]> {
        let pair = &self.queue.as_ref()?.pair;
        Some([pair.completions(), pair.channel().as_fd()])
    }

    /// Waits until the [signal](Self::signal) is readable, at most `timeout`, which may be 0. Returns whether it is
    /// readable, and true if there is none.
    ///
    /// # Errors
    /// The kernel's error; an interruption by a Unix signal is not an error.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let Some(Queue { signal: Some(signal), told, .. }) = &self.queue else { return Ok(true) };
        let ready = ready(signal, timeout)?;
        told.fetch_or(ready, Ordering::Relaxed);
        Ok(ready != 0)
    }

    /// Handles the [signal](Self::signal), which is unreadable afterwards.
    pub fn look(&mut self) {
        let Some(Queue { signal: Some(signal), told, has_posted, skipped, .. }) = &mut self.queue
        else {
            return;
        };
        let told = match std::mem::take(told.get_mut()) {
            // A caller that has just posted works looks again before it waits.
            0 if std::mem::take(has_posted) && *skipped < SKIPS => {
                *skipped += 1;
                return;
            }
            0 => ready(signal, Duration::ZERO).unwrap_or(0),
            told => told,
        };
        *skipped = 0;
        if told & ENDED != 0 {
            self.look_at_ends();
        }
        if told & HAPPENED != 0 {
            self.look_at_connection();
        }
    }

    /// Handles the first of the [signals](Self::signals), which is unreadable afterwards.
    pub fn look_at_ends(&mut self) {
        let Some(queue) = &mut self.queue else { return };
        // Each armed queue notifies once.
        while self.is_armed != [false; 2]
            && let Some(of) = queue.pair.take_notification()
        {
            self.is_armed[of as usize] = false;
        }
    }

    /// Handles the second of the [signals](Self::signals), which is unreadable afterwards.
    pub fn look_at_connection(&mut self) {
        if let Some(Over { reason, by_peer }) = self.queue.as_ref().and_then(Queue::what_happened) {
            // Messages from before the end are still delivered, and may say why. The loop ends: no receive is posted
            // meanwhile.
            while self.take_ended() > 0 {}
            self.end(reason, by_peer);
        }
    }

    /// Performs works in this order. Their completions arrive as events.
    pub fn post(&mut self, works: impl IntoIterator<Item = Work>) {
        self.waiting.extend(works);
        self.submit();
    }

    /// The next event. If there is none, the signal becomes readable when there is one.
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
                // A waiting work will never be done.
                let bytes = self.waiting.pop_front()?.bytes();
                return Some(Event::Done { bytes });
            }
            // The next iteration finds completions from before the arming; later ones make the signal readable.
            if !self.arm(Of::Receives) & !self.arm_works() {
                return None;
            }
        }
    }

    /// Whether [`poll`](Self::poll) has an event to return without asking the card.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Makes the completion of each work from now on an event that the signal reports.
    pub fn tell_all(&mut self) {
        self.tells_all = true;
        self.arm_works();
        self.take_done();
    }

    /// Makes the signal report the completion of the next work.
    pub fn tell_next(&mut self) {
        self.tells_next = true;
        self.arm_works();
        // The signal does not report completions from before the arming.
        self.take_done();
    }

    /// Takes completions of works, also those that the signal does not report, and posts works that now have room.
    pub fn take_done(&mut self) {
        while self.take(Of::Works) > 0 {}
        self.submit();
    }

    /// Whether the signal must report the completion of a work.
    fn awaits_works(&self) -> bool {
        self.is_closed
            || self.tells_all
            || self.tells_next && !self.posted.is_empty()
            || self.reads > 0
            || !self.waiting.is_empty()
            || self.posted_bytes >= QUIET_BYTES
            // A failing card ends its receives, but none is posted: only works can report the failure.
            || self.free_receives.len() == usize::from(self.shape.receives)
    }

    /// Makes the signal report the next completion of a work, if that is needed. Returns whether it did not before.
    fn arm_works(&mut self) -> bool {
        self.awaits_works() && self.arm(Of::Works)
    }

    /// Makes the signal report the next completion in this queue. Returns whether it did not before.
    fn arm(&mut self, of: Of) -> bool {
        if std::mem::replace(&mut self.is_armed[of as usize], true) {
            return false;
        }
        if let Some(Err(error)) = self.queue.as_mut().map(|queue| queue.pair.notify(of)) {
            self.fail(format!("the completion queue failed: {error}"));
        }
        true
    }

    /// Whether the connection is over.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// The address of the memory that the peer reads and writes, as the peer names it, and its key; `None` for an
    /// endpoint without such memory, or whose queue pair is gone.
    pub fn shared(&self) -> Option<(u64, u32)> {
        let queue = self.queue.as_ref().filter(|_| self.shape.shared_bytes > 0)?;
        Some(queue.pair.shared_address())
    }

    /// Writes to the shared memory at `offset` bytes.
    ///
    /// # Panics
    /// If the range leaves it.
    pub fn write_shared(&mut self, offset: usize, bytes: &[u8]) {
        if let Some(queue) = &mut self.queue {
            queue.pair.write_shared(offset, bytes);
        }
    }

    /// Copies from the shared memory at `offset` bytes.
    ///
    /// # Panics
    /// If the range leaves it.
    pub fn read_shared(&self, offset: usize, to: &mut [u8]) {
        if let Some(queue) = &self.queue {
            queue.pair.read_shared(offset, to);
        }
    }

    /// Bytes of works that have ended successfully.
    pub fn taken_bytes(&self) -> u64 {
        self.taken_bytes
    }

    /// Ends the connection: posted and waiting works end without having been done. If the connection has ended already,
    /// and the card has not ended all posted works, gives these up; there is no signal afterwards.
    pub fn close(&mut self) {
        if self.is_closed && !self.posted.is_empty() {
            // Without a queue pair the card does no work, and accesses no memory.
            self.queue = None;
            self.abandon(0);
        }
        self.fail("closed by this side".to_owned());
    }

    /// Ends the connection because of a failure at this end.
    fn fail(&mut self, reason: String) {
        self.end(reason, false);
    }

    /// Ends the connection. Messages that have arrived are still delivered, and may say why.
    fn end(&mut self, reason: String, by_peer: bool) {
        // Completions taken below may report errors, and would end the connection again.
        if self.is_closed || std::mem::replace(&mut self.is_ending, true) {
            return;
        }
        while self.take(Of::Receives) > 0 {}
        self.is_closed = true;
        self.events.push_back(Event::Closed { reason, by_peer });
        if let Some(queue) = &mut self.queue {
            queue.pair.disconnect();
        }
    }

    /// Posts as many waiting works as there is room for.
    fn submit(&mut self) {
        loop {
            self.submit_once();
            if self.waiting.is_empty() || self.is_closed {
                return;
            }
            // Earlier completions make room, but the signal does not report them; later ones must be reported.
            if self.take(Of::Works) == 0 && !self.arm_works() {
                return;
            }
        }
    }

    /// Posts as many waiting works as there is room for, with one call.
    fn submit_once(&mut self) {
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
            self.posted_bytes += bytes;
            self.reads += usize::from(read.is_some());
            self.posted.push_back(Posted { number, bytes, piece, read });
            // The completion of a send covers the writes before it.
            let is_signaled = !matches!(does, Does::Write { .. });
            let offset = piece.offset;
            self.postings.push(Posting { number, does, offset, length: bytes, is_signaled });
        }
        if let Some(last) = self.postings.last_mut() {
            last.is_signaled = true;
        }
        if self.postings.is_empty() {
            return;
        }
        queue.has_posted = true;
        // Arm before posting, or a completion that must be reported could be missed.
        self.arm_works();
        let Some(queue) = &mut self.queue else { return };
        outcome = outcome.and(queue.pair.post(&self.postings));
        if let Err(error) = outcome {
            // Works that were not posted never complete.
            let first = self.postings.first().map_or(u64::MAX, |posting| posting.number);
            self.postings.clear();
            self.fail(format!("cannot post work requests: {error}"));
            self.abandon(first);
        }
        self.postings.clear();
    }

    /// Ends the works from this number on without their having been done.
    fn abandon(&mut self, first: u64) {
        let kept = self.posted.partition_point(|posted| posted.number < first);
        for Posted { bytes, read, .. } in self.posted.drain(kept..) {
            self.posted_bytes -= bytes;
            self.reads -= usize::from(read.is_some());
            self.events.push_back(Event::Done { bytes });
        }
    }

    /// Turns completions into events; returns their number.
    fn take_ended(&mut self) -> usize {
        self.take(Of::Receives) + self.take(Of::Works)
    }

    /// Turns the completions in this queue into events; returns their number.
    fn take(&mut self, of: Of) -> usize {
        let Some(queue) = &mut self.queue else { return 0 };
        let mut ended = std::mem::take(&mut self.ended);
        let count = queue.pair.poll(of, |one| ended.push(one));
        for one in ended.drain(..) {
            match one {
                Ended::Receive(slot, Ok(bytes)) => self.received(slot, bytes),
                Ended::Work(number, Ok(())) => self.work_ended(number, true),
                Ended::Receive(_, Err(words)) => self.fail(format!("a receive failed: {words}")),
                Ended::Work(number, Err(words)) => {
                    self.fail(format!("a work request failed: {words}"));
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

    /// Ends the works up to this number, successfully or not.
    fn work_ended(&mut self, number: u64, is_done: bool) {
        while self.posted.front().is_some_and(|posted| posted.number <= number)
            && let Some(Posted { bytes, piece, read, .. }) = self.posted.pop_front()
        {
            self.posted_bytes -= bytes;
            self.reads -= usize::from(read.is_some());
            let next = self.posted.front().map(|posted| posted.piece);
            let event = match (read, &self.queue) {
                // The buffer of a read that failed must not be taken for data.
                (Some((id, mut buffer)), Some(queue)) if is_done => {
                    queue.pair.read(piece.offset, &mut buffer);
                    Event::Read { id, buffer }
                }
                _ => Event::Done { bytes },
            };
            self.memory.give_back(piece, next);
            self.tells_next = false;
            self.taken_bytes += if is_done { bytes as u64 } else { 0 };
            self.events.push_back(event);
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // Tells the peer at once; otherwise it would only notice by missing answers.
        self.close();
    }
}

impl Queue {
    fn of(pair: QueuePair, signal: Option<OwnedFd>) -> Queue {
        Queue { pair, signal, told: AtomicU8::new(0), has_posted: false, skipped: 0 }
    }

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
        match pair.accept(accepted) {
            Ok(()) => Ok(Queue::of(pair, None)),
            Err(error) => {
                pair.reject(refused);
                Err(error)
            }
        }
    }

    fn signal_of(pair: &QueuePair) -> io::Result<OwnedFd> {
        let signal = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (fd, data) in [(pair.completions(), ENDED), (pair.channel().as_fd(), HAPPENED)] {
            epoll::add(&signal, fd, epoll::EventData::new_u64(data.into()), epoll::EventFlags::IN)?;
        }
        Ok(signal)
    }

    /// Why the connection has ended, if it has.
    fn what_happened(&self) -> Option<Over> {
        let failed = |reason| Some(Over { reason, by_peer: false });
        loop {
            match self.pair.channel().next() {
                Ok(None) => return None,
                Ok(Some(Happened::Other { kind, status, .. })) => match kind {
                    sys::ESTABLISHED | sys::TIMEWAIT_EXIT => {}
                    sys::DISCONNECTED => {
                        let reason = "the peer closed the connection".to_owned();
                        return Some(Over { reason, by_peer: true });
                    }
                    sys::DEVICE_REMOVAL => return failed("the network card is gone".to_owned()),
                    kind => {
                        return failed(format!(
                            "the connection failed (connection manager's event {kind}, status {status})"
                        ));
                    }
                },
                // Not a listener: dropping the request rejects it.
                Ok(Some(Happened::Request(..))) => {}
                Err(error) => return failed(format!("the connection manager failed: {error}")),
            }
        }
    }
}

/// Bits for the readable parts of a signal, after waiting at most `timeout`.
fn ready(signal: &OwnedFd, timeout: Duration) -> io::Result<u8> {
    let nothing = epoll::EventFlags::empty();
    let mut events = [epoll::Event { flags: nothing, data: epoll::EventData::new_u64(0) }; 2];
    let timeout = Timespec::try_from(timeout).ok();
    match epoll::wait(signal, &mut events[..], timeout.as_ref()) {
        Ok(count) => {
            Ok(events[..count].iter().fold(0, |ready, event| ready | event.data.u64() as u8))
        }
        Err(rustix::io::Errno::INTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// Maximum works posted at a time: for each message an answer, and data that is read or written.
fn works_of(shape: Shape) -> usize {
    2 * usize::from(shape.receives)
}
