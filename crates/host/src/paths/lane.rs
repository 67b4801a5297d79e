//! A lane that can switch to another path.
//!
//! A [`Lane`](crate::Lane) has one queue, on the path that was the best when the queue was connected. Requests are kept
//! until they end. When the queue is lost, or when it is empty and another path is better, the lane connects another
//! queue and sends the unfinished requests there.

use super::core::{Link, Paths};
use super::ledger::Ledger;
use crate::deadline::deadline;
use crate::lane_plan::LanePlan;
use crate::queue::Queue;
use crate::requests::OnCompletion;
use crate::{Completion, Error, LostReason, NamespaceInfo, Request, RequestError, SubmitError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest sleep of a lane that has no queue, or waits until its queue is empty.
const LOOK: Duration = Duration::from_millis(50);

/// Pause before a lane tries again after all paths have refused it a queue. It doubles, up to [`REFUSED_MAX`].
const REFUSED: Duration = Duration::from_millis(250);
const REFUSED_MAX: Duration = Duration::from_secs(5);
/// Pause before a lane on a second-best path asks the best path again, which had refused it a queue.
const SECOND_BEST: Duration = Duration::from_secs(5);

/// How long requests wait for a queue with slow requests to become empty, because another path is better: afterwards
/// the lane keeps its path for a while.
const DRAIN: Duration = Duration::from_millis(50);
/// The same if the path cannot be used any more: afterwards the slow requests are sent again, too, if that is safe.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// Stands for no I/O queue: the identifier of the admin queue.
const NO_QUEUE: u16 = 0;

/// A function that receives on a queue.
type Receive<'f> = dyn FnMut(&mut Queue, &mut OnCompletion<'_>) -> Result<usize, Error> + 'f;

/// The state of a lane over several paths, beside its queue.
#[derive(Debug)]
pub(crate) struct OnPaths {
    paths: Arc<Paths>,
    namespaces: Arc<[NamespaceInfo]>,
    /// The path of the lane's queue, and the queue's identifier there.
    link: Link,
    qid: u16,
    /// How often the queue has been replaced.
    changes: u32,
    ledger: Ledger,
    /// The generation of the paths' states that was last examined.
    seen: u64,
    /// Whether the queue should be replaced, and gets no new requests.
    leaves: bool,
    /// Since when it gets none, and is not empty.
    draining: Option<Instant>,
    /// The earliest time to connect another queue.
    next_try: Option<Instant>,
    /// When to ask a better path again, which has refused a queue.
    better: Option<Instant>,
    /// Whether the refusal of a queue has been logged.
    is_refused: bool,
    /// The current pause between tries, while all paths refuse a queue.
    pause: Option<Duration>,
    /// Since when there has been no queue for requests.
    stuck: Option<Instant>,
    /// How long requests wait for a path that does not refuse them.
    patience: Duration,
    /// Bytes sent and received on previous queues.
    past_bytes: (u64, u64),
}

impl OnPaths {
    /// Number of requests that have not ended.
    pub(crate) const fn in_flight(&self) -> usize {
        self.ledger.in_flight()
    }

    pub(crate) const fn past_bytes(&self) -> (u64, u64) {
        self.past_bytes
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.paths.has_ended()
    }

    pub(crate) const fn qid(&self) -> u16 {
        self.qid
    }

    /// Whether the queue is to be replaced first, before requests can be sent.
    pub(crate) const fn is_between(&self, queue: &Queue) -> bool {
        !self.uses(queue)
    }

    /// How often the queue has been replaced.
    pub(crate) const fn changes(&self) -> u32 {
        self.changes
    }

    /// Gives up the queue and its identifier.
    pub(crate) fn leave(&mut self) {
        if self.qid != NO_QUEUE {
            self.link.association.leave(self.qid);
            self.link.association.ids.give_back(self.qid);
            self.qid = NO_QUEUE;
        }
    }

    /// Sets how long requests wait for a path at most.
    pub(crate) const fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Whether `queue` may get requests.
    const fn uses(&self, queue: &Queue) -> bool {
        !self.leaves && queue.is_connected()
    }

    /// How long to wait for the queue at most before there is other work to do.
    pub(crate) fn nap(&self, queue: &Queue) -> Option<Duration> {
        let now = Instant::now();
        if !self.uses(queue) {
            let is_empty = !queue.is_connected() || queue.requests().in_flight() == 0;
            let is_due = is_empty && self.next_try.is_none_or(|next| next <= now);
            // Do not sleep if there is a path for a new queue.
            return Some(if is_due && self.paths.best().is_some() { Duration::ZERO } else { LOOK });
        }
        // If nothing is in flight, no answer would wake the thread that drives a shared lane: send the waiting requests
        // now.
        let is_due = self.ledger.may_send(now) && queue.requests().in_flight() == 0;
        if is_due || self.paths.generation() != self.seen {
            return Some(Duration::ZERO);
        }
        let until = self.ledger.next_time(now)?;
        Some(until.saturating_duration_since(now))
    }

    /// Reacts to a change of the paths.
    #[cold]
    fn look(&mut self, queue: &Queue) {
        self.seen = self.paths.generation();
        if self.pause.is_some() {
            self.next_try = None;
        }
        // Without a usable path, leave the queue too: requests then wait.
        let is_best = self.paths.best().is_some_and(|best| best.number == self.link.number);
        let stays = is_best || self.better.is_some() && self.paths.is_usable(&self.link);
        self.leaves = queue.is_worn() || !stays;
    }

    fn news(&mut self, queue: &Queue) {
        let is_due = self.better.take_if(|better| *better <= Instant::now()).is_some();
        if is_due || self.paths.generation() != self.seen {
            self.look(queue);
        }
    }

    /// Opens a lane on the best path, for which it waits up to the connect timeout. Returns its queue, the plan by
    /// which that was connected, and the state.
    pub(crate) fn open(
        paths: &Arc<Paths>,
        namespaces: &Arc<[NamespaceInfo]>,
    ) -> Result<(Queue, LanePlan, Self), Error> {
        let end = deadline(paths.options().connect_timeout);
        loop {
            let seen = paths.generation();
            let link = paths.wait_best(end)?;
            let error = match paths.open_queue(&link, namespaces) {
                Ok((queue, qid, plan)) => {
                    let on_paths = Self {
                        paths: Arc::clone(paths),
                        namespaces: Arc::clone(namespaces),
                        link,
                        qid,
                        changes: 0,
                        ledger: Ledger::default(),
                        seen,
                        leaves: false,
                        draining: None,
                        next_try: None,
                        better: None,
                        is_refused: false,
                        pause: None,
                        stuck: None,
                        patience: paths.options().command_timeout,
                        past_bytes: (0, 0),
                    };
                    return Ok((queue, plan, on_paths));
                }
                Err(error) => error,
            };
            if error.is_without_a_word() {
                // The target may have ended, which the path's thread notices as well.
                paths.wait_change(seen, LOOK);
                if !paths.is_usable(&link) && Instant::now() < end {
                    continue;
                }
            }
            // Only this queue is refused: existing lanes keep theirs, so do not give up the path.
            if error.is_refused_queue() || Instant::now() >= end {
                return Err(error);
            }
            paths.lost(&link, &error);
        }
    }

    /// Keeps a request, and puts it on the queue if that is possible now.
    pub(crate) fn submit(
        &mut self,
        queue: &mut Queue,
        tag: u64,
        request: &Request<'_>,
    ) -> Result<(), SubmitError> {
        if self.ledger.in_flight() >= usize::from(queue.requests().config().depth) {
            return Err(SubmitError::QueueFull);
        }
        // Before it is copied: its length is limited only by the caller.
        queue.requests().plan(request)?;
        self.news(queue);
        let number = self.ledger.take(tag, request);
        let queued = match self.uses(queue) {
            true => queue.submit(number.into(), request),
            false => Err(SubmitError::NotConnected),
        };
        let is_over = || self.paths.has_ended();
        match queued {
            Ok(()) => Ok(()),
            Err(SubmitError::QueueFull | SubmitError::NotConnected) if !is_over() => {
                // It is sent as soon as there is a queue with room.
                let why = RequestError::Lost(LostReason::HungUp);
                self.ledger.wait(number, Instant::now(), why);
                Ok(())
            }
            Err(error) => {
                self.ledger.give_back(number);
                Err(error)
            }
        }
    }

    /// A queue that is to be replaced should be empty soon, because requests wait for that. Returns how many have
    /// ended.
    fn drain(&mut self, queue: &mut Queue, on_completion: &mut OnCompletion<'_>) -> usize {
        if !self.leaves || !queue.is_connected() || queue.requests().in_flight() == 0 {
            self.draining = None;
            return 0;
        }
        let now = Instant::now();
        let waited = now.saturating_duration_since(*self.draining.get_or_insert(now));
        let is_usable = !queue.is_worn() && self.paths.is_usable(&self.link);
        if waited >= DRAIN && is_usable {
            (self.leaves, self.draining) = (false, None);
            self.better = Some(now + SECOND_BEST);
        } else if waited >= DRAIN_MAX && self.paths.best().is_some() && self.ledger.may_leave() {
            self.draining = None;
            queue.close(LostReason::HungUp);
            return self.end_queue(queue, on_completion);
        }
        0
    }

    /// Sends the requests of a queue that was closed again.
    fn end_queue(&mut self, queue: &mut Queue, on_completion: &mut OnCompletion<'_>) -> usize {
        let (ledger, patience) = (&mut self.ledger, self.patience);
        let mut ended = 0;
        // The queue reports each of its requests as lost.
        let _ = queue.poll(&mut |Completion { tag, result }| {
            if let Some((tag, instead)) = ledger.ended(tag as u32, result.as_ref().err(), patience)
            {
                ended += 1;
                on_completion(Completion { tag, result: instead.map_or(result, Err) });
            }
        });
        let within = (Instant::now(), self.paths.options().command_timeout);
        self.ledger.send_again(within, &mut |tag, error| {
            ended += 1;
            on_completion(Completion { tag, result: Err(error) });
        });
        ended
    }

    /// Other lanes have all queues of a target; that may change.
    fn note_refusal(&self, link: &Link, error: &Error) {
        if !self.is_refused {
            self.paths.refused_queue(link, error);
        }
    }

    /// Replaces a queue that is lost, or empty and not on the best path, by one on the best path that does not refuse
    /// it. A working queue is kept until the better one is connected.
    fn change(&mut self, queue: &mut Queue) {
        if self.uses(queue) || self.next_try.is_some_and(|next| Instant::now() < next) {
            return;
        }
        self.next_try = None;
        let end = deadline(self.paths.options().connect_timeout);
        while !self.uses(queue) && (!queue.is_connected() || queue.requests().in_flight() == 0) {
            let seen = self.paths.generation();
            let links = self.paths.usable();
            if links.is_empty() {
                break;
            }
            let is_current = |link: &Link| link.number == self.link.number;
            let keeps = queue.is_connected() && !queue.is_worn() && links.iter().any(is_current);
            if !keeps {
                queue.close(LostReason::HungUp);
                self.leave();
            }
            let mut refusals = 0;
            for link in &links {
                if keeps && link.number == self.link.number {
                    // This path is the best again, or all better ones refuse.
                    (self.seen, self.leaves) = (seen, false);
                    self.better = (refusals > 0).then(|| Instant::now() + SECOND_BEST);
                    self.is_refused = refusals > 0;
                    return;
                }
                match self.paths.open_queue(link, &self.namespaces) {
                    Ok((new, qid, _)) => {
                        queue.close(LostReason::HungUp);
                        self.leave();
                        self.past_bytes.0 += queue.sent_bytes();
                        self.past_bytes.1 += queue.received_bytes();
                        *queue = new;
                        self.changes += 1;
                        (self.qid, self.seen, self.leaves) = (qid, seen, false);
                        self.link = link.clone();
                        self.better = (refusals > 0).then(|| Instant::now() + SECOND_BEST);
                        self.is_refused = refusals > 0;
                        self.pause = None;
                        return;
                    }
                    Err(error) if error.is_refused_queue() => {
                        self.note_refusal(link, &error);
                        refusals += 1;
                        if Instant::now() >= end {
                            break;
                        }
                    }
                    Err(error) => {
                        self.paths.lost(link, &error);
                        break;
                    }
                }
            }
            self.is_refused |= refusals > 0;
            if refusals == links.len() {
                let pause = self.pause.map_or(REFUSED, |pause| REFUSED_MAX.min(pause * 2));
                self.next_try = Some(Instant::now() + pause);
                self.pause = Some(pause);
                break;
            }
            // Bound this loop: paths may be lost and reconnected in turn for ever, but requests
            // must end some time, and threads that share the lane must get their turn.
            if Instant::now() >= end {
                (self.next_try, self.pause) = (Some(Instant::now() + LOOK), None);
                break;
            }
        }
    }

    /// Sends the waiting requests that may be sent, and ends those that have waited too long. Returns how many have
    /// ended.
    fn send_waiting(&mut self, queue: &mut Queue, on_completion: &mut OnCompletion<'_>) -> usize {
        let is_usable = self.uses(queue);
        // A connected queue may only have to become empty before it is replaced; then the lane does not count as
        // refused.
        let is_refused = !queue.is_connected() && self.pause.is_some();
        let has_path = is_usable || !is_refused && self.paths.best().is_some();
        if has_path {
            self.stuck = None;
        } else if self.stuck.is_none() {
            self.stuck = Some(Instant::now());
        }
        if !self.ledger.is_waiting() {
            return 0;
        }
        let now = Instant::now();
        let mut ended = 0;
        let mut end = |tag, error| {
            ended += 1;
            on_completion(Completion { tag, result: Err(error) });
        };
        if is_usable {
            while let Some(number) = self.ledger.next(now) {
                let Some(request) = self.ledger.send(number) else { continue };
                let Err(error) = queue.submit(number.into(), &request) else { continue };
                let reason = queue.requests().failure().unwrap_or(LostReason::HungUp);
                let why = RequestError::Lost(reason);
                if matches!(error, SubmitError::QueueFull | SubmitError::NotConnected) {
                    self.ledger.wait(number, now, why);
                    break;
                }
                // The request does not fit this path's target, whose namespace differs.
                if let Some((tag, _)) = self.ledger.ended(number, None, self.patience) {
                    end(tag, why);
                }
            }
            // A lost connection is detected when receiving.
            let _ = queue.ring();
        } else {
            let is_long = self.stuck.is_some_and(|stuck| now - stuck.min(now) >= self.patience);
            let patience = match () {
                () if has_path => self.patience.max(self.paths.options().command_timeout),
                () if is_long => Duration::ZERO,
                () => self.patience,
            };
            let patience = (!self.paths.has_ended()).then_some(patience);
            self.ledger.expire(now, patience, &mut end);
        }
        ended
    }

    /// Receives by `receive`, and handles requests that were not carried out. Returns how many have ended.
    fn receive(
        &mut self,
        queue: &mut Queue,
        on_completion: &mut OnCompletion<'_>,
        receive: &mut Receive<'_>,
    ) -> usize {
        let (mut ended, mut refusal) = (0, None);
        let (ledger, patience) = (&mut self.ledger, self.patience);
        let received = receive(queue, &mut |Completion { tag, result }| {
            let error = result.as_ref().err();
            if let Some(RequestError::Command(error)) = error
                && error.is_of_path()
            {
                refusal = Some(*error);
            }
            if let Some((tag, instead)) = ledger.ended(tag as u32, error, patience) {
                ended += 1;
                on_completion(Completion { tag, result: instead.map_or(result, Err) });
            }
        });
        if let Some(error) = refusal {
            self.paths.refused(&self.link, &error);
        }
        if let Err(error) = received {
            let over = self.paths.lost(&self.link, &error.lost().unwrap_or(LostReason::HungUp));
            let within = (Instant::now(), self.paths.options().command_timeout);
            self.ledger.settle_lost(over, within, &mut |tag, error| {
                ended += 1;
                on_completion(Completion { tag, result: Err(error) });
            });
        }
        ended
    }

    /// Switches to another path if that is due, and sends waiting requests. Returns how many have ended because they
    /// waited too long.
    fn prepare(&mut self, queue: &mut Queue, on_completion: &mut OnCompletion<'_>) -> usize {
        self.news(queue);
        self.leaves |= queue.is_worn();
        let ended = self.drain(queue, on_completion);
        self.change(queue);
        ended + self.send_waiting(queue, on_completion)
    }

    /// See [`Lane::poll`](crate::Lane::poll). Blocks only while it connects another queue.
    pub(crate) fn poll(
        &mut self,
        queue: &mut Queue,
        on_completion: &mut OnCompletion<'_>,
    ) -> Result<usize, Error> {
        let mut ended = self.prepare(queue, on_completion);
        if queue.is_connected() {
            ended += self.receive(queue, on_completion, &mut |queue, on_completion| {
                queue.poll(on_completion)
            });
        }
        self.ended(queue, ended)
    }

    /// Returns `ended`; an error if no completion can come any more.
    fn ended(&self, queue: &Queue, ended: usize) -> Result<usize, Error> {
        let is_over = ended == 0 && !queue.is_connected() && self.in_flight() == 0;
        if is_over && self.has_ended() { Err(LostReason::HungUp.into()) } else { Ok(ended) }
    }

    /// See [`Lane::wait`](crate::Lane::wait).
    pub(crate) fn wait(
        &mut self,
        queue: &mut Queue,
        timeout: Duration,
        on_completion: &mut OnCompletion<'_>,
    ) -> Result<usize, Error> {
        let started = Instant::now();
        loop {
            let mut ended = self.prepare(queue, on_completion);
            let left = timeout.saturating_sub(started.elapsed());
            let at_most = self.nap(queue).map_or(left, |nap| nap.min(left));
            if self.uses(queue) || queue.is_connected() && queue.requests().in_flight() > 0 {
                let at_most = if ended > 0 { Duration::ZERO } else { at_most };
                ended += self.receive(queue, on_completion, &mut |queue, on_completion| {
                    queue.wait(at_most, on_completion)
                });
            } else if ended == 0 {
                self.paths.wait_change(self.seen, at_most);
            }
            if self.ended(queue, ended)? > 0 || started.elapsed() >= timeout {
                return Ok(ended);
            }
        }
    }
}
