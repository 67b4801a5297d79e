//! A target's counters, as OpenMetrics text.
//!
//! Counters begin when the target starts, a namespace is added or a host connects; Prometheus' `rate()` allows for
//! counters that begin again. Latencies have buckets in powers of two from 1.024 µs to 34 s. There are as many series
//! as there are namespaces, kept functions, reactors, and hosts up to 256. All other hosts together have gauges only,
//! no counters: a sum over hosts that come and go could also decrease.

use bpfof_controller::{
    Class, ClassMetrics, FunctionReport, Histogram, HostReport, ListenerReport, NamespaceReport,
    Octaves, TargetReport,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;

/// The media type of the output of [`text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Buckets of a latency that are merged into one: one bucket for each power of two.
const BUCKETS_OF_OCTAVE: usize = 4;
/// The first bucket's end: 1.024 µs.
const FIRST_END: usize = 3;

/// Most hosts with series of their own, because clients may invent names. All others are reported together, as
/// [`OTHERS`].
const MAX_HOSTS: usize = 256;
/// The name of all other hosts together.
const OTHERS: &str = "(others)";
/// Their serial, which no host has. A host may have any name.
const OTHERS_SERIAL: u64 = u64::MAX;

/// A report as OpenMetrics text.
///
/// # Errors
/// Only those of formatting into memory.
pub fn text(report: TargetReport) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("bpfof");
    let hosts = hosts(report.hosts.clone());
    registry.register_collector(Box::new(Metrics { report, hosts }));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// Whether a host's counts never decrease: those of several hosts that come and go do.
fn has_counters(host: &HostReport) -> bool {
    host.serial != OTHERS_SERIAL
}

/// The labels of a host. A host with a key may have the same name and address as one without.
fn host_labels(host: &HostReport) -> Vec<(&'static str, String)> {
    let address = host.address.clone().unwrap_or_default();
    let mut labels = vec![("host", host.nqn.clone()), ("address", address)];
    if host.has_key {
        labels.push(("key", "dhchap".to_owned()));
    }
    labels
}

/// The hosts that have series: those beyond [`MAX_HOSTS`] as one.
fn hosts(mut hosts: Vec<HostReport>) -> Vec<HostReport> {
    // The hosts that have been connected longest keep their series when others come.
    hosts.sort_by_key(|host| host.serial);
    let rest = hosts.split_off(hosts.len().min(MAX_HOSTS));
    let others = rest.into_iter().reduce(|mut all, host| {
        all.connections += host.connections;
        all.associations += host.associations;
        all.memory_bytes += host.memory_bytes;
        all
    });
    hosts.extend(others.map(|all| HostReport {
        serial: OTHERS_SERIAL,
        nqn: OTHERS.to_owned(),
        address: None,
        has_key: false,
        ..all
    }));
    hosts
}

#[derive(Debug)]
struct Metrics {
    report: TargetReport,
    hosts: Vec<HostReport>,
}

/// A counter, or a gauge.
struct Value(u64, MetricType);

impl EncodeMetric for Value {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match self.1 {
            MetricType::Counter => encoder.encode_counter::<NoLabelSet, _, u64>(&self.0, None),
            _ => encoder.encode_gauge(&(self.0 as f64)),
        }
    }

    fn metric_type(&self) -> MetricType {
        self.1
    }
}

/// Seconds, as a counter.
struct Seconds(f64);

impl EncodeMetric for Seconds {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        encoder.encode_counter::<NoLabelSet, _, u64>(&self.0, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

/// Latencies.
struct Latency<'a>(&'a Histogram);

impl EncodeMetric for Latency<'_> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let fine = self.0.buckets();
        let mut coarse = Vec::new();
        let mut count = 0;
        for (bucket, in_bucket) in fine.iter().enumerate() {
            count += in_bucket;
            let is_last = bucket + 1 == fine.len();
            if is_last || bucket % BUCKETS_OF_OCTAVE == FIRST_END {
                let end =
                    if is_last { f64::INFINITY } else { Histogram::end_ns(bucket) as f64 / 1e9 };
                coarse.push((end, std::mem::take(&mut count)));
            }
        }
        let sum_s = self.0.sum_ns() as f64 / 1e9;
        encoder.encode_histogram::<NoLabelSet>(sum_s, self.0.count(), &coarse, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// Latencies whose buckets are coarse already.
struct CoarseLatency<'a>(&'a Octaves);

impl EncodeMetric for CoarseLatency<'_> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let ends = (0..Octaves::BUCKETS).map(|bucket| match bucket + 1 {
            Octaves::BUCKETS => f64::INFINITY,
            _ => Octaves::end_ns(bucket) as f64 / 1e9,
        });
        let buckets: Vec<(f64, u64)> = ends.zip(self.0.buckets().iter().copied()).collect();
        let sum_s = self.0.sum_ns() as f64 / 1e9;
        encoder.encode_histogram::<NoLabelSet>(sum_s, self.0.count(), &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// The name, help text and unit of a family of metrics.
#[derive(Clone, Copy)]
struct Family {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit_>,
    kind: MetricType,
}

/// [`Unit`] is neither `Copy` nor `const`.
#[derive(Clone, Copy)]
enum Unit_ {
    Bytes,
    Seconds,
}

impl Family {
    const fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, help, unit: None, kind: MetricType::Counter }
    }

    const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, help, unit: None, kind: MetricType::Gauge }
    }

    const fn latency(name: &'static str, help: &'static str) -> Self {
        Self { name, help, unit: Some(Unit_::Seconds), kind: MetricType::Histogram }
    }

    const fn of(self, unit: Unit_) -> Self {
        Self { unit: Some(unit), ..self }
    }

    /// Encodes all members: their labels and values.
    fn encode<L: EncodeLabelSet, M: EncodeMetric>(
        self,
        encoder: &mut DescriptorEncoder<'_>,
        members: impl IntoIterator<Item = (L, M)>,
    ) -> fmt::Result {
        let unit = self.unit.map(|unit| match unit {
            Unit_::Bytes => Unit::Bytes,
            Unit_::Seconds => Unit::Seconds,
        });
        let mut family =
            encoder.encode_descriptor(self.name, self.help, unit.as_ref(), self.kind)?;
        for (labels, metric) in members {
            metric.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn counter(value: u64) -> Value {
    Value(value, MetricType::Counter)
}

fn gauge(value: u64) -> Value {
    Value(value, MetricType::Gauge)
}

/// The labels of a namespace.
fn labels_of(namespace: &NamespaceReport) -> [(&'static str, String); 2] {
    [("subsystem", namespace.subsystem.clone()), ("nsid", namespace.nsid.to_string())]
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        self.commands(encoder)?;
        self.namespaces(encoder)?;
        self.functions(encoder)?;
        self.hosts(encoder)?;
        self.reactors(encoder)?;
        self.listeners(encoder)?;
        self.target(encoder)
    }
}

impl Metrics {
    /// Metrics by namespace and class.
    fn commands(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = || {
            self.report.namespaces.iter().flat_map(|namespace| {
                Class::ALL.into_iter().map(move |class| {
                    let labels = [
                        ("subsystem", namespace.subsystem.clone()),
                        ("nsid", namespace.nsid.to_string()),
                        ("class", class.name().to_owned()),
                    ];
                    (labels, namespace.class(class))
                })
            })
        };
        let of = |value: fn(&ClassMetrics) -> u64| {
            all().map(move |(labels, metrics)| (labels, counter(value(metrics))))
        };
        Family::counter("commands", "I/O commands that were carried out")
            .encode(encoder, of(|metrics| metrics.latency.count()))?;
        Family::counter("command_errors", "I/O commands that ended with an error")
            .encode(encoder, of(|metrics| metrics.errors))?;
        Family::counter(
            "command",
            "Bytes that I/O commands read or wrote; for chains, bytes read at the target",
        )
        .of(Unit_::Bytes)
        .encode(encoder, of(|metrics| metrics.bytes))?;
        let latencies = all().map(|(labels, metrics)| (labels, Latency(&metrics.latency)));
        let duration = "Time from the arrival of a command to its answer";
        Family::latency("command_duration", duration).encode(encoder, latencies)?;
        let hops = self
            .report
            .namespaces
            .iter()
            .map(|namespace| (labels_of(namespace), counter(namespace.chain.hops)));
        Family::counter("chain_hops", "Hops of chains that have ended").encode(encoder, hops)
    }

    fn namespaces(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let sizes = self
            .report
            .namespaces
            .iter()
            .map(|namespace| (labels_of(namespace), gauge(namespace.size_bytes)));
        Family::gauge("namespace_size", "Size of a namespace")
            .of(Unit_::Bytes)
            .encode(encoder, sizes)?;
        let errors = self
            .report
            .namespaces
            .iter()
            .map(|namespace| (labels_of(namespace), counter(namespace.device_errors)));
        let what = "Commands and reads of chains in which the file or disk has failed";
        Family::counter("device_errors", what).encode(encoder, errors)
    }

    /// Metrics by function that is installed for all hosts.
    fn functions(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type Count = fn(&FunctionReport) -> u64;
        let families: [(Family, Count); 4] = [
            (Family::counter("function_chains", "Chains of an installed function"), |of| of.chains),
            (Family::counter("function_hops", "Hops of an installed function"), |of| of.hops),
            (
                Family::counter(
                    "function_faults",
                    "Chains of an installed function that ended in a fault or beyond a budget of time",
                ),
                |of| of.faults,
            ),
            (
                Family::counter("function_aborts", "Chains that an installed function aborted"),
                |of| of.aborts,
            ),
        ];
        for (family, value) in families {
            let members = self.report.functions.iter().map(|function| {
                let labels = [
                    ("subsystem", function.subsystem.clone()),
                    ("function", function.name.clone()),
                    ("id", function.id.to_string()),
                ];
                (labels, counter(value(function)))
            });
            family.encode(encoder, members)?;
        }
        let kept = self.report.functions.iter().map(|function| {
            let labels = [
                ("subsystem", function.subsystem.clone()),
                ("function", function.name.clone()),
                ("id", function.id.to_string()),
            ];
            (labels, CoarseLatency(&function.latency))
        });
        let others = self.report.other_functions.iter().filter(|(_, latency)| latency.count() > 0);
        let others = others.map(|(subsystem, latency)| {
            let labels = [
                ("subsystem", subsystem.clone()),
                ("function", "(others)".to_owned()),
                ("id", "0".to_owned()),
            ];
            (labels, CoarseLatency(latency))
        });
        let duration = "Time from the arrival of a chain of an installed function to its answer";
        Family::latency("function_chain_duration", duration).encode(encoder, kept.chain(others))
    }

    /// Metrics by connected host.
    fn hosts(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type Count = fn(&HostReport) -> u64;
        let families: [(Family, Count); 7] = [
            (Family::gauge("connections", "Connections of a host"), |of| of.connections),
            (Family::gauge("associations", "Associations of a host"), |of| of.associations),
            (
                Family::gauge("host_memory", "Memory of the target that a host uses")
                    .of(Unit_::Bytes),
                |of| of.memory_bytes as u64,
            ),
            (Family::counter("host_reads", "Reads of a host"), |of| of.totals.reads),
            (Family::counter("host_writes", "Writes of a host"), |of| of.totals.writes),
            (Family::counter("host_chains", "Chains of a host"), |of| of.totals.chains),
            (Family::counter("host_hops", "Hops of a host's chains"), |of| of.totals.hops),
        ];
        for (family, value) in families {
            let is_gauge = matches!(family.kind, MetricType::Gauge);
            let told = self.hosts.iter().filter(|host| is_gauge || has_counters(host));
            let members = told.map(|host| (host_labels(host), Value(value(host), family.kind)));
            family.encode(encoder, members)?;
        }
        let latencies = self.hosts.iter().filter(|host| has_counters(host)).flat_map(|host| {
            let used = |class: &Class| host.latencies.class(*class).count() > 0;
            Class::ALL.into_iter().filter(used).map(|class| {
                let mut labels = host_labels(host);
                labels.push(("class", class.name().to_owned()));
                (labels, CoarseLatency(host.latencies.class(class)))
            })
        });
        let duration = "Time from the arrival of a command of a host to its answer";
        Family::latency("host_command_duration", duration).encode(encoder, latencies)
    }

    fn reactors(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let label = |index: usize| [("reactor", index.to_string())];
        let reactors = &self.report.reactors;
        let seconds = |ns: u64| Seconds(ns as f64 / 1e9);
        Family::counter("reactor_busy", "Time in which a reactor had work")
            .of(Unit_::Seconds)
            .encode(
                encoder,
                reactors.iter().map(|of| (label(of.index), seconds(of.time_ns - of.idle_ns))),
            )?;
        Family::counter(
            "reactor_time",
            "Time since the target started, by the clock of the reactor",
        )
        .of(Unit_::Seconds)
        .encode(encoder, reactors.iter().map(|of| (label(of.index), seconds(of.time_ns))))?;
        Family::gauge("reactor_connections", "Connections that a reactor serves").encode(
            encoder,
            reactors.iter().map(|of| (label(of.index), gauge(of.connections as u64))),
        )?;
        Family::gauge("chains_running", "Chains that have an arena").encode(
            encoder,
            reactors.iter().map(|of| (label(of.index), gauge(of.chains_running as u64))),
        )?;
        Family::gauge("chains_waiting", "Connections whose chains wait for an arena").encode(
            encoder,
            reactors.iter().map(|of| (label(of.index), gauge(of.chains_waiting as u64))),
        )?;
        let latencies = reactors.iter().flat_map(|of| {
            let used = |class: &Class| of.latencies.class(*class).count() > 0;
            Class::ALL.into_iter().filter(used).map(|class| {
                let labels =
                    [("reactor", of.index.to_string()), ("class", class.name().to_owned())];
                (labels, CoarseLatency(of.latencies.class(class)))
            })
        });
        let duration = "Time from the arrival of a command at a reactor to its answer";
        Family::latency("reactor_command_duration", duration).encode(encoder, latencies)
    }

    /// Metrics by address that the target listens on.
    fn listeners(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = &self.report.listeners;
        let label = |of: &ListenerReport| {
            [("listener", of.address.to_string()), ("transport", of.transport.name().to_owned())]
        };
        Family::gauge("listener_connections", "Connections of hosts at a listener")
            .encode(encoder, all.iter().map(|of| (label(of), gauge(of.connections))))?;
        Family::gauge("listener_commands_in_flight", "Commands in flight at a listener")
            .encode(encoder, all.iter().map(|of| (label(of), gauge(of.in_flight))))?;
        Family::gauge("listener_up", "Whether hosts can connect to a listener")
            .encode(encoder, all.iter().map(|of| (label(of), gauge(of.up.into()))))?;
        Family::gauge("listener_drained", "Whether a listener is drained")
            .encode(encoder, all.iter().map(|of| (label(of), gauge(of.drained.into()))))?;
        let states = all.iter().flat_map(|of| {
            of.ana.iter().map(move |(group, state)| {
                let [listener, transport] = label(of);
                ([listener, transport, ("group", group.to_string())], gauge(*state as u64))
            })
        });
        let help =
            "State of an ANA group at a listener: 1 optimized, 2 non-optimized, 3 inaccessible";
        Family::gauge("ana_state", help).encode(encoder, states)
    }

    fn target(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let report = &self.report;
        let denials =
            report.denials.iter().map(|(reason, count)| ([("reason", *reason)], counter(*count)));
        Family::counter("denials", "Refused connections and commands of hosts, by reason")
            .encode(encoder, denials)?;
        let handshakes = report
            .handshakes
            .iter()
            .map(|(result, count)| ([("result", *result)], counter(*count)));
        Family::counter("tls_handshakes", "TLS handshakes, by result")
            .encode(encoder, handshakes)?;
        let memory = [
            (
                "memory_pending",
                "Memory of connections whose host is unknown or has not authenticated",
                report.memory_pending_bytes,
            ),
            (
                "memory_namespaces",
                "Memory of memory namespaces, which the limit does not include",
                report.memory_namespaces_bytes as usize,
            ),
            (
                "memory_limit",
                "Limit of the memory for hosts and the target's own part",
                report.memory_limit_bytes,
            ),
            (
                "memory_used",
                "Memory taken of the limit, with the target's own part",
                report.memory_used_bytes,
            ),
            (
                "memory_own",
                "Part of the taken memory that is the target's own: arenas, spare buffers",
                report.memory_own_bytes,
            ),
        ];
        for (name, help, bytes) in memory {
            let none: [(&str, &str); 0] = [];
            Family::gauge(name, help)
                .of(Unit_::Bytes)
                .encode(encoder, [(none, gauge(bytes as u64))])?;
        }
        let build = [([("version", env!("CARGO_PKG_VERSION"))], gauge(1))];
        Family::gauge("build", "1; the label has the version").encode(encoder, build)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpfof_controller::{Server, TargetConfig, Totals, Transport};
    use std::time::Duration;

    #[test]
    fn no_counter_goes_down_and_no_series_is_there_twice() {
        let text_of = |change: fn(&mut TargetReport)| {
            let config = "listen = \"127.0.0.1:0\"\nnamespaces = [\"mem:size=1MiB\"]";
            let config = TargetConfig::from_toml(config).expect("good");
            let server = Server::start(&config).expect("it starts");
            let mut report = server.report()(Duration::from_secs(10)).expect("a report");
            change(&mut report);
            text(report).expect("text")
        };
        let text = text_of(|report| {
            let host = |serial| HostReport {
                serial,
                nqn: format!("nqn.2026-01.org.example:{serial}"),
                // Those that have no series of their own.
                has_key: serial >= MAX_HOSTS as u64 - 2,
                connections: 1,
                totals: Totals { reads: 5, ..Totals::default() },
                ..HostReport::default()
            };
            let first = host(0);
            let with_key = HostReport { has_key: true, ..first };
            let address = Some("192.0.2.1".to_owned());
            let named_so = HostReport { nqn: OTHERS.to_owned(), address, ..host(0) };
            report.hosts = (0..MAX_HOSTS as u64 + 42).map(host).collect();
            report.hosts.extend([with_key, named_so]);
            let other =
                ListenerReport { id: 2, transport: Transport::Rdma, ..report.listeners[0].clone() };
            report.listeners.push(other);
        });
        let lines = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
        assert!(text.contains("bpfof_connections{host=\"(others)\",address=\"\"} 44"), "{text}");
        assert_eq!(lines("bpfof_host_reads_total{"), MAX_HOSTS);
        assert_eq!(lines("bpfof_host_reads_total{host=\"nqn.2026-01.org.example:0\""), 2);
        assert_eq!(lines("bpfof_host_reads_total{host=\"(others)\",address=\"\""), 0);
        assert_eq!(lines("bpfof_host_reads_total{host=\"(others)\",address=\"192.0.2.1\""), 1);
        let mut series: Vec<&str> =
            text.lines().filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect();
        let all = series.len();
        series.sort_unstable();
        series.dedup();
        assert_eq!(series.len(), all);
        assert_eq!(lines("bpfof_listener_connections{"), 2);
    }
}
