//! The cost of TLS: a target that hosts reach with and without it, with the ways measured in turn.
//!
//! Where the kernel can seal records, a second target uses that; the first target always seals them itself, and both
//! open records themselves. The host also handles records itself.

use crate::child_target::ChildTarget;
use crate::legend::{self, Word};
use crate::measurement::{CpuTimes, Figures, Run, Samples, cell, repetitions, thousands};
use crate::steal::{self, undisturbed};
use bpfof_auth::{ConfiguredPsk, PskHash};
use bpfof_host::{KeyFiles, TargetUrl};
use bpfof_terminal::stop_on_signal;
use serde::Serialize;
use std::fmt::{self, Write as _};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;

const PLAIN_HOST: &str = "nqn.2026-01.io.bpf-of:bench-plain";
const TLS_HOST: &str = "nqn.2026-01.io.bpf-of:bench-tls";

/// How requests reach a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Way {
    /// Without TLS.
    Plain,
    /// The target seals and opens records itself.
    Tls,
    /// The target's kernel seals records.
    KernelTls,
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Way::Plain => "plain",
            Way::Tls => "TLS",
            Way::KernelTls => "TLS by kernel",
        }
    }
}

/// Targets started by the benchmark, and a key for them.
pub(crate) struct Targets {
    own: ChildTarget,
    kernel: Option<ChildTarget>,
    psk: PathBuf,
    _folder: TempDir,
    /// Set by Ctrl-C and SIGTERM: the key must still be removed.
    pub(crate) stop: Arc<AtomicBool>,
}

impl Targets {
    /// The number of targets.
    pub(crate) fn count() -> usize {
        1 + usize::from(bpfof_tls::ktls::is_available().is_ok())
    }

    /// Starts the targets, each with such a namespace.
    pub(crate) fn start(
        namespace: &str,
        poll: bool,
    ) -> Result<Targets, Box<dyn std::error::Error>> {
        let stop = stop_on_signal()?;
        let folder = tempfile::tempdir()?;
        let (psk, config) = (folder.path().join("psk"), folder.path().join("target.toml"));
        let key = ConfiguredPsk::generate(PskHash::Sha256)?;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&psk);
        file?.write_all(key.to_text().expose())?;
        std::fs::write(&config, rules(&psk)?)?;
        let config = config.to_str().ok_or("the path for temporary files is not UTF-8")?;
        let start = |more: &[&str]| {
            ChildTarget::start_with(namespace, poll, &[&["--config", config], more].concat())
        };
        let own = start(&["--no-kernel-tls"])?;
        let kernel = if Self::count() > 1 { Some(start(&[])?) } else { None };
        Ok(Targets { own, kernel, psk, _folder: folder, stop })
    }

    /// The available ways, plain first.
    pub(crate) fn ways(&self) -> Vec<Way> {
        let kernel = self.kernel.as_ref().map(|_| Way::KernelTls);
        [Some(Way::Plain), Some(Way::Tls), kernel].into_iter().flatten().collect()
    }

    /// The target of a way.
    pub(crate) fn child(&self, way: Way) -> &ChildTarget {
        match (way, &self.kernel) {
            (Way::KernelTls, Some(kernel)) => kernel,
            _ => &self.own,
        }
    }

    /// The target's address, with the host's identity.
    pub(crate) fn url(&self, way: Way) -> TargetUrl {
        let mut url = self.child(way).url.clone();
        let is_plain = way == Way::Plain;
        url.host_nqn = Some(if is_plain { PLAIN_HOST } else { TLS_HOST }.to_owned());
        let tls_psk = (!is_plain).then(|| self.psk.clone());
        url.keys = KeyFiles { tls_psk, ..KeyFiles::default() };
        url
    }

    /// The result of a step, or an error if the user has ended the benchmark: the terminal interrupts the targets as
    /// well, and the host then loses them.
    pub(crate) fn unless_stopped<T, E: fmt::Display>(
        &self,
        result: Result<T, E>,
    ) -> Result<T, String> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err("interrupted".to_owned()),
            false => result.map_err(|error| error.to_string()),
        }
    }

    /// Measures the ways in turn, repeatedly, after a warm-up round that is not counted.
    pub(crate) fn in_turn(
        &self,
        count: u32,
        time: Duration,
        mut run: impl FnMut(Way, Duration) -> Result<(Run, CpuTimes), String>,
    ) -> Result<Vec<WayFigures>, String> {
        let mut samples: Vec<(Way, Samples)> =
            self.ways().into_iter().map(|way| (way, Samples::default())).collect();
        for (_, warm_up, time) in repetitions(count, time) {
            for (way, samples) in &mut samples {
                let measured = undisturbed(warm_up, || run(*way, time));
                let (run, spent) = self.unless_stopped(measured)?;
                if !warm_up {
                    samples.add(&run, spent);
                }
            }
        }
        Ok(figures(&samples))
    }
}

fn rules(psk: &Path) -> Result<String, serde_json::Error> {
    // A JSON string is also a TOML string.
    let psk = serde_json::to_string(psk)?;
    Ok(format!(
        "tls = \"allowed\"\n[[host]]\nnqn = \"{PLAIN_HOST}\"\n\
         [[host]]\nnqn = \"{TLS_HOST}\"\ntls-psk = [{psk}]\n"
    ))
}

/// Compared with plain: performance and cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct OverPlain {
    pub(crate) ops_per_s: f64,
    pub(crate) p50: f64,
    pub(crate) host_cpu: Option<f64>,
    pub(crate) target_cpu: Option<f64>,
}

impl OverPlain {
    fn of(plain: &Figures, way: &Figures) -> OverPlain {
        let over = |way: Option<f64>, plain: Option<f64>| Some(way? / plain?);
        OverPlain {
            ops_per_s: way.ops_per_s / plain.ops_per_s,
            p50: way.p50_us / plain.p50_us,
            host_cpu: over(way.host_cpu_us_per_op, plain.host_cpu_us_per_op),
            target_cpu: over(way.target_cpu_us_per_op, plain.target_cpu_us_per_op),
        }
    }
}

/// One way.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct WayFigures {
    pub(crate) way: Way,
    pub(crate) figures: Figures,
    /// None for plain itself.
    pub(crate) over_plain: Option<OverPlain>,
}

/// The figures of each way, with TLS compared to plain.
fn figures(samples: &[(Way, Samples)]) -> Vec<WayFigures> {
    let figures: Vec<_> = samples.iter().map(|(way, samples)| (*way, samples.figures())).collect();
    let plain =
        figures.iter().find(|(way, _)| *way == Way::Plain).map(|(_, figures)| figures.clone());
    let measured = figures.into_iter().map(|(way, figures)| {
        let plain = plain.as_ref().filter(|_| way != Way::Plain);
        let over_plain = plain.map(|plain| OverPlain::of(plain, &figures));
        WayFigures { way, figures, over_plain }
    });
    measured.collect()
}

/// One case of a table.
pub(crate) struct Row<'a> {
    pub(crate) label: String,
    pub(crate) ways: &'a [WayFigures],
}

/// The meaning of the table's words, after those of the cases' labels.
const WORDS: [Word<'static>; 7] = [
    ("plain", "without TLS"),
    ("TLS", "host and target seal and open records themselves"),
    (
        "TLS by kernel",
        "the target's kernel seals the records that it sends; the target opens those that it receives",
    ),
    legend::SPREAD,
    legend::QUANTILES,
    legend::PROCESSOR,
    (
        "over plain",
        "operations a second, processor time of host and of target, over those of plain: 0.80 operations are a \
         fifth less",
    ),
];

/// A table. `what` names the measured operations, in the plural; `words` explain the labels.
pub(crate) fn table(what: &str, words: &[Word<'_>], rows: &[Row<'_>]) -> String {
    let mut text = header();
    for Row { label, ways } in rows {
        text += &lines(label, ways);
    }
    let sentence = rows.last().and_then(|row| sentence(what, row));
    text + &legend::end(&[words, &WORDS].concat(), sentence, steal::lost_most())
}

/// The last case as a quotable sentence: TLS by whichever way has more operations a second.
fn sentence(what: &str, Row { label, ways }: &Row<'_>) -> Option<String> {
    let plain = ways.iter().find(|way| way.over_plain.is_none())?;
    let by_rate =
        |a: &&WayFigures, b: &&WayFigures| a.figures.ops_per_s.total_cmp(&b.figures.ops_per_s);
    let tls = ways.iter().filter(|way| way.over_plain.is_some()).max_by(by_rate)?;
    let over = tls.over_plain?;
    let cost = over.target_cpu.map_or(String::new(), |target_cpu| {
        format!(", each for {target_cpu:.1} times the processor time at the target")
    });
    Some(format!(
        "{what} over TLS ({label}): {} a second against {} without TLS, {:.0} %{cost}.",
        thousands(tls.figures.ops_per_s),
        thousands(plain.figures.ops_per_s),
        100.0 * over.ops_per_s,
    ))
}

/// The header line of the cases.
fn header() -> String {
    format!(
        "{:<26} {:<14} {:>10} {:>4} {:>9} {:>9} {:>9} {:>9} {:>24}\n",
        "case",
        "way",
        "ops/s",
        "± %",
        "p50 µs",
        "p99 µs",
        "host µs",
        "target µs",
        "over plain: ops host tgt"
    )
}

/// A case, one line for each way.
fn lines(label: &str, ways: &[WayFigures]) -> String {
    let mut text = String::new();
    for (index, WayFigures { way, figures, over_plain }) in ways.iter().enumerate() {
        let over = over_plain.map_or(String::new(), |over| {
            let (host, target) = (cell(over.host_cpu), cell(over.target_cpu));
            format!("{:.2} {host:>5} {target:>5}", over.ops_per_s)
        });
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<26} {:<14} {} {:>9} {:>9} {over:>24}",
            if index == 0 { label } else { "" },
            way.name(),
            figures.cells(),
            cell(figures.host_cpu_us_per_op),
            cell(figures.target_cpu_us_per_op),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::legend::assert_explained;

    fn figures(ops_per_s: f64, target_us: f64) -> Figures {
        Figures {
            ops_per_s_range: [ops_per_s * 0.75, ops_per_s * 1.1],
            host_cpu_us_per_op: Some(1.0),
            target_cpu_us_per_op: Some(target_us),
            ..Figures::example(ops_per_s)
        }
    }

    #[test]
    fn the_table_explains_itself() {
        let plain = figures(100_000.0, 2.0);
        let way = |way, figures: Figures| {
            let over_plain = (way != Way::Plain).then(|| OverPlain::of(&plain, &figures));
            WayFigures { way, figures, over_plain }
        };
        let slower = way(Way::Tls, figures(70_000.0, 4.0));
        let ways =
            [way(Way::Plain, plain.clone()), slower, way(Way::KernelTls, figures(80_000.0, 3.0))];
        let rows = [Row { label: "512 B, QD 1".to_owned(), ways: &ways }];
        let text = table("Reads", &[("QD", "queue depth")], &rows);
        let words = ["QD", "plain", "TLS", "TLS by kernel", "± %", "p50", "host µs", "over plain"];
        let sentence = "Reads over TLS (512 B, QD 1): 80,000 a second against 100,000 without TLS, 80 %, each \
             for 1.5 times the processor time at the target.";
        assert_explained(&text, &words, sentence);
        assert!(text.contains("   25 "), "{text}");
    }
}
