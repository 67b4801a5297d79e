//! The names by which clients may request the page.
//!
//! A foreign web page can make its own name resolve to the address of a target, and then read the target's data through
//! the browser of an operator (DNS rebinding). Such a request has the page's name in its `Host`. So only names are
//! answered that no foreign page can have: names without a dot, and this machine's name in its own search domains. A
//! name that only begins with the machine's name is refused: many machines have names that can be guessed.

use std::net::{IpAddr, Ipv6Addr};

/// File with this machine's name.
const HOSTNAME: &str = "/proc/sys/kernel/hostname";
/// File with the search domains of the resolver.
const RESOLVER: &str = "/etc/resolv.conf";

/// Names that are answered besides addresses and names without a dot, which do not exist in public DNS.
#[derive(Clone, Debug, Default)]
pub struct Names(Vec<String>);

impl Names {
    /// The machine's name, the same in the search domains of its resolver, and the names in `more`.
    pub fn of_machine(more: &[String]) -> Names {
        let text = |path| std::fs::read_to_string(path).unwrap_or_default();
        Names(more.iter().cloned().chain(own(text(HOSTNAME).trim(), &text(RESOLVER))).collect())
    }

    /// Whether a request for `host`, with or without a port, means this target.
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

/// A machine's name, and its first part in each domain of a resolver's configuration (resolv.conf(5)).
fn own(hostname: &str, resolver: &str) -> Vec<String> {
    let first = hostname.split('.').next().unwrap_or(hostname);
    let domains = resolver.lines().flat_map(|line| {
        let mut words = line.split_whitespace();
        let is_list = matches!(words.next(), Some("search" | "domain"));
        words.filter(move |_| is_list).map(|domain| domain.trim_matches('.'))
    });
    let in_domains = domains.filter(|domain| !domain.is_empty()).map(|of| format!("{first}.{of}"));
    [hostname.to_owned()].into_iter().chain(in_domains).collect()
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_of_other_machines_are_refused() {
        let resolver =
            "# search evil.example\nnameserver 10.0.0.1\nsearch example.com lab.example.com.\n";
        let mut known = own("machine7.inside.example.com", resolver);
        known.push("storage1.example.org".to_owned());
        let names = Names(known);
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
            "Machine7.lab.example.com",
            "machine7.inside.example.com",
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
            "machine7.example.net",
            "machine7.evil.example",
            "machine77.example.com",
            "www.machine7.example.com",
            "example.net:x:9420",
        ] {
            assert!(!names.are_asked_for(host), "{host}");
        }
        assert!(!Names(own("", "domain")).are_asked_for("localhost.example.net"));
        let more = ["storage1.example.org".to_owned()];
        assert!(Names::of_machine(&more).are_asked_for("storage1.example.org"));
    }
}
