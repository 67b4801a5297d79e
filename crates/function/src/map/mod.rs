//! Function maps: memory that storage functions keep from chain to chain.
//!
//! A map is declared in the object ([`MapDefinition`]) and made when the function is installed ([`Map`]). Its memory is
//! bounded and allocated at the start: nothing grows later. Threads that run chains share it under one lock, which is
//! held briefly for each operation. Each operation is atomic; a sequence of two is not.

mod declaration;
mod definition;
mod pages;
mod table;

pub use declaration::{DeclarationError, MAX_MAPS};
pub use definition::{
    DefinitionError, MAX_KEY_BYTES, MAX_MAP_BYTES, MAX_NAME_BYTES, MAX_VALUE_BYTES, MapDefinition,
    MapKind,
};

pub(crate) use declaration::Declarations;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use table::Table;

/// Empty slots that one page skips before it ends, so that it takes microseconds only (see [`Map::page`]).
const PAGE_SLOTS: u32 = 16384;
/// Maximum entries of one page, for the same reason: they may be in no cache.
const PAGE_ENTRIES: usize = 1024;
/// A page locks the map for about as many bytes of entries, and as many slots, at a time.
const LOCKED_BYTES: usize = 4096;
const LOCKED_SLOTS: u32 = 1024;

/// The reason why an operation on a map fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// There is no entry with this key.
    #[error("the map has no entry with this key")]
    NoEntry,
    /// There is an entry already, but only a new one was to be made.
    #[error("the map has an entry with this key already")]
    Exists,
    /// The map is full, or the index is past the end of the array.
    #[error("the map is full, or the index is past the end of the array")]
    NoRoom,
    /// The operation is not possible for this map: deletion from an array, addition to a number that is not inside the
    /// value, a key or value of the wrong size.
    #[error("the map does not support this operation, or the key or value has the wrong size")]
    Invalid,
}

/// Which entries [`Map::set`] may write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetMode {
    /// The entry is created if it does not exist.
    #[default]
    Any,
    /// The entry must not exist (`BPF_NOEXIST`).
    New,
    /// The entry must exist (`BPF_EXIST`).
    Existing,
}

impl SetMode {
    /// The mode with this number, as in Linux: 0 any, 1 new, 2 existing.
    #[must_use]
    pub fn from_number(number: u64) -> Option<SetMode> {
        [SetMode::Any, SetMode::New, SetMode::Existing]
            .into_iter()
            .find(|mode| *mode as u64 == number)
    }
}

/// A map with its entries.
pub struct Map {
    definition: MapDefinition,
    /// Random, so that a host cannot choose keys that all fall into one bucket.
    hasher: RandomState,
    table: Mutex<Table>,
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Map({:?})", self.definition)
    }
}

impl Map {
    /// Makes an empty map, or an array of zeroes. All of its memory is allocated; the operating system provides pages
    /// as they are used.
    #[must_use]
    pub fn new(definition: MapDefinition) -> Map {
        let table = Mutex::new(Table::new(&definition));
        Map { definition, hasher: RandomState::new(), table }
    }

    /// The definition that it was made from.
    #[must_use]
    pub fn definition(&self) -> &MapDefinition {
        &self.definition
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // No operation leaves the table in an inconsistent state.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the table; calls `pay` before a wait for another thread, and after it with its time, and fails if that
    /// refuses.
    #[inline]
    fn lock_paying<E>(
        &self,
        mut pay: impl FnMut(Option<Duration>) -> Result<(), E>,
    ) -> Result<MutexGuard<'_, Table>, E> {
        match self.table.try_lock() {
            Ok(table) => Ok(table),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                pay(None)?;
                let begun = Instant::now();
                let table = self.lock();
                pay(Some(begun.elapsed()))?;
                Ok(table)
            }
        }
    }

    fn hash(&self, key: &[u8]) -> u64 {
        match self.definition.kind() {
            MapKind::Hash => self.hasher.hash_one(key),
            MapKind::Array => 0,
        }
    }

    fn check_key(&self, key: &[u8]) -> Result<(), MapError> {
        if key.len() == self.definition.key_bytes() { Ok(()) } else { Err(MapError::Invalid) }
    }

    /// The value of a key; the map is locked while it exists.
    ///
    /// # Errors
    /// [`MapError::NoEntry`]; [`MapError::Invalid`] for a key of another size.
    pub fn get(&self, key: &[u8]) -> Result<Value<'_>, MapError> {
        self.get_paying(key, for_free)
    }

    /// As [`get`](Map::get); `pay` is called before a wait for another thread, and
    /// after it with its time, and may refuse.
    pub(crate) fn get_paying<E: From<MapError>>(
        &self,
        key: &[u8],
        pay: impl FnMut(Option<Duration>) -> Result<(), E>,
    ) -> Result<Value<'_>, E> {
        self.check_key(key)?;
        let hash = self.hash(key);
        let table = self.lock_paying(pay)?;
        let slot = table.find(key, hash).ok_or(MapError::NoEntry)?;
        Ok(Value { table, slot })
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// Any [`MapError`]; then nothing has changed.
    pub fn set(&self, key: &[u8], value: &[u8], mode: SetMode) -> Result<(), MapError> {
        self.set_paying((key, value), mode, for_free)
    }

    /// As [`set`](Map::set); `pay` as in [`get_paying`](Map::get_paying).
    pub(crate) fn set_paying<E: From<MapError>>(
        &self,
        (key, value): (&[u8], &[u8]),
        mode: SetMode,
        pay: impl FnMut(Option<Duration>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.check_key(key)?;
        if value.len() != self.definition.value_bytes() {
            return Err(MapError::Invalid.into());
        }
        let hash = self.hash(key);
        let mut table = self.lock_paying(pay)?;
        let slot = match (table.find(key, hash), mode) {
            (Some(_), SetMode::New) => return Err(MapError::Exists.into()),
            (Some(slot), _) => slot,
            (None, SetMode::Existing) => return Err(MapError::NoEntry.into()),
            (None, _) => table.insert(key, hash).ok_or(MapError::NoRoom)?,
        };
        table.value_mut(slot).copy_from_slice(value);
        Ok(())
    }

    /// Removes an entry.
    ///
    /// # Errors
    /// [`MapError::NoEntry`]; [`MapError::Invalid`] for an array or a key of another size.
    pub fn delete(&self, key: &[u8]) -> Result<(), MapError> {
        self.delete_paying(key, for_free)
    }

    /// As [`delete`](Map::delete); `pay` as in [`get_paying`](Map::get_paying).
    pub(crate) fn delete_paying<E: From<MapError>>(
        &self,
        key: &[u8],
        pay: impl FnMut(Option<Duration>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.check_key(key)?;
        if self.definition.kind() == MapKind::Array {
            return Err(MapError::Invalid.into());
        }
        let hash = self.hash(key);
        let is_removed = self.lock_paying(pay)?.remove(key, hash);
        if is_removed { Ok(()) } else { Err(MapError::NoEntry.into()) }
    }

    /// Adds to the little-endian u64 at `offset` in the value, wrapping around, and returns the sum. A missing entry is
    /// created with zeroes first.
    ///
    /// # Errors
    /// [`MapError::NoRoom`]; [`MapError::Invalid`] if the number is not inside the value.
    pub fn add(&self, key: &[u8], offset: u64, delta: u64) -> Result<u64, MapError> {
        self.add_paying(key, (offset, delta), for_free)
    }

    /// As [`add`](Map::add); `pay` as in [`get_paying`](Map::get_paying).
    pub(crate) fn add_paying<E: From<MapError>>(
        &self,
        key: &[u8],
        (offset, delta): (u64, u64),
        pay: impl FnMut(Option<Duration>) -> Result<(), E>,
    ) -> Result<u64, E> {
        self.check_key(key)?;
        let end = offset.checked_add(8).ok_or(MapError::Invalid)?;
        if end > self.definition.value_bytes() as u64 {
            return Err(MapError::Invalid.into());
        }
        let hash = self.hash(key);
        let mut table = self.lock_paying(pay)?;
        let slot = match table.find(key, hash) {
            Some(slot) => slot,
            None => {
                let slot = table.insert(key, hash).ok_or(MapError::NoRoom)?;
                table.value_mut(slot).fill(0);
                slot
            }
        };
        let number = table.value_mut(slot).get_mut(offset as usize..end as usize);
        let number = number.and_then(|bytes| bytes.as_mut_array::<8>());
        let number = number.ok_or(MapError::Invalid)?;
        let sum = u64::from_le_bytes(*number).wrapping_add(delta);
        *number = sum.to_le_bytes();
        Ok(sum)
    }

    /// Number of entries; for an array all.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.lock().entries()
    }

    /// Appends entries, each with key and value, beginning at a slot: up to `max_bytes` in all, and no more than can be
    /// copied in microseconds. Returns the slot to continue from, or None at the end; a page before the end may be
    /// empty. The map is locked for a few entries at a time, because functions wait meanwhile.
    ///
    /// An entry keeps its slot as long as it exists. So pages from 0 to the end have every entry that existed all the
    /// time exactly once, even if others are added and removed meanwhile.
    pub fn page(&self, first_slot: u32, max_bytes: usize, out: &mut Vec<u8>) -> Option<u32> {
        let entry_bytes = self.definition.entry_bytes();
        let most = PAGE_ENTRIES.min(self.definition.max_entries() as usize);
        let mut room = most.min(max_bytes / entry_bytes);
        // Allocates memory before taking the lock.
        out.reserve(room * entry_bytes);
        let end = first_slot.saturating_add(PAGE_SLOTS);
        let mut next = first_slot;
        loop {
            let table = self.lock();
            let slots = table.slots();
            let (enough, last) = (out.len() + LOCKED_BYTES, next.saturating_add(LOCKED_SLOTS));
            while next < last.min(end).min(slots) && out.len() < enough {
                if table.is_live(next) {
                    if room == 0 {
                        return Some(next);
                    }
                    room -= 1;
                    table.key_into(next, out);
                    out.extend_from_slice(table.value(next));
                }
                next += 1;
            }
            if next >= slots {
                return None;
            }
            if next >= end {
                return Some(next);
            }
        }
    }
}

/// Hosts and operators do not pay for waiting for a map.
fn for_free(_: Option<Duration>) -> Result<(), MapError> {
    Ok(())
}

/// A value of a map, which keeps the map locked.
pub struct Value<'a> {
    table: MutexGuard<'a, Table>,
    slot: u32,
}

impl Deref for Value<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.table.value(self.slot)
    }
}

#[cfg(test)]
mod tests;
