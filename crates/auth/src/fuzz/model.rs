//! Common parts of both models: offsets of messages, responses, public values.

use super::input::Input;
use crate::dhchap::{Algorithms, Group, KeyPair, primes};
use crate::key_text;
use crate::{DhchapKey, Hash, KeyKind, Names, Secret};

pub(super) const HOST: &str = "nqn.host";
pub(super) const SUBSYSTEM: &str = "nqn.subsystem";

pub(super) fn names() -> Names {
    Names::new(HOST, SUBSYSTEM).expect("good names")
}

/// A secret of 32 bytes with this value.
pub(super) fn secret(byte: u8) -> DhchapKey {
    let text = key_text::format(KeyKind::DhChap, 1, &Secret::new(vec![byte; 32]));
    DhchapKey::parse(&String::from_utf8_lossy(text.expose())).expect("a good key")
}

/// One hash, and groups in some order.
pub(super) fn algorithms(settings: u8) -> Algorithms {
    let hash = Hash::ALL[usize::from(settings % 3)];
    let groups = match settings / 3 % 4 {
        0 => vec![Group::Null],
        1 => vec![Group::Ffdhe2048],
        2 => vec![Group::Ffdhe2048, Group::Null],
        _ => vec![Group::Null, Group::Ffdhe3072],
    };
    Algorithms { hashes: vec![hash], groups }
}

/// The number at `at`, little-endian; 0 if the message is too short.
pub(super) fn number16(message: &[u8], at: usize) -> u16 {
    message.get(at..at + 2).map_or(0, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
}

pub(super) fn number32(message: &[u8], at: usize) -> u32 {
    u32::from(number16(message, at)) | u32::from(number16(message, at + 2)) << 16
}

/// The first `N` bytes of a message.
pub(super) fn header<const N: usize>(kind: [u8; 2], t_id: u16) -> Vec<u8> {
    let mut bytes = vec![0; N];
    bytes[..2].copy_from_slice(&kind);
    bytes[4..6].copy_from_slice(&t_id.to_le_bytes());
    bytes
}

/// A challenge of one side, with all inputs of its response.
pub(super) struct Asked<'a> {
    pub(super) hash: Hash,
    pub(super) t_id: u16,
    pub(super) sequence: u32,
    pub(super) challenge: &'a [u8],
    pub(super) shared: Option<&'a [u8]>,
}

impl Asked<'_> {
    fn answer(&self, key: &Secret, who: &[u8], first: &str, second: &str) -> Vec<u8> {
        let augmented = match self.shared {
            None => self.challenge.to_vec(),
            Some(shared) => {
                let key = self.hash.digest(shared);
                self.hash.hmac(key.expose(), &[self.challenge]).expose().to_vec()
            }
        };
        let mut text = augmented;
        text.extend(self.sequence.to_le_bytes());
        text.extend(self.t_id.to_le_bytes());
        text.push(0);
        text.extend_from_slice(who);
        text.extend_from_slice(first.as_bytes());
        text.push(0);
        text.extend_from_slice(second.as_bytes());
        self.hash.hmac(key.expose(), &[&text]).expose().to_vec()
    }

    pub(super) fn r1(&self, key: &Secret) -> Vec<u8> {
        self.answer(key, b"HostHost", HOST, SUBSYSTEM)
    }

    pub(super) fn r2(&self, key: &Secret) -> Vec<u8> {
        self.answer(key, b"Controller", SUBSYSTEM, HOST)
    }
}

fn prime(group: Group) -> Vec<u8> {
    let words: &[u64] = match group {
        Group::Ffdhe2048 => &primes::FFDHE2048,
        Group::Ffdhe3072 => &primes::FFDHE3072,
        _ => &[],
    };
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Whether a side must accept this public value: as long as the prime, above 1 and below p − 1; empty without a group.
pub(super) fn is_good(group: Group, value: &[u8]) -> bool {
    let mut below = prime(group);
    let (Some((last, high)), Some(end)) = (value.split_last(), below.last_mut()) else {
        return value.is_empty() && group == Group::Null;
    };
    *end -= 1;
    let is_above_one = *last > 1 || high.iter().any(|&byte| byte != 0);
    value.len() == below.len() && is_above_one && value < &below[..]
}

/// A public value of an attacker, and the secret that it shares with a side that accepts it and has the value `theirs`.
pub(super) fn value(input: &mut Input<'_>, group: Group, theirs: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let p = prime(group);
    let padded = |last: u8| {
        let mut value = vec![0; p.len()];
        if let Some(end) = value.last_mut() {
            *end = last;
        }
        value
    };
    let near = |change: i8| {
        let mut value = p.clone();
        if let Some(last) = value.last_mut() {
            *last = last.wrapping_add_signed(change);
        }
        value
    };
    match input.lie(8) {
        0 => {
            // 2^b, whose exponent b is known.
            let bits = (p.len() * 8).max(2) as u16 - 1;
            let b = input.number16() % bits + 1;
            let mut value = padded(0);
            if let Some(byte) = value.iter_mut().rev().nth(usize::from(b / 8)) {
                *byte = 1 << (b % 8);
            }
            let shared = shared(group, &value, theirs).unwrap_or_default();
            (value, shared)
        }
        1 => (padded(0), padded(0)),
        2 => (padded(1), padded(1)),
        3 => (near(-1), if input.byte() & 1 == 0 { padded(1) } else { near(-1) }),
        4 => (near(0), padded(0)),
        // p + 1: the carry runs through the 64 low bits, which are all ones.
        5 => {
            let mut value = p.clone();
            for byte in value.iter_mut().rev() {
                let (sum, carry) = byte.overflowing_add(1);
                *byte = sum;
                if !carry {
                    break;
                }
            }
            (value, padded(1))
        }
        6 => (vec![0xFF; p.len()], padded(1)),
        7 => (padded(2)[..p.len() / 2].to_vec(), padded(2)),
        _ => ([&[0][..], &padded(2)].concat(), padded(2)),
    }
}

/// The secret that the owners of `theirs` and `ours` share, if `ours` is a power of two that needs no reduction.
pub(super) fn shared(group: Group, ours: &[u8], theirs: &[u8]) -> Option<Vec<u8>> {
    let (at, byte) = ours.iter().rev().enumerate().find(|(_, byte)| **byte != 0)?;
    if !byte.is_power_of_two() || ours.iter().filter(|byte| **byte != 0).count() != 1 {
        return None;
    }
    let b = at as u16 * 8 + byte.trailing_zeros() as u16;
    let pair = KeyPair::from_exponent(group, &Secret::new(b.to_be_bytes().to_vec()));
    let shared = pair.shared_secret(theirs).ok()??;
    Some(shared.expose().to_vec())
}
