//! `bpfof function check`: what a target would make of an object, without a target.

use super::object::{choose, read_object};
use super::pace;
use super::proof::{self, Proof};
use bpfof_controller::TargetConfig;
use bpfof_function::object::Entry;
use bpfof_function::{
    Arena, Environment, Exit, Fault, FaultKind, Map, MapDefinition, NativeFunction, Program,
    Summary, abi, abi::context,
};
use bpfof_terminal::Outcome;
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
    /// Prove for blocks of at least so many bytes: what the first read and the function itself ask
    /// for.
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = block_size,
          conflicts_with = "no_proof")]
    block_min: usize,
    /// Do not look for a proof, which takes up to five seconds for each entry point.
    #[arg(long)]
    no_proof: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn block_size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(size @ 0..=abi::MAX_HOP_BYTES) => Ok(size),
        _ => Err(format!("not a number from 0 to {}", abi::MAX_HOP_BYTES)),
    }
}

fn scratch_size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(size @ 1..=abi::MAX_SCRATCH_BYTES) => Ok(size),
        _ => Err(format!("not a number from 1 to {}", abi::MAX_SCRATCH_BYTES)),
    }
}

// One field for each key of the JSON report.
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
    /// Whether no access can fault; absent if that was not asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    proof: Option<Proof>,
    /// The most instructions that a call executes; absent if that depends on data.
    worst_instructions: Option<i64>,
    cost: Cost,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<Run>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<Vec<Line>>,
}

/// What a hop costs the target's processor, its reads not counted.
#[derive(Serialize)]
struct Cost {
    hop_ns: Option<f64>,
    from: CostFrom,
    ns_per_instruction: f64,
}

/// Where a cost is known from.
#[derive(Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum CostFrom {
    /// The fastest of the calls of --run.
    Run,
    /// The most instructions that a call executes.
    Instructions,
    /// It is not known: it depends on data.
    Data,
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
    /// What ended the call, if it did not return.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
    /// It was proved that no access can fault, and one did.
    verifier_alarm: bool,
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
    let (bytes, object) = read_object(&options.file)?;
    let chosen = match (&options.entry, &options.run) {
        (None, None) => None,
        (wanted, _) => Some(choose(&object, wanted.as_deref())?),
    };
    let ns_per_instruction = pace::measure()?;
    let mut reports = Vec::new();
    for (index, entry) in object.entries().iter().enumerate() {
        if chosen.is_none_or(|chosen| chosen == index) {
            let proof = match options.no_proof {
                true => None,
                false => Some(proof::prove(&bytes, index, options.block_min)?),
            };
            reports.push(report(entry, proof, ns_per_instruction, options)?);
        }
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    } else {
        for report in &reports {
            print(report, options.block_min);
        }
    }
    let fault = reports.iter().filter_map(|report| report.run.as_ref()).find_map(failure);
    fault.map_or(Ok(()), |fault| Err(fault.into()))
}

/// Why the command fails after a call that did.
fn failure(run: &Run) -> Option<String> {
    let fault = run.fault.as_ref()?;
    let alarm = match run.verifier_alarm {
        true => {
            "\nThis access was proved not to fault: the verifier, or what we tell it, is wrong. \
             Nothing was harmed. Please report it, with the object and the files of --run."
        }
        false => "",
    };
    Some(format!("{fault}{alarm}"))
}

fn report(
    entry: &Entry,
    proof: Option<Proof>,
    ns_per_instruction: f64,
    options: &Check,
) -> Result<Report, Box<dyn std::error::Error>> {
    let Entry { name, program } = entry;
    let native = NativeFunction::compile(program)?;
    let summary = program.summary();
    let proved = matches!(proof, Some(Proof::Proved));
    let run = options.run.as_deref().map(|block| call(&native, block, proved, options));
    let run = run.transpose()?;
    let cost = cost(&summary, run.as_ref(), ns_per_instruction);
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
        proof,
        worst_instructions: summary.steps,
        cost,
        run,
        code: options.disasm.then(|| disassemble(program)),
    })
}

/// From a call if there was one, or from the longest way through the function.
fn cost(summary: &Summary, run: Option<&Run>, ns_per_instruction: f64) -> Cost {
    let (hop_ns, from) = match (run, summary.steps) {
        (Some(run), _) if run.fault.is_none() => (Some(run.best_ns as f64), CostFrom::Run),
        (_, Some(steps)) => (Some(steps as f64 * ns_per_instruction), CostFrom::Instructions),
        _ => (None, CostFrom::Data),
    };
    Cost { hop_ns, from, ns_per_instruction }
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

/// What calls on the same block came to, and took.
struct Timed {
    first_ns: u128,
    best_ns: u128,
    code: u32,
    budget_used: i64,
    /// What the first call said.
    trace: Vec<String>,
    /// What ended the last call, if it did not return.
    fault: Option<Fault>,
}

/// Calls the function a hundred times, or until it faults. The arena is left as the last call leaves
/// it.
fn time(
    native: &NativeFunction,
    arena: &mut Arena,
    data: &[u8],
    argument: &[u8],
    options: &Check,
) -> Timed {
    let budget = i64::from(TargetConfig::default().limits.instructions_per_call);
    let mut timed: Option<Timed> = None;
    // The first call is what a user would see; the others tell what it costs once it is warm.
    for _ in 0..100 {
        arena.wipe();
        arena.data_mut(0..data.len()).copy_from_slice(data);
        arena.begin_chain(argument, options.scratch_size);
        arena.begin_hop(options.hop);
        let limit = arena.begin_call(0..data.len(), options.offset, 0, 0);
        let (mut left, mut surroundings) = (budget, Surroundings::new(native.program()));
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
            budget_used: budget - left,
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

/// One call as a target makes it. `proved`: it should not fault.
fn call(
    native: &NativeFunction,
    block: &Path,
    proved: bool,
    options: &Check,
) -> Result<Run, Box<dyn std::error::Error>> {
    let data = read_at_most(block, abi::MAX_HOP_BYTES)?;
    let argument = match &options.scratch {
        Some(path) => read_at_most(path, options.scratch_size)?,
        None => Vec::new(),
    };
    let mut arena = Arena::new();
    let Timed { first_ns, best_ns, code, budget_used, trace, fault } =
        time(native, &mut arena, &data, &argument, options);
    let is_access = fault.as_ref().is_some_and(|fault| {
        matches!(fault.kind, FaultKind::Memory { .. } | FaultKind::ReadOnly { .. })
    });
    // The outputs of a call that did not return mean nothing.
    let returned = fault.is_none();
    let length = if returned { arena.context_u32(context::OUT_LEN) as usize } else { 0 };
    let answer = arena.scratch().get(..length).ok_or_else(|| {
        format!("out_len is {length}: scratch has {} bytes", options.scratch_size)
    })?;
    let reads = if returned { arena.context_u32(context::READS) as usize } else { 0 };
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
        done: returned && arena.context_u32(context::DONE) != 0,
        answer_hex: answer.iter().map(|byte| format!("{byte:02x}")).collect(),
        next: next.collect(),
        trace,
        fault: fault.map(|fault| fault.explain(native.program())),
        verifier_alarm: proved && is_access && data.len() >= options.block_min,
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

fn print(report: &Report, block_min: usize) {
    let Report { name, instructions, functions, native_bytes, compile_us, .. } = report;
    println!(
        "{name}: good; {instructions} instructions in {functions} functions, {native_bytes} bytes \
         of native code, compiled in {compile_us} µs"
    );
    if let Some(proof) = &report.proof {
        print_proof(proof, block_min);
    }
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
    print_cost(report);
    if let Some(run) = &report.run {
        // What went wrong is the error that the command ends with.
        if run.fault.is_none() {
            print_run(run);
        }
        for line in &run.trace {
            println!("  trace: {line}");
        }
    }
    if let Some(code) = &report.code {
        print_code(code);
    }
}

fn print_proof(proof: &Proof, block_min: usize) {
    match proof {
        Proof::Proved if block_min == 0 => println!("  proof: no access can fault"),
        Proof::Proved => {
            println!("  proof: no access can fault on blocks of {block_min} bytes or more")
        }
        Proof::NotProved { pc, reason, instruction, file, line, source } => {
            println!("  proof: not proved; checks at run time confine it all the same");
            let place = match (file, line) {
                (Some(file), Some(line)) => format!("{file}:{line}: "),
                _ => String::new(),
            };
            let text = source.as_deref().filter(|text| !text.is_empty());
            let text = text.map(|text| format!(" in `{text}`")).unwrap_or_default();
            println!("    {place}instruction {pc} `{instruction}`{text}: {reason}");
        }
        Proof::GaveUp { reason } => {
            println!("  proof: gave up, {reason}; checks at run time confine it all the same");
        }
    }
}

fn print_cost(report: &Report) {
    let Cost { hop_ns, from, ns_per_instruction } = report.cost;
    let pace = format!("{ns_per_instruction:.2} ns, as a small loop takes here");
    match (from, hop_ns, report.worst_instructions) {
        (CostFrom::Run, Some(ns), _) => {
            println!("  cost of a hop, without its reads: {ns:.0} ns, the fastest of 100 runs");
        }
        (CostFrom::Instructions, Some(ns), Some(steps)) => println!(
            "  cost of a hop, without its reads: about {ns:.0} ns at most ({steps} instructions of \
             {pace})"
        ),
        _ => println!(
            "  cost of a hop, without its reads: depends on data (instructions of {pace}); see --run"
        ),
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
