//! `bpfof function run`: one chain, at a target or on this machine.

use super::connection::installed;
use super::identity::Identity;
use super::object::Chosen;
use super::steps::{self, Source, Step, Steps};
use crate::hex;
use bpfof_function::{Program, SourceLine, abi};
use bpfof_host::files::{
    Executor, FileMaps, FirstRead, NamespaceDevice, Policy, PushdownFile, PushdownReader,
    ReadError, StorageFunction,
};
use bpfof_host::{Controller, FileVersion, FunctionId, PushdownCall, TargetUrl};
use bpfof_terminal::{Outcome, default_target, target_url};
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long to wait until the target has the map of a file.
const MAP_PATIENCE: Duration = Duration::from_secs(5);
/// Hops that are shown; later ones count in the sums only.
const STEPS_SHOWN: usize = 1000;
/// Bytes of an answer that are shown; `--output` has them all.
const ANSWER_SHOWN_BYTES: usize = 512;

#[derive(Args)]
pub(crate) struct Run {
    /// Object file, as `clang -O2 -g -target bpf -mcpu=v3 -c` makes it.
    #[arg(required_unless_present = "installed")]
    object: Option<PathBuf>,
    /// Run a function that is installed at the target, by its name or id, instead of an object.
    #[arg(long, value_name = "NAME|ID", conflicts_with_all = ["object", "entry", "files", "steps"])]
    installed: Option<String>,
    /// Name of the entry point, the section name after `bpfof/` [default: the only one].
    #[arg(long)]
    entry: Option<String>,
    /// Run it at this target: nvme-tcp://HOST:PORT/NQN?ns=1 [env: BPFOF_TARGET]. Without --file it reads the
    /// namespace as a whole. Without a target, or with --file and without --device, it runs on this machine.
    #[arg(long, value_parser = target_url)]
    target: Option<TargetUrl>,
    /// A file that the function may read, repeatable; to the function they are files 0, 1, … in this order.
    #[arg(long = "file", value_name = "PATH")]
    files: Vec<PathBuf>,
    /// The namespace as a device of this machine, if files on it are read at the target: the block device of the
    /// kernel's NVMe/TCP host, or the disk or image that a target on this machine serves.
    #[arg(long, value_name = "PATH", requires = "files")]
    device: Option<PathBuf>,
    /// Where the first read begins, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    offset: u64,
    /// Size of the first read, in bytes.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=abi::MAX_HOP_BYTES as i64))]
    size: u32,
    /// The argument: a file with the first bytes of scratch.
    #[arg(long, value_name = "FILE", conflicts_with = "scratch_hex")]
    scratch: Option<PathBuf>,
    /// The argument in hexadecimal digits.
    #[arg(long, value_name = "DIGITS", value_parser = hexadecimal)]
    scratch_hex: Option<Hexadecimal>,
    /// Size of scratch in bytes, and the longest answer.
    #[arg(long, value_name = "BYTES", default_value_t = abi::DEFAULT_SCRATCH_BYTES as u32,
          value_parser = clap::value_parser!(u32).range(1..=abi::MAX_SCRATCH_BYTES as i64))]
    scratch_size: u32,
    /// Show the reads of each hop. For this the chain runs once more, on this machine over plain reads; the maps of the
    /// function are empty then.
    #[arg(long)]
    steps: bool,
    /// Write the answer to this file.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    identity: Identity,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The result of one chain.
struct Ended {
    executor: Executor,
    answer: Vec<u8>,
    hops: u32,
    took: Duration,
}

/// Bytes that are written as hexadecimal digits.
#[derive(Clone, Debug)]
struct Hexadecimal(Vec<u8>);

fn hexadecimal(text: &str) -> Result<Hexadecimal, String> {
    let bytes = hex::decode(text).map(Hexadecimal);
    bytes.ok_or_else(|| "not an even number of hexadecimal digits".to_owned())
}

impl Run {
    fn argument(&self) -> Result<Vec<u8>, String> {
        let argument = match (&self.scratch, &self.scratch_hex) {
            (Some(path), _) => std::fs::read(path)
                .map_err(|error| format!("cannot read {}: {error}", path.display()))?,
            (None, Some(bytes)) => bytes.0.clone(),
            (None, None) => Vec::new(),
        };
        match argument.len() <= self.scratch_size as usize {
            true => Ok(argument),
            false => Err(format!(
                "the argument has {} bytes, but scratch has {}: see --scratch-size",
                argument.len(),
                self.scratch_size
            )),
        }
    }

    fn first_read(&self) -> FirstRead {
        FirstRead { file: 0, offset_bytes: self.offset, size_bytes: self.size }
    }

    fn connect(&self, url: &TargetUrl) -> Result<Controller, bpfof_host::Error> {
        let mut url = url.clone();
        url.host_nqn = self.identity.host_nqn.clone().or(url.host_nqn);
        Controller::connect(&url, self.identity.options())
    }
}

pub(crate) fn run(options: &Run) -> Outcome {
    let read = |object| Chosen::read(object, options.entry.as_deref());
    let chosen = options.object.as_deref().map(read).transpose()?;
    let argument = options.argument()?;
    let target = match &options.target {
        Some(url) => Some(url.clone()),
        None if options.files.is_empty() || options.device.is_some() => default_target()?,
        None => None,
    };
    let (ended, steps) = match (&target, &chosen) {
        (Some(url), chosen) if options.files.is_empty() => {
            over_namespace(options, url, chosen.as_ref(), &argument)?
        }
        (target, Some(chosen)) if !options.files.is_empty() => {
            over_files(options, target.as_ref(), chosen, &argument)?
        }
        _ => return Err("give --file (a file to read), or --target (or BPFOF_TARGET)".into()),
    };
    if let Some(path) = &options.output {
        std::fs::write(path, &ended.answer)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&report(&ended, steps.as_ref()))?),
        false => print(&ended, steps.as_ref()),
    }
    Ok(())
}

/// A chain at a target over file 0, the namespace as a whole.
fn over_namespace(
    options: &Run,
    url: &TargetUrl,
    chosen: Option<&Chosen>,
    argument: &[u8],
) -> Result<(Ended, Option<Steps>), Box<dyn std::error::Error>> {
    let mut controller = options.connect(url)?;
    let nsid = url.nsid;
    let info = controller.identify_namespace(nsid)?;
    let function = match (chosen, &options.installed) {
        (Some(chosen), _) => controller.load_function(&chosen.bytes, chosen.index())?,
        (None, Some(name)) => installed(&mut controller, name)?,
        (None, None) => return Err("give an object file, or --installed".into()),
    };
    let mut lane = controller.open_lane()?;
    let mut answer = Vec::new();
    let call = PushdownCall {
        nsid,
        function: function.0,
        files: &[FileVersion { id: 0, version: 1 }],
        first_file: 0,
        first_offset_bytes: options.offset,
        first_size_bytes: options.size,
        scratch: argument,
        scratch_size_bytes: options.scratch_size,
        answer_max_bytes: options.scratch_size,
    };
    let began = Instant::now();
    let chain = lane.pushdown(&call, &mut answer);
    let took = began.elapsed();
    let chain = chain.map_err(|error| {
        explained(error, &mut controller, (function, chosen.map(Chosen::program)))
    })?;
    let ended = Ended { executor: Executor::Target, answer, hops: chain.hops, took };
    let steps = match chosen.filter(|_| options.steps) {
        Some(chosen) => {
            let source = Source::Namespace(Box::new(lane), info);
            Some(repeat(options, chosen, vec![source], argument)?)
        }
        None => None,
    };
    controller.disconnect()?;
    Ok((ended, steps))
}

/// A failed chain, with the line of the function that made it fail.
fn explained(
    error: impl std::fmt::Display,
    controller: &mut Controller,
    (function, program): (FunctionId, Option<&Program>),
) -> String {
    let Ok(Some(words)) = controller.last_fault(function) else { return error.to_string() };
    let report = controller.function_report().unwrap_or_default();
    let entry = report.iter().find(|entry| entry.function == function.0);
    let line = entry.and_then(|entry| program?.sources().find(entry.fault_pc));
    let words = match (entry, line) {
        (Some(entry), Some(line)) => with_line(&words, entry.fault_pc, &line),
        _ => words,
    };
    format!("{error}\n{words}")
}

/// The target's message about a fault, after the source line from the object on this machine: a target does not know
/// the calls that were inlined.
fn with_line(words: &str, pc: u32, line: &SourceLine) -> String {
    let what = words.find(&format!("instruction {pc}")).map_or(words, |at| &words[at..]);
    format!("{line}: {what}")
}

/// Runs the chain on this machine, with empty maps, and records its hops.
fn repeat(
    options: &Run,
    chosen: &Chosen,
    sources: Vec<Source>,
    argument: &[u8],
) -> Result<Steps, Box<dyn std::error::Error>> {
    let function = FileMaps::local().load_function(&chosen.bytes, chosen.index())?;
    let step = Step {
        first_read: options.first_read(),
        argument,
        scratch_bytes: options.scratch_size,
        shown: STEPS_SHOWN,
    };
    Ok(steps::run((&function, chosen.program()), sources, &step)?)
}

/// A chain over files: at the target if they are mapped there, and otherwise here.
fn over_files(
    options: &Run,
    target: Option<&TargetUrl>,
    chosen: &Chosen,
    argument: &[u8],
) -> Result<(Ended, Option<Steps>), Box<dyn std::error::Error>> {
    let maps = match (target, &options.device) {
        (Some(url), Some(device)) => {
            let controller = options.connect(url)?;
            FileMaps::new(controller, url.nsid, NamespaceDevice::new(device)?)?
        }
        (Some(_), None) => {
            return Err("give --device, the namespace's device on this machine".into());
        }
        (None, Some(_)) => return Err("--device needs --target (or BPFOF_TARGET)".into()),
        (None, None) => FileMaps::local(),
    };
    let open = |path: &PathBuf| {
        maps.open(path).map_err(|error| format!("cannot open {}: {error}", path.display()))
    };
    let files = options.files.iter().map(open).collect::<Result<Vec<PushdownFile>, _>>()?;
    if maps.has_target() {
        for file in &files {
            if !maps.wait_mapped(file, MAP_PATIENCE) {
                let why =
                    file.refusal().map_or("it has no file map".to_owned(), |why| why.to_string());
                return Err(format!(
                    "{} cannot be read at the target: {why}",
                    file.path().display()
                )
                .into());
            }
        }
    }
    let function = maps.load_function(&chosen.bytes, chosen.index())?;
    let policy = Policy { fall_back: !maps.has_target(), ..Policy::default() };
    let mut reader = PushdownReader::new(&maps, policy)?;
    let ended = read(options, &mut reader, &files, &function, argument);
    let ended = ended.map_err(|error| {
        let at_target = function.id().and_then(|id| {
            let failed = (id, Some(chosen.program()));
            maps.with_controller(|controller| explained(&error, controller, failed))
        });
        at_target.unwrap_or_else(|| error.to_string())
    });
    // Only the steps show the source line at which a chain on this machine failed.
    let needs_steps = options.steps || ended.is_err() && !maps.has_target();
    let steps = match needs_steps {
        true => {
            let sources = files.iter().map(|file| file.file()?.try_clone().map(Source::File));
            let sources = sources.collect::<Result<_, _>>()?;
            Some(repeat(options, chosen, sources, argument)?)
        }
        false => None,
    };
    Ok((ended?, steps))
}

fn read(
    options: &Run,
    reader: &mut PushdownReader,
    files: &[PushdownFile],
    function: &StorageFunction,
    argument: &[u8],
) -> Result<Ended, ReadError> {
    let call = bpfof_host::files::ReadPushdown {
        files,
        first_read: options.first_read(),
        function,
        scratch: argument,
        scratch_size_bytes: options.scratch_size,
        answer_max_bytes: options.scratch_size,
    };
    let began = Instant::now();
    reader.submit(0, &call)?;
    loop {
        let mut end = None;
        reader.wait(Duration::from_secs(1), &mut |completion| {
            let took = began.elapsed();
            end = Some(completion.result.map(|(answer, info)| Ended {
                executor: info.executor,
                answer: answer.to_vec(),
                hops: info.hops,
                took,
            }));
        });
        if let Some(end) = end {
            return end;
        }
    }
}

fn place(executor: Executor) -> &'static str {
    match executor {
        Executor::Target => "at the target",
        Executor::Local => "on this machine, by direct reads",
        Executor::FallBack => "on this machine, by plain reads",
    }
}

fn report(ended: &Ended, steps: Option<&Steps>) -> Value {
    let mut report = json!({
        "answer_hex": hex::encode(&ended.answer),
        "hops": ended.hops,
        "executor": match ended.executor {
            Executor::Target => "target",
            Executor::Local => "local",
            Executor::FallBack => "plain_reads",
        },
        "took_us": ended.took.as_secs_f64() * 1e6,
    });
    if let Some(steps) = steps {
        report["steps"] = json!({
            "reads": steps.reads,
            "read_bytes": steps.read_bytes,
            "cost_units": steps.cost_units,
            "hops": steps.hops.iter().map(|hop| {
                let reads = hop.iter().map(|read| json!({
                    "file": read.file, "offset": read.offset, "size": read.size,
                }));
                reads.collect::<Vec<_>>()
            }).collect::<Vec<_>>(),
        });
    }
    report
}

fn print(ended: &Ended, steps: Option<&Steps>) {
    let Ended { executor, answer, hops, took } = ended;
    let shown = &answer[..answer.len().min(ANSWER_SHOWN_BYTES)];
    println!("answer: {} bytes", answer.len());
    for (line, bytes) in shown.chunks(16).enumerate() {
        let text: String = bytes
            .iter()
            .map(|byte| if matches!(byte, b' '..=b'~') { *byte as char } else { '.' })
            .collect();
        println!("  {:04x}  {:<32}  {text}", line * 16, hex::encode(bytes));
    }
    if shown.len() < answer.len() {
        println!("  … {} bytes more: see --output", answer.len() - shown.len());
    }
    println!("{hops} hops {}, in {:.1} µs", place(*executor), took.as_secs_f64() * 1e6);
    let Some(steps) = steps else { return };
    for (hop, reads) in steps.hops.iter().enumerate() {
        let reads: Vec<String> = reads
            .iter()
            .map(|read| format!("file {} at {}: {} bytes", read.file, read.offset, read.size))
            .collect();
        println!("  hop {hop}: {}", reads.join("; "));
    }
    println!(
        "{} reads of {} bytes together; its calls cost {} units of {} ns",
        steps.reads,
        steps.read_bytes,
        steps.cost_units,
        bpfof_function::cost::UNIT_PS as f64 / 1000.0
    );
}
