//! State shared by all reactors: the subsystems with their namespaces, and the listeners on which hosts reach them.

use crate::access::{Denials, HandshakeCounts, Reason, Rules};
use crate::controller::Controller;
use crate::error::ServerError;
use crate::hosts::{HostFull, Hosts};
use crate::listener::Listener;
use crate::namespace::Namespace;
use crate::namespace_table::Served;
use crate::own_functions::OwnFunctions;
use crate::room::Newcomer;
use crate::subsystem::Subsystem;
use bpfof_chain::Limits;
use bpfof_nvme::fabrics::DISCOVERY_NQN;
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Debug)]
pub(crate) struct Registry {
    pub(crate) limits: Limits,
    /// Ids of controllers in each subsystem, and the id before the first one to be given.
    cntlids: (RangeInclusive<u16>, u16),
    /// The hosts, and the memory that they share.
    pub(crate) hosts: Arc<Hosts>,
    /// Each subsystem is at the index that is its number. One that has lost its namespaces stays for the hosts that are
    /// connected to it, but is no longer found by name.
    subsystems: Mutex<Vec<Arc<Subsystem>>>,
    discovery: Arc<Subsystem>,
    /// The listeners on which subsystems with namespaces are reached.
    pub(crate) listeners: Vec<Arc<Listener>>,
    /// The target ends.
    pub(crate) is_ending: AtomicBool,
    /// No host is admitted without TLS.
    pub(crate) is_tls_required: bool,
    /// TLS handshakes are served: since the start, or never.
    pub(crate) serves_tls: bool,
    rules: Mutex<Arc<Rules>>,
    /// The functions that each subsystem keeps.
    own_functions: OwnFunctions,
    pub(crate) denials: Denials,
    pub(crate) handshakes: HandshakeCounts,
}

impl Registry {
    /// `namespaces` with the names of their subsystems; `cntlids` are the ids of controllers, and the id before the
    /// first one to be given.
    pub(crate) fn new(
        limits: Limits,
        hosts: Arc<Hosts>,
        cntlids: (RangeInclusive<u16>, u16),
        namespaces: Vec<(String, Namespace)>,
        listeners: Vec<Arc<Listener>>,
    ) -> Registry {
        let name = DISCOVERY_NQN.to_owned();
        let discovery = Subsystem::new(name, usize::MAX, Vec::new(), cntlids.clone());
        let registry = Registry {
            limits,
            cntlids,
            hosts,
            subsystems: Mutex::default(),
            discovery: Arc::new(discovery),
            listeners,
            is_ending: AtomicBool::new(false),
            is_tls_required: false,
            serves_tls: false,
            rules: Mutex::default(),
            own_functions: OwnFunctions::default(),
            denials: Denials::default(),
            handshakes: HandshakeCounts::default(),
        };
        let shared = namespaces.into_iter().map(|(nqn, namespace)| (nqn, Arc::new(namespace)));
        registry.replace(&shared.collect::<Vec<_>>());
        registry
    }

    /// Whether the subsystem with this number keeps the function with this id.
    pub(crate) fn keeps(&self, subsystem: usize, function: u32) -> bool {
        self.lock().get(subsystem).is_some_and(|subsystem| subsystem.keeps(function))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Subsystem>>> {
        self.subsystems.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes each subsystem keep these functions from now on.
    ///
    /// # Errors
    /// A function that is refused.
    pub(crate) fn keep_functions(&mut self, functions: OwnFunctions) -> Result<(), ServerError> {
        for subsystem in self.subsystems() {
            functions.install(&subsystem, &self.hosts)?;
        }
        self.own_functions = functions;
        Ok(())
    }

    /// The current rules.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the rules. Returns the controllers of hosts that have fewer rights by the new ones.
    pub(crate) fn set_rules(&self, rules: Rules) -> Vec<Arc<Controller>> {
        let rules = Arc::new(rules);
        {
            let mut current = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
            if *current == rules {
                return Vec::new();
            }
            *current = Arc::clone(&rules);
        }
        // Hosts may find other subsystems by discovery now.
        self.discovery.next_log_generation();
        // Without the lock, for which all connecting hosts would wait. A host that connects by the old rules after this
        // search finds that the rules have changed.
        let mut fewer = Vec::new();
        for subsystem in self.all() {
            let is_discovery = subsystem.is_discovery();
            fewer.extend(subsystem.all_controllers().into_iter().filter(|controller| {
                let host = controller.host_nqn();
                match is_discovery {
                    true => !rules.knows(host),
                    false => rules
                        .access(host, &subsystem.nqn)
                        .is_none_or(|access| !access.contains(&controller.access)),
                }
            }));
        }
        fewer
    }

    /// All subsystems, including those that have lost their namespaces and the discovery subsystem.
    pub(crate) fn all(&self) -> Vec<Arc<Subsystem>> {
        self.lock().iter().chain([&self.discovery]).cloned().collect()
    }

    /// Makes a controller for a host in a subsystem. Controllers that were removed to make room for it, in any
    /// subsystem, are added to `evicted`.
    pub(crate) fn add_controller(
        &self,
        subsystem: &Subsystem,
        newcomer: &Newcomer,
        times: (u32, u64),
        evicted: &mut Vec<Arc<Controller>>,
    ) -> Result<Arc<Controller>, HostFull> {
        let (hosts, (_, now_ns)) = (&self.hosts, times);
        let mut made = subsystem.add_controller(newcomer, hosts, times, None);
        if let Err(full @ (HostFull::Associations(_) | HostFull::Address(_))) = &made
            && !subsystem.is_discovery()
        {
            // The host or its address may have useless associations in another subsystem.
            let others = self.lock().clone();
            let all = others.iter().filter_map(|other| {
                let goes = other.least_useful(newcomer, full, (hosts, now_ns))?;
                Some((goes, other))
            });
            if let Some(((_, goes), other)) = all.max_by_key(|((silent_ns, _), _)| *silent_ns) {
                other.remove_controller(&goes, now_ns);
                goes.note_eviction(full, now_ns);
                made = subsystem.add_controller(newcomer, hosts, times, Some(&goes));
                self.count_eviction(&goes);
                evicted.push(goes);
            }
        }
        let (controller, goes) = made?;
        if let Some(goes) = &goes {
            self.count_eviction(goes);
        }
        evicted.extend(goes);
        Ok(controller)
    }

    /// Counts an association that ends for another. Connections of strangers count when they close.
    fn count_eviction(&self, goes: &Controller) {
        if !goes.is_stranger() {
            self.denials.count(Reason::Limit);
        }
    }

    /// The subsystem of this name; the discovery subsystem has a well-known name.
    pub(crate) fn subsystem(&self, nqn: &str) -> Option<Arc<Subsystem>> {
        if nqn == DISCOVERY_NQN {
            return Some(Arc::clone(&self.discovery));
        }
        self.subsystems().into_iter().find(|subsystem| subsystem.nqn == nqn)
    }

    /// The listener that a connection came to; any listener for a connection to the discovery listener.
    pub(crate) fn listener(&self, index: u16) -> &Arc<Listener> {
        &self.listeners[usize::from(index)]
    }

    /// The highest of the ids that the subsystems have given last.
    pub(crate) fn last_controller(&self) -> u16 {
        let all = self.lock();
        all.iter().chain([&self.discovery]).map(|of| of.last_controller()).max().unwrap_or(0)
    }

    /// Updates the discovery log's generation, because a listener is advertised differently.
    pub(crate) fn discovery_changed(&self) {
        self.discovery.next_log_generation();
    }

    /// The subsystems with namespaces.
    pub(crate) fn subsystems(&self) -> Vec<Arc<Subsystem>> {
        let mut subsystems = self.lock().clone();
        subsystems.retain(|subsystem| subsystem.is_served());
        subsystems
    }

    /// All namespaces, for reactors.
    pub(crate) fn served(&self) -> Vec<Served> {
        let of = |subsystem: &Arc<Subsystem>| {
            let number = subsystem.number;
            subsystem.namespaces().into_iter().map(move |namespace| (number, namespace))
        };
        self.lock().iter().flat_map(of).collect()
    }

    /// The number of the subsystem of this name, which is added if there is none.
    pub(crate) fn number(&self, nqn: &str) -> usize {
        let known = self.lock().iter().find(|known| known.nqn == nqn).map(|known| known.number);
        if let Some(known) = known {
            return known;
        }
        let number = self.lock().len();
        // Without the lock, because compiling takes seconds, in which hosts connect. Only reloads add subsystems, and
        // there is one reload at a time.
        let new = Subsystem::new(nqn.to_owned(), number, Vec::new(), self.cntlids.clone());
        // Unexpected: other subsystems have accepted the same functions.
        if let Err(error) = self.own_functions.install(&new, &self.hosts) {
            log::error!("{nqn} is served without the functions of the configuration: {error}");
        }
        self.lock().push(Arc::new(new));
        number
    }

    /// Replaces all namespaces by these, which come with the names of their subsystems.
    pub(crate) fn replace(&self, namespaces: &[(String, Arc<Namespace>)]) {
        for (nqn, _) in namespaces {
            self.number(nqn);
        }
        // Without the lock, which reactors wait for.
        let all = self.lock().clone();
        for subsystem in all {
            let its = namespaces.iter().filter(|(nqn, _)| *nqn == subsystem.nqn);
            let its: Vec<_> = its.map(|(_, namespace)| Arc::clone(namespace)).collect();
            // At once: a host that reads the log in pieces meanwhile sees by the generation that it has changed.
            if subsystem.set_served(!its.is_empty()) {
                self.discovery.next_log_generation();
            }
            subsystem.replace_namespaces(its);
        }
    }

    /// Drops all namespaces but these. Their subsystems go on being served, because others are
    /// about to follow.
    pub(crate) fn retain(&self, keep: &[Served]) {
        let all = self.lock().clone();
        for subsystem in all {
            let mut its = subsystem.namespaces();
            its.retain(|namespace| keep.iter().any(|(_, kept)| Arc::ptr_eq(kept, namespace)));
            subsystem.replace_namespaces(its);
        }
    }
}
