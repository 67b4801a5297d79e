//! What other threads hand to a reactor: messages, and new connections.

use super::io::{Link, Message};
use crate::connection::Endpoints;
use crate::hosts::AddressSlot;
use crate::limits::{MANY_OF_ADDRESS, MAX_UNTAKEN};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// A connection for a reactor.
pub(crate) struct Comer {
    pub(crate) link: Link,
    pub(crate) ends: Endpoints,
    pub(crate) slot: AddressSlot,
}

/// A mailbox, and its reactor's end of it. `event` is made readable by everything that arrives.
pub(crate) fn mailbox(event: Arc<OwnedFd>) -> (Mailbox, Inbox) {
    let (sender, messages) = channel();
    let comers = Arc::new(Mutex::default());
    let inbox = Inbox { messages, comers: Arc::clone(&comers), event: Arc::clone(&event) };
    (Mailbox { sender, comers, event }, inbox)
}

/// Handle to send messages and connections to a reactor.
#[derive(Clone)]
pub(crate) struct Mailbox {
    sender: Sender<Message>,
    comers: Arc<Mutex<Comers<Comer>>>,
    event: Arc<OwnedFd>,
}

impl Mailbox {
    /// Sends a message. A reactor that has ended needs none.
    pub(crate) fn send(&self, message: Message) {
        if self.sender.send(message).is_ok() {
            wake(&self.event);
        }
    }

    /// Hands a connection over. Returns one that the reactor has no time for: an older one, or, if the reactor has
    /// ended, this one.
    pub(crate) fn hand_over(&self, comer: Comer) -> Option<Comer> {
        let gone = lock(&self.comers).add(comer.ends.counted_address(), comer);
        wake(&self.event);
        gone
    }

    /// Whether a connection would have to wait until the reactor has taken others.
    pub(crate) fn is_full(&self) -> bool {
        lock(&self.comers).is_full()
    }
}

/// A reactor's end of its mailbox.
pub(crate) struct Inbox {
    messages: Receiver<Message>,
    comers: Arc<Mutex<Comers<Comer>>>,
    event: Arc<OwnedFd>,
}

impl Inbox {
    /// Readable when something has arrived.
    pub(crate) fn event(&self) -> &OwnedFd {
        &self.event
    }

    /// Makes the event readable, because messages are left.
    pub(crate) fn wake(&self) {
        wake(&self.event);
    }

    /// The next message.
    pub(crate) fn message(&self) -> Option<Message> {
        self.messages.try_recv().ok()
    }

    /// The next connection. A reactor does not wait for another thread, which may have a lower priority.
    pub(crate) fn comer(&self) -> Waiting {
        let mut comers = match self.comers.try_lock() {
            Ok(comers) => comers,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Waiting::Unknown,
        };
        comers.take().map_or(Waiting::None, |comer| Waiting::One(Box::new(comer)))
    }
}

/// Which connection waits for a reactor.
pub(crate) enum Waiting {
    None,
    One(Box<Comer>),
    /// Another thread is about to change that.
    Unknown,
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let left = std::mem::replace(&mut *lock(&self.comers), Comers::ended());
        // Closes them outside the lock.
        drop(left);
    }
}

fn lock<T>(comers: &Mutex<Comers<T>>) -> MutexGuard<'_, Comers<T>> {
    comers.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wake(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1u64.to_le_bytes());
}

/// Connections that a reactor has not taken yet. Addresses take turns, so that a peer which connects again and again
/// does not keep others waiting.
#[derive(Debug)]
struct Comers<T> {
    of_address: HashMap<IpAddr, VecDeque<T>>,
    /// Addresses with connections, in the order of their turns.
    turns: VecDeque<IpAddr>,
    count: usize,
    has_ended: bool,
}

impl<T> Default for Comers<T> {
    fn default() -> Self {
        Comers { of_address: HashMap::new(), turns: VecDeque::new(), count: 0, has_ended: false }
    }
}

impl<T> Comers<T> {
    /// Those of a reactor that has ended: it takes none.
    fn ended() -> Self {
        Comers { has_ended: true, ..Comers::default() }
    }

    /// The address with most connections, if it has many.
    fn fullest(&self) -> Option<IpAddr> {
        let (address, its) = self.of_address.iter().max_by_key(|(_, its)| its.len())?;
        (its.len() > MANY_OF_ADDRESS).then_some(*address)
    }

    /// Whether there are as many as may wait, and no address has many.
    fn is_full(&self) -> bool {
        self.count >= MAX_UNTAKEN && self.fullest().is_none()
    }

    /// Adds a connection. If there are too many, the oldest of the address with most is returned.
    fn add(&mut self, address: IpAddr, comer: T) -> Option<T> {
        if self.has_ended {
            return Some(comer);
        }
        let its = self.of_address.entry(address).or_default();
        its.push_back(comer);
        if its.len() == 1 {
            self.turns.push_back(address);
        }
        self.count += 1;
        if self.count <= MAX_UNTAKEN {
            return None;
        }
        // Many are left, so the address keeps its turn.
        let fullest = self.fullest()?;
        self.count -= 1;
        self.of_address.get_mut(&fullest)?.pop_front()
    }

    /// The oldest connection of the address whose turn it is.
    fn take(&mut self) -> Option<T> {
        let address = self.turns.pop_front()?;
        let its = self.of_address.get_mut(&address)?;
        let comer = its.pop_front()?;
        self.count -= 1;
        if its.is_empty() {
            self.of_address.remove(&address);
        } else {
            self.turns.push_back(address);
        }
        Some(comer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn address(number: usize) -> IpAddr {
        let [.., high, low] = number.to_be_bytes();
        Ipv4Addr::new(127, 0, high, low).into()
    }

    #[test]
    fn addresses_take_turns() {
        let mut comers = Comers::default();
        for comer in 0..100 {
            assert_eq!(comers.add(address(1), ('a', comer)), None);
        }
        comers.add(address(2), ('b', 0));
        comers.add(address(2), ('b', 1));
        let taken: Vec<_> = std::iter::from_fn(|| comers.take()).collect();
        assert_eq!(taken[..6], [('a', 0), ('b', 0), ('a', 1), ('b', 1), ('a', 2), ('a', 3)]);
        assert_eq!((taken.len(), comers.count), (102, 0));
        assert!(comers.of_address.is_empty() && comers.turns.is_empty());
    }

    #[test]
    fn the_address_with_most_gives_way_and_others_wait() {
        let mut comers = Comers::default();
        for comer in 0..MAX_UNTAKEN {
            assert_eq!(comers.add(address(1), comer), None);
        }
        assert!(!comers.is_full());
        assert_eq!(comers.add(address(2), 1000), Some(0));
        assert_eq!([comers.take(), comers.take(), comers.take()], [1, 1000, 2].map(Some));
        // Where no address has many, a connection waits; one that comes all the same is taken.
        let mut comers = Comers::default();
        for comer in 0..MAX_UNTAKEN {
            assert!(!comers.is_full());
            comers.add(address(comer / MANY_OF_ADDRESS), comer);
        }
        assert!(comers.is_full());
        assert_eq!(comers.add(address(999), MAX_UNTAKEN), None);
        assert_eq!(std::iter::from_fn(|| comers.take()).count(), MAX_UNTAKEN + 1);
    }

    #[test]
    fn a_reactor_that_has_ended_takes_none() {
        assert_eq!(Comers::ended().add(address(1), 7), Some(7));
    }
}
