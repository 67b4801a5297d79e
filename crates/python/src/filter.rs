//! Predicates from pyarrow's expressions, with pyarrow's meaning.

use crate::source::Source;
use crate::substrait::{Expression, Literal, Unknown, parse};
use arrow_schema::DataType;
use bpfof_query::infer;
use bpfof_query::{Compare, Format, Kind, Predicate, Scalar, Value};
use pyo3::prelude::*;
use std::collections::BTreeSet;

/// A condition that stages can apply, and the columns that it uses.
#[derive(Clone, Debug)]
struct Conjunct {
    predicate: Predicate,
    columns: BTreeSet<usize>,
}

/// Conditions that rows must meet.
#[pyclass(frozen, from_py_object, module = "bpfof._bpfof")]
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    conjuncts: Vec<Conjunct>,
    /// The reasons why other conditions are not included.
    #[pyo3(get)]
    left: Vec<String>,
    /// Columns of all conditions.
    #[pyo3(get)]
    columns: Vec<String>,
}

#[pymethods]
impl Filter {
    /// Parses an expression that pyarrow has written as Substrait. Parts without an equivalent here are omitted, and
    /// `left` has the reasons: pyarrow must then apply the whole expression again.
    #[staticmethod]
    fn of_substrait(source: &Source, bytes: &[u8]) -> Self {
        let schema = &source.0.schema;
        let mut filter = Self { conjuncts: Vec::new(), left: Vec::new(), columns: Vec::new() };
        match parse(bytes) {
            Ok(expression) => {
                let mut columns = BTreeSet::new();
                collect_columns(&expression, &mut columns);
                let name = |at: &usize| schema.columns.get(*at).map(|column| column.name.clone());
                filter.columns = columns.iter().filter_map(name).collect();
                filter.add(expression, &source.0);
            }
            Err(why) => {
                filter.left.push(why);
                filter.columns = schema.columns.iter().map(|one| one.name.clone()).collect();
            }
        }
        filter
    }

    /// The filter without the conditions for which stages would use too many columns or text columns, together with
    /// those already taken: `left` has the reasons. Also returns the columns that are then taken.
    fn within(
        &self,
        source: &Source,
        taken: Vec<String>,
        texts: Vec<String>,
        most: (usize, usize),
    ) -> (Self, Vec<String>) {
        let (columns_max, texts_max) = most;
        let names = &source.0.schema.columns;
        let name = |at: &usize| names.get(*at).map(|column| column.name.clone());
        let texts: BTreeSet<String> = texts.into_iter().collect();
        let mut taken: BTreeSet<String> = taken.into_iter().collect();
        let mut filter = Self { conjuncts: Vec::new(), ..self.clone() };
        for conjunct in &self.conjuncts {
            let mut all = taken.clone();
            all.extend(conjunct.columns.iter().filter_map(name));
            if all.len() > columns_max {
                filter.left.push(format!("stages look at {columns_max} columns at most to filter"));
            } else if all.intersection(&texts).count() > texts_max {
                let why = format!("stages look at {texts_max} columns of text at most to filter");
                filter.left.push(why);
            } else {
                taken = all;
                filter.conjuncts.push(conjunct.clone());
            }
        }
        (filter, taken.into_iter().collect())
    }
}

impl Filter {
    fn add(&mut self, expression: Expression, source: &infer::Source) {
        match expression {
            Expression::Call(name, all) if name == "and" => {
                all.into_iter().for_each(|one| self.add(one, source));
            }
            other => match predicate(&other, source) {
                Ok(predicate) => {
                    let mut columns = BTreeSet::new();
                    collect_columns(&other, &mut columns);
                    self.conjuncts.push(Conjunct { predicate, columns });
                }
                Err(why) => self.left.push(why),
            },
        }
    }
}

/// All conditions of some filters.
pub(crate) fn together(filters: &[Filter]) -> Predicate {
    let all = filters.iter().flat_map(|filter| &filter.conjuncts);
    Predicate::And(all.map(|conjunct| conjunct.predicate.clone()).collect())
}

fn collect_columns(expression: &Expression, to: &mut BTreeSet<usize>) {
    match expression {
        Expression::Column(at) => {
            to.insert(*at);
        }
        Expression::Literal(_) => {}
        Expression::Call(_, all) => all.iter().for_each(|one| collect_columns(one, to)),
        Expression::In(value, _) => collect_columns(value, to),
    }
}

fn predicate(expression: &Expression, source: &infer::Source) -> Result<Predicate, Unknown> {
    let (name, arguments) = match expression {
        Expression::Literal(Literal::Boolean(value)) => return Ok(Predicate::Constant(*value)),
        Expression::In(value, options) => return among(value, options, source),
        Expression::Call(name, arguments) => (&**name, &arguments[..]),
        Expression::Literal(_) | Expression::Column(_) => {
            return Err("this is not a condition".to_owned());
        }
    };
    let each = || arguments.iter().map(|one| predicate(one, source)).collect::<Result<_, _>>();
    let compare = |compare| match arguments {
        [left, right] => {
            Ok(Predicate::Compare(compare, scalar(left, source)?, scalar(right, source)?))
        }
        _ => Err(unknown(name)),
    };
    match (name, arguments) {
        ("and", _) => Ok(Predicate::And(each()?)),
        ("or", _) => Ok(Predicate::Or(each()?)),
        ("not", [one]) => Ok(Predicate::Not(Box::new(predicate(one, source)?))),
        ("equal", _) => compare(Compare::Equal),
        ("not_equal", _) => compare(Compare::NotEqual),
        ("lt", _) => compare(Compare::Less),
        ("lte", _) => compare(Compare::AtMost),
        ("gt", _) => compare(Compare::Greater),
        ("gte", _) => compare(Compare::AtLeast),
        ("is_null", [one]) => Ok(Predicate::IsNull(scalar(one, source)?)),
        ("is_not_null", [one]) => {
            Ok(Predicate::Not(Box::new(Predicate::IsNull(scalar(one, source)?))))
        }
        ("is_nan", [one]) => Ok(Predicate::IsNan(scalar(one, source)?)),
        ("starts_with", [one, Expression::Literal(Literal::Text(text))]) => {
            Ok(Predicate::StartsWith(scalar(one, source)?, text.clone()))
        }
        _ => Err(unknown(name)),
    }
}

fn unknown(name: &str) -> Unknown {
    format!("stages do not support {name}")
}

fn scalar(expression: &Expression, source: &infer::Source) -> Result<Scalar, Unknown> {
    match expression {
        Expression::Column(at) if *at < source.schema.columns.len() => Ok(Scalar::Column(*at)),
        Expression::Literal(literal) => value(literal).map(Scalar::Literal),
        Expression::Call(name, _) => Err(unknown(name)),
        _ => Err("this is neither a column nor a literal".to_owned()),
    }
}

fn value(literal: &Literal) -> Result<Value, Unknown> {
    match literal {
        Literal::Null => Ok(Value::Null),
        Literal::Boolean(_) => Err("there are no boolean columns".to_owned()),
        Literal::Integer(number) => Ok(Value::Int(*number)),
        Literal::Single(number) => Ok(Value::Float(f64::from(*number))),
        Literal::Double(number) => Ok(Value::Float(*number)),
        Literal::Text(text) => Ok(Value::Text(text.clone())),
    }
}

/// pyarrow's `is_in` is never unknown: a missing value is in no list. It converts the values to the type of the column,
/// and compares zeroes and NaN by their bits; such lists are left to pyarrow.
fn among(
    of: &Expression,
    options: &[Literal],
    source: &infer::Source,
) -> Result<Predicate, Unknown> {
    let Scalar::Column(at) = scalar(of, source)? else {
        return Err("only a column can be compared with a list of values".to_owned());
    };
    let kind = source.schema.columns[at].kind;
    // Booleans and times of Arrow are integers here.
    let is_other = match &source.format {
        Format::Columns { columns, .. } => columns
            .get(at)
            .is_some_and(|of| of.data_type.is_temporal() || of.data_type == DataType::Boolean),
        _ => false,
    };
    let mut values = Vec::new();
    for option in options {
        let value = value(option)?;
        let is_alike = match &value {
            Value::Int(_) => kind.is_integer() && !is_other,
            Value::Text(_) => kind == Kind::Utf8,
            Value::Float(number) => {
                let is_plain = *number != 0.0 && number.is_finite();
                let is_exact = kind == Kind::F64 || f64::from(*number as f32) == *number;
                kind.is_float() && is_plain && is_exact
            }
            Value::Null => false,
        };
        if !is_alike {
            return Err("pyarrow converts the values of this list".to_owned());
        }
        values.push(value);
    }
    let of = Scalar::Column(at);
    let is_there = Predicate::Not(Box::new(Predicate::IsNull(of.clone())));
    Ok(Predicate::And(vec![Predicate::In(of, values), is_there]))
}
