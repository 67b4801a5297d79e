//! The layout that a storage function sees, shared with `functions/include/bpfof.h`.
//!
//! Guest addresses run upwards; the first page is not mapped, so that a null pointer faults:
//!
//! ```text
//!  1000h  workspace; accessible for functions that ask for it anywhere in their code
//! 11000h  stack, 8 frames of 512 bytes, the entry's frame on top
//! 12000h  context (struct bpfof_ctx)
//! 12400h  static data of the function: constants, then variables
//! 13000h  scratch
//! 17000h  data read in this hop; accessible up to the end of the current call's block
//! ```
//!
//! A call may access a single range, from the workspace or the stack up to the end of the block, so one comparison
//! checks an access.

/// The value that a function has for its first map; those of further maps follow. They are not addresses: the first
/// page is not mapped. Nor are they numbers that arise by chance, as 0 and 1 do.
pub const MAPS: u64 = 0x800;
/// Guest address of the workspace, the lowest of all.
pub const WORKSPACE: u64 = 0x1000;
/// Size of the workspace in bytes: a hop's worth of data, decompressed.
pub const WORKSPACE_BYTES: usize = MAX_HOP_BYTES;
/// Lowest guest address of functions without a workspace: their accesses below it fault.
pub const GUEST_BASE: u64 = WORKSPACE + WORKSPACE_BYTES as u64;
/// Bytes of stack of one frame (RFC 9669 leaves the size to the platform; Linux and clang use 512).
pub const FRAME_BYTES: u64 = 512;
/// Maximum depth of calls, the entry included (as in Linux).
pub const MAX_FRAMES: u64 = 8;
/// Guest address of the top of the entry function's stack frame: the first value of r10.
pub const STACK_TOP: u64 = GUEST_BASE + MAX_FRAMES * FRAME_BYTES;
/// Guest address of the context.
pub const CONTEXT: u64 = GUEST_BASE + 0x1000;
/// Guest address of the function's static data.
pub const STATICS: u64 = CONTEXT + 0x400;
/// Room for static data in bytes: up to scratch.
pub const STATICS_BYTES: usize = 0xc00;
/// Guest address of scratch.
pub const SCRATCH: u64 = STATICS + STATICS_BYTES as u64;
/// Size of scratch in bytes for a request that declares none (XRP §4.1.1).
pub const DEFAULT_SCRATCH_BYTES: usize = 4096;
/// Largest scratch that a request may declare, in bytes. It holds a BPF-KV range of 226 pairs in one answer; the
/// default size takes five answers, each with a round trip of its own.
pub const MAX_SCRATCH_BYTES: usize = 16384;
/// Guest address of the data of a hop. Arenas align it to 512 bytes for direct I/O.
pub const DATA: u64 = SCRATCH + MAX_SCRATCH_BYTES as u64;
/// Bytes that one hop may read, all reads together. Each read is rounded out to logical blocks, or to 64 bytes if the
/// namespace is memory.
pub const MAX_HOP_BYTES: usize = 65536;
/// Maximum number of reads of one hop (XRP §4.1.1: fan-out 16).
pub const MAX_READS: usize = 16;
/// Size of an arena in bytes, from [`GUEST_BASE`] on.
pub const ARENA_BYTES: usize = (DATA - GUEST_BASE) as usize + MAX_HOP_BYTES;

/// The longest line that a function may add to its trace, in bytes: a short sentence.
pub const TRACE_BYTES: usize = 64;

/// Maximum instructions of one program. Bounds compile time (about 8 µs an instruction) and code memory.
pub const MAX_INSTRUCTIONS: usize = 4096;
/// Maximum calls in one program, of helpers and of its own functions: a call takes much longer to compile than other
/// instructions.
pub const MAX_CALLS: usize = 1024;
/// Maximum jumps backwards in one program. The time of register allocation grows with their square: it is 2.8 s for a
/// thousand jumps that lead into each other's loops. The programs of this project have up to 70.
pub const MAX_JUMPS_BACK: usize = 256;
/// Maximum effort of compiling one program: an instruction counts 1, a call [`CALL_EFFORT`] more; an entry that is also
/// called is compiled, and counts, twice. The time of register allocation grows with the square of the effort: it is
/// about 0.3 s at this limit.
pub const MAX_EFFORT: usize = 5120;
/// Effort of a call, beside the 1 of every instruction.
pub const CALL_EFFORT: usize = 3;
/// Maximum size of an object file in bytes: room for debug information of the largest program.
pub const MAX_OBJECT_BYTES: usize = 1 << 20;

/// Offsets of the fields of `struct bpfof_ctx`, in bytes from [`CONTEXT`].
pub mod context {
    /// `data`: guest address of the call's block.
    pub const DATA: usize = 0;
    /// `data_end`: guest address of its end.
    pub const DATA_END: usize = 8;
    /// `scratch`: guest address of scratch.
    pub const SCRATCH: usize = 16;
    /// `offset`: file offset of the block in bytes.
    pub const OFFSET: usize = 24;
    /// `scratch_size`: bytes that the request declared.
    pub const SCRATCH_SIZE: usize = 32;
    /// `hop`: from 0.
    pub const HOP: usize = 36;
    /// `read_index`: index of the read within the hop.
    pub const READ_INDEX: usize = 40;
    /// `file`: index into the request's file list.
    pub const FILE: usize = 44;
    /// `reads`: entries of the `next_*` arrays that are set.
    pub const READS: usize = 48;
    /// `done`: non-zero ends the chain.
    pub const DONE: usize = 52;
    /// `out_len`: length of the answer in bytes.
    pub const OUT_LEN: usize = 56;
    /// `next_offset[16]`, u64 file offsets in bytes.
    pub const NEXT_OFFSET: usize = 64;
    /// `next_size[16]`, u32 sizes in bytes.
    pub const NEXT_SIZE: usize = 192;
    /// `next_file[16]`, u32 indices.
    pub const NEXT_FILE: usize = 256;
    /// Size of the whole context.
    pub const BYTES: usize = 320;
}
