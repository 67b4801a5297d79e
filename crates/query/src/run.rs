//! Runs parts: chains over the ranges of a file, on the executors of `bpfof_host::files`.

use crate::chains::{Chains, Loaded, Next, Opened};
use crate::columns::{Batches, FileError};
use crate::error::RunError;
use crate::eval::Overflow;
use crate::functions::Stages;
use crate::maps;
use crate::measures;
use crate::partial::{FinishError, Partial, Reducer, top_order};
use crate::parts::{Part, Range, ranges};
use crate::plan::{Format, Plan, Predicate, Reduction, Value};
use crate::settings::{Settings, Stats};
use crate::split::{PlanError, Split, columns_of, columns_of_answers, split};
use crate::stages::{Answer, Program, RawText, Status};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::time::Duration;

/// How long to wait for a file map.
const MAP_PATIENCE: Duration = Duration::from_secs(2);
/// Maximum size of a range, the work of one chain, in bytes: an interrupted query waits for the current range of each
/// chain.
const RANGE_MAX_BYTES: u64 = 32 << 20;
const RANGE_MIN_BYTES: u64 = 256 << 10;
/// The same, if only the first rows are wanted.
const LIMITED_RANGE_BYTES: u64 = 1 << 20;

/// The argument of a chain, and the size of its first read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// The first bytes of scratch.
    pub bytes: Vec<u8>,
    /// Size of scratch in bytes: no answer is longer.
    pub scratch_bytes: u32,
    /// Bytes of the first read.
    pub block_bytes: u32,
}

/// Runs the parts of a plan, on one thread at a time.
#[derive(Debug)]
pub struct Runner<'a> {
    given: &'a Stages<'a>,
    /// The given stages, or stages on this machine.
    stages: Stages<'a>,
    /// The reason for running on this machine, and the cost before that.
    lost: Option<(String, Stats)>,
    plan: Plan,
    split: Split,
    settings: Settings,
    chains: Chains,
    main: Loaded,
}

impl<'a> Runner<'a> {
    /// Makes a runner with these stages, which may serve many plans. If their target is lost and the settings permit
    /// it, parts are run on this machine from then on, over plain reads.
    ///
    /// # Errors
    /// [`RunError::Plan`], [`RunError::Host`].
    pub fn new(given: &'a Stages<'a>, plan: &Plan, settings: Settings) -> Result<Self, RunError> {
        match Self::with(given, given.share(), plan, settings) {
            Err(RunError::Host(error)) if settings.falls_back && given.maps().has_target() => {
                let here = Self::with(given, given.here(), plan, settings)?;
                Ok(Self { lost: Some((error.to_string(), Stats::default())), ..here })
            }
            result => result,
        }
    }

    fn with(
        given: &'a Stages<'a>,
        stages: Stages<'a>,
        plan: &Plan,
        settings: Settings,
    ) -> Result<Self, RunError> {
        let split = split(plan)?;
        let program = Program::new(plan, &split).map_err(PlanError::Invalid)?;
        let mut chains = Chains::new(&stages, program.source, settings)?;
        let main = chains.load(&stages, plan, program)?;
        let plan = plan.clone();
        Ok(Self { given, stages, lost: None, plan, split, settings, chains, main })
    }

    /// The reason why the target was given up, if it was.
    #[must_use]
    pub fn lost(&self) -> Option<&str> {
        self.lost.as_ref().map(|(why, _)| &**why)
    }

    /// How the work is divided between stages and host.
    #[must_use]
    pub const fn split(&self) -> &Split {
        &self.split
    }

    /// The cost so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let before = self.lost.as_ref().map_or(Stats::default(), |(_, before)| *before);
        before.plus(self.chains.stats())
    }

    /// The argument of one chain over a whole part, of records or text: for callers that run the stages without a
    /// `FileMaps`.
    #[must_use]
    pub fn argument(&self, part: &Part) -> Argument {
        let ranges = ranges(&self.plan, part, u64::MAX);
        let batches = Batches::default();
        let told = |range| self.main.argument(&self.plan, (range, &batches));
        let (bytes, scratch_bytes) = ranges.first().map_or((Vec::new(), 0), told);
        Argument { bytes, scratch_bytes, block_bytes: self.main.block() }
    }

    /// Runs a part. `on_progress` is called regularly with the number of bytes of the part that are processed, and
    /// returns whether to continue.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn run(
        &mut self,
        part: &Part,
        on_progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Partial, RunError> {
        self.run_here_or_there(part, on_progress).map_err(|error| match error {
            RunError::Overflow(source) => {
                let (path, offset_bytes) = (part.path.clone(), part.start_bytes);
                RunError::OverflowIn { path, offset_bytes, source }
            }
            other => other,
        })
    }

    fn run_here_or_there(
        &mut self,
        part: &Part,
        on_progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Partial, RunError> {
        match self.run_once(part, on_progress) {
            Err(RunError::Host(error)) if self.settings.falls_back && self.lost.is_none() => {
                let here = Self::with(self.given, self.given.here(), &self.plan, self.settings)?;
                let lost = Some((error.to_string(), self.stats()));
                *self = Self { lost, ..here };
                self.run_once(part, on_progress)
            }
            result => result,
        }
    }

    fn run_once(
        &mut self,
        part: &Part,
        on_progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Partial, RunError> {
        let file = self.open(part)?;
        let ranges = match self.plan.format {
            Format::Columns { .. } => file.batches.ranges(self.range_bytes(part)),
            _ => ranges(&self.plan, part, self.range_bytes(part)),
        };
        let result = match self.plan.reduction {
            Reduction::Rows { .. } => self.rows(&file, ranges, on_progress),
            _ if !self.split.reduces => self.rows(&file, ranges, on_progress),
            Reduction::Top { .. } => self.top(&file, ranges, on_progress),
            Reduction::Groups { .. } | Reduction::Histogram { .. } => {
                self.reduced(&file, ranges, on_progress)
            }
        };
        // A file that is being rewritten may be the reason for a bad row, a number that does not fit, or a read outside
        // it.
        if matches!(
            result,
            Ok(_)
                | Err(RunError::Data { .. }
                    | RunError::Chain { .. }
                    | RunError::Overflow(_)
                    | RunError::OverflowIn { .. })
        ) {
            let opened = file.file.file().map_err(|source| not_open(part, source))?;
            self.check_unchanged(part, &opened)?;
        }
        result
    }

    /// Checks that a file is as it was when the part was made.
    fn check_unchanged(&self, part: &Part, file: &File) -> Result<(), RunError> {
        let change = part.change(file, &self.plan.format);
        match change.map_err(|source| not_open(part, source))? {
            None => Ok(()),
            Some(what) => Err(RunError::Data {
                path: part.path.clone(),
                offset_bytes: 0,
                what: format!(
                    "the file has been {what} since it was examined: run the query again"
                ),
            }),
        }
    }

    fn open(&self, part: &Part) -> Result<Opened, RunError> {
        let failed = |source| not_open(part, source);
        let file = self.stages.maps().open(&part.path).map_err(failed)?;
        let opened = file.file().map_err(failed)?;
        self.check_unchanged(part, &opened)?;
        let bad = |offset_bytes, what| {
            Err(RunError::Data { path: part.path.clone(), offset_bytes, what })
        };
        if let Format::Fixed { header_bytes, record_bytes, .. } = self.plan.format {
            let rest = part.file_bytes.saturating_sub(header_bytes) % u64::from(record_bytes);
            let what =
                || format!("{rest} bytes, not a record of {record_bytes}: is the schema wrong?");
            if rest != 0 {
                return bad(part.file_bytes - rest, what());
            }
        }
        let batches = match &self.plan.format {
            Format::Columns { columns, .. } => {
                let mut wanted: BTreeSet<usize> = self.split.columns.iter().copied().collect();
                columns_of_answers(&self.plan, &mut wanted);
                let wanted = wanted.into_iter().collect();
                match Batches::read(&opened, part, columns, wanted) {
                    Ok(batches) => batches,
                    Err((_, FileError::Read(error))) => return Err(failed(error)),
                    Err((offset_bytes, FileError::Contents(what))) => {
                        return bad(offset_bytes, what);
                    }
                }
            }
            _ => Batches::default(),
        };
        let maps = self.stages.maps();
        if maps.is_connected() {
            // Without a map the chains run on this machine, if that is permitted.
            let _ = maps.wait_mapped(&file, MAP_PATIENCE);
        }
        Ok(Opened { file, batches })
    }

    fn range_bytes(&self, part: &Part) -> u64 {
        if let Some(bytes) = self.settings.range_max_bytes {
            return bytes;
        }
        if self.is_limited() {
            return LIMITED_RANGE_BYTES;
        }
        let bytes = part.end_bytes.saturating_sub(part.start_bytes);
        let share = bytes / (2 * self.settings.chains.max(1) as u64);
        share.clamp(RANGE_MIN_BYTES, RANGE_MAX_BYTES)
    }

    const fn is_limited(&self) -> bool {
        matches!(self.plan.reduction, Reduction::Rows { limit: Some(_), .. })
    }

    /// Stages answer rows, which are filtered and reduced here, in the order of the file.
    fn rows(
        &mut self,
        file: &Opened,
        ranges: Vec<Range>,
        on_progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Partial, RunError> {
        let (plan, rest, is_limited) = (&self.plan, &self.split.rest, self.is_limited());
        let mut collected = Collected::new(plan, rest, ranges.len());
        self.chains.run(
            (plan, &mut self.main),
            (file, ranges, is_limited),
            &mut |program, index, range, answer| {
                let added = collected.add(program, index, range, answer);
                // The rows before one that fails may be enough.
                if collected.is_enough() {
                    return Ok(Next::Enough);
                }
                added.map(|()| Next::AsAnswered)
            },
            on_progress,
        )?;
        collected.finish()
    }

    /// Stages reduce. Ranges for which they have no room are reduced here, from rows.
    fn reduced(
        &mut self,
        file: &Opened,
        ranges: Vec<Range>,
        on_progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Partial, RunError> {
        let plan = &self.plan;
        let mut all = Partial::empty(plan);
        let block = self.main.block();
        let left = self.chains.run(
            (plan, &mut self.main),
            (file, ranges, false),
            &mut |program, _, range, answer| {
                merge(&mut all, plan, program.partial(answer)?)?;
                // With very many groups most of the work is sending them.
                let is_slow = answer.next - range.start < u64::from(block);
                let gives_up = answer.status == Status::More && is_slow;
                Ok(if gives_up { Next::Leave } else { Next::AsAnswered })
            },
            on_progress,
        )?;
        if left.is_empty() {
            return Ok(all);
        }
        // Arithmetic is done here, where integers do not overflow 64 bits.
        let conjuncts = match &self.split.pushed {
            Predicate::And(all) => all.clone(),
            other => vec![other.clone()],
        };
        let (computed, pushed) = conjuncts.into_iter().partition(maps::computes);
        let (computed, pushed) = (Predicate::And(computed), Predicate::And(pushed));
        let program =
            Program::rows(plan, (&pushed, &computed), self.split.columns.clone(), u32::MAX);
        let program = program.map_err(PlanError::Invalid)?;
        let mut loaded = self.chains.load(&self.stages, plan, program)?;
        let mut collected = Collected::new(plan, &computed, left.len());
        self.chains.run(
            (plan, &mut loaded),
            (file, left, false),
            &mut |program, index, range, answer| {
                collected.add(program, index, range, answer)?;
                Ok(Next::AsAnswered)
            },
            on_progress,
        )?;
        merge(&mut all, plan, collected.finish()?)?;
        Ok(all)
    }

    /// Stages find the places of the rows; then the rows are read.
    fn top(
        &mut self,
        file: &Opened,
        ranges: Vec<Range>,
        on_progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Partial, RunError> {
        let plan = &self.plan;
        let Reduction::Top { by, descending, count, columns } = &plan.reduction else {
            return Ok(Partial::empty(plan));
        };
        let (mut found, mut passed, mut done_bytes) = (Vec::new(), 0, 0);
        self.chains.run(
            (plan, &mut self.main),
            (file, ranges.clone(), false),
            &mut |program, _, range, answer| {
                passed += answer.passed;
                found.append(&mut program.top(answer, range)?);
                Ok(Next::AsAnswered)
            },
            &mut |bytes| {
                done_bytes = bytes;
                on_progress(bytes)
            },
        )?;
        // The following chains read bytes that have been counted already.
        let on_progress = &mut |_| on_progress(done_bytes);
        found.sort_by(|(one, at), (other, other_at)| {
            top_order(one, other, *descending).then(at.cmp(other_at))
        });
        found.truncate(*count as usize);
        // Rows without a number to compare come last: NaN, and then missing values.
        let mut left = passed.min(u64::from(*count)) - found.len() as u64;
        let is_float = measures::is_float(by, &plan.schema);
        let nan = is_float.then(|| Predicate::IsNan(by.clone()));
        let absent = nan.into_iter().chain([Predicate::IsNull(by.clone())]);
        let mut wanted = BTreeSet::new();
        columns.iter().chain([by]).for_each(|of| columns_of(of, &mut wanted));
        let mut all = self.rows_at(file, &ranges, &found, &wanted, on_progress)?;
        for absent in absent {
            if left == 0 {
                break;
            }
            let (rows, count) =
                self.rows_without(file, &ranges, (absent, left), &wanted, on_progress)?;
            left = left.saturating_sub(count);
            merge(&mut all, &self.plan, rows)?;
        }
        Ok(all)
    }

    /// Reads the rows at these file offsets.
    fn rows_at(
        &mut self,
        file: &Opened,
        ranges: &[Range],
        found: &[(Value, u64)],
        wanted: &BTreeSet<usize>,
        on_progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Partial, RunError> {
        let plan = &self.plan;
        let row_bytes = match plan.format {
            Format::Fixed { record_bytes, .. } => u64::from(record_bytes),
            // Only the row that begins at this offset, or has this number.
            Format::Csv { .. } | Format::Columns { .. } => 1,
        };
        let file_end = ranges.first().map_or(0, |range| range.file_end);
        let row = |(_, start): &(Value, u64)| {
            let start = *start;
            Range { start, end: start + row_bytes, file_end, skips: false }
        };
        let columns = wanted.iter().copied().collect();
        let program = Program::rows(plan, (&Predicate::And(Vec::new()), &ALWAYS), columns, 1);
        // The rows have already passed the own filter.
        let mut program = program.map_err(PlanError::Invalid)?;
        program.own_filter = None;
        let mut loaded = self.chains.load(&self.stages, plan, program)?;
        let mut collected = Collected::new(plan, &ALWAYS, found.len());
        self.chains.run(
            (plan, &mut loaded),
            (file, found.iter().map(row).collect(), false),
            &mut |program, index, range, answer| {
                collected.add(program, index, range, answer)?;
                Ok(Next::AsAnswered)
            },
            on_progress,
        )?;
        collected.finish()
    }

    /// The first rows that also meet `absent`, and the number found: all, or at least `rows`.
    fn rows_without(
        &mut self,
        file: &Opened,
        ranges: &[Range],
        (absent, rows): (Predicate, u64),
        wanted: &BTreeSet<usize>,
        on_progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(Partial, u64), RunError> {
        let plan = &self.plan;
        let filter = flat(Predicate::And(vec![self.split.pushed.clone(), absent]));
        let columns: BTreeSet<usize> = wanted.iter().chain(&self.split.columns).copied().collect();
        let limit = rows.min(u64::from(u32::MAX)) as u32;
        let program = Program::rows(plan, (&filter, &ALWAYS), columns.into_iter().collect(), limit);
        let mut loaded =
            self.chains.load(&self.stages, plan, program.map_err(PlanError::Invalid)?)?;
        let mut collected = Collected::new(plan, &ALWAYS, ranges.len());
        self.chains.run(
            (plan, &mut loaded),
            (file, ranges.to_vec(), true),
            &mut |program, index, range, answer| {
                let added = collected.add(program, index, range, answer);
                if collected.first_rows() >= rows {
                    return Ok(Next::Enough);
                }
                added.map(|()| Next::AsAnswered)
            },
            on_progress,
        )?;
        let found = collected.first_rows();
        Ok((collected.finish()?, found))
    }
}

fn not_open(part: &Part, source: io::Error) -> RunError {
    RunError::Open { path: part.path.clone(), source }
}

/// A condition that every row meets.
static ALWAYS: Predicate = Predicate::Constant(true);

/// Flattens nested conjunctions.
fn flat(predicate: Predicate) -> Predicate {
    let Predicate::And(all) = predicate else { return predicate };
    let each = all.into_iter().flat_map(|one| match one {
        Predicate::And(all) => all,
        other => vec![other],
    });
    Predicate::And(each.collect())
}

/// Adds the result of a part.
pub(crate) fn merge(all: &mut Partial, plan: &Plan, partial: Partial) -> Result<(), RunError> {
    match all.merge(plan, partial) {
        Ok(()) => Ok(()),
        Err(FinishError::Overflow(overflow)) => Err(overflow.into()),
        Err(FinishError::OfAnother) => Err(RunError::Damaged),
    }
}

/// A row in the form that [`Predicate::by_bytes`] expects.
fn row_by_bytes(row: &[Value], raw: &[RawText<'_>]) -> Vec<Value> {
    let mut row: Vec<Value> = row.iter().map(Value::by_bytes).collect();
    for RawText { column, bytes } in raw {
        row[*column] = Value::of_bytes(bytes);
    }
    row
}

/// Collects the results of rows, by range.
pub(crate) struct Collected<'a> {
    plan: &'a Plan,
    /// The condition on rows that the stages have not applied.
    rest: &'a Predicate,
    /// The same for rows with texts that are not UTF-8; made when the first one occurs.
    by_bytes: Option<Predicate>,
    reducer: Reducer<'a>,
    /// The result of each range; or one result of all, if their order does not matter, because groups of each range
    /// would take too much memory.
    ranges: Vec<Partial>,
    /// By range: number of rows, and whether the range is complete.
    rows: Vec<(u64, bool)>,
}

impl<'a> Collected<'a> {
    pub(crate) fn new(plan: &'a Plan, rest: &'a Predicate, ranges: usize) -> Self {
        let reducer = Reducer::new(plan);
        let partials = if reducer.takes_any_order() { 1 } else { ranges };
        Self {
            plan,
            rest,
            by_bytes: None,
            reducer,
            ranges: vec![Partial::empty(plan); partials],
            rows: vec![(0, false); ranges],
        }
    }

    pub(crate) fn add(
        &mut self,
        program: &Program,
        index: usize,
        range: &Range,
        answer: &Answer<'_>,
    ) -> Result<(), RunError> {
        let Self { plan, rest, by_bytes, reducer, ranges, rows } = self;
        program.check_own(answer)?;
        if plan.own.reduction.is_none() && u64::from(answer.count) > answer.passed {
            return Err(RunError::Damaged);
        }
        let partial = if ranges.len() == 1 { &mut ranges[0] } else { &mut ranges[index] };
        let mut result = Ok(());
        let mut add = |row: &[Value], raw: &[RawText<'_>]| {
            let holds = match raw {
                [] => rest.holds(row)?,
                raw => {
                    let rest = by_bytes.get_or_insert_with(|| rest.by_bytes());
                    rest.holds(&row_by_bytes(row, raw))?
                }
            };
            if holds == Some(true) {
                reducer.add(partial, row)?;
                rows[index].0 += 1;
            }
            Ok::<_, Overflow>(())
        };
        program.each_row(answer, plan.schema.columns.len(), &mut |row, raw| {
            if result.is_ok() {
                result = add(row, raw);
            }
        })?;
        result?;
        rows[index].1 = answer.status == Status::End || answer.next >= range.end;
        Ok(())
    }

    /// Number of rows before the first row that has not arrived yet.
    fn first_rows(&self) -> u64 {
        let mut rows = 0;
        for (more, is_whole) in &self.rows {
            rows += more;
            if !is_whole {
                break;
            }
        }
        rows
    }

    /// Whether further rows do not matter.
    fn is_enough(&self) -> bool {
        match self.plan.reduction {
            Reduction::Rows { limit: Some(limit), .. } => self.first_rows() >= limit,
            _ => false,
        }
    }

    pub(crate) fn finish(self) -> Result<Partial, RunError> {
        let mut all = Partial::empty(self.plan);
        for mut partial in self.ranges {
            self.reducer.settle(&mut partial);
            merge(&mut all, self.plan, partial)?;
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Aggregate, Column, Kind, Measure, OwnStages, Scalar, Schema};

    #[test]
    fn groups_are_kept_once() {
        let column = |(name, kind): (&str, _)| Column { name: name.into(), kind, nullable: true };
        let kept = |reduction| {
            let plan = Plan {
                schema: Schema {
                    columns: [("n", Kind::I32), ("x", Kind::F64)].map(column).to_vec(),
                },
                format: Format::Csv { delimiter: b',', header_bytes: 0, nulls: Vec::new() },
                filter: Predicate::Constant(true),
                reduction,
                own: OwnStages::default(),
            };
            Collected::new(&plan, &ALWAYS, 1000).ranges.len()
        };
        let groups = |measure, of| {
            let aggregates = vec![Aggregate { measure, of: Scalar::Column(of) }];
            Reduction::Groups { keys: vec![Scalar::Column(0)], aggregates }
        };
        assert_eq!(kept(groups(Measure::Sum, 1)), 1);
        assert_eq!(kept(groups(Measure::Variance { ddof: 0 }, 0)), 1);
        assert_eq!(kept(groups(Measure::Variance { ddof: 0 }, 1)), 1000);
        let of = Scalar::Column(1);
        assert_eq!(kept(Reduction::Histogram { of, low: 0.0, high: 1.0, bins: 4 }), 1);
        assert_eq!(kept(Reduction::Rows { columns: Vec::new(), limit: None }), 1000);
    }
}
