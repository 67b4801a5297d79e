//! Pre-shared keys, and the server's store of them (RFC 8446 §4.2.11, RFC 9257, NVMe/TCP 1.0 §3.6).

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher;
use thiserror::Error;
use zeroize::Zeroizing;

/// Longest identity of a [`Psk`], in bytes. The longest one of NVMe/TCP has 521: two qualified
/// names of 223 bytes, a digest of 64 characters and a prefix.
pub const IDENTITY_MAX_BYTES: usize = 1024;
/// Shortest secret, in bytes: 128 bits (RFC 9257 §6).
pub const SECRET_MIN_BYTES: usize = 16;
/// Longest secret, in bytes: the output of SHA-512. NVMe/TCP has 32 and 48.
pub const SECRET_MAX_BYTES: usize = 64;

/// The hash of a binder, and with it that of the handshake (RFC 8446 §4.2.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PskHash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
}

impl PskHash {
    /// Length of its output, in bytes: 32 or 48.
    #[must_use]
    pub const fn output_bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
        }
    }

    /// The hash of a binder that is `binder_bytes` long; `None` if it is neither 32 nor 48.
    #[must_use]
    pub const fn from_binder_bytes(binder_bytes: usize) -> Option<Self> {
        match binder_bytes {
            32 => Some(Self::Sha256),
            48 => Some(Self::Sha384),
            _ => None,
        }
    }
}

/// Why an identity and a secret do not make a [`Psk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PskError {
    /// The identity has an invalid length.
    #[error("an identity has {length_bytes} bytes, not 1 to {IDENTITY_MAX_BYTES}")]
    Identity {
        /// Length of the identity.
        length_bytes: usize,
    },
    /// The secret has an invalid length.
    #[error("a secret has {length_bytes} bytes, not {SECRET_MIN_BYTES} to {SECRET_MAX_BYTES}")]
    Secret {
        /// Length of the secret.
        length_bytes: usize,
    },
}

/// A pre-shared key. Its secret is overwritten on drop, and `Debug` does not show it.
#[derive(Clone)]
pub struct Psk {
    identity: String,
    secret: Zeroizing<Vec<u8>>,
    hash: PskHash,
}

impl Psk {
    /// A key. `secret` is copied: the caller must overwrite its own copy. For NVMe/TCP it is the
    /// TLS PSK, not the configured or retained key.
    ///
    /// # Errors
    /// An identity or a secret of an invalid length.
    pub fn new(identity: &str, secret: &[u8], hash: PskHash) -> Result<Self, PskError> {
        if identity.is_empty() || identity.len() > IDENTITY_MAX_BYTES {
            return Err(PskError::Identity { length_bytes: identity.len() });
        }
        if !(SECRET_MIN_BYTES..=SECRET_MAX_BYTES).contains(&secret.len()) {
            return Err(PskError::Secret { length_bytes: secret.len() });
        }
        Ok(Self { identity: identity.to_owned(), secret: Zeroizing::new(secret.to_vec()), hash })
    }

    /// The identity by which a client names the key. It crosses the network in the clear.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The secret, 16 to 64 bytes.
    #[must_use]
    pub fn secret(&self) -> &[u8] {
        &self.secret
    }

    /// The hash of a client's binder. A server uses the hash of the binder that it received.
    #[must_use]
    pub const fn hash(&self) -> PskHash {
        self.hash
    }
}

impl fmt::Debug for Psk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { identity, secret: _, hash } = self;
        f.debug_struct("Psk")
            .field("identity", identity)
            .field("hash", hash)
            .finish_non_exhaustive()
    }
}

/// Finds the key that a client offers to a server.
///
/// It is called once for each identity in a ClientHello until it returns a key, on the thread that
/// called [`accept`](crate::accept). It must not panic: its callers include C code, so that a panic
/// ends the process.
pub trait PskStore: Send + Sync {
    /// The key of `identity`, with that very identity, or `None`.
    ///
    /// `binder` is the hash of the client's binder. It determines the hash of the handshake,
    /// whatever [`Psk::hash`] says: some clients use SHA-256 with keys for SHA-384. A store that
    /// requires the two to agree returns `None` if they differ.
    fn find(&self, identity: &[u8], binder: PskHash) -> Option<Psk>;
}

/// Keys by their identities, used with either hash.
impl<S: BuildHasher + Send + Sync> PskStore for HashMap<String, Psk, S> {
    fn find(&self, identity: &[u8], _binder: PskHash) -> Option<Psk> {
        self.get(std::str::from_utf8(identity).ok()?).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_checked() {
        let hash = PskHash::Sha256;
        assert!(Psk::new("a", &[0; 16], hash).is_ok());
        assert!(Psk::new(&"a".repeat(1024), &[0; 64], hash).is_ok());
        for length_bytes in [0, 1025] {
            let error = Psk::new(&"a".repeat(length_bytes), &[0; 32], hash).unwrap_err();
            assert_eq!(error, PskError::Identity { length_bytes });
        }
        for length_bytes in [0, 15, 65] {
            let error = Psk::new("a", &vec![0; length_bytes], hash).unwrap_err();
            assert_eq!(error, PskError::Secret { length_bytes });
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let psk = Psk::new("someone", &[0xA5; 32], PskHash::Sha256).unwrap();
        let shown = format!("{psk:?}");
        assert!(shown.contains("someone"), "{shown}");
        assert!(!shown.contains("165") && !shown.to_lowercase().contains("a5"), "{shown}");
    }

    #[test]
    fn a_map_is_a_store() {
        let psk = Psk::new("someone", &[1; 32], PskHash::Sha384).unwrap();
        let store = HashMap::from([("someone".to_owned(), psk)]);
        let found = store.find(b"someone", PskHash::Sha256).expect("found");
        assert_eq!((found.identity(), found.secret()), ("someone", &[1; 32][..]));
        assert!(store.find(b"someone ", PskHash::Sha256).is_none());
        assert!(store.find(b"\xFF", PskHash::Sha256).is_none());
    }
}
