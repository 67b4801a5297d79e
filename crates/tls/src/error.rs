//! Why a handshake fails.

use crate::client_hello::ClientHelloError;
use std::fmt;
use std::io;
use thiserror::Error;

/// Most characters of a peer's identity that are reported.
const IDENTITY_SHOWN_CHARACTERS: usize = 600;

/// Why a handshake failed. The connection is over, except after [`NotTls`](Self::NotTls) at a server.
#[derive(Debug, Error)]
pub enum HandshakeError {
    /// The peer does not speak TLS. A server has read nothing from the socket, so that the connection may continue
    /// without TLS, if that is allowed.
    #[error(
        "the peer does not speak TLS: its first byte is {first_byte:02X}h{}",
        if *first_byte == 0 { ", as from a host that connects without TLS" } else { "" }
    )]
    NotTls {
        /// The byte in place of a record's content type.
        first_byte: u8,
    },
    /// The ClientHello offers no key that the server can check.
    #[error(transparent)]
    ClientHello(#[from] ClientHelloError),
    /// No key of this identity is known here.
    #[error("no key is known for the identity {identity:?} that the peer offers")]
    UnknownIdentity {
        /// The first identity that the client offers, made printable, and cut if it is long.
        identity: String,
    },
    /// Both ends have a key of this identity, but not the same one.
    #[error(
        "the peer has another key for the identity {identity:?}: one side has a wrong key, or the \
         sides derive it differently (standard, or compatible with libnvme before 1.16)"
    )]
    WrongKey {
        /// The identity.
        identity: String,
    },
    /// The peer ended the handshake, by an alert.
    #[error("the peer refused the handshake: {alert}{}", refusal(*alert))]
    Refused {
        /// The peer's reason.
        alert: Alert,
    },
    /// The peer closed the connection, without a reason.
    #[error(
        "the peer closed the connection during the handshake: it may not speak TLS, or not \
         accept this key"
    )]
    Closed,
    /// The peer closed the connection and had sent nothing: it only checked whether a server listens.
    #[error("the peer closed the connection before it sent anything")]
    NothingSent,
    /// The deadline passed.
    #[error("the handshake did not end in time")]
    TimedOut,
    /// The peer sent more than any handshake needs.
    #[error("the peer sent more than {limit_bytes} bytes without ending its handshake")]
    TooLong {
        /// Most bytes that are accepted.
        limit_bytes: usize,
    },
    /// The server did not use the offered key. It may have sent a certificate.
    #[error("the peer did not use the pre-shared key: it may not know the key's identity")]
    NoPsk,
    /// The socket failed.
    #[error("the socket failed during the handshake: {0}")]
    Io(#[from] io::Error),
    /// The TLS library failed, or refused the peer's data.
    #[error("the TLS handshake failed: {message} ({name})")]
    Tls {
        /// The library's name of the error.
        name: String,
        /// The library's description.
        message: String,
    },
}

impl HandshakeError {
    /// The error for an identity that the peer sent, fit for a log: limited in length, and escaped when it is
    /// formatted.
    pub(crate) fn unknown_identity(identity: &[u8]) -> Self {
        let text = String::from_utf8_lossy(identity);
        let identity = text.chars().take(IDENTITY_SHOWN_CHARACTERS).collect();
        Self::UnknownIdentity { identity }
    }

    /// The error for behaviour that the library should never show.
    pub(crate) fn unexpected(message: &str) -> Self {
        Self::Tls { name: "unexpected".to_owned(), message: message.to_owned() }
    }

    /// The alert that tells a client about this error; `None` if it needs none.
    ///
    /// A client learns whether the identity that it offers is known. That reveals little, since a client must know the
    /// identity to ask, and it helps the administrator of a new host.
    pub(crate) fn alert(&self) -> Option<Alert> {
        match self {
            Self::UnknownIdentity { .. } => Some(Alert::UNKNOWN_PSK_IDENTITY),
            Self::WrongKey { .. } => Some(Alert::DECRYPT_ERROR),
            Self::ClientHello(ClientHelloError::NoPsk) | Self::NoPsk | Self::Tls { .. } => {
                Some(Alert::HANDSHAKE_FAILURE)
            }
            Self::ClientHello(_) => Some(Alert::ILLEGAL_PARAMETER),
            _ => None,
        }
    }
}

impl From<&s2n_tls::error::Error> for HandshakeError {
    fn from(error: &s2n_tls::error::Error) -> Self {
        let (name, message) = (error.name().to_owned(), error.message().to_owned());
        match error.application_error() {
            // An error of this crate's callbacks.
            Some(own) => Self::Tls { name, message: own.to_string() },
            None => Self::Tls { name, message },
        }
    }
}

impl From<s2n_tls::error::Error> for HandshakeError {
    fn from(error: s2n_tls::error::Error) -> Self {
        Self::from(&error)
    }
}

/// What an alert implies about the offered key.
const fn refusal(alert: Alert) -> &'static str {
    match alert {
        Alert::UNKNOWN_PSK_IDENTITY => ", so it has no key with this identity",
        // OpenSSL and GnuTLS send this in place of decrypt_error.
        Alert::ILLEGAL_PARAMETER => ", which some servers send for a wrong key",
        Alert::DECRYPT_ERROR => ", so it has another key for this identity",
        _ => "",
    }
}

/// An AlertDescription (RFC 8446 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alert(
    /// Its number.
    pub u8,
);

impl Alert {
    /// The sender will send no more (RFC 8446 §6.1).
    pub const CLOSE_NOTIFY: Self = Self(0);
    /// No parameters that both ends accept.
    pub const HANDSHAKE_FAILURE: Self = Self(40);
    /// A field that is out of range or contradicts others.
    pub const ILLEGAL_PARAMETER: Self = Self(47);
    /// A binder or Finished message that does not verify: the other end has another key.
    pub const DECRYPT_ERROR: Self = Self(51);
    /// The server knows none of the offered identities.
    pub const UNKNOWN_PSK_IDENTITY: Self = Self(115);

    /// Its name in RFC 8446 §6; `None` for numbers without one.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0 => "close_notify",
            10 => "unexpected_message",
            20 => "bad_record_mac",
            22 => "record_overflow",
            40 => "handshake_failure",
            42 => "bad_certificate",
            43 => "unsupported_certificate",
            44 => "certificate_revoked",
            45 => "certificate_expired",
            46 => "certificate_unknown",
            47 => "illegal_parameter",
            48 => "unknown_ca",
            49 => "access_denied",
            50 => "decode_error",
            51 => "decrypt_error",
            70 => "protocol_version",
            71 => "insufficient_security",
            80 => "internal_error",
            86 => "inappropriate_fallback",
            90 => "user_canceled",
            109 => "missing_extension",
            110 => "unsupported_extension",
            112 => "unrecognized_name",
            113 => "bad_certificate_status_response",
            115 => "unknown_psk_identity",
            116 => "certificate_required",
            120 => "no_application_protocol",
            _ => return None,
        })
    }
}

impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "alert {} ({name})", self.0),
            None => write!(f, "alert {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_identities_are_escaped_for_the_log() {
        let error = HandshakeError::unknown_identity(b"evil\n\x1B[2J\xFF");
        let text = error.to_string();
        assert!(text.contains(r"evil\n\u{1b}[2J"), "{text}");
        assert!(!text.contains('\n') && !text.contains('\u{1b}'), "{text}");
        let long = HandshakeError::unknown_identity(&[b'x'; 60_000]).to_string();
        assert!(long.len() < 700, "{}", long.len());
    }

    #[test]
    fn error_texts_name_the_likely_cause() {
        let plain = HandshakeError::NotTls { first_byte: 0 }.to_string();
        assert!(plain.contains("00h") && plain.contains("without TLS"), "{plain}");
        let refused = HandshakeError::Refused { alert: Alert::DECRYPT_ERROR }.to_string();
        assert!(refused.contains("decrypt_error") && refused.contains("another key"), "{refused}");
        assert_eq!(Alert(200).to_string(), "alert 200");
    }
}
