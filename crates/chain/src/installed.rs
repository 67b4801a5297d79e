//! What a running function can access besides its arena.

use crate::function::{Function, FunctionMap};
use crate::tables::Tables;
use crate::trace::{LINES_PER_CALL, Trace};
use bpfof_function::{Environment, Map};
use std::sync::Arc;

/// Maximum tail calls of one call (as in Linux). The budget bounds the work of the functions; this
/// bounds a call that only loops through tail calls and has static data placed each time.
pub const MAX_TAIL_CALLS: u32 = 33;

/// What a call can access besides its arena: the functions of its association, and the function's
/// maps.
pub(crate) struct Installed<'a> {
    pub(crate) tables: &'a Tables,
    /// The function that is running.
    pub(crate) function: &'a Function,
    /// The maps of the running function.
    pub(crate) maps: &'a [Arc<FunctionMap>],
    /// The target of a tail call, which runs next.
    pub(crate) next: Option<Arc<Function>>,
    /// Trace lines of this call that may still be kept.
    pub(crate) lines_left: u32,
    /// Tail calls that this call may still make.
    pub(crate) tail_calls_left: u32,
}

impl<'a> Installed<'a> {
    #[inline]
    pub(crate) fn new(tables: &'a Tables, function: &'a Function) -> Installed<'a> {
        Installed {
            tables,
            function,
            maps: tables.maps_of(function),
            next: None,
            lines_left: LINES_PER_CALL,
            tail_calls_left: MAX_TAIL_CALLS,
        }
    }
}

impl Environment for Installed<'_> {
    fn tail_call(&mut self, function: u32) -> bool {
        let Some(left) = self.tail_calls_left.checked_sub(1) else { return false };
        self.next = self.tables.peer(self.function, function);
        if self.next.is_some() {
            self.tail_calls_left = left;
        }
        self.next.is_some()
    }

    fn trace(&mut self, text: &[u8], value: u64) {
        let here = self.tables.trace_of(self.function.id);
        let traces = [Some(&self.function.trace), here].into_iter().flatten();
        match self.lines_left.checked_sub(1) {
            Some(left) => {
                self.lines_left = left;
                traces.for_each(|trace| trace.add(text, value));
            }
            None => traces.for_each(Trace::count),
        }
    }

    fn map(&self, index: usize) -> Option<&Map> {
        self.maps.get(index).map(|known| &known.map)
    }
}
