//! `bpfof ctl`.

mod paths;
mod table;

use crate::slow;
use bpfof_operations::client::{Client, ControlSocket};
use bpfof_terminal::Outcome;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::net::IpAddr;
use table::{table, text};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    control: ControlSocket,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Connected hosts, with their commands and the memory that they take.
    Hosts,
    /// All connections.
    Connections,
    /// Namespaces, with commands, errors and latencies by class.
    Namespaces,
    /// Functions that are installed for all hosts.
    Functions,
    /// Reactors: how busy they are.
    Reactors,
    /// Memory: the limit, and what each host has taken.
    Memory,
    /// How often hosts were refused something, by reason.
    Denials,
    /// The hundred slowest commands of the last ten minutes, chains among them, and what they waited for.
    Slow {
        /// Show chains hop by hop.
        #[arg(long)]
        hops: bool,
    },
    /// All of these but the slowest commands, as JSON.
    Stats,
    /// End all associations of a host. The host may connect again; to keep it out, change its rule.
    Kick {
        /// NQN of the host.
        host: String,
        /// End only associations from this address, as shown by `hosts`. A host that TLS has identified has no address.
        #[arg(long, value_name = "IP")]
        address: Option<IpAddr>,
    },
    #[command(flatten)]
    Paths(paths::Command),
    /// Read the configuration again, as on SIGHUP, and report the outcome.
    Reload,
    /// Rules and keys.
    #[command(subcommand)]
    Keys(Keys),
    /// Stop the target, as on SIGTERM.
    Stop,
    /// Change the level of the log, until the target is started again.
    Log {
        /// error, warn, info or debug.
        level: String,
    },
    /// Add, remove or resize a namespace.
    #[command(subcommand)]
    Namespace(Namespace),
    /// The version of the target.
    Version,
}

#[derive(Subcommand)]
enum Keys {
    /// Read the [[host]] rules of the configuration file again, and the keys that they name, and nothing else. Hosts
    /// that lose rights are disconnected.
    Reload,
}

#[derive(Subcommand)]
enum Namespace {
    /// Serve another namespace, written as for `bpfof target --namespace`; without nsid= it gets the next free id.
    Add {
        /// For example file:path=/srv/disk.img,size=10GiB.
        spec: String,
        #[command(flatten)]
        save: Save,
    },
    /// Stop serving a namespace. Its file stays.
    Remove {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        save: Save,
    },
    /// Change the size of a namespace in a file.
    Resize {
        #[command(flatten)]
        place: Place,
        /// For example 20GiB.
        size: String,
        #[command(flatten)]
        save: Save,
    },
}

#[derive(Args)]
struct Place {
    /// Id of the namespace.
    nsid: u32,
    /// Subsystem of the namespace [default: that of the target].
    #[arg(long, value_name = "NQN")]
    subsystem: Option<String>,
}

#[derive(Args)]
struct Save {
    /// Save the change in the configuration file, whose comments stay. Without this it lasts until the file is read
    /// again.
    #[arg(long)]
    save: bool,
}

impl Namespace {
    /// Method and parameters.
    fn request(&self) -> (&'static str, Value) {
        match self {
            Self::Add { spec, save } => {
                ("namespace.add", json!({ "spec": spec, "save": save.save }))
            }
            Self::Remove { place, save } => {
                let Place { nsid, subsystem } = place;
                let params = json!({ "nsid": nsid, "subsystem": subsystem, "save": save.save });
                ("namespace.remove", params)
            }
            Self::Resize { place, size, save } => {
                let Place { nsid, subsystem } = place;
                let mut params = json!({ "nsid": nsid, "subsystem": subsystem, "save": save.save });
                params["size"] = size.as_str().into();
                ("namespace.resize", params)
            }
        }
    }
}

pub(crate) fn run(options: &Options) -> Outcome {
    let mut client = Client::connect(&options.control.socket)?;
    if let Command::Paths(command) = &options.command {
        return paths::run(&mut client, command, options.json);
    }
    let mut call = |method: &str, params: Value| client.call(method, params);
    let (result, words) = match &options.command {
        Command::Kick { host, address } => {
            let result = call("kick", json!({ "host": host, "address": address }))?;
            let at = address.map(|address| format!(" at {address}")).unwrap_or_default();
            let words = format!("{} associations of {host}{at} end", result["ended"]);
            (result, words)
        }
        Command::Reload => {
            (call("reload", Value::Null)?, "the configuration is in force".to_owned())
        }
        Command::Keys(Keys::Reload) => {
            (call("keys.reload", Value::Null)?, "the rules and keys are in force".to_owned())
        }
        Command::Stop => (call("stop", Value::Null)?, "the target stops".to_owned()),
        Command::Namespace(namespace) => {
            let (method, params) = namespace.request();
            let result = call(method, params)?;
            let done = match namespace {
                Namespace::Add { .. } => "is served",
                Namespace::Remove { .. } => "is gone",
                Namespace::Resize { .. } => "has its new size",
            };
            let words = format!("namespace {} {done}", result["nsid"]);
            (result, words)
        }
        Command::Log { level } => {
            (call("log", json!({ "level": level }))?, format!("the level of the log is {level}"))
        }
        Command::Slow { hops } => {
            let result = call("slow", Value::Null)?;
            let words = match hops {
                true => slow::hop_by_hop(&result)?,
                false => table(&slow::HEADS, slow::rows(&result)?),
            };
            (result, words.trim_end().to_owned())
        }
        Command::Version => {
            let result = call("version", Value::Null)?;
            let words = result.as_str().unwrap_or_default().to_owned();
            (result, words)
        }
        part => {
            let report = call("report", Value::Null)?;
            let (result, table) = shown(part, &report);
            (result, table.trim_end().to_owned())
        }
    };
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&result)?),
        false => println!("{words}"),
    }
    Ok(())
}

/// The name of a host's memory account.
fn account(of: &Value) -> String {
    match of["address"].as_str() {
        Some(address) => format!("{} at {address}", text(&of["nqn"])),
        None => text(&of["nqn"]),
    }
}

/// A part of a report, as JSON and as a table.
fn shown(part: &Command, report: &Value) -> (Value, String) {
    let rows = |list: &str, row: fn(&Value) -> Vec<String>| -> Vec<Vec<String>> {
        report[list].as_array().into_iter().flatten().map(row).collect()
    };
    let (list, table) = match part {
        Command::Hosts => {
            let heads = ["host", "address", "connections", "reads", "writes", "chains", "memory"];
            ("hosts", table(&heads, rows("hosts", host)))
        }
        Command::Connections => {
            let heads = ["peer", "host", "queue", "reactor", "tls", "in flight", "unsent", "age"];
            ("connections", table(&heads, rows("connections", connection)))
        }
        Command::Namespaces => {
            let heads =
                ["namespace", "class", "commands", "errors", "bytes", "p50", "p99", "p99.9"];
            let all = report["namespaces"].as_array().into_iter().flatten();
            ("namespaces", table(&heads, all.flat_map(classes).collect()))
        }
        Command::Functions => {
            let heads = ["function", "id", "chains", "hops", "faults", "aborts"];
            ("functions", table(&heads, rows("functions", function)))
        }
        Command::Reactors => {
            let heads = ["reactor", "busy since start", "connections", "chains running", "waiting"];
            ("reactors", table(&heads, rows("reactors", reactor)))
        }
        Command::Denials => {
            let all = report["denials"].as_object().into_iter().flatten();
            let rows = all.map(|(why, count)| vec![why.clone(), text(count)]);
            ("denials", table(&["refused because", "times"], rows.collect()))
        }
        Command::Memory => {
            let figures = ["memory_limit_bytes", "memory_used_bytes", "memory_own_bytes"];
            let mut result: serde_json::Map<String, Value> =
                figures.map(|name| (name.to_owned(), report[name].clone())).into_iter().collect();
            let hosts = report["hosts"].as_array().into_iter().flatten();
            let host = |of: &Value| {
                let [nqn, address, bytes] =
                    ["nqn", "address", "memory_bytes"].map(|name| &of[name]);
                json!({ "nqn": nqn, "address": address, "memory_bytes": bytes })
            };
            result.insert("hosts".to_owned(), hosts.map(host).collect());
            let mut all = vec![
                vec!["limit".to_owned(), size(&report["memory_limit_bytes"])],
                vec!["used".to_owned(), size(&report["memory_used_bytes"])],
                vec!["of that the target's own".to_owned(), size(&report["memory_own_bytes"])],
            ];
            all.extend(rows("hosts", |of| vec![account(of), size(&of["memory_bytes"])]));
            return (result.into(), table(&["account", "memory"], all));
        }
        _ => return (report.clone(), serde_json::to_string_pretty(report).unwrap_or_default()),
    };
    (report[list].clone(), table)
}

fn host(of: &Value) -> Vec<String> {
    let totals = &of["totals"];
    let address = of["address"].as_str().unwrap_or("any (TLS)").to_owned();
    vec![
        text(&of["nqn"]),
        address,
        text(&of["connections"]),
        text(&totals["reads"]),
        text(&totals["writes"]),
        text(&totals["chains"]),
        size(&of["memory_bytes"]),
    ]
}

fn connection(of: &Value) -> Vec<String> {
    let host = match of["host"].as_str() {
        _ if of["controller"] == 0 => "(not connected)".to_owned(),
        Some("") => "(no name)".to_owned(),
        _ if of["awaits_authentication"] == true => {
            format!("{} (not authenticated)", text(&of["host"]))
        }
        _ => text(&of["host"]),
    };
    vec![
        text(&of["peer"]),
        host,
        text(&of["queue"]),
        text(&of["reactor"]),
        if of["tls"] == true { "yes" } else { "no" }.to_owned(),
        text(&of["in_flight"]),
        size(&of["unsent_bytes"]),
        format!("{:.0} s", of["age_ms"].as_f64().unwrap_or_default() / 1000.0),
    ]
}

/// A row for each class with at least one command.
fn classes(of: &Value) -> Vec<Vec<String>> {
    let name = format!("{} of {}", text(&of["nsid"]), text(&of["subsystem"]));
    let lines = ["read", "write", "flush", "chain"].into_iter().filter_map(|class| {
        let (metrics, latency) = (&of[class], &of[class]["latency"]);
        let time = |quantile: &str| {
            latency[quantile].as_f64().map_or("–".to_owned(), |us| format!("{us:.1} µs"))
        };
        (latency["count"] != 0).then(|| {
            vec![
                name.clone(),
                class.to_owned(),
                text(&latency["count"]),
                text(&metrics["errors"]),
                size(&metrics["bytes"]),
                time("p50_us"),
                time("p99_us"),
                time("p999_us"),
            ]
        })
    });
    let lines: Vec<_> = lines.collect();
    if lines.is_empty() { vec![vec![name, "no commands yet".to_owned()]] } else { lines }
}

fn function(of: &Value) -> Vec<String> {
    ["name", "id", "chains", "hops", "faults", "aborts"].map(|name| text(&of[name])).to_vec()
}

fn reactor(of: &Value) -> Vec<String> {
    let ns = |name: &str| of[name].as_f64().unwrap_or_default();
    let busy = 100.0 * (1.0 - ns("idle_ns") / ns("time_ns").max(1.0));
    vec![
        text(&of["index"]),
        format!("{busy:.1} %"),
        text(&of["connections"]),
        text(&of["chains_running"]),
        text(&of["chains_waiting"]),
    ]
}

fn size(bytes: &Value) -> String {
    let bytes = bytes.as_f64().unwrap_or_default();
    match bytes {
        0.0..1024.0 => format!("{bytes:.0} B"),
        1024.0..1048576.0 => format!("{:.1} KiB", bytes / 1024.0),
        1048576.0..1073741824.0 => format!("{:.1} MiB", bytes / 1048576.0),
        _ => format!("{:.1} GiB", bytes / 1073741824.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest() {
        let rows = vec![vec!["a".to_owned(), "10".to_owned()], vec!["much".to_owned()]];
        assert_eq!(table(&["x", "n"], rows), "x      n\na     10\nmuch\n");
        assert_eq!(
            [1023, 1024, 3 << 20].map(|n| size(&n.into())),
            ["1023 B", "1.0 KiB", "3.0 MiB"]
        );
    }

    #[test]
    fn a_connected_host_may_have_an_empty_name() {
        let shown = |controller: u16| {
            connection(&json!({ "host": "", "controller": controller }))[1].clone()
        };
        assert_eq!([0, 1].map(shown), ["(not connected)", "(no name)"]);
    }
}
