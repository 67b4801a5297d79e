//! The executor at the target: Pushdown commands on a lane.

use super::call::{Executor, KeptCall, ReadError};
use super::executor::{Broken, ChainExecutor, End, Failure, NotStarted};
use super::file::Pin;
use super::shared::Shared;
use crate::{FileVersion, Lane, PushdownCall, Request, RequestError, SubmitError};
use std::sync::Arc;
use std::time::Duration;

/// Runs chains at the target.
#[derive(Debug)]
pub(crate) struct AtTarget {
    pub(crate) lane: Lane,
    shared: Arc<Shared>,
    nsid: u32,
    versions: Vec<FileVersion>,
}

impl AtTarget {
    pub(crate) const fn new(lane: Lane, shared: Arc<Shared>, nsid: u32) -> Self {
        Self { lane, shared, nsid, versions: Vec::new() }
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

    fn start(
        &mut self,
        number: usize,
        call: &Arc<KeptCall>,
        pins: &[Pin],
    ) -> Result<(), NotStarted> {
        let call = call.as_call();
        let Some(function) = call.function.id_in(self.shared.serial) else {
            let why = "the function is not loaded at the reader's target";
            return Err(NotStarted::Ended(Failure::Unable(ReadError::Request(why))));
        };
        self.versions.clear();
        self.versions.extend(pins.iter().map(Pin::version));
        let request = Request::Pushdown(PushdownCall {
            nsid: self.nsid,
            function: function.0,
            files: &self.versions,
            first_file: call.first_read.file,
            first_offset_bytes: call.first_read.offset_bytes,
            first_size_bytes: call.first_read.size_bytes,
            scratch: call.scratch,
            scratch_size_bytes: call.scratch_size_bytes,
            answer_max_bytes: call.answer_max_bytes,
        });
        self.lane.submit(number as u64, request).map_err(|error| match error {
            SubmitError::QueueFull => NotStarted::NoRoom,
            error => NotStarted::Ended(Failure::Unable(ReadError::Target(error.into()))),
        })
    }

    fn turn(
        &mut self,
        timeout: Duration,
        on_end: &mut dyn FnMut(usize, End<'_>),
    ) -> Result<(), Broken> {
        self.lane.set_crowded(self.shared.is_crowded());
        let waited = self.lane.wait(timeout, &mut |completion| {
            let end = completion.result.map(|done| (done.data, done.dw0)).map_err(failure);
            on_end(completion.tag as usize, end);
        });
        waited.map(|_| ()).map_err(|reason| Broken(reason.to_string()))
    }
}

fn failure(error: RequestError) -> Failure {
    match error {
        RequestError::Lost(reason) => Failure::Unable(ReadError::Target(reason.into())),
        error @ (RequestError::DataDigest | RequestError::Unknown(_)) => {
            Failure::Unable(ReadError::Target(error.of("Pushdown")))
        }
        RequestError::Command(error) => Failure::of_command(error),
    }
}
