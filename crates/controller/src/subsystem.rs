//! A subsystem: its namespaces and the controllers of the hosts connected to it.

use crate::access::Access;
use crate::command_log::Topic;
use crate::controller::{Controller, CounterTable, Party};
use crate::declared_maps::{self, DeclaredMap};
use crate::health::Health;
use crate::hosts::{Host, HostFull, Hosts, Kind};
use crate::kept::{KEPT, is_kept};
use crate::limits::{ASSOCIATION_BYTES, MAX_CONTROLLERS, MAX_KEPT_FUNCTIONS};
use crate::lost_writes::{CutOff, HostName, Told};
use crate::metrics::Octaves;
use crate::namespace::{Namespace, Traits};
use crate::refusal::Refusal;
use crate::report::FunctionReport;
use crate::room::{self, Goes, Newcomer};
use bpfof_chain::{Counted, Function, FunctionMaps, Tables, Trace};
use bpfof_function::memory::{Charge, MemoryFull};
use bpfof_nvme::Status;
use bpfof_nvme::fabrics::DISCOVERY_NQN;
use bpfof_nvme::vendor_specific::MapAddress;
use log::Level;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shared by all reactors.
#[derive(Debug)]
pub(crate) struct Subsystem {
    pub(crate) nqn: String,
    /// Unique among all subsystems of the target, including later ones.
    pub(crate) number: usize,
    /// Counters of the kept functions.
    pub(crate) kept_counters: CounterTable,
    pub(crate) health: Health,
    /// The generation of the discovery log page; used by the discovery subsystem.
    log_generation: AtomicU64,
    /// The subsystem is in the discovery log, and hosts can connect to it.
    is_served: AtomicBool,
    /// Ids of controllers.
    cntlids: RangeInclusive<u16>,
    controllers: Mutex<Controllers>,
}

#[derive(Debug, Default)]
struct Controllers {
    /// In ascending order of their ids.
    namespaces: Vec<Arc<Namespace>>,
    /// The common traits of all namespaces; if there are none, of the last ones.
    traits: Traits,
    by_id: BTreeMap<u16, Arc<Controller>>,
    last_id: u16,
    cut_off: CutOff,
    /// Functions that every association has.
    kept: Vec<Kept>,
    last_kept: u32,
    last_kept_map: u32,
}

impl Controllers {
    /// Notes how an association has ended.
    fn ended(&mut self, controller: &Controller, now_ns: u64) {
        if controller.is_stranger() || controller.host_id == [0; 16] {
            return;
        }
        let host = controller.name();
        match controller.is_shut_down() {
            true => self.cut_off.has_shut_down(host),
            false => self.cut_off.add(host, controller.certainly_told(now_ns)),
        }
    }

    /// The lost writes that a host has been told of by an association that was cut off and that it may now resume, or
    /// else by a live one. Without either it has no writes that can have been lost, unless it has `moved` here from
    /// another process.
    fn told_before(&self, host: &HostName, now_ns: u64, moved: bool) -> Told {
        let new = || if moved { Told::nothing() } else { Told::from_now() };
        if host.id == [0; 16] {
            return new();
        }
        let is_live = |of: &Controller| {
            !of.is_stranger()
                && !of.is_shut_down()
                && of.host_id == host.id
                && of.name().may_be(host)
        };
        let live = |is_same: bool| {
            let mut all = self.by_id.values().filter(|other| is_live(other));
            let found = all.find(|other| !is_same || other.name() == *host);
            found.map(|other| other.certainly_told(now_ns))
        };
        let own = self.cut_off.told(host).or_else(|| live(true));
        let found = own.or_else(|| self.cut_off.told_elsewhere(host)).or_else(|| live(false));
        found.unwrap_or_else(new)
    }

    /// The traits that are announced to a host; none if no namespace exists for it.
    fn traits_for(&self, access: &Access) -> Option<Traits> {
        Traits::of(self.namespaces.iter().filter(|namespace| access.sees(namespace.nsid)))
    }

    /// Removes an association to make room for another.
    fn evict(&mut self, (goes, full): &Goes, now_ns: u64) {
        self.by_id.remove(&goes.id);
        self.ended(goes, now_ns);
        goes.note_eviction(full, now_ns);
    }

    /// Gives an association all kept functions.
    fn give_kept(&self, controller: &Controller, now_ns: u64) {
        self.kept.iter().for_each(|kept| kept.give(controller, now_ns));
    }

    /// Charges memory for an association of a stranger at this address. If the strangers' memory is used up, one of
    /// their associations is removed, if there is any: the oldest of the address, or of all. No newcomer is refused
    /// because of strangers' memory; the limit on all associations bounds it.
    fn memory_of_stranger(
        &self,
        goes: Option<Goes>,
        hosts: &Hosts,
        address: IpAddr,
    ) -> (Option<Goes>, Charge) {
        let full = match hosts.pending.charge(ASSOCIATION_BYTES) {
            Ok(charge) => return (goes, charge),
            Err(full) => HostFull::Memory(full),
        };
        let strangers = || self.by_id.values().filter(|known| known.is_stranger());
        let goes = goes.or_else(|| {
            let here = strangers().filter(|known| known.address() == address);
            let oldest = here.min_by_key(|known| known.serial);
            let oldest = oldest.or_else(|| strangers().min_by_key(|known| known.serial));
            oldest.map(|oldest| (Arc::clone(oldest), full))
        });
        // The memory of the removed association comes back when its connections have closed.
        (goes, hosts.pending.charge_anyway(ASSOCIATION_BYTES))
    }
}

/// A function that every association has, each with its own maps and trace lines.
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

    /// The tables of an association with the function added, and with its maps if the host's memory has room.
    fn install(&self, tables: &Tables, host: &Host, now_ns: u64) -> Tables {
        let id = self.function.id;
        let maps = self.make_maps(tables, host).unwrap_or_else(|why| {
            let name = &self.function.name;
            let what =
                format_args!("it gets the kept function {id} {name:?} without its maps: {why}");
            host.log.note(Topic::Commands, (Level::Warn, now_ns), &host.nqn, what);
            Default::default()
        });
        let memory = host.memory.charge_anyway(Trace::MEMORY_BYTES);
        let tables = tables.with_function_and_maps(Arc::clone(&self.function), maps);
        tables.with_trace(id, Some(memory))
    }

    /// Its maps for an association of this host, or why there is no memory for them. Maps that a host is given leave
    /// memory for its own requests, whatever the number of its associations.
    fn make_maps(&self, tables: &Tables, host: &Host) -> Result<FunctionMaps, String> {
        let half = host.memory.memory().little_bytes() / 2;
        let sum = self.owner.is_another_host(host).then_some(&host.given_map_bytes);
        if let Some(sum) = sum {
            let new = self.maps.iter().filter(|map| tables.function_map(map.id).is_none());
            let wanted: u64 = new.map(|map| map.definition.memory_bytes()).sum();
            let all = sum.load(Ordering::Relaxed) + wanted;
            if wanted > 0 && all > half as u64 {
                return Err(format!(
                    "with those of its other associations, maps that others' functions declare would take {all} bytes, and \
                     {half} are the limit"
                ));
            }
        }
        let made = declared_maps::make(&self.maps, tables, (&host.memory, half), sum);
        made.map_err(|full| full.to_string())
    }
}

/// The owner of a kept function.
#[derive(Debug)]
enum Owner {
    /// The configuration: no host can unload it.
    Target,
    Host {
        /// The host that is charged for its memory. Its maps are charged to each association's host.
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

    fn is_another_host(&self, than: &Host) -> bool {
        matches!(self, Owner::Host { .. }) && !self.is_host(than)
    }

    /// Whether the owner is this host.
    fn is_host(&self, other: &Host) -> bool {
        matches!(self, Owner::Host { host, .. } if host.serial == other.serial)
    }
}

impl Subsystem {
    /// `cntlids` are the ids of controllers, and the id before the first one to be given.
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

    /// The traits that its controllers announce to a host now; none if no namespace exists for it.
    pub(crate) fn traits_for(&self, access: &Access) -> Option<Traits> {
        self.controllers().traits_for(access)
    }

    /// Replaces the namespaces. Associations lose the file maps of namespaces that are gone, and remember for their
    /// hosts which ids have changed. Their tables change without the lock, because that takes milliseconds for an
    /// association with many file maps, and reactors wait for the lock; associations that come later see the new
    /// namespaces.
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
        if let Some(traits) = Traits::of(new.iter()) {
            controllers.traits = traits;
        }
        controllers.namespaces = new;
        let known: Vec<_> = controllers.by_id.values().cloned().collect();
        drop(controllers);
        for controller in known {
            let sees = |namespace: &&Arc<Namespace>| controller.access.sees(namespace.nsid);
            if gone.iter().chain(&added).any(|namespace| sees(&namespace)) {
                controller.namespaces_changed();
            }
            for namespace in gone.iter().filter(sees) {
                controller.update_slowly(|tables| tables.without_namespace(namespace.nsid));
                controller.namespace_changed(namespace.nsid);
            }
            for namespace in added.iter().filter(sees) {
                let whole = namespace.whole_file();
                controller.update_slowly(|tables| tables.with_whole_namespace(whole.clone()));
                controller.namespace_changed(namespace.nsid);
            }
        }
    }

    /// The id that a controller got last.
    pub(crate) fn last_controller(&self) -> u16 {
        self.controllers().last_id
    }

    /// The controllers of all connected hosts.
    pub(crate) fn all_controllers(&self) -> Vec<Arc<Controller>> {
        self.controllers().by_id.values().cloned().collect()
    }

    /// The association with this id (0 is the host's own), if the host may look at its functions and maps. An
    /// association of another host looks like one that does not exist.
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

    /// Sets whether hosts can connect to it; true if that has changed.
    pub(crate) fn set_served(&self, is_served: bool) -> bool {
        self.is_served.swap(is_served, Ordering::Relaxed) != is_served
    }

    /// The generation of the discovery log page.
    pub(crate) fn log_generation(&self) -> u64 {
        self.log_generation.load(Ordering::Acquire)
    }

    /// Increments that generation, because the contents of the page have changed.
    pub(crate) fn next_log_generation(&self) {
        self.log_generation.fetch_add(1, Ordering::Release);
    }

    /// The least useful association of those that a limit counts with the newcomer's, and for how long it has been
    /// silent.
    pub(crate) fn least_useful(
        &self,
        newcomer: &Newcomer,
        full: &HostFull,
        (hosts, now_ns): (&Hosts, u64),
    ) -> Option<(u64, Arc<Controller>)> {
        room::least_useful(&self.controllers().by_id, newcomer, full, (&hosts.limits, now_ns))
    }

    /// Makes a controller for a host. Also returns the controller that was removed to make room, if any. `elsewhere` is
    /// one that was removed for it in another subsystem.
    pub(crate) fn add_controller(
        &self,
        newcomer: &Newcomer,
        hosts: &Arc<Hosts>,
        (kato_ms, now_ns): (u32, u64),
        elsewhere: Option<&Arc<Controller>>,
    ) -> Result<(Arc<Controller>, Option<Arc<Controller>>), HostFull> {
        let mut controllers = self.controllers();
        let goes = room::who_goes(&controllers.by_id, newcomer, &hosts.limits, now_ns)?;
        let Newcomer { host, address, host_id, access, listener, is_stranger, .. } = newcomer;
        // A removed association still counts until its connections have closed.
        let more = |full: HostFull| {
            let mut all = goes.iter().map(|(goes, _)| goes).chain(elsewhere);
            let is_one_of_them = all.any(|goes| newcomer.counts_with(goes, &full));
            if is_one_of_them { MAX_CONTROLLERS as u32 } else { 0 }
        };
        let kind = if self.is_discovery() { Kind::Discovery } else { Kind::Association };
        let member = host.association(&hosts.limits, kind, more(HostFull::Associations(0)))?;
        let kind = if newcomer.is_identified() { Kind::Identified } else { kind };
        let slot = hosts.association_of(*address, kind, more(HostFull::Address(0)))?;
        let (goes, memory) = match is_stranger {
            true => controllers.memory_of_stranger(goes, hosts, *address),
            false => (goes, host.memory.charge(ASSOCIATION_BYTES)?),
        };
        if let Some(goes) = &goes {
            controllers.evict(goes, now_ns);
        }
        let host_name = newcomer.name();
        let moved = now_ns < hosts.moved_until_ns.load(Ordering::Relaxed);
        let party = Party {
            member,
            host_nqn: newcomer.host_nqn.clone(),
            address: slot,
            memory,
            host_id: *host_id,
            access: Arc::clone(access),
            listener: Arc::clone(listener),
            is_stranger: *is_stranger,
            told: controllers.told_before(&host_name, now_ns, moved),
            traits: match access.sees_all() {
                true => controllers.traits,
                false => controllers.traits_for(access).unwrap_or(Traits::CAREFUL),
            },
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
        if !*is_stranger {
            controllers.give_kept(&controller, now_ns);
            controllers.cut_off.has_come_back(&host_name);
        }
        controllers.by_id.insert(id, Arc::clone(&controller));
        Ok((controller, goes.map(|(goes, _)| goes)))
    }

    /// A host has proved its identity on its admin queue: its association is charged to it from now on and gets the
    /// kept functions. An association that was removed meanwhile, to make room for another, stays a stranger's until its
    /// connections close: its host has not come back.
    pub(crate) fn recognize(&self, controller: &Controller, now_ns: u64) -> Result<(), MemoryFull> {
        let mut controllers = self.controllers();
        let known = controllers.by_id.get(&controller.id);
        let is_there = known.is_some_and(|known| known.serial == controller.serial);
        if is_there && controller.is_stranger() {
            controller.recognize()?;
            controllers.give_kept(controller, now_ns);
            controllers.cut_off.has_come_back(&controller.name());
        }
        Ok(())
    }

    pub(crate) fn controller(&self, id: u16) -> Option<Arc<Controller>> {
        self.controllers().by_id.get(&id).cloned()
    }

    /// Gives every association, present and future, a function of the association `by`. Returns the function's id.
    pub(crate) fn keep_function(
        &self,
        function: Function,
        by: &Controller,
        now_ns: u64,
    ) -> Result<u32, Refusal> {
        if by.host_id == [0; 16] {
            let message = "only hosts with a host identifier other than 0 can keep functions";
            return Err(Refusal::new(Status::FUNCTION_REJECTED, message));
        }
        let mut controllers = self.controllers();
        let is_its = |kept: &&Kept| kept.owner.is_host(by.host());
        let (all, its) = (controllers.kept.len(), controllers.kept.iter().filter(is_its).count());
        // Each host leaves room for others.
        if its >= MAX_KEPT_FUNCTIONS - all {
            let message = format!(
                "the subsystem keeps {all} functions of at most {MAX_KEPT_FUNCTIONS}, {its} of \
                 them for this host; a host may have half of the places that other hosts leave: \
                 unload one"
            );
            return Err(Refusal::new(Status::RESOURCE_LIMIT, message));
        }
        let host = Arc::clone(by.host());
        let owner = Owner::Host { host, host_id: by.host_id, association: by.serial };
        self.keep(&mut controllers, function, owner, now_ns)
    }

    /// Gives every association a function that the configuration names.
    pub(crate) fn keep_own_function(&self, function: Function) -> Result<u32, Refusal> {
        // No host is connected yet.
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
        // Strangers get it when they have proved their identities.
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

    /// Reports on the kept functions.
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

    /// How many associations it has: keeping or dropping a function changes each of them.
    pub(crate) fn associations(&self) -> usize {
        self.controllers().by_id.len()
    }

    /// How many functions each association is given.
    pub(crate) fn kept_count(&self) -> usize {
        self.controllers().kept.len()
    }

    /// Takes a kept function from every association.
    pub(crate) fn drop_function(&self, id: u32) {
        let mut controllers = self.controllers();
        controllers.kept.retain(|kept| kept.function.id != id);
        for controller in controllers.by_id.values() {
            let before = controller.tables();
            controller.update(|tables| tables.without_function(id));
            let after = controller.tables();
            let gone =
                before.function_maps().iter().filter(|map| after.function_map(map.id).is_none());
            gone.filter_map(|map| map.counted.as_ref()).for_each(Counted::release);
            controller.counters.remove(id);
        }
        self.kept_counters.remove(id);
    }

    /// Tells the associations that a namespace has changed its size.
    pub(crate) fn namespace_resized(&self, namespace: &Namespace) {
        let sees = |of: &Arc<Controller>| of.access.sees(namespace.nsid);
        for controller in self.all_controllers().into_iter().filter(sees) {
            let whole = namespace.whole_file();
            controller.update_slowly(|tables| tables.with_whole_namespace(whole.clone()));
            controller.namespace_changed(namespace.nsid);
        }
    }

    /// Moves a namespace to an ANA group; true if it was in another. The associations learn of it by the ANA log.
    pub(crate) fn regroup(&self, namespace: &Namespace, group: u32) -> bool {
        let controllers = self.controllers();
        let has_changed = namespace.regroup(group);
        if has_changed {
            let sees = |of: &&Arc<Controller>| of.access.sees(namespace.nsid);
            controllers.by_id.values().filter(sees).for_each(|of| of.group_changed());
        }
        has_changed
    }

    /// Removes a controller, but not another one that has its id by now.
    pub(crate) fn remove_controller(&self, controller: &Arc<Controller>, now_ns: u64) {
        let mut controllers = self.controllers();
        let known = controllers.by_id.get(&controller.id);
        if known.is_some_and(|known| Arc::ptr_eq(known, controller)) {
            controllers.by_id.remove(&controller.id);
            controllers.ended(controller, now_ns);
        }
    }
}

#[cfg(test)]
mod tests;
