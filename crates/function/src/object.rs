//! ELF objects, as clang writes them for `-target bpf`, to checked programs.

use crate::abi::MAX_INSTRUCTIONS;
use crate::abi::MAX_OBJECT_BYTES;
use crate::program::{Program, ProgramError};
use crate::source::{DebugInfo, SourceMap};
use object::elf::R_BPF_64_32;
use object::read::elf::{ElfFile64, ElfSection64};
use object::{
    Architecture, LittleEndian, Object as _, ObjectSection as _, ObjectSymbol as _,
    RelocationFlags, RelocationTarget, SectionIndex,
};

type Elf<'a> = ElfFile64<'a, LittleEndian>;

/// Entry sections are named with this prefix; what follows is the function's name.
pub const ENTRY_PREFIX: &str = "bpfof/";

/// Slots of a section that source lines are kept of: more are no program anyway.
const MAX_SLOTS: u64 = MAX_INSTRUCTIONS as u64;

/// A parsed function object: its entry points, in file order.
#[derive(Debug)]
pub struct Object {
    entries: Vec<Entry>,
}

/// One `bpfof/<name>` section and the functions it calls.
#[derive(Debug)]
pub struct Entry {
    /// The section's name after [`ENTRY_PREFIX`].
    pub name: String,
    /// The checked program.
    pub program: Program,
}

/// Why an object was refused.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// Larger than [`MAX_OBJECT_BYTES`].
    #[error("the object has {0} bytes; the limit is {MAX_OBJECT_BYTES} (strip debug information)")]
    TooLarge(usize),
    /// Not an ELF file, or a damaged one.
    #[error("not a readable ELF object: {0}")]
    Elf(String),
    /// An ELF file for another machine.
    #[error("not an eBPF object (compile with clang -target bpf)")]
    NotBpf,
    /// No `bpfof/…` section.
    #[error("no section named bpfof/<name>; mark the function with SEC(\"bpfof/<name>\")")]
    NoEntry,
    /// The asked-for entry does not exist.
    #[error("the object has {entries} entry points; number {index} does not exist")]
    NoSuchEntry {
        /// What was asked for, from 0.
        index: usize,
        /// How many there are.
        entries: usize,
    },
    /// A relocation that the loader cannot resolve.
    #[error("{place}{section}: instruction {pc}: {problem}")]
    Relocation {
        /// The source line, for people: empty or ending in a colon and a blank.
        place: String,
        /// Name of the section.
        section: String,
        /// Slot within the section.
        pc: u64,
        /// What is wrong.
        problem: &'static str,
    },
    /// A program that fails the checks.
    #[error("{place}{name}: {source}")]
    Program {
        /// The source line, for people: empty or ending in a colon and a blank.
        place: String,
        /// The entry's name.
        name: String,
        /// The reason.
        source: ProgramError,
    },
}

impl Object {
    /// Parses and checks all entry points of an object. Never panics, whatever the bytes.
    pub fn parse(bytes: &[u8]) -> Result<Object, ObjectError> {
        if bytes.len() > MAX_OBJECT_BYTES {
            return Err(ObjectError::TooLarge(bytes.len()));
        }
        let elf = Elf::parse(bytes).map_err(elf_error)?;
        if elf.architecture() != Architecture::Bpf {
            return Err(ObjectError::NotBpf);
        }
        let [btf, extension] = [".BTF", ".BTF.ext"]
            .map(|name| elf.section_by_name(name).and_then(|section| section.data().ok()));
        let debug = DebugInfo::parse(btf.unwrap_or_default(), extension.unwrap_or_default());
        let mut entries = Vec::new();
        for section in elf.sections() {
            let Ok(name) = section.name() else { continue };
            let Some(name) = name.strip_prefix(ENTRY_PREFIX) else { continue };
            let (code, sources) = link(&elf, &section, &debug)?;
            let name = name.to_owned();
            let program = Program::parse(&code).map_err(|source| {
                let place = place(&sources, source.pc);
                ObjectError::Program { place, name: name.clone(), source }
            })?;
            entries.push(Entry { name, program: program.with_sources(sources) });
        }
        if entries.is_empty() { Err(ObjectError::NoEntry) } else { Ok(Object { entries }) }
    }

    /// The entry points, in file order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Takes entry point number `index` (from 0, in file order).
    pub fn into_entry(self, index: usize) -> Result<Entry, ObjectError> {
        let entries = self.entries.len();
        self.entries.into_iter().nth(index).ok_or(ObjectError::NoSuchEntry { index, entries })
    }
}

fn elf_error(error: object::Error) -> ObjectError {
    ObjectError::Elf(error.to_string())
}

/// The source line of an instruction, to begin a message with.
fn place(sources: &SourceMap, pc: u32) -> String {
    match sources.find(pc) {
        Some(line) if line.text.is_empty() => format!("{line}: "),
        Some(line) => format!("{line}: `{}`: ", line.text),
        None => String::new(),
    }
}

/// The code of an entry section, followed by `.text` if anything there is called, with the calls
/// between them resolved; and the source lines of it.
fn link(
    elf: &Elf<'_>,
    entry: &ElfSection64<'_, '_, LittleEndian>,
    debug: &DebugInfo<'_>,
) -> Result<(Vec<u8>, SourceMap), ObjectError> {
    let mut code = entry.data().map_err(elf_error)?.to_vec();
    let mut layout = vec![(entry.index(), 0)];
    let mut sources = SourceMap::default();
    let text = elf.section_by_name(".text").filter(|text| text.size() > 0);
    let calls_text = |section: &ElfSection64<'_, '_, LittleEndian>| {
        section.relocations().any(|(_, relocation)| {
            target_section(elf, relocation.target()) == text.as_ref().map(|text| text.index())
        })
    };
    if let Some(text) = text.as_ref().filter(|_| calls_text(entry)) {
        layout.push((text.index(), code.len() / 8));
        code.extend_from_slice(text.data().map_err(elf_error)?);
    }
    for (index, base) in layout.clone() {
        let section = elf.section_by_index(index).map_err(elf_error)?;
        if let Ok(name) = section.name() {
            sources.add(debug, name, base as u32, (section.size() / 8).min(MAX_SLOTS) as u32);
        }
        relocate(elf, &section, base, &layout, &mut code).map_err(|(offset, problem)| {
            let pc = offset / 8;
            ObjectError::Relocation {
                place: place(&sources, (base as u64).saturating_add(pc) as u32),
                section: section.name().unwrap_or("?").to_owned(),
                pc,
                problem,
            }
        })?;
    }
    Ok((code, sources))
}

fn target_section(elf: &Elf<'_>, target: RelocationTarget) -> Option<SectionIndex> {
    match target {
        RelocationTarget::Symbol(index) => elf.symbol_by_index(index).ok()?.section_index(),
        _ => None,
    }
}

fn relocate(
    elf: &Elf<'_>,
    section: &ElfSection64<'_, '_, LittleEndian>,
    base: usize,
    layout: &[(SectionIndex, usize)],
    code: &mut [u8],
) -> Result<(), (u64, &'static str)> {
    for (offset, relocation) in section.relocations() {
        let fail = |problem| (offset, problem);
        let RelocationFlags::Elf { r_type: R_BPF_64_32 } = relocation.flags() else {
            return Err(fail(
                "refers to a map or data section (.rodata, .data, .bss); keep constants in code or \
                 pass them in scratch",
            ));
        };
        let RelocationTarget::Symbol(symbol) = relocation.target() else {
            return Err(fail("relocation without a symbol"));
        };
        let symbol = elf
            .symbol_by_index(symbol)
            .map_err(|_| fail("relocation to a symbol that does not exist"))?;
        let callee = symbol
            .section_index()
            .and_then(|index| layout.iter().find(|(section, _)| *section == index))
            .ok_or_else(|| fail("calls a function that the object does not define"))?;
        let at = (offset as usize).checked_add(base * 8).filter(|at| at.is_multiple_of(8));
        let slot = at
            .and_then(|at| code.get_mut(at..)?.first_chunk_mut::<8>())
            .ok_or_else(|| fail("relocation outside the section"))?;
        let at = at.unwrap_or_default() / 8;
        let [.., i0, i1, i2, i3] = *slot;
        // The immediate holds the callee's slot within the symbol, minus one.
        let inside = i64::from(i32::from_le_bytes([i0, i1, i2, i3])) + 1;
        let target = (callee.1 as i64)
            .checked_add((symbol.address() / 8) as i64)
            .and_then(|target| target.checked_add(inside))
            .and_then(|target| i32::try_from(target - at as i64 - 1).ok())
            .ok_or_else(|| fail("call target out of range"))?;
        slot[4..].copy_from_slice(&target.to_le_bytes());
    }
    Ok(())
}
