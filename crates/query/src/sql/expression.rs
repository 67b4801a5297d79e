//! Compiles SQL expressions and conditions to those of a plan.

use super::aggregate::{aggregate, arguments, unknown};
use super::convert::{beginning, cast, part_of, times};
use super::error::{SqlError, USE_AN_ENGINE, quoted};
use super::typed::{Type, Typed};
use crate::conditions::turned;
use crate::convert;
use crate::names::listed;
use crate::plan::{Arithmetic, Compare, Format, OtherColumn, Predicate, Scalar, Schema, Value};
use chrono::NaiveDate;
use sqlparser::ast::{
    BinaryOperator, CastKind, DataType, Expr, Function, FunctionArgExpr, Ident, UnaryOperator,
    Value as Literal,
};

/// Maximum nesting of expressions.
pub(super) const DEPTH_MAX: u32 = 200;

/// Resolves names and aggregates.
pub(super) trait Names {
    /// The meaning of an expression as a whole; None if it follows from its parts.
    fn resolve(&mut self, expr: &Expr) -> Result<Option<Typed>, SqlError>;
}

/// Names of the columns of files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows<'a> {
    pub(super) schema: &'a Schema,
    pub(super) format: &'a Format,
    pub(super) table_name: Option<&'a str>,
    /// The range of available columns, end exclusive.
    pub(super) columns: (usize, usize),
}

impl Rows<'_> {
    /// The column with this index.
    pub(super) fn at(&self, index: usize) -> Typed {
        let kind = self.format.column_kind(self.schema, index);
        Typed::new(Scalar::Column(index), Type::of(&kind))
    }

    /// The columns that cannot be queried.
    pub(super) fn others(&self) -> &[OtherColumn] {
        match self.format {
            Format::Columns { others, .. } => others,
            _ => &[],
        }
    }

    fn column(&self, name: &Ident) -> Result<Typed, SqlError> {
        let (first, end) = self.columns;
        let columns = &self.schema.columns[first..end];
        let exact = columns.iter().position(|column| column.name == name.value);
        let mut alike = (0..columns.len()).filter(|at| {
            name.quote_style.is_none() && columns[*at].name.eq_ignore_ascii_case(&name.value)
        });
        let found = exact.or_else(|| alike.next().filter(|_| alike.next().is_none()));
        let Some(at) = found else {
            if let Some(other) = self.others().iter().find(|other| other.name == name.value) {
                return Err(SqlError::unsupported(format!("column {}", other.name), &other.why));
            }
            let names: Vec<&str> = columns.iter().map(|column| &*column.name).collect();
            return Err(SqlError::Column { name: quoted(&name.value), known: listed(&names) });
        };
        Ok(self.at(first + at))
    }
}

impl Names for Rows<'_> {
    fn resolve(&mut self, expr: &Expr) -> Result<Option<Typed>, SqlError> {
        match expr {
            Expr::Identifier(name) => self.column(name).map(Some),
            Expr::CompoundIdentifier(parts) => match &parts[..] {
                [table, name] if Some(&*table.value) == self.table_name => {
                    self.column(name).map(Some)
                }
                _ => Err(SqlError::unsupported(
                    expr,
                    "write the column name only, in double quotes if it contains dots",
                )),
            },
            Expr::Function(function) if aggregate(function)?.is_some() => {
                Err(SqlError::Meaning(format!(
                    "{} is not allowed here: aggregates are allowed after SELECT, HAVING and ORDER BY, \
                     but not inside each other",
                    quoted(function)
                )))
            }
            _ => Ok(None),
        }
    }
}

/// Compiles an expression that has a value.
pub(super) fn scalar(names: &mut dyn Names, expr: &Expr) -> Result<Typed, SqlError> {
    scalar_below(names, expr, DEPTH_MAX)
}

/// Compiles a condition.
pub(super) fn predicate(names: &mut dyn Names, expr: &Expr) -> Result<Predicate, SqlError> {
    predicate_below(names, expr, DEPTH_MAX)
}

fn deeper(left: u32) -> Result<u32, SqlError> {
    left.checked_sub(1).ok_or_else(|| {
        SqlError::Meaning(format!("expressions are nested deeper than {DEPTH_MAX} levels"))
    })
}

fn scalar_below(names: &mut dyn Names, expr: &Expr, left: u32) -> Result<Typed, SqlError> {
    let left = deeper(left)?;
    if let Some(found) = names.resolve(expr)? {
        return Ok(found);
    }
    match expr {
        Expr::Nested(inner) => scalar_below(names, inner, left),
        Expr::Value(value) => literal(&value.value),
        // The text is parsed when its counterpart is known, in the units of that.
        Expr::TypedString(typed)
            if matches!(typed.data_type, DataType::Date | DataType::Timestamp(..)) =>
        {
            Ok(Typed { of: Type::Moment, ..literal(&typed.value.value)? })
        }
        Expr::UnaryOp { op: UnaryOperator::Plus, expr } => {
            number(scalar_below(names, expr, left)?, expr)
        }
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => {
            let operand = number(scalar_below(names, expr, left)?, expr)?;
            let of = if operand.of == Type::Bool { Type::Int } else { operand.of };
            Ok(Typed::new(negative(operand.scalar), of))
        }
        Expr::BinaryOp { left: first, op, right: second } if arithmetic(op).is_some() => {
            let first = number(scalar_below(names, first, left)?, first)?;
            let second = number(scalar_below(names, second, left)?, second)?;
            let op = arithmetic(op).unwrap_or(Arithmetic::Add);
            let is_float = op == Arithmetic::Divide || [first.of, second.of].contains(&Type::Float);
            let of = if is_float { Type::Float } else { Type::Int };
            let scalar = Scalar::Arithmetic(op, Box::new(first.scalar), Box::new(second.scalar));
            Ok(Typed::new(scalar, of))
        }
        Expr::Function(function) => match times(function)? {
            Some(("date_trunc", part, of)) => beginning(part, scalar_below(names, of, left)?, of),
            Some((_, part, of)) => part_of(part, scalar_below(names, of, left)?, of),
            None => Err(unknown(function)),
        },
        Expr::Cast {
            kind: CastKind::Cast | CastKind::DoubleColon,
            expr,
            data_type,
            format: None,
        } => cast(scalar_below(names, expr, left)?, expr, data_type),
        Expr::Extract { field, expr, .. } => {
            part_of(&field.to_string(), scalar_below(names, expr, left)?, expr)
        }
        Expr::TypedString(typed) => {
            Err(SqlError::unsupported(&typed.data_type, "write a number, or text in single quotes"))
        }
        other => Err(refused(other)),
    }
}

/// The error for an expression that is neither a value nor a condition here.
fn refused(expr: &Expr) -> SqlError {
    let (what, instead) = match expr {
        Expr::Case { .. } => ("CASE", USE_AN_ENGINE),
        Expr::Subquery(_) | Expr::Exists { .. } | Expr::InSubquery { .. } => (
            "a query inside a query",
            "ask the inner one first, and write its answer as a constant",
        ),
        Expr::ILike { .. } => ("ILIKE", "write LIKE 'PREFIX%', = or IN"),
        Expr::SimilarTo { .. } | Expr::RLike { .. } => {
            ("a regular expression", "write LIKE 'PREFIX%', = or IN")
        }
        Expr::IsDistinctFrom(..) | Expr::IsNotDistinctFrom(..) => {
            ("IS DISTINCT FROM", "write = or <>, and IS NULL")
        }
        Expr::Interval(_) => ("INTERVAL", "write the time itself, as it is in the files"),
        other => return SqlError::unsupported(other, USE_AN_ENGINE),
    };
    SqlError::unsupported(what, instead)
}

fn literal(value: &Literal) -> Result<Typed, SqlError> {
    let (value, of) = match value {
        Literal::Number(digits, _) => match (digits.parse::<i128>(), digits.parse::<f64>()) {
            (Ok(integer), _) => (Value::Int(integer), Type::Int),
            (_, Ok(number)) => (Value::Float(number), Type::Float),
            _ => return Err(SqlError::Meaning(format!("{} is not a number", quoted(digits)))),
        },
        Literal::SingleQuotedString(text) => (Value::Text(text.clone()), Type::Text),
        Literal::Null => (Value::Null, Type::Null),
        Literal::Boolean(is_true) => (Value::Int((*is_true).into()), Type::Bool),
        other => {
            return Err(SqlError::unsupported(other, "write a number, or text in single quotes"));
        }
    };
    Ok(Typed::new(Scalar::Literal(value), of))
}

fn negative(scalar: Scalar) -> Scalar {
    match scalar {
        Scalar::Literal(Value::Int(value)) => Scalar::Literal(Value::Int(value.wrapping_neg())),
        Scalar::Literal(Value::Float(value)) => Scalar::Literal(Value::Float(-value)),
        other => {
            let minus = Box::new(Scalar::Literal(Value::Int(-1)));
            Scalar::Arithmetic(Arithmetic::Multiply, minus, Box::new(other))
        }
    }
}

fn arithmetic(op: &BinaryOperator) -> Option<Arithmetic> {
    match op {
        BinaryOperator::Plus => Some(Arithmetic::Add),
        BinaryOperator::Minus => Some(Arithmetic::Subtract),
        BinaryOperator::Multiply => Some(Arithmetic::Multiply),
        BinaryOperator::Divide => Some(Arithmetic::Divide),
        _ => None,
    }
}

fn comparison(op: &BinaryOperator) -> Option<Compare> {
    match op {
        BinaryOperator::Eq => Some(Compare::Equal),
        BinaryOperator::NotEq => Some(Compare::NotEqual),
        BinaryOperator::Lt => Some(Compare::Less),
        BinaryOperator::LtEq => Some(Compare::AtMost),
        BinaryOperator::Gt => Some(Compare::Greater),
        BinaryOperator::GtEq => Some(Compare::AtLeast),
        _ => None,
    }
}

/// The expression, if its values are numbers.
pub(super) fn number(typed: Typed, expr: &Expr) -> Result<Typed, SqlError> {
    match typed.of {
        Type::Text | Type::Time(_) | Type::Moment => Err(SqlError::Meaning(format!(
            "{} is {}, but a number is needed",
            quoted(expr),
            typed.of.name()
        ))),
        _ => Ok(typed),
    }
}

/// Converts a date or time that is compared with text to text. Bytes compare as times do only at the beginning of a
/// day: a later time of the day is a longer text.
fn become_text(
    moment: &mut Typed,
    compare: Compare,
    expr: &Expr,
    text: &Expr,
) -> Result<(), SqlError> {
    let is_day = |text: &str| {
        let day = NaiveDate::parse_from_str(text, "%Y-%m-%d");
        day.is_ok_and(|day| day.to_string() == text)
    };
    match &moment.scalar {
        Scalar::Literal(Value::Text(written)) if is_day(written) => {}
        _ => {
            return Err(SqlError::Meaning(format!(
                "{} is text, and {} is not a day such as DATE '2020-09-14': write the text as it is in the files, in \
                 quotes only",
                quoted(text),
                quoted(expr)
            )));
        }
    }
    if !matches!(compare, Compare::AtLeast | Compare::Less) {
        return Err(SqlError::Meaning(format!(
            "{} is text: compare it with {} by >= or <, as in >= a day AND < the day after; or write the text as it is \
             in the files, in quotes only",
            quoted(text),
            quoted(expr)
        )));
    }
    moment.of = Type::Text;
    Ok(())
}

/// Makes two values comparable: text compared with a time becomes a time.
fn align(
    first: (&mut Typed, &Expr),
    compare: Compare,
    second: (&mut Typed, &Expr),
) -> Result<(), SqlError> {
    first.0.become_time(second.0.of, first.1)?;
    second.0.become_time(first.0.of, second.1)?;
    match (first.0.of, second.0.of) {
        (Type::Text, Type::Moment) => become_text(second.0, compare, second.1, first.1)?,
        (Type::Moment, Type::Text) => become_text(first.0, turned(compare), first.1, second.1)?,
        (Type::Moment, Type::Moment) => {
            return Err(SqlError::Meaning(format!(
                "{} and {} are constants: compare a column with them",
                quoted(first.1),
                quoted(second.1)
            )));
        }
        _ => {}
    }
    let is_text = |typed: &Typed| matches!(typed.of, Type::Text | Type::Moment);
    let clocks = match (first.0.of, second.0.of) {
        (Type::Time(one), Type::Time(other)) => one.is_like(other),
        _ => true,
    };
    let any = [&first.0, &second.0].iter().any(|typed| typed.of == Type::Null);
    let times =
        [&first.0, &second.0].iter().filter(|typed| matches!(typed.of, Type::Time(_))).count();
    let is_whole = |typed: &Typed| matches!(typed.of, Type::Bool | Type::Int | Type::Null);
    let bools = [&first.0, &second.0].iter().any(|typed| typed.of == Type::Bool);
    let alike = is_text(first.0) == is_text(second.0)
        && clocks
        && times != 1
        && (!bools || is_whole(first.0) && is_whole(second.0));
    if any || alike {
        return Ok(());
    }
    let is_duration = |typed: &Typed| matches!(typed.of, Type::Time(clock) if clock.is_duration());
    if !clocks && is_duration(first.0) == is_duration(second.0) {
        return Err(SqlError::Meaning(format!(
            "{} and {} count time in different units: they cannot be compared",
            quoted(first.1),
            quoted(second.1)
        )));
    }
    let hint = match times {
        1 if is_duration(first.0) || is_duration(second.0) => {
            "cast a duration to BIGINT to compare it with a number of its unit"
        }
        1 => "compare dates and times with text, such as '2020-09-14'",
        2 => "compare a duration with another of the same unit",
        _ => "write text in single quotes, and numbers without",
    };
    Err(SqlError::Meaning(format!(
        "{} is {} and {} is {}: they cannot be compared; {hint}",
        quoted(first.1),
        first.0.of.name(),
        quoted(second.1),
        second.0.of.name()
    )))
}

/// The operands of a chain of AND or OR, which the parser nests to the left.
fn chain<'a>(expr: &'a Expr, chained: &BinaryOperator) -> Vec<&'a Expr> {
    let (mut at, mut found) = (expr, Vec::new());
    while let Expr::BinaryOp { left, op, right } = at {
        if op != chained {
            break;
        }
        found.push(&**right);
        at = left;
    }
    found.push(at);
    found.reverse();
    found
}

fn negated(predicate: Predicate, is_negated: bool) -> Predicate {
    if is_negated { Predicate::Not(Box::new(predicate)) } else { predicate }
}

fn predicate_below(names: &mut dyn Names, expr: &Expr, left: u32) -> Result<Predicate, SqlError> {
    let left = deeper(left)?;
    match expr {
        Expr::Nested(inner) => predicate_below(names, inner, left),
        Expr::BinaryOp { op: op @ (BinaryOperator::And | BinaryOperator::Or), .. } => {
            let all = chain(expr, op).into_iter().map(|each| predicate_below(names, each, left));
            let all = all.collect::<Result<_, _>>()?;
            Ok(if *op == BinaryOperator::And { Predicate::And(all) } else { Predicate::Or(all) })
        }
        Expr::UnaryOp { op: UnaryOperator::Not, expr } => {
            Ok(negated(predicate_below(names, expr, left)?, true))
        }
        Expr::BinaryOp { left: first, op, right: second } if comparison(op).is_some() => {
            let compare = comparison(op).unwrap_or(Compare::Equal);
            compared(names, compare, first, second, left)
        }
        Expr::Between { expr, negated: is_negated, low, high } => {
            let low = compared(names, Compare::AtLeast, expr, low, left)?;
            let high = compared(names, Compare::AtMost, expr, high, left)?;
            Ok(negated(Predicate::And(vec![low, high]), *is_negated))
        }
        Expr::InList { expr, list, negated: is_negated } => {
            Ok(negated(in_list(names, expr, list, left)?, *is_negated))
        }
        Expr::IsNull(of) => Ok(Predicate::IsNull(scalar_below(names, of, left)?.scalar)),
        Expr::IsNotNull(of) => {
            Ok(negated(Predicate::IsNull(scalar_below(names, of, left)?.scalar), true))
        }
        Expr::Like { negated: is_negated, any: false, expr, pattern, escape_char: None } => {
            Ok(negated(like(names, expr, pattern, left)?, *is_negated))
        }
        Expr::Value(value) if matches!(value.value, Literal::Boolean(_)) => {
            Ok(Predicate::Constant(value.value == Literal::Boolean(true)))
        }
        Expr::Function(function) => test(names, function, left),
        other => {
            // Errors inside the expression are reported first.
            let typed = scalar_below(names, other, left)?;
            if typed.of == Type::Bool {
                let is_true = Scalar::Literal(Value::Int(1));
                return Ok(Predicate::Compare(Compare::Equal, typed.scalar, is_true));
            }
            let what = quoted(other);
            Err(SqlError::Meaning(format!("{what} is not a condition: compare it with a value")))
        }
    }
}

fn compared(
    names: &mut dyn Names,
    compare: Compare,
    first: &Expr,
    second: &Expr,
    left: u32,
) -> Result<Predicate, SqlError> {
    let (mut a, mut b) = (scalar_below(names, first, left)?, scalar_below(names, second, left)?);
    align((&mut a, first), compare, (&mut b, second))?;
    let turned = convert::of_time(turned(compare), &b.scalar, &a.scalar);
    let of_time = convert::of_time(compare, &a.scalar, &b.scalar).or(turned);
    Ok(of_time.unwrap_or(Predicate::Compare(compare, a.scalar, b.scalar)))
}

fn in_list(
    names: &mut dyn Names,
    expr: &Expr,
    list: &[Expr],
    left: u32,
) -> Result<Predicate, SqlError> {
    let mut of = scalar_below(names, expr, left)?;
    let mut values = Vec::with_capacity(list.len());
    for each in list {
        let mut value = scalar_below(names, each, left)?;
        align((&mut of, expr), Compare::Equal, (&mut value, each))?;
        match value.scalar {
            Scalar::Literal(Value::Null) => {
                return Err(SqlError::unsupported("NULL in a list of IN", "write OR … IS NULL"));
            }
            Scalar::Literal(value) => values.push(value),
            _ => {
                return Err(SqlError::unsupported(
                    format!("{} in a list of IN", quoted(each)),
                    "IN takes constants; write OR",
                ));
            }
        }
    }
    Ok(Predicate::In(of.scalar, values))
}

fn like(
    names: &mut dyn Names,
    expr: &Expr,
    pattern: &Expr,
    left: u32,
) -> Result<Predicate, SqlError> {
    let of = text(names, expr, left)?;
    let Typed { scalar: Scalar::Literal(Value::Text(pattern)), of: Type::Text } =
        scalar_below(names, pattern, left)?
    else {
        return Err(SqlError::unsupported(pattern, "LIKE takes a constant"));
    };
    let prefix = pattern.strip_suffix('%');
    if prefix.unwrap_or(&pattern).contains(['%', '_']) {
        return Err(SqlError::unsupported(
            format!("LIKE '{}'", quoted(&pattern)),
            "a pattern can only have one %, at its end; apply the rest of the filter in an engine",
        ));
    }
    Ok(match prefix {
        Some(prefix) => Predicate::StartsWith(of, prefix.to_owned()),
        None => Predicate::Compare(Compare::Equal, of, Scalar::Literal(Value::Text(pattern))),
    })
}

fn text(names: &mut dyn Names, expr: &Expr, left: u32) -> Result<Scalar, SqlError> {
    let typed = scalar_below(names, expr, left)?;
    match typed.of {
        Type::Text | Type::Null => Ok(typed.scalar),
        _ => Err(SqlError::Meaning(format!(
            "{} is {}, but text is needed",
            quoted(expr),
            typed.of.name()
        ))),
    }
}

/// Compiles a function that is a condition.
fn test(names: &mut dyn Names, function: &Function, left: u32) -> Result<Predicate, SqlError> {
    let name = function.name.to_string().to_ascii_lowercase();
    match (&*name, &arguments(function)?[..]) {
        ("isnan", [FunctionArgExpr::Expr(of)]) => {
            Ok(Predicate::IsNan(number(scalar_below(names, of, left)?, of)?.scalar))
        }
        ("starts_with", [FunctionArgExpr::Expr(of), FunctionArgExpr::Expr(prefix)]) => {
            let of = text(names, of, left)?;
            match scalar_below(names, prefix, left)? {
                Typed { scalar: Scalar::Literal(Value::Text(prefix)), of: Type::Text } => {
                    Ok(Predicate::StartsWith(of, prefix))
                }
                _ => Err(SqlError::unsupported(prefix, "starts_with takes a constant")),
            }
        }
        ("isnan" | "starts_with", _) => {
            Err(SqlError::Meaning("write isnan(NUMBER) or starts_with(TEXT, 'PREFIX')".to_owned()))
        }
        _ if aggregate(function)?.is_some() => {
            names.resolve(&Expr::Function(function.clone()))?;
            Err(SqlError::Meaning(format!(
                "{} is not a condition: compare it with a value",
                quoted(function)
            )))
        }
        _ => Err(unknown(function)),
    }
}
