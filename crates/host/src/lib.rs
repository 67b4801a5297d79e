//! The host side of bpf-of: an NVMe/TCP initiator in user space.
//!
//! # What it is
//! [`Controller`] is an association with a target: one admin queue, with blocking calls. It opens
//! [`Lane`]s: each is one I/O queue, its connection and its buffers, meant for one thread. A
//! lane takes ordinary reads and writes, and chains of reads that the target follows by itself ([`Request::Pushdown`]),
//! one or many at once ([`Lane::pushdown_many`]). [`SharedLane`] lets any number of threads share one lane. No kernel
//! module, no root, no huge pages.
//!
//! # How data flows through it
//! [`Lane::submit`] encodes a request behind those that are already waiting;
//! [`Lane::flush_doorbell`] sends them all in one system call; [`Lane::poll`] and [`Lane::wait`]
//! receive all completions that have arrived in one system call and hand out each of them, its data
//! still in the receive buffer where that is possible. [`Initiator`] is the protocol without a
//! socket: bytes in, completions and bytes out.
//!
//! [`files`] builds on this: chains over real files, safe while the files change. They run on this
//! machine where the target cannot run them.
//!
//! An address may name several portals ([`TargetUrl`]). `Controller` then has an association through each of them,
//! lanes switch to another path when theirs is lost, and lost paths are reconnected (docs/failover.md).
//!
//! # What it does not do
//! It does not cache. With one portal it does not reconnect by itself: an error says what happened, and
//! [`Controller::reconnect`] and [`Lane::reconnect`] connect again. With one portal, the only requests that it repeats
//! are chains that the target has interrupted, and only in blocking calls ([`CommandError::is_interrupted`]). Its only
//! threads keep associations alive ([`Options::keep_alive`]), with several portals one for each path; [`files`] also
//! has a thread that keeps maps, and threads that connect shared lanes. The host's NQN and keys ([`Credentials`]) come
//! from the address or the [`Options`]; a [`HostsFile`] is used only if the program asks for it. Every byte from a
//! target may be hostile: a protocol violation ends the connection with a typed error, and each request in flight ends
//! exactly once.

mod admin;
mod association;
mod authentication;
mod connect;
mod controller;
mod credentials;
mod deadline;
mod doorbell;
mod error;
mod file_map;
pub mod files;
mod function_maps;
mod functions;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod grant;
mod handed_lane;
mod hosts_file;
mod installed;
mod interrupted;
mod lane;
mod lane_plan;
mod many;
mod map_identity;
mod namespace;
mod options;
mod paths;
mod queue;
mod queue_ids;
mod request;
mod requests;
mod several;
mod shared;
mod transport;
mod url;
mod vectors;

pub use controller::Controller;
pub use credentials::{Credentials, KeyFiles};
pub use doorbell::Caravan;
pub use error::{CommandError, Error, LostReason, RequestError, SubmitError, Violation};
pub use function_maps::{FunctionMap, MapEntries};
pub use functions::{ForeignFunction, FunctionId};
pub use handed_lane::{HandedLane, STATE_MAX_BYTES};
pub use hosts_file::HostsFile;
pub use lane::{ChainInfo, Lane};
pub use many::{ManyEnd, PushdownMany};
pub use namespace::NamespaceInfo;
pub use options::Options;
pub use paths::{PathInfo, PathState};
pub use request::{Completion, Done, PushdownCall, PushdownVectorCall, Request};
pub use requests::InitiatorConfig;
pub use shared::{Answer, SharedLane, SharedLaneCounters, Urgency};
pub use transport::Connector;
pub use transport::tcp::Initiator;
pub use url::{DEFAULT_NSID, PORTALS_MAX, Portal, TargetUrl, Transport, UrlError};

pub use bpfof_nvme::vendor_specific::{
    Extent, FileMapObject, FileVersion, FirstRead, FirstReads, FunctionReportEntry, MapAddress,
    MapChange, PushdownLimits, VectorAnswer, VectorArguments, VectorChain, VectorRecord,
};
pub use bpfof_nvme::{Cqe, Sqe, Status};
