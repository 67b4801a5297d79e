//! Objects as clang writes them.

mod clang;
mod hostile;
mod maps;

use bpfof_function::kernel::KernelProgram;
use bpfof_function::kernel::machine::{self, KernelEnd};
use bpfof_function::{
    Alone, Arena, Exit, Fault, FaultKind, NativeFunction, Object, abi, fuzz, interpret,
    object::Entry,
};
use clang::Clang;
use proptest::prelude::*;

fn entry(object: &[u8], name: &str) -> Entry {
    let object = Object::parse(object).expect("a valid object");
    let index = object.entries().iter().position(|entry| entry.name == name);
    object.into_entry(index.expect("the entry is there")).expect("the entry is there")
}

/// Runs an entry on both engines with 512 bytes of zeroes as data.
fn run(entry: &Entry) -> Result<u64, Fault> {
    let native = NativeFunction::compile(&entry.program).expect("translates");
    let outcomes = [true, false].map(|is_native| {
        let mut arena = Arena::new();
        arena.begin_chain(&[], abi::DEFAULT_SCRATCH_BYTES);
        arena.begin_hop(0);
        let limit = arena.begin_call(0..512, 0, 0, 0);
        let mut budget = 100_000;
        if is_native {
            native.call(&mut arena, limit, &mut budget, &mut Alone)
        } else {
            interpret(&entry.program, &mut arena, limit, &mut budget, &mut Alone)
        }
    });
    assert_eq!(outcomes[0], outcomes[1]);
    if let Some(outcome) = run_in_kernel(entry) {
        assert_eq!(outcomes[0], outcome);
    }
    outcomes[0].map(returned)
}

/// The same, rewritten for the kernel; None if it calls a helper that the kernel does not have.
fn run_in_kernel(entry: &Entry) -> Option<Result<Exit, Fault>> {
    let translated = KernelProgram::translate(&entry.program).expect("is short enough");
    let mut arena = Arena::new();
    arena.begin_chain(&[], abi::DEFAULT_SCRATCH_BYTES);
    arena.begin_hop(0);
    let limit = arena.begin_call(0..512, 0, 0, 0);
    match machine::run(&entry.program, &translated, &mut arena, limit, &mut 100_000) {
        KernelEnd::Same(outcome) => Some(outcome),
        KernelEnd::Helper => None,
    }
}

#[test]
fn shipped_functions_can_be_rewritten_for_the_kernel() {
    let functions = concat!(env!("CARGO_MANIFEST_DIR"), "/../../functions");
    let mut rewritten = 0;
    for file in std::fs::read_dir(functions).expect("the functions").flatten() {
        if !file.file_name().to_string_lossy().ends_with(".bpf.c") {
            continue;
        }
        let object = Object::parse(&Clang::default().compile_file(&file.path())).expect("valid");
        for entry in object.entries() {
            let before = entry.program.instructions().len();
            let after = KernelProgram::translate(&entry.program).expect("fits").slots().len();
            assert!(after < 10 * before + 200, "{}: {before} became {after}", entry.name);
            println!("{}: {before} instructions became {after}", entry.name);
            rewritten += 1;
        }
    }
    assert!(rewritten >= 8, "{rewritten} functions");
}

fn returned(exit: Exit) -> u64 {
    match exit {
        Exit::Return(result) => result,
        Exit::TailCall(function) => panic!("goes on in function {function}"),
    }
}

#[test]
fn faults_name_line_address_and_bounds() {
    let data_end = abi::DATA + 512;
    for clang in Clang::all() {
        let object = clang.compile("lines");
        let explain = |name| {
            let entry = entry(&object, name);
            run(&entry).expect_err("a fault").explain(&entry.program)
        };
        let past = explain("past");
        assert!(past.contains("/lines.bpf.c:8: instruction "), "{past}");
        assert!(past.contains("in `return ctx->data_end[2];`"), "{past}");
        let place = format!(
            " = {data_end:#x}, access outside its memory at {:#x}, 2 bytes past the end of the data",
            data_end + 2
        );
        assert!(past.contains(&place), "{past}");
        let list = format!(
            "scratch {:#x}..{:#x}, data {:#x}..{data_end:#x})",
            abi::SCRATCH,
            abi::DATA,
            abi::DATA
        );
        assert!(past.ends_with(&list), "{past}");
        let null = explain("null");
        assert!(null.contains("/lines.bpf.c:13: "), "{null}");
        assert!(null.contains("at 0x0, a null pointer"), "{null}");
        let before = explain("before");
        assert!(before.contains("/lines.bpf.c:25: "), "{before}");
        assert!(before.contains("8 bytes before the stack"), "{before}");
        let endless = explain("endless");
        assert!(endless.contains("/lines.bpf.c:3"), "{endless}");
        assert!(endless.ends_with("instruction budget exhausted"), "{endless}");
    }
}

#[test]
fn refusals_name_the_line() {
    for clang in Clang::all() {
        let refusal = |name| Object::parse(&clang.compile(name)).expect_err("refused").to_string();
        let helper = refusal("refused_helper");
        assert!(helper.contains("/refused_helper.bpf.c:10: `return bpfof_missing();`"), "{helper}");
        assert!(helper.contains("helper 99 does not exist"), "{helper}");
        let call = refusal("refused_call");
        assert!(call.contains("/refused_call.bpf.c:9: "), "{call}");
        assert!(call.contains("calls a function that the object does not define"), "{call}");
        let data = refusal("too_much_data");
        assert!(
            data.contains("refused: its static variables and constants take 3100 bytes"),
            "{data}"
        );
        let padded = refusal("padded_data");
        assert!(padded.contains("static variables and constants take 3079 bytes"), "{padded}");
        let pointer = refusal("function_pointer");
        assert!(pointer.contains("/function_pointer.bpf.c:12: "), "{pointer}");
        assert!(pointer.contains("takes the address of a function"), "{pointer}");
    }
}

/// Functions that other entry points call, in the same section or not, are neither taken nor
/// checked.
#[test]
fn an_entry_has_only_the_functions_that_it_calls() {
    for clang in Clang::all() {
        let object = clang.compile("shared");
        let parsed = |index| Object::parse_entry(&object, index);
        for (index, expected, calls) in [(0, 16, 1), (3, 16, 2), (4, 40, 2)] {
            let entry = parsed(index).expect("valid");
            assert_eq!(run(&entry).expect("no fault"), expected, "{}", entry.name);
            assert_eq!(entry.program.functions().len(), 1 + calls, "{}", entry.name);
            assert!(entry.program.statics().constants().is_empty(), "{}", entry.name);
        }
        let refusal = parsed(1).expect_err("calls a helper that does not exist").to_string();
        assert!(refusal.contains("/shared.bpf.c:11: `return missing() + "), "{refusal}");
        let third = parsed(2).expect("valid");
        assert_eq!(run(&third).expect("no fault"), 21);
        assert!(!third.program.statics().constants().is_empty());
    }
}

#[test]
fn two_functions_in_one_section_are_refused() {
    let text = r#"
        #include "bpfof.h"
        SEC("bpfof/x") int one(struct bpfof_ctx *ctx) { return ctx->offset != 0; }
        SEC("bpfof/x") int two(struct bpfof_ctx *ctx) { return ctx->offset == 0; }
    "#;
    let object = Clang::default().compile_text(text);
    let refusal = Object::parse(&object).expect_err("refused").to_string();
    assert!(
        refusal.starts_with("the section bpfof/x has two functions, one and two;"),
        "{refusal}"
    );
}

/// Section headers may claim many times that one table of relocations belongs to a section.
#[test]
fn relocations_have_a_limit() {
    let mut object = Clang::default().compile("natural");
    let number = |object: &[u8], at: usize, bytes: usize| {
        (0..bytes).rev().fold(0, |all, index| all << 8 | usize::from(object[at + index]))
    };
    let (headers, count) = (number(&object, 0x28, 8), number(&object, 0x3c, 2));
    let header = |index: usize| headers + 64 * index;
    let is_table = |object: &[u8], at: usize| number(object, at + 4, 4) == 9;
    let is_code = |object: &[u8], at: usize| number(object, at + 8, 8) & 4 != 0;
    // The table of a section with code, and the section.
    let (table, section) = (0..count)
        .filter(|index| is_table(&object, header(*index)))
        .map(|index| (index, number(&object, header(index) + 0x2c, 4)))
        .find(|(_, section)| is_code(&object, header(*section)))
        .expect("code that refers to something");
    let code_bytes = number(&object, header(section) + 0x20, 8);
    let at = number(&object, header(table) + 0x18, 8);
    let first: Vec<u8> = object[at..at + 16].to_vec();
    let longer = first.repeat(code_bytes / 8 + 1);
    let moved_to = object.len() as u64;
    object[header(table) + 0x18..][..8].copy_from_slice(&moved_to.to_le_bytes());
    object[header(table) + 0x20..][..8].copy_from_slice(&(longer.len() as u64).to_le_bytes());
    object.extend(longer);
    let refusal = Object::parse(&object).expect_err("refused").to_string();
    assert!(refusal.contains("has more relocations than the limit"), "{refusal}");
}

/// The value of byte `index` of the data.
fn data(index: usize) -> u8 {
    (7 * index + 3) as u8
}

/// Runs an entry on both engines until the chain ends; returns the word that it leaves at the start
/// of scratch.
fn chain(entry: &Entry) -> Result<u64, Fault> {
    let native = NativeFunction::compile(&entry.program).expect("translates");
    let mut arenas = [true, false].map(|is_native| (is_native, Arena::new()));
    let outcomes = arenas.each_mut().map(|(is_native, arena)| {
        for (index, byte) in arena.data_mut(0..512).iter_mut().enumerate() {
            *byte = data(index);
        }
        arena.begin_chain(&[], abi::DEFAULT_SCRATCH_BYTES);
        for hop in 0..10 {
            arena.begin_hop(hop);
            let limit = arena.begin_call(0..512, 0, 0, 0);
            let mut budget = 100_000;
            let code = if *is_native {
                native.call(arena, limit, &mut budget, &mut Alone)?
            } else {
                interpret(&entry.program, arena, limit, &mut budget, &mut Alone)?
            };
            assert_eq!(code, Exit::Return(0), "{}", entry.name);
            if arena.context_u32(abi::context::DONE) != 0 {
                let (answer, _) = arena.scratch().split_first_chunk().expect("8 bytes");
                return Ok(u64::from_le_bytes(*answer));
            }
        }
        panic!("{} does not end", entry.name);
    });
    assert_eq!(outcomes[0], outcomes[1], "{}", entry.name);
    assert!(arenas[0].1.bytes() == arenas[1].1.bytes(), "{}: memory differs", entry.name);
    outcomes[0]
}

/// The results of `natural.bpf.c`, computed in Rust.
fn expected() -> Vec<(&'static str, u64)> {
    let data: Vec<u8> = (0..512).map(data).collect();
    let bytes = || data.iter().map(|&byte| u64::from(byte));
    let indexed = bytes().zip(0..).map(|(byte, index)| byte * index).sum();
    let walk = bytes().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    let pairs = data.as_chunks::<2>().0;
    let backwards: i64 = pairs.iter().map(|&pair| i64::from(i16::from_le_bytes(pair)) * 3).sum();
    let records = data.as_chunks::<8>().0;
    let early = records.iter().find(|record| record[4] > 250 && record[6] < 100);
    let early = early.map(|&[a, b, c, d, ..]| u32::from_le_bytes([a, b, c, d])).expect("one");
    let table = |byte: &u8| match byte {
        0 => 1,
        3 => 500,
        10 => 40,
        17 => 3,
        24 => 2000,
        255 => 65535,
        _ => 0,
    };
    let classes = [5, 81, 7, 1024, 3, 99, 12, 0, 64, 1, 0, 17];
    let narrow = records.iter().fold(0i64, |sum, record| {
        let wide = i64::from_le_bytes(*record);
        let (middle, half, byte) = (wide as i32, wide as i16, wide as i8);
        let sum = sum.wrapping_add(wide >> 40) ^ i64::from(middle);
        let sum = sum.wrapping_add(i64::from(half) * i64::from(byte));
        sum.wrapping_sub(i64::from((middle >> 4) as i8))
    });
    vec![
        ("indexed", indexed),
        ("walk", walk),
        ("backwards", backwards as u64),
        ("early", u64::from(early)),
        ("strings", 71),
        ("tables", data.iter().map(table).sum()),
        ("switch", data.iter().map(|&byte| classes[usize::from(byte) % 12]).sum()),
        ("variables", 3_000_000 + 100_000 + 200),
        ("pointers", 321),
        ("recursive", weigh(&data, 0, 1, 5)),
        ("signed", narrow as u64),
    ]
}

fn weigh(data: &[u8], first: usize, step: usize, depth: usize) -> u64 {
    let mut frame: Vec<u64> = (0..8).map(|i| data[(first + i * step) % 512].into()).collect();
    if depth > 0 {
        frame[3] += weigh(data, first + 1, step + 2, depth - 1);
    }
    frame[0] + 2 * frame[3] + frame[7]
}

/// The results of `blocks.bpf.c`, computed in Rust.
fn blocks() -> Vec<(&'static str, u64)> {
    let data: Vec<u8> = (0..512).map(data).collect();
    let number = |at: usize, size: usize, is_big_endian: bool| {
        let mut bytes = data[at..at + size].to_vec();
        if is_big_endian {
            bytes.reverse();
        }
        bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let loads = [
        (1, 1, 2, false),
        (3, 2, 2, true),
        (5, 3, 4, false),
        (7, 5, 4, true),
        (9, 7, 8, false),
        (11, 9, 8, true),
    ];
    let loads = loads.iter().fold(512_u64, |sum, &(factor, at, size, is_big_endian)| {
        sum.wrapping_add(number(at, size, is_big_endian).wrapping_mul(factor))
    });
    let cursor = [(0, 2), (2, 4), (6, 8)].iter().map(|&(at, size)| number(at, size, false));
    let varints = [0, 127, 128, 300, u64::from(u32::MAX), 1 << 32, u64::MAX];
    let add = |sum: u64, number: &u64| sum.wrapping_mul(3).wrapping_add(*number);
    let table = [1, 3, 3, 3, 7, u64::MAX];
    let search = (0..9).chain([u64::MAX]).fold(0_u64, |sum, key| {
        let below = table.iter().filter(|number| **number < key).count() as u64;
        let not_above = table.iter().filter(|number| **number <= key).count() as u64;
        (sum * 7 + below) * 7 + not_above
    });
    vec![
        ("loads", loads),
        ("cursor", cursor.fold(0, u64::wrapping_add)),
        ("narrow", varints[..5].iter().fold(0, add)),
        ("wide", varints.iter().fold(0, add)),
        ("too_wide", 0),
        ("far_too_wide", 0),
        ("endless", 0),
        ("search", search),
        ("compare", 0b001_1111),
    ]
}

#[test]
fn building_blocks_do_what_they_say() {
    for clang in Clang::all() {
        let object = clang.compile("blocks");
        for (name, expected) in blocks() {
            assert_eq!(chain(&entry(&object, name)), Ok(expected), "{name} by {clang:?}");
        }
    }
}

#[test]
fn natural_c_runs_with_every_compiler_setting() {
    for clang in Clang::all() {
        let object = clang.compile("natural");
        for (name, expected) in expected() {
            assert_eq!(chain(&entry(&object, name)), Ok(expected), "{name} by {clang:?}");
        }
        for name in ["write_constant", "fill_constant"] {
            let entry = entry(&object, name);
            let fault = chain(&entry).expect_err("a fault");
            let FaultKind::ReadOnly { address } = fault.kind else { panic!("{name}: {fault:?}") };
            assert!(entry.program.statics().constants().contains(&address), "{name} by {clang:?}");
            let words = fault.explain(&entry.program);
            let register = format!(" = {address:#x}, write to constant data at {address:#x}");
            assert!(words.contains(&register), "{words}");
        }
    }
}

#[test]
fn signed_division_of_v4_runs() {
    let words = (0..512).map(data).collect::<Vec<u8>>();
    let words = words.as_chunks::<4>().0.iter().map(|&word| i32::from_le_bytes(word));
    // A word below 2^20 would divide by zero, which eBPF defines and C does not: there is none in
    // the data.
    let quotient = |word: i32| i64::from(word) / i64::from(word >> 20);
    let sum: i64 = words.map(|word| i64::from(word / 7 + word % 1000) + quotient(word)).sum();
    for clang in Clang::all().iter().filter(|clang| clang.cpu == "v4") {
        let object = clang.compile("division");
        assert_eq!(chain(&entry(&object, "divide")), Ok(sum as u64), "{clang:?}");
    }
}

#[test]
fn doubles_in_c() {
    for clang in Clang::all() {
        let object = clang.compile("numbers");
        let mean = f64::from_bits(chain(&entry(&object, "mean")).expect("no fault"));
        assert_eq!(mean, (12.5 - 3.0 + 70.0 + 0.25) / 4.0, "{clang:?}");
    }
}

#[test]
fn functions_without_static_data_have_none() {
    let object = Clang::default().compile("natural");
    assert!(entry(&object, "walk").program.statics().constants().is_empty());
    assert!(entry(&object, "walk").program.statics().variables().is_empty());
    assert!(entry(&object, "tables").program.statics().variables().is_empty());
    assert!(!entry(&object, "variables").program.statics().variables().is_empty());
}

/// Functions share an arena as after tail calls and replacements.
#[test]
fn variables_last_until_another_function_runs() {
    let object = Clang::default().compile("counting");
    let entries = ["by_one", "by_ten", "without"].map(|name| entry(&object, name));
    let natives = entries
        .each_ref()
        .map(|entry| NativeFunction::compile(&entry.program).expect("translates"));
    // The first one compiled twice gives two distinct functions.
    let again = entry(&object, "by_one");
    let again_native = NativeFunction::compile(&again.program).expect("translates");
    for is_native in [true, false] {
        let mut arena = Arena::new();
        let call = |arena: &mut Arena, index: usize| {
            let limit = arena.begin_call(0..512, 0, 0, 0);
            let (program, native) = match entries.get(index) {
                Some(entry) => (&entry.program, &natives[index]),
                None => (&again.program, &again_native),
            };
            let mut budget = 1000;
            let exit = if is_native {
                native.call(arena, limit, &mut budget, &mut Alone)
            } else {
                interpret(program, arena, limit, &mut budget, &mut Alone)
            };
            assert_eq!(exit, Ok(Exit::Return(0)));
            u64::from(arena.scratch()[0])
        };
        for _ in 0..2 {
            arena.begin_chain(&[], abi::DEFAULT_SCRATCH_BYTES);
            let counts: Vec<u64> =
                [0, 0, 1, 1, 0, 0, 2, 0, 3, 3].map(|index| call(&mut arena, index)).into();
            assert_eq!(counts, [1, 2, 50, 60, 1, 2, 7, 1, 1, 2]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any damage to a real object, debug information included, gives an object or an error.
    #[test]
    fn damaged_objects_do_no_harm(
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..20),
    ) {
        static OBJECT: std::sync::LazyLock<Vec<u8>> =
            std::sync::LazyLock::new(|| Clang::default().compile("lines"));
        let mut object = OBJECT.clone();
        for (at, byte) in damage {
            let at = at.index(object.len());
            object[at] = byte;
        }
        fuzz::object(&object);
    }
}
