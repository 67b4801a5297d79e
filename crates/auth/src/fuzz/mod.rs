//! Entry points for fuzzing: they assert properties that must hold for any input. Unit tests call them too.
//!
//! [`messages`] and [`keys`] parse untrusted messages and keys. [`controller`] and [`host`] run one side of a queue
//! against an attacker at the other end, who may know every secret or none. A model reads the same bytes and predicts
//! the result: it parses messages by the offsets of NVMe Base 2.0 §8.13 and calculates responses on its own. It shares
//! only the hash functions and the powers of a group with the code under test, and these have known-answer tests.

mod controller;
mod host;
mod input;
mod keys;
mod messages;
mod model;

pub use controller::controller;
pub use host::host;
pub use keys::keys;
pub use messages::messages;
