//! Who is connected: one entry for each host, with what it has taken.
//!
//! A host that TLS has identified is an NVMe qualified name. Any other is a name at an address, of IPv6 at a network:
//! so nobody elsewhere takes the share of another by its name alone. Nor have many names at an address more of the
//! reactors' or the compiler's time than one, or memory without end, unless they have to authenticate themselves. Who
//! asks for the discovery log without being identified is one host with all others at its address that do, whatever
//! names they have.

use crate::command_log::HostLog;
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
    /// Time in seconds after which a host that takes nothing from its socket is given up.
    pub send_timeout_s: u32,
    /// Time in seconds after which an association without a keep-alive timer is given up if no command
    /// comes. 0 refuses such hosts.
    pub idle_timeout_s: u32,
}

/// What limits of an address count one by: IPv4 in IPv6 is IPv4, and of IPv6 all addresses of a network of 64 bits are
/// one, of which a machine takes as many as it likes. Those of a link are not of one network, and stay as they are.
pub(crate) fn counted_address(address: IpAddr) -> IpAddr {
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

/// What was done on some connections.
pub(crate) type Past = (Totals, ClassLatencies);

/// One host.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) nqn: String,
    /// Differs for all hosts of the target, also after they are gone.
    pub(crate) serial: u64,
    pub(crate) memory: Arc<Account>,
    /// What has been compiled for it, in ns of virtual time (see the loader), in this life and the last.
    pub(crate) compile_time_ns: Arc<AtomicU64>,
    /// With whom it takes turns as one: all without keys at its address, or nobody.
    pub(crate) group: Arc<Group>,
    /// By [`Kind`].
    counts: [AtomicU32; KINDS],
    /// Lines of the log about it, in this life and the last.
    pub(crate) log: Arc<HostLog>,
    /// Where it is, as it is [counted](counted_address), unless it is identified.
    address: Option<IpAddr>,
    /// It has to authenticate itself by DH-HMAC-CHAP.
    has_key: bool,
    /// What was done on connections that are gone, by the reactors that had them.
    past: Mutex<Vec<Past>>,
}

/// All hosts of a target.
// More than 25 methods: one account of all that a host can take, so that it is given back in one place.
#[derive(Debug)]
pub(crate) struct Hosts {
    pub(crate) limits: HostLimits,
    pub(crate) memory: Arc<Memory>,
    /// Of the target itself.
    pub(crate) own: Arc<Account>,
    /// Of connections and associations that have not said or not shown whose they are.
    pub(crate) pending: Arc<Account>,
    /// The same by RDMA, which takes more for each: those keep nobody out who comes by TCP.
    pub(crate) pending_rdma: Arc<Account>,
    known: Mutex<Known>,
}

/// A host that is there or was lately.
#[derive(Debug)]
struct KnownHost {
    host: Weak<Host>,
    log: Arc<HostLog>,
    compile_time_ns: Arc<AtomicU64>,
    group: Arc<Group>,
}

/// Hosts that take turns as one: at the reactors, for arenas, and at the compiler. Times are in ns of virtual time (see
/// the loader).
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// Differs for all groups of the target, also after they are gone.
    pub(crate) serial: u64,
    /// What has been compiled for it.
    pub(crate) compile_time_ns: AtomicU64,
    /// What each of its hosts that waits has had.
    pub(crate) compile_now_ns: AtomicU64,
}

/// What the hosts without keys at an address share.
#[derive(Debug)]
struct Share {
    memory: Arc<Account>,
    group: Arc<Group>,
}

#[derive(Debug, Default)]
struct Known {
    /// By address, none of those that are identified, whether they have to authenticate themselves, and name.
    hosts: HashMap<(Option<IpAddr>, bool, String), KnownHost>,
    /// By address.
    shares: HashMap<IpAddr, Share>,
    /// By [`Kind`].
    addresses: HashMap<IpAddr, [u32; KINDS]>,
    last_serial: u64,
    /// How many hosts there were when those that have gone were last removed.
    swept: usize,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Connection,
    /// With a subsystem that has namespaces.
    Association,
    /// With the discovery subsystem: those are for anybody, and keep nobody out of the others.
    Discovery,
}

const KINDS: usize = 3;

/// A connection or association of an address, counted as long as this lives.
#[derive(Debug)]
pub(crate) struct AddressSlot {
    hosts: Arc<Hosts>,
    address: IpAddr,
    kind: Kind,
}

impl AddressSlot {
    /// Whose it is.
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
    /// A connection of it at a reactor is gone, on which this was done.
    pub(crate) fn remember(&self, reactor: usize, totals: &Totals, latencies: &ClassLatencies) {
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        if past.len() <= reactor {
            past.resize_with(reactor + 1, Past::default);
        }
        past[reactor].0.add(totals);
        past[reactor].1.merge(latencies);
    }

    /// What was done on connections of a reactor that are gone.
    pub(crate) fn past(&self, reactor: usize) -> Past {
        let past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.get(reactor).copied().unwrap_or_default()
    }

    /// Whether this is the host at `address`; one that TLS has identified is at none.
    pub(crate) fn is_at(&self, address: IpAddr) -> bool {
        self.address == Some(counted_address(address))
    }

    /// Where it is; none if it is identified.
    pub(crate) const fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Whether these are all at an address who ask for the discovery log and have not shown who they are.
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

    /// What there is to tell of it but for what was done, which reactors tell.
    pub(crate) fn report(&self) -> HostReport {
        let [connections, associations, discovery]: [u64; KINDS] =
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

    /// Counts an association of a kind; `more` may be there than the limit says.
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
    /// No hosts yet, which may take so many bytes of memory together.
    pub(crate) fn new(limits: HostLimits, memory_bytes: usize) -> Arc<Hosts> {
        let memory = Memory::new(memory_bytes);
        let own = memory.own_account();
        let [pending, pending_rdma] = [memory.account(), memory.account()];
        Arc::new(Hosts { limits, memory, own, pending, pending_rdma, known: Mutex::default() })
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

    /// Counts an association of a kind of such an address; `more` may be there than the limit says.
    pub(crate) fn association_of(
        self: &Arc<Self>,
        address: IpAddr,
        kind: Kind,
        more: u32,
    ) -> Result<AddressSlot, HostFull> {
        let limit = self.limits.associations_per_address;
        let counted = self.count(address, kind, limit.saturating_add(more));
        counted.ok_or(HostFull::Address(limit))
    }

    /// The host of this name: at an address, or at any if it is identified.
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
        // Who comes again and again has no more lines than who stays, and waits as long for the compiler.
        let log = last.map(|known| Arc::clone(&known.log)).unwrap_or_default();
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
            let addresses: HashSet<IpAddr> = known.hosts.keys().filter_map(|key| key.0).collect();
            // What the hosts had may still have to be given back.
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
        // Many names take what there is for all of them, and leave others theirs.
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
