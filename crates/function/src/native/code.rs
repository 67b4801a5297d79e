//! The place of machine code: one mapping for all functions of the process.
//!
//! A mapping for each function would be simpler, but the number of mappings of a process is limited
//! (`vm.max_map_count`), and many small functions of many hosts would exhaust it. So all code lies in one unnamed file,
//! which is mapped to be read and executed, never to be written: it is written through the file. Blocks are whole cache
//! lines. Pages without blocks are returned to the system, and the file and its mapping with the last block.
#![allow(unsafe_code)]

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use wasmtime_jit_icache_coherence::{clear_cache, pipeline_flush_mt};

/// Address space for all code of the process, in bytes: more than most machines have memory for. Only used pages take
/// memory.
const AREA_BYTES: usize = 4 << 30;
/// Blocks begin at multiples of this and have sizes that are multiples of it: a cache line.
const LINE_BYTES: usize = 64;
const PAGE_BYTES: usize = 4096;

/// The reason why code cannot be placed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CodeError {
    #[error(
        "cannot allocate memory for machine code ({0}); executable memory files must be allowed \
         (sysctl vm.memfd_noexec below 2)"
    )]
    Unavailable(io::Error),
    #[error("all {AREA_BYTES} bytes for machine code are taken; unload functions first")]
    Full,
    #[error("machine code cannot be written: {0}")]
    Write(io::Error),
}

struct Area {
    file: OwnedFd,
    base: NonNull<u8>,
    free: Mutex<FreeList>,
}

// SAFETY: the mapping is only read and executed through `base`, and lives as long as this; the mutable state is
// behind a mutex.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

/// Placed machine code. Dropping this removes it.
pub(super) struct CodeBlock {
    area: Arc<Area>,
    range: Range<usize>,
}

impl CodeBlock {
    /// Places code, which may refer to itself only by relative addresses.
    pub(super) fn new(code: &[u8]) -> Result<CodeBlock, CodeError> {
        let area = Area::shared().map_err(|error| CodeError::Unavailable(error.into()))?;
        let range = area.lock().take(code.len()).ok_or(CodeError::Full)?;
        let block = CodeBlock { area, range };
        let mut written = 0;
        while written < code.len() {
            let at = (block.range.start + written) as u64;
            match rustix::io::pwrite(&block.area.file, &code[written..], at) {
                Ok(bytes) => written += bytes,
                Err(Errno::INTR) => {}
                Err(error) => return Err(CodeError::Write(error.into())),
            }
        }
        let flushed =
            // SAFETY: these bytes are part of the mapping.
            unsafe { clear_cache(block.address().as_ptr().cast(), code.len()) }
                .and_then(|()| pipeline_flush_mt());
        flushed.map_err(|error| CodeError::Write(io::Error::other(error)))?;
        Ok(block)
    }

    /// Address of the code.
    pub(super) fn address(&self) -> NonNull<u8> {
        // SAFETY: the range lies in the mapping.
        unsafe { self.area.base.add(self.range.start) }
    }

    /// Bytes that the code takes.
    pub(super) fn bytes(&self) -> usize {
        self.range.len()
    }
}

impl Drop for CodeBlock {
    fn drop(&mut self) {
        let mut free = self.area.lock();
        let unused = free.give_back(self.range.clone());
        if !unused.is_empty() {
            // If that fails, only memory is wasted.
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let length = unused.len() as u64;
            let _ = fallocate(&self.area.file, flags, unused.start as u64, length);
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping of this area, which has no blocks any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), AREA_BYTES) };
    }
}

impl Area {
    /// The area of the process; it exists while there is code in it.
    fn shared() -> Result<Arc<Area>, Errno> {
        static AREA: Mutex<Weak<Area>> = Mutex::new(Weak::new());
        let mut known = AREA.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(area) = known.upgrade() {
            return Ok(area);
        }
        let area = Arc::new(Area::new()?);
        *known = Arc::downgrade(&area);
        Ok(area)
    }

    fn new() -> Result<Area, Errno> {
        let name = "bpf-of code";
        // Kernels before 6.3 do not know the flag and make all such files executable.
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::EXEC)
            .or_else(|_| memfd_create(name, MemfdFlags::CLOEXEC))?;
        ftruncate(&file, AREA_BYTES as u64)?;
        let protection = ProtFlags::READ | ProtFlags::EXEC;
        // SAFETY: a new mapping, anywhere. It changes only where there is no code: see `CodeBlock`.
        let base = unsafe {
            mmap(std::ptr::null_mut(), AREA_BYTES, protection, MapFlags::SHARED, &file, 0)
        }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Area { file, base, free: Mutex::new(FreeList::new(AREA_BYTES)) })
    }

    fn lock(&self) -> MutexGuard<'_, FreeList> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Free ranges, by start; adjacent ranges are merged.
#[derive(Debug)]
struct FreeList(BTreeMap<usize, usize>);

impl FreeList {
    fn new(bytes: usize) -> FreeList {
        FreeList(BTreeMap::from([(0, bytes)]))
    }

    /// Takes the first range that is large enough, so that code stays together.
    fn take(&mut self, bytes: usize) -> Option<Range<usize>> {
        let bytes = bytes.max(1).checked_next_multiple_of(LINE_BYTES)?;
        let (&start, &end) = self.0.iter().find(|(start, end)| *end - *start >= bytes)?;
        self.0.remove(&start);
        if start + bytes < end {
            self.0.insert(start + bytes, end);
        }
        Some(start..start + bytes)
    }

    /// Gives a range back. Returns the pages that are no longer in use.
    fn give_back(&mut self, range: Range<usize>) -> Range<usize> {
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &before_end)) = self.0.range(..start).next_back()
            && before_end == start
        {
            self.0.remove(&before);
            start = before;
        }
        if let Some(behind_end) = self.0.remove(&end) {
            end = behind_end;
        }
        self.0.insert(start, end);
        let down = |at: usize| at / PAGE_BYTES * PAGE_BYTES;
        let first = start.next_multiple_of(PAGE_BYTES).max(down(range.start));
        let last = down(end).min(range.end.next_multiple_of(PAGE_BYTES));
        first..last.max(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_and_go_and_their_pages_with_them() {
        let mut free = FreeList::new(4 * PAGE_BYTES);
        let first = free.take(100).expect("room");
        let large = free.take(2 * PAGE_BYTES).expect("room");
        let last = free.take(1).expect("room");
        assert_eq!(first, 0..128);
        assert_eq!(large, 128..128 + 2 * PAGE_BYTES);
        assert_eq!(free.take(2 * PAGE_BYTES), None);
        // The first page and the third are still partly in use.
        assert_eq!(free.give_back(large), PAGE_BYTES..2 * PAGE_BYTES);
        assert_eq!(free.give_back(first), 0..PAGE_BYTES);
        assert_eq!(free.give_back(last), 2 * PAGE_BYTES..3 * PAGE_BYTES);
        assert_eq!(free.take(4 * PAGE_BYTES), Some(0..4 * PAGE_BYTES));
    }

    #[test]
    fn random_blocks_never_share_a_byte() {
        let mut free = FreeList::new(1 << 20);
        let (mut blocks, mut state) = (Vec::<Range<usize>>::new(), 1u64);
        for _ in 0..5000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = (state >> 33) as usize;
            if random.is_multiple_of(3) && !blocks.is_empty() {
                let block = blocks.swap_remove(random / 3 % blocks.len());
                let unused = free.give_back(block);
                let touches =
                    |block: &Range<usize>| block.start < unused.end && unused.start < block.end;
                assert!(unused.is_empty() || !blocks.iter().any(touches), "{unused:?}");
            } else if let Some(block) = free.take(random % 20_000) {
                let overlaps =
                    |other: &Range<usize>| other.start < block.end && block.start < other.end;
                assert!(!blocks.iter().any(overlaps), "{block:?}");
                blocks.push(block);
            }
        }
        for block in blocks {
            free.give_back(block);
        }
        assert_eq!(free.0, BTreeMap::from([(0, 1 << 20)]));
    }
}
