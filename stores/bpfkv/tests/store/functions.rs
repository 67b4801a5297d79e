//! The storage functions as their header documents them, for callers that do not use this crate.

use crate::support::{
    Failure, Function, Model, Random, laid_out, pushed_aggregate, pushed_pairs, sparse, stock,
};
use bpfkv::create::Extent;
use bpfkv::format::value_text;
use bpfkv::pushdown::{PAIRS_MAX, RangePushdown};
use bpfkv::{Aggregate, GET_OBJECT, KeyRange, RANGE_OBJECT, Value};

fn argument(begin: u64, end: u64, flags: u32, hops_max: u32) -> Vec<u8> {
    [&begin.to_le_bytes()[..], &end.to_le_bytes(), &flags.to_le_bytes(), &hops_max.to_le_bytes()]
        .concat()
}

#[test]
fn flags_shape_the_range() {
    let file = stock(&Extent::full(2).unwrap());
    let range = Function::load(RANGE_OBJECT);
    let max = u64::MAX;
    for (begin, end, flags, first, count) in [
        (10, 15, 0, 10, 5),
        (10, 15, 1, 11, 4),
        (10, 15, 2, 10, 6),
        (10, 15, 3, 11, 5),
        (10, 10, 0, 0, 0),
        (10, 10, 2, 10, 1),
        (10, 10, 3, 0, 0),
        (10, 9, 2, 0, 0),
        (0, 0, 0, 0, 0),
        (0, 0, 2, 0, 1),
        (max, max, 3, 0, 0),
        (max, max, 2, 0, 0),
        (950, max, 2, 950, 11),
        (961, max, 0, 0, 0),
    ] {
        let (answer, _) = range.run(&file, 0, &argument(begin, end, flags, 0), 4096).unwrap();
        assert_eq!(answer[8..16], [0; 8], "the range is finished");
        // The number of pairs, and no place to continue.
        assert_eq!(answer[16..24], u64::to_le_bytes(count), "{begin} {end} {flags}");
        assert_eq!(answer.len() as u64, 24 + 72 * count);
        let (values, keys) = answer[24..].split_at(64 * count as usize);
        for (key, (text, found)) in (first..).zip(values.chunks(64).zip(keys.chunks(8))) {
            assert_eq!(found, u64::to_le_bytes(key));
            assert_eq!(text, value_text(key));
        }
    }
    for flags in [16, 12, 1 << 31] {
        let refused = range.run(&file, 0, &argument(0, 9, flags, 0), 4096);
        assert_eq!(refused, Err(Failure::Abort(6)));
    }
}

#[test]
fn too_little_scratch_is_refused() {
    let file = stock(&Extent::full(2).unwrap());
    let range = Function::load(RANGE_OBJECT);
    let refused = Err(Failure::Abort(6));
    // A header and the state of the walk; one pair, the count, or the summary and one leaf.
    for (flags, needed) in [(0, 24 + 72 + 64), (4, 24 + 8 + 64), (8, 24 + 40 + 31 * 64 + 64)] {
        let argument = argument(3, 40, flags, 0);
        assert!(range.run(&file, 0, &argument, needed).is_ok());
        for size in [needed - 1, 80, 24] {
            assert_eq!(range.run(&file, 0, &argument, size), refused, "{flags} {size}");
        }
    }
    let get = Function::load(GET_OBJECT);
    let key = 7u64.to_le_bytes();
    assert_eq!(get.run(&file, 0, &key, 71), refused);
    assert_eq!(get.run(&file, 0, &key, 8), refused);
    assert!(get.run(&file, 0, &key, 72).is_ok());
}

/// The only leaf of a tree of one level is at offset 0, where this range continues.
#[test]
fn an_answer_that_fills_up_in_the_root() {
    let file = stock(&Extent::full(1).unwrap());
    let range = Function::load(RANGE_OBJECT);
    let (answer, _) = range.run(&file, 0, &argument(2, 20, 0, 0), 24 + 3 * 72 + 64).unwrap();
    assert_eq!(answer[..8], 5u64.to_le_bytes());
    assert_eq!((&answer[8..16], &answer[16..24]), (&[0; 8][..], &[3, 0, 0, 0, 1, 0, 0, 0][..]));
}

/// Dense answers of as many pairs as fit, whatever the size of scratch, with one call each.
#[test]
fn ranges_of_many_lengths_and_sizes_of_scratch() {
    let model: Model = (0..2000).map(|key| (key, value_text(key))).collect();
    let dense = stock(&Extent::full(3).unwrap());
    let scattered = sparse(&model, &mut Random(5), false);
    let function = Function::load(RANGE_OBJECT);
    assert_eq!(PAIRS_MAX, 226);
    for file in [&dense, &scattered] {
        for length in [1, 31, 32, 64, 220, 221, 226, 227, 1000] {
            for limit in [160, 231, 232, 4096, 16_383, 16_384, u32::MAX] {
                let range = KeyRange::new(17, 17 + length).unwrap();
                let pushdown = RangePushdown::new(&range, 0, 0).with_scratch_limit(limit);
                let scratch = pushdown.call().unwrap().scratch_size_bytes;
                let most = (u64::from(limit.min(16_384)) - 24 - 64) / 72;
                assert_eq!(u64::from(scratch), 24 + 72 * length.min(most) + 64);
                let (pairs, plans) = pushed_pairs(&function, file, pushdown, 0).unwrap();
                assert!(pairs.iter().map(|pair| pair.key).eq(17..17 + length));
                assert!(pairs.iter().all(|pair| pair.value == value_text(pair.key)));
                assert_eq!(plans.len() as u64, length.div_ceil(most), "{length} {limit}");
            }
        }
    }
}

/// A hop reaches its limit of pages within a run of values, in a block that also has a value of the
/// previous leaf.
#[test]
fn a_run_goes_on_with_the_next_hop() {
    const PAGE_BYTES: usize = 4096;
    let model: Model = (0..62).map(|key| (key, value_text(key))).collect();
    // The log follows a root and two leaves.
    let slot = |page: usize, at: usize| (page * PAGE_BYTES + at - 3 * 512) / 64;
    let page = 40;
    let first = |key: usize| if key == 15 { slot(page, 3584) } else { slot(100 + 2 * key, 1024) };
    let second = |key: usize| match key {
        0..14 => slot(2 + 2 * key, 1024),
        14 => slot(page, PAGE_BYTES - 64),
        15 => slot(page + 1, 0),
        _ => slot(60 + 2 * key, 1024),
    };
    let log: Vec<usize> = (0..31_usize).map(first).chain((0..31).map(second)).collect();
    let file = laid_out(&model, &mut Random(1), Some(31), &log);
    let range = KeyRange::new(0, 62).unwrap();
    let function = Function::load(RANGE_OBJECT);
    let (summary, _) = pushed_aggregate(&function, &file, &range, Aggregate::Sum, 0, 0).unwrap();
    let number = |value: &Value| i64::from_le_bytes(value[..8].try_into().unwrap());
    let sum: i128 = model.values().map(|value| i128::from(number(value))).sum();
    assert_eq!((summary.count, summary.sum), (62, sum));
}

#[test]
fn a_leaf_costs_one_hop() {
    let file = stock(&Extent::full(3).unwrap());
    let range = Function::load(RANGE_OBJECT);
    let hops = |begin: u64, count, flags| {
        let argument = argument(begin, begin + count, flags, 0);
        range.run(&file, 0, &argument, 16_384).unwrap().1.len()
    };
    // Three levels, then the values: with the next leaf while the range continues.
    assert_eq!(hops(31, 31, 0), 4);
    assert_eq!(hops(31, 32, 0), 5);
    assert_eq!(hops(31, 10 * 31, 8), 3 + 10);
    // Counting reads leaves only.
    assert_eq!(hops(31, 10 * 31, 4), 3 + 9);
    let get = Function::load(GET_OBJECT);
    let (_, plan) = get.run(&file, 0, &77u64.to_le_bytes(), 72).unwrap();
    assert_eq!(plan.len(), 4);
    let (answer, plan) = get.run(&file, 0, &30_000u64.to_le_bytes(), 72).unwrap();
    assert_eq!((answer, plan.len()), (vec![0; 8], 3));
}

#[test]
fn a_full_answer_says_where_to_go_on() {
    let file = stock(&Extent::full(3).unwrap());
    let range = Function::load(RANGE_OBJECT);
    let (answer, _) = range.run(&file, 0, &argument(0, 500, 0, 0), 24 + 56 * 72 + 64).unwrap();
    assert_eq!(answer.len(), 24 + 56 * 72);
    assert_eq!(answer[..8], 56u64.to_le_bytes());
    // Keys 31 to 61 are in the second leaf: after the root and 31 nodes of the second level.
    assert_eq!(answer[8..16], (33 * 512u64).to_le_bytes());
    assert_eq!(answer[16..24], (1u64 << 32 | 56).to_le_bytes());
    // A limit on hops ends a chain at a leaf.
    let (answer, plan) = range.run(&file, 0, &argument(0, 20_000, 8, 11), 4096).unwrap();
    assert!(plan.len() <= 11);
    assert_eq!(answer.len(), 64);
    assert_ne!(answer[8..16], [0; 8]);
    assert_eq!(answer[16..24], (1u64 << 32).to_le_bytes());
}
