//! Runs a chain on this machine over plain reads, and records its hops.

use bpfof_chain::ChainError;
use bpfof_function::Program;
use bpfof_host::files::{
    FirstRead, PlainCall, PlainChains, PlainError, PlainRead, StorageFunction,
};
use bpfof_host::{Lane, NamespaceInfo};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// A file or namespace that the chain reads.
pub(super) enum Source {
    File(File),
    Namespace(Box<Lane>, NamespaceInfo),
}

impl Source {
    fn length_bytes(&self) -> std::io::Result<u64> {
        match self {
            Source::File(file) => Ok(file.metadata()?.len()),
            Source::Namespace(_, info) => Ok(info.blocks * u64::from(info.block_bytes)),
        }
    }

    fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), String> {
        match self {
            Source::File(file) => {
                file.read_exact_at(data, offset).map_err(|error| error.to_string())
            }
            Source::Namespace(lane, info) => {
                // Commands read whole blocks.
                let block = u64::from(info.block_bytes);
                let (from, to) = (offset / block * block, offset + data.len() as u64);
                let mut blocks = vec![0; (to.next_multiple_of(block) - from) as usize];
                lane.read(info.nsid, from, &mut blocks).map_err(|error| error.to_string())?;
                let at = (offset - from) as usize;
                data.copy_from_slice(&blocks[at..at + data.len()]);
                Ok(())
            }
        }
    }
}

/// How the chain begins, and how much of it is recorded.
pub(super) struct Step<'a> {
    pub(super) first_read: FirstRead,
    pub(super) argument: &'a [u8],
    pub(super) scratch_bytes: u32,
    /// Number of hops whose reads are recorded.
    pub(super) shown: usize,
}

/// One read: the index of its file, its offset and its size in bytes.
pub(super) struct HopRead {
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) size: u32,
}

/// The reads of a chain, and the cost of its calls.
#[derive(Default)]
pub(super) struct Steps {
    /// The reads of the first hops.
    pub(super) hops: Vec<Vec<HopRead>>,
    pub(super) reads: u64,
    pub(super) read_bytes: u64,
    /// In units of processor time (docs/tenants.md).
    pub(super) cost_units: u64,
}

/// Runs a chain of `function`, which comes from `program`, over `sources`, and records its hops.
///
/// # Errors
/// A message that says why the chain failed, with the source line if the function faulted.
pub(super) fn run(
    (function, program): (&StorageFunction, &Program),
    mut sources: Vec<Source>,
    step: &Step<'_>,
) -> Result<Steps, String> {
    let lengths = sources.iter().map(Source::length_bytes).collect::<Result<Vec<u64>, _>>();
    let call = PlainCall {
        function,
        first_read: step.first_read,
        scratch: step.argument,
        scratch_bytes: step.scratch_bytes,
        answer_max_bytes: step.scratch_bytes,
    };
    let mut steps = Steps::default();
    let read = |place: PlainRead, data: &mut [u8]| {
        let size = data.len() as u32;
        steps.reads += 1;
        steps.read_bytes += u64::from(size);
        let hop = place.hop as usize;
        if hop < step.shown {
            steps.hops.resize_with(hop + 1, Vec::new);
            steps.hops[hop].push(HopRead { file: place.file, offset: place.offset_bytes, size });
        }
        sources[place.file].read(place.offset_bytes, data)
    };
    let lengths = lengths.map_err(|error| error.to_string())?;
    let done = PlainChains::default().run(&call, &lengths, read, &mut Vec::new());
    let done = done.map_err(|error| match error {
        PlainError::TooLong(file) => format!("file {file} is too long"),
        PlainError::Read(error) => error,
        PlainError::Chain(ChainError::Fault(fault), _) => fault.explain(program),
        PlainError::Chain(error, _) => error.to_string(),
    })?;
    steps.cost_units = done.cost_units;
    Ok(steps)
}
