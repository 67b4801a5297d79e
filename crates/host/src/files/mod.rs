//! Chains over real files, safe while the files change.
//!
//! [`FileMaps`] opens files ([`PushdownFile`]) and keeps their maps at the target; a
//! [`PushdownReader`] runs chains over them ([`PushdownReader::read_pushdown`], the papers' call):
//! at the target while the maps hold, and otherwise on this machine, with the same function and the
//! same answer: on an io_uring where there is no target, and over plain reads. What is guaranteed is in docs/files.md.
//!
//! # How it works
//! - `nvme`: a namespace of this machine in place of a target.
//! - `device`, `extents`: where a file lies in the namespace, from sysfs and FIEMAP.
//! - `snapshot`: that, together with what tells whether it still holds.
//! - `lease`: with a read lease, who wants to change a file waits for the chains that read it.
//! - `entry`: a file, and BPF-oF's algorithms 1 and 2, before and after each chain.
//! - `maps`, `keeper`: all files, and the thread that maps them and gives leases back.
//! - `call`, `reader`, `function`: chains, by one of three executors.
//! - `local`, `direct`, `fallback`: two of them, on this machine.
//! - `plain`: reads without a function.
//! - `sys`: the system calls.

mod call;
mod device;
mod direct;
mod entry;
mod error;
mod extents;
mod fallback;
mod function;
mod keeper;
mod lease;
mod local;
mod maps;
mod nvme;
mod plain;
mod reader;
mod snapshot;
mod sys;

pub use call::{Executor, FirstRead, Policy, ReadCompletion, ReadError, ReadInfo, ReadPushdown};
pub use device::NamespaceDevice;
pub use entry::PushdownFile;
pub use error::MapRefusal;
pub use function::StorageFunction;
pub use maps::FileMaps;
pub use nvme::NvmeNamespace;
pub use plain::FileRead;
pub use reader::PushdownReader;
pub use snapshot::{FileLayout, file_layout};
