//! The C library's allocator, as a target needs it.
#![allow(unsafe_code)]

/// From this size on memory is mapped for itself, in bytes. Buffers are that large, and what the target
/// needs for each operation is smaller.
#[cfg(target_env = "gnu")]
const MAP_FROM_BYTES: libc::c_int = 64 << 10;

/// Large pieces go back to the machine when they are freed. By default the allocator learns to keep
/// them, up to 32 MiB each, and what connections have had under load would stay for ever.
pub(crate) fn give_back_large_pieces() {
    #[cfg(target_env = "gnu")]
    // SAFETY: changes how memory is had from now on, nothing about what there is.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAP_FROM_BYTES);
    }
}
