//! A statement bound to the columns of files.

use super::aggregate::{aggregate, arguments};
use super::error::{SqlError, quoted};
use super::expression::{DEPTH_MAX, Names, Rows, number, predicate, scalar};
use super::statement::{Grouping, Item, OrderKey, Statement};
use super::typed::{Type, Typed};
use crate::eval::Overflow;
use crate::maps;
use crate::plan::Conversion;
use crate::plan::OwnStages;
use crate::plan::{
    Aggregate, AnswerKind, Arithmetic, Format, Kind, Measure, Plan, Predicate, Reduction, Scalar,
    Schema, Table, Value,
};
use sqlparser::ast::{Expr, FunctionArgExpr, Value as Literal};
use std::cmp::Ordering;

/// Maximum number of intervals of a histogram.
const BINS_MAX: i128 = 1 << 16;

/// A plan, and the processing of its answer.
#[derive(Clone, Debug)]
pub struct Question {
    plan: Plan,
    /// The columns of the answer: name and expression over a row of the plan's answer.
    columns: Vec<(String, Scalar)>,
    /// A condition over rows of the plan's answer; the keys of `order` are over these rows as well.
    having: Predicate,
    order: Vec<Order>,
    offset: u64,
    limit: Option<u64>,
}

#[derive(Clone, Debug)]
struct Order {
    by: Scalar,
    descending: bool,
    nulls_first: bool,
}

/// An item of the statement, with * expanded.
struct Output<'a> {
    name: String,
    expr: OutputExpr<'a>,
}

enum OutputExpr<'a> {
    Column(usize),
    Expr(&'a Expr),
}

/// Names of an answer of groups: their keys, and aggregates, which are collected here.
struct Groups<'a> {
    rows: Rows<'a>,
    keys: Vec<Typed>,
    aggregates: Vec<Aggregate>,
}

impl Names for Groups<'_> {
    fn resolve(&mut self, expr: &Expr) -> Result<Option<Typed>, SqlError> {
        if let Expr::Function(function) = expr
            && let Some((measure, of)) = aggregate(function)?
        {
            return self.aggregate(measure, of).map(Some);
        }
        if let Ok(found) = scalar(&mut self.rows, expr)
            && let Some(at) =
                self.keys.iter().position(|key| key.of == found.of && key.scalar.is(&found.scalar))
        {
            return Ok(Some(Typed::new(Scalar::Column(at), found.of)));
        }
        if self.rows.resolve(expr)?.is_some() {
            return Err(SqlError::Meaning(format!(
                "{} differs within a group: name it after GROUP BY, or aggregate it",
                quoted(expr)
            )));
        }
        Ok(None)
    }
}

impl Groups<'_> {
    fn aggregate(&mut self, mut measure: Measure, of: Option<&Expr>) -> Result<Typed, SqlError> {
        let nothing = || Typed::new(Scalar::Literal(Value::Int(1)), Type::Int);
        let mut of = match of {
            None => nothing(),
            Some(expr) => {
                let of = scalar(&mut self.rows, expr)?;
                match measure {
                    Measure::CountAll | Measure::Count | Measure::Min | Measure::Max => of,
                    _ => number(of, expr)?,
                }
            }
        };
        // As in count(1): present in every row.
        if measure == Measure::Count
            && matches!(&of.scalar, Scalar::Literal(value) if *value != Value::Null)
        {
            (measure, of) = (Measure::CountAll, nothing());
        }
        let kind = match measure {
            Measure::CountAll | Measure::Count => Type::Int,
            Measure::Sum if of.of == Type::Bool => Type::Int,
            Measure::Sum | Measure::Min | Measure::Max => of.of,
            _ => Type::Float,
        };
        let wanted = Aggregate { measure, of: of.scalar };
        let known = self
            .aggregates
            .iter()
            .position(|known| known.measure == measure && known.of.is(&wanted.of));
        let at = known.unwrap_or_else(|| {
            self.aggregates.push(wanted);
            self.aggregates.len() - 1
        });
        Ok(Typed::new(Scalar::Column(self.keys.len() + at), kind))
    }
}

/// Whether an expression contains aggregates. Expressions nested too deeply are refused elsewhere.
fn aggregates(expr: &Expr) -> bool {
    fn occur(expr: &Expr, left: u32) -> bool {
        let Some(left) = left.checked_sub(1) else { return false };
        match expr {
            Expr::Function(function) => {
                let is_in = |argument: &&FunctionArgExpr| match argument {
                    FunctionArgExpr::Expr(expr) => occur(expr, left),
                    _ => false,
                };
                !matches!(aggregate(function), Ok(None))
                    || arguments(function).is_ok_and(|all| all.iter().any(is_in))
            }
            Expr::Nested(inner) | Expr::UnaryOp { expr: inner, .. } => occur(inner, left),
            Expr::BinaryOp { left: a, right: b, .. } => occur(a, left) || occur(b, left),
            Expr::Cast { expr, .. } | Expr::Extract { expr, .. } => occur(expr, left),
            _ => false,
        }
    }
    occur(expr, DEPTH_MAX)
}

impl Statement {
    /// Makes a plan for files with these columns.
    ///
    /// # Errors
    /// A name does not exist, types do not fit, or something is not supported.
    pub fn bind(&self, schema: &Schema, format: &Format) -> Result<Question, SqlError> {
        self.bind_with(schema, format, OwnStages::default())
    }

    /// The same with the user's own stages, read for this schema. WHERE refers to the columns of files; if there is a
    /// reduction, everything else refers to the columns that it answers.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind).
    pub fn bind_with(
        &self,
        schema: &Schema,
        format: &Format,
        own: OwnStages,
    ) -> Result<Question, SqlError> {
        let answered = own.reduction.as_ref().map_or(0, |reduction| reduction.answers);
        let (end, all) = (schema.columns.len() - answered, schema.columns.len());
        let table_name = self.table_name.as_deref();
        let mut files = Rows { schema, format, table_name, columns: (0, end) };
        let rows = match answered {
            0 => files,
            _ => Rows { columns: (end, all), ..files },
        };
        let has_all = self.items.iter().any(|item| matches!(item, Item::All));
        if let (Some(other), true, 0) = (rows.others().first(), has_all, answered) {
            let what = format!("* with column {}", other.name);
            return Err(SqlError::unsupported(what, format!("{}; or name the others", other.why)));
        }
        let filter = match &self.filter {
            None => Predicate::Constant(true),
            Some(expr) => predicate(&mut files, expr)?,
        };
        let plan = |reduction| Plan {
            schema: schema.clone(),
            format: format.clone(),
            filter,
            reduction,
            own,
        };
        if let Some(reduction) = self.histogram(rows)? {
            let names = ["low", "high", "count"].into_iter().enumerate();
            let columns = names.map(|(at, name)| (name.to_owned(), Scalar::Column(at))).collect();
            let having = Predicate::Constant(true);
            let (order, offset, limit) = (Vec::new(), self.offset, self.limit);
            return Ok(Question { plan: plan(reduction), columns, having, order, offset, limit });
        }
        let outputs = self.outputs(&rows);
        let reduces = outputs.iter().any(|output| match output.expr {
            OutputExpr::Expr(expr) => aggregates(expr),
            OutputExpr::Column(_) => false,
        });
        let is_grouped = !matches!(self.grouping, Grouping::None) || self.distinct;
        if reduces || is_grouped || self.having.is_some() {
            self.groups(&outputs, rows, plan)
        } else {
            self.rows(&outputs, rows, plan)
        }
    }

    fn outputs<'a>(&'a self, rows: &Rows<'_>) -> Vec<Output<'a>> {
        let mut outputs = Vec::new();
        for item in &self.items {
            match item {
                Item::All => {
                    let (first, end) = rows.columns;
                    outputs.extend((first..end).map(|at| Output {
                        name: rows.schema.columns[at].name.clone(),
                        expr: OutputExpr::Column(at),
                    }))
                }
                Item::One(expr, alias) => {
                    let name = alias.clone().unwrap_or_else(|| match &**expr {
                        Expr::Identifier(name) => name.value.clone(),
                        Expr::CompoundIdentifier(parts) => {
                            parts.last().map_or_else(String::new, |name| name.value.clone())
                        }
                        other => quoted(other),
                    });
                    outputs.push(Output { name, expr: OutputExpr::Expr(expr) });
                }
            }
        }
        outputs
    }

    /// The output that a key of GROUP BY or ORDER BY refers to by its number, or by its name.
    fn named<'a>(
        by: &Expr,
        outputs: &'a [Output<'_>],
        by_name: bool,
    ) -> Result<Option<(usize, &'a Output<'a>)>, SqlError> {
        let at = match by {
            Expr::Value(value) => match &value.value {
                Literal::Number(digits, _) => {
                    let at =
                        digits.parse::<usize>().ok().filter(|at| (1..=outputs.len()).contains(at));
                    Some(
                        at.ok_or_else(|| {
                            let count = outputs.len();
                            SqlError::Meaning(format!(
                                "there is no column {digits}; the answer has {count}"
                            ))
                        })? - 1,
                    )
                }
                _ => None,
            },
            Expr::Identifier(name) if by_name => {
                let exact = outputs.iter().position(|output| output.name == name.value);
                // Otherwise regardless of case, as for names of columns.
                let mut alike = (0..outputs.len()).filter(|at| {
                    let known = &outputs[*at].name;
                    name.quote_style.is_none() && known.eq_ignore_ascii_case(&name.value)
                });
                exact.or_else(|| alike.next().filter(|_| alike.next().is_none()))
            }
            _ => None,
        };
        Ok(at.map(|at| (at, &outputs[at])))
    }

    fn groups(
        &self,
        outputs: &[Output<'_>],
        mut rows: Rows<'_>,
        plan: impl FnOnce(Reduction) -> Plan,
    ) -> Result<Question, SqlError> {
        let keys = self.keys(outputs, &mut rows)?;
        let mut groups = Groups { rows, keys, aggregates: Vec::new() };
        let mut columns = Vec::with_capacity(outputs.len());
        for output in outputs {
            let value = match output.expr {
                OutputExpr::Expr(expr) => scalar(&mut groups, expr)?.scalar,
                OutputExpr::Column(at) => {
                    let key = groups.keys.iter().position(|key| key.scalar == Scalar::Column(at));
                    Scalar::Column(key.ok_or_else(|| {
                        SqlError::Meaning("with GROUP BY, name the columns instead of *".to_owned())
                    })?)
                }
            };
            columns.push((output.name.clone(), value));
        }
        if self.distinct && !groups.aggregates.is_empty() {
            let instead = "leave DISTINCT out: groups differ from each other";
            return Err(SqlError::unsupported("SELECT DISTINCT with aggregates", instead));
        }
        let having = match &self.having {
            None => Predicate::Constant(true),
            Some(expr) => predicate(&mut groups, expr)?,
        };
        let mut order = Vec::with_capacity(self.order.len());
        for key in &self.order {
            let by = match Self::named(&key.by, outputs, true)? {
                Some((at, _)) => columns[at].1.clone(),
                None => scalar(&mut groups, &key.by)?.scalar,
            };
            order.push(ordered(key, by));
        }
        let keys = groups.keys.into_iter().map(|key| key.scalar).collect();
        let plan = plan(Reduction::Groups { keys, aggregates: groups.aggregates });
        Ok(Question { plan, columns, having, order, offset: self.offset, limit: self.limit })
    }

    fn keys(&self, outputs: &[Output<'_>], rows: &mut Rows<'_>) -> Result<Vec<Typed>, SqlError> {
        let mut bind = |output: &Output<'_>| match output.expr {
            OutputExpr::Column(at) => Ok(rows.at(at)),
            OutputExpr::Expr(expr) => scalar(rows, expr),
        };
        let is_key = |output: &&Output<'_>| match output.expr {
            OutputExpr::Column(_) => true,
            OutputExpr::Expr(expr) => !aggregates(expr),
        };
        match &self.grouping {
            Grouping::By(_) if self.distinct => {
                let instead = "leave DISTINCT out: groups differ from each other";
                Err(SqlError::unsupported("DISTINCT with GROUP BY", instead))
            }
            Grouping::By(keys) => {
                let mut found = Vec::with_capacity(keys.len());
                for key in keys {
                    // A name refers to a column first, and then to an output.
                    let is_column = matches!(key, Expr::Identifier(_)) && scalar(rows, key).is_ok();
                    found.push(match Self::named(key, outputs, !is_column)? {
                        Some((_, output)) => match output.expr {
                            OutputExpr::Column(at) => rows.at(at),
                            OutputExpr::Expr(expr) => scalar(rows, expr)?,
                        },
                        None => scalar(rows, key)?,
                    });
                }
                Ok(found)
            }
            Grouping::None if !self.distinct => Ok(Vec::new()),
            Grouping::None | Grouping::All => {
                outputs.iter().filter(is_key).map(&mut bind).collect()
            }
        }
    }

    fn rows(
        &self,
        outputs: &[Output<'_>],
        mut rows: Rows<'_>,
        plan: impl FnOnce(Reduction) -> Plan,
    ) -> Result<Question, SqlError> {
        let mut answered = Vec::with_capacity(outputs.len());
        let mut columns = Vec::with_capacity(outputs.len());
        for output in outputs {
            let value = match output.expr {
                OutputExpr::Column(at) => Scalar::Column(at),
                OutputExpr::Expr(expr) => scalar(&mut rows, expr)?.scalar,
            };
            columns.push((output.name.clone(), Scalar::Column(answered.len())));
            answered.push(value);
        }
        let mut keys = Vec::with_capacity(self.order.len());
        for key in &self.order {
            keys.push(match Self::named(&key.by, outputs, true)? {
                Some((at, _)) => answered[at].clone(),
                None => scalar(&mut rows, &key.by)?.scalar,
            });
        }
        let end = self.limit.map(|limit| limit.saturating_add(self.offset));
        let count = end.and_then(|end| u32::try_from(end).ok());
        let mut order = Vec::new();
        let reduction = match (&self.order[..], count) {
            // An answer without rows needs no order.
            ([], _) | (_, Some(0)) => Reduction::Rows { columns: answered, limit: end },
            ([key], Some(count)) if !key.nulls_first => {
                let by = keys.remove(0);
                Reduction::Top { by, descending: key.descending, count, columns: answered }
            }
            _ => {
                for (key, by) in self.order.iter().zip(keys) {
                    order.push(ordered(key, Scalar::Column(answered.len())));
                    answered.push(by);
                }
                Reduction::Rows { columns: answered, limit: None }
            }
        };
        let having = Predicate::Constant(true);
        let (offset, limit) = (self.offset, self.limit);
        Ok(Question { plan: plan(reduction), columns, having, order, offset, limit })
    }

    /// Compiles `SELECT histogram(number, low, high, bins)`, if it is that.
    fn histogram(&self, mut rows: Rows<'_>) -> Result<Option<Reduction>, SqlError> {
        let [Item::One(item, alias)] = &self.items[..] else { return Ok(None) };
        let Expr::Function(function) = &**item else { return Ok(None) };
        if !function.name.to_string().eq_ignore_ascii_case("histogram") {
            return Ok(None);
        }
        let alone = matches!(self.grouping, Grouping::None)
            && !self.distinct
            && self.having.is_none()
            && self.order.is_empty()
            && alias.is_none();
        let wrong = || {
            SqlError::Meaning(
                "write SELECT histogram(NUMBER, LOW, HIGH, INTERVALS) FROM 'FILE', with LOW below HIGH and \
                 1 to 65536 intervals, without GROUP BY, HAVING, ORDER BY and AS"
                    .to_owned(),
            )
        };
        let mut given = Vec::new();
        for argument in arguments(function)? {
            let FunctionArgExpr::Expr(expr) = argument else { return Err(wrong()) };
            given.push(number(scalar(&mut rows, expr)?, expr)?.scalar);
        }
        let constant = |scalar: &Scalar| match scalar {
            Scalar::Literal(value) => value.as_float(),
            _ => None,
        };
        let (true, [of, low, high, Scalar::Literal(Value::Int(bins @ 1..=BINS_MAX))]) =
            (alone, &given[..])
        else {
            return Err(wrong());
        };
        let (Some(low), Some(high)) = (constant(low), constant(high)) else { return Err(wrong()) };
        if !low.is_finite() || !high.is_finite() || low >= high {
            return Err(wrong());
        }
        let bins = u32::try_from(*bins).map_err(|_| wrong())?;
        Ok(Some(Reduction::Histogram { of: of.clone(), low, high, bins }))
    }
}

fn ordered(key: &OrderKey, by: Scalar) -> Order {
    Order { by, descending: key.descending, nulls_first: key.nulls_first }
}

impl Question {
    /// The plan over the files.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Restricts the question to rows that also meet this.
    pub fn restrict(&mut self, filter: &Predicate) {
        let own = std::mem::replace(&mut self.plan.filter, Predicate::Constant(true));
        self.plan.filter = Predicate::And(vec![own, filter.clone()]);
    }

    /// Names of the columns of the answer.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        self.columns.iter().map(|(name, _)| &**name).collect()
    }

    /// Whether the answers of the parts of the files, in order, together are the answer: rows that need not be sorted.
    /// Otherwise the answer is computed from all parts together.
    #[must_use]
    pub fn streams(&self) -> bool {
        matches!(self.plan.reduction, Reduction::Rows { .. }) && self.order.is_empty()
    }

    /// For each column, whether it has integers that may exceed 64 bits.
    #[must_use]
    pub fn wide_integers(&self) -> Vec<bool> {
        let Reduction::Rows { columns, .. } = &self.plan.reduction else {
            return vec![true; self.columns.len()];
        };
        let of = |(_, scalar): &(String, Scalar)| match scalar {
            Scalar::Column(at) => {
                columns.get(*at).is_none_or(|of| maps::is_wide(of, &self.plan.schema))
            }
            _ => true,
        };
        self.columns.iter().map(of).collect()
    }

    /// Describes the steps that are done on this machine with the answer of the plan.
    #[must_use]
    pub fn steps_behind(&self) -> Vec<String> {
        let mut steps = Vec::new();
        if self.having != Predicate::Constant(true) {
            steps.push("HAVING".to_owned());
        }
        if !self.order.is_empty() {
            steps.push("ORDER BY".to_owned());
        }
        let computes = |(_, scalar): &(String, Scalar)| {
            matches!(scalar, Scalar::Arithmetic(..) | Scalar::Convert(..))
        };
        if self.columns.iter().any(computes) {
            steps.push("arithmetic of aggregates".to_owned());
        }
        let limits = !self.streams() && !matches!(self.plan.reduction, Reduction::Top { .. });
        if self.offset > 0 || self.limit.is_some() && limits {
            steps.push("LIMIT".to_owned());
        }
        steps
    }

    /// Begins the answer.
    #[must_use]
    pub fn answers(&self) -> Answers<'_> {
        Answers { question: self, skip: self.offset, left: self.limit }
    }
}

/// Computes the answer from the plan's answers: from one, or from one for each part if they
/// [stream](Question::streams).
#[derive(Debug)]
pub struct Answers<'a> {
    question: &'a Question,
    /// Rows still to be skipped.
    skip: u64,
    /// Rows that may still follow.
    left: Option<u64>,
}

impl Answers<'_> {
    /// The next rows of the answer.
    ///
    /// # Errors
    /// [`Overflow`] of arithmetic.
    pub fn next(&mut self, table: Table) -> Result<Table, Overflow> {
        let question = self.question;
        let mut kept = Vec::with_capacity(table.rows.len());
        for row in table.rows {
            if question.having.holds(&row)? == Some(true) {
                let keys = question.order.iter().map(|order| order.by.value(&row));
                kept.push((keys.collect::<Result<Vec<_>, _>>()?, row));
            }
        }
        kept.sort_by(|(a, _), (b, _)| {
            let each = question.order.iter().zip(a.iter().zip(b));
            each.map(|(order, (a, b))| order.compare(a, b))
                .find(|order| order.is_ne())
                .unwrap_or(Ordering::Equal)
        });
        let most = self.left.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX));
        let skip = usize::try_from(self.skip).unwrap_or(usize::MAX).min(kept.len());
        self.skip -= skip as u64;
        let mut rows = Vec::with_capacity(kept.len() - skip);
        for (_, row) in kept.into_iter().skip(skip).take(most) {
            let values = question.columns.iter().map(|(_, scalar)| scalar.value(&row));
            rows.push(values.collect::<Result<Vec<_>, _>>()?);
        }
        self.left = self.left.map(|left| left - rows.len() as u64);
        let kinds = question.columns.iter().map(|(_, scalar)| kind(scalar, &table.kinds)).collect();
        Ok(Table { kinds, rows })
    }
}

impl Order {
    /// Numbers and text in their order; behind them NaN, and missing values last, unless NULLS FIRST.
    fn compare(&self, a: &Value, b: &Value) -> Ordering {
        let rank = |value: &Value| match value {
            Value::Null if self.nulls_first => 0,
            Value::Null => 3,
            value if value.is_nan() => 2,
            _ => 1,
        };
        let order = a.compare(b).unwrap_or(Ordering::Equal);
        rank(a).cmp(&rank(b)).then(if self.descending { order.reverse() } else { order })
    }
}

/// The kind of values that are computed from a row of the plan's answer.
fn kind(scalar: &Scalar, kinds: &[AnswerKind]) -> AnswerKind {
    match scalar {
        Scalar::Column(at) => kinds.get(*at).cloned().unwrap_or(AnswerKind::Float),
        Scalar::Literal(Value::Text(_)) => AnswerKind::Same(Kind::Utf8),
        Scalar::Literal(Value::Int(_)) => AnswerKind::Sum,
        Scalar::Literal(_) | Scalar::Arithmetic(Arithmetic::Divide, ..) => AnswerKind::Float,
        Scalar::Convert(Conversion::Double, _) => AnswerKind::Float,
        Scalar::Convert(Conversion::Begin(..), of) => kind(of, kinds),
        Scalar::Convert(..) => AnswerKind::Same(Kind::I64),
        Scalar::Arithmetic(_, a, b) => {
            let is_float = |scalar| match kind(scalar, kinds) {
                AnswerKind::Float => true,
                AnswerKind::Same(kind) => kind.is_float(),
                AnswerKind::Arrow(_) | AnswerKind::Sum | AnswerKind::Count => false,
            };
            if is_float(a) || is_float(b) { AnswerKind::Float } else { AnswerKind::Sum }
        }
    }
}
