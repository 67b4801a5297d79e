//! The lane that sends a reader's commands: its own, or one that it shares with other readers.

use super::shared::Shared;
use super::sys::spawn;
use crate::shared::LaneShare;
use crate::{Completion, Error, InitiatorConfig, Lane, Request, SubmitError};
use std::sync::Arc;
use std::time::Duration;

/// A reader's lane.
#[derive(Debug)]
pub(crate) enum TargetLane {
    /// Used by this reader only.
    Own(Lane),
    /// A lane that readers share: that of the processor on which the reader submits.
    Shared(LaneShare, Place),
}

/// The reader's current position among the shared lanes.
#[derive(Debug)]
pub(crate) struct Place {
    shared: Arc<Shared>,
    number: usize,
}

impl Place {
    /// Moves `share` to the lane of the processor on which the caller runs, if that is another lane and it is
    /// connected; if it is not, starts connecting it. Does not move to a lane that waits for a path, nor from a lost
    /// lane, so that the reader learns of the loss.
    fn follow(&mut self, share: &mut LaneShare) {
        let Some(lanes) = self.shared.lanes.get() else { return };
        let now = lanes.place();
        if now == self.number || share.requests_in_flight() > 0 || !share.is_connected() {
            return;
        }
        match lanes.known(now) {
            Some(lane) if !lane.has_socket() => {}
            Some(lane) => {
                share.move_to(&lane);
                self.number = now;
            }
            None if lanes.begin() => connect_later(&self.shared, now),
            None => {}
        }
    }
}

/// Connects the lane of a processor in a new thread, so that readers with another lane, or none, do not wait for it.
#[cold]
fn connect_later(shared: &Arc<Shared>, number: usize) {
    let connecting = Connecting(Arc::clone(shared));
    let connect = move || {
        let Connecting(shared) = &connecting;
        let Some(lanes) = shared.lanes.get() else { return };
        if let Err(error) = lanes.connect(number, || shared.open_shared_lane()) {
            log::warn!("cannot connect a processor's own lane yet: {error}");
        }
    };
    // If no thread can be started, the processor has no lane until a reader tries again.
    let _ = spawn("bpfof-lane", connect);
}

/// Exists while a lane is being connected.
struct Connecting(Arc<Shared>);

impl Drop for Connecting {
    fn drop(&mut self) {
        if let Some(lanes) = self.0.lanes.get() {
            lanes.end();
        }
    }
}

impl TargetLane {
    /// Opens an own or a shared lane, as the association is configured. None without a target.
    ///
    /// # Errors
    /// Those of [`Shared::open_lane`].
    pub(crate) fn open(shared: &Arc<Shared>) -> Result<Option<Self>, Error> {
        let Some(lanes) = shared.lanes.get() else {
            return Ok(shared.open_lane()?.map(Self::Own));
        };
        let lane = lanes.any(lanes.place(), || shared.open_shared_lane())?;
        Ok(lane.map(|(lane, number)| {
            Self::Shared(LaneShare::new(lane), Place { shared: Arc::clone(shared), number })
        }))
    }

    /// A share of a connected shared lane, after the reader's previous lane was lost. If no lane is connected, starts
    /// connecting one for the next time.
    #[cold]
    pub(crate) fn again(shared: &Arc<Shared>) -> Option<Self> {
        let lanes = shared.lanes.get()?;
        let place = lanes.place();
        if let Some((lane, number)) = lanes.find(place) {
            let place = Place { shared: Arc::clone(shared), number };
            return Some(Self::Shared(LaneShare::new(lane), place));
        }
        if lanes.begin() {
            connect_later(shared, place);
        }
        None
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

    /// Bytes sent and received; on a shared lane the bytes that this reader has transferred, including those of other
    /// readers.
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

    /// Abandons the requests in flight. False if the lane cannot be used afterwards.
    pub(crate) fn forget(&mut self) -> bool {
        match self {
            Self::Own(lane) => lane.requests_in_flight() == 0,
            Self::Shared(share, _) => {
                share.forget();
                true
            }
        }
    }

    /// See [`Lane::wait`]. `is_crowded`: whether other threads may need the processor, so that the lane should not
    /// spin.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{FileMaps, NamespaceDevice};
    use crate::{Controller, FileVersion, Options, PushdownCall, RequestError, Status};
    use bpfof_controller::{NamespaceConfig, NamespaceSource, Server, TargetConfig};
    use std::time::Instant;

    const BLOCKS: u64 = 64;
    const LONG: Duration = Duration::from_secs(20);

    /// A target whose reads take `latency_us`, and an association whose readers share up to `lanes_max` lanes. All
    /// bytes of a block are its number.
    fn association(latency_us: u64, lanes_max: usize) -> (Server, FileMaps) {
        let source = NamespaceSource::Memory { size_bytes: BLOCKS * 512, latency_us, iops: 0 };
        let config = TargetConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            namespaces: vec![NamespaceConfig::new(source, 512)],
            ..TargetConfig::default()
        };
        let server = Server::start(&config).expect("the target starts");
        let url = format!("nvme-tcp://{}/{}", server.address(), config.nqn);
        let url = url.parse().expect("an address");
        let controller = Controller::connect(&url, Options::default()).expect("it connects");
        let mut lane = controller.open_lane().expect("a lane");
        for number in 0..BLOCKS {
            lane.write(1, number * 512, &[number as u8; 512]).expect("written");
        }
        let image = tempfile::NamedTempFile::new().expect("an image");
        image.as_file().set_len(BLOCKS * 512).expect("as long");
        let device = NamespaceDevice::new(image.path()).expect("an image");
        let maps = FileMaps::new(controller, 1, device).expect("maps");
        maps.share_lanes(lanes_max);
        (server, maps)
    }

    fn open(maps: &FileMaps) -> TargetLane {
        TargetLane::open(&maps.shared).expect("connected").expect("a target")
    }

    fn submit(lane: &mut TargetLane, block: u64) {
        let request = Request::Read { nsid: 1, offset_bytes: block * 512, length_bytes: 512 };
        while let Err(error) = lane.submit(block, request) {
            assert_eq!((error, lane.requests_in_flight()), (SubmitError::QueueFull, 0));
            take(lane, LONG);
        }
    }

    /// Receives completions, and checks the blocks that were read.
    fn take(lane: &mut TargetLane, timeout: Duration) -> usize {
        let ended = lane.wait(timeout, true, &mut |completion| {
            let done = completion.result.expect("read");
            assert_eq!(done.data, [completion.tag as u8; 512]);
        });
        ended.expect("connected")
    }

    #[test]
    fn each_gets_its_own_answers() {
        for lanes_max in [1, 8] {
            let (_server, maps) = association(20, lanes_max);
            std::thread::scope(|scope| {
                for thread in 0..6 {
                    let mut lane = open(&maps);
                    scope.spawn(move || {
                        for round in 0..300 {
                            let (mut wanted, mut ended) = (1 + (thread + round) % 5, 0);
                            for each in 0..wanted {
                                submit(&mut lane, (thread * 11 + round + each) % BLOCKS);
                            }
                            // The activity of other readers must not matter.
                            ended += take(&mut lane, Duration::ZERO) as u64;
                            while ended < wanted {
                                ended += take(&mut lane, LONG) as u64;
                            }
                            wanted -= ended;
                            assert_eq!((wanted, lane.requests_in_flight()), (0, 0));
                        }
                        assert!(lane.is_connected());
                    });
                }
            });
        }
    }

    /// A chain can be forgotten before it is sent, or while it is part of a vector with awaited chains.
    #[test]
    fn chains_need_not_be_awaited() {
        let (_server, maps) = association(20, 1);
        let chain = PushdownCall {
            nsid: 1,
            function: 7,
            files: &[FileVersion { id: 0, version: 1 }],
            first_file: 0,
            first_offset_bytes: 0,
            first_size_bytes: 512,
            scratch: &[],
            scratch_size_bytes: 0,
            answer_max_bytes: 8,
        };
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let mut lane = open(&maps);
                scope.spawn(move || {
                    for round in 0..300 {
                        (0..3).for_each(|tag| {
                            lane.submit(tag, Request::Pushdown(chain)).expect("there is room");
                        });
                        let take = |lane: &mut TargetLane, timeout| {
                            let waited = lane.wait(timeout, true, &mut |completion| {
                                let error =
                                    completion.result.expect_err("the function is not loaded");
                                let RequestError::Command(error) = error else { panic!("{error}") };
                                assert!(error.status.same_code(Status::UNKNOWN_FUNCTION));
                            });
                            waited.expect("connected")
                        };
                        match (thread + round) % 4 {
                            0 => {}
                            1 => _ = take(&mut lane, Duration::ZERO),
                            2 => {
                                while take(&mut lane, LONG) > 0 && lane.requests_in_flight() > 0 {}
                            }
                            _ => {
                                submit(&mut lane, round % BLOCKS);
                                lane.forget();
                            }
                        }
                        lane.forget();
                    }
                    submit(&mut lane, thread);
                    assert_eq!(take(&mut lane, LONG), 1);
                });
            }
        });
        let lane = maps.shared.lanes.get().and_then(|lanes| lanes.known(0)).expect("a lane");
        assert!(lane.counters().vectors > 0, "{:?}", lane.counters());
    }

    #[test]
    fn readers_that_give_up_do_not_affect_others() {
        let (_server, maps) = association(20_000, 1);
        let mut other = open(&maps);
        // More requests than the lane has room for at once. On a busy machine some are answered before their readers
        // wait.
        let mut gave_up = 0;
        for _ in 0..4 * u64::from(Options::default().queue_depth) {
            let mut lane = open(&maps);
            submit(&mut lane, 3);
            gave_up += usize::from(take(&mut lane, Duration::from_micros(1)) == 0);
        }
        assert!(gave_up > 0, "all were answered within 1 µs");
        submit(&mut other, 7);
        assert_eq!(take(&mut other, LONG), 1);
        submit(&mut other, 8);
        assert!(other.forget() && other.requests_in_flight() == 0);
        submit(&mut other, 9);
        assert_eq!(take(&mut other, LONG), 1, "an answer that was given up");
    }

    /// The reader that drives the lane gives up and does not return: a sleeping reader is woken to drive it.
    #[test]
    fn a_reader_that_gives_up_wakes_another_to_drive_the_lane() {
        let (_server, maps) = association(100_000, 1);
        let begun = Instant::now();
        for round in 0..10 {
            let (mut gives_up, mut waits) = (open(&maps), open(&maps));
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    // The other reader should be driving by now; if it is not, this round tests nothing.
                    std::thread::sleep(Duration::from_millis(10));
                    submit(&mut waits, round);
                    assert_eq!(take(&mut waits, 10 * LONG), 1);
                });
                submit(&mut gives_up, 3);
                take(&mut gives_up, Duration::from_millis(40));
            });
        }
        assert!(begun.elapsed() < LONG, "a reader slept while no reader drove the lane");
    }

    /// A reader waits on a lane that others have filled no longer than its timeout.
    #[test]
    fn waiting_on_a_full_lane_times_out() {
        let (_server, maps) = association(20_000, 1);
        for _ in 0..Options::default().queue_depth {
            let mut lane = open(&maps);
            submit(&mut lane, 3);
        }
        let mut lane = open(&maps);
        let request = Request::Read { nsid: 1, offset_bytes: 512, length_bytes: 512 };
        assert_eq!(lane.submit(1, request), Err(SubmitError::QueueFull));
        assert_eq!(take(&mut lane, Duration::from_millis(1)), 0);
        submit(&mut lane, 1);
        assert_eq!(take(&mut lane, LONG), 1, "there is room once the others have ended");
    }

    /// No reader uses the lane, so none has detected that it is lost.
    #[test]
    fn a_lost_idle_lane_is_not_given_to_readers() {
        let (server, maps) = association(0, 1);
        let mut idle = open(&maps);
        submit(&mut idle, 1);
        assert_eq!(take(&mut idle, LONG), 1);
        assert!(idle.is_connected());
        drop(server);
        assert!(TargetLane::open(&maps.shared).is_err(), "there is no target");
    }

    #[test]
    fn the_loss_of_a_lane_is_reported_to_all_and_it_is_not_reused() {
        let (server, maps) = association(200_000, 1);
        let (mut waits, mut idle) = (open(&maps), open(&maps));
        submit(&mut waits, 1);
        take(&mut waits, Duration::ZERO);
        drop(server);
        // The request in flight may have been answered before the server ended.
        while waits.is_connected() {
            let read = Request::Read { nsid: 1, offset_bytes: 512, length_bytes: 512 };
            let _ = waits.submit(1, read);
            let _ = waits.wait(LONG, false, &mut |_| {});
        }
        assert_eq!(waits.requests_in_flight(), 0);
        let read = Request::Read { nsid: 1, offset_bytes: 0, length_bytes: 512 };
        assert!(!idle.is_connected());
        assert!(matches!(idle.submit(0, read), Err(SubmitError::NotConnected)));
        assert!(TargetLane::open(&maps.shared).is_err(), "there is no target");
    }
}
