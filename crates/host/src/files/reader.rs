//! `read_pushdown`: chains over files, at the target while maps hold, and otherwise on this
//! machine: in the local executor if there is no target, or in the fall-back.

use super::batch_read::{Batch, Exchanged, FileRead};
use super::call::{
    Executor, FirstRead, Policy, ReadCompletion, ReadError, ReadInfo, ReadPushdown,
    ReadPushdownMany,
};
use super::chains::Chains;
use super::executor::{Broken, ChainExecutor, Member, NotStarted, PATIENT, Run};
use super::fall_back::FallBack;
use super::file::PushdownFile;
use super::function::StorageFunction;
use super::local::{Local, Passthrough};
use super::maps::FileMaps;
use super::shared::Shared;
use super::shared_lanes::RETRY;
use super::target::AtTarget;
use super::target_lane::TargetLane;
use crate::Error;
use crate::deadline::deadline;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Longest wait for the target while a chain also waits for its maps.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Longest single wait of a blocking call.
const WAIT: Duration = Duration::from_secs(1);

/// The error if a chain can only run over plain reads and the policy forbids these.
const NO_EXECUTOR: &str =
    "there is no target, or files and function are not of the reader's FileMaps";

/// Runs chains over files, for one thread at a time.
#[derive(Debug)]
pub struct PushdownReader {
    shared: Arc<Shared>,
    policy: Policy,
    chains: Chains,
    /// Numbers of chains that are about to start; reused so that no call allocates.
    numbers: Vec<usize>,
    members: Vec<Member>,
    /// Runs chains if there is a target.
    target: Option<AtTarget>,
    /// Runs chains if there is no target: by direct reads, or by NVMe commands to a namespace of this machine.
    local: Option<Box<dyn ChainExecutor>>,
    /// Runs the chains that the other executors cannot run.
    fall_back: FallBack,
    /// State of reads without a function.
    batch: Batch,
    /// Bytes sent and received on lanes that were given up.
    past_traffic: (u64, u64),
    /// After a shared lane was lost: the earliest time to take another one.
    next_lane: Option<Instant>,
}

impl PushdownReader {
    /// A reader of the files of `maps`, on a lane of its own or a shared one ([`FileMaps::share_lanes`]); without a
    /// target, on an io_uring of its own if the kernel and the policy allow it.
    ///
    /// # Errors
    /// Those of [`Controller::open_lane`](crate::Controller::open_lane).
    pub fn new(maps: &FileMaps, policy: Policy) -> Result<Self, Error> {
        let shared = &maps.shared;
        let lane = TargetLane::open(shared)?;
        shared.readers.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            shared: Arc::clone(shared),
            policy,
            chains: Chains::default(),
            numbers: Vec::new(),
            members: Vec::new(),
            target: lane.and_then(|lane| AtTarget::on(lane, shared)),
            local: if policy.local { local(shared) } else { None },
            fall_back: FallBack::new(),
            batch: Batch::default(),
            past_traffic: (0, 0),
            next_lane: None,
        })
    }

    /// Runs one chain: `scratch` holds the argument before and the answer afterwards. The answer
    /// may have up to 4096 bytes, the default size of scratch. On an error `scratch` is empty.
    ///
    /// # Errors
    /// [`ReadError`]; [`ReadError::Request`] also while submitted chains have not ended.
    pub fn read_pushdown(
        &mut self,
        files: &[PushdownFile],
        first_read: FirstRead,
        function: &StorageFunction,
        scratch: &mut Vec<u8>,
    ) -> Result<ReadInfo, ReadError> {
        if self.in_flight() > 0 {
            return Err(ReadError::Request("submitted chains have not ended"));
        }
        let answer_max_bytes = bpfof_nvme::vendor_specific::DEFAULT_SCRATCH_BYTES;
        let scratch_size_bytes = 0;
        let argument = mem::take(scratch);
        let call = ReadPushdown {
            files,
            first_read,
            function,
            scratch: &argument,
            scratch_size_bytes,
            answer_max_bytes,
        };
        self.submit(0, &call)?;
        let mut end = None;
        while end.is_none() {
            self.wait(WAIT, &mut |completion| {
                end = Some(completion.result.map(|(answer, info)| {
                    scratch.extend_from_slice(answer);
                    info
                }));
            });
        }
        end.unwrap_or(Err(ReadError::Request("a chain without an end")))
    }

    /// Whether it has a connection to a target, and the keeper still maintains the maps there. A lost lane of its own
    /// is not reconnected: from then on everything is read on this machine. After the loss of a shared lane
    /// ([`FileMaps::share_lanes`]) it takes another one after some seconds, as long as the association exists.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.target.as_ref().is_some_and(|target| target.lane.is_connected())
            && self.shared.is_kept()
    }

    /// Bytes sent to the target and received from it so far, without TCP and IP headers. On a shared lane a reader also
    /// transfers bytes of other readers, and other readers its bytes: each byte is counted for one reader.
    #[must_use]
    pub fn traffic(&self) -> (u64, u64) {
        let (sent, received) = self.past_traffic;
        let lane = self.target.as_ref().map(|target| &target.lane);
        lane.map_or((sent, received), |lane| {
            let now = lane.traffic();
            (sent + now.0, received + now.1)
        })
    }

    /// Gives up a lost connection whose requests have all been reported: later chains run on this machine.
    fn give_up_lane(&mut self) {
        self.past_traffic = self.traffic();
        let lost = self.target.take();
        let was_shared = lost.is_some_and(|lost| matches!(lost.lane, TargetLane::Shared(..)));
        self.next_lane = was_shared.then(|| Instant::now() + RETRY);
    }

    /// Replaces a lost shared lane by another one, if that is due.
    fn take_lane(&mut self) {
        // Another reader may have detected that the lane is lost while this reader had nothing in flight.
        let is_gone = |target: &AtTarget| {
            matches!(target.lane, TargetLane::Shared(..))
                && !target.lane.is_connected()
                && target.lane.requests_in_flight() == 0
        };
        if self.target.as_ref().is_some_and(is_gone) {
            self.give_up_lane();
        }
        let is_due = self.next_lane.is_some_and(|next| Instant::now() >= next);
        if !is_due || !self.shared.is_kept() {
            return;
        }
        let lane = TargetLane::again(&self.shared);
        self.target = lane.and_then(|lane| AtTarget::on(lane, &self.shared));
        self.next_lane = self.next_lane.filter(|_| self.target.is_none());
    }

    /// Number of submitted chains that have not ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.chains.in_flight()
    }

    /// Begins a chain; its completion, from [`wait`](Self::wait), carries `tag`. The next `wait`
    /// sends it to the target.
    ///
    /// # Errors
    /// [`ReadError::Request`] for a call that makes no sense. A full lane is no error: the chain
    /// then waits or falls back, as the policy says.
    pub fn submit(&mut self, tag: u64, call: &ReadPushdown<'_>) -> Result<(), ReadError> {
        let ReadPushdown { files, function, scratch_size_bytes, answer_max_bytes, .. } = *call;
        let entries = &[call.entry()];
        let many =
            ReadPushdownMany { files, function, entries, scratch_size_bytes, answer_max_bytes };
        self.submit_many(tag, &many)
    }

    /// Begins chains over the same files with the same function. Each ends as if it had been submitted
    /// alone; the completion of the first carries `first_tag`, and each further one the next number. If the target
    /// supports Pushdown Vectors, the chains are sent as such, which costs the target, the network and this machine
    /// less.
    ///
    /// # Errors
    /// [`ReadError::Request`] if the call makes no sense for one of the chains; then none has begun.
    pub fn submit_many(
        &mut self,
        first_tag: u64,
        call: &ReadPushdownMany<'_>,
    ) -> Result<(), ReadError> {
        self.submit_tagged(first_tag.., call)
    }

    /// The same with tags of the caller's choice, one for each chain; chains without a tag are not begun.
    ///
    /// # Errors
    /// Those of [`submit_many`](Self::submit_many).
    pub fn submit_tagged(
        &mut self,
        tags: impl Iterator<Item = u64>,
        call: &ReadPushdownMany<'_>,
    ) -> Result<(), ReadError> {
        call.check()?;
        let is_full = self.chains.wants_room();
        let mut numbers = mem::take(&mut self.numbers);
        numbers.clear();
        self.chains.add(tags, call, &mut numbers);
        if is_full {
            self.chains.no_room(&numbers, false);
        } else {
            self.start(&numbers);
        }
        self.numbers = numbers;
        Ok(())
    }

    /// Runs chains over the same files with the same function and waits for all of them. `on_done` gets the end of
    /// each, in any order, with the chain's index in the call as the tag.
    ///
    /// # Errors
    /// [`ReadError::Request`] for a call that makes no sense, and while submitted chains have not ended. Errors of
    /// single chains are reported to `on_done`.
    pub fn read_pushdown_many(
        &mut self,
        call: &ReadPushdownMany<'_>,
        on_done: &mut dyn FnMut(ReadCompletion<'_>),
    ) -> Result<(), ReadError> {
        if self.in_flight() > 0 {
            return Err(ReadError::Request("submitted chains have not ended"));
        }
        self.submit_many(0, call)?;
        while self.in_flight() > 0 {
            self.wait(WAIT, on_done);
        }
        Ok(())
    }

    /// Reads files without a function: at the target, all in one round trip, if the maps hold all
    /// the time, and otherwise on this machine. Each read returns the bytes that a `pread` at some
    /// moment during the call would have returned.
    ///
    /// # Errors
    /// [`ReadError::Request`] while submitted chains have not ended; [`ReadError::Plain`] if a file cannot be read on
    /// this machine either. If the policy forbids plain reads and there is a target or drive, the reason why it did not
    /// do the read: [`ReadError::Stale`], [`ReadError::Target`], or [`ReadError::Request`] if there is no connection,
    /// or only one that runs nothing but chains. The contents of the buffers are then undefined.
    pub fn read_files(&mut self, reads: &mut [FileRead<'_>]) -> Result<(), ReadError> {
        self.read_files_until(reads, None)
    }

    /// The same, but waits for the target until `end` at most. At a timeout, a lane that is not shared is given up.
    ///
    /// # Errors
    /// [`ReadError::TimedOut`]; those of [`read_files`](Self::read_files).
    pub fn read_files_until(
        &mut self,
        reads: &mut [FileRead<'_>],
        end: Option<Instant>,
    ) -> Result<(), ReadError> {
        if self.in_flight() > 0 {
            return Err(ReadError::Request("submitted chains have not ended"));
        }
        self.take_lane();
        let lane = self.target.as_mut().map(|target| &mut target.lane);
        match self.batch.read(reads, &self.shared, lane, end) {
            Exchanged::Done => {}
            Exchanged::Lost => self.give_up_lane(),
            Exchanged::TimedOut => {
                if !self.target.as_mut().is_some_and(|target| target.lane.forget()) {
                    self.give_up_lane();
                }
                return Err(ReadError::TimedOut);
            }
        }
        // Without a target, plain reads are not a fall-back, so the policy does not forbid them.
        self.batch.complete(reads, self.policy.fall_back || self.shared.remote.is_none())
    }

    /// Sends what was submitted, and waits until a chain has ended or `timeout` passed. Chains that fall back run in
    /// this call. Returns how many have ended. Reconnecting may take longer than `timeout`: see
    /// [`Lane::wait`](crate::Lane::wait).
    pub fn wait(
        &mut self,
        timeout: Duration,
        on_done: &mut dyn FnMut(ReadCompletion<'_>),
    ) -> usize {
        let before = self.in_flight();
        if before == 1
            && timeout >= PATIENT
            && self.executor().is_some_and(|executor| executor.ends_one())
        {
            // No other chain waits. Skips reading the clock, which costs as much as the rest of this function.
            self.receive(timeout, on_done);
            if self.in_flight() < before {
                return before - self.in_flight();
            }
        }
        let end = deadline(timeout);
        loop {
            self.start_due();
            self.run_here(on_done);
            let left = end.saturating_duration_since(Instant::now());
            let looks_again = self.chains.is_waiting()
                || self.chains.wants_room() && self.executor().is_none_or(|x| x.in_flight() == 0);
            let pause = match before - self.in_flight() {
                1.. => Duration::ZERO,
                0 if looks_again => left.min(LOOK_AGAIN),
                0 => left,
            };
            self.receive(pause, on_done);
            let done = before - self.in_flight();
            if done > 0 || left.is_zero() || self.in_flight() == 0 {
                return done;
            }
        }
    }

    /// The executor of chains, unless that is the fall-back.
    fn executor(&mut self) -> Option<&mut dyn ChainExecutor> {
        either(&mut self.target, &mut self.local)
    }

    /// Starts chains whose wait for maps or pause is over, and then as many of those that wait for room as possible.
    fn start_due(&mut self) {
        let due = self.chains.take_due(self.shared.is_kept());
        let mut left = &due[..];
        while !left.is_empty() {
            let run = left.array_windows().position(|[a, b]| !self.chains.may_join(*a, *b));
            let (run, others) = left.split_at(run.map_or(left.len(), |last| last + 1));
            self.start(run);
            left = others;
        }
        let mut numbers = mem::take(&mut self.numbers);
        while self.chains.wants_room() {
            let most = self.executor().map_or(1, |executor| executor.together_max());
            self.chains.take_for_room(most, &mut numbers);
            if !self.start(&numbers) {
                break;
            }
        }
        self.numbers = numbers;
    }

    /// Starts chains of one call in their executor, as many as possible together; the others wait, or fall back. False
    /// if the executor has no room for some of them.
    fn start(&mut self, numbers: &[usize]) -> bool {
        let most = self.executor().map_or(usize::MAX, |executor| executor.together_max());
        let mut left = numbers;
        while !left.is_empty() {
            match self.start_first(left.get(..most).unwrap_or(left)) {
                0 => {
                    self.chains.no_room(left, true);
                    return false;
                }
                settled => left = left.get(settled..).unwrap_or(&[]),
            }
        }
        true
    }

    /// The same for the first of these chains. Returns the number of chains that have started, wait, fall back or have
    /// failed; 0 if there is no room.
    fn start_first(&mut self, numbers: &[usize]) -> usize {
        self.take_lane();
        let Self { chains, target, local, shared, policy, members, .. } = self;
        let call = chains.call(numbers, members);
        let (Some(call), Some(first)) = (call, members.first()) else { return numbers.len() };
        // File ids and a function's maps belong to one association.
        let is_ours = || shared.is_kept() && call.files.iter().all(|file| file.is_of(shared));
        let executor = either(target, local).filter(|executor| {
            let at_target = executor.place() == Executor::Target;
            (!executor.needs_maps() || is_ours())
                && (at_target || !call.function().remembers_at_target())
        });
        let Some(executor) = executor else {
            chains.fall_back(numbers, NO_EXECUTOR);
            return numbers.len();
        };
        let flight = match executor.needs_maps() {
            true => match chains.pin(numbers, &call.files, policy) {
                None => return numbers.len(),
                pinned => pinned,
            },
            false => None,
        };
        let run = Run { call: &call, first: *first, members };
        match executor.start(&run, chains.pins(flight)) {
            Ok(started) => {
                chains.started(&numbers[..started], flight);
                started
            }
            Err(NotStarted::NoRoom) => {
                chains.unpin(flight);
                0
            }
            Err(NotStarted::Ended(failure)) => {
                chains.not_started(first.0, flight, failure, policy);
                1
            }
        }
    }

    /// Receives the chains that the executor has ended.
    fn receive(&mut self, timeout: Duration, on_done: &mut dyn FnMut(ReadCompletion<'_>)) {
        let Self { chains, target, local, policy, .. } = self;
        // A shared lane may be full of other readers' requests.
        let has_work = |executor: &&mut dyn ChainExecutor| {
            executor.in_flight() > 0 || chains.wants_room() && executor.place() == Executor::Target
        };
        let Some(executor) = either(target, local).filter(has_work) else {
            if !timeout.is_zero() && chains.is_waiting() {
                self.shared.wait_until(timeout, &mut || chains.is_due());
            }
            return;
        };
        let place = executor.place();
        let turned = executor.turn(timeout, &mut |number, end| {
            chains.ended(number, end, place, policy, on_done);
        });
        if let Err(Broken(why)) = turned {
            log::warn!("chains run over plain reads from now on: {why}");
            self.give_up_lane();
            self.local = None;
            self.chains.abandon();
        }
        self.start_due();
    }

    /// Runs the chains that no other executor can run.
    fn run_here(&mut self, on_done: &mut dyn FnMut(ReadCompletion<'_>)) {
        let Self { chains, fall_back, policy, members, .. } = self;
        for number in chains.take_here(policy, on_done) {
            if let Some(call) = chains.call(&[number], members)
                && let Some(first) = members.first()
            {
                // The fall-back accepts every chain, and cannot fail.
                let _ = fall_back.start(&Run { call: &call, first: *first, members }, &[]);
            }
        }
        let _ = fall_back.turn(Duration::ZERO, &mut |number, end| {
            chains.ended(number, end, Executor::FallBack, policy, on_done);
        });
    }
}

impl Drop for PushdownReader {
    fn drop(&mut self) {
        self.shared.readers.fetch_sub(1, Ordering::Relaxed);
        if let Some(AtTarget { lane: TargetLane::Own(lane), .. }) = self.target.take() {
            self.shared.leave_lane(lane);
        }
    }
}

/// The executor that the reader has, if any: the target if there is one.
fn either<'a>(
    target: &'a mut Option<AtTarget>,
    local: &'a mut Option<Box<dyn ChainExecutor>>,
) -> Option<&'a mut dyn ChainExecutor> {
    match target {
        Some(target) => Some(target),
        None => local.as_mut().map(|local| &mut **local as &mut dyn ChainExecutor),
    }
}

/// An executor on an io_uring of this machine, if the kernel allows it; None with a target.
fn local(shared: &Arc<Shared>) -> Option<Box<dyn ChainExecutor>> {
    let made = match Passthrough::new(shared) {
        Some(passthrough) => passthrough.map(|made| Box::new(made) as Box<dyn ChainExecutor>),
        None if shared.remote.is_none() => Local::new().map(|made| Box::new(made) as _),
        None => return None,
    };
    made.map_err(|error| log::info!("chains run over plain reads: {error}")).ok()
}
