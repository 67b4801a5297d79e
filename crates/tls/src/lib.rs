//! TLS 1.3 with pre-shared keys for NVMe/TCP: handshakes of both sides, and the records after them.
//!
//! # What it is
//! Each connection of an NVMe host, one per queue, may be a TLS 1.3 connection whose two ends share
//! a key, without certificates (NVMe/TCP 1.0 §3.6, RFC 8446). This crate performs the handshake
//! over a socket, and then hands the keys over: to the kernel, or to its own record layer.
//!
//! # How data flows through it
//! A blocking socket → [`accept`], which reads the ClientHello, asks a [`PskStore`] for the key
//! that it offers, and answers, or [`connect`] with a [`Psk`] → [`Secured`]: the peer's identity,
//! the cipher suite, and a [`TrafficKey`] for each direction. No byte after the handshake has been
//! read from the socket. Then one of these:
//!
//! - [`ktls::enable`]: the kernel seals sent data; an [`Opener`] opens received records.
//! - [`Sealer`]: plaintext → records at the end of a send buffer. [`Opener`]: records in a receive
//!   buffer → plaintext in the same buffer. Both do no I/O.
//!
//! # What it does not do
//! It does not derive keys of NVMe/TCP from configured ones, and knows no host names or rights: the
//! caller decides what an identity may do. It never changes the keys of a connection (KeyUpdate),
//! and ends the connection if the peer does, because Linux hosts cannot: when
//! [`Sealer::records_left`] reaches 0, a new connection should replace it. No certificates, no
//! resumption, no early data, no other version of TLS.
//!
//! The handshake is that of s2n-tls, the cryptography that of AWS-LC. No bytes of a peer make it
//! panic.

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
