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
    let needs_tls = registry.is_tls_required;
    let subtype = DiscoveryEntry::SUBTYPE_CURRENT_DISCOVERY;
    let mut entries = vec![entry(subtype, DISCOVERY_NQN, needs_tls, 0, ends.local)];
    for subsystem in registry.subsystems() {
        let Some(access) = rules.access(host_nqn, &subsystem.nqn) else { continue };
        let needs_tls = needs_tls || access.needs_tls;
        for (port, listener) in registry.listeners.iter().enumerate() {
            let address = reached(*listener, ends.local);
            let subtype = DiscoveryEntry::SUBTYPE_NVM;
            entries.push(entry(subtype, &subsystem.nqn, needs_tls, port as u16 + 1, address));
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

/// `needs_tls`: the host is refused without TLS. Where it only may use it, nothing is said of a security
/// type, because hosts take that for an offer to make keys of the authentication.
fn entry(
    subtype: u8,
    nqn: &str,
    needs_tls: bool,
    port: u16,
    address: SocketAddr,
) -> DiscoveryEntry {
    let (channel, sectype) = match needs_tls {
        true => (DiscoveryEntry::TREQ_REQUIRED, DiscoveryEntry::SECTYPE_TLS13),
        false => (DiscoveryEntry::TREQ_NOT_REQUIRED, 0),
    };
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
        treq: channel | DiscoveryEntry::TREQ_NO_SQ_FLOW_CONTROL,
        portid: port,
        cntlid: CNTLID_DYNAMIC,
        asqsz: MAX_QUEUE_ENTRIES,
        eflags: 0,
        trsvcid: address.port().to_string().as_str().into(),
        subnqn: nqn.into(),
        traddr: ip.to_string().as_str().into(),
        sectype,
    }
}
