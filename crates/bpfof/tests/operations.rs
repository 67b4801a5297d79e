//! The operator's interfaces to a running target, while hosts use it.

mod command;
mod operated;
mod stop;
mod wait;

use command::{BPFOF, bad, good};
use operated::{Operated, connect, get, start};
use rustix::net;
use serde_json::Value;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use stop::StopAtEnd;
use wait::within;

/// The target's counters match exactly the commands of a host.
#[test]
fn counters_are_those_of_the_host() {
    let operated = start(&["--quiet", "--namespace", "mem:size=8MiB"]);
    let url = operated.target.url.as_str();
    good(&["kv", "create", "--levels", "3", "--target", url]);
    let (mut controller, mut lane) = connect(url, 7);
    let commands = |class: &str| {
        let labels =
            format!("subsystem=\"nqn.2026-01.io.bpf-of:target\",nsid=\"1\",class=\"{class}\"}}");
        ["commands_total{", "command_errors_total{", "command_bytes_total{"]
            .map(|name| operated.metric(&format!("bpfof_{name}{labels}")))
    };
    let before = ["read", "write", "chain"].map(commands);
    let mut block = vec![0; 4096];
    for _ in 0..100 {
        lane.read(1, 0, &mut block).expect("read");
    }
    for _ in 0..10 {
        lane.write(1, 1 << 20, &block[..512]).expect("written");
    }
    let function = controller.load_function(bpfkv::GET_OBJECT, 0).expect("loaded");
    let mut get = |at| get(&mut lane, (1, function.0), (4242, at));
    for _ in 0..20 {
        assert_eq!(get(0).expect("a chain"), 4);
    }
    get(1 << 40).expect_err("beyond the end");
    let after = ["read", "write", "chain"].map(commands);
    let difference: Vec<[f64; 3]> = (0..3)
        .map(|class| std::array::from_fn(|of| after[class][of] - before[class][of]))
        .collect();
    assert_eq!(difference[0], [100.0, 0.0, 409_600.0]);
    assert_eq!(difference[1], [10.0, 0.0, 5120.0]);
    assert_eq!((difference[2][0], difference[2][2]), (20.0, 20.0 * (3.0 * 512.0 + 64.0)));
    // The counters by host, function and reactor are of the same commands.
    let durations = |family: &str, labels: &str| {
        operated.metric(&format!("bpfof_{family}_duration_seconds_count{{{labels}"))
    };
    let host = operated.asked(&["hosts"]);
    let nqn = host[0]["nqn"].as_str().expect("a name");
    let of_host = ["read", "write", "chain"].map(|class| {
        let labels = format!("host=\"{nqn}\",address=\"127.0.0.1\",class=\"{class}\"}}");
        durations("host_command", &labels)
    });
    assert_eq!(of_host, [100.0, 10.0, 20.0]);
    let of_reactor = ["read", "write", "chain"]
        .map(|class| durations("reactor_command", &format!("reactor=\"0\",class=\"{class}\"}}")));
    assert_eq!(of_reactor, [after[0][0], after[1][0], after[2][0]]);
    let others = "subsystem=\"nqn.2026-01.io.bpf-of:target\",function=\"(others)\",id=\"0\"}";
    assert_eq!(durations("function_chain", others), 20.0);
    let totals = &host[0]["totals"];
    assert_eq!((&totals["reads"], &totals["writes"]), (&100.into(), &10.into()));
    // The chain beyond the end has not begun.
    assert_eq!((&totals["chains"], &totals["hops"]), (&20.into(), &80.into()));
    let namespaces = operated.asked(&["namespaces"]);
    let latency = &namespaces[0]["read"]["latency"];
    assert!(latency["count"].as_u64() >= Some(100) && latency["p99_us"].is_number(), "{latency}");
    let buckets = latency["buckets"].as_array().expect("a list").iter();
    let sum: u64 = buckets.map(|bucket| bucket[1].as_u64().expect("a count")).sum();
    assert_eq!(latency["count"], sum);
}

#[test]
fn operators_see_hosts_end_them_and_change_the_log() {
    let operated = start(&["--namespace", "mem:size=1MiB"]);
    let (mut controller, mut lane) = connect(&operated.target.url, 9);
    let hosts = operated.asked(&["hosts"]);
    let nqn = hosts[0]["nqn"].as_str().expect("a name").to_owned();
    assert_eq!((&hosts[0]["connections"], &hosts[0]["associations"]), (&2.into(), &1.into()));
    let connections = operated.asked(&["connections"]);
    let queues: Vec<_> =
        connections.as_array().expect("a list").iter().map(|of| &of["queue"]).collect();
    assert_eq!(queues, [0, 1]);
    for (part, word) in [
        ("hosts", nqn.as_str()),
        ("connections", "127.0.0.1"),
        ("namespaces", "no commands yet"),
        ("functions", "faults"),
        ("reactors", "%"),
        ("memory", "GiB"),
        ("denials", "no rule"),
        ("version", env!("CARGO_PKG_VERSION")),
        ("stats", "memory_limit_bytes"),
    ] {
        let said = operated.said(&[part]);
        assert!(said.contains(word), "{part}: {said}");
    }
    assert!(operated.said(&["log", "debug"]).contains("debug"));
    let wrong = operated.refused(&["log", "loud"]);
    assert!(wrong.contains("unknown level \"loud\""), "{wrong}");
    let nobody = operated.refused(&["kick", "nqn.2026-01.org.example:nobody"]);
    assert!(nobody.contains("no host of this name"), "{nobody}");
    let elsewhere = operated.refused(&["kick", &nqn, "--address", "10.9.9.9"]);
    assert!(elsewhere.contains("from 10.9.9.9"), "{elsewhere}");
    let here = hosts[0]["address"].as_str().expect("an address");
    assert_eq!(operated.asked(&["kick", &nqn, "--address", here])["ended"], 1);
    within(Duration::from_secs(10), "the lane ends", || lane.read(1, 0, &mut [0; 512]).is_err());
    assert!(controller.identify_controller().is_err());
    assert_eq!(operated.asked(&["hosts"]), Value::Array(vec![]));
}

#[test]
fn a_reload_says_what_has_come_of_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("target.toml");
    std::fs::write(&config, "namespaces = [\"mem:size=1MiB\"]\n").expect("written");
    let operated = start(&["--quiet", "--config", config.to_str().expect("UTF-8")]);
    std::fs::write(&config, "namespaces = [\"mem:size=1MiB\", \"mem:size=2MiB\"]\n")
        .expect("written");
    assert!(operated.said(&["reload"]).contains("in force"));
    assert_eq!(operated.asked(&["namespaces"]).as_array().map(Vec::len), Some(2));
    std::fs::write(&config, "namespaces = []\n").expect("written");
    let refused = operated.refused(&["reload"]);
    assert!(refused.contains("nothing has changed"), "{refused}");
}

#[test]
fn namespaces_come_grow_and_go_and_the_file_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let (config, disk) = (folder.path().join("target.toml"), folder.path().join("disk"));
    std::fs::write(&config, "# Mine.\nnamespaces = [\"mem:size=1MiB\"] # one\n").expect("written");
    let operated = start(&["--quiet", "--config", config.to_str().expect("UTF-8")]);
    let sizes = || -> Vec<(u64, u64)> {
        let all = operated.asked(&["namespaces"]);
        let of = |of: &Value, name: &str| of[name].as_u64().expect("a number");
        let all = all.as_array().expect("a list").iter();
        all.map(|one| (of(one, "nsid"), of(one, "size_bytes"))).collect()
    };
    let spec = format!("file:path={},size=1MiB", disk.display());
    assert_eq!(operated.asked(&["namespace", "add", &spec, "--save"])["nsid"], 2);
    assert_eq!(operated.asked(&["namespace", "add", "mem:size=4MiB"])["nsid"], 3);
    assert_eq!(
        operated.said(&["namespace", "resize", "2", "2MiB", "--save"]).trim(),
        "namespace 2 has its new size"
    );
    assert_eq!(sizes(), [(1, 1 << 20), (2, 2 << 20), (3, 4 << 20)]);
    operated.said(&["namespace", "remove", "1", "--save"]);
    assert_eq!(sizes(), [(2, 2 << 20), (3, 4 << 20)]);
    let saved = std::fs::read_to_string(&config).expect("it is there");
    assert!(saved.starts_with("# Mine.") && saved.contains("# one"), "{saved}");
    // An unsaved change is gone when the file is read again.
    operated.said(&["reload"]);
    assert_eq!(sizes(), [(2, 2 << 20)]);
    let refused = operated.refused(&["namespace", "remove", "7"]);
    assert!(refused.contains("has no namespace 7"), "{refused}");
    let refused = operated.refused(&["namespace", "remove", "2", "--save"]);
    assert!(refused.contains("nothing has changed"), "{refused}");
    assert_eq!(sizes(), [(2, 2 << 20)]);
    assert!(std::fs::read_to_string(&config).expect("it is there").contains("nsid=2"));
}

/// A saved change is served, whatever unsaved changes came before; and the answers are true.
#[test]
fn what_is_saved_is_what_is_served() {
    let folder = tempfile::tempdir().expect("a folder");
    let (config, link) = (folder.path().join("target.toml"), folder.path().join("link"));
    std::fs::write(&config, "namespaces = [\"mem:size=1MiB\"]\n").expect("written");
    std::os::unix::fs::symlink(&config, &link).expect("linked");
    let operated = start(&["--quiet", "--config", link.to_str().expect("UTF-8")]);
    let ids = || -> Vec<u64> {
        let all = operated.asked(&["namespaces"]);
        let all = all.as_array().expect("a list").iter();
        all.map(|one| one["nsid"].as_u64().expect("a number")).collect()
    };
    let saved = || std::fs::read_to_string(&config).expect("it is there");
    assert_eq!(operated.asked(&["namespace", "add", "mem:size=2MiB"])["nsid"], 2);
    assert_eq!(operated.asked(&["namespace", "add", "mem:size=3MiB", "--save"])["nsid"], 3);
    assert!(saved().contains("mem:size=3MiB,nsid=3") && !saved().contains("2MiB"), "{}", saved());
    assert!(std::fs::symlink_metadata(&link).expect("it is there").is_symlink());
    // A namespace that was never saved is removed, and the file does not change.
    let before = saved();
    operated.said(&["namespace", "remove", "2", "--save"]);
    assert_eq!((ids(), saved()), (vec![1, 3], before.clone()));
    // A change that cannot be saved is refused before anything changes, if that is known in advance.
    operated.said(&["namespace", "remove", "3"]);
    assert_eq!(operated.asked(&["namespace", "add", "mem:size=4MiB,nsid=2"])["nsid"], 2);
    let refused = operated.refused(&["namespace", "add", "mem:size=5MiB,nsid=3", "--save"]);
    assert!(refused.contains("nothing has changed") && refused.contains("is taken"), "{refused}");
    assert_eq!((ids(), saved()), (vec![1, 2], before.clone()));
    // Otherwise the error says what has changed.
    std::fs::create_dir(folder.path().join("target.toml.new")).expect("made");
    let refused = operated.refused(&["namespace", "add", "mem:size=5MiB,nsid=9", "--save"]);
    assert!(refused.contains("the change is in force, but cannot be saved"), "{refused}");
    assert!(!refused.contains("nothing has changed"), "{refused}");
    assert_eq!((ids(), saved()), (vec![1, 2, 9], before));
}

/// Edits of the file by one operator do not take effect through a request of another.
#[test]
fn a_file_that_is_edited_meanwhile_is_not_taken_over_by_the_way() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("target.toml");
    let all = "namespaces = [\"mem:size=1MiB\", \"mem:size=2MiB\", \"mem:size=3MiB\"]\n";
    let edited = "namespaces = [\"mem:size=2MiB,nsid=2\", \"mem:size=3MiB,nsid=3\"]\n";
    std::fs::write(&config, all).expect("written");
    let operated = start(&["--quiet", "--config", config.to_str().expect("UTF-8")]);
    let served = || -> Vec<(u64, u64)> {
        let all = operated.asked(&["namespaces"]);
        let of = |of: &Value, name: &str| of[name].as_u64().expect("a number");
        let all = all.as_array().expect("a list").iter();
        all.map(|one| (of(one, "nsid"), of(one, "size_bytes") >> 20)).collect()
    };
    std::fs::write(&config, edited).expect("written");
    operated.said(&["namespace", "remove", "2"]);
    assert_eq!(served(), [(1, 1), (3, 3)]);
    for change in
        [["namespace", "remove", "1", "--save"], ["namespace", "add", "mem:size=4MiB", "--save"]]
    {
        let refused = operated.refused(&change);
        assert!(refused.contains("have changed since it was read"), "{refused}");
    }
    assert_eq!(served(), [(1, 1), (3, 3)]);
    assert_eq!(std::fs::read_to_string(&config).expect("it is there"), edited);
    operated.said(&["reload"]);
    assert_eq!(operated.asked(&["namespace", "add", "mem:size=4MiB", "--save"])["nsid"], 4);
    assert_eq!(served(), [(2, 2), (3, 3), (4, 4)]);
}

/// A connection from an address of this machine.
fn connect_from(address: [u8; 4], to: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let socket = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None)?;
    net::bind(&socket, &SocketAddr::from((address, 0)))?;
    net::connect(&socket, &to)?;
    Ok(socket)
}

/// A flood of requests from another address does not keep a scrape from its answer.
fn scrapes_come_through_a_flood(operated: &Operated) {
    let to: SocketAddr = operated.metrics.parse().expect("an address");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut open = VecDeque::new();
            while !is_over.load(Ordering::Relaxed) {
                let Ok(socket) = connect_from([127, 0, 0, 2], to) else { continue };
                let _ = rustix::io::write(&socket, b"GET /report HTTP/1.1\r\n\r\n");
                open.push_back(socket);
                if open.len() > 200 {
                    open.pop_front();
                }
            }
        });
        let answered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..10 {
                assert!(operated.metrics().ends_with("# EOF\n"));
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        if let Err(panic) = answered {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn malformed_requests_are_refused() {
    let operated = start(&["--quiet", "--namespace", "mem:size=1MiB"]);
    let status =
        |request: &str| operated.http(request).0.lines().next().unwrap_or_default().to_owned();
    assert!(status("GET / HTTP/1.1\r\n\r\n").contains("200"));
    assert!(status("GET /secret HTTP/1.1\r\n\r\n").contains("404"));
    assert!(status("POST /metrics HTTP/1.1\r\n\r\n").contains("405"));
    assert!(status("\u{1}\r\n\r\n").contains("400"));
    assert!(status(&format!("GET /{} HTTP/1.1\r\n", "x".repeat(9000))).contains("431"));
    let (head, body) = operated.http("HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.contains("Content-Length: ") && body.is_empty());
    // Clients that send nothing or receive nothing do not delay others, however many they are.
    let begun = Instant::now();
    let silent: Vec<TcpStream> = (0..500)
        .map(|number| {
            let mut stream = TcpStream::connect(&operated.metrics).expect("it listens");
            let words = ["", "GET /metr", "GET /metrics HTTP/1.1\r\n\r\n"][number % 3];
            // The connection may have been closed in favour of others.
            let _ = stream.write_all(words.as_bytes());
            stream
        })
        .collect();
    assert!(operated.metrics().ends_with("# EOF\n"));
    assert!(begun.elapsed() < Duration::from_secs(60));
    let tasks = format!("/proc/{}/task", operated.target.child.id());
    let threads = || std::fs::read_dir(&tasks).expect("it runs").count();
    // The threads of closed connections end when they next get a processor.
    within(Duration::from_secs(60), "few threads are left", || threads() < 60);
    drop(silent);
    scrapes_come_through_a_flood(&operated);
    // The page loads nothing from other servers.
    let (_, page) = operated.http("GET / HTTP/1.1\r\n\r\n");
    assert!(
        !page.contains("http://") && !page.contains("https://") && page.contains("src=\"page.js\"")
    );
    for (part, beginning) in [("page.js", "\"use strict\""), ("page.css", ":root")] {
        let (head, body) = operated.http(&format!("GET /{part} HTTP/1.1\r\n\r\n"));
        assert!(head.contains("script-src 'self';") && body.starts_with(beginning), "{head}");
    }
    // The control socket: lines that are no requests, or too long.
    let mut stream = std::os::unix::net::UnixStream::connect(&operated.socket).expect("it listens");
    stream.write_all(b"{}\n").expect("sent");
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).expect("an answer");
    assert!(line.contains("-32600"), "{line}");
    let _ = stream.write_all(&vec![b'x'; 1 << 20]);
    assert_eq!(std::io::copy(&mut stream, &mut std::io::sink()).unwrap_or(0), 0);
    let second = Command::new(BPFOF)
        .args(["target", "--listen", "127.0.0.1:0", "--namespace", "mem:size=1MiB", "--control"])
        .arg(&operated.socket)
        .output()
        .expect("bpfof starts");
    let errors = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success() && errors.contains("another process serves it"), "{errors}");
    let nobody = bad(&["ctl", "--socket", "/nowhere/control.sock", "hosts"]);
    assert!(nobody.contains("--control"), "{nobody}");
}

/// The names of metrics in a text.
fn names(text: &str) -> std::collections::BTreeSet<String> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_of_name(c));
    words.filter(|word| word.starts_with("bpfof_")).map(str::to_owned).collect()
}

/// A file that fails is seen also if hosts only run chains over it.
#[test]
fn device_errors_are_counted_for_chains_as_well() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("image");
    let file = std::fs::File::create(&image).expect("created");
    file.set_len(8 << 20).expect("room");
    let operated = start(&["--quiet", "--namespace", &format!("file:path={}", image.display())]);
    let (mut controller, mut lane) = connect(&operated.target.url, 7);
    let function = controller.load_function(bpfkv::GET_OBJECT, 0).expect("loaded");
    let errors = || {
        let labels = "subsystem=\"nqn.2026-01.io.bpf-of:target\",nsid=\"1\"}";
        operated.metric(&format!("bpfof_device_errors_total{{{labels}"))
    };
    get(&mut lane, (1, function.0), (4242, 1 << 40)).expect_err("beyond the end");
    assert_eq!(errors(), 0.0);
    file.set_len(4096).expect("cut");
    get(&mut lane, (1, function.0), (4242, 1 << 20)).expect_err("cut off");
    assert_eq!(errors(), 1.0);
    lane.read(1, 1 << 20, &mut [0; 512]).expect_err("cut off");
    assert_eq!(errors(), 2.0);
}

/// The dashboard and the rules name existing metrics, and every metric is explained.
#[test]
fn metrics_in_dashboards_and_rules_exist() {
    let operated = start(&["--quiet", "--namespace", "mem:size=1MiB"]);
    let folder = tempfile::tempdir().expect("a folder");
    let object = folder.path().join("get.o");
    std::fs::write(&object, bpfkv::GET_OBJECT).expect("written");
    let object = object.to_str().expect("UTF-8");
    good(&["function", "load", "--target", &operated.target.url, object]);
    let (_controller, mut lane) = connect(&operated.target.url, 3);
    lane.read(1, 0, &mut [0; 512]).expect("read");
    let text = operated.metrics();
    let there: std::collections::BTreeSet<String> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next().map(str::to_owned))
        .collect();
    let packaging = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");
    for file in ["grafana/dashboard.json", "prometheus/alerts.yml"] {
        let file = std::fs::read_to_string(format!("{packaging}/{file}")).expect("it is there");
        let named = names(&file);
        assert!(named.len() > 5, "{named:?}");
        let missing: Vec<_> = named.difference(&there).collect();
        assert!(missing.is_empty(), "{missing:?} of {there:?}");
    }
    let page =
        std::fs::read_to_string(format!("{packaging}/../docs/operating.md")).expect("a page");
    let family = |name: &String| {
        let ends = ["_bucket", "_count", "_sum"].iter();
        ends.fold(name.clone(), |name, end| name.trim_end_matches(end).to_owned())
    };
    let explained = names(&page);
    let missing: Vec<_> =
        there.iter().map(family).filter(|name| !explained.contains(name)).collect();
    assert!(missing.is_empty(), "docs/operating.md does not explain {missing:?}");
}

/// Protects against a foreign web page that reads metrics by a name of its own (DNS rebinding).
#[test]
fn metrics_need_a_host_name_of_the_target() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("target.toml");
    let text = "namespaces = [\"mem:size=1MiB\"]\nmetrics-names = [\"of-the-file.example.org\"]\n";
    std::fs::write(&config, text).expect("written");
    let config = config.to_str().expect("UTF-8");
    let named = ["--metrics-name", "given.example.org", "--metrics-name", "Other.Example.Org"];
    let operated = start(&[&["--quiet", "--config", config], &named[..]].concat());
    for path in ["/metrics", "/", "/report", "/slow"] {
        let ask =
            |host: &str| operated.http(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        for host in ["127.0.0.1", "localhost:9420", "storage1", "[::1]:9420"].into_iter().chain([
            "of-the-file.example.org",
            "given.example.org:9420",
            "other.example.org",
        ]) {
            let (head, _) = ask(host);
            assert!(head.starts_with("HTTP/1.1 200 OK"), "{path}, {host}: {head}");
        }
        for host in ["example.org", "evil.given.example.org", "given.example.org.evil.example"] {
            let (head, body) = ask(host);
            assert!(head.starts_with("HTTP/1.1 421 "), "{path}, {host}: {head}");
            assert!(body.contains("metrics-names"), "{body}");
        }
    }
}

/// Another implementation of OpenMetrics parses all metrics, while the target works.
#[test]
fn the_parser_of_the_python_client_reads_the_metrics() {
    let operated = start(&["--quiet", "--namespace", "mem:size=8MiB"]);
    good(&["kv", "create", "--levels", "3", "--target", &operated.target.url]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| {
            let (_controller, mut lane) = connect(&operated.target.url, 8);
            while !stop.load(Ordering::Relaxed) {
                lane.read(1, 0, &mut [0; 512]).expect("read");
            }
        });
        for _ in 0..5 {
            parse_by_python(&operated.metrics());
        }
    });
}

fn parse_by_python(text: &str) {
    let script = "
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
families = {f.name: f for f in text_string_to_metric_families(sys.stdin.read())}
counted = {s.labels['class']: s.value for s in families['bpfof_commands'].samples}
latency = families['bpfof_command_duration_seconds']
assert latency.type == 'histogram' and latency.unit == 'seconds', latency
ends = [s.labels['le'] for s in latency.samples if s.name.endswith('_bucket') and s.labels['class'] == 'write']
assert ends[-1] == '+Inf' and len(ends) == 27, ends
count = [s.value for s in latency.samples if s.name.endswith('_count') and s.labels['class'] == 'write']
assert count == [counted['write']] and count[0] > 0, (count, counted)
for name in ('host_command', 'reactor_command'):
    family = families[f'bpfof_{name}_duration_seconds']
    counts = {s.labels['class']: s.value for s in family.samples if s.name.endswith('_count')}
    assert name == 'host_command' or counts['write'] == counted['write'], (counts, counted)
print(len(families))
";
    let mut python = Command::new("/usr/bin/python3")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    python.stdin.take().expect("piped").write_all(text.as_bytes()).expect("taken");
    let output = python.wait_with_output().expect("ended");
    assert!(output.status.success(), "see above; scripts/setup.sh prometheus installs the parser");
    let families: u32 = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number");
    assert!(families >= 20, "{families}");
}
