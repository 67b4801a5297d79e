//! Numbers in text.

use super::{Call, EINVAL, ERANGE};
use crate::fault::FaultKind;

/// What a byte of text that is looked at takes from the budget.
const BYTE_COST: u64 = 8;

/// The flag beside the base that asks for an unsigned number.
const UNSIGNED: u64 = 0x100;

/// `bpfof_parse_int`: stores the number that the text starts with at `to` and returns how many
/// bytes it takes, [`EINVAL`] or [`ERANGE`].
pub(super) fn parse_int(
    call: &mut Call<'_>,
    (text, len): (u64, u64),
    base: u64,
    to: u64,
) -> Result<u64, FaultKind> {
    let range = call.readable(text, len)?;
    let to = call.writable(to, 8)?;
    // What the budget pays for, and a byte more to find that it does not.
    let paid = usize::try_from(*call.budget as u64 / BYTE_COST).unwrap_or(usize::MAX);
    let end = range.end.min(range.start.saturating_add(paid).saturating_add(1));
    let (looked_at, number) = integer(&call.memory[range.start..end], base);
    call.charge(looked_at as u64 * BYTE_COST)?;
    Ok(match number {
        Ok((value, consumed)) => {
            call.memory[to].copy_from_slice(&value.to_le_bytes());
            consumed as u64
        }
        Err(error) => error as u64,
    })
}

/// How many bytes had to be looked at, and the number with the bytes that it takes or an error.
fn integer(text: &[u8], base: u64) -> (usize, Result<(u64, usize), i64>) {
    let is_unsigned = base & UNSIGNED != 0;
    let base = base & !UNSIGNED;
    if base == 1 || base > 36 {
        return (0, Err(EINVAL));
    }
    let (negative, rest) = match text {
        [b'-', rest @ ..] if !is_unsigned => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let (base, digits) = prefixed(base as u32, rest);
    let mut value = Some(0u64);
    let mut count = 0;
    for &byte in digits {
        let Some(digit) = (byte as char).to_digit(base) else { break };
        count += 1;
        value = value
            .and_then(|value| value.checked_mul(u64::from(base)))
            .and_then(|value| value.checked_add(u64::from(digit)));
    }
    let before = text.len() - digits.len();
    // The byte that ends the number was looked at as well.
    let looked_at = (before + count + 1).min(text.len());
    if count == 0 {
        return (looked_at, Err(EINVAL));
    }
    let value = match (value, is_unsigned, negative) {
        (Some(value), true, _) => Some(value),
        (Some(value), _, true) if value <= 1 << 63 => Some(value.wrapping_neg()),
        (Some(value), _, false) if value < 1 << 63 => Some(value),
        _ => None,
    };
    (looked_at, value.map(|value| (value, before + count)).ok_or(ERANGE))
}

/// The base, and the text behind the prefix that names it. As in C, 0x is a prefix of base 0 and
/// 16, and base 0 takes another leading 0 for 8; but 0x counts only before a digit.
fn prefixed(base: u32, text: &[u8]) -> (u32, &[u8]) {
    match (base, text) {
        (0 | 16, [b'0', b'x' | b'X', digit, ..]) if digit.is_ascii_hexdigit() => (16, &text[2..]),
        (0, [b'0', ..]) => (8, text),
        (0, _) => (10, text),
        _ => (base, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(text: &str, base: u64) -> Result<(i64, usize), i64> {
        integer(text.as_bytes(), base).1.map(|(value, consumed)| (value as i64, consumed))
    }

    #[test]
    fn integers_as_in_c_but_with_all_errors() {
        assert_eq!(signed("42", 10), Ok((42, 2)));
        assert_eq!(signed("-42,7", 10), Ok((-42, 3)));
        assert_eq!(signed("+7", 10), Ok((7, 2)));
        assert_eq!(signed("0x1fg", 0), Ok((31, 4)));
        assert_eq!(signed("-0X10", 16), Ok((-16, 5)));
        assert_eq!(signed("0x", 0), Ok((0, 1)));
        assert_eq!(signed("0xg", 16), Ok((0, 1)));
        assert_eq!(signed("0779", 0), Ok((0o77, 3)));
        assert_eq!(signed("1012", 2), Ok((5, 3)));
        assert_eq!(signed("zZ", 36), Ok((35 * 36 + 35, 2)));
        assert_eq!(signed("000000000000000000000000000001", 10), Ok((1, 30)));
        for (text, base) in
            [("", 10), ("-", 10), (" 1", 10), ("a", 10), ("9", 8), ("--1", 10), ("1", 1), ("1", 37)]
        {
            assert_eq!(signed(text, base), Err(EINVAL), "{text:?} in base {base}");
        }
    }

    #[test]
    fn integers_at_the_ends_of_their_range() {
        assert_eq!(signed("9223372036854775807", 10), Ok((i64::MAX, 19)));
        assert_eq!(signed("9223372036854775808", 10), Err(ERANGE));
        assert_eq!(signed("-9223372036854775808", 10), Ok((i64::MIN, 20)));
        assert_eq!(signed("-9223372036854775809", 10), Err(ERANGE));
        let unsigned = |text: &str| integer(text.as_bytes(), 10 | UNSIGNED).1;
        assert_eq!(unsigned("18446744073709551615"), Ok((u64::MAX, 20)));
        assert_eq!(unsigned("18446744073709551616"), Err(ERANGE));
        assert_eq!(unsigned("-1"), Err(EINVAL));
        assert_eq!(integer(&[b'1'; 1000], 2), (1000, Err(ERANGE)));
    }

    #[test]
    fn what_was_looked_at_is_the_number_and_what_ends_it() {
        for (text, bytes) in [("42", 2), ("42,7", 3), ("x", 1), ("", 0), ("-0x1,", 5)] {
            assert_eq!(integer(text.as_bytes(), 0).0, bytes, "{text:?}");
        }
    }
}
