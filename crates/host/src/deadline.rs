//! When waits end.

use std::time::{Duration, Instant};

/// The longest wait, 136 years: a later time may not be one that the clock can tell.
const LONGEST: Duration = Duration::from_secs(1 << 32);

/// When a wait of `patience` ends that begins now. `Duration::MAX` is for ever.
pub(crate) fn deadline(patience: Duration) -> Instant {
    Instant::now() + patience.min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_is_one() {
        let second = Duration::from_secs(1);
        assert!(deadline(Duration::MAX) > deadline(second) && deadline(second) > Instant::now());
    }
}
