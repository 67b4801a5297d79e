//! The time that a reactor spends on connections that come and go.

/// While other work waits, connections that come and go get one part in this many of a reactor's time.
const PART: u64 = 4;
/// Most time that may be saved up, and most that may be overdrawn, in ns: a few connections.
const MOST_NS: i64 = 250_000;

/// The time that is left. Accepting and closing belong to no host's share, and any peer can cause them: without this
/// limit peers that connect and disconnect would take most of the time from hosts.
#[derive(Debug)]
pub(super) struct Turnover {
    left_ns: i64,
    /// Until when time has been added.
    added_ns: u64,
    /// Until when work has been counted.
    counted_ns: u64,
}

impl Default for Turnover {
    fn default() -> Turnover {
        Turnover { left_ns: MOST_NS, added_ns: 0, counted_ns: 0 }
    }
}

impl Turnover {
    /// Time has passed.
    pub(super) fn add(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.added_ns);
        self.added_ns = self.added_ns.max(now_ns);
        let more_ns = i64::try_from(passed_ns / PART).unwrap_or(i64::MAX);
        self.left_ns = self.left_ns.saturating_add(more_ns).min(MOST_NS);
    }

    /// Whether there is time although other work waits.
    pub(super) fn has_time(&self) -> bool {
        self.left_ns > 0
    }

    /// Counts work that began at `begun_ns`; of work within other work, the inner must be counted first.
    pub(super) fn took(&mut self, begun_ns: u64, now_ns: u64) {
        let took_ns = now_ns.saturating_sub(begun_ns.max(self.counted_ns));
        self.counted_ns = self.counted_ns.max(now_ns);
        let took_ns = i64::try_from(took_ns).unwrap_or(i64::MAX);
        self.left_ns = self.left_ns.saturating_sub(took_ns).max(-MOST_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Works whenever there is time, 50 µs each, in a reactor that is never idle.
    #[test]
    fn a_quarter_of_the_time_is_spent() {
        let mut turnover = Turnover::default();
        let (mut now_ns, mut spent_ns) = (0, 0);
        while now_ns < 1_000_000_000 {
            turnover.add(now_ns);
            let begun_ns = now_ns;
            now_ns += 10_000;
            if turnover.has_time() {
                now_ns += 50_000;
                spent_ns += 60_000;
                turnover.took(begun_ns, now_ns);
            }
        }
        let part = spent_ns * 1000 / now_ns;
        assert!((250..252).contains(&part), "{part} of 1000");
    }

    #[test]
    fn work_within_work_counts_once() {
        let mut turnover = Turnover::default();
        turnover.took(100, 200);
        turnover.took(50, 300);
        assert_eq!(turnover.left_ns, MOST_NS - 200);
        // A pause of the process is not owed for long.
        turnover.took(300, u64::MAX);
        assert_eq!(turnover.left_ns, -MOST_NS);
        turnover.add(8 * MOST_NS as u64);
        assert_eq!(turnover.left_ns, MOST_NS);
    }
}
