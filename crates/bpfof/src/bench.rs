//! `bpfof bench …`: pushdown against plain reads, over the network and on files of this machine, with
//! BPF-KV and RocksDB, and reads against the network's own speed, each interleaved in one run; what
//! storage functions cost; and what hosts notice of each other.

pub(crate) mod driver;
mod fair;
mod floor;
mod function;
mod local;
mod net;
pub(crate) mod plot;
pub(crate) mod report;
mod rocksdb;
pub(crate) mod spawn;
mod steal;

use crate::session::Session;
use crate::{Outcome, kv, progress};
use bpfkv::Layout;
use bpfkv::create::Extent;
use bpfof_host::{Options as HostOptions, TargetUrl};
use clap::{Args, Subcommand, ValueEnum};
use driver::{Driver, Path as Way, Run, Work};
use floor::{Messages, Wait};
use hdrhistogram::{CreationError, Histogram};
use report::{Case, Figures, MessageFloor, Ratio};
use spawn::ChildTarget;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// BPF-KV: gets, ranges and sums, plain and pushed down, cached and not.
    Kv(KvCommand),
    /// Random reads over the network, against what TCP itself can do.
    Net(net::NetOptions),
    /// RocksDB over the network: plain reads against pushdown.
    Rocksdb(Box<rocksdb::RocksdbOptions>),
    /// Storage functions: calls against the same C, loading, helpers, charges against the clock.
    Function(function::FunctionOptions),
    /// Fairness: a host that behaves, beside hosts that do not.
    Fair(fair::FairOptions),
}

/// Where the chains of the benchmark run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KvExecutor {
    /// At a target, against plain reads over the network.
    Remote,
    /// In this process on an io_uring, over a database in a file: XRP's table 3, latency against
    /// depth, for read(), io_uring and ours.
    Local,
}

#[derive(Args)]
pub(crate) struct KvCommand {
    /// Where chains run.
    #[arg(long, value_enum, default_value = "remote")]
    executor: KvExecutor,
    /// With --executor local: the database, a file or block device that is read directly. A file
    /// that does not exist is made, of --levels levels or as much of it as fits 3 GiB. By default
    /// a file in /var/tmp, which is removed at the end.
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    #[command(flatten)]
    options: KvOptions,
}

/// Every case runs plain and pushed down in turn, several times; figures are medians. `ratio` says
/// how many times better pushdown is, in each field. The same connection and the same number of
/// operations in flight serve both; host and target have one processor each.
#[derive(Args, Clone)]
pub(crate) struct KvOptions {
    /// Levels of the tree. A database that is larger than 5 GiB or than a third of the free memory
    /// is written in part: as many of the root's subtrees as fit, each where the whole database has
    /// it, so that a get still takes LEVELS + 1 reads.
    #[arg(long, default_value_t = 6)]
    pub(crate) levels: u32,
    /// A target that has the database already (`bpfof kv create`); otherwise one is started with a
    /// memory namespace and the database is made once.
    #[arg(long)]
    pub(crate) target: Option<TargetUrl>,
    /// The started target's namespace: latency of each read in µs.
    #[arg(long, default_value_t = 0)]
    pub(crate) latency_us: u64,
    /// The started target's namespace: most reads a second, 0 for no ceiling.
    #[arg(long, default_value_t = 0)]
    pub(crate) iops: u64,
    /// Operations in flight.
    #[arg(long, value_delimiter = ',', default_value = "1,32")]
    pub(crate) depths: Vec<usize>,
    /// Levels of the tree that the host caches.
    #[arg(long, value_delimiter = ',', default_value = "0,3")]
    pub(crate) cached: Vec<u32>,
    /// Keys of the ranges.
    #[arg(long, value_delimiter = ',', default_value = "2,16,64")]
    pub(crate) ranges: Vec<u64>,
    /// Keys of the sums.
    #[arg(long, value_delimiter = ',', default_value = "64,1000")]
    pub(crate) sums: Vec<u64>,
    /// Repetitions of each case and path.
    #[arg(long, default_value_t = 5)]
    pub(crate) repetitions: usize,
    /// Length of each repetition in ms.
    #[arg(long, default_value_t = 500)]
    pub(crate) milliseconds: u64,
    /// Never sleep, on both sides.
    #[arg(long)]
    pub(crate) poll: bool,
    /// Write the figures to this file, as JSON: a list with one object for each case.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Draw operations per second to this PNG file.
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

pub(crate) fn run(command: &Command) -> Outcome {
    match command {
        Command::Kv(KvCommand { executor: KvExecutor::Local, file, options }) => {
            local::run(options, file.as_deref())
        }
        Command::Kv(KvCommand { file: Some(_), .. }) => {
            Err("--file is for --executor local; a target has --target".into())
        }
        Command::Kv(KvCommand { options, .. }) => kv_bench(options),
        Command::Net(options) => net::run(options),
        Command::Rocksdb(options) => rocksdb::run(options),
        Command::Function(options) => function::run(options),
        Command::Fair(options) => fair::run(options),
    }
}

/// Fails if results cannot be written to one of these files: before the minutes that measuring takes.
/// What is there stays.
fn check_writable<'a>(paths: impl IntoIterator<Item = &'a Option<PathBuf>>) -> Outcome {
    for path in paths.into_iter().flatten() {
        let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
        opened.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}

/// Writes results in place of those of an earlier run: before they are printed, because nobody may
/// listen there any more.
fn write_json(path: Option<&PathBuf>, results: &impl serde::Serialize) -> Outcome {
    if let Some(path) = path {
        std::fs::write(path, serde_json::to_string_pretty(results)? + "\n")?;
    }
    Ok(())
}

fn kv_bench(options: &KvOptions) -> Outcome {
    check_writable([&options.json, &options.plot])?;
    if options.plot.is_some() {
        plot::use_font()?;
    }
    let mut bench = Bench::open(options)?;
    let cases = bench.measure(options)?;
    bench.close()?;
    let written = write_json(options.json.as_ref(), &cases);
    let title = "BPF-KV over NVMe/TCP: operations per second";
    let drawn = options.plot.as_ref().map_or(Ok(()), |path| plot::draw(path, title, &cases));
    print!("{}", report::table(&cases));
    steal::remark(steal::lost_most()).inspect(|remark| println!("{remark}"));
    written.and(drawn)
}

/// A target with a database on it, connected.
pub(crate) struct Bench {
    // Dropped before the target.
    pub(crate) session: Session,
    /// Keys that can be asked for: 0 to this.
    pub(crate) keys: u64,
    child: Option<ChildTarget>,
}

impl Bench {
    /// Connects to the given target, or starts one and makes the database.
    pub(crate) fn open(options: &KvOptions) -> Result<Bench, Box<dyn std::error::Error>> {
        spawn::pin(spawn::processors().0)?;
        let (child, url, keys) = match &options.target {
            Some(url) => (None, url.clone(), None),
            None => {
                let (child, extent) = start_with_database(options)?;
                let url = child.url.clone();
                (Some(child), url, Some(extent.keys()))
            }
        };
        let host = HostOptions {
            // Ranges read up to 16 blocks at once.
            queue_depth: 1024,
            poll: options.poll,
            ..HostOptions::default()
        };
        let session = Session::open(&url, host, 0)?;
        if session.levels != options.levels {
            let have = session.levels;
            return Err(format!("the database has {have} levels; give --levels {have}").into());
        }
        let mut bench = Bench { session, keys: keys.unwrap_or(0), child };
        if keys.is_none() {
            bench.keys = bench.find_keys()?;
        }
        Ok(bench)
    }

    /// How many keys a database holds that someone else made, perhaps in part.
    fn find_keys(&mut self) -> Result<u64, Box<dyn std::error::Error>> {
        let layout = Layout::new(self.session.levels)?;
        let part = layout.keys_below(1);
        let mut keys = layout.keys();
        while keys > part && !matches!(self.session.get(keys - 1, true), Ok(Some(_))) {
            keys -= part;
        }
        Ok(keys)
    }

    /// Closes the connection, then stops the target.
    pub(crate) fn close(self) -> Outcome {
        let Bench { session, child, .. } = self;
        drop(session.lane);
        session.controller.disconnect()?;
        drop(child);
        Ok(())
    }

    /// Runs all cases.
    pub(crate) fn measure(
        &mut self,
        options: &KvOptions,
    ) -> Result<Vec<Case>, Box<dyn std::error::Error>> {
        let mut plan = Vec::new();
        for &cached in &options.cached {
            for &depth in &options.depths {
                plan.push((Work::Get, cached, depth));
            }
        }
        for &depth in &options.depths {
            plan.extend(options.ranges.iter().map(|keys| (Work::Range(*keys), 0, depth)));
            plan.extend(options.sums.iter().map(|keys| (Work::Aggregate(*keys), 0, depth)));
        }
        let bar = progress::steps("measuring", plan.len() as u64);
        let mut cases = Vec::new();
        for (work, cached, depth) in plan {
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
        let mut floors = Floors::default();
        let time = Duration::from_millis(options.milliseconds);
        for repetition in 0..=options.repetitions {
            let warm_up = repetition == 0;
            let time = if warm_up { time / 5 } else { time };
            for (way, samples) in [Way::Plain, Way::Pushdown].into_iter().zip(&mut samples) {
                let (run, spent, received) = steal::undisturbed(warm_up, || {
                    let received_before = self.session.lane.bytes_received();
                    let (run, spent) =
                        self.timed(work, way, queue_depth, time, repetition as u64)?;
                    let received = self.session.lane.bytes_received() - received_before;
                    Ok::<_, String>((run, spent, received))
                })?;
                if warm_up {
                    continue;
                }
                samples.add(&run, spent);
                // A target of somebody else's may be on another machine, and one that polls takes the
                // processor of the floor's peer.
                if way == Way::Pushdown
                    && self.child.is_some()
                    && !options.poll
                    && let Some(messages) = Messages::of(&run, received, queue_depth)
                {
                    floors.measure(messages, queue_depth, time / 2)?;
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
            floors.fastest().map(|fastest| MessageFloor::of(fastest, &plain, &pushdown));
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
        way: Way,
        depth: usize,
        time: Duration,
        repetition: u64,
    ) -> Result<(Run, CpuTimes), String> {
        let seed = 0x9e37_79b9_7f4a_7c15 ^ repetition << 32;
        let child = self.child.as_ref();
        let used = || (spawn::own_cpu_ns(), child.and_then(ChildTarget::cpu_ns));
        let mut driver = Driver::new(&mut self.session, work, way, depth, self.keys, seed)?;
        let before = used();
        let run = driver.run(time).map_err(|error| format!("{way}: {error}"))?;
        let after = used();
        Ok((run, spent(before, after)))
    }
}

/// Messages a second, of each repetition.
#[derive(Default)]
struct Floors {
    polled: Vec<f64>,
    blocking: Vec<f64>,
}

impl Floors {
    fn measure(&mut self, messages: Messages, depth: usize, time: Duration) -> std::io::Result<()> {
        for (floors, wait) in
            [(&mut self.polled, Wait::Polled), (&mut self.blocking, Wait::Blocking)]
        {
            let measure = || floor::measure(wait, messages, depth, time);
            floors.push(steal::undisturbed(false, measure)?.messages_per_s);
        }
        Ok(())
    }

    /// By the faster way to wait; None if nothing was measured.
    fn fastest(&self) -> Option<f64> {
        (!self.polled.is_empty()).then(|| median(&self.polled).max(median(&self.blocking)))
    }
}

/// Processor time of host and target, in ns.
type CpuTimes = (Option<u64>, Option<u64>);

fn spent(before: CpuTimes, after: CpuTimes) -> CpuTimes {
    let spent = |before: Option<u64>, after: Option<u64>| Some(after?.saturating_sub(before?));
    (spent(before.0, after.0), spent(before.1, after.1))
}

/// Figures of the repetitions of one path.
#[derive(Default)]
struct Samples {
    ops_per_s: Vec<f64>,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    net_bytes: Vec<f64>,
    hops: Vec<f64>,
    host_us: Vec<f64>,
    target_us: Vec<f64>,
}

impl Samples {
    fn add(&mut self, run: &Run, (host_ns, target_ns): CpuTimes) {
        let operations = run.operations as f64;
        self.ops_per_s.push(operations / run.elapsed.as_secs_f64());
        self.p50_us.push(run.latency.value_at_quantile(0.5) as f64 / 1000.0);
        self.p99_us.push(run.latency.value_at_quantile(0.99) as f64 / 1000.0);
        self.net_bytes.push(run.network_bytes as f64 / operations);
        self.hops.push(run.hops as f64 / operations);
        self.host_us.extend(host_ns.map(|ns| ns as f64 / 1000.0 / operations));
        self.target_us.extend(target_ns.map(|ns| ns as f64 / 1000.0 / operations));
    }

    fn figures(&self) -> Figures {
        let least = self.ops_per_s.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.ops_per_s.iter().copied().fold(0.0, f64::max);
        let optional = |values: &Vec<f64>| (!values.is_empty()).then(|| median(values));
        Figures {
            ops_per_s: median(&self.ops_per_s),
            ops_per_s_range: [least, most],
            p50_us: median(&self.p50_us),
            p99_us: median(&self.p99_us),
            net_bytes_per_op: median(&self.net_bytes),
            host_cpu_us_per_op: optional(&self.host_us),
            target_cpu_us_per_op: optional(&self.target_us),
        }
    }
}

/// For latencies in ns, up to a minute.
fn latencies() -> Result<Histogram<u64>, CreationError> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.get(sorted.len() / 2), sorted.len()) {
        (None, _) => f64::NAN,
        (Some(upper), length) if length % 2 == 0 => (upper + sorted[length / 2 - 1]) / 2.0,
        (Some(middle), _) => *middle,
    }
}

/// A larger database measures nothing new: the caches of a processor are far smaller.
const DATABASE_MAX_BYTES: u64 = 5 << 30;

/// The largest part of a database that takes at most a third of the free memory.
fn extent_that_fits(levels: u32) -> Result<Extent, Box<dyn std::error::Error>> {
    extent_within(levels, (free_memory_bytes().unwrap_or(1 << 30) / 3).min(DATABASE_MAX_BYTES))
}

/// The largest part of a database of which at most so many bytes are written.
fn extent_within(levels: u32, free: u64) -> Result<Extent, Box<dyn std::error::Error>> {
    let full = Extent::full(levels)?;
    if full.written_bytes() <= free {
        return Ok(full);
    }
    let mut best = None;
    for subtrees in 1..31 {
        let part = Extent::part(levels, subtrees)?;
        if part.written_bytes() <= free {
            best = Some(part);
        }
    }
    best.ok_or_else(|| {
        let need = full.written_bytes() / 31;
        format!("{levels} levels need at least {need} bytes, more than there is room for; give fewer --levels").into()
    })
}

fn free_memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

fn start_with_database(
    options: &KvOptions,
) -> Result<(ChildTarget, Extent), Box<dyn std::error::Error>> {
    let extent = extent_that_fits(options.levels)?;
    let size = extent.layout().file_bytes().next_multiple_of(4096);
    let KvOptions { latency_us, iops, .. } = options;
    let namespace = format!("mem:size={size},latency_us={latency_us},iops={iops}");
    let child = ChildTarget::start(&namespace, options.poll)?;
    kv::create_on_target(&child.url, &extent, &AtomicBool::new(false))?;
    let (keys, bytes) = (extent.keys(), extent.written_bytes());
    eprintln!("{} levels, {keys} keys, {bytes} bytes in memory", options.levels);
    Ok((child, extent))
}
