//! The admin queue of an association, and the thread that keeps the association alive.
//!
//! A target gives up a host that it has not heard of for the keep-alive timeout (NVMe Base 2.0
//! §3.9). So a thread sends a Keep Alive after each half of it, and sleeps in between. It waits for
//! no answer: the next time it takes the answer that has come, and a target that has not given one
//! within the command timeout is lost. So the queue is locked for moments only, except by a call,
//! which sends the Keep Alives itself while it waits. Lanes have no part in this.

use crate::files::spawn;
use crate::queue::{Event, Meanwhile, Queue};
use crate::{Error, LostReason, TargetUrl};
use bpfof_nvme::{Cqe, Sqe};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Receives of one look whether the connection is open: what else has come is received later.
const LOOKS_MAX: u32 = 64;

/// An admin queue. Dropping it closes the connection and ends the thread.
///
/// Where there are several paths, their own threads do what this one would, and more
/// ([`paths`](crate::paths)).
#[derive(Debug)]
pub(crate) struct Admin {
    shared: Arc<Shared>,
    /// There is none where the target has no keep-alive timer, or nobody wants it.
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// The connection was closed: the thread need not sleep on.
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
                    // Who uses the association notices by itself.
                    log::info!("{url}: {error}");
                    return;
                }
            };
            let slept = self.closed.wait_timeout(queue, left);
            queue = slept.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// How long until the next Keep Alive, and what an Asynchronous Event Request has come to.
fn beat(queue: &mut Queue) -> Result<(Option<Duration>, Option<Event>), Error> {
    let left = queue.beat();
    // What is lost shows itself when receiving.
    let _ = queue.ring();
    Ok((left, queue.poll_event()?))
}

impl Admin {
    pub(crate) fn new(queue: Queue) -> Self {
        let shared = Shared { queue: Mutex::new(queue), closed: Condvar::new() };
        Self { shared: Arc::new(shared), thread: None }
    }

    /// For a target that gives up hosts after `timeout`.
    pub(crate) fn set_keep_alive(&self, timeout: Duration) {
        self.shared.queue().keep_alive(timeout / 2, None);
    }

    /// The same, for a target that this host gives up as well, before `timeout` has passed: one Keep Alive
    /// after each quarter, and half of it to answer.
    pub(crate) fn set_mutual_keep_alive(&self, timeout: Duration) {
        self.shared.queue().keep_alive(timeout / 4, Some(timeout / 2));
    }

    /// Sends a Keep Alive if one is due, without waiting for its answer. How long until the next, None if
    /// the target wants none; and what has come of [asking for an event](Self::ask_for_event).
    pub(crate) fn beat(&self) -> Result<(Option<Duration>, Option<Event>), Error> {
        beat(&mut self.shared.queue())
    }

    /// Leaves a request with the target that it answers when something has happened.
    pub(crate) fn ask_for_event(&self) -> Result<(), Error> {
        let mut queue = self.shared.queue();
        queue.ask_for_event()?;
        queue.ring()
    }

    /// Another descriptor of the connection, to wait for it, or end it, without the lock.
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

    /// The same; `meanwhile` is called every few ms until it has ended.
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

    /// Looks whether the target has ended the connection; whether it is still open.
    pub(crate) fn check_connected(&self) -> bool {
        let mut queue = self.shared.queue();
        // The answer to a Keep Alive may have come before the end.
        for _ in 0..LOOKS_MAX {
            if !queue.is_connected() || !queue.has_completions() {
                break;
            }
            // Who uses it next notices by itself.
            let _ = queue.poll(&mut |_| {});
        }
        queue.is_connected()
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.shared.queue().close(LostReason::HungUp);
        self.shared.closed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It cannot panic; if it did, it is gone as well.
            let _ = thread.join();
        }
    }
}
