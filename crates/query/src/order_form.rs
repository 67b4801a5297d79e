//! Order form of numbers, as in the vectors of stages: 64 bits that compare as unsigned numbers
//! (`functions/include/bpfof/batch.h`).

use crate::plan::{Kind, Value};

/// NaN, above infinity.
pub(crate) const NAN: u64 = u64::MAX;
const SIGN: u64 = 1 << 63;

/// Converts a double to order form.
pub(crate) const fn of_float(number: f64) -> u64 {
    if number.is_nan() {
        return NAN;
    }
    let bits = number.to_bits();
    if bits & SIGN == 0 { bits ^ SIGN } else { !bits }
}

/// Converts order form to a double.
pub(crate) const fn to_float(order: u64) -> f64 {
    if order == NAN {
        return f64::NAN;
    }
    f64::from_bits(if order & SIGN == 0 { !order } else { order ^ SIGN })
}

/// Whether order form inverts the sign bit of integers of this kind.
pub(crate) const fn is_signed(kind: Kind) -> bool {
    matches!(kind, Kind::I8 | Kind::I16 | Kind::I32 | Kind::I64)
}

/// Converts an integer in a column of this kind, or any integer of its 64-bit range, to order form.
pub(crate) const fn of_int(kind: Kind, number: i128) -> u64 {
    let bits = number as u64;
    if is_signed(kind) { bits ^ SIGN } else { bits }
}

/// Converts order form to a value of a column of this kind.
pub(crate) const fn to_value(kind: Kind, order: u64) -> Value {
    if kind.is_float() {
        return Value::Float(to_float(order));
    }
    if is_signed(kind) {
        return Value::Int((order ^ SIGN) as i64 as i128);
    }
    Value::Int(order as i128)
}

/// The smallest and the largest 64-bit integer of columns with this signedness.
pub(crate) const fn domain(kind: Kind) -> (i128, i128) {
    if is_signed(kind) { (i64::MIN as i128, i64::MAX as i128) } else { (0, u64::MAX as i128) }
}
