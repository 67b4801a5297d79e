//! Connect (NVMe Base 2.0 §6.3): makes a connection a queue of an association.

use super::context::{Answered, Command, Context, Outcome, wrong_length};
use super::features;
use crate::access::{Access, Identity, Reason, Rules};
use crate::association::{AdminState, Association};
use crate::connection::{Connection, Phase};
use crate::controller::Controller;
use crate::hosts::{Host, HostFull};
use crate::limits::{ASSOCIATION_UNITS, MAX_QUEUE_ENTRIES};
use crate::listener::Listener;
use crate::queue::QueuePair;
use crate::refusal::Refusal;
use crate::registry::Registry;
use crate::room::Newcomer;
use crate::subsystem::Subsystem;
use crate::transport::Port;
use bpfof_nvme::fabrics::{
    CATTR_DISABLE_SQ_FLOW_CONTROL, CNTLID_DYNAMIC, ConnectData, DISCOVERY_NQN,
};
use bpfof_nvme::{AdminCommand, FabricsCommand, Status, is_unprintable};
use log::Level;
use std::net::IpAddr;
use std::sync::Arc;

/// Connect, dword 0: the host must authenticate itself (NVMe Base 2.0 §6.3, AUTHREQ.ATR).
const ASKS_FOR_AUTHENTICATION: u32 = 1 << 17;

/// Handles a command on a queue that is not connected yet: only Connect is allowed (NVMe Base 2.0 §3.3.2.2).
pub(super) fn before_connect(cx: &mut Context<'_>, command: &Command<'_>) {
    let parsed = AdminCommand::parse(command.sqe);
    let Ok(AdminCommand::Fabrics(connect @ FabricsCommand::Connect { .. })) = parsed else {
        let status = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
        return cx.refuse(command.sqe, &Refusal::new(status, "the queue is not connected"));
    };
    let outcome = carry_out(cx, command, connect);
    match &outcome {
        Ok(Outcome::Reply(reply)) => {
            let what = format_args!("connected to controller {}", reply.dw0 as u16);
            cx.executor.note(cx.connection, Level::Info, what);
        }
        Ok(_) => {}
        Err(refusal) => {
            let what = format_args!("Connect refused: {refusal}");
            cx.executor.note(cx.connection, Level::Warn, what);
            return cx.connection.complete(command.sqe.cid, refusal.reply);
        }
    }
    cx.answer(command, outcome);
}

/// The refusal for an invalid parameter at this byte of the command or of its data (NVMe Base 2.0 §6.3).
fn invalid(in_data: bool, at: u16, field: &'static str, cause: String) -> Refusal {
    let dw0 = u32::from(at) | u32::from(in_data) << 16;
    let status = Status::CONNECT_INVALID_PARAMETERS.with_dnr();
    Refusal::new(status, cause).of_field(field).with_dwords(dw0, 0)
}

/// The refusal of a host for which there is no room.
fn no_room(registry: &Registry, why: &HostFull, host_nqn: &str) -> Refusal {
    registry.denials.count(Reason::Limit);
    Refusal::new(Status::CONNECT_CONTROLLER_BUSY, format!("{host_nqn}: {why}"))
}

/// The parameters of a Connect command.
struct Wish {
    data: ConnectData,
    qid: u16,
    kato_ms: u32,
    subsystem: Arc<Subsystem>,
    host: Arc<Host>,
    access: Arc<Access>,
    /// The host has not yet proved that it is the one it names.
    is_stranger: bool,
}

fn carry_out(cx: &mut Context<'_>, command: &Command<'_>, connect: FabricsCommand) -> Answered {
    let FabricsCommand::Connect { recfmt, qid, sqsize, cattr, kato_ms } = connect else {
        return Err(Status::INVALID_FIELD.with_dnr().into());
    };
    if recfmt != 0 {
        let status = Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr();
        return Err(Refusal::new(status, format!("{recfmt}, not 0")).of_field("RECFMT"));
    }
    let Some(bytes) = command.data.first_chunk() else {
        // If the capsule has no room for the data, it must be fetched, although the host is not known yet.
        let length = ConnectData::BYTES as u32;
        return match command.pointer {
            pointer if pointer.is_remote() && pointer.length_bytes() == length => {
                Ok(Outcome::NeedData(length))
            }
            pointer => Err(wrong_length(pointer.length_bytes(), length)),
        };
    };
    let data = ConnectData::from_bytes(bytes)
        .map_err(|error| invalid(true, error.offset(), error.field(), error.to_string()))?;
    let (registry, ends) = (Arc::clone(&cx.executor.registry), cx.connection.ends);
    let subsystem = wanted_subsystem(&registry, &data, ends.discovery_only)?;
    check_queue(&cx.connection.port, qid, sqsize)?;
    let is_identified = cx.connection.port.identity().is_some();
    let rules = registry.rules();
    let access = access(&registry, &rules, &data, &subsystem, &cx.connection.port)?;
    let entries = sqsize + 1;
    let base_bytes = Connection::queue_bytes(qid, entries) + cx.connection.port.own_bytes();
    let known = match qid {
        0 => None,
        _ => Some(known_controller(&data, &subsystem, registry.listener(ends.listener))?),
    };
    // The rules under which the admin queue connected decide: the current ones may be others.
    let asked = known.as_ref().map_or(&access, |known| &known.access).authentication.is_some();
    let address = (!is_identified).then(|| ends.counted_address());
    let host = host(&registry, address, asked, counted_name(&data, &subsystem, is_identified));
    // Any peer can claim a host's name: until it has authenticated itself it gets no part of that host's share.
    let is_stranger = asked && !is_identified;
    let place = match is_stranger {
        true => None,
        false => {
            let place = Connection::place(&host, &registry.hosts.limits, base_bytes);
            Some(place.map_err(|full| no_room(&registry, &full, &data.hostnqn))?)
        }
    };
    let wish = Wish { data, qid, kato_ms, subsystem, host, access, is_stranger };
    let (controller, resets) = match known {
        None => (new_controller(cx, &wish, &rules)?, 0),
        Some(known) => {
            let resets = place_of_queue(&wish, &known)?;
            (known, resets)
        }
    };
    let flow_control = cattr & CATTR_DISABLE_SQ_FLOW_CONTROL == 0;
    let id = controller.id;
    let began = (resets, cx.executor.now_ns);
    let (member, memory) = place.unzip();
    let whose = (wish.host, member);
    let mut association = Association::new(wish.subsystem, controller, whose, qid > 0, began);
    association.is_registered = qid > 0 && association.auth.is_none();
    let asks = u32::from(association.awaits_authentication()) * ASKS_FOR_AUTHENTICATION;
    let connection = &mut *cx.connection;
    connection.queue = match is_stranger {
        true => QueuePair::of_stranger(qid, entries, flow_control),
        false => QueuePair::new(qid, entries, flow_control),
    };
    connection.phase = phase(qid, association);
    connection.port.connected();
    connection.asks.is_associated = true;
    if let Some(memory) = memory {
        connection.memory = memory;
        connection.asks.connected = true;
    }
    Ok(Outcome::dword(u32::from(id) | asks))
}

/// The connection's phase after Connect.
fn phase(qid: u16, association: Association) -> Phase {
    if qid > 0 {
        return Phase::Io(association);
    }
    let mut admin = Box::<AdminState>::default();
    // Only later changes are reported as events.
    admin.events.known_ana = association.controller.ana_changes();
    // The host may have read the log in an earlier association.
    admin.events.known_log = association.subsystem.log_generation();
    Phase::Admin(association, admin)
}

/// Checks the size of the queue, and that its id is the one that the connection was made for.
fn check_queue(port: &Port, qid: u16, sqsize: u16) -> Result<(), Refusal> {
    if let Some(asked) = port.asked_qid().filter(|asked| *asked != qid) {
        // The connection's memory was sized for that queue.
        let cause = format!("{qid}; the connection was made for {asked}");
        return Err(invalid(false, 42, "QID", cause));
    }
    if sqsize == 0 || sqsize >= MAX_QUEUE_ENTRIES {
        let cause = format!("{sqsize}, not from 1 to {}", MAX_QUEUE_ENTRIES - 1);
        return Err(invalid(false, 44, "SQSIZE", cause));
    }
    Ok(())
}

/// The subsystem that the Connect data names. Also checks the host's NQN.
fn wanted_subsystem(
    registry: &Registry,
    data: &ConnectData,
    discovery_only: bool,
) -> Result<Arc<Subsystem>, Refusal> {
    let subsystem = registry.subsystem(&data.subnqn);
    let subsystem = subsystem.filter(|known| known.is_discovery() || !discovery_only);
    let Some(subsystem) = subsystem else {
        let cause = format!("this target does not serve {:?}", data.subnqn);
        return Err(invalid(true, 256, "SUBNQN", cause));
    };
    // Hosts that read the discovery log are counted under this name.
    if data.hostnqn == DISCOVERY_NQN && !subsystem.is_discovery() {
        let cause = "it is the name of the discovery subsystem".to_owned();
        return Err(invalid(true, 512, "HOSTNQN", cause));
    }
    // The name is logged, and must not be able to fake a log line about another host.
    if data.hostnqn.contains(|c: char| is_unprintable(c) || c.is_whitespace()) {
        let cause = "it has white space or an unprintable character".to_owned();
        return Err(invalid(true, 512, "HOSTNQN", cause));
    }
    Ok(subsystem)
}

/// The name under which a host is counted. In the discovery subsystem the name that an unidentified host gives only
/// selects the contents of its log page, and gives it no part of the named host's share.
fn counted_name<'a>(data: &'a ConnectData, subsystem: &Subsystem, is_identified: bool) -> &'a str {
    match subsystem.is_discovery() && !is_identified {
        true => DISCOVERY_NQN,
        false => &data.hostnqn,
    }
}

/// The host with a name. A host that must authenticate itself is distinct from one of the same name that need not.
fn host(registry: &Registry, address: Option<IpAddr>, asked: bool, name: &str) -> Arc<Host> {
    match address {
        Some(address) if asked => registry.hosts.host_with_key(address, name),
        address => registry.hosts.host(address, name),
    }
}

/// The host's access to the subsystem, or why it has none.
fn access(
    registry: &Registry,
    rules: &Rules,
    data: &ConnectData,
    subsystem: &Subsystem,
    port: &Port,
) -> Result<Arc<Access>, Refusal> {
    let found = match subsystem.is_discovery() {
        // The discovery subsystem protects only the names of subsystems, and shows each host its own.
        true => rules.knows(&data.hostnqn).then(Access::everything),
        false => rules.access(&data.hostnqn, &data.subnqn),
    };
    let refused = |reason, cause: String| {
        registry.denials.count(reason);
        Err(Refusal::new(Status::CONNECT_INVALID_HOST.with_dnr(), cause).of_field("HOSTNQN"))
    };
    let ConnectData { hostnqn, subnqn, .. } = data;
    let Some(access) = found else {
        let cause = format!("no [[host]] rule lets {hostnqn:?} into {subnqn:?}");
        return refused(Reason::NoRule, cause);
    };
    // A connection may wait for 10 s between its handshake and Connect.
    if !port.is_key_valid(rules) {
        let cause = "its TLS key has been removed from the rules since the handshake";
        return refused(Reason::Handshake, cause.to_owned());
    }
    match port.identity() {
        // Otherwise the holder of one key could claim any name.
        Some(Identity { host_nqn, subsystem_nqn })
            if (host_nqn, subsystem_nqn) != (hostnqn, subnqn) =>
        {
            let cause = format!(
                "the TLS key is for host {host_nqn:?} and subsystem {subsystem_nqn:?}, but Connect \
                 names {hostnqn:?} and {subnqn:?}"
            );
            refused(Reason::ForeignName, cause)
        }
        None if access.needs_tls => {
            let cause = format!("{hostnqn:?} must connect over TLS: {}", access.origin());
            refused(Reason::NoTls, cause)
        }
        _ => Ok(Arc::new(access)),
    }
}

/// Creates the controller of an admin queue, with the access that `rules` allow.
fn new_controller(
    cx: &mut Context<'_>,
    wish: &Wish,
    rules: &Arc<Rules>,
) -> Result<Arc<Controller>, Refusal> {
    let Wish { data, kato_ms, subsystem, host, access, .. } = wish;
    if data.cntlid != CNTLID_DYNAMIC {
        let cause = format!(
            "{:#x}; the subsystem chooses the controller, so FFFFh is required",
            data.cntlid
        );
        return Err(invalid(true, 16, "CNTLID", cause));
    }
    let listener = cx.executor.registry.listener(cx.connection.ends.listener);
    if listener.is_drained() && !subsystem.is_discovery() {
        let cause = format!("{} is drained", listener.address);
        return Err(Refusal::new(Status::CONNECT_CONTROLLER_BUSY, cause));
    }
    let hosts = &cx.executor.registry.hosts;
    if let Some(cause) = features::why_not_kato(*kato_ms, hosts.limits.idle_timeout_s) {
        return Err(invalid(false, 48, "KATO", cause));
    }
    let times = (*kato_ms, cx.executor.now_ns);
    let newcomer = Newcomer {
        host: Arc::clone(host),
        host_nqn: data.hostnqn.clone(),
        address: cx.connection.ends.counted_address(),
        host_id: data.hostid,
        access: Arc::clone(access),
        listener: Arc::clone(listener),
        is_stranger: wish.is_stranger,
    };
    let registry = Arc::clone(&cx.executor.registry);
    let evicted = &mut cx.executor.outbox.evicted;
    let made = registry.add_controller(subsystem, &newcomer, times, evicted);
    let controller = made.map_err(|full| no_room(&registry, &full, &data.hostnqn))?;
    if !wish.is_stranger {
        cx.executor.spend(subsystem.kept_count() as u64 * ASSOCIATION_UNITS);
    }
    // A thread that installs new rules may have gone through the controllers before this one was added.
    if !Arc::ptr_eq(rules, &cx.executor.registry.rules()) {
        subsystem.remove_controller(&controller, cx.executor.now_ns);
        let cause = "the [[host]] rules have changed meanwhile";
        return Err(Refusal::new(Status::CONNECT_CONTROLLER_BUSY, cause));
    }
    Ok(controller)
}

/// The controller that an I/O queue names, after checking that it belongs to the same host.
fn known_controller(
    data: &ConnectData,
    subsystem: &Subsystem,
    listener: &Arc<Listener>,
) -> Result<Arc<Controller>, Refusal> {
    let controller = subsystem.controller(data.cntlid).ok_or_else(|| {
        let cause = format!("there is no controller {}", data.cntlid);
        let mut refusal = invalid(true, 16, "CNTLID", cause);
        // The controller may be one of an earlier target process: without Do Not Retry, the host can connect anew.
        refusal.reply.status = Status::CONNECT_INVALID_PARAMETERS;
        refusal
    })?;
    if controller.host_nqn() != data.hostnqn || controller.host_id != data.hostid {
        let (status, cause) =
            (Status::CONNECT_INVALID_HOST.with_dnr(), "the controller belongs to another host");
        return Err(Refusal::new(status, cause).of_field("HOSTNQN or HOSTID"));
    }
    // ANA states are reported by the controller, so all of its queues must use one listener.
    if !Arc::ptr_eq(&controller.listener, listener) {
        let cause = format!(
            "the admin queue is connected to another listener, {}, to which this queue must \
             connect as well",
            controller.listener.address
        );
        return Err(invalid(true, 16, "CNTLID", cause));
    }
    Ok(controller)
}

/// Reserves a queue of the host's controller, or only checks it if the host must authenticate first. Returns how often
/// the controller has ended all its queues.
fn place_of_queue(wish: &Wish, controller: &Controller) -> Result<u32, Refusal> {
    let qid = wish.qid;
    let resets = match controller.access.authentication {
        // A discovery controller has no I/O queues.
        _ if wish.subsystem.is_discovery() => None,
        Some(_) => controller.place_of_queue(qid),
        None => controller.add_queue(qid),
    };
    resets.ok_or_else(|| {
        if !controller.takes_queues() {
            let status = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
            return Refusal::new(status, "the controller is not enabled, or has been shut down");
        }
        let cause = format!("queue {qid} is in use or beyond the queues of the controller");
        let mut refusal = invalid(false, 42, "QID", cause);
        if !wish.subsystem.is_discovery() && controller.may_have_queue(qid) {
            // The target may not have seen yet that its former connection has ended: the host can try again.
            refusal.reply.status = Status::CONNECT_INVALID_PARAMETERS;
        }
        refusal
    })
}
