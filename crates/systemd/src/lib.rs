//! What systemd offers the services that it runs: notifications, a store for descriptors, sockets that are
//! open before the service starts, a watchdog (sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3)).
//!
//! Whoever else speaks the protocol will do: it is variables of the environment and datagrams on a socket.

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
use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

/// Longest wait for systemd to take what it is sent, and to look at a descriptor.
const PATIENCE: Duration = Duration::from_secs(1);

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

    /// Sends a datagram, if there is room for it before `end`.
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

    /// Tells it a state, such as `READY=1`; several are apart by line ends.
    ///
    /// # Errors
    /// It does not listen, or takes nothing for a second.
    pub fn notify(&self, state: &str) -> io::Result<()> {
        self.send(state, None, Instant::now() + PATIENCE)
    }

    /// Tells it that the service reads its configuration again: until `READY=1`.
    ///
    /// # Errors
    /// It does not listen, or takes nothing for a second.
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
        let end = Instant::now() + PATIENCE;
        self.send(&format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}"), Some(descriptor), end)?;
        let (read, write) = io::pipe()?;
        self.send("BARRIER=1", Some(write.as_fd()), end)?;
        drop(write);
        wait(&read, PollFlags::HUP, end)
    }

    /// Has it close what it stores under a name.
    ///
    /// # Errors
    /// It does not listen, or takes nothing for a second.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        self.notify(&format!("FDSTOREREMOVE=1\nFDNAME={name}"))
    }
}

/// Waits until something can be done with a descriptor, or `end` has come.
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{RecvFlags, bind, recv};

    /// A manager that takes nothing until it is asked to, and the way to it.
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
        let (read, _write) = io::pipe().expect("a pipe");
        let error = manager.store("name", read.as_fd()).expect_err("it is full");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(begun.elapsed() >= PATIENCE && begun.elapsed() < 20 * PATIENCE);
        // One that is late is sent what there was no room for.
        let later = std::thread::spawn(move || {
            std::thread::sleep(PATIENCE / 10);
            let _ = recv(&listener, &mut [0_u8; 64], RecvFlags::empty()).expect("one is there");
            listener
        });
        manager.notify("READY=1").expect("there is room again");
        later.join().expect("no panic");
    }
}
