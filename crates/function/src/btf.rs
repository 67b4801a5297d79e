//! Types in BTF, as far as declarations need them (Linux: Documentation/bpf/btf.rst).
//!
//! All data comes from the object, which is not trusted: damaged types are treated as absent.

use crate::source::{header_part, string, words};

/// Maximum number of types to follow for one size or name: C programs nest less.
const MAX_DEPTH: u32 = 16;

/// The kind of a type, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BtfKind {
    Integer,
    Pointer,
    Array,
    Struct,
    Union,
    Enum,
    /// A typedef or a qualifier: refers to another type.
    Alias,
    Variable,
    Section,
    Other,
}

/// One record of the type section.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BtfType<'a> {
    pub(crate) kind: BtfKind,
    name: u32,
    /// The type it refers to, or its size in bytes.
    pub(crate) target: u32,
    /// The bytes that follow the record's fixed part.
    rest: &'a [u8],
}

/// A member of a structure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BtfMember {
    /// Offset of its name in the strings.
    pub(crate) name: u32,
    /// The number of its type.
    pub(crate) kind: u32,
}

/// The types of an object; they are numbered from 1.
pub(crate) struct Btf<'a> {
    types: Vec<BtfType<'a>>,
    strings: &'a [u8],
}

impl<'a> Btf<'a> {
    /// Parses the contents of the section `.BTF`. Returns None if it has no types.
    pub(crate) fn parse(section: &'a [u8]) -> Option<Btf<'a>> {
        let (mut rest, strings) = (header_part(section, 8)?, header_part(section, 16)?);
        let mut types = Vec::new();
        while let Some([name, info, target]) = words::<3>(rest) {
            let count = (info & 0xffff) as usize;
            let (kind, bytes) = match info >> 24 & 0x1f {
                1 => (BtfKind::Integer, 4),
                2 => (BtfKind::Pointer, 0),
                3 => (BtfKind::Array, 12),
                4 => (BtfKind::Struct, 12 * count),
                5 => (BtfKind::Union, 12 * count),
                6 => (BtfKind::Enum, 8 * count),
                // typedef, volatile, const, restrict, type tag
                8..=11 | 18 => (BtfKind::Alias, 0),
                13 => (BtfKind::Other, 8 * count),
                14 => (BtfKind::Variable, 4),
                15 => (BtfKind::Section, 12 * count),
                // A floating-point number: only its size matters.
                16 => (BtfKind::Integer, 0),
                17 => (BtfKind::Other, 4),
                19 => (BtfKind::Enum, 12 * count),
                // Forward declarations and functions.
                7 | 12 => (BtfKind::Other, 0),
                _ => return None,
            };
            let (record, behind) = rest.get(12..)?.split_at_checked(bytes)?;
            types.push(BtfType { kind, name, target, rest: record });
            rest = behind;
        }
        (!types.is_empty()).then_some(Btf { types, strings })
    }

    pub(crate) fn string(&self, offset: u32) -> &'a str {
        str::from_utf8(string(self.strings, offset)).unwrap_or_default()
    }

    fn get(&self, number: u32) -> Option<BtfType<'a>> {
        self.types.get((number as usize).checked_sub(1)?).copied()
    }

    /// The type with this number, without typedefs and qualifiers.
    pub(crate) fn resolve(&self, mut number: u32) -> Option<BtfType<'a>> {
        for _ in 0..MAX_DEPTH {
            let found = self.get(number)?;
            if found.kind != BtfKind::Alias {
                return Some(found);
            }
            number = found.target;
        }
        None
    }

    /// The number of the type of a variable in a data section.
    pub(crate) fn variable(&self, section: &str, name: &str) -> Option<u32> {
        // There may be many sections and variables, with long names: compare bytes without making
        // strings.
        let named = |found: &&BtfType<'_>, name: &str| {
            let rest = self.strings.get(found.name as usize..).unwrap_or_default();
            rest.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
        };
        let section = self
            .types
            .iter()
            .filter(|found| found.kind == BtfKind::Section)
            .find(|found| named(found, section))?;
        let (entries, _) = section.rest.as_chunks::<12>();
        let variables = entries.iter().filter_map(|entry| self.get(words::<1>(entry)?[0]));
        let mut variables = variables.filter(|found| found.kind == BtfKind::Variable);
        variables.find(|found| named(&found, name)).map(|found| found.target)
    }

    /// The members of a structure.
    pub(crate) fn members(&self, structure: &BtfType<'a>) -> impl Iterator<Item = BtfMember> + 'a {
        let (members, _) = structure.rest.as_chunks::<12>();
        members.iter().filter_map(|member| {
            let [name, kind, _] = words::<3>(member)?;
            Some(BtfMember { name, kind })
        })
    }

    /// The number of the type of an array's elements, and the length of the array.
    pub(crate) fn array(&self, array: &BtfType<'a>) -> Option<(u32, u32)> {
        let [element, _, length] = words::<3>(array.rest)?;
        Some((element, length))
    }

    /// The size in bytes of the type with this number.
    pub(crate) fn size(&self, number: u32) -> Option<u64> {
        let (mut number, mut factor) = (number, 1u64);
        for _ in 0..MAX_DEPTH {
            let found = self.resolve(number)?;
            let size = match found.kind {
                BtfKind::Array => {
                    let (element, length) = self.array(&found)?;
                    factor = factor.checked_mul(length.into())?;
                    number = element;
                    continue;
                }
                BtfKind::Pointer => 8,
                BtfKind::Integer | BtfKind::Struct | BtfKind::Union | BtfKind::Enum => {
                    found.target.into()
                }
                _ => return None,
            };
            return factor.checked_mul(size);
        }
        None
    }
}
