//! A lane that goes on by another path.
//!
//! It has one queue, of the path that was the best when it was connected. Requests are kept until
//! they end. When the queue is lost, or another path is better and the queue is empty, it connects another
//! one and sends there what has not ended.

use super::ledger::Ledger;
use super::{Link, Paths};
use crate::queue::Queue;
use crate::{
    Completion, Error, Lane, LostReason, NamespaceInfo, Request, RequestError, SubmitError,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest sleep of a lane that has no queue, or has one that empties, before it looks around.
const LOOK: Duration = Duration::from_millis(50);

/// What a lane of several paths has beside its queue.
#[derive(Debug)]
pub(crate) struct OnPaths {
    paths: Arc<Paths>,
    namespaces: Arc<[NamespaceInfo]>,
    /// Whose queue the lane has.
    link: Link,
    ledger: Ledger,
    /// The generation of what is known of the paths.
    seen: u64,
    /// No request is put on the queue any more: another is to take its place.
    leaves: bool,
    /// Another queue is not to be connected before this.
    next_try: Option<Instant>,
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

    /// The lane is over.
    pub(crate) fn leave(&self, qid: u16) {
        self.link.association.leave(qid);
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
        let until = self.ledger.next_time(now)?;
        Some(until.saturating_duration_since(now))
    }

    /// Something about the paths has changed.
    #[cold]
    fn look(&mut self, queue: &Queue) {
        self.seen = self.paths.generation();
        // Without a usable path requests wait as well.
        let best = self.paths.best();
        self.leaves = queue.is_worn() || best.is_none_or(|best| best.number != self.link.number);
    }

    fn news(&mut self, queue: &Queue) {
        if self.paths.generation() != self.seen {
            self.look(queue);
        }
    }
}

impl Lane {
    /// A lane on the best path there is, or that comes within the connect timeout.
    pub(crate) fn on_paths(
        paths: &Arc<Paths>,
        namespaces: &Arc<[NamespaceInfo]>,
    ) -> Result<Self, Error> {
        let end = Instant::now() + paths.options().connect_timeout;
        loop {
            let seen = paths.generation();
            let link = paths.wait_best(end)?;
            let error = match link.association.open_queue_as_path(namespaces) {
                Ok((queue, qid, plan)) => {
                    let patience = paths.options().command_timeout;
                    let ids = link.association.ids.clone();
                    let mut lane = Self::new(queue, qid, ids, Arc::new(plan));
                    lane.on_paths = Some(Box::new(OnPaths {
                        paths: Arc::clone(paths),
                        namespaces: Arc::clone(namespaces),
                        link,
                        ledger: Ledger::default(),
                        seen,
                        leaves: false,
                        next_try: None,
                        stuck: None,
                        patience,
                        past_bytes: (0, 0),
                    }));
                    return Ok(lane);
                }
                Err(error) => error,
            };
            if matches!(error, Error::NoQueueLeft { .. }) || Instant::now() >= end {
                return Err(error);
            }
            paths.lost(&link, &error);
        }
    }

    /// Keeps a request and queues it where that is possible now.
    pub(crate) fn submit_on_paths(
        &mut self,
        tag: u64,
        request: Request<'_>,
    ) -> Result<(), SubmitError> {
        let depth = usize::from(self.depth());
        let Self { queue, on_paths: Some(on), .. } = self else {
            return Err(SubmitError::NotConnected);
        };
        if on.ledger.in_flight() >= depth {
            return Err(SubmitError::QueueFull);
        }
        on.news(queue);
        let number = on.ledger.take(tag, &request);
        let queued = if on.uses(queue) {
            queue.submit(number.into(), &request)
        } else if on.paths.has_ended() {
            Err(SubmitError::NotConnected)
        } else {
            queue.requests().plan(&request).and(Err(SubmitError::QueueFull))
        };
        match queued {
            Ok(()) => Ok(()),
            // It is sent as soon as there is a queue that has room.
            Err(SubmitError::QueueFull) => {
                on.ledger.wait(number, Instant::now(), RequestError::Lost(LostReason::HungUp));
                Ok(())
            }
            Err(SubmitError::NotConnected) if !on.paths.has_ended() => {
                on.ledger.wait(number, Instant::now(), RequestError::Lost(LostReason::HungUp));
                Ok(())
            }
            Err(error) => {
                on.ledger.give_back(number);
                Err(error)
            }
        }
    }

    /// Puts another queue in the place of one that is lost, or empty and not the best, if there is a usable
    /// path.
    fn change_paths(&mut self) {
        let Self { queue, on_paths: Some(on), .. } = self else { return };
        if on.uses(queue) || on.next_try.is_some_and(|next| Instant::now() < next) {
            return;
        }
        on.next_try = None;
        while !on.uses(queue) && (!queue.is_connected() || queue.requests().in_flight() == 0) {
            let seen = on.paths.generation();
            let Some(link) = on.paths.best() else { break };
            if queue.is_connected() && link.number == on.link.number && !queue.is_worn() {
                // It has become the best again.
                (on.seen, on.leaves) = (seen, false);
                break;
            }
            queue.close(LostReason::HungUp);
            on.link.association.leave(self.qid);
            if let Some(ids) = self.ids.take() {
                ids.give_back(self.qid);
            }
            match link.association.open_queue_as_path(&on.namespaces) {
                Ok((new, qid, plan)) => {
                    on.past_bytes.0 += queue.sent_bytes();
                    on.past_bytes.1 += queue.received_bytes();
                    *queue = new;
                    self.qid = qid;
                    self.ids = Some(link.association.ids.clone());
                    self.plan = Some(Arc::new(plan));
                    self.renewals += 1;
                    (on.link, on.seen, on.leaves) = (link, seen, false);
                }
                // Others of this process have them all; that may change.
                Err(Error::NoQueueLeft { .. }) => {
                    on.next_try = Some(Instant::now() + LOOK);
                    break;
                }
                Err(error) => {
                    on.paths.lost(&link, &error);
                }
            }
        }
    }

    /// Sends what waits and may be sent, and ends what has waited too long. How many have ended.
    fn send_waiting(&mut self, on_completion: &mut dyn FnMut(Completion<'_>)) -> usize {
        let Self { queue, on_paths: Some(on), .. } = self else { return 0 };
        if on.uses(queue) {
            on.stuck = None;
        } else if on.stuck.is_none() {
            on.stuck = Some(Instant::now());
        }
        if !on.ledger.is_waiting() {
            return 0;
        }
        let now = Instant::now();
        let mut ended = 0;
        let mut end = |tag, error| {
            ended += 1;
            on_completion(Completion { tag, result: Err(error) });
        };
        if on.uses(queue) {
            while let Some(number) = on.ledger.next(now) {
                let Some(request) = on.ledger.send(number) else { continue };
                let Err(error) = queue.submit(number.into(), &request) else { continue };
                let why =
                    RequestError::Lost(queue.requests().failure().unwrap_or(LostReason::HungUp));
                match error {
                    SubmitError::QueueFull | SubmitError::NotConnected => {
                        on.ledger.wait(number, now, why);
                        break;
                    }
                    // The target of this path takes less than that of the first.
                    _ => {
                        if let Some(tag) = on.ledger.ended(number, None) {
                            end(tag, why);
                        }
                    }
                }
            }
            // What is lost shows itself when receiving.
            let _ = queue.ring();
        } else {
            let is_long = on.stuck.is_some_and(|stuck| now - stuck.min(now) >= on.patience);
            let patience = if is_long { Duration::ZERO } else { on.patience };
            let patience = (!on.paths.has_ended()).then_some(patience);
            on.ledger.expire(now, patience, &mut end);
        }
        ended
    }

    /// Receives, by `receive`, and takes care of what has not been carried out. How many have ended.
    fn receive_on_paths(
        &mut self,
        on_completion: &mut dyn FnMut(Completion<'_>),
        receive: &mut dyn FnMut(&mut Queue, &mut dyn FnMut(Completion<'_>)) -> Result<usize, Error>,
    ) -> usize {
        let Self { queue, on_paths: Some(on), .. } = self else { return 0 };
        let (mut ended, mut refusal) = (0, None);
        let ledger = &mut on.ledger;
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
            on.paths.refused(&on.link, &error);
        }
        if let Err(error) = received {
            let over = on.paths.lost(&on.link, &error.lost().unwrap_or(LostReason::HungUp));
            let within = (Instant::now(), on.paths.options().command_timeout);
            on.ledger.settle_lost(over, within, &mut |tag, error| {
                ended += 1;
                on_completion(Completion { tag, result: Err(error) });
            });
        }
        ended
    }

    /// Goes to another path if that is due, and sends what may be sent. How many have ended because they
    /// waited too long.
    fn prepare_on_paths(&mut self, on_completion: &mut dyn FnMut(Completion<'_>)) -> usize {
        if let Self { queue, on_paths: Some(on), .. } = self {
            on.news(queue);
            on.leaves |= queue.is_worn();
        }
        self.change_paths();
        self.send_waiting(on_completion)
    }

    /// See [`poll`](Self::poll). It waits only while another path is connected.
    pub(crate) fn poll_on_paths(
        &mut self,
        on_completion: &mut dyn FnMut(Completion<'_>),
    ) -> Result<usize, Error> {
        let mut ended = self.prepare_on_paths(on_completion);
        if self.queue.is_connected() {
            ended += self.receive_on_paths(on_completion, &mut |queue, on_completion| {
                queue.poll(on_completion)
            });
        }
        self.ended_on_paths(ended)
    }

    /// An error if nothing can come any more.
    fn ended_on_paths(&self, ended: usize) -> Result<usize, Error> {
        let is_over = |on: &OnPaths| on.in_flight() == 0 && on.has_ended();
        match &self.on_paths {
            Some(on) if ended == 0 && !self.queue.is_connected() && is_over(on) => {
                Err(LostReason::HungUp.into())
            }
            _ => Ok(ended),
        }
    }

    /// See [`wait`](Self::wait).
    pub(crate) fn wait_on_paths(
        &mut self,
        timeout: Duration,
        on_completion: &mut dyn FnMut(Completion<'_>),
    ) -> Result<usize, Error> {
        let started = Instant::now();
        loop {
            let mut ended = self.prepare_on_paths(on_completion);
            let left = timeout.saturating_sub(started.elapsed());
            let Self { queue, on_paths: Some(on), .. } = &*self else { return Ok(ended) };
            let at_most = on.nap(queue).map_or(left, |nap| nap.min(left));
            if on.uses(queue) || queue.is_connected() && queue.requests().in_flight() > 0 {
                let at_most = if ended > 0 { Duration::ZERO } else { at_most };
                ended += self.receive_on_paths(on_completion, &mut |queue, on_completion| {
                    queue.wait(at_most, on_completion)
                });
            } else if ended == 0 {
                on.paths.wait_change(on.seen, at_most);
            }
            if self.ended_on_paths(ended)? > 0 || started.elapsed() >= timeout {
                return Ok(ended);
            }
        }
    }
}
