//! `bpfof bench net`: random reads over NVMe/TCP, against what TCP itself can do.

use crate::bench::driver::Run;
use crate::bench::floor::{self, Wait};
use crate::bench::report::Figures;
use crate::bench::spawn::{self, ChildTarget};
use crate::bench::{Samples, latencies, median, threads};
use crate::session::connect;
use crate::{Outcome, progress};
use bpfof_host::{Controller, Lane, Options as HostOptions, Request, TargetUrl};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Requests of one send in the floor of deep queues: i10's caravan.
const FLOOR_BATCH: usize = 16;
/// Size of the namespace of a target of our own: more than a processor's own caches.
const NAMESPACE_BYTES: u64 = 256 << 20;
/// A target that gives no answer for this long is reported.
const PATIENCE: Duration = Duration::from_secs(10);

/// Every case runs in turn, several times: reads with all that is ready in one send, reads with one
/// send each, and the floor: messages of the same sizes over TCP without a protocol, one at a time
/// (queue depth 1) or in batches of 16, both polling and blocking. Figures are medians. Host and
/// target have one processor each.
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
    /// Threads on one processor that read one block at a time: with a connection each, and sharing
    /// a lane; "" for none.
    #[arg(long, value_delimiter = ',', default_value = "1,8,32", value_parser = thread_count)]
    threads: Vec<usize>,
    /// Repetitions of each case.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Length of each repetition in ms.
    #[arg(long, default_value_t = 300)]
    milliseconds: u64,
    /// Never sleep, on both sides.
    #[arg(long)]
    poll: bool,
    /// Write the figures to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct FloorFigures {
    messages_per_s: f64,
    /// Of single messages.
    p50_us: Option<f64>,
}

/// One size at one depth.
#[derive(Serialize)]
struct Case {
    bench: &'static str,
    size_bytes: u32,
    queue_depth: u16,
    /// All that is ready in one send.
    lane: Figures,
    /// One send for each read.
    single_send: Figures,
    floor_polled: FloorFigures,
    floor_blocking: FloorFigures,
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

#[derive(Serialize)]
struct Report {
    cases: Vec<Case>,
    threads: Vec<threads::Case>,
    summary: Summary,
}

pub(crate) fn run(options: &NetOptions) -> Outcome {
    if let Some(path) = &options.json {
        std::fs::write(path, "").map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    let mut bench = Bench::open(options)?;
    let steps = options.sizes.len() * options.depths.len() + options.threads.len();
    let bar = progress::steps("measuring", steps as u64);
    let mut cases = Vec::new();
    for &size in &options.sizes {
        for &depth in &options.depths {
            cases.push(bench.case(options, size, depth)?);
            bar.inc(1);
        }
    }
    let mut threads = Vec::new();
    for &count in options.threads.iter().filter(|count| **count > 0) {
        threads.push(bench.threads(options, count)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    bench.close()?;
    let report = Report { summary: summary(&cases, &threads), cases, threads };
    print_table(&report);
    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::to_string_pretty(&report)? + "\n")?;
    }
    Ok(())
}

/// A target, connected, and where to read.
struct Bench {
    controller: Controller,
    lane: Lane,
    nsid: u32,
    size_bytes: u64,
    random: u64,
    child: Option<ChildTarget>,
}

impl Bench {
    fn open(options: &NetOptions) -> Result<Bench, Box<dyn std::error::Error>> {
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
        let host = HostOptions { queue_depth: 1023, poll: options.poll, ..HostOptions::default() };
        let nsid = url.nsid;
        let (mut controller, mut lane) = connect(&url, host)?;
        let info = controller.identify_namespace(nsid)?;
        let size_bytes = info.size_bytes();
        check(options, size_bytes, info.block_bytes, &lane)?;
        if child.is_some() {
            fill(&mut lane, nsid)?;
        }
        Ok(Bench { controller, lane, nsid, size_bytes, random: 1, child })
    }

    fn close(self) -> Outcome {
        drop(self.lane);
        self.controller.disconnect()?;
        drop(self.child);
        Ok(())
    }

    fn case(
        &mut self,
        options: &NetOptions,
        size_bytes: u32,
        queue_depth: u16,
    ) -> Result<Case, Box<dyn std::error::Error>> {
        let depth = usize::from(queue_depth);
        let (mut lane, mut single) = (Samples::default(), Samples::default());
        let (mut polled, mut blocking) = (Floors::default(), Floors::default());
        for repetition in 0..=options.repetitions {
            let warm_up = repetition == 0;
            let milliseconds = Duration::from_millis(options.milliseconds);
            let time = if warm_up { milliseconds / 5 } else { milliseconds };
            for (samples, is_single) in [(&mut lane, false), (&mut single, true)] {
                let before = self.cpu_ns();
                let run = self.read(size_bytes, depth, is_single, time)?;
                let after = self.cpu_ns();
                let spent =
                    |after: Option<u64>, before: Option<u64>| Some(after?.saturating_sub(before?));
                if !warm_up {
                    samples.add(&run, spent(after.0, before.0), spent(after.1, before.1));
                }
            }
            for (floors, wait) in [(&mut polled, Wait::Polled), (&mut blocking, Wait::Blocking)] {
                let batch = if depth == 1 { 1 } else { FLOOR_BATCH.min(depth) };
                let floor = floor::measure(wait, size_bytes as usize, depth, batch, time)?;
                if !warm_up {
                    floors.messages_per_s.push(floor.messages_per_s);
                    floors.p50_us.push(floor.latency.value_at_quantile(0.5) as f64 / 1000.0);
                }
            }
        }
        Ok(Case {
            bench: "net-read",
            size_bytes,
            queue_depth,
            lane: lane.figures(),
            single_send: single.figures(),
            floor_polled: polled.figures(depth),
            floor_blocking: blocking.figures(depth),
        })
    }

    /// The smallest reads, by blocking threads.
    fn threads(
        &self,
        options: &NetOptions,
        count: usize,
    ) -> Result<threads::Case, Box<dyn std::error::Error>> {
        let size_bytes = options.sizes.iter().copied().min().unwrap_or(512);
        let target_cpu_ns = || self.child.as_ref().and_then(ChildTarget::cpu_ns);
        let url = self.controller.url();
        let place =
            threads::Place { url, size_bytes: self.size_bytes, target_cpu_ns: &target_cpu_ns };
        let time = Duration::from_millis(options.milliseconds);
        threads::measure(&place, count, size_bytes, options.repetitions, time)
    }

    fn cpu_ns(&self) -> (Option<u64>, Option<u64>) {
        (spawn::own_cpu_ns(), self.child.as_ref().and_then(ChildTarget::cpu_ns))
    }

    /// Reads at random places, `depth` at a time, for `time`; then lets what is in flight end.
    fn read(
        &mut self,
        size_bytes: u32,
        depth: usize,
        is_single: bool,
        time: Duration,
    ) -> Result<Run, String> {
        let problem = |error: bpfof_host::Error| error.to_string();
        let mut latency = latencies().map_err(|error| error.to_string())?;
        let bytes = |lane: &Lane| lane.bytes_sent() + lane.bytes_received();
        let bytes_before = bytes(&self.lane);
        let begun = Instant::now();
        let (mut now, mut operations, mut over) = (begun, 0, false);
        let mut slots = vec![(0, begun); depth];
        let mut ready: Vec<usize> = (0..depth).collect();
        let mut wrong = None;
        loop {
            for index in ready.drain(..).filter(|_| !over) {
                let offset = self.place(size_bytes);
                slots[index] = (offset, now);
                let request = Request::Read {
                    nsid: self.nsid,
                    offset_bytes: offset,
                    length_bytes: size_bytes,
                };
                self.lane.submit(index as u64, request).map_err(|error| error.to_string())?;
                if is_single {
                    self.lane.flush_doorbell().map_err(problem)?;
                }
            }
            if self.lane.requests_in_flight() == 0 {
                break;
            }
            let checks = self.child.is_some();
            let ended = self.lane.wait(PATIENCE, &mut |completion| {
                let index = completion.tag as usize;
                match completion.result {
                    Ok(done) if checks && !is_filling(done.data, slots[index].0) => {
                        wrong = Some(format!("wrong data at byte {}", slots[index].0));
                    }
                    Ok(_) => {}
                    Err(error) => wrong = Some(error.to_string()),
                }
                ready.push(index);
            });
            if ended.map_err(problem)? == 0 {
                return Err(format!("no answer from the target for {PATIENCE:?}"));
            }
            if let Some(wrong) = wrong {
                return Err(wrong);
            }
            now = Instant::now();
            over = now - begun >= time;
            operations += ready.len() as u64;
            for &index in &ready {
                latency.saturating_record((now - slots[index].1).as_nanos() as u64);
            }
        }
        let network_bytes = bytes(&self.lane) - bytes_before;
        Ok(Run { operations, elapsed: now - begun, network_bytes, hops: 0, latency })
    }

    /// A random offset of a read, in bytes (xorshift; the upper half of the product, scaled).
    fn place(&mut self, size_bytes: u32) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let places = self.size_bytes / u64::from(size_bytes);
        let place = (u128::from(self.random) * u128::from(places)) >> 64;
        place as u64 * u64::from(size_bytes)
    }
}

/// A number of threads; nothing is none.
fn thread_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        _ if text.is_empty() => Ok(0),
        Ok(count @ 1..=100) => Ok(count),
        _ => Err("a number of threads from 1 to 100, or nothing".into()),
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

/// Writes a namespace full of data that says where it is.
fn fill(lane: &mut Lane, nsid: u32) -> Result<(), bpfof_host::Error> {
    const PIECE_BYTES: u64 = 1 << 20;
    let bar = progress::steps("filling the namespace", NAMESPACE_BYTES / PIECE_BYTES);
    for start in (0..NAMESPACE_BYTES).step_by(PIECE_BYTES as usize) {
        let words = (start..start + PIECE_BYTES).step_by(8);
        let piece: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        lane.write(nsid, start, &piece)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

/// Whether data is what was filled in at an offset, by its two ends.
fn is_filling(data: &[u8], offset: u64) -> bool {
    let last = offset + data.len() as u64 - 8;
    data.first_chunk() == Some(&offset.to_le_bytes())
        && data.last_chunk() == Some(&last.to_le_bytes())
}

fn print_threads(cases: &[threads::Case]) {
    if cases.is_empty() {
        return;
    }
    println!(
        "{:<14} {:<18} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "threads", "way", "ops/s", "p50 µs", "p99 µs", "host µs", "target µs", "req/send"
    );
    for case in cases {
        for (index, way) in case.ways.iter().enumerate() {
            let label = format!("{} × {} B", case.threads, case.size_bytes);
            let label = if index == 0 { label } else { String::new() };
            let cpu = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
            let figures = &way.figures;
            println!(
                "{label:<14} {:<18} {:>9.0} {:>9.1} {:>9.1} {:>9} {:>9} {:>9.1}",
                way.way.name(),
                figures.ops_per_s,
                figures.p50_us,
                figures.p99_us,
                cpu(figures.host_cpu_us_per_op),
                cpu(figures.target_cpu_us_per_op),
                way.requests_per_send,
            );
        }
    }
}

#[derive(Default)]
struct Floors {
    messages_per_s: Vec<f64>,
    p50_us: Vec<f64>,
}

impl Floors {
    fn figures(&self, depth: usize) -> FloorFigures {
        let p50_us = (depth == 1).then(|| median(&self.p50_us));
        FloorFigures { messages_per_s: median(&self.messages_per_s), p50_us }
    }
}

impl Case {
    fn fastest_floor(&self) -> f64 {
        self.floor_polled.messages_per_s.max(self.floor_blocking.messages_per_s)
    }
}

fn summary(cases: &[Case], threads: &[threads::Case]) -> Summary {
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

fn print_table(report: &Report) {
    println!(
        "{:<14} {:<14} {:>10} {:>9} {:>9} {:>9} {:>9}",
        "reads", "way", "ops/s", "p50 µs", "p99 µs", "host µs", "target µs"
    );
    for case in &report.cases {
        let label = format!("{} B, QD {}", case.size_bytes, case.queue_depth);
        let cpu = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
        for (label, name, figures) in
            [(label.as_str(), "shared sends", &case.lane), ("", "a send each", &case.single_send)]
        {
            println!(
                "{label:<14} {name:<14} {:>10.0} {:>9.1} {:>9.1} {:>9} {:>9}",
                figures.ops_per_s,
                figures.p50_us,
                figures.p99_us,
                cpu(figures.host_cpu_us_per_op),
                cpu(figures.target_cpu_us_per_op),
            );
        }
        for (name, floor) in
            [("floor, polled", &case.floor_polled), ("floor, blocking", &case.floor_blocking)]
        {
            let p50 = floor.p50_us.map_or(String::new(), |p50| format!("{p50:.1}"));
            println!("{:<14} {name:<15} {:>9.0} {p50:>9}", "", floor.messages_per_s);
        }
    }
    let Summary {
        qd1_over_pingpong_floor,
        qd128_4k_over_batch_floor,
        qd128_512_over_batch_floor,
        lane_caravan_doorbell_over_single_send,
        threads32_shared_over_private,
    } = report.summary;
    print_threads(&report.threads);
    for (name, value) in [
        ("latency at depth 1 over a polled ping-pong", qd1_over_pingpong_floor),
        ("4 KiB at depth 128 over batches of messages", qd128_4k_over_batch_floor),
        ("512 B at depth 128 over batches of messages", qd128_512_over_batch_floor),
        ("shared sends over a send each", lane_caravan_doorbell_over_single_send),
        ("32 threads on a shared lane over a connection each", threads32_shared_over_private),
    ] {
        if let Some(value) = value {
            println!("{name:<50} {value:.2}");
        }
    }
}
