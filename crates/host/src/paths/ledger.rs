//! The requests of a lane from when they are submitted until their ends are told: where each is, and
//! what becomes of one that a path has not carried out. No queue, no clock but the caller's.
//!
//! Each request ends exactly once: it has a slot from [`Ledger::take`] until its end, and only what has
//! a slot and is where the caller says can end or be sent.

use super::kept::{Again, Kept};
use crate::{LostReason, Request, RequestError};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A request that has been on so many connections that were lost is not sent again: it may be what ends
/// them.
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
    /// On a queue that was lost, and until when it may be carried out is yet to be found out.
    Lost(LostReason),
}

#[derive(Debug)]
struct Slot {
    tag: u64,
    place: Place,
    kept: Kept,
    losses: u8,
    /// Since when it waits, and how it ends if it waits too long.
    waits: Option<(Instant, RequestError)>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Those that are to be sent, in order.
    waiting: VecDeque<u32>,
    /// Those whose queue was lost.
    lost: Vec<u32>,
}

impl Ledger {
    /// Requests that have not ended.
    pub(super) const fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether requests wait to be sent.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Keeps a request, which is to be sent, and returns its number.
    #[inline]
    pub(super) fn take(&mut self, tag: u64, request: &Request<'_>) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            let kept = Kept::default();
            self.slots.push(Slot { tag, place: Place::Free, kept, losses: 0, waits: None });
            self.slots.len() as u32 - 1
        });
        if let Some(slot) = self.slots.get_mut(number as usize) {
            slot.tag = tag;
            slot.place = Place::Sent;
            slot.losses = 0;
            slot.waits = None;
            slot.kept.keep(request);
        }
        number
    }

    /// The request was not accepted.
    pub(super) fn give_back(&mut self, number: u32) {
        if let Some(slot) = self.slots.get_mut(number as usize)
            && slot.place != Place::Free
        {
            slot.place = Place::Free;
            self.free.push(number);
        }
    }

    /// The request could not be sent now, and is to be sent when that is possible.
    pub(super) fn wait(&mut self, number: u32, now: Instant, why: RequestError) {
        if let Some(slot) = self.slots.get_mut(number as usize)
            && slot.place == Place::Sent
        {
            slot.place = Place::Waits(None);
            slot.waits = slot.waits.or(Some((now, why)));
            self.waiting.push_back(number);
        }
    }

    /// A request has ended on its queue. Its tag, if that is its end; if not, it is sent again.
    #[inline]
    pub(super) fn ended(&mut self, number: u32, error: Option<&RequestError>) -> Option<u64> {
        let slot = self.slots.get_mut(number as usize)?;
        if slot.place != Place::Sent {
            return None;
        }
        match error {
            Some(RequestError::Command(command)) if command.is_of_path() => {
                self.wait(number, Instant::now(), RequestError::Command(*command));
                return None;
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
        Some(tag)
    }

    /// What becomes of those whose queue was lost: the target may carry them out until `over`, or nobody
    /// knows until when. Those that change nothing are sent again; writes after that, unless it takes longer
    /// than `patience`. What may not be carried out twice ends. Each that ends is told to `on_end`.
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
                    // Until then it waits for a reason of its own.
                    slot.waits = Some((until.unwrap_or(now), why));
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

    /// Where among those that wait the next is that may be sent at `now`.
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

    /// The request that [`next`](Self::next) gave, which is on its way from here on.
    pub(super) fn send(&mut self, number: u32) -> Option<Request<'_>> {
        let slot = self.slots.get_mut(number as usize)?;
        slot.place = Place::Sent;
        Some(slot.kept.request())
    }

    /// When the next request that waits may be sent that may not be sent at `now`.
    pub(super) fn next_time(&self, now: Instant) -> Option<Instant> {
        let times = self.waiting.iter().filter_map(|number| {
            match self.slots.get(*number as usize)?.place {
                Place::Waits(until) => until.filter(|until| *until > now),
                _ => None,
            }
        });
        times.min()
    }

    /// Ends those that have waited for `patience` for a path; without one, all that wait.
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
            // Those that wait for a time of their own have it in the future.
            let waits_on =
                |patience| now.saturating_duration_since(since) < patience || since > now;
            if patience.is_some_and(waits_on) {
                return true;
            }
            slot.place = Place::Free;
            free.push(*number);
            on_end(slot.tag, why);
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
    fn a_read_is_sent_again_at_once_and_a_write_when_nobody_can_carry_it_out() {
        let now = Instant::now();
        let over = now + Duration::from_secs(11);
        let mut ledger = Ledger::default();
        let (read, write) = (ledger.take(1, &READ), ledger.take(2, &WRITE));
        assert_eq!(
            (ledger.ended(read, Some(&LOST)), ledger.ended(write, Some(&LOST))),
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
        assert_eq!((ledger.ended(read, None), ledger.ended(write, None)), (Some(1), Some(2)));
        assert_eq!(ledger.in_flight(), 0);
    }

    #[test]
    fn a_write_whose_target_may_act_for_ever_or_too_long_ends_as_unknown() {
        let now = Instant::now();
        for over in [None, Some(now + PATIENCE + Duration::from_secs(1))] {
            let mut ledger = Ledger::default();
            let write = ledger.take(2, &WRITE);
            assert_eq!(ledger.ended(write, Some(&LOST)), None);
            let mut ends = Vec::new();
            ledger.settle_lost(over, (now, PATIENCE), &mut |tag, error| ends.push((tag, error)));
            assert_eq!(ends, [(2, RequestError::Unknown(LostReason::Closed))]);
            assert_eq!((ledger.in_flight(), ledger.is_waiting()), (0, false));
        }
    }

    #[test]
    fn what_may_not_be_done_twice_ends_as_unknown() {
        let now = Instant::now();
        let mut ledger = Ledger::default();
        let sqe = bpfof_nvme::Sqe::new(0x7D, 1);
        let append = Request::Raw { sqe, data_out: &[7; 512], data_in_max_bytes: 0 };
        let append = ledger.take(2, &append);
        assert_eq!(ledger.ended(append, Some(&LOST)), None);
        let mut ends = Vec::new();
        ledger.settle_lost(Some(now), (now, PATIENCE), &mut |tag, error| ends.push((tag, error)));
        assert_eq!(ends, [(2, RequestError::Unknown(LostReason::Closed))]);
        assert_eq!((ledger.in_flight(), ledger.is_waiting()), (0, false));
    }

    #[test]
    fn what_a_path_refuses_is_sent_again_and_what_a_target_refuses_is_not() {
        let now = Instant::now();
        let mut ledger = Ledger::default();
        for request in [READ, WRITE] {
            let number = ledger.take(5, &request);
            assert_eq!(ledger.ended(number, Some(&command(3, 2))), None);
            assert_eq!(ledger.next(Instant::now()), Some(number));
            assert!(ledger.send(number).is_some());
            assert_eq!(ledger.ended(number, Some(&command(2, 0x81))), Some(5));
            assert_eq!(ledger.ended(number, None), None, "it has ended");
        }
        // None is there: it ends with what the last has said.
        let number = ledger.take(6, &READ);
        ledger.wait(number, now, command(3, 2));
        let mut ends = Vec::new();
        ledger.expire(now + PATIENCE, Some(PATIENCE), &mut |tag, error| ends.push((tag, error)));
        assert_eq!(ends, [(6, command(3, 2))]);
    }

    #[test]
    fn a_request_that_ends_each_connection_is_not_sent_for_ever() {
        let now = Instant::now();
        let mut ledger = Ledger::default();
        let number = ledger.take(1, &READ);
        let mut ends = Vec::new();
        for _ in 0..LOSSES_MAX {
            assert_eq!(ledger.ended(number, Some(&LOST)), None);
            ledger
                .settle_lost(Some(now), (now, PATIENCE), &mut |tag, error| ends.push((tag, error)));
            if let Some(number) = ledger.next(now) {
                assert!(ledger.send(number).is_some());
            }
        }
        assert_eq!(ends, [(1, LOST)]);
    }

    proptest! {
        /// Whatever queues do with requests: each ends exactly once, none is on two queues, and a
        /// write that was lost is on none before its target cannot carry it out.
        #[test]
        fn each_request_ends_exactly_once(
            events in proptest::collection::vec((0_u8..7, any::<u8>()), 1..200),
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
                        ends.extend(ledger.ended(number, error.as_ref()));
                        prop_assert_eq!(ends.len(), 1);
                    }
                    3 if !sent.is_empty() => {
                        let number = sent.swap_remove(usize::from(detail) % sent.len());
                        prop_assert_eq!(ledger.ended(number, Some(&command(3, 2))), None);
                    }
                    4 | 6 => {
                        for number in sent.drain(..) {
                            prop_assert_eq!(ledger.ended(number, Some(&LOST)), None);
                            barred.insert(number, now + Duration::from_secs(2));
                        }
                        let over = (detail & 1 == 0).then_some(now + Duration::from_secs(2));
                        ledger.settle_lost(over, (now, PATIENCE), &mut |tag, _| ends.push(tag));
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
            // Nothing comes back: what still waits ends.
            for number in sent.drain(..) {
                ledger.ended(number, Some(&LOST));
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
