//! What commands, and connections of strangers, lead to in the operator's log: some lines a second.

use crate::limits::{
    HOSTS_LOG_LINES_PER_SECOND, LOG_LINES_PER_SECOND, STRANGERS_LOG_LINES_PER_SECOND,
};
use log::Level;
use std::cmp::Ordering;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Lines of one connection, or of all that have not got through Connect or not authenticated.
#[derive(Debug)]
pub(crate) struct CommandLog {
    second: u64,
    lines: u32,
    per_second: u32,
}

impl Default for CommandLog {
    fn default() -> Self {
        let per_second = LOG_LINES_PER_SECOND;
        CommandLog { second: 0, lines: 0, per_second }
    }
}

/// Lines of all hosts of the process.
static HOSTS: HostsLog = HostsLog(AtomicU64::new(0));

/// The latest second of a line, in the upper half, and how many lines there were in it.
struct HostsLog(AtomicU64);

impl HostsLog {
    /// Counts a line that is asked for.
    fn count(&self, now_ns: u64) -> Option<Option<fmt::Arguments<'static>>> {
        let second = (now_ns / 1_000_000_000) << 32;
        // A reactor whose clock is a little behind does not begin a second again.
        let next = |last: u64| if last < second { second + 1 } else { last + 1 };
        let last = self.0.fetch_update(Relaxed, Relaxed, |last| Some(next(last)));
        let lines = next(last.unwrap_or_else(|last| last)) as u32;
        let words = format_args!("what more happens this second to any host is not logged");
        instead(words, lines, HOSTS_LOG_LINES_PER_SECOND)
    }
}

/// What is said in the place of the line with this number: nothing else, these words if it is the first of too many,
/// or nothing.
fn instead(
    words: fmt::Arguments<'static>,
    line: u32,
    per_second: u32,
) -> Option<Option<fmt::Arguments<'static>>> {
    match line.cmp(&(per_second + 1)) {
        Ordering::Less => Some(None),
        Ordering::Equal => Some(Some(words)),
        Ordering::Greater => None,
    }
}

/// Logs how a host comes and goes, unless there were too many lines about hosts this second.
pub(crate) fn note_of_host(
    (level, now_ns): (Level, u64),
    who: impl fmt::Display,
    what: fmt::Arguments<'_>,
) {
    if log::log_enabled!(level)
        && let Some(words) = HOSTS.count(now_ns)
    {
        log::log!(level, "{who}: {}", words.unwrap_or(what));
    }
}

impl CommandLog {
    /// Lines of all who have not said who they are: anybody can cause them.
    pub(crate) fn of_strangers() -> CommandLog {
        let per_second = STRANGERS_LOG_LINES_PER_SECOND;
        CommandLog { per_second, ..CommandLog::default() }
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

    /// The same for a line about a host, which counts among those of all: who connects again and again begins
    /// anew here.
    pub(crate) fn admit_of_host(
        &mut self,
        level: Level,
        now_ns: u64,
    ) -> Option<Option<fmt::Arguments<'static>>> {
        let own = self.admit(level, now_ns)?;
        Some(own.or(HOSTS.count(now_ns)?))
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
        let words = format_args!("what more happens this second is not logged");
        instead(words, self.lines, self.per_second)
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

    #[test]
    fn so_are_those_of_all_hosts() {
        let hosts = HostsLog(AtomicU64::new(0));
        let count = |second: u64| {
            let all = (0..1000).filter_map(|at| hosts.count(second * 1_000_000_000 + at));
            all.count() as u32
        };
        let most = HOSTS_LOG_LINES_PER_SECOND + 1;
        assert_eq!(
            [count(1), count(2), count(1)],
            [most, most, 0],
            "an older second is no new one"
        );
    }
}
