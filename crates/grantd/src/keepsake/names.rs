//! Names of duplicates in systemd's store. systemd passes all of them to the next process in one environment variable,
//! which the kernel limits to 128 KiB: so names are short, and their number is limited.

/// Number of names: with the colons between them they take 120 KiB.
pub(super) const NAMES: u16 = 0x6000;

/// A name of a descriptor. Removing a name from the store removes all descriptors with it, so each name has at most one
/// descriptor at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name(u16);

impl Name {
    pub(super) fn text(self) -> String {
        format!("{:x}", self.0)
    }

    /// `None` if the text is not such a name.
    fn parse(text: &str) -> Option<Self> {
        let name = Self(u16::from_str_radix(text, 16).ok()?);
        (name.0 < NAMES && name.text() == text).then_some(name)
    }
}

/// The names that are free for descriptors, and those that are to be removed.
#[derive(Debug)]
pub(super) struct Names {
    /// Free names; the last one is taken next.
    free: Vec<Name>,
    /// Number of descriptors in the store.
    stored: usize,
    max: usize,
    /// Names whose descriptors are still in the store and are not needed any more.
    pub(super) waiting: Vec<String>,
}

impl Names {
    /// For a store for `max` descriptors, which already has some under the names `stored`.
    pub(super) fn new<'a>(max: usize, stored: impl Iterator<Item = &'a str>) -> Self {
        let (mut taken, mut count) = (vec![false; usize::from(NAMES)], 0);
        for text in stored {
            count += 1;
            if let Some(Name(number)) = Name::parse(text) {
                taken[usize::from(number)] = true;
            }
        }
        let free = (0..NAMES).rev().filter(|number| !taken[usize::from(*number)]).map(Name);
        Self { free: free.collect(), stored: count, max, waiting: Vec::new() }
    }

    /// Most descriptors in the store.
    pub(super) fn max(&self) -> usize {
        self.max.min(usize::from(NAMES))
    }

    /// Takes a name for one more descriptor; None if there is no room for it.
    pub(super) fn take(&mut self) -> Option<Name> {
        if self.stored >= self.max() {
            return None;
        }
        let name = self.free.pop()?;
        self.stored += 1;
        Some(name)
    }

    /// Frees a name, whose descriptor was removed from the store. A predecessor may have stored it under any name.
    pub(super) fn give(&mut self, text: &str) {
        self.stored = self.stored.saturating_sub(1);
        self.free.extend(Name::parse(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::process::Command;

    /// Starts a program with all names in its environment, as systemd does.
    #[test]
    fn all_names_fit_the_environment_of_a_process() {
        let mut names = Names::new(usize::MAX, std::iter::empty());
        let all: Vec<String> = std::iter::from_fn(|| names.take()).map(Name::text).collect();
        assert_eq!(all.len(), usize::from(NAMES));
        let more = ["socket"; 64].join(":");
        let variable = format!("{}:{more}", all.join(":"));
        let started = Command::new("true").env("LISTEN_FDNAMES", variable).status();
        assert!(started.expect("it starts").success());
        let unit = include_str!("../../../../packaging/systemd/bpfof-grantd.service");
        assert!(unit.contains(&format!("\nFileDescriptorStoreMax={NAMES}\n")));
        // In the next process these names are taken.
        let mut next = Names::new(usize::MAX, all.iter().map(String::as_str));
        assert_eq!(next.take(), None);
        next.give("1f");
        assert_eq!(next.take().map(Name::text).as_deref(), Some("1f"));
    }

    proptest! {
        /// No name has two descriptors, and the store never gets more than its maximum.
        #[test]
        fn names_are_given_once(
            max in 0_usize..20,
            inherited in prop::collection::btree_set("[0-3]|lease-[0-9]", 0..8),
            steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..200),
        ) {
            let mut names = Names::new(max, inherited.iter().map(String::as_str));
            let mut stored: BTreeSet<String> = inherited.clone();
            for (adds, at) in steps {
                if adds {
                    let room = stored.len() < max;
                    let name = names.take();
                    prop_assert_eq!(name.is_some(), room);
                    prop_assert!(name.is_none_or(|name| stored.insert(name.text())));
                } else if !stored.is_empty() {
                    let gone = stored.iter().nth(at.index(stored.len())).expect("one").clone();
                    stored.remove(&gone);
                    names.give(&gone);
                }
            }
        }
    }
}
