//! A subsystem: its namespaces and the controllers of the hosts that are connected to it.

use crate::controller::{Controller, CounterTable};
use crate::function_maps::{self, DeclaredMap};
use crate::health::Health;
use crate::namespace::Namespace;
use bpfof_chain::{Function, Tables};
use bpfof_nvme::Status;
use bpfof_nvme::fabrics::DISCOVERY_NQN;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Largest namespace id, and most namespaces of a subsystem: as many as the Changed Namespace List
/// can tell (NVMe Base 2.0 §5.16.1.5).
pub(crate) const MAX_NSID: u32 = 1024;

/// Associations of a subsystem at a time. Each may hold 64 functions and its file maps.
const MAX_CONTROLLERS: usize = 1024;

/// Ids FFF0h and up are reserved (NVMe Base 2.0 §5.17.2.1, CNTLID).
pub(crate) const LAST_CONTROLLER_ID: u16 = 0xffef;

/// Functions kept beyond the associations that loaded them.
pub(crate) const MAX_KEPT_FUNCTIONS: usize = 64;
/// Ids of kept functions have this bit set; those of an association's own do not.
const KEPT: u32 = 1 << 31;

/// Whether a function of this id, or a map of one, is kept beyond its association.
pub(crate) fn is_kept(function: u32) -> bool {
    function & KEPT != 0
}

/// Shared by all reactors.
#[derive(Debug)]
pub(crate) struct Subsystem {
    pub(crate) nqn: String,
    /// No other subsystem of the target has or gets it.
    pub(crate) number: usize,
    /// Of the kept functions.
    pub(crate) kept_counters: CounterTable,
    pub(crate) health: Health,
    /// Of the discovery subsystem: the generation of its log page.
    log_generation: AtomicU64,
    /// It is in the discovery log, and hosts can connect.
    is_served: AtomicBool,
    controllers: Mutex<Controllers>,
}

/// What controllers announce because of the namespaces there are. A host looks once, when it
/// connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traits {
    /// A namespace may lose acknowledged writes that were not flushed.
    pub(crate) has_volatile_cache: bool,
    /// Each namespace can give blocks back.
    pub(crate) deallocates: bool,
}

#[derive(Debug, Default)]
struct Controllers {
    /// In ascending order of their ids.
    namespaces: Vec<Arc<Namespace>>,
    traits: Traits,
    by_id: BTreeMap<u16, Arc<Controller>>,
    last_id: u16,
    /// Functions that every association has.
    kept: Vec<Kept>,
    last_kept: u32,
    last_kept_map: u32,
}

/// A function that every association has, each with maps of its own.
#[derive(Debug)]
struct Kept {
    function: Arc<Function>,
    maps: Vec<DeclaredMap>,
}

impl Kept {
    fn install(&self, tables: &Tables) -> Tables {
        let maps = function_maps::make(&self.maps, tables);
        tables.with_function_and_maps(Arc::clone(&self.function), maps)
    }
}

/// Why a function is not installed: the status, and words for the host.
pub(crate) type Refusal = (Status, String);

impl Subsystem {
    /// `last_id` is the id before that of the first controller.
    pub(crate) fn new(
        nqn: String,
        number: usize,
        namespaces: Vec<Arc<Namespace>>,
        last_id: u16,
    ) -> Subsystem {
        let subsystem = Subsystem {
            nqn,
            number,
            kept_counters: CounterTable::default(),
            health: Health::default(),
            log_generation: AtomicU64::default(),
            is_served: AtomicBool::default(),
            controllers: Mutex::new(Controllers { last_id, ..Controllers::default() }),
        };
        subsystem.replace_namespaces(namespaces);
        subsystem
    }

    fn controllers(&self) -> MutexGuard<'_, Controllers> {
        self.controllers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the discovery subsystem, which has no namespaces.
    pub(crate) fn is_discovery(&self) -> bool {
        self.nqn == DISCOVERY_NQN
    }

    /// Its namespaces, in the order of their ids.
    pub(crate) fn namespaces(&self) -> Vec<Arc<Namespace>> {
        self.controllers().namespaces.clone()
    }

    /// The namespace with this id.
    pub(crate) fn namespace(&self, nsid: u32) -> Option<Arc<Namespace>> {
        self.controllers().namespaces.iter().find(|namespace| namespace.nsid == nsid).cloned()
    }

    /// What its controllers announce.
    pub(crate) fn traits(&self) -> Traits {
        self.controllers().traits
    }

    /// Takes over other namespaces. Associations lose the file maps of those that are gone, and
    /// remember for their hosts which ids have changed.
    pub(crate) fn replace_namespaces(&self, mut new: Vec<Arc<Namespace>>) {
        new.sort_by_key(|namespace| namespace.nsid);
        let mut controllers = self.controllers();
        let only_in_first = |one: &[Arc<Namespace>], other: &[Arc<Namespace>]| {
            let alone = |namespace: &&Arc<Namespace>| {
                !other.iter().any(|known| Arc::ptr_eq(known, namespace))
            };
            one.iter().filter(alone).cloned().collect::<Vec<_>>()
        };
        let (gone, added) = (
            only_in_first(&controllers.namespaces, &new),
            only_in_first(&new, &controllers.namespaces),
        );
        for controller in controllers.by_id.values() {
            for namespace in &gone {
                controller.update(|tables| tables.without_namespace(namespace.nsid));
                controller.namespace_changed(namespace.nsid);
            }
            for namespace in &added {
                let whole = namespace.whole_file();
                controller.update(|tables| tables.with_whole_namespace(whole));
                controller.namespace_changed(namespace.nsid);
            }
        }
        if !new.is_empty() {
            controllers.traits = Traits {
                has_volatile_cache: new.iter().any(|namespace| namespace.has_volatile_cache()),
                deallocates: new.iter().all(|namespace| namespace.deallocates()),
            };
        }
        controllers.namespaces = new;
    }

    /// Those of the hosts that are connected.
    pub(crate) fn all_controllers(&self) -> Vec<Arc<Controller>> {
        self.controllers().by_id.values().cloned().collect()
    }

    /// Whether hosts can connect to it.
    pub(crate) fn is_served(&self) -> bool {
        self.is_served.load(Ordering::Relaxed)
    }

    /// True if that has changed.
    pub(crate) fn set_served(&self, is_served: bool) -> bool {
        self.is_served.swap(is_served, Ordering::Relaxed) != is_served
    }

    /// The generation of the discovery log page.
    pub(crate) fn log_generation(&self) -> u64 {
        self.log_generation.load(Ordering::Acquire)
    }

    /// What the discovery log page tells has changed.
    pub(crate) fn next_log_generation(&self) {
        self.log_generation.fetch_add(1, Ordering::Release);
    }

    /// Makes a controller for a host. None if there are too many.
    pub(crate) fn add_controller(
        self: &Arc<Self>,
        host_nqn: &str,
        host_id: [u8; 16],
        kato_ms: u32,
    ) -> Option<Arc<Controller>> {
        let mut controllers = self.controllers();
        if controllers.by_id.len() >= MAX_CONTROLLERS {
            return None;
        }
        let mut id = controllers.last_id;
        loop {
            id = if id >= LAST_CONTROLLER_ID { 1 } else { id + 1 };
            if !controllers.by_id.contains_key(&id) {
                break;
            }
        }
        controllers.last_id = id;
        let whole = controllers.namespaces.iter().map(|namespace| namespace.whole_file());
        let tables = Tables::new(whole.collect());
        let tables = controllers.kept.iter().fold(tables, |tables, kept| kept.install(&tables));
        let host = (host_nqn.to_owned(), host_id);
        let controller = Controller::new(id, Arc::clone(self), host, kato_ms, tables);
        let controller = Arc::new(controller);
        controllers.by_id.insert(id, Arc::clone(&controller));
        Some(controller)
    }

    /// The associations are over.
    pub(crate) fn remove_all_controllers(&self) {
        self.controllers().by_id.clear();
    }

    pub(crate) fn controller(&self, id: u16) -> Option<Arc<Controller>> {
        self.controllers().by_id.get(&id).cloned()
    }

    /// Gives every association, present and future, a function. Returns its id.
    pub(crate) fn keep_function(&self, function: Function) -> Result<u32, Refusal> {
        let mut controllers = self.controllers();
        let controllers = &mut *controllers;
        if controllers.kept.len() >= MAX_KEPT_FUNCTIONS || is_kept(controllers.last_kept + 1) {
            let message = format!("the subsystem keeps {MAX_KEPT_FUNCTIONS} functions; unload one");
            return Err((Status::RESOURCE_LIMIT, message));
        }
        let known = controllers.kept.iter().flat_map(|kept| kept.maps.iter().cloned());
        let known: Vec<DeclaredMap> = known.collect();
        let wanted = function.native.program().maps();
        let maps = function_maps::declare(wanted, &known, &mut controllers.last_kept_map, KEPT)?;
        controllers.last_kept += 1;
        let id = KEPT | controllers.last_kept;
        self.kept_counters.begin(id);
        let kept = Kept { function: Arc::new(Function { id, ..function }), maps };
        for controller in controllers.by_id.values() {
            controller.update(|tables| kept.install(tables));
        }
        controllers.kept.push(kept);
        Ok(id)
    }

    /// Takes a kept function from every association.
    pub(crate) fn drop_function(&self, id: u32) {
        let mut controllers = self.controllers();
        controllers.kept.retain(|kept| kept.function.id != id);
        for controller in controllers.by_id.values() {
            controller.update(|tables| tables.without_function(id));
        }
        self.kept_counters.remove(id);
    }

    /// One of its namespaces has changed its size.
    pub(crate) fn namespace_resized(&self, namespace: &Namespace) {
        let controllers = self.controllers();
        for controller in controllers.by_id.values() {
            let whole = namespace.whole_file();
            controller.update(|tables| tables.with_whole_namespace(whole));
            controller.namespace_changed(namespace.nsid);
        }
    }

    pub(crate) fn remove_controller(&self, id: u16) {
        self.controllers().by_id.remove(&id);
    }
}
