//! The address of a target: `nvme-tcp://HOST[:PORT]/NQN[?ns=N]`.

use bpfof_nvme::fabrics::NQN_MAX_BYTES;
use bpfof_nvme::tcp::DEFAULT_PORT;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Namespace of a URL that names none.
pub const DEFAULT_NSID: u32 = 1;

const SCHEME: &str = "nvme-tcp://";

/// Where a subsystem is, and which of its namespaces is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetUrl {
    /// Host name or address; an IPv6 address without its brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// NQN of the subsystem.
    pub nqn: String,
    /// Namespace id.
    pub nsid: u32,
}

/// A URL that cannot be used, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UrlError {
    /// Another scheme, or none.
    #[error("the address must start with {SCHEME}, as in {EXAMPLE}")]
    Scheme,
    /// No host.
    #[error("the address names no host; write {EXAMPLE}")]
    Host,
    /// An IPv6 address without brackets, or with only one.
    #[error("write an IPv6 address in brackets, as in nvme-tcp://[::1]:4420/NQN")]
    Brackets,
    /// The port is no number from 1 to 65535.
    #[error("\"{0}\" is no port; write a number from 1 to 65535 after the host")]
    Port(String),
    /// The NQN is missing or does not start as NQNs do.
    #[error("the NQN of the subsystem must follow the host, as in {EXAMPLE}")]
    Nqn,
    /// The NQN is too long.
    #[error("the NQN has {0} bytes; at most {NQN_MAX_BYTES} are allowed")]
    NqnLength(usize),
    /// The namespace is no number from 1 to FFFFFFFEh.
    #[error("\"{0}\" is no namespace id; write a number from 1 on, as in ?ns=1")]
    Namespace(String),
    /// A parameter other than `ns`.
    #[error("parameter \"{0}\" is unknown; only ns is, as in ?ns=1")]
    Parameter(String),
}

const EXAMPLE: &str = "nvme-tcp://127.0.0.1:4420/nqn.2026-01.org.example:disk?ns=1";

impl FromStr for TargetUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let rest = text.strip_prefix(SCHEME).ok_or(UrlError::Scheme)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = authority_parts(authority)?;
        let (nqn, query) = path.split_once('?').unwrap_or((path, ""));
        if !nqn.starts_with("nqn.") {
            return Err(UrlError::Nqn);
        }
        if nqn.len() > NQN_MAX_BYTES {
            return Err(UrlError::NqnLength(nqn.len()));
        }
        let mut nsid = DEFAULT_NSID;
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            if key != "ns" {
                return Err(UrlError::Parameter(key.to_owned()));
            }
            nsid = match value.parse() {
                Ok(nsid) if nsid != 0 && nsid != u32::MAX => nsid,
                _ => return Err(UrlError::Namespace(value.to_owned())),
            };
        }
        Ok(Self { host: host.to_owned(), port, nqn: nqn.to_owned(), nsid })
    }
}

/// Host and port of `HOST[:PORT]`.
fn authority_parts(authority: &str) -> Result<(&str, u16), UrlError> {
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
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        let Self { host, port, nqn, nsid } = self;
        write!(f, "{SCHEME}{open}{host}{close}:{port}/{nqn}?ns={nsid}")
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
