//! The figures as JSON, with derived figures.

use super::cases::{Extent, MANY_GROUPS};
use super::measure::{ARROW, Row};
use super::rig::Link;
use serde::Serialize;

/// The project's goals apply to selectivities up to this.
const SELECTIVE: f64 = 0.5;

/// The figures with goals; None if not measured.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Summary {
    /// Bytes on the wire, plain over pushed: the least of all reductions except the one to 100,000 groups.
    pub(super) net_bytes_ratio_reduce: Option<f64>,
    /// Processor time of the target, pushed over plain: the greatest of all selectivities up to a half, records.
    pub(super) target_cpu_over_plain: Option<f64>,
    /// Processor time of both sides, plain over pushed: the least of these.
    pub(super) both_cpu_gain: Option<f64>,
    /// Gigabytes for a second of the target's processor time: the least of these.
    pub(super) binary_gb_per_cpu_s: Option<f64>,
    /// The same for CSV: a fold of a half of the rows.
    pub(super) csv_gb_per_cpu_s: Option<f64>,
    /// The same for Arrow, counting the bytes of the columns in the query.
    pub(super) arrow_gb_per_cpu_s: Option<f64>,
    /// Processor time of the target, three functions over one, at the largest reads.
    pub(super) composed_over_fused: Option<f64>,
    /// Time over a link of 10 Gb/s, DuckDB over pushed: a fold of records.
    pub(super) speedup_10gbps: Option<f64>,
    /// The same for CSV.
    pub(super) speedup_10gbps_csv: Option<f64>,
    /// Records, pyarrow over pushed.
    pub(super) speedup_10gbps_pyarrow: Option<f64>,
    /// Records, plain reads with compiled code over pushed.
    pub(super) speedup_10gbps_plain: Option<f64>,
    /// Time of a query of 1 MiB from a connected process.
    pub(super) small_query_ms: Option<f64>,
}

/// The parts of one query's time, pushed down and plain, in ms (e2BPF, figures 6.7 and 6.8).
#[derive(Clone, Debug, Serialize)]
pub(super) struct Stack {
    pub(super) file_bytes: u64,
    /// The percentage that the filter removes.
    pub(super) filter_factor: u32,
    /// Loading three stages that the target does not have yet.
    pub(super) load_ms: f64,
    /// Hops at the target that only read.
    pub(super) io_ms: f64,
    /// The additional time of filter and fold at the target.
    pub(super) filter_reduce_ms: f64,
    /// The additional time of plain reads over hops: the transfer of data to the host.
    pub(super) plain_transfer_ms: f64,
    /// The additional time of filter and fold by compiled code at the host.
    pub(super) plain_filter_reduce_ms: f64,
}

/// The same figures from e2BPF's thesis (section 6.3).
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Thesis {
    /// Filter and reduction in the kernel divided by the same in user space: with nothing filtered, and with
    /// everything.
    pub(super) filter_over_user_space: [f64; 2],
    /// The gain of the read path without its copy.
    pub(super) gain_without_copy: f64,
}

pub(super) const THESIS: Thesis =
    Thesis { filter_over_user_space: [3.0, 5.0], gain_without_copy: 0.2 };

/// All results.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    bench: &'static str,
    /// Whether this is a quick run, whose figures are meaningless.
    pub(super) is_quick: bool,
    pub(super) repetitions: usize,
    /// The engines of the comparison.
    pub(super) engines: Option<String>,
    /// The largest share of the processors' time that a hypervisor took from a measurement, of 1.
    pub(super) lost: f64,
    pub(super) rows: Vec<Row>,
    pub(super) stacked: Vec<Stack>,
    thesis: Thesis,
    pub(super) summary: Summary,
}

impl Report {
    pub(super) fn new(
        rows: Vec<Row>,
        engines: Option<String>,
        Extent { repetitions, is_quick }: Extent,
        lost: f64,
    ) -> Report {
        let stacked = stacks(&rows);
        let summary = Summary::of(&rows);
        Report {
            bench: "query",
            is_quick,
            repetitions,
            engines,
            lost,
            rows,
            stacked,
            thesis: THESIS,
            summary,
        }
    }

    /// Rows of a part.
    pub(super) fn part<'a>(&'a self, part: &'a str) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(move |row| row.part == part)
    }
}

/// Groups of rows that were measured in turn.
pub(super) fn groups<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<Vec<&'a Row>> {
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        match groups.last_mut() {
            Some(group) if !group.iter().any(|known| known.path == row.path) => group.push(row),
            _ => groups.push(vec![row]),
        }
    }
    groups
}

/// A value of one path divided by that of another, in a group.
pub(super) fn ratio(
    group: &[&Row],
    value: impl Fn(&Row) -> f64,
    [over, under]: [&str; 2],
) -> Option<f64> {
    let of = |name: &str| group.iter().find(|row| row.path == name).map(|row| value(row));
    Some(of(over)? / of(under)?)
}

/// Bytes on the network, plain reads over pushed, both for each byte that the query needs: in an Arrow file plain reads
/// also fetch other columns, which its reader would skip.
pub(super) fn fewer_bytes(group: &[&Row]) -> Option<f64> {
    let fetched = ratio(group, |row| row.network_bytes as f64, ["reads", "pushed"])?;
    let needed = ratio(group, |row| row.file_bytes as f64, ["pushed", "reads"])?;
    Some(fetched * needed)
}

fn least(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.reduce(f64::min)
}

fn is_selective(group: &[&Row]) -> bool {
    group[0].query == "fold" && group[0].selectivity.is_some_and(|part| part <= SELECTIVE)
}

impl Summary {
    fn of(rows: &[Row]) -> Summary {
        let part = |part: &'static str| groups(rows.iter().filter(move |row| row.part == part));
        let selective: Vec<_> =
            part("selectivity").into_iter().filter(|group| is_selective(group)).collect();
        let each = |value: fn(&Row) -> f64, paths| {
            selective.iter().filter_map(|group| ratio(group, value, paths)).collect::<Vec<f64>>()
        };
        let queries = part("queries");
        let reductions = queries.iter().filter(|group| group[0].query != MANY_GROUPS);
        let link = part("network");
        let at_ten = |format: &str, path| {
            let of = |group: &&Vec<&Row>| group[0].link == Link::Ten && group[0].format == format;
            ratio(link.iter().find(of)?, |row| row.wall_s, [path, "pushed"])
        };
        let fold = |format: &str| {
            let of = |row: &&&Row| row.format == format && row.query.starts_with("fold");
            queries.iter().flatten().find(of).map(|row| row.gb_per_target_cpu_s())
        };
        let largest = part("composed").into_iter().max_by_key(|group| group[0].block_bytes);
        Summary {
            net_bytes_ratio_reduce: least(reductions.filter_map(|group| fewer_bytes(group))),
            target_cpu_over_plain: each(|row| row.target_cpu_s, ["pushed", "plain"])
                .into_iter()
                .reduce(f64::max),
            both_cpu_gain: least(each(Row::both_cpu_s, ["plain", "pushed"]).into_iter()),
            binary_gb_per_cpu_s: least(
                selective
                    .iter()
                    .flatten()
                    .filter(|row| row.path == "pushed")
                    .map(|row| row.gb_per_target_cpu_s()),
            ),
            csv_gb_per_cpu_s: fold("csv"),
            arrow_gb_per_cpu_s: fold(ARROW),
            composed_over_fused: largest.and_then(|group| {
                ratio(&group, |row| row.target_cpu_s, ["three functions", "one function"])
            }),
            speedup_10gbps: at_ten("records", "duckdb"),
            speedup_10gbps_csv: at_ten("csv", "duckdb"),
            speedup_10gbps_pyarrow: at_ten("records", "pyarrow"),
            speedup_10gbps_plain: at_ten("records", "plain"),
            small_query_ms: rows
                .iter()
                .find(|row| row.part == "small")
                .map(|row| row.wall_s * 1000.0),
        }
    }
}

fn stacks(rows: &[Row]) -> Vec<Stack> {
    let of = |group: Vec<&Row>| {
        let ms =
            |path: &str| group.iter().find(|row| row.path == path).map(|row| row.wall_s * 1000.0);
        let (load_ms, pushed, io_ms) = (ms("load")?, ms("pushed")?, ms("reads at the target")?);
        let (plain, reads) = (ms("plain")?, ms("plain reads")?);
        Some(Stack {
            file_bytes: group[0].file_bytes,
            filter_factor: group[0].query.strip_prefix("ff")?.parse().ok()?,
            load_ms,
            io_ms,
            filter_reduce_ms: (pushed - io_ms).max(0.0),
            plain_transfer_ms: (reads - io_ms).max(0.0),
            plain_filter_reduce_ms: (plain - reads).max(0.0),
        })
    };
    groups(rows.iter().filter(|row| row.part == "stacked")).into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::super::measure::row_for_tests as row;
    use super::*;

    #[test]
    fn the_summary_is_of_what_was_measured_in_turn() {
        let mut rows = vec![
            row("selectivity", "fold", "pushed", 0.25),
            row("selectivity", "fold", "plain", 1.0),
            row("selectivity", "fold", "pushed", 0.5),
            row("selectivity", "fold", "plain", 1.0),
            row("queries", "count", "pushed", 0.001),
            row("queries", "count", "reads", 4.0),
            row("queries", MANY_GROUPS, "pushed", 2.0),
            row("queries", MANY_GROUPS, "reads", 4.0),
            row("network", "fold of a half", "pushed", 0.2),
            row("network", "fold of a half", "duckdb", 1.0),
            row("small", "fold of a half", "pushed", 0.004),
        ];
        let mut unselective = row("selectivity", "fold", "pushed", 9.0);
        unselective.selectivity = Some(0.75);
        rows.insert(4, unselective);
        let summary = Summary::of(&rows);
        assert_eq!(summary.target_cpu_over_plain, Some(0.5));
        assert_eq!(summary.both_cpu_gain, Some(2.0));
        assert_eq!(summary.binary_gb_per_cpu_s, Some(4.0));
        assert_eq!(summary.net_bytes_ratio_reduce, Some(4000.0));
        assert_eq!((summary.speedup_10gbps, summary.speedup_10gbps_pyarrow), (Some(5.0), None));
        assert_eq!(summary.small_query_ms, Some(4.0));
        assert!(summary.composed_over_fused.is_none() && summary.csv_gb_per_cpu_s.is_none());
    }

    #[test]
    fn columns_that_a_query_does_not_need_are_no_gain() {
        let mut pushed = row("queries", "sum", "pushed", 0.001);
        let reads = row("queries", "sum", "reads", 4.0);
        pushed.file_bytes = reads.file_bytes / 8;
        assert_eq!(Summary::of(&[pushed, reads]).net_bytes_ratio_reduce, Some(500.0));
    }

    #[test]
    fn stacks_are_made_of_differences() {
        let of = |path, wall_s| row("stacked", "ff25", path, wall_s);
        let rows = [
            of("load", 0.03),
            of("pushed", 0.010),
            of("reads at the target", 0.004),
            of("plain", 0.020),
            of("plain reads", 0.015),
        ];
        let stack = &stacks(&rows)[0];
        let all = [
            stack.load_ms,
            stack.io_ms,
            stack.filter_reduce_ms,
            stack.plain_transfer_ms,
            stack.plain_filter_reduce_ms,
        ];
        assert_eq!((stack.filter_factor, all.map(f64::round)), (25, [30.0, 4.0, 6.0, 11.0, 5.0]));
    }
}
