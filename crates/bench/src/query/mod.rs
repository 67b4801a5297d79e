//! `bpfof bench query`: filters and reductions at the target, against reading the file.

mod cases;
mod data;
mod disk;
mod measure;
mod network;
mod plot;
mod private;
mod report;
mod rig;
mod tables;
mod worker;

use crate::output::{check_writable, write_json};
use crate::plot::prepare;
use crate::steal;
use bpfof_terminal::{Outcome, progress, stop_on_signal};
use cases::{Extent, Part};
use clap::{Args, ValueEnum};
use measure::Row;
use report::Report;
use rig::Rig;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

type Failure = Box<dyn std::error::Error>;

/// Where `scripts/setup.sh python` installs a Python with the engines.
const OWN_PYTHON: &str = ".tools/python/bin/python";
const QUICK_BYTES: u64 = 4 << 20;
/// Sizes of files are multiples of this.
const UNIT_BYTES: u64 = 1 << 20;

/// The options of `bpfof bench query`.
#[derive(Args)]
pub struct QueryOptions {
    /// Measure only these parts.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    parts: Vec<Part>,
    /// Size of each file, in MiB: records, CSV and, with the engines of --python, Arrow.
    #[arg(long, default_value_t = 1024, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    size_mib: u64,
    /// How often each figure is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    repetitions: u16,
    /// A Python with duckdb, pyarrow and numpy [default: the one of `scripts/setup.sh python`, or else python3].
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,
    /// Run all queries on small files, once: to see that they work. The figures are meaningless.
    #[arg(long, conflicts_with_all = ["size_mib", "repetitions"])]
    quick: bool,
    /// Write the figures to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the figures to PNG files in this folder.
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
}

pub(crate) fn run(options: &QueryOptions) -> Outcome {
    check_writable([&options.json])?;
    prepare(options.plots.as_deref())?;
    private::enter()?;
    let report = measure(options)?;
    let written = write_json(options.json.as_ref(), &report);
    let drawn = options.plots.as_ref().map_or(Ok(()), |folder| plot::draw(folder, &report));
    print!("{}", report.tables());
    written.and(drawn)
}

fn measure(options: &QueryOptions) -> Result<Report, Failure> {
    let stop = stop_on_signal()?;
    let extent = match options.quick {
        true => Extent { repetitions: 1, is_quick: true },
        false => Extent { repetitions: options.repetitions.into(), is_quick: false },
    };
    let parts = match options.parts.as_slice() {
        [] => Part::value_variants(),
        chosen => chosen,
    };
    let bytes = if options.quick { QUICK_BYTES } else { options.size_mib * UNIT_BYTES };
    let sizes =
        if parts.contains(&Part::Stacked) { cases::sizes(options.quick) } else { Vec::new() };
    let own = PathBuf::from(OWN_PYTHON);
    let default = || if own.exists() { own.clone() } else { PathBuf::from("python3") };
    let python = options.python.clone().unwrap_or_else(default);
    let mut rig = Rig::new(bytes, &sizes, &python, stop.clone())?;
    if let Some(why) = rig.without_engines.as_ref().filter(|_| parts.contains(&Part::Network)) {
        eprintln!(
            "continuing without DuckDB and pyarrow: {why}; `scripts/setup.sh python` installs them, --python names \
             another Python that has them"
        );
    }
    let bar = progress::steps(
        "measuring",
        parts.iter().map(|part| cases::steps(*part, options.quick) as u64).sum(),
    );
    let mut rows: Vec<Row> = Vec::new();
    for part in parts {
        let measured = match part {
            Part::Selectivity => cases::selectivity(&mut rig, extent, &bar),
            Part::Queries => cases::queries(&mut rig, extent, &bar),
            Part::Network => cases::network(&mut rig, extent, &bar),
            Part::Composed => cases::composed(&mut rig, extent, &bar),
            Part::Stacked => cases::stacked(&mut rig, extent, &bar),
            Part::Small => cases::small(&mut rig, extent, &bar),
        };
        // Errors after Ctrl-C are its consequences.
        if stop.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
        rows.extend(measured?);
    }
    bar.finish_and_clear();
    let engines = rig.engine_versions().map(str::to_owned);
    Ok(Report::new(rows, engines, extent, steal::lost_most()))
}
