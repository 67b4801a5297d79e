//! Changes of paths to namespaces by operators, while hosts use them.

use crate::config::AnaState;
use crate::listener::Listener;
use crate::reactor::Message;
use crate::reactor::mailbox::Mailbox;
use crate::registry::Registry;
use crate::report::{NoReport, TargetReport};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Time for all reactors to hear of a change. Each works for some 200 µs at a time.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two checks whether a listener is drained.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Why a change of listeners is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// No such listener.
    #[error("there is no listener {name:?}; there are {}", known.join(", "))]
    Unknown {
        /// The name that was given.
        name: String,
        /// Number and address of each.
        known: Vec<String>,
    },
    /// No such group.
    #[error("{0}")]
    Group(String),
    /// The change is made, but not yet at every reactor.
    #[error("a reactor does not answer: some hosts may not have been told yet")]
    Silent,
    /// The target stops.
    #[error("the target stops")]
    Stopped,
}

/// Changes listeners of a running server, from any thread. A listener is named by its number in the discovery log, its
/// address or its advertised address; no name at all means every listener.
#[derive(Clone)]
pub struct Paths {
    mailboxes: Weak<Mutex<Vec<Mailbox>>>,
    registry: Arc<Registry>,
}

impl Paths {
    pub(crate) fn new(mailboxes: &Arc<Mutex<Vec<Mailbox>>>, registry: &Arc<Registry>) -> Paths {
        Paths { mailboxes: Arc::downgrade(mailboxes), registry: Arc::clone(registry) }
    }

    /// Makes all namespaces inaccessible at these listeners, and tells hosts. When the call returns, no further command
    /// is begun there; commands in flight are completed. Hosts that have never read the ANA log page would take that
    /// for an error: their associations end instead, and they connect again. New associations
    /// are refused until [`undrain`](Self::undrain), except with the discovery subsystem.
    ///
    /// # Errors
    /// There is no such listener, or not all reactors have heard of it.
    pub fn drain(&self, listeners: &[String]) -> Result<(), PathError> {
        self.change(listeners, |listener| {
            let has_changed = listener.set_drained(true);
            if has_changed {
                log::info!(
                    "{} is drained: its hosts are told to use other paths",
                    listener.address
                );
            }
            has_changed
        })
    }

    /// Restores the states of the namespaces at these listeners.
    ///
    /// # Errors
    /// As of [`drain`](Self::drain).
    pub fn undrain(&self, listeners: &[String]) -> Result<(), PathError> {
        self.change(listeners, |listener| {
            let has_changed = listener.set_drained(false);
            if has_changed {
                log::info!("{} is no longer drained", listener.address);
            }
            has_changed
        })
    }

    /// Sets the state of a group of namespaces, or of all. A drained listener shows it only when it is no longer
    /// drained.
    ///
    /// # Errors
    /// As of [`drain`](Self::drain), or there is no such group.
    pub fn set_state(
        &self,
        listeners: &[String],
        group: Option<u32>,
        state: AnaState,
    ) -> Result<(), PathError> {
        if let Some(group) = group {
            let mut probe = crate::config::AnaStates::default();
            probe.set(group, state).map_err(PathError::Group)?;
        }
        self.change(listeners, |listener| {
            let of =
                group.map_or("all namespaces".to_owned(), |group| format!("ANA group {group}"));
            log::info!("{}: {of} {state}", listener.address);
            listener.set_states(|states| match group {
                // It cannot fail: the group was checked above.
                Some(group) => _ = states.set(group, state),
                None => *states = crate::config::AnaStates::all(state),
            })
        })
    }

    /// Ends all connections of hosts at these listeners, except discovery connections.
    ///
    /// # Errors
    /// There is no such listener.
    pub fn end_connections(&self, listeners: &[String]) -> Result<(), PathError> {
        for index in self.find(listeners)? {
            self.tell(|| Message::EndListener(index))?;
        }
        Ok(())
    }

    /// The indices of all listeners with these names.
    fn find(&self, names: &[String]) -> Result<Vec<u16>, PathError> {
        let all = || self.registry.listeners.iter().zip(0u16..);
        if names.is_empty() {
            return Ok(all().map(|(_, index)| index).collect());
        }
        let mut found = Vec::new();
        for name in names {
            // An address may be that of a listener for TCP and of one for RDMA.
            let called = all().filter(|(listener, _)| listener.is_called(name));
            let before = found.len();
            found.extend(called.map(|(_, index)| index));
            if found.len() == before {
                let known = all().map(|(of, _)| format!("{} ({})", of.id, of.address));
                return Err(PathError::Unknown { name: name.clone(), known: known.collect() });
            }
        }
        Ok(found)
    }

    fn change(
        &self,
        listeners: &[String],
        change: impl Fn(&Listener) -> bool,
    ) -> Result<(), PathError> {
        for index in self.find(listeners)? {
            change(self.registry.listener(index));
        }
        self.announce()
    }

    /// Makes all reactors take over the listeners' states and tell hosts; returns when they have.
    pub(crate) fn announce(&self) -> Result<(), PathError> {
        let (done, all_done) = channel();
        self.tell(|| Message::PathsChanged(done.clone()))?;
        drop(done);
        match all_done.recv_timeout(PATIENCE) {
            // The channel ends when each reactor has dropped its sender or has ended.
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => Err(PathError::Silent),
            _ => Ok(()),
        }
    }

    fn tell(&self, message: impl Fn() -> Message) -> Result<(), PathError> {
        let mailboxes = self.mailboxes.upgrade().ok_or(PathError::Stopped)?;
        let mailboxes = mailboxes.lock().unwrap_or_else(PoisonError::into_inner);
        mailboxes.iter().for_each(|mailbox| mailbox.send(message()));
        Ok(())
    }
}

/// Waits until no I/O queue is busy at any listener and every host that has enabled the events has read that states
/// have changed, at most for `patience`; returns whether that is so.
pub(crate) fn wait_drained(
    report: impl Fn(Duration) -> Result<TargetReport, NoReport>,
    patience: Duration,
) -> bool {
    let end = Instant::now() + patience;
    loop {
        let Ok(report) = report(PATIENCE) else { return false };
        if report.listeners.iter().all(|of| of.busy == 0 && of.untold == 0) {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
