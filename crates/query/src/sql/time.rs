//! Dates and times in statements.

use crate::plan::Value;
use arrow_schema::{DataType, TimeUnit};
use chrono::{DateTime, NaiveDate, NaiveDateTime, NaiveTime, Timelike};

/// Names of time zones that are UTC.
const UTC: [&str; 5] = ["UTC", "Etc/UTC", "GMT", "Z", "+00:00"];
const DAY_NS: i128 = 86_400_000_000_000;
/// From here on, in both directions, doubles are whole numbers.
const WHOLE_DOUBLES: i128 = 1 << 52;

/// Since when a column counts time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    /// 1970-01-01 UTC.
    Epoch,
    Midnight,
    /// Its values are durations.
    Any,
}

/// How a column counts time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    since: Since,
    unit_ns: i128,
    /// Whether its days belong to a time zone other than UTC.
    is_local: bool,
}

impl Clock {
    /// The clock of a type; None for types other than dates, times and durations.
    pub(super) fn of(data_type: &DataType) -> Option<Self> {
        let is_local = match data_type {
            DataType::Timestamp(_, Some(zone)) => !UTC.contains(&&**zone),
            _ => false,
        };
        let (since, unit_ns) = match data_type {
            DataType::Date32 => (Since::Epoch, DAY_NS),
            DataType::Date64 => (Since::Epoch, unit_ns(TimeUnit::Millisecond)),
            DataType::Timestamp(unit, _) => (Since::Epoch, unit_ns(*unit)),
            DataType::Time32(unit) | DataType::Time64(unit) => (Since::Midnight, unit_ns(*unit)),
            DataType::Duration(unit) => (Since::Any, unit_ns(*unit)),
            _ => return None,
        };
        Some(Self { since, unit_ns, is_local })
    }

    pub(super) fn is_of_day(self) -> bool {
        self.since == Since::Midnight
    }

    pub(super) fn is_duration(self) -> bool {
        self.since == Since::Any
    }

    pub(super) const fn is_local(self) -> bool {
        self.is_local
    }

    pub(super) const fn unit_ns(self) -> i64 {
        self.unit_ns as i64
    }

    /// Whether values of both can be compared.
    pub(super) fn is_like(self, other: Self) -> bool {
        self.since == other.since && self.unit_ns == other.unit_ns
    }

    /// Describes the accepted syntax, with an example.
    const fn what(self) -> &'static str {
        match self.since {
            Since::Epoch => "time, such as '2020-09-14' or '2020-09-14 12:34:56.789Z'",
            Since::Midnight => "time of day, such as '12:34:56'",
            Since::Any => {
                "duration: cast the column to BIGINT, and compare with a number of its unit"
            }
        }
    }

    /// Parses ISO 8601, in UTC unless it has an offset. A time between two units becomes the middle of them: a value
    /// closer to one of them could be rounded to it. The error follows the text in a message.
    pub(super) fn read(self, text: &str) -> Result<Value, String> {
        let since = match self.since {
            Since::Epoch => moment(text),
            Since::Midnight => time_of_day(text),
            Since::Any => None,
        };
        let since = since.ok_or_else(|| format!("is not a {}", self.what()))?;
        let floor = since.div_euclid(self.unit_ns);
        if since % self.unit_ns == 0 {
            Ok(Value::Int(floor))
        } else if (-WHOLE_DOUBLES..WHOLE_DOUBLES).contains(&floor) {
            Ok(Value::Float(floor as f64 + 0.5))
        } else {
            let why = "is finer than the column's unit, which cannot be compared so far from 1970";
            Err(format!("{why}: leave out the last digits"))
        }
    }
}

fn unit_ns(unit: TimeUnit) -> i128 {
    match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    }
}

/// Nanoseconds since midnight.
fn time_of_day(text: &str) -> Option<i128> {
    let forms = ["%H:%M:%S%.f", "%H:%M"];
    let time = forms.iter().find_map(|form| NaiveTime::parse_from_str(text, form).ok())?;
    let seconds = i128::from(time.num_seconds_from_midnight());
    Some(seconds * 1_000_000_000 + i128::from(time.nanosecond()))
}

/// Nanoseconds since 1970.
fn moment(text: &str) -> Option<i128> {
    if let Ok(date) = NaiveDate::parse_from_str(text, "%Y-%m-%d") {
        return Some(
            i128::from(date.and_time(NaiveTime::MIN).and_utc().timestamp()) * 1_000_000_000,
        );
    }
    let text = text.replacen('T', " ", 1);
    let local = ["%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M"];
    let local = local.iter().find_map(|form| NaiveDateTime::parse_from_str(&text, form).ok());
    let moment = match local {
        Some(local) => local.and_utc(),
        None => DateTime::parse_from_str(&text, "%Y-%m-%d %H:%M:%S%.f%#z").ok()?.to_utc(),
    };
    let part = i128::from(moment.timestamp_subsec_nanos());
    Some(i128::from(moment.timestamp()) * 1_000_000_000 + part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_the_units_of_columns() {
        let of = |data_type: DataType, text: &str| Clock::of(&data_type)?.read(text).ok();
        let micros = || DataType::Timestamp(TimeUnit::Microsecond, None);
        assert_eq!(of(DataType::Date32, "2020-09-14"), Some(Value::Int(18_519)));
        assert_eq!(of(DataType::Date32, "2020-09-14 12:00"), Some(Value::Float(18_519.5)));
        assert_eq!(of(micros(), "1969-12-31 23:59:59.999999"), Some(Value::Int(-1)));
        let moment = Some(Value::Int(1_600_041_600_000_000));
        assert_eq!(of(micros(), "2020-09-14T00:00:00Z"), moment);
        assert_eq!(of(micros(), "2020-09-14 02:00:00+02:00"), moment);
        let between = Some(Value::Float(1_600_041_600_000_000.5));
        assert_eq!(of(micros(), "2020-09-14 00:00:00.000000001"), between);
        assert_eq!(of(micros(), "2020-09-14 00:00:00.000000999"), between);
        assert_eq!(of(micros(), "1969-12-31 23:59:59.9999999"), Some(Value::Float(-0.5)));
        let nanos = DataType::Timestamp(TimeUnit::Nanosecond, None);
        assert_eq!(of(nanos, "2020-09-14"), Some(Value::Int(1_600_041_600_000_000_000)));
        let clock = DataType::Time64(TimeUnit::Microsecond);
        assert_eq!(of(clock, "00:00:01.5"), Some(Value::Int(1_500_000)));
        assert_eq!(of(micros(), "yesterday"), None);
        assert_eq!(of(micros(), "2020-02-30"), None);
        assert_eq!(of(DataType::Int64, "2020-09-14"), None);
    }

    /// Beyond 2^52 microseconds a double has no half.
    #[test]
    fn times_between_two_units_are_refused_far_from_1970() {
        let micros = DataType::Timestamp(TimeUnit::Microsecond, None);
        let read = |text: &str| Clock::of(&micros).expect("a time").read(text);
        let last = Value::Float(4_503_599_627_370_495.5);
        assert_eq!(read("2112-09-17 23:53:47.3704955"), Ok(last));
        assert_eq!(read("2112-09-17 23:53:47.370496"), Ok(Value::Int(1 << 52)));
        for text in ["2112-09-17 23:53:47.3704965", "1800-01-01 00:00:00.0000001"] {
            let error = read(text).expect_err("refused");
            assert!(error.contains("so far from 1970: leave out the last digits"), "{error}");
        }
    }
}
