//! SQL aggregate functions.

use super::error::{SqlError, USE_AN_ENGINE};
use crate::plan::Measure;
use sqlparser::ast::{
    DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments,
};

/// The supported functions, for messages.
const KNOWN: &str = "aggregates are count, sum, min, max, avg, var_pop, var_samp, stddev_pop and stddev_samp; \
     conditions are starts_with and isnan";

/// The arguments of a call that has only plain arguments.
pub(super) fn arguments(function: &Function) -> Result<Vec<&FunctionArgExpr>, SqlError> {
    let refuse = |what: &str| Err(SqlError::unsupported(what, USE_AN_ENGINE));
    if function.over.is_some() {
        return refuse("OVER (a window function)");
    }
    if function.filter.is_some() {
        return Err(SqlError::unsupported(
            "FILTER",
            "write the condition after WHERE, one query for each",
        ));
    }
    if !function.within_group.is_empty() || function.null_treatment.is_some() {
        return refuse("WITHIN GROUP");
    }
    let FunctionArguments::List(list) = &function.args else {
        return refuse(&function.to_string());
    };
    if list.duplicate_treatment == Some(DuplicateTreatment::Distinct) {
        return Err(SqlError::unsupported(
            function,
            "use SELECT DISTINCT or GROUP BY, and count the rows of the answer",
        ));
    }
    if !list.clauses.is_empty() || !matches!(function.parameters, FunctionArguments::None) {
        return refuse(&function.to_string());
    }
    let mut found = Vec::new();
    for argument in &list.args {
        let FunctionArg::Unnamed(expr) = argument else { return refuse(&function.to_string()) };
        found.push(expr);
    }
    Ok(found)
}

/// An aggregate of an expression; None for `count(*)`.
pub(super) type Aggregated<'a> = (Measure, Option<&'a Expr>);

/// Parses a call; None if the function is not an aggregate.
pub(super) fn aggregate(function: &Function) -> Result<Option<Aggregated<'_>>, SqlError> {
    let name = function.name.to_string().to_ascii_lowercase();
    let measure = match name.as_str() {
        "count" => Measure::Count,
        "sum" => Measure::Sum,
        "min" => Measure::Min,
        "max" => Measure::Max,
        "avg" | "mean" => Measure::Mean,
        "var_pop" => Measure::Variance { ddof: 0 },
        "var_samp" | "variance" => Measure::Variance { ddof: 1 },
        "stddev_pop" => Measure::Deviation { ddof: 0 },
        "stddev_samp" | "stddev" => Measure::Deviation { ddof: 1 },
        _ => return Ok(None),
    };
    match (measure, &arguments(function)?[..]) {
        (Measure::Count, [] | [FunctionArgExpr::Wildcard]) => Ok(Some((Measure::CountAll, None))),
        (measure, [FunctionArgExpr::Expr(of)]) => Ok(Some((measure, Some(of)))),
        _ => Err(SqlError::Meaning(format!("{name} takes one expression, as in {name}(x)"))),
    }
}

/// The error for an unknown function.
pub(super) fn unknown(function: &Function) -> SqlError {
    SqlError::unsupported(format!("the function {}", function.name), KNOWN)
}
