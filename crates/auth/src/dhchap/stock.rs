//! Exponents and public values that are made in advance.

use super::group::{Group, KeyPair};

/// A few pairs of each group, so that a Challenge costs nothing at the time: a stranger gets one
/// without proof.
#[derive(Debug)]
pub struct PairStock {
    groups: Vec<Group>,
    per_group: usize,
    pairs: Vec<KeyPair>,
}

impl PairStock {
    /// An empty stock, which wants `per_group` pairs of each of `groups`.
    #[must_use]
    pub fn new(groups: &[Group], per_group: usize) -> Self {
        let groups = groups.iter().copied().filter(|&group| group != Group::Null).collect();
        Self { groups, per_group, pairs: Vec::new() }
    }

    fn count(&self, group: Group) -> usize {
        self.pairs.iter().filter(|pair| pair.group() == group).count()
    }

    /// A group of which a pair is missing: [`KeyPair::generate`] makes it, on a helper thread.
    #[must_use]
    pub fn missing(&self) -> Option<Group> {
        self.groups.iter().copied().find(|&group| self.count(group) < self.per_group)
    }

    /// Takes a pair in; drops it if there are enough of its group.
    pub fn add(&mut self, pair: KeyPair) {
        if self.groups.contains(&pair.group()) && self.count(pair.group()) < self.per_group {
            self.pairs.push(pair);
        }
    }

    /// Gives a pair of `group` away, if there is one. Nobody else gets it.
    pub fn take(&mut self, group: Group) -> Option<KeyPair> {
        let at = self.pairs.iter().position(|pair| pair.group() == group)?;
        Some(self.pairs.swap_remove(at))
    }
}
