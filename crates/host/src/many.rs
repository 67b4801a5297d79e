//! Calls that run many chains with the same function and files on a lane, and block until all have ended.

use crate::lane::WAIT;
use crate::vectors::{ChainEnd, Command, Common, Unanswered, VectorLimits, Vectors};
use crate::{
    ChainInfo, CommandError, Completion, Done, Error, FileVersion, Lane, PushdownLimits,
    RequestError, SharedLane, SubmitError, Urgency, VectorChain, interrupted,
};
use std::collections::VecDeque;
use std::thread;

/// Many chains with the same function and files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushdownMany<'a> {
    /// Namespace of the files.
    pub nsid: u32,
    /// Function, as [`Controller::load_function`](crate::Controller::load_function) names it.
    pub function: u32,
    /// The files that each chain may read, and the versions this host believes their maps to have.
    pub files: &'a [FileVersion],
    /// The first read of each chain and its argument, the first bytes of its scratch. Any number.
    pub chains: &'a [VectorChain<'a>],
    /// Size of each chain's scratch in bytes; 0 is the default, 4096.
    pub scratch_size_bytes: u32,
    /// Longest answer of a chain to accept, in bytes.
    pub answer_max_bytes: u32,
    /// The target's limits ([`Controller::pushdown_limits`](crate::Controller::pushdown_limits)). If the target does
    /// not support vectors, each chain is sent alone.
    pub limits: &'a PushdownLimits,
}

/// How often a chain's answer may be left out of its vector's answer for lack of room before the chain is sent alone.
const LEFT_OUT_MAX: u32 = 2;

/// A chain, and how often it was sent without success.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    index: usize,
    interruptions: u32,
    left_out: u32,
}

/// The end of one of many chains: its answer, valid during the call only, or the target's status.
pub type ManyEnd<'a> = Result<(&'a [u8], ChainInfo), CommandError>;

/// The chains of a call that have not ended.
struct Work<'a> {
    call: &'a PushdownMany<'a>,
    vectors: Vectors<Attempt>,
    pending: VecDeque<Attempt>,
    /// Chains that the target has interrupted, to be sent again after a pause.
    interrupted: Vec<Attempt>,
    problem: Option<Error>,
}

impl<'a> Work<'a> {
    fn new(call: &'a PushdownMany<'a>, vectors: Vectors<Attempt>) -> Self {
        let attempt = |index| Attempt { index, interruptions: 0, left_out: 0 };
        let pending = (0..call.chains.len()).map(attempt).collect();
        Self { call, vectors, pending, interrupted: Vec::new(), problem: None }
    }

    /// Makes the next command. Returns its tag, the number of its chains, and the command. [`sent`](Self::sent) removes
    /// these chains from the pending ones.
    fn next(&mut self) -> Option<(u64, usize, Command<'_>)> {
        let call = self.call;
        let common = Common {
            nsid: call.nsid,
            function: call.function,
            files: call.files,
            scratch_size_bytes: call.scratch_size_bytes,
            answer_max_bytes: call.answer_max_bytes,
        };
        let chain = |attempt: &Attempt| Some((*attempt, *call.chains.get(attempt.index)?));
        let first = self.pending.front().and_then(chain)?;
        let may_join = |attempt: &&Attempt| attempt.left_out.max(first.0.left_out) < LEFT_OUT_MAX;
        let others = self.pending.iter().skip(1).take_while(may_join).filter_map(chain);
        Some(self.vectors.make(&common, first, others))
    }

    fn sent(&mut self, count: usize) {
        self.pending.drain(..count);
    }

    /// Handles the end of a command.
    fn complete(
        &mut self,
        completion: &Completion<'_>,
        on_end: &mut dyn FnMut(usize, ManyEnd<'_>),
    ) {
        let Self { vectors, pending, interrupted, problem, .. } = self;
        vectors.complete(completion, &mut |attempt, end: ChainEnd<'_>| match end {
            Ok((answer, hops)) => on_end(attempt.index, Ok((answer, ChainInfo { hops }))),
            Err(Unanswered::LeftOut) => {
                pending.push_back(Attempt { left_out: attempt.left_out + 1, ..attempt });
            }
            Err(Unanswered::Request(RequestError::Command(error))) => {
                let again =
                    error.is_interrupted() && interrupted::pause(attempt.interruptions).is_some();
                match again {
                    true => interrupted.push(attempt),
                    false => on_end(attempt.index, Err(error)),
                }
            }
            Err(Unanswered::Request(error)) => {
                problem.get_or_insert_with(|| error.of("Pushdown Vector"));
            }
            Err(Unanswered::BadAnswer) => {
                problem.get_or_insert(Error::BadAnswer("the answer to a vector is malformed"));
            }
        });
    }

    /// When nothing is in flight or pending: after a pause, makes the interrupted chains pending. Returns whether there
    /// are any.
    fn resume(&mut self) -> bool {
        let pauses = self.interrupted.iter().map(|a| interrupted::pause(a.interruptions));
        if let Some(pause) = pauses.flatten().max() {
            thread::sleep(pause);
        }
        let again = |a: Attempt| Attempt { interruptions: a.interruptions + 1, ..a };
        self.pending.extend(self.interrupted.drain(..).map(again));
        !self.pending.is_empty()
    }

    fn end(self) -> Result<(), Error> {
        self.problem.map_or(Ok(()), Err)
    }
}

impl Lane {
    /// Runs many chains, as many in one command as the target accepts, and waits for all of them. Calls `on_end` with
    /// the end of each, in any order; chains end as with [`pushdown`](Self::pushdown). Interrupted chains are sent
    /// again as there, and so are chains whose answer had no room.
    ///
    /// # Errors
    /// The connection is lost, a request cannot be sent, or an answer of the target is invalid. Chains that were not
    /// reported to `on_end` then have no answer. The lane must be idle.
    pub fn pushdown_many(
        &mut self,
        call: &PushdownMany<'_>,
        on_end: &mut dyn FnMut(usize, ManyEnd<'_>),
    ) -> Result<(), Error> {
        self.require_idle()?;
        let mut work = Work::new(call, Vectors::new(VectorLimits::of(call.limits), self.config()));
        let mut refused = None;
        loop {
            while refused.is_none()
                && let Some((tag, count, command)) = work.next()
            {
                match self.submit(tag, command.request()) {
                    Ok(()) => work.sent(count),
                    Err(error) => {
                        work.vectors.not_sent(tag);
                        let waits =
                            error == SubmitError::QueueFull && self.requests_in_flight() > 0;
                        refused = (!waits).then_some(error);
                        break;
                    }
                }
            }
            if self.requests_in_flight() > 0 {
                self.wait(WAIT, &mut |completion| work.complete(&completion, on_end))?;
            } else if let Some(error) = refused {
                return Err(error.into());
            } else if !work.resume() {
                return work.end();
            }
        }
    }
}

impl SharedLane {
    /// The same on a shared lane, one command after the other.
    ///
    /// # Errors
    /// As [`Lane::pushdown_many`], except that a shared lane need not be idle.
    pub fn pushdown_many(
        &self,
        call: &PushdownMany<'_>,
        urgency: Urgency,
        on_end: &mut dyn FnMut(usize, ManyEnd<'_>),
    ) -> Result<(), Error> {
        let mut work = Work::new(call, self.vectors(VectorLimits::of(call.limits)));
        let mut data = Vec::new();
        loop {
            while let Some((tag, count, command)) = work.next() {
                let end = self.call(command.request(), urgency, &mut data);
                let result = match &end {
                    Ok(answer) => Ok(Done { data: &data, dw0: answer.dw0, dw1: answer.dw1 }),
                    Err(Error::Command { source, .. }) => Err(RequestError::Command(*source)),
                    Err(_) => return end.map(|_| ()),
                };
                work.sent(count);
                work.complete(&Completion { tag, result }, on_end);
            }
            if !work.resume() {
                return work.end();
            }
        }
    }
}
