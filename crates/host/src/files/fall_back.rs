//! The fall-back executor: the same function, on this machine, over plain reads of the files.

use super::call::{Executor, KeptCall, ReadError, ReadPushdown, command_error};
use super::executor::{Broken, ChainExecutor, End, Failure, NotStarted};
use super::file::{Pin, PushdownFile};
use super::sys::length_bytes;
use bpfof_chain::{
    ChainError, DeviceRead, Engine, Extent, FileMap, FileVersion, Limits, Progress, Start, Tables,
};
use bpfof_function::abi;
use std::io;
use std::mem;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

/// Each file is a stretch of a make-believe namespace, as long as this power of two.
const FILE_SHIFT: u32 = 58;
/// The make-believe namespace.
const NAMESPACE: u32 = 1;
/// All stretches together.
const NAMESPACE_BYTES: u64 = (abi::MAX_READS as u64) << FILE_SHIFT;
/// Reads are not rounded out: bytes that nobody asked for may vanish from a file meanwhile. So a hop
/// may read a little more here than at a target before it is refused.
const BLOCK_BYTES: u32 = 1;
/// The one version of the maps here: they are made for one chain.
const VERSION: u64 = 1;

/// Runs chains one after the other.
#[derive(Debug)]
pub(crate) struct FallBack {
    engine: Engine,
    reads: Vec<DeviceRead>,
    answer: Vec<u8>,
    /// Chains that have started, with their numbers.
    started: Vec<(usize, Arc<KeptCall>)>,
}

impl FallBack {
    pub(crate) fn new() -> Self {
        let limits = Limits { chains: 1, ..Limits::default() };
        Self {
            engine: Engine::new(limits),
            reads: Vec::new(),
            answer: Vec::new(),
            started: Vec::new(),
        }
    }

    /// Runs one chain to its end; returns the number of hops. Reads of a file that changes meanwhile
    /// see it as plain reads do.
    fn run(&mut self, call: &ReadPushdown<'_>) -> Result<u32, ReadError> {
        let mut tables =
            Tables::new(Vec::new()).with_function(call.function.local_function().clone());
        let mut files = Vec::with_capacity(call.files.len());
        for (index, file) in call.files.iter().enumerate() {
            let length = length_bytes(file.file()).map_err(|error| failed(file, error))?;
            let id = index as u32 + 1;
            tables = tables.with_map(
                id,
                map(index, length)
                    .ok_or_else(|| failed(file, io::ErrorKind::FileTooLarge.into()))?,
            );
            files.push(FileVersion { id, version: VERSION });
        }
        let start = Start {
            owner: 0,
            namespace: NAMESPACE,
            unit_bytes: BLOCK_BYTES,
            function: call.function.local_function().id,
            files: &files,
            first_file: u32::from(call.first_read.file),
            first_offset_bytes: call.first_read.offset_bytes,
            first_size_bytes: call.first_read.size_bytes,
            argument: call.scratch,
            scratch_bytes: call.effective_scratch_bytes(),
            answer_max_bytes: call.answer_max_bytes,
        };
        self.drive(call, &start, &tables)
    }

    fn drive(
        &mut self,
        call: &ReadPushdown<'_>,
        start: &Start<'_>,
        tables: &Tables,
    ) -> Result<u32, ReadError> {
        let Self { engine, reads, answer, .. } = self;
        reads.clear();
        let chain = engine
            .start(start, tables, |read| reads.push(read))
            .map_err(|error| refused(error, 0))?;
        let mut problem = None;
        while let Some(read) = reads.pop() {
            let index = (read.device_offset >> FILE_SHIFT) as usize;
            let done = match call.files.get(index) {
                // Ends early only if the file became shorter.
                Some(file) => {
                    let offset = read.device_offset & ((1 << FILE_SHIFT) - 1);
                    file.file()
                        .read_exact_at(engine.data_mut(&read), offset)
                        .map_err(|error| failed(file, error))
                }
                None => Err(ReadError::Request("a read of no file")),
            };
            let ok = done.is_ok();
            problem = problem.or(done.err());
            let progress = engine.completed(chain, ok, tables, |read| reads.push(read));
            let Progress::Done(outcome) = progress else { continue };
            let result = match outcome {
                Ok(done) => {
                    answer.clear();
                    let scratch = engine.scratch(chain);
                    answer.extend_from_slice(
                        scratch.get(..done.length_bytes as usize).unwrap_or(&[]),
                    );
                    Ok(done.hops)
                }
                Err((error, hops)) => Err(problem.unwrap_or_else(|| refused(error, hops))),
            };
            engine.release(chain);
            return result;
        }
        Err(ReadError::Request("a chain without an end"))
    }
}

impl ChainExecutor for FallBack {
    fn place(&self) -> Executor {
        Executor::FallBack
    }

    fn in_flight(&self) -> usize {
        self.started.len()
    }

    fn start(&mut self, number: usize, call: &Arc<KeptCall>, _: &[Pin]) -> Result<(), NotStarted> {
        self.started.push((number, Arc::clone(call)));
        Ok(())
    }

    /// Runs each chain to its end.
    fn turn(&mut self, _: Duration, on_end: &mut dyn FnMut(usize, End<'_>)) -> Result<(), Broken> {
        for (number, call) in mem::take(&mut self.started) {
            let result = self.run(&call.as_call());
            drop(call);
            on_end(number, result.map(|hops| (&self.answer[..], hops)).map_err(Failure::Final));
        }
        Ok(())
    }
}

/// A file of `length` bytes as a whole, in the stretch that is its own. None if it is too long.
fn map(index: usize, length: u64) -> Option<FileMap> {
    let device_offset = (index as u64) << FILE_SHIFT;
    let extent = Extent { file_offset: 0, device_offset, length };
    let extents = if length == 0 { vec![] } else { vec![extent] };
    if length > 1 << FILE_SHIFT {
        return None;
    }
    FileMap::new(NAMESPACE, VERSION, length, extents, NAMESPACE_BYTES, BLOCK_BYTES).ok()
}

fn failed(file: &PushdownFile, source: io::Error) -> ReadError {
    ReadError::Plain { path: file.path().to_owned(), source }
}

fn refused(error: ChainError, hops: u32) -> ReadError {
    ReadError::Command(command_error(error, hops))
}
