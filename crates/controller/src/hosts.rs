//! The connected hosts: one entry for each host, with the resources that it uses.
//!
//! A host that TLS has identified is an NVMe qualified name. Any other host is a name at an address, or at a network
//! for IPv6: so nobody elsewhere takes the share of a host by using its name. Hosts without keys at one address,
//! however many names they use, have together no more of the reactors' and the compiler's time than one host, and
//! bounded memory; a host that has to authenticate itself has its own share. All unidentified hosts at an address that
//! ask for the discovery log are one host, whatever their names are.

use crate::command_log::{GroupLog, HostLog};
use crate::metrics::ClassLatencies;
use crate::report::{HostReport, Totals};
use bpfof_function::memory::{Account, Memory, MemoryFull};
use bpfof_nvme::fabrics::DISCOVERY_NQN;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Limits that an operator may change. See docs/tenants.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLimits {
    /// Connections of one address at a time.
    pub connections_per_address: u32,
    /// Connections of one host at a time.
    pub connections_per_host: u32,
    /// Associations of one address at a time.
    pub associations_per_address: u32,
    /// Associations of one host at a time.
    pub associations_per_host: u32,
    /// Time in seconds after which a connection is closed whose host takes nothing from its socket.
    pub send_timeout_s: u32,
    /// Time in seconds after which an association without a keep-alive timer is ended if no command comes. 0 refuses
    /// such hosts.
    pub idle_timeout_s: u32,
}

/// The address by which limits per address count a peer: IPv4 in IPv6 counts as IPv4, and all addresses of an IPv6
/// network of 64 bits count as one, because a machine can take as many of them as it likes. Link-local addresses do not
/// belong to one network and stay as they are.
#[must_use]
pub fn counted_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(all) if !all.is_unicast_link_local() && !all.is_loopback() => {
            Ipv6Addr::from_bits(all.to_bits() >> 64 << 64).into()
        }
        address => address,
    }
}

impl Default for HostLimits {
    fn default() -> Self {
        HostLimits {
            connections_per_address: 3072,
            connections_per_host: 1024,
            associations_per_address: 512,
            associations_per_host: 128,
            send_timeout_s: 30,
            idle_timeout_s: 600,
        }
    }
}

/// Totals and latencies of some connections.
pub(crate) type Past = (Totals, ClassLatencies);

/// One host.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) nqn: String,
    /// Unique among all hosts of the target, including hosts that are gone.
    pub(crate) serial: u64,
    pub(crate) memory: Arc<Account>,
    /// Compile time spent for it, in ns of virtual time (see the loader). It survives reconnections.
    pub(crate) compile_time_ns: Arc<AtomicU64>,
    /// The hosts with which it shares its turns: all without keys at its address, or none.
    pub(crate) group: Arc<Group>,
    /// By [`Kind`].
    counts: [AtomicU32; KINDS],
    /// Rate limit of log lines about it. It survives reconnections.
    pub(crate) log: Arc<HostLog>,
    /// Its [counted address](counted_address); none if TLS has identified it.
    address: Option<IpAddr>,
    /// It has to authenticate itself by DH-HMAC-CHAP.
    has_key: bool,
    /// Totals of connections that are gone, by reactor.
    past: Mutex<Vec<Past>>,
    /// Bytes of maps of functions that other hosts keep, in all of its associations.
    pub(crate) given_map_bytes: Arc<AtomicU64>,
}

/// All hosts of a target.
// More than 25 methods: one place counts all resources that a host can take, so that one place gives them back.
#[derive(Debug)]
pub(crate) struct Hosts {
    pub(crate) limits: HostLimits,
    pub(crate) memory: Arc<Memory>,
    /// The account of the target itself.
    pub(crate) own: Arc<Account>,
    /// The account of connections and associations whose host is unknown or has not proved its identity.
    pub(crate) pending: Arc<Account>,
    /// The same for connections by RDMA, which take more memory each: so they cannot lock out hosts that come by TCP.
    pub(crate) pending_rdma: Arc<Account>,
    /// Until then, on the reactors' clock, hosts may come that another process has served before; 0 without another,
    /// `u64::MAX` while it still serves some.
    pub(crate) moved_until_ns: AtomicU64,
    known: Mutex<Known>,
}

/// A host that is connected or was lately.
#[derive(Debug)]
struct KnownHost {
    host: Weak<Host>,
    log: Arc<HostLog>,
    compile_time_ns: Arc<AtomicU64>,
    group: Arc<Group>,
}

/// Hosts that take turns as one party: at the reactors, for arenas, and at the compiler. Times are in ns of virtual
/// time (see the loader).
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// Unique among all groups of the target, including groups that are gone.
    pub(crate) serial: u64,
    /// Compile time spent for it.
    pub(crate) compile_time_ns: AtomicU64,
    /// Compile time that each of its waiting hosts has had.
    pub(crate) compile_now_ns: AtomicU64,
    /// Rate limit of log lines about its hosts.
    log: Arc<GroupLog>,
}

/// Resources that the hosts without keys at an address share.
#[derive(Debug)]
struct Share {
    memory: Arc<Account>,
    group: Arc<Group>,
}

#[derive(Debug, Default)]
struct Known {
    /// By address (none for identified hosts), whether they have to authenticate themselves, and name.
    hosts: HashMap<(Option<IpAddr>, bool, String), KnownHost>,
    /// By address.
    shares: HashMap<IpAddr, Share>,
    /// By [`Kind`].
    addresses: HashMap<IpAddr, [u32; KINDS]>,
    last_serial: u64,
    /// How many hosts were left when entries of gone hosts were last removed.
    swept: usize,
}

/// The kinds of things that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Connection,
    /// With a subsystem that has namespaces.
    Association,
    /// With the discovery subsystem: these are open to anybody and do not count against associations with other
    /// subsystems.
    Discovery,
    /// Of a host that TLS has identified: the limits by address do not concern it.
    Identified,
}

const KINDS: usize = 4;

/// A connection or association of an address, counted as long as this lives.
#[derive(Debug)]
pub(crate) struct AddressSlot {
    hosts: Arc<Hosts>,
    address: IpAddr,
    kind: Kind,
}

impl AddressSlot {
    /// The address that it counts for.
    pub(crate) const fn address(&self) -> IpAddr {
        self.address
    }
}

impl Drop for AddressSlot {
    fn drop(&mut self) {
        let mut known = self.hosts.known();
        if let Some(counts) = known.addresses.get_mut(&self.address) {
            counts[self.kind as usize] -= 1;
            if *counts == [0; KINDS] {
                known.addresses.remove(&self.address);
            }
        }
    }
}

/// A connection or an association of a host, counted as long as this lives.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) host: Arc<Host>,
    kind: Kind,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.host.counts[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why a host gets no further connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HostFull {
    #[error("the host has {0} connections, which is its limit (connections-per-host)")]
    Connections(u32),
    #[error("the host has {0} associations, which is its limit (associations-per-host)")]
    Associations(u32),
    #[error("its address has {0} associations, which is the limit (associations-per-address)")]
    Address(u32),
    #[error("the subsystem has {0} associations, and none of them is idle")]
    Controllers(usize),
    #[error("{0}")]
    Memory(#[from] MemoryFull),
}

impl Host {
    /// Adds the totals of a connection that is gone.
    pub(crate) fn remember(&self, reactor: usize, totals: &Totals, latencies: &ClassLatencies) {
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        if past.len() <= reactor {
            past.resize_with(reactor + 1, Past::default);
        }
        past[reactor].0.add(totals);
        past[reactor].1.merge(latencies);
    }

    /// The totals of a reactor's connections that are gone.
    pub(crate) fn past(&self, reactor: usize) -> Past {
        let past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.get(reactor).copied().unwrap_or_default()
    }

    /// Whether this is the host at `address`; one that TLS has identified is at none.
    pub(crate) fn is_at(&self, address: IpAddr) -> bool {
        self.address == Some(counted_address(address))
    }

    /// Its counted address; none if TLS has identified it.
    pub(crate) const fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Whether this stands for all unidentified hosts at an address that ask for the discovery log.
    pub(crate) fn is_anybody(&self) -> bool {
        self.address.is_some() && self.nqn == DISCOVERY_NQN
    }

    /// How many associations of a kind it may have.
    pub(crate) fn most_associations(&self, limits: &HostLimits) -> u32 {
        match self.is_anybody() {
            true => limits.associations_per_address,
            false => limits.associations_per_host,
        }
    }

    /// A report on it without totals and latencies, which the reactors add.
    pub(crate) fn report(&self) -> HostReport {
        let [connections, associations, discovery, _]: [u64; KINDS] =
            self.counts.each_ref().map(|count| count.load(Ordering::Relaxed).into());
        let (totals, latencies) = Past::default();
        HostReport {
            serial: self.serial,
            nqn: self.nqn.clone(),
            address: self.address.map(|address| address.to_string()),
            has_key: self.has_key,
            connections,
            associations: associations + discovery,
            memory_bytes: self.memory.used_bytes(),
            totals,
            latencies,
        }
    }

    fn join(self: &Arc<Self>, kind: Kind, limit: u32) -> Option<Member> {
        let count = &self.counts[kind as usize];
        let joined = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < limit).then_some(count + 1)
        });
        joined.ok().map(|_| Member { host: Arc::clone(self), kind })
    }

    /// Counts a connection.
    pub(crate) fn connection(self: &Arc<Self>, limits: &HostLimits) -> Result<Member, HostFull> {
        let limit = match self.is_anybody() {
            true => limits.connections_per_address,
            false => limits.connections_per_host,
        };
        self.join(Kind::Connection, limit).ok_or(HostFull::Connections(limit))
    }

    /// Counts an association of a kind; the limit may be exceeded by `more`.
    pub(crate) fn association(
        self: &Arc<Self>,
        limits: &HostLimits,
        kind: Kind,
        more: u32,
    ) -> Result<Member, HostFull> {
        let limit = self.most_associations(limits);
        let joined = self.join(kind, limit.saturating_add(more));
        joined.ok_or(HostFull::Associations(limit))
    }
}

impl Hosts {
    /// Without hosts yet; all hosts together may take this many bytes of memory.
    pub(crate) fn new(limits: HostLimits, memory_bytes: usize) -> Arc<Hosts> {
        let memory = Memory::new(memory_bytes);
        let own = memory.own_account();
        let [pending, pending_rdma] = [memory.account(), memory.account()];
        let (moved_until_ns, known) = (AtomicU64::new(0), Mutex::default());
        Arc::new(Hosts { limits, memory, own, pending, pending_rdma, moved_until_ns, known })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(self: &Arc<Self>, address: IpAddr, kind: Kind, limit: u32) -> Option<AddressSlot> {
        let mut known = self.known();
        let count = &mut known.addresses.entry(address).or_default()[kind as usize];
        if *count >= limit {
            return None;
        }
        *count += 1;
        Some(AddressSlot { hosts: Arc::clone(self), address, kind })
    }

    /// Counts a connection of a [counted](counted_address) address; none if it has too many.
    pub(crate) fn connection_of(self: &Arc<Self>, address: IpAddr) -> Option<AddressSlot> {
        self.count(address, Kind::Connection, self.limits.connections_per_address)
    }

    /// Counts an association of a kind of such an address; the limit may be exceeded by `more`.
    pub(crate) fn association_of(
        self: &Arc<Self>,
        address: IpAddr,
        kind: Kind,
        more: u32,
    ) -> Result<AddressSlot, HostFull> {
        let limit = self.limits.associations_per_address;
        let more = if kind == Kind::Identified { u32::MAX } else { more };
        let counted = self.count(address, kind, limit.saturating_add(more));
        counted.ok_or(HostFull::Address(limit))
    }

    /// The host of this name: at this address, or at any address if it is identified.
    pub(crate) fn host(&self, address: Option<IpAddr>, nqn: &str) -> Arc<Host> {
        self.find(address, false, nqn)
    }

    /// The host of this name at an address, which has to authenticate itself: it shares nothing with others there.
    pub(crate) fn host_with_key(&self, address: IpAddr, nqn: &str) -> Arc<Host> {
        self.find(Some(address), true, nqn)
    }

    fn find(&self, address: Option<IpAddr>, has_key: bool, nqn: &str) -> Arc<Host> {
        let mut known = self.known();
        let key = (address, has_key, nqn.to_owned());
        let last = known.hosts.get(&key);
        if let Some(host) = last.and_then(|known| known.host.upgrade()) {
            return host;
        }
        // A host that reconnects has no more log lines than one that stays, and keeps its place at the compiler.
        let log = last.map(|known| Arc::clone(&known.log));
        let compile_time_ns =
            last.map(|known| Arc::clone(&known.compile_time_ns)).unwrap_or_default();
        let own_group = last.map(|known| Arc::clone(&known.group));
        known.last_serial += 1;
        let serial = known.last_serial;
        let new_group = || Arc::new(Group { serial, ..Group::default() });
        if known.hosts.len() >= 2 * known.swept.max(64) {
            known.hosts.retain(|_, last| last.host.strong_count() > 0);
            known.swept = known.hosts.len();
            let known = &mut *known;
            let known_addresses = known.hosts.keys().filter_map(|key| key.0);
            let addresses: HashSet<IpAddr> = known_addresses.chain(address).collect();
            // Memory of hosts that are gone may still have to be given back to the share.
            let is_used = |share: &Share| Arc::strong_count(&share.memory) > 1;
            known.shares.retain(|address, share| addresses.contains(address) || is_used(share));
        }
        let share = address.filter(|_| !has_key).map(|address| {
            let share = || Share { memory: self.memory.account(), group: new_group() };
            let share = known.shares.entry(address).or_insert_with(share);
            (share.memory.member(), Arc::clone(&share.group))
        });
        let alone = || (self.memory.account(), own_group.unwrap_or_else(new_group));
        let (memory, group) = share.unwrap_or_else(alone);
        let log = log.unwrap_or_else(|| Arc::new(HostLog::of(&group.log)));
        let host = Arc::new(Host {
            nqn: nqn.to_owned(),
            serial,
            memory,
            compile_time_ns: Arc::clone(&compile_time_ns),
            group: Arc::clone(&group),
            counts: Default::default(),
            log: Arc::clone(&log),
            address,
            has_key,
            past: Mutex::default(),
            given_map_bytes: Arc::default(),
        });
        let host_now = Arc::downgrade(&host);
        known.hosts.insert(key, KnownHost { host: host_now, log, compile_time_ns, group });
        host
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn names_at_an_address_have_one_share_but_with_keys() {
        let hosts = Hosts::new(HostLimits::default(), 64 << 20);
        let here = IpAddr::from(Ipv4Addr::LOCALHOST);
        let free = [(); 3].map(|()| hosts.host(Some(here), "free"));
        let other = hosts.host(Some(here), "other");
        let (keyed, identified) = (hosts.host_with_key(here, "keyed"), hosts.host(None, "keyed"));
        assert!(free[0].serial == free[2].serial && keyed.serial != identified.serial);
        let has_time_of = |host: &Host, other: &Host| host.group.serial == other.group.serial;
        assert!(has_time_of(&free[0], &other) && !has_time_of(&free[0], &keyed));
        assert!(!has_time_of(&keyed, &identified));
        // Many names use up their common share and leave other hosts theirs.
        let little = hosts.memory.little_bytes();
        let many: Vec<_> = (0..200)
            .map(|number| {
                let host = hosts.host(Some(here), &number.to_string());
                let mut charge = host.memory.charge(0).expect("nothing");
                while charge.resize(charge.bytes() + (64 << 10)).is_ok() {}
                charge
            })
            .collect();
        assert!(other.memory.charge(little).is_err());
        let there = IpAddr::from(Ipv4Addr::new(127, 0, 0, 2));
        for host in [&keyed, &identified, &hosts.host(Some(there), "free")] {
            assert!(host.memory.charge(4 * little).is_ok(), "{host:?}");
        }
        drop(many);
        assert!(other.memory.charge(little).is_ok());
    }

    #[test]
    fn hosts_are_known_while_they_are_there() {
        let limits = HostLimits {
            connections_per_address: 2,
            connections_per_host: 2,
            associations_per_host: 1,
            ..HostLimits::default()
        };
        let hosts = Hosts::new(limits, 1 << 20);
        let [here, there] = [1, 2].map(|last| IpAddr::from(Ipv4Addr::new(127, 0, 0, last)));
        let (one, other) = (hosts.host(Some(here), "a"), hosts.host(Some(there), "a"));
        let identified = hosts.host(None, "a");
        assert_eq!(hosts.host(Some(here), "a").serial, one.serial);
        assert!(one.serial != other.serial && hosts.host(Some(here), "b").serial != one.serial);
        assert!(![one.serial, other.serial].contains(&identified.serial));
        let two = [(); 2].map(|()| one.connection(&limits).expect("room"));
        assert_eq!(one.connection(&limits).err(), Some(HostFull::Connections(2)));
        let kind = Kind::Association;
        let association = one.association(&limits, kind, 0).expect("room");
        assert_eq!(one.association(&limits, kind, 0).err(), Some(HostFull::Associations(1)));
        assert!(one.association(&limits, kind, 1).is_ok());
        assert!(one.association(&limits, Kind::Discovery, 0).is_ok(), "that is counted apart");
        assert!(other.connection(&limits).is_ok());
        drop((two, association));
        assert!(one.connection(&limits).is_ok() && one.association(&limits, kind, 0).is_ok());
        let serial = one.serial;
        drop(one);
        assert_ne!(hosts.host(Some(here), "a").serial, serial, "another life");
        let slots = [(); 2].map(|()| hosts.connection_of(here).expect("room"));
        assert!(hosts.connection_of(here).is_none() && hosts.connection_of(there).is_some());
        drop(slots);
        assert!(hosts.connection_of(here).is_some());
        assert!(hosts.known().addresses.is_empty());
    }

    #[test]
    fn addresses_that_one_machine_may_take_count_as_one() {
        let counted = |text: &str| counted_address(text.parse().expect("an address")).to_string();
        for (address, expected) in [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
            ("2001:db8:1:2:ffff::", "2001:db8:1:2::"),
            ("2001:db8:1:3::", "2001:db8:1:3::"),
            ("fe80::1", "fe80::1"),
            ("::1", "::1"),
        ] {
            assert_eq!(counted(address), expected, "{address}");
        }
    }

    #[test]
    fn names_of_hosts_that_have_gone_are_forgotten() {
        let hosts = Hosts::new(HostLimits::default(), 1 << 20);
        for number in 0..10_000 {
            hosts.host(Some(Ipv4Addr::LOCALHOST.into()), &number.to_string());
        }
        assert!(hosts.known().hosts.len() <= 128);
    }
}
