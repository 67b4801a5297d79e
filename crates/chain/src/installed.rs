//! What a running function reaches beside its arena.

use crate::function::{Function, FunctionMap};
use crate::tables::Tables;
use crate::trace::{LINES_PER_CALL, Trace};
use bpfof_function::{Environment, Map};
use std::sync::Arc;

/// Functions that one call may go on in, one after the other (as many as in Linux). What they do
/// the budget bounds; this bounds a call that only goes round and places static data.
pub const MAX_TAIL_CALLS: u32 = 33;

/// What a call reaches beside its arena: the functions of its association, and its maps.
pub(crate) struct Installed<'a> {
    pub(crate) tables: &'a Tables,
    /// The function that is running.
    pub(crate) function: &'a Function,
    /// Its maps.
    pub(crate) maps: &'a [Arc<FunctionMap>],
    /// The one that goes on in its place.
    pub(crate) next: Option<Arc<Function>>,
    /// Lines that may still be kept of this call.
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
