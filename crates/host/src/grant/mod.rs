//! Pushdown for processes without privileges: a daemon, `bpfof grantd`, has the association with the
//! target, and grants them single files that they can open.
//!
//! - [`protocol`]: the messages; [`PacketSocket`]: how they travel, with descriptors; [`Credentials`]: who sends
//!   them.
//! - [`PageWriter`], [`PageReader`]: the memory by which the daemon tells which grants hold.
//! - [`GrantClient`]: what a process asks the daemon for. [`files`](crate::files) does that for
//!   [`FileMaps::granted`](crate::files::FileMaps::granted).
//!
//! docs/grants.md says who is trusted with what.

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
