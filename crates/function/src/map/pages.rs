//! Memory of the entries of a map.
#![allow(unsafe_code)]

use rustix::mm::{Advice, madvise};
use rustix::param::page_size;

/// Memory is only mapped in large pages from this size on.
const LARGE_BYTES: usize = 2 << 20;

/// A vector of `count` zeroes, in small pages even where the machine uses large ones for all memory: zeroing a large
/// page when it is first touched takes some 100 µs, which the access to an entry does not pay for.
pub(super) fn zeroes<T: Clone + Default>(count: usize) -> Vec<T> {
    let zeroes = vec![T::default(); count];
    let bytes = size_of_val(&*zeroes);
    if bytes >= LARGE_BYTES {
        let begin = zeroes.as_ptr().cast::<u8>();
        let before = begin.align_offset(page_size());
        let length = (bytes - before) / page_size() * page_size();
        // If the kernel has no large pages, it knows no advice about them.
        // SAFETY: whole pages of the vector's memory. The advice does not change their contents, and may remain in force
        // when the memory is used for something else.
        let _ = unsafe {
            madvise(begin.add(before).cast_mut().cast(), length, Advice::LinuxNoHugepage)
        };
    }
    zeroes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags of the mapping that contains an address (proc_pid_smaps(5)).
    fn flags_at(address: usize) -> String {
        let all = std::fs::read_to_string("/proc/self/smaps").expect("it can be read");
        let mut is_it = false;
        for line in all.lines() {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let ends =
                range.map(|(begin, end)| [begin, end].map(|at| usize::from_str_radix(at, 16)));
            if let Some([Ok(begin), Ok(end)]) = ends {
                is_it = (begin..end).contains(&address);
            } else if is_it && let Some(flags) = line.strip_prefix("VmFlags:") {
                return flags.to_owned();
            }
        }
        panic!("no mapping has the address {address:#x}");
    }

    #[test]
    fn large_tables_have_small_pages() {
        let zeroes = zeroes::<u32>(4 << 20);
        for index in [4096, 2 << 20, zeroes.len() - 4096] {
            let flags = flags_at(&raw const zeroes[index] as usize);
            assert!(flags.split_whitespace().any(|flag| flag == "nh"), "{flags}");
        }
        assert!(zeroes.iter().all(|zero| *zero == 0));
    }
}
