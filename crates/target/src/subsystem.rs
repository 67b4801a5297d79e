//! The subsystem: namespaces and the controllers of the hosts that are connected.

use crate::controller::{Controller, CounterTable};
use crate::namespace::Namespace;
use bpfof_chain::{Function, Limits, Tables};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Associations at a time. Each may hold 64 functions and its file maps.
const MAX_CONTROLLERS: usize = 1024;

/// Functions kept beyond the associations that loaded them.
pub(crate) const MAX_KEPT_FUNCTIONS: usize = 64;
/// Ids of kept functions have this bit set; those of an association's own do not.
const KEPT: u32 = 1 << 31;

/// Whether a function of this id is kept beyond its association.
pub(crate) fn is_kept(function: u32) -> bool {
    function & KEPT != 0
}

/// What all reactors share.
#[derive(Debug)]
pub(crate) struct Subsystem {
    pub(crate) nqn: String,
    pub(crate) limits: Limits,
    pub(crate) namespaces: Vec<Namespace>,
    /// Of the kept functions.
    pub(crate) kept_counters: CounterTable,
    controllers: Mutex<Controllers>,
}

#[derive(Debug, Default)]
struct Controllers {
    by_id: BTreeMap<u16, Arc<Controller>>,
    last_id: u16,
    /// Functions that every association has.
    kept: Vec<Arc<Function>>,
    last_kept: u32,
}

impl Subsystem {
    pub(crate) fn new(nqn: String, limits: Limits, namespaces: Vec<Namespace>) -> Subsystem {
        Subsystem {
            nqn,
            limits,
            namespaces,
            kept_counters: CounterTable::default(),
            controllers: Mutex::default(),
        }
    }

    fn controllers(&self) -> MutexGuard<'_, Controllers> {
        self.controllers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The index of the namespace with this id.
    #[inline]
    pub(crate) fn namespace_index(&self, nsid: u32) -> Option<usize> {
        let index = (nsid as usize).checked_sub(1)?;
        (index < self.namespaces.len()).then_some(index)
    }

    /// Makes a controller for a host. None if there are too many.
    pub(crate) fn add_controller(
        &self,
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
        let whole = self.namespaces.iter().map(Namespace::whole_file).collect();
        let tables = controllers.kept.iter().fold(Tables::new(whole), |tables, function| {
            tables.with_function(Arc::clone(function))
        });
        let controller = Controller::new(id, host_nqn.to_owned(), host_id, kato_ms, tables);
        let controller = Arc::new(controller);
        controllers.by_id.insert(id, Arc::clone(&controller));
        Some(controller)
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

    pub(crate) fn remove_controller(&self, id: u16) {
        self.controllers().by_id.remove(&id);
    }
}
