//! Identity of hosts: TLS and DH-HMAC-CHAP between our own host and target, and refusals.

mod common;

use bpfof_auth::dhchap::{Algorithms, Group, HostAuth, HostConfig, HostStep};
use bpfof_auth::{
    ConfiguredPsk, Derivation, DhchapKey, Hash, IdentityVersion, Names, PskHash, TlsIdentity,
};
use bpfof_controller::{HostKeys, HostRule, Rights, Server, TargetConfig, TlsMode};
use bpfof_host::{Controller, Error, Options, TargetUrl};
use bpfof_nvme::fabrics::{DISCOVERY_NQN, FabricsCommand, SecurityProtocol};
use bpfof_nvme::log_page::{DiscoveryEntry, DiscoveryHeader, lid};
use bpfof_nvme::{AdminCommand, Rw, Sgl, Sqe, Status, opcode};
use bpfof_tls::HandshakeError;
use common::raw::Peer;
use common::{NQN, config, memory, until};
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const HOST: &str = "nqn.2026-01.io.bpf-of:host";
const OTHER: &str = "nqn.2026-01.io.bpf-of:other-host";
const MIB: u64 = 1 << 20;

/// A folder of key files.
struct Keys(TempDir);

impl Keys {
    fn new() -> Keys {
        Keys(tempfile::tempdir().expect("a folder"))
    }

    fn write(&self, name: &str, text: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("set");
        path
    }

    fn psk(&self, name: &str, hash: PskHash) -> PathBuf {
        let key = ConfiguredPsk::generate(hash).expect("random numbers");
        self.write(name, key.to_text().expose())
    }

    fn dhchap(&self, name: &str, hash: Hash) -> PathBuf {
        let key = DhchapKey::generate(hash).expect("random numbers");
        self.write(name, key.to_text().expose())
    }
}

fn rule(nqn: &str, keys: HostKeys) -> HostRule {
    let (subsystems, namespaces) = (None, None);
    HostRule { nqn: nqn.to_owned(), subsystems, namespaces, rights: Rights::USUAL, keys }
}

fn start(rules: Vec<HostRule>, tls: TlsMode) -> Server {
    let with = TargetConfig { rules, tls, ..config(vec![memory(MIB, 512)]) };
    Server::start(&with).expect("the target starts")
}

fn url(server: &Server, host: &str, parameters: &[(&str, &Path)]) -> TargetUrl {
    let mut text = format!("nvme-tcp://{}/{NQN}?hostnqn={host}", server.address());
    for (name, path) in parameters {
        text.push_str(&format!("&{name}={}", path.display()));
    }
    text.parse().expect("an address")
}

fn connect(url: &TargetUrl) -> Result<Controller, Error> {
    Controller::connect(url, Options::default())
}

/// Writes and reads, in short commands and long ones.
fn use_it(controller: &Controller) {
    let mut lane = controller.open_lane().expect("a lane");
    for length in [512usize, 4096, 65536, 1 << 19] {
        let pattern: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
        lane.write(1, 0, &pattern).expect("written");
        let mut back = vec![0; length];
        lane.read(1, 0, &mut back).expect("read");
        assert!(back == pattern, "{length} bytes");
    }
}

fn refused(url: &TargetUrl) -> String {
    match connect(url) {
        Ok(_) => panic!("{url} gets in"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn hosts_connect_over_tls_with_their_keys() {
    let keys = Keys::new();
    let short = keys.psk("short", PskHash::Sha256);
    let long = keys.psk("long", PskHash::Sha384);
    let wrong = keys.psk("wrong", PskHash::Sha256);
    let with = |path: &PathBuf| HostKeys { tls_psk: vec![path.clone()], ..HostKeys::default() };
    let server = start(vec![rule(HOST, with(&short)), rule(OTHER, with(&long))], TlsMode::ByRules);
    use_it(&connect(&url(&server, HOST, &[("tls-psk", &short)])).expect("it connects"));
    use_it(&connect(&url(&server, OTHER, &[("tls-psk", &long)])).expect("it connects"));
    // A wrong key, another host's key, no key, and a host without a rule.
    let text = refused(&url(&server, HOST, &[("tls-psk", &wrong)]));
    assert!(text.contains("over TLS"), "{text}");
    let text = refused(&url(&server, HOST, &[("tls-psk", &long)]));
    assert!(text.contains("over TLS"), "{text}");
    let text = refused(&url(&server, HOST, &[]));
    assert!(text.contains("Connect Invalid Host"), "{text}");
    let stranger = "nqn.2026-01.io.bpf-of:stranger";
    assert!(refused(&url(&server, stranger, &[("tls-psk", &short)])).contains("over TLS"));
    // A handshake's thread may count the refusal after the host has seen it.
    let counted_by = Instant::now() + Duration::from_secs(10);
    loop {
        let denials = server.denials();
        let count =
            |name: &str| denials.iter().find(|(known, _)| *known == name).expect("a reason").1;
        let counts = (count("TLS handshake"), count("no TLS"));
        if counts == (3, 1) {
            break;
        }
        assert!(Instant::now() < counted_by, "{counts:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(server);
    // A target that requires TLS closes connections without it.
    let server = start(vec![rule(HOST, with(&short))], TlsMode::Required);
    use_it(&connect(&url(&server, HOST, &[("tls-psk", &short)])).expect("it connects"));
    assert!(connect(&url(&server, HOST, &[])).is_err());
}

/// A connection from this address of the loopback network that sends nothing.
fn silent(server: &Server, last: u8) -> socket2::Socket {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let socket = socket.expect("a socket");
    let here = SocketAddr::from(([127, 0, 0, last], 0));
    socket.bind(&here.into()).expect("a port");
    socket.connect(&server.address().into()).expect("it listens");
    socket
}

/// The maximum number of handshakes has begun, and none of them makes progress.
#[test]
fn stalled_handshakes_do_not_lock_out_others() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("up to hard");
    let keys = Keys::new();
    let psk = keys.psk("psk", PskHash::Sha256);
    let with = HostKeys { tls_psk: vec![psk.clone()], ..HostKeys::default() };
    let server = start(vec![rule(HOST, with)], TlsMode::ByRules);
    let strangers: Vec<_> = (2..6).flat_map(|last| [last; 128]).collect();
    let strangers: Vec<_> = strangers.into_iter().map(|last| silent(&server, last)).collect();
    use_it(&connect(&url(&server, HOST, &[("tls-psk", &psk)])).expect("it connects"));
    drop(strangers);
}

/// A key proves only the names that it was made for.
#[test]
fn a_key_proves_one_name() {
    let keys = Keys::new();
    let psk = keys.psk("psk", PskHash::Sha256);
    let with = HostKeys { tls_psk: vec![psk.clone()], ..HostKeys::default() };
    let server = start(vec![rule(HOST, with), rule(OTHER, HostKeys::default())], TlsMode::Allowed);
    // Another host, then another subsystem: the key has an identity for discovery as well.
    for (subsystem, host) in [(NQN, OTHER), (DISCOVERY_NQN, HOST)] {
        let status = connect_by_hand((&server, &psk), (subsystem, host), usize::MAX);
        assert_eq!(status, 0x184, "Connect Invalid Host");
    }
    assert!(server.denials().contains(&("foreign name", 2)), "{:?}", server.denials());
}

/// Connects to [`NQN`] with the key of [`HOST`] in a file, with its identity for `subsystem`, in the name of `host`, in
/// records of `record_bytes`. Returns the status without Do Not Retry.
fn connect_by_hand(
    (server, psk): (&Server, &Path),
    (subsystem, host): (&str, &str),
    record_bytes: usize,
) -> u16 {
    connect_in(shake(server, &identity(psk, subsystem)).expect("TLS"), host, record_bytes)
}

/// The identity of the key of [`HOST`] in a file, for a subsystem.
fn identity(psk: &Path, subsystem: &str) -> TlsIdentity {
    let text = fs::read_to_string(psk).expect("read");
    let configured = ConfiguredPsk::parse(text.trim()).expect("a key");
    let names = Names::new(HOST, subsystem).expect("names");
    let identity = configured.identity(&names, IdentityVersion::V1, Derivation::Standard);
    identity.expect("short enough")
}

/// The same on a connection that has shaken hands.
fn connect_in(
    (stream, secured): (TcpStream, bpfof_tls::Secured),
    host: &str,
    record_bytes: usize,
) -> u16 {
    let mut sealer = bpfof_tls::Sealer::new(secured.write).expect("a key");
    let mut opener = bpfof_tls::Opener::new(secured.read, secured.side).expect("a key");
    let mut say = Vec::new();
    bpfof_nvme::tcp::IcReq::default().encode_into(&mut say);
    let command = FabricsCommand::Connect { recfmt: 0, qid: 0, sqsize: 31, cattr: 0, kato_ms: 0 };
    let data = bpfof_nvme::fabrics::ConnectData {
        hostid: [5; 16],
        cntlid: 0xFFFF,
        subnqn: NQN.to_owned(),
        hostnqn: host.to_owned(),
    };
    let data = data.to_bytes();
    bpfof_nvme::tcp::CapsuleCmd { sqe: command.to_sqe(), data: &data }.encode_into(
        &mut say,
        Default::default(),
        0,
    );
    let mut sealed = Vec::new();
    for record in say.chunks(record_bytes) {
        sealer.seal([record], &mut sealed).expect("sealed");
    }
    (&stream).write_all(&sealed).expect("sent");
    let (mut inbox, mut plain, mut filled) = (vec![0; 1 << 16], Vec::new(), 0);
    while plain.len() < 128 + 24 {
        filled += (&stream).read(&mut inbox[filled..]).expect("an answer in time");
        let opened = opener.open(&mut inbox[..filled]).expect("its records");
        plain.extend_from_slice(&inbox[..opened.plaintext_bytes]);
        inbox.copy_within(opened.consumed_bytes..filled, 0);
        filled -= opened.consumed_bytes;
    }
    // The status field of the completion, which follows the ICResp of 128 bytes.
    let status = u16::from_le_bytes([plain[128 + 8 + 14], plain[128 + 8 + 15]]) >> 1;
    status & 0x7FF
}

/// Makes a TLS connection without the host library.
fn shake(
    server: &Server,
    identity: &TlsIdentity,
) -> Result<(TcpStream, bpfof_tls::Secured), HandshakeError> {
    let psk =
        bpfof_tls::Psk::new(&identity.identity, identity.psk.expose(), bpfof_tls::PskHash::Sha256);
    let stream = TcpStream::connect(server.address()).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
    let deadline = Instant::now() + Duration::from_secs(10);
    let secured = bpfof_tls::connect(&stream, &psk.expect("a key"), deadline)?;
    Ok((stream, secured))
}

/// Both ways to derive keys are in use, and an identity of version 0 does not show which.
#[test]
fn old_hosts_derive_their_keys_differently() {
    let keys = Keys::new();
    let psk = keys.psk("psk", PskHash::Sha256);
    let text = fs::read_to_string(&psk).expect("read");
    let configured = ConfiguredPsk::parse(text.trim()).expect("a key");
    let names = Names::new(HOST, NQN).expect("names");
    for tls_compat in [false, true] {
        let with = HostKeys { tls_psk: vec![psk.clone()], tls_compat, ..HostKeys::default() };
        let server = start(vec![rule(HOST, with)], TlsMode::Required);
        for version in [IdentityVersion::V0, IdentityVersion::V1] {
            for derivation in [Derivation::Standard, Derivation::Compat] {
                let identity = configured.identity(&names, version, derivation).expect("short");
                let is_known = version == IdentityVersion::V1
                    || (derivation == Derivation::Compat) == tls_compat;
                match shake(&server, &identity) {
                    Ok(_) => assert!(is_known, "{version:?} {derivation:?} {tls_compat}"),
                    Err(error) => {
                        assert!(!is_known, "{version:?} {derivation:?} {tls_compat}: {error}");
                        assert!(matches!(error, HandshakeError::WrongKey { .. }), "{error:?}");
                        assert!(error.to_string().contains("libnvme before 1.16"), "{error}");
                    }
                }
            }
        }
    }
}

#[test]
fn invalid_records_end_only_their_connection() {
    let keys = Keys::new();
    let psk = keys.psk("psk", PskHash::Sha256);
    let with = HostKeys { tls_psk: vec![psk.clone()], ..HostKeys::default() };
    let server = start(vec![rule(HOST, with)], TlsMode::Required);
    let witness = connect(&url(&server, HOST, &[("tls-psk", &psk)])).expect("it connects");
    let text = fs::read_to_string(&psk).expect("read");
    let configured = ConfiguredPsk::parse(text.trim()).expect("a key");
    let names = Names::new(HOST, NQN).expect("names");
    let identity = configured.identity(&names, IdentityVersion::V1, Derivation::Standard);
    let identity = identity.expect("short enough");
    let mut request = Vec::new();
    bpfof_nvme::tcp::IcReq::default().encode_into(&mut request);
    let lies: [&dyn Fn(Vec<u8>) -> Vec<u8>; 6] = [
        &|_| vec![23, 3, 3, 0, 0],
        &|_| vec![23, 3, 3, 0x41, 0x01],
        // A wrong tag, a wrong header, a missing byte.
        &|mut sealed| {
            *sealed.last_mut().expect("a record") ^= 1;
            sealed
        },
        &|mut sealed| {
            sealed[1] = 2;
            sealed
        },
        &|mut sealed| {
            sealed.drain(5..6);
            sealed.push(0);
            sealed
        },
        // KeyUpdate, without a key.
        &|_| vec![22, 3, 3, 0, 5, 24, 0, 0, 1, 0],
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        let (mut stream, secured) = shake(&server, &identity).expect("TLS");
        let mut sealer = bpfof_tls::Sealer::new(secured.write).expect("a key");
        let mut sealed = Vec::new();
        sealer.seal([&request[..]], &mut sealed).expect("sealed");
        stream.write_all(&lie(sealed)).expect("sent");
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("{number}: it does not end: {error}"),
        }
    }
    use_it(&witness);
}

/// Records of one byte are opened some at a time; the command in the last ones is answered although no more bytes
/// arrive.
#[test]
fn tiny_records_are_processed_to_the_last() {
    let keys = Keys::new();
    let psk = keys.psk("psk", PskHash::Sha256);
    let with = HostKeys { tls_psk: vec![psk.clone()], ..HostKeys::default() };
    let server = start(vec![rule(HOST, with)], TlsMode::Required);
    assert_eq!(connect_by_hand((&server, &psk), (NQN, HOST), 1), 0, "connected");
}

#[test]
fn keys_change_without_a_restart() {
    let keys = Keys::new();
    let (old, new) = (keys.psk("old", PskHash::Sha256), keys.psk("new", PskHash::Sha256));
    let with = |paths: &[&PathBuf]| {
        let tls_psk = paths.iter().map(|path| (*path).clone()).collect();
        vec![rule(HOST, HostKeys { tls_psk, ..HostKeys::default() })]
    };
    let base = config(vec![memory(MIB, 512)]);
    let server = Server::start(&TargetConfig { rules: with(&[&old]), ..base.clone() });
    let server = server.expect("the target starts");
    let mut first = connect(&url(&server, HOST, &[("tls-psk", &old)])).expect("it connects");
    let mut lane = first.open_lane().expect("a lane");
    let change = |rules| server.reload(&TargetConfig { rules, ..base.clone() });
    change(with(&[&old, &new])).expect("taken over");
    use_it(&connect(&url(&server, HOST, &[("tls-psk", &new)])).expect("it connects"));
    change(with(&[&new])).expect("taken over");
    assert!(connect(&url(&server, HOST, &[("tls-psk", &old)])).is_err());
    // Existing connections stay.
    lane.read(1, 0, &mut [0; 512]).expect("read");
    first.identify_controller().expect("identified");
    drop((lane, first));
    use_it(&connect(&url(&server, HOST, &[("tls-psk", &new)])).expect("it connects"));
    // A key file that others may read, or without a valid key, is refused and changes nothing.
    fs::set_permissions(&new, Permissions::from_mode(0o644)).expect("set");
    let error = change(with(&[&new])).expect_err("others may read it").to_string();
    assert!(error.contains("chmod 600"), "{error}");
    // Adding a namespace does not read the key file.
    let more = base.namespaces.iter().cloned().chain([memory(MIB, 512)]).collect::<Vec<_>>();
    server.reload_namespaces(&more).expect("taken over");
    server.reload_namespaces(&base.namespaces).expect("taken over");
    fs::set_permissions(&new, Permissions::from_mode(0o600)).expect("set");
    let none = keys.write("none", b"NVMeTLSkey-1:01:bm9uZQ==:");
    let error = change(with(&[&none])).expect_err("no key").to_string();
    assert!(error.contains("none") && !error.contains("bm9uZQ"), "{error}");
    // The last key is removed and another added: the target still serves TLS.
    change(vec![rule(OTHER, HostKeys::default())]).expect("taken over");
    assert!(connect(&url(&server, HOST, &[("tls-psk", &new)])).is_err());
    change(with(&[&old])).expect("taken over");
    use_it(&connect(&url(&server, HOST, &[("tls-psk", &old)])).expect("it connects"));
    // A target without TLS does not begin with it.
    let server = Server::start(&TargetConfig { allow_any_host: true, ..base.clone() });
    let server = server.expect("the target starts");
    let begins = TargetConfig { rules: with(&[&new]), ..base };
    let error = server.reload(&begins).expect_err("TLS begins").to_string();
    assert!(error.contains("tls cannot change"), "{error}");
}

/// A connection that has shaken hands by a key before the key is replaced does not get through Connect after it.
#[test]
fn connect_checks_the_key_of_the_handshake_again() {
    let keys = Keys::new();
    let (old, new) = (keys.psk("old", PskHash::Sha256), keys.psk("new", PskHash::Sha256));
    let with = |path: &PathBuf| {
        let tls_psk = vec![path.clone()];
        vec![rule(HOST, HostKeys { tls_psk, ..HostKeys::default() })]
    };
    let server = start(with(&old), TlsMode::Allowed);
    let spare = || shake(&server, &identity(&old, NQN)).expect("TLS");
    let [before, after] = [spare(), spare()];
    assert_eq!(connect_in(before, HOST, usize::MAX), 0);
    let config = TargetConfig { tls: TlsMode::Allowed, ..config(vec![memory(MIB, 512)]) };
    server.reload(&TargetConfig { rules: with(&new), ..config }).expect("taken over");
    assert_eq!(connect_in(after, HOST, usize::MAX), 0x184, "Connect Invalid Host");
    assert_eq!(
        server.denials().iter().find(|(why, _)| *why == "TLS handshake").map(|of| of.1),
        Some(1)
    );
}

/// The entries of the discovery log for a host: TREQ, security type, NQN.
fn discovered(server: &Server, host: &str, parameters: &[(&str, &Path)]) -> Vec<(u8, u8, String)> {
    let mut url = url(server, host, parameters);
    url.nqn = DISCOVERY_NQN.to_owned();
    let mut controller = connect(&url).expect("it connects");
    let sqe = AdminCommand::get_log_page(lid::DISCOVERY, 0, 0, 4096);
    let (_, page) = controller.admin_command(sqe, &[], 4096).expect("the log");
    let header = DiscoveryHeader::from_bytes(page.first_chunk().expect("a header"));
    let entries = page[1024..].chunks_exact(1024).take(header.records as usize);
    let entries = entries.map(|bytes| DiscoveryEntry::from_bytes(bytes.try_into().expect("1024")));
    entries.map(|entry| (entry.treq & 3, entry.tsas[0], entry.subnqn.to_string())).collect()
}

/// Required: TREQ 1 and security type 2, with which `nvme connect-all` uses TLS by itself.
#[test]
fn the_discovery_log_shows_whether_tls_is_required() {
    let keys = Keys::new();
    let psk = keys.psk("psk", PskHash::Sha256);
    let with = HostKeys { tls_psk: vec![psk.clone()], ..HostKeys::default() };
    let rules = vec![rule(HOST, with), rule(OTHER, HostKeys::default())];
    let server = start(rules.clone(), TlsMode::Allowed);
    let (itself, subsystem) = (DISCOVERY_NQN.to_owned(), NQN.to_owned());
    let by_tls = discovered(&server, HOST, &[("tls-psk", &psk)]);
    assert_eq!(by_tls, [(2, 0, itself.clone()), (1, 2, subsystem.clone())]);
    assert_eq!(discovered(&server, HOST, &[]), by_tls);
    let other = discovered(&server, OTHER, &[]);
    assert_eq!(other, [(2, 0, itself.clone()), (2, 0, subsystem.clone())]);
    drop(server);
    let server = start(rules, TlsMode::Required);
    let by_tls = discovered(&server, HOST, &[("tls-psk", &psk)]);
    assert_eq!(by_tls, [(1, 2, itself), (1, 2, subsystem)]);
}

#[test]
fn hosts_and_targets_authenticate_each_other() {
    let keys = Keys::new();
    for (number, hash) in [Hash::Sha256, Hash::Sha384, Hash::Sha512].into_iter().enumerate() {
        let host = keys.dhchap(&format!("host{number}"), hash);
        let target = keys.dhchap(&format!("target{number}"), hash);
        let wrong = keys.dhchap(&format!("wrong{number}"), hash);
        let with = HostKeys {
            dhchap_key: vec![host.clone()],
            dhchap_ctrl_key: Some(target.clone()),
            ..HostKeys::default()
        };
        let server = start(vec![rule(HOST, with)], TlsMode::ByRules);
        let (host_key, ctrl) = ("dhchap-key", "dhchap-ctrl-key");
        use_it(&connect(&url(&server, HOST, &[(host_key, &host)])).expect("one way"));
        let both = url(&server, HOST, &[(host_key, &host), (ctrl, &target)]);
        use_it(&connect(&both).expect("mutual"));
        let text = refused(&url(&server, HOST, &[(host_key, &wrong)]));
        assert!(text.contains("authentication failed"), "{text}");
        let text = refused(&url(&server, HOST, &[(host_key, &host), (ctrl, &wrong)]));
        assert!(text.contains("authentication failed"), "{text}");
        let text = refused(&url(&server, HOST, &[]));
        assert!(text.contains("dhchap-key=FILE"), "{text}");
        // The target notices a little later that the last host has left.
        until("the third denial", || server.denials().contains(&("not authenticated", 3)));
    }
    // A host that requires the target to authenticate itself refuses one that does not.
    let server = start(Vec::new(), TlsMode::ByRules);
    let target = keys.dhchap("target", Hash::Sha256);
    let text = refused(&url(&server, HOST, &[("dhchap-ctrl-key", &target)]));
    assert!(text.contains("does not authenticate itself"), "{text}");
}

/// An association keeps the rules under which it began, so its new queues must authenticate as its first one did.
#[test]
fn a_host_whose_secret_was_dropped_opens_queues() {
    let keys = Keys::new();
    let (psk, secret) = (keys.psk("psk", PskHash::Sha256), keys.dhchap("secret", Hash::Sha256));
    let base = config(vec![memory(MIB, 512)]);
    let with = |secrets: &[&PathBuf]| {
        let dhchap_key = secrets.iter().map(|path| (*path).clone()).collect();
        let tls_psk = vec![psk.clone()];
        vec![rule(HOST, HostKeys { tls_psk, dhchap_key, ..HostKeys::default() })]
    };
    let server = Server::start(&TargetConfig { rules: with(&[&secret]), ..base.clone() });
    let server = server.expect("the target starts");
    let both = url(&server, HOST, &[("tls-psk", &psk), ("dhchap-key", &secret)]);
    let controller = connect(&both).expect("connected");
    server.reload(&TargetConfig { rules: with(&[]), ..base.clone() }).expect("taken over");
    use_it(&controller);
    use_it(&connect(&url(&server, HOST, &[("tls-psk", &psk)])).expect("it connects"));
    // Without any key any peer could use its name.
    let open = vec![rule(HOST, HostKeys::default())];
    let error = server.reload(&TargetConfig { rules: open, ..base }).expect_err("it opens a name");
    assert!(error.to_string().contains("any host with its name"), "{error}");
    assert!(connect(&url(&server, HOST, &[])).is_err());
    use_it(&controller);
}

#[test]
fn both_together_and_two_secrets_during_rotation() {
    let keys = Keys::new();
    let psk = keys.psk("psk", PskHash::Sha256);
    let (old, new) = (keys.dhchap("old", Hash::Sha256), keys.dhchap("new", Hash::Sha512));
    let with = HostKeys {
        tls_psk: vec![psk.clone()],
        dhchap_key: vec![new.clone(), old.clone()],
        ..HostKeys::default()
    };
    let server = start(vec![rule(HOST, with)], TlsMode::Required);
    for secret in [&old, &new] {
        let both = url(&server, HOST, &[("tls-psk", &psk), ("dhchap-key", secret)]);
        use_it(&connect(&both).expect("it connects"));
    }
    let text = refused(&url(&server, HOST, &[("tls-psk", &psk)]));
    assert!(text.contains("dhchap-key=FILE"), "{text}");
}

fn say(peer: &mut Peer, message: &[u8]) -> Status {
    let protocol = SecurityProtocol::IN_BAND;
    let length_bytes = message.len() as u32;
    let send = FabricsCommand::AuthenticationSend { protocol, length_bytes };
    peer.status(send.to_sqe(), message)
}

fn fetch(peer: &mut Peer) -> (Vec<u8>, Status) {
    let protocol = SecurityProtocol::IN_BAND;
    let receive = FabricsCommand::AuthenticationReceive { protocol, length_bytes: 4096 };
    let (data, cqe) = peer.call(receive.to_sqe(), &[]);
    (data, cqe.status)
}

/// Runs the host's side on a queue; returns whether it succeeds.
fn authenticate(peer: &mut Peer, config: &Arc<HostConfig>, t_id: u16) -> bool {
    let (mut host, mut step) = HostAuth::new(Arc::clone(config), t_id);
    loop {
        match step {
            HostStep::Exchange(message) => {
                assert_eq!(say(peer, &message), Status::SUCCESS);
                step = host.received(&fetch(peer).0);
            }
            HostStep::Finished { last, result } => {
                if let Some(message) = last {
                    say(peer, &message);
                }
                return result.is_ok();
            }
        }
    }
}

/// A server that requires authentication, and a host with the right secret and one with another.
struct Authenticating {
    server: Server,
    good: Arc<HostConfig>,
    bad: Arc<HostConfig>,
    _keys: Keys,
}

impl Authenticating {
    fn new() -> Self {
        let keys = Keys::new();
        let secret = keys.dhchap("secret", Hash::Sha256);
        let with = HostKeys { dhchap_key: vec![secret.clone()], ..HostKeys::default() };
        let server = start(vec![rule(common::raw::RAW_HOST, with)], TlsMode::ByRules);
        let text = fs::read_to_string(&secret).expect("read");
        let key = DhchapKey::parse(text.trim()).expect("a secret");
        let names = Names::new(common::raw::RAW_HOST, NQN).expect("names");
        let algorithms = Algorithms { hashes: vec![Hash::Sha256], groups: vec![Group::ALL[1]] };
        let good = Arc::new(HostConfig::new(names.clone(), &key, None, algorithms.clone()));
        let other = DhchapKey::generate(Hash::Sha256).expect("random numbers");
        let bad = Arc::new(HostConfig::new(names, &other, None, algorithms));
        Self { server, good, bad, _keys: keys }
    }

    /// An admin queue that has connected, and nothing else.
    fn admin(&self) -> Peer {
        let mut admin = Peer::open(&self.server);
        admin.initialize(Default::default());
        assert_eq!(admin.connect(NQN, 0, 31, 0xFFFF), Status::SUCCESS);
        admin
    }

    /// An enabled association, and its controller's identifier.
    fn association(&self) -> (Peer, u16) {
        let mut admin = self.admin();
        assert!(authenticate(&mut admin, &self.good, 1));
        admin.enable();
        let (page, _) = admin.call(AdminCommand::identify(1, 0), &[]);
        (admin, u16::from_le_bytes([page[78], page[79]]))
    }

    /// An I/O queue that has connected, and nothing else.
    fn io(&self, cntlid: u16) -> Peer {
        let mut io = Peer::open(&self.server);
        io.initialize(Default::default());
        assert_eq!(io.connect(NQN, 1, 31, cntlid), Status::SUCCESS);
        io
    }
}

/// One block, read or written.
fn block(op: u8) -> Sqe {
    let sgl = if op == opcode::nvm::READ { Sgl::transport(512) } else { Sgl::in_capsule(512) };
    Sqe { sgl, ..Rw { slba: 0, blocks: 1, fua: false }.to_sqe(op, 1) }
}

#[test]
fn queues_take_nothing_else_before_they_are_authenticated() {
    let with = Authenticating::new();
    let mut admin = with.admin();
    let required = Status::AUTHENTICATION_REQUIRED.with_dnr();
    let enable = FabricsCommand::PropertySet { offset: 0x14, size8: false, value: 0x46_0001 };
    let get = FabricsCommand::PropertyGet { offset: 0, size8: true };
    for sqe in [
        enable.to_sqe(),
        get.to_sqe(),
        AdminCommand::identify(1, 0),
        AdminCommand::keep_alive(),
        Sqe::new(0xFF, 0),
    ] {
        assert_eq!(admin.status(sqe, &[]), required);
    }
    let (_admin, cntlid) = with.association();
    let mut io = with.io(cntlid);
    for opcode in 0..=255u8 {
        // All but Fabrics commands, of which Disconnect is accepted.
        if opcode != 0x7F {
            let status = io.status(Sqe { sgl: Sgl::in_capsule(0), ..Sqe::new(opcode, 1) }, &[]);
            assert_eq!(status, required, "opcode {opcode:02X}h");
        }
    }
}

#[test]
fn queues_are_authenticated_again_while_they_work_and_end_if_that_fails() {
    let with = Authenticating::new();
    let (_admin, cntlid) = with.association();
    let mut io = with.io(cntlid);
    assert!(authenticate(&mut io, &with.good, 2));
    assert_eq!(io.status(block(opcode::nvm::WRITE), &[7; 512]), Status::SUCCESS);
    let (mut host, mut step) = HostAuth::new(Arc::clone(&with.good), 3);
    while let HostStep::Exchange(message) = step {
        assert_eq!(say(&mut io, &message), Status::SUCCESS);
        assert_eq!(io.call(block(opcode::nvm::READ), &[]).0, [7; 512]);
        let challenge = fetch(&mut io).0;
        assert_eq!(io.status(block(opcode::nvm::WRITE), &[7; 512]), Status::SUCCESS);
        step = host.received(&challenge);
    }
    assert_eq!(io.status(block(opcode::nvm::READ), &[]), Status::SUCCESS);
    assert!(!authenticate(&mut io, &with.bad, 4));
    io.expect_end(None);
}

/// A peer that knows a host's name and none of its secrets cannot take ids of its queues.
#[test]
fn unauthenticated_queues_take_no_id() {
    let with = Authenticating::new();
    let (_admin, cntlid) = with.association();
    let mut strangers = [with.io(cntlid), with.io(cntlid)];
    let mut io = with.io(cntlid);
    assert!(authenticate(&mut io, &with.good, 2));
    assert_eq!(io.status(block(opcode::nvm::WRITE), &[7; 512]), Status::SUCCESS);
    // The id is taken now: a new connection is refused at once, an earlier one when its authentication succeeds.
    let mut late = Peer::open(&with.server);
    late.initialize(Default::default());
    assert!(late.connect(NQN, 1, 31, cntlid).same_code(Status::CONNECT_INVALID_PARAMETERS));
    let [first, second] = &mut strangers;
    assert!(!authenticate(first, &with.bad, 3));
    first.expect_end(None);
    assert!(authenticate(second, &with.good, 4));
    second.expect_end(None);
    assert_eq!(io.call(block(opcode::nvm::READ), &[]).0, [7; 512]);
    // The end of the queue frees the id.
    drop(io);
    until("the id is free", || {
        let mut next = Peer::open(&with.server);
        next.initialize(Default::default());
        next.connect(NQN, 1, 31, cntlid) == Status::SUCCESS
            && authenticate(&mut next, &with.good, 5)
            && next.status(block(opcode::nvm::READ), &[]) == Status::SUCCESS
    });
}

#[test]
fn invalid_messages_are_answered_by_a_failure_and_the_end() {
    let with = Authenticating::new();
    let (_admin, cntlid) = with.association();
    let negotiate = |change: &dyn Fn(&mut Vec<u8>)| {
        let (_, step) = HostAuth::new(Arc::clone(&with.good), 9);
        let HostStep::Exchange(mut message) = step else { panic!("it begins with a message") };
        change(&mut message);
        let mut io = with.io(cntlid);
        assert_eq!(say(&mut io, &message), Status::SUCCESS);
        let (failure, status) = fetch(&mut io);
        assert_eq!((status, failure[0], failure[1]), (Status::SUCCESS, 0, 0xF1));
        io.expect_end(None);
    };
    negotiate(&|message| message.truncate(20));
    negotiate(&|message| message[1] = 0x42);
    negotiate(&|message| message[6] = 2);
    negotiate(&|message| message[10] = 255);
    negotiate(&|message| message.clear());
}
