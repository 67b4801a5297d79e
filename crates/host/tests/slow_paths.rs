//! Two paths, of which one is slow to answer.

mod fake_target;
mod two_paths;
#[path = "../../bpfof/tests/wait/mod.rs"]
mod wait;

use bpfof_host::{Lane, Options, PathState, Request};
use fake_target::Shared;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use two_paths::{PATIENCE, connect_with_ana, is_in, set};
use wait::until;

/// Submits a read and waits until the request with this tag has ended; returns the ends of all.
fn read_until(lane: &mut Lane, tag: u64, last: u64) -> Vec<(u64, bool)> {
    let (begun, mut ends) = (Instant::now(), Vec::new());
    lane.submit(tag, Request::Read { nsid: 1, offset_bytes: 0, length_bytes: 512 }).unwrap();
    lane.flush_doorbell().unwrap();
    while !ends.iter().any(|(tag, _)| *tag == last) {
        assert!(begun.elapsed() < PATIENCE, "{last} has not ended");
        lane.wait(PATIENCE, &mut |done| ends.push((done.tag, done.result.is_ok()))).unwrap();
    }
    ends
}

/// Submits a read that a target does not answer.
fn read_in_vain(lane: &mut Lane, target: &Shared) {
    set(&target.silent, true);
    lane.submit(7, Request::Read { nsid: 1, offset_bytes: 0, length_bytes: 512 }).unwrap();
    lane.flush_doorbell().unwrap();
    until("it is sent", || {
        lane.poll(&mut |done| panic!("{done:?}")).unwrap();
        target.unanswered.load(Ordering::SeqCst) > 0
    });
    set(&target.silent, false);
}

#[test]
fn a_slow_request_does_not_keep_others_from_a_usable_path() {
    let options = Options { command_timeout: Duration::from_secs(600), ..Options::default() };
    let (controller, mut lane, targets) = connect_with_ana(options, 1);
    targets[0].change_ana(2);
    is_in(&controller, 0, PathState::NonOptimized);
    lane.write(1, 0, &[1; 512]).unwrap();
    read_in_vain(&mut lane, &targets[1]);
    // The lane would return to the first path if it were empty.
    targets[1].change_ana(2);
    is_in(&controller, 1, PathState::NonOptimized);
    targets[0].change_ana(1);
    is_in(&controller, 0, PathState::Optimized);
    assert_eq!(read_until(&mut lane, 8, 8), [(8, true)]);
}

#[test]
fn slow_requests_on_a_path_that_is_not_usable_any_more_are_sent_again() {
    let options = Options { command_timeout: Duration::from_secs(600), ..Options::default() };
    let (controller, mut lane, targets) = connect_with_ana(options, 1);
    lane.write(1, 0, &[1; 512]).unwrap();
    read_in_vain(&mut lane, &targets[0]);
    targets[0].change_ana(3);
    is_in(&controller, 0, PathState::Inaccessible);
    let mut ends = read_until(&mut lane, 8, 8);
    while ends.len() < 2 {
        lane.wait(PATIENCE, &mut |done| ends.push((done.tag, done.result.is_ok()))).unwrap();
    }
    ends.sort_unstable();
    assert_eq!(ends, [(7, true), (8, true)]);
}
