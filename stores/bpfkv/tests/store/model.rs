//! Cursors and storage functions against a BTreeMap, on stock and on hand-made trees.

use crate::support::*;
use bpfkv::create::Extent;
use bpfkv::format::{NO_KEY, value_text};
use bpfkv::pushdown::{PAIRS_MAX, RangePushdown};
use bpfkv::{
    Aggregate, Cache, CacheError, GET_OBJECT, KeyRange, Pair, RANGE_OBJECT, Summary, Value,
};
use proptest::prelude::*;
use std::io;
use std::sync::LazyLock;

static GET: LazyLock<Function> = LazyLock::new(|| Function::load(GET_OBJECT));
static RANGE: LazyLock<Function> = LazyLock::new(|| Function::load(RANGE_OBJECT));

fn number(value: &Value) -> i64 {
    i64::from_le_bytes(value[..8].try_into().unwrap())
}

fn summary(pairs: &[Pair]) -> Summary {
    let numbers = || pairs.iter().map(|pair| number(&pair.value));
    Summary {
        count: pairs.len() as u64,
        sum: numbers().map(i128::from).sum(),
        min_max: numbers().min().zip(numbers().max()),
    }
}

fn load_cache(file: &[u8], levels: u32) -> Result<Cache, CacheError> {
    Cache::load(levels, &mut |offset, buffer| {
        let bytes = file.get(offset as usize..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    })
}

/// Checks one key, plainly and pushed down, from the root and from below a cache.
fn check_get(file: &[u8], cache: &Cache, model: &Model, key: u64) {
    let expected = Ok(model.get(&key).copied());
    assert_eq!(plain_get(file, key, 0), expected);
    assert_eq!(pushed_get(&GET, file, key, 0), expected);
    match cache.start_of_get(key).unwrap() {
        Some(start) => {
            assert_eq!(plain_get(file, key, start), expected);
            assert_eq!(pushed_get(&GET, file, key, start), expected);
        }
        None => assert_eq!(expected, Ok(None)),
    }
}

/// Checks one range, plainly and pushed down, as pairs and as aggregates.
fn check_range(file: &[u8], cache: &Cache, model: &Model, range: &KeyRange, seed: u64) {
    let mut random = Random(seed);
    let bounds = range.bounds();
    let expected: Vec<Pair> = match bounds {
        Some((first, last)) => {
            model.range(first..=last).map(|(&key, &value)| Pair { key, value }).collect()
        }
        None => Vec::new(),
    };
    let below_cache = bounds.map_or(0, |(first, _)| cache.start_of_range(first).unwrap());
    for start in [0, below_cache] {
        let (pairs, plain_plan) = plain_range(file, range, start, &mut random).unwrap();
        assert_eq!(pairs, expected);
        let (pairs, plans) = pushed_range(&RANGE, file, range, start, 0).unwrap();
        assert_eq!(pairs, expected);
        if let [plan] = plans.as_slice() {
            assert_eq!(*plan, plain_plan, "the baseline reads what the function reads");
        }
        assert!(plans.len() <= expected.len() / PAIRS_MAX + 1);
        let little =
            RangePushdown::new(range, start, 0).with_scratch_limit(160 + random.below(4000) as u32);
        assert_eq!(pushed_pairs(&RANGE, file, little, 0).unwrap().0, expected);
        let hops_max = 11 + random.below(8) as u32;
        assert_eq!(pushed_range(&RANGE, file, range, start, hops_max).unwrap().0, expected);
        for aggregate in [Aggregate::Count, Aggregate::Sum] {
            let mut whole = summary(&expected);
            if !aggregate.reads_values() {
                whole = Summary { count: whole.count, ..Summary::default() };
            }
            let plain = plain_aggregate(file, range, aggregate, start, &mut random);
            assert_eq!(plain, Ok(whole));
            let pushed = pushed_aggregate(&RANGE, file, range, aggregate, start, 0);
            assert_eq!(pushed, Ok((whole, usize::from(bounds.is_some()))));
            let pushed = pushed_aggregate(&RANGE, file, range, aggregate, start, hops_max);
            assert_eq!(pushed.unwrap().0, whole);
        }
    }
}

fn key_range(begin: u64, length: u64, flags: u8) -> KeyRange {
    let range = KeyRange::new(begin, begin.saturating_add(length)).unwrap();
    let range = if flags & 1 != 0 { range.exclude_begin() } else { range };
    if flags & 2 != 0 { range.include_end() } else { range }
}

/// Random keys near and far apart with random values, and a seed for the tree's shape.
fn sparse_model() -> impl Strategy<Value = (Model, u64, bool)> {
    let key = prop_oneof![4 => 0..2_000u64, 1 => any::<u64>(), 1 => Just(NO_KEY - 1)];
    let value = (any::<u64>(), any::<u64>());
    let model = prop::collection::btree_map(key, value, 1..700).prop_map(|pairs| {
        let filled = |(key, (number, fill))| {
            let mut value = [fill as u8; 64];
            value[..8].copy_from_slice(&u64::to_le_bytes(number));
            (key, value)
        };
        pairs.into_iter().filter(|&(key, _)| key != NO_KEY).map(filled).collect::<Model>()
    });
    (model.prop_filter("not empty", |model| !model.is_empty()), any::<u64>(), any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn sparse_trees_of_any_shape(
        (model, seed, sorted) in sparse_model(),
        queries in prop::collection::vec((any::<prop::sample::Index>(), 0..3u64, 0..400u64, 0..4u8), 8),
    ) {
        let file = sparse(&model, &mut Random(seed), sorted);
        let keys: Vec<u64> = model.keys().copied().collect();
        let cache = (0..=3).rev().find_map(|levels| load_cache(&file, levels).ok()).unwrap();
        for (index, beside, length, flags) in queries {
            let key = (*index.get(&keys)).saturating_add(beside).saturating_sub(1);
            check_get(&file, &cache, &model, key);
            check_range(&file, &cache, &model, &key_range(key, length, flags), seed);
        }
        for key in [0, NO_KEY - 1, NO_KEY] {
            check_get(&file, &cache, &model, key);
        }
        check_range(&file, &cache, &model, &key_range(0, NO_KEY, 2), seed);
        check_range(&file, &cache, &model, &key_range(NO_KEY, 0, 3), seed);
    }
}

#[test]
fn stock_databases() {
    for levels in 1..=3 {
        let extent = Extent::full(levels).unwrap();
        let file = stock(&extent);
        let model: Model = (0..extent.keys()).map(|key| (key, value_text(key))).collect();
        let mut random = Random(u64::from(levels));
        for cached in 0..levels {
            let cache = load_cache(&file, cached).unwrap();
            assert_eq!(cache.levels(), cached);
            for _ in 0..40 {
                check_get(&file, &cache, &model, random.next() % (extent.keys() + 3));
            }
            for length in [0, 1, 2, 8, 31, 32, 64, 100, 226, 227, 1000] {
                let begin = random.next() % (extent.keys() + 3);
                let range = key_range(begin, length, random.next() as u8);
                check_range(&file, &cache, &model, &range, random.next());
            }
        }
        assert!(matches!(
            load_cache(&file, levels),
            Err(CacheError::NotBelowTree { cached, leaf }) if cached == levels && leaf == levels - 1
        ));
    }
    assert!(matches!(load_cache(&[], 4), Err(CacheError::TooMany(4))));
}

#[test]
fn the_sum_of_a_stock_database() {
    let file = stock(&Extent::full(3).unwrap());
    let range = KeyRange::new(100, 900).unwrap();
    let (summary, calls) = pushed_aggregate(&RANGE, &file, &range, Aggregate::Sum, 0, 0).unwrap();
    assert_eq!(calls, 1);
    assert_eq!(summary.sum, 0x2020_2020_2020_2020i128 * 800);
    assert_eq!(summary.average(), Some(0x2020_2020_2020_2020u64 as f64));
}

#[test]
fn a_cache_over_a_part_reports_holes_when_they_are_met() {
    let file = stock(&Extent::part(3, 2).unwrap());
    let cache = load_cache(&file, 2).unwrap();
    let start = cache.start_of_get(5).unwrap().unwrap();
    assert_eq!(plain_get(&file, 5, start), Ok(Some(value_text(5))));
    assert!(cache.start_of_get(2 * 961).is_err());
    assert!(cache.start_of_range(2 * 961).is_err());
    assert!(cache.memory_bytes() > 32 * 496);
}
