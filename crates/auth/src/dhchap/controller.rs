//! The controller's side of the authentication of one queue (NVMe Base 2.0 §8.13).

use super::algorithms::Authentication;
use super::group::{Group, KeyPair};
use super::message::{
    self, Challenge, ControllerMessage, Failure, FailureReason, HostMessage, Negotiate, Reply,
    Success1,
};
use super::refusal::Refusal;
use super::work::{ControllerConfig, Done, Run, Verification, Verified, Work, WorkResult};
use crate::hash::Hash;
use crate::secret::Secret;
use std::mem;
use std::sync::Arc;
use thiserror::Error;

/// Longest run: two minutes, in microseconds (NVMe Base 2.0 §8.13). It applies to hosts without a keep-alive timeout. A
/// longer keep-alive timeout does not extend it, because an unauthenticated host chooses that.
pub const RUN_MAX_US: u64 = 120_000_000;

/// One of this many runs must succeed. A host may begin a new run at any time, but each run costs a power of the group
/// before the host has proved anything.
const RUNS_MAX: u32 = 8;

/// What to do after an Authentication Send.
#[derive(Debug)]
pub enum Step {
    /// Complete the command with success.
    Complete,
    /// Run this on a helper thread, give the result to [`ControllerAuth::completed`], and only then complete the
    /// command, as its result says.
    Compute(Work),
    /// Complete the command with success: the queue is authenticated, and takes other commands.
    Authenticated(Authentication),
    /// Complete the command with success: the run has failed. The next Authentication Receive tells the host. Log it.
    Refused(Refusal),
    /// Complete the command with success, then close the connection: the host has given up, for this
    /// reason. Log it.
    HostRefused(FailureReason),
}

/// What to do after the answer to an Authentication Receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Wait for the host's next message.
    Continue,
    /// The queue is authenticated, and takes other commands.
    Authenticated(Authentication),
    /// Close the connection once the answer has left: the run has failed. Log it, if no [`Step::Refused`] has reported
    /// it before.
    Close(Refusal),
}

/// The answer to an Authentication Receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The data, at most as long as the host allowed. It has no padding.
    pub message: Vec<u8>,
    /// What to do next.
    pub then: Then,
}

/// An Authentication Receive that allows less data than the message has. Refuse the command with Invalid Field; the
/// message stays due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("Authentication Receive allows {allowed_bytes} bytes; the message has {needed_bytes}")]
pub struct AllocationTooSmall {
    /// Length of the message in bytes.
    pub needed_bytes: usize,
    /// AL of the command in bytes.
    pub allowed_bytes: u32,
}

#[derive(Debug)]
enum State {
    /// No run is in progress.
    Idle,
    /// A key pair is being made for the Challenge.
    MakingPair { work: u64, run: Run },
    /// The host must fetch the Challenge.
    ChallengeDue { run: Run, pair: KeyPair },
    /// The host must answer the Challenge.
    ReplyDue { run: Run, pair: KeyPair },
    /// The host's answer is being checked.
    Verifying { work: u64, hash: Hash, group: Group },
    /// The host must fetch Success1.
    Success1Due { agreed: Authentication, r2: Option<Vec<u8>> },
    /// The host must check the controller's response.
    Success2Due { agreed: Authentication },
    /// The host must fetch Failure1, as often as it likes.
    Failed(Refusal),
}

impl State {
    /// What the host must do next.
    const fn due(&self) -> &'static str {
        match self {
            Self::Idle => "Negotiate",
            Self::MakingPair { .. } | Self::Verifying { .. } => {
                "no command before the last one completes"
            }
            Self::ChallengeDue { .. } => "fetching Challenge",
            Self::ReplyDue { .. } => "Reply",
            Self::Success1Due { .. } => "fetching Success1",
            Self::Success2Due { .. } => "Success2",
            Self::Failed(_) => "fetching Failure1",
        }
    }
}

/// The controller's side of one queue.
///
/// The data of each Authentication Send goes to [`send`](Self::send), each Authentication Receive to
/// [`receive`](Self::receive); the caller must refuse all other commands until there is an
/// [`authentication`](Self::authentication). A run that fails makes the queue unauthenticated even if it was
/// authenticated before, and is the last one: the connection ends.
#[derive(Debug)]
pub struct ControllerAuth {
    config: Arc<ControllerConfig>,
    state: State,
    /// T_ID of the run, or of the last message if there is none.
    t_id: u16,
    /// The sequence number of the last Challenge; 0 before the first.
    s1: u32,
    /// When the last run began; before the first success, when the queue was connected.
    began_us: u64,
    /// Runs that have begun since the last successful one.
    runs: u32,
    current: Option<Authentication>,
}

impl ControllerAuth {
    /// A queue that has just been connected, at `now_us`.
    #[must_use]
    pub const fn new(config: Arc<ControllerConfig>, now_us: u64) -> Self {
        let began_us = now_us;
        Self { config, state: State::Idle, t_id: 0, s1: 0, began_us, runs: 0, current: None }
    }

    /// The current authentication: none before the first run has succeeded, and after one has failed. It stays while
    /// the queue is being authenticated again.
    #[must_use]
    pub const fn authentication(&self) -> Option<Authentication> {
        self.current
    }

    /// Checks Replies from now on with another configuration for the same names, because the host's secrets have
    /// changed. An existing authentication stays valid.
    pub fn set_config(&mut self, config: Arc<ControllerConfig>) {
        self.config = config;
    }

    /// When the run must be over, on the clock of `now_us`: `kato_ms`, the keep-alive timeout, after it began, or two
    /// minutes if that is 0 or longer. Then close the connection. None if no run is in progress.
    ///
    /// The first run begins when the queue is connected. Negotiate does not restart its time, so that an
    /// unauthenticated host cannot keep a queue.
    #[must_use]
    pub const fn deadline_us(&self, kato_ms: u32) -> Option<u64> {
        if self.is_at_rest() {
            return None;
        }
        let limit_us = match kato_ms as u64 * 1000 {
            kato_us @ 1..RUN_MAX_US => kato_us,
            _ => RUN_MAX_US,
        };
        Some(self.began_us.saturating_add(limit_us))
    }

    /// Whether the queue is authenticated, and no run is in progress.
    const fn is_at_rest(&self) -> bool {
        self.current.is_some() && matches!(self.state, State::Idle)
    }

    /// Takes the data of an Authentication Send that came at `now_us`.
    pub fn send(&mut self, data: &[u8], now_us: u64) -> Step {
        if let State::Failed(refusal) = self.state {
            return Step::Refused(refusal);
        }
        if self.is_at_rest() {
            self.began_us = now_us;
        }
        if matches!(self.state, State::Idle) || message::is_negotiate(data) {
            self.t_id = message::transaction(data).unwrap_or_default();
        }
        self.accept(data).unwrap_or_else(|refusal| self.refuse(refusal))
    }

    fn accept(&mut self, data: &[u8]) -> Result<Step, Refusal> {
        let message = HostMessage::parse(data)?;
        let (name, due) = (message.name(), self.state.due());
        match (mem::replace(&mut self.state, State::Idle), message) {
            (State::MakingPair { .. } | State::Verifying { .. }, _) => {
                Err(Refusal::OutOfOrder { message: name, due })
            }
            (_, HostMessage::Negotiate(negotiate)) => {
                let run = self.choose(&negotiate)?;
                Ok(self.challenge(run))
            }
            (State::ReplyDue { run, pair }, HostMessage::Reply(reply)) => {
                self.check_transaction(name, reply.t_id)?;
                self.reply(run, pair, reply)
            }
            (State::Success2Due { agreed }, HostMessage::Success2(success)) => {
                self.check_transaction(name, success.t_id)?;
                Ok(Step::Authenticated(self.succeed(agreed)))
            }
            (
                State::ChallengeDue { .. }
                | State::ReplyDue { .. }
                | State::Success1Due { .. }
                | State::Success2Due { .. },
                HostMessage::Failure2(failure),
            ) => {
                self.check_transaction(name, failure.t_id)?;
                let _ = self.refuse(Refusal::GivenUp(failure.reason));
                Ok(Step::HostRefused(failure.reason))
            }
            _ => Err(Refusal::OutOfOrder { message: name, due }),
        }
    }

    /// Continues with the result of a [`Step::Compute`]. The returned step is for the Authentication Send that led to
    /// it, and never another [`Step::Compute`].
    pub fn completed(&mut self, done: Done) -> Step {
        match self.go_on(done) {
            Ok(()) => Step::Complete,
            Err(refusal) => self.refuse(refusal),
        }
    }

    fn go_on(&mut self, done: Done) -> Result<(), Refusal> {
        self.state = match (mem::replace(&mut self.state, State::Idle), done.result) {
            (State::MakingPair { work, run }, WorkResult::Pair(pair)) if work == done.id => {
                State::ChallengeDue { run, pair: pair? }
            }
            (State::Verifying { work, hash, group }, WorkResult::Verified(verdict))
                if work == done.id =>
            {
                let Verified { host_key, r2 } = verdict?;
                let agreed = Authentication { hash, group, mutual: r2.is_some(), host_key };
                State::Success1Due { agreed, r2 }
            }
            (State::Failed(refusal), _) => return Err(refusal),
            _ => return Err(Refusal::ForeignWork),
        };
        Ok(())
    }

    /// Answers an Authentication Receive that allows `allocation_bytes` of data (AL).
    ///
    /// # Errors
    /// The message that is due is longer than that. It stays due.
    pub fn receive(&mut self, allocation_bytes: u32) -> Result<Answer, AllocationTooSmall> {
        let message = match &self.state {
            State::ChallengeDue { run, pair } => ControllerMessage::Challenge(Challenge {
                t_id: self.t_id,
                hash_id: run.hash.id(),
                group_id: run.group.id(),
                s1: run.s1,
                c1: run.c1.clone(),
                value: pair.value().to_vec(),
            }),
            State::Success1Due { agreed, r2 } => ControllerMessage::Success1(Success1 {
                t_id: self.t_id,
                hash_bytes: agreed.hash.length_bytes() as u8,
                r2: r2.clone(),
            }),
            State::Failed(refusal) => self.failure(*refusal),
            other => {
                let message = "Authentication Receive";
                let refusal = Refusal::OutOfOrder { message, due: other.due() };
                let _ = self.refuse(refusal);
                self.failure(refusal)
            }
        };
        let message = message.to_bytes();
        if message.len() > allocation_bytes as usize {
            let needed_bytes = message.len();
            return Err(AllocationTooSmall { needed_bytes, allowed_bytes: allocation_bytes });
        }
        let then = match mem::replace(&mut self.state, State::Idle) {
            State::ChallengeDue { run, pair } => {
                self.state = State::ReplyDue { run, pair };
                Then::Continue
            }
            State::Success1Due { agreed, .. } if agreed.mutual => {
                self.state = State::Success2Due { agreed };
                Then::Continue
            }
            State::Success1Due { agreed, .. } => Then::Authenticated(self.succeed(agreed)),
            State::Failed(refusal) => {
                self.state = State::Failed(refusal);
                Then::Close(refusal)
            }
            // The state was set to Failed above.
            _ => Then::Continue,
        };
        Ok(Answer { message, then })
    }

    /// The Failure1 of a refusal.
    const fn failure(&self, refusal: Refusal) -> ControllerMessage {
        ControllerMessage::Failure1(Failure { t_id: self.t_id, reason: refusal.reason() })
    }

    /// Ends the run with a failure, and with it any earlier authentication of the queue.
    fn refuse(&mut self, refusal: Refusal) -> Step {
        self.state = State::Failed(refusal);
        self.current = None;
        Step::Refused(refusal)
    }

    /// Ends the run with success.
    const fn succeed(&mut self, agreed: Authentication) -> Authentication {
        self.current = Some(agreed);
        self.runs = 0;
        agreed
    }

    const fn check_transaction(&self, message: &'static str, found: u16) -> Result<(), Refusal> {
        if found == self.t_id {
            Ok(())
        } else {
            Err(Refusal::OtherTransaction { message, expected: self.t_id, found })
        }
    }

    /// Chooses the hash and the group of a run, and makes its challenge.
    fn choose(&mut self, negotiate: &Negotiate) -> Result<Run, Refusal> {
        self.runs += 1;
        if self.runs > RUNS_MAX {
            return Err(Refusal::TooManyRuns(RUNS_MAX));
        }
        if negotiate.sc_c != 0 {
            return Err(Refusal::Concatenation(negotiate.sc_c));
        }
        let offer = negotiate.offer.as_ref().ok_or(Refusal::NoProtocol)?;
        let hash = self.config.algorithms.choose_hash(offer).ok_or(Refusal::NoHash)?;
        let group = self.config.algorithms.choose_group(offer).ok_or(Refusal::NoGroup)?;
        if self.s1 == 0 {
            let random = Secret::random(4)?;
            self.s1 = random.expose().iter().fold(0, |sum, &byte| sum << 8 | u32::from(byte));
        }
        // 0 is not a sequence number.
        self.s1 = self.s1.checked_add(1).unwrap_or(1);
        let c1 = Secret::random(hash.length_bytes())?.expose().to_vec();
        Ok(Run { t_id: negotiate.t_id, hash, group, s1: self.s1, c1 })
    }

    /// Starts making a key pair for the Challenge of a run.
    fn challenge(&mut self, run: Run) -> Step {
        let work = Work::pair(run.group);
        let nothing_to_do = run.group == Group::Null;
        self.state = State::MakingPair { work: work.id(), run };
        if nothing_to_do { self.completed(work.run()) } else { Step::Compute(work) }
    }

    /// Starts checking the Reply to a run's Challenge.
    fn reply(&mut self, run: Run, pair: KeyPair, reply: Reply) -> Result<Step, Refusal> {
        let (hash, group) = (run.hash, run.group);
        let found_bytes = reply.r1.len();
        if found_bytes != hash.length_bytes() {
            return Err(Refusal::HashLength { message: "Reply", hash, found_bytes });
        }
        let config = Arc::clone(&self.config);
        let work = Work::verify(Verification { config, run, pair, reply });
        self.state = State::Verifying { work: work.id(), hash, group };
        Ok(Step::Compute(work))
    }
}
