//! Computes rates from two reports of a target.

use crate::report::{Class, Function, Host, Namespace, Reactor, Report, p99_us};
use crate::table::{Cell, Column, Row, Table, Unit};
use serde_json::{Value, json};
use std::slice;

const fn column(key: &'static str, head: &'static str, unit: Unit) -> Column {
    Column { key, head, unit }
}

const HOSTS: [Column; 12] = [
    column("host", "host", Unit::Text),
    column("address", "address", Unit::Text),
    column("chains_per_s", "chains/s", Unit::Rate),
    column("hops_per_s", "hops/s", Unit::Rate),
    column("reads_per_s", "reads/s", Unit::Rate),
    column("writes_per_s", "writes/s", Unit::Rate),
    column("p99_us", "p99", Unit::Time),
    column("read_bytes_per_s", "read", Unit::ByteRate),
    column("written_bytes_per_s", "written", Unit::ByteRate),
    column("hops_per_chain", "hops/chain", Unit::Ratio),
    column("connections", "connections", Unit::Count),
    column("memory_bytes", "memory", Unit::Bytes),
];
/// The address shown for a host that TLS has identified.
pub(crate) const IDENTIFIED: &str = "any (TLS)";
const NAMESPACES: [Column; 13] = [
    column("namespace", "namespace", Unit::Text),
    column("subsystem", "subsystem", Unit::Text),
    column("chains_per_s", "chains/s", Unit::Rate),
    column("chain_p99_us", "p99", Unit::Time),
    column("reads_per_s", "reads/s", Unit::Rate),
    column("read_p99_us", "p99", Unit::Time),
    column("writes_per_s", "writes/s", Unit::Rate),
    column("write_p99_us", "p99", Unit::Time),
    column("hops_per_s", "hops/s", Unit::Rate),
    column("hops_per_chain", "hops/chain", Unit::Ratio),
    column("bytes_per_s", "moved", Unit::ByteRate),
    column("errors_per_s", "errors/s", Unit::Rate),
    column("size_bytes", "size", Unit::Bytes),
];
const FUNCTIONS: [Column; 10] = [
    column("function", "function", Unit::Text),
    column("subsystem", "subsystem", Unit::Text),
    column("chains_per_s", "chains/s", Unit::Rate),
    column("hops_per_s", "hops/s", Unit::Rate),
    column("hops_per_chain", "hops/chain", Unit::Ratio),
    column("p99_us", "p99", Unit::Time),
    column("read_bytes_per_s", "read", Unit::ByteRate),
    column("faults", "faults", Unit::Count),
    column("aborts", "aborts", Unit::Count),
    column("chains", "chains in all", Unit::Count),
];
const REACTORS: [Column; 6] = [
    column("reactor", "reactor", Unit::Text),
    column("busy", "busy", Unit::Part),
    column("p99_us", "p99", Unit::Time),
    column("connections", "connections", Unit::Count),
    column("chains_running", "chains running", Unit::Count),
    column("chains_waiting", "chains waiting", Unit::Count),
];

/// Number of tables.
pub(crate) const TABLES: usize = 4;

/// The target as a whole. Rates are none until there are two reports.
#[derive(Clone, Debug, Default)]
pub(crate) struct Summary {
    pub(crate) up_s: f64,
    pub(crate) connections: u64,
    pub(crate) memory_used_bytes: u64,
    pub(crate) memory_limit_bytes: u64,
    /// Of all namespaces and classes.
    pub(crate) operations_per_s: Option<f64>,
    pub(crate) chains_per_s: Option<f64>,
    pub(crate) hops_per_s: Option<f64>,
    pub(crate) bytes_per_s: Option<f64>,
    /// The fraction of the reactors' time that was not idle.
    pub(crate) busy: Option<f64>,
}

/// All figures that are shown.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) summary: Summary,
    /// Hosts, namespaces, functions, reactors.
    pub(crate) tables: [Table; TABLES],
}

/// An earlier report of the same target, and the time since then.
#[derive(Clone, Copy)]
struct Since<'a> {
    before: &'a Report,
    seconds: f64,
}

impl Figures {
    /// The figures from a report and the one before it.
    pub(crate) fn of(now: &Report, before: Option<&Report>) -> Figures {
        let since =
            before.and_then(|before| Some(Since { before, seconds: now.seconds_since(before)? }));
        let table = |name, columns, rows| Table { name, columns, rows };
        Figures {
            summary: summary(now, since),
            tables: [
                table("hosts", &HOSTS, now.hosts.iter().map(|of| host(of, since)).collect()),
                table(
                    "namespaces",
                    &NAMESPACES,
                    now.namespaces.iter().map(|of| namespace(of, since)).collect(),
                ),
                table(
                    "functions",
                    &FUNCTIONS,
                    now.functions.iter().map(|of| function(of, since)).collect(),
                ),
                table(
                    "reactors",
                    &REACTORS,
                    now.reactors.iter().map(|of| reactor(of, since)).collect(),
                ),
            ],
        }
    }

    pub(crate) fn json(&self) -> Value {
        let Summary { up_s, connections, memory_used_bytes, memory_limit_bytes, .. } = self.summary;
        let mut all = json!({
            "up_s": up_s,
            "connections": connections,
            "memory_used_bytes": memory_used_bytes,
            "memory_limit_bytes": memory_limit_bytes,
            "operations_per_s": self.summary.operations_per_s,
            "chains_per_s": self.summary.chains_per_s,
            "hops_per_s": self.summary.hops_per_s,
            "bytes_per_s": self.summary.bytes_per_s,
            "busy": self.summary.busy,
        });
        for table in &self.tables {
            all[table.name] = table.json();
        }
        all
    }
}

/// The increase a second; none without an earlier count.
fn rate(now: u64, before: Option<u64>, since: Option<Since<'_>>) -> Option<f64> {
    Some(now.saturating_sub(before?) as f64 / since?.seconds)
}

fn ratio(hops: Option<f64>, chains: Option<f64>) -> Cell {
    match (hops, chains) {
        (Some(hops), Some(chains)) if chains > 0.0 => Cell::Figure(hops / chains),
        _ => Cell::Nothing,
    }
}

fn summary(now: &Report, since: Option<Since<'_>>) -> Summary {
    let sum = |of: fn(&Class) -> u64, report: &Report| -> u64 {
        report.namespaces.iter().flat_map(Namespace::classes).map(of).sum()
    };
    let rate_of =
        |of: fn(&Class) -> u64| rate(sum(of, now), since.map(|since| sum(of, since.before)), since);
    let chains = |report: &Report| report.namespaces.iter().map(|of| of.chain.latency.count).sum();
    let times = |report: &Report| {
        report
            .reactors
            .iter()
            .fold((0, 0), |(time, idle), of| (time + of.time_ns, idle + of.idle_ns))
    };
    Summary {
        up_s: now.up_s(),
        connections: now.connections(),
        memory_used_bytes: now.memory_used_bytes,
        memory_limit_bytes: now.memory_limit_bytes,
        operations_per_s: rate_of(|class| class.latency.count),
        chains_per_s: rate(chains(now), since.map(|since| chains(since.before)), since),
        hops_per_s: rate_of(|class| class.hops),
        bytes_per_s: rate_of(|class| class.bytes),
        busy: since.map(|since| busy(times(now), times(since.before))),
    }
}

/// The fraction of the time between two readings of (time, idle) that was not idle.
fn busy(now: (u64, u64), before: (u64, u64)) -> f64 {
    let (time, idle) = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
    (1.0 - idle as f64 / time.max(1) as f64).clamp(0.0, 1.0)
}

fn host(of: &Host, since: Option<Since<'_>>) -> Row {
    let old = since.and_then(|since| since.before.hosts.iter().find(|old| old.serial == of.serial));
    let p99 = old.and_then(|old| p99_us(&of.latencies, &old.latencies));
    let totals = of.totals;
    let old = old.map(|old| old.totals);
    let chains = rate(totals.chains, old.map(|old| old.chains), since);
    let hops = rate(totals.hops, old.map(|old| old.hops), since);
    let cells = vec![
        of.nqn.as_str().into(),
        of.address.as_deref().unwrap_or(IDENTIFIED).into(),
        chains.into(),
        hops.into(),
        rate(totals.reads, old.map(|old| old.reads), since).into(),
        rate(totals.writes, old.map(|old| old.writes), since).into(),
        p99.into(),
        rate(
            totals.read_bytes + totals.chain_bytes,
            old.map(|old| old.read_bytes + old.chain_bytes),
            since,
        )
        .into(),
        rate(totals.written_bytes, old.map(|old| old.written_bytes), since).into(),
        ratio(hops, chains),
        of.connections.into(),
        of.memory_bytes.into(),
    ];
    Row { key: of.serial.to_string(), cells }
}

fn namespace(of: &Namespace, since: Option<Since<'_>>) -> Row {
    let old = since.and_then(|since| {
        let all = &since.before.namespaces;
        all.iter().find(|old| (&old.subsystem, old.nsid) == (&of.subsystem, of.nsid))
    });
    let figure = |class: fn(&Namespace) -> &Class, of_class: fn(&Class) -> u64| {
        rate(of_class(class(of)), old.map(|old| of_class(class(old))), since)
    };
    let count = |class: fn(&Namespace) -> &Class| figure(class, |class| class.latency.count);
    let p99 = |class: fn(&Namespace) -> &Class| -> Cell {
        let latency = |of| slice::from_ref(&class(of).latency);
        old.and_then(|old| p99_us(latency(of), latency(old))).into()
    };
    let all = |of_class: fn(&Class) -> u64| {
        let sum = |namespace: &Namespace| namespace.classes().into_iter().map(of_class).sum();
        rate(sum(of), old.map(sum), since)
    };
    let (chains, hops) = (count(|of| &of.chain), figure(|of| &of.chain, |class| class.hops));
    let cells = vec![
        of.nsid.to_string().as_str().into(),
        of.subsystem.as_str().into(),
        chains.into(),
        p99(|of| &of.chain),
        count(|of| &of.read).into(),
        p99(|of| &of.read),
        count(|of| &of.write).into(),
        p99(|of| &of.write),
        hops.into(),
        ratio(hops, chains),
        all(|class| class.bytes).into(),
        all(|class| class.errors).into(),
        of.size_bytes.into(),
    ];
    Row { key: format!("{} {}", of.nsid, of.subsystem), cells }
}

fn function(of: &Function, since: Option<Since<'_>>) -> Row {
    let old = since.and_then(|since| {
        let all = &since.before.functions;
        all.iter().find(|old| (&old.subsystem, old.id) == (&of.subsystem, of.id))
    });
    let chains = rate(of.chains, old.map(|old| old.chains), since);
    let hops = rate(of.hops, old.map(|old| old.hops), since);
    let cells = vec![
        format!("{} ({})", of.name, of.id).as_str().into(),
        of.subsystem.as_str().into(),
        chains.into(),
        hops.into(),
        ratio(hops, chains),
        old.and_then(|old| p99_us(slice::from_ref(&of.latency), slice::from_ref(&old.latency)))
            .into(),
        rate(of.read_bytes, old.map(|old| old.read_bytes), since).into(),
        of.faults.into(),
        of.aborts.into(),
        of.chains.into(),
    ];
    Row { key: format!("{} {}", of.id, of.subsystem), cells }
}

fn reactor(of: &Reactor, since: Option<Since<'_>>) -> Row {
    let old =
        since.and_then(|since| since.before.reactors.iter().find(|old| old.index == of.index));
    let busy = old.map(|old| busy((of.time_ns, of.idle_ns), (old.time_ns, old.idle_ns)));
    let cells = vec![
        of.index.to_string().as_str().into(),
        busy.into(),
        old.and_then(|old| p99_us(&of.latencies, &old.latencies)).into(),
        of.connections.into(),
        of.chains_running.into(),
        of.chains_waiting.into(),
    ];
    Row { key: of.index.to_string(), cells }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(time_ns: u64, chains: u64) -> Report {
        let value = json!({
            "memory_limit_bytes": 1000, "memory_used_bytes": 10,
            "reactors": [{ "index": 0, "time_ns": time_ns, "idle_ns": time_ns / 4, "connections": 3 }],
            "namespaces": [{
                "subsystem": "s", "nsid": 2, "size_bytes": 4096,
                "chain": { "latency": { "count": chains, "buckets": [[2048, chains]] }, "bytes": chains * 100,
                           "hops": chains * 6, "errors": 0 },
            }],
            "functions": [{ "subsystem": "s", "id": 1, "name": "get", "chains": chains, "hops": chains * 6 }],
            "hosts": [{ "nqn": "h", "address": "10.0.0.1", "connections": 3,
                        "totals": { "chains": chains, "hops": chains * 6, "chain_bytes": chains * 100 } }],
        });
        serde_json::from_value(value).expect("a report")
    }

    #[test]
    fn rates_are_those_since_the_last_report() {
        let (before, now) = (report(1_000_000_000, 100), report(3_000_000_000, 300));
        let first = Figures::of(&before, None).json();
        assert!(first["hosts"][0]["chains_per_s"].is_null() && first["busy"].is_null(), "{first}");
        let figures = Figures::of(&now, Some(&before)).json();
        assert_eq!(
            (&figures["chains_per_s"], &figures["bytes_per_s"]),
            (&100.0.into(), &10_000.0.into())
        );
        assert_eq!((&figures["busy"], &figures["connections"]), (&0.75.into(), &3.into()));
        for (table, name) in [("hosts", "h"), ("namespaces", "2"), ("functions", "get (1)")] {
            let row = &figures[table][0];
            assert_eq!(
                (&row["chains_per_s"], &row["hops_per_chain"]),
                (&100.0.into(), &6.0.into()),
                "{row}"
            );
            assert_eq!(row[&table[..table.len() - 1]], name);
        }
        assert_eq!(figures["namespaces"][0]["chain_p99_us"], 2.048);
        assert_eq!(figures["reactors"][0]["busy"], 0.75);
    }

    #[test]
    fn hosts_of_one_name_and_address_are_told_apart() {
        let report = |seconds: u64| -> Report {
            let host = |serial: u64| {
                let totals = json!({ "reads": seconds * serial * 100 });
                json!({ "serial": serial, "nqn": "h", "address": "10.0.0.1", "totals": totals })
            };
            let reactors = json!([{ "time_ns": seconds * 1_000_000_000 }]);
            let value = json!({ "reactors": reactors, "hosts": [host(1), host(2)] });
            serde_json::from_value(value).expect("a report")
        };
        let figures = Figures::of(&report(2), Some(&report(1)));
        let hosts = figures.tables[0].rows.iter();
        let shown: Vec<_> = hosts.map(|row| (row.key.as_str(), &row.cells[4])).collect();
        assert_eq!(shown, [("1", &Cell::Figure(100.0)), ("2", &Cell::Figure(200.0))]);
    }

    #[test]
    fn a_target_that_was_started_again_begins_anew() {
        let figures =
            Figures::of(&report(1_000_000_000, 5), Some(&report(9_000_000_000, 100))).json();
        assert!(figures["chains_per_s"].is_null(), "{figures}");
    }
}
