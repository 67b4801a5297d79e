//! TLS 1.3 with pre-shared keys for NVMe/TCP: handshakes of both sides, and the records behind
//! them.
//!
//! # What it is
//! Each connection of an NVMe host, queue by queue, may be a TLS 1.3 connection whose two ends have
//! one key in common, without certificates (NVMe/TCP 1.0 §3.6, RFC 8446). This crate shakes hands
//! over a socket, and then gives the keys away: to the kernel, or to records of its own.
//!
//! # How data flows through it
//! A blocking socket → [`accept`], which reads the ClientHello, asks a [`PskStore`] for the key
//! that it offers and answers, or [`connect`] with a [`Psk`] → [`Secured`]: who the peer is, the
//! cipher suite, and a [`TrafficKey`] for each direction, while the socket has not been read a byte
//! too far. Then one of the two:
//!
//! - [`ktls::enable`]: the kernel seals what is sent; what is received is for an [`Opener`].
//! - [`Sealer`]: plaintext → records at the end of a send buffer. [`Opener`]: records in a receive
//!   buffer → plaintext in the same buffer. Both without I/O.
//!
//! # What it does not do
//! It does not derive keys of NVMe/TCP from configured ones, and knows no host names or rights:
//! what an identity may do is for the caller to say. It never changes the keys of a connection
//! (KeyUpdate), and ends it when the peer does, because hosts of Linux cannot: after
//! [`Sealer::records_left`] a new connection takes its place. No certificates, no resumption, no
//! early data, no other version of TLS.
//!
//! The handshake is s2n-tls's, the cryptography AWS-LC's. No bytes of a peer make it panic.

mod cipher;
mod client_hello;
mod content_type;
mod error;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod handshake;
mod identity;
mod keys;
pub mod ktls;
mod records;
mod serialized;
mod wire;

pub use client_hello::{ClientHelloError, OFFERS_MAX, OfferedPsk, offered_psks};
pub use error::{Alert, HandshakeError};
pub use handshake::{accept, connect, init};
pub use identity::{
    IDENTITY_MAX_BYTES, Psk, PskError, PskHash, PskStore, SECRET_MAX_BYTES, SECRET_MIN_BYTES,
};
pub use keys::{IV_BYTES, KeyError, Secured, Side, Suite, TrafficKey};
pub use records::{
    CONTENT_MAX_BYTES, HEADER_BYTES, KEY_RECORDS_MAX, Opened, Opener, RECORD_MAX_BYTES,
    RECORD_OVERHEAD_BYTES, RecordError, Sealer,
};
