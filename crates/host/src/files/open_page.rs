//! Keeps a file open without a descriptor.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory mappings that a process may have, if the kernel's limit cannot be read.
const MAPS_MAX: usize = 65_530;
/// Higher descriptor numbers would make the kernel's descriptor table large.
const NUMBERS_MAX: usize = 16_384;

/// Number of pages that this process has.
static PAGES: AtomicUsize = AtomicUsize::new(0);

/// Keeps an open file, and so its inode and a lease that was taken by it, after its descriptor is closed: a mapping of
/// one page counts as a use of the open file, mmap(2). The page allows no access.
#[derive(Debug)]
pub(crate) struct OpenPage(*mut c_void);

// SAFETY: the address is never accessed, and any thread may end a mapping.
unsafe impl Send for OpenPage {}
// SAFETY: as above.
unsafe impl Sync for OpenPage {}

impl OpenPage {
    /// # Errors
    /// The kernel's; `OutOfMemory` if half of the process's memory mappings are such pages already.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        if PAGES.fetch_add(1, Ordering::Relaxed) >= maps_max() / 2 {
            PAGES.fetch_sub(1, Ordering::Relaxed);
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // SAFETY: a new mapping, at an address of the kernel's choice, that allows no access.
        let page = unsafe {
            libc::mmap(ptr::null_mut(), 1, libc::PROT_NONE, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if page == libc::MAP_FAILED {
            PAGES.fetch_sub(1, Ordering::Relaxed);
            return Err(io::Error::last_os_error());
        }
        let page = Self(page);
        // A forked child would otherwise keep the lease. SAFETY: the mapping is ours.
        match unsafe { libc::madvise(page.0, 1, libc::MADV_DONTFORK) } {
            0 => Ok(page),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for OpenPage {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it.
        unsafe { libc::munmap(self.0, 1) };
        PAGES.fetch_sub(1, Ordering::Relaxed);
    }
}

fn maps_max() -> usize {
    static MAX: OnceLock<usize> = OnceLock::new();
    *MAX.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/vm/max_map_count");
        text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(MAPS_MAX)
    })
}

/// Moves the open file to another descriptor number. Numbers are assigned in turn, so that few leases share the same
/// number even though their descriptors are closed.
pub(crate) fn renumbered(file: File) -> File {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let numbers = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let numbers = numbers.map_or(NUMBERS_MAX, |most| (most as usize).min(NUMBERS_MAX));
    let least = numbers / 4 + NEXT.fetch_add(1, Ordering::Relaxed) % (numbers / 2).max(1);
    // SAFETY: takes no memory of ours.
    let number = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least as i32) };
    if number < 0 {
        return file;
    }
    // SAFETY: the kernel has just created it for this call, so no other code owns it.
    unsafe { File::from_raw_fd(number) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_page_keeps_the_inode_of_a_file_that_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, b"contents").expect("written");
        let file = renumbered(File::open(&path).expect("open"));
        let inode = file.metadata().expect("found").ino();
        let page = OpenPage::of(&file).expect("a page");
        drop(file);
        std::fs::remove_file(&path).expect("removed");
        let maps = || std::fs::read_to_string("/proc/self/maps").expect("maps");
        let kept = format!(" {inode} ");
        assert!(maps().lines().any(|line| line.contains(&kept) && line.ends_with("(deleted)")));
        drop(page);
        assert!(!maps().lines().any(|line| line.contains(&kept) && line.ends_with("(deleted)")));
    }

    #[test]
    fn numbers_are_given_out_in_turn() {
        let file = || File::open("/dev/null").expect("open");
        let (one, other) = (renumbered(file()), renumbered(file()));
        assert!(one.as_raw_fd() > 16 && other.as_raw_fd() > one.as_raw_fd());
    }
}
