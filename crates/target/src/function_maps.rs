//! Function maps: who has which, and the commands about them (docs/protocol.md, "Function maps").
//!
//! A map belongs to an association. Its own functions share maps by name, and so do the functions
//! that are kept for all, of whose maps each association has its own. A map ends with the last
//! function that has it, because nothing else holds it: see [`Tables`].

use crate::admin::{Answered, invalid_field};
use crate::connection::{Connection, Reply, State};
use crate::controller::Controller;
use crate::executor::Executor;
use crate::limits::{
    MAX_ASSOCIATION_MAP_BYTES, MAX_ASSOCIATION_MAPS, MAX_PAGE_BYTES, MAX_TRANSFER_BYTES,
};
use crate::subsystem::{Refusal, is_kept};
use bpfof_chain::{FunctionMap, FunctionMaps, Tables};
use bpfof_function::map::{MAX_KEY_BYTES, MAX_VALUE_BYTES, Map, MapDefinition, MapError, SetMode};
use bpfof_function::memory::{Account, MemoryFull};
use bpfof_nvme::vendor::{MapAddress, MapChange, MapCommand, MapReportEntry};
use bpfof_nvme::{Sgl, Sqe, Status};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A map that functions have declared, before it is made in an association.
#[derive(Clone, Debug)]
pub(crate) struct DeclaredMap {
    id: u32,
    definition: MapDefinition,
}

impl DeclaredMap {
    /// That of a map that is there.
    pub(crate) fn of(known: &FunctionMap) -> DeclaredMap {
        DeclaredMap { id: known.id, definition: known.map.definition().clone() }
    }
}

/// Which maps a function gets: those that `known` has under their names, or new ones with the ids
/// behind `last_id`, to which `flag` is added.
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
                return Err((Status::FUNCTION_REJECTED, message));
            }
            declared.push(same.clone());
            continue;
        }
        // Ids are not used again, so that nobody takes one map for another.
        if is_kept(*last_id + 1) {
            let message = "all ids of maps are used up; connect again".to_owned();
            return Err((Status::RESOURCE_LIMIT, message));
        }
        *last_id += 1;
        let id = flag | *last_id;
        all.insert(id, definition);
        declared.push(DeclaredMap { id, definition: definition.clone() });
    }
    let bytes: u64 = all.values().map(|definition| definition.memory_bytes()).sum();
    if all.len() > MAX_ASSOCIATION_MAPS || bytes > MAX_ASSOCIATION_MAP_BYTES {
        let message = format!(
            "with its maps there would be {} of {bytes} bytes; the limits of a connection are \
             {MAX_ASSOCIATION_MAPS} and {MAX_ASSOCIATION_MAP_BYTES}: declare smaller ones, or \
             unload other functions",
            all.len()
        );
        return Err((Status::RESOURCE_LIMIT, message));
    }
    Ok(declared)
}

/// The maps themselves: those that the tables have already, and new ones.
/// New ones take memory of this account.
pub(crate) fn make(
    declared: &[DeclaredMap],
    tables: &Tables,
    account: &Arc<Account>,
) -> Result<FunctionMaps, MemoryFull> {
    let maps = declared.iter().map(|DeclaredMap { id, definition }| {
        if let Some(known) = tables.function_map(*id) {
            return Ok(Arc::clone(known));
        }
        let memory = Some(account.charge(definition.memory_bytes() as usize)?);
        Ok(Arc::new(FunctionMap { id: *id, map: Map::new(definition.clone()), memory }))
    });
    maps.collect()
}

/// Whether two associations are of the same host. An identifier of zeroes is none.
fn is_same_host(one: &Controller, other: &Controller) -> bool {
    one.host_id != [0; 16] && one.host_id == other.host_id && one.host_nqn() == other.host_nqn()
}

/// The association that a command means, if the host may look at it. One of another host is not
/// told from one that does not exist.
fn owner(id: u16, controller: &Arc<Controller>) -> Option<Arc<Controller>> {
    if id == MapAddress::OWN || id == controller.id {
        return Some(Arc::clone(controller));
    }
    controller.subsystem.controller(id).filter(|other| is_same_host(controller, other))
}

fn find(address: MapAddress, controller: &Arc<Controller>) -> Result<Arc<FunctionMap>, Reply> {
    let unknown = || Reply::from(Status::UNKNOWN_MAP);
    let owner = owner(address.controller, controller).ok_or_else(unknown)?;
    owner.tables().function_map(address.map).cloned().ok_or_else(unknown)
}

/// What a command that failed is answered.
fn refusal(error: MapError) -> Reply {
    match error {
        MapError::NoEntry => Status::NO_SUCH_ENTRY.into(),
        MapError::Exists => Status::ENTRY_EXISTS.into(),
        MapError::NoRoom => Status::MAP_FULL.into(),
        MapError::Invalid => invalid_field(),
    }
}

impl Connection {
    /// docs/protocol.md, Function maps.
    pub(crate) fn map_command(
        &mut self,
        sqe: &Sqe,
        command: MapCommand,
        data: &[u8],
        controller: &Arc<Controller>,
        x: &mut Executor,
    ) -> Answered {
        match command {
            MapCommand::Report { controller: of, length_bytes } => {
                let (report, full_bytes) = report_maps(of, length_bytes, controller)?;
                self.answer(sqe, Reply { dw0: full_bytes, ..Reply::default() }, &report)
            }
            MapCommand::Get { map, length_bytes } => {
                let value = get(sqe, map, data, controller)?;
                let reply = Reply { dw0: value.len() as u32, ..Reply::default() };
                let shown = &value[..value.len().min(length_bytes as usize)];
                self.send_data(sqe.cid, reply, shown.len(), |to| to.own().extend_from_slice(shown));
                Ok(())
            }
            MapCommand::Read { map, length_bytes, first_slot } => {
                let found = find(map, controller)?;
                let max_bytes = (length_bytes as usize).min(MAX_PAGE_BYTES);
                let entry_bytes = found.map.definition().entry_bytes();
                if entry_bytes > max_bytes {
                    return Err(invalid_field());
                }
                let mut entries = Vec::new();
                let next = found.map.page(first_slot, max_bytes, &mut entries);
                let count = entries.len() / entry_bytes;
                let reply = Reply { dw0: next.unwrap_or(0), dw1: count as u32, ..Reply::default() };
                self.answer(sqe, reply, &entries)
            }
            MapCommand::Change { map, change } => {
                let length = sqe.sgl.length_bytes;
                if data.len() == length as usize {
                    change_map(map, change, data, controller)?;
                    self.complete(sqe.cid, Reply::default());
                    return Ok(());
                }
                if sqe.sgl.kind != Sgl::TRANSPORT {
                    return Err(Status::INVALID_SGL_DESCRIPTOR_TYPE.with_dnr().into());
                }
                // No entry is longer.
                if length as usize > MAX_KEY_BYTES + MAX_VALUE_BYTES {
                    return Err(invalid_field());
                }
                let sqe = *sqe;
                self.request_data(sqe.cid, length, x, |data| State::AdminData { sqe, data });
                Ok(())
            }
        }
    }
}

/// As many entries as fit, and the length of all.
fn report_maps(
    of: u16,
    length_bytes: u32,
    controller: &Arc<Controller>,
) -> Result<(Vec<u8>, u32), Reply> {
    let owners = match of {
        MapAddress::ALL_OF_HOST => {
            let mut all = controller.subsystem.all_controllers();
            all.retain(|other| other.id == controller.id || is_same_host(controller, other));
            all
        }
        id => vec![owner(id, controller).ok_or(Reply::from(Status::UNKNOWN_MAP))?],
    };
    let length_bytes = length_bytes.min(MAX_TRANSFER_BYTES) as usize;
    let (mut report, mut full_bytes) = (Vec::new(), 0);
    for owner in owners {
        let tables = owner.tables();
        full_bytes += tables.function_maps().len() * MapReportEntry::BYTES;
        let room = (length_bytes - report.len()).div_ceil(MapReportEntry::BYTES);
        for known in tables.function_maps().iter().take(room) {
            let definition = known.map.definition();
            let entry = MapReportEntry {
                map: known.id,
                controller: owner.id,
                kind: definition.kind() as u8,
                key_bytes: definition.key_bytes() as u32,
                value_bytes: definition.value_bytes() as u32,
                max_entries: definition.max_entries(),
                entries: known.map.entries(),
                memory_bytes: definition.memory_bytes(),
                name: definition.name().into(),
            };
            report.extend_from_slice(&entry.to_bytes());
        }
        report.truncate(length_bytes);
    }
    Ok((report, full_bytes as u32))
}

/// Map Get: the key is in the capsule, because the transport SGL is for data in one direction.
fn get(
    sqe: &Sqe,
    address: MapAddress,
    key: &[u8],
    controller: &Arc<Controller>,
) -> Result<Vec<u8>, Reply> {
    if sqe.sgl.kind == Sgl::TRANSPORT || key.len() != sqe.sgl.length_bytes as usize {
        return Err(Status::INVALID_SGL_DESCRIPTOR_TYPE.with_dnr().into());
    }
    let found = find(address, controller)?;
    found.map.get(key).map(|value| value.to_vec()).map_err(refusal)
}

/// Map Change with its data: the key, and the value if one is set.
fn change_map(
    address: MapAddress,
    change: MapChange,
    data: &[u8],
    controller: &Arc<Controller>,
) -> Result<(), Reply> {
    let found = find(address, controller)?;
    let map = &found.map;
    let (key, value) =
        data.split_at_checked(map.definition().key_bytes()).ok_or_else(invalid_field)?;
    let changed = match change {
        MapChange::Set => map.set(key, value, SetMode::Any),
        MapChange::SetNew => map.set(key, value, SetMode::New),
        MapChange::SetExisting => map.set(key, value, SetMode::Existing),
        MapChange::Delete if value.is_empty() => map.delete(key),
        MapChange::Delete => Err(MapError::Invalid),
    };
    changed.map_err(refusal)
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
        let (status, other) = other.expect_err("another b");
        assert_eq!(status, Status::FUNCTION_REJECTED);
        assert!(other.contains("declared it as array \"b\" of 4 entries"), "{other}");
        assert!(other.contains("keys of 4 bytes, values of 16"), "{other}");
        let tables = Tables::new(vec![]);
        let account = Memory::new(1 << 20).account();
        let maps = make(&second, &tables, &account).expect("room");
        assert_eq!(maps.iter().map(|map| map.id).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn an_association_holds_so_many_bytes_and_maps() {
        let mut last = 0;
        let large = |name: &str| definition(name, 4096, 4096);
        let two = declare(&[large("a"), large("b")], &[], &mut last, 0).expect("all there is");
        let third = declare(&[definition("c", 1, 1)], &two, &mut last, 0);
        let (status, third) = third.expect_err("a byte too many");
        assert_eq!(status, Status::RESOURCE_LIMIT);
        assert!(third.contains("there would be 3 of 33554433 bytes"), "{third}");
        // What is shared takes nothing.
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
