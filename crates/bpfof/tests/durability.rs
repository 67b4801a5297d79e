//! `kill -9` of a target under a verified load: acknowledged writes are there after a restart. A disk that takes no
//! writes does not keep hosts from other disks.

mod command;
mod disk;
mod wait;

use bpfof_host::{Controller, Lane, Options, Request};
use command::Target;
use disk::{cannot_mount, output, run};
use fastrand::Rng;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wait::is_soon;

/// How often the target is killed.
const ROUNDS: u64 = 20;
/// Writes and Flush commands on each namespace that are acknowledged for each time the target is killed, at least.
const WRITES: u64 = 10;
const FLUSHES: u64 = 1;
/// Longest wait for these.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a logical block, and of one write: the unit that is promised to be written atomically.
const BLOCK: usize = 4096;
/// Blocks of each namespace that are written.
const BLOCKS: u64 = 512;
/// Requests in flight on each lane.
const DEPTH: usize = 16;
/// Writes between two Flush commands.
const FLUSH_EVERY: u64 = 24;
/// The tag of a Flush; the tag of a write is its block's number.
const FLUSH: u64 = 1 << 32;

fn start(disks: &[PathBuf]) -> Target {
    let mut command = Target::command();
    for disk in disks {
        let spec = format!("file:path={},size=4MiB,lba={BLOCK}", disk.display());
        command.args(["--namespace", &spec]);
    }
    command.args(["--namespace", "mem:size=1MiB"]);
    Target::run(command)
}

/// The state of a block: each write of it has a number of its own.
#[derive(Clone, Copy, Default)]
struct Known {
    submitted: u64,
    acknowledged: u64,
    /// Acknowledged with FUA, or before a Flush that was acknowledged.
    durable: u64,
    in_flight: bool,
}

/// A block's contents: every word depends on its place and on the number of the write.
fn stamp(block: u64, write: u64) -> Vec<u8> {
    let word = |at| (block << 48 | write << 16) ^ at;
    (0..BLOCK as u64 / 8).flat_map(|at| word(at).to_le_bytes()).collect()
}

/// How many writes and Flush commands were acknowledged.
#[derive(Default)]
struct Progress {
    writes: AtomicU64,
    flushes: AtomicU64,
}

impl Progress {
    fn counts(&self) -> (u64, u64) {
        (self.writes.load(Ordering::Relaxed), self.flushes.load(Ordering::Relaxed))
    }

    /// Whether it is enough for that many rounds.
    fn is_enough(&self, rounds: u64) -> bool {
        let (writes, flushes) = self.counts();
        writes > WRITES * rounds && flushes > FLUSHES * rounds
    }
}

/// The load on one namespace.
struct Load {
    nsid: u32,
    blocks: Vec<Known>,
    /// The acknowledged write of each block when the Flush in flight was submitted.
    flushing: Option<Vec<u64>>,
    writes: u64,
    progress: Arc<Progress>,
    random: Rng,
}

impl Load {
    fn new(nsid: u32) -> Load {
        let blocks = vec![Known::default(); BLOCKS as usize];
        let (progress, random) = (Arc::default(), Rng::with_seed(nsid.into()));
        Load { nsid, blocks, flushing: None, writes: 0, progress, random }
    }

    fn submit(&mut self, lane: &mut Lane) {
        while lane.requests_in_flight() < DEPTH {
            if self.writes.is_multiple_of(FLUSH_EVERY) && self.flushing.is_none() {
                self.flushing = Some(self.blocks.iter().map(|known| known.acknowledged).collect());
                lane.submit(FLUSH, Request::Flush { nsid: self.nsid }).expect("there is room");
            }
            let block = self.random.u64(..BLOCKS);
            let known = &mut self.blocks[block as usize];
            if known.in_flight {
                continue;
            }
            self.writes += 1;
            (known.submitted, known.in_flight) = (self.writes, true);
            let write = Request::Write {
                nsid: self.nsid,
                offset_bytes: block * BLOCK as u64,
                data: &stamp(block, self.writes),
                fua: self.fua(block),
            };
            lane.submit(block, write).expect("there is room");
        }
    }

    /// Some blocks are always written with FUA.
    fn fua(&self, block: u64) -> bool {
        block.is_multiple_of(16)
    }

    fn done(&mut self, tag: u64) {
        if tag == FLUSH {
            let covered = self.flushing.take().expect("one was submitted");
            for (known, covered) in self.blocks.iter_mut().zip(covered) {
                known.durable = known.durable.max(covered);
            }
            self.progress.flushes.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let fua = self.fua(tag);
        let known = &mut self.blocks[tag as usize];
        (known.acknowledged, known.in_flight) = (known.submitted, false);
        if fua {
            known.durable = known.acknowledged;
        }
        self.progress.writes.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes until the connection is lost.
    fn run(&mut self, lane: &mut Lane) {
        loop {
            self.submit(lane);
            let mut ended = Vec::new();
            let outcome = lane.wait(Duration::from_secs(10), &mut |completion| {
                if completion.result.is_ok() {
                    ended.push(completion.tag);
                }
            });
            for tag in ended {
                self.done(tag);
            }
            if outcome.is_err() {
                return;
            }
        }
    }

    /// Compares the namespace with the known writes.
    fn check(&mut self, lane: &mut Lane, round: u64) {
        self.flushing = None;
        let mut found = vec![0; BLOCKS as usize * BLOCK];
        lane.read(self.nsid, 0, &mut found).expect("it can be read");
        for (number, (known, found)) in self.blocks.iter_mut().zip(found.chunks(BLOCK)).enumerate()
        {
            let block = number as u64;
            let word = u64::from_le_bytes(*found.first_chunk().expect("8 bytes"));
            let write = word >> 16 & 0xffff_ffff;
            let is_whole = found == stamp(block, write) || write == 0 && found == [0; BLOCK];
            assert!(is_whole, "round {round}: block {block} is torn or was never written so");
            assert!(
                write >= known.durable,
                "round {round}: block {block} has write {write}, {} was flushed",
                known.durable
            );
            // This is more than hosts may expect: the kernel, which holds the data, has not died.
            assert!(
                (known.acknowledged..=known.submitted).contains(&write),
                "round {round}: block {block} has write {write}, {} was acknowledged",
                known.acknowledged
            );
            *known = Known { submitted: write, acknowledged: write, in_flight: false, ..*known };
        }
    }
}

/// A file with direct I/O, and, if there is /dev/shm, one in the page cache.
fn disks(directory: &Path) -> (Vec<PathBuf>, Option<tempfile::TempDir>) {
    let mut disks = vec![directory.join("disk")];
    let shared = tempfile::tempdir_in("/dev/shm").ok();
    disks.extend(shared.as_ref().map(|directory| directory.path().join("disk")));
    (disks, shared)
}

#[test]
fn killed_twenty_times() {
    let directory = tempfile::tempdir().expect("a directory");
    let (disks, _shared) = disks(directory.path());
    let mut loads: Vec<Load> = (1..).zip(&disks).map(|(nsid, _)| Load::new(nsid)).collect();
    let mut random = Rng::with_seed(0);
    let mut identities: Vec<Vec<[u8; 16]>> = Vec::new();
    for round in 0..=ROUNDS {
        let mut target = start(&disks);
        let url = target.url.parse().expect("an address");
        let controller = Controller::connect(&url, Options::default()).expect("it connects");
        identities.push(controller.namespaces().iter().map(|found| found.nguid).collect());
        let mut lanes: Vec<Lane> =
            loads.iter().map(|_| controller.open_lane().expect("a lane")).collect();
        for (load, lane) in loads.iter_mut().zip(&mut lanes) {
            load.check(lane, round);
        }
        if round == ROUNDS {
            break;
        }
        let pause = Duration::from_millis(random.u64(20..120));
        let progress: Vec<_> = loads.iter().map(|load| Arc::clone(&load.progress)).collect();
        let has_worked = std::thread::scope(|scope| {
            for (load, lane) in loads.iter_mut().zip(&mut lanes) {
                scope.spawn(|| load.run(lane));
            }
            std::thread::sleep(pause);
            // A slow disk needs longer.
            let is_enough = || progress.iter().all(|of| of.is_enough(round + 1));
            let has_worked = is_soon(PATIENCE, is_enough);
            target.child.kill().expect("it runs");
            has_worked
        });
        assert!(has_worked, "round {round}: too few writes and flushes");
    }
    for load in &loads {
        let (writes, flushes) = load.progress.counts();
        println!("namespace {}: {writes} writes acknowledged, {flushes} flushes", load.nsid);
        assert!(load.progress.is_enough(ROUNDS));
    }
    // Files are recognised; memory, which has lost everything, is not.
    let (first, last) = (&identities[0], &identities[ROUNDS as usize]);
    let files = disks.len();
    assert_eq!(first[..files], last[..files]);
    assert_ne!(first[files], last[files]);
}

/// A file system that takes no writes while this exists.
struct Frozen<'a> {
    mount: &'a str,
}

impl Frozen<'_> {
    fn freeze(mount: &str) -> Frozen<'_> {
        run("fsfreeze", &["--freeze", mount]);
        Frozen { mount }
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        output("fsfreeze", &["--unfreeze", self.mount]);
    }
}

struct Mounted<'a>(&'a str);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        output("umount", &["--lazy", self.0]);
    }
}

/// Each write to a frozen file system keeps a thread of the kernel. More writes than there are threads, to several
/// namespaces of the file system, leave some for the flushes of another disk.
#[test]
fn a_frozen_file_system_leaves_other_disks_alone() {
    const LANES: u64 = 10;
    const WRITES: u64 = 120;
    if cannot_mount() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (image, mount) = (path("image"), path("mount"));
    run("truncate", &["-s", "64M", &image]);
    run("mkfs.ext4", &["-q", &image]);
    std::fs::create_dir(&mount).expect("a folder");
    run("mount", &["-o", "loop", &image, &mount]);
    let _mounted = Mounted(&mount);
    let mut disks: Vec<_> =
        (0..LANES).map(|disk| Path::new(&mount).join(format!("disk{disk}"))).collect();
    disks.push(directory.path().join("other"));
    let mut target = start(&disks);
    let on_other = LANES as u32 + 1;
    let url = target.url.parse().expect("an address");
    let controller = Controller::connect(&url, Options::default()).expect("it connects");
    let mut lanes: Vec<Lane> =
        (0..=LANES).map(|_| controller.open_lane().expect("a lane")).collect();
    let mut other = lanes.pop().expect("one more");
    let mut ended = 0;
    let mut wait = |lane: &mut Lane, ms: u64| {
        let end = Instant::now() + Duration::from_millis(ms);
        while lane.requests_in_flight() > 0 && Instant::now() < end {
            let outcome = lane.wait(Duration::from_millis(100), &mut |completion| {
                completion.result.expect("it succeeds");
                ended += 1;
            });
            outcome.expect("a connection");
        }
        lane.requests_in_flight()
    };
    let frozen = Frozen::freeze(&mount);
    for (number, lane) in lanes.iter_mut().enumerate() {
        for write in 0..WRITES {
            let request = Request::Write {
                nsid: number as u32 + 1,
                offset_bytes: write * BLOCK as u64,
                data: &stamp(write, write),
                fua: false,
            };
            lane.submit(write, request).expect("there is room");
        }
    }
    assert_eq!(lanes.iter_mut().map(|lane| wait(lane, 100)).sum::<usize>() as u64, LANES * WRITES);
    let write = Request::Write { nsid: on_other, offset_bytes: 0, data: &stamp(0, 1), fua: false };
    other.submit(0, write).expect("there is room");
    other.submit(1, Request::Flush { nsid: on_other }).expect("there is room");
    assert_eq!(wait(&mut other, 20_000), 0, "the other disk waits for the frozen one");
    // It can be read.
    other.read(1, 0, &mut [0; BLOCK]).expect("read");
    drop(frozen);
    assert_eq!(lanes.iter_mut().map(|lane| wait(lane, 30_000)).sum::<usize>(), 0);
    drop(lanes);
    target.child.kill().expect("it runs");
}
