//! Entry points for fuzzing, which tests also run so that they keep working.
//!
//! [`connection`] plays a host that follows no rules, on an admin connection and an I/O connection over memory
//! namespaces. A host's receiver parses everything that the target sends, so that PDUs which break the protocol are
//! found, too.
//!
//! [`admin`] plays hosts that follow the rules of the transport, so that each command can be checked: it is answered
//! once, with no more data than it announced. [`config`] reads configurations.

mod admin;
mod authentication;
mod config;
mod connection;
mod input;
mod object;

pub use admin::admin;
pub use config::config;
pub use connection::connection;
