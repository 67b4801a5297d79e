//! Functions that the configuration names: each subsystem keeps them from its start on.

use crate::error::ServerError;
use crate::hosts::Hosts;
use crate::loader;
use crate::refusal::Refusal;
use crate::subsystem::Subsystem;
use bpfof_chain::Trace;
use bpfof_function::Object;
use std::path::{Path, PathBuf};

/// Objects of the configuration, read and checked.
#[derive(Debug, Default)]
pub(crate) struct OwnFunctions(Vec<OwnObject>);

#[derive(Debug)]
struct OwnObject {
    path: PathBuf,
    bytes: Vec<u8>,
    entries: usize,
}

impl OwnFunctions {
    /// Reads the objects that these patterns match (`*`, `?`, `[…]`).
    ///
    /// # Errors
    /// A pattern that matches nothing; a file that cannot be read, or is no object.
    pub(crate) fn read(paths: &[PathBuf]) -> Result<OwnFunctions, ServerError> {
        let mut objects = Vec::new();
        for pattern in paths {
            let failed = |why: String| ServerError::Function { path: pattern.clone(), why };
            let found = glob::glob(&pattern.to_string_lossy());
            let found = found.map_err(|error| failed(error.to_string()))?;
            let before = objects.len();
            for path in found {
                objects.push(read(path.map_err(|error| failed(error.to_string()))?)?);
            }
            if objects.len() == before {
                return Err(failed("there is no such file".to_owned()));
            }
        }
        Ok(OwnFunctions(objects))
    }

    /// Translates all of them for a subsystem, and gives them to it.
    ///
    /// # Errors
    /// The function that is refused.
    pub(crate) fn install(&self, subsystem: &Subsystem, hosts: &Hosts) -> Result<(), ServerError> {
        for OwnObject { path, bytes, entries } in &self.0 {
            for entry in 0..*entries {
                install((path, bytes, entry), subsystem, hosts)?;
            }
        }
        Ok(())
    }
}

fn read(path: PathBuf) -> Result<OwnObject, ServerError> {
    let failed = |why: String| ServerError::Function { path: path.clone(), why };
    let bytes = std::fs::read(&path).map_err(|error| failed(error.to_string()))?;
    let object = Object::parse(&bytes).map_err(|error| failed(error.to_string()))?;
    let entries = object.entries().len();
    Ok(OwnObject { path, bytes, entries })
}

fn install(
    (path, object, entry): (&Path, &[u8], usize),
    subsystem: &Subsystem,
    hosts: &Hosts,
) -> Result<(), ServerError> {
    let failed = |why: String| ServerError::Function { path: path.to_owned(), why };
    let mut function = loader::compile(object, entry, 0).map_err(failed)?;
    let name = function.name.clone();
    let bytes = function.native.memory_bytes() + Trace::MEMORY_BYTES;
    function.memory = Some(hosts.own.charge(bytes).map_err(|full| failed(full.to_string()))?);
    let id = subsystem.keep_own_function(function).map_err(|full: Refusal| failed(full.cause()))?;
    log::info!("{}: keeps function {id} {name:?} of {}", subsystem.nqn, path.display());
    Ok(())
}
