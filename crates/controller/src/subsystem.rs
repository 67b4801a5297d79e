//! A subsystem: its namespaces and the controllers of the hosts that are connected to it.

use crate::access::Access;
use crate::command_log::Topic;
use crate::controller::{Controller, CounterTable, Party};
use crate::declared_maps::{self, DeclaredMap};
use crate::health::Health;
use crate::hosts::{Host, HostFull, HostLimits, Hosts};
use crate::kept::{KEPT, is_kept};
use crate::limits::{ASSOCIATION_BYTES, MAX_CONTROLLERS, MAX_KEPT_FUNCTIONS, USELESS_AFTER_NS};
use crate::listener::Listener;
use crate::lost_writes::{CutOff, Told};
use crate::metrics::Octaves;
use crate::namespace::Namespace;
use crate::refusal::Refusal;
use crate::report::FunctionReport;
use bpfof_chain::{Function, Tables};
use bpfof_function::memory::{Charge, MemoryFull};
use bpfof_nvme::Status;
use bpfof_nvme::fabrics::DISCOVERY_NQN;
use bpfof_nvme::vendor_specific::MapAddress;
use log::Level;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shared by all reactors.
#[derive(Debug)]
pub(crate) struct Subsystem {
    pub(crate) nqn: String,
    /// No other subsystem of the target has or gets it.
    pub(crate) number: usize,
    /// Of the kept functions.
    pub(crate) kept_counters: CounterTable,
    pub(crate) health: Health,
    /// Of the discovery subsystem: the generation of its log page.
    log_generation: AtomicU64,
    /// It is in the discovery log, and hosts can connect.
    is_served: AtomicBool,
    /// Ids of controllers.
    cntlids: RangeInclusive<u16>,
    controllers: Mutex<Controllers>,
}

/// What controllers announce because of the namespaces there are. A host looks once, when it
/// connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traits {
    /// A namespace may lose acknowledged writes that were not flushed.
    pub(crate) has_volatile_cache: bool,
    /// Each namespace can make ranges zero without data for them.
    pub(crate) writes_zeroes: bool,
    /// Each namespace can give blocks back.
    pub(crate) deallocates: bool,
}

/// Who wants an association.
#[derive(Debug)]
pub(crate) struct Newcomer {
    pub(crate) host: Arc<Host>,
    pub(crate) address: IpAddr,
    pub(crate) host_id: [u8; 16],
    pub(crate) access: Arc<Access>,
    /// Where it has come in.
    pub(crate) listener: Arc<Listener>,
    /// It has yet to show that it is the host that it names.
    pub(crate) is_stranger: bool,
}

#[derive(Debug, Default)]
struct Controllers {
    /// In ascending order of their ids.
    namespaces: Vec<Arc<Namespace>>,
    traits: Traits,
    /// How often namespaces have come or gone.
    changes: u64,
    by_id: BTreeMap<u16, Arc<Controller>>,
    last_id: u16,
    cut_off: CutOff,
    /// Functions that every association has.
    kept: Vec<Kept>,
    last_kept: u32,
    last_kept_map: u32,
}

impl Controllers {
    /// An association is over.
    fn ended(&mut self, controller: &Controller) {
        let is_known = !controller.is_stranger() && controller.host_id != [0; 16];
        if is_known && !controller.is_shut_down() {
            let host = (controller.host_nqn().to_owned(), controller.host_id);
            self.cut_off.add(host, &controller.told);
        }
    }

    /// What a host has been told by an association that was cut off, of which it may now come back, or else by one that
    /// it has. With none it has no writes that can have been lost.
    fn told_before(&self, host_nqn: &str, host_id: [u8; 16]) -> Told {
        let of_other = |other: &&Arc<Controller>| {
            let is_its = other.host_id == host_id && other.host_nqn() == host_nqn;
            is_its && !other.is_stranger() && !other.is_shut_down()
        };
        let before = self.cut_off.told((host_nqn, host_id));
        let other = || self.by_id.values().find(of_other).map(|other| &other.told);
        let found = before.or_else(other).filter(|_| host_id != [0; 16]);
        found.map_or_else(Told::from_now, Told::copied)
    }

    /// The host has come back by this association, which goes on where those were that were cut off.
    fn has_come_back(&mut self, controller: &Controller) {
        self.cut_off.remove((controller.host_nqn(), controller.host_id));
    }

    /// Chooses an association that has to go for another of `host`, if there are too many: the one that
    /// was silent longest, of those that have no I/O queues, or no keep-alive timer and nothing to do.
    /// If the subsystem is full of others, one goes of the address that has most, if that has more than
    /// the newcomer's will have. For one who has yet to show who it is only such ones go, and count.
    fn make_room(
        &self,
        newcomer: &Newcomer,
        hosts: &Hosts,
        now_ns: u64,
    ) -> Result<Option<Arc<Controller>>, HostFull> {
        let HostLimits { associations_per_host, associations_per_address, idle_timeout_s, .. } =
            hosts.limits;
        let least = associations_per_host.min(associations_per_address) as usize;
        if self.by_id.len() < least.min(MAX_CONTROLLERS) {
            return Ok(None);
        }
        type Which<'a> = &'a dyn Fn(&Controller) -> bool;
        let of_host = |other: &Controller| other.host().serial == newcomer.host.serial;
        let of_address = |other: &Controller| other.address() == newcomer.address;
        let count = |of: Which<'_>| self.by_id.values().filter(|other| of(other)).count();
        let (full, of): (HostFull, Which<'_>) = match () {
            () if count(&of_host) >= associations_per_host as usize => {
                (HostFull::Associations(associations_per_host), &of_host)
            }
            () if count(&of_address) >= associations_per_address as usize => {
                (HostFull::Address(associations_per_address), &of_address)
            }
            () if self.by_id.len() >= MAX_CONTROLLERS => {
                (HostFull::Controllers(MAX_CONTROLLERS), &|_| true)
            }
            () => return Ok(None),
        };
        let silent_ns = |controller: &Controller| {
            now_ns.saturating_sub(controller.last_traffic_ns.load(Ordering::Relaxed))
        };
        let idle_ns = u64::from(idle_timeout_s).min(60) * 1_000_000_000;
        let is_useless = |controller: &&Arc<Controller>| {
            let has_timer = controller.kato_ms.load(Ordering::Relaxed) != 0;
            let least_ns = match (controller.has_queues(), has_timer) {
                (false, _) => USELESS_AFTER_NS,
                (true, false) => idle_ns,
                (true, true) => return false,
            };
            of(controller)
                && (controller.is_stranger() || !newcomer.is_stranger)
                && silent_ns(controller) >= least_ns
        };
        let longest = |which: &&Arc<Controller>| silent_ns(which);
        let goes = self.by_id.values().filter(is_useless).max_by_key(longest).or_else(|| {
            if !matches!(full, HostFull::Controllers(_)) {
                return None;
            }
            // Those who have yet to show who they are compete among themselves only.
            let may_go = |other: &&Arc<Controller>| other.is_stranger() || !newcomer.is_stranger;
            let all = || self.by_id.values().filter(may_go);
            let (address, has) = greediest(all())?;
            let own = all().filter(|other| of_address(other)).count();
            let its = || all().filter(|other| other.address() == address);
            (has > own + 1).then(|| its().max_by_key(longest)).flatten()
        });
        let Some(goes) = goes else { return Err(full) };
        // Strangers are told of as their connections close, in a budget of their own.
        if !goes.is_stranger() {
            let what = format_args!("its association {} goes for another: {full}", goes.id);
            let host = goes.host();
            host.log.note(Topic::Coming, (Level::Warn, now_ns), &host.nqn, what);
        }
        Ok(Some(Arc::clone(goes)))
    }

    /// Gives an association all that is kept.
    fn give_kept(&self, controller: &Controller, now_ns: u64) {
        self.kept.iter().for_each(|kept| kept.give(controller, now_ns));
    }

    /// Memory for an association of somebody at this address who has yet to show who it is. If strangers have theirs,
    /// one of them goes for it, if there is any: the oldest of the address, or of all. Nobody is refused for what
    /// strangers take; associations of theirs are no more than there may be in all.
    fn memory_of_stranger(
        &self,
        evicted: Option<Arc<Controller>>,
        hosts: &Hosts,
        address: IpAddr,
    ) -> (Option<Arc<Controller>>, Charge) {
        if let Ok(charge) = hosts.pending.charge(ASSOCIATION_BYTES) {
            return (evicted, charge);
        }
        let strangers = || self.by_id.values().filter(|known| known.is_stranger());
        let goes = evicted.or_else(|| {
            let here = strangers().filter(|known| known.address() == address);
            let oldest = here.min_by_key(|known| known.serial);
            oldest.or_else(|| strangers().min_by_key(|known| known.serial)).cloned()
        });
        // Its memory comes back when its connections have heard of it.
        (goes, hosts.pending.charge_anyway(ASSOCIATION_BYTES))
    }
}

/// The address with most of these associations, and how many it has.
fn greediest<'a>(all: impl Iterator<Item = &'a Arc<Controller>>) -> Option<(IpAddr, usize)> {
    let mut counts = HashMap::new();
    for controller in all {
        *counts.entry(controller.address()).or_insert(0) += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count)
}

/// A function that every association has, each with maps of its own and lines that it has traced.
#[derive(Debug)]
struct Kept {
    function: Arc<Function>,
    maps: Vec<DeclaredMap>,
    owner: Owner,
}

impl Kept {
    /// Gives the function to an association.
    fn give(&self, controller: &Controller, now_ns: u64) {
        controller.counters.begin(self.function.id);
        controller.update(|tables| self.install(tables, controller.host(), now_ns));
    }

    /// The tables of an association of a host with the function, with maps if the host's memory has room.
    fn install(&self, tables: &Tables, host: &Host, now_ns: u64) -> Tables {
        let id = self.function.id;
        let maps = declared_maps::make(&self.maps, tables, &host.memory).unwrap_or_else(|full| {
            let name = &self.function.name;
            let what =
                format_args!("it gets the kept function {id} {name:?} without its maps: {full}");
            host.log.note(Topic::Commands, (Level::Warn, now_ns), &host.nqn, what);
            Default::default()
        });
        tables.with_function_and_maps(Arc::clone(&self.function), maps).with_trace(id)
    }
}

/// Who keeps a function.
#[derive(Debug)]
enum Owner {
    /// The configuration: nobody unloads it.
    Target,
    Host {
        /// Whose memory it takes. Its maps take that of each association's host.
        host: Arc<Host>,
        host_id: [u8; 16],
        /// The association that has loaded it.
        association: u64,
    },
}

impl Owner {
    /// Whether an association may do what only the owner may.
    fn is(&self, controller: &Controller) -> bool {
        let Owner::Host { host, host_id, association } = self else { return false };
        let is_host = *host_id != [0; 16]
            && *host_id == controller.host_id
            && host.nqn == controller.host_nqn();
        is_host || *association == controller.serial
    }

    /// Whether it is this host.
    fn is_host(&self, other: &Host) -> bool {
        matches!(self, Owner::Host { host, .. } if host.serial == other.serial)
    }
}

impl Subsystem {
    /// `cntlids` are the ids of controllers, and the one before that of the first.
    pub(crate) fn new(
        nqn: String,
        number: usize,
        namespaces: Vec<Arc<Namespace>>,
        (cntlids, last_id): (RangeInclusive<u16>, u16),
    ) -> Subsystem {
        let subsystem = Subsystem {
            nqn,
            number,
            kept_counters: CounterTable::default(),
            health: Health::default(),
            log_generation: AtomicU64::default(),
            is_served: AtomicBool::default(),
            cntlids,
            controllers: Mutex::new(Controllers { last_id, ..Controllers::default() }),
        };
        subsystem.replace_namespaces(namespaces);
        subsystem
    }

    fn controllers(&self) -> MutexGuard<'_, Controllers> {
        self.controllers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the discovery subsystem, which has no namespaces.
    pub(crate) fn is_discovery(&self) -> bool {
        self.nqn == DISCOVERY_NQN
    }

    /// Its namespaces, in the order of their ids.
    pub(crate) fn namespaces(&self) -> Vec<Arc<Namespace>> {
        self.controllers().namespaces.clone()
    }

    /// The namespace with this id.
    pub(crate) fn namespace(&self, nsid: u32) -> Option<Arc<Namespace>> {
        self.controllers().namespaces.iter().find(|namespace| namespace.nsid == nsid).cloned()
    }

    /// What its controllers announce.
    pub(crate) fn traits(&self) -> Traits {
        self.controllers().traits
    }

    /// Takes over other namespaces. Associations lose the file maps of those that are gone, and
    /// remember for their hosts which ids have changed.
    pub(crate) fn replace_namespaces(&self, mut new: Vec<Arc<Namespace>>) {
        new.sort_by_key(|namespace| namespace.nsid);
        let mut controllers = self.controllers();
        let only_in_first = |one: &[Arc<Namespace>], other: &[Arc<Namespace>]| {
            let alone = |namespace: &&Arc<Namespace>| {
                !other.iter().any(|known| Arc::ptr_eq(known, namespace))
            };
            one.iter().filter(alone).cloned().collect::<Vec<_>>()
        };
        let (gone, added) = (
            only_in_first(&controllers.namespaces, &new),
            only_in_first(&new, &controllers.namespaces),
        );
        for controller in controllers.by_id.values() {
            let sees = |namespace: &&Arc<Namespace>| controller.access.sees(namespace.nsid);
            for namespace in gone.iter().filter(sees) {
                controller.update(|tables| tables.without_namespace(namespace.nsid));
                controller.namespace_changed(namespace.nsid);
            }
            for namespace in added.iter().filter(sees) {
                let whole = namespace.whole_file();
                controller.update(|tables| tables.with_whole_namespace(whole));
                controller.namespace_changed(namespace.nsid);
            }
        }
        controllers.changes += u64::from(!gone.is_empty() || !added.is_empty());
        if !new.is_empty() {
            controllers.traits = Traits {
                has_volatile_cache: new.iter().any(|namespace| namespace.has_volatile_cache()),
                writes_zeroes: new.iter().all(|namespace| namespace.writes_zeroes()),
                deallocates: new.iter().all(|namespace| namespace.deallocates()),
            };
        }
        controllers.namespaces = new;
    }

    /// How often namespaces have come or gone.
    pub(crate) fn namespace_changes(&self) -> u64 {
        self.controllers().changes
    }

    /// The id that a controller got last.
    pub(crate) fn last_controller(&self) -> u16 {
        self.controllers().last_id
    }

    /// Those of the hosts that are connected.
    pub(crate) fn all_controllers(&self) -> Vec<Arc<Controller>> {
        self.controllers().by_id.values().cloned().collect()
    }

    /// The association with this id (0 is the host's own), if the host may look at its functions and maps.
    /// One of another host is not told from one that does not exist.
    pub(crate) fn association_for(
        &self,
        asking: &Arc<Controller>,
        id: u16,
    ) -> Option<Arc<Controller>> {
        if id == MapAddress::OWN {
            return Some(Arc::clone(asking));
        }
        self.controller(id).filter(|other| asking.may_look_at(other))
    }

    /// All such associations, by their ids.
    pub(crate) fn associations_for(&self, asking: &Controller) -> Vec<Arc<Controller>> {
        let mut all = self.all_controllers();
        all.retain(|other| asking.may_look_at(other));
        all
    }

    /// Whether hosts can connect to it.
    pub(crate) fn is_served(&self) -> bool {
        self.is_served.load(Ordering::Relaxed)
    }

    /// True if that has changed.
    pub(crate) fn set_served(&self, is_served: bool) -> bool {
        self.is_served.swap(is_served, Ordering::Relaxed) != is_served
    }

    /// The generation of the discovery log page.
    pub(crate) fn log_generation(&self) -> u64 {
        self.log_generation.load(Ordering::Acquire)
    }

    /// What the discovery log page tells has changed.
    pub(crate) fn next_log_generation(&self) {
        self.log_generation.fetch_add(1, Ordering::Release);
    }

    /// Makes a controller for a host, and gives the one that had to go for it, if one had to.
    pub(crate) fn add_controller(
        &self,
        newcomer: Newcomer,
        hosts: &Arc<Hosts>,
        (kato_ms, now_ns): (u32, u64),
    ) -> Result<(Arc<Controller>, Option<Arc<Controller>>), HostFull> {
        let mut controllers = self.controllers();
        let evicted = controllers.make_room(&newcomer, hosts, now_ns)?;
        let Newcomer { host, address, host_id, access, listener, is_stranger } = newcomer;
        // Who goes is still counted until its connections have heard of it.
        let more = if evicted.is_some() { MAX_CONTROLLERS as u32 } else { 0 };
        let (member, slot) =
            (host.association(&hosts.limits, more)?, hosts.association_of(address, more)?);
        let (evicted, memory) = match is_stranger {
            true => controllers.memory_of_stranger(evicted, hosts, address),
            false => (evicted, host.memory.charge(ASSOCIATION_BYTES)?),
        };
        if let Some(evicted) = &evicted {
            controllers.by_id.remove(&evicted.id);
            controllers.ended(evicted);
        }
        let told = controllers.told_before(&host.nqn, host_id);
        let party = Party {
            member,
            address: slot,
            memory,
            host_id,
            access: Arc::clone(&access),
            listener,
            is_stranger,
            told,
        };
        let mut id = controllers.last_id;
        loop {
            let next = id.saturating_add(1);
            id = if self.cntlids.contains(&next) { next } else { *self.cntlids.start() };
            if !controllers.by_id.contains_key(&id) {
                break;
            }
        }
        controllers.last_id = id;
        let visible = controllers.namespaces.iter().filter(|known| access.sees(known.nsid));
        let whole = visible.map(|namespace| namespace.whole_file());
        let tables = Tables::new(whole.collect());
        let controller = Arc::new(Controller::new(id, party, (kato_ms, now_ns), tables));
        if !is_stranger {
            controllers.give_kept(&controller, now_ns);
            controllers.has_come_back(&controller);
        }
        controllers.by_id.insert(id, Arc::clone(&controller));
        Ok((controller, evicted))
    }

    /// A host has shown on its admin queue that it is the one it names: its association takes its memory from now on,
    /// and has the kept functions.
    pub(crate) fn recognize(&self, controller: &Controller, now_ns: u64) -> Result<(), MemoryFull> {
        let mut controllers = self.controllers();
        if controller.is_stranger() {
            controller.recognize()?;
            controllers.give_kept(controller, now_ns);
            controllers.has_come_back(controller);
        }
        Ok(())
    }

    pub(crate) fn controller(&self, id: u16) -> Option<Arc<Controller>> {
        self.controllers().by_id.get(&id).cloned()
    }

    /// Gives every association, present and future, a function of this one's. Returns its id.
    pub(crate) fn keep_function(
        &self,
        function: Function,
        by: &Controller,
        now_ns: u64,
    ) -> Result<u32, Refusal> {
        if by.host_id == [0; 16] {
            let message = "functions are kept for hosts that have a host identifier other than 0";
            return Err(Refusal::new(Status::FUNCTION_REJECTED, message));
        }
        let mut controllers = self.controllers();
        let is_its = |kept: &&Kept| kept.owner.is_host(by.host());
        let (all, its) = (controllers.kept.len(), controllers.kept.iter().filter(is_its).count());
        // One host leaves room for others.
        if its >= MAX_KEPT_FUNCTIONS - all {
            let message = format!(
                "the subsystem keeps {all} functions, of at most {MAX_KEPT_FUNCTIONS}, and {its} of \
                 them for this host, which may be half of what others leave; unload one"
            );
            return Err(Refusal::new(Status::RESOURCE_LIMIT, message));
        }
        let host = Arc::clone(by.host());
        let owner = Owner::Host { host, host_id: by.host_id, association: by.serial };
        self.keep(&mut controllers, function, owner, now_ns)
    }

    /// Gives every association a function that the configuration names.
    pub(crate) fn keep_own_function(&self, function: Function) -> Result<u32, Refusal> {
        // Nobody is connected yet.
        self.keep(&mut self.controllers(), function, Owner::Target, 0)
    }

    fn keep(
        &self,
        controllers: &mut Controllers,
        function: Function,
        owner: Owner,
        now_ns: u64,
    ) -> Result<u32, Refusal> {
        if controllers.kept.len() >= MAX_KEPT_FUNCTIONS || is_kept(controllers.last_kept + 1) {
            let message = format!("the subsystem keeps {MAX_KEPT_FUNCTIONS} functions at most");
            return Err(Refusal::new(Status::RESOURCE_LIMIT, message));
        }
        let known = controllers.kept.iter().flat_map(|kept| kept.maps.iter().cloned());
        let known: Vec<DeclaredMap> = known.collect();
        let wanted = function.native.program().maps();
        let maps = declared_maps::declare(wanted, &known, &mut controllers.last_kept_map, KEPT)?;
        controllers.last_kept += 1;
        let id = KEPT | controllers.last_kept;
        self.kept_counters.begin(id);
        let kept = Kept { function: Arc::new(Function { id, ..function }), maps, owner };
        // Strangers get it when they have shown who they are.
        for controller in controllers.by_id.values().filter(|known| !known.is_stranger()) {
            kept.give(controller, now_ns);
        }
        controllers.kept.push(kept);
        Ok(id)
    }

    /// Whether an association may do with a kept function what only its owner may.
    pub(crate) fn owns(&self, controller: &Controller, id: u32) -> bool {
        let controllers = self.controllers();
        let mut kept = controllers.kept.iter().filter(|kept| kept.function.id == id);
        kept.any(|kept| kept.owner.is(controller))
    }

    /// The ids of the kept functions.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn kept_functions(&self) -> Vec<u32> {
        self.controllers().kept.iter().map(|kept| kept.function.id).collect()
    }

    /// What the kept functions have done.
    pub(crate) fn function_reports(&self, latency: impl Fn(u32) -> Octaves) -> Vec<FunctionReport> {
        let controllers = self.controllers();
        let report = |kept: &Kept| {
            let function = &kept.function;
            let counters = self.kept_counters.get(function.id);
            let last_fault = counters.last_fault;
            FunctionReport {
                subsystem: self.nqn.clone(),
                id: function.id,
                name: function.name.clone(),
                instructions: function.instructions,
                code_bytes: function.native.code_bytes(),
                chains: counters.chains,
                hops: counters.hops,
                read_bytes: counters.read_bytes,
                faults: counters.faults,
                aborts: counters.aborts,
                last_fault: last_fault.map(|fault| fault.explain(function.native.program())),
                latency: latency(function.id),
            }
        };
        controllers.kept.iter().map(report).collect()
    }

    /// Whether it keeps the function with this id.
    pub(crate) fn keeps(&self, id: u32) -> bool {
        self.controllers().kept.iter().any(|kept| kept.function.id == id)
    }

    /// Takes a kept function from every association.
    pub(crate) fn drop_function(&self, id: u32) {
        let mut controllers = self.controllers();
        controllers.kept.retain(|kept| kept.function.id != id);
        for controller in controllers.by_id.values() {
            controller.update(|tables| tables.without_function(id));
            controller.counters.remove(id);
        }
        self.kept_counters.remove(id);
    }

    /// One of its namespaces has changed its size.
    pub(crate) fn namespace_resized(&self, namespace: &Namespace) {
        let controllers = self.controllers();
        let sees = |of: &&Arc<Controller>| of.access.sees(namespace.nsid);
        for controller in controllers.by_id.values().filter(sees) {
            let whole = namespace.whole_file();
            controller.update(|tables| tables.with_whole_namespace(whole));
            controller.namespace_changed(namespace.nsid);
        }
    }

    /// Forgets a controller, but not another that has its id by now.
    pub(crate) fn remove_controller(&self, controller: &Arc<Controller>) {
        let mut controllers = self.controllers();
        let known = controllers.by_id.get(&controller.id);
        if known.is_some_and(|known| Arc::ptr_eq(known, controller)) {
            controllers.by_id.remove(&controller.id);
            controllers.ended(controller);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::HostLimits;
    use crate::limits::LAST_CONTROLLER_ID;
    use crate::lost_writes::LostWrites;
    use bpfof_nvme::fabrics::{ControllerConfig, Shutdown};
    use std::net::{Ipv4Addr, SocketAddr};
    use std::ops::RangeInclusive;

    /// Where one came from that had to go, and its id.
    type Gone = Option<(IpAddr, u16)>;

    struct Full {
        hosts: Arc<Hosts>,
        subsystem: Subsystem,
    }

    impl Full {
        fn new() -> Full {
            Full::with_ids(1..=LAST_CONTROLLER_ID)
        }

        fn with_ids(ids: RangeInclusive<u16>) -> Full {
            let limits = HostLimits {
                associations_per_address: MAX_CONTROLLERS as u32,
                associations_per_host: MAX_CONTROLLERS as u32,
                ..HostLimits::default()
            };
            let subsystem = Subsystem::new("nqn".to_owned(), 0, Vec::new(), (ids, 0));
            Full { hosts: Hosts::new(limits, 1 << 30), subsystem }
        }

        /// An association, and which had to go for it: of whom, and its id.
        fn connect(
            &self,
            last: u8,
            is_stranger: bool,
            now_ns: u64,
        ) -> Result<(Arc<Controller>, Gone), HostFull> {
            let address = IpAddr::from(Ipv4Addr::new(127, 0, 0, last));
            let host = self.hosts.host(Some(address), "host");
            let access = Arc::new(Access::everything());
            let at = SocketAddr::from((address, 4420));
            let listener = Arc::new(Listener::new(1, at, &at.into()));
            let host_id = [1; 16];
            let newcomer = Newcomer { host, address, host_id, access, listener, is_stranger };
            let added = self.subsystem.add_controller(newcomer, &self.hosts, (10_000, now_ns));
            added.map(|(new, gone)| (new, gone.map(|gone| (gone.address(), gone.id))))
        }
    }

    /// Associations that are all in use are taken from the address that has most, as long as that has
    /// more than the newcomer's.
    #[test]
    fn a_full_subsystem_takes_from_who_has_most() {
        let full = Full::new();
        let connect = |last, now_ns| {
            let (controller, gone) = full.connect(last, false, now_ns)?;
            controller.add_queue(1).expect("free");
            Ok(gone)
        };
        for number in 0..MAX_CONTROLLERS {
            let last = if number < MAX_CONTROLLERS / 2 { 1 } else { 2 };
            assert_eq!(connect(last, number as u64), Ok(None));
        }
        // Nobody has more than these would have.
        let busy = Err(HostFull::Controllers(MAX_CONTROLLERS));
        assert_eq!((connect(1, 5000), connect(2, 5000)), (busy, busy));
        // The one goes that was silent longest, of the one and of the other.
        let mut gone = [0; 2].map(|_| connect(3, 5000).expect("room is made").expect("one goes"));
        gone.sort_unstable();
        let [one, two] = [1, 2].map(|last| IpAddr::from(Ipv4Addr::new(127, 0, 0, last)));
        assert_eq!(gone, [(one, 1), (two, 1 + MAX_CONTROLLERS as u16 / 2)]);
    }

    /// The connection of one that had to go may end when another has its id.
    #[test]
    fn a_controller_is_not_forgotten_for_another() {
        let full = Full::with_ids(1..=1);
        let (first, _) = full.connect(1, false, 0).expect("room");
        full.subsystem.remove_controller(&first);
        let (second, _) = full.connect(1, false, 0).expect("room");
        assert_eq!(first.id, second.id);
        full.subsystem.remove_controller(&first);
        assert!(full.subsystem.controllers().by_id.contains_key(&second.id));
        full.subsystem.remove_controller(&second);
        assert!(full.subsystem.controllers().by_id.is_empty());
    }

    /// Who was cut off hears by its next association what was lost meanwhile, and nobody else does, also not who says
    /// to be the host.
    #[test]
    fn a_host_that_was_cut_off_hears_what_was_lost() {
        let full = Full::new();
        let lost = Arc::new(LostWrites::default());
        let connect = |is_stranger| full.connect(1, is_stranger, 0).expect("room").0;
        let end = |controller: &Arc<Controller>| full.subsystem.remove_controller(controller);
        let first = connect(false);
        end(&first);
        lost.note();
        let liar = connect(true);
        end(&liar);
        let stranger = connect(true);
        full.subsystem.recognize(&stranger, 0).expect("memory");
        assert!(stranger.told.must_hear(&lost) && !stranger.told.must_hear(&lost));
        // It has been told, by whatever association, and does not forget that.
        let other = connect(false);
        assert!(!other.told.must_hear(&lost));
        end(&stranger);
        let again = connect(false);
        assert!(!again.told.must_hear(&lost));
        // What one has not been told, another one that comes is told as well.
        lost.note();
        assert!(other.told.must_hear(&lost));
        let more = connect(false);
        assert!(!more.told.must_hear(&lost) && again.told.must_hear(&lost));
        // A host that shuts its associations down begins anew.
        let shutdown = Shutdown::Normal;
        for controller in [again, other, more] {
            controller.configure(ControllerConfig { shutdown, ..ControllerConfig::ENABLED });
            end(&controller);
        }
        lost.note();
        assert!(!connect(false).told.must_hear(&lost));
    }

    #[test]
    fn who_has_not_shown_who_it_is_takes_from_such_only() {
        let full = Full::new();
        let late_ns = 3 * USELESS_AFTER_NS;
        for _ in 0..MAX_CONTROLLERS - 1 {
            full.connect(1, false, 0).expect("room");
        }
        let (stranger, _) = full.connect(1, true, USELESS_AFTER_NS).expect("room");
        let gone = full.connect(2, true, late_ns).expect("the other stranger goes").1;
        assert_eq!(gone.map(|(_, id)| id), Some(stranger.id));
        let busy = HostFull::Controllers(MAX_CONTROLLERS);
        assert_eq!(
            full.connect(2, true, late_ns).err(),
            Some(busy),
            "idle ones stay for strangers"
        );
        assert!(full.connect(2, false, late_ns).expect("and go for others").1.is_some());
    }

    /// Whoever comes in the name of hosts that authenticate, again and again from several addresses, keeps out
    /// nobody who comes from elsewhere.
    #[test]
    fn strangers_share_what_they_have_by_address() {
        let full = Full::new();
        for number in 0..MAX_CONTROLLERS {
            full.connect(1 + (number % 8) as u8, true, 0).expect("room");
        }
        let ninth = full.connect(9, true, USELESS_AFTER_NS / 2);
        assert!(ninth.expect("room is made").1.is_some());
        let busy = Some(HostFull::Controllers(MAX_CONTROLLERS));
        assert_eq!(full.connect(1, true, USELESS_AFTER_NS / 2).err(), busy);
    }
}
