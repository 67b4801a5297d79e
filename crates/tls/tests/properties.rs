//! Any bytes give a value or a typed error, and records do not mind how they are split.

use bpfof_tls::fuzz;
use proptest::collection::vec;
use proptest::prelude::*;

/// Steps of `fuzz::records` with sizes that are mostly small.
fn steps() -> impl Strategy<Value = Vec<u8>> {
    let step = (any::<u8>(), prop_oneof![0..4_u8, 0..=255_u8], any::<u8>());
    vec(step, 0..12).prop_map(|steps| steps.into_iter().flat_map(|(a, b, c)| [a, b, c]).collect())
}

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
    fn any_records(data in vec(any::<u8>(), 0..60)) {
        fuzz::records(&data);
    }

    #[test]
    fn records_in_pieces(settings in 0..16_u8, piece in any::<u8>(), change in any::<[u8; 3]>(), steps in steps()) {
        let data = [&[settings, piece][..], &change, &steps].concat();
        fuzz::records(&data);
    }
}

#[test]
fn inputs_worth_keeping() {
    for data in [&[][..], &[0], &[1, 32, b'x'], &[1, 48, b'x', 1, 31, b'y'], &[0, 0, 0]] {
        fuzz::client_hello(data);
    }
    for settings in 0..16 {
        // Data, a ticket, data, close_notify, data; then a type that does not belong there.
        let head = [settings, 3, 0, 9, 1];
        let closed = [0, 0, 9, 4, 0, 70, 1, 80, 0, 6, 0, 0, 0, 0, 5];
        let foreign = [0, 0, 9, 7, 1, 1, 0, 0, 5];
        let long = [3, 255, 255, 4, 255, 255, 0, 64, 1];
        for steps in [&closed[..], &foreign, &long] {
            fuzz::records(&[&head, steps].concat());
        }
    }
}
