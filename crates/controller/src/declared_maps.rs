//! Function maps that functions declare, and the maps that a function gets.
//!
//! A map belongs to an association. The association's own functions share maps by name, and so do the kept functions,
//! for whose maps each association has its own instances. A map ends with the last function that has it, because
//! nothing else holds it: see [`Tables`].

use crate::kept::is_kept;
use crate::limits::{MAX_ASSOCIATION_MAP_BYTES, MAX_ASSOCIATION_MAPS};
use crate::refusal::Refusal;
use bpfof_chain::{Counted, FunctionMap, FunctionMaps, Tables};
use bpfof_function::map::{Map, MapDefinition};
use bpfof_function::memory::{Account, MemoryFull};
use bpfof_nvme::Status;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A map that functions have declared, before it is made in an association.
#[derive(Clone, Debug)]
pub(crate) struct DeclaredMap {
    pub(crate) id: u32,
    pub(crate) definition: MapDefinition,
}

impl DeclaredMap {
    /// The declaration of an existing map.
    pub(crate) fn of(known: &FunctionMap) -> DeclaredMap {
        DeclaredMap { id: known.id, definition: known.map.definition().clone() }
    }
}

/// The maps that a function gets: maps in `known` with the same names, or new ones with the ids after `last_id`, to
/// which `flag` is added.
pub(crate) fn declare(
    wanted: &[MapDefinition],
    known: &[DeclaredMap],
    last_id: &mut u32,
    flag: u32,
) -> Result<Vec<DeclaredMap>, Refusal> {
    let mut all: BTreeMap<u32, &MapDefinition> =
        known.iter().map(|known| (known.id, &known.definition)).collect();
    let mut declared = Vec::with_capacity(wanted.len());
    for definition in wanted {
        let same = known.iter().find(|known| known.definition.name() == definition.name());
        if let Some(same) = same {
            if same.definition != *definition {
                let message = format!(
                    "another function has declared it as {}, this one as {}: rename one of the maps, \
                     or unload the other function",
                    same.definition.describe(),
                    definition.describe()
                );
                return Err(Refusal::new(Status::FUNCTION_REJECTED, message));
            }
            declared.push(same.clone());
            continue;
        }
        // Ids are not reused, so that a host cannot mistake one map for another.
        if is_kept(*last_id + 1) {
            let message = "all ids of maps are used up; connect again".to_owned();
            return Err(Refusal::new(Status::RESOURCE_LIMIT, message));
        }
        *last_id += 1;
        let id = flag | *last_id;
        all.insert(id, definition);
        declared.push(DeclaredMap { id, definition: definition.clone() });
    }
    let bytes: u64 = all.values().map(|definition| definition.memory_bytes()).sum();
    if all.len() > MAX_ASSOCIATION_MAPS || bytes > MAX_ASSOCIATION_MAP_BYTES {
        let message = format!(
            "with its maps there would be {} maps of {bytes} bytes; the limits of an association \
             are {MAX_ASSOCIATION_MAPS} maps and {MAX_ASSOCIATION_MAP_BYTES} bytes: declare \
             smaller maps, or unload other functions",
            all.len()
        );
        return Err(Refusal::new(Status::RESOURCE_LIMIT, message));
    }
    Ok(declared)
}

/// The maps themselves: maps that the tables already have, and new ones. New ones are charged to this account and leave
/// `rest` bytes in it; they are part of `sum`, if there is one.
pub(crate) fn make(
    declared: &[DeclaredMap],
    tables: &Tables,
    (account, rest): (&Arc<Account>, usize),
    sum: Option<&Arc<AtomicU64>>,
) -> Result<FunctionMaps, MemoryFull> {
    let maps = declared.iter().map(|DeclaredMap { id, definition }| {
        if let Some(known) = tables.function_map(*id) {
            return Ok(Arc::clone(known));
        }
        let bytes = definition.memory_bytes();
        let memory = Some(account.charge_leaving(bytes as usize, rest)?);
        let counted = sum.map(|sum| Counted::new(bytes, sum));
        Ok(Arc::new(FunctionMap { id: *id, map: Map::new(definition.clone()), memory, counted }))
    });
    maps.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpfof_function::MapKind;
    use bpfof_function::memory::Memory;

    fn definition(name: &str, value_bytes: u64, entries: u32) -> MapDefinition {
        let made = MapDefinition::new(name, MapKind::Array, (4, value_bytes), entries);
        made.expect("within the limits")
    }

    #[test]
    fn names_are_shared_or_refused() {
        let mut last = 0;
        let first = declare(&[definition("a", 8, 4), definition("b", 8, 4)], &[], &mut last, 0);
        let first = first.expect("there is nothing else");
        let second = declare(&[definition("b", 8, 4), definition("c", 8, 4)], &first, &mut last, 0);
        let second = second.expect("the same b");
        let ids = |maps: &[DeclaredMap]| maps.iter().map(|map| map.id).collect::<Vec<_>>();
        assert_eq!((ids(&first), ids(&second)), (vec![1, 2], vec![2, 3]));
        let other = declare(&[definition("b", 16, 4)], &first, &mut last, 0);
        let refusal = other.expect_err("another b");
        assert_eq!(refusal.status(), Status::FUNCTION_REJECTED);
        let other = refusal.cause();
        assert!(other.contains("declared it as array \"b\" of 4 entries"), "{other}");
        assert!(other.contains("keys of 4 bytes, values of 16"), "{other}");
        let tables = Tables::new(vec![]);
        let account = Memory::new(1 << 20).account();
        let maps = make(&second, &tables, (&account, 0), None).expect("room");
        assert_eq!(maps.iter().map(|map| map.id).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn maps_of_an_association_are_limited_in_number_and_bytes() {
        let mut last = 0;
        let large = |name: &str| definition(name, 4096, 4096);
        let two = declare(&[large("a"), large("b")], &[], &mut last, 0).expect("all there is");
        let third = declare(&[definition("c", 1, 1)], &two, &mut last, 0);
        let refusal = third.expect_err("a byte too many");
        assert_eq!(refusal.status(), Status::RESOURCE_LIMIT);
        let third = refusal.cause();
        assert!(third.contains("there would be 3 maps of 33554433 bytes"), "{third}");
        // A shared map takes no more memory.
        assert!(declare(&[large("b")], &two, &mut last, 0).is_ok());
        let many: Vec<DeclaredMap> = (0..MAX_ASSOCIATION_MAPS as u32)
            .map(|id| DeclaredMap { id, definition: definition(&format!("m{id}"), 1, 1) })
            .collect();
        let mut last = MAX_ASSOCIATION_MAPS as u32;
        assert!(declare(&[definition("m", 1, 1)], &many, &mut last, 0).is_err());
        let mut last = u32::MAX >> 1;
        assert!(declare(&[definition("m", 1, 1)], &[], &mut last, 0).is_err());
    }
}
