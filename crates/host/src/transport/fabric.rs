//! A queue over a fabric of messages and registered memory ([`bpfof_device::fabric`]).
//!
//! Each slot of the queue has a place in one registered slab, where the target puts what is read and
//! takes what does not fit a capsule. Answers of chains come in the response.

use super::tcp::wait_ready;
use crate::requests::{DataOut, InitiatorConfig, OnCompletion, Plan, Requests, Returns};
use crate::{Error, LostReason, Request, SubmitError, Violation};
use bpfof_device::fabric::{Endpoint, Event, Region, Work};
use bpfof_nvme::opcode::FABRICS;
use bpfof_nvme::tcp::ADMIN_IN_CAPSULE_BYTES;
use bpfof_nvme::{Cqe, Sgl};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Makes connections to a target of this process, which has its other ends.
#[derive(Clone)]
pub struct Connector(Arc<dyn Fn() -> io::Result<Endpoint> + Send + Sync>);

impl Connector {
    /// Connections that `connect` makes.
    pub fn new(connect: impl Fn() -> io::Result<Endpoint> + Send + Sync + 'static) -> Connector {
        Connector(Arc::new(connect))
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl PartialEq for Connector {
    fn eq(&self, other: &Connector) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Connector {}

/// A queue over an endpoint.
#[derive(Debug)]
pub(crate) struct FabricPort {
    /// `None` once the connection is over.
    endpoint: Option<Endpoint>,
    requests: Requests,
    /// A place of so many bytes for each slot.
    slab: Region,
    slot_bytes: usize,
    unposted: Vec<Work>,
    is_rung: bool,
}

impl FabricPort {
    pub(super) fn connect(
        connector: &Connector,
        config: InitiatorConfig,
    ) -> Result<FabricPort, Error> {
        let Connector(connect) = connector;
        let endpoint = connect().map_err(|source| {
            let address = "a target of this process".to_owned();
            Error::Connect { address, source }
        })?;
        let mut requests = Requests::new(config);
        // There is no handshake.
        requests.open();
        let config = requests.config();
        let slot_bytes = config.max_transfer_bytes as usize;
        let slab = endpoint.register(slot_bytes * usize::from(config.depth));
        Ok(FabricPort {
            endpoint: Some(endpoint),
            requests,
            slab,
            slot_bytes,
            unposted: Vec::new(),
            is_rung: false,
        })
    }

    pub(super) const fn requests(&self) -> &Requests {
        &self.requests
    }

    pub(super) const fn is_connected(&self) -> bool {
        self.endpoint.is_some()
    }

    pub(super) fn submit(&mut self, tag: u64, request: &Request<'_>) -> Result<(), SubmitError> {
        let Plan { mut sqe, data_out, returns, expected_bytes } = self.requests.plan(request)?;
        let place = usize::from(self.requests.next_slot().unwrap_or(0)) * self.slot_bytes;
        let keyed = |bytes: u32| Sgl::keyed(place as u64, bytes, self.slab.key());
        let in_capsule = match sqe.opcode {
            FABRICS => ADMIN_IN_CAPSULE_BYTES,
            _ => self.requests.config().in_capsule_bytes as usize,
        };
        let mut capsule = Vec::new();
        match data_out {
            DataOut::None => sqe.sgl = keyed(expected_bytes),
            DataOut::Bytes(data) if data.len() <= in_capsule => {
                sqe.sgl = Sgl::in_capsule(data.len() as u32);
                capsule.extend_from_slice(data);
            }
            DataOut::Bytes(data) => sqe.sgl = keyed(data.len() as u32),
            DataOut::Pushdown(parts) => {
                parts.encode_into(&mut capsule);
                sqe.sgl = Sgl::in_capsule(capsule.len() as u32);
            }
            DataOut::PushdownVector(call) => {
                call.parts().encode_into(&mut capsule);
                sqe.sgl = Sgl::in_capsule(capsule.len() as u32);
            }
        }
        self.requests.take(tag, &mut sqe, returns, expected_bytes)?;
        if let (DataOut::Bytes(data), true) = (data_out, capsule.is_empty()) {
            self.slab.write(place, data);
        }
        let mut message = sqe.to_bytes().to_vec();
        message.append(&mut capsule);
        self.unposted.push(Work::Send(message));
        Ok(())
    }

    pub(super) const fn ring(&mut self) {
        self.is_rung = true;
    }

    pub(super) fn queued_bytes(&self) -> usize {
        self.unposted.iter().map(Work::bytes).sum()
    }

    pub(super) const fn is_urgent(&self) -> bool {
        self.is_rung && !self.unposted.is_empty()
    }

    pub(super) fn send(&mut self, now_us: u64) -> usize {
        let bytes = self.queued_bytes();
        if let Some(endpoint) = &self.endpoint {
            endpoint.post(self.unposted.drain(..));
            self.requests.sent(now_us);
        }
        self.is_rung = false;
        bytes
    }

    pub(super) fn receive(
        &mut self,
        on_completion: &mut OnCompletion<'_>,
    ) -> Result<usize, LostReason> {
        let Some(endpoint) = &self.endpoint else {
            return Err(self.requests.failure().unwrap_or(LostReason::HungUp));
        };
        endpoint.clear_signal();
        let mut received = 0;
        while let Some(event) = endpoint.poll() {
            match event {
                Event::Message(bytes) => {
                    received += bytes.len();
                    respond(
                        &mut self.requests,
                        (&self.slab, self.slot_bytes),
                        &bytes,
                        on_completion,
                    )
                    .map_err(|reason| {
                        let kind = "Protocol Error";
                        LostReason::Protocol(Violation { kind, reason, information: 0 })
                    })?;
                }
                Event::Done { .. } | Event::Read { .. } => {}
                Event::Closed(_) => return Err(LostReason::Closed),
            }
        }
        Ok(received)
    }

    pub(super) fn wait_ready(&self, timeout: Duration) -> Result<bool, LostReason> {
        self.endpoint.as_ref().map_or(Ok(true), |end| wait_ready(end.signal(), false, timeout))
    }

    pub(super) fn descriptor(&self) -> Result<OwnedFd, Error> {
        let endpoint = self.endpoint.as_ref().ok_or(SubmitError::NotConnected)?;
        let cloned = endpoint.signal().as_fd().try_clone_to_owned();
        Ok(cloned.map_err(|error| LostReason::Io(error.kind()))?)
    }

    pub(super) fn close(&mut self, reason: LostReason) {
        self.requests.fail(reason);
        self.unposted.clear();
        self.endpoint = None;
    }

    pub(super) fn lost(&mut self, on_completion: &mut OnCompletion<'_>) {
        self.requests.lost(on_completion);
    }
}

/// A response has come: a completion, and behind it the answer of a command that had no room for it
/// elsewhere.
fn respond(
    requests: &mut Requests,
    (slab, slot_bytes): (&Region, usize),
    message: &[u8],
    on_completion: &mut OnCompletion<'_>,
) -> Result<(), &'static str> {
    let (cqe, answer) = message.split_first_chunk().ok_or("a response that is too short")?;
    let cqe = Cqe::from_bytes(cqe);
    let (index, slot) =
        requests.find(cqe.cid).ok_or("a command identifier that is not in flight")?;
    if cqe.status.is_success() {
        let expected = slot.expected_bytes as usize;
        if !answer.is_empty() {
            if answer.len() > expected {
                return Err("more data than was asked for");
            }
            slot.keep(answer);
        } else if expected > 0 && slot.returns != Returns::Answer {
            let place = usize::from(index) * slot_bytes;
            slot.keep(&slab.read(place..place + expected));
        }
    }
    slot.data_out_sent_bytes = slot.data_out.len() as u32;
    match requests.respond(index, &cqe, on_completion) {
        true => Ok(()),
        false => Err("success before all data was transferred"),
    }
}
