//! The target that `bpfof bench net` reads from: connected, checked, and filled if the benchmark started it.

use super::cpu_profile::{self, WayShares};
use super::load::{Place, mark};
use super::options::NetOptions;
use super::threads;
use crate::child_target::ChildTarget;
use crate::machine;
use crate::measurement::CpuTimes;
use bpfof_host::{Controller, Lane};
use bpfof_kv::connect;
use bpfof_terminal::{Outcome, progress};
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) type Failure = Box<dyn std::error::Error>;

/// Total size of the namespaces of targets started here: more than a processor's own caches.
pub(super) const NAMESPACE_BYTES: u64 = 256 << 20;
/// Namespaces are filled in pieces of this size.
pub(super) const FILL_BYTES: u64 = 1 << 20;

/// A connected target, and the place to read.
pub(super) struct Bench {
    pub(super) controller: Controller,
    pub(super) lane: Lane,
    nsid: u32,
    size_bytes: u64,
    child: Option<ChildTarget>,
    seed: u64,
}

impl Bench {
    pub(super) fn open(options: &NetOptions) -> Result<Bench, Failure> {
        machine::pin(machine::processors().0)?;
        let (child, url) = match &options.target {
            Some(url) => (None, url.clone()),
            None => {
                let namespace = format!("mem:size={NAMESPACE_BYTES}");
                let child = ChildTarget::start(&namespace, options.poll)?;
                let url = child.url.clone();
                (Some(child), url)
            }
        };
        let nsid = url.nsid;
        let (mut controller, lane) = connect(&url, options.host())?;
        let info = controller.identify_namespace(nsid)?;
        let size_bytes = info.size_bytes();
        check(options, size_bytes, info.block_bytes, &lane)?;
        check_connections(options, &controller)?;
        let mut bench = Bench { controller, lane, nsid, size_bytes, child, seed: 0 };
        if bench.child.is_some() {
            let place = bench.place();
            fill(&AtomicBool::new(false), &mut bench.lane, place)?;
        }
        Ok(bench)
    }

    /// Whether TCP alone, over this machine's loopback device, takes the same path as the reads. There may be a network
    /// behind other loopback addresses.
    pub(super) const fn has_floor(&self) -> bool {
        self.child.is_some()
    }

    pub(super) fn close(self) -> Outcome {
        drop(self.lane);
        self.controller.disconnect()?;
        drop(self.child);
        Ok(())
    }

    /// A new seed for random numbers.
    pub(super) fn next_seed(&mut self) -> u64 {
        self.seed += 1;
        self.seed
    }

    pub(super) fn place(&self) -> Place {
        let is_filled = self.child.is_some();
        Place { nsid: self.nsid, size_bytes: self.size_bytes, is_filled }
    }

    /// Measures the smallest reads, by blocking threads.
    pub(super) fn threads(
        &self,
        options: &NetOptions,
        count: usize,
    ) -> Result<threads::Case, Failure> {
        let target_cpu_ns = || self.cpu_ns().1;
        let place = self.threads_place(options, &target_cpu_ns);
        threads::measure(&place, count, options.smallest(), options.repetitions, options.time())
    }

    /// What the threads spend processor time on, over all repetitions.
    pub(super) fn shares(
        &self,
        options: &NetOptions,
        count: usize,
    ) -> Result<Vec<WayShares>, Failure> {
        let target_cpu_ns = || self.cpu_ns().1;
        let place = self.threads_place(options, &target_cpu_ns);
        let time = options.time() * options.repetitions;
        cpu_profile::measure(&place, count, options.smallest(), time, self.child.is_some())
    }

    fn threads_place<'a>(
        &'a self,
        options: &NetOptions,
        target_cpu_ns: &'a dyn Fn() -> Option<u64>,
    ) -> threads::Place<'a> {
        let Place { size_bytes, is_filled, .. } = self.place();
        let url = self.controller.url();
        threads::Place { url, size_bytes, is_filled, poll: options.poll, target_cpu_ns }
    }

    /// Processor time of host and target so far.
    pub(super) fn cpu_ns(&self) -> CpuTimes {
        (machine::own_cpu_ns(), self.child.as_ref().and_then(ChildTarget::cpu_ns))
    }
}

/// Checks that all measurements are possible before the first one.
pub(super) fn check(
    options: &NetOptions,
    namespace_bytes: u64,
    block_bytes: u32,
    lane: &Lane,
) -> Result<(), String> {
    let most = namespace_bytes.min(u64::from(lane.max_transfer_bytes()));
    for &size in &options.sizes {
        if size == 0 || !size.is_multiple_of(block_bytes) || u64::from(size) > most {
            return Err(format!(
                "--sizes {size}: a read is whole blocks of {block_bytes} bytes, at most {most} \
                 bytes here"
            ));
        }
    }
    match options.depths.iter().find(|depth| **depth > lane.depth()) {
        Some(depth) => {
            Err(format!("--depths {depth}: this target takes {} at a time", lane.depth()))
        }
        None => Ok(()),
    }
}

/// Opens as many connections at once as will be needed, and closes them.
fn check_connections(options: &NetOptions, controller: &Controller) -> Result<(), String> {
    let numbers = options.connections.iter().chain(&options.threads);
    let mut open = Vec::new();
    for _ in 0..numbers.copied().max().unwrap_or(0) {
        let lane = controller.open_lane().map_err(|error| {
            let more = open.len() + 1;
            format!("connection {more} failed: {error}; give fewer --connections and --threads")
        })?;
        open.push(lane);
    }
    Ok(())
}

/// Fills a namespace with data that contains its own place, unless `stop` is set.
pub(super) fn fill(
    stop: &AtomicBool,
    lane: &mut Lane,
    place: Place,
) -> Result<(), bpfof_host::Error> {
    let mut piece = vec![0; FILL_BYTES as usize];
    let bar = progress::steps("filling the namespace", place.size_bytes / FILL_BYTES);
    for start in (0..place.size_bytes).step_by(FILL_BYTES as usize) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        mark(&mut piece, start);
        lane.write(place.nsid, start, &piece)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}
