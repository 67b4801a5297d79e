//! Compares what work has cost with the time that it took.
//!
//! Prices are those of work whose data is in the processor's caches. A function that reads the memory of hundreds of
//! chains in turn takes many times as long as it pays for. So the work between two readings of the clock costs its time
//! if that is much more than its price. Usually the clock is read once a round, and the connections of the round pay in
//! proportion to their prices; once there has been such work, it is read for each connection of a round.

use bpfof_function::cost::{UNIT_PS, units_of_us};

/// Work costs its time if it takes more than this times its price, and `OVERHEAD` more.
const TOLERANCE: u64 = 2;
/// Time of the reactor itself, in units.
const OVERHEAD: u64 = units_of_us(1) / 2;
/// Work costs at most this times what it has been charged with: the machine may have done something else in the time.
const FACTOR_MAX: u64 = 16;
/// After work whose price was too low, so many further readings compare the work of each connection by itself.
const SUSPECT_LOOKS: u8 = 64;
/// Work at the end of a turn is worth a reading of the clock from this price on.
const WORTH_UNITS: u64 = units_of_us(1);

/// The work since the clock was last read.
#[derive(Debug, Default)]
pub(super) struct Prices {
    /// When it was last read; none before the first work of a turn.
    since_ns: Option<u64>,
    /// What the work has cost, by connection, in units. Work that one connection causes in a row is one entry.
    all: Vec<(u32, u64)>,
    units: u64,
    /// Readings that are left of [`SUSPECT_LOOKS`].
    suspect: u8,
}

impl Prices {
    /// Forgets all work, and the time.
    pub(super) fn restart(&mut self) {
        (self.since_ns, self.units) = (None, 0);
        self.all.clear();
    }

    /// Work of a connection has cost this many units.
    #[inline]
    pub(super) fn add(&mut self, connection: u32, units: u64) {
        self.units += units;
        match self.all.last_mut() {
            Some((last, sum)) if *last == connection => *sum += units,
            _ => self.all.push((connection, units)),
        }
    }

    /// Whether the clock should be read before the work of another connection, so that it does not pay for this one's.
    #[inline]
    pub(super) fn is_suspect(&self) -> bool {
        self.suspect > 0
    }

    /// Whether a turn should not end without another reading of the clock.
    #[inline]
    pub(super) fn is_worth_a_look(&self) -> bool {
        self.units >= WORTH_UNITS
    }

    /// The clock has been read. If the work since the last reading took much longer than its price, calls `charge` with
    /// each connection and the units that it still has to pay.
    #[inline]
    pub(super) fn look(&mut self, now_ns: u64, mut charge: impl FnMut(u32, u64)) {
        let Prices { since_ns, all, units, suspect } = self;
        let passed_ns = since_ns.replace(now_ns).map_or(0, |since| now_ns.saturating_sub(since));
        let passed = passed_ns * 1000 / UNIT_PS;
        *suspect = suspect.saturating_sub(1);
        if passed > TOLERANCE * *units + OVERHEAD && *units > 0 {
            *suspect = SUSPECT_LOOKS;
            let missing = passed.min(FACTOR_MAX * *units) - *units;
            for (connection, paid) in &*all {
                let part = u128::from(*paid) * u128::from(missing) / u128::from(*units);
                charge(*connection, part as u64);
            }
        }
        all.clear();
        *units = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each connection still has to pay after work of these prices, which took `passed` units.
    fn missing(work: &[(u32, u64)], passed: u64) -> Vec<(u32, u64)> {
        let (mut prices, mut missing) = (Prices::default(), Vec::new());
        prices.look(1000, |_, _| panic!("nothing was done"));
        work.iter().for_each(|(connection, units)| prices.add(*connection, *units));
        let now_ns = 1000 + passed * UNIT_PS / 1000;
        prices.look(now_ns, |connection, units| missing.push((connection, units)));
        prices.look(now_ns + 1_000_000, |_, _| panic!("the work was forgotten"));
        missing
    }

    #[test]
    fn slow_work_costs_its_time() {
        let work = [(7, 10_000), (8, 5_000), (7, 2_000), (7, 3_000)];
        assert_eq!(missing(&work, 10_000), []);
        assert_eq!(missing(&work, 42_000), [], "a price may be half of the time");
        assert_eq!(missing(&work, 100_000), [(7, 40_000), (8, 20_000), (7, 20_000)]);
        let stopped = missing(&work, 1 << 40);
        assert_eq!(stopped, [(7, 150_000), (8, 75_000), (7, 75_000)], "the process was stopped");
        assert_eq!(missing(&[], 1 << 40), []);
        assert_eq!(missing(&[(1, 0)], 1 << 40), []);
    }

    #[test]
    fn time_before_work_does_not_count() {
        let mut prices = Prices::default();
        prices.look(0, |_, _| {});
        prices.add(1, 10_000);
        assert!(prices.is_worth_a_look());
        prices.restart();
        prices.add(1, 10);
        prices.look(1_000_000, |_, _| panic!("the clock was not read before the work"));
        assert!(!prices.is_worth_a_look());
    }
}
