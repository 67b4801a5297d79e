//! The two ends of a queue, and operations on them.

use bpfof_auth::dhchap::message::{
    Challenge, ControllerMessage, Failure, FailureReason, HostMessage, Negotiate, Offer, Reply,
};
use bpfof_auth::dhchap::{
    Algorithms, Authentication, ControllerAuth, ControllerConfig, Group, HostAuth, HostConfig,
    HostError, HostStep, RECEIVE_BYTES, Refusal, Step, Then,
};
use bpfof_auth::{DhchapKey, Hash, Names};
use std::sync::Arc;

pub(crate) const HOST: &str =
    "nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-aabbccddeeff";

pub(crate) const SUBSYSTEM: &str = "nqn.2026-01.io.bpf-of:target";

pub(crate) const T_ID: u16 = 0x1234;

pub(crate) fn names() -> Names {
    Names::new(HOST, SUBSYSTEM).unwrap()
}

pub(crate) fn key() -> DhchapKey {
    DhchapKey::generate(Hash::Sha256).unwrap()
}

pub(crate) fn only(hash: Hash, group: Group) -> Algorithms {
    Algorithms { hashes: vec![hash], groups: vec![group] }
}

/// The two ends of a queue, each with its own keys.
pub(crate) struct Queue {
    pub(crate) controller: ControllerAuth,
    pub(crate) host: Arc<HostConfig>,
}

impl Queue {
    pub(crate) fn new(
        known: &[&DhchapKey],
        own: Option<&DhchapKey>,
        host: &DhchapKey,
        wanted: Option<&DhchapKey>,
        algorithms: &Algorithms,
    ) -> Self {
        let known: Vec<DhchapKey> = known.iter().map(|&key| key.clone()).collect();
        let config = ControllerConfig::new(names(), &known, own, algorithms.clone());
        let host = HostConfig::new(names(), host, wanted, algorithms.clone());
        Self { controller: ControllerAuth::new(Arc::new(config), 0), host: Arc::new(host) }
    }

    /// A queue with authentication of the host only, with the right key.
    pub(crate) fn good(algorithms: &Algorithms) -> Self {
        let key = key();
        Self::new(&[&key], None, &key, None, algorithms)
    }

    /// Completes a run; the messages of each side may be changed on the way. Returns both results.
    pub(crate) fn run_changing(
        &mut self,
        mut to_controller: impl FnMut(&mut Vec<u8>),
        mut to_host: impl FnMut(&mut Vec<u8>),
    ) -> (Result<Authentication, HostError>, Option<Authentication>) {
        let (mut host, mut step) = HostAuth::new(Arc::clone(&self.host), T_ID);
        loop {
            match step {
                HostStep::Exchange(mut message) => {
                    to_controller(&mut message);
                    send(&mut self.controller, &message);
                    let mut answer = self.controller.receive(RECEIVE_BYTES).unwrap().message;
                    to_host(&mut answer);
                    step = host.received(&answer);
                }
                HostStep::Finished { last, result } => {
                    if let Some(last) = last {
                        send(&mut self.controller, &last);
                    }
                    return (result, self.controller.authentication());
                }
            }
        }
    }

    pub(crate) fn run(&mut self) -> (Result<Authentication, HostError>, Option<Authentication>) {
        self.run_changing(|_| {}, |_| {})
    }

    /// Begins a run up to the Challenge. Returns the host that must answer it, and the Challenge.
    pub(crate) fn challenged(&mut self) -> (HostAuth, Challenge) {
        let (host, step) = HostAuth::new(Arc::clone(&self.host), T_ID);
        send(&mut self.controller, &exchange(step));
        match ControllerMessage::parse(&receive(&mut self.controller).0) {
            Ok(ControllerMessage::Challenge(challenge)) => (host, challenge),
            other => panic!("{other:?}"),
        }
    }

    /// Begins a run up to the Reply, and returns that.
    pub(crate) fn replied(&mut self) -> Reply {
        let (mut host, challenge) = self.challenged();
        match HostMessage::parse(&exchange(host.received(&challenge.to_bytes()))) {
            Ok(HostMessage::Reply(reply)) => reply,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn exchange(step: HostStep) -> Vec<u8> {
    match step {
        HostStep::Exchange(message) => message,
        other => panic!("{other:?}"),
    }
}

/// Sends a message, and does the resulting work at once.
pub(crate) fn send(controller: &mut ControllerAuth, message: &[u8]) -> Step {
    match controller.send(message, 0) {
        Step::Compute(work) => controller.completed(work.run()),
        other => other,
    }
}

pub(crate) fn receive(controller: &mut ControllerAuth) -> (Vec<u8>, Then) {
    let answer = controller.receive(RECEIVE_BYTES).unwrap();
    (answer.message, answer.then)
}

/// Checks that a message is refused, that Failure1 reports it, and that the queue stays in that
/// state. Returns the refusal.
pub(crate) fn refused(
    controller: &mut ControllerAuth,
    message: &[u8],
    reason: FailureReason,
) -> Refusal {
    let Step::Refused(refusal) = send(controller, message) else { panic!("it was accepted") };
    expect_failure1(controller, reason);
    refusal
}

pub(crate) fn expect_failure1(controller: &mut ControllerAuth, reason: FailureReason) {
    for _ in 0..2 {
        let (message, then) = receive(controller);
        match ControllerMessage::parse(&message).unwrap() {
            ControllerMessage::Failure1(failure) => assert_eq!(failure.reason, reason),
            other => panic!("{other:?}"),
        }
        assert_eq!(message[6], 1);
        assert!(matches!(then, Then::Close(refusal) if refusal.reason() == reason));
        assert_eq!(controller.authentication(), None);
    }
    let again = negotiate(&[1], &[0]).to_bytes();
    assert!(matches!(controller.send(&again, 0), Step::Refused(_)));
    assert!(controller.deadline_us(0).is_some());
}

pub(crate) fn negotiate(hash_ids: &[u8], group_ids: &[u8]) -> Negotiate {
    let offer = Offer { hash_ids: hash_ids.to_vec(), group_ids: group_ids.to_vec() };
    Negotiate { t_id: T_ID, sc_c: 0, offer: Some(offer) }
}

/// Checks that the host refuses a message, and reports that in Failure2.
pub(crate) fn host_refuses(host: &mut HostAuth, message: &[u8], refusal: Refusal) {
    let HostStep::Finished { last: Some(last), result } = host.received(message) else {
        panic!("it was accepted");
    };
    assert_eq!(result, Err(HostError::Refused(refusal)));
    let failure = Failure { t_id: T_ID, reason: refusal.reason() };
    assert_eq!(HostMessage::parse(&last), Ok(HostMessage::Failure2(failure)));
    // The run is over.
    assert!(matches!(host.received(message), HostStep::Finished { result: Err(_), .. }));
}
