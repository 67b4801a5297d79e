//! The identity of a function that is installed at a target for all hosts.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Installed {
    pub(crate) name: String,
    /// Digest of its code: [`Program::digest`](bpfof_function::Program::digest).
    pub(crate) digest: [u8; 32],
}

impl Installed {
    /// The digest of a function at a target that reports no digests.
    pub(crate) const NO_DIGEST: [u8; 32] = [0; 32];

    /// Whether both functions do the same, whatever their names: compares the digests, or the names if a target reports
    /// no digest.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match [self, other].map(|of| of.digest != Self::NO_DIGEST) {
            [true, true] => self.digest == other.digest,
            _ => self.name == other.name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_matter_where_there_is_no_digest() {
        let of = |name: &str, digest| Installed { name: name.to_owned(), digest: [digest; 32] };
        assert!(of("a", 1).is_same(&of("b", 1)) && !of("a", 1).is_same(&of("a", 2)));
        assert!(of("a", 0).is_same(&of("a", 1)) && !of("a", 0).is_same(&of("b", 0)));
    }
}
