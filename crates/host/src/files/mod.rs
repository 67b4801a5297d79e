//! Chains over real files.
//!
//! - `device`, `extents`: where a file lies in a namespace, from sysfs and FIEMAP.
//! - `snapshot`: that, together with what tells whether it still holds.
//! - `sys`: the system calls.
//!
//! What is guaranteed while files change is in docs/files.md.

mod device;
mod error;
mod extents;
mod snapshot;
mod sys;

pub use device::NamespaceDevice;
pub use error::MapRefusal;
pub use snapshot::{FileLayout, file_layout};
