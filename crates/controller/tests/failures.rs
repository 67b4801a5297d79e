//! Targets that stop or vanish, ports and files in use, full disks.

mod common;
#[path = "../../device/src/loop_device.rs"]
mod loop_device;

use bpfof_controller::{NamespaceSource, Server, ServerError, TargetConfig};
use bpfof_host::{Controller, Lane, LostReason, Options, Request, RequestError, Status};
use bpfof_nvme::log_page::{ErrorLogEntry, SmartLog, lid};
use bpfof_nvme::{AdminCommand, Sqe};
use common::skip::skip;
use common::{
    NAMESPACE_BYTES, Witness, call, compile, config, connect, ends, file, load, memory, options,
    same_ports, slow_memory, start, until, url,
};
use loop_device::LoopDevice;
use std::time::Duration;

#[test]
fn a_stopping_target_finishes_what_it_has_begun() {
    let server = start(vec![slow_memory(NAMESPACE_BYTES, 512, 200_000)]);
    let (mut controller, mut lane) = connect(&server, false);
    let object = compile("hostile");
    let fan = load(&mut controller, &object, "fan");
    for tag in 0..4 {
        let read = Request::Read { nsid: 1, offset_bytes: tag * 512, length_bytes: 512 };
        lane.submit(tag, read).expect("submitted");
    }
    let write = Request::Write { nsid: 1, offset_bytes: 0, data: &[3; 512], fua: false };
    lane.submit(4, write).expect("submitted");
    lane.submit(5, Request::Pushdown(call(fan, &[]))).expect("submitted");
    // An unknown opcode is refused at once: by then the target has taken all commands sent before.
    let sqe = Sqe::new(0x77, 1);
    lane.submit(6, Request::Raw { sqe, data_out: &[], data_in_max_bytes: 0 }).expect("submitted");
    let (mut refused, mut done) = (false, Vec::new());
    while !refused {
        lane.wait(Duration::from_secs(5), &mut |completion| match completion.tag {
            6 => refused = completion.result.is_err(),
            tag => done.push((tag, completion.result.map(|end| end.dw0))),
        })
        .expect("connected");
    }
    let stopping = std::thread::spawn(move || server.stop());
    done.extend(ends(&mut lane));
    done.sort_by_key(|(tag, _)| *tag);
    assert_eq!(done, [0, 1, 2, 3, 4, 5].map(|tag| (tag, Ok(if tag == 5 { 2 } else { 0 }))));
    stopping.join().expect("it stops");
    until("the lane ends", || {
        let _ = lane.poll(&mut |_| ());
        !lane.is_connected()
    });
}

#[test]
fn a_target_that_vanishes() {
    // Reads that take a minute are still in flight after the 5 seconds that the target gives them.
    let slow = vec![slow_memory(NAMESPACE_BYTES, 512, 60_000_000)];
    let server = start(slow);
    let listen = same_ports(&server);
    let (mut controller, mut lane) = connect(&server, true);
    for tag in 0..50 {
        let read = Request::Read { nsid: 1, offset_bytes: tag * 512, length_bytes: 512 };
        lane.submit(tag, read).expect("submitted");
    }
    lane.flush_doorbell().expect("sent");
    server.stop();
    let ends = ends(&mut lane);
    let mut tags: Vec<u64> = ends.iter().map(|(tag, _)| *tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, (0..50).collect::<Vec<_>>(), "each exactly once");
    for (_, end) in ends {
        let expected = |reason| matches!(reason, LostReason::Closed | LostReason::Io(_));
        assert!(matches!(end, Err(RequestError::Lost(reason)) if expected(reason)), "{end:?}");
    }
    assert!(!lane.is_connected());
    assert!(controller.reconnect().is_err(), "nobody listens");
    if common::is_in_process() {
        // Within a process, a new target cannot be reached in its place.
        return;
    }

    let again = TargetConfig { listen, ..config(vec![memory(NAMESPACE_BYTES, 512)]) };
    let _server = Server::start(&again).expect("the port is free");
    controller.reconnect().expect("it is back");
    lane.reconnect(&controller).expect("a lane");
    lane.write(1, 0, &[1; 512]).expect("served");
}

#[test]
fn a_name_that_cannot_be_printed_is_refused() {
    let server = start(vec![memory(NAMESPACE_BYTES, 512)]);
    for hidden in ['\u{202e}', '\u{2028}', '\n'] {
        let host_nqn = format!("nqn.2026-01.io.bpf-of:{hidden}host");
        let options = Options { host_nqn, ..options(&server) };
        let error = Controller::connect(&url(&server), options).expect_err("refused").to_string();
        assert!(error.contains("the host's NQN has an unprintable character"), "{error}");
    }
    Witness::new(&server).check();
}

#[test]
fn two_targets_on_one_port() {
    let server = start(vec![memory(NAMESPACE_BYTES, 512)]);
    let mut witness = Witness::new(&server);
    let address = server.address();
    let second =
        TargetConfig { listen: address.into(), ..config(vec![memory(NAMESPACE_BYTES, 512)]) };
    let error = Server::start(&second).err().expect("refused");
    assert!(matches!(error, ServerError::AddressInUse(found) if found == address));
    let text = error.to_string();
    assert!(text.contains("choose another --listen") && text.contains("in use"), "{text}");
    witness.check();
    // A file can be served by only one target, too.
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("disk");
    let first = start(vec![file(&path, 1 << 20, 512)]);
    let error = Server::start(&config(vec![file(&path, 1 << 20, 512)])).err().expect("refused");
    assert!(error.to_string().contains("in use by another target"), "{error}");
    first.stop();
    start(vec![file(&path, 1 << 20, 512)]).stop();
}

const IN_NAMESPACE: &str = "BPFOF_TEST_IN_MOUNT_NAMESPACE";

/// Runs this test again inside `unshare --mount`, where it may mount. Returns `true` there, so that the test does its
/// work.
fn is_in_mount_namespace(name: &str) -> bool {
    if std::env::var_os(IN_NAMESPACE).is_some() {
        return true;
    }
    let module = module_path!().split_once("::").map(|(_, module)| format!("{module}::"));
    let test = std::env::current_exe().expect("a path");
    let output = std::process::Command::new("unshare")
        .args(["--mount", "--propagation", "private"])
        .arg(test)
        .args(["--exact", &(module.unwrap_or_default() + name), "--nocapture"])
        .env(IN_NAMESPACE, "1")
        .output();
    match output {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(text.contains("1 passed"), "{text}");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            said.lines().filter_map(|line| line.strip_prefix("SKIPPED: ")).for_each(skip);
        }
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            // A failure of the test itself is a failure; only a refusal of `unshare` skips the test.
            if text.starts_with("unshare:") {
                skip(&format!("mounting needs root: {text}"));
            } else {
                panic!("{}{text}", String::from_utf8_lossy(&output.stdout));
            }
        }
        Err(error) => skip(&format!("there is no unshare: {error}")),
    }
    false
}

/// Mounts a file system in memory of this size.
fn mount_memory(size: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
        .arg(directory.path())
        .status()
        .expect("mount starts");
    assert!(mounted.success(), "this is root in its own mount namespace");
    directory
}

/// A file namespace on a small file system.
#[test]
fn a_full_disk() {
    if is_in_mount_namespace("a_full_disk") {
        fill_the_disk();
    }
}

fn fill_the_disk() {
    let directory = mount_memory("2m");
    let filler = directory.path().join("filler");
    std::fs::write(&filler, vec![1; 1 << 20]).expect("there is room");
    let namespace = file(&directory.path().join("disk"), 8 << 20, 512);
    assert!(matches!(namespace.source, NamespaceSource::File { .. }));
    let server = start(vec![namespace, memory(NAMESPACE_BYTES, 512)]);
    let (mut controller, mut lane) = connect(&server, false);
    let mut failed = None;
    for index in 0..100u64 {
        let (offset_bytes, data) = (index << 16, [7; 65536]);
        let write = Request::Write { nsid: 1, offset_bytes, data: &data, fua: false };
        lane.submit(index, write).expect("submitted");
        if let Err(error) = ends(&mut lane)[0].1 {
            failed = Some((index, error));
            break;
        }
    }
    let (index, RequestError::Command(error)) = failed.expect("8 MiB do not fit") else {
        panic!("{failed:?}");
    };
    assert!(error.status.same_code(Status::CAPACITY_EXCEEDED), "{error}");
    assert!(error.status.dnr(), "trying again at once does not help");
    // Other namespaces are served, reads are, and writes are again once there is room.
    lane.write(2, 0, &[1; 4096]).expect("another namespace is not full");
    lane.read(1, 0, &mut [0; 4096]).expect("what was written can be read");
    assert!(lane.write(1, index << 16, &[7; 65536]).is_err(), "still full");
    assert_eq!(smart(&mut controller).media_errors, 0, "there is nothing wrong with the medium");
    std::fs::remove_file(&filler).expect("removed");
    lane.write(1, index << 16, &[7; 65536]).expect("there is room again");
    lane.flush(1).expect("flushed");
}

fn smart(controller: &mut Controller) -> SmartLog {
    let log = AdminCommand::get_log_page(lid::SMART, u32::MAX, 0, 512);
    let (_, page) = controller.admin_command(log, &[], 512).expect("a page");
    SmartLog::from_bytes(page[..].try_into().expect("a page"))
}

/// A disk takes writes into the page cache and loses them: every association is told once, with Do Not Retry.
#[test]
fn lost_writes_are_reported_to_every_association() {
    if is_in_mount_namespace("lost_writes_are_reported_to_every_association") {
        lose_writes();
    }
}

fn lose_writes() {
    let directory = mount_memory("1m");
    // A file larger than the disk.
    let image = directory.path().join("image");
    let file_of_image = std::fs::File::create(&image).expect("made");
    file_of_image.set_len(8 << 20).expect("sparse");
    let Some(device) = LoopDevice::of(&image) else {
        return skip("no loop device can be made here");
    };
    // Blocks smaller than the device's use the page cache.
    let server = start(vec![file(&device.0, 8 << 20, 512)]);
    let (mut controller, mut writer) = connect(&server, false);
    let (_another, mut other) = connect(&server, false);
    let write = |lane: &mut Lane, offset_bytes, data: &[u8], fua| {
        let write = Request::Write { nsid: 1, offset_bytes, data, fua };
        lane.submit(1, write).expect("submitted");
        ends(lane).remove(0).1.map(drop)
    };
    let flush = |lane: &mut Lane| {
        lane.submit(2, Request::Flush { nsid: 1 }).expect("submitted");
        ends(lane).remove(0).1.map(drop)
    };
    let is_told = |ended: Result<(), RequestError>, who: &str| {
        let Err(RequestError::Command(error)) = ended else { panic!("{who}: {ended:?}") };
        assert_eq!(error.status, Status::WRITE_FAULT.with_dnr(), "{who}");
    };
    write(&mut writer, 0, &[1; 65536], false).expect("taken");
    for lane in [&mut writer, &mut other] {
        flush(lane).expect("there is room for that");
    }

    // The loss is reported to the association that flushes first, although the writes were not its own; then to the
    // other.
    for index in 1..64 {
        write(&mut writer, index << 16, &[2; 65536], false).expect("taken");
    }
    is_told(flush(&mut other), "the first");
    is_told(flush(&mut writer), "who has written");
    let (_later, mut later) = connect(&server, false);
    is_told(flush(&mut later), "the others may not have received their answers");
    for lane in [&mut writer, &mut other, &mut later] {
        flush(lane).expect("told already");
        write(lane, 0, &[3; 512], true).expect("there is room for that");
    }

    // Both flush at once: neither succeeds, whichever is told first. Either may be told once more.
    for round in 0..20 {
        write(&mut writer, (4 << 20) + (round << 12), &[8; 4096], false).expect("taken");
        for lane in [&mut writer, &mut other] {
            lane.submit(2, Request::Flush { nsid: 1 }).expect("submitted");
            lane.flush_doorbell().expect("sent");
        }
        for lane in [&mut writer, &mut other] {
            is_told(ends(lane).remove(0).1.map(drop), "at once");
        }
        for lane in [&mut writer, &mut other, &mut later] {
            let _ = flush(lane);
            let _ = flush(lane);
            flush(lane).expect("told already");
        }
    }

    // The loss is detected by a write with Force Unit Access, and reported by such writes.
    write(&mut writer, 5 << 20, &[4; 65536], false).expect("taken");
    is_told(write(&mut other, 5 << 20, &[5; 65536], true), "a write that is not durable");
    is_told(write(&mut later, 0, &[6; 512], true), "a write that is durable");
    is_told(write(&mut writer, 0, &[6; 512], true), "who has written");
    for lane in [&mut writer, &mut other, &mut later] {
        write(lane, 0, &[7; 512], true).expect("told already");
        flush(lane).expect("told already");
    }

    check_error_log(&mut controller);
    assert!(smart(&mut controller).media_errors > 0);
}

/// Checks that the last errors are lost writes, and that the log names the namespace.
fn check_error_log(controller: &mut Controller) {
    let log = AdminCommand::get_log_page(lid::ERROR, 0, 0, 128);
    let (_, page) = controller.admin_command(log, &[], 128).expect("a page");
    for entry in page.chunks(64) {
        let entry = ErrorLogEntry::from_bytes(entry.try_into().expect("an entry"));
        assert_eq!(
            (entry.nsid, entry.status_field >> 1),
            (1, Status::WRITE_FAULT.with_dnr().field())
        );
    }
}
