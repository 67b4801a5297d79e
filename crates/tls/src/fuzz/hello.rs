//! A ClientHello in parts that can be changed, with matching binders.

use super::input::Input;
use crate::client_hello::{ClientHelloError, OFFERS_MAX, OfferedPsk};
use crate::content_type::{ALERT, APPLICATION_DATA, CHANGE_CIPHER_SPEC, HANDSHAKE};
use crate::identity::{Psk, PskHash};
use aws_lc_rs::{digest, hmac};
use std::ops::Range;

const CLIENT_HELLO: u8 = 1;
const PRE_SHARED_KEY: u16 = 41;
/// legacy_version and random (RFC 8446 §4.1.2).
const VERSION_AND_RANDOM_BYTES: usize = 34;

/// A ClientHello, taken apart.
#[derive(Clone)]
pub(super) struct Hello {
    /// The message before the extensions.
    start: Vec<u8>,
    /// All extensions except pre_shared_key.
    extensions: Vec<(u16, Vec<u8>)>,
    /// The number of extensions after pre_shared_key; `None` without that extension.
    psk_at: Option<usize>,
    identities: Vec<Vec<u8>>,
    /// Lengths of the binders.
    binders: Vec<usize>,
    /// Whether only parts of pre_shared_key were changed.
    pub(super) is_sound: bool,
}

/// Takes `length` bytes from the front.
fn take<'a>(rest: &mut &'a [u8], length: usize) -> &'a [u8] {
    let (taken, behind) = rest.split_at(length);
    *rest = behind;
    taken
}

fn number16(rest: &mut &[u8]) -> u16 {
    let bytes = take(rest, 2);
    u16::from_be_bytes([bytes[0], bytes[1]])
}

fn vector16(content: &[u8]) -> Vec<u8> {
    [&(content.len() as u16).to_be_bytes(), content].concat()
}

/// HKDF-Expand-Label of RFC 8446 §7.1 for as many bytes as the hash has, which is one block.
fn expand_label(algorithm: hmac::Algorithm, secret: &[u8], label: &str, context: &[u8]) -> Vec<u8> {
    let label = [b"tls13 ", label.as_bytes()].concat();
    let mut info = (algorithm.digest_algorithm().output_len() as u16).to_be_bytes().to_vec();
    info.push(label.len() as u8);
    info.extend(label);
    info.push(context.len() as u8);
    info.extend_from_slice(context);
    info.push(1);
    hmac::sign(&hmac::Key::new(algorithm, secret), &info).as_ref().to_vec()
}

/// The binder of a ClientHello that ends before its binders (RFC 8446 §4.2.11.2).
fn binder(truncated: &[u8], psk: &Psk, hash: PskHash) -> Vec<u8> {
    let (algorithm, digest) = match hash {
        PskHash::Sha256 => (hmac::HMAC_SHA256, &digest::SHA256),
        PskHash::Sha384 => (hmac::HMAC_SHA384, &digest::SHA384),
    };
    let zeroes = vec![0; hash.output_bytes()];
    let early = hmac::sign(&hmac::Key::new(algorithm, &zeroes), psk.secret());
    let nothing = digest::digest(digest, &[]);
    let key = expand_label(algorithm, early.as_ref(), "ext binder", nothing.as_ref());
    let finished = expand_label(algorithm, &key, "finished", &[]);
    let transcript = digest::digest(digest, truncated);
    hmac::sign(&hmac::Key::new(algorithm, &finished), transcript.as_ref()).as_ref().to_vec()
}

impl Hello {
    /// Takes apart the first record of our own client: a ClientHello.
    pub(super) fn of(record: &[u8]) -> Self {
        let message = &record[5 + 4..];
        let mut rest = &message[VERSION_AND_RANDOM_BYTES..];
        let session_bytes = take(&mut rest, 1)[0];
        take(&mut rest, usize::from(session_bytes));
        let suites_bytes = number16(&mut rest);
        take(&mut rest, usize::from(suites_bytes));
        let methods_bytes = take(&mut rest, 1)[0];
        take(&mut rest, usize::from(methods_bytes));
        let start = message[..message.len() - rest.len()].to_vec();
        number16(&mut rest);
        let mut hello = Self {
            start,
            extensions: Vec::new(),
            psk_at: Some(0),
            identities: Vec::new(),
            binders: Vec::new(),
            is_sound: true,
        };
        while !rest.is_empty() {
            let (kind, length) = (number16(&mut rest), number16(&mut rest));
            let mut content = take(&mut rest, usize::from(length));
            if kind == PRE_SHARED_KEY {
                let (_, length) = (number16(&mut content), number16(&mut content));
                hello.identities.push(take(&mut content, usize::from(length)).to_vec());
                hello.binders.push(content.len() - 4 - 2 - 1);
            } else {
                hello.extensions.push((kind, content.to_vec()));
            }
        }
        hello
    }

    /// Whether the message offers this identity with a usable binder, so that the server finds its key.
    pub(super) fn offers(&self, identity: &str) -> bool {
        let offered = self.identities.iter().zip(&self.binders);
        let is_it = |(name, length): (&Vec<u8>, &usize)| {
            name == identity.as_bytes() && PskHash::from_binder_bytes(*length).is_some()
        };
        self.psk_at.is_some() && offered.into_iter().any(is_it)
    }

    /// The place of this identity's binder in a message of this length, and the start of all binders, up to which the
    /// binder covers the message. A server checks no other binder.
    pub(super) fn bound(&self, identity: &str, length: usize) -> Option<(Range<usize>, usize)> {
        let all: usize = self.binders.iter().map(|length| length % 256 + 1).sum();
        let offered = self.identities.iter().position(|name| name == identity.as_bytes())?;
        let before: usize =
            self.binders.get(..offered)?.iter().map(|length| length % 256 + 1).sum();
        let begin = length.checked_sub(all)?;
        let at = begin + before + 1;
        Some((at..at + self.binders.get(offered)? % 256, begin))
    }

    /// The keys that the message offers, if nothing else was changed.
    pub(super) fn offers_all(&self) -> Result<Vec<OfferedPsk<'_>>, ClientHelloError> {
        let behind = self.psk_at.ok_or(ClientHelloError::NoPsk)?;
        if behind.min(self.extensions.len()) > 0 {
            return Err(ClientHelloError::NotLast);
        }
        let (names, lengths) = (&self.identities, &self.binders);
        let empty = names.iter().position(Vec::is_empty).unwrap_or(names.len());
        if empty >= OFFERS_MAX && names.len() > OFFERS_MAX {
            return Err(ClientHelloError::TooMany);
        }
        if empty < names.len() || names.is_empty() {
            return Err(ClientHelloError::Malformed { part: "identities" });
        }
        if names.len() != lengths.len() {
            let binders = lengths.len().min(names.len() + 1);
            return Err(ClientHelloError::Counts { identities: names.len(), binders });
        }
        let offers = names.iter().zip(lengths).map(|(identity, length)| OfferedPsk {
            identity,
            hash: PskHash::from_binder_bytes(*length),
        });
        Ok(offers.collect())
    }

    /// Makes one change.
    pub(super) fn change(&mut self, input: &mut Input<'_>) {
        let at = input.index(self.extensions.len());
        let kind = input.byte() % 13;
        self.is_sound &= kind >= 8;
        match kind {
            0 if !self.extensions.is_empty() => drop(self.extensions.remove(at)),
            1 => self.extensions.extend(self.extensions.get(at).cloned()),
            2 if !self.extensions.is_empty() => {
                let other = input.index(self.extensions.len());
                self.extensions.swap(at, other);
            }
            3 => {
                if let Some((_, content)) = self.extensions.get_mut(at) {
                    let at = input.index(content.len());
                    content.get_mut(at).into_iter().for_each(|byte| *byte = input.byte());
                }
            }
            4 => {
                if let Some((_, content)) = self.extensions.get_mut(at) {
                    content.resize(input.index(600), 0x2A);
                }
            }
            5 => {
                let length = input.index(400);
                let content = input.bytes(length).to_vec();
                self.extensions.push((input.number16(), content));
            }
            6 => {
                let at = input.index(self.start.len());
                self.start[at] = input.byte();
            }
            // An empty key_share, so that the server asks for another ClientHello.
            7 => self.extensions.iter_mut().filter(|(kind, _)| *kind == 51).for_each(
                |(_, content)| {
                    content.clear();
                    content.extend([0, 0]);
                },
            ),
            8 => self.psk_at = [None, Some(0), Some(1), Some(2)][usize::from(input.byte() & 3)],
            9 | 10 => {
                let length = input.index(80);
                let name = input.bytes(length).to_vec();
                let at = input.index(self.identities.len() + 1);
                self.identities.insert(at, name);
                let lengths = [32, 48, 64, usize::from(input.byte())];
                self.binders.insert(at.min(self.binders.len()), lengths[input.index(4)]);
            }
            11 => {
                let again = self.identities.first().cloned().unwrap_or_default();
                self.identities.insert(input.index(self.identities.len() + 1), again);
            }
            12 => {
                let at = input.index(self.binders.len());
                let length = [32, 48, 0, usize::from(input.byte())][input.index(4)];
                self.binders.get_mut(at).into_iter().for_each(|binder| *binder = length);
            }
            _ => {}
        }
    }

    /// The message with its header; with `psk`, its binders match.
    pub(super) fn message(&self, psk: Option<&Psk>) -> Vec<u8> {
        let mut identities = Vec::new();
        for name in &self.identities {
            identities.extend(vector16(name));
            identities.extend([0; 4]);
        }
        let binders_bytes: usize = self.binders.iter().map(|length| length % 256 + 1).sum();
        let offered = vector16(&identities);
        let mut extensions = Vec::new();
        let mut bound_at = None;
        let last = self.extensions.len();
        for at in 0..=last {
            if self.psk_at.is_some_and(|behind| at == last.saturating_sub(behind)) {
                extensions.extend(PRE_SHARED_KEY.to_be_bytes());
                extensions.extend(((offered.len() + 2 + binders_bytes) as u16).to_be_bytes());
                extensions.extend_from_slice(&offered);
                bound_at = Some(extensions.len());
                extensions.extend((binders_bytes as u16).to_be_bytes());
                for length in &self.binders {
                    extensions.push(*length as u8);
                    extensions.extend(vec![0xB1; length % 256]);
                }
            }
            if let Some((kind, content)) = self.extensions.get(at) {
                extensions.extend(kind.to_be_bytes());
                extensions.extend(vector16(content));
            }
        }
        let body = [&self.start[..], &vector16(&extensions)].concat();
        let [_, a, b, c] = (body.len() as u32).to_be_bytes();
        let mut message = [&[CLIENT_HELLO, a, b, c][..], &body].concat();
        if let (Some(psk), Some(bound_at)) = (psk, bound_at) {
            let mut at = 4 + self.start.len() + 2 + bound_at;
            let truncated = message[..at].to_vec();
            at += 2;
            for length in &self.binders {
                if let Some(hash) = PskHash::from_binder_bytes(*length) {
                    let binder = binder(&truncated, psk, hash);
                    message[at + 1..at + 1 + length].copy_from_slice(&binder);
                }
                at += 1 + length % 256;
            }
        }
        message
    }
}

/// Cuts a message into records of a chosen size, sometimes with other records between them. Returns the stream, and
/// whether there are other records.
pub(super) fn in_records(message: &[u8], input: &mut Input<'_>) -> (Vec<u8>, bool) {
    let (mut stream, mut has_others, mut rest) = (Vec::new(), false, message);
    let size = match input.byte() {
        0 => message.len().max(1),
        other => usize::from(other),
    };
    while !rest.is_empty() {
        let (part, behind) = rest.split_at(rest.len().min(size).min(1 << 14));
        rest = behind;
        let kind = input.byte();
        if kind >= 200 {
            has_others = true;
            let content_type =
                [CHANGE_CIPHER_SPEC, ALERT, HANDSHAKE, APPLICATION_DATA][usize::from(kind & 3)];
            let length = usize::from(input.byte() % 4);
            stream.extend([content_type, 3, 3, 0, length as u8]);
            stream.extend([1, 0, 0, 0].iter().take(length));
        }
        stream.extend([HANDSHAKE, 3, 1 + (kind & 2)]);
        stream.extend(vector16(part));
    }
    (stream, has_others)
}
