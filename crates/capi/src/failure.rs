//! Errors: an errno value, the numbers that explain it, and a message.

use bpfof_host::files::{MapRefusal, ReadError};
use bpfof_host::grant::GrantError;
use bpfof_host::grant::protocol::Cause;
use bpfof_host::{CommandError, Error, LostReason, Status, SubmitError};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::io;

/// Why a call failed, or how a chain ended.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) errno: i32,
    /// Status type and code if the chain ended with a status, otherwise 0.
    pub(crate) status: u32,
    /// Details, as the status defines them.
    pub(crate) value: u32,
    /// Hops done before the failure.
    pub(crate) hops: u32,
    pub(crate) message: String,
}

thread_local! {
    /// The message that `bpfof_error` returns on this thread.
    static LAST: RefCell<CString> = RefCell::default();
}

/// The message that [`Failure::keep`] last kept on this thread. Valid until it keeps another one.
pub(crate) fn last_message() -> *const c_char {
    // In a thread that is ending, the message is gone.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

impl Failure {
    pub(crate) fn new(errno: i32, message: impl Into<String>) -> Self {
        Self { errno, status: 0, value: 0, hops: 0, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, message)
    }

    /// A bug of this library; the object of the call may be in an inconsistent state.
    pub(crate) fn internal() -> Self {
        let message = "internal error of libbpfof, described on standard error; please report it";
        Self::new(libc::ENOTRECOVERABLE, message)
    }

    pub(crate) fn io(attempt: &str, error: &io::Error) -> Self {
        Self::new(errno_of(error), format!("{attempt}: {error}"))
    }

    /// Adds to the message which part of the call has failed.
    pub(crate) fn of_part(self, part: &str) -> Self {
        Self { message: format!("{part}: {}", self.message), ..self }
    }

    /// Keeps the message for `bpfof_error`.
    pub(crate) fn keep(&self) {
        let message = CString::new(self.message.replace('\0', " ")).unwrap_or_default();
        // A thread that is ending needs no message.
        let _ = LAST.try_with(|last| *last.borrow_mut() = message);
    }

    /// Writes the message into a C array, cut to fit, with a final zero.
    pub(crate) fn message_into(&self, field: &mut [c_char]) {
        let Some((end, room)) = field.split_last_mut() else { return };
        *end = 0;
        // Whole characters only.
        let cut = self.message.floor_char_boundary(room.len());
        let bytes = self.message.bytes().take(cut).chain(std::iter::repeat(0));
        room.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte as c_char);
    }

    /// The failure of a chain.
    pub(crate) fn of_chain(error: &ReadError) -> Self {
        let message = error.to_string();
        match error {
            ReadError::Command(command) => Self::of_command(command),
            ReadError::Stale => Self::new(libc::ESTALE, message),
            // The function can only run at the target.
            ReadError::Remembers { cause, .. } => match cause.as_deref() {
                Some(ReadError::Target(Error::Command { source, .. }))
                    if !source.is_interrupted() =>
                {
                    Self { message, ..Self::of_command(source) }
                }
                cause => Self::new(errno_of_lack(cause), message),
            },
            ReadError::TimedOut => Self::new(libc::ETIMEDOUT, message),
            ReadError::Plain { source, .. } => Self::new(errno_of(source), message),
            ReadError::Target(error) => Self::of_error(error),
            // The call was checked at submission, so the error means that there is no target.
            ReadError::Request(_) => Self::new(libc::ENOTCONN, message),
        }
    }

    /// A chain that ended with a status, at the target or on this machine.
    fn of_command(error: &CommandError) -> Self {
        let is = |status: &Status| error.status.same_code(*status);
        let known = CHAIN_ERRNOS.iter().find(|(status, _)| is(status));
        let too_long = is(&Status::INVALID_FUNCTION_OUTPUT) && error.dw0 == ANSWER_OUTSIDE_SCRATCH;
        Self {
            errno: match known {
                _ if too_long => libc::EMSGSIZE,
                Some((_, errno)) => *errno,
                None => libc::EREMOTEIO,
            },
            status: u32::from(error.status.sct()) << 8 | u32::from(error.status.sc()),
            value: error.dw0,
            hops: error.dw1,
            message: error.to_string(),
        }
    }

    /// An error of the target, or of the connection to it.
    pub(crate) fn of_error(error: &Error) -> Self {
        let errno = match error {
            Error::Url(_)
            | Error::MapSize { .. }
            | Error::RestrictedKeepAlive(_)
            | Error::HandOver(_)
            | Error::SeveralFunctions { .. }
            | Error::SeveralPortals(_)
            | Error::NoLane(_) => libc::EINVAL,
            Error::NoSuchMap { .. } | Error::NoSuchFunction { .. } => libc::ENOENT,
            Error::NoPath { is_denied: true, .. } => libc::EACCES,
            Error::Resolve { .. }
            | Error::NoPath { .. }
            | Error::ConnectRdma { .. }
            | Error::Lost(LostReason::NoPath) => libc::EHOSTUNREACH,
            Error::Connect { source, .. } => errno_of(source),
            Error::Thread(source) => errno_of(source),
            Error::Lost(_) | Error::Unknown { .. } | Error::NoGreeting { .. } => libc::ECONNRESET,
            Error::Submit(SubmitError::NotConnected) | Error::AdoptedLane => libc::ENOTCONN,
            Error::NotReady { .. } => libc::ETIMEDOUT,
            Error::Command { source, .. } => {
                let message = error.to_string();
                return Self { message, ..Self::of_command(source) };
            }
            Error::NoQueueLeft { .. } | Error::LaneBusy(_) => libc::EAGAIN,
            Error::AuthenticationRequired
            | Error::TargetNotAuthenticated
            | Error::AuthenticationFailed(_)
            | Error::Tls { .. }
            | Error::Key(_)
            | Error::HostsFile { .. }
            | Error::Credentials(_) => libc::EACCES,
            Error::NotPushdownTarget
            | Error::RestrictionUnknown
            | Error::OtherTarget(_)
            | Error::OtherFunctions(_) => libc::EOPNOTSUPP,
            Error::OtherDevice(_) => libc::EXDEV,
            Error::ProtocolVersion { .. } => libc::EPROTONOSUPPORT,
            Error::ObjectTooLarge { .. } => libc::EFBIG,
            Error::Submit(SubmitError::TooLong { .. }) => libc::E2BIG,
            Error::FunctionRejected(_) => libc::ENOEXEC,
            Error::NoRoomForFunction(_) => libc::ENOBUFS,
            Error::Grants(error) => return Self::of_grants(error),
            Error::BadAnswer(_) => libc::EPROTO,
            Error::Joined(error) => return Self::of_error(error),
            Error::DataDigest | Error::Submit(_) => libc::EIO,
        };
        Self::new(errno, error.to_string())
    }

    /// The error of opening a reader's lane.
    pub(crate) fn of_lane(error: &Error) -> Self {
        match error {
            Error::Joined(error) => Self::of_lane(error),
            Error::Command { source, .. }
                if source.status.same_code(Status::CONNECT_CONTROLLER_BUSY) =>
            {
                Self::new(libc::EAGAIN, error.to_string())
            }
            error => Self::of_error(error),
        }
    }

    /// An error of the grant daemon.
    fn of_grants(error: &GrantError) -> Self {
        let errno = match error {
            GrantError::Socket { source, .. } | GrantError::Memory(source) => errno_of(source),
            GrantError::Packet(_) => libc::EPROTO,
            GrantError::Refused(refusal) => match refusal.cause {
                Cause::Quota => libc::EAGAIN,
                Cause::Target => libc::EHOSTUNREACH,
                Cause::Policy => libc::EACCES,
                Cause::OtherPlace => libc::EXDEV,
                _ => libc::ENOTSUP,
            },
        };
        Self::new(errno, error.to_string())
    }

    /// Why a file has no map, or a namespace cannot be used.
    pub(crate) fn of_refusal(refusal: &MapRefusal) -> Self {
        let errno = match refusal {
            MapRefusal::Io { source, .. } => errno_of(source),
            MapRefusal::Target(error) => return Self::of_error(error),
            _ => libc::ENOTSUP,
        };
        Self::new(errno, refusal.to_string())
    }
}

/// Detail of Invalid Function Output for an answer longer than scratch (protocol.md, "Statuses").
const ANSWER_OUTSIDE_SCRATCH: u32 = 5;

/// Errno values of the statuses of chains, as listed in the header, and of the status for an unknown host. Answer Too
/// Long occurs without scratch: the chain then has one byte of it, and no room for an answer.
const CHAIN_ERRNOS: [(Status, i32); 13] = [
    (Status::UNKNOWN_FUNCTION, libc::ENOENT),
    (Status::READ_OUTSIDE_FILE, libc::ERANGE),
    (Status::HOP_BUDGET_EXHAUSTED, libc::ELOOP),
    (Status::BYTE_BUDGET_EXHAUSTED, libc::ELOOP),
    (Status::INSTRUCTION_BUDGET_EXHAUSTED, libc::ETIME),
    (Status::FUNCTION_FAULT, libc::EFAULT),
    (Status::FUNCTION_ABORT, libc::ECANCELED),
    (Status::INVALID_FUNCTION_OUTPUT, libc::EPROTO),
    (Status::ANSWER_TOO_LONG, libc::EMSGSIZE),
    (Status::RESOURCE_LIMIT, libc::ENOBUFS),
    (Status::UNRECOVERED_READ_ERROR, libc::EIO),
    (Status::ACCESS_DENIED, libc::EACCES),
    (Status::CONNECT_INVALID_HOST, libc::EACCES),
];

/// The errno of a chain that can only run at the target and could not because of `cause`. EAGAIN means that it may be
/// tried again on the same reader.
fn errno_of_lack(cause: Option<&ReadError>) -> i32 {
    match cause {
        Some(ReadError::Target(Error::Lost(reason))) if *reason != LostReason::NoPath => {
            libc::ECONNRESET
        }
        Some(
            ReadError::Target(Error::Submit(SubmitError::NotConnected)) | ReadError::Request(_),
        ) => libc::ENOTCONN,
        // It would be the same each time.
        Some(ReadError::Target(Error::Submit(SubmitError::TooLong { .. }))) => libc::E2BIG,
        _ => libc::EAGAIN,
    }
}

fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or_else(|| match error.kind() {
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        // The grant daemon is gone.
        io::ErrorKind::NotConnected => libc::ENOTCONN,
        io::ErrorKind::ConnectionReset => libc::ECONNRESET,
        // The path now leads to another file.
        io::ErrorKind::NotFound => libc::ENOENT,
        io::ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
        // The file became shorter while it was read.
        io::ErrorKind::UnexpectedEof => libc::ESTALE,
        io::ErrorKind::FileTooLarge => libc::EFBIG,
        _ => libc::EIO,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_at_characters_and_terminated() {
        let failure = Failure::invalid("abcä");
        let cut = |room: usize| {
            let mut field = vec![1; room];
            failure.message_into(&mut field);
            field.iter().map(|byte| *byte as u8).collect::<Vec<u8>>()
        };
        assert_eq!(cut(0), b"");
        assert_eq!(cut(1), b"\0");
        assert_eq!(cut(4), b"abc\0");
        assert_eq!(cut(5), b"abc\0\0");
        assert_eq!(cut(6), "abcä\0".as_bytes());
        assert_eq!(cut(8), "abcä\0\0\0".as_bytes());
    }

    #[test]
    fn each_thread_has_its_own_message() {
        let last = || {
            // The message is this thread's, and is not replaced meanwhile.
            LAST.with(|last| last.borrow().to_str().expect("UTF-8").to_owned())
        };
        Failure::invalid("one\0two").keep();
        assert_eq!(last(), "one two");
        std::thread::spawn(move || assert_eq!(last(), "")).join().expect("no panic");
        assert_eq!(last(), "one two");
    }

    #[test]
    fn a_function_with_maps_is_not_tried_again_on_a_lost_connection() {
        let errno = |cause| {
            let function = "count".to_owned();
            Failure::of_chain(&ReadError::Remembers { function, cause }).errno
        };
        let target = |error| errno(Some(Box::new(ReadError::Target(error))));
        assert_eq!(errno(None), libc::EAGAIN);
        assert_eq!(errno(Some(Box::new(ReadError::Stale))), libc::EAGAIN);
        let no_path = |is_denied| Error::NoPath { reasons: String::new(), is_denied };
        assert_eq!(target(LostReason::NoPath.into()), libc::EAGAIN);
        assert_eq!(target(LostReason::Closed.into()), libc::ECONNRESET);
        assert_eq!(target(SubmitError::NotConnected.into()), libc::ENOTCONN);
        let too_long = SubmitError::TooLong { bytes: 9000, max_bytes: 8192 };
        assert_eq!(target(too_long.into()), libc::E2BIG);
        assert_eq!(errno(Some(Box::new(ReadError::Request("no target")))), libc::ENOTCONN);
        let refused = |status| {
            let source = CommandError { status, dw0: 0, dw1: 0 };
            target(Error::Command { command: "Pushdown", source })
        };
        assert_eq!(refused(Status::UNKNOWN_FUNCTION), libc::ENOENT);
        assert_eq!(refused(Status::COMMAND_INTERRUPTED), libc::EAGAIN);
        let opened = |error| Failure::of_error(&error).errno;
        assert_eq!(opened(no_path(true)), libc::EACCES);
        assert_eq!(opened(no_path(false)), libc::EHOSTUNREACH);
    }

    #[test]
    fn a_chain_that_no_path_carries_out_may_be_tried_again() {
        let errno = |reason: LostReason| Failure::of_chain(&ReadError::Target(reason.into())).errno;
        assert_eq!(errno(LostReason::NoPath), libc::EHOSTUNREACH);
        assert_eq!(errno(LostReason::HungUp), libc::ECONNRESET);
    }

    #[test]
    fn a_path_to_another_file_is_like_one_that_is_gone() {
        let source = io::Error::new(io::ErrorKind::NotFound, "the path now leads to another file");
        let error = ReadError::Plain { path: "moved".into(), source };
        assert_eq!(Failure::of_chain(&error).errno, libc::ENOENT);
    }

    #[test]
    fn statuses_report_their_details() {
        let error = CommandError { status: Status::FUNCTION_ABORT.with_dnr(), dw0: 7, dw1: 3 };
        let failure = Failure::of_chain(&ReadError::Command(error));
        assert_eq!((failure.errno, failure.status), (libc::ECANCELED, 0x709));
        assert_eq!((failure.value, failure.hops), (7, 3));
        assert!(failure.message.contains("returned 7"), "{}", failure.message);
        let errno = |status| {
            let error = CommandError { status, dw0: 5, dw1: 0 };
            Failure::of_chain(&ReadError::Command(error)).errno
        };
        assert_eq!(errno(Status::HOP_BUDGET_EXHAUSTED), libc::ELOOP);
        assert_eq!(errno(Status::BYTE_BUDGET_EXHAUSTED), libc::ELOOP);
        assert_eq!(errno(Status::INVALID_FUNCTION_OUTPUT), libc::EMSGSIZE);
        assert_eq!(errno(Status::ANSWER_TOO_LONG), libc::EMSGSIZE);
        assert_eq!(errno(Status::RESOURCE_LIMIT), libc::ENOBUFS);
        assert_eq!(errno(Status::INTERNAL_PATH_ERROR), libc::EREMOTEIO);
    }
}
