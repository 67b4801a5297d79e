//! One host on one processor that reads by several connections, to one target and to as many targets
//! (i10's figure 9).

use super::load::{Load, Place, Source};
use super::{Bench, FILL_BYTES, Failure, NAMESPACE_BYTES, NetOptions};
use crate::bench::driver::Run;
use crate::bench::report::Figures;
use crate::bench::spawn::ChildTarget;
use crate::bench::steal::undisturbed;
use crate::bench::{CpuTimes, Samples, latencies, spent};
use crate::session::connect;
use bpfof_host::{Controller, Lane};
use serde::Serialize;
use std::time::{Duration, Instant};

/// One number of connections.
#[derive(Serialize)]
pub(super) struct Spread {
    bench: &'static str,
    pub(super) connections: usize,
    /// To a target each; else all to one.
    pub(super) own_targets: bool,
    pub(super) size_bytes: u32,
    /// Of each connection.
    pub(super) queue_depth: usize,
    pub(super) figures: Figures,
}

/// A connection.
struct Way {
    lane: Lane,
    place: Place,
    /// What is behind it, if that is its own: the connection goes first.
    own: Option<(Controller, ChildTarget)>,
}

/// The largest reads, about as many in flight over all connections as at the deepest queue, and at
/// least one each.
pub(super) fn measure(
    bench: &mut Bench,
    options: &NetOptions,
    connections: usize,
    own_targets: bool,
) -> Result<Spread, Failure> {
    let size_bytes = options.largest();
    let queue_depth = (usize::from(options.deepest()) / connections).max(1);
    let mut ways = Vec::new();
    for _ in 0..connections {
        ways.push(if own_targets {
            to_own_target(options, NAMESPACE_BYTES / connections as u64)?
        } else {
            to_same_target(bench)?
        });
    }
    let mut samples = Samples::default();
    for repetition in 0..=options.repetitions {
        let (warm_up, time) = options.repetition(repetition);
        let load = Load { size_bytes, depth: queue_depth, writes: 0, is_single: false };
        let (run, spent) = undisturbed(warm_up, || {
            let before = cpu_ns(bench, &ways);
            let run = read(bench, &mut ways, load, time)?;
            Ok::<_, Failure>((run, spent(before, cpu_ns(bench, &ways))))
        })?;
        if !warm_up {
            // The host looks at its connections without end: what it takes says nothing.
            samples.add(&run, (None, spent.1));
        }
    }
    for Way { lane, own, .. } in ways {
        drop(lane);
        if let Some((controller, _)) = own {
            controller.disconnect()?;
        }
    }
    let figures = samples.figures();
    Ok(Spread { bench: "net-spread", connections, own_targets, size_bytes, queue_depth, figures })
}

fn to_same_target(bench: &Bench) -> Result<Way, Failure> {
    Ok(Way { lane: bench.controller.open_lane()?, place: bench.place(), own: None })
}

fn to_own_target(options: &NetOptions, size_bytes: u64) -> Result<Way, Failure> {
    let size_bytes = size_bytes.next_multiple_of(FILL_BYTES);
    let child = ChildTarget::start(&format!("mem:size={size_bytes}"), false)?;
    let (controller, mut lane) = connect(&child.url, options.host())?;
    let place = Place { nsid: child.url.nsid, size_bytes, is_filled: true };
    super::fill(&mut lane, place)?;
    Ok(Way { lane, place, own: Some((controller, child)) })
}

/// Processor time of this process and of all targets.
fn cpu_ns(bench: &Bench, ways: &[Way]) -> CpuTimes {
    let own: u64 = ways.iter().filter_map(|way| way.own.as_ref()?.1.cpu_ns()).sum();
    let (host, target) = bench.cpu_ns();
    (host, target.map(|target| target + own))
}

/// Looks at each connection in turn, without sleeping.
fn read(bench: &mut Bench, ways: &mut [Way], load: Load, time: Duration) -> Result<Run, Failure> {
    let sources = ways.iter().map(|way| Source::new(way.place, load, bench.next_seed()));
    let mut sources: Vec<_> = sources.collect();
    let bytes = |ways: &[Way]| {
        ways.iter().map(|way| way.lane.bytes_sent() + way.lane.bytes_received()).sum::<u64>()
    };
    let bytes_before = bytes(ways);
    let mut latency = latencies()?;
    let begun = Instant::now();
    let mut operations = 0;
    while begun.elapsed() < time {
        for (way, source) in ways.iter_mut().zip(&mut sources) {
            operations += source.turn(&mut way.lane, &mut latency)?;
        }
    }
    for (way, source) in ways.iter_mut().zip(&mut sources) {
        operations += source.finish(&mut way.lane, &mut latency)?;
    }
    let elapsed = begun.elapsed();
    let network_bytes = bytes(ways) - bytes_before;
    Ok(Run { operations, elapsed, network_bytes, hops: 0, latency })
}
