//! A subsystem: its namespaces and the controllers of the hosts that are connected to it.

use crate::controller::{Controller, CounterTable};
use crate::health::Health;
use bpfof_chain::{FileMap, Function, Tables};
use bpfof_nvme::fabrics::DISCOVERY_NQN;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Associations of a subsystem at a time. Each may hold 64 functions and its file maps.
const MAX_CONTROLLERS: usize = 1024;

/// Functions kept beyond the associations that loaded them.
pub(crate) const MAX_KEPT_FUNCTIONS: usize = 64;
/// Ids of kept functions have this bit set; those of an association's own do not.
const KEPT: u32 = 1 << 31;

/// Whether a function of this id is kept beyond its association.
pub(crate) fn is_kept(function: u32) -> bool {
    function & KEPT != 0
}

/// Shared by all reactors.
#[derive(Debug)]
pub(crate) struct Subsystem {
    pub(crate) nqn: String,
    /// Indices in the target's table; the first has namespace id 1.
    members: Vec<usize>,
    /// Of the kept functions.
    pub(crate) kept_counters: CounterTable,
    pub(crate) health: Health,
    controllers: Mutex<Controllers>,
}

#[derive(Debug, Default)]
struct Controllers {
    /// Each namespace as one file.
    whole: Vec<FileMap>,
    by_id: BTreeMap<u16, Arc<Controller>>,
    last_id: u16,
    /// Functions that every association has.
    kept: Vec<Arc<Function>>,
    last_kept: u32,
}

impl Subsystem {
    pub(crate) fn new(nqn: String, members: Vec<usize>, whole: Vec<FileMap>) -> Subsystem {
        Subsystem {
            nqn,
            members,
            kept_counters: CounterTable::default(),
            health: Health::default(),
            controllers: Mutex::new(Controllers { whole, ..Controllers::default() }),
        }
    }

    fn controllers(&self) -> MutexGuard<'_, Controllers> {
        self.controllers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the discovery subsystem, which has no namespaces.
    pub(crate) fn is_discovery(&self) -> bool {
        self.nqn == DISCOVERY_NQN
    }

    /// Its namespaces, as indices in the target's table.
    pub(crate) fn members(&self) -> &[usize] {
        &self.members
    }

    /// The index of the namespace with this id.
    #[inline]
    pub(crate) fn namespace_index(&self, nsid: u32) -> Option<usize> {
        self.members.get((nsid as usize).checked_sub(1)?).copied()
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
        // Ids FFF0h and up are reserved (NVMe Base 2.0 §5.17.2.1, CNTLID).
        let mut id = controllers.last_id;
        loop {
            id = if id >= 0xffef { 1 } else { id + 1 };
            if !controllers.by_id.contains_key(&id) {
                break;
            }
        }
        controllers.last_id = id;
        let tables = Tables::new(controllers.whole.clone());
        let tables = controllers
            .kept
            .iter()
            .fold(tables, |tables, function| tables.with_function(Arc::clone(function)));
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

    /// Gives every association, present and future, a function. Returns its id, or None if there
    /// are too many.
    pub(crate) fn keep_function(&self, function: Function) -> Option<u32> {
        let mut controllers = self.controllers();
        if controllers.kept.len() >= MAX_KEPT_FUNCTIONS {
            return None;
        }
        controllers.last_kept += 1;
        let id = KEPT | controllers.last_kept;
        let function = Arc::new(Function { id, ..function });
        for controller in controllers.by_id.values() {
            controller.update(|tables| tables.with_function(Arc::clone(&function)));
        }
        controllers.kept.push(function);
        Some(id)
    }

    /// Takes a kept function from every association.
    pub(crate) fn drop_function(&self, id: u32) {
        let mut controllers = self.controllers();
        controllers.kept.retain(|function| function.id != id);
        for controller in controllers.by_id.values() {
            controller.update(|tables| tables.without_function(id));
        }
        self.kept_counters.remove(id);
    }

    /// A namespace has changed its size: `whole` is it as one file.
    pub(crate) fn namespace_changed(&self, nsid: u32, whole: &FileMap) {
        let mut controllers = self.controllers();
        for known in controllers.whole.iter_mut().filter(|known| known.namespace() == nsid) {
            *known = whole.clone();
        }
        for controller in controllers.by_id.values() {
            controller.update(|tables| tables.with_whole_namespace(whole.clone()));
            controller.namespace_changed(nsid);
        }
    }

    pub(crate) fn remove_controller(&self, id: u16) {
        self.controllers().by_id.remove(&id);
    }
}
