//! Paths to namespaces: listeners, and the ANA states of namespaces there.

use super::table::{table, text};
use bpfof_controller::AnaState;
use bpfof_operations::client::{Client, ClientError};
use bpfof_terminal::Outcome;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Time between two checks whether all is drained.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Hosts that a message names.
const HOSTS_MAX: usize = 8;
/// Time between two reports of progress.
const TELL_EVERY: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(super) struct Which {
    /// A listener, repeatable: its number, its address or its advertised address [default: all].
    #[arg(long = "listener", value_name = "LISTENER")]
    listeners: Vec<String>,
}

#[derive(Subcommand)]
pub(super) enum Command {
    /// Listeners, with their addresses, the ANA states of namespaces there and the commands in flight.
    Listeners,
    /// Move hosts to other listeners: namespaces become inaccessible, hosts are told, and the command waits until
    /// nothing is in flight. Hosts that have never read the ANA log are disconnected; no host can connect until
    /// `undrain`.
    Drain {
        #[command(flatten)]
        which: Which,
        /// Seconds to wait for commands in flight. After that the command fails, and the listener stays drained.
        #[arg(long, value_name = "SECONDS", default_value_t = 30)]
        timeout: u64,
        /// End the connections as well, once nothing is in flight.
        #[arg(long)]
        close: bool,
    },
    /// Let hosts come back.
    Undrain {
        #[command(flatten)]
        which: Which,
    },
    /// Change the ANA state of namespaces, until the target is started again, or its configuration file has another
    /// state.
    Ana {
        /// optimized, non-optimized or inaccessible.
        state: AnaState,
        #[command(flatten)]
        which: Which,
        /// Only for namespaces of this ANA group (anagrpid).
        #[arg(long, value_name = "NUMBER")]
        group: Option<u32>,
    },
}

pub(super) fn run(client: &mut Client, command: &Command, json: bool) -> Outcome {
    let mut left = None;
    let listeners = match command {
        Command::Listeners => client.call("report", Value::Null)?["listeners"].clone(),
        Command::Undrain { which } => client.call("undrain", which.params())?,
        Command::Ana { state, which, group } => {
            let mut params = which.params();
            params["state"] = state.name().into();
            params["group"] = group.map_or(Value::Null, Value::from);
            client.call("ana", params)?
        }
        Command::Drain { which, timeout, close } => {
            let drained = client.call("drain", which.params())?;
            let patience = Duration::from_secs(*timeout);
            let mut listeners = wait(client, which, drained, patience, json)?;
            if which.busy(&listeners) > 0 {
                let report = client.call("report", Value::Null)?;
                listeners.clone_from(&report["listeners"]);
                let number = which.busy(&listeners);
                left = (number > 0).then(|| (number, which.hosts_of_busy(&report)));
            }
            if *close && left.is_none() { client.call("close", which.params())? } else { listeners }
        }
    };
    match json {
        true => println!("{}", serde_json::to_string_pretty(&listeners)?),
        false => print!("{}", shown(&listeners)),
    }
    match left {
        None => Ok(()),
        Some((number, hosts)) => Err(format!(
            "{number} connections still have commands in flight, or their hosts have not read the change yet: {hosts}; \
             the listeners stay drained: wait longer with another `bpfof ctl drain`, end them with `bpfof ctl kick`, or \
             `bpfof ctl undrain`"
        )
        .into()),
    }
}

impl Which {
    fn params(&self) -> Value {
        json!({ "listeners": self.listeners })
    }

    fn means(&self, listener: &Value) -> bool {
        let id = listener["id"].to_string();
        let is_called = |name: &String| {
            *name == id || ["address", "advertised"].iter().any(|what| listener[what] == **name)
        };
        self.listeners.is_empty() || self.listeners.iter().any(is_called)
    }

    /// Those of the listeners in a report that are drained.
    fn drained<'a>(&'a self, listeners: &'a Value) -> impl Iterator<Item = &'a Value> {
        let all = listeners.as_array().into_iter().flatten();
        all.filter(|of| of["drained"] == true && self.means(of))
    }

    /// Connections there with commands in flight, or whose hosts have not read the change yet.
    fn busy(&self, listeners: &Value) -> u64 {
        let count = |of: &Value, what: &str| of[what].as_u64().unwrap_or_default();
        self.drained(listeners).map(|of| count(of, "busy") + count(of, "untold")).sum()
    }

    /// The hosts of such connections.
    fn hosts_of_busy(&self, report: &Value) -> String {
        let ids: Vec<&Value> = self.drained(&report["listeners"]).map(|of| &of["id"]).collect();
        let is_busy = |of: &&Value| {
            let works = of["queue"].as_u64() > Some(0)
                && ["in_flight", "unsent_bytes"].iter().any(|what| of[what].as_u64() > Some(0));
            ids.contains(&&of["listener"]) && (works || of["awaits_ana"] == true)
        };
        let all = report["connections"].as_array().into_iter().flatten();
        let hosts: BTreeSet<&str> =
            all.filter(is_busy).filter_map(|of| of["host"].as_str()).collect();
        let some: Vec<&str> = hosts.iter().take(HOSTS_MAX).copied().collect();
        let more = if hosts.len() > some.len() { ", …" } else { "" };
        some.join(", ") + more
    }
}

/// Waits until nothing is in flight, and shows the progress. Returns the last report of the listeners.
fn wait(
    client: &mut Client,
    which: &Which,
    mut listeners: Value,
    patience: Duration,
    json: bool,
) -> Result<Value, ClientError> {
    let begin = Instant::now();
    let mut told = begin;
    while which.busy(&listeners) > 0 && begin.elapsed() < patience {
        if told.elapsed() >= TELL_EVERY && !json {
            told = Instant::now();
            for of in which.drained(&listeners) {
                eprintln!(
                    "{}: {} commands in flight, {} hosts have not read the change yet",
                    text(&of["address"]),
                    of["in_flight"],
                    of["untold"]
                );
            }
        }
        std::thread::sleep(LOOK_EVERY);
        listeners = client.call("report", Value::Null)?["listeners"].clone();
    }
    Ok(listeners)
}

fn shown(listeners: &Value) -> String {
    let heads = ["listener", "id", "advertised", "namespaces", "hosts", "connections", "in flight"];
    let row = |of: &Value| {
        let states = of["ana"].as_object().into_iter().flatten();
        let states: Vec<(String, String)> =
            states.map(|(group, state)| (group.clone(), text(state))).collect();
        let all_same = states.windows(2).all(|pair| pair[0].1 == pair[1].1);
        let states = match states.first() {
            _ if of["up"] == false => "away".to_owned(),
            _ if of["drained"] == true => "drained".to_owned(),
            Some((_, state)) if all_same => state.clone(),
            _ => states.iter().map(|(g, s)| format!("{g}: {s}")).collect::<Vec<_>>().join(", "),
        };
        vec![
            text(&of["address"]),
            text(&of["id"]),
            of["advertised"].as_str().unwrap_or("–").to_owned(),
            states,
            text(&of["associations"]),
            text(&of["connections"]),
            text(&of["in_flight"]),
        ]
    };
    let rows = listeners.as_array().into_iter().flatten().map(row).collect();
    table(&heads, rows)
}
