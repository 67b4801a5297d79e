//! Several paths to one subsystem: an association by each portal of the address, and what is known of
//! them.
//!
//! # How it works
//! - `keeper`: a thread for each path connects it, keeps it alive, hears of changes of its ANA state, and
//!   connects it again when it is lost.
//! - `core`: the associations that there are, for all of these.
//! - `state`: what is known of each path and which is the best, without connections.
//! - `owner`, `intent`, `filler`: functions and maps, which each association gets.
//! - `ledger`, `kept`: the requests of a lane, kept until their ends are told, and what becomes of
//!   one that a path has not carried out.
//! - `lane`: a [`Lane`](crate::Lane) that goes on by another path.
//!
//! A path is lost as soon as one of its connections is. Then all of them are ended, so that
//! from there on the target hears nothing from this host on that association: it gives it up when its
//! keep-alive timeout has passed, if it has not noticed before. What may be done when is in docs/failover.md.

mod core;
mod filler;
mod info;
mod intent;
mod keeper;
mod kept;
mod lane;
mod ledger;
mod owner;
mod state;
mod terms;

pub use info::PathInfo;
pub use state::PathState;

pub(crate) use lane::OnPaths;
pub(crate) use owner::Owner;
