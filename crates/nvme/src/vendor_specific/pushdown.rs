//! The requests of Pushdown (83h) and Pushdown Short (82h).

use super::{Malformed, malformed};
use crate::bytes::{get, put};
use crate::opcode::nvm;
use crate::{Sgl, Sqe};

/// A file and the version that the host expects its map to have (protocol.md, Pushdown).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileVersion {
    /// File id; 0 is the whole namespace.
    pub id: u32,
    /// Version of its map.
    pub version: u64,
}

/// The fixed part of a Pushdown request (protocol.md, Pushdown, offsets 0 to 31).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushdownHeader {
    /// Function id (offset 0).
    pub function: u32,
    /// Number of files (offset 4).
    pub files: u16,
    /// File of the first read, an index into the list (offset 6).
    pub first_file: u16,
    /// File offset of the first read (offset 8).
    pub first_offset_bytes: u64,
    /// Size of the first read (offset 16).
    pub first_size_bytes: u32,
    /// Length of the scratch prefix (offset 20).
    pub scratch_bytes: u32,
    /// Longest answer that the host accepts (offset 24).
    pub answer_max_bytes: u32,
    /// Size of the chain's scratch; 0 means [`DEFAULT_SCRATCH_BYTES`] (offset 28).
    pub scratch_size_bytes: u32,
}

/// Size of the scratch of a request that declares none, in bytes (protocol.md, Pushdown).
pub const DEFAULT_SCRATCH_BYTES: u32 = 4096;

/// Size of the scratch of a request that declares this size, in bytes: 0 means the default.
#[must_use]
pub const fn effective_scratch_bytes(declared: u32) -> u32 {
    match declared {
        0 => DEFAULT_SCRATCH_BYTES,
        declared => declared,
    }
}

const HEADER_BYTES: usize = 32;
const FILE_BYTES: usize = 16;

impl PushdownHeader {
    /// Size of the chain's scratch in bytes: what the request declares, or the default.
    #[must_use]
    pub const fn effective_scratch_bytes(&self) -> u32 {
        effective_scratch_bytes(self.scratch_size_bytes)
    }
}

/// A Pushdown request as received: checked, and still in the buffer it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushdownRequest<'a> {
    header: PushdownHeader,
    files: &'a [[u8; FILE_BYTES]],
    scratch: &'a [u8],
}

impl<'a> PushdownRequest<'a> {
    /// Size of the fixed part, in bytes.
    pub const HEADER_BYTES: usize = HEADER_BYTES;
    /// Size of an entry of the file list, in bytes.
    pub const FILE_BYTES: usize = FILE_BYTES;
    /// Offset of the scratch size, which is reported when it is above the target's limit.
    pub const SCRATCH_SIZE_AT: u32 = 28;
    /// Offset of the first read's size, which is reported when the target does not accept it.
    pub const FIRST_SIZE_AT: u32 = 16;

    /// Parses a request of exactly `bytes`. The target checks all limits other than the number of
    /// files.
    ///
    /// # Errors
    /// [`Malformed`] for a request that is too short or too long for its counts, names no file or
    /// more than `max_files`, starts at a file it does not list, has a scratch that does not hold
    /// its prefix, or sets a reserved field.
    #[inline]
    pub fn parse(bytes: &'a [u8], max_files: u16) -> Result<Self, Malformed> {
        let Some((fixed, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return malformed(bytes.len());
        };
        let header = PushdownHeader {
            function: get(fixed, 0),
            files: get(fixed, 4),
            first_file: get(fixed, 6),
            first_offset_bytes: get(fixed, 8),
            first_size_bytes: get(fixed, 16),
            scratch_bytes: get(fixed, 20),
            answer_max_bytes: get(fixed, 24),
            scratch_size_bytes: get(fixed, 28),
        };
        if header.files == 0 || header.files > max_files {
            return malformed(4);
        }
        if header.first_file >= header.files {
            return malformed(6);
        }
        let list_bytes = usize::from(header.files) * FILE_BYTES;
        let Some((list, scratch)) = rest.split_at_checked(list_bytes) else {
            return malformed(bytes.len());
        };
        if scratch.len() != header.scratch_bytes as usize {
            return malformed(20);
        }
        if header.scratch_bytes > header.effective_scratch_bytes() {
            return malformed(Self::SCRATCH_SIZE_AT as usize);
        }
        let files = list.as_chunks().0;
        for (index, file) in files.iter().enumerate() {
            if get::<u32>(file, 4) != 0 {
                return malformed(HEADER_BYTES + index * FILE_BYTES + 4);
            }
        }
        Ok(Self { header, files, scratch })
    }

    /// The fixed part.
    #[must_use]
    pub const fn header(&self) -> &PushdownHeader {
        &self.header
    }

    /// The files, in the request's order.
    pub fn files(&self) -> impl ExactSizeIterator<Item = FileVersion> + 'a {
        self.files.iter().map(|file| FileVersion { id: get(file, 0), version: get(file, 8) })
    }

    /// The file at `index` of the list.
    #[must_use]
    pub fn file(&self, index: usize) -> Option<FileVersion> {
        self.files.get(index).map(|file| FileVersion { id: get(file, 0), version: get(file, 8) })
    }

    /// The scratch prefix: the argument.
    #[must_use]
    pub const fn scratch(&self) -> &'a [u8] {
        self.scratch
    }
}

/// A Pushdown request to send. The counts of the header follow from the slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushdownParts<'a> {
    /// Function id.
    pub function: u32,
    /// The files; at most 65,535.
    pub files: &'a [FileVersion],
    /// File of the first read, an index into `files`.
    pub first_file: u16,
    /// File offset of the first read.
    pub first_offset_bytes: u64,
    /// Size of the first read.
    pub first_size_bytes: u32,
    /// The scratch prefix: the argument.
    pub scratch: &'a [u8],
    /// Longest answer accepted.
    pub answer_max_bytes: u32,
    /// Size of scratch; 0 means [`DEFAULT_SCRATCH_BYTES`].
    pub scratch_size_bytes: u32,
}

impl PushdownParts<'_> {
    /// Length of the encoded request in bytes.
    #[must_use]
    pub const fn encoded_bytes(&self) -> usize {
        HEADER_BYTES + self.files.len() * FILE_BYTES + self.scratch.len()
    }

    /// Appends the request to `out`.
    #[inline]
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let mut fixed = [0; HEADER_BYTES];
        put(&mut fixed, 0, self.function);
        put(&mut fixed, 4, self.files.len() as u16);
        put(&mut fixed, 6, self.first_file);
        put(&mut fixed, 8, self.first_offset_bytes);
        put(&mut fixed, 16, self.first_size_bytes);
        put(&mut fixed, 20, self.scratch.len() as u32);
        put(&mut fixed, 24, self.answer_max_bytes);
        put(&mut fixed, 28, self.scratch_size_bytes);
        out.extend_from_slice(&fixed);
        for file in self.files {
            let mut entry = [0; FILE_BYTES];
            put(&mut entry, 0, file.id);
            put(&mut entry, 8, file.version);
            out.extend_from_slice(&entry);
        }
        out.extend_from_slice(self.scratch);
    }
}

/// The fields of a Pushdown Short command (protocol.md, Pushdown Short).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushdownShort {
    /// Function id (CDW2).
    pub function: u32,
    /// File id (CDW3 bits 15:0).
    pub file: u16,
    /// Size of the first read in logical blocks, not 0 (CDW3 bits 31:16).
    pub first_blocks: u16,
    /// The first bytes of scratch (CDW10 to 15), which has [`DEFAULT_SCRATCH_BYTES`].
    pub argument: [u8; 24],
}

impl PushdownShort {
    /// Offset of `first_blocks` in the command, in bytes, as Malformed Request reports it.
    pub const FIRST_BLOCKS_AT: u32 = 14;

    /// Reads the fields; `first_blocks` may be 0, which is malformed.
    #[must_use]
    pub fn from_sqe(sqe: &Sqe) -> Self {
        let mut argument = [0; 24];
        let words = [sqe.cdw10, sqe.cdw11, sqe.cdw12, sqe.cdw13, sqe.cdw14, sqe.cdw15];
        for (index, word) in words.into_iter().enumerate() {
            put(&mut argument, index * 4, word);
        }
        Self {
            function: sqe.cdw2,
            file: sqe.cdw3 as u16,
            first_blocks: (sqe.cdw3 >> 16) as u16,
            argument,
        }
    }

    /// A command for `nsid` that accepts an answer of up to `answer_max_bytes`.
    #[must_use]
    pub fn to_sqe(&self, nsid: u32, answer_max_bytes: u32) -> Sqe {
        Sqe {
            cdw2: self.function,
            cdw3: u32::from(self.file) | u32::from(self.first_blocks) << 16,
            sgl: Sgl::transport(answer_max_bytes),
            cdw10: get(&self.argument, 0),
            cdw11: get(&self.argument, 4),
            cdw12: get(&self.argument, 8),
            cdw13: get(&self.argument, 12),
            cdw14: get(&self.argument, 16),
            cdw15: get(&self.argument, 20),
            ..Sqe::new(nvm::PUSHDOWN_SHORT, nsid)
        }
    }
}
