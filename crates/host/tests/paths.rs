//! Two paths to small targets that misbehave.

mod fake_target;

use bpfof_host::{
    Controller, Error, FunctionId, Lane, LostReason, Options, PathState, Request, RequestError,
    Status,
};
use fake_target::{NQN, Shared};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn set(flag: &AtomicBool, value: bool) {
    flag.store(value, Ordering::SeqCst);
}

/// Two ordinary targets, which say that they have the same namespace, and a lane by the first.
fn connect(options: Options) -> (Controller, Lane, [Arc<Shared>; 2]) {
    connect_with_ana(options, 0)
}

/// The same, with the namespace in an ANA state.
fn connect_with_ana(options: Options, state: u8) -> (Controller, Lane, [Arc<Shared>; 2]) {
    let [(a, first), (b, second)] = [fake_target::start(), fake_target::start()];
    let targets = [first, second];
    for target in &targets {
        set(&target.no_pushdown, true);
        target.ana.store(state, Ordering::SeqCst);
    }
    let url = format!("nvme-tcp://{a},{b}/{NQN}").parse().unwrap();
    let controller = Controller::connect(&url, options).unwrap();
    for path in 0..2 {
        is_in(&controller, path, PathState::Optimized);
    }
    let lane = controller.open_lane().unwrap();
    (controller, lane, targets)
}

/// Waits until a path is in a state.
fn is_in(controller: &Controller, path: usize, state: PathState) {
    let end = Instant::now() + Duration::from_secs(20);
    while controller.paths()[path].state != state {
        assert!(Instant::now() < end, "path {path} is not {state}: {:?}", controller.paths());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn first_byte(target: &Shared) -> u8 {
    target.memory.lock().unwrap()[0]
}

#[test]
fn a_path_that_refuses_is_left_and_used_again_later() {
    let (controller, mut lane, targets) = connect(Options::default());
    lane.write(1, 0, &[1; 512]).unwrap();
    assert_eq!((first_byte(&targets[0]), first_byte(&targets[1])), (1, 0));
    set(&targets[0].inaccessible, true);
    // It was not carried out, so that a write may be sent again at once.
    lane.write(1, 0, &[2; 512]).unwrap();
    assert_eq!((first_byte(&targets[0]), first_byte(&targets[1])), (1, 2));
    let mut data = [0; 512];
    lane.read(1, 0, &mut data).unwrap();
    assert_eq!(data, [2; 512]);
    let first = &controller.paths()[0];
    assert!(first.state == PathState::Inaccessible && !first.is_preferred, "{first:?}");
    let why = first.reason.as_deref().unwrap();
    assert!(why.contains("Asymmetric Access Inaccessible"), "{why}");
    set(&targets[0].inaccessible, false);
    is_in(&controller, 0, PathState::Optimized);
    lane.write(1, 0, &[3; 512]).unwrap();
    assert_eq!((first_byte(&targets[0]), first_byte(&targets[1])), (3, 2));
}

#[test]
fn events_tell_which_path_to_use() {
    let (controller, mut lane, targets) = connect_with_ana(Options::default(), 1);
    let mut written = 0;
    let mut expect_at = |lane: &mut Lane, target: usize| {
        written += 1;
        lane.write(1, 0, &[written; 512]).unwrap();
        assert_eq!(first_byte(&targets[target]), written, "it goes by path {target}");
    };
    expect_at(&mut lane, 0);
    // No request has met it yet.
    targets[0].change_ana(3);
    is_in(&controller, 0, PathState::Inaccessible);
    expect_at(&mut lane, 1);
    targets[0].change_ana(2);
    is_in(&controller, 0, PathState::NonOptimized);
    expect_at(&mut lane, 1);
    targets[1].change_ana(0xF);
    is_in(&controller, 1, PathState::Change);
    expect_at(&mut lane, 0);
    targets[1].change_ana(1);
    is_in(&controller, 1, PathState::Optimized);
    expect_at(&mut lane, 1);
    targets[0].change_ana(1);
    is_in(&controller, 0, PathState::Optimized);
    expect_at(&mut lane, 0);
    assert!(controller.paths()[0].is_preferred && !controller.paths()[1].is_preferred);
}

#[test]
fn what_all_paths_refuse_ends_with_their_status() {
    let command_timeout = Duration::from_millis(300);
    let (_controller, mut lane, targets) =
        connect(Options { command_timeout, ..Options::default() });
    targets.iter().for_each(|target| set(&target.inaccessible, true));
    let error = lane.read(1, 0, &mut [0; 512]).unwrap_err();
    let Error::Command { command: "Read", source } = error else { panic!("{error}") };
    assert_eq!(source.status, Status::ANA_INACCESSIBLE);
}

#[test]
fn a_request_that_ends_each_connection_ends_as_lost() {
    let (_controller, mut lane, targets) = connect(Options::default());
    targets.iter().for_each(|target| set(&target.hang_up, true));
    let begun = Instant::now();
    let error = lane.read(1, 0, &mut [0; 512]).unwrap_err();
    assert!(matches!(error, Error::Lost(_)), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(10));
    targets.iter().for_each(|target| set(&target.hang_up, false));
    lane.read(1, 0, &mut [0; 512]).unwrap();
}

/// These targets have no keep-alive timer: they may carry a write out at any time.
#[test]
fn a_write_that_a_target_may_carry_out_for_ever_ends_as_unknown() {
    let (_controller, mut lane, targets) = connect(Options::default());
    set(&targets[0].hang_up, true);
    let data = [9; 512];
    let write = Request::Write { nsid: 1, offset_bytes: 0, data: &data, fua: false };
    lane.submit(1, write).unwrap();
    lane.submit(2, Request::Read { nsid: 1, offset_bytes: 512, length_bytes: 512 }).unwrap();
    let mut ends = Vec::new();
    while lane.requests_in_flight() > 0 {
        lane.wait(Duration::from_secs(1), &mut |completion| {
            ends.push((completion.tag, completion.result.err()));
        })
        .unwrap();
    }
    ends.sort_unstable_by_key(|(tag, _)| *tag);
    let [(1, Some(RequestError::Unknown(reason))), (2, None)] = ends[..] else {
        panic!("{ends:?}")
    };
    assert!(matches!(reason, LostReason::Closed | LostReason::Io(_)), "{reason}");
    assert_eq!(first_byte(&targets[1]), 0, "it was not sent again");
}

/// Their admin queues work, so that each is the best path again soon after it was lost.
#[test]
fn requests_end_although_there_is_always_a_path_that_cannot_be_used() {
    let (connect_timeout, command_timeout) = (Duration::from_secs(1), Duration::from_millis(100));
    let options = Options { connect_timeout, command_timeout, ..Options::default() };
    let (_controller, mut lane, targets) = connect(options);
    for target in &targets {
        set(&target.no_lanes, true);
        set(&target.hang_up, true);
    }
    let begun = Instant::now();
    let error = lane.read(1, 0, &mut [0; 512]).unwrap_err();
    assert!(matches!(error, Error::Lost(_)), "{error}");
    let waited = begun.elapsed();
    assert!(waited < connect_timeout * 3, "{waited:?}");
    for target in &targets {
        set(&target.no_lanes, false);
        set(&target.hang_up, false);
    }
    let end = Instant::now() + Duration::from_secs(20);
    while let Err(error) = lane.read(1, 0, &mut [0; 512]) {
        assert!(Instant::now() < end, "{error}");
    }
}

#[test]
fn commands_end_although_there_is_always_a_path_that_does_not_answer_them() {
    let timeout = Duration::from_millis(500);
    let options =
        Options { connect_timeout: timeout, command_timeout: timeout, ..Options::default() };
    let (mut controller, _lane, targets) = connect(options);
    for target in &targets {
        set(&target.no_pushdown, false);
        set(&target.no_functions, true);
    }
    for loads in [false, true] {
        let begun = Instant::now();
        let error = if loads {
            controller.load_function(b"object", 0).unwrap_err()
        } else {
            controller.last_fault(FunctionId(1)).unwrap_err()
        };
        // Each path was tried.
        let is_timeout = matches!(error, Error::Lost(LostReason::Timeout { .. }));
        assert!(is_timeout, "{error}");
        let waited = begun.elapsed();
        assert!((timeout * 2..timeout * 5).contains(&waited), "{waited:?}");
        for path in 0..2 {
            is_in(&controller, path, PathState::Optimized);
        }
    }
}
