//! The call that a helper is part of: the memory that it may access and the rest of its budget.

use crate::environment::Environment;
use crate::fault_kind::FaultKind;
use crate::statics::Statics;
use std::ops::Range;

/// `BPFOF_EINVAL` in C: invalid arguments.
pub(crate) const EINVAL: i64 = -22;
/// `BPFOF_ERANGE`: the result does not fit.
pub(super) const ERANGE: i64 = -34;

/// The reason why a helper does not return to the function.
pub(crate) enum Stop {
    Fault(FaultKind),
    /// Another function continues in place of the function.
    TailCall(u32),
}

impl From<FaultKind> for Stop {
    fn from(kind: FaultKind) -> Stop {
        Stop::Fault(kind)
    }
}

/// The call that a helper is part of.
pub(crate) struct Call<'a> {
    /// The memory that the call may access.
    pub(crate) memory: &'a mut [u8],
    /// Guest address of the start of `memory`.
    pub(crate) lowest: u64,
    pub(crate) statics: &'a Statics,
    pub(crate) budget: &'a mut i64,
    pub(crate) environment: &'a mut dyn Environment,
}

impl Call<'_> {
    /// Takes `units` from the budget.
    pub(super) fn charge(&mut self, units: u64) -> Result<(), FaultKind> {
        charge(self.budget, units)
    }

    /// Checks that `len` bytes at a guest address are accessible; returns their range in `memory`.
    pub(super) fn readable(&self, address: u64, len: u64) -> Result<Range<usize>, FaultKind> {
        range(self.lowest, self.memory.len(), address, len)
    }

    /// As `readable`, for bytes that are to be written.
    pub(super) fn writable(&self, address: u64, len: u64) -> Result<Range<usize>, FaultKind> {
        let range = self.readable(address, len)?;
        self.statics.check_write(address, len)?;
        Ok(range)
    }
}

/// Takes `units` from a budget; if that has fewer, takes all of them and fails.
pub(crate) fn charge(budget: &mut i64, units: u64) -> Result<(), FaultKind> {
    debug_assert!(*budget >= 0, "nothing overdraws a budget");
    match i64::try_from(units).ok().filter(|units| units <= budget) {
        Some(units) => {
            *budget -= units;
            Ok(())
        }
        None => {
            *budget = 0;
            Err(FaultKind::Budget)
        }
    }
}

/// Translates `len` bytes at a guest address into a range of a memory that begins at guest address
/// `lowest` and has `limit` bytes.
#[inline]
pub(crate) fn range(
    lowest: u64,
    limit: usize,
    address: u64,
    len: u64,
) -> Result<Range<usize>, FaultKind> {
    let start = address.wrapping_sub(lowest);
    match start.checked_add(len) {
        Some(end) if end <= limit as u64 => Ok(start as usize..end as usize),
        _ => Err(FaultKind::Memory { address }),
    }
}
