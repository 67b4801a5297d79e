//! Restricted associations: the commands that their queues take, and how associations become restricted.

mod common;

use bpfof_controller::{NamespaceConfig, Server, TargetConfig};
use bpfof_host::{
    Controller, Error, Extent, FileMapObject, FileVersion, FirstRead, FirstReads, FunctionId, Lane,
    Options, PushdownCall, PushdownVectorCall, Request, RequestError, Status, VectorAnswer,
    VectorArguments,
};
use bpfof_nvme::fabrics::{ControllerConfig, FabricsCommand, offset};
use bpfof_nvme::vendor_specific::PushdownShort;
use bpfof_nvme::{AdminCommand, Sqe, features, opcode};
use common::stop::StopAtEnd;
use common::{compile, config, connect, ends, file, load, memory, options, run, start, url};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const NAMESPACE_BYTES: u64 = 4 << 20;
/// Longest wait for a chain.
const PATIENCE: Duration = Duration::from_secs(20);
/// The file that is mapped, and one that is not.
const FILE: FileVersion = FileVersion { id: 7, version: 1 };
const OTHER_FILE: FileVersion = FileVersion { id: 8, version: 1 };
const WHOLE: FileVersion = FileVersion { id: 0, version: 1 };
/// Offset of the file in the namespace.
const FILE_AT: u64 = 1 << 20;
const FILE_BYTES: u64 = 64 << 10;
const OURS: u64 = 0x1111_1111_1111_1111;
const FOREIGN: u64 = 0xFFFF_FFFF_FFFF_FFFF;

fn restricted(server: &Server) -> Controller {
    let keep_alive = Duration::from_secs(5);
    let with = Options { pushdown_only: true, keep_alive, ..options(server) };
    Controller::connect(&url(server), with).expect("it connects")
}

fn map(version: u64) -> FileMapObject {
    let (device_offset, length_bytes) = (FILE_AT, FILE_BYTES);
    let extents = vec![Extent { file_offset: 0, device_offset, length_bytes }];
    FileMapObject { file: FILE.id, nsid: 1, version, length_bytes: FILE_BYTES, extents }
}

/// The argument of the function `watch`.
fn argument(size_bytes: u32, hops: u32) -> Vec<u8> {
    [&OURS.to_le_bytes()[..], &size_bytes.to_le_bytes(), &hops.to_le_bytes()].concat()
}

fn call<'a>(
    function: u32,
    files: &'a [FileVersion],
    first_size_bytes: u32,
    scratch: &'a [u8],
) -> PushdownCall<'a> {
    PushdownCall {
        files,
        first_size_bytes,
        answer_max_bytes: 64,
        ..common::call(FunctionId(function), scratch)
    }
}

/// Fills the blocks of the file by the lane of an ordinary association.
fn fill(lane: &mut Lane, value: u64) {
    let bytes: Vec<u8> = value.to_le_bytes().repeat(FILE_BYTES as usize / 8);
    lane.write(1, FILE_AT, &bytes).expect("written");
}

/// Runs a test with memory and with a file as namespace 1, and with a namespace 2. The reactors share a processor, so
/// that each may be interrupted anywhere.
fn for_both(test: impl Fn(&Server)) {
    let directory = tempfile::tempdir().expect("a folder");
    let path = directory.path().join("image");
    for first in [memory(NAMESPACE_BYTES, 512), file(&path, NAMESPACE_BYTES, 512)] {
        let namespaces = vec![first, memory(NAMESPACE_BYTES, 512)];
        let with = TargetConfig { cores: vec![0; 3], ..config(namespaces) };
        test(&Server::start(&with).expect("the target starts"));
    }
}

fn status(lane: &mut Lane, sqe: Sqe, data_in_max_bytes: u32) -> Status {
    let request = Request::Raw { sqe, data_out: &[], data_in_max_bytes };
    lane.submit(0, request).expect("there is room");
    let mut end = None;
    while end.is_none() {
        let waited = lane.wait(Duration::from_secs(20), &mut |completion| {
            end = Some(match completion.result {
                Ok(_) => Status::SUCCESS,
                Err(RequestError::Command(error)) => error.status,
                Err(error) => panic!("{sqe:?}: {error}"),
            });
        });
        // After the answer to a Disconnect the connection may end.
        if end.is_none() {
            assert!(waited.expect("the connection stays") > 0, "{sqe:?}: no answer");
        }
    }
    end.expect("an end")
}

/// Runs a vector of two chains; returns how they end.
fn vector(lane: &mut Lane, function: u32, file: FileVersion, scratch: &[u8]) -> Vec<Status> {
    let call = PushdownVectorCall {
        nsid: 1,
        function,
        files: &[file],
        first: FirstReads::Same(FirstRead { file: 0, offset_bytes: 0, size_bytes: 512 }),
        arguments: VectorArguments::Equal { count: 2, bytes: &scratch.repeat(2) },
        scratch_size_bytes: 0,
        answer_max_bytes: 64,
        room_bytes: VectorAnswer::room_bytes(2, 64) as u32,
    };
    lane.submit(0, Request::PushdownVector(&call)).expect("there is room");
    let mut ends = Vec::new();
    let waited = lane.wait(Duration::from_secs(20), &mut |completion| {
        let done = completion.result.expect("the command succeeds");
        let answer = VectorAnswer::parse(done.data, 2).expect("well-formed");
        ends.extend(answer.chains().map(|(record, _)| record.status));
    });
    assert!(waited.expect("the connection stays") > 0, "no answer");
    ends
}

#[test]
fn io_queues_take_chains_over_mapped_files_and_nothing_else() {
    for_both(|server| {
        let (_plain, mut writer) = connect(server, false);
        fill(&mut writer, OURS);
        let mut controller = restricted(server);
        let function = load(&mut controller, &compile("watch"), "watch").0;
        controller.set_file_map(&map(1)).expect("set");
        let mut lane = controller.open_lane().expect("a lane");
        let denied = Status::OPERATION_DENIED.with_dnr();
        use opcode::nvm::{PUSHDOWN, PUSHDOWN_SHORT, PUSHDOWN_VECTOR};
        let chains = [PUSHDOWN, PUSHDOWN_SHORT, PUSHDOWN_VECTOR, opcode::FABRICS];
        for opcode in (0..=u8::MAX).filter(|opcode| !chains.contains(opcode)) {
            for nsid in [1, 2, 0, u32::MAX] {
                let status = status(&mut lane, Sqe::new(opcode, nsid), 4096);
                assert_eq!(status, denied, "{opcode:#x} on namespace {nsid}");
            }
        }
        for fctype in (0..=u8::MAX).filter(|fctype| !matches!(fctype, 5 | 6 | 8)) {
            let sqe = Sqe { flags: Sqe::FLAGS_SGL, ..Sqe::new(opcode::FABRICS, fctype.into()) };
            assert_eq!(status(&mut lane, sqe, 0), denied, "fabrics command {fctype:#x}");
        }
        // The whole namespace is no file for this queue, at any index, in any of the commands.
        let scratch = argument(512, 1);
        let unknown = Status::UNKNOWN_FILE.with_dnr();
        for (files, index) in [
            (&[WHOLE][..], 0),
            (&[WHOLE, FILE], 0),
            (&[FILE, WHOLE], 1),
            (&[OTHER_FILE], 0),
            (&[FileVersion { id: 0, version: 0 }], 0),
            (&[FileVersion { id: u32::MAX, version: 1 }], 0),
        ] {
            let error = run(&mut lane, &call(function, files, 512, &scratch)).expect_err("refused");
            assert_eq!((error.status, error.dw0), (unknown, index), "{files:?}");
        }
        let elsewhere = PushdownCall { nsid: 2, ..call(function, &[FILE], 512, &scratch) };
        assert_eq!(run(&mut lane, &elsewhere).expect_err("refused").status, unknown);
        let mut short = PushdownShort { function, file: 0, first_blocks: 1, argument: [0; 24] };
        for nsid in [1, 2] {
            assert_eq!(status(&mut lane, short.to_sqe(nsid, 64), 64), unknown);
        }
        for (file, expected) in [(WHOLE, unknown), (FILE, Status::SUCCESS)] {
            assert_eq!(vector(&mut lane, function, file, &scratch), [expected; 2]);
        }
        // Chains over the mapped file work.
        short.file = FILE.id as u16;
        assert_eq!(status(&mut lane, short.to_sqe(1, 64), 64), Status::SUCCESS);
        let good = call(function, &[FILE], 512, &scratch);
        assert_eq!(run(&mut lane, &good), Ok((OURS.to_le_bytes().to_vec(), 1)));
        // The file is still unknown in the other namespace.
        assert_eq!(run(&mut lane, &elsewhere).expect_err("refused").status, unknown);
        let disconnect = FabricsCommand::Disconnect.to_sqe();
        assert_eq!(status(&mut lane, disconnect, 0), Status::SUCCESS);
        assert!(lane.wait(Duration::from_secs(20), &mut |_| {}).is_err(), "it is closed");
    });
}

/// The owner's admin queue is that of any association.
#[test]
fn admin_queues_are_not_restricted() {
    let server = start(vec![memory(NAMESPACE_BYTES, 512)]);
    let mut plain = Controller::connect(&url(&server), options(&server)).expect("it connects");
    let mut restricted = restricted(&server);
    let event = opcode::admin::ASYNC_EVENT_REQUEST;
    for opcode in (0..=u8::MAX).filter(|opcode| *opcode != event) {
        // Bits 1:0 are the data direction.
        let room = if opcode & 3 == 2 { 4096 } else { 0 };
        for nsid in [0, 1] {
            let [plain, restricted] = [&mut plain, &mut restricted].map(|controller| {
                match controller.admin_command(Sqe::new(opcode, nsid), &[], room) {
                    Ok(_) => Status::SUCCESS,
                    Err(Error::Command { source, .. }) => source.status,
                    Err(error) => panic!("{opcode:#x}: {error}"),
                }
            });
            assert_eq!(restricted, plain, "{opcode:#x} {nsid}");
        }
    }
}

fn set(controller: &mut Controller, feature: u8, value: u32) -> Status {
    set_of(controller, AdminCommand::set_features(feature, value))
}

fn set_of(controller: &mut Controller, sqe: Sqe) -> Status {
    match controller.admin_command(sqe, &[], 0) {
        Ok(_) => Status::SUCCESS,
        Err(Error::Command { source, .. }) => source.status,
        Err(error) => panic!("{error}"),
    }
}

fn get(controller: &mut Controller, select: u8) -> u32 {
    let get = AdminCommand::get_features(features::QUEUE_RESTRICTION);
    let sqe = Sqe { cdw10: get.cdw10 | u32::from(select) << 8, ..get };
    controller.admin_command(sqe, &[], 0).expect("answered").0.dw0
}

const RESTRICTION: u8 = features::QUEUE_RESTRICTION;
const ON: u32 = features::PUSHDOWN_ONLY;

#[test]
fn an_association_is_restricted_before_its_first_io_queue_or_never() {
    let server = start(vec![memory(NAMESPACE_BYTES, 512)]);
    let keep_alive = Duration::from_secs(5);
    let with = Options { keep_alive, ..options(&server) };
    let connect = || Controller::connect(&url(&server), with.clone()).expect("it connects");
    let mut controller = connect();
    let lane = controller.open_lane().expect("a lane");
    let refused = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
    assert_eq!(set(&mut controller, RESTRICTION, ON), refused);
    drop(lane);
    // Chains of a queue that has just ended may still run.
    assert_eq!(set(&mut controller, RESTRICTION, ON), refused);
    assert_eq!(get(&mut controller, features::SELECT_CURRENT), 0);
    // Setting the current value is allowed and changes nothing.
    assert_eq!(set(&mut controller, RESTRICTION, 0), Status::SUCCESS);
    let mut controller = connect();
    for value in [2, 3, 0x8000_0001] {
        assert_eq!(set(&mut controller, RESTRICTION, value), Status::INVALID_FIELD.with_dnr());
    }
    let of_namespace = Sqe { nsid: 1, ..AdminCommand::set_features(RESTRICTION, ON) };
    let status = set_of(&mut controller, of_namespace);
    assert_eq!(status, Status::FEATURE_NOT_PER_NAMESPACE.with_dnr());
    let mut lane = controller.open_lane().expect("a lane");
    lane.read(1, 0, &mut [0; 512]).expect("it is not restricted");
}

#[test]
fn a_restricted_association_has_a_short_keep_alive_timer() {
    let server = start(vec![memory(NAMESPACE_BYTES, 512)]);
    let refused = Status::INVALID_KEEP_ALIVE_TIMEOUT.with_dnr();
    for (kato_ms, good) in
        [(0, false), (999, false), (1000, true), (10_000, true), (10_001, false), (20_000, false)]
    {
        let keep_alive = Duration::from_millis(kato_ms);
        let with = Options { keep_alive, ..options(&server) };
        let mut controller = Controller::connect(&url(&server), with.clone()).expect("connected");
        let expected = if good { Status::SUCCESS } else { refused };
        assert_eq!(set(&mut controller, RESTRICTION, ON), expected, "{kato_ms} ms");
        // The library refuses such a timer before it connects.
        let connected = Controller::connect(&url(&server), Options { pushdown_only: true, ..with });
        match connected {
            Ok(_) => assert!(good, "{kato_ms} ms"),
            Err(Error::RestrictedKeepAlive(of)) => assert!(!good && of == keep_alive),
            Err(error) => panic!("{kato_ms} ms: {error}"),
        }
    }
}

#[test]
fn a_restriction_cannot_be_taken_back() {
    let server = start(vec![memory(NAMESPACE_BYTES, 512)]);
    let mut controller = restricted(&server);
    let selects = [
        (features::SELECT_CURRENT, ON),
        (features::SELECT_DEFAULT, 0),
        (features::SELECT_SUPPORTED, 1 << 2),
    ];
    for (select, value) in selects {
        assert_eq!(get(&mut controller, select), value);
    }
    assert_eq!(set(&mut controller, RESTRICTION, ON), Status::SUCCESS);
    let fixed = Status::FEATURE_NOT_CHANGEABLE.with_dnr();
    assert_eq!(set(&mut controller, RESTRICTION, 0), fixed);
    for kato_ms in [0, 999, 10_001, u32::MAX] {
        let status = set(&mut controller, features::KEEP_ALIVE_TIMER, kato_ms);
        assert_eq!(status, Status::INVALID_KEEP_ALIVE_TIMEOUT.with_dnr(), "{kato_ms}");
    }
    assert_eq!(set(&mut controller, features::KEEP_ALIVE_TIMER, 6000), Status::SUCCESS);
    // A reset is answered before the queues end, which other processes may have.
    let function = load(&mut controller, &compile("watch"), "watch").0;
    let _before = controller.open_lane().expect("a lane");
    for enable in [false, true] {
        let value = u32::from(ControllerConfig { enable, ..ControllerConfig::ENABLED }).into();
        let sqe = FabricsCommand::PropertySet { offset: offset::CC, size8: false, value }.to_sqe();
        assert_eq!(set_of(&mut controller, sqe), Status::SUCCESS);
    }
    assert_eq!(get(&mut controller, features::SELECT_CURRENT), ON);
    let mut lane = controller.open_lane().expect("a lane");
    let read = Request::Read { nsid: 1, offset_bytes: 0, length_bytes: 512 };
    lane.submit(0, read).expect("there is room");
    let denied = |end: &RequestError| {
        matches!(end, RequestError::Command(error)
            if error.status == Status::OPERATION_DENIED.with_dnr())
    };
    assert!(matches!(&ends(&mut lane)[..], [(0, Err(end))] if denied(end)));
    let scratch = argument(512, 1);
    let error = run(&mut lane, &call(function, &[WHOLE], 512, &scratch)).expect_err("refused");
    assert_eq!(error.status, Status::UNKNOWN_FILE.with_dnr());
}

#[test]
fn restricted_associations_cannot_read_later_namespaces() {
    let namespaces = || vec![memory(NAMESPACE_BYTES, 512)];
    let server = start(namespaces());
    let mut controller = restricted(&server);
    let function = load(&mut controller, &compile("watch"), "watch").0;
    let more: Vec<NamespaceConfig> =
        namespaces().into_iter().chain([memory(NAMESPACE_BYTES, 4096)]).collect();
    server.reload(&config(more)).expect("it is taken over");
    let mut lane = controller.open_lane().expect("a lane");
    let scratch = argument(4096, 1);
    let on_new = PushdownCall { nsid: 2, ..call(function, &[WHOLE], 4096, &scratch) };
    let error = run(&mut lane, &on_new).expect_err("refused");
    assert_eq!(error.status, Status::UNKNOWN_FILE.with_dnr());
}

/// Chains run all the time while the file's map is removed and its blocks are overwritten by another owner: no chain
/// answers with a byte written after the removal. `FENCE_SECONDS` makes it longer than two seconds.
#[test]
fn no_chain_reads_data_written_after_a_map_was_removed() {
    const CHAIN_LANES: usize = 2;
    const HOPS: u32 = 60;
    const SIZE: u32 = 60 << 10;
    let seconds = std::env::var("FENCE_SECONDS").map_or(2, |text| text.parse().expect("seconds"));
    for_both(|server| {
        let server_url = url(server);
        let (_plain, mut writer) = connect(server, false);
        let mut controller = restricted(server);
        let function = load(&mut controller, &compile("watch"), "watch").0;
        let lanes: Vec<Lane> =
            (0..CHAIN_LANES).map(|_| controller.open_lane().expect("a lane")).collect();
        let (is_over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
        let chains = |mut lane: Lane| {
            let scratch = argument(SIZE, HOPS);
            while !is_over.load(Ordering::Relaxed) {
                match run(&mut lane, &call(function, &[FILE], SIZE, &scratch)) {
                    Ok((answer, _)) => {
                        let answer = u64::from_le_bytes(answer[..].try_into().expect("8 bytes"));
                        assert_eq!(answer, OURS, "{server_url}: a byte of another, {answer:#x}");
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => {
                        // The map may have been set again meanwhile.
                        let expected = [Status::UNKNOWN_FILE, Status::STALE_FILE_MAP];
                        assert!(
                            expected.iter().any(|status| error.status.same_code(*status)),
                            "{error}"
                        );
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            let stop = StopAtEnd(&is_over);
            let threads: Vec<_> =
                lanes.into_iter().map(|lane| scope.spawn(|| chains(lane))).collect();
            let begun = Instant::now();
            let mut rounds = 0;
            while begun.elapsed() < Duration::from_secs(seconds)
                && threads.iter().all(|thread| !thread.is_finished())
            {
                fill(&mut writer, OURS);
                controller.set_file_map(&map(1)).expect("set");
                // Most maps are removed in the middle of chains, and some only after the end of one.
                let (before, mapped) = (answered.load(Ordering::Relaxed), Instant::now());
                let most = if rounds % 8 == 7 {
                    PATIENCE
                } else {
                    Duration::from_micros(rounds % 7 * 100)
                };
                while answered.load(Ordering::Relaxed) == before && mapped.elapsed() < most {
                    std::thread::yield_now();
                }
                controller.remove_file_map(1, FILE.id).expect("removed");
                fill(&mut writer, FOREIGN);
                rounds += 1;
            }
            drop(stop);
            for thread in threads {
                thread.join().expect("no foreign byte");
            }
            let answered = answered.load(Ordering::Relaxed);
            assert!(answered >= rounds / 8, "{answered} chains were answered in {rounds} rounds");
        });
    });
}
