//! Limits log lines that clients could cause at any rate.

use log::Level;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines are counted in periods as long as this.
const PERIOD: Duration = Duration::from_secs(10);
/// Lines of one user in a period: enough for each cause of trouble of a well-behaved client.
const LINES_PER_USER: usize = 8;
/// Lines of all users in a period: one person may have many user ids.
const LINES: usize = 64;

/// Counts the log lines of each user.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When the current period began.
    since: Option<Instant>,
    /// Lines of each user in the period: no more users than lines.
    lines: HashMap<u32, usize>,
    /// Lines that were left out since the last one.
    left_out: u64,
}

impl Seldom {
    /// Logs a line about a user, unless there were enough in this period.
    pub(crate) fn note(&self, uid: u32, level: Level, line: impl FnOnce() -> String) {
        match self.count(uid, Instant::now()) {
            None => {}
            Some(0) => log::log!(level, "{}", line()),
            Some(left_out) => {
                log::log!(
                    level,
                    "{}; {left_out} earlier lines about clients were suppressed",
                    line()
                );
            }
        }
    }

    /// Counts a line. Returns how many were left out before, if this one is to be logged.
    fn count(&self, uid: u32, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.since.is_none_or(|since| now.duration_since(since) >= PERIOD) {
            state.since = Some(now);
            state.lines.clear();
        }
        let all: usize = state.lines.values().sum();
        let own = state.lines.get(&uid).copied().unwrap_or(0);
        if all >= LINES || own >= LINES_PER_USER {
            state.left_out += 1;
            return None;
        }
        state.lines.insert(uid, own + 1);
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_a_limited_number_of_lines() {
        let (seldom, start) = (Seldom::default(), Instant::now());
        let at = |uid, ms| seldom.count(uid, start + Duration::from_millis(ms));
        let logged = (0..100).filter(|ms| at(7, *ms).is_some()).count();
        assert_eq!(logged, LINES_PER_USER);
        // A line of another user is logged, with the number of lines left out.
        assert_eq!((at(8, 100), at(8, 101)), (Some(92), Some(0)));
        assert_eq!((at(7, 9_999), at(7, 10_000), at(7, 10_001)), (None, Some(1), Some(0)));
    }

    #[test]
    fn lines_of_all_users_together_are_limited() {
        let (seldom, now) = (Seldom::default(), Instant::now());
        let logged = (0..100_000).filter(|uid| seldom.count(*uid, now).is_some()).count();
        assert_eq!(logged, LINES);
        assert_eq!(seldom.state.lock().expect("no panic").lines.len(), LINES);
    }
}
