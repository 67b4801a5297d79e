//! Function maps, which keep data of storage functions: reads and writes from the host.

use crate::map_identity::MapIdentity;
use crate::{Controller, Error, FunctionId, Status};
use bpfof_nvme::Sqe;
use bpfof_nvme::vendor_specific::{MapAddress, MapChange, MapCommand, MapReportEntry};
use std::sync::Arc;

/// Bytes of entries to request at a time.
const PAGE_BYTES: u32 = 64 << 10;
/// Most answers without an entry before the end of a map. For each of them a target has skipped many slots.
const EMPTY_ANSWERS_MAX: u32 = 1024;
/// Largest map, key and value, and the size of array keys (protocol.md, "Function maps").
const MAP_MAX_BYTES: u64 = 16 << 20;
const KEY_MAX_BYTES: u32 = 256;
const VALUE_MAX_BYTES: u32 = 4096;
const ARRAY_KEY_BYTES: u32 = 4;
/// Least overhead of a hash map for each entry beside key and value: a link and a bucket.
const LINKS_BYTES: u64 = 8;

/// A map of storage functions at the target (protocol.md, "Function maps").
///
/// It belongs to the association that loaded the functions, and ends with the last of them. With several portals, each
/// association has its own copy of this program's map: the host's changes go to all copies, and a function changes the
/// copy of the path by which it was called (docs/failover.md).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionMap {
    /// Its address at the target.
    pub address: MapAddress,
    /// Its name in the object.
    pub name: String,
    /// Whether it is an array, whose keys are indices (little-endian u32) and whose entries always exist. Otherwise it
    /// is a hash map.
    pub is_array: bool,
    /// Size of a key in bytes.
    pub key_bytes: u32,
    /// Size of a value in bytes.
    pub value_bytes: u32,
    /// Most entries that it can hold.
    pub max_entries: u32,
    /// Number of entries when the target was asked.
    pub entries: u32,
    /// Memory that it takes at the target, in bytes.
    pub memory_bytes: u64,
}

/// Entries of a map in one buffer: separate allocations of small entries would take far more memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapEntries {
    key_bytes: usize,
    /// Not 0.
    entry_bytes: usize,
    bytes: Vec<u8>,
}

impl MapEntries {
    /// An empty list of entries of this map.
    fn of(map: &FunctionMap) -> Self {
        let key_bytes = map.key_bytes as usize;
        let entry_bytes = key_bytes.saturating_add(map.value_bytes as usize).max(1);
        Self { key_bytes, entry_bytes, bytes: Vec::new() }
    }

    /// The number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len() / self.entry_bytes
    }

    /// Whether there are no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Keys and values.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        let entries = self.bytes.chunks_exact(self.entry_bytes);
        entries.map(|entry| entry.split_at(self.key_bytes.min(entry.len())))
    }

    /// The key and the value of one entry.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let start = index.checked_mul(self.entry_bytes)?;
        let entry = self.bytes.get(start..start.checked_add(self.entry_bytes)?)?;
        entry.split_at_checked(self.key_bytes)
    }
}

impl FunctionMap {
    /// Checks the reported sizes against the limits of maps, because later code relies on them.
    fn from_report(entry: &MapReportEntry) -> Result<Self, Error> {
        let map = Self {
            address: MapAddress { controller: entry.controller, map: entry.map },
            name: entry.name.to_string(),
            is_array: entry.kind == 2,
            key_bytes: entry.key_bytes,
            value_bytes: entry.value_bytes,
            max_entries: entry.max_entries,
            entries: entry.entries,
            memory_bytes: entry.memory_bytes,
        };
        let has_sizes = (1..=KEY_MAX_BYTES).contains(&map.key_bytes)
            && (1..=VALUE_MAX_BYTES).contains(&map.value_bytes)
            && (!map.is_array || map.key_bytes == ARRAY_KEY_BYTES);
        if !has_sizes || u64::from(map.max_entries) > map.most_entries() {
            return Err(Error::BadAnswer(
                "Map Report describes a map that exceeds the limits of maps",
            ));
        }
        Ok(map)
    }

    /// Most entries of a map with these sizes. Keys of an array take no memory.
    fn most_entries(&self) -> u64 {
        let (key_bytes, value_bytes) = (u64::from(self.key_bytes), u64::from(self.value_bytes));
        let kept_bytes =
            if self.is_array { value_bytes.max(1) } else { key_bytes + value_bytes + LINKS_BYTES };
        MAP_MAX_BYTES / kept_bytes
    }

    /// Whether it is a map of installed functions, whose maps are numbered like them.
    const fn is_installed(&self) -> bool {
        FunctionId(self.address.map).is_installed()
    }

    pub(crate) fn is_copy_of(&self, identity: &MapIdentity) -> bool {
        self.name == identity.name && self.is_installed() == identity.is_installed
    }

    fn identity(&self) -> MapIdentity {
        MapIdentity { name: self.name.clone(), is_installed: self.is_installed() }
    }

    fn check(&self, part: &'static str, bytes: usize, expected_bytes: u32) -> Result<(), Error> {
        if bytes == expected_bytes as usize {
            return Ok(());
        }
        Err(Error::MapSize { map: self.name.clone(), part, expected_bytes, bytes })
    }
}

impl Controller {
    /// The maps of this association: those of functions that it has loaded, and its own instances of the maps of
    /// installed functions.
    ///
    /// # Errors
    /// As the target answered; those of [`pushdown_limits`](Self::pushdown_limits).
    pub fn maps(&mut self) -> Result<Vec<FunctionMap>, Error> {
        self.report_maps(MapAddress::OWN)
    }

    /// The maps of all associations of this host: those that connected with the same host NQN and
    /// host identifier ([`Options`](crate::Options)), this one among them.
    ///
    /// # Errors
    /// Those of [`maps`](Self::maps).
    pub fn host_maps(&mut self) -> Result<Vec<FunctionMap>, Error> {
        self.report_maps(MapAddress::ALL_OF_HOST)
    }

    fn report_maps(&mut self, controller: u16) -> Result<Vec<FunctionMap>, Error> {
        if self.pushdown_limits()?.map_bytes == 0 {
            return Ok(Vec::new());
        }
        let command =
            |length_bytes| -> Sqe { MapCommand::Report { controller, length_bytes }.to_sqe() };
        let report = self.whole_answer(command)?;
        let maps = MapReportEntry::list(&report).map(|entry| FunctionMap::from_report(&entry));
        let mut maps: Vec<FunctionMap> = maps.collect::<Result<_, _>>()?;
        if self.paths.is_some() && controller == MapAddress::OWN {
            // Each association has its own copy; which one to ask is decided with each command.
            maps.iter_mut().for_each(|map| map.address.controller = MapAddress::OWN);
        }
        Ok(maps)
    }

    /// The map of this association with this name. A map of its own functions comes before one of installed functions.
    ///
    /// # Errors
    /// [`Error::NoSuchMap`]; those of [`maps`](Self::maps).
    pub fn map(&mut self, name: &str) -> Result<FunctionMap, Error> {
        // Maps of installed functions come last: their ids are higher.
        self.find_map(name, &|map| map.name == name)
    }

    /// This association's copy of a map.
    pub(crate) fn copy_of(&mut self, identity: &MapIdentity) -> Result<FunctionMap, Error> {
        self.find_map(&identity.name, &|map| map.is_copy_of(identity))
    }

    fn find_map(
        &mut self,
        name: &str,
        is_it: &dyn Fn(&FunctionMap) -> bool,
    ) -> Result<FunctionMap, Error> {
        let maps = self.maps()?;
        if let Some(found) = maps.iter().find(|map| is_it(map)) {
            return Ok(found.clone());
        }
        let known: Vec<&str> = maps.iter().map(|map| map.name.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Err(Error::NoSuchMap { name: name.to_owned(), known })
    }

    /// Reads a map by `read`. With several paths, reads this program's copy of the map on the path that is used now,
    /// which may differ from the path on which the map was found; begins again on another path if that one is lost.
    fn read_map(
        &mut self,
        map: &FunctionMap,
        read: &mut dyn FnMut(&mut Self, &FunctionMap) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if let Some(paths) = &self.paths
            && map.address.controller == MapAddress::OWN
        {
            let (identity, limits) = (map.identity(), self.limits.clone());
            return paths.on_one(&mut |association| {
                let mut one = Controller::of(Arc::clone(association));
                // All paths have functions with maps: their targets are not asked whether they support that.
                one.limits.clone_from(&limits);
                let copy = one.copy_of(&identity)?;
                read(&mut one, &copy)
            });
        }
        read(self, map)
    }

    /// The value of a key; None if there is no such entry.
    ///
    /// # Errors
    /// [`Error::MapSize`]; otherwise as the target answered.
    pub fn map_get(&mut self, map: &FunctionMap, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        map.check("key", key.len(), map.key_bytes)?;
        let mut value = None;
        self.read_map(map, &mut |one, map| {
            value = one.value_in(map, key)?;
            Ok(())
        })?;
        Ok(value)
    }

    fn value_in(&mut self, map: &FunctionMap, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let length_bytes = map.value_bytes;
        let sqe = MapCommand::Get { map: map.address, length_bytes }.to_sqe();
        let Some(value) = if_there(self.admin_command(sqe, key, length_bytes))? else {
            return Ok(None);
        };
        if value.1.len() != length_bytes as usize {
            return Err(Error::BadAnswer("Map Get returned a value of the wrong size"));
        }
        Ok(Some(value.1))
    }

    /// Sets the value of a key, whether the entry exists or not.
    ///
    /// # Errors
    /// [`Error::MapSize`]; otherwise as the target answered, Map Full if there is no room.
    pub fn map_set(&mut self, map: &FunctionMap, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.map_change(map, MapChange::Set, key, value).map(|_| ())
    }

    /// Removes an entry; returns whether it existed.
    ///
    /// # Errors
    /// [`Error::MapSize`]; otherwise as the target answered, Invalid Field in Command for an array, whose entries
    /// always exist.
    pub fn map_delete(&mut self, map: &FunctionMap, key: &[u8]) -> Result<bool, Error> {
        self.map_change(map, MapChange::Delete, key, &[])
    }

    /// Changes an entry in any way. Returns false if the entry does not exist and had to ([`MapChange::SetExisting`],
    /// [`MapChange::Delete`]).
    ///
    /// # Errors
    /// Those of [`map_set`](Self::map_set); Entry Exists for a [`MapChange::SetNew`] of an existing entry.
    pub fn map_change(
        &mut self,
        map: &FunctionMap,
        change: MapChange,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, Error> {
        map.check("key", key.len(), map.key_bytes)?;
        if change != MapChange::Delete {
            map.check("value", value.len(), map.value_bytes)?;
        }
        if let Some(paths) = &self.paths
            && map.address.controller == MapAddress::OWN
        {
            return paths.change_map(&map.identity(), change, key, value);
        }
        let sqe = MapCommand::Change { map: map.address, change }.to_sqe();
        let data = [key, value].concat();
        Ok(if_there(self.admin_command(sqe, &data, 0))?.is_some())
    }

    /// All entries, in no particular order. Entries that exist during the whole call are returned exactly once,
    /// whatever else is added or removed meanwhile.
    ///
    /// # Errors
    /// As the target answered.
    pub fn map_entries(&mut self, map: &FunctionMap) -> Result<MapEntries, Error> {
        let mut entries = MapEntries::of(map);
        self.read_map(map, &mut |one, map| {
            entries = one.entries_in(map)?;
            Ok(())
        })?;
        Ok(entries)
    }

    fn entries_in(&mut self, map: &FunctionMap) -> Result<MapEntries, Error> {
        let mut entries = MapEntries::of(map);
        let entry_bytes = entries.entry_bytes;
        let length_bytes = PAGE_BYTES.min(self.max_transfer_bytes()).max(entry_bytes as u32);
        let most = u64::from(map.max_entries).min(map.most_entries());
        let (mut first_slot, mut empty_answers) = (0, 0);
        loop {
            let read = MapCommand::Read { map: map.address, length_bytes, first_slot };
            let (answer, data) = self.admin_command(read.to_sqe(), &[], length_bytes)?;
            let count = (answer.dw1 as usize).min(data.len() / entry_bytes);
            entries.bytes.extend_from_slice(data.get(..count * entry_bytes).unwrap_or(&[]));
            empty_answers += u32::from(count == 0);
            if empty_answers > EMPTY_ANSWERS_MAX {
                return Err(Error::BadAnswer("Map Read returned too many pages without entries"));
            }
            if entries.len() as u64 > most {
                return Err(Error::BadAnswer(
                    "Map Read returned more entries than the map can have",
                ));
            }
            match answer.dw0 {
                0 => return Ok(entries),
                // A page may be empty where many entries were removed.
                next if next > first_slot && u64::from(next) < most => first_slot = next,
                _ => {
                    let what = "Map Read continues at a slot that was already read or does not \
                                exist";
                    return Err(Error::BadAnswer(what));
                }
            }
        }
    }
}

/// Turns No Such Entry into `None`.
fn if_there<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(Error::Command { source, .. }) if source.status.same_code(Status::NO_SUCH_ENTRY) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
