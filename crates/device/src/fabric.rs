//! A fabric within one process: endpoints that exchange messages, and access each other's registered memory by key.
//!
//! It has the shape of RDMA without its hardware: works are posted, done in order, and complete with later events.
//! Tests run hosts and targets over it, to verify that neither depends on a byte stream.

use crate::buffer::IoBuffer;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An operation of an endpoint.
#[derive(Debug)]
pub enum Work {
    /// Sends a message.
    Send(Vec<u8>),
    /// Writes to registered memory of the peer.
    Write {
        /// Key of the memory.
        key: u32,
        /// Offset in the memory in bytes.
        address: u64,
        /// The data.
        bytes: Vec<u8>,
    },
    /// Reads registered memory of the peer, filling `buffer`.
    Read {
        /// Returned with the event.
        id: u64,
        /// Key of the memory.
        key: u32,
        /// Offset in the memory in bytes.
        address: u64,
        /// Destination.
        buffer: IoBuffer,
    },
}

impl Work {
    /// Bytes that the work transfers.
    pub fn bytes(&self) -> usize {
        match self {
            Work::Send(bytes) | Work::Write { bytes, .. } => bytes.len(),
            Work::Read { buffer, .. } => buffer.len(),
        }
    }
}

/// An event of an endpoint.
#[derive(Debug)]
pub enum Event {
    /// A message has arrived.
    Message(Vec<u8>),
    /// A message was sent, memory was written, or a work has ended without being done.
    Done {
        /// Bytes of the work.
        bytes: usize,
    },
    /// Memory was read.
    Read {
        /// Id of the work.
        id: u64,
        /// The data.
        buffer: IoBuffer,
    },
    /// The connection has ended: no more events will come, and nothing can be sent.
    Closed {
        /// A description of the reason.
        reason: String,
        /// Whether the peer closed the connection, rather than an error.
        by_peer: bool,
    },
}

#[derive(Debug, Default)]
struct Side {
    events: VecDeque<Event>,
    regions: HashMap<u32, Arc<Mutex<Vec<u8>>>>,
    last_key: u32,
    is_closed: bool,
    /// Total bytes of messages that this side has taken.
    taken_bytes: u64,
}

#[derive(Debug)]
struct Shared {
    sides: [Mutex<Side>; 2],
    /// For each side, an event counter for new events.
    signals: [OwnedFd; 2],
}

impl Shared {
    fn side(&self, index: usize) -> MutexGuard<'_, Side> {
        self.sides[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, index: usize, event: Event) {
        self.side(index).events.push_back(event);
    }

    fn signal(&self, index: usize) {
        // Can only fail if the counter would overflow.
        let _ = rustix::io::write(&self.signals[index], &1u64.to_le_bytes());
    }

    fn close(&self, reason: &str, by_peer: bool) {
        for index in 0..2 {
            let mut side = self.side(index);
            if !std::mem::replace(&mut side.is_closed, true) {
                side.events.push_back(Event::Closed { reason: reason.to_owned(), by_peer });
            }
            drop(side);
            self.signal(index);
        }
    }
}

/// One end of a connection. Dropping it closes the connection.
#[derive(Debug)]
pub struct Endpoint {
    shared: Arc<Shared>,
    index: usize,
}

impl Endpoint {
    /// Two ends of a connection.
    ///
    /// # Errors
    /// The kernel provides no event counters.
    pub fn pair() -> io::Result<[Endpoint; 2]> {
        let signal = || eventfd(0, EventfdFlags::CLOEXEC);
        let shared = Shared { sides: Default::default(), signals: [signal()?, signal()?] };
        let shared = Arc::new(shared);
        Ok([0, 1].map(|index| Endpoint { shared: Arc::clone(&shared), index }))
    }

    /// Registers `length_bytes` of zeroed memory for the peer to read and write.
    pub fn register(&self, length_bytes: usize) -> Region {
        let memory = Arc::new(Mutex::new(vec![0; length_bytes]));
        let mut side = self.shared.side(self.index);
        side.last_key += 1;
        let key = side.last_key;
        side.regions.insert(key, Arc::clone(&memory));
        Region { key, memory, shared: Arc::clone(&self.shared), index: self.index }
    }

    /// Performs works in this order. Their completions arrive as events.
    pub fn post(&self, works: impl IntoIterator<Item = Work>) {
        for work in works {
            let bytes = work.bytes();
            let done = match work {
                Work::Send(message) => {
                    self.shared.push(1 - self.index, Event::Message(message));
                    Ok(Event::Done { bytes })
                }
                Work::Write { key, address, bytes: from } => self
                    .access(key, address, bytes, |memory| memory.copy_from_slice(&from))
                    .map(|()| Event::Done { bytes }),
                Work::Read { id, key, address, mut buffer } => self
                    .access(key, address, bytes, |memory| buffer.copy_from_slice(memory))
                    .map(|()| Event::Read { id, buffer }),
            };
            match done {
                Ok(event) => self.shared.push(self.index, event),
                Err(reason) => {
                    // The work has ended without being done, and the connection with it.
                    self.shared.push(self.index, Event::Done { bytes });
                    self.shared.close(reason, false);
                }
            }
        }
        self.shared.signal(0);
        self.shared.signal(1);
    }

    /// Accesses `length` bytes of the peer's memory.
    fn access(
        &self,
        key: u32,
        address: u64,
        length: usize,
        use_it: impl FnOnce(&mut [u8]),
    ) -> Result<(), &'static str> {
        let region = self.shared.side(1 - self.index).regions.get(&key).cloned();
        let region = region.ok_or("a key without registered memory at the peer")?;
        let mut memory = region.lock().unwrap_or_else(PoisonError::into_inner);
        let start = usize::try_from(address).map_err(|_| "an address outside the memory")?;
        let memory = start.checked_add(length).and_then(|end| memory.get_mut(start..end));
        use_it(memory.ok_or("a range outside the memory")?);
        Ok(())
    }

    /// The next event, if there is one.
    pub fn poll(&self) -> Option<Event> {
        let mut side = self.shared.side(self.index);
        let event = side.events.pop_front();
        if let Some(Event::Message(bytes)) = &event {
            side.taken_bytes += bytes.len() as u64;
        }
        event
    }

    /// An event counter that is readable when there may be events since it was last cleared.
    pub fn signal(&self) -> BorrowedFd<'_> {
        self.shared.signals[self.index].as_fd()
    }

    /// Makes the signal unreadable until the next event.
    pub fn clear_signal(&self) {
        let signal = &self.shared.signals[self.index];
        let mut wanted = [PollFd::new(signal, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut wanted, Some(&now)).is_ok_and(|ready| ready > 0) {
            let _ = rustix::io::read(signal, &mut [0; 8]);
        }
    }

    /// Whether the connection is over.
    pub fn is_closed(&self) -> bool {
        self.shared.side(self.index).is_closed
    }

    /// Bytes of messages that the peer has taken.
    pub fn taken_bytes(&self) -> u64 {
        self.shared.side(1 - self.index).taken_bytes
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.shared.close("the peer closed the connection", true);
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.close();
    }
}

/// Registered memory. Dropping it ends the registration.
#[derive(Debug)]
pub struct Region {
    key: u32,
    memory: Arc<Mutex<Vec<u8>>>,
    shared: Arc<Shared>,
    index: usize,
}

impl Region {
    /// The key that names this memory to the peer.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Writes to it at `offset` bytes.
    ///
    /// # Panics
    /// If the range leaves it.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// A copy of these bytes.
    ///
    /// # Panics
    /// If the range leaves it.
    pub fn read(&self, range: Range<usize>) -> Vec<u8> {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory[range].to_vec()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.shared.side(self.index).regions.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(endpoint: &Endpoint) -> Vec<String> {
        std::iter::from_fn(|| endpoint.poll()).map(|event| format!("{event:?}")).collect()
    }

    #[test]
    fn messages_and_memory() {
        let [host, target] = Endpoint::pair().expect("event counters");
        let region = host.register(8);
        region.write(0, b"abcdefgh");
        host.post([Work::Send(b"command".to_vec())]);
        assert!(matches!(target.poll(), Some(Event::Message(bytes)) if bytes == b"command"));
        let (key, buffer) = (region.key(), IoBuffer::new(3));
        target.post([
            Work::Read { id: 7, key, address: 2, buffer },
            Work::Write { key, address: 5, bytes: b"XY".to_vec() },
            Work::Send(b"done".to_vec()),
        ]);
        assert!(matches!(target.poll(), Some(Event::Read { id: 7, buffer }) if &*buffer == b"cde"));
        assert_eq!(events(&target), ["Done { bytes: 2 }", "Done { bytes: 4 }"]);
        assert_eq!(region.read(4..8), b"eXYh");
        assert_eq!(events(&host), ["Done { bytes: 7 }", "Message([100, 111, 110, 101])"]);
        assert_eq!((host.taken_bytes(), target.taken_bytes()), (7, 4));
        drop(host);
        assert!(target.is_closed());
        assert_eq!(events(&target).len(), 1);
    }

    #[test]
    fn memory_outside_the_registered_region_is_out_of_reach() {
        for (address, length) in [(0, 9), (9, 1), (u64::MAX, 1)] {
            let [host, target] = Endpoint::pair().expect("event counters");
            let region = host.register(8);
            let bytes = vec![0; length];
            target.post([Work::Write { key: region.key(), address, bytes }]);
            assert!(host.is_closed() && target.is_closed());
            // It has ended, so that nobody waits for it.
            assert_eq!(events(&target)[0], format!("Done {{ bytes: {length} }}"));
        }
        let [host, target] = Endpoint::pair().expect("event counters");
        let key = host.register(8).key();
        target.post([Work::Write { key, address: 0, bytes: vec![1] }]);
        assert!(host.is_closed(), "the registration has ended");
    }
}
