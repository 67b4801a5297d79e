//! Chains of several threads as one command: i10's caravan one level higher. What waits in a shared lane for
//! the same send, and names the same function and files, leaves as a Pushdown Vector.

use super::{Answer, Call};
use crate::vectors::{ChainEnd, Common, Unanswered, VectorLimits, Vectors};
use crate::{
    Completion, FileVersion, FirstRead, InitiatorConfig, Lane, LostReason, PushdownCall,
    RequestError, SubmitError, VectorChain,
};

/// Tags of vectors on the lane: those of calls are below.
const VECTOR: u64 = 1 << 32;
/// Commands of one chain each that follow a vector whose chains differed much in their hops.
const PAUSE: u32 = 64;

/// What a chain is asked with, but its argument, which is in the memory of its call until the answer comes.
#[derive(Debug, Default)]
pub(super) struct KeptChain {
    nsid: u32,
    function: u32,
    files: Vec<FileVersion>,
    first: FirstRead,
    scratch_size_bytes: u32,
    answer_max_bytes: u32,
}

impl KeptChain {
    fn replace(&mut self, call: &PushdownCall<'_>) {
        self.files.clear();
        self.files.extend_from_slice(call.files);
        self.nsid = call.nsid;
        self.function = call.function;
        self.first = FirstRead {
            file: call.first_file,
            offset_bytes: call.first_offset_bytes,
            size_bytes: call.first_size_bytes,
        };
        self.scratch_size_bytes = call.scratch_size_bytes;
        self.answer_max_bytes = call.answer_max_bytes;
    }

    fn common(&self) -> Common<'_> {
        Common {
            nsid: self.nsid,
            function: self.function,
            files: &self.files,
            scratch_size_bytes: self.scratch_size_bytes,
            answer_max_bytes: self.answer_max_bytes,
        }
    }
}

/// A chain that waits to leave.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Of its call.
    tag: u32,
    /// The answer to its vector had no room for its own.
    is_left_out: bool,
}

/// The chains of a lane that wait to leave, and the vectors in flight.
#[derive(Debug)]
pub(super) struct Gathering {
    vectors: Vectors<u32>,
    /// Chains that have not left, in order.
    waiting: Vec<Waiting>,
    waiting_bytes: usize,
    /// Chains in flight beyond one for each command.
    beyond: usize,
    /// Some of those that wait have left before.
    has_left_out: bool,
    /// Commands that are to be of one chain each.
    pause: u32,
}

impl Gathering {
    pub(super) fn new(limits: VectorLimits, config: &InitiatorConfig) -> Self {
        Self {
            vectors: Vectors::new(limits, config),
            waiting: Vec::new(),
            waiting_bytes: 0,
            beyond: 0,
            has_left_out: false,
            pause: 0,
        }
    }

    /// Chains that wait, and their bytes.
    pub(super) fn waiting(&self) -> (usize, usize) {
        (self.waiting.len(), self.waiting_bytes)
    }

    /// Chains in flight beyond one for each command.
    pub(super) const fn beyond(&self) -> usize {
        self.beyond
    }

    /// Takes the chain of a call, which has a tag and memory.
    pub(super) fn take(&mut self, tag: u32, chain: &PushdownCall<'_>, call: &mut Call) {
        call.chain.replace(chain);
        call.data.clear();
        call.data.extend_from_slice(chain.scratch);
        self.waiting.push(Waiting { tag, is_left_out: false });
        self.waiting_bytes += chain.parts().encoded_bytes();
    }

    /// Queues the chains that wait in the lane: together those that may be one command. Some stay if the lane
    /// has no room.
    ///
    /// # Errors
    /// The lane takes nothing any more.
    pub(super) fn queue(&mut self, calls: &[Call], lane: &mut Lane) -> Result<(), SubmitError> {
        while let Some(first) = self.waiting.first().copied() {
            let call = |waiting: &Waiting| calls.get(waiting.tag as usize);
            let Some(Call { chain, data, .. }) = call(&first) else { break };
            let is_alone = self.pause > 0 || first.is_left_out;
            let joins = |other: &Waiting| {
                let may_join = |call: &Call| call.chain.common() == chain.common();
                !is_alone && !other.is_left_out && call(other).is_some_and(may_join)
            };
            let member = |chain: &KeptChain, argument| VectorChain { first: chain.first, argument };
            let others = self.waiting.iter().skip(1).filter(|other| joins(other));
            let others = others.filter_map(|other| {
                call(other).map(|Call { chain, data, .. }| (other.tag, member(chain, data)))
            });
            let one = (first.tag, member(chain, data));
            let (tag, count, command) = self.vectors.make(&chain.common(), one, others);
            if let Err(error) = lane.submit(VECTOR | tag, command.request()) {
                self.vectors.not_sent(tag);
                return if error == SubmitError::QueueFull { Ok(()) } else { Err(error) };
            }
            self.beyond += count - 1;
            let mut leaving = count;
            self.waiting.retain(|waiting| {
                let leaves = leaving == count || leaving > 0 && joins(waiting);
                leaving -= usize::from(leaves);
                !leaves
            });
        }
        self.waiting_bytes = 0;
        self.has_left_out = false;
        Ok(())
    }

    /// Ends the chains that wait as those in flight end when their connection is lost.
    pub(super) fn lose(&mut self, calls: &mut [Call]) {
        for Waiting { tag, .. } in self.waiting.drain(..) {
            if let Some(call) = calls.get_mut(tag as usize) {
                call.data.clear();
                call.end = Some(Err(RequestError::Lost(LostReason::HungUp)));
            }
        }
        self.waiting_bytes = 0;
    }

    /// Whether a completion is of chains that were queued here.
    pub(super) const fn has_queued(completion: &Completion<'_>) -> bool {
        completion.tag & VECTOR != 0
    }

    /// Whether chains wait that were left out of the answer to their vector.
    pub(super) const fn has_left_out(&self) -> bool {
        self.has_left_out
    }

    /// A command has ended: `on_end` is told how each of its chains did. Those that have to be sent again wait.
    pub(super) fn complete(
        &mut self,
        completion: &Completion<'_>,
        on_end: &mut dyn FnMut(u32, Result<(&[u8], Answer), RequestError>),
    ) {
        let command = Completion { tag: completion.tag & !VECTOR, result: completion.result };
        let (mut chains, mut fewest, mut most) = (0, u32::MAX, 0);
        let Self { vectors, waiting, has_left_out, .. } = self;
        vectors.complete(&command, &mut |tag, end: ChainEnd<'_>| {
            chains += 1;
            match end {
                Ok((answer, hops)) => {
                    (fewest, most) = (hops.min(fewest), hops.max(most));
                    on_end(tag, Ok((answer, Answer { dw0: hops, dw1: answer.len() as u32 })));
                }
                Err(Unanswered::Request(error)) => on_end(tag, Err(error)),
                Err(Unanswered::LeftOut | Unanswered::BadAnswer) => {
                    waiting.push(Waiting { tag, is_left_out: true });
                    *has_left_out = true;
                }
            }
        });
        self.beyond -= usize::max(chains, 1) - 1;
        // A vector ends with the last of its chains.
        let are_uneven = chains > 1 && most > fewest.saturating_mul(2).saturating_add(2);
        self.pause = if are_uneven { PAUSE } else { self.pause.saturating_sub(1) };
    }
}
