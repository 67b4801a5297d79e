//! Files that are not granted, and requests that clients may not make.

use super::wait::{until, within};
use super::{RELEASED, World, await_closed, granted_file, is_leased, write_file};
use bpfof_function::Object;
use bpfof_host::grant::protocol::{Cause, PROTOCOL, Request};
use bpfof_host::grant::{GrantClient, GrantError, PacketSocket};
use rustix::fs::{Mode, OFlags, open};
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Why a descriptor gets no grant; None if it gets one.
fn refusal(client: &mut GrantClient, descriptor: &impl AsFd) -> Option<Cause> {
    let answers = client.add(&[1], &[descriptor.as_fd()]).expect("answered");
    client.remove(&[1]).expect("removed");
    answers.into_iter().next().and_then(|answer| answer.result.err()).map(|why| why.cause)
}

fn path_only(path: &Path) -> OwnedFd {
    open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("opened")
}

#[test]
fn only_files_that_are_read_and_that_nobody_writes_are_granted() {
    let Some(world) = World::new("ext4", 96 << 20) else { return };
    let mut client = GrantClient::connect(world.socket(), None).expect("it connects");
    let path = world.folder.join("file");
    write_file(&path, &[7; 100_000]);
    let good = File::open(&path).expect("opened");
    assert_eq!(refusal(&mut client, &good), None);
    assert_eq!(refusal(&mut client, &path_only(&path)), Some(Cause::NotReadable));
    let writer = OpenOptions::new().write(true).open(&path).expect("opened");
    assert_eq!(refusal(&mut client, &writer), Some(Cause::NotReadable));
    assert_eq!(refusal(&mut client, &good), Some(Cause::BeingWritten));
    drop(writer);
    let both = OpenOptions::new().read(true).write(true).open(&path).expect("opened");
    assert_eq!(refusal(&mut client, &both), Some(Cause::BeingWritten));
    drop(both);
    let image = world.disk.image();
    let elsewhere = [Path::new("/proc/version"), Path::new("/dev/null"), image.as_path()]
        .map(|path| File::open(path).expect("opened"));
    for file in &elsewhere {
        assert_eq!(refusal(&mut client, file), Some(Cause::OtherPlace), "{file:?}");
    }
    let (pipe, _write) = std::io::pipe().expect("a pipe");
    assert_eq!(refusal(&mut client, &pipe), Some(Cause::OtherPlace));
    let folder = File::open(&world.folder).expect("opened");
    assert_eq!(refusal(&mut client, &folder), Some(Cause::NotRegular));
    // On the disk, but without an extent.
    let small = world.folder.join("small");
    write_file(&small, b"");
    assert_eq!(refusal(&mut client, &File::open(&small).expect("opened")), None);
    // No lease is held for descriptors that were given back.
    assert!(!is_leased(&path));
}

#[test]
fn a_grant_is_taken_back_when_somebody_writes() {
    let Some(world) = World::new("ext4", 96 << 20) else { return };
    let (mut client, path) = granted_file(&world, "file");
    let version = client.page().version(1);
    assert!(version > 0);
    let began = Instant::now();
    let writer = OpenOptions::new().write(true).open(&path).expect("the lease is given back");
    assert!(began.elapsed() < RELEASED, "{:?}", began.elapsed());
    assert_eq!(client.page().version(1), 0);
    let refused = client.refresh(&[1]).expect("answered");
    let cause = refused[0].result.as_ref().err().map(|why| why.cause);
    assert_eq!(cause, Some(Cause::BeingWritten));
    drop(writer);
    await_closed(&path);
    let again = client.refresh(&[1]).expect("answered");
    let grant = again[0].result.as_ref().expect("granted again");
    assert!(grant.version > version && client.page().version(1) == grant.version);
    // The grants of a client end with it.
    drop(client);
    until("the lease ends", || !is_leased(&path));
}

/// Makes a client that sends and never reads, and waits until the daemon has given it up.
fn give_up(world: &World) -> PacketSocket {
    let mut open = Vec::new();
    Request::Open { protocol: PROTOCOL }.encode(&mut open);
    let flood = PacketSocket::connect(world.socket(), Duration::from_secs(5)).expect("it connects");
    let end = Instant::now() + Duration::from_secs(30);
    while !flood.is_closed() {
        assert!(Instant::now() < end, "it is served for ever");
        if flood.send(&open, &[]).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    flood
}

#[test]
fn quotas_policy_and_nonsense() {
    let Some(mut world) = World::new("ext4", 96 << 20) else { return };
    let config = world.disk.image().with_file_name("grantd.toml");
    let text =
        "clients-per-user = 8\nfiles-per-user = 3\nextents-per-user = 1\nlanes-per-client = 1\n";
    fs::write(&config, text).expect("written");
    world.replace_daemon(&["--trust-owners", "--config", config.to_str().expect("UTF-8")]);
    let mut client = GrantClient::connect(world.socket(), None).expect("it connects");
    let path = world.folder.join("file");
    write_file(&path, &[7; 100_000]);
    let file = File::open(&path).expect("opened");
    let descriptors = [file.as_fd(); 4];
    let answers = client.add(&[1, 2, 3, 4], &descriptors).expect("answered");
    let causes = answers.iter().map(|answer| answer.result.as_ref().err().map(|why| why.cause));
    // The quotas allow one extent a file, and no fourth file.
    let quota = Some(Cause::Quota);
    assert_eq!(causes.collect::<Vec<_>>(), [None, quota, quota, quota]);
    let refused = |error: GrantError| match error {
        GrantError::Refused(refusal) => refusal.cause,
        error => panic!("{error}"),
    };
    let object = fs::read(&world.object).expect("read");
    let error = client.load(&object, 0, "peek", [1; 32]).map(|_| ()).expect_err("not its own");
    assert_eq!(refused(error), Cause::Policy);
    // An installed function of the same name and length, which differs in a constant, is not taken for the client's.
    let peek = include_str!("peek.bpf.c");
    let [same, other] = [peek, &peek.replace("reads = 1", "reads = 2")].map(|text| {
        let object = world.compile(text);
        let entry = Object::parse(&object).expect("an object").into_entry(0).expect("one");
        (object, entry.program.digest(), entry.program.instructions().len())
    });
    assert!(same.1 != other.1 && same.2 == other.2);
    let mut administrator = world.disk.connect();
    administrator.install_function(&other.0, 0).expect("kept");
    let error = client.load(&object, 0, "peek", same.1).map(|_| ()).expect_err("another one");
    assert_eq!(refused(error), Cause::Policy);
    let kept = administrator.install_function_as("by another name", &same.0, 0).expect("kept");
    assert_eq!(client.load(&object, 0, "peek", same.1).expect("the same"), kept);
    drop(client.lane().expect("one lane"));
    let error = client.lane().map(|_| ()).expect_err("a second lane").to_string();
    assert!(error.contains("1 lanes"), "{error}");
    // An invalid message ends the connection of its client only.
    for packet in [&[9_u8][..], &[4, 1, 1, 0, 0, 0], &[1, 1, 0, 0]] {
        let mut socket =
            PacketSocket::connect(world.socket(), Duration::from_secs(5)).expect("it connects");
        socket.send(packet, &[]).expect("sent");
        assert!(socket.wait(Duration::from_secs(20)).expect("waited"));
        assert!(socket.receive().is_ok_and(|packet| packet.is_none()), "{packet:?}");
    }
    let flood = give_up(&world);
    // The slot of the client that was given up is free, though its socket is still open; and so are those of the three
    // before it.
    let mut others = Vec::new();
    within(Duration::from_secs(30), "seven others are served", || {
        match GrantClient::connect(world.socket(), None) {
            Ok(other) => others.push(other),
            Err(error) => assert_eq!(refused(error), Cause::Quota),
        }
        others.len() == 7
    });
    let turned_away = GrantClient::connect(world.socket(), None).map(|_| ());
    assert_eq!(refused(turned_away.expect_err("an eighth other")), Cause::Quota);
    drop(flood);
    assert!(client.is_connected());
    assert!(client.refresh(&[1]).expect("answered")[0].result.is_ok());
}
