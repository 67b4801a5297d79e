//! The chains of a reader, each in one state from the call to the answer.

use super::call::{Executor, KeptCall, Policy, ReadCompletion, ReadError, ReadInfo, ReadPushdown};
use super::executor::{End, Failure};
use super::file::{Pin, PushdownFile};
use crate::{RequestError, Status, interrupted};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Where a chain is.
#[derive(Debug)]
pub(crate) enum State {
    /// It has ended, and its slot is free.
    Free,
    /// In an executor, with the pins of its files.
    Running,
    /// Until its files were looked at again, and at most until this time.
    WaitsForMaps(Instant),
    /// Until this time, because the target has interrupted it.
    Paused(Instant),
    /// Until its executor has room.
    WaitsForRoom,
    /// For the fall-back, because of this; None if it reads a hole of a file.
    FallsBack(Option<ReadError>),
    /// It has failed as it started, which is yet to be reported.
    Failed(ReadError),
}

/// A call, its state, and what was tried.
#[derive(Debug)]
pub(crate) struct Chain {
    tag: u64,
    state: State,
    call: Arc<KeptCall>,
    pins: Vec<Pin>,
    /// How often the keeper had looked at each file when the chain was found stale.
    looks: Vec<u64>,
    stale: u32,
    /// How often it was sent again because the target had interrupted it.
    interruptions: u32,
}

impl Chain {
    fn new(tag: u64, call: &ReadPushdown<'_>) -> Self {
        Self {
            tag,
            state: State::WaitsForRoom,
            call: Arc::new(KeptCall::new(call)),
            pins: Vec::new(),
            looks: Vec::new(),
            stale: 0,
            interruptions: 0,
        }
    }

    /// Takes another call, in the memory of one that has ended.
    fn renew(&mut self, tag: u64, call: &ReadPushdown<'_>) {
        match Arc::get_mut(&mut self.call) {
            Some(kept) => kept.replace(call),
            None => self.call = Arc::new(KeptCall::new(call)),
        }
        self.tag = tag;
        self.looks.clear();
        (self.stale, self.interruptions) = (0, 0);
    }

    /// The end: its files may be closed.
    fn free(&mut self) {
        self.state = State::Free;
        self.pins.clear();
        if let Some(kept) = Arc::get_mut(&mut self.call) {
            kept.files.clear();
        }
    }

    /// Whether what it waits for has come: a time, or a look at each file that had no map.
    fn is_due(&self) -> bool {
        match self.state {
            State::WaitsForMaps(until) => {
                let mut files = self.call.files.iter().zip(&self.looks);
                Instant::now() >= until || files.all(|(file, looks)| file.looks() != *looks)
            }
            State::Paused(until) => Instant::now() >= until,
            _ => true,
        }
    }

    /// BPF-oF's algorithm 1: pins all files that need maps. False if one has no map, which it then
    /// asks for.
    pub(crate) fn pin(&mut self) -> bool {
        self.looks.clear();
        self.looks.extend(self.call.files.iter().map(PushdownFile::looks));
        self.pins.clear();
        let mapped = || self.call.files.iter().filter(|file| !file.is_whole_namespace());
        // All of them, so that each that has no map asks for one.
        self.pins.extend(mapped().filter_map(PushdownFile::begin));
        let all = self.pins.len() == mapped().count();
        if !all {
            self.pins.clear();
        }
        all
    }

    pub(crate) const fn call(&self) -> &Arc<KeptCall> {
        &self.call
    }

    pub(crate) fn pins(&self) -> &[Pin] {
        &self.pins
    }

    /// Its files have changed or have no maps: it waits for new ones, or falls back.
    fn stale(&mut self, policy: &Policy) {
        let hopeless = self.call.files.iter().any(|file| file.refusal().is_some());
        self.stale += 1;
        if self.stale > policy.retries || hopeless {
            self.state = State::FallsBack(Some(ReadError::Stale));
            return;
        }
        self.state = State::WaitsForMaps(Instant::now() + policy.patience);
        // Files that have a good map are not looked at.
        for (file, looks) in self.call.files.iter().zip(&mut self.looks) {
            if file.is_mapped() {
                *looks = u64::MAX;
            }
        }
    }

    /// BPF-oF's algorithm 2: an executor's end counts only if no file has changed. Returns the end
    /// that counts; None if the chain goes on, in its new state.
    fn settle<'a>(
        &mut self,
        end: End<'a>,
        policy: &Policy,
    ) -> Option<Result<(&'a [u8], u32), ReadError>> {
        match end {
            Err(Failure::Stale) => {
                self.pins.iter().for_each(Pin::distrust);
                self.pins.clear();
                self.stale(policy);
                return None;
            }
            Err(Failure::Interrupted(error)) => {
                // It has answered nothing, so it does not matter what has changed meanwhile.
                self.pins.clear();
                self.state = match interrupted::pause(self.interruptions) {
                    Some(pause) => State::Paused(Instant::now() + pause),
                    None => {
                        let error = RequestError::Command(error).of("Pushdown");
                        State::FallsBack(Some(ReadError::Target(error)))
                    }
                };
                self.interruptions += 1;
                return None;
            }
            _ => {}
        }
        let gaps = self.pins.iter().any(Pin::has_gaps);
        // All of them: each asks for its new map.
        let changed = self.pins.drain(..).filter_map(|pin| (!pin.verify()).then_some(())).count();
        match end {
            Err(Failure::Unable(cause)) => {
                self.state = State::FallsBack(Some(cause));
                None
            }
            _ if changed > 0 => {
                self.stale(policy);
                None
            }
            Ok(answer) => Some(Ok(answer)),
            // Holes read as zeroes, but not at the target.
            Err(Failure::Final(ReadError::Command(error)))
                if gaps && error.status.same_code(Status::READ_OUTSIDE_FILE) =>
            {
                self.state = State::FallsBack(Some(ReadError::Command(error)));
                None
            }
            Err(Failure::Final(error)) => Some(Err(error)),
            Err(Failure::Stale | Failure::Interrupted(_)) => None,
        }
    }
}

/// The chains of a reader by their numbers, and what is to be done with them.
#[derive(Debug, Default)]
pub(crate) struct Chains {
    chains: Vec<Chain>,
    free: Vec<usize>,
    /// Those that wait for maps, or pause.
    waiting: Vec<usize>,
    /// Those that wait for room, in order.
    wants_room: VecDeque<usize>,
    /// Those that fall back or have failed.
    here: Vec<usize>,
}

impl Chains {
    /// Chains that have not ended.
    pub(crate) fn in_flight(&self) -> usize {
        self.chains.len() - self.free.len()
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn wants_room(&self) -> bool {
        !self.wants_room.is_empty()
    }

    /// Whether a chain that waits for maps, or pauses, is to be started.
    pub(crate) fn is_due(&self) -> bool {
        self.waiting.iter().any(|number| self.chains[*number].is_due())
    }

    /// Takes a call; the number of its chain.
    pub(crate) fn add(&mut self, tag: u64, call: &ReadPushdown<'_>) -> usize {
        match self.free.pop() {
            Some(number) => {
                self.chains[number].renew(tag, call);
                number
            }
            None => {
                self.chains.push(Chain::new(tag, call));
                self.chains.len() - 1
            }
        }
    }

    pub(crate) fn get_mut(&mut self, number: usize) -> &mut Chain {
        &mut self.chains[number]
    }

    /// The next chain that waited for room.
    pub(crate) fn next_for_room(&mut self) -> Option<usize> {
        self.wants_room.pop_front()
    }

    /// Takes those that are due out of the chains that wait; all if nobody keeps their maps.
    pub(crate) fn take_due(&mut self, is_kept: bool) -> Vec<usize> {
        let chains = &self.chains;
        self.waiting.extract_if(.., |number| !is_kept || chains[*number].is_due()).collect()
    }

    /// An executor has taken a chain.
    pub(crate) fn started(&mut self, number: usize) {
        self.chains[number].state = State::Running;
    }

    /// An executor has no room for a chain.
    pub(crate) fn no_room(&mut self, number: usize, is_first: bool) {
        let chain = &mut self.chains[number];
        // Pins hold up who wants to change a file.
        chain.pins.clear();
        chain.state = State::WaitsForRoom;
        match is_first {
            true => self.wants_room.push_front(number),
            false => self.wants_room.push_back(number),
        }
    }

    /// A chain could not be pinned.
    pub(crate) fn stale(&mut self, number: usize, policy: &Policy) {
        self.chains[number].stale(policy);
        self.file(number);
    }

    /// A chain can only run over plain reads.
    pub(crate) fn fall_back(&mut self, number: usize, cause: ReadError) {
        let chain = &mut self.chains[number];
        chain.pins.clear();
        chain.state = State::FallsBack(Some(cause));
        self.here.push(number);
    }

    /// Those that were in an executor that is of no further use.
    pub(crate) fn abandon(&mut self) {
        for number in 0..self.chains.len() {
            if matches!(self.chains[number].state, State::Running) {
                let why = "io_uring failed on this machine, and the policy allows no plain reads";
                self.fall_back(number, ReadError::Request(why));
            }
        }
    }

    /// A chain has ended as it started, for which there is no answer.
    pub(crate) fn not_started(&mut self, number: usize, failure: Failure, policy: &Policy) {
        let chain = &mut self.chains[number];
        if let Some(Err(error)) = chain.settle(Err(failure), policy) {
            chain.state = State::Failed(error);
        }
        self.file(number);
    }

    /// An executor has ended a chain. The application is told if that is its end.
    pub(crate) fn ended(
        &mut self,
        number: usize,
        end: End<'_>,
        executor: Executor,
        policy: &Policy,
        on_done: &mut dyn FnMut(ReadCompletion<'_>),
    ) {
        let Some(chain) = self.chains.get_mut(number) else { return };
        let Some(result) = chain.settle(end, policy) else { return self.file(number) };
        let stale = chain.stale;
        let result = result.map(|(answer, hops)| (answer, ReadInfo { hops, executor, stale }));
        let tag = chain.tag;
        chain.free();
        self.free.push(number);
        on_done(ReadCompletion { tag, result });
    }

    /// Takes the chains that fall back or have failed. Those that must not run here end.
    pub(crate) fn take_here(
        &mut self,
        policy: &Policy,
        on_done: &mut dyn FnMut(ReadCompletion<'_>),
    ) -> Vec<usize> {
        let mut here = std::mem::take(&mut self.here);
        here.retain(|number| {
            let chain = &mut self.chains[*number];
            let error = match std::mem::replace(&mut chain.state, State::Running) {
                State::Failed(error) => error,
                State::FallsBack(cause) if chain.call.function.remembers_at_target() => {
                    let function = chain.call.function.name().to_owned();
                    ReadError::Remembers { function, cause: cause.map(Box::new) }
                }
                State::FallsBack(Some(cause)) if !policy.fall_back => cause,
                _ => return true,
            };
            let tag = chain.tag;
            chain.free();
            self.free.push(*number);
            on_done(ReadCompletion { tag, result: Err(error) });
            false
        });
        here
    }

    /// Puts a chain where its state belongs.
    fn file(&mut self, number: usize) {
        match self.chains[number].state {
            State::WaitsForMaps(_) | State::Paused(_) => self.waiting.push(number),
            State::FallsBack(_) | State::Failed(_) => self.here.push(number),
            State::WaitsForRoom => self.wants_room.push_back(number),
            State::Free | State::Running => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{FirstRead, StorageFunction};
    use crate::{CommandError, Error};
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

    fn ended(status: Status) -> End<'static> {
        Err(Failure::of_command(CommandError { status, dw0: 0, dw1: 0 }))
    }

    #[test]
    fn an_interrupted_chain_is_sent_again_later_and_in_the_end_runs_here() {
        let mut chain = chain();
        for _ in 0..interrupted::RETRIES {
            let before = Instant::now();
            assert!(chain.settle(ended(Status::COMMAND_INTERRUPTED), &Policy::default()).is_none());
            assert!(matches!(chain.state, State::Paused(until) if until > before));
        }
        assert!(chain.settle(ended(Status::COMMAND_INTERRUPTED), &Policy::default()).is_none());
        let State::FallsBack(Some(ReadError::Target(Error::Command { source, .. }))) = chain.state
        else {
            panic!("it is not left to plain reads")
        };
        assert!(source.is_interrupted());
    }

    #[test]
    fn what_would_end_in_the_same_way_is_not_sent_again() {
        for status in [Status::COMMAND_INTERRUPTED.with_dnr(), Status::FUNCTION_FAULT] {
            let end = chain().settle(ended(status), &Policy::default()).map(|end| end.map(|_| ()));
            assert!(matches!(end, Some(Err(ReadError::Command(_)))));
        }
    }
}
