//! The local executor: chains on this machine without a target (XRP without its kernel).
//!
//! The chain engine runs in this process, as it does at a target, and its reads go through an
//! io_uring with direct I/O, straight into the arenas of the chains. The file system translates
//! offsets and keeps direct reads coherent with what was written, so there are no file maps and
//! nothing to compare. What it cannot tell for certain ([`End::Unknown`]) the fall-back does.
//!
//! `files` is which files and functions the engine knows, `reads` the ring.

mod files;
mod reads;

use super::fallback::refused;
use super::{PushdownFile, ReadError, ReadPushdown};
use bpfof_chain::{
    Answer, ChainError, DeviceRead, Engine, FileVersion, InvalidOutput, Limits, Outcome, Start,
};
use bpfof_device::RingError;
pub(crate) use files::BLOCK_MAX_BYTES;
use files::Files;
use reads::ChainReads;
use std::io;
use std::time::Duration;

/// Chains in flight: what the drives of one machine take at once. Each has an arena of 92 KiB, of
/// which the data area is pinned. Further chains wait.
pub(crate) const CHAINS: usize = 256;

/// Why a chain cannot run here, for a policy without plain reads.
const NOT_DIRECT: &str = "a file cannot be read directly here, and the policy allows no plain reads: \
                          its file system has no direct I/O, or the process may not open it again";

/// Runs chains over files of this machine.
#[derive(Debug)]
pub(crate) struct Local {
    /// Declared, and so dropped, before the engine, whose arenas the kernel writes to.
    reads: ChainReads,
    engine: Engine,
    files: Files,
    /// Reads that the engine asked for and the ring does not have yet.
    emitted: Vec<DeviceRead>,
    /// The caller's number of each chain, by the engine's index.
    numbers: Vec<usize>,
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
        let limits = Limits { chains: CHAINS, ..Limits::default() };
        Ok(Self {
            reads: ChainReads::new()?,
            engine: Engine::new(limits),
            files: Files::new(),
            emitted: Vec::new(),
            numbers: Vec::new(),
            versions: Vec::new(),
        })
    }

    /// Chains that run.
    pub(crate) fn in_flight(&self) -> usize {
        self.engine.running()
    }

    /// Begins a chain, which the caller calls `number`. Its first reads leave with the next
    /// [`turn`](Self::turn).
    pub(crate) fn start(&mut self, number: usize, call: &ReadPushdown<'_>) -> Started {
        if self.engine.running() >= CHAINS {
            return Started::Full;
        }
        let Self { reads, engine, files, emitted, numbers, versions } = self;
        let Some(block_bytes) = files.find(call.files, reads, versions) else {
            return Started::Unknown(ReadError::Request(NOT_DIRECT));
        };
        let start = Start {
            owner: 0,
            namespace: files::NAMESPACE,
            block_bytes,
            function: files.function(call.function),
            files: versions,
            first_file: u32::from(call.first_read.file),
            first_offset_bytes: call.first_read.offset_bytes,
            first_size_bytes: call.first_read.size_bytes,
            argument: call.scratch,
            scratch_bytes: call.effective_scratch_bytes(),
            answer_max_bytes: call.answer_max_bytes,
        };
        match engine.start(&start, files.tables(), |read| emitted.push(read)) {
            Ok(chain) => {
                if numbers.len() <= chain.index() {
                    numbers.resize(chain.index() + 1, 0);
                }
                numbers[chain.index()] = number;
                self.submit();
                Started::Yes
            }
            Err(error) => Started::Unknown(refused(error, 0)),
        }
    }

    /// Hands what the engine asked for to the ring.
    fn submit(&mut self) {
        for read in self.emitted.drain(..) {
            self.reads.submit(&mut self.engine, &read, &self.files);
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
        if self.engine.running() == 0 {
            return Ok(0);
        }
        self.reads.wait(timeout)?;
        let mut ended = 0;
        while let Some((chain, ok)) = self.reads.completed() {
            let emitted = &mut self.emitted;
            let outcome =
                self.engine.completed(chain, ok, self.files.tables(), |read| emitted.push(read));
            let Some(outcome) = outcome else {
                self.submit();
                continue;
            };
            ended += 1;
            let end = end(outcome, self.engine.scratch(chain));
            on_end(self.numbers[chain.index()], end);
            self.engine.release(chain);
        }
        Ok(ended)
    }

    /// Looks anew how long these files are: one has grown or shrunk, or a chain was wrong about it.
    pub(crate) fn measure(&mut self, files: &[PushdownFile]) {
        self.files.measure(files);
    }
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
