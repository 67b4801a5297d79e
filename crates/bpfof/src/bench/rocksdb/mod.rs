//! `bpfof bench rocksdb`: RocksDB over the network, plain reads against pushdown (BPF-oF §6).

mod driver;
mod image;
mod plan;
mod plot;
mod report;
mod table;

use super::spawn::{self, ChildTarget};
use super::{check_writable, write_json};
use crate::{Outcome, progress};
use clap::Args;
use driver::{Driver, Measurement};
use image::Image;
use indicatif::ProgressBar;
use plan::Step;
use report::{Case, Report};
use serde_json::Value;
use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;

/// RocksDB on a target with modelled drives: each workload runs with plain reads, with chains and with
/// all blocks fetched at once, in turn, several times. Figures are medians. The target has one
/// processor, the program with RocksDB another. Needs root, to mount an image.
///
/// Workloads: uniform, 5050 (half of them updates), zipf:THETA, YCSB's a to f, twitter19, twitter37,
/// multiget:N, scan:N.
#[derive(Args)]
pub(crate) struct RocksdbOptions {
    /// A minute's worth of it: few keys, few workloads, short repetitions.
    #[arg(long)]
    quick: bool,
    /// Keys of 16 bytes [default: 9000000; with --quick 400000].
    #[arg(long)]
    keys: Option<u64>,
    /// Bytes of a value.
    #[arg(long, default_value_t = 100)]
    value_bytes: u64,
    /// Latencies of the drive in µs, with a target each: 3 is an Optane, 90 a NAND drive. All that is
    /// not about workloads is measured at the first [default: 3,90; with --quick 3].
    #[arg(long, value_delimiter = ',')]
    latencies: Option<Vec<u64>>,
    /// Workloads [default: uniform,c,multiget:16,scan:50,5050,b,a,f,d,e,twitter19,twitter37; with
    /// --quick uniform,c,5050,e].
    #[arg(long, value_delimiter = ',')]
    workloads: Option<Vec<String>>,
    /// Block cache of the runs with one, in bytes [default: a hundredth of keys and values].
    #[arg(long)]
    cache_bytes: Option<u64>,
    /// Threads that use the database, on one processor (BPF-oF §6.1 has 20 and 24 for each).
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=1000))]
    threads: u32,
    /// Numbers of threads for uniform reads, latency against throughput; "" for none [default:
    /// 1,2,4,8,16,32; with --quick none].
    #[arg(long, value_delimiter = ',')]
    curve: Option<Vec<String>>,
    /// Percentages of Gets that RocksDB does itself for its cache; "" for none [default:
    /// 0,0.1,1,10,100; with --quick none].
    #[arg(long, value_delimiter = ',')]
    sampling: Option<Vec<String>>,
    /// Leave out Bloom filters and indices that are not held in memory, as --quick does.
    #[arg(long)]
    default_configuration: bool,
    /// Repetitions of each mode [default: 5; with --quick 3].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: Option<u32>,
    /// Length of each repetition in ms [default: 1000; with --quick 300].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    milliseconds: Option<u64>,
    /// Where to make the image with the database: a folder on a tmpfs.
    #[arg(long, value_name = "FOLDER", default_value = "/dev/shm")]
    folder: PathBuf,
    /// An image on a tmpfs that is kept, and used again if it is there.
    #[arg(long, value_name = "FILE")]
    database: Option<PathBuf>,
    /// The program with RocksDB [default: bpfof-rocksdb-bench beside this program or in
    /// target/rocksdb].
    #[arg(long, value_name = "FILE")]
    driver: Option<PathBuf>,
    /// Write the figures to this file, as JSON that ends with a summary.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw pictures into this folder: rocksdb-workloads.png, -threads.png, -sampling.png.
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
}

pub(crate) fn run(options: &RocksdbOptions) -> Outcome {
    check_writable([&options.json])?;
    if let Some(folder) = &options.plots {
        std::fs::create_dir_all(folder)
            .map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
        crate::bench::plot::use_font()?;
    }
    let steps = options.steps()?;
    let driver = Driver::find(options.driver.as_deref())?;
    check_workloads(&driver, &steps)?;
    // What is started from here on inherits it, but for the target.
    spawn::pin(spawn::processors().0)?;
    let image = Image::open(options.database.as_deref(), &options.folder, options.image_bytes())?;
    let database = create(options, &driver, &image)?;
    let repetitions: usize =
        steps.iter().map(|step| step.measurements(options.repetitions())).sum();
    let bar = progress::steps("measuring", repetitions as u64);
    let mut cases = Vec::new();
    for step in &steps {
        cases.extend(measure(options, step, &driver, &image, &bar)?);
    }
    bar.finish_and_clear();
    drop(image);
    let summary = report::summary(&cases, options.latencies()[0]);
    let report = Report { database, cases, summary };
    let written = write_json(options.json.as_ref(), &report);
    let drawn = options.plots.as_ref().map_or(Ok(()), |folder| plot::draw(folder, &report.cases));
    print!("{}", table::text(&report));
    written.and(drawn)
}

/// Lets the program look at the workloads' names, before the minutes that making a database takes.
fn check_workloads(driver: &Driver, steps: &[Step]) -> Outcome {
    let all: Vec<&str> =
        steps.iter().flat_map(|step| &step.workloads).map(String::as_str).collect();
    let asked = ["run", ".", "--check", "--modes", "local", "--workloads", &all.join(",")];
    driver.run(&words(&asked), &mut |_| Ok(()))
}

/// Makes the database, and returns what it consists of.
fn create(
    options: &RocksdbOptions,
    driver: &Driver,
    image: &Image,
) -> Result<Value, Box<dyn Error>> {
    let mut arguments = words(&["create"]);
    arguments.push(image.database().into());
    arguments.extend(words(&[
        "--keys",
        &options.keys().to_string(),
        "--value-bytes",
        &options.value_bytes.to_string(),
    ]));
    let mut database = Value::Null;
    driver.run(&arguments, &mut |line| {
        database = serde_json::from_str(line)?;
        Ok(())
    })?;
    Ok(database)
}

/// Runs one step with a target of its own.
fn measure(
    options: &RocksdbOptions,
    step: &Step,
    driver: &Driver,
    image: &Image,
    bar: &ProgressBar,
) -> Result<Vec<Case>, Box<dyn Error>> {
    let latency_us = step.setting.latency_us;
    let namespace = format!("mem:file={},latency_us={latency_us}", image.path().display());
    let target = ChildTarget::start(&namespace, false)?;
    let arguments = arguments(options, step, image, &target);
    let mut measured: Vec<Measurement> = Vec::new();
    driver.run(&arguments, &mut |line| {
        measured.push(serde_json::from_str(line)?);
        bar.inc(1);
        Ok(())
    })?;
    Ok(report::cases(step.setting, &measured))
}

fn arguments(
    options: &RocksdbOptions,
    step: &Step,
    image: &Image,
    target: &ChildTarget,
) -> Vec<OsString> {
    let setting = &step.setting;
    let modes: Vec<&str> = step.modes.iter().map(|mode| mode.name()).collect();
    let threads: Vec<String> = step.threads.iter().map(u32::to_string).collect();
    let mut arguments = words(&["run"]);
    arguments.push(image.database().into());
    arguments.push("--device".into());
    arguments.push(image.path().into());
    for (option, value) in [
        ("--url", target.url.to_string()),
        ("--target-pid", target.pid().to_string()),
        ("--workloads", step.workloads.join(",")),
        ("--modes", modes.join(",")),
        ("--threads", threads.join(",")),
        ("--repetitions", options.repetitions().to_string()),
        ("--milliseconds", options.milliseconds().to_string()),
        ("--cache-bytes", setting.cache_bytes.to_string()),
    ] {
        arguments.extend([option.into(), value.into()]);
    }
    if let Some(rate) = setting.sample_rate {
        arguments.extend(["--sample-rate".into(), rate.to_string().into()]);
    }
    match setting.configuration {
        report::Configuration::Default => {}
        report::Configuration::Bloom => arguments.push("--bloom".into()),
        report::Configuration::EvictableIndex => arguments.push("--evictable-index".into()),
    }
    arguments
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}
