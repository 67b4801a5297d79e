//! `bpfof top` as a person sees it, in a terminal.

mod command;
mod operated;
mod terminal;

use bpfof_host::{Controller, Options, TargetUrl};
use command::{BPFOF, Target, bad, good, json};
use operated::get;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use terminal::Terminal;

/// Longest wait for the first chain of a host.
const PATIENCE: Duration = Duration::from_secs(60);

/// A target with a control socket and a database.
fn serve(socket: &Path, namespace: &str) -> Target {
    let mut command = Target::command();
    command.args(["--namespace", namespace, "--control"]).arg(socket);
    let target = Target::run(command);
    good(&["kv", "create", "--levels", "3", "--target", &target.url]);
    target
}

/// Hosts that look keys up until they are stopped, or the target ends.
struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Returns when the first chain of each host has ended.
    fn start(url: &str, hosts: u8) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let (works, working) = channel();
        let thread = |number: u8| {
            let mut url: TargetUrl = url.parse().expect("an address");
            url.host_nqn = Some(host(number));
            let (stop, works) = (Arc::clone(&stop), works.clone());
            std::thread::spawn(move || look_up(&url, number, &stop, works))
        };
        let threads = (1..=hosts).map(thread).collect();
        let load = Load { stop, threads };
        (0..hosts).for_each(|_| working.recv_timeout(PATIENCE).expect("each host works"));
        load
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn host(number: u8) -> String {
    format!("nqn.2026-01.org.example:app{number}")
}

/// One chain after the other, with a read after every `number` of them. Tells `works` when the first has ended.
fn look_up(url: &TargetUrl, number: u8, stop: &AtomicBool, works: Sender<()>) {
    let mut controller =
        Controller::connect(url, Options::for_host([number; 16])).expect("connected");
    let function = controller.load_function(bpfkv::GET_OBJECT, 0).expect("loaded");
    let mut lane = controller.open_lane().expect("a lane");
    let mut block = vec![0; 4096];
    let mut works = Some(works);
    for key in (0..).map(|key| key % 1000) {
        // A host that is kicked or has lost the target ends.
        if stop.load(Ordering::Relaxed)
            || get(&mut lane, (1, function.0), (key, 0)).is_err()
            || (key % u64::from(number) == 0 && lane.read(1, 0, &mut block).is_err())
        {
            return;
        }
        works.take().into_iter().for_each(|works| works.send(()).expect("the test waits"));
    }
}

fn top(socket: &str, lines: u16, columns: u16) -> Terminal {
    Terminal::run(BPFOF, &["top", "--socket", socket, "--interval", "0.2"], lines, columns)
}

/// Whether the row with these words has rates that are not 0.
fn works(text: &str, words: &str) -> bool {
    let row = text.lines().find(|line| line.contains(words)).unwrap_or_default();
    let figure = |word: &str| word.replace(',', "").parse::<f64>().is_ok_and(|rate| rate > 1.0);
    row.split("  ").filter(|word| figure(word.trim())).count() > 1
}

#[test]
fn a_target_is_watched_and_hosts_are_kicked() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("control.sock");
    let socket = path.to_str().expect("UTF-8");
    let served = serve(&path, "mem:size=8MiB");
    let load = Load::start(&served.url, 2);
    let mut terminal = top(socket, 30, 200);
    let host = &host(2);
    terminal.until("rates of hosts", |text| works(text, host) && text.contains("1 hosts (2)"));
    terminal.press("2");
    terminal.until("namespaces", |text| {
        text.contains("chains/s▼") && text.contains("p99") && text.contains(" µs")
    });
    terminal.press("4");
    terminal.until_shows(&["reactor▲", "chains waiting", "busy", " %"]);
    terminal.press("3");
    terminal.until_shows(&["hops/chain", "faults"]);
    terminal.press("?");
    terminal.until_shows(&["end all associations of the chosen host"]);
    // Closes the help, then back to the hosts, sorted by name, the last one chosen.
    terminal.press("x1SS");
    terminal.until_shows(&["host▲"]);
    terminal.press("\x1b[F");
    terminal.press("k");
    terminal.until_shows(&["End all associations of this host?", host]);
    terminal.press("n");
    terminal.until_shows(&["no host was kicked", "1 hosts (2)"]);
    terminal.press("ky");
    terminal.until_shows(&["1 associations of", "1 hosts (1)"]);
    terminal.press("p");
    terminal.until_shows(&["paused"]);
    terminal.resize(12, 60);
    terminal.until("the smaller screen", |text| {
        text.contains("paused") && text.lines().all(|line| line.chars().count() <= 60)
    });
    // A key that arrives together with a change of the size is not lost.
    terminal.resize(13, 60);
    terminal.press("q");
    assert!(terminal.ended().success());
    drop(load);
}

#[test]
fn a_target_that_comes_back_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("control.sock");
    let socket = path.to_str().expect("UTF-8");
    let mut terminal = top(socket, 24, 200);
    terminal.until_shows(&["lost, trying again", "control.sock"]);
    let first = serve(&path, "mem:size=8MiB");
    terminal.until_shows(&["every 0.2 s", "1 hosts (0)"]);
    drop(first);
    terminal.until_shows(&["lost, trying again", "1 hosts (0)"]);
    let second = serve(&path, "mem:size=8MiB");
    let load = Load::start(&second.url, 1);
    terminal.until("rates again", |text| works(text, &host(1)));
    drop(load);
    // In this terminal Ctrl-C is a key; a signal from another process ends the program as well.
    terminal.press("\x03");
    assert!(terminal.ended().success());
    let mut terminal = top(socket, 24, 200);
    terminal.until_shows(&["every 0.2 s"]);
    let pid = Pid::from_child(&terminal.child);
    kill_process(pid, Signal::TERM).expect("it runs");
    assert!(terminal.ended().success());
}

#[test]
fn figures_are_printed_for_programs() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("control.sock");
    let socket = path.to_str().expect("UTF-8");
    let arguments = ["top", "--socket", socket, "--once", "--interval", "1"];
    assert!(bad(&arguments).contains("--control"));
    let served = serve(&path, "mem:size=8MiB");
    let load = Load::start(&served.url, 1);
    let figures = json(&[&arguments[..], &["--json"]].concat());
    assert_eq!(figures["connections"], 2, "{figures}");
    assert_eq!(figures["hosts"][0]["hops_per_chain"], 4.0, "{figures}");
    assert!(figures["namespaces"][0]["chain_p99_us"].is_number(), "{figures}");
    let text = good(&arguments);
    assert!(text.contains("reactor") && text.contains(&host(1)), "{text}");
    drop(load);
    let no_terminal = bad(&["top", "--socket", socket]);
    assert!(no_terminal.contains("--once or --json"), "{no_terminal}");
    assert!(bad(&["top", "--interval", "0"]).contains("0.1 to 3600"));
}

/// `make pictures`: the pictures of the documentation, of a target that works.
#[test]
#[ignore = "writes into docs/images: make pictures"]
fn pictures() {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images");
    std::fs::create_dir_all(&images).expect("a folder");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("control.sock");
    let served = serve(&path, "mem:size=8MiB,latency_us=90");
    let load = Load::start(&served.url, 3);
    let socket = path.to_str().expect("UTF-8");
    let arguments = ["trace", "--socket", socket, "--every", "1000", "--count", "2"];
    let mut terminal = Terminal::run(BPFOF, &arguments, 17, 140);
    assert!(terminal.ended().success());
    terminal.until("two chains", |text| text.matches("waited for").count() == 2);
    std::fs::write(
        images.join("trace.svg"),
        terminal.picture("bpfof trace --every 1000 --count 2"),
    )
    .expect("written");
    let arguments = ["top", "--socket", socket, "--interval", "0.2"];
    let mut terminal = Terminal::run(BPFOF, &arguments, 18, 150);
    terminal
        .until("three hosts", |text| (1..=3).all(|number| works(text, &format!("app{number}"))));
    terminal.press("\x1b[B");
    // Long enough for a curve.
    std::thread::sleep(std::time::Duration::from_secs(12));
    for (key, name, word) in [("1", "top-hosts", "host"), ("2", "top-namespaces", "subsystem")] {
        terminal.press(key);
        terminal.until_shows(&[word]);
        std::fs::write(images.join(name).with_extension("svg"), terminal.picture("bpfof top"))
            .expect("written");
    }
    drop(load);
}
