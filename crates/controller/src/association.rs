//! A connection's state of the association that it belongs to.

use crate::access::{Access, Rights};
use crate::controller::Controller;
use crate::hosts::{Host, Member};
use crate::subsystem::Subsystem;
use bpfof_auth::dhchap::ControllerAuth;
use bpfof_chain::Tables;
use bpfof_function::memory::Charge;
use bpfof_nvme::Installation;
use std::collections::VecDeque;
use std::sync::Arc;

/// A connection's part of its association.
#[derive(Debug)]
pub(crate) struct Association {
    pub(crate) subsystem: Arc<Subsystem>,
    pub(crate) controller: Arc<Controller>,
    /// Rights of the host on this queue now, copied here so that commands find them quickly.
    pub(crate) rights: Rights,
    /// The connection is an I/O queue that takes chains over mapped files and nothing else.
    pub(crate) is_restricted: bool,
    /// The controller has registered the I/O queue: not before the host has authenticated itself, if it must. False
    /// again once it is closing and its commands have ended.
    pub(crate) is_registered: bool,
    access: Arc<Access>,
    /// None if the host need not authenticate itself.
    pub(crate) auth: Option<Box<ControllerAuth>>,
    /// Its authentication has failed, or there was no room for it afterwards, and that was logged.
    pub(crate) has_failed: bool,
    host: Arc<Host>,
    /// The connection's place among those of its host; none before the host has proved its identity, if it must.
    member: Option<Member>,
    /// How often the controller's queues had been ended when this connection came.
    pub(crate) resets: u32,
    /// A snapshot of the controller's tables.
    pub(crate) tables: Arc<Tables>,
    generation: u64,
}

impl Association {
    pub(crate) fn new(
        subsystem: Arc<Subsystem>,
        controller: Arc<Controller>,
        (host, member): (Arc<Host>, Option<Member>),
        is_io: bool,
        (resets, now_ns): (u32, u64),
    ) -> Association {
        let access = Arc::clone(&controller.access);
        let is_restricted = is_io && controller.is_restricted();
        let mut association = Association {
            subsystem,
            controller,
            rights: Rights::NONE,
            is_restricted,
            is_registered: false,
            auth: access
                .authentication
                .as_ref()
                .map(|config| Box::new(ControllerAuth::new(Arc::clone(config), now_ns / 1000))),
            has_failed: false,
            access,
            host,
            member,
            resets,
            tables: Arc::default(),
            generation: 0,
        };
        if association.auth.is_none() {
            association.admit();
        }
        association
    }

    /// Gives the host its rights: it has proved its identity, or need not.
    pub(crate) fn admit(&mut self) {
        let mask = if self.is_restricted { Rights::RUN } else { Rights::ALL };
        self.rights = self.access.rights & mask;
    }

    /// Registers the I/O queue with this id once the host has proved its identity. False if another queue has the id by
    /// now, or all queues have been ended since Connect.
    pub(crate) fn register(&mut self, qid: u16) -> bool {
        if !self.is_registered {
            match self.controller.add_queue(qid) {
                Some(resets) if resets == self.resets => self.is_registered = true,
                Some(resets) => {
                    self.controller.remove_queue(qid, resets);
                    self.controller.queue_ended();
                }
                None => {}
            }
            // It cannot change any more: there is a queue.
            self.is_restricted = self.controller.is_restricted();
        }
        self.is_registered
    }

    /// All commands of the closing connection have ended.
    pub(crate) fn commands_ended(&mut self) {
        if std::mem::take(&mut self.is_registered) {
            self.controller.queue_ended();
        }
    }

    /// The host that Connect has named, proved or not.
    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// Whether the connection does not count as its host's yet, because the host has not proved its identity.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.member.is_none()
    }

    /// Counts the connection as its host's from now on.
    pub(crate) fn join(&mut self, member: Member) {
        self.member = Some(member);
    }

    /// Whether the host has yet to authenticate itself on this queue, or has done so and there was no room for the
    /// connection.
    pub(crate) fn awaits_authentication(&self) -> bool {
        self.is_pending() || self.auth.as_ref().is_some_and(|auth| auth.authentication().is_none())
    }

    /// Whether the host has yet to authenticate itself, and no attempt has failed.
    pub(crate) fn is_unproved(&self) -> bool {
        self.awaits_authentication() && !self.has_failed
    }

    /// Whether a namespace exists for the host.
    #[inline]
    pub(crate) fn sees(&self, nsid: u32) -> bool {
        self.access.sees(nsid)
    }

    /// Takes newer tables if there are any. Called by commands that need them, and now and then: an old table keeps
    /// unloaded functions in memory.
    #[inline]
    pub(crate) fn refresh_tables(&mut self) {
        self.controller.refresh(&mut self.generation, &mut self.tables);
    }
}

/// State that an admin queue keeps between commands.
#[derive(Debug, Default)]
pub(crate) struct AdminState {
    pub(crate) function_upload: Option<PartialUpload>,
    pub(crate) map_upload: Option<PartialUpload>,
    /// Why the last Function Load was refused; empty if it was not.
    pub(crate) load_message: String,
    pub(crate) last_function: u32,
    pub(crate) last_function_map: u32,
    /// Whether a function is being loaded: only one at a time, because a load takes memory and the compiler's thread.
    pub(crate) is_loading: bool,
    pub(crate) events: Events,
}

/// An object of which parts have arrived.
#[derive(Debug)]
pub(crate) struct PartialUpload {
    pub(crate) total_bytes: u32,
    pub(crate) installation: Installation,
    pub(crate) data: Vec<u8>,
    /// Charge for the whole object.
    pub(crate) memory: Charge,
}

impl AdminState {
    /// Bytes held of uploads that are not complete.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn upload_bytes(&self) -> usize {
        let parts = [&self.function_upload, &self.map_upload];
        parts.into_iter().flatten().map(|partial| partial.data.len()).sum()
    }
}

/// Kinds of asynchronous events: the bits of Asynchronous Event Configuration.
pub(crate) type Kinds = u32;

/// Asynchronous Event Requests that a host has parked, and the events that it is to be told of.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Identifiers of parked requests, oldest first.
    pub(crate) parked: VecDeque<u16>,
    /// Events that the host has enabled (Asynchronous Event Configuration).
    pub(crate) config: u32,
    /// Kinds of events that the host has been told of, and whose log pages it has not read yet.
    pub(crate) told: Kinds,
    /// The generation of the discovery log page that the host has read last; before that, the one when it connected.
    pub(crate) known_log: u64,
    /// The count of ANA changes ([`Controller::ana_changes`]) when the host last read the ANA log; before that, the one
    /// at Connect.
    pub(crate) known_ana: u64,
}

impl Events {
    /// Drops the requests without completions, because the controller has ended (NVMe Base 2.0 §3.7.2).
    pub(crate) fn clear(&mut self) {
        self.parked.clear();
        (self.config, self.told) = (0, Kinds::default());
    }
}
