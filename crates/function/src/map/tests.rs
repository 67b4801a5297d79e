use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

fn map(kind: MapKind, key: u64, value: u64, entries: u32) -> Map {
    Map::new(MapDefinition::new("m", kind, (key, value), entries).expect("within the limits"))
}

fn get(map: &Map, key: &[u8]) -> Result<Vec<u8>, MapError> {
    map.get(key).map(|value| value.to_vec())
}

/// All entries, read in pages of `max_bytes`.
fn dump(map: &Map, max_bytes: usize) -> Vec<Vec<u8>> {
    let (mut all, mut next) = (Vec::new(), Some(0));
    while let Some(slot) = next {
        next = map.page(slot, max_bytes, &mut all);
    }
    all.chunks(map.definition().entry_bytes()).map(<[u8]>::to_vec).collect()
}

#[test]
fn an_array_has_all_entries_and_no_others() {
    let array = map(MapKind::Array, 4, 12, 3);
    assert_eq!(array.entries(), 3);
    assert_eq!(get(&array, &[2, 0, 0, 0]), Ok(vec![0; 12]));
    assert_eq!(get(&array, &[3, 0, 0, 0]), Err(MapError::NoEntry));
    assert_eq!(get(&array, &[0, 0, 0, 1]), Err(MapError::NoEntry));
    assert_eq!(get(&array, &[0, 0, 0]), Err(MapError::Invalid));
    let value = *b"twelve bytes";
    assert_eq!(array.set(&[1, 0, 0, 0], &value, SetMode::Existing), Ok(()));
    assert_eq!(array.set(&[1, 0, 0, 0], &value, SetMode::New), Err(MapError::Exists));
    assert_eq!(array.set(&[3, 0, 0, 0], &value, SetMode::Any), Err(MapError::NoRoom));
    assert_eq!(array.set(&[1, 0, 0, 0], &value[1..], SetMode::Any), Err(MapError::Invalid));
    assert_eq!(array.delete(&[1, 0, 0, 0]), Err(MapError::Invalid));
    assert_eq!(array.add(&[2, 0, 0, 0], 4, 7), Ok(7));
    assert_eq!(array.add(&[2, 0, 0, 0], 4, u64::MAX), Ok(6));
    assert_eq!(array.add(&[2, 0, 0, 0], 5, 1), Err(MapError::Invalid));
    assert_eq!(array.add(&[2, 0, 0, 0], u64::MAX - 3, 1), Err(MapError::Invalid));
    assert_eq!(array.add(&[3, 0, 0, 0], 0, 1), Err(MapError::NoRoom));
    let [first, second, third] = dump(&array, 32).try_into().expect("three entries");
    assert_eq!((first, second), (vec![0; 16], [&[1, 0, 0, 0][..], &value].concat()));
    assert_eq!(third, [2, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_full_hash_map_reuses_deleted_slots() {
    let hash = map(MapKind::Hash, 1, 8, 5);
    for key in 0..5 {
        assert_eq!(hash.add(&[key], 0, 1), Ok(1));
    }
    assert_eq!(hash.add(&[9], 0, 1), Err(MapError::NoRoom));
    assert_eq!(hash.set(&[9], &[0; 8], SetMode::Any), Err(MapError::NoRoom));
    assert_eq!(hash.add(&[4], 0, 1), Ok(2));
    assert_eq!(hash.delete(&[2]), Ok(()));
    assert_eq!(hash.delete(&[2]), Err(MapError::NoEntry));
    // The slot was used before: the value begins with zeroes nevertheless.
    assert_eq!(hash.add(&[9], 0, 5), Ok(5));
    assert_eq!(hash.entries(), 5);
}

#[test]
fn declarations_beyond_the_limits_are_refused() {
    let new = |name: &str, kind, key, value, entries| {
        MapDefinition::new(name, kind, (key, value), entries).map(|made| made.memory_bytes())
    };
    let (hash, array) = (MapKind::Hash, MapKind::Array);
    assert_eq!(new("", hash, 8, 8, 1), Err(DefinitionError::Name));
    assert_eq!(new("a b", hash, 8, 8, 1), Err(DefinitionError::Name));
    assert_eq!(new(&"n".repeat(33), hash, 8, 8, 1), Err(DefinitionError::Name));
    assert_eq!(new("m", hash, 0, 8, 1), Err(DefinitionError::KeyBytes(0)));
    assert_eq!(new("m", hash, 257, 8, 1), Err(DefinitionError::KeyBytes(257)));
    assert_eq!(new("m", array, 8, 8, 1), Err(DefinitionError::ArrayKey(8)));
    assert_eq!(new("m", hash, 8, 0, 1), Err(DefinitionError::ValueBytes(0)));
    assert_eq!(new("m", hash, 8, u64::MAX, 1), Err(DefinitionError::ValueBytes(u64::MAX)));
    assert_eq!(new("m", hash, 8, 8, 0), Err(DefinitionError::NoEntries));
    assert_eq!(new("m", array, 4, 4096, 4096), Ok(16 << 20));
    assert_eq!(new("m", array, 4, 4096, 4097), Err(DefinitionError::TooLarge((16 << 20) + 4096)));
    assert_eq!(new("m", hash, 8, 8, 1024), Ok(1024 * (16 + 4 + 4)));
    let most = new("m", hash, 256, 4096, u32::MAX);
    assert!(matches!(most, Err(DefinitionError::TooLarge(_))), "{most:?}");
}

#[test]
fn pages_skip_deleted_entries() {
    let hash = map(MapKind::Hash, 4, 4, 3 * PAGE_SLOTS);
    for key in 0..3 * PAGE_SLOTS {
        hash.set(&key.to_le_bytes(), &[1; 4], SetMode::New).expect("there is room");
    }
    let last = 3 * PAGE_SLOTS - 1;
    for key in 0..last {
        hash.delete(&key.to_le_bytes()).expect("it is there");
    }
    let mut out = Vec::new();
    assert_eq!(hash.page(0, 4096, &mut out), Some(PAGE_SLOTS));
    assert!(out.is_empty());
    let found = dump(&hash, 4096);
    assert_eq!(found, [[last.to_le_bytes(), [1; 4]].concat()]);
    assert_eq!(hash.page(u32::MAX, 4096, &mut out), None);
    // A page without room for an entry makes no progress.
    assert_eq!(hash.page(0, 7, &mut out), Some(PAGE_SLOTS));
    assert_eq!(hash.page(2 * PAGE_SLOTS, 7, &mut out), Some(last));
}

/// Even if the entries are small.
#[test]
fn pages_have_a_maximum_number_of_entries() {
    let most = PAGE_ENTRIES as u32;
    for kind in [MapKind::Array, MapKind::Hash] {
        let many = map(kind, 4, 1, 2 * most + 1);
        for key in 0..2 * most + 1 {
            many.set(&key.to_le_bytes(), &[1], SetMode::Any).expect("there is room");
        }
        let mut out = Vec::new();
        assert_eq!(many.page(0, usize::MAX, &mut out), Some(most));
        assert_eq!(out.len(), 5 * PAGE_ENTRIES);
        assert_eq!(many.page(most + 1, usize::MAX, &mut out), None);
        assert_eq!(dump(&many, 64 << 10).len() as u32, 2 * most + 1);
    }
}

#[test]
fn threads_count_together() {
    let hash = map(MapKind::Hash, 4, 16, 8);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let hash = &hash;
            scope.spawn(move || {
                for round in 0..2000u32 {
                    let key = (round % 4).to_le_bytes();
                    hash.add(&key, 8, 1).expect("there is room");
                    // The thread's own key is added and removed.
                    let own = (100 + thread).to_le_bytes();
                    hash.set(&own, &[thread as u8; 16], SetMode::New).expect("there is room");
                    let value = get(hash, &own).expect("it is there");
                    assert_eq!(value, [thread as u8; 16]);
                    hash.delete(&own).expect("it is there");
                }
            });
        }
    });
    for key in 0..4u32 {
        let value = get(&hash, &key.to_le_bytes()).expect("it is there");
        assert_eq!(value, [0u64.to_le_bytes(), 2000u64.to_le_bytes()].concat());
    }
    assert_eq!(hash.entries(), 4);
}

#[derive(Clone, Debug)]
enum Action {
    Get,
    Set([u8; 9], SetMode),
    Delete,
    Add(u64, u64),
}

fn action() -> impl Strategy<Value = (u8, Action)> {
    let mode = prop_oneof![Just(SetMode::Any), Just(SetMode::New), Just(SetMode::Existing)];
    let action = prop_oneof![
        Just(Action::Get),
        (any::<[u8; 9]>(), mode).prop_map(|(value, mode)| Action::Set(value, mode)),
        Just(Action::Delete),
        (0u64..3, any::<u64>()).prop_map(|(offset, delta)| Action::Add(offset, delta)),
    ];
    (0u8..24, action)
}

/// A model of a map of 16 entries.
fn model(known: &mut HashMap<u8, [u8; 9]>, key: u8, action: &Action) -> Result<(), MapError> {
    let is_full = known.len() == 16;
    match (action, known.get_mut(&key)) {
        (Action::Get | Action::Delete, None) => return Err(MapError::NoEntry),
        (Action::Get, Some(_)) => {}
        (Action::Delete, Some(_)) => {
            known.remove(&key);
        }
        (Action::Set(_, SetMode::New), Some(_)) => return Err(MapError::Exists),
        (Action::Set(_, SetMode::Existing), None) => return Err(MapError::NoEntry),
        (Action::Add(2, _), _) => return Err(MapError::Invalid),
        (Action::Set(..) | Action::Add(..), None) if is_full => return Err(MapError::NoRoom),
        (Action::Set(value, _), _) => {
            known.insert(key, *value);
        }
        (Action::Add(offset, delta), _) => {
            let value = known.entry(key).or_insert([0; 9]);
            let place = &mut value[*offset as usize..][..8];
            let sum = u64::from_le_bytes(place.try_into().expect("8 bytes")).wrapping_add(*delta);
            place.copy_from_slice(&sum.to_le_bytes());
        }
    }
    Ok(())
}

proptest! {
    /// Compares with a map of the standard library: every result, and all entries at the end.
    #[test]
    fn a_hash_map_is_a_map(actions in proptest::collection::vec(action(), 0..400)) {
        let hash = map(MapKind::Hash, 1, 9, 16);
        let mut known = HashMap::new();
        for (key, action) in &actions {
            let expected = model(&mut known, *key, action);
            let actual = match action {
                Action::Get => hash.get(&[*key]).map(|_| ()),
                Action::Set(value, mode) => hash.set(&[*key], value, *mode),
                Action::Delete => hash.delete(&[*key]),
                Action::Add(offset, delta) => hash.add(&[*key], *offset, *delta).map(|_| ()),
            };
            prop_assert_eq!(actual, expected);
            let value = hash.get(&[*key]).ok().map(|value| value.to_vec());
            prop_assert_eq!(value.as_deref(), known.get(key).map(|value| &value[..]));
            prop_assert_eq!(hash.entries() as usize, known.len());
        }
        let mut entries = dump(&hash, 25);
        entries.sort_unstable();
        let mut expected: Vec<Vec<u8>> =
            known.iter().map(|(key, value)| [&[*key][..], value].concat()).collect();
        expected.sort_unstable();
        prop_assert_eq!(entries, expected);
    }
}
