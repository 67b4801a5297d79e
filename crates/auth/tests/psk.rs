//! Known answers for TLS keys, from independent code, and keys that are refused.

use bpfof_auth::{ConfiguredPsk, Derivation, IdentityVersion, KeyProblem, Names, PskHash};
use bpfof_auth::{KeyKind, Secret};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-aabbccddeeff";
const SUBSYSTEM: &str = "nqn.2026-01.io.bpf-of:target";

/// Keys of bytes 00, 01, 02, …, in order HH 01, 00, 02, 00.
const KEYS: [&str; 4] = [
    "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
    "NVMeTLSkey-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
    "NVMeTLSkey-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:",
    "NVMeTLSkey-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:",
];

use Derivation::{Compat, Standard};
use IdentityVersion::{V0, V1};

/// Key, version, derivation, digest in the identity, key for TLS.
const ANSWERS: [(usize, IdentityVersion, Derivation, &str, &str); 16] = [
    (
        0,
        V1,
        Standard,
        "89EbGACb/lBIYTDSNT9hBZ3jYFLWjH1o1y3N6IqOQI8=",
        "908286346beecbb202b5b035ee0ea65b8b02f1b225b828724b7548c13fccecb0",
    ),
    (
        0,
        V1,
        Compat,
        "BFOQutxQdK/+cfrZi8rMuKDXBg7LIoUNyNyy+ZsR2Ag=",
        "af3114702d4b2d2d8589bb75af02c236a0836e82105f58d75e0d6a608de4cf6d",
    ),
    (0, V0, Standard, "", "a79453c8f6879a8caedbc38fc966e7b5edca7f963324761fc93e10ae0923c5f8"),
    (0, V0, Compat, "", "297818851349d05a071aaf7108b554b87015de44bfe1846e1f2b83c973533808"),
    (
        1,
        V1,
        Standard,
        "7VAmd/aAPTyeiy3TpvfOHE61kCCvHDJYqpOD7ELb4vg=",
        "eee6693695556a57f7820d8b60414467a626ffbfcc14b2c8fc1c70498e76dd5c",
    ),
    (
        1,
        V1,
        Compat,
        "7VAmd/aAPTyeiy3TpvfOHE61kCCvHDJYqpOD7ELb4vg=",
        "daffae19e4db381f10c282dd2aa535968b4b6c40e38573bdf021b0a184c3da43",
    ),
    (1, V0, Standard, "", "abde2df2205f07924d9c2fc686a06dc6170e6fad8cf9b3c858379e804915ed4d"),
    (1, V0, Compat, "", "cd4ab8e7159ea2158c16f017b52df3a97fc5980f30c97c93e4858a2c7d271425"),
    (
        2,
        V1,
        Standard,
        "Pot0gTMlwxtk4jNfHuFG/4mCAPuCPqnvM9ofnjhQAnh6zg7kWxj4a50G+XzsFTm2",
        "e416af9baf2a0b52b93beabbd96e38f5d1078afd4e0a8d0cace626e9d189da20\
         2c529a99854395481341831e5f4d4c48",
    ),
    (
        2,
        V1,
        Compat,
        "17Hx3D4WIC0fx5ejfURUbzer7+wYeOSn3IrkYCLXY/g4XIWYC4toy5CBnIuLD/4j",
        "9f62725656bd4b3f877e342166255372da4704fb25fafd2ca4d65da7df170039\
         ee98cbe990ebeacbb0e88ad947352214",
    ),
    (
        2,
        V0,
        Standard,
        "",
        "35de6335fa2c6f5cb8c702ae6cc621cfdd9e1b9322c06e3e93cfb51282a5f4b9\
         8062467d64e17fca23fa3a690284b304",
    ),
    (
        2,
        V0,
        Compat,
        "",
        "7540f4649ae6bb3fda913acbbc1f9f9e67f1a98e466083b64a909ad850157529\
         17f093277f944c466edbca048bcc3708",
    ),
    (
        3,
        V1,
        Standard,
        "zlFBx9FgxewNrHPl/gmblTuhow3msZdghMve/zW2HAvEYC4tL0vBUbd8QVtrouPD",
        "97ef222a745bbe1928f62fb02d34369637c9375045c57b5fb50e0605591b42b1\
         54cced9107f1434e9dfbdbc54fd7308d",
    ),
    (
        3,
        V1,
        Compat,
        "zlFBx9FgxewNrHPl/gmblTuhow3msZdghMve/zW2HAvEYC4tL0vBUbd8QVtrouPD",
        "468edc0ce21474eb6131fbfc7ac28ba9a2cfc53bcf1d06404d5c345cf2f1145f\
         3a3f41debe81303458df547b70f074d2",
    ),
    (
        3,
        V0,
        Standard,
        "",
        "38e2905d112ede19698d7138bf39bd30378ae56561ee2c397e2db4bb34993e40\
         73083b41bcf2eefcd5dfcff5fdbc47c7",
    ),
    (
        3,
        V0,
        Compat,
        "",
        "fa22eea52472e4bc9dd4e572deffacb42cee9f9e70e20eebc2c9bbcbdfbe06cf\
         af80c5e6f081753bc43c007ee1cc230f",
    ),
];

fn names() -> Names {
    Names::new(HOST, SUBSYSTEM).unwrap()
}

fn hex(secret: &Secret) -> String {
    secret.expose().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn known_answers() {
    for (key, version, derivation, digest, psk) in ANSWERS {
        let configured = ConfiguredPsk::parse(KEYS[key]).unwrap();
        let found = configured.identity(&names(), version, derivation).unwrap();
        assert_eq!(hex(&found.psk), psk);
        let hash = if key < 2 { "01" } else { "02" };
        let expected = match version {
            V0 => format!("NVMe0R{hash} {HOST} {SUBSYSTEM}"),
            V1 => format!("NVMe1R{hash} {HOST} {SUBSYSTEM} {digest}"),
        };
        assert_eq!(found.identity, expected);
        assert_eq!((found.version, found.derivation), (version, derivation));
        assert_eq!(found.hash, if key < 2 { PskHash::Sha256 } else { PskHash::Sha384 });
    }
}

#[test]
fn a_target_knows_every_identity_once() {
    for (key, text) in KEYS.into_iter().enumerate() {
        let configured = ConfiguredPsk::parse(text).unwrap();
        for ambiguous in [Standard, Compat] {
            let all = configured.identities(&names(), ambiguous);
            // HH 00 does not show how a host derives keys, so only one way is returned.
            assert_eq!(all.len(), if key % 2 == 0 { 3 } else { 2 });
            for (at, one) in all.iter().enumerate() {
                let again = configured.identity(&names(), one.version, one.derivation);
                assert_eq!(again.as_ref(), Ok(one));
                assert!(all[at + 1..].iter().all(|other| other.identity != one.identity));
                let derivation = one.derivation == ambiguous;
                assert!(derivation || (key % 2 == 0 && one.version == V1));
            }
        }
    }
}

#[test]
fn texts() {
    for text in KEYS {
        let key = ConfiguredPsk::parse(text).unwrap();
        assert_eq!(key.to_text().expose(), text.as_bytes());
        assert!([65, 89].contains(&text.len()));
        assert!(!format!("{key:?}").contains("AAEC"));
    }
    for hash in [PskHash::Sha256, PskHash::Sha384] {
        let key = ConfiguredPsk::generate(hash).unwrap();
        let text = key.to_text();
        let text = std::str::from_utf8(text.expose()).unwrap();
        assert_eq!(ConfiguredPsk::parse(text), Ok(key.clone()));
        assert_eq!(key.hash(), hash);
    }
}

#[test]
fn hash_and_length_must_agree() {
    for (text, hash_id, key_bytes) in
        [(KEYS[0].replace(":01:", ":02:"), 2, 32), (KEYS[2].replace(":02:", ":01:"), 1, 48)]
    {
        let error = ConfiguredPsk::parse(&text).unwrap_err();
        assert_eq!(error.kind, KeyKind::TlsPsk);
        assert_eq!(error.problem, KeyProblem::HashForLength { hash_id, key_bytes });
    }
    let error = ConfiguredPsk::parse(&KEYS[0].replace(":01:", ":03:")).unwrap_err();
    assert_eq!(error.problem, KeyProblem::UnknownHash(3));
    assert_eq!(
        error.to_string(),
        "the TLS key cannot be used: its hash is 03, which is not defined; make one by \
         `bpfof key new tls`"
    );
}

#[test]
fn long_names_leave_version_0_out() {
    let names = Names::new("h".repeat(223), "s".repeat(223)).unwrap();
    let key = ConfiguredPsk::parse(KEYS[0]).unwrap();
    let error = key.identity(&names, V0, Standard).unwrap_err();
    assert_eq!(error.found_bytes, 456);
    assert!(key.identity(&names, V0, Compat).is_ok());
    let versions = |ambiguous| -> Vec<IdentityVersion> {
        key.identities(&names, ambiguous).iter().map(|identity| identity.version).collect()
    };
    assert_eq!(versions(Standard), [V1, V1]);
    assert_eq!(versions(Compat), [V1, V1, V0]);
    // 255 bytes are allowed: "NVMe0R01 " and 246 more.
    let names = Names::new("h".repeat(122), "s".repeat(123)).unwrap();
    assert_eq!(key.identity(&names, V0, Standard).unwrap().identity.len(), 255);
    let names = Names::new("h".repeat(123), "s".repeat(123)).unwrap();
    assert_eq!(key.identity(&names, V0, Standard).unwrap_err().found_bytes, 256);
}
