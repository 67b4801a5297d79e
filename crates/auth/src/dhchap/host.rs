//! The host's side of the authentication of one queue (NVMe Base 2.0 §8.13).

use super::algorithms::{Algorithms, Authentication};
use super::group::KeyPair;
use super::message::{
    Challenge, ControllerMessage, Failure, FailureReason, HostMessage, Negotiate, Reply, Success1,
    Success2,
};
use super::refusal::Refusal;
use super::response::Question;
use crate::dhchap_key::DhchapKey;
use crate::hash::Hash;
use crate::names::Names;
use crate::secret::Secret;
use std::mem;
use std::sync::Arc;
use thiserror::Error;

/// The length that a host's Authentication Receive should allow (AL), in bytes: more than any message has.
pub const RECEIVE_BYTES: u32 = 4096;

/// A host's configuration for one controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostConfig {
    /// NQNs of the host and of the subsystem.
    pub names: Names,
    /// The host's secret, transformed for its NQN.
    pub host_key: Secret,
    /// The controller's secret, transformed for the NQN of the subsystem, if it must be
    /// authenticated.
    pub controller_key: Option<Secret>,
    /// Offered algorithms.
    pub algorithms: Algorithms,
}

impl HostConfig {
    /// A configuration from configured secrets, which it transforms.
    #[must_use]
    pub fn new(
        names: Names,
        host_key: &DhchapKey,
        controller_key: Option<&DhchapKey>,
        algorithms: Algorithms,
    ) -> Self {
        Self {
            host_key: host_key.transform(names.host()),
            controller_key: controller_key.map(|key| key.transform(names.subsystem())),
            names,
            algorithms,
        }
    }
}

/// Why a host's authentication failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HostError {
    /// The controller has refused this host; its log may say more.
    #[error(
        "the controller refuses this host: {0}; its log says why, most often a wrong secret or a \
         secret for another NQN"
    )]
    ControllerRefused(FailureReason),
    /// This host refuses the controller.
    #[error("this host refuses the controller: {0}")]
    Refused(#[from] Refusal),
}

/// What a host does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostStep {
    /// Send this by Authentication Send, fetch the answer by Authentication Receive, and give it to
    /// [`HostAuth::received`].
    Exchange(Vec<u8>),
    /// The authentication is over. If there is a last message, send it by Authentication Send. After an error, then
    /// close the connection.
    Finished {
        /// Success2 or Failure2; none if the controller expects nothing.
        last: Option<Vec<u8>>,
        /// The result.
        result: Result<Authentication, HostError>,
    },
}

#[derive(Debug)]
enum State {
    ChallengeDue,
    /// The response that the controller must give, if it was challenged.
    Success1Due {
        agreed: Authentication,
        r2: Option<Secret>,
    },
    Over,
}

/// The host's side of one queue: [`new`](Self::new) gives the first message, and [`received`](Self::received) takes the
/// controller's answers. To authenticate a queue again, make another one.
///
/// The calculations are done at once: two powers of the group in [`received`](Self::received), 1 to 28 ms.
#[derive(Debug)]
pub struct HostAuth {
    config: Arc<HostConfig>,
    t_id: u16,
    state: State,
}

impl HostAuth {
    /// Begins a run with the transaction `t_id`, and returns the first message to send. The number should differ from
    /// that of the queue's last run.
    #[must_use]
    pub fn new(config: Arc<HostConfig>, t_id: u16) -> (Self, HostStep) {
        let offer = Some(config.algorithms.offer());
        let negotiate = Negotiate { t_id, sc_c: 0, offer };
        (
            Self { config, t_id, state: State::ChallengeDue },
            HostStep::Exchange(negotiate.to_bytes()),
        )
    }

    /// Takes the data of an Authentication Receive.
    pub fn received(&mut self, data: &[u8]) -> HostStep {
        match self.next(data) {
            Ok(step) => step,
            Err(error) => {
                self.state = State::Over;
                let last = match error {
                    HostError::ControllerRefused(_) => None,
                    HostError::Refused(refusal) => {
                        let failure = Failure { t_id: self.t_id, reason: refusal.reason() };
                        Some(HostMessage::Failure2(failure).to_bytes())
                    }
                };
                HostStep::Finished { last, result: Err(error) }
            }
        }
    }

    fn next(&mut self, data: &[u8]) -> Result<HostStep, HostError> {
        let message = ControllerMessage::parse(data).map_err(Refusal::from)?;
        let name = message.name();
        let found = match &message {
            ControllerMessage::Challenge(challenge) => challenge.t_id,
            ControllerMessage::Success1(success) => success.t_id,
            ControllerMessage::Failure1(failure) => failure.t_id,
        };
        let state = mem::replace(&mut self.state, State::Over);
        match (state, message) {
            // Failure1 ends the run whatever its T_ID, because a controller that could not read the message does not
            // know T_ID.
            (
                State::ChallengeDue | State::Success1Due { .. },
                ControllerMessage::Failure1(failure),
            ) => Err(HostError::ControllerRefused(failure.reason)),
            (State::ChallengeDue, ControllerMessage::Challenge(challenge)) => {
                self.check_transaction(name, found)?;
                let reply = self.answer(&challenge)?;
                Ok(HostStep::Exchange(reply.to_bytes()))
            }
            (State::Success1Due { agreed, r2 }, ControllerMessage::Success1(success)) => {
                self.check_transaction(name, found)?;
                Ok(self.judge(agreed, r2.as_ref(), success)?)
            }
            (state, _) => {
                let due = match state {
                    State::ChallengeDue => "Challenge",
                    State::Success1Due { .. } => "Success1",
                    State::Over => "nothing",
                };
                Err(Refusal::OutOfOrder { message: name, due }.into())
            }
        }
    }

    const fn check_transaction(&self, message: &'static str, found: u16) -> Result<(), Refusal> {
        if found == self.t_id {
            Ok(())
        } else {
            Err(Refusal::OtherTransaction { message, expected: self.t_id, found })
        }
    }

    /// Answers a Challenge, and challenges the controller if it must be authenticated.
    fn answer(&mut self, challenge: &Challenge) -> Result<Reply, Refusal> {
        let config = Arc::clone(&self.config);
        let allowed = &config.algorithms;
        let id = challenge.hash_id;
        let hash = allowed.hash(id).ok_or(Refusal::HashNotOffered(id))?;
        let id = challenge.group_id;
        let group = allowed.group(id).ok_or(Refusal::GroupNotOffered(id))?;
        check_length("Challenge", hash, challenge.c1.len())?;
        if challenge.s1 == 0 {
            return Err(Refusal::Sequence);
        }
        let pair = KeyPair::generate(group)?;
        let shared = pair.shared_secret(&challenge.value).map_err(|error| Refusal::Value {
            message: "Challenge",
            group,
            error,
        })?;
        let question = Question {
            hash,
            names: &config.names,
            t_id: self.t_id,
            sequence: challenge.s1,
            challenge: &challenge.c1,
            shared: shared.as_ref(),
        };
        let r1 = question.host_response(&config.host_key).expose().to_vec();
        let (mut s2, mut c2, mut r2) = (0, None, None);
        if let Some(key) = &config.controller_key {
            let random = Secret::random(4 + hash.length_bytes())?;
            let (sequence, own) = random.expose().split_at(4);
            // Not 0, which means that there is no challenge.
            s2 = sequence.iter().fold(0, |sum, &byte| sum << 8 | u32::from(byte)).max(1);
            r2 = Some(
                Question { sequence: s2, challenge: own, ..question }.controller_response(key),
            );
            c2 = Some(own.to_vec());
        }
        let agreed = Authentication { hash, group, mutual: r2.is_some(), host_key: 0 };
        self.state = State::Success1Due { agreed, r2 };
        Ok(Reply { t_id: self.t_id, s2, r1, c2, value: pair.value().to_vec() })
    }

    /// Checks Success1 against the response `r2` that the controller must give, if it was challenged.
    fn judge(
        &self,
        agreed: Authentication,
        r2: Option<&Secret>,
        success: Success1,
    ) -> Result<HostStep, Refusal> {
        check_length("Success1", agreed.hash, usize::from(success.hash_bytes))?;
        let last = match r2 {
            None => None,
            Some(expected) => {
                let found = Secret::new(success.r2.ok_or(Refusal::NoResponse)?);
                if found != *expected {
                    return Err(Refusal::WrongControllerKey);
                }
                Some(Success2 { t_id: self.t_id }.to_bytes())
            }
        };
        Ok(HostStep::Finished { last, result: Ok(agreed) })
    }
}

fn check_length(message: &'static str, hash: Hash, found_bytes: usize) -> Result<(), Refusal> {
    if found_bytes == hash.length_bytes() {
        Ok(())
    } else {
        Err(Refusal::HashLength { message, hash, found_bytes })
    }
}
