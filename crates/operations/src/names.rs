//! By which names a page may be asked for.
//!
//! A web page of somebody else's can give its own name the address of a target, and then ask for what the
//! target tells, by the browser of an operator who reaches it (DNS rebinding). The request has the page's
//! name in its `Host`, so only names are answered that are nobody else's, or that begin with this machine's:
//! the kernel does not tell its domain, by which Prometheus may ask for it, and other people do not know its name.

use std::net::{IpAddr, Ipv6Addr};

/// Where the kernel tells this machine's name.
const HOSTNAME: &str = "/proc/sys/kernel/hostname";

/// Names that are answered beside addresses and names without a dot, which nobody can have in public.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The first part of the machine's own.
    machine: Option<String>,
    more: Vec<String>,
}

impl Names {
    /// The machine's name in any domain, and these.
    pub fn of_machine(more: &[String]) -> Names {
        let machine = std::fs::read_to_string(HOSTNAME).ok();
        Names {
            machine: machine.map(|name| first_part(name.trim()).to_owned()),
            more: more.to_vec(),
        }
    }

    /// Whether who asks for `host`, with or without a port, means this target.
    pub(crate) fn are_asked_for(&self, host: &str) -> bool {
        if let Some((address, port)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']'))
        {
            let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(is_number);
            return is_port && address.parse::<Ipv6Addr>().is_ok();
        }
        let name = match host.rsplit_once(':') {
            Some((name, port)) if is_number(port) => name,
            _ => host,
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        let is_known = |known: &String| known.eq_ignore_ascii_case(name);
        let is_machine = |machine: &str| {
            // Not of a machine whose name everybody knows.
            machine != "localhost" && machine.eq_ignore_ascii_case(first_part(name))
        };
        !name.contains('.')
            || name.parse::<IpAddr>().is_ok()
            || self.more.iter().any(is_known)
            || self.machine.as_deref().is_some_and(is_machine)
    }
}

fn first_part(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_are_none_of_ours() {
        let more = vec!["storage1.example.org".to_owned()];
        let names = Names { machine: Some("machine7".to_owned()), more };
        for host in [
            "127.0.0.1:9420",
            "10.0.0.2",
            "[::1]:9420",
            "[2001:db8::7]",
            "localhost:9420",
            "storage1:9420",
            "storage1.example.org:9420",
            "STORAGE1.example.org",
            "storage1.example.org.:9420",
            "machine7.example.com:9420",
            "Machine7",
            "",
        ] {
            assert!(names.are_asked_for(host), "{host}");
        }
        for host in [
            "rebound.example.net:9420",
            "storage1.example.net",
            "127.0.0.1.example.net",
            "storage1.example.org.example.net:9420",
            "[::1].example.net",
            "localhost.example.net",
            "machine77.example.com",
            "www.machine7.example.com",
            "example.net:x:9420",
        ] {
            assert!(!names.are_asked_for(host), "{host}");
        }
        let nobody = Names { machine: Some("localhost".to_owned()), more: Vec::new() };
        assert!(!nobody.are_asked_for("localhost.example.net"));
        let more = ["storage1.example.org".to_owned()];
        assert!(Names::of_machine(&more).are_asked_for("storage1.example.org"));
    }
}
