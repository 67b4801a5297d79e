//! When a shared lane sends: caravans and the delayed doorbell of i10 (§3.2, §3.3), with a delay
//! that follows the load, which i10 leaves open. Knows no socket and no clock.

/// How a [`SharedLane`](crate::SharedLane) gathers requests into one send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caravan {
    /// Largest number of requests that wait for more; fewer leave if they are half of all. 1 sends each request alone.
    pub max_requests: usize,
    /// Number of queued bytes, commands and data together, that leaves without waiting for more.
    pub max_bytes: usize,
    /// Longest wait of a request for others to join it, in µs. The lane waits less, or not at all, if requests come too
    /// rarely for that to pay off or no other running thread adds one, and never if few requests are in flight. 0 never
    /// waits.
    pub max_delay_us: u32,
}

impl Default for Caravan {
    /// i10's: 16 requests, 64 KiB, 50 µs.
    fn default() -> Self {
        Caravan { max_requests: 16, max_bytes: 64 << 10, max_delay_us: 50 }
    }
}

/// Least number of requests in flight, plus callers that were just answered, for which waiting can pay off. With fewer
/// the lane is idle soon, and a request's latency grows by the whole wait.
const BUSY_REQUESTS: usize = 4;

/// A caravan leaves with half of the requests that there are: while the target works on one, the callers work on the
/// answers of the other. A larger one would let each side wait for the other; smaller ones cost more sends.
const CARAVANS: usize = 2;

/// The queued requests of a lane, and those in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) queued_requests: usize,
    pub(crate) queued_bytes: usize,
    /// Sent and not answered.
    pub(crate) in_flight: usize,
}

/// The doorbell of a shared lane.
#[derive(Debug)]
pub(crate) struct Doorbell {
    caravan: Caravan,
    /// How long a request waits for others now, in µs: grows to the caravan's delay while waiting gathers requests,
    /// shrinks to 0 while it does not.
    patience_us: u64,
    held_since_us: Option<u64>,
    rung_us: u64,
    /// Callers answered since the last ring that have not sent another request.
    answered: usize,
}

impl Doorbell {
    pub(crate) fn new(caravan: Caravan) -> Doorbell {
        Doorbell { caravan, patience_us: 0, held_since_us: None, rung_us: 0, answered: 0 }
    }

    /// Notes that a request was queued. Returns whether to ring now.
    pub(crate) fn queued(&mut self, load: Load, no_delay: bool, now_us: u64) -> bool {
        self.answered = self.answered.saturating_sub(1);
        let all = load.in_flight + load.queued_requests + self.answered;
        let full = load.queued_requests >= self.caravan.max_requests.min(all / CARAVANS)
            || load.queued_bytes >= self.caravan.max_bytes;
        if full || no_delay || self.is_idle(load) || self.patience_us == 0 {
            return true;
        }
        self.held_since_us.get_or_insert(now_us);
        false
    }

    /// Whether too few requests are in flight for a wait to pay off.
    pub(crate) fn is_idle(&self, load: Load) -> bool {
        load.in_flight + self.answered < BUSY_REQUESTS
    }

    /// Notes that requests were answered: their callers may send the next ones.
    pub(crate) fn answered(&mut self, requests: usize) {
        self.answered += requests;
    }

    /// How long the held requests may still wait, in µs; `None` if none are held.
    pub(crate) fn patience_left_us(&self, now_us: u64) -> Option<u64> {
        self.held_since_us.map(|since| (since + self.patience_us).saturating_sub(now_us))
    }

    /// Notes that all queued requests leave: `requests` of them. Waiting pays off if a send carries several requests,
    /// or follows the previous send within half of the longest delay; otherwise it does not.
    pub(crate) fn rung(&mut self, requests: usize, now_us: u64) {
        let max_us = u64::from(self.caravan.max_delay_us);
        let soon = now_us.saturating_sub(self.rung_us) <= max_us / 2;
        self.patience_us = if requests > 1 || soon {
            (2 * self.patience_us + 1).min(max_us)
        } else {
            self.patience_us / 2
        };
        if self.held_since_us.take().is_some() {
            // Half of the callers that have not sent another request in that time are still expected.
            self.answered /= 2;
        }
        self.rung_us = now_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(queued_requests: usize, in_flight: usize) -> Load {
        Load { queued_requests, queued_bytes: 72 * queued_requests, in_flight }
    }

    /// A doorbell that has seen requests come close to each other.
    fn busy() -> Doorbell {
        let mut doorbell = Doorbell::new(Caravan::default());
        (1000..1020).for_each(|now_us| doorbell.rung(4, now_us));
        assert_eq!(doorbell.patience_us, 50);
        doorbell
    }

    #[test]
    fn holds_only_while_others_are_in_flight() {
        let mut doorbell = busy();
        assert!(doorbell.queued(load(1, 0), false, 2000));
        assert!(doorbell.queued(load(1, 3), false, 2000));
        assert_eq!(doorbell.patience_left_us(2000), None);
        assert!(!doorbell.queued(load(1, 4), false, 2000));
        assert_eq!(doorbell.patience_left_us(2010), Some(40));
        assert_eq!(doorbell.patience_left_us(2090), Some(0));
        doorbell.rung(1, 2090);
        assert_eq!(doorbell.patience_left_us(2090), None);
    }

    #[test]
    fn full_caravans_and_urgent_requests_are_sent_at_once() {
        let mut doorbell = busy();
        assert!(!doorbell.queued(load(15, 100), false, 2000));
        assert!(doorbell.queued(load(16, 100), false, 2000));
        assert!(doorbell.queued(load(3, 100), true, 2000));
        let large = Load { queued_requests: 2, queued_bytes: 64 << 10, in_flight: 100 };
        assert!(doorbell.queued(large, false, 2000));
    }

    #[test]
    fn waits_for_requests_of_callers_that_were_just_answered() {
        let mut doorbell = busy();
        doorbell.answered(16);
        for come in 1..=7 {
            assert!(!doorbell.queued(load(come, 0), false, 2000), "{come}");
        }
        assert!(doorbell.queued(load(8, 0), false, 2000), "half of those that may come");
    }

    #[test]
    fn half_of_all_requests_leaves() {
        let mut doorbell = busy();
        assert!(!doorbell.queued(load(11, 13), false, 2000));
        assert!(doorbell.queued(load(12, 12), false, 2000));
    }

    #[test]
    fn patience_follows_the_load() {
        let mut doorbell = busy();
        for round in 0..8 {
            assert!(doorbell.patience_us > 0 || round > 5);
            doorbell.rung(1, 5000 + 1000 * round);
        }
        assert_eq!(doorbell.patience_us, 0);
        assert!(doorbell.queued(load(1, 100), false, 20_000), "lonely requests leave at once");
        doorbell.rung(1, 20_000);
        doorbell.rung(1, 20_010);
        assert!(!doorbell.queued(load(1, 100), false, 20_020));
    }

    #[test]
    fn never_waits_without_a_delay() {
        let mut doorbell = Doorbell::new(Caravan { max_delay_us: 0, ..Caravan::default() });
        for now_us in 0..100 {
            assert!(doorbell.queued(load(3, 100), false, now_us));
            doorbell.rung(3, now_us);
        }
    }
}
