//! Another process replaces a target: it gets copies of the listening sockets, so that no host is ever refused.
//!
//! The request `hand-over` on the control socket is answered with a line and the sockets (SCM_RIGHTS, unix(7)), in the
//! order in which the line names them.

use crate::client::ClientError;
use crate::rpc::{Answer, Failure, Request};
use bpfof_controller::HandOver;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most sockets that are handed over: the kernel takes 253 at a time.
const MAX_SOCKETS: usize = 128;
/// Longest answer, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// How long a target may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who may get the sockets: one process at a time, as long as the connection of its request lives, and none any more
/// once this target has retired. It reads the configuration after its claim, so none changes meanwhile.
#[derive(Debug, Default)]
pub struct Claims {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No process has a claim; the configuration is being changed by this many.
    Free(u32),
    Claimed,
    Retired,
}

impl Default for State {
    fn default() -> Self {
        State::Free(0)
    }
}

impl Claims {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims the sockets for a process, or tells why it cannot have them. Waits for a change of the configuration, up
    /// to `patience`. The claim ends when the returned value is dropped.
    pub(crate) fn claim(&self, patience: Duration) -> Result<Claim<'_>, &'static str> {
        let is_changed = |state: &mut State| matches!(state, State::Free(1..));
        let waited = self.changed.wait_timeout_while(self.state(), patience, is_changed);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match *state {
            State::Free(0) => {
                *state = State::Claimed;
                Ok(Claim(self))
            }
            State::Free(_) => Err("its configuration is being changed; try again in a moment"),
            State::Claimed | State::Retired => {
                Err("another process is taking over, or has taken over")
            }
        }
    }

    /// Begins a change of the configuration, which ends when the returned value is dropped; none if a process is taking
    /// over, or has.
    #[must_use]
    pub fn change(&self) -> Option<Changing<'_>> {
        let mut state = self.state();
        let State::Free(changes) = *state else { return None };
        *state = State::Free(changes + 1);
        Some(Changing(self))
    }

    /// Records that another process has the sockets for good.
    pub(crate) fn retire(&self) {
        *self.state() = State::Retired;
    }

    pub(crate) fn are_retired(&self) -> bool {
        *self.state() == State::Retired
    }
}

/// The claim of a process that has been given the sockets.
#[derive(Debug)]
pub(crate) struct Claim<'a>(&'a Claims);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if *state == State::Claimed {
            *state = State::Free(0);
        }
    }
}

/// A change of the configuration. No process can claim the sockets meanwhile.
#[derive(Debug)]
pub struct Changing<'a>(&'a Claims);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if let State::Free(changes) = &mut *self.0.state() {
            *changes -= 1;
        }
        self.0.changed.notify_all();
    }
}

/// The sockets of a target.
#[derive(Debug)]
pub struct Sockets {
    /// The sockets for hosts.
    pub of_hosts: HandOver,
    /// The socket for metrics.
    pub metrics: Option<TcpListener>,
    /// The connection on which they came: as long as it is open, no other process gets them.
    pub claim: Option<UnixStream>,
}

/// The description of the sockets in the answer.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Words {
    /// The role of each socket, in their order.
    sockets: Vec<Role>,
    last_controller: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Role {
    Listen,
    Discovery,
    Metrics,
}

impl Sockets {
    fn all(&self) -> impl Iterator<Item = (Role, &TcpListener)> {
        let HandOver { listeners, discovery, .. } = &self.of_hosts;
        let hosts = listeners.iter().map(|socket| (Role::Listen, socket));
        let discovery = discovery.iter().map(|socket| (Role::Discovery, socket));
        hosts.chain(discovery).chain(self.metrics.iter().map(|socket| (Role::Metrics, socket)))
    }

    fn of(words: &Words, descriptors: Vec<OwnedFd>) -> Option<Sockets> {
        if words.sockets.len() != descriptors.len() {
            return None;
        }
        let last_controller = words.last_controller;
        let of_hosts = HandOver { listeners: Vec::new(), discovery: None, last_controller };
        let mut sockets = Sockets { of_hosts, metrics: None, claim: None };
        for (role, descriptor) in words.sockets.iter().zip(descriptors) {
            let socket = TcpListener::from(descriptor);
            match role {
                Role::Listen => sockets.of_hosts.listeners.push(socket),
                Role::Discovery => sockets.of_hosts.discovery = Some(socket),
                Role::Metrics => sockets.metrics = Some(socket),
            }
        }
        Some(sockets)
    }
}

/// Calls `hand_over` for the sockets, and puts them into `sockets`. Returns the result of the request, which describes
/// them.
pub(crate) fn offer(
    hand_over: &(dyn Fn() -> Result<Sockets, String> + Send + Sync),
    sockets: &mut Option<Sockets>,
) -> Result<Value, Failure> {
    let failed = |error: String| Failure::new(Failure::FAILED, error);
    let offered = hand_over().map_err(failed)?;
    let (roles, last_controller) =
        (offered.all().map(|(role, _)| role).collect(), offered.of_hosts.last_controller);
    let words = Words { sockets: roles, last_controller };
    *sockets = Some(offered);
    serde_json::to_value(words).map_err(|error| failed(error.to_string()))
}

/// Sends the answer with the sockets.
pub(crate) fn send(stream: &UnixStream, text: &str, sockets: &Sockets) -> io::Result<()> {
    let descriptors: Vec<BorrowedFd<'_>> = sockets.all().map(|(_, of)| of.as_fd()).collect();
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("more sockets than can be handed over"));
    }
    let text = text.as_bytes();
    let sent = sendmsg(stream, &[IoSlice::new(text)], &mut control, SendFlags::NOSIGNAL)?;
    (&mut &*stream).write_all(&text[sent..])
}

/// Asks the target at a control socket for its sockets. That target goes on accepting until it is told to `retire`.
///
/// # Errors
/// No target answers there, or it refuses.
pub fn receive(path: &Path) -> Result<Sockets, ClientError> {
    let connected = UnixStream::connect(path).and_then(|stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    });
    let mut stream =
        connected.map_err(|source| ClientError::Connect { path: path.to_owned(), source })?;
    let request = Request {
        jsonrpc: "2.0".to_owned(),
        id: 1.into(),
        method: "hand-over".to_owned(),
        params: Value::Null,
    };
    stream.write_all((serde_json::to_string(&request)? + "\n").as_bytes())?;
    let (line, descriptors) = receive_line(&stream)?;
    let nonsense = || ClientError::Lost(io::Error::other("its answer is invalid"));
    let Ok(answer) = serde_json::from_slice::<Answer>(&line) else {
        let refusal: Value = serde_json::from_slice(&line)?;
        let words = refusal["error"]["message"].as_str().ok_or_else(nonsense)?;
        return Err(ClientError::Refused(words.to_owned()));
    };
    if let Some(failure) = answer.error {
        return Err(ClientError::Refused(failure.message));
    }
    let words: Words = serde_json::from_value(answer.result.unwrap_or_default())?;
    let sockets = Sockets::of(&words, descriptors).ok_or_else(nonsense)?;
    Ok(Sockets { claim: Some(stream), ..sockets })
}

/// A line, and the descriptors that came with it.
fn receive_line(stream: &UnixStream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let (mut line, mut descriptors) = (Vec::new(), Vec::new());
    while line.last() != Some(&b'\n') {
        let mut bytes = [0; 4096];
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let mut into = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(stream, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(these) = message {
                descriptors.extend(these);
            }
        }
        if received.bytes == 0 || line.len() > MAX_ANSWER_BYTES {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.extend_from_slice(&bytes[..received.bytes]);
    }
    Ok((line, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_claims_sockets_while_the_configuration_is_changed() {
        let claims = Claims::default();
        let changes = [claims.change(), claims.change()];
        assert!(changes.iter().all(Option::is_some));
        for changing in changes {
            let claim = claims.claim(Duration::from_millis(1));
            assert!(claim.is_err_and(|why| why.contains("is being changed")));
            drop(changing);
        }
        let claim = claims.claim(PATIENCE).expect("free");
        assert!(claims.change().is_none());
        assert!(claims.claim(PATIENCE).is_err_and(|why| why.contains("taking over")));
        drop(claim);
        // It waits for a change to end.
        let changing = claims.change().expect("free again");
        let claim = std::thread::scope(|scope| {
            let claiming = scope.spawn(|| claims.claim(PATIENCE));
            drop(changing);
            claiming.join().expect("no panic").expect("free again")
        });
        claims.retire();
        drop(claim);
        assert!(claims.are_retired() && claims.change().is_none());
        assert!(claims.claim(PATIENCE).is_err());
    }
}
