//! What a namespace is made of, and the ring that a reactor does its I/O on.
//!
//! - [`Ring`]: io_uring, owning every buffer while the kernel may touch it. Sockets and files of a
//!   reactor share one, so that there is one place to wait. The host's local executor has one too.
//! - [`MemoryNamespace`]: a namespace in memory, of its own or that of a file on tmpfs. Its
//!   operations are copies; a [`DelayQueue`] says when each is due, so that a latency model can make
//!   it behave like a device.
//! - [`FileNamespace`]: a namespace in a file or on a block device, opened for direct I/O where the
//!   file system allows it. [`Volume`]: one in several of them, behind each other or in stripes. The
//!   ring takes the parts of an operation on it as one operation, and works on them at once.
//! - [`NvmeDevice`], [`NvmeDrive`], [`NvmeRing`]: an NVMe namespace of this machine, by commands of
//!   the application.
//! - [`xrp`]: chains in the kernel, by the module in `kernel/`.
//! - [`fabric`]: messages and registered memory between two ends in one process, as with RDMA.
//! - [`rdma`]: the same between machines, by network cards.
//! - [`IoBuffer`]: page-aligned memory for direct I/O.
//!
//! # What this crate does not do
//!
//! But for those that [`NvmeRing`] sends to drives it knows no NVMe commands, and no chains: the
//! controller decides what to read and when.
//!
//! # Unsafe code
//!
//! Only in `ring`, `nvme`, `xrp`, `rdma`, `buffer`, `memory`, `lost_writes` and, to be sent between threads,
//! `gather_buffer`.

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
