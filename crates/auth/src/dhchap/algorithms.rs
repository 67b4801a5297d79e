//! The algorithms that a side allows, and those that two sides have agreed on.

use super::group::Group;
use super::message::{LIST_MAX, Offer};
use crate::hash::Hash;
use std::fmt;

/// The hashes and groups that a side allows, in order of preference. Only the first 30 of each list count.
///
/// A host that wants to save time, or an attacker between the two sides, can cause any of them to be chosen: allow only
/// algorithms that may be used. Without [`Group::Null`], eavesdropping on an authentication does not help to guess a
/// secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Algorithms {
    /// Hash functions.
    pub hashes: Vec<Hash>,
    /// Diffie-Hellman groups.
    pub groups: Vec<Group>,
}

impl Default for Algorithms {
    /// All: the shortest hash first; the fastest group first, and no group last.
    fn default() -> Self {
        let mut groups = Group::ALL.to_vec();
        groups.rotate_left(1);
        Self { hashes: Hash::ALL.to_vec(), groups }
    }
}

impl Algorithms {
    /// The host's offer of these algorithms.
    pub(crate) fn offer(&self) -> Offer {
        Offer {
            hash_ids: self.hashes.iter().take(LIST_MAX).map(|hash| hash.id()).collect(),
            group_ids: self.groups.iter().take(LIST_MAX).map(|group| group.id()).collect(),
        }
    }

    /// This side's preferred hash among the offered ones.
    pub(crate) fn choose_hash(&self, offer: &Offer) -> Option<Hash> {
        self.hashes.iter().copied().find(|hash| offer.hash_ids.contains(&hash.id()))
    }

    /// This side's preferred group among the offered ones.
    pub(crate) fn choose_group(&self, offer: &Offer) -> Option<Group> {
        self.groups.iter().copied().find(|group| offer.group_ids.contains(&group.id()))
    }

    /// The hash with this number, if this side allows it.
    pub(crate) fn hash(&self, id: u8) -> Option<Hash> {
        Hash::from_id(id).filter(|hash| self.hashes.contains(hash))
    }

    /// The group with this number, if this side allows it.
    pub(crate) fn group(&self, id: u8) -> Option<Group> {
        Group::from_id(id).filter(|group| self.groups.contains(group))
    }
}

/// An authentication that has succeeded. Its text is for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authentication {
    /// The hash of its responses.
    pub hash: Hash,
    /// The group of its exchange.
    pub group: Group,
    /// Whether the controller was authenticated too.
    pub mutual: bool,
    /// The secret that the host used: an index into `ControllerConfig::host_keys`, which shows during rotation which
    /// hosts still use the old one. 0 at the host.
    pub host_key: usize,
}

impl fmt::Display for Authentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sides = if self.mutual { "both sides" } else { "the host" };
        write!(f, "{sides} authenticated with {}, {}", self.hash, self.group)
    }
}
