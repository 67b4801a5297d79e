//! The TLS key that a host has proved to have.

use super::rules::{Identity, Rules};
use std::sync::Arc;

/// The key of a handshake: its PSK identity, and the rules that had it when the handshake began.
pub(crate) struct HandshakeKey {
    pub(crate) psk_identity: String,
    pub(crate) rules: Arc<Rules>,
}

impl HandshakeKey {
    /// The names that the key stands for, if `rules` still have it.
    pub(crate) fn identity(&self, rules: &Rules) -> Option<Identity> {
        rules.still_stands_for(&self.psk_identity, &self.rules)
    }
}
