//! Divides a plan into the work of the stages at the target and the work on the host.

use crate::conditions;
use crate::describe::{describe, describe_reduction, describe_scalar};
use crate::maps::{Extent, Mapped};
use crate::measures;
use crate::order_form;
use crate::partial::{edges, has_variance};
use crate::plan::OwnStage;
use crate::plan::{
    Aggregate, Column, Format, Kind, Measure, Plan, Predicate, Reduction, Scalar, Value,
};

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Maximum number of columns that one query can use in stages.
pub(crate) const COLUMNS_MAX: usize = 16;
/// Maximum number of text columns among them in Arrow files: one hop reads the texts of all of them for a row, each of
/// which takes at least two logical blocks.
const BUFFERED_TEXTS_MAX: usize = 7;
/// Maximum number of conditions of a filter, in postfix order.
const CONDITIONS_MAX: usize = 64;
/// Maximum bytes of constants of a filter.
const CONSTANTS_MAX_BYTES: usize = 2048;
/// Maximum keys of a group.
pub(crate) const KEYS_MAX: usize = 4;
/// Maximum rows of a top.
const TOP_MAX: u32 = 512;
/// Maximum intervals of a histogram in stages.
const BINS_MAX: u32 = 512;
/// Maximum intervals of a histogram in any plan.
const BINS_LIMIT: u32 = 1 << 20;
/// Prefix of the description of a filter step.
const FILTER: &str = "filter: ";
/// Maximum size of a read at any offset (`BPFOF_READ_MAX`).
pub(crate) const READ_MAX_BYTES: u32 = 65_536 - 2 * 4096;

/// The place where a step of a query is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// In stages: at the target, or on this machine if there is no target.
    Stages,
    /// In this crate, over the rows that the stages answer.
    Here,
}

/// A step of a query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// A short description.
    pub what: String,
    /// The place.
    pub place: Place,
    /// The reason why stages cannot do it; None if they do.
    pub why_here: Option<String>,
}

/// The division of the work on a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Split {
    /// The conditions that stages apply.
    pub pushed: Predicate,
    /// The conditions that are applied here, to the rows that the stages let pass.
    pub rest: Predicate,
    /// Whether stages reduce; otherwise they answer rows, and all further work is done here.
    pub reduces: bool,
    /// The columns that the stages use or answer, ascending.
    pub columns: Vec<usize>,
    /// The steps in order.
    pub steps: Vec<Step>,
}

/// A plan that is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// With a description of the defect.
    #[error("{0}")]
    Invalid(String),
}

/// Divides the work on `plan`.
///
/// # Errors
/// The plan is invalid, or uses more columns than a chain can.
pub fn split(plan: &Plan) -> Result<Split, PlanError> {
    check(plan)?;
    // A row whose arithmetic overflows ends a chain. Only groups and histograms can continue here.
    let all = attempt(plan, Extent::All);
    if all.0.reduces
        && matches!(plan.reduction, Reduction::Groups { .. } | Reduction::Histogram { .. })
    {
        if all.1 <= COLUMNS_MAX {
            return checked(plan, all.0);
        }
        return checked(plan, attempt(plan, Extent::Nothing).0);
    }
    let (split, columns) = attempt(plan, Extent::Fitting);
    match columns > COLUMNS_MAX {
        true => checked(plan, attempt(plan, Extent::Nothing).0),
        false => checked(plan, split),
    }
}

fn checked(plan: &Plan, split: Split) -> Result<Split, PlanError> {
    check_columns(plan, &split.columns)?;
    let here =
        split.steps.iter().find(|step| step.what.starts_with(FILTER) && step.why_here.is_some());
    if let (Some(step), Some(own)) = (here, &plan.own.reduction) {
        let (what, why) = (&step.what, step.why_here.as_deref().unwrap_or_default());
        return invalid(format!(
            "{what}: stages cannot apply this filter ({why}), but they must before {} reduces",
            own.stage.name
        ));
    }
    Ok(split)
}

/// Divides the work, with this extent of arithmetic done by stages. Also returns the number of columns that stages use
/// and make.
fn attempt(plan: &Plan, extent: Extent) -> (Split, usize) {
    let mut steps = vec![source_step(&plan.format)];
    let mut conjuncts = Vec::new();
    flatten(&plan.filter, &mut conjuncts);
    let (mut pushed, mut rest) = (Vec::new(), Vec::new());
    let (mut taken, mut bytes) = (0, 0);
    let mut filters = Vec::new();
    for conjunct in conjuncts {
        let mapped = Mapped::new(plan, conjunct, extent).plan;
        let compiled =
            conditions::conjunct(&mapped.filter, &mapped.schema).and_then(|conditions| {
                let constants: usize = conditions.iter().map(constant_bytes).sum();
                if taken + conditions.len() > CONDITIONS_MAX
                    || bytes + constants > CONSTANTS_MAX_BYTES
                {
                    return Err("the filter is too long for a stage".to_owned());
                }
                Ok((conditions.len(), constants))
            });
        let why_here = match compiled {
            Ok((conditions, constants)) => {
                (taken, bytes) = (taken + conditions, bytes + constants);
                pushed.push(conjunct.clone());
                None
            }
            Err(why) => {
                rest.push(conjunct.clone());
                Some(why)
            }
        };
        let place = if why_here.is_none() { Place::Stages } else { Place::Here };
        let what = format!("{FILTER}{}", describe(conjunct, plan));
        filters.push(Step { what, place, why_here });
    }
    let pushed = Predicate::And(pushed);
    let mut mapped = Mapped::new(plan, &pushed, extent);
    let reduction = match (rest.is_empty(), &plan.own.reduction) {
        (_, Some(_)) => Err("computed from the answers of your own stage".to_owned()),
        (true, None) => reduction_by_stages(&mapped.plan),
        (false, None) => Err("rows are filtered here first".to_owned()),
    };
    let place = if reduction.is_ok() { Place::Stages } else { Place::Here };
    let what = describe_reduction(plan);
    let reduces = reduction.is_ok();
    if !reduces {
        mapped = Mapped::of_filter(plan, &pushed);
    }
    steps.extend(mapped.steps.iter().map(|step| Step {
        what: format!("compute: {}", describe_scalar(&step.scalar, plan)),
        place: Place::Stages,
        why_here: None,
    }));
    steps.append(&mut filters);
    steps.extend(own_steps(plan));
    steps.push(Step { what, place, why_here: reduction.err() });
    let rest = Predicate::And(rest);
    let columns = columns(plan, &pushed, &rest, reduces);
    let count = looked_at(plan, &columns).len() + mapped.steps.len();
    (Split { pushed, rest, reduces, columns, steps }, count)
}

/// These columns, and those that are answered of the rows that stages find: one chain may use all of them.
fn looked_at(plan: &Plan, columns: &[usize]) -> BTreeSet<usize> {
    let mut all: BTreeSet<usize> = columns.iter().copied().collect();
    columns_of_answers(plan, &mut all);
    all
}

/// Checks that stages can use these columns, and those that are answered of the rows that they find.
fn check_columns(plan: &Plan, columns: &[usize]) -> Result<(), PlanError> {
    let all = looked_at(plan, columns);
    let texts = all.iter().filter(|index| plan.schema.columns[**index].kind == Kind::Utf8).count();
    let is_in_buffers = matches!(plan.format, Format::Columns { .. });
    if all.len() > COLUMNS_MAX {
        let count = all.len();
        return invalid(format!(
            "the query uses {count} columns, but stages can use at most {COLUMNS_MAX}: ask for fewer"
        ));
    }
    if is_in_buffers && texts > BUFFERED_TEXTS_MAX {
        return invalid(format!(
            "the query uses {texts} columns of text, but stages can use at most {BUFFERED_TEXTS_MAX} in Arrow files: \
             ask for fewer"
        ));
    }
    Ok(())
}

fn own_steps(plan: &Plan) -> impl Iterator<Item = Step> {
    let filter = plan.own.filter.as_ref().map(|stage| ("filter", stage));
    let reduction = plan.own.reduction.as_ref().map(|reduction| ("reduction", &reduction.stage));
    let step = |(place, stage): (&str, &OwnStage)| Step {
        what: format!("{place} of your own: {}", stage.describe(plan)),
        place: Place::Stages,
        why_here: None,
    };
    filter.into_iter().chain(reduction).map(step)
}

fn source_step(format: &Format) -> Step {
    let what = match format {
        Format::Fixed { record_bytes, .. } => format!("read records of {record_bytes} bytes"),
        Format::Csv { .. } => "read lines of text".to_owned(),
        Format::Columns { .. } => "read the columns of batches".to_owned(),
    };
    Step { what, place: Place::Stages, why_here: None }
}

/// Splits a filter into conjuncts, without those that are always met.
fn flatten<'a>(predicate: &'a Predicate, to: &mut Vec<&'a Predicate>) {
    match predicate {
        Predicate::Constant(true) => {}
        Predicate::And(all) => all.iter().for_each(|one| flatten(one, to)),
        other => to.push(other),
    }
}

fn constant_bytes(condition: &conditions::Condition) -> usize {
    match &condition.operation {
        conditions::Operation::In(set) => set.len() * 8,
        conditions::Operation::Text(text) | conditions::Operation::Prefix(text) => text.len(),
        _ => 0,
    }
}

/// Checks whether stages can reduce; if not, returns the reason.
fn reduction_by_stages(plan: &Plan) -> Result<(), String> {
    match &plan.reduction {
        Reduction::Rows { .. } => Ok(()),
        Reduction::Groups { keys, aggregates } => {
            if keys.len() > KEYS_MAX {
                return Err(format!("stages group by {KEYS_MAX} columns at most"));
            }
            if !keys.iter().all(|key| matches!(key, Scalar::Column(_))) {
                return Err("stages group by columns only, no arithmetic".to_owned());
            }
            aggregates.iter().try_for_each(|aggregate| measurable(aggregate, plan))
        }
        Reduction::Top { by, count, .. } => {
            number_column(by, plan)?;
            if *count > TOP_MAX {
                return Err(format!("stages keep the first {TOP_MAX} rows at most"));
            }
            Ok(())
        }
        Reduction::Histogram { of, low, high, bins } => {
            let kind = number_column(of, plan)?;
            if *bins > BINS_MAX {
                return Err(format!("stages count {BINS_MAX} intervals at most"));
            }
            let (least, greatest) = order_form::domain(kind);
            let fits =
                |edge: f64| kind.is_float() || (edge >= least as f64 && edge < greatest as f64);
            if !fits(*low) || !fits(*high) {
                return Err("an end is outside the range of the integer column".to_owned());
            }
            Ok(())
        }
    }
}

fn number_column(of: &Scalar, plan: &Plan) -> Result<Kind, String> {
    let Scalar::Column(column) = of else {
        return Err("stages look at columns only, no arithmetic".to_owned());
    };
    let kind = plan.schema.columns[*column].kind;
    if kind == Kind::Utf8 { Err("stages compare numbers only here".to_owned()) } else { Ok(kind) }
}

fn measurable(aggregate: &Aggregate, plan: &Plan) -> Result<(), String> {
    if aggregate.measure == Measure::CountAll {
        return Ok(());
    }
    let Scalar::Column(column) = &aggregate.of else {
        return Err("stages aggregate columns only, no arithmetic".to_owned());
    };
    if plan.schema.columns[*column].kind == Kind::Utf8 {
        return match aggregate.measure {
            Measure::Count => Ok(()),
            _ => Err("stages aggregate numbers only".to_owned()),
        };
    }
    if has_variance(aggregate.measure) && !measures::is_narrow(&aggregate.of, &plan.schema) {
        return Err("stages compute the variance of integers of at most 32 bits only".to_owned());
    }
    Ok(())
}

/// The columns that stages use or answer.
fn columns(plan: &Plan, pushed: &Predicate, rest: &Predicate, reduces: bool) -> Vec<usize> {
    let mut columns = BTreeSet::new();
    columns_of_predicate(pushed, &mut columns);
    columns_of_predicate(rest, &mut columns);
    columns.extend(plan.own.columns());
    match &plan.reduction {
        // Stages find the rows; their answered columns are read afterwards.
        Reduction::Top { by, .. } if reduces => columns_of(by, &mut columns),
        _ => columns_of_answers(plan, &mut columns),
    }
    columns.into_iter().collect()
}

/// All columns of the files that a plan uses.
pub(crate) fn columns_of_plan(plan: &Plan) -> BTreeSet<usize> {
    let mut columns: BTreeSet<usize> = plan.own.columns().collect();
    columns_of_predicate(&plan.filter, &mut columns);
    columns_of_answers(plan, &mut columns);
    columns
}

/// The columns of the files that the answer is computed from.
pub(crate) fn columns_of_answers(plan: &Plan, to: &mut BTreeSet<usize>) {
    match &plan.own.reduction {
        Some(own) => to.extend(&own.stage.columns),
        None => columns_of_reduction(&plan.reduction, to),
    }
}

/// The columns that a reduction uses.
fn columns_of_reduction(of: &Reduction, to: &mut BTreeSet<usize>) {
    let mut add = |of: &Scalar| columns_of(of, to);
    match of {
        Reduction::Rows { columns, .. } => columns.iter().for_each(add),
        Reduction::Groups { keys, aggregates } => {
            keys.iter().for_each(&mut add);
            let of = aggregates.iter().filter(|one| one.measure != Measure::CountAll);
            of.for_each(|aggregate| add(&aggregate.of));
        }
        Reduction::Top { by, columns, .. } => {
            add(by);
            columns.iter().for_each(add);
        }
        Reduction::Histogram { of, .. } => add(of),
    }
}

pub(crate) fn columns_of(of: &Scalar, to: &mut BTreeSet<usize>) {
    match of {
        Scalar::Column(column) => {
            to.insert(*column);
        }
        Scalar::Literal(_) => {}
        Scalar::Convert(_, of) => columns_of(of, to),
        Scalar::Arithmetic(_, left, right) => {
            columns_of(left, to);
            columns_of(right, to);
        }
    }
}

pub(crate) fn columns_of_predicate(of: &Predicate, to: &mut BTreeSet<usize>) {
    match of {
        Predicate::Constant(_) => {}
        Predicate::Compare(_, left, right) => {
            columns_of(left, to);
            columns_of(right, to);
        }
        Predicate::In(of, _)
        | Predicate::StartsWith(of, _)
        | Predicate::IsNull(of)
        | Predicate::IsNan(of) => columns_of(of, to),
        Predicate::And(all) | Predicate::Or(all) => {
            all.iter().for_each(|one| columns_of_predicate(one, to));
        }
        Predicate::Not(not) => columns_of_predicate(not, to),
    }
}

fn invalid<T>(why: impl Into<String>) -> Result<T, PlanError> {
    Err(PlanError::Invalid(why.into()))
}

/// Checks that a plan is valid.
///
/// # Errors
/// The plan is invalid.
pub fn check(plan: &Plan) -> Result<(), PlanError> {
    check_format(plan)?;
    check_predicate(&plan.filter, plan)?;
    check_own(plan)?;
    let numbers = |all: &[Scalar]| all.iter().try_for_each(|of| check_scalar(of, plan));
    match &plan.reduction {
        Reduction::Rows { columns, .. } => numbers(columns),
        Reduction::Groups { keys, aggregates } => {
            numbers(keys)?;
            aggregates.iter().try_for_each(|aggregate| check_aggregate(aggregate, plan))
        }
        Reduction::Top { by, columns, count, .. } => {
            check_scalar(by, plan)?;
            if *count == 0 {
                return invalid("the query asks for the first 0 rows: ask for at least one");
            }
            numbers(columns)
        }
        Reduction::Histogram { of, low, high, bins } => {
            check_number(of, plan)?;
            if *bins == 0 || *bins > BINS_LIMIT {
                return invalid(format!("a histogram has 1 to {BINS_LIMIT} intervals"));
            }
            let ends = edges(*low, *high, *bins);
            let ascends = ends.windows(2).all(|edge| edge[0] < edge[1]);
            if !ascends || !ends.iter().all(|edge| edge.is_finite()) {
                return invalid(
                    "the ends of a histogram are two numbers, the lower one first, \
                                with room for each interval between them",
                );
            }
            Ok(())
        }
    }
}

/// Checks that own stages use columns of the files, and everything else the columns that exist after them.
fn check_own(plan: &Plan) -> Result<(), PlanError> {
    let answered = plan.own.reduction.as_ref().map_or(0, |own| own.answers);
    if plan.own.reduction.is_some() && (answered == 0 || answered >= plan.schema.columns.len()) {
        return invalid("the number of columns that the reduction answers is invalid");
    }
    let first = plan.file_columns();
    let is_number = |column: &Column| matches!(column.kind, Kind::U64 | Kind::I64 | Kind::F64);
    if !plan.schema.columns[first..].iter().all(is_number) {
        return invalid("a reduction answers numbers of the kinds u64, i64 and f64");
    }
    let (mut before, mut behind) = (BTreeSet::new(), BTreeSet::new());
    before.extend(plan.own.columns());
    columns_of_predicate(&plan.filter, &mut before);
    columns_of_reduction(&plan.reduction, &mut behind);
    if before.iter().any(|column| *column >= first) {
        return invalid("conditions and stages can only use columns of the files");
    }
    if plan.own.reduction.is_some() && behind.iter().any(|column| *column < first) {
        return invalid("after a reduction of your own, only the columns that it answers exist");
    }
    Ok(())
}

fn check_format(plan: &Plan) -> Result<(), PlanError> {
    let columns = &plan.schema.columns[..plan.file_columns()];
    match &plan.format {
        Format::Fixed { record_bytes, fields, .. } => {
            if *record_bytes == 0 || *record_bytes > READ_MAX_BYTES {
                return invalid(format!("a record has 1 to {READ_MAX_BYTES} bytes"));
            }
            if fields.len() != columns.len() {
                return invalid("the numbers of fields and columns differ");
            }
            let misplaced = fields.iter().zip(columns).find(|(field, column)| {
                let end = field.offset_bytes.checked_add(field.width_bytes);
                end.is_none_or(|end| end > *record_bytes)
                    || column.kind.width_bytes().is_some_and(|width| width != field.width_bytes)
            });
            match misplaced {
                Some((_, column)) => {
                    invalid(format!("column {} does not fit into a record", column.name))
                }
                None => Ok(()),
            }
        }
        Format::Columns { columns: known, .. } => match known.len() == columns.len() {
            true => Ok(()),
            false => invalid("the numbers of column buffers and columns differ"),
        },
        Format::Csv { delimiter, nulls, .. } => {
            if matches!(delimiter, b'"' | b'\n' | b'\r') {
                return invalid("quotes and line ends cannot be delimiters");
            }
            if nulls.len() > 64 || nulls.iter().any(|null| null.len() > 8 || null.contains('\0')) {
                return invalid("missing numbers have at most 64 texts of at most 8 bytes");
            }
            match columns.iter().find(|column| column.kind == Kind::F32) {
                Some(Column { name, .. }) => {
                    invalid(format!("column {name}: floating point numbers in CSV must be f64"))
                }
                None => Ok(()),
            }
        }
    }
}

fn check_scalar(of: &Scalar, plan: &Plan) -> Result<(), PlanError> {
    match of {
        Scalar::Column(column) if *column >= plan.schema.columns.len() => {
            invalid(format!("there is no column {column}"))
        }
        Scalar::Column(_) | Scalar::Literal(_) => Ok(()),
        Scalar::Convert(_, of) => check_number(of, plan),
        Scalar::Arithmetic(_, left, right) => {
            check_number(left, plan)?;
            check_number(right, plan)
        }
    }
}

fn check_number(of: &Scalar, plan: &Plan) -> Result<(), PlanError> {
    check_scalar(of, plan)?;
    match measures::is_text(of, &plan.schema) {
        true => invalid(format!("{} is text, not a number", describe_scalar(of, plan))),
        false => Ok(()),
    }
}

fn check_aggregate(aggregate: &Aggregate, plan: &Plan) -> Result<(), PlanError> {
    match aggregate.measure {
        Measure::CountAll => Ok(()),
        Measure::Count | Measure::Min | Measure::Max => check_scalar(&aggregate.of, plan),
        _ => check_number(&aggregate.of, plan),
    }
}

fn check_predicate(predicate: &Predicate, plan: &Plan) -> Result<(), PlanError> {
    let is_text = |of: &Scalar| measures::is_text(of, &plan.schema);
    let mismatch = |left: &Scalar, right: &Scalar| {
        let (left, right) = (describe_scalar(left, plan), describe_scalar(right, plan));
        invalid(format!(
            "{left} and {right}: compare text only with text, and numbers only with numbers"
        ))
    };
    match predicate {
        Predicate::Constant(_) => Ok(()),
        Predicate::Compare(_, left, right) => {
            check_scalar(left, plan)?;
            check_scalar(right, plan)?;
            let null = Scalar::Literal(Value::Null);
            let alike = is_text(left) == is_text(right) || *left == null || *right == null;
            if alike { Ok(()) } else { mismatch(left, right) }
        }
        Predicate::In(of, values) => {
            check_scalar(of, plan)?;
            let other = |value: &&Value| matches!(value, Value::Text(_)) != is_text(of);
            match values.iter().find(other) {
                Some(value) => mismatch(of, &Scalar::Literal(value.clone())),
                None => Ok(()),
            }
        }
        Predicate::StartsWith(of, _) => {
            check_scalar(of, plan)?;
            if is_text(of) {
                return Ok(());
            }
            invalid(format!("{} is not text", describe_scalar(of, plan)))
        }
        Predicate::IsNull(of) => check_scalar(of, plan),
        Predicate::IsNan(of) => check_number(of, plan),
        Predicate::And(all) | Predicate::Or(all) => {
            all.iter().try_for_each(|one| check_predicate(one, plan))
        }
        Predicate::Not(not) => check_predicate(not, plan),
    }
}
