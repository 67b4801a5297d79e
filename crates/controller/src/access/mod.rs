//! Access control: the rules of the configuration, and the rights that they give to hosts.
//!
//! - [`rights`]: what a host may do, one bit each.
//! - [`rules`]: the rights of each host in each subsystem; [`Access`] is the result for one association, determined
//!   when it connects.
//! - [`handshake_key`]: the TLS key of a connection, until Connect.
//! - [`denials`]: counts refusals of hosts by reason.

mod denials;
mod handshake_key;
mod rights;
mod rules;

pub(crate) use denials::{Denials, HandshakeCounts, Handshaken, Reason};
pub(crate) use handshake_key::HandshakeKey;
pub use rights::{Rights, UnknownRight};
pub(crate) use rules::{Access, Identity, Rules};
pub use rules::{HostKeys, HostRule};
