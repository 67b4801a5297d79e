//! Lines of the log that clients could cause as often as they like.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One line in this time says how many there would have been.
const PAUSE: Duration = Duration::from_secs(1);

/// Counts what is logged seldom.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    /// The last line, and what has happened since.
    state: Mutex<(Option<Instant>, u64)>,
}

impl Seldom {
    /// It happens: logs a line, unless there was one just now.
    pub(crate) fn note(&self, line: impl FnOnce() -> String) {
        if let Some(count) = self.count(Instant::now()) {
            log::warn!("{}; {count} such clients since the last of these lines", line());
        }
    }

    /// How often it has happened, if that is to be logged now.
    fn count(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, count) = (state.0, state.1 + 1);
        let is_due = since.is_none_or(|since| now.duration_since(since) >= PAUSE);
        *state = if is_due { (Some(now), 0) } else { (since, count) };
        is_due.then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_says_how_many() {
        let (seldom, start) = (Seldom::default(), Instant::now());
        let at = |ms| seldom.count(start + Duration::from_millis(ms));
        assert_eq!(
            [at(0), at(1), at(999), at(1000), at(1001), at(5000)],
            [Some(1), None, None, Some(3), None, Some(2)]
        );
    }
}
