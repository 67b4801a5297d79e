//! Asynchronous events (NVMe Base 2.0 §5.2): hosts leave requests with us, which we answer when
//! something has changed that they want to know of.

use crate::admin::Answered;
use crate::connection::{Connection, Reply};
use crate::controller::Controller;
use bpfof_nvme::identify::namespace_list;
use bpfof_nvme::log_page::lid;
use bpfof_nvme::{Sqe, Status};
use std::collections::VecDeque;

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

/// What an admin connection keeps for events.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Identifiers of parked requests, oldest first.
    parked: VecDeque<u16>,
    config: u32,
    /// The host knows that there is news, but has not yet read which.
    has_told: bool,
    /// The generation of the discovery log page that the host has read last, 0 if none.
    known_log: u64,
}

impl Events {
    /// The controller has ended, and with it the requests, without completions (NVMe Base 2.0
    /// §3.7.2).
    pub(crate) fn clear(&mut self) {
        self.parked.clear();
        (self.config, self.has_told) = (0, false);
    }
}

impl Connection {
    fn events(&mut self) -> &mut Events {
        &mut self.admin.get_or_insert_default().events
    }

    pub(crate) fn async_event_config(&mut self) -> u32 {
        self.events().config
    }

    pub(crate) fn set_async_event_config(&mut self, config: u32) {
        self.events().config = config;
        self.notify();
    }

    /// Tells the host of changed namespaces, or of a changed discovery log page: once, until it has
    /// read about it; if it wants to know and has left a request for it.
    pub(crate) fn notify(&mut self) {
        let (Some(admin), Some(controller)) = (&mut self.admin, &self.controller) else { return };
        let events = &mut admin.events;
        let (wanted, notice, has_news) = if controller.subsystem.is_discovery() {
            let has_news = events.known_log != controller.subsystem.log_generation();
            // A host that has read nothing yet misses nothing.
            (DISCOVERY_CHANGED, DISCOVERY_CHANGED_NOTICE, has_news && events.known_log != 0)
        } else {
            let has_news = !controller.changed_namespaces().is_empty();
            (NAMESPACE_CHANGED, NAMESPACE_CHANGED_NOTICE, has_news)
        };
        if events.config & wanted == 0 || events.has_told || !has_news {
            return;
        }
        if let Some(cid) = events.parked.pop_front() {
            events.has_told = true;
            self.complete(cid, Reply { dw0: notice, ..Reply::default() });
        }
    }

    pub(crate) fn park_async_event(&mut self, cid: u16) -> Answered {
        let events = self.events();
        if events.parked.len() == MAX_ASYNC_EVENTS {
            return Err(Status::ASYNC_EVENT_LIMIT.with_dnr().into());
        }
        events.parked.push_back(cid);
        self.notify();
        Ok(())
    }

    /// The Changed Namespace List (NVMe Base 2.0 §5.16.1.5). Reading it allows the next event,
    /// unless `retain` (RAE) is set.
    pub(crate) fn changed_namespaces(
        &mut self,
        sqe: &Sqe,
        (offset_bytes, length_bytes): (u64, u64),
        retain: bool,
        controller: &Controller,
    ) -> Answered {
        let changed = controller.changed_namespaces();
        let page = namespace_list(changed.iter().copied(), 0);
        self.log_page(sqe, &page, offset_bytes, length_bytes)?;
        if !retain {
            controller.forget_changes(&changed);
            self.events().has_told = false;
            // What has changed since then.
            self.notify();
        }
        Ok(())
    }

    /// The host has read the discovery log page as it was in `generation`; unless `retain` (RAE)
    /// is set, it wants to hear of what comes next.
    pub(crate) fn has_read_discovery_log(&mut self, generation: u64, retain: bool) {
        let events = self.events();
        events.known_log = generation;
        if !retain {
            events.has_told = false;
            self.notify();
        }
    }
}

const _: () = assert!(MAX_ASYNC_EVENTS <= 256, "AERL is one byte, less 1");
