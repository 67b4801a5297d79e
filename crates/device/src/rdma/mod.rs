//! RDMA with this machine's network cards: listeners, connecting, and the endpoints of connections.
//!
//! An [`Endpoint`] works like a [`fabric`](crate::fabric) endpoint: [works](Work) are posted, done in order, and
//! complete with later [events](Event). Data that it sends and reads goes through its own memory, which is registered
//! once. A peer gets the key of memory only if the [`Shape`] includes shared memory.
//!
//! The libraries, librdmacm and libibverbs, are loaded by the first listener or connection; nothing is linked.
//!
//! Unsafe code is in `sys` (the libraries' declarations) and `verbs` (owned wrappers of their objects).

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
