//! The endpoint of a fabric, within this process or on a network card, and the local memory that the target reads and
//! writes.

use super::addresses::{addresses, share};
use super::connector::Connector;
use super::tcp::wait_ready;
use crate::deadline::deadline;
use crate::requests::InitiatorConfig;
use crate::{Error, LostReason, Options, TargetUrl};
use bpfof_device::fabric::{self, Event, Region, Work};
use bpfof_device::rdma::{self, ConnectError, Shape};
use bpfof_nvme::rdma::{ConnectAccept, ConnectReject, ConnectRequest};
use bpfof_nvme::{Cqe, Sgl, Sqe};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// The longest answer of a chain that comes in the response, in bytes: for each request of a queue, a receive for this
/// and the completion is posted.
pub(super) const ANSWER_IN_RESPONSE_BYTES: usize = 1024 - Cqe::BYTES;
/// Least memory for the data of a queue's requests, in bytes; requests wait while it has no room for them.
const ROOM_MIN_BYTES: usize = 512 << 10;
/// Memory per possible request, in bytes.
const ROOM_PER_REQUEST_BYTES: usize = 4096;
/// Memory for commands that are being sent, in bytes: further commands wait.
const WORK_BYTES: usize = 128 << 10;

/// Memory for the data of a queue's requests, in bytes.
pub(super) fn room_bytes(config: &InitiatorConfig) -> usize {
    let for_all = usize::from(config.depth) * ROOM_PER_REQUEST_BYTES;
    // An admin queue has few requests at a time.
    let least = if config.admin { 0 } else { ROOM_MIN_BYTES };
    for_all.max(config.max_transfer_bytes as usize).max(least)
}

/// The identity of a queue at the target: RDMA sends it before Connect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueName {
    pub(crate) qid: u16,
    /// Controller identifier; for an I/O queue only.
    pub(crate) cntlid: u16,
    /// Where the controller's admin queue is connected, if known: the host name may have further addresses, or the name
    /// service may fail for the moment.
    pub(crate) peer: Option<SocketAddr>,
}

/// One end of a connection, with its memory.
#[derive(Debug)]
pub(super) enum Endpoint {
    Fabric { end: fabric::Endpoint, memory: Region },
    Rdma { end: Box<rdma::Endpoint>, peer: SocketAddr, address: u64, key: u32 },
}

impl Endpoint {
    /// Connects to a target in this process.
    pub(super) fn within(connector: &Connector, config: &InitiatorConfig) -> Result<Self, Error> {
        let end = connector.connect().map_err(|source| {
            let address = "a target in this process".to_owned();
            Error::Connect { address, source }
        })?;
        let memory = end.register(room_bytes(config));
        Ok(Self::Fabric { end, memory })
    }

    /// Connects over RDMA to the first address of the URL's host that accepts within its [`share`] of the connect
    /// timeout, or to the address of the admin queue.
    pub(super) fn connect(
        url: &TargetUrl,
        options: &Options,
        config: &InitiatorConfig,
        queue: QueueName,
    ) -> Result<Self, Error> {
        if options.credentials.tls_psk.is_some() {
            let words = "NVMe/RDMA has no TLS: use nvme-tcp://, or remove tls-psk from the address and from this \
                         target's entry in hosts.toml";
            return Err(Error::Credentials(words.to_owned()));
        }
        let entries = config.depth + 1;
        let shape = Shape {
            receives: entries,
            receive_bytes: Cqe::BYTES + ANSWER_IN_RESPONSE_BYTES,
            // Large enough for the longest command.
            work_bytes: WORK_BYTES.max(2 * (Sqe::BYTES + config.in_capsule_bytes as usize)),
            shared_bytes: room_bytes(config),
        };
        let request = ConnectRequest {
            qid: queue.qid,
            host_receives: entries,
            host_sends: entries.into(),
            cntlid: if config.admin { 0 } else { queue.cntlid },
        };
        let failed = |why: String| {
            let address =
                url.portals().next().map_or_else(String::new, |portal| portal.to_string());
            Error::ConnectRdma { address, why }
        };
        let addresses = addresses(url, queue.peer)?;
        let deadline = deadline(options.connect_timeout);
        let mut why = "the host name has no address".to_owned();
        for (at, &peer) in addresses.iter().enumerate() {
            let time = share(deadline, addresses.len() - at);
            match rdma::Endpoint::connect(peer, shape, &request.to_bytes(), time) {
                Ok((end, accepted)) => {
                    let (address, key) = end.shared().ok_or_else(|| {
                        failed("the connection has no registered memory".to_owned())
                    })?;
                    return match ConnectAccept::from_private_data(&accepted) {
                        Some(_) => Ok(Self::Rdma { end: Box::new(end), peer, address, key }),
                        None => Err(failed(
                            "it accepts the connection, but is not an NVMe/RDMA target".to_owned(),
                        )),
                    };
                }
                Err(error) => why = words(&error),
            }
        }
        Err(failed(why))
    }

    /// The address of the peer; `None` within this process.
    pub(super) const fn peer(&self) -> Option<SocketAddr> {
        match self {
            Self::Fabric { .. } => None,
            Self::Rdma { peer, .. } => Some(*peer),
        }
    }

    /// The SGL descriptor by which the target accesses a range of the memory.
    pub(super) fn name(&self, offset: usize, bytes: u32) -> Sgl {
        match self {
            Self::Fabric { memory, .. } => Sgl::keyed(offset as u64, bytes, memory.key()),
            Self::Rdma { address, key, .. } => Sgl::keyed(address + offset as u64, bytes, *key),
        }
    }

    /// Writes to the memory.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        match self {
            Self::Fabric { memory, .. } => memory.write(offset, bytes),
            Self::Rdma { end, .. } => end.write_shared(offset, bytes),
        }
    }

    /// Copies from the memory.
    pub(super) fn read(&self, offset: usize, to: &mut [u8]) {
        match self {
            Self::Fabric { memory, .. } => {
                to.copy_from_slice(&memory.read(offset..offset + to.len()));
            }
            Self::Rdma { end, .. } => end.read_shared(offset, to),
        }
    }

    pub(super) fn post(&mut self, works: impl IntoIterator<Item = Work>) {
        match self {
            Self::Fabric { end, .. } => end.post(works),
            Self::Rdma { end, .. } => end.post(works),
        }
    }

    /// Clears the signal, before events are polled.
    pub(super) fn look(&mut self) {
        match self {
            Self::Fabric { end, .. } => end.clear_signal(),
            Self::Rdma { end, .. } => end.look(),
        }
    }

    /// The next event. If there is none, the signal becomes readable when one arrives.
    pub(super) fn poll(&mut self) -> Option<Event> {
        match self {
            Self::Fabric { end, .. } => end.poll(),
            Self::Rdma { end, .. } => end.poll(),
        }
    }

    pub(super) fn wait_ready(&self, timeout: Duration) -> Result<bool, LostReason> {
        match self {
            Self::Fabric { end, .. } => wait_ready(end.signal(), false, timeout),
            Self::Rdma { end, .. } => {
                end.wait(timeout).map_err(|error| LostReason::Io(error.kind()))
            }
        }
    }

    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Fabric { end, .. } => end.signal().as_fd().try_clone_to_owned(),
            Self::Rdma { end, .. } => {
                end.signal().ok_or(io::ErrorKind::NotConnected)?.try_clone_to_owned()
            }
        }
    }
}

/// The reason of a failed connection as text.
fn words(error: &ConnectError) -> String {
    match error {
        ConnectError::Refused { private_data } => {
            match ConnectReject::from_private_data(private_data) {
                Some(ConnectReject { status }) => {
                    format!("the target refuses the connection: {status}")
                }
                None => {
                    "the peer refuses the connection, and is not an NVMe/RDMA target".to_owned()
                }
            }
        }
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpfof_nvme::rdma::RejectStatus;

    #[test]
    fn refused_connections_are_explained() {
        let status = RejectStatus::NO_RESOURCES;
        let mut private_data = ConnectReject { status }.to_bytes().to_vec();
        private_data.resize(148, 0);
        let refused = words(&ConnectError::Refused { private_data });
        assert!(refused.contains("no resources for one more queue"), "{refused}");
        let strange = words(&ConnectError::Refused { private_data: vec![1; 148] });
        assert!(strange.contains("not an NVMe/RDMA target"), "{strange}");
        assert!(words(&ConnectError::NobodyListens).contains("no RDMA listener"));
    }
}
