//! Arithmetic on doubles, for which eBPF has no instructions. Values are the bits of binary64.

use super::call::EINVAL;

/// The only NaN that an operation returns, so that all machines agree.
const NAN: u64 = 0x7ff8_0000_0000_0000;

/// `bpfof_double`: performs the operation of this number on `a` and `b`; [`EINVAL`] for an unknown number.
pub(super) fn operate(operation: u64, a: u64, b: u64) -> u64 {
    let (x, y) = (f64::from_bits(a), f64::from_bits(b));
    match operation {
        0 => bits(x + y),
        1 => bits(x - y),
        2 => bits(x * y),
        3 => bits(x / y),
        4 => x.partial_cmp(&y).map_or(2, |order| order as i64 as u64),
        5 => bits(a as i64 as f64),
        6 => bits(a as f64),
        // Rounds towards zero and saturates; NaN becomes 0.
        7 => x as i64 as u64,
        8 => x as u64,
        _ => EINVAL as u64,
    }
}

pub(super) fn bits(value: f64) -> u64 {
    if value.is_nan() { NAN } else { value.to_bits() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_on_ordinary_numbers() {
        let on = |operation, a: f64, b: f64| f64::from_bits(operate(operation, bits(a), bits(b)));
        assert_eq!(on(0, 0.1, 0.2), 0.300_000_000_000_000_04);
        assert_eq!(on(1, 1.0, 0.75), 0.25);
        assert_eq!(on(2, -3.0, 0.5), -1.5);
        assert_eq!(on(3, 1.0, 3.0), 0.333_333_333_333_333_3);
        let compare = |a: f64, b: f64| operate(4, bits(a), bits(b)) as i64;
        assert_eq!([compare(1.0, 2.0), compare(2.0, 1.0), compare(0.0, -0.0)], [-1, 1, 0]);
        assert_eq!(operate(5, -2i64 as u64, 9), (-2.0f64).to_bits());
        assert_eq!(operate(6, u64::MAX, 9), 18_446_744_073_709_551_616.0f64.to_bits());
        assert_eq!(operate(7, bits(-2.9), 9) as i64, -2);
        assert_eq!(operate(8, bits(2.9), 9), 2);
    }

    #[test]
    fn operations_at_the_edges() {
        let payload = 0xfff8_0000_dead_beef;
        let infinity = f64::INFINITY.to_bits();
        for operation in 0..4 {
            assert_eq!(operate(operation, payload, bits(1.0)), NAN);
            assert_eq!(operate(operation, bits(1.0), 0x7ff0_0000_0000_0001), NAN);
        }
        assert_eq!(operate(3, bits(1.0), bits(-0.0)), f64::NEG_INFINITY.to_bits());
        assert_eq!(operate(3, bits(0.0), bits(0.0)), NAN);
        assert_eq!(operate(1, infinity, infinity), NAN);
        assert_eq!(operate(2, 1, bits(0.5)), 0, "the smallest subnormal, halved to even");
        assert_eq!(operate(4, payload, payload), 2);
        assert_eq!([operate(7, NAN, 0), operate(8, NAN, 0)], [0, 0]);
        assert_eq!(operate(7, infinity, 0), i64::MAX as u64);
        assert_eq!(operate(7, f64::NEG_INFINITY.to_bits(), 0), i64::MIN as u64);
        assert_eq!([operate(8, infinity, 0), operate(8, bits(-1.0), 0)], [u64::MAX, 0]);
        assert_eq!(operate(9, 0, 0) as i64, EINVAL);
    }
}
