//! What commands, and connections of strangers, lead to in the operator's log: some lines a second.

use crate::limits::{LOG_LINES_PER_SECOND, STRANGERS_LOG_LINES_PER_SECOND};
use log::Level;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Lines of one connection, or of all that have not got through Connect.
#[derive(Debug)]
pub(crate) struct CommandLog {
    second: u64,
    lines: u32,
    per_second: u32,
}

impl Default for CommandLog {
    fn default() -> Self {
        CommandLog { second: 0, lines: 0, per_second: LOG_LINES_PER_SECOND }
    }
}

impl CommandLog {
    /// Lines of all who have not said who they are: anybody can cause them.
    pub(crate) fn of_strangers() -> CommandLog {
        CommandLog { per_second: STRANGERS_LOG_LINES_PER_SECOND, ..CommandLog::default() }
    }

    /// Whether a line may be logged now; with other words if it is the first one too many. Disabled
    /// levels do not consume the rate limit.
    pub(crate) fn admit(
        &mut self,
        level: Level,
        now_ns: u64,
    ) -> Option<Option<fmt::Arguments<'static>>> {
        log::log_enabled!(level).then(|| self.count(now_ns)).flatten()
    }

    /// Logs something about `who`, unless there were too many lines this second.
    pub(crate) fn note(
        &mut self,
        (level, now_ns): (Level, u64),
        who: impl fmt::Display,
        what: fmt::Arguments<'_>,
    ) {
        if let Some(words) = self.admit(level, now_ns) {
            log::log!(level, "{who}: {}", words.unwrap_or(what));
        }
    }

    /// Counts a line that is asked for.
    fn count(&mut self, now_ns: u64) -> Option<Option<fmt::Arguments<'static>>> {
        let second = now_ns / 1_000_000_000;
        if self.second != second {
            (self.second, self.lines) = (second, 0);
        }
        self.lines = self.lines.saturating_add(1);
        match self.lines.cmp(&(self.per_second + 1)) {
            std::cmp::Ordering::Less => Some(None),
            std::cmp::Ordering::Equal => {
                Some(Some(format_args!("what more happens this second is not logged")))
            }
            std::cmp::Ordering::Greater => None,
        }
    }
}

/// Warnings about strangers, from any thread.
#[derive(Debug)]
pub(crate) struct StrangersLog {
    started: Instant,
    lines: Mutex<CommandLog>,
}

impl Default for StrangersLog {
    fn default() -> Self {
        StrangersLog { started: Instant::now(), lines: Mutex::new(CommandLog::of_strangers()) }
    }
}

impl StrangersLog {
    /// Warns, unless there were too many of these this second.
    pub(crate) fn warn(&self, who: impl fmt::Display, what: fmt::Arguments<'_>) {
        let now_ns = self.started.elapsed().as_nanos() as u64;
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.note((Level::Warn, now_ns), who, what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_second_are_limited() {
        let mut lines = CommandLog::of_strangers();
        let count = |lines: &mut CommandLog, second: u64| {
            let all = (0..1000).filter_map(|at| lines.count(second * 1_000_000_000 + at));
            all.count() as u32
        };
        // With the one that says so.
        let most = STRANGERS_LOG_LINES_PER_SECOND + 1;
        assert_eq!([count(&mut lines, 0), count(&mut lines, 1)], [most, most]);
    }
}
