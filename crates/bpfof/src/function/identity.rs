//! The host identity of the commands: a function at a target belongs to the host that has installed it.

use crate::hex;
use bpfof_host::Options;
use clap::Args;
use std::str::FromStr;
use twox_hash::XxHash3_64;

/// The file in which nvme-cli keeps the identifier of this machine; the next one has its NQN.
const HOST_ID_FILE: &str = "/etc/nvme/hostid";
const HOST_NQN_FILE: &str = "/etc/nvme/hostnqn";

/// A UUID.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostId(pub(super) [u8; 16]);

impl FromStr for HostId {
    type Err = String;

    fn from_str(text: &str) -> Result<HostId, String> {
        let bytes = hex::decode(&text.replace('-', ""));
        let id: Option<[u8; 16]> = bytes.and_then(|bytes| bytes.try_into().ok());
        match id {
            Some(id) if id != [0; 16] => Ok(HostId(id)),
            _ => Err("not a UUID: 32 hexadecimal digits, not all 0".to_owned()),
        }
    }
}

#[derive(Args)]
pub(super) struct Identity {
    /// Host identifier to connect with: a UUID [default: that of /etc/nvme/hostid, or one made from this user and
    /// machine].
    #[arg(long, value_name = "UUID")]
    host_id: Option<HostId>,
    /// Host NQN to connect with [default: that of the address, of hosts.toml or of /etc/nvme/hostnqn, or made from the
    /// identifier].
    #[arg(long, value_name = "NQN")]
    pub(super) host_nqn: Option<String>,
}

impl Identity {
    /// Options for a connection as this host. The caller puts the NQN, if one is given, into the address.
    pub(super) fn options(&self) -> Options {
        self.host_id.map_or_else(default_options, |id| Options::for_host(id.0))
    }
}

fn default_options() -> Options {
    let read = |path| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let id = read(HOST_ID_FILE).and_then(|text| text.parse::<HostId>().ok());
    let nqn = read(HOST_NQN_FILE).filter(|nqn| nqn.starts_with("nqn."));
    let Some(id) = id else {
        let machine = read("/etc/machine-id").filter(|machine| !machine.is_empty());
        let name = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        return Options::for_host(of_user(&machine.unwrap_or_else(name)));
    };
    options_of_machine(id, nqn)
}

/// Options of a host whose identifier is known, and its NQN unless that follows from the identifier.
fn options_of_machine(id: HostId, nqn: Option<String>) -> Options {
    let options = Options::for_host(id.0);
    match nqn {
        Some(host_nqn) => Options { host_nqn, ..options },
        None => options,
    }
}

/// A host identifier that is the same in all processes of this user, and differs between users and machines.
fn of_user(machine: &str) -> [u8; 16] {
    let text = format!("bpfof {machine} {}", rustix::process::getuid().as_raw());
    let half = |seed| XxHash3_64::oneshot_with_seed(seed, text.as_bytes()).to_be_bytes();
    let mut id: [u8; 16] = [half(1), half(2)].concat().try_into().expect("twice 8");
    // A UUID of version 8, whose contents are up to its maker (RFC 9562).
    id[6] = (id[6] & 0x0f) | 0x80;
    id[8] = (id[8] & 0x3f) | 0x80;
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_identifiers_are_uuids() {
        let id: HostId = "00010203-0405-0607-0809-0a0b0c0d0e0f".parse().expect("a UUID");
        assert_eq!(id.0, std::array::from_fn(|index| index as u8));
        for wrong in ["", "0001", "00000000-0000-0000-0000-000000000000", "x"] {
            assert!(wrong.parse::<HostId>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_identifier_without_an_nqn_is_used() {
        let id: HostId = "00010203-0405-0607-0809-0a0b0c0d0e0f".parse().expect("a UUID");
        let made = "nqn.2014-08.org.nvmexpress:uuid:00010203-0405-0607-0809-0a0b0c0d0e0f";
        let options = options_of_machine(id, None);
        assert_eq!((options.host_id, options.host_nqn.as_str()), (id.0, made));
        let options = options_of_machine(id, Some("nqn.2026-01.example:db".to_owned()));
        assert_eq!((options.host_id, options.host_nqn.as_str()), (id.0, "nqn.2026-01.example:db"));
    }

    #[test]
    fn users_are_known_again() {
        assert_eq!(of_user("a"), of_user("a"));
        assert_ne!(of_user("a"), of_user("b"));
    }
}
