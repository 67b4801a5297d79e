//! Threads that begin at the same time, and their connections.

use crate::measurement::{Run, latencies};
use bpfof_host::{Controller, Error, Lane, SharedLane};
use hdrhistogram::Histogram;
use std::panic::resume_unwind;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Latencies of one thread, in ns.
type Latencies = Result<Histogram<u64>, String>;

/// Runs `work` in a thread for each of `items`, once all threads have started, and collects the results.
pub(crate) fn together<T: Send, R: Send>(
    items: Vec<T>,
    work: impl Fn(usize, T) -> R + Sync,
) -> Vec<R> {
    let (work, barrier) = (&work, &Barrier::new(items.len()));
    thread::scope(|scope| {
        let start = |(index, item)| {
            scope.spawn(move || {
                barrier.wait();
                work(index, item)
            })
        };
        let started: Vec<_> = items.into_iter().enumerate().map(start).collect();
        let joined = started.into_iter().map(|thread| thread.join());
        joined.map(|end| end.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// Repeats an operation until `time` has passed.
pub(crate) fn repeat(
    time: Duration,
    mut operation: impl FnMut() -> Result<(), String>,
) -> Latencies {
    let mut latency = latencies().map_err(|error| error.to_string())?;
    let begun = Instant::now();
    let mut now = begun;
    while now - begun < time {
        operation()?;
        let before = std::mem::replace(&mut now, Instant::now());
        latency.saturating_record((now - before).as_nanos() as u64);
    }
    Ok(latency)
}

/// The connections of blocking threads.
pub(crate) enum Users {
    /// One for each thread.
    Private(Vec<Lane>),
    /// One for this many threads.
    Shared(Box<SharedLane>, usize),
}

impl Users {
    /// Opens a connection for each thread.
    pub(crate) fn private(controller: &Controller, threads: usize) -> Result<Users, Error> {
        let lanes: Result<_, _> = (0..threads).map(|_| controller.open_lane()).collect();
        lanes.map(Users::Private)
    }

    /// Lets every thread work, on its own or the shared lane. Also returns the requests for each send.
    pub(crate) fn run(
        self,
        on_own: impl Fn(usize, &mut Lane) -> Latencies + Sync,
        on_shared: impl Fn(usize, &SharedLane) -> Latencies + Sync,
    ) -> Result<(Run, f64), Box<dyn std::error::Error>> {
        let begun = Instant::now();
        let (ends, network_bytes, requests_per_send) = match self {
            Users::Private(lanes) => {
                let ends = together(lanes, |index, mut lane| {
                    let end = on_own(index, &mut lane);
                    (end, lane.bytes_sent() + lane.bytes_received())
                });
                let bytes = ends.iter().map(|(_, bytes)| bytes).sum();
                (ends.into_iter().map(|(end, _)| end).collect(), bytes, 1.0)
            }
            Users::Shared(lane, threads) => {
                let ends: Vec<_> = together(vec![(); threads], |index, ()| on_shared(index, &lane));
                let counters = lane.counters();
                let bytes = counters.bytes_sent + counters.bytes_received;
                (ends, bytes, counters.requests as f64 / counters.caravans.max(1) as f64)
            }
        };
        let elapsed = begun.elapsed();
        let mut latency = latencies()?;
        for of_thread in ends {
            latency.add(of_thread?)?;
        }
        let operations = latency.len();
        Ok((Run { operations, elapsed, network_bytes, hops: 0, latency }, requests_per_send))
    }
}
