//! A running target takes over another configuration: namespaces are added, removed, moved and
//! resized while hosts use them.

mod common;

use bpfof_controller::{NamespaceConfig, NamespaceSource, Server, TargetConfig};
use bpfof_host::{Completion, Controller, Options, PushdownCall, Request, RequestError, TargetUrl};
use bpfof_nvme::fabrics::DISCOVERY_NQN;
use bpfof_nvme::identify::{IdentifyNamespace, cns, parse_namespace_list};
use bpfof_nvme::log_page::{DiscoveryHeader, lid};
use bpfof_nvme::tcp::Digests;
use bpfof_nvme::vendor_specific::{Extent, FileMapObject};
use bpfof_nvme::{AdminCommand, Rw, Sgl, Sqe, Status, Upload, features, opcode};
use common::raw::{Peer, Said};
use common::stop::StopAtEnd;
use common::{
    call, compile, config, connect, ends, ends_with_data, file, load, memory, run, slow_memory,
    until, url,
};
use fastrand::Rng;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const NONE: Digests = Digests { header: false, data: false };
const OTHER: &str = "nqn.2026-01.io.bpf-of:other";
const MIB: u64 = 1 << 20;

fn with_id(nsid: u32, namespace: NamespaceConfig) -> NamespaceConfig {
    NamespaceConfig { nsid: Some(nsid), ..namespace }
}

fn of_other(namespace: NamespaceConfig) -> NamespaceConfig {
    NamespaceConfig { subsystem: Some(OTHER.to_owned()), ..namespace }
}

fn rw(opcode: u8, nsid: u32, slba: u64) -> Sqe {
    let sqe = Rw { slba, blocks: 1, fua: false }.to_sqe(opcode, nsid);
    let sgl = if opcode == opcode::nvm::READ { Sgl::transport(512) } else { Sgl::in_capsule(512) };
    Sqe { sgl, ..sqe }
}

/// The configuration with these namespaces, on the port that the server has.
fn change(base: &TargetConfig, namespaces: &[NamespaceConfig]) -> TargetConfig {
    TargetConfig { namespaces: namespaces.to_vec(), ..base.clone() }
}

fn active(admin: &mut Peer) -> Vec<u32> {
    let (list, cqe) = admin.call(AdminCommand::identify(cns::ACTIVE_NAMESPACES, 0), &[]);
    assert_eq!(cqe.status, Status::SUCCESS);
    parse_namespace_list(&list).collect()
}

fn identify(admin: &mut Peer, nsid: u32) -> IdentifyNamespace {
    let (page, cqe) = admin.call(AdminCommand::identify(cns::NAMESPACE, nsid), &[]);
    assert_eq!(cqe.status, Status::SUCCESS);
    IdentifyNamespace::from_bytes(page[..].try_into().expect("a page"))
}

/// Enables events of changed namespaces, and parks one request for them.
fn listen(admin: &mut Peer) -> u16 {
    let set = AdminCommand::set_features(features::ASYNC_EVENT_CONFIGURATION, 1 << 8);
    assert_eq!(admin.status(set, &[]), Status::SUCCESS);
    admin.send(Sqe::new(opcode::admin::ASYNC_EVENT_REQUEST, 0), &[])
}

/// Waits for the event; returns the changed namespaces.
fn changed(admin: &mut Peer, event: u16) -> Vec<u32> {
    let Said::Response(cqe) = admin.hear() else { panic!("no response") };
    assert_eq!((cqe.cid, cqe.dw0), (event, 0x0004_0002));
    let log = AdminCommand::get_log_page(lid::CHANGED_NAMESPACES, 0, 0, 4096);
    parse_namespace_list(&admin.call(log, &[]).0).collect()
}

/// Several targets may serve a file only if all of them give it the same UUID.
#[test]
fn the_lock_of_a_file_follows_its_uuid() {
    let directory = tempfile::tempdir().expect("a directory");
    let alone = file(&directory.path().join("disk"), MIB, 512);
    let shared = NamespaceConfig { uuid: Some([7; 16]), ..alone.clone() };
    let starts = || Server::start(&config(vec![shared.clone()])).is_ok();
    let base = config(vec![shared.clone()]);
    let server = Server::start(&base).expect("it starts");
    assert!(starts());
    let other = Server::start(&config(vec![shared.clone()])).expect("it starts");
    let refused = server.reload(&change(&base, std::slice::from_ref(&alone)));
    let why = refused.expect_err("another target serves it").to_string();
    assert!(why.contains("in use by another target"), "{why}");
    assert!(starts(), "nothing has changed");
    other.stop();
    server.reload(&change(&base, &[alone])).expect("it is taken over");
    assert!(!starts(), "the file is locked as shared");
    server.reload(&change(&base, std::slice::from_ref(&shared))).expect("it is taken over");
    assert!(starts(), "the file is locked");
}

#[test]
fn namespaces_are_added_removed_and_moved() {
    let directory = tempfile::tempdir().expect("a directory");
    let disk = |name: &str, bytes| file(&directory.path().join(name), bytes, 512);
    let (a, b, ram) = (disk("a", MIB), disk("b", MIB), memory(MIB, 512));
    let base = TargetConfig {
        cores: vec![0, 0],
        ..config(vec![a.clone(), b.clone(), with_id(9, ram.clone())])
    };
    let server = Server::start(&base).expect("it starts");
    let (mut admin, mut io) = Peer::pair(&server, NONE, 15);
    assert_eq!(active(&mut admin), [1, 2, 9]);
    for (nsid, byte) in [(1, 1), (2, 2), (9, 9)] {
        assert_eq!(io.status(rw(opcode::nvm::WRITE, nsid, 7), &[byte; 512]), Status::SUCCESS);
    }
    let mut content = |nsid| {
        let (data, cqe) = io.call(rw(opcode::nvm::READ, nsid, 7), &[]);
        if cqe.status.is_success() { Ok(data[0]) } else { Err(cqe.status) }
    };
    let gone = Err(Status::INVALID_NAMESPACE.with_dnr());
    let before = [1, 2, 9].map(|nsid| identify(&mut admin, nsid).nguid);

    // The first is removed, the second moves to its id and grows, one is added with an id.
    let event = listen(&mut admin);
    let next = [disk("b", 2 * MIB), with_id(9, ram.clone()), with_id(5, disk("c", MIB))];
    server.reload(&change(&base, &next)).expect("it is taken over");
    assert_eq!(changed(&mut admin, event), [1, 2, 5]);
    assert_eq!(active(&mut admin), [1, 5, 9]);
    assert_eq!([1, 2, 5, 9].map(&mut content), [Ok(2), gone, Ok(0), Ok(9)]);
    let now = [1, 2, 9].map(|nsid| identify(&mut admin, nsid));
    assert_eq!([now[0].nguid, now[1].nguid, now[2].nguid], [before[1], [0; 16], before[2]]);
    assert_eq!([now[0].nsze, now[1].nsze, now[2].nsze], [4096, 0, 2048]);

    // Nothing has changed: no host is told. Then the file comes back unchanged, with the same
    // identifiers.
    let event = listen(&mut admin);
    server.reload(&change(&base, &next)).expect("it is taken over");
    assert_eq!(admin.status(AdminCommand::keep_alive(), &[]), Status::SUCCESS);
    until("the file is let go", || {
        let next = [next.to_vec(), vec![with_id(1024, a.clone())]].concat();
        server.reload(&change(&base, &next)).is_ok()
    });
    assert_eq!(changed(&mut admin, event), [1024]);
    assert_eq!((content(1024), identify(&mut admin, 1024).nguid), (Ok(1), before[0]));

    // Memory that was removed comes back as other memory.
    let event = listen(&mut admin);
    server.reload(&change(&base, &next[..1])).expect("it is taken over");
    assert_eq!(changed(&mut admin, event), [5, 9, 1024]);
    let event = listen(&mut admin);
    server.reload(&change(&base, &next[..2])).expect("it is taken over");
    assert_eq!(changed(&mut admin, event), [9]);
    assert_eq!([1, 5, 9, 1024].map(&mut content), [Ok(2), gone, Ok(0), gone]);
    assert_ne!(identify(&mut admin, 9).nguid, before[2]);

    // Smaller: blocks beyond the new end cannot be reached.
    let event = listen(&mut admin);
    server.reload(&change(&base, &[disk("b", 4096), next[1].clone()])).expect("it is taken over");
    assert_eq!(changed(&mut admin, event), [1]);
    assert_eq!(identify(&mut admin, 1).nsze, 8);
    assert_eq!(content(1), Ok(2));
    let beyond = io.status(rw(opcode::nvm::WRITE, 1, 8), &[1; 512]);
    assert!(beyond.same_code(Status::LBA_OUT_OF_RANGE), "{beyond}");
}

#[test]
fn a_bad_configuration_changes_nothing_and_says_why() {
    let directory = tempfile::tempdir().expect("a directory");
    let disk = |lba| file(&directory.path().join("a"), MIB, lba);
    let base = config(vec![disk(512), memory(MIB, 512)]);
    let server = Server::start(&base).expect("it starts");
    let (mut admin, mut io) = Peer::pair(&server, NONE, 15);
    let event = listen(&mut admin);
    assert_eq!(io.status(rw(opcode::nvm::WRITE, 2, 7), &[2; 512]), Status::SUCCESS);
    let missing = NamespaceConfig {
        source: NamespaceSource::File { path: "/nowhere".into(), size_bytes: None },
        ..disk(512)
    };
    let one = |namespace: NamespaceConfig| change(&base, &[disk(512), namespace]);
    let bad = [
        (change(&base, &[]), "no namespace"),
        (one(with_id(1, memory(MIB, 512))), "two namespaces with id 1"),
        (one(missing), "/nowhere does not exist"),
        (one(memory(2 * MIB, 512)), "a memory namespace cannot be replaced"),
        (one(memory(MIB, 4096)), "a memory namespace cannot be replaced"),
        (change(&base, &[disk(4096)]), "with another block size"),
        (TargetConfig { poll: true, ..base.clone() }, "poll cannot change while the target runs"),
        (TargetConfig { cores: vec![0], ..base.clone() }, "cores cannot change"),
        (TargetConfig { nqn: "disk".into(), ..base.clone() }, "not an NVMe qualified name"),
    ];
    for (config, reason) in bad {
        let error = server.reload(&config).expect_err(reason).to_string();
        assert!(error.contains(reason), "{error}");
        assert_eq!(active(&mut admin), [1, 2]);
        assert_eq!(io.call(rw(opcode::nvm::READ, 2, 7), &[]).0, [2; 512]);
    }
    // No event came for any of them.
    server.reload(&one(with_id(3, memory(MIB, 512)))).expect("it is taken over");
    assert_eq!(changed(&mut admin, event), [2, 3]);
}

/// Memory of a file keeps the identifiers of its file, and stays unchanged while it is served.
#[test]
fn the_memory_of_a_file_comes_back() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder on tmpfs");
    let path = folder.path().join("image");
    std::fs::write(&path, vec![7; MIB as usize]).expect("room");
    let mapped = |latency_us| NamespaceConfig {
        source: NamespaceSource::MemoryFile { path: path.clone(), latency_us, iops: 0 },
        ..with_id(5, memory(MIB, 512))
    };
    let base = config(vec![memory(MIB, 512)]);
    let server = Server::start(&base).expect("it starts");
    let with = |latency_us| change(&base, &[memory(MIB, 512), mapped(latency_us)]);
    let (mut admin, mut io) = Peer::pair(&server, NONE, 15);
    server.reload(&with(0)).expect("it is taken over");
    let before = identify(&mut admin, 5);
    assert_eq!((before.nsze, io.call(rw(opcode::nvm::READ, 5, 3), &[]).0), (2048, vec![7; 512]));
    assert_eq!(io.status(rw(opcode::nvm::WRITE, 5, 3), &[8; 512]), Status::SUCCESS);
    let error = server.reload(&with(9)).expect_err("it is served").to_string();
    assert!(error.contains("image is being served") && error.contains("another way"), "{error}");
    server.reload(&base).expect("it is taken over");
    until("the file is let go", || server.reload(&with(9)).is_ok());
    assert_eq!(identify(&mut admin, 5).nguid, before.nguid);
    assert_eq!(io.call(rw(opcode::nvm::READ, 5, 3), &[]).0, [8; 512]);
    assert_eq!(std::fs::read(&path).expect("it is there")[3 * 512..4 * 512], [8; 512]);
}

/// Commands in flight on a removed namespace are completed; its chains end with a status that says
/// so; later commands are told that it is gone.
#[test]
fn work_in_flight_on_removed_namespaces() {
    let stays = memory(MIB, 512);
    // Long enough for the reload to come meanwhile.
    let base = config(vec![stays.clone(), slow_memory(MIB, 512, 1_500_000)]);
    let server = Server::start(&base).expect("it starts");
    let (mut controller, mut lane) = connect(&server, false);
    let walk = load(&mut controller, &compile("hostile"), "fan");
    let read = |nsid| Request::Read { nsid, offset_bytes: 0, length_bytes: 512 };
    lane.submit(0, read(2)).expect("submitted");
    let write = Request::Write { nsid: 2, offset_bytes: 512, data: &[3; 512], fua: false };
    lane.submit(1, write).expect("submitted");
    let chain = PushdownCall { nsid: 2, ..call(walk, &[]) };
    lane.submit(2, Request::Pushdown(chain)).expect("submitted");
    lane.submit(3, read(1)).expect("submitted");
    let mut is_there = false;
    while !is_there {
        let mut taken = |completion: Completion<'_>| is_there |= completion.tag == 3;
        lane.wait(Duration::from_secs(5), &mut taken).expect("connected");
    }
    server.reload(&change(&base, &[stays])).expect("it is taken over");
    lane.submit(4, read(2)).expect("submitted");
    let mut done = ends(&mut lane);
    done.sort_by_key(|(tag, _)| *tag);
    let status = |end: &Result<u32, RequestError>| match end {
        Ok(_) => Status::SUCCESS,
        Err(RequestError::Command(error)) => error.status,
        Err(other) => panic!("{other}"),
    };
    let found: Vec<_> = done.iter().map(|(tag, end)| (*tag, status(end))).collect();
    let gone = Status::INVALID_NAMESPACE.with_dnr();
    assert_eq!(
        found,
        [(0, Status::SUCCESS), (1, Status::SUCCESS), (2, gone), (4, gone)],
        "reads and writes end, chains do not go on"
    );
    assert_eq!(run(&mut lane, &chain).expect_err("it is gone").status, gone);
}

/// The other id, or the other subsystem, may belong to another tenant.
#[test]
fn memory_stays_under_its_id() {
    let (stays, small) = (memory(MIB, 512), memory(128 << 10, 512));
    let base = config(vec![stays.clone(), with_id(2, small.clone())]);
    let server = Server::start(&base).expect("it starts");
    let (mut admin, mut io) = Peer::pair(&server, NONE, 15);
    for nsid in [1, 2] {
        let data = [nsid as u8; 512];
        assert_eq!(io.status(rw(opcode::nvm::WRITE, nsid, 7), &data), Status::SUCCESS);
    }
    server.reload(&change(&base, &[stays.clone(), with_id(3, small.clone())])).expect("taken over");
    assert_eq!(active(&mut admin), [1, 3]);
    let mut first_byte = |nsid| io.call(rw(opcode::nvm::READ, nsid, 7), &[]).0[0];
    assert_eq!((first_byte(1), first_byte(3)), (1, 0));
    server.reload(&change(&base, &[of_other(stays), with_id(3, small)])).expect("taken over");
    let url = TargetUrl { nqn: OTHER.to_owned(), ..url(&server) };
    let controller = Controller::connect(&url, Options::default()).expect("it connects");
    let (mut lane, mut block) = (controller.open_lane().expect("a lane"), [9; 512]);
    lane.read(1, 7 * 512, &mut block).expect("read");
    assert_eq!(block, [0; 512]);
}

/// File maps are removed with their namespace, so that none reaches into a namespace that replaces
/// it.
#[test]
fn file_maps_go_with_their_namespace() {
    let base = config(vec![memory(MIB, 512), memory(MIB, 512)]);
    let server = Server::start(&base).expect("it starts");
    let (mut admin, _io) = Peer::pair(&server, NONE, 15);
    let mut set_map = |nsid, device_offset| {
        let extent = Extent { file_offset: 0, device_offset, length_bytes: 512 };
        let map =
            FileMapObject { file: 3, nsid, version: 1, length_bytes: 512, extents: vec![extent] };
        let mut object = Vec::new();
        map.encode_into(&mut object);
        let upload = Upload { total_bytes: object.len() as u32, offset_bytes: 0 };
        let sgl = Sgl::in_capsule(object.len() as u32);
        admin.status(Sqe { sgl, ..AdminCommand::file_map_set(upload) }, &object)
    };
    assert_eq!(set_map(2, MIB - 512), Status::SUCCESS);
    server.reload(&change(&base, &[memory(MIB, 512)])).expect("it is taken over");
    assert!(set_map(2, 0).same_code(Status::INVALID_FIELD), "there is no such namespace");
    server
        .reload(&change(&base, &[memory(MIB, 512), memory(4096, 512)]))
        .expect("it is taken over");
    assert!(set_map(2, MIB - 512).same_code(Status::INVALID_FIELD), "the new one is smaller");
    assert_eq!(set_map(2, 4096 - 512), Status::SUCCESS);
}

/// Hosts with events enabled at a discovery controller are told of added and removed subsystems,
/// once until they have read the log page.
#[test]
fn discovery_tells_of_changes() {
    let listen = ([127, 0, 0, 1], 0).into();
    let base = TargetConfig { listen, ..config(vec![memory(MIB, 512)]) };
    let server = Server::start(&base).expect("it starts");
    let mut admin = Peer::admin(server.address(), DISCOVERY_NQN);
    let (page, _) = admin.call(AdminCommand::identify(cns::CONTROLLER, 0), &[]);
    let identify =
        bpfof_nvme::identify::IdentifyController::from_bytes(page[..].try_into().expect("a page"));
    assert_eq!(identify.oaes, 1 << 31);
    let retained = |mut sqe: Sqe| {
        sqe.cdw10 |= 1 << 15;
        sqe
    };
    let log = AdminCommand::get_log_page(lid::DISCOVERY, 0, 0, 1024);
    let header = |admin: &mut Peer, sqe| {
        let (page, _) = admin.call(sqe, &[]);
        let header = DiscoveryHeader::from_bytes(page[..].try_into().expect("a header"));
        (header.generation, header.records)
    };
    assert_eq!(header(&mut admin, log), (1, 2));
    let set = AdminCommand::set_features(features::ASYNC_EVENT_CONFIGURATION, 1 << 31);
    assert_eq!(admin.status(set, &[]), Status::SUCCESS);
    let event = Sqe::new(opcode::admin::ASYNC_EVENT_REQUEST, 0);
    let first = admin.send(event, &[]);
    let second = admin.send(event, &[]);
    // More namespaces of the same subsystem cause no event.
    let two = [memory(MIB, 512), memory(MIB, 512)];
    server.reload(&change(&base, &two)).expect("it is taken over");
    assert_eq!(header(&mut admin, log), (1, 2));

    let other = [two.to_vec(), vec![of_other(memory(MIB, 512))]].concat();
    server.reload(&change(&base, &other)).expect("it is taken over");
    let Said::Response(cqe) = admin.hear() else { panic!("no response") };
    assert_eq!((cqe.cid, cqe.dw0), (first, 0x0070_f002));
    let mut disk = Peer::admin(server.address(), OTHER);
    assert_eq!(active(&mut disk), [1]);
    assert_eq!(header(&mut admin, retained(log)), (2, 3));
    server.reload(&change(&base, &two)).expect("it is taken over");
    assert_eq!(admin.status(AdminCommand::keep_alive(), &[]), Status::SUCCESS);
    // The connected host stays, without namespaces; no other host can connect.
    assert_eq!(active(&mut disk), [] as [u32; 0]);
    let mut late = Peer::open(&server);
    late.initialize(NONE);
    let refused = late.connect(OTHER, 0, 31, u16::MAX);
    assert!(refused.same_code(Status::CONNECT_INVALID_PARAMETERS), "{refused}");
    assert_eq!(header(&mut admin, log), (3, 2));
    server.reload(&change(&base, &other)).expect("it is taken over");
    let Said::Response(cqe) = admin.hear() else { panic!("no response") };
    assert_eq!((cqe.cid, cqe.dw0), (second, 0x0070_f002));
    assert_eq!(header(&mut admin, log), (4, 3));
    assert_eq!(active(&mut disk), [1], "the same subsystem");
}

/// A host must learn that there is a cache to flush now, and it checks only when it connects.
#[test]
fn a_new_write_cache_ends_associations() {
    let directory = tempfile::tempdir().expect("a directory");
    let disk = file(&directory.path().join("a"), MIB, 512);
    let base = config(vec![memory(MIB, 512), of_other(memory(MIB, 512))]);
    let server = Server::start(&base).expect("it starts");
    let (mut admin, mut io) = Peer::pair(&server, NONE, 15);
    let mut other = Peer::admin(server.address(), OTHER);
    let next = [base.namespaces.clone(), vec![disk]].concat();
    server.reload(&change(&base, &next)).expect("it is taken over");
    admin.expect_end(None);
    io.expect_end(None);
    assert_eq!(other.status(AdminCommand::keep_alive(), &[]), Status::SUCCESS);
    let (mut admin, _io) = Peer::pair(&server, NONE, 15);
    let (page, _) = admin.call(AdminCommand::identify(cns::CONTROLLER, 0), &[]);
    assert_eq!(page[525] & 1, 1, "it has a write cache");
}

/// Namespaces are added and removed at random while hosts of two reactors read, write and run
/// chains. Each command ends; those that succeed have the contents of the right namespace.
#[test]
fn changes_under_load() {
    let directory = tempfile::tempdir().expect("a directory");
    // Because one file stays, changes of the others do not force hosts to connect again.
    let stays = file(&directory.path().join("stays"), MIB, 512);
    let others = [
        with_id(2, memory(128 << 10, 512)),
        with_id(2, file(&directory.path().join("a"), 128 << 10, 512)),
        with_id(3, memory(128 << 10, 512)),
    ];
    // Lanes know the namespaces that existed when they were opened.
    let all = vec![stays.clone(), others[0].clone(), others[2].clone()];
    let base = TargetConfig { cores: vec![0, 0], ..config(all) };
    let server = Server::start(&base).expect("it starts");
    let (stop, object) = (AtomicBool::new(false), compile("hostile"));
    let connected = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for worker in 0..3u64 {
            let (server, stop, object, connected) = (&server, &stop, &object, &connected);
            scope.spawn(move || work(server, worker, object, (connected, stop)));
        }
        until("all are connected", || connected.load(Ordering::SeqCst) == 3);
        let mut numbers = Rng::with_seed(7);
        for _ in 0..300 {
            let mut namespaces = vec![stays.clone()];
            match numbers.u64(..3) {
                0 => {}
                index => namespaces.push(others[index as usize - 1].clone()),
            }
            if numbers.u64(..2) == 0 {
                namespaces.push(others[2].clone());
            }
            // A command may still use the file; memory must not be replaced by other memory.
            if let Err(error) = server.reload(&change(&base, &namespaces)) {
                let text = error.to_string();
                assert!(text.contains("in use") || text.contains("cannot be replaced"), "{text}");
            }
        }
    });
    server.reload(&change(&base, &[stays])).expect("it is taken over");
    let (mut admin, mut io) = Peer::pair(&server, NONE, 15);
    assert_eq!(active(&mut admin), [1]);
    assert_eq!(io.status(rw(opcode::nvm::WRITE, 1, 0), &[1; 512]), Status::SUCCESS);
}

/// A host that reads, writes and runs chains on namespaces that may exist or not. Namespace 1
/// always exists.
fn work(server: &Server, worker: u64, object: &[u8], (connected, stop): (&AtomicU64, &AtomicBool)) {
    let mut numbers = Rng::with_seed(worker);
    let (mut controller, mut lane) = connect(server, false);
    let fan = load(&mut controller, object, "fan");
    connected.fetch_add(1, Ordering::SeqCst);
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut asked = Vec::new();
        for tag in 0..16 {
            let nsid = 1 + numbers.u64(..3) as u32;
            let offset_bytes = numbers.u64(..128) * 512;
            let data = [nsid as u8; 512];
            let request = match numbers.u64(..3) {
                0 => Request::Read { nsid, offset_bytes, length_bytes: 512 },
                1 => Request::Write { nsid, offset_bytes, data: &data, fua: false },
                _ => {
                    let first_offset_bytes = offset_bytes;
                    Request::Pushdown(PushdownCall { nsid, first_offset_bytes, ..call(fan, &[]) })
                }
            };
            asked.push((nsid, matches!(request, Request::Read { .. })));
            lane.submit(tag, request).expect("there is room");
        }
        for (tag, end) in ends_with_data(&mut lane) {
            let (nsid, is_read) = asked[tag as usize];
            let error = match end {
                Ok((_, data)) => {
                    let is_its = |byte: &u8| *byte == 0 || *byte == nsid as u8;
                    assert!(
                        !is_read || data.len() == 512 && data.iter().all(is_its),
                        "{nsid}: {}",
                        data[0]
                    );
                    done += 1;
                    continue;
                }
                Err(error) => error,
            };
            let RequestError::Command(error) = error else { panic!("{tag}: {error}") };
            let gone = error.status.same_code(Status::INVALID_NAMESPACE);
            // A chain may have begun before the tables had the whole-namespace map of a new
            // namespace.
            assert!(gone || error.status.same_code(Status::UNKNOWN_FILE), "{tag}: {error}");
        }
    }
    assert!(done > 0, "namespace 1 is always there");
}

/// A disk that has vanished keeps its namespace, and does not prevent changes of namespaces or
/// rules.
#[test]
fn a_missing_disk_does_not_prevent_other_changes() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("a");
    let set_size = |bytes| {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
        file.and_then(|file| file.set_len(bytes)).expect("it has the size");
    };
    set_size(MIB);
    let source = NamespaceSource::File { path: path.clone(), size_bytes: None };
    let disk = NamespaceConfig::new(source, 512);
    let base = config(vec![disk.clone()]);
    let server = Server::start(&base).expect("it starts");
    let (mut admin, _io) = Peer::pair(&server, NONE, 15);
    set_size(0);
    server.reload_rules(&base.rules).expect("it is taken over");
    server.reload(&change(&base, &[disk.clone(), memory(MIB, 512)])).expect("it is taken over");
    assert_eq!(active(&mut admin), [1, 2]);
    assert_eq!(identify(&mut admin, 1).nsze, 2048);
    // A change of rules alone changes no size.
    set_size(2 * MIB);
    server.reload_rules(&base.rules).expect("it is taken over");
    assert_eq!(identify(&mut admin, 1).nsze, 2048);
    server.reload(&base).expect("it is taken over");
    assert_eq!(identify(&mut admin, 1).nsze, 4096);
}
