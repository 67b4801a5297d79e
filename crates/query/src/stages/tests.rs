//! Answers of targets, which are not trusted.

use super::Program;
use crate::fuzz;
use crate::parts::Range;
use crate::plan::{
    Column, Format, Kind, OwnStages, Plan, Predicate, Reduction, Scalar, Schema, Value,
};
use crate::split::split;
use proptest::prelude::*;

proptest! {
    #[test]
    fn no_answer_does_harm(
        (status, count) in (0..8_u32, prop_oneof![0..5_u32, any::<u32>()]),
        // As many as the range has bytes.
        (rows, passed) in (0..=1_u64 << 20).prop_flat_map(|rows| (Just(rows), 0..=rows)),
        body in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..600),
            proptest::collection::vec(prop_oneof![Just(0_u8), Just(0xff), any::<u8>()], 0..600),
        ],
    ) {
        let mut bytes = [0_u64.to_le_bytes(), rows.to_le_bytes(), passed.to_le_bytes()].concat();
        bytes.splice(8..8, [status.to_le_bytes(), count.to_le_bytes()].concat());
        bytes.extend_from_slice(&body);
        fuzz::answer(&bytes);
    }
}

#[test]
fn the_first_rows_are_within_their_range() {
    let by = Scalar::Column(0);
    let plan = Plan {
        schema: Schema {
            columns: vec![Column { name: "n".to_owned(), kind: Kind::U64, nullable: false }],
        },
        format: Format::Csv { delimiter: b',', header_bytes: 0, nulls: Vec::new() },
        filter: Predicate::Constant(true),
        reduction: Reduction::Top { by, descending: false, count: 1, columns: Vec::new() },
        own: OwnStages::default(),
    };
    let program = Program::new(&plan, &split(&plan).expect("a plan")).expect("a program");
    let range = Range { start: 10, end: 20, file_end: 30, skips: false };
    let top = |offset: u64| {
        // Up to byte 20, the whole range, with one row, which passed; its number is 7.
        let words = [20, 1 << 32, 1, 1, 1, 7, offset].map(u64::to_le_bytes).concat();
        let answer = program.answer(&words).expect("an answer");
        program.top(&answer, &range).ok()
    };
    assert_eq!(top(10), Some(vec![(Value::Int(7), 10)]));
    assert_eq!(top(19), Some(vec![(Value::Int(7), 19)]));
    for offset in [9, 20, u64::MAX] {
        assert_eq!(top(offset), None, "{offset}");
    }
}
