//! Starting and stopping: the listener, the threads, the reactors.

use crate::config::{ConfigError, TargetConfig};
use crate::connection::Endpoints;
use crate::hosts::Hosts;
use crate::limits::MAX_UNTAKEN;
use crate::loader::Loader;
use crate::machine_memory::hosts_bytes;
use crate::namespace::NamespaceError;
use crate::places::Served;
use crate::reactor::Message;
use crate::reactor::uring::{Mailbox, Reactor, Setup};
use crate::reload::{self, Plan};
use crate::subsystem::LAST_CONTROLLER_ID;
use crate::target::Target;
use bpfof_device::RingError;
use bpfof_function::memory::Memory;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// Socket buffers in bytes, fixed so that the kernel does not tune them (i10 §3.2): room for the
/// data of a full queue of small reads.
const SOCKET_BUFFER_BYTES: usize = 1 << 20;

/// Why a target does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A namespace.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The address is taken.
    #[error("{0} is in use, perhaps by another target; stop it or choose another --listen")]
    AddressInUse(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// No ring for a reactor.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// A processor of the configuration.
    #[error("cannot run on processor {core}: {source}")]
    Core {
        /// Its number.
        core: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Threads or event counters.
    #[error("cannot start a reactor: {0}")]
    Start(io::Error),
}

/// A running target. Dropping it stops it.
pub struct Server {
    address: SocketAddr,
    discovery_address: Option<SocketAddr>,
    target: Arc<Target>,
    /// What it runs with. Held while that changes.
    config: Mutex<TargetConfig>,
    mailboxes: Arc<Mutex<Vec<Mailbox>>>,
    reactors: Vec<JoinHandle<()>>,
    acceptor: Option<JoinHandle<()>>,
    stop_accepting: Arc<OwnedFd>,
}

impl Server {
    /// Opens the namespaces, listens, and starts one reactor for each processor of the
    /// configuration.
    pub fn start(config: &TargetConfig) -> Result<Server, ServerError> {
        // A host that has not noticed yet that the target was started again names its controller of
        // before: that must not be another one now.
        let random = RandomState::new().build_hasher().finish();
        Server::start_behind(config, (random % u64::from(LAST_CONTROLLER_ID)) as u16)
    }

    /// The same with a known id of the first controller: the one behind `last_controller`.
    pub(crate) fn start_behind(
        config: &TargetConfig,
        last_controller: u16,
    ) -> Result<Server, ServerError> {
        config.check()?;
        let listener = listen(config.listen)?;
        let address = listener.local_addr().map_err(ServerError::Start)?;
        let discovery = config.discovery.map(listen).transpose()?;
        let discovery_address = discovery.as_ref().map(TcpListener::local_addr);
        let discovery_address = discovery_address.transpose().map_err(ServerError::Start)?;
        let namespaces = reload::open_all(config)?;
        let in_memory = namespaces.iter().map(|(_, namespace)| namespace.memory_bytes()).sum();
        let memory_bytes = hosts_bytes(config, in_memory)?;
        let hosts = Hosts::new(config.hosts, memory_bytes);
        let listeners = vec![address];
        let target = Target::new(config.limits, hosts, last_controller, namespaces, listeners);
        let target = Arc::new(target);
        let stop_accepting = event().map_err(ServerError::Start)?;
        let clock = Instant::now();
        let mut server = Server {
            address,
            discovery_address,
            target: Arc::clone(&target),
            config: Mutex::new(config.clone()),
            mailboxes: Arc::default(),
            reactors: Vec::new(),
            acceptor: None,
            stop_accepting,
        };
        let cores: Vec<Option<usize>> = match config.cores.as_slice() {
            [] => vec![None],
            cores => cores.iter().copied().map(Some).collect(),
        };
        let loader = Loader::start(&config.cores).map_err(ServerError::Start)?;
        for core in cores {
            server.start_reactor(core, config, (&target, &loader), clock)?;
        }
        let mailboxes = server.mailboxes.lock().expect("no panic while held").clone();
        let stop = Arc::clone(&server.stop_accepting);
        let acceptor = std::thread::Builder::new().name("accept".into());
        let hosts = Arc::clone(&target.hosts);
        let acceptor = acceptor
            .spawn(move || accept((&listener, discovery.as_ref()), &stop, &mailboxes, &hosts));
        server.acceptor = Some(acceptor.map_err(ServerError::Start)?);
        for subsystem in target.subsystems() {
            log::info!("{} listens on {address}", subsystem.nqn);
        }
        if let Some(address) = discovery_address {
            log::info!("discovery listens on {address}");
        }
        Ok(server)
    }

    fn start_reactor(
        &mut self,
        core: Option<usize>,
        config: &TargetConfig,
        (target, loader): (&Arc<Target>, &Loader),
        clock: Instant,
    ) -> Result<(), ServerError> {
        let index = self.reactors.len();
        let (sender, messages) = channel();
        let event = event().map_err(ServerError::Start)?;
        let mailbox = Mailbox::new(sender, Arc::clone(&event));
        self.mailboxes.lock().expect("no panic while held").push(mailbox);
        let setup = Setup {
            index,
            target: Arc::clone(target),
            messages,
            event,
            mailboxes: Arc::clone(&self.mailboxes),
            loader: loader.clone(),
            clock,
            spin: Duration::from_micros(config.spin_us.into()),
            poll: config.poll,
        };
        let (ready, started) = channel();
        let thread = std::thread::Builder::new().name(format!("reactor {index}"));
        let thread =
            thread.spawn(move || run_reactor(core, setup, &ready)).map_err(ServerError::Start)?;
        self.reactors.push(thread);
        wait_started(&started)
    }

    /// The address it listens on, with the port if the configuration left it to the kernel.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the listener for discovery, if there is one.
    pub fn discovery_address(&self) -> Option<SocketAddr> {
        self.discovery_address
    }

    /// What hosts have taken of the target's memory, and how much there is of it.
    pub fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.target.hosts.memory)
    }

    /// Looks again at the sizes of files that were given none, and tells the hosts of those that
    /// have changed.
    pub fn remeasure(&self) {
        let _running = self.running();
        if self.target.remeasure() {
            self.tell(|| Message::NamespacesChanged);
        }
    }

    /// Goes on with another configuration, in which only namespaces may differ: some may be new,
    /// others gone; files may have another size, and those without a size are measured again. Hosts
    /// hear of it. A namespace that stays serves on meanwhile, and so do the commands in flight on
    /// one that goes; its chains end with Invalid Namespace or Format.
    ///
    /// # Errors
    /// The configuration cannot be served; then nothing has changed, but perhaps that files have
    /// been made or have grown for it.
    pub fn reload(&self, config: &TargetConfig) -> Result<(), ServerError> {
        let mut running = self.running();
        config.check_change(&running)?;
        let plan = Plan::new(&self.target, config)?;
        let memory_bytes = hosts_bytes(config, plan.memory_bytes())?;
        self.target.hosts.memory.set_limit_bytes(memory_bytes);
        let ended = plan.carry_out(&self.target, |served| self.serve(served.into()));
        *running = config.clone();
        for controller in ended {
            self.tell(|| Message::EndQueues(Arc::clone(&controller), true));
        }
        self.tell(|| Message::NamespacesChanged);
        Ok(())
    }

    /// Gives these namespaces to all reactors, and returns when they serve no others.
    fn serve(&self, served: Arc<[Served]>) {
        let (done, all_done) = channel();
        self.tell(|| Message::Serve(Arc::clone(&served), done.clone()));
        drop(done);
        // The end of the channel: each reactor has dropped its side, or has ended.
        while all_done.recv().is_ok() {}
    }

    fn running(&self) -> MutexGuard<'_, TargetConfig> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, message: impl Fn() -> Message) {
        for mailbox in self.mailboxes.lock().expect("no panic while held").iter() {
            mailbox.send(message());
        }
    }

    /// Stops accepting, lets commands in flight end (at most 5 seconds), closes everything.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        let _ = rustix::io::write(&self.stop_accepting, &1u64.to_le_bytes());
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        self.tell(|| Message::Stop);
        for reactor in self.reactors.drain(..) {
            let _ = reactor.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shut_down();
    }
}

fn event() -> io::Result<Arc<OwnedFd>> {
    Ok(Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?))
}

fn wait_started(started: &Receiver<Result<(), ServerError>>) -> Result<(), ServerError> {
    let died = || ServerError::Start(io::Error::other("the reactor's thread ended"));
    started.recv().unwrap_or_else(|_| Err(died()))
}

fn run_reactor(
    core: Option<usize>,
    setup: Setup,
    ready: &std::sync::mpsc::Sender<Result<(), ServerError>>,
) {
    let index = setup.index;
    let made = pin(core).and_then(|()| Ok(Reactor::new(setup)?));
    let mut reactor = match made {
        Ok(reactor) => reactor,
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    let _ = ready.send(Ok(()));
    if let Err(error) = reactor.run() {
        log::error!("reactor {index} ended: {error}");
    }
}

fn pin(core: Option<usize>) -> Result<(), ServerError> {
    let Some(core) = core else { return Ok(()) };
    let outside = || io::Error::other("no such processor");
    if core >= CpuSet::MAX_CPU {
        return Err(ServerError::Core { core, source: outside() });
    }
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set)
        .map_err(|source| ServerError::Core { core, source: source.into() })
}

fn listen(address: SocketAddr) -> Result<TcpListener, ServerError> {
    use socket2::{Domain, Socket, Type};
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => ServerError::AddressInUse(address),
        _ => ServerError::Listen { address, source },
    };
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).map_err(failed)?;
    socket.set_reuse_address(true).map_err(failed)?;
    socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES).map_err(failed)?;
    socket.set_send_buffer_size(SOCKET_BUFFER_BYTES).map_err(failed)?;
    socket.bind(&address.into()).map_err(failed)?;
    socket.listen(BACKLOG).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    Ok(socket.into())
}

/// Accepts connections and deals them out to the reactors in turn.
fn accept(
    (listener, discovery): (&TcpListener, Option<&TcpListener>),
    stop: &OwnedFd,
    mailboxes: &[Mailbox],
    hosts: &Arc<Hosts>,
) {
    let listeners: Vec<(&TcpListener, bool)> =
        [(listener, false)].into_iter().chain(discovery.map(|listener| (listener, true))).collect();
    let mut refused = Refused::default();
    let mut next = 0;
    loop {
        let mut wanted = vec![PollFd::new(stop, PollFlags::IN)];
        wanted.extend(listeners.iter().map(|(listener, _)| PollFd::new(*listener, PollFlags::IN)));
        if poll(&mut wanted, None).is_err() {
            continue;
        }
        if !wanted[0].revents().is_empty() {
            return;
        }
        for (listener, discovery_only) in &listeners {
            let Some((socket, ends)) = accept_one(listener, *discovery_only) else { continue };
            let Some(slot) = hosts.connection_of(ends.peer.ip()) else {
                refused.note(&ends, hosts.limits.connections_per_address);
                continue;
            };
            let mailbox = &mailboxes[next % mailboxes.len()];
            next += 1;
            // Those that a reactor has no time for wait in the kernel.
            while mailbox.untaken() >= MAX_UNTAKEN && !is_stopped(stop) {
                std::thread::sleep(Duration::from_millis(1));
            }
            mailbox.send(Message::Adopt(socket, ends, slot));
        }
    }
}

fn is_stopped(stop: &OwnedFd) -> bool {
    let mut wanted = [PollFd::new(stop, PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut wanted, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Connections that were refused: one line of the log a second says how many.
#[derive(Default)]
struct Refused {
    since: Option<Instant>,
    count: u64,
}

impl Refused {
    fn note(&mut self, ends: &Endpoints, limit: u32) {
        self.count += 1;
        if self.since.is_some_and(|since| since.elapsed() < Duration::from_secs(1)) {
            return;
        }
        let (address, count) = (ends.peer.ip(), self.count);
        log::warn!(
            "{address}: refused: it has {limit} connections, which is the limit \
             (connections-per-address); {count} such refusals since the last of these lines"
        );
        (self.since, self.count) = (Some(Instant::now()), 0);
    }
}

fn accept_one(listener: &TcpListener, discovery_only: bool) -> Option<(OwnedFd, Endpoints)> {
    let accepted = listener.accept().and_then(|(stream, peer)| {
        let local = stream.local_addr()?;
        Ok((prepare(stream), Endpoints { peer, local, discovery_only }))
    });
    match accepted {
        Ok(accepted) => Some(accepted),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(error) => {
            // Out of descriptors, say: others may close theirs.
            log::warn!("cannot accept a connection: {error}");
            std::thread::sleep(Duration::from_millis(100));
            None
        }
    }
}

fn prepare(stream: TcpStream) -> OwnedFd {
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10))
        .with_retries(3);
    let socket = socket2::SockRef::from(&stream);
    // Without these the connection works, only less well.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&keepalive);
    let _ = stream.set_nonblocking(false);
    stream.into()
}
