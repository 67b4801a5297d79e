//! The arithmetic of authentication beside the reactors, on a thread of its own: a power of a group takes
//! milliseconds, and strangers may ask for it.
//!
//! Addresses take turns, so that one that asks again and again is not served before others.

use crate::operation::CommandId;
use bpfof_auth::dhchap::{Done, Work};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// How much less than reactors the thread gets of a processor that they share (nice).
const NICENESS: i32 = 10;

/// Work of one command.
#[derive(Debug)]
pub(crate) struct Authentication {
    pub(crate) command: CommandId,
    /// The connection's number, unlike its index never used again.
    pub(crate) serial: u64,
    pub(crate) address: IpAddr,
    pub(crate) work: Work,
}

impl Authentication {
    /// Does the work.
    pub(crate) fn run(self) -> Authenticated {
        let Authentication { command, serial, work, .. } = self;
        Authenticated { command, serial, done: work.run() }
    }
}

/// Work that has been done.
pub(crate) struct Authenticated {
    pub(crate) command: CommandId,
    /// Of the connection.
    pub(crate) serial: u64,
    pub(crate) done: Done,
}

/// Whom to tell.
type Reply = Box<dyn FnOnce(Authenticated) + Send>;

/// Takes work. The thread ends with the last of its clones.
#[derive(Clone)]
pub(crate) struct Authenticator(Arc<Handle>);

/// Ends the thread when it is dropped.
struct Handle(Arc<Queue>);

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: HashMap<IpAddr, VecDeque<(Authentication, Reply)>>,
    /// Addresses with work, the one that is next first.
    turns: VecDeque<IpAddr>,
    has_ended: bool,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.changed.notify_one();
    }
}

impl State {
    fn add(&mut self, address: IpAddr, work: (Authentication, Reply)) {
        let its = self.waiting.entry(address).or_default();
        if its.is_empty() {
            self.turns.push_back(address);
        }
        its.push_back(work);
    }

    fn take(&mut self) -> Option<(Authentication, Reply)> {
        let address = self.turns.pop_front()?;
        let its = self.waiting.get_mut(&address)?;
        let work = its.pop_front();
        match its.is_empty() {
            true => _ = self.waiting.remove(&address),
            false => self.turns.push_back(address),
        }
        work
    }

    fn cancel(&mut self, serial: u64) {
        for works in self.waiting.values_mut() {
            works.retain(|(work, _)| work.serial != serial);
        }
        self.waiting.retain(|_, works| !works.is_empty());
        let waiting = &self.waiting;
        self.turns.retain(|address| waiting.contains_key(address));
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for work; none at the end.
    fn take(&self) -> Option<(Authentication, Reply)> {
        let mut state = self.lock();
        loop {
            if state.has_ended {
                return None;
            }
            if let Some(work) = state.take() {
                return Some(work);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Authenticator {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Authenticator> {
        let queue = Arc::new(Queue::default());
        let works = Arc::clone(&queue);
        std::thread::Builder::new().name("authenticate".into()).spawn(move || {
            // It may not be allowed; then the kernel shares the processor out evenly.
            let _ = rustix::process::nice(NICENESS);
            while let Some((work, reply)) = works.take() {
                reply(work.run());
            }
        })?;
        Ok(Authenticator(Arc::new(Handle(queue))))
    }

    /// Drops the work of a connection that has gone and was not begun: a queue of connections is all that
    /// strangers can make.
    pub(crate) fn cancel(&self, serial: u64) {
        self.0.0.lock().cancel(serial);
    }

    /// Takes work; its result goes to `reply`, on the authenticator's thread.
    pub(crate) fn run(
        &self,
        work: Authentication,
        reply: impl FnOnce(Authenticated) + Send + 'static,
    ) {
        self.0.0.lock().add(work.address, (work, Box::new(reply)));
        self.0.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpfof_auth::Names;
    use bpfof_auth::dhchap::{Algorithms, ControllerAuth, ControllerConfig, Group, HostAuth};
    use bpfof_auth::dhchap::{HostConfig, HostStep, Step};
    use bpfof_auth::{DhchapKey, Hash};

    /// Work that makes a pair.
    fn work() -> Work {
        let key = DhchapKey::generate(Hash::Sha256).expect("random numbers");
        let names = Names::new("nqn.host", "nqn.subsystem").expect("names");
        let algorithms = Algorithms { hashes: vec![Hash::Sha256], groups: vec![Group::Ffdhe2048] };
        let config = HostConfig::new(names.clone(), &key, None, algorithms.clone());
        let (_, step) = HostAuth::new(Arc::new(config), 1);
        let HostStep::Exchange(message) = step else { panic!("it begins with a message") };
        let config = ControllerConfig::new(names, &[key], None, algorithms);
        match ControllerAuth::new(Arc::new(config), 0).send(&message, 0) {
            Step::Compute(work) => work,
            other => panic!("{other:?}"),
        }
    }

    fn add(state: &mut State, address: u8, serial: u64) {
        let address = IpAddr::from([10, 0, 0, address]);
        let command = CommandId { connection: 0, slot: 0 };
        let work = Authentication { command, serial, address, work: work() };
        state.add(address, (work, Box::new(|_| ())));
    }

    fn all(state: &mut State) -> Vec<u64> {
        std::iter::from_fn(|| state.take()).map(|(work, _)| work.serial).collect()
    }

    #[test]
    fn addresses_take_turns() {
        let mut state = State::default();
        for (address, serial) in [(1, 1), (1, 2), (1, 3), (2, 4), (3, 5), (3, 6)] {
            add(&mut state, address, serial);
        }
        assert_eq!(all(&mut state), [1, 4, 5, 2, 6, 3]);
        assert!(state.waiting.is_empty() && state.turns.is_empty());
    }

    #[test]
    fn connections_that_have_gone_leave_nothing() {
        let mut state = State::default();
        for (address, serial) in [(1, 1), (1, 2), (2, 3), (3, 4)] {
            add(&mut state, address, serial);
        }
        state.cancel(1);
        state.cancel(3);
        state.cancel(9);
        assert_eq!(state.turns.len(), 2);
        assert_eq!(all(&mut state), [2, 4]);
        assert!(state.waiting.is_empty() && state.turns.is_empty());
    }
}
