//! The stages as functions at the places of some files.

use crate::plan::OwnStage;
use crate::stages::{STAGES, Stage};
use bpfof_host::files::{FileMaps, StorageFunction};
use bpfof_host::{Controller, Error};
use sha2::{Digest, Sha256};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

impl Stage {
    /// Its name at a target that keeps it: the stage's name and the beginning of the object's hash, so that versions of
    /// a stage have different names.
    fn installed_name(&self) -> String {
        let hash = Sha256::digest(self.object);
        let hash: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("{}-{hash}", self.name)
    }
}

/// Installs all stages that a target does not have yet, for all hosts of the subsystem; returns how many. Several hosts
/// may do so at once: the first installation stays.
///
/// # Errors
/// The target's error.
pub fn install_stages(controller: &mut Controller) -> Result<usize, Error> {
    let mut installed = 0;
    for stage in STAGES {
        if controller.installed_program(stage.object, 0)?.is_some() {
            continue;
        }
        let id = controller.install_function_as(&stage.installed_name(), stage.object, 0)?;
        // Lookups find the first installation, so a later one can be unloaded.
        match controller.installed_program(stage.object, 0)? {
            Some(first) if first != id => controller.unload_function(id)?,
            _ => installed += 1,
        }
    }
    Ok(installed)
}

/// The stages at the place of the files of some [`FileMaps`]: at their target, or on this machine. A stage that the
/// target keeps ([`install_stages`]) is used; others are loaded when the first plan needs them, and stay loaded as long
/// as this lives.
#[derive(Debug)]
pub struct Stages<'a> {
    maps: &'a FileMaps,
    loaded: LoadedStages,
    here: OnceLock<Box<Here>>,
    /// Names of stages, and the stages that replace them.
    replaced: Vec<(&'static str, Stage)>,
}

/// The stages without a target.
#[derive(Debug)]
struct Here {
    maps: FileMaps,
    loaded: LoadedStages,
}

/// The user's own stage, by its object.
#[derive(Debug)]
struct OwnFunction {
    object: Vec<u8>,
    function: StorageFunction,
}

/// Stages that are loaded at the place of some files. Chains refer to them by their numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadedStages {
    functions: Arc<Mutex<Vec<(Stage, StorageFunction)>>>,
    /// The user's own stages.
    own: Arc<Mutex<Vec<OwnFunction>>>,
    /// Whether their target was lost during a query.
    is_given_up: Arc<AtomicBool>,
}

impl LoadedStages {
    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }
}

impl<'a> Stages<'a> {
    /// Does not load anything yet.
    #[must_use]
    pub fn new(maps: &'a FileMaps) -> Self {
        Self::kept(maps, &LoadedStages::default())
    }

    /// Uses stages that are already loaded, and keeps further ones there.
    pub(crate) fn kept(maps: &'a FileMaps, loaded: &LoadedStages) -> Self {
        Self { maps, loaded: loaded.clone(), here: OnceLock::new(), replaced: Vec::new() }
    }

    /// Replaces the stage of this name by another one, which must have the same argument and answers
    /// (`functions/include/bpfof/batch.h`).
    #[must_use]
    pub fn replacing(mut self, name: &'static str, by: Stage) -> Self {
        self.replaced.push((name, by));
        self
    }

    /// The same stages for another user of them.
    pub(crate) fn share(&self) -> Self {
        Self { replaced: self.replaced.clone(), ..Self::kept(self.maps, &self.loaded) }
    }

    /// The stages on this machine. Records that the target is lost.
    pub(crate) fn here(&self) -> Stages<'_> {
        self.loaded.is_given_up.store(true, Ordering::Relaxed);
        let none = || Box::new(Here { maps: FileMaps::local(), loaded: LoadedStages::default() });
        let here = self.here.get_or_init(none);
        Stages { replaced: self.replaced.clone(), ..Stages::kept(&here.maps, &here.loaded) }
    }

    /// The maps of the files.
    #[must_use]
    pub const fn maps(&self) -> &'a FileMaps {
        self.maps
    }

    /// Loads a stage, if it is not loaded.
    pub(crate) fn function(&self, stage: Stage) -> Result<StorageFunction, Error> {
        let own = self.replaced.iter().find(|(name, _)| *name == stage.name);
        let stage = own.map_or(stage, |(_, own)| *own);
        let mut functions = self.loaded.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, function)) = functions.iter().find(|(known, _)| *known == stage) {
            return Ok(function.clone());
        }
        let installed = self.maps.installed_program(stage.object, 0)?;
        let function = match installed {
            Some(function) => function,
            None => self.maps.load_function(stage.object, 0)?,
        };
        functions.push((stage, function.clone()));
        Ok(function)
    }

    /// Loads the user's own stage, if it is not loaded.
    pub(crate) fn own_function(&self, stage: &OwnStage) -> Result<StorageFunction, Error> {
        let mut own = self.loaded.own.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = own.iter().find(|known| known.object == stage.object) {
            return Ok(known.function.clone());
        }
        let function = self.maps.load_function(&stage.object, 0)?;
        own.push(OwnFunction { object: stage.object.clone(), function: function.clone() });
        Ok(function)
    }
}
