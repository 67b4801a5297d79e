//! A service manager, as services see it: it records their notifications.
#![allow(dead_code)] // Each test uses a part.

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Notifications to a manager, with their descriptors.
pub(crate) type Told = Arc<Mutex<Vec<(String, Vec<OwnedFd>)>>>;

/// Receives notifications, and answers barriers at once.
pub(crate) fn listen(socket: UnixDatagram) -> Told {
    let told = Told::default();
    let into = Arc::clone(&told);
    std::thread::spawn(move || {
        loop {
            let mut bytes = [0; 512];
            let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut control = RecvAncillaryBuffer::new(&mut room);
            let mut slices = [IoSliceMut::new(&mut bytes)];
            let received = recvmsg(&socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC);
            let length = received.expect("received").bytes;
            let mut descriptors = Vec::new();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    descriptors.extend(rights);
                }
            }
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            if text != "BARRIER=1" {
                into.lock().expect("no panic").push((text, descriptors));
            }
        }
    });
    told
}

/// The number of notifications with this line, and of the descriptors that came with them.
pub(crate) fn count(told: &Told, what: &str) -> (usize, usize) {
    let told = told.lock().expect("no panic");
    let lines = told.iter().filter(|(text, _)| text.lines().any(|line| line == what));
    lines.fold((0, 0), |(count, held), (_, descriptors)| (count + 1, held + descriptors.len()))
}

/// Waits until there are that many notifications with this line, and that many descriptors.
pub(crate) fn expect(told: &Told, what: &str, (times, descriptors): (usize, usize)) {
    let end = Instant::now() + Duration::from_secs(20);
    while count(told, what) != (times, descriptors) {
        assert!(Instant::now() < end, "{what}: {told:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
