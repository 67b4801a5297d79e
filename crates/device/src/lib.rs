//! Storage of namespaces, and the ring on which a reactor does its I/O.
//!
//! - [`Ring`]: io_uring, which owns every buffer while the kernel may touch it. Sockets and files of a reactor share
//!   one ring, so that there is one place to wait. The host's local executor has one too.
//! - [`MemoryNamespace`]: a namespace in memory: private memory, or that of a file on tmpfs. Its operations are copies;
//!   a [`DelayQueue`] says when each is due, so that a latency model can make it behave like a device.
//! - [`FileNamespace`]: a namespace in a file or on a block device, opened for direct I/O where the file system allows
//!   it. [`Volume`]: one namespace over several of these, concatenated or striped. The ring takes an operation on
//!   several parts as one operation, and works on the parts concurrently.
//! - [`NvmeDevice`], [`NvmeDrive`], [`NvmeRing`]: an NVMe namespace of this machine, accessed by NVMe commands from
//!   user space.
//! - [`xrp`]: chains in the kernel, run by the module in `kernel/`.
//! - [`fabric`]: messages and registered memory between two ends in one process, as with RDMA.
//! - [`rdma`]: the same between machines, over network cards.
//! - [`IoBuffer`]: page-aligned memory for direct I/O.
//!
//! # What this crate does not do
//!
//! It knows no NVMe commands, except those that [`NvmeRing`] sends to drives, and no chains: the controller decides
//! what to read and when.
//!
//! # Unsafe code
//!
//! Only in `ring`, `nvme`, `xrp`, `rdma`, `buffer`, `memory`, `lost_writes`, and in `gather_buffer`, which must be
//! `Send`.

mod buffer;
mod delay;
mod drive;
pub mod fabric;
mod file;
mod gather_buffer;
#[cfg(test)]
mod loop_device;
mod lost_writes;
mod memory;
mod nvme;
pub mod rdma;
mod ring;
#[cfg(test)]
#[path = "../../bpfof/tests/skip/mod.rs"]
mod skip;
mod volume;
pub mod xrp;

pub use buffer::IoBuffer;
pub use delay::{DelayQueue, LatencyModel};
pub use drive::NvmeDrive;
pub use file::{FileError, FileNamespace, Lock, direct_block_bytes};
pub use gather_buffer::Outgoing;
pub use memory::MemoryNamespace;
pub use nvme::{DriveBlocks, IDENTIFY_BYTES, NvmeDevice, NvmeRead, NvmeRing};
pub use ring::{Buffer, Completion, Ring, RingError, RingFile};
pub use volume::{Layout, Part, Volume};
