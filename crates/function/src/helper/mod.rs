//! Helpers: functions of the target that a storage function may call.
//!
//! Both engines use the same implementation. It sees the memory of the arena up to the limit of the call. Native code
//! has faster forms of the bulk helpers, which work on a range of bytes. `table` has the name, number and price of
//! each.

mod call;
mod decompress;
mod double;
mod maps;
mod search;
mod table;
mod text;

pub use table::Helper;

#[cfg(feature = "fuzz")]
pub(crate) use call::EINVAL;
pub(crate) use call::{Call, Stop, charge, range};

use crate::abi;
use crate::fault_kind::FaultKind;
use table::Price;
use twox_hash::XxHash3_64;

impl Helper {
    /// Runs the helper with r1–r5 as arguments. It pays before it accesses memory.
    pub(crate) fn run(self, call: &mut Call<'_>, arguments: [u64; 5]) -> Result<u64, Stop> {
        let [a, b, c, d, e] = arguments;
        if let Price::Fixed(units) | Price::AtLeast(units) = self.price() {
            call.charge(units)?;
        }
        match self {
            Helper::TailCall => tail_call(call, a),
            Helper::ParseInt => Ok(text::parse_int(call, (a, b), c, d)?),
            Helper::ParseDouble => Ok(text::parse_double(call, (a, b), c)?),
            Helper::Double => Ok(double::operate(a, b, c)),
            Helper::Decompress => Ok(decompress::decompress(call, a, (b, c), (d, e))?),
            Helper::Workspace => Ok(abi::WORKSPACE),
            Helper::FindAll => Ok(search::find_all(call, (a, b), c, (d, e))?),
            Helper::Trace => Ok(trace(call, (a, b), c)?),
            Helper::MapGet => Ok(maps::get(call, a, b, c)?),
            Helper::MapSet => Ok(maps::set(call, a, b, c, d)?),
            Helper::MapDelete => Ok(maps::delete(call, a, b)?),
            Helper::MapAdd => Ok(maps::add(call, a, b, c, d)?),
            _ => Ok(self.run_bulk(call, a, b, c)?),
        }
    }

    fn run_bulk(self, call: &mut Call<'_>, a: u64, b: u64, len: u64) -> Result<u64, FaultKind> {
        call.charge(self.bulk_cost(len))?;
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
            Helper::FindAny => find_any(&memory[first], b),
            Helper::Xxh3 => xxh3(&memory[first], b),
            _ => unreachable!("only bulk helpers come here"),
        })
    }
}

/// Ends the function in favour of another one, if the environment permits it.
fn tail_call(call: &mut Call<'_>, function: u64) -> Result<u64, Stop> {
    match u32::try_from(function) {
        Ok(function) if call.environment.tail_call(function) => Err(Stop::TailCall(function)),
        _ => Ok(-1i64 as u64),
    }
}

/// Records a line for the author: the beginning of the text, and a number.
fn trace(call: &mut Call<'_>, (text, len): (u64, u64), value: u64) -> Result<u64, FaultKind> {
    let text = call.readable(text, len)?;
    let end = text.end.min(text.start + abi::TRACE_BYTES);
    call.environment.trace(&call.memory[text.start..end], value);
    Ok(0)
}

/// CRC-32C (Castagnoli), continued from the CRC in the low half of `crc`.
pub(crate) fn crc32c(bytes: &[u8], crc: u64) -> u64 {
    u64::from(crc32c::crc32c_append(crc as u32, bytes))
}

/// XXH3 of 64 bits; with seed 0 the same as `XXH3_64bits` in RocksDB and others.
pub(crate) fn xxh3(bytes: &[u8], seed: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// Position of the first byte equal to the low byte of `byte`; the number of bytes if there is none.
pub(crate) fn find(bytes: &[u8], byte: u64) -> u64 {
    memchr::memchr(byte as u8, bytes).unwrap_or(bytes.len()) as u64
}

/// Position of the first of the four low bytes of `bytes`; the number of bytes if there is none.
pub(crate) fn find_any(data: &[u8], bytes: u64) -> u64 {
    let [a, b, c, d, ..] = bytes.to_le_bytes();
    let first = memchr::memchr3(a, b, c, data).unwrap_or(data.len());
    if [a, b, c].contains(&d) {
        return first as u64;
    }
    memchr::memchr(d, &data[..first]).unwrap_or(first) as u64
}
