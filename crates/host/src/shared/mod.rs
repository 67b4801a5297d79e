//! A lane that threads share, by flat combining: one waiting thread drives the lane for all.
//!
//! A thread queues its request under a short lock. One of the waiting threads drives the lane: it waits for the socket
//! without the lock, receives for all threads, hands out the answers, and makes another thread the driver when its own
//! answer has come. There is no dedicated I/O thread, and requests of several threads leave in one send (i10 §3).
//!
//! The other waiting threads yield the processor a few times before they sleep, because being woken costs more than
//! checking again. As long as other threads add requests meanwhile, the queued requests are held; when no thread adds
//! one, they leave.

mod gathering;
mod pace;
mod share;
mod state;
mod wake;

pub(crate) use share::LaneShare;
pub use state::{Answer, SharedLaneCounters};

use crate::lane::Lane;
use crate::transport::tcp::wait_ready;
use crate::vectors::{VectorLimits, Vectors};
use crate::{
    Caravan, ChainInfo, Controller, Error, PushdownCall, PushdownLimits, Request, SubmitError,
    interrupted,
};
use gathering::Gathering;
use rustix::thread::futex;
use rustix::time::{ClockId, Timespec, clock_gettime};
use state::{State, Wait, bit};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use wake::Wake;

/// Longest wait before timeouts and the lane's state are checked again.
const WAIT: Duration = Duration::from_secs(1);
/// Pause of a driver while its lane has no connection and looks for another path.
const LOOK: Duration = Duration::from_millis(1);
/// How often a caller yields before it sleeps: about as long as sleeping and being woken take, so that doing both costs
/// at most twice the cheaper one. If threads share a processor, yielding lets them work, and the answer is there after
/// the first or second yield.
const YIELDS: u32 = 4;
/// How long a caller that holds requests yields while no other thread adds one, in µs: about as long as a send takes,
/// so that waiting and sending cost at most twice the cheaper one.
const LONELY_US: u64 = 4;

/// Whether a request may be held until others join it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Urgency {
    /// It may be held, as [`Caravan`] says.
    #[default]
    Normal,
    /// It leaves at once, together with the queued requests (i10's no-delay flag).
    NoDelay,
}

/// A [`Lane`] for any number of threads: one queue pair and one connection to the target for all of
/// them, so that their requests share sends, receives and interrupts. Calls block.
///
/// With TCP, nothing is allocated per request once the buffers have grown. When the connection is lost, every call in
/// flight ends with [`RequestError::Lost`](crate::RequestError::Lost), later ones with [`SubmitError::NotConnected`]
/// until [`reconnect`](Self::reconnect). With several portals, calls continue on another path, as those of a [`Lane`]
/// do.
#[derive(Debug)]
pub struct SharedLane {
    state: Mutex<State>,
    /// Changes, under the lock, whenever calls end or the lane needs a driver. Callers sleep on it.
    epoch: AtomicU32,
    /// Ends a wait of the driver for the socket.
    wake: Arc<Wake>,
    /// Threads that found the queue full wait here.
    room: Condvar,
    clock: Instant,
    spin: Duration,
    never_sleep: bool,
    /// The connection is over.
    lost: AtomicBool,
    /// There is a connection now. With several portals, a lost one may be replaced.
    has_socket: AtomicBool,
}

/// Why the wait of a driver ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// The socket is ready.
    Here,
    /// Another thread has received.
    Elsewhere,
    /// Neither, as far as is known.
    Nothing,
}

type Guard<'a> = MutexGuard<'a, State>;

impl SharedLane {
    /// Shares `lane`, which must have no requests in flight.
    ///
    /// # Errors
    /// [`Error::LaneBusy`]; the connection is over, or the process has no descriptor left.
    pub fn new(lane: Lane, caravan: Caravan) -> Result<SharedLane, Error> {
        lane.require_idle()?;
        let (spin, never_sleep) = lane.waiting();
        let state = State::new(lane, caravan)?;
        Ok(SharedLane {
            wake: Arc::clone(&state.wake),
            state: Mutex::new(state),
            epoch: AtomicU32::new(0),
            room: Condvar::new(),
            clock: Instant::now(),
            spin,
            never_sleep,
            lost: AtomicBool::new(false),
            has_socket: AtomicBool::new(true),
        })
    }

    /// Sends chains of several threads as one command, a Pushdown Vector, if they leave at the same time, have the same
    /// function and files, and the target supports vectors; only as long as the measured times to their answers show
    /// that this is faster. Chains end as they do alone, except that a lost, damaged or late answer affects all chains
    /// of the vector. A chain whose answer is missing in the vector's, which a correct target does not cause, runs
    /// again alone.
    pub fn gather(&mut self, limits: &PushdownLimits) {
        self.gather_within(VectorLimits::of(limits));
    }

    /// The same, with the limits of one vector.
    pub(crate) fn gather_within(&mut self, limits: VectorLimits) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let takes_vectors = limits.chains > 1;
        state.gathering = takes_vectors.then(|| Gathering::new(limits, state.lane.config()));
    }

    /// Whether the connection was open at the last check; with several portals, whether the controller still exists.
    pub(crate) fn is_connected(&self) -> bool {
        !self.lost.load(Ordering::Relaxed)
    }

    /// Whether there was a connection at the last check, so that requests need not wait for a path.
    pub(crate) fn has_socket(&self) -> bool {
        self.has_socket.load(Ordering::Relaxed)
    }

    /// As [`is_connected`](Self::is_connected), but checks the connection first if no thread uses it: otherwise a loss
    /// would show only at its next use.
    pub(crate) fn look(&self) -> bool {
        if let Ok(state) = self.state.try_lock()
            && !state.driven
            && state.in_flight() == 0
            && wait_ready(&state.socket, false, Duration::ZERO) != Ok(false)
        {
            drop(self.receive_for_all(state));
        }
        self.is_connected()
    }

    /// Sends `request` and waits for its end. The returned data replaces the contents of `data`. Nothing is sent again,
    /// except by [`gather`](Self::gather): a chain that the target has interrupted ends with that error
    /// ([`CommandError::is_interrupted`](crate::CommandError::is_interrupted)).
    ///
    /// # Errors
    /// [`SubmitError`] for a request that the lane cannot take; as the target answered; the
    /// connection is lost. `data` is then empty.
    pub fn call(
        &self,
        request: Request<'_>,
        urgency: Urgency,
        data: &mut Vec<u8>,
    ) -> Result<Answer, Error> {
        data.clear();
        let (mut state, tag) = self.queue(&request, data)?;
        let now_us = self.now_us();
        let no_delay = urgency == Urgency::NoDelay;
        let load = state.load();
        if state.doorbell.queued(load, no_delay, now_us) {
            state.ring(now_us);
        } else if state.holder.is_none() {
            state.holder = Some(tag);
            state = self.hold(state, tag, now_us);
        }
        let mut yields = YIELDS;
        loop {
            if let Some(end) = state.take_end(tag, data) {
                return end.map_err(|error| error.of(request.name()));
            }
            state = if !state.driven {
                self.drive(state, &[tag], None)
            } else if yields > 0 {
                self.let_others_run(state, &[tag], &mut yields)
            } else {
                self.sleep(state, &[tag], None)
            };
        }
    }

    /// An encoder of vectors for this lane, to a target with these limits.
    pub(crate) fn vectors<T: Copy>(&self, limits: VectorLimits) -> Vectors<T> {
        Vectors::new(limits, self.lock().lane.config())
    }

    /// Queues a request in the lane; waits for room if there is none.
    fn queue(
        &self,
        request: &Request<'_>,
        data: &mut Vec<u8>,
    ) -> Result<(Guard<'_>, u32), SubmitError> {
        let mut state = self.lock();
        loop {
            match self.submit(&mut state, request, data, true) {
                Ok(tag) => return Ok((state, tag)),
                Err(SubmitError::QueueFull) => state = self.wait_for_room(state, None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Queues a request in the lane, with the memory for its data; see [`State::submit`].
    fn submit(
        &self,
        state: &mut State,
        request: &Request<'_>,
        data: &mut Vec<u8>,
        may_gather: bool,
    ) -> Result<u32, SubmitError> {
        state.submit(request, data, may_gather).inspect_err(|error| {
            // A worn connection could not be replaced. No request in flight would report this.
            if *error == SubmitError::NotConnected {
                self.note_connection(state);
            }
        })
    }

    /// Waits until a call has ended, which may leave room in the lane, or until `end`.
    fn wait_for_room<'a>(&'a self, mut state: Guard<'a>, end: Option<Instant>) -> Guard<'a> {
        if state.driven {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            state.crowd += 1;
            let woken = self.room.wait_timeout(state, left.map_or(WAIT, |left| left.min(WAIT)));
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
            state.crowd -= 1;
            return state;
        }
        // The requests that fill the queue may still be held.
        state.ring(self.now_us());
        self.drive(state, &[], end)
    }

    /// Yields to other threads, whose requests may join the held ones, until the held requests leave. They leave when
    /// the doorbell says so, or when no request joins: then other threads have no work that would be worth the wait.
    fn hold<'a>(&'a self, mut state: Guard<'a>, tag: u32, mut joined_us: u64) -> Guard<'a> {
        while state.holder == Some(tag) {
            let queued = state.load().queued_requests;
            drop(state);
            thread::yield_now();
            state = self.lock();
            if state.holder != Some(tag) {
                break;
            }
            let now_us = self.now_us();
            if state.load().queued_requests > queued {
                joined_us = now_us;
            }
            let is_lonely = now_us.saturating_sub(joined_us) >= LONELY_US;
            if is_lonely || state.doorbell.patience_left_us(now_us) == Some(0) {
                state.ring(now_us);
            }
        }
        state
    }

    /// Yields to other threads, while that is cheaper than sleeping, until calls have ended or the lane needs a driver.
    /// After the first yield it receives for all threads if none of its own calls has ended: the driver may be the last
    /// thread to run.
    fn let_others_run<'a>(&'a self, state: Guard<'a>, tags: &[u32], yields: &mut u32) -> Guard<'a> {
        let epoch = self.epoch.load(Ordering::Relaxed);
        let is_first = *yields == YIELDS;
        drop(state);
        while *yields > 0 && self.epoch.load(Ordering::Relaxed) == epoch {
            *yields -= 1;
            thread::yield_now();
            if is_first {
                return self.receive_missing(tags);
            }
        }
        self.lock()
    }

    /// Receives for all threads without waiting, unless one of these calls has ended or the driver sleeps on the
    /// socket.
    fn receive_missing(&self, tags: &[u32]) -> Guard<'_> {
        let state = self.lock();
        if !state.driven || state.driver_sleeps || tags.iter().any(|tag| state.has_ended(*tag)) {
            return state;
        }
        let socket = Arc::clone(&state.socket);
        drop(state);
        let came = wait_ready(&socket, false, Duration::ZERO) != Ok(false);
        let state = self.lock();
        if came && !state.driver_sleeps { self.receive_for_all(state) } else { state }
    }

    /// Receives without waiting, and wakes the threads whose calls have ended.
    fn receive_for_all<'a>(&'a self, mut state: Guard<'a>) -> Guard<'a> {
        let (ended, mut to_wake) = self.receive(&mut state);
        if ended == 0 {
            return state;
        }
        if !state.driven {
            // A thread that was about to drive may have got its answer now.
            to_wake |= state.next_driver();
        }
        self.epoch.fetch_add(1, Ordering::Relaxed);
        let crowd = state.crowd;
        drop(state);
        self.wake(to_wake);
        if crowd > 0 {
            self.room.notify_all();
        }
        self.lock()
    }

    /// Sleeps until one of these calls has ended, this thread is to drive, or `left` has passed. Spurious wake-ups
    /// happen.
    fn sleep<'a>(
        &'a self,
        mut state: Guard<'a>,
        tags: &[u32],
        left: Option<Duration>,
    ) -> Guard<'a> {
        let Some(first) = tags.first().copied() else { return state };
        state.set_wait(tags, Wait::Asleep);
        let epoch = self.epoch.load(Ordering::Relaxed);
        drop(state);
        let flags = futex::Flags::PRIVATE;
        let until = left.and_then(|left| {
            clock_gettime(ClockId::Monotonic).checked_add(Timespec::try_from(left).ok()?)
        });
        // Returns at once if the epoch has changed meanwhile.
        let _ = futex::wait_bitset(&self.epoch, flags, epoch, until.as_ref(), bit(first));
        let mut state = self.lock();
        state.set_wait(tags, Wait::Awake);
        state
    }

    /// Wakes the threads that sleep with one of these futex bits. The lock must not be held.
    fn wake(&self, bits: u32) {
        if let Some(bits) = NonZeroU32::new(bits) {
            let everyone = i32::MAX.cast_unsigned();
            let _ = futex::wake_bitset(&self.epoch, futex::Flags::PRIVATE, everyone, bits);
        }
    }

    /// Receives for all threads until one of the caller's calls has ended, or until `end`; without calls of its own,
    /// until any has ended.
    fn drive<'a>(&'a self, mut state: Guard<'a>, tags: &[u32], end: Option<Instant>) -> Guard<'a> {
        state.driven = true;
        // Another thread may receive the caller's answer as soon as the lock is given back.
        let mut epoch = self.epoch.load(Ordering::Relaxed);
        loop {
            // The thread that holds the requests may not get the processor in time.
            let now_us = self.now_us();
            let left_us = state.doorbell.patience_left_us(now_us);
            if left_us == Some(0) {
                state.ring(now_us);
            }
            let left = left_us.filter(|left| *left > 0).map_or(WAIT, Duration::from_micros);
            let until_end = end.map(|end| end.saturating_duration_since(Instant::now()));
            let at_most = left.min(state.lane.until_check()).min(until_end.unwrap_or(left));
            let came;
            (state, came) = self.wait(state, epoch, at_most);
            let (ended, mut to_wake) = match came {
                Came::Elsewhere => (0, 0),
                Came::Here | Came::Nothing => self.receive(&mut state),
            };
            let has_ended = match tags {
                [] => ended > 0 || came == Came::Elsewhere || !state.lane.is_connected(),
                tags => tags.iter().any(|tag| state.has_ended(*tag)),
            };
            let over = has_ended || end.is_some_and(|end| Instant::now() >= end);
            if over {
                state.driven = false;
                // This thread must not be chosen as the next driver.
                state.set_wait(tags, Wait::Away);
                to_wake |= state.next_driver();
            }
            if ended > 0 || over {
                self.epoch.fetch_add(1, Ordering::Relaxed);
            }
            epoch = self.epoch.load(Ordering::Relaxed);
            let crowd = state.crowd;
            drop(state);
            self.wake(to_wake);
            if crowd > 0 && (ended > 0 || over) {
                self.room.notify_all();
            }
            state = self.lock();
            if over {
                return state;
            }
        }
    }

    /// Wakes another thread to drive the lane if none does: the caller may have been chosen, and is leaving.
    fn hand_on<'a>(&'a self, mut state: Guard<'a>) -> Guard<'a> {
        let next = if state.driven { 0 } else { state.next_driver() };
        if next == 0 {
            return state;
        }
        self.epoch.fetch_add(1, Ordering::Relaxed);
        drop(state);
        self.wake(next);
        self.lock()
    }

    /// Waits until the socket is ready, another thread has received since `epoch`, or one has called the driver: spins
    /// and yields if that has paid off, then sleeps.
    fn wait<'a>(
        &'a self,
        mut state: Guard<'a>,
        epoch: u32,
        at_most: Duration,
    ) -> (Guard<'a>, Came) {
        let (socket, or_send) = (Arc::clone(&state.socket), state.lane.wants_to_send());
        let (has_socket, spin_pays) = (state.lane.has_socket(), state.spin_pays);
        let has_ended = || self.epoch.load(Ordering::Relaxed) != epoch;
        state.driver_sends = or_send;
        self.wake.clear(false);
        drop(state);
        if !has_socket {
            thread::sleep(at_most.min(LOOK));
            return (self.lock(), Came::Nothing);
        }
        let begun = Instant::now();
        let spin = match spin_pays {
            _ if self.never_sleep => at_most,
            true => self.spin.min(at_most),
            false => Duration::ZERO,
        };
        while begun.elapsed() < spin && !has_ended() && !self.wake.is_called() {
            // The receive that follows reports an error of poll.
            if wait_ready(&socket, or_send, Duration::ZERO) != Ok(false) {
                return (self.lock(), Came::Here);
            }
            thread::yield_now();
        }
        state = self.lock();
        if has_ended() || !Arc::ptr_eq(&socket, &state.socket) {
            return (state, Came::Elsewhere);
        }
        if self.never_sleep || self.wake.is_called() {
            return (state, Came::Nothing);
        }
        state.driver_sleeps = true;
        drop(state);
        let left = at_most.saturating_sub(begun.elapsed());
        let woken = self.wake.sleep(&socket, or_send, left);
        state = self.lock();
        state.driver_sleeps = false;
        let came = !self.wake.clear(true) && woken;
        if came {
            state.spin_pays = begun.elapsed() <= 2 * self.spin;
        }
        (state, if came { Came::Here } else { Came::Nothing })
    }

    /// Receives without waiting. Returns how many calls ended, and the futex bits of their sleeping threads.
    fn receive(&self, state: &mut State) -> (usize, u32) {
        let now_us = self.now_us();
        let received = state.receive(now_us);
        if state.is_urgent(received.0 > 0) {
            state.ring(now_us);
        }
        self.note_connection(state);
        received
    }

    fn note_connection(&self, state: &State) {
        if !state.lane.is_connected() {
            self.lost.store(true, Ordering::Relaxed);
        }
        self.has_socket.store(state.lane.has_socket(), Ordering::Relaxed);
    }

    fn lock(&self) -> Guard<'_> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Reads `length_bytes` from `offset_bytes` on into `data`, replacing its contents.
    ///
    /// # Errors
    /// As the target answered; more than [`Lane::max_transfer_bytes`].
    pub fn read(
        &self,
        nsid: u32,
        offset_bytes: u64,
        length_bytes: u32,
        data: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let request = Request::Read { nsid, offset_bytes, length_bytes };
        self.call(request, Urgency::Normal, data).map(|_| ())
    }

    /// Writes `data` at `offset_bytes`, stable after the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// As the target answered; more than [`Lane::max_transfer_bytes`].
    pub fn write(&self, nsid: u32, offset_bytes: u64, data: &[u8]) -> Result<(), Error> {
        let request = Request::Write { nsid, offset_bytes, data, fua: false };
        let end = self.call(request, Urgency::Normal, &mut Vec::new());
        end.map(|_| ())
    }

    /// Brings all completed writes to stable storage.
    ///
    /// # Errors
    /// As the target answered.
    pub fn flush(&self, nsid: u32) -> Result<(), Error> {
        let end = self.call(Request::Flush { nsid }, Urgency::Normal, &mut Vec::new());
        end.map(|_| ())
    }

    /// Runs one chain and puts its answer into `answer`, whose contents it replaces. An interrupted chain is sent
    /// again, as by [`Lane::pushdown`].
    ///
    /// # Errors
    /// As the target answered.
    pub fn pushdown(
        &self,
        call: &PushdownCall<'_>,
        answer: &mut Vec<u8>,
    ) -> Result<ChainInfo, Error> {
        let request = Request::Pushdown(*call);
        let end = interrupted::retry(|| self.call(request, Urgency::Normal, answer));
        end.map(|end| ChainInfo { hops: end.dw0 })
    }

    /// The lane's counters since it was made.
    #[must_use]
    pub fn counters(&self) -> SharedLaneCounters {
        let state = self.lock();
        let (bytes_sent, bytes_received) = (state.lane.bytes_sent(), state.lane.bytes_received());
        SharedLaneCounters { bytes_sent, bytes_received, ..state.counters }
    }

    /// Replaces a lost connection by a new one, as [`Lane::reconnect`] does.
    ///
    /// # Errors
    /// Those of [`Lane::reconnect`]: calls in flight must have ended.
    pub fn reconnect(&self, controller: &Controller) -> Result<(), Error> {
        let mut state = self.lock();
        match state.in_flight() {
            0 => state.reconnect(controller),
            busy => Err(Error::LaneBusy(busy)),
        }?;
        self.lost.store(false, Ordering::Relaxed);
        self.has_socket.store(true, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
impl SharedLane {
    pub(crate) fn renewals(&self) -> u32 {
        self.lock().lane.renewals()
    }

    pub(crate) fn is_worn(&self) -> bool {
        self.lock().lane.is_worn()
    }
}
