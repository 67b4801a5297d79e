//! `bpfof bench net`: reads and writes over NVMe/TCP, against what TCP itself can do.

mod cases;
mod curve;
mod load;
mod plot;
mod shares;
mod spread;
mod table;
mod threads;

use crate::bench::spawn::{self, ChildTarget};
use crate::bench::{CpuTimes, check_writable, write_json};
use crate::session::connect;
use crate::{Outcome, progress};
use bpfof_host::{Controller, Lane, Options as HostOptions, TargetUrl};
use cases::{Case, Mix};
use clap::Args;
use curve::Curve;
use load::Place;
use serde::Serialize;
use shares::WayShares;
use spread::Spread;
use std::path::PathBuf;
use std::time::Duration;

type Failure = Box<dyn std::error::Error>;

/// Size of the namespaces of targets of our own together: more than a processor's own caches.
const NAMESPACE_BYTES: u64 = 256 << 20;
/// They are filled by pieces of this size.
const FILL_BYTES: u64 = 1 << 20;

/// Every case runs in turn, several times: reads with all that is ready in one send, reads with one
/// send each, and the floor: messages of the same sizes over TCP without a protocol, one at a time
/// (queue depth 1) or in batches of 16, both polling and blocking. Then mixes of reads and writes,
/// latency against throughput (reads that are due at random times, whether others have ended or
/// not), several connections, and threads. Figures are medians. Host and target have one processor
/// each.
#[derive(Args, Clone)]
pub(crate) struct NetOptions {
    /// A target to read from, with any data; otherwise one is started with a memory namespace.
    #[arg(long)]
    target: Option<TargetUrl>,
    /// Bytes of a read.
    #[arg(long, value_delimiter = ',', default_value = "512,4096")]
    sizes: Vec<u32>,
    /// Reads in flight.
    #[arg(long, value_delimiter = ',', default_value = "1,16,128",
          value_parser = clap::value_parser!(u16).range(1..=1023))]
    depths: Vec<u16>,
    /// Mixes, as writes of 100 operations, of the largest size at the deepest queue; "" for none. By
    /// default 50 and 100, and none with --target, where they overwrite what is there.
    #[arg(long, value_delimiter = ',', value_parser = percentage)]
    writes: Option<Vec<Option<u32>>>,
    /// Leave out latency against throughput.
    #[arg(long)]
    no_curve: bool,
    /// Connections of one host processor, to one target and (without --target and --poll) to as many
    /// targets that share a processor; "" for none.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16", value_parser = count)]
    connections: Vec<usize>,
    /// Threads on one processor that read one block at a time: with a connection each, and sharing
    /// a lane; "" for none.
    #[arg(long, value_delimiter = ',', default_value = "1,8,32", value_parser = count)]
    threads: Vec<usize>,
    /// Say where processor time goes, too, with the largest number of threads: by perf, which has to be
    /// installed.
    #[arg(long)]
    perf: bool,
    /// Repetitions of each case.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Length of each repetition in ms.
    #[arg(long, default_value_t = 300)]
    milliseconds: u64,
    /// Never sleep, on both sides. Floors are of no use then, unless the target is on processors of
    /// its own (--target): the summary leaves them out.
    #[arg(long)]
    poll: bool,
    /// Write the figures to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw pictures of the figures into this folder: net-curve.png, net-threads.png and others.
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
}

impl NetOptions {
    /// Whether this repetition only warms up, and how long it takes.
    fn repetition(&self, number: u32) -> (bool, Duration) {
        let time = Duration::from_millis(self.milliseconds);
        if number == 0 { (true, time / 5) } else { (false, time) }
    }

    fn smallest(&self) -> u32 {
        self.sizes.iter().copied().min().unwrap_or(512)
    }

    fn largest(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(4096)
    }

    fn deepest(&self) -> u16 {
        self.depths.iter().copied().max().unwrap_or(128)
    }

    fn mixes(&self) -> Vec<u32> {
        match &self.writes {
            Some(given) => given.iter().copied().flatten().collect(),
            None if self.target.is_some() => Vec::new(),
            None => vec![50, 100],
        }
    }

    /// Numbers of connections, and whether to a target each.
    fn spreads(&self) -> Vec<(usize, bool)> {
        let numbers = || self.connections.iter().copied().filter(|number| *number > 0);
        let to_one = numbers().map(|number| (number, false));
        // Targets that poll would take the processor from each other.
        let has_own = self.target.is_none() && !self.poll;
        let to_own = numbers().filter(|_| has_own).map(|number| (number, true));
        to_one.chain(to_own).collect()
    }

    fn host(&self) -> HostOptions {
        HostOptions { queue_depth: 1023, poll: self.poll, ..HostOptions::default() }
    }
}

/// The figures that the project is held to; none for a case that was not run.
#[derive(Default, Serialize)]
struct Summary {
    /// Median latency over that of a polled ping-pong, of the smallest reads.
    qd1_over_pingpong_floor: Option<f64>,
    /// Reads a second over messages a second in batches of 16, by the faster way to wait.
    qd128_4k_over_batch_floor: Option<f64>,
    qd128_512_over_batch_floor: Option<f64>,
    /// Reads a second in shared sends over reads with a send each, at depth 128 and 512 bytes.
    lane_caravan_doorbell_over_single_send: Option<f64>,
    /// Reads a second of 32 blocking threads on a shared lane over those with a connection each.
    threads32_shared_over_private: Option<f64>,
}

impl Summary {
    /// Of a target of our own that polls: it takes the processor of the floor's peer, so the floors are
    /// of no use.
    fn forget_floors(&mut self) {
        self.qd1_over_pingpong_floor = None;
        self.qd128_4k_over_batch_floor = None;
        self.qd128_512_over_batch_floor = None;
    }
}

#[derive(Default, Serialize)]
struct Report {
    cases: Vec<Case>,
    mixes: Vec<Mix>,
    curves: Vec<Curve>,
    spreads: Vec<Spread>,
    threads: Vec<threads::Case>,
    shares: Vec<WayShares>,
    summary: Summary,
}

pub(crate) fn run(options: &NetOptions) -> Outcome {
    check_writable([&options.json])?;
    if let Some(folder) = &options.plots {
        std::fs::create_dir_all(folder)
            .map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
        crate::bench::plot::use_font()?;
    }
    if options.perf {
        if options.threads.iter().all(|count| *count == 0) {
            return Err(
                "--perf looks at threads: give --threads a number, or leave out --perf".into()
            );
        }
        shares::check()?;
    }
    let mut bench = Bench::open(options)?;
    let report = measure(&mut bench, options)?;
    bench.close()?;
    let written = write_json(options.json.as_ref(), &report);
    let drawn = options.plots.as_ref().map_or(Ok(()), |folder| plot::draw(folder, &report));
    table::print(&report);
    written.and(drawn)
}

fn measure(bench: &mut Bench, options: &NetOptions) -> Result<Report, Failure> {
    let (mixes, spreads) = (options.mixes(), options.spreads());
    let threads: Vec<usize> = options.threads.iter().copied().filter(|count| *count > 0).collect();
    let cases = options.sizes.len() * options.depths.len();
    let others = mixes.len() + spreads.len() + threads.len() + usize::from(!options.no_curve);
    let bar = progress::steps("measuring", (cases + others) as u64);
    let mut report = Report::default();
    for &size in &options.sizes {
        for &depth in &options.depths {
            report.cases.push(cases::case(bench, options, size, depth)?);
            bar.inc(1);
        }
    }
    for writes in mixes {
        report.mixes.push(cases::mix(bench, options, writes)?);
        bar.inc(1);
    }
    if !options.no_curve {
        let most = report
            .cases
            .iter()
            .filter(|case| case.size_bytes == options.smallest())
            .map(|case| case.lane.ops_per_s);
        report.curves = curve::measure(bench, options, most.fold(1.0, f64::max))?;
        bar.inc(1);
    }
    for (connections, own_targets) in spreads {
        report.spreads.push(spread::measure(bench, options, connections, own_targets)?);
        bar.inc(1);
    }
    for &count in &threads {
        report.threads.push(bench.threads(options, count)?);
        bar.inc(1);
    }
    if let Some(count) = threads.into_iter().max().filter(|_| options.perf) {
        report.shares = bench.shares(options, count)?;
    }
    bar.finish_and_clear();
    report.summary = summary(&report);
    if options.poll && options.target.is_none() {
        report.summary.forget_floors();
    }
    Ok(report)
}

/// A target, connected, and where to read.
struct Bench {
    controller: Controller,
    lane: Lane,
    nsid: u32,
    size_bytes: u64,
    child: Option<ChildTarget>,
    seed: u64,
}

impl Bench {
    fn open(options: &NetOptions) -> Result<Bench, Failure> {
        spawn::pin(spawn::processors().0)?;
        let (child, url) = match &options.target {
            Some(url) => (None, url.clone()),
            None => {
                let namespace = format!("mem:size={NAMESPACE_BYTES}");
                let child = ChildTarget::start(&namespace, options.poll)?;
                let url = child.url.clone();
                (Some(child), url)
            }
        };
        let nsid = url.nsid;
        let (mut controller, lane) = connect(&url, options.host())?;
        let info = controller.identify_namespace(nsid)?;
        let size_bytes = info.size_bytes();
        check(options, size_bytes, info.block_bytes, &lane)?;
        check_connections(options, &controller)?;
        let mut bench = Bench { controller, lane, nsid, size_bytes, child, seed: 0 };
        if bench.child.is_some() {
            let place = bench.place();
            fill(&mut bench.lane, place)?;
        }
        Ok(bench)
    }

    fn close(self) -> Outcome {
        drop(self.lane);
        self.controller.disconnect()?;
        drop(self.child);
        Ok(())
    }

    /// For random numbers that nobody has had.
    fn next_seed(&mut self) -> u64 {
        self.seed += 1;
        self.seed
    }

    fn place(&self) -> Place {
        let is_filled = self.child.is_some();
        Place { nsid: self.nsid, size_bytes: self.size_bytes, is_filled }
    }

    /// The smallest reads, by blocking threads.
    fn threads(&self, options: &NetOptions, count: usize) -> Result<threads::Case, Failure> {
        let target_cpu_ns = || self.cpu_ns().1;
        let place = self.threads_place(&target_cpu_ns);
        let time = Duration::from_millis(options.milliseconds);
        threads::measure(&place, count, options.smallest(), options.repetitions, time)
    }

    /// What they spend processor time on, over all repetitions.
    fn shares(&self, options: &NetOptions, count: usize) -> Result<Vec<WayShares>, Failure> {
        let target_cpu_ns = || self.cpu_ns().1;
        let place = self.threads_place(&target_cpu_ns);
        let time = Duration::from_millis(options.milliseconds) * options.repetitions;
        shares::measure(&place, count, options.smallest(), time, self.child.is_some())
    }

    fn threads_place<'a>(
        &'a self,
        target_cpu_ns: &'a dyn Fn() -> Option<u64>,
    ) -> threads::Place<'a> {
        threads::Place { url: self.controller.url(), size_bytes: self.size_bytes, target_cpu_ns }
    }

    /// Processor time of host and target so far.
    fn cpu_ns(&self) -> CpuTimes {
        (spawn::own_cpu_ns(), self.child.as_ref().and_then(ChildTarget::cpu_ns))
    }
}

/// A number of threads or connections; nothing is none.
fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        _ if text.is_empty() => Ok(0),
        Ok(count @ 1..=100) => Ok(count),
        _ => Err("a number from 1 to 100, or nothing".into()),
    }
}

/// So many of 100; nothing is none.
fn percentage(text: &str) -> Result<Option<u32>, String> {
    match text.parse() {
        _ if text.is_empty() => Ok(None),
        Ok(percent @ 0..=100) => Ok(Some(percent)),
        _ => Err("a percentage from 0 to 100, or nothing".into()),
    }
}

/// Finds out before anything is measured whether all of it can be.
fn check(
    options: &NetOptions,
    namespace_bytes: u64,
    block_bytes: u32,
    lane: &Lane,
) -> Result<(), String> {
    let most = namespace_bytes.min(u64::from(lane.max_transfer_bytes()));
    for &size in &options.sizes {
        if size == 0 || !size.is_multiple_of(block_bytes) || u64::from(size) > most {
            return Err(format!(
                "--sizes {size}: a read is whole blocks of {block_bytes} bytes, at most {most} \
                 bytes here"
            ));
        }
    }
    match options.depths.iter().find(|depth| **depth > lane.depth()) {
        Some(depth) => {
            Err(format!("--depths {depth}: this target takes {} at a time", lane.depth()))
        }
        None => Ok(()),
    }
}

/// Has as many connections open at once as will be wanted, and closes them.
fn check_connections(options: &NetOptions, controller: &Controller) -> Result<(), String> {
    let numbers = options.connections.iter().chain(&options.threads);
    let mut open = Vec::new();
    for _ in 0..numbers.copied().max().unwrap_or(0) {
        let lane = controller.open_lane().map_err(|error| {
            let more = open.len() + 1;
            format!("connection {more} fails: {error}; give fewer --connections and --threads")
        })?;
        open.push(lane);
    }
    Ok(())
}

/// Writes a namespace full of data that says where it is.
fn fill(lane: &mut Lane, place: Place) -> Result<(), bpfof_host::Error> {
    let mut piece = vec![0; FILL_BYTES as usize];
    let bar = progress::steps("filling the namespace", place.size_bytes / FILL_BYTES);
    for start in (0..place.size_bytes).step_by(FILL_BYTES as usize) {
        load::mark(&mut piece, start);
        lane.write(place.nsid, start, &piece)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

fn summary(Report { cases, threads, .. }: &Report) -> Summary {
    let find = |size: u32, depth: u16| {
        cases.iter().find(|case| case.size_bytes == size && case.queue_depth == depth)
    };
    let over_floor = |case: &Case| case.lane.ops_per_s / case.fastest_floor();
    let smallest = cases.iter().filter(|case| case.queue_depth == 1).min_by_key(|c| c.size_bytes);
    Summary {
        qd1_over_pingpong_floor: smallest
            .and_then(|case| Some(case.lane.p50_us / case.floor_polled.p50_us?)),
        qd128_4k_over_batch_floor: find(4096, 128).map(over_floor),
        qd128_512_over_batch_floor: find(512, 128).map(over_floor),
        lane_caravan_doorbell_over_single_send: find(512, 128)
            .map(|case| case.lane.ops_per_s / case.single_send.ops_per_s),
        threads32_shared_over_private: threads
            .iter()
            .find(|case| case.threads == 32)
            .and_then(threads::Case::shared_over_private),
    }
}
