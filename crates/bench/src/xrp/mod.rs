//! `bpfof bench xrp`: chains in the interrupt of an NVMe drive (docs/kernel.md) against the same chains in other ways,
//! as in XRP's evaluation.

mod counter;
mod load;
mod report;
mod sample;
mod worker;

use crate::measurement::latencies;
use crate::output::{check_writable, write_json};
use bpfof_host::files::{FileMaps, NamespaceDevice, NvmeNamespace};
use bpfof_terminal::{Outcome, progress, stop_on_signal};
use clap::Args;
use counter::{Counter, Result};
use load::{Links, Load};
use report::{Case, Figures, Report};
use sample::Sample;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;
use worker::{Done, Way, Worker};

/// The longest chains, in reads.
const READS_MAX: u32 = 10;
/// Length of the chains of which many are in flight, in reads.
const READS_DEEP: u32 = 6;
/// The module's device.
const DEVICE: &str = "/dev/bpfof-xrp";

/// The options of `bpfof bench xrp`.
#[derive(Args)]
pub struct XrpOptions {
    /// Block device of an NVMe namespace, /dev/nvmeXnY.
    drive: PathBuf,
    /// A folder on the file system of the drive.
    folder: PathBuf,
    /// The module's file [default: the one installed for this kernel]
    #[arg(long)]
    module: Option<PathBuf>,
    /// Chains of each measurement
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(16..))]
    chains: u64,
    /// Measurements of each case; the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Chains in flight, in addition to 1
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4, 8, 16], value_parser = clap::value_parser!(u64).range(1..=16))]
    depths: Vec<u64>,
    /// Write the figures to this file, as JSON with a summary.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// The kernel module; dropping it unloads the module.
struct Module;

impl Module {
    fn load(file: Option<&Path>) -> Result<Module> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["xrp", "load"]);
        if let Some(file) = file {
            command.arg("--module").arg(file);
        }
        match command.stdout(Stdio::null()).status()?.success() {
            true => Ok(Module),
            false => Err("cannot load the module".into()),
        }
    }

    /// Sets whether each read is issued by a work item.
    fn hand_over(all: bool) -> Result<()> {
        const PARAMETER: &str = "/sys/module/bpfof_xrp/parameters/hand_over";
        std::fs::write(PARAMETER, if all { "1" } else { "0" })
            .map_err(|error| format!("cannot set {PARAMETER}: {error}").into())
    }

    /// Hops of the module since it was loaded.
    fn hops() -> Result<u64> {
        const COUNTERS: &str = "/sys/kernel/debug/bpfof_xrp/counters";
        let text = std::fs::read_to_string(COUNTERS)
            .map_err(|error| format!("cannot read {COUNTERS}: {error}; is debugfs mounted?"))?;
        let hops = text.lines().find_map(|line| line.strip_prefix("hops "));
        Ok(hops.ok_or_else(|| format!("{COUNTERS} has no hops"))?.trim().parse()?)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // Its readers are closed; the kernel releases their functions a moment later.
        for _ in 0..50 {
            let status = Command::new("rmmod").arg("bpfof_xrp").stderr(Stdio::null()).status();
            if status.is_ok_and(|status| status.success()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        eprintln!("the module is still loaded: run bpfof xrp unload");
    }
}

/// The drive, and its files.
struct Bench<'a> {
    options: &'a XrpOptions,
    counter: Counter,
    maps: FileMaps,
    folder: tempfile::TempDir,
    links: Links,
    /// Set by Ctrl-C and SIGTERM: the files and the module must still be removed.
    stop: Arc<AtomicBool>,
}

pub(crate) fn run(options: &XrpOptions) -> Outcome {
    check_writable([&options.json])?;
    if Path::new(DEVICE).exists() {
        let why = "the module is already loaded, but some measurements need chains without it: run bpfof xrp unload";
        return Err(why.into());
    }
    let report = measure(options).map_err(|error| error.to_string())?;
    let written = write_json(options.json.as_ref(), &report);
    print!("{}", report.text());
    written?;
    match report.wrong_answers() {
        0 => Ok(()),
        wrong => Err(format!("{wrong} answers were wrong").into()),
    }
}

fn measure(options: &XrpOptions) -> Result<Report> {
    let character = character(&options.drive)?;
    let counter = Counter::find()?;
    let unit = counter.unit();
    let stop = stop_on_signal()?;
    let folder = tempfile::tempdir_in(&options.folder)
        .map_err(|error| format!("cannot write to {}: {error}", options.folder.display()))?;
    let links = load::write(folder.path())?;
    let namespace = NvmeNamespace::open(character)?;
    let maps = FileMaps::passthrough(namespace, NamespaceDevice::new(&options.drive)?)?;
    let bench = Bench { options, counter, maps, folder, links, stop };
    let mut plan: Vec<(Load, usize)> =
        (1..=READS_MAX).map(|reads| (Load::Chain(reads), 1)).collect();
    plan.push((Load::Get, 1));
    plan.extend(options.depths.iter().map(|depth| (Load::Chain(READS_DEEP), *depth as usize)));
    // Readers that find no module run chains without it, even if it is loaded later.
    let mut without = Vec::new();
    for (load, in_flight) in &plan {
        without.push(bench.all_workers(&Way::WITHOUT_MODULE, *load, *in_flight)?);
    }
    let module = Module::load(options.module.as_deref())?;
    let bar = progress::steps("measuring", plan.len() as u64);
    let mut cases = Vec::new();
    for ((load, in_flight), workers) in plan.into_iter().zip(without) {
        let first = (cases.len() * Way::ALL.len()) as u64 + 1;
        bar.set_message(format!("chains of {} reads, {in_flight} in flight", load.reads()));
        cases.push(bench.case((load, in_flight), first, workers)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    drop(module);
    Ok(Report::new(unit, cases))
}

/// The character device of a namespace's block device.
fn character(drive: &Path) -> Result<PathBuf> {
    let name = drive.file_name().and_then(|name| name.to_str()?.strip_prefix("nvme"));
    let name = name.ok_or_else(|| format!("{} is not a /dev/nvmeXnY", drive.display()))?;
    Ok(drive.with_file_name(format!("ng{name}")))
}

impl Bench<'_> {
    /// Measures all ways in turn. The emulator gets numbers from `first` on for them.
    fn case<'a>(
        &'a self,
        (load, in_flight): (Load, usize),
        first: u64,
        mut ways: Vec<(Way, Vec<Worker<'a>>)>,
    ) -> Result<Case> {
        ways.extend(self.all_workers(&Way::BY_MODULE, load, in_flight)?);
        let mut samples: Vec<Vec<Sample>> = ways.iter().map(|_| Vec::new()).collect();
        for repetition in 0..=self.options.repetitions {
            let each_way = ways.iter_mut().zip(&mut samples);
            for (number, ((way, workers), samples)) in (first..).zip(each_way) {
                if self.stop.load(Ordering::Relaxed) {
                    return Err("interrupted".into());
                }
                let number = if repetition > 0 { number } else { 0 };
                let sample = match way {
                    Way::Interrupt | Way::WorkItem => {
                        Module::hand_over(*way == Way::WorkItem)?;
                        self.sample_of_module(number, load, workers)?
                    }
                    Way::Pread | Way::IoUring | Way::Passthrough => self.sample(number, workers)?,
                };
                // The first repetition loads functions and maps.
                if repetition > 0 {
                    samples.push(sample);
                }
            }
        }
        let figures =
            ways.iter().zip(&samples).map(|((way, _), samples)| (*way, Figures::of(samples)));
        Ok(Case::new(load, in_flight, figures.collect()))
    }

    fn all_workers(
        &self,
        ways: &[Way],
        load: Load,
        in_flight: usize,
    ) -> Result<Vec<(Way, Vec<Worker<'_>>)>> {
        ways.iter().map(|way| Ok((*way, self.workers(*way, load, in_flight)?))).collect()
    }

    fn workers(&self, way: Way, load: Load, in_flight: usize) -> Result<Vec<Worker<'_>>> {
        let (threads, each) = way.divide(in_flight);
        let place = (&self.maps, self.folder.path());
        (1..=threads as u64)
            .map(|seed| Worker::new((way, each), load, place, &self.links, seed))
            .collect()
    }

    /// Takes a sample, and checks that the module ran all of its chains.
    fn sample_of_module(
        &self,
        number: u64,
        load: Load,
        workers: &mut [Worker<'_>],
    ) -> Result<Sample> {
        let before = Module::hops()?;
        let sample = self.sample(number, workers)?;
        let (made, wanted) =
            (Module::hops()? - before, sample.done.operations * u64::from(load.reads()));
        match made >= wanted {
            true => Ok(sample),
            false => Err(format!(
                "the module made {made} of {wanted} hops: the others ran in user space"
            )
            .into()),
        }
    }

    fn sample(&self, number: u64, workers: &mut [Worker<'_>]) -> Result<Sample> {
        let each = self.options.chains / workers.len() as u64;
        workers.iter_mut().try_for_each(Worker::prepare)?;
        if let [worker] = workers {
            let before = self.counter.begin(number);
            let done = worker.run(each)?;
            return Ok(Sample { spent: self.counter.end() - before, done });
        }
        let (begin, end) = (Barrier::new(workers.len() + 1), Barrier::new(workers.len() + 1));
        let run = &|worker: &mut Worker<'_>| {
            begin.wait();
            let done = worker.run(each);
            end.wait();
            done
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                workers.iter_mut().map(|worker| scope.spawn(move || run(worker))).collect();
            // Creating and joining threads is not measured.
            let before = self.counter.begin(number);
            begin.wait();
            end.wait();
            let spent = self.counter.end() - before;
            let mut all = Done { operations: 0, wrong: 0, latency: latencies()? };
            for thread in threads {
                let done = thread.join().map_err(|_| "a thread panicked")??;
                all.operations += done.operations;
                all.wrong += done.wrong;
                all.latency.add(&done.latency)?;
            }
            Ok(Sample { spent, done: all })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drives_have_character_devices() {
        let found = character(Path::new("/dev/nvme1n2")).expect("a drive");
        assert_eq!(found, Path::new("/dev/ng1n2"));
        assert!(character(Path::new("/dev/sda")).is_err());
    }
}
