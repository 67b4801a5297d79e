//! The arithmetic of authentication, on a thread of its own outside the reactors: an exponentiation takes milliseconds,
//! and strangers may ask for it.
//!
//! Parties take turns by the time spent for each, as hosts do at the loader: hosts that have proved their names before,
//! and the addresses of all others. If two have had as much, the one with the cheaper work comes first: the peer chooses
//! the group, and an exponentiation in the dearest group takes thirty times as long as one in the cheapest.

use crate::operation::CommandId;
use crate::worker::{Queue, Waiting, Worker};
use bpfof_auth::dhchap::{Done, Work};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;

/// The work of one command.
#[derive(Debug)]
pub(crate) struct Authentication {
    pub(crate) command: CommandId,
    /// The connection's serial number, which is never reused, unlike its index.
    pub(crate) serial: u64,
    pub(crate) party: Party,
    pub(crate) work: Work,
}

/// Who has a turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Party {
    /// A host with this name, which TLS or an earlier authentication has proved.
    Host(String),
    /// All others at an address.
    Address(IpAddr),
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
    /// The connection's serial number.
    pub(crate) serial: u64,
    pub(crate) done: Done,
}

/// The callback that gets the result.
type Reply = Box<dyn FnOnce(Authenticated) + Send>;

/// Handle to the thread, which ends with the last clone.
#[derive(Clone)]
pub(crate) struct Authenticator(Worker<Turns>);

/// The waiting work.
#[derive(Default)]
struct Turns {
    /// Parties with work, and parties that have had more than others.
    parties: HashMap<Party, Turn>,
    /// Virtual time: the time that each waiting party has had.
    now_us: u64,
    last_number: u64,
}

/// The state of a party.
#[derive(Default)]
struct Turn {
    /// Time spent for it, in virtual time.
    time_us: u64,
    waiting: VecDeque<Waits>,
}

struct Waits {
    /// The virtual time at which it came.
    came_us: u64,
    number: u64,
    work: Authentication,
    reply: Reply,
}

impl Turn {
    /// When its next work begins and ends, in virtual time, and that work's number.
    fn next(&self) -> Option<(u64, u64, u64)> {
        let Waits { came_us, number, work, .. } = self.waiting.front()?;
        let begins_us = self.time_us.max(*came_us);
        Some((begins_us, begins_us + work.work.price_us(), *number))
    }
}

impl Waiting for Turns {
    type Work = (Authentication, Reply);

    fn take(&mut self) -> Option<(Authentication, Reply)> {
        let all = self.parties.values_mut();
        let waiting = all.filter_map(|turn| turn.next().map(|next| (next, turn)));
        let waiting: Vec<_> = waiting.collect();
        let count = waiting.len() as u64;
        let next = waiting.into_iter().min_by_key(|((_, ends_us, number), _)| (*ends_us, *number));
        let ((begins_us, ends_us, _), turn) = next?;
        turn.time_us = ends_us;
        let taken = turn.waiting.pop_front();
        // All waiting parties come closer by it, so that a peer with a new address for each work cannot stay ahead of
        // them.
        self.now_us = self.now_us.max(begins_us) + (ends_us - begins_us) / count;
        self.forget();
        taken.map(|Waits { work, reply, .. }| (work, reply))
    }
}

impl Turns {
    fn add(&mut self, (work, reply): (Authentication, Reply)) {
        self.last_number += 1;
        let (came_us, number) = (self.now_us, self.last_number);
        let turn = self.parties.entry(work.party.clone()).or_default();
        turn.waiting.push_back(Waits { came_us, number, work, reply });
    }

    fn cancel(&mut self, serial: u64) {
        for turn in self.parties.values_mut() {
            turn.waiting.retain(|waits| waits.work.serial != serial);
        }
        self.forget();
    }

    /// Forgets parties that have no work and have not had more than others.
    fn forget(&mut self) {
        let now_us = self.now_us;
        self.parties.retain(|_, turn| !turn.waiting.is_empty() || turn.time_us > now_us);
    }
}

impl Authenticator {
    /// Starts the thread, on other processors than `reactors` if possible.
    pub(crate) fn start(reactors: &[usize]) -> io::Result<Authenticator> {
        let serve = |(work, reply): (Authentication, Reply), _: &Queue<Turns>| reply(work.run());
        Ok(Authenticator(Worker::start("authenticate", reactors, serve)?))
    }

    /// Drops work of a gone connection that has not begun: so strangers can queue no more work than they have
    /// connections.
    pub(crate) fn cancel(&self, serial: u64) {
        self.0.cancel(|waiting| waiting.cancel(serial));
    }

    /// Takes work; its result goes to `reply`, on the authenticator's thread.
    pub(crate) fn run(
        &self,
        work: Authentication,
        reply: impl FnOnce(Authenticated) + Send + 'static,
    ) {
        self.0.add(|waiting| waiting.add((work, Box::new(reply))));
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

    /// Work that makes a key pair.
    fn work(group: Group) -> Work {
        let key = DhchapKey::generate(Hash::Sha256).expect("random numbers");
        let names = Names::new("nqn.host", "nqn.subsystem").expect("names");
        let algorithms = Algorithms { hashes: vec![Hash::Sha256], groups: vec![group] };
        let config = HostConfig::new(names.clone(), &key, None, algorithms.clone());
        let (_, step) = HostAuth::new(Arc::new(config), 1);
        let HostStep::Exchange(message) = step else { panic!("it begins with a message") };
        let config = ControllerConfig::new(names, &[key], None, algorithms);
        match ControllerAuth::new(Arc::new(config), 0).send(&message, 0) {
            Step::Compute(work) => work,
            other => panic!("{other:?}"),
        }
    }

    fn add_of(state: &mut Turns, group: Group, address: u8, serial: u64) {
        let party = Party::Address(IpAddr::from([10, 0, 0, address]));
        add_for(state, party, group, serial);
    }

    fn add_for(state: &mut Turns, party: Party, group: Group, serial: u64) {
        let command = CommandId { connection: 0, slot: 0 };
        let work = Authentication { command, serial, party, work: work(group) };
        state.add((work, Box::new(|_| ())));
    }

    fn add(state: &mut Turns, address: u8, serial: u64) {
        add_of(state, Group::Ffdhe2048, address, serial);
    }

    fn take(state: &mut Turns) -> Option<u64> {
        state.take().map(|(work, _)| work.serial)
    }

    fn all(state: &mut Turns) -> Vec<u64> {
        std::iter::from_fn(|| take(state)).collect()
    }

    /// However many addresses ask for the dearest group again and again, one that asks for a cheap group is next.
    #[test]
    fn expensive_groups_do_not_delay_others() {
        let mut state = Turns::default();
        let dear = |state: &mut Turns, address| {
            add_of(state, Group::Ffdhe8192, address, u64::from(address));
        };
        (0..200).for_each(|address| dear(&mut state, address));
        for _ in 0..300 {
            let address = take(&mut state).expect("some wait") as u8;
            dear(&mut state, address);
        }
        for round in 0..2 {
            add(&mut state, 250, 1000 + round);
            assert_eq!(take(&mut state), Some(1000 + round));
        }
    }

    /// A dear work does not wait forever either if each cheap one comes from a new address.
    #[test]
    fn expensive_work_is_not_starved_by_new_addresses() {
        let mut state = Turns::default();
        add_of(&mut state, Group::Ffdhe8192, 255, 1000);
        let before = (0..250).find(|address| {
            add(&mut state, *address, u64::from(*address));
            take(&mut state) == Some(1000)
        });
        let before = before.expect("its turn comes");
        assert!((20..80).contains(&before), "{before} came before it");
        all(&mut state);
        assert!(state.parties.is_empty());
    }

    /// Strangers at its address do not delay a host that has proved its name.
    #[test]
    fn a_known_host_does_not_wait_for_strangers() {
        let mut state = Turns::default();
        (0..100).for_each(|serial| add_of(&mut state, Group::Ffdhe8192, 1, serial));
        take(&mut state).expect("the first");
        add_for(&mut state, Party::Host("nqn.host".to_owned()), Group::Ffdhe8192, 1000);
        assert!((0..2).any(|_| take(&mut state) == Some(1000)));
    }

    #[test]
    fn addresses_take_turns() {
        let mut state = Turns::default();
        for (address, serial) in [(1, 1), (1, 2), (1, 3), (2, 4), (3, 5), (3, 6)] {
            add(&mut state, address, serial);
        }
        assert_eq!(all(&mut state), [1, 4, 5, 2, 6, 3]);
        assert!(state.parties.is_empty());
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
        assert_eq!(state.parties.len(), 2);
        assert_eq!(all(&mut state), [2, 4]);
        assert!(state.parties.is_empty());
    }
}
