//! `bpfof bench rocksdb`: RocksDB over the network, plain reads against pushdown (BPF-oF §6).

pub(crate) mod driver;
pub(crate) mod image;
mod options;
mod plan;
mod plot;
mod report;
mod table;

pub(crate) use options::RocksdbOptions;

use crate::child_target::ChildTarget;
use crate::machine;
use crate::network::ChildNetwork;
use crate::output::{check_writable, write_json};
use crate::plot::prepare;
use bpfof_host::TargetUrl;
use bpfof_terminal::Outcome;
use bpfof_terminal::progress::{self, ProgressBar};
use driver::{Driver, Measurement, Program};
use image::Image;
use plan::Step;
use report::{Case, Report, Values};
use serde_json::Value;
use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;

/// The program that uses RocksDB: `integrations/rocksdb/bench`.
const PROGRAM: Program = Program { name: "bpfof-rocksdb-bench", integration: "rocksdb" };

pub(crate) fn run(options: &RocksdbOptions) -> Outcome {
    check_writable([&options.json])?;
    prepare(options.plots.as_deref())?;
    let steps = plan::steps(options)?;
    let driver = Driver::find(&PROGRAM, options.driver.as_deref())?;
    check_workloads(&driver, &steps)?;
    // Inherited by all child processes from here on, except the target.
    machine::pin(machine::processors().0)?;
    let image = Image::open(options.database.as_deref(), &options.folder, options.image_bytes())?;
    let database = create(options, &driver, &image, Values::Plain)?;
    for values in [Values::Merge, Values::Blob] {
        if steps.iter().any(|step| step.setting.values == values) {
            create(options, &driver, &image, values)?;
        }
    }
    let repetitions: usize =
        steps.iter().map(|step| step.measurements(options.repetitions())).sum();
    let bar = progress::steps("measuring", repetitions as u64);
    let mut cases = Vec::new();
    for step in &steps {
        bar.set_message(table::setting(&step.setting));
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

/// Lets the program check the workloads' names, before minutes are spent on making a database.
fn check_workloads(driver: &Driver, steps: &[Step]) -> Outcome {
    let all: Vec<&str> =
        steps.iter().flat_map(|step| &step.workloads).map(String::as_str).collect();
    let asked = ["run", ".", "--check", "--modes", "local", "--workloads", &all.join(",")];
    driver.run(&words(&asked), &mut |_| Ok(()))
}

/// The folder of a database.
fn database(image: &Image, values: Values) -> PathBuf {
    match values {
        Values::Plain => image.database(),
        Values::Merge | Values::Blob => image.database().with_extension(values.name()),
    }
}

/// Makes a database, and returns its composition.
fn create(
    options: &RocksdbOptions,
    driver: &Driver,
    image: &Image,
    values: Values,
) -> Result<Value, Box<dyn Error>> {
    let (keys, value_bytes) = options.shape(values);
    let mut arguments = words(&["create"]);
    arguments.push(database(image, values).into());
    arguments.extend(words(&[
        "--keys",
        &keys.to_string(),
        "--value-bytes",
        &value_bytes.to_string(),
        "--values",
        values.name(),
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
    let network = ChildNetwork::start(&target.url, step.setting.network_us)?;
    let url = network.as_ref().map_or(&target.url, |network| &network.url);
    let arguments = arguments(options, step, image, (&target, url));
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
    (target, url): (&ChildTarget, &TargetUrl),
) -> Vec<OsString> {
    let setting = &step.setting;
    let modes: Vec<&str> = step.modes.iter().map(|mode| mode.name()).collect();
    let threads: Vec<String> = step.threads.iter().map(u32::to_string).collect();
    let mut arguments = words(&["run"]);
    arguments.push(database(image, setting.values).into());
    arguments.push("--device".into());
    arguments.push(image.path().into());
    for (option, value) in [
        ("--url", url.to_string()),
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
    if let Some(lanes) = options.lanes_max {
        arguments.extend(["--lanes-max".into(), lanes.to_string().into()]);
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
