//! The hash functions of NVMe authentication, and HMAC with them (RFC 2104).

use crate::secret::Secret;
use hmac::digest::{Digest, KeyInit, Mac};
use hmac::{Hmac, digest::Output};
use sha2::{Sha256, Sha384, Sha512};
use std::fmt;
use zeroize::Zeroize;

/// A hash function. Its number is the same in keys, in TLS identities and in DH-HMAC-CHAP (NVMe
/// Base 2.0 §8.13.5.2; NVMe/TCP 1.0 §3.6.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hash {
    /// SHA-256, number 1.
    Sha256,
    /// SHA-384, number 2.
    Sha384,
    /// SHA-512, number 3.
    Sha512,
}

fn mac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> M {
    // HMAC takes a key of any length: it hashes those that are longer than a block.
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(part);
    }
    mac
}

fn finish<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Secret {
    let mut code = mac::<M>(key, parts).finalize().into_bytes();
    let secret = Secret::new(code.to_vec());
    code.as_mut_slice().zeroize();
    secret
}

fn digest<D: Digest>(bytes: &[u8]) -> Secret {
    let mut found: Output<D> = D::digest(bytes);
    let secret = Secret::new(found.to_vec());
    found.as_mut_slice().zeroize();
    secret
}

impl Hash {
    /// All of them, by number.
    pub const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    /// Its number: 1, 2 or 3.
    #[must_use]
    pub const fn id(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha384 => 2,
            Self::Sha512 => 3,
        }
    }

    /// The hash with this number.
    #[must_use]
    pub const fn from_id(id: u8) -> Option<Self> {
        match id {
            1 => Some(Self::Sha256),
            2 => Some(Self::Sha384),
            3 => Some(Self::Sha512),
            _ => None,
        }
    }

    /// Length of its output in bytes: 32, 48 or 64.
    #[must_use]
    pub const fn length_bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// The hash of `bytes`.
    pub(crate) fn digest(self, bytes: &[u8]) -> Secret {
        match self {
            Self::Sha256 => digest::<Sha256>(bytes),
            Self::Sha384 => digest::<Sha384>(bytes),
            Self::Sha512 => digest::<Sha512>(bytes),
        }
    }

    /// HMAC of `parts`, one after the other.
    pub(crate) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Secret {
        match self {
            Self::Sha256 => finish::<Hmac<Sha256>>(key, parts),
            Self::Sha384 => finish::<Hmac<Sha384>>(key, parts),
            Self::Sha512 => finish::<Hmac<Sha512>>(key, parts),
        }
    }

    /// Whether `code` is the whole HMAC of `parts`, in constant time.
    pub(crate) fn hmac_is(self, key: &[u8], parts: &[&[u8]], code: &[u8]) -> bool {
        match self {
            Self::Sha256 => mac::<Hmac<Sha256>>(key, parts).verify_slice(code).is_ok(),
            Self::Sha384 => mac::<Hmac<Sha384>>(key, parts).verify_slice(code).is_ok(),
            Self::Sha512 => mac::<Hmac<Sha512>>(key, parts).verify_slice(code).is_ok(),
        }
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sha256 => "SHA-256",
            Self::Sha384 => "SHA-384",
            Self::Sha512 => "SHA-512",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::hex;

    #[test]
    fn rfc_4231_test_case_2() {
        let found = Hash::Sha256.hmac(b"Jefe", &[b"what do ya ", b"want for nothing?"]);
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(found.expose(), hex(expected));
        for hash in Hash::ALL {
            assert_eq!(Hash::from_id(hash.id()), Some(hash));
            let mut code = hash.hmac(&[7; 200], &[b"abc"]).expose().to_vec();
            assert_eq!(code.len(), hash.length_bytes());
            assert!(hash.hmac_is(&[7; 200], &[b"a", b"bc"], &code));
            assert!(!hash.hmac_is(&[7; 200], &[b"abc"], &code[1..]));
            assert!(!hash.hmac_is(&[7; 200], &[b"abc"], &[]));
            code[5] ^= 1;
            assert!(!hash.hmac_is(&[7; 200], &[b"abc"], &code));
        }
        assert_eq!((Hash::from_id(0), Hash::from_id(4)), (None, None));
    }
}
