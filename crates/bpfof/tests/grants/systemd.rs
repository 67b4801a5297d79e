//! The daemon under a service manager: leases are in its descriptor store.

use super::manager::{expect, listen};
use super::{World, cannot_mount, granted_file, is_leased};
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

#[test]
fn a_service_manager_keeps_the_leases_of_a_killed_daemon() {
    if cannot_mount().is_some() {
        return;
    }
    let mut world = World::new("ext4", 96 << 20);
    let notify = world.disk.image().with_file_name("notify");
    let told = listen(UnixDatagram::bind(&notify).expect("a socket"));
    let variable = [("NOTIFY_SOCKET", notify.to_str().expect("UTF-8"))];
    world.replace_daemon(&["--trust-owners"], &variable);
    expect(&told, "READY=1", (1, 0));
    let (mut client, path) = granted_file(&world, "kept");
    expect(&told, "FDSTORE=1", (1, 1));
    client.remove(&[1]).expect("removed");
    expect(&told, "FDSTOREREMOVE=1", (1, 0));
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
