//! Chains over real files, safe while the files change.
//!
//! [`FileMaps`] opens files ([`PushdownFile`]) and keeps their maps at the target; a
//! [`PushdownReader`] runs chains over them ([`PushdownReader::read_pushdown`], the papers' call):
//! at the target while the maps hold, and otherwise on this machine, with the same function and the same answer: on an
//! io_uring if there is no target, and otherwise over plain reads. docs/files.md states the guarantees.
//!
//! # How it works
//! - `nvme`: a namespace of this machine in place of a target.
//! - `kernel`: the target of a file, found from the kernel's own NVMe/TCP host.
//! - `device`, `placement`, `extents`, `layout`: where a file lies in the namespace, from sysfs, device-mapper tables
//!   (`device_mapper`) and FIEMAP, and whether that has changed.
//! - `lease`, `leased_file`: read leases, which make a writer of a file wait for the chains that read it.
//! - `access`, `open_page`: how a file is opened, and kept open without a descriptor.
//! - `mapped_file`, `file`: a file with its map, and BPF-oF's algorithms 1 and 2, run before and after each chain.
//! - `maps`, `shared`, `keeper`: the files of an association, and the thread that maps them and
//!   releases leases; `grants`: that thread if the grant daemon makes the maps.
//! - `call`, `function`: the parameters of a chain and its result.
//! - `reader`, `chains`, `flights`: the states of chains from the call to the answer, and the pinned files of chains
//!   that start together.
//! - `executor`: the trait of what runs chains: `target`, `local` (direct reads, or NVMe
//!   passthrough commands), `fall_back` (plain reads, by `plain_chain`).
//! - `target_lane`, `shared_lanes`: the connections of readers, their own or one for each processor.
//! - `batch_read`: reads without a function.
//! - `sys`: the system calls.

mod access;
mod batch_read;
mod call;
mod chains;
mod device;
mod device_mapper;
mod direct;
mod error;
mod executor;
mod extents;
mod fall_back;
mod file;
mod flights;
mod function;
mod grants;
mod keeper;
mod kernel_host;
mod layout;
mod lease;
mod leased_file;
mod local;
mod mapped_file;
mod maps;
mod nvme;
mod open_page;
mod placement;
mod plain_chain;
mod reader;
mod shared;
mod shared_lanes;
mod sys;
mod target;
mod target_lane;

pub use batch_read::FileRead;
pub use call::{
    Executor, FirstRead, Policy, ReadCompletion, ReadEntry, ReadError, ReadInfo, ReadPushdown,
    ReadPushdownMany,
};
pub use device::NamespaceDevice;
pub use error::MapRefusal;
pub use file::PushdownFile;
pub use function::StorageFunction;
pub use kernel_host::KernelNamespace;
pub use layout::{FileLayout, FileSystem, file_layout, file_layout_within};
pub use leased_file::{LeasedFile, lease_break_time};
pub use local::{kernel_domain, load_into_kernel};
pub use maps::FileMaps;
pub use nvme::NvmeNamespace;
pub use plain_chain::{PlainCall, PlainChains, PlainDone, PlainError, PlainRead};
pub use reader::PushdownReader;
pub(crate) use sys::spawn;
pub use sys::{BreakSignal, write_back};
