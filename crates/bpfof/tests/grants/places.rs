//! Descriptors from other places: clients and the daemon may see different mounts, and file systems may never answer.

use super::disk::skip::skip_part;
use super::{
    RELEASED, World, await_closed, cause, filled, granted_file, is_leased, run, write_file,
};
use bpfof_host::grant::protocol::Cause;
use bpfof_host::grant::{GrantClient, GrantError};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// As in `packaging/systemd/bpfof-grantd.service`: a mount namespace of its own, and few capabilities.
const CONFINED: [&str; 6] = [
    "unshare",
    "--mount",
    "setpriv",
    "--no-new-privs",
    "--bounding-set=-all,+lease,+dac_read_search,+chown",
    "--",
];

fn confined() -> Option<World> {
    let mut world = World::new("ext4", 96 << 20)?;
    world.replace_daemon_by(&CONFINED, &["--trust-owners"], &[]);
    Some(world)
}

#[test]
fn a_daemon_in_a_mount_namespace_of_its_own_grants_files() {
    let Some(world) = confined() else { return };
    let (client, path) = granted_file(&world, "file");
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("set");
    std::os::unix::fs::chown(&path, Some(super::UID), None).expect("given");
    assert!(is_leased(&path));
    let place = File::open(&world.folder).expect("opened");
    let other = GrantClient::connect(world.socket(), Some(place.as_fd()));
    let file = File::open(&path).expect("opened");
    await_closed(&path);
    let answers = other.expect("it connects").add(&[1], &[file.as_fd()]).expect("answered");
    assert_eq!(cause(answers), None);
    let began = Instant::now();
    OpenOptions::new().write(true).open(&path).expect("the lease is given back");
    assert!(began.elapsed() < RELEASED, "{:?}", began.elapsed());
    assert_eq!(client.page().version(1), 0);
}

/// A mount point, unmounted when dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(folder: &Path, words: &[&str], stdin: Stdio) -> Mounted {
        fs::create_dir(folder).expect("made");
        let mut command = Command::new("mount");
        let status = command.args(words).arg(folder).stdin(stdin).status();
        assert!(status.expect("it starts").success(), "{words:?}");
        Mounted(folder.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Numbers of requests of FUSE (`linux/fuse.h`).
const INIT: u32 = 26;
const OPENDIR: u32 = 27;

/// Starts a file system whose folder can be opened, and which answers nothing else. Returns the requests that it gets.
fn start_silent(device: File) -> Arc<Mutex<Vec<u32>>> {
    let asked = Arc::<Mutex<Vec<u32>>>::default();
    let into = Arc::clone(&asked);
    let serve = move || {
        let (mut device, mut request) = (device, vec![0; 1 << 20]);
        while device.read(&mut request).is_ok_and(|length| length >= 16) {
            let number = |at: usize| request[at..].first_chunk().copied().expect("a header");
            let operation = u32::from_ne_bytes(number(4));
            into.lock().expect("no panic").push(operation);
            let mut answer = match operation {
                INIT => vec![0; 16 + 64],
                OPENDIR => vec![0; 16 + 16],
                _ => continue,
            };
            let length = answer.len() as u32;
            answer[..4].copy_from_slice(&length.to_ne_bytes());
            answer[8..16].copy_from_slice(&request[8..16]);
            if operation == INIT {
                // Version 7.31.
                answer[16..20].copy_from_slice(&7_u32.to_ne_bytes());
                answer[20..24].copy_from_slice(&31_u32.to_ne_bytes());
            }
            device.write_all(&answer).expect("answered");
        }
    };
    std::thread::spawn(serve);
    asked
}

#[test]
fn a_file_system_that_never_answers_is_not_asked() {
    let Some(world) = confined() else { return };
    let Ok(device) = OpenOptions::new().read(true).write(true).open("/dev/fuse") else {
        return skip_part("fuse", "there is no FUSE");
    };
    let at = world.disk.image().with_file_name("silent");
    let words = ["-i", "-t", "fuse", "-o", "fd=0,rootmode=40000,user_id=0,group_id=0", "silent"];
    let mounted = Mounted::new(&at, &words, device.try_clone().expect("a descriptor").into());
    let asked = start_silent(device);
    let folder = File::open(&at).expect("opened");
    let before = asked.lock().expect("no panic").len();
    let began = Instant::now();
    let refused = GrantClient::connect(world.socket(), Some(folder.as_fd()));
    match refused.map(|_| ()).expect_err("it is elsewhere") {
        GrantError::Refused(refusal) => assert_eq!(refusal.cause, Cause::OtherPlace, "{refusal}"),
        error => panic!("{error}"),
    }
    let mut client = GrantClient::connect(world.socket(), None).expect("it connects");
    let answers = client.add(&[1], &[folder.as_fd()]).expect("answered");
    assert_eq!(cause(answers), Some(Cause::OtherPlace));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let asked = asked.lock().expect("no panic")[before..].to_vec();
    assert_eq!(asked, Vec::<u32>::new());
    drop((client, mounted));
}

/// An overlay shows the device of the lower file system for files that exist only there.
#[test]
fn files_of_an_overlay_are_not_granted() {
    let Some(world) = confined() else { return };
    let beside = |name: &str| world.disk.image().with_file_name(name);
    let [upper, work] = ["upper", "work"].map(|name| world.disk.mount().join(name));
    let lower = beside("lower");
    for folder in [&upper, &work, &lower] {
        fs::create_dir(folder).expect("made");
    }
    write_file(&upper.join("file"), &filled(super::MINE, 64 << 10));
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let options =
        format!("lowerdir={},upperdir={},workdir={}", text(&lower), text(&upper), text(&work));
    let at = beside("overlay");
    let _mounted = Mounted::new(&at, &["-t", "overlay", "-o", &options, "overlay"], Stdio::null());
    let file = File::open(at.join("file")).expect("opened");
    let below = File::open(upper.join("file")).expect("opened");
    let mut client = GrantClient::connect(world.socket(), None).expect("it connects");
    let answers = client.add(&[1, 2], &[file.as_fd(), below.as_fd()]).expect("answered");
    let [over, direct] = &answers[..] else { panic!("{answers:?}") };
    let why = over.result.as_ref().expect_err("it is an overlay's");
    assert!(matches!(why.cause, Cause::NotMappable | Cause::OtherPlace), "{why}");
    assert!(direct.result.is_ok(), "{direct:?}");
    run("sync", &[at.join("file")]);
}
