//! Charges of map operations, in maps that are in no cache.

use super::charge::{Charge, OBJECT, Problem};
use super::kernels::{Called, Case, Outcome, Request, Subject, Surroundings, program};
use bpfof_function::map::{MapError, SetMode};
use bpfof_function::{Map, MapKind, Object, OwnMaps};

/// Maps of each kind, which calls use in turn: some are far larger than all caches of a processor.
const MAPS: usize = 8;
const PAGE_BYTES: usize = 4096;
/// The distance from one key to the next: `KEY_STEP` of charges.bpf.c.
const KEY_STEP: u64 = 2_654_435_761;

/// A map of charges.bpf.c, and its operations.
struct Kind {
    about: &'static str,
    /// The number of its keys, which fill it.
    keys: u64,
    /// The operations, and their kernels. Adding comes last, because it changes numbers.
    operations: &'static [(&'static str, &'static str)],
}

const KINDS: [Kind; 3] = [
    Kind {
        about: "array of 8-byte values",
        keys: 1 << 21,
        operations: &[("get", "array_get"), ("set", "array_set"), ("add", "array_add")],
    },
    Kind {
        about: "hash map of 8-byte keys and values",
        keys: 1 << 19,
        operations: &[
            ("get", "hash_get"),
            ("set", "hash_set"),
            ("delete", "hash_delete"),
            ("add", "hash_add"),
        ],
    },
    Kind {
        about: "hash map of 256-byte keys and 4096-byte values",
        keys: 3840,
        operations: &[
            ("get", "long_get"),
            ("set", "long_set"),
            ("delete", "long_delete"),
            ("add", "long_add"),
        ],
    },
];

impl Kind {
    /// A case of one operation on a map with this many keys.
    fn case(&self, operation: &str, entry: &'static str, keys: u64) -> Case {
        let name = format!("{operation}, {}", self.about);
        let outcome = if operation == "add" { Outcome::Any } else { Outcome::Sum(0) };
        let request = Request { operand: keys, ..Request::default() };
        Case { outcome, ..Case::new(name, entry, 1, request) }
    }

    /// Makes a map with this many keys, for all kernels.
    fn map(&self, object: &Object, keys: u64) -> Result<OwnMaps, Problem> {
        let (_, entry) = self.operations[0];
        let maps = OwnMaps::new(program(object, entry)?);
        fill(&maps.maps()[0], keys)?;
        Ok(maps)
    }
}

/// The key that the kernels make from a number.
fn key(map: &Map, number: u64) -> Vec<u8> {
    let mut key = vec![0; map.definition().key_bytes()];
    let number = number.to_le_bytes();
    let end = key.len().min(number.len());
    let start = key.len() - end;
    key[start..].copy_from_slice(&number[..end]);
    key
}

/// Adds the keys to a map, with zeroes as values.
fn fill(map: &Map, keys: u64) -> Result<(), MapError> {
    let value = vec![0; map.definition().value_bytes()];
    let step = match map.definition().kind() {
        MapKind::Hash => 1,
        // All entries exist, but pages never written share the zero page.
        MapKind::Array => PAGE_BYTES / value.len(),
    };
    for number in (0..keys).step_by(step) {
        map.set(&key(map, number), &value, SetMode::Any)?;
    }
    Ok(())
}

/// Restores the entries that a call, which began with this state, has deleted.
fn put_back(map: &Map, keys: u64, mut state: u64, count: u64) -> Result<(), MapError> {
    let value = vec![0; map.definition().value_bytes()];
    for _ in 0..count {
        state = (state + KEY_STEP) % keys;
        map.set(&key(map, state), &value, SetMode::New)?;
    }
    Ok(())
}

/// Measures all operations on all kinds of maps.
pub(super) fn measure(section: &'static str, rounds: usize) -> Result<Vec<Charge>, Problem> {
    let object = Object::parse(OBJECT)?;
    let mut charges = Vec::new();
    for kind in &KINDS {
        let maps = (0..MAPS).map(|_| kind.map(&object, kind.keys));
        let mut maps = maps.collect::<Result<Vec<_>, _>>()?;
        for &(operation, entry) in kind.operations {
            let leave = |_: &OwnMaps, _: u64, _: u64| -> Result<(), Problem> { Ok(()) };
            let restore = |maps: &OwnMaps, state: u64, count: u64| -> Result<(), Problem> {
                Ok(put_back(&maps.maps()[0], kind.keys, state, count)?)
            };
            let called: &Called<'_> = if operation == "delete" { &restore } else { &leave };
            let mut around = Surroundings { maps: &mut maps, called };
            let case = kind.case(operation, entry, kind.keys);
            charges.push(Subject::new(&case, &object)?.measure(section, rounds, &mut around)?);
        }
    }
    Ok(charges)
}

#[cfg(test)]
mod tests {
    use super::super::kernels::check;
    use super::*;

    #[test]
    fn every_kernel_finds_its_keys() {
        let object = Object::parse(OBJECT).expect("parses");
        for kind in &KINDS {
            // In a small map the kernels use the same keys.
            let keys = kind.keys.min(1000);
            for &(operation, entry) in kind.operations {
                let case = kind.case(operation, entry, keys);
                check(&case, &object, &|| kind.map(&object, keys).expect("there is room"));
            }
        }
    }

    #[test]
    fn deleted_keys_are_inserted_again() {
        let object = Object::parse(OBJECT).expect("parses");
        let kind = &KINDS[1];
        let maps = kind.map(&object, 1000).expect("there is room");
        let map = &maps.maps()[0];
        let mut state = 5;
        for _ in 0..300 {
            state = (state + KEY_STEP) % 1000;
            map.delete(&key(map, state)).expect("no key comes twice");
        }
        assert_eq!(map.entries(), 700);
        put_back(map, 1000, 5, 300).expect("none of them is there");
        assert_eq!(map.entries(), 1000);
    }
}
