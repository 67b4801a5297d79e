//! Programs with two paths to one storage while targets are drained, replaced, killed, and cut off.

#[path = "../disk/mod.rs"]
mod disk;
#[path = "../integration/mod.rs"]
mod integration;
mod reading;
#[allow(dead_code)] // A part of it.
#[path = "../../../controller/tests/failover/relay.rs"]
mod relay;
mod rocksdb;
mod rounds;
#[path = "../stop/mod.rs"]
mod stop;
#[path = "../wait/mod.rs"]
mod wait;
mod workers;

use bpfof_host::files::Executor;
use bpfof_host::{PathState, TargetUrl};
use disk::Disk;
use reading::Reading;
use rustix::process::Signal;
use std::time::{Duration, Instant};
use wait::until;

/// Longest pause that a reader may notice while another target works, on a busy machine: shorter than the time after
/// which silence is noticed.
const PAUSE_MAX: Duration = Duration::from_secs(5);
const SILENCE_MAX: Duration = Duration::from_secs(8);
const PATH_TIMEOUT: Duration = Duration::from_secs(2);

#[test]
fn readers_of_files_do_not_notice_that_a_target_dies() {
    let Some(mut disk) = Disk::new("ext4", 64 << 20) else { return };
    let url = TargetUrl { path_timeout: Some(SILENCE_MAX), ..disk.add_path() };
    let mut reading = Reading::new(&disk, &url);
    reading.wait(0, PathState::Optimized);
    reading.wait(1, PathState::Optimized);
    reading.look_up_many();
    for round in 0..3 {
        disk.signal(0, Signal::KILL);
        let longest = reading.look_up_many();
        println!("killed, round {round}: longest lookup {longest:?}");
        assert!(longest < PAUSE_MAX, "a lookup of {longest:?}");
        // The second target learns of the new file when it is back.
        reading.rewrite();
        reading.look_up_many();
        disk.restart_target();
        reading.wait(0, PathState::Optimized);
        reading.look_up_many();
    }
    // A stopped target does not answer.
    disk.signal(0, Signal::STOP);
    let longest = reading.look_up_many();
    println!("stopped: longest lookup {longest:?}");
    assert!(longest < SILENCE_MAX + PAUSE_MAX, "a lookup of {longest:?}");
    disk.signal(0, Signal::CONT);
    reading.wait(0, PathState::Optimized);
    disk.signal(1, Signal::KILL);
    assert!(reading.look_up_many() < PAUSE_MAX);
    reading.wait(1, PathState::Lost);
}

/// Chains run in this process while no target works, and at a target as soon as there is one: with lanes of the
/// reader's own and with shared lanes.
#[test]
fn readers_of_files_come_back_to_a_target() {
    for lanes_max in [0, 1] {
        let Some(mut disk) = Disk::new("ext4", 64 << 20) else { return };
        let url = TargetUrl { path_timeout: Some(PATH_TIMEOUT), ..disk.add_path() };
        let mut reading = Reading::by(&disk, &url, lanes_max);
        reading.wait(1, PathState::Optimized);
        reading.look_up_many();
        (0..2).for_each(|path| disk.signal(path, Signal::KILL));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(2) {
            assert_ne!(reading.look_up_anywhere(7), Executor::Target);
        }
        (0..2).for_each(|path| disk.restart(path));
        until("it comes back to a target", || reading.look_up_anywhere(7) == Executor::Target);
        reading.look_up_many();
    }
}
