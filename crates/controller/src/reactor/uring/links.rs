//! The links of a ring's connections: sockets and endpoints of fabrics, by index.

#![deny(unsafe_code)]

use super::token;
use crate::reactor::io::Link;
use bpfof_device::fabric::Event;
use bpfof_device::{Ring, rdma};
use std::os::fd::{AsRawFd, RawFd};

/// The signals of a fabric's endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) enum Signal {
    /// Messages have come, or works have ended.
    Ends,
    /// The state of the connection has changed; by RDMA only.
    Connection,
}

/// The link of each connection.
#[derive(Default)]
pub(super) struct Links {
    /// By connection; each with a number, so that a late event is not attributed to another link.
    slots: Vec<Option<(Link, u64)>>,
    last_number: u64,
    /// Connections whose endpoints have closed while works were handed to them, or have more events than a turn has
    /// time for: no signal tells of these.
    pub(super) over: Vec<u32>,
}

impl Links {
    /// Stores a link; returns its number, as tokens have it.
    pub(super) fn set(&mut self, index: u32, link: Link) -> u64 {
        if self.slots.len() <= index as usize {
            self.slots.resize_with(index as usize + 1, || None);
        }
        self.last_number += 1;
        self.slots[index as usize] = Some((link, self.last_number));
        self.last_number & 0xff_ffff
    }

    /// Removes a link.
    pub(super) fn take(&mut self, index: u32) -> Option<Link> {
        self.slots[index as usize].take().map(|(link, _)| link)
    }

    /// Waits for the next event of one of an endpoint's signals, if it has that signal.
    pub(super) fn arm(&self, ring: &mut Ring, index: u32, signal: Signal) {
        let Some(Some((link, number))) = self.slots.get(index as usize) else { return };
        let kind = match signal {
            Signal::Ends => token::FABRIC,
            Signal::Connection => token::RDMA_CONNECTION,
        };
        let token = kind | (number & 0xff_ffff) << 32 | u64::from(index);
        match (link, signal) {
            (Link::Fabric(endpoint), Signal::Ends) => {
                ring.read_event(endpoint.signal(), token);
            }
            (Link::Rdma(endpoint), _) => {
                if let Some([ends, connection]) = endpoint.signals() {
                    let readable = match signal {
                        Signal::Ends => ends,
                        Signal::Connection => connection,
                    };
                    ring.readable(readable.as_raw_fd(), token);
                }
            }
            (Link::Fabric(_), Signal::Connection) | (Link::Socket(..) | Link::Asked(_), _) => {}
        }
    }

    /// The number of a link, as tokens have it.
    pub(super) fn number(&self, index: u32) -> Option<u64> {
        let (_, number) = self.slots.get(index as usize)?.as_ref()?;
        Some(number & 0xff_ffff)
    }

    /// Checks what has made an endpoint's signal readable.
    pub(super) fn look(&mut self, index: u32, signal: Signal) {
        if let Some(Some((Link::Rdma(endpoint), _))) = self.slots.get_mut(index as usize) {
            match signal {
                Signal::Ends => endpoint.look_at_ends(),
                Signal::Connection => endpoint.look_at_connection(),
            }
        }
    }

    /// The next event of a link's endpoint.
    pub(super) fn poll(&mut self, index: u32) -> Option<Event> {
        match self.slots.get_mut(index as usize)?.as_mut()? {
            (Link::Fabric(endpoint), _) => endpoint.poll(),
            (Link::Rdma(endpoint), _) => endpoint.poll(),
            _ => None,
        }
    }

    /// Closes an endpoint. If it was closed before and still has works, it gives them up.
    pub(super) fn shut_rdma(&mut self, ring: &mut Ring, index: u32) {
        let Some((Link::Rdma(mut endpoint), number)) = self.slots[index as usize].take() else {
            return;
        };
        if endpoint.is_closed() {
            disarm(ring, &endpoint);
        }
        endpoint.close();
        self.slots[index as usize] = Some((Link::Rdma(endpoint), number));
        self.over.push(index);
    }

    /// How many bytes the peer has taken, including works that were not awaited.
    pub(super) fn taken_by_rdma(&mut self, index: u32) -> u64 {
        let Link::Rdma(endpoint) = self.get_mut(index) else { return 0 };
        endpoint.take_done();
        let (bytes, has_events) = (endpoint.taken_bytes(), endpoint.has_events());
        if has_events {
            self.over.push(index);
        }
        bytes
    }

    pub(super) fn get(&self, index: u32) -> &Link {
        let link = self.slots[index as usize].as_ref();
        &link.expect("the link stays open while its connection lives").0
    }

    pub(super) fn get_mut(&mut self, index: u32) -> &mut Link {
        let link = self.slots[index as usize].as_mut();
        &mut link.expect("the link stays open while its connection lives").0
    }

    pub(super) fn fd(&self, index: u32) -> RawFd {
        match self.get(index) {
            Link::Socket(socket, _) => socket.as_raw_fd(),
            _ => unreachable!("the link is not a socket"),
        }
    }
}

/// Cancels the ring's operations on an endpoint's signals.
pub(super) fn disarm(ring: &mut Ring, endpoint: &rdma::Endpoint) {
    for signal in endpoint.signals().into_iter().flatten() {
        if let Err(error) = ring.cancel(signal.as_raw_fd()) {
            log::error!("cannot cancel operations of the ring on a closed connection: {error}");
        }
    }
}
