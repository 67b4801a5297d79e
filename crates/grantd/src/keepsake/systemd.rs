//! systemd's descriptor store (sd_notify(3), FDSTORE=1): it keeps what it was given while the unit is
//! restarted, and gives it to the next process of the unit.
#![allow(unsafe_code)]

use super::key::Key;
use crate::EXPIRED;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, sendmsg, socket_with,
};
use std::env;
use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// Names of what we keep begin so.
const PREFIX: &str = "lease-";
/// First descriptor that systemd passes (SD_LISTEN_FDS_START).
const FIRST: i32 = 3;
/// Longest wait for systemd to have taken what it was sent.
const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The store.
#[derive(Debug)]
pub(super) struct Store {
    socket: OwnedFd,
    /// Tells our names from a predecessor's.
    process: u32,
}

impl Store {
    /// That of the service manager that runs this process; None if there is none.
    pub(super) fn of_environment() -> io::Result<Option<Self>> {
        let Some(name) = env::var_os("NOTIFY_SOCKET") else { return Ok(None) };
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
            path => SocketAddrUnix::new(path)?,
        };
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        connect(&socket, &address)?;
        Ok(Some(Self { socket, process: std::process::id() }))
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

    pub(super) fn notify(&self, state: &str) -> io::Result<()> {
        self.send(state, None)
    }

    fn name(&self, key: Key) -> String {
        format!("{PREFIX}{}-{}", self.process, key.0)
    }

    /// Returns once systemd has it: what a process sends and then dies is not always taken.
    pub(super) fn keep(&self, key: Key, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let text = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={}", self.name(key));
        self.send(&text, Some(descriptor))?;
        let (read, write) = io::pipe()?;
        self.send("BARRIER=1", Some(write.as_fd()))?;
        drop(write);
        let mut poll_fd = [PollFd::new(&read, PollFlags::HUP)];
        match poll(&mut poll_fd, Some(&PATIENCE))? {
            0 => Err(ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }

    pub(super) fn drop_key(&self, key: Key) -> io::Result<()> {
        self.send(&format!("FDSTOREREMOVE=1\nFDNAME={}", self.name(key)), None)
    }

    /// Drops what a predecessor has left, once its associations must have ended.
    pub(super) fn drop_inherited(&self) -> io::Result<()> {
        let variable = |name| env::var(name).unwrap_or_default();
        if variable("LISTEN_PID") != self.process.to_string() {
            return Ok(());
        }
        let count: i32 = variable("LISTEN_FDS").parse().unwrap_or(0);
        let names = variable("LISTEN_FDNAMES");
        let names: Vec<String> = names.split(':').map(str::to_owned).collect();
        let mut inherited = Vec::new();
        for (number, name) in (FIRST..FIRST.saturating_add(count)).zip(names) {
            if name.starts_with(PREFIX) {
                // SAFETY: systemd has passed this descriptor to this process, of whose descriptors nobody
                // else uses those.
                inherited.push((name, unsafe { OwnedFd::from_raw_fd(number) }));
            }
        }
        if inherited.is_empty() {
            return Ok(());
        }
        log::warn!("a predecessor has left {} leases, which last a while", inherited.len());
        let socket = self.socket.try_clone()?;
        let process = self.process;
        let later = move || {
            std::thread::sleep(EXPIRED);
            let store = Store { socket, process };
            for (name, _) in &inherited {
                let text = format!("FDSTOREREMOVE=1\nFDNAME={name}");
                if let Err(error) = store.send(&text, None) {
                    log::warn!("systemd keeps {name}: {error}");
                }
            }
            log::info!("the leases of a predecessor are dropped");
        };
        std::thread::Builder::new().name("inherited".into()).spawn(later)?;
        Ok(())
    }
}
