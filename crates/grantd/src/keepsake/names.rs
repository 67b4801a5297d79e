//! Names of duplicates in systemd's store. It passes all of them to the next process in one variable of the
//! environment, which the kernel limits to 128 KiB: so they are short, and so many.

/// Names that there are: with the colons between them they take 120 KiB.
pub(super) const NAMES: u16 = 0x6000;

/// A name: what is removed from the store by it is all that has it, so it has one descriptor at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name(u16);

impl Name {
    pub(super) fn text(self) -> String {
        format!("{:x}", self.0)
    }

    /// None if that is the name of something else.
    fn parse(text: &str) -> Option<Self> {
        let name = Self(u16::from_str_radix(text, 16).ok()?);
        (name.0 < NAMES && name.text() == text).then_some(name)
    }
}

/// Which names may be given to descriptors.
#[derive(Debug)]
pub(super) struct Names {
    /// The next is the last.
    free: Vec<Name>,
    /// Descriptors that the store has.
    stored: usize,
    max: usize,
}

impl Names {
    /// Of a store for `max` descriptors, which has some under these names already.
    pub(super) fn new<'a>(max: usize, stored: impl Iterator<Item = &'a str>) -> Self {
        let (mut taken, mut count) = (vec![false; usize::from(NAMES)], 0);
        for text in stored {
            count += 1;
            if let Some(Name(number)) = Name::parse(text) {
                taken[usize::from(number)] = true;
            }
        }
        let free = (0..NAMES).rev().filter(|number| !taken[usize::from(*number)]).map(Name);
        Self { free: free.collect(), stored: count, max }
    }

    /// Descriptors that the store may have.
    pub(super) fn max(&self) -> usize {
        self.max.min(usize::from(NAMES))
    }

    /// A name for one more descriptor; None if there is no room for it.
    pub(super) fn take(&mut self) -> Option<Name> {
        if self.stored >= self.max() {
            return None;
        }
        let name = self.free.pop()?;
        self.stored += 1;
        Some(name)
    }

    /// What was stored under a name is removed.
    pub(super) fn give(&mut self, name: Name) {
        self.stored = self.stored.saturating_sub(1);
        self.free.push(name);
    }

    /// The same of what a predecessor has stored, whatever it is called.
    pub(super) fn give_inherited(&mut self, text: &str) {
        match Name::parse(text) {
            Some(name) => self.give(name),
            None => self.stored = self.stored.saturating_sub(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::process::Command;

    /// A program is started with them in its environment, as systemd does.
    #[test]
    fn a_process_can_be_given_all_names() {
        let mut names = Names::new(usize::MAX, std::iter::empty());
        let all: Vec<String> = std::iter::from_fn(|| names.take()).map(Name::text).collect();
        assert_eq!(all.len(), usize::from(NAMES));
        let more = ["socket"; 64].join(":");
        let variable = format!("{}:{more}", all.join(":"));
        let started = Command::new("true").env("LISTEN_FDNAMES", variable).status();
        assert!(started.expect("it starts").success());
        let unit = include_str!("../../../../packaging/systemd/bpfof-grantd.service");
        assert!(unit.contains(&format!("\nFileDescriptorStoreMax={NAMES}\n")));
        // Those of the next process know them.
        let mut next = Names::new(usize::MAX, all.iter().map(String::as_str));
        assert_eq!(next.take(), None);
        next.give_inherited("1f");
        assert_eq!(next.take().map(Name::text).as_deref(), Some("1f"));
    }

    proptest! {
        /// No name has two descriptors, and the store never gets more than it takes.
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
                    names.give_inherited(&gone);
                }
            }
        }
    }
}
