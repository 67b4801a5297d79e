//! Starts and stops a target: listeners, threads, reactors.

use crate::acceptor::{Acceptor, Listening, Sockets, listen, listen_rdma, prepare_listener};
use crate::access::{HostRule, Rules};
use crate::authenticator::Authenticator;
use crate::config::{ListenConfig, Listeners, NamespaceConfig, TargetConfig, TlsMode, Transport};
use crate::connection::Endpoints;
use crate::controller::Controller;
use crate::error::ServerError;
use crate::hosts::Hosts;
use crate::limits::MOVE_NS;
use crate::listener::Listener;
use crate::loader::Loader;
use crate::namespace_table::Served;
use crate::observe::record::CommandRecord;
use crate::observe::tracer::TraceRequest;
use crate::own_functions::OwnFunctions;
use crate::paths::{self, Paths};
use crate::questions::{self, TraceError, Tracing};
use crate::reactor::mailbox::{Comer, Mailbox, mailbox};
use crate::reactor::uring::{Reactor, Setup};
use crate::reactor::{Link, Message};
use crate::registry::Registry;
use crate::reload::{self, Plan};
use crate::report::{NoReport, TargetReport};
use crate::reporting;
use crate::worker::step_aside;
use bpfof_device::fabric::Endpoint;
use bpfof_function::memory::Memory;
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Controller ids that are left to the process that a server replaces: more than hosts can connect until that process
/// stops accepting, and no more than half of the shortest range.
const HANDED_OVER_IDS: u64 = 512;

/// Options of a server besides its configuration.
#[derive(Default)]
pub struct ServerOptions {
    /// Sockets that listen already: each replaces the entry of the configuration's `listen` with its address, or else
    /// the first entry without a socket.
    pub listeners: Vec<TcpListener>,
    /// The same for `discovery`.
    pub discovery_listener: Option<TcpListener>,
    /// Set if the server replaces another one: the id that the other has given last. Ids here begin behind it, files of
    /// namespaces stay shared with the other until [`lock_files`](Server::lock_files), and no host can connect before
    /// [`begin_accepting`](Server::begin_accepting).
    pub last_controller: Option<u16>,
    /// Called when a reactor has ended although the server was not stopped: its connections are lost, and so are later
    /// ones that are assigned to it.
    pub on_reactor_end: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// State that a server hands over to another process.
#[derive(Debug)]
pub struct HandOver {
    /// In the order of the configuration.
    pub listeners: Vec<TcpListener>,
    /// The socket of the discovery listener.
    pub discovery: Option<TcpListener>,
    /// The highest of the ids that controllers were given last.
    pub last_controller: u16,
}

/// A running target. Dropping it stops it.
pub struct Server {
    /// None once it has stopped.
    sockets: Option<Arc<Sockets>>,
    discovery_address: Option<SocketAddr>,
    registry: Arc<Registry>,
    /// The current configuration. Locked while it changes.
    config: Mutex<TargetConfig>,
    mailboxes: Arc<Mutex<Vec<Mailbox>>>,
    reactors: Vec<JoinHandle<()>>,
    /// Set until hosts can connect.
    held_back: Option<Acceptor>,
    acceptor: Option<JoinHandle<()>>,
    stop_accepting: Arc<OwnedFd>,
    /// The clock of all reactors.
    clock: Instant,
    given: Given,
    on_reactor_end: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// The addresses of given sockets, which replace those of the configuration.
struct Given {
    io: Vec<SocketAddr>,
    discovery: Option<SocketAddr>,
}

impl Given {
    fn of(io: &[TcpListener], discovery: Option<&TcpListener>) -> Result<Self, ServerError> {
        let address = |listener: &TcpListener| listener.local_addr().map_err(ServerError::Start);
        let io = io.iter().map(address).collect::<Result<_, _>>()?;
        Ok(Self { io, discovery: discovery.map(address).transpose()? })
    }

    fn replace(&self, config: &TargetConfig) -> TargetConfig {
        let mut listen = config.listen.0.clone();
        for address in &self.io {
            let is_it = |known: &ListenConfig| {
                known.transport == Transport::Tcp && known.address == *address
            };
            if listen.iter().any(is_it) {
                continue;
            }
            let is_free = |known: &&mut ListenConfig| {
                known.transport == Transport::Tcp && !self.io.contains(&known.address)
            };
            match listen.iter_mut().find(is_free) {
                Some(known) => known.address = *address,
                None => listen.push(ListenConfig::from(*address)),
            }
        }
        let discovery = self.discovery.or(config.discovery);
        TargetConfig { listen: Listeners(listen), discovery, ..config.clone() }
    }
}

impl Server {
    /// Opens the namespaces, listens, and starts one reactor for each processor of the
    /// configuration.
    ///
    /// # Errors
    /// The reason why it cannot serve, as text for the operator.
    pub fn start(config: &TargetConfig) -> Result<Server, ServerError> {
        let mut server = Server::start_with(config, ServerOptions::default())?;
        server.begin_accepting()?;
        Ok(server)
    }

    /// Checks a configuration as [`start`](Self::start) does, and reads the keys and functions that it names, but opens
    /// no namespace and does not listen.
    ///
    /// # Errors
    /// The reason why a target cannot serve it.
    pub fn check(config: &TargetConfig) -> Result<(), ServerError> {
        config.check()?;
        OwnFunctions::read(&config.functions)?;
        Rules::load(&config.rules, &config.subsystems())?;
        Ok(())
    }

    /// The same with options. Accepts no connections before [`begin_accepting`](Self::begin_accepting).
    ///
    /// # Errors
    /// As of [`start`](Self::start).
    pub fn start_with(
        config: &TargetConfig,
        options: ServerOptions,
    ) -> Result<Server, ServerError> {
        // A host that has not noticed yet that the target was restarted still uses its old controller id: no other
        // controller may have it now.
        let random = RandomState::new().build_hasher().finish();
        let (first, count) = (*config.cntlids.start(), config.cntlids.len() as u64);
        let last = options.last_controller.filter(|last| config.cntlids.contains(last));
        // The other process goes on giving ids until it is told to stop accepting.
        let beyond = |last: u16| u64::from(last - first) + HANDED_OVER_IDS;
        let last = first + (last.map_or(random, beyond) % count) as u16;
        Server::start_behind(config, options, last)
    }

    /// The same with a given id of the first controller: the one behind `last_controller`.
    pub(crate) fn start_behind(
        config: &TargetConfig,
        options: ServerOptions,
        last_controller: u16,
    ) -> Result<Server, ServerError> {
        let ServerOptions { listeners, discovery_listener, on_reactor_end, .. } = options;
        let beside_another = options.last_controller.is_some();
        let given = Given::of(&listeners, discovery_listener.as_ref())?;
        let config = &given.replace(config);
        config.check()?;
        config.keys_without_effect().iter().for_each(|warning| log::warn!("{warning}"));
        let sockets = Arc::new(open_sockets(config, listeners, discovery_listener)?);
        let listeners = listeners_of(config, &sockets)?;
        let discovery_address = sockets.discovery.as_ref().map(Listening::local_addr);
        let discovery_address = discovery_address.transpose().map_err(ServerError::Start)?;
        let namespaces = reload::open_all(config, beside_another)?;
        let in_memory = namespaces.iter().map(|(_, namespace)| namespace.memory_bytes()).sum();
        let memory_bytes = config.hosts_bytes(in_memory)?;
        let hosts = Hosts::new(config.hosts, memory_bytes);
        if beside_another {
            hosts.moved_until_ns.store(u64::MAX, Ordering::Relaxed);
        }
        let functions = OwnFunctions::read(&config.functions)?;
        let cntlids = (config.cntlids.clone(), last_controller);
        let mut registry = Registry::new(config.limits, hosts, cntlids, namespaces, listeners);
        registry.is_tls_required = config.tls() == TlsMode::Required;
        registry.serves_tls = config.tls() != TlsMode::Off;
        registry.keep_functions(functions)?;
        registry.set_rules(Rules::load(&config.rules, &config.subsystems())?);
        let registry = Arc::new(registry);
        let stop_accepting = event().map_err(ServerError::Start)?;
        let clock = Instant::now();
        let mut server = Server {
            sockets: Some(Arc::clone(&sockets)),
            discovery_address,
            registry: Arc::clone(&registry),
            config: Mutex::new(config.clone()),
            mailboxes: Arc::default(),
            reactors: Vec::new(),
            held_back: None,
            acceptor: None,
            stop_accepting,
            clock,
            given,
            on_reactor_end,
        };
        let cores: Vec<Option<usize>> = match config.cores.as_slice() {
            [] => vec![None],
            cores => cores.iter().copied().map(Some).collect(),
        };
        let loader = Loader::start(&config.cores).map_err(ServerError::Start)?;
        let authenticator = Authenticator::start(&config.cores).map_err(ServerError::Start)?;
        let reactors = config.cores.clone();
        bpfof_chain::free_elsewhere(move || step_aside(&reactors)).map_err(ServerError::Start)?;
        for core in cores {
            server.start_reactor(core, config, (&registry, &loader, &authenticator), clock)?;
        }
        let mailboxes = server.mailboxes.lock().expect("no panic while held").clone();
        server.held_back = Some(Acceptor::new(&registry, mailboxes, config)?);
        server.log_addresses();
        Ok(server)
    }

    /// Begins to accept connections. If the server replaces another one, that one must have
    /// [stopped](Self::stop_accepting) first, or a host might connect to both with one association.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn begin_accepting(&mut self) -> Result<(), ServerError> {
        let (Some(acceptor), Some(sockets)) = (self.held_back.take(), &self.sockets) else {
            return Ok(());
        };
        let (sockets, stop) = (Arc::clone(sockets), Arc::clone(&self.stop_accepting));
        let thread = std::thread::Builder::new().name("accept".into());
        let aside = self.aside();
        let thread = thread.spawn(move || {
            aside();
            acceptor.run(&sockets, &stop);
        });
        self.acceptor = Some(thread.map_err(ServerError::Start)?);
        Ok(())
    }

    fn log_addresses(&self) {
        for subsystem in self.registry.subsystems() {
            for listener in &self.registry.listeners {
                let known = listener.advertised();
                let known = known.map_or(String::new(), |known| format!(", advertised as {known}"));
                let by = match listener.transport {
                    Transport::Tcp => "",
                    Transport::Rdma => " for RDMA",
                };
                log::info!("{} listens on {}{by}{known}", subsystem.nqn, listener.address);
            }
        }
        if let Some(address) = self.discovery_address {
            log::info!("discovery listens on {address}");
        }
    }

    fn start_reactor(
        &mut self,
        core: Option<usize>,
        config: &TargetConfig,
        (registry, loader, authenticator): (&Arc<Registry>, &Loader, &Authenticator),
        clock: Instant,
    ) -> Result<(), ServerError> {
        let index = self.reactors.len();
        let (mailbox, inbox) = mailbox(event().map_err(ServerError::Start)?);
        self.mailboxes.lock().expect("no panic while held").push(mailbox);
        let setup = Setup {
            index,
            registry: Arc::clone(registry),
            inbox,
            mailboxes: Arc::clone(&self.mailboxes),
            loader: loader.clone(),
            authenticator: authenticator.clone(),
            clock,
            spin: Duration::from_micros(config.spin_us.into()),
            poll: config.poll,
        };
        let (ready, started) = channel();
        let thread = std::thread::Builder::new().name(format!("reactor {index}"));
        let on_end = self.on_reactor_end.clone();
        let run = move || {
            if !run_reactor(core, setup, &ready)
                && let Some(on_end) = on_end
            {
                on_end();
            }
        };
        let thread = thread.spawn(run).map_err(ServerError::Start)?;
        self.reactors.push(thread);
        wait_started(&started)
    }

    /// The first address it listens on, with the port if the configuration left it to the kernel.
    pub fn address(&self) -> SocketAddr {
        self.registry.listeners[0].address
    }

    /// A function to be called by threads that serve operators: it moves the calling thread to processors without
    /// reactors, if there are any, and lowers its priority.
    pub fn aside(&self) -> impl Fn() + Send + Sync + 'static {
        let cores = self.running().cores.clone();
        move || step_aside(&cores)
    }

    /// The transport of connections to [`address`](Self::address).
    pub fn transport(&self) -> Transport {
        self.registry.listeners[0].transport
    }

    /// All such addresses, in the order of the configuration.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.registry.listeners.iter().map(|listener| listener.address).collect()
    }

    /// A handle to change the paths to namespaces.
    pub fn paths(&self) -> Paths {
        Paths::new(&self.mailboxes, &self.registry)
    }

    /// Drains all listeners ([`Paths::drain`]) because the target ends, and waits, at most for `patience`, until no
    /// command is in flight there and hosts know of it. Returns whether that is so.
    pub fn drain(&self, patience: Duration) -> bool {
        self.registry.is_ending.store(true, Ordering::SeqCst);
        self.paths().drain(&[]).is_ok() && paths::wait_drained(self.report(), patience)
    }

    /// The address of the listener for discovery, if there is one.
    pub fn discovery_address(&self) -> Option<SocketAddr> {
        self.discovery_address
    }

    /// Makes connections within this process without TCP: messages, and memory that is read and written by key, as with
    /// RDMA (see [`fabric`](bpfof_device::fabric)). Each call returns the host's end of a connection. For the target
    /// all of them come from 127.0.0.1.
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
            let ends = Endpoints { peer: here, local: here, discovery_only: false, listener: 0 };
            let mailboxes = mailboxes.lock().unwrap_or_else(PoisonError::into_inner);
            let mailbox = &mailboxes[next.fetch_add(1, Ordering::Relaxed) % mailboxes.len()];
            drop(mailbox.hand_over(Comer { link: Link::Fabric(target), ends, slot }));
            Ok(host)
        }
    }

    /// Hands over to a process that replaces this one: copies of the listening sockets and the last controller id. The
    /// call may be made from any thread.
    pub fn hand_over(&self) -> impl Fn() -> Result<HandOver, String> + Send + Sync + 'static {
        let (sockets, registry) =
            (self.sockets.as_ref().map(Arc::downgrade), Arc::clone(&self.registry));
        move || {
            let sockets = sockets.as_ref().and_then(Weak::upgrade);
            let sockets = sockets.ok_or("the target stops")?;
            for subsystem in registry.subsystems() {
                let all = subsystem.namespaces();
                if let Some(lost) = all.iter().find(|namespace| namespace.is_volatile()) {
                    return Err(format!(
                        "{} namespace {} is memory of this process, and would be lost",
                        subsystem.nqn, lost.nsid
                    ));
                }
            }
            let copy = |socket: &Listening| match socket {
                Listening::Tcp(socket) => socket.try_clone().map_err(|error| error.to_string()),
                Listening::Rdma(_) => {
                    Err("the target listens for RDMA, and RDMA listeners cannot be handed over"
                        .to_owned())
                }
            };
            let listeners = sockets.io.iter().map(copy).collect::<Result<_, _>>()?;
            let discovery = sockets.discovery.as_ref().map(copy).transpose()?;
            for (_, namespace) in registry.served() {
                namespace.lock_files(true).map_err(|error| error.to_string())?;
            }
            Ok(HandOver { listeners, discovery, last_controller: registry.last_controller() })
        }
    }

    /// Locks the files of namespaces against other targets again, because the process that this server replaces, or
    /// that was to replace it, is gone. The call may be made from any thread.
    ///
    /// # Errors
    /// Another target still has some of the files open.
    pub fn lock_files(&self) -> impl Fn() -> io::Result<()> + Send + Sync + 'static {
        let registry = Arc::clone(&self.registry);
        move || {
            let all = registry.served();
            all.iter().map(|(_, namespace)| namespace.lock_files(false)).fold(Ok(()), Result::and)
        }
    }

    /// Reports that the process which this server replaces moves no more hosts: those that come much later have not been
    /// served by it. The call may be made from any thread.
    pub fn hosts_were_moved(&self) -> impl Fn() + Send + Sync + 'static {
        let (registry, clock) = (Arc::clone(&self.registry), self.clock);
        move || {
            let until_ns = clock.elapsed().as_nanos() as u64 + MOVE_NS;
            registry.hosts.moved_until_ns.store(until_ns, Ordering::Relaxed);
        }
    }

    /// Notes that acknowledged writes to a namespace were lost by the process that this server replaces: its hosts may
    /// not have been told. Their next Flush or durable write here fails, once. Takes the subsystem's name and the
    /// namespace's id; unknown ones have no effect. The call may be made from any thread.
    pub fn note_lost_writes(&self) -> impl Fn(&str, u32) + Send + Sync + 'static {
        let registry = Arc::clone(&self.registry);
        move |nqn, nsid| {
            let subsystem = registry.subsystem(nqn);
            let all = subsystem.map_or_else(Vec::new, |of| of.namespaces());
            all.iter().filter(|of| of.nsid == nsid).for_each(|of| of.lost_writes.note());
        }
    }

    /// Stops accepting, because another process accepts from the sockets that it was handed. The call may be made from
    /// any thread.
    pub fn stop_accepting(&self) -> impl Fn() + Send + Sync + 'static {
        let stop = Arc::clone(&self.stop_accepting);
        move || {
            log::info!(
                "another process has the listening sockets: no more connections are accepted here"
            );
            let _ = rustix::io::write(&stop, &1u64.to_le_bytes());
        }
    }

    /// Replaces the rules, and rereads the files of keys that they name. Nothing else changes: no namespace is checked.
    ///
    /// # Errors
    /// The rules cannot be used; then nothing has changed.
    pub fn reload_rules(&self, rules: &[HostRule]) -> Result<(), ServerError> {
        let mut running = self.running();
        let config = TargetConfig { rules: rules.to_vec(), ..running.clone() };
        config.check_change(&running, self.registry.serves_tls)?;
        config.keys_without_effect().iter().for_each(|warning| log::warn!("{warning}"));
        self.take_over_rules(Rules::load(&config.rules, &config.subsystems())?);
        *running = config;
        self.tell(|| Message::NamespacesChanged);
        Ok(())
    }

    /// Replaces the namespaces and keeps the current rules; files of keys are read again only if the set of subsystems
    /// changes.
    ///
    /// # Errors
    /// As of [`reload`](Self::reload).
    pub fn reload_namespaces(&self, namespaces: &[NamespaceConfig]) -> Result<(), ServerError> {
        let mut running = self.running();
        let config = TargetConfig { namespaces: namespaces.to_vec(), ..running.clone() };
        self.change_to(&mut running, &config, false)
    }

    /// Asks all reactors to respond: the call returns whether all of them have done so within the time. A reactor works
    /// for some 200 µs at a time.
    pub fn pulse(&self) -> impl Fn(Duration) -> bool + Send + 'static {
        let mailboxes = Arc::downgrade(&self.mailboxes);
        move |patience| {
            let Some(mailboxes) = mailboxes.upgrade() else { return false };
            let (sender, signs) = channel();
            let asked = {
                let mailboxes = mailboxes.lock().unwrap_or_else(PoisonError::into_inner);
                for mailbox in mailboxes.iter() {
                    mailbox.send(Message::Pulse(sender.clone()));
                }
                mailboxes.len()
            };
            let end = Instant::now() + patience;
            let left = || end.saturating_duration_since(Instant::now());
            (0..asked).all(|_| signs.recv_timeout(left()).is_ok())
        }
    }

    /// How often connections or commands of hosts were refused, by reason.
    pub fn denials(&self) -> Vec<(&'static str, u64)> {
        let counts = self.registry.denials.counts();
        counts.map(|(reason, count)| (reason.name(), count)).collect()
    }

    /// Asks all reactors for their counters and the connections that they serve. The call may be made from any thread,
    /// and waits for their answers, which each gives between two turns.
    pub fn report(
        &self,
    ) -> impl Fn(Duration) -> Result<TargetReport, NoReport> + Clone + Send + Sync + 'static {
        let (mailboxes, registry) = (Arc::downgrade(&self.mailboxes), Arc::clone(&self.registry));
        move |patience| {
            let parts = questions::ask(&mailboxes, patience, Message::Report)?;
            Ok(reporting::assemble(&registry, parts))
        }
    }

    /// Asks all reactors in the same way for the slowest commands of the last ten minutes: at most a hundred, the
    /// slowest first.
    pub fn slowest(
        &self,
    ) -> impl Fn(Duration) -> Result<Vec<CommandRecord>, NoReport> + Clone + Send + Sync + 'static
    {
        let mailboxes = Arc::downgrade(&self.mailboxes);
        move |patience| questions::slowest(&mailboxes, patience)
    }

    /// Begins a trace, which reports chains as they end, until the returned value is dropped. The call may be made from
    /// any thread. Chains over memory take a little longer during a trace.
    pub fn trace(
        &self,
    ) -> impl Fn(TraceRequest) -> Result<Tracing, TraceError> + Send + Sync + 'static {
        let traces = questions::Traces::new(Arc::downgrade(&self.mailboxes), self.clock);
        move |request| traces.begin(request)
    }

    /// Ends the associations of the hosts with this name, or of the host with this name at an address; the call returns
    /// how many there were. It may be made from any thread.
    pub fn kick(&self) -> impl Fn(&str, Option<IpAddr>) -> usize + Send + Sync + 'static {
        let (mailboxes, registry) = (Arc::downgrade(&self.mailboxes), Arc::clone(&self.registry));
        move |host_nqn, address| {
            let is_meant = |controller: &Arc<Controller>| {
                let is_there = |address| controller.host().is_at(address);
                let names = [controller.host_nqn(), &controller.host().nqn];
                names.contains(&host_nqn) && address.is_none_or(is_there)
            };
            let Some(mailboxes) = mailboxes.upgrade() else { return 0 };
            let mailboxes = mailboxes.lock().unwrap_or_else(PoisonError::into_inner);
            let all = registry.all().into_iter();
            let all = all.flat_map(|subsystem| subsystem.all_controllers());
            let mut ended = 0;
            for controller in all.filter(is_meant) {
                let id = controller.id;
                log::info!("{host_nqn}: association {id} is ended by an operator");
                controller.end();
                for mailbox in mailboxes.iter() {
                    mailbox.send(Message::end(&controller));
                }
                ended += 1;
            }
            ended
        }
    }

    /// The memory accounts of the hosts, with the limit for all of them.
    pub fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.registry.hosts.memory)
    }

    /// Replaces the configuration, in which only namespaces, rules and advertised addresses and ANA states of listeners
    /// may differ: namespaces may be new or gone; files may have another size, and files without a size are measured
    /// again, as drives are. Hosts are told. Namespaces that stay are served meanwhile, and commands in flight on a
    /// removed one are completed; its chains end with Invalid Namespace or Format.
    ///
    /// # Errors
    /// The configuration cannot be served; then nothing has changed, except that files may have been created or grown
    /// for it.
    pub fn reload(&self, config: &TargetConfig) -> Result<(), ServerError> {
        self.change_to(&mut self.running(), config, true)
    }

    fn change_to(
        &self,
        running: &mut TargetConfig,
        config: &TargetConfig,
        reads_keys: bool,
    ) -> Result<(), ServerError> {
        let config = &self.given.replace(config);
        config.check_change(running, self.registry.serves_tls)?;
        config.keys_without_effect().iter().for_each(|warning| log::warn!("{warning}"));
        let subsystems = config.subsystems();
        let rules = match reads_keys || subsystems != running.subsystems() {
            true => Some(Rules::load(&config.rules, &subsystems)?),
            false => None,
        };
        let plan = Plan::new(&self.registry, config, running)?;
        let memory_bytes = config.hosts_bytes(plan.memory_bytes())?;
        self.registry.hosts.memory.set_limit_bytes(memory_bytes);
        let change_rules = || rules.into_iter().for_each(|rules| self.take_over_rules(rules));
        let serve = |served: Vec<Served>| self.serve(served.into());
        let ended = plan.carry_out(&self.registry, serve, change_rules);
        self.take_over_listeners(running, config);
        *running = config.clone();
        ended.iter().for_each(|controller| self.end(controller));
        self.tell(|| Message::NamespacesChanged);
        Ok(())
    }

    fn take_over_rules(&self, rules: Rules) {
        for controller in self.registry.set_rules(rules) {
            let (host, id) = (controller.host_nqn(), controller.id);
            log::info!("{host}: association {id} is ended, because the new rules allow it less");
            self.end(&controller);
        }
    }

    /// Ends an association. At once no queue joins it, by the rights that it had.
    fn end(&self, controller: &Arc<Controller>) {
        controller.end();
        self.tell(|| Message::end(controller));
    }

    /// Takes over advertised addresses of the configuration, and states of ANA groups if the configuration has changed
    /// them: otherwise states that an operator has set stay.
    fn take_over_listeners(&self, running: &TargetConfig, config: &TargetConfig) {
        let (mut are_reached_otherwise, mut are_elsewhere) = (false, false);
        let configured = running.listen.0.iter().zip(&config.listen.0);
        for (listener, (before, config)) in self.registry.listeners.iter().zip(configured) {
            are_reached_otherwise |=
                before.ana != config.ana && listener.set_states(|states| *states = config.ana);
            are_elsewhere |= listener.advertise(config.advertise.as_ref());
        }
        if are_elsewhere {
            self.registry.discovery_changed();
        }
        if are_reached_otherwise && let Err(error) = self.paths().announce() {
            log::warn!("{error}");
        }
    }

    /// Gives these namespaces to all reactors, and returns when they serve only these.
    fn serve(&self, served: Arc<[Served]>) {
        let (done, all_done) = channel();
        self.tell(|| Message::Serve(Arc::clone(&served), done.clone()));
        drop(done);
        // The channel ends when each reactor has dropped its sender or has ended.
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
        self.sockets = None;
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

/// Runs a reactor. Returns whether it ran until it was stopped, or has reported why it could not start.
fn run_reactor(
    core: Option<usize>,
    setup: Setup,
    ready: &std::sync::mpsc::Sender<Result<(), ServerError>>,
) -> bool {
    let index = setup.index;
    let made = pin(core).and_then(|()| Ok(Reactor::new(setup)?));
    let mut reactor = match made {
        Ok(reactor) => reactor,
        Err(error) => {
            let _ = ready.send(Err(error));
            return true;
        }
    };
    let _ = ready.send(Ok(()));
    let why = match catch_unwind(AssertUnwindSafe(|| reactor.run())) {
        Ok(Ok(())) => return true,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "it panicked, which is a defect of the target".to_owned(),
    };
    log::error!("reactor {index} ended: {why}");
    false
}

/// The given sockets, and others opened by the configuration, in its order.
fn open_sockets(
    config: &TargetConfig,
    mut given: Vec<TcpListener>,
    discovery: Option<TcpListener>,
) -> Result<Sockets, ServerError> {
    for listener in given.iter().chain(&discovery) {
        prepare_listener(listener).map_err(ServerError::Start)?;
    }
    let of_tcp = config.listen.0.iter().filter(|of| of.transport == Transport::Tcp);
    let configured: Vec<SocketAddr> = of_tcp.map(|of| of.address).collect();
    let mut io = Vec::new();
    for ListenConfig { address, transport, .. } in &config.listen.0 {
        if *transport == Transport::Rdma {
            io.push(Listening::Rdma(listen_rdma(*address)?));
            continue;
        }
        let is_it = |socket: &TcpListener| socket.local_addr().is_ok_and(|at| at == *address);
        let all_v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
        io.push(Listening::Tcp(match given.iter().position(is_it) {
            Some(at) => given.remove(at),
            // Otherwise it would take IPv4 connections as well.
            None => listen(*address, address.is_ipv6() && configured.contains(&all_v4))?,
        }));
    }
    let discovery = match discovery {
        Some(discovery) => Some(discovery),
        None => config.discovery.map(|address| listen(address, false)).transpose()?,
    };
    Ok(Sockets { io, discovery: discovery.map(Listening::Tcp) })
}

fn listeners_of(
    config: &TargetConfig,
    sockets: &Sockets,
) -> Result<Vec<Arc<Listener>>, ServerError> {
    let configured = config.listen.0.iter().zip(config.port_ids());
    let listeners = sockets.io.iter().zip(configured).map(|(socket, (config, id))| {
        let address = socket.local_addr().map_err(ServerError::Start)?;
        Ok(Arc::new(Listener::new(id, address, config)))
    });
    listeners.collect()
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
