//! Commands of stock hosts beyond reads and writes: discovery, log pages, features, optional
//! commands, several subsystems.

mod common;

use bpfof_controller::{NamespaceConfig, Server, TargetConfig};
use bpfof_device::FileNamespace;
use bpfof_nvme::fabrics::{
    CNTLID_DYNAMIC, ControllerConfig, DISCOVERY_NQN, FabricsCommand, offset,
};
use bpfof_nvme::identify::{
    IdentifyController, IdentifyNamespace, NamespaceDescriptor, cns, parse_namespace_descriptors,
};
use bpfof_nvme::log_page::{
    AnaGroup, AnaHeader, DiscoveryEntry, DiscoveryHeader, ErrorLogEntry, SmartLog, lid,
};
use bpfof_nvme::tcp::Digests;
use bpfof_nvme::{AdminCommand, DsmRange, Rw, Sgl, Sqe, Status, features, opcode};
use common::raw::{Peer, Said};
use common::skip::skip_part;
use common::{NAMESPACE_BYTES, NQN, config, file, memory, start};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

const NONE: Digests = Digests { header: false, data: false };
const OTHER: &str = "nqn.2026-01.io.bpf-of:other";

fn discovery_log(peer: &mut Peer) -> (DiscoveryHeader, Vec<DiscoveryEntry>) {
    let log = |at, length| AdminCommand::get_log_page(lid::DISCOVERY, 0, at, length);
    let (page, cqe) = peer.call(log(0, 1024), &[]);
    assert_eq!(cqe.status, Status::SUCCESS);
    let header = DiscoveryHeader::from_bytes(page[..].try_into().expect("a header"));
    let length = header.records as u32 * 1024;
    let (entries, cqe) = peer.call(log(1024, length), &[]);
    assert_eq!(cqe.status, Status::SUCCESS);
    let entries = entries.as_chunks().0.iter().map(DiscoveryEntry::from_bytes).collect();
    let (again, _) = peer.call(log(0, 20), &[]);
    assert_eq!(again, page[..20]);
    (header, entries)
}

/// The discovery log lists each subsystem at the address that the host reached, on the I/O port and
/// on the discovery port.
#[test]
fn discovery() {
    let other = NamespaceConfig { subsystem: Some(OTHER.to_owned()), ..memory(1 << 20, 512) };
    let server = Server::start(&TargetConfig {
        listen: (Ipv4Addr::UNSPECIFIED, 0).into(),
        discovery: Some((Ipv4Addr::UNSPECIFIED, 0).into()),
        allow_any_host: true,
        ..config(vec![memory(1 << 20, 512), other])
    })
    .expect("it starts");
    let port = server.address().port();
    let discovery_port = server.discovery_address().expect("there is one").port();
    for (ip, at) in [(1, port), (2, port), (3, discovery_port)] {
        let ip = Ipv4Addr::new(127, 0, 0, ip);
        let mut peer = Peer::admin((ip, at).into(), DISCOVERY_NQN);
        let (header, entries) = discovery_log(&mut peer);
        assert_eq!((header.records, header.recfmt), (3, 0));
        let found: Vec<_> = entries
            .iter()
            .map(|entry| {
                assert_eq!((entry.trtype, entry.adrfam, entry.cntlid), (3, 1, CNTLID_DYNAMIC));
                assert_eq!(entry.traddr.to_string(), ip.to_string());
                (entry.subtype, entry.subnqn.to_string(), entry.trsvcid.to_string())
            })
            .collect();
        let port = port.to_string();
        assert_eq!(
            found,
            [
                (3, DISCOVERY_NQN.to_owned(), at.to_string()),
                (2, NQN.to_owned(), port.clone()),
                (2, OTHER.to_owned(), port)
            ]
        );
        let (page, _) = peer.call(AdminCommand::identify(cns::CONTROLLER, 0), &[]);
        let identify = IdentifyController::from_bytes(page[..].try_into().expect("a page"));
        assert_eq!((identify.cntrltype, identify.nn), (2, 0));
        assert_eq!(identify.subnqn.to_string(), DISCOVERY_NQN);
    }
}

/// A discovery controller supports discovery and nothing else.
#[test]
fn discovery_only() {
    let discovery = Some((Ipv4Addr::LOCALHOST, 0).into());
    let server = Server::start(&TargetConfig { discovery, ..config(vec![memory(1 << 20, 512)]) });
    let server = server.expect("it starts");
    let mut admin = Peer::admin(server.address(), DISCOVERY_NQN);
    let refused = [
        (AdminCommand::identify(cns::NAMESPACE, 1), Status::INVALID_FIELD),
        (AdminCommand::get_log_page(lid::SMART, 0, 0, 512), Status::INVALID_LOG_PAGE),
        (AdminCommand::set_features(features::NUMBER_OF_QUEUES, 3), Status::INVALID_FIELD),
        (AdminCommand::pushdown_identify(64), Status::INVALID_OPCODE),
        (AdminCommand::function_unload(1), Status::INVALID_OPCODE),
    ];
    for (sqe, status) in refused {
        assert!(admin.status(sqe, &[]).same_code(status), "{sqe:?}");
    }
    assert_eq!(admin.status(AdminCommand::keep_alive(), &[]), Status::SUCCESS);
    let mut queue = Peer::open(&server);
    queue.initialize(NONE);
    let status = queue.connect(DISCOVERY_NQN, 1, 15, 1);
    assert!(status.same_code(Status::CONNECT_INVALID_PARAMETERS), "{status}");
    // The discovery port serves no other subsystem, and an I/O controller at the other port has no
    // discovery log.
    let address = server.discovery_address().expect("there is one");
    let mut wrong = Peer::open_at(address);
    wrong.initialize(NONE);
    let status = wrong.connect(NQN, 0, 31, CNTLID_DYNAMIC);
    assert!(status.same_code(Status::CONNECT_INVALID_PARAMETERS), "{status}");
    let mut disk = Peer::admin(server.address(), NQN);
    let log = AdminCommand::get_log_page(lid::DISCOVERY, 0, 0, 1024);
    assert!(disk.status(log, &[]).same_code(Status::INVALID_LOG_PAGE));
}

fn descriptors(peer: &mut Peer, nsid: u32) -> Vec<NamespaceDescriptor> {
    let (page, cqe) = peer.call(AdminCommand::identify(cns::NAMESPACE_DESCRIPTORS, nsid), &[]);
    assert_eq!(cqe.status, Status::SUCCESS);
    parse_namespace_descriptors(page[..].try_into().expect("a page")).expect("a list")
}

/// Subsystems share neither ids nor controllers nor contents. A file has the same identifiers after
/// a restart, whatever its place among the namespaces.
#[test]
fn subsystems_and_identities() {
    let directory = tempfile::tempdir().expect("a directory");
    let of_other = |namespace| NamespaceConfig { subsystem: Some(OTHER.to_owned()), ..namespace };
    let disk = |name: &str, lba| file(&directory.path().join(name), 1 << 20, lba);
    let first = vec![memory(1 << 20, 512), of_other(disk("a", 4096)), of_other(disk("b", 512))];
    let second = vec![of_other(disk("b", 512)), memory(1 << 20, 512), of_other(disk("a", 4096))];
    let mut seen = Vec::new();
    for namespaces in [first, second] {
        let server = start(namespaces);
        let mut one = Peer::admin(server.address(), NQN);
        let mut other = Peer::admin(server.address(), OTHER);
        // A valid id without a namespace, and an invalid one.
        assert_eq!(one.call(AdminCommand::identify(cns::NAMESPACE, 2), &[]).0, [0; 4096]);
        assert!(
            one.status(AdminCommand::identify(cns::NAMESPACE, 1025), &[])
                .same_code(Status::INVALID_NAMESPACE)
        );
        let (list, _) = other.call(AdminCommand::identify(cns::ACTIVE_NAMESPACES, 0), &[]);
        assert_eq!(list[..12], [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        let block = |peer: &mut Peer, nsid| {
            let (page, _) = peer.call(AdminCommand::identify(cns::NAMESPACE, nsid), &[]);
            let page = IdentifyNamespace::from_bytes(page[..].try_into().expect("a page"));
            page.format().block_bytes().expect("a format")
        };
        let blocks = [block(&mut other, 1), block(&mut other, 2)];
        seen.push((blocks, [1, 2].map(|nsid| descriptors(&mut other, nsid))));
        let (page, _) = one.call(AdminCommand::identify(cns::CONTROLLER, 0), &[]);
        let identify = IdentifyController::from_bytes(page[..].try_into().expect("a page"));
        assert!(identify.model.to_string().contains("volatile memory"));
        assert_eq!(identify.vwc & 1, 0, "memory has no cache to flush");
        let (page, _) = other.call(AdminCommand::identify(cns::CONTROLLER, 0), &[]);
        let identify = IdentifyController::from_bytes(page[..].try_into().expect("a page"));
        assert_eq!((identify.model.to_string().as_str(), identify.vwc & 1), ("bpf-of", 1));
    }
    let [(blocks_1, files_1), (blocks_2, files_2)] = &seen[..] else { panic!("two starts") };
    assert_eq!((blocks_1, blocks_2), (&[4096, 512], &[512, 4096]));
    assert_eq!((&files_1[0], &files_1[1]), (&files_2[1], &files_2[0]));
    assert_ne!(files_1[0], files_1[1]);
    let NamespaceDescriptor::Uuid(uuid) = files_1[0][1] else { panic!("{:?}", files_1[0]) };
    assert_eq!((uuid[6] >> 4, uuid[8] >> 6), (8, 2));
}

#[test]
fn log_pages() {
    let server = start(vec![memory(NAMESPACE_BYTES, 512)]);
    let (mut admin, mut io) = Peer::pair(&server, NONE, 15);
    let rw = |opcode, slba| Sqe {
        sgl: Sgl::transport(512),
        ..Rw { slba, blocks: 1, fua: false }.to_sqe(opcode, 1)
    };
    assert_eq!(io.call(rw(opcode::nvm::READ, 3), &[]).1.status, Status::SUCCESS);
    let refused_cid = io.send(rw(opcode::nvm::READ, 1 << 40), &[]);
    let Said::Response(refused) = io.hear() else { panic!("no response") };
    assert!(refused.status.same_code(Status::LBA_OUT_OF_RANGE));
    // Counters are published at the end of a turn.
    assert_eq!(io.call(rw(opcode::nvm::READ, 3), &[]).1.status, Status::SUCCESS);

    let (page, cqe) = admin.call(AdminCommand::get_log_page(lid::ERROR, 0, 0, 128), &[]);
    assert_eq!(cqe.status, Status::SUCCESS);
    let entry = ErrorLogEntry::from_bytes(page[..64].try_into().expect("an entry"));
    assert_eq!((entry.error_count, entry.sqid, entry.cid), (1, 1, refused_cid));
    assert_eq!((entry.lba, entry.nsid), (1 << 40, 1));
    assert_eq!(Status::from_field(entry.status_field >> 1), refused.status);
    assert_eq!(page[64..], [0; 64]);

    let (page, _) = admin.call(AdminCommand::get_log_page(lid::SMART, u32::MAX, 0, 512), &[]);
    let smart = SmartLog::from_bytes(page[..].try_into().expect("a page"));
    assert!(smart.host_reads >= 1, "{smart:?}");
    assert_eq!((smart.data_units_read, smart.error_log_entries), (1, 1));
    assert_eq!((smart.critical_warning, smart.spare_percent), (0, 100));
    let one = AdminCommand::get_log_page(lid::SMART, 1, 0, 512);
    assert!(admin.status(one, &[]).same_code(Status::INVALID_FIELD));

    let (page, _) = admin.call(AdminCommand::get_log_page(lid::SUPPORTED, 0, 0, 1024), &[]);
    for (lid, supported) in page.as_chunks().0.iter().enumerate() {
        let sqe = AdminCommand::get_log_page(lid as u8, 0, 0, 4);
        let answered = admin.status(sqe, &[]) == Status::SUCCESS;
        assert_eq!(u32::from_le_bytes(*supported) & 1 == 1, answered, "log page {lid:#x}");
    }
    // The target knows each command that the log lists as supported.
    let (page, _) = admin.call(AdminCommand::get_log_page(lid::COMMAND_EFFECTS, 0, 0, 4096), &[]);
    let effects = |at: usize| u32::from_le_bytes(*page[at..].first_chunk().expect("4 bytes"));
    for opcode in 0..=0xff {
        let is_known = effects(1024 + usize::from(opcode) * 4) & 1 == 1;
        if opcode != opcode::FABRICS {
            // The namespace does not exist, which is checked before anything else of a known
            // command.
            let known = !io.status(Sqe::new(opcode, 99), &[]).same_code(Status::INVALID_OPCODE);
            assert_eq!(is_known, known, "opcode {opcode:#x}");
        }
    }
    assert_eq!((effects(1024 + 4), effects(1024 + 8), effects(6 * 4)), (3, 1, 1));
}

#[test]
fn features_and_their_selectors() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(vec![file(&directory.path().join("disk"), 1 << 20, 512)]);
    let mut admin = Peer::admin(server.address(), NQN);
    let get = |fid, select: u32, cdw11| Sqe {
        cdw10: u32::from(fid) | select << 8,
        cdw11,
        ..AdminCommand::get_features(fid)
    };
    let mut value = |sqe: Sqe| {
        let (_, cqe) = admin.call(sqe, &[]);
        if cqe.status.is_success() { Ok(cqe.dw0) } else { Err(cqe.status) }
    };
    let current = [
        (features::ARBITRATION, 0, 7),
        (features::POWER_MANAGEMENT, 0, 0),
        (features::TEMPERATURE_THRESHOLD, 0, 0xffff),
        (features::TEMPERATURE_THRESHOLD, 1 << 20, 0),
        (features::ERROR_RECOVERY, 0, 0),
        (features::VOLATILE_WRITE_CACHE, 0, 1),
        (features::NUMBER_OF_QUEUES, 0, 0x7f_007f),
        (features::WRITE_ATOMICITY, 0, 0),
        (features::ASYNC_EVENT_CONFIGURATION, 0, 0),
        (features::KEEP_ALIVE_TIMER, 0, 0),
    ];
    for (fid, cdw11, expected) in current {
        for select in 0..3 {
            assert_eq!(value(get(fid, select, cdw11)), Ok(expected), "feature {fid}");
        }
    }
    // A changeable feature says so and can be set; sets of others are refused.
    let set = AdminCommand::set_features;
    assert_eq!(value(set(features::NUMBER_OF_QUEUES, 3 << 16 | 1)), Ok(0x1_0001));
    assert_eq!(value(get(features::NUMBER_OF_QUEUES, 0, 0)), Ok(0x1_0001));
    assert_eq!(value(get(features::NUMBER_OF_QUEUES, 1, 0)), Ok(0x7f_007f));
    assert_eq!(value(get(features::NUMBER_OF_QUEUES, 3, 0)), Ok(4));
    assert_eq!(value(get(features::VOLATILE_WRITE_CACHE, 3, 0)), Ok(0));
    assert_eq!(value(set(features::VOLATILE_WRITE_CACHE, 1)), Ok(0));
    let refused = |outcome: Result<u32, Status>, expected: Status| {
        let status = outcome.expect_err("it is refused");
        assert!(status.same_code(expected), "{status}, not {expected}");
    };
    refused(value(set(features::VOLATILE_WRITE_CACHE, 0)), Status::FEATURE_NOT_CHANGEABLE);
    let saved = Sqe { cdw10: 1 << 31 | 6, ..set(features::VOLATILE_WRITE_CACHE, 1) };
    refused(value(saved), Status::FEATURE_NOT_SAVEABLE);
    let of_one = Sqe { nsid: 1, ..set(features::ARBITRATION, 7) };
    refused(value(of_one), Status::FEATURE_NOT_PER_NAMESPACE);
    refused(value(set(features::HOST_IDENTIFIER, 1)), Status::COMMAND_SEQUENCE_ERROR);
    refused(value(get(features::ARBITRATION, 5, 0)), Status::INVALID_FIELD);
    refused(value(get(features::HOST_IDENTIFIER, 0, 0)), Status::HOST_ID_INCONSISTENT);
    let host_id = Sqe { sgl: Sgl::transport(16), ..get(features::HOST_IDENTIFIER, 0, 1) };
    assert_eq!(admin.call(host_id, &[]).0, [5; 16]);
}

/// The number of queues is set before there are any, and then stays.
#[test]
fn queues_as_granted() {
    let server = start(vec![memory(1 << 20, 512)]);
    let mut admin = Peer::admin(server.address(), NQN);
    let (page, _) = admin.call(AdminCommand::identify(cns::CONTROLLER, 0), &[]);
    let cntlid = u16::from_le_bytes([page[78], page[79]]);
    let set = AdminCommand::set_features(features::NUMBER_OF_QUEUES, 1 << 16 | 1);
    assert_eq!(admin.status(set, &[]), Status::SUCCESS);
    let _queues = [1, 2].map(|qid| Peer::queue(&server, NONE, qid, 15, cntlid));
    let mut third = Peer::open(&server);
    third.initialize(NONE);
    let status = third.connect(NQN, 3, 15, cntlid);
    assert!(status.same_code(Status::CONNECT_INVALID_PARAMETERS), "{status}");
    assert!(admin.status(set, &[]).same_code(Status::COMMAND_SEQUENCE_ERROR));
}

/// A reset frees the state that the host had left with the controller.
#[test]
fn async_events_end_with_the_controller() {
    let server = start(vec![memory(1 << 20, 512)]);
    let mut admin = Peer::admin(server.address(), NQN);
    let event = Sqe::new(opcode::admin::ASYNC_EVENT_REQUEST, 0);
    for _ in 0..2 {
        for _ in 0..4 {
            admin.send(event, &[]);
        }
        assert!(admin.status(event, &[]).same_code(Status::ASYNC_EVENT_LIMIT));
        let value = u32::from(ControllerConfig { enable: false, ..ControllerConfig::ENABLED });
        let disable =
            FabricsCommand::PropertySet { offset: offset::CC, size8: false, value: value.into() };
        assert_eq!(admin.status(disable.to_sqe(), &[]), Status::SUCCESS);
        admin.enable();
    }
}

/// A file that has grown: hosts that have enabled the event are told once, and read which namespace
/// it is; the new blocks can be used.
#[test]
fn a_namespace_that_grows() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("grows");
    std::fs::write(&path, vec![7; 1 << 20]).expect("written");
    let source = bpfof_controller::NamespaceSource::File { path: path.clone(), size_bytes: None };
    let fixed = file(&directory.path().join("fixed"), 1 << 20, 512);
    let config = config(vec![fixed.clone(), NamespaceConfig { source, ..fixed }]);
    let server = Server::start(&config).expect("the target starts");
    let (mut admin, mut io) = Peer::pair(&server, NONE, 15);
    let grow = |bytes: u64| {
        for name in ["grows", "fixed"] {
            let file = std::fs::OpenOptions::new().write(true).open(directory.path().join(name));
            file.and_then(|file| file.set_len(bytes)).expect("it grows");
        }
        server.reload(&config).expect("the same, measured again");
    };
    let event = Sqe::new(opcode::admin::ASYNC_EVENT_REQUEST, 0);
    let log = AdminCommand::get_log_page(lid::CHANGED_NAMESPACES, 0, 0, 4096);
    let (page, _) = admin.call(AdminCommand::identify(cns::CONTROLLER, 0), &[]);
    let identify = IdentifyController::from_bytes(page[..].try_into().expect("a page"));
    assert_eq!(identify.oaes, 1 << 8 | 1 << 11);

    // Event not enabled: no event comes, but the log has the change.
    let first = admin.send(event, &[]);
    grow(2 << 20);
    assert_eq!(admin.status(AdminCommand::keep_alive(), &[]), Status::SUCCESS);
    // Event enabled: an earlier change is reported.
    let config = features::ASYNC_EVENT_CONFIGURATION;
    let enable = admin.send(AdminCommand::set_features(config, 1 << 8), &[]);
    let mut ended = Vec::new();
    for _ in 0..2 {
        let Said::Response(cqe) = admin.hear() else { panic!("no response") };
        ended.push((cqe.cid, cqe.dw0));
    }
    ended.sort_unstable();
    assert_eq!(ended, [(first, 0x0004_0002), (enable, 0)]);
    // Reported once, until the log has been read without Retain Asynchronous Event.
    let second = admin.send(event, &[]);
    grow(3 << 20);
    let retained = Sqe { cdw10: log.cdw10 | 1 << 15, ..log };
    for sqe in [retained, log] {
        let (page, cqe) = admin.call(sqe, &[]);
        assert_eq!((cqe.status, &page[..8]), (Status::SUCCESS, &[2, 0, 0, 0, 0, 0, 0, 0][..]));
    }
    assert_eq!(admin.call(log, &[]).0, [0; 4096]);
    grow(4 << 20);
    let Said::Response(cqe) = admin.hear() else { panic!("no response") };
    assert_eq!((cqe.cid, cqe.dw0), (second, 0x0004_0002));

    let mut size = |nsid| {
        let (page, _) = admin.call(AdminCommand::identify(cns::NAMESPACE, nsid), &[]);
        IdentifyNamespace::from_bytes(page[..].try_into().expect("a page")).nsze * 512
    };
    assert_eq!([size(1), size(2)], [1 << 20, 4 << 20]);
    let last = Rw { slba: (4 << 11) - 1, blocks: 1, fua: false };
    let write = Sqe { sgl: Sgl::in_capsule(512), ..last.to_sqe(opcode::nvm::WRITE, 2) };
    assert_eq!(io.status(write, &[9; 512]), Status::SUCCESS);
    let beyond = Sqe { nsid: 1, ..write };
    assert!(io.status(beyond, &[9; 512]).same_code(Status::LBA_OUT_OF_RANGE));
}

/// Compare, Verify, Write Zeroes and Dataset Management, on memory and on a file that shrinks.
#[test]
fn optional_commands() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("disk");
    for (namespace, is_file) in [(memory(1 << 20, 512), false), (file(&path, 1 << 20, 512), true)] {
        let server = start(vec![namespace]);
        let (mut admin, mut io) = Peer::pair(&server, NONE, 15);
        let (page, _) = admin.call(AdminCommand::identify(cns::CONTROLLER, 0), &[]);
        let identify = IdentifyController::from_bytes(page[..].try_into().expect("a page"));
        assert_eq!((identify.oncs, identify.fuses), (0b1000_1101, 0));
        let data: Vec<u8> = (0..8192u32).map(|at| (at / 7) as u8).collect();
        let (eight, sixteen) = (&data[..4096], &data[..]);
        let command = |opcode, slba, length: usize| Sqe {
            sgl: Sgl::in_capsule(length as u32),
            ..Rw { slba, blocks: length as u32 / 512, fua: false }.to_sqe(opcode, 1)
        };
        let bare = |sqe: Sqe| Sqe { sgl: Sgl::transport(0), ..sqe };
        assert_eq!(io.status(command(opcode::nvm::WRITE, 16, 8192), sixteen), Status::SUCCESS);
        assert_eq!(io.status(command(opcode::nvm::COMPARE, 16, 8192), sixteen), Status::SUCCESS);
        let differs = io.status(command(opcode::nvm::COMPARE, 17, 4096), eight);
        assert!(differs.same_code(Status::COMPARE_FAILURE), "{differs}");
        // The same by R2T.
        let by_r2t = Sqe { sgl: Sgl::transport(8192), ..command(opcode::nvm::COMPARE, 16, 8192) };
        for (changed, expected) in [(0, Status::SUCCESS), (1, Status::COMPARE_FAILURE)] {
            io.send(by_r2t, &[]);
            let Said::R2t(r2t) = io.hear() else { panic!("no R2T") };
            let mut sent = data.clone();
            sent[8191] ^= changed;
            let bytes = io.h2c_data(&r2t, &sent);
            io.send_bytes(&bytes);
            let Said::Response(cqe) = io.hear() else { panic!("no response") };
            assert!(cqe.status.same_code(expected), "{}", cqe.status);
        }
        assert_eq!(io.status(bare(command(opcode::nvm::VERIFY, 16, 8192)), &[]), Status::SUCCESS);

        // Blocks 16 to 23 and 31 are deallocated; an empty range, and one without the attribute,
        // have no effect.
        let range = |slba, blocks| DsmRange { attributes: 0, blocks, slba }.to_bytes();
        let ranges = [range(16, 8), range(31, 1), range(0, 0)].concat();
        let manage = |count: u32, deallocate: u32| Sqe {
            cdw10: count - 1,
            cdw11: deallocate << 2,
            sgl: Sgl::in_capsule(ranges.len() as u32),
            ..Sqe::new(opcode::nvm::DATASET_MANAGEMENT, 1)
        };
        assert_eq!(io.status(manage(3, 0), &ranges), Status::SUCCESS);
        assert_eq!(io.status(command(opcode::nvm::COMPARE, 16, 8192), sixteen), Status::SUCCESS);
        assert_eq!(io.status(manage(3, 1), &ranges), Status::SUCCESS);
        let beyond = [range(16, 8), range(2047, 2), range(0, 0)].concat();
        assert!(io.status(manage(3, 1), &beyond).same_code(Status::LBA_OUT_OF_RANGE));
        let mut expected = data.clone();
        expected[..4096].fill(0);
        expected[15 * 512..].fill(0);
        assert_eq!(io.status(command(opcode::nvm::COMPARE, 16, 8192), &expected), Status::SUCCESS);
        check_zeroes(&mut io, is_file.then_some(path.as_path()));
    }
}

/// Write Zeroes on written blocks, with and without a request to deallocate them.
fn check_zeroes(io: &mut Peer, file: Option<&Path>) {
    use std::os::unix::fs::MetadataExt;
    const DEALLOCATE: u32 = 1 << 25;
    let rw = |opcode| Rw { slba: 16, blocks: 16, fua: false }.to_sqe(opcode, 1);
    let with_data = |opcode| Sqe { sgl: Sgl::in_capsule(8192), ..rw(opcode) };
    let mut kept = Vec::new();
    for deallocate in [0, DEALLOCATE] {
        assert_eq!(io.status(with_data(opcode::nvm::WRITE), &[7; 8192]), Status::SUCCESS);
        assert_eq!(io.status(Sqe::new(opcode::nvm::FLUSH, 1), &[]), Status::SUCCESS);
        let zeroes = rw(opcode::nvm::WRITE_ZEROES);
        let zeroes = Sqe { cdw12: zeroes.cdw12 | deallocate, sgl: Sgl::transport(0), ..zeroes };
        assert_eq!(io.status(zeroes, &[]), Status::SUCCESS);
        assert_eq!(io.status(with_data(opcode::nvm::COMPARE), &[0; 8192]), Status::SUCCESS);
        let metadata = file.map(|path| std::fs::metadata(path).expect("a file"));
        kept.push(metadata.map_or(0, |found| found.blocks() * 512));
    }
    let Some(file) = file else { return };
    assert_eq!(kept[1], 0, "the file gives its blocks back");
    let beside = FileNamespace::open(&file.with_extension("beside"), Some(4096), 512);
    assert_eq!(kept[0] >= 8192, beside.expect("it opens").keeps_blocks(), "it keeps its blocks");
}

/// IPv6, and IPv4 hosts on an IPv6 socket.
#[test]
fn discovery_over_ipv6() {
    let listen = SocketAddr::new(IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED), 0);
    let open = TargetConfig {
        listen: listen.into(),
        allow_any_host: true,
        ..config(vec![memory(1 << 20, 512)])
    };
    if let Err(error) = std::net::TcpListener::bind("[::]:0") {
        return skip_part("ipv6", &format!("this machine has no IPv6: {error}"));
    }
    let server = Server::start(&open).expect("it starts");
    let port = server.address().port();
    let reach = [
        (SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], port)), (2, "::1")),
        (SocketAddr::from(([127, 0, 0, 1], port)), (1, "127.0.0.1")),
    ];
    for (address, expected) in reach {
        let (_, entries) = discovery_log(&mut Peer::admin(address, DISCOVERY_NQN));
        let subsystems: Vec<_> = entries.iter().map(|entry| entry.subnqn.to_string()).collect();
        assert_eq!(subsystems, [DISCOVERY_NQN, NQN]);
        for entry in entries {
            assert_eq!((entry.adrfam, entry.traddr.to_string().as_str()), expected);
        }
    }
}

/// Asymmetric namespace access: one group, optimized, unless configured otherwise.
#[test]
fn namespace_access() {
    let of_other = NamespaceConfig { subsystem: Some(OTHER.to_owned()), ..memory(1 << 20, 512) };
    let third = NamespaceConfig { nsid: Some(300), ..memory(1 << 20, 4096) };
    let server = start(vec![memory(1 << 20, 512), of_other, third]);
    let mut admin = Peer::admin(server.address(), NQN);
    let (page, _) = admin.call(AdminCommand::identify(cns::CONTROLLER, 0), &[]);
    let identify = IdentifyController::from_bytes(page[..].try_into().expect("a page"));
    assert_eq!((identify.cmic, identify.anacap), (0b1011, 0b111));
    assert_eq!((identify.anagrpmax, identify.nanagrpid, identify.nn), (32, 32, 1024));
    for nsid in [1, 300] {
        let (page, _) = admin.call(AdminCommand::identify(cns::NAMESPACE, nsid), &[]);
        let namespace = IdentifyNamespace::from_bytes(page[..].try_into().expect("a page"));
        assert_eq!(namespace.anagrpid, 1);
        let independent = AdminCommand::identify(cns::INDEPENDENT_NAMESPACE, nsid);
        assert_eq!(admin.call(independent, &[]).0[4..8], [1, 0, 0, 0]);
    }
    let mut log = AdminCommand::get_log_page(lid::ANA, u32::MAX, 0, 64);
    let (page, _) = admin.call(log, &[]);
    let header = AnaHeader::from_bytes(page[..].first_chunk().expect("a header"));
    let group = AnaGroup::from_bytes(page[16..].first_chunk().expect("a group"));
    assert_eq!((header.change_count, header.groups), (2, 1));
    assert_eq!((group.group, group.namespaces, group.state), (1, 2, AnaGroup::OPTIMIZED));
    assert_eq!(page[48..], [1, 0, 0, 0, 44, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    // Return Groups Only.
    log.cdw10 |= 1 << 8;
    let (page, _) = admin.call(log, &[]);
    assert_eq!((page[20], &page[48..]), (0, &[0; 16][..]));
}

/// Reservations and fused commands: never announced, always refused, without effect.
#[test]
fn unsupported_features_are_refused() {
    let server = start(vec![memory(1 << 20, 512)]);
    let (mut admin, mut io) = Peer::pair(&server, NONE, 15);
    let (page, _) = admin.call(AdminCommand::identify(cns::CONTROLLER, 0), &[]);
    let identify = IdentifyController::from_bytes(page[..].try_into().expect("a page"));
    assert_eq!((identify.oncs & 1 << 5, identify.fuses, identify.acwu), (0, 0, 0));
    let (page, _) = admin.call(AdminCommand::identify(cns::NAMESPACE, 1), &[]);
    let namespace = IdentifyNamespace::from_bytes(page[..].try_into().expect("a page"));
    assert_eq!(namespace.rescap, 0);
    // Reservation Register, Report, Acquire and Release (NVMe Base 2.0 §7).
    for opcode in [0x0d, 0x0e, 0x11, 0x15] {
        for sgl in [Sgl::transport(16), Sgl::in_capsule(16)] {
            let data = [0; 16];
            let sqe = Sqe { sgl, cdw11: 3, ..Sqe::new(opcode, 1) };
            let data = if sgl.kind == Sgl::IN_CAPSULE_OFFSET { &data[..] } else { &[] };
            let status = io.status(sqe, data);
            assert_eq!(status, Status::INVALID_OPCODE.with_dnr(), "{opcode:#x}");
        }
    }
    // Reservation Notification Mask and Persistence; the log of notifications.
    for fid in [0x82, 0x83] {
        let get = Sqe { nsid: 1, ..AdminCommand::get_features(fid) };
        assert!(admin.status(get, &[]).same_code(Status::INVALID_FIELD));
        let set = Sqe { nsid: 1, ..AdminCommand::set_features(fid, 1) };
        assert!(admin.status(set, &[]).same_code(Status::INVALID_FIELD));
    }
    let log = AdminCommand::get_log_page(0x80, 0, 0, 64);
    assert!(admin.status(log, &[]).same_code(Status::INVALID_LOG_PAGE));

    // Both halves of Compare and Write, in one send and alone.
    let rw = |opcode, fuse| {
        let sqe = Rw { slba: 8, blocks: 1, fua: false }.to_sqe(opcode, 1);
        Sqe { sgl: Sgl::in_capsule(512), flags: sqe.flags | fuse, ..sqe }
    };
    let halves = [(rw(opcode::nvm::COMPARE, 1), [0; 512]), (rw(opcode::nvm::WRITE, 2), [9; 512])];
    let pair = halves.map(|(sqe, data)| io.capsule(sqe, &data).0).concat();
    io.send_bytes(&pair);
    let mut refused = Vec::new();
    for _ in 0..2 {
        let Said::Response(cqe) = io.hear() else { panic!("no response") };
        refused.push(cqe.status);
    }
    refused.extend(halves.map(|(sqe, data)| io.status(sqe, &data)));
    assert_eq!(refused, [Status::INVALID_FIELD.with_dnr(); 4]);
    let reserved = (rw(opcode::nvm::WRITE, 3), [9; 512]);
    assert_eq!(io.status(reserved.0, &reserved.1), Status::INVALID_FIELD.with_dnr());
    assert_eq!(
        io.status(rw(opcode::nvm::COMPARE, 0), &[0; 512]),
        Status::SUCCESS,
        "nothing written"
    );
}
