//! Merges chains of several threads into one command: i10's caravan one level higher. Chains that wait in a shared lane
//! for the same send, and name the same function and files, leave as one Pushdown Vector.

use super::pace::{Pace, Way};
use crate::vectors::{ChainEnd, Common, Unanswered, VectorLimits, Vectors};
use crate::{
    Completion, Done, FileVersion, FirstRead, InitiatorConfig, Lane, LostReason, PushdownCall,
    RequestError, SubmitError, VectorChain,
};

/// The bit that marks tags of vectors on the lane; tags of calls are smaller.
const VECTOR: u64 = 1 << 32;

/// The request of a chain, kept until its answer comes.
#[derive(Debug, Default)]
struct KeptChain {
    nsid: u32,
    function: u32,
    files: Vec<FileVersion>,
    first: FirstRead,
    scratch_size_bytes: u32,
    answer_max_bytes: u32,
    argument: Vec<u8>,
    /// Length of the request if the chain is sent alone.
    encoded_bytes: usize,
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
        self.argument.clear();
        self.argument.extend_from_slice(call.scratch);
        self.encoded_bytes = call.parts().encoded_bytes();
    }

    /// A hash of [`common`](Self::common), to compare it cheaply.
    fn name(&self) -> u64 {
        let sizes = u64::from(self.scratch_size_bytes) << 32 | u64::from(self.answer_max_bytes);
        let function = u64::from(self.function) << 32 | u64::from(self.nsid);
        let files = self.files.iter().map(|file| u64::from(file.id) << 32 ^ file.version);
        [function, sizes].into_iter().chain(files).fold(0, |name: u64, part| {
            (name.rotate_left(29) ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        })
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
    /// Tag of its call.
    tag: u32,
    /// A hash of the fields that chains of one vector have in common.
    name: u64,
    /// Its earlier send, in a vector that did not answer it. Such a chain leaves alone.
    before: Option<Sent>,
}

/// A chain in flight.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// Tag of its call.
    tag: u32,
    at_us: u64,
    /// `None` if no other chain could have joined it.
    way: Option<Way>,
}

/// The chains of a lane that wait to leave, and the vectors in flight.
#[derive(Debug)]
pub(super) struct Gathering {
    limits: VectorLimits,
    vectors: Vectors<Sent>,
    /// The chains, indexed by the tags of their calls.
    chains: Vec<KeptChain>,
    /// Chains that have not left, in the order of arrival.
    waiting: Vec<Waiting>,
    waiting_bytes: usize,
    /// Whether waiting chains must leave as soon as possible: they have waited for room, or are sent again.
    is_urgent: bool,
    /// Chains in flight in excess of one per command.
    beyond: usize,
    /// Calls whose chains could not leave, because the connection is lost.
    lost: Vec<u32>,
    pace: Pace,
}

/// What [`Gathering::queue`] has queued in the lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) chains: usize,
    /// Commands of several chains.
    pub(super) vectors: u64,
}

impl Gathering {
    pub(super) fn new(limits: VectorLimits, config: &InitiatorConfig) -> Self {
        Self {
            limits,
            vectors: Vectors::new(limits, config).with_whole_answers(),
            chains: Vec::new(),
            waiting: Vec::new(),
            waiting_bytes: 0,
            is_urgent: false,
            beyond: 0,
            lost: Vec::new(),
            pace: Pace::default(),
        }
    }

    /// Starts afresh for another connection, after all chains have ended.
    pub(super) fn renew(&mut self, config: &InitiatorConfig) {
        *self = Self::new(self.limits, config);
    }

    /// Chains that wait, and their bytes.
    pub(super) fn waiting(&self) -> (usize, usize) {
        (self.waiting.len(), self.waiting_bytes)
    }

    /// Chains whose calls have not ended, in excess of one per command in flight, and without those that wait.
    pub(super) const fn beyond(&self) -> usize {
        self.beyond + self.lost.len()
    }

    /// Adds the chain of the call with this tag.
    pub(super) fn take(&mut self, tag: u32, call: &PushdownCall<'_>) {
        let at = tag as usize;
        if at >= self.chains.len() {
            self.chains.resize_with(at + 1, KeptChain::default);
        }
        self.chains[at].replace(call);
        let KeptChain { encoded_bytes, .. } = self.chains[at];
        let name = self.chains[at].name();
        self.waiting.push(Waiting { tag, name, before: None });
        self.waiting_bytes += encoded_bytes;
    }

    /// Queues the waiting chains in the lane, as one command where they can be. Chains stay if the lane has no room. If
    /// it accepts no requests any more, the chains [are lost](Self::take_lost).
    pub(super) fn queue(&mut self, lane: &mut Lane, now_us: u64) -> Left {
        let mut left = Left::default();
        let way = if self.waiting.len() > 1 { Some(self.pace.next()) } else { None };
        self.is_urgent = false;
        while let Some(first) = self.waiting.first().copied() {
            if lane.is_full() {
                self.is_urgent = true;
                break;
            }
            let chain = |waiting: &Waiting| &self.chains[waiting.tag as usize];
            let common = chain(&first).common();
            let joins = |other: &Waiting| {
                let are_new = first.before.is_none() && other.before.is_none();
                are_new && other.name == first.name && chain(other).common() == common
            };
            let way = way.filter(|_| self.waiting.iter().skip(1).any(joins));
            let joins = |other: &Waiting| way == Some(Way::Together) && joins(other);
            let member = |waiting: &Waiting| {
                let KeptChain { first, argument, .. } = chain(waiting);
                let sent = Sent { tag: waiting.tag, at_us: now_us, way };
                (waiting.before.unwrap_or(sent), VectorChain { first: *first, argument })
            };
            let others = self.waiting.iter().skip(1).filter(|other| joins(other)).map(member);
            let (tag, count, command) = self.vectors.make(&common, member(&first), others);
            match lane.submit(VECTOR | tag, command.request()) {
                Ok(()) => {}
                Err(SubmitError::QueueFull) => {
                    self.vectors.not_sent(tag);
                    self.is_urgent = true;
                    break;
                }
                Err(_) => {
                    self.vectors.not_sent(tag);
                    self.lost.extend(self.waiting.drain(..).map(|waiting| waiting.tag));
                    self.waiting_bytes = 0;
                    break;
                }
            }
            self.beyond += count - 1;
            left.chains += count;
            left.vectors += u64::from(count > 1);
            let (mut leaving, bytes) = (count, &mut self.waiting_bytes);
            self.waiting.retain(|waiting| {
                let leaves = leaving == count || leaving > 0 && joins(waiting);
                if leaves {
                    leaving -= 1;
                    *bytes -= chain(waiting).encoded_bytes;
                }
                !leaves
            });
        }
        left
    }

    /// Takes a call whose chain could not leave. It ends like calls in flight on a lost connection.
    pub(super) fn take_lost(&mut self) -> Option<(u32, RequestError)> {
        self.lost.pop().map(|tag| (tag, RequestError::Lost(LostReason::HungUp)))
    }

    /// Whether a completion belongs to chains that were queued here.
    pub(super) const fn has_queued(completion: &Completion<'_>) -> bool {
        completion.tag & VECTOR != 0
    }

    /// Whether waiting chains must leave as soon as possible: they have waited for room, or are sent again.
    pub(super) const fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    /// Handles the end of a command: reports the end of each of its chains to `on_end`. Chains that must be sent again
    /// wait.
    pub(super) fn complete(
        &mut self,
        completion: &Completion<'_>,
        now_us: u64,
        on_end: &mut dyn FnMut(u32, Result<Done<'_>, RequestError>),
    ) {
        let command = Completion { tag: completion.tag & !VECTOR, result: completion.result };
        let Self { vectors, waiting, waiting_bytes, is_urgent, pace, beyond, chains: kept, .. } =
            self;
        let mut chains = 0;
        vectors.complete(&command, &mut |sent: Sent, end: ChainEnd<'_>| {
            chains += 1;
            match end {
                Ok((answer, hops)) => {
                    if let Some(way) = sent.way {
                        pace.answered(way, now_us.saturating_sub(sent.at_us));
                    }
                    let (dw0, dw1) = (hops, answer.len() as u32);
                    on_end(sent.tag, Ok(Done { data: answer, dw0, dw1 }));
                }
                Err(Unanswered::Request(error)) => on_end(sent.tag, Err(error)),
                Err(Unanswered::LeftOut | Unanswered::BadAnswer) => {
                    waiting.push(Waiting { tag: sent.tag, name: 0, before: Some(sent) });
                    *waiting_bytes += kept[sent.tag as usize].encoded_bytes;
                    *is_urgent = true;
                }
            }
        });
        *beyond -= usize::max(chains, 1) - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CommandError, Controller, Options, Status};
    use bpfof_controller::{NamespaceConfig, NamespaceSource, Server, TargetConfig};

    const FILES: &[FileVersion] = &[FileVersion { id: 0, version: 1 }];

    fn chain(function: u32) -> PushdownCall<'static> {
        PushdownCall {
            nsid: 1,
            function,
            files: FILES,
            first_file: 0,
            first_offset_bytes: 0,
            first_size_bytes: 512,
            scratch: b"argument",
            scratch_size_bytes: 0,
            answer_max_bytes: 8,
        }
    }

    fn lane(queue_depth: u16) -> (Server, Controller, Lane) {
        let source = NamespaceSource::Memory { size_bytes: 4096, latency_us: 0, iops: 0 };
        let config = TargetConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            namespaces: vec![NamespaceConfig::new(source, 512)],
            ..TargetConfig::default()
        };
        let server = Server::start(&config).expect("the target starts");
        let url = format!("nvme-tcp://{}/{}", server.address(), config.nqn);
        let url = url.parse().expect("an address");
        let options = Options { queue_depth, ..Options::default() };
        let controller = Controller::connect(&url, options).expect("it connects");
        let lane = controller.open_lane().expect("a lane");
        (server, controller, lane)
    }

    /// Lets `count` chains wait, every third with another function.
    fn wait(gathering: &mut Gathering, count: u32) {
        (0..count).for_each(|tag| gathering.take(tag, &chain(1 + u32::from(tag % 3 == 0))));
    }

    fn gathering(lane: &Lane) -> Gathering {
        Gathering::new(VectorLimits { chains: 256, bytes: 64 << 10 }, lane.config())
    }

    #[test]
    fn chains_of_the_same_name_leave_together() {
        let (_server, _controller, mut lane) = lane(32);
        let mut gathering = gathering(&lane);
        wait(&mut gathering, 9);
        assert_eq!(gathering.waiting().0, 9);
        assert_eq!(gathering.queue(&mut lane, 0), Left { chains: 9, vectors: 2 });
        assert_eq!((lane.requests_in_flight(), gathering.beyond()), (2, 7));
        assert_eq!(gathering.waiting(), (0, 0));
        wait(&mut gathering, 1);
        assert_eq!(gathering.queue(&mut lane, 0), Left { chains: 1, vectors: 0 });
        assert_eq!((lane.requests_in_flight(), gathering.beyond()), (3, 7));
    }

    #[test]
    fn chains_without_room_in_the_lane_stay() {
        let (_server, _controller, mut lane) = lane(1);
        let mut gathering = gathering(&lane);
        wait(&mut gathering, 9);
        assert_eq!(gathering.queue(&mut lane, 0), Left { chains: 3, vectors: 1 });
        assert_eq!(gathering.waiting(), (6, 6 * chain(1).parts().encoded_bytes()));
        assert!(gathering.is_urgent() && gathering.take_lost().is_none());
    }

    #[test]
    fn chains_of_a_refused_vector_are_sent_one_by_one() {
        let (_server, _controller, mut lane) = lane(32);
        let mut gathering = gathering(&lane);
        wait(&mut gathering, 9);
        gathering.queue(&mut lane, 0);
        assert!(!gathering.is_urgent());
        let error = CommandError { status: Status::INVALID_OPCODE.with_dnr(), dw0: 0, dw1: 0 };
        let result = Err(RequestError::Command(error));
        for vector in [1, 3] {
            let completion = Completion { tag: VECTOR | vector, result };
            assert!(Gathering::has_queued(&completion));
            gathering.complete(&completion, 7, &mut |tag, _| panic!("{tag} has not ended"));
        }
        assert!(gathering.is_urgent());
        assert_eq!((gathering.waiting().0, gathering.beyond()), (9, 0));
        assert_eq!(gathering.queue(&mut lane, 9), Left { chains: 9, vectors: 0 });
        assert_eq!((lane.requests_in_flight(), gathering.is_urgent()), (11, false));
        assert_eq!(gathering.waiting(), (0, 0));
    }

    #[test]
    fn chains_that_cannot_be_sent_are_lost() {
        let (server, _controller, mut lane) = lane(32);
        let mut gathering = gathering(&lane);
        drop(server);
        while lane.is_connected() {
            let _ = lane.poll(&mut |_| {});
        }
        wait(&mut gathering, 9);
        assert_eq!(gathering.queue(&mut lane, 0), Left::default());
        assert_eq!((gathering.waiting(), gathering.beyond()), ((0, 0), 9));
        let mut lost = Vec::new();
        while let Some((tag, error)) = gathering.take_lost() {
            assert_eq!(error, RequestError::Lost(LostReason::HungUp));
            lost.push(tag);
        }
        lost.sort_unstable();
        assert_eq!(lost, (0..9).collect::<Vec<_>>());
    }
}
