//! Cipher suites, and the keys of a connection's two directions (RFC 8446 §7.1, §7.3, §B.4).

use aws_lc_rs::{aead, hkdf};
use std::fmt;
use thiserror::Error;
use zeroize::Zeroizing;

/// Length of a nonce and of an initialization vector, in bytes (RFC 8446 §5.3).
pub const IV_BYTES: usize = 12;
/// Length of the longest key, in bytes.
const KEY_MAX_BYTES: usize = 32;

/// A cipher suite (RFC 8446 §B.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// TLS_AES_128_GCM_SHA256, 1301h.
    Aes128GcmSha256,
    /// TLS_AES_256_GCM_SHA384, 1302h.
    Aes256GcmSha384,
    /// TLS_CHACHA20_POLY1305_SHA256, 1303h.
    Chacha20Poly1305Sha256,
}

impl Suite {
    /// All suites.
    pub const ALL: [Self; 3] =
        [Self::Aes128GcmSha256, Self::Aes256GcmSha384, Self::Chacha20Poly1305Sha256];

    /// The suite with this number; `None` if it is not one of these.
    #[must_use]
    pub const fn from_number(number: u16) -> Option<Self> {
        match number {
            0x1301 => Some(Self::Aes128GcmSha256),
            0x1302 => Some(Self::Aes256GcmSha384),
            0x1303 => Some(Self::Chacha20Poly1305Sha256),
            _ => None,
        }
    }

    /// Its number (RFC 8446 §B.4).
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::Aes128GcmSha256 => 0x1301,
            Self::Aes256GcmSha384 => 0x1302,
            Self::Chacha20Poly1305Sha256 => 0x1303,
        }
    }

    /// Its name (RFC 8446 §B.4).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes128GcmSha256 => "TLS_AES_128_GCM_SHA256",
            Self::Aes256GcmSha384 => "TLS_AES_256_GCM_SHA384",
            Self::Chacha20Poly1305Sha256 => "TLS_CHACHA20_POLY1305_SHA256",
        }
    }

    /// Length of its keys, in bytes: 16 or 32.
    #[must_use]
    pub const fn key_bytes(self) -> usize {
        match self {
            Self::Aes128GcmSha256 => 16,
            Self::Aes256GcmSha384 | Self::Chacha20Poly1305Sha256 => 32,
        }
    }

    /// Length of its traffic secrets, in bytes: 32 or 48.
    #[must_use]
    pub const fn secret_bytes(self) -> usize {
        match self {
            Self::Aes128GcmSha256 | Self::Chacha20Poly1305Sha256 => 32,
            Self::Aes256GcmSha384 => 48,
        }
    }

    /// Its cipher.
    pub(crate) fn aead(self) -> &'static aead::Algorithm {
        match self {
            Self::Aes128GcmSha256 => &aead::AES_128_GCM,
            Self::Aes256GcmSha384 => &aead::AES_256_GCM,
            Self::Chacha20Poly1305Sha256 => &aead::CHACHA20_POLY1305,
        }
    }

    fn hkdf(self) -> hkdf::Algorithm {
        match self {
            Self::Aes128GcmSha256 | Self::Chacha20Poly1305Sha256 => hkdf::HKDF_SHA256,
            Self::Aes256GcmSha384 => hkdf::HKDF_SHA384,
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A secret from which no keys can be derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a traffic secret has {length_bytes} bytes, but {suite} needs {}", suite.secret_bytes())]
pub struct KeyError {
    /// Length of the secret.
    pub length_bytes: usize,
    /// The suite that it was meant for.
    pub suite: Suite,
}

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that sent the ClientHello: an NVMe host.
    Client,
    /// The end that answered: an NVMe controller.
    Server,
}

/// The key, the initialization vector and the next record number of one direction.
///
/// It cannot be copied, because two users of one key would repeat nonces, which reveals the key. It is overwritten on
/// drop, and `Debug` does not show it.
pub struct TrafficKey {
    suite: Suite,
    key: Zeroizing<[u8; KEY_MAX_BYTES]>,
    iv: Zeroizing<[u8; IV_BYTES]>,
    sequence: u64,
}

impl TrafficKey {
    /// The keys of a traffic secret (RFC 8446 §7.3). `sequence` is the number of the next record: 0 after a handshake.
    ///
    /// # Errors
    /// A secret that is not [`Suite::secret_bytes`] long.
    pub fn derive(suite: Suite, secret: &[u8], sequence: u64) -> Result<Self, KeyError> {
        let error = KeyError { length_bytes: secret.len(), suite };
        if secret.len() != suite.secret_bytes() {
            return Err(error);
        }
        let mut key = Zeroizing::new([0; KEY_MAX_BYTES]);
        let mut iv = Zeroizing::new([0; IV_BYTES]);
        let used = key.get_mut(..suite.key_bytes()).ok_or(error)?;
        expand_label(suite, secret, b"key", used).ok_or(error)?;
        expand_label(suite, secret, b"iv", iv.as_mut_slice()).ok_or(error)?;
        Ok(Self { suite, key, iv, sequence })
    }

    /// Rebuilds keys from their [`suite`](Self::suite), [`key`](Self::key), [`iv`](Self::iv) and
    /// [`sequence`](Self::sequence), perhaps in another process; the keys must have no other user. `None` if `key` is
    /// not [`Suite::key_bytes`] long.
    #[must_use]
    pub fn from_parts(
        suite: Suite,
        key: &[u8],
        iv: &[u8; IV_BYTES],
        sequence: u64,
    ) -> Option<Self> {
        if key.len() != suite.key_bytes() {
            return None;
        }
        let mut padded = Zeroizing::new([0; KEY_MAX_BYTES]);
        padded.get_mut(..key.len())?.copy_from_slice(key);
        Some(Self { suite, key: padded, iv: Zeroizing::new(*iv), sequence })
    }

    /// Advances to the next record; `None` after the last.
    pub(crate) fn advance(&mut self) -> Option<()> {
        self.sequence = self.sequence.checked_add(1)?;
        Some(())
    }

    /// The suite.
    #[must_use]
    pub const fn suite(&self) -> Suite {
        self.suite
    }

    /// The key, [`Suite::key_bytes`] long.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.key.get(..self.suite.key_bytes()).unwrap_or(&[])
    }

    /// The initialization vector: a record's nonce is this, exclusive-or the record's number.
    #[must_use]
    pub fn iv(&self) -> &[u8; IV_BYTES] {
        &self.iv
    }

    /// Number of the next record.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }
}

impl fmt::Debug for TrafficKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { suite, key: _, iv: _, sequence } = self;
        f.debug_struct("TrafficKey")
            .field("suite", suite)
            .field("sequence", sequence)
            .finish_non_exhaustive()
    }
}

/// HKDF-Expand-Label with an empty context (RFC 8446 §7.1), into all of `out`.
fn expand_label(suite: Suite, secret: &[u8], label: &[u8], out: &mut [u8]) -> Option<()> {
    struct Length(usize);
    impl hkdf::KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    const PREFIX: &[u8] = b"tls13 ";
    let length = u16::try_from(out.len()).ok()?.to_be_bytes();
    let label_length = [u8::try_from(PREFIX.len() + label.len()).ok()?];
    let context_length = [0];
    let prk = hkdf::Prk::new_less_safe(suite.hkdf(), secret);
    let info = [&length[..], &label_length, PREFIX, label, &context_length];
    prk.expand(&info, Length(out.len())).ok()?.fill(out).ok()
}

/// A connection after its handshake.
#[derive(Debug)]
pub struct Secured {
    /// Identity of the key that both ends share, which identifies the peer.
    pub identity: String,
    /// The suite of both directions.
    pub suite: Suite,
    /// Which end this is.
    pub side: Side,
    /// Seals records that this end sends.
    pub write: TrafficKey,
    /// Opens records that the peer sends.
    pub read: TrafficKey,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> =
            text.bytes().filter_map(|byte| (byte as char).to_digit(16)).map(|d| d as u8).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    /// RFC 8448 §3, "derive write traffic keys for application data".
    #[test]
    fn known_answers_of_rfc_8448() {
        let client = hex("9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5");
        let keys = TrafficKey::derive(Suite::Aes128GcmSha256, &client, 0).unwrap();
        assert_eq!(keys.key(), hex("17422dda596ed5d9acd890e3c63f5051"));
        assert_eq!(keys.iv()[..], hex("5b78923dee08579033e523d9"));
        let server = hex("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643");
        let keys = TrafficKey::derive(Suite::Aes128GcmSha256, &server, 0).unwrap();
        assert_eq!(keys.key(), hex("9f02283b6c9c07efc26bb9f2ac92e356"));
        assert_eq!(keys.iv()[..], hex("cf782b88dd83549aadf1e984"));
    }

    #[test]
    fn secrets_have_the_length_of_the_hash() {
        for suite in Suite::ALL {
            assert_eq!(Suite::from_number(suite.number()), Some(suite));
            for length_bytes in [0, 16, 31, 32, 33, 48, 64] {
                let derived = TrafficKey::derive(suite, &vec![7; length_bytes], 0);
                assert_eq!(derived.is_ok(), length_bytes == suite.secret_bytes());
                if let Ok(keys) = derived {
                    assert_eq!(keys.key().len(), suite.key_bytes());
                }
            }
        }
        assert_eq!(Suite::from_number(0x1304), None);
    }

    #[test]
    fn keys_are_not_shown() {
        let keys = TrafficKey::derive(Suite::Aes128GcmSha256, &[7; 32], 9).unwrap();
        let expected = "TrafficKey { suite: Aes128GcmSha256, sequence: 9, .. }";
        assert_eq!(format!("{keys:?}"), expected);
    }
}
