//! A thread's share of a shared lane: the thread submits any number of requests and waits for them, as on a
//! [`Lane`](crate::Lane) of its own.

use super::state::Wait;
use super::{Answer, Guard, SharedLane, YIELDS};
use crate::deadline::deadline;
use crate::{
    Completion, Done, Error, InitiatorConfig, LostReason, Request, RequestError, SubmitError,
};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Largest answer buffer that is kept for reuse, in bytes.
const KEPT_MAX_BYTES: usize = 64 << 10;

/// A request that has ended: its name, its result and its data.
type Ended = (u64, Result<Answer, RequestError>, Vec<u8>);

/// Requests of one thread at a time on a lane that other threads use as well. When it is dropped, requests in flight
/// are forgotten: their answers are discarded.
#[derive(Debug)]
pub(crate) struct LaneShare {
    lane: Arc<SharedLane>,
    /// The lane's tags of the requests in flight; `names` has the caller's names of them.
    tags: Vec<u32>,
    names: Vec<u64>,
    /// Whether requests may still be unsent, held for others to join.
    unsent: bool,
    /// Whether unsent requests must leave at once.
    rings: bool,
    ended: Vec<Ended>,
    /// Buffers for answers.
    spare: Vec<Vec<u8>>,
    sent_bytes: u64,
    received_bytes: u64,
}

impl LaneShare {
    pub(crate) const fn new(lane: Arc<SharedLane>) -> Self {
        Self {
            lane,
            tags: Vec::new(),
            names: Vec::new(),
            unsent: false,
            rings: false,
            ended: Vec::new(),
            spare: Vec::new(),
            sent_bytes: 0,
            received_bytes: 0,
        }
    }

    /// Uses another lane from now on; only if no request is in flight.
    pub(crate) fn move_to(&mut self, lane: &Arc<SharedLane>) {
        if self.tags.is_empty() {
            self.lane = Arc::clone(lane);
        }
    }

    /// The negotiated limits of the lane's connection.
    pub(crate) fn config(&self) -> InitiatorConfig {
        self.lane.lock().lane.config().clone()
    }

    /// Requests in flight, those not yet sent included.
    pub(crate) const fn requests_in_flight(&self) -> usize {
        self.tags.len()
    }

    /// See [`SharedLane::is_connected`].
    pub(crate) fn is_connected(&self) -> bool {
        self.lane.is_connected()
    }

    /// Bytes sent and received that this share has counted. Each byte of the lane is counted by exactly one share, not
    /// always by the one whose request caused it.
    pub(crate) const fn traffic(&self) -> (u64, u64) {
        (self.sent_bytes, self.received_bytes)
    }

    /// Queues a request; it is sent by the next [`wait`](Self::wait), or together with requests of other threads.
    ///
    /// # Errors
    /// See [`SubmitError`]; nothing is queued then. Other threads may fill the lane, so that it can be full although
    /// this share has no request in flight: [`wait`](Self::wait) then waits for room.
    pub(crate) fn submit(&mut self, name: u64, request: &Request<'_>) -> Result<(), SubmitError> {
        let mut memory = self.spare.pop().unwrap_or_default();
        memory.clear();
        let mut state = self.lane.lock();
        // A thread with several requests in flight merges chains into vectors itself.
        let may_gather = self.tags.is_empty();
        let tag = match self.lane.submit(&mut state, request, &mut memory, may_gather) {
            Ok(tag) => tag,
            Err(error) => {
                self.spare.push(memory);
                return Err(error);
            }
        };
        let load = state.load();
        self.rings |= state.doorbell.queued(load, false, self.lane.now_us());
        state.set_wait(&[tag], Wait::Away);
        drop(state);
        self.unsent = true;
        self.tags.push(tag);
        self.names.push(name);
        Ok(())
    }

    /// Sends the queued requests, and waits until at least one request of this share has ended, or `timeout` has passed
    /// (then 0). If none is in flight it waits for room in the lane. Calls `on_completion` for each request that has
    /// ended, with its name as the tag; other threads may use the lane meanwhile.
    ///
    /// # Errors
    /// The connection is lost; the requests in flight were reported to `on_completion`.
    pub(crate) fn wait(
        &mut self,
        timeout: Duration,
        on_completion: &mut dyn FnMut(Completion<'_>),
    ) -> Result<usize, Error> {
        let lane = Arc::clone(&self.lane);
        let mut state = self.leave(&lane, timeout.is_zero());
        self.take_ended(&mut state);
        if self.ended.is_empty() {
            state = match self.tags.is_empty() {
                _ if timeout.is_zero() => Self::look(&lane, state),
                true if state.is_full() => lane.wait_for_room(state, Some(deadline(timeout))),
                true => state,
                false => self.await_end(&lane, state, timeout),
            };
            self.take_ended(&mut state);
        }
        self.count_traffic(&mut state);
        // A thread that marks the lane as lost has ended all its requests before.
        let is_connected = lane.is_connected();
        drop(state);
        let (mut lost, count) = (None, self.ended.len());
        for (tag, end, data) in &self.ended {
            if let Err(RequestError::Lost(reason)) = end {
                lost = Some(*reason);
            }
            let result = end.map(|Answer { dw0, dw1 }| Done { data, dw0, dw1 });
            on_completion(Completion { tag: *tag, result });
        }
        for (_, _, data) in self.ended.drain(..) {
            if data.capacity() <= KEPT_MAX_BYTES {
                self.spare.push(data);
            }
        }
        // With several paths, a request may be lost while the lane continues.
        if is_connected { Ok(count) } else { Err(lost.unwrap_or(LostReason::HungUp).into()) }
    }

    /// Sends the queued requests, now or, if that may pay off, a little later with requests of other threads.
    fn leave<'a>(&mut self, lane: &'a SharedLane, now: bool) -> Guard<'a> {
        let mut state = lane.lock();
        let unsent = mem::take(&mut self.unsent) && state.load().queued_requests > 0;
        let rings = mem::take(&mut self.rings) || now;
        if !unsent {
            return state;
        }
        if rings {
            state.ring(lane.now_us());
        } else if let Some(last) = self.tags.last().filter(|_| state.holder.is_none()) {
            state.holder = Some(*last);
            state = lane.hold(state, *last, lane.now_us());
        }
        state
    }

    /// Receives without waiting, unless another thread drives the lane.
    fn look<'a>(lane: &'a SharedLane, state: Guard<'a>) -> Guard<'a> {
        if state.driven { state } else { lane.receive_for_all(state) }
    }

    /// Waits until one of this share's requests has ended, or `timeout` has passed.
    fn await_end<'a>(
        &self,
        lane: &'a SharedLane,
        mut state: Guard<'a>,
        timeout: Duration,
    ) -> Guard<'a> {
        let end = deadline(timeout);
        let (mut yields, mut drove) = (YIELDS, false);
        state.set_wait(&self.tags, Wait::Awake);
        while !self.tags.iter().any(|tag| state.has_ended(*tag)) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            drove = !state.driven;
            state = if drove {
                lane.drive(state, &self.tags, Some(end))
            } else if yields > 0 {
                lane.let_others_run(state, &self.tags, &mut yields)
            } else {
                lane.sleep(state, &self.tags, Some(left))
            };
        }
        state.set_wait(&self.tags, Wait::Away);
        // A driver has already woken the next one. Otherwise this thread may have been chosen as the driver.
        if drove { state } else { lane.hand_on(state) }
    }

    /// Takes the results of this share's requests that have ended.
    fn take_ended(&mut self, state: &mut Guard<'_>) {
        let mut place = 0;
        while let Some(tag) = self.tags.get(place).copied() {
            let mut data = Vec::new();
            match state.take_end(tag, &mut data) {
                Some(end) => {
                    self.tags.swap_remove(place);
                    self.ended.push((self.names.swap_remove(place), end, data));
                }
                None => place += 1,
            }
        }
    }

    /// Gives up the requests in flight: their answers are discarded when they come.
    pub(crate) fn forget(&mut self) {
        self.names.clear();
        if self.tags.is_empty() {
            return;
        }
        let mut state = self.lane.lock();
        for tag in self.tags.drain(..) {
            // If the request has ended already, taking its result is enough.
            if state.take_end(tag, &mut Vec::new()).is_none() {
                state.set_wait(&[tag], Wait::Forgotten);
            }
        }
    }

    fn count_traffic(&mut self, state: &mut Guard<'_>) {
        let now = (state.lane.bytes_sent(), state.lane.bytes_received());
        let before = mem::replace(&mut state.taken_bytes, now);
        self.sent_bytes += now.0.saturating_sub(before.0);
        self.received_bytes += now.1.saturating_sub(before.1);
    }
}

impl Drop for LaneShare {
    fn drop(&mut self) {
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::super::Came;
    use super::*;
    use crate::handed_lane::example_state;
    use crate::{Caravan, FileVersion, Lane, Options, PushdownCall};
    use socket2::SockRef;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::Ordering;
    use std::thread;

    /// A chain whose request is almost as long as a capsule may be.
    const CHAIN: PushdownCall<'static> = PushdownCall {
        nsid: 1,
        function: 1,
        files: &[FileVersion { id: 0, version: 1 }],
        first_file: 0,
        first_offset_bytes: 0,
        first_size_bytes: 512,
        scratch: &[7; 8000],
        scratch_size_bytes: 0,
        answer_max_bytes: 8,
    };

    /// A lane whose socket takes few bytes at once, and the other end of its connection.
    fn narrow_lane(options: &Options) -> (Arc<SharedLane>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let socket = TcpStream::connect(address).expect("it listens");
        let (peer, _) = listener.accept().expect("a connection");
        peer.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        socket.set_nodelay(true).expect("set");
        SockRef::from(&socket).set_send_buffer_size(16 << 10).expect("set");
        let lane = Lane::adopt_with(socket.into(), &example_state(), options).expect("a lane");
        (Arc::new(SharedLane::new(lane, Caravan::default()).expect("shared")), peer)
    }

    /// A thread leaves bytes that the socket does not take at once, while the driver only waits for an answer, for at
    /// most a second. The driver sends them as soon as the socket takes them.
    #[test]
    fn the_driver_sends_what_other_threads_leave() {
        const ROUNDS: u32 = 5;
        const CHAINS: u64 = 25;
        for poll in [false, true] {
            let command_timeout = Duration::from_secs(3600);
            let options = Options { poll, command_timeout, ..Options::default() };
            let (lane, peer) = narrow_lane(&options);
            thread::scope(|scope| {
                // It ends with this closure, and with it the driver's wait.
                let mut peer = peer;
                scope.spawn(|| {
                    let error = lane.pushdown(&CHAIN, &mut Vec::new()).expect_err("no answer");
                    assert!(error.lost().is_some(), "{error}");
                });
                let mut share = LaneShare::new(Arc::clone(&lane));
                let (begun, mut come) = (Instant::now(), 0);
                for _ in 0..ROUNDS {
                    let driver_waits = || {
                        let state = lane.lock();
                        state.driver_sleeps || poll && state.driven
                    };
                    while !driver_waits() {
                        thread::yield_now();
                    }
                    for name in 0..CHAINS {
                        share.submit(name, &Request::Pushdown(CHAIN)).expect("room");
                    }
                    let state = share.leave(&lane, true);
                    assert!(state.lane.wants_to_send(), "the socket has taken all at once");
                    let due = state.lane.bytes_sent() as usize + state.lane.queued().1;
                    drop(state);
                    peer.read_exact(&mut vec![0; due - come]).expect("the rest is sent");
                    come = due;
                }
                let took = begun.elapsed();
                assert!(took < Duration::from_secs(3), "{took:?}, poll: {poll}");
            });
        }
    }

    /// Another thread has received the driver's answer while the driver woke others, without the lock.
    #[test]
    fn the_driver_does_not_sleep_on_what_has_come() {
        let options = Options { spin_us: 0, ..Options::default() };
        let (lane, _peer) = narrow_lane(&options);
        let before = lane.epoch.fetch_add(1, Ordering::Relaxed);
        let long = Duration::from_secs(3600);
        assert_eq!(lane.wait(lane.lock(), before, long).1, Came::Elsewhere);
    }
}
