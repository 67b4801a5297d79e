//! What `read_pushdown` is asked for, and what it answers.

use super::file::PushdownFile;
use super::function::StorageFunction;
use crate::{CommandError, Error};
use bpfof_chain::ChainError;
use bpfof_function::abi;
use bpfof_nvme::vendor_specific::DEFAULT_SCRATCH_BYTES;
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
    /// The files it may read, 1 to 16, all on the same namespace.
    pub files: &'a [PushdownFile],
    /// Where it begins.
    pub first_read: FirstRead,
    /// What is run on each block.
    pub function: &'a StorageFunction,
    /// The argument: the first bytes of scratch. The rest is zero.
    pub scratch: &'a [u8],
    /// Size of scratch in bytes, at least the argument; 0 is the default, 4096.
    pub scratch_size_bytes: u32,
    /// Longest answer to accept, in bytes.
    pub answer_max_bytes: u32,
}

/// Many chains over the same files with the same function, for
/// [`PushdownReader::submit_many`](super::PushdownReader::submit_many): each ends by itself, as if it had
/// been submitted alone. A target that can takes up to 256 of them by one command
/// (docs/protocol.md, Pushdown Vector).
#[derive(Clone, Copy, Debug)]
pub struct ReadPushdownMany<'a> {
    /// The files that each may read, 1 to 16, all on the same namespace.
    pub files: &'a [PushdownFile],
    /// What is run on each block.
    pub function: &'a StorageFunction,
    /// What the chains differ in.
    pub entries: &'a [ReadEntry<'a>],
    /// Size of each chain's scratch in bytes, at least its argument; 0 is the default, 4096.
    pub scratch_size_bytes: u32,
    /// Longest answer of a chain to accept, in bytes.
    pub answer_max_bytes: u32,
}

/// One chain of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadEntry<'a> {
    /// Where it begins.
    pub first_read: FirstRead,
    /// The argument: the first bytes of scratch. The rest is zero.
    pub scratch: &'a [u8],
}

impl<'a> ReadPushdownMany<'a> {
    /// One of the chains by itself.
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

    /// What a target would refuse of any of the chains.
    pub(crate) fn check(&self) -> Result<(), ReadError> {
        self.entries.iter().try_for_each(|entry| self.of(entry).check())
    }
}

impl ReadPushdown<'_> {
    /// The chain and what it has in common with others, of which there are none.
    pub(crate) const fn entry(&self) -> ReadEntry<'_> {
        ReadEntry { first_read: self.first_read, scratch: self.scratch }
    }

    pub(crate) const fn effective_scratch_bytes(&self) -> u32 {
        match self.scratch_size_bytes {
            0 => DEFAULT_SCRATCH_BYTES,
            declared => declared,
        }
    }

    /// What a target would refuse, before a chain is begun anywhere.
    pub(crate) fn check(&self) -> Result<(), ReadError> {
        let refuse = |why| Err(ReadError::Request(why));
        if self.files.is_empty() || self.files.len() > abi::MAX_READS {
            return refuse("a chain reads 1 to 16 files");
        }
        if usize::from(self.first_read.file) >= self.files.len() {
            return refuse("the first read is of a file that is not listed");
        }
        if self.first_read.size_bytes == 0 {
            return refuse("the first read has no bytes");
        }
        let scratch = self.effective_scratch_bytes() as usize;
        if scratch > abi::MAX_SCRATCH_BYTES || self.scratch.len() > scratch {
            return refuse("the argument is longer than scratch, or scratch than 16384 bytes");
        }
        Ok(())
    }
}

/// A call that is kept until its chains have ended, so that they can be tried again.
#[derive(Debug)]
pub(crate) struct KeptCall {
    pub(crate) files: Vec<PushdownFile>,
    /// None once its chains have ended.
    function: Option<StorageFunction>,
    /// Of each chain where it begins, and where its argument ends.
    entries: Vec<(FirstRead, usize)>,
    /// The arguments, one behind the other.
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

    /// Takes another call in place of this one, and keeps the memory.
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

    /// One of its chains.
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

/// A chain of a call that is kept.
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

    pub(crate) fn function(&self) -> &StorageFunction {
        self.call.function()
    }

    pub(crate) fn as_call(&self) -> ReadPushdown<'_> {
        self.call.chain(self.index)
    }

    /// Whether both are of one call, so that they differ in nothing but their entries.
    pub(crate) fn is_of_same_call(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.call, &other.call)
    }

    /// The call itself, if no other chain of it is left.
    pub(crate) fn into_last(self) -> Option<Arc<KeptCall>> {
        let mut call = self.call;
        let kept = Arc::get_mut(&mut call)?;
        // They may be closed, and it unloaded.
        kept.files.clear();
        kept.function = None;
        Some(call)
    }
}

/// What to do when a file has changed, or has no map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Times a chain is tried again with new maps.
    pub retries: u32,
    /// How long to wait for them each time.
    pub patience: Duration,
    /// Then run the chain here, over plain reads. Otherwise it fails with
    /// [`ReadError::Stale`], or with what keeps the target from running it: it reads a hole, or is
    /// interrupted again and again.
    pub fall_back: bool,
    /// Where there is no target, run chains here on an io_uring, many at once, by direct reads or
    /// ([`FileMaps::passthrough`](super::FileMaps::passthrough)) NVMe commands, and only those that
    /// cannot be run so over plain reads. Past the page cache: what other reads have brought into
    /// memory is read from the device nevertheless.
    pub local: bool,
}

impl Default for Policy {
    /// One retry within 20 ms, then plain reads; without a target direct ones.
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

/// A chain that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadInfo {
    /// Hops it took.
    pub hops: u32,
    /// Where it ran.
    pub executor: Executor,
    /// Times it was thrown away because a file had changed or had no map.
    pub stale: u32,
}

fn because(cause: &Option<Box<ReadError>>) -> String {
    match cause {
        Some(cause) => format!(" ({cause})"),
        None => " (it reads a hole of a file)".to_owned(),
    }
}

/// How a chain ended that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The call makes no sense.
    #[error("{0}")]
    Request(&'static str),
    /// A file changed while it was read, or has no map, each time it was tried; and the policy
    /// allows no plain reads.
    #[error("stale file map: a file changed or has no map; try again, or read it plainly")]
    Stale,
    /// The target could not run it, and its maps are there: elsewhere it would remember other
    /// things.
    #[error(
        "function {function} has maps at the target, and the target cannot run this chain{}; try \
         again, or read the files plainly",
        because(.cause)
    )]
    Remembers {
        /// The function.
        function: String,
        /// Why not at the target; None for holes of files, which read as zeroes only here.
        cause: Option<Box<ReadError>>,
    },
    /// The function or the files made it fail, in the same way at the target and here.
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
    /// The target has not answered in the time that the caller gave it.
    #[error("the target has not answered in time")]
    TimedOut,
    /// The target could not be asked, has interrupted the chain each time it was sent
    /// ([`CommandError::is_interrupted`]), or does not run it for a reason of its own (a function or namespace
    /// that is gone, a limit, a path, a disk), and the policy allows no plain reads.
    #[error(transparent)]
    Target(#[from] Error),
}

/// A failed chain as a target reports it.
pub(crate) fn command_error(error: ChainError, hops: u32) -> CommandError {
    let (status, dw0) = error.status();
    CommandError { status: status.with_dnr(), dw0, dw1: hops }
}

/// The end of a chain that was submitted.
#[derive(Debug)]
pub struct ReadCompletion<'a> {
    /// The tag that was given to `submit`.
    pub tag: u64,
    /// The answer, valid during the call only, and how it went.
    pub result: Result<(&'a [u8], ReadInfo), ReadError>,
}
