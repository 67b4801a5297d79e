//! Asynchronous events (NVMe Base 2.0 §5.2): the target holds event requests of hosts, and answers one when something
//! has changed that its host wants to know about.

use super::context::{Answered, Command, Context, Outcome};
use crate::association::{Association, Events};
use crate::connection::{Connection, Phase};
use crate::limits::MAX_ASYNC_EVENTS;
use crate::refusal::{Refusal, Reply};
use bpfof_nvme::Status;
use bpfof_nvme::log_page::lid;

/// Namespace Attribute Changed, in OAES and in Asynchronous Event Configuration (NVMe Base 2.0
/// §5.27.1.8).
pub(crate) const NAMESPACE_CHANGED: u32 = 1 << 8;
/// Asymmetric Namespace Access Change, likewise.
pub(crate) const ANA_CHANGED: u32 = 1 << 11;
/// Discovery Log Page Change, likewise.
pub(crate) const DISCOVERY_CHANGED: u32 = 1 << 31;

/// DW0 of the answer to an asynchronous event request (§5.2.1): a notice (2), what has changed, and the log page with
/// the details.
const fn notice(information: u32, log: u8) -> u32 {
    2 | information << 8 | (log as u32) << 16
}

/// The notices of subsystems with namespaces. ANA comes first, because I/O waits for it.
const NOTICES: &[(u32, u32)] = &[
    (ANA_CHANGED, notice(0x03, lid::ANA)),
    (NAMESPACE_CHANGED, notice(0x00, lid::CHANGED_NAMESPACES)),
];
/// The notices of the discovery subsystem.
const DISCOVERY_NOTICES: &[(u32, u32)] = &[(DISCOVERY_CHANGED, notice(0xF0, lid::DISCOVERY))];

/// Sets which events the host wants.
pub(super) fn configure(cx: &mut Context<'_>, config: u32) {
    cx.admin().events.config = config;
    notify(cx.connection);
}

/// Whether there are changes of this kind that the host has not read.
fn has_news(kind: u32, association: &Association, events: &Events) -> bool {
    let controller = &association.controller;
    match kind {
        ANA_CHANGED => events.known_ana != controller.ana_changes(),
        NAMESPACE_CHANGED => !controller.changed_namespaces().is_empty(),
        _ => events.known_log != association.subsystem.log_generation(),
    }
}

/// Sends an event for each kind of change, if the host wants it and has a request outstanding: one event, until the
/// host has read the log page.
pub(crate) fn notify(connection: &mut Connection) {
    let Phase::Admin(association, _) = &connection.phase else { return };
    let is_discovery = association.subsystem.is_discovery();
    for (kind, notice) in if is_discovery { DISCOVERY_NOTICES } else { NOTICES } {
        let Phase::Admin(association, admin) = &mut connection.phase else { return };
        let events = &mut admin.events;
        let is_wanted = events.config & kind != 0 && events.told & kind == 0;
        if is_wanted
            && has_news(*kind, association, events)
            && let Some(cid) = events.parked.pop_front()
        {
            events.told |= kind;
            connection.complete(cid, Reply::dword(*notice));
        }
    }
}

/// Whether the host wants ANA events, and has not yet read the latest change.
pub(crate) fn awaits_ana(connection: &Connection) -> bool {
    let Phase::Admin(association, admin) = &connection.phase else { return false };
    admin.events.config & ANA_CHANGED != 0 && has_news(ANA_CHANGED, association, &admin.events)
}

/// Asynchronous Event Request: held until there is an event.
pub(super) fn park(cx: &mut Context<'_>, command: &Command<'_>) -> Answered {
    let events = &mut cx.admin().events;
    if events.parked.len() == MAX_ASYNC_EVENTS {
        let cause = format!("the host already has {MAX_ASYNC_EVENTS} requests outstanding");
        return Err(Refusal::new(Status::ASYNC_EVENT_LIMIT.with_dnr(), cause));
    }
    events.parked.push_back(command.sqe.cid);
    notify(cx.connection);
    Ok(Outcome::Pending)
}

/// The host has read the log page of this kind: the next change causes an event again.
pub(super) fn has_read(cx: &mut Context<'_>, kind: u32) {
    cx.admin().events.told &= !kind;
    notify(cx.connection);
}

const _: () = assert!(MAX_ASYNC_EVENTS <= 256, "AERL is one byte that holds the limit less 1");
