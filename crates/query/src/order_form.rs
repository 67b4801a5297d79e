//! Numbers as vectors of stages have them: 64 bits that compare as unsigned ones
//! (`functions/include/bpfof/batch.h`).

use crate::plan::{Kind, Value};

/// NaN, behind infinity.
pub(crate) const NAN: u64 = u64::MAX;
const SIGN: u64 = 1 << 63;

/// Of a double.
pub(crate) const fn of_float(number: f64) -> u64 {
    if number.is_nan() {
        return NAN;
    }
    let bits = number.to_bits();
    if bits & SIGN == 0 { bits ^ SIGN } else { !bits }
}

/// The double.
pub(crate) const fn to_float(order: u64) -> f64 {
    if order == NAN {
        return f64::NAN;
    }
    f64::from_bits(if order & SIGN == 0 { !order } else { order ^ SIGN })
}

/// Whether integers of this kind have their sign turned over.
pub(crate) const fn is_signed(kind: Kind) -> bool {
    matches!(kind, Kind::I8 | Kind::I16 | Kind::I32 | Kind::I64)
}

/// Of an integer in a column of this kind, or one of its 64 bits.
pub(crate) const fn of_int(kind: Kind, number: i128) -> u64 {
    let bits = number as u64;
    if is_signed(kind) { bits ^ SIGN } else { bits }
}

/// A value of a column of this kind.
pub(crate) const fn to_value(kind: Kind, order: u64) -> Value {
    if kind.is_float() {
        return Value::Float(to_float(order));
    }
    if is_signed(kind) {
        return Value::Int((order ^ SIGN) as i64 as i128);
    }
    Value::Int(order as i128)
}

/// The least and the greatest integer that such columns could have in 64 bits.
pub(crate) const fn domain(kind: Kind) -> (i128, i128) {
    if is_signed(kind) { (i64::MIN as i128, i64::MAX as i128) } else { (0, u64::MAX as i128) }
}
