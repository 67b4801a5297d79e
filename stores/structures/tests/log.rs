//! `log_walk` against a list of the written records and plain reads, on good and damaged logs.

mod common;

use bpfof_structures::log::{Lookup, TooLong, WALK_OBJECT, Walk, append, seal};
use bpfof_structures::{Damage, Place, READ_MAX_BYTES};
use common::World;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

const SCRATCH_BYTES: usize = 1024;
const LISTS: usize = 3;

impl World {
    /// The answer of a chain, which must equal that of plain reads.
    fn walk(&mut self, newest: Place, key: &[u8], records_max: u32) -> Result<Lookup, Damage> {
        let walk = Walk { key, records_max };
        let answer = self.chain(newest, &walk.argument(), SCRATCH_BYTES);
        let found = answer.map(|answer| Lookup::parse(&answer).expect("an answer"));
        assert_eq!(found, walk.plain(newest, &mut self.reader()), "{key:?}");
        found
    }
}

/// A written record: its list, key, value, and place.
type Written = (usize, Vec<u8>, Option<Vec<u8>>, Place);

#[derive(Debug)]
struct Log {
    bytes: Vec<u8>,
    records: Vec<Written>,
    newest: [Option<Place>; LISTS],
}

/// Few keys, so that many records have the same key.
fn logs() -> impl Strategy<Value = Log> {
    let value = proptest::option::weighted(0.8, vec(any::<u8>(), 0..300));
    vec((0..LISTS, vec(0..3_u8, 0..4), value), 1..120).prop_map(|records| {
        let mut log = Log { bytes: Vec::new(), records: Vec::new(), newest: [None; LISTS] };
        for (list, key, value) in records {
            let newest = &mut log.newest[list];
            let place = append(&mut log.bytes, newest, &key, value.as_deref()).expect("short");
            log.records.push((list, key, value, place));
        }
        log
    })
}

impl Log {
    fn expected(&self, list: usize, key: &[u8]) -> Lookup {
        let mut records = self.records.iter().rev();
        match records.find(|(of, with, ..)| *of == list && with == key) {
            None => Lookup::NotFound,
            Some((_, _, None, place)) => Lookup::Deleted(*place),
            Some((_, _, Some(value), place)) => Lookup::Found(*place, value.clone()),
        }
    }

    fn lists(&self) -> impl Iterator<Item = (usize, Place)> {
        let newest = self.newest.into_iter().enumerate();
        newest.filter_map(|(list, newest)| Some((list, newest?)))
    }

    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.records.iter().map(|(_, key, ..)| &key[..]).chain([&b"absent"[..]])
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn walks_agree_with_what_was_written(log in logs(), records_max in 1..20_u32) {
        let mut world = World::kept(WALK_OBJECT);
        world.store(&log.bytes);
        for (list, newest) in log.lists() {
            for key in log.keys() {
                let expected = log.expected(list, key);
                prop_assert_eq!(&world.walk(newest, key, 0), &Ok(expected.clone()));
                // Walking in pieces gives the same answer.
                let mut found = world.walk(newest, key, records_max);
                while let Ok(Lookup::More(next)) = found {
                    found = world.walk(next, key, records_max);
                }
                prop_assert_eq!(found, Ok(expected));
            }
        }
    }

    #[test]
    fn damage_is_told(
        log in logs(), which in any::<Index>(), at in any::<Index>(), byte in any::<u8>(),
        sealed in any::<bool>(),
    ) {
        let mut world = World::kept(WALK_OBJECT);
        let mut bytes = log.bytes.clone();
        let place = log.records[which.index(log.records.len())].3;
        let record = &mut bytes[place.offset_bytes as usize..][..place.size_bytes as usize];
        // Every other change hits the header.
        let at = at.index(2 * record.len());
        record[if at < record.len() { at } else { 4 + at % 20 }] = byte;
        if sealed {
            seal(record);
        }
        world.store(&bytes);
        for (list, newest) in log.lists() {
            for key in log.keys() {
                match world.walk(newest, key, 0) {
                    Err(damage) if !sealed => prop_assert_eq!(damage, Damage::Checksum),
                    Ok(found) if !sealed => prop_assert_eq!(found, log.expected(list, key)),
                    _same_as_plain_reads => {}
                }
            }
        }
    }
}

#[test]
fn cycles_and_short_logs_are_reported() {
    let mut world = World::new(WALK_OBJECT);
    let (mut bytes, mut newest) = (Vec::new(), None);
    let first = append(&mut bytes, &mut newest, b"a", Some(b"1")).expect("short");
    let last = append(&mut bytes, &mut newest, b"b", Some(b"2")).expect("short");
    // The first record points to the last one, to itself, or into its own middle.
    for offset in [last.offset_bytes, 0, u64::MAX] {
        let record = &mut bytes[..first.size_bytes as usize];
        record[4..8].copy_from_slice(&last.size_bytes.to_le_bytes());
        record[8..16].copy_from_slice(&offset.to_le_bytes());
        seal(record);
        world.store(&bytes);
        assert_eq!(world.walk(last, b"c", 0), Err(Damage::Pointer));
        assert_eq!(world.walk(last, b"a", 0), Ok(Lookup::Found(first, b"1".to_vec())));
    }
    world.store(&bytes[..last.offset_bytes as usize + 3]);
    assert_eq!(world.walk(last, b"a", 0), Err(Damage::Unreadable));
    let short = Place { size_bytes: 23, ..first };
    assert_eq!(world.walk(short, b"a", 0), Err(Damage::Size));
}

#[test]
fn sizes_at_the_edge() {
    let mut world = World::new(WALK_OBJECT);
    let (mut bytes, mut newest) = (Vec::new(), None);
    let most = vec![3; READ_MAX_BYTES - 25];
    assert_eq!(
        append(&mut bytes, &mut newest, b"kk", Some(&most)),
        Err(TooLong(READ_MAX_BYTES + 1))
    );
    assert_eq!((bytes.len(), newest), (0, None));
    append(&mut bytes, &mut newest, b"", Some(&[7; 100])).expect("an empty key is one");
    append(&mut bytes, &mut newest, b"k", Some(&most)).expect("it fits exactly");
    world.store(&bytes);
    let newest = newest.expect("there are two");
    let walk = Walk { key: b"", records_max: 0 };
    assert!(world.chain(newest, &walk.argument(), 116).is_ok());
    // No room for the value, for an answer, for the key.
    assert_eq!(world.chain(newest, &walk.argument(), 115), Err(Damage::Request));
    assert_eq!(world.chain(newest, &walk.argument(), 15), Err(Damage::Request));
    let argument = Walk { key: &[0; 100], records_max: 0 }.argument();
    assert_eq!(world.chain(newest, &argument[..50], 50), Err(Damage::Request));
    assert_eq!(Lookup::parse(&[1]), None);
}
