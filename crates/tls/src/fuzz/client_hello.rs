//! ClientHellos for our own parser.

use super::hello::Hello;
use super::input::Input;
use crate::client_hello::{self, ClientHelloError, OFFERS_MAX, OfferedPsk, offered_psks};
use crate::identity::PskHash;

/// A ClientHello: any bytes give keys within limits or an error; all offered keys are read; no prefix of a valid
/// message is valid.
///
/// The input is used as a message; then as identities, each preceded by its length and its binder's length; and as
/// changes of a valid message.
pub fn client_hello(data: &[u8]) {
    changed(data);
    if let Ok(offers) = offered_psks(data) {
        assert!((1..=OFFERS_MAX).contains(&offers.len()));
        let within = data.as_ptr_range();
        for OfferedPsk { identity, .. } in offers {
            assert!(!identity.is_empty());
            let range = identity.as_ptr_range();
            assert!(within.start <= range.start && range.end <= within.end);
        }
    }

    let (mut identities, mut binders, mut rest) = (Vec::new(), Vec::new(), data);
    while let [length, binder_bytes, behind @ ..] = rest {
        let length = usize::from(*length).clamp(1, behind.len().max(1));
        let Some((identity, behind)) = behind.split_at_checked(length) else { break };
        identities.push(identity);
        binders.push(usize::from(*binder_bytes));
        rest = behind;
    }
    let message = client_hello::encode(&identities, &binders);
    // Longer than `encode` can write.
    if message.len() > usize::from(u16::MAX) {
        return;
    }
    let read = offered_psks(&message);
    match identities.len() {
        0 => assert!(read.is_err()),
        1..=OFFERS_MAX => {
            let expected: Vec<OfferedPsk<'_>> = identities
                .iter()
                .zip(binders)
                .map(|(identity, binder_bytes)| OfferedPsk {
                    identity,
                    hash: PskHash::from_binder_bytes(binder_bytes),
                })
                .collect();
            assert_eq!(read.as_deref(), Ok(&expected[..]));
            let cut = data.iter().map(|byte| usize::from(*byte)).sum::<usize>() % message.len();
            assert!(offered_psks(&message[..cut]).is_err());
        }
        _ => assert_eq!(read, Err(ClientHelloError::TooMany)),
    }
}

/// A valid message with changes that keep its length fields consistent.
fn changed(data: &[u8]) {
    let mut input = Input(data);
    let good = client_hello::encode(&[b"one"], &[32]);
    let mut hello = Hello::of(&[&[0; 9][..], &good].concat());
    for _ in 0..input.byte() % 64 {
        hello.change(&mut input);
    }
    let message = hello.message(None);
    let read = offered_psks(&message[4..]);
    if hello.is_sound && message.len() < usize::from(u16::MAX) {
        assert_eq!(read, hello.offers_all());
    }
}
