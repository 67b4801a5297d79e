//! The functions in the tables of this machine's engine.

use crate::files::function::StorageFunction;
use bpfof_chain::{Function, Tables};
use std::sync::Arc;

/// Keeps functions in tables for as long as a handle refers to them.
#[derive(Debug, Default)]
pub(super) struct Functions {
    /// Number of dropped functions when the tables were last scanned.
    dropped: u64,
}

impl Functions {
    /// The engine's number of a function; adds it to `tables` if necessary.
    pub(super) fn number(&mut self, tables: &mut Tables, function: &StorageFunction) -> u32 {
        let dropped = StorageFunction::dropped();
        if dropped != self.dropped {
            self.dropped = dropped;
            let is_unused = |known: &&Arc<Function>| Arc::strong_count(known) == 1;
            let unused = tables.functions().iter().filter(is_unused).map(|known| known.id);
            for id in unused.collect::<Vec<u32>>() {
                *tables = tables.without_function(id);
            }
        }
        let local = function.local_function();
        if tables.function_index(local.id).is_none() {
            *tables = tables.with_function(Arc::clone(local));
        }
        local.id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpfof_chain::{FunctionMaps, Peers};
    use bpfof_function::Program;

    /// A function that does nothing.
    fn function() -> StorageFunction {
        // r0 = 0; exit
        let code: [[u8; 8]; 2] = [[0xB7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
        let program = Program::parse(code.as_flattened()).expect("valid");
        let maps = FunctionMaps::default();
        StorageFunction::of_program("nothing".to_owned(), &program, Peers::default(), maps)
            .expect("it is compiled")
    }

    #[test]
    fn a_dropped_function_is_removed_with_the_next_chain() {
        let (mut tables, mut functions) = (Tables::new(Vec::new()), Functions::default());
        let (one, other) = (function(), function());
        for known in [&one, &other, &one] {
            functions.number(&mut tables, known);
        }
        assert_eq!(tables.functions().len(), 2);
        let left = Arc::downgrade(one.local_function());
        let clone = one.clone();
        drop(one);
        functions.number(&mut tables, &other);
        assert!(left.upgrade().is_some(), "a handle can still call it");
        drop(clone);
        functions.number(&mut tables, &other);
        assert!(left.upgrade().is_none());
    }
}
