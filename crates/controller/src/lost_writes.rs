//! Writes that were acknowledged and then lost, and which associations have been told.
//!
//! Whoever syncs first hears of a loss from the kernel or the drive, and nobody after that. So a loss is kept with the
//! storage, and each association is told by its next Flush or write with Force Unit Access.

use crate::limits::MAX_CUT_OFF;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Losses are numbered, those of all storage together.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The number of the last loss of a storage; 0 if there was none.
#[derive(Debug, Default)]
pub(crate) struct LostWrites(AtomicU64);

impl LostWrites {
    /// Writes have been lost.
    pub(crate) fn note(&self) {
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.fetch_max(number, Ordering::Relaxed);
    }
}

/// What an association has been told.
#[derive(Debug)]
pub(crate) struct Told {
    /// The last loss before it began.
    first: u64,
    /// Of each storage with losses since then, the last that it was told of.
    later: Mutex<Vec<(Weak<LostWrites>, u64)>>,
}

impl Told {
    /// Of a host that begins now: it has no writes that can have been lost before.
    pub(crate) fn from_now() -> Told {
        Told { first: LAST.load(Ordering::Relaxed), later: Mutex::default() }
    }

    /// Of an association that goes on where another one of its host is: what that one has not been told, it is told
    /// as well.
    pub(crate) fn copied(&self) -> Told {
        Told { first: self.first, later: Mutex::new(self.later().clone()) }
    }

    /// The number of the last loss, if that was not told.
    #[inline]
    pub(crate) fn unheard(&self, of: &Arc<LostWrites>) -> Option<u64> {
        let last = of.0.load(Ordering::Relaxed);
        (last > self.first && self.last_told(of) < last).then_some(last)
    }

    #[cold]
    fn last_told(&self, of: &Arc<LostWrites>) -> u64 {
        let later = self.later();
        later.iter().find(|(known, _)| is_it(known, of)).map_or(0, |(_, told)| *told)
    }

    /// The losses up to this number have been told.
    pub(crate) fn hears(&self, of: &Arc<LostWrites>, number: u64) {
        let mut later = self.later();
        if let Some((_, told)) = later.iter_mut().find(|(known, _)| is_it(known, of)) {
            *told = number.max(*told);
            return;
        }
        // Storage that nobody serves any more.
        later.retain(|(known, _)| known.strong_count() > 0);
        later.push((Arc::downgrade(of), number));
    }

    fn later(&self) -> MutexGuard<'_, Vec<(Weak<LostWrites>, u64)>> {
        self.later.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Associations that their hosts have not shut down, the last one last, of which not too many are kept. The hosts may
/// come back by others and go on, among others to flush what they have written by these.
#[derive(Debug, Default)]
pub(crate) struct CutOff(VecDeque<(HostName, Told)>);

/// The qualified name of a host, and its identifier.
type HostName = (String, [u8; 16]);

impl CutOff {
    /// A host is cut off.
    pub(crate) fn add(&mut self, host: HostName, told: &Told) {
        if self.0.len() == MAX_CUT_OFF {
            self.0.pop_front();
        }
        self.0.push_back((host, told.copied()));
    }

    /// What a host has been told by the first of its associations here.
    pub(crate) fn told(&self, (nqn, id): (&str, [u8; 16])) -> Option<&Told> {
        self.0.iter().find(|(of, _)| of.1 == id && of.0 == nqn).map(|(_, told)| told)
    }

    /// A host has come back.
    pub(crate) fn remove(&mut self, (nqn, id): (&str, [u8; 16])) {
        self.0.retain(|(of, _)| of.1 != id || of.0 != nqn);
    }
}

fn is_it(known: &Weak<LostWrites>, of: &Arc<LostWrites>) -> bool {
    std::ptr::eq(known.as_ptr(), Arc::as_ptr(of))
}

#[cfg(test)]
impl Told {
    /// Whether there was a loss that is told now.
    pub(crate) fn must_hear(&self, of: &Arc<LostWrites>) -> bool {
        self.unheard(of).map(|number| self.hears(of, number)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They are not remembered without a limit.
    #[test]
    fn the_oldest_is_forgotten() {
        let mut cut_off = CutOff::default();
        for number in 0..MAX_CUT_OFF + 2 {
            cut_off.add((number.to_string(), [1; 16]), &Told::from_now());
        }
        assert_eq!(cut_off.0.len(), MAX_CUT_OFF);
        assert!(cut_off.told(("1", [1; 16])).is_none() && cut_off.told(("2", [1; 16])).is_some());
    }

    #[test]
    fn each_association_is_told_once_of_each_loss() {
        let [one, other] = [Arc::new(LostWrites::default()), Arc::new(LostWrites::default())];
        let told = [Told::from_now(), Told::from_now()];
        assert!(!told.iter().any(|told| told.must_hear(&one)));
        one.note();
        assert!(told[0].must_hear(&one));
        assert!(!told[0].must_hear(&one) && !told[0].must_hear(&other));
        other.note();
        one.note();
        for told in &told {
            assert!(told.must_hear(&one) && told.must_hear(&other));
            assert!(!told.must_hear(&one) && !told.must_hear(&other));
        }
        let later = Told::from_now();
        assert!(!later.must_hear(&one) && !later.must_hear(&other));
        // What nobody serves is forgotten.
        drop(one);
        let third = Arc::new(LostWrites::default());
        third.note();
        assert!(told[0].must_hear(&third) && told[0].later.lock().expect("free").len() == 2);
    }
}
