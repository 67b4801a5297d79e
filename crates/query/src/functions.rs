//! The stages as functions of some files.

use crate::plan::OwnStage;
use crate::stages::{STAGES, Stage};
use bpfof_host::files::{FileMaps, StorageFunction};
use bpfof_host::{Controller, Error};
use sha2::{Digest, Sha256};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

impl Stage {
    /// What it is called at a target that keeps it: its name, and the beginning of the object's hash, so that
    /// stages of several versions have different names.
    fn installed_name(&self) -> String {
        let hash = Sha256::digest(self.object);
        let hash: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("{}-{hash}", self.name)
    }
}

/// Installs all stages at a target that it does not have yet, for all hosts of the subsystem; how many. Several
/// hosts may do so at once: what was installed first stays.
///
/// # Errors
/// What the target answers.
pub fn install_stages(controller: &mut Controller) -> Result<usize, Error> {
    let mut installed = 0;
    for stage in STAGES {
        if controller.installed_program(stage.object, 0)?.is_some() {
            continue;
        }
        let id = controller.install_function_as(&stage.installed_name(), stage.object, 0)?;
        // Whoever looks finds the first one, so that nobody uses this one if it is another.
        match controller.installed_program(stage.object, 0)? {
            Some(first) if first != id => controller.unload_function(id)?,
            _ => installed += 1,
        }
    }
    Ok(installed)
}

/// The stages where the files of some [`FileMaps`] are: at their target, or on this machine. One that the
/// target keeps ([`install_stages`]) is used as it is; others are loaded when the first plan needs them, and
/// stay as long as this does.
#[derive(Debug)]
pub struct Stages<'a> {
    maps: &'a FileMaps,
    loaded: LoadedStages,
    here: OnceLock<Box<Here>>,
    /// Names of stages, and what is there in their place.
    replaced: Vec<(&'static str, Stage)>,
}

/// The same without a target.
#[derive(Debug)]
struct Here {
    maps: FileMaps,
    loaded: LoadedStages,
}

/// A stage of the user's own, by its object.
#[derive(Debug)]
struct OwnFunction {
    object: Vec<u8>,
    function: StorageFunction,
}

/// Stages that are loaded where some files are. Chains name them by their numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadedStages {
    functions: Arc<Mutex<Vec<(Stage, StorageFunction)>>>,
    /// Those of the user's own, by their objects.
    own: Arc<Mutex<Vec<OwnFunction>>>,
    /// Whether their target was lost in the middle of the work.
    is_given_up: Arc<AtomicBool>,
}

impl LoadedStages {
    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }
}

impl<'a> Stages<'a> {
    /// Loads nothing yet.
    #[must_use]
    pub fn new(maps: &'a FileMaps) -> Self {
        Self::kept(maps, &LoadedStages::default())
    }

    /// Loads only what is not loaded yet, and leaves it there.
    pub(crate) fn kept(maps: &'a FileMaps, loaded: &LoadedStages) -> Self {
        Self { maps, loaded: loaded.clone(), here: OnceLock::new(), replaced: Vec::new() }
    }

    /// With a stage of one's own in the place of the one of this name. It is told and answers the same
    /// (`functions/include/bpfof/batch.h`).
    #[must_use]
    pub fn replacing(mut self, name: &'static str, by: Stage) -> Self {
        self.replaced.push((name, by));
        self
    }

    /// The same stages, for one more user.
    pub(crate) fn share(&self) -> Self {
        Self { replaced: self.replaced.clone(), ..Self::kept(self.maps, &self.loaded) }
    }

    /// Stages on this machine: the target is lost, which is remembered.
    pub(crate) fn here(&self) -> Stages<'_> {
        self.loaded.is_given_up.store(true, Ordering::Relaxed);
        let none = || Box::new(Here { maps: FileMaps::local(), loaded: LoadedStages::default() });
        let here = self.here.get_or_init(none);
        Stages { replaced: self.replaced.clone(), ..Stages::kept(&here.maps, &here.loaded) }
    }

    /// Where the files are.
    #[must_use]
    pub const fn maps(&self) -> &'a FileMaps {
        self.maps
    }

    /// A stage, loaded.
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

    /// A stage of the user's own, loaded.
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
