//! A lane that threads share, against a small target, over real sockets.

mod fake_target;

use bpfof_host::{
    Caravan, Controller, Error, LostReason, Options, PushdownCall, PushdownLimits, Request,
    SharedLane, SubmitError, TargetUrl, Urgency,
};
use fake_target::{CALL, NQN, Shared};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

fn connect(options: Options, caravan: Caravan) -> (Controller, SharedLane, Arc<Shared>) {
    let (address, shared) = fake_target::start();
    let url: TargetUrl = format!("nvme-tcp://{address}/{NQN}").parse().unwrap();
    let controller = Controller::connect(&url, options).unwrap();
    let lane = SharedLane::new(controller.open_lane().unwrap(), caravan).unwrap();
    (controller, lane, shared)
}

/// Each thread has blocks of its own, writes them, and must read back its last writes.
fn write_and_read(lane: &SharedLane, threads: u64, rounds: u64) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let mut data = Vec::new();
                for round in 0..rounds {
                    let block = [(thread * 31 + round) as u8; 512];
                    let offset_bytes = (thread * 8 + round % 8) * 512;
                    lane.write(1, offset_bytes, &block).unwrap();
                    lane.read(1, offset_bytes, 512, &mut data).unwrap();
                    assert_eq!(data, block, "thread {thread}, round {round}");
                }
                lane.flush(1).unwrap();
            });
        }
    });
}

#[test]
fn threads_get_their_own_answers() {
    let never = Caravan { max_delay_us: 0, ..Caravan::default() };
    let alone = Caravan { max_requests: 1, ..Caravan::default() };
    for caravan in [Caravan::default(), never, alone] {
        for options in [Options::default(), Options { spin_us: 0, ..Options::default() }] {
            let (_controller, lane, _) = connect(options, caravan);
            write_and_read(&lane, 16, 50);
            let counters = lane.counters();
            assert_eq!(counters.requests, 16 * (2 * 50 + 1));
            assert!(counters.caravans <= counters.requests);
            if caravan == alone {
                assert_eq!(counters.caravans, counters.requests);
            }
            assert!(counters.bytes_sent > 16 * 50 * 512);
            assert!(counters.bytes_received > 16 * 50 * 512);
        }
    }
}

/// More threads than the queue has slots.
#[test]
fn a_crowd_waits_for_room() {
    let options = Options { queue_depth: 4, ..Options::default() };
    let (_controller, lane, _) = connect(options, Caravan::default());
    write_and_read(&lane, 40, 10);
}

/// Requests that many threads submit at the same time leave together, however slow the machine is.
#[test]
fn requests_of_threads_share_sends() {
    let options = Options { spin_us: 0, ..Options::default() };
    let patient = Caravan { max_delay_us: 20_000, ..Caravan::default() };
    let (_controller, lane, _) = connect(options, patient);
    write_and_read(&lane, 32, 100);
    let counters = lane.counters();
    assert!(counters.caravans < counters.requests, "{counters:?}");
}

#[test]
fn chains_and_refusals() {
    let (_controller, lane, shared) = connect(Options::default(), Caravan::default());
    let call = CALL;
    let mut answer = b"old".to_vec();
    assert_eq!(lane.pushdown(&call, &mut answer).unwrap().hops, 3);
    assert_eq!(answer, b"desserts");
    shared.interruptions.store(2, Ordering::SeqCst);
    assert_eq!(lane.pushdown(&call, &mut answer).unwrap().hops, 3);
    assert_eq!((&answer[..], shared.interruptions.load(Ordering::SeqCst)), (&b"desserts"[..], 0));
    shared.interruptions.store(1, Ordering::SeqCst);
    let error = lane.call(Request::Pushdown(call), Urgency::Normal, &mut answer).unwrap_err();
    assert!(matches!(error, Error::Command { source, .. } if source.is_interrupted()), "{error}");
    let error = lane.pushdown(&PushdownCall { function: 1, ..call }, &mut answer).unwrap_err();
    assert!(error.to_string().starts_with("Pushdown: Unknown Function"), "{error}");
    assert!(answer.is_empty());
    let error = lane.read(1, 3, 512, &mut answer).unwrap_err();
    assert!(matches!(error, Error::Submit(SubmitError::Unaligned { block_bytes: 512 })), "{error}");
    let flush = Request::Flush { nsid: 1 };
    lane.call(flush, Urgency::NoDelay, &mut answer).unwrap();
}

/// When the connection is lost, all calls in flight end and later ones are refused; after
/// reconnecting the lane works again.
#[test]
fn a_lost_connection_ends_every_call() {
    let (controller, lane, shared) = connect(Options::default(), Caravan::default());
    write_and_read(&lane, 4, 5);
    shared.hang_up.store(true, Ordering::SeqCst);
    let lost = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| match lane.read(1, 0, 512, &mut Vec::new()).unwrap_err() {
                Error::Lost(LostReason::Closed | LostReason::Io(_)) => {
                    lost.fetch_add(1, Ordering::Relaxed);
                }
                Error::Submit(SubmitError::NotConnected) => {}
                error => panic!("{error}"),
            });
        }
    });
    assert!(lost.into_inner() > 0);
    let error = lane.flush(1).unwrap_err();
    assert!(matches!(error, Error::Submit(SubmitError::NotConnected)), "{error}");
    shared.hang_up.store(false, Ordering::SeqCst);
    lane.reconnect(&controller).unwrap();
    write_and_read(&lane, 4, 5);
}

#[test]
fn a_silent_target_is_given_up() {
    let options = Options { command_timeout: Duration::from_secs(1), ..Options::default() };
    let (_controller, lane, shared) = connect(options, Caravan::default());
    shared.silent.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let error = lane.read(1, 0, 512, &mut Vec::new()).unwrap_err();
                assert!(matches!(
                    error,
                    Error::Lost(LostReason::Timeout { command: "Read", .. })
                        | Error::Submit(SubmitError::NotConnected)
                ));
            });
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(20));
    // The lane's connection ends although the lane still exists; the controller's connection stays.
    while shared.connections.load(Ordering::SeqCst) > 1 {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A held request leaves when no other request comes, however long the delay.
#[test]
fn held_requests_leave_when_no_other_comes() {
    let an_hour = 3_600_000_000;
    let caravan = Caravan { max_requests: 1000, max_bytes: 1 << 30, max_delay_us: an_hour };
    let options = Options { spin_us: 0, ..Options::default() };
    let (_controller, lane, _) = connect(options, caravan);
    write_and_read(&lane, 7, 200);
}

/// Pretend that the target supports vectors: it refuses the first one, and gets chains one by one
/// from then on.
#[test]
fn a_target_without_vectors_gets_chains_one_by_one() {
    let options = Options { spin_us: 0, queue_depth: 12, ..Options::default() };
    let patient = Caravan { max_delay_us: 20_000, ..Caravan::default() };
    let (mut controller, mut lane, _) = connect(options, patient);
    let limits = controller.pushdown_limits().unwrap();
    lane.gather(&PushdownLimits { vector_chains: 256, vector_bytes: 64 << 10, ..limits });
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                let mut answer = Vec::new();
                for _ in 0..100 {
                    assert_eq!(lane.pushdown(&CALL, &mut answer).unwrap().hops, 3);
                    assert_eq!(answer, b"desserts");
                }
            });
        }
    });
    let counters = lane.counters();
    assert!((1..20).contains(&counters.vectors), "{counters:?}");
}
