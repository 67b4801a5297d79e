//! One host on one processor that reads through several connections, to one target and to as many targets (i10's figure
//! 9).

use super::bench::{Bench, FILL_BYTES, Failure, NAMESPACE_BYTES, fill};
use super::load::{Load, Place, Source};
use super::options::NetOptions;
use crate::child_target::ChildTarget;
use crate::measurement::{CpuTimes, Figures, Run, Samples, latencies, repetitions, spent};
use crate::steal::undisturbed;
use bpfof_host::{Controller, Lane};
use bpfof_kv::connect;
use serde::Serialize;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The figures for one number of connections.
#[derive(Serialize)]
pub(super) struct Case {
    bench: &'static str,
    pub(super) connections: usize,
    /// Whether each connection has a target of its own; otherwise all share one.
    pub(super) own_targets: bool,
    pub(super) size_bytes: u32,
    /// For each connection.
    pub(super) queue_depth: usize,
    pub(super) figures: Figures,
}

/// A connection.
struct Connection {
    lane: Lane,
    place: Place,
    /// The connection's own target, if it has one; the lane is dropped before it.
    own: Option<(Controller, ChildTarget)>,
}

/// Measures the largest reads, with about as many in flight over all connections as at the deepest queue, and at least
/// one for each.
pub(super) fn measure(
    bench: &mut Bench,
    options: &NetOptions,
    connections: usize,
    own_targets: bool,
) -> Result<Case, Failure> {
    let size_bytes = options.largest();
    let queue_depth = (usize::from(options.deepest()) / connections).max(1);
    let mut opened = Vec::new();
    for _ in 0..connections {
        opened.push(if own_targets {
            to_own_target(options, NAMESPACE_BYTES / connections as u64)?
        } else {
            to_same_target(bench)?
        });
    }
    let mut samples = Samples::default();
    for (_, warm_up, time) in repetitions(options.repetitions, options.time()) {
        let load = Load { size_bytes, depth: queue_depth, writes: 0, is_single: false };
        let (run, spent) = undisturbed(warm_up, || {
            let before = cpu_ns(bench, &opened);
            let run = read(bench, &mut opened, load, time)?;
            Ok::<_, Failure>((run, spent(before, cpu_ns(bench, &opened))))
        })?;
        if !warm_up {
            // The host polls its connections continuously: its processor time is meaningless.
            samples.add(&run, (None, spent.1));
        }
    }
    for Connection { lane, own, .. } in opened {
        drop(lane);
        if let Some((controller, _)) = own {
            controller.disconnect()?;
        }
    }
    let figures = samples.figures();
    Ok(Case { bench: "net-spread", connections, own_targets, size_bytes, queue_depth, figures })
}

fn to_same_target(bench: &Bench) -> Result<Connection, Failure> {
    Ok(Connection { lane: bench.controller.open_lane()?, place: bench.place(), own: None })
}

fn to_own_target(options: &NetOptions, size_bytes: u64) -> Result<Connection, Failure> {
    let size_bytes = size_bytes.next_multiple_of(FILL_BYTES);
    let child = ChildTarget::start(&format!("mem:size={size_bytes}"), false)?;
    let (controller, mut lane) = connect(&child.url, options.host())?;
    let place = Place { nsid: child.url.nsid, size_bytes, is_filled: true };
    fill(&AtomicBool::new(false), &mut lane, place)?;
    Ok(Connection { lane, place, own: Some((controller, child)) })
}

/// Processor time of this process and of all targets.
fn cpu_ns(bench: &Bench, opened: &[Connection]) -> CpuTimes {
    let own: u64 = opened.iter().filter_map(|one| one.own.as_ref()?.1.cpu_ns()).sum();
    let (host, target) = bench.cpu_ns();
    (host, target.map(|target| target + own))
}

/// Polls each connection in turn, without sleeping.
fn read(
    bench: &mut Bench,
    opened: &mut [Connection],
    load: Load,
    time: Duration,
) -> Result<Run, Failure> {
    let sources = opened.iter().map(|one| Source::new(one.place, load, bench.next_seed()));
    let mut sources: Vec<_> = sources.collect();
    let bytes = |opened: &[Connection]| {
        opened.iter().map(|one| one.lane.bytes_sent() + one.lane.bytes_received()).sum::<u64>()
    };
    let bytes_before = bytes(opened);
    let mut latency = latencies()?;
    let begun = Instant::now();
    let mut operations = 0;
    while begun.elapsed() < time {
        for (one, source) in opened.iter_mut().zip(&mut sources) {
            operations += source.turn(&mut one.lane, &mut latency)?;
        }
    }
    for (one, source) in opened.iter_mut().zip(&mut sources) {
        operations += source.finish(&mut one.lane, &mut latency)?;
    }
    let elapsed = begun.elapsed();
    let network_bytes = bytes(opened) - bytes_before;
    Ok(Run { operations, elapsed, network_bytes, hops: 0, latency })
}
