//! `bpfof bench kv` at a target: plain reads over the network against pushdown.

use super::driver::{Driver, Path, Work};
use super::options::KvOptions;
use super::plot;
use super::report::{self, Case, MessageFloor};
use crate::child_target::ChildTarget;
use crate::database::{extent_that_fits, write_to};
use crate::measurement::{CpuTimes, Ratio, Run, Samples, median, repetitions, spent};
use crate::network::ChildNetwork;
use crate::output::{check_writable, write_json};
use crate::plot::use_font;
use crate::tcp_baseline::{self, Messages, Wait};
use crate::{machine, steal};
use bpfkv::Layout;
use bpfkv::create::Extent;
use bpfof_host::{Options as HostOptions, TargetUrl};
use bpfof_kv::{Session, SessionError};
use bpfof_terminal::{Outcome, progress};
use std::time::Duration;

pub(super) fn run(options: &KvOptions) -> Outcome {
    options.cached()?;
    check_writable([&options.json, &options.plot])?;
    if options.plot.is_some() {
        use_font()?;
    }
    let mut bench = Bench::open(options)?;
    let cases = bench.measure(options)?;
    bench.close()?;
    let written = write_json(options.json.as_ref(), &cases);
    let title = "BPF-KV over NVMe/TCP: operations per second";
    let drawn = options.plot.as_ref().map_or(Ok(()), |path| plot::draw(path, title, &cases));
    print!("{}", report::table(&cases));
    written.and(drawn)
}

/// Each path comes first equally often.
const PATHS: [Path; 2] = [Path::Plain, Path::Pushdown];

/// The seed of the random keys of a repetition, in one of several ways: no way finds data in the caches that another
/// has read.
pub(super) const fn seed(repetition: u32, way: usize) -> u64 {
    0x9e37_79b9_7f4a_7c15 ^ (repetition as u64) << 32 ^ (way as u64) << 48
}

/// A target with a database on it, connected.
pub(crate) struct Bench {
    // Dropped before the target.
    pub(crate) session: Session,
    /// The keys are 0 to this, exclusive.
    pub(crate) keys: u64,
    pub(crate) url: TargetUrl,
    network: Option<ChildNetwork>,
    child: Option<ChildTarget>,
}

impl Bench {
    /// Connects to the given target, or starts one and makes the database.
    pub(crate) fn open(options: &KvOptions) -> Result<Bench, Box<dyn std::error::Error>> {
        machine::pin(machine::processors().0)?;
        let (child, mut url, keys) = match &options.target {
            Some(url) => (None, url.clone(), None),
            None => {
                let (child, extent) = start_with_database(options)?;
                let url = child.url.clone();
                (Some(child), url, Some(extent.keys()))
            }
        };
        let network = ChildNetwork::start(&url, options.network_us)?;
        if let Some(network) = &network {
            url = network.url.clone();
        }
        let session = Session::open(&url, host_options(options), 0)?;
        if session.levels != options.levels {
            let have = session.levels;
            return Err(format!("the database has {have} levels; give --levels {have}").into());
        }
        let mut bench = Bench { session, keys: keys.unwrap_or(0), url, network, child };
        if keys.is_none() {
            bench.keys = bench.find_keys()?;
        }
        Ok(bench)
    }

    /// The number of keys in a database that already existed, perhaps created in part.
    fn find_keys(&mut self) -> Result<u64, Box<dyn std::error::Error>> {
        let layout = Layout::new(self.session.levels)?;
        let part = layout.keys_below(1);
        let mut keys = layout.keys();
        while keys > part {
            match self.session.get(keys - 1, true) {
                Ok(Some(_)) => break,
                Ok(None) | Err(SessionError::Corrupt(_)) => keys -= part,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(keys)
    }

    /// Closes the connection, then stops the target.
    pub(crate) fn close(self) -> Outcome {
        let Bench { session, network, child, .. } = self;
        drop(session.lane);
        session.controller.disconnect()?;
        drop(network);
        drop(child);
        Ok(())
    }

    /// Runs all cases.
    pub(crate) fn measure(
        &mut self,
        options: &KvOptions,
    ) -> Result<Vec<Case>, Box<dyn std::error::Error>> {
        let mut plan = Vec::new();
        for cached in options.cached()? {
            for &depth in &options.depths {
                plan.push((Work::Get, cached, depth));
            }
        }
        for &depth in &options.depths {
            plan.extend(options.ranges().map(|keys| (Work::Range(keys), 0, depth)));
            plan.extend(options.sums().map(|keys| (Work::Aggregate(keys), 0, depth)));
        }
        let bar = progress::steps("measuring", plan.len() as u64);
        let mut cases = Vec::new();
        for (work, cached, depth) in plan {
            bar.set_message(format!("{work}, cache {cached}, depth {depth}, both ways"));
            self.session.cache_levels(cached)?;
            cases.push(self.case(options, work, cached, depth)?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(cases)
    }

    fn case(
        &mut self,
        options: &KvOptions,
        work: Work,
        cached_levels: u32,
        queue_depth: usize,
    ) -> Result<Case, Box<dyn std::error::Error>> {
        let mut samples = [Samples::default(), Samples::default()];
        let mut baselines = Baselines::default();
        let time = Duration::from_millis(options.milliseconds);
        for (repetition, warm_up, time) in repetitions(options.repetitions, time) {
            for turn in 0..PATHS.len() {
                let at = (turn + repetition as usize) % PATHS.len();
                let (path, samples) = (PATHS[at], &mut samples[at]);
                let (run, spent, received) = steal::undisturbed(warm_up, || {
                    let received_before = self.session.lane.bytes_received();
                    let (run, spent) =
                        self.timed(work, path, queue_depth, time, seed(repetition, at))?;
                    let received = self.session.lane.bytes_received() - received_before;
                    Ok::<_, String>((run, spent, received))
                })?;
                if warm_up {
                    continue;
                }
                samples.add(&run, spent);
                if path == Path::Pushdown
                    && self.has_baseline(options)
                    && let Some(messages) = Messages::of(&run, received, queue_depth)
                {
                    baselines.measure(messages, queue_depth, time / 2)?;
                }
            }
        }
        let [plain, pushdown] = samples;
        let (keys, bench) = match work {
            Work::Get => (None, "kv-get"),
            Work::Range(keys) => (Some(keys), "kv-range"),
            Work::Aggregate(keys) => (Some(keys), "kv-aggregate"),
        };
        let hops = median(&pushdown.hops);
        let (plain, pushdown) = (plain.figures(), pushdown.figures());
        let ratio = Ratio::of(&plain, &pushdown);
        let message_floor =
            baselines.fastest().map(|fastest| MessageFloor::of(fastest, &plain, &pushdown));
        let levels = self.session.levels;
        Ok(Case {
            bench,
            levels,
            hops,
            cached_levels,
            queue_depth,
            keys,
            plain,
            pushdown,
            ratio,
            message_floor,
        })
    }

    fn timed(
        &mut self,
        work: Work,
        path: Path,
        depth: usize,
        time: Duration,
        seed: u64,
    ) -> Result<(Run, CpuTimes), String> {
        let before = self.cpu_times();
        let mut driver = Driver::new(&mut self.session, work, path, depth, self.keys, seed)?;
        let run = driver.run(time).map_err(|error| format!("{path}: {error}"))?;
        Ok((run, spent(before, self.cpu_times())))
    }

    /// Processor time of both sides so far.
    pub(super) fn cpu_times(&self) -> CpuTimes {
        (machine::own_cpu_ns(), self.child.as_ref().and_then(ChildTarget::cpu_ns))
    }

    /// Whether TCP alone can be measured in comparison. A given target may be on another machine, a polling target
    /// takes the processor of the baseline's peer, and the baseline has no simulated network.
    pub(super) const fn has_baseline(&self, options: &KvOptions) -> bool {
        self.child.is_some() && !options.poll && options.network_us == 0
    }
}

pub(super) fn host_options(options: &KvOptions) -> HostOptions {
    HostOptions {
        // Ranges read up to 16 blocks at once.
        queue_depth: 1024,
        poll: options.poll,
        ..HostOptions::default()
    }
}

/// Messages a second in each repetition.
#[derive(Default)]
pub(super) struct Baselines {
    polled: Vec<f64>,
    blocking: Vec<f64>,
}

impl Baselines {
    pub(super) fn measure(
        &mut self,
        messages: Messages,
        depth: usize,
        time: Duration,
    ) -> std::io::Result<()> {
        for (samples, wait) in
            [(&mut self.polled, Wait::Polled), (&mut self.blocking, Wait::Blocking)]
        {
            let measure = || tcp_baseline::measure(wait, messages, depth, time);
            samples.push(steal::undisturbed(false, measure)?.messages_per_s);
        }
        Ok(())
    }

    /// By the faster way of waiting; None without measurements.
    pub(super) fn fastest(&self) -> Option<f64> {
        (!self.polled.is_empty()).then(|| median(&self.polled).max(median(&self.blocking)))
    }
}

fn start_with_database(
    options: &KvOptions,
) -> Result<(ChildTarget, Extent), Box<dyn std::error::Error>> {
    let extent = extent_that_fits(options.levels, 1)?;
    let size = extent.layout().file_bytes().next_multiple_of(4096);
    let KvOptions { latency_us, iops, .. } = options;
    let namespace = format!("mem:size={size},latency_us={latency_us},iops={iops}");
    let child = ChildTarget::start(&namespace, options.poll)?;
    write_to(&child.url, &extent)?;
    let (keys, bytes) = (extent.keys(), extent.written_bytes());
    eprintln!("{} levels, {keys} keys, {bytes} bytes in memory", options.levels);
    Ok((child, extent))
}
