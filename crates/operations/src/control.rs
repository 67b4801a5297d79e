//! Requests of operators, on a Unix socket.
//!
//! Each line is a JSON-RPC 2.0 request, and so is its answer. Only root and the user that the target runs as
//! are answered, whatever the permissions of the socket have become.
//!
//! | method | parameters | result |
//! |---|---|---|
//! | `report` | | [`TargetReport`](bpfof_controller::TargetReport) |
//! | `slow` | | a list of [`CommandRecord`](bpfof_controller::CommandRecord), the slowest first |
//! | `trace` | a [`TraceRequest`] | nothing; then [`Traced`](bpfof_controller::Traced) as parameters of notifications `chain`, until the client goes |
//! | `kick` | `host`: its NQN; `address`: its address, none for all | `ended`: number of associations that end |
//! | `reload` | | nothing; the configuration is read again |
//! | `namespace.add` | `spec`, `save` | `subsystem`, `nsid` |
//! | `namespace.remove` | `subsystem`, `nsid`, `save` | the same |
//! | `namespace.resize` | `subsystem`, `nsid`, `size`, `save` | the same |
//! | `keys.reload` | | nothing; only rules and keys are read again |
//! | `drain`, `undrain` | `listeners`: numbers or addresses, none for all | the listeners, as in `report` |
//! | `ana` | `listeners`, `state`, `group`: none for all | the same |
//! | `close` | `listeners` | the same; their connections end |
//! | `hand-over` | | `sockets`: the role of each; the sockets come with the answer (SCM_RIGHTS) |
//! | `retire` | | nothing; from then on only the process that got the sockets accepts connections |
//! | `stop` | | nothing; the target stops, as on SIGTERM |
//! | `log` | `level`: error, warn, info, debug | nothing |
//! | `version` | | text |

use crate::edit::{Edit, Place};
use crate::hand_over::{self, Claims, Sockets};
use crate::rpc::{self, Failure, MAX_REQUEST_BYTES};
use crate::{PATIENCE, Reporter, Slowest, tracing};
use bpfof_controller::{AnaState, PathError, Paths, TraceError, TraceRequest, Tracing};
use log::LevelFilter;
use rustix::net::sockopt::socket_peercred;
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs::Permissions;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// Most connections at a time.
const MAX_CONNECTIONS: usize = 16;
/// Levels of the log that operators may set: it is the audit trail, which cannot be turned off.
const LEVELS: [LevelFilter; 4] =
    [LevelFilter::Error, LevelFilter::Warn, LevelFilter::Info, LevelFilter::Debug];
/// How long an operator may send nothing, or receive nothing.
const SILENCE: Duration = Duration::from_secs(60);

/// Ends associations of the host with this name, only those from the address if one is given. Returns their number.
type Kick = Box<dyn Fn(&str, Option<IpAddr>) -> usize + Send + Sync>;

/// The functions of a target that operators can call.
pub struct Operations {
    /// Returns the target's report.
    pub report: Reporter,
    /// Returns the slowest commands.
    pub slowest: Slowest,
    /// Begins a trace, which reports chains as they end.
    pub trace: Box<dyn Fn(TraceRequest) -> Result<Tracing, TraceError> + Send + Sync>,
    /// Ends the associations of all hosts with a name, or only of the one at an address.
    pub kick: Kick,
    /// Changes paths to namespaces.
    pub paths: Paths,
    /// Returns the sockets that another process needs to replace this one.
    pub hand_over: Box<dyn Fn() -> Result<Sockets, String> + Send + Sync>,
    /// Undoes the changes that the hand-over made in this process: the process that asked for the sockets is gone, or
    /// cannot have them.
    pub take_back: Box<dyn Fn() -> io::Result<()> + Send + Sync>,
    /// Whether a process has claimed the sockets, or the configuration is being changed.
    pub claims: Arc<Claims>,
    /// Stops accepting connections: the other process accepts them from then on.
    pub retire: Box<dyn Fn() + Send + Sync>,
    /// Stops the target.
    pub stop: Box<dyn Fn() + Send + Sync>,
    /// Changes the configuration; the error says what has not changed, and why.
    pub change: Box<dyn Fn(Change) -> Result<Option<Place>, String> + Send + Sync>,
}

impl Operations {
    /// Undoes what offering the sockets has changed.
    fn lock_files_again(&self) {
        if let Err(error) = (self.take_back)() {
            log::error!(
                "cannot lock the files of namespaces again, so other targets can open them: {error}"
            );
        }
    }
}

/// A change that operators can request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The configuration file is read again.
    Reload,
    /// Rules and keys alone are read again.
    Keys,
    /// A namespace is added, removed or resized: until the file is read again, or, with `true`, in the file as well.
    Namespaces(Edit, bool),
}

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
#[error("control socket {}: {source}", path.display())]
pub struct ControlError {
    path: PathBuf,
    source: io::Error,
}

/// A control socket that does not answer yet; another process may answer at its path until then.
pub struct Bound {
    path: PathBuf,
    /// Its path until then.
    aside: PathBuf,
    /// Starts the thread that answers; if this is dropped first, the thread ends.
    begin: SyncSender<()>,
}

/// A socket that answers as long as this lives.
#[derive(Debug)]
pub struct Control {
    path: PathBuf,
    /// Of the file at `path`, which another process may replace by its own.
    identity: (u64, u64),
}

impl Drop for Control {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|there| there == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Device and inode number of a file.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|there| (there.dev(), there.ino()))
}

/// Whether a process answers at a path. Other errors do not tell: the socket may be another user's.
fn is_served(path: &Path) -> io::Result<bool> {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    match UnixStream::connect(path) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), ConnectionRefused | NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Prepares to answer requests on a socket at `path`. A socket that a dead process has left there will be replaced; one
/// that a process serves is refused, unless this one `takes_over`. The thread that answers first calls `step_aside`, which
/// must keep it and those that it starts out of the way of the threads that serve hosts.
///
/// # Errors
/// Errors of the kernel.
pub fn bind(
    path: &Path,
    operations: Operations,
    takes_over: bool,
    step_aside: impl Fn() + Send + 'static,
) -> Result<Bound, ControlError> {
    let failed = |source| ControlError { path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Ok(there) if !std::os::unix::fs::FileTypeExt::is_socket(&there.file_type()) => {
            return Err(failed(io::ErrorKind::AlreadyExists.into()));
        }
        _ => {}
    }
    if !takes_over && is_served(path).map_err(failed)? {
        return Err(failed(io::Error::other("another process serves it")));
    }
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    let aside = PathBuf::from(aside);
    let _ = std::fs::remove_file(&aside);
    let listener = UnixListener::bind(&aside).map_err(failed)?;
    let (begin, begins) = sync_channel(1);
    let bound = Bound { path: path.to_owned(), aside, begin };
    std::fs::set_permissions(&bound.aside, Permissions::from_mode(0o600)).map_err(failed)?;
    let operations = Arc::new(operations);
    let serve = move || {
        step_aside();
        if begins.recv().is_ok() {
            accept(&listener, &operations);
        }
    };
    std::thread::Builder::new().name("control".into()).spawn(serve).map_err(failed)?;
    Ok(bound)
}

impl Bound {
    /// Answers at the path from now on, on threads of its own.
    ///
    /// # Errors
    /// The socket cannot be renamed to its path.
    pub fn serve(self) -> Result<Control, ControlError> {
        let failed = |source| ControlError { path: self.path.clone(), source };
        // An atomic rename: at any time one of the sockets answers at the path.
        let placed = std::fs::rename(&self.aside, &self.path).and_then(|()| identity(&self.path));
        let control = Control { path: self.path.clone(), identity: placed.map_err(failed)? };
        // This cannot fail: the thread lives until it receives this.
        let _ = self.begin.send(());
        log::info!("bpfof ctl --socket {} reaches this target", self.path.display());
        Ok(control)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // After `serve` the file is no longer there.
        let _ = std::fs::remove_file(&self.aside);
    }
}

fn accept(listener: &UnixListener, operations: &Arc<Operations>) {
    let served = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                log::warn!("control socket: {error}");
                // For example, no descriptor is left.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if served.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
            served.fetch_sub(1, Ordering::Relaxed);
            let refusal = format!("{MAX_CONNECTIONS} connections are being served");
            log::warn!("control socket: refused: {refusal}");
            let advice = "end a `bpfof top` or a trace, or try again later";
            // It has room for this; if it is gone already, nobody needs to know why.
            let _ = refuse(&stream, &format!("{refusal}: {advice}"));
            continue;
        }
        let (operations, counted) = (Arc::clone(operations), Arc::clone(&served));
        let answer = move || {
            if let Err(error) = converse(&stream, &operations) {
                log::info!("control socket: {error}");
            }
            counted.fetch_sub(1, Ordering::Relaxed);
        };
        if let Err(error) = std::thread::Builder::new().name("operator".into()).spawn(answer) {
            served.fetch_sub(1, Ordering::Relaxed);
            log::warn!("control socket: {error}");
        }
    }
}

/// Says why requests are not answered.
fn refuse(mut stream: &UnixStream, why: &str) -> io::Result<()> {
    let answer = rpc::refusal(Failure::new(Failure::FAILED, why));
    writeln!(stream, "{}", serde_json::to_string(&answer)?)
}

/// Answers requests, a line each, until the client closes its end.
fn converse(stream: &UnixStream, operations: &Operations) -> io::Result<()> {
    let peer = socket_peercred(stream)?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        log::warn!(
            "control socket: refused: user {} is neither root nor the target's own",
            peer.uid.as_raw()
        );
        return refuse(stream, "only root and the target's own user may use this socket");
    }
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    let mut reader = BufReader::new(stream);
    // Declared before `successor`, and so dropped after it: no other process can take over before everything is undone.
    let mut claim = None;
    let mut successor = Successor { operations, has_sockets: false, has_retired: false };
    loop {
        let mut line = String::new();
        let length = (&mut reader).take(MAX_REQUEST_BYTES).read_line(&mut line)?;
        match length {
            0 => return Ok(()),
            _ if !line.ends_with('\n') && length as u64 >= MAX_REQUEST_BYTES => {
                return Err(io::Error::other("the request is too long"));
            }
            _ => {}
        }
        let (mut trace, mut sockets) = (None, None);
        let answer = rpc::answer(&line, |method, params| match method {
            "trace" => {
                trace = Some(begin_trace(operations, params)?);
                Ok(Value::Null)
            }
            "hand-over" => {
                let taken = |why: &str| Failure::new(Failure::FAILED, why);
                claim = Some(operations.claims.claim(CLAIM_PATIENCE).map_err(taken)?);
                let offered = hand_over::offer(&*operations.hand_over, &mut sockets);
                successor.has_sockets = offered.is_ok();
                if offered.is_err() {
                    operations.lock_files_again();
                    claim = None;
                }
                offered
            }
            _ => {
                let result = carry_out(operations, method, params);
                successor.has_done(method);
                result
            }
        });
        let text = serde_json::to_string(&answer)? + "\n";
        match sockets {
            Some(sockets) => {
                hand_over::send(stream, &text, &sockets)?;
                // The other process may take long to start, and sends nothing meanwhile. If it ends, the connection
                // closes.
                stream.set_read_timeout(None)?;
            }
            None => (&mut &*stream).write_all(text.as_bytes())?,
        }
        if let Some(trace) = trace {
            return tracing::tell(&trace, stream);
        }
    }
}

/// Another process, which may replace this one.
struct Successor<'a> {
    operations: &'a Operations,
    /// It has received the sockets.
    has_sockets: bool,
    /// This process no longer accepts connections, and waits for the request to stop.
    has_retired: bool,
}

impl Successor<'_> {
    fn has_done(&mut self, method: &str) {
        match method {
            "retire" => self.has_retired = true,
            "stop" => self.has_retired = false,
            _ => {}
        }
    }

    fn take_back(&self) {
        log::warn!("the process that was taking over has given up: this target goes on");
        self.operations.lock_files_again();
    }
}

impl Drop for Successor<'_> {
    fn drop(&mut self) {
        if self.has_retired {
            // No new host can connect to this process, and no other process can listen while this one holds the
            // sockets.
            log::error!("the process that was taking over has ended: stopping");
            (self.operations.stop)();
        } else if self.has_sockets && !self.operations.claims.are_retired() {
            self.take_back();
        }
    }
}

/// The namespace that the parameters name.
fn place(params: &Value) -> Result<Place, Failure> {
    let nsid = params["nsid"].as_u64().and_then(|nsid| u32::try_from(nsid).ok());
    let missing = || Failure::new(Failure::BAD_PARAMS, "it needs a number \"nsid\"");
    let subsystem = params["subsystem"].as_str().map(str::to_owned);
    Ok(Place { subsystem, nsid: nsid.ok_or_else(missing)? })
}

/// How long another process waits for a change of the configuration: less than it waits for an answer.
const CLAIM_PATIENCE: Duration = Duration::from_secs(5);

/// Why the configuration does not change.
pub const TAKEN_OVER: &str = "nothing has changed: another target is taking over from this one, and has read the \
     configuration already; try again in a moment";

fn begin_trace(operations: &Operations, params: &Value) -> Result<Tracing, Failure> {
    let request = match params {
        Value::Null => TraceRequest::default(),
        params => TraceRequest::deserialize(params)
            .map_err(|error| Failure::new(Failure::BAD_PARAMS, error.to_string()))?,
    };
    (operations.trace)(request).map_err(|error| Failure::new(Failure::FAILED, error.to_string()))
}

fn carry_out(operations: &Operations, method: &str, params: &Value) -> Result<Value, Failure> {
    let text = |name: &str| {
        let missing =
            || Failure::new(Failure::BAD_PARAMS, format!("{method} needs a string {name:?}"));
        params[name].as_str().ok_or_else(missing)
    };
    let failed = |error: String| Failure::new(Failure::FAILED, error);
    let changes = matches!(method, "reload" | "keys.reload") || method.starts_with("namespace.");
    let changing = if changes { operations.claims.change() } else { None };
    if changes && changing.is_none() {
        return Err(failed(TAKEN_OVER.to_owned()));
    }
    match method {
        "report" => {
            let report =
                (operations.report)(PATIENCE).map_err(|error| failed(error.to_string()))?;
            serde_json::to_value(report).map_err(|error| failed(error.to_string()))
        }
        "slow" => {
            let slowest =
                (operations.slowest)(PATIENCE).map_err(|error| failed(error.to_string()))?;
            serde_json::to_value(slowest).map_err(|error| failed(error.to_string()))
        }
        "kick" => kick(operations, text("host")?, &params["address"]),
        "reload" => (operations.change)(Change::Reload).map(|_| Value::Null).map_err(failed),
        "keys.reload" => (operations.change)(Change::Keys).map(|_| Value::Null).map_err(failed),
        "drain" | "undrain" | "ana" | "close" => change_paths(operations, method, params),
        "retire" => {
            operations.claims.retire();
            (operations.retire)();
            Ok(Value::Null)
        }
        "stop" => {
            (operations.stop)();
            Ok(Value::Null)
        }
        "namespace.add" | "namespace.remove" | "namespace.resize" => {
            let edit = match method {
                "namespace.add" => Edit::Add(text("spec")?.to_owned()),
                "namespace.remove" => Edit::Remove(place(params)?),
                _ => Edit::Resize(place(params)?, text("size")?.to_owned()),
            };
            let save = params["save"].as_bool().unwrap_or(false);
            let changed = (operations.change)(Change::Namespaces(edit, save)).map_err(failed)?;
            Ok(changed.map_or(
                Value::Null,
                |place| json!({ "subsystem": place.subsystem, "nsid": place.nsid }),
            ))
        }
        "log" => {
            let level = text("level")?;
            let known = LEVELS.into_iter().find(|known| known.as_str().eq_ignore_ascii_case(level));
            let known = known.ok_or_else(|| {
                let message = format!("unknown level {level:?}: use error, warn, info or debug");
                Failure::new(Failure::BAD_PARAMS, message)
            })?;
            // Log this at the more verbose of the two levels, so that it appears whatever the new level is.
            log::set_max_level(known.max(log::max_level()));
            log::warn!("the level of the log is now {level}");
            log::set_max_level(known);
            Ok(Value::Null)
        }
        "version" => Ok(env!("CARGO_PKG_VERSION").into()),
        other => Err(Failure::new(Failure::NO_METHOD, format!("no method {other:?}"))),
    }
}

/// The listeners that the parameters name.
fn listeners(params: &Value) -> Result<Vec<String>, Failure> {
    let bad = || Failure::new(Failure::BAD_PARAMS, "\"listeners\" must be a list of strings");
    match &params["listeners"] {
        Value::Null => Ok(Vec::new()),
        Value::Array(all) => {
            all.iter().map(|one| one.as_str().map(str::to_owned).ok_or_else(bad)).collect()
        }
        _ => Err(bad()),
    }
}

/// Ends the associations of a host.
fn kick(operations: &Operations, host: &str, address: &Value) -> Result<Value, Failure> {
    let no_address =
        || Failure::new(Failure::BAD_PARAMS, "\"address\" is not an IP address".to_owned());
    let address: Option<IpAddr> = match address {
        Value::Null => None,
        address => {
            let parsed = address.as_str().and_then(|text| text.parse().ok());
            Some(parsed.ok_or_else(no_address)?)
        }
    };
    let why = match ((operations.kick)(host, address), address) {
        (0, None) => "no host of this name is connected".to_owned(),
        (0, Some(address)) => format!(
            "no host of this name is connected from {address}; for a host that TLS has identified \
             give no address"
        ),
        (ended, _) => return Ok(json!({ "ended": ended })),
    };
    Err(Failure::new(Failure::FAILED, why))
}

/// Changes paths to namespaces, and returns the listeners as they are then.
fn change_paths(operations: &Operations, method: &str, params: &Value) -> Result<Value, Failure> {
    let bad = |why: String| Failure::new(Failure::BAD_PARAMS, why);
    let (paths, listeners) = (&operations.paths, listeners(params)?);
    let changed = match method {
        "drain" => paths.drain(&listeners),
        "undrain" => paths.undrain(&listeners),
        "close" => paths.end_connections(&listeners),
        _ => {
            let state = params["state"].as_str().unwrap_or_default();
            let state: AnaState = state.parse().map_err(bad)?;
            let group = match &params["group"] {
                Value::Null => None,
                group => {
                    let number = group.as_u64().and_then(|group| u32::try_from(group).ok());
                    Some(number.ok_or_else(|| bad("\"group\" must be a number".to_owned()))?)
                }
            };
            paths.set_state(&listeners, group, state)
        }
    };
    changed.map_err(|error| match error {
        PathError::Unknown { .. } | PathError::Group(_) => bad(error.to_string()),
        PathError::Silent | PathError::Stopped => Failure::new(Failure::FAILED, error.to_string()),
    })?;
    let failed = |error: String| Failure::new(Failure::FAILED, error);
    let report = (operations.report)(PATIENCE).map_err(|error| failed(error.to_string()))?;
    serde_json::to_value(report.listeners).map_err(|error| failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Client;
    use bpfof_controller::{Server, TargetConfig};
    use std::os::unix::net::UnixDatagram;

    /// A process that was to take over a path and gives up leaves it to the process that answers there.
    #[test]
    fn a_path_is_its_old_owners_until_the_new_one_serves() {
        let config = "listen = \"127.0.0.1:0\"\nnamespaces = [\"mem:size=1MiB\"]";
        let config = TargetConfig::from_toml(config).expect("good");
        let server = Server::start(&config).expect("it starts");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("control");
        let bind = |takes_over| {
            let operations = Operations {
                report: Arc::new(server.report()),
                slowest: Arc::new(server.slowest()),
                trace: Box::new(server.trace()),
                kick: Box::new(|_, _| 0),
                paths: server.paths(),
                hand_over: Box::new(|| Err("not now".to_owned())),
                take_back: Box::new(|| Ok(())),
                claims: Arc::default(),
                retire: Box::new(|| ()),
                stop: Box::new(|| ()),
                change: Box::new(|_| Ok(None)),
            };
            super::bind(&path, operations, takes_over, || ())
        };
        let answers = || {
            let client = Client::connect(&path);
            client.and_then(|mut client| client.call("version", Value::Null)).is_ok()
        };
        let files = || std::fs::read_dir(folder.path()).expect("a folder").count();
        let old = bind(false).and_then(Bound::serve).expect("it is free");
        assert!(bind(false).is_err(), "it is served");
        let new = bind(true).expect("it takes over");
        assert_eq!((identity(&path).expect("it is there"), answers()), (old.identity, true));
        drop(new);
        assert_eq!((identity(&path).expect("it is there"), answers()), (old.identity, true));
        assert_eq!(files(), 1);
        let new = bind(true).and_then(Bound::serve).expect("it takes over");
        drop(old);
        assert_eq!((identity(&path).expect("it is there"), answers()), (new.identity, true));
        drop(new);
        assert_eq!(files(), 0);
        let other = UnixDatagram::bind(&path).expect("it is free");
        assert!(bind(false).is_err(), "a socket of another kind may be served");
        drop(other);
        assert!(bind(false).is_ok(), "its process is gone");
    }
}
