//! Descriptions of parts of plans.

use crate::plan::{Arithmetic, Compare, Measure, Plan, Predicate, Reduction, Scalar, Value};

pub(crate) fn describe_value(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) => format!("{number:?}"),
        Value::Text(text) => format!("'{}'", text.replace('\'', "''")),
    }
}

pub(crate) fn describe_scalar(of: &Scalar, plan: &Plan) -> String {
    match of {
        Scalar::Column(column) => match plan.schema.columns.get(*column) {
            Some(column) => column.name.clone(),
            None => format!("column {column}"),
        },
        Scalar::Literal(value) => describe_value(value),
        Scalar::Convert(conversion, of) => conversion.describe(&describe_scalar(of, plan)),
        Scalar::Arithmetic(operation, left, right) => {
            let sign = match operation {
                Arithmetic::Add => '+',
                Arithmetic::Subtract => '-',
                Arithmetic::Multiply => '*',
                Arithmetic::Divide => '/',
            };
            format!("({} {sign} {})", describe_scalar(left, plan), describe_scalar(right, plan))
        }
    }
}

pub(crate) fn describe(predicate: &Predicate, plan: &Plan) -> String {
    let list = |all: &[Predicate], between: &str| {
        let all: Vec<_> = all.iter().map(|one| describe(one, plan)).collect();
        format!("({})", all.join(between))
    };
    match predicate {
        Predicate::Constant(constant) => constant.to_string().to_uppercase(),
        Predicate::Compare(compare, left, right) => {
            let sign = match compare {
                Compare::Equal => "=",
                Compare::NotEqual => "<>",
                Compare::Less => "<",
                Compare::AtMost => "<=",
                Compare::Greater => ">",
                Compare::AtLeast => ">=",
            };
            format!("{} {sign} {}", describe_scalar(left, plan), describe_scalar(right, plan))
        }
        Predicate::In(of, values) => {
            let values: Vec<_> = values.iter().map(describe_value).collect();
            format!("{} IN ({})", describe_scalar(of, plan), values.join(", "))
        }
        Predicate::StartsWith(of, prefix) => {
            let prefix = describe_value(&Value::Text(prefix.clone()));
            format!("starts_with({}, {prefix})", describe_scalar(of, plan))
        }
        Predicate::IsNull(of) => format!("{} IS NULL", describe_scalar(of, plan)),
        Predicate::IsNan(of) => format!("isnan({})", describe_scalar(of, plan)),
        Predicate::And(all) => list(all, " AND "),
        Predicate::Or(all) => list(all, " OR "),
        Predicate::Not(not) => format!("NOT ({})", describe(not, plan)),
    }
}

pub(crate) fn describe_reduction(plan: &Plan) -> String {
    let scalars = |all: &[Scalar]| {
        let all: Vec<_> = all.iter().map(|of| describe_scalar(of, plan)).collect();
        all.join(", ")
    };
    match &plan.reduction {
        Reduction::Rows { columns, limit: None } => format!("rows: {}", scalars(columns)),
        Reduction::Rows { columns, limit: Some(limit) } => {
            format!("the first {limit} rows: {}", scalars(columns))
        }
        Reduction::Groups { keys, aggregates } => {
            let aggregates: Vec<_> = aggregates
                .iter()
                .map(|aggregate| {
                    let name = match aggregate.measure {
                        Measure::CountAll => return "count(*)".to_owned(),
                        Measure::Count => "count",
                        Measure::Sum => "sum",
                        Measure::Min => "min",
                        Measure::Max => "max",
                        Measure::Mean => "avg",
                        Measure::Variance { ddof: 0 } => "var_pop",
                        Measure::Variance { .. } => "var_samp",
                        Measure::Deviation { ddof: 0 } => "stddev_pop",
                        Measure::Deviation { .. } => "stddev_samp",
                    };
                    format!("{name}({})", describe_scalar(&aggregate.of, plan))
                })
                .collect();
            let aggregates = aggregates.join(", ");
            match keys.is_empty() {
                true => format!("fold: {aggregates}"),
                false => format!("group by {}: {aggregates}", scalars(keys)),
            }
        }
        Reduction::Top { by, descending, count, columns } => {
            let order = if *descending { "greatest" } else { "least" };
            let by = describe_scalar(by, plan);
            format!("{count} rows with the {order} {by}: {}", scalars(columns))
        }
        Reduction::Histogram { of, low, high, bins } => {
            let of = describe_scalar(of, plan);
            format!("histogram of {of} from {low:?} to {high:?} in {bins} intervals")
        }
    }
}
