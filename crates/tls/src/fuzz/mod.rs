//! Entry points for fuzzing: they assert properties that must hold for any input. Unit tests call them too.
//!
//! [`client_hello`] reads ClientHellos alone. [`handshake`] sends them to a server, from a client that may know the key
//! and still send invalid messages. [`records`] tests the records after a handshake, from an attacker between the two
//! ends and from a peer with the right key.

mod client_hello;
mod handshake;
mod hello;
mod input;
mod records;

pub use client_hello::client_hello;
pub use handshake::handshake;
pub use records::records;
