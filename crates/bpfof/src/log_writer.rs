//! Writes the log on a thread of its own: whoever reads it slowly, or not at all, holds up nobody who serves.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Lines that wait to be written; more are lost, and counted.
const MAX_LINES: usize = 4096;
/// How long a process that ends waits for its last lines to be written.
const FAREWELL: Duration = Duration::from_secs(1);
/// Time between two looks whether there is room for a question.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// That of this process.
static QUEUE: OnceLock<Queue> = OnceLock::new();

enum Entry {
    Line(Vec<u8>),
    /// Answered when all lines before it have been written.
    Question(SyncSender<()>),
}

/// Where lines are put. Each call of `write` is one, and never waits.
#[derive(Clone)]
pub(crate) struct Queue {
    entries: SyncSender<Entry>,
    lost: Arc<AtomicU64>,
}

/// Begins to write this process's log to standard error.
///
/// # Errors
/// There can be no thread for it.
pub(crate) fn begin() -> io::Result<Queue> {
    let tell = |lost| {
        log::warn!("{lost} lines of the log were lost so far: whoever reads it did not keep up");
    };
    let queue = Queue::start(io::stderr(), tell)?;
    Ok(QUEUE.get_or_init(|| queue).clone())
}

/// Waits until what has been logged is written, but not for long.
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
    /// `tell` is told, on the thread that writes, how many lines have been lost since the start, when they
    /// have become more.
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
                    // Nobody could be told that it fails.
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

    /// Takes nothing before it is let go.
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
    fn nobody_waits_for_a_reader_that_takes_nothing() {
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
        // The one that the writer had in hand has left its place in the queue.
        assert!((99..=100).contains(&lost), "{lost}");
        assert_eq!(text.lines().count() as u64, lines as u64 - lost);
        assert!(text.starts_with("0\n1\n2\n"), "{text}");
        // All is as before then.
        queue.write_all(b"last\n").expect("it never fails");
        queue.flush(Duration::from_secs(60));
        assert!(written.lock().expect("no panic").ends_with(b"last\n"));
        assert!(told.try_recv().is_err(), "no more were lost");
    }
}
