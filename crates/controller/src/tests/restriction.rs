//! Restricted associations: what keeps them alive, and when a change of a file map is complete.

use super::peer::{Peer, Said};
use crate::hosts::HostLimits;
use crate::rig::{Rig, capsule};
use bpfof_chain::Limits;
use bpfof_nvme::tcp::Digests;
use bpfof_nvme::vendor_specific::{Extent, FileMapObject, PushdownShort};
use bpfof_nvme::{AdminCommand, Sgl, Sqe, Status, Upload, features};

const SECOND_NS: u64 = 1_000_000_000;

fn set(admin: &mut Peer, rig: &mut Rig, feature: u8, value: u32) -> Status {
    admin.call(rig, AdminCommand::set_features(feature, value), &[]).status
}

fn restrict(admin: &mut Peer, rig: &mut Rig) {
    for (feature, value) in
        [(features::KEEP_ALIVE_TIMER, 5000), (features::QUEUE_RESTRICTION, features::PUSHDOWN_ONLY)]
    {
        assert_eq!(set(admin, rig, feature, value), Status::SUCCESS);
    }
}

/// A restricted association with a keep-alive timer of 5 s: its admin queue and an I/O queue.
fn restricted(rig: &mut Rig) -> (Peer, Peer) {
    let mut admin = Peer::connect(rig, 0, 31);
    restrict(&mut admin, rig);
    let io = Peer::connect(rig, 1, 31);
    (admin, io)
}

fn map_command(map: &FileMapObject) -> (Sqe, Vec<u8>) {
    let mut object = Vec::new();
    map.encode_into(&mut object);
    let upload = Upload { total_bytes: object.len() as u32, offset_bytes: 0 };
    let sqe = AdminCommand::file_map_set(upload);
    (Sqe { sgl: Sgl::in_capsule(object.len() as u32), ..sqe }, object)
}

fn map(version: u64) -> FileMapObject {
    let extents = vec![Extent { file_offset: 0, device_offset: 0, length_bytes: 512 }];
    FileMapObject { file: 7, nsid: 1, version, length_bytes: 512, extents }
}

/// Chains come from whichever process was given the queue, so they are no sign of life of the owner.
#[test]
fn chains_do_not_keep_a_restricted_association_alive() {
    let mut rig = Rig::new(Limits::default());
    let (mut admin, mut io) = restricted(&mut rig);
    let overdue = |rig: &Rig, admin: &Peer, ns: u64| rig.connection(admin.line).overdue(ns, 600);
    let late = Some("keep-alive timeout");
    rig.core.io.now_ns = 4 * SECOND_NS;
    let short = PushdownShort { function: 9, file: 7, first_blocks: 1, argument: [0; 24] };
    let answer = io.call(&mut rig, short.to_sqe(1, 64), &[]);
    assert_eq!(answer.status, Status::UNKNOWN_FUNCTION.with_dnr());
    // As at the end of a turn.
    rig.connection_mut(io.line).publish_tally();
    assert_eq!(overdue(&rig, &admin, 5 * SECOND_NS), None);
    assert_eq!(overdue(&rig, &admin, 5 * SECOND_NS + 1), late);
    assert_eq!(admin.call(&mut rig, AdminCommand::keep_alive(), &[]).status, Status::SUCCESS);
    assert_eq!(overdue(&rig, &admin, 9 * SECOND_NS), None);
    assert_eq!(overdue(&rig, &admin, 9 * SECOND_NS + 1), late);
}

/// A reactor may be about to copy blocks that it found in a removed map: until each reactor has passed a turn, the
/// blocks must not be considered free.
#[test]
fn a_change_of_a_map_is_over_when_all_reactors_follow_it() {
    let mut rig = Rig::new(Limits::default());
    let (mut admin, _io) = restricted(&mut rig);
    for map in [map(1), map(2), FileMapObject::removal(1, 7)] {
        rig.core.io.holds_messages = true;
        let (sqe, object) = map_command(&map);
        let cid = admin.send(&mut rig, sqe, &object);
        rig.work();
        assert_eq!(admin.hear(&mut rig), [], "version {}: too early", map.version);
        // Other commands do not wait.
        assert_eq!(admin.call(&mut rig, AdminCommand::keep_alive(), &[]).status, Status::SUCCESS);
        rig.core.io.holds_messages = false;
        rig.work();
        let [Said::Response(answer)] = admin.hear(&mut rig)[..] else { panic!("one answer") };
        assert_eq!((answer.cid, answer.status), (cid, Status::SUCCESS));
    }
    // A refused change has changed nothing.
    rig.core.io.holds_messages = true;
    let (sqe, object) = map_command(&FileMapObject { nsid: 9, ..map(3) });
    assert_eq!(admin.call(&mut rig, sqe, &object).status, Status::INVALID_FIELD.with_dnr());
    // The answer is dropped if the connection has closed in the meantime.
    let (sqe, object) = map_command(&map(3));
    admin.send(&mut rig, sqe, &object);
    rig.close(admin.line);
    rig.core.io.holds_messages = false;
    rig.finish();
}

#[test]
fn maps_of_other_associations_change_at_once() {
    let mut rig = Rig::new(Limits::default());
    let mut admin = Peer::connect(&mut rig, 0, 31);
    rig.core.io.holds_messages = true;
    let (sqe, object) = map_command(&map(1));
    assert_eq!(admin.call(&mut rig, sqe, &object).status, Status::SUCCESS);
}

/// A reactor takes only a few messages each turn: with a message for each command, hosts with many commands would keep
/// it from new connections.
#[test]
fn commands_of_a_turn_wait_for_reactors_together() {
    let mut rig = Rig::new(Limits::default());
    let (mut admin, _io) = restricted(&mut rig);
    let mut other = Peer::connect_as(&mut rig, "nqn.2026-01.io.bpf-of:other");
    restrict(&mut other, &mut rig);
    rig.core.io.holds_messages = true;
    let (sqe, object) = map_command(&map(1));
    let command = capsule(sqe, &object, Digests::default());
    rig.arrives(admin.line, &command);
    rig.turn(other.line, &command);
    assert_eq!(rig.messages(), 1);
    rig.core.io.holds_messages = false;
    rig.work();
    for peer in [&mut admin, &mut other] {
        let [Said::Response(answer)] = peer.hear(&mut rig)[..] else { panic!("one answer") };
        assert_eq!(answer.status, Status::SUCCESS);
    }
}

/// A host that has used up its memory can still take back what a function may read.
#[test]
fn file_maps_are_removed_where_memory_is_short() {
    let mut rig = Rig::with(Limits::default(), HostLimits::default(), 32 << 20);
    let mut admin = Peer::connect(&mut rig, 0, 31);
    let set = |rig: &mut Rig, admin: &mut Peer, map: &FileMapObject| {
        let (sqe, object) = map_command(map);
        admin.call(rig, sqe, &object).status
    };
    assert_eq!(set(&mut rig, &mut admin, &map(1)), Status::SUCCESS);
    let controller = rig.connection(admin.line).controller().cloned().expect("connected");
    let memory = &controller.host().memory;
    let mut others = memory.charge(0).expect("nothing");
    while others.resize(others.bytes() + 1).is_ok() {}
    assert!(set(&mut rig, &mut admin, &map(2)).same_code(Status::RESOURCE_LIMIT));
    assert!(controller.tables().has_map(7));
    assert_eq!(set(&mut rig, &mut admin, &FileMapObject::removal(1, 7)), Status::SUCCESS);
    assert!(!controller.tables().has_map(7));
}
