//! The address of a target: `nvme-tcp://HOST[:PORT][,HOST[:PORT]…]/NQN[?ns=N]`, and, separated by `&`, the identity of
//! the host. `nvme-rdma://` is the same over RDMA, with one portal.

use crate::credentials::KeyFiles;
use bpfof_auth::key_file::is_key;
use bpfof_nvme::fabrics::NQN_MAX_BYTES;
use bpfof_nvme::tcp::DEFAULT_PORT;
use std::fmt;
use std::iter;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// Namespace of a URL that names none.
pub const DEFAULT_NSID: u32 = 1;

const SCHEME: &str = "nvme-tcp://";
const RDMA_SCHEME: &str = "nvme-rdma://";

/// Most portals of one address.
pub const PORTALS_MAX: usize = 8;

/// Allowed values of `path-timeout-ms`.
const PATH_TIMEOUT_MS: RangeInclusive<u64> = 100..=600_000;

/// The transport of queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// NVMe/TCP, `nvme-tcp://`.
    #[default]
    Tcp,
    /// NVMe/RDMA, `nvme-rdma://` (docs/rdma.md).
    Rdma,
}

impl Transport {
    pub(crate) const fn scheme(self) -> &'static str {
        match self {
            Self::Tcp => SCHEME,
            Self::Rdma => RDMA_SCHEME,
        }
    }
}

/// An address on which a target listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portal {
    /// Host name or address; an IPv6 address without its brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}:{}", self.host, self.port)
    }
}

/// The address of a subsystem, and one of its namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetUrl {
    /// The transport of its queues.
    pub transport: Transport,
    /// Host name or address; an IPv6 address without its brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Further portals of the same subsystem: other paths to its namespaces (docs/failover.md).
    pub further_portals: Vec<Portal>,
    /// NQN of the subsystem.
    pub nqn: String,
    /// Namespace id.
    pub nsid: u32,
    /// Local address of this host's TCP connections; without one the kernel chooses.
    pub host_traddr: Option<IpAddr>,
    /// NQN of this host, if the URL names one.
    pub host_nqn: Option<String>,
    /// Files with the keys that authenticate this host.
    pub keys: KeyFiles,
    /// With several portals: overrides [`Options::path_timeout`](crate::Options::path_timeout).
    pub path_timeout: Option<Duration>,
}

/// An invalid URL. The message says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UrlError {
    /// Another scheme, or none.
    #[error("the address must start with {SCHEME} (or {RDMA_SCHEME}), as in {EXAMPLE}")]
    Scheme,
    /// More than one portal with RDMA.
    #[error("{RDMA_SCHEME} supports only one portal; name one, or use {SCHEME} for several")]
    RdmaPortals,
    /// An address of this host, which RDMA takes from its card.
    #[error("with {RDMA_SCHEME} the card's own address is used: omit host-traddr")]
    RdmaHostTraddr,
    /// A key for TLS, which RDMA does not have.
    #[error("{RDMA_SCHEME} has no TLS: use {SCHEME}, or omit tls-psk and tls-compat")]
    RdmaTls,
    /// How a key is used, without the key.
    #[error("tls-compat says how a key is used, and needs tls-psk=FILE")]
    TlsCompat,
    /// No host.
    #[error("the address names no host; write {EXAMPLE}")]
    Host,
    /// An IPv6 address without brackets, or with only one.
    #[error("write an IPv6 address in brackets, as in nvme-tcp://[::1]:4420/NQN")]
    Brackets,
    /// The port is not a number from 1 to 65535.
    #[error("\"{0}\" is not a port; write a number from 1 to 65535 after the host")]
    Port(String),
    /// A portal that is named twice.
    #[error("{0} is named twice; name each portal once")]
    PortalTwice(Portal),
    /// Too many portals.
    #[error("the address names {0} portals; at most {PORTALS_MAX} are allowed")]
    Portals(usize),
    /// The NQN is missing or does not start as NQNs do.
    #[error("the NQN of the subsystem must follow the host, as in {EXAMPLE}")]
    Nqn,
    /// The NQN is too long.
    #[error("the NQN has {0} bytes; at most {NQN_MAX_BYTES} are allowed")]
    NqnLength(usize),
    /// The namespace is not a number from 1 to FFFFFFFEh.
    #[error("\"{0}\" is not a namespace id; write a number of at least 1, as in ?ns=1")]
    Namespace(String),
    /// The address of this host is not an IP address.
    #[error(
        "\"{0}\" is not an IP address; write an address of this host, as in host-traddr=192.0.2.1"
    )]
    HostTraddr(String),
    /// The name of this host does not start as NQNs do, or is too long.
    #[error(
        "\"{0}\" is not the NQN of a host; write one as in hostnqn=nqn.2026-01.org.example:host"
    )]
    HostNqn(String),
    /// The timeout of a path is not a number in the allowed range.
    #[error("\"{0}\" is not a path timeout; write {start} to {end} ms, as in path-timeout-ms=1000",
        start = PATH_TIMEOUT_MS.start(), end = PATH_TIMEOUT_MS.end())]
    PathTimeout(String),
    /// A timeout of a path in an address with one portal.
    #[error("path-timeout-ms needs several portals; name them as in HOST:PORT,HOST:PORT")]
    OnePath,
    /// An unknown parameter, or one without a value.
    #[error(
        "parameter \"{0}\" is unknown or empty; parameters are ns=N, hostnqn=NQN, \
         host-traddr=ADDRESS, tls-psk=FILE, tls-compat, dhchap-key=FILE, dhchap-ctrl-key=FILE and \
         path-timeout-ms=N, separated by &"
    )]
    Parameter(String),
}

const EXAMPLE: &str = "nvme-tcp://127.0.0.1:4420/nqn.2026-01.org.example:disk?ns=1";

impl FromStr for TargetUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let of = |transport: Transport| Some((transport, text.strip_prefix(transport.scheme())?));
        let found = of(Transport::Tcp).or_else(|| of(Transport::Rdma));
        let (transport, rest) = found.ok_or(UrlError::Scheme)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let mut portals = portals(authority)?;
        if transport == Transport::Rdma && portals.len() > 1 {
            return Err(UrlError::RdmaPortals);
        }
        let (nqn, query) = path.split_once('?').unwrap_or((path, ""));
        if !nqn.starts_with("nqn.") {
            return Err(UrlError::Nqn);
        }
        if nqn.len() > NQN_MAX_BYTES {
            return Err(UrlError::NqnLength(nqn.len()));
        }
        let Parameters { nsid, host_traddr, host_nqn, keys, path_timeout } = Parameters::of(query)?;
        if transport == Transport::Rdma && (keys.tls_psk.is_some() || keys.tls_compat) {
            return Err(UrlError::RdmaTls);
        }
        if transport == Transport::Rdma && host_traddr.is_some() {
            return Err(UrlError::RdmaHostTraddr);
        }
        if keys.tls_compat && keys.tls_psk.is_none() {
            return Err(UrlError::TlsCompat);
        }
        if path_timeout.is_some() && portals.len() == 1 {
            return Err(UrlError::OnePath);
        }
        let further_portals = portals.split_off(1);
        let Some(Portal { host, port }) = portals.pop() else { return Err(UrlError::Host) };
        let nqn = nqn.to_owned();
        Ok(Self {
            transport,
            host,
            port,
            further_portals,
            nqn,
            nsid,
            host_traddr,
            host_nqn,
            keys,
            path_timeout,
        })
    }
}

/// The parameters after the question mark.
struct Parameters {
    nsid: u32,
    host_traddr: Option<IpAddr>,
    host_nqn: Option<String>,
    keys: KeyFiles,
    path_timeout: Option<Duration>,
}

impl Parameters {
    fn of(query: &str) -> Result<Self, UrlError> {
        let (mut nsid, mut host_nqn, mut keys) = (DEFAULT_NSID, None, KeyFiles::default());
        let (mut path_timeout, mut host_traddr) = (None, None);
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            if value.is_empty() && !matches!(key, "ns" | "tls-compat") {
                return Err(UrlError::Parameter(parameter.to_owned()));
            }
            let file = || Some(PathBuf::from(value));
            match key {
                "ns" => match value.parse() {
                    Ok(found) if found != 0 && found != u32::MAX => nsid = found,
                    _ => return Err(UrlError::Namespace(value.to_owned())),
                },
                "hostnqn" if value.starts_with("nqn.") && value.len() <= NQN_MAX_BYTES => {
                    host_nqn = Some(value.to_owned());
                }
                "hostnqn" => return Err(UrlError::HostNqn(value.to_owned())),
                "host-traddr" => match value.parse() {
                    Ok(address) => host_traddr = Some(address),
                    Err(_) => return Err(UrlError::HostTraddr(value.to_owned())),
                },
                "tls-psk" => keys.tls_psk = file(),
                "tls-compat" => keys.tls_compat = true,
                "dhchap-key" => keys.dhchap_key = file(),
                "dhchap-ctrl-key" => keys.dhchap_ctrl_key = file(),
                "path-timeout-ms" => match value.parse() {
                    Ok(ms) if PATH_TIMEOUT_MS.contains(&ms) => {
                        path_timeout = Some(Duration::from_millis(ms));
                    }
                    _ => return Err(UrlError::PathTimeout(value.to_owned())),
                },
                _ => return Err(UrlError::Parameter(key.to_owned())),
            }
        }
        Ok(Self { nsid, host_traddr, host_nqn, keys, path_timeout })
    }
}

impl TargetUrl {
    /// All portals, in order of preference.
    pub fn portals(&self) -> impl Iterator<Item = Portal> + '_ {
        let first = Portal { host: self.host.clone(), port: self.port };
        iter::once(first).chain(self.further_portals.iter().cloned())
    }

    /// The same subsystem through one portal alone.
    #[must_use]
    pub fn by(&self, portal: Portal) -> Self {
        let Portal { host, port } = portal;
        Self { host, port, further_portals: Vec::new(), path_timeout: None, ..self.clone() }
    }
}

/// The portals of `HOST[:PORT],…`, at least one.
fn portals(authority: &str) -> Result<Vec<Portal>, UrlError> {
    let mut portals = Vec::new();
    for part in authority.split(',') {
        let (host, port) = portal_parts(part)?;
        let portal = Portal { host: host.to_owned(), port };
        if portals.contains(&portal) {
            return Err(UrlError::PortalTwice(portal));
        }
        portals.push(portal);
    }
    match portals.len() {
        1..=PORTALS_MAX => Ok(portals),
        count => Err(UrlError::Portals(count)),
    }
}

/// Host and port of `HOST[:PORT]`.
fn portal_parts(authority: &str) -> Result<(&str, u16), UrlError> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, after) = rest.split_once(']').ok_or(UrlError::Brackets)?;
        match after.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if after.is_empty() => (host, None),
            None => return Err(UrlError::Brackets),
        }
    } else {
        match authority.split_once(':') {
            Some((_, rest)) if rest.contains(':') => return Err(UrlError::Brackets),
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    if host.is_empty() {
        return Err(UrlError::Host);
    }
    let port = match port.map(|text| (text, text.parse())) {
        None => DEFAULT_PORT,
        Some((_, Ok(port @ 1..))) => port,
        Some((text, _)) => return Err(UrlError::Port(text.to_owned())),
    };
    Ok((host, port))
}

impl fmt::Display for TargetUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nqn, nsid, host_traddr, host_nqn, keys, path_timeout, .. } = self;
        f.write_str(self.transport.scheme())?;
        for (index, portal) in self.portals().enumerate() {
            write!(f, "{}{portal}", if index == 0 { "" } else { "," })?;
        }
        write!(f, "/{nqn}?ns={nsid}")?;
        if let Some(host_nqn) = host_nqn {
            write!(f, "&hostnqn={host_nqn}")?;
        }
        if let Some(address) = host_traddr {
            write!(f, "&host-traddr={address}")?;
        }
        let files = [
            ("tls-psk", &keys.tls_psk),
            ("dhchap-key", &keys.dhchap_key),
            ("dhchap-ctrl-key", &keys.dhchap_ctrl_key),
        ];
        for (name, path) in files {
            if let Some(path) = path {
                match is_key(path) {
                    true => write!(f, "&{name}=…")?,
                    false => write!(f, "&{name}={}", path.display())?,
                }
            }
        }
        if let Some(timeout) = path_timeout {
            write!(f, "&path-timeout-ms={}", timeout.as_millis())?;
        }
        if keys.tls_compat { f.write_str("&tls-compat") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<TargetUrl, UrlError> {
        text.parse()
    }

    #[test]
    fn complete_and_defaults() {
        let url = parse("nvme-tcp://127.0.0.1:4421/nqn.2026-01.io.x:disk?ns=3").unwrap();
        assert_eq!((url.host.as_str(), url.port, url.nsid), ("127.0.0.1", 4421, 3));
        assert_eq!(url.nqn, "nqn.2026-01.io.x:disk");
        let url = parse("nvme-tcp://storage/nqn.a").unwrap();
        assert_eq!((url.host.as_str(), url.port, url.nsid), ("storage", 4420, 1));
        assert_eq!(parse(EXAMPLE).unwrap().to_string(), EXAMPLE);
    }

    #[test]
    fn hostnqn_and_keys() {
        let text = "nvme-tcp://a:1/nqn.a?ns=2&hostnqn=nqn.b&tls-psk=/k&dhchap-key=c&\
                    dhchap-ctrl-key=d&tls-compat";
        let url = parse(text).unwrap();
        assert_eq!((url.nsid, url.host_nqn.as_deref()), (2, Some("nqn.b")));
        assert_eq!(url.keys.tls_psk.as_deref(), Some(std::path::Path::new("/k")));
        assert!(url.keys.tls_compat);
        assert_eq!(url.to_string(), text);
        assert_eq!(parse("nvme-tcp://a/nqn.a?hostnqn=me"), Err(UrlError::HostNqn("me".into())));
        let empty = parse("nvme-tcp://a/nqn.a?tls-psk=");
        assert_eq!(empty, Err(UrlError::Parameter("tls-psk=".into())));
    }

    #[test]
    fn host_traddr_is_parsed() {
        for text in [
            "nvme-tcp://a:1/nqn.a?ns=2&host-traddr=192.0.2.1",
            "nvme-tcp://a:1,b:2/nqn.a?ns=2&hostnqn=nqn.b&host-traddr=fd00::2&path-timeout-ms=1000",
        ] {
            let url = parse(text).unwrap();
            assert_eq!(url.to_string(), text);
            assert!(url.by(Portal { host: "c".into(), port: 1 }).host_traddr.is_some());
        }
        let named = parse("nvme-tcp://a/nqn.a?host-traddr=eth0");
        assert_eq!(named, Err(UrlError::HostTraddr("eth0".into())));
        let by_rdma = parse("nvme-rdma://a/nqn.a?host-traddr=192.0.2.1");
        assert_eq!(by_rdma, Err(UrlError::RdmaHostTraddr));
    }

    #[test]
    fn ipv6() {
        let url = parse("nvme-tcp://[::1]:9/nqn.a").unwrap();
        assert_eq!((url.host.as_str(), url.port), ("::1", 9));
        assert_eq!(url.to_string(), "nvme-tcp://[::1]:9/nqn.a?ns=1");
        assert_eq!(parse("nvme-tcp://[fe80::2]/nqn.a").unwrap().port, 4420);
        assert_eq!(parse("nvme-tcp://::1/nqn.a"), Err(UrlError::Brackets));
        assert_eq!(parse("nvme-tcp://[::1/nqn.a"), Err(UrlError::Brackets));
        assert_eq!(parse("nvme-tcp://[::1]4/nqn.a"), Err(UrlError::Brackets));
    }

    #[test]
    fn several_portals() {
        let text = "nvme-tcp://a:4421,[::1]:9,b:4420/nqn.a?ns=2";
        let url = parse(text).unwrap();
        let portals: Vec<String> = url.portals().map(|portal| portal.to_string()).collect();
        assert_eq!(portals, ["a:4421", "[::1]:9", "b:4420"]);
        assert_eq!(url.to_string(), text);
        assert_eq!(
            url.by(url.further_portals[0].clone()).to_string(),
            "nvme-tcp://[::1]:9/nqn.a?ns=2"
        );
        assert_eq!(parse("nvme-tcp://a,b:4420/nqn.a").unwrap().port, 4420);
        assert_eq!(parse("nvme-tcp://a,/nqn.a"), Err(UrlError::Host));
        let twice = Portal { host: "a".into(), port: 4420 };
        assert_eq!(parse("nvme-tcp://a,b,a:4420/nqn.a"), Err(UrlError::PortalTwice(twice)));
        assert_eq!(parse("nvme-tcp://a,::1/nqn.a"), Err(UrlError::Brackets));
        let many: Vec<String> = (0..9).map(|number| format!("h{number}")).collect();
        let many = format!("nvme-tcp://{}/nqn.a", many.join(","));
        assert_eq!(parse(&many), Err(UrlError::Portals(9)));
    }

    #[test]
    fn timeout_of_a_path() {
        let text = "nvme-tcp://a:1,b:2/nqn.a?ns=1&path-timeout-ms=750";
        let url = parse(text).unwrap();
        assert_eq!(
            (url.path_timeout, url.to_string()),
            (Some(Duration::from_millis(750)), text.into())
        );
        assert_eq!(url.by(url.further_portals[0].clone()).path_timeout, None);
        for wrong in ["99", "600001", "1s", "-1"] {
            let text = format!("nvme-tcp://a,b/nqn.a?path-timeout-ms={wrong}");
            assert_eq!(parse(&text), Err(UrlError::PathTimeout(wrong.into())));
        }
        assert_eq!(parse("nvme-tcp://a/nqn.a?path-timeout-ms=750"), Err(UrlError::OnePath));
    }

    #[test]
    fn by_rdma() {
        let text = "nvme-rdma://10.0.0.1:4421/nqn.a?ns=2&dhchap-key=k";
        let url = parse(text).unwrap();
        assert_eq!((url.transport, url.port), (Transport::Rdma, 4421));
        assert_eq!(url.to_string(), text);
        assert_eq!(parse("nvme-rdma://[fe80::1]/nqn.a").unwrap().port, 4420);
        assert_eq!(parse("nvme-rdma://a,b/nqn.a"), Err(UrlError::RdmaPortals));
        assert_eq!(parse("nvme-rdma://a/nqn.a?tls-psk=/k"), Err(UrlError::RdmaTls));
        assert_eq!(parse("nvme-rdma://a/nqn.a?tls-compat"), Err(UrlError::RdmaTls));
        assert_eq!(parse("nvme-tcp://a/nqn.a?tls-compat"), Err(UrlError::TlsCompat));
        // It is refused when it is read, and not repeated.
        let url = parse("nvme-tcp://a/nqn.a?dhchap-key=DHHC-1:00:c2Vj:").unwrap();
        assert_eq!(url.to_string(), "nvme-tcp://a:4420/nqn.a?ns=1&dhchap-key=…");
    }

    #[test]
    fn errors_say_what_to_write() {
        assert_eq!(parse("tcp://a/nqn.a"), Err(UrlError::Scheme));
        assert_eq!(parse("nvme-tcp:///nqn.a"), Err(UrlError::Host));
        assert_eq!(parse("nvme-tcp://a:0/nqn.a"), Err(UrlError::Port("0".into())));
        assert_eq!(parse("nvme-tcp://a:x/nqn.a"), Err(UrlError::Port("x".into())));
        assert_eq!(parse("nvme-tcp://a"), Err(UrlError::Nqn));
        assert_eq!(parse("nvme-tcp://a/disk"), Err(UrlError::Nqn));
        assert_eq!(parse("nvme-tcp://a/nqn.a?ns=0"), Err(UrlError::Namespace("0".into())));
        assert_eq!(parse("nvme-tcp://a/nqn.a?n=1"), Err(UrlError::Parameter("n".into())));
        let long = format!("nvme-tcp://a/nqn.{}", "x".repeat(220));
        assert_eq!(parse(&long), Err(UrlError::NqnLength(224)));
        assert!(parse("x").unwrap_err().to_string().contains(EXAMPLE));
    }
}
