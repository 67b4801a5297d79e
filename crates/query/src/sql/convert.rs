//! Casts, and parts of dates and times, in SQL.

use super::aggregate::arguments;
use super::error::{SqlError, quoted};
use super::time::Clock;
use super::typed::{Type, Typed};
use crate::plan::Scalar;
use crate::plan::{Conversion, TimePart};
use sqlparser::ast::{DataType, Expr, Function, FunctionArgExpr, Value as Literal};

/// `CAST(number AS BIGINT)`, or `DOUBLE`.
pub(super) fn cast(of: Typed, expr: &Expr, to: &DataType) -> Result<Typed, SqlError> {
    let name = to.to_string().to_ascii_uppercase();
    let (conversion, kind) = match &*name {
        "BIGINT" | "INT8" | "INT64" => (Conversion::Integer, Type::Int),
        "DOUBLE" | "DOUBLE PRECISION" | "FLOAT8" | "FLOAT64" => (Conversion::Double, Type::Float),
        _ => {
            let what = format!("CAST AS {}", quoted(to));
            return Err(SqlError::unsupported(what, "cast numbers to BIGINT or DOUBLE"));
        }
    };
    match (of.of, kind) {
        (Type::Null, _) => Ok(Typed::new(of.scalar, kind)),
        (Type::Int | Type::Float | Type::Bool, _) | (Type::Time(_), Type::Int) => {
            Ok(Typed::new(Scalar::Convert(conversion, Box::new(of.scalar)), kind))
        }
        (other, _) => Err(SqlError::Meaning(format!(
            "{} is {}, but only numbers can be cast",
            quoted(expr),
            other.name()
        ))),
    }
}

const PARTS: &str = "year, quarter, month, day, hour, minute, second";

fn clock_of(of: &Typed, expr: &Expr) -> Result<Clock, SqlError> {
    match of.of {
        Type::Time(clock) if clock.is_local() => Err(SqlError::unsupported(
            format!("a part of {}, which has a time zone other than UTC", quoted(expr)),
            "write it as a UTC timestamp",
        )),
        Type::Time(clock) if !clock.is_duration() => Ok(clock),
        other => Err(SqlError::Meaning(format!(
            "{} is {}, but only dates and times have such parts",
            quoted(expr),
            other.name()
        ))),
    }
}

fn part(name: &str, clock: Clock, expr: &Expr) -> Result<TimePart, SqlError> {
    let part = TimePart::named(name).ok_or_else(|| {
        SqlError::unsupported(format!("{} of a time", quoted(name)), format!("write {PARTS}"))
    })?;
    if clock.is_of_day() && !part.is_of_day() {
        let what = format!("{} is a time of day and has no {}", quoted(expr), part.name());
        return Err(SqlError::Meaning(what));
    }
    Ok(part)
}

/// `extract(year FROM time)`.
pub(super) fn part_of(name: &str, of: Typed, expr: &Expr) -> Result<Typed, SqlError> {
    let clock = clock_of(&of, expr)?;
    let part = part(name, clock, expr)?;
    if part == TimePart::Week {
        let what = "the number of a week";
        return Err(SqlError::unsupported(what, "group by date_trunc('week', TIME)"));
    }
    let conversion = Conversion::Part(part, clock.unit_ns());
    Ok(Typed::new(Scalar::Convert(conversion, Box::new(of.scalar)), Type::Int))
}

/// `date_trunc('month', time)`.
pub(super) fn beginning(name: &str, of: Typed, expr: &Expr) -> Result<Typed, SqlError> {
    let clock = clock_of(&of, expr)?;
    let part = part(name, clock, expr)?;
    let conversion = Conversion::Begin(part, clock.unit_ns());
    Ok(Typed::new(Scalar::Convert(conversion, Box::new(of.scalar)), Type::Time(clock)))
}

/// Parses a call of a date or time function: its name, the part, and its argument.
pub(super) fn times(function: &Function) -> Result<Option<(&'static str, &str, &Expr)>, SqlError> {
    let name = match &*function.name.to_string().to_ascii_lowercase() {
        "date_trunc" => "date_trunc",
        "date_part" | "datepart" => "date_part",
        _ => return Ok(None),
    };
    match &arguments(function)?[..] {
        [FunctionArgExpr::Expr(Expr::Value(part)), FunctionArgExpr::Expr(of)] => {
            match &part.value {
                Literal::SingleQuotedString(part) => Ok(Some((name, part, of))),
                _ => {
                    Err(SqlError::Meaning(format!("write {name}('PART', TIME); parts are {PARTS}")))
                }
            }
        }
        _ => Err(SqlError::Meaning(format!("write {name}('PART', TIME); parts are {PARTS}"))),
    }
}
