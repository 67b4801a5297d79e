//! Logs whose records are linked backwards (`functions/log_walk.h`).

use crate::bytes::Bytes;
use crate::{Damage, Place, READ_MAX_BYTES, ReadAt};

/// The storage function `log_walk`, an ELF object.
pub const WALK_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/log_walk.bpf.o"));

const HEADER_BYTES: usize = 24;
const DELETION: u32 = 1;

/// A record too long for a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a record of {0} bytes is too long; a log has records of at most {READ_MAX_BYTES}")]
pub struct TooLong(
    /// Its size in bytes.
    pub usize,
);

/// Appends a record to a log: the value of a key, or its deletion. `list` is the newest record of
/// the record's list, and is updated to this record.
///
/// # Errors
/// [`TooLong`]; the log is then unchanged.
pub fn append(
    log: &mut Vec<u8>,
    list: &mut Option<Place>,
    key: &[u8],
    value: Option<&[u8]>,
) -> Result<Place, TooLong> {
    let size = HEADER_BYTES + key.len() + value.map_or(0, <[u8]>::len);
    if size > READ_MAX_BYTES {
        return Err(TooLong(size));
    }
    let from = log.len();
    let (offset, previous_size) = list.map_or((0, 0), |last| (last.offset_bytes, last.size_bytes));
    let flags = if value.is_none() { DELETION } else { 0 };
    log.extend_from_slice(&[0; 4]);
    log.extend_from_slice(&previous_size.to_le_bytes());
    log.extend_from_slice(&offset.to_le_bytes());
    log.extend_from_slice(&flags.to_le_bytes());
    log.extend_from_slice(&(key.len() as u32).to_le_bytes());
    log.extend_from_slice(key);
    log.extend_from_slice(value.unwrap_or(&[]));
    seal(log.split_at_mut(from).1);
    let place = Place { offset_bytes: from as u64, size_bytes: size as u32 };
    *list = Some(place);
    Ok(place)
}

/// Writes the checksum of a record.
pub fn seal(record: &mut [u8]) {
    if let Some((checksum, checked)) = record.split_first_chunk_mut::<4>() {
        *checksum = crc32c::crc32c(checked).to_le_bytes();
    }
}

/// A query for the value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The most records that one chain reads; 0 is no limit.
    pub records_max: u32,
}

/// The result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// No record of the list has the key.
    NotFound,
    /// The newest record that has it, and its value.
    Found(Place, Vec<u8>),
    /// The newest record with the key is a deletion.
    Deleted(Place),
    /// None of the records that were read has the key; the next walk begins with this one.
    More(Place),
}

impl Lookup {
    /// Parses an answer of `log_walk`; None if it is malformed.
    #[must_use]
    pub fn parse(answer: &[u8]) -> Option<Lookup> {
        let mut answer = Bytes(answer);
        let (status, size_bytes) = (answer.u32()?, answer.u32()?);
        let place = Place { offset_bytes: answer.u64()?, size_bytes };
        match (status, answer.0) {
            (0, []) => Some(Lookup::NotFound),
            (1, value) => Some(Lookup::Found(place, value.to_vec())),
            (2, []) => Some(Lookup::Deleted(place)),
            (3, []) => Some(Lookup::More(place)),
            _ => None,
        }
    }
}

impl Walk<'_> {
    /// The argument of `log_walk`. The chain begins with the newest record of the list. It fails with
    /// [`Damage::Request`] if the value is longer than its scratch less 16 bytes; `plain` reads any.
    #[must_use]
    pub fn argument(&self) -> Vec<u8> {
        let numbers = [self.records_max, self.key.len() as u32];
        let mut argument: Vec<u8> =
            numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        argument.extend_from_slice(self.key);
        argument
    }

    /// The same walk over plain reads, from the newest record of the list.
    ///
    /// # Errors
    /// The log's [`Damage`].
    pub fn plain(&self, newest: Place, read: &mut ReadAt<'_>) -> Result<Lookup, Damage> {
        let mut place = newest;
        for walked in 1_u64.. {
            let bytes = place.read(read)?;
            let record = Record::open(&bytes)?;
            if record.key == self.key {
                return Ok(match record.value {
                    Some(value) => Lookup::Found(place, value.to_vec()),
                    None => Lookup::Deleted(place),
                });
            }
            let previous = record.previous;
            if previous.size_bytes == 0 {
                break;
            }
            let end = previous.offset_bytes.checked_add(u64::from(previous.size_bytes));
            if previous.size_bytes as usize > READ_MAX_BYTES
                || end.is_none_or(|end| end > place.offset_bytes)
            {
                return Err(Damage::Pointer);
            }
            if walked == u64::from(self.records_max) {
                return Ok(Lookup::More(previous));
            }
            place = previous;
        }
        Ok(Lookup::NotFound)
    }
}

struct Record<'a> {
    /// Size 0 if this is the oldest record of its list.
    previous: Place,
    key: &'a [u8],
    /// None: the key was deleted.
    value: Option<&'a [u8]>,
}

impl<'a> Record<'a> {
    fn open(bytes: &'a [u8]) -> Result<Record<'a>, Damage> {
        let mut rest = Bytes(bytes);
        let mut header = || Some((rest.u32()?, rest.u32()?, rest.u64()?, rest.u32()?, rest.u32()?));
        let (checksum, size_bytes, offset_bytes, flags, key_size) = header().ok_or(Damage::Size)?;
        if bytes.get(4..).map(crc32c::crc32c) != Some(checksum) {
            return Err(Damage::Checksum);
        }
        if flags & !DELETION != 0 {
            return Err(Damage::Entry);
        }
        let key = rest.take(key_size as usize).ok_or(Damage::Size)?;
        let value = (flags & DELETION == 0).then_some(rest.0);
        Ok(Record { previous: Place { offset_bytes, size_bytes }, key, value })
    }
}
