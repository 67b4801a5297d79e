//! The resources of the daemon that each user has and may have.

use crate::config::Limits;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A kind of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Clients, each with an association.
    Clients,
    /// Files that clients have open here.
    Files,
    /// Extents of the maps of their grants.
    Extents,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Clients => "clients",
            Kind::Files => "files",
            Kind::Extents => "extents",
        })
    }
}

/// A quota is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} may have at most {limit} {kind} at a time")]
pub(crate) struct Exceeded {
    what: &'static str,
    kind: Kind,
    limit: usize,
}

type Counts = [usize; 3];

/// The quotas of all users. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Quotas {
    users: Arc<Mutex<HashMap<u32, Counts>>>,
    limits: Limits,
}

impl Quotas {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { users: Arc::default(), limits }
    }

    fn users(&self) -> MutexGuard<'_, HashMap<u32, Counts>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `amount` for user `uid`, until the share is dropped.
    pub(crate) fn take(&self, uid: u32, kind: Kind, amount: usize) -> Result<Share, Exceeded> {
        let mut users = self.users();
        let all: usize = users.values().map(|counts| counts[kind as usize]).sum();
        let own = users.get(&uid).map_or(0, |counts| counts[kind as usize]);
        let limit = match kind {
            Kind::Clients if all + amount > self.limits.clients => {
                let (what, limit) = ("all users together", self.limits.clients);
                return Err(Exceeded { what, kind, limit });
            }
            Kind::Clients => self.limits.clients_per_user,
            Kind::Files => self.limits.files_per_user,
            Kind::Extents => self.limits.extents_per_user,
        };
        if amount > limit.saturating_sub(own) {
            return Err(Exceeded { what: "one user", kind, limit });
        }
        // Only now, after the checks: a user without resources must not get an entry, so that the
        // map does not grow.
        users.entry(uid).or_default()[kind as usize] += amount;
        drop(users);
        Ok(Share { quotas: self.clone(), uid, kind, amount })
    }
}

/// A taken amount; dropping it gives the amount back.
#[derive(Debug)]
pub(crate) struct Share {
    quotas: Quotas,
    uid: u32,
    kind: Kind,
    amount: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut users = self.quotas.users();
        if let Some(counts) = users.get_mut(&self.uid) {
            counts[self.kind as usize] -= self.amount;
            if *counts == Counts::default() {
                users.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_enforced_and_empty_entries_removed() {
        let limits = Limits { clients: 3, clients_per_user: 2, ..Limits::default() };
        let quotas = Quotas::new(limits);
        let take = |uid| quotas.take(uid, Kind::Clients, 1);
        let one = take(7).expect("the first");
        let _two = take(7).expect("the second");
        let error = take(7).expect_err("a third").to_string();
        assert_eq!(error, "one user may have at most 2 clients at a time");
        let _other = take(8).expect("of another user");
        let error = take(9).expect_err("a fourth of all").to_string();
        assert_eq!(error, "all users together may have at most 3 clients at a time");
        assert_eq!(quotas.users().len(), 2, "a refused user has no entry");
        drop(one);
        let _again = take(7).expect("there is room again");
        // The whole amount is taken, or nothing.
        let most = limits.extents_per_user;
        let extents = |amount| quotas.take(9, Kind::Extents, amount);
        let half = extents(most / 2).expect("half of them");
        assert!(extents(most / 2 + 1).is_err());
        drop(half);
        drop(extents(most).expect("all"));
        assert!(!quotas.users().contains_key(&9));
    }
}
