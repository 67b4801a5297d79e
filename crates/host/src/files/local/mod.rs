//! The local executor: chains on this machine without a target (XRP without its kernel).
//!
//! The chain engine runs in this process, as it does at a target, and its reads go through an
//! io_uring with direct I/O, straight into the arenas of the chains. The file system translates
//! offsets and keeps direct reads coherent with what was written, so there are no file maps and
//! nothing to compare. What it cannot tell for certain ([`End::Unknown`]) the fall-back does.
//!
//! [`Passthrough`] is the same for an NVMe namespace by its character device, where there is no file
//! system to translate: with file maps, which are compared as for a target.
//!
//! `chains` runs the engine. `files` and `namespace` are which files and functions it knows, `reads`
//! the rings.

mod chains;
mod files;
mod namespace;
mod reads;

use super::fallback::refused;
use super::{PushdownFile, ReadError, ReadPushdown};
use bpfof_chain::{
    Answer, ChainError, FileVersion, Function, InvalidOutput, Outcome, Start, Tables,
};
use bpfof_device::RingError;
use chains::Chains;
pub(crate) use files::BLOCK_MAX_BYTES;
use files::Files;
pub(crate) use namespace::Passthrough;
use reads::FileReads;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Why a chain cannot run here, for a policy without plain reads.
const NOT_DIRECT: &str = "a file cannot be read directly here, and the policy allows no plain reads: \
                          its file system has no direct I/O, or the process may not open it again";

/// Runs chains over files of this machine.
#[derive(Debug)]
pub(crate) struct Local {
    chains: Chains<FileReads>,
    files: Files,
    versions: Vec<FileVersion>,
}

/// What became of a chain that ran here.
pub(crate) enum End<'a> {
    /// It succeeded: the answer, and its hops.
    Good(&'a [u8], u32),
    /// It failed, as it would have at a target.
    Failed(ReadError),
    /// Plain reads must tell: a read was short or failed, or the chain failed for a reason that
    /// depends on rounding to blocks, or on the length of a file, which may have changed. With what
    /// it looks like.
    Unknown(ReadError),
}

/// What became of the start of a chain.
pub(crate) enum Started {
    /// It runs.
    Yes,
    /// It must wait until another has ended.
    Full,
    /// As [`End::Unknown`], or a file cannot be read directly.
    Unknown(ReadError),
}

impl Local {
    pub(crate) fn new() -> Result<Self, RingError> {
        let chains = Chains::new(FileReads::new()?);
        Ok(Self { chains, files: Files::new(), versions: Vec::new() })
    }

    /// Chains that run.
    pub(crate) fn in_flight(&self) -> usize {
        self.chains.running()
    }

    /// Begins a chain, which the caller calls `number`. Its first reads leave with the next
    /// [`turn`](Self::turn).
    pub(crate) fn start(&mut self, number: usize, call: &ReadPushdown<'_>) -> Started {
        if self.chains.is_full() {
            return Started::Full;
        }
        let Self { chains, files, versions } = self;
        let Some(block_bytes) = files.find(call.files, &mut chains.reads, versions) else {
            return Started::Unknown(ReadError::Request(NOT_DIRECT));
        };
        let start = Start {
            owner: 0,
            namespace: files::NAMESPACE,
            unit_bytes: block_bytes,
            function: files.function(call.function),
            files: versions,
            first_file: u32::from(call.first_read.file),
            first_offset_bytes: call.first_read.offset_bytes,
            first_size_bytes: call.first_read.size_bytes,
            argument: call.scratch,
            scratch_bytes: call.effective_scratch_bytes(),
            answer_max_bytes: call.answer_max_bytes,
        };
        match chains.start(number, &start, files) {
            Ok(()) => Started::Yes,
            Err(error) => Started::Unknown(refused(error, 0)),
        }
    }

    /// One call into the kernel, which takes all new reads and waits, at most `timeout`, until one
    /// has completed; then all that have are taken, and their chains go on. Returns how many chains
    /// have ended.
    ///
    /// # Errors
    /// The kernel's refusal. The chains in flight have no end then, and the executor is of no
    /// further use.
    pub(crate) fn turn(
        &mut self,
        timeout: Duration,
        on_end: &mut dyn FnMut(usize, End<'_>),
    ) -> io::Result<usize> {
        self.chains.turn(timeout, &self.files, &mut |number, outcome, scratch| {
            on_end(number, end(outcome, scratch));
        })
    }

    /// Looks anew how long these files are: one has grown or shrunk, or a chain was wrong about it.
    pub(crate) fn measure(&mut self, files: &[PushdownFile]) {
        self.files.measure(files);
    }
}

/// These tables with a function that they do not have, and without those that nobody can call any
/// more.
fn with_function(tables: &Tables, function: &Arc<Function>) -> Tables {
    let is_unused = |known: &&Arc<Function>| Arc::strong_count(known) == 1;
    let unused: Vec<u32> =
        tables.functions().iter().filter(is_unused).map(|known| known.id).collect();
    let tables = tables.with_function(Arc::clone(function));
    unused.iter().fold(tables, |tables, id| tables.without_function(*id))
}

fn end(outcome: Outcome, scratch: &[u8]) -> End<'_> {
    match outcome {
        Ok(Answer { hops, length_bytes }) => {
            End::Good(scratch.get(..length_bytes as usize).unwrap_or(&[]), hops)
        }
        Err((error, hops)) if is_final(&error) => End::Failed(refused(error, hops)),
        Err((error, hops)) => End::Unknown(refused(error, hops)),
    }
}

/// Whether the fall-back would say the same. It reads neither whole blocks nor files of the length
/// that they had when they were looked at.
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
