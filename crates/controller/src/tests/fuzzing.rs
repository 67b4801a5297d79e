//! Runs the fuzzing entry points on seeds and on random input.

use crate::fuzz;
use fastrand::Rng;
use proptest::prelude::*;

/// Pseudo-random bytes, the same in every run.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

#[test]
fn seeds() {
    fuzz::connection(&[]);
    for mode in 0..32 {
        fuzz::connection(&[mode]);
        for seed in 0..12 {
            let mut data = vec![mode];
            data.extend(noise(seed, 3000));
            fuzz::connection(&data);
        }
        // Each kind of action alone, with the same byte for all of its choices.
        for action in 0..18u8 {
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

#[test]
fn admin_seeds() {
    fuzz::admin(&[]);
    // The maximum number of concurrent transfers, each of maximum length.
    fuzz::admin(&[&[0][..], &[76; 124], &[142, 246, 11, 41]].concat());
    for mode in 0..32 {
        for seed in 0..8 {
            let mut data = vec![mode];
            data.extend(noise(seed, 2000));
            fuzz::admin(&data);
        }
    }
    // Each kind of action alone, with the same byte for all of its choices.
    for mode in [0, 3, 16, 24] {
        for action in 0..32u8 {
            for byte in [0, 1, 4, 8, 63, 255] {
                let mut data = vec![mode, 0, 0, 0];
                for _ in 0..20 {
                    data.push(action);
                    data.extend([byte; 20]);
                }
                fuzz::admin(&data);
            }
        }
    }
}

#[test]
fn configurations() {
    for kind in 0..4 {
        fuzz::config(&[kind]);
        for seed in 0..200 {
            let mut data = vec![kind];
            data.extend(noise(seed, 300));
            fuzz::config(&data);
        }
    }
    for text in [
        "\0namespaces = [\"mem:size=1M,lba=4096\", \"file:path=/dev/x=y\"]\nmax-hops = 5\n",
        "\0namespaces = [\"\"]",
        "\0listen = \"[::1]:9\"\n\n[",
        "\0namespaces = [\"mem:size=1M\"]\ntls = \"required\"\n[[host]]\nnqn = \"nqn.2026-01.org.x:a\"\n\
         tls-psk = [\"/k\"]\ntls-compat = true\ndhchap-key = [\"/a\", \"/b\"]\ndhchap-ctrl-key = \"/c\"\n",
        "\0namespaces = [\"mem:size=1M\"]\n[[host]]\nnqn = \"*\"\nrights = [\"load\", \"read\"]\n\
         dhchap-ctrl-key = \"/c\"\n",
        "\u{1}mem:size=12MiB,nqn=nqn.2026-01.org.x:\"y\"",
        "\u{1}file:path=\u{e9}\\,size=,lba",
        "\u{2}12GiB",
        "\u{2}+1",
        "\u{2}99999999999999999999T",
    ] {
        fuzz::config(text.as_bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..1500)) {
        fuzz::connection(&data);
    }

    #[test]
    fn any_bytes_of_admin_commands(data in proptest::collection::vec(any::<u8>(), 0..1500)) {
        fuzz::admin(&data);
    }

    #[test]
    fn any_bytes_of_configurations(data in proptest::collection::vec(any::<u8>(), 0..200)) {
        fuzz::config(&data);
    }
}
