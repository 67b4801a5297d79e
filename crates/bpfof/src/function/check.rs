//! `bpfof function check`: checks an object as a target would, without a target.

use super::dry_run::{self, Run};
use super::object::{choose, read_object};
use super::pace;
use super::proof::{self, Proof};
use bpfof_function::object::Entry;
use bpfof_function::{MapDefinition, NativeFunction, Program, Summary, abi};
use bpfof_terminal::Outcome;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

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
    #[command(flatten)]
    dry_run: dry_run::Options,
    /// Prove for blocks of at least this many bytes: the smallest read that the host or the function requests.
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
    /// Whether no access can fault; absent with --no-proof.
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

/// The processor time of a hop at the target, without its reads.
#[derive(Serialize)]
struct Cost {
    hop_ns: Option<f64>,
    from: CostFrom,
    ns_per_instruction: f64,
}

/// How a cost is known.
#[derive(Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum CostFrom {
    /// From the fastest call of --run.
    Run,
    /// The most instructions that a call executes.
    Instructions,
    /// Unknown: the cost depends on data.
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

pub(crate) fn run(options: &Check) -> Outcome {
    let (bytes, object) = read_object(&options.file)?;
    let chosen = match (&options.entry, &options.dry_run.run) {
        (None, None) => None,
        (wanted, _) => Some(choose(&object, wanted.as_deref())?),
    };
    let ns_per_instruction = pace::measure()?;
    let mut reports = Vec::new();
    for (index, entry) in object.entries().iter().enumerate() {
        if chosen.is_none_or(|chosen| chosen == index) {
            reports.push(check(&bytes, (index, entry), ns_per_instruction, options)?);
        }
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    }
    let failure = reports.iter().filter_map(|report| report.run.as_ref()).find_map(Run::failure);
    failure.map_or(Ok(()), |failure| Err(failure.into()))
}

/// Checks an entry point of `object`, and prints the result unless JSON is wanted: first the dry run, and if that fails
/// only the disassembly besides.
fn check(
    object: &[u8],
    (index, entry): (usize, &Entry),
    ns_per_instruction: f64,
    options: &Check,
) -> Result<Report, Box<dyn std::error::Error>> {
    let native = NativeFunction::compile(&entry.program)?;
    let block = options.dry_run.run.as_deref();
    let mut run = block.map(|block| dry_run::call(&native, block, &options.dry_run)).transpose()?;
    if let (false, Some(run)) = (options.json, &run) {
        run.print(&entry.name);
    }
    let proof = match options.no_proof {
        true => None,
        false => Some(proof::prove(object, index, options.block_min)?.located(&entry.program)),
    };
    if let (Some(Proof::Proved), Some(run)) = (&proof, &mut run) {
        run.compare_with_proof(options.block_min);
    }
    let has_failed = run.as_ref().is_some_and(|run| run.failure().is_some());
    let report = report(entry, &native, (proof, run), ns_per_instruction, options);
    match options.json {
        true => {}
        false if has_failed => report.code.iter().for_each(|code| print_code(code)),
        false => print(&report, options.block_min),
    }
    Ok(report)
}

fn report(
    entry: &Entry,
    native: &NativeFunction,
    (proof, run): (Option<Proof>, Option<Run>),
    ns_per_instruction: f64,
    options: &Check,
) -> Report {
    let Entry { name, program } = entry;
    let summary = program.summary();
    let cost = cost(&summary, run.as_ref(), ns_per_instruction);
    let size = |range: std::ops::Range<u64>| range.end - range.start;
    Report {
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
    }
}

/// The cost of a hop, from the dry run if it did not fault, else from the longest path through the function.
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
            file: source.as_ref().map(|line| line.file.to_string()),
            line: source.as_ref().map(|line| line.line),
            source: source.map(|line| line.text.to_string()),
        }
    });
    // The second slot of a 64-bit constant has no text.
    lines.filter(|line| !line.instruction.is_empty()).collect()
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
        Proof::NotProved { pc, reason, instruction, place, source, .. } => {
            println!("  proof: not proved; checks at run time confine it all the same");
            let place = place.as_deref().map(|place| format!("{place}: ")).unwrap_or_default();
            let text = source.as_deref().filter(|text| !text.is_empty());
            let text = text.map(|text| format!("`{text}` ")).unwrap_or_default();
            println!("    {place}{text}{reason}");
            println!("    (instruction {pc}, `{instruction}`)");
        }
        Proof::GaveUp { reason } => {
            println!("  proof: gave up, {reason}; checks at run time confine it all the same");
        }
    }
}

fn print_cost(report: &Report) {
    let Cost { hop_ns, from, ns_per_instruction } = report.cost;
    let pace = format!("{ns_per_instruction:.2} ns, as in a small loop on this machine");
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
