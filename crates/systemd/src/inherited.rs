//! The descriptors that systemd passes.
#![allow(unsafe_code)]

use std::env;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Once;

/// First descriptor that systemd passes (SD_LISTEN_FDS_START).
const FIRST: i32 = 3;

/// The descriptors that systemd has passed to this process, with their names: sockets of socket units, and stored
/// descriptors ([`Manager::store`](crate::Manager::store)). The first call returns all of them, later ones none.
/// Programs that this process starts do not inherit them.
pub fn inherited() -> Vec<(String, OwnedFd)> {
    static ONCE: Once = Once::new();
    let mut found = Vec::new();
    ONCE.call_once(|| found = take());
    found
}

fn take() -> Vec<(String, OwnedFd)> {
    let variable = |name| env::var(name).unwrap_or_default();
    if variable("LISTEN_PID") != std::process::id().to_string() {
        return Vec::new();
    }
    let count: i32 = variable("LISTEN_FDS").parse().unwrap_or(0);
    let names = variable("LISTEN_FDNAMES");
    let mut names = names.split(':');
    let mut found = Vec::new();
    for number in FIRST..FIRST.saturating_add(count) {
        let name = names.next().unwrap_or_default().to_owned();
        // SAFETY: systemd has passed this descriptor to this process, and nothing else owns it: this code runs once.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        let _ = rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC);
        found.push((name, descriptor));
    }
    found
}
