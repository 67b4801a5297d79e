//! A closed loop of vectors of gets: a fixed number of vectors in flight, each of as many keys.

use crate::kv::driver::{PATIENCE, is_value};
use crate::measurement::{Run, latencies};
use bpfkv::pushdown::{get_answer, get_argument};
use bpfof_host::{CommandError, FirstRead, FirstReads, Request, VectorAnswer, VectorArguments};
use bpfof_kv::{Session, explain_command};
use fastrand::Rng;
use std::time::{Duration, Instant};

/// The vectors in flight.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) vectors: usize,
    /// Keys of each vector.
    pub(super) batch: usize,
}

impl Shape {
    pub(super) const fn keys(self) -> usize {
        self.vectors * self.batch
    }
}

/// A vector in flight.
struct Slot {
    began: Instant,
    keys: Vec<u64>,
}

/// Drives a session. Keys are below `keys`, at random.
pub(super) struct VectorDriver<'a> {
    session: &'a mut Session,
    keys: u64,
    random: Rng,
    batch: usize,
    slots: Vec<Slot>,
    /// For the vector that is being made.
    arguments: Vec<u8>,
    first_reads: Vec<FirstRead>,
    hops: u64,
}

impl<'a> VectorDriver<'a> {
    pub(super) fn new(session: &'a mut Session, shape: Shape, keys: u64, seed: u64) -> Self {
        let slot = || Slot { began: Instant::now(), keys: Vec::with_capacity(shape.batch) };
        Self {
            session,
            keys,
            random: Rng::with_seed(seed),
            batch: shape.batch,
            slots: (0..shape.vectors).map(|_| slot()).collect(),
            arguments: Vec::new(),
            first_reads: Vec::new(),
            hops: 0,
        }
    }

    /// Runs for `time`, then waits until the vectors in flight have ended.
    pub(super) fn run(&mut self, time: Duration) -> Result<Run, String> {
        let mut latency = latencies().map_err(|error| error.to_string())?;
        let bytes = |session: &Session| session.lane.bytes_sent() + session.lane.bytes_received();
        let (begun, bytes_before) = (Instant::now(), bytes(self.session));
        let (mut now, mut operations) = (begun, 0);
        let mut ready: Vec<usize> = Vec::new();
        let mut running = self.slots.len();
        for index in 0..self.slots.len() {
            self.begin(index, now)?;
        }
        while running > 0 {
            ready.clear();
            self.receive(&mut ready)?;
            now = Instant::now();
            let over = now - begun >= time;
            for &index in &ready {
                let slot = &self.slots[index];
                let took = (now - slot.began).as_nanos() as u64;
                // For each of its keys.
                latency.saturating_record_n(took, slot.keys.len() as u64);
                operations += slot.keys.len() as u64;
                if over {
                    running -= 1;
                } else {
                    self.begin(index, now)?;
                }
            }
        }
        let network_bytes = bytes(self.session) - bytes_before;
        Ok(Run { operations, elapsed: now - begun, network_bytes, hops: self.hops, latency })
    }

    fn begin(&mut self, index: usize, now: Instant) -> Result<(), String> {
        let Self { session, random, slots, arguments, first_reads, .. } = self;
        let slot = &mut slots[index];
        slot.began = now;
        slot.keys.clear();
        arguments.clear();
        first_reads.clear();
        for _ in 0..self.batch {
            let key = random.u64(..self.keys);
            slot.keys.push(key);
            arguments.extend(get_argument(key).ok_or("not a key")?);
            let start = session.cache.start_of_get(key).map_err(|error| error.to_string())?;
            first_reads.push(Session::first_read(start.ok_or("a key is missing")?));
        }
        // Without a cache all first reads are of the root.
        let first = match first_reads.first() {
            Some(first) if session.cache.levels() == 0 => FirstReads::Same(*first),
            _ => FirstReads::Each(first_reads),
        };
        let count = slot.keys.len() as u16;
        let arguments = VectorArguments::Equal { count, bytes: arguments };
        let call = session.get_vector(first, arguments);
        let submitted = session.lane.submit(index as u64, Request::PushdownVector(&call));
        submitted.map_err(|error| error.to_string())
    }

    /// Waits for completions, checks their answers, and lists the vectors that have ended.
    fn receive(&mut self, ready: &mut Vec<usize>) -> Result<(), String> {
        let Self { session, slots, hops, .. } = self;
        let mut problem = None;
        let received = session.lane.wait(PATIENCE, &mut |completion| {
            let index = completion.tag as usize;
            let checked = completion
                .result
                .map_err(|error| error.to_string())
                .and_then(|done| check(done.data, &slots[index].keys));
            match checked {
                Ok(more) => *hops += more,
                Err(error) => problem = Some(error),
            }
            ready.push(index);
        });
        match (problem, received) {
            (Some(problem), _) => Err(problem),
            (None, Err(error)) => Err(error.to_string()),
            (None, Ok(0)) => Err(format!("no answer from the target for {PATIENCE:?}")),
            (None, Ok(_)) => Ok(()),
        }
    }
}

/// Checks the answer to a vector of these keys; returns its hops.
fn check(answer: &[u8], keys: &[u64]) -> Result<u64, String> {
    let answer = VectorAnswer::parse(answer, keys.len() as u16)
        .map_err(|_| "the target's answer is not an answer to a vector")?;
    let mut hops = 0;
    for (&key, (record, value)) in keys.iter().zip(answer.chains()) {
        let wrong = || format!("a wrong answer for key {key}");
        if !record.status.is_success() {
            let (status, dw0, dw1) = (record.status, record.dw0, record.dw1);
            return Err(explain_command(&CommandError { status, dw0, dw1 }));
        }
        hops += u64::from(record.dw0);
        let value = get_answer(value).map_err(|error| error.to_string())?;
        if !value.is_some_and(|value| is_value(value, key)) {
            return Err(wrong());
        }
    }
    Ok(hops)
}
