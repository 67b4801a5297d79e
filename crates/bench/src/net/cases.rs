//! Closed loops: a fixed number of operations in flight; the next begins as soon as one has ended.

use super::bench::Bench;
use super::load::{Load, Source};
use super::options::NetOptions;
use crate::measurement::{Figures, Samples, median, repetitions, spent};
use crate::steal::undisturbed;
use crate::tcp_baseline::{self, Messages, Wait};
use serde::Serialize;
use std::time::Duration;

/// Bytes of a read command on the wire: PDU header and submission queue entry.
const REQUEST_BYTES: usize = 72;
/// Bytes of an answer on the wire besides its data: the header of C2HData.
const ANSWER_HEADER_BYTES: usize = 24;

#[derive(Serialize)]
pub(super) struct BaselineFigures {
    pub(super) messages_per_s: f64,
    /// Latency of single messages.
    pub(super) p50_us: Option<f64>,
}

/// One size at one depth.
#[derive(Serialize)]
pub(super) struct Case {
    bench: &'static str,
    pub(super) size_bytes: u32,
    pub(super) queue_depth: u16,
    /// All queued requests in one send.
    pub(super) lane: Figures,
    /// One send for each read.
    pub(super) single_send: Figures,
    /// TCP alone; None with a target given by the user.
    pub(super) floor_polled: Option<BaselineFigures>,
    pub(super) floor_blocking: Option<BaselineFigures>,
}

impl Case {
    pub(super) fn fastest_baseline(&self) -> Option<f64> {
        let rate = |floor: &Option<BaselineFigures>| Some(floor.as_ref()?.messages_per_s);
        Some(rate(&self.floor_polled)?.max(rate(&self.floor_blocking)?))
    }
}

/// Reads and writes in one mix (i10's figure 8).
#[derive(Serialize)]
pub(super) struct Mix {
    bench: &'static str,
    pub(super) size_bytes: u32,
    pub(super) queue_depth: u16,
    /// Percentage of operations.
    pub(super) writes: u32,
    pub(super) lane: Figures,
    pub(super) single_send: Figures,
}

#[derive(Default)]
struct Baselines {
    messages_per_s: Vec<f64>,
    p50_us: Vec<f64>,
}

impl Baselines {
    fn figures(&self, depth: usize) -> BaselineFigures {
        let p50_us = (depth == 1).then(|| median(&self.p50_us));
        BaselineFigures { messages_per_s: median(&self.messages_per_s), p50_us }
    }
}

/// Reads of one size at one depth, with TCP alone in turn if it takes the same path.
pub(super) fn case(
    bench: &mut Bench,
    options: &NetOptions,
    size_bytes: u32,
    queue_depth: u16,
) -> Result<Case, Box<dyn std::error::Error>> {
    let depth = usize::from(queue_depth);
    let load = Load { size_bytes, depth, writes: 0, is_single: false };
    let (mut lane, mut single) = (Samples::default(), Samples::default());
    let (mut polled, mut blocking) = (Baselines::default(), Baselines::default());
    for (_, warm_up, time) in repetitions(options.repetitions, options.time()) {
        both_ways(bench, load, time, warm_up, [&mut lane, &mut single])?;
        let waits = [(&mut polled, Wait::Polled), (&mut blocking, Wait::Blocking)];
        for (baselines, wait) in waits.into_iter().filter(|_| bench.has_floor()) {
            let answer_bytes = ANSWER_HEADER_BYTES + size_bytes as usize;
            let messages = Messages { request_bytes: REQUEST_BYTES, answer_bytes };
            let baseline =
                undisturbed(warm_up, || tcp_baseline::measure(wait, messages, depth, time))?;
            if !warm_up {
                baselines.messages_per_s.push(baseline.messages_per_s);
                baselines.p50_us.push(baseline.latency.value_at_quantile(0.5) as f64 / 1000.0);
            }
        }
    }
    Ok(Case {
        bench: "net-read",
        size_bytes,
        queue_depth,
        lane: lane.figures(),
        single_send: single.figures(),
        floor_polled: bench.has_floor().then(|| polled.figures(depth)),
        floor_blocking: bench.has_floor().then(|| blocking.figures(depth)),
    })
}

/// The largest operations at the deepest queue, with this percentage of writes.
pub(super) fn mix(bench: &mut Bench, options: &NetOptions, writes: u32) -> Result<Mix, String> {
    let size_bytes = options.largest();
    let queue_depth = options.deepest();
    let load = Load { size_bytes, depth: queue_depth.into(), writes, is_single: false };
    let (mut lane, mut single) = (Samples::default(), Samples::default());
    for (_, warm_up, time) in repetitions(options.repetitions, options.time()) {
        both_ways(bench, load, time, warm_up, [&mut lane, &mut single])?;
    }
    Ok(Mix {
        bench: "net-mix",
        size_bytes,
        queue_depth,
        writes,
        lane: lane.figures(),
        single_send: single.figures(),
    })
}

/// With shared sends, then with one send each.
fn both_ways(
    bench: &mut Bench,
    load: Load,
    time: Duration,
    warm_up: bool,
    samples: [&mut Samples; 2],
) -> Result<(), String> {
    for (samples, is_single) in samples.into_iter().zip([false, true]) {
        let load = Load { is_single, ..load };
        let (run, spent) = undisturbed(warm_up, || {
            let before = bench.cpu_ns();
            let mut source = Source::new(bench.place(), load, bench.next_seed());
            let run = source.closed_loop(&mut bench.lane, time)?;
            Ok::<_, String>((run, spent(before, bench.cpu_ns())))
        })?;
        if !warm_up {
            samples.add(&run, spent);
        }
    }
    Ok(())
}
