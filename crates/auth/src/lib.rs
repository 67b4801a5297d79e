//! Authentication of NVMe over Fabrics: keys, TLS identities and DH-HMAC-CHAP, without sockets.
//!
//! # What it is
//! The keys that are exchanged as text, for TLS ([`ConfiguredPsk`]) and for DH-HMAC-CHAP
//! ([`DhchapKey`]); what a TLS handshake needs of the former ([`TlsIdentity`]); and both sides of
//! DH-HMAC-CHAP ([`dhchap`]). Each item names the section that defines it: "NVMe Base 2.0",
//! "NVMe/TCP 1.0", or an RFC.
//!
//! # How data flows through it
//! Configuration: text → key → for one host and one subsystem ([`Names`]) identities and keys for
//! TLS, or transformed secrets in a [`ControllerConfig`](dhchap::ControllerConfig) or
//! [`HostConfig`](dhchap::HostConfig).
//! A queue: the data of Authentication Send goes into a
//! [`ControllerAuth`](dhchap::ControllerAuth), that of Authentication Receive comes out of it. What
//! takes milliseconds comes out as [`Work`](dhchap::Work), for a thread that serves nobody else.
//! [`HostAuth`](dhchap::HostAuth) is the other side.
//!
//! # What it does not do
//! No sockets, clocks or threads, and no files but those with keys ([`key_file`]); no TLS. Which host has which keys, and what an authenticated
//! host may do, is for the caller to say; so are limits on how often strangers may try. The crate does
//! not offer secure channel concatenation (TP8018). Secrets are overwritten when they are dropped, are
//! never shown, and take part in comparisons and powers whose time does not depend on them; but what
//! the arithmetic library leaves behind in freed memory, the bases and powers of an exchange, is not
//! overwritten. No bytes of a peer make it panic.
#![forbid(unsafe_code)]

pub mod dhchap;
mod dhchap_key;
mod error;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod hash;
pub mod key_file;
mod key_text;
mod names;
mod psk;
mod secret;
#[cfg(test)]
mod vectors;

pub use dhchap_key::DhchapKey;
pub use error::{
    GroupValueError, IdentityTooLong, KeyError, KeyKind, KeyProblem, MessageError, NameError,
    NameKind, RandomError,
};
pub use hash::Hash;
pub use key_file::KeyFileError;
pub use names::Names;
pub use psk::{ConfiguredPsk, Derivation, IdentityVersion, PskHash, TlsIdentity};
pub use secret::Secret;
