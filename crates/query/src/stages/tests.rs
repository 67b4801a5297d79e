//! Answers of targets, which are not trusted.

use super::Program;
use crate::fuzz;
use crate::parts::Range;
use crate::plan::{
    Aggregate, Column, Format, Kind, Measure, OwnStages, Plan, Predicate, Reduction, Scalar,
    Schema, Value,
};
use crate::split::split;
use proptest::prelude::*;

proptest! {
    #[test]
    fn no_answer_does_harm(
        (status, count) in (0..8_u32, prop_oneof![0..5_u32, any::<u32>()]),
        // As many as the chain has processed bytes.
        (rows, passed) in (0..=1_u64 << 20).prop_flat_map(|rows| (Just(rows), 0..=rows)),
        body in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..600),
            proptest::collection::vec(prop_oneof![Just(0_u8), Just(0xff), any::<u8>()], 0..600),
        ],
    ) {
        let mut bytes = [rows.to_le_bytes(), rows.to_le_bytes(), passed.to_le_bytes()].concat();
        bytes.splice(8..8, [status.to_le_bytes(), count.to_le_bytes()].concat());
        bytes.extend_from_slice(&body);
        fuzz::answer(&bytes);
    }
}

const RANGE: Range = Range { start: 10, end: 20, file_end: 30, skips: false };

/// A program over lines with one number.
fn program(reduction: Reduction) -> Program {
    let plan = Plan {
        schema: Schema {
            columns: vec![Column { name: "n".to_owned(), kind: Kind::U64, nullable: false }],
        },
        format: Format::Csv { delimiter: b',', header_bytes: 0, nulls: Vec::new() },
        filter: Predicate::Constant(true),
        reduction,
        own: OwnStages::default(),
    };
    Program::new(&plan, &split(&plan).expect("a plan")).expect("a program")
}

/// Each byte that a chain has processed begins one row at most: otherwise the answers for one range could go on without
/// end, each with new rows.
#[test]
fn rows_and_groups_are_no_more_than_processed_bytes() {
    let sum = Aggregate { measure: Measure::Sum, of: Scalar::Column(0) };
    let groups = Reduction::Groups { keys: vec![Scalar::Column(0)], aggregates: vec![sum] };
    let program = program(groups);
    for (next, rows, is_of) in [
        (10, 0, true),
        (11, 1, true),
        (11, 2, false),
        (20, 10, true),
        (25, 11, false),
        (9, 0, false),
    ] {
        // In the state "more", without groups.
        let words = [next, 1, rows, 0].map(u64::to_le_bytes).concat();
        let answer = program.answer(&words).expect("an answer");
        assert_eq!(answer.is_of(&RANGE), is_of, "{next} {rows}");
    }
    for (groups, is_whole) in [(1, true), (2, false)] {
        // Two rows, of which one passed; then texts, bases and entries of zeroes.
        let mut words = [12, 1 | groups << 32, 2, 1].map(u64::to_le_bytes).concat();
        words.extend_from_slice(&[0; 1000]);
        let answer = program.answer(&words).expect("an answer");
        assert_eq!(program.partial(&answer).is_ok(), is_whole, "{groups}");
    }
}

#[test]
fn the_first_rows_are_within_their_range() {
    let by = Scalar::Column(0);
    let program = program(Reduction::Top { by, descending: false, count: 1, columns: Vec::new() });
    let top = |offset: u64| {
        // Up to byte 20, the whole range, with one row, which passed; its number is 7.
        let words = [20, 1 << 32, 1, 1, 1, 7, offset].map(u64::to_le_bytes).concat();
        let answer = program.answer(&words).expect("an answer");
        program.top(&answer, &RANGE).ok()
    };
    assert_eq!(top(10), Some(vec![(Value::Int(7), 10)]));
    assert_eq!(top(19), Some(vec![(Value::Int(7), 19)]));
    for offset in [9, 20, u64::MAX] {
        assert_eq!(top(offset), None, "{offset}");
    }
}
