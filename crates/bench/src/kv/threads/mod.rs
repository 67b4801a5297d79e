//! `bpfof bench kv --threads`: gets by blocking threads, with a connection each, on a shared lane, and on a lane that
//! combines the chains of several threads into vectors.

mod report;

use super::driver::is_value;
use super::options::KvOptions;
use super::remote::{Bench, host_options, seed};
use crate::measurement::{CpuTimes, Run, Samples, median, repetitions, spent};
use crate::output::{check_writable, write_json};
use crate::steal;
use crate::together::{Users, repeat};
use bpfkv::Cache;
use bpfkv::pushdown::{GET_ANSWER_BYTES, GET_SCRATCH_BYTES, get_answer, get_argument};
use bpfof_host::{
    Caravan, ChainInfo, Controller, Error, FunctionId, Options as HostOptions, PushdownCall,
    SharedLane,
};
use bpfof_kv::Session;
use bpfof_terminal::{Outcome, progress};
use fastrand::Rng;
use hdrhistogram::Histogram;
use report::{Case, Report, Shared};
use std::time::Duration;

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
    for (repetition, warm_up, time) in repetitions(options.repetitions, time) {
        for turn in 0..WAYS.len() {
            let at = (turn + repetition as usize) % WAYS.len();
            let (way, samples, sends) = (WAYS[at], &mut samples[at], &mut sends[at]);
            let (run, spent, per_send) = steal::undisturbed(warm_up, || {
                let Session { controller, get: known, .. } = &bench.session;
                let (controller, get) =
                    if way == Way::Private { (&private, get) } else { (controller, *known) };
                let users = open(way, controller, threads, bench)?;
                let before = bench.cpu_times();
                let (run, per_send) = look_up(users, bench, get, time, seed(repetition, at))?;
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

/// Opens the threads' connections.
fn open(
    way: Way,
    controller: &Controller,
    threads: usize,
    bench: &Bench,
) -> Result<Users, Box<dyn std::error::Error>> {
    if way == Way::Private {
        return Users::private(controller, threads).map_err(|error| {
            format!("cannot connect {threads} threads: {error}; give fewer --threads").into()
        });
    }
    let mut lane = SharedLane::new(controller.open_lane()?, Caravan::default())?;
    if way == Way::Gathered {
        lane.gather(&bench.session.limits);
    }
    Ok(Users::Shared(Box::new(lane), threads))
}

/// Lets every thread look up random keys for `time`. Also returns the keys for each send.
fn look_up(
    users: Users,
    bench: &Bench,
    get: FunctionId,
    time: Duration,
    seed: u64,
) -> Result<(Run, f64), Box<dyn std::error::Error>> {
    let session = &bench.session;
    let sizes = (GET_ANSWER_BYTES as u32, GET_SCRATCH_BYTES);
    let call = session.call(get, 0, &[], sizes);
    let (cache, keys) = (&session.cache, bench.keys);
    let getter = |index: usize| {
        let random = Rng::with_seed((index as u64 + 1) << 32 ^ seed);
        Getter { call, cache, keys, random }
    };
    users.run(
        |index, lane| getter(index).run(time, |call, answer| lane.pushdown(call, answer)),
        |index, lane| getter(index).run(time, |call, answer| lane.pushdown(call, answer)),
    )
}

/// One thread's work.
struct Getter<'a> {
    /// The call of each get, except its first read and its key.
    call: PushdownCall<'a>,
    cache: &'a Cache,
    keys: u64,
    random: Rng,
}

impl Getter<'_> {
    fn run(
        mut self,
        time: Duration,
        mut get: impl FnMut(&PushdownCall<'_>, &mut Vec<u8>) -> Result<ChainInfo, Error>,
    ) -> Result<Histogram<u64>, String> {
        let mut answer = Vec::with_capacity(GET_ANSWER_BYTES);
        repeat(time, || {
            let key = self.random.u64(..self.keys);
            let argument = get_argument(key).ok_or("not a key")?;
            let start = self.cache.start_of_get(key).map_err(|error| error.to_string())?;
            let first_offset_bytes = start.ok_or("a key is missing")?;
            let call = PushdownCall { first_offset_bytes, scratch: &argument, ..self.call };
            get(&call, &mut answer).map_err(|error| error.to_string())?;
            let value = get_answer(&answer).map_err(|error| error.to_string())?;
            match value {
                Some(value) if is_value(value, key) => Ok(()),
                _ => Err(format!("a wrong answer for key {key}")),
            }
        })
    }
}
