//! What targets answer, which is not trusted.

use super::*;
use crate::own::OwnStages;
use crate::plan::{Aggregate, Column, Measure, Schema};
use crate::split::split;
use proptest::prelude::*;

fn plans() -> Vec<Plan> {
    let column = |name: &str, kind, nullable| Column { name: name.into(), kind, nullable };
    let columns = vec![
        column("a", Kind::I32, true),
        column("b", Kind::F64, true),
        column("c", Kind::Utf8, false),
    ];
    let all = || (0..3).map(Scalar::Column).collect::<Vec<_>>();
    let measures = [Measure::Count, Measure::Sum, Measure::Min, Measure::Max, Measure::Mean];
    let aggregates = || {
        let of = |column| measures.map(|measure| Aggregate { measure, of: Scalar::Column(column) });
        [of(0), of(1)].concat()
    };
    let top =
        |by| Reduction::Top { by: Scalar::Column(by), descending: true, count: 10, columns: all() };
    let reductions = [
        Reduction::Rows { columns: all(), limit: None },
        Reduction::Groups { keys: Vec::new(), aggregates: aggregates() },
        Reduction::Groups {
            keys: vec![Scalar::Column(0), Scalar::Column(2)],
            aggregates: aggregates(),
        },
        top(0),
        top(1),
        Reduction::Histogram { of: Scalar::Column(1), low: 0.0, high: 1.0, bins: 4 },
    ];
    let plan = |reduction| Plan {
        schema: Schema { columns: columns.clone() },
        format: Format::Csv { delimiter: b',', header_bytes: 0, nulls: vec![String::new()] },
        filter: Predicate::And(Vec::new()),
        reduction,
        own: OwnStages::default(),
    };
    reductions.map(plan).into()
}

proptest! {
    #[test]
    fn no_answer_does_harm(
        (status, count) in (0..7_u32, prop_oneof![0..5_u32, any::<u32>()]),
        // As many as a range may have bytes: chains.rs.
        (rows, passed) in (0..=1_u64 << 40).prop_flat_map(|rows| (Just(rows), 0..=rows)),
        body in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..600),
            proptest::collection::vec(prop_oneof![Just(0_u8), Just(0xff), any::<u8>()], 0..600),
        ],
    ) {
        let mut bytes = [0_u64.to_le_bytes(), rows.to_le_bytes(), passed.to_le_bytes()].concat();
        bytes.splice(8..8, [status.to_le_bytes(), count.to_le_bytes()].concat());
        bytes.extend_from_slice(&body);
        for plan in plans() {
            let split = split(&plan).expect("a good plan");
            let program = Program::new(&plan, &split).expect("a good plan");
            let Ok(answer) = program.answer(&bytes) else { continue };
            let _ = program.top(&answer);
            let mut seen = 0_u32;
            // What run.rs allows.
            if u64::from(answer.count) <= body.len() as u64 {
                let _ = program.each_row(&answer, 3, &mut |row| {
                    seen += 1;
                    assert_eq!(row.len(), 3);
                });
            }
            if let Ok(mut partial) = program.partial(&answer) {
                for _ in 0..2 {
                    let again = program.partial(&answer).expect("as before");
                    let _ = partial.merge(&plan, again);
                }
                let _ = partial.finish(&plan);
            }
        }
    }
}
