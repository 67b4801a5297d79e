//! RDMA by the verbs of this machine's network cards: listening, and one end of each connection.
//!
//! An [`Endpoint`] has the shape of a [`fabric`](crate::fabric)'s: [works](Work) are posted, done in order,
//! and end by [events](Event) that come later. What it sends and what it reads goes through memory of its
//! own that is registered once; the peer names memory of its own by keys, and never gets one of ours.
//!
//! The libraries, librdmacm and libibverbs, are loaded when somebody listens; nothing is linked.
//!
//! Unsafe code is in `sys` (what the libraries look like) and `verbs` (their values with owners).

mod endpoint;
mod listener;
mod memory;
mod sys;
mod verbs;

pub use crate::fabric::{Event, Work};
pub use endpoint::{Endpoint, Shape};
pub use listener::{Listener, Request};
