//! Connect (NVMe Base 2.0 §6.3): a connection becomes a queue of an association.

use super::context::{Answered, Command, Context, Outcome, wrong_length};
use super::functions::ASSOCIATION_UNITS;
use crate::access::{Access, Identity, Reason, Rules};
use crate::association::{AdminState, Association};
use crate::connection::{Connection, Phase};
use crate::controller::Controller;
use crate::hosts::{Host, HostFull};
use crate::limits::MAX_QUEUE_ENTRIES;
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

/// Connect, dword 0: the host is to authenticate itself (NVMe Base 2.0 §6.3, AUTHREQ.ATR).
const ASKS_FOR_AUTHENTICATION: u32 = 1 << 17;

/// Until Connect succeeds nothing else is allowed (NVMe Base 2.0 §3.3.2.2).
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

/// A parameter of Connect at fault: at this byte of the command, or of its data (NVMe Base 2.0 §6.3).
fn invalid(in_data: bool, at: u16, field: &'static str, cause: String) -> Refusal {
    let dw0 = u32::from(at) | u32::from(in_data) << 16;
    let status = Status::CONNECT_INVALID_PARAMETERS.with_dnr();
    Refusal::new(status, cause).of_field(field).with_dwords(dw0, 0)
}

/// A host cannot be served further now.
fn no_room(why: &HostFull, host_nqn: &str) -> Refusal {
    Refusal::new(Status::CONNECT_CONTROLLER_BUSY, format!("{host_nqn}: {why}"))
}

/// What Connect asks for.
struct Wish {
    data: ConnectData,
    qid: u16,
    kato_ms: u32,
    subsystem: Arc<Subsystem>,
    host: Arc<Host>,
    access: Arc<Access>,
    /// Its host has yet to show that it is the one it names.
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
        // Where the capsule has no room for the data, it is fetched before anybody is known.
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
    let identity = cx.connection.port.identity();
    let is_identified = identity.is_some();
    let rules = registry.rules();
    let access = access(&registry, &rules, &data, &subsystem, identity)?;
    // A connection may wait for 10 s between its handshake and Connect.
    if !cx.connection.port.is_key_valid(&rules) {
        registry.denials.count(Reason::Handshake);
        let cause = "its TLS key has been removed from the rules since the handshake";
        let status = Status::CONNECT_INVALID_HOST.with_dnr();
        return Err(Refusal::new(status, cause).of_field("HOSTNQN"));
    }
    let entries = sqsize + 1;
    let base_bytes = Connection::queue_bytes(qid, entries) + cx.connection.port.own_bytes();
    let known = match qid {
        0 => None,
        _ => Some(known_controller(&data, &subsystem, registry.listener(ends.listener))?),
    };
    // By the rules under which the admin queue has connected: those may be others now.
    let asked = known.as_ref().map_or(&access, |known| &known.access).authentication.is_some();
    let address = (!is_identified).then(|| ends.counted_address());
    let host = host(&registry, address, asked, counted_name(&data, &subsystem, is_identified));
    // Anybody can name a host: what it has is not for who has yet to show that it is the host.
    let is_stranger = asked && !is_identified;
    let place = match is_stranger {
        true => None,
        false => {
            let place = Connection::place(&host, &registry.hosts.limits, base_bytes);
            Some(place.map_err(|full| no_room(&full, &data.hostnqn))?)
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

/// What the connection carries from now on.
fn phase(qid: u16, association: Association) -> Phase {
    if qid > 0 {
        return Phase::Io(association);
    }
    let mut admin = Box::<AdminState>::default();
    // What changes from now on is news.
    admin.events.known_ana = association.controller.listener.changes();
    Phase::Admin(association, admin)
}

/// Whether the queue may be of this size, and is the one that was asked for.
fn check_queue(port: &Port, qid: u16, sqsize: u16) -> Result<(), Refusal> {
    if let Some(asked) = port.asked_qid().filter(|asked| *asked != qid) {
        // It has memory for that one.
        let cause = format!("{qid}; the connection was made for {asked}");
        return Err(invalid(false, 42, "QID", cause));
    }
    if sqsize == 0 || sqsize >= MAX_QUEUE_ENTRIES {
        let cause = format!("{sqsize}, not from 1 to {}", MAX_QUEUE_ENTRIES - 1);
        return Err(invalid(false, 44, "SQSIZE", cause));
    }
    Ok(())
}

/// The subsystem that the data name, for a host whose name can be told.
fn wanted_subsystem(
    registry: &Registry,
    data: &ConnectData,
    discovery_only: bool,
) -> Result<Arc<Subsystem>, Refusal> {
    let subsystem = registry.subsystem(&data.subnqn);
    let subsystem = subsystem.filter(|known| known.is_discovery() || !discovery_only);
    let Some(subsystem) = subsystem else {
        let cause = format!("{:?} is not served here", data.subnqn);
        return Err(invalid(true, 256, "SUBNQN", cause));
    };
    // By this name all are counted who ask for the discovery log.
    if data.hostnqn == DISCOVERY_NQN && !subsystem.is_discovery() {
        let cause = "it is the name of the discovery subsystem".to_owned();
        return Err(invalid(true, 512, "HOSTNQN", cause));
    }
    // The name goes into logs, where nobody is to write what looks like a line about another.
    if data.hostnqn.contains(|c: char| is_unprintable(c) || c.is_whitespace()) {
        let cause = "it has white space, or a character that cannot be printed".to_owned();
        return Err(invalid(true, 512, "HOSTNQN", cause));
    }
    Ok(subsystem)
}

/// The name that a host is counted by. In the discovery subsystem the one that it gives says what the log page tells,
/// and gives no share to anybody.
fn counted_name<'a>(data: &'a ConnectData, subsystem: &Subsystem, is_identified: bool) -> &'a str {
    match subsystem.is_discovery() && !is_identified {
        true => DISCOVERY_NQN,
        false => &data.hostnqn,
    }
}

/// The host of a name; one that has to authenticate itself is not those of the same name that need not.
fn host(registry: &Registry, address: Option<IpAddr>, asked: bool, name: &str) -> Arc<Host> {
    match address {
        Some(address) if asked => registry.hosts.host_with_key(address, name),
        address => registry.hosts.host(address, name),
    }
}

/// What the host may do.
fn access(
    registry: &Registry,
    rules: &Rules,
    data: &ConnectData,
    subsystem: &Subsystem,
    identity: Option<&Identity>,
) -> Result<Arc<Access>, Refusal> {
    let found = match subsystem.is_discovery() {
        // It has nothing to be protected but the names of subsystems, and tells each host its own.
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
    match identity {
        // Else whoever has one key would be everybody.
        Some(Identity { host_nqn, subsystem_nqn })
            if (host_nqn, subsystem_nqn) != (hostnqn, subnqn) =>
        {
            let cause = format!(
                "its TLS key is that of {host_nqn:?} for {subsystem_nqn:?}, and it names itself \
                 {hostnqn:?} and {subnqn:?}"
            );
            refused(Reason::ForeignName, cause)
        }
        None if access.needs_tls => {
            let cause = format!("{hostnqn:?} must come by TLS: {}", access.origin());
            refused(Reason::NoTls, cause)
        }
        _ => Ok(Arc::new(access)),
    }
}

/// An admin queue makes its controller, with what `rules` allow.
fn new_controller(
    cx: &mut Context<'_>,
    wish: &Wish,
    rules: &Arc<Rules>,
) -> Result<Arc<Controller>, Refusal> {
    let Wish { data, kato_ms, subsystem, host, access, .. } = wish;
    if data.cntlid != CNTLID_DYNAMIC {
        let cause = format!("{:#x}; controllers are chosen by the subsystem (FFFFh)", data.cntlid);
        return Err(invalid(true, 16, "CNTLID", cause));
    }
    let listener = cx.executor.registry.listener(cx.connection.ends.listener);
    if listener.is_drained() && !subsystem.is_discovery() {
        let cause = format!("{} is drained", listener.address);
        return Err(Refusal::new(Status::CONNECT_CONTROLLER_BUSY, cause));
    }
    let hosts = &cx.executor.registry.hosts;
    if *kato_ms == 0 && hosts.limits.idle_timeout_s == 0 {
        let cause = "there is no keep-alive timer, and idle-timeout is 0".to_owned();
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
    let controller = made.map_err(|full| no_room(&full, &data.hostnqn))?;
    if !wish.is_stranger {
        cx.executor.spend(subsystem.kept_count() as u64 * ASSOCIATION_UNITS);
    }
    // Who took over other rules may have looked for controllers before this one was there.
    if !Arc::ptr_eq(rules, &cx.executor.registry.rules()) {
        subsystem.remove_controller(&controller);
        let cause = "the rules have changed meanwhile";
        return Err(Refusal::new(Status::CONNECT_CONTROLLER_BUSY, cause));
    }
    Ok(controller)
}

/// The controller that an I/O queue asks for, which is its host's.
fn known_controller(
    data: &ConnectData,
    subsystem: &Subsystem,
    listener: &Arc<Listener>,
) -> Result<Arc<Controller>, Refusal> {
    let controller = subsystem.controller(data.cntlid).ok_or_else(|| {
        let cause = format!("there is no controller {}", data.cntlid);
        let mut refusal = invalid(true, 16, "CNTLID", cause);
        // It may have been that of a process before this one: the host can begin anew.
        refusal.reply.status = Status::CONNECT_INVALID_PARAMETERS;
        refusal
    })?;
    if controller.host_nqn() != data.hostnqn || controller.host_id != data.hostid {
        let (status, cause) =
            (Status::CONNECT_INVALID_HOST.with_dnr(), "another host's controller");
        return Err(Refusal::new(status, cause).of_field("HOSTNQN or HOSTID"));
    }
    // What is told of the ways to a namespace is told of the controller.
    if !Arc::ptr_eq(&controller.listener, listener) {
        let cause = format!(
            "its admin queue has come to another listener, {}, where this queue must come as well",
            controller.listener.address
        );
        return Err(invalid(true, 16, "CNTLID", cause));
    }
    if !controller.is_ready() {
        let status = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
        return Err(Refusal::new(status, "the controller is not enabled"));
    }
    Ok(controller)
}

/// An I/O queue joins the controller of its host; how often that has ended all its queues.
fn place_of_queue(wish: &Wish, controller: &Controller) -> Result<u32, Refusal> {
    let qid = wish.qid;
    let resets = match controller.access.authentication {
        // A discovery controller has no I/O queues.
        _ if wish.subsystem.is_discovery() => None,
        Some(_) => controller.place_of_queue(qid),
        None => controller.add_queue(qid),
    };
    resets.ok_or_else(|| {
        let cause = format!("queue {qid} is taken, or more than the controller has");
        invalid(false, 42, "QID", cause)
    })
}
