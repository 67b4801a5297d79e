//! A command that has just ended, in the reactor's form: without text, so that its memory can be reused.

use super::hop_log::{HopLog, price_ns};
use super::record::CommandRecord;
use crate::connection::Connection;
use crate::metrics::Class;
use bpfof_chain::ChainError;
use bpfof_nvme::Status;

/// How a command has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Status(Status),
    Chain(ChainError),
}

/// The part that only chains have.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObservedChain {
    pub(crate) function: u32,
    pub(crate) function_name: String,
    pub(crate) hops: u32,
    pub(crate) units: u64,
    /// Whether `log` belongs to this chain.
    pub(crate) is_logged: bool,
    pub(crate) log: HopLog,
}

/// See the module. Times on the reactor's clock, in ns.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) class: Class,
    pub(crate) begun_ns: u64,
    pub(crate) ended_ns: u64,
    /// Time until the host had sent its data.
    pub(crate) data_ns: u64,
    /// Time without an arena.
    pub(crate) arena_ns: u64,
    /// It works on a file or a drive.
    pub(crate) is_of_device: bool,
    pub(crate) output_ns: Option<u64>,
    pub(crate) host: String,
    pub(crate) subsystem: String,
    pub(crate) peer: std::net::SocketAddr,
    pub(crate) queue: u16,
    pub(crate) nsid: u32,
    pub(crate) bytes: u64,
    pub(crate) outcome: Outcome,
    pub(crate) chain: ObservedChain,
}

impl Observed {
    /// Not filled yet.
    pub(crate) fn new() -> Observed {
        Observed {
            class: Class::Read,
            begun_ns: 0,
            ended_ns: 0,
            data_ns: 0,
            arena_ns: 0,
            is_of_device: false,
            output_ns: None,
            host: String::new(),
            subsystem: String::new(),
            peer: (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
            queue: 0,
            nsid: 0,
            bytes: 0,
            outcome: Outcome::Status(Status::SUCCESS),
            chain: ObservedChain::default(),
        }
    }

    /// Sets the host, the subsystem and the queue.
    pub(crate) fn set_connection(&mut self, connection: &Connection) {
        self.host.clear();
        self.subsystem.clear();
        if let Some(association) = connection.phase.association() {
            self.host.push_str(association.controller.host_nqn());
            self.subsystem.push_str(&association.subsystem.nqn);
        }
        (self.peer, self.queue) = (connection.ends.peer, connection.queue.id());
    }

    /// How long it took, in ns.
    pub(crate) fn duration_ns(&self) -> u64 {
        self.ended_ns.saturating_sub(self.begun_ns)
    }

    /// As a record with text, at this time.
    pub(crate) fn record(&self, reactor: usize, now_ns: u64) -> CommandRecord {
        let (chain, duration_ns) = (&self.chain, self.duration_ns());
        let own_ns = duration_ns.saturating_sub(self.arena_ns).saturating_sub(self.data_ns);
        let measured_ns = if chain.is_logged { chain.log.function_ns() } else { None };
        let device_ns = match (self.class, chain.is_logged) {
            (Class::Chain, true) => chain.log.device_ns(),
            (Class::Chain, false) => 0,
            _ if self.is_of_device => own_ns,
            _ => 0,
        };
        let device_ns = device_ns.min(own_ns);
        let function_ns = measured_ns.unwrap_or_else(|| price_ns(chain.units));
        let function_ns = function_ns.min(own_ns - device_ns);
        CommandRecord {
            reactor,
            begun_ns: self.begun_ns,
            age_ms: now_ns.saturating_sub(self.ended_ns) / 1_000_000,
            duration_ns,
            class: self.class,
            host: self.host.clone(),
            peer: self.peer.to_string(),
            queue: self.queue,
            subsystem: self.subsystem.clone(),
            nsid: self.nsid,
            function: (self.class == Class::Chain)
                .then(|| (chain.function_name.clone(), chain.function)),
            arena_ns: self.arena_ns,
            data_ns: self.data_ns,
            device_ns,
            function_ns,
            queued_ns: own_ns - device_ns - function_ns,
            output_ns: self.output_ns,
            bytes: self.bytes,
            hop_count: chain.hops,
            units: chain.units,
            outcome: match self.outcome {
                Outcome::Status(Status::SUCCESS) => "success".to_owned(),
                Outcome::Status(status) => status.to_string(),
                Outcome::Chain(error) => error.to_string(),
            },
            hops: if chain.is_logged { chain.log.records(self.begun_ns) } else { Vec::new() },
        }
    }
}
