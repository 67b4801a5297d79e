//! Function maps: what storage functions remember, read and written from the host.

use crate::{Controller, Error, Status};
use bpfof_nvme::Sqe;
use bpfof_nvme::vendor_specific::{MapAddress, MapChange, MapCommand, MapReportEntry};

/// Bytes of entries that are asked for at a time.
const PAGE_BYTES: u32 = 64 << 10;
/// Answers without an entry before the end of a map, of which a target has passed over many slots for each.
const EMPTY_ANSWERS_MAX: u32 = 1024;
/// What maps, keys and values take at most, and the keys of arrays (protocol.md, "Function maps").
const MAP_MAX_BYTES: u64 = 16 << 20;
const KEY_MAX_BYTES: u32 = 256;
const VALUE_MAX_BYTES: u32 = 4096;
const ARRAY_KEY_BYTES: u32 = 4;
/// What a hash map takes for each entry beside its key and its value, at least: a link and a bucket.
const LINKS_BYTES: u64 = 8;

/// A map of storage functions at the target (protocol.md, "Function maps").
///
/// It belongs to the association that loaded the functions, and ends with the last of them. Where an address
/// has several portals, a map of this program is in each association: it gets what the program has set, and
/// functions change that of the path by which they were called (docs/failover.md).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionMap {
    /// Where it is.
    pub address: MapAddress,
    /// Its name in the object.
    pub name: String,
    /// An array, whose keys are indices (little-endian u32) and whose entries are always there;
    /// else a hash map.
    pub is_array: bool,
    /// Size of a key in bytes.
    pub key_bytes: u32,
    /// Size of a value in bytes.
    pub value_bytes: u32,
    /// Entries that it has room for.
    pub max_entries: u32,
    /// Entries that were there when the target was asked.
    pub entries: u32,
    /// Memory that it takes at the target, in bytes.
    pub memory_bytes: u64,
}

/// Entries of a map, in one piece of memory: small ones take far more each by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapEntries {
    key_bytes: usize,
    /// Not 0.
    entry_bytes: usize,
    bytes: Vec<u8>,
}

impl MapEntries {
    /// None of a map yet.
    fn of(map: &FunctionMap) -> Self {
        let key_bytes = map.key_bytes as usize;
        let entry_bytes = key_bytes.saturating_add(map.value_bytes as usize).max(1);
        Self { key_bytes, entry_bytes, bytes: Vec::new() }
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len() / self.entry_bytes
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Keys and values.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        let entries = self.bytes.chunks_exact(self.entry_bytes);
        entries.map(|entry| entry.split_at(self.key_bytes.min(entry.len())))
    }

    /// The key and the value of one of them.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let start = index.checked_mul(self.entry_bytes)?;
        let entry = self.bytes.get(start..start.checked_add(self.entry_bytes)?)?;
        entry.split_at_checked(self.key_bytes)
    }
}

impl FunctionMap {
    /// Its sizes are those of a map that can be: who reads it believes them.
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
            return Err(Error::BadAnswer("Map Report tells of a map that is larger than maps are"));
        }
        Ok(map)
    }

    /// Entries that a map with its sizes can have. Of an array the keys take no memory.
    fn most_entries(&self) -> u64 {
        let (key_bytes, value_bytes) = (u64::from(self.key_bytes), u64::from(self.value_bytes));
        let kept_bytes =
            if self.is_array { value_bytes.max(1) } else { key_bytes + value_bytes + LINKS_BYTES };
        MAP_MAX_BYTES / kept_bytes
    }

    fn check(&self, part: &'static str, bytes: usize, expected_bytes: u32) -> Result<(), Error> {
        if bytes == expected_bytes as usize {
            return Ok(());
        }
        Err(Error::MapSize { map: self.name.clone(), part, expected_bytes, bytes })
    }
}

impl Controller {
    /// The maps of this association: those of functions that it has loaded, and its own instances
    /// of those of functions that are kept for all.
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
            // Each association has it; which one is asked is found out when it is.
            maps.iter_mut().for_each(|map| map.address.controller = MapAddress::OWN);
        }
        Ok(maps)
    }

    /// The map of this association with this name; of two the one of its own functions, not of
    /// those that are kept for all.
    ///
    /// # Errors
    /// [`Error::NoSuchMap`]; those of [`maps`](Self::maps).
    pub fn map(&mut self, name: &str) -> Result<FunctionMap, Error> {
        let maps = self.maps()?;
        // Those of kept functions come last: their ids are higher.
        if let Some(found) = maps.iter().find(|map| map.name == name) {
            return Ok(found.clone());
        }
        let known: Vec<&str> = maps.iter().map(|map| map.name.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Err(Error::NoSuchMap { name: name.to_owned(), known })
    }

    /// With several paths: the map of this program that requests see now, instead of the one of the path by
    /// which it was found.
    fn where_it_is(&mut self, map: &FunctionMap) -> Result<FunctionMap, Error> {
        match &self.paths {
            Some(_) if map.address.controller == MapAddress::OWN => self.map(&map.name),
            _ => Ok(map.clone()),
        }
    }

    /// The value of a key; None if it is not there.
    ///
    /// # Errors
    /// [`Error::MapSize`]; otherwise as the target answered.
    pub fn map_get(&mut self, map: &FunctionMap, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        map.check("key", key.len(), map.key_bytes)?;
        let map = &self.where_it_is(map)?;
        let length_bytes = map.value_bytes;
        let sqe = MapCommand::Get { map: map.address, length_bytes }.to_sqe();
        let Some(value) = if_there(self.admin_command(sqe, key, length_bytes))? else {
            return Ok(None);
        };
        if value.1.len() != length_bytes as usize {
            return Err(Error::BadAnswer("Map Get returned a value of another size"));
        }
        Ok(Some(value.1))
    }

    /// Sets the value of a key, whether it is there or not.
    ///
    /// # Errors
    /// [`Error::MapSize`]; otherwise as the target answered, Map Full if there is no room.
    pub fn map_set(&mut self, map: &FunctionMap, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.map_change(map, MapChange::Set, key, value).map(|_| ())
    }

    /// Removes an entry; whether it was there.
    ///
    /// # Errors
    /// [`Error::MapSize`]; otherwise as the target answered, Invalid Field in Command for an
    /// array, whose entries are always there.
    pub fn map_delete(&mut self, map: &FunctionMap, key: &[u8]) -> Result<bool, Error> {
        self.map_change(map, MapChange::Delete, key, &[])
    }

    /// Any change of an entry. False if it is not there and had to be
    /// ([`MapChange::SetExisting`], [`MapChange::Delete`]).
    ///
    /// # Errors
    /// Those of [`map_set`](Self::map_set); Entry Exists for a [`MapChange::SetNew`] of one that
    /// is there.
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
            return paths.change_map(&map.name, change, key, value);
        }
        let sqe = MapCommand::Change { map: map.address, change }.to_sqe();
        let data = [key, value].concat();
        Ok(if_there(self.admin_command(sqe, &data, 0))?.is_some())
    }

    /// All entries, in no particular order. Those that were there all the time are there exactly
    /// once, whatever else came and went meanwhile.
    ///
    /// # Errors
    /// As the target answered.
    pub fn map_entries(&mut self, map: &FunctionMap) -> Result<MapEntries, Error> {
        let map = &self.where_it_is(map)?;
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
                return Err(Error::BadAnswer("Map Read goes on and on without entries"));
            }
            if entries.len() as u64 > most {
                return Err(Error::BadAnswer("Map Read returned more entries than a map can have"));
            }
            match answer.dw0 {
                0 => return Ok(entries),
                // There may be no entry in a page where many were removed.
                next if next > first_slot && u64::from(next) < most => first_slot = next,
                _ => {
                    let what = "Map Read goes on where it has been, or where nothing can be";
                    return Err(Error::BadAnswer(what));
                }
            }
        }
    }
}

/// None instead of No Such Entry.
fn if_there<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(Error::Command { source, .. }) if source.status.same_code(Status::NO_SUCH_ENTRY) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
