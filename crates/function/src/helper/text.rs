//! Numbers in text.

use super::call::{Call, EINVAL, ERANGE};
use crate::fault_kind::FaultKind;
use std::ops::Range;

/// Price of a byte of text that is examined.
const BYTE_COST: u64 = 8;

/// Fixed price of a number, in addition.
const INTEGER_COST: u64 = 40;
const DOUBLE_COST: u64 = 120;

/// Additional price of a double of more than [`SHORT_DIGITS`] digits, not counting leading zeroes. If 19 digits do not
/// decide between two neighbouring doubles, the decision takes numbers of hundreds of digits; 11 µs were measured, for
/// 25 bytes. Up to 19 digits always decide it (Mushtak and Lemire 2023).
const LONG_DOUBLE_COST: u64 = 30_000;
const SHORT_DIGITS: usize = 19;

/// The flag in the base that selects an unsigned number.
const UNSIGNED: u64 = 0x100;

/// `bpfof_parse_int`: stores the number at the start of the text at `to` and returns how many bytes of text it takes,
/// or [`EINVAL`] or [`ERANGE`].
pub(super) fn parse_int(
    call: &mut Call<'_>,
    (text, len): (u64, u64),
    base: u64,
    to: u64,
) -> Result<u64, FaultKind> {
    call.charge(INTEGER_COST)?;
    let text = payable(call, text, len)?;
    let to = call.writable(to, 8)?;
    let (looked_at, number) = integer(&call.memory[text], base);
    call.charge(looked_at as u64 * BYTE_COST)?;
    Ok(match number {
        Ok((value, consumed)) => {
            call.memory[to].copy_from_slice(&value.to_le_bytes());
            consumed as u64
        }
        Err(error) => error as u64,
    })
}

/// The part of a text that the budget can pay for, and one byte more, which makes the charge fail.
fn payable(call: &Call<'_>, text: u64, len: u64) -> Result<Range<usize>, FaultKind> {
    let range = call.readable(text, len)?;
    let paid = usize::try_from(*call.budget as u64 / BYTE_COST).unwrap_or(usize::MAX);
    Ok(range.start..range.end.min(range.start.saturating_add(paid).saturating_add(1)))
}

/// The longest text that is converted to a double, in bytes. Conversion takes longer the more digits there are, and 17
/// digits determine a double: a longer text has superfluous ones.
const MAX_DOUBLE_BYTES: usize = 128;

/// `bpfof_parse_double`: as [`parse_int`], for the bits of a binary64, correctly rounded.
pub(super) fn parse_double(
    call: &mut Call<'_>,
    (text, len): (u64, u64),
    to: u64,
) -> Result<u64, FaultKind> {
    call.charge(DOUBLE_COST)?;
    let text = payable(call, text, len)?;
    let to = call.writable(to, 8)?;
    if let Some((number, consumed)) = short_double(&call.memory[text.clone()]) {
        let looked_at = (consumed + 1).min(text.len());
        call.charge(looked_at as u64 * BYTE_COST)?;
        call.memory[to].copy_from_slice(&number.to_bits().to_le_bytes());
        return Ok(consumed as u64);
    }
    let (looked_at, consumed) = double(&call.memory[text.clone()]);
    call.charge(looked_at as u64 * BYTE_COST)?;
    if consumed > MAX_DOUBLE_BYTES {
        return Ok(ERANGE as u64);
    }
    if significant_digits(&call.memory[text.start..text.start + consumed]) > SHORT_DIGITS {
        call.charge(LONG_DOUBLE_COST)?;
    }
    let number = std::str::from_utf8(&call.memory[text][..consumed]).ok();
    let Some(number) = number.and_then(|number| number.parse::<f64>().ok()) else {
        return Ok(EINVAL as u64);
    };
    if number.is_infinite() {
        return Ok(ERANGE as u64);
    }
    call.memory[to].copy_from_slice(&number.to_bits().to_le_bytes());
    Ok(consumed as u64)
}

/// How many bytes must be examined, and how many of them form a number: a sign, digits with a point, an exponent. 0 if
/// there is no number.
fn double(text: &[u8]) -> (usize, usize) {
    let digits = |from: usize| text[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let is = |at: usize, bytes: &[u8]| text.get(at).is_some_and(|byte| bytes.contains(byte));
    let mut at = usize::from(is(0, b"+-"));
    let whole = digits(at);
    at += whole;
    let mut fraction = 0;
    if is(at, b".") {
        fraction = digits(at + 1);
        // A point without a digit on either side is not part of a number.
        at += if whole + fraction > 0 { 1 + fraction } else { 0 };
    }
    let mut looked_at = at + 1;
    if whole + fraction == 0 {
        return (looked_at.min(text.len()), 0);
    }
    if is(at, b"eE") {
        let sign = usize::from(is(at + 1, b"+-"));
        let exponent = text.get(at + 1 + sign..).map_or(0, |_| digits(at + 1 + sign));
        looked_at = at + sign + exponent + 2;
        if exponent > 0 {
            at += 1 + sign + exponent;
        }
    }
    (looked_at.min(text.len()), at)
}

/// Number of digits before the exponent, without leading zeroes.
fn significant_digits(number: &[u8]) -> usize {
    // Shortcut: most numbers have fewer bytes.
    if number.len() <= SHORT_DIGITS {
        return number.len();
    }
    let mantissa = number.iter().take_while(|byte| !matches!(byte, b'e' | b'E'));
    mantissa.filter(|byte| byte.is_ascii_digit()).skip_while(|byte| **byte == b'0').count()
}

/// Powers of ten that a double holds exactly.
const TENS: [f64; 16] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

/// The number at the start of a text, and how many bytes it takes, if it has no exponent and its digits form an integer
/// that a double holds exactly. Dividing that by an exact power of ten rounds once, so the result is correct (Clinger
/// 1990).
fn short_double(text: &[u8]) -> Option<(f64, usize)> {
    let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let (mut digits, mut point, mut at) = (0u64, None, sign);
    let end = text.len().min(sign + TENS.len());
    while at < end {
        match text[at] {
            byte @ b'0'..=b'9' => digits = digits * 10 + u64::from(byte - b'0'),
            b'.' if point.is_none() => point = Some(at),
            _ => break,
        }
        at += 1;
    }
    let count = at - sign - usize::from(point.is_some());
    if count == 0 || at == sign + TENS.len() || matches!(text.get(at), Some(b'e' | b'E')) {
        return None;
    }
    let number = digits as f64 / TENS[point.map_or(0, |point| at - point - 1)];
    Some((if text[0] == b'-' { -number } else { number }, at))
}

/// How many bytes had to be examined, and the number with its length in bytes, or an error.
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
    // The byte that ends the number was examined as well.
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

/// The base, and the text behind the prefix that selects it. As in C, 0x is a prefix in base 0 and 16, and in base 0
/// another leading 0 selects base 8. 0x counts only before a digit.
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
    fn the_extent_of_a_double() {
        for (text, looked_at, bytes) in [
            ("1", 1, 1),
            ("-12.5e3,", 8, 7),
            ("3.", 2, 2),
            (".5x", 3, 2),
            ("+7e", 3, 2),
            ("7e+", 3, 1),
            ("7e+x", 4, 1),
            ("1.5.2", 4, 3),
            ("0x10", 2, 1),
            ("", 0, 0),
            (".", 1, 0),
            ("-.e5", 2, 0),
            ("inf", 1, 0),
            ("-", 1, 0),
        ] {
            assert_eq!(double(text.as_bytes()), (looked_at, bytes), "{text:?}");
            let number = &text[..bytes];
            assert!(bytes == 0 || number.parse::<f64>().is_ok(), "{number:?}");
        }
    }

    #[test]
    fn digits_are_counted_from_the_first_significant_one() {
        for (number, digits) in [
            ("-0.0000000012345678901234567890e-300", 20),
            ("1.2345678901234567e-300", 17),
            ("-123456789.0123456789", 19),
            ("000000000000000000000000000000", 0),
            ("0000000000000000000100000000000000000001", 21),
            ("1.0000000000000000000", 20),
            (".00000000000000000000000000000000000005E12345678901234567890123", 1),
        ] {
            assert_eq!(significant_digits(number.as_bytes()), digits, "{number}");
        }
        assert!(significant_digits(b"0.00000000000000005") <= SHORT_DIGITS);
    }

    #[test]
    fn short_doubles_equal_those_of_the_general_parser() {
        let mut state = 1u64;
        let mut short = 0;
        for _ in 0..200_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let (mut text, length) = (Vec::new(), state % 20);
            for index in 0..length {
                let dice = (state >> (index * 3)) as usize ^ index as usize;
                text.push(b"0123456789012345678901234567890123456789-+..ee,x"[dice % 48]);
            }
            let (looked_at, consumed) = double(&text);
            let Some((number, at)) = short_double(&text) else { continue };
            short += 1;
            assert_eq!((at, (at + 1).min(text.len())), (consumed, looked_at), "{text:?}");
            let parsed = std::str::from_utf8(&text[..at]).ok().and_then(|text| text.parse().ok());
            assert_eq!(parsed.map(f64::to_bits), Some(number.to_bits()), "{text:?}");
        }
        assert!(short > 20_000, "{short}");
        assert_eq!(short_double(b"-0.0"), Some((-0.0, 4)));
        assert_eq!(short_double(b"123456789012345"), Some((123_456_789_012_345.0, 15)));
        for none in ["", "-", ".", "-.", "1e5", "1234567890123456", "123456789012345."] {
            assert_eq!(short_double(none.as_bytes()), None, "{none}");
        }
    }

    #[test]
    fn integers_examine_the_number_and_its_terminator() {
        for (text, bytes) in [("42", 2), ("42,7", 3), ("x", 1), ("", 0), ("-0x1,", 5)] {
            assert_eq!(integer(text.as_bytes(), 0).0, bytes, "{text:?}");
        }
    }
}
