//! Helpers: what a storage function may call besides its own object's functions.
//!
//! One implementation serves both engines. It sees the arena as the call does, up to its limit.

use crate::abi::GUEST_BASE;
use crate::fault::FaultKind;
use crate::statics::Statics;

/// A helper's number, the immediate of the call instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Helper {
    /// `bpfof_memcmp(a, b, len)`.
    Memcmp = 1,
    /// `bpfof_memmove(to, from, len)`.
    Memmove = 2,
    /// `bpfof_memset(to, value, len)`.
    Memset = 3,
}

impl Helper {
    /// The helper with this number, if there is one.
    pub fn from_number(number: i32) -> Option<Helper> {
        match number {
            1 => Some(Helper::Memcmp),
            2 => Some(Helper::Memmove),
            3 => Some(Helper::Memset),
            _ => None,
        }
    }

    /// Its name in C.
    pub fn name(self) -> &'static str {
        match self {
            Helper::Memcmp => "bpfof_memcmp",
            Helper::Memmove => "bpfof_memmove",
            Helper::Memset => "bpfof_memset",
        }
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
        if self != Helper::Memcmp {
            statics.check_write(a, len)?;
        }
        match self {
            Helper::Memcmp => {
                let second = range(memory.len(), b, len)?;
                Ok(memory[first].cmp(&memory[second]) as i64 as u64)
            }
            Helper::Memmove => {
                let second = range(memory.len(), b, len)?;
                memory.copy_within(second, first.start);
                Ok(0)
            }
            Helper::Memset => {
                memory[first].fill(b as u8);
                Ok(0)
            }
        }
    }
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
