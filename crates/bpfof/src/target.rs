//! `bpfof target`.

use crate::daemon;
use crate::replace::replace;
use crate::signals::{FAREWELL, OPERATORS, Received};
use crate::take_over;
use bpfof_controller::{
    ListenConfig, Listeners, NamespaceConfig, Server, ServerOptions, TargetConfig, TlsMode,
    Transport, parse_address, parse_cntlids, parse_size, parse_tls_mode,
};
use bpfof_operations::client::{Client, ClientError};
use bpfof_operations::control::{
    self, Bound, Change, Control, ControlError, Operations, TAKEN_OVER,
};
use bpfof_operations::edit::{self, Edit, Place};
use bpfof_operations::hand_over::{self, Claims, Sockets};
use bpfof_operations::names::Names;
use bpfof_operations::{Reporter, Slowest};
use bpfof_systemd::Manager;
use bpfof_terminal::{Outcome, forbid_core_dumps};
use clap::Args;
use signal_hook::consts::SIGTERM;
use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The service manager's name for the discovery socket (FileDescriptorName=). A socket with any other name is for
/// hosts.
const DISCOVERY_SOCKET: &str = "discovery";

/// Pause between attempts to lock the files of namespaces, which the target that this one replaces may still have open.
const LOCK_AGAIN: Duration = Duration::from_secs(1);

// One field for each option.
#[derive(Args)]
pub(crate) struct Options {
    /// Address and port to listen on, repeatable [default: 127.0.0.1:4420; port 0 lets the kernel choose]:
    /// ADDRESS[,advertise=HOST[:PORT]][,id=N][,ana=[GROUP:]STATE]. advertise is the address in the discovery log, if
    /// hosts reach this listener by another one; id is the listener's number in that log, by default its position; ana
    /// is the state of namespaces at this listener: optimized, non-optimized or inaccessible.
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<ListenConfig>,
    /// Address and port to listen on for NVMe/RDMA, repeatable, beside --listen, with the same options [default:
    /// none]: an address of a network card that does RDMA, or of soft-RoCE. It needs librdmacm and libibverbs
    /// on this machine, and TLS does not protect it.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_rdma)]
    listen_rdma: Vec<ListenConfig>,
    /// Address and port to listen on for discovery only, usually port 8009 [default: none; hosts
    /// can discover at --listen as well].
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    discovery: Option<SocketAddr>,
    /// Range of controller ids, for example 1-32000, at least 1024 of them: targets that serve one subsystem together
    /// need ranges that do not overlap [default: 1-65519].
    #[arg(long, value_name = "FIRST-LAST", value_parser = parse_cntlids)]
    cntlid: Option<RangeInclusive<u16>>,
    /// NVMe qualified name of the subsystem [default: nqn.2026-01.io.bpf-of:target].
    #[arg(long)]
    nqn: Option<String>,
    /// A namespace, repeatable, ids from 1: mem:size=1GiB[,lba=512|4096][,latency_us=3][,iops=N]
    /// or file:path=FILE[,size=10GiB][,lba=512|4096]. mem:file=FILE[,…] serves a file on tmpfs as memory, shared with
    /// the processes that write it; FILE must not be truncated while it is served.
    /// stripe:path=FILE,path=FILE[,chunk=64KiB][,size=…] and concat:path=FILE,path=FILE[,size=…] join several files;
    /// size is the size of each. nvme:path=/dev/ngXnY serves a drive. nqn=NAME puts the namespace into the subsystem of
    /// that name, where ids start from 1 again; nsid=N gives it that id instead of its position; uuid=UUID lets hosts
    /// recognize it as the same disk as a namespace of another target; anagrpid=N puts it into that ANA group.
    #[arg(long = "namespace", value_name = "SPEC")]
    namespaces: Vec<NamespaceConfig>,
    /// Processors to run a reactor on, for example 0,1 [default: one reactor, not pinned].
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    cores: Option<Vec<usize>>,
    /// Never sleep: lower latency, but each reactor keeps its processor busy all the time.
    #[arg(long)]
    poll: bool,
    /// How long to poll for work before sleeping, in µs, while polling pays off [default: 200].
    #[arg(long, value_name = "MICROSECONDS")]
    spin_us: Option<u32>,
    /// Hop budget of a chain [default: 33554432].
    #[arg(long)]
    max_hops: Option<u32>,
    /// Most memory that the target may take, namespaces in memory included, for example 2GiB [default: the namespaces,
    /// and a quarter of the memory of the machine or the control group].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory_max: Option<u64>,
    /// Allow namespaces in memory that are larger together than the machine's memory: blocks that are never written
    /// take none. If memory runs out, the kernel kills the target.
    #[arg(long)]
    overcommit_memory: bool,
    /// Most connections from one address [default: 3072].
    #[arg(long, value_name = "COUNT")]
    connections_per_address: Option<u32>,
    /// Most connections of one host [default: 1024].
    #[arg(long, value_name = "COUNT")]
    connections_per_host: Option<u32>,
    /// Most associations from one address [default: 512].
    #[arg(long, value_name = "COUNT")]
    associations_per_address: Option<u32>,
    /// Most associations of one host [default: 128].
    #[arg(long, value_name = "COUNT")]
    associations_per_host: Option<u32>,
    /// Seconds after which a host that reads nothing of its answers is disconnected [default: 30].
    #[arg(long, value_name = "SECONDS")]
    send_timeout_s: Option<u32>,
    /// Seconds after which a host without keep-alive that sends no command is disconnected; 0 refuses such hosts
    /// [default: 600].
    #[arg(long, value_name = "SECONDS")]
    idle_timeout_s: Option<u32>,
    /// Let all hosts that reach the target read and write everything, if the --config file has no rules for hosts.
    /// Without this option, a target without rules listens on loopback only.
    #[arg(long)]
    allow_any_host: bool,
    /// Whether hosts connect by TLS: off; allowed, with and without TLS on one port, but hosts whose rule has a tls-psk
    /// must use it; or required [default: allowed if a rule in the --config file has a tls-psk, else off].
    #[arg(long, value_name = "off|allowed|required", value_parser = parse_tls_mode)]
    tls: Option<TlsMode>,
    /// Encrypt TLS records in this process even if the kernel could. Received records are always decrypted in this
    /// process.
    #[arg(long)]
    no_kernel_tls: bool,
    /// Address and port to listen on for metrics (GET /metrics, for Prometheus) and for a page that shows them;
    /// all clients that reach it can read the names of hosts. Usually port 9420 of an address for operators [default:
    /// none].
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    metrics: Option<SocketAddr>,
    /// A further name in URLs for the metrics, repeatable. Addresses, names without a dot and the machine's own names
    /// work without it. Other names are refused, because a foreign web page could use its own name to read the metrics
    /// through an operator's browser (DNS rebinding).
    #[arg(long = "metrics-name", value_name = "NAME")]
    metrics_names: Vec<String>,
    /// Socket for `bpfof ctl` [default: none].
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Replace the running target that has this control socket: listen on its sockets, then move its hosts to this
    /// process, and stop it. This target takes over the control socket as well, unless it has another one.
    #[arg(long, value_name = "PATH")]
    take_over: Option<PathBuf>,
    /// Take settings from a TOML file; options override it. It may have listen (also as [[listen]] with address,
    /// transport, advertise, id, ana), discovery, cntlid, metrics, metrics-names, control, nqn, namespaces, cores, poll, spin-us, max-hops, max-chain-bytes,
    /// max-instructions, max-instructions-per-call, max-chains, memory-max, overcommit-memory, connections-per-address,
    /// connections-per-host, associations-per-address, associations-per-host, send-timeout-s,
    /// idle-timeout-s, functions (objects to install at the start), tls, kernel-tls, allow-any-host, and [[host]] rules
    /// with the rights of hosts.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON line with the address once it listens.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: daemon::Daemon,
}

/// A wrong configuration, with which another start would fail as well.
#[derive(Debug)]
pub(crate) struct BadConfiguration(Box<dyn std::error::Error>);

impl fmt::Display for BadConfiguration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for BadConfiguration {}

/// Opens the control socket. If that fails after another target has retired, this one serves without it, because
/// otherwise both would end.
fn answer(bound: Bound, is_successor: bool) -> Result<Option<Control>, ControlError> {
    bound.serve().map(Some).or_else(|error| match is_successor {
        true => {
            log::error!("{error}; bpfof ctl cannot reach this target");
            Ok(None)
        }
        false => Err(error),
    })
}

pub(crate) fn run(options: &Options) -> Outcome {
    daemon::begin(&options.daemon)?;
    // Before the server starts, so that no signal is lost.
    let signals = Received::begin()?;
    let manager = Manager::of_environment()?;
    let manager = manager.as_ref();
    let (mut config, mut texts) = configuration(options).map_err(BadConfiguration)?;
    crate::allocator::give_back_large_pieces();
    let is_crippled = Arc::new(AtomicBool::new(false));
    let mut surroundings = surroundings(&is_crippled)?;
    let (mut metrics_socket, mut claim) = (None, None);
    if let Some(path) = &options.take_over {
        (metrics_socket, claim) = hand_over_from(path, &config, &mut surroundings)?;
        // From the claim on the other target refuses changes, so the file has all saved ones by now.
        (config, texts) = configuration(options).map_err(BadConfiguration)?;
    }
    let started = Server::start_with(&config, surroundings);
    let mut server = started.map_err(|error| match error.is_of_configuration() {
        true => BadConfiguration(error.into()).into(),
        false => Box::<dyn std::error::Error>::from(error),
    })?;
    signals.serve(server.paths());
    let asked = Asked::default();
    // Only the target that is taken over may still serve this target's control socket.
    let takes_over = options.take_over.is_some()
        && is_same_file(options.take_over.as_deref(), config.control.as_deref());
    let given = (metrics_socket, takes_over);
    let claims = Arc::new(Claims::default());
    let (control, metrics) = serve_operators(&config, &server, (&asked, &claims), given)?;
    let mut old = None;
    if let Some(path) = &options.take_over {
        // Connect only now: the other target disconnects clients that are silent for as long as a start may take.
        let mut client = Client::connect(path)?;
        // While the other target still serves: between the next two steps nobody accepts hosts.
        let there = match take_over::ask(&mut client, "report", &serde_json::Value::Null) {
            Err(ClientError::Refused(why)) => {
                log::warn!("whether listeners of the other target are drained is unknown: {why}");
                serde_json::Value::Null
            }
            there => there?,
        };
        client.call("retire", serde_json::Value::Null)?;
        take_over::keep_drained(&there, &server.paths());
        server.begin_accepting()?;
        take_over::warn_of_differences(&there, &server.report());
        old = Some(client);
    }
    // Replace the other target's control socket only now: if it had not retired, it would still need the socket.
    let _control = control.map(|bound| answer(bound, old.is_some())).transpose()?.flatten();
    drop(claim);
    feed_watchdog(manager, &server)?;
    // Only now: a start that fails would disconnect hosts again.
    server.begin_accepting()?;
    crate::allocator::give_back_unused_pages(server.memory());
    announce(options.json, &server, &config, metrics);
    let addresses: Vec<String> = server.addresses().iter().map(ToString::to_string).collect();
    let status = format!("READY=1\nSTATUS=listens on {}", addresses.join(", "));
    daemon::tell(manager, |manager| manager.notify(&status));
    if let Some(old) = old {
        move_hosts(old, &server, Arc::clone(&claims))?;
    }
    serve_changes(&signals, (manager, options, &server), (&asked, &claims), &mut texts);
    daemon::tell(manager, |manager| manager.notify("STOPPING=1"));
    if !is_crippled.load(Ordering::Relaxed) && !server.drain(FAREWELL) {
        log::info!("some hosts have not moved to other paths");
    }
    server.stop();
    match is_crippled.load(Ordering::Relaxed) {
        true => Err("a reactor has ended; the log says why".into()),
        false => Ok(()),
    }
}

/// Carries out changes of the configuration until a signal ends the target.
fn serve_changes(
    signals: &Received,
    (manager, options, server): (Option<&Manager>, &Options, &Server),
    (asked, claims): (&Asked, &Claims),
    texts: &mut Texts,
) {
    while let Some(asks_reload) = signals.next() {
        daemon::tell(manager, Manager::notify_reloading);
        // While it exists, no other target takes over and reads the configuration.
        let changing = claims.change();
        if asks_reload && changing.is_some() {
            let _ = carry_out(&Change::Reload, options, server, texts);
        } else if asks_reload {
            log::warn!("{TAKEN_OVER}");
        }
        let changes = std::mem::take(&mut *lock(asked));
        for (change, asker) in changes {
            let _ = asker.send(match &changing {
                Some(_) => carry_out(&change, options, server, texts),
                None => Err(TAKEN_OVER.to_owned()),
            });
        }
        drop(changing);
        daemon::tell(manager, |manager| manager.notify("READY=1"));
    }
}

/// Parses `--listen-rdma`: no option of the address can change the transport.
fn parse_rdma(text: &str) -> Result<ListenConfig, String> {
    if text.split(',').any(|option| option == "transport=tcp") {
        return Err("it is for RDMA: leave transport=tcp out, or use --listen".to_owned());
    }
    let listen: ListenConfig = text.parse()?;
    Ok(ListenConfig { transport: Transport::Rdma, ..listen })
}

/// Sockets of the service manager, and what to do when a reactor ends: its hosts would wait for ever, so this process
/// stops, and the service manager starts another.
fn surroundings(is_crippled: &Arc<AtomicBool>) -> Result<ServerOptions, String> {
    let is_crippled = Arc::clone(is_crippled);
    let on_reactor_end = move || {
        is_crippled.store(true, Ordering::Relaxed);
        let _ = signal_hook::low_level::raise(SIGTERM);
    };
    let mut options =
        ServerOptions { on_reactor_end: Some(Arc::new(on_reactor_end)), ..Default::default() };
    for (name, socket) in bpfof_systemd::inherited() {
        let place = match name.as_str() {
            DISCOVERY_SOCKET => &mut options.discovery_listener,
            _ => {
                options.listeners.push(TcpListener::from(socket));
                continue;
            }
        };
        if place.replace(TcpListener::from(socket)).is_some() {
            return Err(format!(
                "the service manager passes two sockets called {name} (FileDescriptorName=)"
            ));
        }
    }
    Ok(options)
}

/// The outcome of a change: the namespace that has changed, if one has, or why the change was not or only partly made.
type Changed = Result<Option<Place>, String>;

/// Requested changes, each with the sender for its outcome, on which the operator waits.
type Asked = Arc<Mutex<Vec<(Change, Sender<Changed>)>>>;

/// Contents of the configuration file.
#[derive(Default)]
struct Texts {
    /// As it was last read or written.
    file: String,
    /// The same with unsaved changes: the namespaces of this text are served.
    served: String,
}

/// Carries out a change.
fn carry_out(change: &Change, options: &Options, server: &Server, texts: &mut Texts) -> Changed {
    let unchanged = |error: Box<dyn std::error::Error>| {
        format!("nothing has changed, the configuration is refused: {error}")
    };
    let outcome = match change {
        Change::Reload => configuration(options)
            .and_then(|(config, read)| {
                server.reload(&config)?;
                *texts = read;
                Ok(None)
            })
            .map_err(unchanged),
        Change::Keys => configuration(options)
            .and_then(|(config, _)| Ok(server.reload_rules(&config.rules)?))
            .map(|()| None)
            .map_err(unchanged),
        Change::Namespaces(edit, save) => edit_namespaces(edit, *save, options, server, texts)
            .map_err(unchanged)
            .and_then(|(place, to_save)| save_text(to_save, texts).map(|()| Some(place))),
    };
    match &outcome {
        Ok(_) => log::info!("the configuration is in force"),
        Err(error) => log::error!("{error}"),
    }
    outcome
}

/// The change of the configuration file, if the change is saved.
type ToSave<'a> = Option<NewText<'a>>;

struct NewText<'a> {
    path: &'a Path,
    /// The contents from which the new ones were made.
    before: String,
    text: String,
}

/// Changes the served namespaces. Also returns the new contents of the configuration file, if the change is to be
/// saved.
fn edit_namespaces<'a>(
    edit: &Edit,
    save: bool,
    options: &'a Options,
    server: &Server,
    texts: &mut Texts,
) -> Result<(Place, ToSave<'a>), Box<dyn std::error::Error>> {
    let Some(path) = options.config.as_ref().filter(|_| options.namespaces.is_empty()) else {
        return Err(
            "namespaces come from --namespace: only namespaces of a --config file can be changed"
                .into(),
        );
    };
    let nqn = options.nqn.as_deref();
    let (edited, place) = edit::apply(&texts.served, edit, nqn)?;
    // Only the namespaces of this configuration are used: its rules may be older than those in force.
    let edited_config = with_options(TargetConfig::from_toml(&edited)?, options)?;
    // The file lacks the changes that other operators did not save.
    let named = |why: String| format!("{}: {why}", path.display());
    let in_file = if save { std::fs::read_to_string(path)? } else { String::new() };
    if save && !edit::have_same_namespaces(&in_file, &texts.file)? {
        let why = "its namespaces have changed since it was read: reload first";
        return Err(named(why.to_owned()).into());
    }
    let known = |text| edit::storage_of(text, &place, nqn);
    let to_save = match edit {
        _ if !save => None,
        // The namespace to remove was never saved.
        Edit::Remove(_) if known(&in_file)?.is_none() => None,
        Edit::Remove(_) | Edit::Resize(..) if known(&in_file)? != known(&texts.served)? => {
            let why = format!("namespace {} has different storage in this file", place.nsid);
            return Err(named(why).into());
        }
        _ => {
            let saved = edit::apply(&in_file, &edit.at(&place), nqn);
            let (saved, _) = saved.map_err(|error| named(error.to_string()))?;
            let config = with_options(TargetConfig::from_toml(&saved)?, options)?;
            config.check().map_err(|error| named(error.to_string()))?;
            Some(NewText { path, before: in_file, text: saved })
        }
    };
    server.reload_namespaces(&edited_config.namespaces)?;
    texts.served = edited;
    Ok((place, to_save))
}

/// Writes the new configuration file, after the change is in force.
fn save_text(to_save: ToSave<'_>, texts: &mut Texts) -> Result<(), String> {
    let Some(NewText { path, before, text }) = to_save else { return Ok(()) };
    let saved = std::fs::read_to_string(path).and_then(|now| match now == before {
        true => write_over(path, &text),
        // The change may have taken seconds.
        false => Err(io::Error::other(
            "somebody else has changed the file meanwhile; make the change there as well",
        )),
    });
    saved.map_err(|error| {
        format!("the change is in force, but cannot be saved in {}: {error}", path.display())
    })?;
    log::info!("the change is saved in {}", path.display());
    texts.file = text;
    Ok(())
}

/// Replaces the contents of a file atomically.
fn write_over(path: &Path, text: &str) -> io::Result<()> {
    // Resolve symbolic links, so that a link stays one.
    let path = &path.canonicalize()?;
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let permissions = std::fs::metadata(path)?.permissions();
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    let prepare = |file: &std::fs::File| file.set_permissions(permissions);
    replace((path, Path::new(&new)), &options, prepare, &[text.as_bytes()])
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves metrics, and prepares the control socket. Returns it, and the address of the metrics.
fn serve_operators(
    config: &TargetConfig,
    server: &Server,
    (asked, claims): (&Asked, &Arc<Claims>),
    (metrics_socket, takes_over): (Option<TcpListener>, bool),
) -> Result<(Option<Bound>, Option<SocketAddr>), Box<dyn std::error::Error>> {
    let report: Reporter = Arc::new(server.report());
    let slowest: Slowest = Arc::new(server.slowest());
    let metrics_socket = match (metrics_socket, config.metrics) {
        (Some(socket), _) => Some(socket),
        (None, Some(address)) => Some(
            TcpListener::bind(address)
                .map_err(|error| format!("cannot listen on {address} for metrics: {error}"))?,
        ),
        (None, None) => None,
    };
    let metrics = metrics_socket.as_ref().map(TcpListener::local_addr).transpose()?;
    let metrics_copy = metrics_socket.as_ref().map(TcpListener::try_clone).transpose()?;
    if let Some(socket) = metrics_socket {
        let names = Names::of_machine(&config.metrics_names);
        let sources = (Arc::clone(&report), Arc::clone(&slowest));
        bpfof_operations::http::serve(socket, sources, names, server.aside())?;
    }
    if let Some(address) = metrics {
        log::info!("metrics are at http://{address}/metrics, a page at http://{address}/");
    }
    let Some(path) = &config.control else { return Ok((None, metrics)) };
    let asked = Arc::clone(asked);
    let change = move |change| {
        let (asker, outcome) = channel();
        lock(&asked).push((change, asker));
        signal_hook::low_level::raise(OPERATORS).map_err(|error| error.to_string())?;
        outcome.recv().unwrap_or_else(|_| Err("the target stops".to_owned()))
    };
    let of_hosts = server.hand_over();
    let hand_over = move || {
        let of_hosts = of_hosts()?;
        let metrics = metrics_copy.as_ref().map(TcpListener::try_clone).transpose();
        Ok(Sockets { of_hosts, metrics: metrics.map_err(|error| error.to_string())?, claim: None })
    };
    let operations = Operations {
        report,
        slowest,
        trace: Box::new(server.trace()),
        kick: Box::new(server.kick()),
        change: Box::new(change),
        paths: server.paths(),
        hand_over: Box::new(hand_over),
        take_back: Box::new(server.lock_files()),
        claims: Arc::clone(claims),
        retire: Box::new(server.stop_accepting()),
        stop: Box::new(|| _ = signal_hook::low_level::raise(SIGTERM)),
    };
    Ok((Some(control::bind(path, operations, takes_over, server.aside())?), metrics))
}

fn is_same_file(one: Option<&Path>, other: Option<&Path>) -> bool {
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    one.map(whole) == other.map(whole)
}

/// Takes the sockets of the target whose control socket is at `path`. Returns the socket for metrics, and the
/// connection that keeps other processes from taking them.
fn hand_over_from(
    path: &Path,
    config: &TargetConfig,
    surroundings: &mut ServerOptions,
) -> Result<(Option<TcpListener>, Option<UnixStream>), Box<dyn std::error::Error>> {
    let mut sockets = hand_over::receive(path)
        .map_err(|error| format!("cannot take over from {}: {error}", path.display()))?;
    take_over::keep_configured(&mut sockets, config);
    let Sockets { of_hosts, metrics, claim } = sockets;
    surroundings.listeners.extend(of_hosts.listeners);
    surroundings.discovery_listener = surroundings.discovery_listener.take().or(of_hosts.discovery);
    surroundings.last_controller = Some(of_hosts.last_controller);
    Ok((metrics, claim))
}

/// Starts a thread that moves the hosts of another target to this one, which serves already. Then it locks the files of
/// namespaces against other targets, however the other one ends.
fn move_hosts(old: Client, server: &Server, claims: Arc<Claims>) -> io::Result<()> {
    let report: Reporter = Arc::new(server.report());
    let (lock_files, note_lost_writes) = (server.lock_files(), server.note_lost_writes());
    let were_moved = server.hosts_were_moved();
    let begin = move || {
        match take_over::move_hosts(old, &report, &note_lost_writes) {
            Ok(()) => {
                were_moved();
                log::info!("the other target has stopped: this one has taken over");
            }
            Err(error) => log::error!("the other target has not stopped as it should: {error}"),
        }
        let mut is_told = false;
        loop {
            // A target that takes over from this one meanwhile needs the files unlocked.
            let locked = claims.change().map(|_changing| lock_files());
            match locked {
                Some(Ok(())) => return were_moved(),
                Some(Err(error)) if !std::mem::replace(&mut is_told, true) => {
                    log::warn!("the files of namespaces cannot be locked yet: {error}");
                }
                _ => {}
            }
            std::thread::sleep(LOCK_AGAIN);
        }
    };
    std::thread::Builder::new().name("take over".into()).spawn(begin).map(drop)
}

/// Starts a thread that feeds the service manager's watchdog as long as all reactors respond.
fn feed_watchdog(manager: Option<&Manager>, server: &Server) -> io::Result<()> {
    let (Some(manager), Some(interval)) = (manager, bpfof_systemd::watchdog()) else {
        return Ok(());
    };
    let (manager, has_pulse) = (manager.try_clone()?, server.pulse());
    let feed = move || {
        loop {
            std::thread::sleep(interval / 4);
            match has_pulse(interval / 4) {
                true => daemon::tell(Some(&manager), |manager| manager.notify("WATCHDOG=1")),
                false => log::error!("a reactor does not respond, so the watchdog is not fed"),
            }
        }
    };
    std::thread::Builder::new().name("watchdog".into()).spawn(feed).map(drop)
}

fn configuration(options: &Options) -> Result<(TargetConfig, Texts), Box<dyn std::error::Error>> {
    let Some(path) = &options.config else {
        return Ok((with_options(TargetConfig::default(), options)?, Texts::default()));
    };
    let (config, file) = TargetConfig::from_file(path)?;
    let served = file.clone();
    Ok((with_options(config, options)?, Texts { file, served }))
}

/// The configuration of the file, with the options that override it.
fn with_options(
    mut config: TargetConfig,
    options: &Options,
) -> Result<TargetConfig, Box<dyn std::error::Error>> {
    if !options.namespaces.is_empty() {
        config.namespaces.clone_from(&options.namespaces);
    }
    if !options.listen.is_empty() {
        config.listen = Listeners(options.listen.clone());
    }
    config.listen.0.extend(options.listen_rdma.iter().cloned());
    if let Some(cntlids) = &options.cntlid {
        config.cntlids = cntlids.clone();
    }
    config.discovery = options.discovery.or(config.discovery);
    config.metrics = options.metrics.or(config.metrics);
    config.metrics_names.extend(options.metrics_names.iter().cloned());
    // A target that takes over serves the old target's control socket, unless it has one of its own.
    config.control = options.control.clone().or(config.control).or(options.take_over.clone());
    if let Some(nqn) = &options.nqn {
        config.nqn.clone_from(nqn);
    }
    if let Some(cores) = &options.cores {
        config.cores.clone_from(cores);
    }
    if let Some(spin_us) = options.spin_us {
        config.spin_us = spin_us;
    }
    if let Some(max_hops) = options.max_hops {
        config.limits.hops = max_hops;
    }
    config.memory_max_bytes = options.memory_max.or(config.memory_max_bytes);
    config.overcommit_memory |= options.overcommit_memory;
    let hosts = &mut config.hosts;
    for (limit, given) in [
        (&mut hosts.connections_per_address, options.connections_per_address),
        (&mut hosts.connections_per_host, options.connections_per_host),
        (&mut hosts.associations_per_address, options.associations_per_address),
        (&mut hosts.associations_per_host, options.associations_per_host),
        (&mut hosts.send_timeout_s, options.send_timeout_s),
        (&mut hosts.idle_timeout_s, options.idle_timeout_s),
    ] {
        *limit = given.unwrap_or(*limit);
    }
    config.poll |= options.poll;
    config.allow_any_host |= options.allow_any_host;
    config.tls = options.tls.unwrap_or(config.tls);
    config.kernel_tls &= !options.no_kernel_tls;
    if config.rules.iter().any(|rule| !rule.keys.is_empty()) {
        forbid_core_dumps()?;
    }
    Ok(config)
}

fn announce(json: bool, server: &Server, config: &TargetConfig, metrics: Option<SocketAddr>) {
    let (by, address) = (server.transport().name(), server.address());
    let url = format!("nvme-{by}://{address}/{}", config.nqn);
    if json {
        let line = serde_json::json!({
            "listening": server.address(),
            "addresses": server.addresses(),
            "url": url,
            "metrics": metrics,
        });
        println!("{line}");
    } else {
        log::info!("hosts reach it as {url}?ns=1");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_edited_meanwhile_is_not_overwritten() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path();
        let mut texts = Texts::default();
        let mut save = |before: &str, text: &str| {
            let (before, text) = (before.to_owned(), text.to_owned());
            save_text(Some(NewText { path, before, text }), &mut texts)
        };
        save("", "one").expect("saved");
        let refusal = save("", "two").expect_err("it is another text");
        assert!(refusal.contains("is in force, but cannot be saved"), "{refusal}");
        assert!(refusal.contains("somebody else has changed the file"), "{refusal}");
        assert_eq!(std::fs::read_to_string(path).expect("there"), "one");
    }
}
