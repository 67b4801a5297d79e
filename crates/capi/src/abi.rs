//! The structures of `bpfof.h`, with the same fields in the same order.

use crate::function::Function;
use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;

/// `BPFOF_AT_TARGET`
pub(crate) const AT_TARGET: u32 = 1;
/// `BPFOF_HERE`
pub(crate) const HERE: u32 = 2;

/// Size of a message in bytes, with its final zero.
pub(crate) const MESSAGE_BYTES: usize = 256;

/// `struct bpfof_read`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) offset: u64,
    pub(crate) size: u32,
    pub(crate) file: u32,
}

/// `struct bpfof_result`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) length: isize,
    pub(crate) error: i32,
    pub(crate) executor: u32,
    pub(crate) hops: u32,
    pub(crate) stale: u32,
    pub(crate) status: u32,
    pub(crate) value: u32,
    pub(crate) message: [c_char; MESSAGE_BYTES],
}

impl Default for Outcome {
    fn default() -> Self {
        Self {
            length: 0,
            error: 0,
            executor: 0,
            hops: 0,
            stale: 0,
            status: 0,
            value: 0,
            message: [0; MESSAGE_BYTES],
        }
    }
}

/// `struct bpfof_chain`
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) fds: *const c_int,
    pub(crate) nfds: usize,
    pub(crate) first: Read,
    pub(crate) function: *const Function,
    pub(crate) scratch: *mut c_void,
    pub(crate) scratch_len: usize,
    pub(crate) argument_len: usize,
    pub(crate) user: *mut c_void,
    /// The caller need not have initialised it.
    pub(crate) outcome: MaybeUninit<Outcome>,
}

/// `struct bpfof_entry`
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) first: Read,
    pub(crate) scratch: *mut c_void,
    pub(crate) argument_len: usize,
    /// The caller need not have initialised it.
    pub(crate) outcome: MaybeUninit<Outcome>,
}

/// `struct bpfof_file_read`
#[repr(C)]
#[derive(Debug)]
pub(crate) struct FileRead {
    pub(crate) fd: c_int,
    pub(crate) offset: u64,
    pub(crate) size: usize,
    pub(crate) data: *mut c_void,
    pub(crate) length: usize,
}
