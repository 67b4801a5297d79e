//! What systemd offers the services that it runs: notifications, a store for descriptors, sockets that are
//! open before the service starts, a watchdog (sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3)).
//!
//! Whoever else speaks the protocol will do: it is variables of the environment and datagrams on a socket.

mod inherited;

pub use inherited::inherited;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, sendmsg, socket_with,
};
use rustix::time::{ClockId, clock_gettime};
use std::env;
use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// Longest wait for systemd to have taken what it was sent.
const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The service manager that runs this process.
#[derive(Debug)]
pub struct Manager {
    socket: OwnedFd,
}

impl Manager {
    /// The manager that the environment names (`NOTIFY_SOCKET`); none if there is none.
    ///
    /// # Errors
    /// The socket cannot be reached.
    pub fn of_environment() -> io::Result<Option<Self>> {
        let Some(name) = env::var_os("NOTIFY_SOCKET") else { return Ok(None) };
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
            path => SocketAddrUnix::new(path)?,
        };
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        connect(&socket, &address)?;
        Ok(Some(Self { socket }))
    }

    /// Another way to the same manager.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { socket: self.socket.try_clone()? })
    }

    fn send(&self, text: &str, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let text = [IoSlice::new(text.as_bytes())];
        sendmsg(&self.socket, &text, &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Tells it a state, such as `READY=1`; several are apart by line ends.
    ///
    /// # Errors
    /// It does not listen.
    pub fn notify(&self, state: &str) -> io::Result<()> {
        self.send(state, None)
    }

    /// Tells it that the service reads its configuration again: until `READY=1`.
    ///
    /// # Errors
    /// It does not listen.
    pub fn notify_reloading(&self) -> io::Result<()> {
        let now = clock_gettime(ClockId::Monotonic);
        let now_us = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.notify(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"))
    }

    /// Gives it a descriptor under a name, for the next process of the unit. Returns once it has looked at it:
    /// what a process sends and then dies is not always taken. It drops without a word what it has no room for
    /// ([`stored_max`]).
    ///
    /// # Errors
    /// It has not looked at it within a second.
    pub fn store(&self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.send(&format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}"), Some(descriptor))?;
        let (read, write) = io::pipe()?;
        self.send("BARRIER=1", Some(write.as_fd()))?;
        drop(write);
        let mut poll_fd = [PollFd::new(&read, PollFlags::HUP)];
        match poll(&mut poll_fd, Some(&PATIENCE))? {
            0 => Err(ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }

    /// Has it close what it stores under a name.
    ///
    /// # Errors
    /// It does not listen.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        self.notify(&format!("FDSTOREREMOVE=1\nFDNAME={name}"))
    }
}

/// How many descriptors the manager stores for the unit of this process (`FDSTORE`), those included that it
/// stores already; None if it does not tell: systemd before 254, a unit without a store, another manager, or a
/// process that the manager has not started itself and may not listen to.
pub fn stored_max() -> Option<usize> {
    let number = |name| env::var(name).ok()?.parse::<usize>().ok();
    let is_ours = number("SYSTEMD_EXEC_PID") == Some(std::process::id() as usize);
    number("FDSTORE").filter(|_| is_ours)
}

/// How often the manager wants `WATCHDOG=1`, or else ends this process; none if it does not.
pub fn watchdog() -> Option<Duration> {
    let number = |name| env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|us| *us > 0 && is_ours).map(Duration::from_micros)
}

/// Whether what this process writes to standard error goes to the journal (`JOURNAL_STREAM`), which takes
/// the level of a line from `<N>` before it.
pub fn logs_to_journal() -> bool {
    let Ok(stream) = env::var("JOURNAL_STREAM") else { return false };
    let Ok(found) = rustix::fs::fstat(io::stderr()) else { return false };
    stream == format!("{}:{}", found.st_dev, found.st_ino)
}
