//! A target with the interfaces for operators, and a host of it.
#![allow(dead_code)] // Each test uses a part.

use crate::command::{BPFOF, Target, bad, good, json};
use bpfof_host::{Controller, FileVersion, Lane, Options, PushdownCall};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// A target with a control socket and metrics.
pub(crate) struct Operated {
    pub(crate) target: Target,
    pub(crate) socket: PathBuf,
    pub(crate) metrics: String,
    _folder: TempDir,
}

pub(crate) fn start(more: &[&str]) -> Operated {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("control.sock");
    let mut command = Command::new(BPFOF);
    command.args(["target", "--listen", "127.0.0.1:0", "--json", "--metrics", "127.0.0.1:0"]);
    command.arg("--control").arg(&socket).args(more);
    let (target, announced) = Target::announced(command);
    let metrics = announced["metrics"].as_str().expect("a string").to_owned();
    Operated { target, socket, metrics, _folder: folder }
}

impl Operated {
    pub(crate) fn ctl(&self, words: &[&str]) -> Vec<String> {
        let socket = self.socket.to_str().expect("UTF-8");
        let all = ["ctl", "--socket", socket].into_iter().chain(words.iter().copied());
        all.map(str::to_owned).collect()
    }

    pub(crate) fn asked(&self, words: &[&str]) -> Value {
        let all = self.ctl(&[words, &["--json"]].concat());
        json(&all.iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub(crate) fn said(&self, words: &[&str]) -> String {
        let all = self.ctl(words);
        good(&all.iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub(crate) fn refused(&self, words: &[&str]) -> String {
        let all = self.ctl(words);
        bad(&all.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Head and body of an answer.
    pub(crate) fn http(&self, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.metrics).expect("it listens");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.to_owned(), body.to_owned())
    }

    pub(crate) fn metrics(&self) -> String {
        let (head, body) = self.http("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("openmetrics-text"), "{head}");
        body
    }

    /// The value of the metric whose line has this beginning.
    pub(crate) fn metric(&self, beginning: &str) -> f64 {
        let text = self.metrics();
        let line = text.lines().find(|line| line.starts_with(beginning));
        let line = line.unwrap_or_else(|| panic!("no {beginning} in\n{text}"));
        line.rsplit(' ').next().expect("a value").parse().expect("a number")
    }
}

pub(crate) fn connect(url: &str, number: u8) -> (Controller, Lane) {
    let url = url.parse().expect("an address");
    let controller = Controller::connect(&url, Options::for_host([number; 16])).expect("connected");
    let lane = controller.open_lane().expect("a lane");
    (controller, lane)
}

/// A get of BPF-KV, whose database begins at this offset.
pub(crate) fn get(
    lane: &mut Lane,
    (nsid, function): (u32, u32),
    (key, first_offset_bytes): (u64, u64),
) -> Result<u32, bpfof_host::Error> {
    let argument = bpfkv::pushdown::get_argument(key).expect("a key");
    let call = PushdownCall {
        nsid,
        function,
        files: &[FileVersion { id: 0, version: 1 }],
        first_file: 0,
        first_offset_bytes,
        first_size_bytes: 512,
        scratch: &argument,
        scratch_size_bytes: 0,
        answer_max_bytes: 4096,
    };
    lane.pushdown(&call, &mut Vec::new()).map(|answer| answer.hops)
}
