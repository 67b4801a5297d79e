//! Chooses the connection that is served next: shares of the reactor's time, by cost.
//!
//! Each group of hosts has a *virtual time*, the cost of all work done for it, and the group with the least goes first;
//! likewise among the hosts of a group and the connections of a host. So a host that asks for little is served at once,
//! and hosts that ask for more than there is get equal parts. A group that returns after a rest begins at the virtual
//! time of the others, so that it cannot save up time; one that had more than the others when it left begins behind
//! them. This is hierarchical start-time fair queueing; unlike deficit round robin it does not let a host with few
//! requests wait for a round of the others. All hosts without keys at an address are one group, because host names are
//! free; each other host is a group of its own.
//!
//! The cost of an operation is known only after it was performed. It is estimated when the operation is taken and
//! corrected afterwards. Operations are taken in *rounds* of a few, so that the memory of all can be prefetched
//! together.

use crate::fifo::Fifo;
use crate::limits::{LONG_UNITS, ROUND, SLICE_UNITS};
use crate::operation::Operation;
use bpfof_chain::ChainId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Estimated cost of an operation before any of its connection has been performed, in units.
const FIRST_ESTIMATE: u64 = 1000;

/// Most units of unscheduled work that a share is charged with until it is served again.
pub(crate) const MOST_UNSCHEDULED: u64 = SLICE_UNITS;

/// Most operations of a connection that are searched for those of one chain: some 10 µs.
const MOST_TO_LOOK_AT: usize = 2048;

/// The hosts of one group, which have one share of the reactor's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupIndex(u32);

impl GroupIndex {
    /// A small number that no other group has at the same time.
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

/// The connections of one host, which have one share of their group's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostIndex(u32);

impl HostIndex {
    /// A small number that no other host has at the same time.
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

/// Waiting members, by virtual time. A key may be out of date: then the member is put back with a newer key. Usually
/// only one member waits and stays outside the heap, which would cost most of a turn.
#[derive(Debug, Default)]
struct Waiting {
    /// None if no member waits.
    first: Option<(u64, u32)>,
    others: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Waiting {
    #[inline]
    fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    #[inline]
    fn push(&mut self, time: u64, index: u32) {
        let new = (time, index);
        match self.first {
            None => self.first = Some(new),
            Some(first) => {
                self.first = Some(first.min(new));
                self.others.push(Reverse(first.max(new)));
            }
        }
    }

    /// Takes the first.
    #[inline]
    fn pop(&mut self) -> Option<(u64, u32)> {
        let first = self.first?;
        self.first = self.others.pop().map(|Reverse(next)| next);
        Some(first)
    }
}

/// The share of a group, whose members are hosts, or of a host, whose members are connections.
#[derive(Debug, Default)]
struct Share {
    time: u64,
    /// Virtual time of the member that was served last: a member that comes back begins there.
    now: u64,
    /// Waiting members.
    waiting: Waiting,
    is_waiting: bool,
    members: u32,
    /// Units of unscheduled work that it was charged with since it was last served.
    unscheduled: u64,
    /// See [`Schedule::lasting_group`].
    is_lasting: bool,
}

impl Share {
    /// Whether its index can be freed.
    fn is_unused(&self) -> bool {
        self.members == 0 && !self.is_waiting
    }
}

#[derive(Debug)]
struct Host {
    group: u32,
    share: Share,
}

#[derive(Debug)]
struct Member {
    host: u32,
    time: u64,
    is_waiting: bool,
    /// As that of a [`Share`].
    unscheduled: u64,
    /// Estimated cost of an operation, from its last ones.
    estimate: u64,
    /// Operations of chains that have begun.
    active: Fifo,
    /// Operations that have not begun.
    fresh: Fifo,
}

/// The operations of one connection in a round.
#[derive(Clone, Copy, Debug)]
struct Part {
    connection: u32,
    /// Estimated cost of each.
    estimate: u64,
    /// Virtual times of the group, of the host and of the connection before the first.
    begins: [u64; 3],
    /// Index behind the last of them in the round.
    end: usize,
    /// How many have been performed, their cost together, and the cost of the dearest.
    done: u64,
    cost: u64,
    dearest: u64,
}

/// See [`Schedule::run`].
pub(crate) struct Run<'a> {
    pub(crate) connection: u32,
    pub(crate) operations: &'a [Operation],
    pub(crate) active: &'a mut Fifo,
    pub(crate) fresh: &'a mut Fifo,
}

/// See the module. Connections are named by their index in the reactor's table.
// More than 25 methods: what a reactor needs in each phase of a turn, most of one line.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    groups: Vec<Share>,
    free_groups: Vec<u32>,
    hosts: Vec<Host>,
    free_hosts: Vec<u32>,
    /// How many hosts have connections, not counting those of lasting groups.
    parties: usize,
    members: Vec<Option<Member>>,
    /// Groups.
    waiting: Waiting,
    /// Virtual time of the group that was served last.
    now: u64,
    /// Operations of the round, of which those before `next` have been performed.
    round: Vec<Operation>,
    next: usize,
    /// The round's operations by connection. Parts before `part` are accounted for.
    parts: Vec<Part>,
    part: usize,
    /// Estimated cost of the round.
    round_units: u64,
    /// The round takes no more operations.
    is_closed: bool,
}

impl Schedule {
    /// Adds a group without hosts, with this virtual time.
    pub(crate) fn new_group(&mut self, time: u64) -> GroupIndex {
        let share = Share { time, ..Share::default() };
        GroupIndex(reuse_or_push(&mut self.groups, &mut self.free_groups, share))
    }

    /// The virtual time of a group, if it is ahead of [`now`](Self::now).
    pub(crate) fn ahead(&self, group: GroupIndex) -> Option<u64> {
        let time = self.groups[group.0 as usize].time;
        (time > self.now).then_some(time)
    }

    /// The virtual time of the group of a connection.
    #[cfg(test)]
    pub(crate) fn time_of(&self, connection: u32) -> u64 {
        let host =
            self.members[connection as usize].as_ref().expect("the connection has joined").host;
        self.groups[self.hosts[host as usize].group as usize].time
    }

    /// Virtual time of the group that was served last.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Adds a host without connections to a group, level with the group's others.
    pub(crate) fn new_host(&mut self, group: GroupIndex) -> HostIndex {
        let Share { members, now: time, .. } = &mut self.groups[group.0 as usize];
        *members += 1;
        let host = Host { group: group.0, share: Share { time: *time, ..Share::default() } };
        HostIndex(reuse_or_push(&mut self.hosts, &mut self.free_hosts, host))
    }

    /// Adds a group that stays when it has no hosts. Its hosts do not make the reactor [shared](Self::is_shared).
    pub(crate) fn lasting_group(&mut self) -> GroupIndex {
        let group = self.new_group(0);
        let share = &mut self.groups[group.0 as usize];
        (share.members, share.is_lasting) = (1, true);
        group
    }

    /// Makes a connection belong to a host, perhaps after it has belonged to another.
    pub(crate) fn join(&mut self, connection: u32, host: HostIndex) {
        let at = connection as usize;
        if self.members.len() <= at {
            self.members.resize_with(at + 1, || None);
        }
        let Host { group, share: known } = &mut self.hosts[host.0 as usize];
        let time = known.now;
        let counts = !self.groups[*group as usize].is_lasting;
        self.parties += usize::from(counts && known.members == 0);
        known.members += 1;
        match &mut self.members[at] {
            Some(member) => {
                let before = std::mem::replace(&mut member.host, host.0);
                let was_waiting = std::mem::take(&mut member.is_waiting);
                member.time = time;
                self.part(before);
                if was_waiting {
                    self.wake(connection);
                }
            }
            empty => {
                *empty = Some(Member {
                    host: host.0,
                    time,
                    is_waiting: false,
                    unscheduled: 0,
                    estimate: FIRST_ESTIMATE,
                    active: Fifo::default(),
                    fresh: Fifo::default(),
                });
            }
        }
    }

    /// Removes a connection, which has no operations left.
    pub(crate) fn leave(&mut self, connection: u32) {
        if let Some(member) = self.members[connection as usize].take() {
            debug_assert!(member.active.is_empty() && member.fresh.is_empty());
            self.part(member.host);
        }
    }

    /// Removes a connection from its host. The host's index is freed after its last connection, the group's after its
    /// last host, or later, when they do not wait any more.
    fn part(&mut self, host: u32) {
        let Host { group, share } = &mut self.hosts[host as usize];
        share.members -= 1;
        let counts = !self.groups[*group as usize].is_lasting;
        self.parties -= usize::from(counts && share.members == 0);
        if share.is_unused() {
            let group = *group;
            self.free_hosts.push(host);
            self.groups[group as usize].members -= 1;
            self.free_group(group);
        }
    }

    /// Frees the index of a group if it is unused.
    fn free_group(&mut self, index: u32) {
        if self.groups[index as usize].is_unused() {
            self.free_groups.push(index);
        }
    }

    #[inline]
    fn member(&mut self, connection: u32) -> &mut Member {
        self.members[connection as usize].as_mut().expect("the connection has joined")
    }

    /// The queue for a connection's operations that continue something, or for operations that begin something. If the
    /// caller adds some, it must [wake](Self::wake) the connection.
    #[inline]
    pub(crate) fn queue(&mut self, connection: u32, goes_on: bool) -> &mut Fifo {
        let member = self.member(connection);
        if goes_on { &mut member.active } else { &mut member.fresh }
    }

    /// Makes a connection wait for its turn, because it has work.
    #[inline]
    pub(crate) fn wake(&mut self, connection: u32) {
        if self.members[connection as usize].as_ref().is_some_and(|member| !member.is_waiting) {
            self.begin_waiting(connection);
        }
    }

    #[inline(never)]
    fn begin_waiting(&mut self, connection: u32) {
        let Some(member) = self.members[connection as usize].as_mut() else { return };
        member.is_waiting = true;
        let Host { group: index, share: host } = &mut self.hosts[member.host as usize];
        member.time = member.time.max(host.now);
        host.waiting.push(member.time, connection);
        if host.is_waiting {
            return;
        }
        host.is_waiting = true;
        let group = &mut self.groups[*index as usize];
        host.time = host.time.max(group.now);
        group.waiting.push(host.time, member.host);
        if !group.is_waiting {
            group.is_waiting = true;
            group.time = group.time.max(self.now);
            self.waiting.push(group.time, *index);
        }
    }

    /// Adds an operation that begins something.
    #[inline]
    pub(crate) fn push(&mut self, connection: u32, operation: Operation) {
        self.queue(connection, false).push_back(operation);
        self.wake(connection);
    }

    /// Adds an operation that continues something; it comes before operations that begin something.
    #[inline]
    pub(crate) fn push_active(&mut self, connection: u32, operation: Operation) {
        self.queue(connection, true).push_back(operation);
        self.wake(connection);
    }

    /// Adds an operation that comes before all others of its connection.
    pub(crate) fn push_first(&mut self, connection: u32, operation: Operation) {
        self.member(connection).active.put_back(&[operation]);
        self.wake(connection);
    }

    /// Moves the operations of a chain before all others of its connection, unless so many are queued that the search
    /// would take too long.
    pub(crate) fn hasten(&mut self, connection: u32, chain: ChainId) {
        let Some(member) = self.members[connection as usize].as_mut() else { return };
        if member.active.len() + member.fresh.len() > MOST_TO_LOOK_AT {
            return;
        }
        let mut all = Vec::new();
        member.active.move_first(member.active.len(), &mut all);
        member.fresh.move_first(member.fresh.len(), &mut all);
        let (its, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|of| of.chain() == Some(chain));
        its.into_iter().chain(others).for_each(|of| member.active.push_back(of));
    }

    /// Whether a connection waits to be served, or an operation of the round is left.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.has_next() || !self.waiting.is_empty()
    }

    /// Removes the connection whose turn it is from the waiting connections. The caller must [wake](Self::wake) it
    /// again if it has work left.
    pub(crate) fn pick(&mut self) -> Option<u32> {
        loop {
            let (time, index) = self.waiting.pop()?;
            let group = &mut self.groups[index as usize];
            if time < group.time {
                self.waiting.push(group.time, index);
                continue;
            }
            let picked = self.pick_of_group(index);
            let group = &mut self.groups[index as usize];
            if picked.is_some() {
                group.unscheduled = 0;
                if self.round.is_empty() {
                    self.now = self.now.max(group.time);
                }
            }
            if group.waiting.is_empty() {
                group.is_waiting = false;
                self.free_group(index);
            } else {
                self.waiting.push(group.time, index);
            }
            if picked.is_some() {
                return picked;
            }
        }
    }

    /// Removes the connection whose turn it is in a group from the waiting connections.
    fn pick_of_group(&mut self, index: u32) -> Option<u32> {
        let group = &mut self.groups[index as usize];
        loop {
            let (time, host_index) = group.waiting.pop()?;
            let host = &mut self.hosts[host_index as usize].share;
            if time < host.time {
                group.waiting.push(host.time, host_index);
                continue;
            }
            let picked = pick_member(host, host_index, &mut self.members);
            if let Some((_, time)) = picked {
                host.unscheduled = 0;
                if self.round.is_empty() {
                    group.now = group.now.max(host.time);
                    host.now = host.now.max(time);
                }
            }
            if host.waiting.is_empty() {
                host.is_waiting = false;
                if host.is_unused() {
                    self.free_hosts.push(host_index);
                    group.members -= 1;
                }
            } else {
                group.waiting.push(host.time, host_index);
            }
            if let Some((connection, _)) = picked {
                return Some(connection);
            }
        }
    }

    /// Whether the round has room for operations: few if they are expensive.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.round.len() < ROUND && self.round_units < SLICE_UNITS && !self.is_closed
    }

    /// Adds operations of a connection to the round, as many as there is room for. If it has more, it waits for its
    /// next turn. If several hosts share the reactor, a long operation is a round of its own, so that continuations of
    /// short ones come before it.
    #[inline]
    pub(crate) fn take(&mut self, connection: u32) {
        let mut room = ROUND - self.round.len();
        let is_shared = self.is_shared();
        let Some(member) = self.members[connection as usize].as_mut() else { return };
        if member.active.is_empty() && member.fresh.is_empty() {
            return;
        }
        let estimate = member.estimate;
        if is_shared && estimate > LONG_UNITS {
            self.is_closed = true;
            if !self.round.is_empty() {
                return self.wake(connection);
            }
            room = 1;
        }
        let left = SLICE_UNITS.saturating_sub(self.round_units);
        let count = (left.div_ceil(estimate).clamp(1, room as u64)) as usize;
        // Operations that continue come first, so that few chains are active at a time and some end before others
        // begin.
        let begun = count.min(member.active.len());
        let fresh = (count - begun).min(member.fresh.len());
        let taken = (begun + fresh) as u64;
        member.active.move_first(begun, &mut self.round);
        member.fresh.move_first(fresh, &mut self.round);
        let Host { group, share: host } = &self.hosts[member.host as usize];
        self.parts.push(Part {
            connection,
            estimate,
            begins: [self.groups[*group as usize].time, host.time, member.time],
            end: self.round.len(),
            done: 0,
            cost: 0,
            dearest: 0,
        });
        let has_more = !member.active.is_empty() || !member.fresh.is_empty();
        let units = estimate * taken;
        self.round_units += units;
        self.charge(connection, units as i64);
        if has_more {
            self.wake(connection);
        }
    }

    /// All operations of the round.
    #[inline]
    pub(crate) fn round(&self) -> &[Operation] {
        &self.round
    }

    /// Whether more than one host is connected.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.parties > 1
    }

    /// Whether the round has an operation left.
    #[inline]
    pub(crate) fn has_next(&self) -> bool {
        self.next < self.round.len()
    }

    /// Whether the next operation of the round, if any, is another connection's.
    #[inline]
    pub(crate) fn is_part_over(&self) -> bool {
        self.parts.get(self.part).is_none_or(|part| part.end == self.next)
    }

    /// Whether the next operation of the round is estimated to take long.
    #[inline]
    pub(crate) fn is_next_long(&self) -> bool {
        let ended = self.parts.get(self.part).is_some_and(|part| part.end == self.next);
        let part = self.parts.get(self.part + usize::from(ended));
        part.is_some_and(|part| part.estimate > LONG_UNITS)
    }

    /// Moves to the next [operation](Self::operation) of the round and returns its connection. The caller must report
    /// the cost by [`told`](Self::told).
    #[inline]
    pub(crate) fn next(&mut self) -> Option<u32> {
        if !self.has_next() {
            return None;
        }
        if self.parts[self.part].end == self.next {
            self.end_part();
        }
        self.next += 1;
        Some(self.parts[self.part].connection)
    }

    /// The operation whose turn it is.
    #[inline]
    pub(crate) fn operation(&self) -> &Operation {
        &self.round[self.next - 1]
    }

    /// The operation whose turn it is, the operations of the same connection that follow it, and the connection's
    /// queues for further operations.
    #[inline]
    pub(crate) fn run(&mut self) -> Run<'_> {
        let Part { connection, end, .. } = self.parts[self.part];
        let member =
            self.members[connection as usize].as_mut().expect("the connection has operations");
        let Member { active, fresh, .. } = member;
        Run { connection, operations: &self.round[self.next - 1..end], active, fresh }
    }

    /// Moves behind the first `count` operations of the [run](Self::run), which have been performed. `cost` is their
    /// cost together, `dearest` the cost of the dearest.
    #[inline]
    pub(crate) fn advance(&mut self, count: usize, cost: u64, dearest: u64) {
        self.next += count;
        let part = &mut self.parts[self.part];
        part.done += count as u64;
        part.cost += cost;
        part.dearest = part.dearest.max(dearest);
    }

    /// Adds the cost of the operation whose turn it was.
    #[inline]
    pub(crate) fn told(&mut self, cost: u64) {
        let part = &mut self.parts[self.part];
        part.done += 1;
        part.cost += cost;
        part.dearest = part.dearest.max(cost);
    }

    /// Ends the round, of which no operation is left, so that the next can begin.
    pub(crate) fn end_round(&mut self) {
        if self.part < self.parts.len() {
            self.end_part();
        }
        self.round.clear();
        self.parts.clear();
        (self.next, self.part, self.round_units, self.is_closed) = (0, 0, 0, false);
    }

    /// Replaces the estimated cost of a part's operations by their actual cost.
    fn end_part(&mut self) {
        let Part { connection, estimate, begins, done, cost, dearest, .. } = self.parts[self.part];
        self.part += 1;
        let Some(member) = self.members[connection as usize].as_mut().filter(|_| done > 0) else {
            return;
        };
        // It rises at once and falls slowly.
        member.estimate = dearest.max(member.estimate - member.estimate / 4).max(1);
        // Virtual time advances with operations that are performed, not taken: those may be given back.
        let [of_group, of_host, of_member] = begins.map(|time| time + estimate * (done - 1));
        let Host { group, share: host } = &mut self.hosts[member.host as usize];
        self.now = self.now.max(of_group);
        let group = &mut self.groups[*group as usize];
        group.now = group.now.max(of_host);
        host.now = host.now.max(of_member);
        self.charge(connection, cost as i64 - (estimate * done) as i64);
    }

    /// Adds to the virtual times of a connection, its host and its group.
    #[inline]
    pub(crate) fn charge(&mut self, connection: u32, units: i64) {
        let Some(member) = self.members[connection as usize].as_mut() else { return };
        let Host { group, share: host } = &mut self.hosts[member.host as usize];
        let group = &mut self.groups[*group as usize];
        for time in [&mut group.time, &mut host.time, &mut member.time] {
            *time = time.saturating_add_signed(units);
        }
    }

    /// The same for work that was done without being scheduled, such as that of connections that come and go. Each share
    /// is charged with at most [`MOST_UNSCHEDULED`] of it until it is served again: much of it must not keep a share,
    /// which many peers may have together, from being served at all.
    pub(crate) fn charge_unscheduled(&mut self, connection: u32, units: u64) {
        let Some(member) = self.members[connection as usize].as_mut() else { return };
        let Host { group, share: host } = &mut self.hosts[member.host as usize];
        let group = &mut self.groups[*group as usize];
        for (time, unscheduled) in [
            (&mut group.time, &mut group.unscheduled),
            (&mut host.time, &mut host.unscheduled),
            (&mut member.time, &mut member.unscheduled),
        ] {
            let more = units.min(MOST_UNSCHEDULED - *unscheduled);
            *unscheduled += more;
            *time = time.saturating_add(more);
        }
    }

    /// Gives the remaining operations of the round back to their connections, because the turn is over.
    pub(crate) fn give_back(&mut self) {
        for index in (self.part..self.parts.len()).rev() {
            let Part { connection, estimate, end, .. } = self.parts[index];
            let begin = if index == self.part { self.next } else { self.parts[index - 1].end };
            if begin == end {
                continue;
            }
            self.charge(connection, -((estimate * (end - begin) as u64) as i64));
            let Schedule { round, members, .. } = self;
            let member =
                members[connection as usize].as_mut().expect("the connection has operations");
            member.active.put_back(&round[begin..end]);
            self.wake(connection);
        }
        self.end_round();
    }

    /// Gives back memory that the queues of an idle connection keep.
    pub(crate) fn shrink(&mut self, connection: u32) {
        if let Some(member) = self.members[connection as usize].as_mut()
            && member.active.is_empty()
            && member.fresh.is_empty()
        {
            member.active.shrink_to(ROUND);
            member.fresh.shrink_to(ROUND);
        }
    }
}

/// Stores a value at a free index, or at the next one; returns the index.
fn reuse_or_push<T>(all: &mut Vec<T>, free: &mut Vec<u32>, new: T) -> u32 {
    match free.pop() {
        Some(index) => {
            all[index as usize] = new;
            index
        }
        None => {
            all.push(new);
            all.len() as u32 - 1
        }
    }
}

/// Removes the connection whose turn it is from the waiting ones of a host; returns it and its virtual time.
fn pick_member(host: &mut Share, index: u32, members: &mut [Option<Member>]) -> Option<(u32, u64)> {
    loop {
        let (time, connection) = host.waiting.pop()?;
        // It may have left or moved to another host, and come back since.
        let member = members.get_mut(connection as usize)?.as_mut();
        let Some(member) = member.filter(|member| member.is_waiting && member.host == index) else {
            continue;
        };
        if time < member.time {
            host.waiting.push(member.time, connection);
            continue;
        }
        member.is_waiting = false;
        member.unscheduled = 0;
        return Some((connection, time));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation() -> Operation {
        Operation::ChainCalls { chain: ChainId::from_index(0) }
    }

    /// Adds one connection for each of `hosts` hosts of a group; the first connection has the index `first`.
    fn join_hosts(schedule: &mut Schedule, first: u32, hosts: u32) {
        let group = schedule.new_group(0);
        for connection in first..first + hosts {
            let host = schedule.new_host(group);
            schedule.join(connection, host);
        }
    }

    /// Performs at least this many operations of connections that each always have more than a round queued; returns
    /// the connection of each operation.
    fn serve(schedule: &mut Schedule, connections: u32, operations: usize) -> Vec<u32> {
        let mut served = Vec::new();
        let backlog = (0..connections).flat_map(|connection| [connection; 2 * ROUND]);
        backlog.for_each(|connection| schedule.push(connection, operation()));
        while served.len() < operations {
            while schedule.has_room() {
                let Some(connection) = schedule.pick() else { break };
                schedule.take(connection);
            }
            while let Some(connection) = schedule.next() {
                schedule.told(FIRST_ESTIMATE);
                served.push(connection);
                schedule.push(connection, operation());
            }
            schedule.end_round();
        }
        served
    }

    #[test]
    fn names_of_a_group_have_the_time_of_one() {
        let mut schedule = Schedule::default();
        join_hosts(&mut schedule, 0, 100);
        join_hosts(&mut schedule, 100, 1);
        join_hosts(&mut schedule, 101, 1);
        let served = serve(&mut schedule, 102, 30_000);
        let count = |of: &dyn Fn(u32) -> bool| served.iter().filter(|by| of(**by)).count();
        for alone in [100, 101] {
            let its = count(&|by| by == alone);
            assert!((9_800..10_200).contains(&its), "{its}");
        }
        // Shares within the group are equal as well.
        for name in 0..100 {
            let its = count(&|by| by == name);
            assert!(its.abs_diff(100) <= ROUND, "{name}: {its}");
        }
    }

    /// A late host does not catch up with time that others had before.
    #[test]
    fn a_late_host_gets_no_time_for_the_past() {
        let mut schedule = Schedule::default();
        join_hosts(&mut schedule, 0, 1);
        serve(&mut schedule, 1, 10_000);
        join_hosts(&mut schedule, 1, 1);
        let served = serve(&mut schedule, 2, 2_000);
        let late = served.iter().filter(|by| **by == 1).count();
        assert!((900..1_100).contains(&late), "{late}");
    }

    /// However much unscheduled work a group causes all the time, it is served again and again.
    #[test]
    fn nobody_is_indebted_for_ever() {
        let mut schedule = Schedule::default();
        join_hosts(&mut schedule, 0, 1);
        join_hosts(&mut schedule, 1, 1);
        let mut served = [0; 2];
        for _ in 0..1000 {
            for connection in serve(&mut schedule, 2, 1) {
                served[connection as usize] += 1;
            }
            schedule.charge_unscheduled(1, 10 * MOST_UNSCHEDULED);
        }
        assert!(served[1] > 1000, "{served:?}");
    }

    /// Also the indices of hosts whose connections leave while they wait.
    #[test]
    fn indices_are_free_when_all_are_gone() {
        let mut schedule = Schedule::default();
        let strangers = schedule.lasting_group();
        let lasting = schedule.new_host(strangers);
        join_hosts(&mut schedule, 0, 3);
        join_hosts(&mut schedule, 3, 2);
        schedule.wake(1);
        schedule.wake(4);
        schedule.join(1, lasting);
        (0..5).for_each(|connection| schedule.leave(connection));
        assert_eq!(schedule.pick(), None);
        assert_eq!((schedule.free_hosts.len(), schedule.hosts.len()), (6, 6));
        assert_eq!((schedule.free_groups.len(), schedule.groups.len()), (2, 3));
        assert!(!schedule.has_work() && !schedule.is_shared());
        join_hosts(&mut schedule, 0, 5);
        assert_eq!((schedule.hosts.len(), schedule.groups.len()), (6, 3));
        assert!(serve(&mut schedule, 5, 5).len() >= 5);
    }
}
