//! Requests to a target's control socket.

use crate::rpc::{Answer, Notification, Request};
use clap::Args;
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The path of the socket in the unit for systemd.
const USUAL_SOCKET: &str = "/run/bpfof-target/control.sock";
/// How long the target may take to answer: reloading a configuration takes longest.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long the target may take to end notifications.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The option of commands that names a target's control socket.
#[derive(Debug, Args)]
pub struct ControlSocket {
    /// Control socket of the target, as in its --control.
    #[arg(
        long,
        value_name = "PATH",
        env = "BPFOF_CONTROL",
        default_value = USUAL_SOCKET,
        global = true
    )]
    pub socket: PathBuf,
}

/// Why a request has no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no such socket, no process serves it, or this user may not use it.
    #[error(
        "{}: {source}; only a target with --control has this socket, and only root and the \
         target's own user may use it", path.display()
    )]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The connection was lost.
    #[error("the target does not answer: {0}")]
    Lost(#[from] io::Error),
    /// The target is busy, or stopped.
    #[error(
        "no answer within {} seconds; a change may still be carried out, so look at the target's log before you request \
         it again", PATIENCE.as_secs()
    )]
    Late,
    /// The target sent something that is not an answer.
    #[error("the target's answer is invalid: {0}")]
    Nonsense(#[from] serde_json::Error),
    /// The target has refused the request; its message.
    #[error("{0}")]
    Refused(String),
}

/// A connection to a target.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<UnixStream>,
    last: u64,
}

impl Client {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// [`ClientError::Connect`].
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let connect = || {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            Ok(stream)
        };
        let stream =
            connect().map_err(|source| ClientError::Connect { path: path.to_owned(), source })?;
        Ok(Self { reader: BufReader::new(stream), last: 0 })
    }

    /// Waits until the target has closed the connection: it has ended.
    ///
    /// # Errors
    /// It has not ended within the time that an answer may take.
    pub fn wait_end(mut self) -> Result<(), ClientError> {
        let mut rest = String::new();
        match self.reader.read_line(&mut rest) {
            Ok(0) => Ok(()),
            Ok(_) => Err(io::Error::other("it sent data without a request").into()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a request, and waits for its result.
    ///
    /// # Errors
    /// All others of [`ClientError`].
    pub fn call(&mut self, method: &str, params: Value) -> Result<Value, ClientError> {
        self.last += 1;
        let request = Request {
            jsonrpc: "2.0".to_owned(),
            id: self.last.into(),
            method: method.to_owned(),
            params,
        };
        let text = serde_json::to_string(&request)? + "\n";
        let sent = self.reader.get_mut().write_all(text.as_bytes());
        // A target that refuses the connection says why, and does not receive the request.
        let mut line = String::new();
        let received = self.reader.read_line(&mut line);
        if !line.ends_with('\n') {
            sent?;
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(ClientError::Late);
                }
                received => received?,
            };
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let answer: Answer = serde_json::from_str(&line)?;
        match answer.error {
            Some(failure) => Err(ClientError::Refused(failure.message)),
            None => Ok(answer.result.unwrap_or_default()),
        }
    }

    /// A function that ends the notifications from another thread: [`notified`](Self::notified) then returns those that
    /// are under way, for a moment at most, and after that none.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn ender(&self) -> io::Result<impl Fn() + Send + 'static> {
        let stream = self.reader.get_ref().try_clone()?;
        Ok(move || {
            let _ = stream.shutdown(Shutdown::Write);
            std::thread::sleep(LAST_WORDS);
            let _ = stream.shutdown(Shutdown::Both);
        })
    }

    /// Waits for the next notification, after a request that leads to some, and returns its parameters; none if no more
    /// will come.
    ///
    /// # Errors
    /// [`ClientError::Lost`], [`ClientError::Nonsense`].
    pub fn notified(&mut self) -> Result<Option<Value>, ClientError> {
        // Notifications may take any time to come.
        self.reader.get_ref().set_read_timeout(None)?;
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(serde_json::from_str::<Notification>(&line)?.params)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
