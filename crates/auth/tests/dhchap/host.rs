//! Messages that a host must refuse.

use crate::rig::{Queue, T_ID, exchange, host_refuses, key, only, receive};
use bpfof_auth::dhchap::message::{Challenge, ControllerMessage, Failure, FailureReason, Success1};
use bpfof_auth::dhchap::{Group, HostAuth, HostError, HostStep, Refusal, Then};
use bpfof_auth::{GroupValueError, Hash, MessageError};
use std::sync::Arc;

#[test]
fn invalid_challenges() {
    let algorithms = only(Hash::Sha256, Group::Ffdhe2048);
    let lie = |change: &dyn Fn(&mut Challenge), refusal| {
        let mut queue = Queue::good(&algorithms);
        let (mut host, mut challenge) = queue.challenged();
        change(&mut challenge);
        host_refuses(&mut host, &challenge.to_bytes(), refusal);
    };
    let found = 1;
    lie(&|c| c.t_id = 1, Refusal::OtherTransaction { message: "Challenge", expected: T_ID, found });
    lie(&|c| c.hash_id = 2, Refusal::HashNotOffered(2));
    lie(&|c| c.hash_id = 9, Refusal::HashNotOffered(9));
    lie(&|c| c.group_id = 0, Refusal::GroupNotOffered(0));
    lie(&|c| c.group_id = 6, Refusal::GroupNotOffered(6));
    lie(&|c| c.s1 = 0, Refusal::Sequence);
    let (message, hash, group) = ("Challenge", Hash::Sha256, Group::Ffdhe2048);
    lie(&|c| c.c1.truncate(31), Refusal::HashLength { message, hash, found_bytes: 31 });
    lie(&|c| c.c1.clear(), Refusal::HashLength { message, hash, found_bytes: 0 });
    let error = GroupValueError::Length { needed_bytes: 256, found_bytes: 257 };
    lie(&|c| c.value.push(0), Refusal::Value { message, group, error });
}

#[test]
fn invalid_responses_of_the_controller() {
    let (host_key, own) = (key(), key());
    for group in [Group::Null, Group::Ffdhe2048] {
        let algorithms = only(Hash::Sha384, group);
        let lie = |change: &dyn Fn(&mut Success1), refusal| {
            let mut queue =
                Queue::new(&[&host_key], Some(&own), &host_key, Some(&own), &algorithms);
            let to_host = |message: &mut Vec<u8>| {
                if let Ok(ControllerMessage::Success1(mut success)) =
                    ControllerMessage::parse(message)
                {
                    change(&mut success);
                    *message = success.to_bytes();
                }
            };
            let (host, controller) = queue.run_changing(|_| {}, to_host);
            assert_eq!((host, controller), (Err(HostError::Refused(refusal)), None));
            let reason = refusal.reason();
            assert_eq!(receive(&mut queue.controller).1, Then::Close(Refusal::GivenUp(reason)));
        };
        lie(&|s| s.r2 = None, Refusal::NoResponse);
        lie(&|s| s.r2 = Some(vec![0; 48]), Refusal::WrongControllerKey);
        lie(&|s| s.r2.as_mut().unwrap()[47] ^= 0x80, Refusal::WrongControllerKey);
        let (message, hash) = ("Success1", Hash::Sha384);
        let shorter = |s: &mut Success1| {
            s.r2.as_mut().unwrap().truncate(32);
            s.hash_bytes = 32;
        };
        lie(&shorter, Refusal::HashLength { message, hash, found_bytes: 32 });
    }
}

#[test]
fn the_host_meets_messages_out_of_order() {
    let success = Success1 { t_id: T_ID, hash_bytes: 32, r2: None }.to_bytes();
    let mut queue = Queue::good(&only(Hash::Sha256, Group::Null));
    let (mut host, _) = HostAuth::new(Arc::clone(&queue.host), T_ID);
    let refusal = Refusal::OutOfOrder { message: "Success1", due: "Challenge" };
    host_refuses(&mut host, &success, refusal);

    let (mut host, challenge) = queue.challenged();
    let _ = exchange(host.received(&challenge.to_bytes()));
    let refusal = Refusal::OutOfOrder { message: "Challenge", due: "Success1" };
    host_refuses(&mut host, &challenge.to_bytes(), refusal);

    let (mut host, _) = HostAuth::new(Arc::clone(&queue.host), T_ID);
    let refusal = Refusal::Malformed(MessageError::Unexpected { kind: 1, id: 2 });
    host_refuses(&mut host, &[1, 2, 0, 0, 0, 0], refusal);

    // Failure1 ends the run without an answer, whatever run it names.
    let (mut host, _) = HostAuth::new(Arc::clone(&queue.host), T_ID);
    let failure = Failure { t_id: 0, reason: FailureReason::GroupNotUsable };
    let step = host.received(&ControllerMessage::Failure1(failure).to_bytes());
    let result = Err(HostError::ControllerRefused(FailureReason::GroupNotUsable));
    assert_eq!(step, HostStep::Finished { last: None, result });
}
