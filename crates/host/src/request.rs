//! Requests to a lane, and their completions.

use crate::RequestError;
use bpfof_nvme::Sqe;
use bpfof_nvme::opcode::command_name;
use bpfof_nvme::vendor_specific::{
    FileVersion, FirstReads, PushdownParts, PushdownVectorParts, VectorArguments,
};

/// A request. Offsets and lengths are in bytes and multiples of the namespace's logical block.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// Read into the lane's memory; the completion has the data.
    Read {
        /// Namespace.
        nsid: u32,
        /// Offset in the namespace.
        offset_bytes: u64,
        /// Length, not 0.
        length_bytes: u32,
    },
    /// Write.
    Write {
        /// Namespace.
        nsid: u32,
        /// Offset in the namespace.
        offset_bytes: u64,
        /// Data to write, not empty; copied before `submit` returns.
        data: &'a [u8],
        /// Complete only when the data is on stable storage.
        fua: bool,
    },
    /// Bring all completed writes to stable storage.
    Flush {
        /// Namespace.
        nsid: u32,
    },
    /// Make a range read as zeroes.
    WriteZeroes {
        /// Namespace.
        nsid: u32,
        /// Offset in the namespace.
        offset_bytes: u64,
        /// Length, not 0.
        length_bytes: u32,
        /// Complete only when the zeroes are on stable storage.
        fua: bool,
    },
    /// Run a storage function on a chain of reads at the target.
    Pushdown(PushdownCall<'a>),
    /// Run a storage function on many chains. Parse the data of the completion with
    /// [`VectorAnswer::parse`](crate::VectorAnswer::parse), unless the command as a whole is refused.
    PushdownVector(&'a PushdownVectorCall<'a>),
    /// Any command. Its identifier, flags and data pointer are filled in.
    Raw {
        /// The command.
        sqe: Sqe,
        /// Data to send; copied before `submit` returns.
        data_out: &'a [u8],
        /// Most data to accept.
        data_in_max_bytes: u32,
    },
}

impl Request<'_> {
    /// The command's name, for errors.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Request::Read { .. } => "Read",
            Request::Write { .. } => "Write",
            Request::Flush { .. } => "Flush",
            Request::WriteZeroes { .. } => "Write Zeroes",
            Request::Pushdown(_) => "Pushdown",
            Request::PushdownVector(_) => "Pushdown Vector",
            Request::Raw { sqe, .. } => {
                command_name(false, sqe.opcode, sqe.nsid as u8).unwrap_or("a command")
            }
        }
    }
}

/// A chain of reads that a storage function follows at the target (docs/protocol.md, Pushdown).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushdownCall<'a> {
    /// Namespace of the files.
    pub nsid: u32,
    /// Function, as [`Controller::load_function`](crate::Controller::load_function) names it.
    pub function: u32,
    /// The files it may read, and the versions this host believes their maps to have.
    pub files: &'a [FileVersion],
    /// File of the first read, an index into `files`.
    pub first_file: u16,
    /// File offset of the first read.
    pub first_offset_bytes: u64,
    /// Size of the first read.
    pub first_size_bytes: u32,
    /// The argument: the first bytes of scratch. The rest is zero. It travels in the command's
    /// capsule, which limits its length.
    pub scratch: &'a [u8],
    /// Size of scratch in bytes: at least the argument, and at most what [`PushdownLimits`](crate::PushdownLimits)
    /// says. The target clears this many bytes for each chain, and no answer is longer. 0 is the default, 4096.
    pub scratch_size_bytes: u32,
    /// Longest answer to accept.
    pub answer_max_bytes: u32,
}

impl<'a> PushdownCall<'a> {
    /// The request in its form for encoding.
    pub(crate) const fn parts(&self) -> PushdownParts<'a> {
        PushdownParts {
            function: self.function,
            files: self.files,
            first_file: self.first_file,
            first_offset_bytes: self.first_offset_bytes,
            first_size_bytes: self.first_size_bytes,
            scratch: self.scratch,
            answer_max_bytes: self.answer_max_bytes,
            scratch_size_bytes: self.scratch_size_bytes,
        }
    }
}

/// Many chains of one storage function over one list of files (docs/protocol.md, Pushdown Vector). A target supports
/// the command if `vector_chains` of its [`PushdownLimits`](crate::PushdownLimits) is not 0, and accepts that many
/// chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushdownVectorCall<'a> {
    /// Namespace of the files.
    pub nsid: u32,
    /// Function, as [`Controller::load_function`](crate::Controller::load_function) names it.
    pub function: u32,
    /// The files that the chains may read, and the versions this host believes their maps to have.
    pub files: &'a [FileVersion],
    /// The first reads.
    pub first: FirstReads<'a>,
    /// The arguments, and with them the number of chains. They travel in the command's capsule with the rest of the
    /// request, which limits their length ([`encoded_bytes`](Self::encoded_bytes)).
    pub arguments: VectorArguments<'a>,
    /// Size of each chain's scratch, as in [`PushdownCall`]. 0 is the default, 4096.
    pub scratch_size_bytes: u32,
    /// Longest answer of one chain to accept.
    pub answer_max_bytes: u32,
    /// Longest answer of the command to accept, up to `vector_bytes` of the limits.
    /// [`VectorAnswer::room_bytes`](crate::VectorAnswer::room_bytes) is enough for any answers; with less, a chain may
    /// end with [`VECTOR_FULL`](crate::Status::VECTOR_FULL) and must be sent again.
    pub room_bytes: u32,
}

impl<'a> PushdownVectorCall<'a> {
    /// The request in its form for encoding.
    pub(crate) const fn parts(&self) -> PushdownVectorParts<'a> {
        PushdownVectorParts {
            function: self.function,
            files: self.files,
            first: self.first,
            arguments: self.arguments,
            scratch_size_bytes: self.scratch_size_bytes,
            answer_max_bytes: self.answer_max_bytes,
            room_bytes: self.room_bytes,
        }
    }

    /// Length of the request in the capsule, in bytes; a lane accepts up to
    /// [`in_capsule_bytes`](crate::Lane::in_capsule_bytes).
    #[must_use]
    pub const fn encoded_bytes(&self) -> usize {
        self.parts().encoded_bytes()
    }
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion<'a> {
    /// The tag that was given to `submit`.
    pub tag: u64,
    /// Its result.
    pub result: Result<Done<'a>, RequestError>,
}

/// A request that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done<'a> {
    /// The data read, or the answer of a chain. Valid during the call only.
    pub data: &'a [u8],
    /// Dword 0 of the completion; of a chain, the number of hops.
    pub dw0: u32,
    /// Dword 1 of the completion; of a chain, the length of the answer.
    pub dw1: u32,
}
