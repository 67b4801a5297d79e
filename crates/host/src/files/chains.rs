//! The chains of a reader, each in one state from the call to the answer.

use super::call::{
    Executor, KeptCall, KeptChain, Policy, ReadCompletion, ReadError, ReadInfo, ReadPushdownMany,
};
use super::executor::{End, Failure, Member};
use super::file::{Pin, PushdownFile};
use super::flights::{FlightId, Flights};
use crate::deadline::deadline;
use crate::{CommandError, RequestError, Status, interrupted};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// The state of a chain.
#[derive(Debug)]
pub(crate) enum State {
    /// In an executor, with its files pinned.
    Running,
    /// Waits until the keeper has examined its files again, and at most until this time.
    WaitsForMaps(Instant),
    /// Waits until this time, because the target has interrupted it.
    Paused(Instant),
    /// Waits until its executor has room.
    WaitsForRoom,
    /// To be run by the fall-back, for this reason, which is never None at present.
    FallsBack(Option<ReadError>),
    /// It failed at its start, which is not reported yet.
    Failed(ReadError),
}

/// A chain, its state, and its attempts so far.
#[derive(Debug)]
pub(crate) struct Chain {
    tag: u64,
    state: State,
    kept: KeptChain,
    /// The pins of its files while it runs; None if its executor needs no maps.
    flight: Option<FlightId>,
    /// How often the keeper had examined each file when the chain was found stale.
    looks: Vec<u64>,
    stale: u32,
    /// How often it was sent again because the target had interrupted it.
    interruptions: u32,
    /// How often the answer to its vector had no room for its own answer.
    left_out: u32,
}

/// A chain that was left out this often is sent alone.
const LEFT_OUT_MAX: u32 = 2;

impl Chain {
    const fn new(tag: u64, kept: KeptChain) -> Self {
        Self {
            tag,
            state: State::WaitsForRoom,
            kept,
            flight: None,
            looks: Vec::new(),
            stale: 0,
            interruptions: 0,
            left_out: 0,
        }
    }

    /// Whether its waiting is over: its time has come, or the keeper has examined each file that had no map.
    fn is_due(&self) -> bool {
        match self.state {
            State::WaitsForMaps(until) => {
                let mut files = self.kept.files().iter().zip(&self.looks);
                Instant::now() >= until || files.all(|(file, looks)| file.looks() != *looks)
            }
            State::Paused(until) => Instant::now() >= until,
            _ => true,
        }
    }

    /// Whether it may start together with another chain.
    fn may_join(&self, other: &Self) -> bool {
        self.left_out.max(other.left_out) < LEFT_OUT_MAX && self.kept.is_of_same_call(&other.kept)
    }

    fn leave(&mut self, flights: &mut Flights) {
        if let Some(flight) = self.flight.take() {
            flights.leave(flight);
        }
    }

    /// Its files have changed or have no maps: the chain waits for new maps, or falls back. `looks` says how often the
    /// keeper had examined each file.
    fn stale(&mut self, looks: Vec<u64>, policy: &Policy) {
        let hopeless = self.kept.files().iter().any(|file| file.refusal().is_some());
        self.stale += 1;
        if self.stale > policy.retries || hopeless {
            self.state = State::FallsBack(Some(ReadError::Stale));
            return;
        }
        self.state = State::WaitsForMaps(deadline(policy.patience));
        self.looks = looks;
        // The keeper does not examine files that have a valid map, so do not wait for them.
        for (file, looks) in self.kept.files().iter().zip(&mut self.looks) {
            if file.is_mapped() {
                *looks = u64::MAX;
            }
        }
    }

    /// BPF-oF's algorithm 2: the executor's result is valid only if no file has changed. Returns a
    /// valid result; None if the chain continues in a new state.
    fn settle<'a>(
        &mut self,
        end: End<'a>,
        policy: &Policy,
        flights: &mut Flights,
    ) -> Option<Result<(&'a [u8], u32), ReadError>> {
        let looks = |flights: &Flights, flight: Option<FlightId>| {
            flight.map(|flight| flights.looks(flight).to_vec()).unwrap_or_default()
        };
        match end {
            Err(Failure::Stale) => {
                let looks = looks(flights, self.flight);
                if let Some(flight) = self.flight {
                    flights.distrust(flight);
                }
                self.leave(flights);
                self.stale(looks, policy);
                return None;
            }
            Err(Failure::Interrupted(error)) => {
                // There is no answer, so changes of the files do not matter.
                self.leave(flights);
                self.interrupted(error);
                return None;
            }
            Err(Failure::NoRoom) => {
                self.leave(flights);
                self.left_out += 1;
                self.state = State::WaitsForRoom;
                return None;
            }
            _ => {}
        }
        let gaps = self.flight.is_some_and(|flight| flights.has_gaps(flight));
        let is_outside = matches!(&end, Err(Failure::Final(ReadError::Command(error)))
            if error.status.same_code(Status::READ_OUTSIDE_FILE));
        let unchanged = self.flight.is_none_or(|flight| {
            flights.verify(flight) && !(is_outside && flights.has_grown(flight))
        });
        let looks = if unchanged { Vec::new() } else { looks(flights, self.flight) };
        self.leave(flights);
        match end {
            Err(Failure::Unable(cause)) => {
                self.state = State::FallsBack(Some(cause));
                None
            }
            _ if !unchanged => {
                self.stale(looks, policy);
                None
            }
            Ok(answer) => Some(Ok(answer)),
            // Only plain reads can read holes, as zeroes.
            Err(Failure::Final(ReadError::Command(error))) if gaps && is_outside => {
                self.state = State::FallsBack(Some(ReadError::Command(error)));
                None
            }
            Err(Failure::Final(error)) => Some(Err(error)),
            Err(Failure::Stale | Failure::Interrupted(_) | Failure::NoRoom) => None,
        }
    }

    fn interrupted(&mut self, error: CommandError) {
        self.state = match interrupted::pause(self.interruptions) {
            Some(pause) => State::Paused(Instant::now() + pause),
            None => {
                let error = RequestError::Command(error).of("Pushdown");
                State::FallsBack(Some(ReadError::Target(error)))
            }
        };
        self.interruptions += 1;
    }
}

/// The chains of a reader by their numbers, and queues of those that need work.
#[derive(Debug, Default)]
pub(crate) struct Chains {
    chains: Vec<Option<Chain>>,
    free: Vec<usize>,
    flights: Flights,
    /// Calls that have ended, kept to reuse their memory.
    spare: Vec<Arc<KeptCall>>,
    /// Chains that wait for maps, or pause.
    waiting: Vec<usize>,
    /// Chains that wait for room, in order.
    wants_room: VecDeque<usize>,
    /// Chains that fall back or have failed.
    here: Vec<usize>,
}

impl Chains {
    /// Number of chains that have not ended.
    pub(crate) fn in_flight(&self) -> usize {
        self.chains.len() - self.free.len()
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn wants_room(&self) -> bool {
        !self.wants_room.is_empty()
    }

    fn get(&self, number: usize) -> Option<&Chain> {
        self.chains.get(number)?.as_ref()
    }

    /// Whether a chain that waits for maps, or pauses, is due.
    pub(crate) fn is_due(&self) -> bool {
        self.waiting.iter().any(|number| self.get(*number).is_none_or(Chain::is_due))
    }

    /// Adds the chains of a call, with these tags, and appends their numbers to `numbers`.
    pub(crate) fn add(
        &mut self,
        tags: impl Iterator<Item = u64>,
        call: &ReadPushdownMany<'_>,
        numbers: &mut Vec<usize>,
    ) {
        let reuse = |mut spare: Arc<KeptCall>| {
            Arc::get_mut(&mut spare)?.replace(call);
            Some(spare)
        };
        let kept = self.spare.pop().and_then(reuse);
        let kept = kept.unwrap_or_else(|| Arc::new(KeptCall::new(call)));
        for (index, tag) in (0..call.entries.len()).zip(tags) {
            let chain = Some(Chain::new(tag, KeptChain::new(Arc::clone(&kept), index)));
            match self.free.pop() {
                Some(number) => {
                    self.chains[number] = chain;
                    numbers.push(number);
                }
                None => {
                    self.chains.push(chain);
                    numbers.push(self.chains.len() - 1);
                }
            }
        }
    }

    /// The call to which these chains belong. Fills `members` with their numbers and their indices in the call. None if
    /// there are no such chains.
    pub(crate) fn call(
        &self,
        numbers: &[usize],
        members: &mut Vec<Member>,
    ) -> Option<Arc<KeptCall>> {
        members.clear();
        let chains = numbers.iter().filter_map(|number| self.get(*number).zip(Some(*number)));
        members.extend(chains.map(|(chain, number)| (number, chain.kept.index())));
        let first = self.get(members.first()?.0)?;
        Some(Arc::clone(first.kept.call()))
    }

    /// Takes the next chains that wait for room and may start together, up to `most`.
    pub(crate) fn take_for_room(&mut self, most: usize, numbers: &mut Vec<usize>) {
        numbers.clear();
        while let Some(number) = self.wants_room.front().copied().filter(|_| numbers.len() < most) {
            let before = numbers.last().map(|before| (self.get(*before), self.get(number)));
            if let Some((Some(before), Some(chain))) = before
                && !before.may_join(chain)
            {
                break;
            }
            self.wants_room.pop_front();
            numbers.push(number);
        }
    }

    /// Takes the due chains out of those that wait; all of them if no keeper makes maps any more.
    pub(crate) fn take_due(&mut self, is_kept: bool) -> Vec<usize> {
        let chains = &self.chains;
        let is_due = |number: usize| chains[number].as_ref().is_none_or(Chain::is_due);
        self.waiting.extract_if(.., |number| !is_kept || is_due(*number)).collect()
    }

    /// Whether two chains may start together.
    pub(crate) fn may_join(&self, one: usize, other: usize) -> bool {
        let chains = self.get(one).zip(self.get(other));
        chains.is_some_and(|(one, other)| one.may_join(other))
    }

    /// Pins the files of chains that are about to start. None if a file has no map: then the chains wait, or fall back.
    pub(crate) fn pin(
        &mut self,
        numbers: &[usize],
        files: &[PushdownFile],
        policy: &Policy,
    ) -> Option<FlightId> {
        let looks = match self.flights.begin(files) {
            Ok(flight) => return Some(flight),
            Err(looks) => looks,
        };
        for number in numbers {
            if let Some(chain) = &mut self.chains[*number] {
                chain.stale(looks.clone(), policy);
                self.file(*number);
            }
        }
        None
    }

    /// The pins of chains that are about to start.
    pub(crate) fn pins(&self, flight: Option<FlightId>) -> &[Pin] {
        flight.map_or(&[], |flight| self.flights.pins(flight))
    }

    /// Releases the pins of chains that do not start after all, because pins delay writers of the files.
    pub(crate) fn unpin(&mut self, flight: Option<FlightId>) {
        if let Some(flight) = flight {
            self.flights.leave(flight);
        }
    }

    /// An executor has started chains, which also end together.
    pub(crate) fn started(&mut self, numbers: &[usize], flight: Option<FlightId>) {
        if let Some(flight) = flight {
            self.flights.started(flight, numbers.len());
        }
        for number in numbers {
            if let Some(chain) = &mut self.chains[*number] {
                chain.state = State::Running;
                chain.flight = flight;
            }
        }
    }

    /// Queues chains for which the executor has no room; at the front if `are_first`.
    pub(crate) fn no_room(&mut self, numbers: &[usize], are_first: bool) {
        if are_first {
            numbers.iter().rev().for_each(|number| self.wants_room.push_front(*number));
        } else {
            self.wants_room.extend(numbers);
        }
        for number in numbers {
            if let Some(chain) = &mut self.chains[*number] {
                chain.state = State::WaitsForRoom;
            }
        }
    }

    /// Marks chains that can only run over plain reads.
    pub(crate) fn fall_back(&mut self, numbers: &[usize], cause: &'static str) {
        for number in numbers {
            if let Some(chain) = &mut self.chains[*number] {
                chain.leave(&mut self.flights);
                chain.state = State::FallsBack(Some(ReadError::Request(cause)));
                self.here.push(*number);
            }
        }
    }

    /// Passes all running chains to the fall-back, because their executor is no longer usable.
    pub(crate) fn abandon(&mut self) {
        let why = "the executor of the chain has failed, and the policy allows no plain reads";
        for number in 0..self.chains.len() {
            if self.get(number).is_some_and(|chain| matches!(chain.state, State::Running)) {
                self.fall_back(&[number], why);
            }
        }
    }

    /// A chain has failed at its start.
    pub(crate) fn not_started(
        &mut self,
        number: usize,
        flight: Option<FlightId>,
        failure: Failure,
        policy: &Policy,
    ) {
        let Some(chain) = &mut self.chains[number] else { return };
        chain.flight = flight;
        if let Some(Err(error)) = chain.settle(Err(failure), policy, &mut self.flights) {
            chain.state = State::Failed(error);
        }
        self.file(number);
    }

    /// An executor has ended a chain. Reports it to the application, unless it is tried again.
    pub(crate) fn ended(
        &mut self,
        number: usize,
        end: End<'_>,
        executor: Executor,
        policy: &Policy,
        on_done: &mut dyn FnMut(ReadCompletion<'_>),
    ) {
        let Some(Some(chain)) = self.chains.get_mut(number) else { return };
        let Some(result) = chain.settle(end, policy, &mut self.flights) else {
            return self.file(number);
        };
        let stale = chain.stale;
        let result = result.map(|(answer, hops)| (answer, ReadInfo { hops, executor, stale }));
        if let Some(tag) = self.remove(number) {
            on_done(ReadCompletion { tag, result });
        }
    }

    /// Removes a chain that has ended, and frees its number and files. Returns its tag.
    fn remove(&mut self, number: usize) -> Option<u64> {
        let mut chain = self.chains[number].take()?;
        chain.leave(&mut self.flights);
        self.spare.extend(chain.kept.into_last());
        self.free.push(number);
        Some(chain.tag)
    }

    /// Takes the chains that fall back or have failed. Ends and reports those that have failed or must not run over
    /// plain reads.
    pub(crate) fn take_here(
        &mut self,
        policy: &Policy,
        on_done: &mut dyn FnMut(ReadCompletion<'_>),
    ) -> Vec<usize> {
        let mut here = std::mem::take(&mut self.here);
        here.retain(|number| {
            let Some(chain) = &mut self.chains[*number] else { return false };
            let function = chain.kept.function();
            let error = match std::mem::replace(&mut chain.state, State::Running) {
                State::Failed(error) => error,
                State::FallsBack(cause) if function.remembers_at_target() => {
                    let function = function.name().to_owned();
                    // Only a read of a hole falls back with the target's own answer.
                    let cause = cause.filter(|cause| !matches!(cause, ReadError::Command(_)));
                    ReadError::Remembers { function, cause: cause.map(Box::new) }
                }
                // A whole namespace is no file that plain reads could read.
                State::FallsBack(Some(cause))
                    if !policy.fall_back || chain.kept.has_whole_namespace() =>
                {
                    cause
                }
                _ => return true,
            };
            if let Some(tag) = self.remove(*number) {
                on_done(ReadCompletion { tag, result: Err(error) });
            }
            false
        });
        here
    }

    /// Puts a chain into the queue for its state.
    fn file(&mut self, number: usize) {
        let Some(chain) = self.get(number) else { return };
        match chain.state {
            State::WaitsForMaps(_) | State::Paused(_) => self.waiting.push(number),
            State::FallsBack(_) | State::Failed(_) => self.here.push(number),
            State::WaitsForRoom => self.wants_room.push_back(number),
            State::Running => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::files::{FirstRead, ReadEntry, StorageFunction};
    use bpfof_chain::{FunctionMaps, Peers};
    use bpfof_function::Program;

    /// A function that does nothing.
    fn function() -> StorageFunction {
        // r0 = 0; exit
        let code: [[u8; 8]; 2] = [[0xB7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
        let program = Program::parse(code.as_flattened()).expect("valid");
        let (peers, maps) = (Peers::default(), FunctionMaps::default());
        let function = StorageFunction::of_program("nothing".to_owned(), &program, peers, maps);
        function.expect("it is compiled")
    }

    /// Passes a call of one chain without files to `with`.
    fn with_call<T>(
        function: &StorageFunction,
        with: impl FnOnce(&ReadPushdownMany<'_>) -> T,
    ) -> T {
        let first_read = FirstRead { file: 0, offset_bytes: 0, size_bytes: 512 };
        with(&ReadPushdownMany {
            files: &[],
            function,
            entries: &[ReadEntry { first_read, scratch: &[] }],
            scratch_size_bytes: 0,
            answer_max_bytes: 64,
        })
    }

    fn chain() -> Chain {
        let kept = with_call(&function(), |call| Arc::new(KeptCall::new(call)));
        Chain::new(0, KeptChain::new(kept, 0))
    }

    fn settle<'a>(chain: &mut Chain, end: End<'a>) -> Option<Result<(&'a [u8], u32), ReadError>> {
        chain.settle(end, &Policy::default(), &mut Flights::default())
    }

    fn ended(status: Status) -> End<'static> {
        Err(Failure::of_command(CommandError { status, dw0: 0, dw1: 0 }))
    }

    #[test]
    fn an_interrupted_chain_is_sent_again_later_and_in_the_end_runs_here() {
        let mut chain = chain();
        for _ in 0..interrupted::RETRIES {
            let before = Instant::now();
            assert!(settle(&mut chain, ended(Status::COMMAND_INTERRUPTED)).is_none());
            assert!(matches!(chain.state, State::Paused(until) if until > before));
        }
        assert!(settle(&mut chain, ended(Status::COMMAND_INTERRUPTED)).is_none());
        let State::FallsBack(Some(ReadError::Target(Error::Command { source, .. }))) = chain.state
        else {
            panic!("it is not left to plain reads")
        };
        assert!(source.is_interrupted());
    }

    #[test]
    fn a_function_is_not_kept_for_chains_that_have_ended() {
        let (mut chains, mut numbers) = (Chains::default(), Vec::new());
        let function = function();
        let left = Arc::downgrade(function.local_function());
        for _ in 0..2 {
            numbers.clear();
            with_call(&function, |call| chains.add(0.., call, &mut numbers));
            assert_eq!(chains.remove(numbers[0]), Some(0));
        }
        drop(function);
        assert!(left.upgrade().is_none() && chains.spare.len() == 1);
    }

    #[test]
    fn errors_of_function_or_data_are_not_retried() {
        for status in [Status::FUNCTION_FAULT, Status::READ_OUTSIDE_FILE, Status::ANSWER_TOO_LONG] {
            let end = settle(&mut chain(), ended(status)).map(|end| end.map(|_| ()));
            assert!(matches!(end, Some(Err(ReadError::Command(_)))), "{status}");
        }
    }

    #[test]
    fn errors_of_the_target_fall_back_to_plain_reads() {
        for status in [
            Status::COMMAND_INTERRUPTED.with_dnr(),
            Status::UNKNOWN_FUNCTION,
            Status::INVALID_NAMESPACE.with_dnr(),
            Status::ANA_INACCESSIBLE,
            Status::INTERNAL_ERROR,
            Status::OPERATION_DENIED.with_dnr(),
            Status::RESOURCE_LIMIT,
            Status::UNRECOVERED_READ_ERROR.with_dnr(),
        ] {
            let mut chain = chain();
            assert!(settle(&mut chain, ended(status)).is_none(), "{status}");
            let State::FallsBack(Some(ReadError::Target(Error::Command { source, .. }))) =
                chain.state
            else {
                panic!("{status} is not left to plain reads")
            };
            assert_eq!(source.status, status);
        }
    }
}
