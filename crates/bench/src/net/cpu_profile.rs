//! Where processor time goes, by perf (i10 §4.3.2, tables 3 and 4).

use super::threads::{self, Place, Way};
use crate::machine;
use bpfof_host::Controller;
use bpfof_terminal::stop_on_signal;
use serde::Serialize;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

type Failure = Box<dyn std::error::Error>;

/// Samples of each processor a second; not a divisor of timer frequencies.
const SAMPLES_PER_S: &str = "1999";
/// How long threads read before and after perf's samples.
const MARGIN: Duration = Duration::from_millis(300);

/// Percentages of a processor's time. Spinning counts for the spinning component.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Shares {
    /// User code other than the protocol's.
    pub(super) application: f64,
    /// bpf-of's code: lanes, PDUs, reactor. It corresponds to i10's block layer.
    pub(super) protocol: f64,
    /// From the send to the device.
    pub(super) net_tx: f64,
    /// From the device to the socket, and out of it. Over loopback the sender does the first part.
    pub(super) net_rx: f64,
    /// Sleeping, waking, and context switches.
    pub(super) scheduling: f64,
    pub(super) idle: f64,
    pub(super) others: f64,
}

/// The shares of one way with one number of threads.
#[derive(Serialize)]
pub(super) struct WayShares {
    pub(super) way: Way,
    pub(super) host: Shares,
    /// None if the benchmark has not started the target, or the target shares the processor.
    pub(super) target: Option<Shares>,
}

/// Checks that perf may observe a processor, before minutes are spent on other measurements.
pub(super) fn check() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let mut record = Command::new("perf");
    record.args(["record", "--quiet", "-C", &machine::processors().0.to_string(), "-o"]);
    record.arg(folder.path().join("perf.data")).args(["--", "true"]);
    perf(record).map_err(|why| format!("{why}\nleave out --perf to measure the rest"))?;
    Ok(())
}

/// Profiles each way in turn with perf.
pub(super) fn measure(
    place: &Place<'_>,
    threads: usize,
    size_bytes: u32,
    time: Duration,
    has_own_target: bool,
) -> Result<Vec<WayShares>, Failure> {
    let (host, target) = machine::processors();
    let target = target.filter(|_| has_own_target);
    // Signals are handled so that perf's recordings are removed.
    let stop = stop_on_signal()?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("perf.data");
    let mut ways = Vec::new();
    for way in Way::ALL {
        let controller = Controller::connect(place.url, way.host(threads, place.poll))?;
        let recorded = std::thread::scope(|scope| -> Result<(), Failure> {
            let recording = scope.spawn(|| record(&file, host, target, time));
            // Repeated, because perf may take a while to begin.
            while !recording.is_finished() {
                let users = threads::open(way, &controller, threads)?;
                threads::read(users, place, (size_bytes, 0), time + 3 * MARGIN)?;
            }
            Ok(recording.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?)
        });
        // The terminal interrupts perf, too, and perf then fails.
        if stop.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
        recorded?;
        let samples = script(&file)?;
        let of = |processor| shares(&samples, processor);
        let host = of(host).ok_or("perf recorded no samples: give more --milliseconds")?;
        ways.push(WayShares { way, host, target: target.and_then(of) });
        controller.disconnect()?;
    }
    Ok(ways)
}

/// Records the processors with perf, once threads read.
fn record(file: &Path, host: usize, target: Option<usize>, time: Duration) -> Result<(), String> {
    std::thread::sleep(MARGIN);
    let processors = [Some(host), target].into_iter().flatten();
    let processors: Vec<String> = processors.map(|processor| processor.to_string()).collect();
    let mut record = Command::new("perf");
    record.args(["record", "--quiet", "-g", "-F", SAMPLES_PER_S, "-C", &processors.join(",")]);
    record.arg("-o").arg(file).args(["--", "sleep", &time.as_secs_f64().to_string()]);
    perf(record).map(drop)
}

/// perf's recording as text.
fn script(file: &Path) -> Result<String, String> {
    let mut script = Command::new("perf");
    script.args(["script", "-F", "comm,cpu,ip,sym,dso", "-i"]).arg(file);
    perf(script)
}

/// Runs perf, and returns its output.
fn perf(mut command: Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| {
        format!("cannot run perf: {error}; on Debian it is in the package linux-perf")
    })?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("perf failed; it may need root: {}", why.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Component {
    Application,
    Protocol,
    NetTx,
    NetRx,
    Scheduling,
    Idle,
    Others,
}

/// Functions of Linux that determine the component of a call chain, starting at the innermost frame.
const KERNEL: [(&str, Component); 26] = [
    ("default_idle", Component::Idle),
    ("do_idle", Component::Idle),
    ("poll_idle", Component::Idle),
    ("schedule", Component::Scheduling),
    ("__schedule", Component::Scheduling),
    ("try_to_wake_up", Component::Scheduling),
    ("finish_task_switch", Component::Scheduling),
    ("ret_from_fork", Component::Scheduling),
    ("do_futex", Component::Scheduling),
    ("do_sched_yield", Component::Scheduling),
    ("__x64_sys_sched_yield", Component::Scheduling),
    ("__arm64_sys_sched_yield", Component::Scheduling),
    ("__x64_sys_futex", Component::Scheduling),
    ("__arm64_sys_futex", Component::Scheduling),
    ("sock_def_readable", Component::Scheduling),
    ("net_rx_action", Component::NetRx),
    ("tcp_v4_rcv", Component::NetRx),
    ("tcp_v6_rcv", Component::NetRx),
    ("tcp_recvmsg", Component::NetRx),
    ("__sys_recvfrom", Component::NetRx),
    ("io_recv", Component::NetRx),
    ("do_sys_poll", Component::NetRx),
    ("tcp_poll", Component::NetRx),
    ("tcp_sendmsg", Component::NetTx),
    ("__sys_sendto", Component::NetTx),
    ("io_send", Component::NetTx),
];
/// Substrings of bpf-of's symbols.
const PROTOCOL: [&str; 5] =
    ["bpfof_host", "bpfof_controller", "bpfof_nvme", "bpfof_device", "bpfof_chain"];

/// The shares of one processor; none without samples of it.
fn shares(samples: &str, processor: usize) -> Option<Shares> {
    let mut seen = Shares::default();
    let mut count = 0;
    for sample in samples.split("\n\n") {
        let mut lines = sample.lines().filter(|line| !line.trim().is_empty());
        let Some((comm, at)) = lines.next().and_then(|header| header.rsplit_once('[')) else {
            continue;
        };
        if at.trim().trim_end_matches(']').parse() != Ok(processor) {
            continue;
        }
        count += 1;
        *match component(comm.trim(), lines) {
            Component::Application => &mut seen.application,
            Component::Protocol => &mut seen.protocol,
            Component::NetTx => &mut seen.net_tx,
            Component::NetRx => &mut seen.net_rx,
            Component::Scheduling => &mut seen.scheduling,
            Component::Idle => &mut seen.idle,
            Component::Others => &mut seen.others,
        } += 1.0;
    }
    let percent = |samples: f64| samples / f64::from(count) * 100.0;
    (count > 0).then(|| Shares {
        application: percent(seen.application),
        protocol: percent(seen.protocol),
        net_tx: percent(seen.net_tx),
        net_rx: percent(seen.net_rx),
        scheduling: percent(seen.scheduling),
        idle: percent(seen.idle),
        others: percent(seen.others),
    })
}

/// The component of a call chain, whose frames start with the innermost.
fn component<'a>(comm: &str, frames: impl Iterator<Item = &'a str>) -> Component {
    if comm == "swapper" {
        return Component::Idle;
    }
    let mut is_kernel = false;
    for frame in frames {
        let Some((symbol, binary)) = frame.trim().rsplit_once(" (") else { continue };
        let symbol = symbol.split_once(' ').map_or(symbol, |(_, symbol)| symbol);
        if !binary.starts_with("[kernel") {
            // For kernel samples, the user code that made the call does not matter.
            let is_ours = PROTOCOL.iter().any(|name| symbol.contains(name));
            return match (is_kernel, is_ours) {
                (true, _) => Component::Others,
                (_, true) => Component::Protocol,
                _ => Component::Application,
            };
        }
        is_kernel = true;
        // Compilers append ".isra.0" and the like.
        let name = symbol.split_once('.').map_or(symbol, |(name, _)| name);
        if let Some((_, found)) = KERNEL.iter().find(|(known, _)| *known == name) {
            return *found;
        }
    }
    Component::Others
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_classified_by_processor_and_work() {
        let samples = "\
reactor 0 [001] \n\t ffff _copy_to_iter ([kernel.kallsyms])\n\t ffff tcp_recvmsg ([kernel.kallsyms])\n\n\
reactor 0 [001] \n\t 5311fa bpfof_controller::io::<impl Connection (of it)>::write (/a/bpfof)\n\n\
bpfof [000] \n\t ffff finish_task_switch.isra.0 ([kernel.kallsyms])\n\t ffff __schedule ([kernel.kallsyms])\n\n\
bpfof [000] \n\t ffff __tcp_transmit_skb ([kernel.kallsyms])\n\t ffff tcp_sendmsg ([kernel.kallsyms])\n\n\
bpfof [000] \n\t 7f __memcpy (/lib/libc.so.6)\n\n\
swapper [000] \n\t ffff anything ([kernel.kallsyms])\n\n";
        let host = shares(samples, 0).expect("samples");
        let quarter = Shares {
            scheduling: 25.0,
            net_tx: 25.0,
            application: 25.0,
            idle: 25.0,
            ..Shares::default()
        };
        assert_eq!(host, quarter);
        let half = Shares { net_rx: 50.0, protocol: 50.0, ..Shares::default() };
        assert_eq!(shares(samples, 1), Some(half));
        assert_eq!(shares(samples, 2), None);
    }
}
