//! Partial results: merged in the order of the files, and finished into a table.

use crate::eval::Overflow;
use crate::measures::{self, Summary, Wanted};
use crate::plan::{Aggregate, AnswerKind, Measure, Plan, Reduction, Scalar, Table, Value};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The result of the rows of some parts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Partial(pub(crate) State);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum State {
    /// The answered columns of each row.
    Rows(Vec<Vec<Value>>),
    Groups(#[serde(with = "as_list")] HashMap<Vec<Key>, Group>),
    /// The value that is compared and the answered columns, in order.
    Top(Vec<(Value, Vec<Value>)>),
    /// Counts.
    Histogram(Vec<u64>),
}

/// Serialises the map as a list: some formats only have maps with text keys.
mod as_list {
    use crate::partial::{Group, Key};
    use serde::{Deserialize, Deserializer, Serializer};
    use std::collections::HashMap;

    pub(super) fn serialize<S: Serializer>(
        groups: &HashMap<Vec<Key>, Group>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(groups)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<HashMap<Vec<Key>, Group>, D::Error> {
        Vec::deserialize(from).map(|groups: Vec<_>| groups.into_iter().collect())
    }
}

/// A key of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) enum Key {
    Null,
    Int(i128),
    /// The bits; all zeroes have one form, and so have all NaN.
    Float(u64),
    Text(String),
}

impl Key {
    pub(crate) fn of(value: Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Int(number) => Self::Int(number),
            Value::Float(number) if number.is_nan() => Self::Float(f64::NAN.to_bits()),
            // Adding 0.0 turns −0.0 into 0.0.
            Value::Float(number) => Self::Float((number + 0.0).to_bits()),
            Value::Text(text) => Self::Text(text),
        }
    }

    fn into_value(self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Int(number) => Value::Int(number),
            Self::Float(bits) => Value::Float(f64::from_bits(bits)),
            Self::Text(text) => Value::Text(text),
        }
    }
}

/// The state of a group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) rows: u64,
    /// By scalar.
    pub(crate) summaries: Vec<Summary>,
}

impl Group {
    pub(crate) fn merge(&mut self, other: &Self) -> Result<(), Overflow> {
        self.rows = self.rows.saturating_add(other.rows);
        let both = self.summaries.iter_mut().zip(&other.summaries);
        both.into_iter().try_for_each(|(one, other)| one.merge(other))
    }
}

/// Adds a group, merging it with the group of the same keys.
pub(crate) fn add_group(
    groups: &mut HashMap<Vec<Key>, Group>,
    keys: Vec<Key>,
    group: Group,
) -> Result<(), Overflow> {
    match groups.entry(keys) {
        Entry::Occupied(mut known) => known.get_mut().merge(&group)?,
        Entry::Vacant(place) => {
            place.insert(group);
        }
    }
    Ok(())
}

/// The reason why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FinishError {
    /// The partials belong to another plan.
    #[error("partial results of another query")]
    OfAnother,
    /// A number does not fit.
    #[error(transparent)]
    Overflow(#[from] Overflow),
}

impl Partial {
    /// The result of no rows.
    #[must_use]
    pub fn empty(plan: &Plan) -> Self {
        Self(match &plan.reduction {
            Reduction::Rows { .. } => State::Rows(Vec::new()),
            Reduction::Groups { .. } => State::Groups(HashMap::new()),
            Reduction::Top { .. } => State::Top(Vec::new()),
            Reduction::Histogram { bins, .. } => State::Histogram(vec![0; *bins as usize]),
        })
    }

    /// Whether it can belong to this plan: a partial from outside may not.
    #[must_use]
    pub fn fits(&self, plan: &Plan) -> bool {
        match (&self.0, &plan.reduction) {
            (State::Rows(rows), Reduction::Rows { columns, .. }) => {
                rows.iter().all(|row| row.len() == columns.len())
            }
            (State::Groups(groups), Reduction::Groups { keys, aggregates }) => {
                let wanted = measures::wanted(aggregates, &plan.schema).0.len();
                let is_whole = |one: &Summary| match &one.float_sum {
                    Some(sum) => sum.is_whole(),
                    None => true,
                };
                groups.iter().all(|(key, group)| {
                    let summaries = &group.summaries;
                    key.len() == keys.len()
                        && summaries.len() == wanted
                        && summaries.iter().all(is_whole)
                })
            }
            (State::Top(rows), Reduction::Top { columns, .. }) => {
                rows.iter().all(|(_, row)| row.len() == columns.len())
            }
            (State::Histogram(counts), Reduction::Histogram { bins, .. }) => {
                counts.len() == *bins as usize
            }
            _ => false,
        }
    }

    /// Number of rows of an answer that consists of rows of the files; else 0.
    pub(crate) fn rows(&self) -> u64 {
        match &self.0 {
            State::Rows(rows) => rows.len() as u64,
            _ => 0,
        }
    }

    /// Adds the result of later rows, in the order of the files.
    ///
    /// # Errors
    /// It belongs to another plan, or a number does not fit.
    pub fn merge(&mut self, plan: &Plan, behind: Self) -> Result<(), FinishError> {
        match (&mut self.0, behind.0) {
            (State::Rows(rows), State::Rows(mut behind)) => {
                rows.append(&mut behind);
                if let Reduction::Rows { limit: Some(limit), .. } = plan.reduction {
                    rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
                }
            }
            (State::Groups(groups), State::Groups(behind)) => {
                for (keys, group) in behind {
                    add_group(groups, keys, group)?;
                }
            }
            (State::Top(rows), State::Top(mut behind)) => {
                rows.append(&mut behind);
                cut(plan, rows);
            }
            (State::Histogram(counts), State::Histogram(behind))
                if counts.len() == behind.len() =>
            {
                counts.iter_mut().zip(behind).for_each(|(count, more)| {
                    *count = count.saturating_add(more);
                });
            }
            _ => return Err(FinishError::OfAnother),
        }
        Ok(())
    }

    /// Computes the answer.
    ///
    /// # Errors
    /// It belongs to another plan.
    pub fn finish(self, plan: &Plan) -> Result<Table, FinishError> {
        let kind = |of: &Scalar| measures::scalar_kind(of, plan);
        match (self.0, &plan.reduction) {
            (State::Rows(rows), Reduction::Rows { columns, .. }) => {
                Ok(Table { kinds: columns.iter().map(kind).collect(), rows })
            }
            (State::Groups(groups), Reduction::Groups { keys, aggregates }) => {
                let kinds = keys.iter().map(kind);
                let of = |aggregate| measures::answer_kind(aggregate, plan);
                let kinds = kinds.chain(aggregates.iter().map(of)).collect();
                Ok(Table { kinds, rows: group_rows(plan, groups, keys, aggregates)? })
            }
            (State::Top(rows), Reduction::Top { columns, .. }) => Ok(Table {
                kinds: columns.iter().map(kind).collect(),
                rows: rows.into_iter().map(|(_, row)| row).collect(),
            }),
            (State::Histogram(counts), Reduction::Histogram { low, high, bins, .. }) => {
                let edges = edges(*low, *high, *bins);
                let rows = counts.iter().zip(edges.windows(2)).map(|(count, edge)| {
                    let count = Value::Int(i128::from(*count));
                    vec![Value::Float(edge[0]), Value::Float(edge[1]), count]
                });
                let kinds = vec![AnswerKind::Float, AnswerKind::Float, AnswerKind::Count];
                Ok(Table { kinds, rows: rows.collect() })
            }
            _ => Err(FinishError::OfAnother),
        }
    }
}

/// The ends of the intervals of a histogram, ascending: one more than there are intervals.
pub(crate) fn edges(low: f64, high: f64, bins: u32) -> Vec<f64> {
    let at = |index: u32| {
        let share = f64::from(index) / f64::from(bins);
        if index == bins { high } else { low + (high - low) * share }
    };
    (0..=bins).map(at).collect()
}

/// Sorts the rows of a top, and keeps only as many as are wanted.
fn cut(plan: &Plan, rows: &mut Vec<(Value, Vec<Value>)>) {
    let Reduction::Top { descending, count, .. } = plan.reduction else { return };
    rows.sort_by(|(one, _), (other, _)| top_order(one, other, descending));
    rows.truncate(count as usize);
}

/// Both zeroes are equal, NaN comes behind all numbers, and missing values come last.
pub(crate) fn top_order(one: &Value, other: &Value, descending: bool) -> Ordering {
    let rank = |value: &Value| match value {
        Value::Null => 2,
        value if value.is_nan() => 1,
        _ => 0,
    };
    match (rank(one), rank(other)) {
        (0, 0) => {
            let order = one.compare(other).unwrap_or(Ordering::Equal);
            if descending { order.reverse() } else { order }
        }
        (one, other) => one.cmp(&other),
    }
}

/// The rows of groups, in an order of their keys: a limit takes the same groups in each run.
fn group_rows(
    plan: &Plan,
    mut groups: HashMap<Vec<Key>, Group>,
    keys: &[Scalar],
    aggregates: &[Aggregate],
) -> Result<Vec<Vec<Value>>, FinishError> {
    let (wanted, indices) = measures::wanted(aggregates, &plan.schema);
    let narrow = measures::narrow(plan, &wanted);
    if keys.is_empty() && groups.is_empty() {
        let summaries = vec![Summary::default(); wanted.len()];
        groups.insert(Vec::new(), Group { rows: 0, summaries });
    }
    let value = |group: &Group, aggregate: &Aggregate, index: &Option<usize>| {
        let Some(index) = *index else { return Ok(Value::Int(i128::from(group.rows))) };
        let summary = group.summaries.get(index).ok_or(FinishError::OfAnother)?;
        let is_float = measures::is_float(&aggregate.of, &plan.schema);
        Ok::<_, FinishError>(summary.measure(aggregate.measure, narrow[index], is_float))
    };
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    let rows = groups.into_iter().map(|(keys, group)| {
        let measures = aggregates.iter().zip(&indices).map(|(of, index)| value(&group, of, index));
        let measures = measures.collect::<Result<Vec<_>, _>>()?;
        let values: Vec<_> = keys.into_iter().map(Key::into_value).chain(measures).collect();
        Ok::<_, FinishError>(values)
    });
    rows.collect()
}

/// Reduces rows on the host, one by one, in the order of the files.
#[derive(Debug)]
pub(crate) struct Reducer<'a> {
    plan: &'a Plan,
    wanted: Vec<Wanted>,
    narrow: Vec<bool>,
    edges: Vec<f64>,
}

impl<'a> Reducer<'a> {
    pub(crate) fn new(plan: &'a Plan) -> Self {
        let wanted = match &plan.reduction {
            Reduction::Groups { aggregates, .. } => measures::wanted(aggregates, &plan.schema).0,
            _ => Vec::new(),
        };
        let edges = match plan.reduction {
            Reduction::Histogram { low, high, bins, .. } => edges(low, high, bins),
            _ => Vec::new(),
        };
        Self { plan, narrow: measures::narrow(plan, &wanted), wanted, edges }
    }

    /// Whether the result does not depend on the order of rows.
    pub(crate) fn takes_any_order(&self) -> bool {
        match self.plan.reduction {
            Reduction::Rows { .. } | Reduction::Top { .. } => false,
            // The rounding of a variance of floating point numbers depends on the order.
            Reduction::Groups { .. } => {
                let mut all = self.wanted.iter().zip(&self.narrow);
                all.all(|(wanted, narrow)| *narrow || !wanted.variance)
            }
            Reduction::Histogram { .. } => true,
        }
    }

    /// Adds a row, which has a value for each column of the schema.
    pub(crate) fn add(&self, to: &mut Partial, row: &[Value]) -> Result<(), Overflow> {
        let values =
            |of: &[Scalar]| of.iter().map(|of| of.value(row)).collect::<Result<Vec<_>, _>>();
        match (&mut to.0, &self.plan.reduction) {
            (State::Rows(rows), Reduction::Rows { columns, limit })
                if limit.is_none_or(|limit| (rows.len() as u64) < limit) =>
            {
                rows.push(values(columns)?);
            }
            (State::Groups(groups), Reduction::Groups { keys, .. }) => {
                let keys = values(keys)?.into_iter().map(Key::of).collect();
                let group = groups.entry(keys).or_default();
                group.summaries.resize_with(self.wanted.len(), Summary::default);
                group.rows += 1;
                let summaries = group.summaries.iter_mut().zip(&self.wanted).zip(&self.narrow);
                for ((summary, wanted), narrow) in summaries {
                    summary.add(wanted, *narrow, &wanted.of.value(row)?)?;
                }
            }
            (State::Top(rows), Reduction::Top { by, columns, count, .. }) => {
                rows.push((by.value(row)?, values(columns)?));
                if rows.len() >= 2 * (*count as usize).max(512) {
                    cut(self.plan, rows);
                }
            }
            (State::Histogram(counts), Reduction::Histogram { of, .. }) => {
                let value = of.value(row)?;
                let place = self.interval(&value);
                if let Some(count) = place.and_then(|place| counts.get_mut(place)) {
                    *count += 1;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The interval that contains a number.
    fn interval(&self, value: &Value) -> Option<usize> {
        let not_above =
            |edge: &f64| value.compare(&Value::Float(*edge)).is_some_and(Ordering::is_ge);
        let last = self.edges.last()?;
        if !value.compare(&Value::Float(*last)).is_some_and(Ordering::is_le) {
            return None;
        }
        let at = self.edges.partition_point(not_above);
        at.checked_sub(1).map(|at| at.min(self.edges.len().saturating_sub(2)))
    }

    /// Completes a sequence of rows.
    pub(crate) fn settle(&self, partial: &mut Partial) {
        if let State::Top(rows) = &mut partial.0 {
            cut(self.plan, rows);
        }
    }
}

/// Whether a measure is a variance or a deviation.
pub(crate) fn has_variance(measure: Measure) -> bool {
    matches!(measure, Measure::Variance { .. } | Measure::Deviation { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Column, Format, Kind, OwnStages, Predicate, Schema};

    #[test]
    fn groups_of_another_query_have_no_answer() {
        let x = Column { name: "x".to_owned(), kind: Kind::F64, nullable: false };
        let sum = Aggregate { measure: Measure::Sum, of: Scalar::Column(0) };
        let plan = Plan {
            schema: Schema { columns: vec![x] },
            format: Format::Csv { delimiter: b',', header_bytes: 0, nulls: Vec::new() },
            filter: Predicate::Constant(true),
            reduction: Reduction::Groups { keys: Vec::new(), aggregates: vec![sum] },
            own: OwnStages::default(),
        };
        let groups = HashMap::from([(Vec::new(), Group { rows: 3, summaries: Vec::new() })]);
        let finished = Partial(State::Groups(groups)).finish(&plan);
        assert_eq!(finished, Err(FinishError::OfAnother));
    }

    /// A limit must take the same groups in each run.
    #[test]
    fn groups_are_ordered() {
        let n = Column { name: "n".to_owned(), kind: Kind::I64, nullable: true };
        let plan = Plan {
            schema: Schema { columns: vec![n] },
            format: Format::Csv { delimiter: b',', header_bytes: 0, nulls: Vec::new() },
            filter: Predicate::Constant(true),
            reduction: Reduction::Groups { keys: vec![Scalar::Column(0)], aggregates: Vec::new() },
            own: OwnStages::default(),
        };
        let group = |key| (vec![key], Group { rows: 1, summaries: Vec::new() });
        let groups = (-50..50).map(|n| group(Key::Int(n))).chain([group(Key::Null)]).collect();
        let table = Partial(State::Groups(groups)).finish(&plan).expect("groups of this query");
        let expected: Vec<_> =
            [vec![Value::Null]].into_iter().chain((-50..50).map(|n| vec![Value::Int(n)])).collect();
        assert_eq!(table.rows, expected);
    }

    #[test]
    fn missing_values_come_behind_nan() {
        let nan = Value::Float(f64::NAN);
        let values = [Value::Null, nan, Value::Float(1.0), Value::Float(2.0)];
        for (descending, expected) in [(false, [2, 3, 1, 0]), (true, [3, 2, 1, 0])] {
            let mut found = [0_usize, 1, 2, 3];
            found.sort_by(|one, other| top_order(&values[*one], &values[*other], descending));
            assert_eq!(found, expected, "{descending}");
        }
    }
}
