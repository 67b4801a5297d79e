//! The namespaces of one reactor.
//!
//! Commands name a namespace by its *place*: an index that stays valid from the moment a command is taken until it has
//! ended, even if the configuration changes meanwhile. A message changes a reactor's namespaces between two commands,
//! so a lookup needs no lock and no atomic operation. A removed namespace keeps its place, its file and its memory
//! until the last of its commands has ended.

use crate::limits::MAX_NSID;
use crate::metrics::{ClassLatencies, NamespaceMetrics};
use crate::namespace::Namespace;
use std::sync::Arc;

/// A namespace of the target, with the number of its subsystem.
pub(crate) type Served = (usize, Arc<Namespace>);

/// Means no place.
const NOWHERE: u32 = u32::MAX;

#[derive(Debug)]
struct Place {
    subsystem: usize,
    namespace: Arc<Namespace>,
    metrics: Box<NamespaceMetrics>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct NamespaceTable {
    places: Vec<Option<Place>>,
    /// For each place, whether its namespace has been removed: no new commands.
    is_leaving: Vec<bool>,
    /// How many namespaces are leaving.
    leaving: usize,
    /// Latencies of namespaces that are gone.
    past: ClassLatencies,
    /// The place, by number of the subsystem, then by namespace id less 1.
    members: Vec<Vec<u32>>,
}

impl NamespaceTable {
    /// Serves these namespaces from now on, and no others.
    pub(crate) fn serve(&mut self, served: &[Served]) {
        let same = |place: &Place, (subsystem, namespace): &Served| {
            place.subsystem == *subsystem && Arc::ptr_eq(&place.namespace, namespace)
        };
        for (place, is_leaving) in self.places.iter().zip(&mut self.is_leaving) {
            let Some(place) = place else { continue };
            *is_leaving |= !served.iter().any(|served| same(place, served));
        }
        for member in served {
            let is_here = |(place, is_leaving): (&Option<Place>, &bool)| {
                place.as_ref().is_some_and(|place| !is_leaving && same(place, member))
            };
            if !self.places.iter().zip(&self.is_leaving).any(is_here) {
                let (subsystem, namespace) = (member.0, Arc::clone(&member.1));
                let place = Place { subsystem, namespace, metrics: Box::default() };
                match self.places.iter().position(Option::is_none) {
                    Some(free) => self.places[free] = Some(place),
                    None => {
                        self.places.push(Some(place));
                        self.is_leaving.push(false);
                    }
                }
            }
        }
        self.leaving = self.is_leaving.iter().filter(|is_leaving| **is_leaving).count();
        self.list_members();
    }

    fn list_members(&mut self) {
        self.members.clear();
        for (index, place) in self.places.iter().enumerate() {
            let Some(place) = place.as_ref().filter(|_| !self.is_leaving[index]) else { continue };
            if self.members.len() <= place.subsystem {
                self.members.resize(place.subsystem + 1, Vec::new());
            }
            let members = &mut self.members[place.subsystem];
            debug_assert!((1..=MAX_NSID).contains(&place.namespace.nsid));
            let at = place.namespace.nsid as usize - 1;
            if members.len() <= at {
                members.resize(at + 1, NOWHERE);
            }
            members[at] = index as u32;
        }
    }

    /// The place of the namespace that has this id in the subsystem with this number.
    #[inline]
    pub(crate) fn find(&self, subsystem: usize, nsid: u32) -> Option<usize> {
        let members = self.members.get(subsystem)?;
        let place = *members.get((nsid as usize).checked_sub(1)?)?;
        (place != NOWHERE).then_some(place as usize)
    }

    /// The namespace at the place that a command has.
    ///
    /// # Panics
    /// If the namespace has been removed and no command uses its place any more.
    #[inline]
    pub(crate) fn get(&self, place: usize) -> &Namespace {
        &self.places[place].as_ref().expect("a namespace stays while a command uses it").namespace
    }

    /// The namespace at a place, if there is one.
    #[inline]
    pub(crate) fn at(&self, place: usize) -> Option<&Namespace> {
        self.places[place].as_ref().map(|place| &*place.namespace)
    }

    /// The metrics at the place that a command has.
    ///
    /// # Panics
    /// If the namespace has been removed and no command uses its place any more.
    #[inline]
    pub(crate) fn metrics(&mut self, place: usize) -> &mut NamespaceMetrics {
        &mut self.places[place].as_mut().expect("a namespace stays while a command uses it").metrics
    }

    /// All namespaces with the numbers of their subsystems and their metrics.
    pub(crate) fn all(
        &self,
    ) -> impl Iterator<Item = (usize, &Arc<Namespace>, &NamespaceMetrics)> + '_ {
        let places = self.places.iter().flatten();
        places.map(|place| (place.subsystem, &place.namespace, &*place.metrics))
    }

    /// The same without removed namespaces.
    pub(crate) fn served(
        &self,
    ) -> impl Iterator<Item = (usize, &Arc<Namespace>, &NamespaceMetrics)> + '_ {
        let places = self.places.iter().zip(&self.is_leaving);
        let served = places.filter(|(_, is_leaving)| !**is_leaving);
        served.filter_map(|(place, _)| place.as_ref()).map(|place| {
            let Place { subsystem, namespace, metrics } = place;
            (*subsystem, namespace, &**metrics)
        })
    }

    /// Latencies of commands in all namespaces, including those that are gone.
    pub(crate) fn latencies(&self) -> ClassLatencies {
        let mut all = self.past;
        self.all().for_each(|(_, _, metrics)| all.merge_namespace(metrics));
        all
    }

    /// How many places there are, free ones too.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.places.len()
    }

    /// Whether the namespace at this place has been removed.
    #[inline]
    pub(crate) fn is_leaving(&self, place: usize) -> bool {
        self.is_leaving[place]
    }

    /// Whether removed namespaces wait for the last of their commands.
    pub(crate) fn has_leaving(&self) -> bool {
        self.leaving > 0
    }

    /// For each place, whether its namespace has been removed.
    pub(crate) fn leaving(&self) -> Vec<bool> {
        self.is_leaving.clone()
    }

    /// Drops removed namespaces whose places are `unused`: no command works on them. No operation is left on them,
    /// because a command keeps its slot until all of its operations have completed.
    pub(crate) fn release(&mut self, unused: &[bool]) {
        for (index, place) in self.places.iter_mut().enumerate() {
            if self.is_leaving[index] && unused.get(index).copied().unwrap_or(false) {
                if let Some(place) = place.take() {
                    self.past.merge_namespace(&place.metrics);
                }
                self.is_leaving[index] = false;
                self.leaving -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NamespaceConfig;

    #[test]
    fn a_place_stays_until_its_last_command_has_ended() {
        let namespace = |nsid| {
            let config: NamespaceConfig = "mem:size=4096".parse().expect("valid");
            Arc::new(Namespace::open(nsid, &config, "nqn").expect("a small mapping"))
        };
        let (first, other) = (0, 2);
        let served = [(0, namespace(1)), (0, namespace(7)), (2, namespace(1))];
        let mut places = NamespaceTable::default();
        places.serve(&served);
        let find = |places: &NamespaceTable| {
            [(first, 1), (first, 7), (other, 1), (first, 2), (other, 0), (other, u32::MAX)]
                .map(|(subsystem, nsid)| places.find(subsystem, nsid))
        };
        assert_eq!(find(&places), [Some(0), Some(1), Some(2), None, None, None]);
        assert_eq!(places.find(1, 1), None);
        // Another namespace with an id that was taken gets a place of its own.
        let new = namespace(1);
        places.serve(&[(0, Arc::clone(&new)), served[1].clone()]);
        assert_eq!(find(&places), [Some(3), Some(1), None, None, None, None]);
        assert!(places.has_leaving() && places.is_leaving(0) && places.is_leaving(2));
        assert!(std::ptr::eq(places.get(0), &*served[0].1), "commands go on with the old one");
        places.release(&[false, true, true, true]);
        assert!(places.is_leaving(0) && places.at(2).is_none() && places.at(3).is_some());
        assert_eq!(Arc::strong_count(&served[2].1), 1);
        // A namespace that comes back while it is leaving gets a new place, so commands may use both.
        places.serve(&[served[0].clone()]);
        assert_eq!(places.find(first, 1), Some(2));
        places.release(&[]);
        assert!(places.has_leaving());
        places.release(&[true; 4]);
        assert!(!places.has_leaving());
        assert_eq!(
            [0, 1, 2, 3].map(|place| places.at(place).is_some()),
            [false, false, true, false]
        );
    }
}
