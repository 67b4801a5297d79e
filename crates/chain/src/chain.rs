//! The parameters, reads, results and errors of a chain.

use bpfof_function::{Fault, FaultKind};
use bpfof_nvme::Status;

/// Budgets of one chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Hops.
    pub hops: u32,
    /// Bytes read, each read rounded out to [`Start::unit_bytes`].
    pub bytes: u64,
    /// Units of processor time ([`bpfof_function::cost`]), all calls together.
    pub instructions: u64,
    /// Units of one call: bounds how long one call keeps the thread from other work.
    pub instructions_per_call: u32,
    /// Chains one engine runs at a time. Each takes an arena of
    /// [`ARENA_BYTES`](bpfof_function::abi::ARENA_BYTES).
    pub chains: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            // A scan of all leaves of a 6-level BPF-KV database takes 28.6 million hops.
            hops: 1 << 25,
            bytes: 1 << 40,
            instructions: 1 << 36,
            // 200 µs.
            instructions_per_call: 1_000_000,
            chains: 1024,
        }
    }
}

/// A file as the request names it: its id, and the version that the host expects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileVersion {
    /// File id of the association.
    pub id: u32,
    /// Version of its map.
    pub version: u64,
}

/// The parameters of a new chain.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// Identifies the chain's owner. An arena is wiped when it goes from one owner to another.
    pub owner: u64,
    /// The namespace read.
    pub namespace: u32,
    /// The namespace's unit of reads in bytes: reads are rounded out to it. A power of two, at most the logical block
    /// size that file maps use.
    pub unit_bytes: u32,
    /// The function to run.
    pub function: u32,
    /// The files the chain may read, 1 to [`MAX_READS`](bpfof_function::abi::MAX_READS).
    pub files: &'a [FileVersion],
    /// Index into `files` of the first read.
    pub first_file: u32,
    /// File offset of the first read in bytes.
    pub first_offset_bytes: u64,
    /// Size of the first read in bytes.
    pub first_size_bytes: u32,
    /// Prefix of scratch, at most `scratch_bytes` long.
    pub argument: &'a [u8],
    /// Size of scratch in bytes, at most [`MAX_SCRATCH_BYTES`](bpfof_function::abi::MAX_SCRATCH_BYTES).
    pub scratch_bytes: u32,
    /// The longest answer the host accepts, in bytes.
    pub answer_max_bytes: u32,
}

/// Names a chain of one engine while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainId(pub(crate) u32);

impl ChainId {
    /// A small number, for tables beside the engine: below the engine's limit of chains.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The chain with this index.
    pub fn from_index(index: usize) -> ChainId {
        ChainId(index as u32)
    }
}

/// A read the engine asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRead {
    /// For which chain.
    pub chain: ChainId,
    /// Offset in the namespace in bytes, a multiple of the unit.
    pub device_offset: u64,
    /// Length in bytes, a multiple of the unit.
    pub length: u32,
    /// Where the data goes, in bytes from the start of the chain's data area.
    pub data_at: u32,
}

/// A chain's successful end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Hops done.
    pub hops: u32,
    /// The answer is this many bytes from the start of scratch.
    pub length_bytes: u32,
}

/// What a chain has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The function that the request names.
    pub function: u32,
    /// The function that ran last: it differs from `function` after tail calls.
    pub last_function: u32,
    /// Hops started.
    pub hops: u32,
    /// Bytes read or being read, in whole units.
    pub bytes: u64,
    /// Units of processor time that its functions have paid ([`bpfof_function::cost`]).
    pub units: u64,
}

/// A read of a hop, as the function requested it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRead {
    /// The file's id.
    pub file: u32,
    /// File offset in bytes.
    pub offset_bytes: u64,
    /// Size in bytes.
    pub size_bytes: u32,
}

/// How a chain ends. An error comes with the number of hops started.
pub type Outcome = Result<Answer, (ChainError, u32)>;

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The chain waits for reads: the remaining ones of this hop, or those of the next hop, which have been emitted.
    Reads,
    /// This hop has more calls than the engine makes at a time: [`Engine::go_on`](crate::Engine::go_on) makes the next.
    Calls,
    /// The hop is done and its next reads have not been emitted, because the chain is to
    /// [give way](crate::Engine::give_way): [`Engine::suspend`](crate::Engine::suspend) takes it out.
    Rest,
    /// The chain has ended: take the answer from [`scratch`](crate::Engine::scratch), then
    /// [`release`](crate::Engine::release) the chain.
    Done(Outcome),
}

/// Why a chain failed. The numbers are indices into the request's file list unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// No function with the id of the request, or it was unloaded meanwhile.
    #[error("unknown function")]
    UnknownFunction,
    /// No map for a file of the request.
    #[error("file {0} of the request has no map")]
    UnknownFile(u32),
    /// A map has a version other than the one in the request.
    #[error("file {0} of the request has a map of another version")]
    StaleFileMap(u32),
    /// A read that touches an unmapped part of the file, or goes past its end.
    #[error("read outside file {0} of the request")]
    OutsideFile(u32),
    /// [`Limits::hops`].
    #[error("hop budget exhausted")]
    HopBudget,
    /// [`Limits::bytes`].
    #[error("byte budget exhausted")]
    ByteBudget,
    /// A call of the function faulted, or an instruction budget is exhausted.
    #[error("{0}")]
    Fault(Fault),
    /// The function returned this code.
    #[error("the function aborted with code {0}")]
    Abort(u32),
    /// The function's outputs are invalid.
    #[error("{0}")]
    InvalidOutput(InvalidOutput),
    /// The answer has this many bytes, more than the host accepts.
    #[error("the answer of {0} bytes is longer than the host accepts")]
    AnswerTooLong(u32),
    /// The device could not read.
    #[error("the device failed to read")]
    Device,
    /// A read was cancelled: the chain may run again.
    #[error("the device was reset while it read")]
    Interrupted,
    /// [`Limits::chains`].
    #[error("too many chains are running")]
    TooManyChains,
}

/// What is wrong with a function's outputs. The discriminants go over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidOutput {
    /// Neither done nor a read.
    #[error("the function neither ended the chain nor asked for a read")]
    NoProgress = 1,
    /// `reads` is more than [`MAX_READS`](bpfof_function::abi::MAX_READS).
    #[error("the function asked for more than 16 reads")]
    TooManyReads = 2,
    /// A read of a file that the request does not list.
    #[error("the function asked for a file that the request does not list")]
    NoSuchFile = 3,
    /// The reads of the hop do not fit [`MAX_HOP_BYTES`](bpfof_function::abi::MAX_HOP_BYTES).
    #[error("the function asked for more than 64 KiB in one hop")]
    HopTooLarge = 4,
    /// `out_len` is more than [`Start::scratch_bytes`].
    #[error("the answer is longer than scratch")]
    AnswerOutsideScratch = 5,
}

impl ChainError {
    /// How a target reports it (docs/protocol.md, Statuses): the status, and DW0 of the completion.
    pub fn status(&self) -> (Status, u32) {
        match *self {
            ChainError::UnknownFunction => (Status::UNKNOWN_FUNCTION, 0),
            ChainError::UnknownFile(index) => (Status::UNKNOWN_FILE, index),
            ChainError::StaleFileMap(index) => (Status::STALE_FILE_MAP, index),
            ChainError::OutsideFile(index) => (Status::READ_OUTSIDE_FILE, index),
            ChainError::HopBudget => (Status::HOP_BUDGET_EXHAUSTED, 0),
            ChainError::ByteBudget => (Status::BYTE_BUDGET_EXHAUSTED, 0),
            ChainError::Fault(fault) if self.is_instruction_budget() => {
                (Status::INSTRUCTION_BUDGET_EXHAUSTED, fault.pc)
            }
            ChainError::Fault(fault) => (Status::FUNCTION_FAULT, fault.pc),
            ChainError::Abort(code) => (Status::FUNCTION_ABORT, code),
            ChainError::InvalidOutput(output) => (Status::INVALID_FUNCTION_OUTPUT, output as u32),
            ChainError::AnswerTooLong(length) => (Status::ANSWER_TOO_LONG, length),
            ChainError::Device => (Status::UNRECOVERED_READ_ERROR, 0),
            ChainError::Interrupted => (Status::COMMAND_INTERRUPTED, 0),
            ChainError::TooManyChains => (Status::RESOURCE_LIMIT, 0),
        }
    }

    /// True for an exhausted instruction budget.
    pub fn is_instruction_budget(&self) -> bool {
        matches!(self, ChainError::Fault(Fault { kind: FaultKind::Budget, .. }))
    }
}
