//! A target that replaces a running one (`--take-over`).
//!
//! It listens on the old target's sockets. Once it can serve, it accepts new connections instead of the old target.
//! Connected hosts move listener by listener: the old target drains a listener and ends its connections when nothing is
//! in flight, and the hosts connect again, to this process. The next listener follows when they have.

use bpfof_controller::{NoReport, Paths, TargetConfig, TargetReport};
use bpfof_operations::Reporter;
use bpfof_operations::client::{Client, ClientError};
use bpfof_operations::hand_over::Sockets;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long commands in flight at a listener may take.
const DRAIN: Duration = Duration::from_secs(30);
/// How long to wait for hosts to connect again before the next listener: Linux waits 10 s before it tries.
const RETURN: Duration = Duration::from_secs(20);
/// How long a report may take.
const REPORT: Duration = Duration::from_secs(2);
/// Time between two reports of a target.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Pause after a refused request.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Keeps only the sockets whose addresses are in the configuration.
pub(crate) fn keep_configured(sockets: &mut Sockets, config: &TargetConfig) {
    let is_configured = |at: SocketAddr, wanted: SocketAddr| {
        at == wanted || wanted.port() == 0 && at.ip() == wanted.ip()
    };
    let of_hosts = &mut sockets.of_hosts;
    of_hosts.listeners.retain(|socket| {
        let is_kept = |at| config.listen.0.iter().any(|of| is_configured(at, of.address));
        socket.local_addr().is_ok_and(is_kept)
    });
    for (socket, wanted) in
        [(&mut of_hosts.discovery, config.discovery), (&mut sockets.metrics, config.metrics)]
    {
        let at = socket.as_ref().and_then(|socket| socket.local_addr().ok());
        if !at.zip(wanted).is_some_and(|(at, wanted)| is_configured(at, wanted)) {
            *socket = None;
        }
    }
}

/// Drains the listeners here that operators have drained at the other target, by its report.
pub(crate) fn keep_drained(there: &Value, paths: &Paths) {
    // A target that ends has drained all.
    let all = there["listeners"].as_array().filter(|_| there["ending"] != true);
    for listener in all.into_iter().flatten() {
        if listener["drained"] == true
            && let Some(address) = listener["address"].as_str()
            // It may be none of this configuration.
            && paths.drain(&[address.to_owned()]).is_ok()
        {
            log::warn!("{address} is drained, as at the other target: bpfof ctl undrain");
        }
    }
}

/// Warns of what the other target served, by its report, and this one does not.
pub(crate) fn warn_of_differences(
    there: &Value,
    here: &impl Fn(Duration) -> Result<TargetReport, NoReport>,
) {
    let here = here(REPORT).ok().and_then(|report| serde_json::to_value(report).ok());
    for difference in here.iter().flat_map(|here| differences(there, here)) {
        log::warn!("{difference}");
    }
}

/// What hosts lose by a take-over: namespaces of the other target that are not here, and states of listeners.
fn differences(old: &Value, here: &Value) -> Vec<String> {
    let list = |of: &Value, what: &str| of[what].as_array().cloned().unwrap_or_default();
    let named = |of: &Value| (of["subsystem"].clone(), of["nsid"].clone());
    let served: Vec<_> = list(here, "namespaces").iter().map(named).collect();
    let missing = list(old, "namespaces").into_iter().filter(|of| !served.contains(&named(of)));
    let mut all: Vec<String> = missing
        .map(|of| {
            let (nsid, subsystem) = (&of["nsid"], of["subsystem"].as_str().unwrap_or_default());
            format!(
                "namespace {nsid} of {subsystem} is served by the other target and is not in the configuration: its \
                 hosts lose it"
            )
        })
        .collect();
    for listener in list(old, "listeners") {
        let is_same = |of: &&Value| of["address"] == listener["address"];
        let Some(new) = list(here, "listeners").iter().find(is_same).cloned() else { continue };
        for (group, state) in listener["ana"].as_object().into_iter().flatten() {
            let now = &new["ana"][group];
            if listener["drained"] != true && !now.is_null() && now != state {
                let address = &listener["address"];
                all.push(format!(
                    "{address}: ANA group {group} was {state} at the other target, and is {now}"
                ));
            }
        }
    }
    all
}

/// Moves the hosts of another target to this one, and stops the other.
///
/// Calls `note_lost_writes` with the subsystem and id of each namespace that has lost writes there: hosts that have not
/// been told yet hear of it here.
///
/// # Errors
/// The other target does not answer, or does not end.
pub(crate) fn move_hosts(
    mut old: Client,
    here: &Reporter,
    note_lost_writes: &dyn Fn(&str, u32),
) -> Result<(), ClientError> {
    let report = ask(&mut old, "report", &Value::Null)?;
    let mut losses = Losses::default();
    losses.carry(&report, note_lost_writes);
    let listeners: Vec<Value> = report["listeners"].as_array().cloned().unwrap_or_default();
    for (number, listener) in listeners.iter().enumerate() {
        let (id, address) = (&listener["id"], listener["address"].clone());
        let which = json!({ "listeners": [id.to_string()] });
        let hosts = hosts_at(&ask(&mut old, "report", &Value::Null)?, id);
        ask(&mut old, "drain", &which)?;
        let is_idle = wait_idle(&mut old, id)?;
        if !is_idle {
            log::warn!("{address}: commands are still in flight; their connections are closed now");
        }
        losses.carry(&ask(&mut old, "report", &Value::Null)?, note_lost_writes);
        ask(&mut old, "close", &which)?;
        // A host with several listeners keeps one: wait before the next is drained. After the last there is no reason
        // to wait, and to a drained one no host comes back.
        if number + 1 < listeners.len() && listener["drained"] != true {
            wait_for_hosts(here, &address, &hosts);
        }
        log::info!("{address}: {} hosts were told to connect to this target", hosts.len());
    }
    let report = wait_gone(&mut old)?;
    losses.carry(&report, note_lost_writes);
    let left: Vec<&Value> = at_disks(&report).collect();
    for of in &left {
        log::warn!(
            "{}: a disk still has commands of the other target; hosts are told that writes to {} may be lost",
            of["host"],
            of["subsystem"]
        );
    }
    let in_doubt = |subsystem: &str| left.iter().any(|of| of["subsystem"] == subsystem);
    for (subsystem, nsid, _) in namespaces(&report).filter(|(of, ..)| in_doubt(of)) {
        note_lost_writes(subsystem, nsid);
    }
    ask(&mut old, "stop", &Value::Null)?;
    old.wait_end()
}

/// Asks the other target, again and again for a while if it refuses: a reactor that is busy does not answer in time.
pub(crate) fn ask(old: &mut Client, method: &str, params: &Value) -> Result<Value, ClientError> {
    let end = Instant::now() + DRAIN;
    loop {
        match old.call(method, params.clone()) {
            Err(ClientError::Refused(why)) if Instant::now() < end => {
                log::warn!("the other target: {why}");
                std::thread::sleep(ASK_AGAIN);
            }
            answer => return answer,
        }
    }
}

/// The namespaces of a report: subsystem, id, and the number of their last loss of writes.
fn namespaces(report: &Value) -> impl Iterator<Item = (&str, u32, u64)> {
    report["namespaces"].as_array().into_iter().flatten().map(|of| {
        let number = |what: &str| of[what].as_u64().unwrap_or_default();
        let subsystem = of["subsystem"].as_str().unwrap_or_default();
        (subsystem, number("nsid") as u32, number("lost_writes"))
    })
}

/// The losses of writes at the other target that are known here: by subsystem and namespace, the last one.
#[derive(Default)]
struct Losses(BTreeMap<(String, u32), u64>);

impl Losses {
    /// Calls `note` for each namespace that has lost writes since the last report.
    fn carry(&mut self, report: &Value, note: &dyn Fn(&str, u32)) {
        for (subsystem, nsid, last) in namespaces(report) {
            let known = self.0.entry((subsystem.to_owned(), nsid)).or_default();
            if last > *known {
                *known = last;
                note(subsystem, nsid);
            }
        }
    }
}

/// The names of hosts at a listener that have an I/O queue. Those that have yet to authenticate themselves may only
/// claim their names.
fn hosts_at(report: &Value, listener: &Value) -> BTreeSet<String> {
    let all = report["connections"].as_array().into_iter().flatten();
    let works = |of: &&Value| of["queue"].as_u64() > Some(0) && of["awaits_authentication"] != true;
    let its = all.filter(|of| of["listener"] == *listener).filter(works);
    its.filter_map(|of| of["host"].as_str().map(str::to_owned)).collect()
}

/// Waits until nothing is in flight at a listener and its hosts have read the change; false if that takes longer than
/// [`DRAIN`].
fn wait_idle(old: &mut Client, id: &Value) -> Result<bool, ClientError> {
    let end = Instant::now() + DRAIN;
    loop {
        let report = ask(old, "report", &Value::Null)?;
        let all = report["listeners"].as_array().into_iter().flatten();
        let its = all.into_iter().find(|of| of["id"] == *id);
        if its.is_none_or(|of| of["busy"] == 0 && of["untold"] == 0) {
            return Ok(true);
        }
        if Instant::now() >= end {
            return Ok(false);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Waits until no I/O queue of the other target has a command at a disk, at most for [`DRAIN`]. Returns the last report.
fn wait_gone(old: &mut Client) -> Result<Value, ClientError> {
    let end = Instant::now() + DRAIN;
    loop {
        let report = ask(old, "report", &Value::Null)?;
        if at_disks(&report).next().is_none() || Instant::now() >= end {
            return Ok(report);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The I/O queues of a report with commands that are being carried out.
fn at_disks(report: &Value) -> impl Iterator<Item = &Value> {
    let all = report["connections"].as_array().into_iter().flatten();
    all.filter(|of| ["queue", "in_flight"].iter().all(|what| of[what].as_u64() > Some(0)))
}

/// Waits until these hosts are connected at the listener here.
fn wait_for_hosts(here: &Reporter, address: &Value, hosts: &BTreeSet<String>) {
    let end = Instant::now() + RETURN;
    while Instant::now() < end {
        let Ok(report) = here(Duration::from_secs(1)) else { continue };
        let listener = report.listeners.iter().find(|of| of.address.to_string() == *address);
        let Some(id) = listener.map(|of| of.id) else { return };
        let has = |host: &String| {
            // With an I/O queue the host can work.
            let mut its = report.connections.iter().filter(|of| of.listener == id);
            its.any(|of| of.queue > 0 && !of.awaits_authentication && of.host == *host)
        };
        if hosts.iter().all(has) {
            return;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    log::warn!("{address}: not all hosts have reconnected yet; draining the next listener anyway");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn each_loss_is_carried_once() {
        let report = |first: u64, second: u64| {
            let of = |nsid: u32, last: u64| json!({ "subsystem": "nqn", "nsid": nsid, "lost_writes": last });
            json!({ "namespaces": [of(1, first), of(2, second)] })
        };
        let (mut losses, noted) = (Losses::default(), RefCell::new(Vec::new()));
        for of in [report(0, 3), report(0, 3), report(4, 3), report(4, 5), json!({})] {
            losses.carry(&of, &|nqn, nsid| noted.borrow_mut().push((nqn.to_owned(), nsid)));
        }
        assert_eq!(noted.take(), [2, 1, 2].map(|nsid| ("nqn".to_owned(), nsid)));
    }

    #[test]
    fn what_hosts_lose_is_named() {
        let report = |nsids: &[u64], state: &str, drained: bool| {
            let namespace = |nsid: &u64| json!({ "subsystem": "nqn", "nsid": nsid });
            let namespaces: Vec<_> = nsids.iter().map(namespace).collect();
            let ana = json!({ "1": state });
            let listener = json!({ "address": "a:1", "ana": ana, "drained": drained });
            json!({ "namespaces": namespaces, "listeners": [listener] })
        };
        let here = report(&[1], "optimized", false);
        assert!(differences(&report(&[1], "inaccessible", true), &here).is_empty());
        let lost = differences(&report(&[1, 2], "inaccessible", false), &here);
        assert!(lost[0].starts_with("namespace 2 of nqn is served by the other"), "{lost:?}");
        assert!(lost[1].contains("group 1 was \"inaccessible\" at the other"), "{lost:?}");
        assert_eq!(lost.len(), 2);
    }

    #[test]
    fn only_hosts_that_work_are_awaited() {
        let connection = |host: &str, listener: u16, queue: u16, awaits: bool| {
            json!({
                "host": host,
                "listener": listener,
                "queue": queue,
                "awaits_authentication": awaits,
            })
        };
        let report = json!({ "connections": [
            connection("works", 1, 0, false),
            connection("works", 1, 1, false),
            connection("elsewhere", 2, 1, false),
            connection("discovers", 1, 0, false),
            connection("claims", 1, 1, true),
        ] });
        assert_eq!(hosts_at(&report, &json!(1)), BTreeSet::from(["works".to_owned()]));
    }
}
