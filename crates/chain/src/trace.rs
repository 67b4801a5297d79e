//! Trace lines that functions write for their authors, with `bpfof_trace`.

use bpfof_function::abi::TRACE_BYTES;
use bpfof_function::memory::Charge;
use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Lines kept for each function, the latest ones: as many as fit on a screen.
pub const KEPT_LINES: usize = 32;
/// Lines kept of one call; further ones are only counted. So a loop that traces neither displaces
/// the lines of earlier calls nor keeps the lock from other threads.
pub const LINES_PER_CALL: u32 = 8;

/// The last lines of a function, from all threads that run it. A function that does not trace never
/// touches it.
#[derive(Debug, Default)]
pub struct Trace {
    /// Lines written, kept or not.
    asked: AtomicU64,
    lines: Mutex<VecDeque<Line>>,
    /// The charge for its memory.
    _memory: Option<Charge>,
}

#[derive(Debug)]
struct Line {
    text: [u8; TRACE_BYTES],
    length: usize,
    value: u64,
}

impl Trace {
    /// A trace without lines, whose memory is charged.
    pub(crate) fn counted(memory: Option<Charge>) -> Trace {
        Trace { _memory: memory, ..Trace::default() }
    }

    /// Bytes of memory that a trace takes at most.
    pub const MEMORY_BYTES: usize = size_of::<Trace>() + KEPT_LINES * size_of::<Line>();

    /// Keeps a line, in place of the oldest if there are [`KEPT_LINES`]. If another thread holds
    /// the lock, the line is only counted: a chain does not wait for the lock.
    pub(crate) fn add(&self, text: &[u8], value: u64) {
        self.count();
        let Ok(mut lines) = self.lines.try_lock() else { return };
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        let length = text.len().min(TRACE_BYTES);
        let mut line = Line { text: [0; TRACE_BYTES], length, value };
        line.text[..length].copy_from_slice(&text[..length]);
        lines.push_back(line);
    }

    /// Counts a line that is not kept.
    pub(crate) fn count(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    /// The lines, oldest first, each with text, a space and the number, preceded by the count of
    /// lines not kept, if any. Bytes that are not printable ASCII are replaced.
    pub fn report(&self) -> String {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = self.asked.load(Ordering::Relaxed).saturating_sub(lines.len() as u64);
        let mut report = String::new();
        if missing > 0 {
            report = format!("({missing} more lines were not kept)\n");
        }
        for line in &*lines {
            let text = line.text[..line.length].iter();
            report.extend(
                text.map(|byte| if matches!(byte, b' '..=b'~') { *byte as char } else { '?' }),
            );
            let _ = writeln!(report, " {}", line.value);
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_and_the_others_counted() {
        let trace = Trace::default();
        assert_eq!(trace.report(), "");
        trace.add(b"tab\there \x1b[2J", 7);
        assert_eq!(trace.report(), "tab?here ?[2J 7\n");
        for value in 0..40 {
            trace.add(&[b'x'; 100], value);
        }
        trace.count();
        let report = trace.report();
        let lines: Vec<&str> = report.lines().collect();
        assert_eq!(lines.len(), KEPT_LINES + 1);
        assert_eq!(lines[0], "(10 more lines were not kept)");
        assert_eq!(lines[1], format!("{} 8", "x".repeat(TRACE_BYTES)));
        assert_eq!(lines[KEPT_LINES], format!("{} 39", "x".repeat(TRACE_BYTES)));
    }
}
