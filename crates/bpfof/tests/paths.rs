//! Several paths to one disk, while targets are drained, replaced and killed.

mod command;
mod port;
mod wait;

use bpfof_host::{Controller, Error, Lane, Options, Sqe, Status, TargetUrl};
use command::{BPFOF, Target, bad, good, json};
use port::Port;
use rustix::fs::{FileType, FlockOperation, Mode, flock};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use wait::within;

const UUID: &str = "6f2d1a3c-8a5e-4b0c-9d57-0a4f6a1e2b3c";
const NQN: &str = "nqn.2026-01.io.bpf-of:target";
/// Longest wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(60);
const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;

/// A folder with a disk, and targets that serve it.
struct Place {
    folder: TempDir,
    /// Further options of the disk's namespace.
    more: String,
}

impl Place {
    /// A folder with a disk that several targets serve.
    fn shared() -> Place {
        Place { more: format!(",uuid={UUID}"), ..Place::alone() }
    }

    /// A folder with a disk that only one target serves.
    fn alone() -> Place {
        Place { folder: tempfile::tempdir().expect("a folder"), more: String::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command of a target that serves the disk.
    fn command(&self, control: &str, more: &[&str]) -> Command {
        let disk = self.path("disk");
        let mut command = Command::new(BPFOF);
        command.args(["target", "--json", "--quiet", "--exit-with-parent", "--namespace"]);
        command.arg(format!("file:path={},size=1MiB{}", disk.display(), self.more));
        command.arg("--control").arg(self.path(control)).args(more);
        command
    }

    fn disk(&self) -> String {
        format!("file:path={}", self.path("disk").display())
    }

    fn ctl(&self, control: &str, words: &[&str]) -> Vec<String> {
        let socket = self.path(control).display().to_string();
        ["ctl", "--socket", &socket].iter().chain(words).map(|word| (*word).to_owned()).collect()
    }

    fn said(&self, control: &str, words: &[&str]) -> String {
        let all = self.ctl(control, words);
        good(&all.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn asked(&self, control: &str, words: &[&str]) -> Value {
        let all = self.ctl(control, &[words, &["--json"]].concat());
        json(&all.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn refused(&self, control: &str, words: &[&str]) -> String {
        let all = self.ctl(control, words);
        bad(&all.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

/// Starts a target; returns it with all addresses that it listens on, and that of its metrics.
fn run(command: Command) -> (Target, Vec<String>, Option<String>) {
    let (target, announced) = Target::announced(command);
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    let addresses = announced["addresses"].as_array().expect("a list").iter().map(text).collect();
    (target, addresses, announced["metrics"].as_str().map(str::to_owned))
}

/// One path to the disk.
struct Way {
    url: TargetUrl,
    connection: Option<(Controller, Lane)>,
}

impl Way {
    fn new(address: &str) -> Way {
        let url = format!("nvme-tcp://{address}/{NQN}").parse().expect("an address");
        Way { url, connection: None }
    }

    /// Connects, and reads the ANA log, as a host with multipath does.
    fn connect(&mut self) -> Result<&mut (Controller, Lane), Error> {
        if self.connection.is_none() {
            let mut controller = Controller::connect(&self.url, Options::for_host([9; 16]))?;
            // Get Log Page, Asymmetric Namespace Access, 16 dwords.
            let log = Sqe { cdw10: 0x0c | 15 << 16, ..Sqe::new(0x02, u32::MAX) };
            controller.admin_command(log, &[], 64)?;
            let lane = controller.open_lane()?;
            self.connection = Some((controller, lane));
        }
        Ok(self.connection.as_mut().expect("just made"))
    }

    /// Connects again if the connection is lost. Returns 1 if no target listened, else 0.
    fn keep(&mut self) -> u64 {
        if self.connection.as_mut().is_some_and(|(controller, _)| !controller.check_connected()) {
            self.connection = None;
        }
        self.connect().map_or_else(|error| u64::from(check(&error)), |_| 0)
    }

    fn try_it(&mut self, number: u64) -> Result<(), Error> {
        let (_, lane) = self.connect()?;
        let at = number % BLOCKS * BLOCK as u64;
        let block = [number as u8; BLOCK];
        lane.write(1, at, &block)?;
        let mut back = vec![0; BLOCK];
        lane.read(1, at, &mut back)?;
        assert_eq!(back, block, "block {at}");
        Ok(())
    }
}

/// The experiences of a host.
#[derive(Debug, Default)]
struct Met {
    done: u64,
    longest_pause: Duration,
    /// How often no target listened.
    refused: u64,
    moved: u64,
}

/// A host that writes and reads, by whatever path works. It retries after the errors after which a host may, and panics
/// on others.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: JoinHandle<Met>,
}

impl Load {
    fn start(addresses: &[&str]) -> Load {
        let mut ways: Vec<Way> = addresses.iter().map(|address| Way::new(address)).collect();
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stops, counts) = (Arc::clone(&stop), Arc::clone(&done));
        let work = move || {
            let (mut met, mut now, mut last) = (Met::default(), 0, Instant::now());
            while !stops.load(Ordering::Relaxed) {
                match ways[now].try_it(met.done) {
                    Ok(()) => {
                        met.longest_pause = met.longest_pause.max(last.elapsed());
                        last = Instant::now();
                        met.done += 1;
                        counts.store(met.done, Ordering::Relaxed);
                        if met.done.is_multiple_of(16) {
                            met.refused += ways.iter_mut().map(Way::keep).sum::<u64>();
                        }
                        continue;
                    }
                    Err(Error::Command { source, .. })
                        if source.status.same_code(Status::ANA_INACCESSIBLE) => {}
                    Err(error) => {
                        met.refused += u64::from(check(&error));
                        ways[now].connection = None;
                    }
                }
                met.moved += 1;
                now = (now + 1) % ways.len();
                assert!(last.elapsed() < PATIENCE, "no way works");
                std::thread::sleep(Duration::from_millis(1));
            }
            met
        };
        let load = Load { stop, done, thread: std::thread::spawn(work) };
        load.go_on(10);
        load
    }

    /// Waits until `more` further operations are done.
    fn go_on(&self, more: u64) {
        let goal = self.done.load(Ordering::Relaxed) + more;
        within(PATIENCE, "the load goes on", || {
            assert!(!self.thread.is_finished(), "the load has failed");
            self.done.load(Ordering::Relaxed) >= goal
        });
    }

    fn end(self) -> Met {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no error but those that may be tried again")
    }
}

/// Whether no target listened; panics on errors after which a host may not retry.
fn check(error: &Error) -> bool {
    match error {
        Error::Connect { source, .. } => source.kind() == std::io::ErrorKind::ConnectionRefused,
        Error::Lost(_) | Error::NoGreeting { .. } | Error::NotReady { .. } => false,
        // Busy, or the queue reached another process than the one with its association: the host may try again.
        Error::Command { source, .. } if !source.status.dnr() => false,
        other => panic!("{other}"),
    }
}

fn first_of<'a>(listeners: &'a Value, what: &str) -> &'a Value {
    &listeners[0][what]
}

#[test]
fn operators_see_and_change_paths() {
    let place = Place::alone();
    let listen = ["--listen", "127.0.0.1:0,id=5,advertise=192.0.2.7", "--listen", "[::1]:0"];
    let (_target, addresses, _) = run(place.command("control", &listen));
    let load = Load::start(&[&addresses[0], &addresses[1]]);
    let listeners = place.asked("control", &["listeners"]);
    assert_eq!(*first_of(&listeners, "id"), 5);
    assert_eq!(*first_of(&listeners, "advertised"), "192.0.2.7");
    assert_eq!(listeners[1]["address"], addresses[1].as_str());
    assert_eq!(*first_of(&listeners, "ana"), serde_json::json!({ "1": "optimized" }));
    let drained = place.asked("control", &["drain", "--listener", "192.0.2.7"]);
    assert_eq!(*first_of(&drained, "drained"), true);
    assert_eq!(
        (first_of(&drained, "busy"), first_of(&drained, "in_flight")),
        (&0.into(), &0.into())
    );
    assert_eq!(drained[1]["drained"], false);
    load.go_on(10);
    let words = place.said("control", &["listeners"]);
    assert!(words.contains("drained") && words.contains("optimized"), "{words}");
    let open = place.asked("control", &["undrain", "--listener", "5"]);
    assert_eq!(*first_of(&open, "drained"), false);
    place.said("control", &["drain", "--listener", &addresses[1], "--close"]);
    load.go_on(10);
    place.said("control", &["undrain"]);
    place.said("control", &["ana", "non-optimized", "--listener", "2", "--group", "1"]);
    let states = place.asked("control", &["listeners"]);
    assert_eq!(states[1]["ana"]["1"], "non-optimized");
    let unknown = place.refused("control", &["drain", "--listener", "9"]);
    assert!(unknown.contains("there is no listener \"9\"") && unknown.contains("5 ("), "{unknown}");
    let group = place.refused("control", &["ana", "optimized", "--group", "99"]);
    assert!(group.contains("1 to 32"), "{group}");
    let met = load.end();
    assert!(met.moved >= 1 && met.refused == 0, "{met:?}");
}

/// A drain is not reported as done while commands are in flight.
#[test]
fn a_drain_that_takes_too_long_says_so() {
    let place = Place::alone();
    let listen = ["--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--namespace"];
    let mut command = place.command("control", &listen);
    // Long enough for the two commands after it, on a busy machine.
    command.arg("mem:size=1MiB,latency_us=12000000");
    let (_target, addresses, _) = run(command);
    let mut way = Way::new(&addresses[0]);
    way.try_it(1).expect("served");
    let slow = std::thread::spawn(move || {
        let (_, lane) = way.connect().expect("connected");
        lane.read(2, 0, &mut [0; 512])
    });
    within(PATIENCE, "it is in flight", || {
        place.asked("control", &["listeners"])[0]["in_flight"] == 1
    });
    let late = place.refused("control", &["drain", "--listener", &addresses[0], "--timeout", "0"]);
    assert!(late.contains("stay drained") && late.contains("in flight"), "{late}");
    let host = Options::for_host([9; 16]).host_nqn;
    assert!(late.contains(&host), "{late}");
    // Others do not wait for it.
    place.said("control", &["drain", "--listener", &addresses[1], "--timeout", "0"]);
    let drained = place.asked("control", &["drain"]);
    assert_eq!(*first_of(&drained, "in_flight"), 0);
    slow.join().expect("it ends").expect("and well");
}

fn scrape(metrics: &str) -> bool {
    let mut stream = TcpStream::connect(metrics).expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer.starts_with("HTTP/1.1 200 OK") && answer.contains("bpfof_build")
}

/// One process after the other takes over, under load: no host is ever refused, and nothing is lost.
#[test]
fn a_new_process_takes_over_under_load() {
    let place = Place::alone();
    let port_free = ["--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"];
    let more = [&port_free[..], &["--metrics", "127.0.0.1:0", "--cntlid", "1-32000"]].concat();
    let (mut old, addresses, metrics) = run(place.command("control", &more));
    let metrics = metrics.expect("there are metrics");
    let load = Load::start(&[&addresses[0], &addresses[1]]);
    for _ in 0..3 {
        let control = place.path("control").display().to_string();
        let [one, two] = [&addresses[0], &addresses[1]];
        let same = ["--listen", one, "--listen", two, "--metrics", &metrics];
        let same = [&same[..], &["--cntlid", "1-32000", "--take-over", &control]].concat();
        let (new, its, its_metrics) = run(place.command("control", &same));
        assert_eq!((&its, its_metrics.as_ref()), (&addresses, Some(&metrics)));
        // The old process ends by itself, with success.
        assert_eq!(old.wait_for(PATIENCE), Some(0));
        load.go_on(100);
        assert!(place.asked("control", &["version"]).is_string(), "the control socket has moved");
        assert!(scrape(&metrics), "and the metrics");
        let reached = place.asked("control", &["connections"]);
        assert!(!reached.as_array().expect("a list").is_empty());
        old = new;
    }
    let met = load.end();
    assert!(met.refused == 0 && met.moved >= 3, "{met:?}");
    println!("the longest pause was {:?}: {met:?}", met.longest_pause);
    // Two processes shared the lock of the file for a while; now one holds it alone again.
    let disk = place.disk();
    let refused = bad(&["target", "--listen", "127.0.0.1:0", "--namespace", &disk]);
    assert!(refused.contains("in use by another target"), "{refused}");
    old.signal(Signal::TERM);
    assert_eq!(old.wait(), Some(0));
    assert!(!place.path("control").exists(), "it takes its control socket away");
}

/// A file that cannot be opened keeps nobody from ending the target.
#[test]
fn a_target_ends_although_its_configuration_cannot_be_read() {
    let place = Place::alone();
    let [file, socket] = ["target.toml", "control"].map(|name| place.path(name));
    let text = format!(
        "listen = \"127.0.0.1:0\"\nnamespaces = [\"mem:size=1MiB\"]\ncontrol = {socket:?}\n"
    );
    fs::write(&file, text).expect("written");
    let mut command = Command::new(BPFOF);
    command.args(["target", "--json", "--quiet", "--exit-with-parent", "--config"]).arg(&file);
    let (mut target, ..) = run(command);
    fs::remove_file(&file).expect("it was there");
    rustix::fs::mknodat(rustix::fs::CWD, &file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
        .expect("a pipe with a name");
    let reload = place.ctl("control", &["reload"]);
    let mut reload =
        Command::new(BPFOF).args(reload).stderr(Stdio::null()).spawn().expect("it runs");
    let mut pipe = None;
    within(PATIENCE, "the configuration is being read", || {
        // As long as nobody reads, it cannot be opened in this way.
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
        pipe = rustix::fs::open(&file, flags, Mode::empty()).ok();
        pipe.is_some()
    });
    target.signal(Signal::TERM);
    assert_eq!(target.wait_for(PATIENCE), Some(1));
    assert!(!reload.wait().expect("it ends").success());
}

/// A listener that an operator has drained stays drained.
#[test]
fn a_take_over_keeps_drained_listeners() {
    let place = Place::alone();
    let listen = ["--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--cntlid", "1-32000"];
    let (mut old, addresses, _) = run(place.command("control", &listen));
    place.said("control", &["drain", "--listener", &addresses[1]]);
    let control = place.path("control").display().to_string();
    let [one, two] = [&addresses[0], &addresses[1]];
    let same = ["--listen", one, "--listen", two, "--cntlid", "1-32000", "--take-over", &control];
    let (_new, ..) = run(place.command("control", &same));
    assert_eq!(old.wait_for(PATIENCE), Some(0));
    let listeners = place.asked("control", &["listeners"]);
    assert_eq!([&listeners[0]["drained"], &listeners[1]["drained"]], [false, true]);
    let open = place.asked("control", &["undrain", "--listener", two]);
    assert_eq!(open[1]["drained"], false);
}

/// If a process that takes over ends before all hosts have moved, the old process, which no host can reach any more,
/// stops as well.
#[test]
fn a_target_whose_successor_is_gone_stops() {
    let place = Place::alone();
    let (mut target, ..) = run(place.command("control", &["--listen", "127.0.0.1:0"]));
    let mut successor = UnixStream::connect(place.path("control")).expect("it answers");
    let retire = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"retire\"}\n";
    successor.write_all(retire.as_bytes()).expect("sent");
    let mut answer = [0; 256];
    let length = successor.read(&mut answer).expect("an answer");
    assert!(length > 0);
    drop(successor);
    assert_eq!(target.wait_for(PATIENCE), Some(0));
}

/// A take-over that is impossible is refused, and the old target continues to serve.
#[test]
fn a_take_over_that_cannot_be_is_refused() {
    let place = Place::alone();
    let listen = ["--listen", "127.0.0.1:0"];
    let (_target, addresses, _) = run({
        let mut command = place.command("control", &listen);
        command.args(["--namespace", "mem:size=1MiB"]);
        command
    });
    let load = Load::start(&[&addresses[0]]);
    let socket = place.path("control").display().to_string();
    let disk = place.disk();
    let take_over = |from: &str, control: &str| {
        bad(&[
            "target",
            "--listen",
            &addresses[0],
            "--namespace",
            &disk,
            "--take-over",
            from,
            "--control",
            control,
        ])
    };
    let lost = take_over(&socket, &socket);
    assert!(lost.contains("is memory of this process, and would be lost"), "{lost}");
    let nobody = take_over(&place.path("nobody").display().to_string(), &socket);
    assert!(nobody.contains("only a target with --control has this socket"), "{nobody}");
    load.go_on(10);
    assert_eq!(load.end().moved, 0);
    assert!(place.asked("control", &["version"]).is_string());
}

/// A process asks for the sockets and the files, and gives up: then one target has the files alone again.
#[test]
fn a_take_over_that_is_given_up_leaves_files_locked() {
    let place = Place::alone();
    let (_target, ..) = run(place.command("control", &["--listen", "127.0.0.1:0"]));
    let mut successor = UnixStream::connect(place.path("control")).expect("it answers");
    let hand_over = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"hand-over\"}\n";
    successor.write_all(hand_over.as_bytes()).expect("sent");
    let mut answer = [0; 256];
    assert!(successor.read(&mut answer).expect("an answer") > 0);
    // It may have read the configuration already.
    let socket = place.path("control").display().to_string();
    let refused = bad(&["ctl", "--socket", &socket, "reload"]);
    assert!(refused.contains("another target is taking over"), "{refused}");
    drop(successor);
    // A shared lock of the file is refused if the target has an exclusive one.
    let file = fs::File::open(place.path("disk")).expect("it is there");
    let begun = Instant::now();
    while flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        assert!(begun.elapsed() < PATIENCE, "others may still share it");
        flock(&file, FlockOperation::Unlock).expect("unlocked");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Two targets on one file: one is drained, stopped, killed; the other continues.
#[test]
fn two_targets_on_one_disk() {
    let place = Place::shared();
    let start = |control: &str, address: &str, cntlid: &str| {
        run(place.command(control, &["--listen", address, "--cntlid", cntlid]))
    };
    let port = Port::reserve();
    let (mut one, at_one, _) = start("one", &port.address(), "1-32000");
    let (_two, at_two, _) = start("two", "127.0.0.1:0", "32001-65000");
    let load = Load::start(&[&at_one[0], &at_two[0]]);
    for signal in [Signal::TERM, Signal::KILL, Signal::TERM] {
        place.said("two", &["drain"]);
        place.said("two", &["undrain"]);
        // Make the host use the first target again.
        place.said("two", &["ana", "inaccessible"]);
        load.go_on(10);
        place.said("two", &["ana", "optimized"]);
        one.signal(signal);
        one.child.wait().expect("it ends");
        load.go_on(10);
        one = start("one", &at_one[0], "1-32000").0;
    }
    let met = load.end();
    assert!(met.moved >= 3, "{met:?}");
    println!("the longest pause was {:?}: {met:?}", met.longest_pause);
}

/// Keys and rules are read again, and nothing else.
#[test]
fn keys_are_read_again_and_nothing_else() {
    let place = Place::alone();
    let config = place.path("target.toml");
    let disk = place.path("disk");
    let rule = |nqn: &str| format!("[[host]]\nnqn = \"nqn.2026-01.org.example:{nqn}\"\n");
    let write = |rules: &str, size: &str| {
        let spec = format!("file:path={},size={size}", disk.display());
        let text = format!("listen = \"127.0.0.1:0\"\nnamespaces = [\"{spec}\"]\n{rules}");
        fs::write(&config, text).expect("written");
    };
    write(&rule("one"), "1MiB");
    let target = with_config(&place, &config);
    let connect = |name: &str| {
        let options = Options {
            host_nqn: format!("nqn.2026-01.org.example:{name}"),
            ..Options::for_host([7; 16])
        };
        Controller::connect(&target.url.parse().expect("an address"), options)
    };
    let mut one = connect("one").expect("the rule lets it in");
    assert!(connect("two").is_err());
    // An unsaved namespace, and later changes of the file that were not loaded.
    place.said("control", &["namespace", "add", "mem:size=1MiB"]);
    write(&rule("two"), "2MiB");
    place.said("control", &["keys", "reload"]);
    place.said("control", &["namespace", "add", "mem:size=2MiB"]);
    within(PATIENCE, "it may do less now", || !one.check_connected());
    assert!(connect("one").is_err(), "a change of namespaces brings back no rule");
    let two = connect("two").expect("the rule lets it in");
    assert_eq!(two.namespaces()[0].blocks * 512, 1 << 20, "the namespace is as before");
    place.said("control", &["reload"]);
    let two = connect("two").expect("the rule lets it in");
    assert_eq!(two.namespaces()[0].blocks * 512, 2 << 20);
    fs::write(&config, "namespaces = [").expect("written");
    let broken = place.refused("control", &["keys", "reload"]);
    assert!(broken.contains("nothing has changed"), "{broken}");
    place.said("control", &["stop"]);
    let mut target = target;
    assert_eq!(target.wait(), Some(0));
}

fn with_config(place: &Place, config: &Path) -> Target {
    let mut command = Command::new(BPFOF);
    command.args(["target", "--json", "--quiet", "--exit-with-parent", "--config"]).arg(config);
    command.arg("--control").arg(place.path("control"));
    run(command).0
}
