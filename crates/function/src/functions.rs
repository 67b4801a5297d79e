//! The functions of an object, as its symbols declare them.

use crate::elf::Elf;
use object::elf::{STB_LOCAL, STT_FUNC};
use object::{Object as _, ObjectSymbol as _, SectionIndex, SymbolIndex};
use std::collections::HashMap;
use std::ops::Range;

/// The functions of all code sections. A section without function symbols is one function.
#[derive(Debug, Default)]
pub(crate) struct FunctionTable {
    /// The functions of each section, ascending by `slot`.
    starts: HashMap<SectionIndex, Vec<Start>>,
}

#[derive(Clone, Copy, Debug)]
struct Start {
    /// Its first slot in its section.
    slot: usize,
    /// Its name is read only when needed: it may be as long as the object.
    symbol: SymbolIndex,
    /// Other files may refer to it: it is not `static`.
    is_global: bool,
}

impl FunctionTable {
    /// Reads the symbols of an object.
    pub(crate) fn read(elf: &Elf<'_>) -> FunctionTable {
        let mut starts = HashMap::<SectionIndex, Vec<Start>>::new();
        for symbol in elf.symbols().filter(|symbol| symbol.elf_symbol().st_type() == STT_FUNC) {
            let Some(section) = symbol.section_index() else { continue };
            let slot = usize::try_from(symbol.address() / 8).unwrap_or(usize::MAX);
            let is_global = symbol.elf_symbol().st_bind() != STB_LOCAL;
            starts.entry(section).or_default().push(Start {
                slot,
                symbol: symbol.index(),
                is_global,
            });
        }
        for starts in starts.values_mut() {
            starts.sort_by_key(|start| start.slot);
        }
        FunctionTable { starts }
    }

    /// The slots of the function that contains `slot`, in a section of `slots` slots.
    pub(crate) fn around(&self, section: SectionIndex, slot: usize, slots: usize) -> Range<usize> {
        let starts = self.starts.get(&section).map(Vec::as_slice).unwrap_or_default();
        let next = starts.partition_point(|start| start.slot <= slot);
        let first = next.checked_sub(1).map_or(0, |index| starts[index].slot);
        let end = starts.get(next).map_or(slots, |start| start.slot);
        first.min(slots)..end.min(slots)
    }

    /// The first slot of a section's entry point: of its global function, or of its first function if it has none.
    ///
    /// # Errors
    /// The names of two global functions.
    pub(crate) fn entry(&self, elf: &Elf<'_>, section: SectionIndex) -> Result<usize, [String; 2]> {
        let starts = self.starts.get(&section).map(Vec::as_slice).unwrap_or_default();
        let mut global = starts.iter().filter(|start| start.is_global);
        let Some(entry) = global.next() else { return Ok(0) };
        match global.find(|start| start.slot != entry.slot) {
            None => Ok(entry.slot),
            Some(other) => Err([entry, other].map(|start| {
                let symbol = elf.symbol_by_index(start.symbol);
                let name = symbol.and_then(|symbol| symbol.name_bytes()).unwrap_or_default();
                String::from_utf8_lossy(name).into_owned()
            })),
        }
    }
}
