//! A storage function on both sides: at the target, and here for the other executors.

use crate::{Error, FunctionId};
use bpfof_chain::{Function, FunctionMap, FunctionMaps, Peers, Trace};
use bpfof_function::{Fault, Map, MapDefinition, NativeFunction, Object, Program};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The first local id. Targets number functions from 1, and installed functions from 2^31.
const FIRST_LOCAL_ID: u32 = 1 << 30;

/// A function that chains can run, here or at the target.
#[derive(Clone, Debug)]
pub struct StorageFunction {
    local: Arc<Loaded>,
    /// The association's serial number, and its id there.
    remote: Option<(u64, FunctionId)>,
}

/// A function for as long as a [`StorageFunction`] refers to it. Readers' tables may keep the inner [`Function`]
/// longer.
#[derive(Debug)]
struct Loaded {
    function: Arc<Function>,
    /// Dropped after `function`.
    _counts: Counts,
}

#[derive(Debug)]
struct Counts;

/// Number of functions of this process that have been dropped.
static DROPPED: AtomicU64 = AtomicU64::new(0);

impl Drop for Counts {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::Release);
    }
}

impl StorageFunction {
    /// How many functions of this process have been dropped. When the number changes, a reader removes dropped
    /// functions from its tables.
    pub(crate) fn dropped() -> u64 {
        DROPPED.load(Ordering::Acquire)
    }

    /// Translates the entry point `entry_index` of `object` for this machine. Its maps are shared
    /// with those of `known`; None if its maps are at a target.
    pub(crate) fn local(
        object: &[u8],
        entry_index: u32,
        peers: Peers,
        known: Option<&LocalMaps>,
    ) -> Result<Self, Error> {
        let refused = |error: &dyn std::error::Error| Error::FunctionRejected(error.to_string());
        let object = Object::parse(object).map_err(|error| refused(&error))?;
        let entry = object.into_entry(entry_index as usize).map_err(|error| refused(&error))?;
        let Some(known) = known else {
            return Self::of_program(entry.name, &entry.program, peers, FunctionMaps::default());
        };
        let mut known = known.0.lock().unwrap_or_else(PoisonError::into_inner);
        let maps = share(&mut known, entry.program.maps())?;
        let function = Self::of_program(entry.name, &entry.program, peers, maps)?;
        known.push(Arc::downgrade(&function.local));
        Ok(function)
    }

    /// Translates a program and gives it these maps.
    pub(crate) fn of_program(
        name: String,
        program: &Program,
        peers: Peers,
        maps: FunctionMaps,
    ) -> Result<Self, Error> {
        let native = NativeFunction::compile(program)
            .map_err(|error| Error::FunctionRejected(error.to_string()))?;
        let instructions = u32::try_from(program.instructions().len()).unwrap_or(u32::MAX);
        // Its id on this machine, unique in the process and outside the ranges that targets use.
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
        let local = Loaded { function: Arc::new(local), _counts: Counts };
        Ok(Self { local: Arc::new(local), remote: None })
    }

    pub(crate) const fn set_remote(&mut self, association: u64, id: FunctionId) {
        self.remote = Some((association, id));
    }

    /// Its id in this association; None if it was loaded into another, or none.
    pub(crate) fn id_in(&self, association: u64) -> Option<FunctionId> {
        self.remote.filter(|(of, _)| *of == association).map(|(_, id)| id)
    }

    pub(crate) fn local_function(&self) -> &Arc<Function> {
        &self.local.function
    }

    /// Whether it declares maps.
    pub(crate) fn has_maps(&self) -> bool {
        !self.local.function.native.program().maps().is_empty()
    }

    /// Whether its maps are at a target, so that it must not run anywhere else.
    pub(crate) fn remembers_at_target(&self) -> bool {
        self.remote.is_some() && self.has_maps()
    }

    /// One of its maps, if chains run in this process. The maps of a function at a target are
    /// there: see [`FileMaps::with_controller`](super::FileMaps::with_controller) and
    /// [`Controller::map`](crate::Controller::map).
    #[must_use]
    pub fn local_map(&self, name: &str) -> Option<&Map> {
        let found =
            self.local.function.maps.iter().find(|known| known.map.definition().name() == name);
        found.map(|known| &known.map)
    }

    /// Its id at the target, if there is one.
    #[must_use]
    pub fn id(&self) -> Option<FunctionId> {
        self.remote.map(|(_, id)| id)
    }

    /// The number by which other functions of the same [`FileMaps`](super::FileMaps) call it with
    /// `bpfof_tail_call`, in any executor: its id at the target, if there is one.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.remote.map_or(self.local.function.id, |(_, id)| id.0)
    }

    /// Describes a fault of a chain on this machine, with the source line.
    #[must_use]
    pub fn explain(&self, fault: &Fault) -> String {
        fault.explain(self.local.function.native.program())
    }

    /// Its name: the section's after `bpfof/`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.local.function.name
    }
}

/// The functions of one [`FileMaps`](super::FileMaps) that run in this process and share maps of the same name. A map
/// is freed with the last function that has it.
#[derive(Debug, Default)]
pub(crate) struct LocalMaps(Mutex<Vec<Weak<Loaded>>>);

/// The maps for these definitions: the existing map if a function of `known` has it, otherwise a new one.
fn share(known: &mut Vec<Weak<Loaded>>, wanted: &[MapDefinition]) -> Result<FunctionMaps, Error> {
    known.retain(|function| function.strong_count() > 0);
    let mut maps = Vec::with_capacity(wanted.len());
    for definition in wanted {
        let is_same =
            |known: &&Arc<FunctionMap>| known.map.definition().name() == definition.name();
        let mut alive = known.iter().filter_map(Weak::upgrade);
        let same = alive.find_map(|loaded| loaded.function.maps.iter().find(is_same).cloned());
        maps.push(match same {
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
                let map = Map::new(definition.clone());
                Arc::new(FunctionMap { id, map, memory: None, counted: None })
            }
        });
    }
    Ok(maps.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpfof_function::MapKind;

    #[test]
    fn a_map_is_freed_with_its_last_function() {
        let definition = |entries| {
            MapDefinition::new("m", MapKind::Array, (4, 8), entries).expect("within the limits")
        };
        // r0 = 0; exit
        let code: [[u8; 8]; 2] = [[0xB7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
        let program = Program::parse(code.as_flattened()).expect("valid");
        let mut known = Vec::new();
        let maps = share(&mut known, &[definition(1)]).expect("the first");
        let function =
            StorageFunction::of_program("f".to_owned(), &program, Peers::default(), maps);
        let function = function.expect("it is compiled");
        known.push(Arc::downgrade(&function.local));
        let reader = Arc::clone(function.local_function());
        let same = share(&mut known, &[definition(1)]).expect("it is the same");
        assert!(Arc::ptr_eq(&same[0], &reader.maps[0]));
        assert!(share(&mut known, &[definition(2)]).is_err());
        drop(function);
        let other = share(&mut known, &[definition(2)]).expect("the first map is freed");
        assert_eq!(*other[0].map.definition(), definition(2));
    }
}
