//! Questions of operators to the reactors of a running target.

use crate::observe::record::CommandRecord;
use crate::observe::tracer::{
    Clock, MAX_PER_SECOND, MAX_TRACES, RING, Trace, TraceRequest, Traced,
};
use crate::reactor::Message;
use crate::reactor::mailbox::Mailbox;
use crate::report::NoReport;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The mailboxes of a target's reactors, as long as it runs.
type Mailboxes = Weak<Mutex<Vec<Mailbox>>>;

/// Number of slowest commands that are reported.
const SLOWEST: usize = 100;

/// Sends each reactor a message; returns how many there are, or none if the target has stopped.
fn tell(mailboxes: &Mailboxes, message: impl Fn(usize) -> Message) -> Option<usize> {
    let mailboxes = mailboxes.upgrade()?;
    let mailboxes = mailboxes.lock().unwrap_or_else(PoisonError::into_inner);
    for mailbox in mailboxes.iter() {
        mailbox.send(message(mailboxes.len()));
    }
    Some(mailboxes.len())
}

/// The answers of all reactors.
pub(crate) fn ask<T>(
    mailboxes: &Mailboxes,
    patience: Duration,
    question: impl Fn(Sender<(usize, T)>) -> Message,
) -> Result<Vec<T>, NoReport> {
    let (sender, answers) = channel();
    let asked = tell(mailboxes, |_| question(sender.clone())).ok_or(NoReport(0))?;
    let end = Instant::now() + patience;
    let mut parts: Vec<(usize, T)> = Vec::with_capacity(asked);
    while parts.len() < asked {
        let left = end.saturating_duration_since(Instant::now());
        let Ok(part) = answers.recv_timeout(left) else { break };
        parts.push(part);
    }
    let answered = |reactor: &usize| parts.iter().any(|(index, _)| index == reactor);
    match (0..asked).find(|reactor| !answered(reactor)) {
        Some(silent) => Err(NoReport(silent)),
        None => Ok(parts.into_iter().map(|(_, part)| part).collect()),
    }
}

/// The slowest commands of all reactors.
pub(crate) fn slowest(
    mailboxes: &Mailboxes,
    patience: Duration,
) -> Result<Vec<CommandRecord>, NoReport> {
    let mut all = ask(mailboxes, patience, Message::Slowest)?.concat();
    all.sort_by_key(|record| std::cmp::Reverse(record.duration_ns));
    all.truncate(SLOWEST);
    Ok(all)
}

/// Why there is no trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The maximum number of traces runs already.
    #[error("{MAX_TRACES} traces are running, which is the limit: end one of them first")]
    TooMany,
    /// The target has stopped.
    #[error("the target stops")]
    Stopped,
}

/// The traces of a target.
pub(crate) struct Traces {
    mailboxes: Mailboxes,
    clock: Clock,
    last_id: AtomicU64,
    running: Arc<AtomicUsize>,
}

impl Traces {
    /// Without traces yet. `clock` is the start of the reactors' clock.
    pub(crate) fn new(mailboxes: Mailboxes, clock: Instant) -> Traces {
        Traces {
            mailboxes,
            clock: Arc::new(move || clock.elapsed().as_nanos() as u64),
            last_id: AtomicU64::new(0),
            running: Arc::default(),
        }
    }

    /// Begins a trace.
    pub(crate) fn begin(&self, request: TraceRequest) -> Result<Tracing, TraceError> {
        let running = self.running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |running| {
            (running < MAX_TRACES).then_some(running + 1)
        });
        running.map_err(|_| TraceError::TooMany)?;
        let id = self.last_id.fetch_add(1, Ordering::Relaxed);
        let (to, chains) = sync_channel(RING);
        let (mailboxes, running) = (Weak::clone(&self.mailboxes), Arc::clone(&self.running));
        let skipped = Arc::<AtomicU64>::default();
        // From here on, dropping this counts the end of the trace.
        let tracing = Tracing { id, chains, skipped: Arc::clone(&skipped), mailboxes, running };
        let told = tell(&self.mailboxes, |reactors| {
            Message::BeginTrace(Trace {
                id,
                request: request.clone(),
                per_second: (MAX_PER_SECOND / reactors as u32).max(1),
                to: to.clone(),
                skipped: Arc::clone(&skipped),
                clock: Arc::clone(&self.clock),
            })
        });
        told.map(|_| tracing).ok_or(TraceError::Stopped)
    }
}

/// A running trace: gives chains as they end, until it is dropped.
pub struct Tracing {
    id: u64,
    chains: Receiver<Traced>,
    skipped: Arc<AtomicU64>,
    mailboxes: Mailboxes,
    running: Arc<AtomicUsize>,
}

impl Tracing {
    /// The next chain; none if there was none within the time.
    ///
    /// # Errors
    /// [`TraceError::Stopped`].
    pub fn next(&self, patience: Duration) -> Result<Option<Traced>, TraceError> {
        match self.chains.recv_timeout(patience) {
            Ok(traced) => Ok(Some(traced)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(TraceError::Stopped),
        }
    }
}

impl Tracing {
    /// Selected chains that were dropped so far, for lack of room or because of the rate limit.
    pub fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        tell(&self.mailboxes, |_| Message::EndTrace(self.id));
        self.running.fetch_sub(1, Ordering::Relaxed);
    }
}
