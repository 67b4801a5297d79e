//! Pushdown Vector over real sockets: answers of its chains, refusals, and effects on others.

mod common;

use bpfkv::pushdown::{GET_ANSWER_BYTES, get_argument};
use bpfof_controller::{NamespaceConfig, TargetConfig};
use bpfof_host::{
    FileVersion, FirstRead, FirstReads, FunctionId, Lane, PushdownVectorCall, Request,
    RequestError, Status, VectorAnswer, VectorArguments,
};
use bpfof_nvme::{Sqe, opcode};
use common::{
    WHOLE, Witness, call, compile, config, connect, database, file, load, memory, options, run,
    slow_memory, start, url,
};
use std::time::Duration;

const NAMESPACE_BYTES: u64 = 24 << 20;
const ANSWER_BYTES: u32 = GET_ANSWER_BYTES as u32;
const FIRST: FirstRead = FirstRead { file: 0, offset_bytes: 0, size_bytes: 512 };

/// A vector of chains that begin with block 0 of namespace 1, with arguments of equal size.
fn vector<'a>(
    function: FunctionId,
    files: &'a [FileVersion],
    count: u16,
    bytes: &'a [u8],
) -> PushdownVectorCall<'a> {
    PushdownVectorCall {
        nsid: 1,
        function: function.0,
        files,
        first: FirstReads::Same(FIRST),
        arguments: VectorArguments::Equal { count, bytes },
        scratch_size_bytes: 0,
        answer_max_bytes: ANSWER_BYTES,
        room_bytes: VectorAnswer::room_bytes(count, ANSWER_BYTES) as u32,
    }
}

/// The end of a chain: its status, dword 0, and its answer.
type End = (Status, u32, Vec<u8>);

/// Waits for `count` vectors of `chains` chains, in the order in which they end.
fn ends(lane: &mut Lane, count: usize, chains: u16) -> Vec<(u64, Vec<End>)> {
    let mut all = Vec::new();
    while all.len() < count {
        let waited = lane.wait(Duration::from_secs(20), &mut |completion| {
            let done = completion.result.expect("the command succeeds");
            let answer = VectorAnswer::parse(done.data, chains).expect("well-formed");
            let ends =
                answer.chains().map(|(record, bytes)| (record.status, record.dw0, bytes.to_vec()));
            all.push((completion.tag, ends.collect()));
        });
        assert!(waited.expect("connected") > 0, "no answer");
    }
    all
}

/// Keys, of which every seventh is not in the database.
fn keys(from: u64, count: u16) -> Vec<u64> {
    let key = |at: u64| if at.is_multiple_of(7) { 1 << 40 } else { at * 37 % (31 * 31 * 31) };
    (from..from + u64::from(count)).map(key).collect()
}

fn arguments(keys: &[u64]) -> Vec<u8> {
    keys.iter().flat_map(|key| get_argument(*key).expect("a key")).collect()
}

#[test]
fn vectors_and_chains_give_the_same_answers() {
    let database = database(3);
    let directory = tempfile::tempdir().expect("a directory");
    let namespaces: [NamespaceConfig; 3] = [
        memory(NAMESPACE_BYTES, 512),
        slow_memory(NAMESPACE_BYTES, 512, 20),
        file(&directory.path().join("image"), NAMESPACE_BYTES, 4096),
    ];
    for (namespace, digests) in namespaces.into_iter().zip([true, false, false]) {
        let server = start(vec![namespace]);
        let (mut controller, mut lane) = connect(&server, digests);
        lane.write(1, 0, &database).expect("written");
        let limits = controller.pushdown_limits().expect("limits");
        assert_eq!((limits.vector_chains, limits.vector_bytes), (256, 112 << 10));
        let get = controller.load_function(bpfkv::GET_OBJECT, 0).expect("loaded");
        for count in [1, 32, 256] {
            let asked: Vec<Vec<u64>> = (0..4).map(|of| keys(of * 1000 + 1, count)).collect();
            for (tag, keys) in asked.iter().enumerate() {
                let bytes = arguments(keys);
                let call = vector(get, WHOLE, count, &bytes);
                lane.submit(tag as u64, Request::PushdownVector(&call)).expect("there is room");
            }
            for (tag, ends) in ends(&mut lane, 4, count) {
                for (key, (status, hops, answer)) in asked[tag as usize].iter().zip(ends) {
                    let argument = get_argument(*key).expect("a key");
                    let alone = run(&mut lane, &call(get, &argument)).expect("it succeeds");
                    assert_eq!((status, (answer, hops)), (Status::SUCCESS, alone), "key {key}");
                }
            }
        }
        // Little room: chains whose answers do not fit are requested again.
        let asked = keys(1, 60);
        let (mut left, mut found) = (asked.clone(), 0);
        while !left.is_empty() {
            let bytes = arguments(&left);
            let count = left.len() as u16;
            let room_bytes = u32::from(count) * 16 + 5 * ANSWER_BYTES;
            let call = PushdownVectorCall { room_bytes, ..vector(get, WHOLE, count, &bytes) };
            lane.submit(0, Request::PushdownVector(&call)).expect("there is room");
            let (_, ends) = ends(&mut lane, 1, count).remove(0);
            let before = left.len();
            left = left
                .into_iter()
                .zip(&ends)
                .filter(|(_, end)| end.0 == Status::VECTOR_FULL)
                .map(|(key, _)| key)
                .collect();
            assert!(ends.iter().all(|end| end.0.is_success() || end.0 == Status::VECTOR_FULL));
            // There is room for five answers.
            let most = before.saturating_sub(5);
            assert!(left.len() <= most, "{before} chains, {} of them full", left.len());
            found += before - left.len();
        }
        assert_eq!(found, asked.len());
        // One function that does not exist, one file of another version.
        let bytes = arguments(&asked);
        let unknown = vector(FunctionId(999), WHOLE, 60, &bytes);
        let stale = vector(get, &[FileVersion { id: 0, version: 2 }], 60, &bytes);
        for (call, expected) in
            [(unknown, Status::UNKNOWN_FUNCTION), (stale, Status::STALE_FILE_MAP)]
        {
            lane.submit(0, Request::PushdownVector(&call)).expect("there is room");
            let (_, ends) = ends(&mut lane, 1, 60).remove(0);
            assert!(
                ends.iter().all(|end| *end == (expected.with_dnr(), 0, Vec::new())),
                "{ends:?}"
            );
        }
    }
}

#[test]
fn malformed_vectors_are_refused() {
    let server = start(vec![memory(1 << 20, 512)]);
    let (mut controller, mut lane) = connect(&server, false);
    let get = controller.load_function(bpfkv::GET_OBJECT, 0).expect("loaded");
    let refused = |lane: &mut Lane, call: &PushdownVectorCall<'_>| {
        lane.submit(0, Request::PushdownVector(call)).expect("there is room");
        let mut end = None;
        while end.is_none() {
            let waited = lane.wait(Duration::from_secs(20), &mut |completion| {
                end = Some(completion.result.map(|_| ()));
            });
            assert!(waited.expect("connected") > 0, "no answer");
        }
        match end {
            Some(Err(RequestError::Command(error))) => (error.status, error.dw0),
            other => panic!("{other:?}"),
        }
    };
    let malformed = Status::MALFORMED_REQUEST;
    let good = vector(get, WHOLE, 2, &[0; 16]);
    let files = [WHOLE[0]; 17];
    let many = [0; 257];
    let cases = [
        (PushdownVectorCall { files: &files, ..good }, 4),
        (PushdownVectorCall { files: &[], ..good }, 4),
        (vector(get, WHOLE, 257, &many), 6),
        (
            PushdownVectorCall { first: FirstReads::Same(FirstRead { file: 1, ..FIRST }), ..good },
            20,
        ),
        (
            PushdownVectorCall {
                first: FirstReads::Each(&[FIRST, FirstRead { size_bytes: 0, ..FIRST }]),
                ..good
            },
            64 + 16 + 8,
        ),
        (PushdownVectorCall { scratch_size_bytes: 7, ..good }, 24),
        (PushdownVectorCall { scratch_size_bytes: (16 << 10) + 1, ..good }, 28),
        (PushdownVectorCall { room_bytes: 31, ..good }, 36),
        (PushdownVectorCall { room_bytes: (112 << 10) + 1, ..good }, 36),
    ];
    for (call, at) in cases {
        assert_eq!(refused(&mut lane, &call), (malformed, at), "{call:?}");
    }
    // Data outside the capsule, reserved fields set, an invalid namespace.
    let sqe = Sqe::new(opcode::nvm::PUSHDOWN_VECTOR, 1);
    for (sqe, expected) in [
        (sqe, Status::INVALID_SGL_DESCRIPTOR_TYPE),
        (Sqe { cdw10: 1, ..sqe }, Status::INVALID_FIELD),
        (Sqe { nsid: 9, ..sqe }, Status::INVALID_NAMESPACE),
    ] {
        lane.submit(0, Request::Raw { sqe, data_out: &[], data_in_max_bytes: 0 }).expect("room");
        let ended = common::ends(&mut lane).remove(0).1.expect_err("refused");
        let RequestError::Command(error) = ended else { panic!("{ended}") };
        assert!(error.status.same_code(expected), "{}, not {expected}", error.status);
    }
    let uneven = PushdownVectorCall { first: FirstReads::Each(&[FIRST]), ..good };
    assert!(lane.submit(0, Request::PushdownVector(&uneven)).is_err());
    assert!(run(&mut lane, &call(get, &[0; 8])).is_err(), "the namespace is empty");
}

/// Vectors of 256 endless chains delay neither plain reads nor chains of others, and end with their connection.
#[test]
fn endless_vectors_do_not_delay_others() {
    for chains in [8, 1024] {
        let limits = bpfof_controller::Limits { chains, ..Default::default() };
        let config = TargetConfig { limits, ..config(vec![memory(4 << 20, 512)]) };
        let server = bpfof_controller::Server::start(&config).expect("it starts");
        let (mut controller, mut lane) = connect(&server, false);
        let object = compile("hostile");
        let endless = load(&mut controller, &object, "endless");
        let mut witness = Witness::new(&server);
        let mut other = bpfof_host::Controller::connect(&url(&server), options(&server))
            .expect("another association");
        let answer = load(&mut other, &object, "answer");
        let mut other = other.open_lane().expect("a lane");
        for tag in 0..4 {
            let call = vector(endless, WHOLE, 256, &[]);
            lane.submit(tag, Request::PushdownVector(&call)).expect("there is room");
        }
        lane.flush_doorbell().expect("sent");
        for _ in 0..20 {
            witness.check();
            assert!(run(&mut other, &call(answer, &[])).is_ok());
        }
        // Plain reads on the same connection go on, too.
        lane.submit(9, Request::Read { nsid: 1, offset_bytes: 0, length_bytes: 512 })
            .expect("room");
        let mut ended = Vec::new();
        let waited = lane.wait(Duration::from_secs(20), &mut |end| ended.push(end.tag));
        assert_eq!((waited.expect("connected"), ended), (1, vec![9]));
        drop(lane);
        witness.check();
        let started = std::time::Instant::now();
        let hops = |controller: &mut bpfof_host::Controller| {
            controller.function_report().expect("a report")[0].hops
        };
        loop {
            let before = hops(&mut controller);
            witness.check();
            if hops(&mut controller) == before {
                break;
            }
            assert!(started.elapsed() < Duration::from_secs(20), "its chains go on");
        }
    }
}
