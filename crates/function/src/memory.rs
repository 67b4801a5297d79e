//! Accounts of memory: what many parties may take of a machine, together and each.
//!
//! Whoever takes memory for somebody holds a [`Charge`] beside it; when that is dropped, the memory is
//! given back. All accounts of a [`Memory`] share its limit. Of that, a party may take as much as others
//! have left: one that is alone half, of two that want all each a third, so that whoever comes later
//! finds some. A part of the whole is kept for parties that have only little.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The part of the limit that parties with more than [`Memory::little_bytes`] do not touch: a quarter.
const RESERVE_PART: usize = 4;
/// What any party may take as long as the limit allows it: this part of it.
const LITTLE_PART: usize = 64;

/// Memory that several accounts share.
#[derive(Debug)]
pub struct Memory {
    limit_bytes: AtomicUsize,
    used_bytes: AtomicUsize,
}

/// What one party has taken.
#[derive(Debug)]
pub struct Account {
    memory: Arc<Memory>,
    used_bytes: AtomicUsize,
    /// It is the owner of the memory itself: no share.
    is_own: bool,
    /// What this is a member of.
    group: Option<Arc<Account>>,
}

/// Memory that has been taken, and is given back when this is dropped.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    bytes: usize,
}

/// There is not as much memory left as is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryFull {
    /// The party has its share.
    #[error(
        "{bytes} bytes are more than {} share of the target's memory: it has {used_bytes} bytes, and with what \
         others use may have {share_bytes}",
        if *is_group { "its address's" } else { "the host's" }
    )]
    Share {
        /// Whether it is the share of a group that the party is a member of.
        is_group: bool,
        /// What was asked for.
        bytes: usize,
        /// What the party has.
        used_bytes: usize,
        /// What it may have now.
        share_bytes: usize,
    },
    /// All parties together have all there is.
    #[error(
        "{bytes} bytes are more than what is left of the target's {limit_bytes} bytes of memory"
    )]
    All {
        /// What was asked for.
        bytes: usize,
        /// What there is.
        limit_bytes: usize,
    },
}

impl MemoryFull {
    /// The same of so many bytes.
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
    /// Memory of which nothing is used.
    pub fn new(limit_bytes: usize) -> Arc<Memory> {
        let limit_bytes = AtomicUsize::new(limit_bytes);
        Arc::new(Memory { limit_bytes, used_bytes: AtomicUsize::new(0) })
    }

    /// What all accounts may take together, in bytes.
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// Changes what all accounts may take together. What is taken already stays taken.
    pub fn set_limit_bytes(&self, bytes: usize) {
        self.limit_bytes.store(bytes, Ordering::Relaxed);
    }

    /// What all accounts have taken, in bytes.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// What a party may take whatever others have, as long as the limit allows it, in bytes.
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

    /// An account for what the owner of the memory needs itself. It has no share, but leaves what is
    /// kept for parties that have only little.
    pub fn own_account(self: &Arc<Self>) -> Arc<Account> {
        self.account_with(None, true)
    }
}

impl Account {
    /// An account of a member of this one: what it takes this one takes as well, and together members leave a third as
    /// much as they take, whatever their number.
    pub fn member(self: &Arc<Self>) -> Arc<Account> {
        self.memory.account_with(Some(Arc::clone(self)), false)
    }

    /// What it has taken, in bytes.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// The memory it is an account of.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// What its members may have together, if all parties together have `total` bytes. Where it is for one that will have
    /// more than little, an eighth is left to members that have not.
    fn group_share_bytes(&self, used: usize, total: usize, is_for_little: bool) -> usize {
        let limit = self.memory.limit_bytes();
        let free = (limit - limit / RESERVE_PART).saturating_sub(total);
        let eighths = if is_for_little { 6 } else { 5 };
        (used.saturating_add(free) / 8 * eighths).max(self.memory.little_bytes())
    }

    /// What it may have, if all parties together have `total` bytes.
    fn share_bytes(&self, used: usize, total: usize) -> usize {
        let limit = self.memory.limit_bytes();
        let free = (limit - limit / RESERVE_PART).saturating_sub(total);
        if self.is_own {
            return used + free;
        }
        let little = self.memory.little_bytes();
        // As much again as is free, of what is not kept for others.
        if used < free { (used + free).div_ceil(2).max(little) } else { used.max(little) }
    }

    /// Takes memory.
    ///
    /// # Errors
    /// If the account has no room for it; then nothing is taken.
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Result<Charge, MemoryFull> {
        let mut charge = Charge { account: Arc::clone(self), bytes: 0 };
        charge.resize(bytes)?;
        Ok(charge)
    }

    /// The same, if there is room for `rest` bytes more then.
    ///
    /// # Errors
    /// As [`charge`](Self::charge).
    pub fn charge_leaving(
        self: &Arc<Self>,
        bytes: usize,
        rest: usize,
    ) -> Result<Charge, MemoryFull> {
        let charge = self.charge(bytes.saturating_add(rest));
        // What is told is what was asked for.
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

    /// This account, and those that it is a member of.
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
        // Another thread may do the same for this party: both add first and look then.
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
        // Of all, so that all can be given back.
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
    /// How many bytes it is.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whose memory it is.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Takes more or gives back, so that it is this many bytes.
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

    /// Takes as much as it can get, in pieces.
    fn fill(account: &Arc<Account>) -> Charge {
        let mut charge = account.charge(0).expect("nothing");
        for piece in [1 << 20, 1 << 10] {
            while charge.resize(charge.bytes() + piece).is_ok() {}
        }
        charge
    }

    #[test]
    fn what_is_taken_comes_back() {
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
    fn parties_leave_as_much_as_they_take_and_a_reserve() {
        let memory = Memory::new(LIMIT);
        let accounts: Vec<_> = (0..12).map(|_| memory.account()).collect();
        let charges: Vec<_> = accounts.iter().map(fill).collect();
        let common = LIMIT - LIMIT / RESERVE_PART;
        let part = |index: usize| charges[index].bytes() as f64 / common as f64;
        assert!((part(0) - 0.5).abs() < 0.01 && (part(1) - 0.25).abs() < 0.01, "{charges:?}");
        // The last ones get little, but that.
        assert!(charges.iter().all(|charge| charge.bytes() >= memory.little_bytes() - 1024));
        assert!(memory.used_bytes() <= LIMIT);
        let late = memory.account();
        assert!(late.charge(memory.little_bytes()).is_ok(), "there is always some for one more");
    }

    #[test]
    fn members_leave_something_to_others() {
        let memory = Memory::new(LIMIT);
        let group = memory.account();
        let members: Vec<_> = (0..100).map(|_| group.member()).collect();
        let charges: Vec<_> = members.iter().map(fill).collect();
        let common = LIMIT - LIMIT / RESERVE_PART;
        let used: usize = charges.iter().map(Charge::bytes).sum();
        assert_eq!((group.used_bytes(), memory.used_bytes()), (used, used));
        assert!((used as f64 / common as f64 - 0.75).abs() < 0.01, "{used} of {common}");
        // No two of them keep the others from having little.
        drop(charges);
        let greedy = [fill(&members[0]), fill(&members[1])];
        assert!(greedy[0].bytes() > common / 3 && greedy[1].bytes() > memory.little_bytes());
        let little = memory.little_bytes();
        let modest: Vec<_> = (2..8).map(|of| members[of].charge(little).expect("little")).collect();
        drop((greedy, modest));
        let charges: Vec<_> = members.iter().map(fill).collect();
        // Who is no member has half of what is left.
        let other = fill(&memory.account());
        assert!((other.bytes() as f64 / common as f64 - 0.125).abs() < 0.01, "{other:?}");
        let full = members[99].charge(1 << 20).expect_err("they have their share");
        assert!(full.to_string().contains("its address's share"), "{full}");
        // What one gives back another may have.
        drop(charges);
        assert_eq!((group.used_bytes(), memory.used_bytes()), (0, other.bytes()));
        let anyway = members[0].charge_anyway(LIMIT);
        assert_eq!(group.used_bytes(), LIMIT);
        assert!(members[1].charge(1).is_err());
        drop(anyway);
        assert!(members[1].charge(1).is_ok());
    }

    #[test]
    fn a_charge_may_have_to_leave_something() {
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
    fn little_is_had_until_there_is_none() {
        let memory = Memory::new(LIMIT);
        let taken: Vec<_> = (0..LITTLE_PART)
            .map(|_| memory.account().charge(memory.little_bytes()).expect("little"))
            .collect();
        assert!(matches!(memory.account().charge(1), Err(MemoryFull::All { .. })));
        drop(taken);
        assert_eq!(memory.used_bytes(), 0);
    }
}
