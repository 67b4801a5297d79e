//! Writes the log on a thread of its own, so that a slow or stuck reader of the log does not hold up the threads that
//! serve.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Most lines that wait to be written; further lines are lost, and counted.
const MAX_LINES: usize = 4096;
/// How long a process that ends waits for its last lines to be written.
const FAREWELL: Duration = Duration::from_secs(1);
/// Time between two attempts to put a question into a full queue.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The queue of this process.
static QUEUE: OnceLock<Queue> = OnceLock::new();

enum Entry {
    Line(Vec<u8>),
    /// Answered when all lines before it have been written.
    Question(SyncSender<()>),
}

/// The queue of lines to write. Each call of `write` adds one line, and never waits.
#[derive(Clone)]
pub(crate) struct Queue {
    entries: SyncSender<Entry>,
    lost: Arc<AtomicU64>,
}

/// Begins to write this process's log to standard error.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn begin() -> io::Result<Queue> {
    let tell = |lost| {
        log::warn!("{lost} lines of the log were lost so far: its reader did not keep up");
    };
    let queue = Queue::start(io::stderr(), tell)?;
    Ok(QUEUE.get_or_init(|| queue).clone())
}

/// Waits until all logged lines are written, at most for [`FAREWELL`].
pub(crate) fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush(FAREWELL);
    }
}

/// [Flushes](flush) when it is dropped, by a panic as well.
pub(crate) struct FlushAtEnd;

impl Drop for FlushAtEnd {
    fn drop(&mut self) {
        flush();
    }
}

impl Queue {
    /// Starts the thread that writes. It calls `tell` with the number of lines lost since the start, whenever that has
    /// grown.
    fn start(
        mut output: impl Write + Send + 'static,
        tell: impl Fn(u64) + Send + 'static,
    ) -> io::Result<Self> {
        let (entries, to_write): (_, Receiver<Entry>) = sync_channel(MAX_LINES);
        let lost = Arc::<AtomicU64>::default();
        let count = Arc::clone(&lost);
        let write = move || {
            let mut told = 0;
            for entry in to_write {
                match entry {
                    // A failure cannot be reported: the log is the place for reports.
                    Entry::Line(line) => _ = output.write_all(&line),
                    Entry::Question(answer) => _ = answer.try_send(()),
                }
                let lost = count.load(Ordering::Relaxed);
                if lost > told {
                    told = lost;
                    tell(lost);
                }
            }
        };
        std::thread::Builder::new().name("log".into()).spawn(write)?;
        Ok(Self { entries, lost })
    }

    fn flush(&self, patience: Duration) {
        let end = Instant::now() + patience;
        let (answer, answered) = sync_channel(1);
        let mut question = Entry::Question(answer);
        loop {
            match self.entries.try_send(question) {
                Ok(()) => break,
                Err(TrySendError::Full(back)) if Instant::now() < end => question = back,
                Err(_) => return,
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let _ = answered.recv_timeout(end.saturating_duration_since(Instant::now()));
    }
}

impl Write for Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.entries.try_send(Entry::Line(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    /// An output that blocks until it is released.
    struct Stuck(Receiver<()>, Arc<Mutex<Vec<u8>>>);

    impl Write for Stuck {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            self.1.lock().expect("no panic while held").extend_from_slice(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn logging_does_not_wait_for_a_stalled_reader() {
        let (go, stuck) = channel();
        let (tell, told) = channel();
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let output = Stuck(stuck, Arc::clone(&written));
        let tell = move |lost| tell.send(lost).expect("it listens");
        let mut queue = Queue::start(output, tell).expect("a thread");
        let lines = MAX_LINES + 100;
        for number in 0..lines {
            queue.write_all(format!("{number}\n").as_bytes()).expect("it never fails");
        }
        let begun = Instant::now();
        queue.flush(Duration::from_millis(50));
        assert!(begun.elapsed() >= Duration::from_millis(50), "nothing has been written");
        drop(go);
        queue.flush(Duration::from_secs(60));
        let text = String::from_utf8(written.lock().expect("no panic").clone()).expect("UTF-8");
        let lost = told.recv().expect("some are lost");
        // The line that the writer is writing has left its place in the queue.
        assert!((99..=100).contains(&lost), "{lost}");
        assert_eq!(text.lines().count() as u64, lines as u64 - lost);
        assert!(text.starts_with("0\n1\n2\n"), "{text}");
        // Later lines are written as usual.
        queue.write_all(b"last\n").expect("it never fails");
        queue.flush(Duration::from_secs(60));
        assert!(written.lock().expect("no panic").ends_with(b"last\n"));
        assert!(told.try_recv().is_err(), "no more were lost");
    }
}
