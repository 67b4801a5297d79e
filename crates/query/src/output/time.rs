//! Times as text, as pyarrow and DuckDB write them.

use arrow_array::temporal_conversions as convert;
use arrow_schema::{DataType, TimeUnit};

/// A date, a time of day, or a timestamp, in UTC, with a Z if the type has a time zone. None for other types, and for
/// values outside of the calendar.
pub(super) fn text(value: i128, data_type: &DataType) -> Option<String> {
    let wide = i64::try_from(value).ok()?;
    let narrow = i32::try_from(value);
    match data_type {
        DataType::Date32 => Some(convert::date32_to_datetime(narrow.ok()?)?.date().to_string()),
        DataType::Date64 => Some(convert::date64_to_datetime(wide)?.date().to_string()),
        DataType::Timestamp(unit, zone) => {
            let moment = match unit {
                TimeUnit::Second => convert::timestamp_s_to_datetime(wide),
                TimeUnit::Millisecond => convert::timestamp_ms_to_datetime(wide),
                TimeUnit::Microsecond => convert::timestamp_us_to_datetime(wide),
                TimeUnit::Nanosecond => convert::timestamp_ns_to_datetime(wide),
            };
            Some(format!("{}{}", moment?, if zone.is_some() { "Z" } else { "" }))
        }
        DataType::Time32(unit) => {
            let value = narrow.ok()?;
            let time = match unit {
                TimeUnit::Second => convert::time32s_to_time(value),
                _ => convert::time32ms_to_time(value),
            };
            time.map(|time| time.to_string())
        }
        DataType::Time64(unit) => {
            let time = match unit {
                TimeUnit::Microsecond => convert::time64us_to_time(wide),
                _ => convert::time64ns_to_time(wide),
            };
            time.map(|time| time.to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_text() {
        let of = |value: i64, data_type: DataType| text(value.into(), &data_type);
        let moment = |unit, zone: Option<&str>| DataType::Timestamp(unit, zone.map(Into::into));
        assert_eq!(of(18_519, DataType::Date32).as_deref(), Some("2020-09-14"));
        assert_eq!(of(-1, DataType::Date32).as_deref(), Some("1969-12-31"));
        assert_eq!(of(86_400_000, DataType::Date64).as_deref(), Some("1970-01-02"));
        let text = of(1_600_041_600_000_001, moment(TimeUnit::Microsecond, None));
        assert_eq!(text.as_deref(), Some("2020-09-14 00:00:00.000001"));
        let text = of(-1, moment(TimeUnit::Second, Some("Europe/Berlin")));
        assert_eq!(text.as_deref(), Some("1969-12-31 23:59:59Z"));
        let text = of(61_500, DataType::Time32(TimeUnit::Millisecond));
        assert_eq!(text.as_deref(), Some("00:01:01.500"));
        assert_eq!(of(i64::MAX, moment(TimeUnit::Second, None)), None);
        assert_eq!(of(5, DataType::Duration(TimeUnit::Second)), None);
    }
}
