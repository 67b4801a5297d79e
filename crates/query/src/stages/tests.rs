//! What targets answer, which is not trusted.

use crate::fuzz;
use proptest::prelude::*;

proptest! {
    #[test]
    fn no_answer_does_harm(
        (status, count) in (0..7_u32, prop_oneof![0..5_u32, any::<u32>()]),
        // As many as a range may have bytes.
        (rows, passed) in (0..=1_u64 << 20).prop_flat_map(|rows| (Just(rows), 0..=rows)),
        body in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..600),
            proptest::collection::vec(prop_oneof![Just(0_u8), Just(0xff), any::<u8>()], 0..600),
        ],
    ) {
        let mut bytes = [0_u64.to_le_bytes(), rows.to_le_bytes(), passed.to_le_bytes()].concat();
        bytes.splice(8..8, [status.to_le_bytes(), count.to_le_bytes()].concat());
        bytes.extend_from_slice(&body);
        fuzz::answer(&bytes);
    }
}
