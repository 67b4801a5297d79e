//! The smallest function. Loading and unloading it uses up an id, so that the next function gets a higher one.

const HEADER_BYTES: u64 = 64;
/// `r0 = 0; exit`.
const CODE: [u8; 16] = [0xB7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
/// The names of its two sections.
const NAMES: &[u8] = b"\0bpfof/filler\0.shstrtab\0";
const NAME_OF_CODE: u32 = 1;
const NAME_OF_NAMES: u32 = 14;

/// The object: an ELF header, the code, the names, and the section headers, of which the first is the null section.
pub(super) fn object() -> Vec<u8> {
    let (code_bytes, names_bytes) = (CODE.len() as u64, NAMES.len() as u64);
    let names_at = HEADER_BYTES + code_bytes;
    let sections_at = names_at + names_bytes;
    let mut object = b"\x7FELF\x02\x01\x01".to_vec();
    object.resize(16, 0);
    // ET_REL for EM_BPF.
    for field in [1_u16, 247, 1, 0] {
        object.extend(field.to_le_bytes());
    }
    for field in [0, 0, sections_at] {
        object.extend(field.to_le_bytes());
    }
    // Sizes and counts, and last the index of the section with the names.
    for field in [0_u16, 0, 64, 0, 0, 64, 3, 2] {
        object.extend(field.to_le_bytes());
    }
    object.extend(CODE);
    object.extend(NAMES);
    let mut section = |[name, kind]: [u32; 2], [flags, at, bytes]: [u64; 3]| {
        object.extend(name.to_le_bytes());
        object.extend(kind.to_le_bytes());
        for field in [flags, 0, at, bytes, 0, 1, 0] {
            object.extend(field.to_le_bytes());
        }
    };
    section([0, 0], [0; 3]);
    // SHT_PROGBITS, allocated and executable.
    section([NAME_OF_CODE, 1], [6, HEADER_BYTES, code_bytes]);
    // SHT_STRTAB.
    section([NAME_OF_NAMES, 3], [0, names_at, names_bytes]);
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpfof_function::{NativeFunction, Object};

    #[test]
    fn the_filler_object_is_a_function() {
        let object = object();
        let parsed = Object::parse(&object).expect("an object");
        let [entry] = parsed.entries() else { panic!("one entry point") };
        assert_eq!((entry.name.as_str(), entry.program.instructions().len()), ("filler", 2));
        NativeFunction::compile(&entry.program).expect("it is translated");
        assert!(object.len() < 300, "{} bytes", object.len());
    }
}
