//! What can go wrong, in words that say what to do.

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

/// Byte of Connect that Connect Invalid Parameters names where the keep-alive timeout is wrong
/// (NVMe Base 2.0 §6.3, KATO).
const CONNECT_KATO_BYTE: u32 = 48;
/// The same where there is no controller of this identifier: a byte of the data.
const CONNECT_CNTLID_BYTE: u32 = 1 << 16 | 16;
/// The same where it is the host's NQN: a byte of the data (NVMe over Fabrics, Connect response).
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
    #[error("cannot connect to {address} by RDMA: {why}")]
    ConnectRdma {
        /// Host and port.
        address: String,
        /// Why, and what to do about it.
        why: String,
    },
    /// The connection is gone, and every request in flight with it.
    #[error("the connection to the target is lost: {0}")]
    Lost(#[from] LostReason),
    /// The connection is gone with a write in flight, and there is none on which it may be sent again.
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
    /// How the same ended for another thread, which this one has waited for.
    #[error(transparent)]
    Joined(Arc<Error>),
    /// None of the portals of an address works.
    #[error("no path to the target: {reasons}")]
    NoPath {
        /// Each portal's.
        reasons: String,
        /// One of them is that the target does not take this host, or its keys.
        is_denied: bool,
    },
    /// A portal of an address leads to something else than the others do.
    #[error("it cannot take the place of the other paths: {0}")]
    OtherTarget(&'static str),
    /// The device that was named is that of another namespace.
    #[error("{0}: is the right device named?")]
    OtherDevice(String),
    /// The targets of an address with several portals give functions other ids.
    #[error("functions have other ids by this path: {0}")]
    OtherFunctions(String),
    /// What only an association by one portal can do.
    #[error("the address names several portals, and {0}; name one")]
    SeveralPortals(&'static str),
    /// Whoever listens there closed the connection before it said anything.
    #[error("{address} does not answer as an NVMe/TCP target: {reason}{hint}")]
    NoGreeting {
        /// Host and port.
        address: String,
        /// How the connection ended.
        reason: LostReason,
        /// What may help.
        hint: &'static str,
    },
    /// The handshake or the start of the controller took too long.
    #[error("the target did not become ready within {waited_ms} ms ({step})")]
    NotReady {
        /// What was waited for.
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
    /// A keep-alive timeout that a restricted association cannot have.
    #[error(
        "Options::keep_alive is {0:?}, and a restricted association (Options::pushdown_only) has 1 to \
         10 s"
    )]
    RestrictedKeepAlive(Duration),
    /// The target has no restricted associations.
    #[error("the target does not know restricted associations; update it")]
    RestrictionUnknown,
    /// A lane that no other process can have.
    #[error("the lane cannot be handed over: {0}")]
    HandOver(&'static str),
    /// A lane that was handed over, or what should be one, and is not.
    #[error("what was handed over is no lane: {0}")]
    NoLane(&'static str),
    /// A lane that was handed over cannot be connected again by who has got it.
    #[error("the lane was handed over by another process; ask that for a new one")]
    AdoptedLane,
    /// All queues that the target grants are in use.
    #[error("the target grants {granted} I/O queues and all are in use; close a lane first")]
    NoQueueLeft {
        /// Queues granted.
        granted: u32,
    },
    /// The target wants authentication, and there is no secret for it.
    #[error(
        "the target asks for authentication: add dhchap-key=FILE to the address, or to this target's \
         entry in hosts.toml, with the secret that the target has for this host"
    )]
    AuthenticationRequired,
    /// The target is to authenticate itself, and does not.
    #[error(
        "there is a secret of the target (dhchap-ctrl-key), and it does not authenticate itself: it may \
         be another one"
    )]
    TargetNotAuthenticated,
    /// One side has not proved who it is.
    #[error("authentication failed: {0}")]
    AuthenticationFailed(String),
    /// No TLS connection.
    #[error("cannot connect to {address} by TLS: {source}")]
    Tls {
        /// Host and port.
        address: String,
        /// Why.
        source: Box<HandshakeError>,
    },
    /// A key file cannot be used.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// The file that says who this host is (see [`HostsFile`](crate::HostsFile)) makes no sense.
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
    #[error("the target's answer makes no sense: {0}")]
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
    #[error("no function map is called {name:?}; there are: {known}")]
    NoSuchMap {
        /// The name.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// No installed function has this name.
    #[error("no function that is installed is called {name:?}; there are: {known}")]
    NoSuchFunction {
        /// The name.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// Several installed functions have this name.
    #[error("functions {ids} are called {name:?}: choose one by its id")]
    SeveralFunctions {
        /// The name.
        name: String,
        /// Theirs.
        ids: String,
    },
    /// A key or value of the wrong size.
    #[error("map {map}: a {part} has {expected_bytes} bytes, not {bytes}")]
    MapSize {
        /// The map.
        map: String,
        /// Which of the two.
        part: &'static str,
        /// The size it must have.
        expected_bytes: u32,
        /// The size it has.
        bytes: usize,
    },
    /// A thread of this library does not start: that which keeps the association alive, or that
    /// which keeps file maps.
    #[error("cannot start a thread that keeps the connection or file maps: {0}")]
    Thread(io::Error),
    /// The grant daemon refuses, or cannot be asked.
    #[error(transparent)]
    Grants(#[from] crate::grant::GrantError),
    /// The target refused a function.
    #[error("the target refused the function: {0}")]
    FunctionRejected(String),
    /// The target has as many functions, or as much machine code, as it takes.
    #[error("the target has no room for the function: {0}")]
    NoRoomForFunction(String),
}

/// What a side has done that the transport does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{kind}: {reason} (information {information:#x})")]
pub struct Violation {
    /// The name that the transport has for it.
    pub kind: &'static str,
    /// What was wrong.
    pub reason: &'static str,
    /// More of it, as the transport defines it.
    pub information: u32,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LostReason {
    /// The target closed it.
    #[error("the target closed it")]
    Closed,
    /// What came was not as the target sealed it, or could not be sealed.
    #[error("its encryption was broken")]
    Tls,
    /// It was handed over by another process, and its encryption key has been used enough.
    #[error("its key has been used enough, and only the process that made it can connect again")]
    KeyWorn,
    /// This side closed it.
    #[error("it was closed by this host")]
    HungUp,
    /// The operating system reported an error. By RDMA, what fails at this end or on the way is
    /// [`ConnectionAborted`](io::ErrorKind::ConnectionAborted), and the log says more.
    #[error("{0}")]
    Io(io::ErrorKind),
    /// The target broke the protocol.
    #[error("the target broke the protocol: {0}")]
    Protocol(Violation),
    /// The target ended it for an error that it saw.
    #[error("the target ended it: {kind} (information {information:#x})")]
    Terminated {
        /// The name that the transport has for it.
        kind: &'static str,
        /// More of it, as the transport defines it.
        information: u32,
    },
    /// The target does not do the digests that were asked for.
    #[error("the target declined the digests asked for; turn header and data digests off")]
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
    /// Status code type of what is about the path (NVMe Base 2.0 §3.3.3.2.1.5).
    pub(crate) const PATH: u8 = 3;

    /// Whether it is about the path by which the request came, so that it was not carried out, and may
    /// succeed by another.
    #[must_use]
    pub const fn is_of_path(&self) -> bool {
        self.status.sct() == Self::PATH
    }

    /// Whether the target has broken the request off for reasons of its own (Command Interrupted,
    /// NVMe Base 2.0 §3.3.3.2.1.2): the same request may succeed a little later.
    #[must_use]
    pub const fn is_interrupted(&self) -> bool {
        self.status.same_code(Status::COMMAND_INTERRUPTED) && !self.status.dnr()
    }

    /// Whether the target refused Connect for its keep-alive timeout: it wants none, or another.
    pub(crate) const fn is_of_keep_alive(&self) -> bool {
        let is_of_connect = self.status.same_code(Status::CONNECT_INVALID_PARAMETERS);
        self.status.same_code(Status::INVALID_KEEP_ALIVE_TIMEOUT)
            || (is_of_connect && self.dw0 == CONNECT_KATO_BYTE)
    }

    /// Whether the target refused an I/O queue because the association's controller is not there any more,
    /// or not enabled.
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
                2 => "more reads than a hop may ask for",
                3 => "a file that the request does not list",
                4 => "more bytes than a hop may read",
                5 => "an answer longer than scratch",
                _ => "an unknown cause",
            };
            write!(f, ": after {dw1} hops the function left {cause}")
        } else if is(Status::MALFORMED_REQUEST) {
            write!(f, ": byte {dw0} of the request")
        } else if is(Status::ANSWER_TOO_LONG) {
            write!(f, ": it has {dw0} bytes; allow for as many")
        } else if is(Status::RESOURCE_LIMIT) {
            f.write_str(": the target's limit for this connection is reached; unload or wait")
        } else if is(Status::UNKNOWN_MAP) {
            f.write_str(": the map is gone with the last function that used it, or its connection")
        } else if is(Status::NO_SUCH_ENTRY) {
            f.write_str(": the map has no entry with this key")
        } else if is(Status::ENTRY_EXISTS) {
            f.write_str(": the map has an entry with this key already")
        } else if is(Status::MAP_FULL) {
            f.write_str(": delete entries, or declare more; an array ends at max_entries")
        } else if is(Status::OPERATION_DENIED) {
            f.write_str(": this host's [[host]] rule at the target does not give the right to it")
        } else if is(Status::INVALID_NAMESPACE) {
            f.write_str(": the namespace does not exist; check ns in the address")
        } else if is(Status::LBA_OUT_OF_RANGE) {
            f.write_str(": the range ends behind the namespace")
        } else if is(Status::CONNECT_INVALID_HOST) {
            f.write_str(": the target does not admit this host's NQN")
        } else if is(Status::ANA_INACCESSIBLE) {
            f.write_str(": name another portal of the subsystem in the address, or wait")
        } else if self.is_interrupted() {
            f.write_str(": the target had to serve others, or its drive was reset; send it again")
        } else if self.is_of_keep_alive() {
            f.write_str(": the target wants another keep-alive timeout; change Options::keep_alive")
        } else if is(Status::CONNECT_INVALID_PARAMETERS) && self.dw0 == CONNECT_HOSTNQN_BYTE {
            f.write_str(": the host's NQN has a character that cannot be printed; use another")
        } else if is(Status::CONNECT_INVALID_PARAMETERS) {
            f.write_str(": check the subsystem's NQN in the address")
        } else {
            Ok(())
        }
    }
}

/// How a request ended that did not succeed.
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
    /// The same for one that changes data, where there are several paths: it was not sent again, because the
    /// target that it was lost on may still carry it out, or to carry it out twice may do more than once
    /// (docs/failover.md).
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

    /// Why the connection is over, if that is what went wrong.
    pub(crate) const fn lost(&self) -> Option<LostReason> {
        match self {
            Self::Lost(reason) => Some(*reason),
            Self::Submit(SubmitError::NotConnected) => Some(LostReason::HungUp),
            _ => None,
        }
    }

    /// Whether an I/O queue was refused that an association would have had besides, which goes on. A full target
    /// may close the connection without a word; one that has ended does so, too, and ends the admin queue.
    pub(crate) fn is_refused_queue(&self) -> bool {
        match self {
            // The name service does not know of the association.
            Self::NoQueueLeft { .. } | Self::Resolve { .. } => true,
            Self::Connect { source, .. } => {
                // This machine has no descriptor or port left.
                let errno = Errno::from_io_error(source);
                matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::ADDRNOTAVAIL))
            }
            Self::Command { source, .. } => !source.is_of_lost_controller(),
            _ => self.is_without_a_word(),
        }
    }

    /// Whether a new connection was closed before the target said anything.
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
    /// As many requests as the queue holds are in flight: receive completions first.
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
    /// A vector without chains, or with another number of first reads or another length of arguments than
    /// it has chains.
    #[error("the first reads or the arguments of the vector are not those of its chains")]
    UnevenVector,
}
