//! Errors of controllers, lanes and requests. Their messages say what to do.

use crate::UrlError;
use bpfof_auth::KeyFileError;
use bpfof_nvme::Status;
use bpfof_tls::HandshakeError;
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Byte of Connect that Connect Invalid Parameters names if the keep-alive timeout is wrong (NVMe
/// Base 2.0 §6.3, KATO).
const CONNECT_KATO_BYTE: u32 = 48;
/// The byte that it names if the queue id is in use, or too large.
const CONNECT_QID_BYTE: u32 = 42;
/// The byte that it names if no controller has the given identifier: a byte of the data.
const CONNECT_CNTLID_BYTE: u32 = 1 << 16 | 16;
/// The byte that it names if the host's NQN is wrong: a byte of the data (NVMe over Fabrics, Connect response).
const CONNECT_HOSTNQN_BYTE: u32 = 1 << 16 | 512;

/// An error of a controller or a lane.
#[derive(Debug, Error)]
pub enum Error {
    /// The address is unusable.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The host name has no address.
    #[error("cannot find {host}: {source}; check the host name in the address")]
    Resolve {
        /// The name.
        host: String,
        /// Why.
        source: io::Error,
    },
    /// No TCP connection.
    #[error("cannot connect to {address}: {source}; check that a target listens there")]
    Connect {
        /// Host and port.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// No connection by RDMA.
    #[error("cannot connect to {address} over RDMA: {why}")]
    ConnectRdma {
        /// Host and port.
        address: String,
        /// Why, and what to do about it.
        why: String,
    },
    /// The connection is gone, and every request in flight with it.
    #[error("the connection to the target is lost: {0}")]
    Lost(#[from] LostReason),
    /// The connection is gone with a write in flight, and no other connection may send the write again.
    #[error(
        "{command}: the connection to the target is lost, and whether it was carried out is unknown: \
         {reason}"
    )]
    Unknown {
        /// The command.
        command: &'static str,
        /// Why the connection ended.
        reason: LostReason,
    },
    /// An error shared by several requests or threads: they waited for the same connection.
    #[error(transparent)]
    Joined(Arc<Error>),
    /// No portal of the address works.
    #[error("no path to the target: {reasons}")]
    NoPath {
        /// The reason for each portal.
        reasons: String,
        /// Whether one of the reasons is that the target rejects this host or its keys.
        is_denied: bool,
    },
    /// A portal of an address leads to a target that cannot take the place of the other portals' targets.
    #[error("this path cannot replace the other paths: {0}")]
    OtherTarget(&'static str),
    /// The named device belongs to another namespace.
    #[error("{0}; check that the right device is named")]
    OtherDevice(String),
    /// The targets behind an address with several portals number functions differently.
    #[error("functions have different ids on this path: {0}")]
    OtherFunctions(String),
    /// The operation needs an association through a single portal.
    #[error("the address names several portals, but {0}; name only one")]
    SeveralPortals(&'static str),
    /// The listener closed the connection before it sent anything.
    #[error("{address} does not answer as an NVMe/TCP target: {reason}{hint}")]
    NoGreeting {
        /// Host and port.
        address: String,
        /// How the connection ended.
        reason: LostReason,
        /// A hint for the user, or nothing.
        hint: &'static str,
    },
    /// The handshake or the start of the controller took too long.
    #[error("the target did not become ready within {waited_ms} ms ({step})")]
    NotReady {
        /// The step that did not finish.
        step: &'static str,
        /// How long, in ms.
        waited_ms: u64,
    },
    /// The target refused a command.
    #[error("{command}: {source}")]
    Command {
        /// The command.
        command: &'static str,
        /// Its status.
        source: CommandError,
    },
    /// The data of a request arrived damaged.
    #[error("data arrived damaged (data digest); the request can be repeated")]
    DataDigest,
    /// The request cannot be sent.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// A blocking call on a lane with requests in flight.
    #[error("the lane has {0} requests in flight; wait for them before a blocking call")]
    LaneBusy(usize),
    /// The keep-alive timeout is outside the range of restricted associations.
    #[error(
        "Options::keep_alive is {0:?}, but a restricted association (Options::pushdown_only) needs \
         1 to 10 s"
    )]
    RestrictedKeepAlive(Duration),
    /// The target has no restricted associations.
    #[error("the target does not support restricted associations; update it")]
    RestrictionUnknown,
    /// The lane cannot be handed over to another process.
    #[error("the lane cannot be handed over: {0}")]
    HandOver(&'static str),
    /// The data or socket of a handed-over lane is invalid.
    #[error("the handed-over lane is invalid: {0}")]
    NoLane(&'static str),
    /// A process that was handed a lane cannot reconnect it.
    #[error("the lane was handed over by another process; ask that process for a new one")]
    AdoptedLane,
    /// All I/O queues that the target grants are in use.
    #[error("the target grants {granted} I/O queues, and all are in use; close a lane first")]
    NoQueueLeft {
        /// Queues granted.
        granted: u32,
    },
    /// The target requires authentication, and the host has no secret for it.
    #[error(
        "the target asks for authentication: add dhchap-key=FILE to the address, or to this target's \
         entry in hosts.toml, with the secret that the target has for this host"
    )]
    AuthenticationRequired,
    /// The host has a secret for the target, and the target does not authenticate itself.
    #[error(
        "the target does not authenticate itself although a secret for it is configured \
         (dhchap-ctrl-key): it may be an impostor"
    )]
    TargetNotAuthenticated,
    /// One side failed to authenticate.
    #[error("authentication failed: {0}")]
    AuthenticationFailed(String),
    /// No TLS connection.
    #[error("cannot connect to {address} over TLS: {source}")]
    Tls {
        /// Host and port.
        address: String,
        /// Why.
        source: Box<HandshakeError>,
    },
    /// A key file cannot be used.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// The file with the host's NQN and keys ([`HostsFile`](crate::HostsFile)) is invalid.
    #[error("{path}: {why}")]
    HostsFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Names or keys that cannot be used.
    #[error("{0}")]
    Credentials(String),
    /// An answer contradicts the specification or itself.
    #[error("the target's answer is invalid: {0}")]
    BadAnswer(&'static str),
    /// The target is an ordinary disk.
    #[error("the target does not support pushdown; is it a bpf-of target?")]
    NotPushdownTarget,
    /// The target speaks another version of the pushdown protocol.
    #[error("the target speaks pushdown protocol {found}, this host {ours}; update the older one")]
    ProtocolVersion {
        /// The target's.
        found: u16,
        /// This library's.
        ours: u16,
    },
    /// An object is larger than the target takes.
    #[error("the object has {bytes} bytes, the target accepts {max_bytes}")]
    ObjectTooLarge {
        /// Size of the object.
        bytes: u64,
        /// The target's limit.
        max_bytes: u64,
    },
    /// No function map has this name.
    #[error("there is no function map named {name:?}; existing maps: {known}")]
    NoSuchMap {
        /// The name.
        name: String,
        /// The existing names.
        known: String,
    },
    /// No installed function has this name.
    #[error("there is no installed function named {name:?}; installed functions: {known}")]
    NoSuchFunction {
        /// The name.
        name: String,
        /// The existing names.
        known: String,
    },
    /// Several installed functions have this name.
    #[error("functions {ids} are all named {name:?}: choose one by its id")]
    SeveralFunctions {
        /// The name.
        name: String,
        /// The ids of these functions.
        ids: String,
    },
    /// A key or value of the wrong size.
    #[error("map {map}: a {part} has {expected_bytes} bytes, not {bytes}")]
    MapSize {
        /// The map.
        map: String,
        /// Key or value.
        part: &'static str,
        /// The size it must have.
        expected_bytes: u32,
        /// The size it has.
        bytes: usize,
    },
    /// A thread of this library cannot be started: the one that keeps the association alive, or the
    /// keeper of file maps.
    #[error("cannot start the thread for Keep Alives or file maps: {0}")]
    Thread(io::Error),
    /// The grant daemon refuses the request, or cannot be reached.
    #[error(transparent)]
    Grants(#[from] crate::grant::GrantError),
    /// The target refused a function.
    #[error("the target refused the function: {0}")]
    FunctionRejected(String),
    /// The target's limit on functions or on machine code is reached.
    #[error("the target has no room for the function: {0}")]
    NoRoomForFunction(String),
}

/// A violation of the transport protocol by one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{kind}: {reason} (information {information:#x})")]
pub struct Violation {
    /// The transport's name for the error.
    pub kind: &'static str,
    /// What was wrong.
    pub reason: &'static str,
    /// Details, as the transport defines them.
    pub information: u32,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LostReason {
    /// The target closed it.
    #[error("the target closed it")]
    Closed,
    /// A TLS record could not be decrypted or encrypted.
    #[error("TLS encryption or decryption failed")]
    Tls,
    /// Another process handed the connection over, and its encryption key has reached its usage limit.
    #[error(
        "its TLS key has reached its usage limit, and only the process that opened it can \
         reconnect"
    )]
    KeyWorn,
    /// This side closed it.
    #[error("this host closed it")]
    HungUp,
    /// With several paths: none was usable in time. The lane continues as soon as one is.
    #[error("no path was usable in time")]
    NoPath,
    /// The operating system reported an error. With RDMA, failures of this side or of the network
    /// are [`ConnectionAborted`](io::ErrorKind::ConnectionAborted); the log has details.
    #[error("{0}")]
    Io(io::ErrorKind),
    /// The target broke the protocol.
    #[error("the target broke the protocol: {0}")]
    Protocol(Violation),
    /// The target ended it because of an error that it detected.
    #[error("the target ended it: {kind} (information {information:#x})")]
    Terminated {
        /// The transport's name for the error.
        kind: &'static str,
        /// Details, as the transport defines them.
        information: u32,
    },
    /// The target does not support the requested digests.
    #[error("the target does not support the requested digests; turn header and data digests off")]
    DigestsDeclined,
    /// A command was not answered in time.
    #[error("{command} was not answered within {waited_ms} ms")]
    Timeout {
        /// The command.
        command: &'static str,
        /// How long it was in flight, in ms.
        waited_ms: u64,
    },
}

/// A request that the target answered with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandError {
    /// The status.
    pub status: Status,
    /// Dword 0 of the completion: details, as the status defines them.
    pub dw0: u32,
    /// Dword 1 of the completion: hops done, for a chain.
    pub dw1: u32,
}

impl CommandError {
    /// Status code type of path-related status (NVMe Base 2.0 §3.3.3.2.1.5).
    pub(crate) const PATH: u8 = 3;

    /// Whether the error is about the path that the request took: the request may succeed on another path.
    #[must_use]
    pub const fn is_of_path(&self) -> bool {
        self.status.sct() == Self::PATH
    }

    /// Whether the controller has refused the request because of the asymmetric access of the namespace (codes 01h to
    /// 03h). Other errors of paths may come after it has been carried out.
    pub(crate) const fn is_of_access(&self) -> bool {
        self.is_of_path() && matches!(self.status.sc(), 1..=3)
    }

    /// Whether the target has aborted the request for its own reasons (Command Interrupted, NVMe
    /// Base 2.0 §3.3.3.2.1.2): the same request may succeed a little later.
    #[must_use]
    pub const fn is_interrupted(&self) -> bool {
        self.status.same_code(Status::COMMAND_INTERRUPTED) && !self.status.dnr()
    }

    /// Whether the target refused Connect because of its keep-alive timeout: it wants none, or another one.
    pub(crate) const fn is_of_keep_alive(&self) -> bool {
        let is_of_connect = self.status.same_code(Status::CONNECT_INVALID_PARAMETERS);
        self.status.same_code(Status::INVALID_KEEP_ALIVE_TIMEOUT)
            || (is_of_connect && self.dw0 == CONNECT_KATO_BYTE)
    }

    /// Whether the target refused Connect because of the queue id: it is in use, or too large.
    pub(crate) const fn is_of_queue_id(&self) -> bool {
        self.status.same_code(Status::CONNECT_INVALID_PARAMETERS) && self.dw0 == CONNECT_QID_BYTE
    }

    /// Whether the target refused an I/O queue because the association's controller no longer exists or is not enabled.
    const fn is_of_lost_controller(&self) -> bool {
        let is_of_connect = self.status.same_code(Status::CONNECT_INVALID_PARAMETERS);
        self.status.same_code(Status::COMMAND_SEQUENCE_ERROR)
            || (is_of_connect && self.dw0 == CONNECT_CNTLID_BYTE)
    }
}

impl std::error::Error for CommandError {}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, dw0, dw1 } = *self;
        write!(f, "{status}")?;
        let is = |other: Status| status.same_code(other);
        if is(Status::UNKNOWN_FUNCTION) {
            f.write_str(": load the function on this connection first")
        } else if is(Status::UNKNOWN_FILE) {
            write!(f, ": file {dw0} of the request has no map; set it first")
        } else if is(Status::STALE_FILE_MAP) {
            write!(f, ": file {dw0} of the request has changed; read its map again and retry")
        } else if is(Status::READ_OUTSIDE_FILE) {
            write!(f, ": hop {dw1} reads outside the map of file {dw0} of the request")
        } else if is(Status::HOP_BUDGET_EXHAUSTED) || is(Status::BYTE_BUDGET_EXHAUSTED) {
            write!(f, ": the chain ended after {dw1} hops; is there a cycle in the data?")
        } else if is(Status::INSTRUCTION_BUDGET_EXHAUSTED) {
            write!(f, ": at pc {dw0} after {dw1} hops; the function runs too long")
        } else if is(Status::FUNCTION_FAULT) {
            write!(f, ": at pc {dw0} after {dw1} hops; bpfof function check shows the source line")
        } else if is(Status::FUNCTION_ABORT) {
            write!(f, ": the function returned {} after {dw1} hops", dw0.cast_signed())
        } else if is(Status::INVALID_FUNCTION_OUTPUT) {
            let cause = match dw0 {
                1 => "neither done nor a read",
                2 => "more reads than a hop may request",
                3 => "a file that the request does not list",
                4 => "more bytes than a hop may read",
                5 => "an answer longer than scratch",
                _ => "an unknown cause",
            };
            write!(f, ": after {dw1} hops the function returned with {cause}")
        } else if is(Status::MALFORMED_REQUEST) {
            write!(f, ": invalid at byte {dw0} of the request")
        } else if is(Status::ANSWER_TOO_LONG) {
            write!(f, ": it has {dw0} bytes; make the answer buffer at least as large")
        } else if is(Status::RESOURCE_LIMIT) {
            f.write_str(
                ": a limit of the target is reached; unload functions, remove maps, or wait",
            )
        } else if is(Status::UNKNOWN_MAP) {
            f.write_str(": the map was freed with its last function or its connection")
        } else if is(Status::NO_SUCH_ENTRY) {
            f.write_str(": the map has no entry with this key")
        } else if is(Status::ENTRY_EXISTS) {
            f.write_str(": the map has an entry with this key already")
        } else if is(Status::MAP_FULL) {
            f.write_str(
                ": delete entries, or declare more; the indices of an array are below max_entries",
            )
        } else if is(Status::OPERATION_DENIED) {
            f.write_str(": this host's [[host]] rule at the target does not grant the right")
        } else if is(Status::INVALID_NAMESPACE) {
            f.write_str(": the namespace does not exist; check ns in the address")
        } else if is(Status::LBA_OUT_OF_RANGE) {
            f.write_str(": the range ends beyond the end of the namespace")
        } else if is(Status::CONNECT_INVALID_HOST) {
            f.write_str(": the target does not admit this host's NQN")
        } else if is(Status::ANA_INACCESSIBLE) {
            f.write_str(": name another portal of the subsystem in the address, or wait")
        } else if self.is_interrupted() {
            f.write_str(": the target interrupted it, to serve others or because its drive was reset; send it again")
        } else if self.is_of_keep_alive() {
            f.write_str(
                ": the target requires another keep-alive timeout; change Options::keep_alive",
            )
        } else if is(Status::CONNECT_INVALID_PARAMETERS) && self.dw0 == CONNECT_HOSTNQN_BYTE {
            f.write_str(": the host's NQN has an unprintable character; use another NQN")
        } else if is(Status::CONNECT_INVALID_PARAMETERS) {
            f.write_str(": check the subsystem's NQN in the address")
        } else {
            Ok(())
        }
    }
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// The target answered with an error.
    #[error(transparent)]
    Command(CommandError),
    /// Its data arrived damaged; the connection is intact, and the request can be repeated.
    #[error("data arrived damaged (data digest); the request can be repeated")]
    DataDigest,
    /// The connection was lost before the answer. Whether the target performed the request is
    /// unknown.
    #[error("the connection was lost with the request in flight: {0}")]
    Lost(LostReason),
    /// The same for a request that changes data, with several paths: it was not sent again, because the first target
    /// may still carry it out, or because executing it twice differs from executing it once (docs/failover.md).
    #[error("the connection was lost, and whether the request was carried out is unknown: {0}")]
    Unknown(LostReason),
}

impl RequestError {
    /// The error of a blocking call of `command`.
    pub(crate) fn of(self, command: &'static str) -> Error {
        match self {
            Self::Command(source) => Error::Command { command, source },
            Self::DataDigest => Error::DataDigest,
            Self::Lost(reason) => Error::Lost(reason),
            Self::Unknown(reason) => Error::Unknown { command, reason },
        }
    }
}

impl Error {
    /// Whether a key is missing or wrong, or the target does not know this host.
    pub(crate) fn is_denied(&self) -> bool {
        match self {
            Self::Command { source, .. } => source.status.same_code(Status::CONNECT_INVALID_HOST),
            Self::Joined(error) => error.is_denied(),
            Self::AuthenticationRequired
            | Self::TargetNotAuthenticated
            | Self::AuthenticationFailed(_)
            | Self::Tls { .. }
            | Self::Key(_)
            | Self::Credentials(_) => true,
            _ => false,
        }
    }

    /// Why the connection ended, if this error is a lost connection.
    pub(crate) const fn lost(&self) -> Option<LostReason> {
        match self {
            Self::Lost(reason) => Some(*reason),
            Self::Submit(SubmitError::NotConnected) => Some(LostReason::HungUp),
            _ => None,
        }
    }

    /// Whether only an additional I/O queue was refused, while the association itself goes on. A full target may close
    /// the new connection without an answer; so does a target that has ended, but that also ends the admin queue.
    pub(crate) fn is_refused_queue(&self) -> bool {
        match self {
            // A failed name lookup does not affect the association.
            Self::NoQueueLeft { .. } | Self::Resolve { .. } => true,
            Self::Connect { source, .. } => {
                // This machine has no free descriptor or port.
                let errno = Errno::from_io_error(source);
                matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::ADDRNOTAVAIL))
            }
            Self::Command { source, .. } => !source.is_of_lost_controller(),
            _ => self.is_without_a_word(),
        }
    }

    /// Whether a new connection was closed before the target sent anything.
    pub(crate) fn is_without_a_word(&self) -> bool {
        use HandshakeError::{Closed, Io, NothingSent};
        match self {
            Self::NoGreeting { .. } => true,
            Self::Tls { source, .. } => matches!(**source, Closed | Io(_) | NothingSent),
            _ => false,
        }
    }
}

/// Why a request was not accepted. Nothing of it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SubmitError {
    /// The queue is full of requests in flight: receive completions first.
    #[error("the queue is full; receive completions first")]
    QueueFull,
    /// The connection is not open.
    #[error("the connection is not open; reconnect")]
    NotConnected,
    /// The namespace does not exist, or appeared after the lane was opened.
    #[error("namespace {nsid} does not exist")]
    UnknownNamespace {
        /// The namespace asked for.
        nsid: u32,
    },
    /// Offset or length is not a multiple of the logical block, or the length is 0.
    #[error("offset and length must be multiples of {block_bytes} bytes, the length not 0")]
    Unaligned {
        /// The logical block of the namespace.
        block_bytes: u32,
    },
    /// More data than one command may transfer.
    #[error("{bytes} bytes are more than one command can transfer ({max_bytes})")]
    TooLong {
        /// What was asked for.
        bytes: u64,
        /// What is possible.
        max_bytes: u64,
    },
    /// The offset and the length together exceed 64 bits.
    #[error("the range ends beyond the largest possible offset; check the offset")]
    RangeOverflow,
    /// The vector has no chains, or the first reads or arguments do not match the number of chains.
    #[error("the vector has no chains, or its first reads or arguments do not match their number")]
    UnevenVector,
}
