//! Commands that are refused or fail: the host hears why, the error log remembers it, and so does the
//! operator's log, a few lines a second.

use crate::connection::{Connection, Reply};
use crate::limits::LOG_LINES_PER_SECOND;
use bpfof_nvme::{Sqe, Status};
use log::Level;
use std::fmt;

#[derive(Debug, Default)]
pub(crate) struct LogBudget {
    second: u64,
    lines: u32,
}

impl Connection {
    /// Sends a completion with an error, and logs it.
    pub(crate) fn refuse(&mut self, sqe: &Sqe, reply: impl Into<Reply>, now_ns: u64) {
        let reply = reply.into();
        self.log_refusal(sqe.opcode, &reply, now_ns);
        let lba = u64::from(sqe.cdw10) | u64::from(sqe.cdw11) << 32;
        let is_io = self.queue.as_ref().is_some_and(|queue| queue.id != 0);
        self.remember_error(sqe.cid, reply.status, sqe.nsid, if is_io { lba } else { 0 });
        self.complete(sqe.cid, reply);
    }

    /// Adds to the controller's error log.
    pub(crate) fn remember_error(&self, cid: u16, status: Status, nsid: u32, lba: u64) {
        if let (Some(controller), Some(queue)) = (&self.controller, &self.queue) {
            controller.errors.add((queue.id, cid), status, nsid, lba);
        }
    }

    pub(crate) fn log_refusal(&mut self, opcode: u8, reply: &Reply, now_ns: u64) {
        let Reply { status, dw0, .. } = reply;
        let what = format_args!("command {opcode:02X}h: {status}, DW0 {dw0:#x}");
        self.note(Level::Info, now_ns, what);
    }

    /// Logs what a command has led to, unless there were too many of these this second.
    pub(crate) fn note(&mut self, level: Level, now_ns: u64, what: fmt::Arguments<'_>) {
        // What nobody sees takes no room from what somebody does.
        if !log::log_enabled!(level) {
            return;
        }
        let second = now_ns / 1_000_000_000;
        if self.log_budget.second != second {
            self.log_budget = LogBudget { second, lines: 0 };
        }
        self.log_budget.lines += 1;
        if self.log_budget.lines <= LOG_LINES_PER_SECOND {
            log::log!(level, "{}: {what}", self.name());
        } else if self.log_budget.lines == LOG_LINES_PER_SECOND + 1 {
            log::log!(level, "{}: what more happens this second is not logged", self.name());
        }
    }
}
