//! `bpfof bench kv --threads`: gets by blocking threads, with a connection each, on a shared lane, and on a lane that
//! combines the chains of several threads into vectors.

mod report;

use super::driver::{Random, is_value};
use super::options::KvOptions;
use super::remote::{Bench, host_options, seed};
use crate::measurement::{CpuTimes, Run, Samples, latencies, median, spent};
use crate::output::{check_writable, write_json};
use crate::steal;
use crate::together::together;
use bpfkv::Cache;
use bpfkv::pushdown::{GET_ANSWER_BYTES, GET_SCRATCH_BYTES, get_answer, get_argument};
use bpfof_host::{
    Caravan, ChainInfo, Controller, Error, FunctionId, Lane, Options as HostOptions, PushdownCall,
    SharedLane,
};
use bpfof_kv::Session;
use bpfof_terminal::{Outcome, progress};
use hdrhistogram::Histogram;
use report::{Case, Report, Shared};
use std::time::{Duration, Instant};

/// How threads reach the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A connection for each thread.
    Private,
    /// One lane, with a command for each key.
    Shared,
    /// One lane, which combines the keys of one send into vectors.
    Gathered,
}

const WAYS: [Way; 3] = [Way::Private, Way::Shared, Way::Gathered];

pub(super) fn run(options: &KvOptions) -> Outcome {
    check_writable([&options.json])?;
    let mut bench = Bench::open(options)?;
    let cases = measure(&mut bench, options)?;
    bench.close()?;
    let report = Report::new(cases);
    let written = write_json(options.json.as_ref(), &report);
    print!("{}", report.table());
    written
}

fn measure(
    bench: &mut Bench,
    options: &KvOptions,
) -> Result<Vec<Case>, Box<dyn std::error::Error>> {
    let bar = progress::steps("measuring", options.threads.len() as u64);
    let mut cases = Vec::new();
    for &threads in &options.threads {
        bar.set_message(format!("{threads} threads, each way"));
        cases.push(case(bench, options, threads)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(cases)
}

fn case(
    bench: &mut Bench,
    options: &KvOptions,
    threads: usize,
) -> Result<Case, Box<dyn std::error::Error>> {
    let mut samples = [Samples::default(), Samples::default(), Samples::default()];
    let mut sends = [Vec::new(), Vec::new(), Vec::new()];
    // Spinning threads would take the processor from threads with work.
    let spin_us = if threads > 1 { 0 } else { HostOptions::default().spin_us };
    let private_options = HostOptions { spin_us, ..host_options(options) };
    let mut private = Controller::connect(&bench.url, private_options)?;
    let get = private.load_function(bpfkv::GET_OBJECT, 0)?;
    let time = Duration::from_millis(options.milliseconds);
    for repetition in 0..=options.repetitions {
        let warm_up = repetition == 0;
        let time = if warm_up { time / 5 } else { time };
        for turn in 0..WAYS.len() {
            let at = (turn + repetition as usize) % WAYS.len();
            let (way, samples, sends) = (WAYS[at], &mut samples[at], &mut sends[at]);
            let (run, spent, per_send) = steal::undisturbed(warm_up, || {
                let Session { controller, get: known, .. } = &bench.session;
                let (controller, get) =
                    if way == Way::Private { (&private, get) } else { (controller, *known) };
                let users = Users::open(way, controller, threads, bench)?;
                let before = bench.cpu_times();
                let (run, per_send) = users.run(bench, get, time, seed(repetition, at))?;
                let spent: CpuTimes = spent(before, bench.cpu_times());
                Ok::<_, Box<dyn std::error::Error>>((run, spent, per_send))
            })?;
            if !warm_up {
                samples.add(&run, spent);
                sends.push(per_send);
            }
        }
    }
    private.disconnect()?;
    let over = |one: &Samples, other: &Samples| {
        let ratios = one.ops_per_s.iter().zip(&other.ops_per_s).map(|(one, other)| one / other);
        median(&ratios.collect::<Vec<_>>())
    };
    let [private, shared, gathered] = &samples;
    let [_, of_shared, of_gathered] = &sends;
    Ok(Case {
        bench: "kv-get-threads",
        levels: bench.session.levels,
        threads,
        gathered_over_shared: over(gathered, shared),
        gathered_over_private: over(gathered, private),
        private: private.figures(),
        shared: Shared { figures: shared.figures(), keys_per_send: median(of_shared) },
        gathered: Shared { figures: gathered.figures(), keys_per_send: median(of_gathered) },
    })
}

/// The threads' connections.
enum Users {
    Private(Vec<Lane>),
    Shared(Box<SharedLane>, usize),
}

impl Users {
    fn open(
        way: Way,
        controller: &Controller,
        threads: usize,
        bench: &Bench,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        if way == Way::Private {
            let lanes: Result<_, _> = (0..threads).map(|_| controller.open_lane()).collect();
            return lanes.map(Self::Private).map_err(|error: Error| {
                format!("cannot connect {threads} threads: {error}; give fewer --threads").into()
            });
        }
        let mut lane = SharedLane::new(controller.open_lane()?, Caravan::default())?;
        if way == Way::Gathered {
            lane.gather(&bench.session.limits);
        }
        Ok(Self::Shared(Box::new(lane), threads))
    }

    /// Lets every thread look up random keys for `time`. Also returns the keys for each send.
    fn run(
        self,
        bench: &Bench,
        get: FunctionId,
        time: Duration,
        seed: u64,
    ) -> Result<(Run, f64), Box<dyn std::error::Error>> {
        let begun = Instant::now();
        let session = &bench.session;
        let sizes = (GET_ANSWER_BYTES as u32, GET_SCRATCH_BYTES);
        let call = session.call(get, 0, &[], sizes);
        let (cache, keys) = (&session.cache, bench.keys);
        let getter = |index: usize| {
            let random = Random::new((index as u64 + 1) << 32 ^ seed);
            Getter { call, cache, keys, random }
        };
        let (ends, bytes, per_send) = match self {
            Self::Private(lanes) => {
                let ends = together(lanes, |index, mut lane| {
                    let end = getter(index).run(time, |call, answer| lane.pushdown(call, answer));
                    (end, lane.bytes_sent() + lane.bytes_received())
                });
                let bytes = ends.iter().map(|(_, bytes)| bytes).sum();
                (ends.into_iter().map(|(end, _)| end).collect(), bytes, 1.0)
            }
            Self::Shared(lane, threads) => {
                let ends: Vec<_> = together(vec![(); threads], |index, ()| {
                    getter(index).run(time, |call, answer| lane.pushdown(call, answer))
                });
                let counters = lane.counters();
                let bytes = counters.bytes_sent + counters.bytes_received;
                (ends, bytes, counters.requests as f64 / counters.caravans.max(1) as f64)
            }
        };
        let elapsed = begun.elapsed();
        let mut latency = latencies()?;
        for of_thread in ends {
            latency.add(of_thread?)?;
        }
        let run =
            Run { operations: latency.len(), elapsed, network_bytes: bytes, hops: 0, latency };
        Ok((run, per_send))
    }
}

/// One thread's work.
struct Getter<'a> {
    /// The call of each get, except its first read and its key.
    call: PushdownCall<'a>,
    cache: &'a Cache,
    keys: u64,
    random: Random,
}

impl Getter<'_> {
    fn run(
        mut self,
        time: Duration,
        mut get: impl FnMut(&PushdownCall<'_>, &mut Vec<u8>) -> Result<ChainInfo, Error>,
    ) -> Result<Histogram<u64>, String> {
        let mut latency = latencies().map_err(|error| error.to_string())?;
        let mut answer = Vec::with_capacity(GET_ANSWER_BYTES);
        let begun = Instant::now();
        let mut now = begun;
        while now - begun < time {
            let key = self.random.below(self.keys);
            let argument = get_argument(key).ok_or("not a key")?;
            let start = self.cache.start_of_get(key).map_err(|error| error.to_string())?;
            let first_offset_bytes = start.ok_or("a key is missing")?;
            let call = PushdownCall { first_offset_bytes, scratch: &argument, ..self.call };
            get(&call, &mut answer).map_err(|error| error.to_string())?;
            let value = get_answer(&answer).map_err(|error| error.to_string())?;
            if !value.is_some_and(|value| is_value(value, key)) {
                return Err(format!("a wrong answer for key {key}"));
            }
            let before = std::mem::replace(&mut now, Instant::now());
            latency.saturating_record((now - before).as_nanos() as u64);
        }
        Ok(latency)
    }
}
