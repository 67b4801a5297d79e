//! A cipher with its key, and the number of the next record.

use crate::keys::TrafficKey;
use aws_lc_rs::aead::{LessSafeKey, Nonce, UnboundKey};

/// A cipher with its key, and the number of the next record.
pub(crate) struct Cipher {
    key: LessSafeKey,
    traffic: TrafficKey,
}

impl Cipher {
    /// `None` if the cryptographic library refuses the key.
    pub(crate) fn new(traffic: TrafficKey) -> Option<Self> {
        let unbound = UnboundKey::new(traffic.suite().aead(), traffic.key()).ok()?;
        Some(Self { key: LessSafeKey::new(unbound), traffic })
    }

    pub(crate) const fn key(&self) -> &LessSafeKey {
        &self.key
    }

    /// Number of the next record.
    pub(crate) const fn sequence(&self) -> u64 {
        self.traffic.sequence()
    }

    /// The nonce of the next record (RFC 8446 §5.3).
    pub(crate) fn nonce(&self) -> Nonce {
        let [head @ .., a, b, c, d, e, f, g, h] = *self.traffic.iv();
        let [i, j, k, l] = head;
        let tail = u64::from_be_bytes([a, b, c, d, e, f, g, h]) ^ self.sequence();
        let [a, b, c, d, e, f, g, h] = tail.to_be_bytes();
        Nonce::assume_unique_for_key([i, j, k, l, a, b, c, d, e, f, g, h])
    }

    /// Advances to the next record; `None` after the last.
    pub(crate) fn advance(&mut self) -> Option<()> {
        self.traffic.advance()
    }

    /// The key, in the state for the next record.
    pub(crate) fn into_key(self) -> TrafficKey {
        self.traffic
    }
}
