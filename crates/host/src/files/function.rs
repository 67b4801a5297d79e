//! A storage function on both sides: at the target, and here for the other executors.

use crate::{Error, FunctionId};
use bpfof_chain::{Function, FunctionMap, FunctionMaps, Peers, Trace};
use bpfof_function::{Fault, Map, MapDefinition, NativeFunction, Object, Program};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Where local ids begin. Targets count functions from 1, and kept ones from 2^31.
const FIRST_LOCAL_ID: u32 = 1 << 30;

/// A function that chains can run, here or at the target.
#[derive(Clone, Debug)]
pub struct StorageFunction {
    local: Arc<Function>,
    /// The association's serial number, and its id there.
    remote: Option<(u64, FunctionId)>,
}

impl StorageFunction {
    /// Translates the entry point `entry_index` of `object` for this machine. Its maps are among
    /// `known`; None if they are at a target.
    pub(crate) fn local(
        object: &[u8],
        entry_index: u32,
        peers: Peers,
        known: Option<&LocalMaps>,
    ) -> Result<Self, Error> {
        let refused = |error: &dyn std::error::Error| Error::FunctionRejected(error.to_string());
        let object = Object::parse(object).map_err(|error| refused(&error))?;
        let entry = object.into_entry(entry_index as usize).map_err(|error| refused(&error))?;
        let wanted = entry.program.maps();
        let maps = known.map(|known| known.share(wanted)).transpose()?.unwrap_or_default();
        Self::of_program(entry.name, &entry.program, peers, maps)
    }

    /// Translates a program that has these maps.
    pub(crate) fn of_program(
        name: String,
        program: &Program,
        peers: Peers,
        maps: FunctionMaps,
    ) -> Result<Self, Error> {
        let native = NativeFunction::compile(program)
            .map_err(|error| Error::FunctionRejected(error.to_string()))?;
        let instructions = u32::try_from(program.instructions().len()).unwrap_or(u32::MAX);
        // Its id on this machine; no other function of the process has it, and no target uses such.
        static NEXT_ID: AtomicU32 = AtomicU32::new(FIRST_LOCAL_ID);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let local = Function {
            id,
            name,
            instructions,
            native,
            memory: None,
            trace: Trace::default(),
            peers: Some(peers),
            maps,
        };
        Ok(Self { local: Arc::new(local), remote: None })
    }

    pub(crate) const fn set_remote(&mut self, association: u64, id: FunctionId) {
        self.remote = Some((association, id));
    }

    /// Its id in this association; None if it was loaded into another, or none.
    pub(crate) fn id_in(&self, association: u64) -> Option<FunctionId> {
        self.remote.filter(|(of, _)| *of == association).map(|(_, id)| id)
    }

    pub(crate) const fn local_function(&self) -> &Arc<Function> {
        &self.local
    }

    /// Whether it declares maps.
    pub(crate) fn has_maps(&self) -> bool {
        !self.local.native.program().maps().is_empty()
    }

    /// Whether it remembers things at a target, so that it must not run anywhere else.
    pub(crate) fn remembers_at_target(&self) -> bool {
        self.remote.is_some() && self.has_maps()
    }

    /// One of its maps, if chains run in this process. Those of a function at a target are there:
    /// see [`FileMaps::with_controller`](super::FileMaps::with_controller) and
    /// [`Controller::map`](crate::Controller::map).
    #[must_use]
    pub fn local_map(&self, name: &str) -> Option<&Map> {
        let found = self.local.maps.iter().find(|known| known.map.definition().name() == name);
        found.map(|known| &known.map)
    }

    /// Its id at the target, if there is one.
    #[must_use]
    pub fn id(&self) -> Option<FunctionId> {
        self.remote.map(|(_, id)| id)
    }

    /// What other functions of the same [`FileMaps`](super::FileMaps) call it by, with
    /// `bpfof_tail_call`, wherever the chain runs: its id at the target, if there is one.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.remote.map_or(self.local.id, |(_, id)| id.0)
    }

    /// A fault of a chain on this machine in words, with the line of the source.
    #[must_use]
    pub fn explain(&self, fault: &Fault) -> String {
        fault.explain(self.local.native.program())
    }

    /// Its name: the section's after `bpfof/`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.local.name
    }
}

/// The maps in this process of functions that belong to the same files, by name. A map ends with
/// the last function that has it.
#[derive(Debug, Default)]
pub(crate) struct LocalMaps(Mutex<Vec<Weak<FunctionMap>>>);

impl LocalMaps {
    fn share(&self, wanted: &[MapDefinition]) -> Result<FunctionMaps, Error> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|map| map.strong_count() > 0);
        let mut maps = Vec::with_capacity(wanted.len());
        for definition in wanted {
            let alive = known.iter().filter_map(Weak::upgrade);
            let mut same = alive.filter(|known| known.map.definition().name() == definition.name());
            maps.push(match same.next() {
                Some(same) if same.map.definition() == definition => same,
                Some(same) => {
                    return Err(Error::FunctionRejected(format!(
                        "another function has declared it as {}, this one as {}: rename one of \
                         the maps, or drop the other function",
                        same.map.definition().describe(),
                        definition.describe()
                    )));
                }
                None => {
                    static NEXT_ID: AtomicU32 = AtomicU32::new(1);
                    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
                    let made = Arc::new(FunctionMap {
                        id,
                        map: Map::new(definition.clone()),
                        memory: None,
                    });
                    known.push(Arc::downgrade(&made));
                    made
                }
            });
        }
        Ok(maps.into())
    }
}
