//! A new configuration for a running target: which namespaces stay, come and go.
//!
//! First a [`Plan`] opens new namespaces without effect on those that are served; so a configuration that cannot be
//! served changes nothing. Carrying out the plan cannot fail. Its order keeps reactors, file maps and hosts consistent
//! without a lock in the path of a command: removed namespaces are dropped first by all reactors, then by the file
//! maps; then new ones are added in the same order. In between, no command and no map refers to a namespace id whose
//! storage changes.

use crate::config::{NamespaceConfig, NamespaceSource, TargetConfig};
use crate::controller::Controller;
use crate::error::ServerError;
use crate::namespace::{Namespace, NamespaceError, Traits};
use crate::namespace_table::Served;
use crate::registry::Registry;
use crate::subsystem::Subsystem;
use bpfof_device::Lock;
use std::path::PathBuf;
use std::sync::Arc;

/// A namespace with the name of its subsystem.
type Named = (String, Arc<Namespace>);

/// See the module.
#[derive(Debug)]
pub(crate) struct Plan {
    namespaces: Vec<Named>,
    /// For each namespace that was served before: its new size in blocks, and its new ANA group.
    settled: Vec<(Arc<Namespace>, u64, u32)>,
}

impl Plan {
    /// `running` is the current configuration.
    pub(crate) fn new(
        registry: &Registry,
        config: &TargetConfig,
        running: &TargetConfig,
    ) -> Result<Plan, ServerError> {
        let placed = config.placed()?;
        let mut known = served_with_names(registry);
        let mut found: Vec<Option<Named>> = Vec::new();
        // A namespace that keeps its id takes precedence over one that moves to it.
        for (nqn, nsid, config) in &placed {
            let stays = |(of, namespace): &Named| {
                of == nqn && namespace.nsid == *nsid && namespace.is(config)
            };
            found.push(known.iter().position(stays).map(|at| known.remove(at)));
        }
        for ((_, _, config), found) in placed.iter().zip(&mut found) {
            if found.is_none() {
                // Memory never moves: the other id may belong to another tenant.
                let moves =
                    |(_, namespace): &Named| !namespace.is_volatile() && namespace.is(config);
                let at = known.iter().position(moves);
                *found = at.map(|at| known.remove(at));
            }
        }
        for ((nqn, nsid, config), found) in placed.iter().zip(&found) {
            if found.is_none() {
                check_new((nqn, *nsid, config), &known)?;
            }
        }
        let mut plan = Plan { namespaces: Vec::new(), settled: Vec::new() };
        for ((nqn, nsid, config), found) in placed.into_iter().zip(found) {
            let is_as_before = running.namespaces.iter().any(|of| of.source == config.source);
            let namespace = plan.take_over((nqn, nsid, config), found, is_as_before)?;
            plan.namespaces.push((nqn.to_owned(), namespace));
        }
        Namespace::check_distinct(plan.namespaces.iter().map(|(_, namespace)| &**namespace))?;
        Ok(plan)
    }

    fn take_over(
        &mut self,
        (nqn, nsid, config): (&str, u32, &NamespaceConfig),
        found: Option<Named>,
        is_as_before: bool,
    ) -> Result<Arc<Namespace>, NamespaceError> {
        let Some((old_nqn, old)) = found else {
            return Ok(Arc::new(Namespace::open(nsid, config, nqn)?.renewed(nqn)));
        };
        let blocks = match old.settle_size(&config.source) {
            // A disk that is gone keeps its namespace and does not prevent other changes.
            Err(error) if is_as_before => {
                log::warn!("{error}; the namespace keeps its size of {} blocks", old.blocks());
                old.blocks()
            }
            settled => settled?,
        };
        let is_same = (old_nqn.as_str(), old.nsid) == (nqn, nsid) && old.is_known_as(config);
        if !is_same {
            old.check_lock(config)?;
        }
        let namespace = if is_same { old } else { Arc::new(old.moved(nsid, nqn, config)) };
        self.settled.push((Arc::clone(&namespace), blocks, config.ana_group));
        Ok(namespace)
    }

    /// Bytes of the process's memory that its namespaces take.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.namespaces.iter().map(|(_, namespace)| namespace.memory_bytes()).sum()
    }

    /// Carries out the plan. `serve` gives namespaces to all reactors and returns when they serve only these.
    /// `change_rules` is called while only those are served that stay as they are: under the old rules no host sees a
    /// namespace that is new, and under the new rules none that is gone, although it may have the same id. Returns the
    /// controllers whose hosts have to connect again, because the announced features have changed.
    pub(crate) fn carry_out(
        self,
        registry: &Registry,
        serve: impl Fn(Vec<Served>),
        change_rules: impl FnOnce(),
    ) -> Vec<Arc<Controller>> {
        let before = served_with_names(registry);
        let next = self.namespaces.iter().map(|(nqn, namespace)| {
            let number = registry.number(nqn);
            (number, Arc::clone(namespace))
        });
        let next: Vec<Served> = next.collect();
        let mut kept = registry.served();
        kept.retain(|(_, old)| next.iter().any(|(_, new)| Arc::ptr_eq(old, new)));
        if kept.len() < before.len() {
            serve(kept.clone());
            registry.retain(&kept);
        }
        change_rules();
        serve(next);
        registry.replace(&self.namespaces);
        for (namespace, blocks, group) in &self.settled {
            // With a UUID others may open the files, without one they may not.
            if !kept.iter().any(|(_, old)| Arc::ptr_eq(old, namespace))
                && let Err(error) = namespace.lock_files(false)
            {
                log::error!("cannot lock {}: {error}; give it a uuid=", namespace.description);
            }
            let has_changed = namespace.resize(*blocks);
            let named = self.namespaces.iter().find(|(_, named)| Arc::ptr_eq(named, namespace));
            let subsystem = named.and_then(|(nqn, _)| registry.subsystem(nqn));
            let Some(subsystem) = subsystem else { continue };
            let (nqn, nsid) = (&subsystem.nqn, namespace.nsid);
            if has_changed {
                subsystem.namespace_resized(namespace);
                log::info!("{nqn} namespace {nsid} has {blocks} blocks now");
            }
            if subsystem.regroup(namespace, *group) {
                log::info!("{nqn} namespace {nsid} is in ANA group {group} now");
            }
        }
        log_changes(&before, &self.namespaces);
        registry.subsystems().iter().flat_map(|subsystem| to_reconnect(subsystem)).collect()
    }
}

fn served_with_names(registry: &Registry) -> Vec<Named> {
    let subsystems = registry.subsystems().into_iter();
    let named = subsystems.map(|subsystem| (subsystem.namespaces(), subsystem));
    let named = named.flat_map(|(namespaces, subsystem)| {
        namespaces.into_iter().map(move |namespace| (subsystem.nqn.clone(), namespace))
    });
    named.collect()
}

/// Refuses a new namespace that conflicts with one of `known`, which are removed at the same time.
fn check_new(
    (nqn, nsid, config): (&str, u32, &NamespaceConfig),
    known: &[Named],
) -> Result<(), NamespaceError> {
    let is_memory = |source: &NamespaceSource| matches!(source, NamespaceSource::Memory { .. });
    let replaced = known.iter().find(|(of, old)| (of.as_str(), old.nsid) == (nqn, nsid));
    if replaced.is_some_and(|(_, old)| is_memory(&old.source)) && is_memory(&config.source) {
        return Err(NamespaceError::OtherMemory { nsid });
    }
    let files: Vec<&PathBuf> = known.iter().flat_map(|(_, old)| old.source.paths()).collect();
    match config.source.paths().iter().find(|path| files.contains(path)) {
        Some(path) => Err(NamespaceError::StillServed { nsid, path: path.clone() }),
        None => Ok(()),
    }
}

/// The controllers that have announced other traits to their hosts than the current ones.
fn to_reconnect(subsystem: &Subsystem) -> Vec<Arc<Controller>> {
    let mut controllers = subsystem.all_controllers();
    controllers.retain(|known| {
        let traits = subsystem.traits_for(&known.access);
        traits.is_some_and(|traits| traits != known.traits && known.traits != Traits::CAREFUL)
    });
    if !controllers.is_empty() {
        log::warn!(
            "{}: {} hosts are disconnected and must connect again, because the subsystem's write \
             cache or its optional commands have changed",
            subsystem.nqn,
            controllers.len()
        );
    }
    controllers
}

fn log_changes(before: &[Named], now: &[Named]) {
    let alone = |one: &[Named], other: &[Named]| {
        let is_in = |of: &Arc<Namespace>| other.iter().any(|(_, known)| Arc::ptr_eq(of, known));
        one.iter().filter(|(_, namespace)| !is_in(namespace)).cloned().collect::<Vec<_>>()
    };
    for (nqn, namespace) in alone(before, now) {
        log::info!("{nqn} namespace {}: removed: {}", namespace.nsid, namespace.description);
    }
    for (nqn, namespace) in alone(now, before) {
        announce(&nqn, &namespace);
    }
}

/// Logs the properties of a namespace.
pub(crate) fn announce(nqn: &str, namespace: &Namespace) {
    let (nsid, blocks, bytes) = (namespace.nsid, namespace.blocks(), namespace.block_bytes());
    log::info!(
        "{nqn} namespace {nsid}: {blocks} blocks of {bytes} bytes, {}",
        namespace.description
    );
    if let Some(why) = namespace.why_not_shared() {
        log::warn!(
            "{nqn} namespace {nsid} has a uuid=, which is meant for namespaces that several targets serve: {why}"
        );
    }
    if namespace.is_known_by_kernel_name() {
        log::warn!(
            "{nqn} namespace {nsid}: the disk reports no identity, so hosts know it by its kernel \
             name, which may be another disk's after the next boot: give it a uuid="
        );
    }
    if !namespace.writes_zeroes() {
        log::warn!(
            "{nqn} namespace {nsid}: this file system cannot punch holes, so that the subsystem \
             has neither Dataset Management nor Write Zeroes"
        );
    } else if !namespace.deallocates() {
        log::info!(
            "{nqn} namespace {nsid}: the disk does not free blocks when it writes zeroes, so that \
             the subsystem has no Dataset Management"
        );
    }
}

/// The namespaces of a configuration, opened, with the names of their subsystems.
///
/// With `beside_another`, another process has the files open as well, for a while.
pub(crate) fn open_all(
    config: &TargetConfig,
    beside_another: bool,
) -> Result<Vec<(String, Namespace)>, ServerError> {
    let open = |(nqn, nsid, config): (&str, u32, &NamespaceConfig)| {
        let namespace = match beside_another {
            true => Namespace::open_as(nsid, config, nqn, Lock::Shared)?,
            false => Namespace::open(nsid, config, nqn)?,
        };
        announce(nqn, &namespace);
        Ok((nqn.to_owned(), namespace))
    };
    let all: Vec<(String, Namespace)> =
        config.placed()?.into_iter().map(open).collect::<Result<_, NamespaceError>>()?;
    Namespace::check_distinct(all.iter().map(|(_, namespace)| namespace))?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{NQN, Rig};
    use std::cell::RefCell;

    /// While rules change, no id stands for a namespace that is gone, nor for one that is new.
    #[test]
    fn rules_change_while_only_namespaces_are_served_that_stay() {
        let files = [(); 4].map(|()| tempfile::NamedTempFile::new().expect("a file"));
        files.iter().for_each(|file| file.as_file().set_len(1 << 20).expect("room"));
        let paths = files.each_ref().map(|file| file.path());
        let config = |places: &[usize]| {
            let namespace = |place: &usize| {
                let path = paths[*place].to_owned();
                NamespaceConfig::new(NamespaceSource::File { path, size_bytes: None }, 512)
            };
            let namespaces = places.iter().map(namespace).collect();
            TargetConfig { namespaces, nqn: NQN.to_owned(), ..TargetConfig::default() }
        };
        let rig = Rig::over_files(&paths[..3]);
        let registry = &rig.core.executor.registry;
        let named = |served: &[Served]| -> Vec<_> {
            let what = |(_, of): &Served| (of.nsid, of.source.paths()[0].clone());
            served.iter().map(what).collect()
        };
        // The first stays, the second goes, the third takes its id, and a new one follows.
        let plan = Plan::new(registry, &config(&[0, 2, 3]), &config(&[0, 1, 2]));
        let steps = RefCell::new(Vec::new());
        let serve = |served: Vec<Served>| steps.borrow_mut().push(named(&served));
        plan.expect("it can be served").carry_out(registry, serve, || {
            steps.borrow_mut().push(named(&registry.served()));
        });
        let at = |nsid: u32, place: usize| (nsid, paths[place].to_owned());
        let (kept, all) = (vec![at(1, 0)], vec![at(1, 0), at(2, 2), at(3, 3)]);
        assert_eq!(steps.into_inner(), [kept.clone(), kept, all.clone()]);
        assert_eq!(named(&registry.served()), all);
    }
}
