//! When a shared lane sends: caravans and the delayed doorbell of i10 (§3.2, §3.3), with a delay
//! that follows the load, which i10 leaves open. Knows no socket and no clock.

/// How a [`SharedLane`](crate::SharedLane) gathers requests into one send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caravan {
    /// Requests that leave without waiting for more. 1 sends each by itself.
    pub max_requests: usize,
    /// Bytes that leave without waiting for more, commands and data together.
    pub max_bytes: usize,
    /// Longest wait of a request for others to join it, in µs. The lane waits less, or not at all,
    /// when requests come too rarely for that to pay or no thread that runs meanwhile has one, and
    /// never when little is in flight. 0 never waits.
    pub max_delay_us: u32,
}

impl Default for Caravan {
    /// i10's: 16 requests, 64 KiB, 50 µs.
    fn default() -> Self {
        Caravan { max_requests: 16, max_bytes: 64 << 10, max_delay_us: 50 }
    }
}

/// Requests in flight, or of callers that were just answered, from which on waiting can pay. With
/// fewer the lane is idle soon, and a wait is seen in full by whoever waits.
const BUSY_REQUESTS: usize = 4;

/// What waits in a lane, and what is on its way.
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
    /// How long a request waits for others now, in µs: up to the caravan's delay where gathering
    /// has worked, towards 0 where it has not.
    patience_us: u64,
    held_since_us: Option<u64>,
    rung_us: u64,
    /// Callers answered since the last ring that have not come back.
    answered: usize,
}

impl Doorbell {
    pub(crate) fn new(caravan: Caravan) -> Doorbell {
        Doorbell { caravan, patience_us: 0, held_since_us: None, rung_us: 0, answered: 0 }
    }

    /// A request was queued: whether to ring now.
    pub(crate) fn queued(&mut self, load: Load, no_delay: bool, now_us: u64) -> bool {
        self.answered = self.answered.saturating_sub(1);
        let full = load.queued_requests >= self.caravan.max_requests
            || load.queued_bytes >= self.caravan.max_bytes;
        if full || no_delay || self.is_idle(load) || self.patience_us == 0 {
            return true;
        }
        self.held_since_us.get_or_insert(now_us);
        false
    }

    /// Whether too little is on its way for a wait to pay.
    pub(crate) fn is_idle(&self, load: Load) -> bool {
        load.in_flight + self.answered < BUSY_REQUESTS
    }

    /// Requests were answered: their callers may come back with the next.
    pub(crate) fn answered(&mut self, requests: usize) {
        self.answered += requests;
    }

    /// How long, in µs, the requests held may still wait; none are held if there is no answer.
    pub(crate) fn patience_left_us(&self, now_us: u64) -> Option<u64> {
        self.held_since_us.map(|since| (since + self.patience_us).saturating_sub(now_us))
    }

    /// All that was queued leaves: `requests` of them. Sends that follow each other within half of
    /// the delay would have been worth joining, and one that took several was; a lonely one was
    /// not worth the wait.
    pub(crate) fn rung(&mut self, requests: usize, now_us: u64) {
        let max_us = u64::from(self.caravan.max_delay_us);
        let soon = now_us.saturating_sub(self.rung_us) <= max_us / 2;
        self.patience_us = if requests > 1 || soon {
            (2 * self.patience_us + 1).min(max_us)
        } else {
            self.patience_us / 2
        };
        if self.held_since_us.take().is_some() {
            // Of those who were expected and have not come within that time, half are still waited for.
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
    fn full_caravans_and_requests_in_a_hurry_leave() {
        let mut doorbell = busy();
        assert!(!doorbell.queued(load(15, 100), false, 2000));
        assert!(doorbell.queued(load(16, 100), false, 2000));
        assert!(doorbell.queued(load(3, 100), true, 2000));
        let large = Load { queued_requests: 2, queued_bytes: 64 << 10, in_flight: 100 };
        assert!(doorbell.queued(large, false, 2000));
    }

    #[test]
    fn waits_for_callers_that_were_answered() {
        let mut doorbell = busy();
        doorbell.answered(16);
        for come in 1..=12 {
            assert!(!doorbell.queued(load(come, 0), false, 2000), "{come}");
        }
        assert!(doorbell.queued(load(13, 0), false, 2000), "the last few are not waited for");
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
