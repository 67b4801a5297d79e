//! Helpers: what a storage function may call besides its own object's functions.
//!
//! One implementation serves both engines. It sees the arena as the call does, up to its limit.
//! Native code has faster forms of the bulk ones, which work on a range of bytes.

mod decompress;
mod double;
mod maps;
mod text;

use crate::abi;
use crate::cost;
use crate::environment::Environment;
use crate::fault::FaultKind;
use crate::statics::Statics;
use std::ops::Range;
use twox_hash::XxHash3_64;

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
    /// `bpfof_tail_call(function)`.
    TailCall = 6,
    /// `bpfof_parse_int(text, len, base, value)`.
    ParseInt = 7,
    /// `bpfof_xxh3(data, seed, len)`.
    Xxh3 = 8,
    /// `bpfof_parse_double(text, len, value)`.
    ParseDouble = 9,
    /// `bpfof_double(operation, a, b)`.
    Double = 10,
    /// `bpfof_decompress(algorithm, to, to_size, from, from_size)`.
    Decompress = 11,
    /// `bpfof_workspace()`.
    Workspace = 12,
    /// `bpfof_trace(text, len, value)`.
    Trace = 13,
    /// `bpfof_map_get(map, key, value)`.
    MapGet = 32,
    /// `bpfof_map_set(map, key, value, flags)`.
    MapSet = 33,
    /// `bpfof_map_delete(map, key)`.
    MapDelete = 34,
    /// `bpfof_map_add(map, key, offset, delta)`.
    MapAdd = 35,
}

/// What an error is called in C: `BPFOF_EINVAL`, arguments without a meaning.
pub(crate) const EINVAL: i64 = -22;
/// `BPFOF_ERANGE`: the result does not fit.
const ERANGE: i64 = -34;

/// What every helper but the bulk ones takes from the budget, beside what it says itself: leaving and
/// entering native code.
const CALL_COST: u64 = 25;

/// What a tail call takes from the budget, for the call and for placing static data.
const TAIL_CALL_COST: u64 = 500;

/// What a line of trace takes: functions of other threads may be waiting for the same lines.
const TRACE_COST: u64 = 1000;

/// Why a helper does not return to the function.
pub(crate) enum Stop {
    Fault(FaultKind),
    /// Another function goes on in its place.
    TailCall(u32),
}

impl From<FaultKind> for Stop {
    fn from(kind: FaultKind) -> Stop {
        Stop::Fault(kind)
    }
}

/// The call that a helper is part of.
pub(crate) struct Call<'a> {
    /// What the call may access.
    pub(crate) memory: &'a mut [u8],
    /// The guest address that `memory` begins at.
    pub(crate) lowest: u64,
    pub(crate) statics: &'a Statics,
    pub(crate) budget: &'a mut i64,
    pub(crate) environment: &'a mut dyn Environment,
}

impl Call<'_> {
    /// Takes `units` from the budget.
    fn charge(&mut self, units: u64) -> Result<(), FaultKind> {
        charge(self.budget, units)
    }

    /// Where `len` bytes that the function names are in `memory`.
    fn readable(&self, address: u64, len: u64) -> Result<Range<usize>, FaultKind> {
        range(self.lowest, self.memory.len(), address, len)
    }

    /// As `readable`, for bytes that are written.
    fn writable(&self, address: u64, len: u64) -> Result<Range<usize>, FaultKind> {
        let range = self.readable(address, len)?;
        self.statics.check_write(address, len)?;
        Ok(range)
    }
}

impl Helper {
    /// All helpers.
    pub const ALL: [Helper; 17] = [
        Helper::Memcmp,
        Helper::Memmove,
        Helper::Memset,
        Helper::Crc32c,
        Helper::Find,
        Helper::TailCall,
        Helper::ParseInt,
        Helper::Xxh3,
        Helper::ParseDouble,
        Helper::Double,
        Helper::Decompress,
        Helper::Workspace,
        Helper::Trace,
        Helper::MapGet,
        Helper::MapSet,
        Helper::MapDelete,
        Helper::MapAdd,
    ];

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
            Helper::TailCall => "bpfof_tail_call",
            Helper::ParseInt => "bpfof_parse_int",
            Helper::Xxh3 => "bpfof_xxh3",
            Helper::ParseDouble => "bpfof_parse_double",
            Helper::Double => "bpfof_double",
            Helper::Decompress => "bpfof_decompress",
            Helper::Workspace => "bpfof_workspace",
            Helper::Trace => "bpfof_trace",
            Helper::MapGet => "bpfof_map_get",
            Helper::MapSet => "bpfof_map_set",
            Helper::MapDelete => "bpfof_map_delete",
            Helper::MapAdd => "bpfof_map_add",
        }
    }

    /// Whether it works on r3 bytes at r1. Native code charges and checks these itself; the others go
    /// through [`Helper::run`].
    pub(crate) fn is_bulk(self) -> bool {
        use Helper::{Crc32c, Find, Memcmp, Memmove, Memset, Xxh3};
        matches!(self, Memcmp | Memmove | Memset | Crc32c | Find | Xxh3)
    }

    /// What a call takes from the budget, if that is always the same.
    pub(crate) fn fixed_cost(self) -> Option<u64> {
        match self {
            Helper::TailCall => Some(TAIL_CALL_COST),
            Helper::Double => Some(double::COST),
            Helper::Workspace => Some(CALL_COST),
            Helper::Trace => Some(TRACE_COST),
            _ => None,
        }
    }

    /// Whether a bulk helper writes to r1.
    pub(crate) fn writes(self) -> bool {
        matches!(self, Helper::Memmove | Helper::Memset)
    }

    /// Whether for a bulk helper r2 is a pointer to r3 bytes that are read, rather than a value.
    pub(crate) fn reads_second(self) -> bool {
        matches!(self, Helper::Memcmp | Helper::Memmove)
    }

    /// Runs the helper with r1–r5 as arguments. It pays before it touches a byte.
    pub(crate) fn run(self, call: &mut Call<'_>, arguments: [u64; 5]) -> Result<u64, Stop> {
        let [a, b, c, d, e] = arguments;
        if !self.is_bulk() {
            call.charge(self.fixed_cost().unwrap_or(CALL_COST))?;
        }
        match self {
            Helper::TailCall => tail_call(call, a),
            Helper::ParseInt => Ok(text::parse_int(call, (a, b), c, d)?),
            Helper::ParseDouble => Ok(text::parse_double(call, (a, b), c)?),
            Helper::Double => Ok(double::operate(a, b, c)),
            Helper::Decompress => Ok(decompress::decompress(call, a, (b, c), (d, e))?),
            Helper::Workspace => Ok(abi::WORKSPACE),
            Helper::Trace => Ok(trace(call, (a, b), c)?),
            Helper::MapGet => Ok(maps::get(call, a, b, c)?),
            Helper::MapSet => Ok(maps::set(call, a, b, c, d)?),
            Helper::MapDelete => Ok(maps::delete(call, a, b)?),
            Helper::MapAdd => Ok(maps::add(call, a, b, c, d)?),
            _ => Ok(self.run_bulk(call, a, b, c)?),
        }
    }

    fn run_bulk(self, call: &mut Call<'_>, a: u64, b: u64, len: u64) -> Result<u64, FaultKind> {
        call.charge(cost::bulk(self, len))?;
        let first = if self.writes() { call.writable(a, len) } else { call.readable(a, len) }?;
        let second = if self.reads_second() { call.readable(b, len)? } else { 0..0 };
        let memory = &mut *call.memory;
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
            Helper::Xxh3 => xxh3(&memory[first], b),
            _ => unreachable!("only bulk helpers come here"),
        })
    }
}

/// Takes `units` from a budget; all that is left if that is too little.
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

/// Ends the function in favour of another, if the environment lets it.
fn tail_call(call: &mut Call<'_>, function: u64) -> Result<u64, Stop> {
    match u32::try_from(function) {
        Ok(function) if call.environment.tail_call(function) => Err(Stop::TailCall(function)),
        _ => Ok(-1i64 as u64),
    }
}

/// Shows the author a line: the beginning of the text, and a number.
fn trace(call: &mut Call<'_>, (text, len): (u64, u64), value: u64) -> Result<u64, FaultKind> {
    let text = call.readable(text, len)?;
    let end = text.end.min(text.start + abi::TRACE_BYTES);
    call.environment.trace(&call.memory[text.start..end], value);
    Ok(0)
}

/// CRC-32C (Castagnoli) of bytes that follow those whose CRC is the low half of `crc`.
pub(crate) fn crc32c(bytes: &[u8], crc: u64) -> u64 {
    u64::from(crc32c::crc32c_append(crc as u32, bytes))
}

/// XXH3 of 64 bits; with seed 0 what RocksDB and others call `XXH3_64bits`.
pub(crate) fn xxh3(bytes: &[u8], seed: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// Where the low byte of `byte` is found first; the number of bytes if it is not there.
pub(crate) fn find(bytes: &[u8], byte: u64) -> u64 {
    memchr::memchr(byte as u8, bytes).unwrap_or(bytes.len()) as u64
}

/// The part of a memory of `limit` bytes from guest address `lowest` on that `len` bytes at a guest
/// address are.
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
