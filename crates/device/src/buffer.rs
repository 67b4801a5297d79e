//! Page-aligned memory for direct I/O.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment in bytes that satisfies every direct-I/O device.
const ALIGN: usize = 4096;

/// A zeroed, page-aligned buffer whose address does not change while it lives.
#[derive(Debug)]
pub struct IoBuffer {
    memory: NonNull<u8>,
    capacity: usize,
    len: usize,
}

// SAFETY: the buffer owns its allocation exclusively.
unsafe impl Send for IoBuffer {}

impl IoBuffer {
    /// A zeroed buffer of `len` bytes.
    pub fn new(len: usize) -> IoBuffer {
        let capacity = len.max(1).next_multiple_of(ALIGN);
        let layout = IoBuffer::layout(capacity);
        // SAFETY: the layout's size is at least ALIGN.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        IoBuffer { memory, capacity, len }
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGN).expect("a page multiple of allocatable size")
    }

    /// Bytes the buffer could hold without a new allocation.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes the length to at most the capacity. Bytes keep their old contents.
    ///
    /// # Panics
    /// If `len` is more than the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity);
        self.len = len;
    }
}

impl Deref for IoBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the first `capacity` bytes are allocated and initialised; len <= capacity.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len) }
    }
}

impl DerefMut for IoBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and self is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len) }
    }
}

impl Drop for IoBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout.
        unsafe { dealloc(self.memory.as_ptr(), IoBuffer::layout(self.capacity)) }
    }
}
