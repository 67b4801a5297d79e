//! Paths to namespaces: listeners, and the ANA states of namespaces there.

use super::table::{table, text};
use bpfof_controller::AnaState;
use bpfof_operations::client::{Client, ClientError};
use bpfof_terminal::Outcome;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Time between two checks whether all is drained.
const LOOK_EVERY: Duration = Duration::from_millis(50);
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
    let mut left = 0;
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
            let listeners = wait(client, drained, Duration::from_secs(*timeout), json)?;
            left = busy(&listeners);
            if *close && left == 0 { client.call("close", which.params())? } else { listeners }
        }
    };
    match json {
        true => println!("{}", serde_json::to_string_pretty(&listeners)?),
        false => print!("{}", shown(&listeners)),
    }
    match left {
        0 => Ok(()),
        left => Err(format!(
            "{left} connections still have commands in flight, or their hosts have not read the \
             change yet; the listeners stay drained: wait longer with another `bpfof ctl drain`, \
             or `bpfof ctl undrain`"
        )
        .into()),
    }
}

impl Which {
    fn params(&self) -> Value {
        json!({ "listeners": self.listeners })
    }
}

fn drained(listeners: &Value) -> impl Iterator<Item = &Value> {
    listeners.as_array().into_iter().flatten().filter(|of| of["drained"] == true)
}

/// Connections of drained listeners with commands in flight, or whose hosts have not read the change yet.
fn busy(listeners: &Value) -> u64 {
    let count = |of: &Value, what: &str| of[what].as_u64().unwrap_or_default();
    drained(listeners).map(|of| count(of, "busy") + count(of, "untold")).sum()
}

/// Waits until nothing is in flight, and shows the progress. Returns the last report of the listeners.
fn wait(
    client: &mut Client,
    mut listeners: Value,
    patience: Duration,
    json: bool,
) -> Result<Value, ClientError> {
    let begin = Instant::now();
    let mut told = begin;
    while busy(&listeners) > 0 && begin.elapsed() < patience {
        if told.elapsed() >= TELL_EVERY && !json {
            told = Instant::now();
            for of in drained(&listeners) {
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
