//! What a function is that is installed at a target for all.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Installed {
    pub(crate) name: String,
    /// Of what it does: [`Program::digest`](bpfof_function::Program::digest).
    pub(crate) digest: [u8; 32],
}

impl Installed {
    /// Of a target that does not tell any.
    pub(crate) const NO_DIGEST: [u8; 32] = [0; 32];

    /// Whether it does what another does, whatever their names are; of targets that do not tell, whether it has the
    /// same name.
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
