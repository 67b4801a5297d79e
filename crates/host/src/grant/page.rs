//! The versions page: memory that the daemon writes and its client reads. It has a word for each file id, with the
//! version of the map that the target has, or 0 for none.
//!
//! It is a memfd that is sealed against changes of its length, and against writes except through the mapping that the
//! daemon made before the seal.
#![allow(unsafe_code)]

use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
    memfd_create, open,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

const WORD_BYTES: usize = size_of::<u64>();

/// A mapping of the page, which is removed when this is dropped.
#[derive(Debug)]
struct Mapping {
    words: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the mapping is plain memory without thread affinity, used as atomic words only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `count` words of `memory`, which must be that long and must never become shorter.
    fn new(memory: impl AsFd, count: usize, protection: ProtFlags) -> io::Result<Self> {
        let length = count * WORD_BYTES;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base =
            unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, memory, 0) }?;
        let words = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { words, count })
    }

    /// The word of file `id`; None if the id is out of range.
    fn word(&self, id: u32) -> Option<&AtomicU64> {
        let index = (id as usize).checked_sub(1).filter(|index| *index < self.count)?;
        // SAFETY: the index is within the mapping, which is aligned to pages, lives as long as the
        // reference, and is only ever used as atomic words. A reader that may not write only loads.
        Some(unsafe { self.words.add(index).as_ref() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and no reference into it is left.
        let _ = unsafe { munmap(self.words.as_ptr().cast(), self.count * WORD_BYTES) };
    }
}

/// The daemon's end of a versions page.
#[derive(Debug)]
pub struct PageWriter {
    mapping: Mapping,
    reader: OwnedFd,
}

impl PageWriter {
    /// A page for file ids 1 to `files_max`, all of version 0.
    ///
    /// # Errors
    /// The kernel's: no memory, no descriptor, no /proc.
    pub fn new(files_max: u32) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = memfd_create("bpfof-versions", flags)?;
        let count = files_max as usize;
        ftruncate(&memory, (count * WORD_BYTES) as u64)?;
        let mapping = Mapping::new(&memory, count, ProtFlags::READ | ProtFlags::WRITE)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&memory, seals)?;
        let own = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let reader = open(own, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { mapping, reader })
    }

    /// The read-only descriptor for the client.
    #[must_use]
    pub const fn reader(&self) -> &OwnedFd {
        &self.reader
    }

    /// Publishes the version of a file's map; 0 if the target is about to have none. Ids out of
    /// range are ignored.
    pub fn set(&self, id: u32, version: u64) {
        if let Some(word) = self.mapping.word(id) {
            word.store(version, Ordering::SeqCst);
        }
    }
}

/// The client's end of a versions page.
#[derive(Debug)]
pub struct PageReader(Mapping);

impl PageReader {
    /// Maps `memory`, a page for file ids 1 to `files_max`.
    ///
    /// # Errors
    /// `InvalidData` if it has another size, or could be made shorter; the kernel's.
    pub fn new(memory: &OwnedFd, files_max: u32) -> io::Result<Self> {
        let count = files_max as usize;
        let is_sealed = fcntl_get_seals(memory).is_ok_and(|s| s.contains(SealFlags::SHRINK));
        if !is_sealed || fstat(memory)?.st_size as u64 != (count * WORD_BYTES) as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Mapping::new(memory, count, ProtFlags::READ).map(Self)
    }

    /// The version of the map that the target has of file `id`; 0 if it has none.
    #[must_use]
    #[inline]
    pub fn version(&self, id: u32) -> u64 {
        self.0.word(id).map_or(0, |word| word.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_only_versions_that_were_set() {
        let page = PageWriter::new(4096).expect("a page");
        let reader = PageReader::new(page.reader(), 4096).expect("mapped");
        page.set(1, 7);
        page.set(4096, u64::MAX);
        page.set(0, 1);
        page.set(4097, 1);
        let versions = [0, 1, 2, 4096, 4097, u32::MAX].map(|id| reader.version(id));
        assert_eq!(versions, [0, 7, 0, u64::MAX, 0, 0]);
        page.set(1, 0);
        assert_eq!(reader.version(1), 0);
    }

    #[test]
    fn the_page_is_sealed_against_writes_and_resizing() {
        let page = PageWriter::new(4096).expect("a page");
        let fd = page.reader();
        assert!(ftruncate(fd, 0).is_err(), "it was made shorter");
        assert!(rustix::io::write(fd, b"x").is_err(), "it was written");
        // Root may open the page for writing, but the seal holds nevertheless.
        let again = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        if let Ok(writable) = open(again, flags, Mode::empty()) {
            assert!(rustix::io::write(&writable, b"x").is_err(), "it was written");
            assert!(ftruncate(&writable, 0).is_err(), "it was made shorter");
            let both = ProtFlags::READ | ProtFlags::WRITE;
            assert!(Mapping::new(&writable, 1, both).is_err(), "it was mapped for writing");
        }
        page.set(1, 3);
    }

    #[test]
    fn a_client_takes_no_page_that_could_become_shorter() {
        let loose = memfd_create("loose", MemfdFlags::CLOEXEC).expect("a memfd");
        ftruncate(&loose, 4096).expect("room");
        assert!(PageReader::new(&loose, 512).is_err());
        let page = PageWriter::new(512).expect("a page");
        assert!(PageReader::new(page.reader(), 513).is_err());
    }
}
