//! Authentication of NVMe over Fabrics: keys, TLS identities and DH-HMAC-CHAP, without sockets.
//!
//! # What it is
//! The keys that are exchanged as text, for TLS ([`ConfiguredPsk`]) and for DH-HMAC-CHAP ([`DhchapKey`]); the
//! identities and keys for TLS handshakes that are derived from the former ([`TlsIdentity`]); and both sides of
//! DH-HMAC-CHAP ([`dhchap`]). Each item names the section that defines it: "NVMe Base 2.0", "NVMe/TCP 1.0", or an RFC.
//!
//! # How data flows through it
//! Configuration: text → key → for one host and one subsystem ([`Names`]) identities and keys for TLS, or transformed
//! secrets in a [`ControllerConfig`](dhchap::ControllerConfig) or [`HostConfig`](dhchap::HostConfig). A queue: the data
//! of Authentication Send goes into a [`ControllerAuth`](dhchap::ControllerAuth), the data of Authentication Receive
//! comes out of it. Calculations that take milliseconds come out as [`Work`](dhchap::Work), for a separate thread.
//! [`HostAuth`](dhchap::HostAuth) is the host's side.
//!
//! # What it does not do
//! No sockets, clocks or threads, and no files but those with keys ([`key_file`]); no TLS. The caller decides which
//! host has which keys, what an authenticated host may do, and how often unauthenticated hosts may try. The crate does
//! not offer secure channel concatenation (TP8018). Secrets are overwritten on drop and never shown, and the time of
//! comparisons and powers does not depend on them. But bases and powers of an exchange that the arithmetic library
//! leaves in freed memory are not overwritten. No bytes of a peer make it panic.
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
