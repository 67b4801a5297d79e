//! Silent peers, with a clock that the test controls.

use super::peer::{Peer, Said};
use crate::access::Rules;
use crate::rig::{PEER_NQN, Rig, capsule, connect_command, h2c_data};
use bpfof_auth::{DhchapKey, Hash};
use bpfof_chain::Limits;
use bpfof_nvme::tcp::{Digests, H2cData, IcReq};
use bpfof_nvme::{AdminCommand, Rw, Sgl, Sqe, Status, opcode};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const SECOND_NS: u64 = 1_000_000_000;

#[test]
fn a_host_that_does_not_connect_is_given_up_after_ten_seconds() {
    let mut rig = Rig::new(Limits::default());
    rig.core.io.now_ns = 7 * SECOND_NS;
    let line = rig.open();
    let overdue = |rig: &Rig, seconds: u64| {
        rig.connection(line).overdue(rig.core.io.now_ns + seconds * SECOND_NS, 600)
    };
    assert_eq!(overdue(&rig, 10), None);
    assert_eq!(overdue(&rig, 11), Some("no Connect within 10 seconds"));
    // ICReq alone does not extend the time.
    let mut request = Vec::new();
    IcReq::default().encode_into(&mut request);
    rig.core.io.now_ns += 9 * SECOND_NS;
    rig.feed(line, &request);
    assert_eq!(overdue(&rig, 2), Some("no Connect within 10 seconds"));
    let (sqe, data) = connect_command(0, 31, 0);
    rig.feed(line, &capsule(sqe, &data, Digests::default()));
    // No keep-alive timeout was requested.
    assert_eq!(overdue(&rig, 600), None);
    let silent = Some("it has no keep-alive timer and was silent for longer than idle-timeout");
    assert_eq!(overdue(&rig, 601), silent);
}

/// The line of an admin queue with a keep-alive timeout of 5 s.
fn connect(rig: &mut Rig) -> usize {
    let line = rig.open();
    let mut request = Vec::new();
    IcReq::default().encode_into(&mut request);
    rig.feed(line, &request);
    let (sqe, data) = connect_command(0, 31, 5_000);
    rig.feed(line, &capsule(sqe, &data, Digests::default()));
    line
}

#[test]
fn a_host_that_stays_silent_beyond_its_keep_alive_timeout_is_given_up() {
    let mut rig = Rig::new(Limits::default());
    let line = connect(&mut rig);
    let overdue = |rig: &Rig, ns: u64| rig.connection(line).overdue(ns, 600);
    let patience_ns = 5 * SECOND_NS + 5 * SECOND_NS / 8;
    assert_eq!(overdue(&rig, patience_ns), None);
    assert_eq!(overdue(&rig, patience_ns + 1), Some("keep-alive timeout"));
    // Every command keeps the association alive, even a refused one.
    rig.core.io.now_ns = 4 * SECOND_NS;
    rig.feed(line, &capsule(AdminCommand::keep_alive(), &[], Digests::default()));
    assert_eq!(overdue(&rig, 4 * SECOND_NS + patience_ns), None);
    assert_eq!(overdue(&rig, 4 * SECOND_NS + patience_ns + 1), Some("keep-alive timeout"));
}

/// Commands on an unauthenticated admin queue are all refused, and are no sign of life of the host.
#[test]
fn who_has_not_authenticated_keeps_no_association_alive() {
    let mut rig = Rig::new(Limits::default());
    let key = DhchapKey::generate(Hash::Sha256).expect("random numbers");
    let rules = Rules::with_secrets(PEER_NQN, vec![key], None);
    rig.core.executor.registry.set_rules(rules);
    let line = connect(&mut rig);
    let controller = Arc::clone(rig.connection(line).controller().expect("connected"));
    let last_ns = || controller.last_traffic_ns.load(Ordering::Relaxed);
    let before_ns = last_ns();
    rig.core.io.now_ns += SECOND_NS;
    rig.feed(line, &capsule(AdminCommand::keep_alive(), &[], Digests::default()));
    rig.work();
    assert!(rig.is_open(line));
    assert_eq!(last_ns(), before_ns);
}

#[test]
fn the_keep_alive_timeout_can_be_changed() {
    let mut rig = Rig::new(Limits::default());
    let mut admin = Peer::connect(&mut rig, 0, 31);
    let set = AdminCommand::set_features(bpfof_nvme::features::KEEP_ALIVE_TIMER, 2_000);
    assert_eq!(admin.call(&mut rig, set, &[]).status, Status::SUCCESS);
    let overdue = |rig: &Rig, ns: u64| rig.connection(admin.line).overdue(ns, 600);
    let patience_ns = 2 * SECOND_NS + SECOND_NS / 4;
    assert_eq!(overdue(&rig, patience_ns), None);
    assert_eq!(overdue(&rig, patience_ns + 1), Some("keep-alive timeout"));
    let refused = Status::INVALID_KEEP_ALIVE_TIMEOUT.with_dnr();
    for (kato_ms, status) in [(600_000, Status::SUCCESS), (600_001, refused)] {
        let set = AdminCommand::set_features(bpfof_nvme::features::KEEP_ALIVE_TIMER, kato_ms);
        assert_eq!(admin.call(&mut rig, set, &[]).status, status, "{kato_ms} ms");
    }
}

/// Writes that a host has since sent to another target must not overwrite newer data.
#[test]
fn what_waits_while_the_process_is_stopped_is_not_carried_out_afterwards() {
    for (stopped_ns, is_written) in [(SECOND_NS, true), (3 * SECOND_NS, false)] {
        let mut rig = Rig::new(Limits::default());
        let mut admin = Peer::connect(&mut rig, 0, 31);
        let set = AdminCommand::set_features(bpfof_nvme::features::KEEP_ALIVE_TIMER, 2_000);
        assert_eq!(admin.call(&mut rig, set, &[]).status, Status::SUCCESS);
        let io = Peer::connect(&mut rig, 1, 31);
        let write = Rw { slba: 0, blocks: 1, fua: false }.to_sqe(opcode::nvm::WRITE, 1);
        let write = Sqe { cid: 9, sgl: Sgl::in_capsule(512), ..write };
        let write = capsule(write, &[7; 512], Digests::default());
        rig.feed_across_stop(io.line, &write, stopped_ns);
        rig.work();
        assert_eq!(rig.is_open(io.line), is_written);
        let mut found = [0; 512];
        let memory = rig.core.executor.namespace(0).backend.memory().expect("memory");
        memory.read(0, &mut found);
        assert_eq!(found == [7; 512], is_written, "after {stopped_ns} ns");
    }
}

/// An occasional byte is not enough: each PDU must be complete within 30 seconds.
#[test]
fn a_host_that_does_not_finish_a_pdu_is_given_up() {
    let mut rig = Rig::new(Limits::default());
    let admin = Peer::connect(&mut rig, 0, 31);
    let mut io = Peer::connect(&mut rig, 1, 31);
    let overdue = |rig: &Rig, line: usize, seconds: u64| {
        rig.connection(line).overdue(seconds * SECOND_NS, 600)
    };
    let late = Some("a PDU that did not arrive within 30 seconds");
    let keep_alive = capsule(AdminCommand::keep_alive(), &[], Digests::default());
    for second in 0..=30u64 {
        rig.core.io.now_ns = second * SECOND_NS;
        rig.feed(admin.line, &keep_alive[second as usize..][..1]);
    }
    assert_eq!((overdue(&rig, admin.line, 30), overdue(&rig, admin.line, 31)), (None, late));
    rig.feed(admin.line, &keep_alive[31..]);
    assert_eq!(overdue(&rig, admin.line, 100), None);

    // The same within the data of a PDU, whose pieces are processed as they arrive.
    let write = Rw { slba: 0, blocks: 8, fua: false }.to_sqe(opcode::nvm::WRITE, 1);
    io.send(&mut rig, Sqe { sgl: Sgl::transport(4096), ..write }, &[]);
    let [Said::R2t(r2t)] = io.hear(&mut rig)[..] else { panic!("no R2T") };
    let pdu = H2cData {
        cccid: r2t.cccid,
        ttag: r2t.ttag,
        data_offset_bytes: 0,
        data_length_bytes: 4096,
        last: true,
    };
    let data = h2c_data(pdu, &[1; 4096], Digests::default());
    rig.core.io.now_ns = 100 * SECOND_NS;
    rig.feed(io.line, &data[..2000]);
    rig.core.io.now_ns = 120 * SECOND_NS;
    rig.feed(io.line, &data[2000..4000]);
    assert_eq!((overdue(&rig, io.line, 130), overdue(&rig, io.line, 131)), (None, late));
    rig.feed(io.line, &data[4000..]);
    assert_eq!(overdue(&rig, io.line, 1000), None);
}

/// Data that the target has requested occupies a buffer: the host has 30 seconds to start, and for each further PDU.
#[test]
fn a_host_that_does_not_send_its_data_is_given_up() {
    let mut rig = Rig::new(Limits::default());
    let _admin = Peer::connect(&mut rig, 0, 31);
    let mut io = Peer::connect(&mut rig, 1, 31);
    let overdue = |rig: &Rig, line: usize, seconds: u64| {
        rig.connection(line).overdue(seconds * SECOND_NS, 600)
    };
    let late = Some("data that it was asked for did not arrive within 30 seconds");
    rig.core.io.now_ns = 50 * SECOND_NS;
    let write = Rw { slba: 0, blocks: 8, fua: false }.to_sqe(opcode::nvm::WRITE, 1);
    io.send(&mut rig, Sqe { sgl: Sgl::transport(4096), ..write }, &[]);
    let [Said::R2t(r2t)] = io.hear(&mut rig)[..] else { panic!("no R2T") };
    assert_eq!((overdue(&rig, io.line, 80), overdue(&rig, io.line, 81)), (None, late));
    // Other commands do not extend the time.
    rig.core.io.now_ns = 79 * SECOND_NS;
    let flush = Sqe::new(opcode::nvm::FLUSH, 1);
    assert_eq!(io.call(&mut rig, flush, &[]).status, Status::SUCCESS);
    assert_eq!((overdue(&rig, io.line, 80), overdue(&rig, io.line, 81)), (None, late));
    for half in [0, 2048] {
        let pdu = H2cData {
            cccid: r2t.cccid,
            ttag: r2t.ttag,
            data_offset_bytes: half,
            data_length_bytes: 2048,
            last: half == 2048,
        };
        rig.feed(io.line, &h2c_data(pdu, &[1; 2048], Digests::default()));
        let late = if pdu.last { None } else { late };
        assert_eq!((overdue(&rig, io.line, 109), overdue(&rig, io.line, 110)), (None, late));
    }
}

/// Data that arrives slowly but in time does not hold up the removal of a namespace.
#[test]
fn slow_data_does_not_keep_a_removed_namespace() {
    let mut rig = Rig::new(Limits::default());
    let _admin = Peer::connect(&mut rig, 0, 31);
    let mut io = Peer::connect(&mut rig, 1, 31);
    let write = Rw { slba: 0, blocks: 32, fua: false }.to_sqe(opcode::nvm::WRITE, 2);
    io.send(&mut rig, Sqe { sgl: Sgl::transport(128 << 10), ..write }, &[]);
    let [Said::R2t(r2t)] = io.hear(&mut rig)[..] else { panic!("no R2T") };
    rig.replace_namespace(0);
    rig.work();
    let mut sent = 0;
    while rig.is_open(io.line) {
        assert!(sent < 16, "the namespace is kept");
        rig.core.io.now_ns += 20 * SECOND_NS;
        let pdu = H2cData {
            cccid: r2t.cccid,
            ttag: r2t.ttag,
            data_offset_bytes: sent * 512,
            data_length_bytes: 512,
            last: false,
        };
        rig.feed(io.line, &h2c_data(pdu, &[1; 512], Digests::default()));
        rig.work();
        sent += 1;
    }
    rig.work();
    rig.core.io.now_ns += SECOND_NS;
    rig.work();
    assert!(!rig.core.executor.namespaces.has_leaving());
}

/// Linux sends no Keep Alive while there is traffic on any queue (CTRATT, bit 6).
#[test]
fn traffic_of_an_io_queue_keeps_the_association_alive() {
    let mut rig = Rig::new(Limits::default());
    let mut admin = Peer::connect(&mut rig, 0, 31);
    let mut io = Peer::connect(&mut rig, 1, 31);
    let set = AdminCommand::set_features(bpfof_nvme::features::KEEP_ALIVE_TIMER, 2_000);
    assert_eq!(admin.call(&mut rig, set, &[]).status, Status::SUCCESS);
    rig.core.io.now_ns = 2 * SECOND_NS;
    let flush = Sqe::new(opcode::nvm::FLUSH, 1);
    assert_eq!(io.call(&mut rig, flush, &[]).status, Status::SUCCESS);
    // As at the end of a turn.
    rig.connection_mut(io.line).publish_tally();
    let overdue = |rig: &Rig, ns: u64| rig.connection(admin.line).overdue(ns, 600);
    let end_ns = 4 * SECOND_NS + SECOND_NS / 4;
    assert_eq!(overdue(&rig, end_ns), None);
    assert_eq!(overdue(&rig, end_ns + 1), Some("keep-alive timeout"));
    // A command after the timeout is too late, even if no reactor has checked yet.
    rig.core.io.now_ns = end_ns + 1;
    io.send(&mut rig, flush, &[]);
    assert!(!rig.is_open(io.line), "and nothing of it is done");
}

#[test]
fn an_io_queue_may_be_silent() {
    let mut rig = Rig::new(Limits::default());
    let mut admin = Peer::connect(&mut rig, 0, 31);
    let io = Peer::connect(&mut rig, 1, 31);
    assert_eq!(rig.connection(io.line).overdue(u64::MAX, 600), None);
    assert_eq!(admin.call(&mut rig, AdminCommand::keep_alive(), &[]).status, Status::SUCCESS);
}
