//! Runs one chain on this machine over any readable source, with the same engine and function as at a target.

use super::call::FirstRead;
use super::function::StorageFunction;
use bpfof_chain::{
    ChainError, ChainId, DeviceRead, Engine, Extent, FileMap, FileVersion, Limits, Progress, Start,
    Tables,
};
use bpfof_function::abi;

/// Each file is a range of an imaginary namespace, of two to the power of this many bytes.
const FILE_SHIFT: u32 = 58;
/// Id of the imaginary namespace.
const NAMESPACE: u32 = 1;
/// Size of all ranges together.
const NAMESPACE_BYTES: u64 = (abi::MAX_READS as u64) << FILE_SHIFT;
/// Reads are not rounded out to blocks, because the file may be cut within the additional bytes meanwhile. So a hop may
/// read slightly more than at a target before it is refused.
const BLOCK_BYTES: u32 = 1;
/// The version of all maps: they never change.
const VERSION: u64 = 1;

/// Runs chains, each to its end. The caller does the reads.
#[derive(Debug)]
pub struct PlainChains {
    engine: Engine,
    /// The maps of the last chain's files, reused if the files of the next chain have the same `lengths`.
    maps: Tables,
    files: Vec<FileVersion>,
    lengths: Vec<u64>,
    hop: Vec<DeviceRead>,
    next: Vec<DeviceRead>,
}

/// The parameters of a chain.
#[derive(Clone, Copy, Debug)]
pub struct PlainCall<'a> {
    /// The function that is run on each block.
    pub function: &'a StorageFunction,
    /// The first read.
    pub first_read: FirstRead,
    /// The argument: the first bytes of scratch. The rest is zero.
    pub scratch: &'a [u8],
    /// Size of scratch in bytes, at least the argument.
    pub scratch_bytes: u32,
    /// Longest answer to accept, in bytes.
    pub answer_max_bytes: u32,
}

/// A read that a chain requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainRead {
    /// The hop that it belongs to, from 0.
    pub hop: u32,
    /// Index of the file.
    pub file: usize,
    /// File offset in bytes.
    pub offset_bytes: u64,
}

/// Statistics of a chain that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainDone {
    /// Number of hops.
    pub hops: u32,
    /// Cost of its function calls, in units of processor time (docs/tenants.md).
    pub cost_units: u64,
}

/// Why a chain failed.
#[derive(Debug)]
pub enum PlainError<E> {
    /// The file with this index is longer than a chain can read.
    TooLong(usize),
    /// A read failed.
    Read(E),
    /// The chain failed after this number of hops.
    Chain(ChainError, u32),
}

impl Default for PlainChains {
    fn default() -> Self {
        let limits = Limits { chains: 1, ..Limits::default() };
        Self {
            engine: Engine::new(limits),
            maps: Tables::new(Vec::new()),
            files: Vec::new(),
            lengths: Vec::new(),
            hop: Vec::new(),
            next: Vec::new(),
        }
    }
}

impl PlainChains {
    /// Runs one chain over at most 16 files of these `lengths` in bytes; puts the answer into `answer`. `read` must
    /// fill the buffer from the given place, which is within the file's length.
    ///
    /// # Errors
    /// See [`PlainError`].
    pub fn run<E>(
        &mut self,
        call: &PlainCall<'_>,
        lengths: &[u64],
        read: impl FnMut(PlainRead, &mut [u8]) -> Result<(), E>,
        answer: &mut Vec<u8>,
    ) -> Result<PlainDone, PlainError<E>> {
        let function = call.function.local_function();
        if self.lengths != lengths {
            self.map(lengths).map_err(PlainError::TooLong)?;
        }
        let tables = self.maps.with_function(function.clone());
        let start = Start {
            owner: 0,
            namespace: NAMESPACE,
            unit_bytes: BLOCK_BYTES,
            function: function.id,
            files: &self.files,
            first_file: u32::from(call.first_read.file),
            first_offset_bytes: call.first_read.offset_bytes,
            first_size_bytes: call.first_read.size_bytes,
            argument: call.scratch,
            scratch_bytes: call.scratch_bytes,
            answer_max_bytes: call.answer_max_bytes,
        };
        self.next.clear();
        let chain = self
            .engine
            .start(&start, &tables, |read| self.next.push(read))
            .map_err(|error| PlainError::Chain(error, 0))?;
        let end = self.follow(chain, &tables, read, answer);
        self.engine.release(chain);
        let cost_units = self.engine.take_spent();
        end.map(|hops| PlainDone { hops, cost_units })
    }

    /// Makes the maps of files of these lengths.
    ///
    /// # Errors
    /// The index of a file that is too long.
    fn map(&mut self, lengths: &[u64]) -> Result<(), usize> {
        self.lengths.clear();
        self.files.clear();
        self.maps = Tables::new(Vec::new());
        for (index, length) in lengths.iter().enumerate() {
            let id = index as u32 + 1;
            self.maps = self.maps.with_map(id, map(index, *length).ok_or(index)?);
            self.files.push(FileVersion { id, version: VERSION });
        }
        self.lengths.extend_from_slice(lengths);
        Ok(())
    }

    fn follow<E>(
        &mut self,
        chain: ChainId,
        tables: &Tables,
        mut read: impl FnMut(PlainRead, &mut [u8]) -> Result<(), E>,
        answer: &mut Vec<u8>,
    ) -> Result<u32, PlainError<E>> {
        let Self { engine, hop, next, .. } = self;
        let mut problem = None;
        for number in 0.. {
            std::mem::swap(hop, next);
            next.clear();
            assert!(!hop.is_empty(), "a chain that has not ended reads");
            // The engine takes the reads of a hop in any order, and calls the function after the last.
            for wanted in hop.iter() {
                let place = PlainRead {
                    hop: number,
                    file: (wanted.device_offset >> FILE_SHIFT) as usize,
                    offset_bytes: wanted.device_offset & ((1 << FILE_SHIFT) - 1),
                };
                let done = read(place, engine.data_mut(wanted));
                let ok = done.is_ok();
                problem = problem.or(done.err());
                match engine.completed(chain, ok, tables, |read| next.push(read)) {
                    Progress::Done(Ok(done)) => {
                        let scratch = engine.scratch(chain);
                        answer.clear();
                        answer.extend_from_slice(&scratch[..done.length_bytes as usize]);
                        return Ok(done.hops);
                    }
                    Progress::Done(Err((error, hops))) => {
                        return Err(match problem {
                            Some(problem) => PlainError::Read(problem),
                            None => PlainError::Chain(error, hops),
                        });
                    }
                    Progress::Reads | Progress::Calls | Progress::Rest => {}
                }
            }
        }
        unreachable!("there are more numbers than hops of a chain")
    }
}

/// The map of a whole file of `length` bytes, in its own range of the namespace. None if it is too long.
fn map(index: usize, length: u64) -> Option<FileMap> {
    let device_offset = (index as u64) << FILE_SHIFT;
    let extent = Extent { file_offset: 0, device_offset, length };
    let extents = if length == 0 { vec![] } else { vec![extent] };
    if length > 1 << FILE_SHIFT {
        return None;
    }
    FileMap::new(NAMESPACE, VERSION, length, extents, NAMESPACE_BYTES, BLOCK_BYTES).ok()
}
