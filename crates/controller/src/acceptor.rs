//! Accepts connections: the listening sockets, and the thread that distributes connections to the reactors.

use crate::access::Reason;
use crate::command_log::StrangersLog;
use crate::config::{TargetConfig, TlsMode};
use crate::connection::Endpoints;
use crate::error::ServerError;
use crate::handshake::{Deliver, Handshakes};
use crate::limits::{
    BACKLOG, MAX_QUEUE_ENTRIES, RDMA_ADMIN_ENTRIES, RDMA_ADMIN_IN_CAPSULE_BYTES,
    RDMA_ADMIN_WORK_BYTES, RDMA_IN_CAPSULE_BYTES, RDMA_WORK_BYTES,
};
use crate::reactor::mailbox::{Comer, Mailbox};
use crate::reactor::{Asked, Link};
use crate::registry::Registry;
use bpfof_device::rdma;
use bpfof_nvme::Sqe;
use bpfof_nvme::rdma::{ConnectReject, ConnectRequest, RejectStatus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, SockRef, Socket, Type};
use std::fmt::Display;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Time between checks whether the network card of a listener is back.
const REVIVE_PAUSE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Socket buffers in bytes, fixed so that the kernel does not tune them (i10 §3.2): room for the
/// data of a full queue of small reads.
const SOCKET_BUFFER_BYTES: usize = 1 << 20;

/// The listening sockets.
pub(crate) struct Sockets {
    /// In the order of the configuration's listeners.
    pub(crate) io: Vec<Listening>,
    pub(crate) discovery: Option<Listening>,
}

/// A listening socket of either transport.
pub(crate) enum Listening {
    Tcp(TcpListener),
    Rdma(rdma::Listener),
}

impl Listening {
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Listening::Tcp(listener) => listener.local_addr(),
            Listening::Rdma(listener) => Ok(listener.local_addr()),
        }
    }

    /// Whether it does not listen any more and must be revived.
    fn is_dead(&self) -> bool {
        matches!(self, Listening::Rdma(listener) if listener.is_dead())
    }

    /// Makes a dead listener listen again, if that is possible now.
    fn revive(&self) {
        if let Listening::Rdma(listener) = self
            && listener.is_dead()
            && listener.revive().is_ok()
        {
            log::info!("{} accepts RDMA connections again", listener.local_addr());
        }
    }
}

impl AsFd for Listening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listening::Tcp(listener) => listener.as_fd(),
            Listening::Rdma(listener) => listener.as_fd(),
        }
    }
}

/// Listens at an address for RDMA.
pub(crate) fn listen_rdma(address: SocketAddr) -> Result<rdma::Listener, ServerError> {
    rdma::Listener::bind(address).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ServerError::AddressInUse(address),
        io::ErrorKind::AddrNotAvailable => ServerError::NoRdmaCard(address),
        // There is no device at all, or the kernel does not let programs use devices.
        _ if Errno::from_io_error(&source) == Some(Errno::NODEV) => {
            ServerError::NoRdmaCard(address)
        }
        _ => ServerError::ListenRdma { address, why: rdma::words(&source) },
    })
}

/// Listens at an address; with `only_v6`, an IPv6 socket does not take IPv4 connections.
pub(crate) fn listen(address: SocketAddr, only_v6: bool) -> Result<TcpListener, ServerError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => ServerError::AddressInUse(address),
        _ => ServerError::Listen { address, source },
    };
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).map_err(failed)?;
    socket.set_reuse_address(true).map_err(failed)?;
    if only_v6 {
        socket.set_only_v6(true).map_err(failed)?;
    }
    socket.bind(&address.into()).map_err(failed)?;
    socket.listen(BACKLOG).map_err(failed)?;
    let listener = socket.into();
    prepare_listener(&listener).map_err(failed)?;
    Ok(listener)
}

/// Sets the options that connections inherit from their listener.
pub(crate) fn prepare_listener(listener: &TcpListener) -> io::Result<()> {
    let socket = SockRef::from(listener);
    socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
    socket.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
    socket.set_nonblocking(true)
}

/// Accepts connections, and distributes them to the reactors in turn.
pub(crate) struct Acceptor {
    registry: Arc<Registry>,
    dealer: Arc<Dealer>,
    /// None without TLS.
    handshakes: Option<Handshakes>,
}

/// Distributes connections to reactors.
struct Dealer {
    mailboxes: Vec<Mailbox>,
    next: AtomicUsize,
    log: StrangersLog,
    registry: Arc<Registry>,
}

impl Dealer {
    fn deal(&self, comer: Comer) {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let mailbox = &self.mailboxes[next % self.mailboxes.len()];
        if let Some(gone) = mailbox.hand_over(comer) {
            let why = "the reactor has no time for new connections, and most of those that wait \
                       are of this address";
            self.log.warn(format_args!("{} refused", gone.ends.peer), format_args!("{why}"));
            self.registry.denials.count(Reason::Limit);
            gone.link.refuse();
        }
    }

    /// Whether a connection would have to wait for the next reactor.
    fn is_full(&self) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        self.mailboxes[next % self.mailboxes.len()].is_full()
    }
}

impl Acceptor {
    pub(crate) fn new(
        registry: &Arc<Registry>,
        mailboxes: Vec<Mailbox>,
        config: &TargetConfig,
    ) -> Result<Acceptor, ServerError> {
        let tls = config.tls();
        let (next, log) = (AtomicUsize::new(0), StrangersLog::default());
        let dealer = Arc::new(Dealer { mailboxes, next, log, registry: Arc::clone(registry) });
        let handshakes = match tls {
            TlsMode::Off | TlsMode::ByRules => None,
            TlsMode::Allowed | TlsMode::Required => {
                bpfof_tls::init().map_err(|error| ServerError::Tls(error.to_string()))?;
                let how = match bpfof_tls::ktls::is_available() {
                    _ if !config.kernel_tls => "in this process, as configured".to_owned(),
                    Ok(()) => "by the kernel".to_owned(),
                    Err(why) => format!("in this process ({why})"),
                };
                log::info!("TLS records are sealed {how}, and opened in this process");
                if tls == TlsMode::Required && !config.has_tls_keys() {
                    log::warn!(
                        "TLS is required, and no [[host]] rule has a tls-psk: no host can connect"
                    );
                }
                let dealer = Arc::clone(&dealer);
                let deliver: Deliver = Arc::new(move |(socket, ends, slot), secure| {
                    dealer.deal(Comer { link: Link::Socket(socket, secure), ends, slot });
                });
                Some(Handshakes::new(registry, config, deliver))
            }
        };
        Ok(Acceptor { registry: Arc::clone(registry), dealer, handshakes })
    }

    /// Accepts until `stop` is readable.
    pub(crate) fn run(&self, sockets: &Sockets, stop: &OwnedFd) {
        let Sockets { io, discovery } = sockets;
        let discovery = discovery.iter().map(|listener| (listener, 0, true));
        let io = io.iter().zip(0u16..).map(|(listener, index)| (listener, index, false));
        let listeners: Vec<(&Listening, u16, bool)> = io.chain(discovery).collect();
        let mut refused = Refused::default();
        loop {
            let mut wanted = vec![PollFd::new(stop, PollFlags::IN)];
            let all = listeners.iter().map(|(listener, ..)| PollFd::new(*listener, PollFlags::IN));
            wanted.extend(all);
            let is_one_dead = listeners.iter().any(|(listener, ..)| listener.is_dead());
            if poll(&mut wanted, is_one_dead.then_some(&REVIVE_PAUSE)).is_err() {
                continue;
            }
            if !wanted[0].revents().is_empty() {
                return;
            }
            for (listener, index, discovery_only) in &listeners {
                listener.revive();
                if !discovery_only {
                    let known = &self.registry.listeners[usize::from(*index)];
                    known.is_up.store(!listener.is_dead(), Ordering::Relaxed);
                }
                let which = (*index, *discovery_only);
                let Some((link, ends)) = accept_one(listener, which, &mut refused) else {
                    continue;
                };
                let hosts = &self.registry.hosts;
                let Some(slot) = hosts.connection_of(ends.counted_address()) else {
                    let limit = hosts.limits.connections_per_address;
                    refused.note(
                        ends.peer,
                        &format_args!(
                            "it has {limit} connections, which is the limit (connections-per-address)"
                        ),
                    );
                    self.registry.denials.count(Reason::Limit);
                    link.refuse();
                    continue;
                };
                // Connections for which a reactor has no time wait in the kernel.
                while self.dealer.is_full() && !is_stopped(stop) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                match (link, &self.handshakes) {
                    (Link::Socket(socket, _), Some(handshakes)) => {
                        handshakes.begin((socket, ends, slot));
                    }
                    (link, _) => self.dealer.deal(Comer { link, ends, slot }),
                }
            }
        }
    }
}

fn is_stopped(stop: &OwnedFd) -> bool {
    let mut wanted = [PollFd::new(stop, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut wanted, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Counts refused connections: at most one log line a second reports how many.
#[derive(Default)]
struct Refused {
    since: Option<Instant>,
    count: u64,
}

impl Refused {
    fn note(&mut self, peer: SocketAddr, why: &dyn Display) {
        self.count += 1;
        if self.since.is_some_and(|since| since.elapsed() < Duration::from_secs(1)) {
            return;
        }
        let (address, count) = (peer.ip(), self.count);
        log::warn!("{address}: refused: {why}; {count} refusals since the last such message");
        (self.since, self.count) = (Some(Instant::now()), 0);
    }
}

fn accept_one(
    socket: &Listening,
    (listener, discovery_only): (u16, bool),
    refused: &mut Refused,
) -> Option<(Link, Endpoints)> {
    let ends = |peer, local| Endpoints { peer, local, discovery_only, listener };
    let accepted = match socket {
        Listening::Tcp(socket) => socket.accept().and_then(|(stream, peer)| {
            let local = stream.local_addr()?;
            Ok(Some((Link::Socket(prepare(stream), None), ends(peer, local))))
        }),
        Listening::Rdma(socket) => socket.next().map(|request| {
            let request = request?;
            let ends = ends(request.peer(), request.local());
            look_at_request(request, refused).map(|asked| (Link::Asked(asked), ends))
        }),
    };
    match accepted {
        Ok(accepted) => accepted,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(error) if socket.is_dead() => {
            if let Ok(address) = socket.local_addr() {
                log::error!(
                    "{address}: no RDMA connections until the network card is back: {error}"
                );
            }
            None
        }
        Err(error) => {
            // For example out of descriptors: other connections may close and free some.
            log::warn!("cannot accept a connection: {error}");
            std::thread::sleep(Duration::from_millis(100));
            None
        }
    }
}

/// Refuses an invalid RDMA request; for a valid one, determines the sizes.
fn look_at_request(request: rdma::Request, refused: &mut Refused) -> Option<Box<Asked>> {
    match shape_of(&request) {
        Ok((shape, qid)) => Some(Box::new(Asked { request, shape, qid })),
        Err(status) => {
            refused.note(request.peer(), &status);
            request.reject(&ConnectReject { status }.to_bytes());
            None
        }
    }
}

/// The sizes for a request, and the queue id that it asks for.
fn shape_of(request: &rdma::Request) -> Result<(rdma::Shape, u16), RejectStatus> {
    let asked = ConnectRequest::from_private_data(request.private_data())?;
    let (most, work_bytes, in_capsule_bytes) = match asked.qid {
        0 => (RDMA_ADMIN_ENTRIES, RDMA_ADMIN_WORK_BYTES, RDMA_ADMIN_IN_CAPSULE_BYTES),
        _ => (MAX_QUEUE_ENTRIES, RDMA_WORK_BYTES, RDMA_IN_CAPSULE_BYTES),
    };
    if asked.host_sends > u32::from(most) {
        return Err(RejectStatus::INVALID_HSQSIZE);
    }
    // The data of Connect on an admin queue is read from the host.
    if !request.answers_reads() {
        return Err(RejectStatus::INVALID_IRD);
    }
    let receive_bytes = Sqe::BYTES + in_capsule_bytes as usize;
    let receives = asked.host_sends as u16;
    let shape = rdma::Shape { receives, receive_bytes, work_bytes, shared_bytes: 0 };
    Ok((shape, asked.qid))
}

fn prepare(stream: TcpStream) -> OwnedFd {
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10))
        .with_retries(3);
    let socket = SockRef::from(&stream);
    // The connection works without these options, only less well.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&keepalive);
    let _ = stream.set_nonblocking(false);
    stream.into()
}
