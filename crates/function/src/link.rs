//! Links an entry point: finds its own function, the functions that it calls and the static data that it uses, through
//! calls and relocations, and assigns their places.

use crate::abi::{MAPS, MAX_INSTRUCTIONS, MAX_OBJECT_BYTES, STATICS, STATICS_BYTES};
use crate::elf::{Elf, Section};
use crate::functions::FunctionTable;
use crate::map::{Declarations, MapDefinition};
use crate::source::{DebugInfo, SourceMap, SourceMapBuilder};
use crate::statics::Statics;
use object::elf::{self, R_BPF_64_32, R_BPF_64_64, SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE};
use object::{
    Object as _, ObjectSection as _, ObjectSymbol as _, RelocationFlags, RelocationTarget,
    SectionFlags, SectionIndex,
};
use std::collections::HashMap;
use std::mem::take;
use std::ops::Range;
use std::rc::Rc;

/// A pointer in static data (LLVM: BPF relocations).
const R_BPF_64_ABS64: elf::RelocationType = elf::RelocationType(2);

/// The first two bytes of a call of a function of the object (RFC 9669 §4.3.1): opcode, then source
/// register 1 above destination register 0.
const LOCAL_CALL: [u8; 2] = [0x85, 0x10];
/// The opcode of a 64-bit constant, which takes two slots.
const LOAD_CONSTANT: u8 = 0x18;

/// Maximum sections that one entry point may need. Clang makes a handful; the work of linking is bounded by this times
/// the size of the object.
pub(crate) const MAX_SECTIONS: usize = 64;
/// Maximum relocations of the sections that one entry point needs. Each takes 16 bytes of the object.
const MAX_RELOCATIONS: usize = MAX_OBJECT_BYTES / 16;

/// Code and data of one entry point.
pub(crate) struct Linked {
    pub(crate) code: Vec<u8>,
    pub(crate) sources: SourceMap,
    pub(crate) statics: Statics,
    /// The maps it uses, in the order of their handles.
    pub(crate) maps: Vec<MapDefinition>,
}

/// The reason why an entry point cannot be linked.
pub(crate) enum LinkError {
    /// A relocation at this offset of the section.
    Relocation { section: String, offset: u64, source: String, problem: &'static str },
    /// The entry point refers to more than [`MAX_SECTIONS`].
    TooManySections,
    /// The sections have more than [`MAX_RELOCATIONS`], or one section has more than fit into it.
    TooManyRelocations,
    /// The code is longer than a program may be.
    TooLong,
    /// All static data together has this many bytes, including alignment.
    StaticsTooLarge(u64),
    /// The object is damaged.
    Elf(object::Error),
}

/// An error before its place is known: at the current place, or not at a single place.
enum Failure {
    Here(&'static str),
    Whole(LinkError),
}

impl From<LinkError> for Failure {
    fn from(error: LinkError) -> Failure {
        Failure::Whole(error)
    }
}

impl From<object::Error> for LinkError {
    fn from(error: object::Error) -> LinkError {
        LinkError::Elf(error)
    }
}

/// The parts that all entry points of an object share.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a, 'e> {
    pub(crate) elf: &'a Elf<'e>,
    pub(crate) debug: &'a DebugInfo<'e>,
    pub(crate) declarations: &'a Declarations,
    pub(crate) functions: &'a FunctionTable,
}

/// Code and data that an entry point needs, in the order in which they are found.
struct Linker<'a, 'e> {
    parts: Parts<'a, 'e>,
    /// Sections that functions have been taken from.
    sections: HashMap<SectionIndex, Rc<CodeSection<'e>>>,
    relocations: usize,
    code: Vec<u8>,
    functions: Vec<Function>,
    /// By section and first slot of a function: its first instruction in the program.
    bases: HashMap<(SectionIndex, usize), usize>,
    calls: Vec<Call>,
    data: Vec<Data>,
    sources: SourceMapBuilder<'a, 'e>,
    maps: Vec<MapDefinition>,
}

/// A code section, whose functions may be needed.
struct CodeSection<'e> {
    code: &'e [u8],
    /// Ascending by slot.
    relocations: Vec<CodeRelocation>,
}

struct CodeRelocation {
    slot: usize,
    flags: RelocationFlags,
    target: RelocationTarget,
}

/// A function of the program.
#[derive(Clone)]
struct Function {
    section: SectionIndex,
    /// Its slots in its section.
    slots: Range<usize>,
    /// Its first instruction in the program.
    base: usize,
}

/// A call of a function of the program.
struct Call {
    /// The instruction.
    pc: usize,
    /// The callee's section and slot there.
    callee: (SectionIndex, usize),
}

struct Data {
    section: SectionIndex,
    bytes: Vec<u8>,
    align: u64,
    is_constant: bool,
    /// Guest address.
    address: u64,
}

/// Links the function at `slot` of the entry section and everything that it refers to, directly or not.
pub(crate) fn link(
    parts: Parts<'_, '_>,
    entry: SectionIndex,
    slot: usize,
) -> Result<Linked, LinkError> {
    let mut linker = Linker {
        parts,
        sections: HashMap::new(),
        relocations: 0,
        code: Vec::new(),
        functions: Vec::new(),
        bases: HashMap::new(),
        calls: Vec::new(),
        data: Vec::new(),
        sources: SourceMapBuilder::new(parts.debug),
        maps: Vec::new(),
    };
    linker.collect(entry, slot)?;
    let (image_bytes, constant_bytes) = linker.lay_out_data();
    if image_bytes > STATICS_BYTES {
        return Err(LinkError::StaticsTooLarge(image_bytes as u64));
    }
    linker.relocate()?;
    let mut image = vec![0; image_bytes];
    for data in &linker.data {
        let at = (data.address - STATICS) as usize;
        image[at..at + data.bytes.len()].copy_from_slice(&data.bytes);
    }
    let statics = Statics::new(image, constant_bytes);
    let sources = linker.sources.finish();
    Ok(Linked { code: linker.code, sources, statics, maps: linker.maps })
}

impl<'a, 'e> Linker<'a, 'e> {
    /// Takes the entry and then, one by one, everything that the functions and data refer to.
    fn collect(&mut self, entry: SectionIndex, slot: usize) -> Result<(), LinkError> {
        self.take_function(entry, slot)?;
        let (mut functions, mut data) = (0, 0);
        loop {
            if functions < self.functions.len() {
                self.follow_function(functions)?;
                functions += 1;
            } else if data < self.data.len() {
                self.follow_data(data)?;
                data += 1;
            } else {
                return Ok(());
            }
        }
    }

    /// A section's code and relocations.
    fn code_section(&mut self, index: SectionIndex) -> Result<Rc<CodeSection<'e>>, LinkError> {
        if let Some(known) = self.sections.get(&index) {
            return Ok(Rc::clone(known));
        }
        self.count_section()?;
        let section = self.parts.elf.section_by_index(index)?;
        let code = if is_code(&section) { section.data()? } else { &[] };
        let slots = code.len() / 8;
        let mut relocations = Vec::new();
        for (offset, relocation) in section.relocations() {
            // At most one for each instruction. A section may have several tables of relocations.
            self.relocations += 1;
            if relocations.len() >= slots || self.relocations > MAX_RELOCATIONS {
                return Err(LinkError::TooManyRelocations);
            }
            let (flags, target) = (relocation.flags(), relocation.target());
            let slot = usize::try_from(offset / 8).ok();
            let slot = slot.filter(|&slot| offset.is_multiple_of(8) && slot < slots);
            let Some(slot) = slot else {
                return Err(self.failed(index, offset, "relocation outside the section"));
            };
            relocations.push(CodeRelocation { slot, flags, target });
        }
        relocations.sort_by_key(|relocation| relocation.slot);
        let section = Rc::new(CodeSection { code, relocations });
        self.sections.insert(index, Rc::clone(&section));
        Ok(section)
    }

    fn count_section(&self) -> Result<(), LinkError> {
        let is_room = self.sections.len() + self.data.len() < MAX_SECTIONS;
        if is_room { Ok(()) } else { Err(LinkError::TooManySections) }
    }

    /// Takes the function that contains this slot of a section.
    fn take_function(&mut self, index: SectionIndex, slot: usize) -> Result<(), LinkError> {
        let section = self.code_section(index)?;
        let slots = self.parts.functions.around(index, slot, section.code.len() / 8);
        if self.bases.contains_key(&(index, slots.start)) {
            return Ok(());
        }
        let base = self.code.len() / 8;
        if base + slots.len() > MAX_INSTRUCTIONS {
            return Err(LinkError::TooLong);
        }
        self.bases.insert((index, slots.start), base);
        self.code.extend_from_slice(&section.code[8 * slots.start..8 * slots.end]);
        let name = self.name_of(index);
        self.sources.add(base, index.0, name, slots.clone());
        self.functions.push(Function { section: index, slots, base });
        Ok(())
    }

    /// Takes the functions that a function calls and the data that it refers to.
    fn follow_function(&mut self, index: usize) -> Result<(), LinkError> {
        let Function { section: index, slots, base } = self.functions[index].clone();
        let section = self.code_section(index)?;
        for relocation in section.relocations_of(&slots) {
            let target = self.symbol(relocation.target);
            let followed = match relocation.flags {
                RelocationFlags::Elf { r_type: R_BPF_64_32 } => {
                    self.follow_call(base + relocation.slot - slots.start, target)
                }
                RelocationFlags::Elf { r_type: R_BPF_64_64 } => self.take_data(target),
                _ => Err(Failure::Here("relocation of an unknown type")),
            };
            let offset = 8 * relocation.slot as u64;
            followed.map_err(|failure| self.placed(failure, index, offset))?;
        }
        // Calls within a section of functions that other files cannot refer to have no relocation: the assembler
        // resolves them.
        for slot in slots.clone() {
            let pc = base + slot - slots.start;
            let is_call = self.code[8 * pc..].starts_with(&LOCAL_CALL);
            if is_call && section.relocations_of(&(slot..slot + 1)).is_empty() {
                let offset = 8 * slot as u64;
                let followed = self.follow_call(pc, Some((index, offset)));
                followed.map_err(|failure| self.placed(failure, index, offset))?;
            }
        }
        Ok(())
    }

    /// Takes the callee of a call: the function at slot 1 of `target` if the immediate is 0.
    fn follow_call(
        &mut self,
        pc: usize,
        target: Option<(SectionIndex, u64)>,
    ) -> Result<(), Failure> {
        let target = target.filter(|(section, _)| {
            self.parts.elf.section_by_index(*section).is_ok_and(|section| is_code(&section))
        });
        let (section, address) =
            target.ok_or(Failure::Here("calls a function that the object does not define"))?;
        let slots = self.code_section(section)?.code.len() / 8;
        let slot = i64::try_from(address / 8)
            .ok()
            .and_then(|slot| slot.checked_add(i64::from(immediate(&self.code[8 * pc..])) + 1))
            .and_then(|slot| usize::try_from(slot).ok())
            .filter(|slot| *slot < slots)
            .ok_or(Failure::Here("call target out of range"))?;
        self.take_function(section, slot)?;
        self.calls.push(Call { pc, callee: (section, slot) });
        Ok(())
    }

    /// Takes a section of static data. Other sections are ignored, whatever size they claim.
    fn take_data(&mut self, target: Option<(SectionIndex, u64)>) -> Result<(), Failure> {
        let Some((index, _)) = target else { return Ok(()) };
        let section = self.parts.elf.section_by_index(index).map_err(LinkError::Elf)?;
        let is_known = self.data.iter().any(|data| data.section == index);
        if is_known || is_code(&section) || !is_data(&section) {
            return Ok(());
        }
        self.count_section()?;
        let others: u64 = self.data.iter().map(|data| data.bytes.len() as u64).sum();
        let total = others.saturating_add(section.size());
        if total > STATICS_BYTES as u64 {
            return Err(LinkError::StaticsTooLarge(total).into());
        }
        // A section that takes no room in the file (.bss) is zero.
        let mut bytes = section.data().map_err(LinkError::Elf)?.to_vec();
        bytes.resize(section.size() as usize, 0);
        let name = section.name().unwrap_or_default();
        let is_constant = !flags(&section).contains(SHF_WRITE) || name.starts_with(".data.rel.ro");
        let align = section.align().clamp(1, 64).next_power_of_two();
        self.data.push(Data { section: index, bytes, align, is_constant, address: 0 });
        Ok(())
    }

    /// Takes the data that pointers in static data refer to.
    fn follow_data(&mut self, index: usize) -> Result<(), LinkError> {
        let Data { section: index, ref bytes, .. } = self.data[index];
        let pointers = bytes.len() / 8;
        let section = self.parts.elf.section_by_index(index)?;
        for (number, (offset, relocation)) in (0..).zip(section.relocations()) {
            self.relocations += 1;
            if number >= pointers || self.relocations > MAX_RELOCATIONS {
                return Err(LinkError::TooManyRelocations);
            }
            let followed = match relocation.flags() {
                RelocationFlags::Elf { r_type: R_BPF_64_ABS64 } => {
                    self.take_data(self.symbol(relocation.target()))
                }
                _ => Err(Failure::Here("static data with a relocation of an unknown type")),
            };
            followed.map_err(|failure| self.placed(failure, index, offset))?;
        }
        Ok(())
    }

    /// Assigns addresses: constants first, then variables. Returns the size of all data and of the constants.
    fn lay_out_data(&mut self) -> (usize, usize) {
        let mut end = STATICS;
        let mut constants_end = STATICS;
        for constants in [true, false] {
            for data in self.data.iter_mut().filter(|data| data.is_constant == constants) {
                data.address = end.next_multiple_of(data.align);
                end = data.address + data.bytes.len() as u64;
            }
            if constants {
                constants_end = end;
            }
        }
        ((end - STATICS) as usize, (constants_end - STATICS) as usize)
    }

    fn symbol(&self, target: RelocationTarget) -> Option<(SectionIndex, u64)> {
        let RelocationTarget::Symbol(index) = target else { return None };
        let symbol = self.parts.elf.symbol_by_index(index).ok()?;
        Some((symbol.section_index()?, symbol.address()))
    }

    fn relocate(&mut self) -> Result<(), LinkError> {
        for Call { pc, callee: (section, slot) } in take(&mut self.calls) {
            let slots = self.sections[&section].code.len() / 8;
            let first = self.parts.functions.around(section, slot, slots).start;
            let target = self.bases[&(section, first)] + slot - first;
            let relative = target as i32 - pc as i32 - 1;
            self.code[8 * pc + 4..8 * pc + 8].copy_from_slice(&relative.to_le_bytes());
        }
        for Function { section: index, slots, base } in self.functions.clone() {
            let section = Rc::clone(&self.sections[&index]);
            for relocation in section.relocations_of(&slots) {
                if relocation.flags == (RelocationFlags::Elf { r_type: R_BPF_64_64 }) {
                    let pc = base + relocation.slot - slots.start;
                    let done = self.relocate_address(pc, self.symbol(relocation.target));
                    let offset = 8 * relocation.slot as u64;
                    done.map_err(|problem| self.failed(index, offset, problem))?;
                }
            }
        }
        for data in 0..self.data.len() {
            let index = self.data[data].section;
            let section = self.parts.elf.section_by_index(index)?;
            for (offset, relocation) in section.relocations() {
                let target = self.symbol(relocation.target());
                let done = self.relocate_pointer(data, offset, target);
                done.map_err(|problem| self.failed(index, offset, problem))?;
            }
        }
        Ok(())
    }

    fn name_of(&self, section: SectionIndex) -> &'e str {
        let section = self.parts.elf.section_by_index(section).ok();
        let name = section.and_then(|section| section.name_bytes().ok());
        name.and_then(|name| str::from_utf8(name).ok()).unwrap_or("?")
    }

    /// The error for a problem at an offset of a section.
    fn failed(&self, section: SectionIndex, offset: u64, problem: &'static str) -> LinkError {
        let slot = usize::try_from(offset / 8).unwrap_or(usize::MAX);
        let function = self
            .functions
            .iter()
            .find(|function| function.section == section && function.slots.contains(&slot));
        let line = function.and_then(|function| {
            self.sources.find((function.base + slot - function.slots.start) as u32)
        });
        let source = line.map(|line| line.quoted()).unwrap_or_default();
        let section = self.name_of(section).to_owned();
        LinkError::Relocation { section, offset, source, problem }
    }

    /// The error for a failure: at this place, unless it concerns the whole.
    fn placed(&self, failure: Failure, section: SectionIndex, offset: u64) -> LinkError {
        match failure {
            Failure::Here(problem) => self.failed(section, offset, problem),
            Failure::Whole(error) => error,
        }
    }

    /// The guest address of an offset in a data section, or the handle of a map. An address may lie outside of the
    /// section: C allows pointers to the end, and accesses are checked.
    fn address(
        &mut self,
        target: Option<(SectionIndex, u64)>,
        addend: u64,
    ) -> Result<u64, &'static str> {
        let (section, address) = target.ok_or("refers to data that the object does not define")?;
        if self.parts.elf.section_by_index(section).is_ok_and(|section| is_code(&section)) {
            return Err("takes the address of a function; functions can only be called");
        }
        if self.parts.declarations.is_section(section) {
            return self.handle(address.wrapping_add(addend));
        }
        let data =
            self.data.iter().find(|data| data.section == section).ok_or(
                "refers to a section that is not data (maps are declared in SEC(\".maps\"))",
            )?;
        Ok(data.address.wrapping_add(address).wrapping_add(addend))
    }

    /// The handle of the map that is declared at this place. Handles are assigned as maps are found.
    fn handle(&mut self, place: u64) -> Result<u64, &'static str> {
        let definition = self.parts.declarations.at(place);
        let definition = definition.ok_or("refers to the inside of a map; only &map is allowed")?;
        let known = self.maps.iter().position(|map| map.name() == definition.name());
        let index = known.unwrap_or(self.maps.len());
        if known.is_none() {
            self.maps.push(definition.clone());
        }
        Ok(MAPS + index as u64)
    }

    fn relocate_address(
        &mut self,
        pc: usize,
        target: Option<(SectionIndex, u64)>,
    ) -> Result<(), &'static str> {
        let addend = i64::from(immediate(&self.code[8 * pc..])) as u64;
        let address = self.address(target, addend)?;
        let [_, _, _, _, low @ .., _, _, _, _, h0, h1, h2, h3] = self.code[8 * pc..]
            .first_chunk_mut::<16>()
            .filter(|slots| slots[0] == LOAD_CONSTANT)
            .ok_or("relocation of an address in an instruction that does not load an address")?;
        low.copy_from_slice(&(address as u32).to_le_bytes());
        [*h0, *h1, *h2, *h3] = ((address >> 32) as u32).to_le_bytes();
        Ok(())
    }

    fn relocate_pointer(
        &mut self,
        index: usize,
        offset: u64,
        target: Option<(SectionIndex, u64)>,
    ) -> Result<(), &'static str> {
        const OUTSIDE: &str = "relocation outside the section";
        let at = usize::try_from(offset).map_err(|_| OUTSIDE)?;
        let stored = self.data[index].bytes.get(at..).and_then(|rest| rest.first_chunk::<8>());
        let addend = u64::from_le_bytes(*stored.ok_or(OUTSIDE)?);
        let address = self.address(target, addend)?;
        let bytes = &mut self.data[index].bytes;
        let stored = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<8>());
        *stored.ok_or(OUTSIDE)? = address.to_le_bytes();
        Ok(())
    }
}

impl CodeSection<'_> {
    /// The relocations of a function's slots.
    fn relocations_of(&self, slots: &Range<usize>) -> &[CodeRelocation] {
        let below = |end: usize| self.relocations.partition_point(|found| found.slot < end);
        &self.relocations[below(slots.start)..below(slots.end)]
    }
}

/// The immediate of the first instruction of `slots`.
fn immediate(slots: &[u8]) -> i32 {
    match slots {
        [_, _, _, _, i0, i1, i2, i3, ..] => i32::from_le_bytes([*i0, *i1, *i2, *i3]),
        _ => 0,
    }
}

fn flags(section: &Section<'_, '_>) -> elf::SectionFlags {
    match section.flags() {
        SectionFlags::Elf { sh_flags, .. } => sh_flags,
        _ => elf::SectionFlags(0),
    }
}

fn is_code(section: &Section<'_, '_>) -> bool {
    flags(section).contains(SHF_EXECINSTR)
}

fn is_data(section: &Section<'_, '_>) -> bool {
    // Maps are declared as variables, but are not data.
    let is_map = section.name().is_ok_and(|name| name.trim_start_matches('.').starts_with("maps"));
    flags(section).contains(SHF_ALLOC) && !is_map
}
