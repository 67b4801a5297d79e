//! Asynchronous events (NVMe Base 2.0 §5.2): hosts leave requests with us, which we answer when
//! something has changed that they want to know of.

use super::context::{Answered, Command, Context, Outcome};
use crate::connection::{Connection, Phase};
use crate::refusal::{Refusal, Reply};
use bpfof_nvme::Status;
use bpfof_nvme::log_page::lid;

/// Namespace Attribute Changed, in OAES and in Asynchronous Event Configuration (NVMe Base 2.0
/// §5.27.1.8).
pub(crate) const NAMESPACE_CHANGED: u32 = 1 << 8;
/// Asymmetric Namespace Access Change, likewise. Who reports ANA must have it; there is no state to
/// change to, so none is ever sent.
pub(crate) const ANA_CHANGED: u32 = 1 << 11;
/// Discovery Log Page Change, likewise.
pub(crate) const DISCOVERY_CHANGED: u32 = 1 << 31;
/// DW0 that ends an asynchronous event request: a notice (2), of a changed namespace attribute (0),
/// about which the Changed Namespace List (4) says more (§5.2.1).
const NAMESPACE_CHANGED_NOTICE: u32 = 2 | (lid::CHANGED_NAMESPACES as u32) << 16;
/// DW0 likewise: a notice (2), of a changed discovery log page (F0h), which is that of hosts (70h).
const DISCOVERY_CHANGED_NOTICE: u32 = 2 | 0xF0 << 8 | (lid::DISCOVERY as u32) << 16;
/// Asynchronous event requests one host may leave with us.
pub(crate) const MAX_ASYNC_EVENTS: usize = 4;

/// The host says what it wants to hear of.
pub(super) fn configure(cx: &mut Context<'_>, config: u32) {
    cx.admin().events.config = config;
    notify(cx.connection);
}

/// Tells the host of changed namespaces, or of a changed discovery log page: once, until it has
/// read about it; if it wants to know and has left a request for it.
pub(crate) fn notify(connection: &mut Connection) {
    let Phase::Admin(association, admin) = &mut connection.phase else { return };
    let events = &mut admin.events;
    let (wanted, notice, has_news) = if association.subsystem.is_discovery() {
        let has_news = events.known_log != association.subsystem.log_generation();
        // A host that has read nothing yet misses nothing.
        (DISCOVERY_CHANGED, DISCOVERY_CHANGED_NOTICE, has_news && events.known_log != 0)
    } else {
        let has_news = !association.controller.changed_namespaces().is_empty();
        (NAMESPACE_CHANGED, NAMESPACE_CHANGED_NOTICE, has_news)
    };
    if events.config & wanted == 0 || events.has_told || !has_news {
        return;
    }
    if let Some(cid) = events.parked.pop_front() {
        events.has_told = true;
        connection.complete(cid, Reply::dword(notice));
    }
}

/// Asynchronous Event Request: it is answered when there is something to tell.
pub(super) fn park(cx: &mut Context<'_>, command: &Command<'_>) -> Answered {
    let events = &mut cx.admin().events;
    if events.parked.len() == MAX_ASYNC_EVENTS {
        let cause = format!("the host has left {MAX_ASYNC_EVENTS} requests");
        return Err(Refusal::new(Status::ASYNC_EVENT_LIMIT.with_dnr(), cause));
    }
    events.parked.push_back(command.sqe.cid);
    notify(cx.connection);
    Ok(Outcome::Pending)
}

/// The host has read of what there was to tell, and hears of what comes next.
pub(super) fn has_read(cx: &mut Context<'_>) {
    cx.admin().events.has_told = false;
    notify(cx.connection);
}

const _: () = assert!(MAX_ASYNC_EVENTS <= 256, "AERL is one byte, less 1");
