//! Decides whether chains that leave together are better sent as one command. A command ends with the last of its
//! chains, so that one slow chain delays the other answers. The decision follows measured times. Knows no clock.

/// One send in this many takes the other way, so that its time stays known.
const TRIAL_EVERY: u32 = 32;
/// Vectors are given up if their chains take longer by more than one part in this many.
const TOLERATED: u64 = 8;
/// A new time has a weight of one part in this many in the average.
const WEIGHT: u64 = 16;

/// How chains that leave together are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// As one command.
    Together,
    /// Each as a command of its own.
    Apart,
}

/// Average times from the send to the answer, for both ways.
#[derive(Debug, Default)]
pub(super) struct Pace {
    together: Average,
    apart: Average,
    sends: u32,
}

impl Pace {
    /// Chooses the way of the next send of several chains.
    pub(super) fn next(&mut self) -> Way {
        self.sends = self.sends.wrapping_add(1);
        let is_trial = self.sends.is_multiple_of(TRIAL_EVERY);
        if is_trial == self.pays() { Way::Apart } else { Way::Together }
    }

    /// Whether vectors pay off, as far as is known.
    fn pays(&self) -> bool {
        match (self.together.value(), self.apart.value()) {
            (Some(together), Some(apart)) => together <= apart + apart / TOLERATED,
            _ => true,
        }
    }

    /// Records that a chain sent this way was answered after `after_us`.
    pub(super) fn answered(&mut self, way: Way, after_us: u64) {
        match way {
            Way::Together => self.together.add(after_us),
            Way::Apart => self.apart.add(after_us),
        }
    }
}

/// An exponential moving average.
#[derive(Debug, Default)]
struct Average {
    /// The average times [`WEIGHT`]; 0 before the first value.
    sum: u64,
}

impl Average {
    fn add(&mut self, value: u64) {
        let value = value.clamp(1, u64::from(u32::MAX));
        match self.sum {
            0 => self.sum = value * WEIGHT,
            sum => self.sum = sum - sum / WEIGHT + value,
        }
    }

    fn value(&self) -> Option<u64> {
        (self.sum > 0).then_some(self.sum / WEIGHT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `sends` sends go together if chains are answered after these times.
    fn together(pace: &mut Pace, sends: u32, together_us: u64, apart_us: u64) -> u32 {
        let mut count = 0;
        for _ in 0..sends {
            let way = pace.next();
            let after_us = if way == Way::Together { together_us } else { apart_us };
            (0..8).for_each(|_| pace.answered(way, after_us));
            count += u32::from(way == Way::Together);
        }
        count
    }

    #[test]
    fn the_faster_way_is_taken_and_the_other_tried() {
        let mut pace = Pace::default();
        assert_eq!(together(&mut pace, 320, 50, 60), 310);
        // Vectors become much slower all at once: this is noticed, and they are given up.
        together(&mut pace, 32, 500, 60);
        assert_eq!(together(&mut pace, 320, 500, 60), 10);
        // They become faster again: used again after some trials.
        together(&mut pace, 640, 50, 60);
        assert_eq!(together(&mut pace, 320, 50, 60), 310);
    }

    #[test]
    fn a_slightly_slower_way_is_kept() {
        assert_eq!(together(&mut Pace::default(), 320, 110, 100), 310);
        assert!(together(&mut Pace::default(), 320, 120, 100) < 50);
    }

    #[test]
    fn averages_take_any_value() {
        let mut average = Average::default();
        assert_eq!(average.value(), None);
        for value in [0, u64::MAX, 0, 7] {
            average.add(value);
        }
        assert!(average.value().is_some_and(|value| value > 7));
        (0..1000).for_each(|_| average.add(0));
        assert_eq!(average.value(), Some(1));
    }
}
