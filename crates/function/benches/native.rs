//! Checked native code against the same C compiled natively, in turn on the same machine.
//!
//! Both sides make the same calls with the same arguments; the fastest of many rounds counts. The C
//! side is a process of its own (`functions/native.c`) that does a round whenever it is asked to,
//! compiled by `cc -O2` (or `$CC`). Both must leave the same bytes in scratch.
//!
//! `cargo bench -p bpfof-function -- filter` runs one case.

use bpfof_function::{Alone, Arena, Exit, NativeFunction, Object, abi};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

const ROUNDS: usize = 60;

/// A function with a block and arguments that it is called with in turn.
struct Case {
    name: &'static str,
    source: &'static str,
    function: &'static str,
    block: Vec<u8>,
    arguments: Vec<Vec<u8>>,
    calls: usize,
    /// The ratio that we hold ourselves to.
    goal: f64,
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// An inner node of BPF-KV: 31 keys, and random keys to look for.
fn node() -> Case {
    let mut block = vec![0; 16];
    block.extend((0..31u64).flat_map(|index| (index * 1000).to_le_bytes()));
    block.extend((0..31u64).flat_map(|index| ((1 << 63) | ((index + 1) * 512)).to_le_bytes()));
    let mut state = 1;
    // More than branch prediction can learn.
    let keys = (0..20_000).map(|_| (random(&mut state) % 31000).to_le_bytes());
    Case {
        name: "node",
        source: "../../../../functions/bpfkv_get.bpf.c",
        function: "bpfkv_get",
        block,
        arguments: keys.map(|key| [&key[..], &[0; 8]].concat()).collect(),
        calls: 20_000,
        goal: 1.5,
    }
}

/// 256 records of 16 bytes, of which a filter takes every eighth or so.
fn filter() -> Case {
    let mut state = 2;
    let block = (0..256).flat_map(|_| {
        let key = random(&mut state).to_le_bytes();
        let kind = (random(&mut state) as u32 % 4).to_le_bytes();
        let amount = (random(&mut state) as u32 % 1000).to_le_bytes();
        [&key[..], &kind, &amount].concat()
    });
    let block = block.collect();
    let arguments = (0..4u32).map(|kind| [kind.to_le_bytes(), 500u32.to_le_bytes()].concat());
    Case {
        name: "filter",
        source: "filter.bpf.c",
        function: "filter",
        block,
        arguments: arguments.collect(),
        calls: 2_000,
        goal: 1.6,
    }
}

/// 4 KiB of sorted keys of 16 to 20 bytes with values of 20, restart points every 16 entries.
fn block() -> Case {
    let keys: Vec<String> =
        (0..120).map(|index| format!("user{:012}{}", index * 37, "x".repeat(index % 5))).collect();
    let (mut block, mut restarts, mut before) = (Vec::new(), Vec::new(), String::new());
    for (index, key) in keys.iter().enumerate() {
        let mut shared = before.bytes().zip(key.bytes()).take_while(|(a, b)| a == b).count();
        if index % 16 == 0 {
            restarts.push(block.len() as u32);
            shared = 0;
        }
        let value = format!("value of number {index:04}");
        block.extend([shared as u8, (key.len() - shared) as u8, value.len() as u8]);
        block.extend(&key.as_bytes()[shared..]);
        block.extend(value.as_bytes());
        before.clone_from(key);
    }
    block.resize(block.len().next_multiple_of(4), 0);
    let count = restarts.len() as u32;
    block.extend(restarts.into_iter().chain([count]).flat_map(u32::to_le_bytes));
    let mut state = 3;
    let arguments = (0..256).map(|_| {
        let key = keys[random(&mut state) as usize % keys.len()].as_bytes();
        let mut argument = (key.len() as u32).to_le_bytes().to_vec();
        argument.extend([0; 4]);
        argument.extend(key);
        argument.resize(72, 0);
        argument
    });
    Case {
        name: "block",
        source: "block.bpf.c",
        function: "block",
        block,
        arguments: arguments.collect(),
        calls: 3_000,
        goal: 2.2,
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/functions")
}

fn include() -> String {
    concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../../functions/include").to_owned()
}

fn must(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?} fails");
}

fn compiler(variable: &str, default: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| default.to_owned())
}

/// The process with the C.
struct Reference {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Reference {
    fn start(case: &Case, scratch: &Path) -> Reference {
        let (program, block, arguments) =
            (scratch.join("native"), scratch.join("block"), scratch.join("arguments"));
        std::fs::write(&block, &case.block).expect("writes");
        std::fs::write(&arguments, case.arguments.concat()).expect("writes");
        must(
            Command::new(compiler("CC", "cc"))
                .current_dir(folder())
                .args(["-O2", "-w", &include(), "native.c", "-o"])
                .arg(&program)
                .arg(format!("-DSOURCE=\"{}\"", case.source))
                .arg(format!("-DFUNCTION={}", case.function))
                .arg(format!("-DARGUMENT_BYTES={}", case.arguments[0].len())),
        );
        let mut child = Command::new(program)
            .args([block, arguments])
            .args([ROUNDS.to_string(), case.calls.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Reference { child, input, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }

    /// ns a call of the next round.
    fn round(&mut self) -> f64 {
        let line = self.line();
        line.parse().unwrap_or_else(|_| panic!("{line:?} is no time"))
    }

    fn go_on(&mut self) {
        self.input.write_all(b"\n").and_then(|()| self.input.flush()).expect("it listens");
    }
}

fn object(case: &Case, scratch: &Path) -> Object {
    let object = scratch.join("function.o");
    must(
        Command::new(compiler("CLANG", "clang"))
            .current_dir(folder())
            .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", &include(), "-c", case.source, "-o"])
            .arg(&object),
    );
    Object::parse(&std::fs::read(object).expect("an object")).expect("a valid object")
}

/// Where scratch is in an arena.
const SCRATCH_AT: usize = (abi::SCRATCH - abi::GUEST_BASE) as usize;

fn measure(case: &Case) {
    let scratch = tempfile::tempdir().expect("a directory");
    let entry = object(case, scratch.path()).into_entry(0).expect("an entry");
    let native = NativeFunction::compile(&entry.program).expect("translates");
    let mut arena = Arena::new();
    arena.begin_chain(&[], abi::DEFAULT_SCRATCH_BYTES);
    arena.data_mut(0..case.block.len()).copy_from_slice(&case.block);
    arena.begin_hop(0);
    let limit = arena.begin_call(0..case.block.len(), 0, 0, 0);
    let mut reference = Reference::start(case, scratch.path());
    let (mut checked, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        plain.push(reference.round());
        let started = Instant::now();
        for call in 0..case.calls {
            let argument = &case.arguments[call % case.arguments.len()];
            arena.bytes_mut()[SCRATCH_AT..][..argument.len()].copy_from_slice(argument);
            let mut budget = 1_000_000;
            let code = native.call(&mut arena, limit, &mut budget, &mut Alone);
            assert_eq!(code, Ok(Exit::Return(0)), "{}", case.name);
        }
        checked.push(started.elapsed().as_nanos() as f64 / case.calls as f64);
        reference.go_on();
    }
    let hash = arena
        .scratch()
        .iter()
        .fold(0u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    let next = arena.context_u64(abi::context::NEXT_OFFSET);
    assert_eq!(reference.line(), format!("{hash} {next}"), "{}: the results differ", case.name);
    assert!(reference.child.wait().expect("it ends").success());
    let fastest = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    let (checked, plain) = (fastest(&checked), fastest(&plain));
    let ratio = checked / plain;
    let verdict = if ratio <= case.goal { "" } else { ", missed" };
    println!(
        "{:<8} C {plain:>8.1} ns   checked {checked:>8.1} ns   ratio {ratio:.2} (goal {}{verdict})   \
         {} bytes of code",
        case.name,
        case.goal,
        native.code_bytes()
    );
}

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    for case in [node(), filter(), block()] {
        if wanted.is_empty() || wanted.iter().any(|word| case.name.contains(word.as_str())) {
            measure(&case);
        }
    }
}
