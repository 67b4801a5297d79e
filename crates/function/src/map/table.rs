//! The entries of a map, in slots that are allocated once.
//!
//! A hash map is a table of chained buckets over the slots: entries never move, deletion leaves no
//! tombstones, and no operation takes longer than the chain of a bucket.

use super::pages::zeroes;
use super::{MapDefinition, MapKind};

/// Set in the link of a slot that has an entry.
const LIVE: u32 = 1 << 31;

/// Slots and their index. Links are slot numbers plus one; 0 is the end of a chain.
#[derive(Debug)]
pub(super) struct Table {
    kind: MapKind,
    key_bytes: usize,
    /// Bytes of a slot; in an array only the value.
    slot_bytes: usize,
    slots: Vec<u8>,
    /// Hash: of a live slot [`LIVE`] and the next slot in its bucket, of a free slot the next free
    /// one.
    links: Vec<u32>,
    /// Hash: a power of two buckets.
    buckets: Vec<u32>,
    /// Hash: the first free slot among those used before.
    free: u32,
    /// Number of slots that were ever used; no slot from here on has an entry.
    used: u32,
    entries: u32,
}

impl Table {
    /// All initial values are zeroes, so no page is touched here.
    pub(super) fn new(definition: &MapDefinition) -> Table {
        let count = definition.max_entries() as usize;
        let kind = definition.kind();
        let is_hash = kind == MapKind::Hash;
        let key_bytes = if is_hash { definition.key_bytes() } else { 0 };
        let slot_bytes = key_bytes + definition.value_bytes();
        let all = if is_hash { 0 } else { definition.max_entries() };
        Table {
            kind,
            key_bytes,
            slot_bytes,
            slots: zeroes(slot_bytes * count),
            links: zeroes(if is_hash { count } else { 0 }),
            buckets: zeroes(if is_hash { count.next_power_of_two() } else { 0 }),
            free: 0,
            used: all,
            entries: all,
        }
    }

    pub(super) fn entries(&self) -> u32 {
        self.entries
    }

    /// Slots below this number may have an entry.
    pub(super) fn slots(&self) -> u32 {
        self.used
    }

    pub(super) fn is_live(&self, slot: u32) -> bool {
        match self.kind {
            MapKind::Array => slot < self.used,
            MapKind::Hash => self.links[slot as usize] & LIVE != 0,
        }
    }

    fn slot(&self, slot: u32) -> &[u8] {
        &self.slots[slot as usize * self.slot_bytes..][..self.slot_bytes]
    }

    pub(super) fn value(&self, slot: u32) -> &[u8] {
        &self.slot(slot)[self.key_bytes..]
    }

    pub(super) fn value_mut(&mut self, slot: u32) -> &mut [u8] {
        let start = slot as usize * self.slot_bytes;
        &mut self.slots[start + self.key_bytes..start + self.slot_bytes]
    }

    /// Appends the key of a live slot.
    pub(super) fn key_into(&self, slot: u32, out: &mut Vec<u8>) {
        match self.kind {
            MapKind::Array => out.extend_from_slice(&slot.to_le_bytes()),
            MapKind::Hash => out.extend_from_slice(&self.slot(slot)[..self.key_bytes]),
        }
    }

    fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// The slot of a key. For a hash map, `hash` is the hash of the key.
    pub(super) fn find(&self, key: &[u8], hash: u64) -> Option<u32> {
        if self.kind == MapKind::Array {
            let index = u32::from_le_bytes(*key.first_chunk()?);
            return (index < self.used).then_some(index);
        }
        let mut link = self.buckets[self.bucket(hash)];
        while let Some(slot) = link.checked_sub(1) {
            if &self.slot(slot)[..self.key_bytes] == key {
                return Some(slot);
            }
            link = self.links[slot as usize] & !LIVE;
        }
        None
    }

    /// Makes an entry for a key that has none; its value is left over from an earlier entry. None
    /// if there is no room.
    pub(super) fn insert(&mut self, key: &[u8], hash: u64) -> Option<u32> {
        if self.kind == MapKind::Array {
            return None;
        }
        let slot = match self.free.checked_sub(1) {
            Some(slot) => {
                self.free = self.links[slot as usize];
                slot
            }
            None if (self.used as usize) < self.links.len() => {
                self.used += 1;
                self.used - 1
            }
            None => return None,
        };
        let bucket = self.bucket(hash);
        self.links[slot as usize] = LIVE | self.buckets[bucket];
        self.buckets[bucket] = slot + 1;
        self.slots[slot as usize * self.slot_bytes..][..self.key_bytes].copy_from_slice(key);
        self.entries += 1;
        Some(slot)
    }

    /// Removes the entry of a key; false if there is none.
    pub(super) fn remove(&mut self, key: &[u8], hash: u64) -> bool {
        let Some(slot) = self.find(key, hash) else { return false };
        let next = self.links[slot as usize] & !LIVE;
        let bucket = self.bucket(hash);
        if self.buckets[bucket] == slot + 1 {
            self.buckets[bucket] = next;
        } else {
            let mut before = self.buckets[bucket] - 1;
            while self.links[before as usize] & !LIVE != slot + 1 {
                before = (self.links[before as usize] & !LIVE) - 1;
            }
            self.links[before as usize] = LIVE | next;
        }
        self.links[slot as usize] = self.free;
        self.free = slot + 1;
        self.entries -= 1;
        true
    }
}
