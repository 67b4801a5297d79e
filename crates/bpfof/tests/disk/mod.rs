//! A target that serves an image, and a file system on the same image.
#![allow(dead_code)] // Each test uses a part.

#[path = "../port/mod.rs"]
mod port;
#[path = "../skip/mod.rs"]
pub(crate) mod skip;

use bpfof_host::{Controller, Options, TargetUrl};
use port::Port;
use rustix::process::Signal;
use serde_json::Value;
use skip::skip;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

pub(crate) const BPFOF: &str = env!("CARGO_BIN_EXE_bpfof");

/// UUIDs of the namespaces, so that several targets may serve them.
const UUID: &str = "6f2d1a3c-8a5e-4b0c-9d57-0a4f6a1e2b3c";
const PLAIN_UUID: &str = "6f2d1a3c-8a5e-4b0c-9d57-0a4f6a1e2b3d";
/// Controller ids of each target.
const CNTLIDS: [&str; 2] = ["1-32000", "32001-65000"];

/// File systems that are tested, and the smallest image that mkfs takes.
pub(crate) const KINDS: [(&str, u64); 2] = [("ext4", 96 << 20), ("xfs", 320 << 20)];

/// A program that must succeed.
pub(crate) fn run<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> String {
    let output = output(program, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{program}: {printed}{errors}");
    printed.into_owned()
}

pub(crate) fn output<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Output {
    Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"))
}

/// Whether this machine cannot mount an image; the log of the tests then says why.
pub(crate) fn cannot_mount() -> bool {
    let why = if !rustix::process::geteuid().is_root() {
        "this needs root, for loop devices and mounting"
    } else if !output("losetup", &["--find"]).status.success() {
        "there is no free loop device"
    } else if KINDS
        .iter()
        .any(|(kind, _)| Command::new(format!("mkfs.{kind}")).arg("-V").output().is_err())
    {
        "mkfs.ext4 or mkfs.xfs is missing; make setup installs them"
    } else {
        return false;
    };
    skip(why);
    true
}

/// A target process.
struct Served {
    child: Child,
    url: TargetUrl,
}

/// An image, served by a target process as namespace 1 and mounted through a loop device.
pub(crate) struct Disk {
    folder: tempfile::TempDir,
    device: String,
    /// One target, or two that serve the same image.
    targets: Vec<Served>,
    /// The port of each target, which stays its own while it is started again.
    ports: Vec<Port>,
    /// The address of the first target.
    pub(crate) url: TargetUrl,
    /// Size of namespace 2, on which there is no file system; 0 if there is none.
    plain_bytes: u64,
}

impl Disk {
    /// None if this machine [cannot mount](cannot_mount) it.
    pub(crate) fn new(kind: &str, size_bytes: u64) -> Option<Disk> {
        Disk::mounted(kind, size_bytes, "rw")
    }

    /// One disk after the other, with each of [`KINDS`].
    pub(crate) fn of_each_kind() -> impl Iterator<Item = (&'static str, Disk)> {
        KINDS.into_iter().map_while(|(kind, size_bytes)| Some((kind, Disk::new(kind, size_bytes)?)))
    }

    pub(crate) fn mounted(kind: &str, size_bytes: u64, options: &str) -> Option<Disk> {
        if cannot_mount() {
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let image = image(folder.path());
        let file = std::fs::File::create_new(&image).expect("an image");
        file.set_len(size_bytes).expect("room");
        let image = image.to_str().expect("UTF-8").to_owned();
        // A small file system, in which blocks are soon used again.
        let arguments: &[&str] = if kind == "ext4" {
            &["-q", "-F", "-b", "4096", "-m", "0", "-J", "size=4", &image]
        } else {
            &["-q", "-f", &image]
        };
        run(&format!("mkfs.{kind}"), arguments);
        // Direct I/O: a write that completes on the loop device is in the image.
        let device = run("losetup", &["--direct-io=on", "--find", "--show", &image]);
        let device = device.trim().to_owned();
        let mount = folder.path().join("mount");
        std::fs::create_dir(&mount).expect("a folder");
        run("mount", &["-t", kind, "-o", options, &device, mount.to_str().expect("UTF-8")]);
        let port = Port::reserve();
        let first = start_target(folder.path(), 0, 0, &port.address(), &[]);
        let url = first.url.clone();
        let (targets, ports) = (vec![first], vec![port]);
        Some(Disk { folder, device, targets, ports, url, plain_bytes: 0 })
    }

    fn start(&self, path: usize, listen: &str, more: &[&str]) -> Served {
        start_target(self.folder.path(), self.plain_bytes, path, listen, more)
    }

    /// Starts a second target of the same storage, and gives the address with both portals.
    pub(crate) fn add_path(&mut self) -> TargetUrl {
        let port = Port::reserve();
        self.targets.push(self.start(1, &port.address(), &[]));
        self.ports.push(port);
        let portal = self.targets[1].url.portals().next().expect("a portal");
        TargetUrl { further_portals: vec![portal], ..self.url.clone() }
    }

    /// Has all targets serve a namespace 2 that has no file system.
    pub(crate) fn add_plain(&mut self, size_bytes: u64) {
        self.plain_bytes = size_bytes;
        (0..self.targets.len()).for_each(|path| self.restart(path));
    }

    /// Where the first or second target listens.
    pub(crate) fn listens_at(&self, path: usize) -> String {
        let url = &self.targets[path].url;
        format!("{}:{}", url.host, url.port)
    }

    fn control(&self, path: usize) -> PathBuf {
        control(self.folder.path(), path)
    }

    /// Runs a command of `bpfof ctl` at a target, and returns the answer.
    pub(crate) fn ctl(&self, path: usize, words: &[&str]) -> Value {
        let socket = self.control(path).display().to_string();
        let all = [&["ctl", "--socket", &socket], words, &["--json"]].concat();
        serde_json::from_str(&run(BPFOF, &all)).expect("JSON")
    }

    /// Another process takes over from a target, which ends by itself.
    pub(crate) fn take_over(&mut self, path: usize) {
        let control = self.control(path).display().to_string();
        let new = self.start(path, &self.listens_at(path), &["--take-over", &control]);
        let mut old = std::mem::replace(&mut self.targets[path], new);
        assert!(old.child.wait().expect("it ends").success());
    }

    /// Sends a signal to the first or second target.
    pub(crate) fn signal(&self, path: usize, signal: Signal) {
        let pid = rustix::process::Pid::from_child(&self.targets[path].child);
        rustix::process::kill_process(pid, signal).expect("it runs");
    }

    /// The process of the first target.
    pub(crate) fn target_pid(&self) -> u32 {
        self.targets[0].child.id()
    }

    /// The folder where the image is mounted.
    pub(crate) fn mount(&self) -> PathBuf {
        self.folder.path().join("mount")
    }

    /// The image that the target serves.
    pub(crate) fn image(&self) -> PathBuf {
        image(self.folder.path())
    }

    /// Ends the target; the file system stays.
    pub(crate) fn stop_target(&self) {
        self.signal(0, Signal::KILL);
    }

    /// Makes the image, its ext4 (without open files) and the target's namespace larger.
    pub(crate) fn grow(&self, size_bytes: u64) {
        let image = std::fs::OpenOptions::new().write(true).open(self.image()).expect("an image");
        image.set_len(size_bytes).expect("room");
        run("losetup", &["--set-capacity", &self.device]);
        let mount = self.mount().display().to_string();
        run("umount", &[&mount]);
        run("e2fsck", &["-f", "-p", &self.device]);
        run("resize2fs", &[&self.device]);
        run("mount", &[&self.device, &mount]);
        self.signal(0, Signal::HUP);
    }

    /// Starts the target again at the same address.
    pub(crate) fn restart_target(&mut self) {
        self.restart(0);
        self.url = self.targets[0].url.clone();
    }

    /// Starts the first or second target again at the same address.
    pub(crate) fn restart(&mut self, path: usize) {
        let old = &mut self.targets[path].child;
        let _ = old.kill();
        old.wait().expect("it ends");
        self.targets[path] = self.start(path, &self.listens_at(path), &[]);
    }

    /// The number of the target's open descriptors, and the resident bytes of its memory.
    pub(crate) fn held_by_target(&self) -> (usize, u64) {
        let process = format!("/proc/{}", self.targets[0].child.id());
        let open = std::fs::read_dir(format!("{process}/fd")).expect("it runs").count();
        let status = std::fs::read_to_string(format!("{process}/status")).expect("it runs");
        let resident =
            status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next());
        let kib: u64 = resident.and_then(|kib| kib.parse().ok()).expect("a number");
        (open, kib << 10)
    }

    pub(crate) fn connect(&self) -> Controller {
        Controller::connect(&self.url, Options::default()).expect("it connects")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Tools started by a killed process may still have files open, and so may a failed test:
        // the file system is then unmounted when the last one is closed.
        if !output("umount", &[self.mount()]).status.success() {
            let mount = self.mount();
            let _ = output("umount", &["--lazy".as_ref(), mount.as_os_str()]);
        }
        let _ = output("losetup", &["--detach", &self.device]);
        for target in &mut self.targets {
            let _ = target.child.kill();
            let _ = target.child.wait();
        }
    }
}

fn image(folder: &Path) -> PathBuf {
    folder.join("image")
}

fn control(folder: &Path, path: usize) -> PathBuf {
    folder.join(format!("control-{path}"))
}

/// Starts the first or second target, and waits until it listens.
fn start_target(
    folder: &Path,
    plain_bytes: u64,
    path: usize,
    listen: &str,
    more: &[&str],
) -> Served {
    let mut command = Command::new(BPFOF);
    command.args(["target", "--listen", listen, "--json", "--quiet", "--exit-with-parent"]);
    command.args(["--cntlid", CNTLIDS[path], "--control"]).arg(control(folder, path));
    let spec = format!("file:path={},uuid={UUID}", image(folder).display());
    command.args(["--namespace", &spec]);
    if plain_bytes > 0 {
        let file = folder.join("plain");
        let spec = format!("file:path={},size={plain_bytes},uuid={PLAIN_UUID}", file.display());
        command.args(["--namespace", &spec]);
    }
    let mut child = command.args(more).stdout(Stdio::piped()).spawn().expect("bpfof starts");
    let mut line = String::new();
    let output = child.stdout.take().expect("piped");
    BufReader::new(output).read_line(&mut line).expect("a line");
    let announced: Value = serde_json::from_str(&line).expect("JSON");
    let url = announced["url"].as_str().expect("a string").parse().expect("an address");
    Served { child, url }
}
