//! The daemon under a service manager, which keeps the leases in its descriptor store.

use super::manager::{Told, expect, listen};
use super::wait::within;
use super::{KEEP_ALIVE, World, cause, granted_file, is_leased, write_file};
use bpfof_host::grant::protocol::Cause;
use rustix::process::Signal;
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

/// A world whose daemon runs under a manager, and the messages to the manager. With `stores` the manager says how many
/// descriptors it stores, as systemd does since version 254.
fn managed(stores: Option<&str>) -> Option<(World, Told)> {
    let mut world = World::new("ext4", 96 << 20)?;
    let notify = world.disk.image().with_file_name("notify");
    let told = listen(UnixDatagram::bind(&notify).expect("a socket"));
    let mut variables = vec![("NOTIFY_SOCKET", notify.to_str().expect("UTF-8"))];
    variables.extend(stores.map(|max| ("FDSTORE", max)));
    let launcher = ["bash", "-c", "SYSTEMD_EXEC_PID=$$ exec \"$@\"", "bash"];
    world.replace_daemon_by(&launcher, &["--trust-owners"], &variables);
    expect(&told, "READY=1", (1, 0));
    Some((world, told))
}

/// Kills the daemon, and drops the descriptors that it has stored.
fn kill_and_forget(world: &World, told: &Told) {
    world.grantd().signal(Signal::KILL);
    std::thread::sleep(Duration::from_secs(1));
    told.lock().expect("no panic").clear();
}

#[test]
fn a_service_manager_keeps_the_leases_of_a_killed_daemon() {
    let Some((world, told)) = managed(Some("2")) else { return };
    let (mut client, path) = granted_file(&world, "kept");
    expect(&told, "FDSTORE=1", (1, 1));
    client.remove(&[1]).expect("removed");
    expect(&told, "FDSTOREREMOVE=1", (1, 0));
    told.lock().expect("no panic").clear();
    assert!(!is_leased(&path));
    let (_client, path) = granted_file(&world, "kept");
    // The manager would silently drop descriptors for which it has no room.
    let (mut client, _) = granted_file(&world, "second");
    let third = File::open(&path).expect("opened");
    let refused = client.add(&[2], &[third.as_fd()]).expect("answered");
    let why = refused[0].result.as_ref().expect_err("there is no room").why.clone();
    assert!(why.contains("keeps at most 2 leases"), "{why}");
    assert_eq!(cause(refused), Some(Cause::Quota));
    client.remove(&[1]).expect("removed");
    assert_eq!(cause(client.refresh(&[2]).expect("answered")), None);
    world.grantd().signal(Signal::KILL);
    std::thread::sleep(Duration::from_secs(1));
    assert!(is_leased(&path), "the lease has gone with the daemon");
    told.lock().expect("no panic").clear();
    // A process of the daemon's own would hold it for twice as long.
    within(KEEP_ALIVE, "nobody else holds the lease", || !is_leased(&path));
}

/// A service manager receives no notifications while it reloads its units.
#[test]
fn a_manager_that_takes_nothing_for_a_while_costs_no_grant() {
    let Some((world, told)) = managed(Some("100")) else { return };
    let (mut client, path) = granted_file(&world, "kept");
    let file = File::open(&path).expect("opened");
    let ids: Vec<u32> = (2..=17).collect();
    let files = vec![file.as_fd(); ids.len()];
    // The thread that receives waits for this lock.
    let silent = told.lock().expect("no panic");
    let begun = Instant::now();
    let answers = client.add(&ids, &files).expect("answered");
    drop(silent);
    assert!(begun.elapsed() < KEEP_ALIVE, "{:?}", begun.elapsed());
    for answer in answers {
        assert_eq!(cause(vec![answer]), Some(Cause::Unavailable));
    }
    assert!(client.is_connected() && client.page().version(1) != 0);
    assert_eq!(cause(client.refresh(&[2]).expect("answered")), None);
}

/// Fills the queue of a manager that receives nothing.
fn fill(world: &World) {
    let notify = world.disk.image().with_file_name("notify");
    let mut queued = 1;
    while queued > 0 {
        // A socket may have a limited number of datagrams in queues.
        let socket = UnixDatagram::unbound().expect("a socket");
        socket.set_nonblocking(true).expect("set");
        socket.connect(&notify).expect("it listens");
        let sent = std::iter::repeat_with(|| socket.send(b"STATUS=busy"));
        queued = sent.take_while(Result::is_ok).count();
    }
}

#[test]
fn leases_that_break_while_the_manager_takes_nothing_cost_no_other_grant() {
    let Some((world, told)) = managed(Some("100")) else { return };
    let (mut client, _) = granted_file(&world, "kept");
    let path = world.folder.join("other");
    write_file(&path, &[7; 4096]);
    let file = File::open(&path).expect("opened");
    let ids: Vec<u32> = (2..=9).collect();
    let answers = client.add(&ids, &vec![file.as_fd(); ids.len()]).expect("answered");
    assert!(answers.iter().all(|answer| answer.result.is_ok()), "{answers:?}");
    let silent = told.lock().expect("no panic");
    fill(&world);
    let begun = Instant::now();
    let writer = OpenOptions::new().write(true).open(&path).expect("the leases are released");
    assert!(begun.elapsed() < KEEP_ALIVE, "{:?}", begun.elapsed());
    assert!(client.is_connected() && client.page().version(1) != 0);
    drop((silent, writer));
    // The manager is told once it receives again.
    expect(&told, "FDSTOREREMOVE=1", (ids.len(), 0));
}

#[test]
fn a_keepsake_keeps_leases_that_the_manager_does_not() {
    let Some((world, told)) = managed(None) else { return };
    let (_client, path) = granted_file(&world, "kept");
    expect(&told, "FDSTORE=1", (1, 1));
    kill_and_forget(&world, &told);
    assert!(is_leased(&path), "the lease has gone with the daemon");
    within(3 * KEEP_ALIVE, "the lease ends", || !is_leased(&path));
}
