//! A well-behaved host: one read or one get at a time, and occasionally a function or a connection.

use crate::child_target::ChildTarget;
use crate::database::write_to;
use crate::kv::driver::{Driver, Path, Work};
use crate::measurement::latencies;
use bpfkv::create::Extent;
use bpfof_host::{Controller, Options, TargetUrl};
use bpfof_kv::Session;
use fastrand::Rng;
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// Levels of the victim's database: a get takes one more read.
const LEVELS: u32 = 4;
const READ_BYTES: usize = 4096;
/// How often a function is loaded and a connection is made.
const LOADS: usize = 5;

/// Latencies of one window, in ns.
pub(super) struct Window {
    pub(super) reads: Histogram<u64>,
    pub(super) gets: Histogram<u64>,
}

/// The slowest of several operations.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slowest {
    pub(super) load: Duration,
    pub(super) connect: Duration,
}

/// A victim, and the target that it shares with others.
pub(super) struct Victim {
    // Dropped before the target.
    session: Session,
    pub(super) target: ChildTarget,
    keys: u64,
    bytes: u64,
    seed: u64,
}

impl Victim {
    /// Starts a target with a database on it.
    pub(super) fn new(memory_max: &str) -> Result<Victim, Box<dyn std::error::Error>> {
        let extent = Extent::full(LEVELS)?;
        let bytes = extent.layout().file_bytes().next_multiple_of(READ_BYTES as u64);
        let options = ["--memory-max", memory_max];
        let target = ChildTarget::start_with(&format!("mem:size={bytes}"), false, &options)?;
        write_to(&target.url, &extent)?;
        let session = Session::open(&target.url, Options::default(), 0)?;
        Ok(Victim { session, target, keys: extent.keys(), bytes, seed: 0 })
    }

    pub(super) fn url(&self) -> TargetUrl {
        self.target.url.clone()
    }

    /// Reads for `time`, then gets for `time`.
    pub(super) fn window(&mut self, time: Duration) -> Result<Window, Box<dyn std::error::Error>> {
        self.seed += 1;
        let reads = self.reads(time)?;
        let session = &mut self.session;
        let mut gets = Driver::new(session, Work::Get, Path::Pushdown, 1, self.keys, self.seed)?;
        Ok(Window { reads, gets: gets.run(time)?.latency })
    }

    fn reads(&mut self, time: Duration) -> Result<Histogram<u64>, Box<dyn std::error::Error>> {
        let mut latency = latencies()?;
        let mut block = [0; READ_BYTES];
        let blocks = self.bytes / READ_BYTES as u64;
        // Other places than those of the gets.
        let mut random = Rng::with_seed(!self.seed);
        let begun = Instant::now();
        while begun.elapsed() < time {
            let offset = random.u64(..blocks) * READ_BYTES as u64;
            let started = Instant::now();
            self.session.lane.read(self.session.nsid, offset, &mut block)?;
            latency.saturating_record(started.elapsed().as_nanos() as u64);
        }
        Ok(latency)
    }

    /// Loads a small function and connects, several times.
    pub(super) fn come_again(&mut self) -> Result<Slowest, Box<dyn std::error::Error>> {
        let mut slowest = Slowest::default();
        for _ in 0..LOADS {
            let started = Instant::now();
            let function = self.session.controller.load_function(bpfkv::GET_OBJECT, 0)?;
            slowest.load = slowest.load.max(started.elapsed());
            self.session.controller.unload_function(function)?;
            let started = Instant::now();
            let controller = Controller::connect(&self.target.url, Options::default())?;
            let lane = controller.open_lane()?;
            slowest.connect = slowest.connect.max(started.elapsed());
            drop(lane);
            controller.disconnect()?;
        }
        Ok(slowest)
    }

    /// Disconnects, asks the target to stop, and returns how long that took.
    pub(super) fn stop(self) -> Result<Duration, Box<dyn std::error::Error>> {
        let Victim { session, target, .. } = self;
        drop(session);
        Ok(target.stop()?)
    }
}
