//! The connection that a reader's commands leave by: its own, or one that it shares with others.

use super::shared::Shared;
use crate::shared::LaneShare;
use crate::{Completion, Error, InitiatorConfig, Lane, Request, SubmitError};
use std::sync::Arc;
use std::time::Duration;

/// A reader's lane.
#[derive(Debug)]
pub(crate) enum TargetLane {
    /// Nobody else uses it.
    Own(Lane),
    /// One of those that all readers share: that of the processor on which the reader begins.
    Shared(LaneShare, Arc<Shared>),
}

impl TargetLane {
    /// As the association says. None without a target.
    ///
    /// # Errors
    /// Those of [`Shared::open_lane`].
    pub(crate) fn open(shared: &Arc<Shared>) -> Result<Option<Self>, Error> {
        let Some(lanes) = shared.lanes.get() else {
            return Ok(shared.open_lane()?.map(Self::Own));
        };
        let lane = lanes.get(shared)?.map(Arc::clone);
        Ok(lane.map(|lane| Self::Shared(LaneShare::new(lane), Arc::clone(shared))))
    }

    pub(crate) fn config(&self) -> InitiatorConfig {
        match self {
            Self::Own(lane) => lane.config().clone(),
            Self::Shared(share, _) => share.config(),
        }
    }

    /// Requests of this reader in flight.
    pub(crate) fn requests_in_flight(&self) -> usize {
        match self {
            Self::Own(lane) => lane.requests_in_flight(),
            Self::Shared(share, _) => share.requests_in_flight(),
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        match self {
            Self::Own(lane) => lane.is_connected(),
            Self::Shared(share, _) => share.is_connected(),
        }
    }

    /// Bytes sent and received; of a shared lane those that this reader has exchanged, for others too.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        match self {
            Self::Own(lane) => (lane.bytes_sent(), lane.bytes_received()),
            Self::Shared(share, _) => share.traffic(),
        }
    }

    /// See [`Lane::submit`].
    pub(crate) fn submit(&mut self, tag: u64, request: Request<'_>) -> Result<(), SubmitError> {
        match self {
            Self::Own(lane) => lane.submit(tag, request),
            Self::Shared(share, shared) => {
                if share.requests_in_flight() == 0
                    && let Some(Ok(Some(lane))) = shared.lanes.get().map(|lanes| lanes.get(shared))
                {
                    share.move_to(lane);
                }
                share.submit(tag, &request)
            }
        }
    }

    /// See [`Lane::wait`]. `is_crowded`: whether others may need the processor that spinning would take.
    pub(crate) fn wait(
        &mut self,
        timeout: Duration,
        is_crowded: bool,
        on_completion: &mut dyn FnMut(Completion<'_>),
    ) -> Result<usize, Error> {
        match self {
            Self::Own(lane) => {
                lane.set_crowded(is_crowded);
                lane.wait(timeout, on_completion)
            }
            Self::Shared(share, _) => share.wait(timeout, on_completion),
        }
    }
}
