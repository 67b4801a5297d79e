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

/// Time between two looks at what hosts have taken.
#[cfg(target_env = "gnu")]
const INTERVAL: std::time::Duration = std::time::Duration::from_secs(5);

/// Less is not worth the time, in bytes.
#[cfg(target_env = "gnu")]
const WORTH_BYTES: usize = 16 << 20;

/// Gives pages back that the allocator keeps between small pieces, whenever most of what hosts had taken
/// is theirs no more: it does so itself only at the end of the heap. That takes some ms, in which other
/// threads may wait for memory.
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
