//! `bpfof bench kv --batch`: gets of many keys in one command, against single gets and plain reads, with the same
//! number of keys in flight.

mod driver;
mod report;

use super::driver::{Driver, Path, Work};
use super::options::KvOptions;
use super::remote::{Baselines, Bench, seed};
use crate::measurement::{CpuTimes, Run, Samples, median, repetitions, spent};
use crate::output::{check_writable, write_json};
use crate::steal;
use crate::tcp_baseline::Messages;
use bpfof_terminal::{Outcome, progress};
use driver::{Shape, VectorDriver};
use report::{Case, Floor, Report};
use std::time::Duration;

/// How keys are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// One round trip for each hop.
    Plain,
    /// One command for each key.
    Single,
    /// One command for many keys.
    Vector,
}

const WAYS: [Way; 3] = [Way::Plain, Way::Single, Way::Vector];

pub(super) fn run(options: &KvOptions) -> Outcome {
    options.cached()?;
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
    let most = bench.session.limits.vector_chains as usize;
    if let Some(batch) = options.batch.iter().find(|batch| **batch > most) {
        return Err(match most {
            0 => "the target does not support Pushdown Vector".into(),
            _ => format!("--batch {batch}: the target takes at most {most} keys at once").into(),
        });
    }
    let mut plan = Vec::new();
    for cached in options.cached()? {
        for &depth in &options.depths {
            plan.extend(options.batch.iter().map(|batch| (cached, depth, *batch)));
        }
    }
    let bar = progress::steps("measuring", plan.len() as u64);
    let mut cases = Vec::new();
    for (cached, depth, batch) in plan {
        let vectors = (depth / batch).max(1);
        let keys = vectors * batch;
        bar.set_message(format!("{keys} keys in flight: plain, single, {vectors} × {batch}"));
        bench.session.cache_levels(cached)?;
        cases.push(case(bench, options, cached, Shape { vectors, batch })?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(cases)
}

fn case(
    bench: &mut Bench,
    options: &KvOptions,
    cached_levels: u32,
    shape: Shape,
) -> Result<Case, Box<dyn std::error::Error>> {
    let mut samples = [Samples::default(), Samples::default(), Samples::default()];
    let mut baselines = Baselines::default();
    let time = Duration::from_millis(options.milliseconds);
    for (repetition, warm_up, time) in repetitions(options.repetitions, time) {
        for turn in 0..WAYS.len() {
            let at = (turn + repetition as usize) % WAYS.len();
            let (way, samples) = (WAYS[at], &mut samples[at]);
            let (run, spent, received) = steal::undisturbed(warm_up, || {
                let received_before = bench.session.lane.bytes_received();
                let (run, spent) = timed(bench, way, shape, time, seed(repetition, at))?;
                let received = bench.session.lane.bytes_received() - received_before;
                Ok::<_, String>((run, spent, received))
            })?;
            if warm_up {
                continue;
            }
            samples.add(&run, spent);
            // A message corresponds to a vector.
            let vectors = Run { operations: run.operations / shape.batch as u64, ..run };
            if way == Way::Vector
                && bench.has_baseline(options)
                && let Some(messages) = Messages::of(&vectors, received, shape.vectors)
            {
                baselines.measure(messages, shape.vectors, time / 2)?;
            }
        }
    }
    let [plain, single, vector] = samples;
    let over = |one: &[f64], other: &[f64]| {
        let ratios: Vec<f64> = one.iter().zip(other).map(|(one, other)| one / other).collect();
        median(&ratios)
    };
    let floor = baselines.fastest().map(|messages| messages * shape.batch as f64);
    let keys_per_s = median(&vector.ops_per_s);
    Ok(Case {
        bench: "kv-get-batch",
        levels: bench.session.levels,
        hops: median(&vector.hops),
        cached_levels,
        keys_in_flight: shape.keys(),
        batch: shape.batch,
        vector_over_single: over(&vector.ops_per_s, &single.ops_per_s),
        vector_over_plain: over(&vector.ops_per_s, &plain.ops_per_s),
        p99_vector_over_single: over(&vector.p99_us, &single.p99_us),
        message_floor: floor
            .map(|floor| Floor { keys_per_s: floor, vector_over_floor: keys_per_s / floor }),
        plain: plain.figures(),
        single: single.figures(),
        vector: vector.figures(),
    })
}

fn timed(
    bench: &mut Bench,
    way: Way,
    shape: Shape,
    time: Duration,
    seed: u64,
) -> Result<(Run, CpuTimes), String> {
    let keys = bench.keys;
    let before = bench.cpu_times();
    let path = if way == Way::Plain { Path::Plain } else { Path::Pushdown };
    let session = &mut bench.session;
    let run = match way {
        Way::Plain | Way::Single => {
            Driver::new(session, Work::Get, path, shape.keys(), keys, seed)?.run(time)
        }
        Way::Vector => VectorDriver::new(session, shape, keys, seed).run(time),
    };
    let run = run.map_err(|error| format!("{way:?}: {error}"))?;
    Ok((run, spent(before, bench.cpu_times())))
}
