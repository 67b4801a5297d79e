//! The daemon: its socket, its clients, its end.

use crate::config::{Config, ConfigError};
use crate::examine::check_break_time;
use crate::keepsake::Keepsake;
use crate::quota::{Kind, Quotas};
use crate::seldom::Seldom;
use crate::session;
use crate::shared::{Client, Peer, Shared, Wake};
use bpfof_host::files::{MapRefusal, NamespaceDevice};
use bpfof_host::grant::PacketSocket;
use bpfof_host::grant::protocol::{Answer, Cause, Refusal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Stat, chmodat, chownat, lstat};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use std::fmt::Display;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Clients that wait to be accepted.
const BACKLOG: i32 = 128;
/// The acceptor looks around so often.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Failures to accept, such as a lack of descriptors, are not tried again before.
const ACCEPT_AGAIN: std::time::Duration = std::time::Duration::from_millis(100);

/// Why a daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What a namespace should be on this machine is something else.
    #[error(transparent)]
    Device(#[from] MapRefusal),
    /// The group does not exist.
    #[error("there is no group {0}")]
    Group(String),
    /// Another daemon listens there.
    #[error("{}: a daemon listens there already", .0.display())]
    InUse(PathBuf),
    /// The kernel refuses.
    #[error("{action}: {source}")]
    Io {
        /// What was attempted.
        action: String,
        /// Why not.
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
    /// [`StartError`] says what is wrong with the configuration or the machine. That a target is not
    /// there is no error: clients are told.
    pub fn start(config: Config) -> Result<Self, StartError> {
        config.check()?;
        let mut namespaces = Vec::new();
        for served in &config.namespaces {
            namespaces.push((served.clone(), NamespaceDevice::new(&served.device)?));
        }
        let keepsake = Keepsake::new(&config.holder)
            .map_err(cannot("cannot start who holds the leases if this process dies"))?;
        let keepsake = Arc::new(keepsake);
        let (listener, bound) = open_socket(&config)?;
        let wake = Arc::new(Wake::new().map_err(cannot("cannot make an eventfd"))?);
        let shared = Arc::new(Shared {
            quotas: Quotas::new(config.limits),
            namespaces,
            keepsake,
            ending: AtomicBool::new(false),
            clients: Mutex::default(),
            refused: Seldom::default(),
            config,
        });
        if let Err(refusal) = check_break_time() {
            log::warn!("no file is granted: {refusal}");
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
        let thread = thread.spawn(move || acceptor.run()).map_err(cannot("no thread"))?;
        Ok(Self { shared, wake, stopping, acceptor: Some(thread), bound })
    }

    /// Accepts no more clients, takes all grants back and waits until that is done: as long as a target
    /// takes to answer, or a lost one may still have maps.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(acceptor) = self.acceptor.take() else { return };
        self.shared.keepsake.notify("STOPPING=1");
        // Before another daemon can take it for one that nobody listens at.
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
            Ok(_) => return log::warn!("{}: another socket has its name", path.display()),
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
    fn run(&self) {
        while !self.stopping.load(Ordering::SeqCst) {
            let mut waited = [
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
            ];
            // Interrupted or not: look.
            let _ = poll(&mut waited, Some(&LOOK_EVERY));
            self.shared.clients().retain(|client| !client.thread.is_finished());
            if !self.shared.keepsake.is_there() {
                self.renew_keepsake();
            }
            match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.admit(socket),
                Err(rustix::io::Errno::AGAIN) => {}
                Err(error) => {
                    log::warn!("no client can be accepted: {error}");
                    std::thread::sleep(ACCEPT_AGAIN);
                }
            }
        }
    }

    /// Without somebody who would hold the leases if this process died, nothing may be granted.
    fn renew_keepsake(&self) {
        log::error!("the process that holds the leases has ended; all grants are taken back");
        self.shared.end_all();
        match self.shared.keepsake.renew(&self.shared.config.holder) {
            Ok(()) => self.shared.ending.store(false, Ordering::SeqCst),
            Err(error) => log::error!("cannot start another one: {error}"),
        }
    }

    fn admit(&self, socket: OwnedFd) {
        let credentials = match socket_peercred(&socket) {
            Ok(credentials) => credentials,
            Err(error) => return log::warn!("a client without credentials: {error}"),
        };
        let (uid, pid) = (credentials.uid.as_raw(), credentials.pid.as_raw_nonzero().get());
        let (peer, socket) = (Peer { uid, pid }, PacketSocket::new(socket));
        let share = match self.shared.quotas.take(uid, Kind::Clients, 1) {
            Ok(share) => share,
            Err(exceeded) => {
                return self.turn_away(&socket, peer, Refusal::new(Cause::Quota, exceeded));
            }
        };
        let wake = match Wake::new() {
            Ok(wake) => Arc::new(wake),
            Err(error) => return self.note(peer, &error),
        };
        let (shared, its_wake) = (Arc::clone(&self.shared), Arc::clone(&wake));
        let serve = move || session::serve(&shared, socket, peer, its_wake, share);
        match std::thread::Builder::new().name("client".into()).spawn(serve) {
            Ok(thread) => self.shared.clients().push(Client { wake, thread }),
            Err(error) => self.note(peer, &error),
        }
    }

    fn note(&self, peer: Peer, why: &dyn Display) {
        self.shared.refused.note(|| format!("{peer}: turned away: {why}"));
    }

    fn turn_away(&self, socket: &PacketSocket, peer: Peer, refusal: Refusal) {
        self.note(peer, &refusal);
        let mut packet = Vec::new();
        Answer::Refused(refusal).encode(&mut packet);
        // Who does not read it has no answer.
        let _ = socket.send(&packet, &[]);
    }
}

/// A socket that listens at the configured path, with its permissions, and its file. One that a dead daemon has
/// left is replaced.
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
    // Nobody connects before it listens, and it listens when its permissions are set.
    bind(&listener, &address).map_err(|e| cannot(named())(e.into()))?;
    let bound = lstat(path).map_err(|e| cannot(named())(e.into()))?;
    let mode = Mode::from_raw_mode(config.mode);
    chmodat(CWD, path, mode, AtFlags::empty()).map_err(|e| cannot(named())(e.into()))?;
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

/// The number of a group, by that or by its name in /etc/group.
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
