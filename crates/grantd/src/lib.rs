//! The grant daemon: processes without privileges push storage functions down into exactly the files that
//! they can open.
//!
//! # What it promises
//! An association is the protection domain, a connected queue the capability. For each client the daemon
//! opens a restricted association, whose queues run chains over mapped files and nothing else, and hands
//! its lanes to the client. A map is set only for a file that the client has shown to be open for
//! reading, and is wrong at no time while it can be used, whatever the client does: it is removed, and the
//! target has confirmed that nothing reads by it any more, before the file's blocks can go to another
//! file. docs/grants.md says which files that takes, and what happens when the daemon is killed, stopped
//! or cut off.
//!
//! # How it works
//! - [`Daemon`] listens, and starts a `session` for each client, on a thread of its own: nobody waits for
//!   another client. `quota` bounds what one user has, `seldom` what is logged because of clients, and `closing`
//!   has the sockets of those that are turned away; `descriptors` compares quotas with what the process may have.
//! - `session` answers requests and gives files back when their leases break. Nothing that it does asks a
//!   file system that may not answer; `foreign` closes what clients send, and at last their sockets, on a
//!   thread of its own. It sends the association's Keep Alives itself: a session that does not look at its
//!   leases loses its association at the target.
//! - `examine`, on another thread, looks at descriptors: where they are, then the file is opened once more,
//!   leased and mapped.
//! - `association`: what is asked of the target. `keepsake`: who holds the leases if the daemon dies.
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

/// Keep-alive timeout of the associations: a target gives up one of a daemon that it has not heard of for
/// so long.
pub const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// After this no target has an association any more that this daemon was cut off from, clocks that tick
/// differently and commands under way included.
const EXPIRED: Duration = Duration::from_secs(2 * KEEP_ALIVE.as_secs());
/// All leases are looked at so often, even if no signal has come.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// `fs.lease-break-time` must be so long: the leases are looked at, a command begins soon after, fails its
/// time limit later, and the association expires; a break may have begun right after the look.
pub const LEASE_BREAK_TIME_MIN: Duration = Duration::from_secs(4 * KEEP_ALIVE.as_secs());
/// After this a command that a target does not answer is given up.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(7);
/// Longest wait for an answer of a target: the library notices an eighth late that the time is over.
const ANSWERED: Duration = Duration::from_millis(COMMAND_TIMEOUT.as_millis() as u64 * 9 / 8);
