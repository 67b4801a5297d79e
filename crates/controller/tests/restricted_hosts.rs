//! Hosts that may open queues of a restricted association: the same as for any association, with no more rights on the
//! queues.

mod common;

use bpfof_auth::{ConfiguredPsk, DhchapKey, Hash, PskHash};
use bpfof_controller::{HostKeys, HostRule, Rights, Server, TargetConfig, TlsMode};
use bpfof_host::{Controller, Error, Options, TargetUrl};
use bpfof_nvme::vendor_specific::PushdownShort;
use bpfof_nvme::{Rw, Sgl, Sqe, Status, opcode};
use common::raw::{Peer, RAW_HOST};
use common::{NQN, compile, config, load, memory, run};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const NAMESPACE_BYTES: u64 = 1 << 20;
/// The host identifier of a [`Peer`].
const RAW_HOST_ID: [u8; 16] = [5; 16];

fn write(folder: &TempDir, name: &str, text: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, text).expect("written");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("set");
    path
}

fn start(keys: Option<HostKeys>, rights: Rights, tls: TlsMode) -> Server {
    let rule = |keys| HostRule {
        nqn: RAW_HOST.to_owned(),
        subsystems: None,
        namespaces: None,
        rights,
        keys,
    };
    let rules = keys.map(rule).into_iter().collect();
    let with = TargetConfig { rules, tls, ..config(vec![memory(NAMESPACE_BYTES, 512)]) };
    Server::start(&with).expect("the target starts")
}

/// A restricted association of the host whose name peers have, and its controller id.
fn owner(server: &Server, host_id: [u8; 16], keys: &[(&str, &Path)]) -> (Controller, u16) {
    let mut text = format!("nvme-tcp://{}/{NQN}?hostnqn={RAW_HOST}", server.address());
    for (name, path) in keys {
        text.push_str(&format!("&{name}={}", path.display()));
    }
    let url: TargetUrl = text.parse().expect("an address");
    let keep_alive = Duration::from_secs(5);
    let with = Options { host_id, keep_alive, pushdown_only: true, ..Options::default() };
    let mut controller = Controller::connect(&url, with).expect("it connects");
    let id = controller.identify_controller().expect("answered").cntlid;
    (controller, id)
}

/// Opens an I/O queue of a controller by hand.
fn join(server: &Server, host: &str, cntlid: u16) -> (Peer, Status) {
    let mut peer = Peer::open(server);
    peer.host = host.to_owned();
    peer.initialize(Default::default());
    let status = peer.connect(NQN, 9, 31, cntlid);
    (peer, status)
}

fn read() -> Sqe {
    let read = Rw { slba: 0, blocks: 1, fua: false }.to_sqe(opcode::nvm::READ, 1);
    Sqe { sgl: Sgl::transport(512), ..read }
}

#[test]
fn queues_of_other_hosts_are_refused() {
    let server = start(None, Rights::ALL, TlsMode::ByRules);
    let refused = Status::CONNECT_INVALID_HOST.with_dnr();
    let (_owner, cntlid) = owner(&server, RAW_HOST_ID, &[]);
    let stranger = "nqn.2026-01.io.bpf-of:stranger";
    assert_eq!(join(&server, stranger, cntlid).1, refused);
    let (_other, other_cntlid) = owner(&server, [6; 16], &[]);
    assert_eq!(join(&server, RAW_HOST, other_cntlid).1, refused, "another host of this name");
    // The same host, from another process: its queue is restricted like all others.
    let (mut peer, status) = join(&server, RAW_HOST, cntlid);
    assert_eq!(status, Status::SUCCESS);
    assert_eq!(peer.status(read(), &[]), Status::OPERATION_DENIED.with_dnr());
    let short = PushdownShort { function: 9, file: 0, first_blocks: 1, argument: [0; 24] };
    assert_eq!(peer.status(short.to_sqe(1, 64), &[]), Status::UNKNOWN_FUNCTION.with_dnr());
}

#[test]
fn every_queue_of_a_tls_host_needs_tls() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = ConfiguredPsk::generate(PskHash::Sha256).expect("random numbers");
    let psk = write(&folder, "psk", key.to_text().expose());
    let keys = HostKeys { tls_psk: vec![psk.clone()], ..HostKeys::default() };
    let server = start(Some(keys), Rights::USUAL, TlsMode::ByRules);
    let (owner, cntlid) = owner(&server, RAW_HOST_ID, &[("tls-psk", &psk)]);
    let refused = Status::CONNECT_INVALID_HOST.with_dnr();
    assert_eq!(join(&server, RAW_HOST, cntlid).1, refused);
    assert!(denied(&owner));
}

/// Whether a lane refuses reads.
fn denied(controller: &Controller) -> bool {
    let mut lane = controller.open_lane().expect("a lane");
    match lane.read(1, 0, &mut [0; 512]) {
        Err(Error::Command { source, .. }) => source.status == Status::OPERATION_DENIED.with_dnr(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_host_with_a_secret_authenticates_each_queue() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = DhchapKey::generate(Hash::Sha256).expect("random numbers");
    let secret = write(&folder, "secret", key.to_text().expose());
    let keys = HostKeys { dhchap_key: vec![secret.clone()], ..HostKeys::default() };
    let server = start(Some(keys), Rights::USUAL, TlsMode::ByRules);
    let (mut owner, cntlid) = owner(&server, RAW_HOST_ID, &[("dhchap-key", &secret)]);
    let (mut peer, status) = join(&server, RAW_HOST, cntlid);
    assert_eq!(status, Status::SUCCESS);
    let asked = Status::AUTHENTICATION_REQUIRED.with_dnr();
    let short = PushdownShort { function: 1, file: 7, first_blocks: 1, argument: [0; 24] };
    for sqe in [read(), short.to_sqe(1, 64), Sqe::new(0xEE, 1)] {
        assert_eq!(peer.status(sqe, &[]), asked, "{sqe:?}");
    }
    // Proving the name gives only the rights that the restricted association has.
    assert!(denied(&owner));
    let function = load(&mut owner, &compile("small"), "small");
    let mut lane = owner.open_lane().expect("a lane");
    let error = run(&mut lane, &common::call(function, &[])).expect_err("no file");
    assert_eq!(error.status, Status::UNKNOWN_FILE.with_dnr());
}

/// A host without the right to run chains cannot run them by a restricted association either.
#[test]
fn a_restriction_gives_no_rights() {
    let rights = Rights::from_names(["read", "write"]).expect("they make sense");
    let server = start(Some(HostKeys::default()), rights, TlsMode::ByRules);
    let (owner, cntlid) = owner(&server, RAW_HOST_ID, &[]);
    assert!(denied(&owner));
    let (mut peer, status) = join(&server, RAW_HOST, cntlid);
    assert_eq!(status, Status::SUCCESS);
    let short = PushdownShort { function: 1, file: 7, first_blocks: 1, argument: [0; 24] };
    let status = peer.status(short.to_sqe(1, 64), &[]);
    assert_eq!(status, Status::OPERATION_DENIED.with_dnr());
}
