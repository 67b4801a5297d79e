//! Hosts with two paths to a target, one of which is cut, falls silent, and comes back: requests go on, each ends once,
//! and a write never takes effect after it was reported as ended.

#[path = "../common/mod.rs"]
mod common;
mod relay;

use bpfkv::pushdown::{FIRST_READ_BYTES, GET_ANSWER_BYTES, GET_SCRATCH_BYTES, get_argument};
use bpfof_controller::{ListenConfig, Listeners, Server, TargetConfig};
use bpfof_host::{
    Caravan, Controller, Error, Extent, FileMapObject, FileVersion, FunctionId, Lane, LostReason,
    Options, PathState, PushdownCall, Request, RequestError, SharedLane, SubmitError, TargetUrl,
};
use common::stop::StopAtEnd;
use common::{
    NQN, compile, compile_text, config, connect, database, file, load, memory, start, until,
};
use relay::Relay;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const KEYS: u64 = 31 * 31;
/// The offset at which tests write: behind the database.
const SCRATCH_AT: u64 = 2 << 20;
const NAMESPACE_BYTES: u64 = 4 << 20;
/// Longest pause that a host may notice while another path works, on a busy machine.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// A target with a database, by two portals.
struct Two {
    server: Server,
    relays: [Relay; 2],
    url: TargetUrl,
    /// The value of each key.
    values: Vec<Vec<u8>>,
}

fn call(function: FunctionId, argument: &[u8]) -> PushdownCall<'_> {
    PushdownCall {
        first_size_bytes: FIRST_READ_BYTES,
        scratch_size_bytes: GET_SCRATCH_BYTES,
        answer_max_bytes: GET_ANSWER_BYTES as u32,
        ..common::call(function, argument)
    }
}

impl Two {
    fn new() -> Two {
        let listener = || "127.0.0.1:0".parse::<ListenConfig>().expect("an address");
        let listen = Listeners(vec![listener(), listener()]);
        let namespaces = vec![memory(NAMESPACE_BYTES, 512)];
        let server = Server::start(&TargetConfig { listen, ..config(namespaces) });
        let server = server.expect("it starts");
        let (mut controller, mut lane) = connect(&server, false);
        let database = database(2);
        assert!((database.len() as u64) < SCRATCH_AT);
        lane.write(1, 0, &database).expect("written");
        let get = controller.load_function(bpfkv::GET_OBJECT, 0).expect("loaded");
        let values = (0..KEYS).map(|key| {
            let mut answer = Vec::new();
            let argument = get_argument(key).expect("a key");
            lane.pushdown(&call(get, &argument), &mut answer).expect("found");
            answer
        });
        let values = values.collect();
        let addresses: [_; 2] = server.addresses()[..].try_into().expect("two");
        let relays = addresses.map(Relay::start);
        let (a, b) = (relays[0].address, relays[1].address);
        let url = format!("nvme-tcp://{a},{b}/{NQN}").parse().expect("an address");
        Two { server, relays, url, values }
    }

    fn connect(&self, options: Options) -> Controller {
        let controller = Controller::connect(&self.url, options).expect("it connects");
        for path in 0..2 {
            is_in(&controller, path, PathState::Optimized);
        }
        controller
    }
}

/// Waits until a path is in a state.
fn is_in(controller: &Controller, path: usize, state: PathState) {
    until(&format!("path {path} is {state}"), || controller.paths()[path].state == state);
}

fn quick() -> Options {
    Options { path_timeout: Duration::from_secs(2), ..Options::default() }
}

/// Options with a timeout above [`PAUSE_MAX`], so that waiting for it would be noticed.
fn patient() -> Options {
    Options { path_timeout: 6 * PAUSE_MAX, ..Options::default() }
}

/// Counters of a working host.
#[derive(Default)]
struct Progress {
    stop: AtomicBool,
    ended: AtomicU64,
    longest_us: AtomicU64,
}

impl Progress {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Counts a request that has ended; the previous one ended at `last`.
    fn note(&self, last: &mut Instant) {
        self.longest_us.fetch_max(last.elapsed().as_micros() as u64, Ordering::Relaxed);
        *last = Instant::now();
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until 200 more requests have ended, including those in flight.
    fn wait(&self) {
        let goal = self.ended.load(Ordering::Relaxed) + 200;
        until("requests end", || self.ended.load(Ordering::Relaxed) >= goal);
    }

    /// No request has waited for long.
    fn check(&self) {
        let longest = Duration::from_micros(self.longest_us.load(Ordering::Relaxed));
        println!("{} requests, longest pause {longest:?}", self.ended.load(Ordering::Relaxed));
        assert!(longest < PAUSE_MAX, "a pause of {longest:?}");
    }
}

/// Many chains in flight on a lane, each of which must end once.
fn poll_chains(lane: &mut Lane, get: FunctionId, two: &Two, progress: &Progress) {
    let (mut number, mut open, mut last) = (0_u64, HashMap::new(), Instant::now());
    while progress.goes_on() || !open.is_empty() {
        while progress.goes_on() && open.len() < 16 {
            number += 1;
            let key = number * 7 % KEYS;
            let argument = get_argument(key).expect("a key");
            lane.submit(number, Request::Pushdown(call(get, &argument))).expect("submitted");
            open.insert(number, key);
        }
        lane.wait(Duration::from_secs(1), &mut |completion| {
            let key = open.remove(&completion.tag).expect("in flight");
            let done = completion.result.expect("it succeeds");
            assert_eq!(done.data, two.values[key as usize], "key {key}");
            progress.note(&mut last);
        })
        .expect("it goes on");
    }
}

fn block_chains(lane: &mut Lane, get: FunctionId, two: &Two, progress: &Progress) {
    let (mut answer, mut data, mut last) = (Vec::new(), [0; 4096], Instant::now());
    for key in (0..KEYS).cycle().take_while(|_| progress.goes_on()) {
        let argument = get_argument(key).expect("a key");
        lane.pushdown(&call(get, &argument), &mut answer).expect("found");
        assert_eq!(answer, two.values[key as usize], "key {key}");
        lane.read(1, key % 64 * 4096, &mut data).expect("read");
        lane.flush(1).expect("flushed");
        progress.note(&mut last);
    }
}

fn share_chains(lane: &SharedLane, get: FunctionId, two: &Two, progress: &Progress) {
    let (mut answer, mut last) = (Vec::new(), Instant::now());
    for key in (0..KEYS).cycle().take_while(|_| progress.goes_on()) {
        let argument = get_argument(key).expect("a key");
        lane.pushdown(&call(get, &argument), &mut answer).expect("found");
        assert_eq!(answer, two.values[key as usize], "key {key}");
        lane.read(1, key % 64 * 4096, 4096, &mut answer).expect("read");
        progress.note(&mut last);
    }
}

#[test]
fn reads_go_on_while_paths_are_cut_and_come_back() {
    let two = Two::new();
    let mut controller = two.connect(patient());
    let get = controller.load_function(bpfkv::GET_OBJECT, 0).expect("loaded");
    let mut lanes = [(); 2].map(|()| controller.open_lane().expect("a lane"));
    let shared = SharedLane::new(controller.open_lane().expect("a lane"), Caravan::default());
    let shared = shared.expect("shared");
    let progress: [Progress; 3] = Default::default();
    std::thread::scope(|scope| {
        let _stop = progress.each_ref().map(|progress| StopAtEnd(&progress.stop));
        let [polled, blocking] = &mut lanes;
        let (two, progress, shared) = (&two, &progress, &shared);
        scope.spawn(move || poll_chains(polled, get, two, &progress[0]));
        scope.spawn(move || block_chains(blocking, get, two, &progress[1]));
        for _ in 0..3 {
            scope.spawn(move || share_chains(shared, get, two, &progress[2]));
        }
        for round in 0..6 {
            progress.iter().for_each(Progress::wait);
            let path = round % 2;
            two.relays[path].cut();
            is_in(&controller, path, PathState::Lost);
            progress.iter().for_each(Progress::wait);
            two.relays[path].open();
            is_in(&controller, path, PathState::Optimized);
            assert!(controller.paths()[0].is_preferred, "the first is used again");
        }
    });
    progress.iter().for_each(Progress::check);
}

fn write_and_read(lane: &mut Lane, progress: &Progress) {
    let (mut data, mut last) = ([0; 512], Instant::now());
    for number in (0_u64..).take_while(|_| progress.goes_on()) {
        let (at, block) = (SCRATCH_AT + number % 8 * 512, [number as u8; 512]);
        lane.write(1, at, &block).expect("written");
        lane.read(1, at, &mut data).expect("read");
        assert_eq!(data, block, "write {number}");
        progress.note(&mut last);
    }
}

/// Commands that a drained listener refuses were not carried out, so that writes are sent by the other path at once.
#[test]
fn drains_fail_no_request_not_even_writes() {
    let two = Two::new();
    // With this timeout a lane that slept on refused requests until its next timeout check would be noticed.
    let command_timeout = Duration::from_secs(600);
    let mut controller = two.connect(Options { command_timeout, ..patient() });
    let get = controller.load_function(bpfkv::GET_OBJECT, 0).expect("loaded");
    let mut lanes = [(); 2].map(|()| controller.open_lane().expect("a lane"));
    let shared = SharedLane::new(controller.open_lane().expect("a lane"), Caravan::default());
    let shared = shared.expect("shared");
    let progress: [Progress; 3] = Default::default();
    std::thread::scope(|scope| {
        let _stop = progress.each_ref().map(|progress| StopAtEnd(&progress.stop));
        let [polled, writing] = &mut lanes;
        let (two, progress, shared) = (&two, &progress, &shared);
        scope.spawn(move || poll_chains(polled, get, two, &progress[0]));
        scope.spawn(move || write_and_read(writing, &progress[1]));
        scope.spawn(move || share_chains(shared, get, two, &progress[2]));
        for round in 0..16 {
            progress.iter().for_each(Progress::wait);
            let path = round % 2;
            let listener = [(path + 1).to_string()];
            two.server.paths().drain(&listener).expect("drained");
            is_in(&controller, path, PathState::Inaccessible);
            progress.iter().for_each(Progress::wait);
            two.server.paths().undrain(&listener).expect("drained no more");
            is_in(&controller, path, PathState::Optimized);
        }
    });
    progress.iter().for_each(Progress::check);
}

#[test]
fn a_path_that_falls_silent_is_noticed_within_its_timeout() {
    let two = Two::new();
    let options = quick();
    let timeout = options.path_timeout;
    let controller = two.connect(options);
    let mut lane = controller.open_lane().expect("a lane");
    let mut data = [0; 512];
    lane.read(1, 0, &mut data).expect("read");
    two.relays[0].silence();
    let begun = Instant::now();
    lane.read(1, 0, &mut data).expect("read by the other path");
    let waited = begun.elapsed();
    println!("noticed after {waited:?}");
    assert!(waited < timeout + PAUSE_MAX, "noticed after {waited:?}");
    let first = &controller.paths()[0];
    assert!(!first.is_preferred && first.state == PathState::Lost, "{first:?}");
    // The target gets no Keep Alive either, and may close the connection first.
    let is_told = |why: &String| why.contains("Keep Alive") || why.contains("connection reset");
    assert!(first.reason.as_ref().is_some_and(is_told), "{first:?}");
    two.relays[0].open();
    is_in(&controller, 0, PathState::Optimized);
}

/// Silences the path, submits a write and a read, and cuts the path with both in flight. Returns how and when each
/// ends, in order.
fn lose_a_write(two: &Two, options: Options) -> Vec<(u64, Option<RequestError>, Duration)> {
    let controller = two.connect(options);
    let mut lane = controller.open_lane().expect("a lane");
    two.relays[0].silence();
    let data = [0x5A; 512];
    let write = Request::Write { nsid: 1, offset_bytes: SCRATCH_AT, data: &data, fua: false };
    lane.submit(1, write).expect("submitted");
    let read = Request::Read { nsid: 1, offset_bytes: 0, length_bytes: 512 };
    lane.submit(2, read).expect("submitted");
    lane.flush_doorbell().expect("sent");
    two.relays[0].cut();
    let (begun, mut ends) = (Instant::now(), Vec::new());
    while ends.len() < 2 {
        lane.wait(Duration::from_secs(1), &mut |completion| {
            ends.push((completion.tag, completion.result.err(), begun.elapsed()));
        })
        .expect("it goes on");
    }
    assert_eq!(lane.requests_in_flight(), 0);
    two.relays[0].open();
    ends
}

#[test]
fn a_write_is_sent_again_when_the_first_target_cannot_carry_it_out() {
    let two = Two::new();
    let options = quick();
    let path_timeout = options.path_timeout;
    let ends = lose_a_write(&two, options);
    let [(2, None, read), (1, None, write)] = ends[..] else { panic!("{ends:?}") };
    println!("read after {read:?}, written after {write:?}");
    assert!(read < write, "read after {read:?}");
    // Twice its keep-alive timeout, which traffic restarts, plus the tolerance.
    assert!(write >= 2 * path_timeout + Duration::from_millis(900), "written after {write:?}");
    let mut data = [0; 512];
    connect(&two.server, false).1.read(1, SCRATCH_AT, &mut data).expect("read");
    assert_eq!(data, [0x5A; 512]);
}

#[test]
fn a_write_that_would_wait_too_long_ends_as_unknown() {
    let two = Two::new();
    let options = Options { command_timeout: 3 * PAUSE_MAX, ..patient() };
    let mut ends = lose_a_write(&two, options);
    ends.sort_unstable_by_key(|(tag, ..)| *tag);
    let [(1, Some(RequestError::Unknown(_)), write), (2, None, _)] = ends[..] else {
        panic!("{ends:?}")
    };
    println!("told after {write:?}");
    assert!(write < PAUSE_MAX, "told after {write:?}");
}

#[test]
fn a_blocking_write_says_that_its_end_is_unknown() {
    let two = Two::new();
    let options = Options { command_timeout: Duration::from_secs(2), ..Options::default() };
    let controller = two.connect(options);
    let mut lane = controller.open_lane().expect("a lane");
    two.relays[0].silence();
    let error = std::thread::scope(|scope| {
        let writing = scope.spawn(|| lane.write(1, SCRATCH_AT, &[1; 512]).expect_err("unknown"));
        until("the write is on its way", || two.relays[0].held_bytes() > 512);
        two.relays[0].cut();
        writing.join().expect("no panic")
    });
    assert!(matches!(error, Error::Unknown { command: "Write", .. }), "{error}");
    assert!(error.to_string().contains("unknown"), "{error}");
    lane.write(1, SCRATCH_AT, &[2; 512]).expect("by the other path");
}

#[test]
fn functions_and_file_maps_are_on_each_path() {
    let two = Two::new();
    let mut controller = two.connect(quick());
    let (small, onward) = (compile("small"), bpfkv::GET_OBJECT);
    let first = load(&mut controller, &small, "small");
    let get = controller.load_function(onward, 0).expect("loaded");
    let last = load(&mut controller, &small, "small");
    controller.unload_function(first).expect("unloaded");
    let map = |version| FileMapObject {
        file: 5,
        nsid: 1,
        version,
        length_bytes: 4096,
        extents: vec![Extent { file_offset: 0, device_offset: SCRATCH_AT, length_bytes: 4096 }],
    };
    controller.set_file_map(&map(1)).expect("set");
    let mut lane = controller.open_lane().expect("a lane");
    lane.write(1, SCRATCH_AT, &[7; 512]).expect("written");
    let check = |lane: &mut Lane, version| {
        let argument = get_argument(5).expect("a key");
        let mut answer = Vec::new();
        lane.pushdown(&call(get, &argument), &mut answer).expect("found");
        assert_eq!(answer, two.values[5]);
        let files = &[FileVersion { id: 5, version }];
        let on_file = PushdownCall { files, first_size_bytes: 512, ..call(last, &[]) };
        lane.pushdown(&on_file, &mut answer).expect("read");
        assert_eq!(answer, [8], "version {version}");
    };
    check(&mut lane, 1);
    for round in 0..4 {
        let path = round % 2;
        two.relays[path].cut();
        is_in(&controller, path, PathState::Lost);
        check(&mut lane, round as u64 + 1);
        // A map that is set while a path is down exists there when the path is back.
        controller.set_file_map(&map(round as u64 + 2)).expect("set");
        two.relays[path].open();
        is_in(&controller, path, PathState::Optimized);
        check(&mut lane, round as u64 + 2);
    }
    let next = load(&mut controller, &small, "small");
    assert_eq!(next.0, last.0 + 1, "both paths number it alike");
    is_in(&controller, 0, PathState::Optimized);
    is_in(&controller, 1, PathState::Optimized);
    controller.remove_file_map(1, 5).expect("removed");
    controller.disconnect().expect("shut down");
}

#[test]
fn function_maps_have_the_programs_entries_on_each_path() {
    let two = Two::new();
    let mut controller = two.connect(quick());
    let object = compile_text(include_str!("../../../../docs/examples/hot_blocks.bpf.c"));
    let reads = load(&mut controller, &object, "reads");
    let mut lane = controller.open_lane().expect("a lane");
    let map = controller.map("hot_blocks").expect("it is there");
    let key = 1536_u64.to_le_bytes();
    let seen = |lane: &mut Lane| {
        let mut answer = Vec::new();
        let first =
            PushdownCall { first_offset_bytes: 1536, first_size_bytes: 512, ..call(reads, &[]) };
        lane.pushdown(&PushdownCall { scratch_size_bytes: 64, ..first }, &mut answer)
            .expect("read");
        u64::from_le_bytes(answer.try_into().expect("a number"))
    };
    for round in 0..4_u64 {
        let path = round as usize % 2;
        controller.map_set(&map, &key, &(round + 7).to_le_bytes()).expect("set");
        two.relays[path].cut();
        is_in(&controller, path, PathState::Lost);
        assert_eq!(seen(&mut lane), round + 7);
        let value = controller.map_get(&map, &key).expect("asked");
        assert_eq!(value, Some((round + 7).to_le_bytes().to_vec()));
        // The path that is down gets this when it is back.
        controller.map_set(&map, &key, &(round + 70).to_le_bytes()).expect("set");
        two.relays[path].open();
        is_in(&controller, path, PathState::Optimized);
        assert_eq!(seen(&mut lane), round + 70);
    }
    assert!(controller.map_delete(&map, &key).expect("asked"), "it was there");
    two.relays[0].cut();
    is_in(&controller, 0, PathState::Lost);
    assert_eq!(seen(&mut lane), 0);
    assert!(controller.map_entries(&map).expect("asked").is_empty());
}

#[test]
fn requests_end_without_a_path_and_continue_with_one() {
    let two = Two::new();
    let command_timeout = Duration::from_secs(2);
    let controller = two.connect(Options { command_timeout, ..quick() });
    let mut lane = controller.open_lane().expect("a lane");
    let mut data = [0; 512];
    two.relays.iter().for_each(Relay::cut);
    let error = lane.read(1, 0, &mut data).expect_err("no path");
    assert!(matches!(error, Error::Lost(LostReason::NoPath)), "{error}");
    let begun = Instant::now();
    let error = Controller::connect(&two.url, Options::default()).expect_err("no path");
    assert!(begun.elapsed() < PAUSE_MAX, "refused after {:?}", begun.elapsed());
    let (error, addresses) = (error.to_string(), two.relays.each_ref().map(|r| r.address));
    assert!(addresses.iter().all(|address| error.contains(&address.to_string())), "{error}");
    two.relays[1].open();
    is_in(&controller, 1, PathState::Optimized);
    lane.read(1, 0, &mut data).expect("it goes on");
    drop(controller);
    let error = lane.read(1, 0, &mut data).expect_err("the controller is gone");
    assert!(
        matches!(error, Error::Lost(LostReason::HungUp) | Error::Submit(SubmitError::NotConnected)),
        "{error}"
    );
}

#[test]
fn a_portal_of_another_disk_is_not_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let of = |name: &str| start(vec![file(&folder.path().join(name), NAMESPACE_BYTES, 512)]);
    for name in ["one", "other"] {
        std::fs::write(folder.path().join(name), "").expect("made");
    }
    let (one, other) = (of("one"), of("other"));
    let url = format!("nvme-tcp://{},{}/{NQN}", one.address(), other.address());
    let controller = Controller::connect(&url.parse().expect("an address"), Options::default());
    let controller = controller.expect("the first is good");
    // Either may have been connected first.
    let states =
        || -> Vec<PathState> { controller.paths().iter().map(|path| path.state).collect() };
    until("one is refused", || states().contains(&PathState::Lost));
    let refused = controller.paths().into_iter().find(|path| path.state == PathState::Lost);
    let why = refused.and_then(|path| path.reason).expect("a reason");
    assert!(why.contains("NGUID"), "{why}");
    assert!(states().contains(&PathState::Optimized));
}
