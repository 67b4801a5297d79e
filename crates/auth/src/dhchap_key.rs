//! Secrets of DH-HMAC-CHAP (NVMe Base 2.0 §8.13.5.7, §8.13.5.8).

use crate::error::{KeyError, KeyKind, RandomError};
use crate::hash::Hash;
use crate::key_text;
use crate::secret::Secret;

/// A configured secret: the contents of `DHHC-1:HH:…:`. The host has one, and the subsystem has another if the host
/// authenticates it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DhchapKey {
    /// Hash of the transformation; none if the secret is used without one (HH 00).
    transform: Option<Hash>,
    key: Secret,
}

impl DhchapKey {
    /// Reads the text of a secret: 59, 83 or 103 characters with a key of 32, 48 or 64 bytes. White
    /// space around it is ignored.
    ///
    /// # Errors
    /// The error says what is wrong with the text and what to do, and reveals nothing about the secret.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let (hash_id, key) = key_text::parse(KeyKind::DhChap, text)?;
        // The number is at most 3, so only 00 has no hash.
        Ok(Self { transform: Hash::from_id(hash_id), key })
    }

    /// Writes the text of the secret, in ASCII.
    #[must_use]
    pub fn to_text(&self) -> Secret {
        key_text::format(KeyKind::DhChap, self.transform.map_or(0, Hash::id), &self.key)
    }

    /// A new secret of random bytes, as long as outputs of `hash`, which transforms it.
    ///
    /// # Errors
    /// The operating system gives no random bytes.
    pub fn generate(hash: Hash) -> Result<Self, RandomError> {
        Ok(Self { transform: Some(hash), key: Secret::random(hash.length_bytes())? })
    }

    /// A new secret of 32, 48 or 64 random bytes, which is used without a transformation (HH 00).
    ///
    /// # Errors
    /// The operating system gives no random bytes.
    pub fn generate_plain(length_bytes: usize) -> Result<Self, RandomError> {
        Ok(Self { transform: None, key: Secret::random(length_bytes)? })
    }

    /// Hash of the transformation; none if the secret is used without one (HH 00).
    #[must_use]
    pub const fn transformation(&self) -> Option<Hash> {
        self.transform
    }

    /// Length of the secret in bytes.
    #[must_use]
    pub fn length_bytes(&self) -> usize {
        self.key.length_bytes()
    }

    /// The transformed secret, from which responses are made, for the holder's NQN: the host's NQN for the host's
    /// secret, the subsystem's for the controller's (NVMe Base 2.0 §8.13.5.7). The transformation uses the hash that
    /// the text names, whatever hash the two sides agree on.
    #[must_use]
    pub fn transform(&self, nqn: &str) -> Secret {
        match self.transform {
            None => self.key.clone(),
            Some(hash) => hash.hmac(self.key.expose(), &[nqn.as_bytes(), b"NVMe-over-Fabrics"]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::{HOST, hex};

    /// The secret of the known answers.
    const TEXT: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    #[test]
    fn transformation() {
        let key = DhchapKey::parse(TEXT).unwrap();
        let expected = "28d14f536e0964e21224259a3a12ef423511b493944c6262f893c083c5f7baca";
        assert_eq!(key.transform(HOST).expose(), hex(expected));
        assert_eq!(key.to_text().expose(), TEXT.as_bytes());
        let plain = DhchapKey::parse(&TEXT.replace(":01:", ":00:")).unwrap();
        assert_eq!(plain.transform(HOST).expose(), (0..32).collect::<Vec<u8>>());
        assert!(!format!("{key:?}").contains("AAEC"));
    }

    #[test]
    fn generated_keys_are_read_back() {
        for hash in Hash::ALL {
            let key = DhchapKey::generate(hash).unwrap();
            let text = key.to_text();
            let text = std::str::from_utf8(text.expose()).unwrap();
            assert_eq!(DhchapKey::parse(text), Ok(key.clone()));
            assert_eq!(key.transform("nqn").length_bytes(), hash.length_bytes());
            assert_ne!(key.transform("nqn"), key.transform("nqm"));
            assert_eq!(key.transformation(), Some(hash));
            let plain = DhchapKey::generate_plain(hash.length_bytes()).unwrap();
            let text = plain.to_text();
            let text = std::str::from_utf8(text.expose()).unwrap();
            assert!(text.starts_with("DHHC-1:00:"), "{text}");
            assert_eq!(DhchapKey::parse(text), Ok(plain.clone()));
            assert_eq!(plain.transform("nqn"), plain.transform("nqm"));
            assert_eq!(plain.length_bytes(), hash.length_bytes());
        }
    }
}
