//! Messages that both sides must refuse.

use crate::rig::{Queue, T_ID, host_refuses, key, only, receive, refused, send};
use bpfof_auth::dhchap::message::{Challenge, FailureReason, Reply, Success2};
use bpfof_auth::dhchap::{Group, HostAuth, HostError, HostStep, Refusal};
use bpfof_auth::{GroupValueError, Hash};
use std::sync::Arc;

/// 0, 1, p − 1, p and 2^2048 − 1 of ffdhe2048. The first and the last eight bytes of p are FFh.
fn bad_values() -> [Vec<u8>; 5] {
    let p = ffdhe2048();
    let mut below = p.clone();
    below[255] = 0xFE;
    let mut one = vec![0; 256];
    one[255] = 1;
    [vec![0; 256], one, below, p, vec![0xFF; 256]]
}

/// The prime, as RFC 7919 §A.1 prints it.
fn ffdhe2048() -> Vec<u8> {
    let digits = "FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695\
                  A9E13641146433FBCC939DCE249B3EF97D2FE363630C75D8F681B202AEC4617A\
                  D3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3B557135E7F57C935\
                  984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797A\
                  BC0AB182B324FB61D108A94BB2C8E3FBB96ADAB760D7F4681D4F42A3DE394DF4\
                  AE56EDE76372BB190B07A7C8EE0A6D709E02FCE1CDF7E2ECC03404CD28342F61\
                  9172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC2EC22005\
                  C58EF1837D1683B2C6F34A26C1B2EFFA886B423861285C97FFFFFFFFFFFFFFFF";
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

#[test]
fn values_that_reveal_the_secret() {
    let algorithms = only(Hash::Sha256, Group::Ffdhe2048);
    for value in bad_values() {
        let error = GroupValueError::Range;
        let mut queue = Queue::good(&algorithms);
        let reply = Reply { value: value.clone(), ..queue.replied() };
        let refusal =
            refused(&mut queue.controller, &reply.to_bytes(), FailureReason::IncorrectPayload);
        let group = Group::Ffdhe2048;
        assert_eq!(refusal, Refusal::Value { message: "Reply", group, error });

        let mut queue = Queue::good(&algorithms);
        let (mut host, challenge) = queue.challenged();
        let challenge = Challenge { value, ..challenge };
        let refusal = Refusal::Value { message: "Challenge", group, error };
        host_refuses(&mut host, &challenge.to_bytes(), refusal);
    }
}

#[test]
fn messages_cut_at_every_byte() {
    let key = key();
    let algorithms = only(Hash::Sha256, Group::Ffdhe2048);
    let mut queue = Queue::new(&[&key], Some(&key), &key, Some(&key), &algorithms);
    let mut to_controller = Vec::new();
    let mut to_host = Vec::new();
    let (host, _) = queue.run_changing(
        |message| to_controller.push(message.clone()),
        |message| to_host.push(message.clone()),
    );
    assert!(host.is_ok());
    to_controller.push(Success2 { t_id: T_ID }.to_bytes());
    assert_eq!((to_controller.len(), to_host.len()), (3, 2));
    for (number, message) in to_controller.iter().enumerate() {
        for end in 0..message.len() {
            let mut queue =
                Queue::new(&[&key], Some(&key), &key, Some(&key), &only(Hash::Sha256, Group::Null));
            match number {
                0 => {}
                1 => drop(queue.challenged()),
                _ => {
                    let reply = queue.replied().to_bytes();
                    let _ = send(&mut queue.controller, &reply);
                    let _ = receive(&mut queue.controller);
                }
            }
            let reason = FailureReason::IncorrectPayload;
            let _ = refused(&mut queue.controller, &message[..end], reason);
        }
    }
    for message in &to_host {
        for end in 0..message.len() {
            let (mut host, _) = HostAuth::new(Arc::clone(&queue.host), T_ID);
            let HostStep::Finished { last: Some(last), result } = host.received(&message[..end])
            else {
                panic!("{end}");
            };
            assert!(matches!(result, Err(HostError::Refused(Refusal::Malformed(_)))));
            assert_eq!(last[7], FailureReason::IncorrectPayload.code());
        }
    }
}
