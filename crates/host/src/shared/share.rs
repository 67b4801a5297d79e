//! A thread's part of a shared lane: requests of its own, as many as it likes, and waits for them, as those of
//! a [`Lane`](crate::Lane).

use super::state::Wait;
use super::{Answer, Guard, SharedLane, YIELDS};
use crate::deadline::deadline;
use crate::{
    Completion, Done, Error, InitiatorConfig, LostReason, Request, RequestError, SubmitError,
};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory of an answer that is kept for the next one, in bytes, at most.
const KEPT_MAX_BYTES: usize = 64 << 10;

/// A request that has ended, and what it returned.
type Ended = (u64, Result<Answer, RequestError>, Vec<u8>);

/// Requests of one thread at a time on a lane that others use as well. Those that have not ended when it is
/// dropped are forgotten, and their answers, when they come, thrown away.
#[derive(Debug)]
pub(crate) struct LaneShare {
    lane: Arc<SharedLane>,
    /// The lane's names of the requests in flight, and the caller's.
    tags: Vec<u32>,
    names: Vec<u64>,
    /// Whether some may have to wait for others to leave with them.
    unsent: bool,
    /// Whether they are to leave at once.
    rings: bool,
    ended: Vec<Ended>,
    /// Memory for answers.
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

    /// Takes part in another lane from now on; nothing may be in flight.
    pub(crate) fn move_to(&mut self, lane: &Arc<SharedLane>) {
        if self.tags.is_empty() {
            self.lane = Arc::clone(lane);
        }
    }

    /// How the lane was connected.
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

    /// Bytes that this share has sent and received, for others as well, as others have for it: each byte is
    /// counted by one of them.
    pub(crate) const fn traffic(&self) -> (u64, u64) {
        (self.sent_bytes, self.received_bytes)
    }

    /// Queues a request; it is sent by the next [`wait`](Self::wait), or with those of others.
    ///
    /// # Errors
    /// See [`SubmitError`]; nothing is queued then. Others may fill the lane, so that it is full although nothing
    /// of this share is in flight: [`wait`](Self::wait) waits for room then.
    pub(crate) fn submit(&mut self, name: u64, request: &Request<'_>) -> Result<(), SubmitError> {
        let mut memory = self.spare.pop().unwrap_or_default();
        memory.clear();
        let mut state = self.lane.lock();
        // Who has many chains says itself which leave together.
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

    /// Sends what is queued, and waits until at least one request of this share has ended, or `timeout` has
    /// passed (then 0). If none is in flight it waits for room in the lane. `on_completion` is called for each
    /// that has ended, with its name as the tag; others may use the lane meanwhile.
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
        // Whoever has found it so has ended all requests before.
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
        // Over several paths a request may be lost and the lane go on.
        if is_connected { Ok(count) } else { Err(lost.unwrap_or(LostReason::HungUp).into()) }
    }

    /// Sends what is queued, now or, where that may pay, a little later with requests of others.
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

    /// Receives what is there, without waiting.
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
        // Who drove has handed on; another may have counted on this thread.
        if drove { state } else { lane.hand_on(state) }
    }

    /// Takes the ends of those that have ended.
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

    /// Nobody waits for the requests in flight any more: their answers, when they come, are thrown away.
    pub(crate) fn forget(&mut self) {
        self.names.clear();
        if self.tags.is_empty() {
            return;
        }
        let mut state = self.lane.lock();
        for tag in self.tags.drain(..) {
            // One that has ended already is over with that.
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
