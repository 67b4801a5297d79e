//! The integration with RocksDB: built by CMake with the machine's RocksDB, and tested without a
//! target and with one.

#[path = "grants/daemon.rs"]
mod daemon;
mod disk;
mod integration;
#[path = "integration/programs.rs"]
mod programs;

use daemon::{Grantd, UID};
use disk::skip::skip;
use disk::{BPFOF, Disk, cannot_mount, run};
use integration::{build, cannot_build, is_other_version};
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(60);
/// A number of Gets of one kind that cannot be an accident.
const MANY: u64 = 200;

/// Compiles the program of docs/rocksdb.md as the page says, but with the libraries built here.
fn compile_example(folder: &Path) -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(repository.join("docs/rocksdb.md")).expect("the page");
    let (_, source) = page.split_once("```cpp\n").expect("a program");
    let (source, rest) = source.split_once("```\n").expect("its end");
    std::fs::write(folder.join("lookup.cc"), source).expect("written");
    let command = rest.lines().find(|line| line.starts_with("c++ ")).expect("a command");
    let words = command.replace(" -o lookup lookup.cc", "");
    let mut arguments: Vec<String> = words.split_whitespace().skip(1).map(str::to_owned).collect();
    let program = folder.join("lookup");
    let show = |path: &Path| path.display().to_string();
    let include = repository.join("integrations/rocksdb/include");
    arguments.splice(
        0..0,
        ["-o".into(), show(&program), show(&program.with_extension("cc")), "-I".into()]
            .into_iter()
            .chain([show(&include), format!("-L{}", show(folder))])
            .chain([format!("-L{}", show(&Path::new(BPFOF).with_file_name("deps")))])
            .chain([format!("-Wl,-rpath,{}", show(folder))]),
    );
    run("c++", &arguments);
    program
}

/// The pkg-config file has everything that a program needs in addition to libbpfof.
fn is_described(folder: &Path) {
    let prefix = folder.join("installed").display().to_string();
    run("cmake", &["--install", &folder.display().to_string(), "--prefix", &prefix]);
    let found = run("find", &[&*prefix, "-name", "*.pc"]);
    let text = std::fs::read_to_string(found.trim()).expect("one such file");
    let needed = ["-lbpfof-rocksdb", "-lrocksdb", "Requires: bpfof", "Version: 0.", "-std=c++17"];
    assert!(needed.iter().all(|part| text.contains(part)), "{text}");
}

/// Runs these tests in parallel, each in a folder of its own, because they mostly wait for the disk.
fn all_at_once(folder: &Path, disk: &Disk, tests: &[&str]) {
    std::thread::scope(|scope| {
        for test in tests {
            scope.spawn(move || {
                let own = disk.mount().join(test);
                std::fs::create_dir(&own).expect("made");
                let program = folder.join(test).display().to_string();
                let places = [own.display().to_string(), disk.url.to_string()];
                let image = disk.image().display().to_string();
                eprintln!("{}", run(&program, &[&places[0], &places[1], &image]));
            });
        }
    });
}

/// A read with a deadline does not wait for a target that does not answer.
fn reads_end_in_time(folder: &Path, disk: &Disk) {
    let status = Command::new(folder.join("deadline_test"))
        .arg(disk.mount())
        .args([disk.url.to_string(), disk.image().display().to_string()])
        .env("TARGET_PID", disk.target_pid().to_string())
        .status();
    assert!(status.expect("it starts").success());
}

/// Counts of the Gets of [`Reading`] by the place where they ran.
#[derive(Clone, Copy, Debug)]
struct Ways {
    target: u64,
    here: u64,
    /// There was no connection.
    busy: u64,
}

/// A process of `concurrent_test`, which reads until this value is dropped or ended.
struct Reading {
    process: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Reading {
    fn start(folder: &Path, disk: &Disk, url: &str) -> Reading {
        let mut process = Command::new(folder.join("concurrent_test"))
            .arg(disk.mount())
            .args([url, disk.image().to_str().expect("UTF-8")])
            .env("REPORTS", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        Reading { process, lines }
    }

    fn ways(&mut self) -> Ways {
        self.process.stdin.as_mut().expect("piped").write_all(b"\n").expect("it runs");
        let line = self.lines.next().expect("it runs").expect("a line");
        let words: Vec<&str> = line.split(' ').collect();
        let ["target", target, "here", here, "busy", busy] = words[..] else { panic!("{line}") };
        let [target, here, busy] = [target, here, busy].map(|word| word.parse().expect("a number"));
        Ways { target, here, busy }
    }

    /// Waits until the counts satisfy `is_so`.
    fn until(&mut self, what: &str, is_so: impl Fn(&Ways) -> bool) -> Ways {
        let begun = Instant::now();
        loop {
            let ways = self.ways();
            if is_so(&ways) {
                eprintln!("{what}, after {:?}: {ways:?}", begun.elapsed());
                return ways;
            }
            assert!(begun.elapsed() < PATIENCE, "not in time, {what}: {ways:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn ends_well(mut self) {
        drop(self.process.stdin.take());
        self.lines.map_while(Result::ok).for_each(|line| eprintln!("{line}"));
        assert!(self.process.wait().expect("it ends").success());
    }
}

/// Chains run at the target again when it is back.
fn a_target_that_dies_is_used_again(folder: &Path, disk: &mut Disk) {
    let mut reading = Reading::start(folder, disk, &disk.url.to_string());
    reading.until("chains answer", |ways| ways.target > MANY);
    disk.stop_target();
    let killed = reading.ways();
    let left = |ways: &Ways| ways.here + ways.busy;
    reading.until("the target is missed", |ways| left(ways) > left(&killed) + MANY);
    let before = reading.ways();
    disk.restart_target();
    reading.until("chains answer again", |ways| ways.target > before.target + MANY);
    reading.ends_well();
}

/// With a second path to the storage the death of a target has no effect.
fn a_target_that_dies_is_not_missed(folder: &Path, disk: &mut Disk) {
    let url = disk.add_path().to_string();
    let mut reading = Reading::start(folder, disk, &url);
    reading.until("chains answer", |ways| ways.target > MANY);
    disk.stop_target();
    let killed = reading.ways();
    let later =
        reading.until("the second target answers", |ways| ways.target > killed.target + 10 * MANY);
    assert_eq!(later.busy, killed.busy, "Gets were left to RocksDB");
    reading.ends_well();
    disk.restart_target();
}

/// Least number of keys that are read from a database of `db_bench`.
const READS_OF_DB_BENCH: u64 = 4000;

/// Makes a database by RocksDB's own benchmark, with filters. False if this machine has no such benchmark.
fn make_by_db_bench(database: &Path, user: u32) -> bool {
    let options = "--num=60000 --bloom_bits=10 --compression_type=snappy --write_buffer_size=1000000 \
        --target_file_size_base=500000 --max_bytes_for_level_base=2000000";
    let options: Vec<&str> = options.split_whitespace().collect();
    let place = format!("--db={}", database.display());
    let made = Command::new("db_bench")
        .args(["--benchmarks=fillrandom,overwrite", &place])
        .args(options)
        .uid(user)
        .output();
    let Ok(made) = made else {
        skip("db_bench is missing; scripts/setup.sh rocksdb installs it");
        return false;
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    true
}

/// Reads `reads` keys of such a database, and as many while it changes.
fn what_db_bench_has_made_is_read(folder: &Path, disk: &Disk, reads: u64) {
    let database = disk.mount().join("db_bench");
    if !make_by_db_bench(&database, 0) {
        return;
    }
    let database = database.display().to_string();
    let status = Command::new(folder.join("existing_test"))
        .args([&database, &disk.url.to_string(), &disk.image().display().to_string()])
        .env("READS", reads.to_string())
        .status();
    assert!(status.expect("it starts").success());
    std::fs::remove_dir_all(database).expect("removed");
}

fn stress(folder: &Path, disk: &Disk, options: &[&str]) -> Command {
    let mut command = Command::new(folder.join("bpfof-rocksdb-stress"));
    command.arg(disk.mount()).args([disk.url.to_string(), disk.image().display().to_string()]);
    command.args(options);
    command
}

/// No answer is wrong while everything changes; and neither this process nor the target leaks memory or descriptors.
fn nothing_is_wrong_or_kept(folder: &Path, disk: &Disk) {
    let (open_before, resident_before) = disk.held_by_target();
    let status = stress(folder, disk, &["--seconds", "8", "--leaks"]).status();
    assert!(status.expect("it starts").success());
    let begun = Instant::now();
    loop {
        let (open, resident) = disk.held_by_target();
        if open <= open_before {
            let most = resident_before * 5 / 4 + (32 << 20);
            assert!(resident <= most, "the target went from {resident_before} to {resident} bytes");
            return;
        }
        let late = begun.elapsed() > Duration::from_secs(10);
        assert!(!late, "the target had {open_before} descriptors open, and keeps {open}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn point_reads_are_those_of_the_plain_library() {
    if cannot_build() {
        return;
    }
    let folder = build();
    let without_target = run(
        "ctest",
        &["--test-dir", &folder.display().to_string(), "--output-on-failure", "--parallel", "6"],
    );
    eprintln!("{without_target}");
    is_described(folder);
    let Some(mut disk) = Disk::new("ext4", 1 << 30) else { return };
    let (url, mount) = (disk.url.to_string(), disk.mount().display().to_string());
    let image = disk.image().display().to_string();
    all_at_once(
        folder,
        &disk,
        &[
            "answers_test",
            "merge_test",
            "blob_test",
            "c_api_test",
            "concurrent_test",
            "many_tables_test",
            "moments_test",
            "secondary_test",
            "wrapped_test",
        ],
    );
    // Compiled as in the documentation, with the machine's RocksDB.
    if !is_other_version() {
        let example = compile_example(folder).display().to_string();
        let printed = run(&example, &[&format!("{mount}/example"), &url, &image]);
        let lines: Vec<&str> = printed.lines().collect();
        assert!(lines.contains(&"OK: value4711") && lines.contains(&"target: 1"), "{printed}");
    }
    reads_end_in_time(folder, &disk);
    what_db_bench_has_made_is_read(folder, &disk, READS_OF_DB_BENCH);
    nothing_is_wrong_or_kept(folder, &disk);
    a_target_that_dies_is_used_again(folder, &mut disk);
    a_target_that_dies_is_not_missed(folder, &mut disk);
}

/// Programs that use the machine's librocksdb.
#[test]
fn programs_that_are_not_changed_are_pushed_down() {
    if is_other_version() || cannot_build() {
        return;
    }
    let Some(disk) = Disk::new("ext4", 1 << 30) else { return };
    let folder = build();
    programs::a_stock_db_bench_is_pushed_down(folder, &disk);
    programs::a_python_program_is_pushed_down(folder, &disk);
}

/// `make rocksdb-tables`: a database of TABLES tables.
#[test]
#[ignore = "takes minutes: make rocksdb-tables"]
fn a_database_of_many_tables() {
    assert!(!cannot_build() && !cannot_mount(), "this needs root and RocksDB");
    let program = build().join("many_tables_test").display().to_string();
    let disk = Disk::new("ext4", 4 << 30).expect("it can be mounted");
    let (open_before, before) = disk.held_by_target();
    let place = [disk.mount().display().to_string(), disk.url.to_string()];
    eprintln!("{}", run(&program, &[&place[0], &place[1], &disk.image().display().to_string()]));
    let (open, after) = disk.held_by_target();
    assert!(open <= open_before + 16, "the target had {open_before} descriptors, and has {open}");
    eprintln!("target: {} KiB before, {} KiB after", before >> 10, after >> 10);
}

/// Runs the program in ROCKSDB_RUST, the example of the crate for users of the crate `rocksdb`.
#[test]
#[ignore = "compiles the newest RocksDB: make rocksdb-rust"]
fn a_rust_program_is_pushed_down() {
    let program = std::env::var("ROCKSDB_RUST").expect("make rocksdb-rust sets ROCKSDB_RUST");
    let disk = Disk::new("ext4", 1 << 30).expect("this needs root");
    programs::a_program_is_pushed_down(&program, &disk);
}

/// Pushdown by a user who can open the database's files but has no other rights.
#[test]
fn a_process_without_privileges_pushes_down_by_grants() {
    if cannot_build() {
        return;
    }
    let Some(disk) = Disk::new("ext4", 1 << 30) else { return };
    let folder = build();
    let (above, users) = (disk.image().with_file_name(""), disk.mount().join("users"));
    std::fs::set_permissions(above, Permissions::from_mode(0o755)).expect("set");
    std::fs::create_dir(&users).expect("made");
    chown(&users, Some(UID), Some(UID)).expect("given");
    let database = users.join("db_bench");
    if !make_by_db_bench(&database, UID) {
        return;
    }
    let url = disk.url.to_string();
    let grantd = Grantd::start(&url, &disk.image(), &["--allow-own-functions"]);
    let status = Command::new(folder.join("existing_test"))
        .arg(&database)
        .arg(format!("grantd:{}", grantd.socket.display()))
        // The daemon serves one namespace.
        .arg("")
        .uid(UID)
        .gid(UID)
        .env("READS", READS_OF_DB_BENCH.to_string())
        .status();
    assert!(status.expect("it starts").success());
    grantd.stop();
}

/// Checks the summary at the end of the report; `text` is the whole report.
fn check_summary(summary: &serde_json::Value, text: &str) {
    for ratio in ["uniform_ops_ratio", "uniform_p99_ratio", "ycsb_e_ops_ratio", "cpu_per_op_ratio"]
        .into_iter()
        .chain(["multiget32_over_plain", "multiget32_over_before"])
        .chain(["merge_over_plain", "blob_over_plain"])
    {
        assert!(summary[ratio].as_f64().expect("a number") > 0.0, "{text}");
    }
    let (_, end) = text.rsplit_once("\"summary\"").expect("a summary");
    assert_eq!(end.matches('}').count(), 2, "it is the end: {end}");
}

/// A short run, to check the form of the report: the figures mean nothing.
#[test]
fn the_benchmark_reports() {
    if cannot_build() || cannot_mount() {
        return;
    }
    let build = build();
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let json = folder.path().join("bench.json");
    let show = |path: &Path| path.display().to_string();
    let table = run(
        BPFOF,
        &[
            &["bench", "rocksdb", "--quick", "--keys", "100000", "--workloads"][..],
            &["uniform,5050,e,multiget:4", "--milliseconds", "50", "--repetitions", "1"],
            &[
                "--curve",
                "1,2",
                "--batch",
                "32",
                "--sampling",
                "100",
                "--folder",
                &show(folder.path()),
            ],
            &["--driver", &show(&build.join("bpfof-rocksdb-bench")), "--json", &show(&json)],
            &["--plots", &show(folder.path())],
        ]
        .concat(),
    );
    assert!(table.contains("workloads, 3 µs, no cache (paper, Optane"), "{table}");
    let sentence = "RocksDB on a drive of 3 µs, no cache, workload uniform: ";
    for start in ["uniform ", "chains ", "± %", "net B ", "gain ", sentence] {
        assert!(table.lines().any(|line| line.starts_with(start)), "no {start:?} in {table}");
    }
    let text = std::fs::read_to_string(&json).expect("figures");
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["database"]["keys"], 100_000);
    assert_eq!(report["database"]["levels"].as_array().expect("levels").len(), 5);
    let blocks = report["database"]["blocks_per_get"].as_f64().expect("a number");
    assert!((4.0..5.5).contains(&blocks), "{blocks} blocks a Get");
    let cases = report["cases"].as_array().expect("cases");
    // Four workloads without cache and with, MultiGet, merges and blobs, two numbers of threads, five workloads
    // with sampling.
    assert_eq!(cases.len(), 2 * 4 + 1 + 2 + 2 + 5, "{table}");
    let many = cases.iter().find(|case| case["part"] == "batches").expect("MultiGet");
    assert_eq!((&many["batch"], &many["workload"]), (&32.into(), &"multiget:32".into()));
    for mode in cases.iter().flat_map(|case| case["modes"].as_array().expect("modes")) {
        assert!(mode["ops_per_s"].as_f64().expect("a number") > 0.0, "{mode}");
        assert!(mode["p99_us"].as_f64() >= mode["p50_us"].as_f64(), "{mode}");
        assert!(mode["host_cpu_us_per_op"].as_f64().expect("a number") > 0.0, "{mode}");
    }
    let modes: Vec<_> = cases[0]["modes"].as_array().expect("modes").iter().collect();
    let names: Vec<_> = modes.iter().map(|mode| mode["mode"].as_str().expect("a name")).collect();
    assert_eq!(names, ["plain", "chains", "blocks", "local"]);
    let gets = |mode: usize, way: &str| modes[mode]["gets"][way].as_u64().expect("a count");
    assert!(gets(0, "plain") > 0 && gets(1, "target") > 0 && gets(2, "blocks") > 0, "{text}");
    assert_eq!(gets(1, "failed") + gets(1, "here"), 0, "{text}");
    // Without pushdown all blocks of a Get cross the network, with it only the value.
    let net_bytes = report["summary"]["net_bytes_ratio"].as_f64().expect("a number");
    assert!(net_bytes > 5.0, "{text}");
    check_summary(&report["summary"], &text);
    for picture in ["workloads", "threads", "sampling"] {
        assert!(folder.path().join(format!("rocksdb-{picture}.png")).exists());
    }
    let left = std::fs::read_dir(folder.path()).expect("a folder").flatten();
    let images = left.filter(|entry| entry.path().extension().is_some_and(|end| end == "img"));
    assert_eq!(images.count(), 0, "the image is removed");
}

/// How often the soak test kills the target, and how long the target is away.
const KILL_EVERY: Duration = Duration::from_secs(30);
const AWAY: Duration = Duration::from_secs(3);

/// Kills the target and starts it again, until the process ends well.
fn kill_targets(disk: &mut Disk, process: &mut Child) {
    let mut killed = Instant::now();
    loop {
        if let Some(status) = process.try_wait().expect("it can be waited for") {
            return assert!(status.success(), "{status}");
        }
        if killed.elapsed() >= KILL_EVERY {
            disk.stop_target();
            std::thread::sleep(AWAY);
            disk.restart_target();
            killed = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// `make soak-rocksdb`: for READS Gets, or for SOAK_SECONDS, half of it on each file system; and
/// READS keys of databases of `db_bench`, or so many that they take a tenth of that time.
#[test]
#[ignore = "runs as long as READS or SOAK_SECONDS says: make soak-rocksdb"]
fn soak() {
    assert!(!cannot_build() && !cannot_mount(), "this needs root and RocksDB");
    let folder = build();
    let setting = |name| {
        let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name} is no number: {text:?}")))
    };
    let seconds = setting("SOAK_SECONDS").unwrap_or(3600);
    let (option, most, reads) = match setting("READS") {
        Some(reads) => ("--reads", reads, reads),
        None => ("--seconds", seconds, 300 * seconds),
    };
    let reads = (reads / 2).max(READS_OF_DB_BENCH);
    let half = (most / 2).max(1).to_string();
    for (kind, _) in disk::KINDS {
        eprintln!("RocksDB on {kind}, {option} {half}");
        let mut disk = Disk::new(kind, 512 << 20).expect("it can be mounted");
        what_db_bench_has_made_is_read(folder, &disk, reads);
        let options = [option, &half, "--leaks", "--fill-disk", "--target-may-die"];
        let mut process = stress(folder, &disk, &options).spawn().expect("it starts");
        kill_targets(&mut disk, &mut process);
    }
}
