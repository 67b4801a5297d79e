//! Helpers: what a storage function may call besides its own object's functions.
//!
//! One implementation serves both engines. It sees the arena as the call does, up to its limit.

use crate::abi::GUEST_BASE;
use crate::fault::FaultKind;
use crate::statics::Statics;

/// A helper's number, the immediate of the call instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Helper {
    /// `bpfof_memcmp(a, b, len)`.
    Memcmp = 1,
    /// `bpfof_memmove(to, from, len)`.
    Memmove = 2,
    /// `bpfof_memset(to, value, len)`.
    Memset = 3,
    /// `bpfof_crc32c(data, crc, len)`.
    Crc32c = 4,
    /// `bpfof_find(data, byte, len)`.
    Find = 5,
}

impl Helper {
    /// All helpers.
    pub const ALL: [Helper; 5] =
        [Helper::Memcmp, Helper::Memmove, Helper::Memset, Helper::Crc32c, Helper::Find];

    /// The helper with this number, if there is one.
    pub fn from_number(number: i32) -> Option<Helper> {
        Helper::ALL.into_iter().find(|helper| *helper as i32 == number)
    }

    /// Its name in C.
    pub fn name(self) -> &'static str {
        match self {
            Helper::Memcmp => "bpfof_memcmp",
            Helper::Memmove => "bpfof_memmove",
            Helper::Memset => "bpfof_memset",
            Helper::Crc32c => "bpfof_crc32c",
            Helper::Find => "bpfof_find",
        }
    }

    /// Whether r1, which is always a pointer to r3 bytes, is written to.
    pub(crate) fn writes(self) -> bool {
        matches!(self, Helper::Memmove | Helper::Memset)
    }

    /// Whether r2 is a pointer to r3 bytes that are read, rather than a value.
    pub(crate) fn reads_second(self) -> bool {
        matches!(self, Helper::Memcmp | Helper::Memmove)
    }

    /// Runs the helper on `memory`, what the call may access, with r1–r3 as arguments. Charges
    /// one unit of `budget` for every 8 bytes, before any byte is touched.
    pub(crate) fn run(
        self,
        memory: &mut [u8],
        statics: &Statics,
        budget: &mut i64,
        [a, b, len]: [u64; 3],
    ) -> Result<u64, FaultKind> {
        let charge = i64::try_from(len / 8).unwrap_or(i64::MAX);
        *budget = budget.saturating_sub(charge);
        if *budget < 0 {
            return Err(FaultKind::Budget);
        }
        let first = range(memory.len(), a, len)?;
        if self.writes() {
            statics.check_write(a, len)?;
        }
        let second = if self.reads_second() { range(memory.len(), b, len)? } else { 0..0 };
        Ok(match self {
            Helper::Memcmp => memory[first].cmp(&memory[second]) as i64 as u64,
            Helper::Memmove => {
                memory.copy_within(second, first.start);
                0
            }
            Helper::Memset => {
                memory[first].fill(b as u8);
                0
            }
            Helper::Crc32c => crc32c(&memory[first], b),
            Helper::Find => find(&memory[first], b),
        })
    }
}

/// CRC-32C (Castagnoli) of bytes that follow those whose CRC is the low half of `crc`.
pub(crate) fn crc32c(bytes: &[u8], crc: u64) -> u64 {
    u64::from(crc32c::crc32c_append(crc as u32, bytes))
}

/// Where the low byte of `byte` is found first; the number of bytes if it is not there.
pub(crate) fn find(bytes: &[u8], byte: u64) -> u64 {
    memchr::memchr(byte as u8, bytes).unwrap_or(bytes.len()) as u64
}

/// The part of a memory of `limit` bytes that `len` bytes at a guest address are.
#[inline]
pub(crate) fn range(
    limit: usize,
    address: u64,
    len: u64,
) -> Result<std::ops::Range<usize>, FaultKind> {
    let start = address.wrapping_sub(GUEST_BASE);
    match start.checked_add(len) {
        Some(end) if end <= limit as u64 => Ok(start as usize..end as usize),
        _ => Err(FaultKind::Memory { address }),
    }
}
