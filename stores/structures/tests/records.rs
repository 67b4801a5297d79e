//! `filter_reduce` against plain reads and a count by hand.

mod common;

use bpfof_structures::records::{
    ANSWER_BYTES, CONDITIONS_MAX, Column, Compare, Condition, FILTER_REDUCE_OBJECT, Part, Scan,
    Totals,
};
use bpfof_structures::{Damage, Place};
use common::World;
use proptest::collection::vec;
use proptest::prelude::*;

const SCRATCH_BYTES: usize = 4096;

impl World {
    /// The answer of a chain, which must equal that of plain reads.
    fn scan(&mut self, scan: &Scan, from: u64, scratch_bytes: usize) -> Result<Part, Damage> {
        let first = scan.first(from).expect("not nothing");
        let answer = self.chain(first, &scan.argument(), scratch_bytes);
        let part = answer.map(|answer| scan.parse(from, &answer).expect("an answer"));
        assert_eq!(part, scan.plain(from, scratch_bytes, &mut self.reader()), "{scan:?}");
        part
    }
}

fn column(record_bytes: u32) -> impl Strategy<Value = Column> {
    let widths = (0..4_u32).map(|power| 1 << power).filter(|width| *width <= record_bytes);
    let widths: Vec<u8> = widths.map(|width| width as u8).collect();
    (proptest::sample::select(widths), any::<u16>(), any::<bool>(), any::<bool>()).prop_map(
        move |(width_bytes, offset, is_signed, is_big_endian)| {
            let last = record_bytes as u16 - u16::from(width_bytes);
            Column { offset_bytes: offset % (last + 1), width_bytes, is_signed, is_big_endian }
        },
    )
}

fn condition(record_bytes: u32) -> impl Strategy<Value = Condition> {
    use Compare::{AtLeast, AtMost, Equal, Greater, Less, NotEqual};
    let compare = proptest::sample::select(vec![Equal, NotEqual, Less, AtMost, Greater, AtLeast]);
    // Small numbers, as many columns have; bounds of ranges; numbers outside of any column.
    let number = prop_oneof![
        4 => -3..260_i128,
        1 => proptest::sample::select(vec![
            i128::MIN, i128::from(i64::MIN), -1, 0, i128::from(i64::MAX),
            i128::from(u64::MAX), i128::from(u64::MAX) + 1, i128::MAX,
        ]),
        1 => any::<i64>().prop_map(i128::from),
    ];
    (column(record_bytes), compare, number)
        .prop_map(|(column, compare, number)| Condition::new(column, compare, number))
}

/// A scan and its file's bytes.
fn scans() -> impl Strategy<Value = (Scan, Vec<u8>)> {
    (1..80_u32).prop_flat_map(|record_bytes| {
        let byte = prop_oneof![3 => 0..3_u8, 1 => any::<u8>()];
        let bytes = vec(byte, 1..400).prop_map(move |some| {
            // Up to three reads.
            let records = 1 + some.len() * 37 % (3 * 57_344 / record_bytes as usize).min(9000);
            some.iter().copied().cycle().take(records * record_bytes as usize).collect::<Vec<u8>>()
        });
        let conditions = vec(condition(record_bytes), 0..=CONDITIONS_MAX);
        let column = proptest::option::of(column(record_bytes));
        (bytes, conditions, column, prop_oneof![Just(0), 1..100_u32]).prop_map(
            move |(bytes, conditions, column, records_max)| {
                let end_bytes = bytes.len() as u64;
                (Scan { record_bytes, end_bytes, conditions, column, records_max }, bytes)
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn parts_together_are_the_whole((scan, bytes) in scans(), skip in 0..3_u64) {
        let mut world = World::kept(FILTER_REDUCE_OBJECT);
        world.store(&bytes);
        let from = (skip * u64::from(scan.record_bytes)).min(scan.end_bytes - u64::from(scan.record_bytes));
        let all = Scan { records_max: 0, ..scan.clone() };
        let whole = world.scan(&all, from, SCRATCH_BYTES).expect("a good scan");
        prop_assert!(!whole.more && whole.next_bytes == scan.end_bytes);
        let (mut totals, mut next) = (Totals::default(), from);
        // Only some of many small answers: each is compared with plain reads.
        for _ in 0..10 {
            let part = world.scan(&scan, next, SCRATCH_BYTES).expect("a good scan");
            totals.add(&part.totals);
            next = part.next_bytes;
            if !part.more {
                prop_assert_eq!(totals, whole.totals);
                break;
            }
            prop_assert!(part.totals.count > 0);
        }
    }
}

/// Orders with a customer, an amount, a time: the sums are computed by hand.
#[test]
fn orders() {
    let mut world = World::new(FILTER_REDUCE_OBJECT);
    let order = |number: i64| {
        let (customer, amount, time) = (number as u32 % 7, number * 3 - 60_000, number as u64);
        let mut record = Vec::from(customer.to_le_bytes());
        record.extend(amount.to_be_bytes());
        record.extend(time.to_le_bytes());
        record
    };
    let bytes: Vec<u8> = (0..40_000).flat_map(order).collect();
    world.store(&bytes);
    let (customer, time) = (Column::unsigned(0, 4), Column::unsigned(12, 8));
    let amount = Column { is_big_endian: true, ..Column::signed(4, 8) };
    let mut scan = Scan {
        record_bytes: 20,
        end_bytes: bytes.len() as u64,
        conditions: vec![
            Condition::new(customer, Compare::Equal, 3),
            Condition::between(time, 1000, 29_999),
        ],
        column: Some(amount),
        records_max: 0,
    };
    let wanted: Vec<i64> = (1000..30_000).filter(|number| number % 7 == 3).collect();
    let amounts: Vec<i128> = wanted.iter().map(|number| i128::from(number * 3 - 60_000)).collect();
    let expected = Totals {
        count: wanted.len() as u64,
        sum: amounts.iter().sum(),
        range: Some((amounts[0], amounts[amounts.len() - 1])),
    };
    let part = world.scan(&scan, 0, SCRATCH_BYTES).expect("a good scan");
    assert_eq!((part.totals, part.more, part.records.len()), (expected, false, 0));
    assert!(expected.sum < 0 && amounts[0] < 0);
    // And the first five records themselves.
    scan.records_max = 5;
    let part = world.scan(&scan, 0, SCRATCH_BYTES).expect("a good scan");
    let five: Vec<u8> = wanted.iter().take(5).flat_map(|number| order(*number)).collect();
    assert_eq!((part.records, part.more, part.next_bytes), (five, true, wanted[5] as u64 * 20));
    assert_eq!(part.totals.count, 5);
}

/// Sums beyond 64 bits, in both directions.
#[test]
fn sums_are_exact() {
    let mut world = World::new(FILTER_REDUCE_OBJECT);
    for number in [u64::MAX, 1 << 63, u64::MAX >> 1, 0xffff_ffff, 1 << 32] {
        let bytes = number.to_le_bytes().repeat(20_000);
        world.store(&bytes);
        for column in [Column::unsigned(0, 8), Column::signed(0, 8)] {
            let scan = Scan {
                record_bytes: 8,
                end_bytes: bytes.len() as u64,
                conditions: Vec::new(),
                column: Some(column),
                records_max: 0,
            };
            let part = world.scan(&scan, 0, SCRATCH_BYTES).expect("a good scan");
            let each = if column.is_signed { number as i64 as i128 } else { number as i128 };
            assert_eq!(part.totals.sum, each * 20_000);
            assert_eq!(part.totals.range, Some((each, each)));
        }
    }
}

/// The most work of one call: it must be within the budget of a call.
#[test]
fn the_smallest_records_with_all_conditions() {
    let mut world = World::new(FILTER_REDUCE_OBJECT);
    let bytes = vec![1; 100_000];
    world.store(&bytes);
    let byte = Column { is_big_endian: true, ..Column::signed(0, 1) };
    let scan = Scan {
        record_bytes: 1,
        end_bytes: 100_000,
        conditions: vec![Condition::new(byte, Compare::Equal, 1); CONDITIONS_MAX],
        column: Some(byte),
        records_max: 3000,
    };
    let all = Scan { records_max: 0, ..scan.clone() };
    assert_eq!(world.scan(&all, 0, SCRATCH_BYTES).map(|part| part.totals.count), Ok(100_000));
    let part = world.scan(&scan, 0, SCRATCH_BYTES).expect("a good scan");
    assert_eq!(part.records.len(), 3000);
}

#[test]
fn scans_that_are_refused() {
    let mut world = World::new(FILTER_REDUCE_OBJECT);
    world.store(&[0; 1000]);
    let good = Scan {
        record_bytes: 10,
        end_bytes: 1000,
        conditions: Vec::new(),
        column: None,
        records_max: 0,
    };
    let mut refused = |scan: &Scan, from: u64, scratch_bytes| {
        assert_eq!(scan.plain(from, scratch_bytes, &mut world.reader()), Err(Damage::Request));
        let argument = scan.argument();
        let argument = &argument[..argument.len().min(scratch_bytes)];
        let first = Place { offset_bytes: from, size_bytes: 100 };
        assert_eq!(world.chain(first, argument, scratch_bytes), Err(Damage::Request), "{scan:?}");
    };
    for record_bytes in [0, 3, 60_000] {
        refused(&Scan { record_bytes, ..good.clone() }, 0, SCRATCH_BYTES);
    }
    for end_bytes in [0, 995] {
        refused(&Scan { end_bytes, ..good.clone() }, 0, SCRATCH_BYTES);
    }
    refused(&Scan { end_bytes: 10, ..good.clone() }, 20, SCRATCH_BYTES);
    for (offset, width) in [(10, 1), (9, 2), (3, 8), (65_535, 8), (0, 3), (0, 255)] {
        let column = Column::unsigned(offset, width);
        refused(&Scan { column: Some(column), ..good.clone() }, 0, SCRATCH_BYTES);
        let conditions = vec![Condition::new(column, Compare::Equal, 0)];
        refused(&Scan { conditions, ..good.clone() }, 0, SCRATCH_BYTES);
    }
    let fine = Condition::new(Column::unsigned(0, 1), Compare::Equal, 0);
    let conditions = vec![fine; CONDITIONS_MAX + 1];
    refused(&Scan { conditions, ..good.clone() }, 0, SCRATCH_BYTES);
    refused(&good, 0, 119);
    let large = Scan { record_bytes: 100, records_max: 1, ..good.clone() };
    refused(&large, 0, 99 + ANSWER_BYTES);
    assert!(world.scan(&large, 0, 100 + ANSWER_BYTES).is_ok());
    // Past the end of the file.
    let scan = Scan { end_bytes: 2000, ..good };
    assert_eq!(world.scan(&scan, 0, SCRATCH_BYTES), Err(Damage::Unreadable));
    assert_eq!(scan.parse(0, &[0; 55]), None);
}

#[test]
fn answers_that_do_not_advance_within_the_range_are_refused() {
    let scan = Scan {
        record_bytes: 10,
        end_bytes: 1000,
        conditions: Vec::new(),
        column: None,
        records_max: 0,
    };
    let is_taken = |next_bytes: u64, more: u32| {
        let mut answer = Vec::from(next_bytes.to_le_bytes());
        answer.extend(more.to_le_bytes());
        answer.resize(ANSWER_BYTES, 0);
        scan.parse(500, &answer).is_some()
    };
    assert!(is_taken(510, 1) && is_taken(990, 1) && is_taken(1000, 0));
    for next_bytes in [0, 490, 500, 1000, 1010, u64::MAX] {
        assert!(!is_taken(next_bytes, 1), "it continues at {next_bytes}");
    }
    for next_bytes in [0, 500, 990, 1010] {
        assert!(!is_taken(next_bytes, 0), "it ends at {next_bytes}");
    }
    assert!(!is_taken(1000, 2));
}

#[test]
fn totals_of_false_answers_saturate() {
    for sum in [i128::MIN, i128::MAX] {
        let huge = Totals { count: u64::MAX, sum, range: None };
        let mut totals = huge;
        totals.add(&huge);
        assert_eq!(totals, huge);
    }
}
