//! Queries at a target, on this machine by direct reads, and over plain reads give the same
//! answers.

#[path = "../clang/mod.rs"]
mod clang;
#[path = "../disk/mod.rs"]
mod disk;
mod own;
mod places;
#[path = "../stop/mod.rs"]
mod stop;
#[path = "../wait/mod.rs"]
mod wait;
#[path = "../../../query/tests/world/mod.rs"]
mod world;

use bpfof_host::FunctionId;
use bpfof_host::files::{FileMaps, NamespaceDevice};
use bpfof_query::{
    Aggregate, Column, Field, Format, Kind, Measure, OwnStages, Plan, Predicate, Reduction,
    RunError, Runner, STAGES, Scalar, Schema, Settings, SourceFile, Stages, Value, install_stages,
    parts,
};
use disk::Disk;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use stop::StopAtEnd;
use world::{Dice, World};

/// Hosts that install stages at the same time.
const HOSTS: usize = 4;

fn at_target(disk: &Disk) -> FileMaps {
    let device = NamespaceDevice::new(disk.image()).expect("an image");
    FileMaps::new(disk.connect(), 1, device).expect("a target")
}

fn write(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).expect("room");
    file.write_all(bytes).expect("room");
    file.sync_all().expect("written");
}

#[test]
fn a_target_answers_what_this_machine_answers() {
    let Some(disk) = Disk::new("ext4", 96 << 20) else { return };
    let remote = at_target(&disk);
    let local = FileMaps::local();
    let (remote, local) = (Stages::new(&remote), Stages::new(&local));
    let path = disk.mount().join("rows");
    let config = Config { cases: 48, ..Config::with_source_file(file!()) };
    let strategy = (proptest::num::u64::ANY, 1_usize..400, 1_u64..20_000);
    let outcome = TestRunner::new(config).run(&strategy, |(seed, rows, range)| {
        let world = World::new(seed, rows);
        write(&path, &world.bytes);
        let block = 1 + Dice::new(seed).below(3000) as u32;
        let settings = Settings {
            range_max_bytes: Some(range),
            block_max_bytes: Some(block),
            falls_back: false,
            ..Settings::default()
        };
        for (stages, is_remote) in [(&remote, true), (&local, false)] {
            // Only chains at a target can fall back.
            let settings = Settings { falls_back: !is_remote, ..settings };
            let run = world.run(stages, &path, settings, u64::MAX);
            let (table, stats) = run.map_err(|error| TestCaseError::fail(error.to_string()))?;
            world.check(&table).map_err(TestCaseError::fail)?;
            let chains = if is_remote { stats.chains } else { 0 };
            assert_eq!(stats.chains_at_target, chains);
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// A plan over records with increasing numbers: their sum and their count.
fn sums() -> Plan {
    Plan {
        schema: Schema {
            columns: vec![Column { name: "n".to_owned(), kind: Kind::U64, nullable: false }],
        },
        format: Format::Fixed {
            header_bytes: 0,
            record_bytes: 8,
            fields: vec![Field { offset_bytes: 0, width_bytes: 8 }],
        },
        filter: Predicate::Constant(true),
        reduction: Reduction::Groups {
            keys: Vec::new(),
            aggregates: [Measure::CountAll, Measure::Sum]
                .map(|measure| Aggregate { measure, of: Scalar::Column(0) })
                .to_vec(),
        },
        own: OwnStages::default(),
    }
}

fn sum_of(stages: &Stages<'_>, path: &Path, settings: Settings) -> Result<(i128, u64), RunError> {
    let plan = sums();
    let mut runner = Runner::new(stages, &plan, settings)?;
    let file = SourceFile::at(path, &plan.format).expect("it is there");
    let part = &parts(&plan, &[file], u64::MAX)[0];
    let table = runner.run(part, &mut |_| true)?.finish(&plan).expect("of this plan");
    let [Value::Int(count), Value::Int(sum)] = table.rows[0][..] else { panic!("{table:?}") };
    assert_eq!(count as u64, part.file_bytes / 8);
    Ok((sum, runner.stats().chains_at_target))
}

/// The file's blocks move all the time; its values stay.
#[test]
fn a_file_that_moves_is_summed_as_it_is() {
    let Some(disk) = Disk::new("ext4", 96 << 20) else { return };
    let maps = at_target(&disk);
    let stages = Stages::new(&maps);
    let path = disk.mount().join("rows");
    let bytes: Vec<u8> = (0..1_u64 << 18).flat_map(u64::to_le_bytes).collect();
    let expected = (1_i128 << 18) * ((1 << 18) - 1) / 2;
    write(&path, &bytes);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&is_over);
        scope.spawn(|| {
            // Each copy has blocks of its own, and replaces the file.
            let copy = disk.mount().join("copy");
            while !is_over.load(Ordering::Relaxed) {
                write(&copy, &bytes);
                std::fs::rename(&copy, &path).expect("the same folder");
                let mut file = OpenOptions::new().write(true).open(&path).expect("there");
                file.seek(SeekFrom::Start(0)).expect("a file");
                file.write_all(&bytes[..1 << 16]).expect("room");
            }
        });
        for _ in 0..20 {
            let settings = Settings { range_max_bytes: Some(64 << 10), ..Settings::default() };
            let mut found = sum_of(&stages, &path, settings);
            // The file was replaced, or written in place, since its examination: ask again.
            while matches!(&found, Err(RunError::Data { what, .. }) if what.contains("again")) {
                found = sum_of(&stages, &path, settings);
            }
            assert_eq!(found.as_ref().map(|(sum, _)| *sum).ok(), Some(expected), "{found:?}");
        }
    });
}

/// Stages that are installed at the target are not loaded again.
#[test]
fn installed_stages_are_used() {
    let Some(disk) = Disk::new("ext4", 96 << 20) else { return };
    let path = disk.mount().join("rows");
    write(&path, &(0..1000_u64).flat_map(u64::to_le_bytes).collect::<Vec<_>>());
    let settings = Settings { falls_back: false, ..Settings::default() };
    let own_functions = || {
        let maps = at_target(&disk);
        let (sum, chains) = sum_of(&Stages::new(&maps), &path, settings).expect("a target");
        assert!(sum == 999 * 500 && chains > 0);
        let report = maps.with_controller(|controller| controller.function_report());
        let report = report.expect("a target").expect("it reports");
        report.iter().filter(|entry| entry.function >> 31 == 0).count()
    };
    assert_eq!(own_functions(), 2);
    let mut controller = disk.connect();
    assert_eq!(install_stages(&mut controller).expect("room"), STAGES.len());
    assert_eq!(install_stages(&mut controller).expect("they are there"), 0);
    assert_eq!(own_functions(), 0);

    // A name proves nothing: another program is installed under each of the names.
    for entry in controller.function_report().expect("it reports") {
        let id = FunctionId(entry.function);
        controller.unload_function(id).expect("it is there");
        let name = entry.name.to_string();
        controller.install_function_as(&name, STAGES[0].object, 0).expect("room");
    }
    assert!(own_functions() > 0);
    assert_eq!(install_stages(&mut controller).expect("room"), STAGES.len() - 1);
    assert_eq!(own_functions(), 0);
}

/// Hosts that install stages at the same time leave one copy of each.
#[test]
fn stages_are_installed_once() {
    let Some(disk) = Disk::new("ext4", 96 << 20) else { return };
    let path = disk.mount().join("rows");
    write(&path, &(0..1000_u64).flat_map(u64::to_le_bytes).collect::<Vec<_>>());
    let begin = Barrier::new(HOSTS);
    let host = || {
        let mut controller = disk.connect();
        let settings = Settings { falls_back: false, ..Settings::default() };
        begin.wait();
        let installed = install_stages(&mut controller).expect("room");
        let maps = at_target(&disk);
        let (sum, chains) = sum_of(&Stages::new(&maps), &path, settings).expect("a target");
        assert!(sum == 999 * 500 && chains > 0);
        installed
    };
    let installed: usize = std::thread::scope(|scope| {
        let hosts = [(); HOSTS].map(|()| scope.spawn(host));
        hosts.into_iter().map(|host| host.join().expect("it ends")).sum()
    });
    assert_eq!(installed, STAGES.len());
    let report = disk.connect().function_report().expect("it reports");
    assert_eq!(report.iter().filter(|entry| entry.function >> 31 == 1).count(), STAGES.len());
}

/// The death of a target does not end a query, unless the query must run there.
#[test]
fn without_its_target_a_query_runs_here() {
    let Some(disk) = Disk::new("ext4", 96 << 20) else { return };
    let maps = at_target(&disk);
    let stages = Stages::new(&maps);
    let path = disk.mount().join("rows");
    write(&path, &(0..1_u64 << 20).flat_map(u64::to_le_bytes).collect::<Vec<_>>());
    let expected = (1_i128 << 20) * ((1 << 20) - 1) / 2;
    let settings = Settings { falls_back: false, ..Settings::default() };
    let (sum, at_target) = sum_of(&stages, &path, settings).expect("a target");
    assert_eq!(sum, expected);
    assert!(at_target > 0);

    // The target dies during a query.
    let plan = sums();
    let mut runner = Runner::new(&stages, &plan, Settings::default()).expect("a target");
    let files = [SourceFile::at(&path, &plan.format).expect("it is there")];
    let part = &parts(&plan, &files, u64::MAX)[0];
    let mut is_there = true;
    let partial = runner.run(part, &mut |_| {
        if std::mem::take(&mut is_there) {
            disk.stop_target();
        }
        true
    });
    let table = partial.expect("it is read here").finish(&plan).expect("of this plan");
    assert_eq!(table.rows, [[Value::Int(1 << 20), Value::Int(expected)]]);
    let error = runner.run(part, &mut |_| false).expect_err("it is told to stop");
    assert!(matches!(error, RunError::Stopped), "{error}");
}

/// Runs `bpfof query` with this value of BPFOF_TARGETS.
fn ask(targets: &str, arguments: &[&str]) -> std::process::Output {
    let beside = Path::new(disk::BPFOF).with_file_name("bpfof-query");
    assert!(beside.exists(), "first: cargo build -p bpfof-query-command");
    let mut command = std::process::Command::new(disk::BPFOF);
    command.arg("query").args(arguments).env("BPFOF_TARGETS", targets);
    command.output().expect("it starts")
}

#[test]
fn the_command_finds_the_target_of_a_mount() {
    let Some(disk) = Disk::new("ext4", 96 << 20) else { return };
    let numbers: Vec<u8> = (0..500_000_u64).flat_map(u64::to_le_bytes).collect();
    write(&disk.mount().join("n.bin"), &numbers);
    let sql =
        format!("SELECT count(*), sum(n) FROM '{}/n.*' WHERE n >= 1000", disk.mount().display());
    let (mount, image) = (disk.mount(), disk.image());
    let targets = format!("{}={} {}", mount.display(), disk.url, image.display());
    let arguments = ["--schema", "n u64", "--no-fallback", "--stats", "--json", &sql];
    let output = ask(&targets, &arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let sum = (1000..500_000_u64).sum::<u64>();
    let expected = format!("[{{\"count(*)\":499000,\"sum(n)\":{sum}}}\n]\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    let stats: serde_json::Value = serde_json::from_str(&errors).expect("JSON");
    assert_eq!(stats["chains"], stats["chains_at_target"]);
    let moved = stats["received_bytes"].as_u64().expect("a number");
    assert!(moved > 0 && moved * 100 < numbers.len() as u64, "{errors}");

    disk.stop_target();
    let output = ask(&targets, &["--schema", "n u64", "--csv", &sql]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("count(*),sum(n)\n499000,{sum}\n"));
    assert!(errors.contains("the stages run here"), "{errors}");
    let output = ask(&targets, &arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && errors.contains("the target nvme-tcp://"),
        "{errors}"
    );
}
