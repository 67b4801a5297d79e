//! What the four executors of chains have in common: the target, direct reads and NVMe commands of
//! this machine, and plain reads.

use super::call::{Executor, KeptCall, KeptChain, ReadError};
use super::file::Pin;
use crate::{CommandError, RequestError, Status};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// Who waits for a turn for so long, or longer, waits for a drive as long as its driver does.
pub(crate) const PATIENT: Duration = Duration::from_secs(1);

/// How a chain ended: the answer and its hops, or why there is no answer.
pub(crate) type End<'a> = Result<(&'a [u8], u32), Failure>;

/// Why a chain has no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// For a reason that is the same in each executor, as long as no file has changed.
    Final(ReadError),
    /// The executor has another map of a file than the chain was started with, or none.
    Stale,
    /// The target has interrupted it before it answered anything.
    Interrupted(CommandError),
    /// The answer to chains that started together had no room for this one's.
    NoRoom,
    /// This executor cannot tell; the fall-back can.
    Unable(ReadError),
}

/// How the engine ends a chain for what its function does and its files hold, wherever it runs. All others are
/// about the target: a function or namespace that is gone, a limit, a path, a disk.
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
    /// What a status of a target, or of the engine on this machine, says.
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

/// What has happened to an executor that is of no further use.
#[derive(Debug)]
pub(crate) struct Broken(pub(crate) String);

/// Why a chain did not start.
#[derive(Debug)]
pub(crate) enum NotStarted {
    /// The executor is full: again once a chain has ended.
    NoRoom,
    /// It has ended at once.
    Ended(Failure),
}

/// The caller's number of a chain, and the chain's index in its call.
pub(crate) type Member = (usize, usize);

/// Chains of one call that are to start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    pub(crate) call: &'a Arc<KeptCall>,
    pub(crate) first: Member,
    /// All of them, with the first.
    pub(crate) members: &'a [Member],
}

impl Run<'_> {
    /// The number of the first chain, and the chain.
    pub(crate) fn first(&self) -> (usize, KeptChain) {
        let (number, index) = self.first;
        (number, KeptChain::new(Arc::clone(self.call), index))
    }
}

/// Runs chains, which the caller calls by numbers.
pub(crate) trait ChainExecutor: Debug + Send {
    /// Where it runs them.
    fn place(&self) -> Executor;

    /// Whether it reads by file maps. Each file but the whole namespace is then pinned.
    fn needs_maps(&self) -> bool {
        false
    }

    /// Chains that have started and not ended.
    fn in_flight(&self) -> usize;

    /// Whether the next [`turn`](Self::turn) runs a chain to its end, if it may wait for [`PATIENT`].
    fn ends_one(&self) -> bool {
        false
    }

    /// Most chains of one call that start together.
    fn together_max(&self) -> usize {
        1
    }

    /// Starts the first of some chains of one call: alone, or with as many of the others as can start
    /// and end together. How many. Their first reads leave with the next [`turn`](Self::turn). `pins`
    /// are those of the files that need maps, in order.
    ///
    /// # Errors
    /// [`NotStarted`], of the first chain; none is then in flight.
    fn start(&mut self, run: &Run<'_>, pins: &[Pin]) -> Result<usize, NotStarted>;

    /// Sends what has started, waits until a chain has ended or `timeout` has passed, and reports
    /// the chains that have ended. It drops their calls before it reports them.
    ///
    /// # Errors
    /// What has happened to the executor, which is of no further use. Chains in flight that were not
    /// reported never end.
    fn turn(
        &mut self,
        timeout: Duration,
        on_end: &mut dyn FnMut(usize, End<'_>),
    ) -> Result<(), Broken>;
}
