//! Hosts and functions that misbehave, and corrupt data. Each gets the proper status or a clear error, and others are
//! served meanwhile.

mod common;

use bpfof_controller::{Limits, Server, TargetConfig};
use bpfof_function::abi;
use bpfof_host::{
    CommandError, Controller, FileVersion, Lane, Options, PushdownCall, Request, Status,
};
use bpfof_nvme::tcp::{Digests, Fes, R2t};
use bpfof_nvme::{AdminCommand, Installation, Rw, Sgl, Sqe, Upload, opcode};
use common::raw::{Peer, Said};
use common::{
    NAMESPACE_BYTES, Witness, call, compile, config, connect, database, load, memory, run,
    slow_memory, start, until, url,
};
use std::net::Shutdown;
use std::time::{Duration, Instant};

const NONE: Digests = Digests { header: false, data: false };
const BOTH: Digests = Digests { header: true, data: true };

fn serve() -> (Server, Witness) {
    let server = start(vec![memory(NAMESPACE_BYTES, 512)]);
    let witness = Witness::new(&server);
    (server, witness)
}

fn rw(opcode: u8, slba: u64, length_bytes: u32) -> Sqe {
    let rw = Rw { slba, blocks: length_bytes / 512, fua: false };
    Sqe { sgl: Sgl::transport(length_bytes), ..rw.to_sqe(opcode, 1) }
}

fn in_capsule(sqe: Sqe, length_bytes: u32) -> Sqe {
    Sqe { sgl: Sgl::in_capsule(length_bytes), ..sqe }
}

#[test]
fn truncated_pdus() {
    let (server, mut witness) = serve();
    for digests in [NONE, BOTH] {
        for cut in [0, 1, 7, 8, 40, 71, 72, 76, 100, 587] {
            let (_admin, mut io) = Peer::pair(&server, digests, 15);
            let write = in_capsule(rw(opcode::nvm::WRITE, 0, 512), 512);
            let (bytes, _) = io.capsule(write, &[9; 512]);
            io.send_bytes(&bytes[..cut.min(bytes.len() - 1)]);
            witness.check();
            io.stream.shutdown(Shutdown::Write).expect("a socket");
            io.expect_end(None);
        }
    }
    // The connection ends in the middle of a transfer.
    let (_admin, mut io) = Peer::pair(&server, BOTH, 15);
    io.send(rw(opcode::nvm::WRITE, 0, 4096), &[]);
    let Said::R2t(r2t) = io.hear() else { panic!("no R2T") };
    let bytes = io.h2c_data(&r2t, &[9; 4096]);
    io.send_bytes(&bytes[..2000]);
    witness.check();
    io.stream.shutdown(Shutdown::Write).expect("a socket");
    io.expect_end(None);
    let mut block = [1; 512];
    witness.lane.read(1, 0, &mut block).expect("served");
    assert_eq!(block, [0; 512], "nothing of all this was written");
}

#[test]
fn wrong_header_digests_end_the_connection() {
    let (server, mut witness) = serve();
    let header = Digests { header: true, data: false };
    for (digests, at) in [(header, 72), (BOTH, 75), (BOTH, 20), (header, 10)] {
        let (_admin, mut io) = Peer::pair(&server, digests, 15);
        let (mut bytes, _) = io.capsule(rw(opcode::nvm::READ, 0, 512), &[]);
        bytes[at] ^= 0x10;
        io.send_bytes(&bytes);
        io.expect_end(Some(Fes::HeaderDigestError));
        witness.check();
    }
    let (_admin, mut io) = Peer::pair(&server, BOTH, 15);
    io.send(rw(opcode::nvm::WRITE, 0, 1024), &[]);
    let Said::R2t(r2t) = io.hear() else { panic!("no R2T") };
    let mut bytes = io.h2c_data(&r2t, &[9; 1024]);
    bytes[24] ^= 1;
    io.send_bytes(&bytes);
    io.expect_end(Some(Fes::HeaderDigestError));
    witness.check();
}

#[test]
fn wrong_data_digests_fail_the_command() {
    let (server, mut witness) = serve();
    for digests in [Digests { header: false, data: true }, BOTH] {
        let (_admin, mut io) = Peer::pair(&server, digests, 15);
        let write = in_capsule(rw(opcode::nvm::WRITE, 0, 512), 512);
        for at_from_end in [1, 4, 100] {
            let (mut bytes, cid) = io.capsule(write, &[9; 512]);
            let at = bytes.len() - at_from_end;
            bytes[at] ^= 2;
            io.send_bytes(&bytes);
            let Said::Response(cqe) = io.hear() else { panic!("no response") };
            assert_eq!((cqe.cid, cqe.status), (cid, Status::TRANSIENT_TRANSPORT_ERROR));
        }
        let cid = io.send(rw(opcode::nvm::WRITE, 0, 4096), &[]);
        let Said::R2t(r2t) = io.hear() else { panic!("no R2T") };
        let mut bytes = io.h2c_data(&r2t, &[9; 4096]);
        bytes[500] ^= 1;
        io.send_bytes(&bytes);
        let Said::Response(cqe) = io.hear() else { panic!("no response") };
        assert_eq!((cqe.cid, cqe.status), (cid, Status::TRANSIENT_TRANSPORT_ERROR));
        // The connection stays, and nothing was written.
        let (data, cqe) = io.call(rw(opcode::nvm::READ, 0, 4096), &[]);
        assert_eq!((data, cqe.status), (vec![0; 4096], Status::SUCCESS));
        witness.check();
    }
    // They are no errors of the storage.
    let report = server.report()(Duration::from_secs(5)).expect("a report");
    assert_eq!(report.namespaces[0].write.errors, 0);
}

#[test]
fn impossible_pdus() {
    let (server, mut witness) = serve();
    let (mut admin, _io) = Peer::pair(&server, NONE, 15);
    let (good, _) = admin.capsule(AdminCommand::keep_alive(), &[]);
    type Change = fn(&mut Vec<u8>);
    let cases: [(Change, Fes); 12] = [
        (|pdu| pdu[4..8].fill(0), Fes::InvalidHeaderField),
        (|pdu| pdu[4] = 71, Fes::InvalidHeaderField),
        (|pdu| pdu[4] = 73, Fes::InvalidHeaderField),
        (|pdu| pdu[4..8].fill(0xff), Fes::InvalidHeaderField),
        (|pdu| (pdu[3], pdu[5], pdu[6]) = (72, 0x40, 0), Fes::InvalidHeaderField),
        (|pdu| pdu[2] = 0, Fes::InvalidHeaderField),
        (|pdu| pdu[2] = 255, Fes::InvalidHeaderField),
        (|pdu| pdu[0] = 0xee, Fes::InvalidHeaderField),
        (|pdu| pdu[0] = 5, Fes::InvalidHeaderField),
        (|pdu| pdu[1] = 1, Fes::InvalidHeaderField),
        (
            |pdu| *pdu = [&[0, 0, 128, 0, 128, 0, 0, 0][..], &[0; 120]].concat(),
            Fes::PduSequenceError,
        ),
        (
            |pdu| *pdu = [&[6, 4, 24, 24, 28, 0, 0, 0][..], &[0; 20]].concat(),
            Fes::InvalidHeaderField,
        ),
    ];
    for (index, (change, expected)) in cases.into_iter().enumerate() {
        let (_admin, mut io) = Peer::pair(&server, NONE, 15);
        let mut bytes = good.clone();
        change(&mut bytes);
        io.send_bytes(&bytes);
        match io.hear() {
            Said::Terminated(fes, _) => assert_eq!(fes, expected, "case {index}"),
            other => panic!("case {index}: {other:?}"),
        }
        io.expect_end(None);
        witness.check();
    }
    // Before ICReq.
    let mut early = Peer::open(&server);
    early.send_bytes(&good);
    early.expect_end(Some(Fes::PduSequenceError));
    let mut web = Peer::open(&server);
    web.send_bytes(b"GET / HTTP/1.1\r\nHost: target\r\n\r\n");
    web.expect_end(Some(Fes::InvalidHeaderField));
    // A host that ends the connection with an error of its own.
    let (_admin, mut io) = Peer::pair(&server, NONE, 15);
    io.send_bytes(&[&[2, 0, 24, 0, 24, 0, 0, 0, 1][..], &[0; 15]].concat());
    io.expect_end(None);
    witness.check();
}

#[test]
fn more_commands_than_entries() {
    let (server, mut witness) = serve();
    let (_admin, mut io) = Peer::pair(&server, NONE, 1);
    for _ in 0..3 {
        io.send(rw(opcode::nvm::WRITE, 0, 4096), &[]);
    }
    assert!(matches!(io.hear(), Said::R2t(_)));
    assert!(matches!(io.hear(), Said::R2t(_)));
    io.expect_end(Some(Fes::LimitExceeded));
    witness.check();
}

#[test]
fn admin_commands_that_are_refused() {
    let (server, mut witness) = serve();
    let (mut admin, _io) = Peer::pair(&server, BOTH, 15);
    let invalid_field = Status::INVALID_FIELD;
    let page = AdminCommand::identify(1, 0);
    let log = |lid, offset, length| AdminCommand::get_log_page(lid, 0, offset, length);
    let admin_cases = [
        (Sqe::new(0xfe, 0), Status::INVALID_OPCODE),
        (Sqe::new(opcode::admin::DELETE_IO_SQ, 0), Status::INVALID_OPCODE),
        (AdminCommand::identify(0x77, 1), invalid_field),
        (AdminCommand::identify(0, 1025), Status::INVALID_NAMESPACE),
        (AdminCommand::identify(3, 0), Status::INVALID_NAMESPACE),
        (AdminCommand::identify(2, u32::MAX), Status::INVALID_NAMESPACE),
        (Sqe { sgl: Sgl::transport(4095), ..page }, Status::DATA_SGL_LENGTH_INVALID),
        (Sqe { sgl: Sgl { kind: 0x40, ..page.sgl }, ..page }, Status::INVALID_SGL_DESCRIPTOR_TYPE),
        (Sqe { flags: 0, ..page }, invalid_field),
        (Sqe { flags: 0x41, ..page }, invalid_field),
        (log(0x99, 0, 512), Status::INVALID_LOG_PAGE),
        (log(2, u64::MAX - 3, 512), invalid_field),
        (log(2, 2, 512), invalid_field),
        (log(2, 0, u32::MAX), invalid_field),
        (AdminCommand::get_features(0x55), invalid_field),
        (AdminCommand::set_features(0x55, 0), invalid_field),
        (AdminCommand::set_features(7, 0xffff), invalid_field),
        // There are I/O queues already.
        (AdminCommand::set_features(7, 1), Status::COMMAND_SEQUENCE_ERROR),
        (AdminCommand::function_unload(5), Status::UNKNOWN_FUNCTION),
        (AdminCommand::function_report(5, 128), Status::UNKNOWN_FUNCTION),
        (Sqe { cdw14: 1, ..AdminCommand::pushdown_identify(64) }, invalid_field),
    ];
    for (sqe, expected) in admin_cases {
        let status = admin.status(sqe, &[]);
        assert!(status.same_code(expected), "{sqe:?}: {status}, not {expected}");
    }
    witness.check();
}

#[test]
fn io_commands_that_are_refused() {
    let (server, mut witness) = serve();
    let (_admin, mut io) = Peer::pair(&server, BOTH, 15);
    let invalid_field = Status::INVALID_FIELD;
    let blocks = NAMESPACE_BYTES / 512;
    let io_cases = [
        (Sqe::new(0x77, 1), Status::INVALID_OPCODE),
        (rw(opcode::nvm::COMPARE, blocks, 512), Status::LBA_OUT_OF_RANGE),
        (
            Sqe { sgl: Sgl::transport(0), ..rw(opcode::nvm::VERIFY, blocks, 512) },
            Status::LBA_OUT_OF_RANGE,
        ),
        (rw(opcode::nvm::VERIFY, 0, (128 << 10) + 512), invalid_field),
        (
            Sqe { cdw10: 255, ..Sqe::new(opcode::nvm::DATASET_MANAGEMENT, 1) },
            Status::DATA_SGL_LENGTH_INVALID,
        ),
        // Reservation Register and Report.
        (Sqe::new(0x0d, 1), Status::INVALID_OPCODE),
        (Sqe::new(0x0e, 1), Status::INVALID_OPCODE),
        // The first half of a fused Compare and Write.
        (Sqe { flags: 0x41, ..rw(opcode::nvm::COMPARE, 0, 512) }, invalid_field),
        (Sqe { nsid: 0, ..rw(opcode::nvm::READ, 0, 512) }, Status::INVALID_NAMESPACE),
        (Sqe { nsid: 2, ..rw(opcode::nvm::READ, 0, 512) }, Status::INVALID_NAMESPACE),
        (Sqe { nsid: u32::MAX, ..rw(opcode::nvm::WRITE, 0, 512) }, Status::INVALID_NAMESPACE),
        (rw(opcode::nvm::READ, blocks, 512), Status::LBA_OUT_OF_RANGE),
        (rw(opcode::nvm::READ, blocks - 1, 1024), Status::LBA_OUT_OF_RANGE),
        (rw(opcode::nvm::READ, u64::MAX, 512), Status::LBA_OUT_OF_RANGE),
        (rw(opcode::nvm::WRITE, u64::MAX - 7, 4096), Status::LBA_OUT_OF_RANGE),
        (rw(opcode::nvm::WRITE_ZEROES, blocks, 512), Status::LBA_OUT_OF_RANGE),
        (rw(opcode::nvm::READ, 0, (128 << 10) + 512), invalid_field),
        (rw(opcode::nvm::WRITE, 0, (128 << 10) + 512), invalid_field),
        (
            Sqe { sgl: Sgl::transport(1024), ..rw(opcode::nvm::READ, 0, 512) },
            Status::DATA_SGL_LENGTH_INVALID,
        ),
        (
            Sqe { sgl: Sgl::transport(0), ..rw(opcode::nvm::WRITE, 0, 512) },
            Status::DATA_SGL_LENGTH_INVALID,
        ),
        (in_capsule(rw(opcode::nvm::WRITE, 0, 512), 512), Status::DATA_SGL_LENGTH_INVALID),
        (rw(opcode::nvm::PUSHDOWN, 0, 1024), invalid_field),
        (Sqe::new(opcode::nvm::PUSHDOWN, 1), Status::INVALID_SGL_DESCRIPTOR_TYPE),
    ];
    for (sqe, expected) in io_cases {
        let status = io.status(sqe, &[]);
        assert!(status.same_code(expected), "{sqe:?}: {status}, not {expected}");
        witness.check();
    }
    // In-capsule data that does not match its descriptor, or is at another offset.
    let write = in_capsule(rw(opcode::nvm::WRITE, 0, 512), 512);
    let shifted = Sqe { sgl: Sgl { address: 512, ..write.sgl }, ..write };
    for (sqe, length) in [(write, 1024), (write, 256), (shifted, 512)] {
        let status = io.status(sqe, &vec![1; length]);
        assert!(status.same_code(Status::DATA_SGL_LENGTH_INVALID), "{status}");
    }
    assert_eq!(io.status(write, &[1; 512]), Status::SUCCESS);
}

/// A target whose budgets are small, with the functions of hostile.bpf.c.
fn small_budgets() -> (Server, Controller, Lane, Vec<u8>) {
    let limits =
        Limits { hops: 500, bytes: 1 << 20, instructions_per_call: 100_000, ..Limits::default() };
    let config = TargetConfig { limits, ..config(vec![memory(NAMESPACE_BYTES, 512)]) };
    let server = Server::start(&config).expect("it starts");
    let (controller, lane) = connect(&server, false);
    (server, controller, lane, compile("hostile"))
}

#[test]
fn functions_that_misbehave() {
    let (server, mut controller, mut lane, object) = small_budgets();
    let mut witness = Witness::new(&server);
    let mut status = |entry: &str, argument: &[u8]| -> CommandError {
        let function = load(&mut controller, &object, entry);
        let error = run(&mut lane, &call(function, argument)).expect_err(entry);
        witness.check();
        error
    };
    let fault = Status::FUNCTION_FAULT;
    assert_eq!(status("load", &[]).status, fault, "a null pointer");
    // Including the workspace, which these functions do not ask for, and the ends of the block and of the arena.
    let (block_end, arena_end) = (abi::DATA + 512, abi::DATA + abi::MAX_HOP_BYTES as u64);
    for address in [1, 0xfff, abi::WORKSPACE, block_end, arena_end, 1 << 32, u64::MAX] {
        assert_eq!(status("load", &u64::to_le_bytes(address)).status, fault, "{address:#x}");
        assert_eq!(status("store", &u64::to_le_bytes(address)).status, fault, "{address:#x}");
    }
    assert_eq!(status("beyond", &[]).status, fault);
    assert_eq!(status("forever", &[]).status, Status::INSTRUCTION_BUDGET_EXHAUSTED);
    let error = status("endless", &[]);
    assert_eq!((error.status, error.dw1), (Status::HOP_BUDGET_EXHAUSTED, 500));
    for offset in [NAMESPACE_BYTES, NAMESPACE_BYTES - 511, u64::MAX, u64::MAX - 511, 1 << 63] {
        let error = status("outside", &offset.to_le_bytes());
        assert_eq!((error.status, error.dw0, error.dw1), (Status::READ_OUTSIDE_FILE, 0, 1));
    }
    for code in [1u32, 77, u32::MAX, 1 << 31] {
        let error = status("abort", &code.to_le_bytes());
        assert_eq!((error.status, error.dw0, error.dw1), (Status::FUNCTION_ABORT, code, 1));
    }
    let invalid = [("nothing", 1), ("many", 2), ("stranger", 3), ("large", 4)];
    for (entry, reason) in invalid {
        let error = status(entry, &[]);
        assert_eq!((error.status, error.dw0), (Status::INVALID_FUNCTION_OUTPUT, reason), "{entry}");
    }
    let error = status("answer", &4097u32.to_le_bytes());
    assert_eq!((error.status, error.dw0), (Status::INVALID_FUNCTION_OUTPUT, 5));
    let answer = load(&mut controller, &object, "answer");
    let argument = 100u32.to_le_bytes();
    let short = PushdownCall { answer_max_bytes: 99, ..call(answer, &argument) };
    let error = run(&mut lane, &short).expect_err("too long");
    assert_eq!((error.status, error.dw0), (Status::ANSWER_TOO_LONG, 100));
    let (answer, _) = run(&mut lane, &call(answer, &argument)).expect("it fits");
    assert_eq!((answer.len(), &answer[..4]), (100, &argument[..]));
}

#[test]
fn byte_and_instruction_budgets_of_a_chain() {
    let limits = Limits {
        bytes: 10 * 512,
        instructions: 150_000,
        instructions_per_call: 100_000,
        ..Limits::default()
    };
    let config = TargetConfig { limits, ..config(vec![memory(NAMESPACE_BYTES, 512)]) };
    let server = Server::start(&config).expect("it starts");
    let (mut controller, mut lane) = connect(&server, false);
    let object = compile("hostile");
    let endless = load(&mut controller, &object, "endless");
    let error = run(&mut lane, &call(endless, &[])).expect_err("a budget");
    assert_eq!((error.status, error.dw1), (Status::BYTE_BUDGET_EXHAUSTED, 10));
    let whole = PushdownCall { first_size_bytes: 65536, ..call(endless, &[]) };
    let error = run(&mut lane, &whole).expect_err("a budget");
    assert_eq!((error.status, error.dw1), (Status::BYTE_BUDGET_EXHAUSTED, 0));
    let forever = load(&mut controller, &object, "forever");
    let error = run(&mut lane, &call(forever, &[])).expect_err("a budget");
    assert_eq!(error.status, Status::INSTRUCTION_BUDGET_EXHAUSTED);
    let report = controller.function_report().expect("a report");
    assert_eq!((report[1].faults, report[1].fault_pc), (1, error.dw0));
}

#[test]
fn malformed_requests() {
    let (_server, mut controller, mut lane, object) = small_budgets();
    let answer = load(&mut controller, &object, "answer");
    let good = call(answer, &[]);
    let mut status = |call: PushdownCall<'_>| {
        let error = run(&mut lane, &call).expect_err("refused");
        (error.status, error.dw0)
    };
    let malformed = Status::MALFORMED_REQUEST;
    assert_eq!(status(PushdownCall { files: &[], ..good }), (malformed, 4));
    let many = [FileVersion { id: 0, version: 1 }; 17];
    assert_eq!(status(PushdownCall { files: &many, ..good }), (malformed, 4));
    assert_eq!(status(PushdownCall { first_file: 1, ..good }), (malformed, 6));
    assert_eq!(status(PushdownCall { first_size_bytes: 0, ..good }), (malformed, 16));
    assert_eq!(status(PushdownCall { scratch: &[0; 4097], ..good }), (malformed, 28));
    assert_eq!(status(PushdownCall { scratch_size_bytes: 16_385, ..good }), (malformed, 28));
    let short = PushdownCall { scratch: &[0; 9], scratch_size_bytes: 8, ..good };
    assert_eq!(status(short), (malformed, 28));
    let function = answer.0 + 1;
    assert_eq!(status(PushdownCall { function, ..good }).0, Status::UNKNOWN_FUNCTION);
    let large = PushdownCall { first_size_bytes: 65537, ..good };
    assert_eq!(status(large), (Status::INVALID_FUNCTION_OUTPUT, 4));
    let first_offset_bytes = u64::MAX;
    let outside = PushdownCall { first_offset_bytes, ..good };
    assert_eq!(status(outside), (Status::READ_OUTSIDE_FILE, 0));
    assert_eq!(status(PushdownCall { nsid: 9, ..good }).0, Status::INVALID_NAMESPACE.with_dnr());
    assert!(run(&mut lane, &PushdownCall { scratch: &[0; 4096], ..good }).is_ok());
}

#[test]
fn scratch_is_as_large_as_declared() {
    let (server, mut controller, mut lane, object) = small_budgets();
    let function = load(&mut controller, &object, "answer");
    let asked = |length: u32| length.to_le_bytes();
    for (declared, size) in [(0, 4096), (4, 4), (4095, 4095), (16_384, 16_384)] {
        let (fits, longer) = (asked(size), asked(size + 1));
        let good = PushdownCall {
            scratch_size_bytes: declared,
            answer_max_bytes: u32::from(u16::MAX),
            ..call(function, &fits)
        };
        let (answer, _) = run(&mut lane, &good).expect("it fits");
        assert_eq!((answer.len() as u32, &answer[..4]), (size, &fits[..]));
        assert!(answer[4..].iter().all(|byte| *byte == 0), "{declared}");
        let error = run(&mut lane, &PushdownCall { scratch: &longer, ..good }).expect_err("longer");
        assert_eq!((error.status, error.dw0), (Status::INVALID_FUNCTION_OUTPUT, 5), "{declared}");
    }
    // An address in scratch behind the declared part keeps data that this association left there, but no data of
    // another.
    let far = (abi::SCRATCH + 16_000).to_le_bytes();
    let store = load(&mut controller, &object, "store");
    let peek = load(&mut controller, &object, "load");
    assert_eq!(run(&mut lane, &call(store, &far)).expect("in the arena").0.len(), 1);
    let small = PushdownCall { scratch_size_bytes: 8, ..call(peek, &far) };
    assert_eq!(run(&mut lane, &small).expect("in the arena").0, [1]);
    let (mut other, mut other_lane) = connect(&server, false);
    let peek = load(&mut other, &object, "load");
    let small = PushdownCall { function: peek.0, ..small };
    assert_eq!(run(&mut other_lane, &small).expect("in the arena").0, [0]);
    // All of the declared scratch is zero when a chain begins, whatever earlier chains left there.
    assert_eq!(run(&mut lane, &call(store, &far)).expect("in the arena").0.len(), 1);
    let length = asked(16_384);
    let whole = PushdownCall {
        scratch_size_bytes: 16_384,
        answer_max_bytes: 16_384,
        ..call(function, &length)
    };
    let (answer, _) = run(&mut lane, &whole).expect("it fits");
    assert!(answer[4..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_corrupt_database() {
    let (_server, mut controller, mut lane, _) = small_budgets();
    let get = controller.load_function(bpfkv::GET_OBJECT, 0).expect("loaded");
    let database = database(2);
    let argument = 5u64.to_le_bytes();
    let mut with_root = |change: &dyn Fn(&mut [u8])| {
        let mut root = database[..512].to_vec();
        change(&mut root);
        lane.write(1, 0, &root).expect("written");
        let error = run(&mut lane, &call(get, &argument)).expect_err("it is corrupt");
        (error.status, error.dw0, error.dw1)
    };
    // The first pointer of a node, behind the fields next and type and 31 keys.
    const POINTER: std::ops::Range<usize> = 264..272;
    let point = |offset: u64| {
        move |root: &mut [u8]| root[POINTER].copy_from_slice(&(offset | 1 << 63).to_le_bytes())
    };
    let (outside, abort) = (Status::READ_OUTSIDE_FILE, Status::FUNCTION_ABORT);
    // The leaf is missing: it reads as zeroes, which is an internal node with an invalid first pointer.
    assert_eq!(with_root(&|_| ()), (abort, 2, 2));
    assert_eq!(with_root(&point(0)), (Status::HOP_BUDGET_EXHAUSTED, 0, 500), "a cycle");
    assert_eq!(with_root(&point(NAMESPACE_BYTES)), (outside, 0, 1));
    assert_eq!(with_root(&point(1 << 62)), (outside, 0, 1));
    assert_eq!(with_root(&point(100)), (abort, 2, 1));
    assert_eq!(with_root(&|root| root[POINTER].fill(0)), (abort, 2, 1));
    assert_eq!(with_root(&|root| root[8] = 7), (abort, 1, 1));
    lane.write(1, 0, &database).expect("written");
    assert!(run(&mut lane, &call(get, &argument)).is_ok());
}

#[test]
fn a_chain_ends_with_its_client() {
    let limits = Limits { chains: 1, ..Limits::default() };
    let namespaces = vec![slow_memory(NAMESPACE_BYTES, 512, 500)];
    let config = TargetConfig { limits, ..config(namespaces) };
    let server = Server::start(&config).expect("it starts");
    let (mut controller, mut lane) = connect(&server, false);
    let object = compile("hostile");
    let endless = load(&mut controller, &object, "endless");
    let mut witness = Witness::new(&server);
    let answer = load(&mut controller, &object, "answer");
    for _ in 0..3 {
        lane.submit(1, Request::Pushdown(call(endless, &[]))).expect("submitted");
        lane.flush_doorbell().expect("sent");
        witness.check();
        let mut other = controller.open_lane().expect("a lane");
        other.submit(2, Request::Pushdown(call(answer, &[]))).expect("submitted");
        let mut ok = false;
        let ended = other.wait(Duration::from_secs(20), &mut |end| ok = end.result.is_ok());
        assert_eq!((ended.expect("connected"), ok), (1, true), "they take turns");
        witness.check();
        lane = other;
    }
    let report = controller.function_report().expect("a report");
    assert!(report[0].hops > 0, "what it did is counted");
    // The target does not receive from a connection that waits for its own chain, but still notices its end.
    let mut other = controller.open_lane().expect("a lane");
    for tag in 0..2 {
        lane.submit(tag, Request::Pushdown(call(endless, &[]))).expect("submitted");
    }
    lane.flush_doorbell().expect("sent");
    witness.check();
    drop(lane);
    assert!(run(&mut other, &call(answer, &[])).is_ok());
}

/// Endless chains in one namespace, witnesses in it and in another one.
#[test]
fn endless_chains_do_not_delay_others() {
    let server = start(vec![memory(NAMESPACE_BYTES, 512), memory(NAMESPACE_BYTES, 512)]);
    let (mut controller, mut lane) = connect(&server, false);
    let endless = load(&mut controller, &compile("hostile"), "endless");
    let mut witness = Witness::new(&server);
    for nsid in [1, 2] {
        for tag in 0..8 {
            let call = PushdownCall { nsid, ..call(endless, &[]) };
            lane.submit(tag, Request::Pushdown(call)).expect("submitted");
        }
        lane.flush_doorbell().expect("sent");
        for _ in 0..20 {
            witness.check();
            witness.lane.read(2, 0, &mut [0; 4096]).expect("served");
        }
        lane = controller.open_lane().expect("the old lane is dropped, its chains end");
    }
}

/// A host that requests much data and receives none does not delay others, and its memory is bounded by the limits of a
/// connection, not by its requests (tests of the protocol core measure that).
#[test]
fn a_host_that_does_not_receive() {
    let (server, mut witness) = serve();
    let (_admin, mut deaf) = Peer::pair(&server, NONE, 1000);
    for _ in 0..200 {
        deaf.send(rw(opcode::nvm::READ, 0, 128 << 10), &[]);
    }
    for _ in 0..50 {
        witness.check();
    }
    // Once it receives, it gets everything.
    for _ in 0..200 {
        assert!(matches!(deaf.hear(), Said::Data(data) if data.len() == 128 << 10));
        assert!(matches!(deaf.hear(), Said::Response(cqe) if cqe.status.is_success()));
    }
    drop(deaf);
    witness.check();
}

/// Data that a host receives late has whole blocks as of the time of the read, whatever is written meanwhile: it is
/// sent from the namespace's memory, and the socket takes only a part of it at once.
#[test]
fn blocks_are_whole_for_a_host_that_receives_late() {
    const READ_BYTES: u32 = 128 << 10;
    let (server, _witness) = serve();
    let (_controller, mut lane) = connect(&server, false);
    let (_admin, mut late) = Peer::pair(&server, NONE, 1000);
    for _ in 0..200 {
        late.send(rw(opcode::nvm::READ, 0, READ_BYTES), &[]);
    }
    let mut values = Vec::new();
    for value in 1..=200 {
        // Each answer that is received makes room for a part of another.
        lane.write(1, 0, &vec![value; READ_BYTES as usize]).expect("written");
        let Said::Data(data) = late.hear() else { panic!("no data") };
        for block in data.chunks(512) {
            let (first, last) = (block[0], block[511]);
            let is_whole = block.iter().all(|byte| *byte == first);
            assert!(is_whole, "a torn block, {first} at its start and {last} at its end");
        }
        values.extend(data.chunks(512).map(|block| block[0]));
        assert!(matches!(late.hear(), Said::Response(cqe) if cqe.status.is_success()));
    }
    assert!(values.is_sorted(), "what is read later is not older");
    values.dedup();
    assert!(values.len() > 3, "the socket took all at once, nothing was tested: {values:?}");
}

/// A host that receives nothing cannot keep a closed connection open.
#[test]
fn a_closed_connection_does_not_linger() {
    use std::io::Write;
    let (server, mut witness) = serve();
    let (admin, mut deaf) = Peer::pair(&server, NONE, 1000);
    for _ in 0..400 {
        deaf.send(rw(opcode::nvm::READ, 0, 128 << 10), &[]);
    }
    witness.check();
    drop(admin);
    // A byte sent to a closed socket is answered by a reset.
    until("the target lets go", || deaf.stream.write_all(&[0]).is_err());
    witness.check();
}

/// A protocol error directly behind a command that starts a compilation.
#[test]
fn a_protocol_error_behind_a_load() {
    let (server, mut witness) = serve();
    let (mut admin, _io) = Peer::pair(&server, NONE, 15);
    let object = bpfkv::GET_OBJECT;
    let (last, all) = (object.len() / 8192, object.len() as u32);
    for (index, chunk) in object.chunks(8192).enumerate() {
        let upload = Upload { total_bytes: all, offset_bytes: index as u32 * 8192 };
        let sqe = AdminCommand::function_load(upload, Installation::default());
        let sqe = Sqe { sgl: Sgl::in_capsule(chunk.len() as u32), ..sqe };
        if index < last {
            assert_eq!(admin.status(sqe, chunk), Status::SUCCESS);
        } else {
            let (mut bytes, _) = admin.capsule(sqe, chunk);
            bytes.extend([0xee; 64]);
            admin.send_bytes(&bytes);
        }
    }
    // The invalid bytes may come in a segment of their own, after the load has ended.
    let said = match admin.hear() {
        Said::Response(_) => admin.hear(),
        other => other,
    };
    assert!(matches!(said, Said::Terminated(Fes::InvalidHeaderField, _)), "{said:?}");
    // The answer to the load may come first; the connection must end before the target's timeout.
    let started = Instant::now();
    while admin.hear() != Said::Closed {}
    assert!(started.elapsed() < Duration::from_secs(4), "the compilation was not started");
    witness.check();
}

/// An association ends with its admin queue, and its queue ids can be used again after a reset.
#[test]
fn resets() {
    let (server, mut witness) = serve();
    let (mut admin, mut io) = Peer::pair(&server, NONE, 15);
    let set = |value: u32| {
        let value = value.into();
        bpfof_nvme::FabricsCommand::PropertySet { offset: 0x14, size8: false, value }.to_sqe()
    };
    assert_eq!(admin.status(set(0), &[]), Status::SUCCESS);
    io.expect_end(None);
    let status = admin.status(AdminCommand::identify(1, 0), &[]);
    assert!(status.same_code(Status::COMMAND_SEQUENCE_ERROR), "{status}");
    assert_eq!(admin.status(set(0x0046_0001), &[]), Status::SUCCESS);
    let (page, _) = admin.call(AdminCommand::identify(1, 0), &[]);
    let cntlid = u16::from_le_bytes([page[78], page[79]]);
    let mut io = Peer::queue(&server, NONE, 1, 15, cntlid);
    assert_eq!(io.status(rw(opcode::nvm::READ, 0, 512), &[]), Status::SUCCESS);
    admin.stream.shutdown(Shutdown::Both).expect("a socket");
    io.expect_end(None);
    witness.check();
}

/// Peers that send nothing, or leave at once, cost only their connection.
#[test]
fn many_peers_that_do_nothing() {
    let (server, mut witness) = serve();
    let silent: Vec<Peer> = (0..100).map(|_| Peer::open(&server)).collect();
    for _ in 0..100 {
        drop(Peer::open(&server));
    }
    witness.check();
    drop(silent);
    let mut half = Vec::new();
    for _ in 0..50 {
        let mut peer = Peer::open(&server);
        peer.initialize(BOTH);
        half.push(peer);
    }
    witness.check();
    server.stop();
    for mut peer in half {
        peer.expect_end(None);
    }
}

/// The target handles many transfers at once, with data in and out of order.
#[test]
fn transfers_out_of_order() {
    let (server, mut witness) = serve();
    let (_admin, mut io) = Peer::pair(&server, BOTH, 63);
    let count = 60;
    for index in 0..count {
        io.send(rw(opcode::nvm::WRITE, index * 100, 51_200), &[]);
    }
    let (mut asked, mut done) = (Vec::<R2t>::new(), 0);
    while done < count {
        match io.hear() {
            Said::R2t(r2t) => asked.push(r2t),
            Said::Response(cqe) => {
                assert_eq!(cqe.status, Status::SUCCESS);
                done += 1;
            }
            other => panic!("{other:?}"),
        }
        if asked.len() as u64 + done == count {
            for r2t in asked.drain(..).rev() {
                let bytes = io.h2c_data(&r2t, &vec![r2t.cccid as u8; 51_200]);
                io.send_bytes(&bytes);
            }
        }
    }
    witness.check();
    let (data, _) = io.call(rw(opcode::nvm::READ, 5900, 512), &[]);
    let (other, _) = io.call(rw(opcode::nvm::READ, 0, 512), &[]);
    assert_eq!(data[0], other[0] + 59);
}

/// A host with a keep-alive timer that falls silent is disconnected within seconds.
#[test]
fn a_keep_alive_timeout_ends_the_association() {
    let (server, mut witness) = serve();
    let mut peer = Peer::open(&server);
    peer.initialize(NONE);
    let command = bpfof_nvme::FabricsCommand::Connect {
        recfmt: 0,
        qid: 0,
        sqsize: 31,
        cattr: 0,
        kato_ms: 1000,
    };
    let data = bpfof_nvme::fabrics::ConnectData {
        hostid: [5; 16],
        cntlid: u16::MAX,
        subnqn: common::NQN.to_owned(),
        hostnqn: "nqn.2026-01.io.bpf-of:silent".to_owned(),
    };
    assert_eq!(peer.status(command.to_sqe(), &data.to_bytes()), Status::SUCCESS);
    let started = Instant::now();
    peer.expect_end(None);
    assert!(started.elapsed() < Duration::from_secs(15));
    witness.check();
    let options = Options::default();
    assert!(Controller::connect(&url(&server), options).is_ok());
}
