//! The state of a shared lane, under its lock: the calls, and what each call's thread does.

use super::gathering::Gathering;
use super::wake::Wake;
use crate::doorbell::{Doorbell, Load};
use crate::lane::Lane;
use crate::{Caravan, Controller, Done, Error, Request, RequestError, SubmitError};
use std::mem;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The answer to a request: dwords 0 and 1 of its completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Command specific; of a chain, its hops.
    pub dw0: u32,
    /// Command specific; of a chain, the length of its answer in bytes.
    pub dw1: u32,
}

/// Counters of a shared lane since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedLaneCounters {
    /// Requests sent; each chain of a vector counts.
    pub requests: u64,
    /// Pushdown Vectors sent with chains of several callers ([`SharedLane::gather`](super::SharedLane::gather)).
    pub vectors: u64,
    /// Sends, of one caravan each.
    pub caravans: u64,
    /// Bytes sent on the connection, without TCP and IP headers.
    pub bytes_sent: u64,
    /// Bytes received on the connection, without TCP and IP headers.
    pub bytes_received: u64,
}

/// The state under the lock of a shared lane.
#[derive(Debug)]
pub(super) struct State {
    pub(super) lane: Lane,
    /// Chains that wait to leave as one command, if gathering is on.
    pub(super) gathering: Option<Gathering>,
    /// The lane's socket, to wait for without the lock.
    pub(super) socket: Arc<OwnedFd>,
    has_old_socket: bool,
    /// The calls, indexed by their tags on the lane.
    pub(super) calls: Vec<Call>,
    pub(super) free: Vec<u32>,
    /// Whether a thread drives the lane.
    pub(super) driven: bool,
    /// Whether that thread sleeps until the socket is ready. Then no other thread may receive, because the driver would
    /// not learn of its answer.
    pub(super) driver_sleeps: bool,
    /// Whether that thread waits until the socket takes more data as well, or has been called to do so.
    pub(super) driver_sends: bool,
    /// Calls the driver while it waits without the lock.
    pub(super) wake: Arc<Wake>,
    /// The call whose thread was last woken to drive the lane.
    pub(super) last_driver: usize,
    pub(super) doorbell: Doorbell,
    /// The first call whose request is held. Its thread decides when the held requests leave, including those that join
    /// later.
    pub(super) holder: Option<u32>,
    /// Threads that found the queue full.
    pub(super) crowd: usize,
    /// Whether the last sleep of a driver was short enough for spinning.
    pub(super) spin_pays: bool,
    pub(super) counters: SharedLaneCounters,
    /// Bytes sent and received that a share has already counted.
    pub(super) taken_bytes: (u64, u64),
}

/// One call, from its request to its answer.
#[derive(Debug, Default)]
pub(super) struct Call {
    wait: Wait,
    /// The call whose futex bit wakes the thread: this one, or the first if the thread waits for several.
    bit_of: u32,
    /// The caller's memory, for the answer's data.
    data: Vec<u8>,
    end: Option<Result<Answer, RequestError>>,
}

/// What the thread of a call does at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wait {
    /// No thread waits: the call is over.
    #[default]
    No,
    /// The thread does something else, and will ask for the end later.
    Away,
    /// No thread will ask for the end of the call.
    Forgotten,
    /// The thread is about to check the lane itself.
    Awake,
    /// The thread sleeps and must be woken.
    Asleep,
}

impl State {
    /// The state for a lane without requests in flight.
    ///
    /// # Errors
    /// The connection is over, or the process has no descriptor left.
    pub(super) fn new(lane: Lane, caravan: Caravan) -> Result<Self, Error> {
        Ok(Self {
            socket: Arc::new(lane.socket()?),
            has_old_socket: false,
            lane,
            gathering: None,
            calls: Vec::new(),
            free: Vec::new(),
            driven: false,
            driver_sleeps: false,
            driver_sends: false,
            wake: Arc::new(Wake::new()?),
            last_driver: 0,
            doorbell: Doorbell::new(caravan),
            holder: None,
            crowd: 0,
            spin_pays: true,
            counters: SharedLaneCounters::default(),
            taken_bytes: (0, 0),
        })
    }

    /// Whether the lane accepts no request until one has ended.
    pub(super) fn is_full(&self) -> bool {
        let commands = self.lane.requests_in_flight() + self.waiting().0;
        self.lane.is_full() || commands >= usize::from(self.lane.depth())
    }

    /// Chains that are gathered and not yet queued in the lane, and their bytes.
    fn waiting(&self) -> (usize, usize) {
        self.gathering.as_ref().map_or((0, 0), Gathering::waiting)
    }

    /// Requests in flight, those not yet sent included.
    pub(super) fn in_flight(&self) -> usize {
        let beyond = self.gathering.as_ref().map_or(0, Gathering::beyond);
        self.lane.requests_in_flight() + self.waiting().0 + beyond
    }

    pub(super) fn load(&self) -> Load {
        let (queued, waiting) = (self.lane.queued(), self.waiting());
        let queued_requests = queued.0 + waiting.0;
        Load {
            queued_requests,
            queued_bytes: queued.1 + waiting.1,
            in_flight: self.in_flight() - queued_requests,
        }
    }

    /// Whether requests are held although too few are in flight for holding to pay off.
    pub(super) fn is_idle(&self) -> bool {
        let load = self.load();
        load.queued_requests > 0 && self.doorbell.is_idle(load)
    }

    /// Sends all queued requests. The driver sends what the socket does not take now. The next receive reports a lost
    /// connection.
    pub(super) fn ring(&mut self, now_us: u64) {
        let requests = self.lane.queued().0 + self.queue_gathered(now_us);
        self.holder = None;
        self.doorbell.rung(requests, now_us);
        if requests > 0 {
            self.counters.requests += requests as u64;
            self.counters.caravans += 1;
            let _ = self.lane.flush_doorbell();
            self.leave_to_driver();
        }
    }

    /// Calls the driver if there are bytes to send for which it does not wait.
    fn leave_to_driver(&mut self) {
        if self.lane.wants_to_send() && !mem::replace(&mut self.driver_sends, true) {
            self.wake.call(self.driver_sleeps);
        }
    }

    /// Calls the driver if requests wait for another path: it makes the connection, and may wait for the old one.
    fn leave_path_to_driver(&mut self) {
        if self.driven && self.lane.is_between_paths() {
            self.wake.call(self.driver_sleeps);
        }
    }

    /// Queues the gathered chains in the lane; returns their number.
    fn queue_gathered(&mut self, now_us: u64) -> usize {
        let Some(gathering) = &mut self.gathering else { return 0 };
        if gathering.waiting().0 == 0 {
            return 0;
        }
        let renewals = self.lane.renewals();
        let left = gathering.queue(&mut self.lane, now_us);
        self.counters.vectors += left.vectors;
        if self.lane.renewals() != renewals {
            self.look_for_socket();
        }
        self.leave_path_to_driver();
        left.chains
    }

    /// Replaces a lost connection by a new one, when all calls have ended.
    pub(super) fn reconnect(&mut self, controller: &Controller) -> Result<(), Error> {
        self.lane.reconnect(controller)?;
        self.socket = Arc::new(self.lane.socket()?);
        if let Some(gathering) = &mut self.gathering {
            gathering.renew(self.lane.config());
        }
        Ok(())
    }

    /// Takes the socket of the lane's new connection.
    fn look_for_socket(&mut self) {
        let socket = self.lane.socket();
        // If the new connection is lost already, the next receive reports it. If the process has no descriptor left,
        // the next receive tries again.
        self.has_old_socket = socket.is_err() && self.lane.has_socket();
        if let Ok(socket) = socket {
            self.socket = Arc::new(socket);
            // The driver may still wait for the old socket.
            self.wake.call(self.driver_sleeps);
            self.driver_sleeps = false;
        }
    }

    /// Queues a request in the lane, with the memory for its data. A chain that may be gathered is queued in the lane
    /// only when it leaves.
    pub(super) fn submit(
        &mut self,
        request: &Request<'_>,
        data: &mut Vec<u8>,
        may_gather: bool,
    ) -> Result<u32, SubmitError> {
        let tag = self.free.last().copied().unwrap_or(self.calls.len() as u32);
        // Waiting chains also need slots.
        let is_full = self.waiting().0 > 0 && self.is_full();
        let gathers = match request {
            _ if is_full && self.lane.is_connected() => return Err(SubmitError::QueueFull),
            Request::Pushdown(chain)
                if may_gather && self.gathering.is_some() && self.lane.is_connected() =>
            {
                self.lane.check(request)?;
                if self.lane.is_full() {
                    return Err(SubmitError::QueueFull);
                }
                Some(chain)
            }
            _ => {
                let renewals = self.lane.renewals();
                self.lane.submit(u64::from(tag), *request)?;
                if self.lane.renewals() != renewals {
                    self.look_for_socket();
                }
                self.leave_path_to_driver();
                None
            }
        };
        if self.free.pop().is_none() {
            self.calls.push(Call::default());
        }
        if let Some(call) = self.calls.get_mut(tag as usize) {
            call.data = mem::take(data);
            call.wait = Wait::Awake;
            call.bit_of = tag;
            if let Some((gathering, chain)) = self.gathering.as_mut().zip(gathers) {
                gathering.take(tag, chain);
            }
        }
        Ok(tag)
    }

    /// Receives without waiting. Returns how many calls ended, and the futex bits of their sleeping threads.
    pub(super) fn receive(&mut self, now_us: u64) -> (usize, u32) {
        let (mut ended, mut to_wake) = (0, 0);
        let renewals = self.lane.renewals();
        let Self { calls, free, gathering, .. } = self;
        let mut end = |tag: u32, end: Result<Done<'_>, RequestError>| {
            let Some(call) = calls.get_mut(tag as usize) else { return };
            ended += 1;
            if call.wait == Wait::Forgotten {
                call.wait = Wait::No;
                return free.push(tag);
            }
            call.end = Some(end.map(|Done { data, dw0, dw1 }| {
                call.data.extend_from_slice(data);
                Answer { dw0, dw1 }
            }));
            if call.wait == Wait::Asleep {
                to_wake |= bit(call.bit_of).get();
            }
        };
        // If the connection is lost, the poll has ended every call in flight.
        let _ = self.lane.poll(&mut |completion| match gathering {
            Some(gathering) if Gathering::has_queued(&completion) => {
                gathering.complete(&completion, now_us, &mut end);
            }
            _ => end(completion.tag as u32, completion.result),
        });
        while let Some((tag, error)) = gathering.as_mut().and_then(Gathering::take_lost) {
            end(tag, Err(error));
        }
        if self.has_old_socket || self.lane.renewals() != renewals {
            self.look_for_socket();
        }
        self.doorbell.answered(ended);
        self.leave_to_driver();
        (ended, to_wake)
    }

    /// Whether held requests must leave now: they wait for room, are sent again, or calls have ended and too few are in
    /// flight for holding to pay off.
    pub(super) fn is_urgent(&self, have_ended: bool) -> bool {
        have_ended && self.is_idle() || self.gathering.as_ref().is_some_and(Gathering::is_urgent)
    }

    /// Sets what the thread that waits for these calls does. The bit of the first call wakes it.
    pub(super) fn set_wait(&mut self, tags: &[u32], wait: Wait) {
        for tag in tags {
            if let Some(call) = self.calls.get_mut(*tag as usize) {
                call.wait = wait;
                call.bit_of = tags[0];
            }
        }
    }

    pub(super) fn has_ended(&self, tag: u32) -> bool {
        self.calls.get(tag as usize).is_some_and(|call| call.end.is_some())
    }

    /// Takes the end of a call, if it has come, and gives its room back.
    pub(super) fn take_end(
        &mut self,
        tag: u32,
        data: &mut Vec<u8>,
    ) -> Option<Result<Answer, RequestError>> {
        let call = self.calls.get_mut(tag as usize)?;
        let end = call.end.take()?;
        *data = mem::take(&mut call.data);
        call.wait = Wait::No;
        if end.is_err() {
            data.clear();
        }
        self.free.push(tag);
        Some(end)
    }

    /// The futex bit of a sleeping caller to wake as the next driver; 0 if none sleeps, or one that is awake comes
    /// first: it sees itself that the lane has no driver.
    pub(super) fn next_driver(&mut self) -> u32 {
        let count = self.calls.len();
        for step in 1..=count {
            let index = (self.last_driver + step) % count;
            let Some(call) = self.calls.get(index).filter(|call| call.end.is_none()) else {
                continue;
            };
            match call.wait {
                Wait::No | Wait::Away | Wait::Forgotten => {}
                Wait::Awake => return 0,
                Wait::Asleep => {
                    self.last_driver = index;
                    return bit(call.bit_of).get();
                }
            }
        }
        0
    }
}

/// The futex bit of a call's sleeping thread. Calls that share a bit are woken together; each checks whether its own
/// call has ended.
pub(super) fn bit(tag: u32) -> NonZeroU32 {
    NonZeroU32::new(1 << (tag % u32::BITS)).unwrap_or(NonZeroU32::MIN)
}
