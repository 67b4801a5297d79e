//! Messages that a controller must refuse.

use crate::rig::{
    Queue, T_ID, exchange, expect_failure1, key, negotiate, only, receive, refused, send,
};
use bpfof_auth::dhchap::message::{
    Failure, FailureReason, HostMessage, Negotiate, Reply, Success2,
};
use bpfof_auth::dhchap::{Done, Group, HostAuth, HostStep, Refusal, Step, Then, Work};
use bpfof_auth::{GroupValueError, Hash, MessageError};
use std::sync::Arc;

#[test]
fn invalid_negotiate_messages_are_refused() {
    let bad = |message: &Negotiate, reason| {
        let mut queue = Queue::good(&only(Hash::Sha256, Group::Ffdhe2048));
        refused(&mut queue.controller, &message.to_bytes(), reason)
    };
    for sc_c in 1..=4 {
        let message = Negotiate { sc_c, ..negotiate(&[1], &[1]) };
        let refusal = bad(&message, FailureReason::ConcatenationMismatch);
        assert_eq!(refusal, Refusal::Concatenation(sc_c));
    }
    let nothing = Negotiate { offer: None, ..negotiate(&[], &[]) };
    assert_eq!(bad(&nothing, FailureReason::ProtocolNotUsable), Refusal::NoProtocol);
    for hashes in [&[][..], &[0], &[2, 3], &[255]] {
        let refusal = bad(&negotiate(hashes, &[1]), FailureReason::HashNotUsable);
        assert_eq!(refusal, Refusal::NoHash);
    }
    for groups in [&[][..], &[0], &[2, 3, 4, 5], &[255]] {
        let refusal = bad(&negotiate(&[1], groups), FailureReason::GroupNotUsable);
        assert_eq!(refusal, Refusal::NoGroup);
    }
    for (at, value, reason) in [
        (7, 2, FailureReason::IncorrectPayload),
        (7, 255, FailureReason::IncorrectPayload),
        (10, 31, FailureReason::IncorrectPayload),
        (11, 255, FailureReason::IncorrectPayload),
        (8, 2, FailureReason::ProtocolNotUsable),
        (7, 0, FailureReason::ProtocolNotUsable),
    ] {
        let mut message = negotiate(&[1], &[1]).to_bytes();
        message[at] = value;
        let mut queue = Queue::good(&only(Hash::Sha256, Group::Ffdhe2048));
        let _ = refused(&mut queue.controller, &message, reason);
    }
    // DH-HMAC-CHAP may be the second of two protocols.
    let one = negotiate(&[1], &[0]).to_bytes();
    let mut two = one.clone();
    two[7] = 2;
    two.extend_from_slice(&one[8..]);
    two[8] = 0xE0;
    let mut queue = Queue::good(&only(Hash::Sha256, Group::Null));
    assert!(matches!(send(&mut queue.controller, &two), Step::Complete));
}

#[test]
fn invalid_replies() {
    let algorithms = only(Hash::Sha256, Group::Ffdhe2048);
    let lie = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut queue = Queue::good(&algorithms);
        let mut message = queue.replied().to_bytes();
        change(&mut message);
        let refusal = refused(&mut queue.controller, &message, FailureReason::IncorrectPayload);
        // Failure1 names the run, whatever T_ID the host has sent.
        assert_eq!(receive(&mut queue.controller).0[4..6], T_ID.to_le_bytes());
        refusal
    };
    let transaction = lie(&|message| message[4] ^= 1);
    let expected = Refusal::OtherTransaction { message: "Reply", expected: T_ID, found: 0x1235 };
    assert_eq!(transaction, expected);
    for bytes in [0, 1, 31, 33, 48, 64, 255] {
        let _ = lie(&|message| message[6] = bytes);
    }
    for bytes in [0_u16, 1, 255, 257, 384, 0xFFFF] {
        let _ = lie(&|message| message[10..12].copy_from_slice(&bytes.to_le_bytes()));
    }
    assert!(matches!(
        lie(&|message| message[8] = 2),
        Refusal::Malformed(MessageError::Field { field: "CVALID", value: 2, .. })
    ));
    // A whole Reply for another hash, or without a value.
    let other = |reply: &Reply| Refusal::HashLength {
        message: "Reply",
        hash: Hash::Sha256,
        found_bytes: reply.r1.len(),
    };
    let reply = Reply { t_id: T_ID, s2: 0, r1: vec![1; 48], c2: None, value: vec![3; 256] };
    assert_eq!(lie(&|message| *message = reply.to_bytes()), other(&reply));
    let reply = Reply { r1: vec![1; 32], value: vec![], ..reply };
    let error = GroupValueError::Length { needed_bytes: 256, found_bytes: 0 };
    let expected = Refusal::Value { message: "Reply", group: Group::Ffdhe2048, error };
    assert_eq!(lie(&|message| *message = reply.to_bytes()), expected);
    // A value without a group.
    let mut queue = Queue::good(&only(Hash::Sha256, Group::Null));
    let reply = Reply { value: vec![7], ..queue.replied() };
    let _ = refused(&mut queue.controller, &reply.to_bytes(), FailureReason::IncorrectPayload);
}

#[test]
fn messages_out_of_order() {
    let key = key();
    let algorithms = only(Hash::Sha256, Group::Null);
    let reply = Reply { t_id: T_ID, s2: 1, r1: vec![0; 32], c2: None, value: vec![] }.to_bytes();
    let success2 = Success2 { t_id: T_ID }.to_bytes();
    let failure = Failure { t_id: T_ID, reason: FailureReason::Failed };
    let failure2 = HostMessage::Failure2(failure).to_bytes();
    let unknown = [[1, 1], [1, 3], [1, 5], [0, 0xF1], [0, 1], [2, 0], [0xFF, 0xFF]]
        .map(|start| [&start[..], &[0; 62]].concat());
    let also = |more: &[&Vec<u8>]| -> Vec<Vec<u8>> {
        unknown.iter().chain(more.iter().copied()).cloned().collect()
    };
    // Each state, with messages that must not come in it.
    let states = [
        (0, also(&[&reply, &success2, &failure2])),
        (1, also(&[&reply, &success2])),
        (2, also(&[&success2])),
        (3, also(&[&reply, &success2])),
        (4, also(&[&reply])),
        (5, also(&[&reply, &success2, &failure2])),
    ];
    for (state, messages) in states {
        for message in messages {
            let mut queue = Queue::new(&[&key], Some(&key), &key, Some(&key), &algorithms);
            if state == 5 {
                assert!(queue.run().1.is_some());
            } else if state >= 3 {
                let good = queue.replied().to_bytes();
                let _ = send(&mut queue.controller, &good);
                if state == 4 {
                    let _ = receive(&mut queue.controller);
                }
            } else if state >= 1 {
                let _ = send(&mut queue.controller, &negotiate(&[1], &[0]).to_bytes());
                if state == 2 {
                    let _ = receive(&mut queue.controller);
                }
            }
            let reason = FailureReason::IncorrectMessage;
            let _ = refused(&mut queue.controller, &message, reason);
        }
        // There is nothing to fetch.
        let mut queue = Queue::good(&algorithms);
        match state {
            0 => {}
            2 => drop(queue.challenged()),
            5 => drop(queue.run()),
            _ => continue,
        }
        expect_failure1(&mut queue.controller, FailureReason::IncorrectMessage);
    }
}

#[test]
fn the_host_gives_up() {
    let key = key();
    for state in 0..4 {
        let algorithms = only(Hash::Sha256, Group::Null);
        let mut queue = Queue::new(&[&key], Some(&key), &key, Some(&key), &algorithms);
        assert!(queue.run().1.is_some());
        match state {
            0 => drop(send(&mut queue.controller, &negotiate(&[1], &[0]).to_bytes())),
            1 => drop(queue.challenged()),
            state => {
                let reply = queue.replied().to_bytes();
                let _ = send(&mut queue.controller, &reply);
                if state == 3 {
                    let _ = receive(&mut queue.controller);
                }
            }
        }
        let failure = Failure { t_id: T_ID, reason: FailureReason::Other(0x80) };
        let step = send(&mut queue.controller, &HostMessage::Failure2(failure).to_bytes());
        assert!(matches!(step, Step::HostRefused(FailureReason::Other(0x80))));
        assert_eq!(queue.controller.authentication(), None);
        expect_failure1(&mut queue.controller, FailureReason::IncorrectMessage);
    }
    // Failure2 of another run.
    let mut queue = Queue::good(&only(Hash::Sha256, Group::Null));
    let _ = queue.challenged();
    let failure = HostMessage::Failure2(Failure { t_id: 1, reason: FailureReason::Failed });
    let _ = refused(&mut queue.controller, &failure.to_bytes(), FailureReason::IncorrectPayload);
}

#[test]
fn short_allocations_lose_nothing() {
    let key = key();
    let algorithms = only(Hash::Sha256, Group::Ffdhe2048);
    let mut queue = Queue::new(&[&key], Some(&key), &key, Some(&key), &algorithms);
    let (mut host, step) = HostAuth::new(Arc::clone(&queue.host), T_ID);
    let mut message = exchange(step);
    for needed_bytes in [16 + 32 + 256, 16 + 32] {
        let _ = send(&mut queue.controller, &message);
        for allowed_bytes in [0, 7, needed_bytes as u32 - 1] {
            let error = queue.controller.receive(allowed_bytes).unwrap_err();
            assert_eq!((error.needed_bytes, error.allowed_bytes), (needed_bytes, allowed_bytes));
        }
        let answer = queue.controller.receive(needed_bytes as u32).unwrap();
        message = match host.received(&answer.message) {
            HostStep::Exchange(message) | HostStep::Finished { last: Some(message), .. } => message,
            other => panic!("{other:?}"),
        };
    }
    assert!(matches!(send(&mut queue.controller, &message), Step::Authenticated(_)));
    // So is Failure1.
    assert!(queue.controller.receive(7).is_err());
    assert!(matches!(queue.controller.receive(8).unwrap().then, Then::Close(_)));
}

#[test]
fn work_belongs_to_one_run_of_one_queue() {
    fn is_send<T: Send + 'static>() {}
    is_send::<(Work, Done)>();

    let key = key();
    let algorithms = only(Hash::Sha256, Group::Ffdhe2048);
    let queue = || Queue::new(&[&key], None, &key, None, &algorithms);
    let message = negotiate(&[1], &[1]).to_bytes();
    let work = |step: Step| match step {
        Step::Compute(work) => work,
        other => panic!("{other:?}"),
    };
    // The result for another queue.
    let (mut a, mut b) = (queue(), queue());
    let made = work(a.controller.send(&message, 0)).run();
    let _ = work(b.controller.send(&message, 0));
    assert!(matches!(b.controller.completed(made), Step::Refused(Refusal::ForeignWork)));
    expect_failure1(&mut b.controller, FailureReason::Failed);

    // A good verdict for another queue authenticates no host.
    let (mut a, mut b) = (queue(), queue());
    let (good, bad) = (a.replied().to_bytes(), b.replied().to_bytes());
    let verdict = work(a.controller.send(&good, 0)).run();
    let _ = work(b.controller.send(&bad, 0));
    assert!(matches!(b.controller.completed(verdict), Step::Refused(Refusal::ForeignWork)));
    assert_eq!(b.controller.authentication(), None);

    // During work no other message may come, not even a new run; the result of the work is then too
    // late.
    for early in [true, false] {
        let mut queue = queue();
        let started = if early { message.clone() } else { queue.replied().to_bytes() };
        let done = work(queue.controller.send(&started, 0)).run();
        if early {
            assert!(matches!(queue.controller.send(&message, 0), Step::Refused(_)));
        } else {
            assert!(matches!(receive(&mut queue.controller).1, Then::Close(_)));
        }
        assert!(matches!(queue.controller.completed(done), Step::Refused(_)));
        expect_failure1(&mut queue.controller, FailureReason::IncorrectMessage);
    }
}
