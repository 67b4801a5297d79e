//! The corpus as programs: each line of the text files becomes one or several.

use crate::assembly::{EXIT, Slot, constant, slot};

/// A program and its expected r0.
pub(crate) struct Case {
    /// The line of the corpus, and the form of the line that this is.
    pub(crate) name: String,
    /// The program.
    pub(crate) slots: Vec<Slot>,
    /// r0 at the end.
    pub(crate) expected: u64,
}

/// Stack offsets at which memory instructions are tried.
const OFFSETS: [i16; 3] = [-8, -512, -77];

/// All cases of all files.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (text, read) in [
        (include_str!("arithmetic.txt"), arithmetic as fn(&Line, &mut Vec<Case>)),
        (include_str!("unary.txt"), unary),
        (include_str!("jumps.txt"), jump),
        (include_str!("memory.txt"), memory),
        (include_str!("atomics.txt"), atomic),
    ] {
        for line in lines(text) {
            let line = Line::parse(line);
            let before = cases.len();
            read(&line, &mut cases);
            assert!(cases.len() > before, "the line is used: {}", line.text);
        }
    }
    cases.extend(lines(include_str!("programs.txt")).map(program));
    cases
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// `name operand… = result…`
struct Line<'a> {
    text: &'a str,
    name: &'a str,
    operands: Vec<&'a str>,
    results: Vec<&'a str>,
}

impl<'a> Line<'a> {
    fn parse(text: &'a str) -> Line<'a> {
        let (left, right) = text.split_once(" = ").expect("a line has a result");
        let mut words = left.split_whitespace();
        let name = words.next().expect("a line begins with a name");
        Line { text, name, operands: words.collect(), results: right.split_whitespace().collect() }
    }

    fn operand(&self, index: usize) -> u64 {
        number(self.operands[index])
    }

    fn result(&self, index: usize) -> u64 {
        number(self.results[index])
    }

    /// The name without the width at its end, and whether the width is 64.
    fn sized(&self) -> (&'a str, bool) {
        let wide = self.name.ends_with("64");
        let name = self.name.strip_suffix(if wide { "64" } else { "32" });
        (name.expect("the name ends with a width"), wide)
    }

    fn case(&self, form: &str, parts: &[&[Slot]], expected: u64) -> Case {
        Case { name: format!("{} ({form})", self.text), slots: parts.concat(), expected }
    }
}

fn number(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap_or_else(|_| panic!("{text} is not a number"))
}

/// The value as an immediate, if it fits into one.
fn immediate(value: u64, wide: bool) -> Option<i32> {
    let candidate = value as i32;
    let fits = if wide { i64::from(candidate) as u64 == value } else { value >> 32 == 0 };
    fits.then_some(candidate)
}

fn arithmetic(line: &Line, cases: &mut Vec<Case>) {
    let (name, wide) = line.sized();
    let (code, offset) = match name {
        "add" => (0x00, 0),
        "sub" => (0x10, 0),
        "mul" => (0x20, 0),
        "div" => (0x30, 0),
        "sdiv" => (0x30, 1),
        "or" => (0x40, 0),
        "and" => (0x50, 0),
        "lsh" => (0x60, 0),
        "rsh" => (0x70, 0),
        "mod" => (0x90, 0),
        "smod" => (0x90, 1),
        "xor" => (0xa0, 0),
        "mov" => (0xb0, 0),
        "arsh" => (0xc0, 0),
        _ => panic!("{name} is not an operation"),
    };
    let opcode = code | if wide { 0x07 } else { 0x04 };
    let (a, b) = (constant(0, line.operand(0)), constant(2, line.operand(1)));
    let register = [slot(opcode | 0x08, 0, 2, offset, 0), EXIT];
    cases.push(line.case("register", &[&a, &b, &register], line.result(0)));
    // Operands whose values the translation cannot know.
    let hidden = [
        slot(0x7b, 10, 0, -8, 0),
        slot(0x7b, 10, 2, -16, 0),
        slot(0x79, 0, 10, -8, 0),
        slot(0x79, 2, 10, -16, 0),
    ];
    cases.push(line.case("memory", &[&a, &b, &hidden, &register], line.result(0)));
    if let Some(value) = immediate(line.operand(1), wide) {
        let immediate = [slot(opcode, 0, 0, offset, value), EXIT];
        cases.push(line.case("immediate", &[&a, &immediate], line.result(0)));
        let parts: [&[Slot]; 4] = [&a, &b, &hidden[..3], &immediate];
        cases.push(line.case("immediate, memory", &parts, line.result(0)));
    }
}

fn unary(line: &Line, cases: &mut Vec<Case>) {
    let value = constant(2, line.operand(0));
    let copy = slot(0xbf, 0, 2, 0, 0);
    let in_place = |opcode, immediate| vec![copy, slot(opcode, 0, 0, 0, immediate), EXIT];
    let code = match line.name {
        "neg64" => in_place(0x87, 0),
        "neg32" => in_place(0x84, 0),
        "movs8_64" => vec![slot(0xbf, 0, 2, 8, 0), EXIT],
        "movs16_64" => vec![slot(0xbf, 0, 2, 16, 0), EXIT],
        "movs32_64" => vec![slot(0xbf, 0, 2, 32, 0), EXIT],
        "movs8_32" => vec![slot(0xbc, 0, 2, 8, 0), EXIT],
        "movs16_32" => vec![slot(0xbc, 0, 2, 16, 0), EXIT],
        "le16" => in_place(0xd4, 16),
        "le32" => in_place(0xd4, 32),
        "le64" => in_place(0xd4, 64),
        "be16" => in_place(0xdc, 16),
        "be32" => in_place(0xdc, 32),
        "be64" => in_place(0xdc, 64),
        "bswap16" => in_place(0xd7, 16),
        "bswap32" => in_place(0xd7, 32),
        "bswap64" => in_place(0xd7, 64),
        name => panic!("{name} is not an operation"),
    };
    cases.push(line.case("constant", &[&value, &code], line.result(0)));
    let hidden = [slot(0x7b, 10, 2, -8, 0), slot(0x79, 2, 10, -8, 0)];
    cases.push(line.case("memory", &[&value, &hidden, &code], line.result(0)));
}

fn jump(line: &Line, cases: &mut Vec<Case>) {
    let (name, wide) = line.sized();
    let code = match name {
        "jeq" => 0x10,
        "jgt" => 0x20,
        "jge" => 0x30,
        "jset" => 0x40,
        "jne" => 0x50,
        "jsgt" => 0x60,
        "jsge" => 0x70,
        "jlt" => 0xa0,
        "jle" => 0xb0,
        "jslt" => 0xc0,
        "jsle" => 0xd0,
        _ => panic!("{name} is not a condition"),
    };
    let opcode = code | if wide { 0x05 } else { 0x06 };
    let (a, b) = (line.operand(0), line.operand(1));
    let mut forms = vec![("register", slot(opcode | 0x08, 1, 2, 0, 0))];
    forms.extend(immediate(b, wide).map(|b| ("immediate", slot(opcode, 1, 0, 0, b))));
    let mov = |value| slot(0xb7, 0, 0, 0, value);
    for (form, jump) in forms {
        let with_offset = |offset: i16| {
            let mut jump = jump;
            jump[2..4].copy_from_slice(&offset.to_le_bytes());
            jump
        };
        let operands = [constant(1, a), constant(2, b)].concat();
        let forwards = [with_offset(2), mov(0), EXIT, mov(1), EXIT];
        cases.push(line.case(form, &[&operands, &forwards], line.result(0)));
        // Jumps over the block that returns 1, then back to it.
        let over = slot(0x05, 0, 0, 2, 0);
        let backwards = [over, mov(1), EXIT, with_offset(-3), mov(0), EXIT];
        let name = format!("{form}, backwards");
        cases.push(line.case(&name, &[&operands, &backwards], line.result(0)));
        // Over one instruction, which native code does without a jump.
        let parts: [&[Slot]; 2] = [&operands, &[mov(1), with_offset(1), mov(0), EXIT]];
        cases.push(line.case(&format!("{form}, one skipped"), &parts, line.result(0)));
    }
}

fn memory(line: &Line, cases: &mut Vec<Case>) {
    let (is_load, opcode, sign) = match line.name {
        "ldxb" => (true, 0x71, false),
        "ldxh" => (true, 0x69, false),
        "ldxw" => (true, 0x61, false),
        "ldxdw" => (true, 0x79, false),
        "ldxsb" => (true, 0x91, true),
        "ldxsh" => (true, 0x89, true),
        "ldxsw" => (true, 0x81, true),
        "stxb" => (false, 0x73, false),
        "stxh" => (false, 0x6b, false),
        "stxw" => (false, 0x63, false),
        "stxdw" => (false, 0x7b, false),
        "stb" => (false, 0x72, true),
        "sth" => (false, 0x6a, true),
        "stw" => (false, 0x62, true),
        "stdw" => (false, 0x7a, true),
        name => panic!("{name} is not an access"),
    };
    for offset in OFFSETS {
        let form = format!("offset {offset}");
        if is_load {
            let bytes = number(line.operands[0]).swap_bytes();
            let load = [slot(0x7b, 10, 2, offset, 0), slot(opcode, 0, 10, offset, 0), EXIT];
            cases.push(line.case(&form, &[&constant(2, bytes), &load], line.result(0)));
            continue;
        }
        let fill = slot(0x7b, 10, 3, offset, 0);
        let value = line.operand(0);
        let store = if sign {
            slot(opcode, 10, 0, offset, value as i32)
        } else {
            slot(opcode, 10, 2, offset, 0)
        };
        let before = [constant(3, 0x5a5a_5a5a_5a5a_5a5a), constant(2, value)].concat();
        let code = [fill, store, slot(0x79, 0, 10, offset, 0), EXIT];
        let expected = number(line.results[0]).swap_bytes();
        cases.push(line.case(&form, &[&before, &code], expected));
    }
}

fn atomic(line: &Line, cases: &mut Vec<Case>) {
    let (name, wide) = line.sized();
    let operation = match name {
        "add" => 0x00,
        "or" => 0x40,
        "and" => 0x50,
        "xor" => 0xa0,
        "add_fetch" => 0x01,
        "or_fetch" => 0x41,
        "and_fetch" => 0x51,
        "xor_fetch" => 0xa1,
        "xchg" => 0xe1,
        "cmpxchg" => 0xf1,
        _ => panic!("{name} is not an atomic operation"),
    };
    let opcode = if wide { 0xdb } else { 0xc3 };
    let values: Vec<Slot> = (0..3)
        .flat_map(|index| constant([3, 2, 0][index], line.operand(index)))
        .chain([slot(0x7b, 10, 3, -8, 0), slot(opcode, 10, 2, -8, operation)])
        .collect();
    let looks = [
        ("memory", vec![slot(0x79, 0, 10, -8, 0), EXIT]),
        ("source", vec![slot(0xbf, 0, 2, 0, 0), EXIT]),
        ("r0", vec![EXIT]),
    ];
    for (index, (form, look)) in looks.into_iter().enumerate() {
        cases.push(line.case(form, &[&values, &look], line.result(index)));
    }
}

/// `name: slot, slot, … = r0`; a slot is 8 bytes.
fn program(text: &str) -> Case {
    let (name, rest) = text.split_once(": ").expect("a program has a name");
    let (code, expected) = rest.split_once(" = ").expect("a program has a result");
    let slots = code
        .split(", ")
        .map(|slot| {
            let digits: String = slot.split_whitespace().collect();
            assert_eq!(digits.len(), 16, "{name}: {slot} is a slot");
            number(&digits).to_be_bytes()
        })
        .collect();
    Case { name: name.to_owned(), slots, expected: number(expected) }
}
