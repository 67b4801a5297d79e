//! What an entry point needs of its object: its own section, the functions it calls and the static
//! data it uses, each found through relocations and put where it will be.

use crate::abi::{MAPS, MAX_INSTRUCTIONS, STATICS, STATICS_BYTES};
use crate::elf::{Elf, Section};
use crate::map::{Declarations, MapDefinition};
use crate::source::{DebugInfo, SourceMap};
use crate::statics::Statics;
use object::elf::{self, R_BPF_64_32, R_BPF_64_64, SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE};
use object::{
    Object as _, ObjectSection as _, ObjectSymbol as _, RelocationFlags, RelocationTarget,
    SectionFlags, SectionIndex,
};

/// A pointer in static data (LLVM: BPF relocations).
const R_BPF_64_ABS64: elf::RelocationType = elf::RelocationType(2);

/// Sections that one entry point may need. Clang makes a handful; the work of linking is bounded by
/// this times the size of the object.
pub(crate) const MAX_SECTIONS: usize = 64;

/// Code and data of one entry point.
pub(crate) struct Linked {
    pub(crate) code: Vec<u8>,
    pub(crate) sources: SourceMap,
    pub(crate) statics: Statics,
    /// The maps it uses, in the order of their handles.
    pub(crate) maps: Vec<MapDefinition>,
}

/// Why an entry point cannot be put together.
pub(crate) enum LinkError {
    /// At this offset of the section.
    Relocation { section: String, offset: u64, source: String, problem: &'static str },
    /// It refers to more than [`MAX_SECTIONS`].
    TooManySections,
    /// A section has more relocations than it has room for.
    TooManyRelocations,
    /// The code is longer than any program.
    TooLong,
    /// All static data together has this many bytes, with what alignment puts between.
    StaticsTooLarge(u64),
    /// The object is damaged.
    Elf(object::Error),
}

impl From<object::Error> for LinkError {
    fn from(error: object::Error) -> LinkError {
        LinkError::Elf(error)
    }
}

/// Code and data that an entry point needs, in the order in which they were found.
struct Linker<'a, 'e> {
    elf: &'a Elf<'e>,
    declarations: &'a Declarations,
    code: Vec<u8>,
    /// Sections of code, and the slot each begins at.
    functions: Vec<(SectionIndex, usize)>,
    data: Vec<Data>,
    sources: SourceMap,
    maps: Vec<MapDefinition>,
}

struct Data {
    section: SectionIndex,
    bytes: Vec<u8>,
    align: u64,
    is_constant: bool,
    /// Guest address.
    address: u64,
}

/// Links the entry section and all that it refers to, directly or not.
pub(crate) fn link(
    elf: &Elf<'_>,
    entry: SectionIndex,
    debug: &DebugInfo<'_>,
    declarations: &Declarations,
) -> Result<Linked, LinkError> {
    let mut linker = Linker {
        elf,
        declarations,
        code: Vec::new(),
        functions: Vec::new(),
        data: Vec::new(),
        sources: SourceMap::default(),
        maps: Vec::new(),
    };
    linker.collect(entry, debug)?;
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
    Ok(Linked { code: linker.code, sources: linker.sources, statics, maps: linker.maps })
}

impl<'a, 'e> Linker<'a, 'e> {
    /// Takes the section and, one after the other, those that the ones taken refer to.
    fn collect(&mut self, entry: SectionIndex, debug: &DebugInfo<'_>) -> Result<(), LinkError> {
        let mut wanted = vec![entry];
        let mut next = 0;
        while let Some(&index) = wanted.get(next) {
            next += 1;
            let section = self.elf.section_by_index(index)?;
            if !self.take(&section, debug)? {
                continue;
            }
            // One for each instruction, or pointer of static data. Several tables may be for one section.
            // What is not in the file may claim to be of any size.
            let most = section.size().min(8 * MAX_INSTRUCTIONS as u64) / 8;
            for (number, (_, relocation)) in (0..).zip(section.relocations()) {
                if number >= most {
                    return Err(LinkError::TooManyRelocations);
                }
                let Some((target, _)) = self.symbol(relocation.target()) else { continue };
                if wanted.contains(&target) {
                    continue;
                }
                if wanted.len() == MAX_SECTIONS {
                    return Err(LinkError::TooManySections);
                }
                wanted.push(target);
            }
        }
        Ok(())
    }

    /// Takes a section if it is code or data. What others claim to be, of any size, does not matter.
    fn take(
        &mut self,
        section: &Section<'_, '_>,
        debug: &DebugInfo<'_>,
    ) -> Result<bool, LinkError> {
        let flags = flags(section);
        if flags.contains(SHF_EXECINSTR) {
            let code = section.data()?;
            let base = self.code.len() / 8;
            let slots = code.len() / 8;
            if base + slots > MAX_INSTRUCTIONS {
                return Err(LinkError::TooLong);
            }
            self.sources.begin_section(section.index().0, base as u32);
            if let Ok(name) = section.name() {
                self.sources.add(debug, name, base as u32, slots as u32);
            }
            self.functions.push((section.index(), base));
            self.code.extend_from_slice(&code[..8 * slots]);
        } else if is_data(section) {
            let others: u64 = self.data.iter().map(|data| data.bytes.len() as u64).sum();
            let total = others.saturating_add(section.size());
            if total > STATICS_BYTES as u64 {
                return Err(LinkError::StaticsTooLarge(total));
            }
            // What takes no room in the file (.bss) is zero.
            let mut bytes = section.data()?.to_vec();
            bytes.resize(section.size() as usize, 0);
            let name = section.name().unwrap_or_default();
            let is_constant = !flags.contains(SHF_WRITE) || name.starts_with(".data.rel.ro");
            let align = section.align().clamp(1, 64).next_power_of_two();
            let section = section.index();
            self.data.push(Data { section, bytes, align, is_constant, address: 0 });
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Constants first, then variables. Returns the size of all and of the constants.
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
        let symbol = self.elf.symbol_by_index(index).ok()?;
        Some((symbol.section_index()?, symbol.address()))
    }

    fn relocate(&mut self) -> Result<(), LinkError> {
        for (index, base) in self.functions.clone() {
            let section = self.elf.section_by_index(index)?;
            for (offset, relocation) in section.relocations() {
                let target = self.symbol(relocation.target());
                let done = match relocation.flags() {
                    RelocationFlags::Elf { r_type: R_BPF_64_32 } => {
                        self.relocate_call(base, offset, target)
                    }
                    RelocationFlags::Elf { r_type: R_BPF_64_64 } => {
                        self.relocate_address(base, offset, target)
                    }
                    _ => Err("relocation of an unknown type"),
                };
                done.map_err(|problem| self.failed(&section, base, offset, problem))?;
            }
        }
        for index in 0..self.data.len() {
            let section = self.elf.section_by_index(self.data[index].section)?;
            for (offset, relocation) in section.relocations() {
                let target = self.symbol(relocation.target());
                let done = match relocation.flags() {
                    RelocationFlags::Elf { r_type: R_BPF_64_ABS64 } => {
                        self.relocate_pointer(index, offset, target)
                    }
                    _ => Err("static data with a relocation of an unknown type"),
                };
                done.map_err(|problem| self.failed(&section, usize::MAX, offset, problem))?;
            }
        }
        Ok(())
    }

    fn failed(
        &self,
        section: &Section<'_, '_>,
        base: usize,
        offset: u64,
        problem: &'static str,
    ) -> LinkError {
        let pc = (base as u64).saturating_add(offset / 8);
        let line = u32::try_from(pc).ok().and_then(|pc| self.sources.find(pc));
        let section = section.name().unwrap_or("?").to_owned();
        let source = line.map(|line| line.quoted()).unwrap_or_default();
        LinkError::Relocation { section, offset, source, problem }
    }

    /// The slots from an offset in a code section on.
    fn slots(&mut self, base: usize, offset: u64) -> Result<(usize, &mut [u8]), &'static str> {
        const OUTSIDE: &str = "relocation outside the section";
        let at = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(base * 8));
        let at = at.filter(|at| at.is_multiple_of(8)).ok_or(OUTSIDE)?;
        let slots = self.code.get_mut(at..).filter(|slots| slots.len() >= 8).ok_or(OUTSIDE)?;
        Ok((at / 8, slots))
    }

    fn relocate_call(
        &mut self,
        base: usize,
        offset: u64,
        target: Option<(SectionIndex, u64)>,
    ) -> Result<(), &'static str> {
        let (callee, address) = target
            .and_then(|(section, address)| {
                let found = self.functions.iter().find(|(index, _)| *index == section)?;
                Some((found.1, address))
            })
            .ok_or("calls a function that the object does not define")?;
        let (pc, slots) = self.slots(base, offset)?;
        // The immediate holds the callee's slot within the symbol, minus one.
        let inside = i64::from(immediate(slots)) + 1;
        let target = (callee as i64)
            .checked_add((address / 8) as i64)
            .and_then(|target| target.checked_add(inside))
            .and_then(|target| i32::try_from(target - pc as i64 - 1).ok())
            .ok_or("call target out of range")?;
        slots[4..8].copy_from_slice(&target.to_le_bytes());
        Ok(())
    }

    /// The guest address of an offset in a data section, or the handle of a map. An address may lie
    /// outside: C allows pointers to the end, and accesses are checked.
    fn address(
        &mut self,
        target: Option<(SectionIndex, u64)>,
        addend: u64,
    ) -> Result<u64, &'static str> {
        let (section, address) = target.ok_or("refers to data that the object does not define")?;
        if self.functions.iter().any(|(index, _)| *index == section) {
            return Err("takes the address of a function; functions can only be called");
        }
        if self.declarations.is_section(section) {
            return self.handle(address.wrapping_add(addend));
        }
        let data =
            self.data.iter().find(|data| data.section == section).ok_or(
                "refers to a section that is not data (maps are declared in SEC(\".maps\"))",
            )?;
        Ok(data.address.wrapping_add(address).wrapping_add(addend))
    }

    /// The handle of the map that is declared at this place. Maps get theirs as they are found.
    fn handle(&mut self, place: u64) -> Result<u64, &'static str> {
        let definition = self.declarations.at(place);
        let definition =
            definition.ok_or("refers to the inside of a map; only &map is possible")?;
        let known = self.maps.iter().position(|map| map.name() == definition.name());
        let index = known.unwrap_or(self.maps.len());
        if known.is_none() {
            self.maps.push(definition.clone());
        }
        Ok(MAPS + index as u64)
    }

    fn relocate_address(
        &mut self,
        base: usize,
        offset: u64,
        target: Option<(SectionIndex, u64)>,
    ) -> Result<(), &'static str> {
        let (_, slots) = self.slots(base, offset)?;
        let addend = i64::from(immediate(slots)) as u64;
        let address = self.address(target, addend)?;
        let (_, slots) = self.slots(base, offset)?;
        let is_constant = slots.first() == Some(&0x18);
        let [_, _, _, _, low @ .., _, _, _, _, h0, h1, h2, h3] = slots
            .first_chunk_mut::<16>()
            .filter(|_| is_constant)
            .ok_or("relocation of an address in an instruction that does not load one")?;
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

fn is_data(section: &Section<'_, '_>) -> bool {
    // Maps are declared as variables, but are none.
    let is_map = section.name().is_ok_and(|name| name.trim_start_matches('.').starts_with("maps"));
    flags(section).contains(SHF_ALLOC) && !is_map
}
