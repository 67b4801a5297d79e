//! Functions that are loaded and unloaded: no memory of them is left, and their machine code is
//! bounded and never writable. The whole process is measured, so each test runs alone.
//!
//! `LOADS=100000 cargo test -p bpfof-controller --test loads` is the long form (`make loads`).

mod common;

use bpfof_controller::Server;
use bpfof_host::{Controller, Error, Lane};
use common::{NAMESPACE_BYTES, call, compile, connect, load, memory, run, start};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Loads of the short form.
const LOADS: u64 = 2000;
/// Loads after which allocator, threads and buffers have their final size.
const WARM_UP_LOADS: u64 = 200;
/// Memory that may come and go with threads and the allocator: less than one page of each load of
/// the short form.
const SLACK_BYTES: u64 = 4 << 20;
/// Mappings that may come and go with threads and the allocator.
const SLACK_MAPPINGS: usize = 16;

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve() -> (Server, Controller, Lane) {
    let server = start(vec![memory(NAMESPACE_BYTES, 512)]);
    let (controller, lane) = connect(&server, false);
    (server, controller, lane)
}

/// Resources of this process.
#[derive(Debug)]
struct Footprint {
    resident_bytes: u64,
    descriptors: usize,
    mappings: usize,
    /// Memory of the file that contains the machine code, in whole pages.
    code_bytes: u64,
    /// Mappings that are writable and executable.
    writable_code: Vec<String>,
}

impl Footprint {
    fn now() -> Footprint {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
        let pages: u64 = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a number");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
        let rights = |line: &&str| line.split_whitespace().nth(1).expect("rights").to_owned();
        let is_writable = |line: &&str| rights(line).contains('x') && rights(line).contains('w');
        let descriptors = std::fs::read_dir("/proc/self/fd").expect("Linux");
        let descriptors: Vec<_> =
            descriptors.map(|entry| entry.expect("an entry").path()).collect();
        let is_code = |path: &&PathBuf| {
            let name = std::fs::read_link(path).unwrap_or_default();
            name.to_string_lossy().contains("bpf-of code")
        };
        let blocks = |path: &PathBuf| path.metadata().expect("it is open").blocks();
        Footprint {
            resident_bytes: pages * 4096,
            code_bytes: descriptors.iter().filter(is_code).map(blocks).sum::<u64>() * 512,
            descriptors: descriptors.len(),
            mappings: maps.lines().count(),
            writable_code: maps.lines().filter(is_writable).map(str::to_owned).collect(),
        }
    }
}

/// Loads a function, runs it once, and unloads it.
fn load_run_unload(controller: &mut Controller, lane: &mut Lane, object: &[u8]) {
    let function = load(controller, object, "small");
    assert_eq!(run(lane, &call(function, &[])).expect("it answers").0, [1]);
    controller.unload_function(function).expect("unloaded");
}

/// Memory, mappings, descriptors, and machine code.
#[test]
fn loads_and_unloads_leak_nothing() {
    let _alone = alone();
    let given = std::env::var("LOADS").ok();
    let loads = given.map_or(LOADS, |text| text.parse().expect("LOADS is a number"));
    let (server, mut controller, mut lane) = serve();
    let object = compile("small");
    for _ in 0..WARM_UP_LOADS {
        load_run_unload(&mut controller, &mut lane, &object);
    }
    let before = Footprint::now();
    for done in 1..=loads {
        load_run_unload(&mut controller, &mut lane, &object);
        if done % 10_000 == 0 {
            println!("{done} loads: {:?}", Footprint::now());
        }
    }
    let after = Footprint::now();
    println!("before {before:?}\nafter {loads} loads {after:?}");
    assert_eq!(after.descriptors, before.descriptors);
    assert!(after.mappings <= before.mappings + SLACK_MAPPINGS, "{after:?}, before {before:?}");
    assert!(
        after.resident_bytes <= before.resident_bytes + SLACK_BYTES,
        "{after:?}, before {before:?}"
    );
    assert!(controller.function_report().expect("a report").is_empty());
    // The lane's tables may still hold the last function, until they are refreshed.
    assert!(after.code_bytes <= 2 * 4096, "{after:?}");
    drop((controller, lane));
    server.stop();
    assert_eq!(Footprint::now().code_bytes, 0, "machine code without a target");
}

#[test]
fn machine_code_is_never_writable() {
    let _alone = alone();
    let (_server, mut controller, mut lane) = serve();
    let object = compile("small");
    let Footprint { code_bytes: before, mappings, .. } = Footprint::now();
    let mut functions = Vec::new();
    for _ in 0..20 {
        functions.push(load(&mut controller, &object, "small"));
        let now = Footprint::now();
        assert!(now.writable_code.is_empty(), "{now:?}");
        assert!(now.code_bytes > before, "{now:?}");
        assert!(now.mappings <= mappings + 2, "functions share a mapping: {now:?}");
    }
    for function in &functions {
        assert!(run(&mut lane, &call(*function, &[])).is_ok());
        controller.unload_function(*function).expect("unloaded");
    }
    let gone = run(&mut lane, &call(functions[0], &[]));
    assert!(gone.is_err(), "it runs although it was unloaded");
    assert_eq!(Footprint::now().code_bytes, before, "the lane has seen that they are gone");
}

/// 2 MiB of machine code, in few functions.
#[test]
fn an_association_has_room_for_2_mib_of_code() {
    let _alone = alone();
    let (server, mut controller, mut lane) = serve();
    let (mut other, _lane) = connect(&server, false);
    let object = compile("large");
    let mut functions = Vec::new();
    let why = loop {
        match controller.load_function(&object, 0) {
            Ok(function) => functions.push(function),
            Err(Error::NoRoomForFunction(why)) => break why,
            Err(error) => panic!("{error}"),
        }
    };
    let report = controller.function_report().expect("a report");
    let used: u32 = report.iter().map(|entry| entry.native_bytes).sum();
    assert!(used <= 2 << 20 && used + report[0].native_bytes > 2 << 20, "{used} bytes");
    let expected = format!(
        "the function has {} bytes of machine code, but the association's other functions already \
         use {used} of 2097152 bytes; unload some first",
        report[0].native_bytes
    );
    assert_eq!(why, expected);
    assert!(functions.len() < 64, "{} functions", functions.len());
    assert!(run(&mut lane, &call(functions[0], &[])).is_ok(), "the others go on");
    other.load_function(&object, 0).expect("another association has room of its own");
    controller.unload_function(functions[1]).expect("unloaded");
    controller.load_function(&object, 0).expect("there is room again");
}
