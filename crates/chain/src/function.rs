//! Installed storage functions and their maps.

use crate::trace::Trace;
use bpfof_function::memory::Charge;
use bpfof_function::{Map, NativeFunction};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
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
    /// The charge for its memory, if memory is accounted.
    pub memory: Option<Charge>,
    /// Its trace lines.
    pub trace: Trace,
    /// The targets of its tail calls, if these are not the functions of its tables.
    pub peers: Option<Peers>,
    /// Its maps, if only this process runs the function. At a target each association has its own maps, in its
    /// [`Tables`](crate::Tables).
    pub maps: FunctionMaps,
}

/// Functions that find one another in tail calls by a numbering of their own. A host numbers them as the target does,
/// so that a chain behaves the same wherever it runs; the host's own tables use other ids.
#[derive(Clone, Debug, Default)]
pub struct Peers(Arc<Mutex<BTreeMap<u32, Weak<Function>>>>);

impl Peers {
    /// Gives a function its number, until the last other reference to the function is dropped.
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
    /// The charge for its memory, if memory is accounted.
    pub memory: Option<Charge>,
    /// Counts its bytes with those of other maps as long as it lives, if they have a limit of their own.
    pub counted: Option<Counted>,
}

/// Bytes that are part of a sum as long as this lives, or until they are [released](Counted::release).
#[derive(Debug)]
pub struct Counted {
    bytes: AtomicU64,
    sum: Arc<AtomicU64>,
}

impl Counted {
    /// Adds `bytes` to `sum`.
    pub fn new(bytes: u64, sum: &Arc<AtomicU64>) -> Counted {
        sum.fetch_add(bytes, Ordering::Relaxed);
        Counted { bytes: AtomicU64::new(bytes), sum: Arc::clone(sum) }
    }

    /// Takes the bytes out of the sum: connections may keep the map for a moment after it has left the tables.
    pub fn release(&self) {
        self.sum.fetch_sub(self.bytes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.release();
    }
}

/// The maps of one function in one association, in the order of the function's handles.
pub type FunctionMaps = Arc<[Arc<FunctionMap>]>;
