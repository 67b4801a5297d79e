//! The keys that a ClientHello offers (RFC 8446 §4.1.2, §4.2.11).

use crate::identity::PskHash;
use thiserror::Error;

/// Most keys that a client may offer. A Linux host offers one. This leaves room for rotation, and
/// limits the look-ups that an unauthenticated client can cause.
pub const OFFERS_MAX: usize = 32;

/// Extension type of pre_shared_key (RFC 8446 §4.2).
const PRE_SHARED_KEY: u16 = 41;
/// legacy_version and random (RFC 8446 §4.1.2).
const VERSION_AND_RANDOM_BYTES: usize = 2 + 32;
/// obfuscated_ticket_age, which external keys do not use (RFC 8446 §4.2.11).
const TICKET_AGE_BYTES: usize = 4;

/// A key that a client offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedPsk<'a> {
    /// Its identity, 1 to 65,535 bytes.
    pub identity: &'a [u8],
    /// The hash of its binder, by the binder's length; `None` if no hash of TLS 1.3 has that
    /// length.
    pub hash: Option<PskHash>,
}

/// Why a ClientHello offers no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ClientHelloError {
    /// A field that ends too early, or lengths that contradict each other.
    #[error("the ClientHello is malformed in its {part}")]
    Malformed {
        /// The field.
        part: &'static str,
    },
    /// No extension pre_shared_key: the client wants certificates.
    #[error("the ClientHello offers no pre-shared key")]
    NoPsk,
    /// pre_shared_key is not the last extension (RFC 8446 §4.2.11).
    #[error("pre_shared_key is not the last extension of the ClientHello")]
    NotLast,
    /// The numbers of identities and binders differ.
    #[error("the ClientHello has {identities} identities but {binders} binders")]
    Counts {
        /// Identities, at most [`OFFERS_MAX`].
        identities: usize,
        /// Binders; counting stops at one too many.
        binders: usize,
    },
    /// More keys than [`OFFERS_MAX`].
    #[error("the ClientHello offers more than {OFFERS_MAX} pre-shared keys")]
    TooMany,
}

/// The keys that `message` offers, in the client's order: at least one, at most [`OFFERS_MAX`].
///
/// `message` is a ClientHello without the handshake header: it starts with legacy_version and
/// random.
///
/// # Errors
/// A message that is malformed as far as this function reads it, offers no key, or too many. It
/// does not judge versions, suites or other extensions.
pub fn offered_psks(message: &[u8]) -> Result<Vec<OfferedPsk<'_>>, ClientHelloError> {
    let extension = pre_shared_key(message)?;
    let mut reader = Reader(extension);
    let mut identities = Reader(reader.vector16("identities")?);
    let mut binders = Reader(reader.vector16("binders")?);
    reader.end("pre_shared_key")?;

    let mut offers = Vec::new();
    while !identities.0.is_empty() {
        if offers.len() == OFFERS_MAX {
            return Err(ClientHelloError::TooMany);
        }
        let identity = identities.vector16("identities")?;
        identities.take(TICKET_AGE_BYTES, "identities")?;
        if identity.is_empty() {
            return Err(ClientHelloError::Malformed { part: "identities" });
        }
        offers.push(OfferedPsk { identity, hash: None });
    }
    if offers.is_empty() {
        return Err(ClientHelloError::Malformed { part: "identities" });
    }
    let mut count = 0;
    while !binders.0.is_empty() && count <= offers.len() {
        let binder = binders.vector8("binders")?;
        if let Some(offer) = offers.get_mut(count) {
            offer.hash = PskHash::from_binder_bytes(binder.len());
        }
        count += 1;
    }
    if count != offers.len() {
        return Err(ClientHelloError::Counts { identities: offers.len(), binders: count });
    }
    Ok(offers)
}

/// The content of the extension pre_shared_key.
fn pre_shared_key(message: &[u8]) -> Result<&[u8], ClientHelloError> {
    let mut reader = Reader(message);
    reader.take(VERSION_AND_RANDOM_BYTES, "random")?;
    reader.vector8("session id")?;
    reader.vector16("cipher suites")?;
    reader.vector8("compression methods")?;
    if reader.0.is_empty() {
        return Err(ClientHelloError::NoPsk);
    }
    let mut extensions = Reader(reader.vector16("extensions")?);
    reader.end("extensions")?;
    while !extensions.0.is_empty() {
        let extension_type = extensions.number16("extensions")?;
        let content = extensions.vector16("extensions")?;
        if extension_type == PRE_SHARED_KEY {
            return if extensions.0.is_empty() {
                Ok(content)
            } else {
                Err(ClientHelloError::NotLast)
            };
        }
    }
    Err(ClientHelloError::NoPsk)
}

/// The rest of a message. Each method takes a field from its front, or reports that `part` is
/// malformed.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(
        &mut self,
        length_bytes: usize,
        part: &'static str,
    ) -> Result<&'a [u8], ClientHelloError> {
        let (taken, rest) =
            self.0.split_at_checked(length_bytes).ok_or(ClientHelloError::Malformed { part })?;
        self.0 = rest;
        Ok(taken)
    }

    fn number16(&mut self, part: &'static str) -> Result<u16, ClientHelloError> {
        let (number, rest) =
            self.0.split_first_chunk().ok_or(ClientHelloError::Malformed { part })?;
        self.0 = rest;
        Ok(u16::from_be_bytes(*number))
    }

    /// A vector whose length is in one byte (RFC 8446 §3.4).
    fn vector8(&mut self, part: &'static str) -> Result<&'a [u8], ClientHelloError> {
        let length = self.take(1, part)?.first().copied().unwrap_or(0);
        self.take(usize::from(length), part)
    }

    /// A vector whose length is in two bytes (RFC 8446 §3.4).
    fn vector16(&mut self, part: &'static str) -> Result<&'a [u8], ClientHelloError> {
        let length = self.number16(part)?;
        self.take(usize::from(length), part)
    }

    fn end(&self, part: &'static str) -> Result<(), ClientHelloError> {
        if self.0.is_empty() { Ok(()) } else { Err(ClientHelloError::Malformed { part }) }
    }
}

/// A ClientHello with these identities, and binders of these lengths, as [`offered_psks`] reads it.
/// Lengths that do not fit their fields are truncated.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn encode(identities: &[&[u8]], binder_bytes: &[usize]) -> Vec<u8> {
    let vector16 = |content: &[u8]| [&(content.len() as u16).to_be_bytes(), content].concat();
    let identities: Vec<u8> = identities
        .iter()
        .flat_map(|identity| [&vector16(identity)[..], &[0; TICKET_AGE_BYTES]].concat())
        .collect();
    let binders: Vec<u8> = binder_bytes
        .iter()
        .flat_map(|length| [&[*length as u8][..], &vec![0xB1; *length]].concat())
        .collect();
    let offered = [vector16(&identities), vector16(&binders)].concat();
    let other = [&[0, 43][..], &vector16(&[2, 3, 4])].concat();
    let extensions = [&other[..], &PRE_SHARED_KEY.to_be_bytes(), &vector16(&offered)].concat();
    let mut message = vec![3, 3];
    message.extend([0x52; 32]);
    message.extend([4, 1, 2, 3, 4]);
    message.extend(vector16(&[0x13, 0x01]));
    message.extend([1, 0]);
    message.extend(vector16(&extensions));
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn identities_and_hashes_in_order() {
        let message = encode(&[b"one", b"two", b"three"], &[32, 48, 64]);
        let expected = [
            OfferedPsk { identity: b"one", hash: Some(PskHash::Sha256) },
            OfferedPsk { identity: b"two", hash: Some(PskHash::Sha384) },
            OfferedPsk { identity: b"three", hash: None },
        ];
        assert_eq!(offered_psks(&message).unwrap(), expected);
    }

    #[test]
    fn no_extension_is_no_psk() {
        let message = encode(&[b"one"], &[32]);
        let without = &message[..2 + 32 + 5 + 4 + 2];
        assert_eq!(offered_psks(without), Err(ClientHelloError::NoPsk));
        // Only supported_versions.
        let other = [without, &[0, 7, 0, 43, 0, 3, 2, 3, 4]].concat();
        assert_eq!(offered_psks(&other), Err(ClientHelloError::NoPsk));
    }

    #[test]
    fn pre_shared_key_comes_last() {
        let mut message = encode(&[b"one"], &[32]);
        let at = 2 + 32 + 5 + 4 + 2;
        let extensions = u16::from_be_bytes([message[at], message[at + 1]]) + 4;
        message[at..at + 2].copy_from_slice(&extensions.to_be_bytes());
        message.extend([0, 99, 0, 0]);
        assert_eq!(offered_psks(&message), Err(ClientHelloError::NotLast));
    }

    #[test]
    fn counts_agree_and_are_limited() {
        let identities = [&b"x"[..]; OFFERS_MAX + 1];
        let binders = [32; OFFERS_MAX + 1];
        let most = encode(&identities[1..], &binders[1..]);
        assert_eq!(offered_psks(&most).unwrap().len(), OFFERS_MAX);
        let more = encode(&identities, &binders);
        assert_eq!(offered_psks(&more), Err(ClientHelloError::TooMany));
        for binders in [&[][..], &[32], &[32, 32, 32], &[32; 40]] {
            let counted = ClientHelloError::Counts { identities: 2, binders: binders.len().min(3) };
            assert_eq!(offered_psks(&encode(&[b"one", b"two"], binders)), Err(counted));
        }
    }

    #[test]
    fn empty_lists_and_identities_are_refused() {
        let malformed = Err(ClientHelloError::Malformed { part: "identities" });
        assert_eq!(offered_psks(&encode(&[], &[])), malformed);
        assert_eq!(offered_psks(&encode(&[b""], &[32])), malformed);
    }

    #[test]
    fn every_cut_is_an_error() {
        let message = encode(&[b"one", b"two"], &[32, 48]);
        for length in 0..message.len() {
            assert!(offered_psks(&message[..length]).is_err(), "{length}");
        }
        let longer = [&message[..], &[0]].concat();
        assert_eq!(offered_psks(&longer), Err(ClientHelloError::Malformed { part: "extensions" }));
    }

    proptest! {
        #[test]
        fn any_offers_are_parsed(
            offers in vec((vec(any::<u8>(), 1..600), 32..=255_usize), 1..=8),
        ) {
            let (identities, binders): (Vec<&[u8]>, Vec<usize>) =
                offers.iter().map(|(identity, binder)| (&identity[..], *binder)).unzip();
            let message = encode(&identities, &binders);
            let read = offered_psks(&message).unwrap();
            let expected: Vec<OfferedPsk<'_>> = offers
                .iter()
                .map(|(identity, binder)| OfferedPsk {
                    identity,
                    hash: PskHash::from_binder_bytes(*binder),
                })
                .collect();
            prop_assert_eq!(read, expected);
        }
    }
}
