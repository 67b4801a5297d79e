//! `bpfof function check`: what a target would make of an object, without a target.

use super::{choose, read_object};
use crate::Outcome;
use bpfof_function::object::Entry;
use bpfof_function::{
    Arena, Environment, Exit, Map, MapDefinition, NativeFunction, Program, abi, abi::context,
};
use bpfof_target::TargetConfig;
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Args)]
pub(crate) struct Check {
    /// Object file, as `clang -O2 -g -target bpf -mcpu=v3 -c` makes it.
    file: PathBuf,
    /// Only this entry point, the section name after `bpfof/`.
    #[arg(long)]
    entry: Option<String>,
    /// Print the instructions, under the source lines that they come from.
    #[arg(long)]
    disasm: bool,
    /// Call the function once on the contents of this file as the block that was read.
    #[arg(long, value_name = "BLOCK")]
    run: Option<PathBuf>,
    /// The argument for --run: what scratch begins with.
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
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn scratch_size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(size @ 1..=abi::MAX_SCRATCH_BYTES) => Ok(size),
        _ => Err(format!("not a number from 1 to {}", abi::MAX_SCRATCH_BYTES)),
    }
}

#[derive(Serialize)]
struct Report {
    name: String,
    instructions: usize,
    functions: usize,
    helpers: Vec<&'static str>,
    /// Frames of the deepest chain of calls; absent if functions call themselves.
    stack_frames: Option<u64>,
    stack_bytes: Option<u64>,
    frame_used_bytes: u64,
    /// The most a call takes from the instruction budget; absent if that depends on data.
    worst_budget: Option<i64>,
    /// The maps it uses, each with kind and sizes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    maps: Vec<String>,
    constant_bytes: u64,
    variable_bytes: u64,
    native_bytes: usize,
    compile_us: u128,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<Run>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<Vec<Line>>,
}

/// An instruction and where it comes from.
#[derive(Serialize)]
struct Line {
    pc: usize,
    instruction: String,
    file: Option<String>,
    line: Option<u32>,
    source: Option<String>,
}

/// What one call did.
#[derive(Serialize)]
struct Run {
    /// What the function returned; not 0 aborts the chain.
    code: u32,
    budget_used: i64,
    /// Of the first call and of the fastest of several on fresh arenas.
    first_ns: u128,
    best_ns: u128,
    done: bool,
    answer_hex: String,
    next: Vec<NextRead>,
    /// What the first call said by `bpfof_trace`.
    trace: Vec<String>,
}

/// No other function is there; what the function says is collected, and it has its maps, empty at
/// first.
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

#[derive(Serialize)]
struct NextRead {
    file: u32,
    offset: u64,
    size: u32,
}

pub(crate) fn run(options: &Check) -> Outcome {
    let (_, object) = read_object(&options.file)?;
    let chosen = match (&options.entry, &options.run) {
        (None, None) => None,
        (wanted, _) => Some(choose(&object, wanted.as_deref())?),
    };
    let mut reports = Vec::new();
    for (index, entry) in object.entries().iter().enumerate() {
        if chosen.is_none_or(|chosen| chosen == index) {
            reports.push(report(entry, options)?);
        }
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
        return Ok(());
    }
    for report in &reports {
        print(report);
    }
    Ok(())
}

fn report(entry: &Entry, options: &Check) -> Result<Report, Box<dyn std::error::Error>> {
    let Entry { name, program } = entry;
    let native = NativeFunction::compile(program)?;
    let summary = program.summary();
    let run = options.run.as_deref().map(|block| call(&native, block, options)).transpose()?;
    let size = |range: std::ops::Range<u64>| range.end - range.start;
    Ok(Report {
        name: name.clone(),
        instructions: program.instructions().len(),
        functions: program.functions().len(),
        helpers: summary.helpers,
        stack_frames: summary.frames,
        stack_bytes: summary.frames.map(|frames| frames * abi::FRAME_BYTES),
        frame_used_bytes: summary.frame_bytes,
        worst_budget: summary.budget,
        maps: program.maps().iter().map(MapDefinition::describe).collect(),
        constant_bytes: size(program.statics().constants()),
        variable_bytes: size(program.statics().variables()),
        native_bytes: native.code_bytes(),
        compile_us: native.compile_time().as_micros(),
        run,
        code: options.disasm.then(|| disassemble(program)),
    })
}

fn disassemble(program: &Program) -> Vec<Line> {
    let lines = program.instructions().iter().enumerate().map(|(pc, instruction)| {
        let source = program.sources().find(pc as u32);
        Line {
            pc,
            instruction: instruction.to_string(),
            file: source.map(|line| line.file.to_string()),
            line: source.map(|line| line.line),
            source: source.map(|line| line.text.to_string()),
        }
    });
    // The second slot of a constant has no words.
    lines.filter(|line| !line.instruction.is_empty()).collect()
}

/// One call as a target makes it.
fn call(
    native: &NativeFunction,
    block: &Path,
    options: &Check,
) -> Result<Run, Box<dyn std::error::Error>> {
    let data = read_at_most(block, abi::MAX_HOP_BYTES)?;
    let argument = match &options.scratch {
        Some(path) => read_at_most(path, options.scratch_size)?,
        None => Vec::new(),
    };
    let budget = i64::from(TargetConfig::default().limits.instructions_per_call);
    let mut first_ns = None;
    let mut best_ns = u128::MAX;
    let mut arena = Arena::new();
    let mut trace = Vec::new();
    // The first call is what a user would see; the others tell what it costs once it is warm.
    for _ in 0..100 {
        arena.wipe();
        arena.data_mut(0..data.len()).copy_from_slice(&data);
        arena.begin_chain(&argument, options.scratch_size);
        arena.begin_hop(options.hop);
        let limit = arena.begin_call(0..data.len(), options.offset, 0, 0);
        let (mut left, mut surroundings) = (budget, Surroundings::new(native.program()));
        let started = Instant::now();
        let outcome = native.call(&mut arena, limit, &mut left, &mut surroundings);
        let took = started.elapsed().as_nanos();
        let exit = outcome.map_err(|fault| fault.explain(native.program()))?;
        let Exit::Return(code) = exit else { unreachable!("no other function is there") };
        best_ns = best_ns.min(took);
        if first_ns.is_none() {
            first_ns = Some((took, code as u32, budget - left));
            trace = surroundings.said;
        }
    }
    let (first_ns, code, budget_used) = first_ns.unwrap_or_default();
    let length = arena.context_u32(context::OUT_LEN) as usize;
    let answer = arena.scratch().get(..length).ok_or_else(|| {
        format!("out_len is {length}: scratch has {} bytes", options.scratch_size)
    })?;
    let reads = arena.context_u32(context::READS) as usize;
    if reads > abi::MAX_READS {
        return Err(format!("reads is {reads}: a hop has at most {}", abi::MAX_READS).into());
    }
    let next = (0..reads).map(|index| NextRead {
        file: arena.context_u32(context::NEXT_FILE + 4 * index),
        offset: arena.context_u64(context::NEXT_OFFSET + 8 * index),
        size: arena.context_u32(context::NEXT_SIZE + 4 * index),
    });
    Ok(Run {
        code,
        budget_used,
        first_ns,
        best_ns,
        done: arena.context_u32(context::DONE) != 0,
        answer_hex: answer.iter().map(|byte| format!("{byte:02x}")).collect(),
        next: next.collect(),
        trace,
    })
}

fn read_at_most(path: &Path, max_bytes: usize) -> Result<Vec<u8>, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    if bytes.len() > max_bytes {
        let length = bytes.len();
        return Err(format!("{} has {length} bytes; the limit is {max_bytes}", path.display()));
    }
    Ok(bytes)
}

fn print(report: &Report) {
    let Report { name, instructions, functions, native_bytes, compile_us, .. } = report;
    println!(
        "{name}: good; {instructions} instructions in {functions} functions, {native_bytes} bytes \
         of native code, compiled in {compile_us} µs"
    );
    let helpers = match report.helpers.is_empty() {
        true => "none".to_owned(),
        false => report.helpers.join(", "),
    };
    println!("  helpers: {helpers}");
    match (report.stack_frames, report.stack_bytes) {
        (Some(frames), Some(bytes)) => println!(
            "  stack: {bytes} bytes in {frames} frames, of which the largest uses {}",
            report.frame_used_bytes
        ),
        _ => println!("  stack: functions call themselves; {} frames at most", abi::MAX_FRAMES),
    }
    match report.worst_budget {
        Some(budget) => println!("  instruction budget: at most {budget} a call"),
        None => println!("  instruction budget: depends on data (a loop, or a variable length)"),
    }
    for map in &report.maps {
        println!("  map: {map}");
    }
    if report.constant_bytes + report.variable_bytes != 0 {
        println!(
            "  static data: {} bytes of constants, {} of variables",
            report.constant_bytes, report.variable_bytes
        );
    }
    if let Some(run) = &report.run {
        print_run(run);
    }
    if let Some(code) = &report.code {
        print_code(code);
    }
}

fn print_run(run: &Run) {
    println!(
        "  run: returned {}{}, took {} from the budget, {} ns at first, {} ns at best",
        run.code,
        if run.code == 0 { "" } else { " (aborts the chain)" },
        run.budget_used,
        run.first_ns,
        run.best_ns
    );
    if run.done {
        println!("  done; the answer has {} bytes: {}", run.answer_hex.len() / 2, run.answer_hex);
    } else {
        println!("  not done; {} reads follow", run.next.len());
        for NextRead { file, offset, size } in &run.next {
            println!("    {size} bytes of file {file} at {offset:#x}");
        }
    }
    for line in &run.trace {
        println!("  trace: {line}");
    }
}

fn print_code(code: &[Line]) {
    let mut last = (&None, None);
    for line in code {
        if (&line.file, line.line) != last {
            last = (&line.file, line.line);
            if let (Some(file), Some(number)) = (&line.file, line.line) {
                let source = line.source.as_deref().unwrap_or_default();
                println!("{}", format!("; {file}:{number} {source}").trim_end());
            }
        }
        println!("{:>6}: {}", line.pc, line.instruction);
    }
}
