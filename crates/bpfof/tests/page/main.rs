//! The live page in Chromium: its figures of a target under load, use by keyboard, dark mode, a phone's screen, and
//! that names chosen by hosts are shown as text only.
//!
//! `SCREENSHOTS=FOLDER` is the folder for its pictures (`make screenshots`); otherwise they are discarded.

#[path = "../command/mod.rs"]
mod command;
#[path = "../operated/mod.rs"]
mod operated;
#[path = "../skip/mod.rs"]
mod skip;

use bpfof_host::{Controller, Options};
use command::good;
use operated::{get, start};
use skip::skip;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Names that would be elements, if the page took them for HTML.
const HOSTILE_HOST: &str = "nqn.2026-01.org.example:<img/src=x/onerror=\"document.title='owned'\">";
const HOSTILE_FUNCTION: &str = "<img src=x onerror=\"document.title='owned'\">";

/// Whether there is a Chromium, which not every machine has.
fn has_chromium() -> bool {
    Command::new("chromium").arg("--version").output().is_ok_and(|output| output.status.success())
}

fn options(nqn: &str, number: u8) -> Options {
    Options { host_nqn: nqn.to_owned(), ..Options::for_host([number; 16]) }
}

/// Reads and chains until `stop`.
fn load(url: &str, (nqn, number): (&str, u8), nsids: &[u32], function: u32, stop: &AtomicBool) {
    let url = url.parse().expect("an address");
    let controller = Controller::connect(&url, options(nqn, number)).expect("connected");
    let mut lane = controller.open_lane().expect("a lane");
    let mut block = vec![0; 4096];
    for key in 0u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        for nsid in nsids {
            get(&mut lane, (*nsid, function), (key * 7919 % 29_000, 0)).expect("a chain");
            lane.read(*nsid, key % 64 * 4096, &mut block).expect("read");
        }
        if key.is_multiple_of(8) {
            lane.write(nsids[0], 6 << 20, &block).expect("written");
        }
        // Leave processor time for other programs.
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn the_page_shows_what_happens() {
    if !has_chromium() {
        return skip("there is no Chromium; scripts/setup.sh chromium installs it");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = format!("file:path={},size=8MiB", folder.path().join("image").display());
    let device = "mem:size=8MiB,latency_us=800";
    let spaces = ["mem:size=8MiB", device, &file];
    let mut words = vec!["--quiet"];
    spaces.iter().for_each(|space| words.extend(["--namespace", space]));
    let operated = start(&words);
    let url = operated.target.url.as_str();
    for nsid in 1..=3 {
        good(&["kv", "create", "--levels", "3", "--target", &format!("{url}?ns={nsid}")]);
    }
    let parsed = url.parse().expect("an address");
    let mut controller = Controller::connect(&parsed, options(HOSTILE_HOST, 1)).expect("connected");
    let install = |controller: &mut Controller, name: &str| {
        controller.install_function_as(name, bpfkv::GET_OBJECT, 0).expect("installed").0
    };
    let hostile = install(&mut controller, HOSTILE_FUNCTION);
    let function = install(&mut controller, "bpfkv_get");
    let stop = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| load(url, (HOSTILE_HOST, 1), &[1], hostile, &stop));
        scope.spawn(|| load(url, ("nqn.2026-01.org.example:web1", 2), &[1, 2], function, &stop));
        scope.spawn(|| load(url, ("nqn.2026-01.org.example:web2", 3), &[3], function, &stop));
        let pictures = std::env::var_os("SCREENSHOTS").map(PathBuf::from);
        let pictures = pictures.unwrap_or_else(|| folder.path().to_owned());
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/page/checks.py");
        let output = Command::new("/usr/bin/python3")
            .args(["-B", script, &format!("http://{}/", operated.metrics)])
            .arg(pictures)
            .args([HOSTILE_HOST, HOSTILE_FUNCTION])
            .output();
        stop.store(true, Ordering::Relaxed);
        output.expect("python3")
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
