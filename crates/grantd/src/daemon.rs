//! The daemon: its socket, its clients, and how it stops.

use crate::closing::{Closing, NOBODY};
use crate::config::{Config, ConfigError};
use crate::descriptors;
use crate::examine::check_break_time;
use crate::keepsake::Keepsake;
use crate::quota::{Kind, Quotas};
use crate::seldom::Seldom;
use crate::session;
use crate::shared::{Client, Peer, Shared, Wake};
use bpfof_host::files::{MapRefusal, NamespaceDevice};
use bpfof_host::grant::protocol::{Answer, Cause, Refusal};
use bpfof_host::grant::{Credentials, PacketSocket};
use log::Level;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Stat, chownat, fchmod, lstat};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use rustix::process::umask;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Most clients that wait to be accepted.
const BACKLOG: i32 = 128;
/// Interval of the acceptor's periodic checks.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Pause after a failure to accept, such as a lack of descriptors.
const ACCEPT_AGAIN: std::time::Duration = std::time::Duration::from_millis(100);

/// Why a daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configured device of a namespace is not suitable.
    #[error(transparent)]
    Device(#[from] MapRefusal),
    /// The group does not exist.
    #[error("there is no group {0}")]
    Group(String),
    /// Another daemon listens there.
    #[error("{}: another daemon already listens there", .0.display())]
    InUse(PathBuf),
    /// A system call failed.
    #[error("{action}: {source}")]
    Io {
        /// What was attempted.
        action: String,
        /// The error.
        source: io::Error,
    },
}

fn cannot(action: impl Into<String>) -> impl FnOnce(io::Error) -> StartError {
    let action = action.into();
    |source| StartError::Io { action, source }
}

/// A daemon that listens. Dropping it ends it as [`stop`](Self::stop) does.
#[derive(Debug)]
pub struct Daemon {
    shared: Arc<Shared>,
    wake: Arc<Wake>,
    stopping: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
    /// The socket's file.
    bound: Stat,
}

impl Daemon {
    /// Starts a daemon.
    ///
    /// # Errors
    /// [`StartError`] says what is wrong with the configuration or the machine. An unreachable target is no error here:
    /// clients get it.
    pub fn start(config: Config) -> Result<Self, StartError> {
        config.check()?;
        let mut namespaces = Vec::new();
        for served in &config.namespaces {
            namespaces.push((served.clone(), NamespaceDevice::new(&served.device)?));
        }
        let keepsake = Keepsake::new(&config.holder).map_err(cannot(
            "cannot start the process that holds the leases if this process dies",
        ))?;
        let keepsake = Arc::new(keepsake);
        let (listener, bound) = open_socket(&config)?;
        let wake = Arc::new(Wake::new().map_err(cannot("cannot make an eventfd"))?);
        let shared = Arc::new(Shared {
            quotas: Quotas::new(config.limits),
            namespaces,
            keepsake,
            ending: AtomicBool::new(false),
            clients: Mutex::default(),
            told: Seldom::default(),
            closing: Closing::default(),
            config,
        });
        if let Some(shortage) = descriptors::shortage(&shared.config.limits) {
            log::info!("{shortage}");
        }
        if let Err(refusal) = check_break_time() {
            log::warn!("no files can be granted: {refusal}");
        }
        let path = shared.config.socket.display();
        log::info!("listening at {path}; leases are kept by {}", shared.keepsake.describe());
        shared.keepsake.notify("READY=1");
        let stopping = Arc::new(AtomicBool::new(false));
        let acceptor = Acceptor {
            shared: Arc::clone(&shared),
            wake: Arc::clone(&wake),
            stopping: Arc::clone(&stopping),
            listener,
        };
        let thread = std::thread::Builder::new().name("accept".into());
        let thread =
            thread.spawn(move || acceptor.run()).map_err(cannot("cannot start a thread"))?;
        Ok(Self { shared, wake, stopping, acceptor: Some(thread), bound })
    }

    /// Accepts no more clients, takes all grants back and waits until that is done: as long as a target takes to
    /// answer, or as long as a lost target, or the target of a killed predecessor, may still have maps.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(acceptor) = self.acceptor.take() else { return };
        self.shared.keepsake.notify("STOPPING=1");
        // Remove the file while the socket still listens: afterwards another daemon could take it for a stale socket.
        self.remove_socket();
        self.stopping.store(true, Ordering::SeqCst);
        self.wake.wake();
        let _ = acceptor.join();
        self.shared.end_all();
    }

    /// Removes the socket's file, unless another one has its name by now.
    fn remove_socket(&self) {
        let path = &self.shared.config.socket;
        let is_own =
            |found: Stat| (found.st_dev, found.st_ino) == (self.bound.st_dev, self.bound.st_ino);
        let removed = match lstat(path) {
            Ok(found) if is_own(found) => fs::remove_file(path),
            Ok(_) => {
                return log::warn!(
                    "{}: not removed, because it is another socket now",
                    path.display()
                );
            }
            Err(error) => Err(error.into()),
        };
        if let Err(error) = removed {
            log::warn!("{}: {error}", path.display());
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
    }
}

struct Acceptor {
    shared: Arc<Shared>,
    wake: Arc<Wake>,
    stopping: Arc<AtomicBool>,
    listener: OwnedFd,
}

impl Acceptor {
    fn run(self) {
        while !self.stopping.load(Ordering::SeqCst) {
            self.turn();
        }
        // Clients may still be queued in the listener, with descriptors that never finish closing. A thread of
        // `closing` closes it.
        self.shared.closing.add(NOBODY, self.listener);
    }

    fn turn(&self) {
        let is_full = self.shared.closing.is_full();
        let wanted = if is_full { PollFlags::empty() } else { PollFlags::IN };
        let mut waited = [
            PollFd::new(&self.listener, wanted),
            PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
        ];
        // Continue even if the wait was interrupted.
        let _ = poll(&mut waited, Some(&LOOK_EVERY));
        self.shared.clients().retain(|client| !client.thread.is_finished());
        if !self.shared.keepsake.is_there() {
            self.renew_keepsake();
        }
        self.shared.keepsake.tend();
        self.shared.closing.tend();
        if is_full {
            let why = "clients are not accepted: too many sockets of refused clients cannot be \
                       closed";
            return self.shared.told.note(NOBODY, Level::Warn, || why.to_owned());
        }
        match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => self.admit(socket),
            Err(rustix::io::Errno::AGAIN) => {}
            Err(error) => {
                let line = || format!("cannot accept a client: {error}");
                self.shared.told.note(NOBODY, Level::Warn, line);
                std::thread::sleep(ACCEPT_AGAIN);
            }
        }
    }

    /// Takes all grants back, and starts another keepsake process: without one that holds the leases if this process
    /// dies, nothing may be granted.
    fn renew_keepsake(&self) {
        log::error!("the process that holds the leases has ended; all grants are taken back");
        self.shared.end_all();
        match self.shared.keepsake.renew(&self.shared.config.holder) {
            Ok(()) => self.shared.ending.store(false, Ordering::SeqCst),
            Err(error) => log::error!("cannot start another process to hold the leases: {error}"),
        }
    }

    /// Starts a session for a client, or turns it away. Never closes a client's socket on this thread, because that may
    /// take for ever.
    fn admit(&self, socket: OwnedFd) {
        let Credentials { uid, pid } = match Credentials::of_peer(&socket) {
            Ok(credentials) => credentials,
            Err(error) => {
                let line = || format!("cannot read the credentials of a client: {error}");
                self.shared.told.note(NOBODY, Level::Warn, line);
                return self.shared.closing.add(NOBODY, socket);
            }
        };
        let (peer, socket) = (Peer { uid, pid }, PacketSocket::new(socket));
        let share = match self.shared.quotas.take(uid, Kind::Clients, 1) {
            Ok(share) => share,
            Err(exceeded) => {
                let refusal = Refusal::new(Cause::Quota, exceeded);
                return self.turn_away(socket, peer, refusal);
            }
        };
        let unable = |error| {
            Refusal::new(Cause::Unavailable, format!("the daemon cannot serve the client: {error}"))
        };
        let wake = match Wake::new() {
            Ok(wake) => Arc::new(wake),
            Err(error) => return self.turn_away(socket, peer, unable(error)),
        };
        let (shared, its_wake) = (Arc::clone(&self.shared), Arc::clone(&wake));
        // The socket is passed later: if the thread cannot be started, its closure is dropped with all it owns.
        let (give, given) = channel();
        let serve = move || {
            if let Ok(socket) = given.recv() {
                session::serve(&shared, socket, peer, its_wake, share);
            }
        };
        match std::thread::Builder::new().name("client".into()).spawn(serve) {
            Ok(thread) => {
                // The thread waits for it.
                let _ = give.send(socket);
                self.shared.clients().push(Client { wake, thread });
            }
            Err(error) => self.turn_away(socket, peer, unable(error)),
        }
    }

    fn turn_away(&self, socket: PacketSocket, peer: Peer, refusal: Refusal) {
        self.shared.tell(peer, Level::Warn, format_args!("turned away: {refusal}"));
        let mut packet = Vec::new();
        Answer::Refused(refusal).encode(&mut packet);
        // A client that does not read its answer loses it.
        let _ = socket.send(&packet, &[]);
        self.shared.closing.add(peer.uid, socket.into());
    }
}

/// Opens a listening socket at the configured path, with the configured permissions. Replaces a socket that a dead
/// daemon has left. Returns the socket, and the metadata of its file.
fn open_socket(config: &Config) -> Result<(OwnedFd, Stat), StartError> {
    let path = &config.socket;
    let named = || path.display().to_string();
    let gid = config.group.as_deref().map(group).transpose()?;
    let address = SocketAddrUnix::new(path).map_err(|e| cannot(named())(e.into()))?;
    let new = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
    };
    let listener = new().map_err(|e| cannot("no socket")(e.into()))?;
    let probe = new().map_err(|e| cannot("no socket")(e.into()))?;
    match connect(&probe, &address) {
        Err(rustix::io::Errno::NOENT) => {}
        Err(rustix::io::Errno::CONNREFUSED) if is_socket(path) => {
            fs::remove_file(path).map_err(cannot(named()))?;
        }
        Err(rustix::io::Errno::CONNREFUSED) => {
            return Err(cannot(named())(ErrorKind::AlreadyExists.into()));
        }
        _ => return Err(StartError::InUse(path.clone())),
    }
    // The file gets the permissions of the socket when it is bound: a chmod of the path later could change another
    // file that is there by then. The umask would remove some of them; it is process-wide, but no other thread creates
    // files yet.
    let mode = Mode::from_raw_mode(config.mode);
    fchmod(&listener, mode).map_err(|e| cannot("the socket's mode")(e.into()))?;
    let before = umask(Mode::empty());
    let is_bound = bind(&listener, &address);
    umask(before);
    // Clients cannot connect before `listen`, and by then the group is set.
    is_bound.map_err(|e| cannot(named())(e.into()))?;
    let bound = lstat(path).map_err(|e| cannot(named())(e.into()))?;
    if gid.is_some() {
        chownat(CWD, path, None, gid, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| cannot(named())(e.into()))?;
    }
    listen(&listener, BACKLOG).map_err(|e| cannot(named())(e.into()))?;
    Ok((listener, bound))
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// The number of a group, from its number or its name in /etc/group.
fn group(name: &str) -> Result<Gid, StartError> {
    if let Ok(number) = name.parse() {
        return Ok(Gid::from_raw(number));
    }
    let groups = fs::read_to_string("/etc/group").map_err(cannot("cannot read /etc/group"))?;
    let number = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    });
    number.map(Gid::from_raw).ok_or_else(|| StartError::Group(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::closing::tests::Lingering;
    use crate::config::{Limits, Served};
    use crate::{ANSWERED, EXPIRED};
    use bpfof_host::grant::protocol::{PROTOCOL, Request};
    use bpfof_host::grant::{GrantClient, GrantError};
    use std::os::fd::BorrowedFd;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, Instant};

    /// Shorter than the lingering connections take to close.
    const SOON: Duration = Duration::from_secs(30);

    /// The configuration of a daemon without a target, for one client per user.
    fn config(folder: &Path) -> Config {
        let device = folder.join("image");
        fs::write(&device, "").expect("written");
        let url = "nvme-tcp://127.0.0.1:1/nqn.2026-01.a:b?ns=1".parse().expect("an address");
        Config {
            socket: folder.join("socket"),
            mode: 0o606,
            namespaces: vec![Served { url, device }],
            limits: Limits { clients_per_user: 1, ..Limits::default() },
            holder: crate::keepsake::tests::holder(),
            ..Config::default()
        }
    }

    fn cause(refused: Result<GrantClient, GrantError>) -> Cause {
        match refused.expect_err("there is no target") {
            GrantError::Refused(refusal) => refusal.cause,
            error => panic!("{error}"),
        }
    }

    /// Connects another client, which sends a packet with a descriptor. Returns whether it could.
    fn is_queued(path: &Path, descriptor: BorrowedFd<'_>, clients: &mut Vec<PacketSocket>) -> bool {
        // The queue of waiting clients may be full.
        let Ok(client) = PacketSocket::connect(path, Duration::from_millis(1)) else {
            return false;
        };
        let sent = client.send(b"", &[descriptor]);
        clients.push(client);
        sent.is_ok()
    }

    #[test]
    fn the_socket_has_its_mode_from_the_first_moment() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = Config { mode: 0o662, ..config(folder.path()) };
        let (_listener, bound) = open_socket(&config).expect("it listens");
        assert_eq!(bound.st_mode & 0o7777, 0o662);
        let found = fs::metadata(&config.socket).expect("it is there");
        assert_eq!(found.permissions().mode() & 0o7777, 0o662);
    }

    /// If systemd kills the unit while it stops, the leases in its descriptor store are lost.
    #[test]
    fn the_unit_has_more_time_to_stop_than_that_takes() {
        let unit = include_str!("../../../packaging/systemd/bpfof-grantd.service");
        let seconds = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec="));
        let seconds: u64 = seconds.and_then(|text| text.parse().ok()).expect("a number");
        // The commands of a load in progress (1 MiB in parts of 128 KiB), and the last one.
        let takes = 9 * ANSWERED + session::TAKE_BACK + EXPIRED;
        assert!(Duration::from_secs(seconds) > takes, "{takes:?}");
    }

    #[test]
    fn a_client_over_its_quota_cannot_keep_others_waiting() {
        let folder = tempfile::tempdir().expect("a folder");
        let (config, lingering) = (config(folder.path()), Lingering::new());
        let path = config.socket.clone();
        let daemon = Daemon::start(config).expect("it starts");
        // The only client that is served. It sends no further requests for a while.
        let mut served = PacketSocket::connect(&path, SOON).expect("connected");
        let mut packet = Vec::new();
        Request::Open { protocol: PROTOCOL + 1 }.encode(&mut packet);
        served.send(&packet, &[]).expect("sent");
        assert!(served.wait(SOON).expect("waited") && served.receive().is_ok());
        let begun = Instant::now();
        let mut clients = Vec::new();
        for queued in 0..16 {
            let connection = lingering.connection();
            // This fails if the client has been turned away already.
            while !is_queued(&path, connection.as_fd(), &mut clients) {
                assert!(begun.elapsed() < SOON, "{queued} packets were queued");
            }
            // If this is the last descriptor by now, closing it takes long here.
            std::thread::spawn(move || drop(connection));
        }
        assert_eq!(cause(GrantClient::connect(&path, None)), Cause::Quota);
        drop(served);
        while cause(GrantClient::connect(&path, None)) == Cause::Quota {
            assert!(begun.elapsed() < SOON, "the client counts for ever");
            std::thread::sleep(Duration::from_millis(5));
        }
        daemon.stop();
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        assert!(clients.iter().all(PacketSocket::is_closed));
    }
}
