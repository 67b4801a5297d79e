//! The discovery log page: subsystems and their addresses.

use crate::config::{Advertised, Transport};
use crate::connection::Endpoints;
use crate::limits::{MAX_QUEUE_ENTRIES, RDMA_ADMIN_ENTRIES};
use crate::listener::Listener;
use crate::registry::Registry;
use bpfof_nvme::fabrics::{CNTLID_DYNAMIC, DISCOVERY_NQN};
use bpfof_nvme::log_page::{DiscoveryEntry, DiscoveryHeader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// The whole log page of `generation` or later (NVMe Base 2.0 §5.16.1.23), for a host that connected to `ends.local`:
/// the subsystems that it may connect to.
pub(crate) fn log_page(
    registry: &Registry,
    generation: u64,
    host_nqn: &str,
    ends: &Endpoints,
) -> Vec<u8> {
    let rules = registry.rules();
    let needs_tls = registry.is_tls_required;
    let subtype = DiscoveryEntry::SUBTYPE_CURRENT_DISCOVERY;
    // A host of the discovery listener has used an address that works for it.
    let advertised = (!ends.discovery_only)
        .then(|| Reached::of(registry.listener(ends.listener), &registry.listeners, ends.local))
        .flatten();
    let transport = match ends.discovery_only {
        true => Transport::Tcp,
        false => registry.listener(ends.listener).transport,
    };
    let reached = advertised.unwrap_or_else(|| Reached::at(ends.local, transport));
    let mut entries = vec![entry(subtype, DISCOVERY_NQN, needs_tls, 0, &reached)];
    for subsystem in registry.subsystems() {
        let Some(access) = rules.access(host_nqn, &subsystem.nqn) else { continue };
        let needs_tls = needs_tls || access.needs_tls;
        for listener in &registry.listeners {
            // RDMA has no TLS.
            if needs_tls && listener.transport == Transport::Rdma {
                continue;
            }
            let Some(reached) = Reached::of(listener, &registry.listeners, ends.local) else {
                continue;
            };
            let subtype = DiscoveryEntry::SUBTYPE_NVM;
            entries.push(entry(subtype, &subsystem.nqn, needs_tls, listener.id, &reached));
        }
    }
    let records = entries.len() as u64;
    let header = DiscoveryHeader { generation, records, recfmt: 0 };
    let mut page = header.to_bytes().to_vec();
    page.reserve_exact(entries.len() * size_of_val(&entries[0].to_bytes()));
    entries.iter().for_each(|entry| page.extend_from_slice(&entry.to_bytes()));
    page
}

/// How a host reaches a listener.
struct Reached {
    /// An address, or a name.
    host: String,
    /// The address; for a name, an address of the same family.
    ip: IpAddr,
    port: u16,
    transport: Transport,
}

impl Reached {
    /// IPv4 hosts that reach an IPv6 socket appear as ::ffff:a.b.c.d.
    fn at(address: SocketAddr, transport: Transport) -> Reached {
        let ip = address.ip().to_canonical();
        Reached { host: ip.to_string(), ip, port: address.port(), transport }
    }

    /// How a host that reached this target at `local` reaches `listener`, one of `all`: at its own address,
    /// or for a wildcard listener at `local`. None if a wildcard listener does not accept connections of
    /// that address family. An IPv6 wildcard accepts IPv4 unless an IPv4 wildcard has the same port.
    fn of(listener: &Listener, all: &[Arc<Listener>], local: SocketAddr) -> Option<Reached> {
        let (ip, port) = (listener.address.ip(), listener.address.port());
        let transport = listener.transport;
        if let Some(Advertised { host, port: given }) = listener.advertised() {
            let ip = host.parse().unwrap_or(ip);
            return Some(Reached { host, ip, port: given.unwrap_or(port), transport });
        }
        let local = local.ip().to_canonical();
        let all_v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        let is_all_v4 =
            |other: &Arc<Listener>| other.address == all_v4 && other.transport == transport;
        match ip.is_unspecified() {
            true if ip.is_ipv4() && local.is_ipv6() => None,
            true if ip.is_ipv6() && local.is_ipv4() && all.iter().any(is_all_v4) => None,
            true => Some(Reached::at(SocketAddr::new(local, port), transport)),
            false => Some(Reached::at(listener.address, transport)),
        }
    }
}

/// `needs_tls`: the host is refused without TLS. If TLS is only allowed, the entry has no security type, because hosts
/// would take one as an offer to derive keys from the authentication.
fn entry(
    subtype: u8,
    nqn: &str,
    needs_tls: bool,
    port_id: u16,
    reached: &Reached,
) -> DiscoveryEntry {
    let (channel, sectype) = match needs_tls {
        true => (DiscoveryEntry::TREQ_REQUIRED, DiscoveryEntry::SECTYPE_TLS13),
        false => (DiscoveryEntry::TREQ_NOT_REQUIRED, 0),
    };
    let (trtype, tsas, asqsz) = match reached.transport {
        Transport::Tcp => (DiscoveryEntry::TRTYPE_TCP, [sectype, 0, 0], MAX_QUEUE_ENTRIES),
        Transport::Rdma => {
            (DiscoveryEntry::TRTYPE_RDMA, DiscoveryEntry::RDMA_TSAS, RDMA_ADMIN_ENTRIES)
        }
    };
    let adrfam = match reached.ip {
        IpAddr::V4(_) => DiscoveryEntry::ADRFAM_IPV4,
        IpAddr::V6(_) => DiscoveryEntry::ADRFAM_IPV6,
    };
    DiscoveryEntry {
        trtype,
        adrfam,
        subtype,
        treq: channel | DiscoveryEntry::TREQ_NO_SQ_FLOW_CONTROL,
        portid: port_id,
        cntlid: CNTLID_DYNAMIC,
        asqsz,
        eflags: 0,
        trsvcid: reached.port.to_string().as_str().into(),
        subnqn: nqn.into(),
        traddr: reached.host.as_str().into(),
        tsas,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host may create an admin queue as large as this entry says.
    #[test]
    fn an_admin_queue_has_the_limit_of_its_transport() {
        let asqsz = |transport| {
            let reached = Reached::at(SocketAddr::from(([192, 0, 2, 1], 4420)), transport);
            entry(DiscoveryEntry::SUBTYPE_NVM, "nqn.2026-01.io.bpf-of:a", false, 1, &reached).asqsz
        };
        assert_eq!([Transport::Tcp, Transport::Rdma].map(asqsz), [1024, 128]);
    }
}
