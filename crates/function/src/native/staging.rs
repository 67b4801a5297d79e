//! Memory in which Cranelift assembles machine code before it goes to [its place](super::code).
#![allow(unsafe_code)]

use cranelift_jit::{BranchProtection, JITMemoryKind, JITMemoryProvider};
use cranelift_module::ModuleResult;
use std::alloc::{Layout, alloc, dealloc};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum machine code of one program, in bytes: 512 for each of its instructions. Only written
/// pages take memory.
const STAGING_BYTES: usize = 2 << 20;

const LAYOUT: Layout = match Layout::from_size_align(STAGING_BYTES, 4096) {
    Ok(layout) => layout,
    Err(_) => panic!("constants that fit"),
};

/// Writable memory. The provider of a module shares it.
pub(super) struct Staging(Arc<Memory>);

struct Memory {
    start: NonNull<u8>,
    used: AtomicUsize,
}

// SAFETY: the memory is written by one module, which belongs to one thread, and is read only
// after that.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `Staging::new` with the same layout.
        unsafe { dealloc(self.start.as_ptr(), LAYOUT) }
    }
}

impl Staging {
    pub(super) fn new() -> io::Result<Staging> {
        // SAFETY: the layout has a non-zero size.
        let start = NonNull::new(unsafe { alloc(LAYOUT) });
        let start = start.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Staging(Arc::new(Memory { start, used: AtomicUsize::new(0) })))
    }

    /// A provider of this memory for a module.
    pub(super) fn provider(&self) -> Box<Provider> {
        Box::new(Provider(Arc::clone(&self.0)))
    }

    /// All code, once the module is finished, and the offset of `entry` in it.
    ///
    /// # Panics
    /// If the entry is not a part of the code.
    pub(super) fn code(&self, entry: *const u8) -> (&[u8], usize) {
        let used = self.0.used.load(Ordering::Relaxed);
        // SAFETY: the module has written these bytes, and is finished.
        let code = unsafe { std::slice::from_raw_parts(self.0.start.as_ptr(), used) };
        let at = entry.addr() - code.as_ptr().addr();
        assert!(at < used, "the entry is somewhere else");
        (code, at)
    }
}

pub(super) struct Provider(Arc<Memory>);

impl JITMemoryProvider for Provider {
    fn allocate(&mut self, size: usize, align: u64, kind: JITMemoryKind) -> io::Result<*mut u8> {
        if !matches!(kind, JITMemoryKind::Executable) {
            return Err(io::Error::other("a program has no data besides its code"));
        }
        let used = self.0.used.load(Ordering::Relaxed);
        let start = used.next_multiple_of(align as usize);
        let end = start.checked_add(size).filter(|end| *end <= STAGING_BYTES);
        let end = end.ok_or_else(|| io::Error::other("the machine code is too long"))?;
        // SAFETY: both are within the allocation, and these bytes have not been handed out.
        let (gap, place) = unsafe { (self.0.start.add(used), self.0.start.add(start)) };
        // SAFETY: as above; so everything up to `used` is initialised.
        unsafe { std::ptr::write_bytes(gap.as_ptr(), 0, end - used) }
        self.0.used.store(end, Ordering::Relaxed);
        Ok(place.as_ptr())
    }

    unsafe fn free_memory(&mut self) {}

    fn finalize(&mut self, _branch_protection: BranchProtection) -> ModuleResult<()> {
        Ok(())
    }
}
