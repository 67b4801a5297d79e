//! Authentication of a host that follows no rules, and the commands that it may use before it has succeeded.

use super::input::Input;
use crate::access::Rules;
use crate::rig::{NQN, PEER_NQN};
use bpfof_auth::dhchap::{Algorithms, Group, HostAuth, HostConfig, HostStep};
use bpfof_auth::{DhchapKey, Hash, Names};
use bpfof_nvme::fabrics::{FabricsCommand, SecurityProtocol};
use bpfof_nvme::opcode::{FABRICS, fabrics_type};
use bpfof_nvme::{Cqe, Sgl, Sqe};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Secrets of 32 equal bytes: the host's, a wrong one, the target's.
const SECRETS: [&str; 3] = [
    "DHHC-1:00:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQHMnzFi:",
    "DHHC-1:00:AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgJvwX3v:",
    "DHHC-1:00:AwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMOC0aU:",
];

fn secret(at: usize) -> DhchapKey {
    DhchapKey::parse(SECRETS[at]).expect("a good secret")
}

/// Rules of a target that requires its host to authenticate.
pub(super) fn rules() -> Rules {
    Rules::with_secrets(PEER_NQN, vec![secret(0)], Some(secret(2)))
}

/// A host's authentication at a target that requires it.
pub(super) struct Authentications {
    config: Arc<HostConfig>,
    /// Whether the host uses the right secret.
    knows: bool,
    /// For each line, whether the host authenticates as soon as it has connected.
    is_eager: [bool; 2],
    /// One for each line.
    runs: Vec<Run>,
}

/// The authentication on one line, and the state of its commands.
#[derive(Default)]
struct Run {
    host: Option<HostAuth>,
    /// The next message to send.
    message: Vec<u8>,
    /// Identifiers of commands that may succeed before the queue is authenticated.
    allowed: HashSet<u16>,
    /// Data to send for an R2T, by command identifier.
    remote: HashMap<u16, Vec<u8>>,
    /// The pending Authentication Receive of the run, and its answer so far.
    fetch: Option<u16>,
    fetched: Vec<u8>,
    /// Whether the host may have proved that it has the secret.
    has_proved: bool,
    /// Whether the last run has ended.
    is_over: bool,
}

impl Authentications {
    /// Bit 0 of `settings`: the host has a wrong secret. Bit 1: it requires the target to authenticate. Bit 2: a
    /// Diffie-Hellman group, so that the arithmetic is done outside the reactor. Bits 3 and 4: it does not authenticate
    /// its admin queue, its I/O queue, immediately.
    pub(super) fn new(settings: u8) -> Authentications {
        let names = Names::new(PEER_NQN, NQN).expect("good names");
        let group = if settings & 4 == 0 { Group::Null } else { Group::Ffdhe2048 };
        let algorithms = Algorithms { hashes: vec![Hash::Sha256], groups: vec![group] };
        let knows = settings & 1 == 0;
        let wanted = (settings & 2 != 0).then(|| secret(2));
        let key = secret(usize::from(!knows));
        let config = Arc::new(HostConfig::new(names, &key, wanted.as_ref(), algorithms));
        let is_eager = [settings & 8 == 0, settings & 16 == 0];
        Authentications { config, knows, is_eager, runs: Vec::new() }
    }

    pub(super) fn open(&mut self) {
        self.runs.push(Run::default());
    }

    /// Called before a command is sent.
    pub(super) fn sends(&mut self, line: usize, sqe: &Sqe) {
        use fabrics_type::{AUTHENTICATION_RECEIVE, AUTHENTICATION_SEND, CONNECT, DISCONNECT};
        let is_allowed = sqe.opcode == FABRICS
            && [AUTHENTICATION_SEND, AUTHENTICATION_RECEIVE, CONNECT, DISCONNECT]
                .contains(&(sqe.nsid as u8));
        let allowed = &mut self.runs[line].allowed;
        match is_allowed {
            true => _ = allowed.insert(sqe.cid),
            false => _ = allowed.remove(&sqe.cid),
        }
    }

    /// The data to send for an R2T, if known.
    pub(super) fn data(&self, line: usize, cid: u16) -> Option<&Vec<u8>> {
        self.runs[line].remote.get(&cid)
    }

    /// Checks the answer to a command.
    pub(super) fn answered(&mut self, line: usize, cqe: &Cqe) {
        let run = &self.runs[line];
        let is_early = !run.has_proved && !run.allowed.contains(&cqe.cid);
        assert!(!is_early || !cqe.status.is_success(), "{cqe:?} before authentication");
    }

    /// Checks and stores data of a command.
    pub(super) fn given(&mut self, line: usize, cid: u16, bytes: &[u8]) {
        let run = &mut self.runs[line];
        assert!(run.has_proved || run.allowed.contains(&cid), "data before authentication");
        if run.fetch == Some(cid) {
            run.fetched.extend_from_slice(bytes);
        }
    }

    /// Whether a queue may have been authenticated.
    pub(super) fn may_have_proved(&self, line: usize) -> bool {
        self.runs[line].has_proved
    }

    /// Whether a newly connected host must continue a run.
    pub(super) fn is_due(&self, line: usize) -> bool {
        self.is_eager[line] && !self.runs[line].is_over
    }

    /// The next command of a regular run, and its data; the answer to the previous one has arrived. `None` if the run
    /// is over.
    pub(super) fn next(
        &mut self,
        line: usize,
        next_cid: u16,
        input: &mut Input<'_>,
    ) -> Option<(Sqe, Vec<u8>)> {
        let run = &mut self.runs[line];
        if run.fetch.take().is_some()
            && let Some(host) = &mut run.host
        {
            run.message = match host.received(&std::mem::take(&mut run.fetched)) {
                HostStep::Exchange(message) => message,
                HostStep::Finished { last, result } => {
                    assert!(
                        self.knows || result.is_err(),
                        "authentication succeeds with a wrong secret"
                    );
                    (run.host, run.is_over) = (None, true);
                    last.unwrap_or_default()
                }
            };
            if run.is_over && run.message.is_empty() {
                return None;
            }
        }
        if run.host.is_none() && run.message.is_empty() {
            let t_id = u16::from(input.byte());
            let (host, step) = HostAuth::new(Arc::clone(&self.config), t_id);
            let HostStep::Exchange(message) = step else { return None };
            (run.host, run.is_over, run.message) = (Some(host), false, message);
        }
        if !run.message.is_empty() {
            let message = std::mem::take(&mut run.message);
            // The target may accept the host from its Reply on.
            run.has_proved |= self.knows && message.starts_with(&[1, 2]);
            return Some((send_command(&message), message));
        }
        run.fetch = Some(next_cid);
        let (protocol, length_bytes) = (SecurityProtocol::IN_BAND, 4096);
        let receive = FabricsCommand::AuthenticationReceive { protocol, length_bytes };
        Some((receive.to_sqe(), Vec::new()))
    }

    /// An arbitrary Authentication Send or Receive, and its data.
    pub(super) fn any(
        &mut self,
        line: usize,
        next_cid: u16,
        input: &mut Input<'_>,
    ) -> (Sqe, Vec<u8>) {
        if input.byte() & 1 == 1 {
            return (any_receive(input), Vec::new());
        }
        let message = message(input);
        let mut sqe = send_command(&message);
        match input.byte() % 8 {
            0 => sqe.cdw10 = input.number() as u32,
            1 => sqe.cdw11 = input.edge() as u32,
            2 => sqe.sgl.length_bytes = input.edge() as u32,
            3 => sqe.sgl.address = input.edge(),
            4 => sqe.sgl.kind = input.byte(),
            // The target must request the data.
            5 | 6 => {
                sqe.sgl = Sgl::transport(message.len() as u32);
                self.runs[line].remote.insert(next_cid, message);
                return (sqe, Vec::new());
            }
            _ => {}
        }
        (sqe, message)
    }
}

/// An Authentication Send with a message in its capsule.
fn send_command(message: &[u8]) -> Sqe {
    let (protocol, length_bytes) = (SecurityProtocol::IN_BAND, message.len() as u32);
    FabricsCommand::AuthenticationSend { protocol, length_bytes }.to_sqe()
}

fn any_receive(input: &mut Input<'_>) -> Sqe {
    let (protocol, length_bytes) = (SecurityProtocol::IN_BAND, input.edge() as u32);
    let mut sqe = FabricsCommand::AuthenticationReceive { protocol, length_bytes }.to_sqe();
    match input.byte() % 8 {
        0 => sqe.cdw10 = input.number() as u32,
        1 => sqe.sgl.length_bytes = input.edge() as u32,
        2 => sqe.sgl.kind = input.byte(),
        3 => sqe.sgl = Sgl::in_capsule(0),
        _ => {}
    }
    sqe
}

/// A message of the protocol, or an unknown one.
fn message(input: &mut Input<'_>) -> Vec<u8> {
    let mut message = match input.byte() % 5 {
        0 => {
            let mut negotiate = vec![0; 72];
            (negotiate[7], negotiate[8], negotiate[10], negotiate[11]) = (1, 1, 3, 3);
            negotiate[12..15].copy_from_slice(&[1, 2, 3]);
            negotiate[42..45].copy_from_slice(&[input.byte() % 7, 0, 1]);
            negotiate
        }
        1 => {
            let mut reply = vec![input.byte(); 16 + 64 + 256 * usize::from(input.byte() & 1)];
            reply[..16].fill(0);
            (reply[0], reply[1], reply[6], reply[8]) = (1, 2, 32, input.byte() & 1);
            let value = (reply.len() - 80) as u16;
            reply[10..12].copy_from_slice(&value.to_le_bytes());
            reply
        }
        2 => [&[1, 4][..], &[0; 14]].concat(),
        3 => vec![0, 0xF0, 0, 0, 0, 0, 1, input.byte()],
        _ => {
            let length = usize::from(input.byte()) * 17;
            let mut bytes = input.bytes(length.min(300)).to_vec();
            bytes.resize(length, 1);
            bytes
        }
    };
    if message.len() >= 6 {
        message[4] = input.byte();
    }
    match input.byte() {
        200..=227 if !message.is_empty() => {
            let at = input.number() as usize % message.len();
            message[at] = input.byte();
        }
        228.. => message.truncate(input.number() as usize % (message.len() + 1)),
        _ => {}
    }
    message
}
