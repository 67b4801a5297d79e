//! Grants arenas to chains: each chain runs in an arena, and a reactor has `max-chains` of them.
//!
//! A connection takes a free arena, except for a few that are *reserved* for [groups](crate::hosts::Group) of hosts
//! without a running chain, and those that connections wait for already. If none is left, the connection waits, and
//! each arena that becomes free goes to the group with the fewest running chains, in it to the host with the fewest,
//! and so on to the association and the connection. So groups that together want more arenas than there are end up with
//! equal numbers of them.
//!
//! Chains may run for hours. So a chain of a group that has more than a waiting group *gives way*: it is served before
//! the others of its connection until its hop ends; then its state is copied out of the arena, and it waits with its
//! connection for another arena. If no chain should give way to the group that needs an arena most, the same rule
//! applies, to one chain at a time, among the hosts of a group, the associations of a host and the connections of an
//! association. If none has more than one chain, they take turns. So a group without a running chain gets an arena at
//! once while the reserve lasts, and any other party without one gets an arena after hops of others' chains, however
//! many hops these chains have. If a chain does not leave in time because its read does not end, other chains can still
//! be asked.

use crate::limits::{ARENA_SLICE_NS, MAX_RESERVED_ARENAS};
use bpfof_chain::ChainId;

/// Time between two searches of all chains, if the first finds none that should give way. A search takes some µs, or
/// tens of them if thousands of connections wait.
const LOOK_INTERVAL_NS: u64 = 10_000_000;

/// The parties that a connection belongs to, as indices of this reactor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Party {
    pub(crate) group: u32,
    pub(crate) host: u32,
    pub(crate) association: u32,
}

impl Party {
    /// Its indices by level, the outermost first.
    fn levels(self) -> [usize; LEVELS] {
        [self.group, self.host, self.association].map(|index| index as usize)
    }
}

/// Group, host, association.
const LEVELS: usize = 3;

/// Running chains of the group, the host, the association and the connection.
type Need = [u32; LEVELS + 1];

#[derive(Debug, Default)]
struct Share {
    party: Party,
    /// Running chains, and granted arenas that are not in use yet.
    running: u32,
    /// Granted arenas that are not in use yet.
    granted: u32,
    is_waiting: bool,
}

/// See the module. Connections are named by their index in the reactor's table.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    shares: Vec<Option<Share>>,
    /// Running chains and granted arenas, by level and index.
    counts: [Vec<u32>; LEVELS],
    /// Waiting connections, in the order in which they came.
    waiting: Vec<u32>,
    /// Arenas for groups without a chain.
    reserve: usize,
    /// Arenas that are granted and not in use yet.
    granted: usize,
    /// When to search next for chains that should give way, unless another connection begins to wait before.
    next_look_ns: u64,
    /// The same for the search within groups, whether or not others begin to wait.
    next_look_within_ns: u64,
}

impl Admission {
    /// Admission to this many arenas.
    pub(crate) fn new(arenas: usize) -> Admission {
        Admission { reserve: (arenas / 4).min(MAX_RESERVED_ARENAS), ..Admission::default() }
    }

    /// Adds a connection without chains, which belongs to this party.
    pub(crate) fn join(&mut self, connection: u32, party: Party) {
        let index = connection as usize;
        if self.shares.len() <= index {
            self.shares.resize_with(index + 1, || None);
        }
        self.shares[index] = Some(Share { party, ..Share::default() });
        for (counts, index) in self.counts.iter_mut().zip(party.levels()) {
            counts.resize(counts.len().max(index + 1), 0);
        }
    }

    /// Removes a connection, whose chains have ended.
    pub(crate) fn leave(&mut self, connection: u32) {
        self.stop_waiting(connection);
        if let Some(share) = self.shares.get_mut(connection as usize).and_then(Option::take) {
            debug_assert_eq!(share.running, 0, "it leaves chains behind");
        }
    }

    /// The group that a connection belongs to, as an index of this reactor.
    pub(crate) fn group(&self, connection: u32) -> u32 {
        self.share(connection).map_or(0, |share| share.party.group)
    }

    /// Running chains of a connection.
    #[cfg(test)]
    pub(crate) fn running(&self, connection: u32) -> u32 {
        self.share(connection).map_or(0, |share| share.running - share.granted)
    }

    fn share(&self, connection: u32) -> Option<&Share> {
        self.shares.get(connection as usize)?.as_ref()
    }

    fn count(&mut self, connection: u32, change: i32) {
        let Some(share) = self.shares.get_mut(connection as usize).and_then(Option::as_mut) else {
            return;
        };
        let add = |count: &mut u32| *count = count.saturating_add_signed(change);
        add(&mut share.running);
        for (counts, index) in self.counts.iter_mut().zip(share.party.levels()) {
            add(&mut counts[index]);
        }
    }

    /// Running chains of a connection's group.
    fn group_running(&self, connection: u32) -> u32 {
        self.need(connection)[0]
    }

    /// Whether a connection may have one of `free` arenas, if no other connection wants it.
    fn has_one_for(&self, connection: u32, free: usize) -> bool {
        let reserve = if self.group_running(connection) == 0 { 0 } else { self.reserve };
        free > self.granted + reserve
    }

    /// Whether a connection may start a chain now, with `free` arenas left, if they are not [plenty](Self::is_plenty).
    #[inline]
    pub(crate) fn may_start(&self, connection: u32, free: usize) -> bool {
        self.share(connection).is_some_and(|share| share.granted > 0)
            || self.has_one_for(connection, free) && self.is_first(connection)
    }

    /// Whether `free` arenas are enough for each waiting connection and for one more, without the reserve: who needs
    /// one most does not matter then.
    #[inline]
    pub(crate) fn is_plenty(&self, free: usize) -> bool {
        free > self.reserve + self.wanted()
    }

    /// Arenas that are granted and not in use yet, and one for each waiting connection.
    #[inline]
    pub(crate) fn wanted(&self) -> usize {
        self.granted + self.waiting.len()
    }

    /// Whether no waiting connection comes before this one.
    fn is_first(&self, connection: u32) -> bool {
        let running = self.group_running(connection);
        self.waiting.iter().all(|waiting| running == 0 && self.group_running(*waiting) > 0)
    }

    /// A connection has started a chain, as it [may](Self::may_start).
    #[inline]
    pub(crate) fn started(&mut self, connection: u32) {
        if let Some(share) = self.shares.get_mut(connection as usize).and_then(Option::as_mut)
            && share.granted > 0
        {
            // The chain was counted when its arena was granted.
            share.granted -= 1;
            self.granted -= 1;
            return;
        }
        self.count(connection, 1);
    }

    /// This many chains of a connection have left their arenas.
    #[inline]
    pub(crate) fn ended(&mut self, connection: u32, chains: u32) {
        self.count(connection, -(chains as i32));
    }

    /// Makes a connection wait for an arena, because it may not have one now.
    pub(crate) fn wait(&mut self, connection: u32) {
        if let Some(share) = self.shares.get_mut(connection as usize).and_then(Option::as_mut)
            && !std::mem::replace(&mut share.is_waiting, true)
        {
            self.waiting.push(connection);
            self.next_look_ns = 0;
        }
    }

    /// Takes back the arenas that a connection was granted and has not started chains in. If it waits, it goes on
    /// waiting.
    #[inline]
    pub(crate) fn take_back(&mut self, connection: u32) {
        if self.granted == 0 {
            return;
        }
        let Some(share) = self.shares.get_mut(connection as usize).and_then(Option::as_mut) else {
            return;
        };
        let granted = std::mem::take(&mut share.granted);
        self.granted -= granted as usize;
        self.count(connection, -(granted as i32));
    }

    /// Ends a connection's wait and takes back the arenas that it was granted.
    pub(crate) fn stop_waiting(&mut self, connection: u32) {
        let Some(share) = self.shares.get_mut(connection as usize).and_then(Option::as_mut) else {
            return;
        };
        if std::mem::take(&mut share.is_waiting) {
            self.waiting.retain(|other| *other != connection);
        }
        self.take_back(connection);
    }

    /// The waiting connections, in the order in which they came.
    pub(crate) fn waiting(&self) -> &[u32] {
        &self.waiting
    }

    /// The chains that a connection's group, host and association and it itself have: of waiting connections, the one
    /// with the least is next.
    fn need(&self, connection: u32) -> Need {
        let Some(share) = self.share(connection) else { return [u32::MAX; LEVELS + 1] };
        let [group, host, association] = share.party.levels();
        let [groups, hosts, associations] = &self.counts;
        [groups[group], hosts[host], associations[association], share.running]
    }

    /// The position of the waiting connection that needs an arena most.
    fn neediest_at(&self) -> Option<usize> {
        (0..self.waiting.len()).min_by_key(|at| self.need(self.waiting[*at]))
    }

    /// The connection that needs an arena most.
    pub(crate) fn neediest(&self) -> Option<u32> {
        self.neediest_at().map(|at| self.waiting[at])
    }

    /// Grants an arena to the connection that needs it most, or to the next one if there is one for all; the caller
    /// wakes it.
    pub(crate) fn grant(&mut self, free: usize, is_plenty: bool) -> Option<u32> {
        let neediest = if is_plenty { 0 } else { self.neediest_at()? };
        if self.waiting.is_empty() || !self.has_one_for(self.waiting[neediest], free) {
            return None;
        }
        let connection = self.waiting.remove(neediest);
        self.count(connection, 1);
        if let Some(share) = self.shares[connection as usize].as_mut() {
            share.is_waiting = false;
            share.granted += 1;
        }
        self.granted += 1;
        Some(connection)
    }

    /// Arenas that are granted and not in use yet.
    pub(crate) fn granted(&self) -> usize {
        self.granted
    }

    /// Whether it is time to search for chains that should give way.
    pub(crate) fn is_to_look(&self, now_ns: u64) -> bool {
        now_ns >= self.next_look_ns
    }

    /// Postpones the next search, because this one has found no chain.
    pub(crate) fn look_later(&mut self, now_ns: u64) {
        self.next_look_ns = now_ns + LOOK_INTERVAL_NS;
    }

    /// The same for chains that should give way within their group, host or association.
    pub(crate) fn is_to_look_within(&self, now_ns: u64) -> bool {
        now_ns >= self.next_look_within_ns
    }

    /// Postpones the next search there.
    pub(crate) fn look_within_later(&mut self, now_ns: u64) {
        self.next_look_within_ns = now_ns + LOOK_INTERVAL_NS;
    }

    /// Which of the running chains, each with its connection and for how long it has had its arena, should give way to
    /// the [neediest](Self::neediest) connection: of the connection that has most, the chain that has had its arena
    /// longest.
    pub(crate) fn choose_displaced(
        &self,
        neediest: u32,
        running: impl Iterator<Item = (ChainId, u32, u64)>,
    ) -> Option<ChainId> {
        self.longest_of_greediest(
            running.filter(|(_, owner, held_ns)| self.is_displaced_by(*owner, neediest, *held_ns)),
        )
    }

    /// The same if none gives way to that connection: other connections of a chain's group, host or association may
    /// need its arena more than its owner does.
    pub(crate) fn choose_displaced_within(
        &self,
        running: impl Iterator<Item = (ChainId, u32, u64)>,
    ) -> Option<ChainId> {
        let mut neediest = self.counts.each_ref().map(|counts| vec![None; counts.len()]);
        for waiting in &self.waiting {
            let Some(share) = self.share(*waiting) else { continue };
            let need = self.need(*waiting);
            for (neediest, index) in neediest.iter_mut().zip(share.party.levels()) {
                let first: &mut Option<(Need, u32)> = &mut neediest[index];
                if first.is_none_or(|(least, _)| need < least) {
                    *first = Some((need, *waiting));
                }
            }
        }
        self.longest_of_greediest(running.filter(|(_, owner, held_ns)| {
            let Some(share) = self.share(*owner) else { return false };
            let mut others = neediest.iter().zip(share.party.levels());
            others.any(|(neediest, index)| {
                neediest[index]
                    .is_some_and(|(_, other)| self.is_displaced_by(*owner, other, *held_ns))
            })
        }))
    }

    fn longest_of_greediest(
        &self,
        chains: impl Iterator<Item = (ChainId, u32, u64)>,
    ) -> Option<ChainId> {
        chains
            .max_by_key(|(_, owner, held_ns)| (self.need(*owner), *held_ns))
            .map(|(chain, ..)| chain)
    }

    /// Whether a chain of `owner`, which has had its arena for `held_ns`, should give way to the connection `waiting`,
    /// because its owner has more at the first level at which they differ.
    fn is_displaced_by(&self, owner: u32, waiting: u32, held_ns: u64) -> bool {
        let (Some(its), Some(other)) = (self.share(owner), self.share(waiting)) else {
            return false;
        };
        let (has, needs) = (self.need(owner), self.need(waiting));
        let mut levels = its.party.levels().into_iter().zip(other.party.levels());
        let level = levels.position(|(its, other)| its != other).unwrap_or(LEVELS);
        owner != waiting
            && (has[level] >= needs[level] + 2
                || needs[level] == 0 && has[level] == 1 && held_ns >= ARENA_SLICE_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections 0, 1 of one association, 2 of another of the same host, 3 of another host; all of one group if
    /// `together`.
    fn admission_of(together: bool) -> Admission {
        let mut admission = Admission::default();
        for (connection, (host, association)) in
            [(0, 0), (0, 0), (0, 1), (1, 2)].into_iter().enumerate()
        {
            let group = if together { 0 } else { host };
            admission.join(connection as u32, Party { group, host, association });
        }
        admission
    }

    fn admission() -> Admission {
        admission_of(false)
    }

    fn run(admission: &mut Admission, connection: u32, chains: usize) {
        (0..chains).for_each(|_| admission.started(connection));
    }

    #[test]
    fn the_connection_with_fewest_chains_is_next() {
        let mut admission = admission();
        assert!(admission.may_start(0, 1) && !admission.may_start(0, 0));
        run(&mut admission, 0, 4);
        run(&mut admission, 2, 1);
        for connection in [1, 0, 2, 3] {
            admission.wait(connection);
            admission.wait(connection);
        }
        assert_eq!(admission.waiting(), [1, 0, 2, 3]);
        assert!(!admission.may_start(3, 1), "not before those that wait");
        // The host without chains, the association with fewest, the connection with fewest.
        let granted: Vec<_> = std::iter::from_fn(|| admission.grant(3, false)).collect();
        assert_eq!(granted, [3, 2, 1]);
        assert!(admission.may_start(3, 3) && !admission.may_start(0, 3));
        admission.started(3);
        assert_eq!((admission.running(3), admission.running(2)), (1, 1));
        // A grant that is not used goes to others.
        admission.take_back(2);
        admission.take_back(2);
        assert_eq!((admission.granted, admission.running(2)), (1, 1));
        admission.wait(2);
        assert_eq!(admission.grant(3, false), Some(2));
        admission.wait(2);
        admission.take_back(2);
        assert_eq!((admission.granted, admission.waiting().contains(&2)), (1, true));
        admission.stop_waiting(2);
        assert_eq!(admission.grant(2, false), Some(0));
        for (connection, chains) in [(0, 4), (2, 1), (3, 1)] {
            admission.ended(connection, chains);
        }
        for connection in 0..4 {
            admission.leave(connection);
        }
        assert_eq!((admission.granted, admission.counts), (0, [2, 2, 3].map(|of| vec![0; of])));
    }

    /// Connections that wait for their turn do not hold up others while there are arenas for all.
    #[test]
    fn nobody_waits_while_arenas_are_free() {
        let mut admission = admission();
        run(&mut admission, 0, 4);
        for connection in [1, 2] {
            admission.wait(connection);
        }
        assert!(!admission.is_plenty(2) && admission.is_plenty(3));
        // As they came.
        let granted = [9; 3].map(|free| admission.grant(free, true));
        assert_eq!(granted, [Some(1), Some(2), None]);
        assert!(!admission.is_plenty(2) && admission.is_plenty(3));
    }

    /// Hosts of a group with running chains get nothing of the reserve, and none of them waits forever beside another
    /// group that has as much.
    #[test]
    fn names_of_a_group_share_its_part() {
        let mut admission = Admission { reserve: 8, ..Admission::default() };
        for connection in 0..40 {
            let (host, group) = (connection, connection / 20);
            admission.join(connection, Party { group, host, association: connection });
        }
        run(&mut admission, 0, 13);
        run(&mut admission, 20, 12);
        (0..40).for_each(|connection| admission.wait(connection));
        let free = 8;
        assert!(admission.grant(free, false).is_none() && !admission.may_start(1, free));
        let chains = |admission: &Admission| -> Vec<_> {
            let of = |owner| (0..admission.running(owner)).map(move |_| owner);
            [0, 20].into_iter().flat_map(of).collect()
        };
        let running = |admission: &Admission| {
            let owners = chains(admission).into_iter().enumerate();
            owners.map(|(at, owner)| (ChainId::from_index(at), owner, 0)).collect::<Vec<_>>()
        };
        // The neediest is in the group that has less; the other group has only one chain more, so none gives way.
        let neediest = admission.neediest().expect("many wait");
        assert_eq!(neediest, 21);
        let of_first = |chain: Option<ChainId>| chain.is_some_and(|chain| chain.index() < 13);
        let all = running(&admission);
        assert!(!of_first(admission.choose_displaced(neediest, all.iter().copied())));
        assert!(of_first(admission.choose_displaced_within(all.into_iter())));
        // The freed arena goes to a host of the same group.
        admission.ended(0, 1);
        admission.ended(0, 1);
        assert_eq!(admission.grant(free + 1, false), Some(1));
    }

    /// New groups have all of the reserve, however many hosts another group has.
    #[test]
    fn the_reserve_is_for_groups_without_a_chain() {
        let mut admission = Admission { reserve: 8, ..Admission::default() };
        for connection in 0..40 {
            let group = u32::saturating_sub(connection, 19);
            admission.join(connection, Party { group, host: connection, association: connection });
        }
        let mut free = 12;
        for connection in 0..20 {
            if admission.may_start(connection, free) {
                admission.started(connection);
                free -= 1;
            } else {
                admission.wait(connection);
            }
        }
        assert_eq!(free, 8);
        for connection in 20..28 {
            assert!(admission.may_start(connection, free));
            admission.started(connection);
            free -= 1;
        }
        assert!(!admission.may_start(28, free));
    }

    #[test]
    fn the_holder_of_more_chains_gives_way() {
        let mut admission = admission();
        run(&mut admission, 0, 3);
        run(&mut admission, 3, 1);
        let gives = |admission: &Admission, owner, waiting, held_ns| {
            admission.is_displaced_by(owner, waiting, held_ns)
        };
        // A host with 3 gives way to one with 1, and not the other way round.
        assert!(gives(&admission, 0, 3, 0) && !gives(&admission, 3, 0, u64::MAX));
        // To another association of the same host, and to another connection of the same association.
        assert!(gives(&admission, 0, 2, 0) && gives(&admission, 0, 1, 0));
        // To another host of the same group.
        let mut together = admission_of(true);
        run(&mut together, 0, 3);
        run(&mut together, 3, 1);
        assert!(gives(&together, 0, 3, 0) && !gives(&together, 3, 0, u64::MAX));
        assert!(!gives(&admission, 0, 0, u64::MAX));
        run(&mut admission, 2, 2);
        assert!(!gives(&admission, 0, 2, u64::MAX), "3 and 2 are equal");
        // With one each, they take turns after a while.
        let mut admission = self::admission();
        run(&mut admission, 0, 1);
        assert!(!gives(&admission, 0, 3, ARENA_SLICE_NS - 1));
        assert!(gives(&admission, 0, 3, ARENA_SLICE_NS));
    }
}
