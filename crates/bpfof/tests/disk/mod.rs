//! A target that serves an image, and a file system on the same image.
#![allow(dead_code)] // Each test uses a part.

use bpfof_host::{Controller, Options, TargetUrl};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

pub(crate) const BPFOF: &str = env!("CARGO_BIN_EXE_bpfof");

/// Of the namespace, so that several targets may serve the image.
const UUID: &str = "6f2d1a3c-8a5e-4b0c-9d57-0a4f6a1e2b3c";

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

/// Why this machine cannot mount an image, in words for the log of the tests.
pub(crate) fn cannot_mount() -> Option<String> {
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
        return None;
    };
    eprintln!("SKIPPED: {why}");
    Some(why.to_owned())
}

/// An image, served by a target process as namespace 1 and mounted through a loop device.
pub(crate) struct Disk {
    folder: tempfile::TempDir,
    device: String,
    target: Child,
    pub(crate) url: TargetUrl,
    /// Another target of the same storage, once there is one.
    second: Option<(Child, TargetUrl)>,
}

impl Disk {
    pub(crate) fn new(kind: &str, size_bytes: u64) -> Disk {
        Disk::mounted(kind, size_bytes, "rw")
    }

    pub(crate) fn mounted(kind: &str, size_bytes: u64, options: &str) -> Disk {
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("image");
        let file = std::fs::File::create_new(&image).expect("an image");
        file.set_len(size_bytes).expect("room");
        let image = image.to_str().expect("UTF-8").to_owned();
        // Small extents, small groups: blocks are used again soon.
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
        let (target, url) = start_target(&image, "127.0.0.1:0");
        Disk { folder, device, target, url, second: None }
    }

    /// Starts a second target of the same storage, and gives the address with both portals.
    pub(crate) fn add_path(&mut self) -> TargetUrl {
        let image = self.image().display().to_string();
        let (child, second) = start_target(&image, "127.0.0.1:0");
        let portal = second.portals().next().expect("a portal");
        self.second = Some((child, second));
        TargetUrl { further_portals: vec![portal], ..self.url.clone() }
    }

    /// Sends a signal to the first or second target.
    pub(crate) fn signal(&self, path: usize, signal: rustix::process::Signal) {
        let child = match (path, &self.second) {
            (1, Some((child, _))) => child,
            _ => &self.target,
        };
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, signal).expect("it runs");
    }

    /// Where it is mounted.
    pub(crate) fn mount(&self) -> PathBuf {
        self.folder.path().join("mount")
    }

    /// What the target serves.
    pub(crate) fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// Ends the target; the file system stays.
    pub(crate) fn stop_target(&self) {
        let pid = rustix::process::Pid::from_child(&self.target);
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it runs");
    }

    /// Makes the image, its ext4, of which no file is open, and the target's namespace larger.
    pub(crate) fn grow(&self, size_bytes: u64) {
        let image = std::fs::OpenOptions::new().write(true).open(self.image()).expect("an image");
        image.set_len(size_bytes).expect("room");
        run("losetup", &["--set-capacity", &self.device]);
        let mount = self.mount().display().to_string();
        run("umount", &[&mount]);
        run("e2fsck", &["-f", "-p", &self.device]);
        run("resize2fs", &[&self.device]);
        run("mount", &[&self.device, &mount]);
        let pid = rustix::process::Pid::from_child(&self.target);
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).expect("it runs");
    }

    /// Starts it again where it was.
    pub(crate) fn restart_target(&mut self) {
        let _ = self.target.kill();
        self.target.wait().expect("it ends");
        let image = self.image().display().to_string();
        let listen = format!("{}:{}", self.url.host, self.url.port);
        (self.target, self.url) = start_target(&image, &listen);
    }

    /// How many descriptors the target has open, and how many bytes of its memory are resident.
    pub(crate) fn held_by_target(&self) -> (usize, u64) {
        let process = format!("/proc/{}", self.target.id());
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
        // Tools that a killed process had started may still have files open, and so has a test
        // that failed: the file system then goes away with the last of them.
        if !output("umount", &[self.mount()]).status.success() {
            let mount = self.mount();
            let _ = output("umount", &["--lazy".as_ref(), mount.as_os_str()]);
        }
        let _ = output("losetup", &["--detach", &self.device]);
        let second = self.second.as_mut().map(|(child, _)| child);
        for child in [Some(&mut self.target), second].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn start_target(image: &str, listen: &str) -> (Child, TargetUrl) {
    let mut child = Command::new(BPFOF)
        .args(["target", "--listen", listen, "--json", "--quiet", "--exit-with-parent"])
        .args(["--namespace", &format!("file:path={image},uuid={UUID}")])
        .stdout(Stdio::piped())
        .spawn()
        .expect("bpfof starts");
    let mut line = String::new();
    let output = child.stdout.take().expect("piped");
    BufReader::new(output).read_line(&mut line).expect("a line");
    let announced: Value = serde_json::from_str(&line).expect("JSON");
    let url = announced["url"].as_str().expect("a string").parse().expect("an address");
    (child, url)
}
