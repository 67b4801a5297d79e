//! Measures of the values of a group.

use crate::eval::Overflow;
use crate::exact::ExactSum;
use crate::plan::Conversion;
use crate::plan::{Aggregate, AnswerKind, Kind, Measure, Plan, Scalar, Schema, Value};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// The values that must be collected for a scalar, for all aggregates of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) of: Scalar,
    pub(crate) count: bool,
    pub(crate) range: bool,
    pub(crate) sum: bool,
    pub(crate) variance: bool,
}

/// A scalar without casts that change no value: stages omit them as well.
fn plain<'a>(of: &'a Scalar, schema: &Schema) -> &'a Scalar {
    let Scalar::Convert(conversion, inner) = of else { return of };
    let inner = plain(inner, schema);
    let is_same = match (conversion, inner) {
        (Conversion::Double, inner) => is_float(inner, schema),
        (Conversion::Integer, Scalar::Column(index)) => schema
            .columns
            .get(*index)
            .is_some_and(|column| column.kind.is_integer() && column.kind != Kind::U64),
        _ => false,
    };
    if is_same { inner } else { of }
}

/// The distinct scalars of the aggregates, and for each aggregate the index of its scalar; None for a count of rows.
pub(crate) fn wanted(
    aggregates: &[Aggregate],
    schema: &Schema,
) -> (Vec<Wanted>, Vec<Option<usize>>) {
    let mut all: Vec<Wanted> = Vec::new();
    let mut of = |aggregate: &Aggregate| {
        if aggregate.measure == Measure::CountAll {
            return None;
        }
        let of = plain(&aggregate.of, schema);
        let known = all.iter().position(|wanted| wanted.of.is(of));
        let index = known.unwrap_or_else(|| {
            let of = of.clone();
            all.push(Wanted { of, count: true, range: false, sum: false, variance: false });
            all.len() - 1
        });
        let wanted = &mut all[index];
        match aggregate.measure {
            Measure::CountAll | Measure::Count => {}
            Measure::Sum | Measure::Mean => wanted.sum = true,
            Measure::Min | Measure::Max => wanted.range = true,
            Measure::Variance { .. } | Measure::Deviation { .. } => wanted.variance = true,
        }
        Some(index)
    };
    let indices = aggregates.iter().map(&mut of).collect();
    (all, indices)
}

/// Whether values are integers of at most 32 bits, whose variance is computed exactly.
pub(crate) fn is_narrow(of: &Scalar, schema: &Schema) -> bool {
    let Scalar::Column(index) = of else { return false };
    let kind = schema.columns.get(*index).map(|column| column.kind);
    kind.is_some_and(|kind| kind.is_integer() && kind.width_bytes() <= Some(4))
}

/// Mean and sum of squared differences from the mean, which can be merged (Chan).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    /// The moments of one value. An infinity or NaN has no differences.
    fn of(mean: f64) -> Self {
        let squares = if mean.is_finite() { 0.0 } else { f64::NAN };
        Self { count: 1.0, mean, squares }
    }

    fn merge(&mut self, other: &Self) {
        if other.count == 0.0 {
            return;
        }
        // Without a mean there is no distance to it.
        if self.count == 0.0 {
            *self = *other;
            return;
        }
        let count = self.count + other.count;
        let share = other.count / count;
        let distance = other.mean - self.mean;
        if distance.is_infinite() {
            // The distance of two finite means can be infinite; the merged mean lies between them.
            self.mean = self.mean * (self.count / count) + other.mean * share;
        } else {
            self.mean += distance * share;
        }
        self.squares += other.squares + distance * distance * self.count * share;
        self.count = count;
    }
}

/// A summary of the values of a scalar.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// Values that are not missing.
    pub(crate) count: u64,
    /// Minimum and maximum, without NaN.
    pub(crate) range: Option<(Value, Value)>,
    /// Sum of integers.
    pub(crate) sum: i128,
    /// Sum of floating point numbers.
    pub(crate) float_sum: Option<ExactSum>,
    /// The sum of the squares of narrow integers.
    pub(crate) squares: i128,
    /// Moments of all other numbers whose variance is wanted.
    pub(crate) moments: Moments,
}

/// The order of values of one kind: −0.0 is less than 0.0. NaN must not occur.
pub(crate) fn order(one: &Value, other: &Value) -> Ordering {
    match (one, other) {
        (Value::Float(one), Value::Float(other)) => one.total_cmp(other),
        _ => one.compare(other).unwrap_or(Ordering::Equal),
    }
}

impl Summary {
    /// Adds a value of a row.
    pub(crate) fn add(
        &mut self,
        wanted: &Wanted,
        narrow: bool,
        value: &Value,
    ) -> Result<(), Overflow> {
        if *value == Value::Null {
            return Ok(());
        }
        self.count += 1;
        if wanted.range && !value.is_nan() {
            self.widen(value, value);
        }
        match value {
            Value::Int(number) => {
                if wanted.sum || (wanted.variance && narrow) {
                    self.sum = self.sum.checked_add(*number).ok_or(Overflow::Arithmetic)?;
                }
                if wanted.variance && narrow {
                    self.squares += number * number;
                }
            }
            Value::Float(number) => {
                if wanted.sum {
                    self.float_sum.get_or_insert_default().add(*number);
                }
            }
            Value::Null | Value::Text(_) => {}
        }
        if let Some(mean) = value.as_float().filter(|_| wanted.variance && !narrow) {
            self.moments.merge(&Moments::of(mean));
        }
        Ok(())
    }

    /// Extends the range to include a minimum and a maximum.
    pub(crate) fn widen(&mut self, least: &Value, greatest: &Value) {
        let Some((known_least, known_greatest)) = &mut self.range else {
            self.range = Some((least.clone(), greatest.clone()));
            return;
        };
        if order(least, known_least).is_lt() {
            *known_least = least.clone();
        }
        if order(greatest, known_greatest).is_gt() {
            *known_greatest = greatest.clone();
        }
    }

    /// Adds a summary of other values.
    pub(crate) fn merge(&mut self, other: &Self) -> Result<(), Overflow> {
        self.count = self.count.saturating_add(other.count);
        if let Some((least, greatest)) = &other.range {
            self.widen(least, greatest);
        }
        self.sum = self.sum.checked_add(other.sum).ok_or(Overflow::Arithmetic)?;
        if let Some(sum) = &other.float_sum {
            self.float_sum.get_or_insert_default().merge(sum);
        }
        // Sums of integers of at most 32 bits: only a malicious target can make them wrap.
        self.squares = self.squares.wrapping_add(other.squares);
        self.moments.merge(&other.moments);
        Ok(())
    }

    /// The value of an aggregate.
    pub(crate) fn measure(&self, measure: Measure, narrow: bool, is_float: bool) -> Value {
        if matches!(measure, Measure::Count | Measure::CountAll) {
            return Value::Int(i128::from(self.count));
        }
        if self.count == 0 {
            return Value::Null;
        }
        let count = self.count as f64;
        let sum = self.float_sum.as_ref();
        match measure {
            Measure::Count | Measure::CountAll => Value::Null,
            Measure::Sum if is_float => Value::Float(sum.map_or(self.sum as f64, ExactSum::value)),
            Measure::Sum => Value::Int(self.sum),
            Measure::Mean => {
                Value::Float(sum.map_or(self.sum as f64 / count, |sum| sum.mean(count)))
            }
            Measure::Min => self.range.as_ref().map_or(Value::Float(f64::NAN), |(v, _)| v.clone()),
            Measure::Max => self.range.as_ref().map_or(Value::Float(f64::NAN), |(_, v)| v.clone()),
            Measure::Variance { ddof } => self.variance(narrow, ddof),
            Measure::Deviation { ddof } => match self.variance(narrow, ddof) {
                Value::Float(variance) => Value::Float(variance.sqrt()),
                missing => missing,
            },
        }
    }

    fn variance(&self, narrow: bool, ddof: u8) -> Value {
        if self.count <= u64::from(ddof) {
            return Value::Null;
        }
        let squares = if narrow { self.exact_squares() } else { self.moments.squares };
        Value::Float(squares / (self.count - u64::from(ddof)) as f64)
    }

    /// The sum of squared differences from the mean, for narrow integers: computed around the integer part of the mean,
    /// so that no precision is lost.
    fn exact_squares(&self) -> f64 {
        let count = i128::from(self.count);
        let (whole, rest) = (self.sum.div_euclid(count), self.sum.rem_euclid(count));
        // Only numbers that no rows can have wrap.
        let wrapped = whole.wrapping_mul(self.sum).wrapping_add(whole.wrapping_mul(rest));
        let around = self.squares.wrapping_sub(wrapped);
        let less = rest.wrapping_mul(rest);
        match around.checked_mul(count).and_then(|all| all.checked_sub(less)) {
            Some(all) => {
                let (whole, rest) = (all.div_euclid(count), all.rem_euclid(count));
                whole as f64 + rest as f64 / count as f64
            }
            None => around as f64 - less as f64 / count as f64,
        }
    }
}

/// The kind of an aggregate's column in the answer.
pub(crate) fn answer_kind(aggregate: &Aggregate, plan: &Plan) -> AnswerKind {
    match aggregate.measure {
        Measure::CountAll | Measure::Count => AnswerKind::Count,
        Measure::Sum if is_float(&aggregate.of, &plan.schema) => AnswerKind::Float,
        Measure::Sum => AnswerKind::Sum,
        Measure::Min | Measure::Max => scalar_kind(&aggregate.of, plan),
        Measure::Mean | Measure::Variance { .. } | Measure::Deviation { .. } => AnswerKind::Float,
    }
}

/// The kind of a scalar's values in an answer.
pub(crate) fn scalar_kind(of: &Scalar, plan: &Plan) -> AnswerKind {
    match of {
        Scalar::Column(index) => plan.format.column_kind(&plan.schema, *index),
        Scalar::Literal(Value::Text(_)) => AnswerKind::Same(Kind::Utf8),
        Scalar::Convert(Conversion::Begin(..), of) => scalar_kind(of, plan),
        Scalar::Convert(Conversion::Integer | Conversion::Part(..), _) => {
            AnswerKind::Same(Kind::I64)
        }
        _ if is_float(of, &plan.schema) => AnswerKind::Float,
        _ => AnswerKind::Sum,
    }
}

/// Whether its values are floating point numbers.
pub(crate) fn is_float(of: &Scalar, schema: &Schema) -> bool {
    use crate::plan::Arithmetic::Divide;
    match of {
        Scalar::Column(index) => {
            schema.columns.get(*index).is_some_and(|column| column.kind.is_float())
        }
        Scalar::Literal(value) => matches!(value, Value::Float(_)),
        Scalar::Convert(conversion, _) => *conversion == Conversion::Double,
        Scalar::Arithmetic(operation, left, right) => {
            *operation == Divide || is_float(left, schema) || is_float(right, schema)
        }
    }
}

/// Whether its values are text.
pub(crate) fn is_text(of: &Scalar, schema: &Schema) -> bool {
    match of {
        Scalar::Column(index) => {
            schema.columns.get(*index).is_none_or(|column| column.kind == Kind::Utf8)
        }
        Scalar::Literal(value) => matches!(value, Value::Text(_)),
        Scalar::Arithmetic(..) | Scalar::Convert(..) => false,
    }
}

/// For each scalar, whether its values are narrow integers.
pub(crate) fn narrow(plan: &Plan, wanted: &[Wanted]) -> Vec<bool> {
    wanted.iter().map(|wanted| is_narrow(&wanted.of, &plan.schema)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wanted() -> Wanted {
        Wanted { of: Scalar::Column(0), count: true, range: false, sum: false, variance: true }
    }

    /// The variance of several parts, merged in their order.
    fn variance(parts: &[&[f64]]) -> f64 {
        let mut all = Summary::default();
        for part in parts {
            let mut some = Summary::default();
            part.iter().for_each(|number| {
                some.add(&wanted(), false, &Value::Float(*number)).expect("no sum");
            });
            all.merge(&some).expect("no sum");
        }
        match all.measure(Measure::Variance { ddof: 0 }, false, true) {
            Value::Float(variance) => variance,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn variances_of_large_numbers_are_numbers() {
        const GREAT: f64 = 1.5e154;
        assert_eq!(variance(&[&[GREAT]]), 0.0);
        assert_eq!(variance(&[&[], &[f64::MAX, f64::MAX], &[]]), 0.0);
        let near = 1e150;
        let found = variance(&[&[GREAT, GREAT + near], &[GREAT + 2.0 * near]]);
        assert!((found / (near * near * 2.0 / 3.0) - 1.0).abs() < 1e-3, "{found}");
        // Values and distances beyond the largest double.
        assert_eq!(variance(&[&[1e200, 3e200], &[2e200]]), f64::INFINITY);
        let ends = [f64::MAX, -f64::MAX, f64::MAX, f64::MAX, -f64::MAX, 0.0];
        assert_eq!(variance(&[&ends]), f64::INFINITY);
        assert_eq!(variance(&[&ends, &ends[1..], &ends]), f64::INFINITY);
    }

    #[test]
    fn variances_of_infinities_and_nan_are_nan() {
        for numbers in [&[f64::INFINITY][..], &[f64::NAN], &[1.0, f64::NEG_INFINITY, 2.0]] {
            assert!(variance(&[numbers]).is_nan(), "{numbers:?}");
            assert!(variance(&[&[1.0], numbers, &[1e200]]).is_nan(), "{numbers:?}");
        }
    }

    proptest! {
        /// Numbers of about the same magnitude, whose squares may overflow, compared with the sum of the squared
        /// distances.
        #[test]
        fn variances_follow_their_definition(
            units in proptest::collection::vec(-1000_i32..1000, 1..40), exponent in -200_i32..307, cut in 0_usize..40,
        ) {
            let unit = 10_f64.powi(exponent - 3);
            let numbers: Vec<f64> = units.iter().map(|number| f64::from(*number) * unit).collect();
            let mean = units.iter().map(|number| f64::from(*number)).sum::<f64>() / units.len() as f64;
            let squares: f64 = units.iter().map(|number| (f64::from(*number) - mean).powi(2)).sum();
            let expected = squares / units.len() as f64 * unit * unit;
            let (first, second) = numbers.split_at(cut.min(numbers.len()));
            let found = variance(&[first, second]);
            let is_near = (found - expected).abs() <= expected * 1e-9 || found == expected;
            // Close to the largest double, either may be.
            prop_assert!(is_near || expected.max(found) > 1e307 || expected < 1e-300, "{found} {expected}");
            prop_assert!(!found.is_nan());
        }
    }
}
