//! The figures as tables.

use super::measure::Row;
use super::report::{Report, Stack, Summary, THESIS, fewer_bytes, groups, ratio};
use crate::legend::{self, Word};
use crate::measurement::{median, spread_percent};
use std::fmt::Write as _;

const WORDS: [Word<'static>; 9] = [
    ("passed", "rows that pass the filter, in percent"),
    ("GB/s", "bytes of the file by the time from the question to the answer, in 10^9"),
    ("GB/CPU-s", "bytes of the file by the processor time of the target"),
    (
        "target/plain",
        "processor time of the target, pushed down over plain; below 1 pushing down costs the target less than sending",
    ),
    ("both", "processor time of both sides, plain over pushed"),
    ("here", "processor time of both sides if the stages run at the host, over pushed"),
    (
        "bytes",
        "on the network, plain over pushed; for Arrow, plain reads of the columns that the query needs",
    ),
    (
        "± %",
        "distance of the fastest and the slowest repetition from the median; the figures are medians",
    ),
    ("hop µs", "processor time of the target by hops"),
];

/// The goals of the summary, and whether more is better.
fn goals(summary: &Summary) -> [(&'static str, Option<f64>, f64, bool); 9] {
    [
        ("net_bytes_ratio_reduce", summary.net_bytes_ratio_reduce, 1000.0, true),
        ("target_cpu_over_plain", summary.target_cpu_over_plain, 1.0, false),
        ("both_cpu_gain", summary.both_cpu_gain, 3.0, true),
        ("binary_gb_per_cpu_s", summary.binary_gb_per_cpu_s, 5.0, true),
        ("csv_gb_per_cpu_s", summary.csv_gb_per_cpu_s, 1.0, true),
        ("arrow_gb_per_cpu_s", summary.arrow_gb_per_cpu_s, 5.0, true),
        ("composed_over_fused", summary.composed_over_fused, 1.25, false),
        ("speedup_10gbps", summary.speedup_10gbps, 4.0, true),
        ("small_query_ms", summary.small_query_ms, 10.0, false),
    ]
}

fn or_none(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

impl Report {
    /// The tables of all figures.
    pub(super) fn tables(&self) -> String {
        let mut text = String::new();
        if self.is_quick {
            text += "Quick run: these figures are not meaningful.\n";
        }
        self.selectivity(&mut text);
        self.queries(&mut text);
        self.network(&mut text);
        self.composed(&mut text);
        self.stacked(&mut text);
        self.goals(&mut text);
        text + &legend::end(&WORDS, self.sentence(), self.lost)
    }

    fn sentence(&self) -> Option<String> {
        let Summary { speedup_10gbps, speedup_10gbps_csv, .. } = self.summary;
        Some(format!(
            "Over a link of 10 Gb/s a query that is pushed down is answered {:.1} times as fast as by DuckDB over plain \
             reads of records, and {} times of CSV.",
            speedup_10gbps?,
            or_none(speedup_10gbps_csv, 1)
        ))
    }

    fn selectivity(&self, text: &mut String) {
        let groups = groups(self.part("selectivity"));
        if groups.is_empty() {
            return;
        }
        let _ = writeln!(
            text,
            "Records, by how many pass: pushed down against plain reads of 128 KiB with compiled code\n\
             {:<6} {:>7} {:>8} {:>5} {:>9} {:>9} {:>13} {:>6} {:>6} {:>10}",
            "",
            "passed",
            "GB/s",
            "± %",
            "GB/CPU-s",
            "plain",
            "target/plain",
            "both",
            "here",
            "bytes"
        );
        for group in groups {
            let Some(pushed) = group.iter().find(|row| row.path == "pushed") else { continue };
            let plain = group.iter().find(|row| row.path == "plain");
            let of = |value: fn(&Row) -> f64, paths| ratio(&group, value, paths);
            let _ = writeln!(
                text,
                "{:<6} {:>7} {:>8.2} {:>5.0} {:>9.2} {:>9} {:>13} {:>6} {:>6} {:>10}",
                pushed.query,
                or_none(pushed.selectivity.map(|part| part * 100.0), 2),
                gb_per_s(pushed),
                spread_percent(pushed.wall_s, pushed.wall_s_range),
                pushed.gb_per_target_cpu_s(),
                or_none(plain.map(|row| row.gb_per_target_cpu_s()), 2),
                or_none(of(|row| row.target_cpu_s, ["pushed", "plain"]), 2),
                or_none(of(Row::both_cpu_s, ["plain", "pushed"]), 2),
                or_none(of(Row::both_cpu_s, ["stages here", "pushed"]), 2),
                or_none(of(|row| row.network_bytes as f64, ["plain", "pushed"]), 0),
            );
        }
    }

    fn queries(&self, text: &mut String) {
        let groups = groups(self.part("queries"));
        if groups.is_empty() {
            return;
        }
        let _ = writeln!(
            text,
            "\nQueries\n{:<8} {:<15} {:>8} {:>5} {:>9} {:>10}",
            "", "", "GB/s", "± %", "GB/CPU-s", "bytes"
        );
        for group in groups {
            let Some(pushed) = group.iter().find(|row| row.path == "pushed") else { continue };
            let _ = writeln!(
                text,
                "{:<8} {:<15} {:>8.2} {:>5.0} {:>9.2} {:>10}",
                pushed.format,
                pushed.query,
                gb_per_s(pushed),
                spread_percent(pushed.wall_s, pushed.wall_s_range),
                pushed.gb_per_target_cpu_s(),
                or_none(fewer_bytes(&group), 0),
            );
        }
    }

    fn network(&self, text: &mut String) {
        let groups = groups(self.part("network"));
        if groups.is_empty() {
            return;
        }
        let paths = ["pushed", "reads", "plain", "duckdb", "pyarrow"];
        let _ = write!(
            text,
            "\nGB/s of a fold of a half of the rows, and time over that of pushed down ({})\n{:<9} {:<8}",
            self.engines.as_deref().unwrap_or("no engines"),
            "",
            ""
        );
        for path in paths {
            let _ = write!(text, " {path:>16}");
        }
        for group in groups {
            let _ = write!(text, "\n{:<9} {:<8}", group[0].link.name(), group[0].format);
            for path in paths {
                let row = group.iter().find(|row| row.path == path);
                let times = ratio(&group, |row| row.wall_s, [path, "pushed"]);
                let cell = row.zip(times).map(|(row, times)| {
                    let spread = spread_percent(row.wall_s, row.wall_s_range);
                    format!("{:.2} ±{spread:.0} {times:.1}×", gb_per_s(row))
                });
                let _ = write!(text, " {:>16}", cell.unwrap_or_else(|| "-".to_owned()));
            }
        }
        text.push('\n');
    }

    fn composed(&self, text: &mut String) {
        let groups = groups(self.part("composed"));
        if groups.is_empty() {
            return;
        }
        let paths = ["reads only", "one function", "two functions", "three functions"];
        let _ =
            write!(text, "\nhop µs, by the size of reads in bytes (e2BPF, figure 6.4)\n{:<9}", "");
        for path in paths {
            let _ = write!(text, " {path:>16}");
        }
        for group in groups.iter().rev() {
            let _ = write!(text, "\n{:>9}", group[0].block_bytes.unwrap_or_default());
            for path in paths {
                let row = group.iter().find(|row| row.path == path);
                let us = row.map(|row| row.target_cpu_s * 1e6 / row.hops.max(1) as f64);
                let _ = write!(text, " {:>16}", or_none(us, 2));
            }
        }
        text.push_str("\ne2BPF: tail calls do not seem to add any significant overhead.\n");
    }

    fn stacked(&self, text: &mut String) {
        if self.stacked.is_empty() {
            return;
        }
        let _ = writeln!(
            text,
            "\nOne chain, and one plain read at a time, in ms (e2BPF, figures 6.7 and 6.8); ff: percent that \
             the amount filters, beside a fifteenth by zone\n\
             {:>5} {:>4} {:>10} {:>10} {:>14} {:>15} {:>20}",
            "MiB",
            "ff",
            "load once",
            "I/O",
            "filter-reduce",
            "plain transfer",
            "plain filter-reduce"
        );
        for stack in &self.stacked {
            let _ = writeln!(
                text,
                "{:>5} {:>4} {:>10.2} {:>10.2} {:>14.2} {:>15.2} {:>20.2}",
                stack.file_bytes >> 20,
                stack.filter_factor,
                stack.load_ms,
                stack.io_ms,
                stack.filter_reduce_ms,
                stack.plain_transfer_ms,
                stack.plain_filter_reduce_ms
            );
        }
        let [least, most] = THESIS.filter_over_user_space;
        let _ = write!(
            text,
            "Filter and reduction at the target over compiled code at the host (figure 6.9):"
        );
        for (factor, times) in filter_over_compiled(&self.stacked) {
            let _ = write!(text, " ff{factor} {times:.1}");
        }
        let _ = writeln!(text, "; e2BPF: {least:.0} to {most:.0}.");
    }

    fn goals(&self, text: &mut String) {
        let _ = writeln!(text, "\n{:<24} {:>10} {:>12}", "", "measured", "goal");
        for (name, value, goal, is_more) in goals(&self.summary) {
            let sign = if is_more { "≥" } else { "≤" };
            let _ = writeln!(
                text,
                "{name:<24} {:>10} {:>12}",
                or_none(value, 2),
                format!("{sign} {goal}")
            );
        }
    }
}

/// Time of filter and reduction at the target divided by that at the host, by filter factor: medians over the sizes.
pub(super) fn filter_over_compiled(stacks: &[Stack]) -> Vec<(u32, f64)> {
    let mut factors: Vec<u32> = stacks.iter().map(|stack| stack.filter_factor).collect();
    factors.sort_unstable();
    factors.dedup();
    let of = |factor| {
        let these = stacks.iter().filter(|stack| stack.filter_factor == factor);
        let times = these.map(|stack| stack.filter_reduce_ms / stack.plain_filter_reduce_ms);
        median(&times.collect::<Vec<_>>())
    };
    let has_ratio = |(_, times): &(u32, f64)| times.is_finite() && *times > 0.0;
    factors.into_iter().map(|factor| (factor, of(factor))).filter(has_ratio).collect()
}

fn gb_per_s(row: &Row) -> f64 {
    row.file_bytes as f64 * 1e-9 / row.wall_s
}

#[cfg(test)]
mod tests {
    use super::super::cases::Extent;
    use super::super::measure::row_for_tests as row;
    use super::*;
    use crate::legend::assert_explained;

    #[test]
    fn the_tables_explain_themselves() {
        let rows = vec![
            row("selectivity", "fold", "pushed", 0.25),
            row("selectivity", "fold", "plain", 1.0),
            row("network", "fold of a half", "pushed", 0.25),
            row("network", "fold of a half", "duckdb", 1.0),
            row("stacked", "ff25", "load", 0.03),
            row("stacked", "ff25", "pushed", 0.010),
            row("stacked", "ff25", "reads at the target", 0.004),
            row("stacked", "ff25", "plain", 0.018),
            row("stacked", "ff25", "plain reads", 0.015),
        ];
        let extent = Extent { repetitions: 1, is_quick: false };
        let text = Report::new(rows, None, extent, 0.0).tables();
        let words = ["passed", "GB/s", "GB/CPU-s", "target/plain", "both", "bytes", "± %"];
        assert_explained(&text, &words, "is answered 4.0 times as fast as by DuckDB");
        assert!(text.contains("1.00 ±20 4.0×") && text.contains("ff25 2.0;"), "{text}");
        assert!(text.contains("target_cpu_over_plain          0.25          ≤ 1"), "{text}");
    }
}
