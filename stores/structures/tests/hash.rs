//! `hash_get` against an ordered map and plain reads, on good and damaged tables.

mod common;

use bpfof_structures::Damage;
use bpfof_structures::hash::{GET_OBJECT, Get, Lookup, Table, TableError, seal};
use common::World;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::BTreeMap;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const SCRATCH_BYTES: usize = 1024;

impl World {
    /// The answer of a chain, which must equal that of plain reads.
    fn get(&mut self, table: &Table, key: &[u8]) -> Result<Lookup, Damage> {
        let get = Get { layout: table.layout, key };
        let answer = self.chain(get.first(), &get.argument(), SCRATCH_BYTES);
        let found = answer.map(|answer| Lookup::parse(&answer).expect("an answer"));
        assert_eq!(found, get.plain(&mut self.reader()), "{key:?}");
        found
    }
}

fn models() -> impl Strategy<Value = Model> {
    btree_map(vec(any::<u8>(), 0..20), vec(any::<u8>(), 0..100), 0..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn lookups_agree_with_the_model(
        model in models(), block_bytes in 160..2000_u32, buckets in 1..40_u32,
        others in vec(vec(any::<u8>(), 0..20), 20),
    ) {
        let mut world = World::kept(GET_OBJECT);
        let table = Table::new(block_bytes, buckets, &model).expect("it fits");
        world.store(&table.bytes);
        for key in model.keys().chain(&others) {
            let value = model.get(key);
            let expected = value.map_or(Lookup::NotFound, |value| Lookup::Found(value.clone()));
            prop_assert_eq!(world.get(&table, key), Ok(expected), "{:?}", key);
        }
    }

    /// With the old checksum a changed byte is reported; with a new checksum chains and plain reads
    /// agree on pointers to any place and in circles, blocks of other buckets, and entries of any
    /// size.
    #[test]
    fn damage_is_told(
        model in models(), buckets in 1..10_u32, which in any::<Index>(),
        changes in vec((0..40_usize, prop_oneof![Just(0), Just(1), any::<u8>()]), 1..4),
        next in proptest::option::of(any::<Index>()), sealed in any::<bool>(),
    ) {
        let mut world = World::kept(GET_OBJECT);
        let table = Table::new(256, buckets, &model).expect("it fits");
        let mut bytes = table.bytes.clone();
        let blocks = bytes.len() / 256;
        let which = which.index(blocks);
        let block = &mut bytes[which * 256..][..256];
        match next {
            Some(next) => {
                let next = next.index(blocks) * 256;
                block[8..16].copy_from_slice(&(next as u64).to_le_bytes());
            }
            None => {
                for (at, byte) in changes {
                    block[4 + at] = byte;
                }
            }
        }
        if sealed {
            seal(block);
        }
        let changed = *block != table.bytes[which * 256..][..256];
        world.store(&bytes);
        for (key, value) in &model {
            match world.get(&table, key) {
                Err(damage) if !sealed => prop_assert!(changed && damage == Damage::Checksum),
                Ok(found) if !sealed => prop_assert_eq!(found, Lookup::Found(value.clone())),
                _same_as_plain_reads => {}
            }
        }
    }
}

#[test]
fn cycles_strangers_and_short_files_are_told() {
    let mut world = World::new(GET_OBJECT);
    let model: Model = (0..100_u32).map(|key| (key.to_le_bytes().to_vec(), vec![1; 50])).collect();
    let table = Table::new(512, 2, &model).expect("it fits");
    assert!(table.layout.blocks_max > 3);
    let mut bytes = table.bytes.clone();
    // The last block of a bucket points back to the first one.
    for block in bytes.chunks_exact_mut(512).filter(|block| block[8..16] == [0; 8]) {
        let bucket = u64::from(block[16]);
        // Offset 0 is no pointer, so bucket 0 still ends; its number shows that.
        block[8..16].copy_from_slice(&(bucket * 512).to_le_bytes());
        seal(block);
    }
    world.store(&bytes);
    let absent: Vec<_> =
        (1000..1040_u32).map(|key| world.get(&table, &key.to_le_bytes())).collect();
    assert!(absent.contains(&Err(Damage::TooManyBlocks)), "{absent:?}");
    assert!(absent.contains(&Ok(Lookup::NotFound)), "{absent:?}");
    let (first, second) = bytes.split_at_mut(512);
    first.swap_with_slice(&mut second[..512]);
    world.store(&bytes);
    assert_eq!(world.get(&table, &1_u32.to_le_bytes()), Err(Damage::WrongPlace));
    world.store(&bytes[..700]);
    let short: Vec<_> = (0..9_u32).map(|key| world.get(&table, &key.to_le_bytes())).collect();
    assert!(short.contains(&Err(Damage::Unreadable)), "{short:?}");
}

#[test]
fn invalid_tables_and_requests_are_refused() {
    let one = |value: usize| Model::from([(b"k".to_vec(), vec![0; value])]);
    assert_eq!(Table::new(512, 0, &one(1)), Err(TableError::Shape));
    assert_eq!(Table::new(31, 1, &one(1)), Err(TableError::Shape));
    assert_eq!(Table::new(60_000, 1, &one(1)), Err(TableError::Shape));
    assert_eq!(Table::new(512, 1, &one(480)), Err(TableError::TooLong(489)));
    let table = Table::new(512, 1, &one(479)).expect("it fits exactly");
    let mut world = World::new(GET_OBJECT);
    world.store(&table.bytes);
    assert_eq!(world.get(&table, b"k"), Ok(Lookup::Found(vec![0; 479])));
    let get = Get { layout: table.layout, key: b"k" };
    let (first, argument) = (get.first(), get.argument());
    assert_eq!(world.chain(first, &argument, 482), Err(Damage::Request));
    assert_eq!(world.chain(first, &argument[..15], 15), Err(Damage::Request));
    assert!(world.chain(first, &argument, 483).is_ok());
    let mut long = argument;
    long[12] = 255;
    assert_eq!(world.chain(first, &long, 100), Err(Damage::Request));
    assert_eq!(Lookup::parse(&[1, 0, 0, 0]), None);
}
