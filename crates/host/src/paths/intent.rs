//! What a program wants of each of its associations: functions under these ids, entries of their maps, and
//! maps of files. It is done on all that there are, and done again on each that comes.
//!
//! Requests carry the ids that the program knows, and storage functions too, which call each other by
//! them. So an association where a function has another id is of no use, and is not used. Targets number
//! an association's functions from 1 on, so that the same ids come out as long as the same number of
//! functions is loaded.

use crate::association::Association;
use crate::{Controller, Error, FileMapObject, FunctionId, MapChange, Status};
use bpfof_nvme::Installation;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Functions that are loaded and unloaded again to get at a higher id, at most.
const FILLERS_MAX: u32 = 256;

/// The intent, held while something is done on all associations, or all that was done is done on another.
#[derive(Debug, Default)]
pub(super) struct Intents(Mutex<Intent>);

impl Intents {
    pub(super) fn lock(&self) -> MutexGuard<'_, Intent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Intent {
    functions: BTreeMap<u32, Loaded>,
    /// Names of installed functions, as the first association had them, or this program has installed.
    installed: BTreeMap<u32, String>,
    files: BTreeMap<u32, FileMapObject>,
    /// What the program has set in function maps, by their names.
    entries: BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>,
}

#[derive(Debug)]
struct Loaded {
    object: Vec<u8>,
    entry: u32,
}

impl Intent {
    /// Does all of it on an association that has just begun. An ordinary target has no functions, and is
    /// good for what it can do.
    pub(crate) fn replay(&mut self, association: &Arc<Association>) -> Result<(), Error> {
        let mut one = Controller::of(Arc::clone(association));
        match one.pushdown_limits() {
            Ok(_) => {}
            Err(Error::NotPushdownTarget) if self.is_empty() => return Ok(()),
            Err(error) => return Err(error),
        }
        self.compare_installed(&mut one)?;
        for (id, Loaded { object, entry }) in &self.functions {
            load_as(&mut one, *id, (object.as_slice(), *entry))?;
        }
        for (name, entries) in &self.entries {
            let map = one.map(name)?;
            for (key, value) in entries {
                one.map_set(&map, key, value)?;
            }
        }
        for map in self.files.values() {
            one.set_file_map(map)?;
        }
        Ok(())
    }

    /// Changes an entry of a function map.
    pub(crate) fn change_map(
        &mut self,
        association: &Arc<Association>,
        name: &str,
        change: MapChange,
        (key, value): (&[u8], &[u8]),
    ) -> Result<bool, Error> {
        let mut one = Controller::of(Arc::clone(association));
        let map = one.map(name)?;
        let changed = one.map_change(&map, change, key, value)?;
        if change == MapChange::Delete {
            self.entries.get_mut(name).map(|entries| entries.remove(key));
        } else if changed {
            let entries = self.entries.entry(name.to_owned()).or_default();
            entries.insert(key.to_vec(), value.to_vec());
        }
        Ok(changed)
    }

    fn is_empty(&self) -> bool {
        self.functions.is_empty() && self.installed.is_empty() && self.files.is_empty()
    }

    /// Takes the installed functions of an association to those that are known.
    fn compare_installed(&mut self, one: &mut Controller) -> Result<(), Error> {
        for entry in one.function_report()? {
            if !FunctionId(entry.function).is_installed() {
                continue;
            }
            let name = entry.name.to_string();
            let known = self.installed.entry(entry.function).or_insert_with(|| name.clone());
            if *known != name {
                let id = entry.function;
                return Err(Error::OtherFunctions(format!(
                    "installed function {id} is {name:?} there and {known:?} on another path; install \
                     the same functions at both, in the same order"
                )));
            }
        }
        Ok(())
    }

    /// Loads a function; `known` is its id on another association.
    pub(crate) fn load(
        &mut self,
        association: &Arc<Association>,
        known: Option<FunctionId>,
        (object, entry): (&[u8], u32),
    ) -> Result<FunctionId, Error> {
        let mut one = Controller::of(Arc::clone(association));
        let least = self.functions.keys().next_back().map_or(0, |last| last + 1);
        let id = match known {
            Some(known) => load_as(&mut one, known.0, (object, entry))?,
            None => load_from(&mut one, least, (object, entry))?,
        };
        self.functions.insert(id.0, Loaded { object: object.to_vec(), entry });
        Ok(id)
    }

    /// Installs a function for all; `known` is its id on another association, which may be with the
    /// same target.
    pub(crate) fn install(
        &mut self,
        association: &Arc<Association>,
        known: Option<FunctionId>,
        object: &[u8],
        installation: Installation,
    ) -> Result<FunctionId, Error> {
        let mut one = Controller::of(Arc::clone(association));
        let name = known.and_then(|id| self.installed.get(&id.0));
        if let (Some(id), Some(name)) = (known, name) {
            let report = one.function_report()?;
            let mut known = report.iter().filter(|entry| entry.function == id.0);
            if known.any(|entry| entry.name.to_string() == *name) {
                return Ok(id);
            }
        }
        let id = one.load(object, installation)?;
        if let Some(known) = known.filter(|known| *known != id) {
            one.unload_function(id)?;
            return Err(other_number(known.0, id.0));
        }
        let report = one.function_report()?;
        let entry = report.iter().find(|entry| entry.function == id.0);
        let name = entry.map_or_else(String::new, |entry| entry.name.to_string());
        self.installed.insert(id.0, name);
        Ok(id)
    }

    /// Unloads a function. Those of a target may be unloaded already, by another association with it.
    pub(crate) fn unload(
        &mut self,
        association: &Arc<Association>,
        id: FunctionId,
        is_first: bool,
    ) -> Result<(), Error> {
        self.functions.remove(&id.0);
        self.installed.remove(&id.0);
        let mut one = Controller::of(Arc::clone(association));
        match one.unload_function(id) {
            Err(Error::Command { source, .. })
                if !is_first && source.status.same_code(Status::UNKNOWN_FUNCTION) => {}
            end => end?,
        }
        // Maps end with the last function that has them, and what was set in them.
        if !self.entries.is_empty() {
            let maps = one.maps()?;
            self.entries.retain(|name, _| maps.iter().any(|map| map.name == *name));
        }
        Ok(())
    }

    /// From now on the map of a file is this one, or none.
    pub(crate) fn note_file(&mut self, map: &FileMapObject) {
        match map.version {
            0 => drop(self.files.remove(&map.file)),
            _ => drop(self.files.insert(map.file, map.clone())),
        }
    }

    pub(crate) fn forget_file(&mut self, file: u32) {
        self.files.remove(&file);
    }
}

fn other_number(wanted: u32, found: u32) -> Error {
    Error::OtherFunctions(format!("one is {found} there and {wanted} on another path"))
}

/// Loads a function so that its id is not below `least`: another association, which may have ended
/// since, has had those.
fn load_from(
    one: &mut Controller,
    least: u32,
    (object, entry): (&[u8], u32),
) -> Result<FunctionId, Error> {
    for _ in 0..FILLERS_MAX {
        let id = one.load_function(object, entry)?;
        if id.0 >= least {
            return Ok(id);
        }
        one.unload_function(id)?;
    }
    Err(other_number(least, 0))
}

/// The same for a function that has its id on another association.
fn load_as(one: &mut Controller, wanted: u32, object: (&[u8], u32)) -> Result<FunctionId, Error> {
    let id = load_from(one, wanted, object)?;
    if id.0 != wanted {
        one.unload_function(id)?;
        return Err(other_number(wanted, id.0));
    }
    Ok(id)
}
