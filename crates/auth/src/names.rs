//! The two NQNs for which a key is used.

use crate::error::{NameError, NameKind};

/// Longest NQN in bytes (NVMe Base 2.0 §4.5).
const NQN_MAX_BYTES: usize = 223;

/// The NQNs of a host and of a subsystem: neither is empty, longer than 223 bytes, or has white
/// space or control characters. So two different pairs never give the same identity, or the same
/// input of a response.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Names {
    host: String,
    subsystem: String,
}

fn check(kind: NameKind, nqn: &str) -> Result<(), NameError> {
    if nqn.is_empty() {
        return Err(NameError::Empty(kind));
    }
    if nqn.len() > NQN_MAX_BYTES {
        return Err(NameError::TooLong { kind, found_bytes: nqn.len() });
    }
    if nqn.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(NameError::Character(kind));
    }
    Ok(())
}

impl Names {
    /// The names of a host and of a subsystem.
    ///
    /// # Errors
    /// One of them is empty, too long, or has an invalid character.
    pub fn new(host: impl Into<String>, subsystem: impl Into<String>) -> Result<Self, NameError> {
        let (host, subsystem) = (host.into(), subsystem.into());
        check(NameKind::Host, &host)?;
        check(NameKind::Subsystem, &subsystem)?;
        Ok(Self { host, subsystem })
    }

    /// NQN of the host.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// NQN of the subsystem.
    #[must_use]
    pub fn subsystem(&self) -> &str {
        &self.subsystem
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_refused() {
        let good = "nqn.2026-01.io.example:a";
        assert!(Names::new(good, "n".repeat(223)).is_ok());
        assert_eq!(Names::new("", good), Err(NameError::Empty(NameKind::Host)));
        assert_eq!(Names::new(good, ""), Err(NameError::Empty(NameKind::Subsystem)));
        let error = NameError::TooLong { kind: NameKind::Subsystem, found_bytes: 224 };
        assert_eq!(Names::new(good, "n".repeat(224)), Err(error));
        for bad in ["a b", "a\0", "a\n", "a\u{a0}"] {
            assert_eq!(Names::new(bad, good), Err(NameError::Character(NameKind::Host)));
        }
    }
}
