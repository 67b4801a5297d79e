//! Chooses the association that is removed for a new one when there are too many.

use crate::access::Access;
use crate::controller::Controller;
use crate::hosts::{Host, HostFull, HostLimits};
use crate::limits::{MAX_CONTROLLERS, USELESS_AFTER_NS};
use crate::listener::Listener;
use crate::lost_writes::HostName;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A host that asks for a new association.
#[derive(Debug)]
pub(crate) struct Newcomer {
    pub(crate) host: Arc<Host>,
    /// The name that it has given.
    pub(crate) host_nqn: String,
    pub(crate) address: IpAddr,
    pub(crate) host_id: [u8; 16],
    pub(crate) access: Arc<Access>,
    /// The listener that it came to.
    pub(crate) listener: Arc<Listener>,
    /// It has yet to prove its identity.
    pub(crate) is_stranger: bool,
}

impl Newcomer {
    /// The identity that it claims, as far as that matters for lost writes.
    pub(crate) fn name(&self) -> HostName {
        HostName::new(&self.access, &self.host, (&self.host_nqn, self.host_id))
    }

    /// Whether this limit counts an association together with the newcomer's.
    pub(crate) fn counts_with(&self, other: &Controller, full: &HostFull) -> bool {
        match full {
            HostFull::Associations(_) => other.host().serial == self.host.serial,
            HostFull::Address(_) => {
                other.address() == self.address
                    && !self.is_identified()
                    && other.host().address().is_some()
            }
            _ => true,
        }
    }

    /// Whether TLS has proved its name: its address does not matter then.
    pub(crate) fn is_identified(&self) -> bool {
        self.host.address().is_none()
    }

    /// Whether an association may be removed for it: not that of a host that has proved its identity for one that has
    /// not.
    fn may_replace(&self, other: &Controller) -> bool {
        let is_proved = |host: &Host, access: &Access, is_stranger: bool| {
            !is_stranger && (host.address().is_none() || access.proves_identity())
        };
        is_proved(&self.host, &self.access, self.is_stranger)
            || !is_proved(other.host(), &other.access, other.is_stranger())
    }
}

/// For whom an association or a connection counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CountsFor {
    /// A host whose name TLS has proved, by its serial number.
    Host(u64),
    /// All others at an address, because host names are free.
    Address(IpAddr),
}

impl CountsFor {
    pub(crate) fn of(host: &Host, address: IpAddr) -> CountsFor {
        match host.address() {
            None => CountsFor::Host(host.serial),
            Some(_) => CountsFor::Address(address),
        }
    }
}

/// All associations of a subsystem.
pub(crate) type ById = BTreeMap<u16, Arc<Controller>>;

/// An association that is removed, and the limit that was reached.
pub(crate) type Goes = (Arc<Controller>, HostFull);

fn silent_ns(controller: &Controller, now_ns: u64) -> u64 {
    now_ns.saturating_sub(controller.last_traffic_ns.load(Ordering::Relaxed))
}

/// The association that has been silent longest, and for how long, of those that a limit counts with the newcomer's and
/// that either have no I/O queues or have been idle without a keep-alive timer. For a host without a proved identity only
/// associations of such hosts are removed.
pub(crate) fn least_useful(
    all: &ById,
    newcomer: &Newcomer,
    full: &HostFull,
    (limits, now_ns): (&HostLimits, u64),
) -> Option<(u64, Arc<Controller>)> {
    let idle_ns = u64::from(limits.idle_timeout_s).min(60) * 1_000_000_000;
    let is_useless = |controller: &&Arc<Controller>| {
        let has_timer = controller.kato_ms.load(Ordering::Relaxed) != 0;
        let least_ns = match (controller.has_queues(), has_timer) {
            (false, _) => USELESS_AFTER_NS,
            (true, false) => idle_ns,
            (true, true) => return false,
        };
        newcomer.counts_with(controller, full)
            && newcomer.may_replace(controller)
            && silent_ns(controller, now_ns) >= least_ns
    };
    let useless = all.values().filter(is_useless);
    let goes = useless.max_by_key(|controller| silent_ns(controller, now_ns))?;
    Some((silent_ns(goes, now_ns), Arc::clone(goes)))
}

/// Chooses the association to remove for a new one if a limit is reached: the [least useful](least_useful). If the
/// subsystem is full and has no useless association, it is one of the address or identified host that has most, if that
/// has more than the newcomer's will have. For a host without a proved identity only associations of such hosts are
/// removed, and count.
pub(crate) fn who_goes(
    all: &ById,
    newcomer: &Newcomer,
    limits: &HostLimits,
    now_ns: u64,
) -> Result<Option<Goes>, HostFull> {
    let (of_host, of_address) =
        (newcomer.host.most_associations(limits), limits.associations_per_address);
    if all.len() < (of_host.min(of_address) as usize).min(MAX_CONTROLLERS) {
        return Ok(None);
    }
    let is_full = |full: &HostFull, most: usize| {
        all.values().filter(|other| newcomer.counts_with(other, full)).count() >= most
    };
    let limits_of_all = [
        (HostFull::Associations(of_host), of_host as usize),
        (HostFull::Address(of_address), of_address as usize),
        (HostFull::Controllers(MAX_CONTROLLERS), MAX_CONTROLLERS),
    ];
    let reached = limits_of_all.into_iter().find(|(full, most)| is_full(full, *most));
    let Some((full, _)) = reached else { return Ok(None) };
    let goes = least_useful(all, newcomer, &full, (limits, now_ns)).map(|(_, goes)| goes);
    let of_greediest = || match full {
        HostFull::Controllers(_) => oldest_of_greediest(all, newcomer, now_ns),
        _ => None,
    };
    let goes = goes.or_else(of_greediest).ok_or(full)?;
    Ok(Some((goes, full)))
}

/// The association that has been silent longest of the address or identified host with most, if that has more than the
/// newcomer's will have. For a host without a proved identity only associations of such hosts count.
fn oldest_of_greediest(all: &ById, newcomer: &Newcomer, now_ns: u64) -> Option<Arc<Controller>> {
    let may_go = |other: &&Arc<Controller>| newcomer.may_replace(other);
    let all = || all.values().filter(may_go);
    let mut counts = HashMap::new();
    let counts_for =
        |controller: &Controller| CountsFor::of(controller.host(), controller.address());
    for controller in all() {
        *counts.entry(counts_for(controller)).or_insert(0) += 1;
    }
    let own = counts.get(&CountsFor::of(&newcomer.host, newcomer.address)).copied().unwrap_or(0);
    let (greediest, has) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    let its = || all().filter(|other| counts_for(other) == greediest);
    (has > own + 1).then(|| its().max_by_key(|other| silent_ns(other, now_ns)).cloned()).flatten()
}
