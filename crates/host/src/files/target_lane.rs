//! The connection that a reader's commands leave by: its own, or one that it shares with others.

use super::shared::Shared;
use super::shared_lanes::SharedLanes;
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
    Shared(LaneShare, Place),
}

/// Which of the shared lanes it is.
#[derive(Debug)]
pub(crate) struct Place {
    shared: Arc<Shared>,
    number: usize,
}

impl Place {
    /// Takes a part in the lane of the processor on which the caller runs, if it is another one and
    /// connected. A connection that is lost stays what it is, so that the reader's user learns of that.
    fn follow(&mut self, share: &mut LaneShare) {
        let Some(lanes) = self.shared.lanes.get() else { return };
        let now = lanes.place();
        if now == self.number || share.requests_in_flight() > 0 || !share.is_connected() {
            return;
        }
        match lanes.known(now) {
            Some(lane) => {
                share.move_to(&lane);
                self.number = now;
            }
            None => SharedLanes::connect_later(&self.shared, now),
        }
    }
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
        let number = lanes.place();
        let place = Place { shared: Arc::clone(shared), number };
        let lane = lanes.get(shared, number)?;
        Ok(lane.map(|lane| Self::Shared(LaneShare::new(lane), place)))
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
            Self::Shared(share, place) => {
                place.follow(share);
                share.submit(tag, &request)
            }
        }
    }

    /// Nobody waits for the requests in flight any more. False for a lane that is of no use then.
    pub(crate) fn forget(&mut self) -> bool {
        match self {
            Self::Own(_) => false,
            Self::Shared(share, _) => {
                share.forget();
                true
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
