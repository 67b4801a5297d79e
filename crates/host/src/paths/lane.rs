//! A lane that goes on by another path.
//!
//! A [`Lane`](crate::Lane) has one queue, of the path that was the best when it was connected. Requests are
//! kept until they end. When the queue is lost, or another path is better and the queue is empty, it connects another
//! one and sends there what has not ended.

use super::core::{Link, Paths};
use super::ledger::Ledger;
use crate::deadline::deadline;
use crate::lane_plan::LanePlan;
use crate::queue::Queue;
use crate::requests::OnCompletion;
use crate::{Completion, Error, LostReason, NamespaceInfo, Request, RequestError, SubmitError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest sleep of a lane that has no queue, or has one that empties, before it looks around.
const LOOK: Duration = Duration::from_millis(50);

/// A lane that each path refuses a queue asks for one again after this, which doubles up to the last.
const REFUSED: Duration = Duration::from_millis(250);
const REFUSED_MAX: Duration = Duration::from_secs(5);
/// One that the best path refuses, but another does not, asks the best again after this.
const SECOND_BEST: Duration = Duration::from_secs(5);

/// The identifier of no I/O queue: that of the admin queue.
const NO_QUEUE: u16 = 0;

/// Receives on a queue.
type Receive<'f> = dyn FnMut(&mut Queue, &mut OnCompletion<'_>) -> Result<usize, Error> + 'f;

/// What a lane of several paths has beside its queue.
#[derive(Debug)]
pub(crate) struct OnPaths {
    paths: Arc<Paths>,
    namespaces: Arc<[NamespaceInfo]>,
    /// Whose queue the lane has, and its identifier there.
    link: Link,
    qid: u16,
    /// How often another queue has taken the place of one.
    changes: u32,
    ledger: Ledger,
    /// The generation of what is known of the paths.
    seen: u64,
    /// No request is put on the queue any more: another is to take its place.
    leaves: bool,
    /// Another queue is not to be connected before this.
    next_try: Option<Instant>,
    /// A better path has refused a queue, and is asked again then.
    better: Option<Instant>,
    /// That a queue was refused has been told.
    is_refused: bool,
    /// Each path refuses a queue, and this is the wait before the next try.
    pause: Option<Duration>,
    /// Since when there has been no queue to put requests on.
    stuck: Option<Instant>,
    /// How long requests wait for a path.
    patience: Duration,
    /// Bytes sent and received on the queues before this one.
    past_bytes: (u64, u64),
}

impl OnPaths {
    /// Whether requests that have not ended are kept.
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

    /// How often another queue has taken the place of one.
    pub(crate) const fn changes(&self) -> u32 {
        self.changes
    }

    /// The queue is over.
    pub(crate) fn leave(&mut self) {
        if self.qid != NO_QUEUE {
            self.link.association.leave(self.qid);
            self.link.association.ids.give_back(self.qid);
            self.qid = NO_QUEUE;
        }
    }

    /// Requests wait for a path so long at most.
    pub(crate) const fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Whether requests may be put on `queue`.
    const fn uses(&self, queue: &Queue) -> bool {
        !self.leaves && queue.is_connected()
    }

    /// How long to wait for the queue at most, because there is something to do without it, too.
    pub(crate) fn nap(&self, queue: &Queue) -> Option<Duration> {
        let now = Instant::now();
        if !self.uses(queue) {
            let is_empty = !queue.is_connected() || queue.requests().in_flight() == 0;
            let is_due = is_empty && self.next_try.is_none_or(|next| next <= now);
            // At once, if there is a path to go to.
            return Some(if is_due && self.paths.best().is_some() { Duration::ZERO } else { LOOK });
        }
        // No answer comes that would wake who drives a shared lane, whose last request was refused.
        let is_due = self.ledger.may_send(now) && queue.requests().in_flight() == 0;
        if is_due || self.paths.generation() != self.seen {
            return Some(Duration::ZERO);
        }
        let until = self.ledger.next_time(now)?;
        Some(until.saturating_duration_since(now))
    }

    /// Something about the paths has changed.
    #[cold]
    fn look(&mut self, queue: &Queue) {
        self.seen = self.paths.generation();
        if self.pause.is_some() {
            self.next_try = None;
        }
        // Without a usable path requests wait as well.
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

    /// A lane on the best path there is, or that comes within the connect timeout: its queue, and how that was
    /// connected, too.
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
                // The target may have ended, of which the path's thread hears as well.
                paths.wait_change(seen, LOOK);
                if !paths.is_usable(&link) && Instant::now() < end {
                    continue;
                }
            }
            // The lanes that there are keep theirs.
            if error.is_refused_queue() || Instant::now() >= end {
                return Err(error);
            }
            paths.lost(&link, &error);
        }
    }

    /// Keeps a request and queues it where that is possible now.
    pub(crate) fn submit(
        &mut self,
        queue: &mut Queue,
        tag: u64,
        request: &Request<'_>,
    ) -> Result<(), SubmitError> {
        if self.ledger.in_flight() >= usize::from(queue.requests().config().depth) {
            return Err(SubmitError::QueueFull);
        }
        self.news(queue);
        let number = self.ledger.take(tag, request);
        let queued = if self.uses(queue) {
            queue.submit(number.into(), request)
        } else {
            queue.requests().plan(request).and(Err(SubmitError::NotConnected))
        };
        let is_over = || self.paths.has_ended();
        match queued {
            Ok(()) => Ok(()),
            Err(SubmitError::QueueFull | SubmitError::NotConnected) if !is_over() => {
                // It is sent as soon as there is a queue that has room.
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

    /// Puts another queue in the place of one that is lost, or empty and not the best, by the best path that
    /// does not refuse it. One that works is kept until a better one is there.
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
                    // It is the best again, or those that are better refuse.
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
                    // Others have all that there are; that may change.
                    Err(error) if error.is_refused_queue() => {
                        if !self.is_refused {
                            self.paths.refused_queue(link, &error);
                        }
                        refusals += 1;
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
            // A path that was lost may be the best again when the other is: requests must end
            // some time, and those of other threads get their turn, where they share the lane.
            if Instant::now() >= end {
                (self.next_try, self.pause) = (Some(Instant::now() + LOOK), None);
                break;
            }
        }
    }

    /// Sends what waits and may be sent, and ends what has waited too long. How many have ended.
    fn send_waiting(&mut self, queue: &mut Queue, on_completion: &mut OnCompletion<'_>) -> usize {
        let is_usable = self.uses(queue);
        // The queue may only have to become empty, so that it can be changed.
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
                // The target of this path has another namespace in its place.
                if let Some(tag) = self.ledger.ended(number, None) {
                    end(tag, why);
                }
            }
            // What is lost shows itself when receiving.
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

    /// Receives, by `receive`, and takes care of what has not been carried out. How many have ended.
    fn receive(
        &mut self,
        queue: &mut Queue,
        on_completion: &mut OnCompletion<'_>,
        receive: &mut Receive<'_>,
    ) -> usize {
        let (mut ended, mut refusal) = (0, None);
        let ledger = &mut self.ledger;
        let received = receive(queue, &mut |Completion { tag, result }| {
            let error = result.as_ref().err();
            if let Some(RequestError::Command(error)) = error
                && error.is_of_path()
            {
                refusal = Some(*error);
            }
            if let Some(tag) = ledger.ended(tag as u32, error) {
                ended += 1;
                on_completion(Completion { tag, result });
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

    /// Goes to another path if that is due, and sends what may be sent. How many have ended because they
    /// waited too long.
    fn prepare(&mut self, queue: &mut Queue, on_completion: &mut OnCompletion<'_>) -> usize {
        self.news(queue);
        self.leaves |= queue.is_worn();
        self.change(queue);
        self.send_waiting(queue, on_completion)
    }

    /// See [`Lane::poll`](crate::Lane::poll). It waits only while another path is connected.
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

    /// An error if nothing can come any more.
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
