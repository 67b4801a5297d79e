//! Operations at random places: in closed loops, and at times that do not depend on answers.

use crate::measurement::{Run, latencies};
use bpfof_host::{Completion, Lane, Request};
use fastrand::Rng;
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// A target that gives no answer for this long is reported.
const PATIENCE: Duration = Duration::from_secs(10);

/// The smallest logical block.
const PIECE_BYTES: usize = 512;

/// The operations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) size_bytes: u32,
    /// The most operations in flight.
    pub(super) depth: usize,
    /// Percentage of operations.
    pub(super) writes: u32,
    /// One send for each operation.
    pub(super) is_single: bool,
}

/// The place of the operations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) nsid: u32,
    pub(super) size_bytes: u64,
    /// Whether each block contains its place, as [`mark`] writes it.
    pub(super) is_filled: bool,
}

/// Generates operations.
pub(super) struct Source {
    place: Place,
    load: Load,
    random: Rng,
    /// The data to write: zeroes, except for the marks of [`mark`].
    data: Vec<u8>,
    /// Offset of each operation in flight, and when it began or should have begun.
    slots: Vec<(u64, Instant)>,
    idle: Vec<usize>,
    wrong: Option<String>,
}

/// The results of an open loop.
pub(super) struct Open {
    /// Operations that were due.
    pub(super) due: u64,
    /// The due operations that found room in the queue in time.
    pub(super) begun: u64,
    /// Of those, the operations that ended in time.
    pub(super) ended: u64,
    pub(super) elapsed: Duration,
    /// From the time at which an operation was due to its end, in ns, including waiting for a free place in the queue.
    pub(super) latency: Histogram<u64>,
}

impl Source {
    /// Each `seed` gives its own places and times.
    pub(super) fn new(place: Place, load: Load, seed: u64) -> Source {
        let Load { size_bytes, depth, .. } = load;
        Source {
            place,
            load,
            random: Rng::with_seed(seed),
            data: vec![0; size_bytes as usize],
            slots: vec![(0, Instant::now()); depth],
            idle: (0..depth).collect(),
            wrong: None,
        }
    }

    /// Begins an operation that was due at `due`; a slot must be idle.
    fn submit(&mut self, lane: &mut Lane, due: Instant) -> Result<(), String> {
        let Some(index) = self.idle.pop() else { return Ok(()) };
        let Place { nsid, size_bytes, .. } = self.place;
        let Load { size_bytes: length_bytes, writes, .. } = self.load;
        let places = size_bytes / u64::from(length_bytes);
        let offset_bytes = self.random.u64(..places) * u64::from(length_bytes);
        self.slots[index] = (offset_bytes, due);
        let is_write = writes > 0 && self.random.u32(..100) < writes;
        let request = if is_write {
            mark(&mut self.data, offset_bytes);
            Request::Write { nsid, offset_bytes, data: &self.data, fua: false }
        } else {
            Request::Read { nsid, offset_bytes, length_bytes }
        };
        lane.submit(index as u64, request).map_err(|error| error.to_string())?;
        if self.load.is_single {
            lane.flush_doorbell().map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Reaps ended operations, at least one if there is `patience`, and records their latencies. Returns their number.
    fn reap(
        &mut self,
        lane: &mut Lane,
        patience: Duration,
        latency: &mut Histogram<u64>,
    ) -> Result<u64, String> {
        let Source { place, slots, idle, wrong, .. } = self;
        let idle_before = idle.len();
        let mut on_completion = |completion: Completion<'_>| {
            let index = completion.tag as usize;
            let offset = slots[index].0;
            match completion.result {
                // Data of a read, unlike that of a write, is not empty.
                Ok(done) if place.is_filled && !done.data.is_empty() => {
                    if !is_marked(done.data, offset) {
                        *wrong = Some(format!("wrong data at byte {offset}"));
                    }
                }
                Ok(_) => {}
                Err(error) => *wrong = Some(error.to_string()),
            }
            idle.push(index);
        };
        let found = if patience.is_zero() {
            lane.poll(&mut on_completion)
        } else {
            lane.wait(patience, &mut on_completion)
        };
        if found.map_err(|error| error.to_string())? == 0 && !patience.is_zero() {
            return Err(format!("no answer from the target for {patience:?}"));
        }
        if let Some(wrong) = wrong.take() {
            return Err(wrong);
        }
        let now = Instant::now();
        let ended = &idle[idle_before..];
        for &index in ended {
            latency.saturating_record((now - slots[index].1).as_nanos() as u64);
        }
        Ok(ended.len() as u64)
    }

    /// Keeps `depth` operations in flight for `time`; then waits until all have ended.
    pub(super) fn closed_loop(&mut self, lane: &mut Lane, time: Duration) -> Result<Run, String> {
        let mut latency = latencies().map_err(|error| error.to_string())?;
        let bytes = |lane: &Lane| lane.bytes_sent() + lane.bytes_received();
        let bytes_before = bytes(lane);
        let begun = Instant::now();
        let (mut now, mut operations) = (begun, 0);
        loop {
            while now - begun < time && !self.idle.is_empty() {
                self.submit(lane, now)?;
            }
            if lane.requests_in_flight() == 0 {
                break;
            }
            operations += self.reap(lane, PATIENCE, &mut latency)?;
            now = Instant::now();
        }
        let network_bytes = bytes(lane) - bytes_before;
        Ok(Run { operations, elapsed: now - begun, network_bytes, hops: 0, latency })
    }

    /// Fills the queue, sends, and reaps ended operations.
    pub(super) fn turn(
        &mut self,
        lane: &mut Lane,
        latency: &mut Histogram<u64>,
    ) -> Result<u64, String> {
        let now = Instant::now();
        while !self.idle.is_empty() {
            self.submit(lane, now)?;
        }
        lane.flush_doorbell().map_err(|error| error.to_string())?;
        self.reap(lane, Duration::ZERO, latency)
    }

    /// Waits until the operations in flight have ended.
    pub(super) fn finish(
        &mut self,
        lane: &mut Lane,
        latency: &mut Histogram<u64>,
    ) -> Result<u64, String> {
        let mut operations = 0;
        while lane.requests_in_flight() > 0 {
            operations += self.reap(lane, PATIENCE, latency)?;
        }
        Ok(operations)
    }

    /// Begins operations at random times, `per_s` a second on average, whether or not others have ended. An operation
    /// that finds the queue full begins late, and its latency counts from when it was due. Never sleeps.
    pub(super) fn open_loop(
        &mut self,
        lane: &mut Lane,
        per_s: f64,
        time: Duration,
    ) -> Result<Open, String> {
        let mut latency = latencies().map_err(|error| error.to_string())?;
        let begun = Instant::now();
        let (mut next, mut now, mut submitted, mut ended) = (begun, begun, 0, 0);
        while now - begun < time {
            while next <= now && !self.idle.is_empty() {
                self.submit(lane, next)?;
                submitted += 1;
                next += self.gap(per_s);
            }
            lane.flush_doorbell().map_err(|error| error.to_string())?;
            ended += self.reap(lane, Duration::ZERO, &mut latency)?;
            now = Instant::now();
        }
        let mut due = submitted;
        while next <= now {
            due += 1;
            next += self.gap(per_s);
        }
        self.finish(lane, &mut latency)?;
        Ok(Open { due, begun: submitted, ended, elapsed: now - begun, latency })
    }

    /// The time between two arrivals of a Poisson process.
    fn gap(&mut self, per_s: f64) -> Duration {
        Duration::from_secs_f64(-(1.0 - self.random.f64()).ln() / per_s)
    }
}

/// Marks data with its `offset`, at both ends of each piece that may be read alone.
pub(super) fn mark(data: &mut [u8], offset: u64) {
    for (piece, at) in data.chunks_mut(PIECE_BYTES).zip((offset..).step_by(PIECE_BYTES)) {
        let last = at + piece.len() as u64 - 8;
        if let Some(words) = piece.first_chunk_mut() {
            *words = at.to_le_bytes();
        }
        if let Some(words) = piece.last_chunk_mut() {
            *words = last.to_le_bytes();
        }
    }
}

/// Whether the data has the marks of `offset`.
pub(super) fn is_marked(data: &[u8], offset: u64) -> bool {
    let last = offset + data.len() as u64 - 8;
    data.first_chunk() == Some(&offset.to_le_bytes())
        && data.last_chunk() == Some(&last.to_le_bytes())
}
