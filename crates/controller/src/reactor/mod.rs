//! Reactors: each is one thread with its connections, its chains and its ring.
//!
//! The code of a reactor uses no threads, sockets or ring directly: these are behind [`Io`], which the real ring
//! ([`uring`]), the simulation and the fuzzer's rig each implement. A turn [begins](turn::begin); completions and
//! messages come in ([`completions`]); connections are [served](serve::work) in the order of their shares until the
//! turn's time is over; at its [end](turn::end) each connection sends its answers with one send, and receives again.
//!
//! - [`state`]: the state of a reactor; `table`: its connections.
//! - [`upkeep`]: adopts connections and checks them periodically; [`closing`]: closes them; [`leaving`]: drops removed
//!   namespaces.
//! - [`chains`]: continues, ends and suspends chains.
//! - [`mailbox`]: what other threads hand to a reactor; `turnover`: the time for connections that come and go.
//! - `prices`: charges work whose price was too low.

pub(crate) mod chains;
pub(crate) mod closing;
pub(crate) mod completions;
pub(crate) mod mailbox;
pub(crate) mod serve;
pub(crate) mod state;
pub(crate) mod table;
pub(crate) mod turn;
pub(crate) mod upkeep;
pub(crate) mod uring;

mod io;
mod leaving;
mod prices;
mod turnover;
mod waiting_files;

pub(crate) use io::{Asked, Link, Message};
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use io::{Fence, Io, Shut};
