//! Tests for the end of a turn.

use super::peer::{Peer, Said, pushdown};
use crate::limits::PIECE_UNITS;
use crate::rig::{Rig, assemble, function, h2c_data};
use bpfof_chain::{Function, Limits};
use bpfof_function::cost::UNIT_PS;
use bpfof_nvme::tcp::{Digests, H2cData};
use bpfof_nvme::vendor_specific::{FileVersion, PushdownParts};
use bpfof_nvme::{Rw, Sgl, opcode};
use std::sync::Arc;

const FUNCTION: u32 = 9;
const HOPS: u32 = 40;

/// Computes for this many rounds, then requests the same read again.
fn computing(rounds: i32, size_bytes: u32) -> Arc<Function> {
    let size = size_bytes as i32;
    let code = [
        (0xb7, 0x03, 0, rounds), // r3 = rounds
        (0x07, 0x03, 0, -1),     // again: r3 -= 1
        (0x65, 0x03, -2, 0),     // if r3 s> 0 goto again
        (0xb7, 0x05, 0, 0),      // r5 = 0
        (0x7b, 0x51, 64, 0),     // ctx->next_offset[0] = r5
        (0xb7, 0x04, 0, size),   // r4 = size
        (0x63, 0x41, 192, 0),    // ctx->next_size[0] = r4
        (0xb7, 0x04, 0, 1),      // r4 = 1
        (0x63, 0x41, 48, 0),     // ctx->reads = r4
        (0xb7, 0x00, 0, 0),      // r0 = 0
        (0x95, 0x00, 0, 0),      // exit
    ];
    function(FUNCTION, "computing", &assemble(&code))
}

struct Scene {
    rig: Rig,
    scan: Peer,
    other: Peer,
    /// Bytes of each hop.
    size_bytes: u32,
}

/// A target with two connected hosts, or one with two queues, that calls such a function.
fn target(work: (i32, u32), hosts: usize) -> Scene {
    target_with(work, hosts, HOPS)
}

/// The same with chains of this many hops.
fn target_with((rounds, size_bytes): (i32, u32), hosts: usize, hops: u32) -> Scene {
    let mut rig = Rig::new(Limits { hops, ..Limits::default() });
    rig.core.io.unit_ps = UNIT_PS;
    let admin = Peer::connect(&mut rig, 0, 31);
    let scan = Peer::connect(&mut rig, 1, 31);
    let controller = rig.connection(admin.line).controller().cloned().expect("connected");
    controller.update(|tables| tables.with_function(computing(rounds, size_bytes)));
    let other = match hosts {
        1 => Peer::connect(&mut rig, 2, 31),
        _ => Peer::connect_as(&mut rig, "nqn.2026-01.io.bpf-of:other"),
    };
    Scene { rig, scan, other, size_bytes }
}

/// Turns until a chain of [`HOPS`] such hops has ended. With `has_input`, another connection always has input.
fn turns(mut scene: Scene, has_input: bool) -> usize {
    begin(&mut scene);
    let Scene { mut rig, scan, other, .. } = scene;
    if has_input {
        rig.arrives(other.line, &[0]);
    }
    for turns in 1..=3 * HOPS as usize {
        rig.turn_without_input();
        if !rig.being_sent(scan.line).is_empty() {
            return turns;
        }
    }
    panic!("the chain does not end");
}

/// Sends the command that starts the chain.
fn begin(Scene { rig, scan, size_bytes, .. }: &mut Scene) {
    let (sqe, data) = pushdown(&PushdownParts {
        function: FUNCTION,
        files: &[FileVersion { id: 0, version: 1 }],
        first_file: 0,
        first_offset_bytes: 0,
        first_size_bytes: *size_bytes,
        scratch: &[0; 8],
        answer_max_bytes: 8,
        scratch_size_bytes: 0,
    });
    scan.send(rig, sqe, &data);
}

#[test]
fn long_operations_give_way_to_other_hosts() {
    // Some 12 µs for each hop.
    const LONG: (i32, u32) = (30_000, 512);
    let most = HOPS as usize;
    let given_way = turns(target(LONG, 2), true);
    // The cost is known from the first hop on.
    assert!((most - 1..=most + 1).contains(&given_way), "each hop gives way: {given_way}");
    assert!(turns(target(LONG, 2), false) < most / 2, "nobody waits");
    assert!(turns(target(LONG, 1), true) < most / 2, "it is one host's turn");
    assert!(turns(target((1, 512), 2), true) < most / 2, "a turn is shared by short hops");
}

#[test]
fn a_long_read_and_its_call_give_way() {
    // Some 6 µs for the read, and as many for the call.
    const SCAN: (i32, u32) = (15_000, 56 << 10);
    let most = 2 * HOPS as usize;
    let given_way = turns(target(SCAN, 2), true);
    assert!((most - 2..=most + 1).contains(&given_way), "both give way: {given_way}");
    assert!(turns(target(SCAN, 2), false) < HOPS as usize, "nobody waits");
    assert!(turns(target(SCAN, 1), true) < HOPS as usize / 2, "it is one host's turn");
}

/// If hosts share a target, a long read is an operation of its own. Its cost is not charged again to the hop behind it,
/// not even to the last one.
#[test]
fn a_long_read_is_paid_for_once() {
    let ns = |hosts| {
        let mut scene = target_with((1, 56 << 10), hosts, 1);
        let begun_ns = scene.rig.core.io.now_ns;
        begin(&mut scene);
        scene.rig.work();
        scene.rig.core.io.now_ns - begun_ns
    };
    let (alone, shared) = (ns(1), ns(2));
    let read_ns = (56 << 10) / 2 * UNIT_PS / 1000;
    assert!(alone > read_ns && shared < alone + read_ns / 4, "{shared} ns shared, {alone} alone");
}

/// Most answers of a connection leave before its last chains end, so that its host works at the same time; a few chains
/// are answered together.
#[test]
fn answers_leave_while_the_rest_is_carried_out() {
    const RESPONSE_BYTES: usize = 24;
    let answered_first = |chains: usize| {
        let mut scene = target_with((1, 512), 1, 7);
        scene.scan = Peer::connect(&mut scene.rig, 3, 127);
        let line = scene.scan.line;
        (0..chains).for_each(|_| begin(&mut scene));
        scene.rig.turn_without_input();
        scene.rig.being_sent(line).len() / RESPONSE_BYTES
    };
    let most = answered_first(64);
    assert!((40..64).contains(&most), "{most} of 64");
    assert_eq!(answered_first(16), 16);
}

#[test]
fn data_in_pieces_of_a_byte_takes_its_time() {
    const BYTES: u32 = 2048;
    let mut rig = Rig::new(Limits::default());
    rig.core.io.unit_ps = UNIT_PS;
    let _admin = Peer::connect(&mut rig, 0, 31);
    let mut io = Peer::connect(&mut rig, 1, 31);
    let write = Rw { slba: 0, blocks: BYTES / 512, fua: false }.to_sqe(opcode::nvm::WRITE, 1);
    io.send(&mut rig, bpfof_nvme::Sqe { sgl: Sgl::transport(BYTES), ..write }, &[]);
    let said = io.hear(&mut rig);
    let [Said::R2t(r2t)] = said[..] else { panic!("{said:?}") };
    let piece = |data_offset_bytes| {
        let last = data_offset_bytes + 1 == BYTES;
        let (cccid, ttag) = (r2t.cccid, r2t.ttag);
        let pdu = H2cData { cccid, ttag, data_offset_bytes, data_length_bytes: 1, last };
        h2c_data(pdu, &[7], Digests::default())
    };
    let pieces: Vec<u8> = (0..BYTES).flat_map(piece).collect();
    let began_ns = rig.core.io.now_ns;
    rig.feed(io.line, &pieces);
    rig.work();
    assert!(matches!(io.hear(&mut rig)[..], [Said::Response(cqe)] if cqe.status.is_success()));
    let units = (rig.core.io.now_ns - began_ns) * 1000 / UNIT_PS;
    assert!(units >= u64::from(BYTES) * PIECE_UNITS, "{units} units");
}

/// What a host is charged with is the time of its chains, as far as that can be believed, if their prices are too low.
#[test]
fn work_that_takes_longer_than_its_price_costs_its_time() {
    // Some 2 µs for each hop, at its price.
    const SHORT: (i32, u32) = (5_000, 512);
    let paid = |times: u64| {
        let mut scene = target(SHORT, 2);
        scene.rig.core.io.unit_ps = times * UNIT_PS;
        let index = scene.rig.index(scene.scan.line);
        let before = scene.rig.core.executor.schedule.time_of(index);
        begin(&mut scene);
        let Scene { mut rig, scan, .. } = scene;
        while rig.being_sent(scan.line).is_empty() {
            rig.turn_without_input();
        }
        rig.core.executor.schedule.time_of(index) - before
    };
    let price = paid(1);
    for (times, expected) in [(2, 1..=2), (10, 8..=10), (1000, 14..=64)] {
        let paid = paid(times) / price;
        assert!(expected.contains(&paid), "{times} times as long, {paid} times as dear");
    }
}
