//! Entry points for fuzzing the parsing of a target's answers. Unit tests call them too.

use crate::partial::Partial;
use crate::parts::Range;
use crate::plan::{
    Aggregate, Column, Format, Kind, Measure, Plan, Predicate, Reduction, Scalar, Schema,
};
use crate::plan::{OwnReduction, OwnStage, OwnStages};
use crate::run::{Collected, merge};
use crate::split::split;
use crate::stages::Program;
use std::sync::OnceLock;

/// Size of the range that answers belong to.
const RANGE_BYTES: u64 = 1 << 20;

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
    let mut plans: Vec<Plan> = reductions.map(plan).into();
    let stage = OwnStage { name: "own".to_owned(), object: Vec::new(), columns: vec![0, 1] };
    let mut own = plan(Reduction::Groups { keys: vec![Scalar::Column(3)], aggregates: Vec::new() });
    for (name, kind) in [("d", Kind::U64), ("e", Kind::F64)] {
        own.schema.columns.push(column(name, kind, false));
    }
    own.own.reduction = Some(OwnReduction { stage, answers: 2 });
    plans.push(own);
    plans
}

/// Parses any bytes as an answer, for a plan of each kind, and merges the result twice, as for a
/// chain.
pub fn answer(bytes: &[u8]) {
    static PROGRAMS: OnceLock<Vec<(Plan, Program)>> = OnceLock::new();
    let programs = PROGRAMS.get_or_init(|| {
        let program = |plan: Plan| {
            let split = split(&plan).ok()?;
            Some((plan.clone(), Program::new(&plan, &split).ok()?))
        };
        let programs: Vec<_> = plans().into_iter().filter_map(program).collect();
        assert_eq!(programs.len(), plans().len());
        programs
    });
    let range = Range { start: 0, end: RANGE_BYTES, file_end: RANGE_BYTES, skips: false };
    let always = Predicate::Constant(true);
    for (plan, program) in programs {
        let Ok(answer) = program.answer(bytes) else { continue };
        if !answer.is_of(&range) {
            continue;
        }
        let mut all = Partial::empty(plan);
        for _ in 0..2 {
            let mut collected = Collected::new(plan, &always, 1);
            if collected.add(program, 0, &range, &answer).is_ok()
                && let Ok(partial) = collected.finish()
            {
                let _ = merge(&mut all, plan, partial);
            }
            if let Ok(partial) = program.partial(&answer) {
                let _ = merge(&mut all, plan, partial);
            }
            let _ = program.top(&answer, &range);
        }
        let _ = all.finish(plan);
    }
}
