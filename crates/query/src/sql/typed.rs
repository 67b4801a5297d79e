//! Expressions with their types.

use super::error::{SqlError, quoted};
use super::time::Clock;
use crate::plan::{AnswerKind, Kind, Scalar, Value};
use arrow_schema::DataType as ArrowType;
use sqlparser::ast::Expr;

/// The type of an expression's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Int,
    Float,
    Text,
    /// An integer that is 0 or 1.
    Bool,
    /// An integer that counts time.
    Time(Clock),
    /// A text written as a date or a time, as in `DATE '2020-09-14'`.
    Moment,
    /// The literal NULL: belongs to every type.
    Null,
}

impl Type {
    pub(super) fn of(kind: &AnswerKind) -> Self {
        match kind {
            AnswerKind::Same(Kind::Utf8) | AnswerKind::Arrow(ArrowType::LargeUtf8) => Self::Text,
            AnswerKind::Same(kind) if kind.is_float() => Self::Float,
            AnswerKind::Arrow(ArrowType::Boolean) => Self::Bool,
            AnswerKind::Arrow(of) => Clock::of(of).map_or(Self::Int, Self::Time),
            _ => Self::Int,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Int => "an integer",
            Self::Float => "a number",
            Self::Text => "text",
            Self::Bool => "true or false",
            Self::Time(clock) if clock.is_duration() => "a duration",
            Self::Time(_) | Self::Moment => "a date or a time",
            Self::Null => "NULL",
        }
    }
}

/// An expression with the type of its values.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Typed {
    pub(super) scalar: Scalar,
    pub(super) of: Type,
}

impl Typed {
    pub(super) fn new(scalar: Scalar, of: Type) -> Self {
        Self { scalar, of }
    }

    /// Converts text that is compared with a time to a time.
    pub(super) fn become_time(&mut self, with: Type, expr: &Expr) -> Result<(), SqlError> {
        if let (Type::Time(clock), Scalar::Literal(Value::Text(text))) = (with, &self.scalar) {
            let value = clock.read(text);
            let value =
                value.map_err(|why| SqlError::Meaning(format!("{} {why}", quoted(expr))))?;
            *self = Self::new(Scalar::Literal(value), with);
        }
        Ok(())
    }
}
