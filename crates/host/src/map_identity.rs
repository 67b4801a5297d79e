//! Identifies a function map of a program on all its associations.

use std::fmt;

/// The common properties of all copies of a map: the associations may give them different ids.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MapIdentity {
    pub(crate) name: String,
    /// Whether it is a map of installed functions: a map of the association's own functions may have the same name.
    pub(crate) is_installed: bool,
}

impl fmt::Display for MapIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = if self.is_installed { " of installed functions" } else { "" };
        write!(f, "{:?}{of}", self.name)
    }
}
