//! Measures alternatives in turn, each several times, and computes medians.

use super::rig::{Link, Rig, Run};
use crate::measurement::{median, range};
use crate::steal;
use serde::Serialize;

type Failure = Box<dyn std::error::Error>;

/// The format in which only the columns of a query are read.
pub(super) const ARROW: &str = "arrow";

/// The figures of one path: medians over the repetitions.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) part: &'static str,
    pub(super) format: &'static str,
    pub(super) query: String,
    pub(super) path: &'static str,
    pub(super) link: Link,
    /// Bytes of a read, if not the largest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) block_bytes: Option<u32>,
    /// Bytes of the file; for Arrow the bytes of the columns that were read.
    pub(super) file_bytes: u64,
    /// Share of rows that passed the filter, of 1; None if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) selectivity: Option<f64>,
    pub(super) wall_s: f64,
    /// Of the fastest and the slowest repetition.
    pub(super) wall_s_range: [f64; 2],
    pub(super) host_cpu_s: f64,
    pub(super) target_cpu_s: f64,
    /// Bytes between host and target, without TCP and IP headers.
    pub(super) network_bytes: u64,
    pub(super) hops: u64,
}

impl Row {
    /// Gigabytes that the target processes in one second of its processor's time.
    pub(super) fn gb_per_target_cpu_s(&self) -> f64 {
        self.file_bytes as f64 * 1e-9 / self.target_cpu_s
    }

    /// Processor time of both sides.
    pub(super) fn both_cpu_s(&self) -> f64 {
        self.host_cpu_s + self.target_cpu_s
    }
}

/// A query, apart from its path.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) part: &'static str,
    pub(super) format: &'static str,
    pub(super) query: String,
    pub(super) link: Link,
    pub(super) block_bytes: Option<u32>,
    pub(super) file_bytes: u64,
    /// Rows of the file.
    pub(super) rows: Option<u64>,
}

/// Runs one path once.
pub(super) type Path<'a> = (&'static str, Box<dyn FnMut(&mut Rig) -> Result<Run, Failure> + 'a>);

/// Runs all paths in turn, for all repetitions.
pub(super) fn in_turn(
    rig: &mut Rig,
    asked: &Asked,
    paths: &mut [Path<'_>],
    repetitions: usize,
) -> Result<Vec<Row>, Failure> {
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); paths.len()];
    for _ in 0..repetitions {
        for ((name, path), runs) in paths.iter_mut().zip(&mut runs) {
            rig.check_not_stopped()?;
            let run = steal::undisturbed(false, || path(rig));
            runs.push(run.map_err(|error| {
                format!("{} of {}, {name}: {error}", asked.query, asked.format)
            })?);
        }
    }
    Ok(paths.iter().zip(&runs).map(|((name, _), runs)| row(asked, name, runs)).collect())
}

fn row(asked: &Asked, path: &'static str, runs: &[Run]) -> Row {
    let of = |value: fn(&Run) -> f64| runs.iter().map(value).collect::<Vec<_>>();
    let passed = runs.last().map(|run| run.cost.passed);
    let wall_s = of(|run| run.wall_s);
    let file_bytes = match (asked.format, runs.last()) {
        (ARROW, Some(run)) => run.cost.scanned_bytes,
        _ => asked.file_bytes,
    };
    let tells = !matches!(path, "duckdb" | "pyarrow" | "reads");
    let selectivity = passed.zip(asked.rows).filter(|_| tells);
    Row {
        part: asked.part,
        format: asked.format,
        query: asked.query.clone(),
        path,
        link: asked.link,
        block_bytes: asked.block_bytes,
        file_bytes,
        selectivity: selectivity.map(|(passed, rows)| passed as f64 / rows as f64),
        wall_s: median(&wall_s),
        wall_s_range: range(&wall_s),
        host_cpu_s: median(&of(|run| run.host_cpu_s)),
        target_cpu_s: median(&of(|run| run.target_cpu_s)),
        network_bytes: median(&of(|run| run.cost.network_bytes as f64)) as u64,
        hops: median(&of(|run| run.cost.hops as f64)) as u64,
    }
}

/// A row with invented figures.
#[cfg(test)]
pub(super) fn row_for_tests(
    part: &'static str,
    query: &str,
    path: &'static str,
    wall_s: f64,
) -> Row {
    Row {
        part,
        format: "records",
        query: query.to_owned(),
        path,
        link: Link::Ten,
        block_bytes: None,
        file_bytes: 1_000_000_000,
        selectivity: Some(0.5),
        wall_s,
        wall_s_range: [wall_s * 0.9, wall_s * 1.2],
        host_cpu_s: wall_s,
        target_cpu_s: wall_s / 2.0,
        network_bytes: (wall_s * 1000.0) as u64,
        hops: 10,
    }
}
