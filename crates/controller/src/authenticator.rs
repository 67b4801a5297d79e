//! The arithmetic of authentication beside the reactors, on a thread of its own: a power of a group takes
//! milliseconds, and strangers may ask for it.
//!
//! Addresses take turns, so that one that asks again and again is not served before others.

use crate::operation::CommandId;
use crate::worker::{Queue, Waiting, Worker};
use bpfof_auth::dhchap::{Done, Work};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;

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
pub(crate) struct Authenticator(Worker<Turns>);

/// Work that waits.
#[derive(Default)]
struct Turns {
    waiting: HashMap<IpAddr, VecDeque<(Authentication, Reply)>>,
    /// Addresses with work, the one that is next first.
    turns: VecDeque<IpAddr>,
}

impl Waiting for Turns {
    type Work = (Authentication, Reply);

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
}

impl Turns {
    fn add(&mut self, address: IpAddr, work: (Authentication, Reply)) {
        let its = self.waiting.entry(address).or_default();
        if its.is_empty() {
            self.turns.push_back(address);
        }
        its.push_back(work);
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

impl Authenticator {
    /// Starts the thread, beside `reactors`.
    pub(crate) fn start(reactors: &[usize]) -> io::Result<Authenticator> {
        let serve = |(work, reply): (Authentication, Reply), _: &Queue<Turns>| reply(work.run());
        Ok(Authenticator(Worker::start("authenticate", reactors, serve)?))
    }

    /// Drops the work of a connection that has gone and was not begun: a queue of connections is all that
    /// strangers can make.
    pub(crate) fn cancel(&self, serial: u64) {
        self.0.cancel(|waiting| waiting.cancel(serial));
    }

    /// Takes work; its result goes to `reply`, on the authenticator's thread.
    pub(crate) fn run(
        &self,
        work: Authentication,
        reply: impl FnOnce(Authenticated) + Send + 'static,
    ) {
        self.0.add(|waiting| waiting.add(work.address, (work, Box::new(reply))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpfof_auth::Names;
    use bpfof_auth::dhchap::{Algorithms, ControllerAuth, ControllerConfig, Group, HostAuth};
    use bpfof_auth::dhchap::{HostConfig, HostStep, Step};
    use bpfof_auth::{DhchapKey, Hash};
    use std::sync::Arc;

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

    fn add(state: &mut Turns, address: u8, serial: u64) {
        let address = IpAddr::from([10, 0, 0, address]);
        let command = CommandId { connection: 0, slot: 0 };
        let work = Authentication { command, serial, address, work: work() };
        state.add(address, (work, Box::new(|_| ())));
    }

    fn all(state: &mut Turns) -> Vec<u64> {
        std::iter::from_fn(|| state.take()).map(|(work, _)| work.serial).collect()
    }

    #[test]
    fn addresses_take_turns() {
        let mut state = Turns::default();
        for (address, serial) in [(1, 1), (1, 2), (1, 3), (2, 4), (3, 5), (3, 6)] {
            add(&mut state, address, serial);
        }
        assert_eq!(all(&mut state), [1, 4, 5, 2, 6, 3]);
        assert!(state.waiting.is_empty() && state.turns.is_empty());
    }

    #[test]
    fn connections_that_have_gone_leave_nothing() {
        let mut state = Turns::default();
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
