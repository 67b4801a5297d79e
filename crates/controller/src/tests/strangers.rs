//! Hosts that must authenticate, before they have done so.

use super::peer::{Peer, Said};
use crate::access::{Reason, Rules};
use crate::hosts::{Host, HostLimits};
use crate::limits::ADMIN_UNITS;
use crate::rig::{
    NQN, PEER_NQN, Rig, capsule, connect_command, enable_command, follow_code, function,
};
use bpfof_auth::dhchap::{Algorithms, Group, HostAuth, HostConfig, HostStep};
use bpfof_auth::{DhchapKey, Hash, Names};
use bpfof_chain::{Function, Limits};
use bpfof_function::cost::UNIT_PS;
use bpfof_nvme::fabrics::{FabricsCommand, SecurityProtocol};
use bpfof_nvme::tcp::Digests;
use bpfof_nvme::{AdminCommand, Rw, Sgl, Sqe, Status, opcode};
use std::sync::Arc;

const MEMORY_BYTES: usize = 64 << 20;

/// A target that requires authentication, and the host's secrets.
struct Target {
    rig: Rig,
    config: Arc<HostConfig>,
}

impl Target {
    fn new(limits: HostLimits) -> Target {
        let rig = Rig::with(Limits::default(), limits, MEMORY_BYTES);
        let key = DhchapKey::generate(Hash::Sha256).expect("random numbers");
        let names = Names::new(PEER_NQN, NQN).expect("good names");
        let algorithms = Algorithms { hashes: vec![Hash::Sha256], groups: vec![Group::Null] };
        let config = Arc::new(HostConfig::new(names, &key, None, algorithms));
        let rules = Rules::with_secrets(PEER_NQN, vec![key], None);
        rig.core.executor.registry.set_rules(rules);
        Target { rig, config }
    }

    /// A queue of the largest size that has connected, and not authenticated.
    fn stranger(&mut self, qid: u16) -> Peer {
        let mut peer = Peer::hello(&mut self.rig);
        let (sqe, data) = connect_command(qid, 1022, 0);
        assert_eq!(peer.call(&mut self.rig, sqe, &data).status, Status::SUCCESS);
        peer
    }

    /// Runs an Authentication Send; returns its status.
    fn say(&mut self, peer: &mut Peer, message: &[u8]) -> Status {
        let (protocol, length_bytes) = (SecurityProtocol::IN_BAND, message.len() as u32);
        let send = FabricsCommand::AuthenticationSend { protocol, length_bytes };
        peer.call(&mut self.rig, send.to_sqe(), message).status
    }

    /// Runs an Authentication Receive; returns its data.
    fn fetch(&mut self, peer: &mut Peer) -> Vec<u8> {
        let (protocol, length_bytes) = (SecurityProtocol::IN_BAND, 4096);
        let receive = FabricsCommand::AuthenticationReceive { protocol, length_bytes };
        peer.send(&mut self.rig, receive.to_sqe(), &[]);
        self.rig.work();
        match peer.hear(&mut self.rig).swap_remove(0) {
            Said::Data(data, _) => data,
            other => panic!("no message but {other:?}"),
        }
    }

    fn authenticate(&mut self, peer: &mut Peer) {
        let (mut host, mut step) = HostAuth::new(Arc::clone(&self.config), 1);
        while let HostStep::Exchange(message) = step {
            assert_eq!(self.say(peer, &message), Status::SUCCESS);
            step = host.received(&self.fetch(peer));
        }
        assert!(matches!(step, HostStep::Finished { result: Ok(_), .. }), "{step:?}");
    }

    fn host(&self, peer: &Peer) -> Arc<Host> {
        let association = self.rig.connection(peer.line).phase.association();
        Arc::clone(association.expect("connected").host())
    }

    fn pending_bytes(&self) -> usize {
        self.rig.core.executor.registry.hosts.pending.used_bytes()
    }

    /// Number of functions in a queue's association.
    fn functions(&self, peer: &Peer) -> usize {
        let controller = self.rig.connection(peer.line).controller().expect("connected");
        controller.tables().functions().len()
    }

    fn keep(&self, name: &str) {
        let subsystem = self.rig.core.executor.registry.subsystem(NQN).expect("it is served");
        let kept = Arc::into_inner(function(0, name, &follow_code())).expect("nobody else has it");
        subsystem.keep_own_function(Function { ..kept }).expect("there is room");
    }
}

fn block(opcode: u8) -> Sqe {
    let rw = Rw { slba: 0, blocks: 1, fua: false };
    Sqe { sgl: Sgl::transport(512), ..rw.to_sqe(opcode, 1) }
}

/// A peer that only knows a host's name gets neither its memory nor its shares nor kept functions before it has
/// authenticated as that host.
#[test]
fn what_a_host_has_is_for_who_has_shown_that_it_is_the_host() {
    let mut target = Target::new(HostLimits::default());
    target.keep("before");
    let mut admin = target.stranger(0);
    target.keep("after");
    let host = target.host(&admin);
    let first_bytes = target.pending_bytes();
    assert_eq!((host.memory.used_bytes(), host.report().connections), (0, 0));
    assert_eq!(target.functions(&admin), 0);
    assert!(first_bytes < 64 << 10, "{first_bytes} bytes");
    let call = AdminCommand::keep_alive();
    let required = Status::AUTHENTICATION_REQUIRED.with_dnr();
    assert_eq!(admin.call(&mut target.rig, call, &[]).status, required);
    target.authenticate(&mut admin);
    assert_eq!(target.pending_bytes(), 0);
    assert_eq!((host.report().connections, target.functions(&admin)), (1, 2));
    let admin_bytes = host.memory.used_bytes();
    assert!(admin_bytes > 128 << 10, "{admin_bytes} bytes");
    assert_eq!(admin.call(&mut target.rig, enable_command(), &[]).status, Status::SUCCESS);

    let mut io = target.stranger(1);
    assert_eq!((host.memory.used_bytes(), host.report().connections), (admin_bytes, 1));
    assert!(target.pending_bytes() < 64 << 10);
    target.authenticate(&mut io);
    assert_eq!((target.pending_bytes(), host.report().connections), (0, 2));
    // The queue has a slot for each entry from now on.
    let read = block(opcode::nvm::READ);
    (0..1000).for_each(|_| _ = io.send(&mut target.rig, read, &[]));
    target.rig.work();
    let ends = |said: &Said| matches!(said, Said::Response(cqe) if cqe.status.is_success());
    assert_eq!(io.hear(&mut target.rig).iter().filter(|said| ends(said)).count(), 1000);
    target.rig.finish();
}

/// They count as connections before Connect: a new one replaces the oldest.
#[test]
fn strangers_compete_among_themselves() {
    let mut target = Target::new(HostLimits::default());
    target.rig.core.table.room.pending = 8;
    let mut admin = target.stranger(0);
    target.authenticate(&mut admin);
    let strangers: Vec<Peer> = (0..20).map(|_| target.stranger(0)).collect();
    let open = strangers.iter().filter(|peer| target.rig.is_open(peer.line)).count();
    assert_eq!(open, 8);
    assert!(!target.rig.core.executor.schedule.is_shared(), "no shares are theirs");
    assert!(target.rig.is_open(strangers[12].line) && target.rig.is_open(admin.line));
    target.rig.finish();
}

/// A host that has authenticated is disconnected if it may have no more connections.
#[test]
fn limits_of_a_host_count_when_it_has_shown_who_it_is() {
    let limits = HostLimits { connections_per_host: 1, ..HostLimits::default() };
    let mut target = Target::new(limits);
    let strangers = [0, 0, 0].map(|qid| target.stranger(qid));
    let [mut admin, mut second, _third] = strangers;
    target.authenticate(&mut admin);
    assert!(target.rig.is_open(admin.line));
    target.authenticate(&mut second);
    assert!(!target.rig.is_open(second.line) && target.rig.is_open(admin.line));
    let mut denials = target.rig.core.executor.registry.denials.counts();
    assert!(denials.any(|of| of == (Reason::Limit, 1)));
    drop(denials);
    target.rig.finish();
}

/// Work for an unknown peer costs as much time as for a known one.
#[test]
fn refused_connects_and_messages_cost_what_they_take() {
    let mut target = Target::new(HostLimits::default());
    target.rig.core.io.unit_ps = UNIT_PS;
    let least_ns = |commands: u64| commands * ADMIN_UNITS * UNIT_PS / 1000;
    let mut peer = Peer::hello(&mut target.rig);
    let (sqe, data) = connect_command(1, 31, 0);
    let begun_ns = target.rig.core.io.now_ns;
    let connects = capsule(sqe, &data, Digests::default()).repeat(12);
    target.rig.feed(peer.line, &connects);
    target.rig.work();
    assert_eq!(peer.hear(&mut target.rig).len(), 12, "there is no controller 1");
    assert!(target.rig.core.io.now_ns - begun_ns >= least_ns(12));

    let mut admin = target.stranger(0);
    target.authenticate(&mut admin);
    assert_eq!(admin.call(&mut target.rig, enable_command(), &[]).status, Status::SUCCESS);
    let mut io = target.stranger(1);
    let begun_ns = target.rig.core.io.now_ns;
    let (protocol, length_bytes) = (SecurityProtocol::IN_BAND, 0);
    let send = FabricsCommand::AuthenticationSend { protocol, length_bytes }.to_sqe();
    assert!(target.rig.is_open(io.line));
    assert_eq!(io.call(&mut target.rig, send, &[]).status, Status::SUCCESS, "that was no message");
    assert!(target.rig.core.io.now_ns - begun_ns >= least_ns(1));
    // Authentication has failed; a host that does not fetch the reason is disconnected.
    assert!(target.rig.is_open(io.line));
    assert_eq!(io.call(&mut target.rig, send, &[]).status, Status::SUCCESS);
    assert!(!target.rig.is_open(io.line));
    target.rig.finish();
}

/// A command without room for a message does not consume it: the message's step is still to come.
#[test]
fn a_message_is_taken_by_who_has_room_for_it() {
    let mut target = Target::new(HostLimits::default());
    let mut peer = target.stranger(0);
    let (mut host, step) = HostAuth::new(Arc::clone(&target.config), 1);
    let HostStep::Exchange(negotiate) = step else { panic!("it begins with a message") };
    let (protocol, length_bytes) = (SecurityProtocol::IN_BAND, 4096);
    let receive = FabricsCommand::AuthenticationReceive { protocol, length_bytes }.to_sqe();
    let in_capsule = Sqe { sgl: Sgl::in_capsule(4096), ..receive };
    let room = [0; 4096];
    let wrong = Status::INVALID_SGL_DESCRIPTOR_TYPE.with_dnr();
    assert_eq!(target.say(&mut peer, &negotiate), Status::SUCCESS);
    assert_eq!(peer.call(&mut target.rig, in_capsule, &room).status, wrong);
    let HostStep::Exchange(reply) = host.received(&target.fetch(&mut peer)) else {
        panic!("it goes on")
    };
    assert_eq!(target.say(&mut peer, &reply), Status::SUCCESS);
    assert_eq!(peer.call(&mut target.rig, in_capsule, &room).status, wrong);
    let line = peer.line;
    let association = |rig: &Rig| {
        let association = rig.connection(line).phase.association().expect("connected");
        (association.is_pending(), association.awaits_authentication())
    };
    assert_eq!(association(&target.rig), (true, true), "it has not heard of its success");
    let success = target.fetch(&mut peer);
    assert_eq!(association(&target.rig), (false, false));
    assert!(matches!(host.received(&success), HostStep::Finished { result: Ok(_), .. }));
    // A host that has asked out of order loses nothing by such a command, either.
    assert_eq!(peer.call(&mut target.rig, in_capsule, &room).status, wrong);
    assert_eq!(association(&target.rig), (false, false));
    target.rig.finish();
}

/// A peer that only names a host cannot write to the error log of its association.
#[test]
fn strangers_leave_no_errors_to_a_host() {
    let mut target = Target::new(HostLimits::default());
    let mut admin = target.stranger(0);
    target.authenticate(&mut admin);
    assert_eq!(admin.call(&mut target.rig, enable_command(), &[]).status, Status::SUCCESS);
    let mut io = target.stranger(1);
    let controller = target.rig.connection(io.line).controller().map(Arc::clone);
    let errors = || controller.as_ref().expect("connected").errors.count();
    let read = block(opcode::nvm::READ);
    let required = Status::AUTHENTICATION_REQUIRED.with_dnr();
    assert_eq!((io.call(&mut target.rig, read, &[]).status, errors()), (required, 0));
    target.authenticate(&mut io);
    let unknown = Sqe { nsid: 77, ..read };
    assert!(!io.call(&mut target.rig, unknown, &[]).status.is_success());
    assert_eq!(errors(), 1);
    drop(controller);
    target.rig.finish();
}
