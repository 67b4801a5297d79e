//! Two paths, each to a small target.
#![allow(dead_code)] // Not every test uses all of it.

use crate::fake_target::{self, NQN, Shared};
use crate::wait::until;
use bpfof_host::{Controller, Lane, Options, PathState, TargetUrl};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A test gives up waiting after this time; long enough for any busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn set(flag: &AtomicBool, value: bool) {
    flag.store(value, Ordering::SeqCst);
}

pub(crate) fn start() -> (TargetUrl, [Arc<Shared>; 2]) {
    let [(a, first), (b, second)]: [(SocketAddr, Arc<Shared>); 2] =
        [fake_target::start(), fake_target::start()];
    (format!("nvme-tcp://{a},{b}/{NQN}").parse().unwrap(), [first, second])
}

/// Two ordinary targets, which report the same namespace, and a lane to the first.
pub(crate) fn connect(options: Options) -> (Controller, Lane, [Arc<Shared>; 2]) {
    connect_with_ana(options, 0)
}

/// The same, with the namespace in an ANA state.
pub(crate) fn connect_with_ana(
    options: Options,
    state: u8,
) -> (Controller, Lane, [Arc<Shared>; 2]) {
    let (url, targets) = start();
    for target in &targets {
        set(&target.no_pushdown, true);
        target.ana.store(state, Ordering::SeqCst);
    }
    let controller = Controller::connect(&url, options).unwrap();
    for path in 0..2 {
        is_in(&controller, path, PathState::Optimized);
    }
    let lane = controller.open_lane().unwrap();
    (controller, lane, targets)
}

/// Waits until a path is in the given state.
pub(crate) fn is_in(controller: &Controller, path: usize, state: PathState) {
    until(&format!("path {path} is {state}"), || controller.paths()[path].state == state);
}
