//! Calculations of a controller for a queue, outside the thread that serves the queue.

use super::algorithms::Algorithms;
use super::group::{Group, KeyPair};
use super::message::Reply;
use super::refusal::Refusal;
use super::response::Question;
use crate::dhchap_key::DhchapKey;
use crate::error::RandomError;
use crate::hash::Hash;
use crate::names::Names;
use crate::secret::Secret;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A controller's configuration for one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerConfig {
    /// NQNs of the host and of the subsystem.
    pub names: Names,
    /// The host's secrets, transformed for its NQN: one, or two during rotation. Any of them is accepted.
    pub host_keys: Vec<Secret>,
    /// The controller's own secret, transformed for the NQN of the subsystem, if hosts may
    /// authenticate it.
    pub controller_key: Option<Secret>,
    /// Allowed algorithms.
    pub algorithms: Algorithms,
}

impl ControllerConfig {
    /// A configuration from configured secrets, which it transforms.
    #[must_use]
    pub fn new(
        names: Names,
        host_keys: &[DhchapKey],
        controller_key: Option<&DhchapKey>,
        algorithms: Algorithms,
    ) -> Self {
        Self {
            host_keys: host_keys.iter().map(|key| key.transform(names.host())).collect(),
            controller_key: controller_key.map(|key| key.transform(names.subsystem())),
            names,
            algorithms,
        }
    }
}

/// One run of the authentication, which begins with Negotiate.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) t_id: u16,
    pub(super) hash: Hash,
    pub(super) group: Group,
    pub(super) s1: u32,
    pub(super) c1: Vec<u8>,
}

/// The result of a good Reply.
#[derive(Debug)]
pub(super) struct Verified {
    /// Index of the host's secret that matches.
    pub(super) host_key: usize,
    /// R2, if the host has challenged the controller.
    pub(super) r2: Option<Vec<u8>>,
}

/// The input for checking a Reply.
pub(super) struct Verification {
    pub(super) config: Arc<ControllerConfig>,
    pub(super) run: Run,
    pub(super) pair: KeyPair,
    pub(super) reply: Reply,
}

impl Verification {
    fn question<'a>(
        &'a self,
        sequence: u32,
        challenge: &'a [u8],
        shared: Option<&'a Secret>,
    ) -> Question<'a> {
        let Run { hash, t_id, .. } = self.run;
        Question { hash, names: &self.config.names, t_id, sequence, challenge, shared }
    }

    fn judge(&self) -> Result<Verified, Refusal> {
        let group = self.run.group;
        let shared = self
            .pair
            .shared_secret(&self.reply.value)
            .map_err(|error| Refusal::Value { message: "Reply", group, error })?;
        let question = self.question(self.run.s1, &self.run.c1, shared.as_ref());
        // Every secret is tried, so that the time does not reveal which one matches.
        let fits: Vec<bool> = self
            .config
            .host_keys
            .iter()
            .map(|key| question.is_host_response(key, &self.reply.r1))
            .collect();
        let host_key = fits.iter().position(|&fits| fits).ok_or(Refusal::WrongHostKey)?;
        let r2 = match &self.reply.c2 {
            None => None,
            Some(c2) => {
                let key = self.config.controller_key.as_ref().ok_or(Refusal::NoControllerKey)?;
                let question = self.question(self.reply.s2, c2, shared.as_ref());
                Some(question.controller_response(key).expose().to_vec())
            }
        };
        Ok(Verified { host_key, r2 })
    }
}

enum Job {
    Pair(Group),
    Verify(Box<Verification>),
}

/// A calculation that may take milliseconds, for a helper thread: run it there, and give the result to
/// [`ControllerAuth::completed`](super::ControllerAuth::completed) of the queue that it is for.
pub struct Work {
    id: u64,
    job: Job,
}

/// The result of a [`Work`].
pub struct Done {
    pub(super) id: u64,
    pub(super) result: WorkResult,
}

pub(super) enum WorkResult {
    Pair(Result<KeyPair, RandomError>),
    Verified(Result<Verified, Refusal>),
}

/// A number that is unique in this process, so that a result cannot be used for another queue or another run.
fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Work {
    pub(super) fn pair(group: Group) -> Self {
        Self { id: next_id(), job: Job::Pair(group) }
    }

    pub(super) fn verify(verification: Verification) -> Self {
        Self { id: next_id(), job: Job::Verify(Box::new(verification)) }
    }

    pub(super) const fn id(&self) -> u64 {
        self.id
    }

    const fn group(&self) -> Group {
        match &self.job {
            Job::Pair(group) => *group,
            Job::Verify(verification) => verification.run.group,
        }
    }

    /// Its estimated time in microseconds: for scheduling, not for accounting.
    #[must_use]
    pub const fn price_us(&self) -> u64 {
        /// Random numbers, and hashes of short messages.
        const BESIDE_US: u64 = 20;
        BESIDE_US + self.group().power_us()
    }

    /// Performs the calculation: one power of the group, 0.5 to 14 ms, or some microseconds without a group.
    #[must_use]
    pub fn run(self) -> Done {
        let result = match self.job {
            Job::Pair(group) => WorkResult::Pair(KeyPair::generate(group)),
            Job::Verify(verification) => WorkResult::Verified(verification.judge()),
        };
        Done { id: self.id, result }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.job {
            Job::Pair(group) => write!(f, "Work({}: a pair of {group})", self.id),
            Job::Verify(job) => write!(f, "Work({}: judge a Reply, {})", self.id, job.run.group),
        }
    }
}

impl fmt::Debug for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.result {
            WorkResult::Pair(_) => write!(f, "Done({}: a pair)", self.id),
            WorkResult::Verified(_) => write!(f, "Done({}: a Reply was judged)", self.id),
        }
    }
}
