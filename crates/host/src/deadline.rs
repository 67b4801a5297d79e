//! When waits end.

use std::time::{Duration, Instant};

/// The longest wait, 136 years: `Instant` may be unable to represent a later time.
const LONGEST: Duration = Duration::from_secs(1 << 32);

/// The end of a wait of `patience` that begins now. `Duration::MAX` waits practically for ever.
pub(crate) fn deadline(patience: Duration) -> Instant {
    Instant::now() + patience.min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_timeout_is_a_valid_deadline() {
        let second = Duration::from_secs(1);
        assert!(deadline(Duration::MAX) > deadline(second) && deadline(second) > Instant::now());
    }
}
