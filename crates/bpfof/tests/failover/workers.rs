//! Threads that work without a pause, check their results, and measure how long they wait for them.

use crate::reading::{KEYS, Reading};
use bpfkv::create::{Extent, write_database};
use bpfkv::format::value_text;
use bpfkv::pushdown::{
    FIRST_READ_BYTES, GET_ANSWER_BYTES, GET_SCRATCH_BYTES, get_answer, get_argument,
};
use bpfof_host::{FileVersion, FunctionId, Lane, PushdownCall, Request, SharedLane};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The namespace with the database.
pub(crate) const NSID: u32 = 2;
pub(crate) const NAMESPACE_BYTES: u64 = 4 << 20;
/// Offset of the writes: after the database.
const SCRATCH_AT: u64 = 2 << 20;
const BLOCK: usize = 4096;
const LEVELS: u32 = 2;
const GETS_AT_ONCE: usize = 8;
/// Lookups between two rewrites of the file.
const LOOKUPS_OF_A_FILE: usize = 200;

/// What all workers share.
pub(crate) struct Work {
    pub(crate) stop: AtomicBool,
    pub(crate) get: FunctionId,
    /// The namespace's first bytes: a BPF-KV database.
    pub(crate) database: Vec<u8>,
    keys: u64,
}

impl Work {
    pub(crate) fn new(get: FunctionId) -> Work {
        let extent = Extent::full(LEVELS).expect("a valid number of levels");
        let bytes = extent.layout().file_bytes().next_multiple_of(BLOCK as u64);
        assert!(bytes <= SCRATCH_AT);
        let mut database = vec![0; bytes as usize];
        let mut sink = |offset: u64, bytes: &[u8]| {
            database[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        };
        write_database(&extent, &mut sink, &mut |_, _| ControlFlow::Continue(())).expect("it fits");
        Work { stop: AtomicBool::new(false), get, database, keys: extent.keys() }
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn call<'a>(&self, argument: &'a [u8]) -> PushdownCall<'a> {
        PushdownCall {
            nsid: NSID,
            function: self.get.0,
            files: &[FileVersion { id: 0, version: 1 }],
            first_file: 0,
            first_offset_bytes: 0,
            first_size_bytes: FIRST_READ_BYTES,
            scratch: argument,
            scratch_size_bytes: GET_SCRATCH_BYTES,
            answer_max_bytes: GET_ANSWER_BYTES as u32,
        }
    }

    fn check(&self, key: u64, answer: &[u8]) {
        assert_eq!(get_answer(answer), Ok(Some(&value_text(key))), "key {key}");
    }

    fn block_at(&self, number: u64) -> (u64, &[u8]) {
        let at = number as usize * BLOCK % self.database.len();
        (at as u64, &self.database[at..at + BLOCK])
    }
}

/// The progress of a worker, and its longest wait for an operation.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) ended: AtomicU64,
    longest_us: AtomicU64,
}

impl Progress {
    pub(crate) fn note(&self, waited: Duration) {
        self.longest_us.fetch_max(waited.as_micros() as u64, Ordering::Relaxed);
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// The longest wait since the last call.
    pub(crate) fn take_longest(&self) -> Duration {
        Duration::from_micros(self.longest_us.swap(0, Ordering::Relaxed))
    }
}

/// Plain reads, one after the other.
pub(crate) fn read_blocks(lane: &mut Lane, work: &Work, progress: &Progress) {
    let mut data = [0; BLOCK];
    for number in (0..).take_while(|_| work.goes_on()) {
        let (at, expected) = work.block_at(number);
        let begun = Instant::now();
        lane.read(NSID, at, &mut data).expect("read");
        progress.note(begun.elapsed());
        assert!(data == expected, "block at {at}");
    }
}

/// Gets by chains, several in flight.
pub(crate) fn get_keys(lane: &mut Lane, work: &Work, progress: &Progress) {
    let (mut number, mut open) = (0_u64, HashMap::new());
    while work.goes_on() || !open.is_empty() {
        while work.goes_on() && open.len() < GETS_AT_ONCE {
            number += 1;
            let key = number * 7 % work.keys;
            let argument = get_argument(key).expect("a key");
            lane.submit(number, Request::Pushdown(work.call(&argument))).expect("submitted");
            open.insert(number, (key, Instant::now()));
        }
        lane.wait(Duration::from_secs(1), &mut |completion| {
            let (key, begun) = open.remove(&completion.tag).expect("in flight, and ends once");
            work.check(key, completion.result.expect("it succeeds").data);
            progress.note(begun.elapsed());
        })
        .expect("it goes on");
    }
}

/// Chains and plain reads in turn, on a lane that several threads share.
pub(crate) fn share(lane: &SharedLane, work: &Work, progress: &Progress) {
    let mut answer = Vec::new();
    for number in (0..).take_while(|_| work.goes_on()) {
        let key = number % work.keys;
        let argument = get_argument(key).expect("a key");
        let begun = Instant::now();
        lane.pushdown(&work.call(&argument), &mut answer).expect("found");
        progress.note(begun.elapsed());
        work.check(key, &answer);
        let (at, expected) = work.block_at(number);
        let begun = Instant::now();
        lane.read(NSID, at, BLOCK as u32, &mut answer).expect("read");
        progress.note(begun.elapsed());
        assert!(answer == expected, "block at {at}");
    }
}

/// Lookups by chains in a file that is replaced now and then. The time to write the new file and to set its map does
/// not count as a wait.
pub(crate) fn look_up(reading: &mut Reading, work: &Work, progress: &Progress) {
    for number in (0..).take_while(|_| work.goes_on()) {
        progress.note(reading.look_up(number as u64 * 13 % KEYS));
        if number % LOOKUPS_OF_A_FILE == LOOKUPS_OF_A_FILE - 1 {
            reading.rewrite();
        }
    }
}

/// Writes blocks, and reads each one back.
pub(crate) fn write_and_read(lane: &mut Lane, work: &Work, progress: &Progress) {
    let mut data = [0; 512];
    for number in (0_u64..).take_while(|_| work.goes_on()) {
        let (at, block) = (SCRATCH_AT + number % 8 * 512, [number as u8; 512]);
        let begun = Instant::now();
        lane.write(NSID, at, &block).expect("written");
        progress.note(begun.elapsed());
        lane.read(NSID, at, &mut data).expect("read");
        assert_eq!(data, block, "write {number}");
    }
}
