//! Rate limits for log lines that commands and connections of strangers cause.

use crate::limits::{
    HOST_LOG_LINES_PER_SECOND, HOSTS_LOG_ERRORS_PER_SECOND, HOSTS_LOG_LINES_PER_SECOND,
    LOG_LINES_PER_SECOND, STRANGERS_LOG_LINES_PER_SECOND,
};
use log::Level;
use std::cmp::Ordering;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The limit on lines of one connection, or of all strangers of a kind.
#[derive(Debug)]
pub(crate) struct CommandLog {
    second: u64,
    lines: u32,
    /// Errors have an equal limit of their own, so that lines of refused commands hide no errors.
    errors: u32,
    per_second: u32,
}

impl Default for CommandLog {
    fn default() -> Self {
        let per_second = LOG_LINES_PER_SECOND;
        CommandLog { second: 0, lines: 0, errors: 0, per_second }
    }
}

/// The topic of a line about a host. Each kind of lines has its own limit, so that lines which a host can cause do not
/// hide lines of another kind. Warnings on any topic are one kind, and errors another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    /// Connections and associations of the host.
    Coming,
    /// Commands of the host.
    Commands,
}

/// Lines of all hosts of the process.
static HOSTS: LinesOfKinds = LinesOfKinds::new();

/// Lines about one host, or about all hosts. For each kind, the upper half has the second of the latest line, the lower
/// half the number of lines in that second.
#[derive(Debug)]
struct LinesOfKinds([AtomicU64; 4]);

impl LinesOfKinds {
    const fn new() -> LinesOfKinds {
        LinesOfKinds([const { AtomicU64::new(0) }; 4])
    }

    /// Counts a line; returns how many of its kind there are in its second, including this one.
    fn count(&self, topic: Topic, level: Level, now_ns: u64) -> u32 {
        let kind = match level {
            Level::Error => 3,
            Level::Warn => 2,
            _ => topic as usize,
        };
        let second = (now_ns / 1_000_000_000) << 32;
        // A reactor whose time is a little behind does not begin an old second again.
        let next = |last: u64| if last < second { second + 1 } else { last + 1 };
        let last = self.0[kind].fetch_update(Relaxed, Relaxed, |last| Some(next(last)));
        next(last.unwrap_or_else(|last| last)) as u32
    }
}

/// Lines about one host, which count among those about its group, and about all hosts.
#[derive(Debug)]
pub(crate) struct HostLog {
    own: LinesOfKinds,
    group: Arc<GroupLog>,
}

/// Lines about the hosts of a group. Together they have the limit of one: names are free.
#[derive(Debug)]
pub(crate) struct GroupLog(LinesOfKinds);

impl Default for GroupLog {
    fn default() -> GroupLog {
        GroupLog(LinesOfKinds::new())
    }
}

impl HostLog {
    /// The limit on lines about a host of this group.
    pub(crate) fn of(group: &Arc<GroupLog>) -> HostLog {
        HostLog { own: LinesOfKinds::new(), group: Arc::clone(group) }
    }

    /// Counts a line; returns whether it is logged, and the text to log instead, if any.
    fn count(
        &self,
        all: &LinesOfKinds,
        (topic, level, now_ns): (Topic, Level, u64),
    ) -> Option<Option<fmt::Arguments<'static>>> {
        let words = format_args!(
            "further messages of this kind about this host are suppressed for this second"
        );
        let own = self.own.count(topic, level, now_ns);
        let own = instead(words, own, HOST_LOG_LINES_PER_SECOND)?;
        let words = format_args!(
            "further messages of this kind about hosts without keys at its address are suppressed for this second"
        );
        let group = self.group.0.count(topic, level, now_ns);
        let group = instead(words, group, HOST_LOG_LINES_PER_SECOND)?;
        let words = format_args!(
            "further messages of this kind about hosts are suppressed for this second"
        );
        let most = match level {
            Level::Error => HOSTS_LOG_ERRORS_PER_SECOND,
            _ => HOSTS_LOG_LINES_PER_SECOND,
        };
        let all = instead(words, all.count(topic, level, now_ns), most)?;
        Some(own.or(group).or(all))
    }

    /// Logs a line about the host, unless there were too many of its kind this second about it, or about all hosts.
    pub(crate) fn note(
        &self,
        topic: Topic,
        (level, now_ns): (Level, u64),
        who: impl fmt::Display,
        what: fmt::Arguments<'_>,
    ) {
        if log::log_enabled!(level)
            && let Some(words) = self.count(&HOSTS, (topic, level, now_ns))
        {
            log::log!(level, "{who}: {}", words.unwrap_or(what));
        }
    }
}

/// The text to log instead of the line with this number: none if the line itself is logged, `words` if it is the first
/// one too many. The outer option is none if nothing is logged.
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

impl CommandLog {
    /// The limit on lines of all strangers, which any peer can cause.
    pub(crate) fn of_strangers() -> CommandLog {
        let per_second = STRANGERS_LOG_LINES_PER_SECOND;
        CommandLog { per_second, ..CommandLog::default() }
    }

    /// Whether a line may be logged now; with another text if it is the first one too many. Disabled levels do not
    /// consume the rate limit.
    pub(crate) fn admit(
        &mut self,
        level: Level,
        now_ns: u64,
    ) -> Option<Option<fmt::Arguments<'static>>> {
        log::log_enabled!(level).then(|| self.count(level, now_ns)).flatten()
    }

    /// The same for a line about the commands of a host, which counts against the host's limit as well, because a host
    /// that reconnects has a new limit here.
    pub(crate) fn admit_of_host(
        &mut self,
        host: &HostLog,
        level: Level,
        now_ns: u64,
    ) -> Option<Option<fmt::Arguments<'static>>> {
        let own = self.admit(level, now_ns)?;
        Some(own.or(host.count(&HOSTS, (Topic::Commands, level, now_ns))?))
    }

    /// Logs a line about `who`, unless there were too many lines this second.
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

    /// Counts a line; returns whether it is logged, and the text to log instead, if any.
    fn count(&mut self, level: Level, now_ns: u64) -> Option<Option<fmt::Arguments<'static>>> {
        let second = now_ns / 1_000_000_000;
        if self.second != second {
            (self.second, self.lines, self.errors) = (second, 0, 0);
        }
        let lines = if level == Level::Error { &mut self.errors } else { &mut self.lines };
        *lines = lines.saturating_add(1);
        let words = format_args!("further messages of this kind are suppressed for this second");
        instead(words, *lines, self.per_second)
    }
}

/// Lines about strangers, from any thread: warnings, and details that only `--verbose` shows.
#[derive(Debug)]
pub(crate) struct StrangersLog {
    started: Instant,
    warnings: Mutex<CommandLog>,
    details: Mutex<CommandLog>,
}

impl Default for StrangersLog {
    fn default() -> Self {
        let [warnings, details] = [(); 2].map(|()| Mutex::new(CommandLog::of_strangers()));
        StrangersLog { started: Instant::now(), warnings, details }
    }
}

impl StrangersLog {
    /// Warns, unless there were too many of these this second.
    pub(crate) fn warn(&self, who: impl fmt::Display, what: fmt::Arguments<'_>) {
        self.note(&self.warnings, Level::Warn, (who, what));
    }

    /// Logs a detail that helps to diagnose problems, with the same limit.
    pub(crate) fn detail(&self, who: impl fmt::Display, what: fmt::Arguments<'_>) {
        self.note(&self.details, Level::Debug, (who, what));
    }

    fn note(
        &self,
        lines: &Mutex<CommandLog>,
        level: Level,
        (who, what): (impl fmt::Display, fmt::Arguments<'_>),
    ) {
        let now_ns = self.started.elapsed().as_nanos() as u64;
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.note((level, now_ns), who, what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_second_are_limited() {
        let mut lines = CommandLog::of_strangers();
        let count = |lines: &mut CommandLog, second: u64| {
            let of = |at| lines.count(Level::Info, second * 1_000_000_000 + at);
            (0..1000).filter_map(of).count() as u32
        };
        // Including the line that says that others are not logged.
        let most = STRANGERS_LOG_LINES_PER_SECOND + 1;
        assert_eq!([count(&mut lines, 0), count(&mut lines, 1)], [most, most]);
        assert!(lines.count(Level::Error, 1_000_000_000).is_some(), "errors have their own");
    }

    #[test]
    fn lines_about_a_host_and_about_all_hosts_are_limited() {
        let all = LinesOfKinds::new();
        let count = |host: &HostLog, second: u64, topic: Topic, level: Level| {
            let lines = (0..1000)
                .filter_map(|at| host.count(&all, (topic, level, second * 1_000_000_000 + at)));
            lines.count() as u32
        };
        let most = HOST_LOG_LINES_PER_SECOND + 1;
        let new_host = || HostLog::of(&Arc::default());
        let host = new_host();
        let commands = |second: u64| count(&host, second, Topic::Commands, Level::Info);
        assert_eq!(
            [commands(1), commands(2), commands(1)],
            [most, most, 0],
            "an older second is no new one"
        );
        // Many hosts together fill a kind, and no other.
        let hosts: Vec<HostLog> = (0..20).map(|_| new_host()).collect();
        let lines = hosts.iter().map(|host| count(host, 3, Topic::Commands, Level::Info));
        assert_eq!(lines.sum::<u32>(), HOSTS_LOG_LINES_PER_SECOND + 1);
        for (topic, level) in [(Topic::Coming, Level::Info), (Topic::Commands, Level::Warn)] {
            assert_eq!(count(&host, 3, topic, level), most);
        }
        assert_eq!(count(&host, 3, Topic::Coming, Level::Warn), 0, "warnings are one kind");
        // Nor do warnings about many hide an error.
        let warnings = hosts.iter().map(|host| count(host, 4, Topic::Commands, Level::Warn));
        assert_eq!(warnings.sum::<u32>(), HOSTS_LOG_LINES_PER_SECOND + 1);
        let errors = hosts.iter().map(|host| count(host, 4, Topic::Commands, Level::Error));
        assert_eq!(errors.sum::<u32>(), 20 * most);
        // Hosts of one group have no more lines than one.
        let group = Arc::default();
        let hosts: Vec<HostLog> = (0..20).map(|_| HostLog::of(&group)).collect();
        let errors = hosts.iter().map(|host| count(host, 5, Topic::Commands, Level::Error));
        assert_eq!(errors.sum::<u32>(), most);
    }
}
