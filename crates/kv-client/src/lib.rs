//! A client of BPF-KV databases: it writes a database to a file or to a target's namespace, and looks up keys, ranges
//! and aggregates at a target, by pushdown or by plain reads. Keys in a file can also be looked up with a grant from
//! the grant daemon.
//!
//! [`bpfkv`] defines the format and the storage functions, and does no I/O. This crate carries out its reads through
//! [`bpfof_host`].

mod create;
mod error;
mod granted;
mod queries;
mod session;

pub use create::{create_file, create_on_target};
pub use error::{SessionError, WriteError, explain_command, explain_request};
pub use granted::GrantedFile;
pub use queries::Looked;
pub use session::{Session, connect};
