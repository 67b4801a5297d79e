//! The local executor: chains on this machine without a target (XRP without its kernel).
//!
//! The chain engine runs in this process, as it does at a target, and its reads go through an
//! io_uring with direct I/O, straight into the arenas of the chains. The file system translates
//! offsets and keeps direct reads coherent with writes, so there are no file maps and no versions
//! to compare. The fall-back runs chains whose result is not certain here ([`Failure::Unable`]).
//!
//! [`Passthrough`] does the same for an NVMe namespace through its character device. There no file system translates
//! offsets, so it uses file maps with versions, as a target does.
//!
//! `kernel` runs a chain that is alone in the kernel module, if that is loaded; the engine does what the module cannot.
//! `chains` runs the engine. `files`, `namespace` and `tables` hold its files and functions, `reads` the rings.

mod chains;
mod files;
mod in_kernel;
mod namespace;
mod passthrough;
mod reads;
mod tables;

use super::call::{Executor, KeptChain, ReadError, ReadPushdown, command_error};
use super::executor::{Broken, ChainExecutor, End, Failure, NotStarted, Run};
use super::file::Pin;
use bpfof_chain::{Answer, ChainError, FileVersion, InvalidOutput, Start};
use bpfof_device::RingError;
use chains::Chains;
use files::Files;
pub use in_kernel::{kernel_domain, load_into_kernel};
pub(crate) use passthrough::Passthrough;
use reads::FileReads;
use std::time::Duration;

/// Why a chain cannot run in this executor, if the policy forbids plain reads.
const NOT_DIRECT: &str = "a file cannot be read directly here, and the policy allows no plain \
                          reads: its file system has no direct I/O, or the process may not reopen \
                          it";

/// Runs chains over files of this machine.
#[derive(Debug)]
pub(crate) struct Local {
    chains: Chains<FileReads>,
    files: Files,
    versions: Vec<FileVersion>,
    /// Chains of the current turn that the fall-back must run.
    unable: Vec<(usize, KeptChain, ReadError)>,
}

impl Local {
    pub(crate) fn new() -> Result<Self, RingError> {
        let chains = Chains::new(FileReads::new()?);
        Ok(Self { chains, files: Files::new(), versions: Vec::new(), unable: Vec::new() })
    }
}

/// The engine's parameters of a chain.
fn start_of<'a>(
    call: &ReadPushdown<'a>,
    function: u32,
    files: &'a [FileVersion],
    namespace: u32,
    unit_bytes: u32,
) -> Start<'a> {
    Start {
        owner: 0,
        namespace,
        unit_bytes,
        function,
        files,
        first_file: u32::from(call.first_read.file),
        first_offset_bytes: call.first_read.offset_bytes,
        first_size_bytes: call.first_read.size_bytes,
        argument: call.scratch,
        scratch_bytes: call.effective_scratch_bytes(),
        answer_max_bytes: call.answer_max_bytes,
    }
}

impl ChainExecutor for Local {
    fn place(&self) -> Executor {
        Executor::Local
    }

    fn in_flight(&self) -> usize {
        self.chains.running()
    }

    fn start(&mut self, run: &Run<'_>, _: &[Pin]) -> Result<usize, NotStarted> {
        if self.chains.is_full() {
            return Err(NotStarted::NoRoom);
        }
        let Self { chains, files, versions, .. } = self;
        let unable = |error| Err(NotStarted::Ended(Failure::Unable(error)));
        let begun = run.first();
        let call = begun.1.as_call();
        let register = &mut |slot, fd| chains.reads.register(slot, fd);
        let Some(block_bytes) = files.find(call.files, register, versions) else {
            return unable(ReadError::Request(NOT_DIRECT));
        };
        let function = files.function(call.function);
        let start = start_of(&call, function, versions, files::NAMESPACE, block_bytes);
        match chains.start(begun.clone(), &start, files) {
            Ok(()) => Ok(1),
            Err(error) => {
                files.measure(call.files);
                unable(ReadError::Command(command_error(error, 0)))
            }
        }
    }

    fn turn(
        &mut self,
        timeout: Duration,
        on_end: &mut dyn FnMut(usize, End<'_>),
    ) -> Result<(), Broken> {
        let Self { chains, files, unable, .. } = self;
        let turned = chains.turn(timeout, files, &mut |(number, call), outcome, scratch| {
            let end = match outcome {
                Ok(Answer { hops, length_bytes }) => {
                    Ok((scratch.get(..length_bytes as usize).unwrap_or(&[]), hops))
                }
                Err((error, hops)) => {
                    let seen = ReadError::Command(command_error(error, hops));
                    if !is_final(&error) {
                        return unable.push((number, call, seen));
                    }
                    Err(Failure::Final(seen))
                }
            };
            drop(call);
            on_end(number, end);
        });
        for (number, call, seen) in unable.drain(..) {
            // The length of a file may have been out of date.
            files.measure(call.files());
            drop(call);
            on_end(number, Err(Failure::Unable(seen)));
        }
        turned.map_err(|error| Broken(format!("io_uring: {error}")))
    }
}

/// Whether the fall-back would end with the same error. Unlike this executor it does not round
/// reads out to whole blocks, and it uses the current lengths of files.
fn is_final(error: &ChainError) -> bool {
    match error {
        ChainError::HopBudget
        | ChainError::Fault(_)
        | ChainError::Abort(_)
        | ChainError::AnswerTooLong(_) => true,
        ChainError::InvalidOutput(output) => !matches!(output, InvalidOutput::HopTooLarge),
        _ => false,
    }
}
