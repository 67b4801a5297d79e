//! Settings of the C library's allocator for a target.
#![allow(unsafe_code)]

/// Allocations of this size and more get a mapping of their own, in bytes. Buffers of connections are that large;
/// allocations for single operations are smaller.
#[cfg(target_env = "gnu")]
const MAP_FROM_BYTES: libc::c_int = 64 << 10;

/// Returns large allocations to the kernel when they are freed. By default the allocator learns to keep them, up to 32
/// MiB each, so that memory which connections needed under load would stay for ever.
pub(crate) fn give_back_large_pieces() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it affects later allocations only, not existing ones.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAP_FROM_BYTES);
    }
}

/// Time between two checks of the memory that hosts take.
#[cfg(target_env = "gnu")]
const INTERVAL: std::time::Duration = std::time::Duration::from_secs(5);

/// Less is not worth a trim, in bytes.
#[cfg(target_env = "gnu")]
const WORTH_BYTES: usize = 16 << 20;

/// Starts a thread that returns free pages between small allocations to the kernel, whenever hosts have given back more
/// than half of their memory: the allocator itself returns only the end of the heap. A trim takes some ms, in which
/// other threads may wait for memory.
pub(crate) fn give_back_unused_pages(memory: std::sync::Arc<bpfof_function::memory::Memory>) {
    #[cfg(target_env = "gnu")]
    {
        let give_back = move || {
            let mut most = 0;
            loop {
                std::thread::sleep(INTERVAL);
                let used = memory.used_bytes();
                most = most.max(used);
                if used < most / 2 && most - used >= WORTH_BYTES {
                    // SAFETY: touches only memory that is free, under the allocator's own locks.
                    unsafe { libc::malloc_trim(0) };
                    most = used;
                }
            }
        };
        let thread = std::thread::Builder::new().name("memory".to_owned()).spawn(give_back);
        if let Err(error) = thread {
            log::warn!("cannot start a thread that gives memory back: {error}");
        }
    }
    #[cfg(not(target_env = "gnu"))]
    drop(memory);
}
