//! The figures of `bpfof bench net`, in the form of its JSON.

use super::cases::{Case, Mix};
use super::connections;
use super::cpu_profile::WayShares;
use super::curve::Curve;
use super::threads;
use serde::Serialize;

/// The figures with goals; none for a case that was not run.
#[derive(Default, Serialize)]
pub(super) struct Summary {
    /// Median latency of the smallest reads, divided by that of a polled ping-pong.
    pub(super) qd1_over_pingpong_floor: Option<f64>,
    /// Reads a second divided by messages a second in batches of 16, by the faster way of waiting.
    pub(super) qd128_4k_over_batch_floor: Option<f64>,
    pub(super) qd128_512_over_batch_floor: Option<f64>,
    /// Reads a second in shared sends divided by reads with a send each, at depth 128 and 512 bytes.
    pub(super) lane_caravan_doorbell_over_single_send: Option<f64>,
    /// Reads a second of 32 blocking threads on a shared lane divided by those with a connection each.
    pub(super) threads32_shared_over_private: Option<f64>,
}

#[derive(Default, Serialize)]
pub(super) struct Report {
    pub(super) cases: Vec<Case>,
    pub(super) mixes: Vec<Mix>,
    pub(super) curves: Vec<Curve>,
    pub(super) spreads: Vec<connections::Case>,
    pub(super) threads: Vec<threads::Case>,
    pub(super) shares: Vec<WayShares>,
    pub(super) summary: Summary,
    /// Whether TCP alone was measured under the same conditions.
    #[serde(skip)]
    pub(super) has_baselines: bool,
}

impl Report {
    /// The summary of these cases.
    pub(super) fn summarize(&self) -> Summary {
        let Report { cases, threads, has_baselines, .. } = self;
        let find = |size: u32, depth: u16| {
            cases.iter().find(|case| case.size_bytes == size && case.queue_depth == depth)
        };
        let over_baseline = |case: &Case| {
            let fastest = case.fastest_baseline().filter(|_| *has_baselines)?;
            Some(case.lane.ops_per_s / fastest)
        };
        let smallest =
            cases.iter().filter(|case| case.queue_depth == 1).min_by_key(|c| c.size_bytes);
        Summary {
            qd1_over_pingpong_floor: smallest
                .filter(|_| *has_baselines)
                .and_then(|case| Some(case.lane.p50_us / case.floor_polled.as_ref()?.p50_us?)),
            qd128_4k_over_batch_floor: find(4096, 128).and_then(over_baseline),
            qd128_512_over_batch_floor: find(512, 128).and_then(over_baseline),
            lane_caravan_doorbell_over_single_send: find(512, 128)
                .map(|case| case.lane.ops_per_s / case.single_send.ops_per_s),
            threads32_shared_over_private: threads
                .iter()
                .find(|case| case.threads == 32)
                .and_then(threads::Case::shared_over_private),
        }
    }
}
