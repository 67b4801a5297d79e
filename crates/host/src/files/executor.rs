//! The common interface of the executors of chains: the target; this machine, by direct reads or by NVMe commands; and
//! the fall-back, by plain reads.

use super::call::{Executor, KeptCall, KeptChain, ReadError};
use super::file::Pin;
use crate::{CommandError, RequestError, Status};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// With a timeout of at least this, a turn may block in the kernel module until the drive answers or its driver gives
/// up.
pub(crate) const PATIENT: Duration = Duration::from_secs(1);

/// How a chain ended: the answer and its hops, or why there is no answer.
pub(crate) type End<'a> = Result<(&'a [u8], u32), Failure>;

/// Why a chain has no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The chain fails in the same way in each executor, as long as no file has changed.
    Final(ReadError),
    /// The executor has another version of a file's map than the chain was started with, or no map.
    Stale,
    /// The target has interrupted the chain before it answered.
    Interrupted(CommandError),
    /// The answer to a vector had no room for the answer of this chain.
    NoRoom,
    /// This executor cannot run the chain to its end; the fall-back can.
    Unable(ReadError),
}

/// Statuses that depend only on the function and the files, so that a chain ends with them in any executor. All others
/// are about the target: a function or namespace that is gone, a limit, a path, a disk.
const OF_CHAINS: [Status; 8] = [
    Status::READ_OUTSIDE_FILE,
    Status::HOP_BUDGET_EXHAUSTED,
    Status::BYTE_BUDGET_EXHAUSTED,
    Status::INSTRUCTION_BUDGET_EXHAUSTED,
    Status::FUNCTION_FAULT,
    Status::FUNCTION_ABORT,
    Status::INVALID_FUNCTION_OUTPUT,
    Status::ANSWER_TOO_LONG,
];

impl Failure {
    /// Classifies a status of the target, or of the engine on this machine.
    pub(crate) fn of_command(error: CommandError) -> Self {
        let is = |status: &Status| error.status.same_code(*status);
        match () {
            () if is(&Status::STALE_FILE_MAP) || is(&Status::UNKNOWN_FILE) => Self::Stale,
            () if error.is_interrupted() => Self::Interrupted(error),
            () if OF_CHAINS.iter().any(is) => Self::Final(ReadError::Command(error)),
            () => Self::Unable(ReadError::Target(RequestError::Command(error).of("Pushdown"))),
        }
    }
}

/// Why an executor is no longer usable.
#[derive(Debug)]
pub(crate) struct Broken(pub(crate) String);

/// Why a chain did not start.
#[derive(Debug)]
pub(crate) enum NotStarted {
    /// The executor is full: try again after a chain has ended.
    NoRoom,
    /// It failed at once.
    Ended(Failure),
}

/// The caller's number for a chain, and the chain's index in its call.
pub(crate) type Member = (usize, usize);

/// Chains of one call that the executor should start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    pub(crate) call: &'a Arc<KeptCall>,
    pub(crate) first: Member,
    /// All of them, including the first.
    pub(crate) members: &'a [Member],
}

impl Run<'_> {
    /// The number of the first chain, and the chain.
    pub(crate) fn first(&self) -> (usize, KeptChain) {
        let (number, index) = self.first;
        (number, KeptChain::new(Arc::clone(self.call), index))
    }
}

/// Runs chains, which the caller identifies by numbers.
pub(crate) trait ChainExecutor: Debug + Send {
    /// Where it runs chains.
    fn place(&self) -> Executor;

    /// Whether it reads by file maps. Each file except the whole namespace is then pinned.
    fn needs_maps(&self) -> bool {
        false
    }

    /// Number of chains that have started and not ended.
    fn in_flight(&self) -> usize;

    /// Whether the next [`turn`](Self::turn) with a timeout of at least [`PATIENT`] runs a chain to its end.
    fn ends_one(&self) -> bool {
        false
    }

    /// How many chains of one call can start together at most.
    fn together_max(&self) -> usize {
        1
    }

    /// Starts the first of some chains of one call: alone, or with as many of the others as can start and end together.
    /// Returns how many started. Their first reads are sent by the next [`turn`](Self::turn). `pins` has the pins of
    /// the files that need maps, in order.
    ///
    /// # Errors
    /// [`NotStarted`] for the first chain; no chain has started.
    fn start(&mut self, run: &Run<'_>, pins: &[Pin]) -> Result<usize, NotStarted>;

    /// Sends what has started, waits until a chain has ended or `timeout` has passed, and reports
    /// the chains that have ended. It drops the call of a chain before it reports the chain.
    ///
    /// # Errors
    /// The executor is no longer usable. Chains in flight that were not reported never end.
    fn turn(
        &mut self,
        timeout: Duration,
        on_end: &mut dyn FnMut(usize, End<'_>),
    ) -> Result<(), Broken>;
}
