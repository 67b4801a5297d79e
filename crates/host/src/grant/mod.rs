//! Pushdown for processes without privileges: a daemon, `bpfof grantd`, has the association with the target, and grants
//! each process single files that the process can open.
//!
//! - [`protocol`]: the messages; [`PacketSocket`]: their transport, with descriptors; [`Credentials`]: the identity of
//!   the sender.
//! - [`PageWriter`], [`PageReader`]: the shared memory in which the daemon publishes which grants hold.
//! - [`GrantClient`]: the client's side of the connection. [`files`](crate::files) uses it for
//!   [`FileMaps::granted`](crate::files::FileMaps::granted).
//!
//! docs/grants.md describes which party is trusted with what.

mod client;
mod credentials;
mod error;
mod page;
pub mod protocol;
mod socket;

pub use client::GrantClient;
pub use credentials::Credentials;
pub use error::GrantError;
pub use page::{PageReader, PageWriter};
pub(crate) use socket::Ender;
pub use socket::{Packet, PacketSocket};
