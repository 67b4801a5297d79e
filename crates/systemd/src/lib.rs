//! Features of systemd for its services: notifications, a store for descriptors, sockets that are open before the
//! service starts, a watchdog (sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3)).
//!
//! Any service manager with the same protocol works: environment variables, and datagrams on a socket.

mod inherited;

pub use inherited::inherited;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, sendmsg, socket_with,
};
use rustix::time::{ClockId, clock_gettime};
use std::env;
use std::ffi::OsStr;
use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

/// Longest wait for systemd to accept a datagram, and to process a descriptor.
const PATIENCE: Duration = Duration::from_secs(1);

/// The service manager that runs this process.
#[derive(Debug)]
pub struct Manager {
    socket: OwnedFd,
}

impl Manager {
    /// The manager that the environment names (`NOTIFY_SOCKET`); `None` if it names none.
    ///
    /// # Errors
    /// The socket cannot be reached.
    pub fn of_environment() -> io::Result<Option<Self>> {
        env::var_os("NOTIFY_SOCKET").map(|address| Self::connect(&address)).transpose()
    }

    /// The manager that listens at an address: a path, or `@` and a name of the abstract namespace.
    ///
    /// # Errors
    /// The socket cannot be reached.
    pub fn connect(address: &OsStr) -> io::Result<Self> {
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
            path => SocketAddrUnix::new(path)?,
        };
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        connect(&socket, &address)?;
        Ok(Self { socket })
    }

    /// Another connection to the same manager.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { socket: self.socket.try_clone()? })
    }

    /// Sends a datagram; waits for room until `end`.
    fn send(&self, text: &str, descriptor: Option<BorrowedFd<'_>>, end: Instant) -> io::Result<()> {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let text = [IoSlice::new(text.as_bytes())];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            match sendmsg(&self.socket, &text, &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait(&self.socket, PollFlags::OUT, end)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reports a state, such as `READY=1`; several are separated by newlines.
    ///
    /// # Errors
    /// The manager does not listen, or accepts nothing for a second.
    pub fn notify(&self, state: &str) -> io::Result<()> {
        self.send(state, None, Instant::now() + PATIENCE)
    }

    /// Reports that the service reloads its configuration, until `READY=1`.
    ///
    /// # Errors
    /// The manager does not listen, or accepts nothing for a second.
    pub fn notify_reloading(&self) -> io::Result<()> {
        let now = clock_gettime(ClockId::Monotonic);
        let now_us = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.notify(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"))
    }

    /// Stores a descriptor under a name with the manager, for the next process of the unit. The manager has processed
    /// it once [`Barrier::wait`] returns: datagrams of a process that has died are not always accepted. It silently
    /// drops descriptors for which it has no room ([`stored_max`]).
    ///
    /// # Errors
    /// The manager does not listen, or accepts nothing until `end`.
    pub fn store(
        &self,
        name: &str,
        descriptor: BorrowedFd<'_>,
        end: Instant,
    ) -> io::Result<Barrier> {
        self.send(&format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}"), Some(descriptor), end)?;
        let (processed, write) = io::pipe()?;
        self.send("BARRIER=1", Some(write.as_fd()), end)?;
        Ok(Barrier { processed: processed.into(), end })
    }

    /// Removes the descriptors under a name from the manager's store, which closes them.
    ///
    /// # Errors
    /// The manager does not listen, or accepts nothing until `end`.
    pub fn remove(&self, name: &str, end: Instant) -> io::Result<()> {
        let text = format!("FDSTOREREMOVE=1\nFDNAME={name}");
        self.send(&text, None, end)
    }
}

/// What the manager has accepted; see [`Manager::store`].
#[derive(Debug)]
#[must_use]
pub struct Barrier {
    /// Hung up when the manager has processed it.
    processed: OwnedFd,
    end: Instant,
}

impl Barrier {
    /// Waits until the manager has processed it.
    ///
    /// # Errors
    /// Not until the end that was given.
    pub fn wait(self) -> io::Result<()> {
        wait(&self.processed, PollFlags::HUP, self.end)
    }
}

/// Waits until a descriptor is ready, at most until `end`.
fn wait(descriptor: impl AsFd, wanted: PollFlags, end: Instant) -> io::Result<()> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&descriptor, wanted)], Some(&left)) {
            Ok(0) => return Err(ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// How many descriptors the manager can store for this process's unit (`FDSTORE`), including those that it stores
/// already. None if that is unknown: systemd before 254, a unit without a store, another manager, or a process that the
/// manager has not started itself, whose messages it may ignore.
pub fn stored_max() -> Option<usize> {
    let number = |name| env::var(name).ok()?.parse::<usize>().ok();
    let is_ours = number("SYSTEMD_EXEC_PID") == Some(std::process::id() as usize);
    number("FDSTORE").filter(|_| is_ours)
}

/// The interval within which the manager expects `WATCHDOG=1`, or ends this process; `None` without a watchdog.
pub fn watchdog() -> Option<Duration> {
    let number = |name| env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|us| *us > 0 && is_ours).map(Duration::from_micros)
}

/// Whether standard error of this process goes to the journal (`JOURNAL_STREAM`), which reads the level of a line from
/// a prefix `<N>`.
pub fn logs_to_journal() -> bool {
    let Ok(stream) = env::var("JOURNAL_STREAM") else { return false };
    let Ok(found) = rustix::fs::fstat(io::stderr()) else { return false };
    stream == format!("{}:{}", found.st_dev, found.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{RecvFlags, bind, recv};

    /// The socket of a manager that reads nothing by itself, and a connection to it.
    fn silent() -> (OwnedFd, Manager) {
        let new = || {
            let flags = SocketFlags::CLOEXEC;
            socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).expect("a socket")
        };
        let (listener, socket) = (new(), new());
        let name = format!("bpfof-systemd-test-{}", std::process::id());
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
        bind(&listener, &address).expect("bound");
        connect(&socket, &address).expect("connected");
        (listener, Manager { socket })
    }

    #[test]
    fn a_manager_that_takes_nothing_is_waited_for_a_second() {
        let (listener, manager) = silent();
        let error = (0..100_000).find_map(|_| manager.notify("STATUS=busy").err());
        assert_eq!(error.expect("it is full").kind(), ErrorKind::TimedOut);
        let begun = Instant::now();
        let error = manager.remove("name", Instant::now()).expect_err("it is full");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(begun.elapsed() < PATIENCE);
        let begun = Instant::now();
        let (read, _write) = io::pipe().expect("a pipe");
        let error =
            manager.store("name", read.as_fd(), Instant::now() + PATIENCE).expect_err("it is full");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(begun.elapsed() >= PATIENCE && begun.elapsed() < 20 * PATIENCE);
        // When a slow manager reads again, the waiting datagram is sent.
        let later = std::thread::spawn(move || {
            std::thread::sleep(PATIENCE / 10);
            let _ = recv(&listener, &mut [0_u8; 64], RecvFlags::empty()).expect("one is there");
            listener
        });
        manager.notify("READY=1").expect("there is room again");
        later.join().expect("no panic");
    }
}
