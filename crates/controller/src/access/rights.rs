//! The rights of a host.

use std::fmt;
use std::ops::{BitAnd, BitOr};

/// Rights of a host, one bit each (docs/security.md). A command needs one right of a set, so that
/// the check is a single AND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights(u8);

impl Rights {
    /// None.
    pub const NONE: Rights = Rights(0);
    /// Read, Compare, Verify; File Map Set, which together with a chain amounts to reading.
    pub const READ: Rights = Rights(1);
    /// Write, Write Zeroes, Dataset Management.
    pub const WRITE: Rights = Rights(1 << 1);
    /// Function Load and Unload of the association's own functions. A function can reveal
    /// everything that it reads.
    pub const LOAD: Rights = Rights(1 << 2);
    /// Function Load and Unload of kept functions, which every host runs.
    pub const KEEP: Rights = Rights(1 << 3);
    /// Chains in kept functions.
    pub const RUN: Rights = Rights(1 << 4);
    /// Function maps of other associations of the same host.
    pub const MAPS: Rights = Rights(1 << 5);
    /// All of them.
    pub const ALL: Rights = Rights((1 << 6) - 1);
    /// The rights given by a rule that names none: all but `keep` and `maps`.
    pub const USUAL: Rights = Rights(Self::READ.0 | Self::WRITE.0 | Self::LOAD.0 | Self::RUN.0);

    const NAMES: [(&'static str, Rights); 6] = [
        ("read", Self::READ),
        ("write", Self::WRITE),
        ("load", Self::LOAD),
        ("keep", Self::KEEP),
        ("run", Self::RUN),
        ("maps", Self::MAPS),
    ];

    /// Whether the two have a right in common.
    #[inline]
    #[must_use]
    pub const fn intersects(self, other: Rights) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether all of `other` are in these.
    #[must_use]
    pub const fn contains(self, other: Rights) -> bool {
        self.0 & other.0 == other.0
    }

    /// These rights by name, with what they imply: `load` lets the host run its functions.
    ///
    /// # Errors
    /// An unknown name, or rights that make no sense together.
    pub fn from_names<'a>(
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Rights, UnknownRight> {
        let mut rights = Rights::NONE;
        for name in names {
            let known = Self::NAMES.iter().find(|(known, _)| *known == name);
            rights = rights | known.ok_or_else(|| UnknownRight::Name(name.to_owned()))?.1;
        }
        if rights.intersects(Self::LOAD) && !rights.intersects(Self::READ) {
            return Err(UnknownRight::LoadWithoutRead);
        }
        if rights.intersects(Self::KEEP) && !rights.intersects(Self::LOAD) {
            return Err(UnknownRight::KeepWithoutLoad);
        }
        if rights.intersects(Self::LOAD) {
            rights = rights | Self::RUN;
        }
        Ok(rights)
    }
}

impl BitOr for Rights {
    type Output = Rights;

    fn bitor(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }
}

impl BitAnd for Rights {
    type Output = Rights;

    fn bitand(self, other: Rights) -> Rights {
        Rights(self.0 & other.0)
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMES.iter().filter(|(_, right)| self.intersects(*right));
        let names: Vec<&str> = names.map(|(name, _)| *name).collect();
        match names[..] {
            [] => f.write_str("nothing"),
            _ => f.write_str(&names.join(", ")),
        }
    }
}

/// Why names are not valid rights.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownRight {
    /// An unknown name.
    #[error("unknown right {0:?}: the rights are read, write, load, keep, run and maps")]
    Name(String),
    /// `load` needs `read`, because a function can reveal everything that it reads.
    #[error("the right load needs the right read: a loaded function can return all that it reads")]
    LoadWithoutRead,
    /// `keep` needs `load`, because keeping a function is loading it for all hosts.
    #[error("the right keep needs the right load")]
    KeepWithoutLoad,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_convert_to_names_and_back() {
        let rights = Rights::from_names(["read", "run"]).expect("good");
        assert_eq!(rights, Rights::READ | Rights::RUN);
        assert_eq!(rights.to_string(), "read, run");
        assert_eq!(
            Rights::from_names(["read", "load"]).expect("good").to_string(),
            "read, load, run"
        );
        assert_eq!(Rights::from_names([]), Ok(Rights::NONE));
        assert_eq!(Rights::NONE.to_string(), "nothing");
        assert!(matches!(Rights::from_names(["fly"]), Err(UnknownRight::Name(_))));
        assert_eq!(Rights::from_names(["load"]), Err(UnknownRight::LoadWithoutRead));
        assert_eq!(Rights::from_names(["read", "keep"]), Err(UnknownRight::KeepWithoutLoad));
        assert!(Rights::ALL.contains(Rights::USUAL) && !Rights::USUAL.contains(Rights::ALL));
        assert!(!Rights::USUAL.intersects(Rights::KEEP | Rights::MAPS));
    }
}
