//! Latency against throughput: reads that are due at random times, at more and more of them a second.

use super::load::{Load, Open, Source};
use super::{Bench, NetOptions};
use crate::bench::median;
use serde::Serialize;

/// Shares of what a closed loop at the deepest queue has reached.
const SHARES: [f64; 9] = [0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0];
/// Who ends fewer of the operations that are due is overloaded: its queue only grows.
const KEEPS_UP: f64 = 0.97;

/// One rate: medians over the repetitions.
#[derive(Serialize)]
pub(super) struct Point {
    pub(super) due_per_s: f64,
    pub(super) ops_per_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
}

/// One way to send, at rising rates.
#[derive(Serialize)]
pub(super) struct Curve {
    bench: &'static str,
    pub(super) size_bytes: u32,
    /// What is ready leaves in one send; else a send for each read.
    pub(super) shared_sends: bool,
    /// The last is the first at which it did not keep up, if there is one.
    pub(super) points: Vec<Point>,
}

impl Point {
    pub(super) fn keeps_up(&self) -> bool {
        self.ops_per_s >= KEEPS_UP * self.due_per_s
    }
}

/// The smallest reads by both ways, in turn at each rate. `most_per_s` is what a closed loop reached.
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
        let due_per_s = share * most_per_s;
        let mut seen = [Vec::new(), Vec::new()];
        for repetition in 0..=options.repetitions {
            let (warm_up, time) = options.repetition(repetition);
            for (curve, seen) in curves.iter().zip(&mut seen) {
                if curve.points.last().is_some_and(|point| !point.keeps_up()) {
                    continue;
                }
                let load = Load { size_bytes, depth, writes: 0, is_single: !curve.shared_sends };
                let mut source = Source::new(bench.place(), load);
                let open = source.open_loop(&mut bench.lane, due_per_s, time)?;
                if !warm_up {
                    seen.push(open);
                }
            }
        }
        for (curve, seen) in curves.iter_mut().zip(&seen).filter(|(_, seen)| !seen.is_empty()) {
            curve.points.push(point(due_per_s, seen));
        }
    }
    Ok(curves.into())
}

fn point(due_per_s: f64, seen: &[Open]) -> Point {
    let of = |value: &dyn Fn(&Open) -> f64| median(&seen.iter().map(value).collect::<Vec<_>>());
    let quantile_us =
        |quantile| of(&|open| open.latency.value_at_quantile(quantile) as f64 / 1000.0);
    Point {
        due_per_s,
        ops_per_s: of(&|open| open.operations as f64 / open.elapsed.as_secs_f64()),
        p50_us: quantile_us(0.5),
        p99_us: quantile_us(0.99),
        p999_us: quantile_us(0.999),
    }
}
