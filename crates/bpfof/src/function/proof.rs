//! Proofs in a child process, which is killed if it takes too much time or memory.
//!
//! The program runs itself with a hidden subcommand: the object goes in, one line of JSON comes
//! out. The child limits its own memory and processor time before it looks at the object, and does
//! not outlive its parent.

use bpfof_function::{Object, Program, abi};
use bpfof_proof::Obstacle;
use bpfof_terminal::Outcome;
use clap::Args;
use rustix::process::{Resource, Rlimit, Signal};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long the verifier may look for a proof. Proofs that it can find at all take it less than a
/// second.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// Processor time of the child in seconds: in case it is stuck in a single step.
const PROCESSOR_SECONDS: u64 = TIME_LIMIT.as_secs() + 1;
/// When the child is killed; later than its own limits, because it may have to wait for a
/// processor.
const END_AFTER: Duration = Duration::from_secs(2 * TIME_LIMIT.as_secs());
/// Address space of the child in bytes; the verifier has been seen to ask for 4 GiB for an object
/// of 2.6 KB.
const MEMORY_BYTES: u64 = 1 << 30;

/// The result of the attempt to prove that no access can fault.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(super) enum Proof {
    Proved,
    NotProved {
        /// The first instruction that is not proved safe.
        pc: u32,
        reason: String,
        instruction: String,
        file: Option<String>,
        line: Option<u32>,
        source: Option<String>,
        /// File and line, with the calls that were inlined.
        place: Option<String>,
    },
    GaveUp {
        reason: String,
    },
}

/// Options of the child.
#[derive(Args)]
pub(crate) struct Prove {
    /// Index of the entry point in the object.
    #[arg(long)]
    index: usize,
    #[arg(long)]
    block_min: usize,
    /// Id of the parent process.
    #[arg(long)]
    parent: u32,
}

/// The child: reads an object, writes a [`Proof`].
pub(super) fn child(options: &Prove) -> Outcome {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have ended before that call.
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    if parent.and_then(|pid| u32::try_from(pid).ok()) != Some(options.parent) {
        return Err("the parent process has ended".into());
    }
    let limit = |resource, most: u64| {
        // Tighter limits stay.
        let most = rustix::process::getrlimit(resource).maximum.map_or(most, |old| old.min(most));
        rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
    };
    limit(Resource::As, MEMORY_BYTES)?;
    limit(Resource::Cpu, PROCESSOR_SECONDS)?;
    // No core dump if the verifier runs out of memory: that is expected.
    limit(Resource::Core, 0)?;
    let mut bytes = Vec::new();
    std::io::stdin().take(abi::MAX_OBJECT_BYTES as u64).read_to_end(&mut bytes)?;
    let program = Object::parse(&bytes)?.into_entry(options.index)?.program;
    let deadline = Instant::now() + TIME_LIMIT;
    let proof = match bpfof_proof::prove(&program, options.block_min, deadline) {
        bpfof_proof::Outcome::Proved => Proof::Proved,
        bpfof_proof::Outcome::NotProved(obstacle) => not_proved(&program, obstacle),
        bpfof_proof::Outcome::GaveUp(reason) => Proof::GaveUp { reason: reason.to_string() },
    };
    println!("{}", serde_json::to_string(&proof)?);
    Ok(())
}

fn not_proved(program: &Program, Obstacle { pc, reason }: Obstacle) -> Proof {
    let instruction = program.instructions().get(pc as usize).map(ToString::to_string);
    let instruction = instruction.unwrap_or_default();
    Proof::NotProved { pc, reason, instruction, file: None, line: None, source: None, place: None }
}

impl Proof {
    /// The same with the source lines of `program`, which the child does not look up.
    pub(super) fn located(mut self, program: &Program) -> Proof {
        if let Proof::NotProved { pc, file, line, source, place, .. } = &mut self
            && let Some(found) = program.sources().find(*pc)
        {
            *file = Some(found.file.to_string());
            *line = Some(found.line);
            *source = Some(found.text.to_string());
            *place = Some(found.to_string());
        }
        self
    }
}

/// A child that is killed and waited for when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if the child has ended and was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Tries to prove that no access of an entry point can fault on blocks of at least `block_min`
/// bytes. An error means that the attempt could not be made.
pub(super) fn prove(object: &[u8], index: usize, block_min: usize) -> Result<Proof, String> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        format!("cannot {what} the process that looks for a proof: {error} (--no-proof skips it)")
    };
    let program = std::env::current_exe().map_err(|error| failed("find", &error))?;
    let child = Command::new(program)
        .args(["function", "prove", "--index", &index.to_string()])
        .args(["--block-min", &block_min.to_string()])
        .args(["--parent", &std::process::id().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed("start", &error))?;
    let mut child = Running(child);
    let (Some(mut input), Some(mut output)) = (child.0.stdin.take(), child.0.stdout.take()) else {
        return Err(failed("talk to", &"no pipes"));
    };
    // The child first reads the whole object; if that fails, its answer says so or is missing.
    let _ = input.write_all(object);
    drop(input);
    let (sender, answer) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = output.read_to_string(&mut text);
        let _ = sender.send(text);
    });
    let text = answer.recv_timeout(END_AFTER).unwrap_or_default();
    if text.is_empty() {
        // The child has closed its output, or its time is over: kill it in either case.
        let _ = child.0.kill();
    }
    let status = child.0.wait().map_err(|error| failed("wait for", &error))?;
    // The pipe closes when the child ends, and with it the reader ends.
    let _ = reader.join();
    Ok(serde_json::from_str(&text).unwrap_or_else(|_| Proof::GaveUp { reason: why(status) }))
}

/// Why a child has left no answer.
fn why(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    let is = |signal: Signal| status.signal() == Some(signal.as_raw());
    if is(Signal::ABORT) {
        format!("it took more than {} MiB of memory", MEMORY_BYTES >> 20)
    } else if is(Signal::KILL) || is(Signal::XCPU) {
        format!("it took more than {} s", TIME_LIMIT.as_secs())
    } else {
        format!("the verifier failed ({status})")
    }
}
