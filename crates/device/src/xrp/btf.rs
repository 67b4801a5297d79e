//! Types of the running kernel and of its modules (BTF): just enough to find types by name.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;
const FUNCTION: u32 = 12;
const HEADER_BYTES: usize = 24;

/// The kernel's types, after which the types of modules are numbered.
#[derive(Debug, Default)]
pub(super) struct Base {
    types: u32,
    /// The kernel's strings, which precede those of a module.
    strings: Vec<u8>,
}

/// The types of the kernel, or of a module.
#[derive(Debug)]
pub(super) struct Btf {
    types: Vec<u8>,
    strings: Vec<u8>,
    base: Arc<Base>,
}

/// One type.
struct Type<'a> {
    id: u32,
    kind: u32,
    name: &'a [u8],
    size: u32,
    /// The data that follows the type's header.
    rest: &'a [u8],
    /// Whether the word of a member's offset also holds the width of a bit field.
    has_bit_fields: bool,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// The kernel's types, after which those of modules are numbered. They are some megabytes, so they are read only
/// once.
pub(super) fn kernel_base() -> io::Result<Arc<Base>> {
    static BASE: OnceLock<Arc<Base>> = OnceLock::new();
    once(&BASE, || Btf::read("vmlinux", Arc::default()))
}

/// The cached base, or one from types that are read now. A failure is not cached.
fn once(
    known: &OnceLock<Arc<Base>>,
    read: impl FnOnce() -> io::Result<Btf>,
) -> io::Result<Arc<Base>> {
    if let Some(base) = known.get() {
        return Ok(Arc::clone(base));
    }
    let base = read()?.as_base();
    Ok(Arc::clone(known.get_or_init(|| base)))
}

impl Btf {
    /// Reads the types in `/sys/kernel/btf/NAME`; those of a module are numbered after `base`.
    pub(super) fn read(name: &str, base: Arc<Base>) -> io::Result<Btf> {
        let path = Path::new("/sys/kernel/btf").join(name);
        let bytes = std::fs::read(path)?;
        let parsed = Btf::parse(&bytes, base);
        parsed.ok_or_else(|| io::Error::other(format!("the BTF of {name} is invalid")))
    }

    fn parse(bytes: &[u8], base: Arc<Base>) -> Option<Btf> {
        let magic = bytes.first_chunk().map(|magic| u16::from_le_bytes(*magic));
        if magic != Some(MAGIC) || bytes.len() < HEADER_BYTES {
            return None;
        }
        let header = word(bytes, 4)? as usize;
        let section = |at: usize| {
            let (start, len) = (word(bytes, at)? as usize, word(bytes, at + 4)? as usize);
            let start = header.checked_add(start)?;
            Some(bytes.get(start..start.checked_add(len)?)?.to_vec())
        };
        Some(Btf { types: section(8)?, strings: section(16)?, base })
    }

    /// These types as the base of modules.
    pub(super) fn as_base(&self) -> Arc<Base> {
        Arc::new(Base { types: self.types().count() as u32, strings: self.strings.clone() })
    }

    fn types(&self) -> impl Iterator<Item = Type<'_>> {
        let mut left = &self.types[..];
        let mut id = self.base.types;
        std::iter::from_fn(move || {
            let (name, info, size) = (word(left, 0)?, word(left, 4)?, word(left, 8)?);
            let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
            let more = match kind {
                1 | 14 | 17 => 4,
                3 => 12,
                4 | 5 | 15 | 19 => 12 * count,
                6 | 13 => 8 * count,
                _ => 0,
            };
            let rest = left.get(12..12 + more)?;
            left = &left[12 + more..];
            id += 1;
            let has_bit_fields = info >> 31 != 0;
            Some(Type { id, kind, name: self.string(name), size, rest, has_bit_fields })
        })
    }

    fn string(&self, at: u32) -> &[u8] {
        let (at, base) = (at as usize, &self.base.strings);
        let text = match at.checked_sub(base.len()) {
            Some(at) => self.strings.get(at..),
            None => base.get(at..),
        };
        text.unwrap_or_default().split(|byte| *byte == 0).next().unwrap_or_default()
    }

    fn find(&self, kind: u32, name: &str) -> Option<Type<'_>> {
        self.types().find(|found| found.kind == kind && found.name == name.as_bytes())
    }

    /// Type id and size of a structure.
    pub(super) fn structure(&self, name: &str) -> Option<(u32, u32)> {
        self.find(STRUCT, name).map(|found| (found.id, found.size))
    }

    /// Type id of a function.
    pub(super) fn function(&self, name: &str) -> Option<u32> {
        self.find(FUNCTION, name).map(|found| found.id)
    }

    /// Offset of a member of a structure in bytes.
    pub(super) fn member(&self, structure: &str, member: &str) -> Option<u32> {
        let found = self.find(STRUCT, structure)?;
        let (members, _) = found.rest.as_chunks::<12>();
        let place = members.iter().find(|place| {
            word(&place[..], 0).is_some_and(|name| self.string(name) == member.as_bytes())
        })?;
        let bits = word(&place[..], 8)?;
        Some(if found.has_bit_fields { bits & 0xff_ffff } else { bits } / 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_are_parsed_as_types_or_refused() {
        let mut header = vec![0x9f, 0xeb, 1, 0, 24, 0, 0, 0];
        for word in [0u32, 24, 24, 8] {
            header.extend(word.to_le_bytes());
        }
        // struct "a" of 16 bytes with the member "b" at bit 64.
        for word in [1u32, 4 << 24 | 1, 16, 3, 0, 64] {
            header.extend(word.to_le_bytes());
        }
        header.extend(b"\0a\0b\0\0\0\0");
        let btf = Btf::parse(&header, Arc::default()).expect("types");
        assert_eq!(btf.structure("a"), Some((1, 16)));
        assert_eq!(btf.member("a", "b"), Some(8));
        assert_eq!((btf.member("a", "c"), btf.function("a")), (None, None));
        // A module's struct "c", with a member whose name is in the kernel's strings.
        let mut module = vec![0x9f, 0xeb, 1, 0, 24, 0, 0, 0];
        for word in [0u32, 24, 24, 3, 9, 4 << 24 | 1, 4, 3, 0, 16] {
            module.extend(word.to_le_bytes());
        }
        module.extend(b"\0c\0");
        let module = Btf::parse(&module, btf.as_base()).expect("types");
        assert_eq!((module.structure("c"), module.member("c", "b")), (Some((2, 4)), Some(2)));
        for end in 0..header.len() {
            if let Some(btf) = Btf::parse(&header[..end], Arc::default()) {
                btf.types().for_each(drop);
            }
        }
    }

    #[test]
    fn the_types_of_the_kernel_are_read_once_they_can_be_read() {
        // A header, and a type `int` without a name.
        let mut types = vec![0x9f, 0xeb, 1, 0, 24, 0, 0, 0];
        for word in [0u32, 16, 16, 1, 0, 1 << 24, 4, 0] {
            types.extend(word.to_le_bytes());
        }
        types.push(0);
        let known = OnceLock::new();
        let denied = once(&known, || Err(io::ErrorKind::PermissionDenied.into()));
        assert_eq!(denied.expect_err("not kept").kind(), io::ErrorKind::PermissionDenied);
        let read = || {
            let parsed = Btf::parse(&types, Arc::default());
            parsed.ok_or_else(|| io::Error::other("no types"))
        };
        let first = once(&known, read).expect("types");
        assert_eq!((first.types, first.strings.len()), (1, 1));
        let second = once(&known, || unreachable!("they are known")).expect("types");
        assert!(Arc::ptr_eq(&first, &second));
    }
}
