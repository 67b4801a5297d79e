//! Accounts of memory: limits for the memory that several parties take, together and each.
//!
//! Code that takes memory on behalf of a party keeps a [`Charge`] with it; dropping the charge gives the memory back.
//! All accounts of a [`Memory`] share its limit. A party may take as much of it as the others have left free: a party
//! alone takes half, two that want everything a third each, so some is left for parties that come later. A part of the
//! limit is reserved for parties that have little.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The part of the limit that parties with more than [`Memory::little_bytes`] may not use: a quarter.
const RESERVE_PART: usize = 4;
/// The part of the limit that any party may take, as long as the limit allows it.
const LITTLE_PART: usize = 64;

/// Memory shared by several accounts.
#[derive(Debug)]
pub struct Memory {
    limit_bytes: AtomicUsize,
    used_bytes: AtomicUsize,
}

/// The account of one party.
#[derive(Debug)]
pub struct Account {
    memory: Arc<Memory>,
    used_bytes: AtomicUsize,
    /// It belongs to the owner of the memory, and has no share.
    is_own: bool,
    /// The group that the party is a member of.
    group: Option<Arc<Account>>,
}

/// Memory that has been taken; dropping this gives it back.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    bytes: usize,
}

/// There is less memory left than requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryFull {
    /// The request exceeds the party's share.
    #[error(
        "{bytes} bytes are more than {} share of the target's memory: it uses {used_bytes} of the \
         {share_bytes} bytes that it may have beside what others use",
        if *is_group { "its address's" } else { "the host's" }
    )]
    Share {
        /// Whether it is the share of a group that the party is a member of.
        is_group: bool,
        /// The requested bytes.
        bytes: usize,
        /// The bytes that the party has.
        used_bytes: usize,
        /// The bytes that it may have now.
        share_bytes: usize,
    },
    /// The request exceeds the rest of all memory.
    #[error(
        "{bytes} bytes are more than what is left of the target's {limit_bytes} bytes of memory"
    )]
    All {
        /// The requested bytes.
        bytes: usize,
        /// The limit of all parties together.
        limit_bytes: usize,
    },
}

impl MemoryFull {
    /// The same error for a request of this many bytes.
    const fn of(self, asked: usize) -> MemoryFull {
        match self {
            MemoryFull::Share { is_group, used_bytes, share_bytes, .. } => {
                MemoryFull::Share { is_group, bytes: asked, used_bytes, share_bytes }
            }
            MemoryFull::All { limit_bytes, .. } => MemoryFull::All { bytes: asked, limit_bytes },
        }
    }
}

impl Memory {
    /// Memory, all of which is free.
    pub fn new(limit_bytes: usize) -> Arc<Memory> {
        let limit_bytes = AtomicUsize::new(limit_bytes);
        Arc::new(Memory { limit_bytes, used_bytes: AtomicUsize::new(0) })
    }

    /// Limit of all accounts together, in bytes.
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// Changes the limit of all accounts together. Memory already taken stays taken.
    pub fn set_limit_bytes(&self, bytes: usize) {
        self.limit_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Memory taken by all accounts, in bytes.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that a party may take whatever others have, as long as the limit allows it.
    pub fn little_bytes(&self) -> usize {
        self.limit_bytes() / LITTLE_PART
    }

    /// An account with a share.
    pub fn account(self: &Arc<Self>) -> Arc<Account> {
        self.account_with(None, false)
    }

    fn account_with(self: &Arc<Self>, group: Option<Arc<Account>>, is_own: bool) -> Arc<Account> {
        let memory = Arc::clone(self);
        Arc::new(Account { memory, used_bytes: AtomicUsize::new(0), is_own, group })
    }

    /// An account for the owner of the memory itself. It has no share, but does not use the part that is reserved for
    /// parties with little.
    pub fn own_account(self: &Arc<Self>) -> Arc<Account> {
        self.account_with(None, true)
    }
}

impl Account {
    /// An account of a member of this group. Memory that a member takes counts for the group as well. Together, members
    /// leave a third as much free as they take, whatever their number.
    pub fn member(self: &Arc<Self>) -> Arc<Account> {
        self.memory.account_with(Some(Arc::clone(self)), false)
    }

    /// Memory that it has taken, in bytes.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// The memory that it is an account of.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Bytes that the members of this group may have together, if all parties together have `total` bytes. A request of
    /// a member that will have more than little also leaves an eighth to members with little.
    fn group_share_bytes(&self, used: usize, total: usize, is_for_little: bool) -> usize {
        let limit = self.memory.limit_bytes();
        let free = (limit - limit / RESERVE_PART).saturating_sub(total);
        let eighths = if is_for_little { 6 } else { 5 };
        (used.saturating_add(free) / 8 * eighths).max(self.memory.little_bytes())
    }

    /// Bytes that it may have, if all parties together have `total` bytes.
    fn share_bytes(&self, used: usize, total: usize) -> usize {
        let limit = self.memory.limit_bytes();
        let free = (limit - limit / RESERVE_PART).saturating_sub(total);
        if self.is_own {
            return used + free;
        }
        let little = self.memory.little_bytes();
        // At most as much as it leaves free, not counting the reserve.
        if used < free { (used + free).div_ceil(2).max(little) } else { used.max(little) }
    }

    /// Takes memory.
    ///
    /// # Errors
    /// If the account has no room for it; then nothing has been taken.
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Result<Charge, MemoryFull> {
        let mut charge = Charge { account: Arc::clone(self), bytes: 0 };
        charge.resize(bytes)?;
        Ok(charge)
    }

    /// Takes memory, if afterwards there would be room for `rest` more bytes.
    ///
    /// # Errors
    /// As [`charge`](Self::charge).
    pub fn charge_leaving(
        self: &Arc<Self>,
        bytes: usize,
        rest: usize,
    ) -> Result<Charge, MemoryFull> {
        let charge = self.charge(bytes.saturating_add(rest));
        // An error reports only the requested bytes.
        let mut charge = charge.map_err(|full| full.of(bytes))?;
        charge.resize(bytes)?;
        Ok(charge)
    }

    /// Takes memory that cannot be refused, even beyond the share and the limit.
    pub fn charge_anyway(self: &Arc<Self>, bytes: usize) -> Charge {
        for account in self.with_group() {
            account.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        self.memory.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        Charge { account: Arc::clone(self), bytes }
    }

    /// This account, and the groups that it is a member of.
    fn with_group(&self) -> impl Iterator<Item = &Account> {
        std::iter::successors(Some(self), |account| account.group.as_deref())
    }

    fn take(&self, bytes: usize) -> Result<(), MemoryFull> {
        let limit_bytes = self.memory.limit_bytes();
        let all = MemoryFull::All { bytes, limit_bytes };
        let total = &self.memory.used_bytes;
        let before = total
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|sum| *sum <= limit_bytes)
            })
            .map_err(|_| all)?;
        // Another thread may do the same for this party, so both add first and compare then.
        let little_bytes = self.memory.little_bytes();
        let has_little = self.used_bytes().saturating_add(bytes) <= little_bytes;
        let look = |account: &Account| {
            let used_bytes = account.used_bytes.fetch_add(bytes, Ordering::Relaxed);
            let is_group = !std::ptr::eq(account, self);
            let share_bytes = match is_group {
                true => account.group_share_bytes(used_bytes, before, has_little),
                false => account.share_bytes(used_bytes, before),
            };
            let full = MemoryFull::Share { is_group, bytes, used_bytes, share_bytes };
            (used_bytes + bytes > share_bytes).then_some(full)
        };
        // Adds to all accounts, so that a refusal can give back to all.
        let refusals = self.with_group().filter_map(look);
        if let Some(full) = refusals.fold(None, |first, full| first.or(Some(full))) {
            self.give_back(bytes);
            return Err(full);
        }
        Ok(())
    }

    fn give_back(&self, bytes: usize) {
        for account in self.with_group() {
            account.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        self.memory.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Charge {
    /// Number of bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The account that has taken the memory.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Takes more memory or gives some back, so that this has the given size in bytes.
    ///
    /// # Errors
    /// If the account has no room for more; then nothing has changed.
    pub fn resize(&mut self, bytes: usize) -> Result<(), MemoryFull> {
        if bytes > self.bytes {
            self.account.take(bytes - self.bytes)?;
        } else {
            self.account.give_back(self.bytes - bytes);
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 64 << 20;

    /// Takes as much as possible, in pieces.
    fn fill(account: &Arc<Account>) -> Charge {
        let mut charge = account.charge(0).expect("nothing");
        for piece in [1 << 20, 1 << 10] {
            while charge.resize(charge.bytes() + piece).is_ok() {}
        }
        charge
    }

    #[test]
    fn dropped_charges_are_given_back() {
        let memory = Memory::new(LIMIT);
        let own = memory.own_account();
        let mut charge = own.charge(1000).expect("room");
        let common = LIMIT - LIMIT / RESERVE_PART;
        let more = own.charge(common - 1000).expect("room");
        assert!(
            matches!(own.charge(1), Err(MemoryFull::Share { used_bytes, .. }) if used_bytes == common)
        );
        assert!(charge.resize(usize::MAX).is_err() && charge.bytes() == 1000);
        charge.resize(10).expect("less");
        assert_eq!((memory.used_bytes(), own.used_bytes()), (common - 990, common - 990));
        drop((charge, more));
        assert_eq!((memory.used_bytes(), own.used_bytes()), (0, 0));
    }

    #[test]
    fn accounts_leave_free_as_much_as_they_take_and_a_reserve() {
        let memory = Memory::new(LIMIT);
        let accounts: Vec<_> = (0..12).map(|_| memory.account()).collect();
        let charges: Vec<_> = accounts.iter().map(fill).collect();
        let common = LIMIT - LIMIT / RESERVE_PART;
        let part = |index: usize| charges[index].bytes() as f64 / common as f64;
        assert!((part(0) - 0.5).abs() < 0.01 && (part(1) - 0.25).abs() < 0.01, "{charges:?}");
        // The last accounts get little, but not less.
        assert!(charges.iter().all(|charge| charge.bytes() >= memory.little_bytes() - 1024));
        assert!(memory.used_bytes() <= LIMIT);
        let late = memory.account();
        assert!(late.charge(memory.little_bytes()).is_ok(), "another account still gets a little");
    }

    #[test]
    fn members_of_a_group_leave_memory_for_others() {
        let memory = Memory::new(LIMIT);
        let group = memory.account();
        let members: Vec<_> = (0..100).map(|_| group.member()).collect();
        let charges: Vec<_> = members.iter().map(fill).collect();
        let common = LIMIT - LIMIT / RESERVE_PART;
        let used: usize = charges.iter().map(Charge::bytes).sum();
        assert_eq!((group.used_bytes(), memory.used_bytes()), (used, used));
        assert!((used as f64 / common as f64 - 0.75).abs() < 0.01, "{used} of {common}");
        // Two members cannot prevent the others from having little.
        drop(charges);
        let greedy = [fill(&members[0]), fill(&members[1])];
        assert!(greedy[0].bytes() > common / 3 && greedy[1].bytes() > memory.little_bytes());
        let little = memory.little_bytes();
        let modest: Vec<_> = (2..8).map(|of| members[of].charge(little).expect("little")).collect();
        drop((greedy, modest));
        let charges: Vec<_> = members.iter().map(fill).collect();
        // An account outside of the group has half of the rest.
        let other = fill(&memory.account());
        assert!((other.bytes() as f64 / common as f64 - 0.125).abs() < 0.01, "{other:?}");
        let full = members[99].charge(1 << 20).expect_err("they have their share");
        assert!(full.to_string().contains("its address's share"), "{full}");
        // Memory that one member gives back is available to others.
        drop(charges);
        assert_eq!((group.used_bytes(), memory.used_bytes()), (0, other.bytes()));
        let anyway = members[0].charge_anyway(LIMIT);
        assert_eq!(group.used_bytes(), LIMIT);
        assert!(members[1].charge(1).is_err());
        drop(anyway);
        assert!(members[1].charge(1).is_ok());
    }

    #[test]
    fn charge_leaving_keeps_room_for_the_rest() {
        let memory = Memory::new(LIMIT);
        let account = memory.account();
        let half = (LIMIT - LIMIT / RESERVE_PART) / 2;
        assert!(account.charge_leaving(half, 1 << 10).is_err() && account.used_bytes() == 0);
        let charge = account.charge_leaving(half - (1 << 10), 1 << 10).expect("room for both");
        assert_eq!(account.used_bytes(), charge.bytes());
        let full = account.charge_leaving(1, usize::MAX).expect_err("no room for the rest");
        assert!(full.to_string().starts_with("1 bytes"), "{full}");
    }

    #[test]
    fn small_charges_succeed_until_memory_is_exhausted() {
        let memory = Memory::new(LIMIT);
        let taken: Vec<_> = (0..LITTLE_PART)
            .map(|_| memory.account().charge(memory.little_bytes()).expect("little"))
            .collect();
        assert!(matches!(memory.account().charge(1), Err(MemoryFull::All { .. })));
        drop(taken);
        assert_eq!(memory.used_bytes(), 0);
    }
}
