//! Complete runs.

use crate::rig::{
    Queue, SUBSYSTEM, T_ID, exchange, expect_failure1, key, names, negotiate, only, receive,
    refused, send,
};
use bpfof_auth::dhchap::message::{ControllerMessage, FailureReason, Reply};
use bpfof_auth::dhchap::{
    Algorithms, Authentication, ControllerAuth, ControllerConfig, Group, HostAuth, HostConfig,
    HostError, RUN_MAX_US, Refusal, Step, Then,
};
use bpfof_auth::{DhchapKey, Hash, Names};
use std::sync::Arc;

#[test]
fn every_hash_with_every_group() {
    let (host_key, own) = (key(), key());
    for group in Group::ALL {
        for hash in Hash::ALL {
            let small = matches!(group, Group::Null | Group::Ffdhe2048);
            // Each large group only once, with one hash.
            if !small && hash as usize != group as usize % 3 {
                continue;
            }
            for mutual in if small { vec![false, true] } else { vec![true] } {
                let wanted = mutual.then_some(&own);
                let algorithms = only(hash, group);
                let mut queue =
                    Queue::new(&[&host_key], Some(&own), &host_key, wanted, &algorithms);
                let agreed = Authentication { hash, group, mutual, host_key: 0 };
                assert_eq!(queue.run(), (Ok(agreed), Some(agreed)));
                assert_eq!(queue.controller.deadline_us(0), None);
            }
        }
    }
}

#[test]
fn keys_of_every_form() {
    for hash in Hash::ALL {
        let generated = DhchapKey::generate(hash).unwrap();
        let text = String::from_utf8(generated.to_text().expose().to_vec()).unwrap();
        for digits in 0..4 {
            let text = format!("DHHC-1:0{digits}:{}", &text[10..]);
            let key = DhchapKey::parse(&text).unwrap();
            let algorithms = only(Hash::Sha512, Group::Null);
            let (host, controller) =
                Queue::new(&[&key], Some(&key), &key, Some(&key), &algorithms).run();
            assert_eq!(host.ok(), controller);
            assert!(controller.is_some());
        }
    }
}

#[test]
fn the_controller_chooses() {
    let mut queue = Queue::good(&Algorithms::default());
    let (_, found) = queue.run();
    let agreed =
        Authentication { hash: Hash::Sha256, group: Group::Ffdhe2048, mutual: false, host_key: 0 };
    assert_eq!(found, Some(agreed));
    assert_eq!(agreed.to_string(), "the host authenticated with SHA-256, ffdhe2048");

    // The controller's order counts, not the host's; unknown algorithms are skipped.
    let algorithms = Algorithms {
        hashes: vec![Hash::Sha512, Hash::Sha256],
        groups: vec![Group::Null, Group::Ffdhe8192],
    };
    let mut queue = Queue::good(&algorithms);
    let message = negotiate(&[9, 1, 2, 3], &[7, 5, 1, 0]).to_bytes();
    assert!(matches!(send(&mut queue.controller, &message), Step::Complete));
    let (message, then) = receive(&mut queue.controller);
    let Ok(ControllerMessage::Challenge(challenge)) = ControllerMessage::parse(&message) else {
        panic!();
    };
    assert_eq!((challenge.hash_id, challenge.group_id, then), (3, 0, Then::Continue));
    assert_eq!((challenge.c1.len(), challenge.value.len(), challenge.t_id), (64, 0, T_ID));
    assert_ne!(challenge.s1, 0);
}

#[test]
fn wrong_keys() {
    let (right, wrong, own) = (key(), key(), key());
    for algorithms in [only(Hash::Sha256, Group::Null), only(Hash::Sha384, Group::Ffdhe2048)] {
        for wanted in [None, Some(&own)] {
            let mut queue = Queue::new(&[&right], Some(&own), &wrong, wanted, &algorithms);
            let refusal = HostError::ControllerRefused(FailureReason::Failed);
            assert_eq!(queue.run(), (Err(refusal), None));
            expect_failure1(&mut queue.controller, FailureReason::Failed);
        }
        // The controller's key is wrong: the host refuses, and the host's authentication ends at
        // the controller, too.
        let mut queue = Queue::new(&[&right], Some(&wrong), &right, Some(&own), &algorithms);
        let refusal = HostError::Refused(Refusal::WrongControllerKey);
        assert_eq!(queue.run(), (Err(refusal), None));
        // The controller has no key.
        let mut queue = Queue::new(&[&right], None, &right, Some(&own), &algorithms);
        let refusal = HostError::ControllerRefused(FailureReason::Failed);
        assert_eq!(queue.run(), (Err(refusal), None));
        assert_eq!(receive(&mut queue.controller).1, Then::Close(Refusal::NoControllerKey));
        // The controller has no key of the host.
        let mut queue = Queue::new(&[], None, &right, None, &algorithms);
        assert_eq!(queue.run(), (Err(refusal), None));
    }
    // The same keys for other names.
    let config = |host: &str| {
        let names = Names::new(host, SUBSYSTEM).unwrap();
        HostConfig::new(names, &right, None, only(Hash::Sha256, Group::Null))
    };
    let mut queue = Queue::good(&only(Hash::Sha256, Group::Null));
    queue.host = Arc::new(config("nqn.2014-08.org.nvmexpress:uuid:other"));
    assert_eq!(queue.run().1, None);
}

#[test]
fn two_keys_during_rotation() {
    let (old, new, other) = (key(), key(), key());
    for algorithms in [only(Hash::Sha256, Group::Null), only(Hash::Sha512, Group::Ffdhe2048)] {
        for (host, index) in [(&old, Some(0)), (&new, Some(1)), (&other, None)] {
            let mut queue = Queue::new(&[&old, &new], None, host, None, &algorithms);
            let (_, found) = queue.run();
            assert_eq!(found.map(|authentication| authentication.host_key), index);
        }
    }
}

#[test]
fn authentication_again() {
    let (old, new) = (key(), key());
    let algorithms = only(Hash::Sha256, Group::Ffdhe2048);
    let mut queue = Queue::new(&[&old], Some(&new), &old, Some(&new), &algorithms);
    for _ in 0..20 {
        assert!(queue.run().1.is_some());
        assert_eq!(queue.controller.deadline_us(5000), None);
    }
    // It stays authenticated until the new run ends.
    let before = queue.controller.authentication();
    let reply = queue.replied();
    assert_eq!(queue.controller.authentication(), before);
    assert!(matches!(send(&mut queue.controller, &reply.to_bytes()), Step::Complete));
    let _ = receive(&mut queue.controller);
    assert_eq!(queue.controller.authentication(), before);
    assert!(before.is_some());
    // After an unfinished run, another one may begin.
    assert!(queue.run().1.is_some());
    // A failed run ends the old authentication, too.
    let mut reply = queue.replied();
    reply.r1[0] ^= 1;
    let refusal = refused(&mut queue.controller, &reply.to_bytes(), FailureReason::Failed);
    assert_eq!(refusal, Refusal::WrongHostKey);
}

#[test]
fn runs_may_restart_only_a_few_times() {
    let mut queue = Queue::good(&only(Hash::Sha256, Group::Ffdhe2048));
    let message = negotiate(&[1], &[1]).to_bytes();
    let mut challenges = Vec::new();
    for _ in 0..7 {
        assert!(matches!(send(&mut queue.controller, &message), Step::Complete));
        challenges.push(receive(&mut queue.controller).0);
    }
    let distinct = |at: std::ops::Range<usize>| {
        (1..challenges.len()).all(|n| challenges[n][at.clone()] != challenges[n - 1][at.clone()])
    };
    // S1, C1 and g^x are new each time.
    assert!(distinct(12..16) && distinct(16..48) && distinct(48..304));
    let mut good = queue.replied();
    good.r1[0] ^= 1;
    let refusal = refused(&mut queue.controller, &good.to_bytes(), FailureReason::Failed);
    assert_eq!(refusal, Refusal::WrongHostKey);

    let mut queue = Queue::good(&only(Hash::Sha256, Group::Null));
    let message = negotiate(&[1], &[0]).to_bytes();
    for _ in 0..8 {
        assert!(matches!(send(&mut queue.controller, &message), Step::Complete));
    }
    let refusal = refused(&mut queue.controller, &message, FailureReason::Failed);
    assert_eq!(refusal, Refusal::TooManyRuns(8));
}

#[test]
fn time_of_a_run() {
    let algorithms = only(Hash::Sha256, Group::Null);
    let key = key();
    let config =
        ControllerConfig::new(names(), std::slice::from_ref(&key), None, algorithms.clone());
    let mut controller = ControllerAuth::new(Arc::new(config), 1000);
    let host = HostConfig::new(names(), &key, None, algorithms);
    assert_eq!(controller.deadline_us(0), Some(1000 + RUN_MAX_US));
    assert_eq!(controller.deadline_us(5000), Some(5_001_000));
    let (mut side, step) = HostAuth::new(Arc::new(host), 1);
    // The time counts from the connection of the queue.
    assert!(matches!(controller.send(&exchange(step), 4_000_000), Step::Complete));
    assert_eq!(controller.deadline_us(5000), Some(5_001_000));
    let reply = side.received(&receive(&mut controller).0);
    assert!(matches!(send(&mut controller, &exchange(reply)), Step::Complete));
    assert!(matches!(receive(&mut controller).1, Then::Authenticated(_)));
    assert_eq!(controller.deadline_us(5000), None);
    let again = negotiate(&[1], &[0]).to_bytes();
    assert!(matches!(controller.send(&again, 9_000_000), Step::Complete));
    assert!(matches!(controller.send(&again, 9_500_000), Step::Complete));
    assert_eq!(controller.deadline_us(5000), Some(14_000_000));
    assert_eq!(controller.deadline_us(u32::MAX), Some(9_000_000 + RUN_MAX_US));
}

#[test]
fn one_way_is_judged_by_cvalid() {
    // Linux 6.12 sends S2 without a challenge.
    let mut queue = Queue::good(&only(Hash::Sha256, Group::Null));
    let reply = Reply { s2: 77, ..queue.replied() };
    assert_eq!(reply.c2, None);
    assert!(matches!(send(&mut queue.controller, &reply.to_bytes()), Step::Complete));
    assert_eq!(queue.controller.authentication(), None);
    let (message, then) = receive(&mut queue.controller);
    // R2 is present, all zeroes, and HL is the hash's length.
    assert_eq!((message.len(), message[6], message[8]), (48, 32, 0));
    assert!(message[16..].iter().all(|&byte| byte == 0));
    assert!(matches!(then, Then::Authenticated(agreed) if !agreed.mutual));
    assert!(queue.controller.authentication().is_some());
    // In this case some controllers do not send R2, others pad the message.
    for length in [16, 48, 4096] {
        let mut queue = Queue::good(&only(Hash::Sha256, Group::Null));
        let (host, _) = queue.run_changing(
            |_| {},
            |message| {
                if message[1] == 3 {
                    message.resize(length, 0);
                }
            },
        );
        assert!(host.is_ok());
    }
}

#[test]
fn new_keys_on_a_live_queue() {
    let (old, new) = (key(), key());
    let algorithms = only(Hash::Sha256, Group::Null);
    let mut queue = Queue::new(&[&old], None, &old, None, &algorithms);
    assert!(queue.run().1.is_some());
    let known = [old, new.clone()];
    let config = ControllerConfig::new(names(), &known, None, algorithms.clone());
    queue.controller.set_config(Arc::new(config));
    assert!(queue.controller.authentication().is_some());
    queue.host = Arc::new(HostConfig::new(names(), &new, None, algorithms));
    assert_eq!(queue.run().1.map(|authentication| authentication.host_key), Some(1));
}
