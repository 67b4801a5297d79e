//! `read_pushdown`: chains over files, at the target while maps hold, and otherwise here: by the
//! local executor where there is no target, and by the fall-back.

use super::call::{Executor, Policy, ReadCompletion, ReadError, ReadInfo, ReadPushdown};
use super::entry::Pin;
use super::fallback::{FallBack, command_error};
use super::local::{End, Local, Passthrough, Started};
use super::maps::Shared;
use super::plain::Batch;
use super::{FileMaps, FirstRead, PushdownFile, StorageFunction};
use crate::{
    CommandError, Error, FileVersion, FunctionId, Lane, PushdownCall, Request, RequestError,
    Status, SubmitError, interrupted,
};
use bpfof_chain::{Answer, ChainError};
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Longest wait for the target while a chain waits for its maps too.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Longest wait of a blocking call before it looks around.
const WAIT: Duration = Duration::from_secs(1);

/// Runs chains over files, for one thread at a time.
#[derive(Debug)]
pub struct PushdownReader {
    pub(super) shared: Arc<Shared>,
    pub(super) lane: Option<Lane>,
    /// Bytes sent and received on lanes that are gone.
    past_traffic: (u64, u64),
    pub(super) policy: Policy,
    /// Of reads without a function.
    pub(super) batch: Batch,
    /// Where there is no target.
    local: Option<Local>,
    /// Where the namespace is of this machine.
    passthrough: Option<Passthrough>,
    /// Chains that it has refused.
    refused: Vec<(usize, CommandError)>,
    fall_back: FallBack,
    /// By the tag that the lane knows.
    chains: Vec<Chain>,
    free: Vec<usize>,
    /// Chains that wait for new maps, for room, or after an interruption.
    waiting: Vec<usize>,
    /// Chains that wait for room in the local executor.
    queue: VecDeque<usize>,
    /// Chains for the fall-back.
    here: Vec<usize>,
    versions: Vec<FileVersion>,
}

/// A call, kept until it ends so that it can be tried again.
#[derive(Debug)]
struct Chain {
    tag: u64,
    files: Vec<PushdownFile>,
    first_read: FirstRead,
    function: StorageFunction,
    scratch: Vec<u8>,
    scratch_size_bytes: u32,
    answer_max_bytes: u32,
    pins: Vec<Pin>,
    /// How often the keeper had looked at each file when the chain was found stale.
    looks: Vec<u64>,
    stale: u32,
    /// How often it was sent again because the target had interrupted it.
    interruptions: u32,
    wait_until: Instant,
    /// Why it cannot run at the target, for a policy without plain reads.
    cause: Option<ReadError>,
}

impl Chain {
    fn new(tag: u64, call: &ReadPushdown<'_>) -> Self {
        Self {
            tag,
            files: call.files.to_vec(),
            first_read: call.first_read,
            function: call.function.clone(),
            scratch: call.scratch.to_vec(),
            scratch_size_bytes: call.scratch_size_bytes,
            answer_max_bytes: call.answer_max_bytes,
            pins: Vec::new(),
            looks: Vec::new(),
            stale: 0,
            interruptions: 0,
            wait_until: Instant::now(),
            cause: None,
        }
    }

    fn call(&self) -> ReadPushdown<'_> {
        ReadPushdown {
            files: &self.files,
            first_read: self.first_read,
            function: &self.function,
            scratch: &self.scratch,
            scratch_size_bytes: self.scratch_size_bytes,
            answer_max_bytes: self.answer_max_bytes,
        }
    }

    /// Whether each file that had no map was looked at since.
    fn is_due(&self) -> bool {
        let mut files = self.files.iter().zip(&self.looks);
        Instant::now() >= self.wait_until || files.all(|(file, looks)| file.looks() != *looks)
    }
}

/// What became of a chain that the target, or the namespace, has ended.
enum Verdict {
    Good(u32),
    Failed(ReadError),
    Stale,
    /// It is to be sent again, at the time that it waits for.
    Later,
    /// Only plain reads can tell.
    Here(Option<ReadError>),
}

impl PushdownReader {
    /// A reader of the files of `maps`, on a lane of its own; without a target, on an io_uring of
    /// its own where the kernel and the policy allow it.
    ///
    /// # Errors
    /// Those of [`Controller::open_lane`](crate::Controller::open_lane).
    pub fn new(maps: &FileMaps, policy: Policy) -> Result<Self, Error> {
        let remote = maps.shared.remote.as_ref();
        let namespace = remote.and_then(|remote| remote.namespace());
        let plainly = |error| log::info!("chains run by plain reads: {error}");
        let wanted = policy.local && remote.is_none();
        let local = wanted.then(|| Local::new().map_err(plainly).ok()).flatten();
        let namespace = namespace.filter(|_| policy.local);
        let passthrough = namespace.and_then(|of| Passthrough::new(of).map_err(plainly).ok());
        let lane = maps.open_lane()?;
        maps.shared.readers.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            shared: Arc::clone(&maps.shared),
            lane,
            past_traffic: (0, 0),
            batch: Batch::default(),
            local,
            passthrough,
            refused: Vec::new(),
            policy,
            fall_back: FallBack::new(),
            chains: Vec::new(),
            free: Vec::new(),
            waiting: Vec::new(),
            queue: VecDeque::new(),
            here: Vec::new(),
            versions: Vec::new(),
        })
    }

    /// Runs one chain: `scratch` has the argument before and the answer after, which may be as
    /// long as scratch by default is, 4096 bytes. On an error it is empty.
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
        let answer_max_bytes = bpfof_nvme::vendor::DEFAULT_SCRATCH_BYTES;
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

    /// Whether it has a connection to a target, and somebody keeps the maps there. What was lost is not
    /// made again: what is read is read on this machine from then on.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.lane.is_some() && self.shared.is_kept()
    }

    /// Bytes sent to the target and received from it so far, without TCP and IP headers.
    #[must_use]
    pub fn traffic(&self) -> (u64, u64) {
        let (sent, received) = self.past_traffic;
        let lane = self.lane.as_ref();
        lane.map_or((sent, received), |lane| {
            (sent + lane.bytes_sent(), received + lane.bytes_received())
        })
    }

    /// The connection is lost, and its requests were all reported: what follows runs here.
    pub(super) fn give_up_lane(&mut self) {
        self.past_traffic = self.traffic();
        self.lane = None;
    }

    /// Chains submitted that have not ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.chains.len() - self.free.len()
    }

    /// Begins a chain; its completion, from [`wait`](Self::wait), carries `tag`. It leaves for the
    /// target with the next `wait`.
    ///
    /// # Errors
    /// [`ReadError::Request`] for a call that makes no sense. A full lane is no error: the chain
    /// then waits or falls back, as the policy says.
    pub fn submit(&mut self, tag: u64, call: &ReadPushdown<'_>) -> Result<(), ReadError> {
        call.check()?;
        let chain = Chain::new(tag, call);
        let index = match self.free.pop() {
            Some(index) => {
                self.chains[index] = chain;
                index
            }
            None => {
                self.chains.push(chain);
                self.chains.len() - 1
            }
        };
        self.start(index);
        Ok(())
    }

    /// Sends what was submitted, and waits until a chain has ended or `timeout` passed. Chains
    /// that fall back run in this call. Returns how many have ended.
    pub fn wait(
        &mut self,
        timeout: Duration,
        on_done: &mut dyn FnMut(ReadCompletion<'_>),
    ) -> usize {
        let end = Instant::now() + timeout;
        loop {
            for index in mem::take(&mut self.waiting) {
                // Nobody looks at its files any more, if nobody keeps their maps.
                if self.chains[index].is_due() || !self.shared.is_kept() {
                    self.start(index)
                } else {
                    self.waiting.push(index)
                }
            }
            let done = self.run_here(on_done);
            let left = end.saturating_duration_since(Instant::now());
            let pause = match (done, self.waiting.is_empty()) {
                (1.., _) => Duration::ZERO,
                (0, true) => left,
                (0, false) => left.min(LOOK_AGAIN),
            };
            let done = done + self.receive(pause, on_done);
            if done > 0 || left.is_zero() || self.in_flight() == 0 {
                return done;
            }
        }
    }

    /// Algorithm 1, and the chain leaves for the target or the namespace; or it waits, or runs
    /// otherwise.
    fn start(&mut self, index: usize) {
        let chain = &mut self.chains[index];
        // Numbers of files and functions mean something in one association only.
        let ours = self.shared.is_kept() && chain.files.iter().all(|file| file.is_of(&self.shared));
        let function = chain.function.id_in(self.shared.serial);
        let is_pinned = self.passthrough.is_some() || self.lane.is_some() && function.is_some();
        let is_elsewhere = chain.function.remembers_at_target() && function.is_none();
        if !ours || !is_pinned || is_elsewhere {
            let why = "there is no target, or files and function are not of the reader's FileMaps";
            chain.cause = Some(ReadError::Request(why));
            if self.local.is_some() && !is_elsewhere {
                self.queue.push_back(index);
                self.start_local();
            } else {
                self.here.push(index);
            }
            return;
        }
        chain.looks.clear();
        chain.looks.extend(chain.files.iter().map(PushdownFile::looks));
        chain.pins.clear();
        let mapped = || chain.files.iter().filter(|file| !file.is_whole_namespace());
        // All of them, so that each that has no map asks for one.
        chain.pins.extend(mapped().filter_map(PushdownFile::begin));
        if chain.pins.len() < mapped().count() {
            chain.pins.clear();
            return self.stale(index);
        }
        match function {
            Some(function) if self.lane.is_some() => self.send(index, function),
            _ => self.start_passthrough(index),
        }
    }

    /// A chain leaves for the lane.
    fn send(&mut self, index: usize, function: FunctionId) {
        let chain = &mut self.chains[index];
        let (Some(lane), Some(remote)) = (&mut self.lane, &self.shared.remote) else { return };
        self.versions.clear();
        self.versions.extend(chain.pins.iter().map(Pin::version));
        let request = Request::Pushdown(PushdownCall {
            nsid: remote.info.nsid,
            function: function.0,
            files: &self.versions,
            first_file: chain.first_read.file,
            first_offset_bytes: chain.first_read.offset_bytes,
            first_size_bytes: chain.first_read.size_bytes,
            scratch: &chain.scratch,
            scratch_size_bytes: chain.scratch_size_bytes,
            answer_max_bytes: chain.answer_max_bytes,
        });
        match lane.submit(index as u64, request) {
            Ok(()) => {}
            Err(SubmitError::QueueFull) => self.wait_for_room(index),
            Err(error) => {
                chain.pins.clear();
                chain.cause = Some(ReadError::Target(error.into()));
                self.here.push(index);
            }
        }
    }

    /// A chain is begun by NVMe commands of this process.
    fn start_passthrough(&mut self, index: usize) {
        let Self { passthrough, shared, chains, .. } = self;
        let remote = shared.remote.as_ref();
        let namespace = remote.and_then(|remote| remote.namespace());
        let (Some(passthrough), Some(namespace)) = (passthrough, namespace) else { return };
        let chain = &chains[index];
        match passthrough.start(index, &chain.call(), &chain.pins, namespace) {
            Ok(()) => {}
            Err(ChainError::TooManyChains) => self.wait_for_room(index),
            Err(error) => self.refused.push((index, command_error(error, 0))),
        }
    }

    /// A chain for which there is no room is tried again as soon as one has ended.
    fn wait_for_room(&mut self, index: usize) {
        let chain = &mut self.chains[index];
        chain.pins.clear();
        chain.wait_until = Instant::now();
        self.waiting.push(index);
    }

    /// Begins chains in the local executor, as many as it has room for.
    fn start_local(&mut self) {
        while let (Some(local), Some(&index)) = (&mut self.local, self.queue.front()) {
            let chain = &mut self.chains[index];
            match local.start(index, &chain.call()) {
                Started::Yes => {}
                Started::Full => return,
                Started::Unknown(cause) => {
                    local.measure(&chain.files);
                    chain.cause = Some(cause);
                    self.here.push(index);
                }
            }
            self.queue.pop_front();
        }
    }

    /// Lets the chains of the local executor go on; how many have ended.
    fn turn_local(
        &mut self,
        timeout: Duration,
        on_done: &mut dyn FnMut(ReadCompletion<'_>),
    ) -> usize {
        let Some(local) = &mut self.local else { return 0 };
        let (chains, free, here) = (&mut self.chains, &mut self.free, &mut self.here);
        let (mut done, before) = (0, here.len());
        let turned = local.turn(timeout, &mut |index, end| {
            let Some(chain) = chains.get_mut(index) else { return };
            let result = match end {
                End::Good(answer, hops) => {
                    Ok((answer, ReadInfo { hops, executor: Executor::Local, stale: 0 }))
                }
                End::Failed(error) => Err(error),
                End::Unknown(cause) => {
                    chain.cause = Some(cause);
                    return here.push(index);
                }
            };
            done += 1;
            free.push(index);
            chain.files.clear();
            on_done(ReadCompletion { tag: chain.tag, result });
        });
        for &index in &self.here[before..] {
            local.measure(&self.chains[index].files);
        }
        if let Err(error) = turned {
            self.abandon(&error);
        }
        self.start_local();
        done
    }

    /// Lets the chains of the namespace go on; how many have ended.
    fn turn_passthrough(
        &mut self,
        timeout: Duration,
        on_done: &mut dyn FnMut(ReadCompletion<'_>),
    ) -> usize {
        let Some(passthrough) = &mut self.passthrough else { return 0 };
        let mut ended = Ended::new(&mut self.chains, &mut self.free, on_done);
        let timeout = if self.refused.is_empty() { timeout } else { Duration::ZERO };
        for (index, error) in self.refused.drain(..) {
            ended.settle(index, Err(RequestError::Command(error)), Executor::Local);
        }
        let turned = passthrough.turn(timeout, &mut |index, outcome, scratch| {
            let result = match outcome {
                Ok(Answer { hops, length_bytes }) => {
                    Ok((scratch.get(..length_bytes as usize).unwrap_or(&[]), hops))
                }
                Err((error, hops)) => Err(RequestError::Command(command_error(error, hops))),
            };
            ended.settle(index, result, Executor::Local);
        });
        let Ended { done, again, mut later, mut here, .. } = ended;
        self.waiting.append(&mut later);
        self.here.append(&mut here);
        for index in again {
            self.stale(index);
        }
        if let Err(error) = turned {
            self.abandon(&error);
        }
        done
    }

    /// The ring of the executor on this machine is of no use any more: plain reads are left.
    fn abandon(&mut self, error: &std::io::Error) {
        log::warn!("io_uring failed, chains run by plain reads from now on: {error}");
        self.local = None;
        self.passthrough = None;
        self.queue.clear();
        let known = [&self.free, &self.here, &self.waiting];
        let is_left = |index: &usize| known.iter().all(|known| !known.contains(index));
        let left: Vec<usize> = (0..self.chains.len()).filter(is_left).collect();
        for &index in &left {
            let chain = &mut self.chains[index];
            chain.pins.clear();
            let why = "io_uring failed on this machine, and the policy allows no plain reads";
            chain.cause = Some(ReadError::Request(why));
        }
        self.here.extend(left);
    }

    /// A file has changed or has no map: the chain waits for new ones, or runs here.
    fn stale(&mut self, index: usize) {
        let chain = &mut self.chains[index];
        let hopeless = chain.files.iter().any(|file| file.refusal().is_some());
        chain.stale += 1;
        if chain.stale > self.policy.retries || hopeless {
            chain.cause = Some(ReadError::Stale);
            self.here.push(index);
            return;
        }
        chain.wait_until = Instant::now() + self.policy.patience;
        // Files that have a good map are not looked at.
        for (file, looks) in chain.files.iter().zip(&mut chain.looks) {
            if file.is_mapped() {
                *looks = u64::MAX;
            }
        }
        self.waiting.push(index);
    }

    /// Takes what the target has answered, or the local executor has read.
    fn receive(&mut self, timeout: Duration, on_done: &mut dyn FnMut(ReadCompletion<'_>)) -> usize {
        if self.local.as_ref().is_some_and(|local| local.in_flight() > 0) {
            return self.turn_local(timeout, on_done);
        }
        let passthrough = self.passthrough.as_ref();
        if passthrough.is_some_and(|passthrough| passthrough.in_flight() > 0)
            || !self.refused.is_empty()
        {
            return self.turn_passthrough(timeout, on_done);
        }
        let Some(lane) = self.lane.as_mut().filter(|lane| lane.requests_in_flight() > 0) else {
            if !timeout.is_zero() && !self.waiting.is_empty() {
                let waiting = self.waiting.iter().filter_map(|index| self.chains.get(*index));
                let waiting: Vec<&Chain> = waiting.collect();
                self.shared.wait_until(timeout, &mut || waiting.iter().any(|chain| chain.is_due()));
            }
            return 0;
        };
        lane.set_crowded(self.shared.is_crowded());
        let mut ended = Ended::new(&mut self.chains, &mut self.free, on_done);
        let received = lane.wait(timeout, &mut |completion| {
            let index = completion.tag as usize;
            let result = completion.result.map(|done| (done.data, done.dw0));
            ended.settle(index, result, Executor::Target);
        });
        let Ended { done, again, mut later, mut here, .. } = ended;
        self.waiting.append(&mut later);
        self.here.append(&mut here);
        if received.is_err() {
            self.give_up_lane();
        }
        for index in again {
            self.stale(index);
        }
        done
    }

    /// Runs the chains that the target cannot run.
    fn run_here(&mut self, on_done: &mut dyn FnMut(ReadCompletion<'_>)) -> usize {
        let here = mem::take(&mut self.here);
        let mut answer = Vec::new();
        for &index in &here {
            let chain = &mut self.chains[index];
            let cause = chain.cause.take();
            let result = match cause {
                _ if chain.function.remembers_at_target() => {
                    let function = chain.function.name().to_owned();
                    Err(ReadError::Remembers { function, cause: cause.map(Box::new) })
                }
                Some(cause) if !self.policy.fall_back => Err(cause),
                _ => self.fall_back.run(&chain.call(), &mut answer),
            };
            let (tag, stale) = (chain.tag, chain.stale);
            chain.files.clear();
            self.free.push(index);
            let result = result
                .map(|hops| (&answer[..], ReadInfo { hops, executor: Executor::FallBack, stale }));
            on_done(ReadCompletion { tag, result });
        }
        here.len()
    }
}

impl Drop for PushdownReader {
    fn drop(&mut self) {
        self.shared.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Takes what has become of chains where maps are used, and tells the application of those that are
/// over.
struct Ended<'a> {
    chains: &'a mut Vec<Chain>,
    free: &'a mut Vec<usize>,
    on_done: &'a mut dyn FnMut(ReadCompletion<'_>),
    /// How many are over.
    done: usize,
    /// Those that are stale.
    again: Vec<usize>,
    /// Those that are to be sent again later.
    later: Vec<usize>,
    /// Those of which only plain reads can tell.
    here: Vec<usize>,
}

impl<'a> Ended<'a> {
    const fn new(
        chains: &'a mut Vec<Chain>,
        free: &'a mut Vec<usize>,
        on_done: &'a mut dyn FnMut(ReadCompletion<'_>),
    ) -> Self {
        Self {
            chains,
            free,
            on_done,
            done: 0,
            again: Vec::new(),
            later: Vec::new(),
            here: Vec::new(),
        }
    }

    /// A chain has ended; `result` is the answer and the hops.
    fn settle(
        &mut self,
        index: usize,
        result: Result<(&[u8], u32), RequestError>,
        executor: Executor,
    ) {
        let Some(chain) = self.chains.get_mut(index) else { return };
        let answer = result.as_ref().map_or(&[][..], |(answer, _)| answer);
        let result = match verdict(chain, result.map(|(_, hops)| hops)) {
            Verdict::Good(hops) => Ok((answer, ReadInfo { hops, executor, stale: chain.stale })),
            Verdict::Failed(error) => Err(error),
            Verdict::Stale => return self.again.push(index),
            Verdict::Later => return self.later.push(index),
            Verdict::Here(cause) => {
                chain.cause = cause;
                return self.here.push(index);
            }
        };
        self.done += 1;
        self.free.push(index);
        chain.files.clear();
        (self.on_done)(ReadCompletion { tag: chain.tag, result });
    }
}

/// Algorithm 2: what the target says counts only if no file changed.
fn verdict(chain: &mut Chain, result: Result<u32, RequestError>) -> Verdict {
    let is = |error: &RequestError, status: Status| matches!(error, RequestError::Command(command) if command.status.same_code(status));
    if let Err(error) = &result
        && (is(error, Status::STALE_FILE_MAP) || is(error, Status::UNKNOWN_FILE))
    {
        chain.pins.iter().for_each(Pin::distrust);
        chain.pins.clear();
        return Verdict::Stale;
    }
    if let Err(error @ RequestError::Command(command)) = result
        && command.is_interrupted()
    {
        // It has answered nothing, so it does not matter what has changed meanwhile.
        chain.pins.clear();
        let Some(pause) = interrupted::pause(chain.interruptions) else {
            return Verdict::Here(Some(ReadError::Target(error.of("Pushdown"))));
        };
        chain.interruptions += 1;
        chain.wait_until = Instant::now() + pause;
        return Verdict::Later;
    }
    let gaps = chain.pins.iter().any(Pin::has_gaps);
    // All of them: each asks for its new map.
    let changed = chain.pins.drain(..).filter_map(|pin| (!pin.verify()).then_some(())).count();
    match result {
        Err(RequestError::Lost(reason)) => Verdict::Here(Some(ReadError::Target(reason.into()))),
        Err(error @ RequestError::DataDigest) => {
            Verdict::Here(Some(ReadError::Target(error.of("Pushdown"))))
        }
        _ if changed > 0 => Verdict::Stale,
        Ok(hops) => Verdict::Good(hops),
        // Holes read as zeroes, but not at the target.
        Err(RequestError::Command(error))
            if gaps && error.status.same_code(Status::READ_OUTSIDE_FILE) =>
        {
            Verdict::Here(Some(ReadError::Command(error)))
        }
        Err(RequestError::Command(error)) => Verdict::Failed(ReadError::Command(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpfof_chain::{FunctionMaps, Peers};
    use bpfof_function::Program;

    /// A chain without files, of a function that does nothing.
    fn chain() -> Chain {
        // r0 = 0; exit
        let code: [[u8; 8]; 2] = [[0xB7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
        let program = Program::parse(code.as_flattened()).expect("valid");
        let (peers, maps) = (Peers::default(), FunctionMaps::default());
        let function = StorageFunction::of_program("nothing".to_owned(), &program, peers, maps);
        let function = function.expect("it is compiled");
        let call = ReadPushdown {
            files: &[],
            first_read: FirstRead { file: 0, offset_bytes: 0, size_bytes: 512 },
            function: &function,
            scratch: &[],
            scratch_size_bytes: 0,
            answer_max_bytes: 64,
        };
        Chain::new(0, &call)
    }

    fn ended(status: Status) -> Result<u32, RequestError> {
        Err(RequestError::Command(CommandError { status, dw0: 0, dw1: 0 }))
    }

    #[test]
    fn an_interrupted_chain_is_sent_again_later_and_in_the_end_runs_here() {
        let mut chain = chain();
        for _ in 0..interrupted::RETRIES {
            let before = Instant::now();
            let verdict = verdict(&mut chain, ended(Status::COMMAND_INTERRUPTED));
            assert!(matches!(verdict, Verdict::Later));
            assert!(chain.wait_until > before);
        }
        let Verdict::Here(Some(ReadError::Target(Error::Command { source, .. }))) =
            verdict(&mut chain, ended(Status::COMMAND_INTERRUPTED))
        else {
            panic!("it is not left to plain reads")
        };
        assert!(source.is_interrupted());
    }

    #[test]
    fn what_would_end_in_the_same_way_is_not_sent_again() {
        for status in [Status::COMMAND_INTERRUPTED.with_dnr(), Status::FUNCTION_FAULT] {
            let verdict = verdict(&mut chain(), ended(status));
            assert!(matches!(verdict, Verdict::Failed(ReadError::Command(_))));
        }
    }
}
