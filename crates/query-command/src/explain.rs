//! Explanations: what a query would do and where, and what it has cost.

use crate::Failure;
use bpfof_query::ask::{Reach, Session, Where};
use bpfof_query::infer::Source;
use bpfof_query::output::harmless;
use bpfof_query::sql::Question;
use bpfof_query::{Place, SourceFile, Stats, split};
use serde_json::{Value, json};
use std::io::{self, Write};

/// The places where stages would run over the files, each once. Does not connect to them.
pub(crate) fn places(source: &Source, reach: &Reach) -> Result<Vec<String>, Failure> {
    let mut places: Vec<String> = Vec::new();
    for SourceFile { path, .. } in &source.files {
        let place = reach.place(path).map_err(Failure::other)?.to_string();
        if !places.contains(&place) {
            places.push(place);
        }
    }
    Ok(places)
}

/// Prints the steps of a query.
pub(crate) fn explain(
    question: &Question,
    source: &Source,
    places: &[String],
    as_json: bool,
) -> Result<(), Failure> {
    let split = split(question.plan()).map_err(Failure::question)?;
    let bytes: u64 = source.files.iter().map(|file| file.bytes).sum();
    let columns = &question.plan().schema.columns;
    let looked_at: Vec<&str> = split.columns.iter().map(|at| &*columns[*at].name).collect();
    let mut out = bpfof_terminal::output();
    if as_json {
        let steps = split.steps.iter().map(|step| {
            json!({ "what": step.what, "where": where_of(step.place), "why_here": step.why_here })
        });
        let behind = question.steps_behind();
        let behind =
            behind.iter().map(|what| json!({ "what": what, "where": "here", "why_here": null }));
        let steps: Vec<Value> = steps.chain(behind).collect();
        let schema: Vec<Value> = source
            .schema
            .columns
            .iter()
            .map(|column| json!({ "name": column.name, "kind": column.kind.to_string() }))
            .collect();
        let explained = json!({
            "files": source.files.len(), "bytes": bytes, "stages": places, "schema": schema,
            "columns": looked_at, "steps": steps,
        });
        writeln!(out, "{explained}")?;
        return Ok(());
    }
    let files = source.files.len();
    writeln!(out, "{files} file{}, {bytes} bytes", if files == 1 { "" } else { "s" })?;
    let schema: Vec<String> = source
        .schema
        .columns
        .iter()
        .map(|column| format!("{} {}", column.name, column.kind))
        .collect();
    let mut tell = |line: String| writeln!(out, "{}", harmless(&line));
    tell(format!("columns: {}", schema.join(", ")))?;
    tell(format!(
        "looks at: {}",
        if looked_at.is_empty() { "none".to_owned() } else { looked_at.join(", ") }
    ))?;
    for place in places {
        tell(format!("stages run {place}"))?;
    }
    for step in &split.steps {
        let why = step.why_here.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        tell(format!("  {:<6}  {}{why}", where_of(step.place), step.what))?;
    }
    for step in question.steps_behind() {
        tell(format!("  {:<6}  {step}", "here"))?;
    }
    Ok(())
}

const fn where_of(place: Place) -> &'static str {
    match place {
        Place::Stages => "stages",
        Place::Here => "here",
    }
}

/// Prints the cost of a query on standard error.
pub(crate) fn tell_stats(stats: Stats, session: &Session, as_json: bool) -> Result<(), Failure> {
    let mut err = io::stderr().lock();
    if as_json {
        let stats = serde_json::to_string(&stats).map_err(Failure::other)?;
        writeln!(err, "{stats}")?;
        return Ok(());
    }
    let Stats { scanned_bytes, rows, passed, sent_bytes, received_bytes, .. } = stats;
    for place in session.places() {
        writeln!(err, "stages ran {place}")?;
    }
    writeln!(err, "{scanned_bytes} bytes and {rows} rows scanned, {passed} rows passed")?;
    if session.places().any(|place| matches!(place, Where::Target { .. })) {
        writeln!(err, "{sent_bytes} bytes sent to targets, {received_bytes} received")?;
    }
    let Stats { chains, chains_at_target, hops, again, .. } = stats;
    writeln!(
        err,
        "{chains} chains, {chains_at_target} of them at targets, {hops} hops; {again} run again"
    )?;
    Ok(())
}
