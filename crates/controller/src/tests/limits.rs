//! Requests that the target refuses, limits that it enforces, and conditions under which it must continue.

use super::peer::{Peer, Said, pushdown};
use crate::connection::Connection;
use crate::hosts::{Host, HostLimits};
use crate::limits::{ARENA_SLICE_NS, CLOSES_PER_TURN, LINGER_NS};
use crate::reactor::Message;
use crate::reactor::completions::message;
use crate::reactor::turn;
use crate::rig::{NQN, Rig, capsule, connect_command, enable_command, h2c_data};
use bpfof_chain::Limits;
use bpfof_function::memory::Charge;
use bpfof_nvme::fabrics::{ConnectData, ControllerConfig, FabricsCommand};
use bpfof_nvme::tcp::{Digests, Fes, H2cData, IcReq, R2t};
use bpfof_nvme::vendor_specific::{
    Extent, FileMapObject, FileVersion, PushdownParts, PushdownShort,
};
use bpfof_nvme::{AdminCommand, Installation, Rw, Sgl, Sqe, Status, Upload, opcode};
use std::sync::Arc;

const TRANSFER_BYTES: u32 = 128 << 10;
const SECOND_NS: u64 = 1_000_000_000;

fn rig() -> (Rig, Peer, Peer) {
    let mut rig = Rig::new(Limits { hops: 2000, ..Limits::default() });
    let admin = Peer::connect(&mut rig, 0, 31);
    let io = Peer::connect(&mut rig, 1, 255);
    (rig, admin, io)
}

fn rw(opcode: u8, nsid: u32, slba: u64, length_bytes: u32) -> Sqe {
    let block_bytes = if nsid == 2 { 4096 } else { 512 };
    let rw = Rw { slba, blocks: length_bytes / block_bytes, fua: false };
    Sqe { sgl: Sgl::transport(length_bytes), ..rw.to_sqe(opcode, nsid) }
}

/// Loads BPF-KV's `get` and returns its id.
fn load_get(rig: &mut Rig, admin: &mut Peer) -> u32 {
    let (status, id) = try_to_load_get(rig, admin, Installation::default());
    assert_eq!(status, Status::SUCCESS);
    id
}

/// The status and the id in the answer to the last chunk, or to the first that is refused.
pub(super) fn try_to_load_get(
    rig: &mut Rig,
    admin: &mut Peer,
    installation: Installation,
) -> (Status, u32) {
    let object = bpfkv::GET_OBJECT;
    let mut last = (Status::SUCCESS, 0);
    for (index, chunk) in object.chunks(8192).enumerate() {
        let offset_bytes = index as u32 * 8192;
        let upload = Upload { total_bytes: object.len() as u32, offset_bytes };
        let sqe = AdminCommand::function_load(upload, installation);
        let sqe = Sqe { sgl: Sgl::in_capsule(chunk.len() as u32), ..sqe };
        let answer = admin.call(rig, sqe, chunk);
        last = (answer.status, answer.dw0);
        if last.0 != Status::SUCCESS {
            break;
        }
    }
    last
}

/// A node of BPF-KV whose only child is the node itself: `get` loops in it.
fn store_cycle(rig: &Rig, namespace: usize) {
    let mut node = [0xff; 512];
    node[..24].fill(0);
    let pointer_at = 16 + 31 * 8;
    node[pointer_at..pointer_at + 8].copy_from_slice(&(1u64 << 63).to_le_bytes());
    rig.store(namespace, 0, &node);
}

fn call(function: u32) -> PushdownParts<'static> {
    PushdownParts {
        function,
        files: &[FileVersion { id: 0, version: 1 }],
        first_file: 0,
        first_offset_bytes: 0,
        first_size_bytes: 512,
        scratch: &[1, 0, 0, 0, 0, 0, 0, 0],
        answer_max_bytes: 72,
        scratch_size_bytes: 0,
    }
}

/// A connection that ends while it waits for an arena is removed from the queue.
#[test]
fn nobody_waits_behind_the_dead() {
    let mut rig = Rig::new(Limits { hops: 2000, chains: 1, ..Limits::default() });
    let mut admin = Peer::connect(&mut rig, 0, 31);
    let mut hosts = [1, 2, 3].map(|qid| Peer::connect(&mut rig, qid, 63));
    let function = load_get(&mut rig, &mut admin);
    store_cycle(&rig, 0);
    let (sqe, data) = pushdown(&call(function));
    for host in &mut hosts {
        host.send(&mut rig, sqe, &data);
    }
    let waiting = |rig: &Rig| rig.core.executor.admission.waiting().to_vec();
    let indices = [1, 2].map(|at| rig.index(hosts[at].line));
    assert_eq!(waiting(&rig), indices);
    rig.close(hosts[1].line);
    assert_eq!(waiting(&rig), indices[1..]);
    rig.work();
    assert_eq!(hosts[2].hear(&mut rig).len(), 1, "it has had its turn");
    rig.finish();
}

/// A target with nine arenas, two hosts' I/O queues, and a chain that takes 2,000 hops.
fn two_hosts() -> (Rig, [Peer; 2], (Sqe, Vec<u8>)) {
    let mut rig = Rig::new(Limits { hops: 2000, chains: 9, ..Limits::default() });
    let mut admin = Peer::connect(&mut rig, 0, 31);
    let hosts = [1, 2].map(|qid| Peer::connect(&mut rig, qid, 63));
    let function = load_get(&mut rig, &mut admin);
    store_cycle(&rig, 0);
    (rig, hosts, pushdown(&call(function)))
}

/// A connection with more chains than others gives some up for them, and all chains are answered in the end.
#[test]
fn chains_are_shared() {
    let (mut rig, mut hosts, (sqe, data)) = two_hosts();
    let indices = [0, 1].map(|at| rig.index(hosts[at].line));
    let running = |rig: &Rig| indices.map(|index| rig.core.executor.admission.running(index));
    for _ in 0..40 {
        hosts[0].send(&mut rig, sqe, &data);
    }
    assert_eq!(running(&rig), [7, 0], "nobody else asks, and two are for other hosts");
    for _ in 0..40 {
        hosts[1].send(&mut rig, sqe, &data);
    }
    assert_eq!(running(&rig), [7, 0], "hops have not ended yet");
    for _ in 0..400 {
        rig.step();
    }
    assert_eq!(running(&rig), [4, 3]);
    assert!(hosts.iter().all(|host| rig.connection(host.line).is_paused()));
    rig.work();
    for host in &mut hosts {
        let said = host.hear(&mut rig);
        let ended = |said: &Said| matches!(said, Said::Response(cqe) if cqe.status.same_code(Status::HOP_BUDGET_EXHAUSTED));
        assert_eq!(said.iter().filter(|said| ended(said)).count(), 40, "each command is answered");
    }
    rig.finish();
}

/// If a chain was asked to give way and its read does not complete, another chain is asked.
#[test]
fn another_chain_is_asked_in_the_place_of_one_that_hangs() {
    let (mut rig, mut hosts, (sqe, data)) = two_hosts();
    for host in &mut hosts {
        (0..7).for_each(|_| _ = host.send(&mut rig, sqe, &data));
    }
    let look = |rig: &mut Rig, passed_ns: u64| {
        let executor = &mut rig.core.executor;
        executor.now_ns += passed_ns;
        executor.grant_arenas(|_| panic!("no arena is free"));
        executor.arenas.running().filter(|(_, owner)| owner.gives_way()).count()
    };
    assert_eq!(look(&mut rig, 0), 1, "one connection waits");
    assert_eq!(look(&mut rig, ARENA_SLICE_NS / 2), 1);
    assert_eq!(look(&mut rig, ARENA_SLICE_NS / 2), 2);
    assert_eq!(look(&mut rig, ARENA_SLICE_NS / 2), 2);
    rig.work();
    hosts.iter_mut().for_each(|host| assert_eq!(host.hear(&mut rig).len(), 7));
    rig.finish();
}

/// A stopping target lets chains end normally, also those that have given way.
#[test]
fn chains_that_rest_end_when_the_target_stops() {
    let (mut rig, mut hosts, (sqe, data)) = two_hosts();
    for host in &mut hosts {
        (0..7).for_each(|_| _ = host.send(&mut rig, sqe, &data));
    }
    while rig.connection(hosts[0].line).waiters.resting.is_empty() {
        assert!(rig.step(), "a chain gives way");
    }
    let first = rig.index(hosts[0].line);
    let resting = rig.connection(hosts[0].line).waiters.resting.len();
    let begun = rig.core.executor.admission.running(first) as usize + resting;
    message(&mut rig.core, Message::Stop);
    rig.work();
    let ended = |said: &Said| matches!(said, Said::Response(cqe) if cqe.status.same_code(Status::HOP_BUDGET_EXHAUSTED));
    assert_eq!(hosts[0].hear(&mut rig).iter().filter(|said| ended(said)).count(), begun);
    rig.finish();
}

/// A host whose connection an operator closes gets the answers of its chains, if they end within the time that it has
/// to receive them. After that chains are cut short, because their answers could not be delivered.
#[test]
fn chains_of_a_closed_connection_end_with_its_time() {
    let mut rig = Rig::new(Limits { hops: 1 << 24, chains: 9, ..Limits::default() });
    let mut admin = Peer::connect(&mut rig, 0, 31);
    let mut hosts = [1, 2].map(|qid| Peer::connect(&mut rig, qid, 63));
    let function = load_get(&mut rig, &mut admin);
    store_cycle(&rig, 0);
    let (sqe, data) = pushdown(&call(function));
    for host in &mut hosts {
        (0..7).for_each(|_| _ = host.send(&mut rig, sqe, &data));
    }
    while rig.connection(hosts[0].line).waiters.resting.is_empty() {
        assert!(rig.step(), "a chain gives way");
    }
    let listener = rig.connection(hosts[0].line).ends.listener;
    message(&mut rig.core, Message::EndListener(listener));
    (0..100).for_each(|_| assert!(rig.step(), "chains go on"));
    assert_ne!(rig.core.executor.arenas.engine.running(), 0);
    rig.core.io.now_ns += LINGER_NS + 2 * SECOND_NS;
    rig.work();
    assert_eq!(rig.core.executor.arenas.engine.running(), 0);
    rig.finish();
}

/// Commands in one piece with Connect belong to the new queue: their chains are counted, and wait.
#[test]
fn chains_behind_connect_count_and_wait() {
    let mut rig = Rig::new(Limits { hops: 2000, chains: 2, ..Limits::default() });
    let mut admin = Peer::connect(&mut rig, 0, 31);
    let function = load_get(&mut rig, &mut admin);
    store_cycle(&rig, 0);
    let (sqe, data) = pushdown(&call(function));
    let mut host = Peer::hello(&mut rig);
    let (connect, whom) = connect_command(1, 63, 0);
    let mut bytes = capsule(connect, &whom, Digests::default());
    for cid in 1..=4 {
        bytes.extend(capsule(Sqe { cid, ..sqe }, &data, Digests::default()));
    }
    rig.feed(host.line, &bytes);
    (0..3).for_each(|_| {
        rig.step();
    });
    let index = rig.index(host.line);
    assert_eq!(rig.core.executor.admission.running(index), 2);
    rig.work();
    assert_eq!(host.hear(&mut rig).len(), 5, "each command is answered");
    assert_eq!(rig.core.executor.admission.running(index), 0);
    rig.finish();
}

#[test]
fn malformed_requests_name_the_field() {
    let (mut rig, mut admin, mut io) = rig();
    let function = load_get(&mut rig, &mut admin);
    let mut refused = |parts: &PushdownParts<'_>, change: &dyn Fn(&mut Vec<u8>)| {
        let (sqe, mut data) = pushdown(parts);
        change(&mut data);
        let sqe = Sqe { sgl: Sgl::in_capsule(data.len() as u32), ..sqe };
        let answer = io.call(&mut rig, sqe, &data);
        assert_eq!(answer.status, Status::MALFORMED_REQUEST.with_dnr());
        answer.dw0
    };
    let good = call(function);
    let file = FileVersion { id: 0, version: 1 };
    assert_eq!(refused(&PushdownParts { files: &[], ..good }, &|_| ()), 4);
    assert_eq!(refused(&PushdownParts { files: &[file; 17], ..good }, &|_| ()), 4);
    assert_eq!(refused(&PushdownParts { first_file: 1, ..good }, &|_| ()), 6);
    assert_eq!(refused(&PushdownParts { first_size_bytes: 0, ..good }, &|_| ()), 16);
    // A scratch size that is too small for the argument, or above the limit.
    assert_eq!(refused(&PushdownParts { scratch: &[0; 4097], ..good }, &|_| ()), 28);
    assert_eq!(refused(&PushdownParts { scratch_size_bytes: 7, ..good }, &|_| ()), 28);
    assert_eq!(refused(&PushdownParts { scratch_size_bytes: 16_385, ..good }, &|_| ()), 28);
    assert_eq!(refused(&PushdownParts { scratch_size_bytes: u32::MAX, ..good }, &|_| ()), 28);
    assert_eq!(refused(&good, &|data| data[20] += 1), 20);
    assert_eq!(refused(&good, &|data| data[32 + 4] = 1), 36);
    assert_eq!(refused(&good, &|data| data.truncate(31)), 31);
    assert_eq!(refused(&good, &|data| data.truncate(40)), 40);

    let short = PushdownShort { function, file: 0, first_blocks: 0, argument: [0; 24] };
    let answer = io.call(&mut rig, short.to_sqe(1, 72), &[]);
    assert_eq!(answer.status, Status::MALFORMED_REQUEST.with_dnr());
    assert_eq!(answer.dw0, PushdownShort::FIRST_BLOCKS_AT);
    // Values at the limits are accepted.
    let (sqe, data) = pushdown(&PushdownParts { files: &[file; 16], scratch: &[0; 4096], ..good });
    assert_eq!(io.call(&mut rig, sqe, &data).status, Status::FUNCTION_ABORT.with_dnr());
    // The longest argument that fits in a capsule, with the largest scratch.
    let (sqe, data) = pushdown(&PushdownParts {
        files: &[file; 16],
        scratch: &[0; 8192 - 32 - 16 * 16],
        scratch_size_bytes: 16_384,
        ..good
    });
    assert_eq!(data.len(), 8192);
    assert_eq!(io.call(&mut rig, sqe, &data).status, Status::FUNCTION_ABORT.with_dnr());
    rig.finish();
}

#[test]
fn a_log_page_is_not_longer_than_a_transfer() {
    let (mut rig, mut admin, _io) = rig();
    let answer = admin.call(&mut rig, AdminCommand::get_log_page(2, 0, 0, u32::MAX), &[]);
    assert_eq!(answer.status, Status::INVALID_FIELD.with_dnr());
    let page = AdminCommand::get_log_page(2, 0, 0, TRANSFER_BYTES);
    assert_eq!(admin.call(&mut rig, page, &[]).status, Status::SUCCESS);
    let mut huge = AdminCommand::get_log_page(2, 0, 0, 512);
    huge.sgl = Sgl::transport(u32::MAX);
    assert_eq!(admin.call(&mut rig, huge, &[]).status, Status::SUCCESS);
}

/// A host may send all its commands before any data. If the target stopped receiving once it holds as much data as it
/// allows, the data would never arrive.
#[test]
fn writes_wait_for_their_turn_and_all_are_done() {
    let (mut rig, _admin, mut io) = rig();
    for index in 0..100u64 {
        io.send(&mut rig, rw(opcode::nvm::WRITE, 1, index % 8 * 256, TRANSFER_BYTES), &[]);
        assert!(rig.connection(io.line).queue.held_bytes() <= 4 << 20);
    }
    let mut asked = Vec::new();
    let mut done = 0;
    let mut most_asked = 0;
    while done < 100 {
        for said in io.hear(&mut rig) {
            match said {
                Said::R2t(r2t) => asked.push(r2t),
                Said::Response(cqe) => {
                    assert_eq!(cqe.status, Status::SUCCESS);
                    done += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        most_asked = most_asked.max(asked.len());
        if !asked.is_empty() {
            // In an order other than requested.
            let r2t = asked.swap_remove(asked.len() / 2);
            io.send_data(&mut rig, r2t, &[7; TRANSFER_BYTES as usize]);
        }
        rig.work();
    }
    // Each takes a page more than its data.
    assert_eq!((most_asked, asked.len()), (31, 0));
    assert!(!rig.connection(io.line).queue.is_busy());
    rig.finish();
}

#[test]
fn a_host_that_does_not_listen_costs_little() {
    let (mut rig, _admin, mut io) = rig();
    for index in 0..250u64 {
        io.send(&mut rig, rw(opcode::nvm::READ, 1, index % 8 * 256, TRANSFER_BYTES), &[]);
        if index % 7 == 0 {
            rig.work();
        }
    }
    rig.work();
    let unsent = rig.connection(io.line).port.unsent_bytes();
    assert!(unsent < 6 << 20, "{unsent} bytes wait to be sent");
    let mut done = 0;
    while done < 250 {
        let said = io.hear(&mut rig);
        assert!(!said.is_empty(), "the rest is answered once the host listens");
        done += said.iter().filter(|said| matches!(said, Said::Response(_))).count();
        rig.work();
    }
    rig.finish();
}

#[test]
fn commands_beyond_the_queue_end_the_connection() {
    let (mut rig, mut admin, _io) = rig();
    let mut small = Peer::connect(&mut rig, 2, 1);
    for _ in 0..2 {
        small.send(&mut rig, rw(opcode::nvm::WRITE, 1, 0, TRANSFER_BYTES), &[]);
    }
    rig.work();
    assert_eq!(small.hear(&mut rig).len(), 2);
    small.send(&mut rig, rw(opcode::nvm::READ, 1, 0, 512), &[]);
    assert_eq!(small.hear(&mut rig), [Said::Terminated(Fes::LimitExceeded, 0)]);
    assert!(!rig.is_open(small.line));
    assert_eq!(admin.call(&mut rig, AdminCommand::keep_alive(), &[]).status, Status::SUCCESS);
    rig.finish();
}

/// An endless chain in one namespace does not make commands on another namespace wait.
#[test]
fn namespaces_take_turns() {
    let (mut rig, mut admin, mut io) = rig();
    let function = load_get(&mut rig, &mut admin);
    for namespace in [1, 0] {
        store_cycle(&rig, namespace);
        let (mut sqe, data) = pushdown(&call(function));
        sqe.nsid = namespace as u32 + 1;
        io.send(&mut rig, sqe, &data);
        assert!(rig.step() && rig.step());
        let read = rw(opcode::nvm::READ, 2 - namespace as u32, 0, 4096);
        let cid = io.send(&mut rig, read, &[]);
        for _ in 0..4 {
            assert!(rig.step());
        }
        let said = io.hear(&mut rig);
        assert!(matches!(&said[..], [Said::Data(..), Said::Response(cqe)] if cqe.cid == cid));
        rig.work();
        let said = io.hear(&mut rig);
        let [Said::Response(cqe)] = &said[..] else { panic!("{said:?}") };
        assert_eq!((cqe.status, cqe.dw1), (Status::HOP_BUDGET_EXHAUSTED.with_dnr(), 2000));
    }
    rig.finish();
}

/// The SUCCESS flag saves a response, but a chain's response carries its hops.
#[test]
fn answers_of_chains_have_a_response() {
    let (mut rig, mut admin, _io) = rig();
    let function = load_get(&mut rig, &mut admin);
    let line = rig.open();
    let mut request = Vec::new();
    IcReq::default().encode_into(&mut request);
    rig.feed(line, &request);
    let (mut sqe, data) = connect_command(3, 15, 0);
    sqe.cdw11 |= 4 << 16; // no flow control
    rig.feed(line, &capsule(sqe, &data, Digests::default()));
    let mut ear = super::peer::Ear::new();
    ear.hear(&rig.output(line));
    let mut say = |sqe: Sqe, data: &[u8]| {
        rig.feed(line, &capsule(sqe, data, Digests::default()));
        rig.work();
        ear.hear(&rig.output(line))
    };
    let read = say(rw(opcode::nvm::READ, 1, 0, 512), &[]);
    assert!(matches!(&read[..], [Said::Data(_, true)]), "{read:?}");
    // A leaf with only key 0: not found, an answer of 8 bytes.
    let mut leaf = [0xff; 512];
    leaf[..24].fill(0);
    leaf[8] = 1;
    say(Sqe { sgl: Sgl::in_capsule(512), ..rw(opcode::nvm::WRITE, 1, 0, 512) }, &leaf);
    let (sqe, data) = pushdown(&call(function));
    let chain = say(sqe, &data);
    let [Said::Data(answer, false), Said::Response(cqe)] = &chain[..] else { panic!("{chain:?}") };
    assert_eq!((&answer[..], cqe.dw0, cqe.dw1), (&[0; 8][..], 1, 8));
    rig.finish();
}

/// Data that does not match the request ends the connection.
#[test]
fn wrong_transfers() {
    let good =
        H2cData { cccid: 1, ttag: 0, data_offset_bytes: 0, data_length_bytes: 1024, last: true };
    let half = H2cData { data_length_bytes: 512, last: false, ..good };
    let rest = H2cData { data_offset_bytes: 512, last: true, ..half };
    let out_of_range = Fes::DataTransferOutOfRange;
    let cases: [(&[H2cData], Option<Fes>); 9] = [
        (&[good], None),
        (&[half, rest], None),
        (&[half, good], Some(out_of_range)),
        (&[rest, half], Some(out_of_range)),
        (&[H2cData { last: true, ..half }], Some(out_of_range)),
        (&[H2cData { data_length_bytes: 1536, ..good }], Some(out_of_range)),
        (&[H2cData { ttag: 1, ..good }], Some(Fes::InvalidHeaderField)),
        (&[H2cData { ttag: 9999, ..good }], Some(Fes::InvalidHeaderField)),
        (&[H2cData { cccid: 2, ..good }], Some(Fes::InvalidHeaderField)),
    ];
    for digests in [Digests::default(), Digests { header: true, data: true }] {
        for (pdus, expected) in cases {
            let mut rig = Rig::new(Limits::default());
            let _admin = Peer::connect(&mut rig, 0, 31);
            let line = rig.open();
            let mut ear = super::peer::Ear::new();
            let mut request = Vec::new();
            IcReq { digests, ..IcReq::default() }.encode_into(&mut request);
            rig.feed(line, &request);
            let (sqe, data) = connect_command(1, 15, 0);
            rig.feed(line, &capsule(sqe, &data, digests));
            let write = Sqe { cid: 1, ..rw(opcode::nvm::WRITE, 1, 0, 1024) };
            rig.feed(line, &capsule(write, &[], digests));
            let said = ear.hear(&rig.output(line));
            let r2t = R2t { cccid: 1, ttag: 0, offset_bytes: 0, length_bytes: 1024 };
            assert_eq!(said.last(), Some(&Said::R2t(r2t)));
            for pdu in pdus {
                let data = vec![1; pdu.data_length_bytes as usize];
                rig.feed(line, &h2c_data(*pdu, &data, digests));
            }
            rig.work();
            let said = ear.hear(&rig.output(line));
            match (&said[..], expected) {
                ([Said::Response(cqe)], None) => assert_eq!(cqe.status, Status::SUCCESS),
                ([Said::Terminated(fes, _)], Some(expected)) => assert_eq!(*fes, expected),
                _ => panic!("{pdus:?}: {said:?}"),
            }
            rig.finish();
        }
    }
}

#[test]
fn an_association_has_a_limit_of_extents() {
    let (mut rig, mut admin, _io) = rig();
    let mut set = |file: u32, count: u64| {
        let extent =
            |index: u64| Extent { file_offset: index * 512, device_offset: 0, length_bytes: 512 };
        let extents = (0..count).map(extent).collect();
        let map = FileMapObject { file, nsid: 1, version: 1, length_bytes: 0, extents };
        let mut object = Vec::new();
        map.encode_into(&mut object);
        let mut status = Status::SUCCESS;
        for (index, chunk) in object.chunks(8192).enumerate() {
            let offset_bytes = index as u32 * 8192;
            let upload = Upload { total_bytes: object.len() as u32, offset_bytes };
            let sqe = AdminCommand::file_map_set(upload);
            let sqe = Sqe { sgl: Sgl::in_capsule(chunk.len() as u32), ..sqe };
            status = admin.call(&mut rig, sqe, chunk).status;
        }
        status
    };
    for file in 1..=32 {
        assert_eq!(set(file, 32_768), Status::SUCCESS);
    }
    assert_eq!(set(33, 1), Status::RESOURCE_LIMIT.with_dnr());
    assert_eq!(set(7, 32_768), Status::SUCCESS, "the map it replaces does not count");
    assert_eq!(set(7, 32_767), Status::SUCCESS);
    assert_eq!(set(33, 1), Status::SUCCESS);
}

/// Functions take memory of their host, and Function Load reports when there is too little.
#[test]
fn functions_take_memory_of_their_host() {
    let mut rig = Rig::with(Limits::default(), HostLimits::default(), 32 << 20);
    let mut admin = Peer::connect(&mut rig, 0, 31);
    let host = Arc::clone(rig.connection(admin.line).controller().expect("connected").host());
    // Buffers are returned after a while.
    let settle = |rig: &mut Rig| {
        rig.core.io.now_ns += 2_000_000_000;
        rig.work();
    };
    settle(&mut rig);
    let before = host.memory.used_bytes();
    let own = load_get(&mut rig, &mut admin);
    let with_one = host.memory.used_bytes();
    let keep = Installation { kept: true, ..Installation::default() };
    let (status, kept) = try_to_load_get(&mut rig, &mut admin, keep);
    let one = host.memory.used_bytes() - with_one;
    assert!(status == Status::SUCCESS && one > 1000, "{status}: {one} bytes");

    // Leave the host only the object's own bytes, which is less than the function takes.
    let mut others = host.memory.charge(0).expect("nothing");
    while others.resize(others.bytes() + 64).is_ok() {}
    let small = others.bytes() - bpfkv::GET_OBJECT.len();
    others.resize(small).expect("less than before");
    let full = Status::RESOURCE_LIMIT;
    for installation in [Installation::default(), keep] {
        let used = host.memory.used_bytes();
        let (status, _) = try_to_load_get(&mut rig, &mut admin, installation);
        assert!(status.same_code(full), "{status}");
        assert_eq!(host.memory.used_bytes(), used);
    }
    admin.send(&mut rig, AdminCommand::function_report(AdminCommand::LAST_LOAD_MESSAGE, 200), &[]);
    rig.work();
    let said = admin.hear(&mut rig);
    let Some(Said::Data(why, _)) = said.first() else { panic!("{said:?}") };
    let why = String::from_utf8_lossy(why);
    assert!(why.contains("memory"), "{why}");
    drop(others);

    for function in [own, kept] {
        let unload = AdminCommand::function_unload(function);
        assert_eq!(admin.call(&mut rig, unload, &[]).status, Status::SUCCESS);
    }
    settle(&mut rig);
    let left = host.memory.used_bytes() - before;
    assert!(left < 512, "{left} bytes beside the room that tables keep");
}

/// Takes all memory that a host may have, after its connections have returned what they do not need.
fn fill(rig: &mut Rig, host: &Arc<Host>) -> Charge {
    rig.core.io.now_ns += 2_000_000_000;
    rig.work();
    let mut others = host.memory.charge(0).expect("nothing");
    for piece in [1 << 20, 1 << 10] {
        while others.resize(others.bytes() + piece).is_ok() {}
    }
    others
}

/// A host without memory has its writes executed one at a time, and its reads in the meantime.
#[test]
fn data_arrives_where_memory_is_short() {
    let mut rig = Rig::with(Limits::default(), HostLimits::default(), 32 << 20);
    let mut admin = Peer::connect(&mut rig, 0, 31);
    let mut io = Peer::connect(&mut rig, 1, 255);
    let host = Arc::clone(rig.connection(io.line).controller().expect("connected").host());
    let others = fill(&mut rig, &host);
    let write = rw(opcode::nvm::WRITE, 1, 0, TRANSFER_BYTES);
    let hear = |rig: &mut Rig, peer: &mut Peer| {
        let mut all = Vec::new();
        loop {
            rig.work();
            match peer.hear(rig) {
                said if said.is_empty() => return all,
                said => all.extend(said),
            }
        }
    };
    let cids = [0, 1, 2].map(|_| io.send(&mut rig, write, &[]));
    let read = rw(opcode::nvm::READ, 1, 1000, 4096);
    io.send(&mut rig, read, &[]);
    let mut said = hear(&mut rig, &mut io);
    assert!(said.iter().any(|said| matches!(said, Said::Data(data, _) if data.len() == 4096)));
    for (cid, byte) in cids.into_iter().zip(1..) {
        let asked: Vec<_> = said.iter().filter(|said| matches!(said, Said::R2t(_))).collect();
        let [Said::R2t(r2t)] = asked[..] else { panic!("{said:?}") };
        assert_eq!(r2t.cccid, cid);
        assert!(!rig.connection(io.line).is_paused());
        io.send_data(&mut rig, *r2t, &vec![byte; TRANSFER_BYTES as usize]);
        said = hear(&mut rig, &mut io);
        let ended = |said: &Said| matches!(said, Said::Response(cqe) if cqe.cid == cid && cqe.status == Status::SUCCESS);
        assert!(said.iter().any(ended), "{said:?}");
    }
    // Function Load by R2T is refused rather than kept waiting.
    let upload = Upload { total_bytes: TRANSFER_BYTES, offset_bytes: 0 };
    let load = AdminCommand::function_load(upload, Installation::default());
    admin.send(&mut rig, Sqe { sgl: Sgl::transport(TRANSFER_BYTES), ..load }, &[]);
    let said = hear(&mut rig, &mut admin);
    let [Said::R2t(r2t)] = said[..] else { panic!("{said:?}") };
    admin.send_data(&mut rig, r2t, &vec![0; TRANSFER_BYTES as usize]);
    let said = hear(&mut rig, &mut admin);
    let [Said::Response(cqe)] = said[..] else { panic!("{said:?}") };
    assert!(cqe.status.same_code(Status::RESOURCE_LIMIT), "{}", cqe.status);
    drop(others);
    rig.finish();
}

/// The cost of keeping a function is charged at once, not to the connection that is served next.
#[test]
fn whoever_keeps_a_function_pays_for_it() {
    let mut rig = Rig::with(Limits::default(), HostLimits::default(), 32 << 20);
    let mut admin = Peer::connect(&mut rig, 0, 31);
    rig.core.executor.take_spent();
    let keep = Installation { kept: true, ..Installation::default() };
    let (status, function) = try_to_load_get(&mut rig, &mut admin, keep);
    assert_eq!((status, rig.core.executor.take_spent()), (Status::SUCCESS, 0));
    let unload = AdminCommand::function_unload(function);
    assert_eq!(admin.call(&mut rig, unload, &[]).status, Status::SUCCESS);
    assert_eq!(rig.core.executor.take_spent(), 0);
}

/// Connections before Connect take little memory; without even that, the oldest of them is closed.
#[test]
fn strangers_that_say_hello_keep_nobody_out() {
    const MEMORY_BYTES: usize = 16 << 20;
    let mut rig = Rig::with(Limits::default(), HostLimits::default(), MEMORY_BYTES);
    let admin = Peer::connect(&mut rig, 0, 31);
    let host = Arc::clone(rig.connection(admin.line).controller().expect("connected").host());
    let others = fill(&mut rig, &host);
    let pending = Arc::clone(&rig.core.executor.registry.hosts.pending);
    let mut hello = Vec::new();
    IcReq::default().encode_into(&mut hello);
    let lines: Vec<_> = (0..400)
        .map(|_| {
            let line = rig.open();
            rig.feed(line, &hello);
            line
        })
        .collect();
    let open = lines.iter().filter(|line| rig.is_open(**line)).count();
    assert!(rig.is_open(lines[399]) && open < 400, "{open} are open");
    assert_eq!(pending.used_bytes(), open * Connection::PENDING_BYTES);
    Peer::connect_as(&mut rig, "nqn.2026-01.io.bpf-of:another");
    drop(others);
    rig.finish();
}

#[test]
fn uploads_in_order_only() {
    let (mut rig, mut admin, _io) = rig();
    let mut chunk = |total_bytes, offset_bytes, length: usize| {
        let upload = Upload { total_bytes, offset_bytes };
        let sqe = AdminCommand::function_load(upload, Installation::default());
        let sqe = Sqe { sgl: Sgl::in_capsule(length as u32), ..sqe };
        admin.call(&mut rig, sqe, &vec![1; length]).status
    };
    let refused = Status::INVALID_FIELD.with_dnr();
    assert_eq!(chunk(0, 0, 1), refused);
    assert_eq!(chunk(u32::MAX, 0, 1), refused);
    assert_eq!(chunk((1 << 20) + 1, 0, 1), refused);
    assert_eq!(chunk(100, 50, 50), refused, "it does not start at 0");
    assert_eq!(chunk(100, 0, 50), Status::SUCCESS);
    assert_eq!(chunk(100, 40, 50), refused, "an overlap");
    assert_eq!(chunk(100, 50, 50), refused, "that dropped the upload");
    assert_eq!(chunk(100, 0, 50), Status::SUCCESS);
    assert_eq!(chunk(101, 50, 51), refused, "another total");
    assert_eq!(chunk(100, 0, 50), Status::SUCCESS);
    assert_eq!(chunk(100, 50, 51), refused, "beyond the total");
    assert_eq!(chunk(100, 0, 50), Status::SUCCESS);
    assert_eq!(chunk(100, u32::MAX, 50), refused);
    assert_eq!(chunk(100, 0, 100), Status::FUNCTION_REJECTED.with_dnr());
}

#[test]
fn commands_on_the_wrong_queue_or_too_early() {
    let (mut rig, mut admin, mut io) = rig();
    let disconnect = FabricsCommand::Disconnect.to_sqe();
    let (connect, data) = connect_command(0, 31, 0);
    let sequence_error = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
    assert_eq!(admin.call(&mut rig, disconnect, &[]).status, Status::INVALID_QUEUE_TYPE.with_dnr());
    assert_eq!(admin.call(&mut rig, connect, &data).status, sequence_error);
    assert_eq!(io.call(&mut rig, connect, &data).status, sequence_error);
    let get = FabricsCommand::PropertyGet { offset: 0, size8: true }.to_sqe();
    assert_eq!(io.call(&mut rig, get, &[]).status, Status::INVALID_OPCODE.with_dnr());
    assert_eq!(io.call(&mut rig, disconnect, &[]).status, Status::SUCCESS);
    assert!(!rig.is_open(io.line));

    // Only Connect is allowed first, and a refused Connect may be repeated.
    let line = rig.open();
    let mut ear = super::peer::Ear::new();
    let mut request = Vec::new();
    IcReq::default().encode_into(&mut request);
    rig.feed(line, &request);
    let mut statuses = |sqe: Sqe, data: &[u8]| {
        rig.feed(line, &capsule(sqe, data, Digests::default()));
        let said = ear.hear(&rig.output(line));
        let Some(Said::Response(cqe)) = said.last() else { panic!("{said:?}") };
        (cqe.status, cqe.dw0)
    };
    assert_eq!(statuses(AdminCommand::keep_alive(), &[]).0, sequence_error);
    assert_eq!(statuses(rw(opcode::nvm::READ, 1, 0, 512), &[]).0, sequence_error);
    let invalid = Status::CONNECT_INVALID_PARAMETERS.with_dnr();
    let data = |change: &dyn Fn(&mut ConnectData)| {
        let mut data = ConnectData {
            hostid: [3; 16],
            cntlid: u16::MAX,
            subnqn: NQN.to_owned(),
            hostnqn: "nqn.2026-01.io.bpf-of:peer".to_owned(),
        };
        change(&mut data);
        data.to_bytes()
    };
    let other = data(&|data| data.subnqn = "nqn.2026-01.io.bpf-of:other".into());
    assert_eq!(statuses(connect, &other), (invalid, 256 | 1 << 16));
    let forged = data(&|data| data.hostnqn = "nqn.2026-01.io.bpf-of:x\nforged log line".into());
    assert_eq!(statuses(connect, &forged), (invalid, 512 | 1 << 16));
    assert_eq!(statuses(connect, &data(&|data| data.cntlid = 1)), (invalid, 16 | 1 << 16));
    let (queue, _) = connect_command(1, 31, 0);
    let unknown = data(&|data| data.cntlid = 77);
    // The controller may be an earlier process's: the host may connect anew.
    let gone = Status::CONNECT_INVALID_PARAMETERS;
    assert_eq!(statuses(queue, &unknown), (gone, 16 | 1 << 16));
    let thief = data(&|data| (data.cntlid, data.hostid) = (1, [9; 16]));
    assert_eq!(statuses(queue, &thief).0, Status::CONNECT_INVALID_HOST.with_dnr());
    let (empty, _) = connect_command(0, 0, 0);
    assert_eq!(statuses(empty, &data(&|_| ())), (invalid, 44));
    assert_eq!(statuses(connect, &data(&|_| ())), (Status::SUCCESS, 2));
}

/// However many connections are overdue at once, a turn only closes a few, and only checks some.
#[test]
fn silent_peers_are_closed_a_few_in_a_turn() {
    let mut rig = Rig::new(Limits::default());
    let lines: Vec<usize> = (0..200).map(|_| rig.open()).collect();
    let open = |rig: &Rig| lines.iter().filter(|line| rig.is_open(**line)).count();
    rig.core.io.now_ns += 11 * SECOND_NS;
    let mut before = open(&rig);
    assert_eq!(before, 200);
    let mut turns = 0;
    rig.turn_without_input();
    while rig.core.has_work() {
        rig.turn_without_input();
        let now = open(&rig);
        assert!(before - now <= CLOSES_PER_TURN, "{} in a turn", before - now);
        (before, turns) = (now, turns + 1);
    }
    assert_eq!(before, 0);
    assert!(turns >= 200 / CLOSES_PER_TURN, "{turns} turns");
    rig.finish();
}

/// The same for the queues of a controller that is reset; none of them accepts another command.
#[test]
fn queues_of_a_reset_controller_are_closed_a_few_in_a_turn() {
    let mut rig = Rig::new(Limits::default());
    let mut admin = Peer::connect(&mut rig, 0, 31);
    let peers: Vec<Peer> = (1..=64).map(|qid| Peer::connect(&mut rig, qid, 31)).collect();
    let controller = Arc::clone(rig.connection(admin.line).controller().expect("connected"));
    controller.configure(ControllerConfig::default());
    turn::begin(&mut rig.core);
    let end = Message::EndQueues { controller, and_admin: false, cuts_chains: true };
    message(&mut rig.core, end);
    turn::end(&mut rig.core);
    let open = |rig: &Rig| peers.iter().filter(|peer| rig.is_open(peer.line)).count();
    assert_eq!(open(&rig), 64 - CLOSES_PER_TURN);
    let last = peers.last().expect("there are some").line;
    rig.arrives(last, &capsule(rw(opcode::nvm::READ, 1, 0, 512), &[], Digests::default()));
    rig.work();
    assert_eq!(open(&rig), 0);
    assert!(rig.output(last).is_empty(), "it is answered nothing");
    assert_eq!(admin.call(&mut rig, enable_command(), &[]).status, Status::SUCCESS);
    rig.finish();
}
