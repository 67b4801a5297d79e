//! Several paths to one subsystem: an association through each portal of the address, and the states of the paths.
//!
//! # How it works
//! - `keeper`: a thread for each path, which connects it, keeps it alive, follows changes of its ANA state, and
//!   reconnects it when it is lost.
//! - `core`: the existing associations, shared by all other modules.
//! - `state`: the state of each path and the choice of the best one, without connections.
//! - `owner`, `intent`, `filler`: functions and maps, which are set up on each association.
//! - `ledger`, `kept`: the requests of a lane, kept until they are completed to the caller, and the
//!   fate of requests that a path has not carried out.
//! - `lane`: a [`Lane`](crate::Lane) that can switch to another path.
//!
//! A path is lost as soon as one of its connections is. Then all of them are closed, so that the target receives
//! nothing more from this host on that association: it ends the association when the keep-alive timeout has passed, or
//! earlier if it detects the loss. docs/failover.md says which requests are sent again, and when.

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
