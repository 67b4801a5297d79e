//! Entry points for fuzzing, also run by tests so that they stay green.
//!
//! [`connection`] plays a host that obeys no rules against an admin connection and an I/O
//! connection over memory namespaces. A host's receiver reads all that the target answers, so that
//! a PDU which breaks the protocol is found too.
//!
//! [`admin`] plays hosts that keep the rules of the transport, so that what is known of each command
//! can be checked: it is answered once, with no more data than it announced. [`config`] reads
//! configurations.

mod admin;
mod authentication;
mod config;
mod connection;
mod input;
mod object;

pub use admin::admin;
pub use config::config;
pub use connection::connection;
