//! Pushed-down gets, with and without TLS, in turn (`bpfof bench kv --tls`).

use super::driver::{Driver, Path, Work};
use super::options::KvOptions;
use super::remote::host_options;
use crate::database::{extent_that_fits, write_until};
use crate::measurement::spent;
use crate::output::{check_writable, write_json};
use crate::tls::{self, Targets, Way, WayFigures};
use crate::{legend, machine};
use bpfof_kv::Session;
use bpfof_terminal::{Outcome, progress};
use serde::Serialize;
use std::time::Duration;

/// One depth and cache.
#[derive(Serialize)]
struct Case {
    bench: &'static str,
    levels: u32,
    cached_levels: u32,
    queue_depth: usize,
    ways: Vec<WayFigures>,
}

pub(super) fn run(options: &KvOptions) -> Outcome {
    check_writable([&options.json])?;
    machine::pin(machine::processors().0)?;
    let extent = extent_that_fits(options.levels, Targets::count() as u64)?;
    let size = extent.layout().file_bytes().next_multiple_of(4096);
    let KvOptions { latency_us, iops, .. } = options;
    let namespace = format!("mem:size={size},latency_us={latency_us},iops={iops}");
    let targets = Targets::start(&namespace, options.poll)?;
    let mut sessions = Vec::new();
    for way in targets.ways() {
        let url = targets.url(way);
        // The first target serves two ways: write its database only once.
        if way != Way::Tls {
            targets.unless_stopped(write_until(&targets.stop, &url, &extent))?;
        }
        sessions.push((way, Session::open(&url, host_options(options), 0)?));
    }
    let cases = measure(options, &targets, &mut sessions, extent.keys())?;
    for (_, Session { controller, lane, .. }) in sessions {
        drop(lane);
        controller.disconnect()?;
    }
    let written = write_json(options.json.as_ref(), &cases);
    fn row(case: &Case) -> tls::Row<'_> {
        let label = format!("get, cache {}, depth {}", case.cached_levels, case.queue_depth);
        tls::Row { label, ways: &case.ways }
    }
    let rows: Vec<_> = cases.iter().map(row).collect();
    print!("{}", tls::table("Pushdown", &[legend::DEPTH, legend::CACHE], &rows));
    written
}

fn measure(
    options: &KvOptions,
    targets: &Targets,
    sessions: &mut [(Way, Session)],
    keys: u64,
) -> Result<Vec<Case>, Box<dyn std::error::Error>> {
    let cached = options.cached()?;
    let time = Duration::from_millis(options.milliseconds);
    let bar = progress::steps("measuring", (cached.len() * options.depths.len()) as u64);
    let (mut cases, mut seed) = (Vec::new(), 0);
    for cached_levels in cached {
        for (_, session) in sessions.iter_mut() {
            session.cache_levels(cached_levels)?;
        }
        for &queue_depth in &options.depths {
            bar.set_message(format!(
                "get, cache {cached_levels}, depth {queue_depth}, without TLS and with it"
            ));
            let ways = targets.in_turn(options.repetitions, time, |way, time| {
                let found = sessions.iter_mut().find(|(of, _)| *of == way);
                let (_, session) = found.ok_or("no such connection")?;
                seed += 1;
                let (work, path) = (Work::Get, Path::Pushdown);
                let mut driver = Driver::new(session, work, path, queue_depth, keys, seed << 32)?;
                let used = || (machine::own_cpu_ns(), targets.child(way).cpu_ns());
                let before = used();
                let run = driver.run(time)?;
                Ok((run, spent(before, used())))
            })?;
            let (bench, levels) = ("kv-get-tls", options.levels);
            cases.push(Case { bench, levels, cached_levels, queue_depth, ways });
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(cases)
}
