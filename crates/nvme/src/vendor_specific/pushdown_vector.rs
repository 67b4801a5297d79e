//! The request and the answer of Pushdown Vector (87h): many chains of one function in one command.

use super::pushdown::{FileVersion, effective_scratch_bytes};
use super::{Malformed, malformed};
use crate::Status;
use crate::bytes::{get, put};

const HEADER_BYTES: usize = 48;
const FILE_BYTES: usize = 16;
const FIRST_READ_BYTES: usize = 16;
const SIZE_BYTES: usize = 2;
const RECORD_BYTES: usize = 16;

/// Offset 22, bit 0: each chain has a first read of its own.
const FIRST_READS: u16 = 1 << 0;
/// Offset 22, bit 1: each argument has a size of its own.
const SIZES: u16 = 1 << 1;

/// The first read of a chain (protocol.md, Pushdown Vector).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FirstRead {
    /// File, an index into the request's list.
    pub file: u16,
    /// Offset in the file, in bytes.
    pub offset_bytes: u64,
    /// Size in bytes, not 0.
    pub size_bytes: u32,
}

impl FirstRead {
    fn from_bytes(entry: &[u8; FIRST_READ_BYTES]) -> FirstRead {
        FirstRead { offset_bytes: get(entry, 0), size_bytes: get(entry, 8), file: get(entry, 12) }
    }

    fn to_bytes(self) -> [u8; FIRST_READ_BYTES] {
        let mut entry = [0; FIRST_READ_BYTES];
        put(&mut entry, 0, self.offset_bytes);
        put(&mut entry, 8, self.size_bytes);
        put(&mut entry, 12, self.file);
        entry
    }
}

/// The fixed part of a Pushdown Vector request, without the fields that [`VectorChains`] holds (protocol.md, Pushdown
/// Vector, offsets 0 to 47).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushdownVectorHeader {
    /// Function id (offset 0).
    pub function: u32,
    /// Number of files (offset 4).
    pub files: u16,
    /// Number of chains (offset 6).
    pub chains: u16,
    /// Size of each chain's scratch; 0 means [`DEFAULT_SCRATCH_BYTES`](super::DEFAULT_SCRATCH_BYTES) (offset 28).
    pub scratch_size_bytes: u32,
    /// Longest answer of one chain that the host accepts (offset 32).
    pub answer_max_bytes: u32,
    /// Longest answer of the command that the host accepts, records included (offset 36).
    pub room_bytes: u32,
}

impl PushdownVectorHeader {
    /// Size of each chain's scratch in bytes: what the request declares, or the default.
    #[must_use]
    pub const fn effective_scratch_bytes(&self) -> u32 {
        effective_scratch_bytes(self.scratch_size_bytes)
    }
}

/// The parameters of one chain of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorChain<'a> {
    /// Its first read.
    pub first: FirstRead,
    /// Its argument: the first bytes of scratch.
    pub argument: &'a [u8],
}

/// Iterates over the chains in the bytes of a request. It does not hold the bytes, so that they can be kept elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VectorChains {
    next: u16,
    count: u16,
    /// The first read of all chains, if there is no table of first reads.
    first: FirstRead,
    /// Offset of the table of first reads; 0 if there is none.
    first_reads_at: usize,
    /// Offset of the table of argument sizes; 0 if there is none.
    sizes_at: usize,
    /// The size of all arguments, if there is no table of sizes.
    argument_bytes: usize,
    /// Offset of the next chain's argument.
    argument_at: usize,
}

impl VectorChains {
    /// The index of the next chain.
    #[must_use]
    pub const fn index(&self) -> u16 {
        self.next
    }

    /// Number of chains left.
    #[must_use]
    pub const fn left(&self) -> u16 {
        self.count - self.next
    }

    /// Skips all chains that are left.
    pub const fn skip_all(&mut self) {
        self.next = self.count;
    }

    /// The next chain. `bytes` are the bytes of the request.
    #[inline]
    pub fn next<'a>(&mut self, bytes: &'a [u8]) -> Option<VectorChain<'a>> {
        if self.next == self.count {
            return None;
        }
        let index = usize::from(self.next);
        self.next += 1;
        let first = match self.first_reads_at {
            0 => self.first,
            at => {
                let entry = bytes.get(at + index * FIRST_READ_BYTES..)?.first_chunk()?;
                FirstRead::from_bytes(entry)
            }
        };
        let length = match self.sizes_at {
            0 => self.argument_bytes,
            at => size_at(bytes, at + index * SIZE_BYTES)?,
        };
        let argument = bytes.get(self.argument_at..self.argument_at + length)?;
        self.argument_at += length;
        Some(VectorChain { first, argument })
    }
}

fn size_at(bytes: &[u8], at: usize) -> Option<usize> {
    bytes.get(at..)?.first_chunk().map(|size| usize::from(u16::from_le_bytes(*size)))
}

/// A Pushdown Vector request as received: checked, and still in the buffer it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushdownVectorRequest<'a> {
    header: PushdownVectorHeader,
    files: &'a [[u8; FILE_BYTES]],
    chains: VectorChains,
}

impl<'a> PushdownVectorRequest<'a> {
    /// Offset of the scratch size, which is reported when it is above the target's limit.
    pub const SCRATCH_SIZE_AT: u32 = 28;
    /// Offset of the command's longest answer, which is reported when it is above the target's limit.
    pub const ROOM_AT: u32 = 36;

    /// Parses a request of exactly `bytes`. The target checks all limits other than the numbers of files and chains.
    ///
    /// # Errors
    /// [`Malformed`] for a request that is too short or too long for its counts and sizes, names no file or more than
    /// `max_files`, has no chain or more than `max_chains`, has a first read of size 0 or of a file that it does not
    /// list, has a scratch that does not hold an argument, has no room for the records of its answer, or sets a
    /// reserved field.
    pub fn parse(bytes: &'a [u8], max_files: u16, max_chains: u16) -> Result<Self, Malformed> {
        let Some((fixed, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return malformed(bytes.len());
        };
        let header = PushdownVectorHeader {
            function: get(fixed, 0),
            files: get(fixed, 4),
            chains: get(fixed, 6),
            scratch_size_bytes: get(fixed, 28),
            answer_max_bytes: get(fixed, 32),
            room_bytes: get(fixed, 36),
        };
        if header.files == 0 || header.files > max_files {
            return malformed(4);
        }
        if header.chains == 0 || header.chains > max_chains {
            return malformed(6);
        }
        if (header.room_bytes as usize) < usize::from(header.chains) * RECORD_BYTES {
            return malformed(Self::ROOM_AT as usize);
        }
        if get::<u64>(fixed, 40) != 0 {
            return malformed(40);
        }
        let Some((list, _)) = rest.split_at_checked(usize::from(header.files) * FILE_BYTES) else {
            return malformed(bytes.len());
        };
        let files = list.as_chunks().0;
        for (index, file) in files.iter().enumerate() {
            if get::<u32>(file, 4) != 0 {
                return malformed(HEADER_BYTES + index * FILE_BYTES + 4);
            }
        }
        let chains = parse_chains(&header, fixed, bytes)?;
        Ok(Self { header, files, chains })
    }

    /// The fixed part.
    #[must_use]
    pub const fn header(&self) -> &PushdownVectorHeader {
        &self.header
    }

    /// The files, in the request's order.
    pub fn files(&self) -> impl ExactSizeIterator<Item = FileVersion> + 'a {
        self.files.iter().map(|file| FileVersion { id: get(file, 0), version: get(file, 8) })
    }

    /// Iterates over its chains.
    #[must_use]
    pub const fn chains(&self) -> VectorChains {
        self.chains
    }
}

/// Checks the tables and the arguments.
fn parse_chains(
    header: &PushdownVectorHeader,
    fixed: &[u8; HEADER_BYTES],
    bytes: &[u8],
) -> Result<VectorChains, Malformed> {
    let tables: u16 = get(fixed, 22);
    if tables & !(FIRST_READS | SIZES) != 0 {
        return malformed(22);
    }
    let count = usize::from(header.chains);
    let first =
        FirstRead { offset_bytes: get(fixed, 8), size_bytes: get(fixed, 16), file: get(fixed, 20) };
    let argument_bytes: u32 = get(fixed, 24);
    let mut at = HEADER_BYTES + usize::from(header.files) * FILE_BYTES;
    let mut table = |is_there: bool, entry_bytes: usize| {
        let begins = if is_there { at } else { 0 };
        at += if is_there { count * entry_bytes } else { 0 };
        begins
    };
    let first_reads_at = table(tables & FIRST_READS != 0, FIRST_READ_BYTES);
    let sizes_at = table(tables & SIZES != 0, SIZE_BYTES);
    let Some(arguments) = bytes.get(at..) else { return malformed(bytes.len()) };
    match first_reads_at {
        0 => check_first(first, header.files, [8, 16, 20])?,
        _ if first.offset_bytes != 0 => return malformed(8),
        _ if first.size_bytes != 0 => return malformed(16),
        _ if first.file != 0 => return malformed(20),
        begins => check_first_reads(&bytes[begins..], header, begins)?,
    }
    let scratch_bytes = header.effective_scratch_bytes() as usize;
    if sizes_at == 0 {
        if (argument_bytes as usize).checked_mul(count) != Some(arguments.len()) {
            return malformed(24);
        }
        if argument_bytes as usize > scratch_bytes {
            return malformed(24);
        }
    } else {
        if argument_bytes != 0 {
            return malformed(24);
        }
        check_sizes(&bytes[sizes_at..at], sizes_at, scratch_bytes, arguments.len())?;
    }
    Ok(VectorChains {
        next: 0,
        count: header.chains,
        first,
        first_reads_at,
        sizes_at,
        argument_bytes: argument_bytes as usize,
        argument_at: at,
    })
}

/// Checks a first read. `at`: offsets of its offset, size and file fields in the request.
fn check_first(first: FirstRead, files: u16, at: [usize; 3]) -> Result<(), Malformed> {
    match first {
        FirstRead { size_bytes: 0, .. } => malformed(at[1]),
        FirstRead { file, .. } if file >= files => malformed(at[2]),
        _ => Ok(()),
    }
}

fn check_first_reads(
    table: &[u8],
    header: &PushdownVectorHeader,
    begins: usize,
) -> Result<(), Malformed> {
    let entries = table.as_chunks::<FIRST_READ_BYTES>().0.iter().take(header.chains.into());
    for (index, entry) in entries.enumerate() {
        let at = begins + index * FIRST_READ_BYTES;
        check_first(FirstRead::from_bytes(entry), header.files, [at, at + 8, at + 12])?;
        if get::<u16>(entry, 14) != 0 {
            return malformed(at + 14);
        }
    }
    Ok(())
}

/// Checks that each argument fits in scratch, and that the sizes add up to the bytes of the arguments.
fn check_sizes(
    table: &[u8],
    begins: usize,
    scratch_bytes: usize,
    all_bytes: usize,
) -> Result<(), Malformed> {
    let mut sum = 0;
    for (index, size) in table.as_chunks::<SIZE_BYTES>().0.iter().enumerate() {
        let size = usize::from(u16::from_le_bytes(*size));
        sum += size;
        if size > scratch_bytes || sum > all_bytes {
            return malformed(begins + index * SIZE_BYTES);
        }
    }
    if sum == all_bytes { Ok(()) } else { malformed(begins) }
}

/// The first reads of a vector to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstReads<'a> {
    /// All chains begin with this read.
    Same(FirstRead),
    /// One read for each chain.
    Each(&'a [FirstRead]),
}

/// The arguments of a vector to send, one after the other in `bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VectorArguments<'a> {
    /// `count` arguments of equal size.
    Equal {
        /// How many chains there are.
        count: u16,
        /// All arguments.
        bytes: &'a [u8],
    },
    /// One argument for each size.
    Sized {
        /// Sizes in bytes.
        sizes: &'a [u16],
        /// All arguments.
        bytes: &'a [u8],
    },
}

impl VectorArguments<'_> {
    /// How many chains there are.
    #[must_use]
    pub const fn count(&self) -> usize {
        match self {
            Self::Equal { count, .. } => *count as usize,
            Self::Sized { sizes, .. } => sizes.len(),
        }
    }

    const fn bytes(&self) -> &[u8] {
        match self {
            Self::Equal { bytes, .. } | Self::Sized { bytes, .. } => bytes,
        }
    }
}

/// A Pushdown Vector request to send. The counts of the header follow from the slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushdownVectorParts<'a> {
    /// Function id.
    pub function: u32,
    /// The files; at most 65,535.
    pub files: &'a [FileVersion],
    /// The first reads.
    pub first: FirstReads<'a>,
    /// The arguments; at most 65,535.
    pub arguments: VectorArguments<'a>,
    /// Size of each chain's scratch; 0 means [`DEFAULT_SCRATCH_BYTES`](super::DEFAULT_SCRATCH_BYTES).
    pub scratch_size_bytes: u32,
    /// Longest answer of one chain that is accepted.
    pub answer_max_bytes: u32,
    /// Longest answer of the command that is accepted: see [`VectorAnswer::room_bytes`].
    pub room_bytes: u32,
}

impl PushdownVectorParts<'_> {
    /// Whether the number of first reads and the bytes of arguments match the number of chains.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let count = self.arguments.count();
        let fits = match self.arguments {
            VectorArguments::Equal { bytes, .. } => count > 0 && bytes.len() % count == 0,
            VectorArguments::Sized { sizes, bytes } => {
                count > 0
                    && sizes.iter().map(|size| usize::from(*size)).sum::<usize>() == bytes.len()
            }
        };
        let begins = match self.first {
            FirstReads::Same(_) => true,
            FirstReads::Each(reads) => reads.len() == count,
        };
        fits && begins && count <= usize::from(u16::MAX)
    }

    /// Length of the encoded request in bytes.
    #[must_use]
    pub const fn encoded_bytes(&self) -> usize {
        let first_reads = match self.first {
            FirstReads::Same(_) => 0,
            FirstReads::Each(reads) => reads.len() * FIRST_READ_BYTES,
        };
        let sizes = match self.arguments {
            VectorArguments::Equal { .. } => 0,
            VectorArguments::Sized { sizes, .. } => sizes.len() * SIZE_BYTES,
        };
        let arguments = self.arguments.bytes().len();
        HEADER_BYTES + self.files.len() * FILE_BYTES + first_reads + sizes + arguments
    }

    /// Appends the request to `out`.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let mut fixed = [0; HEADER_BYTES];
        let count = self.arguments.count();
        put(&mut fixed, 0, self.function);
        put(&mut fixed, 4, self.files.len() as u16);
        put(&mut fixed, 6, count as u16);
        let mut tables = 0;
        match self.first {
            FirstReads::Same(first) => {
                put(&mut fixed, 8, first.offset_bytes);
                put(&mut fixed, 16, first.size_bytes);
                put(&mut fixed, 20, first.file);
            }
            FirstReads::Each(_) => tables |= FIRST_READS,
        }
        match self.arguments {
            VectorArguments::Equal { bytes, .. } => {
                put(&mut fixed, 24, bytes.len().checked_div(count).unwrap_or(0) as u32);
            }
            VectorArguments::Sized { .. } => tables |= SIZES,
        }
        put(&mut fixed, 22, tables);
        put(&mut fixed, 28, self.scratch_size_bytes);
        put(&mut fixed, 32, self.answer_max_bytes);
        put(&mut fixed, 36, self.room_bytes);
        out.extend_from_slice(&fixed);
        for file in self.files {
            let mut entry = [0; FILE_BYTES];
            put(&mut entry, 0, file.id);
            put(&mut entry, 8, file.version);
            out.extend_from_slice(&entry);
        }
        if let FirstReads::Each(reads) = self.first {
            reads.iter().for_each(|read| out.extend_from_slice(&read.to_bytes()));
        }
        if let VectorArguments::Sized { sizes, .. } = self.arguments {
            sizes.iter().for_each(|size| out.extend_from_slice(&size.to_le_bytes()));
        }
        out.extend_from_slice(self.arguments.bytes());
    }
}

/// How one chain of a vector ended: a record of the answer (protocol.md, Pushdown Vector).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VectorRecord {
    /// Its status (offset 0).
    pub status: Status,
    /// Dword 0 of the completion that the chain would have as a single command (offset 4).
    pub dw0: u32,
    /// Dword 1 of that completion (offset 8).
    pub dw1: u32,
    /// Offset of the chain's answer in the command's answer; 0 without success (offset 12).
    pub answer_at: u32,
}

impl VectorRecord {
    /// Size on the wire, in bytes.
    pub const BYTES: usize = RECORD_BYTES;

    /// Reads a record.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Self {
        Self {
            status: Status::from_field(get(bytes, 0)),
            dw0: get(bytes, 4),
            dw1: get(bytes, 8),
            answer_at: get(bytes, 12),
        }
    }

    /// Writes a record.
    #[must_use]
    #[inline]
    pub fn to_bytes(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        put(&mut bytes, 0, self.status.field());
        put(&mut bytes, 4, self.dw0);
        put(&mut bytes, 8, self.dw1);
        put(&mut bytes, 12, self.answer_at);
        bytes
    }
}

/// The answer of a Pushdown Vector command as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorAnswer<'a> {
    bytes: &'a [u8],
    records: &'a [[u8; RECORD_BYTES]],
}

impl<'a> VectorAnswer<'a> {
    /// The most room that an answer with `chains` chains takes, each answer having up to `answer_max_bytes`.
    #[must_use]
    pub const fn room_bytes(chains: u16, answer_max_bytes: u32) -> u64 {
        chains as u64 * (RECORD_BYTES as u64 + answer_max_bytes as u64)
    }

    /// Reads the answer to a request of `chains` chains.
    ///
    /// # Errors
    /// [`Malformed`] for an answer without a record for each chain, or with a chain's answer that lies outside it.
    pub fn parse(bytes: &'a [u8], chains: u16) -> Result<Self, Malformed> {
        let records_bytes = usize::from(chains) * RECORD_BYTES;
        let Some(records) = bytes.get(..records_bytes) else { return malformed(bytes.len()) };
        let answer = Self { bytes, records: records.as_chunks().0 };
        for (index, record) in answer.records.iter().enumerate() {
            let VectorRecord { status, dw1, answer_at, .. } = VectorRecord::from_bytes(record);
            let end = u64::from(answer_at) + u64::from(dw1);
            let is_inside = answer_at as usize >= records_bytes && end <= bytes.len() as u64;
            if status.is_success() && dw1 > 0 && !is_inside {
                return malformed(index * RECORD_BYTES + 12);
            }
        }
        Ok(answer)
    }

    /// How each chain ended, in the order of the request, and its answer: empty without success.
    pub fn chains(&self) -> impl ExactSizeIterator<Item = (VectorRecord, &'a [u8])> + '_ {
        self.records.iter().map(|record| {
            let record = VectorRecord::from_bytes(record);
            let start = record.answer_at as usize;
            let answer = match record.status.is_success() {
                true => self.bytes.get(start..start.saturating_add(record.dw1 as usize)),
                false => None,
            };
            (record, answer.unwrap_or(&[]))
        })
    }
}
