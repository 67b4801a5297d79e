//! The admin queue of an association, and the thread that keeps the association alive.
//!
//! A target gives up a host that sends nothing for the keep-alive timeout (NVMe Base 2.0 §3.9). So a thread sends a
//! Keep Alive every half of the timeout, and sleeps in between. It does not wait for the answer: it receives it the
//! next time, and a target that has not answered within the command timeout is lost. So the thread locks the queue only
//! for moments. A call locks it until its command has ended, and sends the Keep Alives itself while it waits. Lanes
//! have no part in this.

use crate::files::spawn;
use crate::queue::{Event, Meanwhile, Queue};
use crate::{Error, LostReason, TargetUrl};
use bpfof_nvme::{Cqe, Sqe};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// An admin queue. Dropping it closes the connection and ends the thread.
///
/// With several paths, their own threads replace this one ([`paths`](crate::paths)).
#[derive(Debug)]
pub(crate) struct Admin {
    shared: Arc<Shared>,
    /// `None` if the target has no keep-alive timer, or the options ask for no thread.
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// Signals that the connection was closed, to wake the thread.
    closed: Condvar,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends Keep Alives until the connection is over.
    fn keep_alive(&self, url: &TargetUrl) {
        let mut queue = self.queue();
        while queue.is_connected() {
            let left = match beat(&mut queue) {
                Ok((Some(left), _)) => left,
                Ok((None, _)) => return,
                Err(error) => {
                    // The next user of the association gets the error itself.
                    log::info!("{url}: {error}");
                    return;
                }
            };
            let slept = self.closed.wait_timeout(queue, left);
            queue = slept.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Sends a due Keep Alive. Returns the time until the next one, and the outcome of an Asynchronous Event Request.
fn beat(queue: &mut Queue) -> Result<(Option<Duration>, Option<Event>), Error> {
    // If this thread did not run for long, an answer may have come in time and lie in the socket.
    let before = queue.poll_event()?;
    let left = queue.beat();
    // The receive below reports a lost connection.
    let _ = queue.ring();
    let after = queue.poll_event()?;
    Ok((left, before.or(after)))
}

impl Admin {
    pub(crate) fn new(queue: Queue) -> Self {
        let shared = Shared { queue: Mutex::new(queue), closed: Condvar::new() };
        Self { shared: Arc::new(shared), thread: None }
    }

    /// Sends Keep Alives for a target that gives up silent hosts after `timeout`.
    pub(crate) fn set_keep_alive(&self, timeout: Duration) {
        self.shared.queue().keep_alive(timeout / 2, None);
    }

    /// The same where this host gives up a silent target as well, before `timeout` has passed: a Keep Alive every
    /// quarter of it, and half of it to answer.
    pub(crate) fn set_mutual_keep_alive(&self, timeout: Duration) {
        self.shared.queue().keep_alive(timeout / 4, Some(timeout / 2));
    }

    /// Sends a Keep Alive if one is due, without waiting for its answer. Returns the time until the next, `None` if the
    /// target wants none; and the outcome of [asking for an event](Self::ask_for_event).
    pub(crate) fn beat(&self) -> Result<(Option<Duration>, Option<Event>), Error> {
        beat(&mut self.shared.queue())
    }

    /// Sends an Asynchronous Event Request, which the target answers when it has an event to report.
    pub(crate) fn ask_for_event(&self) -> Result<(), Error> {
        let mut queue = self.shared.queue();
        queue.ask_for_event()?;
        queue.ring()
    }

    /// Another descriptor of the connection, for waiting on it or ending it without the lock.
    pub(crate) fn descriptor(&self) -> Result<OwnedFd, Error> {
        self.shared.queue().descriptor()
    }

    /// Starts the thread.
    pub(crate) fn start_thread(&mut self, url: &TargetUrl) -> Result<(), Error> {
        let (shared, url) = (Arc::clone(&self.shared), url.clone());
        let thread = spawn("bpfof-alive", move || shared.keep_alive(&url));
        self.thread = Some(thread.map_err(Error::Thread)?);
        Ok(())
    }

    /// Sends one command and waits for its end.
    pub(crate) fn call(
        &self,
        name: &'static str,
        sqe: Sqe,
        data_out: &[u8],
        data_in_max_bytes: u32,
    ) -> Result<(Cqe, Vec<u8>), Error> {
        self.shared.queue().call(name, sqe, data_out, data_in_max_bytes)
    }

    /// The same; calls `meanwhile` every few ms until the command has ended.
    pub(crate) fn call_while(
        &self,
        name: &'static str,
        command: (Sqe, &[u8], u32),
        meanwhile: Meanwhile<'_>,
    ) -> Result<(Cqe, Vec<u8>), Error> {
        self.shared.queue().call_while(name, command, meanwhile)
    }

    /// Whether the connection is open, as far as is known.
    pub(crate) fn is_connected(&self) -> bool {
        self.shared.queue().is_connected()
    }

    /// Checks whether the target has ended the connection; returns whether it is still open.
    pub(crate) fn check_connected(&self) -> bool {
        self.shared.queue().check_connected()
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.shared.queue().close(LostReason::HungUp);
        self.shared.closed.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread cannot panic; if it did, it has ended all the same.
            let _ = thread.join();
        }
    }
}
