//! Any bytes give a value or a typed error, and records can be split in any way.

use bpfof_tls::fuzz;
use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #[test]
    fn any_client_hello(data in vec(any::<u8>(), 0..2000)) {
        fuzz::client_hello(&data);
    }

    #[test]
    fn identities_of_any_size(data in vec(vec(any::<u8>(), 2..40), 0..40)) {
        let data: Vec<u8> = data
            .into_iter()
            .flat_map(|mut offer| {
                offer[0] = (offer.len() - 2) as u8;
                offer
            })
            .collect();
        fuzz::client_hello(&data);
    }

    #[test]
    fn any_change_of_the_offers(
        data in vec(prop_oneof![any::<u8>(), 8..13_u8, 0..4_u8], 0..300),
    ) {
        fuzz::client_hello(&data);
    }

    #[test]
    fn any_records(data in vec(any::<u8>(), 0..60)) {
        fuzz::records(&data);
    }

    /// Sizes are mostly small, so that many steps are made.
    #[test]
    fn records_in_pieces(
        settings in any::<[u8; 5]>(),
        steps in vec(prop_oneof![0..14_u8, any::<u8>()], 0..200),
    ) {
        fuzz::records(&[&settings, &steps[..]].concat());
    }

    #[test]
    fn any_change_of_a_client_hello(data in vec(any::<u8>(), 0..100)) {
        fuzz::handshake(&data);
    }

    #[test]
    fn client_hellos_in_records(size in any::<u8>(), kinds in vec(any::<u8>(), 0..40)) {
        fuzz::handshake(&[&[0, size], &kinds[..]].concat());
    }
}

#[test]
fn inputs_worth_keeping() {
    for data in [&[][..], &[0], &[1, 32, b'x'], &[1, 48, b'x', 1, 31, b'y'], &[0, 0, 0]] {
        fuzz::client_hello(data);
    }
    for settings in 0..6 {
        for kind in 0..14 {
            for byte in [0, 1, 7, 63, 200, 255] {
                // Data, then a step of one kind with the same byte for each of its choices, then data again.
                let steps = [0, 5, 0, 0, kind, byte, byte, byte, byte, byte, 0, 5, 0, 0];
                fuzz::records(&[&[settings, 0, 3, 0, 255], &steps[..]].concat());
            }
        }
    }
    // A byte of an unused binder is changed: the checked binder covers nothing after itself.
    fuzz::handshake(&[
        212, 0, 0, 74, 46, 150, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 126, 46, 104, 30, 147, 106, 208, 112,
        188, 251, 14, 0, 145, 151,
    ]);
    // Cut at every byte, and in records of each size.
    for at in 0..1024_u16 {
        let [high, low] = at.to_be_bytes();
        fuzz::handshake(&[0x20, high, low]);
        fuzz::handshake(&[0, low]);
    }
}
