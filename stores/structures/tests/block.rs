//! `block_get` against an ordered map and plain reads, on good, damaged and foreign tables.

mod common;

use bpfof_structures::block::{
    GET_OBJECT, Get, Kind, Lookup, Shape, TRAILER_BYTES, Table, TableError, TableWriter,
    index_of_file, seal, tag,
};
use bpfof_structures::{Damage, Place};
use common::World;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::BTreeMap;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const SCRATCH_BYTES: usize = 8192;

fn table(model: &Model, shape: Shape) -> Table {
    let mut writer = TableWriter::new(shape);
    for (key, value) in model {
        writer.add(key, value).expect("in order");
    }
    writer.finish()
}

impl World {
    /// The answer of a chain, which must equal that of plain reads.
    fn get(
        &mut self,
        table: &Table,
        key: &[u8],
        newest_tag: Option<u64>,
    ) -> Result<Lookup, Damage> {
        let get = Get { key, newest_tag, index_levels: table.index_levels };
        let answer = self.chain(table.root, &get.argument(), SCRATCH_BYTES);
        let found = answer.map(|answer| Lookup::parse(&answer).expect("an answer"));
        assert_eq!(found, get.plain(table.root, &mut self.reader()), "{key:?}");
        found
    }
}

/// Keys of few letters, so that many are prefixes of others.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let letter = prop_oneof![Just(b'a'), Just(b'b'), Just(0), Just(255)];
    vec(letter, 0..12)
}

fn models() -> impl Strategy<Value = Model> {
    btree_map(key(), vec(any::<u8>(), 0..80), 0..300)
}

fn shapes() -> impl Strategy<Value = Shape> {
    (1..2000_usize, 1..20_usize).prop_map(|(block_bytes, restart_interval)| Shape {
        block_bytes,
        restart_interval,
        tagged: false,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn lookups_agree_with_the_model(
        model in models(), shape in shapes(), others in vec(key(), 40),
    ) {
        let mut world = World::kept(GET_OBJECT);
        let table = table(&model, shape);
        world.store(&table.bytes);
        for key in model.keys().chain(&others) {
            let expected = match model.get(key) {
                Some(value) => Lookup::Found(value.clone(), 0),
                None => Lookup::NotFound,
            };
            prop_assert_eq!(world.get(&table, key, None), Ok(expected), "{:?}", key);
        }
    }

    #[test]
    fn versions_are_seen_as_of_a_tag(
        versions in btree_map((key(), 0..20_u64), 0..4_u8, 1..200), as_of in 0..20_u64,
        block_bytes in 1..800_usize,
    ) {
        let kinds = [Kind::Deletion, Kind::Value, Kind::SingleDeletion, Kind::Other(2)];
        let value = |sequence: u64| format!("version {sequence}").into_bytes();
        // By key, newest version first.
        let mut sorted: Vec<_> = versions.iter().collect();
        sorted.sort_by(|((a, new), _), ((b, old), _)| a.cmp(b).then(old.cmp(new)));
        let mut writer = TableWriter::new(Shape { block_bytes, tagged: true, ..Shape::default() });
        for ((key, sequence), kind) in sorted {
            let tag = tag(*sequence, kinds[usize::from(*kind)]).to_le_bytes();
            writer.add(&[&key[..], &tag].concat(), &value(*sequence)).expect("in order");
        }
        let mut world = World::kept(GET_OBJECT);
        let table = writer.finish();
        world.store(&table.bytes);
        for (key, _) in versions.keys() {
            let newest = versions.range((key.clone(), 0)..=(key.clone(), as_of)).next_back();
            let expected = match newest {
                None => Lookup::NotFound,
                Some(((_, sequence), kind)) => {
                    let kind = kinds[usize::from(*kind)];
                    match kind {
                        Kind::Value => Lookup::Found(value(*sequence), tag(*sequence, kind)),
                        Kind::Other(_) => Lookup::Other(value(*sequence), tag(*sequence, kind)),
                        _ => Lookup::Deleted(tag(*sequence, kind)),
                    }
                }
            };
            let as_of = Some(as_of << 8 | 0xff);
            prop_assert_eq!(world.get(&table, key, as_of), Ok(expected), "{:?}", key);
        }
    }

    /// Any changed byte gives an error or the right answer.
    #[test]
    fn damage_is_told(
        model in models(), shape in shapes(), at in any::<Index>(), change in 1..=255_u8,
    ) {
        let mut world = World::kept(GET_OBJECT);
        let table = table(&model, shape);
        let mut bytes = table.bytes.clone();
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        world.store(&bytes);
        let mut damaged = 0;
        for (key, value) in &model {
            match world.get(&table, key, None) {
                Ok(found) => prop_assert_eq!(found, Lookup::Found(value.clone(), 0)),
                Err(damage) => {
                    prop_assert_eq!(damage, Damage::Checksum);
                    damaged += 1;
                }
            }
        }
        prop_assert!(damaged > 0 || model.is_empty());
    }

    /// For a wrong block with the right checksum chains and plain reads agree, and there is never a
    /// fault.
    #[test]
    fn wrong_blocks_are_what_plain_reads_make_of_them(
        model in models(), shape in shapes(), changes in vec((any::<Index>(), any::<u8>()), 1..6),
        which in any::<Index>(), tagged in any::<bool>(),
    ) {
        let mut world = World::kept(GET_OBJECT);
        let table = table(&model, shape);
        let mut bytes = table.bytes.clone();
        let blocks = blocks(&table);
        let place = blocks[which.index(blocks.len())];
        let from = place.offset_bytes as usize;
        let block = &mut bytes[from..from + place.size_bytes as usize];
        let size = block.len();
        for (at, byte) in changes {
            // Every other change near the end, where the counts are.
            let at = at.index(2 * size);
            block[if at < size { at } else { size - 1 - at % size.min(16) }] = byte;
        }
        block[size - TRAILER_BYTES] = 0;
        seal(block);
        world.store(&bytes);
        for key in model.keys() {
            let _same = world.get(&table, key, tagged.then_some(u64::MAX));
        }
    }

    #[test]
    fn truncated_tables_are_reported(model in models(), shape in shapes(), at in any::<Index>()) {
        let mut world = World::kept(GET_OBJECT);
        let table = table(&model, shape);
        let left = at.index(table.bytes.len());
        world.store(&table.bytes[..left.max(1)]);
        for key in model.keys() {
            prop_assert_eq!(world.get(&table, key, None), Err(Damage::Unreadable));
        }
    }
}

/// The blocks of a table: they are consecutive, and the size of each is known at its end.
fn blocks(table: &Table) -> Vec<Place> {
    let mut level = vec![table.root];
    let mut all = level.clone();
    for _ in 0..table.index_levels {
        let mut below = Vec::new();
        for place in level {
            let from = place.offset_bytes as usize;
            let block = &table.bytes[from..from + place.size_bytes as usize];
            below.extend(bpfof_structures::block::children(block).expect("undamaged"));
        }
        all.extend(&below);
        level = below;
    }
    all
}

#[test]
fn large_values_are_reported_and_read_at_their_place() {
    let mut world = World::new(GET_OBJECT);
    let large = vec![7; 20_000];
    let model = Model::from([(b"a".to_vec(), vec![1]), (b"b".to_vec(), large.clone())]);
    let table = table(&model, Shape::default());
    world.store(&table.bytes);
    let get = Get { key: b"b", newest_tag: None, index_levels: table.index_levels };
    let answer = world.chain(table.root, &get.argument(), 64).expect("undamaged");
    let Some(Lookup::TooLong(place, 0)) = Lookup::parse(&answer) else { panic!("{answer:?}") };
    assert_eq!(world.reader()(place.offset_bytes, place.size_bytes as usize), Some(large));
    // An index block fits two of the longest keys, so that each level has fewer blocks.
    let mut writer = TableWriter::new(Shape::default());
    let longest = (bpfof_structures::READ_MAX_BYTES - 100) / 2;
    for byte in 0..3 {
        writer.add(&vec![byte; longest], b"").expect("it fits");
    }
    assert!(matches!(writer.add(&vec![3; longest + 1], b""), Err(TableError::TooLong(_))));
    assert_eq!(writer.finish().index_levels, 2);
    // A block may be as large as a read.
    let most = bpfof_structures::READ_MAX_BYTES - 40;
    let mut writer = TableWriter::new(Shape::default());
    assert_eq!(writer.add(b"c", &vec![0; most + 40]), Err(TableError::TooLong(most + 69)));
    writer.add(b"c", &vec![0; most]).expect("it fits");
    assert_eq!(writer.add(b"b", b""), Err(TableError::Order));
    let table = writer.finish();
    world.store(&table.bytes);
    let get = Get { key: b"c", newest_tag: None, index_levels: 0 };
    let answer = world.chain(table.root, &get.argument(), 64).expect("undamaged");
    assert!(matches!(Lookup::parse(&answer), Some(Lookup::TooLong(Place { size_bytes, .. }, 0))
        if size_bytes as usize == most));
}

/// Tables written by other programs: data/make.cc says how, and their contents.
#[test]
fn tables_of_leveldb_and_rocksdb() {
    let mut world = World::new(GET_OBJECT);
    for bytes in [&include_bytes!("data/leveldb.ldb")[..], include_bytes!("data/rocksdb.sst")] {
        let root = index_of_file(bytes).expect("a table of one of them");
        let table = Table { bytes: bytes.to_vec(), root, index_levels: 1 };
        assert!(blocks(&table).len() > 4);
        world.store(&table.bytes);
        for number in 0..150_u64 {
            let key = format!("key{number:05}").into_bytes();
            let first =
                Lookup::Found(format!("first {number}").into_bytes(), tag(number + 1, Kind::Value));
            let newest = match (number % 3, number % 5) {
                (_, 0) => Lookup::Deleted(tag(201 + number / 5, Kind::Deletion)),
                (0, _) => Lookup::Found(
                    format!("second {number}").into_bytes(),
                    tag(151 + number / 3, Kind::Value),
                ),
                _ => first.clone(),
            };
            assert_eq!(world.get(&table, &key, Some(u64::MAX)), Ok(newest));
            assert_eq!(world.get(&table, &key, Some(tag(150, Kind::Other(255)))), Ok(first));
        }
        assert_eq!(world.get(&table, b"key00150", Some(u64::MAX)), Ok(Lookup::NotFound));
        assert_eq!(world.get(&table, b"", Some(u64::MAX)), Ok(Lookup::NotFound));
    }
    assert_eq!(index_of_file(&[0; 60]), None);
}

#[test]
fn requests_and_blocks_that_are_refused() {
    let mut world = World::new(GET_OBJECT);
    let model = Model::from([(vec![b'k'; 100], vec![1])]);
    let mut table = table(&model, Shape::default());
    world.store(&table.bytes);
    let get = Get { key: b"key", newest_tag: None, index_levels: 0 };
    let argument = get.argument();
    let mut run = |argument: &[u8], scratch| world.chain(table.root, argument, scratch);
    assert!(run(&argument, get.scratch_bytes(100, 1)).is_ok());
    assert_eq!(run(&argument, 126), Err(Damage::KeyTooLong));
    // Flags, a key longer than scratch, the reserved field.
    for (at, byte) in [(8, 2), (19, 1), (20, 1)] {
        let mut wrong = argument.clone();
        wrong[at] = byte;
        assert_eq!(run(&wrong, SCRATCH_BYTES), Err(Damage::Request));
    }
    assert_eq!(run(&argument[..20], 20), Err(Damage::Request));
    let short = Place { size_bytes: 12, ..table.root };
    assert_eq!(world.chain(short, &argument, SCRATCH_BYTES), Err(Damage::Size));
    let compression = table.bytes.len() - TRAILER_BYTES;
    table.bytes[compression] = 1;
    seal(&mut table.bytes);
    world.store(&table.bytes);
    assert_eq!(world.get(&table, b"key", None), Err(Damage::Compressed));
    // The first entry shares a byte with a previous key, which does not exist.
    table.bytes[compression] = 0;
    table.bytes[0] = 1;
    seal(&mut table.bytes);
    world.store(&table.bytes);
    assert_eq!(world.get(&table, b"key", None), Err(Damage::Entry));
    let mut tagged = TableWriter::new(Shape { tagged: true, ..Shape::default() });
    assert_eq!(tagged.add(b"seven b", b""), Err(TableError::NoTag(7)));
    assert_eq!(Lookup::parse(b"short"), None);
}
