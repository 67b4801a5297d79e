//! The sections of an object that have DWARF, relocated.
//!
//! In an object each code section begins at address 0. Here each gets a range of addresses of its own, so that one
//! number identifies section and offset.

use bpfof_function::Origin;
use gimli::{Dwarf, EndianRcSlice, LittleEndian, SectionId};
use object::elf::{self, SHF_EXECINSTR};
use object::read::elf::ElfFile64;
use object::{
    Object as _, ObjectSection as _, ObjectSymbol as _, RelocationFlags, RelocationTarget,
    SectionFlags,
};
use std::rc::Rc;

type Elf<'a> = ElfFile64<'a, object::LittleEndian>;

/// An 8-byte number (LLVM: BPF relocations).
const R_BPF_64_ABS64: elf::RelocationType = elf::RelocationType(2);
/// A 4-byte number.
const R_BPF_64_ABS32: elf::RelocationType = elf::RelocationType(3);
/// Size of the address range of a code section, as a power of two: objects are smaller.
const SECTION_SHIFT: u32 = 32;

/// The address of an instruction.
pub(crate) const fn address(origin: Origin) -> u64 {
    base(origin.section) + origin.offset_bytes
}

const fn base(section: usize) -> u64 {
    (section as u64) << SECTION_SHIFT
}

/// The DWARF of an object; None if it is damaged. Missing sections are empty.
pub(crate) fn read(object: &[u8]) -> Option<Dwarf<EndianRcSlice<LittleEndian>>> {
    let elf = Elf::parse(object).ok()?;
    let load = |id: SectionId| {
        let bytes = relocated(&elf, id.name())?;
        Some(EndianRcSlice::new(Rc::from(bytes), LittleEndian))
    };
    Dwarf::load(|id| load(id).ok_or(())).ok()
}

fn relocated(elf: &Elf<'_>, name: &str) -> Option<Vec<u8>> {
    let Some(section) = elf.section_by_name(name) else { return Some(Vec::new()) };
    let mut bytes = section.data().ok()?.to_vec();
    for (offset, relocation) in section.relocations() {
        // A symbol that is defined elsewhere has no address.
        let Some(target) = symbol_address(elf, relocation.target()) else { continue };
        let rest = bytes.get_mut(usize::try_from(offset).ok()?..)?;
        // The existing value is an offset from the symbol.
        match relocation.flags() {
            RelocationFlags::Elf { r_type: R_BPF_64_ABS64 } => {
                let field = rest.first_chunk_mut::<8>()?;
                *field = u64::from_le_bytes(*field).wrapping_add(target).to_le_bytes();
            }
            RelocationFlags::Elf { r_type: R_BPF_64_ABS32 } => {
                let field = rest.first_chunk_mut::<4>()?;
                *field = u32::from_le_bytes(*field).wrapping_add(target as u32).to_le_bytes();
            }
            _ => return None,
        }
    }
    Some(bytes)
}

fn symbol_address(elf: &Elf<'_>, target: RelocationTarget) -> Option<u64> {
    let RelocationTarget::Symbol(index) = target else { return None };
    let symbol = elf.symbol_by_index(index).ok()?;
    let section = symbol.section_index()?;
    let flags = elf.section_by_index(section).ok()?.flags();
    let is_code =
        matches!(flags, SectionFlags::Elf { sh_flags, .. } if sh_flags.contains(SHF_EXECINSTR));
    Some(symbol.address().wrapping_add(if is_code { base(section.0) } else { 0 }))
}
