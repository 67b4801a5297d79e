//! The requests of a lane from submission until they are completed to the caller: where each request is, and what
//! happens to it if a path has not carried it out. Has no queue, and gets the time from the caller.
//!
//! Each request ends exactly once: it has a slot from [`Ledger::take`] until its end, and a request can only end or be
//! sent while its slot is in the matching [`Place`].

use super::kept::{Again, Kept};
use crate::{LostReason, Request, RequestError};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A request that was in flight on this many lost connections is not sent again: it may be the cause of the losses.
const LOSSES_MAX: u8 = 3;

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It has ended; the slot is free.
    Free,
    /// On the lane's queue.
    Sent,
    /// To be sent, after this time if there is one.
    Waits(Option<Instant>),
    /// On a lost queue; how long the target may still carry it out is not known yet.
    Lost(LostReason),
}

#[derive(Debug)]
struct Slot {
    tag: u64,
    place: Place,
    kept: Kept,
    losses: u8,
    /// Since when it waits, and the error with which it ends if it waits too long.
    waits: Option<(Instant, RequestError)>,
    /// When a path first refused it since its submission or its last loss.
    refused: Option<Instant>,
    /// When the lane first left a queue on which it was in flight.
    left: Option<Instant>,
}

/// The requests of a lane: see the module.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Requests to be sent, in order.
    waiting: VecDeque<u32>,
    /// Requests whose queue was lost.
    lost: Vec<u32>,
}

impl Ledger {
    /// Number of requests that have not ended.
    pub(super) const fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether requests wait to be sent.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Keeps a request that the caller is about to send, and returns its number.
    #[inline]
    pub(super) fn take(&mut self, tag: u64, request: &Request<'_>) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            let kept = Kept::default();
            let place = Place::Free;
            let (waits, refused, left) = (None, None, None);
            self.slots.push(Slot { tag, place, kept, losses: 0, waits, refused, left });
            self.slots.len() as u32 - 1
        });
        if let Some(slot) = self.slots.get_mut(number as usize) {
            slot.tag = tag;
            slot.place = Place::Sent;
            slot.losses = 0;
            (slot.waits, slot.refused, slot.left) = (None, None, None);
            slot.kept.keep(request);
        }
        number
    }

    /// Frees the slot of a request that was not accepted or has ended.
    pub(super) fn give_back(&mut self, number: u32) {
        if let Some(slot) = self.slots.get_mut(number as usize)
            && slot.place != Place::Free
        {
            slot.place = Place::Free;
            self.free.push(number);
        }
    }

    /// Whether all requests on the queue may be sent again at once if the queue is closed.
    pub(super) fn may_leave(&self) -> bool {
        let mut sent = self.slots.iter().filter(|slot| slot.place == Place::Sent);
        sent.all(|slot| slot.kept.again() == Again::AtOnce)
    }

    /// Queues a request that could not be sent now, to be sent as soon as possible.
    pub(super) fn wait(&mut self, number: u32, now: Instant, why: RequestError) {
        if let Some(slot) = self.slots.get_mut(number as usize)
            && slot.place == Place::Sent
        {
            slot.place = Place::Waits(None);
            slot.waits = slot.waits.or(Some((now, why)));
            self.waiting.push_back(number);
        }
    }

    /// A request has ended on its queue. Returns its tag if it is finished, and the error that it has instead of
    /// `error`, if any; otherwise it will be sent again, or settled by [`settle_lost`](Self::settle_lost). A request
    /// that paths still refuse `patience` after the first refusal is finished.
    #[inline]
    pub(super) fn ended(
        &mut self,
        number: u32,
        error: Option<&RequestError>,
        patience: Duration,
    ) -> Option<(u64, Option<RequestError>)> {
        let slot = self.slots.get_mut(number as usize)?;
        if slot.place != Place::Sent {
            return None;
        }
        let mut instead = None;
        match error {
            Some(RequestError::Command(command))
                if command.is_of_path()
                    && (command.is_of_access() || slot.kept.again() != Again::Never) =>
            {
                let (now, before) = (Instant::now(), slot.refused);
                let since = *slot.refused.get_or_insert(now);
                let why = match slot.waits {
                    // The target that was lost before may have carried it out.
                    Some((_, unknown @ RequestError::Unknown(_))) => unknown,
                    _ => RequestError::Command(*command),
                };
                if before.is_none() || now.saturating_duration_since(since) < patience {
                    slot.waits = Some((since, why));
                    self.wait(number, now, why);
                    return None;
                }
                instead = Some(why);
            }
            Some(RequestError::Lost(reason)) => {
                slot.place = Place::Lost(*reason);
                self.lost.push(number);
                return None;
            }
            _ => {}
        }
        let tag = slot.tag;
        self.give_back(number);
        Some((tag, instead))
    }

    /// Decides about requests whose queue was lost. The target may carry them out until `over`; None means that this is
    /// unknown. Requests that change nothing are sent again at once, writes after `over`, unless that is further away
    /// than `patience`. Requests that must not be carried out twice end. Each end is reported to `on_end`.
    pub(super) fn settle_lost(
        &mut self,
        over: Option<Instant>,
        (now, patience): (Instant, Duration),
        on_end: &mut dyn FnMut(u64, RequestError),
    ) {
        for number in std::mem::take(&mut self.lost) {
            let Some(slot) = self.slots.get_mut(number as usize) else { continue };
            let Place::Lost(reason) = slot.place else { continue };
            slot.losses += 1;
            let (until, why) = match slot.kept.again() {
                Again::AtOnce => (Some(None), RequestError::Lost(reason)),
                Again::Later => (over.map(Some), RequestError::Unknown(reason)),
                Again::Never => (None, RequestError::Unknown(reason)),
            };
            let in_time = |until: &Option<Instant>| {
                until.is_none_or(|at| at.saturating_duration_since(now) <= patience)
            };
            match until.filter(in_time).filter(|_| slot.losses < LOSSES_MAX) {
                Some(until) => {
                    slot.place = Place::Waits(until);
                    // Its patience begins at `until`, before which it must wait anyway.
                    (slot.waits, slot.refused) = (Some((until.unwrap_or(now), why)), None);
                    self.waiting.push_back(number);
                }
                None => {
                    let tag = slot.tag;
                    self.give_back(number);
                    on_end(tag, why);
                }
            }
        }
    }

    /// Queues the requests whose queue the lane itself has closed, to be sent again at once: only if they
    /// [may](Self::may_leave). Those that were first moved longer ago than `patience` end, and each end is reported to
    /// `on_end`: paths may become inaccessible in turn for ever.
    pub(super) fn send_again(
        &mut self,
        (now, patience): (Instant, Duration),
        on_end: &mut dyn FnMut(u64, RequestError),
    ) {
        for number in std::mem::take(&mut self.lost) {
            let Some(slot) = self.slots.get_mut(number as usize) else { continue };
            let Place::Lost(reason) = slot.place else { continue };
            let left = *slot.left.get_or_insert(now);
            if now.saturating_duration_since(left) < patience {
                slot.place = Place::Waits(None);
                (slot.waits, slot.refused) = (Some((now, RequestError::Lost(reason))), None);
                self.waiting.push_back(number);
            } else {
                let tag = slot.tag;
                self.give_back(number);
                on_end(tag, RequestError::Lost(LostReason::NoPath));
            }
        }
    }

    /// The index in `waiting` of the next request that may be sent at `now`.
    fn next_index(&self, now: Instant) -> Option<usize> {
        self.waiting.iter().position(|number| {
            let place = self.slots.get(*number as usize).map(|slot| slot.place);
            matches!(place, Some(Place::Waits(until)) if until.is_none_or(|until| until <= now))
        })
    }

    /// Whether there is a request that may be sent at `now`.
    pub(super) fn may_send(&self, now: Instant) -> bool {
        self.next_index(now).is_some()
    }

    /// The next request that may be sent at `now`.
    pub(super) fn next(&mut self, now: Instant) -> Option<u32> {
        let index = self.next_index(now)?;
        self.waiting.remove(index)
    }

    /// The request that [`next`](Self::next) returned. From now on it counts as sent.
    pub(super) fn send(&mut self, number: u32) -> Option<Request<'_>> {
        let slot = self.slots.get_mut(number as usize)?;
        slot.place = Place::Sent;
        Some(slot.kept.request())
    }

    /// When the next request may be sent, of those that may not be sent at `now`.
    pub(super) fn next_time(&self, now: Instant) -> Option<Instant> {
        let times = self.waiting.iter().filter_map(|number| {
            match self.slots.get(*number as usize)?.place {
                Place::Waits(until) => until.filter(|until| *until > now),
                _ => None,
            }
        });
        times.min()
    }

    /// Ends the requests that have waited for a path for `patience`; without `patience`, all that wait. Lost ones that
    /// have waited in vain end with [`LostReason::NoPath`], whatever ended their connection.
    pub(super) fn expire(
        &mut self,
        now: Instant,
        patience: Option<Duration>,
        on_end: &mut dyn FnMut(u64, RequestError),
    ) {
        let Self { slots, waiting, free, .. } = self;
        waiting.retain(|number| {
            let Some(slot) = slots.get_mut(*number as usize) else { return false };
            let Some((since, why)) = slot.waits else { return true };
            // A request that waits until the end of its first target's time has `since` in the future.
            let waits_on =
                |patience| now.saturating_duration_since(since) < patience || since > now;
            if patience.is_some_and(waits_on) {
                return true;
            }
            slot.place = Place::Free;
            free.push(*number);
            let is_in_vain = patience.is_some() && matches!(why, RequestError::Lost(_));
            on_end(slot.tag, if is_in_vain { RequestError::Lost(LostReason::NoPath) } else { why });
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CommandError, Status};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const READ: Request<'static> = Request::Read { nsid: 1, offset_bytes: 0, length_bytes: 512 };
    const WRITE: Request<'static> =
        Request::Write { nsid: 1, offset_bytes: 0, data: &[7; 512], fua: false };
    const LOST: RequestError = RequestError::Lost(LostReason::Closed);
    const PATIENCE: Duration = Duration::from_secs(30);

    fn command(sct: u8, sc: u8) -> RequestError {
        RequestError::Command(CommandError { status: Status::new(sct, sc), dw0: 0, dw1: 0 })
    }

    fn nobody(tag: u64, error: RequestError) {
        panic!("{tag} ends: {error}");
    }

    #[test]
    fn reads_are_resent_at_once_and_writes_when_the_first_target_has_given_up() {
        let now = Instant::now();
        let over = now + Duration::from_secs(11);
        let mut ledger = Ledger::default();
        let (read, write) = (ledger.take(1, &READ), ledger.take(2, &WRITE));
        assert_eq!(
            (ledger.ended(read, Some(&LOST), PATIENCE), ledger.ended(write, Some(&LOST), PATIENCE)),
            (None, None)
        );
        assert_eq!((ledger.in_flight(), ledger.next(now)), (2, None), "not settled");
        ledger.settle_lost(Some(over), (now, PATIENCE), &mut nobody);
        assert_eq!((ledger.next(now), ledger.next(now)), (Some(read), None));
        assert!(matches!(ledger.send(read), Some(Request::Read { .. })));
        assert_eq!(ledger.next_time(now), Some(over));
        let before = over - Duration::from_millis(1);
        assert_eq!(ledger.next(before), None);
        ledger.expire(before, Some(Duration::ZERO), &mut nobody);
        assert_eq!(ledger.next(over), Some(write));
        assert!(matches!(ledger.send(write), Some(Request::Write { data: &[7, ..], .. })));
        assert_eq!(
            (ledger.ended(read, None, PATIENCE), ledger.ended(write, None, PATIENCE)),
            (Some((1, None)), Some((2, None)))
        );
        assert_eq!(ledger.in_flight(), 0);
    }

    #[test]
    fn a_write_that_a_target_may_still_carry_out_ends_as_unknown() {
        let now = Instant::now();
        for over in [None, Some(now + PATIENCE + Duration::from_secs(1))] {
            let mut ledger = Ledger::default();
            let write = ledger.take(2, &WRITE);
            assert_eq!(ledger.ended(write, Some(&LOST), PATIENCE), None);
            let mut ends = Vec::new();
            ledger.settle_lost(over, (now, PATIENCE), &mut |tag, error| ends.push((tag, error)));
            assert_eq!(ends, [(2, RequestError::Unknown(LostReason::Closed))]);
            assert_eq!((ledger.in_flight(), ledger.is_waiting()), (0, false));
        }
    }

    #[test]
    fn commands_that_must_not_run_twice_end_as_unknown() {
        let now = Instant::now();
        let mut ledger = Ledger::default();
        let sqe = bpfof_nvme::Sqe::new(0x7D, 1);
        let request = Request::Raw { sqe, data_out: &[7; 512], data_in_max_bytes: 0 };
        // An internal error of the path, and an abort by the controller, may come after the command was carried out;
        // other paths are tried only if the namespace was not accessible.
        for (code, end) in [(0, Some((2, None))), (0x71, Some((2, None))), (2, None)] {
            let mut ledger = Ledger::default();
            let append = ledger.take(2, &request);
            assert_eq!(ledger.ended(append, Some(&command(3, code)), PATIENCE), end);
        }
        let append = ledger.take(2, &request);
        assert_eq!(ledger.ended(append, Some(&LOST), PATIENCE), None);
        let mut ends = Vec::new();
        ledger.settle_lost(Some(now), (now, PATIENCE), &mut |tag, error| ends.push((tag, error)));
        assert_eq!(ends, [(2, RequestError::Unknown(LostReason::Closed))]);
        assert_eq!((ledger.in_flight(), ledger.is_waiting()), (0, false));
    }

    #[test]
    fn only_requests_refused_for_path_reasons_are_resent() {
        let now = Instant::now();
        let mut ledger = Ledger::default();
        for request in [READ, WRITE] {
            let number = ledger.take(5, &request);
            assert_eq!(ledger.ended(number, Some(&command(3, 2)), PATIENCE), None);
            assert_eq!(ledger.next(Instant::now()), Some(number));
            assert!(ledger.send(number).is_some());
            assert_eq!(ledger.ended(number, Some(&command(2, 0x81)), PATIENCE), Some((5, None)));
            assert_eq!(ledger.ended(number, None, PATIENCE), None, "it has ended");
        }
        // Without a usable path the request ends with the last path's status.
        let number = ledger.take(6, &READ);
        ledger.wait(number, now, command(3, 2));
        let mut ends = Vec::new();
        ledger.expire(now + PATIENCE, Some(PATIENCE), &mut |tag, error| ends.push((tag, error)));
        assert_eq!(ends, [(6, command(3, 2))]);
    }

    /// Several paths may be usable in turn, and each refuse it.
    #[test]
    fn a_request_that_is_refused_for_too_long_ends() {
        let mut ledger = Ledger::default();
        let number = ledger.take(1, &READ);
        let refusal = command(3, 2);
        for patience in [Duration::ZERO, PATIENCE] {
            assert_eq!(ledger.ended(number, Some(&refusal), patience), None);
            assert_eq!(ledger.next(Instant::now()), Some(number));
            assert!(ledger.send(number).is_some());
        }
        assert_eq!(ledger.ended(number, Some(&refusal), Duration::ZERO), Some((1, Some(refusal))));
        assert_eq!((ledger.in_flight(), ledger.is_waiting()), (0, false));
    }

    /// Only the time since the first refusal counts, not that for which it waited for another reason.
    #[test]
    fn a_request_is_sent_again_after_its_first_refusal() {
        let mut ledger = Ledger::default();
        let number = ledger.take(1, &READ);
        ledger.wait(number, Instant::now() - PATIENCE, LOST);
        assert_eq!(ledger.next(Instant::now()), Some(number));
        assert!(ledger.send(number).is_some());
        assert_eq!(ledger.ended(number, Some(&command(3, 2)), Duration::ZERO), None);
        assert!(ledger.is_waiting());
    }

    /// The lost target may have carried it out, whatever another one says.
    #[test]
    fn a_lost_write_that_is_refused_later_ends_as_unknown() {
        let mut ledger = Ledger::default();
        let number = ledger.take(1, &WRITE);
        assert_eq!(ledger.ended(number, Some(&LOST), PATIENCE), None);
        let now = Instant::now();
        ledger.settle_lost(Some(now), (now, PATIENCE), &mut nobody);
        for _ in 0..2 {
            assert_eq!(ledger.next(Instant::now()), Some(number));
            assert!(ledger.send(number).is_some());
            let end = ledger.ended(number, Some(&command(3, 2)), Duration::ZERO);
            let unknown = RequestError::Unknown(LostReason::Closed);
            assert!(end.is_none() || end == Some((1, Some(unknown))), "{end:?}");
        }
        assert_eq!(ledger.in_flight(), 0);
    }

    #[test]
    fn a_lost_request_ends_without_a_path_if_it_waits_in_vain() {
        let now = Instant::now();
        let ends_with = |patience| {
            let mut ledger = Ledger::default();
            let (lost, refused) = (ledger.take(1, &READ), ledger.take(2, &WRITE));
            assert_eq!(ledger.ended(lost, Some(&LOST), PATIENCE), None);
            ledger.settle_lost(Some(now), (now, PATIENCE), &mut nobody);
            ledger.wait(refused, now, LOST);
            let mut ends = Vec::new();
            ledger.expire(now + PATIENCE, patience, &mut |tag, error| ends.push((tag, error)));
            ends
        };
        let no_path = RequestError::Lost(LostReason::NoPath);
        assert_eq!(ends_with(Some(PATIENCE)), [(1, no_path), (2, no_path)]);
        assert_eq!(ends_with(None), [(1, LOST), (2, LOST)], "the lane has ended");
    }

    #[test]
    fn a_request_that_ends_each_connection_is_given_up() {
        let now = Instant::now();
        let mut ledger = Ledger::default();
        let number = ledger.take(1, &READ);
        let mut ends = Vec::new();
        for _ in 0..LOSSES_MAX {
            assert_eq!(ledger.ended(number, Some(&LOST), PATIENCE), None);
            ledger
                .settle_lost(Some(now), (now, PATIENCE), &mut |tag, error| ends.push((tag, error)));
            if let Some(number) = ledger.next(now) {
                assert!(ledger.send(number).is_some());
            }
        }
        assert_eq!(ends, [(1, LOST)]);
    }

    /// Paths may become inaccessible in turn for ever, each before it has answered.
    #[test]
    fn a_request_that_is_moved_for_too_long_ends() {
        let now = Instant::now();
        let mut ledger = Ledger::default();
        let number = ledger.take(1, &READ);
        let mut ends = Vec::new();
        for seconds in [1, 16, 32] {
            assert_eq!((ledger.ended(number, Some(&LOST), PATIENCE), &ends[..]), (None, &[][..]));
            let at = now + Duration::from_secs(seconds);
            ledger.send_again((at, PATIENCE), &mut |tag, error| ends.push((tag, error)));
            if let Some(number) = ledger.next(at) {
                assert!(ledger.send(number).is_some());
            }
        }
        assert_eq!(ends, [(1, RequestError::Lost(LostReason::NoPath))]);
        assert_eq!((ledger.in_flight(), ledger.is_waiting()), (0, false));
    }

    proptest! {
        /// For any behaviour of queues: each request ends exactly once, none is on two queues, and
        /// a lost write is not sent again while its first target may still carry it out.
        #[test]
        fn each_request_ends_exactly_once(
            events in proptest::collection::vec((0_u8..8, any::<u8>()), 1..200),
        ) {
            let mut now = Instant::now();
            let mut ledger = Ledger::default();
            let (mut sent, mut open, mut next_tag) = (Vec::new(), BTreeMap::new(), 0);
            let mut barred: BTreeMap<u32, Instant> = BTreeMap::new();
            for (event, detail) in events.into_iter().chain([(6, 0), (5, 0)]) {
                let mut ends = Vec::new();
                match event {
                    0 | 1 => {
                        let is_write = event == 1;
                        let number = ledger.take(next_tag, if is_write { &WRITE } else { &READ });
                        prop_assert!(!sent.contains(&number));
                        barred.remove(&number);
                        open.insert(next_tag, is_write);
                        next_tag += 1;
                        sent.push(number);
                    }
                    2 if !sent.is_empty() => {
                        let number = sent.swap_remove(usize::from(detail) % sent.len());
                        let error = (detail & 1 == 1).then(|| command(2, 0x81));
                        ends.extend(ledger.ended(number, error.as_ref(), PATIENCE).map(|(tag, _)| tag));
                        prop_assert_eq!(ends.len(), 1);
                    }
                    3 if !sent.is_empty() => {
                        let number = sent.swap_remove(usize::from(detail) % sent.len());
                        prop_assert_eq!(ledger.ended(number, Some(&command(3, 2)), PATIENCE), None);
                    }
                    4 | 6 => {
                        for number in sent.drain(..) {
                            prop_assert_eq!(ledger.ended(number, Some(&LOST), PATIENCE), None);
                            barred.insert(number, now + Duration::from_secs(2));
                        }
                        let over = (detail & 1 == 0).then_some(now + Duration::from_secs(2));
                        ledger.settle_lost(over, (now, PATIENCE), &mut |tag, _| ends.push(tag));
                    }
                    7 if ledger.may_leave() => {
                        for number in sent.drain(..) {
                            prop_assert_eq!(ledger.ended(number, Some(&LOST), PATIENCE), None);
                        }
                        let patience = Duration::from_secs(1);
                        ledger.send_again((now, patience), &mut |tag, _| ends.push(tag));
                    }
                    _ => {
                        now += Duration::from_millis(u64::from(detail) * 20);
                        while let Some(number) = ledger.next(now) {
                            prop_assert!(!sent.contains(&number));
                            let request = ledger.send(number);
                            let is_write = matches!(request, Some(Request::Write { .. }));
                            let bar = barred.remove(&number).filter(|_| is_write);
                            prop_assert!(bar.is_none_or(|bar| now >= bar));
                            sent.push(number);
                        }
                    }
                }
                for tag in ends {
                    prop_assert!(open.remove(&tag).is_some(), "{} ends twice", tag);
                }
                prop_assert_eq!(ledger.in_flight(), open.len());
            }
            // No path comes back: all waiting requests end.
            for number in sent.drain(..) {
                ledger.ended(number, Some(&LOST), PATIENCE);
            }
            let mut rest = Vec::new();
            ledger.settle_lost(None, (now, PATIENCE), &mut |tag, _| rest.push(tag));
            ledger.expire(now, None, &mut |tag, _| rest.push(tag));
            for tag in rest {
                prop_assert!(open.remove(&tag).is_some());
            }
            prop_assert!(open.is_empty() && ledger.in_flight() == 0);
        }
    }
}
