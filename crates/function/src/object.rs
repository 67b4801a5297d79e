//! Parses ELF objects, as clang writes them for `-target bpf`, to checked programs.

use crate::abi::{MAX_INSTRUCTIONS, MAX_OBJECT_BYTES, STATICS_BYTES};
use crate::elf::Elf;
use crate::functions::FunctionTable;
use crate::link::{LinkError, MAX_SECTIONS, Parts, link};
use crate::map::{DeclarationError, Declarations};
use crate::program::{Problem, Program, ProgramError};
use crate::source::DebugInfo;
use object::{Architecture, Object as _, ObjectSection as _, SectionIndex};

/// Longest name of a section.
const MAX_NAME_BYTES: usize = 1024;
/// Prefix of the names of entry sections; the rest is the function's name.
pub const ENTRY_PREFIX: &str = "bpfof/";

/// Maximum entry points of one object, and instructions of all of them. Shared functions count for each entry point, so
/// that a small object cannot become large.
const MAX_ENTRIES: usize = 64;
const MAX_ALL_INSTRUCTIONS: usize = 16 * MAX_INSTRUCTIONS;

/// A parsed function object: its entry points, in file order.
#[derive(Debug)]
pub struct Object {
    entries: Vec<Entry>,
}

/// The function of a `bpfof/<name>` section and the functions that it calls.
#[derive(Debug)]
pub struct Entry {
    /// The section's name after [`ENTRY_PREFIX`].
    pub name: String,
    /// The checked program.
    pub program: Program,
}

/// The reason why an object was refused.
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
    /// More entry points or instructions than permitted.
    #[error(
        "more than {MAX_ENTRIES} entry points, or more than {MAX_ALL_INSTRUCTIONS} \
         instructions in all of them; split the object"
    )]
    TooManyEntries,
    /// The requested entry does not exist.
    #[error("the object has {entries} entry points; number {index} does not exist")]
    NoSuchEntry {
        /// The requested index, from 0.
        index: usize,
        /// Number of entry points.
        entries: usize,
    },
    /// A section with more than one function that could be the entry point.
    #[error(
        "the section {ENTRY_PREFIX}{name} has two functions, {} and {}; give each entry point a \
         section of its own, and make the functions that it calls static",
        functions[0], functions[1]
    )]
    TwoFunctions {
        /// The section's name after [`ENTRY_PREFIX`].
        name: String,
        /// The names of two of them.
        functions: [String; 2],
    },
    /// A relocation that the loader cannot resolve.
    #[error("{place}{section}: instruction {pc}: {problem}")]
    Relocation {
        /// The source line, for messages: empty, or ending in a colon and a blank.
        place: String,
        /// Name of the section.
        section: String,
        /// Slot within the section.
        pc: u64,
        /// The defect.
        problem: &'static str,
    },
    /// More static data than there is room for.
    #[error(
        "{name}: its static variables and constants take {bytes} bytes; the limit is \
         {STATICS_BYTES} (pass tables in scratch, or read them as a block)"
    )]
    StaticsTooLarge {
        /// The entry's name.
        name: String,
        /// Bytes that its static data takes.
        bytes: u64,
    },
    /// Maps that cannot be made.
    #[error(transparent)]
    Maps(#[from] DeclarationError),
    /// A program that fails the checks.
    #[error("{place}{name}: {source}")]
    Program {
        /// The source line, for messages: empty, or ending in a colon and a blank.
        place: String,
        /// The entry's name.
        name: String,
        /// The reason.
        source: ProgramError,
    },
}

impl Object {
    /// Parses and checks all entry points of an object. Never panics, whatever the bytes.
    ///
    /// # Errors
    /// The first defect, with its place.
    pub fn parse(bytes: &[u8]) -> Result<Object, ObjectError> {
        let file = File::parse(bytes)?;
        let mut entries = Vec::new();
        let mut instructions = 0;
        for (section, name) in file.entries() {
            let entry = file.read(section, name)?;
            instructions += entry.program.instructions().len();
            entries.push(entry);
            if entries.len() > MAX_ENTRIES || instructions > MAX_ALL_INSTRUCTIONS {
                return Err(ObjectError::TooManyEntries);
            }
        }
        if entries.is_empty() { Err(ObjectError::NoEntry) } else { Ok(Object { entries }) }
    }

    /// Parses and checks one entry point of an object: number `index` from 0, in file order. Other entry points are not
    /// examined: their defects do not matter, and they take no time.
    ///
    /// # Errors
    /// As [`parse`](Object::parse).
    pub fn parse_entry(bytes: &[u8], index: usize) -> Result<Entry, ObjectError> {
        let file = File::parse(bytes)?;
        match file.entries().nth(index) {
            Some((section, name)) => file.read(section, name),
            None => match file.entries().count() {
                0 => Err(ObjectError::NoEntry),
                entries => Err(ObjectError::NoSuchEntry { index, entries }),
            },
        }
    }

    /// The entry points, in file order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The entry points, mutable, for adding debug information.
    pub fn entries_mut(&mut self) -> &mut [Entry] {
        &mut self.entries
    }

    /// Takes entry point number `index` (from 0, in file order).
    pub fn into_entry(self, index: usize) -> Result<Entry, ObjectError> {
        let entries = self.entries.len();
        self.entries.into_iter().nth(index).ok_or(ObjectError::NoSuchEntry { index, entries })
    }
}

/// An object whose entry points have not been parsed.
struct File<'a> {
    elf: Elf<'a>,
    debug: DebugInfo<'a>,
    declarations: Declarations,
    functions: FunctionTable,
}

impl<'a> File<'a> {
    fn parse(bytes: &'a [u8]) -> Result<File<'a>, ObjectError> {
        if bytes.len() > MAX_OBJECT_BYTES {
            return Err(ObjectError::TooLarge(bytes.len()));
        }
        let elf = Elf::parse(bytes).map_err(elf_error)?;
        if elf.architecture() != Architecture::Bpf {
            return Err(ObjectError::NotBpf);
        }
        check_names(&elf)?;
        let [btf, extension] = [".BTF", ".BTF.ext"].map(|name| {
            let section = elf.section_by_name(name);
            section.and_then(|section| section.data().ok()).unwrap_or_default()
        });
        let debug = DebugInfo::parse(btf, extension);
        let declarations = Declarations::read(&elf, btf)?;
        let functions = FunctionTable::read(&elf);
        Ok(File { elf, debug, declarations, functions })
    }

    /// The sections of the entry points, with the names of the entry points.
    fn entries(&self) -> impl Iterator<Item = (SectionIndex, &'a str)> {
        self.elf.sections().filter_map(|section| {
            let name = section.name_bytes().ok().and_then(|name| str::from_utf8(name).ok())?;
            Some((section.index(), name.strip_prefix(ENTRY_PREFIX)?))
        })
    }

    fn read(&self, section: SectionIndex, name: &str) -> Result<Entry, ObjectError> {
        let entry_slot = self
            .functions
            .entry(&self.elf, section)
            .map_err(|functions| ObjectError::TwoFunctions { name: name.to_owned(), functions })?;
        let File { elf, debug, declarations, functions } = self;
        let parts = Parts { elf, debug, declarations, functions };
        let linked = link(parts, section, entry_slot).map_err(|error| match error {
            LinkError::Relocation { section, offset, source, problem } => {
                ObjectError::Relocation { place: source, section, pc: offset / 8, problem }
            }
            LinkError::TooLong => {
                let source =
                    ProgramError { pc: MAX_INSTRUCTIONS as u32, problem: Problem::TooLong };
                ObjectError::Program { place: String::new(), name: name.to_owned(), source }
            }
            LinkError::StaticsTooLarge(bytes) => {
                ObjectError::StaticsTooLarge { name: name.to_owned(), bytes }
            }
            LinkError::TooManyRelocations => {
                ObjectError::Elf(format!("{name} has more relocations than the limit"))
            }
            LinkError::TooManySections => {
                ObjectError::Elf(format!("{name} refers to more than {MAX_SECTIONS} sections"))
            }
            LinkError::Elf(error) => elf_error(error),
        })?;
        let program = Program::parse(&linked.code).map_err(|source| {
            let line = linked.sources.find(source.pc);
            let place = line.map(|line| line.quoted()).unwrap_or_default();
            ObjectError::Program { place, name: name.to_owned(), source }
        })?;
        let program = program
            .with_sources(linked.sources)
            .with_statics(linked.statics)
            .with_maps(linked.maps);
        Ok(Entry { name: name.to_owned(), program })
    }
}

/// Bounds the length of names: many headers may share one long name, and the name of a section is read for each
/// relocation and each function that refers to it.
fn check_names(elf: &Elf<'_>) -> Result<(), ObjectError> {
    let mut bytes = 0;
    for section in elf.sections() {
        let length = section.name_bytes().map_err(elf_error)?.len();
        if length > MAX_NAME_BYTES {
            let problem = format!("a section has a name of more than {MAX_NAME_BYTES} bytes");
            return Err(ObjectError::Elf(problem));
        }
        bytes += length;
        if bytes > MAX_OBJECT_BYTES {
            let problem = "the names of its sections are longer than the largest object";
            return Err(ObjectError::Elf(problem.to_owned()));
        }
    }
    Ok(())
}

fn elf_error(error: object::Error) -> ObjectError {
    ObjectError::Elf(error.to_string())
}
