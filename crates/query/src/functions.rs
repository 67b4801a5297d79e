//! The stages as functions of some files.

use crate::stages::Stage;
use bpfof_host::Error;
use bpfof_host::files::{FileMaps, StorageFunction};
use std::sync::{Mutex, PoisonError};

/// The stages where the files of some [`FileMaps`] are: at their target, or on this machine. Each is loaded
/// when the first plan needs it, and stays as long as this does.
#[derive(Debug)]
pub struct Stages<'a> {
    maps: &'a FileMaps,
    /// Loaded ones. Chains name them by their numbers.
    functions: Mutex<Vec<(Stage, StorageFunction)>>,
}

impl<'a> Stages<'a> {
    /// Loads nothing yet.
    #[must_use]
    pub const fn new(maps: &'a FileMaps) -> Self {
        Self { maps, functions: Mutex::new(Vec::new()) }
    }

    /// Where the files are.
    #[must_use]
    pub const fn maps(&self) -> &'a FileMaps {
        self.maps
    }

    /// A stage, loaded.
    pub(crate) fn function(&self, stage: Stage) -> Result<StorageFunction, Error> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, function)) = functions.iter().find(|(known, _)| *known == stage) {
            return Ok(function.clone());
        }
        let function = self.maps.load_function(stage.object, 0)?;
        functions.push((stage, function.clone()));
        Ok(function)
    }
}
