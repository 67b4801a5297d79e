//! The time that a reactor spends on connections that come and go.

/// While other work waits, connections that come and go get one part in this many of a reactor's time.
const PART: u64 = 4;
/// Most time that may be saved up, in ns: a few connections.
const MOST_NS: i64 = 250_000;
/// Most that may be overdrawn, in ns: more than a connection takes, but a pause of the process is not owed for long.
const MOST_OVERDRAWN_NS: i64 = 1_000_000;

/// The time that is left. Accepting and closing belong to no host's share, and any peer can cause them: without this
/// limit peers that connect and disconnect would take most of the time from hosts.
#[derive(Debug)]
pub(super) struct Turnover {
    left_ns: i64,
    /// Until when time has been added.
    added_ns: u64,
    /// All work that has been counted.
    spent_ns: u64,
}

/// The beginning of work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    now_ns: u64,
    spent_ns: u64,
}

impl Default for Turnover {
    fn default() -> Turnover {
        Turnover { left_ns: MOST_NS, added_ns: 0, spent_ns: 0 }
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

    /// Work begins.
    pub(super) fn begin(&self, now_ns: u64) -> Begun {
        Begun { now_ns, spent_ns: self.spent_ns }
    }

    /// Counts work, without the work within it that has been counted.
    pub(super) fn end(&mut self, begun: Begun, now_ns: u64) {
        let within_ns = self.spent_ns - begun.spent_ns;
        let took_ns = now_ns.saturating_sub(begun.now_ns).saturating_sub(within_ns);
        self.spent_ns += took_ns;
        let took_ns = i64::try_from(took_ns).unwrap_or(i64::MAX);
        self.left_ns = self.left_ns.saturating_sub(took_ns).max(-MOST_OVERDRAWN_NS);
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
            if turnover.has_time() {
                let begun = turnover.begin(now_ns);
                now_ns += 50_000;
                spent_ns += 50_000;
                turnover.end(begun, now_ns);
            }
            now_ns += 10_000;
        }
        let part = spent_ns * 1000 / now_ns;
        assert!((250..252).contains(&part), "{part} of 1000");
    }

    #[test]
    fn work_within_work_counts_once() {
        let mut turnover = Turnover::default();
        let outer = turnover.begin(50);
        let inner = turnover.begin(100);
        turnover.end(inner, 200);
        turnover.end(outer, 300);
        assert_eq!(turnover.left_ns, MOST_NS - 250);
        // A pause of the process is not owed for long.
        turnover.end(turnover.begin(300), 1 << 60);
        assert_eq!(turnover.left_ns, -MOST_OVERDRAWN_NS);
        turnover.add(8_000_000);
        assert_eq!(turnover.left_ns, MOST_NS);
    }
}
