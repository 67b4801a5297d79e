//! What TLS costs: a target that hosts reach with and without it, the ways measured in turn.
//!
//! Where the kernel seals and opens records a second target leaves them to it; the first one does that
//! itself in any case. The host's records are its own.

use crate::child_target::ChildTarget;
use crate::measurement::{CpuTimes, Figures, Run, Samples};
use crate::steal::undisturbed;
use bpfof_auth::{ConfiguredPsk, PskHash};
use bpfof_host::{KeyFiles, TargetUrl};
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const PLAIN_HOST: &str = "nqn.2026-01.io.bpf-of:bench-plain";
const TLS_HOST: &str = "nqn.2026-01.io.bpf-of:bench-tls";

/// How requests go to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Way {
    /// Without TLS.
    Plain,
    /// The target seals and opens records itself.
    Tls,
    /// The target's kernel does.
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

/// Targets of our own, and a key for them.
pub(crate) struct Targets {
    own: ChildTarget,
    kernel: Option<ChildTarget>,
    psk: PathBuf,
    _folder: TempDir,
}

impl Targets {
    /// How many there will be.
    pub(crate) fn count() -> usize {
        1 + usize::from(bpfof_tls::ktls::is_available().is_ok())
    }

    /// Starts them with a namespace like this each.
    pub(crate) fn start(
        namespace: &str,
        poll: bool,
    ) -> Result<Targets, Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let (psk, config) = (folder.path().join("psk"), folder.path().join("target.toml"));
        let key = ConfiguredPsk::generate(PskHash::Sha256)?;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&psk);
        file?.write_all(key.to_text().expose())?;
        std::fs::write(&config, rules(&psk)?)?;
        let config = config.to_str().ok_or("the folder for temporary files is no UTF-8")?;
        let start = |more: &[&str]| {
            ChildTarget::start_with(namespace, poll, &[&["--config", config], more].concat())
        };
        let own = start(&["--no-kernel-tls"])?;
        let kernel = if Self::count() > 1 { Some(start(&[])?) } else { None };
        Ok(Targets { own, kernel, psk, _folder: folder })
    }

    /// The ways that there are, plain first.
    pub(crate) fn ways(&self) -> Vec<Way> {
        let kernel = self.kernel.as_ref().map(|_| Way::KernelTls);
        [Some(Way::Plain), Some(Way::Tls), kernel].into_iter().flatten().collect()
    }

    /// The target that a way leads to.
    pub(crate) fn child(&self, way: Way) -> &ChildTarget {
        match (way, &self.kernel) {
            (Way::KernelTls, Some(kernel)) => kernel,
            _ => &self.own,
        }
    }

    /// Its address, with who the host is.
    pub(crate) fn url(&self, way: Way) -> TargetUrl {
        let mut url = self.child(way).url.clone();
        let is_plain = way == Way::Plain;
        url.host_nqn = Some(if is_plain { PLAIN_HOST } else { TLS_HOST }.to_owned());
        let tls_psk = (!is_plain).then(|| self.psk.clone());
        url.keys = KeyFiles { tls_psk, ..KeyFiles::default() };
        url
    }
}

fn rules(psk: &Path) -> Result<String, serde_json::Error> {
    // A string of JSON is one of TOML.
    let psk = serde_json::to_string(psk)?;
    Ok(format!(
        "tls = \"allowed\"\n[[host]]\nnqn = \"{PLAIN_HOST}\"\n\
         [[host]]\nnqn = \"{TLS_HOST}\"\ntls-psk = [{psk}]\n"
    ))
}

/// Against plain: what is had, and what it costs.
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

/// Measures the ways in turn, again and again, after a round to warm up that is not counted.
pub(crate) fn in_turn(
    ways: &[Way],
    repetitions: u32,
    time: Duration,
    mut run: impl FnMut(Way, Duration) -> Result<(Run, CpuTimes), String>,
) -> Result<Vec<WayFigures>, String> {
    let mut samples: Vec<(Way, Samples)> =
        ways.iter().map(|way| (*way, Samples::default())).collect();
    for repetition in 0..=repetitions {
        let warm_up = repetition == 0;
        let time = if warm_up { time / 5 } else { time };
        for (way, samples) in &mut samples {
            let (run, spent) = undisturbed(warm_up, || run(*way, time))?;
            if !warm_up {
                samples.add(&run, spent);
            }
        }
    }
    let figures: Vec<_> = samples.iter().map(|(way, samples)| (*way, samples.figures())).collect();
    let plain =
        figures.iter().find(|(way, _)| *way == Way::Plain).map(|(_, figures)| figures.clone());
    let measured = figures.into_iter().map(|(way, figures)| {
        let plain = plain.as_ref().filter(|_| way != Way::Plain);
        let over_plain = plain.map(|plain| OverPlain::of(plain, &figures));
        WayFigures { way, figures, over_plain }
    });
    Ok(measured.collect())
}

/// The line above those of cases.
pub(crate) fn header() -> String {
    format!(
        "{:<26} {:<14} {:>10} {:>9} {:>9} {:>9} {:>9} {:>24}\n",
        "case",
        "way",
        "ops/s",
        "p50 µs",
        "p99 µs",
        "host µs",
        "target µs",
        "over plain: ops host tgt"
    )
}

/// A case for people, a line for each way.
pub(crate) fn lines(label: &str, ways: &[WayFigures]) -> String {
    let cpu = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    let mut text = String::new();
    for (index, WayFigures { way, figures, over_plain }) in ways.iter().enumerate() {
        let over = over_plain.map_or(String::new(), |over| {
            let (host, target) = (cpu(over.host_cpu), cpu(over.target_cpu));
            format!("{:.2} {host:>5} {target:>5}", over.ops_per_s)
        });
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<26} {:<14} {:>10.0} {:>9.1} {:>9.1} {:>9} {:>9} {over:>24}",
            if index == 0 { label } else { "" },
            way.name(),
            figures.ops_per_s,
            figures.p50_us,
            figures.p99_us,
            cpu(figures.host_cpu_us_per_op),
            cpu(figures.target_cpu_us_per_op),
        );
    }
    text
}
