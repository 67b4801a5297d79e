//! Whether chains that leave together are better off in one command: that ends with the last of its chains, so
//! that an uneven one costs the others time. Measured as they run. Knows no clock.

/// Sends of which one goes the other way, to know its time too.
const TRIAL_EVERY: u32 = 32;
/// Vectors are given up where their chains take longer by more than one part of so many.
const TOLERATED: u64 = 8;
/// The part of a new time in an average is one of so many.
const WEIGHT: u64 = 16;

/// How chains that leave together go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// As one command.
    Together,
    /// As a command each.
    Apart,
}

/// Times from the send to the answer, either way.
#[derive(Debug, Default)]
pub(super) struct Pace {
    together: Average,
    apart: Average,
    sends: u32,
}

impl Pace {
    /// The way of the next send of several chains.
    pub(super) fn next(&mut self) -> Way {
        self.sends = self.sends.wrapping_add(1);
        let is_trial = self.sends.is_multiple_of(TRIAL_EVERY);
        if is_trial == self.pays() { Way::Apart } else { Way::Together }
    }

    /// Whether vectors pay, as far as is known.
    fn pays(&self) -> bool {
        match (self.together.value(), self.apart.value()) {
            (Some(together), Some(apart)) => together <= apart + apart / TOLERATED,
            _ => true,
        }
    }

    /// A chain that has gone this way was answered after so many µs.
    pub(super) fn answered(&mut self, way: Way, after_us: u64) {
        match way {
            Way::Together => self.together.add(after_us),
            Way::Apart => self.apart.add(after_us),
        }
    }
}

/// An average that follows its values.
#[derive(Debug, Default)]
struct Average {
    /// In parts of [`WEIGHT`]; 0 before the first value.
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

    /// Of so many sends, those that go together, if chains are answered after these times.
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
        // Much slower all at once: found out, and given up.
        together(&mut pace, 32, 500, 60);
        assert_eq!(together(&mut pace, 320, 500, 60), 10);
        // And back, after some trials.
        together(&mut pace, 640, 50, 60);
        assert_eq!(together(&mut pace, 320, 50, 60), 310);
    }

    #[test]
    fn a_little_slower_is_no_reason() {
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
