//! The maps that an object declares: variables of the section `.maps`, as for libbpf. Their types
//! in BTF describe the maps (Linux: Documentation/bpf/btf.rst):
//!
//! ```c
//! struct {
//!     __uint(type, BPF_MAP_TYPE_HASH);   // int (*type)[1];
//!     __uint(max_entries, 1024);         // int (*max_entries)[1024];
//!     __type(key, __u64);                // __u64 *key;
//!     __type(value, struct counters);    // struct counters *value;
//! } seen SEC(".maps");
//! ```

use super::{DefinitionError, MapDefinition, MapKind};
use crate::btf::{Btf, BtfKind};
use crate::elf::Elf;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SectionIndex};

/// Maximum maps of one object. Each may be another argument of the same function; handles are
/// small.
pub const MAX_MAPS: usize = 32;
/// The section of declarations.
const SECTION: &str = ".maps";

/// The reason why the maps of an object cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeclarationError {
    /// The object has no BTF, which has the types of variables.
    #[error("{0}: declared in .maps, but the object has no BTF that describes it; compile with -g")]
    NoBtf(String),
    /// The declaration is not a structure, or has a member without a meaning.
    #[error("map {map}: {problem}")]
    Shape {
        /// The map.
        map: String,
        /// The defect.
        problem: String,
    },
    /// The map exceeds a limit.
    #[error("map {map}: {source}")]
    Definition {
        /// The map.
        map: String,
        /// The limit that it exceeds.
        source: DefinitionError,
    },
    /// More than [`MAX_MAPS`].
    #[error("the object declares more than {MAX_MAPS} maps; split it")]
    TooMany,
}

/// The maps of an object, by their offsets in the section.
#[derive(Debug, Default)]
pub(crate) struct Declarations {
    section: Option<SectionIndex>,
    maps: Vec<(u64, MapDefinition)>,
}

impl Declarations {
    /// Reads all declarations of an object whose section `.BTF` is `btf`.
    pub(crate) fn read(elf: &Elf<'_>, btf: &[u8]) -> Result<Declarations, DeclarationError> {
        let Some(section) = elf.section_by_name(SECTION) else {
            return Ok(Declarations::default());
        };
        let index = section.index();
        let btf = Btf::parse(btf);
        let mut maps: Vec<(u64, MapDefinition)> = Vec::new();
        for symbol in elf.symbols() {
            if symbol.section_index() != Some(index) || symbol.size() == 0 {
                continue;
            }
            if maps.len() == MAX_MAPS {
                return Err(DeclarationError::TooMany);
            }
            let name = printable(symbol.name().unwrap_or_default());
            let Some(btf) = &btf else { return Err(DeclarationError::NoBtf(name)) };
            maps.push((symbol.address(), define(btf, name)?));
        }
        Ok(Declarations { section: Some(index), maps })
    }

    /// Whether this is the section of declarations.
    pub(crate) fn is_section(&self, section: SectionIndex) -> bool {
        self.section == Some(section)
    }

    /// The map that begins at this offset of the section.
    pub(crate) fn at(&self, place: u64) -> Option<&MapDefinition> {
        self.maps.iter().find(|(at, _)| *at == place).map(|(_, definition)| definition)
    }
}

/// Makes a name printable: names come from the object and go into messages and logs.
fn printable(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(64).collect()
}

/// The values of the members of a declaration.
#[derive(Default)]
struct Members {
    kind: Option<u64>,
    max_entries: Option<u64>,
    key_bytes: Option<u64>,
    value_bytes: Option<u64>,
}

fn define(btf: &Btf<'_>, map: String) -> Result<MapDefinition, DeclarationError> {
    let members = match read_members(btf, &map) {
        Ok(members) => members,
        Err(problem) => return Err(DeclarationError::Shape { map, problem }),
    };
    let missing = |what: &str| format!("it does not declare its {what}");
    let checked = || {
        let number = members.kind.ok_or_else(|| missing("type: __uint(type, …)"))?;
        let kind = u32::try_from(number).ok().and_then(MapKind::from_number).ok_or(format!(
            "type {number} is not supported; use BPF_MAP_TYPE_HASH (1) or BPF_MAP_TYPE_ARRAY (2)"
        ))?;
        let key = members.key_bytes.ok_or_else(|| missing("key: __type(key, …)"))?;
        let value = members.value_bytes.ok_or_else(|| missing("value: __type(value, …)"))?;
        let entries = members.max_entries.ok_or_else(|| missing("size: __uint(max_entries, …)"))?;
        Ok((kind, (key, value), entries as u32))
    };
    match checked() {
        Ok((kind, sizes, entries)) => MapDefinition::new(&map, kind, sizes, entries)
            .map_err(|source| DeclarationError::Definition { map, source }),
        Err(problem) => Err(DeclarationError::Shape { map, problem }),
    }
}

fn read_members(btf: &Btf<'_>, map: &str) -> Result<Members, String> {
    let variable = btf.variable(SECTION, map).ok_or("BTF has no variable of this name")?;
    let structure = btf.resolve(variable).filter(|found| found.kind == BtfKind::Struct);
    let structure = structure.ok_or("its type is not a structure of __uint and __type members")?;
    let mut members = Members::default();
    for member in btf.members(&structure) {
        let name = btf.string(member.name);
        let (place, found) = match name {
            "type" => (&mut members.kind, pointed_length(btf, member.kind)),
            "max_entries" => (&mut members.max_entries, pointed_length(btf, member.kind)),
            "key" => (&mut members.key_bytes, pointed_size(btf, member.kind)),
            "value" => (&mut members.value_bytes, pointed_size(btf, member.kind)),
            "key_size" => (&mut members.key_bytes, pointed_length(btf, member.kind)),
            "value_size" => (&mut members.value_bytes, pointed_length(btf, member.kind)),
            _ => return Err(format!("member {} is not supported", printable(name))),
        };
        let found = found.ok_or_else(|| format!("member {name} is neither __uint nor __type"))?;
        if place.replace(found).is_some() {
            return Err(format!("member {name} repeats what another member declares"));
        }
    }
    Ok(members)
}

/// `__uint(name, n)`: a pointer to an array of length n.
fn pointed_length(btf: &Btf<'_>, pointer: u32) -> Option<u64> {
    let pointer = btf.resolve(pointer).filter(|found| found.kind == BtfKind::Pointer)?;
    let array = btf.resolve(pointer.target).filter(|found| found.kind == BtfKind::Array)?;
    btf.array(&array).map(|(_, length)| length.into())
}

/// `__type(name, T)`: the size of the type that a pointer points to.
fn pointed_size(btf: &Btf<'_>, pointer: u32) -> Option<u64> {
    let pointer = btf.resolve(pointer).filter(|found| found.kind == BtfKind::Pointer)?;
    btf.size(pointer.target)
}
