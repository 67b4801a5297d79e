//! Latency against throughput: reads that are due at random times, at rising rates.

use super::bench::Bench;
use super::load::{Load, Open, Source};
use super::options::NetOptions;
use crate::measurement::{median, repetitions};
use crate::steal::undisturbed;
use serde::Serialize;

/// Rates, as shares of the throughput of a closed loop.
const SHARES: [f64; 9] = [0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0];
/// A rate is an overload if fewer of the due operations begin: the backlog only grows.
const KEEPS_UP: f64 = 0.97;

/// One rate: medians over the repetitions.
#[derive(Serialize)]
pub(super) struct Point {
    pub(super) due_per_s: f64,
    pub(super) ops_per_s: f64,
    pub(super) keeps_up: bool,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
}

/// One way of sending, at rising rates.
#[derive(Serialize)]
pub(super) struct Curve {
    bench: &'static str,
    pub(super) size_bytes: u32,
    /// Whether all queued requests leave in one send, or each in its own.
    pub(super) shared_sends: bool,
    /// The last point is the first at which the host did not keep up, if there is one.
    pub(super) points: Vec<Point>,
}

impl Curve {
    pub(super) const fn way(&self) -> &'static str {
        if self.shared_sends { "shared sends" } else { "a send each" }
    }
}

/// The smallest reads in both ways, in turn at each rate. `most_per_s` is the throughput of a closed loop.
pub(super) fn measure(
    bench: &mut Bench,
    options: &NetOptions,
    most_per_s: f64,
) -> Result<Vec<Curve>, String> {
    let size_bytes = options.smallest();
    let depth = options.deepest().into();
    let mut curves = [true, false].map(|shared_sends| Curve {
        bench: "net-open-loop",
        size_bytes,
        shared_sends,
        points: Vec::new(),
    });
    for share in SHARES {
        let mut seen = [Vec::new(), Vec::new()];
        for (_, warm_up, time) in repetitions(options.repetitions, options.time()) {
            for (curve, seen) in curves.iter().zip(&mut seen) {
                if curve.points.last().is_some_and(|point| !point.keeps_up) {
                    continue;
                }
                let load = Load { size_bytes, depth, writes: 0, is_single: !curve.shared_sends };
                let open = undisturbed(warm_up, || {
                    let mut source = Source::new(bench.place(), load, bench.next_seed());
                    source.open_loop(&mut bench.lane, share * most_per_s, time)
                })?;
                if !warm_up {
                    seen.push(open);
                }
            }
        }
        for (curve, seen) in curves.iter_mut().zip(&seen).filter(|(_, seen)| !seen.is_empty()) {
            curve.points.push(point(seen));
        }
    }
    Ok(curves.into())
}

fn point(seen: &[Open]) -> Point {
    let of = |value: &dyn Fn(&Open) -> f64| median(&seen.iter().map(value).collect::<Vec<_>>());
    let quantile_us =
        |quantile| of(&|open| open.latency.value_at_quantile(quantile) as f64 / 1000.0);
    let per_s = |count: u64, open: &Open| count as f64 / open.elapsed.as_secs_f64();
    Point {
        due_per_s: of(&|open| per_s(open.due, open)),
        ops_per_s: of(&|open| per_s(open.ended, open)),
        keeps_up: of(&|open| open.begun as f64 / open.due.max(1) as f64) >= KEEPS_UP,
        p50_us: quantile_us(0.5),
        p99_us: quantile_us(0.99),
        p999_us: quantile_us(0.999),
    }
}
