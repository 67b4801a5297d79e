//! Entry points for fuzzing: they assert what must hold for any bytes. Unit tests call them too.
//!
//! [`messages`] and [`keys`] read what others have written. [`controller`] and [`host`] play one side
//! of a queue against an attacker at the other end, who may know every secret or none. A model reads
//! the same bytes and says what must come of them: it parses messages by the offsets of NVMe Base 2.0
//! §8.13 and calculates responses on its own, so that it shares with the code under test only the hash
//! functions and the powers of a group, which have known answers.

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
