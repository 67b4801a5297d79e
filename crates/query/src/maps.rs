//! Arithmetic for the map stage (`functions/query/map.h`): each operation becomes a column behind those of the schema,
//! and the plan refers to that column.

use crate::measures;
use crate::order_form;
use crate::plan::Conversion;
use crate::plan::{
    Aggregate, Arithmetic, Column, Kind, Measure, Plan, Predicate, Reduction, Scalar, Schema, Value,
};

/// The arithmetic that stages do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All. A row with integers that do not fit into 64 bits ends a chain.
    All,
    /// Arithmetic whose results always fit into 64 bits.
    Fitting,
    Nothing,
}

/// A plan in which arithmetic that stages can do is replaced by the columns that they make.
#[derive(Debug)]
pub(crate) struct Mapped {
    pub(crate) plan: Plan,
    pub(crate) steps: Vec<Step>,
    extent: Extent,
}

/// A column that the map stage makes.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) operation: Arithmetic,
    pub(crate) operands: [Operand; 2],
    /// The scalar of the original plan that it computes.
    pub(crate) scalar: Scalar,
    /// The range of its values if they are integers; None for doubles.
    domain: Option<(i128, i128)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operand {
    /// Index in the schema, including the columns that are made.
    Column(usize),
    Int(i64),
    Float(f64),
}

impl Operand {
    /// The literal in order form, and its kind; None for a column.
    pub(crate) fn literal(self) -> Option<(u64, Kind)> {
        match self {
            Self::Column(_) => None,
            Self::Int(number) => Some((order_form::of_int(Kind::I64, number.into()), Kind::I64)),
            Self::Float(number) => Some((order_form::of_float(number), Kind::F64)),
        }
    }
}

impl Mapped {
    /// Maps `filter` and the reduction of a plan.
    pub(crate) fn new(plan: &Plan, filter: &Predicate, extent: Extent) -> Self {
        let mut mapped = Self {
            plan: Plan { filter: Predicate::Constant(true), ..plan.clone() },
            steps: Vec::new(),
            extent,
        };
        mapped.plan.filter = mapped.predicate(filter);
        mapped.plan.reduction = mapped.reduction(&plan.reduction);
        mapped
    }

    /// Maps only a filter: rows are answered unchanged.
    pub(crate) fn of_filter(plan: &Plan, filter: &Predicate) -> Self {
        let rows = Reduction::Rows { columns: Vec::new(), limit: None };
        let plan = Plan { reduction: rows, ..plan.clone() };
        Self::new(&plan, filter, Extent::Fitting)
    }

    fn reduction(&mut self, reduction: &Reduction) -> Reduction {
        match reduction {
            // The columns are computed on the host.
            Reduction::Rows { .. } => reduction.clone(),
            Reduction::Groups { keys, aggregates } => Reduction::Groups {
                keys: keys.iter().map(|key| self.scalar(key)).collect(),
                aggregates: aggregates
                    .iter()
                    .map(|one| match one.measure {
                        // It does not use a column.
                        Measure::CountAll => one.clone(),
                        measure => Aggregate { measure, of: self.scalar(&one.of) },
                    })
                    .collect(),
            },
            Reduction::Top { by, descending, count, columns } => Reduction::Top {
                by: self.scalar(by),
                descending: *descending,
                count: *count,
                columns: columns.clone(),
            },
            Reduction::Histogram { of, low, high, bins } => {
                Reduction::Histogram { of: self.scalar(of), low: *low, high: *high, bins: *bins }
            }
        }
    }

    fn predicate(&mut self, predicate: &Predicate) -> Predicate {
        let mut all = |all: &[Predicate]| all.iter().map(|one| self.predicate(one)).collect();
        match predicate {
            Predicate::Constant(_) => predicate.clone(),
            Predicate::And(parts) => Predicate::And(all(parts)),
            Predicate::Or(parts) => Predicate::Or(all(parts)),
            Predicate::Not(not) => Predicate::Not(Box::new(self.predicate(not))),
            Predicate::Compare(compare, left, right) => {
                Predicate::Compare(*compare, self.scalar(left), self.scalar(right))
            }
            Predicate::In(of, values) => Predicate::In(self.scalar(of), values.clone()),
            Predicate::StartsWith(of, prefix) => {
                Predicate::StartsWith(self.scalar(of), prefix.clone())
            }
            Predicate::IsNull(of) => Predicate::IsNull(self.scalar(of)),
            Predicate::IsNan(of) => Predicate::IsNan(self.scalar(of)),
        }
    }

    /// The column that replaces a scalar, or the scalar, if stages cannot compute it.
    fn scalar(&mut self, scalar: &Scalar) -> Scalar {
        let (Scalar::Arithmetic(..) | Scalar::Convert(..)) = scalar else { return scalar.clone() };
        let made = self.steps.len();
        match self.operand(scalar) {
            Some(Operand::Column(column)) => Scalar::Column(column),
            Some(Operand::Int(number)) => Scalar::Literal(Value::Int(number.into())),
            Some(Operand::Float(number)) => Scalar::Literal(Value::Float(number)),
            None => {
                self.plan
                    .schema
                    .columns
                    .truncate(self.plan.schema.columns.len() + made - self.steps.len());
                self.steps.truncate(made);
                scalar.clone()
            }
        }
    }

    fn operand(&mut self, scalar: &Scalar) -> Option<Operand> {
        if self.extent == Extent::Nothing {
            return None;
        }
        match scalar {
            Scalar::Column(column) => {
                let is_text = self.plan.schema.columns.get(*column)?.kind == Kind::Utf8;
                (!is_text).then_some(Operand::Column(*column))
            }
            Scalar::Literal(Value::Int(number)) => i64::try_from(*number).ok().map(Operand::Int),
            Scalar::Literal(Value::Float(number)) => Some(Operand::Float(*number)),
            Scalar::Literal(Value::Null | Value::Text(_)) => None,
            Scalar::Convert(conversion, of) => self.converted(*conversion, of, scalar),
            Scalar::Arithmetic(operation, left, right) => {
                if let Some(step) = self.steps.iter().position(|step| step.scalar.is(scalar)) {
                    return Some(Operand::Column(self.first() + step));
                }
                let operands = [self.operand(left)?, self.operand(right)?];
                if !operands.iter().any(|operand| matches!(operand, Operand::Column(_))) {
                    return literal(scalar);
                }
                self.make(*operation, operands, scalar)
            }
        }
    }

    /// A cast that changes nothing; or a cast of an integer to a double, as the product with 1.0.
    fn converted(
        &mut self,
        conversion: Conversion,
        of: &Scalar,
        scalar: &Scalar,
    ) -> Option<Operand> {
        let operand = self.operand(of)?;
        let fits = |(low, high): (i128, i128)| low >= i64::MIN.into() && high <= i64::MAX.into();
        match (conversion, self.domain(operand), operand) {
            (Conversion::Double, None, _) => Some(operand),
            (Conversion::Double, Some(_), Operand::Column(_)) => {
                match self.steps.iter().position(|step| step.scalar.is(scalar)) {
                    Some(step) => Some(Operand::Column(self.first() + step)),
                    None => self.make(Arithmetic::Multiply, [operand, Operand::Float(1.0)], scalar),
                }
            }
            (Conversion::Double, Some(_), literal) => Some(as_float(literal)),
            (Conversion::Integer, Some(domain), _) if fits(domain) && self.is_certain(operand) => {
                Some(operand)
            }
            _ => None,
        }
    }

    /// Whether the operand can have all values of its domain. The domain of a column that is made has been cut to the
    /// values that stages let pass.
    fn is_certain(&self, operand: Operand) -> bool {
        !matches!(operand, Operand::Column(column) if column >= self.first())
    }

    /// Index of the first column that is made.
    pub(crate) fn first(&self) -> usize {
        self.plan.schema.columns.len() - self.steps.len()
    }

    fn make(
        &mut self,
        operation: Arithmetic,
        mut operands: [Operand; 2],
        scalar: &Scalar,
    ) -> Option<Operand> {
        let [left, right] = operands.map(|operand| self.domain(operand));
        let domain = match (operation, left, right) {
            (Arithmetic::Divide, ..) | (_, None, _) | (_, _, None) => None,
            (operation, Some(left), Some(right)) => Some(result(operation, left, right)?),
        };
        let fits = |(low, high): &(i128, i128)| *low >= i64::MIN.into() && *high <= i64::MAX.into();
        match domain {
            None => operands = operands.map(as_float),
            Some(domain) => {
                let all_fit = [left, right, Some(domain)].iter().flatten().all(fits);
                if self.extent == Extent::Fitting && !all_fit {
                    return None;
                }
            }
        }
        let may_be_missing = |operand: &Operand| match operand {
            Operand::Column(column) => {
                self.plan.format.may_be_missing(&self.plan.schema.columns[*column])
            }
            _ => false,
        };
        let nullable = operands.iter().any(may_be_missing);
        let kind = if domain.is_some() { Kind::I64 } else { Kind::F64 };
        let domain =
            domain.map(|(low, high)| (low.max(i64::MIN.into()), high.min(i64::MAX.into())));
        self.steps.push(Step { operation, operands, scalar: scalar.clone(), domain });
        self.plan.schema.columns.push(Column { name: String::new(), kind, nullable });
        Some(Operand::Column(self.plan.schema.columns.len() - 1))
    }

    /// The range of an operand that is an integer; None for doubles.
    fn domain(&self, operand: Operand) -> Option<(i128, i128)> {
        match operand {
            Operand::Float(_) => None,
            Operand::Int(number) => Some((number.into(), number.into())),
            Operand::Column(column) if column >= self.first() => {
                self.steps[column - self.first()].domain
            }
            Operand::Column(column) => self.plan.schema.columns[column].kind.domain(),
        }
    }
}

/// Evaluates arithmetic without columns.
fn literal(scalar: &Scalar) -> Option<Operand> {
    match scalar.value(&[]).ok()? {
        Value::Int(number) => i64::try_from(number).ok().map(Operand::Int),
        Value::Float(number) => Some(Operand::Float(number)),
        Value::Null | Value::Text(_) => None,
    }
}

fn as_float(operand: Operand) -> Operand {
    match operand {
        Operand::Int(number) => Operand::Float(number as f64),
        other => other,
    }
}

/// The range of the results of an operation on integers; None if they may exceed 128 bits.
fn result(
    operation: Arithmetic,
    (low, high): (i128, i128),
    (other_low, other_high): (i128, i128),
) -> Option<(i128, i128)> {
    Some(match operation {
        Arithmetic::Add => (low.checked_add(other_low)?, high.checked_add(other_high)?),
        Arithmetic::Subtract => (low.checked_sub(other_high)?, high.checked_sub(other_low)?),
        Arithmetic::Multiply => {
            let products = [
                low.checked_mul(other_low)?,
                low.checked_mul(other_high)?,
                high.checked_mul(other_low)?,
                high.checked_mul(other_high)?,
            ];
            (products.into_iter().min()?, products.into_iter().max()?)
        }
        Arithmetic::Divide => return None,
    })
}

/// Whether values are integers that may exceed 64 bits.
pub(crate) fn is_wide(of: &Scalar, schema: &Schema) -> bool {
    !measures::is_float(of, schema)
        && domain(of, schema)
            .is_none_or(|(low, high)| low < i64::MIN.into() || high > i64::MAX.into())
}

/// The range of a scalar's integers; None if they may exceed 128 bits.
fn domain(of: &Scalar, schema: &Schema) -> Option<(i128, i128)> {
    match of {
        Scalar::Column(index) => schema.columns.get(*index)?.kind.domain(),
        Scalar::Literal(Value::Int(number)) => Some((*number, *number)),
        Scalar::Literal(_) => None,
        // The beginning of a part is not after the time itself.
        Scalar::Convert(..) => Kind::I64.domain(),
        Scalar::Arithmetic(operation, left, right) => {
            result(*operation, domain(left, schema)?, domain(right, schema)?)
        }
    }
}

/// Whether a predicate contains arithmetic or conversions.
pub(crate) fn computes(predicate: &Predicate) -> bool {
    let is_arithmetic = |of: &Scalar| matches!(of, Scalar::Arithmetic(..) | Scalar::Convert(..));
    match predicate {
        Predicate::Constant(_) => false,
        Predicate::Compare(_, left, right) => is_arithmetic(left) || is_arithmetic(right),
        Predicate::In(of, _)
        | Predicate::StartsWith(of, _)
        | Predicate::IsNull(of)
        | Predicate::IsNan(of) => is_arithmetic(of),
        Predicate::And(all) | Predicate::Or(all) => all.iter().any(computes),
        Predicate::Not(not) => computes(not),
    }
}
