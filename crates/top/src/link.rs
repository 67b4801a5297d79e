//! The connection to the target, on a thread of its own: a report every interval, and kicks in between.

use crate::app::Host;
use crate::report::Report;
use bpfof_operations::client::{Client, ClientError};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// What comes from the target.
#[derive(Debug)]
pub(crate) enum News {
    Report(Box<Report>),
    /// There is no connection, or it was lost.
    Lost(String),
    /// The outcome of a kick.
    Kicked(Result<String, String>),
}

/// A connection to a target that is made again after a loss.
#[derive(Debug)]
pub(crate) struct Link {
    path: PathBuf,
    /// The connection, and when it was last used.
    client: Option<(Client, Instant)>,
}

/// A connection that has been silent for so long is not used again: the target ends it after a minute.
const SILENCE: Duration = Duration::from_secs(30);

impl Link {
    pub(crate) fn new(path: &Path) -> Link {
        Link { path: path.to_owned(), client: None }
    }

    fn call(&mut self, method: &str, params: Value) -> Result<Value, ClientError> {
        let kept = self.client.take().filter(|(_, used)| used.elapsed() < SILENCE);
        let mut client = match kept {
            Some((client, _)) => client,
            None => Client::connect(&self.path)?,
        };
        let result = client.call(method, params);
        if matches!(result, Ok(_) | Err(ClientError::Refused(_))) {
            self.client = Some((client, Instant::now()));
        }
        result
    }

    pub(crate) fn report(&mut self) -> Result<Report, ClientError> {
        Ok(serde_json::from_value(self.call("report", Value::Null)?)?)
    }

    fn kick(&mut self, host: &Host) -> Result<String, ClientError> {
        let Host { nqn, address } = host;
        let result = self.call("kick", json!({ "host": nqn, "address": address }))?;
        Ok(format!("{} associations of {host} end", result["ended"]))
    }

    /// Sends a report every interval until `tell` returns false. Requests from `kicks` are carried out at once.
    pub(crate) fn follow(
        mut self,
        interval: Duration,
        kicks: &Receiver<Host>,
        tell: impl Fn(News) -> bool,
    ) {
        let mut due = Instant::now();
        loop {
            let news = match self.report() {
                Ok(report) => News::Report(Box::new(report)),
                Err(error) => News::Lost(error.to_string()),
            };
            if !tell(news) {
                return;
            }
            due = (due + interval).max(Instant::now());
            loop {
                match kicks.recv_timeout(due.saturating_duration_since(Instant::now())) {
                    Ok(host) => {
                        let outcome = self.kick(&host).map_err(|error| error.to_string());
                        if !tell(News::Kicked(outcome)) {
                            return;
                        }
                    }
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        }
    }
}
