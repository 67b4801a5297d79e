//! A target as a service: under a service manager, with sockets that are open before it starts, and logs that other
//! programs read.

#[path = "../command/mod.rs"]
mod command;
#[path = "../manager/mod.rs"]
mod manager;
#[path = "../skip/mod.rs"]
mod skip;

use command::{BPFOF, bad, good, json};
use manager::{count, expect, listen};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};
use skip::skip;
use std::fs::{self, File};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Leaves what the manager passes at 3, its first descriptor, to the program that it becomes.
const PASS: &str = "exec 3<&0 0</dev/null; LISTEN_PID=$$ exec \"$@\"";

/// A target that the manager at `told` runs, with the socket that it has opened.
fn start(told: &Path, socket: &TcpListener, config: &Path) -> Child {
    let socket: OwnedFd = socket.try_clone().expect("cloned").into();
    Command::new("bash")
        .args(["-c", PASS, "bash", BPFOF, "target", "--quiet", "--exit-with-parent"])
        .arg("--config")
        .arg(config)
        .env("NOTIFY_SOCKET", told)
        .env("WATCHDOG_USEC", "400000")
        .env("LISTEN_FDS", "1")
        .env("LISTEN_FDNAMES", "nvme")
        .stdin(socket)
        .spawn()
        .expect("it starts")
}

#[test]
fn a_service_manager_is_told_and_keeps_the_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("notify");
    let told = listen(UnixDatagram::bind(&at).expect("bound"));
    let socket = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = socket.local_addr().expect("an address");
    let config = folder.path().join("target.toml");
    // The socket replaces `listen`, at whose port the target may not listen.
    let text = "listen = \"127.0.0.1:1\"\nnamespaces = [\"mem:size=8MiB\"]\n";
    fs::write(&config, text).expect("written");
    let mut child = start(&at, &socket, &config);
    expect(&told, "READY=1", (1, 0));
    expect(&told, &format!("STATUS=listens on {address}"), (1, 0));
    let url = format!("nvme-tcp://{address}/nqn.2026-01.io.bpf-of:target");
    good(&["kv", "create", "--levels", "2", "--target", &url]);
    let signal = |signal| kill_process(Pid::from_child(&child), signal).expect("it runs");
    fs::write(&config, text.replace("]", ", \"mem:size=4MiB\"]")).expect("written");
    signal(Signal::HUP);
    expect(&told, "RELOADING=1", (1, 0));
    expect(&told, "READY=1", (2, 0));
    let second = format!("{url}?ns=2");
    good(&["kv", "create", "--levels", "2", "--target", &second]);
    while count(&told, "WATCHDOG=1").0 < 3 {
        std::thread::sleep(Duration::from_millis(20));
    }
    signal(Signal::TERM);
    expect(&told, "STOPPING=1", (1, 0));
    assert!(child.wait().expect("it ends").success());
    // Hosts that connect while no process serves wait in the socket's queue, and the next process accepts them.
    let waiting = TcpStream::connect(address).expect("the manager's socket listens");
    let mut child = start(&at, &socket, &config);
    expect(&told, "READY=1", (3, 0));
    drop(waiting);
    good(&["kv", "create", "--levels", "2", "--target", &url]);
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    assert!(child.wait().expect("it ends").success());
}

/// A grant daemon to which the manager at `told` passes a lease that a killed one has left; a socket stands for it,
/// of which this is the other end.
fn start_grantd(told: &Path, arguments: &[&str]) -> (Child, UnixStream) {
    let (ours, lease) = UnixStream::pair().expect("sockets");
    let child = Command::new("bash")
        .args(["-c", PASS, "bash", BPFOF, "grantd", "--quiet", "--exit-with-parent"])
        .args(arguments)
        .env("NOTIFY_SOCKET", told)
        .env("LISTEN_FDS", "1")
        .env("LISTEN_FDNAMES", "1f")
        .stdin(OwnedFd::from(lease))
        .spawn()
        .expect("it starts");
    (child, ours)
}

/// Its target may have the maps for so long, whatever becomes of the daemons after it.
#[test]
fn leases_of_a_killed_grant_daemon_are_kept_and_then_dropped() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let at = folder.path().join("notify");
    let told = listen(UnixDatagram::bind(&at).expect("bound"));
    fs::write(path("image"), "").expect("written");
    let begun = Instant::now();
    let (broken, its_lease) = start_grantd(&at, &["--config", &path("missing.toml")]);
    let url = "nvme-tcp://127.0.0.1:1/nqn.2026-01.io.bpf-of:target?ns=1";
    let (image, socket) = (path("image"), path("socket"));
    let served = ["--target", url, "--device", &image, "--socket", &socket];
    let (stopped, lease) = start_grantd(&at, &served);
    expect(&told, "READY=1", (1, 0));
    kill_process(Pid::from_child(&stopped), Signal::TERM).expect("it runs");
    let kept = [its_lease, lease].map(|mut lease| {
        std::thread::spawn(move || {
            // Its end comes when the last descriptor of the other socket is closed.
            let read = std::io::Read::read(&mut lease, &mut [0]).expect("its end");
            (read, begun.elapsed())
        })
    });
    for thread in kept {
        let (read, kept) = thread.join().expect("no panic");
        assert!(read == 0 && kept >= Duration::from_secs(10), "{kept:?}");
    }
    for (mut child, is_good) in [(broken, false), (stopped, true)] {
        assert_eq!(child.wait().expect("it ends").success(), is_good);
    }
    expect(&told, "FDSTOREREMOVE=1", (2, 0));
}

/// The log of a target that cannot start because its port is taken.
fn logged(arguments: &[&str], journal: bool) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log");
    let log = File::create(&path).expect("made");
    let mut target = Command::new(BPFOF);
    target.args(["target", "--listen", "127.0.0.1:0", "--namespace", "mem:size=1MiB"]);
    target.args(arguments).stderr(log.try_clone().expect("cloned"));
    if journal {
        let found = rustix::fs::fstat(&log).expect("found");
        target.env("JOURNAL_STREAM", format!("{}:{}", found.st_dev, found.st_ino));
    }
    let mut child = target.arg("--json").stdout(Stdio::piped()).spawn().expect("it starts");
    let mut announced = String::new();
    let output = child.stdout.take().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut announced)
        .expect("a line");
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    assert!(child.wait().expect("it ends").success());
    fs::read_to_string(path).expect("UTF-8")
}

#[test]
fn logs_have_the_format_of_their_reader() {
    let text = logged(&[], true);
    assert!(
        text.lines().count() >= 3 && text.lines().all(|line| line.starts_with("<6>")),
        "{text}"
    );
    let text = logged(&[], false);
    assert!(text.lines().all(|line| line.starts_with('[')), "{text}");
    let text = logged(&["--log", "json"], false);
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(line["level"], "info");
        assert!(line["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
        assert!(line["message"].is_string() && line["module"].is_string(), "{line}");
    }
    assert!(text.contains("listens on"), "{text}");
}

#[test]
fn a_configuration_is_looked_at_without_being_served() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("target.toml");
    let file = path.display().to_string();
    let write = |text: &str| fs::write(&path, text).expect("written");
    write("listen = \"127.0.0.1:1\"\nnamespaces = [\"file:path=/nowhere/disk\"]\n");
    let report = json(&["config", "check", "--json", &file]);
    assert_eq!((&report["namespaces"], &report["rules"]), (&1.into(), &0.into()));
    assert!(good(&["config", "check", &file]).contains("every host may do everything"));
    for (text, said) in [
        ("namespace = []\n", "namespace"),
        ("namespaces = []\n", "namespace"),
        ("listen = \"0.0.0.0:4420\"\nnamespaces = [\"mem:size=1M\"]\n", "[[host]]"),
        (
            "namespaces = [\"mem:size=1M\"]\nfunctions = [\"/nowhere/*.o\"]\n",
            "there is no such file",
        ),
        (
            "namespaces = [\"mem:size=1M\"]\n[[host]]\nnqn = \"nqn.2026-01.org.example:a\"\n\
             tls-psk = [\"/nowhere.psk\"]\n",
            "/nowhere.psk",
        ),
    ] {
        write(text);
        let errors = bad(&["config", "check", &file]);
        assert!(errors.contains(said) && errors.contains(&file), "{text}: {errors}");
    }
}

/// A target that lacks a disk may be restarted again and again, one with a wrong configuration may not.
#[test]
fn a_bad_configuration_has_a_status_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("target.toml");
    let status = |text: &str| {
        fs::write(&path, text).expect("written");
        let mut target = Command::new(BPFOF);
        target.args(["target", "--listen", "127.0.0.1:0", "--config"]).arg(&path);
        target.output().expect("it starts").status.code()
    };
    let rule = "[[host]]\nnqn = \"nqn.2026-01.org.example:a\"\ntls-psk = [\"/nowhere.psk\"]\n";
    let good = "namespaces = [\"mem:size=1MiB\"]\n";
    for bad in ["namespaces = [", "namespaces = []\n", &format!("{good}{rule}")] {
        assert_eq!(status(bad), Some(78), "{bad}");
    }
    assert_eq!(status("namespaces = [\"file:path=/nowhere/disk\"]\n"), Some(1));
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/systemd/bpfof-target.service");
    let unit = fs::read_to_string(unit).expect("a unit");
    for setting in ["RestartPreventExitStatus=2 78", "StartLimitIntervalSec=0"] {
        assert!(unit.lines().any(|line| line == setting), "{setting}");
    }
    // RestartPreventExitStatus= does not apply to commands of ExecStartPre=, so there must be none.
    assert!(!unit.contains("ExecStartPre="));
}

/// A target serves hosts and stops even if its log is not read.
#[test]
fn an_unread_log_does_not_stall_the_target() {
    let (_reader, writer) = std::io::pipe().expect("a pipe");
    let nonblocking = OFlags::NONBLOCK;
    fcntl_setfl(&writer, nonblocking).expect("set");
    while (&writer).write(&[b'x'; 4096]).is_ok() {}
    while (&writer).write(b"x").is_ok() {}
    fcntl_setfl(&writer, OFlags::empty()).expect("set");
    let mut target = Command::new(BPFOF);
    target.args(["target", "--listen", "127.0.0.1:0", "--namespace", "mem:size=8MiB", "--verbose"]);
    target.args(["--json", "--exit-with-parent"]).stderr(writer).stdout(Stdio::piped());
    let mut child = target.spawn().expect("it starts");
    // Only the child has the pipe from here on.
    drop(target);
    let mut announced = String::new();
    let output = child.stdout.take().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut announced)
        .expect("a line");
    let announced: serde_json::Value = serde_json::from_str(&announced).expect("JSON");
    let url = announced["url"].as_str().expect("an address");
    for _ in 0..3 {
        good(&["kv", "create", "--levels", "2", "--target", url]);
    }
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    assert!(child.wait().expect("it ends").success());
}

fn analyze(arguments: &[&str], unit: &Path) -> Option<Output> {
    Command::new("systemd-analyze").args(arguments).arg(unit).output().ok()
}

#[test]
fn units_are_good_and_confine() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().expect("a folder");
    let copy = |name: &str| -> PathBuf {
        let text = fs::read_to_string(repository.join("packaging/systemd").join(name));
        let to = folder.path().join(name);
        let text = text.expect("a unit").replace("/usr/bin/bpfof", BPFOF);
        fs::write(&to, text).expect("written");
        to
    };
    let units = ["bpfof-target.service", "bpfof-target.socket", "bpfof-grantd.service"].map(copy);
    for unit in &units {
        let Some(found) = analyze(&["verify", "--man=no"], unit) else {
            return skip("there is no systemd-analyze");
        };
        let said = String::from_utf8_lossy(&found.stderr);
        let ours = said.lines().filter(|line| line.contains("bpfof"));
        assert_eq!(ours.collect::<Vec<_>>(), Vec::<&str>::new());
    }
    let judged = analyze(&["security", "--offline=true", "--threshold=25"], &units[0]);
    let judged = judged.expect("it was there");
    assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stdout));
}
