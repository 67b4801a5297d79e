//! Parses a statement. Clauses that are not supported are refused here.

use super::error::{SqlError, USE_AN_ENGINE, quoted};
use sqlparser::ast::{
    Distinct, Expr, FunctionArg, FunctionArgExpr, GroupByExpr, LimitClause, ObjectName,
    OrderByKind, OrderBySort, Query, Select, SelectItem, SetExpr, Statement as Ast, TableFactor,
    Value, WildcardAdditionalOptions,
};
use sqlparser::dialect::DuckDbDialect;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Token, Tokenizer};

/// Maximum length of a statement, in bytes.
const TEXT_MAX_BYTES: usize = 1 << 20;
/// Maximum number of names and operators of a statement. The parser may nest them as deeply; these fit onto a stack.
const WORDS_MAX: usize = 4096;

/// A column of the answer.
#[derive(Debug)]
pub(super) enum Item {
    /// All columns of the files.
    All,
    /// An expression, with its alias.
    One(Box<Expr>, Option<String>),
}

/// A key of ORDER BY.
#[derive(Debug)]
pub(super) struct OrderKey {
    pub(super) by: Expr,
    pub(super) descending: bool,
    pub(super) nulls_first: bool,
}

/// GROUP BY.
#[derive(Debug)]
pub(super) enum Grouping {
    /// There is no GROUP BY.
    None,
    /// By all items that are not aggregates: GROUP BY ALL and SELECT DISTINCT.
    All,
    By(Vec<Expr>),
}

/// A SELECT over files.
#[derive(Debug)]
pub struct Statement {
    files: Vec<String>,
    pub(super) table_name: Option<String>,
    pub(super) items: Vec<Item>,
    pub(super) distinct: bool,
    pub(super) filter: Option<Expr>,
    pub(super) grouping: Grouping,
    pub(super) having: Option<Expr>,
    pub(super) order: Vec<OrderKey>,
    pub(super) offset: u64,
    pub(super) limit: Option<u64>,
}

impl Statement {
    /// Parses a statement.
    ///
    /// # Errors
    /// It is not SQL, or not a single SELECT over files.
    pub fn parse(text: &str) -> Result<Self, SqlError> {
        Self::of_text(text, false)
    }

    fn of_text(text: &str, has_table: bool) -> Result<Self, SqlError> {
        if text.len() > TEXT_MAX_BYTES {
            let bytes = text.len();
            return Err(SqlError::Meaning(format!(
                "the statement has {bytes} bytes; at most {TEXT_MAX_BYTES} are allowed"
            )));
        }
        let syntax = |error: ParserError| {
            let text = error.to_string();
            SqlError::Syntax(text.trim_start_matches("sql parser error: ").to_owned())
        };
        let tokens = Tokenizer::new(&DuckDbDialect, text).tokenize_with_location();
        let tokens = tokens.map_err(|error| syntax(error.into()))?;
        let words = tokens.iter().filter(|token| !is_constant(&token.token)).count();
        if words > WORDS_MAX {
            return Err(SqlError::Meaning(format!(
                "the statement has {words} names and operators; at most {WORDS_MAX} are allowed"
            )));
        }
        let mut parser = Parser::new(&DuckDbDialect).with_tokens_with_locations(tokens);
        let mut statements = parser.parse_statements().map_err(syntax)?;
        let (Some(ast), true) = (statements.pop(), statements.is_empty()) else {
            return Err(SqlError::Meaning("write one statement: SELECT … FROM 'FILE'".to_owned()));
        };
        match ast {
            Ast::Query(query) => of_query(*query, has_table),
            other => {
                let what = quoted(other).split_whitespace().next().unwrap_or_default().to_owned();
                Err(SqlError::unsupported(what, "files can only be read, by SELECT … FROM 'FILE'"))
            }
        }
    }

    /// The files that it refers to: paths and patterns, in order.
    #[must_use]
    pub fn files(&self) -> &[String] {
        &self.files
    }

    /// Parses a statement over a table that is known otherwise: `FROM trips`. It names no files.
    ///
    /// # Errors
    /// As for [`parse`](Self::parse); or it names files.
    pub fn parse_over_table(text: &str) -> Result<Self, SqlError> {
        Self::of_text(text, true)
    }
}

fn is_constant(token: &Token) -> bool {
    matches!(
        token,
        Token::Whitespace(_) | Token::Comma | Token::Number(..) | Token::SingleQuotedString(_)
    )
}

/// Refuses a clause if it is present.
fn none(is_there: bool, what: &str, instead: &str) -> Result<(), SqlError> {
    if is_there { Err(SqlError::unsupported(what, instead)) } else { Ok(()) }
}

fn of_query(query: Query, has_table: bool) -> Result<Statement, SqlError> {
    none(query.with.is_some(), "WITH", USE_AN_ENGINE)?;
    none(query.fetch.is_some(), "FETCH", "write LIMIT")?;
    none(!query.locks.is_empty(), "FOR UPDATE", "files can only be read")?;
    let others = query.for_clause.is_some()
        || query.settings.is_some()
        || query.format_clause.is_some()
        || !query.pipe_operators.is_empty();
    none(others, "a clause after the SELECT", "leave it out")?;
    let order = match query.order_by.map(|order| order.kind) {
        None => Vec::new(),
        Some(OrderByKind::All(_)) => {
            return Err(SqlError::unsupported("ORDER BY ALL", "name the columns to order by"));
        }
        Some(OrderByKind::Expressions(keys)) => {
            keys.into_iter().map(order_key).collect::<Result<_, _>>()?
        }
    };
    let (offset, limit) = limits(query.limit_clause)?;
    let select = match *query.body {
        SetExpr::Select(select) => *select,
        SetExpr::SetOperation { op, .. } => {
            return Err(SqlError::unsupported(
                op,
                "one SELECT at a time; name several files by a pattern",
            ));
        }
        _ => return Err(SqlError::Meaning("write one SELECT … FROM 'FILE'".to_owned())),
    };
    let statement = of_select(select, has_table)?;
    Ok(Statement { order, offset, limit, ..statement })
}

fn order_key(key: sqlparser::ast::OrderByExpr) -> Result<OrderKey, SqlError> {
    none(key.with_fill.is_some(), "WITH FILL", "leave it out")?;
    let descending = match key.options.sort {
        None | Some(OrderBySort::Asc) => false,
        Some(OrderBySort::Desc) => true,
        Some(OrderBySort::Using(_)) => {
            return Err(SqlError::unsupported("ORDER BY … USING", "write ASC or DESC"));
        }
    };
    Ok(OrderKey { by: key.expr, descending, nulls_first: key.options.nulls_first == Some(true) })
}

fn limits(clause: Option<LimitClause>) -> Result<(u64, Option<u64>), SqlError> {
    let (limit, offset) = match clause {
        None => return Ok((0, None)),
        Some(LimitClause::OffsetCommaLimit { offset, limit }) => (Some(limit), Some(offset)),
        Some(LimitClause::LimitOffset { limit, offset, limit_by }) => {
            none(!limit_by.is_empty(), "LIMIT … BY", USE_AN_ENGINE)?;
            (limit, offset.map(|offset| offset.value))
        }
    };
    let number = |expr: Expr| {
        match &expr {
            Expr::Value(value) => match &value.value {
                Value::Number(digits, _) => digits.parse::<u64>().ok(),
                _ => None,
            },
            _ => None,
        }
        .ok_or_else(|| {
            SqlError::Meaning(format!("{} is not a row count for LIMIT or OFFSET", quoted(expr)))
        })
    };
    Ok((offset.map(number).transpose()?.unwrap_or(0), limit.map(number).transpose()?))
}

fn of_select(mut select: Select, has_table: bool) -> Result<Statement, SqlError> {
    none(
        select.into.is_some(),
        "SELECT INTO",
        "write the answer by --csv, --json or --arrow FILE",
    )?;
    none(select.top.is_some(), "TOP", "write ORDER BY … LIMIT")?;
    none(select.qualify.is_some(), "QUALIFY", USE_AN_ENGINE)?;
    none(!select.named_window.is_empty(), "WINDOW", USE_AN_ENGINE)?;
    none(!select.lateral_views.is_empty(), "LATERAL VIEW", USE_AN_ENGINE)?;
    none(select.prewhere.is_some(), "PREWHERE", "write WHERE")?;
    none(!select.connect_by.is_empty(), "CONNECT BY", USE_AN_ENGINE)?;
    let by = [&select.cluster_by, &select.distribute_by];
    none(by.iter().any(|by| !by.is_empty()), "CLUSTER BY", USE_AN_ENGINE)?;
    none(!select.sort_by.is_empty(), "SORT BY", "write ORDER BY")?;
    none(select.exclude.is_some(), "EXCLUDE", "name the columns")?;
    let rest = select.value_table_mode.is_some() || select.select_modifiers.is_some();
    none(rest, "SELECT AS", "name the columns")?;
    let distinct = match select.distinct {
        None | Some(Distinct::All) => false,
        Some(Distinct::Distinct) => true,
        Some(Distinct::On(_)) => return Err(SqlError::unsupported("DISTINCT ON", USE_AN_ENGINE)),
    };
    let (files, table_name) = source(&mut select, has_table)?;
    let grouping = match select.group_by {
        GroupByExpr::All(modifiers) => {
            none(!modifiers.is_empty(), "GROUP BY … WITH", USE_AN_ENGINE)?;
            Grouping::All
        }
        GroupByExpr::Expressions(keys, modifiers) => {
            none(!modifiers.is_empty(), "GROUP BY … WITH", USE_AN_ENGINE)?;
            if keys.is_empty() { Grouping::None } else { Grouping::By(keys) }
        }
    };
    let items = select.projection.into_iter().map(item).collect::<Result<Vec<_>, _>>()?;
    none(items.is_empty(), "FROM without SELECT", "write SELECT * FROM 'FILE'")?;
    Ok(Statement {
        files,
        table_name,
        items,
        distinct,
        filter: select.selection,
        grouping,
        having: select.having,
        order: Vec::new(),
        offset: 0,
        limit: None,
    })
}

fn item(item: SelectItem) -> Result<Item, SqlError> {
    match item {
        SelectItem::UnnamedExpr(expr) => Ok(Item::One(Box::new(expr), None)),
        SelectItem::ExprWithAlias { expr, alias } => {
            Ok(Item::One(Box::new(expr), Some(alias.value)))
        }
        SelectItem::Wildcard(WildcardAdditionalOptions {
            opt_ilike: None,
            opt_exclude: None,
            opt_except: None,
            opt_replace: None,
            opt_rename: None,
            ..
        }) => Ok(Item::All),
        other => Err(SqlError::unsupported(other, "write *, or name the columns")),
    }
}

/// The files, and the name of the table.
fn source(select: &mut Select, has_table: bool) -> Result<(Vec<String>, Option<String>), SqlError> {
    let how = if has_table {
        "write FROM t"
    } else {
        "write FROM 'FILE', FROM 'PATTERN*', or FROM files('FILE', 'FILE')"
    };
    let mut tables = std::mem::take(&mut select.from);
    let Some(table) = tables.pop() else {
        return Err(SqlError::Meaning(format!("the statement names no files: {how}")));
    };
    if !tables.is_empty() || !table.joins.is_empty() {
        return Err(SqlError::unsupported("JOIN", USE_AN_ENGINE));
    }
    let TableFactor::Table { name, alias, args, sample, with_ordinality, with_hints, .. } =
        table.relation
    else {
        return Err(SqlError::unsupported(format!("FROM {}", quoted(&table.relation)), how));
    };
    none(sample.is_some(), "TABLESAMPLE", USE_AN_ENGINE)?;
    none(with_ordinality || !with_hints.is_empty(), "WITH after FROM", "leave it out")?;
    let renames = alias.as_ref().is_some_and(|alias| !alias.columns.is_empty());
    none(renames, "a list of columns after FROM", "write SELECT COLUMN AS NAME")?;
    let alias = alias.map(|alias| alias.name.value);
    let (name, quote) = one_name(&name)
        .ok_or_else(|| SqlError::Meaning(format!("FROM {} is not a file: {how}", quoted(&name))))?;
    let files = match args {
        None if has_table && quote != Some('\'') => {
            return Ok((Vec::new(), Some(alias.unwrap_or(name))));
        }
        _ if has_table => {
            let what = "write the name of the table: FROM t".to_owned();
            return Err(SqlError::Meaning(what));
        }
        None if quote == Some('\'') => vec![name],
        Some(args) if quote.is_none() && name.eq_ignore_ascii_case("files") => {
            let files: Option<Vec<String>> = args.args.into_iter().map(text_argument).collect();
            let files = files.filter(|files| !files.is_empty());
            files
                .ok_or_else(|| SqlError::Meaning(format!("files() takes paths in quotes: {how}")))?
        }
        Some(_) => return Err(SqlError::unsupported(format!("{name}()"), how)),
        None => {
            return Err(SqlError::Meaning(format!("FROM {} is not a file: {how}", quoted(&name))));
        }
    };
    Ok((files, alias))
}

/// A name of a single part, and its quote character.
fn one_name(name: &ObjectName) -> Option<(String, Option<char>)> {
    let [part] = &name.0[..] else { return None };
    part.as_ident().map(|ident| (ident.value.clone(), ident.quote_style))
}

fn text_argument(argument: FunctionArg) -> Option<String> {
    match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(value))) => match value.value {
            Value::SingleQuotedString(text) => Some(text),
            _ => None,
        },
        _ => None,
    }
}
