//! Secret bytes.

use crate::error::RandomError;
use ctutils::CtEq;
use std::fmt;
use zeroize::Zeroizing;

/// The bytes of a key, or of a value that is derived from one.
///
/// They are overwritten on drop, `Debug` shows only their number, and two secrets of the same
/// length are compared in constant time.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes over `bytes`.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// `length_bytes` random bytes from the operating system.
    ///
    /// # Errors
    /// The operating system gives no random bytes.
    pub fn random(length_bytes: usize) -> Result<Self, RandomError> {
        let mut bytes = Zeroizing::new(vec![0; length_bytes]);
        getrandom::fill(&mut bytes).map_err(|_| RandomError)?;
        Ok(Self(bytes))
    }

    /// The bytes. They must not be logged, nor stored where they outlive this value.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// The number of bytes.
    #[must_use]
    pub fn length_bytes(&self) -> usize {
        self.0.len()
    }
}

impl From<Zeroizing<Vec<u8>>> for Secret {
    fn from(bytes: Zeroizing<Vec<u8>>) -> Self {
        Self(bytes)
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_slice().ct_eq(other.0.as_slice()).to_bool()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equality_and_debug() {
        let secret = Secret::new(b"hush".to_vec());
        assert_eq!(secret, Secret::new(b"hush".to_vec()));
        assert_ne!(secret, Secret::new(b"husi".to_vec()));
        assert_ne!(secret, Secret::new(b"hus".to_vec()));
        assert_eq!(format!("{secret:?}"), "Secret(4 bytes)");
        assert_ne!(Secret::random(32), Secret::random(32));
    }
}
