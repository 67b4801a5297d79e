//! The fuzzing entry on seeds and on random input.

use crate::fuzz;
use proptest::prelude::*;

/// Bytes that are not random: a simple generator, so that a failing number reproduces.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

#[test]
fn seeds() {
    fuzz::connection(&[]);
    for mode in 0..16 {
        fuzz::connection(&[mode]);
        for seed in 0..12 {
            let mut data = vec![mode];
            data.extend(noise(seed, 3000));
            fuzz::connection(&data);
        }
        // Every kind of action alone, with the same byte for each of its choices.
        for action in 0..12u8 {
            for byte in [0, 1, 7, 63, 255] {
                let mut data = vec![mode, 0, 0];
                for _ in 0..20 {
                    data.push(action);
                    data.extend([byte; 40]);
                }
                fuzz::connection(&data);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..1500)) {
        fuzz::connection(&data);
    }
}
