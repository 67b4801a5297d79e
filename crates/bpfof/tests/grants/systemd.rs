//! The daemon under a service manager: leases are in its descriptor store.

use super::daemon::Grantd;
use super::{World, cannot_mount, granted_file, is_leased};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a manager was told, and given.
type Told = Arc<Mutex<Vec<(String, Vec<OwnedFd>)>>>;

/// Takes what is sent, and lets barriers pass at once.
fn listen(socket: UnixDatagram) -> Told {
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

/// How many were told that, and the descriptors that came with it.
fn count(told: &Told, what: &str) -> (usize, usize) {
    let told = told.lock().expect("no panic");
    let lines = told.iter().filter(|(text, _)| text.lines().any(|line| line == what));
    lines.fold((0, 0), |(count, held), (_, descriptors)| (count + 1, held + descriptors.len()))
}

/// Waits until it was told that once, with so many descriptors.
fn expect(told: &Told, what: &str, descriptors: usize) {
    let end = Instant::now() + Duration::from_secs(5);
    while count(told, what) != (1, descriptors) {
        assert!(Instant::now() < end, "{what}: {told:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_service_manager_keeps_the_leases_of_a_killed_daemon() {
    if cannot_mount().is_some() {
        return;
    }
    let mut world = World::new("ext4", 96 << 20);
    drop(world.grantd.take());
    let notify = world.disk.image().with_file_name("notify");
    let told = listen(UnixDatagram::bind(&notify).expect("a socket"));
    let variable = [("NOTIFY_SOCKET", notify.to_str().expect("UTF-8"))];
    let url = world.disk.url.to_string();
    world.grantd = Some(Grantd::start_in(&url, &world.disk.image(), &[], &variable));
    expect(&told, "READY=1", 0);
    let (mut client, path) = granted_file(&world, "kept");
    expect(&told, "FDSTORE=1", 1);
    client.remove(&[1]).expect("removed");
    expect(&told, "FDSTOREREMOVE=1", 0);
    told.lock().expect("no panic").clear();
    assert!(!is_leased(&path));
    let (_client, path) = granted_file(&world, "kept");
    world.grantd().signal(rustix::process::Signal::KILL);
    std::thread::sleep(Duration::from_secs(1));
    assert!(is_leased(&path), "the lease has gone with the daemon");
    told.lock().expect("no panic").clear();
    let end = Instant::now() + Duration::from_secs(2);
    while is_leased(&path) {
        assert!(Instant::now() < end, "somebody else holds the lease");
        std::thread::sleep(Duration::from_millis(20));
    }
}
