//! The executor at the target: Pushdown and Pushdown Vector commands on a lane.

use super::call::{Executor, ReadError};
use super::executor::{Broken, ChainExecutor, End, Failure, NotStarted, Run};
use super::file::Pin;
use super::shared::Shared;
use super::target_lane::TargetLane;
use crate::vectors::{ChainEnd, Common, Unanswered, Vectors};
use crate::{Error, FileVersion, FirstRead, RequestError, SubmitError, VectorChain};
use std::sync::Arc;
use std::time::Duration;

/// Runs chains at the target.
#[derive(Debug)]
pub(crate) struct AtTarget {
    pub(crate) lane: TargetLane,
    shared: Arc<Shared>,
    nsid: u32,
    versions: Vec<FileVersion>,
    vectors: Vectors<usize>,
}

impl AtTarget {
    /// None without a target.
    pub(crate) fn on(lane: TargetLane, shared: &Arc<Shared>) -> Option<Self> {
        let remote = shared.remote.as_ref()?;
        let vectors = Vectors::new(remote.vectors, &lane.config());
        let (shared, nsid) = (Arc::clone(shared), remote.info.nsid);
        Some(Self { lane, shared, nsid, versions: Vec::new(), vectors })
    }
}

impl ChainExecutor for AtTarget {
    fn place(&self) -> Executor {
        Executor::Target
    }

    fn needs_maps(&self) -> bool {
        true
    }

    fn in_flight(&self) -> usize {
        self.lane.requests_in_flight()
    }

    fn together_max(&self) -> usize {
        self.vectors.together_max()
    }

    fn start(&mut self, run: &Run<'_>, pins: &[Pin]) -> Result<usize, NotStarted> {
        let Some(function) = run.call.function().id_in(self.shared.serial) else {
            let why = "the function is not loaded at the reader's target";
            return Err(NotStarted::Ended(Failure::Unable(ReadError::Request(why))));
        };
        self.versions.clear();
        self.versions.extend(pins.iter().map(Pin::version));
        let chain = |(number, index)| {
            let call = run.call.chain(index);
            let first = FirstRead {
                file: call.first_read.file,
                offset_bytes: call.first_read.offset_bytes,
                size_bytes: call.first_read.size_bytes,
            };
            (number, VectorChain { first, argument: call.scratch })
        };
        let common = Common {
            nsid: self.nsid,
            function: function.0,
            files: &self.versions,
            scratch_size_bytes: run.call.scratch_size_bytes,
            answer_max_bytes: run.call.answer_max_bytes,
        };
        let others = run.members.iter().skip(1).copied().map(chain);
        let (tag, count, command) = self.vectors.make(&common, chain(run.first), others);
        self.lane.submit(tag, command.request()).map(|()| count).map_err(|error| {
            self.vectors.not_sent(tag);
            match error {
                SubmitError::QueueFull => NotStarted::NoRoom,
                error => NotStarted::Ended(Failure::Unable(ReadError::Target(error.into()))),
            }
        })
    }

    fn turn(
        &mut self,
        timeout: Duration,
        on_end: &mut dyn FnMut(usize, End<'_>),
    ) -> Result<(), Broken> {
        let Self { lane, shared, vectors, .. } = self;
        let waited = lane.wait(timeout, shared.is_crowded(), &mut |completion| {
            vectors.complete(&completion, &mut |number, end: ChainEnd<'_>| {
                on_end(number, end.map_err(|error| failure(error, shared)));
            });
        });
        waited.map(|_| ()).map_err(|reason| Broken(reason.to_string()))
    }
}

fn failure(error: Unanswered, shared: &Shared) -> Failure {
    match error {
        Unanswered::LeftOut => Failure::NoRoom,
        Unanswered::BadAnswer => {
            let error = Error::BadAnswer("the answer to a vector is malformed");
            Failure::Unable(ReadError::Target(error))
        }
        Unanswered::Request(RequestError::Lost(reason)) => {
            Failure::Unable(ReadError::Target(reason.into()))
        }
        Unanswered::Request(error @ (RequestError::DataDigest | RequestError::Unknown(_))) => {
            Failure::Unable(ReadError::Target(error.of("Pushdown")))
        }
        Unanswered::Request(RequestError::Command(error)) => {
            let failure = Failure::of_command(error);
            if let Failure::Unable(ReadError::Target(error)) = &failure {
                shared.tell_refusal(error);
            }
            failure
        }
    }
}
