//! BPF-KV databases that benchmarks make: their size, and the target they are written to.

use crate::machine::free_memory_bytes;
use bpfkv::create::Extent;
use bpfof_host::TargetUrl;
use bpfof_kv::{WriteError, create_on_target};
use bpfof_terminal::progress;
use std::sync::atomic::AtomicBool;

/// A larger database gives no new results: the caches of a processor are far smaller.
const DATABASE_MAX_BYTES: u64 = 5 << 30;

/// The largest part of a database such that `databases` of them together take at most a third of the free memory.
pub(crate) fn extent_that_fits(
    levels: u32,
    databases: u64,
) -> Result<Extent, Box<dyn std::error::Error>> {
    let free = free_memory_bytes().unwrap_or(1 << 30) / 3 / databases;
    extent_within(levels, free.min(DATABASE_MAX_BYTES))
}

/// The largest part of a database for which at most this many bytes are written.
pub(crate) fn extent_within(levels: u32, free: u64) -> Result<Extent, Box<dyn std::error::Error>> {
    let full = Extent::full(levels)?;
    if full.written_bytes() <= free {
        return Ok(full);
    }
    let mut best = None;
    for subtrees in 1..31 {
        let part = Extent::part(levels, subtrees)?;
        if part.written_bytes() <= free {
            best = Some(part);
        }
    }
    best.ok_or_else(|| {
        let need = full.written_bytes() / 31;
        format!("{levels} levels need at least {need} bytes, but there is less room; give fewer --levels").into()
    })
}

/// Writes a database over the namespace of a target started by the benchmark.
pub(crate) fn write_to(url: &TargetUrl, extent: &Extent) -> Result<(), WriteError> {
    write_until(&AtomicBool::new(false), url, extent)
}

/// The same; fails once `stop` is set.
pub(crate) fn write_until(
    stop: &AtomicBool,
    url: &TargetUrl,
    extent: &Extent,
) -> Result<(), WriteError> {
    progress::bytes("writing", extent.written_bytes(), stop, |progress| {
        create_on_target(url, extent, progress)
    })
}
