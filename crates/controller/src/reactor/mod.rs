//! Reactors: each is one thread with its connections, its chains and its ring.
//!
//! What a reactor does is without threads, sockets and a ring: these are behind [`Io`], which the real
//! ring ([`uring`]), the simulation and the fuzzer's rig each implement. A turn: it [begins](turn::begin);
//! what others have completed comes in ([`completions`]); connections are [served](serve::work) in the
//! order of their shares until the turn's time is over; at its [end](turn::end) each sends what it has to
//! say, with one send, and receives again.
//!
//! - [`state`]: what a reactor has; `table`: its connections.
//! - [`upkeep`]: how connections come, how long they stay; [`closing`]: how they go.
//! - [`chains`]: chains that go on, end, or give way.

pub(crate) mod chains;
pub(crate) mod closing;
pub(crate) mod completions;
pub(crate) mod serve;
pub(crate) mod state;
pub(crate) mod table;
pub(crate) mod turn;
pub(crate) mod upkeep;
pub(crate) mod uring;

mod io;

pub(crate) use io::{Asked, Link, Message};
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use io::{Fence, Io, Shut};
