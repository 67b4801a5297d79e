//! Functions and their maps over two paths to a real target, of which one is cut and comes back.

#[path = "../../controller/tests/common/mod.rs"]
mod common;
#[allow(dead_code)] // Only a part is used here.
#[path = "../../controller/tests/failover/relay.rs"]
mod relay;

use bpfof_controller::{AnaState, HostLimits, ListenConfig, Listeners, Server, TargetConfig};
use bpfof_host::{Controller, Error, FunctionId, Lane, Options, PathState, Status};
use common::{NQN, call, compile_text, config, load, memory, run, until};
use relay::Relay;
use std::time::{Duration, Instant};

/// A function that removes an entry from a map of work. The key is its argument.
const QUEUE: &str = r#"
#include <bpfof.h>

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__type(key, __u64);
	__type(value, __u64);
} work SEC(".maps");

SEC("bpfof/take")
int take(struct bpfof_ctx *ctx)
{
	__u64 key = *(__u64 *)ctx->scratch;

	bpfof_map_get(&work, &key, ctx->scratch);
	bpfof_map_delete(&work, &key);
	ctx->out_len = 8;
	ctx->done = 1;
	return 0;
}
"#;

struct Two {
    server: Server,
    relays: [Relay; 2],
    controller: Controller,
}

impl Two {
    fn new(hosts: HostLimits) -> Two {
        Two::with(hosts, Options::default())
    }

    fn with(hosts: HostLimits, options: Options) -> Two {
        let listener = || "127.0.0.1:0".parse::<ListenConfig>().expect("an address");
        let listen = Listeners(vec![listener(), listener()]);
        let namespaces = vec![memory(1 << 20, 512)];
        let server = Server::start(&TargetConfig { listen, hosts, ..config(namespaces) });
        let server = server.expect("it starts");
        let addresses: [_; 2] = server.addresses()[..].try_into().expect("two");
        let relays = addresses.map(Relay::start);
        let url = format!("nvme-tcp://{},{}/{NQN}", relays[0].address, relays[1].address);
        let controller = Controller::connect(&url.parse().expect("an address"), options);
        let two = Two { server, relays, controller: controller.expect("it connects") };
        (0..2).for_each(|path| two.is_in(path, PathState::Optimized));
        two
    }

    fn is_in(&self, path: usize, state: PathState) {
        until(&format!("path {path} is {state}"), || self.controller.paths()[path].state == state);
    }

    fn cut(&self, path: usize) {
        self.relays[path].cut();
        self.is_in(path, PathState::Lost);
    }

    fn open(&self, path: usize) {
        self.relays[path].open();
        self.is_in(path, PathState::Optimized);
    }
}

/// Removes a key's value from the map and returns it; 0 if there is none.
fn take(lane: &mut Lane, function: FunctionId, key: u64) -> u64 {
    let (answer, _) = run(lane, &call(function, &key.to_le_bytes())).expect("it runs");
    let value = u64::from_le_bytes(answer.try_into().expect("a number"));
    if value == key { 0 } else { value }
}

#[test]
fn a_path_comes_back_after_many_functions() {
    let mut two = Two::new(HostLimits::default());
    let object = compile_text(QUEUE);
    let first = load(&mut two.controller, &object, "take");
    for _ in 0..300 {
        let id = two.controller.load_function(bpfkv::GET_OBJECT, 0).expect("loaded");
        two.controller.unload_function(id).expect("unloaded");
    }
    let last = load(&mut two.controller, &object, "take");
    assert_eq!((first.0, last.0), (1, 302));
    let map = two.controller.map("work").expect("it is there");
    let mut lane = two.controller.open_lane().expect("a lane");
    for path in [0, 1, 0] {
        two.cut(path);
        two.open(path);
        for (key, function) in [(1_u64, first), (2, last)] {
            let entry = (key.to_le_bytes(), (key + 70).to_le_bytes());
            two.controller.map_set(&map, &entry.0, &entry.1).expect("set");
            assert_eq!(take(&mut lane, function, key), key + 70);
        }
    }
    assert_eq!(load(&mut two.controller, &object, "take").0, 303);
    (0..2).for_each(|path| two.is_in(path, PathState::Optimized));
}

#[test]
fn no_id_is_given_again() {
    let mut two = Two::new(HostLimits::default());
    for _ in 0..2 {
        let id = two.controller.load_function(bpfkv::GET_OBJECT, 0).expect("loaded");
        two.controller.unload_function(id).expect("unloaded");
    }
    two.cut(0);
    two.open(0);
    assert_eq!(two.controller.load_function(bpfkv::GET_OBJECT, 0).expect("loaded").0, 3);
    (0..2).for_each(|path| two.is_in(path, PathState::Optimized));
    two.controller.unload_function(FunctionId(3)).expect("unloaded");
    (0..2).for_each(|path| two.cut(path));
    (0..2).for_each(|path| two.open(path));
    assert_eq!(two.controller.load_function(bpfkv::GET_OBJECT, 0).expect("loaded").0, 4);
    (0..2).for_each(|path| two.is_in(path, PathState::Optimized));
}

/// Two paths by which calls do not wait for long, and two functions.
fn with_two_functions() -> (Two, [FunctionId; 2]) {
    let connect_timeout = Duration::from_millis(500);
    let options = Options { connect_timeout, ..Options::default() };
    let mut two = Two::with(HostLimits::default(), options);
    let object = compile_text(QUEUE);
    let functions = [0; 2].map(|_| load(&mut two.controller, &object, "take"));
    (two, functions)
}

/// A function that is unloaded without a path is not loaded again when the paths come back.
#[test]
fn functions_are_unloaded_without_a_path() {
    let (mut two, [gone, stays]) = with_two_functions();
    (0..2).for_each(|path| two.cut(path));
    two.controller.unload_function(gone).expect("it ends with its associations");
    (0..2).for_each(|path| two.open(path));
    let mut lane = two.controller.open_lane().expect("a lane");
    let error = run(&mut lane, &call(gone, &[1; 8])).expect_err("it is unloaded");
    assert!(error.status.same_code(Status::UNKNOWN_FUNCTION), "{error}");
    assert_eq!(take(&mut lane, stays, 1), 0);
}

/// So is one whose paths are connected, but lead to no namespace.
#[test]
fn functions_are_unloaded_by_paths_that_are_not_accessible() {
    let (mut two, [gone, stays]) = with_two_functions();
    let mut lane = two.controller.open_lane().expect("a lane");
    let paths = two.server.paths();
    let set = |state| paths.set_state(&[], None, state).expect("set");
    set(AnaState::Inaccessible);
    (0..2).for_each(|path| two.is_in(path, PathState::Inaccessible));
    two.controller.unload_function(gone).expect("it is unloaded at the target");
    set(AnaState::Optimized);
    (0..2).for_each(|path| two.is_in(path, PathState::Optimized));
    let error = run(&mut lane, &call(gone, &[1; 8])).expect_err("it is unloaded");
    assert!(error.status.same_code(Status::UNKNOWN_FUNCTION), "{error}");
    assert_eq!(take(&mut lane, stays, 1), 0);
}

#[test]
fn a_path_comes_back_while_functions_are_loaded() {
    let mut two = Two::new(HostLimits::default());
    let load_one = |two: &mut Two| {
        let id = two.controller.load_function(bpfkv::GET_OBJECT, 0).expect("loaded");
        two.controller.unload_function(id).expect("unloaded");
    };
    (0..100).for_each(|_| load_one(&mut two));
    two.cut(1);
    two.relays[1].open();
    let begun = Instant::now();
    while two.controller.paths()[1].state != PathState::Optimized {
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", two.controller.paths());
        load_one(&mut two);
    }
}

#[test]
fn a_map_emptied_by_functions_excludes_no_path() {
    let mut two = Two::new(HostLimits::default());
    let function = load(&mut two.controller, &compile_text(QUEUE), "take");
    let map = two.controller.map("work").expect("it is there");
    let mut lane = two.controller.open_lane().expect("a lane");
    // Three entries always stay, and entries are removed in an irregular order.
    let mut open = Vec::new();
    for key in 100..130_u64 {
        two.controller.map_set(&map, &key.to_le_bytes(), &(key + 7).to_le_bytes()).expect("set");
        open.push(key);
        if open.len() > 3 {
            let key = open.remove(key as usize * 5 % open.len());
            assert_eq!(take(&mut lane, function, key), key + 7);
            assert_eq!(take(&mut lane, function, key), 0, "it is taken");
        }
        assert!(two.controller.paths().iter().all(|path| path.state == PathState::Optimized));
    }
    two.cut(0);
    // On the other path, and on the first again.
    let key = open.remove(0);
    assert_eq!(take(&mut lane, function, key), key + 7);
    two.open(0);
    for key in open {
        assert_eq!(take(&mut lane, function, key), key + 7);
    }
}

#[test]
fn an_entry_that_is_deleted_is_deleted_on_each_path() {
    let mut two = Two::new(HostLimits::default());
    let function = load(&mut two.controller, &compile_text(QUEUE), "take");
    let map = two.controller.map("work").expect("it is there");
    let mut lane = two.controller.open_lane().expect("a lane");
    let key = 100_u64.to_le_bytes();
    two.controller.map_set(&map, &key, &[1; 8]).expect("set");
    assert_ne!(take(&mut lane, function, 100), 0);
    assert!(!two.controller.map_delete(&map, &key).expect("asked"), "the function has taken it");
    two.cut(0);
    assert_eq!(two.controller.map_get(&map, &key).expect("asked"), None);
}

/// Two admin queues and three lanes.
#[test]
fn a_path_to_a_full_target_keeps_its_lanes() {
    let two = Two::new(HostLimits { connections_per_host: 5, ..HostLimits::default() });
    let mut lanes = [(); 3].map(|()| two.controller.open_lane().expect("a lane"));
    let error = two.controller.open_lane().map(drop).expect_err("it is full");
    assert!(matches!(error, Error::Command { command: "Connect", .. }), "{error}");
    let mut write = |byte| {
        for lane in &mut lanes {
            lane.write(1, 0, &[byte; 512]).expect("written");
        }
    };
    let begun = Instant::now();
    write(1);
    two.cut(0);
    write(2);
    two.open(0);
    for byte in 0..100 {
        write(byte);
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "a write has waited for a lost association");
    (0..2).for_each(|path| two.is_in(path, PathState::Optimized));
}

#[test]
fn own_maps_and_maps_of_installed_functions_are_told_apart() {
    let mut two = Two::new(HostLimits::default());
    two.controller.install_function(&compile_text(QUEUE), 0).expect("installed");
    let installed = two.controller.map("work").expect("it is there");
    let text = QUEUE.replace("__type(value, __u64)", "__type(value, __u32)");
    let function = load(&mut two.controller, &compile_text(&text), "take");
    let own = two.controller.map("work").expect("it is there");
    assert_eq!((installed.value_bytes, own.value_bytes), (8, 4));
    let key = 7_u64.to_le_bytes();
    two.controller.map_set(&installed, &key, &[1; 8]).expect("set");
    two.controller.map_set(&own, &key, &[2; 4]).expect("set");
    let check = |two: &mut Two| {
        for (map, value) in [(&installed, vec![1; 8]), (&own, vec![2; 4])] {
            let found = two.controller.map_get(map, &key).expect("asked");
            assert_eq!(found.as_ref(), Some(&value));
            let entries = two.controller.map_entries(map).expect("asked");
            assert_eq!((entries.len(), entries.get(0)), (1, Some((&key[..], &value[..]))));
        }
    };
    check(&mut two);
    two.cut(0);
    check(&mut two);
    two.open(0);
    check(&mut two);
    two.controller.unload_function(function).expect("unloaded");
    let gone = two.controller.map_get(&own, &key).expect_err("it ends with its function");
    assert!(matches!(gone, Error::NoSuchMap { .. }), "{gone}");
    assert!(two.controller.map_delete(&installed, &key).expect("asked"), "it was there");
}

/// The program uses the map of an installed function without requiring the function.
#[test]
fn entries_of_a_map_that_is_gone_exclude_no_path() {
    let mut two = Two::new(HostLimits::default());
    let url = format!("nvme-tcp://{}/{NQN}", two.relays[1].address);
    let other = Controller::connect(&url.parse().expect("an address"), Options::default());
    let mut other = other.expect("it connects");
    let function = other.install_function(&compile_text(QUEUE), 0).expect("installed");
    until("the map is there", || two.controller.map("work").is_ok());
    let map = two.controller.map("work").expect("it is there");
    two.controller.map_set(&map, &[1; 8], &[2; 8]).expect("set");
    other.unload_function(function).expect("unloaded");
    two.cut(0);
    two.open(0);
    let gone = two.controller.map_get(&map, &[1; 8]).expect_err("it ends with its function");
    assert!(matches!(gone, Error::NoSuchMap { .. }), "{gone}");
}
