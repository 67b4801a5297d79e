//! Rounds of drain, upgrade, kill and silence at one of two targets, while a program reads, runs chains and
//! writes: no request fails, no answer is wrong, no reader waits for long.

use crate::PATH_TIMEOUT;
use crate::disk::{Disk, cannot_mount};
use crate::integration::cannot_build;
use crate::reading::Reading;
use crate::relay::Relay;
use crate::rocksdb::Stress;
use crate::stop::StopAtEnd;
use crate::wait::within;
use crate::workers::{
    NAMESPACE_BYTES, NSID, Progress, Work, get_keys, look_up, read_blocks, share, write_and_read,
};
use bpfof_host::files::FileMaps;
use bpfof_host::{Caravan, PathState, SharedLane, TargetUrl};
use rustix::process::Signal;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// What happens to a target.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// Nothing, for comparison.
    None,
    /// `bpfof ctl drain`, then `undrain`.
    Drain,
    /// Another process takes over.
    Upgrade,
    /// `kill -9`, then it is started again.
    Kill,
    /// Its connections are closed, and new ones refused.
    Cut,
    /// The network delivers nothing and says nothing; later it delivers all that it has.
    Silence,
}

const EVENTS: [Event; 6] =
    [Event::None, Event::Drain, Event::Upgrade, Event::Kill, Event::Cut, Event::Silence];
const READERS: [&str; 4] = ["reads", "gets by chains", "shared lane", "lookups in a file"];
/// Operations that each reader must complete before the next event.
const ENOUGH: u64 = 30;

struct Plan {
    rounds: u32,
    /// Least time of all rounds.
    lasts: Duration,
    path_timeout: Duration,
    /// Longest wait of a reader.
    pause_max: Duration,
    has_rocksdb: bool,
}

/// The longest waits: of each reader, and of RocksDB.
#[derive(Clone, Copy, Debug, Default)]
struct Longest {
    readers: [Duration; 4],
    rocksdb: Duration,
}

impl Longest {
    fn max(&self, other: &Longest) -> Longest {
        let readers = std::array::from_fn(|of| self.readers[of].max(other.readers[of]));
        Longest { readers, rocksdb: self.rocksdb.max(other.rocksdb) }
    }
}

/// The two targets, the paths to them, and the workers.
struct Stage<'a> {
    disk: &'a mut Disk,
    relays: &'a [Relay; 2],
    maps: Arc<FileMaps>,
    readers: &'a [Progress; 4],
    threads: Vec<ScopedJoinHandle<'a, ()>>,
    rocksdb: Option<Stress>,
    path_timeout: Duration,
}

impl Stage<'_> {
    fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        within(Duration::from_secs(60), what, || {
            let failed = self.threads.iter().any(ScopedJoinHandle::is_finished);
            assert!(!failed, "a worker has failed");
            done()
        });
    }

    fn is_in(&self, path: usize, states: &[PathState]) {
        self.until(&format!("path {path} is {states:?}"), || {
            let paths = self.maps.with_controller(|controller| controller.paths());
            states.contains(&paths.expect("a target")[path].state)
        });
    }

    /// Waits until all readers have done [`ENOUGH`].
    fn go_on(&self) {
        let ended = |progress: &Progress| progress.ended.load(Ordering::Relaxed);
        let goals = self.readers.each_ref().map(|reader| ended(reader) + ENOUGH);
        self.until("readers go on", || {
            self.readers.iter().zip(goals).all(|(reader, goal)| ended(reader) >= goal)
        });
    }

    /// Makes this path the preferred one.
    fn prefer(&self, path: usize) {
        let state = ["optimized", "non-optimized"][path];
        self.disk.ctl(0, &["ana", state]);
        self.until("it is preferred", || {
            let paths = self.maps.with_controller(|controller| controller.paths());
            paths.expect("a target")[path].is_preferred
        });
    }

    /// Causes an event at a target, and waits until everything is as before.
    fn play(&mut self, event: Event, path: usize) {
        match event {
            Event::None => {}
            Event::Drain => {
                self.disk.ctl(path, &["drain"]);
                self.is_in(path, &[PathState::Inaccessible]);
                self.go_on();
                self.disk.ctl(path, &["undrain"]);
            }
            Event::Upgrade => self.disk.take_over(path),
            Event::Kill => {
                self.disk.signal(path, Signal::KILL);
                self.is_in(path, &[PathState::Lost]);
                self.go_on();
                self.disk.restart(path);
            }
            Event::Cut => {
                self.relays[path].cut();
                self.is_in(path, &[PathState::Lost]);
                self.go_on();
                self.relays[path].open();
            }
            Event::Silence => {
                self.relays[path].silence();
                self.is_in(path, &[PathState::Lost]);
                self.go_on();
                if self.rocksdb_runs() {
                    // Until RocksDB has lost the path as well.
                    std::thread::sleep(self.path_timeout * 3 / 4);
                }
                self.relays[path].open();
            }
        }
        // Ask the target as well: this process may not have noticed yet that a connection was lost.
        let mut rocksdb = self.rocksdb.take();
        self.until("the hosts are back", || {
            let hosts = self.disk.ctl(path, &["connections"]);
            let rocksdb_runs = rocksdb.as_mut().is_some_and(Stress::runs);
            hosts.as_array().is_some_and(|hosts| hosts.len() > usize::from(rocksdb_runs))
        });
        self.rocksdb = rocksdb;
        for path in 0..2 {
            self.is_in(path, &[PathState::Optimized, PathState::NonOptimized]);
        }
        self.prefer(path);
        self.go_on();
    }

    fn rocksdb_runs(&mut self) -> bool {
        self.rocksdb.as_mut().is_some_and(Stress::runs)
    }

    fn take_longest(&self) -> Longest {
        let readers = self.readers.each_ref().map(Progress::take_longest);
        let rocksdb = self.rocksdb.as_ref().map(Stress::take_longest);
        Longest { readers, rocksdb: rocksdb.unwrap_or_default() }
    }
}

/// Starts a thread for each reader but the shared lane, which has two, and one that writes.
fn start<'a>(
    scope: &'a Scope<'a, '_>,
    reading: &'a mut Reading,
    work: &'a Work,
    (readers, writer): (&'a [Progress; 4], &'a Progress),
) -> Vec<ScopedJoinHandle<'a, ()>> {
    let [reads, gets, shared, lookups] = readers;
    let open = || {
        let lane = reading.maps.with_controller(|controller| controller.open_lane());
        lane.expect("a target").expect("a lane")
    };
    let (mut reads_by, mut gets_by, mut writes_by) = (open(), open(), open());
    let lane = Arc::new(SharedLane::new(open(), Caravan::default()).expect("shared"));
    let lanes = [Arc::clone(&lane), lane];
    let mut threads = vec![
        scope.spawn(move || read_blocks(&mut reads_by, work, reads)),
        scope.spawn(move || get_keys(&mut gets_by, work, gets)),
        scope.spawn(move || write_and_read(&mut writes_by, work, writer)),
        scope.spawn(move || look_up(reading, work, lookups)),
    ];
    threads.extend(lanes.map(|lane| scope.spawn(move || share(&lane, work, shared))));
    threads
}

/// The disk, with a database in its second namespace, by two relays.
fn set_up(plan: &Plan) -> (Disk, [Relay; 2], TargetUrl, Reading, Work) {
    let mut disk = Disk::new("ext4", 512 << 20).expect("it can be mounted");
    let direct = disk.add_path();
    disk.add_plain(NAMESPACE_BYTES);
    let relays =
        [0, 1].map(|path| Relay::start(disk.listens_at(path).parse().expect("an address")));
    let [a, b] = relays.each_ref().map(|relay| relay.address);
    let timeout = plan.path_timeout.as_millis();
    let url = format!("nvme-tcp://{a},{b}/{}?path-timeout-ms={timeout}", direct.nqn);
    let url: TargetUrl = url.parse().expect("an address");
    let reading = Reading::new(&disk, &url);
    let load = |controller: &mut bpfof_host::Controller| {
        let work = Work::new(controller.load_function(bpfkv::GET_OBJECT, 0).expect("good"));
        let mut lane = controller.open_lane().expect("a lane");
        for (number, block) in work.database.chunks(4096).enumerate() {
            lane.write(NSID, number as u64 * 4096, block).expect("written");
        }
        work
    };
    let work = reading.maps.with_controller(load).expect("a target");
    (disk, relays, url, reading, work)
}

/// Prints the longest waits for each event.
fn print(longest: &[Longest; 6], has_rocksdb: bool) {
    let line = |name: &str, waited: [Duration; 6]| {
        let ms = waited.map(|waited| format!("{:>9.1}", waited.as_secs_f64() * 1e3));
        println!("{name:<18}{}", ms.concat());
    };
    let events = EVENTS.map(|event| format!("{:>9}", format!("{event:?}")));
    println!("{:<18}{}", "longest wait, ms", events.concat());
    for (reader, name) in READERS.iter().enumerate() {
        line(name, longest.map(|of| of.readers[reader]));
    }
    if has_rocksdb {
        line("Gets of RocksDB", longest.map(|of| of.rocksdb));
    }
}

fn check(plan: &Plan, event: Event, longest: &Longest) {
    let too_long = longest.readers.iter().any(|waited| *waited > plan.pause_max);
    assert!(!too_long, "{event:?}: {READERS:?} waited {:?}", longest.readers);
    assert!(
        longest.rocksdb <= plan.pause_max,
        "{event:?}: a Get of RocksDB took {:?}",
        longest.rocksdb
    );
}

fn play(plan: &Plan) {
    let (mut disk, relays, url, mut reading, work) = set_up(plan);
    let (readers, writer) = (<[Progress; 4]>::default(), Progress::default());
    let mut longest = [Longest::default(); 6];
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&work.stop);
        let maps = Arc::clone(&reading.maps);
        let rocksdb = plan.has_rocksdb.then(|| Stress::start(&disk, &url, plan.lasts));
        let threads = start(scope, &mut reading, &work, (&readers, &writer));
        let (disk, relays, readers) = (&mut disk, &relays, &readers);
        let path_timeout = plan.path_timeout;
        let mut stage = Stage { disk, relays, maps, readers, threads, rocksdb, path_timeout };
        let (begun, mut round) = (Instant::now(), 0);
        while round < plan.rounds || begun.elapsed() < plan.lasts || stage.rocksdb_runs() {
            let path = round as usize % 2;
            stage.prefer(path);
            for (event, longest) in EVENTS.into_iter().zip(&mut longest) {
                stage.go_on();
                stage.take_longest();
                stage.play(event, path);
                let waited = stage.take_longest();
                println!("round {round}, path {path}, {event:?}: {waited:?}");
                check(plan, event, &waited);
                *longest = longest.max(&waited);
            }
            round += 1;
        }
        let written = writer.ended.load(Ordering::Relaxed);
        stage.until("writes go on", || writer.ended.load(Ordering::Relaxed) > written);
        println!("{round} rounds in {:?}", begun.elapsed());
    });
    print(&longest, plan.has_rocksdb);
    let requests: Vec<u64> = readers.iter().map(|of| of.ended.load(Ordering::Relaxed)).collect();
    let (written, waited) = (writer.ended.load(Ordering::Relaxed), writer.take_longest());
    println!("{READERS:?}: {requests:?}; {written} writes, the longest took {waited:?}");
    // The time until the loss is noticed and the first target can no longer act. A request that is then sent again may
    // meet the next loss.
    let most = 2 * (3 * plan.path_timeout + Duration::from_secs(1)) + plan.pause_max;
    assert!(waited < most, "a write took {waited:?}");
}

#[test]
fn a_round_of_everything_shows_in_no_request() {
    if cannot_mount() {
        return;
    }
    let pause_max = Duration::from_secs(5);
    let (lasts, path_timeout) = (Duration::ZERO, PATH_TIMEOUT);
    play(&Plan { rounds: 1, lasts, path_timeout, pause_max, has_rocksdb: false });
}

/// `make soak-paths`: PATH_ROUNDS, in PATH_SECONDS at least. A path that is silent is noticed within three
/// quarters of `path_timeout`, so that it bounds what silence costs.
#[test]
#[ignore = "runs as long as PATH_ROUNDS and PATH_SECONDS say: make soak-paths"]
fn soak() {
    assert!(!cannot_build() && !cannot_mount(), "this needs root and RocksDB");
    let setting = |name, usual| match std::env::var(name).ok().filter(|text| !text.is_empty()) {
        Some(text) => text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text:?}")),
        None => usual,
    };
    let (rounds, seconds) = (setting("PATH_ROUNDS", 10), setting("PATH_SECONDS", 90));
    let second = Duration::from_secs(1);
    let lasts = Duration::from_secs(seconds.into());
    play(&Plan { rounds, lasts, path_timeout: second, pause_max: second, has_rocksdb: true });
}
