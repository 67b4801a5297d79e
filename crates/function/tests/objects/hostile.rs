//! Objects made by hand to take a long time: they are refused at once.

use bpfof_function::Object;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Processor time. A normal object of the same size takes a hundredth of this.
const AT_ONCE: Duration = Duration::from_secs(1);
const NAMES: &[u8] = b"\0bpfof/x\0X\0";
const ENTRY_NAME: u32 = 1;
const OTHER_NAME: u32 = 9;

const PROGBITS: u32 = 1;
const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
const NOBITS: u32 = 8;
const REL: u32 = 9;
const CREL: u32 = 0x4000_0014;

#[derive(Clone, Copy, Default)]
struct Section {
    name: u32,
    kind: u32,
    flags: u64,
    at: usize,
    size: u64,
    link: u32,
    info: u32,
}

impl Section {
    fn header(self) -> Vec<u8> {
        let Section { name, kind, flags, at, size, link, info } = self;
        let entry = if kind == SYMTAB { 24u64 } else { 16 };
        [
            &name.to_le_bytes()[..],
            &kind.to_le_bytes(),
            &flags.to_le_bytes(),
            &[0; 8],
            &(at as u64).to_le_bytes(),
            &size.to_le_bytes(),
            &link.to_le_bytes(),
            &info.to_le_bytes(),
            &8u64.to_le_bytes(),
            &entry.to_le_bytes(),
        ]
        .concat()
    }
}

/// An object with these sections, whose contents are in `body`, which begins at offset 64.
fn object(body: &[u8], sections: &[Section], names: u16) -> Vec<u8> {
    let headers_at = (64 + body.len()).next_multiple_of(8);
    let mut object = b"\x7fELF\x02\x01\x01".to_vec();
    object.resize(16, 0);
    object.extend(1u16.to_le_bytes());
    object.extend(247u16.to_le_bytes());
    object.extend(1u32.to_le_bytes());
    object.extend([0; 16]);
    object.extend((headers_at as u64).to_le_bytes());
    object.extend([0; 4]);
    for number in [64, 0, 0, 64, sections.len() as u16, names] {
        object.extend(number.to_le_bytes());
    }
    object.extend(body);
    object.resize(headers_at, 0);
    object.extend(sections.iter().flat_map(|section| section.header()));
    object
}

/// Adds contents of a section; returns their offset in the object and their size.
fn put(body: &mut Vec<u8>, contents: &[u8]) -> (usize, u64) {
    body.resize(body.len().next_multiple_of(8), 0);
    let at = 64 + body.len();
    body.extend(contents);
    (at, contents.len() as u64)
}

/// The processor time of this thread.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().expect("a time")
}

fn refusal(object: &[u8]) -> String {
    let before = processor_time();
    let refusal = Object::parse_entry(object, 0).expect_err("it is refused").to_string();
    let took = processor_time() - before;
    assert!(took < AT_ONCE, "{took:?}: {refusal}");
    refusal
}

#[test]
fn one_long_name_for_thousands_of_sections() {
    let mut names = vec![b'x'; 1000];
    names.push(0);
    let none = Section::default();
    let size = names.len() as u64;
    let table = Section { kind: STRTAB, at: 64, size, ..none };
    let mut sections = vec![Section { kind: PROGBITS, ..none }; 8000];
    sections[0] = none;
    sections.push(table);
    let refusal = refusal(&object(&names, &sections, 8000));
    assert!(refusal.contains("names of its sections are longer"), "{refusal}");
}

/// Section headers may claim many times that the same bytes are relocations of a section, and that this section has any
/// size.
#[test]
fn relocations_of_what_is_neither_code_nor_data() {
    let mut body = NAMES.to_vec();
    // r0 = &X; exit
    let code = [&[0x18, 0, 0, 0][..], &[0; 12], &[0x95, 0, 0, 0, 0, 0, 0, 0]].concat();
    let code = put(&mut body, &code);
    // Symbol 1 is X, section 4.
    let mut symbols = [0; 48];
    (symbols[28], symbols[30]) = (0x13, 4);
    let symbols = put(&mut body, &symbols);
    // R_BPF_64_64 of symbol 1, at offset 0.
    let mut relocation = [0; 16];
    (relocation[8], relocation[12]) = (1, 1);
    let relocation = put(&mut body, &relocation);
    // A count in LEB128, times 8; then one byte of 0 for each.
    let count = 500_000u32;
    let mut compact: Vec<u8> = (0..4).map(|part| (count << 3 >> (7 * part)) as u8 | 0x80).collect();
    compact[3] &= 0x7f;
    compact.resize(4 + count as usize, 0);
    let compact = put(&mut body, &compact);
    let none = Section::default();
    let mut sections = vec![
        none,
        Section { name: ENTRY_NAME, kind: PROGBITS, flags: 6, at: code.0, size: code.1, ..none },
        Section { kind: SYMTAB, at: symbols.0, size: symbols.1, link: 3, info: 1, ..none },
        Section { kind: STRTAB, at: 64, size: NAMES.len() as u64, ..none },
        Section { name: OTHER_NAME, kind: NOBITS, size: 1 << 40, ..none },
        Section { kind: REL, at: relocation.0, size: relocation.1, link: 2, info: 1, ..none },
    ];
    let table = Section { kind: CREL, at: compact.0, size: compact.1, link: 2, info: 4, ..none };
    sections.extend([table; 200]);
    let refused = refusal(&object(&body, &sections, 3));
    assert!(refused.contains("refers to a section that is not data"), "{refused}");
    // The same for a section of code that is not in the file and is called; it is claimed more often still.
    let called = sections[1].at - 64;
    body[called..called + 8].copy_from_slice(&[0x85, 0x10, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    let referred = sections[5].at - 64;
    body[referred + 8] = 10;
    sections[4].flags = 6;
    sections.extend([table; 7_000]);
    let refused = refusal(&object(&body, &sections, 3));
    assert!(refused.contains("more relocations"), "{refused}");
}

/// A function with as many relocations as there may be, all of one instruction and against a section whose name is
/// `dots` dots. The relocations take a byte each.
fn relocations_of_a_section_named(dots: usize) -> Vec<u8> {
    const COUNT: u32 = 65_500;
    // r0 = &X; exit
    let mut body = [&[0x18, 0, 0, 0][..], &[0; 12], &[0x95, 0, 0, 0, 0, 0, 0, 0]].concat();
    let symbol = |info: u8, section: u8, at: u8| {
        [&[0, 0, 0, 0, info, 0, section, 0, at][..], &[0; 15]].concat()
    };
    // Symbol 1 is X, section 4; the others are functions at slots 0 and 3 of the entry.
    let symbols = [symbol(0, 0, 0), symbol(3, 4, 0), symbol(2, 1, 0), symbol(2, 1, 24)].concat();
    let symbols = put(&mut body, &symbols);
    let mut compact: Vec<u8> = (0..4).map(|part| (COUNT << 3 >> (7 * part)) as u8 | 0x80).collect();
    compact[3] &= 0x7f;
    // R_BPF_64_64 of symbol 1, and always the same again.
    compact.extend([3, 1, 1]);
    compact.resize(4 + 2 + COUNT as usize, 0);
    let compact = put(&mut body, &compact);
    let mut names = NAMES.to_vec();
    names.extend(vec![b'.'; dots]);
    names.push(0);
    let names = put(&mut body, &names);
    body.resize(body.len().max(8 * COUNT as usize), 0);
    let none = Section::default();
    let code_bytes = 8 * u64::from(COUNT);
    let name = NAMES.len() as u32;
    let sections = [
        none,
        Section { name: ENTRY_NAME, kind: PROGBITS, flags: 6, at: 64, size: code_bytes, ..none },
        Section { kind: SYMTAB, at: symbols.0, size: symbols.1, link: 3, info: 4, ..none },
        Section { kind: STRTAB, at: names.0, size: names.1, ..none },
        Section { name, kind: PROGBITS, at: 64, size: 8, ..none },
        Section { kind: CREL, at: compact.0, size: compact.1, link: 2, info: 1, ..none },
    ];
    object(&body, &sections, 3)
}

#[test]
fn one_long_name_for_thousands_of_relocations() {
    let refused = refusal(&relocations_of_a_section_named(900_000));
    assert!(refused.contains("a section has a name of more than"), "{refused}");
    // The longest name that is read.
    let refused = refusal(&relocations_of_a_section_named(1024));
    assert!(refused.contains("refers to a section that is not data"), "{refused}");
}

/// A section with a name of this length and 4096 functions, each of which calls the next. Each is looked up in the debug
/// information by the name.
fn functions_of_a_section_named(length: usize) -> Vec<u8> {
    const COUNT: usize = 4095;
    // Each function calls the next; the last only returns.
    let mut body = [0x85, 0x10, 0, 0, 0, 0, 0, 0].repeat(COUNT);
    body.extend([0x95, 0, 0, 0, 0, 0, 0, 0]);
    let code = (64, body.len() as u64);
    let mut symbols = vec![0; 24];
    for slot in 0..=COUNT as u64 {
        symbols.extend([0, 0, 0, 0, 2, 0, 1, 0]);
        symbols.extend((8 * slot).to_le_bytes());
        symbols.extend([0; 8]);
    }
    let symbols = put(&mut body, &symbols);
    let mut names = b"\0.BTF\0.BTF.ext\0bpfof/".to_vec();
    let entry = names.len() as u32 - 6;
    names.extend("é".repeat(length / 2 - 3).into_bytes());
    names.push(0);
    let names = put(&mut body, &names);
    // The debug information has one section, x, with one line.
    let header = |rest: [u32; 4]| {
        let words = [24].into_iter().chain(rest).flat_map(u32::to_le_bytes);
        [0x9f, 0xeb, 1, 0].into_iter().chain(words).chain([0; 4]).collect::<Vec<u8>>()
    };
    let btf = put(&mut body, &[header([0, 0, 0, 3]), b"\0x\0".to_vec()].concat());
    let line = [16u32, 1, 1, 0, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect();
    let extension = put(&mut body, &[header([0, 0, 0, 28]), line].concat());
    let none = Section::default();
    let section = |name, (at, size)| Section { name, kind: PROGBITS, at, size, ..none };
    let sections = [
        none,
        Section { flags: 6, ..section(entry, code) },
        Section { kind: SYMTAB, link: 3, info: 4097, ..section(0, symbols) },
        Section { kind: STRTAB, ..section(0, names) },
        section(1, btf),
        section(6, extension),
    ];
    object(&body, &sections, 3)
}

#[test]
fn one_long_name_for_thousands_of_functions() {
    let refused = refusal(&functions_of_a_section_named(900_000));
    assert!(refused.contains("a section has a name of more than"), "{refused}");
    let refused = refusal(&functions_of_a_section_named(1024));
    assert!(refused.contains("run past the end of the function"), "{refused}");
}
