//! Controller and lanes against a small target, over real sockets.

mod fake_target;
#[path = "../../bpfof/tests/wait/mod.rs"]
mod wait;

use bpfof_auth::{DhchapKey, Hash};
use bpfof_host::{
    Completion, Controller, Credentials, Error, FileMapObject, FunctionId, Lane, LostReason,
    Options, PushdownCall, Request, RequestError, SubmitError, TargetUrl,
};
use bpfof_nvme::fabrics::FabricsCommand;
use bpfof_nvme::{AdminCommand, Status};
use fake_target::{CALL, NQN, Shared};
use socket2::{Domain, Socket, Type};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use wait::until;

fn url(address: SocketAddr) -> TargetUrl {
    format!("nvme-tcp://{address}/{NQN}").parse().unwrap()
}

fn connect(options: Options) -> (Controller, Lane, Arc<Shared>) {
    let (address, shared) = fake_target::start();
    let controller = Controller::connect(&url(address), options).unwrap();
    let lane = controller.open_lane().unwrap();
    (controller, lane, shared)
}

fn both_digests() -> Options {
    Options { header_digest: true, data_digest: true, ..Options::default() }
}

#[test]
fn reads_and_writes_of_all_sizes() {
    for options in [Options::default(), both_digests(), Options { poll: true, ..both_digests() }] {
        let (mut controller, mut lane, shared) = connect(options);
        let namespace = controller.identify_namespace(1).unwrap();
        assert_eq!((namespace.blocks, namespace.block_bytes), (fake_target::BLOCKS, 512));
        assert_eq!(controller.active_namespaces().unwrap(), [1]);
        assert_eq!((lane.depth(), lane.max_transfer_bytes(), lane.qid()), (63, 8192, 1));
        let data: Vec<u8> = (0..900 * 512).map(|index| (index / 500) as u8).collect();
        let mut back = vec![0; data.len()];
        lane.write(1, 512, &data).unwrap();
        lane.flush(1).unwrap();
        assert_eq!(shared.memory.lock().unwrap()[512..512 + data.len()], data);
        lane.read(1, 512, &mut back).unwrap();
        assert!(back == data);
        assert!(lane.bytes_sent() > data.len() as u64 && lane.bytes_received() > data.len() as u64);
        let mut block = [0; 512];
        lane.read(1, 512 + 1024, &mut block).unwrap();
        assert_eq!(block, data[1024..1536]);
        lane.read(1, 0, &mut []).unwrap();
        let error = lane.read(1, fake_target::BLOCKS * 512, &mut block).unwrap_err();
        assert!(
            error.to_string().contains("the range ends beyond the end of the namespace"),
            "{error}"
        );
        assert!(lane.is_connected());
        drop(lane);
        controller.disconnect().unwrap();
    }
}

#[test]
fn a_range_whose_end_overflows_is_refused_before_anything_is_sent() {
    let (_controller, mut lane, shared) = connect(Options::default());
    let mut data = vec![9; 2 * lane.max_transfer_bytes() as usize];
    // The second request would be at the start of the namespace.
    let offset_bytes = 0_u64.wrapping_sub(u64::from(lane.max_transfer_bytes()));
    let before = lane.bytes_sent();
    for error in
        [lane.write(1, offset_bytes, &data), lane.read(1, offset_bytes, &mut data)].map(Result::err)
    {
        let is_refused = matches!(error, Some(Error::Submit(SubmitError::RangeOverflow)));
        assert!(is_refused, "{error:?}");
    }
    assert_eq!((lane.bytes_sent(), lane.requests_in_flight()), (before, 0));
    assert!(shared.memory.lock().unwrap().iter().all(|byte| *byte == 0));
    lane.write(1, 0, &data).unwrap();
}

#[test]
fn chains() {
    let (_controller, mut lane, _) = connect(both_digests());
    let mut answer = b"old".to_vec();
    let info = lane.pushdown(&CALL, &mut answer).unwrap();
    assert_eq!((&answer[..], info.hops), (&b"desserts"[..], 3));
    let empty = PushdownCall { scratch: b"", ..CALL };
    lane.pushdown(&empty, &mut answer).unwrap();
    assert_eq!(answer, b"");
    let unknown = PushdownCall { function: 1, ..CALL };
    let error = lane.pushdown(&unknown, &mut answer).unwrap_err();
    let text = "Pushdown: Unknown Function (7h/01h): load the function on this connection first";
    assert_eq!(error.to_string(), text);
}

#[test]
fn an_interrupted_chain_is_sent_again_by_a_blocking_call() {
    let (_controller, mut lane, shared) = connect(both_digests());
    let mut answer = Vec::new();
    shared.interruptions.store(3, Ordering::SeqCst);
    assert_eq!(lane.pushdown(&CALL, &mut answer).unwrap().hops, 3);
    assert_eq!((&answer[..], shared.interruptions.load(Ordering::SeqCst)), (&b"desserts"[..], 0));
    // It gives up after some retries.
    shared.interruptions.store(100, Ordering::SeqCst);
    let error = lane.pushdown(&CALL, &mut answer).unwrap_err();
    assert!(matches!(error, Error::Command { source, .. } if source.is_interrupted()), "{error}");
    assert!(error.to_string().starts_with("Pushdown: Command Interrupted"), "{error}");
    assert_eq!(shared.interruptions.load(Ordering::SeqCst), 100 - 9);
    // A submitted chain is not retried: the caller decides.
    lane.submit(7, Request::Pushdown(CALL)).unwrap();
    let mut ends = Vec::new();
    while ends.is_empty() {
        let mut end = |completion: Completion<'_>| ends.push(completion.result.map(|_| ()));
        lane.wait(Duration::from_secs(1), &mut end).unwrap();
    }
    assert!(matches!(ends[0], Err(RequestError::Command(error)) if error.is_interrupted()));
    assert_eq!(shared.interruptions.load(Ordering::SeqCst), 100 - 10);
}

#[test]
fn many_requests_at_once_complete_with_their_tags() {
    let (_controller, mut lane, shared) = connect(Options::default());
    for (block, bytes) in shared.memory.lock().unwrap().chunks_mut(512).enumerate() {
        bytes.fill(block as u8);
    }
    let (mut next, mut seen) = (0, vec![0; 2000]);
    let mut done = 0;
    while done < seen.len() {
        while next < seen.len() as u64 {
            let (nsid, offset_bytes, length_bytes) = (1, next * 512, 512);
            match lane.submit(next, Request::Read { nsid, offset_bytes, length_bytes }) {
                Ok(()) => next += 1,
                Err(SubmitError::QueueFull) => break,
                Err(error) => panic!("{error}"),
            }
        }
        done += lane
            .wait(Duration::from_secs(5), &mut |completion| {
                seen[completion.tag as usize] += 1;
                let data = completion.result.unwrap().data;
                assert_eq!(data, [completion.tag as u8; 512]);
            })
            .unwrap();
    }
    assert!(seen.iter().all(|&times| times == 1));
    assert_eq!(lane.wait(Duration::from_millis(5), &mut |_| {}).unwrap(), 0);
    lane.submit(1, Request::Flush { nsid: 1 }).unwrap();
    assert!(matches!(lane.flush(1), Err(Error::LaneBusy(1))));
    lane.flush_doorbell().unwrap();
    while lane.poll(&mut |_| {}).unwrap() == 0 {}
}

#[test]
fn functions_and_file_maps() {
    let (mut controller, _lane, shared) = connect(Options::default());
    let object: Vec<u8> = (0..20_000).map(|index| (index / 77) as u8).collect();
    assert_eq!(controller.load_function(&object, 2).unwrap(), FunctionId(42));
    assert_eq!(shared.uploads.lock().unwrap().pop().unwrap(), object);
    controller.unload_function(FunctionId(42)).unwrap();
    assert!(matches!(controller.unload_function(FunctionId(1)), Err(Error::Command { .. })));
    let error = controller.load_function(&[0; 30_001], 0).unwrap_err();
    assert_eq!(error.to_string(), "the object has 30001 bytes, the target accepts 30000");
    shared.reject.store(true, Ordering::SeqCst);
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    *shared.says.lock().unwrap() = Some(Box::new(move |command| {
        let is_report = matches!(command, bpfof_nvme::AdminCommand::FunctionReport { .. });
        count.fetch_add(usize::from(is_report), Ordering::SeqCst);
        None
    }));
    let error = controller.load_function(&object, 0).unwrap_err();
    assert!(matches!(&error, Error::FunctionRejected(why) if why.trim() == "because"), "{error}");
    // Exactly one command: callers that must do other work between two commands rely on this.
    assert_eq!(asked.load(Ordering::SeqCst), 1);

    let map = FileMapObject { file: 3, nsid: 1, version: 1, length_bytes: 5, extents: vec![] };
    controller.set_file_map(&map).unwrap();
    let sent = shared.uploads.lock().unwrap().pop().unwrap();
    assert_eq!(FileMapObject::parse(&sent), Ok(map.clone()));
    controller.remove_file_map(1, 3).unwrap();
    let sent = shared.uploads.lock().unwrap().pop().unwrap();
    assert_eq!(FileMapObject::parse(&sent), Ok(FileMapObject::removal(1, 3)));
    let extent = bpfof_host::Extent { file_offset: 0, device_offset: 0, length_bytes: 512 };
    let long = FileMapObject { extents: vec![extent; 11], ..map };
    assert!(matches!(controller.set_file_map(&long), Err(Error::ObjectTooLarge { .. })));
}

#[test]
fn an_ordinary_target_is_recognised() {
    let (mut controller, _lane, shared) = connect(Options::default());
    shared.no_pushdown.store(true, Ordering::SeqCst);
    let error = controller.load_function(b"x", 0).unwrap_err();
    assert!(matches!(error, Error::NotPushdownTarget));
}

#[test]
fn connection_errors_are_explained() {
    let (address, _shared) = fake_target::start();
    let wrong = TargetUrl { nqn: "nqn.2026-01.org.example:other".into(), ..url(address) };
    let error = Controller::connect(&wrong, Options::default()).unwrap_err().to_string();
    assert!(error.ends_with("check the subsystem's NQN in the address"), "{error}");
    // Nobody listens at a port that is only bound, and nobody else can take it.
    let unused = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    unused.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = unused.local_addr().unwrap().as_socket().unwrap();
    let error = Controller::connect(&url(address), Options::default()).unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error}");
    // A silent listener.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let options = Options { connect_timeout: Duration::from_millis(500), ..Options::default() };
    let error = Controller::connect(&url(mute.local_addr().unwrap()), options).unwrap_err();
    assert!(matches!(error, Error::NotReady { step: "ICResp", .. }), "{error}");
}

/// Each step alone would end within the timeout; together they do not.
#[test]
fn connecting_has_one_limit_authentication_included() {
    let (address, shared) = fake_target::start();
    let connect_timeout = Duration::from_secs(2);
    let pause = connect_timeout * 3 / 4;
    *shared.says.lock().unwrap() = Some(Box::new(move |command| {
        let asks_for_authentication = match command {
            AdminCommand::Fabrics(FabricsCommand::Connect { .. }) => 1 << 17,
            _ => 0,
        };
        std::thread::sleep(pause);
        Some((Status::SUCCESS, asks_for_authentication, 0, vec![]))
    }));
    let key = DhchapKey::generate(Hash::Sha256).unwrap();
    let credentials = Credentials { dhchap_key: Some(Arc::new(key)), ..Credentials::default() };
    let options = Options { connect_timeout, credentials, ..Options::default() };
    let begun = Instant::now();
    let error = Controller::connect(&url(address), options).unwrap_err();
    assert!(matches!(error, Error::Lost(LostReason::Timeout { .. })), "{error}");
    assert!(begun.elapsed() < 5 * connect_timeout, "{:?}", begun.elapsed());
}

#[test]
fn queues_are_granted_taken_and_given_back() {
    let (controller, lane, _) = connect(Options::default());
    let second = controller.open_lane().unwrap();
    assert_eq!(second.qid(), 2);
    assert!(matches!(controller.open_lane(), Err(Error::NoQueueLeft { granted: 2 })));
    drop(lane);
    assert_eq!(controller.open_lane().unwrap().qid(), 1);
}

/// Waits for the ends of all requests in flight, which are lost. Returns their tags and the reason.
fn losses(lane: &mut Lane) -> (Vec<u64>, LostReason) {
    let mut tags = Vec::new();
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < Duration::from_secs(10));
        let waited = lane.wait(Duration::from_secs(1), &mut |completion| {
            assert!(matches!(completion.result, Err(RequestError::Lost(_))));
            tags.push(completion.tag);
        });
        match waited {
            Ok(_) => {}
            Err(Error::Lost(reason)) => break (tags, reason),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_lost_connection_ends_each_request_once_and_can_be_replaced() {
    let (mut controller, mut lane, shared) = connect(Options::default());
    let other = controller.open_lane().unwrap();
    shared.hang_up.store(true, Ordering::SeqCst);
    for tag in 0..10 {
        lane.submit(tag, Request::Flush { nsid: 1 }).unwrap();
    }
    let (mut tags, reason) = losses(&mut lane);
    tags.sort_unstable();
    assert_eq!(tags, (0..10).collect::<Vec<_>>());
    assert!(matches!(reason, LostReason::Closed | LostReason::Io(_)), "{reason}");
    assert!(!lane.is_connected());
    assert_eq!(lane.submit(1, Request::Flush { nsid: 1 }), Err(SubmitError::NotConnected));
    assert_eq!(losses(&mut lane), (vec![], reason));
    shared.hang_up.store(false, Ordering::SeqCst);
    // All queues that the target grants are in use, except the lost one.
    lane.reconnect(&controller).unwrap();
    assert_ne!(lane.qid(), other.qid());
    lane.flush(1).unwrap();
    controller.reconnect().unwrap();
    lane.reconnect(&controller).unwrap();
    lane.flush(1).unwrap();
}

#[test]
fn a_silent_target_is_given_up() {
    let command_timeout = Duration::from_secs(1);
    let (_controller, mut lane, shared) =
        connect(Options { command_timeout, ..Options::default() });
    shared.silent.store(true, Ordering::SeqCst);
    lane.submit(8, Request::Read { nsid: 1, offset_bytes: 0, length_bytes: 512 }).unwrap();
    lane.submit(9, Request::Pushdown(CALL)).unwrap();
    let (tags, reason) = losses(&mut lane);
    assert_eq!(tags.len(), 2);
    assert!(matches!(reason, LostReason::Timeout { waited_ms: 1000.., .. }), "{reason}");
    drop(lane);
    until("the end", || shared.connections.load(Ordering::SeqCst) <= 1);
}

/// A controller at an idle target that may have a keep-alive timer.
fn idle(has_timer: bool, options: Options) -> (Controller, Arc<Shared>) {
    let (address, shared) = fake_target::start();
    shared.has_timer.store(has_timer, Ordering::SeqCst);
    (Controller::connect(&url(address), options).unwrap(), shared)
}

#[test]
fn an_idle_controller_sends_keep_alives() {
    let keep_alive = Duration::from_millis(60);
    let (mut controller, shared) = idle(true, Options { keep_alive, ..both_digests() });
    let count = || shared.keep_alives.load(Ordering::SeqCst);
    assert_eq!(shared.kato_ms.load(Ordering::SeqCst), 60);
    until("Keep Alives", || count() >= 4);
    // Keep Alives and other commands do not disturb each other.
    let end = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end {
        assert_eq!(controller.active_namespaces().unwrap(), [1]);
        assert!(controller.check_connected() && controller.is_connected());
        controller.open_lane().unwrap().flush(1).unwrap();
    }
    let before = count();
    until("more Keep Alives", || count() > before);
    controller.reconnect().unwrap();
    let before = count();
    until("Keep Alives of the new association", || count() > before);
    assert_eq!(controller.active_namespaces().unwrap(), [1]);
    controller.disconnect().unwrap();
    until("the end", || shared.connections.load(Ordering::SeqCst) == 0);
    let before = count();
    std::thread::sleep(3 * keep_alive);
    assert_eq!(count(), before);
}

/// The call holds the queue, and so sends the Keep Alives itself.
#[test]
fn keep_alives_are_sent_during_a_long_call() {
    let keep_alive = Duration::from_millis(2400);
    let (mut controller, shared) = idle(true, Options { keep_alive, ..Options::default() });
    shared.slow_ms.store(5400, Ordering::SeqCst);
    controller.unload_function(FunctionId(42)).unwrap();
    let ended = Instant::now();
    until("Keep Alives", || shared.keep_alives.load(Ordering::SeqCst) >= 3);
    // If they were sent only from now on, they would take two times 1.2 s.
    assert!(ended.elapsed() < Duration::from_millis(2200), "{:?}", ended.elapsed());
}

#[test]
fn without_a_timer_no_keep_alives_are_sent() {
    let keep_alive = Duration::from_millis(20);
    // The target has no timer.
    let (mut controller, shared) = idle(false, Options { keep_alive, ..Options::default() });
    assert_eq!(shared.kato_ms.load(Ordering::SeqCst), 20);
    // The host asks for no timer.
    let no_timer = Options { keep_alive: Duration::ZERO, ..Options::default() };
    let (mut without, other) = idle(true, no_timer);
    assert_eq!(other.kato_ms.load(Ordering::SeqCst), 0);
    std::thread::sleep(5 * keep_alive);
    for (controller, shared) in [(&mut controller, shared), (&mut without, other)] {
        assert_eq!(shared.keep_alives.load(Ordering::SeqCst), 0);
        assert!(controller.check_connected());
    }
}

#[test]
fn a_target_may_refuse_the_timer() {
    let (address, shared) = fake_target::start();
    shared.refuses_timer.store(true, Ordering::SeqCst);
    let mut controller = Controller::connect(&url(address), Options::default()).unwrap();
    assert_eq!(shared.kato_ms.load(Ordering::SeqCst), 0);
    assert_eq!(controller.active_namespaces().unwrap(), [1]);
}

/// The thread does not poll for longer than the command timeout: answers that have arrived
/// meanwhile are in time.
#[test]
fn answers_that_arrived_before_a_late_poll_are_in_time() {
    const READS: u64 = 60;
    // After the pause, the target has an eighth of this to send what did not fit the socket.
    let command_timeout = Duration::from_secs(4);
    let (_controller, mut lane, _) = connect(Options { command_timeout, ..Options::default() });
    for round in 0..2 {
        for tag in 0..READS {
            let read = Request::Read { nsid: 1, offset_bytes: 0, length_bytes: 8192 };
            lane.submit(tag, read).unwrap();
        }
        lane.flush_doorbell().unwrap();
        std::thread::sleep(command_timeout * 3 / 2);
        while lane.requests_in_flight() > 0 {
            let waited = lane.wait(command_timeout, &mut |done| assert!(done.result.is_ok()));
            assert!(waited.is_ok(), "round {round}: {waited:?}");
        }
    }
}

#[test]
fn a_target_that_answers_no_keep_alive_is_given_up() {
    let options = Options {
        keep_alive: Duration::from_millis(600),
        command_timeout: Duration::from_secs(2),
        ..Options::default()
    };
    let (mut controller, shared) = idle(true, options);
    shared.deaf.store(true, Ordering::SeqCst);
    until("the end of the connection", || !controller.is_connected());
    let error = controller.active_namespaces().unwrap_err();
    assert!(matches!(error, Error::Submit(SubmitError::NotConnected)), "{error}");
    shared.deaf.store(false, Ordering::SeqCst);
    controller.reconnect().unwrap();
    assert_eq!(controller.active_namespaces().unwrap(), [1]);
}
