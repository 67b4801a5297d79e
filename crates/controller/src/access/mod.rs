//! Access control: the rules of the configuration, and the rights that they give to hosts.
//!
//! - [`rights`]: what a host may do, one bit each.
//! - [`rules`]: the rights of each host in each subsystem; [`Access`] is the result for one association, determined
//!   when it connects.
//! - [`denials`]: counts refusals of hosts by reason.

mod denials;
mod rights;
mod rules;

pub(crate) use denials::{Denials, HandshakeCounts, Handshaken, Reason};
pub use rights::{Rights, UnknownRight};
pub(crate) use rules::{Access, Rules};
pub use rules::{HostKeys, HostRule};
