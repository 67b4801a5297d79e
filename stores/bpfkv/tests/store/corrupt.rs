//! Corrupt databases and hostile answers: typed errors, never a panic, always an end.

use crate::support::*;
use bpfkv::create::Extent;
use bpfkv::format::value_text;
use bpfkv::pushdown::{AggregatePushdown, RangePushdown, describe_abort, get_answer};
use bpfkv::{Aggregate, Corrupt, Defect, GET_OBJECT, KeyRange, RANGE_OBJECT};
use proptest::prelude::*;
use std::sync::LazyLock;

static GET: LazyLock<Function> = LazyLock::new(|| Function::load(GET_OBJECT).with_hop_budget(40));
static RANGE: LazyLock<Function> = LazyLock::new(|| Function::load(RANGE_OBJECT));

fn small() -> Vec<u8> {
    let model = (0..300).map(|key| (key * 3, value_text(key))).collect();
    sparse(&model, &mut Random(1), false)
}

fn set_word(file: &mut [u8], at: usize, word: u64) {
    file[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn flipped_bytes(
        // Most words that matter are in the first nodes, so aim there, at all bytes of a word.
        flips in prop::collection::vec((0..14_000usize, any::<u8>()), 1..6),
        key in 0..920u64,
        length in 0..150u64,
        seed: u64,
    ) {
        let mut file = small();
        for (at, byte) in flips {
            file[at] ^= byte;
        }
        let plain = plain_get(&file, key, 0);
        let pushed = pushed_get(&GET, &file, key, 0);
        if plain.is_ok() || pushed.is_ok() {
            prop_assert_eq!(plain, pushed);
        }
        let range = KeyRange::new(key, key + length).unwrap();
        let plain = plain_range(&file, &range, 0, &mut Random(seed)).map(|(pairs, _)| pairs);
        let pushed = pushed_range(&RANGE, &file, &range, 0, 0);
        match (plain, pushed) {
            (Ok(plain), Ok((pushed, _))) => prop_assert_eq!(plain, pushed),
            (Err(_), Err(_)) => {}
            // A second call enters its leaf by search, which skips entries that a scan would
            // reject.
            (plain, pushed) => {
                let calls = pushed.as_ref().map_or(0, |(_, plans)| plans.len());
                prop_assert!(calls > 1, "{:?} but {:?}", plain, pushed);
            }
        }
        for aggregate in [Aggregate::Count, Aggregate::Sum] {
            let plain = plain_aggregate(&file, &range, aggregate, 0, &mut Random(seed));
            let pushed = pushed_aggregate(&RANGE, &file, &range, aggregate, 0, 0);
            prop_assert_eq!(plain.is_ok(), pushed.is_ok());
            if let (Ok(plain), Ok((pushed, _))) = (plain, pushed) {
                prop_assert_eq!(plain, pushed);
            }
        }
    }

    #[test]
    fn hostile_answers_end(
        answers in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 20),
        next in prop::collection::vec((0..40u64, 0..4u64), 20),
        begin in 0..20u64,
    ) {
        let range = KeyRange::new(begin, begin + 10).unwrap();
        for answer in &answers {
            let _ = get_answer(answer);
            let _ = RangePushdown::new(&range, 0, 0).answer(answer).map(Iterator::count);
            let _ = AggregatePushdown::new(&range, Aggregate::Sum, 0, 0).answer(answer);
        }
        let mut pushdown = RangePushdown::new(&range, 0, 0);
        let mut calls = 0;
        let more = 1u64 << 32;
        for (key, leaf) in next.iter().cycle().take(1000) {
            if pushdown.call().is_none() {
                break;
            }
            let answer = [key.to_le_bytes(), (leaf * 512).to_le_bytes(), more.to_le_bytes()].concat();
            calls += u64::from(pushdown.answer(&answer).is_ok());
        }
        prop_assert!(calls <= 2 * 11);
    }
}

#[test]
fn each_defect_is_named() {
    let clean = stock(&Extent::full(2).unwrap());
    let range = KeyRange::new(0, 200).unwrap();
    let all = |file: &[u8]| {
        let get = plain_get(file, 35, 0);
        let pushed = pushed_get(&GET, file, 35, 0);
        let pairs = plain_range(file, &range, 0, &mut Random(0)).map(|(pairs, _)| pairs);
        let pushed_pairs = pushed_range(&RANGE, file, &range, 0, 0).map(|(pairs, _)| pairs);
        (get, pushed, pairs, pushed_pairs)
    };
    let corrupt = |offset_bytes, defect| Failure::Corrupt(Corrupt { offset_bytes, defect });
    // (word to overwrite, new value, defect, node, abort code); leaf 1 is at byte 1024.
    for (at, word, defect, offset, code) in [
        (8, 2, Defect::NodeType, 0, 1),
        (1024 + 8, 7, Defect::NodeType, 1024, 1),
        (264 + 8, 1024, Defect::NodePointer, 0, 2),
        (264 + 8, 1 << 63 | 1025, Defect::NodePointer, 0, 2),
        (1024 + 264 + 32, 1 << 63 | 16_396, Defect::ValuePointer, 1024, 3),
    ] {
        let mut file = clean.clone();
        set_word(&mut file, at, word);
        let (get, pushed, pairs, pushed_pairs) = all(&file);
        assert_eq!(get, Err(corrupt(offset, defect)));
        assert_eq!(pushed, Err(Failure::Abort(code)));
        // A range from key 0 finds only defects on its way.
        if offset != 0 || defect == Defect::NodeType {
            assert_eq!(pairs, Err(corrupt(offset, defect)));
            assert_eq!(pushed_pairs, Err(Failure::Abort(code)));
        }
        assert_eq!(Defect::from_abort_code(code as u32), Some(defect));
        assert!(describe_abort(code as u32).contains(&defect.to_string()));
    }
}

#[test]
fn cycles_end() {
    let clean = stock(&Extent::full(2).unwrap());
    let everything = KeyRange::new(0, u64::MAX).unwrap();
    // The root is its own first child.
    let mut file = clean.clone();
    set_word(&mut file, 264, 1 << 63);
    let too_deep = Err(Failure::Corrupt(Corrupt { offset_bytes: 0, defect: Defect::TooDeep }));
    assert_eq!(plain_get(&file, 3, 0), too_deep);
    assert_eq!(pushed_get(&GET, &file, 3, 0), Err(Failure::TooManySteps));
    // The third leaf points back to the first; the second to itself.
    for (leaf, next) in [(1024 + 512, 512), (1024, 1024)] {
        let mut file = clean.clone();
        set_word(&mut file, leaf, next);
        let cycle = Corrupt { offset_bytes: next, defect: Defect::KeysNotAscending };
        for aggregate in [Aggregate::Count, Aggregate::Max] {
            let plain = plain_aggregate(&file, &everything, aggregate, 0, &mut Random(0));
            assert_eq!(plain, Err(Failure::Corrupt(cycle)));
            let pushed = pushed_aggregate(&RANGE, &file, &everything, aggregate, 0, 0);
            assert_eq!(pushed, Err(Failure::Abort(4)));
        }
        let plain = plain_range(&file, &everything, 0, &mut Random(0)).map(|_| ());
        assert_eq!(plain, Err(Failure::Corrupt(cycle)));
        assert!(pushed_range(&RANGE, &file, &everything, 0, 0).is_err());
    }
}

#[test]
fn empty_leaves_are_corrupt() {
    let mut file = stock(&Extent::full(2).unwrap());
    for slot in 0..31 {
        set_word(&mut file, 1024 + 16 + slot * 8, u64::MAX);
    }
    let range = KeyRange::new(0, 100).unwrap();
    let empty = Corrupt { offset_bytes: 1024, defect: Defect::EmptyNode };
    let plain = plain_range(&file, &range, 0, &mut Random(0)).map(|_| ());
    assert_eq!(plain, Err(Failure::Corrupt(empty)));
    assert_eq!(pushed_range(&RANGE, &file, &range, 0, 0).map(|_| ()), Err(Failure::Abort(5)));
}
