//! BPF-KV: the key-value store that the XRP (§5.1) and BPF-oF (§6.7, §10.3) papers measure, in the
//! file layout of the original tool: each reads the other's databases.
//!
//! A database is one file: a B⁺-tree of 31-way nodes of 512 bytes, level by level from the root at
//! offset 0, then an unsorted log of 64-byte values. Looking up a key is a chain of dependent
//! reads, one for each level and one for the value.
//!
//! # How data flows
//!
//! * [`create`] streams a database of [`format::Layout`] into any sink; [`detect`] determines the
//!   number of levels of an existing file.
//! * Plain reading: a [`GetCursor`], [`RangeCursor`] or [`AggregateCursor`] requests its next reads
//!   and is fed their bytes, until it is done.
//! * Pushdown: [`pushdown`] encodes the argument of a storage function ([`GET_OBJECT`],
//!   [`RANGE_OBJECT`]), and decodes its answer. One call replaces the whole chain; a range longer
//!   than an answer continues where the last answer ended.
//! * Either may start below the levels that a [`Cache`] holds in memory.
//!
//! Everything here is sans-I/O: offsets and bytes go in and out, the caller reads. Bytes from files
//! and targets are checked; defects are typed errors ([`Corrupt`],
//! [`pushdown::BadAnswer`]).
//!
//! # What this crate does not do
//!
//! No inserts, updates or deletes, no cache of values, no merging of an in-memory table: the papers
//! measure reads. No sockets, files or threads: `crates/kv-client` has them.

mod cache;
mod corrupt;
pub mod create;
pub mod cursor;
pub mod detect;
pub mod format;
pub mod pushdown;
mod range;
mod read_request;
mod walk;

pub use cache::{Cache, CacheError, LEVELS_CACHED_MAX, Reader};
pub use corrupt::{Corrupt, Defect};
pub use cursor::{AggregateCursor, GetCursor, RangeCursor, ReadRequest, Step};
pub use format::{Layout, Value};
pub use range::{Aggregate, InvertedRange, KeyRange, Pair, Summary};

/// Storage function `bpfof/get`, an ELF object: [`pushdown::get_argument`].
pub static GET_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bpfkv_get.bpf.o"));

/// Storage function `bpfof/range`, an ELF object: [`pushdown::RangePushdown`] and
/// [`pushdown::AggregatePushdown`].
pub static RANGE_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bpfkv_range.bpf.o"));
