//! Who may connect and do what: rules of the configuration, and the rights that they give.
//!
//! - [`rights`]: what a host may do, one bit each.
//! - [`rules`]: which host has which rights in which subsystem; [`Access`] is what comes of that for one
//!   association, taken when it connects.
//! - [`handshake_key`]: the TLS key that a host has proved to have.
//! - [`denials`]: how often hosts were refused something, by reason.

mod denials;
mod handshake_key;
mod rights;
mod rules;

pub(crate) use denials::{Denials, HandshakeCounts, Handshaken, Reason};
pub(crate) use handshake_key::HandshakeKey;
pub use rights::{Rights, UnknownRight};
pub(crate) use rules::{Access, Identity, Rules};
pub use rules::{HostKeys, HostRule};
