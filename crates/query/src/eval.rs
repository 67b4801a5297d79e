//! Evaluates values of rows on the host.

use crate::plan::{Arithmetic, Compare, Predicate, Scalar, Value};
use std::cmp::Ordering;

/// A number that does not fit into the type of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Overflow {
    /// Integer arithmetic beyond 128 bits.
    #[error("an integer exceeds 128 bits: compute with floating point numbers")]
    Arithmetic,
    /// A cast of a number that is not a 64-bit integer.
    #[error(
        "CAST AS BIGINT of a number with a fraction, or beyond 64 bits: keep the floating point number, or exclude \
         such rows by WHERE"
    )]
    Cast,
}

impl Scalar {
    /// Its value in a row, which has a value for each column of the schema. Arithmetic with text has the result
    /// missing.
    ///
    /// # Errors
    /// [`Overflow`].
    pub fn value(&self, row: &[Value]) -> Result<Value, Overflow> {
        match self {
            Self::Column(index) => Ok(row.get(*index).cloned().unwrap_or(Value::Null)),
            Self::Literal(value) => Ok(value.clone()),
            Self::Arithmetic(operation, left, right) => {
                compute(*operation, &left.value(row)?, &right.value(row)?)
            }
            Self::Convert(conversion, of) => conversion.of(&of.value(row)?),
        }
    }
}

fn compute(operation: Arithmetic, left: &Value, right: &Value) -> Result<Value, Overflow> {
    if let (Value::Int(left), Value::Int(right)) = (left, right) {
        let done = match operation {
            Arithmetic::Add => left.checked_add(*right),
            Arithmetic::Subtract => left.checked_sub(*right),
            Arithmetic::Multiply => left.checked_mul(*right),
            Arithmetic::Divide => return Ok(Value::Float(*left as f64 / *right as f64)),
        };
        return done.map(Value::Int).ok_or(Overflow::Arithmetic);
    }
    let (Some(left), Some(right)) = (left.as_float(), right.as_float()) else {
        return Ok(Value::Null);
    };
    Ok(Value::Float(match operation {
        Arithmetic::Add => left + right,
        Arithmetic::Subtract => left - right,
        Arithmetic::Multiply => left * right,
        Arithmetic::Divide => left / right,
    }))
}

impl Value {
    /// A number as the nearest double; None for text and missing values.
    #[must_use]
    pub const fn as_float(&self) -> Option<f64> {
        match self {
            Self::Int(number) => Some(*number as f64),
            Self::Float(number) => Some(*number),
            Self::Null | Self::Text(_) => None,
        }
    }

    /// Compares exactly, even an integer with a double. None if one is missing or NaN, or if only one is text.
    #[must_use]
    pub fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Int(one), Self::Int(other)) => Some(one.cmp(other)),
            (Self::Float(one), Self::Float(other)) => one.partial_cmp(other),
            (Self::Text(one), Self::Text(other)) => Some(one.as_bytes().cmp(other.as_bytes())),
            (Self::Int(one), Self::Float(other)) => compare_mixed(*one, *other),
            (Self::Float(one), Self::Int(other)) => {
                compare_mixed(*other, *one).map(Ordering::reverse)
            }
            _ => None,
        }
    }

    /// Whether it is NaN.
    #[must_use]
    pub const fn is_nan(&self) -> bool {
        matches!(self, Self::Float(number) if number.is_nan())
    }
}

impl Value {
    /// Bytes as a text that compares as the bytes do, and has the same prefixes: each byte is a character.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        Self::Text(bytes.iter().copied().map(char::from).collect())
    }

    /// Text in the form of [`of_bytes`](Self::of_bytes); other values unchanged.
    pub(crate) fn by_bytes(&self) -> Self {
        match self {
            Self::Text(text) => Self::of_bytes(text.as_bytes()),
            other => other.clone(),
        }
    }
}

impl Scalar {
    /// Whether it is identical. With `==`, 0.0 would equal −0.0, but quotients by them differ.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Literal(Value::Float(one)), Self::Literal(Value::Float(other))) => {
                one.to_bits() == other.to_bits()
            }
            (Self::Arithmetic(one, left, right), Self::Arithmetic(other, of_left, of_right)) => {
                one == other && left.is(of_left) && right.is(of_right)
            }
            (Self::Convert(one, of), Self::Convert(other, of_other)) => {
                one == other && of.is(of_other)
            }
            _ => self == other,
        }
    }

    fn by_bytes(&self) -> Self {
        match self {
            Self::Literal(value) => Self::Literal(value.by_bytes()),
            // Other scalars have numbers.
            other => other.clone(),
        }
    }
}

impl Predicate {
    /// The same condition on rows whose texts are [by their bytes](Value::by_bytes).
    pub(crate) fn by_bytes(&self) -> Self {
        let each = |all: &[Self]| all.iter().map(Self::by_bytes).collect();
        match self {
            Self::Compare(compare, left, right) => {
                Self::Compare(*compare, left.by_bytes(), right.by_bytes())
            }
            Self::In(of, values) => {
                Self::In(of.by_bytes(), values.iter().map(Value::by_bytes).collect())
            }
            Self::StartsWith(of, prefix) => {
                let prefix = prefix.bytes().map(char::from).collect();
                Self::StartsWith(of.by_bytes(), prefix)
            }
            Self::And(all) => Self::And(each(all)),
            Self::Or(all) => Self::Or(each(all)),
            Self::Not(not) => Self::Not(Box::new(not.by_bytes())),
            other => other.clone(),
        }
    }
}

/// 2^127, beyond all integers here.
const BEYOND: f64 = 170_141_183_460_469_231_731_687_303_715_884_105_728.0;

fn compare_mixed(integer: i128, float: f64) -> Option<Ordering> {
    if float.is_nan() {
        return None;
    }
    if float >= BEYOND {
        return Some(Ordering::Less);
    }
    if float < -BEYOND {
        return Some(Ordering::Greater);
    }
    // The floor is exact; if it is equal, a fraction above it decides.
    let floor = float.floor();
    Some(integer.cmp(&(floor as i128)).then(if float > floor {
        Ordering::Less
    } else {
        Ordering::Equal
    }))
}

impl Compare {
    /// Whether values with this order, or None because one is NaN, meet the comparison.
    const fn is_met(self, order: Option<Ordering>) -> bool {
        match (self, order) {
            (Self::NotEqual, None) => true,
            (_, None) => false,
            (Self::Equal, Some(order)) => order.is_eq(),
            (Self::NotEqual, Some(order)) => order.is_ne(),
            (Self::Less, Some(order)) => order.is_lt(),
            (Self::AtMost, Some(order)) => order.is_le(),
            (Self::Greater, Some(order)) => order.is_gt(),
            (Self::AtLeast, Some(order)) => order.is_ge(),
        }
    }
}

impl Predicate {
    /// Whether a row meets it; None for unknown.
    ///
    /// # Errors
    /// [`Overflow`].
    pub fn holds(&self, row: &[Value]) -> Result<Option<bool>, Overflow> {
        Ok(match self {
            Self::Constant(constant) => Some(*constant),
            Self::Compare(compare, left, right) => {
                let (left, right) = (left.value(row)?, right.value(row)?);
                let known = left != Value::Null && right != Value::Null;
                known.then(|| compare.is_met(left.compare(&right)))
            }
            Self::In(of, values) => {
                let value = of.value(row)?;
                let is_in = || values.iter().any(|one| value.compare(one) == Some(Ordering::Equal));
                (value != Value::Null).then(is_in)
            }
            Self::StartsWith(of, prefix) => match of.value(row)? {
                Value::Text(text) => Some(text.starts_with(prefix)),
                Value::Null => None,
                _ => Some(false),
            },
            Self::IsNull(of) => Some(of.value(row)? == Value::Null),
            Self::IsNan(of) => {
                let value = of.value(row)?;
                (value != Value::Null).then(|| value.is_nan())
            }
            Self::And(all) => fold(all, row, false)?,
            Self::Or(all) => fold(all, row, true)?,
            Self::Not(not) => not.holds(row)?.map(|holds| !holds),
        })
    }
}

/// `decisive` if one predicate is, else unknown if one is, else the opposite of `decisive`.
fn fold(all: &[Predicate], row: &[Value], decisive: bool) -> Result<Option<bool>, Overflow> {
    let mut result = Some(!decisive);
    for one in all {
        match one.holds(row)? {
            Some(holds) if holds == decisive => return Ok(Some(decisive)),
            Some(_) => {}
            None => result = None,
        }
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_and_doubles_compare_exactly() {
        let int = |number: i64| Value::Int(i128::from(number));
        let cases = [
            (int(9_007_199_254_740_993), Value::Float(9_007_199_254_740_992.0), Ordering::Greater),
            (int(-3), Value::Float(-2.5), Ordering::Less),
            (int(-2), Value::Float(-2.5), Ordering::Greater),
            (int(0), Value::Float(-0.0), Ordering::Equal),
            (int(i64::MAX), Value::Float(f64::INFINITY), Ordering::Less),
            (int(i64::MIN), Value::Float(f64::NEG_INFINITY), Ordering::Greater),
        ];
        for (one, other, order) in cases {
            assert_eq!(one.compare(&other), Some(order), "{one:?} {other:?}");
            assert_eq!(other.compare(&one), Some(order.reverse()));
        }
        assert_eq!(int(1).compare(&Value::Float(f64::NAN)), None);
    }

    #[test]
    fn logic_has_three_values() {
        let known = |holds| Predicate::Constant(holds);
        let unknown = || {
            let null = Scalar::Literal(Value::Null);
            Predicate::Compare(Compare::Equal, null.clone(), null)
        };
        let holds = |predicate: Predicate| predicate.holds(&[]).expect("no arithmetic");
        assert_eq!(holds(Predicate::And(vec![known(true), unknown()])), None);
        assert_eq!(holds(Predicate::And(vec![unknown(), known(false)])), Some(false));
        assert_eq!(holds(Predicate::Or(vec![unknown(), known(true)])), Some(true));
        assert_eq!(holds(Predicate::Or(vec![known(false), unknown()])), None);
        assert_eq!(holds(Predicate::Not(Box::new(unknown()))), None);
    }
}
