//! The private memory of one chain: workspace, stack, context, scratch and data, in one allocation.
//!
//! `unsafe` is confined to the allocation itself; everything else is slices at fixed offsets.
#![allow(unsafe_code)]

use crate::abi::{self, context};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
#[cfg(feature = "fuzz")]
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Successive arenas are shifted by this many bytes relative to pages, so that their hot parts do not compete for the
/// same lines of the first-level cache. Also the alignment that direct I/O into the data area needs.
const COLOUR_BYTES: usize = 512;
const COLOURS: usize = PAGE_BYTES / COLOUR_BYTES;

const PAGE_BYTES: usize = 4096;

/// The workspace, the arena proper, a page for shifting, and a page for alignment. The allocator could align the memory
/// itself, but would then write zeroes into every page.
const ALLOCATION_BYTES: usize = abi::WORKSPACE_BYTES + abi::ARENA_BYTES + 2 * PAGE_BYTES;

/// In place of a serial number: static data of an earlier chain, which goes before the next call, whether or not its
/// program has static data.
const EARLIER: u64 = u64::MAX;

const LAYOUT: Layout = match Layout::from_size_align(ALLOCATION_BYTES, 16) {
    Ok(layout) => layout,
    Err(_) => panic!("the arena's size and alignment are constants that fit"),
};

const CONTEXT_AT: usize = (abi::CONTEXT - abi::GUEST_BASE) as usize;
const STATICS_AT: usize = (abi::STATICS - abi::GUEST_BASE) as usize;
const SCRATCH_AT: usize = (abi::SCRATCH - abi::GUEST_BASE) as usize;
const DATA_AT: usize = (abi::DATA - abi::GUEST_BASE) as usize;

/// All the memory that a storage function can address, initially zero.
///
/// Its address does not change while it lives, so a device may write into the data area.
#[derive(Debug)]
pub struct Arena {
    allocation: NonNull<u8>,
    /// The byte at [`abi::GUEST_BASE`], within the allocation; the workspace is before it.
    memory: NonNull<u8>,
    /// Whether functions could write to the workspace since it was zeroed.
    workspace_used: bool,
    /// Whether functions of the current chain could write to the workspace.
    chain_used_workspace: bool,
    /// Size of the chain's scratch, at most [`abi::MAX_SCRATCH_BYTES`].
    scratch_bytes: usize,
    /// Serial number of the program whose static data is in place; 0 if there is none, [`EARLIER`] if there is some of
    /// an earlier chain.
    statics_of: u64,
    /// Bytes of static data in place, of any program.
    statics_bytes: usize,
}

// SAFETY: the arena owns its allocation exclusively; no thread-bound state is attached to it.
unsafe impl Send for Arena {}

impl Default for Arena {
    fn default() -> Self {
        Arena::new()
    }
}

impl Arena {
    /// Bytes of memory that an arena takes at most.
    pub const MEMORY_BYTES: usize = ALLOCATION_BYTES;

    /// Allocates a zeroed arena, its data area aligned to 512 bytes. Pages that are never touched, in particular the
    /// workspace, take no physical memory.
    pub fn new() -> Arena {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        // SAFETY: LAYOUT has a non-zero size.
        let allocation = unsafe { alloc_zeroed(LAYOUT) };
        let Some(allocation) = NonNull::new(allocation) else { handle_alloc_error(LAYOUT) };
        let colour = MADE.fetch_add(1, Ordering::Relaxed) % COLOURS;
        let before = allocation.align_offset(PAGE_BYTES) + colour * COLOUR_BYTES;
        assert!(before < 2 * PAGE_BYTES);
        // SAFETY: the allocation has two pages more than the workspace and ARENA_BYTES.
        let memory = unsafe { allocation.add(before + abi::WORKSPACE_BYTES) };
        Arena {
            allocation,
            memory,
            workspace_used: false,
            chain_used_workspace: false,
            scratch_bytes: abi::DEFAULT_SCRATCH_BYTES,
            statics_of: 0,
            statics_bytes: 0,
        }
    }

    /// An arena in memory that it does not own and does not free; `workspace` is its beginning.
    ///
    /// # Safety
    /// From `workspace` on, WORKSPACE_BYTES and ARENA_BYTES are zeroed, and nothing else accesses them while the arena
    /// lives. If a part of them is not accessible, the limit of every call must be below it.
    #[cfg(feature = "fuzz")]
    pub(crate) unsafe fn at(workspace: NonNull<u8>) -> ManuallyDrop<Arena> {
        ManuallyDrop::new(Arena {
            allocation: workspace,
            // SAFETY: the caller's memory is larger than WORKSPACE_BYTES.
            memory: unsafe { workspace.add(abi::WORKSPACE_BYTES) },
            workspace_used: false,
            chain_used_workspace: false,
            scratch_bytes: abi::DEFAULT_SCRATCH_BYTES,
            statics_of: 0,
            statics_bytes: 0,
        })
    }

    /// The arena without its workspace; index 0 is guest address [`abi::GUEST_BASE`].
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: from `memory` on the allocation has ARENA_BYTES, initialised (zeroed) and borrowed with self.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), abi::ARENA_BYTES) }
    }

    /// The memory that a call may access: from guest address `lowest`, which is [`abi::WORKSPACE`] or
    /// [`abi::GUEST_BASE`], up to its limit.
    #[inline]
    pub(crate) fn accessible_mut(&mut self, lowest: u64, limit: Limit) -> &mut [u8] {
        let before = (abi::GUEST_BASE - lowest) as usize;
        assert!(before <= abi::WORKSPACE_BYTES);
        self.workspace_used |= before != 0;
        self.chain_used_workspace |= before != 0;
        let len = before + limit.bytes();
        // SAFETY: as in `bytes_mut`; WORKSPACE_BYTES before `memory` belong to the allocation, and
        // a limit is at most ARENA_BYTES.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr().sub(before), len) }
    }

    /// The workspace.
    pub fn workspace(&self) -> &[u8] {
        // SAFETY: as in `bytes`, for the WORKSPACE_BYTES before `memory`.
        unsafe {
            let start = self.memory.as_ptr().sub(abi::WORKSPACE_BYTES);
            std::slice::from_raw_parts(start, abi::WORKSPACE_BYTES)
        }
    }

    /// The arena without its workspace, mutable; index 0 is guest address [`abi::GUEST_BASE`].
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and self is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), abi::ARENA_BYTES) }
    }

    /// Start of the data area, for devices that write there on their own. Valid for [`abi::MAX_HOP_BYTES`] bytes while
    /// the arena lives. While a device may write, no slice of the arena may exist.
    pub fn data_ptr(&mut self) -> *mut u8 {
        // SAFETY: DATA_AT is inside the allocation.
        unsafe { self.memory.as_ptr().add(DATA_AT) }
    }

    /// A range of the data area, in bytes from its start.
    ///
    /// # Panics
    /// If the range leaves the data area: ranges come from the engine, which bounds them.
    pub fn data_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.bytes_mut()[DATA_AT..][range]
    }

    /// The scratch buffer, as long as [`begin_chain`](Arena::begin_chain) made it; before the
    /// first chain [`abi::DEFAULT_SCRATCH_BYTES`].
    pub fn scratch(&self) -> &[u8] {
        &self.bytes()[SCRATCH_AT..SCRATCH_AT + self.scratch_bytes]
    }

    /// Serial number of the last program whose static data [`place_statics`](Arena::place_statics) has placed in this
    /// chain, or 0.
    #[inline]
    pub(crate) fn statics_of(&self) -> u64 {
        self.statics_of
    }

    /// Places the static data of the program with this serial number, in place of all static data of the previous
    /// program.
    ///
    /// # Panics
    /// If it is longer than [`abi::STATICS_BYTES`]: the linker bounds it.
    pub(crate) fn place_statics(&mut self, image: &[u8], serial: u64) {
        self.statics_of = serial;
        let before = std::mem::replace(&mut self.statics_bytes, image.len());
        let statics = &mut self.bytes_mut()[STATICS_AT..SCRATCH_AT];
        statics[..image.len()].copy_from_slice(image);
        if let Some(rest) = statics.get_mut(image.len()..before) {
            rest.fill(0);
        }
    }

    /// Zeroes stack, context, static data, the largest possible scratch, and the workspace if it was used, so that the
    /// next tenant finds nothing of the previous one. The data area needs no wiping: a call sees only the data read for
    /// its hop. Reads are whole units of the namespace, so a call also sees bytes around its block, even past the end
    /// of the file.
    pub fn wipe(&mut self) {
        self.bytes_mut()[..DATA_AT].fill(0);
        self.statics_bytes = 0;
        if self.workspace_used {
            self.accessible_mut(abi::WORKSPACE, Limit(0)).fill(0);
            self.workspace_used = false;
        }
    }

    /// Begins a chain with a scratch of `scratch_bytes`: copies the argument to its start, and zeroes the rest of it
    /// and the context. Bytes behind scratch stay as earlier chains left them, because zeroing more than the chain uses
    /// costs time and evicts other data from the cache.
    ///
    /// # Panics
    /// If the argument is longer than scratch, or scratch than [`abi::MAX_SCRATCH_BYTES`]: the
    /// request's parser bounds both.
    pub fn begin_chain(&mut self, argument: &[u8], scratch_bytes: usize) {
        assert!(scratch_bytes <= abi::MAX_SCRATCH_BYTES);
        self.scratch_bytes = scratch_bytes;
        self.statics_of = if self.statics_bytes == 0 { 0 } else { EARLIER };
        self.chain_used_workspace = false;
        self.bytes_mut()[CONTEXT_AT..CONTEXT_AT + context::BYTES].fill(0);
        let scratch = &mut self.bytes_mut()[SCRATCH_AT..SCRATCH_AT + scratch_bytes];
        let (head, tail) = scratch.split_at_mut(argument.len());
        head.copy_from_slice(argument);
        tail.fill(0);
    }

    /// Copies the state of a chain between two hops: its context, scratch, static data, and the workspace if the chain
    /// used it.
    pub fn save(&self) -> SavedArena {
        // Before its first call a chain has no static data of its own.
        let statics_of = if self.statics_of == EARLIER { 0 } else { self.statics_of };
        let statics = match statics_of {
            0 => Box::default(),
            _ => self.bytes()[STATICS_AT..SCRATCH_AT].into(),
        };
        SavedArena {
            context: self.bytes()[CONTEXT_AT..CONTEXT_AT + context::BYTES].into(),
            scratch: self.scratch().into(),
            statics_of,
            statics,
            workspace: self.chain_used_workspace.then(|| self.workspace().into()),
        }
    }

    /// Restores a [saved](Arena::save) state of this arena or another.
    pub fn restore(&mut self, saved: &SavedArena) {
        self.begin_chain(&saved.scratch, saved.scratch.len());
        self.bytes_mut()[CONTEXT_AT..CONTEXT_AT + context::BYTES].copy_from_slice(&saved.context);
        if saved.statics_of != 0 {
            self.place_statics(&saved.statics, saved.statics_of);
        }
        if let Some(workspace) = &saved.workspace {
            self.accessible_mut(abi::WORKSPACE, Limit(0))[..abi::WORKSPACE_BYTES]
                .copy_from_slice(workspace);
        }
    }

    /// Writes a u32 field of the context (see [`abi::context`]).
    #[inline]
    pub fn set_context_u32(&mut self, at: usize, value: u32) {
        let at = CONTEXT_AT + at;
        self.bytes_mut()[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Writes a u64 field of the context.
    #[inline]
    pub fn set_context_u64(&mut self, at: usize, value: u64) {
        let at = CONTEXT_AT + at;
        self.bytes_mut()[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// Reads a u32 field of the context.
    #[inline]
    pub fn context_u32(&self, at: usize) -> u32 {
        let at = CONTEXT_AT + at;
        u32::from_le_bytes(self.bytes()[at..at + 4].try_into().expect("4 bytes"))
    }

    /// Reads a u64 field of the context.
    #[inline]
    pub fn context_u64(&self, at: usize) -> u64 {
        let at = CONTEXT_AT + at;
        u64::from_le_bytes(self.bytes()[at..at + 8].try_into().expect("8 bytes"))
    }

    /// Clears the outputs at the start of a hop: the counts, and the reads that the last hop requested.
    #[inline]
    pub fn begin_hop(&mut self, hop: u32) {
        let asked = (self.context_u32(context::READS) as usize).min(abi::MAX_READS);
        self.clear_next(0);
        for index in 1..asked {
            self.clear_next(index);
        }
        self.set_context_u32(context::HOP, hop);
        self.set_context_u32(context::READS, 0);
        self.set_context_u32(context::DONE, 0);
        self.set_context_u32(context::OUT_LEN, 0);
    }

    #[inline]
    fn clear_next(&mut self, index: usize) {
        self.set_context_u64(context::NEXT_OFFSET + 8 * index, 0);
        self.set_context_u32(context::NEXT_SIZE + 4 * index, 0);
        self.set_context_u32(context::NEXT_FILE + 4 * index, 0);
    }

    /// Writes the inputs of one call: the block at `data` (bytes from the start of the data area),
    /// read from `offset_bytes` of file number `file`. Returns the limit of the call for
    /// [`NativeFunction::call`](crate::NativeFunction::call) and
    /// [`interpret`](crate::interpret()).
    #[inline]
    pub fn begin_call(
        &mut self,
        data: Range<usize>,
        offset_bytes: u64,
        file: u32,
        read_index: u32,
    ) -> Limit {
        assert!(data.start <= data.end && data.end <= abi::MAX_HOP_BYTES);
        self.set_context_u64(context::DATA, abi::DATA + data.start as u64);
        self.set_context_u64(context::DATA_END, abi::DATA + data.end as u64);
        self.set_context_u64(context::SCRATCH, abi::SCRATCH);
        self.set_context_u64(context::OFFSET, offset_bytes);
        self.set_context_u32(context::SCRATCH_SIZE, self.scratch_bytes as u32);
        self.set_context_u32(context::READ_INDEX, read_index);
        self.set_context_u32(context::FILE, file);
        Limit(DATA_AT + data.end)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout, freed once.
        unsafe { dealloc(self.allocation.as_ptr(), LAYOUT) }
    }
}

/// The state of a chain between two hops, outside of an arena. See [`Arena::save`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedArena {
    context: Box<[u8]>,
    scratch: Box<[u8]>,
    statics_of: u64,
    statics: Box<[u8]>,
    workspace: Option<Box<[u8]>>,
}

impl SavedArena {
    /// A state saved from other memory than an arena's: context, scratch, static data with its serial number, and the
    /// workspace if it was used.
    pub(crate) fn of_parts(
        context: &[u8],
        scratch: &[u8],
        (statics_of, statics): (u64, &[u8]),
        workspace: Option<&[u8]>,
    ) -> SavedArena {
        let statics = if statics_of == 0 { Box::default() } else { statics.into() };
        let workspace = workspace.map(Into::into);
        SavedArena {
            context: context.into(),
            scratch: scratch.into(),
            statics_of,
            statics,
            workspace,
        }
    }

    /// Bytes of memory that it takes, without the structure itself.
    pub fn bytes(&self) -> usize {
        let workspace = self.workspace.as_ref().map_or(0, |workspace| workspace.len());
        self.context.len() + self.scratch.len() + self.statics.len() + workspace
    }
}

/// The end of the memory that a call may access, in bytes from the start of the arena. Bytes beyond may belong to an
/// earlier chain.
#[derive(Clone, Copy, Debug)]
pub struct Limit(usize);

impl Limit {
    /// Bytes from the start of the arena: at least up to the data area, at most [`abi::ARENA_BYTES`].
    pub fn bytes(self) -> usize {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_data_of_another_function_goes() {
        let mut arena = Arena::new();
        arena.begin_chain(&[], 64);
        arena.place_statics(&[7; 300], 1);
        arena.place_statics(&[8; 20], 2);
        assert_eq!(arena.bytes()[STATICS_AT..][..20], [8; 20]);
        assert_eq!(arena.bytes()[STATICS_AT + 20..SCRATCH_AT], [0; abi::STATICS_BYTES - 20]);
        // A saved image may have the maximum length.
        let saved = {
            arena.place_statics(&[9; abi::STATICS_BYTES], 3);
            arena.save()
        };
        arena.begin_chain(&[], 64);
        arena.place_statics(&[1], 4);
        arena.restore(&saved);
        assert_eq!((arena.statics_of(), arena.bytes()[SCRATCH_AT - 1]), (3, 9));
        arena.place_statics(&[1], 4);
        assert_eq!(arena.bytes()[STATICS_AT + 1..SCRATCH_AT], [0; abi::STATICS_BYTES - 1]);
        // Nor does the next chain find any, if its function has none.
        for is_saved in [false, true] {
            arena.place_statics(&[6; 40], 5);
            arena.begin_chain(&[], 64);
            if is_saved {
                let saved = arena.save();
                arena.restore(&saved);
            }
            crate::statics::Statics::default().begin_call(&mut arena);
            assert_eq!(arena.bytes()[STATICS_AT..SCRATCH_AT], [0; abi::STATICS_BYTES]);
        }
    }

    #[test]
    fn only_a_chain_that_used_the_workspace_takes_it_along() {
        let mut arena = Arena::new();
        arena.begin_chain(&[], 64);
        arena.accessible_mut(abi::WORKSPACE, Limit(0))[5] = 6;
        let saved = arena.save();
        assert!(saved.bytes() > abi::WORKSPACE_BYTES);
        arena.begin_chain(&[], 64);
        assert!(arena.save().bytes() < abi::WORKSPACE_BYTES);
        arena.restore(&saved);
        assert_eq!(arena.save(), saved);
        arena.wipe();
        assert_eq!(arena.workspace()[5], 0);
    }
}
