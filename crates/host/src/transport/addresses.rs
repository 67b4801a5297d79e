//! Where connections go to.

use crate::{Error, TargetUrl};
use std::net::{SocketAddr, ToSocketAddrs};

/// The addresses that `url` names, or `peer`, which is one of them.
pub(super) fn addresses(
    url: &TargetUrl,
    peer: Option<SocketAddr>,
) -> Result<Vec<SocketAddr>, Error> {
    if let Some(peer) = peer {
        return Ok(vec![peer]);
    }
    let resolved = (url.host.as_str(), url.port).to_socket_addrs();
    let addresses = resolved.map_err(|source| Error::Resolve { host: url.host.clone(), source })?;
    Ok(addresses.collect())
}
