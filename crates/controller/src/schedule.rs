//! Which connection is served next: shares of the reactor's time, by cost.
//!
//! Each group of hosts has a *virtual time*, the cost of all that was done for it, and the one that has had
//! least goes first; among its hosts likewise, and among the connections of a host. So whoever asks for little
//! finds nobody before it, and those that ask for more than there is get equal parts. A group that comes back
//! after a rest begins where the others are, so that it cannot save up; one that had more before it went begins behind
//! them. This is hierarchical start-time fair
//! queueing; unlike deficit round robin it does not let a sparse host wait for a round of the others. All hosts
//! without keys at an address are a group, and each other host is one: names cost nothing.
//!
//! Costs are estimated when an operation is taken, because only doing it tells what it costs, and
//! corrected then. Operations are taken in *rounds* of a few, so that the memory of all can be fetched
//! together.

use crate::fifo::Fifo;
use crate::limits::{LONG_UNITS, ROUND, SLICE_UNITS};
use crate::operation::Operation;
use bpfof_chain::ChainId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What an operation is believed to cost before one of its connection has been done, in units.
const FIRST_ESTIMATE: u64 = 1000;

/// Operations of a connection among which those of one chain are looked for: some 10 µs.
const MOST_TO_LOOK_AT: usize = 2048;

/// A party to the shares of one reactor: the hosts of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupIndex(u32);

impl GroupIndex {
    /// A small number, which no other group has meanwhile.
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

/// A party to the shares of its group: the connections of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostIndex(u32);

impl HostIndex {
    /// A small number, which no other host has meanwhile.
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

/// Those who wait, by virtual time. A key may be out of date: then it is put back with a newer one. Mostly only one
/// waits, for whom the heap would take most of what a turn costs.
#[derive(Debug, Default)]
struct Waiting {
    /// None if nobody waits.
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

/// What the hosts of a group share, or the connections of a host.
#[derive(Debug, Default)]
struct Share {
    time: u64,
    /// Virtual time of the member that was served last: where one begins that comes back.
    now: u64,
    /// Members.
    waiting: Waiting,
    is_waiting: bool,
    members: u32,
}

impl Share {
    /// It may go: nobody names it.
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
    /// What its last operations cost.
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
    /// What each of them is believed to cost.
    estimate: u64,
    /// Virtual times of the group, of the host and of the connection before the first.
    begins: [u64; 3],
    /// Where they end in the round.
    end: usize,
    /// Those that have been performed, what they have cost together, and the dearest.
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
// More than 25 methods: what a reactor asks of it in each phase of a turn, most of one line.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    groups: Vec<Share>,
    free_groups: Vec<u32>,
    hosts: Vec<Host>,
    free_hosts: Vec<u32>,
    /// How many hosts have connections, without the lasting ones.
    parties: usize,
    members: Vec<Option<Member>>,
    /// Groups.
    waiting: Waiting,
    /// Virtual time of the group that was served last.
    now: u64,
    /// Operations of the round, of which those before `next` have been performed.
    round: Vec<Operation>,
    next: usize,
    /// Whose they are. Those before `part` are accounted for.
    parts: Vec<Part>,
    part: usize,
    /// What the round is believed to cost.
    round_units: u64,
    /// Nothing more is taken.
    is_closed: bool,
}

impl Schedule {
    /// A group of which no host is known yet, and which has had as much as its virtual time says.
    pub(crate) fn new_group(&mut self, time: u64) -> GroupIndex {
        let share = Share { time, ..Share::default() };
        GroupIndex(reuse_or_push(&mut self.groups, &mut self.free_groups, share))
    }

    /// The virtual time of a group, if it has had more than the others.
    pub(crate) fn ahead(&self, group: GroupIndex) -> Option<u64> {
        let time = self.groups[group.0 as usize].time;
        (time > self.now).then_some(time)
    }

    /// The virtual time of the group of a connection.
    #[cfg(test)]
    pub(crate) fn time_of(&self, connection: u32) -> u64 {
        let host = self.members[connection as usize].as_ref().expect("it has joined").host;
        self.groups[self.hosts[host as usize].group as usize].time
    }

    /// Virtual time of the group that was served last.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// A host of which no connection is known yet.
    pub(crate) fn new_host(&mut self, group: GroupIndex) -> HostIndex {
        self.groups[group.0 as usize].members += 1;
        let host = Host { group: group.0, share: Share::default() };
        HostIndex(reuse_or_push(&mut self.hosts, &mut self.free_hosts, host))
    }

    /// A host, the only one of its group, that stays when it has no connection.
    pub(crate) fn lasting_host(&mut self) -> HostIndex {
        let group = self.new_group(0);
        let host = self.new_host(group);
        self.hosts[host.0 as usize].share.members = 1;
        host
    }

    /// A connection belongs to a host from now on, perhaps after having belonged to another.
    pub(crate) fn join(&mut self, connection: u32, host: HostIndex) {
        let at = connection as usize;
        if self.members.len() <= at {
            self.members.resize_with(at + 1, || None);
        }
        let known = &mut self.hosts[host.0 as usize].share;
        let time = known.now;
        self.parties += usize::from(known.members == 0);
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
                    estimate: FIRST_ESTIMATE,
                    active: Fifo::default(),
                    fresh: Fifo::default(),
                });
            }
        }
    }

    /// A connection is gone: it has no operations left.
    pub(crate) fn leave(&mut self, connection: u32) {
        if let Some(member) = self.members[connection as usize].take() {
            debug_assert!(member.active.is_empty() && member.fresh.is_empty());
            self.part(member.host);
        }
    }

    /// After the last connection of a host its index is free, and after the last host of a group that of the group;
    /// or when they do not wait any more.
    fn part(&mut self, host: u32) {
        let Host { group, share } = &mut self.hosts[host as usize];
        share.members -= 1;
        self.parties -= usize::from(share.members == 0);
        if share.is_unused() {
            let group = *group;
            self.free_hosts.push(host);
            self.groups[group as usize].members -= 1;
            self.free_group(group);
        }
    }

    /// Where it is unused.
    fn free_group(&mut self, index: u32) {
        if self.groups[index as usize].is_unused() {
            self.free_groups.push(index);
        }
    }

    #[inline]
    fn member(&mut self, connection: u32) -> &mut Member {
        self.members[connection as usize].as_mut().expect("it has joined")
    }

    /// Where operations of a connection go that go on with something, or that begin. It must be
    /// [woken](Self::wake) if some were added.
    #[inline]
    pub(crate) fn queue(&mut self, connection: u32, goes_on: bool) -> &mut Fifo {
        let member = self.member(connection);
        if goes_on { &mut member.active } else { &mut member.fresh }
    }

    /// There is something to be done for a connection.
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

    /// Adds an operation that goes on with something: before those that begin.
    #[inline]
    pub(crate) fn push_active(&mut self, connection: u32, operation: Operation) {
        self.queue(connection, true).push_back(operation);
        self.wake(connection);
    }

    /// Adds an operation that comes before all of its connection.
    pub(crate) fn push_first(&mut self, connection: u32, operation: Operation) {
        self.member(connection).active.put_back(&[operation]);
        self.wake(connection);
    }

    /// What a chain waits for comes before all of its connection, unless that has so much queued that
    /// looking for it would take longer than others should wait.
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

    /// Whether somebody waits to be served, or an operation of the round is left.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.has_next() || !self.waiting.is_empty()
    }

    /// Takes the connection whose turn it is out of those that wait. It must [wake](Self::wake) again
    /// if something is left for it.
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
            if picked.is_some() && self.round.is_empty() {
                self.now = self.now.max(group.time);
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

    /// Of the hosts of a group that wait, takes the connection of the one whose turn it is.
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
            if let Some((_, time)) = picked
                && self.round.is_empty()
            {
                group.now = group.now.max(host.time);
                host.now = host.now.max(time);
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

    /// Adds operations of a connection to the round, as many as there is room for. It waits for its next
    /// turn then, if it has more. Where hosts share the reactor a long operation is a round of its own: what
    /// short ones go on with comes before it.
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
        // Only so many are active at a time, so that some end while others have not begun.
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

    /// The operations of the round, as it begins.
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

    /// Whether the next operation of the round is believed to take long.
    #[inline]
    pub(crate) fn is_next_long(&self) -> bool {
        let ended = self.parts.get(self.part).is_some_and(|part| part.end == self.next);
        let part = self.parts.get(self.part + usize::from(ended));
        part.is_some_and(|part| part.estimate > LONG_UNITS)
    }

    /// Goes on to the next [operation](Self::operation) of the round; whose it is. What it costs is to
    /// be [told](Self::told).
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

    /// The operation whose turn it is, and those behind it that are of the same connection; and its
    /// queues, for what they lead to.
    #[inline]
    pub(crate) fn run(&mut self) -> Run<'_> {
        let Part { connection, end, .. } = self.parts[self.part];
        let member = self.members[connection as usize].as_mut().expect("it has operations");
        let Member { active, fresh, .. } = member;
        Run { connection, operations: &self.round[self.next - 1..end], active, fresh }
    }

    /// The first `count` operations of the [run](Self::run) have been performed and have cost so much
    /// together, and the dearest of them so much. It is the turn of the one behind them.
    #[inline]
    pub(crate) fn advance(&mut self, count: usize, cost: u64, dearest: u64) {
        self.next += count;
        let part = &mut self.parts[self.part];
        part.done += count as u64;
        part.cost += cost;
        part.dearest = part.dearest.max(dearest);
    }

    /// The operation has cost this.
    #[inline]
    pub(crate) fn told(&mut self, cost: u64) {
        let part = &mut self.parts[self.part];
        part.done += 1;
        part.cost += cost;
        part.dearest = part.dearest.max(cost);
    }

    /// Whether all of the round has been performed; then the next may begin.
    pub(crate) fn end_round(&mut self) {
        if self.part < self.parts.len() {
            self.end_part();
        }
        self.round.clear();
        self.parts.clear();
        (self.next, self.part, self.round_units, self.is_closed) = (0, 0, 0, false);
    }

    /// What the operations of a part have cost takes the place of what they were believed to cost.
    fn end_part(&mut self) {
        let Part { connection, estimate, begins, done, cost, dearest, .. } = self.parts[self.part];
        self.part += 1;
        let Some(member) = self.members[connection as usize].as_mut().filter(|_| done > 0) else {
            return;
        };
        // Upwards at once, downwards slowly.
        member.estimate = dearest.max(member.estimate - member.estimate / 4).max(1);
        // Time goes on with what is done, not with what is taken: that may be given back.
        let [of_group, of_host, of_member] = begins.map(|time| time + estimate * (done - 1));
        let Host { group, share: host } = &mut self.hosts[member.host as usize];
        self.now = self.now.max(of_group);
        let group = &mut self.groups[*group as usize];
        group.now = group.now.max(of_host);
        host.now = host.now.max(of_member);
        self.charge(connection, cost as i64 - (estimate * done) as i64);
    }

    /// Adds to what a connection has had.
    #[inline]
    pub(crate) fn charge(&mut self, connection: u32, units: i64) {
        let Some(member) = self.members[connection as usize].as_mut() else { return };
        let Host { group, share: host } = &mut self.hosts[member.host as usize];
        let group = &mut self.groups[*group as usize];
        for time in [&mut group.time, &mut host.time, &mut member.time] {
            *time = time.saturating_add_signed(units);
        }
    }

    /// The turn is over: what is left of the round goes back to where it was.
    pub(crate) fn give_back(&mut self) {
        for index in (self.part..self.parts.len()).rev() {
            let Part { connection, estimate, end, .. } = self.parts[index];
            let begin = if index == self.part { self.next } else { self.parts[index - 1].end };
            if begin == end {
                continue;
            }
            self.charge(connection, -((estimate * (end - begin) as u64) as i64));
            let Schedule { round, members, .. } = self;
            let member = members[connection as usize].as_mut().expect("it has operations");
            member.active.put_back(&round[begin..end]);
            self.wake(connection);
        }
        self.end_round();
    }

    /// Gives back what idle connections keep room for.
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

/// The index of something new: a free one, or the next.
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

/// Takes the connection of a host whose turn it is, and gives its virtual time as well.
fn pick_member(host: &mut Share, index: u32, members: &mut [Option<Member>]) -> Option<(u32, u64)> {
    loop {
        let (time, connection) = host.waiting.pop()?;
        // It may have gone, or to another host, and come back since.
        let member = members.get_mut(connection as usize)?.as_mut();
        let Some(member) = member.filter(|member| member.is_waiting && member.host == index) else {
            continue;
        };
        if time < member.time {
            host.waiting.push(member.time, connection);
            continue;
        }
        member.is_waiting = false;
        return Some((connection, time));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation() -> Operation {
        Operation::ChainCalls { chain: ChainId::from_index(0) }
    }

    /// A connection for each of so many hosts of a group, the first of them `first`.
    fn join_hosts(schedule: &mut Schedule, first: u32, hosts: u32) {
        let group = schedule.new_group(0);
        for connection in first..first + hosts {
            let host = schedule.new_host(group);
            schedule.join(connection, host);
        }
    }

    /// Operations of connections, each of which always has more than a round, until so many were performed; whose they
    /// were.
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
        // Within the group it is the same.
        for name in 0..100 {
            let its = count(&|by| by == name);
            assert!(its.abs_diff(100) <= ROUND, "{name}: {its}");
        }
    }

    /// It does not catch up with what others have had before.
    #[test]
    fn who_comes_late_begins_level() {
        let mut schedule = Schedule::default();
        join_hosts(&mut schedule, 0, 1);
        serve(&mut schedule, 1, 10_000);
        join_hosts(&mut schedule, 1, 1);
        let served = serve(&mut schedule, 2, 2_000);
        let late = served.iter().filter(|by| **by == 1).count();
        assert!((900..1_100).contains(&late), "{late}");
    }

    /// Also of those that are gone while something waits for them.
    #[test]
    fn indices_are_free_when_all_are_gone() {
        let mut schedule = Schedule::default();
        let lasting = schedule.lasting_host();
        join_hosts(&mut schedule, 0, 3);
        join_hosts(&mut schedule, 3, 2);
        schedule.wake(1);
        schedule.wake(4);
        schedule.join(1, lasting);
        (0..5).for_each(|connection| schedule.leave(connection));
        assert_eq!(schedule.pick(), None);
        assert_eq!((schedule.free_hosts.len(), schedule.hosts.len()), (5, 6));
        assert_eq!((schedule.free_groups.len(), schedule.groups.len()), (2, 3));
        assert!(!schedule.has_work() && !schedule.is_shared());
        join_hosts(&mut schedule, 0, 5);
        assert_eq!((schedule.hosts.len(), schedule.groups.len()), (6, 3));
        assert!(serve(&mut schedule, 5, 5).len() >= 5);
    }
}
