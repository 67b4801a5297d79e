//! A chain on this machine over plain reads, of which each hop is told.

use bpfof_chain::{
    ChainError, DeviceRead, Engine, Extent, FileMap, FileVersion, Function, Limits, Progress,
    Start, Tables, Trace,
};
use bpfof_function::{NativeFunction, Object, abi};
use bpfof_host::{Lane, NamespaceInfo};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Each source is a stretch of a make-believe namespace, as long as this power of two.
const SOURCE_SHIFT: u32 = 58;
const NAMESPACE: u32 = 1;
const VERSION: u64 = 1;
const FUNCTION: u32 = 1;

/// What is read.
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

/// How the chain begins.
pub(super) struct Step<'a> {
    pub(super) offset: u64,
    pub(super) size: u32,
    pub(super) argument: &'a [u8],
    pub(super) scratch_bytes: u32,
    /// Hops of which the reads are kept.
    pub(super) shown: usize,
}

/// One read: of which file, from where on, and how long, in bytes.
pub(super) struct HopRead {
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) size: u32,
}

/// What a chain has read, and what its calls have cost.
#[derive(Default)]
pub(super) struct Steps {
    /// The reads of the first hops.
    pub(super) hops: Vec<Vec<HopRead>>,
    pub(super) reads: u64,
    pub(super) read_bytes: u64,
    /// In units of processor time (docs/tenants.md).
    pub(super) cost_units: u64,
}

/// Runs a chain of an entry point of `object` over `sources`, and looks at each hop.
///
/// # Errors
/// Why it failed, in words, with the line of the function if that is at fault.
pub(super) fn run(
    object: &[u8],
    entry: usize,
    mut sources: Vec<Source>,
    step: &Step<'_>,
) -> Result<Steps, String> {
    let say = |error: &dyn std::fmt::Display| error.to_string();
    let parsed = Object::parse(object).map_err(|error| say(&error))?;
    let entry = parsed.into_entry(entry).map_err(|error| say(&error))?;
    let function = Arc::new(Function {
        id: FUNCTION,
        instructions: entry.program.instructions().len() as u32,
        native: NativeFunction::compile(&entry.program).map_err(|error| say(&error))?,
        name: entry.name,
        memory: None,
        trace: Trace::default(),
        peers: None,
        maps: Arc::default(),
    });
    let namespace_bytes = (abi::MAX_READS as u64) << SOURCE_SHIFT;
    let mut tables = Tables::new(Vec::new()).with_function(Arc::clone(&function));
    let mut files = Vec::new();
    for (index, source) in sources.iter().enumerate() {
        let length = source.length_bytes().map_err(|error| say(&error))?;
        let extent =
            Extent { file_offset: 0, device_offset: (index as u64) << SOURCE_SHIFT, length };
        let extents = if length == 0 { vec![] } else { vec![extent] };
        let map = FileMap::new(NAMESPACE, VERSION, length, extents, namespace_bytes, 1);
        let id = index as u32 + 1;
        tables = tables.with_map(id, map.map_err(|error| say(&error))?);
        files.push(FileVersion { id, version: VERSION });
    }
    let start = Start {
        owner: 0,
        namespace: NAMESPACE,
        unit_bytes: 1,
        function: FUNCTION,
        files: &files,
        first_file: 0,
        first_offset_bytes: step.offset,
        first_size_bytes: step.size,
        argument: step.argument,
        scratch_bytes: step.scratch_bytes,
        answer_max_bytes: step.scratch_bytes,
    };
    let mut engine = Engine::new(Limits { chains: 1, ..Limits::default() });
    let (steps, end) = follow(&mut engine, &start, &tables, &mut sources, step.shown)?;
    end.map(|()| steps).map_err(|error| match error {
        ChainError::Fault(fault) => fault.explain(function.native.program()),
        error => error.to_string(),
    })
}

fn follow(
    engine: &mut Engine,
    start: &Start<'_>,
    tables: &Tables,
    sources: &mut [Source],
    shown: usize,
) -> Result<(Steps, Result<(), ChainError>), String> {
    let (mut steps, mut hop) = (Steps::default(), Vec::new());
    let chain = match engine.start(start, tables, |read| hop.push(read)) {
        Ok(chain) => chain,
        Err(error) => return Ok((steps, Err(error))),
    };
    engine.take_spent();
    loop {
        let mut next = Vec::new();
        let mut kept = Vec::new();
        let mut end = None;
        // The engine takes the reads of a hop in any order, and calls the function after the last.
        for read in &hop {
            let (file, offset) = place(read);
            let source = sources.get_mut(file).ok_or("a read of no file")?;
            source.read(offset, engine.data_mut(read))?;
            kept.push(HopRead { file, offset, size: read.length });
            steps.reads += 1;
            steps.read_bytes += u64::from(read.length);
            if let Progress::Done(outcome) =
                engine.completed(chain, true, tables, |read| next.push(read))
            {
                end = Some(outcome);
            }
        }
        if steps.hops.len() < shown {
            steps.hops.push(kept);
        }
        if let Some(outcome) = end {
            engine.release(chain);
            steps.cost_units = engine.take_spent();
            return Ok((steps, outcome.map(|_| ()).map_err(|(error, _)| error)));
        }
        hop = next;
    }
}

/// Which source a read is of, and where in it.
fn place(read: &DeviceRead) -> (usize, u64) {
    let offset = read.device_offset & ((1 << SOURCE_SHIFT) - 1);
    ((read.device_offset >> SOURCE_SHIFT) as usize, offset)
}
