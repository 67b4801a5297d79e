//! Remote and local addresses of connections.

use crate::{Error, TargetUrl};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

/// The addresses of `url`'s host, or only `peer`, which is one of them. If `url` names a local address, only those of
/// the same address family.
pub(super) fn addresses(
    url: &TargetUrl,
    peer: Option<SocketAddr>,
) -> Result<Vec<SocketAddr>, Error> {
    if let Some(peer) = peer {
        return Ok(vec![peer]);
    }
    let resolved = (url.host.as_str(), url.port).to_socket_addrs();
    let addresses = resolved.map_err(|source| Error::Resolve { host: url.host.clone(), source })?;
    let addresses: Vec<SocketAddr> = addresses.collect();
    let Some(from) = url.host_traddr else { return Ok(addresses) };
    let same_kind = addresses.iter().filter(|address| address.is_ipv4() == from.is_ipv4());
    let same_kind: Vec<SocketAddr> = same_kind.copied().collect();
    if same_kind.is_empty() {
        let (here, there) = if from.is_ipv4() { ("IPv4", "IPv6") } else { ("IPv6", "IPv4") };
        let why = format!(
            "host-traddr={from} is an {here} address, but the target has only {there} addresses"
        );
        let source = io::Error::new(io::ErrorKind::AddrNotAvailable, why);
        return Err(Error::Connect { address: format!("{}:{}", url.host, url.port), source });
    }
    Ok(same_kind)
}

/// The time for connecting to one of `remaining` addresses: an equal share of what is left until `deadline`. An address
/// that does not answer leaves time for those behind it.
pub(super) fn share(deadline: Instant, remaining: usize) -> Duration {
    deadline.saturating_duration_since(Instant::now()) / remaining.max(1) as u32
}
