//! Several paths to a namespace: listeners, asymmetric namespace access, drains, targets that share a disk.

mod common;

use bpfof_controller::{
    AnaState, ListenConfig, Listeners, NamespaceConfig, PathError, Server, ServerError,
    ServerOptions, TargetConfig,
};
use bpfof_host::Request;
use bpfof_nvme::fabrics::{CNTLID_DYNAMIC, ConnectData, DISCOVERY_NQN, FabricsCommand};
use bpfof_nvme::identify::{
    IdentifyController, IdentifyNamespace, NamespaceDescriptor, cns, parse_namespace_descriptors,
};
use bpfof_nvme::log_page::{AnaGroup, AnaHeader, DiscoveryEntry, DiscoveryHeader, lid};
use bpfof_nvme::tcp::Digests;
use bpfof_nvme::vendor_specific::PushdownShort;
use bpfof_nvme::{AdminCommand, Rw, Sgl, Sqe, Status, features, opcode};
use common::raw::{Peer, Said};
use common::{NQN, compile_text, config, connect, file, load, memory, slow_memory, until};
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::time::Duration;

const NONE: Digests = Digests { header: false, data: false };
const LOOPBACK: &str = "127.0.0.1:0";
/// The notices for ANA and namespace changes.
const ANA_NOTICE: u32 = 0x000c_0302;
const NAMESPACE_NOTICE: u32 = 0x0004_0002;
const MIB: u64 = 1 << 20;
/// Time of a hop where a chain must still run when the test has seen that it runs.
const HOP_US: u64 = 100_000;
/// A function whose chain has 20 hops.
const TWENTY_HOPS: &str = "#include \"bpfof.h\"\nSEC(\"bpfof/f\") int f(struct bpfof_ctx *ctx) {\n\
     if (ctx->hop == 19) { ctx->done = 1; return 0; }\n\
     ctx->next_offset[0] = 0; ctx->next_size[0] = 512; ctx->next_file[0] = ctx->file;\n\
     ctx->reads = 1; return 0; }\n";

/// A target that listens at these addresses.
fn listening(listeners: &[&str], namespaces: Vec<NamespaceConfig>) -> TargetConfig {
    let parse = |text: &&str| text.parse::<ListenConfig>().expect("good");
    TargetConfig { listen: Listeners(listeners.iter().map(parse).collect()), ..config(namespaces) }
}

fn start(config: &TargetConfig) -> Server {
    Server::start(config).expect("it starts")
}

/// Admin queue and I/O queue of a host that connects to this address.
fn pair_at(address: SocketAddr) -> (Peer, Peer) {
    let mut admin = Peer::admin(address, NQN);
    let mut io = Peer::open_at(address);
    io.initialize(NONE);
    assert_eq!(io.connect(NQN, 1, 31, controller_id(&mut admin)), Status::SUCCESS);
    (admin, io)
}

fn controller_id(admin: &mut Peer) -> u16 {
    let (page, _) = admin.call(AdminCommand::identify(cns::CONTROLLER, 0), &[]);
    IdentifyController::from_bytes(page[..].try_into().expect("a page")).cntlid
}

/// Enables all events, and parks a request for one.
fn listen(admin: &mut Peer) -> u16 {
    let set = AdminCommand::set_features(features::ASYNC_EVENT_CONFIGURATION, 1 << 8 | 1 << 11);
    assert_eq!(admin.status(set, &[]), Status::SUCCESS);
    park(admin)
}

fn park(admin: &mut Peer) -> u16 {
    admin.send(Sqe::new(opcode::admin::ASYNC_EVENT_REQUEST, 0), &[])
}

fn hear_event(admin: &mut Peer, request: u16, notice: u32) {
    match admin.hear() {
        Said::Response(cqe) => assert_eq!((cqe.cid, cqe.dw0), (request, notice)),
        other => panic!("no event but {other:?}"),
    }
}

/// The change count of the ANA log, and each group with its change count, state and namespaces.
type AnaLog = (u64, Vec<(u32, u64, u8, Vec<u32>)>);

fn ana_log(admin: &mut Peer) -> AnaLog {
    let (page, cqe) = admin.call(AdminCommand::get_log_page(lid::ANA, u32::MAX, 0, 512), &[]);
    assert_eq!(cqe.status, Status::SUCCESS);
    let header = AnaHeader::from_bytes(page[..].first_chunk().expect("a header"));
    let mut rest = &page[16..];
    let mut groups = Vec::new();
    for _ in 0..header.groups {
        let group = AnaGroup::from_bytes(rest.first_chunk().expect("a group"));
        let (ids, behind) = rest[32..].split_at(4 * group.namespaces as usize);
        let ids = ids.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)).collect();
        groups.push((group.group, group.change_count, group.state, ids));
        rest = behind;
    }
    (header.change_count, groups)
}

fn states(admin: &mut Peer) -> Vec<u8> {
    ana_log(admin).1.into_iter().map(|(_, _, state, _)| state).collect()
}

fn rw(opcode: u8, nsid: u32, slba: u64) -> Sqe {
    let sgl = match opcode {
        opcode::nvm::READ => Sgl::transport(512),
        opcode::nvm::WRITE => Sgl::in_capsule(512),
        _ => Sgl::transport(0),
    };
    Sqe { sgl, ..Rw { slba, blocks: 1, fua: false }.to_sqe(opcode, nsid) }
}

fn read(io: &mut Peer, nsid: u32, slba: u64) -> Status {
    io.status(rw(opcode::nvm::READ, nsid, slba), &[])
}

fn inaccessible(status: Status) {
    assert_eq!(status, Status::ANA_INACCESSIBLE, "and the host may try again: no Do Not Retry");
}

/// Commands in flight succeed, later ones are refused without effect; the other listener goes on; hosts are told, and
/// come back.
#[test]
fn a_drain_loses_nothing() {
    let server = start(&listening(&[LOOPBACK, LOOPBACK], vec![slow_memory(MIB, 512, 1_500_000)]));
    let [one, two] = server.addresses()[..] else { panic!("two listeners") };
    let ((mut admin, mut io), (mut other_admin, mut other_io)) = (pair_at(one), pair_at(two));
    let (count, groups) = ana_log(&mut admin);
    assert_eq!(groups, [(1, 1, AnaGroup::OPTIMIZED, vec![1])]);
    let event = listen(&mut admin);
    // The write takes 1.5 s.
    let slow = io.send(rw(opcode::nvm::WRITE, 1, 3), &[7; 512]);
    let in_flight = || {
        let report = server.report()(Duration::from_secs(5)).expect("a report");
        report.listeners.iter().map(|of| of.in_flight).collect::<Vec<_>>()
    };
    until("a command in flight", || in_flight() == [1, 0]);
    server.paths().drain(&["1".to_owned()]).expect("drained");
    hear_event(&mut admin, event, ANA_NOTICE);
    let refused = io.send(rw(opcode::nvm::WRITE, 1, 3), &[9; 512]);
    let ends = [0; 2].map(|_| match io.hear() {
        Said::Response(cqe) => (cqe.cid, cqe.status),
        other => panic!("{other:?}"),
    });
    assert_eq!(ends, [(refused, Status::ANA_INACCESSIBLE), (slow, Status::SUCCESS)]);
    for sqe in [
        rw(opcode::nvm::READ, 1, 0),
        rw(opcode::nvm::WRITE_ZEROES, 1, 3),
        rw(opcode::nvm::VERIFY, 1, 0),
        Sqe::new(opcode::nvm::FLUSH, 1),
        PushdownShort { function: 1, file: 0, first_blocks: 1, argument: [0; 24] }.to_sqe(1, 64),
    ] {
        inaccessible(io.status(sqe, &[]));
    }
    let (then, groups) = ana_log(&mut admin);
    assert_eq!(groups, [(1, 2, AnaGroup::INACCESSIBLE, vec![1])]);
    assert_eq!(then, count + 1);
    assert_eq!(states(&mut other_admin), [AnaGroup::OPTIMIZED]);
    let (data, cqe) = other_io.call(rw(opcode::nvm::READ, 1, 3), &[]);
    assert_eq!(
        (cqe.status, data),
        (Status::SUCCESS, vec![7; 512]),
        "what was refused is not there"
    );
    let (page, _) = admin.call(AdminCommand::identify(cns::NAMESPACE, 1), &[]);
    let identify = IdentifyNamespace::from_bytes(page[..].try_into().expect("a page"));
    assert_eq!((identify.nsze, identify.ncap, identify.nuse), (2048, 2048, 0));

    let event = park(&mut admin);
    server.paths().undrain(&[one.to_string()]).expect("drained no more");
    hear_event(&mut admin, event, ANA_NOTICE);
    assert_eq!(ana_log(&mut admin).1, [(1, 3, AnaGroup::OPTIMIZED, vec![1])]);
    assert_eq!(read(&mut io, 1, 3), Status::SUCCESS);
}

/// A chain in flight ends with its answer.
#[test]
fn chains_in_flight_end() {
    let server = start(&listening(&[LOOPBACK], vec![slow_memory(MIB, 512, HOP_US)]));
    let object = compile_text(TWENTY_HOPS);
    let (mut controller, mut lane) = connect(&server, false);
    let function = load(&mut controller, &object, "f");
    let call = common::call(function, &[]);
    lane.submit(1, Request::Pushdown(call)).expect("there is room");
    lane.flush_doorbell().expect("sent");
    let hops =
        || server.report()(Duration::from_secs(5)).expect("a report").reactors[0].chains_running;
    until("the chain runs", || hops() == 1);
    // Setting a state ends neither the chain nor the connection.
    server.paths().set_state(&[], None, AnaState::Inaccessible).expect("set");
    let ends = common::ends(&mut lane);
    assert_eq!(ends.len(), 1);
    assert_eq!(ends[0].1.as_ref().expect("its answer"), &20);
    server.paths().set_state(&[], None, AnaState::Optimized).expect("set");
    // The library has not read the ANA log: its connections end, but after the chain.
    lane.submit(2, Request::Pushdown(call)).expect("there is room");
    lane.flush_doorbell().expect("sent");
    until("the chain runs", || hops() == 1);
    server.paths().drain(&[]).expect("drained");
    let ends = common::ends(&mut lane);
    assert_eq!(ends[0].1.as_ref().expect("its answer"), &20);
    until("the connections end", || !controller.check_connected());
    server.paths().undrain(&[]).expect("drained no more");
    server.paths().set_state(&[], None, AnaState::Inaccessible).expect("set");
    controller.reconnect().expect("it is let in");
    lane.reconnect(&controller).expect("a lane");
    let function = load(&mut controller, &object, "f");
    let call = common::call(function, &[]);
    let refused = common::run(&mut lane, &call).expect_err("inaccessible").status;
    inaccessible(refused);
}

/// Each group has its own state; a drained listener shows states that were set meanwhile only after the drain.
#[test]
fn groups_have_their_own_states() {
    let second = NamespaceConfig { ana_group: 2, ..memory(MIB, 512) };
    let config = listening(
        &["127.0.0.1:0,ana=2:non-optimized", LOOPBACK],
        vec![memory(MIB, 512), second, memory(MIB, 512)],
    );
    let server = start(&config);
    let (mut admin, mut io) = pair_at(server.addresses()[0]);
    let (optimized, non_optimized) = (AnaGroup::OPTIMIZED, AnaGroup::NON_OPTIMIZED);
    let groups = ana_log(&mut admin).1;
    assert_eq!(groups, [(1, 1, optimized, vec![1, 3]), (2, 1, non_optimized, vec![2])]);
    assert_eq!(read(&mut io, 2, 0), Status::SUCCESS, "it is only less good");
    let paths = server.paths();
    let first = ["1".to_owned()];
    paths.set_state(&first, Some(2), AnaState::Inaccessible).expect("set");
    assert_eq!(states(&mut admin), [optimized, AnaGroup::INACCESSIBLE]);
    inaccessible(read(&mut io, 2, 0));
    assert_eq!((read(&mut io, 1, 0), read(&mut io, 3, 0)), (Status::SUCCESS, Status::SUCCESS));
    paths.drain(&first).expect("drained");
    paths.set_state(&first, Some(2), AnaState::Optimized).expect("set");
    assert_eq!(states(&mut admin), [AnaGroup::INACCESSIBLE; 2]);
    inaccessible(read(&mut io, 2, 0));
    paths.undrain(&first).expect("drained no more");
    assert_eq!(states(&mut admin), [optimized; 2]);
    assert_eq!(read(&mut io, 2, 0), Status::SUCCESS);
    let unknown = paths.drain(&["7".to_owned()]).expect_err("there are two");
    assert!(
        matches!(unknown, PathError::Unknown { ref known, .. } if known.len() == 2),
        "{unknown}"
    );
    let group = paths.set_state(&[], Some(33), AnaState::Optimized).expect_err("there are 32");
    assert!(group.to_string().contains("1 to 32"), "{group}");
}

/// A reload that only changes a namespace's group interrupts no chain, and hosts are told by the ANA log.
#[test]
fn a_namespace_in_use_moves_to_another_group() {
    let in_group = |ana_group| {
        let namespace = NamespaceConfig { ana_group, ..slow_memory(MIB, 512, HOP_US) };
        listening(&["127.0.0.1:0,ana=2:inaccessible"], vec![namespace])
    };
    let server = start(&in_group(1));
    let (mut admin, mut io) = pair_at(server.address());
    let (mut controller, mut lane) = connect(&server, false);
    let function = load(&mut controller, &compile_text(TWENTY_HOPS), "f");
    let (count, groups) = ana_log(&mut admin);
    assert_eq!(groups, [(1, 1, AnaGroup::OPTIMIZED, vec![1])]);
    let event = listen(&mut admin);
    lane.submit(1, Request::Pushdown(common::call(function, &[]))).expect("there is room");
    lane.flush_doorbell().expect("sent");
    until("the chain runs", || {
        let report = server.report()(Duration::from_secs(5)).expect("a report");
        report.reactors.iter().any(|of| of.chains_running == 1)
    });
    server.reload(&in_group(3)).expect("taken over");
    hear_event(&mut admin, event, ANA_NOTICE);
    assert_eq!(ana_log(&mut admin), (count + 1, vec![(3, 2, AnaGroup::OPTIMIZED, vec![1])]));
    let (page, _) = admin.call(AdminCommand::identify(cns::NAMESPACE, 1), &[]);
    let identify = IdentifyNamespace::from_bytes(page[..].try_into().expect("a page"));
    assert_eq!(identify.anagrpid, 3);
    let ends = common::ends(&mut lane);
    assert_eq!(ends[0].1.as_ref().expect("its answer"), &20);

    // The namespace is the same to hosts, so there is no other event before the next one.
    let event = park(&mut admin);
    server.reload(&in_group(2)).expect("taken over");
    hear_event(&mut admin, event, ANA_NOTICE);
    assert_eq!(states(&mut admin), [AnaGroup::INACCESSIBLE]);
    inaccessible(read(&mut io, 1, 0));
    server.reload(&in_group(1)).expect("taken over");
    assert_eq!(read(&mut io, 1, 0), Status::SUCCESS);
}

/// Events of each kind are reported independently, once until the log is read, and again after the next change.
#[test]
fn events_of_each_kind_wait_for_their_own_log() {
    let base = listening(&[LOOPBACK], vec![memory(MIB, 512)]);
    let server = start(&base);
    let mut admin = Peer::admin(server.address(), NQN);
    states(&mut admin);
    let first = listen(&mut admin);
    let second = park(&mut admin);
    let more = vec![memory(MIB, 512), memory(MIB, 512)];
    server.reload(&TargetConfig { namespaces: more, ..base.clone() }).expect("one more");
    hear_event(&mut admin, first, NAMESPACE_NOTICE);
    // An unread log of the other kind does not hold it back.
    server.paths().drain(&[]).expect("drained");
    hear_event(&mut admin, second, ANA_NOTICE);
    let third = park(&mut admin);
    server.paths().undrain(&[]).expect("drained no more");
    // The host was told and has not read the log; after it has read the current state, it gets no event.
    let retained = AdminCommand::get_log_page(lid::ANA, u32::MAX, 0, 64);
    let retained = Sqe { cdw10: retained.cdw10 | 1 << 15, ..retained };
    assert_eq!(admin.status(retained, &[]), Status::SUCCESS);
    assert_eq!(states(&mut admin), [AnaGroup::OPTIMIZED]);
    server.paths().drain(&[]).expect("drained");
    hear_event(&mut admin, third, ANA_NOTICE);
}

/// All queues of a controller must come to one listener, whose ANA states hold for them.
#[test]
fn queues_must_use_the_listener_of_their_admin_queue() {
    let server = start(&listening(&[LOOPBACK, LOOPBACK], vec![memory(MIB, 512)]));
    let [one, two] = server.addresses()[..] else { panic!("two listeners") };
    let mut admin = Peer::admin(one, NQN);
    let mut io = Peer::open_at(two);
    io.initialize(NONE);
    let status = io.connect(NQN, 1, 31, controller_id(&mut admin));
    assert!(status.same_code(Status::CONNECT_INVALID_PARAMETERS), "{status}");
}

/// A host that has never read the ANA log would take Inaccessible for an error: it loses its connections instead, and
/// no host can connect before the drain ends.
#[test]
fn hosts_without_ana_are_disconnected() {
    let server = start(&listening(&[LOOPBACK, LOOPBACK], vec![memory(MIB, 512)]));
    let [one, two] = server.addresses()[..] else { panic!("two listeners") };
    let ((mut admin, mut io), (_other_admin, mut other_io)) = (pair_at(one), pair_at(two));
    let mut discovery = Peer::admin(one, DISCOVERY_NQN);
    server.paths().drain(&["1".to_owned()]).expect("drained");
    assert_eq!((admin.hear(), io.hear()), (Said::Closed, Said::Closed));
    assert_eq!(read(&mut other_io, 1, 0), Status::SUCCESS);
    assert_eq!(discovery.status(AdminCommand::keep_alive(), &[]), Status::SUCCESS);
    let mut late = Peer::open_at(one);
    late.initialize(NONE);
    let busy = late.connect(NQN, 0, 31, CNTLID_DYNAMIC);
    assert_eq!(busy, Status::CONNECT_CONTROLLER_BUSY, "and it may try again: no Do Not Retry");
    server.paths().undrain(&[]).expect("drained no more");
    let (_admin, mut io) = pair_at(one);
    assert_eq!(read(&mut io, 1, 0), Status::SUCCESS);
    // Setting a state is not a drain: hosts can connect, and see the state.
    server.paths().set_state(&[], None, AnaState::Inaccessible).expect("set");
    inaccessible(read(&mut io, 1, 0));
    let (_admin, mut io) = pair_at(two);
    inaccessible(read(&mut io, 1, 0));
}

/// Connections of a listener end, but not those of other listeners and of discovery.
#[test]
fn connections_of_a_listener_end() {
    let server = start(&listening(&[LOOPBACK, LOOPBACK], vec![memory(MIB, 512)]));
    let [one, two] = server.addresses()[..] else { panic!("two listeners") };
    let ((mut admin, mut io), (_other_admin, mut other_io)) = (pair_at(one), pair_at(two));
    states(&mut admin);
    server.paths().drain(&["1".to_owned()]).expect("drained");
    inaccessible(read(&mut io, 1, 0));
    server.paths().end_connections(&["1".to_owned()]).expect("closed");
    assert_eq!((admin.hear(), io.hear()), (Said::Closed, Said::Closed));
    assert_eq!(read(&mut other_io, 1, 0), Status::SUCCESS);
}

/// A target that is about to stop waits until hosts know, but not forever.
#[test]
fn a_stopping_target_waits_until_hosts_know() {
    let server = start(&listening(&[LOOPBACK], vec![memory(MIB, 512)]));
    let (mut admin, mut io) = pair_at(server.address());
    states(&mut admin);
    let event = listen(&mut admin);
    assert!(!server.drain(Duration::from_millis(50)), "the host has not read it");
    inaccessible(read(&mut io, 1, 0));
    hear_event(&mut admin, event, ANA_NOTICE);
    let reader = std::thread::spawn(move || (states(&mut admin), admin));
    assert!(server.drain(Duration::from_secs(20)), "it has");
    let (read, _admin) = reader.join().expect("it reads");
    assert_eq!(read, [AnaGroup::INACCESSIBLE]);
    server.stop();
}

fn discovery_log(address: SocketAddr) -> Vec<DiscoveryEntry> {
    entries(&mut Peer::admin(address, DISCOVERY_NQN))
}

fn entries(peer: &mut Peer) -> Vec<DiscoveryEntry> {
    let (page, _) = peer.call(AdminCommand::get_log_page(lid::DISCOVERY, 0, 0, 8192), &[]);
    let header = DiscoveryHeader::from_bytes(page[..1024].try_into().expect("a header"));
    let all = page[1024..].as_chunks().0.iter().map(DiscoveryEntry::from_bytes);
    all.take(header.records as usize).collect()
}

/// The discovery log names each listener, by its advertised address, and by a number that does not change.
#[test]
fn discovery_names_what_is_advertised() {
    let base = listening(
        &[
            "127.0.0.1:0,advertise=192.0.2.7:4421",
            "127.0.0.1:0,advertise=storage1.example.org,id=9",
            "[::1]:0",
            "127.0.0.1:0,advertise=[2001:db8::7]:1",
        ],
        vec![memory(MIB, 512)],
    );
    let server = start(&base);
    let addresses = server.addresses();
    let told = |address| -> Vec<(u16, u8, String, String)> {
        let all = discovery_log(address).into_iter();
        all.map(|e| (e.portid, e.adrfam, e.traddr.to_string(), e.trsvcid.to_string())).collect()
    };
    let port = |index: usize| addresses[index].port().to_string();
    let nvm = [
        (1, 1, "192.0.2.7".to_owned(), "4421".to_owned()),
        (9, 1, "storage1.example.org".to_owned(), port(1)),
        (3, 2, "::1".to_owned(), port(2)),
        (4, 2, "2001:db8::7".to_owned(), "1".to_owned()),
    ];
    for (index, its) in nvm.iter().enumerate() {
        let all = told(addresses[index]);
        // The first is the discovery subsystem, where the host is.
        assert_eq!((all[0].0, &all[0].2, &all[0].3), (0, &its.2, &its.3));
        assert_eq!(all[1..], nvm, "by listener {index}");
    }
    // The advertised address can change at run time, and hosts with events enabled are told.
    let mut watcher = Peer::admin(addresses[0], DISCOVERY_NQN);
    let set = AdminCommand::set_features(features::ASYNC_EVENT_CONFIGURATION, 1 << 31);
    assert_eq!(watcher.status(set, &[]), Status::SUCCESS);
    assert_eq!(entries(&mut watcher).len(), 5);
    let event = park(&mut watcher);
    let mut changed = base.clone();
    changed.listen.0[0].advertise = Some("192.0.2.8".parse().expect("good"));
    server.reload(&changed).expect("taken over");
    hear_event(&mut watcher, event, 0x0070_f002);
    let first = entries(&mut watcher).swap_remove(1);
    assert_eq!(
        (first.traddr.to_string(), first.trsvcid.to_string()),
        ("192.0.2.8".into(), port(0))
    );
    changed.listen.0[0].port_id = Some(7);
    let error = server.reload(&changed).expect_err("numbers stay").to_string();
    assert!(error.contains("listen cannot change"), "{error}");
}

/// IPv4 and IPv6 on one port, each with its own socket. A host that came by IPv6 is not told of the IPv4 listener,
/// whose address is unknown.
#[test]
fn both_kinds_of_addresses_on_one_port() {
    let attempt = |_| {
        let probe = TcpListener::bind(LOOPBACK).expect("a port");
        let port = probe.local_addr().expect("bound").port();
        drop(probe);
        let (all_v4, all_v6) = (format!("0.0.0.0:{port}"), format!("[::]:{port}"));
        let config = listening(&[&all_v4, &all_v6], vec![memory(MIB, 512)]);
        match Server::start(&TargetConfig { allow_any_host: true, ..config }) {
            // Another test has taken the port meanwhile.
            Err(ServerError::AddressInUse(_)) => None,
            started => Some((started.expect("it starts"), port)),
        }
    };
    let (server, port) = (0..20).find_map(attempt).expect("a free port");
    let by = |address| {
        let all = discovery_log(address).into_iter().skip(1);
        all.map(|e| (e.portid, e.traddr.to_string())).collect::<Vec<_>>()
    };
    let v4 = SocketAddr::from(([127, 0, 0, 1], port));
    assert_eq!(by(v4), [(1, "127.0.0.1".to_owned())]);
    assert_eq!(by((Ipv6Addr::LOCALHOST, port).into()), [(2, "::1".to_owned())]);
    drop(server);
}

/// Two targets on one file are one disk with two paths.
#[test]
fn two_targets_share_a_disk() {
    let directory = tempfile::tempdir().expect("a directory");
    let uuid = "6f2d1a3c-8a5e-4b0c-9d57-0a4f6a1e2b3c";
    let path = directory.path().join("disk");
    std::fs::File::create(&path).and_then(|disk| disk.set_len(MIB)).expect("room");
    // Under another file name, as on another machine.
    let other_path = directory.path().join("other");
    std::fs::hard_link(&path, &other_path).expect("a name");
    let target = |path, cntlids| {
        let bytes = bpfof_controller::NamespaceConfig {
            uuid: format!("file:path=/x,uuid={uuid}")
                .parse::<NamespaceConfig>()
                .expect("good")
                .uuid,
            ..file(path, MIB, 512)
        };
        start(&TargetConfig { cntlids, ..listening(&[LOOPBACK], vec![bytes]) })
    };
    let (one, two) = (target(&path, 1..=32_000), target(&other_path, 32_001..=65_519));
    let ((mut admin, mut io), (mut other_admin, mut other_io)) =
        (pair_at(one.address()), pair_at(two.address()));
    let descriptors = |admin: &mut Peer| {
        let (page, _) = admin.call(AdminCommand::identify(cns::NAMESPACE_DESCRIPTORS, 1), &[]);
        parse_namespace_descriptors(page[..].try_into().expect("a page")).expect("a list")
    };
    let (here, there) = (descriptors(&mut admin), descriptors(&mut other_admin));
    assert_eq!(here, there);
    let NamespaceDescriptor::Uuid(found) = here[1] else { panic!("{here:?}") };
    assert_eq!(u128::from_be_bytes(found), 0x6f2d_1a3c_8a5e_4b0c_9d57_0a4f_6a1e_2b3c);
    assert_eq!(here[0], NamespaceDescriptor::Nguid(found));
    assert_eq!(io.status(rw(opcode::nvm::WRITE, 1, 5), &[5; 512]), Status::SUCCESS);
    assert_eq!(other_io.call(rw(opcode::nvm::READ, 1, 5), &[]).0, [5; 512]);
    for _ in 0..3 {
        assert!((1..=32_000).contains(&controller_id(&mut admin)));
        assert!((32_001..=65_519).contains(&controller_id(&mut other_admin)));
        (admin, other_admin) = (Peer::admin(one.address(), NQN), Peer::admin(two.address(), NQN));
    }
}

/// Ids wrap around within their range.
#[test]
fn ids_of_controllers_stay_in_their_range() {
    let config = listening(&[LOOPBACK], vec![memory(MIB, 512)]);
    let server = start(&TargetConfig { cntlids: 2000..=3023, ..config });
    let ids: Vec<u16> = (0..1100)
        .map(|_| {
            let mut peer = Peer::open(&server);
            peer.initialize(NONE);
            let command =
                FabricsCommand::Connect { recfmt: 0, qid: 0, sqsize: 31, cattr: 0, kato_ms: 0 };
            let data = ConnectData {
                hostid: [5; 16],
                cntlid: CNTLID_DYNAMIC,
                subnqn: NQN.to_owned(),
                hostnqn: peer.host.clone(),
            };
            peer.call(command.to_sqe(), &data.to_bytes()).1.dw0 as u16
        })
        .collect();
    assert!(ids.iter().all(|id| (2000..=3023).contains(id)), "{ids:?}");
    assert!(ids.contains(&2000) && ids.contains(&3023));
}

/// A reload sets states that have changed in the configuration; otherwise states that an operator has set stay.
#[test]
fn a_reload_changes_states_that_differ_in_the_file() {
    let base = listening(&[LOOPBACK], vec![memory(MIB, 512)]);
    let server = start(&base);
    let (mut admin, mut io) = pair_at(server.address());
    states(&mut admin);
    let event = listen(&mut admin);
    let with = |state| {
        let mut changed = base.clone();
        changed.listen.0[0].ana = bpfof_controller::AnaStates::all(state);
        changed
    };
    server.reload(&with(AnaState::Inaccessible)).expect("taken over");
    hear_event(&mut admin, event, ANA_NOTICE);
    inaccessible(read(&mut io, 1, 0));
    server.paths().set_state(&[], None, AnaState::NonOptimized).expect("set");
    server.reload(&with(AnaState::Inaccessible)).expect("taken over");
    assert_eq!(states(&mut admin), [AnaGroup::NON_OPTIMIZED]);
    server.reload(&base).expect("taken over");
    assert_eq!(states(&mut admin), [AnaGroup::OPTIMIZED]);
    server.paths().drain(&[]).expect("drained");
    server.reload(&with(AnaState::NonOptimized)).expect("taken over");
    assert_eq!(states(&mut admin), [AnaGroup::INACCESSIBLE], "a drain lasts until undrain");
}

/// Given sockets replace the entries with their addresses, others the remaining entries in order.
#[test]
fn inherited_sockets_replace_matching_listeners() {
    let socket = || TcpListener::bind(LOOPBACK).expect("a port");
    let ((first, second), third) = ((socket(), socket()), socket());
    let at = |socket: &TcpListener| socket.local_addr().expect("bound");
    let expected = [at(&first), at(&second), at(&third)];
    let known = format!("{},advertise=192.0.2.2", expected[1]);
    let config = listening(&["127.0.0.1:1,advertise=192.0.2.1", &known], vec![memory(MIB, 512)]);
    let options = ServerOptions { listeners: vec![second, first, third], ..Default::default() };
    let mut server = Server::start_with(&config, options).expect("it starts");
    server.begin_accepting().expect("a thread");
    assert_eq!(server.addresses(), expected);
    let all = discovery_log(expected[2]).into_iter().skip(1);
    let told: Vec<_> = all.map(|e| (e.portid, e.traddr.to_string())).collect();
    let names = ["192.0.2.1", "192.0.2.2", "127.0.0.1"].map(str::to_owned);
    assert_eq!(told, (1..).zip(names).collect::<Vec<_>>());
}

/// A host that was silent for longer than its keep-alive timer may have sent its commands to another controller: later
/// commands have no effect.
#[test]
fn no_command_has_an_effect_after_the_keep_alive_timer() {
    let server = start(&listening(&[LOOPBACK], vec![memory(MIB, 512)]));
    let mut admin = Peer::open(&server);
    admin.initialize(NONE);
    let connect =
        FabricsCommand::Connect { recfmt: 0, qid: 0, sqsize: 31, cattr: 0, kato_ms: 2000 };
    let data = ConnectData {
        hostid: [5; 16],
        cntlid: CNTLID_DYNAMIC,
        subnqn: NQN.to_owned(),
        hostnqn: admin.host.clone(),
    };
    let id = admin.call(connect.to_sqe(), &data.to_bytes()).1.dw0 as u16;
    admin.enable();
    let mut io = Peer::open(&server);
    io.initialize(NONE);
    assert_eq!(io.connect(NQN, 1, 31, id), Status::SUCCESS);
    assert_eq!(io.status(rw(opcode::nvm::WRITE, 1, 0), &[1; 512]), Status::SUCCESS);
    // An eighth longer, and some time.
    std::thread::sleep(Duration::from_millis(2250 + 100));
    // The target may have closed the connection already.
    let (late, _) = io.capsule(rw(opcode::nvm::WRITE, 1, 0), &[2; 512]);
    let _ = std::io::Write::write_all(&mut io.stream, &late);
    assert_eq!(io.hear(), Said::Closed);
    let (_admin, mut other) = pair_at(server.address());
    assert_eq!(other.call(rw(opcode::nvm::READ, 1, 0), &[]).0, [1; 512]);
}
