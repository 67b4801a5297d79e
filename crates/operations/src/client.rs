//! Requests to a target's control socket.

use crate::rpc::{Answer, Request};
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the target may take to answer: as long as it takes to read a configuration.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a request has no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no such socket, nobody serves it, or it is not for this user.
    #[error(
        "{}: {source}; a target answers there that is started with --control, and only to root and its \
         own user", path.display()
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
    /// What came is no answer.
    #[error("the target answers nonsense: {0}")]
    Nonsense(#[from] serde_json::Error),
    /// The target's words.
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
    /// It has not within the time that an answer may take.
    pub fn wait_end(mut self) -> Result<(), ClientError> {
        let mut rest = String::new();
        match self.reader.read_line(&mut rest) {
            Ok(0) => Ok(()),
            Ok(_) => Err(io::Error::other("it says more than it was asked for").into()),
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
        self.reader.get_mut().write_all(text.as_bytes())?;
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let Ok(answer) = serde_json::from_str::<Answer>(&line) else {
            let refusal: Value = serde_json::from_str(&line)?;
            let words = refusal["error"]["message"].as_str().unwrap_or(line.trim());
            return Err(ClientError::Refused(words.to_owned()));
        };
        match answer.error {
            Some(failure) => Err(ClientError::Refused(failure.message)),
            None => Ok(answer.result.unwrap_or_default()),
        }
    }
}
