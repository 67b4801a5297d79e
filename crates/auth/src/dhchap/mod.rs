//! DH-HMAC-CHAP: authentication of a queue after Connect (NVMe Base 2.0 §8.13).
//!
//! ```text
//! host                                   controller
//!   Negotiate  hashes, groups        →
//!                                    ←   Challenge  hash, group, S1, C1, g^x
//!   Reply      S2, R1, C2, g^y       →
//!                                    ←   Success1   R2
//!   Success2   (if it challenged)    →
//! ```
//! The host sends messages by Authentication Send and fetches them by Authentication Receive. [`ControllerAuth`] and
//! [`HostAuth`] are the two sides of one queue.

mod algorithms;
mod controller;
mod group;
mod host;
pub mod message;
pub(crate) mod primes;
mod refusal;
mod response;
mod work;

pub use algorithms::{Algorithms, Authentication};
pub use controller::{AllocationTooSmall, Answer, ControllerAuth, RUN_MAX_US, Step, Then};
pub use group::{Group, KeyPair};
pub use host::{HostAuth, HostConfig, HostError, HostStep, RECEIVE_BYTES};
pub use refusal::Refusal;
pub use work::{ControllerConfig, Done, Work};
