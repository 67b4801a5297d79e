//! Any bytes give a value or a typed error, and written messages are read back unchanged.

use bpfof_auth::dhchap::message::{
    Challenge, ControllerMessage, Failure, FailureReason, HostMessage, Negotiate, Offer, Reply,
    Success1, Success2,
};
use bpfof_auth::fuzz;
use proptest::collection::vec;
use proptest::prelude::*;

fn failure() -> impl Strategy<Value = Failure> {
    (any::<u16>(), any::<u8>())
        .prop_map(|(t_id, code)| Failure { t_id, reason: FailureReason::from_code(code) })
}

fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..=most)
}

fn host_message() -> impl Strategy<Value = HostMessage> {
    let offer =
        (bytes(30), bytes(30)).prop_map(|(hash_ids, group_ids)| Offer { hash_ids, group_ids });
    let negotiate = (any::<u16>(), any::<u8>(), proptest::option::of(offer))
        .prop_map(|(t_id, sc_c, offer)| Negotiate { t_id, sc_c, offer });
    let reply = (any::<u16>(), any::<u32>(), bytes(255), any::<bool>(), bytes(1100)).prop_map(
        |(t_id, s2, r1, challenges, value)| {
            let c2 = challenges.then(|| r1.iter().map(|byte| !byte).collect());
            Reply { t_id, s2, r1, c2, value }
        },
    );
    prop_oneof![
        negotiate.prop_map(HostMessage::Negotiate),
        reply.prop_map(HostMessage::Reply),
        any::<u16>().prop_map(|t_id| HostMessage::Success2(Success2 { t_id })),
        failure().prop_map(HostMessage::Failure2),
    ]
}

fn controller_message() -> impl Strategy<Value = ControllerMessage> {
    let challenge = (any::<u16>(), any::<u8>(), any::<u8>(), any::<u32>(), bytes(255), bytes(1100))
        .prop_map(|(t_id, hash_id, group_id, s1, c1, value)| {
            ControllerMessage::Challenge(Challenge { t_id, hash_id, group_id, s1, c1, value })
        });
    let success = (any::<u16>(), bytes(255), any::<bool>()).prop_map(|(t_id, r2, responds)| {
        let hash_bytes = r2.len() as u8;
        ControllerMessage::Success1(Success1 { t_id, hash_bytes, r2: responds.then_some(r2) })
    });
    prop_oneof![challenge, success, failure().prop_map(ControllerMessage::Failure1)]
}

/// The bytes of a message with some of them changed.
fn changed(message: Vec<u8>, changes: &[(usize, u8)]) -> Vec<u8> {
    let mut message = message;
    for &(at, value) in changes {
        let length = message.len();
        message[at % length] = value;
    }
    message
}

fn changes() -> impl Strategy<Value = Vec<(usize, u8)>> {
    vec((0..24_usize, any::<u8>()), 0..4)
}

proptest! {
    #[test]
    fn messages_are_read_back(host in host_message(), controller in controller_message()) {
        prop_assert_eq!(HostMessage::parse(&host.to_bytes()), Ok(host.clone()));
        prop_assert_eq!(ControllerMessage::parse(&controller.to_bytes()), Ok(controller.clone()));
        prop_assert!(ControllerMessage::parse(&host.to_bytes()).is_err());
        prop_assert!(HostMessage::parse(&controller.to_bytes()).is_err());
        fuzz::messages(&host.to_bytes());
        fuzz::messages(&controller.to_bytes());
    }

    #[test]
    fn changed_messages_are_safe(
        host in host_message(),
        controller in controller_message(),
        changes in changes(),
    ) {
        fuzz::messages(&changed(host.to_bytes(), &changes));
        fuzz::messages(&changed(controller.to_bytes(), &changes));
    }

    #[test]
    fn any_bytes_are_safe(data in bytes(400)) {
        fuzz::messages(&data);
        fuzz::keys(&data);
        fuzz::controller(&data);
        fuzz::host(&data);
    }

    #[test]
    fn any_text_is_safe(text in "(NVMeTLSkey-1:|DHHC-1:)?0[0-4]:[A-Za-z0-9+/]{0,100}={0,2}:?") {
        fuzz::keys(text.as_bytes());
    }

    #[test]
    fn any_attack_is_safe(settings in any::<[u8; 2]>(), steps in bytes(400)) {
        fuzz::controller(&[&settings, &steps[..]].concat());
        fuzz::host(&[&settings, &steps[..]].concat());
    }

    /// Mostly honest behaviour, for which zeroes stand, with lies in between.
    #[test]
    fn runs_with_a_lie_are_safe(
        settings in any::<[u8; 2]>(),
        steps in vec(prop_oneof![8 => Just(0_u8), 1 => any::<u8>()], 0..300),
    ) {
        fuzz::controller(&[&settings, &steps[..]].concat());
        fuzz::host(&[&settings, &steps[..]].concat());
    }
}

/// Runs without lies, with all hashes, groups and secrets.
#[test]
fn honest_runs() {
    for algorithms in 0..12 {
        for settings in 0..16 {
            let data = [&[algorithms, settings][..], &[0; 200]].concat();
            fuzz::controller(&data);
            fuzz::host(&data);
        }
    }
}
