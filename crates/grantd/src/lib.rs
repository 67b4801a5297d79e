//! The grant daemon: lets processes without privileges run storage functions on exactly the files that they can open.
//!
//! # What it promises
//! An association is the protection domain, a connected queue the capability. For each client the daemon opens a
//! restricted association, whose queues run chains over mapped files and nothing else, and hands its lanes to the
//! client. A map is set only for a file that the client has proved to have open for reading. A map that can be used is
//! never wrong, whatever the client does: before the file's blocks can go to another file, the map is removed, and the
//! target has confirmed that no chain uses it any more. docs/grants.md says which files qualify, and what happens when
//! the daemon is killed, stopped or cut off.
//!
//! # How it works
//! - [`Daemon`] listens, and starts a `session` for each client on a thread of its own, so that no client waits for
//!   another. `quota` limits the resources of each user, `seldom` the log lines that clients cause. `closing` closes
//!   the sockets of clients that are turned away; `descriptors` compares the quotas with the process's limit of
//!   descriptors.
//! - `session` answers requests, and gives files back when their leases break. It never calls a file system that may
//!   not answer; `foreign` closes descriptors from clients, and finally their sockets, on a separate thread. The
//!   session sends the association's Keep Alives itself, so that a session that fails to check its leases loses its
//!   association at the target.
//! - `examine`, on another thread, examines descriptors: finds their device, then opens the file once more, leases it
//!   and maps it.
//! - `association`: commands to the target. `keepsake`: a second process, or systemd, that holds the leases if the
//!   daemon dies.
//!
//! # What it does not do
//! It reads no file, runs no chain and parses no function.

mod association;
mod closing;
mod config;
mod daemon;
mod descriptors;
mod examine;
mod foreign;
mod grants;
mod keepsake;
mod quota;
mod seldom;
mod session;
mod shared;

pub use config::{Config, ConfigError, Limits, Served};
pub use daemon::{Daemon, StartError};
pub use keepsake::{hold_leases, outlast_predecessor};

use std::time::Duration;

/// Keep-alive timeout of the associations: a target ends an association on which the daemon sends nothing for this
/// time.
pub const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// After this time every target has ended an association from which this daemon was cut off, even with different clock
/// rates and commands in progress.
const EXPIRED: Duration = Duration::from_secs(2 * KEEP_ALIVE.as_secs());
/// All leases are checked this often, even without a signal.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Least `fs.lease-break-time`. In the worst case a break begins right after a check of the leases, a command begins
/// soon after that and fails at its time limit, and then the association must still expire in time.
pub const LEASE_BREAK_TIME_MIN: Duration = Duration::from_secs(4 * KEEP_ALIVE.as_secs());
/// After this time an unanswered command is given up.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(7);
/// Longest wait for an answer of a target: the library detects a timeout up to an eighth late.
const ANSWERED: Duration = Duration::from_millis(COMMAND_TIMEOUT.as_millis() as u64 * 9 / 8);
