//! `bpfof bench kv --executor local`: XRP's table 3 with a file on this machine, without a target.

mod database;
mod methods;
mod report;

use super::options::KvOptions;
use crate::machine;
use crate::measurement::repetitions;
use crate::output::{check_writable, write_json};
use crate::steal::undisturbed;
use bpfof_terminal::{Outcome, progress};
use clap::{Args, FromArgMatches};
use database::Database;
use methods::{Load, Method};
use report::{Case, Samples};
use std::path::Path;
use std::time::Duration;

/// The deepest tree of XRP's table.
const DEPTH_MAX: u32 = 6;

/// Looks up keys by `read()`, io_uring and the local executor in turn, at each depth of the tree.
pub(super) fn run(options: &KvOptions, file: Option<&Path>) -> Outcome {
    refuse_what_means_nothing(options)?;
    check_writable([&options.json])?;
    machine::pin(machine::processors().0)?;
    let database = Database::open(file, options.levels)?;
    let depths = 1..=options.levels.min(DEPTH_MAX);
    let plan: Vec<(usize, u32)> = options
        .depths
        .iter()
        .flat_map(|in_flight| depths.clone().map(|depth| (*in_flight, depth)))
        .collect();
    let bar = progress::steps("measuring", plan.len() as u64);
    let mut cases = Vec::new();
    for (in_flight, depth) in plan {
        bar.set_message(format!("gets of {depth} index reads, {in_flight} in flight"));
        cases.push(case(options, &database, in_flight, depth)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let written = write_json(options.json.as_ref(), &cases);
    print!("{}", report::tables(&cases, &database));
    written
}

/// Refuses options about a target, which would have no effect here.
fn refuse_what_means_nothing(options: &KvOptions) -> Outcome {
    let command = KvOptions::augment_args(clap::Command::new("defaults"));
    let default = KvOptions::from_arg_matches(&command.get_matches_from(["defaults"]))?;
    let given = [
        (options.target.is_some(), "target"),
        (options.latency_us != default.latency_us, "latency-us"),
        (options.iops != default.iops, "iops"),
        (options.network_us != default.network_us, "network-us"),
        (options.cached != default.cached, "cached"),
        (options.ranges != default.ranges, "ranges"),
        (options.sums != default.sums, "sums"),
        (options.poll, "poll"),
        (options.plot.is_some(), "plot"),
    ];
    match given.iter().find(|(is_given, _)| *is_given) {
        Some((_, name)) => {
            Err(format!("--{name} needs a target; leave it out with --executor local").into())
        }
        None => Ok(()),
    }
}

fn case(
    options: &KvOptions,
    database: &Database,
    in_flight: usize,
    depth: u32,
) -> Result<Case, Box<dyn std::error::Error>> {
    // Plain reads have one read in flight for each thread.
    let methods: &[Method] = match in_flight {
        1 => &[Method::Read, Method::Uring, Method::Ours],
        _ => &[Method::Uring, Method::Ours],
    };
    let mut samples: Vec<Samples> = methods.iter().map(|_| Samples::default()).collect();
    let time = Duration::from_millis(options.milliseconds);
    for (repetition, warm_up, time) in repetitions(options.repetitions, time) {
        for turn in 0..methods.len() {
            database.check_stopped()?;
            // Each method comes first, and last, equally often.
            let at = (turn + repetition as usize) % methods.len();
            let (method, samples) = (&methods[at], &mut samples[at]);
            let run = undisturbed(warm_up, || -> Result<_, Box<dyn std::error::Error>> {
                // Each run has keys of its own: a drive may keep what another has read.
                let seed = u64::from(repetition) * methods.len() as u64 + at as u64 + 1;
                let load = Load::new(database, depth, in_flight, time, seed)?;
                Ok(load.run(*method).map_err(|error| format!("{method:?}: {error}"))?)
            })?;
            if !warm_up {
                samples.add(&run);
            }
        }
    }
    Ok(Case::new(depth, in_flight, methods, &samples))
}
