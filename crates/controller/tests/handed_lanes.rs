//! Lanes of restricted associations in another process, of another user, which gets the socket by SCM_RIGHTS.

mod common;

use bpfof_auth::{ConfiguredPsk, PskHash};
use bpfof_controller::{HostKeys, HostRule, Rights, Server, TargetConfig, TlsMode};
use bpfof_host::{
    Caravan, Controller, Error, Extent, FileMapObject, FileVersion, FunctionId, HandedLane, Lane,
    Options, PushdownCall, Request, STATE_MAX_BYTES, SharedLane, SubmitError, TargetUrl, Urgency,
};
use common::skip::skip_part;
use common::{NQN, compile, config, load, memory, until, url};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const NAMESPACE_BYTES: u64 = 1 << 20;
const FILE: FileVersion = FileVersion { id: 7, version: 1 };
const FILE_AT: u64 = 64 << 10;
/// The first byte of the file; the function answers with this plus one.
const FIRST: u8 = 41;
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// Longest wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(20);
/// The user id of the other process: that of `nobody`.
const OTHER_UID: u32 = 65534;
/// The environment variable with the target's address for an owner.
const URL: &str = "BPFOF_TEST_URL";
const HOST: &str = "nqn.2026-01.io.bpf-of:host";

/// Whether this process may start a process of another user.
fn can_be_another_user() -> bool {
    let program = std::env::current_exe().expect("a path");
    let others_may = |path: &Path| {
        let permissions = fs::metadata(path).expect("it is there").permissions();
        permissions.mode() & 1 != 0
    };
    rustix::process::getuid().is_root() && program.ancestors().all(others_may)
}

/// Sends a lane to another process.
fn send_lane(channel: &UnixStream, lane: &HandedLane) {
    let socket = [lane.socket.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&socket)));
    let state = [IoSlice::new(lane.state())];
    let sent = sendmsg(channel, &state, &mut ancillary, SendFlags::empty());
    assert_eq!(sent, Ok(lane.state().len()));
}

/// Adopts a lane that another process has sent.
fn receive_lane(channel: &UnixStream) -> Lane {
    let mut state = [0; STATE_MAX_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut state)];
    let got = recvmsg(channel, &mut parts, &mut ancillary, RecvFlags::empty()).expect("a lane");
    let sockets = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut sockets) => sockets.next(),
        _ => None,
    });
    Lane::adopt(sockets.expect("a socket"), &state[..got.bytes]).expect("a lane")
}

/// The other end of a process's channel, in that process.
fn channel() -> UnixStream {
    std::io::stdin().as_fd().try_clone_to_owned().expect("a descriptor").into()
}

/// Another process of this program, which runs the test of this name. It carries out the request in each line, and
/// answers with a line.
struct Other {
    child: Child,
    lines: BufReader<UnixStream>,
}

impl Other {
    /// Starts a process of another user, if that is possible.
    fn start() -> Other {
        let is_possible = can_be_another_user();
        if !is_possible {
            skip_part("users", "another user, which needs root, and a program that others may run");
        }
        Other::start_as("the_other_process", "", is_possible)
    }

    fn start_as(name: &str, url: &str, of_another_user: bool) -> Other {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command.args(["--exact", name, "--ignored", "--nocapture"]).env(URL, url);
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        if of_another_user {
            command.uid(OTHER_UID).gid(OTHER_UID);
        }
        ours.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
        Other { child: command.spawn().expect("started"), lines: BufReader::new(ours) }
    }

    /// Hands a lane over.
    fn give(&mut self, lane: &HandedLane) {
        send_lane(self.lines.get_ref(), lane);
        let uid: u32 = self.hear().parse().expect("a user");
        assert_eq!(uid == OTHER_UID, can_be_another_user(), "it is user {uid}");
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("it answers");
        line.trim().to_owned()
    }

    /// Sends a line; returns the answer.
    fn ask(&mut self, what: &str) -> String {
        writeln!(self.lines.get_mut(), "{what}").expect("it listens");
        self.hear()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // The process ends when its channel closes.
        let _ = self.lines.get_ref().shutdown(std::net::Shutdown::Both);
        let _ = self.child.wait();
    }
}

/// Not a test: the code that [`Other`] runs.
#[test]
#[ignore = "the other process of the tests here"]
fn the_other_process() {
    let mut channel = channel();
    let mut lane = receive_lane(&channel);
    writeln!(channel, "{}", rustix::process::getuid().as_raw()).expect("it listens");
    for line in BufReader::new(channel.try_clone().expect("a descriptor")).lines() {
        let line = line.expect("a line");
        let (what, function) = line.split_once(' ').expect("two words");
        let function = function.parse().expect("a number");
        let answer = match what {
            "chain" => chain(&mut lane, function, FILE),
            "whole" => chain(&mut lane, function, FileVersion { id: 0, version: 1 }),
            "read" => match lane.read(1, 0, &mut [0; 512]) {
                Ok(()) => "read".to_owned(),
                Err(error) => error.to_string(),
            },
            "share" => {
                let shared = SharedLane::new(lane, Caravan::default()).expect("it is idle");
                let mut answer = Vec::new();
                let request = Request::Pushdown(call(function, &[FILE]));
                let ended = shared.call(request, Urgency::NoDelay, &mut answer);
                let said = format!("{answer:?} {:?}", ended.map(|answer| answer.dw0));
                writeln!(channel, "{said}").expect("it listens");
                return;
            }
            other => panic!("{other}"),
        };
        writeln!(channel, "{answer}").expect("it listens");
    }
}

fn call(function: u32, files: &[FileVersion]) -> PushdownCall<'_> {
    PushdownCall { files, answer_max_bytes: 64, ..common::call(FunctionId(function), &[]) }
}

fn chain(lane: &mut Lane, function: u32, file: FileVersion) -> String {
    let mut answer = Vec::new();
    match lane.pushdown(&call(function, &[file]), &mut answer) {
        Ok(_) => format!("{answer:?}"),
        Err(error) => error.to_string(),
    }
}

/// A target, with an address by which the owner reaches it: plain, or by TLS.
fn target(folder: &tempfile::TempDir, tls: Option<PskHash>) -> (Server, TargetUrl) {
    let namespaces = vec![memory(NAMESPACE_BYTES, 512)];
    let Some(hash) = tls else {
        let server = common::start(namespaces);
        let url = url(&server);
        return (server, url);
    };
    let path = folder.path().join("psk");
    let key = ConfiguredPsk::generate(hash).expect("random numbers");
    fs::write(&path, key.to_text().expose()).expect("written");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("set");
    let keys = HostKeys { tls_psk: vec![path.clone()], ..HostKeys::default() };
    let nqn = HOST.to_owned();
    let (subsystems, namespaces_of) = (None, None);
    let rule = HostRule { nqn, subsystems, namespaces: namespaces_of, rights: Rights::USUAL, keys };
    let with = TargetConfig { rules: vec![rule], tls: TlsMode::Required, ..config(namespaces) };
    let server = Server::start(&with).expect("the target starts");
    let psk = path.display();
    let url = format!("nvme-tcp://{}/{NQN}?hostnqn={HOST}&tls-psk={psk}", server.address());
    (server, url.parse().expect("an address"))
}

/// The owner: a restricted association with a mapped file and a function.
fn owner(url: &TargetUrl, with: Options) -> (Controller, u32) {
    let mut plain = Controller::connect(url, Options::default()).expect("it connects");
    plain.open_lane().expect("a lane").write(1, FILE_AT, &[FIRST; 512]).expect("written");
    plain.refresh_namespaces().expect("answered");
    let with = Options { pushdown_only: true, ..with };
    let mut controller = Controller::connect(url, with).expect("it connects");
    let function = load(&mut controller, &compile("small"), "small").0;
    set_map(&mut controller);
    (controller, function)
}

fn set_map(controller: &mut Controller) {
    let extents = vec![Extent { file_offset: 0, device_offset: FILE_AT, length_bytes: 4096 }];
    let map = FileMapObject { file: FILE.id, nsid: 1, version: 1, length_bytes: 4096, extents };
    controller.set_file_map(&map).expect("set");
}

fn quick() -> Options {
    Options { keep_alive: KEEP_ALIVE, ..Options::default() }
}

/// Another process uses a lane that it was handed, until the owner ends the association.
fn another_process_uses_a_lane(tls: Option<PskHash>, options: Options) {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, url) = target(&folder, tls);
    let (mut controller, function) = owner(&url, options);
    let mut used = controller.open_lane().expect("a lane");
    // A lane that has been used continues at its state.
    let good = format!("[{}]", FIRST + 1);
    for _ in 0..5 {
        assert_eq!(chain(&mut used, function, FILE), good);
    }
    let mut other = Other::start();
    other.give(&used.hand_over().expect("it is idle"));
    for _ in 0..5 {
        assert_eq!(other.ask(&format!("chain {function}")), good);
    }
    assert!(other.ask(&format!("whole {function}")).contains("Unknown File"));
    assert!(other.ask("read 0").contains("namespace 1 does not exist"));
    // The lane works while the owner only sends Keep Alives, and reads the file only while it is mapped.
    std::thread::sleep(KEEP_ALIVE * 3 / 2);
    assert_eq!(other.ask(&format!("chain {function}")), good);
    controller.remove_file_map(1, FILE.id).expect("removed");
    assert!(other.ask(&format!("chain {function}")).contains("Unknown File"));
    set_map(&mut controller);
    assert_eq!(other.ask(&format!("chain {function}")), good);
    // A second process shares another lane between its threads.
    let mut sharing = Other::start();
    let lane = controller.open_lane().expect("another lane");
    sharing.give(&lane.hand_over().expect("it is idle"));
    assert_eq!(sharing.ask(&format!("share {function}")), format!("{good} Ok(1)"));
    drop(controller);
    until("it ends with its association", || other.ask(&format!("chain {function}")) != good);
    let lost = other.ask(&format!("chain {function}"));
    assert!(lost.contains("the connection"), "{lost}");
}

#[test]
fn another_process_uses_a_plain_lane() {
    another_process_uses_a_lane(None, quick());
}

#[test]
fn another_process_uses_a_lane_with_digests() {
    let digests = Options { header_digest: true, data_digest: true, ..quick() };
    another_process_uses_a_lane(None, digests);
}

#[test]
fn another_process_uses_a_lane_by_tls() {
    for hash in [PskHash::Sha256, PskHash::Sha384] {
        another_process_uses_a_lane(Some(hash), quick());
    }
}

/// Not a test: an owner of a lane, which it hands over. It runs until its channel is closed.
#[test]
#[ignore = "the other process of the tests here"]
fn the_owner() {
    let channel = channel();
    let url = std::env::var(URL).expect("an address").parse().expect("an address");
    let (controller, function) = owner(&url, quick());
    let lane = controller.open_lane().expect("a lane");
    send_lane(&channel, &lane.hand_over().expect("it is idle"));
    writeln!(&channel, "{function}").expect("it listens");
    let _ = BufReader::new(channel).read_line(&mut String::new());
}

/// Even while the lane is busy.
#[test]
fn a_lane_ends_when_its_owner_is_silent() {
    for tls in [None, Some(PskHash::Sha256)] {
        let folder = tempfile::tempdir().expect("a folder");
        let (_server, url) = target(&folder, tls);
        let mut owner = Other::start_as("the_owner", &url.to_string(), false);
        let mut lane = receive_lane(owner.lines.get_ref());
        let function = owner.hear().parse().expect("a number");
        let good = format!("[{}]", FIRST + 1);
        let busy = |lane: &mut Lane, longest: Duration| {
            let began = Instant::now();
            while began.elapsed() < longest {
                let said = chain(lane, function, FILE);
                if said != good {
                    return Some((began.elapsed(), said));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            None
        };
        assert_eq!(busy(&mut lane, KEEP_ALIVE * 3 / 2), None, "the owner is alive");
        let pid = rustix::process::Pid::from_child(&owner.child);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
        let ended = busy(&mut lane, KEEP_ALIVE + PATIENCE);
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("goes on");
        let (after, said) = ended.expect("it ends, though there are chains all the time");
        // It was silent for up to half of the time before, or for longer if its Keep Alive was late.
        assert!(after >= KEEP_ALIVE / 4, "a Keep Alive was due before: {after:?}");
        assert!(said.contains("the connection"), "{said}");
    }
}

#[test]
fn not_every_lane_can_be_handed_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let (server, url) = target(&folder, None);
    let (mut controller, function) = owner(&url, quick());
    let mut busy = controller.open_lane().expect("a lane");
    busy.submit(0, Request::Pushdown(call(function, &[FILE]))).expect("there is room");
    assert!(matches!(busy.hand_over(), Err(Error::LaneBusy(1))));
    // A lane of an unrestricted association.
    let plain = Controller::connect(&url, Options::default()).expect("it connects");
    let refused = plain.open_lane().expect("a lane").hand_over().expect_err("refused");
    assert!(refused.to_string().contains("not restricted"), "{refused}");
    // A lane without a socket.
    let connector = Some(bpfof_host::Connector::new(server.connector()));
    let (near, _) = owner(&url, Options { connector, ..quick() });
    let refused = near.open_lane().expect("a lane").hand_over().expect_err("refused");
    assert!(refused.to_string().contains("not a TCP connection"), "{refused}");
    // A lane that has ended.
    let lane = controller.open_lane().expect("a lane");
    let id = controller.identify_controller().expect("answered").cntlid;
    drop(controller);
    until("it ends with its association", || {
        let report = server.report()(Duration::from_secs(5)).expect("a report");
        report.connections.iter().all(|of| of.controller != id)
    });
    assert!(lane.hand_over().is_err());
}

#[test]
fn an_adopted_lane_cannot_be_connected_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, url) = target(&folder, None);
    let (controller, function) = owner(&url, quick());
    let handed = controller.open_lane().expect("a lane").hand_over().expect("it is idle");
    let state = handed.state().to_vec();
    let mut lane = Lane::adopt(handed.socket, &state).expect("a lane");
    assert!(matches!(lane.reconnect(&controller), Err(Error::AdoptedLane)));
    assert_eq!(chain(&mut lane, function, FILE), format!("[{}]", FIRST + 1));
    let unknown = lane.submit(0, Request::Read { nsid: 1, offset_bytes: 0, length_bytes: 512 });
    assert_eq!(unknown, Err(SubmitError::UnknownNamespace { nsid: 1 }));
    // It can be handed on to a third process.
    let handed = lane.hand_over().expect("it is idle");
    assert_eq!(handed.state(), state);
    // A descriptor without a connection is refused, and so is a state that is cut short.
    let (one, _other) = UnixStream::pair().expect("sockets");
    for socket in [one.into(), fs::File::open("/dev/null").expect("opened").into()] {
        assert!(matches!(Lane::adopt(socket, &state), Err(Error::NoLane(_))));
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    assert!(matches!(Lane::adopt(listener.into(), &state), Err(Error::NoLane(_))));
    for length in 0..state.len() {
        let socket = handed.socket.try_clone().expect("a descriptor");
        assert!(matches!(Lane::adopt(socket, &state[..length]), Err(Error::NoLane(_))));
    }
}
