//! The command line as a user sees it: real processes, real sockets, text in and out.

mod clang;
mod command;
mod port;

use command::{BPFOF, Target, bad, bpfof, good, json};
use port::Port;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn commands_go_by_the_portal_that_works() {
    let target = Target::start(&["mem:size=8MiB"]);
    let (_, nqn) = target.url.rsplit_once('/').expect("an address");
    // At these ports nobody listens.
    let ports = [Port::reserve(), Port::reserve()];
    let (here, [dead, other]) = (&target.address, ports.each_ref().map(Port::address));
    good(&["kv", "create", "--levels", "2", "--target", &target.url]);
    for portals in [format!("{dead},{here}"), format!("{here},{dead}")] {
        let url = format!("nvme-tcp://{portals}/{nqn}");
        assert_eq!(good(&["kv", "get", "--target", &url, "42"]), "42 42\n");
        assert_eq!(good(&["kv", "get", "--plain", "--target", &url, "7"]), "7 7\n");
        let sum = json(&["kv", "aggregate", "--json", "--target", &url, "sum", "0", "10"]);
        assert_eq!(sum["result"], 45);
        good(&["kv", "create", "--levels", "2", "--target", &url]);
    }
    let url = format!("nvme-tcp://{dead},{here}/{nqn}");
    let told = bpfof(&["kv", "get", "--target", &url, "42"]).stderr;
    let told = String::from_utf8(told).expect("UTF-8");
    assert!(told.contains(&format!("path {dead} cannot be used")), "{told}");
    let url = format!("nvme-tcp://{dead},{other}/{nqn}");
    let refused = bad(&["kv", "get", "--target", &url, "42"]);
    assert!(refused.contains(&dead) && refused.contains(&other), "{refused}");
    let twice = format!("nvme-tcp://{here},{here}/{nqn}");
    assert!(bad(&["kv", "get", "--target", &twice, "42"]).contains("named twice"));
}

/// An address with two portals of one target installs a function once.
#[test]
fn functions_are_installed_once_by_two_portals_of_a_target() {
    let target = Target::start(&["mem:size=8MiB"]);
    let folder = tempfile::tempdir().expect("a folder");
    let object = folder.path().join("get.o");
    std::fs::write(&object, bpfkv::GET_OBJECT).expect("written");
    let object = object.to_str().expect("UTF-8");
    let (_, nqn) = target.url.rsplit_once('/').expect("an address");
    let port = target.address.rsplit_once(':').expect("a port").1;
    let url = format!("nvme-tcp://127.0.0.1:{port},localhost:{port}/{nqn}");
    good(&["function", "load", "--target", &url, "--name", "lookup", object]);
    let listed = json(&["function", "list", "--json", "--target", &url]);
    assert_eq!(listed.as_array().expect("a list").len(), 1, "{listed}");
    good(&["function", "unload", "--target", &url, "lookup"]);
    let listed = json(&["function", "list", "--json", "--target", &target.url]);
    assert_eq!(listed.as_array().expect("a list").len(), 0, "{listed}");
}

#[test]
fn a_store_both_ways() {
    let target = Target::start(&["mem:size=8MiB", "mem:size=8MiB,lba=4096"]);
    for (namespace, text) in [("1", true), ("2", false)] {
        let url = &format!("{}?ns={namespace}", target.url);
        let create = ["kv", "create", "--levels", "3", "--target", url, "--text"];
        good(if text { &create } else { &create[..create.len() - 1] });
        for path in [&["--cache", "0"][..], &["--plain"], &["--cache", "2"]] {
            let run = |words: &[&str]| {
                let (command, rest) = words.split_first().expect("a command");
                let head = ["kv", command, "--target", url, "--json"];
                json(&[&head[..], path, rest].concat())
            };
            let got = run(&["get", "0", "29790", "4242"]);
            let values: Vec<_> = (0..3).map(|i| got[i]["value"].as_str().expect("found")).collect();
            assert_eq!(values, ["0", "29790", "4242"]);
            let pairs = run(&["range", "100", "200", "--exclude-begin", "--include-end"]);
            let pairs = pairs.as_array().expect("a list");
            assert_eq!(pairs.len(), 100);
            assert_eq!((&pairs[0]["key"], &pairs[99]["value"]), (&101.into(), &"200".into()));
            assert_eq!(run(&["aggregate", "count", "5", "29000"])["result"], 28_995);
            let max = run(&["aggregate", "max", "5", "29000"]);
            // Eight spaces, as a number.
            assert_eq!(max["result"], if text { 0x2020_2020_2020_2020_u64 } else { 28_999 });
            assert_eq!(max["values_are_text"], text);
        }
        let missing = bad(&["kv", "get", "--target", url, "29791"]);
        assert!(missing.contains("not found"), "{missing}");
    }
}

/// A range that one chain's budgets do not suffice for takes several.
#[test]
fn an_aggregate_continues_after_an_exhausted_budget() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("target.toml");
    for budget in ["max-chain-bytes = 200_000", "max-instructions = 200_000"] {
        std::fs::write(&config, format!("{budget}\n")).expect("written");
        let mut command = Target::command();
        command.args(["--namespace", "mem:size=8MiB", "--config"]).arg(&config);
        let target = Target::run(command);
        good(&["kv", "create", "--levels", "3", "--target", &target.url]);
        let told = good(&["kv", "aggregate", "sum", "--target", &target.url, "0", "29791"]);
        assert!(told.contains(&(29_790_u64 * 29_791 / 2).to_string()), "{budget}: {told}");
    }
}

/// A part of a database is written over a whole one: keys outside the part are errors, not old answers.
#[test]
fn a_part_of_a_store_has_no_answers_of_the_former_one() {
    let target = Target::start(&["mem:size=80MiB"]);
    let url = &*target.url;
    good(&["kv", "create", "--levels", "4", "--target", url, "--text"]);
    good(&["kv", "create", "--levels", "4", "--target", url, "--subtrees", "1"]);
    let (last, next, far) = ("29790", "29791", "900000");
    for way in [&["--cache", "0"][..], &["--plain"], &["--cache", "2"]] {
        let ask = |told: fn(&[&str]) -> String, words: &[&str]| {
            told(&[&["kv", words[0], "--target", url], way, &words[1..]].concat())
        };
        assert_eq!(ask(good, &["get", last]), "29790 29790\n");
        assert_eq!(ask(good, &["range", last, next]), "29790 29790\n");
        for words in [
            &["get", next][..],
            &["get", far],
            &["range", last, "29800"],
            &["range", far, "900010"],
            &["aggregate", "sum", last, "29800"],
            &["aggregate", "count", "0", far],
        ] {
            let told = ask(bad, words);
            assert!(told.contains("corrupt") || told.contains("damaged"), "{words:?}: {told}");
        }
    }
}

/// Many keys, from the command line and from standard input, in order, as they arrive.
#[test]
fn keys_are_looked_up_as_they_come() {
    let target = Target::start(&["mem:size=8MiB"]);
    good(&["kv", "create", "--levels", "3", "--target", &target.url]);
    let start = |words: &[&str]| {
        let mut command = Command::new(BPFOF);
        command.args(["kv", "get", "--target", &target.url]).args(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("bpfof starts")
    };
    let keys: Vec<u64> = (0..3000).map(|place| place * 7919 % 29_791).collect();
    let lines = |line: &dyn Fn(&u64) -> String| keys.iter().map(line).collect::<String>();
    let input = lines(&|key| format!("{key}\n"));
    let expected = "5 5\n".to_owned() + &lines(&|key| format!("{key} {key}\n")) + "6 6\n7 7\n";
    for way in [&[][..], &["--cache", "2"], &["--plain"]] {
        let mut child = start(&[way, &["5", "-", "6", "7"]].concat());
        let mut stdin = child.stdin.take().expect("piped");
        let writer = std::thread::spawn({
            let input = input.clone();
            move || stdin.write_all(input.as_bytes()).expect("taken")
        });
        let output = child.wait_with_output().expect("it ends");
        writer.join().expect("no panic");
        assert!(output.status.success() && output.stdout == expected.as_bytes(), "{way:?}");
    }
    let full = std::fs::File::options().write(true).open("/dev/full").expect("it is there");
    let mut command = Command::new(BPFOF);
    command.args(["kv", "get", "--target", &target.url, "5"]).stdout(full);
    let output = command.output().expect("bpfof starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{told}");
    assert!(told.contains("cannot write to standard output: No space left"), "{told}");
    // Answers do not wait for the next key.
    let mut child = start(&["-", "--json"]);
    let mut stdin = child.stdin.take().expect("piped");
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    let mut text = String::new();
    for key in ["42", "29791"] {
        writeln!(stdin, "{key}").expect("taken");
        stdout.read_line(&mut text).expect("a line");
        assert!(text.contains(&format!("\"key\":{key}")), "{text}");
    }
    drop(stdin);
    stdout.read_line(&mut text).expect("the end");
    assert!(!child.wait().expect("it ends").success());
    let answers: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&answers[0]["value"], &answers[1]["value"]), (&"42".into(), &Value::Null));
    assert!(bad(&["kv", "get", "--target", &target.url, "x"]).contains("is not a key"));
    let mut child = start(&["-"]);
    child.stdin.take().expect("piped").write_all(b"1\nten\n").expect("taken");
    let output = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(
        !output.status.success() && errors.contains("standard input, line 2: \"ten\""),
        "{errors}"
    );
}

/// Chains see data that another process writes to a file whose memory is served, and that process sees data written
/// over the network. No data is lost when the target is killed.
#[test]
fn the_memory_of_a_file_is_served() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder on tmpfs");
    let place = |name: &str| folder.path().join(name).display().to_string();
    let (image, database) = (place("image"), place("database"));
    std::fs::File::create(&image).and_then(|file| file.set_len(8 << 20)).expect("room");
    let spec = format!("mem:file={image},latency_us=1");
    let mut target = Target::start(&[&spec]);
    good(&["kv", "create", "--levels", "3", "--file", &database]);
    let copied = Command::new("dd")
        .args([format!("if={database}"), format!("of={image}"), "conv=notrunc".into()])
        .output();
    assert!(copied.expect("dd starts").status.success());
    assert_eq!(good(&["kv", "get", "--target", &target.url, "4242"]), "4242 4242\n");
    good(&["kv", "create", "--levels", "2", "--target", &target.url]);
    target.signal(rustix::process::Signal::KILL);
    assert_eq!(target.wait(), None);
    let target = Target::start(&[&spec]);
    assert_eq!(good(&["kv", "get", "--target", &target.url, "42"]), "42 42\n");
    let missing = bad(&["kv", "get", "--target", &target.url, "4242"]);
    assert!(missing.contains("not found"), "{missing}");
    let second = bad(&["target", "--listen", "127.0.0.1:0", "--namespace", &spec]);
    assert!(second.contains("is in use by another target"), "{second}");
}

#[test]
fn functions_are_checked_and_tried_without_a_target() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("writes");
        path.to_str().expect("UTF-8").to_owned()
    };
    let object = write("get.o", bpfkv::GET_OBJECT);
    let check = |more: &[&str]| json(&[&["function", "check", "--json", &object], more].concat());
    let found = &check(&[])[0];
    assert!(found["worst_budget"].as_i64().is_some_and(|budget| budget < 1000), "{found}");
    assert_eq!((&found["stack_frames"], &found["frame_used_bytes"]), (&1.into(), &0.into()));
    assert_eq!((&found["helpers"], &found["run"]), (&Value::Array(vec![]), &Value::Null));
    let text = good(&["function", "check", "--disasm", &object]);
    assert!(text.contains("bpfkv_get.bpf.c:") && text.contains(": exit\n"), "{text}");

    // A leaf with key 7, whose value is at 0x1040.
    let mut leaf = [0xffu8; 512];
    leaf[..16].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    leaf[16..24].copy_from_slice(&7u64.to_le_bytes());
    leaf[264..272].copy_from_slice(&(1u64 << 63 | 0x1040).to_le_bytes());
    let (leaf, short) = (write("leaf", &leaf), write("short", &leaf[..100]));
    let run = |block: &str, key: u64| {
        let scratch = write("key", &key.to_le_bytes());
        check(&["--run", block, "--scratch", &scratch])[0]["run"].clone()
    };
    let there = run(&leaf, 7);
    assert_eq!((&there["done"], &there["next"][0]["offset"]), (&false.into(), &0x1040.into()));
    let missing = run(&leaf, 8);
    assert_eq!(
        (&missing["done"], &missing["answer_hex"]),
        (&true.into(), &"0000000000000000".into())
    );
    let fault = bad(&["function", "check", "--run", &short, &object]);
    assert!(fault.contains("bpfkv.h:") && fault.contains("past the end of the data"), "{fault}");
}

#[test]
fn functions_are_installed_for_all_hosts() {
    let target = Target::start(&["mem:size=8MiB"]);
    let folder = tempfile::tempdir().expect("a folder");
    let object = folder.path().join("get.o");
    std::fs::write(&object, bpfkv::GET_OBJECT).expect("writes");
    let object = object.to_str().expect("UTF-8");
    assert_eq!(json(&["function", "check", "--json", object])[0]["name"], "get");
    let url = target.url.as_str();
    let id = json(&["function", "load", "--target", url, "--json", object])["id"].to_string();
    let list = json(&["function", "list", "--target", url, "--json"]);
    assert_eq!((&list[0]["name"], list[0]["id"].to_string()), (&"get".into(), id.clone()));
    good(&["function", "unload", "--target", url, &id]);
    assert_eq!(json(&["function", "list", "--target", url, "--json"]), Value::Array(vec![]));
    assert!(bad(&["function", "unload", "--target", url, &id]).contains("Unknown Function"));
    let no_entry = bad(&["function", "load", "--target", url, "--entry", "put", object]);
    assert!(no_entry.contains("the object has: get"), "{no_entry}");
    std::fs::write(object, b"\x7fELF and nothing else").expect("writes");
    assert!(bad(&["function", "check", object]).contains("not a readable ELF object"));
}

/// A connection of an application on the host 0b5c1d2e-0000-4000-8000-00000000002a.
fn connect_as_host(url: &str) -> bpfof_host::Controller {
    let id = 0x0b5c_1d2e_0000_4000_8000_0000_0000_002a_u128.to_be_bytes();
    let url = url.parse().expect("an address");
    let options = bpfof_host::Options::for_host(id);
    bpfof_host::Controller::connect(&url, options).expect("it connects")
}

/// A chain of one read, which the function counts.
fn read_block(lane: &mut bpfof_host::Lane, function: bpfof_host::FunctionId, block: u64) {
    let call = bpfof_host::PushdownCall {
        nsid: 1,
        function: function.0,
        files: &[bpfof_host::FileVersion { id: 0, version: 1 }],
        first_file: 0,
        first_offset_bytes: block * 512,
        first_size_bytes: 512,
        scratch: &[],
        scratch_size_bytes: 0,
        answer_max_bytes: 64,
    };
    lane.pushdown(&call, &mut Vec::new()).expect("a chain");
}

#[test]
fn functions_have_names_and_those_of_programs_are_listed() {
    const HOST_ID: &str = "0b5c1d2e-0000-4000-8000-00000000002a";
    let target = Target::start(&["mem:size=8MiB"]);
    let url = target.url.as_str();
    let folder = tempfile::tempdir().expect("a folder");
    let object = folder.path().join("get.o");
    std::fs::write(&object, bpfkv::GET_OBJECT).expect("written");
    let object = object.to_str().expect("UTF-8");
    good(&["kv", "create", "--levels", "3", "--target", url]);
    good(&["function", "load", "--target", url, "--name", "lookup", object]);
    good(&["function", "load", "--target", url, "--name", "twice", object]);
    good(&["function", "load", "--target", url, "--name", "twice", object]);
    // Run the function by its name, from a connection that has not loaded it.
    let key = bpfkv::pushdown::get_argument(42).expect("a key");
    let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let run = ["function", "run", "--target", url, "--size", "512", "--scratch-hex", &key];
    let report = json(&[&run[..], &["--json", "--installed", "lookup"]].concat());
    assert_eq!((&report["executor"], &report["hops"]), (&"target".into(), &4.into()));
    let missing = bad(&[&run[..], &["--installed", "look"]].concat());
    assert!(
        missing.contains("named \"look\"; installed functions: lookup, twice, twice"),
        "{missing}"
    );
    let ambiguous = bad(&["function", "unload", "--target", url, "twice"]);
    assert!(ambiguous.contains("choose one by its id"), "{ambiguous}");
    let long = "x".repeat(65);
    let refused = bad(&["function", "load", "--target", url, "--name", &long, object]);
    assert!(refused.contains("65 bytes, not 1 to 64"), "{refused}");
    let refused = bad(&["function", "load", "--target", url, "--name", "a\tb", object]);
    assert!(refused.contains("not printable UTF-8"), "{refused}");
    // Functions of other programs of the same host are listed too, but not those of other hosts.
    let mut application = connect_as_host(url);
    application.load_function(bpfkv::GET_OBJECT, 0).expect("loaded");
    let list = |host: &[&str]| {
        let all = json(&[&["function", "list", "--target", url, "--json"], host].concat());
        let all = all.as_array().expect("a list").iter();
        let all = all.map(|entry| {
            (entry["name"].as_str().expect("a name").to_owned(), entry["controller"].is_u64())
        });
        all.collect::<Vec<_>>()
    };
    let installed = ["lookup", "twice", "twice"].map(|name| (name.to_owned(), false));
    assert_eq!(list(&[]), installed);
    let seen = list(&["--host-id", HOST_ID]);
    assert_eq!(seen, [&installed[..], &[("get".to_owned(), true)]].concat());
    let text = good(&["function", "list", "--target", url, "--host-id", HOST_ID]);
    assert!(text.contains(" host:") && text.contains(" all "), "{text}");
    good(&["function", "unload", "--target", url, "lookup"]);
    assert_eq!(list(&[]).len(), 2);
}

#[test]
fn maps_are_seen_and_changed_from_outside() {
    const HOST_ID: &str = "0b5c1d2e-0000-4000-8000-00000000002a";
    let target = Target::start(&["mem:size=1MiB"]);
    let folder = tempfile::tempdir().expect("a folder");
    let object = folder.path().join("hot_blocks.o");
    clang::compile("../../docs/examples/hot_blocks.bpf.c", &object);
    let checked = good(&["function", "check", object.to_str().expect("UTF-8")]);
    assert!(checked.contains("map: hash \"hot_blocks\" of 4096 entries, keys of 8"), "{checked}");

    let mut application = connect_as_host(&target.url);
    let object = std::fs::read(&object).expect("written");
    let function = application.load_function(&object, 0).expect("loaded");
    let mut lane = application.open_lane().expect("a lane");
    for block in [2, 2, 7] {
        read_block(&mut lane, function, block);
    }
    let url = target.url.as_str();
    let words = |words: &[&'static str]| -> Vec<&str> {
        let [command, rest @ ..] = words else { panic!("no command") };
        let options = ["function", "map", command, "--target", url, "--host-id", HOST_ID];
        [&options[..], rest].concat()
    };
    let map = |of: &[&'static str]| good(&words(of));
    let refused = |of: &[&'static str]| bad(&words(of));
    assert_eq!(map(&["dump", "hot_blocks"]), "1024 2\n3584 1\n");
    assert_eq!(map(&["get", "totals", "0"]), "3\n");
    map(&["set", "hot_blocks", "0x400", "100"]);
    map(&["set", "hot_blocks", "hex:0100000000000000", "-1"]);
    map(&["delete", "hot_blocks", "3584"]);
    let entries: Value =
        serde_json::from_str(&map(&["dump", "--json", "hot_blocks"])).expect("JSON");
    assert_eq!((&entries[0]["key"], &entries[0]["value"][0]), (&1.into(), &u64::MAX.into()));
    assert_eq!(
        (&entries[1]["key_hex"], &entries[1]["value"][0]),
        (&"0004000000000000".into(), &100.into())
    );
    assert_eq!(entries.as_array().expect("a list").len(), 2);
    let listed: Value = serde_json::from_str(&map(&["list", "--json"])).expect("JSON");
    let found = |name: &str| {
        let mut maps = listed.as_array().expect("a list").iter();
        maps.find(|map| map["name"] == name).expect("it is there")
    };
    assert_eq!(found("hot_blocks")["entries"], 2);
    assert_eq!(
        (&found("totals")["kind"], &found("totals")["max_entries"]),
        (&"array".into(), &2.into())
    );
    assert!(map(&["list"]).contains("hot_blocks"));
    assert!(refused(&["get", "hot_blocks", "3584"]).contains("has no entry 3584"));
    assert!(refused(&["delete", "hot_blocks", "3584"]).contains("has no entry 3584"));
    assert!(refused(&["delete", "totals", "0"]).contains("cannot be deleted; set them"));
    assert!(refused(&["get", "hot_blocks", "text:too long a key"]).contains("longer than 8"));
    assert!(refused(&["get", "cold_blocks", "1"]).contains("no connection of this host has"));
    // A second connection of the host with such a map: one must be chosen.
    let mut second = connect_as_host(&target.url);
    second.load_function(&object, 0).expect("loaded");
    let choose = refused(&["dump", "hot_blocks"]);
    assert!(choose.contains("choose one with --controller"), "{choose}");
    let chosen = listed[0]["controller"].to_string();
    let get = ["function", "map", "get", "--target", url, "--host-id", HOST_ID];
    let get = [&get[..], &["--controller", &chosen, "hot_blocks", "1024"]].concat();
    assert_eq!(good(&get), "100\n");
    // Another host sees nothing.
    let other = "0b5c1d2e-0000-4000-8000-00000000002b";
    let none = good(&["function", "map", "list", "--target", url, "--host-id", other]);
    assert_eq!(none, "no connection of this host has a function with maps\n");
}

#[test]
fn a_target_stops_on_sigterm_and_says_when_it_cannot_start() {
    let mut target = Target::start(&["mem:size=1MiB"]);
    let impossible = bad(&["target", "--listen", "127.0.0.1:99999"]);
    assert!(
        impossible.contains("up to 65535") && impossible.contains("[::1]:4420"),
        "{impossible}"
    );
    let taken = bad(&["target", "--listen", &target.address, "--namespace", "mem:size=1MiB", "-q"]);
    assert!(taken.contains("is in use") && taken.contains("--listen"), "{taken}");
    target.signal(rustix::process::Signal::TERM);
    assert_eq!(target.wait(), Some(0));
    assert!(bad(&["target"]).contains("--namespace mem:size=1GiB"));
    assert!(bad(&["target", "--namespace", "mem"]).contains("size is missing"));
    assert!(
        bad(&["target", "--listen", "127.0.0.1:0", "--namespace", "file:path=/nowhere"])
            .contains("give size=")
    );
    let nowhere =
        bad(&["target", "--listen", "127.0.0.1:0", "--namespace", "file:path=/nowhere/x,size=1M"]);
    assert!(nowhere.contains("cannot open or create /nowhere/x: No such file"), "{nowhere}");
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("target.toml");
    std::fs::write(&config, "poll = true\nnamespace = 3\n").expect("writes");
    let message = bad(&["target", "--config", config.to_str().expect("UTF-8")]);
    assert!(message.contains("line 2, column 1"), "{message}");
}

#[test]
fn a_target_takes_over_another_configuration() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("target.toml");
    let disk = folder.path().join("disk");
    let write = |namespaces: &str| {
        std::fs::write(&config, format!("namespaces = [{namespaces}]\n")).expect("writes");
    };
    write("\"mem:size=1MiB\"");
    let mut command = Target::command();
    command.arg("--config").arg(&config).stderr(Stdio::piped());
    let mut target = Target::run(command);
    let mut errors = BufReader::new(target.child.stderr.take().expect("piped"));
    let url = &format!("{}?ns=7", target.url);
    let missing = bad(&["kv", "create", "--levels", "2", "--target", url]);
    assert!(missing.contains("the namespace does not exist"), "{missing}");

    write(&format!("\"mem:size=1MiB\", \"file:path={},size=1MiB,nsid=7\"", disk.display()));
    target.signal(rustix::process::Signal::HUP);
    let deadline = Instant::now() + Duration::from_secs(10);
    while !bpfof(&["kv", "create", "--levels", "2", "--target", url]).status.success() {
        assert!(Instant::now() < deadline, "the namespace does not come");
    }
    write("\"mem:size=1MiB\", \"file:path=/nowhere,nsid=7\"");
    target.signal(rustix::process::Signal::HUP);
    let mut line = String::new();
    while !line.contains("nothing has changed") {
        line.clear();
        assert!(errors.read_line(&mut line).expect("text") > 0, "the target ends");
    }
    assert!(line.contains("refused") && line.contains("/nowhere does not"), "{line}");
    assert_eq!(good(&["kv", "get", "--target", url, "7"]), "7 7\n");
}

#[test]
fn a_killed_target_loses_no_file_and_its_hosts_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().join("disk");
    let namespace = format!("file:path={},size=8M", disk.display());
    let mut target = Target::start(&[&namespace]);
    good(&["kv", "create", "--levels", "3", "--target", &target.url]);
    target.signal(rustix::process::Signal::KILL);
    assert_eq!(target.wait(), None);
    let gone = bad(&["kv", "get", "--target", &target.url, "7"]);
    assert!(gone.contains("check that a target listens there"), "{gone}");
    let target = Target::start(&[&namespace]);
    assert_eq!(good(&["kv", "get", "--target", &target.url, "7"]), "7 7\n");
}

#[test]
fn databases_that_do_not_fit_or_are_invalid_are_refused() {
    let target = Target::start(&["mem:size=1MiB"]);
    let small = bad(&["kv", "create", "--levels", "4", "--target", &target.url]);
    assert!(small.contains("fewer --levels"), "{small}");
    let none = bad(&["kv", "get", "--target", &target.url, "1"]);
    assert!(none.contains("not a BPF-KV database"), "{none}");
    assert!(bad(&["kv", "get", "--target", "127.0.0.1:1", "1"]).contains("nvme-tcp://"));
    assert!(
        bad(&["kv", "get", "--target", "nvme-tcp://127.0.0.1:1/nqn.x", "1"]).contains("connect")
    );
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("db");
    let path = file.to_str().expect("UTF-8");
    good(&["kv", "create", "--levels", "2", "--file", path]);
    let before = std::fs::metadata(&file).expect("exists").len();
    assert!(bad(&["kv", "create", "--levels", "1", "--file", path]).contains("already exists"));
    assert_eq!(std::fs::metadata(&file).expect("exists").len(), before);
    assert!(bad(&["kv", "range", "--target", &target.url, "5", "1"]).contains("above its end"));
}

/// A reader that closes the pipe after one line causes no error and no message.
#[test]
fn output_may_be_closed_before_its_end() {
    let object = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(&object, bpfkv::RANGE_OBJECT).expect("written");
    let mut child = Command::new(BPFOF)
        .args(["function", "check", "--no-proof", "--disasm"])
        .arg(object.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn the_doctor_finds_a_taken_port() {
    let target = Target::start(&["mem:size=1MiB"]);
    let output = bpfof(&["doctor", "--listen", &target.address]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(!output.status.success());
    assert!(text.contains("PROBLEM port") && text.contains("--listen"), "{text}");
}
