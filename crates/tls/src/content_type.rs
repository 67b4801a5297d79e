//! Content types of records (RFC 8446 §5.1).

pub(crate) const CHANGE_CIPHER_SPEC: u8 = 20;
pub(crate) const ALERT: u8 = 21;
pub(crate) const HANDSHAKE: u8 = 22;
pub(crate) const APPLICATION_DATA: u8 = 23;

/// All content types with which a TLS record may begin.
pub(crate) const ALL: [u8; 4] = [CHANGE_CIPHER_SPEC, ALERT, HANDSHAKE, APPLICATION_DATA];
