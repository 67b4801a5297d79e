//! `bpfof function check --run`: one call on a block from a file, without a target.

use crate::hex;
use bpfof_chain::InvalidOutput;
use bpfof_controller::TargetConfig;
use bpfof_function::{
    Arena, Environment, Exit, Fault, FaultKind, Limit, Map, NativeFunction, Program, abi,
    abi::context, observe,
};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Calls that are timed.
const CALLS: usize = 100;

#[derive(Args)]
pub(super) struct Options {
    /// Call the function once on the contents of this file as the block that was read.
    #[arg(long, value_name = "BLOCK")]
    pub(super) run: Option<PathBuf>,
    /// The argument for --run: a file with the first bytes of scratch.
    #[arg(long, value_name = "FILE", requires = "run")]
    scratch: Option<PathBuf>,
    /// Size of scratch for --run, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = abi::DEFAULT_SCRATCH_BYTES, requires = "run",
          value_parser = scratch_size)]
    scratch_size: usize,
    /// File offset of the block for --run, in bytes.
    #[arg(long, default_value_t = 0, requires = "run")]
    offset: u64,
    /// Number of the hop for --run.
    #[arg(long, default_value_t = 0, requires = "run")]
    hop: u32,
}

fn scratch_size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(size @ 1..=abi::MAX_SCRATCH_BYTES) => Ok(size),
        _ => Err(format!("not a number from 1 to {}", abi::MAX_SCRATCH_BYTES)),
    }
}

/// The result of one call.
#[derive(Serialize)]
pub(super) struct Run {
    /// The return value of the function; any but 0 aborts the chain.
    code: u32,
    budget_used: i64,
    /// Times of the first call, and of the fastest of [`CALLS`], each on a cleared arena.
    first_ns: u128,
    pub(super) best_ns: u128,
    done: bool,
    answer_hex: String,
    next: Vec<NextRead>,
    /// Output of the first call by `bpfof_trace`.
    pub(super) trace: Vec<String>,
    /// The fault that ended the call, if it did not return.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fault: Option<String>,
    /// Why a target ends the chain although the call returned 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) invalid_output: Option<String>,
    /// The first source line that divided by zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    division_by_zero: Option<String>,
    /// An access faulted although it was proved that none can.
    pub(super) verifier_alarm: bool,
    #[serde(skip)]
    is_access: bool,
    #[serde(skip)]
    block_bytes: usize,
}

#[derive(Serialize)]
struct NextRead {
    file: u32,
    offset: u64,
    size: u32,
}

/// The environment of a dry run: no other functions, the function's own maps, empty at first, and a list of the lines
/// that it traces.
struct Surroundings {
    said: Vec<String>,
    maps: Vec<Map>,
}

impl Surroundings {
    fn new(program: &Program) -> Surroundings {
        let maps = program.maps().iter().cloned().map(Map::new).collect();
        Surroundings { said: Vec::new(), maps }
    }
}

impl Environment for Surroundings {
    fn tail_call(&mut self, _function: u32) -> bool {
        false
    }

    fn map(&self, index: usize) -> Option<&Map> {
        self.maps.get(index)
    }

    fn trace(&mut self, text: &[u8], value: u64) {
        let printable = |byte: &u8| if matches!(byte, b' '..=b'~') { *byte as char } else { '?' };
        self.said.push(format!("{} {value}", text.iter().map(printable).collect::<String>()));
    }
}

/// Results and times of calls on the same block.
struct Timed {
    first_ns: u128,
    best_ns: u128,
    code: u32,
    budget_used: i64,
    /// Output of the first call by `bpfof_trace`.
    trace: Vec<String>,
    /// The fault that ended the last call, if it did not return.
    fault: Option<Fault>,
}

/// The block and the argument of the calls.
struct Subject<'a> {
    data: Vec<u8>,
    argument: Vec<u8>,
    options: &'a Options,
}

impl Subject<'_> {
    /// Prepares the arena for a call; returns the limit of the call's accesses.
    fn prepare(&self, arena: &mut Arena) -> Limit {
        arena.wipe();
        arena.data_mut(0..self.data.len()).copy_from_slice(&self.data);
        arena.begin_chain(&self.argument, self.options.scratch_size);
        arena.begin_hop(self.options.hop);
        arena.begin_call(0..self.data.len(), self.options.offset, 0, 0)
    }

    /// Calls the function a hundred times, or until it faults. The arena stays as the last call has left it.
    fn time(&self, native: &NativeFunction, arena: &mut Arena) -> Timed {
        let mut timed: Option<Timed> = None;
        // The first call takes as long as a user would see; the others give the cost with warm caches.
        for _ in 0..CALLS {
            let limit = self.prepare(arena);
            let (mut left, mut surroundings) = (budget(), Surroundings::new(native.program()));
            let started = Instant::now();
            let outcome = native.call(arena, limit, &mut left, &mut surroundings);
            let took = started.elapsed().as_nanos();
            let (code, fault) = match outcome {
                Ok(Exit::Return(code)) => (code as u32, None),
                Ok(Exit::TailCall(_)) => unreachable!("no other function is there"),
                Err(fault) => (0, Some(fault)),
            };
            let timed = timed.get_or_insert_with(|| Timed {
                first_ns: took,
                best_ns: took,
                code,
                budget_used: budget() - left,
                trace: surroundings.said,
                fault: None,
            });
            timed.best_ns = timed.best_ns.min(took);
            timed.fault = fault;
            if timed.fault.is_some() {
                break;
            }
        }
        timed.expect("there was a first call")
    }

    /// The first source line that divides by zero. The interpreter (the oracle) runs the call once more for it.
    fn division_by_zero(&self, program: &Program) -> Option<String> {
        let mut arena = Arena::new();
        let limit = self.prepare(&mut arena);
        let (mut left, mut surroundings) = (budget(), Surroundings::new(program));
        let observed = observe(program, &mut arena, limit, &mut left, &mut surroundings);
        let pc = observed.division_by_zero?;
        let line = program.sources().find(pc);
        Some(line.map_or_else(|| format!("instruction {pc}"), |line| line.to_string()))
    }
}

/// The instruction budget of a call.
fn budget() -> i64 {
    i64::from(TargetConfig::default().limits.instructions_per_call)
}

/// One call as a target makes it.
///
/// # Errors
/// A file that cannot be read, or is too large.
pub(super) fn call(
    native: &NativeFunction,
    block: &Path,
    options: &Options,
) -> Result<Run, String> {
    let data = read_at_most(block, abi::MAX_HOP_BYTES)?;
    let argument = match &options.scratch {
        Some(path) => read_at_most(path, options.scratch_size)?,
        None => Vec::new(),
    };
    let subject = Subject { data, argument, options };
    let mut arena = Arena::new();
    let Timed { first_ns, best_ns, code, budget_used, trace, fault } =
        subject.time(native, &mut arena);
    let is_access = fault.as_ref().is_some_and(|fault| {
        matches!(fault.kind, FaultKind::Memory { .. } | FaultKind::ReadOnly { .. })
    });
    // The outputs of a call that did not return 0 mean nothing.
    let outputs =
        if fault.is_none() && code == 0 { outputs(&arena) } else { Ok(Outputs::default()) };
    let (Outputs { done, answer_hex, next }, invalid_output) = match outputs {
        Ok(outputs) => (outputs, None),
        Err(invalid) => (Outputs::default(), Some(invalid.to_string())),
    };
    Ok(Run {
        code,
        budget_used,
        first_ns,
        best_ns,
        done,
        answer_hex,
        next,
        trace,
        fault: fault.map(|fault| fault.explain(native.program())),
        invalid_output,
        division_by_zero: subject.division_by_zero(native.program()),
        verifier_alarm: false,
        is_access,
        block_bytes: subject.data.len(),
    })
}

/// The outputs of a call.
#[derive(Default)]
struct Outputs {
    done: bool,
    answer_hex: String,
    next: Vec<NextRead>,
}

/// The outputs of a call that has returned 0, checked as a target checks them, except for checks that need the files.
fn outputs(arena: &Arena) -> Result<Outputs, InvalidOutput> {
    if arena.context_u32(context::DONE) != 0 {
        let length = arena.context_u32(context::OUT_LEN) as usize;
        let answer = arena.scratch().get(..length);
        let answer = answer.ok_or(InvalidOutput::AnswerOutsideScratch)?;
        let answer_hex = hex::encode(answer);
        return Ok(Outputs { done: true, answer_hex, next: Vec::new() });
    }
    let reads = arena.context_u32(context::READS) as usize;
    if reads > abi::MAX_READS {
        return Err(InvalidOutput::TooManyReads);
    }
    let read = |index| NextRead {
        file: arena.context_u32(context::NEXT_FILE + 4 * index),
        offset: arena.context_u64(context::NEXT_OFFSET + 8 * index),
        size: arena.context_u32(context::NEXT_SIZE + 4 * index),
    };
    // Reads of 0 bytes do not count.
    let next: Vec<NextRead> = (0..reads).map(read).filter(|read| read.size != 0).collect();
    let bytes: u64 = next.iter().map(|read| u64::from(read.size)).sum();
    if next.is_empty() {
        Err(InvalidOutput::NoProgress)
    } else if bytes > abi::MAX_HOP_BYTES as u64 {
        Err(InvalidOutput::HopTooLarge)
    } else {
        Ok(Outputs { done: false, answer_hex: String::new(), next })
    }
}

fn read_at_most(path: &Path, max_bytes: usize) -> Result<Vec<u8>, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    if bytes.len() > max_bytes {
        let length = bytes.len();
        return Err(format!("{} has {length} bytes; the limit is {max_bytes}", path.display()));
    }
    Ok(bytes)
}

impl Run {
    /// Raises the alarm if an access has faulted, given a proof that none can on blocks of at least `block_min` bytes.
    pub(super) fn compare_with_proof(&mut self, block_min: usize) {
        self.verifier_alarm = self.is_access && self.block_bytes >= block_min;
    }

    /// Why a chain with this call fails; None if the chain goes on, or the function itself ends it.
    pub(super) fn failure(&self) -> Option<String> {
        if let Some(invalid) = &self.invalid_output {
            return Some(format!(
                "{invalid}; at a target the chain ends with Invalid Function Output"
            ));
        }
        let fault = self.fault.as_ref()?;
        let alarm = match self.verifier_alarm {
            true => {
                "\nThis access was proved not to fault: the verifier, or our input to it, is \
                 wrong. Nothing was harmed. Please report it, with the object and the files of \
                 --run."
            }
            false => "",
        };
        Some(format!("{fault}{alarm}"))
    }

    /// Prints the result of a call of the function with this name. A failure is not printed here: the command ends with
    /// it as its error.
    pub(super) fn print(&self, name: &str) {
        if self.failure().is_none() {
            println!(
                "{name}: returned {}{}, took {} from the budget, {} ns at first, {} ns at best",
                self.code,
                if self.code == 0 { "" } else { " (aborts the chain)" },
                self.budget_used,
                self.first_ns,
                self.best_ns
            );
            self.print_outputs();
        }
        if let Some(line) = &self.division_by_zero {
            println!(
                "  note: {line} divides by zero; the quotient is 0, the remainder is the dividend"
            );
        }
        for line in &self.trace {
            println!("  trace: {line}");
        }
    }

    fn print_outputs(&self) {
        if self.done {
            let bytes = self.answer_hex.len() / 2;
            println!("  done; the answer has {bytes} bytes: {}", self.answer_hex);
        } else if self.code == 0 {
            println!("  not done; {} reads follow", self.next.len());
        }
        for NextRead { file, offset, size } in &self.next {
            println!("    {size} bytes of file {file} at {offset:#x}");
        }
    }
}
