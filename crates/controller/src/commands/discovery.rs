//! The discovery log page: which subsystems there are and where they are reached.

use crate::connection::Endpoints;
use crate::limits::MAX_QUEUE_ENTRIES;
use crate::registry::Registry;
use bpfof_nvme::fabrics::{CNTLID_DYNAMIC, DISCOVERY_NQN};
use bpfof_nvme::log_page::{DiscoveryEntry, DiscoveryHeader};
use std::net::{IpAddr, SocketAddr};

/// The log page of `generation` or later, whole (NVMe Base 2.0 §5.16.1.23), for a host that reached
/// us at `ends.local`: the subsystems that it may connect to.
pub(crate) fn log_page(
    registry: &Registry,
    generation: u64,
    host_nqn: &str,
    ends: &Endpoints,
) -> Vec<u8> {
    let rules = registry.rules();
    let here = entry(DiscoveryEntry::SUBTYPE_CURRENT_DISCOVERY, DISCOVERY_NQN, 0, ends.local);
    let mut entries = vec![here];
    let mut subsystems = registry.subsystems();
    subsystems.retain(|subsystem| rules.access(host_nqn, &subsystem.nqn).is_some());
    for subsystem in subsystems {
        for (port, listener) in registry.listeners.iter().enumerate() {
            let address = reached(*listener, ends.local);
            let port = port as u16 + 1;
            entries.push(entry(DiscoveryEntry::SUBTYPE_NVM, &subsystem.nqn, port, address));
        }
    }
    let records = entries.len() as u64;
    let header = DiscoveryHeader { generation, records, recfmt: 0 };
    let mut page = header.to_bytes().to_vec();
    page.extend(entries.iter().flat_map(DiscoveryEntry::to_bytes));
    page
}

/// Where a host that reached us at `local` reaches `listener`: one that listens everywhere names no
/// address, so it is the one that worked.
fn reached(listener: SocketAddr, local: SocketAddr) -> SocketAddr {
    let ip = if listener.ip().is_unspecified() { local.ip() } else { listener.ip() };
    SocketAddr::new(ip, listener.port())
}

fn entry(subtype: u8, nqn: &str, port: u16, address: SocketAddr) -> DiscoveryEntry {
    // IPv4 hosts that reach an IPv6 socket appear as ::ffff:a.b.c.d.
    let ip = address.ip().to_canonical();
    let adrfam = match ip {
        IpAddr::V4(_) => DiscoveryEntry::ADRFAM_IPV4,
        IpAddr::V6(_) => DiscoveryEntry::ADRFAM_IPV6,
    };
    DiscoveryEntry {
        trtype: DiscoveryEntry::TRTYPE_TCP,
        adrfam,
        subtype,
        treq: DiscoveryEntry::TREQ_NOT_REQUIRED | DiscoveryEntry::TREQ_NO_SQ_FLOW_CONTROL,
        portid: port,
        cntlid: CNTLID_DYNAMIC,
        asqsz: MAX_QUEUE_ENTRIES,
        eflags: 0,
        trsvcid: address.port().to_string().as_str().into(),
        subnqn: nqn.into(),
        traddr: ip.to_string().as_str().into(),
        sectype: 0,
    }
}
