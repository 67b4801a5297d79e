//! Writes that were acknowledged and then lost, and which associations have been told.
//!
//! Whoever syncs first hears of a loss from the kernel or the drive, and nobody after that. So a loss is kept with the
//! storage, and each association is told by its next Flush or write with Force Unit Access.

use crate::access::Access;
use crate::hosts::Host;
use crate::limits::MAX_CUT_OFF;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
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

/// A host by its qualified name and its identifier, which anybody may give; and where it is, unless it proves its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostName {
    pub(crate) nqn: String,
    pub(crate) id: [u8; 16],
    pub(crate) address: Option<IpAddr>,
}

impl HostName {
    /// One that has given this name and this identifier, to be let in so.
    pub(crate) fn new(access: &Access, host: &Host, (nqn, id): (&str, [u8; 16])) -> HostName {
        let address = host.address().filter(|_| access.authentication.is_none());
        HostName { nqn: nqn.to_owned(), id, address }
    }

    /// Whether one may be the other, that has come from elsewhere.
    pub(crate) fn may_be(&self, other: &HostName) -> bool {
        self.id == other.id && self.nqn == other.nqn
    }

    /// Who shares what may be remembered: those at an address, who may take any name there, or a proven name.
    fn group(&self) -> (Option<IpAddr>, Option<&str>) {
        (self.address, self.address.is_none().then_some(&self.nqn))
    }
}

/// Associations that their hosts have not shut down, the last one last, of which not too many are kept. The hosts may
/// come back by others and go on, among others to flush what they have written by these.
///
/// Who has not proved its name may be told of what it did not write, but nobody who comes from elsewhere makes the
/// target forget what a host has to hear.
#[derive(Debug, Default)]
pub(crate) struct CutOff(VecDeque<(HostName, Ending)>);

#[derive(Debug)]
enum Ending {
    /// It was cut off, having been told this.
    CutOff(Told),
    /// It has shut down what it had, and begins anew, whatever was cut off that had its name elsewhere.
    ShutDown,
}

impl CutOff {
    /// A host is cut off.
    pub(crate) fn add(&mut self, host: HostName, told: &Told) {
        self.0.retain(|(of, ending)| *of != host || !matches!(ending, Ending::ShutDown));
        self.push(host, Ending::CutOff(told.copied()));
    }

    /// A host has shut its association down.
    pub(crate) fn has_shut_down(&mut self, host: HostName) {
        self.0.retain(|(of, ending)| *of != host || ending.told().is_some());
        let is_cut_off = self.0.iter().any(|(of, _)| *of == host);
        if !is_cut_off && self.0.iter().any(|(of, _)| of.may_be(&host)) {
            self.push(host, Ending::ShutDown);
        }
    }

    /// What a host has been told by the first of its associations here.
    pub(crate) fn told(&self, host: &HostName) -> Option<&Told> {
        self.0.iter().filter(|(of, _)| of == host).find_map(|(_, ending)| ending.told())
    }

    /// The same of one of its name that was elsewhere, and cut off since the host has shut down what it had.
    pub(crate) fn told_elsewhere(&self, host: &HostName) -> Option<&Told> {
        let last = self.0.iter().rposition(|(of, _)| of == host);
        let later = self.0.iter().skip(last.map_or(0, |last| last + 1));
        later.filter(|(of, _)| of.may_be(host)).find_map(|(_, ending)| ending.told())
    }

    /// A host has come back.
    pub(crate) fn has_come_back(&mut self, host: &HostName) {
        self.0.retain(|(of, ending)| of != host || ending.told().is_none());
    }

    /// Remembers one more; the oldest of those who have most is forgotten for it if there are too many.
    fn push(&mut self, host: HostName, ending: Ending) {
        if self.0.len() >= MAX_CUT_OFF {
            let mut counts = HashMap::new();
            for (of, _) in &self.0 {
                *counts.entry(of.group()).or_insert(0) += 1;
            }
            let most = counts.values().copied().max();
            let oldest = self.0.iter().position(|(of, _)| counts.get(&of.group()).copied() == most);
            oldest.map(|oldest| self.0.remove(oldest));
        }
        self.0.push_back((host, ending));
    }
}

impl Ending {
    fn told(&self) -> Option<&Told> {
        match self {
            Ending::CutOff(told) => Some(told),
            Ending::ShutDown => None,
        }
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

    fn at(address: Option<u8>, nqn: &str, id: u8) -> HostName {
        let address = address.map(|last| IpAddr::from([10, 0, 0, last]));
        HostName { nqn: nqn.to_owned(), id: [id; 16], address }
    }

    /// They are not remembered without a limit, and who is cut off again and again pushes out only those at its own
    /// address, or of its own proven name.
    #[test]
    fn the_oldest_of_those_who_have_most_is_forgotten() {
        let mut cut_off = CutOff::default();
        let told = Told::from_now();
        let (here, proven) = (at(Some(1), "a", 1), at(None, "a", 1));
        cut_off.add(here.clone(), &told);
        cut_off.add(proven.clone(), &told);
        for number in 0..MAX_CUT_OFF {
            cut_off.add(at(Some(2), &number.to_string(), 1), &told);
        }
        assert_eq!(cut_off.0.len(), MAX_CUT_OFF);
        assert!(cut_off.told(&here).is_some() && cut_off.told(&proven).is_some());
        assert!(cut_off.told(&at(Some(2), "1", 1)).is_none());
        assert!(cut_off.told(&at(Some(2), "2", 1)).is_some());
        for id in 0..200 {
            cut_off.add(at(None, "b", id), &told);
        }
        assert!(cut_off.told(&here).is_some() && cut_off.told(&proven).is_some());
    }

    /// Whoever comes from elsewhere by the same name takes nothing from who was cut off, and a host that comes back
    /// from elsewhere is told once.
    #[test]
    fn who_comes_from_elsewhere_takes_nothing_away() {
        let mut cut_off = CutOff::default();
        let (here, there) = (at(Some(1), "a", 1), at(Some(2), "a", 1));
        cut_off.add(here.clone(), &Told::from_now());
        assert!(cut_off.told(&there).is_none() && cut_off.told_elsewhere(&there).is_some());
        cut_off.has_come_back(&there);
        cut_off.has_shut_down(there.clone());
        assert!(cut_off.told_elsewhere(&there).is_none(), "it begins anew");
        assert!(cut_off.told(&here).is_some());
        // Cut off there as well, it has that to hear.
        cut_off.add(there.clone(), &Told::from_now());
        assert!(cut_off.told(&there).is_some());
        cut_off.has_come_back(&here);
        cut_off.has_come_back(&there);
        assert!(cut_off.0.is_empty());
        cut_off.has_shut_down(here);
        assert!(cut_off.0.is_empty(), "of most hosts there is nothing to remember");
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

    /// What has its name elsewhere and is cut off after a host has shut down is not what it had then.
    #[test]
    fn who_is_cut_off_elsewhere_after_a_shutdown_is_told_here() {
        let mut cut_off = CutOff::default();
        let told = Told::from_now();
        let (first, second) = (at(Some(1), "a", 1), at(Some(2), "a", 1));
        cut_off.add(first.clone(), &told);
        cut_off.has_shut_down(second.clone());
        assert!(cut_off.told_elsewhere(&second).is_none());
        cut_off.has_come_back(&first);
        cut_off.add(first.clone(), &told);
        assert!(cut_off.told_elsewhere(&second).is_some());
        cut_off.has_shut_down(second.clone());
        assert!(cut_off.told_elsewhere(&second).is_none(), "it has shut down once more");
    }
}
