//! Parameters and results of `read_pushdown`.

use super::file::PushdownFile;
use super::function::StorageFunction;
use crate::{CommandError, Error};
use bpfof_chain::ChainError;
use bpfof_function::abi;
use bpfof_nvme::vendor_specific::effective_scratch_bytes;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The read that a chain begins with (BPF-oF §4.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstRead {
    /// Index into the list of files.
    pub file: u16,
    /// File offset in bytes.
    pub offset_bytes: u64,
    /// Size in bytes, not 0.
    pub size_bytes: u32,
}

/// A chain over files: the papers' `read_bpf_of` (BPF-oF §4.2.2, figure 4).
#[derive(Clone, Copy, Debug)]
pub struct ReadPushdown<'a> {
    /// The files that the chain may read, 1 to 16, all on the same namespace.
    pub files: &'a [PushdownFile],
    /// The first read.
    pub first_read: FirstRead,
    /// The function that is run on each block.
    pub function: &'a StorageFunction,
    /// The argument: the first bytes of scratch. The rest is zero.
    pub scratch: &'a [u8],
    /// Size of scratch in bytes, at least the argument; 0 is the default, 4096.
    pub scratch_size_bytes: u32,
    /// Longest answer to accept, in bytes.
    pub answer_max_bytes: u32,
}

/// Many chains over the same files with the same function, for
/// [`PushdownReader::submit_many`](super::PushdownReader::submit_many): each ends by itself, as if it had been
/// submitted alone. A target that supports it takes up to 256 of them in one command (docs/protocol.md, Pushdown
/// Vector).
#[derive(Clone, Copy, Debug)]
pub struct ReadPushdownMany<'a> {
    /// The files that each chain may read, 1 to 16, all on the same namespace.
    pub files: &'a [PushdownFile],
    /// The function that is run on each block.
    pub function: &'a StorageFunction,
    /// First read and argument of each chain.
    pub entries: &'a [ReadEntry<'a>],
    /// Size of each chain's scratch in bytes, at least its argument; 0 is the default, 4096.
    pub scratch_size_bytes: u32,
    /// Longest answer of a chain to accept, in bytes.
    pub answer_max_bytes: u32,
}

/// One chain of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadEntry<'a> {
    /// The first read.
    pub first_read: FirstRead,
    /// The argument: the first bytes of scratch. The rest is zero.
    pub scratch: &'a [u8],
}

impl<'a> ReadPushdownMany<'a> {
    /// The call of a single chain.
    fn of(&self, entry: &ReadEntry<'a>) -> ReadPushdown<'a> {
        ReadPushdown {
            files: self.files,
            first_read: entry.first_read,
            function: self.function,
            scratch: entry.scratch,
            scratch_size_bytes: self.scratch_size_bytes,
            answer_max_bytes: self.answer_max_bytes,
        }
    }

    /// Refuses what a target would refuse in any of the chains.
    pub(crate) fn check(&self) -> Result<(), ReadError> {
        self.entries.iter().try_for_each(|entry| self.of(entry).check())
    }
}

impl ReadPushdown<'_> {
    /// The first read and argument of the chain, as an entry of a call of one chain.
    pub(crate) const fn entry(&self) -> ReadEntry<'_> {
        ReadEntry { first_read: self.first_read, scratch: self.scratch }
    }

    pub(crate) const fn effective_scratch_bytes(&self) -> u32 {
        effective_scratch_bytes(self.scratch_size_bytes)
    }

    /// Refuses what a target would refuse, before the chain is started in any executor.
    pub(crate) fn check(&self) -> Result<(), ReadError> {
        let refuse = |why| Err(ReadError::Request(why));
        if self.files.is_empty() || self.files.len() > abi::MAX_READS {
            return refuse("a chain reads 1 to 16 files");
        }
        if usize::from(self.first_read.file) >= self.files.len() {
            return refuse("the first read refers to a file that is not in the list");
        }
        if self.first_read.size_bytes == 0 {
            return refuse("the first read has length 0");
        }
        let scratch = self.effective_scratch_bytes() as usize;
        if scratch > abi::MAX_SCRATCH_BYTES || self.scratch.len() > scratch {
            return refuse(
                "the argument is longer than scratch, or scratch is longer than 16384 bytes",
            );
        }
        Ok(())
    }
}

/// A copy of a call, kept until its chains have ended, so that they can be tried again.
#[derive(Debug)]
pub(crate) struct KeptCall {
    pub(crate) files: Vec<PushdownFile>,
    /// None after its chains have ended.
    function: Option<StorageFunction>,
    /// For each chain, its first read and the end of its argument in `arguments`.
    entries: Vec<(FirstRead, usize)>,
    /// The arguments, one after the other.
    arguments: Vec<u8>,
    pub(crate) scratch_size_bytes: u32,
    pub(crate) answer_max_bytes: u32,
}

impl KeptCall {
    pub(crate) fn new(call: &ReadPushdownMany<'_>) -> Self {
        let mut kept = Self {
            files: Vec::new(),
            function: None,
            entries: Vec::new(),
            arguments: Vec::new(),
            scratch_size_bytes: 0,
            answer_max_bytes: 0,
        };
        kept.replace(call);
        kept
    }

    /// Replaces this call by another one, reusing its memory.
    pub(crate) fn replace(&mut self, call: &ReadPushdownMany<'_>) {
        self.files.clear();
        self.files.extend_from_slice(call.files);
        self.function = Some(call.function.clone());
        self.entries.clear();
        self.arguments.clear();
        for entry in call.entries {
            self.arguments.extend_from_slice(entry.scratch);
            self.entries.push((entry.first_read, self.arguments.len()));
        }
        self.scratch_size_bytes = call.scratch_size_bytes;
        self.answer_max_bytes = call.answer_max_bytes;
    }

    pub(crate) const fn function(&self) -> &StorageFunction {
        self.function.as_ref().expect("its chains have not ended")
    }

    /// One of the call's chains.
    pub(crate) fn chain(&self, index: usize) -> ReadPushdown<'_> {
        let (first_read, end) = self.entries[index];
        let start = index.checked_sub(1).map_or(0, |before| self.entries[before].1);
        ReadPushdown {
            files: &self.files,
            first_read,
            function: self.function(),
            scratch: &self.arguments[start..end],
            scratch_size_bytes: self.scratch_size_bytes,
            answer_max_bytes: self.answer_max_bytes,
        }
    }
}

/// A chain of a kept call.
#[derive(Clone, Debug)]
pub(crate) struct KeptChain {
    call: Arc<KeptCall>,
    index: usize,
}

impl KeptChain {
    /// The chain of `call` with this index.
    pub(crate) const fn new(call: Arc<KeptCall>, index: usize) -> Self {
        Self { call, index }
    }

    pub(crate) const fn call(&self) -> &Arc<KeptCall> {
        &self.call
    }

    pub(crate) const fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn files(&self) -> &[PushdownFile] {
        &self.call.files
    }

    pub(crate) fn has_whole_namespace(&self) -> bool {
        self.files().iter().any(PushdownFile::is_whole_namespace)
    }

    pub(crate) fn function(&self) -> &StorageFunction {
        self.call.function()
    }

    pub(crate) fn as_call(&self) -> ReadPushdown<'_> {
        self.call.chain(self.index)
    }

    /// Whether both belong to one call, so that they differ only in their entries.
    pub(crate) fn is_of_same_call(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.call, &other.call)
    }

    /// The call itself, if no other chain of it is left.
    pub(crate) fn into_last(self) -> Option<Arc<KeptCall>> {
        let mut call = self.call;
        let kept = Arc::get_mut(&mut call)?;
        // Release files and function, so that files can be closed and the function unloaded.
        kept.files.clear();
        kept.function = None;
        Some(call)
    }
}

/// How a reader handles chains whose files have changed or have no maps, and where chains may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How often a chain is tried again with new maps.
    pub retries: u32,
    /// How long to wait for the new maps each time.
    pub patience: Duration,
    /// Whether to run the chain over plain reads on this machine if the retries have not helped.
    /// Otherwise it fails with [`ReadError::Stale`], or with the error that keeps the target from
    /// running it: it reads a hole, or is interrupted again and again.
    pub fall_back: bool,
    /// Without a target, whether to run chains on an io_uring of this machine, many at once, by
    /// direct reads or ([`FileMaps::passthrough`](super::FileMaps::passthrough)) NVMe commands.
    /// Only chains that cannot run this way run over plain reads. Direct reads and NVMe commands
    /// bypass the page cache: they read from the device even if the data is cached.
    pub local: bool,
}

impl Default for Policy {
    /// One retry within 20 ms, then plain reads; without a target, direct reads.
    fn default() -> Self {
        Self { retries: 1, patience: Duration::from_millis(20), fall_back: true, local: true }
    }
}

/// Where a chain ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executor {
    /// At the target.
    Target,
    /// On this machine, by direct reads or NVMe commands on an io_uring.
    Local,
    /// On this machine, over plain reads.
    FallBack,
}

/// Statistics of a chain that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadInfo {
    /// Hops it took.
    pub hops: u32,
    /// Where it ran.
    pub executor: Executor,
    /// How often its result was discarded, or it could not start, because a file had changed or had no map.
    pub stale: u32,
}

fn because(cause: &Option<Box<ReadError>>) -> String {
    match cause {
        Some(cause) => format!(" ({cause})"),
        None => " (it reads a hole of a file)".to_owned(),
    }
}

/// Why a chain failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The call makes no sense.
    #[error("{0}")]
    Request(&'static str),
    /// On each try a file changed during the chain, or had no map; and the policy allows no plain
    /// reads.
    #[error("stale file map: a file changed or has no map; try again, or read it plainly")]
    Stale,
    /// The target could not run the chain, and its function has maps there: in another executor it
    /// would have other map contents.
    #[error(
        "function {function} has maps at the target, and the target cannot run this chain{}; try \
         again, or read the files plainly",
        because(.cause)
    )]
    Remembers {
        /// The function.
        function: String,
        /// Why the target could not run it; None if the chain reads a hole of a file, which only plain reads can read.
        cause: Option<Box<ReadError>>,
    },
    /// The chain failed because of its function or the contents of files: it fails in the same way at the target and on
    /// this machine.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A plain read failed.
    #[error("cannot read {path}: {source}")]
    Plain {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The target has not answered within the caller's timeout.
    #[error("the target has not answered in time")]
    TimedOut,
    /// The connection to the target failed, the target has interrupted the chain each time it was sent
    /// ([`CommandError::is_interrupted`]), or the target does not run it for a reason of its own (a function or
    /// namespace that is gone, a limit, a path, a disk), and the policy allows no plain reads.
    #[error(transparent)]
    Target(#[from] Error),
}

/// The error of a failed chain in the form in which a target reports it.
pub(crate) fn command_error(error: ChainError, hops: u32) -> CommandError {
    let (status, dw0) = error.status();
    CommandError { status: status.with_dnr(), dw0, dw1: hops }
}

/// The end of a chain that was submitted.
#[derive(Debug)]
pub struct ReadCompletion<'a> {
    /// The tag that was passed to `submit`.
    pub tag: u64,
    /// The answer, valid during the call only, with its statistics; or the error.
    pub result: Result<(&'a [u8], ReadInfo), ReadError>,
}
