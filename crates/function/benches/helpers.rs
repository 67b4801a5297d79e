//! Costs of helpers: the time of a call by length, and the units that it takes from the budget.
//!
//! `cargo bench -p bpfof-function --bench helpers`

#[path = "../tests/assembly/mod.rs"]
mod assembly;

use assembly::{EXIT, constant, slot};
use bpfof_function::{Alone, Arena, Exit, NativeFunction, Program, abi};
use std::time::Instant;

/// Calls of the helper in one call of the function.
const CALLS: i32 = 64;
const ROUNDS: usize = 200;

/// A function that calls the helper repeatedly with the same arguments, and returns its last
/// result.
fn program(helper: Option<i32>, arguments: &[u64]) -> Program {
    let mut code = vec![slot(0x85, 0, 0, 0, 12), slot(0xb7, 6, 0, 0, CALLS)];
    for (register, value) in (1..).zip(arguments) {
        code.extend(constant(register, *value));
    }
    code.extend(helper.map(|helper| slot(0x85, 0, 0, 0, helper)));
    code.push(slot(0x17, 6, 0, 0, 1));
    let back = -(code.len() as i16) + 1;
    code.push(slot(0x55, 6, 0, back, 0));
    code.push(EXIT);
    Program::parse(code.as_flattened()).expect("valid")
}

/// Nanoseconds and units that one call of the function takes, and its return value.
fn measure(program: &Program, data: &[u8]) -> (f64, i64, u64) {
    let native = NativeFunction::compile(program).expect("translates");
    let mut arena = Arena::new();
    arena.data_mut(0..data.len()).copy_from_slice(data);
    arena.begin_chain(&[], abi::MAX_SCRATCH_BYTES);
    let limit = arena.begin_call(0..data.len(), 0, 0, 0);
    let (mut best, mut paid, mut result) = (f64::INFINITY, 0, 0);
    for _ in 0..ROUNDS {
        let mut left = 1 << 40;
        let started = Instant::now();
        let exit = native.call(&mut arena, limit, &mut left, &mut Alone);
        best = best.min(started.elapsed().as_nanos() as f64);
        paid = (1 << 40) - left;
        let Ok(Exit::Return(value)) = exit else { panic!("{exit:?}") };
        result = value;
    }
    (best, paid, result)
}

fn show(name: &str, helper: i32, arguments: &[u64], data: &[u8]) {
    let (empty_ns, empty_paid, _) = measure(&program(None, arguments), data);
    let (ns, paid, result) = measure(&program(Some(helper), arguments), data);
    let calls = f64::from(CALLS);
    println!(
        "{name:<28} {:>10.1} ns {:>9.0} units   ({})",
        (ns - empty_ns) / calls,
        (paid - empty_paid) as f64 / calls,
        result as i64
    );
}

/// Text with repetitions, as records have.
fn records(bytes: usize) -> Vec<u8> {
    let record = |i: u64| format!("user{:07}:name=n{};", i, i.wrapping_mul(0x9e37_79b9) % 9973);
    let mut text: Vec<u8> = (0..bytes as u64 / 16).flat_map(|i| record(i).into_bytes()).collect();
    text.truncate(bytes);
    text
}

fn decompression() {
    for size in [4096, 16_384, 65_536] {
        let text = records(size);
        let mut frame = vec![0; zstd_safe::compress_bound(size)];
        let length = zstd_safe::compress(&mut frame[..], &text, 3).expect("compresses");
        frame.truncate(length);
        let formats = [
            ("snappy", 1, snap::raw::Encoder::new().compress_vec(&text).expect("compresses")),
            ("lz4", 4, lz4_flex::block::compress(&text)),
            ("zstd", 7, frame),
        ];
        for (name, format, block) in formats {
            let length = block.len() as u64;
            let arguments = [format, abi::WORKSPACE, size as u64, abi::DATA, length];
            show(&format!("decompress {name} {length} to {size}"), 11, &arguments, &block);
        }
    }
    // The most expensive blocks: each produces no bytes, or one.
    let literals: Vec<u8> = (0..4096).flat_map(|_| [0, b'x']).collect();
    let snappy = [&[0x80, 0x20][..], &literals].concat();
    let arguments = [1, abi::WORKSPACE, 4096, abi::DATA, snappy.len() as u64];
    show("decompress snappy, 1 by 1", 11, &arguments, &snappy);
}

fn main() {
    let data = records(65_536);
    let at = abi::DATA;
    for len in [0, 8, 64, 512, 4096, 16_384] {
        show(&format!("memcmp {len}"), 1, &[at, at, len], &data);
        show(&format!("memmove {len}"), 2, &[abi::SCRATCH, at, len], &data);
        show(&format!("memset {len}"), 3, &[abi::SCRATCH, 7, len], &data);
        show(&format!("crc32c {len}"), 4, &[at, 0, len], &data);
        show(&format!("find {len}"), 5, &[at, 0, len], &data);
        show(&format!("xxh3 {len}"), 8, &[at, 0, len], &data);
        show(&format!("xxh3 with a seed {len}"), 8, &[at, 1, len], &data);
    }
    for len in [64u64, 512, 4096, 16_384] {
        let [none, some, every] = [0u64, 0x3a3b_3a3b, 0x3030_3030];
        let zeroes = vec![b'0'; 65_536];
        for (name, bytes, data) in
            [("none", none, &data), ("some", some, &data), ("every", every, &zeroes)]
        {
            let arguments = [at, len, bytes, abi::WORKSPACE, len];
            show(&format!("find_all {name} of {len}"), 15, &arguments, data);
        }
    }
    for text in ["7,", "-1234567,", "18446744073709551615,"] {
        let arguments = [at, text.len() as u64, 0x10a, abi::SCRATCH];
        show(&format!("parse_int {text}"), 7, &arguments, text.as_bytes());
    }
    let exact = format!("1.{}1", "0".repeat(120));
    for text in ["3.14,", "-1.7976931348623157e308,", "9007199254740993.00000000000001,", &exact] {
        let arguments = [at, text.len() as u64, abi::SCRATCH];
        show(&format!("parse_double {:.14}", text), 9, &arguments, text.as_bytes());
    }
    for (name, operation) in [("double add", 0), ("double div", 3), ("double to integer", 7)] {
        show(name, 10, &[operation, 3f64.to_bits(), 7f64.to_bits()], &data);
    }
    show("tail_call, no other function", 6, &[9], &data);
    show("workspace", 12, &[], &data);
    show("trace, no listener", 13, &[at, 64, 1], &data);
    decompression();
}
