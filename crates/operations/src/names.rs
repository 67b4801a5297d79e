//! By which names a page may be asked for.
//!
//! A web page of somebody else's can give its own name the address of a target, and then ask for what the
//! target tells, by the browser of an operator who reaches it (DNS rebinding). The request has the page's
//! name in its `Host`, so only names that are nobody else's are answered.

use std::net::{IpAddr, Ipv6Addr};

/// Where the kernel tells this machine's name.
const HOSTNAME: &str = "/proc/sys/kernel/hostname";

/// Names that are answered beside addresses and names without a dot, which nobody can have in public.
#[derive(Clone, Debug, Default)]
pub struct Names(Vec<String>);

impl Names {
    /// The machine's name, and these.
    pub fn of_machine(more: &[String]) -> Names {
        let machine = std::fs::read_to_string(HOSTNAME).ok().map(|name| name.trim().to_owned());
        Names(machine.into_iter().chain(more.iter().cloned()).collect())
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
        !name.contains('.') || name.parse::<IpAddr>().is_ok() || self.0.iter().any(is_known)
    }
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_are_none_of_ours() {
        let names = Names(vec!["storage1.example.org".to_owned()]);
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
            "example.net:x:9420",
        ] {
            assert!(!names.are_asked_for(host), "{host}");
        }
        let more = ["storage1.example.org".to_owned()];
        assert!(Names::of_machine(&more).are_asked_for("storage1.example.org"));
    }
}
