//! An arena between guard pages and other arenas, for functions that try to access memory outside
//! of it.
#![allow(unsafe_code)]

use crate::abi;
use crate::arena::{Arena, Limit};
use region::{Allocation, Protection};
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// Maximum size of a page: protected ranges begin and end at multiples of it.
const PAGE_BYTES: usize = 4096;
/// Size of an arena with its workspace.
const WHOLE_BYTES: usize = abi::WORKSPACE_BYTES + abi::ARENA_BYTES;
/// Size of three arenas with a page before and after each.
const ALL_BYTES: usize = PAGE_BYTES + 3 * (WHOLE_BYTES + PAGE_BYTES);
/// The neighbours are filled with this byte.
const CANARY: u8 = 0xa5;

const _: () = assert!(abi::ARENA_BYTES.is_multiple_of(PAGE_BYTES));

struct Guarded {
    mapping: Allocation,
    /// The second of the three arenas.
    arena: ManuallyDrop<Arena>,
}

thread_local! {
    static GUARDED: RefCell<Guarded> = RefCell::new(Guarded::new());
}

/// Calls with an arena whose workspace is accessible if `lowest` is its start, and whose data area
/// has this many accessible pages. An access to the rest of the arena ends the process.
///
/// # Panics
/// If the arenas before and after it have changed.
pub(super) fn with_arena(lowest: u64, pages: usize, call: impl FnOnce(&mut Arena, Limit)) {
    GUARDED.with_borrow_mut(|guarded| guarded.run(lowest, pages, call));
}

impl Guarded {
    fn new() -> Guarded {
        let mut mapping = region::alloc(ALL_BYTES, Protection::NONE).expect("address space");
        let start = mapping.as_mut_ptr::<u8>();
        let place = |index| start.wrapping_add(Guarded::offset(index));
        for index in 0..3 {
            // SAFETY: the three places are in the mapping, whose memory is not used yet.
            unsafe { region::protect(place(index), WHOLE_BYTES, Protection::READ_WRITE) }
                .expect("memory");
        }
        for neighbour in [0, 2] {
            // SAFETY: the place has WHOLE_BYTES, writable since the loop above.
            unsafe { std::ptr::write_bytes(place(neighbour), CANARY, WHOLE_BYTES) }
        }
        let place = NonNull::new(place(1)).expect("a mapping is not at 0");
        // SAFETY: zeroed memory of that size, which lives as long as the arena, in `mapping`.
        let arena = unsafe { Arena::at(place) };
        Guarded { mapping, arena }
    }

    /// Offset of an arena in the mapping.
    fn offset(index: usize) -> usize {
        PAGE_BYTES + index * (WHOLE_BYTES + PAGE_BYTES)
    }

    fn run(&mut self, lowest: u64, pages: usize, call: impl FnOnce(&mut Arena, Limit)) {
        let visible = pages * PAGE_BYTES;
        self.protect(lowest, visible);
        self.arena.data_mut(0..visible).fill(0x11);
        self.arena.begin_hop(0);
        let limit = self.arena.begin_call(0..visible, 0, 0, 0);
        call(&mut self.arena, limit);
        self.arena.wipe();
        for neighbour in [0, 2] {
            let is_whole = self.place(neighbour).iter().all(|byte| *byte == CANARY);
            assert!(is_whole, "another chain's arena was written to");
        }
    }

    /// Makes the memory inaccessible that a call may not access.
    fn protect(&mut self, lowest: u64, visible: usize) {
        let start = self.mapping.as_mut_ptr::<u8>().wrapping_add(Guarded::offset(1));
        let workspace =
            if lowest == abi::WORKSPACE { Protection::READ_WRITE } else { Protection::NONE };
        let hidden = abi::MAX_HOP_BYTES - visible;
        let data = start.wrapping_add(WHOLE_BYTES - abi::MAX_HOP_BYTES);
        let mut parts = vec![(start, abi::WORKSPACE_BYTES, workspace)];
        parts.push((data, visible, Protection::READ_WRITE));
        parts.push((data.wrapping_add(visible), hidden, Protection::NONE));
        for (at, len, protection) in parts.into_iter().filter(|(_, len, _)| *len > 0) {
            // SAFETY: whole pages of the arena's place in the mapping. The arena is borrowed
            // mutably, so no slice of them exists, and until the next call all uses stay below its
            // limit.
            unsafe { region::protect(at, len, protection) }.expect("pages of the mapping");
        }
    }

    fn place(&self, index: usize) -> &[u8] {
        let start = self.mapping.as_ptr::<u8>().wrapping_add(Guarded::offset(index));
        // SAFETY: a neighbour's place has WHOLE_BYTES that are readable and initialised.
        unsafe { std::slice::from_raw_parts(start, WHOLE_BYTES) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "another chain's arena was written to")]
    fn a_write_to_a_neighbour_is_noticed() {
        with_arena(abi::GUEST_BASE, 1, |arena, _| {
            let neighbour = arena.data_ptr().wrapping_add(abi::MAX_HOP_BYTES + PAGE_BYTES + 7);
            // SAFETY: the byte is in the third arena's place, which is writable.
            unsafe { neighbour.write(0) }
        });
    }

    /// An access to a guard page ends the process, so the test runs itself, by its name, as a
    /// child.
    #[test]
    #[cfg_attr(not(target_arch = "x86_64"), ignore = "an emulated program cannot start itself")]
    fn guards_are_where_the_arena_ends() {
        const CHILD: &str = "BPFOF_TOUCHES_A_GUARD";
        if let Ok(offset) = std::env::var(CHILD) {
            let offset: isize = offset.parse().expect("a number");
            with_arena(abi::GUEST_BASE, 2, |arena, _| {
                let byte = arena.data_ptr().wrapping_offset(offset);
                // SAFETY: inside of the mapping; if the byte is not accessible, the process
                // ends, which the parent expects.
                unsafe { byte.write_volatile(1) }
            });
            return;
        }
        let test = "fuzz::guarded::tests::guards_are_where_the_arena_ends";
        let ends = |offset: isize| {
            let me = std::env::current_exe().expect("this test");
            let mut child = std::process::Command::new(me);
            child.args(["--exact", test]).env(CHILD, offset.to_string());
            !child.output().expect("runs").status.success()
        };
        let below = -((abi::DATA - abi::GUEST_BASE) as isize);
        let beyond = 2 * PAGE_BYTES as isize;
        assert_eq!([below, beyond - 1].map(ends), [false; 2]);
        assert_eq!([below - 1, beyond].map(ends), [true; 2]);
    }
}
