//! Tables of sorted blocks with prefix compression and restart points, as LevelDB and RocksDB write
//! them (`functions/block_get.h`), without compression of whole blocks.

use crate::bytes::{Bytes, push_varint};
use crate::{Damage, Place, READ_MAX_BYTES, ReadAt};
use std::cmp::Ordering;

/// The storage function `block_get`, an ELF object.
pub const GET_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/block_get.bpf.o"));
/// Bytes after each block: compression and checksum. Pointers to a block do not count them in its
/// size, but reads must include them.
pub const TRAILER_BYTES: usize = 5;

const TAG_BYTES: usize = 8;
const REQUEST_BYTES: usize = 24;
const TAGGED_KEYS: u32 = 1;
const LEVELDB_MAGIC: u64 = 0xdb47_7524_8b80_fb57;
const ROCKSDB_MAGIC: u64 = 0x88e2_41b7_85f4_cff7;

/// The blocks to which an index block (with its trailer) points.
///
/// # Errors
/// The block's [`Damage`].
pub fn children(block: &[u8]) -> Result<Vec<Place>, Damage> {
    let mut rest = Bytes(open(block)?.0);
    let (mut key, mut places) = (Vec::new(), Vec::new());
    while !rest.0.is_empty() {
        let entry = Entry::take(&mut rest, &key)?;
        places.push(pointer(&mut Bytes(entry.value))?);
        key = entry.key;
    }
    Ok(places)
}

/// The kind of an entry, from its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The key was deleted.
    Deletion,
    /// The entry has a value.
    Value,
    /// The key was deleted, and had been written only once.
    SingleDeletion,
    /// A kind that only the store understands, such as a merge.
    Other(u8),
}

impl Kind {
    const fn from_tag(tag: u64) -> Kind {
        match tag as u8 {
            0 => Kind::Deletion,
            1 => Kind::Value,
            7 => Kind::SingleDeletion,
            other => Kind::Other(other),
        }
    }
}

/// The eight bytes after a key in stores that keep versions: a larger tag is newer.
#[must_use]
pub const fn tag(sequence: u64, kind: Kind) -> u64 {
    let kind = match kind {
        Kind::Deletion => 0,
        Kind::Value => 1,
        Kind::SingleDeletion => 7,
        Kind::Other(other) => other,
    };
    sequence << 8 | kind as u64
}

/// Sizes that determine a table's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// A block is closed when it reaches this many bytes.
    pub block_bytes: usize,
    /// Entries from one restart point to the next, at least 1.
    pub restart_interval: usize,
    /// Keys end with tags.
    pub tagged: bool,
}

impl Default for Shape {
    /// Blocks of 4 KiB, a restart point every 16 entries, no tags.
    fn default() -> Self {
        Self { block_bytes: 4096, restart_interval: 16, tagged: false }
    }
}

/// Why an entry was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Keys must ascend, and tags of one key must descend.
    #[error("an entry is not after the previous entry; add entries in the order of their keys")]
    Order,
    /// The entry is too long for a block.
    #[error("an entry of {0} bytes does not fit a block of {READ_MAX_BYTES}")]
    TooLong(usize),
    /// A key without its tag.
    #[error("a key of {0} bytes has no tag")]
    NoTag(usize),
}

/// A block that is being written.
#[derive(Clone, Debug, Default)]
struct Block {
    bytes: Vec<u8>,
    restarts: Vec<u32>,
    entries: usize,
    last_key: Vec<u8>,
}

impl Block {
    fn add(&mut self, key: &[u8], value: &[u8], restart_interval: usize) {
        let mut shared = 0;
        if self.entries.is_multiple_of(restart_interval.max(1)) {
            self.restarts.push(self.bytes.len() as u32);
        } else {
            let pairs = self.last_key.iter().zip(key);
            shared = pairs.take_while(|(before, now)| before == now).count();
        }
        for number in [shared, key.len() - shared, value.len()] {
            push_varint(&mut self.bytes, number as u64);
        }
        self.bytes.extend(key.iter().skip(shared));
        self.bytes.extend_from_slice(value);
        self.entries += 1;
        self.last_key = key.to_vec();
    }

    /// Size in bytes with restart points and trailer.
    fn size(&self) -> usize {
        self.bytes.len() + 4 * self.restarts.len() + 4 + TRAILER_BYTES
    }

    fn finish(mut self) -> Vec<u8> {
        if self.restarts.is_empty() {
            self.restarts.push(0);
        }
        self.bytes.extend(self.restarts.iter().flat_map(|offset| offset.to_le_bytes()));
        self.bytes.extend((self.restarts.len() as u32).to_le_bytes());
        self.bytes.extend([0; TRAILER_BYTES]);
        seal(&mut self.bytes);
        self.bytes
    }
}

/// Writes the checksum of a block with its trailer.
pub fn seal(block: &mut [u8]) {
    if let Some((checked, checksum)) = block.split_last_chunk_mut::<4>() {
        *checksum = mask(crc32c::crc32c(checked)).to_le_bytes();
    }
}

/// Checksums of data that contains checksums are stored masked, so that they differ from those.
const fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// A finished table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The file.
    pub bytes: Vec<u8>,
    /// The top block with its trailer, where lookups begin.
    pub root: Place,
    /// Levels of index blocks, the root's included; 0 if the root is the only data block.
    pub index_levels: u32,
}

/// Makes a table, in memory.
#[derive(Clone, Debug)]
pub struct TableWriter {
    shape: Shape,
    bytes: Vec<u8>,
    block: Block,
    /// Last key and place of each finished block of the current level.
    finished: Vec<(Vec<u8>, Place)>,
}

impl TableWriter {
    /// An empty table.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self { shape, bytes: Vec::new(), block: Block::default(), finished: Vec::new() }
    }

    /// Adds an entry; the key ends with its tag if the shape has tags.
    ///
    /// # Errors
    /// [`TableError`]; the table is then unchanged.
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), TableError> {
        let tag_bytes = if self.shape.tagged { TAG_BYTES } else { 0 };
        if key.len() < tag_bytes {
            return Err(TableError::NoTag(key.len()));
        }
        // Three varints, a restart point, and the number of restart points.
        let size = key.len() + value.len() + 3 * 5 + 8 + TRAILER_BYTES;
        // An index block must have room for two entries, or the number of levels would be
        // unbounded.
        if size > READ_MAX_BYTES || 2 * key.len() + 100 > READ_MAX_BYTES {
            return Err(TableError::TooLong(size));
        }
        let last = match (self.block.entries, self.finished.last()) {
            (0, None) => None,
            (0, Some((last, _))) => Some(last),
            _ => Some(&self.block.last_key),
        };
        if last.is_some_and(|last| order(last, key, tag_bytes) != Some(Ordering::Less)) {
            return Err(TableError::Order);
        }
        self.push(key, value);
        Ok(())
    }

    fn push(&mut self, key: &[u8], value: &[u8]) {
        let size = self.block.size() + key.len() + value.len() + 3 * 5 + 4;
        if self.block.entries > 0 && size > self.shape.block_bytes.min(READ_MAX_BYTES) {
            self.close_block();
        }
        self.block.add(key, value, self.shape.restart_interval);
    }

    fn close_block(&mut self) {
        let block = std::mem::take(&mut self.block);
        let last_key = block.last_key.clone();
        let bytes = block.finish();
        let offset_bytes = self.bytes.len() as u64;
        self.finished.push((last_key, Place { offset_bytes, size_bytes: bytes.len() as u32 }));
        self.bytes.extend(bytes);
    }

    /// Finishes the table. Index blocks are as large as data blocks, in as many levels as
    /// necessary.
    #[must_use]
    pub fn finish(mut self) -> Table {
        let mut index_levels = 0;
        if self.block.entries > 0 || self.finished.is_empty() {
            self.close_block();
        }
        loop {
            if let [(_, root)] = self.finished[..] {
                return Table { bytes: self.bytes, root, index_levels };
            }
            index_levels += 1;
            // Each level must have fewer blocks than the one below: at least two entries a block.
            let smallest = self.finished.iter().map(|(key, _)| 2 * key.len() + 100).max();
            self.shape.block_bytes = self.shape.block_bytes.max(smallest.unwrap_or(0));
            for (key, place) in std::mem::take(&mut self.finished) {
                let mut pointer = Vec::new();
                push_varint(&mut pointer, place.offset_bytes);
                push_varint(&mut pointer, u64::from(place.size_bytes) - TRAILER_BYTES as u64);
                self.push(&key, &pointer);
            }
            self.close_block();
        }
    }
}

/// The place of the index block of a LevelDB or RocksDB file, from its last bytes (53 are enough).
/// None if the file is neither, or a RocksDB table with a checksum other than CRC-32C or an index
/// other than that of `format_version` 2.
#[must_use]
pub fn index_of_file(end: &[u8]) -> Option<Place> {
    let (rest, magic) = end.split_last_chunk::<8>()?;
    let mut handles = match u64::from_le_bytes(*magic) {
        LEVELDB_MAGIC => Bytes::at(rest, rest.len().checked_sub(40)?)?,
        ROCKSDB_MAGIC => {
            let mut footer = Bytes::at(rest, rest.len().checked_sub(45)?)?;
            let (checksum, handles) = (footer.u8()?, Bytes(footer.take(40)?));
            if checksum != 1 || footer.u32()? > 2 {
                return None;
            }
            handles
        }
        _ => return None,
    };
    let (_metaindex, _) = (handles.varint(64)?, handles.varint(64)?);
    pointer(&mut handles).ok()
}

fn pointer(value: &mut Bytes<'_>) -> Result<Place, Damage> {
    let offset_bytes = value.varint(64).ok_or(Damage::Entry)?;
    let size = value.varint(64).ok_or(Damage::Entry)?;
    if size > (READ_MAX_BYTES - TRAILER_BYTES) as u64 {
        return Err(Damage::Pointer);
    }
    Ok(Place { offset_bytes, size_bytes: size as u32 + TRAILER_BYTES as u32 })
}

/// A query for the value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get<'a> {
    /// The key, without a tag.
    pub key: &'a [u8],
    /// For tables with tags: the newest visible tag ([`u64::MAX`] sees all versions).
    pub newest_tag: Option<u64>,
    /// Levels of index blocks.
    pub index_levels: u32,
}

/// The result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The table does not have the key.
    NotFound,
    /// The key's value, and the tag of the entry (0 without tags).
    Found(Vec<u8>, u64),
    /// The key was deleted, by the entry with this tag.
    Deleted(u64),
    /// The entry's bytes and tag, of a kind that only the store understands. No bytes if they do not fit the scratch
    /// buffer.
    Other(Vec<u8>, u64),
    /// The value does not fit the scratch buffer; it can be read at this place.
    TooLong(Place, u64),
}

impl Lookup {
    /// Parses an answer of `block_get`; None if it is malformed.
    #[must_use]
    pub fn parse(answer: &[u8]) -> Option<Lookup> {
        let mut answer = Bytes(answer);
        let (status, size_bytes) = (answer.u32()?, answer.u32()?);
        let (tag, offset_bytes) = (answer.u64()?, answer.u64()?);
        let value = answer.0;
        if status == 4 && value.is_empty() {
            return Some(Lookup::TooLong(Place { offset_bytes, size_bytes }, tag));
        }
        if status == 3 && value.is_empty() {
            return Some(Lookup::Other(Vec::new(), tag));
        }
        if value.len() != size_bytes as usize {
            return None;
        }
        match status {
            0 => Some(Lookup::NotFound),
            1 => Some(Lookup::Found(value.to_vec(), tag)),
            2 => Some(Lookup::Deleted(tag)),
            3 => Some(Lookup::Other(value.to_vec(), tag)),
            _ => None,
        }
    }
}

impl Get<'_> {
    /// The argument of `block_get`. The chain begins with the table's root.
    #[must_use]
    pub fn argument(&self) -> Vec<u8> {
        let flags = if self.newest_tag.is_some() { TAGGED_KEYS } else { 0 };
        let mut argument = Vec::with_capacity(REQUEST_BYTES + self.key.len());
        argument.extend_from_slice(&self.newest_tag.unwrap_or(0).to_le_bytes());
        for number in [flags, self.index_levels, self.key.len() as u32, 0] {
            argument.extend_from_slice(&number.to_le_bytes());
        }
        argument.extend_from_slice(self.key);
        argument
    }

    /// Bytes of scratch that the chain needs, for keys of tables and values up to these lengths.
    #[must_use]
    pub fn scratch_bytes(&self, key_max: usize, value_max: usize) -> usize {
        REQUEST_BYTES + (self.key.len() + key_max + TAG_BYTES).max(value_max)
    }

    /// The same lookup over plain reads.
    ///
    /// # Errors
    /// The table's [`Damage`].
    pub fn plain(&self, root: Place, read: &mut ReadAt<'_>) -> Result<Lookup, Damage> {
        let mut place = root;
        for _ in 0..self.index_levels {
            let block = place.read(read)?;
            let Some(entry) = self.seek(&block)? else { return Ok(Lookup::NotFound) };
            place = pointer(&mut Bytes(entry.value))?;
        }
        let block = place.read(read)?;
        let Some(entry) = self.seek(&block)? else { return Ok(Lookup::NotFound) };
        if self.newest_tag.is_none() {
            let found = entry.key == self.key;
            return Ok(if found { Lookup::Found(entry.value.into(), 0) } else { Lookup::NotFound });
        }
        let (key, tag) = entry.key.split_last_chunk::<TAG_BYTES>().ok_or(Damage::Entry)?;
        let tag = u64::from_le_bytes(*tag);
        Ok(match Kind::from_tag(tag) {
            _ if key != self.key => Lookup::NotFound,
            Kind::Value => Lookup::Found(entry.value.to_vec(), tag),
            Kind::Deletion | Kind::SingleDeletion => Lookup::Deleted(tag),
            Kind::Other(_) => Lookup::Other(entry.value.to_vec(), tag),
        })
    }

    /// The first entry that does not precede the wanted key.
    fn seek<'b>(&self, block: &'b [u8]) -> Result<Option<Entry<'b>>, Damage> {
        let (entries, restarts) = open(block)?;
        let (mut low, mut high) = (1, restarts.len());
        while low < high {
            let middle = low.midpoint(high);
            let entry = Entry::take(&mut at_restart(entries, restarts, middle)?, &[])?;
            if self.order(&entry.key)? == Ordering::Less {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let mut rest = at_restart(entries, restarts, low - 1)?;
        let mut key = Vec::new();
        while !rest.0.is_empty() {
            let entry = Entry::take(&mut rest, &key)?;
            if self.order(&entry.key)? != Ordering::Less {
                return Ok(Some(entry));
            }
            key = entry.key;
        }
        Ok(None)
    }

    fn order(&self, key: &[u8]) -> Result<Ordering, Damage> {
        let Some(newest) = self.newest_tag else { return Ok(key.cmp(self.key)) };
        let wanted = [self.key, &newest.to_le_bytes()].concat();
        order(key, &wanted, TAG_BYTES).ok_or(Damage::Entry)
    }
}

/// The order of two keys; None if one has no tag.
fn order(a: &[u8], b: &[u8], tag_bytes: usize) -> Option<Ordering> {
    if tag_bytes == 0 {
        return Some(a.cmp(b));
    }
    let (a, a_tag) = a.split_last_chunk::<TAG_BYTES>()?;
    let (b, b_tag) = b.split_last_chunk::<TAG_BYTES>()?;
    Some(a.cmp(b).then(u64::from_le_bytes(*b_tag).cmp(&u64::from_le_bytes(*a_tag))))
}

/// The entries of a block, and its restart points.
fn open(block: &[u8]) -> Result<(&[u8], &[[u8; 4]]), Damage> {
    if block.len() < 8 + TRAILER_BYTES {
        return Err(Damage::Size);
    }
    let (checked, checksum) = block.split_last_chunk::<4>().ok_or(Damage::Size)?;
    if mask(crc32c::crc32c(checked)) != u32::from_le_bytes(*checksum) {
        return Err(Damage::Checksum);
    }
    let (&compression, rest) = checked.split_last().ok_or(Damage::Size)?;
    if compression != 0 {
        return Err(Damage::Compressed);
    }
    let (rest, count) = rest.split_last_chunk::<4>().ok_or(Damage::Size)?;
    let restart_bytes = u32::from_le_bytes(*count) as usize * 4;
    let entries = rest.len().checked_sub(restart_bytes).filter(|_| restart_bytes > 0);
    let (entries, restarts) = rest.split_at(entries.ok_or(Damage::Entry)?);
    Ok((entries, restarts.as_chunks().0))
}

fn at_restart<'b>(
    entries: &'b [u8],
    restarts: &[[u8; 4]],
    number: usize,
) -> Result<Bytes<'b>, Damage> {
    let offset = restarts.get(number).map(|offset| u32::from_le_bytes(*offset) as usize);
    offset.and_then(|offset| Bytes::at(entries, offset)).ok_or(Damage::Entry)
}

/// An entry with its whole key.
struct Entry<'b> {
    key: Vec<u8>,
    value: &'b [u8],
}

impl<'b> Entry<'b> {
    /// Takes the next entry; `before` is the previous entry's key.
    fn take(rest: &mut Bytes<'b>, before: &[u8]) -> Result<Entry<'b>, Damage> {
        let mut fields = || {
            let [shared, other, value] =
                [rest.varint(32)?, rest.varint(32)?, rest.varint(32)?].map(|size| size as usize);
            let (other, value) = (rest.take(other)?, rest.take(value)?);
            Some(Entry { key: [before.get(..shared)?, other].concat(), value })
        };
        fields().ok_or(Damage::Entry)
    }
}
