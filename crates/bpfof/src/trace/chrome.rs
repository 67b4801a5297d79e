//! Chains as a file of trace events, which Chromium and Perfetto show.
//!
//! The viewer shows each reactor as a process, with as many rows as the reactor had chains at a time. A chain is a bar;
//! below it are the waits and function calls of its hops.

use crate::observed;
use bpfof_controller::{CommandRecord, HopRecord};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Most rows of a reactor; further chains overlap in the last row.
const MAX_ROWS: usize = 256;

/// See the module.
pub(super) struct ChromeFile {
    file: BufWriter<File>,
    has_events: bool,
    /// For each reactor the end of the last chain in each row, in ns.
    rows: HashMap<usize, Vec<u64>>,
}

impl ChromeFile {
    /// Begins a file.
    pub(super) fn create(path: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        let mut file = BufWriter::new(File::create(path).map_err(failed)?);
        file.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n").map_err(failed)?;
        Ok(Self { file, has_events: false, rows: HashMap::new() })
    }

    /// Adds a chain.
    pub(super) fn add(&mut self, chain: &CommandRecord) -> io::Result<()> {
        let is_first = !self.rows.contains_key(&chain.reactor);
        let rows = self.rows.entry(chain.reactor).or_default();
        let end_ns = chain.begun_ns + chain.duration_ns;
        let free = rows.iter().position(|last_ns| *last_ns <= chain.begun_ns);
        let row = free.unwrap_or(rows.len()).min(MAX_ROWS - 1);
        rows.resize(rows.len().max(row + 1), 0);
        rows[row] = rows[row].max(end_ns);
        if is_first {
            let name = format!("reactor {}", chain.reactor);
            let args = json!({ "name": name });
            self.event(
                &json!({ "ph": "M", "name": "process_name", "pid": chain.reactor, "args": args }),
            )?;
        }
        let place = Place { reactor: chain.reactor, row };
        let args = json!({
            "host": chain.host, "peer": chain.peer, "queue": chain.queue, "nsid": chain.nsid,
            "subsystem": chain.subsystem, "hops": chain.hop_count, "bytes": chain.bytes,
            "units": chain.units, "outcome": chain.outcome,
        });
        let span = (chain.begun_ns, chain.duration_ns);
        self.event(&place.bar("chain", &observed::name(chain), span, args))?;
        if chain.arena_ns > 0 {
            let span = (chain.begun_ns, chain.arena_ns);
            self.event(&place.bar("wait", "arena", span, json!({})))?;
        }
        for (number, hop) in chain.hops.iter().enumerate() {
            for event in place.hop(chain.begun_ns, number + 1, hop) {
                self.event(&event)?;
            }
        }
        self.file.flush()
    }

    fn event(&mut self, event: &Value) -> io::Result<()> {
        let separator = if std::mem::replace(&mut self.has_events, true) { ",\n" } else { "" };
        write!(self.file, "{separator}{event}")
    }

    /// Ends the file.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.file.write_all(b"\n]}\n")?;
        self.file.flush()
    }
}

struct Place {
    reactor: usize,
    row: usize,
}

impl Place {
    /// A bar: when it begins and how long it is, in ns.
    fn bar(&self, category: &str, name: &str, (at_ns, ns): (u64, u64), args: Value) -> Value {
        let us = |ns: u64| ns as f64 / 1000.0;
        json!({
            "ph": "X", "cat": category, "name": name, "pid": self.reactor, "tid": self.row,
            "ts": us(at_ns), "dur": us(ns), "args": args,
        })
    }

    /// The bars of a hop: its waits, and its calls.
    fn hop(&self, begun_ns: u64, number: usize, hop: &HopRecord) -> Vec<Value> {
        let mut at_ns = begun_ns + hop.since_start_ns;
        let args = json!({ "hop": number, "reads": hop.reads, "units": hop.units });
        // A call may take less time than the clock's resolution; its bar is drawn all the same.
        let parts = [
            ("device", Some(hop.device_ns).filter(|ns| *ns > 0)),
            ("turn", Some(hop.queued_ns).filter(|ns| *ns > 0)),
            ("function", hop.function_ns),
        ];
        let mut bars = Vec::new();
        for (name, ns) in parts.into_iter().filter_map(|(name, ns)| Some((name, ns?))) {
            bars.push(self.bar("hop", name, (at_ns, ns), args.clone()));
            at_ns += ns;
        }
        bars
    }
}
