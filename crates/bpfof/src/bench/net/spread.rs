//! One host on one processor that reads by several connections, to one target and to as many targets
//! (i10's figure 9).

use super::load::{Load, Place, Source};
use super::{Bench, Failure, NetOptions};
use crate::bench::driver::Run;
use crate::bench::report::Figures;
use crate::bench::spawn::ChildTarget;
use crate::bench::{CpuTimes, Samples, latencies, spent};
use crate::session::connect;
use bpfof_host::{Controller, Lane};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Size of the namespace of each further target.
const SMALL_BYTES: u64 = 16 << 20;

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

/// The largest reads, as many in flight over all connections as at the deepest queue.
pub(super) fn measure(
    bench: &Bench,
    options: &NetOptions,
    connections: usize,
    own_targets: bool,
) -> Result<Spread, Failure> {
    let size_bytes = options.largest();
    let queue_depth = (usize::from(options.deepest()) / connections).max(1);
    let mut ways = Vec::new();
    for _ in 0..connections {
        ways.push(if own_targets { to_own_target(options)? } else { to_same_target(bench)? });
    }
    let mut samples = Samples::default();
    for repetition in 0..=options.repetitions {
        let (warm_up, time) = options.repetition(repetition);
        let before = cpu_ns(bench, &ways);
        let load = Load { size_bytes, depth: queue_depth, writes: 0, is_single: false };
        let run = read(&mut ways, load, time)?;
        let after = cpu_ns(bench, &ways);
        if !warm_up {
            samples.add(&run, spent(before, after));
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

fn to_own_target(options: &NetOptions) -> Result<Way, Failure> {
    let child = ChildTarget::start(&format!("mem:size={SMALL_BYTES}"), options.poll)?;
    let (controller, mut lane) = connect(&child.url, options.host())?;
    let place = Place { nsid: child.url.nsid, size_bytes: SMALL_BYTES, is_filled: true };
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
fn read(ways: &mut [Way], load: Load, time: Duration) -> Result<Run, Failure> {
    let mut sources: Vec<_> = ways.iter().map(|way| Source::new(way.place, load)).collect();
    let bytes = |ways: &[Way]| {
        ways.iter().map(|way| way.lane.bytes_sent() + way.lane.bytes_received()).sum::<u64>()
    };
    let bytes_before = bytes(ways);
    let mut latency = latencies()?;
    let begun = Instant::now();
    let (mut now, mut operations) = (begun, 0);
    while now - begun < time {
        for (way, source) in ways.iter_mut().zip(&mut sources) {
            operations += source.turn(&mut way.lane, now, &mut latency)?;
        }
        now = Instant::now();
    }
    let elapsed = now - begun;
    for (way, source) in ways.iter_mut().zip(&mut sources) {
        source.finish(&mut way.lane)?;
    }
    let network_bytes = bytes(ways) - bytes_before;
    Ok(Run { operations, elapsed, network_bytes, hops: 0, latency })
}
