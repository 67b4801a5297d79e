//! A storage function on both sides: at the target, and here for the other executors.

use crate::{Error, FunctionId};
use bpfof_chain::{Function, Peers, Trace};
use bpfof_function::{NativeFunction, Object};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

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
    /// Translates the entry point `entry_index` of `object` for this machine.
    pub(crate) fn local(object: &[u8], entry_index: u32, peers: Peers) -> Result<Self, Error> {
        let refused = |error: &dyn std::error::Error| Error::FunctionRejected(error.to_string());
        let object = Object::parse(object).map_err(|error| refused(&error))?;
        let entry = object.into_entry(entry_index as usize).map_err(|error| refused(&error))?;
        let native = NativeFunction::compile(&entry.program).map_err(|error| refused(&error))?;
        let instructions = u32::try_from(entry.program.instructions().len()).unwrap_or(u32::MAX);
        // Its id on this machine; no other function of the process has it, and no target uses such.
        static NEXT_ID: AtomicU32 = AtomicU32::new(FIRST_LOCAL_ID);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let local = Function {
            id,
            name: entry.name,
            instructions,
            native,
            trace: Trace::default(),
            peers: Some(peers),
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

    /// Its name: the section's after `bpfof/`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.local.name
    }
}
