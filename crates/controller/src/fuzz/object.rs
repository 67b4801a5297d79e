//! An ELF object of a storage function, made without a compiler.

/// The smallest ELF file with `code` as the entry point `follow`.
pub(super) fn object(code: &[u8]) -> Vec<u8> {
    const NAMES: &[u8] = b"\0bpfof/follow\0.shstrtab\0";
    const HEADER_BYTES: usize = 64;
    const NAMES_AT: usize = 14;
    let names_at = HEADER_BYTES + code.len();
    let sections_at = (names_at + NAMES.len()).next_multiple_of(8);
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(16, 0);
    // A relocatable file (1) for eBPF (247).
    for half in [1u16, 247] {
        bytes.extend(half.to_le_bytes());
    }
    bytes.extend(1u32.to_le_bytes());
    for word in [0, 0, sections_at as u64] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(0u32.to_le_bytes());
    // Three section headers of 64 bytes; the last one has the names.
    for half in [HEADER_BYTES as u16, 0, 0, 64, 3, 2] {
        bytes.extend(half.to_le_bytes());
    }
    bytes.extend(code);
    bytes.extend(NAMES);
    bytes.resize(sections_at + 64, 0);
    // Name, type and flags: instructions (PROGBITS, allocated, executable), then strings.
    for (name, kind, flags, at, length) in
        [(1, 1, 6, HEADER_BYTES, code.len()), (NAMES_AT, 3, 0, names_at, NAMES.len())]
    {
        for word in [name as u32, kind] {
            bytes.extend(word.to_le_bytes());
        }
        for word in [flags, 0, at as u64, length as u64, 0, 8, 0] {
            bytes.extend(u64::to_le_bytes(word));
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_loader_accepts_the_object() {
        let code = crate::rig::follow_code();
        let object = bpfof_function::Object::parse(&super::object(&code)).expect("an object");
        assert_eq!(object.entries().len(), 1);
        assert_eq!(object.entries()[0].name, "follow");
        assert_eq!(object.entries()[0].program.instructions().len(), code.len() / 8);
    }
}
