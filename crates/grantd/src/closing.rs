//! Closes sockets of clients that are not served. Closing one also closes the descriptors that are queued in it, which
//! may take for ever: a TCP socket with `SO_LINGER` waits for its peer. So separate threads do that, a few for each
//! user, and no other thread waits for them. Whether descriptors are queued cannot be known in advance: even packets
//! without bytes may carry some.

use rustix::net::{Shutdown, shutdown};
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most threads for sockets of one user. Only a user whose descriptors cannot be closed keeps more than one for long.
const THREADS_PER_USER: usize = 4;
/// Most threads for sockets of all users.
const THREADS_MAX: usize = 128;
/// Most sockets of all users that may wait for a thread. Beyond that no client is accepted, because each accepted
/// socket must be closed eventually. One user can cause this many only with as many descriptors in flight
/// (`RLIMIT_NOFILE`).
pub(crate) const WAITING_MAX: usize = 4096;
/// User id for sockets without a user: no user has this id.
pub(crate) const NOBODY: u32 = u32::MAX;

/// The sockets to close. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Closing(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The waiting sockets, each with its user.
    waiting: VecDeque<(u32, OwnedFd)>,
    /// Number of threads of each user that has any.
    threads: HashMap<u32, usize>,
}

impl Closing {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a connection, and leaves closing its socket to a thread. Never blocks.
    pub(crate) fn add(&self, uid: u32, socket: OwnedFd) {
        // The client sees the end now, and can queue nothing more. The connection may have ended already.
        let _ = shutdown(&socket, Shutdown::Both);
        self.state().waiting.push_back((uid, socket));
        self.tend();
    }

    /// Whether no more clients may be accepted.
    pub(crate) fn is_full(&self) -> bool {
        self.state().waiting.len() >= WAITING_MAX
    }

    /// Starts a thread if a socket waits whose user may have another one. Also call it periodically: the machine may
    /// temporarily have no threads left.
    pub(crate) fn tend(&self) {
        let Some(uid) = self.state().begin() else { return };
        let closing = self.clone();
        let close = move || while closing.close_next(uid) {};
        if let Err(error) = std::thread::Builder::new().name("closing".into()).spawn(close) {
            log::debug!("cannot start a thread that closes sockets: {error}");
            self.state().end(uid);
        }
    }

    /// Closes a socket of a user; returns false if none waits, and the thread must end.
    fn close_next(&self, uid: u32) -> bool {
        let next = self.state().next(uid);
        let is_one = next.is_some();
        // Without the lock, because this may take for ever.
        drop(next);
        is_one
    }
}

impl State {
    /// Counts a new thread for a user who needs one, and returns the user.
    fn begin(&mut self) -> Option<u32> {
        if self.threads.values().sum::<usize>() >= THREADS_MAX {
            return None;
        }
        let has_room = |uid: &u32| self.threads.get(uid).is_none_or(|of| *of < THREADS_PER_USER);
        let uid = self.waiting.iter().map(|(uid, _)| *uid).find(has_room)?;
        *self.threads.entry(uid).or_default() += 1;
        Some(uid)
    }

    /// Notes that a thread of a user ends.
    fn end(&mut self, uid: u32) {
        if let Some(threads) = self.threads.get_mut(&uid) {
            *threads -= 1;
            if *threads == 0 {
                self.threads.remove(&uid);
            }
        }
    }

    /// The next socket for a thread of this user. `None` ends the thread: sockets that are added later get another one.
    fn next(&mut self, uid: u32) -> Option<OwnedFd> {
        let at = self.waiting.iter().position(|(of, _)| *of == uid);
        let next = at.and_then(|at| self.waiting.remove(at));
        if next.is_none() {
            self.end(uid);
        }
        next.map(|(_, socket)| socket)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use bpfof_host::grant::PacketSocket;
    use rustix::net::sockopt::{
        set_socket_linger, set_socket_recv_buffer_size, set_socket_send_buffer_size,
    };
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    /// Longer than any wait of a test.
    const LINGERS: Duration = Duration::from_secs(60);
    const SOON: Duration = Duration::from_secs(20);

    /// Makes connections whose last descriptor takes a minute to close, as long as this exists.
    pub(crate) struct Lingering(TcpListener);

    impl Lingering {
        pub(crate) fn new() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
            set_socket_recv_buffer_size(&listener, 4096).expect("set");
            Self(listener)
        }

        /// A connection with data that its peer does not read.
        pub(crate) fn connection(&self) -> TcpStream {
            let address = self.0.local_addr().expect("an address");
            let mut stream = TcpStream::connect(address).expect("connected");
            set_socket_linger(&stream, Some(LINGERS)).expect("set");
            set_socket_send_buffer_size(&stream, 4096).expect("set");
            stream.set_nonblocking(true).expect("set");
            while stream.write(&[0; 64 << 10]).is_ok() {}
            stream
        }
    }

    /// One end of a connection, with a descriptor queued in it.
    fn with_queued(descriptor: impl AsFd) -> OwnedFd {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let made = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (ours, theirs) = made.expect("sockets");
        PacketSocket::new(theirs).send(b"packet", &[descriptor.as_fd()]).expect("sent");
        ours
    }

    #[test]
    fn unclosable_descriptors_of_a_user_do_not_delay_others() {
        let (closing, lingering) = (Closing::default(), Lingering::new());
        let begun = Instant::now();
        let more = 6;
        for _ in 0..THREADS_PER_USER + more {
            closing.add(7, with_queued(lingering.connection()));
        }
        // Waits until the pipe's write end is closed: then a read returns the end of the file.
        let (read, write) = std::io::pipe().expect("a pipe");
        closing.add(8, with_queued(write));
        assert_eq!(rustix::io::read(&read, &mut [0; 1]).expect("its end"), 0);
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        let end = Instant::now() + SOON;
        while closing.state().waiting.len() > more {
            assert!(Instant::now() < end, "no thread takes them");
            std::thread::yield_now();
        }
        // There may be fewer threads if another test's child had a copy of a descriptor between fork and exec.
        let threads = closing.state().threads.get(&7).copied();
        assert!(
            threads.is_some_and(|threads| (1..=THREADS_PER_USER).contains(&threads)),
            "{threads:?}"
        );
        // Once their peer is gone, all are closed, and no thread is left.
        drop(lingering);
        while closing.state().threads.values().sum::<usize>() > 0 {
            assert!(Instant::now() < end, "threads stay");
            std::thread::yield_now();
        }
        assert!(closing.state().waiting.is_empty() && !closing.is_full());
    }
}
