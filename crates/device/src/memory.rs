//! A namespace in memory: private memory, or that of a file on tmpfs.
//!
//! Several threads may read and write it at once, as with a disk: overlapping concurrent operations have no defined
//! order, and a reader may see part of each. The copies are opaque to the compiler, which therefore makes no
//! assumptions about memory that changes concurrently.
#![allow(unsafe_code)]

use crate::delay::LatencyModel;
use crate::file::{FileError, Lock, open_in_memory, relock};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::path::Path;

/// Memory of a fixed size.
#[derive(Debug)]
pub struct MemoryNamespace {
    base: *mut u8,
    size_bytes: usize,
    latency: Option<LatencyModel>,
    /// The file whose memory this is, if any. Keeping it open keeps its lock.
    file: Option<File>,
}

// SAFETY: the mapping is plain memory without thread affinity.
unsafe impl Send for MemoryNamespace {}
// SAFETY: all access goes through the opaque copies below, which tolerate concurrent change, or is done by the kernel.
unsafe impl Sync for MemoryNamespace {}

impl MemoryNamespace {
    /// The unit of memory reads in bytes: a cache line. Reading less costs as much.
    pub const UNIT_BYTES: u32 = 64;

    /// Reserves `size_bytes`, not 0, which read as zeroes. Pages are allocated when they are first written, so a sparse
    /// namespace may be larger than the machine's memory. Errors come from the kernel (not enough address space).
    pub fn new(size_bytes: u64, latency: Option<LatencyModel>) -> io::Result<MemoryNamespace> {
        let size = usize::try_from(size_bytes).map_err(io::Error::other)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), size, protection, flags) }?;
        // Large pages halve the cost of a random read; without them it still works.
        // SAFETY: the range is the mapping just made.
        let _ = unsafe { madvise(base, size, Advice::LinuxHugepage) };
        Ok(MemoryNamespace { base: base.cast(), size_bytes: size, latency, file: None })
    }

    /// Changes the lock of its file, if it has one.
    ///
    /// # Errors
    /// Another target has the file locked.
    pub fn lock(&self, how: Lock) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| Ok(relock(file, how)?))
    }

    /// The memory of the whole file `path` on tmpfs: writes of any process to the file are visible here, and vice
    /// versa. The file is locked as `how` says, and its holes are filled, so that no access fails later because tmpfs
    /// is full.
    ///
    /// While this exists, no process may shorten the file, nor punch holes into it where tmpfs may be full: the kernel
    /// kills a process that accesses a missing page (SIGBUS).
    ///
    /// # Errors
    /// If `path` is not a regular file on tmpfs, cannot be opened for reading and writing, is locked, or is empty or
    /// not a multiple of `block_bytes` long; if tmpfs has no room for its holes; or if there is not enough address
    /// space.
    pub fn of_file_as(
        path: &Path,
        block_bytes: u32,
        latency: Option<LatencyModel>,
        how: Lock,
    ) -> Result<MemoryNamespace, FileError> {
        let (file, size_bytes) = open_in_memory(path, block_bytes, how)?;
        let failed = |source| FileError::Io { action: "map", path: path.to_owned(), source };
        let size = usize::try_from(size_bytes).map_err(|error| failed(io::Error::other(error)))?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses. No reference is made into it, so other processes
        // may change the file; the caller guarantees that they leave its length alone, and otherwise the process ends.
        let base =
            unsafe { mmap(std::ptr::null_mut(), size, protection, MapFlags::SHARED, &file, 0) };
        let base = base.map_err(|error| failed(error.into()))?;
        Ok(MemoryNamespace { base: base.cast(), size_bytes: size, latency, file: Some(file) })
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

    /// The address of `length` bytes at `offset`. They may change at any time: only the kernel may read there.
    ///
    /// # Panics
    /// If the range leaves the namespace.
    #[inline]
    pub(crate) fn place(&self, offset: u64, length: usize) -> *const u8 {
        self.check(offset, length)
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

    /// Makes the first part of a range read as zeroes, and returns its length in bytes. The part takes some 0.1 ms, so
    /// that the caller can serve other work before the next part.
    ///
    /// # Panics
    /// If the range leaves the namespace.
    pub fn zero_some(&self, offset: u64, length: u64) -> u64 {
        // Some 100 µs: dropping one huge page of private memory, or writing 1 MiB of a file's memory.
        let step = if self.file.is_some() { 1 << 20 } else { 2 << 20 };
        let part = (step - offset % step).min(length);
        self.zero(offset, part);
        part
    }

    /// Makes a range read as zeroes. Returns whole pages to the machine, unless the memory is a file's: the next access
    /// would need them again, and tmpfs may be full by then.
    ///
    /// # Panics
    /// If the range leaves the namespace.
    pub fn zero(&self, offset: u64, length: u64) {
        let page = rustix::param::page_size() as u64;
        let end = offset + length;
        self.check(offset, length as usize);
        if self.file.is_some() {
            return self.zero_by_copy(offset, end);
        }
        let first_page = offset.next_multiple_of(page).min(end);
        let last_page = (end / page * page).max(first_page);
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
        // Constant lengths let the compiler unroll the loop.
        if length >= 512 { prefetch_lines(from, 8) } else { prefetch_lines(from, length / 64) }
    }
}

impl Drop for MemoryNamespace {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new` or `of_file_as`; nothing points into it any more.
        let unmapped = unsafe { munmap(self.base.cast(), self.size_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Fetches `lines` cache lines from `from` on into the second-level cache: the first level is needed for other work,
/// and the copy streams from the second.
#[inline(always)]
fn prefetch_lines(from: *const u8, lines: u32) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..lines as usize {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: prefetching has no effect but on caches, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(64 * line).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, lines);
}

/// Copies without letting the compiler know what is read or written, as a device would.
///
/// # Safety
/// Both pointers are valid for `length` bytes, and the ranges do not overlap.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn opaque_copy(to: *mut u8, from: *const u8, length: usize) {
    let lines = length / 64;
    let copied = lines * 64;
    // SAFETY: whole lines within `length`, then the rest; AVX-512 loads only on processors that have them.
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

/// Takes a third of the instructions of the SSE2 version: a hop copies a block for every function call.
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
    use proptest::prelude::*;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn reads_written_data_and_zeroes() {
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

    const SIZE: usize = 64 << 10;

    /// A file on tmpfs, and the temporary directory that it is in.
    fn image(size_bytes: usize) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir_in("/dev/shm").expect("a tmpfs");
        let path = folder.path().join("image");
        File::create(&path).and_then(|file| file.set_len(size_bytes as u64)).expect("a file");
        (folder, path)
    }

    fn of_file(path: &Path, block_bytes: u32) -> Result<MemoryNamespace, FileError> {
        MemoryNamespace::of_file_as(path, block_bytes, None, Lock::Alone)
    }

    /// A change to a namespace, made directly or through its file.
    #[derive(Clone, Debug)]
    enum Change {
        Write(Vec<u8>),
        Zero(usize),
        /// Through another open descriptor of the file.
        WriteFile(Vec<u8>),
    }

    fn changes() -> impl Strategy<Value = Vec<(usize, Change)>> {
        let bytes = || proptest::collection::vec(1..=255u8, 1..9000);
        let change = proptest::prop_oneof![
            bytes().prop_map(Change::Write),
            (1..SIZE).prop_map(Change::Zero),
            bytes().prop_map(Change::WriteFile),
        ];
        proptest::collection::vec((0..SIZE, change), 1..20)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A private namespace, a file's namespace, and the file always have the same contents as a plain vector.
        #[test]
        fn namespaces_match_a_model(changes in changes()) {
            let (_folder, path) = image(SIZE);
            let file = File::options().write(true).open(&path).expect("it is there");
            let own = MemoryNamespace::new(SIZE as u64, None).expect("fits");
            let shared = of_file(&path, 512).expect("it is a good file");
            let mut model = vec![0; SIZE];
            for (at, change) in changes {
                let length = match &change {
                    Change::Write(bytes) | Change::WriteFile(bytes) => bytes.len(),
                    Change::Zero(length) => *length,
                };
                let length = length.min(SIZE - at);
                let place = &mut model[at..at + length];
                match &change {
                    Change::Write(bytes) => {
                        place.copy_from_slice(&bytes[..length]);
                        shared.write(at as u64, place);
                        own.write(at as u64, place);
                    }
                    Change::Zero(_) => {
                        place.fill(0);
                        shared.zero(at as u64, length as u64);
                        own.zero(at as u64, length as u64);
                    }
                    Change::WriteFile(bytes) => {
                        place.copy_from_slice(&bytes[..length]);
                        file.write_all_at(place, at as u64).expect("room");
                        own.write(at as u64, place);
                    }
                }
                for namespace in [&own, &shared] {
                    let mut seen = vec![0xee; SIZE];
                    namespace.read(0, &mut seen);
                    prop_assert!(seen == model);
                }
                prop_assert!(std::fs::read(&path).expect("it is there") == model);
            }
        }
    }

    /// All memory of a file is allocated from the start, and stays allocated.
    #[test]
    fn a_file_without_holes() {
        let (_folder, path) = image(SIZE);
        let taken = || std::fs::metadata(&path).expect("it is there").blocks() * 512;
        assert_eq!(taken(), 0);
        let shared = of_file(&path, 512).expect("it is a good file");
        assert_eq!((taken(), shared.size_bytes()), (SIZE as u64, SIZE as u64));
        shared.zero(0, SIZE as u64);
        assert_eq!(taken(), SIZE as u64);
    }

    #[test]
    fn files_that_cannot_be_memory() {
        let refused = |path: &Path| of_file(path, 4096).expect_err("a bad file").to_string();
        let (folder, path) = image(SIZE);
        let nowhere = folder.path().join("nowhere");
        assert!(refused(&nowhere).contains("nowhere: No such file"), "{}", refused(&nowhere));
        assert!(refused(folder.path()).contains("Is a directory"), "{}", refused(folder.path()));
        let program = std::env::current_exe().expect("a path");
        let elsewhere = program.parent().expect("a folder").join("not-in-memory");
        std::fs::write(&elsewhere, [0; 4096]).expect("written");
        assert!(refused(&elsewhere).contains("not a regular file on tmpfs; write file:path="));
        std::fs::remove_file(&elsewhere).expect("it is there");

        let holder = of_file(&path, 4096).expect("it is a good file");
        assert!(refused(&path).contains("in use by another target"));
        drop(holder);
        let file = File::options().write(true).open(&path).expect("it is there");
        for bytes in [0, 4097] {
            file.set_len(bytes).expect("room");
            let reason =
                format!("has {bytes} bytes, which is not a whole number of blocks of 4096");
            assert!(refused(&path).contains(&reason), "{}", refused(&path));
        }
        let all = rustix::fs::statvfs(&path).expect("a file system");
        // On a tmpfs without a limit this would take all memory of the machine.
        if all.f_blocks > 0 {
            file.set_len((all.f_blocks * all.f_frsize).next_multiple_of(4096) + 4096)
                .expect("a file may be longer than its file system");
            assert!(refused(&path).contains("No space left"), "{}", refused(&path));
            assert_eq!(std::fs::metadata(&path).expect("it is there").blocks(), 0);
        }
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
    fn a_range_outside_the_namespace_panics() {
        MemoryNamespace::new(4096, None).expect("fits").read(4000, &mut [0; 512]);
    }
}
