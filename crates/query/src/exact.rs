//! Sums of floating point numbers without rounding.

use serde::{Deserialize, Serialize};

/// Words of 64 bits: enough for doubles of all exponents, and for 2^70 of the largest.
const LIMBS: usize = 34;
const SIGN: u64 = 1 << 63;
const IMPLICIT: u64 = 1 << 52;
/// A sum divided by 2 to this power always fits into a double.
const BEYOND_BITS: usize = 128;

/// Special values that were added (`functions/query/measures.h`).
const NAN: u64 = 1;
const PLUS_INFINITY: u64 = 2;
const MINUS_INFINITY: u64 = 4;

/// The exact sum of any doubles: a two's complement number whose lowest bit is worth 2^-1074, the smallest double. Its
/// bits do not depend on the order of additions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExactSum {
    /// [`LIMBS`] words.
    limbs: Box<[u64]>,
    special: u64,
}

impl Default for ExactSum {
    fn default() -> Self {
        Self { limbs: Box::new([0; LIMBS]), special: 0 }
    }
}

impl ExactSum {
    /// Whether it has the right number of limbs: a sum from outside may not.
    pub(crate) fn is_whole(&self) -> bool {
        self.limbs.len() == LIMBS
    }

    /// Adds a double.
    pub(crate) fn add(&mut self, value: f64) {
        if !value.is_finite() {
            self.special |= match value {
                _ if value.is_nan() => NAN,
                _ if value > 0.0 => PLUS_INFINITY,
                _ => MINUS_INFINITY,
            };
            return;
        }
        let bits = value.to_bits();
        let exponent = bits >> 52 & 2047;
        let implicit = if exponent == 0 { 0 } else { IMPLICIT };
        let fraction = u128::from(bits & (IMPLICIT - 1) | implicit);
        // Position of its lowest bit above the lowest bit of the sum.
        let above = exponent.saturating_sub(1) as usize;
        let wide = fraction << (above % 64);
        let wide = if bits & SIGN == 0 { wide as i128 } else { -(wide as i128) };
        let high = if wide < 0 { u64::MAX } else { 0 };
        self.add_words(above / 64, [wide as u64, (wide >> 64) as u64].into_iter(), high);
    }

    /// Adds a two's complement number whose lowest bit is worth 2^(base - 1075), and the special values that were added
    /// to it.
    pub(crate) fn add_limbs(&mut self, base: u32, special: u64, limbs: &[u64]) {
        self.special |= special;
        let above = base.saturating_sub(1) as usize;
        let (first, shift) = (above / 64, above % 64);
        let high = if limbs.last().is_some_and(|limb| limb & SIGN != 0) { u64::MAX } else { 0 };
        let mut before = 0;
        let shifted = limbs.iter().copied().chain([high]).map(|limb| {
            let both = u128::from(limb) << 64 | u128::from(before);
            before = limb;
            (both >> (64 - shift)) as u64
        });
        self.add_words(first, shifted, high);
    }

    /// Adds another sum.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.add_limbs(1, other.special, &other.limbs);
    }

    /// Adds words from `first` on, and `high` for all that follow.
    fn add_words(&mut self, first: usize, mut words: impl Iterator<Item = u64>, high: u64) {
        let mut carry = false;
        for limb in self.limbs.iter_mut().skip(first) {
            let word = words.next();
            // Only the sign is left, and the carry does not change the result.
            if word.is_none() && carry == (high != 0) {
                break;
            }
            let (sum, one) = limb.overflowing_add(word.unwrap_or(high));
            let (sum, two) = sum.overflowing_add(u64::from(carry));
            *limb = sum;
            carry = one || two;
        }
    }

    /// The sum, rounded once, to the nearest double and in a tie to the even one.
    pub(crate) fn value(&self) -> f64 {
        match self.special {
            0 => self.finite(0),
            PLUS_INFINITY => f64::INFINITY,
            MINUS_INFINITY => f64::NEG_INFINITY,
            _ => f64::NAN,
        }
    }

    /// The mean of `count` numbers: the rounded sum divided by the count. Works for a sum that does not fit into a
    /// double.
    pub(crate) fn mean(&self, count: f64) -> f64 {
        match self.value() {
            sum if sum.is_infinite() && self.special == 0 => {
                self.finite(BEYOND_BITS) / count * 2_f64.powi(BEYOND_BITS as i32)
            }
            sum => sum / count,
        }
    }

    /// The sum rounded once, divided by 2^`less`, which is not 0 only if the sum does not fit into a double.
    fn finite(&self, less: usize) -> f64 {
        let mut limbs = self.limbs.clone();
        let is_negative = limbs.last().is_some_and(|limb| limb & SIGN != 0);
        if is_negative {
            let mut carry = true;
            for limb in &mut *limbs {
                (*limb, carry) = (!*limb).overflowing_add(u64::from(carry));
            }
        }
        let Some(top) = limbs.iter().rposition(|limb| *limb != 0) else { return 0.0 };
        let highest = top * 64 + 63 - limbs[top].leading_zeros() as usize;
        let bit = |at: usize| limbs[at / 64] >> (at % 64) & 1;
        let magnitude = if highest <= 52 {
            limbs[0]
        } else {
            let shift = highest - 52;
            let (word, within) = (shift / 64, shift % 64);
            let above = limbs.get(word + 1).copied().unwrap_or(0);
            let both = u128::from(above) << 64 | u128::from(limbs[word]);
            let fraction = (both >> within) as u64 & (2 * IMPLICIT - 1);
            let half = shift - 1;
            let is_exact_half = limbs[..half / 64].iter().all(|limb| *limb == 0)
                && limbs[half / 64] & ((1 << (half % 64)) - 1) == 0;
            let up = bit(half) == 1 && (!is_exact_half || fraction & 1 == 1);
            // A carry out of the fraction correctly raises the exponent.
            let bits = ((shift.saturating_sub(less) as u64) << 52) + fraction + u64::from(up);
            bits.min(f64::INFINITY.to_bits())
        };
        let value = f64::from_bits(magnitude);
        if is_negative { -value } else { value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(values: &[f64]) -> f64 {
        let mut sum = ExactSum::default();
        values.iter().for_each(|value| sum.add(*value));
        sum.value()
    }

    #[test]
    fn sums_are_exact_and_rounded_once() {
        assert_eq!(sum(&[0.1; 10]), 1.0);
        assert_eq!(sum(&[1e308, 1e308, -1e308, -1e308, 5e-324]), 5e-324);
        assert_eq!(sum(&[1.0, 1e100, 1.0, -1e100]), 2.0);
        assert_eq!(sum(&[f64::MAX, f64::MAX]), f64::INFINITY);
        assert_eq!(sum(&[9007199254740992.0, 1.0]), 9007199254740992.0);
        assert_eq!(sum(&[9007199254740992.0, 1.0, 5e-324]), 9007199254740994.0);
        assert!(sum(&[f64::INFINITY, f64::NEG_INFINITY]).is_nan());
        assert_eq!(sum(&[-5e-324, f64::MIN_POSITIVE]), f64::MIN_POSITIVE - 5e-324);
    }

    #[test]
    fn means_are_finite_though_sums_are_not() {
        let mean = |values: &[f64]| {
            let mut sum = ExactSum::default();
            values.iter().for_each(|value| sum.add(*value));
            sum.mean(values.len() as f64)
        };
        assert_eq!(mean(&[0.1, 0.2, 0.3]), 0.6 / 3.0);
        assert_eq!(mean(&[1e308, 1e308, 1.5e308, 0.5e308]), 1e308);
        assert_eq!(mean(&[f64::MAX; 3]), f64::MAX);
        assert_eq!(mean(&[f64::MIN; 2]), f64::MIN);
        assert_eq!(mean(&[f64::MAX, f64::INFINITY]), f64::INFINITY);
        assert!(mean(&[f64::MAX, f64::MAX, f64::NAN]).is_nan());
    }

    proptest! {
        #[test]
        fn sums_of_one_value_and_of_opposites_are_exact(bits in any::<u64>(), other in any::<u64>()) {
            let (value, other) = (f64::from_bits(bits), f64::from_bits(other));
            prop_assume!(value.is_finite() && other.is_finite());
            prop_assert_eq!(sum(&[value]), value);
            prop_assert_eq!(sum(&[other, value, -other]), value);
            // A single addition of the processor rounds once, too.
            prop_assert_eq!(sum(&[value, other]), value + other);
        }

        #[test]
        fn merged_parts_equal_one_sum(values in proptest::collection::vec(any::<f64>(), 0..20), cut in 0_usize..20) {
            let cut = cut.min(values.len());
            let (mut one, mut two, mut all) = (ExactSum::default(), ExactSum::default(), ExactSum::default());
            values[..cut].iter().for_each(|value| one.add(*value));
            values[cut..].iter().for_each(|value| two.add(*value));
            values.iter().for_each(|value| all.add(*value));
            one.merge(&two);
            prop_assert_eq!(one, all);
        }
    }
}
