//! Compiles predicates for the filter stage (`functions/query/filter.h`).

use crate::order_form;
use crate::plan::{Compare, Kind, Predicate, Scalar, Schema, Value};

/// Maximum number of masks at a time.
const MASKS_MAX: usize = 4;
/// Maximum numbers in an in-set: they are compared one by one.
const SET_MAX: usize = 64;

/// The operation of a condition.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operation {
    RangeKeep,
    Range,
    In(Vec<u64>),
    /// Bit 0 of the outcome accepts less, bit 1 equal, bit 2 greater.
    Text(String),
    Prefix(String),
    Null,
    And,
    Or,
    Not,
    Keep,
}

impl Operation {
    /// Its number.
    pub(crate) const fn code(&self) -> u8 {
        match self {
            Self::RangeKeep => 0,
            Self::Range => 1,
            Self::In(_) => 2,
            Self::Text(_) => 3,
            Self::Prefix(_) => 4,
            Self::Null => 5,
            Self::And => 6,
            Self::Or => 7,
            Self::Not => 8,
            Self::Keep => 9,
        }
    }
}

/// A condition in postfix order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Condition {
    pub(crate) operation: Operation,
    /// Index in the schema.
    pub(crate) column: usize,
    pub(crate) low: u64,
    pub(crate) high: u64,
    pub(crate) outcome: u8,
}

impl Condition {
    const fn of(operation: Operation, column: usize) -> Self {
        Self { operation, column, low: 0, high: u64::MAX, outcome: 0 }
    }

    const fn range(column: usize, low: u64, high: u64, outside: bool) -> Self {
        Self { operation: Operation::Range, column, low, high, outcome: outside as u8 }
    }

    /// Whether it refers to one of these columns, or to none.
    pub(crate) fn is_of(&self, columns: &[usize]) -> bool {
        use Operation::{And, Keep, Not, Or};
        matches!(self.operation, And | Or | Not | Keep) || columns.contains(&self.column)
    }

    /// Met by each value that is present, or by none.
    const fn constant(column: usize, is_met: bool) -> Self {
        Self::range(column, 0, u64::MAX, !is_met)
    }
}

/// The conditions of one conjunct of the filter, including those that keep the rows that meet it; or the reason why
/// stages cannot evaluate it.
pub(crate) fn conjunct(predicate: &Predicate, schema: &Schema) -> Result<Vec<Condition>, String> {
    let mut conditions = Vec::new();
    let masks = push(predicate, schema, &mut conditions)?;
    if masks > MASKS_MAX {
        return Err("conditions are nested too deeply".to_owned());
    }
    match &mut conditions[..] {
        [only] if only.operation == Operation::Range => only.operation = Operation::RangeKeep,
        _ => conditions.push(Condition::of(Operation::Keep, 0)),
    }
    Ok(conditions)
}

/// Maximum number of masks that a filter has at a time.
pub(crate) fn masks(conditions: &[Condition]) -> usize {
    let (mut depth, mut most) = (0_usize, 0);
    for condition in conditions {
        match condition.operation {
            Operation::RangeKeep | Operation::Not => {}
            Operation::And | Operation::Or | Operation::Keep => depth = depth.saturating_sub(1),
            _ => depth += 1,
        }
        most = most.max(depth);
    }
    most
}

/// Appends conditions that make one mask; returns how many masks that takes.
fn push(predicate: &Predicate, schema: &Schema, to: &mut Vec<Condition>) -> Result<usize, String> {
    match predicate {
        Predicate::Constant(_) => Err("a condition that does not depend on the row".to_owned()),
        Predicate::Compare(compare, Scalar::Column(column), Scalar::Literal(value)) => {
            to.push(comparison(*compare, *column, value, schema)?);
            Ok(1)
        }
        Predicate::Compare(compare, Scalar::Literal(value), Scalar::Column(column)) => {
            to.push(comparison(turned(*compare), *column, value, schema)?);
            Ok(1)
        }
        Predicate::Compare(..) => Err("stages compare columns with constants only".to_owned()),
        Predicate::In(Scalar::Column(column), values) => push_in(*column, values, schema, to),
        Predicate::StartsWith(Scalar::Column(column), prefix) => {
            let operation = Operation::Prefix(prefix.clone());
            to.push(Condition::of(operation, *column));
            Ok(1)
        }
        Predicate::IsNull(Scalar::Column(column)) => {
            to.push(Condition::of(Operation::Null, *column));
            Ok(1)
        }
        Predicate::IsNan(Scalar::Column(column)) => {
            let is_float = kind(schema, *column).is_float();
            let nan = order_form::NAN;
            to.push(match is_float {
                true => Condition::range(*column, nan, nan, false),
                false => Condition::constant(*column, false),
            });
            Ok(1)
        }
        Predicate::In(..)
        | Predicate::StartsWith(..)
        | Predicate::IsNull(_)
        | Predicate::IsNan(_) => Err("stages test columns only, no arithmetic".to_owned()),
        Predicate::And(all) => push_all(all, schema, &Operation::And, to),
        Predicate::Or(all) => push_all(all, schema, &Operation::Or, to),
        Predicate::Not(not) => {
            let masks = push(not, schema, to)?;
            to.push(Condition::of(Operation::Not, 0));
            Ok(masks)
        }
    }
}

fn push_all(
    all: &[Predicate],
    schema: &Schema,
    operation: &Operation,
    to: &mut Vec<Condition>,
) -> Result<usize, String> {
    let mut masks = 0;
    for (index, one) in all.iter().enumerate() {
        let taken = push(one, schema, to)?;
        masks = masks.max(taken + usize::from(index > 0));
        if index > 0 {
            to.push(Condition::of(operation.clone(), 0));
        }
    }
    if all.is_empty() { Err("a condition without parts".to_owned()) } else { Ok(masks) }
}

fn push_in(
    column: usize,
    values: &[Value],
    schema: &Schema,
    to: &mut Vec<Condition>,
) -> Result<usize, String> {
    if kind(schema, column) == Kind::Utf8 {
        let equal = |value: &Value| {
            let (column, value) = (Scalar::Column(column), Scalar::Literal(value.clone()));
            Predicate::Compare(Compare::Equal, column, value)
        };
        let all: Vec<_> = values.iter().map(equal).collect();
        return push_all(&all, schema, &Operation::Or, to);
    }
    let mut set = Vec::new();
    for value in values {
        let equal = comparison(Compare::Equal, column, value, schema)?;
        // Otherwise no value of the column can equal it.
        if equal.outcome == 0 && equal.high - equal.low <= 1 {
            set.extend(equal.low..=equal.high);
        }
    }
    if set.len() > SET_MAX {
        return Err(format!("stages compare with {SET_MAX} values at most"));
    }
    to.push(match set.is_empty() {
        true => Condition::constant(column, false),
        false => Condition::of(Operation::In(set), column),
    });
    Ok(1)
}

fn kind(schema: &Schema, column: usize) -> Kind {
    schema.columns.get(column).map_or(Kind::Utf8, |column| column.kind)
}

pub(crate) const fn turned(compare: Compare) -> Compare {
    match compare {
        Compare::Less => Compare::Greater,
        Compare::AtMost => Compare::AtLeast,
        Compare::Greater => Compare::Less,
        Compare::AtLeast => Compare::AtMost,
        same => same,
    }
}

/// A comparison of a column with a constant.
fn comparison(
    compare: Compare,
    column: usize,
    value: &Value,
    schema: &Schema,
) -> Result<Condition, String> {
    let kind = kind(schema, column);
    match value {
        Value::Null => Err("a comparison with NULL, which is never true".to_owned()),
        Value::Text(text) => Ok(text_comparison(compare, column, text)),
        Value::Float(number) if number.is_nan() => {
            Ok(Condition::constant(column, compare == Compare::NotEqual))
        }
        Value::Float(number) if kind.is_float() => Ok(float_comparison(compare, column, *number)),
        Value::Int(number) if kind.is_float() => {
            let float = *number as f64;
            match value.compare(&Value::Float(float)) {
                Some(std::cmp::Ordering::Equal) => Ok(float_comparison(compare, column, float)),
                _ => Err("this integer has no exact floating point number".to_owned()),
            }
        }
        Value::Int(number) => Ok(int_comparison(compare, column, kind, *number)),
        Value::Float(number) => {
            // Beyond all 64-bit integers the distance makes no difference.
            let number = number.clamp(-1e30, 1e30);
            let (floor, is_whole) = (number.floor() as i128, number.floor() == number);
            Ok(match compare {
                Compare::Equal if !is_whole => Condition::constant(column, false),
                Compare::NotEqual if !is_whole => Condition::constant(column, true),
                Compare::Less if !is_whole => int_comparison(Compare::AtMost, column, kind, floor),
                Compare::AtLeast if !is_whole => {
                    int_comparison(Compare::Greater, column, kind, floor)
                }
                compare => int_comparison(compare, column, kind, floor),
            })
        }
    }
}

fn text_comparison(compare: Compare, column: usize, text: &str) -> Condition {
    let outcome = match compare {
        Compare::Less => 1,
        Compare::Equal => 2,
        Compare::AtMost => 3,
        Compare::Greater => 4,
        Compare::NotEqual => 5,
        Compare::AtLeast => 6,
    };
    Condition { outcome, ..Condition::of(Operation::Text(text.to_owned()), column) }
}

fn int_comparison(compare: Compare, column: usize, kind: Kind, number: i128) -> Condition {
    let (least, greatest) = order_form::domain(kind);
    let (low, high) = match compare {
        Compare::Equal | Compare::NotEqual => (number, number),
        Compare::Less => (least, number.saturating_sub(1)),
        Compare::AtMost => (least, number),
        Compare::Greater => (number.saturating_add(1), greatest),
        Compare::AtLeast => (number, greatest),
    };
    let outside = compare == Compare::NotEqual;
    let (low, high) = (low.max(least), high.min(greatest));
    if low > high {
        return Condition::constant(column, outside);
    }
    let order = |number| order_form::of_int(kind, number);
    Condition::range(column, order(low), order(high), outside)
}

fn float_comparison(compare: Compare, column: usize, number: f64) -> Condition {
    // Both zeroes are equal.
    let (lower, upper) = if number == 0.0 { (-0.0, 0.0) } else { (number, number) };
    let (lower, upper) = (order_form::of_float(lower), order_form::of_float(upper));
    let least = order_form::of_float(f64::NEG_INFINITY);
    let greatest = order_form::of_float(f64::INFINITY);
    let (low, high) = match compare {
        Compare::Equal | Compare::NotEqual => (lower, upper),
        Compare::Less => (least, lower - 1),
        Compare::AtMost => (least, upper),
        Compare::Greater => (upper + 1, greatest),
        Compare::AtLeast => (lower, greatest),
    };
    if low > high {
        return Condition::constant(column, false);
    }
    Condition::range(column, low, high, compare == Compare::NotEqual)
}
