//! Rights: each right against each command, hidden namespaces, changing rules.

mod common;

use bpfof_controller::{HostKeys, HostRule, Rights, Server, TargetConfig};
use bpfof_function::Object;
use bpfof_host::{Controller, Options};
use bpfof_nvme::fabrics::{CNTLID_DYNAMIC, DISCOVERY_NQN};
use bpfof_nvme::identify::{cns, parse_namespace_list};
use bpfof_nvme::log_page::{DiscoveryHeader, lid};
use bpfof_nvme::tcp::Digests;
use bpfof_nvme::vendor_specific::{
    Extent, FileMapObject, FunctionDigest, FunctionReportEntry, MapAddress, MapCommand,
    PushdownShort,
};
use bpfof_nvme::{AdminCommand, Installation, Rw, Sgl, Sqe, Status, Upload, opcode};
use common::raw::{Peer, RAW_HOST, Said};
use common::{NQN, compile_text, config, memory, url};

const MIB: u64 = 1 << 20;
const OTHER_HOST: &str = "nqn.2026-01.io.bpf-of:other-host";

fn rule(nqn: &str, rights: Rights) -> HostRule {
    HostRule {
        nqn: nqn.to_owned(),
        subsystems: None,
        namespaces: None,
        rights,
        keys: HostKeys::default(),
    }
}

fn start(rules: Vec<HostRule>) -> Server {
    let namespaces = vec![memory(MIB, 512), memory(MIB, 512)];
    Server::start(&TargetConfig { rules, ..config(namespaces) }).expect("the target starts")
}

fn rw(opcode: u8, nsid: u32) -> Sqe {
    let sqe = Rw { slba: 0, blocks: 1, fua: false }.to_sqe(opcode, nsid);
    let sgl = match opcode {
        opcode::nvm::READ => Sgl::transport(512),
        opcode::nvm::WRITE | opcode::nvm::COMPARE => Sgl::in_capsule(512),
        _ => Sgl::default(),
    };
    Sqe { sgl, ..sqe }
}

fn whole(object: &[u8]) -> (Upload, Sgl) {
    let upload = Upload { total_bytes: object.len() as u32, offset_bytes: 0 };
    (upload, Sgl::in_capsule(object.len() as u32))
}

/// A map of the first block of a namespace.
fn map(nsid: u32, file: u32) -> Vec<u8> {
    let extents = vec![Extent { file_offset: 0, device_offset: 0, length_bytes: 512 }];
    let mut object = Vec::new();
    FileMapObject { file, nsid, version: 1, length_bytes: 512, extents }.encode_into(&mut object);
    object
}

/// Every command that needs a right: its name, the rights of which it needs one, and its status.
fn try_all(admin: &mut Peer, io: &mut Peer, object: &[u8]) -> Vec<(&'static str, Rights, Status)> {
    let block = [0; 512];
    let range = [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let short = |function| PushdownShort { function, file: 0, first_blocks: 1, argument: [0; 24] };
    let mut tried = Vec::new();
    let mut tell = |name, needed, status: Status| tried.push((name, needed, status));
    tell("Read", Rights::READ, io.status(rw(opcode::nvm::READ, 1), &[]));
    tell("Compare", Rights::READ, io.status(rw(opcode::nvm::COMPARE, 1), &block));
    tell("Verify", Rights::READ, io.status(rw(opcode::nvm::VERIFY, 1), &[]));
    tell("Write", Rights::WRITE, io.status(rw(opcode::nvm::WRITE, 1), &block));
    tell("Write Zeroes", Rights::WRITE, io.status(rw(opcode::nvm::WRITE_ZEROES, 1), &[]));
    let deallocate = Sqe {
        cdw11: 1 << 2,
        sgl: Sgl::in_capsule(16),
        ..Sqe::new(opcode::nvm::DATASET_MANAGEMENT, 1)
    };
    tell("Dataset Management", Rights::WRITE, io.status(deallocate, &range));
    let flush = Sqe::new(opcode::nvm::FLUSH, 1);
    tell("Flush", Rights::READ | Rights::WRITE, io.status(flush, &[]));
    let (upload, sgl) = whole(object);
    for (name, kept, needed) in
        [("Function Load", false, Rights::LOAD), ("Function Load, kept", true, Rights::KEEP)]
    {
        let sqe =
            AdminCommand::function_load(upload, Installation { kept, ..Installation::default() });
        let (_, cqe) = admin.call(Sqe { sgl, ..sqe }, object);
        tell(name, needed, cqe.status);
        let function =
            if cqe.status == Status::SUCCESS { cqe.dw0 } else { u32::from(kept) << 31 | 1 };
        let (_, chain) = io.call(short(function).to_sqe(1, 64), &[]);
        tell("Pushdown Short", Rights::RUN, chain.status);
        let unload = admin.status(AdminCommand::function_unload(function), &[]);
        tell("Function Unload", needed, unload);
    }
    let vector = Sqe::new(opcode::nvm::PUSHDOWN_VECTOR, 1);
    tell("Pushdown Vector", Rights::RUN, io.status(vector, &[]));
    tell("Function Report", Rights::RUN, admin.status(AdminCommand::function_report(0, 64), &[]));
    let object = map(1, 7);
    let (upload, sgl) = whole(&object);
    let set = Sqe { sgl, ..AdminCommand::file_map_set(upload) };
    tell("File Map Set", Rights::READ, admin.status(set, &object));
    let report = MapCommand::Report { controller: MapAddress::OWN, length_bytes: 64 };
    tell("Map Report", Rights::RUN, admin.status(report.to_sqe(), &[]));
    tried
}

fn is_denied(status: Status) -> bool {
    status == Status::OPERATION_DENIED.with_dnr()
        || status == Status::NAMESPACE_WRITE_PROTECTED.with_dnr()
}

#[test]
fn each_right_allows_its_commands_and_no_others() {
    let object = compile_text(
        "#include \"bpfof/blocks.h\"\nSEC(\"bpfof/nothing\")\nint nothing(struct bpfof_ctx *ctx)\n\
         { return bpfof_answer(ctx, 8); }\n",
    );
    let sets: [&[&str]; 7] = [
        &[],
        &["read"],
        &["write"],
        &["run"],
        &["read", "write"],
        &["read", "load"],
        &["read", "write", "load", "keep", "maps"],
    ];
    for names in sets {
        let rights = Rights::from_names(names.iter().copied()).expect("they make sense");
        let server = start(vec![rule(OTHER_HOST, Rights::ALL), rule(RAW_HOST, rights)]);
        let (mut admin, mut io) = Peer::pair(&server, Digests::default(), 31);
        for (name, needed, status) in try_all(&mut admin, &mut io, &object) {
            let allowed = rights.intersects(needed);
            assert_eq!(is_denied(status), !allowed, "{rights}: {name}: {status}");
            if !allowed && needed == Rights::WRITE {
                assert_eq!(status, Status::NAMESPACE_WRITE_PROTECTED.with_dnr(), "{name}");
            }
        }
        let (page, _) = admin.call(AdminCommand::identify(cns::NAMESPACE, 1), &[]);
        assert_eq!(page[99] & 1 == 0, rights.intersects(Rights::WRITE), "NSATTR for {rights}");
    }
}

#[test]
fn hidden_namespaces_do_not_exist() {
    let visible = HostRule { namespaces: Some(vec![2]), ..rule(RAW_HOST, Rights::ALL) };
    let server = start(vec![visible]);
    let (mut admin, mut io) = Peer::pair(&server, Digests::default(), 31);
    let gone = Status::INVALID_NAMESPACE.with_dnr();
    assert_eq!(io.status(rw(opcode::nvm::READ, 1), &[]), gone);
    assert_eq!(io.status(rw(opcode::nvm::READ, 2), &[]), Status::SUCCESS);
    assert_eq!(io.status(Sqe::new(opcode::nvm::FLUSH, 1), &[]), gone);
    let (list, _) = admin.call(AdminCommand::identify(cns::ACTIVE_NAMESPACES, 0), &[]);
    assert_eq!(parse_namespace_list(&list).collect::<Vec<_>>(), [2]);
    let (page, _) = admin.call(AdminCommand::identify(cns::NAMESPACE, 1), &[]);
    assert!(page.iter().all(|byte| *byte == 0), "as an id that no namespace has");
    let descriptors = AdminCommand::identify(cns::NAMESPACE_DESCRIPTORS, 1);
    assert_eq!(admin.status(descriptors, &[]), gone);
    let (page, _) = admin.call(AdminCommand::get_log_page(lid::ANA, 0, 0, 4096), &[]);
    // One group with one namespace, behind the log's header of 16 bytes and the group's of 32.
    assert_eq!((page[16 + 4], page[16 + 32]), (1, 2));
    for (nsid, good) in [(1, false), (2, true)] {
        let object = map(nsid, 7);
        let (upload, sgl) = whole(&object);
        let set = Sqe { sgl, ..AdminCommand::file_map_set(upload) };
        assert_eq!(admin.status(set, &object) == Status::SUCCESS, good);
    }
    // An id far beyond all others does not exist either.
    assert_eq!(io.status(rw(opcode::nvm::READ, u32::MAX - 1), &[]), gone);
}

#[test]
fn hosts_without_a_rule_are_refused() {
    let elsewhere = HostRule {
        subsystems: Some(vec!["nqn.2026-01.io.bpf-of:elsewhere".to_owned()]),
        ..rule(RAW_HOST, Rights::ALL)
    };
    let server = start(vec![rule(OTHER_HOST, Rights::ALL), elsewhere]);
    let mut peer = Peer::open(&server);
    peer.initialize(Digests::default());
    let refused = Status::CONNECT_INVALID_HOST.with_dnr();
    assert_eq!(peer.connect(NQN, 0, 31, CNTLID_DYNAMIC), refused);
    // It may use discovery, and sees no subsystem that it could not connect to.
    let mut admin = Peer::admin(server.address(), DISCOVERY_NQN);
    let page = admin.call(AdminCommand::get_log_page(lid::DISCOVERY, 0, 0, 4096), &[]).0;
    let header = DiscoveryHeader::from_bytes(page[..1024].try_into().expect("a header"));
    assert_eq!(header.records, 1, "only the discovery subsystem itself");
    let mut stranger = Peer::open(&server);
    stranger.host = "nqn.2026-01.io.bpf-of:stranger".to_owned();
    stranger.initialize(Digests::default());
    assert_eq!(stranger.connect(DISCOVERY_NQN, 0, 31, CNTLID_DYNAMIC), refused);
    let (mut admin, _io) = Peer::pair_as(&server, OTHER_HOST);
    assert_eq!(admin.status(AdminCommand::identify(cns::CONTROLLER, 0), &[]), Status::SUCCESS);
}

#[test]
fn hosts_with_fewer_rights_must_connect_again() {
    let both = Rights::READ | Rights::WRITE;
    let server = start(vec![rule(RAW_HOST, both), rule(OTHER_HOST, Rights::READ)]);
    let running = TargetConfig {
        listen: server.address().into(),
        ..config(vec![memory(MIB, 512), memory(MIB, 512)])
    };
    let change = |rules: Vec<HostRule>| {
        let config = TargetConfig { rules, listen: ([127, 0, 0, 1], 0).into(), ..running.clone() };
        server.reload(&config).expect("taken over");
    };
    let (_admin, mut io) = Peer::pair(&server, Digests::default(), 31);
    let (_other_admin, mut other) = Peer::pair_as(&server, OTHER_HOST);
    // More rights, or the same: no connection ends, and the new rights hold from the next Connect
    // on.
    change(vec![rule(RAW_HOST, both), rule(OTHER_HOST, both)]);
    assert_eq!(io.status(rw(opcode::nvm::WRITE, 1), &[0; 512]), Status::SUCCESS);
    let denied = other.status(rw(opcode::nvm::WRITE, 1), &[0; 512]);
    assert_eq!(denied, Status::NAMESPACE_WRITE_PROTECTED.with_dnr());
    // Fewer rights: only the host concerned is disconnected.
    change(vec![rule(RAW_HOST, Rights::READ), rule(OTHER_HOST, both)]);
    assert!(matches!(io.hear(), Said::Closed));
    assert_eq!(other.status(rw(opcode::nvm::READ, 1), &[]), Status::SUCCESS);
    let (_admin, mut io) = Peer::pair(&server, Digests::default(), 31);
    let denied = io.status(rw(opcode::nvm::WRITE, 1), &[0; 512]);
    assert_eq!(denied, Status::NAMESPACE_WRITE_PROTECTED.with_dnr());
    // One namespace less, then no rule at all.
    let fewer = HostRule { namespaces: Some(vec![2]), ..rule(RAW_HOST, Rights::READ) };
    change(vec![fewer, rule(OTHER_HOST, both)]);
    assert!(matches!(io.hear(), Said::Closed));
    change(vec![rule(RAW_HOST, Rights::READ)]);
    assert!(matches!(other.hear(), Said::Closed));
}

#[test]
fn configured_functions_are_run_by_hosts_without_load_rights() {
    let object = compile_text(
        "#include \"bpfof/blocks.h\"\nSEC(\"bpfof/nothing\")\nint nothing(struct bpfof_ctx *ctx)\n\
         { return bpfof_answer(ctx, 8); }\n",
    );
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("nothing.bpf.o");
    std::fs::write(&path, &object).expect("written");
    let base = config(vec![memory(MIB, 512)]);
    let rules = vec![rule(RAW_HOST, Rights::RUN)];
    let with = TargetConfig { rules, functions: vec![path.clone()], ..base };
    let server = Server::start(&with).expect("the target starts");
    let (mut admin, mut io) = Peer::pair(&server, Digests::default(), 31);
    let report = AdminCommand::function_report(AdminCommand::ALL_FUNCTIONS, 4096);
    let (report, _) = admin.call(report, &[]);
    let kept = FunctionReportEntry::list(&report).next().expect("one function");
    assert_eq!(kept.name.to_string(), "nothing");
    let entry = Object::parse(&object).expect("an object").into_entry(0).expect("one");
    let expected = FunctionDigest { function: kept.function, digest: entry.program.digest() };
    let (digests, cqe) = admin.call(AdminCommand::digests(4096), &[]);
    assert_eq!(FunctionDigest::list(&digests).collect::<Vec<_>>(), [expected]);
    assert_eq!(cqe.dw0, FunctionDigest::BYTES as u32);
    let short =
        PushdownShort { function: kept.function, file: 0, first_blocks: 1, argument: [7; 24] };
    let (answer, cqe) = io.call(short.to_sqe(1, 64), &[]);
    assert_eq!((cqe.status, &answer[..]), (Status::SUCCESS, &[7; 8][..]));
    assert!(is_denied(io.status(rw(opcode::nvm::READ, 1), &[])));
    assert!(is_denied(admin.status(AdminCommand::function_unload(kept.function), &[])));
    drop(server);
    // A host with the right to keep functions may not unload it either.
    let server = Server::start(&TargetConfig { rules: Vec::new(), ..with.clone() });
    let server = server.expect("the target starts");
    let (mut admin, _io) = Peer::pair(&server, Digests::default(), 31);
    assert!(is_denied(admin.status(AdminCommand::function_unload(kept.function), &[])));
    drop(server);
    std::fs::write(&path, b"no object").expect("written");
    let refused = Server::start(&with).err().expect("no function");
    assert!(refused.to_string().contains("nothing.bpf.o"), "{refused}");
}

#[test]
fn without_rules_other_machines_are_refused() {
    let open = |listen: [u8; 4], allow_any_host| TargetConfig {
        listen: (listen, 0).into(),
        allow_any_host,
        ..config(vec![memory(MIB, 512)])
    };
    let refused = open([0, 0, 0, 0], false).check().expect_err("everybody would get in");
    let text = refused.to_string();
    assert!(text.contains("[[host]]") && text.contains("allow-any-host"), "{text}");
    assert!(open([192, 168, 1, 1], false).check().is_err());
    assert!(open([0, 0, 0, 0], true).check().is_ok());
    assert!(open([127, 1, 2, 3], false).check().is_ok());
    let rules = vec![rule("*", Rights::READ)];
    assert!(TargetConfig { rules, ..open([0, 0, 0, 0], false) }.check().is_ok());
    let wrong = vec![rule("me", Rights::READ)];
    assert!(TargetConfig { rules: wrong, ..open([127, 0, 0, 1], false) }.check().is_err());
}

#[test]
fn rules_are_read_from_the_file() {
    let text = "namespaces = [\"mem:size=1MiB\"]\n[[host]]\nnqn = \"*\"\nnamespaces = [1]\n\
                rights = [\"read\", \"run\"]\n[[host]]\nnqn = \"nqn.2026-01.org.x:a\"\n";
    let config = TargetConfig::from_toml(text).expect("good");
    assert_eq!(config.rules[0].rights, Rights::READ | Rights::RUN);
    assert_eq!(config.rules[1].rights, Rights::USUAL);
    let wrong = "[[host]]\nnqn = \"*\"\nrights = [\"fly\"]\n";
    let error = TargetConfig::from_toml(wrong).expect_err("no such right");
    assert!(error.starts_with("line 1") && error.contains("unknown right \"fly\""), "{error}");
}

/// Maps of a host's other associations need the right `maps`.
#[test]
fn maps_of_other_associations_need_a_right() {
    let object = compile_text(include_str!("../../../docs/examples/hot_blocks.bpf.c"));
    for (may_look, names) in [(false, &["read", "load"][..]), (true, &["read", "load", "maps"])] {
        let rights = Rights::from_names(names.iter().copied()).expect("they make sense");
        let server = start(vec![rule(OTHER_HOST, rights)]);
        let connect = || {
            let options = Options { host_nqn: OTHER_HOST.to_owned(), ..Options::for_host([1; 16]) };
            Controller::connect(&url(&server), options).expect("it connects")
        };
        let (mut first, mut second) = (connect(), connect());
        first.load_function(&object, 0).expect("it may load");
        let map = first.map("hot_blocks").expect("its own");
        let key = 0u64.to_le_bytes();
        let seen = second.host_maps().expect("an answer");
        assert_eq!(seen.iter().any(|seen| seen.address == map.address), may_look);
        let set = second.map_set(&map, &key, &key);
        assert_eq!(set.is_ok(), may_look, "{set:?}");
    }
}
