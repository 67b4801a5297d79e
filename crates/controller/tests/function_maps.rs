//! Maps of storage functions over real connections: which associations see them, and the host's
//! operations on them.

mod common;

use bpfof_controller::{Server, TargetConfig};
use bpfof_host::{
    Controller, Error, FunctionId, FunctionMap, Lane, MapAddress, MapChange, Options, PushdownCall,
    Status,
};
use common::{call, compile_text, config, load, memory, options, run, start, until, url};

const NAMESPACE_BYTES: u64 = 4 << 20;
const EXAMPLE: &str = include_str!("../../../docs/examples/hot_blocks.bpf.c");

/// A host with a name and an identifier made from this number.
fn host(server: &Server, number: u8) -> (Controller, Lane) {
    let controller = Controller::connect(
        &url(server),
        Options { connector: options(server).connector, ..Options::for_host([number; 16]) },
    );
    let controller = controller.expect("it connects");
    let lane = controller.open_lane().expect("a lane");
    (controller, lane)
}

/// Reads a block through a function.
fn read(lane: &mut Lane, function: FunctionId, block: u64) -> Vec<u8> {
    let call = PushdownCall { first_offset_bytes: 512 * block, ..call(function, &[]) };
    run(lane, &call).expect("a chain").0
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
}

fn entries(controller: &mut Controller, map: &FunctionMap) -> Vec<(u64, u64)> {
    let entries = controller.map_entries(map).expect("entries");
    let mut entries: Vec<(u64, u64)> =
        entries.iter().map(|(key, value)| (number(key), number(value))).collect();
    entries.sort_unstable();
    entries
}

fn status(error: Error) -> Status {
    match error {
        Error::Command { source, .. } => source.status,
        other => panic!("{other}"),
    }
}

#[test]
fn each_connection_has_its_own_maps() {
    let server = start(vec![memory(NAMESPACE_BYTES, 512)]);
    let object = compile_text(EXAMPLE);
    let (mut first, mut first_lane) = host(&server, 1);
    let (mut other, mut other_lane) = host(&server, 2);
    let ids = [&mut first, &mut other].map(|host| load(host, &object, "read"));
    for block in [3, 3, 5] {
        read(&mut first_lane, ids[0], block);
    }
    read(&mut other_lane, ids[1], 3);
    let map = first.map("hot_blocks").expect("it is there");
    assert_eq!((map.key_bytes, map.value_bytes, map.max_entries), (8, 8, 4096));
    assert_eq!((map.entries, map.is_array, map.address.map >> 31), (2, false, 0));
    assert_eq!(entries(&mut first, &map), [(3 * 512, 2), (5 * 512, 1)]);
    let others = other.map("hot_blocks").expect("it is there");
    assert_eq!(entries(&mut other, &others), [(3 * 512, 1)]);
    assert_ne!(map.address.controller, others.address.controller);
    // Another host's map can be reached neither by its number nor in the list of the host's maps.
    let foreign = FunctionMap { address: others.address, ..map.clone() };
    let key = 0u64.to_le_bytes();
    let refused = [
        first.map_get(&foreign, &key).map(|_| ()),
        first.map_set(&foreign, &key, &key),
        first.map_delete(&foreign, &key).map(|_| ()),
        first.map_entries(&foreign).map(|_| ()),
    ];
    for refused in refused {
        assert_eq!(status(refused.expect_err("of another host")), Status::UNKNOWN_MAP);
    }
    let seen = first.host_maps().expect("maps");
    assert!(seen.iter().all(|map| map.address.controller != others.address.controller));
    // A host is identified by its name and its identifier.
    let names = [[1; 16], [9; 16]].map(|id| Options::for_host(id).host_nqn);
    for (host_id, host_nqn) in [([1; 16], &names[1]), ([9; 16], &names[0])] {
        let options = Options { host_id, host_nqn: host_nqn.clone(), ..Options::default() };
        let mut other = Controller::connect(&url(&server), options).expect("it connects");
        assert_eq!(other.host_maps().expect("none"), []);
        let refused = other.map_get(&map, &key).expect_err("of another host");
        assert_eq!(status(refused), Status::UNKNOWN_MAP);
    }
    // The same host in another association, such as the command line.
    let (mut tool, _) = host(&server, 1);
    assert_eq!(tool.maps().expect("none"), []);
    let seen = tool.host_maps().expect("maps");
    let mut seen_names: Vec<&str> = seen.iter().map(|map| map.name.as_str()).collect();
    seen_names.sort_unstable();
    assert_eq!(seen_names, ["hot_blocks", "totals"]);
    let hot = seen.iter().find(|map| map.name == "hot_blocks").expect("it is there");
    assert_eq!(hot.address, map.address);
    tool.map_set(hot, &key, &7u64.to_le_bytes()).expect("there is room");
    assert_eq!(entries(&mut first, &map), [(0, 7), (3 * 512, 2), (5 * 512, 1)]);
    drop((first, first_lane));
    until("the maps end with their association", || tool.host_maps().expect("maps").is_empty());
    assert_eq!(status(tool.map_entries(&map).expect_err("gone")), Status::UNKNOWN_MAP);
}

/// The identifier 0 identifies no host: associations with it have no access to each other's maps.
#[test]
fn hosts_without_an_identifier_share_no_maps() {
    let server = start(vec![memory(NAMESPACE_BYTES, 512)]);
    let connect = || {
        let options = Options { host_id: [0; 16], ..Options::for_host([1; 16]) };
        Controller::connect(&url(&server), options).expect("it connects")
    };
    let (mut first, mut second) = (connect(), connect());
    load(&mut first, &compile_text(EXAMPLE), "read");
    let map = first.map("hot_blocks").expect("it is there");
    assert_eq!(second.host_maps().expect("none"), []);
    let refused = second.map_get(&map, &0u64.to_le_bytes()).expect_err("of another one");
    assert_eq!(status(refused), Status::UNKNOWN_MAP);
}

#[test]
fn functions_of_a_connection_share_maps_by_name() {
    let server = start(vec![memory(NAMESPACE_BYTES, 512)]);
    let object = compile_text(EXAMPLE);
    let (mut host, mut lane) = host(&server, 1);
    let [reads, read_block] = ["reads", "read"].map(|name| load(&mut host, &object, name));
    for _ in 0..3 {
        assert_eq!(read(&mut lane, read_block, 9).len(), 64);
    }
    assert_eq!(number(&read(&mut lane, reads, 9)), 3);
    assert_eq!(number(&read(&mut lane, reads, 8)), 0);
    // Functions read values that the host has written.
    let map = host.map("hot_blocks").expect("it is there");
    host.map_set(&map, &(8u64 * 512).to_le_bytes(), &41u64.to_le_bytes()).expect("room");
    read(&mut lane, read_block, 8);
    assert_eq!(number(&read(&mut lane, reads, 8)), 42);
    // A different map of the same name is refused with an explanation.
    let other = EXAMPLE.replace("__uint(max_entries, 4096)", "__uint(max_entries, 4095)");
    let refused = host.load_function(&compile_text(&other), 0).expect_err("another map");
    let message = refused.to_string();
    assert!(message.contains("hash \"hot_blocks\" of 4096 entries"), "{message}");
    assert!(message.contains("this one as hash \"hot_blocks\" of 4095 entries"), "{message}");
    // The map stays as long as a function has it, and is removed with the last one.
    host.unload_function(read_block).expect("unloaded");
    assert_eq!(number(&read(&mut lane, reads, 9)), 3);
    assert!(host.map("totals").is_err(), "only the other function had it");
    host.unload_function(reads).expect("unloaded");
    let gone = host.map("hot_blocks").expect_err("gone").to_string();
    assert_eq!(gone, "there is no function map named \"hot_blocks\"; existing maps: none");
    let again = load(&mut host, &object, "reads");
    assert_eq!(number(&read(&mut lane, again, 9)), 0);
}

/// After a tail call each function finds its own maps.
#[test]
fn a_tail_call_changes_the_maps() {
    let server = start(vec![memory(NAMESPACE_BYTES, 512)]);
    let (mut host, mut lane) = host(&server, 1);
    let map = |name| {
        format!(
            "struct {{ __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 4);\n\
             __type(key, __u64); __type(value, __u64); }} {name} SEC(\".maps\");\n"
        )
    };
    let source = format!(
        "#include <bpfof.h>\n{}{}\
         SEC(\"bpfof/first\") int first(struct bpfof_ctx *ctx)\n\
         {{ __u64 key = 1; bpfof_map_add(&here, &key, 0, 1);\n\
            return bpfof_tail_call(*(__u64 *)ctx->scratch); }}\n\
         SEC(\"bpfof/second\") int second(struct bpfof_ctx *ctx)\n\
         {{ __u64 key = 1; bpfof_map_add(&there, &key, 0, 10); ctx->done = 1; return 0; }}\n",
        map("here"),
        map("there")
    );
    let object = compile_text(&source);
    let [first, second] = ["first", "second"].map(|name| load(&mut host, &object, name));
    for _ in 0..3 {
        run(&mut lane, &call(first, &u64::from(second.0).to_le_bytes())).expect("a chain");
    }
    for (name, count) in [("here", 3), ("there", 30)] {
        let map = host.map(name).expect("it is there");
        assert_eq!(entries(&mut host, &map), [(1, count)], "{name}");
    }
}

/// Chains of several queues count in the same map, on several reactors.
#[test]
fn queues_of_an_association_share_its_maps() {
    const LANES: u64 = 4;
    const CHAINS: u64 = 500;
    let config = TargetConfig { cores: vec![0, 0], ..config(vec![memory(NAMESPACE_BYTES, 512)]) };
    let server = Server::start(&config).expect("the target starts");
    let (mut host, _lane) = host(&server, 1);
    let function = load(&mut host, &compile_text(EXAMPLE), "read");
    std::thread::scope(|scope| {
        for number in 0..LANES {
            let mut lane = host.open_lane().expect("a lane");
            scope.spawn(move || {
                for index in 0..CHAINS {
                    // Some blocks are counted by all lanes, others by one.
                    let block = if index % 2 == 0 { index % 10 } else { 100 + number };
                    read(&mut lane, function, block);
                }
            });
        }
    });
    let map = host.map("hot_blocks").expect("it is there");
    let shared = (0..5).map(|block| (2 * block * 512, LANES * CHAINS / 10));
    let own = (0..LANES).map(|number| ((100 + number) * 512, CHAINS / 2));
    assert_eq!(entries(&mut host, &map), shared.chain(own).collect::<Vec<_>>());
    let totals = host.map("totals").expect("it is there");
    let all = host.map_get(&totals, &0u32.to_le_bytes()).expect("read").expect("an array");
    assert_eq!(number(&all), LANES * CHAINS);
}

/// Each association has its own instances of a kept function's maps.
#[test]
fn installed_functions_have_separate_maps_for_each_association() {
    let server = start(vec![memory(NAMESPACE_BYTES, 512)]);
    let object = compile_text(EXAMPLE);
    let (mut first, mut first_lane) = host(&server, 1);
    let kept = first.install_function(&object, 0).expect("loaded");
    let reads = first.install_function(&object, 1).expect("loaded");
    let (mut second, mut second_lane) = host(&server, 1);
    for (lane, times) in [(&mut first_lane, 2), (&mut second_lane, 3)] {
        for _ in 0..times {
            read(lane, kept, 1);
        }
        assert_eq!(number(&read(lane, reads, 1)), times);
    }
    let all = first.host_maps().expect("maps");
    let hot: Vec<&FunctionMap> = all.iter().filter(|map| map.name == "hot_blocks").collect();
    assert_eq!(hot.len(), 2);
    assert!(hot.iter().all(|map| map.address.map >> 31 == 1));
    assert_eq!(entries(&mut second, hot[0]), [(512, 2)]);
    assert_eq!(entries(&mut second, hot[1]), [(512, 3)]);
    // An association may have its own map of this name as well, and finds that first.
    let own = load(&mut first, &object, "read");
    read(&mut first_lane, own, 7);
    let map = first.map("hot_blocks").expect("it is there");
    assert_eq!(entries(&mut first, &map), [(7 * 512, 1)]);
    // Another kept function must declare the map in the same way.
    let other = EXAMPLE.replace("__type(value, __u64);\n} hot", "__type(value, __u32);\n} hot");
    let refused = second.install_function(&compile_text(&other), 1).expect_err("another map");
    assert!(refused.to_string().contains("values of 4"), "{refused}");
    for function in [kept, reads] {
        second.unload_function(function).expect("unloaded");
    }
    let left = second.host_maps().expect("maps");
    assert!(left.iter().all(|map| map.address.map >> 31 == 0), "{left:?}");
}

/// Maps of another host's kept function take little of a host's memory, whatever the number of its associations.
#[test]
fn maps_of_others_take_a_part_of_a_hosts_memory() {
    // Half of a 64th is 2 MiB.
    let memory_max_bytes = Some(256 << 20);
    let server = Server::start(&TargetConfig {
        memory_max_bytes,
        ..config(vec![memory(NAMESPACE_BYTES, 512)])
    });
    let server = server.expect("the target starts");
    let source = "#include <bpfof.h>\n\
         struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 75000);\n\
                  __type(key, __u32); __type(value, __u64); } big SEC(\".maps\");\n\
         SEC(\"bpfof/f\") int f(struct bpfof_ctx *c)\n\
         { __u32 key = 0; __u64 value;\n\
           c->done = 1; return bpfof_map_get(&big, &key, &value) != 0; }\n";
    let (mut owner, _lane) = host(&server, 1);
    let kept = owner.install_function(&compile_text(source), 0).expect("loaded");
    let runs =
        |(_, lane): &mut (Controller, Lane), function| run(lane, &call(function, &[])).is_ok();
    let works = |host: &mut (Controller, Lane)| runs(host, kept);
    let mut others: Vec<_> = (0..5).map(|_| host(&server, 2)).collect();
    let with_maps: Vec<bool> = others.iter_mut().map(works).collect();
    assert_eq!(with_maps, [true, true, true, false, false]);
    others.truncate(2);
    until("the memory of the third is free", || works(&mut host(&server, 2)));
    let own: Vec<bool> = (0..5).map(|_| host(&server, 1)).map(|mut of| works(&mut of)).collect();
    assert_eq!(own, [true; 5], "its own take as much as it has");
    // The maps of the next version take the place of those of this one, which connections may still keep.
    owner.unload_function(kept).expect("unloaded");
    let next = owner.install_function(&compile_text(source), 0).expect("loaded");
    assert!(others.iter_mut().all(|host| runs(host, next)));
}

#[test]
fn the_host_reads_and_changes_entries() {
    let server = start(vec![memory(NAMESPACE_BYTES, 512)]);
    let (mut host, _lane) = host(&server, 1);
    let source = "#include <bpfof.h>\n\
         struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 3000);\n\
                  __type(key, char[37]); __type(value, char[1000]); } large SEC(\".maps\");\n\
         struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 100000);\n\
                  __type(key, __u32); __type(value, __u16); } many SEC(\".maps\");\n\
         SEC(\"bpfof/f\") int f(struct bpfof_ctx *c)\n\
         { bpfof_map_get(&many, c->scratch, c->scratch);\n\
           return bpfof_map_delete(&large, c->scratch); }\n";
    host.load_function(&compile_text(source), 0).expect("loaded");
    let large = host.map("large").expect("it is there");
    let key = |index: u32| {
        let mut key = vec![0xa5; 37];
        key[..4].copy_from_slice(&index.to_le_bytes());
        key
    };
    for index in 0..3000 {
        host.map_set(&large, &key(index), &[index as u8; 1000]).expect("there is room");
    }
    let full = host.map_set(&large, &key(3000), &[0; 1000]).expect_err("it is full");
    assert_eq!(status(full), Status::MAP_FULL);
    for index in (0..3000).step_by(3) {
        assert!(host.map_delete(&large, &key(index)).expect("an answer"));
    }
    assert!(!host.map_delete(&large, &key(0)).expect("an answer"));
    assert_eq!(host.map_get(&large, &key(0)).expect("an answer"), None);
    assert_eq!(host.map_get(&large, &key(1)).expect("an answer"), Some(vec![1; 1000]));
    let found = host.map_entries(&large).expect("two megabytes");
    let mut found: Vec<_> =
        found.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    found.sort_unstable();
    let mut expected: Vec<_> = (0..3000u32)
        .filter(|index| index % 3 != 0)
        .map(|index| (key(index), vec![index as u8; 1000]))
        .collect();
    expected.sort_unstable();
    assert!(found == expected);
    let change = |host: &mut Controller, change, index| {
        host.map_change(&large, change, &key(index), &[9; 1000]).map_err(status)
    };
    assert_eq!(change(&mut host, MapChange::SetNew, 1), Err(Status::ENTRY_EXISTS));
    assert_eq!(change(&mut host, MapChange::SetExisting, 0), Ok(false));
    assert_eq!(change(&mut host, MapChange::SetExisting, 1), Ok(true));
    assert_eq!(change(&mut host, MapChange::SetNew, 0), Ok(true));
    assert_eq!(host.map_get(&large, &key(1)).expect("an answer"), Some(vec![9; 1000]));

    let many = host.map("many").expect("it is there");
    assert_eq!((many.entries, many.is_array), (100_000, true));
    host.map_set(&many, &99_999u32.to_le_bytes(), &[1, 2]).expect("an entry");
    let found = host.map_entries(&many).expect("all of them");
    assert_eq!(found.len(), 100_000);
    assert_eq!(found.get(99_999), Some((&99_999u32.to_le_bytes()[..], &[1, 2][..])));
    assert_eq!(found.get(100_000), None);
    let behind = host.map_set(&many, &100_000u32.to_le_bytes(), &[1, 2]);
    assert_eq!(status(behind.expect_err("behind the end")), Status::MAP_FULL);
    let delete = host.map_delete(&many, &[0; 4]).expect_err("an array");
    assert!(status(delete).same_code(Status::INVALID_FIELD));
    let short = host.map_set(&many, &[0; 4], &[1]).expect_err("one byte").to_string();
    assert_eq!(short, "map many: a value has 2 bytes, not 1");
    // The target checks it itself.
    let lie = FunctionMap { key_bytes: 3, ..many.clone() };
    let refused = host.map_get(&lie, &[0; 3]).expect_err("three bytes");
    assert!(status(refused).same_code(Status::INVALID_FIELD));
    let unknown = MapAddress { map: 77, ..many.address };
    let refused = host.map_entries(&FunctionMap { address: unknown, ..many });
    assert_eq!(status(refused.expect_err("no such map")), Status::UNKNOWN_MAP);
}

/// Pushdown Identify reports the limit on the memory of an association's maps.
#[test]
fn an_association_has_a_limit() {
    let server = start(vec![memory(NAMESPACE_BYTES, 512)]);
    let (mut host, _lane) = host(&server, 1);
    assert_eq!(host.pushdown_limits().expect("limits").map_bytes, 32 << 20);
    let source = |name: &str| {
        let map = format!(
            "struct {{ __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 4096);\n\
             __type(key, __u32); __type(value, char[4096]); }} {name} SEC(\".maps\");"
        );
        format!(
            "#include <bpfof.h>\n{map}\nSEC(\"bpfof/f\") int f(struct bpfof_ctx *ctx)\n\
             {{ return bpfof_map_get(&{name}, ctx->scratch, ctx->scratch); }}\n"
        )
    };
    let [a, b, c] = ["a", "b", "c"].map(|name| compile_text(&source(name)));
    let first = host.load_function(&a, 0).expect("16 MiB");
    host.load_function(&b, 0).expect("32 MiB");
    let refused = host.load_function(&c, 0).expect_err("48 MiB").to_string();
    assert!(refused.contains("there would be 3 maps of 50331648 bytes"), "{refused}");
    host.unload_function(first).expect("unloaded");
    host.load_function(&c, 0).expect("32 MiB again");
}
