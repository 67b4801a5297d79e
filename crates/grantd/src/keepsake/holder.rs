//! A process that holds duplicates of leased descriptors, and outlives the daemon.

use crate::EXPIRED;
use bpfof_host::grant::PacketSocket;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Kinds of packets to the holder: a kind, then a little-endian key. A descriptor to keep comes with its packet.
const KEEP: u8 = 1;
const DROP: u8 = 2;
/// All leases were released: the holder may end at once. Without a key.
const END: u8 = 3;

/// Longest wait for the holder to accept a packet.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(1);
/// Longest sleep of the holder while no packet comes.
const IDLE: Duration = Duration::from_secs(60);

/// The daemon's end of the connection to the holder.
#[derive(Debug)]
pub(super) struct Holder {
    socket: PacketSocket,
    process: Child,
}

impl Holder {
    pub(super) fn start(command: &[PathBuf]) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(ErrorKind::InvalidInput)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { socket: PacketSocket::new(ours), process })
    }

    pub(super) fn keep(&self, key: u64, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.send(KEEP, key, &[descriptor])
    }

    pub(super) fn drop_key(&self, key: u64) -> io::Result<()> {
        self.send(DROP, key, &[])
    }

    fn send(&self, kind: u8, key: u64, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut packet = vec![kind];
        packet.extend(key.to_le_bytes());
        self.send_packet(&packet, descriptors)
    }

    /// Waits for room if the process has not received earlier packets yet.
    fn send_packet(&self, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.socket.send(packet, descriptors) {
                Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < end => {
                    std::thread::sleep(PAUSE);
                }
                sent => return sent,
            }
        }
    }

    pub(super) fn is_there(&self) -> bool {
        !self.socket.is_closed()
    }
}

impl Drop for Holder {
    /// When the daemon ends in order. All leases were released.
    fn drop(&mut self) {
        // If it does not take the packet, the end of the connection ends it, some time later; or it has ended already.
        if self.send_packet(&[END], &[]).is_err() {
            self.socket.shut_down();
        }
        let _ = self.process.wait();
    }
}

/// Main function of the process that holds the leases, with its socket as standard input. Returns once the daemon has
/// ended in order, or has died and its associations must have ended at their targets.
///
/// # Errors
/// The socket is not one from the daemon.
pub fn hold_leases(socket: OwnedFd) -> io::Result<()> {
    let mut socket = PacketSocket::new(socket);
    let mut held = HashMap::new();
    loop {
        socket.wait(IDLE)?;
        let packet = match socket.receive() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            packet => packet?,
        };
        let Some(mut packet) = packet else {
            std::thread::sleep(EXPIRED);
            return Ok(());
        };
        let key = packet.bytes.get(1..).and_then(|key| key.first_chunk().copied());
        let key = key.map(u64::from_le_bytes);
        match (packet.bytes.first(), key, packet.descriptors.pop()) {
            (Some(&KEEP), Some(key), Some(descriptor)) => {
                held.insert(key, descriptor);
            }
            (Some(&DROP), Some(key), None) => {
                held.remove(&key);
            }
            (Some(&END), None, None) => return Ok(()),
            _ => return Err(ErrorKind::InvalidData.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn kept_descriptors_stay_open_until_dropped_or_the_end() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let made = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (ours, theirs) = made.expect("sockets");
        let process = Command::new("true").spawn().expect("it runs");
        let holder = Holder { socket: PacketSocket::new(ours), process };
        let thread = std::thread::spawn(move || hold_leases(theirs));
        let (read, write) = std::io::pipe().expect("a pipe");
        let (other_read, other_write) = std::io::pipe().expect("a pipe");
        holder.keep(7, write.as_fd()).expect("sent");
        holder.keep(8, other_write.as_fd()).expect("sent");
        drop((write, other_write));
        assert!(holder.is_there());
        holder.drop_key(7).expect("sent");
        // Waits until the pipe's write end is closed: then a read returns the end of the file.
        assert_eq!(rustix::io::read(&read, &mut [0; 1]).expect("its end"), 0);
        drop(holder);
        assert_eq!(rustix::io::read(&other_read, &mut [0; 1]).expect("its end"), 0);
        thread.join().expect("it ends").expect("in order");
    }
}
