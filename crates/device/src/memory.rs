//! A namespace in memory.
//!
//! Several threads may read and write it at once, as with a disk: overlapping operations that run
//! at the same time have no defined order, and a reader may see part of each. The copies are
//! opaque to the compiler, which therefore assumes nothing about memory that changes under them.
#![allow(unsafe_code)]

use crate::delay::LatencyModel;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::io;

/// Zero-filled memory of a fixed size. Pages are taken as they are first written, so a namespace
/// may be larger than the machine's memory as long as it stays sparse.
#[derive(Debug)]
pub struct MemoryNamespace {
    base: *mut u8,
    size_bytes: usize,
    latency: Option<LatencyModel>,
}

// SAFETY: the mapping is plain memory without thread affinity.
unsafe impl Send for MemoryNamespace {}
// SAFETY: all access goes through the opaque copies below, which tolerate concurrent change.
unsafe impl Sync for MemoryNamespace {}

impl MemoryNamespace {
    /// Reserves `size_bytes`, not 0. Errors come from the kernel (not enough address space).
    pub fn new(size_bytes: u64, latency: Option<LatencyModel>) -> io::Result<MemoryNamespace> {
        let size = usize::try_from(size_bytes).map_err(io::Error::other)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), size, protection, flags) }?;
        // Large pages halve the cost of a random read; without them it still works.
        // SAFETY: the range is the mapping just made.
        let _ = unsafe { madvise(base, size, Advice::LinuxHugepage) };
        Ok(MemoryNamespace { base: base.cast(), size_bytes: size, latency })
    }

    /// Its size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes as u64
    }

    /// Its latency model, if it has one.
    pub fn latency(&self) -> Option<&LatencyModel> {
        self.latency.as_ref()
    }

    fn check(&self, offset: u64, length: usize) -> *mut u8 {
        let end = offset.checked_add(length as u64);
        assert!(
            end.is_some_and(|end| end <= self.size_bytes as u64),
            "callers check ranges against the namespace"
        );
        // SAFETY: offset is within the mapping.
        unsafe { self.base.add(offset as usize) }
    }

    /// Copies `to.len()` bytes at `offset` out of the namespace.
    ///
    /// # Panics
    /// If the range leaves the namespace.
    #[inline]
    pub fn read(&self, offset: u64, to: &mut [u8]) {
        let from = self.check(offset, to.len());
        // SAFETY: `from` is valid for to.len() bytes of the mapping, which no Rust reference
        // points into; `to` is exclusively borrowed.
        unsafe { opaque_copy(to.as_mut_ptr(), from, to.len()) }
    }

    /// Appends `length` bytes at `offset` of the namespace to `to`.
    ///
    /// # Panics
    /// If the range leaves the namespace.
    #[inline]
    pub fn append(&self, offset: u64, length: usize, to: &mut Vec<u8>) {
        let from = self.check(offset, length);
        to.reserve(length);
        let end = to.len() + length;
        // SAFETY: as in `read`; the room for `length` bytes behind the vector's end is reserved,
        // and they are initialised by the copy before they become part of it.
        unsafe {
            opaque_copy(to.as_mut_ptr().add(to.len()), from, length);
            to.set_len(end);
        }
    }

    /// Copies `from` into the namespace at `offset`.
    ///
    /// # Panics
    /// If the range leaves the namespace.
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) {
        let to = self.check(offset, from.len());
        // SAFETY: as in `read`, the other way round.
        unsafe { opaque_copy(to, from.as_ptr(), from.len()) }
    }

    /// Makes a range read as zeroes, giving whole pages back to the machine.
    ///
    /// # Panics
    /// If the range leaves the namespace.
    pub fn zero(&self, offset: u64, length: u64) {
        const PAGE: u64 = 4096;
        let end = offset + length;
        self.check(offset, length as usize);
        let first_page = offset.next_multiple_of(PAGE).min(end);
        let last_page = (end / PAGE * PAGE).max(first_page);
        if last_page > first_page {
            let base = self.check(first_page, 0).cast::<c_void>();
            let length = (last_page - first_page) as usize;
            // SAFETY: whole pages of the mapping; a private anonymous page dropped reads as zero.
            if unsafe { madvise(base, length, Advice::LinuxDontNeed) }.is_err() {
                self.zero_by_copy(first_page, last_page);
            }
        }
        self.zero_by_copy(offset, first_page);
        self.zero_by_copy(last_page, end);
    }

    fn zero_by_copy(&self, mut from: u64, end: u64) {
        const ZEROES: [u8; 4096] = [0; 4096];
        while from < end {
            let run = (end - from).min(ZEROES.len() as u64);
            self.write(from, &ZEROES[..run as usize]);
            from += run;
        }
    }

    /// Asks the processor to fetch a range that will be read soon; up to 512 bytes of it.
    #[inline]
    pub fn prefetch(&self, offset: u64, length: u32) {
        let from = self.check(offset, length as usize);
        #[cfg(target_arch = "x86_64")]
        for line in 0..(length / 64).min(8) as usize {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            // To the second level: the first has other work, and the copy streams from there.
            // SAFETY: prefetching has no effect but on caches, and the address is in the mapping.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(from.add(64 * line).cast()) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = from;
    }
}

impl Drop for MemoryNamespace {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; nothing points into it any more.
        let unmapped = unsafe { munmap(self.base.cast(), self.size_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Copies without telling the compiler what is read or written, as a device would.
///
/// # Safety
/// Both pointers are valid for `length` bytes, and the ranges do not overlap.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn opaque_copy(to: *mut u8, from: *const u8, length: usize) {
    let lines = length / 64;
    let copied = lines * 64;
    // SAFETY: whole lines within `length`, then the rest; the wide loads only where there are any.
    unsafe {
        if lines > 0 && std::arch::is_x86_feature_detected!("avx512f") {
            copy_lines_avx512(to, from, lines);
        } else if lines > 0 {
            copy_lines_sse2(to, from, lines);
        }
        if copied < length {
            std::arch::asm!(
                "rep movsb",
                inout("rcx") length - copied => _,
                inout("rsi") from.add(copied) => _,
                inout("rdi") to.add(copied) => _,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// A third of the instructions of the other: a hop copies a block for every function call.
///
/// # Safety
/// As [`opaque_copy`], for `lines` times 64 bytes, not 0, on a processor with AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_lines_avx512(to: *mut u8, from: *const u8, lines: usize) {
    // SAFETY: moves whole 64-byte lines, unaligned. The registers above 15 have no state that
    // older code would have to clear.
    unsafe {
        std::arch::asm!(
            "test {lines:e}, 1",
            "jz 2f",
            "vmovdqu64 zmm16, [{from}]",
            "vmovdqu64 [{to}], zmm16",
            "add {from}, 64",
            "add {to}, 64",
            "2:",
            "shr {lines}, 1",
            "jz 4f",
            "3:",
            "vmovdqu64 zmm16, [{from}]",
            "vmovdqu64 zmm17, [{from} + 64]",
            "vmovdqu64 [{to}], zmm16",
            "vmovdqu64 [{to} + 64], zmm17",
            "sub {from}, -128",
            "sub {to}, -128",
            "dec {lines}",
            "jnz 3b",
            "4:",
            lines = inout(reg) lines => _,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            out("xmm16") _,
            out("xmm17") _,
            options(nostack),
        );
    }
}

/// # Safety
/// As [`opaque_copy`], for `lines` times 64 bytes, not 0.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_lines_sse2(to: *mut u8, from: *const u8, lines: usize) {
    // SAFETY: moves whole 64-byte lines with unaligned loads and stores.
    unsafe {
        std::arch::asm!(
            "2:",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {lines}",
            "jnz 2b",
            lines = inout(reg) lines => _,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Copies byte by byte with atomic operations, which tolerate concurrent change.
///
/// # Safety
/// Both pointers are valid for `length` bytes, and the ranges do not overlap.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn opaque_copy(to: *mut u8, from: *const u8, length: usize) {
    use std::sync::atomic::{AtomicU8, Ordering};
    for at in 0..length {
        // SAFETY: `at` is within both ranges; AtomicU8 has no alignment beyond a byte.
        unsafe {
            let from = AtomicU8::from_ptr(from.add(at).cast_mut());
            AtomicU8::from_ptr(to.add(at)).store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_was_written_and_zeroes() {
        let memory = MemoryNamespace::new(1 << 20, None).expect("fits");
        let pattern: Vec<u8> = (0..20_000u32).map(|i| (i % 251) as u8 + 1).collect();
        memory.write(3, &pattern);
        let mut out = vec![0; pattern.len()];
        memory.read(3, &mut out);
        assert_eq!(out, pattern);
        let mut appended = b"before".to_vec();
        memory.append(3, pattern.len(), &mut appended);
        assert_eq!((&appended[..6], &appended[6..]), (&b"before"[..], &pattern[..]));
        memory.prefetch(0, 512);
        memory.zero(100, 13_000);
        memory.read(3, &mut out);
        assert_eq!(out[..97], pattern[..97]);
        assert!(out[97..13_097].iter().all(|byte| *byte == 0));
        assert_eq!(out[13_097..], pattern[13_097..]);
        memory.zero(0, 1 << 20);
        memory.read(3, &mut out);
        assert!(out.iter().all(|byte| *byte == 0));
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn every_copy_copies_just_its_lines() {
        let from: Vec<u8> = (0..1000u32).map(|i| (i % 251) as u8).collect();
        let copies: [unsafe fn(*mut u8, *const u8, usize); 2] =
            [copy_lines_sse2, copy_lines_avx512];
        let usable = if std::is_x86_feature_detected!("avx512f") { 2 } else { 1 };
        for copy in &copies[..usable] {
            for lines in 1..10 {
                let mut to = [0xee; 1000];
                // SAFETY: 7 + 9 lines fit both.
                unsafe { copy(to.as_mut_ptr().add(7), from.as_ptr().add(5), lines) };
                assert_eq!(to[7..][..lines * 64], from[5..][..lines * 64]);
                assert!(to[..7].iter().chain(&to[7 + lines * 64..]).all(|byte| *byte == 0xee));
            }
        }
    }

    #[test]
    fn sparse_namespaces_may_be_larger_than_memory() {
        let memory = MemoryNamespace::new(1 << 40, None).expect("address space");
        memory.write((1 << 40) - 4, b"last");
        let mut last = [0; 4];
        memory.read((1 << 40) - 4, &mut last);
        assert_eq!(&last, b"last");
    }

    #[test]
    #[should_panic(expected = "callers check ranges")]
    fn a_range_outside_is_a_bug_of_the_caller() {
        MemoryNamespace::new(4096, None).expect("fits").read(4000, &mut [0; 512]);
    }
}
