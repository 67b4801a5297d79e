//! A closed loop of store operations: a fixed number in flight, plain or pushed down.

use crate::measurement::{Run, latencies};
use bpfkv::pushdown::{
    AggregatePushdown, GET_ANSWER_BYTES, GET_SCRATCH_BYTES, RangePushdown, get_answer, get_argument,
};
use bpfkv::{Aggregate, AggregateCursor, GetCursor, KeyRange, RangeCursor, ReadRequest, Step};
use bpfof_host::{Completion, Request, SubmitError};
use bpfof_kv::{Session, explain_request};
use fastrand::Rng;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What each operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Look up a random key.
    Get,
    /// Read the pairs of this many keys from a random one on.
    Range(u64),
    /// Sum the values of this many keys from a random one on.
    Aggregate(u64),
}

impl std::fmt::Display for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Work::Get => f.write_str("get"),
            Work::Range(keys) => write!(f, "range of {keys}"),
            Work::Aggregate(keys) => write!(f, "sum of {keys}"),
        }
    }
}

/// How the operation reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// One network round trip for each hop.
    Plain,
    /// The chain runs at the target.
    Pushdown,
}

/// One operation in flight.
struct Slot {
    cursor: Cursor,
    began: Instant,
    key: u64,
    outstanding: u32,
}

enum Cursor {
    PlainGet(GetCursor),
    PlainRange(RangeCursor),
    PlainAggregate(AggregateCursor),
    Get(bool),
    Range(Option<RangePushdown>, u64),
    Aggregate(Option<AggregatePushdown>),
}

/// Whether an answer exists is always checked, and the text of one value in CHECKED_VALUES.
const CHECKED_VALUES: u64 = 64;
/// A target that gives no answer for this long is reported.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Drives a session. Keys are below `keys`, at random.
pub(crate) struct Driver<'a> {
    session: &'a mut Session,
    work: Work,
    keys: u64,
    random: Rng,
    slots: Vec<Slot>,
    /// Reads that found the queue full.
    waiting: VecDeque<(u64, ReadRequest)>,
    hops: u64,
    block_mask: u64,
}

impl<'a> Driver<'a> {
    pub(crate) fn new(
        session: &'a mut Session,
        work: Work,
        path: Path,
        depth: usize,
        keys: u64,
        seed: u64,
    ) -> Result<Driver<'a>, String> {
        let info =
            session.controller.identify_namespace(session.nsid).map_err(|e| e.to_string())?;
        let slot = || Slot {
            cursor: match (path, work) {
                (Path::Plain, Work::Get) => Cursor::PlainGet(GetCursor::new()),
                (Path::Plain, Work::Range(_)) => Cursor::PlainRange(RangeCursor::new()),
                (Path::Plain, Work::Aggregate(_)) => Cursor::PlainAggregate(AggregateCursor::new()),
                (Path::Pushdown, Work::Get) => Cursor::Get(false),
                (Path::Pushdown, Work::Range(_)) => Cursor::Range(None, 0),
                (Path::Pushdown, Work::Aggregate(_)) => Cursor::Aggregate(None),
            },
            began: Instant::now(),
            key: 0,
            outstanding: 0,
        };
        Ok(Driver {
            slots: (0..depth).map(|_| slot()).collect(),
            session,
            work,
            keys,
            random: Rng::with_seed(seed),
            waiting: VecDeque::new(),
            hops: 0,
            block_mask: u64::from(info.block_bytes) - 1,
        })
    }

    /// Runs for `time`, then waits until the operations in flight have ended.
    pub(crate) fn run(&mut self, time: Duration) -> Result<Run, String> {
        let mut latency = latencies().map_err(|error| error.to_string())?;
        let bytes = |session: &Session| session.lane.bytes_sent() + session.lane.bytes_received();
        let (begun, bytes_before) = (Instant::now(), bytes(self.session));
        let (mut now, mut operations) = (begun, 0);
        self.hops = 0;
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
                if self.advance(index)? {
                    continue;
                }
                operations += 1;
                let took = now - self.slots[index].began;
                latency.saturating_record(took.as_nanos() as u64);
                if over {
                    running -= 1;
                } else {
                    self.begin(index, now)?;
                }
            }
            self.submit_waiting()?;
        }
        let network_bytes = bytes(self.session) - bytes_before;
        Ok(Run { operations, elapsed: now - begun, network_bytes, hops: self.hops, latency })
    }

    fn begin(&mut self, index: usize, now: Instant) -> Result<(), String> {
        let length = match self.work {
            Work::Get => 1,
            Work::Range(length) | Work::Aggregate(length) => length.min(self.keys),
        };
        let key = self.random.u64(..=self.keys - length);
        let range = KeyRange::new(key, key + length).map_err(|error| error.to_string())?;
        let hops_max = self.session.limits.hops;
        let slot = &mut self.slots[index];
        (slot.began, slot.key) = (now, key);
        let start = match slot.cursor {
            Cursor::PlainGet(_) | Cursor::Get(_) => self.session.cache.start_of_get(key),
            _ => self.session.cache.start_of_range(key).map(Some),
        };
        let start = start.map_err(|error| error.to_string())?.ok_or("a key is missing")?;
        match &mut slot.cursor {
            Cursor::PlainGet(cursor) => cursor.reset(key, start),
            Cursor::PlainRange(cursor) => cursor.reset(&range, start),
            Cursor::PlainAggregate(cursor) => cursor.reset(&range, Aggregate::Sum, start),
            Cursor::Get(found) => {
                *found = false;
                let argument = get_argument(key).ok_or("not a key")?;
                let (session, tag) = (&mut self.session, index as u64);
                let sizes = (GET_ANSWER_BYTES as u32, GET_SCRATCH_BYTES);
                let call = session.call(session.get, start, &argument, sizes);
                slot.outstanding = 1;
                let submitted = session.lane.submit(tag, Request::Pushdown(call));
                return submitted.map_err(|error| error.to_string());
            }
            Cursor::Range(range_pushdown, pairs) => {
                let made = RangePushdown::new(&range, start, hops_max)
                    .with_scratch_limit(self.session.limits.scratch_bytes);
                *range_pushdown = Some(made);
                *pairs = 0;
            }
            Cursor::Aggregate(aggregate) => {
                let made = AggregatePushdown::new(&range, Aggregate::Sum, start, hops_max);
                *aggregate = Some(made);
            }
        }
        self.advance(index).map(|_| ())
    }

    /// Sends an operation's next requests; false if it is finished (and checked).
    fn advance(&mut self, index: usize) -> Result<bool, String> {
        let Driver { session, slots, waiting, block_mask, .. } = self;
        let slot = &mut slots[index];
        let (reads, done) = match &mut slot.cursor {
            Cursor::PlainGet(cursor) => match cursor.step() {
                Step::Read(reads) => (reads, true),
                Step::Done(value) => (&[][..], value.is_some_and(|v| is_value(v, slot.key))),
            },
            Cursor::PlainRange(cursor) => match cursor.step() {
                Step::Read(reads) => (reads, true),
                Step::Done(()) => {
                    let wanted = length_of(self.work).min(self.keys);
                    (&[][..], cursor.pairs().len() as u64 == wanted)
                }
            },
            Cursor::PlainAggregate(cursor) => match cursor.step() {
                Step::Read(reads) => (reads, true),
                Step::Done(sum) => (&[][..], sum.count == length_of(self.work).min(self.keys)),
            },
            Cursor::Get(found) => (&[][..], *found),
            Cursor::Range(..) | Cursor::Aggregate(_) => return self.advance_range(index),
        };
        if !done {
            return Err(format!("a wrong answer for key {}", slot.key));
        }
        for (part, read) in reads.iter().enumerate() {
            let tag = (part as u64) << 32 | index as u64;
            let read = *read;
            slot.outstanding += 1;
            match session.lane.submit(tag, plain_read(session.nsid, read, *block_mask)) {
                Ok(()) => {}
                Err(SubmitError::QueueFull) => waiting.push_back((tag, read)),
                Err(error) => return Err(error.to_string()),
            }
        }
        if reads.is_empty() {
            return Ok(false);
        }
        self.hops += 1;
        Ok(true)
    }

    fn advance_range(&mut self, index: usize) -> Result<bool, String> {
        let wanted = length_of(self.work).min(self.keys);
        let slot = &mut self.slots[index];
        let (call, complete) = match &slot.cursor {
            Cursor::Range(Some(range), pairs) => (range.call(), *pairs == wanted),
            Cursor::Aggregate(Some(sum)) => (sum.call(), sum.summary().count == wanted),
            _ => (None, false),
        };
        let Some(next) = call else {
            let wrong = || format!("a wrong answer for the range from key {}", slot.key);
            return if complete { Ok(false) } else { Err(wrong()) };
        };
        let session = &mut self.session;
        let sizes = (next.answer_max_bytes, next.scratch_size_bytes);
        let call = session.call(session.range, next.first_offset_bytes, &next.argument, sizes);
        slot.outstanding = 1;
        let submitted = session.lane.submit(index as u64, Request::Pushdown(call));
        submitted.map_err(|error| error.to_string())?;
        Ok(true)
    }

    fn submit_waiting(&mut self) -> Result<(), String> {
        while let Some((tag, read)) = self.waiting.pop_front() {
            let request = plain_read(self.session.nsid, read, self.block_mask);
            match self.session.lane.submit(tag, request) {
                Ok(()) => {}
                Err(SubmitError::QueueFull) => {
                    self.waiting.push_front((tag, read));
                    break;
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    /// Waits for completions, feeds them, and lists the operations that can continue.
    fn receive(&mut self, ready: &mut Vec<usize>) -> Result<(), String> {
        let Driver { session, slots, hops, block_mask, .. } = self;
        let mut problem = None;
        let received = session.lane.wait(PATIENCE, &mut |completion| {
            let index = completion.tag as u32 as usize;
            let slot = &mut slots[index];
            if let Err(error) = feed(slot, &completion, hops, *block_mask) {
                problem = Some(error);
            }
            slot.outstanding -= 1;
            if slot.outstanding == 0 {
                ready.push(index);
            }
        });
        match (problem, received) {
            (Some(problem), _) => Err(problem),
            (None, Err(error)) => Err(error.to_string()),
            (None, Ok(0)) => Err(format!("no answer from the target for {PATIENCE:?}")),
            (None, Ok(_)) => Ok(()),
        }
    }
}

fn length_of(work: Work) -> u64 {
    match work {
        Work::Get => 1,
        Work::Range(length) | Work::Aggregate(length) => length,
    }
}

/// A cursor's read, rounded out to logical blocks.
fn plain_read(nsid: u32, read: ReadRequest, block_mask: u64) -> Request<'static> {
    let start = read.offset_bytes & !block_mask;
    let end = (read.offset_bytes + u64::from(read.length_bytes) + block_mask) & !block_mask;
    Request::Read { nsid, offset_bytes: start, length_bytes: (end - start) as u32 }
}

fn feed(
    slot: &mut Slot,
    completion: &Completion<'_>,
    hops: &mut u64,
    block_mask: u64,
) -> Result<(), String> {
    let done = completion.result.map_err(explain_request)?;
    let part = (completion.tag >> 32) as usize;
    let plain = |reads: &[ReadRequest]| {
        let read = reads[part];
        let skip = (read.offset_bytes & block_mask) as usize;
        &done.data[skip..skip + read.length_bytes as usize]
    };
    let fed = match &mut slot.cursor {
        Cursor::PlainGet(cursor) => {
            let Step::Read(reads) = cursor.step() else { return Ok(()) };
            let data = plain(reads);
            cursor.feed(part, data)
        }
        Cursor::PlainRange(cursor) => {
            let Step::Read(reads) = cursor.step() else { return Ok(()) };
            let data = plain(reads);
            cursor.feed(part, data)
        }
        Cursor::PlainAggregate(cursor) => {
            let Step::Read(reads) = cursor.step() else { return Ok(()) };
            let data = plain(reads);
            cursor.feed(part, data)
        }
        Cursor::Get(found) => {
            *hops += u64::from(done.dw0);
            let value = get_answer(done.data).map_err(|error| error.to_string())?;
            *found = value.is_some_and(|value| is_value(value, slot.key));
            return Ok(());
        }
        Cursor::Range(Some(range), pairs) => {
            *hops += u64::from(done.dw0);
            let answer = range.answer(done.data).map_err(|error| error.to_string())?;
            *pairs += answer.len() as u64;
            return Ok(());
        }
        Cursor::Aggregate(Some(aggregate)) => {
            *hops += u64::from(done.dw0);
            return aggregate.answer(done.data).map_err(|error| error.to_string());
        }
        Cursor::Range(None, _) | Cursor::Aggregate(None) => return Ok(()),
    };
    fed.map_err(|error| error.to_string())
}

/// Whether a value is that of a key, in a database of bpf-of or of the original tool; checks the whole text for some
/// keys.
pub(crate) fn is_value(value: &bpfkv::Value, key: u64) -> bool {
    use bpfkv::format::{value_number, value_text};
    !key.is_multiple_of(CHECKED_VALUES) || [value_text(key), value_number(key)].contains(value)
}

/// The path for logs and labels.
impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Path::Plain { "plain" } else { "pushdown" })
    }
}
