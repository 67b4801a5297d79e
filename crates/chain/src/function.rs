//! Installed storage functions and their maps.

use crate::trace::Trace;
use bpfof_function::memory::Charge;
use bpfof_function::{Map, NativeFunction};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// An installed storage function.
#[derive(Debug)]
pub struct Function {
    /// The id the host uses, never 0.
    pub id: u32,
    /// Its name in the object.
    pub name: String,
    /// Number of eBPF instructions (8-byte slots).
    pub instructions: u32,
    /// Its machine code.
    pub native: NativeFunction,
    /// Whose memory it takes, where somebody counts that.
    pub memory: Option<Charge>,
    /// What it has said.
    pub trace: Trace,
    /// Whom its tail calls reach, if not the functions of its tables.
    pub peers: Option<Peers>,
    /// Its maps, of a function that only this process runs. At a target each association has its
    /// own, in its [`Tables`](crate::Tables).
    pub maps: FunctionMaps,
}

/// Functions that find each other by numbers of their own. A host gives them those of the target, so
/// that chains come to the same wherever they run; in its tables they have others.
#[derive(Clone, Debug, Default)]
pub struct Peers(Arc<Mutex<BTreeMap<u32, Weak<Function>>>>);

impl Peers {
    /// Gives a function its number. It keeps that as long as somebody else holds it.
    pub fn set(&self, number: u32, function: &Arc<Function>) {
        let mut functions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        functions.retain(|_, function| function.strong_count() > 0);
        functions.insert(number, Arc::downgrade(function));
    }

    /// The function with this number.
    pub(crate) fn get(&self, number: u32) -> Option<Arc<Function>> {
        let functions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        functions.get(&number).and_then(Weak::upgrade)
    }
}

/// A map of storage functions, as an association has it.
#[derive(Debug)]
pub struct FunctionMap {
    /// The id the host uses, never 0.
    pub id: u32,
    /// The map.
    pub map: Map,
    /// Whose memory it takes, where somebody counts that.
    pub memory: Option<Charge>,
}

/// The maps of one function in one association, in the order of the function's handles.
pub type FunctionMaps = Arc<[Arc<FunctionMap>]>;
