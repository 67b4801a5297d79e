//! What functions remember from chain to chain. Values are copied: a function has no address of
//! what others change meanwhile.

use super::call::{Call, EINVAL};
use crate::abi::MAPS;
use crate::fault_kind::FaultKind;
use crate::map::{Map, MapError, SetMode};

/// `BPFOF_ENOENT`: no entry has this key.
const ENOENT: i64 = -2;
/// `BPFOF_EEXIST`: an entry has this key already.
const EEXIST: i64 = -17;
/// `BPFOF_ENOSPC`: the map is full, or the index behind its end.
const ENOSPC: i64 = -28;

/// What a call takes from the budget: the lock, and an entry that is in no cache. In a map that is,
/// it takes a quarter of that.
const CALL_COST: u64 = 1300;
/// For each byte of the key, which is hashed.
const KEY_BYTE_COST: u64 = 4;

fn code(error: MapError) -> i64 {
    match error {
        MapError::NoEntry => ENOENT,
        MapError::Exists => EEXIST,
        MapError::NoRoom => ENOSPC,
        MapError::Invalid => EINVAL,
    }
}

fn outcome(result: Result<(), MapError>) -> u64 {
    result.map_or_else(code, |()| 0) as u64
}

/// The map that a function means by `handle`.
fn find<'a>(call: &'a Call<'_>, handle: u64) -> Result<&'a Map, FaultKind> {
    let index = handle.checked_sub(MAPS).and_then(|index| usize::try_from(index).ok());
    let map = index.and_then(|index| call.environment.map(index));
    map.ok_or(FaultKind::NoMap { handle })
}

/// Pays for a call, and says how long keys and values of the map are.
fn begin(call: &mut Call<'_>, handle: u64) -> Result<(u64, u64), FaultKind> {
    let definition = find(call, handle)?.definition();
    let (key, value) = (definition.key_bytes() as u64, definition.value_bytes() as u64);
    call.charge(CALL_COST + KEY_BYTE_COST * key + value / 2)?;
    Ok((key, value))
}

/// `bpfof_map_get`: copies the value of a key to `value`.
pub(super) fn get(call: &mut Call<'_>, map: u64, key: u64, value: u64) -> Result<u64, FaultKind> {
    let (key_bytes, value_bytes) = begin(call, map)?;
    let key = call.readable(key, key_bytes)?;
    let to = call.writable(value, value_bytes)?;
    let index = (map - MAPS) as usize;
    let Some(map) = call.environment.map(index) else { return Ok(ENOENT as u64) };
    Ok(match map.get(&call.memory[key]) {
        Ok(found) => {
            call.memory[to].copy_from_slice(&found);
            0
        }
        Err(error) => code(error) as u64,
    })
}

/// `bpfof_map_set`: sets the value of a key.
pub(super) fn set(
    call: &mut Call<'_>,
    map: u64,
    key: u64,
    value: u64,
    flags: u64,
) -> Result<u64, FaultKind> {
    let (key_bytes, value_bytes) = begin(call, map)?;
    let (key, value) = (call.readable(key, key_bytes)?, call.readable(value, value_bytes)?);
    let Some(mode) = SetMode::from_number(flags) else { return Ok(EINVAL as u64) };
    Ok(outcome(find(call, map)?.set(&call.memory[key], &call.memory[value], mode)))
}

/// `bpfof_map_delete`: removes an entry.
pub(super) fn delete(call: &mut Call<'_>, map: u64, key: u64) -> Result<u64, FaultKind> {
    let (key_bytes, _) = begin(call, map)?;
    let key = call.readable(key, key_bytes)?;
    Ok(outcome(find(call, map)?.delete(&call.memory[key])))
}

/// `bpfof_map_add`: adds to a number in a value, and returns the sum.
pub(super) fn add(
    call: &mut Call<'_>,
    map: u64,
    key: u64,
    offset: u64,
    delta: u64,
) -> Result<u64, FaultKind> {
    let (key_bytes, _) = begin(call, map)?;
    let key = call.readable(key, key_bytes)?;
    let sum = find(call, map)?.add(&call.memory[key], offset, delta);
    Ok(sum.unwrap_or_else(|error| code(error) as u64))
}
