//! Three methods of looking up keys in a file on this machine, each in a closed loop.

use super::super::driver::is_value;
use super::database::Database;
use crate::machine;
use crate::measurement::latencies;
use bpfkv::pushdown::{
    FIRST_READ_BYTES, GET_ANSWER_BYTES, GET_SCRATCH_BYTES, get_answer, get_argument,
};
use bpfkv::{GetCursor, Step};
use bpfof_device::{Buffer, IoBuffer, Ring};
use bpfof_host::files::{Executor, FirstRead, Policy, PushdownReader, ReadPushdown};
use fastrand::Rng;
use hdrhistogram::Histogram;
use std::error::Error;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// A drive that gives no answer for this long is reported.
const PATIENCE: Duration = Duration::from_secs(10);

/// How the reads of a lookup are made; all reads are direct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// One system call for each read, which sleeps until the read is done.
    Read,
    /// An io_uring: the thread that waits for a lookup's read parses it and submits the next.
    Uring,
    /// One call for the lookup; the local executor reads.
    Ours,
}

/// The results of a run.
pub(super) struct Run {
    pub(super) operations: u64,
    pub(super) elapsed: Duration,
    /// Processor time of the process, kernel included, in ns.
    pub(super) cpu_ns: Option<u64>,
    /// In ns.
    pub(super) latency: Histogram<u64>,
}

/// The lookups: random keys; the last `depth` levels of each path are read.
pub(super) struct Load<'a> {
    database: &'a Database,
    depth: u32,
    in_flight: usize,
    time: Duration,
    random: Rng,
    begun: Instant,
    cpu_before_ns: Option<u64>,
    run: Run,
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

impl<'a> Load<'a> {
    pub(super) fn new(
        database: &'a Database,
        depth: u32,
        in_flight: usize,
        time: Duration,
        seed: u64,
    ) -> Result<Load<'a>> {
        let run =
            Run { operations: 0, elapsed: Duration::ZERO, cpu_ns: None, latency: latencies()? };
        Ok(Load {
            database,
            depth,
            in_flight,
            time,
            random: Rng::with_seed(seed),
            begun: Instant::now(),
            cpu_before_ns: None,
            run,
        })
    }

    /// Looks up keys until the time is over.
    pub(super) fn run(mut self, method: Method) -> Result<Run> {
        match method {
            Method::Read => self.read(),
            Method::Uring => self.uring(),
            Method::Ours => self.ours(),
        }?;
        Ok(self.run)
    }

    /// Starts the clock, when everything that the lookups need is in place.
    fn begin(&mut self) {
        self.cpu_before_ns = machine::own_cpu_ns();
        self.begun = Instant::now();
    }

    /// Stops the clock, before anything is torn down.
    fn end(&mut self) {
        self.run.elapsed = self.begun.elapsed();
        let spent = machine::own_cpu_ns().zip(self.cpu_before_ns);
        self.run.cpu_ns = spent.map(|(after, before)| after.saturating_sub(before));
    }

    /// A random key and where its lookup begins.
    fn next(&mut self) -> (u64, u64) {
        let key = self.random.u64(..self.database.keys);
        (key, self.database.start(key, self.depth))
    }

    /// Counts a lookup that has ended with `value`; false if the time is over.
    fn count(&mut self, key: u64, value: Option<&bpfkv::Value>, began: Instant) -> Result<bool> {
        if !value.is_some_and(|value| is_value(value, key)) {
            return Err(format!("a wrong answer for key {key}").into());
        }
        let now = Instant::now();
        self.run.operations += 1;
        self.run.latency.saturating_record((now - began).as_nanos() as u64);
        Ok(now - self.begun < self.time)
    }

    fn read(&mut self) -> Result<()> {
        let mut buffer =
            IoBuffer::new(2 * self.database.block_bytes.max(FIRST_READ_BYTES) as usize);
        let mut cursor = GetCursor::new();
        self.begin();
        loop {
            let (key, start) = self.next();
            let began = Instant::now();
            cursor.reset(key, start);
            let value = loop {
                let read = match cursor.step() {
                    Step::Read(reads) => reads[0],
                    Step::Done(value) => break value,
                };
                let wanted = read.length_bytes;
                let (at, length, skip) = self.database.around(read.offset_bytes, wanted);
                buffer.set_len(length as usize);
                self.database.direct.read_exact_at(&mut buffer, at)?;
                cursor.feed(0, &buffer[skip..skip + wanted as usize])?;
            };
            if !self.count(key, value, began)? {
                self.end();
                return Ok(());
            }
        }
    }

    fn uring(&mut self) -> Result<()> {
        let mut ring = Ring::new(self.in_flight as u32)?;
        let mut slots = Vec::new();
        self.begin();
        for index in 0..self.in_flight {
            let mut slot = Slot { cursor: GetCursor::new(), key: 0, began: self.begun };
            let block = self.database.block_bytes.max(FIRST_READ_BYTES) as usize;
            slot.begin(self.next());
            slot.submit(self.database, &mut ring, IoBuffer::new(2 * block), index);
            slots.push(slot);
        }
        while ring.in_flight() > 0 {
            ring.submit(Some(PATIENCE))?;
            let mut completed = 0;
            while let Some(completion) = ring.completion() {
                completed += 1;
                let index = completion.token as usize;
                let Some(Buffer::Aligned(buffer)) = completion.buffer else { continue };
                let slot = &mut slots[index];
                slot.feed(self.database, &buffer, completion.result)?;
                if let Step::Done(value) = slot.cursor.step() {
                    if !self.count(slot.key, value, slot.began)? {
                        continue;
                    }
                    slot.begin(self.next());
                }
                slot.submit(self.database, &mut ring, buffer, index);
            }
            if completed == 0 {
                return Err(format!("no read was done within {PATIENCE:?}").into());
            }
        }
        self.end();
        Ok(())
    }

    fn ours(&mut self) -> Result<()> {
        let policy = Policy { fall_back: false, ..Policy::default() };
        let mut reader = PushdownReader::new(&self.database.maps, policy)?;
        let mut slots = vec![(0, self.begun); self.in_flight];
        let mut ready: Vec<usize> = (0..self.in_flight).collect();
        let mut problem = None;
        self.begin();
        loop {
            for index in ready.drain(..) {
                let (key, start) = self.next();
                slots[index] = (key, Instant::now());
                submit(self.database, &mut reader, index, key, start)?;
            }
            if reader.in_flight() == 0 {
                self.end();
                return Ok(());
            }
            let ended = reader.wait(PATIENCE, &mut |completion| {
                let index = completion.tag as usize;
                let (key, began) = slots[index];
                let counted = match completion.result {
                    Ok((_, info)) if info.executor != Executor::Local => {
                        Err("a chain did not run in the local executor".into())
                    }
                    Ok((answer, _)) => get_answer(answer)
                        .map_err(Box::from)
                        .and_then(|value| self.count(key, value, began)),
                    Err(error) => Err(error.into()),
                };
                match counted {
                    Ok(true) => ready.push(index),
                    Ok(false) => {}
                    Err(error) => problem = Some(error),
                }
            });
            if let Some(problem) = problem {
                return Err(problem);
            }
            if ended == 0 {
                return Err(format!("no chain ended within {PATIENCE:?}").into());
            }
        }
    }
}

fn submit(
    database: &Database,
    reader: &mut PushdownReader,
    index: usize,
    key: u64,
    start: u64,
) -> Result<()> {
    let argument = get_argument(key).ok_or("not a key")?;
    let call = ReadPushdown {
        files: &database.files,
        first_read: FirstRead { file: 0, offset_bytes: start, size_bytes: FIRST_READ_BYTES },
        function: &database.function,
        scratch: &argument,
        scratch_size_bytes: GET_SCRATCH_BYTES,
        answer_max_bytes: GET_ANSWER_BYTES as u32,
    };
    Ok(reader.submit(index as u64, &call)?)
}

/// A lookup in flight on the io_uring.
struct Slot {
    cursor: GetCursor,
    key: u64,
    began: Instant,
}

impl Slot {
    fn begin(&mut self, (key, start): (u64, u64)) {
        (self.key, self.began) = (key, Instant::now());
        self.cursor.reset(key, start);
    }

    fn submit(&self, database: &Database, ring: &mut Ring, mut buffer: IoBuffer, index: usize) {
        let Step::Read(&[read]) = self.cursor.step() else { return };
        let (at, length, _) = database.around(read.offset_bytes, read.length_bytes);
        buffer.set_len(length as usize);
        ring.read(database.direct.as_raw_fd(), buffer, at, index as u64);
    }

    fn feed(&mut self, database: &Database, buffer: &IoBuffer, result: i32) -> Result<()> {
        if result < buffer.len() as i32 {
            let cause = std::io::Error::from_raw_os_error(-result.min(0));
            return Err(format!("a read of the database failed: {cause}").into());
        }
        let Step::Read(&[read]) = self.cursor.step() else { return Ok(()) };
        let (_, _, skip) = database.around(read.offset_bytes, read.length_bytes);
        self.cursor.feed(0, &buffer[skip..skip + read.length_bytes as usize])?;
        Ok(())
    }
}
