//! What commands lead to in the operator's log: a few lines a second of each connection.

use crate::limits::LOG_LINES_PER_SECOND;
use log::Level;
use std::fmt;

/// Lines of one connection.
#[derive(Debug, Default)]
pub(crate) struct CommandLog {
    second: u64,
    lines: u32,
}

impl CommandLog {
    /// Whether a line may be logged now; with other words if it is the first one too many. Disabled
    /// levels do not consume the rate limit.
    pub(crate) fn admit(
        &mut self,
        level: Level,
        now_ns: u64,
    ) -> Option<Option<fmt::Arguments<'static>>> {
        if !log::log_enabled!(level) {
            return None;
        }
        let second = now_ns / 1_000_000_000;
        if self.second != second {
            *self = CommandLog { second, lines: 0 };
        }
        self.lines += 1;
        match self.lines.cmp(&(LOG_LINES_PER_SECOND + 1)) {
            std::cmp::Ordering::Less => Some(None),
            std::cmp::Ordering::Equal => {
                Some(Some(format_args!("what more happens this second is not logged")))
            }
            std::cmp::Ordering::Greater => None,
        }
    }
}
