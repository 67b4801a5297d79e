//! Chains of a running target hop by hop, and why commands were slow.

mod command;
mod operated;

use bpfof_host::{Controller, Lane};
use command::{BPFOF, good};
use operated::{Operated, connect, get, start};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LEVELS: u32 = 3;
const HOPS: u64 = LEVELS as u64 + 1;
/// Chains of each of two lanes that compete for an arena: enough that they meet on a busy machine.
const COMPETING: u64 = 10;

/// A target with a database in memory (namespace 1) and in a file (namespace 2), and a host with its function.
struct Served {
    operated: Operated,
    _controller: Controller,
    lane: Lane,
    function: u32,
    _folder: TempDir,
}

/// Installs the function of BPF-KV under a descriptive name.
fn install(controller: &mut Controller) -> u32 {
    controller.install_function_as("bpfkv_get", bpfkv::GET_OBJECT, 0).expect("installed").0
}

fn serve() -> Served {
    let folder = tempfile::tempdir().expect("a folder");
    let file = format!("file:path={},size=8MiB", folder.path().join("image").display());
    let operated = start(&["--quiet", "--namespace", "mem:size=8MiB", "--namespace", &file]);
    for nsid in ["1", "2"] {
        let url = format!("{}?ns={nsid}", operated.target.url);
        good(&["kv", "create", "--levels", "3", "--target", &url]);
    }
    let (mut controller, lane) = connect(&operated.target.url, 5);
    let function = install(&mut controller);
    Served { operated, _controller: controller, lane, function, _folder: folder }
}

impl Served {
    fn get(&mut self, nsid: u32, key: u64) {
        let hops = get(&mut self.lane, (nsid, self.function), (key, 0)).expect("a chain");
        assert_eq!(u64::from(hops), HOPS);
    }

    fn trace(&self, more: &[&str]) -> Child {
        let mut command = Command::new(BPFOF);
        command.args(["trace", "--socket"]).arg(&self.operated.socket).args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("bpfof starts")
    }

    /// Runs Gets until a trace has ended because it has enough chains.
    fn get_until_end(&mut self, nsid: u32, mut trace: Child) -> String {
        let deadline = Instant::now() + Duration::from_secs(60);
        while trace.try_wait().expect("it runs").is_none() {
            assert!(Instant::now() < deadline, "the trace does not end");
            self.get(nsid, 4242);
        }
        let output = trace.wait_with_output().expect("ended");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Begins as many traces as are allowed, so that no other client can. Those of earlier clients may end meanwhile.
    fn take_all_traces(&self) -> Vec<UnixStream> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut taken = Vec::new();
        while taken.len() < 4 {
            assert!(Instant::now() < deadline, "a trace goes on without a client");
            let (stream, answer) = self.ask(json!({}));
            if answer.contains("result") {
                taken.push(stream);
            }
        }
        taken
    }

    /// Asks for a trace with these parameters.
    fn ask(&self, params: Value) -> (UnixStream, String) {
        let mut stream = UnixStream::connect(&self.operated.socket).expect("it listens");
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "trace", "params": params });
        writeln!(stream, "{request}").expect("sent");
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).expect("an answer");
        (stream, line)
    }
}

fn field(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_else(|| panic!("no number {name} in {of}"))
}

/// A client that stops sending hears of all chains that it was not told of.
#[test]
fn skipped_chains_are_counted_to_the_end() {
    const CHAINS: u64 = 5000;
    let mut served = serve();
    let (stream, answer) = served.ask(json!({}));
    assert!(answer.contains("result"), "{answer}");
    // Until it has begun on the reactor.
    stream.set_read_timeout(Some(Duration::from_millis(5))).expect("set");
    let mut lines = BufReader::new(&stream);
    let (mut line, mut before) = (String::new(), 0);
    while !line.ends_with('\n') {
        served.get(1, 7);
        before += 1;
        let _ = lines.read_line(&mut line);
    }
    for key in 0..CHAINS {
        served.get(1, key);
    }
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
    stream.shutdown(Shutdown::Write).expect("it is open");
    let mut rest = String::new();
    lines.read_to_string(&mut rest).expect("the target ends it");
    let all: Vec<Value> =
        (line + &rest).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let chains = all.iter().filter(|of| of["method"] == "chain").count() as u64;
    let skipped: u64 = all.iter().map(|of| field(&of["params"], "skipped")).sum();
    assert_eq!(all.last().expect("one")["method"], "skipped");
    assert!(chains < CHAINS && skipped > 0, "{chains} {skipped}");
    assert!(
        (CHAINS + 1..=CHAINS + before).contains(&(chains + skipped)),
        "{chains} {skipped} {before}"
    );
}

/// Each hop has its read, its times, and they fit into each other.
#[test]
fn a_trace_tells_of_each_hop() {
    let mut served = serve();
    for nsid in [1, 2] {
        let trace = served.trace(&["--json", "--count", "20"]);
        let text = served.get_until_end(nsid, trace);
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(lines.len(), 20);
        // The clock may measure 0 ns for one call, but not for all of them.
        let function_ns: u64 = lines.iter().map(|chain| field(chain, "function_ns")).sum();
        assert!(function_ns > 0, "{text}");
        for chain in &lines {
            assert_eq!((&chain["class"], &chain["outcome"]), (&"chain".into(), &"success".into()));
            assert_eq!(chain["function"][0], "bpfkv_get");
            assert_eq!((field(chain, "nsid"), field(chain, "hop_count")), (nsid.into(), HOPS));
            let hops = chain["hops"].as_array().expect("a list");
            assert_eq!(hops.len() as u64, HOPS);
            let mut before_ns = 0;
            for (index, hop) in hops.iter().enumerate() {
                let start_ns = field(hop, "since_start_ns");
                assert!(start_ns >= before_ns, "{chain}");
                let parts = ["device_ns", "queued_ns", "function_ns"].map(|name| field(hop, name));
                before_ns = start_ns + parts.iter().sum::<u64>();
                assert!(field(hop, "units") > 0, "{hop}");
                let reads = hop["reads"].as_array().expect("a list");
                let size = if index + 1 == hops.len() { 64 } else { 512 };
                assert_eq!((reads.len(), field(&reads[0], "size_bytes")), (1, size));
                assert_eq!(field(&reads[0], "file"), 0);
            }
            assert!(before_ns <= field(chain, "duration_ns"), "{chain}");
            assert_eq!(hops[0]["reads"][0]["offset_bytes"], 0);
            let waits = ["arena_ns", "data_ns", "device_ns", "function_ns", "queued_ns"];
            let sum: u64 = waits.iter().map(|name| field(chain, name)).sum();
            assert!(sum <= field(chain, "duration_ns"), "{chain}");
        }
    }
}

/// Only the requested chains; as text, as JSON, and for viewers.
#[test]
fn traces_choose_and_have_three_forms() {
    let mut served = serve();
    let text = served.trace(&["--count", "3", "--every", "10", "--function", "bpfkv_get"]);
    let text = served.get_until_end(1, text);
    assert_eq!(text.matches("bpfkv_get").count(), 3, "{text}");
    assert!(text.contains("waited for:") && text.contains("0:0+512"), "{text}");
    let nobody = served.trace(&["--host", "nqn.2026-01.org.example:nobody", "--seconds", "1"]);
    assert_eq!(served.get_until_end(1, nobody), "");
    let slow = served.trace(&["--slower", "30s", "--seconds", "1"]);
    assert_eq!(served.get_until_end(1, slow), "");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.json");
    let chrome = served.trace(&["--count", "5", "--chrome", file.to_str().expect("UTF-8")]);
    served.get_until_end(2, chrome);
    let text = std::fs::read_to_string(&file).expect("written");
    let viewed: Value = serde_json::from_str(&text).expect("JSON");
    let events = viewed["traceEvents"].as_array().expect("a list");
    let bars = |category: &'static str| events.iter().filter(move |of| of["cat"] == category);
    assert_eq!(bars("chain").count(), 5);
    for chain in bars("chain") {
        let number = |of: &Value, name: &str| of[name].as_f64().expect("a number");
        let (begin, length) = (number(chain, "ts"), number(chain, "dur"));
        let inside = bars("hop").filter(|hop| {
            let at = number(hop, "ts");
            hop["tid"] == chain["tid"]
                && at >= begin
                && at + number(hop, "dur") <= begin + length + 0.01
        });
        let calls = inside.filter(|hop| hop["name"] == "function").count() as u64;
        assert_eq!(calls, HOPS, "{text}");
    }
    assert!(events.iter().any(|of| of["ph"] == "M" && of["args"]["name"] == "reactor 0"));
}

/// A trace ends with its client, however that ends, and a trace file is complete after Ctrl-C.
#[test]
fn a_trace_ends_with_its_client() {
    let mut served = serve();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.json");
    for signal in [Signal::INT, Signal::KILL] {
        let mut trace = served.trace(&["--chrome", file.to_str().expect("UTF-8")]);
        let deadline = Instant::now() + Duration::from_secs(60);
        while std::fs::read_to_string(&file).unwrap_or_default().lines().count() < 20 {
            assert!(Instant::now() < deadline, "no chains");
            served.get(1, 1);
        }
        kill_process(Pid::from_child(&trace), signal).expect("it runs");
        let status = trace.wait().expect("ended");
        assert_eq!(status.success(), signal == Signal::INT);
        if signal == Signal::INT {
            let text = std::fs::read_to_string(&file).expect("written");
            serde_json::from_str::<Value>(&text).expect("the file is whole");
        }
        std::fs::remove_file(&file).expect("it is there");
    }
    // With the most traces allowed, whose clients do not read, chains still run.
    let silent = served.take_all_traces();
    (0..1000).for_each(|key| served.get(1, key));
    drop(silent);
    // A fifth trace is refused. No chain runs meanwhile: the target ends traces whose clients do not read for 5 s.
    let silent = served.take_all_traces();
    let mut refused = String::new();
    let mut fifth = served.trace(&["--json", "--seconds", "5"]);
    fifth.stderr.take().expect("piped").read_to_string(&mut refused).expect("read");
    assert!(!fifth.wait().expect("ended").success() && refused.contains("4 traces"), "{refused}");
    drop(silent);
    let (_, line) = served.ask(json!({ "evry": 1 }));
    assert!(line.contains("-32602") && line.contains("evry"), "{line}");
}

/// The slowest commands are remembered with their waits: here for a slow device.
#[test]
fn slow_commands_are_remembered() {
    let slow_device = "mem:size=8MiB,latency_us=2000";
    let operated = start(&["--quiet", "--namespace", "mem:size=8MiB", "--namespace", slow_device]);
    let url = format!("{}?ns=2", operated.target.url);
    good(&["kv", "create", "--levels", "3", "--target", &url]);
    let (mut controller, mut lane) = connect(&operated.target.url, 6);
    let function = install(&mut controller);
    let mut block = [0; 512];
    for _ in 0..300 {
        lane.read(1, 0, &mut block).expect("read");
    }
    for key in 0..10 {
        get(&mut lane, (2, function), (key, 0)).expect("a chain");
    }
    get(&mut lane, (2, function), (1, 1 << 20)).ok();
    let all = operated.asked(&["slow"]);
    let all = all.as_array().expect("a list");
    assert_eq!(all.len(), 100);
    let durations: Vec<u64> = all.iter().map(|of| field(of, "duration_ns")).collect();
    assert!(durations.is_sorted_by(|one, other| one >= other));
    let gets: Vec<&Value> = all
        .iter()
        .filter(|of| of["class"] == "chain" && of["nsid"] == 2 && of["outcome"] == "success")
        .collect();
    assert_eq!(gets.len(), 10, "all of them are slower than reads of memory");
    for of in gets {
        assert_eq!(of["function"][0], "bpfkv_get");
        let (took, device) = (field(of, "duration_ns"), field(of, "device_ns"));
        assert!(took >= HOPS * 2_000_000 && device >= HOPS * 2_000_000 - 500_000, "{of}");
        let hops = of["hops"].as_array().expect("a list");
        assert_eq!(hops.len() as u64, HOPS);
        assert!(hops.iter().all(|hop| field(hop, "device_ns") >= 1_800_000), "{of}");
        assert!(of["output_ns"].is_number(), "its answer has left: {of}");
    }
    let said = operated.said(&["slow"]);
    assert!(said.contains("bpfkv_get") && said.contains("device"), "{said}");
    let said = operated.said(&["slow", "--hops"]);
    assert!(said.contains("0:0+512"), "{said}");
}

/// If all arenas are taken, the wait for one is reported, and counted in the latency.
#[test]
fn waits_for_an_arena_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("target.toml");
    let text = "max-chains = 1\nnamespaces = [\"mem:size=8MiB,latency_us=10000\"]\n";
    std::fs::write(&config, text).expect("written");
    let operated = start(&["--quiet", "--config", config.to_str().expect("UTF-8")]);
    good(&["kv", "create", "--levels", "3", "--target", &operated.target.url]);
    let (mut controller, first) = connect(&operated.target.url, 6);
    let function = install(&mut controller);
    let second = controller.open_lane().expect("a lane");
    let both = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for mut lane in [first, second] {
            let both = &both;
            scope.spawn(move || {
                both.wait();
                (0..COMPETING)
                    .for_each(|key| _ = get(&mut lane, (1, function), (key, 0)).expect("a chain"));
            });
        }
    });
    let all = operated.asked(&["slow"]);
    let chains = all.as_array().expect("a list").iter().filter(|of| of["class"] == "chain");
    let arena_ms: Vec<u64> = chains.map(|of| field(of, "arena_ns") / 1_000_000).collect();
    assert_eq!(arena_ms.len() as u64, 2 * COMPETING);
    assert!(arena_ms.iter().any(|ms| *ms >= 10), "{arena_ms:?}");
    assert!(operated.said(&["slow"]).contains("arena"));
}
