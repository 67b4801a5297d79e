//! Two paths, each to a small target that can misbehave.

mod fake_target;
mod two_paths;
#[path = "../../bpfof/tests/wait/mod.rs"]
mod wait;

use bpfof_host::{
    Controller, Error, Extent, FileMapObject, FunctionId, FunctionReportEntry, Lane, LostReason,
    Options, PathState, Request, RequestError, Sqe, Status, SubmitError,
};
use bpfof_nvme::opcode::admin;
use bpfof_nvme::vendor_specific::{FunctionDigest, MapCommand, MapReportEntry};
use bpfof_nvme::{AdminCommand, ReportContent};
use fake_target::{Answer, Shared};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use two_paths::{PATIENCE, connect, connect_with_ana, is_in, set, start};
use wait::until;

fn first_byte(target: &Shared) -> u8 {
    target.memory.lock().unwrap()[0]
}

#[test]
fn a_path_that_refuses_is_left_and_used_again_later() {
    let (controller, mut lane, targets) = connect(Options::default());
    lane.write(1, 0, &[1; 512]).unwrap();
    assert_eq!((first_byte(&targets[0]), first_byte(&targets[1])), (1, 0));
    set(&targets[0].inaccessible, true);
    // The target did not carry the write out, so that it may be sent again at once.
    lane.write(1, 0, &[2; 512]).unwrap();
    assert_eq!((first_byte(&targets[0]), first_byte(&targets[1])), (1, 2));
    // A second later the first path is tried again, and refuses again.
    until("it is left", || {
        let mut data = [0; 512];
        lane.read(1, 0, &mut data).unwrap();
        assert_eq!(data, [2; 512]);
        let first = controller.paths().swap_remove(0);
        let is_why = |why: String| why.contains("Asymmetric Access Inaccessible");
        first.state == PathState::Inaccessible
            && !first.is_preferred
            && first.reason.is_some_and(is_why)
    });
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
    // No request has failed with this state yet.
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
fn a_target_that_takes_no_requests_for_events_is_asked() {
    let (url, targets) = start();
    for target in &targets {
        set(&target.no_pushdown, true);
        set(&target.refuses_events, true);
        target.ana.store(1, Ordering::SeqCst);
    }
    let controller = Controller::connect(&url, Options::default()).unwrap();
    (0..2).for_each(|path| is_in(&controller, path, PathState::Optimized));
    targets[0].change_ana(2);
    is_in(&controller, 0, PathState::NonOptimized);
    let requests = targets.each_ref().map(|target| target.event_requests.load(Ordering::SeqCst));
    assert_eq!(requests, [1, 1]);
}

#[test]
fn constant_events_cause_limited_event_requests() {
    let (_controller, mut lane, targets) = connect_with_ana(Options::default(), 1);
    set(&targets[0].tells_always, true);
    targets[0].change_ana(1);
    let (begun, before) = (Instant::now(), targets[0].event_requests.load(Ordering::SeqCst));
    let come = || targets[0].event_requests.load(Ordering::SeqCst) - before;
    until("two requests", || come() >= 2);
    std::thread::sleep(Duration::from_millis(500));
    let came = come();
    let most = begun.elapsed().as_millis() as usize / 10 + 2;
    assert!(came <= most, "{came} requests, and {most} at most");
    lane.write(1, 0, &[1; 512]).unwrap();
}

#[test]
fn a_request_that_all_paths_refuse_ends_with_their_status() {
    // A request waits this long for a path, and no target is silent this long.
    let command_timeout = Duration::from_secs(3);
    let (_controller, mut lane, targets) =
        connect(Options { command_timeout, ..Options::default() });
    targets.iter().for_each(|target| set(&target.inaccessible, true));
    let error = lane.read(1, 0, &mut [0; 512]).unwrap_err();
    let Error::Command { command: "Read", source } = error else { panic!("{error}") };
    assert_eq!(source.status, Status::ANA_INACCESSIBLE);
}

/// By events, each path is soon usable again: before the other has refused the request.
#[test]
fn a_request_that_paths_refuse_in_turn_ends_with_their_status() {
    let command_timeout = Duration::from_secs(3);
    let options = Options { command_timeout, ..Options::default() };
    let (_controller, mut lane, targets) = connect_with_ana(options, 1);
    for target in &targets {
        target.refusal_ms.store(100, Ordering::SeqCst);
        set(&target.inaccessible, true);
        set(&target.tells_always, true);
        target.change_ana(1);
    }
    lane.submit(1, Request::Read { nsid: 1, offset_bytes: 0, length_bytes: 512 }).unwrap();
    let (begun, mut ends) = (Instant::now(), Vec::new());
    while ends.is_empty() {
        assert!(begun.elapsed() < PATIENCE, "it is sent again and again");
        lane.wait(Duration::from_secs(1), &mut |completion| ends.push(completion.result.err()))
            .unwrap();
    }
    let [Some(RequestError::Command(error))] = ends[..] else { panic!("{ends:?}") };
    assert_eq!(error.status, Status::ANA_INACCESSIBLE);
}

#[test]
fn a_request_that_ends_each_connection_ends_as_lost() {
    let (_controller, mut lane, targets) = connect(Options::default());
    targets.iter().for_each(|target| set(&target.hang_up, true));
    let begun = Instant::now();
    let error = lane.read(1, 0, &mut [0; 512]).unwrap_err();
    assert!(matches!(error, Error::Lost(_)), "{error}");
    assert!(begun.elapsed() < PATIENCE);
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

/// The targets' admin queues work, so that each path is soon the best again after it was lost.
#[test]
fn requests_end_although_there_is_always_a_path_that_cannot_be_used() {
    let timeout = Duration::from_secs(1);
    let options =
        Options { connect_timeout: timeout, command_timeout: timeout, ..Options::default() };
    let (_controller, mut lane, targets) = connect(options);
    for target in &targets {
        set(&target.no_lanes, true);
        set(&target.hang_up, true);
    }
    let begun = Instant::now();
    let error = lane.read(1, 0, &mut [0; 512]).unwrap_err();
    assert!(matches!(error, Error::Lost(_)), "{error}");
    assert!(begun.elapsed() < PATIENCE);
    for target in &targets {
        set(&target.no_lanes, false);
        set(&target.hang_up, false);
    }
    until("it reads again", || lane.read(1, 0, &mut [0; 512]).is_ok());
}

#[test]
fn commands_end_although_there_is_always_a_path_that_does_not_answer_them() {
    let timeout = Duration::from_secs(1);
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
        // The command was tried on each path.
        let is_timeout = matches!(error, Error::Lost(LostReason::Timeout { .. }));
        assert!(is_timeout, "{error}");
        let waited = begun.elapsed();
        assert!((timeout * 2..PATIENCE).contains(&waited), "{waited:?}");
        for path in 0..2 {
            is_in(&controller, path, PathState::Optimized);
        }
    }
}

const BUSY: (Status, u32) = (Status::CONNECT_CONTROLLER_BUSY, 0);

#[test]
fn a_lane_that_is_refused_ends_no_other() {
    let (controller, mut lane, targets) = connect(Options::default());
    lane.write(1, 0, &[1; 512]).unwrap();
    targets.iter().for_each(|target| *target.refuses_lanes.lock().unwrap() = Some(BUSY));
    let error = controller.open_lane().unwrap_err();
    let Error::Command { command: "Connect", source } = error else { panic!("{error}") };
    assert_eq!(source.status, Status::CONNECT_CONTROLLER_BUSY);
    let qid = lane.qid();
    lane.write(1, 0, &[2; 512]).unwrap();
    assert_eq!((first_byte(&targets[0]), first_byte(&targets[1])), (2, 0));
    assert_eq!(lane.qid(), qid);
    let states = controller.paths().into_iter().map(|path| path.state);
    assert!(states.eq([PathState::Optimized; 2]), "{:?}", controller.paths());
}

#[test]
fn a_lane_uses_a_path_that_does_not_refuse_it() {
    let (controller, mut lane, targets) = connect_with_ana(Options::default(), 1);
    targets[0].change_ana(3);
    is_in(&controller, 0, PathState::Inaccessible);
    lane.write(1, 0, &[1; 512]).unwrap();
    *targets[0].refuses_lanes.lock().unwrap() = Some(BUSY);
    targets[0].change_ana(1);
    is_in(&controller, 0, PathState::Optimized);
    lane.write(1, 0, &[2; 512]).unwrap();
    assert_eq!((first_byte(&targets[0]), first_byte(&targets[1])), (0, 2));
    assert!(controller.paths()[0].is_preferred);
    // The lane asks the first path again.
    *targets[0].refuses_lanes.lock().unwrap() = None;
    until("it comes back", || {
        lane.write(1, 0, &[3; 512]).unwrap();
        first_byte(&targets[0]) == 3
    });
}

#[test]
fn a_target_that_closes_new_connections_keeps_existing_ones() {
    let (controller, mut lane, targets) = connect(Options::default());
    set(&targets[0].full, true);
    let error = controller.open_lane().unwrap_err();
    assert!(matches!(error, Error::NoGreeting { .. }), "{error}");
    lane.write(1, 0, &[1; 512]).unwrap();
    assert_eq!((first_byte(&targets[0]), first_byte(&targets[1])), (1, 0));
    assert_eq!(controller.paths()[0].state, PathState::Optimized);
}

#[test]
fn a_lane_keeps_its_connection_until_a_better_one_is_there() {
    let (controller, mut lane, targets) = connect_with_ana(Options::default(), 1);
    targets[0].change_ana(3);
    is_in(&controller, 0, PathState::Inaccessible);
    lane.write(1, 0, &[1; 512]).unwrap();
    targets.iter().for_each(|target| *target.refuses_lanes.lock().unwrap() = Some(BUSY));
    targets[0].change_ana(1);
    is_in(&controller, 0, PathState::Optimized);
    let begun = Instant::now();
    lane.write(1, 0, &[2; 512]).unwrap();
    assert_eq!((first_byte(&targets[0]), first_byte(&targets[1])), (0, 2));
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
}

/// As without a usable path: after the first request has waited in vain, later ones fail at once.
#[test]
fn a_lane_that_each_path_refuses_keeps_requests_no_longer() {
    let command_timeout = Duration::from_secs(3);
    let (_controller, mut lane, targets) =
        connect(Options { command_timeout, ..Options::default() });
    for target in &targets {
        *target.refuses_lanes.lock().unwrap() = Some(BUSY);
        set(&target.hang_up, true);
    }
    for (least, most) in
        [(command_timeout / 2, PATIENCE), (Duration::ZERO, command_timeout * 9 / 10)]
    {
        let begun = Instant::now();
        let error = lane.read(1, 0, &mut [0; 512]).unwrap_err();
        assert!(matches!(error, Error::Lost(_)), "{error}");
        assert!((least..most).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }
    // The lane continues once the targets have room.
    for target in &targets {
        *target.refuses_lanes.lock().unwrap() = None;
        set(&target.hang_up, false);
    }
    until("it reads again", || lane.read(1, 0, &mut [0; 512]).is_ok());
}

/// The target answers Connect Invalid Parameters, CNTLID, as after its process was replaced by another.
#[test]
fn a_path_whose_controller_is_gone_is_lost() {
    let (controller, _lane, targets) = connect(Options::default());
    let unknown = (Status::CONNECT_INVALID_PARAMETERS, 1 << 16 | 16);
    *targets[0].refuses_lanes.lock().unwrap() = Some(unknown);
    let mut lane = controller.open_lane().unwrap();
    lane.write(1, 0, &[1; 512]).unwrap();
    assert_eq!((first_byte(&targets[0]), first_byte(&targets[1])), (0, 1));
}

#[test]
fn commands_that_must_not_run_twice_are_not_resent() {
    let (url, targets) = start();
    for target in &targets {
        set(&target.no_pushdown, true);
        set(&target.has_timer, true);
    }
    // A write would be sent again after this time and a second.
    let path_timeout = PATIENCE;
    let controller =
        Controller::connect(&url, Options { path_timeout, ..Options::default() }).unwrap();
    (0..2).for_each(|path| is_in(&controller, path, PathState::Optimized));
    let mut lane = controller.open_lane().unwrap();
    set(&targets[0].hang_up, true);
    let sqe = Sqe::new(0xC1, 1);
    lane.submit(1, Request::Raw { sqe, data_out: &[7; 512], data_in_max_bytes: 0 }).unwrap();
    let (mut end, begun) = (None, Instant::now());
    while end.is_none() {
        assert!(begun.elapsed() < path_timeout);
        lane.wait(Duration::from_secs(1), &mut |completion| end = Some(completion.result.err()))
            .unwrap();
    }
    assert!(matches!(end, Some(Some(RequestError::Unknown(_)))), "{end:?}");
}

/// Commands on a connection that is being set up restart the target's keep-alive timer. So that connection ends with
/// the others.
#[test]
fn a_write_does_not_wait_for_a_connection_that_is_being_made() {
    let (url, targets) = start();
    for target in &targets {
        set(&target.no_pushdown, true);
        set(&target.has_timer, true);
    }
    let (path_timeout, connect_timeout) = (Duration::from_secs(2), PATIENCE);
    let options = Options { path_timeout, connect_timeout, ..Options::default() };
    let controller = Controller::connect(&url, options).unwrap();
    (0..2).for_each(|path| is_in(&controller, path, PathState::Optimized));
    let mut lane = controller.open_lane().unwrap();
    set(&targets[0].no_lanes, true);
    let before = targets[0].connections.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| controller.open_lane());
        while targets[0].connections.load(Ordering::SeqCst) == before {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The path does not come back, either.
        set(&targets[0].deaf, true);
        set(&targets[0].hang_up, true);
        let begun = Instant::now();
        lane.write(1, 0, &[1; 512]).unwrap();
        // Not before the first target must have given up this host, plus a second.
        let waited = begun.elapsed();
        assert!((path_timeout + Duration::from_secs(1)..PATIENCE).contains(&waited), "{waited:?}");
        assert_eq!((first_byte(&targets[0]), first_byte(&targets[1])), (0, 1));
        // The new lane continues on the other path.
        opened.join().unwrap().unwrap().flush(1).unwrap();
    });
}

/// Two targets, of which the first answers only later, and a controller that has connected to the second one only.
fn connect_to_second(prepare: impl FnOnce(&[Arc<Shared>; 2])) -> (Controller, [Arc<Shared>; 2]) {
    let (url, targets) = start();
    for target in &targets {
        set(&target.no_pushdown, true);
    }
    set(&targets[0].deaf, true);
    prepare(&targets);
    let connect_timeout = Duration::from_secs(2);
    let controller =
        Controller::connect(&url, Options { connect_timeout, ..Options::default() }).unwrap();
    is_in(&controller, 1, PathState::Optimized);
    set(&targets[0].deaf, false);
    (controller, targets)
}

#[test]
fn a_path_without_the_namespace_gives_way_to_one_that_has_it() {
    let (mut controller, targets) =
        connect_to_second(|targets| set(&targets[1].no_namespace, true));
    assert_eq!(controller.namespaces(), []);
    is_in(&controller, 0, PathState::Optimized);
    is_in(&controller, 1, PathState::Lost);
    let why = controller.paths()[1].reason.clone().unwrap();
    assert!(why.contains("does not have the namespace"), "{why}");
    controller.refresh_namespaces().unwrap();
    controller.open_lane().unwrap().write(1, 0, &[1; 512]).unwrap();
    set(&targets[1].no_namespace, false);
    is_in(&controller, 1, PathState::Optimized);
}

#[test]
fn lanes_send_no_more_data_than_any_path_takes() {
    let (controller, targets) =
        connect_to_second(|targets| targets[0].mdts.store(2, Ordering::SeqCst));
    is_in(&controller, 0, PathState::Optimized);
    assert_eq!(controller.max_transfer_bytes(), 8192);
    let mut lane = controller.open_lane().unwrap();
    assert_eq!(lane.max_transfer_bytes(), 8192);
    set(&targets[0].hang_up, true);
    lane.read(1, 0, &mut [0; 64 << 10]).unwrap();
}

/// Sets the installed functions that a target reports: their names, some followed by a colon and the program.
fn has_installed(target: &Shared, programs: &'static [&'static str]) {
    let all = || (1 << 31..).zip(programs);
    let report: Vec<u8> = all()
        .flat_map(|(function, program)| {
            let name = program.split(':').next().unwrap_or_default().into();
            FunctionReportEntry { function, name, ..FunctionReportEntry::default() }.to_bytes()
        })
        .collect();
    let digests: Vec<u8> = all()
        .flat_map(|(function, program)| {
            let digest = std::array::from_fn(|at| *program.as_bytes().get(at).unwrap_or(&0));
            FunctionDigest { function, digest }.to_bytes()
        })
        .collect();
    *target.says.lock().unwrap() = Some(Box::new(move |command| {
        let answer = match command {
            AdminCommand::FunctionReport { content: ReportContent::Entries, .. } => &report,
            AdminCommand::FunctionReport { content: ReportContent::Digests, .. } => &digests,
            _ => return None,
        };
        Some((Status::SUCCESS, answer.len() as u32, 0, answer.clone()))
    }));
}

/// Ends the association on a path, which then reconnects; returns whether it is used again.
fn is_used_again(controller: &Controller, targets: &[Arc<Shared>; 2], path: usize) -> bool {
    set(&targets[path].deaf, true);
    is_in(controller, path, PathState::Lost);
    set(&targets[path].deaf, false);
    let end = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < end, "{:?}", controller.paths());
        std::thread::sleep(Duration::from_millis(1));
        let path = &controller.paths()[path];
        match &path.reason {
            None if path.state == PathState::Optimized => return true,
            Some(reason) if reason.contains("installed function") => return false,
            _ => {}
        }
    }
}

/// Two targets with these installed functions.
fn connect_to_installed(names: &'static [&'static str]) -> (Controller, [Arc<Shared>; 2]) {
    let (url, targets) = start();
    for target in &targets {
        set(&target.has_timer, true);
        has_installed(target, names);
    }
    let (path_timeout, connect_timeout) = (Duration::from_secs(2), Duration::from_secs(2));
    let options = Options { path_timeout, connect_timeout, ..Options::default() };
    let controller = Controller::connect(&url, options).unwrap();
    (0..2).for_each(|path| is_in(&controller, path, PathState::Optimized));
    (controller, targets)
}

#[test]
fn installed_functions_that_a_program_does_not_use_may_change() {
    let (mut controller, targets) = connect_to_installed(&["f", "g"]);
    for path in 0..2 {
        has_installed(&targets[path], &["h", "g"]);
        assert!(is_used_again(&controller, &targets, path));
    }
    assert_eq!(controller.installed_function("g").unwrap(), FunctionId((1 << 31) + 1));
    has_installed(&targets[0], &["i", "g"]);
    assert!(is_used_again(&controller, &targets, 0));
}

#[test]
fn installed_functions_that_a_program_uses_must_be_there() {
    for (programs, is_used) in [
        (&["f"][..], false),
        (&["g", "f"], false),
        (&["f", "g:other"], false),
        (&["f:other", "g", "h"], true),
    ] {
        let (mut controller, targets) = connect_to_installed(&["f", "g"]);
        controller.installed_function("g").unwrap();
        has_installed(&targets[0], programs);
        assert_eq!(is_used_again(&controller, &targets, 0), is_used, "{programs:?}");
    }
}

/// The program can install the function again. Nobody else may have put another in its place.
#[test]
fn an_installed_function_that_is_gone_everywhere_excludes_no_path() {
    let cases = [(&["f", "g"][..], true), (&["f", "h"], false), (&["f", "g:other"], false)];
    // With the other path, and alone.
    for ((programs, is_used), paths) in cases.iter().flat_map(|case| [(case, 2), (case, 1)]) {
        let (mut controller, targets) = connect_to_installed(&["f", "g"]);
        controller.installed_function("g").unwrap();
        targets.iter().for_each(|target| set(&target.deaf, true));
        (0..2).for_each(|path| is_in(&controller, path, PathState::Lost));
        for (path, target) in targets.iter().enumerate().take(paths) {
            has_installed(target, &["f"]);
            set(&target.deaf, false);
            is_in(&controller, path, PathState::Optimized);
        }
        has_installed(&targets[0], programs);
        let found = is_used_again(&controller, &targets, 0);
        assert_eq!(found, *is_used, "{programs:?}, {paths} paths");
    }
}

#[test]
fn a_function_with_a_number_far_away_is_refused() {
    let (url, targets) = start();
    for target in &targets {
        *target.says.lock().unwrap() = Some(Box::new(|command| match command {
            AdminCommand::FunctionLoad(..) => Some((Status::SUCCESS, 0x7FFF_FFFE, 0, vec![])),
            AdminCommand::FunctionUnload { .. } => Some((Status::SUCCESS, 0, 0, vec![])),
            _ => None,
        }));
    }
    let mut controller = Controller::connect(&url, Options::default()).unwrap();
    (0..2).for_each(|path| is_in(&controller, path, PathState::Optimized));
    let error = controller.load_function(b"object", 0).unwrap_err();
    assert!(matches!(error, Error::OtherFunctions(_)), "{error}");
}

#[test]
fn a_path_without_the_installed_function_that_is_looked_up_is_not_used() {
    let (mut controller, targets) = connect_to_installed(&["f", "g"]);
    has_installed(&targets[1], &["h", "g"]);
    assert_eq!(controller.installed_function("g").unwrap(), FunctionId((1 << 31) + 1));
    is_in(&controller, 1, PathState::Optimized);
    assert_eq!(controller.installed_function("f").unwrap(), FunctionId(1 << 31));
    is_in(&controller, 1, PathState::Lost);
    let why = controller.paths()[1].reason.clone().unwrap();
    assert!(why.contains("is \"h\" there, but \"f\" on another path"), "{why}");
    assert_eq!(controller.paths()[0].state, PathState::Optimized);
}

/// The second target takes long to unload a function, while the first is being connected.
#[test]
fn a_path_that_waits_for_another_is_kept_alive() {
    let (url, targets) = start();
    targets.iter().for_each(|target| set(&target.has_timer, true));
    set(&targets[0].full, true);
    let options = Options { path_timeout: Duration::from_secs(32), ..Options::default() };
    let mut controller = Controller::connect(&url, options).unwrap();
    // A target is given up after half of the timeout; Keep Alives are sent every quarter.
    targets[1].slow_ms.store(13_000, Ordering::SeqCst);
    let (begun, ends_after) = (Instant::now(), Duration::from_secs(13));
    std::thread::scope(|scope| {
        let unloading = scope.spawn(|| controller.unload_function(FunctionId(42)));
        set(&targets[0].full, false);
        while targets[0].keep_alives.load(Ordering::SeqCst) == 0 && begun.elapsed() < ends_after {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(begun.elapsed() < ends_after, "no Keep Alive has come meanwhile");
        unloading.join().unwrap().unwrap();
    });
    is_in(&controller, 0, PathState::Optimized);
}

fn map(file: u32, version: u64) -> FileMapObject {
    let extent = Extent { file_offset: 0, device_offset: 512, length_bytes: 512 };
    FileMapObject { file, nsid: 1, version, length_bytes: 512, extents: vec![extent] }
}

/// The current version of each file's map at a target.
fn maps_at(target: &Shared) -> BTreeMap<u32, u64> {
    let mut maps = BTreeMap::new();
    for object in &*target.uploads.lock().unwrap() {
        let FileMapObject { file, version, .. } = FileMapObject::parse(object).unwrap();
        match version {
            0 => maps.remove(&file),
            _ => maps.insert(file, version),
        };
    }
    maps
}

/// The thread that keeps maps of files must not wait for a path with each map.
#[test]
fn setting_file_maps_does_not_wait_for_paths() {
    let (url, targets) = start();
    targets.iter().for_each(|target| set(&target.has_timer, true));
    let (path_timeout, connect_timeout) = (Duration::from_secs(2), Duration::from_secs(1));
    let options = Options { path_timeout, connect_timeout, ..Options::default() };
    let mut controller = Controller::connect(&url, options).unwrap();
    (0..2).for_each(|path| is_in(&controller, path, PathState::Optimized));
    (1..=40).for_each(|file| controller.set_file_map(&map(file, 1)).unwrap());
    targets.iter().for_each(|target| set(&target.deaf, true));
    (0..2).for_each(|path| is_in(&controller, path, PathState::Lost));
    let begun = Instant::now();
    (1..=30).for_each(|file| controller.remove_file_map(1, file).unwrap());
    let error = controller.set_file_map(&map(40, 2)).unwrap_err();
    assert!(matches!(error, Error::NoPath { .. }), "{error}");
    // Waiting for a path with each map would take longer.
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    for (path, target) in targets.iter().enumerate() {
        target.uploads.lock().unwrap().clear();
        set(&target.deaf, false);
        is_in(&controller, path, PathState::Optimized);
        let maps: Vec<u32> = maps_at(target).into_keys().collect();
        assert_eq!(maps, (31..=40).collect::<Vec<u32>>());
    }
}

#[test]
fn maps_are_set_while_a_path_gets_those_that_there_are() {
    let (url, targets) = start();
    set(&targets[0].deaf, true);
    let connect_timeout = Duration::from_secs(2);
    let mut controller =
        Controller::connect(&url, Options { connect_timeout, ..Options::default() }).unwrap();
    is_in(&controller, 1, PathState::Optimized);
    let (files, pause) = (400, Duration::from_millis(10));
    (1..=files).for_each(|file| controller.set_file_map(&map(file, 1)).unwrap());
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    *targets[0].says.lock().unwrap() = Some(Box::new(move |command| {
        if matches!(command, AdminCommand::FileMapSet(_)) {
            count.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(pause);
        }
        None
    }));
    set(&targets[0].deaf, false);
    while sent.load(Ordering::SeqCst) < 10 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut expected: BTreeMap<u32, u64> = (1..=files).map(|file| (file, 1)).collect();
    for file in [1, 2, files, files + 1] {
        controller.set_file_map(&map(file, 2)).unwrap();
        expected.insert(file, 2);
    }
    for file in [2, 3, files - 1] {
        controller.remove_file_map(1, file).unwrap();
        expected.remove(&file);
    }
    // The path has not received all maps yet.
    assert!(sent.load(Ordering::SeqCst) < files as usize);
    is_in(&controller, 0, PathState::Optimized);
    for target in &targets {
        assert_eq!(maps_at(target), expected);
    }
    controller.set_file_map(&map(3, 3)).unwrap();
    assert_eq!(maps_at(&targets[0]).get(&3), Some(&3));
}

/// The answers of a target whose map m has the id `id` and two entries, each on a page of its own. All values are the
/// id.
fn map_answers(id: u8, command: AdminCommand) -> Option<Answer> {
    let map = u32::from(id);
    let AdminCommand::Map(command) = command else { return None };
    Some(match command {
        MapCommand::Report { .. } => {
            let entry = MapReportEntry {
                map,
                kind: 1,
                key_bytes: 1,
                value_bytes: 1,
                max_entries: 2,
                name: "m".into(),
                ..Default::default()
            };
            (Status::SUCCESS, 64, 0, entry.to_bytes().to_vec())
        }
        MapCommand::Get { map: address, .. } if address.map == map => {
            (Status::SUCCESS, 1, 0, vec![id])
        }
        MapCommand::Read { map: address, first_slot, .. } if address.map == map => {
            (Status::SUCCESS, 1 - first_slot, 1, vec![first_slot as u8, id])
        }
        _ => (Status::UNKNOWN_MAP, 0, 0, vec![]),
    })
}

/// The targets give the map different ids.
#[test]
fn a_map_is_read_from_one_target() {
    let (url, targets) = start();
    for (id, target) in [5, 9].into_iter().zip(&targets) {
        let says = move |command| map_answers(id, command);
        *target.says.lock().unwrap() = Some(Box::new(says));
    }
    let mut controller = Controller::connect(&url, Options::default()).unwrap();
    (0..2).for_each(|path| is_in(&controller, path, PathState::Optimized));
    let map = controller.map("m").unwrap();
    targets[0].hangs_up_on.store(admin::MAP_GET, Ordering::SeqCst);
    assert_eq!(controller.map_get(&map, &[0]).unwrap(), Some(vec![9]));
    targets[0].hangs_up_on.store(0, Ordering::SeqCst);
    is_in(&controller, 0, PathState::Optimized);
    assert_eq!(controller.map_get(&map, &[0]).unwrap(), Some(vec![5]));
    // The first target still answers with the first page.
    let first = Arc::clone(&targets[0]);
    let says = move |command: AdminCommand| {
        if matches!(command, AdminCommand::Map(MapCommand::Read { .. })) {
            first.hangs_up_on.store(admin::MAP_READ, Ordering::SeqCst);
        }
        map_answers(5, command)
    };
    *targets[0].says.lock().unwrap() = Some(Box::new(says));
    let entries = controller.map_entries(&map).unwrap();
    let entries: Vec<_> = entries.iter().map(|(key, value)| (key[0], value[0])).collect();
    assert_eq!(entries, [(0, 9), (1, 9)]);
    assert_eq!(targets[0].hangs_up_on.load(Ordering::SeqCst), admin::MAP_READ);
}

/// How many pages this thread has been the first to touch, large pages among them: field `minflt` of proc(5).
fn touched_pages() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let (_, behind_name) = text.rsplit_once(") ").unwrap();
    behind_name.split(' ').nth(7).unwrap().parse().unwrap()
}

#[test]
fn requests_that_are_too_long_are_not_copied() {
    let (_controller, mut lane, _targets) = connect(Options::default());
    // A copy would touch all of it: at least 256 pages, of 2 MiB or less.
    let data = vec![0_u8; 512 << 20];
    let before = touched_pages();
    let write = Request::Write { nsid: 1, offset_bytes: 0, data: &data, fua: false };
    let error = lane.submit(1, write).unwrap_err();
    assert!(matches!(error, SubmitError::TooLong { .. }), "{error}");
    let more = touched_pages() - before;
    assert!(more < 200, "{more} pages");
}
