//! Starting and stopping: the listener, the threads, the reactors.

use crate::access::Rules;
use crate::authenticator::Authenticator;
use crate::config::{TargetConfig, TlsMode};
use crate::connection::Endpoints;
use crate::error::ServerError;
use crate::handshake::{Accepted, Deliver, Handshakes};
use crate::hosts::Hosts;
use crate::limits::MAX_UNTAKEN;
use crate::loader::Loader;
use crate::machine_memory::hosts_bytes;
use crate::namespace_table::Served;
use crate::own_functions::OwnFunctions;
use crate::reactor::uring::{Mailbox, Reactor, Setup};
use crate::reactor::{Link, Message};
use crate::registry::Registry;
use crate::reload::{self, Plan};
use crate::subsystem::LAST_CONTROLLER_ID;
use crate::transport::secure::Secure;
use bpfof_device::fabric::Endpoint;
use bpfof_function::memory::Memory;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// Socket buffers in bytes, fixed so that the kernel does not tune them (i10 §3.2): room for the
/// data of a full queue of small reads.
const SOCKET_BUFFER_BYTES: usize = 1 << 20;

/// A running target. Dropping it stops it.
pub struct Server {
    address: SocketAddr,
    discovery_address: Option<SocketAddr>,
    registry: Arc<Registry>,
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
        let functions = OwnFunctions::read(&config.functions)?;
        let mut registry =
            Registry::new(config.limits, hosts, last_controller, namespaces, listeners);
        registry.is_tls_required = config.tls() == TlsMode::Required;
        registry.keep_functions(functions)?;
        registry.set_rules(Rules::load(&config.rules, &config.subsystems())?);
        let registry = Arc::new(registry);
        let stop_accepting = event().map_err(ServerError::Start)?;
        let clock = Instant::now();
        let mut server = Server {
            address,
            discovery_address,
            registry: Arc::clone(&registry),
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
        let authenticator = Authenticator::start(&config.cores).map_err(ServerError::Start)?;
        for core in cores {
            server.start_reactor(core, config, (&registry, &loader, &authenticator), clock)?;
        }
        let mailboxes = server.mailboxes.lock().expect("no panic while held").clone();
        let stop = Arc::clone(&server.stop_accepting);
        let acceptor = Acceptor::new(&registry, mailboxes, config)?;
        let acceptor = std::thread::Builder::new()
            .name("accept".into())
            .spawn(move || acceptor.run((&listener, discovery.as_ref()), &stop));
        server.acceptor = Some(acceptor.map_err(ServerError::Start)?);
        for subsystem in registry.subsystems() {
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
        (registry, loader, authenticator): (&Arc<Registry>, &Loader, &Authenticator),
        clock: Instant,
    ) -> Result<(), ServerError> {
        let index = self.reactors.len();
        let (sender, messages) = channel();
        let event = event().map_err(ServerError::Start)?;
        let mailbox = Mailbox::new(sender, Arc::clone(&event));
        self.mailboxes.lock().expect("no panic while held").push(mailbox);
        let setup = Setup {
            index,
            registry: Arc::clone(registry),
            messages,
            event,
            mailboxes: Arc::clone(&self.mailboxes),
            loader: loader.clone(),
            authenticator: authenticator.clone(),
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

    /// Makes connections from this process that are no TCP connections: messages, and memory that is
    /// read and written by key, as with RDMA (see [`fabric`](bpfof_device::fabric)). Each call gives the
    /// host's end of one. To the target all of them come from 127.0.0.1.
    pub fn connector(&self) -> impl Fn() -> io::Result<Endpoint> + Send + Sync + 'static {
        let (mailboxes, registry) =
            (Arc::downgrade(&self.mailboxes), Arc::downgrade(&self.registry));
        let next = AtomicUsize::new(0);
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        move || {
            let running = registry.upgrade().zip(mailboxes.upgrade());
            let (registry, mailboxes) = running.ok_or(io::ErrorKind::ConnectionRefused)?;
            let [host, target] = Endpoint::pair()?;
            let slot = registry.hosts.connection_of(here.ip());
            let slot = slot.ok_or(io::ErrorKind::ConnectionRefused)?;
            let ends = Endpoints { peer: here, local: here, discovery_only: false };
            let mailboxes = mailboxes.lock().unwrap_or_else(PoisonError::into_inner);
            let mailbox = &mailboxes[next.fetch_add(1, Ordering::Relaxed) % mailboxes.len()];
            mailbox.send(Message::Adopt(Link::Fabric(target), ends, slot));
            Ok(host)
        }
    }

    /// How often hosts were refused something, by reason.
    pub fn denials(&self) -> Vec<(&'static str, u64)> {
        let counts = self.registry.denials.counts();
        counts.map(|(reason, count)| (reason.name(), count)).collect()
    }

    /// What hosts have taken of the target's memory, and how much there is of it.
    pub fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.registry.hosts.memory)
    }

    /// Looks again at the sizes of files that were given none, and tells the hosts of those that
    /// have changed.
    pub fn remeasure(&self) {
        let _running = self.running();
        if self.registry.remeasure() {
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
        let rules = Rules::load(&config.rules, &config.subsystems())?;
        let plan = Plan::new(&self.registry, config)?;
        let memory_bytes = hosts_bytes(config, plan.memory_bytes())?;
        self.registry.hosts.memory.set_limit_bytes(memory_bytes);
        let ended = plan.carry_out(&self.registry, |served| self.serve(served.into()));
        *running = config.clone();
        let fewer = self.registry.set_rules(rules);
        for controller in &fewer {
            let (host, id) = (controller.host_nqn(), controller.id);
            log::info!(
                "{host}: its association {id} ends, because it may do less by the new rules"
            );
        }
        for controller in ended.into_iter().chain(fewer) {
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

/// Accepts connections, and deals them out to the reactors in turn.
struct Acceptor {
    hosts: Arc<Hosts>,
    dealer: Arc<Dealer>,
    /// None without TLS.
    handshakes: Option<Handshakes>,
}

/// Gives connections to reactors.
struct Dealer {
    mailboxes: Vec<Mailbox>,
    next: AtomicUsize,
}

impl Dealer {
    fn deal(&self, (socket, ends, slot): Accepted, secure: Option<Box<Secure>>) {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let mailbox = &self.mailboxes[next % self.mailboxes.len()];
        mailbox.send(Message::Adopt(Link::Socket(socket, secure), ends, slot));
    }

    /// Whether the reactor that is next has as many connections waiting as may be.
    fn is_full(&self) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        self.mailboxes[next % self.mailboxes.len()].untaken() >= MAX_UNTAKEN
    }
}

impl Acceptor {
    fn new(
        registry: &Arc<Registry>,
        mailboxes: Vec<Mailbox>,
        config: &TargetConfig,
    ) -> Result<Acceptor, ServerError> {
        let tls = config.tls();
        let dealer = Arc::new(Dealer { mailboxes, next: AtomicUsize::new(0) });
        let handshakes = match tls {
            TlsMode::Off | TlsMode::ByRules => None,
            TlsMode::Allowed | TlsMode::Required => {
                bpfof_tls::init().map_err(|error| ServerError::Tls(error.to_string()))?;
                let how = match bpfof_tls::ktls::is_available() {
                    _ if !config.kernel_tls => "in this process, as configured".to_owned(),
                    Ok(()) => "by the kernel".to_owned(),
                    Err(why) => format!("in this process ({why})"),
                };
                log::info!("TLS records are sealed and opened {how}");
                if tls == TlsMode::Required && !config.has_tls_keys() {
                    log::warn!(
                        "TLS is required, and no [[host]] rule has a tls-psk: nobody can connect"
                    );
                }
                let dealer = Arc::clone(&dealer);
                let deliver: Deliver = Arc::new(move |accepted, secure| {
                    dealer.deal(accepted, secure);
                });
                Some(Handshakes::new(registry, config, deliver))
            }
        };
        Ok(Acceptor { hosts: Arc::clone(&registry.hosts), dealer, handshakes })
    }

    fn run(&self, (listener, discovery): (&TcpListener, Option<&TcpListener>), stop: &OwnedFd) {
        let listeners: Vec<(&TcpListener, bool)> = [(listener, false)]
            .into_iter()
            .chain(discovery.map(|listener| (listener, true)))
            .collect();
        let mut refused = Refused::default();
        loop {
            let mut wanted = vec![PollFd::new(stop, PollFlags::IN)];
            let all = listeners.iter().map(|(listener, _)| PollFd::new(*listener, PollFlags::IN));
            wanted.extend(all);
            if poll(&mut wanted, None).is_err() {
                continue;
            }
            if !wanted[0].revents().is_empty() {
                return;
            }
            for (listener, discovery_only) in &listeners {
                let Some((socket, ends)) = accept_one(listener, *discovery_only) else { continue };
                let Some(slot) = self.hosts.connection_of(ends.peer.ip()) else {
                    refused.note(&ends, self.hosts.limits.connections_per_address);
                    continue;
                };
                // Those that a reactor has no time for wait in the kernel.
                while self.dealer.is_full() && !is_stopped(stop) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                match &self.handshakes {
                    Some(handshakes) => handshakes.begin((socket, ends, slot)),
                    None => self.dealer.deal((socket, ends, slot), None),
                }
            }
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
