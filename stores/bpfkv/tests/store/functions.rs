//! The storage functions as their header documents them, for callers other than this crate.

use crate::support::{Failure, Function, stock};
use bpfkv::create::Extent;
use bpfkv::format::value_text;
use bpfkv::{GET_OBJECT, RANGE_OBJECT};

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
        let (answer, _) = range.run(&file, 0, &argument(begin, end, flags, 0)).unwrap();
        assert_eq!(answer[8..16], [0; 8], "the range is finished");
        assert_eq!(answer[16..24], u64::to_le_bytes(count), "{begin} {end} {flags}");
        assert_eq!(answer.len() as u64, 24 + 72 * count);
        for (key, pair) in (first..).zip(answer[24..].chunks(72)) {
            assert_eq!(pair[..8], u64::to_le_bytes(key));
            assert_eq!(pair[8..], value_text(key));
        }
    }
    for flags in [16, 12, 1 << 31] {
        let refused = range.run(&file, 0, &argument(0, 9, flags, 0));
        assert_eq!(refused, Err(Failure::Abort(6)));
    }
}

#[test]
fn a_leaf_costs_one_hop() {
    let file = stock(&Extent::full(3).unwrap());
    let range = Function::load(RANGE_OBJECT);
    let hops = |begin: u64, count, flags| {
        let argument = argument(begin, begin + count, flags, 0);
        range.run(&file, 0, &argument).unwrap().1.len()
    };
    // Three levels, then the values: with the next leaf while the range goes on.
    assert_eq!(hops(31, 31, 0), 4);
    assert_eq!(hops(31, 32, 0), 5);
    assert_eq!(hops(31, 10 * 31, 8), 3 + 10);
    // Counting reads leaves only.
    assert_eq!(hops(31, 10 * 31, 4), 3 + 9);
    let get = Function::load(GET_OBJECT);
    let (_, plan) = get.run(&file, 0, &77u64.to_le_bytes()).unwrap();
    assert_eq!(plan.len(), 4);
    let (answer, plan) = get.run(&file, 0, &30_000u64.to_le_bytes()).unwrap();
    assert_eq!((answer, plan.len()), (vec![0; 8], 3));
}

#[test]
fn a_full_answer_says_where_to_go_on() {
    let file = stock(&Extent::full(3).unwrap());
    let range = Function::load(RANGE_OBJECT);
    let (answer, _) = range.run(&file, 0, &argument(0, 500, 0, 0)).unwrap();
    assert_eq!(answer.len(), 24 + 56 * 72);
    assert_eq!(answer[..8], 56u64.to_le_bytes());
    // Keys 31 to 61 are in the second leaf: after the root and 31 nodes of the second level.
    assert_eq!(answer[8..16], (33 * 512u64).to_le_bytes());
    // A limit on hops ends a chain at a leaf.
    let (answer, plan) = range.run(&file, 0, &argument(0, 20_000, 8, 11)).unwrap();
    assert!(plan.len() <= 11);
    assert_eq!(answer.len(), 64);
    assert_ne!(answer[8..16], [0; 8]);
}
