//! RDMA by the verbs of this machine's network cards: listening, connecting, and one end of each connection.
//!
//! An [`Endpoint`] has the shape of a [`fabric`](crate::fabric)'s: [works](Work) are posted, done in order,
//! and end by [events](Event) that come later. What it sends and what it reads goes through memory of its
//! own that is registered once. A peer gets the key of memory only where a [`Shape`] has some for it.
//!
//! The libraries, librdmacm and libibverbs, are loaded when somebody listens or connects; nothing is linked.
//!
//! Unsafe code is in `sys` (what the libraries look like) and `verbs` (their values with owners).

mod connector;
mod endpoint;
mod listener;
mod memory;
mod sys;
mod verbs;
mod words;

pub use crate::fabric::{Event, Work};
pub use connector::ConnectError;
pub use endpoint::{Endpoint, Shape};
pub use listener::{Listener, Request};
pub use words::words;
