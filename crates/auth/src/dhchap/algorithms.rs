//! What a side allows, and what two sides have agreed on.

use super::group::Group;
use super::message::{LIST_MAX, Offer};
use crate::hash::Hash;
use std::fmt;

/// The hashes and groups that a side allows, the one it likes best first. Of each list the first 30
/// count.
///
/// A host that wants to save time, or somebody between the two sides, can have any of them chosen:
/// what must not be used must not be allowed. Without [`Group::Null`], listening to an authentication
/// does not help to guess a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Algorithms {
    /// Hash functions.
    pub hashes: Vec<Hash>,
    /// Diffie-Hellman groups.
    pub groups: Vec<Group>,
}

impl Default for Algorithms {
    /// All: of the hashes the shortest first, of the groups the fastest first, and none last.
    fn default() -> Self {
        let mut groups = Group::ALL.to_vec();
        groups.rotate_left(1);
        Self { hashes: Hash::ALL.to_vec(), groups }
    }
}

impl Algorithms {
    /// As a host offers them.
    pub(crate) fn offer(&self) -> Offer {
        Offer {
            hash_ids: self.hashes.iter().take(LIST_MAX).map(|hash| hash.id()).collect(),
            group_ids: self.groups.iter().take(LIST_MAX).map(|group| group.id()).collect(),
        }
    }

    /// The hash this side likes best of those that are offered.
    pub(crate) fn choose_hash(&self, offer: &Offer) -> Option<Hash> {
        self.hashes.iter().copied().find(|hash| offer.hash_ids.contains(&hash.id()))
    }

    /// The group this side likes best of those that are offered.
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
    /// Which of its secrets the host has: an index into
    /// `ControllerConfig::host_keys`, which tells during rotation which hosts still use the old
    /// one. At the host it is 0.
    pub host_key: usize,
}

impl fmt::Display for Authentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sides = if self.mutual { "both sides" } else { "the host" };
        write!(f, "{sides} authenticated with {}, {}", self.hash, self.group)
    }
}
