//! Acknowledged writes that were lost, and the associations that have been told of them.
//!
//! The kernel or the drive reports a loss only to the first sync after it. So the target records the loss with the
//! storage, and tells each association by its next Flush or write with Force Unit Access.

use crate::access::Access;
use crate::hosts::Host;
use crate::limits::MAX_CUT_OFF;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The number of the last loss; losses of all storage are numbered together.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The number of the last loss of a storage; 0 if there was none.
#[derive(Debug, Default)]
pub(crate) struct LostWrites(AtomicU64);

impl LostWrites {
    /// Records that writes have been lost.
    pub(crate) fn note(&self) {
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.fetch_max(number, Ordering::Relaxed);
    }

    /// The number of the last loss; 0 if there was none.
    pub(crate) fn last(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The losses that an association has been told of.
#[derive(Debug)]
pub(crate) struct Told {
    /// The last loss before it began.
    first: u64,
    /// For each storage with losses since then, the last one that it was told of.
    later: Mutex<Vec<Report>>,
}

/// A loss that an association has been told of.
#[derive(Clone, Debug)]
struct Report {
    of: Weak<LostWrites>,
    number: u64,
    /// When the answer was queued, on the reactors' clock. It reaches the host later or, if the path breaks, never.
    at_ns: u64,
}

impl Told {
    /// For a host that begins now: it has no writes that can have been lost before.
    pub(crate) fn from_now() -> Told {
        Told { first: LAST.load(Ordering::Relaxed), later: Mutex::default() }
    }

    /// For a host that may have written by another process, which this one replaces: it may have writes that were lost
    /// at any time.
    pub(crate) fn nothing() -> Told {
        Told { first: 0, later: Mutex::default() }
    }

    /// For an association that continues another one of its host: losses that the other one has not been told of will
    /// be told to it as well. So are those whose reports are not older than `doubt_ns`: the answers may not have
    /// reached the host.
    pub(crate) fn copied(&self, now_ns: u64, doubt_ns: u64) -> Told {
        let mut later = self.later().clone();
        later.retain(|report| now_ns.saturating_sub(report.at_ns) > doubt_ns);
        Told { first: self.first, later: Mutex::new(later) }
    }

    /// The losses that each of these associations has been told of; none if there is no association.
    fn common<'a>(mut all: impl Iterator<Item = &'a Told>) -> Option<Told> {
        let one = all.next()?;
        let mut common = Told { first: one.first, later: Mutex::new(one.later().clone()) };
        all.for_each(|other| common.keep_common(other));
        Some(common)
    }

    /// Leaves out losses that the other association has not been told of.
    fn keep_common(&mut self, other: &Told) {
        self.first = self.first.min(other.first);
        let theirs = other.later();
        let later = self.later.get_mut().unwrap_or_else(PoisonError::into_inner);
        later.retain_mut(|report| {
            let same = theirs.iter().find(|known| Weak::ptr_eq(&known.of, &report.of));
            report.number = report.number.min(same.map_or(0, |known| known.number));
            report.number > 0
        });
    }

    /// The number of the last loss of a storage, if the association has not been told of it.
    #[inline]
    pub(crate) fn unheard(&self, of: &Arc<LostWrites>) -> Option<u64> {
        let last = of.0.load(Ordering::Relaxed);
        (last > self.first && self.last_told(of) < last).then_some(last)
    }

    #[cold]
    fn last_told(&self, of: &Arc<LostWrites>) -> u64 {
        let later = self.later();
        later.iter().find(|report| is_it(&report.of, of)).map_or(0, |report| report.number)
    }

    /// Records that the association is being told of losses up to this number.
    pub(crate) fn hears(&self, of: &Arc<LostWrites>, number: u64, now_ns: u64) {
        let mut later = self.later();
        if let Some(report) = later.iter_mut().find(|report| is_it(&report.of, of)) {
            if number > report.number {
                (report.number, report.at_ns) = (number, now_ns);
            }
            return;
        }
        // Drops storage that is not served any more.
        later.retain(|report| report.of.strong_count() > 0);
        later.push(Report { of: Arc::downgrade(of), number, at_ns: now_ns });
    }

    fn later(&self) -> MutexGuard<'_, Vec<Report>> {
        self.later.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A host by its qualified name and its identifier, which any peer may claim, and by its address, unless it proves its
/// name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostName {
    pub(crate) nqn: String,
    pub(crate) id: [u8; 16],
    pub(crate) address: Option<IpAddr>,
}

impl HostName {
    /// The name of a host that has given this NQN and this identifier at Connect.
    pub(crate) fn new(access: &Access, host: &Host, (nqn, id): (&str, [u8; 16])) -> HostName {
        let address = host.address().filter(|_| access.authentication.is_none());
        HostName { nqn: nqn.to_owned(), id, address }
    }

    /// Whether one may be the other host, coming from another address.
    pub(crate) fn may_be(&self, other: &HostName) -> bool {
        self.id == other.id && self.nqn == other.nqn
    }

    /// The group that shares the room of [`CutOff`]: all hosts at an address, where names are free, or one proven name.
    fn group(&self) -> (Option<IpAddr>, Option<&str>) {
        (self.address, self.address.is_none().then_some(&self.nqn))
    }
}

/// Associations that ended without a shutdown by their hosts, the latest one last; their number is limited. The hosts
/// may come back by other associations and continue, for example flush what they have written by these.
///
/// A host that has not proved its name may be told of losses that do not concern it, but no peer at another address can
/// make the target forget a loss that a host must be told of.
#[derive(Debug, Default)]
pub(crate) struct CutOff(VecDeque<(HostName, Ending)>);

#[derive(Debug)]
enum Ending {
    /// It was cut off, with the losses that the host certainly knew of.
    CutOff(Told),
    /// The host has shut its association down and begins anew, even if an association with its name was cut off at
    /// another address.
    ShutDown,
}

impl CutOff {
    /// Records that an association of a host is cut off.
    pub(crate) fn add(&mut self, host: HostName, told: Told) {
        self.0.retain(|(of, ending)| *of != host || !matches!(ending, Ending::ShutDown));
        self.push(host, Ending::CutOff(told));
    }

    /// Records that a host has shut its association down.
    pub(crate) fn has_shut_down(&mut self, host: HostName) {
        self.0.retain(|(of, ending)| *of != host || ending.told().is_some());
        let is_cut_off = self.0.iter().any(|(of, _)| *of == host);
        if !is_cut_off && self.0.iter().any(|(of, _)| of.may_be(&host)) {
            self.push(host, Ending::ShutDown);
        }
    }

    /// The losses that a host has been told of by each of its cut-off associations here: it may continue any of them.
    pub(crate) fn told(&self, host: &HostName) -> Option<Told> {
        let all = self.0.iter().filter(|(of, _)| of == host);
        Told::common(all.filter_map(|(_, ending)| ending.told()))
    }

    /// The same for hosts of its name at other addresses that were cut off after this host's last shutdown.
    pub(crate) fn told_elsewhere(&self, host: &HostName) -> Option<Told> {
        let last = self.0.iter().rposition(|(of, _)| of == host);
        let later = self.0.iter().skip(last.map_or(0, |last| last + 1));
        let all = later.filter(|(of, _)| of.may_be(host));
        Told::common(all.filter_map(|(_, ending)| ending.told()))
    }

    /// Records that a host has come back.
    pub(crate) fn has_come_back(&mut self, host: &HostName) {
        self.0.retain(|(of, ending)| of != host || ending.told().is_none());
    }

    /// Adds an entry; if there are too many, the oldest of the group with most is dropped for it.
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
    /// Whether there is an untold loss; marks it as told at time 0.
    pub(crate) fn must_hear(&self, of: &Arc<LostWrites>) -> bool {
        self.unheard(of).map(|number| self.hears(of, number, 0)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: Option<u8>, nqn: &str, id: u8) -> HostName {
        let address = address.map(|last| IpAddr::from([10, 0, 0, last]));
        HostName { nqn: nqn.to_owned(), id: [id; 16], address }
    }

    /// The number of entries is limited, and a host that is cut off again and again pushes out only entries at its own
    /// address, or of its own proven name.
    #[test]
    fn a_host_evicts_only_entries_of_its_own_address_or_name() {
        let mut cut_off = CutOff::default();
        let (here, proven) = (at(Some(1), "a", 1), at(None, "a", 1));
        cut_off.add(here.clone(), Told::from_now());
        cut_off.add(proven.clone(), Told::from_now());
        for number in 0..MAX_CUT_OFF {
            cut_off.add(at(Some(2), &number.to_string(), 1), Told::from_now());
        }
        assert_eq!(cut_off.0.len(), MAX_CUT_OFF);
        assert!(cut_off.told(&here).is_some() && cut_off.told(&proven).is_some());
        assert!(cut_off.told(&at(Some(2), "1", 1)).is_none());
        assert!(cut_off.told(&at(Some(2), "2", 1)).is_some());
        for id in 0..200 {
            cut_off.add(at(None, "b", id), Told::from_now());
        }
        assert!(cut_off.told(&here).is_some() && cut_off.told(&proven).is_some());
    }

    /// A peer at another address with the same name takes nothing from a host that was cut off, and a host that comes
    /// back from another address is told once.
    #[test]
    fn a_peer_at_another_address_removes_no_entry() {
        let mut cut_off = CutOff::default();
        let (here, there) = (at(Some(1), "a", 1), at(Some(2), "a", 1));
        cut_off.add(here.clone(), Told::from_now());
        assert!(cut_off.told(&there).is_none() && cut_off.told_elsewhere(&there).is_some());
        cut_off.has_come_back(&there);
        cut_off.has_shut_down(there.clone());
        assert!(cut_off.told_elsewhere(&there).is_none(), "it begins anew");
        assert!(cut_off.told(&here).is_some());
        // If it is cut off there as well, it must be told of that.
        cut_off.add(there.clone(), Told::from_now());
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
        // Storage that is not served any more is forgotten.
        drop(one);
        let third = Arc::new(LostWrites::default());
        third.note();
        assert!(told[0].must_hear(&third) && told[0].later.lock().expect("free").len() == 2);
    }

    /// A report counts for other associations only when its answer must have arrived, if it ever did.
    #[test]
    fn a_copy_leaves_out_young_reports() {
        let lost = Arc::new(LostWrites::default());
        let told = Told::from_now();
        let is_told = |now_ns| told.copied(now_ns, 50).unheard(&lost).is_none();
        let note = |at_ns| {
            lost.note();
            let number = told.unheard(&lost).expect("it is new");
            told.hears(&lost, number, at_ns);
            told.hears(&lost, number, at_ns + 40);
        };
        note(100);
        // The clocks of two reactors differ a little.
        assert_eq!([99, 100, 150, 151].map(is_told), [false, false, false, true]);
        note(200);
        assert_eq!([151, 250, 251].map(is_told), [false, false, true], "the last loss counts");
        // An old report stays old.
        let copy = told.copied(251, 50).copied(251, 50);
        assert!(copy.unheard(&lost).is_none());
    }

    /// A host that comes back may continue any of its cut-off associations, whose records are all dropped then.
    #[test]
    fn of_several_cut_off_associations_the_least_told_counts() {
        let [one, other] = [Arc::new(LostWrites::default()), Arc::new(LostWrites::default())];
        let told = [Told::from_now(), Told::from_now()];
        one.note();
        other.note();
        assert!(told[0].must_hear(&one) && told[0].must_hear(&other));
        assert!(told[1].must_hear(&other));
        other.note();
        assert!(told[0].must_hear(&other));
        let mut cut_off = CutOff::default();
        let (here, there) = (at(Some(1), "a", 1), at(Some(2), "a", 1));
        let [more, less] = told;
        cut_off.add(here.clone(), more);
        let least = cut_off.told(&here).expect("it was cut off");
        assert!(least.unheard(&one).is_none() && least.unheard(&other).is_none());
        cut_off.add(here.clone(), less);
        for least in [cut_off.told(&here), cut_off.told_elsewhere(&there)] {
            let least = least.expect("it was cut off");
            assert!(least.unheard(&one).is_some() && least.unheard(&other).is_some());
        }
    }

    /// An association of the same name at another address that is cut off after a host's shutdown counts for that host.
    #[test]
    fn losses_at_another_address_after_a_shutdown_are_told() {
        let mut cut_off = CutOff::default();
        let (first, second) = (at(Some(1), "a", 1), at(Some(2), "a", 1));
        cut_off.add(first.clone(), Told::from_now());
        cut_off.has_shut_down(second.clone());
        assert!(cut_off.told_elsewhere(&second).is_none());
        cut_off.has_come_back(&first);
        cut_off.add(first.clone(), Told::from_now());
        assert!(cut_off.told_elsewhere(&second).is_some());
        cut_off.has_shut_down(second.clone());
        assert!(cut_off.told_elsewhere(&second).is_none(), "it has shut down once more");
    }
}
