//! What an operator sees and asks of a running target.
//!
//! - [`metrics`]: what a target counts, as OpenMetrics text.
//! - [`http`]: serves it, on threads of its own, of which one (`questions`) asks.
//! - [`control`]: answers requests on a Unix socket; [`client`] makes them; [`edit`] changes what the configuration
//!   file says of namespaces; `tracing`: chains as they end, on the same socket.
//! - [`hand_over`]: another process goes on in the target's place.
//!
//! # What this crate does not do
//!
//! It counts nothing, and keeps nothing of the past: all it tells comes from
//! [`Server::report`](bpfof_controller::Server::report), and whoever collects it has the history.

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

/// Time that reactors get to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks a target for what it has to tell.
pub type Reporter = Arc<dyn Fn(Duration) -> Result<TargetReport, NoReport> + Send + Sync>;

/// Asks a target which commands were slowest.
pub type Slowest = Arc<dyn Fn(Duration) -> Result<Vec<CommandRecord>, NoReport> + Send + Sync>;
