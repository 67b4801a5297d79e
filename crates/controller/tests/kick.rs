//! Associations that an operator ends.

mod common;

use bpfof_nvme::fabrics::DISCOVERY_NQN;
use bpfof_nvme::{AdminCommand, Status};
use common::raw::{Peer, Said};
use common::{memory, start};

/// A name stands for all associations of hosts with it, including those with the discovery
/// subsystem.
#[test]
fn a_kick_ends_associations_of_discovery_as_well() {
    let server = start(vec![memory(1 << 20, 512)]);
    let mut watcher = Peer::admin(server.address(), DISCOVERY_NQN);
    assert_eq!(watcher.status(AdminCommand::keep_alive(), &[]), Status::SUCCESS);
    let name = common::raw::RAW_HOST;
    let kick = server.kick();
    assert_eq!(kick("nqn.2026-01.io.bpf-of:nobody", None), 0);
    assert_eq!(kick(name, Some(server.address().ip())), 1);
    assert_eq!(watcher.hear(), Said::Closed);
    // Unidentified hosts that ask for the discovery log appear to the operator as one host of this
    // name.
    let mut watcher = Peer::admin(server.address(), DISCOVERY_NQN);
    assert_eq!(kick(DISCOVERY_NQN, None), 1);
    assert_eq!(watcher.hear(), Said::Closed);
}
