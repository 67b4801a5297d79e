//! `bpfof bench fair`: the effect of other hosts on a well-behaved one.

mod aggressor;
mod plot;
mod report;
mod victim;

use crate::output::{check_writable, write_json};
use crate::plot::use_font;
use crate::{machine, steal};
use aggressor::{Aggressor, Running};
use bpfof_terminal::Outcome;
use bpfof_terminal::progress::{self, ProgressBar};
use clap::{Args, ValueEnum};
use report::{Case, Memory, Report, Sample};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use victim::{Slowest, Victim};

type Failure = Box<dyn std::error::Error>;

/// Time for an aggressor to start, and for its effects to vanish.
const SETTLE: Duration = Duration::from_millis(500);
/// The interval of samples of the target's memory.
const SAMPLE: Duration = Duration::from_millis(100);
/// Time in which the target must return memory.
const GIVE_BACK: Duration = Duration::from_secs(60);
/// Memory that the target may keep beyond its use at rest, in bytes.
const KEEPS_BYTES: u64 = 64 << 20;

/// The options of `bpfof bench fair`.
#[derive(Args)]
pub struct FairOptions {
    /// Aggressors beside the victim [default: each, then everything].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    aggressors: Vec<Aggressor>,
    /// Run all aggressors at the victim's address, so that they belong to its group and share its part. Otherwise each
    /// host has an address of its own.
    #[arg(long)]
    together: bool,
    /// Number of turns, alone and beside an aggressor.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    repetitions: u16,
    /// Length of the reads, and then of the gets, in ms, in each turn.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    milliseconds: u32,
    /// How long all aggressors run against one target while its memory is watched, in s; 0 for not at all.
    #[arg(long, default_value_t = 20)]
    memory_seconds: u32,
    /// The target's `--memory-max`.
    #[arg(long, default_value = "1GiB", value_name = "SIZE")]
    memory_max: String,
    /// Write the figures to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the figures to this PNG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

pub(crate) fn run(options: &FairOptions) -> Outcome {
    check_writable([&options.json, &options.plot])?;
    if options.plot.is_some() {
        use_font()?;
    }
    machine::pin(machine::processors().0)?;
    let chosen = match options.aggressors.as_slice() {
        [] => Aggressor::value_variants(),
        chosen => chosen,
    };
    let mut aggressors = Vec::new();
    for aggressor in chosen {
        if !aggressors.contains(aggressor) {
            aggressors.push(*aggressor);
        }
    }
    let turns = aggressors.len() as u64 * u64::from(options.repetitions);
    let bar = progress::steps("measuring", turns + u64::from(options.memory_seconds));
    let cases = aggressors.iter().map(|aggressor| case(*aggressor, options, &bar));
    let cases = cases.collect::<Result<Vec<_>, _>>()?;
    let memory = match options.memory_seconds {
        0 => None,
        seconds => Some(memory(options, seconds, &bar)?),
    };
    bar.finish_and_clear();
    let report = Report::new(options.together, cases, memory, steal::lost_most());
    let written = write_json(options.json.as_ref(), &report);
    let drawn = options.plot.as_ref().map_or(Ok(()), |path| plot::draw(path, &report));
    print!("{}", report.table());
    written.and(drawn)
}

/// Measures the victim alone and beside one aggressor, in turn.
fn case(aggressor: Aggressor, options: &FairOptions, bar: &ProgressBar) -> Result<Case, Failure> {
    let name = aggressor.name();
    let named = |error: Failure| format!("beside {name}: {error}");
    let time = Duration::from_millis(options.milliseconds.into());
    let mut victim = Victim::new(&options.memory_max)?;
    let (mut idle, mut beside) = (Sample::new()?, Sample::new()?);
    let (mut slowest, mut operations) = (Slowest::default(), 0);
    victim.window(time / 5)?;
    bar.set_message(format!("alone and beside {name}, in turn"));
    for _ in 0..options.repetitions {
        idle.add(&steal::undisturbed(false, || victim.window(time))?);
        let running = aggressor.start(&victim.url(), options.together)?;
        std::thread::sleep(SETTLE);
        beside.add(&steal::undisturbed(false, || victim.window(time)).map_err(named)?);
        let again = victim.come_again().map_err(named)?;
        slowest.load = slowest.load.max(again.load);
        slowest.connect = slowest.connect.max(again.connect);
        operations += did_something(&name, &running)?;
        drop(running);
        std::thread::sleep(SETTLE);
        bar.inc(1);
    }
    let running = aggressor.start(&victim.url(), options.together)?;
    std::thread::sleep(SETTLE);
    let stopped = victim.stop().map_err(named)?;
    drop(running);
    Ok(Case::new(name, (&idle, &beside), slowest, stopped, operations))
}

/// An error if the aggressor did nothing: the figures would be meaningless.
fn did_something(name: &str, running: &Running) -> Result<u64, String> {
    match running.operations() {
        0 => Err(format!("{name} did no operations beside the victim: nothing was measured")),
        operations => Ok(operations),
    }
}

/// Runs all aggressors at once, and watches the target's memory during and after that.
fn memory(options: &FairOptions, seconds: u32, bar: &ProgressBar) -> Result<Memory, Failure> {
    let mut victim = Victim::new(&options.memory_max)?;
    victim.window(SETTLE)?;
    let idle_bytes = victim.target.resident_bytes()?;
    bar.set_message("memory beside everything");
    let running = Aggressor::Everything.start(&victim.url(), options.together)?;
    let (begun, mut most_bytes, mut reported) = (Instant::now(), idle_bytes, 0);
    while begun.elapsed().as_secs() < u64::from(seconds) {
        victim.window(SAMPLE / 2)?;
        most_bytes = most_bytes.max(victim.target.resident_bytes()?);
        let passed = begun.elapsed().as_secs().min(seconds.into());
        bar.inc(passed - reported);
        reported = passed;
    }
    did_something("everything", &running)?;
    drop(running);
    let begun = Instant::now();
    let mut left_bytes = victim.target.resident_bytes()?;
    while left_bytes > idle_bytes + KEEPS_BYTES && begun.elapsed() < GIVE_BACK {
        std::thread::sleep(SAMPLE);
        left_bytes = victim.target.resident_bytes()?;
    }
    let given_back = begun.elapsed();
    victim.stop()?;
    Ok(Memory::new(&options.memory_max, seconds, [idle_bytes, most_bytes, left_bytes], given_back))
}
