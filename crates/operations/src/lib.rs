//! The operator's interfaces to a running target.
//!
//! - [`metrics`]: a target's counters, as OpenMetrics text.
//! - [`http`]: serves metrics and a live page, on threads of its own; one of them (`questions`) asks the reactors.
//! - [`control`]: answers requests on a Unix socket; [`client`] makes them; [`edit`] changes the namespaces of the
//!   configuration file; `tracing`: chains as they end, on the same socket.
//! - [`hand_over`]: passes the sockets to another process, which replaces the target.
//!
//! # What this crate does not do
//!
//! It counts nothing, and keeps no history: all its data comes from
//! [`Server::report`](bpfof_controller::Server::report), and the programs that collect it keep the history.

pub mod client;
pub mod control;
pub mod edit;
pub mod hand_over;
pub mod http;
pub mod metrics;
pub mod names;

mod questions;
mod rpc;
mod tracing;

use bpfof_controller::{CommandRecord, NoReport, TargetReport};
use std::sync::Arc;
use std::time::Duration;

/// How long reactors may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks a target for its report.
pub type Reporter = Arc<dyn Fn(Duration) -> Result<TargetReport, NoReport> + Send + Sync>;

/// Asks a target for its slowest commands.
pub type Slowest = Arc<dyn Fn(Duration) -> Result<Vec<CommandRecord>, NoReport> + Send + Sync>;
