//! `bpfof bench` as a user sees it: short runs that check the form of the output. The figures mean nothing.

mod command;
mod skip;

use command::{BPFOF, Target, bad, bpfof, good};
use serde_json::Value;
use skip::{skip, skip_part};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Each of `words` has a line that explains it, and `sentence` ends the output, except for a line about time that a
/// hypervisor took.
fn explained(text: &str, words: &[&str], sentence: &str) {
    for start in words.iter().chain([&sentence]) {
        assert!(text.lines().any(|line| line.starts_with(start)), "no {start:?} in {text}");
    }
    let (_, end) = text.rsplit_once(sentence).expect("found above");
    assert!(!end.contains("\n\n") || end.contains("A hypervisor"), "{end}");
}

fn bench(folder: &Path, target: Option<&str>) -> Value {
    let out: PathBuf = folder.join("out.json");
    let out = out.to_str().expect("UTF-8");
    let mut arguments = vec!["bench", "kv", "--levels", "3", "--repetitions", "1"];
    arguments.extend(["--milliseconds", "20", "--cached", "0,2", "--json", out]);
    arguments.extend(target.map(|url| ["--target", url]).into_iter().flatten());
    good(&arguments);
    serde_json::from_str(&std::fs::read_to_string(out).expect("written")).expect("JSON")
}

#[test]
fn reads_are_measured_against_the_network() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = Target::start(&["mem:size=8MiB"]);
    let out: PathBuf = folder.path().join("net.json");
    let out = out.to_str().expect("UTF-8");
    let run = |target: &[&str], sizes| {
        let mut arguments = vec!["bench", "net", "--sizes", sizes];
        arguments.extend(["--depths", "1,128", "--repetitions", "1", "--milliseconds", "20"]);
        arguments.extend(["--json", out]);
        arguments.extend(target);
        bpfof(&arguments)
    };
    let report = || -> Value {
        serde_json::from_str(&std::fs::read_to_string(out).expect("written")).expect("JSON")
    };
    let first = run(&[], "512");
    assert!(first.status.success());
    let text = String::from_utf8(first.stdout).expect("UTF-8");
    explained(&text, &["QD ", "TCP alone ", "± %", "due "], "Reads of 512 bytes at depth 128: ");
    let report_of_own = report();
    let summary = &report_of_own["summary"];
    assert!(summary["qd1_over_pingpong_floor"].as_f64() > Some(0.0), "{summary}");
    assert!(summary["qd128_512_over_batch_floor"].as_f64() > Some(0.0), "{summary}");
    assert!(summary["qd128_4k_over_batch_floor"].is_null(), "{summary}");
    for case in report_of_own["cases"].as_array().expect("a list") {
        assert!(case["floor_polled"]["messages_per_s"].as_f64() > Some(0.0), "{case}");
    }
    assert!(!report_of_own["mixes"].as_array().expect("a list").is_empty());
    let given = ["--target", &target.url];
    assert!(run(&given, "512").status.success());
    let report = report();
    assert_eq!(report["cases"].as_array().expect("a list").len(), 2);
    for case in report["cases"].as_array().expect("a list") {
        for way in ["lane", "single_send"] {
            assert!(case[way]["ops_per_s"].as_f64() > Some(0.0), "{case}");
        }
        // The target may be behind a network, which plain TCP on this machine would not measure.
        assert!(case["floor_polled"].is_null(), "{case}");
    }
    // No mixes with writes, which would overwrite the target's data.
    assert!(report["mixes"].as_array().expect("a list").is_empty());
    let curves = report["curves"].as_array().expect("a list");
    assert_eq!(curves.len(), 2);
    for point in curves.iter().flat_map(|curve| curve["points"].as_array().expect("a list")) {
        assert!(point["p999_us"].as_f64() >= point["p50_us"].as_f64(), "{point}");
    }
    assert_eq!(report["spreads"].as_array().expect("a list").len(), 3);
    let errors = String::from_utf8(run(&given, "100").stderr).expect("UTF-8");
    assert!(errors.contains("--sizes 100: a read is whole blocks of 512 bytes"), "{errors}");
}

/// Plain and TLS in one run, each with its own target; TLS records by the target itself and, if possible, by its
/// kernel.
#[test]
fn tls_is_measured_against_plain() {
    let folder = tempfile::tempdir().expect("a folder");
    let out: PathBuf = folder.path().join("tls.json");
    let out = out.to_str().expect("UTF-8");
    let listed = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_ulp");
    let kernel = listed.unwrap_or_default().split_whitespace().any(|name| name == "tls");
    if !kernel {
        skip_part("ktls", "the kernel has no TLS, which is not measured then");
    }
    let expected = if kernel { &["plain", "tls", "kernel-tls"][..] } else { &["plain", "tls"] };
    let short = ["--repetitions", "1", "--milliseconds", "20", "--tls", "--json", out];
    let runs: [(&[&str], &str, usize, &str); 2] = [
        (
            &["bench", "net", "--depths", "1,128", "--sizes", "4096"],
            "net-tls",
            2,
            "Random reads over TLS (4096 B, QD 128): ",
        ),
        (
            &["bench", "kv", "--levels", "2", "--depths", "32", "--cached", "0"],
            "kv-get-tls",
            1,
            "Pushdown over TLS (get, cache 0, depth 32): ",
        ),
    ];
    for (run, bench, count, said) in runs {
        let text = good(&[run, &short].concat());
        explained(&text, &["plain ", "TLS ", "± %", "over plain "], said);
        let cases: Value =
            serde_json::from_str(&std::fs::read_to_string(out).expect("written")).expect("JSON");
        let cases = cases.as_array().expect("a list");
        assert_eq!(cases.len(), count);
        for case in cases {
            assert_eq!(case["bench"], bench);
            let ways = case["ways"].as_array().expect("a list");
            let names: Vec<_> = ways.iter().map(|way| way["way"].as_str().expect("text")).collect();
            assert_eq!(names, expected);
            for way in ways {
                assert!(way["figures"]["ops_per_s"].as_f64() > Some(0.0), "{way}");
                assert!(way["figures"]["target_cpu_us_per_op"].as_f64() > Some(0.0), "{way}");
                let over = &way["over_plain"];
                assert_eq!(over.is_null(), way["way"] == "plain", "{way}");
                assert!(over.is_null() || over["ops_per_s"].as_f64() > Some(0.0), "{way}");
            }
        }
    }
    let target = Target::start(&["mem:size=1MiB"]);
    let other = bad(&["bench", "net", "--tls", "--target", &target.url]);
    assert!(other.contains("cannot be used with"), "{other}");
}

/// A run that cannot begin does not overwrite existing results.
#[test]
fn results_of_earlier_runs_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out.json");
    std::fs::write(&out, "[]").expect("written");
    let out = out.to_str().expect("UTF-8");
    let nobody = "nvme-tcp://127.0.0.1:1/nqn.2026-01.io.bpf-of:target";
    bad(&["bench", "kv", "--target", nobody, "--json", out]);
    bad(&["bench", "net", "--target", nobody, "--json", out]);
    assert_eq!(std::fs::read_to_string(out).expect("it is there"), "[]");
}

/// The benchmark starts a target of its own, whose data it knows, and compares what it reads.
#[test]
fn mixes_and_connections_are_measured_and_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    let (out, plots) = (folder.path().join("net.json"), folder.path().join("plots"));
    let (out, plots) = (out.to_str().expect("UTF-8"), plots.to_str().expect("UTF-8"));
    let mut arguments = vec!["bench", "net", "--depths", "1,16", "--repetitions", "1"];
    arguments.extend(["--milliseconds", "20", "--writes", "30,100", "--connections", "1,3"]);
    arguments.extend(["--threads", "2", "--json", out, "--plots", plots]);
    good(&arguments);
    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(out).expect("written")).expect("JSON");
    let mixes = report["mixes"].as_array().expect("a list");
    assert_eq!(mixes.iter().map(|mix| &mix["writes"]).collect::<Vec<_>>(), [30, 100]);
    let spreads = report["spreads"].as_array().expect("a list");
    let of = |spread: &Value| (spread["connections"].as_u64(), spread["own_targets"].as_bool());
    let numbers: Vec<_> = spreads.iter().map(of).collect();
    let all = [(1, false), (3, false), (1, true), (3, true)];
    assert_eq!(numbers, all.map(|(number, own)| (Some(number), Some(own))));
    for figures in
        mixes.iter().map(|mix| &mix["lane"]).chain(spreads.iter().map(|of| &of["figures"]))
    {
        assert!(figures["ops_per_s"].as_f64() > Some(0.0), "{figures}");
        assert!(figures["target_cpu_us_per_op"].as_f64() > Some(0.0), "{figures}");
    }
    for name in ["net-curve", "net-threads", "net-mixes", "net-spread"] {
        let picture = std::fs::read(format!("{plots}/{name}.png")).expect("drawn");
        assert!(picture.starts_with(b"\x89PNG"), "{name}");
    }
}

#[test]
fn the_benchmark_writes_its_cases() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = Target::start(&["mem:size=8MiB"]);
    good(&["kv", "create", "--levels", "3", "--target", &target.url]);
    for url in [None, Some(target.url.as_str())] {
        let cases = bench(folder.path(), url);
        let cases = cases.as_array().expect("a list");
        assert_eq!(cases.len(), 2 * 2 + 2 * (3 + 2));
        for case in cases {
            for path in ["plain", "pushdown"] {
                assert!(case[path]["ops_per_s"].as_f64().expect("a number") > 0.0, "{case}");
                assert_eq!(case[path]["target_cpu_us_per_op"].is_null(), url.is_some(), "{case}");
            }
            assert!(case["ratio"]["net_bytes"].as_f64().expect("a number") > 0.0, "{case}");
        }
        let get = &cases[0];
        assert_eq!((&get["bench"], get["hops"].as_f64()), (&"kv-get".into(), Some(4.0)));
    }
    assert!(bad(&["bench", "kv", "--json", "/nowhere/out.json"]).contains("cannot write"));
}

/// The same number of keys is in flight each way; the keys of one vector are sent by one command.
#[test]
fn vectors_are_measured_against_single_gets() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("batch.json");
    let out = out.to_str().expect("UTF-8");
    let run = ["bench", "kv", "--levels", "2", "--repetitions", "1", "--milliseconds", "20"];
    let text = good(&[&run[..], &["--batch", "1,32,256", "--json", out]].concat());
    assert!(text.replace('\n', " ").contains("in vectors of 32: "), "{text}");
    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(out).expect("written")).expect("JSON");
    let cases = report["cases"].as_array().expect("a list");
    let shapes = cases.iter().map(|case| (case["batch"].as_u64(), case["keys_in_flight"].as_u64()));
    let expected = [(1, 128), (32, 128), (256, 256)].map(|(batch, keys)| (Some(batch), Some(keys)));
    assert_eq!(shapes.collect::<Vec<_>>(), expected);
    for case in cases {
        for way in ["plain", "single", "vector"] {
            assert!(case[way]["ops_per_s"].as_f64() > Some(0.0), "{case}");
            assert!(case[way]["p99_us"].as_f64() >= case[way]["p50_us"].as_f64(), "{case}");
        }
        assert_eq!(case["hops"].as_f64(), Some(3.0));
        assert!(case["message_floor"]["keys_per_s"].as_f64() > Some(0.0), "{case}");
    }
    for ratio in ["vector_over_single", "vector_over_plain", "p99_vector_over_single"] {
        assert!(report["summary"][ratio].as_f64() > Some(0.0), "{report}");
    }
    assert!(bad(&["bench", "xrp", "/dev/sda", "/tmp"]).contains("is not a /dev/nvmeXnY"));
    assert!(bad(&["bench", "xrp", "/dev/nvme0n1", "/tmp", "--chains", "3"]).contains("--chains"));
    assert!(bad(&["bench", "xrp", "/dev/nvme0n1", "/tmp", "--depths", "0"]).contains("1..=16"));
    assert!(bad(&["bench", "kv", "--batch", "257"]).contains("1 to 256"));
    assert!(bad(&["bench", "kv", "--batch", "4", "--tls"]).contains("cannot be used with"));
}

#[test]
fn threads_that_block_are_measured_each_way() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("threads.json");
    let out = out.to_str().expect("UTF-8");
    let run = ["bench", "kv", "--levels", "2", "--repetitions", "1", "--milliseconds", "20"];
    let text = good(&[&run[..], &["--threads", "1,12", "--json", out]].concat());
    assert!(text.replace('\n', " ").contains("12 threads that share a lane look up "), "{text}");
    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(out).expect("written")).expect("JSON");
    let cases = report["cases"].as_array().expect("a list");
    assert_eq!([&cases[0]["threads"], &cases[1]["threads"]], [1, 12]);
    for case in cases {
        for way in ["private", "shared", "gathered"] {
            assert!(case[way]["ops_per_s"].as_f64() > Some(0.0), "{case}");
            assert!(case[way]["p99_us"].as_f64() >= case[way]["p50_us"].as_f64(), "{case}");
        }
        for ratio in ["gathered_over_shared", "gathered_over_private"] {
            assert!(case[ratio].as_f64() > Some(0.0), "{case}");
        }
        assert!(case["gathered"]["keys_per_send"].as_f64() >= Some(1.0), "{case}");
    }
    for given in ["0", "129"] {
        assert!(bad(&["bench", "kv", "--threads", given]).contains("1 to 128"));
    }
    let local = ["bench", "kv", "--executor", "local", "--threads", "2"];
    assert!(bad(&local).contains("--threads needs a target"));
}

/// XRP's table: a database in a file, no target.
#[test]
fn local_chains_are_measured_against_reads() {
    // The binary's folder is on a disk; /tmp may be in memory.
    let folder = tempfile::tempdir_in(Path::new(BPFOF).parent().expect("a folder"));
    let folder = folder.expect("a folder");
    let probe = std::fs::File::create(folder.path().join("probe")).expect("room");
    if bpfof_device::direct_block_bytes(&probe).is_none() {
        return skip("there is no direct I/O here");
    }
    let path = |name| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (file, out) = (path("db"), path("out.json"));
    let local = ["bench", "kv", "--executor", "local", "--file", &file];
    let run = [&local[..], &["--levels", "2", "--repetitions", "1", "--milliseconds", "20"]];
    // The second time the database is there.
    for _ in 0..2 {
        let text = good(&[&run.concat()[..], &["--json", &out]].concat());
        assert!(text.contains("XRP, table 3"), "{text}");
        explained(
            &text,
            &["# ops ", "ours ", "± %"],
            "Gets of 3 reads on this machine, 32 in flight: ",
        );
        assert!(text.lines().any(|line| line.starts_with('2') && line.contains("20.6")), "{text}");
        let text = std::fs::read_to_string(&out).expect("written");
        let cases: Value = serde_json::from_str(&text).expect("JSON");
        let cases = cases.as_array().expect("a list");
        assert_eq!(cases.len(), 2 * 2);
        for case in cases {
            let alone = case["queue_depth"] == 1;
            assert_eq!((case["read"].is_object(), case["paper"].is_object()), (alone, alone));
            for way in ["io_uring", "ours"] {
                let gets = case[way]["gets_per_s"].as_f64();
                assert!(gets.expect("a number") > 0.0, "{case}");
            }
        }
    }
    assert!(bad(&[&local[..], &["--levels", "3"]].concat()).contains("give --levels 2"));
    assert!(bad(&[&local[..], &["--cached", "0"]].concat()).contains("needs a target"));
    assert!(bad(&["bench", "kv", "--file", &file]).contains("--executor local"));
}

#[test]
fn the_cost_of_functions_is_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (out, plot) = (path("out.json"), path("out.png"));
    // The cost of a helper is a difference, and a median: with three rounds one may be disturbed.
    let text = good(&["bench", "function", "--rounds", "3", "--json", &out, "--plot", &plot]);
    explained(
        &text,
        &["checked/C ", "together ", "± %"],
        "A storage function as checked native code takes ",
    );
    let read = || -> Value {
        serde_json::from_str(&std::fs::read_to_string(&out).expect("written")).expect("JSON")
    };
    let report = read();
    let list = |name: &str| report[name].as_array().expect("a list").clone();
    let above_zero = |row: &Value, name: &str| {
        assert!(row[name].as_f64().expect("a number") > 0.0, "{name}: {row}");
    };
    assert_eq!((list("calls").len(), list("loading").len(), list("helpers").len()), (3, 5, 38));
    for call in list("calls") {
        for figure in ["interpreter_ns", "checked_ns", "c_ns", "checked_over_c"] {
            above_zero(&call, figure);
        }
    }
    for size in list("loading") {
        above_zero(&size, "check_us");
        above_zero(&size, "translate_us");
    }
    for helper in list("helpers").iter().filter(|row| row["bytes"] == 4096) {
        above_zero(helper, "constant_ns");
        above_zero(helper, "variable_ns");
    }
    above_zero(&report["tail_call"], "alone_ns");
    above_zero(&report["tail_call"], "after_tail_call_ns");
    assert_eq!(std::fs::read(&plot).expect("drawn")[..4], *b"\x89PNG");

    let arguments = ["bench", "function", "--rounds", "1", "--parts", "calls", "--only", "node"];
    let mut alone = Command::new(BPFOF);
    let alone = alone.args(arguments).args(["--json", &out]).env("CC", "/nowhere/cc");
    let output = alone.output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.contains("no C compiler"), "{errors}");
    let report = read();
    assert_eq!(report["calls"].as_array().map(Vec::len), Some(1));
    assert!(report["calls"][0]["c_ns"].is_null() && report["compiler"].is_null(), "{report}");
    let names = bad(&["bench", "function", "--only", "nothing"]);
    assert!(names.contains("choose from node, filter, block"), "{names}");
}

/// All queries of `bench query`, on small files: with DuckDB and pyarrow where they are installed.
#[test]
fn queries_are_measured_against_plain_reads() {
    if !rustix::process::geteuid().is_root() {
        return skip("this needs root, for networks and mounts of its own");
    }
    let beside = Path::new(BPFOF).with_file_name("bpfof-query");
    assert!(beside.exists(), "first: cargo build -p bpfof-query-command");
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (out, plots) = (path("query.json"), path("plots"));
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/python/bin/python");
    let has_engines = own.exists();
    if !has_engines {
        skip("there are no DuckDB and pyarrow; scripts/setup.sh python installs them");
    }
    let python = if has_engines { own } else { folder.path().join("none") };
    let python = python.to_str().expect("UTF-8");
    let arguments =
        ["bench", "query", "--quick", "--json", &out, "--plots", &plots, "--python", python];
    let run = bpfof(&arguments);
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{errors}");
    assert!(has_engines || errors.contains("without DuckDB and pyarrow"), "{errors}");
    let text = String::from_utf8(run.stdout).expect("UTF-8");
    assert!(text.starts_with("Quick run: these figures are not meaningful."), "{text}");
    for word in ["passed ", "GB/CPU-s ", "target/plain ", "bytes ", "hop µs "] {
        assert!(text.lines().any(|line| line.starts_with(word)), "no {word:?} in {text}");
    }
    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(out).expect("written")).expect("JSON");
    let rows = report["rows"].as_array().expect("a list");
    let paths = |part: &str| {
        let of = |row: &&Value| row["part"] == part;
        let names = rows.iter().filter(of).map(|row| row["path"].as_str().expect("a name"));
        names.collect::<std::collections::BTreeSet<_>>()
    };
    let engines: &[&str] = if has_engines { &["duckdb", "pyarrow"] } else { &[] };
    let all = engines.iter().chain(&["plain", "pushed", "reads"]).copied().collect();
    assert_eq!(paths("network"), all);
    assert!(paths("selectivity").contains("stages here"));
    assert!(paths("composed").contains("one function"));
    assert_eq!(report["stacked"].as_array().expect("a list").len(), 5);
    // Each path has found the same rows.
    let mut compared = 0;
    for group in rows.chunk_by(|_, next| next["path"] != "pushed") {
        let parts = group.iter().filter_map(|row| row["selectivity"].as_f64());
        let parts: Vec<_> = parts.collect();
        let folds = group[0]["part"] == "selectivity" && group[0]["query"] == "fold";
        assert!(!folds || parts.windows(2).all(|two| two[0] == two[1]), "{group:?}");
        compared += u32::from(folds && parts.len() >= 2);
    }
    assert!(compared > 0, "no two paths have reported how much they found: {rows:?}");
    let moved = |path: &str| {
        let of = |row: &&Value| row["part"] == "selectivity" && row["path"] == path;
        rows.iter().find(of).and_then(|row| row["network_bytes"].as_u64()).expect("a number")
    };
    assert!(moved("plain") > 50 * moved("pushed"));
    assert!(report["summary"]["small_query_ms"].as_f64() > Some(0.0), "{report}");
    for plot in ["selectivity.png", "composed.png", "stacked.png"] {
        assert!(Path::new(&plots).join(plot).metadata().expect("drawn").len() > 1000);
    }
}
