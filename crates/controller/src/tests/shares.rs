//! The shares of a host, and how they are protected from others.

use super::limits::try_to_load_get;
use super::peer::{Peer, Said};
use crate::access::{Access, HostKeys, HostRule, Reason, Rights, Rules};
use crate::config::{NamespaceConfig, NamespaceSource};
use crate::controller::Controller;
use crate::hosts::{Host, HostFull, HostLimits, Hosts};
use crate::limits::{
    ADMIN_UNITS, BYTES_PER_UNIT, LAST_CONTROLLER_ID, MAX_KEPT_FUNCTIONS, USELESS_AFTER_NS,
};
use crate::listener::Listener;
use crate::namespace::Namespace;
use crate::reactor::table::Room;
use crate::registry::Registry;
use crate::rig::{NQN, PEER_NQN, Rig, h2c_data};
use crate::room::Newcomer;
use crate::schedule::MOST_UNSCHEDULED;
use crate::subsystem::Subsystem;
use bpfof_chain::Limits;
use bpfof_function::cost::UNIT_PS;
use bpfof_nvme::fabrics::DISCOVERY_NQN;
use bpfof_nvme::identify::{IDENTIFY_BYTES, cns};
use bpfof_nvme::tcp::{Digests, H2cData};
use bpfof_nvme::vendor_specific::FileMapObject;
use bpfof_nvme::{AdminCommand, Installation, Rw, Sgl, Sqe, Status, Upload, opcode};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
const OTHER: &str = "nqn.2026-01.io.bpf-of:other";

fn there(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, last)
}

fn rig(limits: HostLimits) -> Rig {
    Rig::with(Limits::default(), limits, 1 << 30)
}

fn controller(rig: &Rig, peer: &Peer) -> Arc<Controller> {
    Arc::clone(rig.connection(peer.line).controller().expect("connected"))
}

fn host(rig: &Rig, peer: &Peer) -> Arc<Host> {
    Arc::clone(controller(rig, peer).host())
}

fn discover(rig: &mut Rig, address: Ipv4Addr, hostnqn: &str) -> Peer {
    let (peer, answer) = Peer::ask(rig, address, (hostnqn, DISCOVERY_NQN));
    assert_eq!(answer.status, Status::SUCCESS);
    peer
}

/// A host of the discovery subsystem takes nothing from the host that it names, and many names count as one host.
#[test]
fn names_in_the_discovery_subsystem_give_no_shares() {
    let mut rig = rig(HostLimits::default());
    let admin = Peer::connect(&mut rig, 0, 31);
    let named = host(&rig, &admin);
    let before = (named.memory.used_bytes(), named.report().connections);
    let all: Vec<Peer> =
        [PEER_NQN, OTHER].map(|nqn| discover(&mut rig, HERE, nqn)).into_iter().collect();
    let elsewhere = discover(&mut rig, there(1), PEER_NQN);
    let [one, other] = [0, 1].map(|at| host(&rig, &all[at]));
    assert_eq!(one.serial, other.serial);
    assert!(one.serial != named.serial && one.serial != host(&rig, &elsewhere).serial);
    assert_eq!((named.memory.used_bytes(), named.report().connections), before);
    assert_eq!(controller(&rig, &all[1]).host_nqn(), OTHER, "that says what the log page tells");
    // All hosts of the discovery subsystem share one share of a reactor's time, at any address.
    rig.close(admin.line);
    rig.work();
    rig.output(admin.line);
    assert!(!rig.core.executor.schedule.is_shared());
    drop((named, one, other));
    rig.finish();
}

/// Associations with the discovery subsystem do not count against a host's other associations.
#[test]
fn discovery_keeps_no_host_out() {
    let limits = HostLimits {
        associations_per_address: 2,
        associations_per_host: 2,
        ..HostLimits::default()
    };
    let mut rig = rig(limits);
    let _watchers = [PEER_NQN, OTHER].map(|nqn| discover(&mut rig, HERE, nqn));
    let (_, third) = Peer::ask(&mut rig, HERE, (PEER_NQN, DISCOVERY_NQN));
    assert_eq!(third.status, Status::CONNECT_CONTROLLER_BUSY);
    let mut denials = rig.core.executor.registry.denials.counts();
    assert!(denials.any(|of| of == (Reason::Limit, 1)));
    drop(denials);
    for _ in 0..2 {
        let (_, answer) = Peer::ask(&mut rig, HERE, (PEER_NQN, NQN));
        assert_eq!(answer.status, Status::SUCCESS);
    }
    rig.finish();
}

/// The end of an admin queue is only sent to reactors if there may be I/O queues to close.
#[test]
fn the_end_of_an_association_without_queues_is_nobodys_news() {
    let mut rig = rig(HostLimits::default());
    rig.core.io.holds_messages = true;
    let watcher = discover(&mut rig, HERE, OTHER);
    let idle = Peer::connect_as(&mut rig, OTHER);
    rig.close(watcher.line);
    rig.close(idle.line);
    assert_eq!(rig.messages(), 0);
    let mut second = self::rig(HostLimits::default());
    second.core.io.holds_messages = true;
    let admin = Peer::connect(&mut second, 0, 31);
    let io = Peer::connect(&mut second, 1, 31);
    let controller = controller(&second, &admin);
    second.close(admin.line);
    assert_eq!(second.messages(), 1);
    // A queue that connects after the end of its association cannot stay.
    assert!(controller.place_of_queue(2).is_none());
    second.core.io.holds_messages = false;
    second.work();
    second.turn_without_input();
    assert!(!second.is_open(io.line));
    drop(controller);
    second.finish();
    rig.core.io.holds_messages = false;
    rig.finish();
}

/// When a reactor has too many connections, an address with many names is still counted as one, and loses some.
#[test]
fn names_at_an_address_share_what_it_has() {
    let mut rig = rig(HostLimits::default());
    rig.core.table.room = Room { connections: 7, pending: 2, pending_of_address: 2, closing: 2 };
    let ask = |rig: &mut Rig, last: u8, name: &str| {
        let (peer, answer) = Peer::ask(rig, there(last), (name, NQN));
        assert_eq!(answer.status, Status::SUCCESS);
        peer
    };
    let many: Vec<Peer> = ["a", "b", "c"].map(|name| ask(&mut rig, 1, name)).into();
    let honest: Vec<Peer> = [OTHER; 2].map(|name| ask(&mut rig, 2, name)).into();
    let newcomer = ask(&mut rig, 3, PEER_NQN);
    let open = |of: &[Peer]| of.iter().filter(|peer| rig.is_open(peer.line)).count();
    assert_eq!((open(&many), open(&honest)), (2, 2));
    assert!(rig.is_open(newcomer.line));
    rig.finish();
}

/// The end of a file map's chunk, byte by byte: reading the clock for each byte would cost more than the bytes.
#[test]
fn small_pieces_on_an_admin_queue_are_taken_together() {
    let mut rig = rig(HostLimits::default());
    let mut admin = Peer::connect(&mut rig, 0, 31);
    let mut object = Vec::new();
    FileMapObject::removal(5, 1).encode_into(&mut object);
    let upload = Upload { total_bytes: object.len() as u32, offset_bytes: 0 };
    let sqe = AdminCommand::file_map_set(upload);
    let sqe = Sqe { sgl: Sgl::transport(object.len() as u32), ..sqe };
    let cid = admin.send(&mut rig, sqe, &[]);
    let Said::R2t(r2t) = admin.hear(&mut rig).remove(0) else { panic!("it asks for the data") };
    let last = object.len() - 1;
    let pieces = object.iter().enumerate().flat_map(|(at, byte)| {
        let pdu = H2cData {
            cccid: r2t.cccid,
            ttag: r2t.ttag,
            data_offset_bytes: at as u32,
            data_length_bytes: 1,
            last: at == last,
        };
        h2c_data(pdu, &[*byte], Digests::default())
    });
    let (pieces, before) = (pieces.collect::<Vec<u8>>(), rig.core.io.looks);
    rig.arrives(admin.line, &pieces);
    rig.step();
    rig.work();
    let looks = rig.core.io.looks - before;
    assert!(looks < object.len() as u64 * 3 / 4, "{looks} looks for {} pieces", object.len());
    let answers = admin.hear(&mut rig);
    assert!(matches!(answers[..], [Said::Response(cqe)] if cqe.cid == cid), "{answers:?}");
    rig.finish();
}

/// The bytes in the answer to an admin command are charged.
#[test]
fn answers_of_admin_commands_cost_what_they_are() {
    let mut rig = rig(HostLimits::default());
    let mut admin = Peer::connect(&mut rig, 0, 31);
    rig.core.io.unit_ps = UNIT_PS;
    let begun_ns = rig.core.io.now_ns;
    let identify = AdminCommand::identify(cns::CONTROLLER, 0);
    let identify = Sqe { sgl: Sgl::transport(IDENTIFY_BYTES as u32), ..identify };
    admin.send(&mut rig, identify, &[]);
    rig.work();
    assert!(matches!(admin.hear(&mut rig)[0], Said::Data(..)));
    let units = ADMIN_UNITS + IDENTIFY_BYTES as u64 / BYTES_PER_UNIT;
    assert!(rig.core.io.now_ns - begun_ns >= units * UNIT_PS / 1000);
    rig.finish();
}

/// Fetched data that does not match its digest is in the error log, like damaged data in a capsule.
#[test]
fn damaged_data_is_in_the_error_log() {
    let mut rig = rig(HostLimits::default());
    let digests = Digests { header: false, data: true };
    let [mut admin, mut io] = [0, 1].map(|qid| Peer::connect_with(&mut rig, digests, (qid, 31)));
    let controller = controller(&rig, &admin);
    let write = Rw { slba: 7, blocks: 1, fua: false }.to_sqe(opcode::nvm::WRITE, 1);
    let write = Sqe { sgl: Sgl::transport(512), ..write };
    let set = AdminCommand::file_map_set(Upload { total_bytes: 32, offset_bytes: 0 });
    let set = Sqe { sgl: Sgl::transport(32), ..set };
    for (peer, sqe, length, errors) in [(&mut io, write, 512, 1), (&mut admin, set, 32, 2)] {
        peer.send(&mut rig, sqe, &[]);
        let Said::R2t(r2t) = peer.hear(&mut rig).remove(0) else { panic!("it asks for the data") };
        let pdu = H2cData {
            cccid: r2t.cccid,
            ttag: r2t.ttag,
            data_offset_bytes: 0,
            data_length_bytes: length,
            last: true,
        };
        let mut damaged = h2c_data(pdu, &vec![1; length as usize], digests);
        *damaged.last_mut().expect("a digest") ^= 1;
        rig.feed(peer.line, &damaged);
        rig.work();
        let said = peer.hear(&mut rig);
        let status = Status::TRANSIENT_TRANSPORT_ERROR;
        assert!(matches!(said[..], [Said::Response(cqe)] if cqe.status == status), "{said:?}");
        assert_eq!(controller.errors.count(), errors);
    }
    drop(controller);
    rig.finish();
}

/// Namespaces that are hidden from a host cause no changes for it.
#[test]
fn hidden_namespaces_do_not_show() {
    let mut rig = rig(HostLimits::default());
    let rule = |nqn: &str, namespaces| HostRule {
        nqn: nqn.to_owned(),
        subsystems: None,
        namespaces,
        rights: Rights::ALL,
        keys: HostKeys::default(),
    };
    let rules = [rule(OTHER, Some(vec![1])), rule("*", None)];
    let rules = Rules::load(&rules, &[NQN]).expect("no keys");
    rig.core.executor.registry.set_rules(rules);
    let all = Peer::connect(&mut rig, 0, 31);
    let some = Peer::connect_as(&mut rig, OTHER);
    rig.replace_namespace(0);
    let changes = |peer: &Peer| controller(&rig, peer).namespace_changes();
    assert_eq!((changes(&all), changes(&some)), (2, 1));
    rig.finish();
}

/// Two subsystems, and one host with a limit of two associations.
struct Two {
    registry: Registry,
    subsystems: [Arc<Subsystem>; 2],
    gone: Vec<Arc<Controller>>,
}

impl Two {
    fn new() -> Two {
        let limits = HostLimits { associations_per_host: 2, ..HostLimits::default() };
        let namespaces = [NQN, OTHER].map(|nqn| {
            let source = NamespaceSource::Memory { size_bytes: 4096, latency_us: 0, iops: 0 };
            let config = NamespaceConfig::new(source, 512);
            (nqn.to_owned(), Namespace::open(1, &config, nqn).expect("a small mapping"))
        });
        let at = SocketAddr::from((HERE, 4420));
        let registry = Registry::new(
            Limits::default(),
            Hosts::new(limits, 1 << 30),
            (1..=LAST_CONTROLLER_ID, 0),
            namespaces.into(),
            vec![Arc::new(Listener::new(1, at, &at.into()))],
        );
        let subsystems = [NQN, OTHER].map(|nqn| registry.subsystem(nqn).expect("it is served"));
        Two { registry, subsystems, gone: Vec::new() }
    }

    fn connect(&mut self, which: usize, now_ns: u64) -> Result<Arc<Controller>, HostFull> {
        let newcomer = Newcomer {
            host: self.registry.hosts.host(Some(HERE.into()), PEER_NQN),
            host_nqn: PEER_NQN.to_owned(),
            address: HERE.into(),
            host_id: [1; 16],
            access: Arc::new(Access::everything()),
            listener: Arc::clone(self.registry.listener(0)),
            is_stranger: false,
        };
        let subsystem = &self.subsystems[which];
        self.registry.add_controller(subsystem, &newcomer, (10_000, now_ns), &mut self.gone)
    }
}

/// If a host has no room for another association, idle ones in other subsystems are evicted, too.
#[test]
fn idle_associations_go_wherever_they_are() {
    let mut two = Two::new();
    let idle = [0, 1].map(|_| two.connect(0, 0).expect("room"));
    let full = Some(HostFull::Associations(2));
    assert_eq!(two.connect(1, USELESS_AFTER_NS / 2).err(), full, "they may be of use");
    two.connect(1, USELESS_AFTER_NS).expect("one goes");
    assert!(two.registry.denials.counts().any(|of| of == (Reason::Limit, 1)));
    let [gone] = &two.gone[..] else { panic!("{} go", two.gone.len()) };
    assert!(idle.iter().any(|idle| Arc::ptr_eq(idle, gone)));
    let counts = two.subsystems.each_ref().map(|subsystem| subsystem.all_controllers().len());
    assert_eq!(counts, [1, 1]);
}

/// An idle association of the requested subsystem is evicted as well, even if the subsystem is below the limit.
#[test]
fn idle_associations_of_the_same_subsystem_go() {
    let mut two = Two::new();
    let useful = two.connect(0, 0).expect("room");
    let idle = two.connect(1, 0).expect("room");
    useful.last_traffic_ns.store(USELESS_AFTER_NS, Ordering::Relaxed);
    two.connect(1, USELESS_AFTER_NS).expect("one goes");
    assert!(two.registry.denials.counts().any(|of| of == (Reason::Limit, 1)));
    let [gone] = &two.gone[..] else { panic!("{} go", two.gone.len()) };
    assert!(Arc::ptr_eq(gone, &idle));
}

/// Hosts that read the discovery log are counted under the discovery subsystem's name, so no other host may use it.
#[test]
fn no_host_has_the_name_of_the_discovery_subsystem() {
    let mut rig = rig(HostLimits::default());
    let (_, refused) = Peer::ask(&mut rig, HERE, (DISCOVERY_NQN, NQN));
    assert!(refused.status.same_code(Status::CONNECT_INVALID_PARAMETERS), "{}", refused.status);
    discover(&mut rig, HERE, DISCOVERY_NQN);
    rig.finish();
}

/// A controller's capabilities depend only on namespaces that its host sees.
#[test]
fn a_hidden_namespace_announces_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let open = |nsid, source| {
        let config = NamespaceConfig::new(source, 512);
        Arc::new(Namespace::open(nsid, &config, NQN).expect("a small one"))
    };
    let memory = NamespaceSource::Memory { size_bytes: 4096, latency_us: 0, iops: 0 };
    let file = NamespaceSource::File { path, size_bytes: Some(1 << 20) };
    let subsystem =
        Subsystem::new(NQN.to_owned(), 0, vec![open(1, memory), open(2, file)], (1..=9, 0));
    let rule = |namespaces| HostRule {
        nqn: "*".to_owned(),
        subsystems: None,
        namespaces,
        rights: Rights::ALL,
        keys: HostKeys::default(),
    };
    let has_cache = |namespaces| {
        let rules = Rules::load(&[rule(namespaces)], &[NQN]).expect("no keys");
        let access = rules.access("host", NQN).expect("a rule");
        subsystem.traits_for(&access).map(|traits| traits.has_volatile_cache)
    };
    assert_eq!(has_cache(None), Some(true));
    assert_eq!(has_cache(Some(vec![1])), Some(false));
    assert_eq!(has_cache(Some(vec![2])), Some(true));
    assert_eq!(has_cache(Some(vec![])), None);
}

/// Each association gets all kept functions, and pays for them.
#[test]
fn whoever_connects_pays_for_the_kept_functions() {
    let mut rig = Rig::with(Limits::default(), HostLimits::default(), 32 << 20);
    let mut admin = Peer::connect(&mut rig, 0, 31);
    rig.core.io.unit_ps = UNIT_PS;
    let take = |rig: &mut Rig, name: &str| {
        let begun_ns = rig.core.io.now_ns;
        Peer::connect_as(rig, name);
        rig.core.io.now_ns - begun_ns
    };
    let without_ns = take(&mut rig, "nqn.2026-01.io.bpf-of:another");
    let keep = Installation { kept: true, ..Installation::default() };
    assert_eq!(try_to_load_get(&mut rig, &mut admin, keep).0, Status::SUCCESS);
    let with_ns = take(&mut rig, "nqn.2026-01.io.bpf-of:third");
    assert!(with_ns >= without_ns + 24_000, "{with_ns} ns, and {without_ns} without");
    rig.finish();
}

/// One host may keep at most half of the functions that others leave room for.
#[test]
fn one_host_leaves_room_for_functions_of_others() {
    let mut rig = Rig::new(Limits::default());
    let mut admin = Peer::connect(&mut rig, 0, 31);
    let keep = Installation { kept: true, ..Installation::default() };
    for number in 0..MAX_KEPT_FUNCTIONS / 2 {
        let (status, _) = try_to_load_get(&mut rig, &mut admin, keep);
        assert_eq!(status, Status::SUCCESS, "{number}");
    }
    let (status, _) = try_to_load_get(&mut rig, &mut admin, keep);
    assert!(status.same_code(Status::RESOURCE_LIMIT), "{status}");
    let mut other = Peer::connect_as(&mut rig, "nqn.2026-01.io.bpf-of:another");
    let (status, _) = try_to_load_get(&mut rig, &mut other, keep);
    assert_eq!(status, Status::SUCCESS);
}

/// However many connections of strangers come and go, those that stay get further behind by a slice only.
#[test]
fn strangers_do_not_pay_for_those_that_come_and_go() {
    let mut rig = Rig::new(Limits::default());
    let stays = rig.open();
    let time = |rig: &Rig| rig.core.executor.schedule.time_of(rig.index(stays));
    let before = time(&rig);
    for _ in 0..100 {
        let line = rig.open();
        rig.close(line);
    }
    let behind = time(&rig) - before;
    assert!(behind <= MOST_UNSCHEDULED, "{behind} units");
}

#[test]
fn who_comes_back_has_had_what_it_had() {
    const UNITS: u64 = 1_000_000_000;
    let mut rig = Rig::new(Limits::default());
    let time = |rig: &Rig, peer: &Peer| rig.core.executor.schedule.time_of(rig.index(peer.line));
    let connect = |rig: &mut Rig| Peer::connect_as(rig, "nqn.2026-01.io.bpf-of:greedy");
    let greedy = connect(&mut rig);
    assert!(time(&rig, &greedy) < UNITS / 2);
    let index = rig.index(greedy.line);
    rig.core.executor.schedule.charge(index, UNITS as i64);
    assert!(time(&rig, &greedy) > UNITS / 2);
    for _ in 0..2 {
        let now = (0..rig.line_count()).filter(|line| rig.is_open(*line)).collect::<Vec<_>>();
        now.into_iter().for_each(|line| rig.close(line));
        rig.work();
        let again = connect(&mut rig);
        assert!(time(&rig, &again) > UNITS / 2);
    }
    rig.finish();
}
