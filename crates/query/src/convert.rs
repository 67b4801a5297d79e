//! Casts, and parts of dates and times, as pyarrow computes them.

use crate::eval::Overflow;
use crate::plan::{Compare, Conversion, Predicate, Scalar, TimePart, Value};

const DAY_NS: i128 = 86_400_000_000_000;

impl Conversion {
    /// Converts a value.
    pub(crate) fn of(self, value: &Value) -> Result<Value, Overflow> {
        Ok(match (self, value) {
            (Self::Double, value) => value.as_float().map_or(Value::Null, Value::Float),
            (Self::Integer, Value::Int(number)) => {
                i64::try_from(*number).map_err(|_| Overflow::Cast)?;
                Value::Int(*number)
            }
            (Self::Integer, Value::Float(number)) => {
                let fits = *number >= -TWO_63 && *number < TWO_63 && number.fract() == 0.0;
                if !fits {
                    return Err(Overflow::Cast);
                }
                Value::Int(*number as i128)
            }
            (Self::Part(part, unit_ns), Value::Int(count)) => {
                Value::Int(part.of(*count, unit_ns.into()))
            }
            (Self::Begin(part, unit_ns), Value::Int(count)) => {
                Value::Int(part.begin(*count, unit_ns.into(), 0))
            }
            _ => Value::Null,
        })
    }

    /// Describes it in SQL, applied to `of`.
    pub(crate) fn describe(self, of: &str) -> String {
        match self {
            Self::Double => format!("CAST({of} AS DOUBLE)"),
            Self::Integer => format!("CAST({of} AS BIGINT)"),
            Self::Part(part, _) => format!("extract({} FROM {of})", part.name()),
            Self::Begin(part, _) => format!("date_trunc('{}', {of})", part.name()),
        }
    }
}

/// 2^63.
const TWO_63: f64 = 9_223_372_036_854_775_808.0;

impl TimePart {
    const ALL: [Self; 8] = [
        Self::Year,
        Self::Quarter,
        Self::Month,
        Self::Week,
        Self::Day,
        Self::Hour,
        Self::Minute,
        Self::Second,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Year => "year",
            Self::Quarter => "quarter",
            Self::Month => "month",
            Self::Week => "week",
            Self::Day => "day",
            Self::Hour => "hour",
            Self::Minute => "minute",
            Self::Second => "second",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.name().eq_ignore_ascii_case(name))
    }

    /// Whether it is a part of the time of day.
    pub(crate) const fn is_of_day(self) -> bool {
        matches!(self, Self::Hour | Self::Minute | Self::Second)
    }

    const fn ns(self) -> i128 {
        match self {
            Self::Second => 1_000_000_000,
            Self::Minute => 60_000_000_000,
            Self::Hour => 3_600_000_000_000,
            Self::Week => 7 * DAY_NS,
            _ => DAY_NS,
        }
    }

    fn of(self, count: i128, unit_ns: i128) -> i128 {
        let ns = count.saturating_mul(unit_ns);
        let (year, month, day) = civil(ns.div_euclid(DAY_NS));
        match self {
            Self::Year => year,
            Self::Quarter => (month + 2) / 3,
            Self::Month => month,
            Self::Week => 0,
            Self::Day => day,
            Self::Hour => ns.div_euclid(self.ns()).rem_euclid(24),
            Self::Minute | Self::Second => ns.div_euclid(self.ns()).rem_euclid(60),
        }
    }

    /// The beginning of the part that contains a time, or of the part `later` parts after it.
    fn begin(self, count: i128, unit_ns: i128, later: i128) -> i128 {
        if unit_ns > self.ns() {
            // Each time is the beginning of such a part.
            return count + later;
        }
        let ns = count.saturating_mul(unit_ns);
        let days = ns.div_euclid(DAY_NS);
        let (year, month, _) = civil(days);
        let begin = match self {
            Self::Year => days_of(year + later, 1) * DAY_NS,
            Self::Quarter => {
                let quarter = year * 4 + (month - 1) / 3 + later;
                days_of(quarter.div_euclid(4), quarter.rem_euclid(4) * 3 + 1) * DAY_NS
            }
            Self::Month => {
                let month = year * 12 + month - 1 + later;
                days_of(month.div_euclid(12), month.rem_euclid(12) + 1) * DAY_NS
            }
            // 1970-01-01 was a Thursday.
            Self::Week => ((days + 3).div_euclid(7) * 7 - 3 + 7 * later) * DAY_NS,
            _ => (ns.div_euclid(self.ns()) + later) * self.ns(),
        };
        begin.div_euclid(unit_ns)
    }
}

/// Year, month and day of a day since 1970, in the Gregorian calendar. Internally years begin in March, so that a leap
/// day is the last day of a year.
fn civil(days: i128) -> (i128, i128, i128) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i128::from(month <= 2), month, day)
}

/// The first day of a month, counted from 1970.
fn days_of(year: i128, month: i128) -> i128 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The years that can be compared: 64-bit times with which this is called are not beyond them.
const YEARS: std::ops::RangeInclusive<i128> = -1_000_000..=1_000_000;

/// Rewrites a comparison of a year or a beginning with a constant as a comparison of the time itself, which stages can
/// evaluate. None if that is not possible.
pub(crate) fn of_time(compare: Compare, left: &Scalar, right: &Scalar) -> Option<Predicate> {
    let (Scalar::Convert(conversion, of), Scalar::Literal(Value::Int(constant))) = (left, right)
    else {
        return None;
    };
    // The first time whose value is at least the constant, and the first whose value is greater.
    let (at_least, more) = match *conversion {
        Conversion::Part(TimePart::Year, unit_ns) if YEARS.contains(constant) => {
            let begin = |year| days_of(year, 1) * DAY_NS / i128::from(unit_ns);
            (begin(*constant), begin(constant + 1))
        }
        Conversion::Begin(part, unit_ns) => {
            i64::try_from(*constant).ok()?;
            let begin = part.begin(*constant, unit_ns.into(), 0);
            let next = part.begin(*constant, unit_ns.into(), 1);
            (if begin == *constant { begin } else { next }, next)
        }
        _ => return None,
    };
    let is = |compare, bound| {
        Predicate::Compare(compare, (**of).clone(), Scalar::Literal(Value::Int(bound)))
    };
    let equal = || Predicate::And(vec![is(Compare::AtLeast, at_least), is(Compare::Less, more)]);
    Some(match compare {
        Compare::Equal => equal(),
        Compare::NotEqual => Predicate::Not(Box::new(equal())),
        Compare::Less => is(Compare::Less, at_least),
        Compare::AtLeast => is(Compare::AtLeast, at_least),
        Compare::AtMost => is(Compare::Less, more),
        Compare::Greater => is(Compare::AtLeast, more),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::{DateTime, Datelike, Timelike};
    use proptest::prelude::*;

    const COMPARES: [Compare; 6] = [
        Compare::Equal,
        Compare::NotEqual,
        Compare::Less,
        Compare::AtMost,
        Compare::Greater,
        Compare::AtLeast,
    ];

    proptest! {
        #[test]
        fn parts_are_those_of_the_calendar(millis in -60_000_000_000_000..250_000_000_000_000_i64) {
            let time = DateTime::from_timestamp_millis(millis).expect("in range").naive_utc();
            let part = |part: TimePart| part.of(millis.into(), 1_000_000);
            prop_assert_eq!(part(TimePart::Year), i128::from(time.year()));
            prop_assert_eq!(part(TimePart::Month), i128::from(time.month()));
            prop_assert_eq!(part(TimePart::Quarter), i128::from(time.month().div_ceil(3)));
            prop_assert_eq!(part(TimePart::Day), i128::from(time.day()));
            prop_assert_eq!(part(TimePart::Hour), i128::from(time.hour()));
            prop_assert_eq!(part(TimePart::Minute), i128::from(time.minute()));
            prop_assert_eq!(part(TimePart::Second), i128::from(time.second()));
            for part in TimePart::ALL {
                let begin = part.begin(millis.into(), 1_000_000, 0);
                let next = part.begin(millis.into(), 1_000_000, 1);
                prop_assert!(begin <= millis.into() && next > millis.into());
                prop_assert_eq!(part.begin(begin, 1_000_000, 0), begin);
                prop_assert_eq!(part.begin(next - 1, 1_000_000, 0), begin);
            }
        }

        #[test]
        fn comparisons_of_times_are_those_of_their_parts(
            days in -40_000..40_000_i64,
            near in -800..800_i64,
            part in 0..8_usize,
            unit in prop_oneof![Just(1_000_000_000_i64), Just(86_400_000_000_000)],
        ) {
            let of = Box::new(Scalar::Column(0));
            let count = i128::from(days) * (DAY_NS / i128::from(unit)) + i128::from(near);
            let row = [Value::Int(count)];
            let part = TimePart::ALL[part];
            let constant = |value: i128| Scalar::Literal(Value::Int(value));
            let year = 1970 + i128::from(days / 365);
            let cases = [
                (Conversion::Part(TimePart::Year, unit), constant(year)),
                (Conversion::Begin(part, unit), constant(count + i128::from(near % 3))),
                (Conversion::Begin(part, unit), constant(part.begin(count, unit.into(), 0))),
            ];
            for (conversion, constant) in cases {
                let left = Scalar::Convert(conversion, of.clone());
                for compare in COMPARES {
                    let whole = Predicate::Compare(compare, left.clone(), constant.clone());
                    let of_time = of_time(compare, &left, &constant).expect("it is one of a time");
                    prop_assert_eq!(of_time.holds(&row), whole.holds(&row), "{:?} {:?}", whole, row);
                }
            }
        }
    }

    #[test]
    fn numbers_that_are_no_integers_are_not_cast() {
        let cast = |value| Conversion::Integer.of(&value);
        assert_eq!(cast(Value::Float(-3.0)), Ok(Value::Int(-3)));
        assert_eq!(cast(Value::Float(-TWO_63)), Ok(Value::Int(i64::MIN.into())));
        for number in [0.5, f64::NAN, f64::INFINITY, TWO_63] {
            assert_eq!(cast(Value::Float(number)), Err(Overflow::Cast), "{number}");
        }
        assert_eq!(cast(Value::Int(1 << 63)), Err(Overflow::Cast));
        assert_eq!(cast(Value::Null), Ok(Value::Null));
    }
}
