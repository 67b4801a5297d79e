//! Maps: memory that functions keep from chain to chain. Values are copied: a function never has
//! the address of a value that others may change.

use super::call::{Call, EINVAL, charge};
use crate::abi::MAPS;
use crate::cost::UNIT_PS;
use crate::environment::Environment;
use crate::fault_kind::FaultKind;
use crate::map::{Map, MapError, SetMode};
use std::time::Duration;

/// `BPFOF_ENOENT`: no entry has this key.
const ENOENT: i64 = -2;
/// `BPFOF_EEXIST`: an entry has this key already.
const EEXIST: i64 = -17;
/// `BPFOF_ENOSPC`: the map is full, or the index is past its end.
const ENOSPC: i64 = -28;

/// Price of a call: the lock, and an entry that is in no cache. If the map is in the cache, a call
/// takes a quarter of that.
const CALL_COST: u64 = 1300;
/// For each byte of the key, which is hashed.
const KEY_BYTE_COST: u64 = 4;
/// Lowest price of waiting for another thread that uses the map: 2 µs. A longer wait costs its time.
const WAIT_COST: u64 = 10_000;

/// The reason why an operation fails.
enum Refused {
    Map(MapError),
    Fault(FaultKind),
}

impl From<MapError> for Refused {
    fn from(error: MapError) -> Refused {
        Refused::Map(error)
    }
}

fn code(error: MapError) -> i64 {
    match error {
        MapError::NoEntry => ENOENT,
        MapError::Exists => EEXIST,
        MapError::NoRoom => ENOSPC,
        MapError::Invalid => EINVAL,
    }
}

/// Converts the result of an operation to the helper's return value.
fn answer(result: Result<u64, Refused>) -> Result<u64, FaultKind> {
    match result {
        Ok(result) => Ok(result),
        Err(Refused::Map(error)) => Ok(code(error) as u64),
        Err(Refused::Fault(kind)) => Err(kind),
    }
}

/// The map that the function refers to by `handle`.
fn find(environment: &dyn Environment, handle: u64) -> Result<&Map, FaultKind> {
    let index = handle.checked_sub(MAPS).and_then(|index| usize::try_from(index).ok());
    let map = index.and_then(|index| environment.map(index));
    map.ok_or(FaultKind::NoMap { handle })
}

/// Pays for a wait: the lowest price before it, and the rest, by its time, after it.
fn wait(budget: &mut i64, waited: Option<Duration>) -> Result<(), Refused> {
    let units = match waited {
        None => WAIT_COST,
        Some(waited) => {
            (waited.as_nanos() * 1000 / u128::from(UNIT_PS)).saturating_sub(WAIT_COST.into()) as u64
        }
    };
    charge(budget, units).map_err(Refused::Fault)
}

/// Pays for a call, and returns the sizes of the map's keys and values.
fn begin(call: &mut Call<'_>, handle: u64) -> Result<(u64, u64), FaultKind> {
    let definition = find(call.environment, handle)?.definition();
    let (key, value) = (definition.key_bytes() as u64, definition.value_bytes() as u64);
    call.charge(CALL_COST + KEY_BYTE_COST * key + value / 2)?;
    Ok((key, value))
}

/// `bpfof_map_get`: copies the value of a key to `value`.
pub(super) fn get(call: &mut Call<'_>, map: u64, key: u64, value: u64) -> Result<u64, FaultKind> {
    let (key_bytes, value_bytes) = begin(call, map)?;
    let key = call.readable(key, key_bytes)?;
    let to = call.writable(value, value_bytes)?;
    let Call { memory, environment, budget, .. } = call;
    let found = find(*environment, map)?.get_paying(&memory[key], |waited| wait(budget, waited));
    answer(found.map(|found| {
        memory[to].copy_from_slice(&found);
        0
    }))
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
    let Call { memory, environment, budget, .. } = call;
    let entry = (&memory[key], &memory[value]);
    answer(
        find(*environment, map)?.set_paying(entry, mode, |waited| wait(budget, waited)).map(|()| 0),
    )
}

/// `bpfof_map_delete`: removes an entry.
pub(super) fn delete(call: &mut Call<'_>, map: u64, key: u64) -> Result<u64, FaultKind> {
    let (key_bytes, _) = begin(call, map)?;
    let key = call.readable(key, key_bytes)?;
    let Call { memory, environment, budget, .. } = call;
    answer(
        find(*environment, map)?
            .delete_paying(&memory[key], |waited| wait(budget, waited))
            .map(|()| 0),
    )
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
    let Call { memory, environment, budget, .. } = call;
    answer(
        find(*environment, map)?
            .add_paying(&memory[key], (offset, delta), |waited| wait(budget, waited)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{MapDefinition, MapKind};
    use crate::statics::Statics;

    struct One<'a>(&'a Map);

    impl Environment for One<'_> {
        fn tail_call(&mut self, _function: u32) -> bool {
            false
        }

        fn trace(&mut self, _text: &[u8], _value: u64) {}

        fn map(&self, index: usize) -> Option<&Map> {
            (index == 0).then_some(self.0)
        }
    }

    /// The result of adding 1 to the only entry, and the rest of the budget.
    fn add_one(map: &Map, budget: i64) -> (Result<u64, FaultKind>, i64) {
        let (mut memory, mut left) = ([0; 4], budget);
        let mut call = Call {
            memory: &mut memory,
            lowest: 0,
            statics: &Statics::default(),
            budget: &mut left,
            environment: &mut One(map),
        };
        let outcome = add(&mut call, MAPS, 0, 0, 1);
        (outcome, left)
    }

    #[test]
    fn waiting_for_another_thread_is_paid_for() {
        let definition = MapDefinition::new("m", MapKind::Array, (4, 8), 1).expect("small");
        let map = Map::new(definition);
        let alone = (CALL_COST + 4 * KEY_BYTE_COST + 4) as i64;
        assert_eq!(add_one(&map, alone), (Ok(1), 0));
        // A call that cannot pay for a wait must not wait.
        let held = map.get(&[0; 4]).expect("an entry of an array");
        let with_wait = alone + WAIT_COST as i64;
        assert_eq!(add_one(&map, with_wait - 1), (Err(FaultKind::Budget), 0));
        drop(held);
        // The other calls wait, or run after the map has been released.
        let while_held = |budget: i64| {
            let held = map.get(&[0; 4]).expect("an entry of an array");
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| add_one(&map, budget));
                std::thread::sleep(Duration::from_millis(20));
                drop(held);
                waiting.join().expect("it ends")
            })
        };
        let (sum, left) = while_held(i64::MAX);
        assert_eq!(sum, Ok(2));
        assert!(left == i64::MAX - alone || left <= i64::MAX - with_wait, "{left}");
        // It pays for the time, too.
        let (sum, left) = while_held(with_wait);
        assert!((sum, left) == (Err(FaultKind::Budget), 0) || sum == Ok(3), "{sum:?}");
    }
}
