//! What all reactors share: the namespaces, the subsystems they belong to, where these are reached.

use crate::namespace::Namespace;
use crate::subsystem::Subsystem;
use bpfof_chain::Limits;
use bpfof_nvme::fabrics::DISCOVERY_NQN;
use std::net::SocketAddr;
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) limits: Limits,
    /// Of all subsystems, each as its own.
    pub(crate) namespaces: Vec<Namespace>,
    /// With namespaces, in the order of the configuration.
    subsystems: Vec<Arc<Subsystem>>,
    discovery: Arc<Subsystem>,
    /// Where subsystems with namespaces are reached.
    pub(crate) listeners: Vec<SocketAddr>,
}

impl Target {
    /// `namespaces` with the names of their subsystems; a subsystem's come in the order of their
    /// ids, from 1 on.
    pub(crate) fn new(
        limits: Limits,
        namespaces: Vec<(String, Namespace)>,
        listeners: Vec<SocketAddr>,
    ) -> Target {
        let mut parts: Vec<(String, Vec<usize>)> = Vec::new();
        for (index, (nqn, _)) in namespaces.iter().enumerate() {
            match parts.iter_mut().find(|(name, _)| name == nqn) {
                Some((_, members)) => members.push(index),
                None => parts.push((nqn.clone(), vec![index])),
            }
        }
        let namespaces: Vec<Namespace> = namespaces.into_iter().map(|(_, n)| n).collect();
        let subsystems = parts.into_iter().map(|(nqn, members)| {
            let whole = members.iter().map(|index| namespaces[*index].whole_file()).collect();
            Arc::new(Subsystem::new(nqn, members, whole))
        });
        Target {
            limits,
            subsystems: subsystems.collect(),
            discovery: Arc::new(Subsystem::new(DISCOVERY_NQN.to_owned(), Vec::new(), Vec::new())),
            namespaces,
            listeners,
        }
    }

    /// The subsystem of this name; the discovery subsystem has a well-known one.
    pub(crate) fn subsystem(&self, nqn: &str) -> Option<&Arc<Subsystem>> {
        self.subsystems.iter().chain([&self.discovery]).find(|subsystem| subsystem.nqn == nqn)
    }

    /// Those with namespaces.
    pub(crate) fn subsystems(&self) -> &[Arc<Subsystem>] {
        &self.subsystems
    }

    /// Looks at the sizes of all files again; true if one has changed.
    pub(crate) fn remeasure(&self) -> bool {
        let mut changed = false;
        for subsystem in &self.subsystems {
            for namespace in self.namespaces_of(subsystem) {
                let what = format!("{} namespace {}", subsystem.nqn, namespace.nsid);
                match namespace.remeasure() {
                    Ok(false) => {}
                    Ok(true) => {
                        log::info!("{what} has {} blocks now", namespace.blocks());
                        subsystem.namespace_changed(namespace.nsid, &namespace.whole_file());
                        changed = true;
                    }
                    Err(error) => log::error!("{what} cannot be measured: {error}"),
                }
            }
        }
        changed
    }

    /// The namespaces of a subsystem, in the order of their ids.
    pub(crate) fn namespaces_of<'a>(
        &'a self,
        subsystem: &'a Subsystem,
    ) -> impl Iterator<Item = &'a Namespace> {
        subsystem.members().iter().map(|index| &self.namespaces[*index])
    }
}

impl Drop for Target {
    /// Controllers and subsystems know each other; those that are left at the end go with it.
    fn drop(&mut self) {
        for subsystem in self.subsystems.iter().chain([&self.discovery]) {
            subsystem.remove_all_controllers();
        }
    }
}
